/* adapters/temporal/temporal.c: opening and closing, the queues, and the search for executions that
 * should be closed. */
#include "adapters/temporal/temporal.h"

#include <unistd.h>

#include "adapters/temporal/impl.h"
#include "base/log.h"
#include "base/time.h"

enum {
    TEMPORAL_ARENA_FIRST = 1024,
    TEMPORAL_ARENA_MAX = 64 * 1024,
    NAME_BYTES_MAX = 200, /* of a namespace, a queue, a node */
    TICK_MS = 5000,       /* polls that could not begin are begun */
    PARKED_TICK_MS = 500, /* while tasks are parked */
    BOOT_PAUSE_MS = 500,  /* then x2 */
    BOOT_PAUSE_MS_MAX = 10000,
    SWEEP_PAGE = 100,
    SWEEP_PAGES_MAX = 20,
};
#define RETENTION_MS ((int64_t)30 * 24 * 3600 * 1000) /* of a namespace that we make */

/* ---- queues ---- */

static bool is_needed(const struct temporal *t, const struct task_queue *q) {
    return q == t->own_queue || q->runs > 0 || q->polls > 0;
}

struct task_queue *task_queue_take(struct temporal *t, str name) {
    for (struct task_queue *q = TAILQ_FIRST(&t->queues); q; q = TAILQ_NEXT(q, link)) {
        if (!str_eq(task_queue_str(q), name)) continue;
        q->runs++;
        return q;
    }
    if (t->queue_count >= QUEUES_MAX) {
        LOG(LOG_WARN, "temporal: too many queues of other nodes; one is not polled",
            LOG_S("queue", name));
        return NULL;
    }
    struct task_queue *q = mem_alloc(sizeof *q + name.len + 1);
    if (!q) return NULL;
    memcpy(q->name, name.ptr, name.len);
    q->name_len = name.len;
    q->runs = 1;
    TAILQ_INSERT_TAIL(&t->queues, q, link);
    t->queue_count++;
    tasks_poll(t);
    return q;
}

void task_queue_drop(struct temporal *t, struct task_queue *queue) {
    if (queue) {
        ASSERT(queue->runs > 0);
        queue->runs--;
    }
    struct task_queue *next;
    for (struct task_queue *q = TAILQ_FIRST(&t->queues); q; q = next) {
        next = TAILQ_NEXT(q, link);
        if (is_needed(t, q)) continue;
        TAILQ_REMOVE(&t->queues, q, link);
        t->queue_count--;
        mem_free(q);
    }
}

/* ---- executions that should be closed ---- */

static void close_if_over(struct temporal *t, str run_id) {
    struct arena scratch;
    struct provider_found found = {0};
    struct error err;
    if (execution_find(t, run_id)) return;
    arena_init(&scratch, TEMPORAL_ARENA_FIRST, TASK_ARENA_MAX);
    status st = t->ports.find(t->ports.context, run_id, STR_NONE, &scratch, &found, &err);
    if (st == ST_OK && run_is_final(found.status) && !t->closing) {
        LOG(LOG_INFO, "temporal: an execution of a run that is over is closed",
            LOG_S("run", run_id));
        struct temporal_run *r =
            execution_close(t, run_id, found.status, found.code, found.message);
        if (r) r->correlation = found.correlation;
    }
    arena_release(&scratch);
}

static void sweep_page(struct temporal *t, str token);

static void on_listed(void *context, const struct rpc_answer *answer) {
    struct temporal *t = context;
    t->call = NULL;
    if (answer->code != GRPC_OK) return; /* the next sweep */
    const Tp__ListResponse *page = answer->value;
    for (size_t i = 0; i < page->n_executions && !t->closing; i++) {
        const Tp__Execution *execution = page->executions[i]->execution;
        if (execution) close_if_over(t, wire_str(execution->workflow_id));
    }
    if (!t->closing && page->next_page_token.len > 0 && ++t->sweep_pages < SWEEP_PAGES_MAX)
        sweep_page(t, wire_str(page->next_page_token));
}

/* A node that died may never come back under its name: the others look after its queue. What is
 * young they leave to that node, which, if it lives, may be about to close it. */
static void sweep_page(struct temporal *t, str token) {
    struct error err;
    char query[5 * NAME_BYTES_MAX];
    char before[TIME_TEXT_MAX + 1] = "";
    before[time_format_us(clock_wall_us() - t->sweep_ms * 1000, before)] = '\0';
    int n = snprintf(query, sizeof query,
                     "WorkflowType='plan.run' AND ExecutionStatus='Running' AND (TaskQueue='%.*s' "
                     "OR (TaskQueue STARTS_WITH '%.*s.' AND StartTime < '%s'))",
                     STR_ARG(t->own_queue_name), STR_ARG(t->queue_name), before);
    Tp__ListRequest request = TP__LIST_REQUEST__INIT;
    request.namespace_ = wire_bytes(t->ns);
    request.page_size = SWEEP_PAGE;
    request.next_page_token = wire_bytes(token);
    request.query = wire_bytes(str_n(query, (size_t)n));
    if (rpc_start(t->rpc, RPC_LIST, &request.base, NULL, on_listed, t, &t->call, &err) != ST_OK)
        t->call = NULL;
}

/* ---- the cluster comes up ---- */

static void on_timer(uv_timer_t *timer);

static void tick(struct temporal *t) {
    tasks_poll(t);
    jobs_poll(t);
    if (!t->call && now_ms(t) >= t->sweep_at) {
        t->sweep_at = now_ms(t) + (uint64_t)t->sweep_ms;
        t->sweep_pages = 0;
        sweep_page(t, STR_NONE);
    }
    bool parked = tasks_recheck(t);
    if (t->closing) return; /* from inside a port */
    uint64_t pause = t->sweep_ms < TICK_MS ? (uint64_t)t->sweep_ms : TICK_MS;
    if (parked && pause > PARKED_TICK_MS) pause = PARKED_TICK_MS;
    uv_timer_start(&t->timer, on_timer, pause, 0);
}

void temporal_tick_soon(struct temporal *t) {
    if (t->ready && !t->closing) uv_timer_start(&t->timer, on_timer, PARKED_TICK_MS, 0);
}

static void boot_later(struct temporal *t, int code, str why) {
    if (t->boot_pause_ms == 0) t->boot_pause_ms = BOOT_PAUSE_MS;
    uv_timer_start(&t->timer, on_timer, (uint64_t)t->boot_pause_ms, 0);
    if (t->boot_pause_ms == BOOT_PAUSE_MS && code != GRPC_UNAVAILABLE)
        LOG(LOG_WARN, "temporal: the namespace cannot be used; trying again until it can",
            LOG_S("namespace", t->ns), LOG_S("code", str_c(grpc_code_name(code))),
            LOG_S("why", why));
    t->boot_pause_ms *= 2;
    if (t->boot_pause_ms > BOOT_PAUSE_MS_MAX) t->boot_pause_ms = BOOT_PAUSE_MS_MAX;
}

static void on_registered(void *context, const struct rpc_answer *answer) {
    struct temporal *t = context;
    t->call = NULL;
    if (answer->code == GRPC_OK)
        LOG(LOG_INFO, "temporal: the namespace was not there; it was registered",
            LOG_S("namespace", t->ns));
    boot_later(t, answer->code == GRPC_OK ? GRPC_UNAVAILABLE : answer->code, answer->message);
}

static void boot_register(struct temporal *t) {
    struct error err = {0};
    struct arena scratch;
    arena_init(&scratch, TEMPORAL_ARENA_FIRST, TEMPORAL_ARENA_MAX);
    Tp__RegisterNamespaceRequest request = TP__REGISTER_NAMESPACE_REQUEST__INIT;
    request.namespace_ = wire_bytes(t->ns);
    request.description = wire_bytes(STR("runs of Cairn"));
    request.retention = wire_ms(RETENTION_MS, &scratch);
    if (rpc_start(t->rpc, RPC_REGISTER_NAMESPACE, &request.base, NULL, on_registered, t, &t->call,
                  &err) != ST_OK)
        boot_later(t, GRPC_UNAVAILABLE, str_c(err.msg));
    arena_release(&scratch);
}

static void on_namespace(void *context, const struct rpc_answer *answer) {
    struct temporal *t = context;
    t->call = NULL;
    if (answer->code == GRPC_NOT_FOUND) {
        boot_register(t);
        return;
    }
    if (answer->code != GRPC_OK) {
        boot_later(t, answer->code, answer->message);
        return;
    }
    t->ready = true;
    t->boot_pause_ms = 0;
    runs_kick(t);
    tick(t);
}

static void on_system(void *context, const struct rpc_answer *answer) {
    struct temporal *t = context;
    struct error err = {0};
    t->call = NULL;
    if (answer->code != GRPC_OK) {
        boot_later(t, answer->code, answer->message);
        return;
    }
    const Tp__SystemInfo *info = answer->value;
    LOG(LOG_INFO, "temporal: connected", LOG_S("server", wire_str(info->server_version)),
        LOG_S("namespace", t->ns), LOG_S("queue", t->own_queue_name));
    Tp__DescribeNamespaceRequest request = TP__DESCRIBE_NAMESPACE_REQUEST__INIT;
    request.namespace_ = wire_bytes(t->ns);
    if (rpc_start(t->rpc, RPC_DESCRIBE_NAMESPACE, &request.base, NULL, on_namespace, t, &t->call,
                  &err) != ST_OK)
        boot_later(t, GRPC_UNAVAILABLE, str_c(err.msg));
}

static void boot(struct temporal *t) {
    struct error err = {0};
    Tp__Empty request = TP__EMPTY__INIT;
    if (t->call) return;
    if (rpc_start(t->rpc, RPC_SYSTEM_INFO, &request.base, NULL, on_system, t, &t->call, &err) !=
        ST_OK)
        boot_later(t, GRPC_UNAVAILABLE, str_c(err.msg));
}

/* ---- the end ---- */

static void free_if_over(struct temporal *t) {
    if (!t->ending || t->rpc || t->handles > 0) return;
    task_queue_drop(t, NULL);
    map_release(&t->run_by_id);
    if (t->own_queue) mem_free(t->own_queue);
    arena_release(&t->arena);
    mem_free(t);
}

static void on_timer_closed(uv_handle_t *handle) {
    struct temporal *t = handle->data;
    t->handles--;
    free_if_over(t);
}

static void on_rpc_closed(void *context) {
    struct temporal *t = context;
    t->rpc = NULL;
    free_if_over(t);
}

/* Not from inside an answer of the cluster: from the timer. */
static void end(struct temporal *t) {
    if (t->ending || !TAILQ_EMPTY(&t->jobs) || !TAILQ_EMPTY(&t->tasks) || !TAILQ_EMPTY(&t->runs))
        return;
    t->ending = true;
    uv_close((uv_handle_t *)&t->timer, on_timer_closed);
    rpc_close(t->rpc, on_rpc_closed, t);
}

void temporal_check_end(struct temporal *t) {
    if (!t->closing) return;
    if (t->ending)
        free_if_over(t);
    else
        uv_timer_start(&t->timer, on_timer, 0, 0);
}

static void on_timer(uv_timer_t *timer) {
    struct temporal *t = timer->data;
    if (t->closing)
        end(t);
    else if (t->ready)
        tick(t);
    else
        boot(t);
}

static void temporal_close(struct provider *provider) {
    struct temporal *t = (struct temporal *)provider;
    if (t->closing) return;
    t->closing = true;
    if (t->call) rpc_cancel(t->call);
    t->call = NULL;
    tasks_release(t);
    runs_release(t);
    jobs_release(t);
    temporal_check_end(t);
}

/* ---- opening ---- */

static const struct provider_ops ops = {
    .open_run = runs_open,
    .start = runs_start,
    .stop = runs_stop,
    .leave = runs_leave,
    .note = runs_note,
    .rested = runs_rested,
    .idle = runs_idle,
    .close = temporal_close,
};

/* A name that stands in a query of ours, and in the cluster's lists. */
static status check_name(const char *what, str name, struct error *err) {
    bool good = name.len > 0 && name.len <= NAME_BYTES_MAX;
    for (size_t i = 0; good && i < name.len; i++) {
        unsigned char c = (unsigned char)name.ptr[i];
        good = c > 0x20 && c < 0x7f && c != '\'' && c != '"' && c != '\\' && c != '|';
    }
    if (good) return ST_OK;
    return error_at(err, ST_INVALID, "TEMPORAL_OPTION_INVALID", what,
                    "temporal: %s is no name of 1 to %d letters, digits and signs", what,
                    NAME_BYTES_MAX);
}

static str or_else(str value, str otherwise) { return value.len > 0 ? value : otherwise; }
static int64_t or_ms(int64_t value, int64_t otherwise) { return value > 0 ? value : otherwise; }

static status options_take(struct temporal *t, const struct temporal_options *o,
                           struct error *err) {
    str ns = or_else(o->ns, STR("default"));
    str queue = or_else(o->queue, STR("cairn"));
    str node = or_else(o->node, STR("node"));
    status st = check_name("namespace", ns, err);
    if (st == ST_OK) st = check_name("queue", queue, err);
    if (st == ST_OK) st = check_name("node", node, err);
    if (st != ST_OK) return st;
    if (o->slots > TEMPORAL_SLOTS_MAX || o->pollers > TEMPORAL_POLLERS_MAX || o->pollers < 0)
        return error_at(err, ST_INVALID, "TEMPORAL_OPTION_INVALID", "slots",
                        "temporal: at most %d slots and %d pollers", TEMPORAL_SLOTS_MAX,
                        TEMPORAL_POLLERS_MAX);
    t->slots = o->slots == 0 ? TEMPORAL_SLOTS : o->slots > 0 ? o->slots : 0;
    t->pollers = o->pollers == 0 ? TEMPORAL_POLLERS : o->pollers;
    t->look_ms = or_ms(o->look_ms, LOOK_MS);
    t->sweep_ms = or_ms(o->sweep_ms, SWEEP_MS);
    t->heartbeat_ms = or_ms(o->heartbeat_ms, HEARTBEAT_MS);
    t->hold_ms = or_ms(o->hold_ms, HOLD_MS);
    t->idle_ms = or_ms(o->idle_ms, IDLE_MS);
    char host[256] = "";
    char text[2 * NAME_BYTES_MAX + 2];
    (void)gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "%.*s.%.*s", STR_ARG(queue), STR_ARG(node));
    if (!arena_try_str(&t->arena, str_n(text, (size_t)n), &t->own_queue_name))
        return error_set(err, ST_RETRY, "out of memory");
    n = snprintf(text, sizeof text, "%ld@%s@cairn", (long)getpid(), host);
    if (!arena_try_str(&t->arena, str_n(text, (size_t)n), &t->identity) ||
        !arena_try_str(&t->arena, ns, &t->ns) || !arena_try_str(&t->arena, queue, &t->queue_name))
        return error_set(err, ST_RETRY, "out of memory");
    return ST_OK;
}

static status channel_open(struct temporal *t, const struct temporal_options *o,
                           struct error *err) {
    char bearer[4096] = "";
    struct grpc_header headers[] = {{STR("temporal-namespace"), t->ns},
                                    {STR("client-name"), STR("cairn")},
                                    {STR("client-version"), STR("1.0.0")}};
    struct grpc_options options = {.target = o->target,
                                   .tls = o->tls,
                                   .ca_file = o->ca_file,
                                   .cert_file = o->cert_file,
                                   .key_file = o->key_file,
                                   .server_name = o->server_name,
                                   .user_agent = STR("cairn/1.0.0"),
                                   .headers = headers,
                                   .header_count = COUNT_OF(headers)};
    if (o->api_key.len > 0) {
        int n = snprintf(bearer, sizeof bearer, "Bearer %.*s", STR_ARG(o->api_key));
        if (n >= (int)sizeof bearer)
            return error_at(err, ST_INVALID, "TEMPORAL_OPTION_INVALID", "apiKey",
                            "temporal: the API key is too long");
        options.authorization = str_n(bearer, (size_t)n);
    }
    status st = rpc_open(t->loop, &options, &t->rpc, err);
    explicit_bzero(bearer, sizeof bearer);
    return st;
}

status temporal_open(uv_loop_t *loop, const struct temporal_options *options,
                     const struct provider_ports *ports, struct provider **out, struct error *err) {
    struct temporal *t = mem_alloc(sizeof *t);
    if (!t) return error_set(err, ST_RETRY, "out of memory");
    t->provider.ops = &ops;
    t->loop = loop;
    t->ports = *ports;
    arena_init(&t->arena, TEMPORAL_ARENA_FIRST, TEMPORAL_ARENA_MAX);
    map_init(&t->run_by_id);
    TAILQ_INIT(&t->runs);
    TAILQ_INIT(&t->queues);
    TAILQ_INIT(&t->polls);
    TAILQ_INIT(&t->tasks);
    TAILQ_INIT(&t->jobs);
    status st = options_take(t, options, err);
    if (st == ST_OK) {
        t->own_queue = task_queue_take(t, t->own_queue_name);
        if (!t->own_queue) st = error_set(err, ST_RETRY, "out of memory");
    }
    if (st == ST_OK) st = channel_open(t, options, err);
    if (st != ST_OK) {
        mem_free(t->own_queue);
        arena_release(&t->arena);
        mem_free(t);
        return st;
    }
    uv_timer_init(loop, &t->timer);
    t->timer.data = t;
    t->handles++;
    uv_timer_start(&t->timer, on_timer, 0, 0);
    *out = &t->provider;
    return ST_OK;
}
