/* adapters/temporal/worker.c: activities that this process executes. The input of one names the
 * plan, the step and the attempt, the executor carries it out, heartbeats keep it alive at the
 * cluster and bring back that it is not wanted any more.
 *
 * A step that failed has failed for good, as far as the cluster is concerned: the engine decides
 * whether there is another attempt. Only what did not happen (a shutdown, a plan that could not be
 * read yet) is told as a failure that the cluster may try elsewhere. */
#include "adapters/temporal/impl.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"

enum {
    ACTIVITY_ARENA_FIRST = 8192,
    WAIT_MS = 250, /* between two looks for a plan that is being fetched */
    WAIT_MS_MAX = 60000,
    ANSWER_PAUSE_MS = 1000, /* between two tries to tell a result to a cluster that is down */
    ANSWER_TRIES_MAX = 300,
};
#define ACTIVITY_ARENA_MAX ((size_t)64 * 1024 * 1024)

enum activity_state {
    ACTIVITY_POLLS,   /* there is none yet */
    ACTIVITY_WAITS,   /* for its plan, or for its predecessor to end */
    ACTIVITY_RUNS,    /* the executor has it */
    ACTIVITY_ANSWERS, /* the cluster is told how it ended, until it has heard it */
};
/* What the cluster wants of it; this only ever moves on. */
enum cluster_wish {
    WISH_EXECUTE,
    WISH_CANCEL, /* it asked us to end it */
    WISH_FORGET, /* it does not know the activity any more: no answer */
};
struct activity {
    TAILQ_ENTRY(activity) link;
    struct temporal *t;
    struct arena arena;
    const Tp__ActivityResponse *poll;
    enum activity_state state;
    struct attempt attempt;
    struct plan_ref plan_ref;
    const struct plan *plan;
    str step_id;
    struct rpc_call *call;      /* the poll, or the answer */
    struct rpc_call *heartbeat; /* under way, or NULL */
    enum cluster_wish wish;
    enum rpc_method method;  /* of the answer */
    str code, message, json; /* of the answer: a failure, or a value */
    bool retryable;
    int tries;
    uint64_t waits_until;
    uv_timer_t timer; /* of its state: to look again, for a heartbeat, to answer again */
};

static void activity_check(const struct activity *activity) {
    ASSERT((activity->state == ACTIVITY_POLLS) == (activity->poll == NULL));
    if (activity->state == ACTIVITY_RUNS) ASSERT(activity->plan && activity->attempt.step);
    if (activity->state == ACTIVITY_ANSWERS) ASSERT(!activity->plan && !activity->heartbeat);
}

static void activity_move(struct activity *activity, enum activity_state state) {
    static const uint8_t allowed[] = {
        [ACTIVITY_POLLS] = 1 << ACTIVITY_WAITS,
        [ACTIVITY_WAITS] = 1 << ACTIVITY_RUNS | 1 << ACTIVITY_ANSWERS,
        [ACTIVITY_RUNS] = 1 << ACTIVITY_ANSWERS,
        [ACTIVITY_ANSWERS] = 0,
    };
    struct temporal *t = activity->t;
    ASSERT(allowed[activity->state] & 1 << state);
    if (activity->state == ACTIVITY_POLLS) {
        ASSERT(activity->poll && t->activity_polls > 0);
        t->activity_polls--;
        t->activity_count++;
    }
    activity->state = state;
}

static void on_activity_closed(uv_handle_t *handle) {
    struct activity *activity = handle->data;
    struct temporal *t = activity->t;
    arena_release(&activity->arena);
    mem_free(activity);
    t->handles--;
    temporal_check_end(t);
}

static void activity_free(struct activity *activity) {
    struct temporal *t = activity->t;
    if (activity->call) rpc_cancel(activity->call);
    if (activity->heartbeat) rpc_cancel(activity->heartbeat);
    if (activity->plan) t->ports.plan_done(t->ports.context, activity->plan);
    TAILQ_REMOVE(&t->activities, activity, link);
    if (activity->state == ACTIVITY_POLLS)
        t->activity_polls--;
    else
        t->activity_count--;
    uv_close((uv_handle_t *)&activity->timer, on_activity_closed);
    if (temporal_is_closing(t)) temporal_check_end(t);
}

/* And its slot is free for another. */
static void activity_end(struct activity *activity) {
    struct temporal *t = activity->t;
    activity_free(activity);
    activities_poll(t);
}

/* ---- the answer ---- */

static void activity_send(struct activity *activity);

static void on_send_again(uv_timer_t *timer) { activity_send(timer->data); }

static void on_sent(void *context, const struct rpc_answer *answer) {
    struct activity *activity = context;
    struct temporal *t = activity->t;
    activity->call = NULL;
    bool later = answer->code == GRPC_UNAVAILABLE || answer->code == GRPC_RESOURCE_EXHAUSTED ||
                 answer->code == GRPC_DEADLINE_EXCEEDED;
    if (later && !temporal_is_closing(t) && ++activity->tries < ANSWER_TRIES_MAX) {
        uv_timer_start(&activity->timer, on_send_again, ANSWER_PAUSE_MS, 0);
        return;
    }
    if (answer->code != GRPC_OK && answer->code != GRPC_NOT_FOUND)
        LOG(LOG_WARN, "temporal: the result of an attempt was not taken; it will be executed again",
            LOG_S("run", activity->attempt.run_id), LOG_S("step", activity->step_id),
            LOG_S("code", str_c(grpc_code_name(answer->code))), LOG_S("why", answer->message));
    struct temporal_run *r =
        answer->code == GRPC_NOT_FOUND ? temporal_run_find(t, activity->attempt.run_id) : NULL;
    if (r) temporal_run_suspect(r);
    activity_end(activity);
}

static status send_completed(struct activity *activity, struct error *err) {
    struct temporal *t = activity->t;
    Tp__ActivityCompletedRequest request = TP__ACTIVITY_COMPLETED_REQUEST__INIT;
    request.task_token = activity->poll->task_token;
    request.result = wire_json_list(activity->json, &activity->arena);
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    if (!request.result) return error_set(err, ST_RETRY, "out of memory");
    return rpc_start(t->rpc, activity->method, &request.base, NULL, on_sent, activity,
                     &activity->call, err);
}

static status send_failed(struct activity *activity, struct error *err) {
    struct temporal *t = activity->t;
    Tp__ActivityFailedRequest request = TP__ACTIVITY_FAILED_REQUEST__INIT;
    request.task_token = activity->poll->task_token;
    request.failure = wire_failure(activity->code, activity->message, activity->json,
                                   activity->retryable, &activity->arena);
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    if (!request.failure) return error_set(err, ST_RETRY, "out of memory");
    return rpc_start(t->rpc, activity->method, &request.base, NULL, on_sent, activity,
                     &activity->call, err);
}

static status send_canceled(struct activity *activity, struct error *err) {
    struct temporal *t = activity->t;
    Tp__ActivityCanceledRequest request = TP__ACTIVITY_CANCELED_REQUEST__INIT;
    request.task_token = activity->poll->task_token;
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    return rpc_start(t->rpc, activity->method, &request.base, NULL, on_sent, activity,
                     &activity->call, err);
}

static void activity_send(struct activity *activity) {
    struct error err = {0};
    struct arena_mark mark = arena_mark(&activity->arena);
    status st = activity->method == RPC_ACTIVITY_COMPLETED ? send_completed(activity, &err)
                : activity->method == RPC_ACTIVITY_FAILED  ? send_failed(activity, &err)
                                                           : send_canceled(activity, &err);
    arena_rewind(&activity->arena, mark);
    if (st == ST_OK) return;
    if (++activity->tries < ANSWER_TRIES_MAX && !temporal_is_closing(activity->t)) {
        uv_timer_start(&activity->timer, on_send_again, ANSWER_PAUSE_MS, 0);
        return;
    }
    activity_end(activity);
}

static void activity_answer(struct activity *activity, enum rpc_method method) {
    struct temporal *t = activity->t;
    activity_move(activity, ACTIVITY_ANSWERS);
    activity->method = method;
    uv_timer_stop(&activity->timer);
    if (activity->heartbeat) rpc_cancel(activity->heartbeat);
    activity->heartbeat = NULL;
    if (activity->plan) t->ports.plan_done(t->ports.context, activity->plan);
    activity->plan = NULL;
    activity_check(activity);
    if (activity->wish == WISH_FORGET)
        activity_end(activity);
    else
        activity_send(activity);
}

/* The texts are copied, cut to what fits an answer. */
static void activity_fail(struct activity *activity, str code, str message, str detail,
                          bool retryable) {
    if (message.len > WIRE_PAYLOAD_MAX / 4) message.len = WIRE_PAYLOAD_MAX / 4;
    if (detail.len > WIRE_PAYLOAD_MAX / 2) detail = STR_NONE;
    if (!arena_try_str(&activity->arena, code, &activity->code) ||
        !arena_try_str(&activity->arena, message, &activity->message) ||
        !arena_try_str(&activity->arena, detail, &activity->json)) {
        activity->code = STR("PROVIDER_FAILURE");
        activity->message = STR("out of memory for the answer");
        activity->json = STR_NONE;
    }
    activity->retryable = retryable;
    activity_answer(activity, RPC_ACTIVITY_FAILED);
}

static void activity_complete(struct activity *activity, str output) {
    struct buf b;
    buf_init(&b, WIRE_PAYLOAD_MAX);
    buf_put_c(&b, "{");
    if (output.ptr) buf_put_c(&b, "\"output\":");
    if (output.ptr) buf_put(&b, output);
    buf_put_c(&b, "}");
    bool good = !b.full && arena_try_str(&activity->arena, buf_str(&b), &activity->json);
    buf_release(&b);
    if (good)
        activity_answer(activity, RPC_ACTIVITY_COMPLETED);
    else
        activity_fail(activity, STR("OUTPUT_TOO_LARGE"),
                      STR("the output is more than the cluster takes"), STR_NONE, false);
}

static void on_attempt_done(struct attempt *attempt, const struct outcome *o) {
    struct activity *activity = attempt->context;
    if (o->ok)
        activity_complete(activity, o->output);
    else if (!reason_is(REASON_CANCELLED, o->code))
        activity_fail(activity, o->code, o->message, o->detail, false);
    else if (activity->wish == WISH_CANCEL)
        activity_answer(activity, RPC_ACTIVITY_CANCELED);
    else /* nobody at the cluster wanted that: it is this process that ends */
        activity_fail(activity, STR("WORKER_SHUTDOWN"), STR("the worker shut down"), STR_NONE,
                      true);
}

/* ---- heartbeats ---- */

static void activity_end_soon(struct activity *activity) {
    if (activity->state == ACTIVITY_RUNS)
        executor_stop(activity->t->ports.executor, &activity->attempt);
    else if (activity->state == ACTIVITY_WAITS && activity->wish == WISH_CANCEL)
        activity_answer(activity, RPC_ACTIVITY_CANCELED);
    else if (activity->state == ACTIVITY_WAITS)
        activity_fail(activity, STR("WORKER_SHUTDOWN"), STR("the worker shut down"), STR_NONE,
                      true);
}

static void on_heartbeat(void *context, const struct rpc_answer *answer) {
    struct activity *activity = context;
    activity->heartbeat = NULL;
    if (answer->code == GRPC_OK) {
        const Tp__HeartbeatResponse *response = answer->value;
        if (!response->cancel_requested || activity->wish != WISH_EXECUTE) return;
        activity->wish = WISH_CANCEL;
        activity_end_soon(activity);
    } else if (answer->code == GRPC_NOT_FOUND && activity->wish != WISH_FORGET) {
        struct temporal_run *r = temporal_run_find(activity->t, activity->attempt.run_id);
        if (r) temporal_run_suspect(r);
        activity->wish = WISH_FORGET;
        activity_end_soon(activity);
    }
}

static void activity_heartbeat(struct activity *activity) {
    struct temporal *t = activity->t;
    struct error err;
    if (activity->heartbeat || activity->wish == WISH_FORGET) return;
    Tp__ActivityCanceledRequest request = TP__ACTIVITY_CANCELED_REQUEST__INIT;
    request.task_token = activity->poll->task_token;
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    if (rpc_start(t->rpc, RPC_HEARTBEAT, &request.base, NULL, on_heartbeat, activity,
                  &activity->heartbeat, &err) != ST_OK)
        activity->heartbeat = NULL; /* the next one may have more luck */
}

static void on_heartbeat_timer(uv_timer_t *timer) { activity_heartbeat(timer->data); }

/* ---- the input ---- */

static bool take_str(yyjson_val *root, const char *name, size_t bytes_max, str *out) {
    return json_str(json_member(root, name), out) && out->len > 0 && out->len <= bytes_max;
}

static status activity_parse(struct activity *activity, struct error *err) {
    struct json_limits limits = {WIRE_PAYLOAD_MAX + 1024, JSON_DEPTH_MAX + 2};
    struct attempt *a = &activity->attempt;
    yyjson_val *root = NULL;
    str correlation;
    if (!activity->poll->activity_type ||
        !str_eq(wire_str(activity->poll->activity_type->name), ACTIVITY_TYPE))
        return error_set(err, ST_INVALID, "the activity is of a type that is not ours");
    str text = wire_json_of(activity->poll->input);
    if (!text.ptr) return error_set(err, ST_INVALID, "the input of the activity is not JSON");
    status st = json_parse(text, limits, &activity->arena, &root, err);
    if (st != ST_OK) return st;
    yyjson_val *body = json_member(root, "body");
    yyjson_val *ref = json_member(root, "planRef");
    bool good = yyjson_obj_size(root) == 10 && take_str(root, "runId", ID_BYTES_MAX, &a->run_id) &&
                take_str(root, "tenantId", ID_BYTES_MAX, &a->tenant_id) &&
                take_str(root, "projectId", ID_BYTES_MAX, &a->project_id) &&
                take_str(root, "environmentId", ID_BYTES_MAX, &a->environment_id) &&
                take_str(root, "stepId", ID_BYTES_MAX, &activity->step_id) &&
                take_str(root, "correlationId", UUID_TEXT_LEN, &correlation) &&
                uuid_parse(correlation, &a->correlation) &&
                json_int(json_member(root, "attempt"), &a->number) && a->number > 0 &&
                json_int(json_member(root, "timeoutMs"), &a->timeout_ms) && a->timeout_ms >= 0 &&
                yyjson_is_obj(body) && ref;
    if (!good) return error_set(err, ST_INVALID, "the input of the activity is not an attempt");
    st = plan_ref_read(ref, &activity->plan_ref, err);
    if (st != ST_OK) return st;
    a->body = json_text(body, &activity->arena);
    a->plan_ref = json_text(ref, &activity->arena);
    str id = activity_id(activity->step_id, a->number, &activity->arena);
    if (!a->body.ptr || !a->plan_ref.ptr || !id.ptr)
        return error_set(err, ST_RETRY, "out of memory");
    if (!str_eq(id, wire_str(activity->poll->activity_id)) || !activity->poll->execution ||
        !str_eq(a->run_id, wire_str(activity->poll->execution->workflow_id)))
        return error_set(err, ST_INVALID, "the activity has the input of another attempt");
    return ST_OK;
}

/* ---- running ---- */

/* Its predecessor, given up by the cluster, may still be on its way out in this very process. */
static bool activity_has_twin(const struct activity *activity) {
    for (const struct activity *other = TAILQ_FIRST(&activity->t->activities); other;
         other = TAILQ_NEXT(other, link)) {
        if (other != activity && other->state == ACTIVITY_RUNS &&
            str_eq(wire_str(other->poll->activity_id), wire_str(activity->poll->activity_id)) &&
            str_eq(other->attempt.run_id, activity->attempt.run_id))
            return true;
    }
    return false;
}

static void activity_try(struct activity *activity);
static void on_activity_try(uv_timer_t *timer) {
    activity_heartbeat(timer->data);
    activity_try(timer->data);
}

static void activity_wait(struct activity *activity, const char *why) {
    if (now_ms(activity->t) < activity->waits_until)
        uv_timer_start(&activity->timer, on_activity_try, WAIT_MS, 0);
    else
        activity_fail(activity, STR("PLAN_UNAVAILABLE"), str_c(why), STR_NONE, true);
}

static void activity_run(struct activity *activity) {
    struct temporal *t = activity->t;
    int64_t at = plan_find(activity->plan, activity->step_id);
    if (at < 0 || !plan_type_is_executed(activity->plan->steps[at].type)) {
        activity_fail(activity, STR("ATTEMPT_INVALID"), STR("the plan has no such step to execute"),
                      STR_NONE, false);
        return;
    }
    activity->attempt.step = &activity->plan->steps[at];
    activity->attempt.done = on_attempt_done;
    activity->attempt.context = activity;
    activity_move(activity, ACTIVITY_RUNS);
    activity_check(activity);
    uint64_t every = (uint64_t)t->heartbeat_ms / 4;
    uv_timer_start(&activity->timer, on_heartbeat_timer, every, every);
    executor_start(t->ports.executor, &activity->attempt);
}

static void activity_try(struct activity *activity) {
    struct temporal *t = activity->t;
    struct error err = {0};
    if (activity_has_twin(activity)) {
        activity_wait(activity, "the attempt before this one has not ended yet");
        return;
    }
    status st = t->ports.plan(t->ports.context, activity->attempt.tenant_id, &activity->plan_ref,
                              &activity->plan, &err);
    if (st == ST_OK) {
        activity_run(activity);
    } else if (st == ST_RETRY) {
        activity->plan = NULL;
        activity_wait(activity, err.msg[0] ? err.msg : "the plan could not be read in time");
    } else {
        activity->plan = NULL;
        activity_fail(activity, str_c(err.reason ? reason_name(err.reason) : "PLAN_INVALID"),
                      str_c(err.msg), STR_NONE, false);
    }
}

/* Workers of other ledgers may poll the same queue: they have neither the plan nor the secrets. */
static bool activity_is_ours(struct activity *activity) {
    struct provider_found found;
    struct error err;
    enum run_claim claim = provider_runs_claim(&activity->t->runs, activity->attempt.run_id,
                                               STR_NONE, &activity->arena, &found, &err);
    if (claim == CLAIM_UNKNOWN) return false;
    return claim == CLAIM_UNSURE || uuid_eq(found.correlation, (uuid){0}) ||
           uuid_eq(found.correlation, activity->attempt.correlation);
}

static void activity_begin(struct activity *activity) {
    struct temporal *t = activity->t;
    struct error err = {0};
    status st = activity_parse(activity, &err);
    if (st != ST_OK) {
        activity_fail(activity, STR("ATTEMPT_INVALID"), str_c(err.msg), STR_NONE, st == ST_RETRY);
        return;
    }
    if (!activity_is_ours(activity)) {
        activity_fail(activity, STR("WORKER_ELSEWHERE"),
                      STR("the run is not in the ledger of this worker"), STR_NONE, true);
        return;
    }
    if (activity->poll->attempt > 1 && temporal_run_find(t, activity->attempt.run_id))
        t->ports.recovered(t->ports.context, activity->attempt.run_id, activity->step_id,
                           activity->attempt.number, activity->poll->attempt - 1);
    if (temporal_is_closing(t))
        return; /* from inside the port: activities_release() has seen to it */
    activity->waits_until = now_ms(t) + WAIT_MS_MAX;
    activity_try(activity);
}

/* ---- polls ---- */

static void on_polled(void *context, const struct rpc_answer *answer) {
    struct activity *activity = context;
    struct temporal *t = activity->t;
    activity->call = NULL;
    if (answer->code != GRPC_OK) { /* the next tick polls again */
        LOG(LOG_WARN, "temporal: a poll failed", LOG_S("code", str_c(grpc_code_name(answer->code))),
            LOG_S("why", answer->message));
        activity_free(activity);
        return;
    }
    activity->poll = answer->value;
    if (activity->poll->task_token.len == 0) {
        activity_end(activity);
        return;
    }
    activity_move(activity, ACTIVITY_WAITS);
    activity_check(activity);
    activities_poll(t);
    activity_begin(activity);
}

static bool poll_begin(struct temporal *t) {
    struct error err;
    struct activity *activity = mem_alloc(sizeof *activity);
    if (!activity) return false;
    activity->t = t;
    arena_init(&activity->arena, ACTIVITY_ARENA_FIRST, ACTIVITY_ARENA_MAX);
    Tp__PollRequest request = TP__POLL_REQUEST__INIT;
    request.namespace_ = wire_bytes(t->ns);
    request.identity = wire_bytes(t->identity);
    request.task_queue = wire_queue(t->queue_name, &activity->arena);
    if (!request.task_queue || rpc_start(t->rpc, RPC_POLL_ACTIVITY, &request.base, &activity->arena,
                                         on_polled, activity, &activity->call, &err) != ST_OK) {
        arena_release(&activity->arena);
        mem_free(activity);
        return false;
    }
    uv_timer_init(t->loop, &activity->timer);
    activity->timer.data = activity;
    t->handles++;
    t->activity_polls++;
    TAILQ_INSERT_TAIL(&t->activities, activity, link);
    return true;
}

void activities_poll(struct temporal *t) {
    if (t->state != TEMPORAL_READY) return;
    while (t->activity_polls < ACTIVITY_POLLS_MAX &&
           t->activity_polls + t->activity_count < t->slots) {
        if (!poll_begin(t)) return;
    }
}

void activities_release(struct temporal *t) {
    struct activity *next;
    for (struct activity *activity = TAILQ_FIRST(&t->activities); activity; activity = next) {
        next = TAILQ_NEXT(activity, link);
        if (activity->state == ACTIVITY_POLLS)
            activity_free(activity);
        else
            activity_end_soon(activity);
    }
}
