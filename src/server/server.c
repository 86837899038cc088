/* server/server.c: settings become a guard, endpoints and host options; then the host and its front
 * are opened, and closed in the order that lets everybody who was promised an answer get one. */
#include "server/server.h"

#include <limits.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/metrics.h"
#include "base/os.h"
#include "server/keep.h"
#include "server/outbox_env.h"
#include "server/provider_env.h"

struct server {
    struct server_options options;
    struct arena arena; /* lives as long as the server */
    struct guard guard;
    struct plan_endpoint *endpoints;
    size_t endpoint_count;
    int64_t keep_us; /* workspaces */
    int64_t delivery_ms;
    struct metrics *metrics;
    struct host *host;
    struct front *front;
    int socket_lock; /* on PostgreSQL: who has the socket of the folder; or -1 */
};

/* ---- settings ---- */

static status read_rules(struct server *s, struct error *err) {
    const struct setting_list *allow = &s->options.settings->allow;
    struct guard_rule *rules = ARENA_ARRAY(&s->arena, struct guard_rule, allow->count);
    for (size_t i = 0; i < allow->count; i++) {
        status st = guard_rule_parse(allow->items[i], &s->arena, &rules[i], err);
        if (st != ST_OK) return error_wrap(err, "--allow");
    }
    /* Who names a host by its address means it, also when it is inside. */
    s->guard = (struct guard){.rules = rules, .rule_count = allow->count, .allow_private = true};
    return ST_OK;
}

/* "s3=https://{bucket}.s3.example/{key}" */
static status read_endpoints(struct server *s, struct error *err) {
    static const str schemes[] = {STR_LIT("s3"), STR_LIT("gs"), STR_LIT("azure")};
    const struct setting_list *list = &s->options.settings->endpoints;
    s->endpoints = ARENA_ARRAY(&s->arena, struct plan_endpoint, list->count);
    for (size_t i = 0; i < list->count; i++) {
        struct plan_endpoint *e = &s->endpoints[s->endpoint_count++];
        bool known = false;
        bool split = str_split(list->items[i], '=', &e->scheme, &e->base_url);
        for (size_t k = 0; k < COUNT_OF(schemes); k++)
            known = known || str_eq(e->scheme, schemes[k]);
        if (!split || !known || !str_starts(e->base_url, STR("http")))
            return error_at(err, REASON_USAGE, "",
                            "--endpoint must be s3, gs or azure, '=' and an http or https URL");
    }
    return ST_OK;
}

static status read_settings(struct server *s, struct error *err) {
    str secrets = s->options.settings->secrets_dir;
    const char *keep = getenv("CAIRN_KEEP_WORKSPACES");
    status st = read_rules(s, err);
    if (st == ST_OK) st = read_endpoints(s, err);
    if (st == ST_OK) st = keep_parse(keep && keep[0] ? str_c(keep) : STR_NONE, &s->keep_us, err);
    if (st == ST_OK && secrets.ptr && !path_exists(secrets))
        st = error_at(err, REASON_SECRETS_NOT_FOUND, "",
                      "there is no folder \"%.*s\" to read secrets from", STR_ARG(secrets));
    return st;
}

/* ---- opening ---- */

static status open_host(struct server *s, struct error *err) {
    const struct server_options *o = &s->options;
    struct host_options options = {.url = o->url,
                                   .data_dir = o->folder,
                                   .node = o->node,
                                   .secrets_dir = o->settings->secrets_dir,
                                   .guard = &s->guard,
                                   .endpoints = s->endpoints,
                                   .endpoint_count = s->endpoint_count,
                                   .tenant_active_max = o->settings->tenant_active_max,
                                   .plan_active_max = o->settings->plan_active_max,
                                   .keep_us = s->keep_us,
                                   .only_asked = !o->all,
                                   .passive = o->passive,
                                   .metrics = s->metrics,
                                   .observe = o->observe,
                                   .trouble = o->trouble,
                                   .lost = o->lost,
                                   .context = o->context};
    status st = outbox_env(&options, &s->arena, err);
    if (st == ST_OK) st = provider_env(&options, &s->arena, err);
    s->delivery_ms = options.deliver.timeout_ms ? options.deliver.timeout_ms : DELIVERY_TIMEOUT_MS;
    if (st == ST_OK) st = host_open(o->loop, &options, &s->host, err);
    if (st != ST_OK) s->host = NULL;
    return st;
}

/* On PostgreSQL nothing locks the folder: the first server to come has the socket. */
static bool has_socket(struct server *s) {
    struct error taken;
    if (!host_is_postgres(s->host)) return true;
    struct buf path;
    buf_init(&path, PATH_MAX);
    buf_printf(&path, "%.*s/control.lock", STR_ARG(s->options.folder));
    status st = lock_take(buf_str(&path), 0, &s->socket_lock, &taken);
    buf_release(&path);
    if (st == ST_OK) return true;
    s->socket_lock = -1;
    return false;
}

/* Others reach this process through it: to start runs here, to signal, to follow. A process that
 * only sends a signal opens none, for it ends at once; on PostgreSQL others ask the ledger. */
static status open_front(struct server *s, struct error *err) {
    const struct server_options *o = &s->options;
    bool postgres = host_is_postgres(s->host);
    if (o->passive || (postgres && !o->serve)) return ST_OK;
    struct front_options options = {.loop = o->loop,
                                    .settings = o->settings,
                                    .host = s->host,
                                    .url = o->url,
                                    .folder = o->folder,
                                    .node = server_node(s),
                                    .postgres = postgres,
                                    .local = has_socket(s),
                                    .world = o->serve,
                                    .metrics = s->metrics};
    return front_open(&options, &s->front, err);
}

status server_open(const struct server_options *options, struct server **out, struct error *err) {
    struct server *s = mem_alloc(sizeof(*s));
    if (!s) return error_set(err, ST_RETRY, "server: out of memory");
    s->options = *options;
    s->socket_lock = -1;
    arena_init(&s->arena, 4096, (size_t)1024 * 1024);
    *out = s;
    status st = read_settings(s, err);
    if (st == ST_OK) st = dir_make(options->folder, err);
    if (st == ST_OK && options->serve) st = metrics_open(&s->metrics, err);
    if (st == ST_OK) st = open_host(s, err);
    return st == ST_OK ? open_front(s, err) : st;
}

struct host *server_host(struct server *s) {
    return s->host;
}
str server_node(const struct server *s) { return host_node(s->host); }
str server_addresses(const struct server *s) {
    return s->front ? front_addresses(s->front) : STR_NONE;
}
int64_t server_delivery_ms(const struct server *s) { return s->delivery_ms; }

void server_reload(struct server *s) {
    if (s->front) front_reload(s->front);
}

void server_halt(struct server *s) {
    if (!s) return;
    front_drain(s->front);
    host_close(s->host);
    front_close(s->front);
    s->host = NULL;
    s->front = NULL;
}

void server_close(struct server *s) {
    if (!s) return;
    ASSERT(!s->host);
    metrics_close(s->metrics);
    lock_drop(s->socket_lock);
    arena_release(&s->arena);
    mem_free(s);
}
