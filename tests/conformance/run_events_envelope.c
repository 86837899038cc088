/* Run Events 1.2, 2.1 to 2.6: what an envelope must have, on the way into a real ledger. */
#include "conformance/fixture.h"

/* Refused at `member`, and nothing is written. */
static void check_refused(struct fixture *c, str json, const char *member) {
    struct error err = {0};
    char where[64];
    snprintf(where, sizeof where, "/%s", member);
    int64_t before = fixture_event_count(c);
    status st = fixture_put_json(c, json, &err);
    CHECK(st == ST_INVALID, "%s: %.*s", status_name(st), STR_ARG(json));
    CHECK(strcmp(err.where, where) == 0, "%s at %s: %.*s", reason_name(err.reason), err.where,
          STR_ARG(json));
    CHECK(strstr(err.msg, member) != NULL, "%s", err.msg);
    CHECK(fixture_event_count(c) == before);
}

static void check_accepted(struct fixture *c, str json) {
    struct error err = {0};
    int64_t before = fixture_event_count(c);
    CHECK(fixture_put_json(c, json, &err) == ST_OK, "%s: %.*s", err.msg, STR_ARG(json));
    CHECK(fixture_event_count(c) == before + 1);
}

/* RE-2.1-1, RE-2.1-2, RE-2.1-3, RE-2.1-4, RE-2.1-5, RE-2.1-6, RE-2.1-7, RE-2.1-8, RE-2.1-9,
 * RE-2.1-10, RE-2.1-11: each required member, left out and in the wrong form, is refused by name;
 * the right form is accepted. */
TEST_DB(run_events_required_members) {
    static const struct {
        const char *member, *bad;
    } cases[] = {
        {"eventId", NULL},
        {"eventId", "\"78be93d4-7395-5143-91f9-570d936754f0\""}, /* version 5 */
        {"eventType", NULL},
        {"eventType", "\"\""},
        {"runId", NULL},
        {"runId", "\"\""},
        {"tenantId", NULL},
        {"tenantId", "\"\""},
        {"projectId", NULL},
        {"projectId", "\"\""},
        {"environmentId", NULL},
        {"environmentId", "\"\""},
        {"planId", NULL},
        {"planVersion", NULL},
        {"planVersion", "2"},
        {"engineAttemptId", NULL},
        {"engineAttemptId", "\"1\""},
        {"logicalAttemptId", NULL},
        {"logicalAttemptId", "\"1\""},
        {"idempotencyKey", NULL},
        {"idempotencyKey", "\"7f4b974658a54fb2aee9ecb9cefebd2eec27f3fd01f0f8c0d031dfc4a5b96e3c\""},
        {"emittedAt", NULL},
        {"emittedAt", "\"yesterday\""},
        {"emittedAt", "\"2026-02-16T10:00:00+02:00\""},
    };
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event e = fixture_event("RunStarted", "r", NULL, 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_refused(&c, fixture_edit(&c, &e, cases[i].member, cases[i].bad), cases[i].member);
    /* A version 4 id, both attempts the number 1, 2026-02-16T08:00:00Z, and the derived key. */
    CHECK(uuid_version(e.event_id) == 4);
    check_accepted(&c, fixture_edit(&c, &e, "emittedAt", "\"2026-02-16T08:00:00Z\""));
    fixture_close(&c);
}

/* RE-1.2-1: the eleven types are known by name, each is accepted, and any other name is unknown. */
TEST_DB(run_events_the_eleven_lifecycle_types) {
    static const char *const names[] = {
        "RunQueued", "RunStarted", "StepStarted",  "StepCompleted", "StepFailed",  "StepSkipped",
        "RunPaused", "RunResumed", "RunCompleted", "RunFailed",     "RunCancelled"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_type WHERE lifecycle = 1") ==
          COUNT_OF(names));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        enum event_type type = event_type_of(str_c(names[i]));
        CHECK(type != EVENT_UNKNOWN && event_type_info(type)->lifecycle, "%s", names[i]);
        bool step = strncmp(names[i], "Step", 4) == 0;
        struct event e = fixture_event(names[i], "r", step ? "a" : NULL, 1);
        check_accepted(&c, fixture_edit(&c, &e, "", NULL));
    }
    static const char *const others[] = {"RunTeleported", "runStarted", "RUN_STARTED", "StepStart",
                                         "SignalAccepted"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        CHECK(event_type_of(str_c(others[i])) == EVENT_UNKNOWN, "%s", others[i]);
    for (int t = 1; t < EVENT_TYPE_COUNT; t++) /* our extensions are none of the eleven */
        CHECK(!event_type_info((enum event_type)t)->lifecycle || t <= (int)COUNT_OF(names), "%d",
              t);
    fixture_close(&c);
}

/* RE-1.2-2: admission control may say RunQueued before RunStarted, and need not. */
TEST_DB(run_events_queued_is_optional) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct append_item item = {.event = fixture_event("RunQueued", "queued", NULL, 1),
                               .actor = STR("admission.example")};
    struct append_result result = {0};
    struct append_request request = {
        .items = &item, .count = 1, .results = &result, .arena = &c.arena};
    struct append_request *requests[] = {&request};
    struct error err = {0};
    CHECK(ledger_append(c.ledger, requests, 1, &err) == ST_OK && result.code == ST_OK);
    CHECK(text_is(fixture_run_status(&c, "queued"), "PENDING"));
    fixture_program(&c, "queued", "RunStarted");
    fixture_program(&c, "not queued", "RunStarted");
    CHECK(text_is(fixture_run_status(&c, "queued"), "RUNNING"));
    CHECK(text_is(fixture_run_status(&c, "not queued"), "RUNNING"));
    fixture_close(&c);
}

/* RE-1.2-3: RunQueued without a required member gets the very refusal that RunStarted gets. */
TEST_DB(run_events_queued_has_a_full_envelope) {
    static const char *const members[] = {"eventId",          "emittedAt",     "runId",
                                          "tenantId",         "projectId",     "environmentId",
                                          "planId",           "planVersion",   "engineAttemptId",
                                          "logicalAttemptId", "idempotencyKey"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event queued = fixture_event("RunQueued", "r", NULL, 1);
    struct event started = fixture_event("RunStarted", "r", NULL, 1);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        struct error one = {0};
        struct error two = {0};
        CHECK(fixture_put_json(&c, fixture_edit(&c, &queued, members[i], NULL), &one) ==
              ST_INVALID);
        CHECK(fixture_put_json(&c, fixture_edit(&c, &started, members[i], NULL), &two) ==
              ST_INVALID);
        CHECK(one.reason == two.reason && strcmp(one.where, two.where) == 0);
        CHECK(strcmp(one.msg, two.msg) == 0, "%s / %s", one.msg, two.msg);
    }
    CHECK(fixture_event_count(&c) == 0);
    fixture_close(&c);
}

/* RE-2.2-1: step-level events name their step. RE-2.2-2: run-level events do not. */
TEST_DB(run_events_step_id_applicability) {
    static const char *const step_types[] = {"StepStarted", "StepCompleted", "StepFailed",
                                             "StepSkipped"};
    static const char *const run_types[] = {"RunQueued",   "RunStarted",   "RunPaused",
                                            "RunResumed",  "RunCompleted", "RunFailed",
                                            "RunCancelled"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    for (size_t i = 0; i < COUNT_OF(step_types); i++) {
        struct event e = fixture_event(step_types[i], "r", "a", 1);
        check_refused(&c, fixture_edit(&c, &e, "stepId", NULL), "stepId");
        check_refused(&c, fixture_edit(&c, &e, "stepId", "\"\""), "stepId");
        check_accepted(&c, fixture_edit(&c, &e, "stepId", "\"a\""));
    }
    for (size_t i = 0; i < COUNT_OF(run_types); i++) {
        struct event e = fixture_event(run_types[i], "r", NULL, 1);
        check_refused(&c, fixture_edit(&c, &e, "stepId", "\"a\""), "stepId");
        check_accepted(&c, fixture_edit(&c, &e, "stepId", NULL));
    }
    fixture_close(&c);
}

/* RE-2.3-1: emittedAt is kept as sent, digit by digit. RE-2.3-2: persistedAt is the store's clock,
 * and cannot be sent. */
TEST_DB(run_events_two_clocks) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event e = fixture_event("RunStarted", "r", NULL, 1);
    c.now_us = FIXTURE_NOW_US + 123456;
    check_accepted(&c, fixture_edit(&c, &e, "emittedAt", "\"2026-02-16T07:00:00.10Z\""));
    struct event_record *rec = fixture_read(&c, "r").records;
    str text = fixture_record_text(&c, rec);
    CHECK(text_has(text, "\"emittedAt\":\"2026-02-16T07:00:00.10Z\""), "%.*s", STR_ARG(text));
    CHECK(text_has(text, "\"persistedAt\":\"2026-02-16T08:00:00.123456Z\""), "%.*s", STR_ARG(text));
    CHECK(text_is(fixture_text(&c, "SELECT \"emittedAt\" FROM run_events"),
                  "2026-02-16T07:00:00.10Z"));
    CHECK(text_is(fixture_text(&c, "SELECT \"persistedAt\" FROM run_events"),
                  "2026-02-16T08:00:00.123456Z"));
    struct event forged = fixture_event("RunPaused", "r", NULL, 1);
    check_refused(&c, fixture_edit(&c, &forged, "persistedAt", "\"2020-01-01T00:00:00Z\""),
                  "persistedAt");
    fixture_close(&c);
}

/* RE-2.3-3: a window over time is cut by persistedAt. The window is [08:00, 09:00). */
TEST_DB(run_events_windows_use_persisted_at) {
    const int64_t hour = INT64_C(3600) * 1000000;
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event early =
        fixture_event("RunQueued", "r", NULL, 1); /* emitted inside, stored before */
    c.now_us = FIXTURE_NOW_US - 1;
    fixture_put_event(&c, early);
    struct event inside = fixture_event("RunStarted", "r", NULL, 1); /* emitted long before it */
    inside.emitted_ns -= 48 * hour * 1000;
    c.now_us = FIXTURE_NOW_US;
    struct append_result got = fixture_put_event(&c, inside);
    c.now_us = FIXTURE_NOW_US + hour;
    fixture_put_event(&c,
                      fixture_event("RunPaused", "r", NULL, 1)); /* emitted inside, stored after */

    int64_t from = 0;
    int64_t to = 0;
    struct error err = {0};
    CHECK(ledger_seq_at(c.ledger, STR("acme"), FIXTURE_NOW_US, &from, &err) == ST_OK);
    CHECK(ledger_seq_at(c.ledger, STR("acme"), FIXTURE_NOW_US + hour, &to, &err) == ST_OK);
    CHECK(from == got.seq && to == got.seq + 1, "%lld to %lld", (long long)from, (long long)to);
    CHECK(text_is(fixture_text(&c,
                               "SELECT MIN(\"eventType\") || '-' || MAX(\"eventType\") FROM "
                               "run_events WHERE \"persistedAt\" >= '2026-02-16T08:00:00.000000Z' "
                               "AND \"persistedAt\" < '2026-02-16T09:00:00.000000Z'"),
                  "RunStarted-RunStarted"));
    fixture_close(&c);
}

/* RE-2.4-1: attempts count from 1: 0 is refused at the door, and no step begins with any attempt
 * but 1. */
TEST_DB(run_events_logical_attempts_count_from_one) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    struct event e = fixture_event("StepStarted", "r", "a", 1);
    check_refused(&c, fixture_edit(&c, &e, "logicalAttemptId", "0"), "logicalAttemptId");
    struct append_result second =
        fixture_append_event(&c, fixture_event("StepStarted", "r", "a", 2));
    CHECK(second.code == ST_CONFLICT && second.err->reason == REASON_INVALID_TRANSITION);
    fixture_put_event(&c, e);
    CHECK(text_is(fixture_step_state(&c, "r", "a"), "RUNNING"));
    fixture_close(&c);
}

/* RE-2.4-2: no record lacks engineAttemptId, whoever wrote it. */
TEST_DB(run_events_engine_attempt_is_in_every_record) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r",
                    "RunQueued,RunStarted,StepStarted a,StepFailed a,StepStarted a 2,RunPaused");
    struct append_result result;
    struct error err = {0};
    CHECK(ledger_checkpoint(c.ledger, STR("r"), &result, &c.arena, &err) == ST_OK, "%s", err.msg);
    fixture_program(&c, "r", "RunTeleported,StepCompleted a 2,RunResumed,RunCompleted");
    struct event_page page = fixture_read(&c, "r");
    CHECK(page.count == 11, "%zu", page.count);
    for (size_t i = 0; i < page.count; i++) {
        yyjson_val *rec = fixture_json(&c, fixture_record_text(&c, &page.records[i]));
        int64_t attempt = 0;
        CHECK(json_int(json_member(rec, "engineAttemptId"), &attempt) && attempt >= 1, "%zu", i);
    }
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events WHERE \"engineAttemptId\" >= 1") == 11);
    fixture_close(&c);
}

/* RE-2.6-1: the error, output or reason of an event is in its record's payload. */
TEST_DB(run_events_payload_holds_the_events_own_data) {
    static const struct {
        const char *type, *step, *payload;
    } cases[] = {
        {"RunStarted", NULL, NULL},
        {"StepStarted", "a", NULL},
        {"StepFailed", "a", "{\"error\":{\"code\":\"E_DISK\",\"message\":\"full\"}}"},
        {"StepSkipped", "b", "{\"reason\":\"not needed\"}"},
        {"RunPaused", NULL, "{\"reason\":\"lunch\"}"},
        {"RunResumed", NULL, "{\"reason\":\"back\"}"},
        {"StepStarted", "c", NULL},
        {"StepCompleted", "c", "{\"output\":{\"rows\":12}}"},
        {"RunCancelled", NULL, "{\"reason\":\"asked to\"}"},
    };
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        fixture_put_event(
            &c, fixture_event_with(cases[i].type, "r", cases[i].step, 1, cases[i].payload));
    fixture_reopen_as(&c, LEDGER_REJECT);
    struct event_page page = fixture_read(&c, "r");
    CHECK(page.count == COUNT_OF(cases));
    for (size_t i = 0; i < page.count; i++)
        CHECK(str_eq(page.records[i].event.payload, str_c(cases[i].payload)), "%s", cases[i].type);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events WHERE payload IS NOT NULL") == 6);
    fixture_close(&c);
}

/* RE-2.6-2: without data there is no payload, and no member of that name. */
TEST_DB(run_events_payload_may_be_absent) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event e = fixture_event("RunStarted", "r", NULL, 1);
    check_accepted(&c, fixture_edit(&c, &e, "payload", NULL));
    yyjson_val *rec = fixture_json(&c, fixture_record_text(&c, fixture_read(&c, "r").records));
    CHECK(json_member(rec, "payload") == NULL && json_member(rec, "eventId") != NULL);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events WHERE payload IS NULL") == 1);
    fixture_close(&c);
}
