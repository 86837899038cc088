/* api/append.c: the Append Authority over HTTP: one event, or a batch a line each. */
#include "api/impl.h"

#include "base/time.h"

#define PARSE_ON_LOOP_MAX ((size_t)64 * 1024) /* a larger batch is parsed on a reader thread */

struct line { /* of a batch: an item, or why it is none */
    struct error *err;
    size_t item;
    int64_t number; /* blank ones count */
};
struct append {
    str run_id; /* of the path; STR_NONE: of any run */
    bool one;   /* a single event, not a batch */
    bool atomic;
    struct line *lines;
    size_t line_count, line_cap;
    struct append_item *items;
    struct append_result *results;
    size_t count;
    str actor;
};

/* ---- reading ---- */

static status check_event(struct call *c, const struct append *a, const struct event *e,
                          struct error *err) {
    if (a->run_id.ptr && !str_eq(e->run_id, a->run_id))
        return error_at(err, REASON_RUN_ID_MISMATCH, "/runId",
                        "the event is of another run than the path");
    if (!principal_sees(c->who, e->tenant_id))
        return error_at(err, REASON_RUN_NOT_FOUND, "/tenantId", "there is no run \"%.*s\"",
                        STR_ARG(e->run_id));
    return ST_OK;
}

static status add_event(struct call *c, struct append *a, str text, struct error *err) {
    struct append_item *item = &a->items[a->count];
    *item = (struct append_item){.actor = a->actor, .correlation = c->has_trace ? &c->trace : NULL};
    status st = event_parse(text, &c->arena, &item->event, err);
    if (st == ST_OK) st = check_event(c, a, &item->event, err);
    if (st == ST_OK) a->count++;
    return st;
}

static status out_of_memory(struct error *err) { return error_set(err, ST_RETRY, "out of memory"); }

/* Room for the whole batch, which is bounded by the body. */
static status make_room(struct call *c, struct append *a, size_t lines, struct error *err) {
    a->items = arena_try(&c->arena, lines * sizeof(*a->items));
    a->results = arena_try(&c->arena, lines * sizeof(*a->results));
    a->lines = arena_try(&c->arena, lines * sizeof(*a->lines));
    return a->items && a->results && a->lines ? ST_OK : out_of_memory(err);
}

static status add_line(struct call *c, struct append *a, str text, int64_t number,
                       struct error *err) {
    struct error why = {0};
    struct line *line = &a->lines[a->line_count++];
    *line = (struct line){.item = a->count, .number = number};
    status st = text.len > LINE_BYTES_MAX
                    ? error_at(&why, REASON_LINE_TOO_LONG, "", "a line of more than 1 MiB")
                    : add_event(c, a, text, &why);
    if (st == ST_OK) return ST_OK;
    if (a->atomic) {
        *err = why;
        return error_wrap(err, "line %lld", (long long)number);
    }
    line->err = arena_try(&c->arena, sizeof(why));
    if (!line->err) return out_of_memory(err);
    *line->err = why;
    return ST_OK;
}

static status read_lines(struct call *c, struct append *a, struct error *err) {
    str rest = c->request->body;
    size_t lines = 1;
    for (size_t i = 0; i < rest.len; i++)
        lines += rest.ptr[i] == '\n';
    if (lines > BATCH_EVENTS_MAX + 1)
        return error_at(err, REASON_BATCH_TOO_LARGE, "", "at most %d events in one request",
                        BATCH_EVENTS_MAX);
    status st = make_room(c, a, lines, err);
    for (int64_t number = 1; st == ST_OK && rest.len > 0; number++) {
        str text;
        if (!str_split(rest, '\n', &text, &rest)) rest = STR_NONE;
        text = str_trim(text);
        if (text.len > 0) st = add_line(c, a, text, number, err);
    }
    if (st == ST_OK && a->line_count == 0)
        st = error_at(err, REASON_BODY_MISSING, "", "events are expected, one a line");
    if (st == ST_OK && a->line_count > BATCH_EVENTS_MAX)
        st = error_at(err, REASON_BATCH_TOO_LARGE, "", "at most %d events in one request",
                      BATCH_EVENTS_MAX);
    return st;
}

static status parse_batch(struct call *c, struct ledger *unused, struct error *err) {
    (void)unused;
    return read_lines(c, c->own, err);
}

/* ---- answering ---- */

static void tell_streams(struct call *c, const struct append *a) {
    str last = STR_NONE;
    for (size_t i = 0; i < a->count; i++) {
        const struct event *e = &a->items[i].event;
        if (a->results[i].code != ST_OK || a->results[i].duplicate) continue;
        if (last.ptr && str_eq(last, e->run_id)) continue;
        last = e->run_id;
        hub_committed(c->api->hub, e->tenant_id, e->run_id);
    }
}

static void answer_one(struct call *c, struct append *a) {
    const struct append_result *r = &a->results[0];
    if (r->code != ST_OK) {
        call_fail(c, r->err);
        return;
    }
    view_write(&view_result, r, &c->out);
    call_answer(c, r->duplicate ? 200 : 201);
}

static void answer_batch(struct call *c, struct append *a) {
    if (a->atomic && a->count > 0 && a->results[0].code != ST_OK) {
        /* The others only say whose fault it was. */
        call_fail(c, a->results[c->change.write.request.culprit].err);
        return;
    }
    for (size_t i = 0; i < a->line_count; i++) {
        const struct line *line = &a->lines[i];
        const struct error *why = line->err ? line->err : a->results[line->item].err;
        if (why) {
            json_object_begin(&c->out);
            json_put_int(&c->out, "line", line->number);
            json_name(&c->out, "error");
            problem_line(&c->out, why);
            json_object_end(&c->out);
        } else {
            view_write(&view_result, &a->results[line->item], &c->out);
        }
        buf_put_char(&c->out, '\n');
    }
    call_answer_as(c, 200, "application/x-ndjson");
}

static void appended(struct call *c) {
    struct append *a = c->own;
    tell_streams(c, a);
    if (a->one)
        answer_one(c, a);
    else
        answer_batch(c, a);
}

/* The events say who appended them and from where; only a repeated request needs more. */
static void send_batch(struct call *c) {
    struct append *a = c->own;
    if (a->count == 0) {
        answer_batch(c, a);
        return;
    }
    c->change = (struct bridge_call){.write.request = {.items = a->items,
                                                .count = a->count,
                                                .atomic = a->atomic,
                                                .outside = true,
                                                .results = a->results,
                                                .arena = &c->arena,
                                                .riders = call_receipt(c, 200, true)}};
    call_append(c, appended);
}

static void append_one(struct call *c, struct append *a) {
    struct error err = {0};
    a->one = true;
    status st = make_room(c, a, 1, &err);
    if (st == ST_OK && c->request->body.len == 0)
        st = error_at(&err, REASON_BODY_MISSING, "", "an event is expected as the body");
    if (st == ST_OK) st = add_event(c, a, c->request->body, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        send_batch(c);
}

static void append_batch(struct call *c, struct append *a) {
    struct error err = {0};
    if (c->request->body.len > PARSE_ON_LOOP_MAX)
        call_read(c, parse_batch, send_batch);
    else if (read_lines(c, a, &err) != ST_OK)
        call_fail(c, &err);
    else
        send_batch(c);
}

struct append_query {
    bool atomic;
};
static const struct field append_fields[] = {
    {"atomic", FIELD_BOOL, FIELD(struct append_query, atomic), false, 0, 0}};

static void append_to(struct call *c, str run_id, bool batch_only) {
    struct error err = {0};
    struct append_query q = {0};
    struct append *a = ARENA_NEW(&c->arena, struct append);
    c->own = a;
    if (query_read(c, append_fields, COUNT_OF(append_fields), &q, NULL, &err) != ST_OK) {
        call_fail(c, &err);
        return;
    }
    *a = (struct append){.run_id = run_id, .atomic = q.atomic, .actor = call_actor(c)};
    if (body_is(c, "application/x-ndjson"))
        append_batch(c, a);
    else if (!batch_only && body_is(c, "application/json"))
        append_one(c, a);
    else
        call_refuse(c, REASON_UNSUPPORTED_MEDIA_TYPE, "#Content-Type",
                    batch_only ? "expected \"Content-Type: application/x-ndjson\""
                               : "expected \"Content-Type: application/json\", or "
                                 "application/x-ndjson for a batch");
}

void post_run_events(struct call *c) { append_to(c, c->args[0], false); }
void post_events(struct call *c) { append_to(c, STR_NONE, true); }
