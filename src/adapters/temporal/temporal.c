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

static void temporal_move(struct temporal *t, enum temporal_state state) {
    static const uint8_t allowed[] = {
        [TEMPORAL_BOOTS] = 1 << TEMPORAL_READY | 1 << TEMPORAL_CLOSING,
        [TEMPORAL_READY] = 1 << TEMPORAL_CLOSING,
        [TEMPORAL_CLOSING] = 1 << TEMPORAL_ENDING,
        [TEMPORAL_ENDING] = 0,
    };
    ASSERT(allowed[t->state] & 1 << state);
    t->state = state;
}

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
    workflow_tasks_poll(t);
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
    struct provider_found found;
    arena_init(&scratch, TEMPORAL_ARENA_FIRST, TASK_ARENA_MAX);
    if (provider_runs_left_over(&t->runs, run_id, &scratch, &found) && !temporal_is_closing(t)) {
        LOG(LOG_INFO, "temporal: an execution of a run that is over is closed",
            LOG_S("run", run_id));
        struct temporal_run *r =
            temporal_run_close(t, run_id, found.status, found.code, found.message);
        if (r) r->correlation = found.correlation;
    }
    arena_release(&scratch);
}

static void sweep_ask(struct temporal *t, str token);

static void on_listed(void *context, const struct rpc_answer *answer) {
    struct temporal *t = context;
    const Tp__ListResponse *page = answer->code == GRPC_OK ? answer->value : NULL;
    t->call = NULL;
    for (size_t i = 0; page && i < page->n_executions && !temporal_is_closing(t); i++) {
        const Tp__Execution *execution = page->executions[i]->execution;
        if (execution) close_if_over(t, wire_str(execution->workflow_id));
    }
    if (temporal_is_closing(t)) return;
    bool more = sweep_next_page(&t->sweep, page, page && page->next_page_token.len > 0, now_ms(t));
    if (page && more) sweep_ask(t, wire_str(page->next_page_token));
}

/* A node that died may never come back under its name: the others look after its queue. What is
 * young they leave to that node, which, if it lives, may be about to close it. */
static void sweep_ask(struct temporal *t, str token) {
    struct error err;
    char query[5 * NAME_BYTES_MAX];
    char before[TIME_TEXT_MAX + 1] = "";
    before[time_format_us(clock_wall_us() - t->sweep.every_ms * 1000, before)] = '\0';
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
        (void)sweep_next_page(&t->sweep, false, false, now_ms(t));
}

/* ---- the cluster comes up ---- */

static void on_timer(uv_timer_t *timer);

static void tick(struct temporal *t) {
    workflow_tasks_poll(t);
    activities_poll(t);
    if (!t->call && sweep_is_due(&t->sweep, now_ms(t))) sweep_ask(t, STR_NONE);
    bool parked = workflow_tasks_recheck(t);
    if (temporal_is_closing(t)) return; /* from inside a port */
    uint64_t pause = t->sweep.every_ms < TICK_MS ? (uint64_t)t->sweep.every_ms : TICK_MS;
    if (parked && pause > PARKED_TICK_MS) pause = PARKED_TICK_MS;
    uv_timer_start(&t->timer, on_timer, pause, 0);
}

void temporal_tick_soon(struct temporal *t) {
    if (t->state == TEMPORAL_READY) uv_timer_start(&t->timer, on_timer, PARKED_TICK_MS, 0);
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
    temporal_move(t, TEMPORAL_READY);
    t->boot_pause_ms = 0;
    provider_runs_all_soon(&t->runs);
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
    if (t->state != TEMPORAL_ENDING || t->rpc || t->handles > 0 || t->runs.handles > 0) return;
    task_queue_drop(t, NULL);
    provider_runs_release(&t->runs);
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
    if (t->state != TEMPORAL_CLOSING || !TAILQ_EMPTY(&t->activities) || !TAILQ_EMPTY(&t->tasks) ||
        !TAILQ_EMPTY(&t->runs.all))
        return;
    temporal_move(t, TEMPORAL_ENDING);
    uv_close((uv_handle_t *)&t->timer, on_timer_closed);
    rpc_close(t->rpc, on_rpc_closed, t);
}

void temporal_check_end(struct temporal *t) {
    if (t->state == TEMPORAL_CLOSING)
        uv_timer_start(&t->timer, on_timer, 0, 0);
    else if (t->state == TEMPORAL_ENDING)
        free_if_over(t);
}

static void on_timer(uv_timer_t *timer) {
    struct temporal *t = timer->data;
    switch (t->state) {
    case TEMPORAL_BOOTS:
        boot(t);
        break;
    case TEMPORAL_READY:
        tick(t);
        break;
    case TEMPORAL_CLOSING:
        end(t);
        break;
    case TEMPORAL_ENDING:
        break;
    }
}

static void temporal_close(struct provider *provider) {
    struct temporal *t = (struct temporal *)provider;
    if (temporal_is_closing(t)) return;
    temporal_move(t, TEMPORAL_CLOSING);
    if (t->call) rpc_cancel(t->call);
    t->call = NULL;
    workflow_tasks_release(t);
    provider_runs_close(&t->runs);
    activities_release(t);
    temporal_check_end(t);
}

/* ---- opening ---- */

static const struct provider_ops ops = {
    .open_run = temporal_open_run,
    .start = temporal_start,
    .stop = temporal_stop,
    .leave = temporal_leave,
    .note = temporal_note,
    .rested = temporal_rested,
    .idle = temporal_idle,
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
    return error_at(err, REASON_TEMPORAL_OPTION_INVALID, what,
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
        return error_at(err, REASON_TEMPORAL_OPTION_INVALID, "slots",
                        "temporal: at most %d slots and %d pollers", TEMPORAL_SLOTS_MAX,
                        TEMPORAL_POLLERS_MAX);
    t->slots = o->slots == 0 ? TEMPORAL_SLOTS : o->slots > 0 ? o->slots : 0;
    t->pollers = o->pollers == 0 ? TEMPORAL_POLLERS : o->pollers;
    t->look_ms = or_ms(o->look_ms, LOOK_MS);
    t->sweep.every_ms = or_ms(o->sweep_ms, SWEEP_MS);
    t->sweep.pages_max = SWEEP_PAGES_MAX;
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
            return error_at(err, REASON_TEMPORAL_OPTION_INVALID, "apiKey",
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
    t->runs.loop = loop;
    t->runs.ops = &temporal_runs_ops;
    t->runs.ports = &t->ports;
    t->runs.runs_max = RUNS_MAX;
    t->runs.retry_ms_first = RETRY_MS;
    t->runs.retry_ms_max = RETRY_MS_MAX;
    provider_runs_open(&t->runs);
    TAILQ_INIT(&t->queues);
    TAILQ_INIT(&t->polls);
    TAILQ_INIT(&t->tasks);
    TAILQ_INIT(&t->activities);
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
