#include "engine/status.h"

#include "test.h"

/* WE-2.1.2-6, WE-2.1.2-11, WE-2.1.2-12: five canonical words, or <adapter>/<VALUE>; a canonical
 * word is never given an adapter. */
TEST(substatus_is_canonical_or_scoped_to_an_adapter) {
    static const struct {
        const char *text;
        bool good;
    } cases[] = {{"DRAINING", true},
                 {"RETRYING", true},
                 {"CONTINUE_AS_NEW", true},
                 {"WAITING_APPROVAL", true},
                 {"RECOVERING", true},
                 {"temporal/WORKFLOW_TASK_BACKLOG", true},
                 {"conductor/Zed_42", true},
                 {"mock/X", true},
                 {"BACKLOG", false},
                 {"draining", false},
                 {"", false},
                 {"nomad/X", false},
                 {"local/X", false},
                 {"temporal/", false},
                 {"temporal/A B", false},
                 {"/X", false},
                 {"conductor/DRAINING", false},
                 {"temporal/CONTINUE_AS_NEW", false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        bool good = substatus_check(str_c(cases[i].text), &err) == ST_OK;
        CHECK(good == cases[i].good, "%s", cases[i].text);
        CHECK(good || strcmp(err.reason, "SUBSTATUS_INVALID") == 0);
    }
}

/* WE-2.1.2-7: runId and status always, the others only when they are known. */
TEST(snapshot_json_has_what_is_known) {
    struct run_snapshot s = {.run_id = STR("r\"1"), .status = RUN_NEW};
    struct buf b;
    buf_init(&b, 4096);
    snapshot_json(&s, &b);
    CHECK(str_eq(buf_str(&b), STR("{\"runId\":\"r\\\"1\",\"status\":\"PENDING\"}")));
    buf_clear(&b);
    s = (struct run_snapshot){.run_id = STR("r"),
                              .status = RUN_FAILED,
                              .substatus = STR("temporal/X"),
                              .message = STR("m"),
                              .started_us = 1000000,
                              .completed_us = 2500000};
    snapshot_json(&s, &b);
    CHECK(str_eq(buf_str(&b),
                 STR("{\"runId\":\"r\",\"status\":\"FAILED\",\"substatus\":\"temporal/X\","
                     "\"message\":\"m\",\"startedAt\":\"1970-01-01T00:00:01.000000Z\","
                     "\"completedAt\":\"1970-01-01T00:00:02.500000Z\"}")),
          "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
}

TEST(explanation_json_goes_on_inside_the_snapshot) {
    struct wait waits[] = {{.kind = WAIT_APPROVAL, .step = STR("a"), .since_us = 1000000},
                           {.kind = WAIT_SIGNAL, .step = STR("b"), .on = STR("go")}};
    struct explanation x = {.snapshot = {.run_id = STR("r"), .status = RUN_RUNNING},
                            .waits = waits,
                            .count = 2,
                            .wakes = true,
                            .node = STR("n"),
                            .alive = true};
    struct buf b;
    buf_init(&b, 4096);
    explanation_json(&x, &b);
    CHECK(str_eq(buf_str(&b),
                 STR("{\"runId\":\"r\",\"status\":\"RUNNING\",\"waits\":[{\"kind\":\"approval\","
                     "\"stepId\":\"a\",\"since\":\"1970-01-01T00:00:01.000000Z\"},"
                     "{\"kind\":\"signal\",\"stepId\":\"b\",\"on\":\"go\"}],\"node\":\"n\","
                     "\"nodeAlive\":true,\"nextWake\":\"now\"}")),
          "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
    for (int i = 0; i < WAIT_KIND_COUNT; i++)
        CHECK(strlen(wait_kind_name((enum wait_kind)i)) > 0);
}
