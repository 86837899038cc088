/* What the engine does with plans: on both databases, with real processes. */
#include "conformance/engine_helper.h"

#define PLAN(steps)                                                                                \
    "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":\"1\"},\"steps\":" \
    "[" steps "]}"

static bool is(str s, const char *want) { return str_eq(s, str_c(want)); }

/* WE-1-2: the store holds the run's lifecycle. */
TEST_DB(engine_runs_two_noop_steps) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN("{\"stepId\":\"a\",\"type\":\"noop\"},"
                       "{\"stepId\":\"b\",\"type\":\"noop\",\"dependsOn\":[\"a\"]}"),
                  "r1") == RUN_COMPLETED);
    str h = bed_history(&bed, "r1");
    CHECK(is(h, "RunStarted a:StepStarted#1 a:StepCompleted#1 b:StepStarted#1 b:StepCompleted#1 "
                "RunCompleted"),
          "%.*s", STR_ARG(h));
    bed_release(&bed);
}

TEST_DB(engine_executes_commands_and_feeds_outputs) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(
              &bed,
              PLAN("{\"stepId\":\"a\",\"type\":\"exec\",\"command\":[\"echo\",\"{\\\"n\\\":42}\"],"
                   "\"output\":\"json\"},"
                   "{\"stepId\":\"b\",\"type\":\"exec\",\"command\":[\"echo\","
                   "\"got {{ steps.a.output.n }}\"],\"dependsOn\":[\"a\"]}"),
              "r1") == RUN_COMPLETED);
    str p = bed_payload(&bed, "r1", EVENT_STEP_COMPLETED, 1);
    CHECK(is(p, "{\"stepType\":\"exec\",\"output\":\"got 42\"}"), "%.*s", STR_ARG(p));
    bed_release(&bed);
}

/* The same run id again is no second start; with another plan, even one of the same name and
 * version, it is refused. */
TEST_DB(engine_run_id_belongs_to_its_plan) {
    struct bed bed;
    struct error err = {0};
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed, PLAN("{\"stepId\":\"a\",\"type\":\"noop\"}"), "r1") == RUN_COMPLETED);
    struct start_request again =
        bed_request(&bed, PLAN("{\"stepId\":\"a\",\"type\":\"noop\"}"), "r1");
    CHECK(bed_start(&bed, &again, &err) == ST_OK, "%s", err.msg);
    struct start_request other =
        bed_request(&bed, PLAN("{\"stepId\":\"b\",\"type\":\"noop\"}"), "r1");
    CHECK(bed_start(&bed, &other, &err) == ST_CONFLICT);
    CHECK(err.reason == REASON_RUN_ID_TAKEN, "%s", err.msg);
    CHECK(bed.events[EVENT_RUN_STARTED] == 1);
    bed_release(&bed);
}
