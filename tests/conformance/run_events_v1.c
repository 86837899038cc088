/* Version 1 events inside a bounded window, and after it. */
#include "conformance/fixture.h"
#include "core/event_v1.h"

#include "base/time.h"

static const char *const program[][3] = {{"RunStarted", NULL, "1"},   {"StepStarted", "a", "1"},
                                         {"StepFailed", "a", "1"},    {"StepStarted", "a", "2"},
                                         {"StepCompleted", "a", "2"}, {"RunCompleted", NULL, "1"}};

/* The event as a version 1 producer wrote it: no eventId, occurredAt, the number of another store,
 * a key without the plan. */
static str as_v1(struct fixture *c, const struct event *e) {
    struct buf b;
    buf_init(&b, 4096);
    buf_printf(
        &b,
        "{\"eventType\":\"%.*s\",\"occurredAt\":\"2026-01-31T23:59:59Z\",\"runId\":\"%.*s\","
        "\"tenantId\":\"acme\","
        "\"projectId\":\"shop\",\"environmentId\":\"prod\",\"planId\":\"orders\",\"planVersion\":"
        "\"7\",\"runSeq\":99,"
        "\"engineAttemptId\":1,\"logicalAttemptId\":%lld,\"idempotencyKey\":\"of version 1\"",
        STR_ARG(e->type_name), STR_ARG(e->run_id), (long long)e->logical_attempt);
    if (e->subject.ptr) buf_printf(&b, ",\"stepId\":\"%.*s\"", STR_ARG(e->subject));
    buf_put_char(&b, '}');
    str text = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return text;
}

static struct event_v1_window window_until(const char *text) {
    struct event_v1_window w = {.fresh_id = uuid_v4()};
    int digits = 0;
    CHECK(time_parse_utc(str_c(text), &w.until_ns, &digits));
    return w;
}

/* Appends the program; odd events are v1-shaped when `mixed`. */
static void put_program(struct fixture *c, const char *run, bool mixed) {
    for (size_t i = 0; i < COUNT_OF(program); i++) {
        struct event e = fixture_event(program[i][0], run, program[i][1], program[i][2][0] - '0');
        if (mixed && i % 2 == 1) {
            struct event_v1_window window = window_until("2026-02-01T00:00:00Z");
            struct error err = {0};
            struct event normal;
            CHECK(event_parse_any(as_v1(c, &e), &window, &c->arena, &normal, &err) == ST_OK, "%s",
                  err.msg);
            CHECK(memcmp(normal.key, e.key, SHA256_LEN) == 0,
                  "event %zu has another key than its version 2 form", i);
            e = normal;
        }
        fixture_put_event(c, e);
        c->now_us += 1000;
    }
}

static str state_of(struct fixture *c, const char *run) {
    struct run state = fixture_replay(c, run);
    struct buf b;
    buf_init(&b, 65536);
    run_state_json(&state, &b);
    str text = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return text;
}

/* RE-A.2-1: inside the window a mixed stream reduces to the state of the all-v2 stream; outside it
 * is refused with a reason. */
TEST_DB(run_events_v1_is_normalised_before_reduction) {
    struct fixture pure;
    struct fixture mixed;
    fixture_open_as(&pure, url, LEDGER_REJECT);
    fixture_open_as(&mixed, fixture_other_url(url), LEDGER_REJECT);
    put_program(&pure, "run", false);
    put_program(&mixed, "run", true);
    CHECK(str_eq(state_of(&pure, "run"), state_of(&mixed, "run")), "%.*s",
          STR_ARG(state_of(&mixed, "run")));
    CHECK(text_is(fixture_run_status(&mixed, "run"), "COMPLETED"));

    int64_t before = fixture_event_count(&mixed);
    struct event late = fixture_event("StepStarted", "run", "b", 1);
    struct event_v1_window closed =
        window_until("2026-01-31T23:59:59Z"); /* ends where the event stands */
    struct error err = {0};
    struct event out;
    CHECK(event_parse_any(as_v1(&mixed, &late), &closed, &mixed.arena, &out, &err) == ST_INVALID);
    CHECK(err.reason == REASON_V1_WINDOW_CLOSED && fixture_event_count(&mixed) == before, "%s",
          reason_name(err.reason));
    fixture_close(&mixed);
    fixture_close(&pure);
}
