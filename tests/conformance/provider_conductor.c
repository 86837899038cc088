/* Runs that a real Conductor dispatches: the same plans, the same events, and the ids of both
 * sides. (Those of Temporal are in provider_runs.c.) */
#include "base/os.h"
#include "conformance/provider_helper.h"

/* WE-2.1-9, conductor: the plan says any, the context says conductor: it runs there. Steps that
 * nobody executes are tasks there, too; the history is that of a local run but for RunQueued and
 * the link. */
TEST_DB(provider_conductor_carries_out_a_plan) {
    struct cluster c;
    cluster_conductor(&c, url);
    cluster_open(&c);
    cluster_start(
        &c, PLAN_META(
                ",\"targetAdapter\":\"any\"", "\"concurrency\":1,",
                STEP("a", "exec",
                     ",\"command\":[\"echo\",\"{\\\"n\\\":7}\"],"
                     "\"output\":\"json\""),
                STEP("b", "exec", ",\"command\":[\"echo\",\"{{ steps.a.output.n }}\"]" AFTER("a")),
                STEP("s", "sleep", ",\"durationMs\":100" AFTER("a")),
                STEP("no", "exec",
                     ",\"command\":[\"false\"],\"runIf\":\"parameters.x == 1\"" AFTER("a")),
                NOOP("d", ",\"dependsOn\":[\"b\",\"s\",\"no\"]")));
    CHECK(cluster_end(&c) == RUN_COMPLETED, "%.*s", STR_ARG(bed_history(&c.bed, c.run)));
    check_history(&c.bed, c.run,
                  "RunQueued RunProviderLinked RunStarted a:StepStarted#1 a:StepCompleted#1 "
                  "b:StepStarted#1 b:StepCompleted#1 s:StepStarted#1 s:StepCompleted#1 "
                  "no:StepSkipped#1 d:StepStarted#1 d:StepCompleted#1 RunCompleted");
    CHECK(holds(bed_payload(&c.bed, c.run, EVENT_STEP_COMPLETED, 1), "7"));
    cluster_until_shows(&c, "\"status\":\"COMPLETED\"");
    str tasks = conductor_says(&c, "GET", "workflow/%.*s?includeTasks=true",
                               STR_ARG(cluster_link(&c, "workflowId")));
    CHECK(holds(tasks, "s_a") && holds(tasks, "s_s") && holds(tasks, "s_no") &&
          holds(tasks, "s_d"));
    cluster_release(&c);
}

/* WE-2.1.3-10, conductor: Conductor's own workflow id resolves to run, tenant, project and
 * environment, and a pause that is made there, with nothing but that id, is recorded with them. */
TEST_DB(provider_conductor_resolves_native_ids) {
    struct cluster c;
    struct run_info info = {0};
    struct error err = {0};
    cluster_conductor(&c, url);
    cluster_open(&c);
    cluster_start(&c, PLAN(STEP("w", "wait", ",\"signal\":\"go\""), SH("a", "true", AFTER("w"))));
    until_status(&c.bed, c.run, RUN_RUNNING);
    str workflow = cluster_link(&c, "workflowId");
    CHECK(ledger_find_provider(host_reader(c.bed.host), STR_NONE, STR("conductor"), workflow,
                               cluster_link(&c, "providerRunId"), &c.bed.arena, &info,
                               &err) == ST_OK,
          "%s", err.msg);
    CHECK(is(info.run_id, c.run) && is(info.tenant_id, "acme") && is(info.project_id, "shop") &&
          is(info.environment_id, "prod"));
    (void)conductor_says(&c, "PUT", "workflow/%.*s/pause", STR_ARG(workflow));
    until_status(&c.bed, c.run, RUN_PAUSED);
    cluster_has_ids(&c, EVENT_RUN_PAUSED);
    tell(&c.bed, c.run, "RESUME", "r1");
    tell(&c.bed, c.run, "go", "g1");
    CHECK(cluster_end(&c) == RUN_COMPLETED, "%.*s", STR_ARG(bed_history(&c.bed, c.run)));
    cluster_release(&c);
}

/* WE-2.1.2-1: paused with a step in flight, a run on Conductor is DRAINING until that step has
 * ended, and no longer. WE-2.1.2-14: nothing new starts meanwhile. WE-2.1.2-15: the step in flight
 * is left to finish: it ends with StepCompleted while the run is PAUSED, there and here. */
TEST_DB(provider_conductor_drains_when_paused) {
    struct cluster c;
    cluster_conductor(&c, url);
    cluster_open(&c);
    const char *plan = with_folder(
        &c.bed, PLAN(SH("a", "touch %s/a; until test -e %s/go; do sleep 0.05; done", ""),
                     SH("b", "true", AFTER("a"))));
    cluster_start(&c, plan);
    until_file(&c.bed, "a");
    tell(&c.bed, c.run, "PAUSE", "p1");
    until_status(&c.bed, c.run, RUN_PAUSED);
    CHECK(is(shown(&c.bed, c.run), "PAUSED/DRAINING"));
    cluster_until_shows(&c, "\"status\":\"PAUSED\"");
    CHECK(is(shown(&c.bed, c.run), "PAUSED/DRAINING"));
    struct error err = {0};
    CHECK(file_replace(path_in(&c.bed, "go"), STR("x"), &err) == ST_OK);
    until_rows(&c.bed, c.run, EVENT_STEP_COMPLETED, 1);
    CHECK(is(shown(&c.bed, c.run), "PAUSED"));
    CHECK(count_rows(&c.bed, c.run, EVENT_RUN_PAUSED) == 1 &&
          count_rows(&c.bed, c.run, EVENT_RUN_RESUMED) == 0 &&
          count_rows(&c.bed, c.run, EVENT_STEP_FAILED) == 0);
    cluster_until_shows(&c, "\"status\":\"PAUSED\"");
    bed_turn(&c.bed, 500);
    CHECK(count_rows(&c.bed, c.run, EVENT_STEP_STARTED) == 1);
    tell(&c.bed, c.run, "RESUME", "r1");
    CHECK(cluster_end(&c) == RUN_COMPLETED, "%.*s", STR_ARG(bed_history(&c.bed, c.run)));
    cluster_until_shows(&c, "\"status\":\"COMPLETED\"");
    cluster_release(&c);
}

/* Cancelled here, the workflow is terminated there; terminated there, the run is cancelled here. */
TEST_DB(provider_conductor_ends_on_both_sides) {
    struct cluster c;
    cluster_conductor(&c, url);
    cluster_open(&c);
    cluster_start(&c, PLAN(SH("a", "exec sleep 60", "")));
    until_rows(&c.bed, c.run, EVENT_STEP_STARTED, 1);
    tell(&c.bed, c.run, "CANCEL", "c1");
    CHECK(cluster_end(&c) == RUN_CANCELLED);
    cluster_until_shows(&c, "\"status\":\"TERMINATED\"");

    snprintf(c.run, sizeof(c.run), "%s-t", c.queue);
    cluster_start(&c, PLAN(SH("a", "exec sleep 60", "")));
    until_rows(&c.bed, c.run, EVENT_STEP_STARTED, 1);
    (void)conductor_says(&c, "DELETE", "workflow/%.*s?reason=enough",
                         STR_ARG(cluster_link(&c, "workflowId")));
    CHECK(cluster_end(&c) == RUN_CANCELLED, "%.*s", STR_ARG(bed_history(&c.bed, c.run)));
    cluster_release(&c);
}

/* A failing step is retried by the plan's rules inside its one task; a run that fails has failed
 * there, too. */
TEST_DB(provider_conductor_retries_as_the_plan_says) {
    struct cluster c;
    cluster_conductor(&c, url);
    cluster_open(&c);
    cluster_start(&c, PLAN(SH("a", "exit 3",
                              ",\"retry\":{\"maxAttempts\":2,\"initialMs\":50,\"factor\":1,"
                              "\"maxMs\":50,\"jitter\":0}")));
    CHECK(cluster_end(&c) == RUN_FAILED);
    check_history(&c.bed, c.run,
                  "RunQueued RunProviderLinked RunStarted a:StepStarted#1 a:StepFailed#1 "
                  "a:StepRetried#2 a:StepStarted#2 a:StepFailed#2 RunFailed");
    cluster_until_shows(&c, "\"status\":\"FAILED\"");
    cluster_release(&c);
}

/* The node restarts in the middle of a step: the step is executed again as the same logical
 * attempt, in the same workflow. */
TEST_DB(provider_conductor_survives_a_restart) {
    struct cluster c;
    struct error err = {0};
    cluster_conductor(&c, url);
    cluster_open(&c);
    cluster_start(&c, with_folder(&c.bed, PLAN(SH("a",
                                                  "echo x >> %s/a; test -e %s/again || exec "
                                                  "sleep 60",
                                                  ""),
                                               SH("b", "true", AFTER("a")))));
    until_file(&c.bed, "a");
    CHECK(file_replace(path_in(&c.bed, "again"), STR("x"), &err) == ST_OK);
    str workflow = cluster_link(&c, "workflowId");
    bed_reopen(&c.bed);
    CHECK(cluster_end(&c) == RUN_COMPLETED, "%.*s", STR_ARG(bed_history(&c.bed, c.run)));
    CHECK(count_rows(&c.bed, c.run, EVENT_STEP_STARTED) == 2);
    CHECK(str_eq(cluster_link(&c, "workflowId"), workflow));
    cluster_until_shows(&c, "\"status\":\"COMPLETED\"");
    cluster_release(&c);
}
