/* Run Events header and 4: one stream for all readers; what is written and what is stored. */
#include "conformance/fixture.h"

#include "base/time.h"

struct seen_as {
    str event_id, run_seq, persisted_at;
};

static struct seen_as in_json(struct fixture *c, str json) {
    yyjson_val *root = fixture_json(c, json);
    struct seen_as s = {.run_seq = json_text(json_member(root, "runSeq"), &c->arena)};
    CHECK(json_str(json_member(root, "eventId"), &s.event_id), "%.*s", STR_ARG(json));
    CHECK(json_str(json_member(root, "persistedAt"), &s.persisted_at), "%.*s", STR_ARG(json));
    return s;
}

static void check_same(struct seen_as a, struct seen_as b, const char *reader) {
    CHECK(str_eq(a.event_id, b.event_id), "%s", reader);
    CHECK(str_eq(a.run_seq, b.run_seq), "%s", reader);
    CHECK(str_eq(a.persisted_at, b.persisted_at), "%s", reader);
}

/* RE-0-2: the four kinds of reader have one surface each: the store's query by run, the tenant feed
 * that projectors follow, the SQL view that a user interface asks, and the trace by correlation
 * that an auditor exports. */
TEST_DB(run_events_four_readers_see_one_stream) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "other", "RunStarted");
    struct append_result put = fixture_put_event(&c, fixture_event("RunStarted", "r", NULL, 1));
    struct event_record *rec = fixture_read(&c, "r").records;
    struct seen_as store = in_json(&c, fixture_record_text(&c, rec));
    CHECK(str_eq(store.event_id, fixture_uuid_text(put.event_id)) && text_is(store.run_seq, "1"));
    CHECK(str_eq(store.persisted_at, fixture_time(&c, put.persisted_us)));

    struct event_page page;
    struct error err = {0};
    struct buf feed;
    buf_init(&feed, 4096);
    CHECK(ledger_read_tenant(c.ledger, STR("acme"), 1, 10, &c.arena, &page, &err) == ST_OK);
    CHECK(page.count == 1);
    event_feed_json(page.records, &feed);
    check_same(store, in_json(&c, buf_str(&feed)), "projector");
    buf_release(&feed);

    struct seen_as view = {
        fixture_text(&c, "SELECT \"eventId\" FROM run_events WHERE \"runId\" = 'r'"),
        fixture_text(&c, "SELECT CAST(\"runSeq\" AS TEXT) FROM run_events WHERE \"runId\" = 'r'"),
        fixture_text(&c, "SELECT \"persistedAt\" FROM run_events WHERE \"runId\" = 'r'")};
    check_same(store, view, "user interface");

    CHECK(ledger_read_correlation(c.ledger, STR("acme"), rec->correlation_id, 0, 10, &c.arena,
                                  &page, &err) == ST_OK);
    CHECK(page.count == 1);
    check_same(store, in_json(&c, fixture_record_text(&c, page.records)), "auditor");
    fixture_close(&c);
}

/* RE-4-1: any other text is an eventType too, stored and given back unchanged. */
TEST_DB(run_events_event_type_is_open) {
    static const char *const names[] = {"CustomThing", "custom.thing/v2", "\xC3\xA9t\xC3\xA9",
                                        " blanks ", "RUN_STARTED"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        fixture_put_event(&c, fixture_event(names[i], "r", NULL, 1));
    fixture_reopen_as(&c, LEDGER_REJECT);
    struct event_page page = fixture_read(&c, "r");
    CHECK(page.count == COUNT_OF(names));
    for (size_t i = 0; i < page.count; i++)
        CHECK(text_is(page.records[i].event.type_name, names[i]), "%s", names[i]);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events WHERE \"eventType\" = 'CustomThing'") ==
          1);
    fixture_close(&c);
}

/* The members of an object, separated by blanks. */
static str member_names(struct fixture *c, str json) {
    struct buf names;
    buf_init(&names, 4096);
    yyjson_obj_iter it = yyjson_obj_iter_with(fixture_json(c, json));
    for (yyjson_val *key = yyjson_obj_iter_next(&it); key; key = yyjson_obj_iter_next(&it)) {
        if (names.len > 0) buf_put_char(&names, ' ');
        buf_put(&names, str_n(yyjson_get_str(key), yyjson_get_len(key)));
    }
    str kept = arena_str(&c->arena, buf_str(&names));
    buf_release(&names);
    return kept;
}

#define WRITE_MEMBERS                                                                              \
    "eventId eventType emittedAt runId tenantId projectId environmentId planId planVersion "       \
    "engineAttemptId logicalAttemptId idempotencyKey"

/* RE-4-2: a write has its twelve members, stepId and payload where they belong, and nothing else.
 */
TEST_DB(run_events_write_shape) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event run = fixture_event("RunStarted", "r", NULL, 1);
    struct event step = fixture_event_with("StepStarted", "r", "a", 1, "{\"k\":[1]}");
    CHECK(text_is(member_names(&c, fixture_edit(&c, &run, "", NULL)), WRITE_MEMBERS));
    CHECK(text_is(member_names(&c, fixture_edit(&c, &step, "", NULL)),
                  WRITE_MEMBERS " stepId payload"));
    struct error err = {0};
    CHECK(fixture_put_json(&c, fixture_edit(&c, &run, "runSeq", "7"), &err) == ST_INVALID);
    CHECK(err.reason == REASON_FIELD_RESERVED && strcmp(err.where, "/runSeq") == 0);
    CHECK(fixture_event_count(&c) == 0);
    CHECK(fixture_put_event(&c, run).run_seq == 1);
    fixture_close(&c);
}

/* RE-4-3: a payload is an object. */
TEST_DB(run_events_payload_is_an_object) {
    static const char *const bad[] = {"[]", "[{}]", "\"{}\"", "1", "true", "null"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event e = fixture_event("RunStarted", "r", NULL, 1);
    struct error err = {0};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        CHECK(fixture_put_json(&c, fixture_edit(&c, &e, "payload", bad[i]), &err) == ST_INVALID);
        CHECK(err.reason == REASON_PAYLOAD_NOT_OBJECT, "%s: %s", bad[i], reason_name(err.reason));
    }
    CHECK(fixture_event_count(&c) == 0);
    CHECK(fixture_put_json(&c, fixture_edit(&c, &e, "payload", "{}"), &err) == ST_OK, "%s",
          err.msg);
    CHECK(text_is(fixture_read(&c, "r").records[0].event.payload, "{}"));
    fixture_close(&c);
}

/* RE-4-4: a record is the write, unchanged, and runSeq and persistedAt. RE-4-7: which is there in
 * every record. */
TEST_DB(run_events_record_shape) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event e[] = {fixture_event("RunStarted", "r", NULL, 1),
                        fixture_event_with("StepStarted", "r", "e\xCC\x81 \"q\"", 1,
                                           "{\"n\":1e999999,\"s\":\"\\n\"}"),
                        fixture_event_with("Unheard", "r", NULL, 12345678901, "{}")};
    for (size_t i = 0; i < COUNT_OF(e); i++) {
        e[i].emitted_digits = (int)i * 4;
        e[i].emitted_ns += 987600000;
        e[i].engine_attempt = (int64_t)i + 1;
        fixture_put_event(&c, e[i]);
    }
    fixture_reopen_as(&c, LEDGER_REJECT);
    struct event_page page = fixture_read(&c, "r");
    CHECK(page.count == COUNT_OF(e));
    for (size_t i = 0; i < page.count; i++) {
        struct buf want;
        buf_init(&want, 4096);
        event_write_json(&e[i], &want);
        want.len--; /* the closing bracket */
        str at = fixture_time(&c, FIXTURE_NOW_US);
        buf_printf(&want, ",\"runSeq\":%zu,\"persistedAt\":\"%.*s\"}", i + 1, STR_ARG(at));
        str got = fixture_record_text(&c, &page.records[i]);
        CHECK(str_eq(got, buf_str(&want)), "%.*s\n%.*s", STR_ARG(got), STR_ARG(buf_str(&want)));
        buf_release(&want);
    }
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events WHERE \"persistedAt\" IS NULL") == 0);
    str shown =
        fixture_text(&c, "SELECT CAST(payload AS TEXT) FROM run_events WHERE \"runSeq\" = 2");
    CHECK(str_eq(shown, e[1].payload), "in the view: %.*s", STR_ARG(shown));
    fixture_close(&c);
}

/* RE-4-6: persistedAt is RFC 3339 with Z, from the store's clock, and does not decrease with
 * runSeq; not even when the clock is set back. */
TEST_DB(run_events_persisted_at_is_utc_and_does_not_decrease) {
    static const int64_t moves[] = {0, 1, 999999, -5000000, 86400000000, -1};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    for (size_t i = 0; i < COUNT_OF(moves); i++) {
        c.now_us += moves[i];
        fixture_put_event(&c, fixture_event("RunTeleported", "r", NULL, (int64_t)i + 1));
    }
    struct event_page page = fixture_read(&c, "r");
    int64_t last = 0;
    for (size_t i = 0; i < page.count; i++) {
        str text;
        yyjson_val *rec = fixture_json(&c, fixture_record_text(&c, &page.records[i]));
        CHECK(json_str(json_member(rec, "persistedAt"), &text), "record %zu", i);
        int64_t ns = 0;
        int digits = 0;
        CHECK(time_parse_utc(text, &ns, &digits) && str_ends(text, STR("Z")), "%.*s",
              STR_ARG(text));
        CHECK(ns >= last && page.records[i].run_seq == (int64_t)i + 1, "%.*s", STR_ARG(text));
        last = ns;
    }
    CHECK(page.count == 7 && last == (FIXTURE_NOW_US + 1000000 - 5000000 + 86400000000) * 1000);
    fixture_close(&c);
}
