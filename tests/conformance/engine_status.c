/* What the store says of a run: status, substatus, and what it waits for. On both databases. */
#include "base/json.h"
#include "base/time.h"
#include "conformance/engine_tools.h"
#include "conformance/fixture.h"
#include "view/view.h"

#define WAIT_PLAN PLAN(STEP("w", "wait", ",\"signal\":\"go\""))

static str json_of(struct bed *bed, const char *run_id) {
    struct run_snapshot s = snapshot(bed, run_id);
    struct buf b;
    buf_init(&b, 4096);
    view_write(&view_snapshot, &s, &b);
    str kept = arena_str(&bed->arena, buf_str(&b));
    buf_release(&b);
    return kept;
}

static yyjson_val *parsed(struct bed *bed, str text) {
    yyjson_val *root = NULL;
    struct error err = {0};
    struct json_limits limits = {65536, 8};
    CHECK(json_parse(text, limits, &bed->arena, &root, &err) == ST_OK, "%s", err.msg);
    return root;
}

static int64_t time_member(yyjson_val *root, const char *name) {
    str text = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    if (!json_str(json_member(root, name), &text)) return -1;
    CHECK(str_ends(text, STR("Z")) && time_parse_utc(text, &ns, &digits), "%.*s", STR_ARG(text));
    return ns;
}

/* WE-2.1-3: a running run: runId and RUNNING. WE-2.1.2-20: RUNNING after RunStarted.
 * WE-2.1.2-7: in every state the two required members are there, the others only when known.
 * WE-2.1.2-8: over all the states that can be reached, these seven words and no other appear.
 * WE-2.1.2-9: times are RFC 3339 in UTC, startedAt not after completedAt.
 * WE-2.1.2-10: completedAt appears when the status is terminal, and only then. */
TEST_DB(status_snapshot_of_every_state) {
    static const struct {
        const char *run_id, *json;
        bool started, final;
    } cases[] = {
        {"pending", "{\"runId\":\"pending\",\"status\":\"PENDING\"", false, false},
        {"asked", "{\"runId\":\"asked\",\"status\":\"PENDING\",\"substatus\":", false, false},
        {"approved", "{\"runId\":\"approved\",\"status\":\"APPROVED\"", false, false},
        {"running", "{\"runId\":\"running\",\"status\":\"RUNNING\",\"startedAt\":", true, false},
        {"paused", "{\"runId\":\"paused\",\"status\":\"PAUSED\",\"startedAt\":", true, false},
        {"done", "{\"runId\":\"done\",\"status\":\"COMPLETED\",\"startedAt\":", true, true},
        {"failed",
         "{\"runId\":\"failed\",\"status\":\"FAILED\",\"message\":\"step \\\"a\\\" "
         "failed\",\"startedAt\":",
         true, true},
        {"cancelled", "{\"runId\":\"cancelled\",\"status\":\"CANCELLED\",\"startedAt\":", true,
         true},
        {"refused", "{\"runId\":\"refused\",\"status\":\"CANCELLED\"", false, true}};
    struct bed bed;
    struct error err = {0};
    bed_init(&bed, url);
    bed.options.plan_active_max = 3;
    bed_open(&bed);
    CHECK(bed_run(&bed, PLAN(NOOP("a", "")), "done") == RUN_COMPLETED);
    CHECK(bed_run(&bed, PLAN(SH("a", "exit 1", "")), "failed") == RUN_FAILED);
    start(&bed, WAIT_PLAN, "cancelled");
    tell(&bed, "cancelled", "CANCEL", NULL);
    static const char *const to_approve[] = {"asked", "approved", "refused"};
    for (size_t i = 0; i < COUNT_OF(to_approve); i++) {
        struct start_request request = bed_request(&bed, WAIT_PLAN, to_approve[i]);
        request.approval = true;
        CHECK(bed_start(&bed, &request, &err) == ST_OK, "%s", err.msg);
    }
    tell(&bed, "refused", "REJECT", NULL);
    start(&bed, WAIT_PLAN, "running");
    start(&bed, PLAN(SH("a", "sleep 0.2", ""), NOOP("b", AFTER("a"))), "paused");
    tell(&bed, "paused", "PAUSE", NULL);
    until_rows(&bed, "paused", EVENT_STEP_COMPLETED, 1);
    start(&bed, WAIT_PLAN, "third");
    start(&bed, WAIT_PLAN, "pending");
    tell(&bed, "approved", "APPROVE", NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str text = json_of(&bed, cases[i].run_id);
        CHECK(str_starts(text, str_c(cases[i].json)), "%.*s", STR_ARG(text));
        yyjson_val *root = parsed(&bed, text);
        int64_t began = time_member(root, "startedAt");
        int64_t ended = time_member(root, "completedAt");
        CHECK((began >= 0) == cases[i].started && (ended >= 0) == cases[i].final, "%.*s",
              STR_ARG(text));
        if (cases[i].started && cases[i].final) CHECK(began <= ended);
    }
    struct run_snapshot none;
    CHECK(status_snapshot(host_reader(bed.host), STR("none"), &bed.arena, &none, &err) ==
          ST_NOT_FOUND);
    CHECK(err.reason == REASON_RUN_NOT_FOUND);
    bed_release(&bed);
}

/* WE-2.1.2-2: between a failed attempt and the next one: RETRYING, and not while the next one runs.
 */
TEST_DB(status_is_retrying_between_two_attempts) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          with_folder(
              &bed, PLAN(SH("a", "echo x >> %s/a; test $(wc -l < %s/a) -lt 2 && exit 1; sleep 0.5",
                            ",\"retry\":{\"maxAttempts\":2,\"initialMs\":400}"))),
          "r");
    until_rows(&bed, "r", EVENT_STEP_RETRIED, 1);
    CHECK(is(shown(&bed, "r"), "RUNNING/RETRYING"));
    struct explanation x = explained(&bed, "r");
    CHECK(x.count == 1 && x.waits[0].kind == WAIT_RETRY && is(x.waits[0].step, "a"));
    CHECK(is(x.waits[0].detail, "attempt 1 failed with EXIT_CODE"));
    int64_t left = x.waits[0].until_us - x.waits[0].since_us;
    CHECK(left > 200000 && left < 2000000, "%lld", (long long)left);
    until_rows(&bed, "r", EVENT_STEP_STARTED, 2);
    CHECK(is(shown(&bed, "r"), "RUNNING"));
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* WE-2.1.2-22: all steps SUCCESS or SKIPPED: COMPLETED; with one FAILED step left: never. */
TEST_DB(status_is_completed_only_without_failed_steps) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed, PLAN(NOOP("a", ""), NOOP("b", ",\"runIf\":\"false\"")), "good") ==
          RUN_COMPLETED);
    CHECK(is(shown(&bed, "good"), "COMPLETED"));
    CHECK(bed_run(&bed, PLAN(SH("a", "exit 1", ",\"onFailure\":\"continue\""), NOOP("b", "")),
                  "bad") == RUN_FAILED);
    CHECK(is(shown(&bed, "bad"), "FAILED"));
    bed_release(&bed);
}

/* A pause is shown before a retry, a retry before an approval. */
TEST_DB(status_shows_the_most_urgent_substatus) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(SH("bad", "exit 1", ",\"retry\":{\"maxAttempts\":2,\"initialMs\":600000}"),
               STEP("ask", "approval", "")),
          "r");
    until_rows(&bed, "r", EVENT_STEP_RETRIED, 1);
    CHECK(is(shown(&bed, "r"), "RUNNING/RETRYING"));
    tell(&bed, "r", "PAUSE", NULL);
    CHECK(is(shown(&bed, "r"), "PAUSED/DRAINING"));
    tell_step(&bed, "r", "APPROVE", "ask", NULL);
    CHECK(is(shown(&bed, "r"), "PAUSED/RETRYING"));
    bed_release(&bed);
}

/* ---- explanations ---- */

static const struct wait *only_wait(struct bed *bed, const char *run_id, enum wait_kind kind) {
    struct explanation x = explained(bed, run_id);
    CHECK(x.count == 1, "%s: %zu", run_id, x.count);
    CHECK(x.waits[0].kind == kind, "%s: %s", run_id, wait_kind_name(x.waits[0].kind));
    CHECK(x.alive && x.node.ptr, "%s", run_id);
    CHECK(x.waits[0].since_us > 0 && x.waits[0].since_us <= clock_wall_us());
    return x.waits;
}

TEST_DB(explain_says_what_a_run_waits_for) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("s", "sleep", ",\"durationMs\":600000")), "sleep");
    start(&bed, PLAN(STEP("w", "wait", ",\"signal\":\"go\",\"expiresInMs\":600000")), "wait");
    start(&bed, PLAN(STEP("a", "approval", ",\"expiresInMs\":600000")), "approval");
    start(&bed, PLAN(SH("e", "sleep 30", "")), "exec");
    start(&bed, PLAN(STEP("t", "task", ",\"queue\":\"mail\"")), "task");
    int64_t now = clock_wall_us();
    const struct wait *w = only_wait(&bed, "sleep", WAIT_TIMER);
    CHECK(w->until_us > now + 500000000 && w->until_us < now + 700000000);
    struct explanation x = explained(&bed, "sleep");
    CHECK(x.wakes && x.wake_us == w->until_us);
    w = only_wait(&bed, "wait", WAIT_SIGNAL);
    CHECK(is(w->on, "go") && w->until_us > now);
    w = only_wait(&bed, "approval", WAIT_APPROVAL);
    CHECK(is(w->step, "a") && w->until_us > now);
    w = only_wait(&bed, "exec", WAIT_EXECUTING);
    CHECK(is(w->step, "e") && is(w->detail, "attempt 1 of its exec") && w->on.ptr);
    x = explained(&bed, "exec");
    CHECK(x.wakes && x.wake_us == 0);
    w = only_wait(&bed, "task", WAIT_WORKER);
    CHECK(is(w->on, "mail") && is(w->detail, "no worker has taken it yet"));
    tell(&bed, "wait", "PAUSE", NULL);
    x = explained(&bed, "wait");
    CHECK(x.count == 2 && x.waits[0].kind == WAIT_PAUSED && x.waits[1].kind == WAIT_SIGNAL);
    tell(&bed, "wait", "CANCEL", NULL);
    x = explained(&bed, "wait");
    CHECK(x.count == 1 && x.waits[0].kind == WAIT_FINISHED && !x.node.ptr && !x.wakes);
    bed_release(&bed);
}

/* The reader is enough: no engine is open while these are asked. */
TEST_DB(explain_says_that_nobody_carries_it_out) {
    struct bed bed;
    struct explanation x;
    struct error err = {0};
    struct ledger *reader = NULL;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, with_folder(&bed, PLAN(SH("a", "sleep 30", ""))), "work");
    start(&bed, WAIT_PLAN, "wait");
    bed_close(&bed);
    CHECK(ledger_open_reader(url, &reader, &err) == ST_OK);
    CHECK(explain_run(reader, STR("work"), clock_wall_us(), &bed.arena, &x, &err) == ST_OK);
    CHECK(x.waits[0].kind == WAIT_NOBODY && x.node.ptr && !x.alive);
    CHECK(is(x.snapshot.substatus, "RECOVERING"));
    CHECK(explain_run(reader, STR("wait"), clock_wall_us(), &bed.arena, &x, &err) == ST_OK);
    CHECK(!x.snapshot.substatus.ptr);
    CHECK(explain_run(reader, STR("none"), 0, &bed.arena, &x, &err) == ST_NOT_FOUND);
    ledger_close(reader);
    bed_release(&bed);
}

/* An effect under way is told with its type, from the rows alone. */
TEST_DB(explain_says_that_a_run_waits_for_an_effect) {
    struct fixture c;
    struct explanation x;
    struct error err = {0};
    struct buf json;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_put_event(&c, fixture_event("RunStarted", "r", NULL, 1));
    fixture_put_event(
        &c, fixture_event_with("StepStarted", "r", "tell", 1,
                               "{\"stepType\":\"effect\",\"effectType\":\"EMAIL_SEND\"}"));
    CHECK(explain_run(c.ledger, STR("r"), c.now_us, &c.arena, &x, &err) == ST_OK, "%s", err.msg);
    CHECK(x.count == 2 && x.waits[0].kind == WAIT_NOBODY && x.waits[1].kind == WAIT_EFFECT);
    buf_init(&json, 4096);
    view_write(&view_explanation, &x, &json);
    CHECK(holds(buf_str(&json), "{\"kind\":\"effect\",\"stepId\":\"tell\",\"on\":\"EMAIL_SEND\","),
          "%.*s", STR_ARG(buf_str(&json)));
    CHECK(holds(buf_str(&json), "\"detail\":\"attempt 1 of its effect\"}]"));
    buf_release(&json);
    fixture_put_event(&c, fixture_event("StepCompleted", "r", "tell", 1));
    CHECK(explain_run(c.ledger, STR("r"), c.now_us, &c.arena, &x, &err) == ST_OK, "%s", err.msg);
    CHECK(x.count == 1 && x.waits[0].kind == WAIT_NOBODY);
    fixture_close(&c);
}

/* What a worker's steps left behind, for `cairn run steps`. */
TEST_DB(run_view_has_every_step_with_its_times) {
    struct bed bed;
    struct run_view v;
    struct error err = {0};
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN(SH("a", "sleep 0.1", ""), NOOP("b", ",\"runIf\":\"false\""),
                       SH("c", "exit 4", ",\"retry\":{\"maxAttempts\":2,\"initialMs\":1}")),
                  "r") == RUN_FAILED);
    CHECK(run_view_load(host_reader(bed.host), STR("r"), &bed.arena, &v, &err) == ST_OK);
    CHECK(v.run.step_count == 3 && is(v.end_code, "STEP_FAILED") && is(v.end_step, "c"));
    const struct step_view *a = &v.steps[run_step(&v.run, STR("a")) - v.run.steps];
    const struct step_view *b = &v.steps[run_step(&v.run, STR("b")) - v.run.steps];
    const struct step_view *c = &v.steps[run_step(&v.run, STR("c")) - v.run.steps];
    CHECK(a->state == STEP_SUCCESS && is(a->type, "exec") && a->attempt == 1);
    CHECK(a->ended_us - a->started_us >= 90000);
    CHECK(b->state == STEP_SKIPPED && is(b->type, "noop") && is(b->code, "CONDITION_FALSE") &&
          b->started_us == 0 && b->ended_us > 0);
    CHECK(c->state == STEP_FAILED && c->attempt == 2 && is(c->code, "EXIT_CODE") &&
          c->message.len > 0);
    CHECK(c->retried_us == 0);
    bed_release(&bed);
}
