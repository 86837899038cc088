/* What operators and outside systems tell a run: pause, resume, cancel, retry, approve, named
 * signals. On both databases. */
#include <errno.h>
#include <signal.h>

#include "base/os.h"
#include "base/time.h"
#include "conformance/engine_tools.h"

/* ---- pause and resume ---- */

/* WE-1-5: PAUSE then RESUME: RunPaused, RunResumed, and the remaining steps run.
 * WE-2.1.2-14: with two steps ready none starts until the run is resumed.
 * The step in flight ends with StepCompleted while the run is PAUSED (on Conductor:
 * provider_conductor.c).
 * WE-2.1.2-16: asked again and again until that step's end the answer is DRAINING each time, and
 * not afterwards. WE-2.1.2-21: paused by an operator's signal: PAUSED. */
TEST_DB(engine_pause_drains_and_resume_goes_on) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(SH("a", "sleep 0.8", ""), NOOP("b", AFTER("a")), NOOP("c", AFTER("a"))), "r");
    CHECK(is(shown(&bed, "r"), "RUNNING"));
    tell(&bed, "r", "PAUSE", "one");
    size_t asked = 0;
    for (;; asked++) {
        str now = shown(&bed, "r");
        if (!is(now, "PAUSED/DRAINING")) break;
        bed_turn(&bed, 10);
    }
    CHECK(asked > 2, "%zu", asked);
    CHECK(is(shown(&bed, "r"), "PAUSED"));
    (void)find_row(&bed, "r", EVENT_STEP_COMPLETED, "a", 0);
    bed_turn(&bed, 200);
    check_history(&bed, "r", "RunStarted a:StepStarted#1 RunPaused a:StepCompleted#1");
    tell(&bed, "r", "RESUME", "two");
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    check_history(
        &bed, "r",
        "RunStarted a:StepStarted#1 RunPaused a:StepCompleted#1 RunResumed b:StepStarted#1 "
        "b:StepCompleted#1 c:StepStarted#1 c:StepCompleted#1 RunCompleted");
    bed_release(&bed);
}

/* The n-th pause is the n-th occurrence of the event, so that none is taken for the first. */
TEST_DB(engine_can_be_paused_more_than_once) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("a", "wait", ",\"signal\":\"go\"")), "r");
    for (int64_t i = 1; i <= 3; i++) {
        tell(&bed, "r", "PAUSE", NULL);
        CHECK(bed_status(&bed, "r") == RUN_PAUSED);
        tell(&bed, "r", "RESUME", NULL);
        CHECK(bed_status(&bed, "r") == RUN_RUNNING);
        const struct event_record *p = find_row(&bed, "r", EVENT_RUN_PAUSED, NULL, (size_t)i - 1);
        CHECK(p->event.logical_attempt == i);
        CHECK(is(p->actor, "operator"));
        p = find_row(&bed, "r", EVENT_RUN_RESUMED, NULL, (size_t)i - 1);
        CHECK(p->event.logical_attempt == i);
    }
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* Timers go on while a run is paused, but start nothing. */
TEST_DB(engine_paused_starts_nothing_when_a_timer_ends) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(STEP("nap", "sleep", ",\"durationMs\":150"), NOOP("after", AFTER("nap")),
               SH("bad", "exit 1", ",\"retry\":{\"maxAttempts\":2,\"initialMs\":150}")),
          "r");
    until_rows(&bed, "r", EVENT_STEP_RETRIED, 1);
    tell(&bed, "r", "PAUSE", NULL);
    size_t before = count_rows(&bed, "r", EVENT_STEP_STARTED); /* nap, bad#1; more if it is slow */
    bed_turn(&bed, 500);
    CHECK(bed_status(&bed, "r") == RUN_PAUSED);
    CHECK(count_rows(&bed, "r", EVENT_STEP_STARTED) == before);
    tell(&bed, "r", "RESUME", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_FAILED);
    (void)find_row(&bed, "r", EVENT_STEP_STARTED, "bad", 1);
    bed_release(&bed);
}

/* ---- cancel ---- */

static bool lives(struct bed *bed, const char *pid_file) {
    struct error err = {0};
    str text = STR_NONE;
    int64_t pid = 0;
    CHECK(file_read(path_in(bed, pid_file), 100, &bed->arena, &text, &err) == ST_OK, "%s", err.msg);
    CHECK(str_to_int(str_trim(text), &pid));
    return kill((pid_t)pid, 0) == 0 || errno != ESRCH;
}

/* WE-1-4: no new step starts and RunCancelled is recorded; the process at work is ended.
 * WE-2.1-2: a finished run that is cancelled keeps its status, and no event is added.
 * WE-2.1.2-24: CANCELLED. */
TEST_DB(engine_cancel_ends_processes_and_starts_nothing) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          with_folder(&bed, PLAN(SH("a", "echo $$ > %s/pid; exec sleep 60",
                                    ",\"retry\":{\"maxAttempts\":9,\"initialMs\":1}"),
                                 NOOP("b", AFTER("a")))),
          "r");
    until_file(&bed, "pid");
    bed_turn(&bed, 50);
    CHECK(lives(&bed, "pid"));
    tell(&bed, "r", "CANCEL", "c1");
    CHECK(bed_wait(&bed, "r") == RUN_CANCELLED);
    CHECK(!lives(&bed, "pid"));
    check_history(&bed, "r", "RunStarted a:StepStarted#1 a:StepFailed#1 RunCancelled");
    CHECK(holds(bed_payload(&bed, "r", EVENT_STEP_FAILED, 0), "\"code\":\"CANCELLED\""));
    CHECK(is(find_row(&bed, "r", EVENT_RUN_CANCELLED, NULL, 0)->actor, "operator"));
    CHECK(is(shown(&bed, "r"), "CANCELLED"));
    size_t rows = all_rows(&bed, "r").count;
    tell(&bed, "r", "CANCEL", "c1");
    tell(&bed, "r", "CANCEL", "c2");
    tell(&bed, "r", "CANCEL", NULL);
    CHECK(all_rows(&bed, "r").count == rows);
    CHECK(bed_run(&bed, PLAN(NOOP("a", "")), "done") == RUN_COMPLETED);
    rows = all_rows(&bed, "done").count;
    tell(&bed, "done", "CANCEL", NULL);
    CHECK(bed_status(&bed, "done") == RUN_COMPLETED && all_rows(&bed, "done").count == rows);
    bed_release(&bed);
}

/* A run can be cancelled in every state that is not final. */
TEST_DB(engine_cancel_works_in_every_open_state) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    static const struct {
        const char *run_id, *plan, *first;
    } cases[] = {{"approval", PLAN(STEP("a", "approval", "")), NULL},
                 {"wait", PLAN(STEP("a", "wait", ",\"signal\":\"go\"")), NULL},
                 {"sleep", PLAN(STEP("a", "sleep", ",\"durationMs\":600000")), NULL},
                 {"task", PLAN(STEP("a", "task", ",\"queue\":\"q\"")), NULL},
                 {"paused", PLAN(STEP("a", "wait", ",\"signal\":\"go\"")), "PAUSE"},
                 {"backoff",
                  PLAN(SH("a", "exit 1", ",\"retry\":{\"maxAttempts\":2,\"initialMs\":60000}")),
                  NULL}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        start(&bed, cases[i].plan, cases[i].run_id);
        if (strcmp(cases[i].run_id, "backoff") == 0)
            until_rows(&bed, "backoff", EVENT_STEP_RETRIED, 1);
        if (cases[i].first) tell(&bed, cases[i].run_id, cases[i].first, NULL);
        tell(&bed, cases[i].run_id, "CANCEL", NULL);
        CHECK(bed_wait(&bed, cases[i].run_id) == RUN_CANCELLED, "%s", cases[i].run_id);
        CHECK(count_rows(&bed, cases[i].run_id, EVENT_STEP_STARTED) == 1);
    }
    struct start_request request = bed_request(&bed, PLAN(NOOP("a", "")), "pending");
    struct error err = {0};
    request.approval = true;
    CHECK(bed_start(&bed, &request, &err) == ST_OK, "%s", err.msg);
    tell(&bed, "pending", "CANCEL", NULL);
    check_history(&bed, "pending", "RunQueued RunCancelled");
    bed_release(&bed);
}

/* ---- RETRY_STEP ---- */

/* WE-2.1.3-6: RETRY_STEP raises the step's logicalAttemptId by one, and the engine's stays. */
TEST_DB(engine_retry_step_ends_the_wait_before_the_next_attempt) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          with_folder(&bed, PLAN(SH("a", "test -e %s/fixed",
                                    ",\"retry\":{\"maxAttempts\":2,\"initialMs\":600000}"))),
          "r");
    until_rows(&bed, "r", EVENT_STEP_RETRIED, 1);
    CHECK(is(shown(&bed, "r"), "RUNNING/RETRYING"));
    struct error err = {0};
    CHECK(file_replace(path_in(&bed, "fixed"), STR("x"), &err) == ST_OK);
    tell_step(&bed, "r", "RETRY_STEP", "a", "now");
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    check_history(&bed, "r",
                  "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 "
                  "a:StepCompleted#2 RunCompleted");
    CHECK(find_row(&bed, "r", EVENT_STEP_STARTED, "a", 1)->event.engine_attempt == 1);
    bed_release(&bed);
}

/* A step that had failed for good is tried again as long as the run is open and nothing was done on
 * the strength of the failure; then the run can still complete. */
TEST_DB(engine_retry_step_takes_back_a_failure) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          with_folder(&bed, PLAN(SH("a", "test -e %s/fixed", ",\"onFailure\":\"continue\""),
                                 STEP("hold", "wait", ",\"signal\":\"go\""),
                                 NOOP("b", ",\"dependsOn\":[\"a\",\"hold\"]"))),
          "r");
    until_rows(&bed, "r", EVENT_STEP_FAILED, 1);
    struct error err = {0};
    CHECK(file_replace(path_in(&bed, "fixed"), STR("x"), &err) == ST_OK);
    tell_step(&bed, "r", "RETRY_STEP", "a", NULL);
    until_rows(&bed, "r", EVENT_STEP_COMPLETED, 1);
    str p = bed_payload(&bed, "r", EVENT_STEP_RETRIED, 0);
    CHECK(holds(p, "\"reason\":\"signal\""), "%.*s", STR_ARG(p));
    CHECK(is(find_row(&bed, "r", EVENT_STEP_RETRIED, "a", 0)->actor, "operator"));
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    check_history(&bed, "r",
                  "RunStarted a:StepStarted#1 hold:StepStarted#1 a:StepFailed#1 a:StepRetried#2 "
                  "a:StepStarted#2 a:StepCompleted#2 hold:StepCompleted#1 b:StepStarted#1 "
                  "b:StepCompleted#1 RunCompleted");
    bed_release(&bed);
}

TEST_DB(engine_retry_step_is_refused_where_it_makes_no_sense) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(SH("bad", "exit 1", ",\"onFailure\":\"continue\""), NOOP("next", AFTER("bad")),
               STEP("hold", "wait", ",\"signal\":\"go\"")),
          "r");
    until_rows(&bed, "r", EVENT_STEP_COMPLETED, 1);
    tell_refused(&bed, "r", "RETRY_STEP", NULL, "SIGNAL_INVALID");
    tell_refused(&bed, "r", "RETRY_STEP", "nobody", "STEP_NOT_FOUND");
    tell_refused(&bed, "r", "RETRY_STEP", "hold", "SIGNAL_NOT_APPLICABLE"); /* it runs */
    tell_refused(&bed, "r", "RETRY_STEP", "next", "SIGNAL_NOT_APPLICABLE"); /* it succeeded */
    tell_refused(&bed, "r", "RETRY_STEP", "bad", "SIGNAL_NOT_APPLICABLE");  /* next went on */
    CHECK(count_rows(&bed, "r", EVENT_STEP_RETRIED) == 0);
    bed_release(&bed);
}

/* ---- named signals ---- */

static status give(struct bed *bed, const char *run_id, const char *name, const char *step,
                   const char *payload) {
    struct signal s = {.name = str_c(name), .step_id = str_c(step), .payload = str_c(payload)};
    engine_signal(host_engine(bed->host), str_c(run_id), &s,
                  &(struct engine_caller){.actor = STR("operator")});
    bed_turn(bed, 50);
    return ST_OK;
}

/* One that comes before its step waits is kept; its payload is the step's output. */
TEST_DB(engine_wait_takes_signals_that_come_before_and_after) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(STEP("first", "wait", ",\"signal\":\"one\""),
               STEP("second", "wait", ",\"signal\":\"two\",\"dependsOn\":[\"first\"]"),
               STEP("say", "exec",
                    ",\"command\":[\"echo\",\"{{ steps.first.output.n }}{{ steps.second.output.n "
                    "}}\"],\"dependsOn\":[\"second\"]")),
          "r");
    (void)give(&bed, "r", "two", NULL, "{\"n\":2}");
    CHECK(count_rows(&bed, "r", EVENT_STEP_COMPLETED) == 0);
    (void)give(&bed, "r", "one", NULL, "{\"n\":1}");
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    CHECK(holds(find_row(&bed, "r", EVENT_STEP_COMPLETED, "say", 0)->event.payload, "\"12\""));
    bed_release(&bed);
}

/* Each signal ends one wait: two steps that wait for the same name need two. One that names its
 * step goes to that step. */
TEST_DB(engine_each_signal_ends_one_wait) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(STEP("a", "wait", ",\"signal\":\"go\""), STEP("b", "wait", ",\"signal\":\"go\""),
               STEP("c", "wait", ",\"signal\":\"go\"")),
          "r");
    tell_step(&bed, "r", "go", "b", NULL);
    until_rows(&bed, "r", EVENT_STEP_COMPLETED, 1);
    (void)find_row(&bed, "r", EVENT_STEP_COMPLETED, "b", 0);
    tell(&bed, "r", "go", NULL);
    until_rows(&bed, "r", EVENT_STEP_COMPLETED, 2);
    (void)find_row(&bed, "r", EVENT_STEP_COMPLETED, "a", 0);
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* ---- identity of signals ---- */

/* WE-2.1.1-6: one signalId, one effect, and the same answer; the same signalId on another run has
 * an effect of its own. Also after the run has moved on, and after it is over. */
TEST_DB(engine_signal_is_idempotent_on_its_id) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("a", "wait", ",\"signal\":\"go\"")), "r");
    start(&bed, PLAN(STEP("a", "wait", ",\"signal\":\"go\"")), "other");
    tell(&bed, "r", "PAUSE", "same");
    tell(&bed, "r", "PAUSE", "same");
    CHECK(count_rows(&bed, "r", EVENT_RUN_PAUSED) == 1);
    CHECK(bed_status(&bed, "other") == RUN_RUNNING);
    tell(&bed, "other", "PAUSE", "same");
    CHECK(bed_status(&bed, "other") == RUN_PAUSED);
    tell(&bed, "r", "RESUME", "again");
    tell(&bed, "r", "PAUSE", "same"); /* told late: it had its effect */
    CHECK(bed_status(&bed, "r") == RUN_RUNNING);
    bed_reopen(&bed);
    tell(&bed, "r", "PAUSE", "same");
    CHECK(bed_status(&bed, "r") == RUN_RUNNING && count_rows(&bed, "r", EVENT_RUN_PAUSED) == 1);
    tell(&bed, "r", "go", "last");
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    size_t rows = all_rows(&bed, "r").count;
    tell(&bed, "r", "go", "last"); /* its sender did not hear the answer */
    tell(&bed, "r", "PAUSE", "same");
    tell_refused(&bed, "r", "go", NULL, "RUN_FINISHED");
    CHECK(all_rows(&bed, "r").count == rows);
    bed_release(&bed);
}

/* Every signal is in the ledger before its effect, with who sent it, and ends there. */
TEST_DB(engine_signals_are_recorded_with_their_sender) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("a", "wait", ",\"signal\":\"go\"")), "r");
    struct signal s = {.name = STR("PAUSE"), .signal_id = STR("s-1"), .reason = STR("lunch")};
    engine_signal(host_engine(bed.host), STR("r"), &s,
                  &(struct engine_caller){.actor = STR("ann")});
    until_status(&bed, "r", RUN_PAUSED);
    const struct event_record *got = find_row(&bed, "r", EVENT_SIGNAL_RECEIVED, NULL, 1);
    const struct event_record *paused = find_row(&bed, "r", EVENT_RUN_PAUSED, NULL, 0);
    CHECK(got->seq < paused->seq && is(got->actor, "ann") && is(paused->actor, "ann"));
    CHECK(holds(got->event.payload,
                "\"signal\":\"PAUSE\",\"caller_signal_id\":\"s-1\",\"reason\":\"lunch\""));
    CHECK(is(paused->event.payload, "{\"signalId\":\"s-1\",\"reason\":\"lunch\"}"));
    CHECK(find_row(&bed, "r", EVENT_SIGNAL_PROCESSED, NULL, 0)->seq > paused->seq);
    bed_release(&bed);
}

/* WE-2.1-4: PAUSE is accepted and seen in the status; a name that no step waits for is an error,
 * and the same each time. */
TEST_DB(engine_refuses_signals_that_make_no_sense) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("a", "wait", ",\"signal\":\"go\""), NOOP("b", AFTER("a"))), "r");
    for (int i = 0; i < 2; i++) {
        tell_refused(&bed, "r", "STOP_PLEASE", NULL, "SIGNAL_UNKNOWN");
        tell_refused(&bed, "r", "go", "b", "SIGNAL_UNKNOWN"); /* that step waits for nothing */
        tell_refused(&bed, "r", "go", "nobody", "STEP_NOT_FOUND");
        tell_refused(&bed, "r", "RESUME", NULL, "SIGNAL_NOT_APPLICABLE");
        tell_refused(&bed, "r", "APPROVE", NULL, "SIGNAL_NOT_APPLICABLE");
        tell_refused(&bed, "r", "REJECT", "a", "SIGNAL_NOT_APPLICABLE");
        tell_refused(&bed, "r", "LAUNCH", NULL, "SIGNAL_INVALID");
        tell_refused(&bed, "r", "", NULL, "SIGNAL_INVALID");
        tell_refused(&bed, "nowhere", "PAUSE", NULL, "RUN_NOT_FOUND");
        tell_refused(&bed, "nowhere", "CANCEL", NULL, "RUN_NOT_FOUND");
    }
    CHECK(count_rows(&bed, "r", EVENT_SIGNAL_RECEIVED) == 1); /* the launch */
    tell(&bed, "r", "PAUSE", "p");
    CHECK(is(shown(&bed, "r"), "PAUSED/DRAINING"));
    tell_refused(&bed, "r", "PAUSE", NULL, "SIGNAL_NOT_APPLICABLE");
    tell(&bed, "r", "CANCEL", NULL);
    tell_refused(&bed, "r", "PAUSE", NULL, "RUN_FINISHED");
    bed_release(&bed);
}

/* ---- approvals ---- */

TEST_DB(engine_approval_step_is_approved) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("ask", "approval", ""), NOOP("b", AFTER("ask"))), "r");
    CHECK(is(shown(&bed, "r"), "RUNNING/WAITING_APPROVAL"));
    tell(&bed, "r", "APPROVE", "yes");
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    str p = find_row(&bed, "r", EVENT_STEP_COMPLETED, "ask", 0)->event.payload;
    CHECK(holds(p, "\"decision\":\"approved\",\"by\":\"operator\""), "%.*s", STR_ARG(p));
    CHECK(is(find_row(&bed, "r", EVENT_STEP_COMPLETED, "ask", 0)->actor, "operator"));
    bed_release(&bed);
}

TEST_DB(engine_approval_step_is_refused) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(STEP("ask", "approval", ",\"retry\":{\"maxAttempts\":3,\"initialMs\":1}"),
               NOOP("b", AFTER("ask"))),
          "r");
    tell(&bed, "r", "REJECT", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_FAILED);
    check_history(&bed, "r", "RunStarted ask:StepStarted#1 ask:StepFailed#1 RunFailed");
    CHECK(holds(bed_payload(&bed, "r", EVENT_STEP_FAILED, 0), "APPROVAL_REJECTED"));
    bed_release(&bed);
}

TEST_DB(engine_approval_names_its_step_where_several_wait) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("a", "approval", ""), STEP("b", "approval", "")), "r");
    tell_refused(&bed, "r", "APPROVE", NULL, "SIGNAL_NOT_APPLICABLE");
    tell_step(&bed, "r", "APPROVE", "b", NULL);
    tell_refused(&bed, "r", "APPROVE", "b", "SIGNAL_NOT_APPLICABLE");
    tell(&bed, "r", "APPROVE", NULL); /* one is left */
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* A decision while the run is paused counts, and starts nothing. */
TEST_DB(engine_approval_counts_while_the_run_is_paused) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("ask", "approval", ""), NOOP("b", AFTER("ask"))), "r");
    tell(&bed, "r", "PAUSE", NULL);
    tell(&bed, "r", "APPROVE", NULL);
    bed_turn(&bed, 100);
    check_history(&bed, "r", "RunStarted ask:StepStarted#1 RunPaused ask:StepCompleted#1");
    CHECK(is(shown(&bed, "r"), "PAUSED"));
    tell(&bed, "r", "RESUME", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}
