/* The provider against a real server. */
#include "adapters/temporal/temporal.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "adapters/temporal/world_test.h"
#include "test.h"

enum { RUNNING = 1, COMPLETED = 2, FAILED = 3, CANCELED = 4, TERMINATED = 5, CONTINUED = 6 };

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }
static bool has(const char *a, const char *b) { return strstr(a, b) != NULL; }

TEST(temporal_runs_a_step_and_closes) {
    struct world w;
    struct shot s;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    WAIT_FOR(&w, run->links > 0);
    CHECK(run->links == 1 && run->continued_links == 0 && run->execution[0]);
    CHECK(has(run->queue, ".n1"), "%s", run->queue);
    fake_start(run, p, &s, "one", 1);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(s.ok && is(s.output, "{\"n\":1}"), "%s %s %s", s.output, s.code, s.message);
    CHECK(lines_in(&w, "one") == 1);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    CHECK(run->links == 1 && run->signals == 0 && run->ended == 0 && run->recovered == 0);
    world_close(&w);
}

TEST(temporal_runs_steps_beside_each_other_and_tells_of_failures) {
    struct world w;
    struct shot s[4];
    static const char *const names[] = {"one", "two", "three", "bad"};
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    w.plan_waits = 2;
    fake_open(run, p);
    for (size_t i = 0; i < COUNT_OF(s); i++) /* before there is an execution: they wait for it */
        fake_start(run, p, &s[i], names[i], 1);
    for (size_t i = 0; i < COUNT_OF(s); i++)
        WAIT_FOR(&w, shot_over(&s[i]));
    CHECK(s[0].ok && is(s[0].output, "{\"n\":1}"));
    CHECK(s[1].ok && is(s[1].output, "\"two\""));
    CHECK(s[2].ok && is(s[2].output, ""));
    CHECK(!s[3].ok && is(s[3].code, "EXIT_CODE"), "%s", s[3].code);
    CHECK(has(s[3].message, "code 3") && has(s[3].detail, "\"exitCode\":3"));
    struct shot again; /* what the engine decides, not the cluster */
    fake_start(run, p, &again, "bad", 2);
    WAIT_FOR(&w, shot_over(&again));
    CHECK(!again.ok && is(again.code, "EXIT_CODE") && lines_in(&w, "bad") == 2);
    fake_end(run, p, RUN_FAILED);
    hand_wait_status(run, FAILED);
    CHECK(run->recovered == 0);
    world_close(&w);
}

TEST(temporal_refuses_attempts_whose_plan_is_no_good) {
    struct world w;
    struct shot s;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    w.plan_error = REASON_PLAN_SIZE_MISMATCH;
    fake_open(run, p);
    fake_start(run, p, &s, "one", 1);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(!s.ok && is(s.code, "PLAN_SIZE_MISMATCH") && has(s.message, "no good"));
    w.bad_ref = true;
    fake_start(run, p, &s, "one", 2);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(!s.ok && is(s.code, "ATTEMPT_INVALID"), "%s", s.code);
    CHECK(lines_in(&w, "one") == 0);
    world_close(&w);
}

TEST(temporal_stops_attempts) {
    struct world w;
    struct shot s[2];
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 1);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s[0], "slow", 1);
    WAIT_FOR(&w, lines_in(&w, "slow") == 1);
    fake_start(run, p, &s[1], "one", 1); /* waits for the slot */
    world_sleep(&w, 500);
    p->ops->stop(p, &s[1].attempt);
    WAIT_FOR(&w, shot_over(&s[1]));
    CHECK(!s[1].ok && is(s[1].code, "CANCELLED"), "%s", s[1].code);
    CHECK(s[0].answers == 0 && lines_in(&w, "one") == 0);
    p->ops->stop(p, &s[0].attempt);
    WAIT_FOR(&w, shot_over(&s[0]));
    CHECK(!s[0].ok && is(s[0].code, "CANCELLED"), "%s", s[0].code);
    fake_end(run, p, RUN_CANCELLED);
    hand_wait_status(run, CANCELED);
    world_close(&w);
}

/* ---- workers come and go ---- */

static pid_t worker_begin(const struct world *w) {
    char dir[512];
    char queue[64];
    snprintf(dir, sizeof dir, "%s", w->dir);
    snprintf(queue, sizeof queue, "%s", w->queue);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0) return pid;
    struct world other; /* never returns to the test */
    world_open_in(&other, dir, queue);
    other.lent = true;
    (void)world_provider(&other, "victim", 4);
    for (;;)
        uv_run(&other.loop, UV_RUN_ONCE);
}

TEST(temporal_gives_the_attempt_of_a_dead_worker_to_another) {
    struct world w;
    struct shot s;
    world_open(&w);
    pid_t worker = worker_begin(&w);
    w.options.look_ms = 500;
    struct provider *p = world_provider(&w, "n1", -1); /* decides, and executes nothing */
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s, "once", 1);
    WAIT_FOR(&w, lines_in(&w, "once") == 1);
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
    struct provider *other = world_provider(&w, "n2", 4);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(s.ok && is(s.output, "\"again\""), "%s %s", s.code, s.message);
    CHECK(lines_in(&w, "once") == 2);
    CHECK(run->recovered > 0 && run->recovered_times == 1);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_drop(&w, &other);
    world_close(&w);
}

TEST(temporal_hands_over_when_a_worker_shuts_down) {
    struct world w;
    struct shot s;
    world_open(&w);
    w.options.heartbeat_ms = 60000; /* it is not that which ends the attempt */
    struct provider *p = world_provider(&w, "n1", -1);
    struct provider *worker = world_provider(&w, "n2", 2);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s, "once", 1);
    WAIT_FOR(&w, lines_in(&w, "once") == 1);
    world_drop(&w, &worker);
    worker = world_provider(&w, "n3", 2);
    uint64_t begun = uv_now(&w.loop);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(uv_now(&w.loop) - begun < 30000);
    CHECK(s.ok && lines_in(&w, "once") == 2 && run->recovered_times == 1);
    world_drop(&w, &worker);
    world_close(&w);
}

TEST(temporal_finds_its_attempts_again_after_a_restart) {
    struct world w;
    struct shot first;
    struct shot again[2];
    struct shot other;
    world_open(&w);
    struct provider *worker = world_provider(&w, "n2", 4);
    w.p = NULL;
    struct provider *p = world_provider(&w, "n1", -1);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &first, "while", 1);
    WAIT_FOR(&w, lines_in(&w, "while") == 1);
    world_drop(&w, &p); /* pending */
    p = world_provider(&w, "n1", -1);
    fake_open_linked(run, p);
    fake_start(run, p, &again[0], "while", 1);
    fake_start(run, p, &other, "two", 1); /* not known there yet */
    world_sleep(&w, 300);
    CHECK(again[0].answers == 0);
    WAIT_FOR(&w, shot_over(&again[0]) && shot_over(&other));
    CHECK(again[0].ok && is(again[0].output, "\"done\"") && other.ok);
    CHECK(lines_in(&w, "while") == 1 && first.answers == 0);

    fake_start(run, p, &first, "while", 2);
    WAIT_FOR(&w, lines_in(&w, "while") == 2);
    world_drop(&w, &p);
    WAIT_FOR(&w, lines_in(&w, "while-end") == 2); /* it ends while nobody looks */
    world_sleep(&w, 500);
    p = world_provider(&w, "n1", -1);
    fake_open_linked(run, p);
    fake_start(run, p, &again[1], "while", 2);
    WAIT_FOR(&w, shot_over(&again[1]));
    CHECK(again[1].ok && is(again[1].output, "\"done\""));
    CHECK(lines_in(&w, "while") == 2 && first.answers == 0);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_drop(&w, &worker);
    world_close(&w);
}

static struct shot adopted; /* what the engine wants of a run that it is made to look at */
static void adopt(struct fake_run *run) {
    fake_open_linked(run, run->w->p);
    fake_start(run, run->w->p, &adopted, "two", 1);
}

TEST(temporal_asks_the_engine_for_runs_that_it_does_not_know) {
    struct world w;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    WAIT_FOR(&w, run->links == 1);
    world_sleep(&w, 500);
    world_drop(&w, &p);
    p = world_provider(&w, "n1", 0);
    run->on_look = adopt;
    hand_signal(run, "PAUSE", NULL);
    WAIT_FOR(&w, run->looks == 1 && run->signals == 1);
    WAIT_FOR(&w, shot_over(&adopted));
    CHECK(adopted.ok && is(run->signal, "PAUSE"));
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_close(&w);
}

TEST(temporal_takes_over_the_runs_of_another_node) {
    struct world w;
    struct shot s[2];
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s[0], "one", 1);
    WAIT_FOR(&w, shot_over(&s[0]));
    world_drop(&w, &p);
    p = world_provider(&w, "n2", 0);
    fake_open_linked(run, p);
    fake_start(run, p, &s[1], "two", 1);
    WAIT_FOR(&w, shot_over(&s[1]));
    CHECK(s[1].ok && has(run->queue, ".n1"));
    hand_signal(run, "RESUME", NULL);
    WAIT_FOR(&w, run->signals == 1);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_close(&w);
}

TEST(temporal_leaves_attempts_to_whoever_goes_on) {
    struct world w;
    struct shot left;
    struct shot s;
    world_open(&w);
    struct provider *worker = world_provider(&w, "n2", 4);
    w.p = NULL;
    struct provider *p = world_provider(&w, "n1", -1);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &left, "while", 1);
    WAIT_FOR(&w, lines_in(&w, "while") == 1);
    p->ops->leave(p, &left.attempt);
    CHECK(shot_over(&left) && is(left.code, "CANCELLED"));
    run->ours = false; /* its lease is somebody else's for a while */
    WAIT_FOR(&w, lines_in(&w, "while-end") == 1);
    world_sleep(&w, 1000);
    CHECK(run->looks == 0);
    run->ours = true;
    WAIT_FOR(&w, run->looks == 1);
    fake_open_linked(run, p);
    fake_start(run, p, &s, "while", 1);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(s.ok && lines_in(&w, "while") == 1);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_drop(&w, &worker);
    world_close(&w);
}

TEST(temporal_forgets_idle_runs_and_finds_them_again) {
    struct world w;
    struct shot s[2];
    world_open(&w);
    w.options.idle_ms = 200;
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s[0], "one", 1);
    WAIT_FOR(&w, shot_over(&s[0]));
    world_sleep(&w, 1000);
    fake_start(run, p, &s[1], "two", 1); /* without having been told of the run */
    WAIT_FOR(&w, shot_over(&s[1]));
    CHECK(s[1].ok && run->links >= 2 && run->ended == 0);
    world_sleep(&w, 1000);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_close(&w);
}

/* ---- the cluster's own tools ---- */

TEST(temporal_brings_signals_and_cancellations) {
    struct world w;
    struct shot s;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    WAIT_FOR(&w, run->links == 1);
    hand_signal(run, "PAUSE", "{\"signalId\":\"s-1\",\"reason\":\"lunch\"}");
    WAIT_FOR(&w, run->signals == 1);
    CHECK(is(run->signal, "PAUSE") && is(run->signal_id, "s-1") && is(run->reason, "lunch"));
    CHECK(is(run->actor, "ann@desk") && is(run->payload, ""));
    hand_signal(run, "APPROVE", "{\"stepId\":\"gate\",\"payload\":{\"ok\":true}}");
    WAIT_FOR(&w, run->signals == 2);
    CHECK(is(run->step_id, "gate") && is(run->payload, "{\"ok\":true}"));
    CHECK(has(run->signal_id, "temporal:") && has(run->signal_id, run->execution));
    hand_signal(run, "paid", "{\"order\":7}");
    WAIT_FOR(&w, run->signals == 3);
    CHECK(is(run->signal, "paid") && is(run->payload, "{\"order\":7}"));
    hand_signal(run, "RETRY_STEP", "{}"); /* of no step: not a signal */
    hand_signal(run, "cairn.anything", NULL);
    fake_start(run, p, &s, "two", 1);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(run->signals == 3);
    hand_cancel(run);
    WAIT_FOR(&w, run->signals == 4);
    CHECK(is(run->signal, "CANCEL") && is(run->reason, "not today"));
    CHECK(has(run->signal_id, ":cancel"));
    fake_end(run, p, RUN_CANCELLED);
    hand_wait_status(run, CANCELED);
    CHECK(run->signals == 4);
    world_close(&w);
}

TEST(temporal_tells_when_an_execution_was_ended_by_somebody_else) {
    struct world w;
    struct shot s;
    world_open(&w);
    w.options.look_ms = 500;
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s, "slow", 1);
    WAIT_FOR(&w, lines_in(&w, "slow") == 1);
    hand_terminate(run, "enough");
    WAIT_FOR(&w, run->ended == 1);
    CHECK(is(run->ended_code, "PROVIDER_TERMINATED"), "%s", run->ended_code);
    CHECK(has(run->ended_message, "enough"), "%s", run->ended_message);
    CHECK(s.answers == 0);
    p->ops->stop(p, &s.attempt);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(is(s.code, "CANCELLED"));
    fake_end(run, p, RUN_FAILED);

    struct fake_run *lost = run_add(&w); /* as after the cluster's retention */
    snprintf(lost->execution, sizeof lost->execution, "%s", run->execution);
    fake_open_linked(lost, p);
    WAIT_FOR(&w, lost->ended == 1);
    CHECK(is(lost->ended_code, "PROVIDER_LOST"), "%s", lost->ended_code);
    CHECK(run->ended == 1);
    world_close(&w);
}

TEST(temporal_reads_histories_of_several_pages) {
    struct world w;
    struct shot s;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s, "slow", 1); /* pending: it cannot be continued as new */
    WAIT_FOR(&w, lines_in(&w, "slow") == 1);
    world_drop(&w, &p);
    for (int i = 0; i < 300; i++)
        hand_signal(run, "tick", NULL);
    p = world_provider(&w, "n1", 0);
    fake_open_linked(run, p);
    fake_start(run, p, &s, "slow", 1);
    WAIT_FOR(&w, run->signals == 300);
    p->ops->stop(p, &s.attempt);
    WAIT_FOR(&w, shot_over(&s));
    fake_end(run, p, RUN_CANCELLED);
    hand_wait_status(run, CANCELED);
    CHECK(run->signals == 300, "%d", run->signals);
    world_close(&w);
}

/* ---- long histories ---- */

TEST(temporal_continues_as_new) {
    struct world w;
    struct shot s[60];
    char first[64];
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    WAIT_FOR(&w, run->links == 1);
    snprintf(first, sizeof first, "%s", run->execution);
    size_t i = 0;
    for (; i < COUNT_OF(s) && run->continued_links == 0; i++) {
        fake_start(run, p, &s[i], "one", (int64_t)i + 1);
        WAIT_FOR(&w, shot_over(&s[i]));
        CHECK(s[i].ok, "%s", s[i].message);
    }
    CHECK(run->continued_links == 1 && run->rotated >= 1, "after %zu steps", i);
    CHECK(!is(first, run->execution) && run->links == 2);
    CHECK(lines_in(&w, "one") == (int)i, "%d %zu", lines_in(&w, "one"), i);
    CHECK(hand_status(run, first) == CONTINUED && hand_status(run, run->execution) == RUNNING);
    fake_start(run, p, &s[0], "two", 1);
    WAIT_FOR(&w, shot_over(&s[0]));
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_close(&w);
}

TEST(temporal_drains_before_it_continues_as_new) {
    struct world w;
    struct shot s[2];
    char first[64];
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s[0], "while", 1);
    WAIT_FOR(&w, lines_in(&w, "while") == 1);
    snprintf(first, sizeof first, "%s", run->execution);
    for (int i = 0; i < 70; i++)
        hand_signal(run, "tick", NULL);
    WAIT_FOR(&w, run->signals == 70 || s[0].answers > 0);
    fake_start(run, p, &s[1], "two", 1); /* its turn comes in the next execution */
    WAIT_FOR(&w, shot_over(&s[0]) && shot_over(&s[1]));
    CHECK(s[0].ok && s[1].ok && run->signals == 70);
    CHECK(run->rotated >= 1 && run->continued_links == 1 && !is(first, run->execution));
    CHECK(lines_in(&w, "while") == 1 && hand_status(run, first) == CONTINUED);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_close(&w);
}

/* ---- what was lost is found ---- */

TEST(temporal_closes_executions_of_runs_that_are_over) {
    struct world w;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *a = run_add(&w);
    struct fake_run *b = run_add(&w);
    fake_open(a, p);
    fake_open(b, p);
    WAIT_FOR(&w, a->links == 1 && b->links == 1);
    hand_wait_no_task(a);
    hand_wait_no_task(b);
    world_drop(&w, &p);
    a->status = RUN_FAILED; /* and nobody told the cluster */
    w.options.sweep_ms = 500;
    p = world_provider(&w, "n1", 0);
    hand_wait_status(a, FAILED);
    CHECK(hand_status(b, NULL) == RUNNING && a->looks == 0 && b->looks == 0);
    fake_end(b, p, RUN_COMPLETED); /* of a run that this provider was never told of */
    hand_wait_status(b, COMPLETED);
    world_close(&w);
}

TEST(temporal_closes_what_a_node_left_that_does_not_come_back) {
    struct world w;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *a = run_add(&w);
    fake_open(a, p);
    WAIT_FOR(&w, a->links == 1);
    hand_wait_no_task(a);
    world_drop(&w, &p);
    a->status = RUN_COMPLETED;
    w.options.sweep_ms = 500;
    p = world_provider(&w, "n2", 0);
    hand_wait_status(a, COMPLETED);
    CHECK(a->looks == 0 && a->ended == 0);
    world_close(&w);
}

TEST(temporal_worker_gives_back_what_its_ledger_does_not_know) {
    struct world w;
    struct world other;
    struct shot s;
    world_open(&w);
    world_open_in(&other, w.dir, w.queue);
    struct provider *p = world_provider(&w, "n1", -1);
    struct provider *stranger = world_provider(&other, "n2", 1);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s, "one", 1);
    for (int i = 0; i < 200; i++) { /* it takes the attempt, and has no business with it */
        world_sleep(&w, 10);
        world_sleep(&other, 10);
    }
    CHECK(s.answers == 0 && lines_in(&w, "one") == 0);
    world_drop(&other, &stranger);
    world_close(&other);
    struct provider *worker = world_provider(&w, "n3", 1);
    WAIT_FOR(&w, shot_over(&s));
    CHECK(s.ok && lines_in(&w, "one") == 1, "%s", s.code);
    world_drop(&w, &worker);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_close(&w);
}

TEST(temporal_leaves_runs_alone_that_are_not_in_the_ledger) {
    struct world w;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *a = run_add(&w);
    fake_open(a, p);
    WAIT_FOR(&w, a->links == 1);
    hand_wait_no_task(a);
    world_drop(&w, &p);
    a->known = false;
    p = world_provider(&w, "n1", 0);
    hand_signal(a, "PAUSE", NULL);
    world_sleep(&w, 1500);
    CHECK(a->signals == 0 && a->looks == 0 && hand_status(a, NULL) == RUNNING);
    hand_terminate(a, "the end of the test");
    world_close(&w);
}

/* ---- a cluster that is not there ---- */

TEST(temporal_waits_for_a_server_and_outlives_its_absence) {
    struct world w;
    struct shot s[3];
    char target[64];
    world_open(&w);
    int port = port_free();
    snprintf(target, sizeof target, "127.0.0.1:%d", port);
    w.options.target = str_c(target);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    struct fake_run *never = run_add(&w);
    fake_open(run, p);
    fake_start(run, p, &s[0], "one", 1);
    fake_open(never, p); /* a run that is cancelled while there is no cluster */
    fake_start(never, p, &s[1], "one", 1);
    world_sleep(&w, 1500);
    CHECK(run->links == 0 && s[0].answers == 0);
    p->ops->stop(p, &s[1].attempt);
    WAIT_FOR(&w, shot_over(&s[1]));
    CHECK(is(s[1].code, "CANCELLED"));
    fake_end(never, p, RUN_CANCELLED);
    struct forward *way = forward_open(&w.loop, port);
    WAIT_FOR(&w, shot_over(&s[0]));
    CHECK(s[0].ok && run->links == 1 && never->links == 0);
    CHECK(hand_status(never, NULL) == 0);

    forward_close(way); /* the server goes */
    fake_start(run, p, &s[2], "while", 1);
    world_sleep(&w, 2000);
    CHECK(s[2].answers == 0 && run->ended == 0);
    way = forward_open(&w.loop, port);
    WAIT_FOR(&w, lines_in(&w, "while") == 1);
    forward_close(way); /* and while the step runs, and ends */
    world_sleep(&w, 3000);
    way = forward_open(&w.loop, port);
    WAIT_FOR(&w, shot_over(&s[2]));
    CHECK(s[2].ok, "%s", s[2].message);
    fake_end(run, p, RUN_COMPLETED);
    hand_wait_status(run, COMPLETED);
    world_drop(&w, &w.p);
    world_sleep(&w, 300);
    forward_close(way);
    world_close(&w);
}

TEST(temporal_closes_from_any_state) {
    for (int state = 0; state < 6; state++) {
        struct world w;
        struct shot s;
        world_open(&w);
        struct provider *p = world_provider(&w, "n1", 0);
        struct fake_run *run = run_add(&w);
        if (state > 0) fake_open(run, p);
        if (state > 1) world_sleep(&w, (uint64_t)state);
        if (state > 2) fake_start(run, p, &s, "slow", 1);
        if (state > 3) world_sleep(&w, 20);
        if (state > 4) WAIT_FOR(&w, lines_in(&w, "slow") == 1);
        world_close(&w);
        CHECK(state < 3 || s.answers == 0, "state %d", state);
    }
}

static void close_at_once(struct fake_run *run) {
    struct provider *p = run->w->p;
    world_drop(run->w, &p);
}

TEST(temporal_closes_from_inside_a_port) {
    struct world w;
    world_open(&w);
    struct provider *p = world_provider(&w, "n1", 0);
    struct fake_run *run = run_add(&w);
    fake_open(run, p);
    WAIT_FOR(&w, run->links == 1);
    hand_wait_no_task(run);
    world_drop(&w, &p);
    p = world_provider(&w, "n1", 0);
    run->on_look = close_at_once;
    hand_signal(run, "PAUSE", NULL);
    WAIT_FOR(&w, run->looks == 1);
    CHECK(!w.p && run->signals == 0);
    hand_terminate(run, "the end of the test");
    world_close(&w);
}

TEST(temporal_refuses_options_that_are_none) {
    static const struct temporal_options bad[] = {
        {.target = STR_LIT("")},
        {.target = STR_LIT("nowhere")},
        {.target = STR_LIT("127.0.0.1:1"), .ns = STR_LIT("a b")},
        {.target = STR_LIT("127.0.0.1:1"), .queue = STR_LIT("it's")},
        {.target = STR_LIT("127.0.0.1:1"), .node = STR_LIT("\"")},
        {.target = STR_LIT("127.0.0.1:1"), .slots = TEMPORAL_SLOTS_MAX + 1},
        {.target = STR_LIT("127.0.0.1:1"), .pollers = -1},
    };
    uv_loop_t loop;
    struct provider_ports ports = {0};
    CHECK(uv_loop_init(&loop) == 0);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct provider *p = NULL;
        struct error err = {0};
        CHECK(temporal_open(&loop, &bad[i], &ports, &p, &err) == ST_INVALID, "case %zu", i);
        CHECK(err.reason != REASON_NONE, "case %zu", i);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&loop) == 0);
}
