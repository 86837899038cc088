/* api/hub.c: who follows what, and the clock of it all. See hub_impl.h for how it works. */
#include "api/hub_impl.h"
#include "base/arena.h"
#include "base/time.h"

/* ---- the clock ---- */

/* Longest without a write first. Those that take nothing need no sign of life. */
static void keep_alive(struct hub *hub) {
    int64_t due = (int64_t)uv_now(hub->loop) - HUB_KEEPALIVE_MS;
    for (int i = 0; i < HUB_KEEPALIVES_MAX && hub_linked(&hub->subs); i++) {
        struct hub_sub *sub = HUB_OWNER(hub->subs.next, struct hub_sub, of_hub);
        if (sub->written_ms > due) return;
        if (sub->begun && http_stream_unsent(sub->exchange) == 0) {
            hub_write(sub, sub->format == HUB_SSE ? STR(": \n\n") : STR("\n"));
            continue;
        }
        sub->written_ms = (int64_t)uv_now(hub->loop);
        hub_link_last(&hub->subs, &sub->of_hub);
    }
}

/* Ends streams. What comes on their connections next is a new reader, at the end of the list. */
static void end_where(struct hub *hub, str owner, int64_t version, int64_t now_us) {
    struct hub_link *next;
    int64_t soonest = INT64_MAX;
    for (struct hub_link *l = hub->subs.next; l != &hub->subs; l = next) {
        struct hub_sub *sub = HUB_OWNER(l, struct hub_sub, of_hub);
        const struct hub_owner *o = sub->owner;
        next = l->next;
        bool theirs = owner.ptr && o && (version == 0 || version == o->version) &&
                      str_eq(hub_owner_name(o), owner);
        if (theirs || (o && o->over) || sub->expires_us <= now_us)
            hub_end(sub);
        else if (sub->expires_us < soonest)
            soonest = sub->expires_us;
    }
    if (soonest < hub->expiry_us || hub->expiry_us <= now_us) hub->expiry_us = soonest;
}

void hub_end_owner(struct hub *hub, str name, int64_t version) {
    end_where(hub, name, version, clock_wall_us());
}

void hub_end_over(struct hub *hub) { end_where(hub, STR_NONE, 0, clock_wall_us()); }

void hub_owner_changed(struct hub *hub, str owner) { hub_end_owner(hub, owner, 0); }

static void on_tick(uv_timer_t *tick) {
    struct hub *hub = (struct hub *)tick;
    int64_t now_us = clock_wall_us();
    if (hub->expiry_us <= now_us) end_where(hub, STR_NONE, 0, now_us);
    hub_owners_recheck(hub);
    if (hub->other_writers) {
        for (struct hub_link *l = hub->topics.next; l != &hub->topics; l = l->next)
            hub_topic_want(HUB_OWNER(l, struct hub_topic, of_hub));
    }
    hub_retry(hub);
    keep_alive(hub);
    if (hub->streams == 0) uv_timer_stop(tick);
}

/* ---- subscribing ---- */

static void on_gone(void *context, struct http_exchange *exchange) {
    UNUSED(exchange);
    hub_end(context);
}

static void on_writable(void *context, struct http_exchange *exchange) {
    UNUSED(exchange);
    hub_deliver(context);
}

static struct hub_topic *topic_of(struct hub *hub, const struct hub_request *r) {
    str id = r->tenant_feed ? r->tenant_id : r->run_id;
    struct map *map = r->tenant_feed ? &hub->tenants : &hub->runs;
    struct hub_topic *t = map_get(map, id);
    if (t) return t;
    t = mem_alloc(sizeof(*t) + id.len + 1);
    if (!t) return NULL;
    t->hub = hub;
    t->tenant_feed = r->tenant_feed;
    memcpy(t->id_bytes, id.ptr, id.len);
    t->id = str_n(t->id_bytes, id.len);
    hub_link_init(&t->of_hub);
    hub_link_init(&t->turn);
    hub_link_init(&t->subs);
    if (!map_put(map, t->id, t)) {
        mem_free(t);
        return NULL;
    }
    hub_link_last(&hub->topics, &t->of_hub);
    return t;
}

/* The list and its texts in one piece. */
static bool copy_headers(struct hub_sub *sub, const struct hub_request *r) {
    size_t list = r->header_count * sizeof(*r->headers);
    size_t bytes = list;
    for (size_t i = 0; i < r->header_count; i++)
        bytes += r->headers[i].name.len + r->headers[i].value.len;
    if (bytes == 0) return true;
    sub->headers = mem_alloc(bytes);
    if (!sub->headers) return false;
    sub->header_count = r->header_count;
    char *at = (char *)sub->headers + list;
    for (size_t i = 0; i < r->header_count; i++) {
        const str from[2] = {r->headers[i].name, r->headers[i].value};
        str *to[2] = {&sub->headers[i].name, &sub->headers[i].value};
        for (size_t k = 0; k < 2; k++) {
            if (from[k].len > 0) memcpy(at, from[k].ptr, from[k].len);
            *to[k] = str_n(at, from[k].len);
            at += from[k].len;
        }
    }
    return true;
}

static struct hub_sub *new_sub(struct hub *hub, struct http_exchange *exchange,
                               const struct hub_request *r) {
    struct hub_sub *sub = mem_alloc(sizeof(*sub));
    if (sub && r->owner.len > 0) sub->owner = hub_owner_hold(hub, r->owner, r->owner_version);
    bool owned = sub && (sub->owner || r->owner.len == 0);
    struct hub_topic *t = owned && copy_headers(sub, r) ? topic_of(hub, r) : NULL;
    if (!t) {
        if (sub) hub_owner_drop(hub, sub->owner);
        if (sub) mem_free(sub->headers);
        mem_free(sub);
        return NULL;
    }
    sub->hub = hub;
    sub->topic = t;
    sub->exchange = exchange;
    sub->pos = r->after > 0 ? r->after : 0;
    sub->seq = -1;
    sub->until = -1;
    sub->joined = t->reads_begun + 1;
    sub->written_ms = (int64_t)uv_now(hub->loop);
    sub->ended = r->ended;
    sub->context = r->context;
    sub->format = r->format;
    sub->follow = r->follow;
    sub->expires_us = r->expires_us > 0 ? r->expires_us : INT64_MAX;
    if (sub->expires_us < hub->expiry_us) hub->expiry_us = sub->expires_us;
    hub_link_init(&sub->of_topic);
    hub_link_init(&sub->of_hub);
    hub_link_init(&sub->turn);
    hub_link_last(&t->subs, &sub->of_topic);
    hub_link_last(&hub->subs, &sub->of_hub);
    return sub;
}

status hub_stream(struct hub *hub, struct http_exchange *exchange, const struct hub_request *r,
                  struct error *err) {
    ASSERT(r->header_count <= HUB_HEADERS_MAX);
    if (hub->draining) return error_at(err, REASON_NOT_READY, "", "the server is about to stop");
    if (hub->streams >= HUB_STREAMS_MAX) {
        return error_at(err, REASON_STREAMS_TOO_MANY, "",
                        "%d streams are open already: try again later", HUB_STREAMS_MAX);
    }
    struct hub_sub *sub = new_sub(hub, exchange, r);
    if (!sub) return error_set(err, ST_RETRY, "stream: out of memory");
    if (hub->streams++ == 0) uv_timer_start(&hub->tick, on_tick, HUB_POLL_MS, HUB_POLL_MS);
    metric_set(hub->streams_now, (int64_t)hub->streams);
    http_on_gone(exchange, on_gone, sub);
    http_on_writable(exchange, on_writable, sub);
    hub_topic_want(sub->topic);
    return ST_OK;
}

void hub_committed(struct hub *hub, str tenant_id, str run_id) {
    struct hub_topic *run = run_id.len > 0 ? map_get(&hub->runs, run_id) : NULL;
    struct hub_topic *tenant = tenant_id.len > 0 ? map_get(&hub->tenants, tenant_id) : NULL;
    if (run) hub_topic_want(run);
    if (tenant) hub_topic_want(tenant);
}

size_t hub_streams(const struct hub *hub) { return hub->streams; }

/* ---- opening and closing ---- */

status hub_open(uv_loop_t *loop, struct readers *readers, bool other_writers, struct metrics *m,
                struct hub **out, struct error *err) {
    struct hub *hub = mem_alloc(sizeof(*hub));
    if (!hub) return error_set(err, ST_RETRY, "streams: out of memory");
    hub->loop = loop;
    hub->readers = readers;
    hub->other_writers = other_writers;
    hub->expiry_us = INT64_MAX;
    map_init(&hub->runs);
    map_init(&hub->tenants);
    map_init(&hub->owners);
    struct hub_link *lists[] = {&hub->topics,       &hub->subs,     &hub->reads,
                                &hub->reads_paused, &hub->catchups, &hub->catchups_paused,
                                &hub->owner_list};
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        hub_link_init(lists[i]);
    if (m) {
        hub->streams_now = metrics_gauge(m, "cairn_streams", "Live streams now.", "");
        hub->events = metrics_counter(m, "cairn_stream_events_total",
                                      "Events written to live streams, once for each reader.", "");
        hub->catchups_total =
            metrics_counter(m, "cairn_stream_catchups_total",
                            "Pages read for single readers that were behind.", "");
    }
    uv_timer_init(loop, &hub->tick);
    uv_unref((uv_handle_t *)&hub->tick); /* the connections keep the loop alive */
    *out = hub;
    return ST_OK;
}

void hub_drain(struct hub *hub) {
    hub->draining = true;
    while (hub_linked(&hub->subs))
        hub_end(HUB_OWNER(hub->subs.next, struct hub_sub, of_hub));
    uv_timer_stop(&hub->tick);
}

static void on_closed(uv_handle_t *handle) {
    struct hub *hub = (struct hub *)handle;
    map_release(&hub->runs);
    map_release(&hub->tenants);
    map_release(&hub->owners);
    mem_free(hub);
}

void hub_close(struct hub *hub) {
    if (!hub) return;
    ASSERT(hub->streams == 0);
    ASSERT(!hub_linked(&hub->topics)); /* the readers have answered what was under way */
    uv_close((uv_handle_t *)&hub->tick, on_closed);
}
