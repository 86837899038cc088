/* What the engine does with the steps of a plan: order, conditions, failures, retries, timeouts. On
 * both databases, with real processes; times are read from the ledger. */
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"
#include "conformance/engine_tools.h"

/* ---- order ---- */

/* WE-1N-1: steps start in the order of the plan, whatever their ids, and the condition of the plan
 * alone decides what is skipped. */
TEST_DB(engine_follows_the_plan_literally) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN_META("", "\"concurrency\":1,", NOOP("z", ""),
                            NOOP("m", ",\"runIf\":\"false\""), NOOP("a", ""),
                            NOOP("y", ",\"runIf\":\"true\"")),
                  "r") == RUN_COMPLETED);
    check_history(&bed, "r",
                  "RunStarted z:StepStarted#1 z:StepCompleted#1 m:StepSkipped#1 a:StepStarted#1 "
                  "a:StepCompleted#1 y:StepStarted#1 y:StepCompleted#1 RunCompleted");
    CHECK(holds(bed_payload(&bed, "r", EVENT_STEP_SKIPPED, 0), "\"reason\":\"CONDITION_FALSE\""));
    bed_release(&bed);
}

TEST_DB(engine_starts_a_step_when_all_its_dependencies_are_settled) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN(NOOP("end", ",\"dependsOn\":[\"left\",\"right\"]"),
                       SH("left", "sleep 0.2", ""), SH("right", "sleep 0.05", "")),
                  "r") == RUN_COMPLETED);
    const struct event_record *end = find_row(&bed, "r", EVENT_STEP_STARTED, "end", 0);
    CHECK(end->seq > find_row(&bed, "r", EVENT_STEP_COMPLETED, "left", 0)->seq);
    CHECK(end->seq > find_row(&bed, "r", EVENT_STEP_COMPLETED, "right", 0)->seq);
    bed_release(&bed);
}

TEST_DB(engine_keeps_to_the_plans_concurrency) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN_META("", "\"concurrency\":2,", SH("a", "sleep 0.05", ""),
                            SH("b", "sleep 0.05", ""), SH("c", "sleep 0.05", ""),
                            SH("d", "sleep 0.05", "")),
                  "r") == RUN_COMPLETED);
    struct event_page rows = all_rows(&bed, "r");
    int open = 0;
    int most = 0;
    for (size_t i = 0; i < rows.count; i++) {
        if (rows.records[i].event.type == EVENT_STEP_STARTED) open++;
        if (rows.records[i].event.type == EVENT_STEP_COMPLETED) open--;
        if (open > most) most = open;
    }
    CHECK(most == 2, "%d", most);
    bed_release(&bed);
}

/* ---- failures ---- */

TEST_DB(engine_ends_the_run_when_a_step_fails) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed, PLAN(SH("a", "exit 7", ""), NOOP("b", AFTER("a"))), "r") == RUN_FAILED);
    check_history(&bed, "r", "RunStarted a:StepStarted#1 a:StepFailed#1 RunFailed");
    str p = bed_payload(&bed, "r", EVENT_STEP_FAILED, 0);
    CHECK(holds(p, "\"code\":\"EXIT_CODE\"") && holds(p, "\"exitCode\":7"), "%.*s", STR_ARG(p));
    p = bed_payload(&bed, "r", EVENT_RUN_FAILED, 0);
    CHECK(is(p, "{\"code\":\"STEP_FAILED\",\"stepId\":\"a\",\"stepCode\":\"EXIT_CODE\","
                "\"failedSteps\":1}"),
          "%.*s", STR_ARG(p));
    bed_release(&bed);
}

/* A step at work when another one fails for good is left to its end; no other one begins. */
TEST_DB(engine_lets_open_steps_end_when_the_run_fails) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN(SH("long", "sleep 0.3", ""), SH("bad", "exit 1", ""),
                       STEP("ask", "approval", ""), NOOP("next", AFTER("long"))),
                  "r") == RUN_FAILED);
    CHECK(count_rows(&bed, "r", EVENT_STEP_COMPLETED) == 1);
    CHECK(count_rows(&bed, "r", EVENT_STEP_STARTED) == 3); /* next never began */
    CHECK(holds(find_row(&bed, "r", EVENT_STEP_FAILED, "ask", 0)->event.payload, "ABANDONED"));
    bed_release(&bed);
}

TEST_DB(engine_goes_on_after_a_failure_that_may_be) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN(SH("a", "exit 1", ",\"onFailure\":\"continue\""), NOOP("b", AFTER("a"))),
                  "r") == RUN_FAILED);
    check_history(
        &bed, "r",
        "RunStarted a:StepStarted#1 a:StepFailed#1 b:StepStarted#1 b:StepCompleted#1 RunFailed");
    bed_release(&bed);
}

/* A failure that skips: its dependents and theirs, but no other branch. */
TEST_DB(engine_skips_the_dependents_of_a_failure) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(
        bed_run(&bed,
                PLAN(SH("a", "exit 1", ",\"onFailure\":\"skipDependents\""), NOOP("b", AFTER("a")),
                     NOOP("c", AFTER("b")), NOOP("other", ""), NOOP("last", AFTER("other"))),
                "r") == RUN_FAILED);
    str p = find_row(&bed, "r", EVENT_STEP_SKIPPED, "b", 0)->event.payload;
    CHECK(holds(p, "\"reason\":\"DEPENDENCY_FAILED\""), "%.*s", STR_ARG(p));
    p = find_row(&bed, "r", EVENT_STEP_SKIPPED, "c", 0)->event.payload;
    CHECK(holds(p, "\"reason\":\"DEPENDENCY_FAILED\""), "%.*s", STR_ARG(p));
    (void)find_row(&bed, "r", EVENT_STEP_COMPLETED, "last", 0);
    bed_release(&bed);
}

/* A step skipped by its own condition does not skip those that depend on it. */
TEST_DB(engine_runs_what_depends_on_a_skipped_step) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed, PLAN(NOOP("a", ",\"runIf\":\"1 == 2\""), NOOP("b", AFTER("a"))), "r") ==
          RUN_COMPLETED);
    check_history(&bed, "r",
                  "RunStarted a:StepSkipped#1 b:StepStarted#1 b:StepCompleted#1 RunCompleted");
    bed_release(&bed);
}

/* Conditions see the state and the output of earlier steps. */
TEST_DB(engine_decides_conditions_over_states_and_outputs) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(
        bed_run(&bed,
                PLAN(SH("a", "exit 3", ",\"onFailure\":\"continue\""),
                     STEP("n", "exec",
                          ",\"command\":[\"echo\",\"{\\\"rows\\\":5}\"],\"output\":\"json\""),
                     NOOP("undo", ",\"dependsOn\":[\"a\"],\"runIf\":\"steps.a.state == 'FAILED'\""),
                     NOOP("many", ",\"dependsOn\":[\"n\"],\"runIf\":\"steps.n.output.rows > 4\""),
                     NOOP("few", ",\"dependsOn\":[\"n\"],\"runIf\":\"steps.n.output.rows < 4\"")),
                "r") == RUN_FAILED);
    (void)find_row(&bed, "r", EVENT_STEP_COMPLETED, "undo", 0);
    (void)find_row(&bed, "r", EVENT_STEP_COMPLETED, "many", 0);
    (void)find_row(&bed, "r", EVENT_STEP_SKIPPED, "few", 0);
    bed_release(&bed);
}

TEST_DB(engine_fails_a_step_whose_template_fails) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN(STEP("a", "sleep",
                            ",\"until\":\"{{ parameters.when "
                            "}}\",\"retry\":{\"maxAttempts\":5,\"initialMs\":1}")),
                  "r") == RUN_FAILED);
    check_history(&bed, "r", "RunStarted a:StepStarted#1 a:StepFailed#1 RunFailed");
    CHECK(holds(bed_payload(&bed, "r", EVENT_STEP_FAILED, 0), "\"code\":\"TEMPLATE_FAILED\""));
    bed_release(&bed);
}

/* ---- retries ---- */

/* Attempt `n` was to wait `delay_ms` from the moment it was decided on, which was not after the
 * failure was written down, and waited that long. (Between two writings it may look shorter: each
 * may be late.) */
static void check_backoff(struct bed *bed, const char *run_id, size_t n, int64_t delay_ms) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error err = {0};
    yyjson_val *root = NULL;
    str text = STR_NONE;
    int64_t retry_ns = 0;
    int digits = 0;
    str payload = bed_payload(bed, run_id, EVENT_STEP_RETRIED, n - 1);
    CHECK(json_parse(payload, limits, &bed->arena, &root, &err) == ST_OK, "%s", err.msg);
    CHECK(json_str(json_member(root, "retryAt"), &text) &&
          time_parse_utc(text, &retry_ns, &digits));
    int64_t failed_ns = find_row(bed, run_id, EVENT_STEP_FAILED, "a", n - 1)->event.emitted_ns;
    int64_t started_ns = find_row(bed, run_id, EVENT_STEP_STARTED, "a", n)->event.emitted_ns;
    int64_t decided_ns = retry_ns - delay_ms * 1000000;
    CHECK(decided_ns <= failed_ns && failed_ns - decided_ns < INT64_C(10000000000), "%lld ns",
          (long long)(failed_ns - decided_ns));
    CHECK(started_ns >= retry_ns && started_ns - retry_ns < INT64_C(10000000000), "%lld ns",
          (long long)(started_ns - retry_ns));
}

/* WE-1-3: "2 retries, 100 ms base": three attempts with logicalAttemptId 1, 2, 3 and the stated
 * delays. WE-2.1.3-6: the logical attempt rises by one each time, the engine's stays. WE-2.1.3-7:
 * each attempt's StepStarted has a key of its own. */
TEST_DB(engine_retries_with_the_backoff_of_the_plan) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    const char *plan = with_folder(
        &bed,
        PLAN(SH("a", "echo x >> %s/tries; test $(wc -l < %s/tries) -ge 3",
                ",\"retry\":{\"maxAttempts\":3,\"initialMs\":100,\"factor\":3,\"jitter\":0}")));
    CHECK(bed_run(&bed, plan, "r") == RUN_COMPLETED);
    check_history(&bed, "r",
                  "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 "
                  "a:StepFailed#2 a:StepRetried#3 a:StepStarted#3 a:StepCompleted#3 RunCompleted");
    check_backoff(&bed, "r", 1, 100);
    check_backoff(&bed, "r", 2, 300);
    str p = bed_payload(&bed, "r", EVENT_STEP_RETRIED, 0);
    CHECK(holds(p, "\"reason\":\"policy\"") && holds(p, "\"after\":\"EXIT_CODE\"") &&
              holds(p, "\"delayMs\":100"),
          "%.*s", STR_ARG(p));
    CHECK(holds(bed_payload(&bed, "r", EVENT_STEP_RETRIED, 1), "\"delayMs\":300"));
    const struct event_record *one = find_row(&bed, "r", EVENT_STEP_STARTED, "a", 0);
    const struct event_record *two = find_row(&bed, "r", EVENT_STEP_STARTED, "a", 1);
    CHECK(one->event.logical_attempt == 1 && two->event.logical_attempt == 2);
    CHECK(one->event.engine_attempt == 1 && two->event.engine_attempt == 1);
    CHECK(memcmp(one->event.key, two->event.key, SHA256_LEN) != 0);
    bed_release(&bed);
}

/* WE-2.1.2-23: attempts exhausted: FAILED. */
TEST_DB(engine_gives_up_after_the_last_attempt) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed, PLAN(SH("a", "exit 1", ",\"retry\":{\"maxAttempts\":2,\"initialMs\":1}")),
                  "r") == RUN_FAILED);
    check_history(&bed, "r",
                  "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 "
                  "a:StepFailed#2 RunFailed");
    CHECK(is(shown(&bed, "r"), "FAILED"));
    bed_release(&bed);
}

TEST_DB(engine_does_not_retry_what_the_plan_calls_final) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(
        bed_run(
            &bed,
            PLAN(SH(
                "a", "exit 1",
                ",\"retry\":{\"maxAttempts\":5,\"initialMs\":1,\"nonRetryable\":[\"EXIT_CODE\"]}")),
            "r") == RUN_FAILED);
    check_history(&bed, "r", "RunStarted a:StepStarted#1 a:StepFailed#1 RunFailed");
    bed_release(&bed);
}

/* The defaults of the plan hold for every step that has none of its own. */
TEST_DB(engine_retries_by_the_defaults_of_the_plan) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(
              &bed,
              PLAN_META("", "\"defaults\":{\"retry\":{\"maxAttempts\":2,\"initialMs\":1}},",
                        SH("a", "exit 1", ",\"onFailure\":\"continue\""),
                        SH("b", "exit 1", ",\"retry\":{\"maxAttempts\":1},\"dependsOn\":[\"a\"]")),
              "r") == RUN_FAILED);
    check_history(&bed, "r",
                  "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 "
                  "a:StepFailed#2 b:StepStarted#1 b:StepFailed#1 RunFailed");
    bed_release(&bed);
}

/* ---- time ---- */

TEST_DB(engine_ends_an_attempt_that_takes_too_long) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    int64_t before = clock_mono_ns();
    CHECK(bed_run(&bed,
                  PLAN(SH("a", "sleep 30",
                          ",\"timeoutMs\":200,\"retry\":{\"maxAttempts\":2,\"initialMs\":1}")),
                  "r") == RUN_FAILED);
    CHECK((clock_mono_ns() - before) / 1000000 < 20000);
    check_history(&bed, "r",
                  "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 "
                  "a:StepFailed#2 RunFailed");
    CHECK(holds(bed_payload(&bed, "r", EVENT_STEP_FAILED, 0), "\"code\":\"TIMEOUT\""));
    bed_release(&bed);
}

TEST_DB(engine_ends_waits_that_take_too_long) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    static const struct {
        const char *run_id, *plan, *code;
    } cases[] = {
        {"wait", PLAN(STEP("a", "wait", ",\"signal\":\"go\",\"timeoutMs\":100")), "TIMEOUT"},
        {"wait2", PLAN(STEP("a", "wait", ",\"signal\":\"go\",\"expiresInMs\":100")), "TIMEOUT"},
        {"sleep", PLAN(STEP("a", "sleep", ",\"durationMs\":60000,\"timeoutMs\":100")), "TIMEOUT"},
        {"task", PLAN(STEP("a", "task", ",\"queue\":\"q\",\"timeoutMs\":100")), "TIMEOUT"},
        {"approval", PLAN(STEP("a", "approval", ",\"expiresInMs\":100")), "APPROVAL_EXPIRED"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(bed_run(&bed, cases[i].plan, cases[i].run_id) == RUN_FAILED, "%s", cases[i].run_id);
        str p = bed_payload(&bed, cases[i].run_id, EVENT_STEP_FAILED, 0);
        CHECK(holds(p, cases[i].code), "%s: %.*s", cases[i].run_id, STR_ARG(p));
        int64_t took =
            ms_between(&bed, cases[i].run_id, "a", EVENT_STEP_STARTED, 0, EVENT_STEP_FAILED, 0);
        CHECK(took >= 60, "%s: %lld", cases[i].run_id, (long long)took);
    }
    bed_release(&bed);
}

TEST_DB(engine_sleeps_as_long_as_the_plan_says) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(
              &bed,
              PLAN(STEP("a", "sleep", ",\"durationMs\":250"),
                   STEP("b", "sleep", ",\"until\":\"2020-01-01T00:00:00Z\",\"dependsOn\":[\"a\"]")),
              "r") == RUN_COMPLETED);
    int64_t took = ms_between(&bed, "r", "a", EVENT_STEP_STARTED, 0, EVENT_STEP_COMPLETED, 0);
    CHECK(took >= 200 && took < 30000, "%lld", (long long)took);
    took = ms_between(&bed, "r", "b", EVENT_STEP_STARTED, 0, EVENT_STEP_COMPLETED, 0);
    CHECK(took < 10000, "a time that has passed is no wait: %lld", (long long)took);
    bed_release(&bed);
}

/* ---- data ---- */

TEST_DB(engine_hands_parameters_and_outputs_to_steps) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request request = bed_request(
        &bed,
        PLAN_META(
            "",
            "\"parameters\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"
            "\"n\":{\"type\":\"integer\",\"default\":3}},\"required\":[\"name\"]},",
            STEP("a", "exec",
                 ",\"command\":[\"echo\",\"{{ parameters.name }} {{ parameters.n }}\"]"),
            STEP("b", "exec",
                 ",\"command\":[\"echo\",\"{{ steps.a.output }} {{ run.runId }} {{ run.tenantId }} "
                 "{{ steps.a.attempt }}\"],\"dependsOn\":[\"a\"]")),
        "r");
    start_refused(&bed, &request, "PARAMETERS_INVALID");
    request.parameters = STR("{\"name\":5}");
    start_refused(&bed, &request, "PARAMETERS_INVALID");
    CHECK(bed_status(&bed, "r") == RUN_NEW);
    request.parameters = STR("{\"name\":\"ann\"}");
    struct error err = {0};
    CHECK(bed_start(&bed, &request, &err) == ST_OK, "%s", err.msg);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    str p = bed_payload(&bed, "r", EVENT_STEP_COMPLETED, 1);
    CHECK(holds(p, "\"output\":\"ann 3 r acme 1\""), "%.*s", STR_ARG(p));
    bed_release(&bed);
}

/* Many steps, more than fit in one batch of decisions. */
TEST_DB(engine_carries_out_a_long_chain) {
    struct bed bed;
    struct buf plan;
    enum { STEPS = 700 };
    bed_init(&bed, url);
    bed_open(&bed);
    buf_init(&plan, (size_t)1024 * 1024);
    buf_put_c(&plan, "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":"
                     "\"1\"},\"steps\":[");
    for (int i = 0; i < STEPS; i++) {
        buf_printf(&plan, "%s{\"stepId\":\"s%d\",\"type\":\"noop\"", i > 0 ? "," : "", i);
        if (i > 0) buf_printf(&plan, ",\"dependsOn\":[\"s%d\"]", i - 1);
        buf_put_char(&plan, '}');
    }
    buf_put_c(&plan, "]}");
    str text = arena_str(&bed.arena, buf_str(&plan));
    buf_release(&plan);
    CHECK(bed_run(&bed, text.ptr, "r") == RUN_COMPLETED);
    CHECK(count_rows(&bed, "r", EVENT_STEP_COMPLETED) == STEPS);
    bed_release(&bed);
}
