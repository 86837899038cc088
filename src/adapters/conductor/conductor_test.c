/* The provider against a real Conductor server: see rig_test.h. */
#include "adapters/conductor/conductor.h"

#include <stdio.h>
#include <string.h>

#include "adapters/conductor/def.h"
#include "adapters/conductor/rig_test.h"
#include "test.h"

#define EXEC(id, command, more)                                                                    \
    "{'stepId':'" id "','type':'exec','command':['sh','-c','" command "']" more "}"
#define NOOP(id, more) "{'stepId':'" id "','type':'noop'" more "}"
#define AFTER(list) ",'dependsOn':[" list "]"
#define TRACE(name) "echo x >> ../../" name /* a step's own folder is two below the rig's */

static bool is(str text, const char *want) { return str_eq(text, str_c(want)); }

static void check_cluster(struct rig *e, const char *want) {
    RIG_UNTIL(e, is(rig_cluster_status(e), want) || (rig_run_for(e, 100), false));
}

static void run_to_end(struct rig *e, enum run_status want) {
    RIG_UNTIL(e, run_is_final(e->status));
    CHECK(e->status == want, "%s: %s %s", run_status_name(e->status), e->ended_code,
          e->ended_message);
}

static void ask_workflow(struct rig *e, const char *method, const char *before, const char *after) {
    char path[512];
    (void)snprintf(path, sizeof path, "/workflow/%s%s%s", before, e->workflow, after);
    (void)rig_ask(e, method, path, STR_NONE);
}

static str output_of(struct rig *e, const char *step_id) {
    return rig_task(e, step_id, "outputData");
}

static bool says(str text, const char *part) {
    return memmem(text.ptr, text.len, part, strlen(part)) != NULL;
}

TEST(conductor_carries_out_one_step) {
    struct rig e;
    rig_open(&e, EXEC("a", "echo [42]", ",'output':'json'"));
    rig_connect(&e);
    run_to_end(&e, RUN_COMPLETED);
    check_cluster(&e, "COMPLETED");
    CHECK(e.links >= 1 && e.starts == 1 && e.recovered == 0 && e.ended == 0);
    CHECK(rig_step(&e, "a")->starts == 1 && rig_step(&e, "a")->results == 1);
    CHECK(is(rig_task(&e, "a", "status"), "COMPLETED") && rig_task_count(&e, "a") == 1);
    CHECK(says(output_of(&e, "a"), "[42]"), "%.*s", STR_ARG(output_of(&e, "a")));
    CHECK(is(rig_task(&e, "a", "domain"), e.node) && is(str_c(e.queue), e.node));
    rig_close(&e);
}

/* One of its steps is nobody's to execute: it is over when the engine says so. */
TEST(conductor_carries_out_a_diamond) {
    struct rig e;
    rig_open(&e,
             EXEC("a", "true", "") "," EXEC(
                 "b", "true", AFTER("'a'")) ","
                                            "{'stepId':'c','type':'sleep','durationMs':1" AFTER(
                                                "'a'") "}," EXEC("d", "true", AFTER("'b','c'")));
    rig_step(&e, "c")->held = true;
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "b")->state == PROVIDER_STEP_DONE);
    rig_run_for(&e, 1000);
    CHECK(is(rig_task(&e, "c", "status"), "IN_PROGRESS") && rig_task_count(&e, "d") == 0);
    CHECK(rig_step(&e, "d")->starts == 0);
    rig_step(&e, "c")->held = false;
    run_to_end(&e, RUN_COMPLETED);
    check_cluster(&e, "COMPLETED");
    for (const char *id = "abcd"; *id; id++)
        CHECK(rig_task_count(&e, (char[]){*id, 0}) == 1, "%c", *id);
    rig_close(&e);
}

/* A step waits much longer than a lease, and its task is still the first one. Another one is to
 * start though Conductor sees no reason yet: it is asked after, and begins when its task comes. */
TEST(conductor_keeps_a_task_that_waits) {
    struct rig e;
    rig_open(&e, NOOP("a", "") "," EXEC("b", "true", AFTER("'a'")));
    rig_step(&e, "a")->held = true;
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->state == PROVIDER_STEP_OPEN);
    rig_begin(&e, "b");
    rig_run_for(&e, 32000);
    CHECK(is(rig_task(&e, "a", "status"), "IN_PROGRESS") && rig_task_count(&e, "a") == 1);
    CHECK(rig_step(&e, "b")->in_flight && rig_task_count(&e, "b") == 0);
    rig_step(&e, "a")->held = false;
    run_to_end(&e, RUN_COMPLETED);
    check_cluster(&e, "COMPLETED");
    CHECK(rig_task_count(&e, "a") == 1 && rig_task_count(&e, "b") == 1 && e.recovered == 0);
    rig_close(&e);
}

/* Somebody completes a task by hand: the step is carried out all the same. */
TEST(conductor_is_not_who_decides) {
    struct rig e;
    rig_open(&e, NOOP("a", "") "," EXEC("b", TRACE("b"), AFTER("'a'")));
    rig_step(&e, "a")->held = true;
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->state == PROVIDER_STEP_OPEN);
    for (const char *ref = "ab"; *ref; ref++) {
        char path[256];
        (void)snprintf(path, sizeof path, "/tasks/%s/s_%c/COMPLETED", e.workflow, *ref);
        (void)rig_ask(&e, "POST", path, STR("{}"));
        rig_run_for(&e, 1000);
    }
    CHECK(is(rig_cluster_status(&e), "COMPLETED") && rig_step(&e, "b")->starts == 0);
    rig_step(&e, "a")->held = false;
    run_to_end(&e, RUN_COMPLETED);
    CHECK(rig_traces(&e, "b") == 1 && e.ended == 0);
    rig_close(&e);
}

/* The engine's retries: two attempts, one task. */
TEST(conductor_sees_one_task_for_two_attempts) {
    struct rig e;
    rig_open(&e, EXEC("a", TRACE("a"), ",'retry':{'maxAttempts':3}"));
    rig_step(&e, "a")->fails = 1;
    rig_connect(&e);
    run_to_end(&e, RUN_COMPLETED);
    check_cluster(&e, "COMPLETED");
    CHECK(rig_step(&e, "a")->starts == 2 && rig_traces(&e, "a") == 1);
    CHECK(rig_task_count(&e, "a") == 1 && e.recovered == 0);
    rig_close(&e);
}

TEST(conductor_fails_with_the_run) {
    struct rig e;
    rig_open(&e, EXEC("a", "true", "") "," EXEC("b", "exit 3",
                                                AFTER("'a'")) "," EXEC("c", "true", AFTER("'b'")));
    rig_connect(&e);
    run_to_end(&e, RUN_FAILED);
    check_cluster(&e, "FAILED");
    CHECK(is(rig_task(&e, "b", "status"), "FAILED_WITH_TERMINAL_ERROR"));
    CHECK(is(rig_task(&e, "b", "reasonForIncompletion"), "EXIT_CODE: a step failed"));
    CHECK(rig_task_count(&e, "c") == 0 && e.ended == 0);
    rig_close(&e);
}

TEST(conductor_goes_on_without_steps) {
    struct rig e;
    rig_open(&e, EXEC("a", "exit 1", ",'onFailure':'continue'") "," NOOP(
                     "b", AFTER("'a'")) "," EXEC("c", "true", AFTER("'b'")));
    rig_step(&e, "b")->skips = true;
    rig_connect(&e);
    run_to_end(&e, RUN_COMPLETED);
    check_cluster(&e, "COMPLETED");
    CHECK(says(output_of(&e, "a"), "\"failed\":true") &&
          says(output_of(&e, "b"), "\"skipped\":true"));
    CHECK(says(output_of(&e, "c"), "SUCCESS"));
    rig_close(&e);
}

TEST(conductor_pauses_with_a_step_in_flight) {
    struct rig e;
    rig_open(&e, EXEC("a", "sleep 2", "") "," EXEC("b", "true", AFTER("'a'")));
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->in_flight);
    rig_pause(&e, true);
    check_cluster(&e, "PAUSED");
    RIG_UNTIL(&e, rig_step(&e, "a")->state == PROVIDER_STEP_DONE);
    rig_run_for(&e, 6000); /* long enough for a look */
    CHECK(is(rig_task(&e, "a", "status"), "COMPLETED") && rig_task_count(&e, "b") == 0);
    CHECK(is(rig_cluster_status(&e), "PAUSED") && e.signals == 0);
    rig_pause(&e, false);
    run_to_end(&e, RUN_COMPLETED);
    check_cluster(&e, "COMPLETED");
    CHECK(e.signals == 0 && e.ended == 0);
    rig_close(&e);
}

TEST(conductor_passes_on_a_pause_made_there) {
    struct rig e;
    rig_open(&e, NOOP("a", "") "," EXEC("b", "true", AFTER("'a'")));
    rig_step(&e, "a")->held = true;
    e.obeys = true;
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->state == PROVIDER_STEP_OPEN);
    rig_run_for(&e, 1000);
    ask_workflow(&e, "PUT", "", "/pause");
    RIG_UNTIL(&e, e.signals > 0);
    CHECK(is(str_c(e.signal), "PAUSE") && e.paused);
    CHECK(says(str_c(e.signal_id), "conductor:") && says(str_c(e.signal_id), ":paused:"));
    rig_run_for(&e, 6000);
    CHECK(e.signals == 1 && is(rig_cluster_status(&e), "PAUSED"));
    ask_workflow(&e, "PUT", "", "/resume");
    RIG_UNTIL(&e, e.signals > 1);
    CHECK(is(str_c(e.signal), "RESUME") && !e.paused && e.signals == 2);
    rig_step(&e, "a")->held = false;
    run_to_end(&e, RUN_COMPLETED);
    check_cluster(&e, "COMPLETED");
    rig_close(&e);
}

TEST(conductor_cancels) {
    struct rig e;
    rig_open(&e, EXEC("a", "sleep 60", ""));
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->in_flight);
    rig_run_for(&e, 1000);
    e.provider->ops->stop(e.provider, &rig_step(&e, "a")->asked);
    RIG_UNTIL(&e, rig_step(&e, "a")->results == 1);
    CHECK(is(str_c(rig_step(&e, "a")->code), "CANCELLED"));
    rig_end(&e, RUN_CANCELLED, NULL, NULL);
    check_cluster(&e, "TERMINATED");
    CHECK(e.ended == 0);
    rig_close(&e);
}

/* Stopped before its task was there: it is answered all the same. */
TEST(conductor_stops_an_attempt_without_a_task) {
    struct rig e;
    rig_open(&e, NOOP("a", "") "," EXEC("b", "true", AFTER("'a'")));
    rig_step(&e, "a")->held = true;
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->state == PROVIDER_STEP_OPEN);
    struct rig_step *b = rig_step(&e, "b");
    rig_begin(&e, "b");
    rig_run_for(&e, 500);
    CHECK(b->in_flight && b->results == 0);
    e.provider->ops->stop(e.provider, &b->asked);
    RIG_UNTIL(&e, b->results == 1);
    CHECK(is(str_c(b->code), "CANCELLED"));
    run_to_end(&e, RUN_FAILED);
    check_cluster(&e, "FAILED");
    CHECK(is(rig_task(&e, "a", "reasonForIncompletion"), "CANCELLED: a step failed"));
    rig_close(&e);
}

TEST(conductor_tells_of_an_end_made_there) {
    struct rig e;
    rig_open(&e, EXEC("a", "sleep 60", ""));
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->in_flight);
    rig_run_for(&e, 1000);
    ask_workflow(&e, "DELETE", "", "?reason=enough");
    RIG_UNTIL(&e, e.ended > 0);
    CHECK(is(str_c(e.ended_code), "PROVIDER_TERMINATED"), "%s", e.ended_code);
    CHECK(is(str_c(e.ended_message), "enough"), "%s", e.ended_message);
    RIG_UNTIL(&e, rig_step(&e, "a")->results == 1);
    rig_run_for(&e, 6000);
    CHECK(e.ended == 1 && is(rig_cluster_status(&e), "TERMINATED"));
    rig_close(&e);
}

/* The ledger knows of a workflow that the server has not, or has no more. */
TEST(conductor_tells_of_a_workflow_that_is_gone) {
    struct rig e;
    rig_open(&e, EXEC("a", "true", ""));
    (void)snprintf(e.workflow, sizeof e.workflow, "00000000-0000-4000-8000-000000000000");
    rig_connect(&e);
    RIG_UNTIL(&e, e.ended > 0);
    CHECK(is(str_c(e.ended_code), "PROVIDER_LOST"), "%s", e.ended_code);
    RIG_UNTIL(&e, !rig_step(&e, "a")->in_flight);
    CHECK(e.ended == 1 && e.starts == 0);
    rig_close(&e);
}

/* More steps wait than tasks are kept alive: the others are given back, and answered by their id.
 */
TEST(conductor_shelves_what_it_has_no_room_for) {
    char text[4096];
    struct buf steps;
    buf_init_fixed(&steps, text, sizeof(text)); /* the test may end in rig_open(): nothing to free */
    for (int i = 0; i < 80; i++)
        buf_printf(&steps, "%s{'stepId':'n%d','type':'noop'}", i > 0 ? "," : "", i);
    buf_put_char(&steps, 0);
    CHECK(!steps.full);
    struct rig e;
    rig_open(&e, text);
    for (int i = 0; i < 80; i++)
        e.steps[i].held = true;
    rig_connect(&e);
    RIG_UNTIL(&e, e.workflow[0]);
    rig_run_for(&e, 8000);
    for (int i = 0; i < 80; i++)
        e.steps[i].held = false;
    run_to_end(&e, RUN_COMPLETED);
    check_cluster(&e, "COMPLETED");
    rig_close(&e);
}
