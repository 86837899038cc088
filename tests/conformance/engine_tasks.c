/* Tasks for outside workers: handed out with a lease and a fencing number, answered once. On both
 * databases. */
#include "base/time.h"
#include "conformance/engine_tools.h"

enum { TASKS_MAX = 8 };

struct polled {
    struct bed *bed;
    struct engine_poll *poll;
    bool there;
    struct task tasks[TASKS_MAX];
    size_t count;
};

static void on_tasks(void *context, const struct task *tasks, size_t count) {
    struct polled *p = context;
    struct arena *arena = &p->bed->arena;
    p->there = true;
    p->count = count;
    for (size_t i = 0; i < count; i++) {
        struct task *t = &p->tasks[i];
        *t = tasks[i];
        t->ref.run_id = arena_str(arena, t->ref.run_id);
        t->ref.step_id = arena_str(arena, t->ref.step_id);
        t->input = arena_str(arena, t->input);
        t->queue = arena_str(arena, t->queue);
        t->tenant_id = t->ref.tenant_id = arena_str(arena, t->tenant_id);
    }
}

static void poll_begin(struct bed *bed, struct polled *p, const char *worker, size_t max,
                       int64_t lease_ms, int64_t wait_ms) {
    struct error err = {0};
    *p = (struct polled){.bed = bed};
    status st = engine_poll(host_engine(bed->host),
                            &(struct poll_request){.tenant_id = STR("acme"),
                                                   .queue = STR("q"),
                                                   .worker = str_c(worker),
                                                   .max = max,
                                                   .lease_ms = lease_ms,
                                                   .deadline_us = clock_wall_us() + wait_ms * 1000},
                            on_tasks, p, &p->poll, &err);
    CHECK(st == ST_OK, "%s", err.msg);
}

static void poll_end(struct polled *p) {
    int64_t end = clock_mono_ns() + (int64_t)30 * 1000000000;
    while (!p->there) {
        bed_turn(p->bed, 5);
        CHECK(clock_mono_ns() < end, "the poll is not answered");
    }
}

/* Polls until a task comes, or for wait_ms. */
static struct polled poll_for(struct bed *bed, const char *worker, size_t max, int64_t lease_ms,
                              int64_t wait_ms) {
    struct polled *p = ARENA_NEW(&bed->arena, struct polled);
    poll_begin(bed, p, worker, max, lease_ms, wait_ms);
    poll_end(p);
    return *p;
}

struct told {
    bool there;
    status code;
    struct error err;
};
static void on_told(void *context, status code, const struct error *err) {
    struct told *t = context;
    t->there = true;
    t->code = code;
    if (code != ST_OK && err) t->err = *err;
}

static struct told answer(struct bed *bed, const struct task_ref *ref, bool ok, const char *output,
                          const char *code) {
    struct told *t = ARENA_NEW(&bed->arena, struct told);
    engine_task_done(host_engine(bed->host), ref,
                     &(struct outcome){.ok = ok,
                                       .output = str_c(output),
                                       .code = str_c(code),
                                       .message = code ? STR("sorry") : STR_NONE},
                     &(struct engine_caller){.done = on_told, .context = t});
    while (!t->there)
        bed_turn(bed, 5);
    return *t;
}

static void check_lost(struct told t) {
    CHECK(t.code == ST_CONFLICT && t.err.reason == REASON_LEASE_LOST, "%s", t.err.msg);
}

#define TASK(id, more) STEP(id, "task", ",\"queue\":\"q\"" more)

TEST_DB(engine_task_is_handed_out_and_answered) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request request = bed_request(
        &bed,
        PLAN(TASK("t", ",\"input\":{\"n\":\"{{ parameters.n }}\",\"deep\":[1,{\"x\":true}]}"),
             STEP("e", "exec",
                  ",\"command\":[\"echo\",\"m {{ steps.t.output.m }}\"],\"dependsOn\":[\"t\"]")),
        "r");
    struct error err = {0};
    request.parameters = STR("{\"n\":7}");
    CHECK(bed_start(&bed, &request, &err) == ST_OK, "%s", err.msg);
    struct explanation x = explained(&bed, "r");
    CHECK(x.count == 1 && x.waits[0].kind == WAIT_WORKER && is(x.waits[0].on, "q"));
    struct polled p;
    poll_begin(&bed, &p, "w1", 5, 60000, 5000);
    poll_end(&p);
    CHECK(p.count == 1);
    const struct task *t = &p.tasks[0];
    CHECK(is(t->ref.run_id, "r") && is(t->ref.step_id, "t") && t->ref.attempt == 1 &&
          t->ref.lease == 1);
    CHECK(is(t->input, "{\"n\":7,\"deep\":[1,{\"x\":true}]}"), "%.*s", STR_ARG(t->input));
    CHECK(is(t->tenant_id, "acme") && is(t->queue, "q"));
    CHECK(t->lease_until_us > clock_wall_us() + 50000000);
    const struct event_record *called = find_row(&bed, "r", EVENT_TOOL_CALLED, "t", 0);
    CHECK(is(called->actor, "w1") && holds(called->event.payload, "\"worker\":\"w1\""));
    x = explained(&bed, "r");
    CHECK(holds(x.waits[0].detail, "worker \"w1\" took it"), "%.*s", STR_ARG(x.waits[0].detail));
    CHECK(answer(&bed, &t->ref, true, "{\"m\":8}", NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    CHECK(holds(find_row(&bed, "r", EVENT_STEP_COMPLETED, "e", 0)->event.payload, "\"m 8\""));
    bed_release(&bed);
}

/* A worker that asks before there is anything waits; one whose time is over gets nothing; tenants
 * and queues are apart. */
TEST_DB(engine_poll_waits_for_a_task) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(poll_for(&bed, "w", 1, 1000, 50).count == 0);
    struct polled early;
    poll_begin(&bed, &early, "w", 1, 60000, 20000);
    struct start_request other = bed_request(&bed, PLAN(TASK("t", "")), "other");
    struct error err = {0};
    other.tenant_id = STR("globex");
    CHECK(bed_start(&bed, &other, &err) == ST_OK);
    start(&bed, PLAN(STEP("t", "task", ",\"queue\":\"another\"")), "another");
    bed_turn(&bed, 100);
    CHECK(!early.there);
    start(&bed, PLAN(TASK("t", "")), "r");
    poll_end(&early);
    CHECK(early.count == 1 && is(early.tasks[0].ref.run_id, "r"));
    struct engine_stats stats;
    engine_stats(host_engine(bed.host), &stats);
    CHECK(stats.polls == 0 && stats.tasks == 2);
    CHECK(answer(&bed, &early.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

TEST_DB(engine_task_failure_is_retried_by_policy) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(
        &bed,
        PLAN(TASK("t",
                  ",\"retry\":{\"maxAttempts\":3,\"initialMs\":20,\"nonRetryable\":[\"BROKEN\"]}")),
        "r");
    struct polled p = poll_for(&bed, "w", 1, 60000, 5000);
    CHECK(answer(&bed, &p.tasks[0].ref, false, NULL, "BUSY").code == ST_OK);
    p = poll_for(&bed, "w", 1, 60000, 5000);
    CHECK(p.count == 1 && p.tasks[0].ref.attempt == 2 && p.tasks[0].ref.lease == 2);
    CHECK(answer(&bed, &p.tasks[0].ref, false, NULL, "BROKEN").code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_FAILED);
    check_history(&bed, "r",
                  "RunStarted t:StepStarted#1 t:StepFailed#1 t:StepRetried#2 t:StepStarted#2 "
                  "t:StepFailed#2 RunFailed");
    CHECK(holds(bed_payload(&bed, "r", EVENT_STEP_FAILED, 1),
                "\"code\":\"BROKEN\",\"message\":\"sorry\""));
    bed_release(&bed);
}

/* ---- leases ---- */

/* RE-5.3.1-2: a task given to two workers, because the first one's lease ran out, and answered by
 * both, is completed once. */
TEST_DB(engine_task_lease_that_ran_out_is_fenced) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(TASK("t", ""), STEP("w", "wait", ",\"signal\":\"go\",\"dependsOn\":[\"t\"]")),
          "r");
    struct polled slow = poll_for(&bed, "slow", 1, 150, 5000);
    struct polled quick = poll_for(&bed, "quick", 1, 60000, 10000);
    CHECK(slow.count == 1 && quick.count == 1);
    CHECK(quick.tasks[0].ref.attempt == 1 && quick.tasks[0].ref.lease == 2);
    int64_t gap = ms_between(&bed, "r", "t", EVENT_TOOL_CALLED, 0, EVENT_TOOL_CALLED, 1);
    CHECK(gap >= 100, "%lld", (long long)gap);
    int64_t until = 0;
    struct error err = {0};
    CHECK(bed_heartbeat(&bed, &slow.tasks[0].ref, 1000, &until, &err) ==
              ST_CONFLICT &&
          err.reason == REASON_LEASE_LOST);
    check_lost(answer(&bed, &slow.tasks[0].ref, true, "\"slow\"", NULL));
    CHECK(count_rows(&bed, "r", EVENT_STEP_COMPLETED) == 0);
    CHECK(answer(&bed, &quick.tasks[0].ref, true, "\"quick\"", NULL).code == ST_OK);
    CHECK(answer(&bed, &quick.tasks[0].ref, true, "\"quick\"", NULL).code ==
          ST_OK); /* told twice */
    check_lost(answer(&bed, &quick.tasks[0].ref, false, NULL, "CHANGED_MIND"));
    check_lost(answer(&bed, &slow.tasks[0].ref, true, "\"slow\"", NULL));
    CHECK(count_rows(&bed, "r", EVENT_STEP_COMPLETED) == 1);
    CHECK(holds(bed_payload(&bed, "r", EVENT_STEP_COMPLETED, 0), "\"output\":\"quick\""));
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    check_lost(answer(&bed, &slow.tasks[0].ref, true, "\"slow\"", NULL));
    bed_release(&bed);
}

/* `leaseMs` of the step counts, whatever the worker asks for. */
TEST_DB(engine_task_lease_is_as_long_as_the_plan_says) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(TASK("t", ",\"leaseMs\":150")), "r");
    struct polled first = poll_for(&bed, "first", 1, 60000, 5000);
    struct polled second = poll_for(&bed, "second", 1, 60000, 10000);
    CHECK(first.count == 1 && second.count == 1 && second.tasks[0].ref.lease == 2);
    CHECK(first.tasks[0].lease_until_us < clock_wall_us());
    CHECK(answer(&bed, &second.tasks[0].ref, true, "1", NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* An answer that comes late, but before anybody else has the task, counts. */
TEST_DB(engine_task_answer_counts_while_nobody_else_has_it) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(TASK("t", "")), "r");
    struct polled p = poll_for(&bed, "w", 1, 50, 5000);
    bed_turn(&bed, 300);
    CHECK(answer(&bed, &p.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

TEST_DB(engine_task_heartbeat_keeps_the_lease) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(TASK("t", "")), "r");
    struct polled p = poll_for(&bed, "w", 1, 1000, 5000);
    struct polled rival;
    poll_begin(&bed, &rival, "rival", 1, 1000, 2500);
    for (int i = 0; i < 8; i++) {
        int64_t until = 0;
        struct error err = {0};
        bed_turn(&bed, 250);
        CHECK(bed_heartbeat(&bed, &p.tasks[0].ref, 1000, &until, &err) == ST_OK,
              "%s", err.msg);
        CHECK(until > clock_wall_us());
    }
    CHECK(rival.count == 0);
    CHECK(answer(&bed, &p.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    poll_end(&rival);
    CHECK(rival.count == 0);
    CHECK(count_rows(&bed, "r", EVENT_TOOL_CALLED) == 1);
    bed_release(&bed);
}

/* ---- several ---- */

TEST_DB(engine_tasks_go_to_one_worker_each) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct polled a;
    struct polled b;
    struct polled c;
    poll_begin(&bed, &a, "a", 1, 60000, 20000);
    poll_begin(&bed, &b, "b", 1, 60000, 20000);
    poll_begin(&bed, &c, "c", 1, 60000, 500);
    start(&bed, PLAN(TASK("x", ""), TASK("y", "")), "r");
    poll_end(&a);
    poll_end(&b);
    poll_end(&c);
    CHECK(a.count == 1 && b.count == 1 && c.count == 0);
    CHECK(!str_eq(a.tasks[0].ref.step_id, b.tasks[0].ref.step_id));
    CHECK(answer(&bed, &a.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(answer(&bed, &b.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

TEST_DB(engine_poll_takes_at_most_what_it_asked_for) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(TASK("x", ""), TASK("y", ""), TASK("z", "")), "r");
    size_t got = 0;
    while (got < 3) {
        struct polled p = poll_for(&bed, "w", 2, 60000, 5000);
        CHECK(p.count >= 1 && p.count <= 2);
        for (size_t i = 0; i < p.count; i++)
            CHECK(answer(&bed, &p.tasks[i].ref, true, NULL, NULL).code == ST_OK);
        got += p.count;
    }
    CHECK(got == 3 && bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* A worker that goes away takes nothing with it. */
TEST_DB(engine_poll_that_is_gone_gets_nothing) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct polled gone;
    poll_begin(&bed, &gone, "gone", 1, 60000, 20000);
    engine_poll_cancel(host_engine(bed.host), gone.poll);
    start(&bed, PLAN(TASK("t", "")), "r");
    struct polled p = poll_for(&bed, "w", 1, 60000, 5000);
    CHECK(p.count == 1 && !gone.there && p.tasks[0].ref.lease == 1);
    bed_release(&bed);
}

/* One that waits no longer is answered, but not before it is known what it was leased. */
TEST_DB(engine_poll_that_stops_has_what_it_was_leased) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct polled idle;
    poll_begin(&bed, &idle, "idle", 1, 60000, 20000);
    CHECK(!idle.there);
    engine_poll_stop(host_engine(bed.host), idle.poll);
    CHECK(idle.there && idle.count == 0);
    start(&bed, PLAN(TASK("t", "")), "r");
    struct explanation x = explained(&bed, "r");
    while (x.count == 0 || x.waits[0].kind != WAIT_WORKER) {
        bed_turn(&bed, 5);
        x = explained(&bed, "r");
    }
    struct polled busy;
    poll_begin(&bed, &busy, "busy", 2, 60000, 20000);
    CHECK(!busy.there); /* the lease is on its way to the ledger */
    engine_poll_stop(host_engine(bed.host), busy.poll);
    CHECK(!busy.there);
    poll_end(&busy);
    CHECK(busy.count == 1 && is(busy.tasks[0].ref.run_id, "r") && busy.tasks[0].ref.lease == 1);
    CHECK(answer(&bed, &busy.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

TEST_DB(engine_poll_refuses_what_makes_no_sense) {
    static const struct {
        const char *tenant, *queue, *worker;
        size_t max;
        int64_t lease_ms;
        const char *where;
    } cases[] = {{"acme", "q", "w", 0, 1000, "/max"},
                 {"acme", "q", "w", 100000, 1000, "/max"},
                 {"acme", "", "w", 1, 1000, "/queue"},
                 {"acme", "q", "", 1, 1000, "/worker"},
                 {"acme", "q", "w", 1, 0, "/leaseMs"},
                 {"acme", "q", "w", 1, -5, "/leaseMs"},
                 {"acme", "q", "w", 1, INT64_MAX / 1000, "/leaseMs"}};
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        struct engine_poll *poll = NULL;
        CHECK(engine_poll(host_engine(bed.host),
                          &(struct poll_request){.tenant_id = str_c(cases[i].tenant),
                                                 .queue = str_c(cases[i].queue),
                                                 .worker = str_c(cases[i].worker),
                                                 .max = cases[i].max,
                                                 .lease_ms = cases[i].lease_ms},
                          on_tasks, NULL, &poll, &err) == ST_INVALID,
              "case %zu", i);
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
    }
    struct task_ref nothing = {
        .run_id = STR("none"), .step_id = STR("t"), .attempt = 1, .lease = 1};
    CHECK(answer(&bed, &nothing, true, NULL, NULL).code == ST_NOT_FOUND);
    bed_release(&bed);
}

/* ---- over the life of a run ---- */

TEST_DB(engine_task_of_a_cancelled_run_is_over) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(TASK("t", "")), "r");
    struct polled p = poll_for(&bed, "w", 1, 60000, 5000);
    tell(&bed, "r", "CANCEL", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_CANCELLED);
    check_lost(answer(&bed, &p.tasks[0].ref, true, NULL, NULL));
    bed_release(&bed);
}

/* A task in a worker's hands may be finished after the pause. */
TEST_DB(engine_task_may_be_finished_after_a_pause) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(TASK("t", ""), TASK("u", ",\"dependsOn\":[\"t\"]")), "r");
    struct polled p = poll_for(&bed, "w", 1, 60000, 5000);
    tell(&bed, "r", "PAUSE", NULL);
    CHECK(is(shown(&bed, "r"), "PAUSED/DRAINING"));
    CHECK(answer(&bed, &p.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(is(shown(&bed, "r"), "PAUSED"));
    CHECK(poll_for(&bed, "w", 1, 60000, 100).count == 0);
    tell(&bed, "r", "RESUME", NULL);
    p = poll_for(&bed, "w", 1, 60000, 5000);
    CHECK(p.count == 1 && is(p.tasks[0].ref.step_id, "u"));
    bed_release(&bed);
}

/* A restart keeps the lease that was recorded: the worker's answer still counts, and nobody else
 * gets the task before that time. A task that nobody had is offered again. */
TEST_DB(engine_task_lease_survives_a_restart) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(TASK("t", "")), "r");
    struct polled p = poll_for(&bed, "w", 1, 60000, 5000);
    start(&bed, PLAN(TASK("free", "")), "r2");
    bed_reopen(&bed);
    struct polled other = poll_for(&bed, "other", 2, 60000, 5000);
    CHECK(other.count == 1 && is(other.tasks[0].ref.step_id, "free"));
    CHECK(poll_for(&bed, "other", 2, 60000, 200).count == 0);
    CHECK(answer(&bed, &p.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    CHECK(answer(&bed, &other.tasks[0].ref, true, NULL, NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r2") == RUN_COMPLETED);
    bed_release(&bed);
}

/* ---- leased in the commit that starts the step ---- */

struct commits {
    int64_t all;      /* commits of the engine */
    int64_t together; /* of these, with a lease for a step that the same commit starts */
};

static void count_commit(struct bed *bed, const struct engine_note *note, size_t i) {
    struct commits *c = bed->context;
    if (i > 0) return;
    c->all++;
    bool together = false;
    for (size_t s = 0; s < note->count; s++) {
        for (size_t t = s + 1; t < note->count && note->events[s].type == EVENT_STEP_STARTED; t++)
            together = together || (note->events[t].type == EVENT_TOOL_CALLED &&
                                    str_eq(note->events[s].subject, note->events[t].subject));
    }
    c->together += together;
}

static void bed_count(struct bed *bed, struct commits *c) {
    *c = (struct commits){0};
    bed->context = c;
    bed->on_event = count_commit;
}

#define TWO_TASKS PLAN(TASK("a", ""), TASK("b", ",\"dependsOn\":[\"a\"]"))

/* A worker that waits costs no commit of its own: n tasks, n + 1 commits. */
TEST_DB(engine_task_is_leased_in_the_commit_that_starts_its_step) {
    struct bed bed;
    struct commits c;
    struct polled p;
    bed_init(&bed, url);
    bed_count(&bed, &c);
    bed_open(&bed);
    poll_begin(&bed, &p, "w", 1, 60000, 20000);
    start(&bed, TWO_TASKS, "r");
    poll_end(&p);
    CHECK(p.count == 1 && is(p.tasks[0].ref.step_id, "a") && p.tasks[0].ref.lease == 1);
    CHECK(c.all == 1 && c.together == 1, "%lld %lld", (long long)c.all, (long long)c.together);
    struct task_ref first = p.tasks[0].ref;
    poll_begin(&bed, &p, "w", 1, 60000, 20000);
    CHECK(answer(&bed, &first, true, "1", NULL).code == ST_OK);
    poll_end(&p);
    CHECK(p.count == 1 && is(p.tasks[0].ref.step_id, "b") && p.tasks[0].ref.lease == 1);
    CHECK(c.all == 2 && c.together == 2, "%lld %lld", (long long)c.all, (long long)c.together);
    CHECK(answer(&bed, &p.tasks[0].ref, true, "2", NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    CHECK(c.all == 3 && c.together == 2);
    bed_release(&bed);
}

/* Nobody waits: the task is offered, and its lease has a commit of its own. */
TEST_DB(engine_task_that_nobody_waits_for_is_leased_later) {
    struct bed bed;
    struct commits c;
    bed_init(&bed, url);
    bed_count(&bed, &c);
    bed_open(&bed);
    start(&bed, PLAN(TASK("a", "")), "r");
    CHECK(c.all == 1 && c.together == 0);
    struct polled p = poll_for(&bed, "w", 1, 60000, 20000);
    CHECK(p.count == 1 && c.all == 2 && c.together == 0);
    bed_release(&bed);
}

/* Two that wait get one task each, in one commit; a third task has nobody and waits. */
TEST_DB(engine_tasks_that_start_together_go_to_all_who_wait) {
    struct bed bed;
    struct commits c;
    struct polled p1;
    struct polled p2;
    bed_init(&bed, url);
    bed_count(&bed, &c);
    bed_open(&bed);
    poll_begin(&bed, &p1, "w1", 1, 60000, 20000);
    poll_begin(&bed, &p2, "w2", 1, 60000, 20000);
    start(&bed, PLAN(TASK("a", ""), TASK("b", ""), TASK("c", "")), "r");
    poll_end(&p1);
    poll_end(&p2);
    CHECK(p1.count == 1 && is(p1.tasks[0].ref.step_id, "a"));
    CHECK(p2.count == 1 && is(p2.tasks[0].ref.step_id, "b"));
    CHECK(c.all == 1 && c.together == 1);
    CHECK(is(find_row(&bed, "r", EVENT_TOOL_CALLED, "b", 0)->actor, "w2"));
    struct polled p3 = poll_for(&bed, "w3", 5, 60000, 20000);
    CHECK(p3.count == 1 && is(p3.tasks[0].ref.step_id, "c") && p3.tasks[0].ref.lease == 1);
    bed_release(&bed);
}

static void nothing(void *context, status code, const struct error *err) {
    UNUSED(context);
    UNUSED(code);
    UNUSED(err);
}

/* Starts a run, and returns while its first commit is under way. */
static void start_only(struct bed *bed, const char *plan, const char *run_id) {
    char id[ID_BYTES_MAX + 1];
    struct start_request request = bed_request(bed, plan, run_id);
    request.fresh_id = true; /* so that it is decided at once */
    host_start(bed->host, &request, id, nothing, NULL);
}

/* A poll that is gone before the step starts takes nothing. One that goes while the commit is under
 * way has its lease: nobody is answered, and the task returns when the lease runs out, with a
 * higher fencing number. */
TEST_DB(engine_task_leased_to_nobody_returns) {
    struct bed bed;
    struct polled p;
    bed_init(&bed, url);
    bed_open(&bed);
    poll_begin(&bed, &p, "w1", 1, 60000, 20000);
    engine_poll_cancel(host_engine(bed.host), p.poll);
    start(&bed, PLAN(TASK("a", "")), "before");
    struct polled next = poll_for(&bed, "w2", 1, 60000, 20000);
    CHECK(next.count == 1 && is(next.tasks[0].ref.run_id, "before") &&
          next.tasks[0].ref.lease == 1);

    poll_begin(&bed, &p, "w1", 1, 300, 20000);
    start_only(&bed, PLAN(TASK("a", "")), "during");
    engine_poll_cancel(host_engine(bed.host), p.poll);
    next = poll_for(&bed, "w2", 1, 60000, 20000);
    CHECK(!p.there); /* it was gone */
    CHECK(next.count == 1 && is(next.tasks[0].ref.run_id, "during") &&
          next.tasks[0].ref.lease == 2);
    CHECK(is(find_row(&bed, "during", EVENT_TOOL_CALLED, "a", 0)->actor, "w1"));
    struct task_ref stale = next.tasks[0].ref;
    stale.lease = 1;
    check_lost(answer(&bed, &stale, true, "1", NULL));
    CHECK(answer(&bed, &next.tasks[0].ref, true, "1", NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "during") == RUN_COMPLETED);
    bed_release(&bed);
}

/* The process ends with the lease stored and the worker not answered: after the restart the lease
 * holds until its time is over. */
TEST_DB(engine_task_leased_with_its_start_returns_after_a_restart) {
    struct bed bed;
    struct polled p;
    bed_init(&bed, url);
    bed_open(&bed);
    poll_begin(&bed, &p, "w1", 1, 700, 20000);
    start(&bed, PLAN(TASK("a", "")), "r");
    bed_reopen(&bed);
    CHECK(poll_for(&bed, "w2", 1, 60000, 10).count == 0);
    struct polled next = poll_for(&bed, "w2", 1, 60000, 20000);
    CHECK(next.count == 1 && next.tasks[0].ref.attempt == 1 && next.tasks[0].ref.lease == 2);
    CHECK(answer(&bed, &next.tasks[0].ref, true, "1", NULL).code == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* A held poll takes the tasks that follow from its own results, before others that wait, and says
 * nothing until it is released. */
TEST_DB(engine_poll_that_is_held_answers_when_released) {
    struct bed bed;
    struct error err = {0};
    struct commits c;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, TWO_TASKS, "r");
    struct polled first = poll_for(&bed, "w", 1, 60000, 20000);
    struct polled p = {.bed = &bed};
    struct poll_request held = {.tenant_id = STR("acme"),
                                .queue = STR("q"),
                                .worker = STR("w"),
                                .max = 3,
                                .lease_ms = 60000,
                                .held = true};
    CHECK(engine_poll(host_engine(bed.host), &held, on_tasks, &p, &p.poll, &err) == ST_OK);
    struct polled other; /* waits longer, but the results are not its own */
    poll_begin(&bed, &other, "other", 1, 60000, 20000);
    bed_count(&bed, &c);
    struct told told = {0};
    engine_task_done(host_engine(bed.host), &first.tasks[0].ref, &(struct outcome){.ok = true},
                     &(struct engine_caller){.poll = p.poll, .done = on_told, .context = &told});
    while (!told.there)
        bed_turn(&bed, 5);
    bed_turn(&bed, 50);
    CHECK(told.code == ST_OK && !p.there && !other.there);
    CHECK(c.all == 1 && c.together == 1);
    engine_poll_cancel(host_engine(bed.host), other.poll);
    engine_poll_release(host_engine(bed.host), p.poll, clock_wall_us() + 60000000);
    CHECK(p.there && p.count == 1 && is(p.tasks[0].ref.step_id, "b"));

    p = (struct polled){.bed = &bed}; /* and with nothing to say it waits for its deadline */
    CHECK(engine_poll(host_engine(bed.host), &held, on_tasks, &p, &p.poll, &err) == ST_OK);
    bed_turn(&bed, 50);
    engine_poll_release(host_engine(bed.host), p.poll, clock_wall_us() + 60000000);
    CHECK(!p.there);
    engine_poll_stop(host_engine(bed.host), p.poll);
    CHECK(p.there && p.count == 0);
    bed_release(&bed);
}
