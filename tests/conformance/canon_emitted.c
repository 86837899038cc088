/* CANON 3.2: the taxonomy, as runs and workers emit it: each test has an engine carry out a plan
 * and finds what that wrote in CANON's table, under its name, aggregate and cause. Nothing is
 * appended by a test. */
#include "base/json.h"
#include "base/time.h"
#include "conformance/engine_tools.h"

#define TASK(id, more) STEP(id, "task", ",\"queue\":\"q\"" more)

/* ---- looking at the table ---- */

#define OF_TYPE " FROM orchestration_events WHERE event_type = $1"

static int64_t count_of(struct bed *bed, const char *type) {
    int64_t n = -1;
    CHECK(str_to_int(ask(bed, "SELECT CAST(COUNT(*) AS TEXT)" OF_TYPE, type), &n));
    return n;
}

static int64_t seq_of(struct bed *bed, const char *type) {
    int64_t n = -1;
    str text = ask(bed, "SELECT CAST(MAX(sequence_number) AS TEXT)" OF_TYPE, type);
    CHECK(text.ptr && str_to_int(text, &n), "there is no %s", type);
    return n;
}

/* The one event of the type: its aggregate must be that. */
static void check_one(struct bed *bed, const char *type, const char *aggregate) {
    CHECK(count_of(bed, type) == 1, "%s: %lld", type, (long long)count_of(bed, type));
    str shown = ask(bed, "SELECT aggregate_type" OF_TYPE, type);
    CHECK(is(shown, aggregate), "%s: %.*s", type, STR_ARG(shown));
}

static str data_of(struct bed *bed, const char *type) {
    return ask(bed, "SELECT CAST(event_data AS TEXT)" OF_TYPE, type);
}

/* The newest event of the type is caused by the newest of the other. */
static void check_cause(struct bed *bed, const char *type, const char *cause) {
    str by = ask(bed, "SELECT CAST(causation_id AS TEXT)" OF_TYPE " ORDER BY position DESC", type);
    str id = ask(bed, "SELECT CAST(id AS TEXT)" OF_TYPE " ORDER BY position DESC", cause);
    CHECK(id.ptr && str_eq(by, id), "%s is caused by %.*s, and not by %s", type, STR_ARG(by),
          cause);
}

static void open_bed(struct bed *bed, str url) {
    bed_init(bed, url);
    bed_open(bed);
}

/* ---- signals and runs ---- */

/* CE-3.2-1: the launch of a run is a signal: one SIGNAL_RECEIVED, of that signal. CE-3.2-2: the
 * engine picks it up: one SIGNAL_PROCESSING_STARTED, caused by it. CE-3.2-5: the run begins with
 * one RUN_STARTED. CE-3.2-10, CE-3.2-11: its step is one STEP_STARTED and one STEP_COMPLETED.
 * CE-3.2-7: when all steps are done it has one RUN_COMPLETED. CE-3.2-3: and its signal one
 * SIGNAL_PROCESSED after that. */
TEST_DB(canon_emitted_by_a_run_that_completes) {
    struct bed bed;
    open_bed(&bed, url);
    CHECK(bed_run(&bed, PLAN(SH("s", "echo done", "")), "r1") == RUN_COMPLETED);
    check_one(&bed, "SIGNAL_RECEIVED", "SIGNAL");
    check_one(&bed, "SIGNAL_PROCESSING_STARTED", "SIGNAL");
    check_cause(&bed, "SIGNAL_PROCESSING_STARTED", "SIGNAL_RECEIVED");
    str signal = ask(&bed, "SELECT CAST(aggregate_id AS TEXT)" OF_TYPE, "SIGNAL_RECEIVED");
    CHECK(holds(data_of(&bed, "RUN_STARTED"), arena_str(&bed.arena, signal).ptr));
    str run = ask(&bed, "SELECT CAST(id AS TEXT) FROM runs WHERE run_id = $1", "r1");
    check_one(&bed, "RUN_STARTED", "RUN");
    CHECK(str_eq(ask(&bed, "SELECT CAST(aggregate_id AS TEXT)" OF_TYPE, "RUN_STARTED"), run));
    str step = ask(&bed, "SELECT CAST(id AS TEXT) FROM steps WHERE step_id = $1", "s");
    check_one(&bed, "STEP_STARTED", "STEP");
    CHECK(str_eq(ask(&bed, "SELECT CAST(aggregate_id AS TEXT)" OF_TYPE, "STEP_STARTED"), step));
    check_one(&bed, "STEP_COMPLETED", "STEP");
    CHECK(str_eq(ask(&bed, "SELECT CAST(aggregate_id AS TEXT)" OF_TYPE, "STEP_COMPLETED"), step));
    check_cause(&bed, "STEP_COMPLETED", "STEP_STARTED");
    check_one(&bed, "RUN_COMPLETED", "RUN");
    CHECK(seq_of(&bed, "RUN_COMPLETED") > seq_of(&bed, "STEP_COMPLETED"));
    check_one(&bed, "SIGNAL_PROCESSED", "SIGNAL");
    CHECK(seq_of(&bed, "SIGNAL_PROCESSED") > seq_of(&bed, "RUN_COMPLETED"));
    CHECK(
        str_eq(ask(&bed, "SELECT CAST(aggregate_id AS TEXT)" OF_TYPE, "SIGNAL_PROCESSED"), signal));
    CHECK(count_of(&bed, "SIGNAL_PROCESSING_FAILED") == 0 && count_of(&bed, "RUN_FAILED") == 0);
    bed_release(&bed);
}

/* CE-3.2-1: a signal that somebody sends is one SIGNAL_RECEIVED, and sent twice it is still one.
 * CE-3.2-2: one SIGNAL_PROCESSING_STARTED is caused by it. */
TEST_DB(canon_emitted_by_a_signal) {
    struct bed bed;
    open_bed(&bed, url);
    start(&bed, PLAN(STEP("w", "wait", ",\"signal\":\"go\"")), "r1");
    until_rows(&bed, "r1", EVENT_STEP_STARTED, 1);
    CHECK(count_of(&bed, "SIGNAL_RECEIVED") == 1); /* the launch */
    tell(&bed, "r1", "PAUSE", "s-1");
    tell(&bed, "r1", "PAUSE", "s-1");
    until_status(&bed, "r1", RUN_PAUSED);
    CHECK(count_of(&bed, "SIGNAL_RECEIVED") == 2 && count_of(&bed, "RUN_PAUSED") == 1);
    CHECK(count_of(&bed, "SIGNAL_PROCESSING_STARTED") == 2);
    check_cause(&bed, "SIGNAL_PROCESSING_STARTED", "SIGNAL_RECEIVED");
    tell(&bed, "r1", "CANCEL", "c-1");
    CHECK(bed_wait(&bed, "r1") == RUN_CANCELLED);
    bed_release(&bed);
}

/* CE-3.2-8: a critical step that fails for good ends the run with one RUN_FAILED. CE-3.2-4: and its
 * signal with one SIGNAL_PROCESSING_FAILED after that. CE-3.2-12: the step's one STEP_FAILED has
 * the error in its data. */
TEST_DB(canon_emitted_by_a_run_that_fails) {
    struct bed bed;
    open_bed(&bed, url);
    CHECK(bed_run(&bed, PLAN(SH("s", "exit 7", "")), "r1") == RUN_FAILED);
    check_one(&bed, "STEP_FAILED", "STEP");
    CHECK(holds(data_of(&bed, "STEP_FAILED"), "EXIT_CODE"), "%.*s",
          STR_ARG(data_of(&bed, "STEP_FAILED")));
    check_cause(&bed, "STEP_FAILED", "STEP_STARTED");
    check_one(&bed, "RUN_FAILED", "RUN");
    check_cause(&bed, "RUN_FAILED", "STEP_FAILED");
    check_one(&bed, "SIGNAL_PROCESSING_FAILED", "SIGNAL");
    CHECK(seq_of(&bed, "SIGNAL_PROCESSING_FAILED") > seq_of(&bed, "RUN_FAILED"));
    CHECK(count_of(&bed, "SIGNAL_PROCESSED") == 0 && count_of(&bed, "RUN_COMPLETED") == 0);
    bed_release(&bed);
}

struct told {
    bool there;
};
static void on_told(void *context, status code, const struct error *err) {
    CHECK(code == ST_OK, "%s", err ? err->msg : "");
    ((struct told *)context)->there = true;
}

static void until_told(struct bed *bed, const struct told *t) {
    while (!t->there)
        bed_turn(bed, 5);
}

/* CE-3.2-9: cancelled by a user and by the system: one RUN_CANCELLED each, with who did it. */
TEST_DB(canon_emitted_by_a_run_that_is_cancelled) {
    static const char *const actors[] = {"user:ann", "system:maintenance"};
    struct bed bed;
    open_bed(&bed, url);
    for (size_t i = 0; i < COUNT_OF(actors); i++) {
        struct signal cancel = {.name = STR("CANCEL"), .signal_id = STR("c-1")};
        struct told told = {0};
        start(&bed, PLAN(STEP("w", "wait", ",\"signal\":\"go\"")), actors[i]);
        engine_signal(
            host_engine(bed.host), str_c(actors[i]), &cancel,
            &(struct engine_caller){.actor = str_c(actors[i]), .done = on_told, .context = &told});
        until_told(&bed, &told);
        CHECK(bed_wait(&bed, actors[i]) == RUN_CANCELLED);
        str by = ask(&bed,
                     "SELECT actor FROM orchestration_events WHERE event_type = 'RUN_CANCELLED' AND"
                     " aggregate_type = 'RUN' AND run_id = $1",
                     actors[i]);
        CHECK(is(by, actors[i]), "%.*s", STR_ARG(by));
        CHECK(count_rows(&bed, actors[i], EVENT_RUN_CANCELLED) == 1);
    }
    CHECK(count_of(&bed, "RUN_CANCELLED") == 2);
    bed_release(&bed);
}

/* ---- steps ---- */

/* CE-3.2-13: a step that its condition skips is one STEP_SKIPPED with the reason. */
TEST_DB(canon_emitted_by_a_step_that_is_skipped) {
    struct bed bed;
    open_bed(&bed, url);
    CHECK(bed_run(&bed, PLAN(NOOP("a", ""), NOOP("s", ",\"runIf\":\"parameters.x == 1\"")), "r1") ==
          RUN_COMPLETED);
    check_one(&bed, "STEP_SKIPPED", "STEP");
    CHECK(holds(data_of(&bed, "STEP_SKIPPED"), "CONDITION_FALSE"), "%.*s",
          STR_ARG(data_of(&bed, "STEP_SKIPPED")));
    CHECK(is(ask(&bed, "SELECT status FROM steps WHERE step_id = $1", "s"), "SKIPPED"));
    CHECK(count_of(&bed, "STEP_STARTED") == 1); /* that of a */
    bed_release(&bed);
}

/* CE-3.2-14: a step that is tried again has one STEP_RETRIED, between STEP_FAILED of attempt 1,
 * which causes it, and STEP_STARTED of attempt 2. */
TEST_DB(canon_emitted_by_a_step_that_is_retried) {
    struct bed bed;
    open_bed(&bed, url);
    const char *plan =
        with_folder(&bed, PLAN(SH("s", "test -e %s/there || { touch %s/there; exit 3; }",
                                  ",\"retry\":{\"maxAttempts\":2,\"initialMs\":10}")));
    CHECK(bed_run(&bed, plan, "r1") == RUN_COMPLETED);
    check_one(&bed, "STEP_RETRIED", "STEP");
    check_cause(&bed, "STEP_RETRIED", "STEP_FAILED");
    CHECK(count_of(&bed, "STEP_STARTED") == 2);
    CHECK(seq_of(&bed, "STEP_FAILED") < seq_of(&bed, "STEP_RETRIED"));
    CHECK(seq_of(&bed, "STEP_RETRIED") < seq_of(&bed, "STEP_STARTED")); /* the second */
    CHECK(
        is(ask(&bed, "SELECT CAST(retry_count AS TEXT) FROM steps WHERE step_id = $1", "s"), "1"));
    bed_release(&bed);
}

/* ---- tools ---- */

struct one_task {
    struct bed *bed;
    bool there;
    struct task_ref ref;
};

static void on_tasks(void *context, const struct task *tasks, size_t count) {
    struct one_task *t = context;
    CHECK(count == 1, "%zu tasks", count);
    t->ref = tasks[0].ref;
    t->ref.run_id = arena_str(&t->bed->arena, t->ref.run_id);
    t->ref.step_id = arena_str(&t->bed->arena, t->ref.step_id);
    t->ref.tenant_id = arena_str(&t->bed->arena, tasks[0].tenant_id);
    t->there = true;
}

static struct task_ref take_task(struct bed *bed) {
    struct one_task t = {.bed = bed};
    struct engine_poll *poll = NULL;
    struct error err = {0};
    struct poll_request q = {.tenant_id = STR("acme"),
                             .queue = STR("q"),
                             .worker = STR("w1"),
                             .max = 1,
                             .lease_ms = 60000,
                             .deadline_us = clock_wall_us() + (int64_t)20 * 1000000};
    CHECK(engine_poll(host_engine(bed->host), &q, on_tasks, &t, &poll, &err) == ST_OK, "%s",
          err.msg);
    while (!t.there)
        bed_turn(bed, 5);
    return t.ref;
}

/* CE-3.2-21: a task that a worker is given is a tool that is called: one TOOL_CALLED of the step.
 * CE-3.2-22: the worker's result is one TOOL_COMPLETED, caused by it. CE-3.2-23: a worker that
 * could not is one TOOL_FAILED, caused by it. Each has the id of the call. */
TEST_DB(canon_emitted_by_a_worker) {
    struct bed bed;
    open_bed(&bed, url);
    for (int good = 1; good >= 0; good--) {
        const char *run = good ? "good" : "bad";
        start(&bed, PLAN(TASK("t", "")), run);
        CHECK(count_rows(&bed, run, EVENT_TOOL_CALLED) == 0);
        struct task_ref ref = take_task(&bed);
        CHECK(is(ref.run_id, run) && count_rows(&bed, run, EVENT_TOOL_CALLED) == 1);
        check_cause(&bed, "TOOL_CALLED", "STEP_STARTED");
        struct told told = {0};
        struct outcome o = {.ok = good != 0,
                            .output = good ? STR("{\"hits\":3}") : STR_NONE,
                            .code = good ? STR_NONE : STR("TOOL_BROKE"),
                            .message = good ? STR_NONE : STR("no answer")};
        engine_task_done(host_engine(bed.host), &ref, &o,
                         &(struct engine_caller){
                             .actor = STR("external:w1"), .done = on_told, .context = &told});
        until_told(&bed, &told);
        CHECK(bed_wait(&bed, run) == (good ? RUN_COMPLETED : RUN_FAILED));
        const char *type = good ? "TOOL_COMPLETED" : "TOOL_FAILED";
        check_one(&bed, type, "STEP");
        check_cause(&bed, type, "TOOL_CALLED");
        CHECK(holds(data_of(&bed, type), "call_id"), "%.*s", STR_ARG(data_of(&bed, type)));
        CHECK(good || holds(data_of(&bed, type), "TOOL_BROKE"));
        CHECK(is(ask(&bed, "SELECT actor" OF_TYPE, type), "external:w1"));
        check_cause(&bed, good ? "STEP_COMPLETED" : "STEP_FAILED", type);
    }
    CHECK(count_of(&bed, "TOOL_CALLED") == 2);
    bed_release(&bed);
}
