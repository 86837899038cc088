/* adapters/temporal/rpc.c: methods, retries with pauses, long polls, closing. */
#include "adapters/temporal/rpc.h"

#include <sys/queue.h>

#include "base/log.h"
#include "base/uuid.h"

enum {
    ANSWER_ARENA_FIRST = 2048,
    CALL_TRIES_MAX = 10,
    CALL_MS_MAX = 10000, /* from the first try to the last */
    CALL_PAUSE_MS = 100, /* before the second try; then x1.7, at most CALL_PAUSE_MS_MAX */
    CALL_PAUSE_MS_MAX = 5000,
    POLL_PAUSE_MS = 200, /* then x2, at most POLL_PAUSE_MS_MAX */
    POLL_PAUSE_MS_MAX = 10000,
    CLOSE_MS = 1000,      /* for calls under way when the channel is closed */
    BUSY_PAUSE_MS = 1000, /* when the cluster says that it has too much to do */
};
#define ANSWER_BYTES_MAX ((size_t)64 * 1024 * 1024) /* of a page of history; 50 MiB are legal */
#define ANSWER_ARENA_MAX ((size_t)256 * 1024 * 1024)
#define PATH_PREFIX "/temporal.api.workflowservice.v1.WorkflowService/"

static const struct {
    const char *name;
    const ProtobufCMessageDescriptor *answer;
    int64_t timeout_ms;
    bool poll;
} methods[RPC_METHOD_COUNT] = {
    [RPC_SYSTEM_INFO] = {"GetSystemInfo", &tp__system_info__descriptor, 5000, false},
    [RPC_DESCRIBE_NAMESPACE] = {"DescribeNamespace", &tp__empty__descriptor, 10000, false},
    [RPC_REGISTER_NAMESPACE] = {"RegisterNamespace", &tp__empty__descriptor, 10000, false},
    [RPC_START] = {"StartWorkflowExecution", &tp__start_response__descriptor, 30000, false},
    [RPC_DESCRIBE] = {"DescribeWorkflowExecution", &tp__describe_response__descriptor, 10000,
                      false},
    [RPC_HISTORY] = {"GetWorkflowExecutionHistory", &tp__history_response__descriptor, 30000,
                     false},
    [RPC_SIGNAL] = {"SignalWorkflowExecution", &tp__empty__descriptor, 10000, false},
    [RPC_CANCEL] = {"RequestCancelWorkflowExecution", &tp__empty__descriptor, 10000, false},
    [RPC_TERMINATE] = {"TerminateWorkflowExecution", &tp__empty__descriptor, 10000, false},
    [RPC_LIST] = {"ListWorkflowExecutions", &tp__list_response__descriptor, 10000, false},
    [RPC_POLL_TASK] = {"PollWorkflowTaskQueue", &tp__task_response__descriptor, 70000, true},
    [RPC_TASK_COMPLETED] = {"RespondWorkflowTaskCompleted", &tp__empty__descriptor, 10000, false},
    [RPC_TASK_FAILED] = {"RespondWorkflowTaskFailed", &tp__empty__descriptor, 10000, false},
    [RPC_QUERY_COMPLETED] = {"RespondQueryTaskCompleted", &tp__empty__descriptor, 10000, false},
    [RPC_POLL_ACTIVITY] = {"PollActivityTaskQueue", &tp__activity_response__descriptor, 70000,
                           true},
    [RPC_ACTIVITY_COMPLETED] = {"RespondActivityTaskCompleted", &tp__empty__descriptor, 10000,
                                false},
    [RPC_ACTIVITY_FAILED] = {"RespondActivityTaskFailed", &tp__empty__descriptor, 10000, false},
    [RPC_ACTIVITY_CANCELED] = {"RespondActivityTaskCanceled", &tp__empty__descriptor, 10000, false},
    [RPC_HEARTBEAT] = {"RecordActivityTaskHeartbeat", &tp__heartbeat_response__descriptor, 5000,
                       false},
};

struct rpc_call {
    TAILQ_ENTRY(rpc_call) link;
    struct rpc *rpc;
    enum rpc_method method;
    str body; /* in own_arena */
    struct arena own_arena;
    struct arena *arena; /* for the answer: the caller's, or own_arena */
    rpc_done done;
    void *context;
    struct grpc_call *grpc; /* under way, or NULL: waiting for the next try */
    uv_timer_t timer;
    int tries;
    int64_t pause_ms;
    uint64_t begun; /* uv_now() of the first try */
    bool unheard;   /* cancelled, and on its way all the same */
};
TAILQ_HEAD(call_list, rpc_call);

struct rpc {
    uv_loop_t *loop;
    struct grpc *grpc;
    struct call_list calls;
    size_t handles; /* of calls that are not closed yet */
    bool down;      /* and logged */
    bool closing;
    uv_timer_t timer; /* of closing */
    void (*closed)(void *context);
    void *context;
};

size_t rpc_active(const struct rpc *rpc) { return rpc->handles; }

const char *rpc_name(enum rpc_method method) { return methods[method].name; }

/* ---- memory ---- */

static void free_if_over(struct rpc *rpc) {
    if (!rpc->closing || rpc->handles > 0) return;
    void (*closed)(void *) = rpc->closed;
    void *context = rpc->context;
    mem_free(rpc);
    if (closed) closed(context);
}

static void on_closed(uv_handle_t *handle) {
    struct rpc_call *call = handle->data;
    struct rpc *rpc = call->rpc;
    arena_release(&call->own_arena);
    mem_free(call);
    rpc->handles--;
    free_if_over(rpc);
}

static void call_free(struct rpc_call *call) {
    TAILQ_REMOVE(&call->rpc->calls, call, link);
    uv_close((uv_handle_t *)&call->timer, on_closed);
}

void rpc_cancel(struct rpc_call *call) {
    call->unheard = call->grpc && !methods[call->method].poll;
    if (call->unheard) return;
    if (call->grpc) grpc_cancel(call->grpc);
    call_free(call);
}

/* ---- trying again ---- */

static bool may_pass(int code, bool poll) {
    switch (code) {
    case GRPC_UNKNOWN:
    case GRPC_RESOURCE_EXHAUSTED:
    case GRPC_ABORTED:
    case GRPC_OUT_OF_RANGE:
    case GRPC_INTERNAL:
    case GRPC_UNAVAILABLE:
    case GRPC_DATA_LOSS:
        return true;
    default: /* a poll has nothing to lose: a namespace may be made, a key be renewed */
        return poll;
    }
}

/* A namespace that is not there yet, or not known to all of the cluster, is not a run that is gone.
 */
static bool lacks_namespace(const struct grpc_answer *answer) {
    static const char name[] = ".NamespaceNotFoundFailure";
    return answer->code == GRPC_NOT_FOUND && answer->details.ptr &&
           memmem(answer->details.ptr, answer->details.len, name, sizeof name - 1);
}

/* 80 to 120 per cent, so that those who were refused together do not come back together. */
static int64_t spread(int64_t ms) {
    uint8_t random = 0;
    random_bytes(&random, 1);
    return ms * (80 + random % 41) / 100;
}

static bool pause_next(struct rpc_call *call, int code) {
    bool poll = methods[call->method].poll;
    if (!may_pass(code, poll)) return false;
    if (!poll && call->tries >= CALL_TRIES_MAX) return false;
    int64_t most = poll ? POLL_PAUSE_MS_MAX : CALL_PAUSE_MS_MAX;
    if (call->pause_ms == 0)
        call->pause_ms = poll ? POLL_PAUSE_MS : CALL_PAUSE_MS;
    else
        call->pause_ms = poll ? call->pause_ms * 2 : call->pause_ms * 17 / 10;
    if (code == GRPC_RESOURCE_EXHAUSTED && call->pause_ms < BUSY_PAUSE_MS)
        call->pause_ms = BUSY_PAUSE_MS;
    if (call->pause_ms > most) call->pause_ms = most;
    uint64_t until = uv_now(call->rpc->loop) + (uint64_t)call->pause_ms;
    return poll || until <= call->begun + CALL_MS_MAX;
}

static void answer_call(struct rpc_call *call, const struct rpc_answer *answer) {
    call->grpc = NULL;
    uv_timer_stop(&call->timer);
    call->done(call->context, answer);
    call_free(call);
}

static void call_try(struct rpc_call *call);

static void on_pause(uv_timer_t *timer) { call_try(timer->data); }

/* The cluster is back: nobody has to wait out a pause that grew while it was away. */
static void wake_calls(struct rpc *rpc) {
    for (struct rpc_call *call = TAILQ_FIRST(&rpc->calls); call; call = TAILQ_NEXT(call, link)) {
        if (call->grpc || !uv_is_active((uv_handle_t *)&call->timer)) continue;
        call->pause_ms = 0;
        uv_timer_start(&call->timer, on_pause, (uint64_t)spread(CALL_PAUSE_MS), 0);
    }
}

static void log_state(struct rpc *rpc, const struct rpc_call *call,
                      const struct grpc_answer *answer) {
    bool down = answer->code == GRPC_UNAVAILABLE || answer->code == GRPC_UNAUTHENTICATED ||
                answer->code == GRPC_PERMISSION_DENIED;
    if (down == rpc->down || (!down && answer->code != GRPC_OK)) return;
    rpc->down = down;
    if (down)
        LOG(LOG_WARN, "temporal cannot be reached; trying again until it can",
            LOG_S("call", str_c(methods[call->method].name)),
            LOG_S("code", str_c(grpc_code_name(answer->code))), LOG_S("why", answer->message));
    else
        LOG(LOG_INFO, "temporal answers again", LOG_S("call", str_c(methods[call->method].name)));
    if (!down) wake_calls(rpc);
}

static void on_close(uv_timer_t *timer);

static void on_answer(void *context, const struct grpc_answer *answer) {
    struct rpc_call *call = context;
    struct rpc *rpc = call->rpc;
    call->grpc = NULL;
    if (call->unheard) {
        call_free(call);
        if (rpc->closing && TAILQ_EMPTY(&rpc->calls)) uv_timer_start(&rpc->timer, on_close, 0, 0);
        return;
    }
    struct grpc_answer seen = *answer;
    if (call->method != RPC_DESCRIBE_NAMESPACE && lacks_namespace(answer))
        seen.code = GRPC_UNAVAILABLE;
    answer = &seen;
    log_state(rpc, call, answer);
    struct rpc_answer out = {answer->code, answer->message, answer->details, NULL};
    if (answer->code == GRPC_OK) {
        struct error err;
        void *value = NULL;
        if (wire_unpack(methods[call->method].answer, answer->body, call->arena, &value, &err) ==
            ST_OK) {
            out.value = value;
        } else { /* the same bytes would come again */
            out.code = GRPC_DATA_LOSS;
            out.message = str_c(err.msg);
            answer_call(call, &out);
            return;
        }
    } else if (pause_next(call, answer->code)) {
        uv_timer_start(&call->timer, on_pause, (uint64_t)spread(call->pause_ms), 0);
        return;
    }
    answer_call(call, &out);
}

static void on_refused(uv_timer_t *timer) {
    struct rpc_call *call = timer->data;
    struct grpc_answer answer = {.code = GRPC_RESOURCE_EXHAUSTED,
                                 .message = STR("too many calls are under way")};
    on_answer(call, &answer);
}

static void call_try(struct rpc_call *call) {
    char path[128];
    int n = snprintf(path, sizeof path, PATH_PREFIX "%s", methods[call->method].name);
    struct grpc_request request = {.path = str_n(path, (size_t)n),
                                   .body = call->body,
                                   .timeout_ms = methods[call->method].timeout_ms,
                                   .bytes_max = ANSWER_BYTES_MAX};
    struct error err;
    call->tries++;
    if (grpc_start(call->rpc->grpc, &request, on_answer, call, &call->grpc, &err) == ST_OK) return;
    call->grpc = NULL;
    uv_timer_start(&call->timer, on_refused, 0,
                   0); /* never an answer before rpc_start() returned */
}

status rpc_start(struct rpc *rpc, enum rpc_method method, const ProtobufCMessage *request,
                 struct arena *arena, rpc_done done, void *context, struct rpc_call **out,
                 struct error *err) {
    ASSERT(!rpc->closing);
    struct rpc_call *call = mem_alloc(sizeof *call);
    if (!call) return error_set(err, ST_RETRY, "out of memory");
    *call = (struct rpc_call){.rpc = rpc, .method = method, .done = done, .context = context};
    arena_init(&call->own_arena, ANSWER_ARENA_FIRST, ANSWER_ARENA_MAX);
    call->arena = arena ? arena : &call->own_arena;
    status st = wire_pack(request, &call->own_arena, &call->body, err);
    if (st != ST_OK) {
        arena_release(&call->own_arena);
        mem_free(call);
        return st;
    }
    uv_timer_init(rpc->loop, &call->timer);
    call->timer.data = call;
    call->begun = uv_now(rpc->loop);
    rpc->handles++;
    TAILQ_INSERT_TAIL(&rpc->calls, call, link);
    call_try(call);
    if (out) *out = call;
    return ST_OK;
}

/* ---- the channel ---- */

status rpc_open(uv_loop_t *loop, const struct grpc_options *options, struct rpc **out,
                struct error *err) {
    struct rpc *rpc = mem_alloc(sizeof *rpc);
    if (!rpc) return error_set(err, ST_RETRY, "out of memory");
    rpc->loop = loop;
    TAILQ_INIT(&rpc->calls);
    status st = grpc_open(loop, options, &rpc->grpc, err);
    if (st != ST_OK) {
        mem_free(rpc);
        return st;
    }
    uv_timer_init(loop, &rpc->timer);
    rpc->timer.data = rpc;
    rpc->handles = 1;
    *out = rpc;
    return ST_OK;
}

static void on_timer_closed(uv_handle_t *handle) {
    struct rpc *rpc = handle->data;
    rpc->handles--;
    free_if_over(rpc);
}

static void on_close(uv_timer_t *timer) {
    struct rpc *rpc = timer->data;
    struct rpc_call *next;
    for (struct rpc_call *call = TAILQ_FIRST(&rpc->calls); call; call = next) {
        next = TAILQ_NEXT(call, link);
        grpc_cancel(call->grpc);
        call_free(call);
    }
    grpc_close(rpc->grpc);
    uv_close((uv_handle_t *)timer, on_timer_closed);
}

void rpc_close(struct rpc *rpc, void (*closed)(void *context), void *context) {
    ASSERT(!rpc->closing);
    rpc->closing = true;
    rpc->closed = closed;
    rpc->context = context;
    struct rpc_call *next;
    for (struct rpc_call *call = TAILQ_FIRST(&rpc->calls); call; call = next) {
        next = TAILQ_NEXT(call, link);
        rpc_cancel(call);
    }
    uv_timer_start(&rpc->timer, on_close, TAILQ_EMPTY(&rpc->calls) ? 0 : CLOSE_MS, 0);
}

str rpc_existing_run(const struct rpc_answer *answer, struct arena *arena) {
    struct error err;
    void *unpacked = NULL;
    if (!answer->details.ptr ||
        wire_unpack(&tp__status__descriptor, answer->details, arena, &unpacked, &err) != ST_OK)
        return STR_NONE;
    const Tp__Status *st = unpacked;
    for (size_t i = 0; i < st->n_details; i++) {
        if (!str_ends(wire_str(st->details[i]->type_url),
                      STR(".WorkflowExecutionAlreadyStartedFailure")))
            continue;
        if (wire_unpack(&tp__already_started__descriptor, wire_str(st->details[i]->value), arena,
                        &unpacked, &err) != ST_OK)
            return STR_NONE;
        const Tp__AlreadyStarted *already = unpacked;
        return already->run_id.len > 0 ? wire_str(already->run_id) : STR_NONE;
    }
    return STR_NONE;
}
