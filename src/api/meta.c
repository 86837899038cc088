/* api/meta.c: what the server says about itself. */
#include "api/impl.h"
#include "api/openapi.h"
#include "base/time.h"

enum { READY_NS = 1000000000 };

static bool is_plain(struct call *c) { /* these take no parameters */
    struct error err = {0};
    if (query_none(c, &err) == ST_OK) return true;
    call_fail(c, &err);
    return false;
}

static void get_livez(struct call *c) {
    if (!is_plain(c)) return;
    buf_put_c(&c->out, "{\"status\":\"ok\"}");
    call_answer(c, 200);
}

/* Ready means that a query can be answered, not only that we listen. */
static status try_reader(struct call *c, struct ledger *reader, struct error *err) {
    struct api_key *keys = NULL;
    size_t count = 0;
    status st = api_key_list(reader, STR_NONE, STR_NONE, 1, &c->arena, &keys, &count, err);
    if (st != ST_OK) {
        err->code = ST_RETRY;
        err->reason = REASON_NOT_READY;
        return ST_RETRY;
    }
    buf_put_c(&c->out, "{\"status\":\"ready\"}");
    return ST_OK;
}

static void found_ready(struct call *c) {
    c->api->ready_until_ns = clock_mono_ns() + READY_NS;
    call_answer(c, 200);
}

static void get_readyz(struct call *c) {
    if (!is_plain(c)) return;
    if (c->api->draining) {
        call_refuse(c, REASON_NOT_READY, "", "the server is ending");
        return;
    }
    if (c->begun_ns < c->api->ready_until_ns) { /* anybody may ask, as often as they like */
        buf_put_c(&c->out, "{\"status\":\"ready\"}");
        call_answer(c, 200);
        return;
    }
    call_read(c, try_reader, found_ready);
}

static void get_openapi(struct call *c) {
    if (!is_plain(c)) return;
    buf_put(&c->out, str_n(openapi_json, openapi_json_len()));
    call_header(c, "Cache-Control", STR("max-age=60"));
    call_answer(c, 200);
}

static void put_http(struct metrics *m, const struct http_server *server) {
    struct http_stats s;
    if (!server) return;
    http_server_stats(server, &s);
    metric_set(metrics_gauge(m, "cairn_http_connections", "Connections open now.", ""),
               (int64_t)s.connections);
    struct metric *total =
        metrics_counter(m, "cairn_http_connections_total", "Connections taken.", "");
    metric_add(total, (int64_t)s.connections_total - metric_value(total));
    struct metric *slow = metrics_counter(m, "cairn_http_slow_readers_total",
                                          "Streams ended because their reader was too slow.", "");
    metric_add(slow, (int64_t)(s.slow_readers_total + s.stalled_total) - metric_value(slow));
    uint64_t refused = 0;
    for (int i = 0; i < HTTP_REFUSAL_COUNT; i++)
        refused += s.refused[i];
    struct metric *bad = metrics_counter(m, "cairn_http_refused_total",
                                         "Requests and connections refused by the server.", "");
    metric_add(bad, (int64_t)refused - metric_value(bad));
}

static void get_metrics(struct call *c) {
    struct metrics *m = c->api->options.metrics;
    struct engine_stats stats;
    if (!is_plain(c)) return;
    if (!m) {
        call_refuse(c, REASON_ROUTE_NOT_FOUND, "", "this server keeps no metrics");
        return;
    }
    put_http(m, c->api->server);
    if (c->api->engine) {
        engine_stats(c->api->engine, &stats);
        metric_set(metrics_gauge(m, "cairn_runs_resident", "Runs in memory.", ""),
                   (int64_t)stats.resident);
        metric_set(metrics_gauge(m, "cairn_attempts_under_way", "Attempts being executed.", ""),
                   (int64_t)stats.attempts);
        metric_set(metrics_gauge(m, "cairn_tasks_waiting", "Tasks that no worker has taken.", ""),
                   (int64_t)stats.tasks);
        metric_set(metrics_gauge(m, "cairn_task_polls_waiting", "Workers waiting for a task.", ""),
                   (int64_t)stats.polls);
    }
    metrics_write(m, &c->out);
    call_answer_as(c, 200, "text/plain; version=0.0.4; charset=utf-8");
}

static void get_me(struct call *c) {
    if (!is_plain(c)) return;
    json_object_begin(&c->out);
    json_put_text(&c->out, "name", str_c(c->who->name));
    json_put_text(&c->out, "tenantId", str_c(c->who->tenant));
    json_name(&c->out, "roles");
    roles_json(c->who->roles, &c->out);
    if (c->who->expires_us) json_put_time(&c->out, "expiresAt", c->who->expires_us);
    json_object_end(&c->out);
    call_answer(c, 200);
}

static const struct route routes[] = {
    {"GET", "/livez", "livez", 0, ROUTE_OPEN, get_livez},
    {"GET", "/readyz", "readyz", 0, ROUTE_OPEN, get_readyz},
    {"GET", "/openapi.json", "openapi", 0, ROUTE_OPEN, get_openapi},
    {"GET", "/metrics", "metrics", ROLE_VIEWER, ROUTE_PLATFORM, get_metrics},
    {"GET", "/v1/me", "me", ROLE_ALL, 0, get_me},
};
const struct route_table meta_routes = {routes, COUNT_OF(routes)};
