/* Run Events 5.3 layer 3, policy A, and 5.4, alerts. */
#include "conformance/helper.h"
#include "core/run_policy.h"

/* One invalid event of each kind, and the positions at which they stand. */
static const char each_kind[] =
    "RunPaused,RunStarted,RunQueued,RunApproved,RunResumed,StepCompleted d,"
    "StepStarted a,StepStarted a 2,StepSkipped a,StepCompleted a,StepFailed a,"
    "StepSkipped b,StepFailed b,StepStarted b,RunCompleted,RunFailed,RunCancelled,StepFailed c";
static const int64_t invalid_at[] = {1, 3, 4, 5, 6, 8, 9, 11, 13, 14, 16, 17, 18};

/* RE-5.3.3-1: every transition is checked, and each invalid one is found at its own runSeq. */
TEST_DB(run_events_projector_checks_every_transition) {
    struct conf c;
    struct alert *alerts;
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "r", each_kind);
    for (int round = 0; round < 2; round++) {
        size_t n = conf_alerts(&c, "r", &alerts);
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
    CHECK(conf_is(conf_status(&c, "r"), "COMPLETED") &&
          conf_run(&c, "r").head.invalid_events == 13);
    CHECK(conf_is(conf_step(&c, "r", "a"), "SUCCESS") &&
          conf_is(conf_step(&c, "r", "b"), "SKIPPED"));
    conf_close(&c);
}

/* RE-5.3.3-2: exactly one alert. */
TEST_DB(run_events_projector_raises_one_alert) {
    struct conf c;
    struct alert *alerts;
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "r", "RunStarted");
    CHECK(conf_alerts(&c, NULL, &alerts) == 0);
    conf_program(&c, "r", "StepCompleted x");
    CHECK(conf_alerts(&c, NULL, &alerts) == 1 && conf_is(alerts[0].run_id, "r"));
    CHECK(conf_int(&c, "SELECT COUNT(*) FROM alerts") == 1);
    conf_close(&c);
}

/* RE-5.3.3-3: with and without the invalid events, derived state is the same apart from the mark.
 */
TEST_DB(run_events_invalid_events_do_not_corrupt_state) {
    static const char *const steps[] = {"a", "b", "c", "d"};
    struct conf c;
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "clean",
                 "RunStarted,StepStarted a,StepSkipped b,StepStarted c,StepFailed c,StepStarted c "
                 "2,RunPaused");
    conf_program(&c, "dirty",
                 "RunStarted,RunResumed,StepStarted a,StepCompleted d,StepSkipped b,StepFailed "
                 "b,StepStarted c,"
                 "StepFailed c,StepStarted c 3,StepStarted c 2,StepSkipped a,RunQueued,RunPaused");
    CHECK(str_eq(conf_status(&c, "clean"), conf_status(&c, "dirty")));
    for (size_t i = 0; i < COUNT_OF(steps); i++)
        CHECK(str_eq(conf_step(&c, "clean", steps[i]), conf_step(&c, "dirty", steps[i])), "%s",
              steps[i]);
    struct run_head clean = conf_run(&c, "clean").head;
    struct run_head dirty = conf_run(&c, "dirty").head;
    CHECK(clean.open_steps == dirty.open_steps && clean.bad_steps == dirty.bad_steps);
    CHECK(clean.total_steps == dirty.total_steps && clean.failed_steps == dirty.failed_steps);
    CHECK(clean.pauses == dirty.pauses && clean.resumes == dirty.resumes);
    CHECK(!clean.inconsistent && dirty.inconsistent && dirty.invalid_events == 6);
    CHECK(conf_int(&c, "SELECT COUNT(*) FROM steps WHERE run_id = 'clean'") ==
          conf_int(&c, "SELECT COUNT(*) FROM steps WHERE run_id = 'dirty'"));
    conf_close(&c);
}

static bool shows(struct conf *c, const char *want_status, const char *want_mark) {
    str mark = conf_text(c, "SELECT COALESCE(mark, '') FROM runs WHERE run_id = 'r'");
    return conf_is(conf_status(c, "r"), want_status) && conf_is(mark, want_mark);
}

/* RE-5.3.3-5, RE-5.3.3-8: policy A. The final status stays, the mark is set and is no status, and
 * later valid events are applied; this test fails if any of the three changes. */
TEST_DB(run_events_policy_a_marks_and_goes_on) {
    struct conf c;
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "r", "RunStarted,RunCompleted");
    CHECK(shows(&c, "COMPLETED", ""));
    conf_program(&c, "r", "StepCompleted unseen");
    CHECK(shows(&c, "COMPLETED", "INCONSISTENT"));
    conf_program(&c, "r", "StepStarted late,StepFailed late");
    CHECK(conf_is(conf_step(&c, "r", "late"), "FAILED"));
    CHECK(shows(&c, "COMPLETED", "INCONSISTENT"));
    struct run replayed = conf_replay(&c, "r");
    CHECK(replayed.head.status == RUN_COMPLETED && replayed.head.inconsistent &&
          replayed.head.run_seq == 5);
    conf_close(&c);
}

static str state_json(struct conf *c, const struct run *run) {
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
    struct conf c;
    conf_open(&c, url, LEDGER_RECORD);
    CHECK(conf_has(conf_file(&c, CONF_CONTRACT),
                   "**Cairn** follows policy A, everywhere and always"));
    conf_program(&c, "r", each_kind);
    str states[2];
    for (int i = 0; i < 2; i++) {
        struct run run = conf_replay(&c, "r");
        states[i] = state_json(&c, &run);
        conf_reopen(&c, LEDGER_RECORD);
    }
    CHECK(str_eq(states[0], states[1]) && conf_has(states[0], "\"mark\":\"INCONSISTENT\""));
    CHECK(conf_has(states[0], "\"runSeq\":18") && conf_has(states[0], "\"status\":\"COMPLETED\""));
    conf_close(&c);
}

/* RE-5.3.3-6: policy B over the stored stream, as a test alone can configure it: the state stays as
 * of the last valid runSeq, the mark is set, later events are not applied. The ledger itself
 * follows A over the same events, and the mark of B is nowhere in it. */
TEST_DB(run_events_policy_b_stops_the_run) {
    struct conf c;
    struct run valid;
    struct error err = {0};
    struct reduction b = {.policy = RUN_POLICY_B};
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "r",
                 "RunStarted,StepStarted a,StepCompleted unseen,StepCompleted a,RunCompleted");
    struct event_page page = conf_read(&c, "r");
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
    CHECK(shows(&c, "COMPLETED", "INCONSISTENT") && conf_is(conf_step(&c, "r", "a"), "SUCCESS"));
    conf_close(&c);
}

/* RE-5.3.3-7: whatever can be configured (validation, clock, database, writer or reader), the
 * policy that shows is one. */
TEST_DB(run_events_policy_is_the_same_in_every_configuration) {
    static const enum ledger_validation settings[] = {LEDGER_RECORD, LEDGER_REJECT, LEDGER_RECORD};
    struct conf c;
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "r", "RunStarted,StepCompleted x");
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        conf_reopen(&c, settings[i]);
        CHECK(shows(&c, "RUNNING", "INCONSISTENT"));
        conf_put(&c,
                 conf_event("StepTeleported", "r", "x", (int64_t)i + 1)); /* reduction goes on */
        CHECK(conf_run(&c, "r").head.run_seq == (int64_t)i + 3);
    }
    struct ledger *reader = NULL;
    struct error err = {0};
    struct run run;
    CHECK(ledger_open_reader(url, &reader, &err) == ST_OK, "%s", err.msg);
    CHECK(ledger_replay(reader, STR("r"), 0, false, &c.arena, &run, NULL, &err) == ST_OK, "%s",
          err.msg);
    CHECK(run.head.inconsistent && run.head.status == RUN_RUNNING && run.head.run_seq == 5);
    ledger_close(reader);
    CHECK(conf_int(&c, "SELECT COUNT(*) FROM runs WHERE mark NOT IN ('INCONSISTENT')") == 0);
    conf_close(&c);
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
    struct conf c;
    struct alert *alerts;
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "r", "RunStarted");
    c.now_us += 1234567;
    struct append_result bad = conf_put(&c, conf_event("StepCompleted", "r", "x", 1));
    CHECK(conf_alerts(&c, "r", &alerts) == 1);
    struct buf b;
    buf_init(&b, 4096);
    alert_json(&alerts[0], &b);
    yyjson_val *alert = conf_json(&c, buf_str(&b));
    const struct event *e = &conf_read(&c, "r").records[1].event;
    CHECK(str_eq(text_of(alert, "runId"), e->run_id) &&
          str_eq(text_of(alert, "tenantId"), e->tenant_id));
    CHECK(str_eq(text_of(alert, "projectId"), e->project_id) &&
          str_eq(text_of(alert, "environmentId"), e->environment_id));
    CHECK(str_eq(text_of(alert, "eventId"), conf_id(&c, bad.event_id)) &&
          conf_is(text_of(alert, "eventType"), "StepCompleted"));
    int64_t run_seq = 0;
    CHECK(json_int(json_member(alert, "runSeq"), &run_seq) && run_seq == 2);
    CHECK(str_eq(text_of(alert, "persistedAt"), conf_us(&c, CONF_NOW_US + 1234567)));
    CHECK(conf_is(text_of(alert, "priorState"), "PENDING") &&
          conf_is(text_of(alert, "attemptedState"), "SUCCESS"));
    CHECK(conf_is(text_of(alert, "code"), "INVALID_TRANSITION"));
    buf_release(&b);
    conf_close(&c);
}

/* The same in the SQL view, member by member. */
TEST_DB(run_events_alert_view_agrees) {
    struct conf c;
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "r", "RunStarted,RunResumed");
    CHECK(conf_is(
        conf_text(
            &c,
            "SELECT code || ' ' || run_id || ' ' || tenant_id || ' ' || project_id || ' ' || "
            "environment_id"
            " || ' ' || event_type || ' ' || CAST(run_seq AS TEXT) || ' ' || persisted_at || ' ' ||"
            " prior_state || ' ' || attempted_state FROM alerts"),
        "INVALID_TRANSITION r acme shop prod RunResumed 2 2026-02-16T08:00:00.000000Z RUNNING "
        "RUNNING"));
    CHECK(str_eq(conf_text(&c, "SELECT event_id FROM alerts"),
                 conf_text(&c, "SELECT \"eventId\" FROM run_events WHERE \"runSeq\" = 2")));
    conf_close(&c);
}

/* RE-5.4-5: reduced three times with a restart in between, and appended again: one alert for the
 * pair. */
TEST_DB(run_events_alerts_are_idempotent) {
    struct conf c;
    struct alert *alerts;
    conf_open(&c, url, LEDGER_RECORD);
    conf_program(&c, "r", "RunStarted");
    struct event bad = conf_event("StepCompleted", "r", "x", 1);
    conf_put(&c, bad);
    for (int i = 0; i < 3; i++) {
        struct error err = {0};
        int64_t runs = 0;
        CHECK(ledger_rebuild(c.ledger, NULL, NULL, &runs, &err) == ST_OK, "%s", err.msg);
        conf_again(&c, bad);
        if (i == 1) conf_reopen(&c, LEDGER_RECORD);
        CHECK(conf_alerts(&c, "r", &alerts) == 1 && uuid_eq(alerts[0].event_id, bad.event_id),
              "round %d", i);
    }
    CHECK(conf_int(&c, "SELECT COUNT(*) FROM state_alert") == 1);
    conf_close(&c);
}
