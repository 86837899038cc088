/* Run Events 5.3 layer 3, policy A, and 5.4, alerts. */
#include "conformance/fixture.h"
#include "core/run_policy.h"
#include "view/view.h"

/* One invalid event of each kind, and the positions at which they stand. */
static const char each_kind[] =
    "RunPaused,RunStarted,RunQueued,RunApproved,RunResumed,StepCompleted d,"
    "StepStarted a,StepStarted a 2,StepSkipped a,StepCompleted a,StepFailed a,"
    "StepSkipped b,StepFailed b,StepStarted b,RunCompleted,RunFailed,RunCancelled,StepFailed c";
static const int64_t invalid_at[] = {1, 3, 4, 5, 6, 8, 9, 11, 13, 14, 16, 17, 18};

/* RE-5.3.3-1: every transition is checked, and each invalid one is found at its own runSeq. */
TEST_DB(run_events_projector_checks_every_transition) {
    struct fixture c;
    struct alert *alerts;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", each_kind);
    for (int round = 0; round < 2; round++) {
        size_t n = fixture_alerts(&c, "r", &alerts);
        CHECK(n == COUNT_OF(invalid_at), "%zu", n);
        for (size_t i = 0; i < n; i++)
            CHECK(alerts[n - 1 - i].run_seq == invalid_at[i], "%lld",
                  (long long)alerts[n - 1 - i].run_seq);
        int64_t runs = 0;
        struct error err = {0};
        CHECK(ledger_rebuild(c.ledger, NULL, NULL, &runs, &err) == ST_OK, "%s",
              err.msg); /* and by a projector
                           that starts anew */
    }
    CHECK(text_is(fixture_run_status(&c, "r"), "COMPLETED") &&
          fixture_run(&c, "r").head.invalid_events == 13);
    CHECK(text_is(fixture_step_state(&c, "r", "a"), "SUCCESS") &&
          text_is(fixture_step_state(&c, "r", "b"), "SKIPPED"));
    fixture_close(&c);
}

/* Exactly one alert is kept; RE-5.3.3-2, that somebody is told, is in outbox_life.c. */
TEST_DB(run_events_projector_raises_one_alert) {
    struct fixture c;
    struct alert *alerts;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunStarted");
    CHECK(fixture_alerts(&c, NULL, &alerts) == 0);
    fixture_program(&c, "r", "StepCompleted x");
    CHECK(fixture_alerts(&c, NULL, &alerts) == 1 && text_is(alerts[0].run_id, "r"));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM alerts") == 1);
    fixture_close(&c);
}

/* RE-5.3.3-3: with and without the invalid events, derived state is the same apart from the mark.
 */
TEST_DB(run_events_invalid_events_do_not_corrupt_state) {
    static const char *const steps[] = {"a", "b", "c", "d"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(
        &c, "clean",
        "RunStarted,StepStarted a,StepSkipped b,StepStarted c,StepFailed c,StepStarted c "
        "2,RunPaused");
    fixture_program(
        &c, "dirty",
        "RunStarted,RunResumed,StepStarted a,StepCompleted d,StepSkipped b,StepFailed "
        "b,StepStarted c,"
        "StepFailed c,StepStarted c 3,StepStarted c 2,StepSkipped a,RunQueued,RunPaused");
    CHECK(str_eq(fixture_run_status(&c, "clean"), fixture_run_status(&c, "dirty")));
    for (size_t i = 0; i < COUNT_OF(steps); i++)
        CHECK(str_eq(fixture_step_state(&c, "clean", steps[i]),
                     fixture_step_state(&c, "dirty", steps[i])),
              "%s", steps[i]);
    struct run_head clean = fixture_run(&c, "clean").head;
    struct run_head dirty = fixture_run(&c, "dirty").head;
    CHECK(clean.open_steps == dirty.open_steps && clean.bad_steps == dirty.bad_steps);
    CHECK(clean.total_steps == dirty.total_steps && clean.failed_steps == dirty.failed_steps);
    CHECK(clean.pauses == dirty.pauses && clean.resumes == dirty.resumes);
    CHECK(!clean.inconsistent && dirty.inconsistent && dirty.invalid_events == 6);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM steps WHERE run_id = 'clean'") ==
          fixture_int(&c, "SELECT COUNT(*) FROM steps WHERE run_id = 'dirty'"));
    fixture_close(&c);
}

static bool shows(struct fixture *c, const char *want_status, const char *want_mark) {
    str mark = fixture_text(c, "SELECT COALESCE(mark, '') FROM runs WHERE run_id = 'r'");
    return text_is(fixture_run_status(c, "r"), want_status) && text_is(mark, want_mark);
}

/* RE-5.3.3-5, RE-5.3.3-8: policy A. The final status stays, the mark is set and is no status, and
 * later valid events are applied; this test fails if any of the three changes. */
TEST_DB(run_events_policy_a_marks_and_goes_on) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunStarted,RunCompleted");
    CHECK(shows(&c, "COMPLETED", ""));
    fixture_program(&c, "r", "StepCompleted unseen");
    CHECK(shows(&c, "COMPLETED", "INCONSISTENT"));
    fixture_program(&c, "r", "StepStarted late,StepFailed late");
    CHECK(text_is(fixture_step_state(&c, "r", "late"), "FAILED"));
    CHECK(shows(&c, "COMPLETED", "INCONSISTENT"));
    struct run replayed = fixture_replay(&c, "r");
    CHECK(replayed.head.status == RUN_COMPLETED && replayed.head.inconsistent &&
          replayed.head.run_seq == 5);
    fixture_close(&c);
}

static str state_json(struct fixture *c, const struct run *run) {
    struct buf b;
    buf_init(&b, 65536);
    run_state_json(run, &b);
    str out = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return out;
}

/* RE-5.3.3-4: the documentation names policy A, and reducing an invalid stream twice does just
 * that, identically. */
TEST_DB(run_events_policy_is_documented_and_deterministic) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    CHECK(text_has(fixture_file(&c, CONTRACT_FILE),
                   "**Cairn** follows policy A, everywhere and always"));
    fixture_program(&c, "r", each_kind);
    str states[2];
    for (int i = 0; i < 2; i++) {
        struct run run = fixture_replay(&c, "r");
        states[i] = state_json(&c, &run);
        fixture_reopen_as(&c, LEDGER_RECORD);
    }
    CHECK(str_eq(states[0], states[1]) && text_has(states[0], "\"mark\":\"INCONSISTENT\""));
    CHECK(text_has(states[0], "\"runSeq\":18") && text_has(states[0], "\"status\":\"COMPLETED\""));
    fixture_close(&c);
}

/* RE-5.3.3-6: policy B over the stored stream, as a test alone can configure it: the state stays as
 * of the last valid runSeq, the mark is set, later events are not applied. The ledger itself
 * follows A over the same events, and the mark of B is nowhere in it. */
TEST_DB(run_events_policy_b_stops_the_run) {
    struct fixture c;
    struct run valid;
    struct error err = {0};
    struct reduction b = {.policy = RUN_POLICY_B};
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r",
                    "RunStarted,StepStarted a,StepCompleted unseen,StepCompleted a,RunCompleted");
    struct event_page page = fixture_read(&c, "r");
    CHECK(page.count == 5);
    for (size_t i = 0; i < page.count; i++) {
        struct transition bad;
        status st = reduction_apply(&b, &page.records[i], &c.arena, &bad, &err);
        CHECK(st == (i == 2 ? ST_CONFLICT : ST_OK), "event %zu: %s", i + 1, err.msg);
    }
    CHECK(ledger_replay(c.ledger, STR("r"), 2, false, &c.arena, &valid, NULL, &err) == ST_OK, "%s",
          err.msg);
    CHECK(b.run.head.status == RUN_RUNNING && b.run.head.run_seq == 2);
    CHECK(str_eq(state_json(&c, &b.run), state_json(&c, &valid)));
    CHECK(strcmp(reduction_mark(&b), "STALLED_INVALID_TRANSITION") == 0);
    CHECK(shows(&c, "COMPLETED", "INCONSISTENT") &&
          text_is(fixture_step_state(&c, "r", "a"), "SUCCESS"));
    fixture_close(&c);
}

/* RE-5.3.3-7: whatever can be configured (validation, clock, database, writer or reader), the
 * policy that shows is one. */
TEST_DB(run_events_policy_is_the_same_in_every_configuration) {
    static const enum ledger_validation settings[] = {LEDGER_RECORD, LEDGER_REJECT, LEDGER_RECORD};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunStarted,StepCompleted x");
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        fixture_reopen_as(&c, settings[i]);
        CHECK(shows(&c, "RUNNING", "INCONSISTENT"));
        fixture_put_event(
            &c, fixture_event("StepTeleported", "r", "x", (int64_t)i + 1)); /* reduction goes on */
        CHECK(fixture_run(&c, "r").head.run_seq == (int64_t)i + 3);
    }
    struct ledger *reader = NULL;
    struct error err = {0};
    struct run run;
    CHECK(ledger_open_reader(url, &reader, &err) == ST_OK, "%s", err.msg);
    CHECK(ledger_replay(reader, STR("r"), 0, false, &c.arena, &run, NULL, &err) == ST_OK, "%s",
          err.msg);
    CHECK(run.head.inconsistent && run.head.status == RUN_RUNNING && run.head.run_seq == 5);
    ledger_close(reader);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM runs WHERE mark NOT IN ('INCONSISTENT')") == 0);
    fixture_close(&c);
}

/* ---- alerts ---- */

static str text_of(yyjson_val *obj, const char *name) {
    str text;
    CHECK(json_str(json_member(obj, name), &text), "%s", name);
    return text;
}

/* RE-5.4-1 whose run, RE-5.4-2 which event, RE-5.4-3 prior and attempted state, RE-5.4-4 the code.
 */
TEST_DB(run_events_alert_members) {
    struct fixture c;
    struct alert *alerts;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunStarted");
    c.now_us += 1234567;
    struct append_result bad = fixture_put_event(&c, fixture_event("StepCompleted", "r", "x", 1));
    CHECK(fixture_alerts(&c, "r", &alerts) == 1);
    struct buf b;
    buf_init(&b, 4096);
    view_write(&view_alert, &alerts[0], &b);
    yyjson_val *alert = fixture_json(&c, buf_str(&b));
    const struct event *e = &fixture_read(&c, "r").records[1].event;
    CHECK(str_eq(text_of(alert, "runId"), e->run_id) &&
          str_eq(text_of(alert, "tenantId"), e->tenant_id));
    CHECK(str_eq(text_of(alert, "projectId"), e->project_id) &&
          str_eq(text_of(alert, "environmentId"), e->environment_id));
    CHECK(str_eq(text_of(alert, "eventId"), fixture_uuid_text(bad.event_id)) &&
          text_is(text_of(alert, "eventType"), "StepCompleted"));
    int64_t run_seq = 0;
    CHECK(json_int(json_member(alert, "runSeq"), &run_seq) && run_seq == 2);
    CHECK(str_eq(text_of(alert, "persistedAt"), fixture_time(&c, FIXTURE_NOW_US + 1234567)));
    CHECK(text_is(text_of(alert, "priorState"), "PENDING") &&
          text_is(text_of(alert, "attemptedState"), "SUCCESS"));
    CHECK(text_is(text_of(alert, "code"), "INVALID_TRANSITION"));
    buf_release(&b);
    fixture_close(&c);
}

/* The same in the SQL view, member by member. */
TEST_DB(run_events_alert_view_agrees) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunStarted,RunResumed");
    CHECK(text_is(
        fixture_text(
            &c,
            "SELECT code || ' ' || run_id || ' ' || tenant_id || ' ' || project_id || ' ' || "
            "environment_id"
            " || ' ' || event_type || ' ' || CAST(run_seq AS TEXT) || ' ' || persisted_at || ' ' ||"
            " prior_state || ' ' || attempted_state FROM alerts"),
        "INVALID_TRANSITION r acme shop prod RunResumed 2 2026-02-16T08:00:00.000000Z RUNNING "
        "RUNNING"));
    CHECK(str_eq(fixture_text(&c, "SELECT event_id FROM alerts"),
                 fixture_text(&c, "SELECT \"eventId\" FROM run_events WHERE \"runSeq\" = 2")));
    fixture_close(&c);
}

/* RE-5.4-5: reduced three times with a restart in between, and appended again: one alert for the
 * pair. */
TEST_DB(run_events_alerts_are_idempotent) {
    struct fixture c;
    struct alert *alerts;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunStarted");
    struct event bad = fixture_event("StepCompleted", "r", "x", 1);
    fixture_put_event(&c, bad);
    for (int i = 0; i < 3; i++) {
        struct error err = {0};
        int64_t runs = 0;
        CHECK(ledger_rebuild(c.ledger, NULL, NULL, &runs, &err) == ST_OK, "%s", err.msg);
        fixture_again(&c, bad);
        if (i == 1) fixture_reopen_as(&c, LEDGER_RECORD);
        CHECK(fixture_alerts(&c, "r", &alerts) == 1 && uuid_eq(alerts[0].event_id, bad.event_id),
              "round %d", i);
    }
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM state_alert") == 1);
    fixture_close(&c);
}
