/* The Conductor provider when something goes away: processes, connections, answers. */
#include <stdio.h>
#include <string.h>

#include "adapters/conductor/conductor.h"
#include "adapters/conductor/def.h"
#include "adapters/conductor/rig_test.h"
#include "test.h"

#define EXEC(id, command, more)                                                                    \
    "{'stepId':'" id "','type':'exec','command':['sh','-c','" command "']" more "}"
#define SLOW EXEC("a", "echo x >> ../../a; test $(wc -l < ../../a) -gt 1 || sleep 60", "")

static bool is(str text, const char *want) { return str_eq(text, str_c(want)); }

static void finish(struct rig *e) {
    RIG_UNTIL(e, run_is_final(e->status));
    CHECK(e->status == RUN_COMPLETED, "%s %s", e->ended_code, e->ended_message);
    RIG_UNTIL(e, is(rig_cluster_status(e), "COMPLETED") || (rig_run_for(e, 100), false));
}

/* It closes in peace: the task is given back, and comes at once to the next one. */
TEST(conductor_gives_back_at_the_end_of_a_process) {
    struct rig e;
    rig_open(&e, SLOW);
    rig_connect(&e);
    RIG_UNTIL(&e, rig_traces(&e, "a") == 1);
    rig_disconnect(&e);
    CHECK(is(rig_task(&e, "a", "status"), "SCHEDULED"));
    rig_connect(&e);
    finish(&e);
    CHECK(rig_traces(&e, "a") == 2 && rig_task_count(&e, "a") == 1 && e.starts == 1);
    CHECK(e.recovered == 1 && e.recovered_attempt == 1 && e.recovered_times == 1);
    rig_close(&e);
}

/* It dies: the lease runs out, and the step is another worker's. */
TEST(conductor_recovers_after_a_crash) {
    struct rig e;
    rig_open(&e, SLOW);
    rig_connect(&e);
    RIG_UNTIL(&e, rig_traces(&e, "a") == 1);
    rig_crash(&e);
    CHECK(is(rig_task(&e, "a", "status"), "IN_PROGRESS"));
    rig_connect(&e);
    finish(&e);
    CHECK(rig_traces(&e, "a") == 2 && rig_task_count(&e, "a") == 2 && e.starts == 1);
    CHECK(e.recovered == 1 && e.recovered_attempt == 1 && e.recovered_times == 1);
    rig_close(&e);
}

/* Another node takes the run over: its tasks are still offered in the domain of the first. */
TEST(conductor_takes_over_from_another_node) {
    struct rig e;
    rig_open(&e, SLOW "," EXEC("b", "true", ",'dependsOn':['a']"));
    rig_connect(&e);
    RIG_UNTIL(&e, rig_traces(&e, "a") == 1);
    rig_disconnect(&e);
    (void)snprintf(e.node, sizeof e.node, "another");
    rig_connect(&e);
    finish(&e);
    CHECK(!is(str_c(e.queue), "another") && rig_task_count(&e, "a") == 1);
    rig_close(&e);
}

/* A task of a run that is not in memory, of one that is not ours, of one that is ours again. */
TEST(conductor_has_runs_looked_at) {
    struct rig e;
    rig_open(&e, SLOW);
    rig_connect(&e);
    RIG_UNTIL(&e, rig_traces(&e, "a") == 1);
    rig_disconnect(&e);
    e.loaded = false;
    e.not_ours = true;
    rig_connect(&e);
    rig_run_for(&e, 2000);
    CHECK(e.looks == 0 && is(rig_task(&e, "a", "status"), "SCHEDULED"));
    e.not_ours = false;
    RIG_UNTIL(&e, e.looks == 1);
    finish(&e);
    CHECK(rig_task_count(&e, "a") == 1 && e.starts == 1);
    rig_close(&e);
}

/* What was settled while nobody was there is answered when its task comes. */
TEST(conductor_answers_what_is_settled) {
    struct rig e;
    rig_open(&e, SLOW "," EXEC("b", "true", ",'dependsOn':['a']"));
    rig_connect(&e);
    RIG_UNTIL(&e, rig_traces(&e, "a") == 1);
    rig_disconnect(&e);
    rig_step(&e, "a")->state = PROVIDER_STEP_DONE;
    rig_connect(&e);
    finish(&e);
    CHECK(rig_traces(&e, "a") == 1 && is(rig_task(&e, "a", "status"), "COMPLETED"));
    rig_close(&e);
}

TEST(conductor_starts_once_though_an_answer_is_lost) {
    struct rig e;
    rig_open(&e, EXEC("a", "true", ""));
    e.lose_answers_of = 1;
    rig_connect(&e);
    finish(&e);
    CHECK(e.starts == 1 && rig_task_count(&e, "a") == 1);
    rig_close(&e);
}

/* The ledger does not know of a workflow that is there: the process died before it was told. */
TEST(conductor_finds_what_it_started) {
    struct rig e;
    rig_open(&e, SLOW);
    rig_connect(&e);
    RIG_UNTIL(&e, rig_traces(&e, "a") == 1);
    rig_disconnect(&e);
    e.workflow[0] = e.queue[0] = '\0';
    rig_connect(&e);
    finish(&e);
    CHECK(e.starts == 1 && rig_task_count(&e, "a") == 1);
    rig_close(&e);
}

TEST(conductor_ends_a_second_workflow) {
    struct rig e;
    rig_open(&e, EXEC("a", "sleep 5", ""));
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->in_flight);
    struct buf body;
    struct error err = {0};
    buf_init(&body, 1 << 16);
    struct def_start start = {.run_id = str_c(e.run_id), .plan = e.plan, .domain = str_c(e.node)};
    CHECK(def_start_json(&start, &e.arena, &body, &err) == ST_OK);
    (void)rig_ask(&e, "POST", "/workflow", buf_str(&body));
    buf_clear(&body);
    def_workflow_name(e.plan->plan_id, &body);
    char name[128];
    (void)snprintf(name, sizeof name, "%.*s", STR_ARG(buf_str(&body)));
    buf_release(&body);
    finish(&e);
    CHECK(rig_step(&e, "a")->starts == 1 && rig_step(&e, "a")->results == 1);
    struct buf ids;
    char path[256];
    buf_init(&ids, 1 << 12);
    buf_printf(&ids, "[\"%s\"]", e.run_id);
    (void)snprintf(path, sizeof path, "/workflow/%s/correlated?includeClosed=true", name);
    yyjson_val *both = json_member(rig_ask(&e, "POST", path, buf_str(&ids)), e.run_id);
    str first = STR("");
    str second = STR("");
    CHECK(yyjson_arr_size(both) == 2);
    CHECK(json_str(json_member(yyjson_arr_get(both, 0), "status"), &first) &&
          json_str(json_member(yyjson_arr_get(both, 1), "status"), &second));
    CHECK(is(first, "TERMINATED") != is(second, "TERMINATED"));
    CHECK(is(first, "COMPLETED") != is(second, "COMPLETED"));
    buf_release(&ids);
    rig_close(&e);
}

TEST(conductor_waits_for_the_cluster) {
    struct rig e;
    rig_open(&e, EXEC("a", "true", ""));
    e.down = true;
    rig_connect(&e);
    rig_run_for(&e, 3000);
    CHECK(e.links == 0 && e.ended == 0);
    e.down = false;
    finish(&e);
    CHECK(e.starts == 1);
    rig_close(&e);
}

/* Cut off in the middle: the step goes on, and is answered when there is a way again. */
TEST(conductor_survives_a_cut) {
    struct rig e;
    rig_open(&e, EXEC("a", "sleep 3", "") "," EXEC("b", "true", ",'dependsOn':['a']"));
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->in_flight);
    rig_run_for(&e, 1000);
    e.down = true;
    RIG_UNTIL(&e, rig_step(&e, "a")->state == PROVIDER_STEP_DONE);
    rig_run_for(&e, 3000);
    CHECK(rig_step(&e, "b")->results == 0);
    e.down = false;
    finish(&e);
    CHECK(rig_task_count(&e, "a") == 1);
    rig_close(&e);
}

static void check_left_open(enum run_status end, const char *want) {
    struct rig e;
    rig_open(&e, EXEC("a", "sleep 60", ""));
    rig_connect(&e);
    RIG_UNTIL(&e, rig_step(&e, "a")->in_flight);
    rig_run_for(&e, 500);
    rig_crash(&e);
    e.status = end;
    e.loaded = false;
    rig_connect(&e);
    RIG_UNTIL(&e, is(rig_cluster_status(&e), want) || (rig_run_for(&e, 100), false));
    rig_close(&e);
}

/* The run ended, and the process died before its workflow did. */
TEST(conductor_ends_what_was_left_open) {
    check_left_open(RUN_CANCELLED, "TERMINATED");
    check_left_open(RUN_FAILED, "TERMINATED"); /* there is no task in hand to show it */
}

/* Nobody is there, and it is closed: in every state, nothing is left behind. */
TEST(conductor_closes_from_any_state) {
    struct rig e;
    for (int i = 0; i < 6; i++) {
        rig_open(&e, EXEC("a", "sleep 60", "") "," EXEC("b", "true", ",'dependsOn':['a']"));
        e.down = i == 0;
        rig_connect(&e);
        rig_run_for(&e, (int64_t)60 * i * i);
        if (i == 4) rig_pause(&e, true);
        if (i == 5) rig_end(&e, RUN_CANCELLED, NULL, NULL);
        rig_close(&e);
    }
}

TEST(conductor_refuses_a_url_that_is_none) {
    static const char *const urls[] = {"", "conductor:8080", "ftp://conductor:8080",
                                       "http://user@conductor:8080", "http://conductor:8080/?a=1"};
    uv_loop_t loop;
    CHECK(uv_loop_init(&loop) == 0);
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        struct error err = {0};
        struct provider *provider = NULL;
        struct provider_ports ports = {0};
        struct conductor_options options = {.url = str_c(urls[i]), .node = STR("n")};
        CHECK(conductor_open(&loop, &options, &ports, &provider, &err) == ST_INVALID, "%s",
              urls[i]);
        CHECK(is(str_c(reason_name(err.reason)), "CONDUCTOR_URL_INVALID"));
    }
    CHECK(uv_loop_close(&loop) == 0);
}
