/* Run Events 5.1, 5.2 and 5.3, layers and append-time validation. State is asked from the SQL
 * views, so each line goes through parser, ledger, reducer and projection. */
#include "conformance/fixture.h"

/* Whether the newest record of the run was found illegal. */
static bool last_was_invalid(struct fixture *c, const char *run) {
    struct alert *alerts;
    size_t n = fixture_alerts(c, run, &alerts);
    return n > 0 && alerts[0].run_seq == fixture_run(c, run).head.run_seq;
}

/* RE-5.1-1 RunStarted, RE-5.1-2 RunPaused, RE-5.1-3 RunResumed, RE-5.1-4 RunCompleted, RE-5.1-5
 * RunFailed, RE-5.1-6 RunCancelled, RE-5.1-7 RunQueued: the status after a program, and whether its
 * last event was legal. */
TEST_DB(run_events_run_level_mapping) {
    static const struct {
        const char *run, *program, *status;
        bool invalid;
    } cases[] = {
        {"a1", "RunStarted", "RUNNING", false},
        {"a2", "RunQueued,RunStarted", "RUNNING", false},
        {"b", "RunStarted,RunPaused", "PAUSED", false},
        {"c", "RunStarted,RunPaused,RunResumed", "RUNNING", false},
        {"d", "RunStarted,RunCompleted", "COMPLETED", false},
        {"e", "RunStarted,RunFailed", "FAILED", false},
        {"f1", "RunStarted,RunCancelled", "CANCELLED", false},
        {"f2", "RunStarted,RunPaused,RunCancelled", "CANCELLED", false},
        {"g1", "RunQueued", "PENDING", false},
        {"g2", "RunStarted,RunQueued", "RUNNING", true},
    };
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fixture_program(&c, cases[i].run, cases[i].program);
        str now = fixture_run_status(&c, cases[i].run);
        CHECK(text_is(now, cases[i].status), "%s: %.*s", cases[i].program, STR_ARG(now));
        CHECK(last_was_invalid(&c, cases[i].run) == cases[i].invalid, "%s", cases[i].program);
        CHECK(fixture_run(&c, cases[i].run).head.inconsistent == cases[i].invalid, "%s",
              cases[i].program);
    }
    fixture_close(&c);
}

/* RE-5.2-1 StepStarted, RE-5.2-2 StepCompleted, RE-5.2-3 StepFailed, RE-5.2-4 StepSkipped: the
 * step's state after a program, "" for none, and whether its last event was legal. The second
 * StepStarted of one attempt has another key through the plan's version. */
TEST_DB(run_events_step_level_mapping) {
    static const struct {
        const char *run, *program, *state;
        bool invalid;
    } cases[] = {
        {"s1", "StepStarted x", "RUNNING", false},
        {"c1", "StepStarted x,StepCompleted x", "SUCCESS", false},
        {"c2", "StepCompleted x", "", true},
        {"c3", "StepStarted x,StepFailed x,StepCompleted x", "FAILED", true},
        {"c4", "StepSkipped x,StepCompleted x", "SKIPPED", true},
        {"f1", "StepStarted x,StepFailed x", "FAILED", false},
        {"f2", "StepFailed x", "", true},
        {"f3", "StepStarted x,StepCompleted x,StepFailed x", "SUCCESS", true},
        {"f4", "StepSkipped x,StepFailed x", "SKIPPED", true},
        {"k1", "StepSkipped x", "SKIPPED", false},
        {"k2", "StepStarted x,StepSkipped x", "RUNNING", true},
        {"k3", "StepStarted x,StepCompleted x,StepSkipped x", "SUCCESS", true},
        {"k4", "StepStarted x,StepFailed x,StepSkipped x", "FAILED", true},
    };
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fixture_program(&c, cases[i].run, cases[i].program);
        str now = fixture_step_state(&c, cases[i].run, "x");
        CHECK(text_is(now, cases[i].state), "%s: %.*s", cases[i].program, STR_ARG(now));
        CHECK(last_was_invalid(&c, cases[i].run) == cases[i].invalid, "%s", cases[i].program);
    }
    fixture_program(&c, "s2", "StepStarted x");
    struct event other = fixture_event("StepStarted", "s2", "x", 1);
    other.plan_version = STR("8");
    event_key_derive(&other, other.key);
    fixture_put_event(&c, other);
    CHECK(last_was_invalid(&c, "s2") && text_is(fixture_step_state(&c, "s2", "x"), "RUNNING"));
    fixture_close(&c);
}

/* ---- the three layers ---- */

static struct event bad_completion(void) { return fixture_event("StepCompleted", "r", "x", 1); }

static bool guard_refuses(struct fixture *c, const struct event *e) {
    struct run believed = fixture_replay(c, "r");
    struct refusal why;
    return !run_guard(&believed, e, &why);
}

static bool append_refuses(struct fixture *c, struct event e) {
    struct append_result result = fixture_append_event(c, e);
    return result.code == ST_CONFLICT && result.err->reason == REASON_INVALID_TRANSITION;
}

/* RE-5.3-1: three layers, each with its own eyes. Off means: the guard is not asked; the ledger
 * records instead of rejecting; no event reaches the projector. */
TEST_DB(run_events_each_layer_stands_by_itself) {
    struct fixture c;
    struct alert *alerts;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    struct event e = bad_completion();
    CHECK(append_refuses(&c, e), "layer 1 off: layer 2 refuses");
    CHECK(fixture_alerts(&c, "r", &alerts) == 0, "nothing reached layer 3, and");
    CHECK(guard_refuses(&c, &e), "layer 1 refuses");
    fixture_reopen_as(&c, LEDGER_RECORD);
    CHECK(guard_refuses(&c, &e), "layer 2 off: layer 1 refuses");
    fixture_put_event(&c, e); /* layers 1 and 2 off */
    CHECK(fixture_alerts(&c, "r", &alerts) == 1, "layer 3 alerts");
    fixture_program(&c, "r", "StepStarted y"); /* the guard's own rules: layer 3 has no such row */
    struct event completed = fixture_event("RunCompleted", "r", NULL, 1);
    CHECK(guard_refuses(&c, &completed));
    fixture_close(&c);
}

/* RE-5.3-2: with layers 1 and 2 off the projector alone flags it. */
TEST_DB(run_events_projector_alone_flags_an_invalid_event) {
    struct fixture c;
    struct alert *alerts;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunStarted,StepCompleted x");
    CHECK(fixture_alerts(&c, "r", &alerts) == 1 && text_is(alerts[0].event_type, "StepCompleted"));
    CHECK(fixture_run(&c, "r").head.inconsistent &&
          text_is(fixture_run_status(&c, "r"), "RUNNING"));
    fixture_close(&c);
}

/* RE-5.3.2-1: the ledger works with validation and without. */
TEST_DB(run_events_append_validation_is_a_setting) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted,StepStarted x");
    CHECK(append_refuses(&c, fixture_event("RunResumed", "r", NULL, 1)));
    fixture_reopen_as(&c, LEDGER_RECORD);
    fixture_program(&c, "r", "RunResumed,StepCompleted x");
    fixture_reopen_as(&c, LEDGER_REJECT);
    fixture_program(&c, "r", "RunCompleted");
    CHECK(text_is(fixture_run_status(&c, "r"), "COMPLETED") && fixture_read(&c, "r").count == 5);
    fixture_close(&c);
}

/* RE-5.3.2-2: what got past layer 2 is still found by layer 3, also by a projector that starts from
 * nothing. */
TEST_DB(run_events_append_validation_is_not_alone) {
    struct fixture c;
    struct alert *alerts;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunStarted,StepCompleted x");
    fixture_reopen_as(&c, LEDGER_REJECT);
    struct error err = {0};
    int64_t runs = 0;
    CHECK(ledger_rebuild(c.ledger, NULL, NULL, &runs, &err) == ST_OK && runs == 1, "%s", err.msg);
    CHECK(fixture_alerts(&c, "r", &alerts) == 1 && alerts[0].run_seq == 2);
    CHECK(fixture_run(&c, "r").head.inconsistent);
    fixture_close(&c);
}

/* RE-5.3.2-3: no record. RE-5.3.2-4: the same rejection, byte for byte, in another fresh store. */
TEST_DB(run_events_rejections_are_deterministic) {
    struct event steps = bad_completion();
    struct event runs = fixture_event("RunResumed", "r", NULL, 1);
    struct error seen[2][2];
    for (int i = 0; i < 2; i++) {
        struct fixture c;
        fixture_open_as(&c, i == 0 ? url : fixture_other_url(url), LEDGER_REJECT);
        c.now_us += INT64_C(1000) * i;
        if (i == 1) fixture_program(&c, "another", "RunStarted,StepStarted x");
        fixture_program(&c, "r", "RunStarted");
        int64_t before = fixture_event_count(&c);
        struct append_result step = fixture_append_event(&c, steps);
        struct append_result run = fixture_append_event(&c, runs);
        CHECK(step.code == ST_CONFLICT && run.code == ST_CONFLICT &&
              fixture_event_count(&c) == before);
        seen[i][0] = *step.err;
        seen[i][1] = *run.err;
        fixture_close(&c);
    }
    for (int k = 0; k < 2; k++) {
        CHECK(seen[0][k].reason == REASON_INVALID_TRANSITION &&
              seen[1][k].reason == REASON_INVALID_TRANSITION);
        CHECK(seen[0][k].code == seen[1][k].code &&
              strcmp(seen[0][k].where, seen[1][k].where) == 0);
        CHECK(strcmp(seen[0][k].msg, seen[1][k].msg) == 0, "%s / %s", seen[0][k].msg,
              seen[1][k].msg);
    }
}

/* RE-5.3.2-5: a repeated rejection is a rejection, never a duplicate. RE-5.3.2-6: ten times the
 * same one, also after restarts and whatever the run has become (T17). RE-5.3.2-7: and no record
 * for its key. */
TEST_DB(run_events_rejections_repeat_verbatim) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    struct event e = fixture_event("RunResumed", "r", NULL, 1);
    struct error first = {0};
    for (int i = 0; i < 10; i++) {
        if (i == 3) fixture_reopen_as(&c, LEDGER_REJECT);
        if (i == 5)
            fixture_program(&c, "r",
                            "StepStarted x,RunCancelled"); /* illegal still, for another reason */
        if (i == 7) fixture_reopen_as(&c, LEDGER_REJECT);
        if (i > 7) e = fixture_event("RunResumed", "r", NULL, 1); /* with a new eventId */
        struct append_result result = fixture_append_event(&c, e);
        CHECK(result.code == ST_CONFLICT && !result.duplicate && result.run_seq == 0, "time %d",
              i + 1);
        if (i == 0) first = *result.err;
        CHECK(result.err->reason == REASON_INVALID_TRANSITION &&
              strcmp(result.err->where, first.where) == 0);
        CHECK(strcmp(result.err->msg, first.msg) == 0, "time %d: %s / %s", i + 1, result.err->msg,
              first.msg);
    }
    struct event_page page = fixture_read(&c, "r");
    for (size_t i = 0; i < page.count; i++)
        CHECK(memcmp(page.records[i].event.key, e.key, sizeof e.key) != 0);
    CHECK(page.count == 3 && strstr(first.msg, "the run is RUNNING") != NULL, "%s", first.msg);
    fixture_close(&c);
}

/* T17: once the transition has become legal the very same event is accepted, and then it is a
 * duplicate. */
TEST_DB(run_events_rejection_ends_when_the_event_becomes_legal) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    struct event e = bad_completion();
    CHECK(append_refuses(&c, e) && append_refuses(&c, e));
    fixture_program(&c, "r", "StepStarted x");
    fixture_put_event(&c, e);
    fixture_again(&c, e);
    CHECK(text_is(fixture_step_state(&c, "r", "x"), "SUCCESS"));
    fixture_close(&c);
}

/* RE-5.3.2-8: a stored event is a duplicate even when its transition would not be legal now. */
TEST_DB(run_events_duplicates_come_before_validation) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    struct event start = fixture_event("StepStarted", "r", "x", 1);
    struct append_result first = fixture_put_event(&c, start);
    fixture_program(&c, "r", "StepCompleted x");
    struct append_result again = fixture_again(&c, start);
    CHECK(uuid_eq(again.event_id, first.event_id) && again.run_seq == first.run_seq);
    CHECK(again.persisted_us == first.persisted_us && fixture_read(&c, "r").count == 3);
    fixture_close(&c);
}
