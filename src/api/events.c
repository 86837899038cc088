/* api/events.c: reading events: pages, live streams, causes, traces, alerts. */
#include "api/impl.h"

enum { EVENTS_DEFAULT = 100, CAUSES_DEFAULT = 100, ALERTS_DEFAULT = 50, TRACE_RUNS_MAX = 1000 };
enum { SLICE_EVENTS = 100, PAGE_BYTES_MAX = 4 * 1024 * 1024 };

struct read {
    str tenant, run, cursor;
    int64_t after, limit;
    bool follow;
    uint64_t given;
    enum hub_format format;
    bool feed; /* a tenant's, not a run's */
    uuid id;
    int64_t before_run, before_seq;
};
#define AT(member) FIELD(struct read, member)
#define LIMIT                                                                                      \
    { "limit", FIELD_INT, AT(limit), false, 1, PAGE_EVENTS_MAX }
#define CURSOR                                                                                     \
    { "cursor", FIELD_TEXT, AT(cursor), false, 1, 0 }
#define TENANT                                                                                     \
    { "tenantId", FIELD_TEXT, AT(tenant), false, 1, 0 }
#define AFTER                                                                                      \
    { "after", FIELD_INT, AT(after), false, 0, NUMBER_MAX }
#define FOLLOW                                                                                     \
    { "follow", FIELD_BOOL, AT(follow), false, 0, 0 }
static const struct field run_fields[] = {LIMIT, CURSOR, AFTER, FOLLOW};
static const struct field feed_fields[] = {LIMIT, CURSOR, AFTER, FOLLOW, TENANT};
static const struct field trace_fields[] = {LIMIT, CURSOR, TENANT};
static const struct field causes_fields[] = {LIMIT};
static const struct field alert_fields[] = {
    LIMIT, CURSOR, TENANT, {"runId", FIELD_TEXT, AT(run), false, 1, 0}};

static struct read *read_new(struct call *c, int64_t limit) {
    struct read *r = ARENA_NEW(&c->arena, struct read);
    r->limit = limit;
    r->follow = true;
    c->own = r;
    return r;
}

/* A cursor stands for `after`. */
static status read_query(struct call *c, const struct field *fields, size_t count, struct read *r,
                         struct error *err) {
    int64_t after = 0;
    int64_t unused = 0;
    status st = query_read(c, fields, count, r, &r->given, err);
    if (st == ST_OK) st = cursor_read(r->cursor, 'e', &after, &unused, err);
    if (st == ST_OK && r->cursor.ptr) r->after = after;
    return st;
}

/* Reads at most `limit` events after `after`. */
typedef status (*read_slice)(struct call *c, struct ledger *reader, int64_t after, size_t limit,
                           struct event_page *page, struct error *err);

/* An event has up to 256 KiB: a page is read slice by slice, and is short when it has grown large. Has
 * one event at least if there is any. */
static status put_page(struct call *c, struct ledger *reader, read_slice read, struct error *err) {
    struct read *r = c->own;
    int64_t last = r->after;
    int64_t left = r->limit;
    bool more = true;
    page_begin(&c->out);
    while (more && left > 0 && c->out.len < PAGE_BYTES_MAX) {
        struct event_page page = {0};
        struct arena_mark mark = arena_mark(&c->arena);
        size_t slice = left < SLICE_EVENTS ? (size_t)left : SLICE_EVENTS;
        status st = read(c, reader, last, slice, &page, err);
        if (st != ST_OK && st != ST_NOT_FOUND) return st;
        size_t i = 0; /* (what is not found, a tenant or a trace, has no events) */
        for (; i < page.count && (i == 0 || c->out.len < PAGE_BYTES_MAX); i++) {
            const struct event_record *rec = &page.records[i];
            if (r->feed)
                event_feed_json(rec, &c->out);
            else
                event_record_json(rec, &c->out);
            last = r->feed ? rec->seq : rec->run_seq;
        }
        more = i == slice || i < page.count;
        left -= (int64_t)i;
        arena_rewind(&c->arena, mark);
    }
    page_end(&c->out, more, 'e', last, 0);
    return ST_OK;
}

/* ---- a run's events, a tenant's feed ---- */

static status slice_of_run(struct call *c, struct ledger *reader, int64_t after, size_t limit,
                         struct event_page *page, struct error *err) {
    return ledger_read_records(reader, c->run_id, after, limit, &c->arena, page, err);
}

static status page_of_run(struct call *c, struct ledger *reader, struct error *err) {
    struct run_info info;
    status st = call_find_run(c, reader, c->args[0], &info, err);
    return st == ST_OK ? put_page(c, reader, slice_of_run, err) : st;
}

static status slice_of_tenant(struct call *c, struct ledger *reader, int64_t after, size_t limit,
                            struct event_page *page, struct error *err) {
    struct read *r = c->own;
    return ledger_read_tenant(reader, r->tenant, after, limit, &c->arena, page, err);
}

static status page_of_tenant(struct call *c, struct ledger *reader, struct error *err) {
    return put_page(c, reader, slice_of_tenant, err);
}

static void stream_ended(void *context) { share_give(context, SHARE_STREAMS); }

/* The call ends here: ten thousand readers shall not hold ten thousand of them. */
static void begin_stream(struct call *c) {
    struct read *r = c->own;
    struct error err = {0};
    struct http_header headers[] = {{STR("X-Request-Id"), c->request->id},
                                    {STR("X-Content-Type-Options"), STR("nosniff")}};
    struct hub_request q = {.format = r->format,
                            .tenant_feed = r->feed,
                            .tenant_id = r->feed ? r->tenant : c->tenant_id,
                            .run_id = r->feed ? STR_NONE : c->run_id,
                            .after = r->after,
                            .follow = r->follow,
                            .owner = str_c(c->who->name),
                            .owner_version = c->who->key_version,
                            .expires_us = c->who->expires_us,
                            .headers = headers,
                            .header_count = COUNT_OF(headers),
                            .ended = stream_ended};
    struct http_exchange *exchange = c->exchange;
    if (c->api->draining) {
        call_refuse(c, REASON_NOT_READY, "", "the server is ending");
        return;
    }
    if (str_eq(c->request->method, STR("HEAD"))) { /* there is nothing to follow */
        call_answer(c, 200);
        return;
    }
    struct share *share = NULL;
    status st = share_take(&c->api->shares, str_c(c->who->tenant), SHARE_STREAMS, &share, &err);
    q.context = share;
    if (st == ST_OK) st = hub_stream(c->api->hub, exchange, &q, &err);
    if (st != ST_OK) {
        share_give(share, SHARE_STREAMS);
        call_fail(c, &err);
        return;
    }
    call_handed_over(c, 200);
    call_end(c);
}

static status find_run(struct call *c, struct ledger *reader, struct error *err) {
    struct run_info info;
    return call_find_run(c, reader, c->args[0], &info, err);
}

/* Chooses between a page and a stream; -1: it was refused. */
static int choose_form(struct call *c, struct read *r) {
    static const char *const types[] = {"application/json", "application/x-ndjson",
                                        "text/event-stream", NULL};
    int form = accept_choose(c, types);
    str last = http_header(c->request, STR("Last-Event-ID"));
    if (form < 0) {
        call_refuse(c, REASON_NOT_ACCEPTABLE, "#Accept",
                    "there is application/json, application/x-ndjson and text/event-stream");
        return -1;
    }
    r->format = form == 2 ? HUB_SSE : HUB_NDJSON;
    if (form == 0 || !last.ptr) return form;
    if (!str_to_int(last, &r->after) || r->after < 0) {
        call_refuse(c, REASON_HEADER_INVALID, "#Last-Event-ID",
                    "expected the id of an event of this stream");
        return -1;
    }
    return form;
}

static void get_run_events(struct call *c) {
    struct error err = {0};
    struct read *r = read_new(c, EVENTS_DEFAULT);
    if (read_query(c, run_fields, COUNT_OF(run_fields), r, &err) != ST_OK) {
        call_fail(c, &err);
        return;
    }
    int form = choose_form(c, r);
    if (form == 0)
        call_read(c, page_of_run, NULL);
    else if (form > 0)
        call_read(c, find_run, begin_stream);
}

static void get_events(struct call *c) {
    struct error err = {0};
    struct read *r = read_new(c, EVENTS_DEFAULT);
    status st = read_query(c, feed_fields, COUNT_OF(feed_fields), r, &err);
    if (st == ST_OK) st = call_tenant(c, r->tenant, &r->tenant, &err);
    if (st == ST_OK && !r->tenant.ptr)
        st = error_at(&err, REASON_PARAMETER_MISSING, "?tenantId",
                      "say which tenant: sequence numbers are a tenant's");
    if (st != ST_OK) {
        call_fail(c, &err);
        return;
    }
    r->feed = true;
    int form = choose_form(c, r);
    if (form == 0)
        call_read(c, page_of_tenant, NULL);
    else if (form > 0)
        begin_stream(c);
}

/* ---- one event, its causes, a trace ---- */

static status not_found(struct error *err) {
    return error_at(err, REASON_EVENT_NOT_FOUND, "", "there is no such event");
}

static status load_event(struct call *c, struct ledger *reader, struct error *err) {
    struct read *r = c->own;
    struct event_record rec;
    status st = ledger_find_event(reader, r->id, &c->arena, &rec, err);
    if (st == ST_NOT_FOUND || (st == ST_OK && !principal_sees(c->who, rec.event.tenant_id)))
        return not_found(err);
    if (st == ST_OK) event_feed_json(&rec, &c->out);
    return st;
}

static status load_causes(struct call *c, struct ledger *reader, struct error *err) {
    struct read *r = c->own;
    struct event_page page = {0};
    bool more = false;
    size_t limit = (size_t)r->limit;
    struct arena_mark mark = arena_mark(&c->arena);
    status st = ledger_causes(reader, r->id, limit, &c->arena, &page, &more, err);
    if (st == ST_RETRY && limit > SLICE_EVENTS) { /* they do not fit: fewer do */
        arena_rewind(&c->arena, mark);
        limit = SLICE_EVENTS;
        st = ledger_causes(reader, r->id, limit, &c->arena, &page, &more, err);
    }
    if (st == ST_NOT_FOUND ||
        (st == ST_OK &&
         (page.count == 0 || !principal_sees(c->who, page.records[0].event.tenant_id))))
        return not_found(err);
    if (st != ST_OK) return st;
    page_begin(&c->out);
    size_t i = 0;
    for (; i < page.count && (i == 0 || c->out.len < PAGE_BYTES_MAX); i++) {
        event_feed_json(&page.records[i], &c->out);
    }
    more = more || i < page.count;
    json_array_end(&c->out);
    json_put_bool(&c->out, "more", more);
    json_object_end(&c->out);
    return ST_OK;
}

static bool path_uuid(struct call *c, uuid *out, enum reason reason) {
    if (uuid_parse(c->args[0], out)) return true;
    call_refuse(c, reason, "", "\"%.*s\" is no UUID", STR_ARG(c->args[0]));
    return false;
}

static void get_event(struct call *c) {
    struct error err = {0};
    struct read *r = read_new(c, 1);
    if (query_none(c, &err) != ST_OK)
        call_fail(c, &err);
    else if (path_uuid(c, &r->id, REASON_EVENT_NOT_FOUND))
        call_read(c, load_event, NULL);
}

static void get_causes(struct call *c) {
    struct error err = {0};
    struct read *r = read_new(c, CAUSES_DEFAULT);
    if (query_read(c, causes_fields, COUNT_OF(causes_fields), r, NULL, &err) != ST_OK)
        call_fail(c, &err);
    else if (path_uuid(c, &r->id, REASON_EVENT_NOT_FOUND))
        call_read(c, load_causes, NULL);
}

/* Positions are a tenant's: a caller of every tenant who names none means the one that the trace is
 * in. STR_NONE: there is no such trace. */
static status tenant_of_trace(struct call *c, struct ledger *reader, uuid trace, str *out,
                              struct error *err) {
    struct run_filter filter = {.correlation = &trace};
    struct run_info *runs = NULL;
    size_t count = 0;
    int64_t next = 0;
    status st =
        ledger_list_runs(reader, &filter, TRACE_RUNS_MAX, &c->arena, &runs, &count, &next, err);
    if (st != ST_OK) return st;
    bool several = next > 0;
    for (size_t i = 1; i < count; i++)
        several |= !str_eq(runs[i].tenant_id, runs[0].tenant_id);
    if (several)
        return error_at(err, REASON_PARAMETER_MISSING, "?tenantId",
                        "the trace is in several tenants, or large: say which");
    if (count > 0) *out = runs[0].tenant_id;
    return ST_OK;
}

static status slice_of_trace(struct call *c, struct ledger *reader, int64_t after, size_t limit,
                           struct event_page *page, struct error *err) {
    struct read *r = c->own;
    if (!r->tenant.ptr) return ST_NOT_FOUND;
    return ledger_read_correlation(reader, r->tenant, r->id, after, limit, &c->arena, page, err);
}

static status load_trace(struct call *c, struct ledger *reader, struct error *err) {
    struct read *r = c->own;
    r->feed = true;
    status st = r->tenant.ptr ? ST_OK : tenant_of_trace(c, reader, r->id, &r->tenant, err);
    return st == ST_OK ? put_page(c, reader, slice_of_trace, err) : st;
}

static void get_trace(struct call *c) {
    struct error err = {0};
    struct read *r = read_new(c, EVENTS_DEFAULT);
    status st = read_query(c, trace_fields, COUNT_OF(trace_fields), r, &err);
    if (st == ST_OK) st = call_tenant(c, r->tenant, &r->tenant, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else if (path_uuid(c, &r->id, REASON_TRACE_NOT_FOUND))
        call_read(c, load_trace, NULL);
}

/* ---- alerts ---- */

static status load_alerts(struct call *c, struct ledger *reader, struct error *err) {
    struct read *r = c->own;
    struct alert *alerts = NULL;
    struct run_info info;
    size_t count = 0;
    status st = r->run.ptr ? call_find_run(c, reader, r->run, &info, err) : ST_OK;
    if (st == ST_OK)
        st = ledger_list_alerts(reader,
                                &(struct alert_query){.tenant_id = r->tenant,
                                                      .run_id = r->run,
                                                      .before_run_no = r->before_run,
                                                      .before_seq = r->before_seq,
                                                      .limit = (size_t)r->limit},
                                &c->arena, &alerts, &count, err);
    if (st != ST_OK) return st;
    page_begin(&c->out);
    for (size_t i = 0; i < count; i++) {
        view_write(&view_alert, &alerts[i], &c->out);
    }
    bool more = (int64_t)count == r->limit;
    page_end(&c->out, more, 'a', more ? alerts[count - 1].run_no : 0,
             more ? alerts[count - 1].seq : 0);
    return ST_OK;
}

static void get_alerts(struct call *c) {
    struct error err = {0};
    struct read *r = read_new(c, ALERTS_DEFAULT);
    status st = query_read(c, alert_fields, COUNT_OF(alert_fields), r, NULL, &err);
    if (st == ST_OK) st = cursor_read(r->cursor, 'a', &r->before_run, &r->before_seq, &err);
    if (st == ST_OK) st = call_tenant(c, r->tenant, &r->tenant, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, load_alerts, NULL);
}

#define READERS (ROLE_VIEWER | ROLE_OPERATOR)
#define PRODUCERS (ROLE_PRODUCER | ROLE_OPERATOR)
static const struct route routes[] = {
    {"POST", "/v1/runs/{runId}/events", "event.append", PRODUCERS, ROUTE_CHANGES, post_run_events},
    {"POST", "/v1/events", "event.append", PRODUCERS, ROUTE_CHANGES, post_events},
    {"GET", "/v1/runs/{runId}/events", "run.events", READERS | ROLE_PRODUCER, 0, get_run_events},
    {"GET", "/v1/events", "event.feed", READERS, 0, get_events},
    {"GET", "/v1/events/{eventId}", "event.get", READERS, 0, get_event},
    {"GET", "/v1/events/{eventId}/causes", "event.causes", READERS, 0, get_causes},
    {"GET", "/v1/traces/{correlationId}", "trace.get", READERS, 0, get_trace},
    {"GET", "/v1/alerts", "alert.list", READERS, 0, get_alerts},
};
const struct route_table event_routes = {routes, COUNT_OF(routes)};
