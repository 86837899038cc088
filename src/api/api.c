/* api/api.c: opening and closing the API, and the life of a call: made when a request comes, kept
 * for the next one when it is answered. */
#include "api/api.h"

#include "api/impl.h"
#include "base/log.h"
#include "base/time.h"

enum { CALLS_KEPT = 256, SWEEP_MS = 60000, SWEEP_LIMIT = 1000 };
enum { REFUSALS_A_MINUTE = 10 }; /* of one caller, in the audit trail: nobody fills the disk */

/* ---- receipts that are too old ---- */

static void sweep(struct api *api);

/* One sweep is short, for others wait for the ledger thread. While there is more, the next begins
 * when one has ended, behind what is queued: they go as fast as receipts come. */
static void sweep_done(struct bridge_call *call) {
    struct api *api = call->context;
    api->sweeping = false;
    if (call->write.code != ST_OK)
        LOG(LOG_WARN, "could not forget old receipts", LOG_S("error", str_c(call->write.err.msg)));
    else if (api->sweep_more)
        sweep(api);
}

static status do_sweep(struct ledger *ledger, void *context, struct error *err) {
    struct api *api = context;
    return receipt_sweep(ledger, SWEEP_LIMIT, &api->sweep_more, err);
}

static void sweep(struct api *api) {
    if (api->draining || api->sweeping) return;
    api->sweep_call = (struct bridge_call){
        .write.member = {.body = do_sweep, .context = api}, .done = sweep_done, .context = api};
    api->sweeping = true;
    bridge_submit(api->bridge, &api->sweep_call);
}

static void on_sweep(uv_timer_t *timer) { sweep(timer->data); }

/* ---- opening ---- */

static void register_metrics(struct api *api) {
    static const double bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                    0.1,    0.25,  0.5,    1,     2.5,  5,     10};
    struct metrics *m = api->options.metrics;
    if (!m) return;
    api->m_seconds =
        metrics_histogram(m, "cairn_http_request_seconds",
                          "Time from a whole request to its answer.", bounds, COUNT_OF(bounds));
    api->m_under_way =
        metrics_gauge(m, "cairn_http_requests_under_way", "Requests not answered yet.", "");
    api->m_left_out =
        metrics_counter(m, "cairn_audit_left_out_total",
                        "Refusals that were not audited: their callers had too many.", "");
}

static void start_handles(struct api *api) {
    uv_loop_t *loop = api->options.loop;
    uv_timer_init(loop, &api->sweep);
    uv_timer_init(loop, &api->waits.timer);
    api->sweep.data = api->waits.timer.data = api;
    api->open_handles = 2;
    uv_timer_start(&api->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    uv_unref((uv_handle_t *)&api->sweep);
}

static bool signs(void *auth, int64_t mark) { return auth_signs(auth, mark); }

static status open_parts(struct api *api, struct error *err) {
    const struct api_options *o = &api->options;
    status st = hub_open(o->loop, api->readers, o->other_writers, o->metrics, &api->hub, err);
    if (st == ST_OK && o->rate > 0)
        st = limiter_open((double)o->rate, (double)o->rate, &api->limiter, err);
    if (st == ST_OK)
        st = limiter_open(REFUSALS_A_MINUTE / 60.0, REFUSALS_A_MINUTE, &api->refusals, err);
    if (st == ST_OK) {
        struct auth_options auth = {.open = o->open,
                                    .readers = api->readers,
                                    .bridge = api->bridge,
                                    .loop = o->loop,
                                    .jwks = o->jwks,
                                    .policy = o->policy,
                                    .metrics = o->metrics};
        st = auth_open(&auth, &api->auth, err);
        if (st == ST_OK) hub_ask_of_tokens(api->hub, signs, api->auth);
        return st;
    }
    jwks_close(o->jwks);
    return st;
}

/* Wakes streams and whoever waits for a run's end. */
static void observe(void *context, const struct engine_note *note) {
    struct api *api = context;
    hub_committed(api->hub, note->tenant_id, note->run_id);
    waits_observe(api, note);
}

status api_open(const struct api_options *options, struct api **out, struct error *err) {
    struct api *api = mem_alloc(sizeof(*api));
    if (!api) return error_set(err, ST_RETRY, "api: out of memory");
    api->options = *options;
    api->engine = host_engine(options->host);
    api->bridge = host_bridge(options->host);
    api->readers = host_readers(options->host);
    snprintf(api->node, sizeof(api->node), "%.*s", STR_ARG(options->node));
    snprintf(api->version, sizeof(api->version), "%.*s", STR_ARG(options->version));
    api->options.node = str_c(api->node);
    api->options.version = str_c(api->version);
    map_init(&api->in_flight);
    map_init(&api->waits.by_run);
    shares_init(&api->shares);
    start_handles(api);
    register_metrics(api);
    api->m_requests = mem_alloc(route_count() * STATUS_CLASSES * sizeof(struct metric *));
    status st =
        api->m_requests ? open_parts(api, err) : error_set(err, ST_RETRY, "api: out of memory");
    if (st != ST_OK) {
        api_close(api);
        return st;
    }
    host_watch(options->host, observe, api);
    *out = api;
    return ST_OK;
}

void api_http_server(struct api *api, struct http_server *server) { api->server = server; }

void api_set_jwks(struct api *api, struct jwks *jwks) {
    auth_set_jwks(api->auth, jwks);
    hub_tokens_changed(api->hub);
}

/* ---- requests ---- */

static struct call *call_new(struct api *api) {
    struct call *c = api->unused;
    if (c) {
        api->unused = c->next;
        api->unused_count--;
        return c;
    }
    c = mem_alloc(sizeof(*c));
    if (!c) return NULL;
    arena_init(&c->arena, (size_t)4 * 1024, (size_t)256 * 1024 * 1024);
    buf_init(&c->out, (size_t)64 * 1024 * 1024);
    return c;
}

/* Everything but the memory that is used again. */
static void call_reset(struct call *c, struct api *api) {
    struct arena arena = c->arena;
    struct buf out = c->out;
    *c = (struct call){.api = api};
    arena_reset(&arena);
    c->arena = arena;
    c->out = out;
    buf_clear(&c->out);
}

static void enter(struct api *api, struct http_exchange *exchange,
                  const struct http_request *request, bool trusted) {
    struct call *c = call_new(api);
    if (!c) {
        http_respond(exchange, 503, NULL, 0, STR_NONE);
        return;
    }
    call_reset(c, api);
    c->exchange = exchange;
    c->request = request;
    c->trusted = trusted;
    c->begun_ns = clock_mono_ns();
    c->next = api->calls;
    c->link = &api->calls;
    if (api->calls) api->calls->link = &c->next;
    api->calls = c;
    api->call_count++;
    metric_add(api->m_under_way, 1);
    door_enter(c);
}

void api_handle(void *context, struct http_exchange *exchange, const struct http_request *request) {
    enter(context, exchange, request, false);
}

void api_handle_trusted(void *context, struct http_exchange *exchange,
                        const struct http_request *request) {
    enter(context, exchange, request, true);
}

void call_give_back(struct call *c) {
    if (c->ended) c->ended(c);
    c->ended = NULL;
    door_leave(c);
}

void call_end(struct call *c) {
    struct api *api = c->api;
    call_give_back(c);
    metric_observe(api->m_seconds, (double)(clock_mono_ns() - c->begun_ns) / 1e9);
    metric_add(api->m_under_way, -1);
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    api->call_count--;
    bool large = arena_footprint(&c->arena) > (size_t)64 * 1024 || c->out.cap > (size_t)64 * 1024;
    if (api->unused_count < CALLS_KEPT && !large) {
        c->next = api->unused;
        api->unused = c;
        api->unused_count++;
        return;
    }
    arena_release(&c->arena);
    buf_release(&c->out);
    mem_free(c);
}

/* ---- the end ---- */

void api_drain(struct api *api) {
    api->draining = true;
    atomic_store(&api->stopping, true);
    /* Answering one changes the list: each round begins anew, and each cuts one more. */
    for (struct call *c = api->calls; c;) {
        struct call *next = c->next;
        if (c->cut) {
            void (*cut)(struct call *) = c->cut;
            c->cut = NULL;
            cut(c);
            next = api->calls;
        }
        c = next;
    }
    hub_drain(api->hub);
    auth_flush(api->auth);
}

void api_halt(struct api *api) { api->closing = true; }

static void on_closed(uv_handle_t *handle) {
    struct api *api = handle->data;
    if (--api->open_handles > 0) return;
    while (api->unused) {
        struct call *c = api->unused;
        api->unused = c->next;
        arena_release(&c->arena);
        buf_release(&c->out);
        mem_free(c);
    }
    map_release(&api->in_flight);
    map_release(&api->waits.by_run);
    shares_release(&api->shares);
    mem_free(api->m_requests);
    mem_free(api);
}

void api_close(struct api *api) {
    if (!api) return;
    api->draining = api->closing = true;
    atomic_store(&api->stopping, true);
    if (api->call_count > 0)
        LOG(LOG_ERROR, "requests are left without an answer",
            LOG_N("requests", (int64_t)api->call_count));
    hub_close(api->hub);
    auth_close(api->auth);
    limiter_close(api->limiter);
    limiter_close(api->refusals);
    uv_close((uv_handle_t *)&api->sweep, on_closed);
    uv_close((uv_handle_t *)&api->waits.timer, on_closed);
}
