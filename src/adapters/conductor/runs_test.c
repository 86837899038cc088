/* adapters/conductor/runs_test.c: the states of a run and of a step, how a run ends from each, and
 * what is due. No server. */
#include "adapters/aborts_test.h"
#include "adapters/conductor/impl.h"
#include "test.h"

struct move {
    struct conductor *c;
    int from, to;
};

static void try_run_move(void *context) {
    const struct move *move = context;
    struct conductor_run r = {.state = (enum workflow_state)move->from};
    conductor_run_move(&r, (enum workflow_state)move->to);
}

TEST(conductor_run_moves_only_where_it_can) {
    /* A row for each state: where it may move to. */
    static const char *const allowed[WORKFLOW_STATE_COUNT] = {
        /*                         U S A R L L|L C F F T */
        [WORKFLOW_UNTOLD] = ".x.xx.xxx.x",     [WORKFLOW_SOUGHT] = "..x.x.x....",
        [WORKFLOW_ABSENT] = ".x.xx.x....",     [WORKFLOW_REFUSED] = ".....xx....",
        [WORKFLOW_LINKED] = ".....x.xx.x",     [WORKFLOW_LOST] = "...........",
        [WORKFLOW_LEFT] = ".......xx.x",       [WORKFLOW_COMPLETES] = "...........",
        [WORKFLOW_FAILS] = ".........xx",      [WORKFLOW_FAILED] = "..........x",
        [WORKFLOW_TERMINATES] = "...........",
    };
    for (int from = 0; from < WORKFLOW_STATE_COUNT; from++) {
        for (int to = 0; to < WORKFLOW_STATE_COUNT; to++) {
            struct move move = {NULL, from, to};
            CHECK(test_aborts(try_run_move, &move) == (allowed[from][to] == '.'), "%d to %d", from,
                  to);
        }
    }
}

static void conductor_init(struct conductor *c, uv_loop_t *loop) {
    *c = (struct conductor){.loop = loop, .state = CONDUCTOR_READY};
    c->runs = (struct provider_runs){.loop = loop,
                                     .ops = &conductor_runs_ops,
                                     .ports = &c->ports,
                                     .runs_max = 8,
                                     .retry_ms_first = RUN_DELAY_MS,
                                     .retry_ms_max = RUN_DELAY_MS_MAX};
    provider_runs_open(&c->runs);
    TAILQ_INIT(&c->held);
    TAILQ_INIT(&c->dirty_steps);
    for (size_t i = 0; i < COUNT_OF(c->jobs); i++)
        TAILQ_INIT(&c->jobs[i]);
}

static void try_step_move(void *context) {
    const struct move *move = context;
    struct conductor_run r = {.c = move->c};
    struct conductor_step s = {.run = &r};
    if (move->from != HAND_NONE) conductor_step_move(&s, HAND_HELD);
    if (move->from > HAND_HELD) conductor_step_move(&s, (enum hand)move->from);
    conductor_step_move(&s, (enum hand)move->to);
}

TEST(conductor_step_moves_only_where_it_can) {
    static const char *const allowed[] = {
        /*                    N H S A */
        [HAND_NONE] = "xx.x",
        [HAND_HELD] = "xxxx",
        [HAND_SHELVED] = "xx.x",
        [HAND_ANSWERED] = "xx..",
    };
    uv_loop_t loop;
    struct conductor c;
    CHECK(uv_loop_init(&loop) == 0);
    conductor_init(&c, &loop);
    for (int from = HAND_NONE; from <= HAND_ANSWERED; from++) {
        for (int to = HAND_NONE; to <= HAND_ANSWERED; to++) {
            struct move move = {&c, from, to};
            CHECK(test_aborts(try_step_move, &move) == (allowed[from][to] == '.'), "%d to %d", from,
                  to);
        }
    }
    provider_runs_close(&c.runs);
    provider_runs_release(&c.runs);
    CHECK(uv_loop_close(&loop) == 0);
}

TEST(conductor_run_ends_from_every_state) {
    enum { GONE = WORKFLOW_STATE_COUNT }; /* there is nothing to be ended */
    static const struct {
        enum workflow_state state;
        bool named, linked, call;
        enum run_status end;
        int want;
    } cases[] = {
        {WORKFLOW_UNTOLD, 0, 0, 0, RUN_COMPLETED, GONE},
        {WORKFLOW_UNTOLD, 1, 0, 0, RUN_FAILED, WORKFLOW_LEFT}, /* memory was out for the rest */
        {WORKFLOW_UNTOLD, 0, 1, 0, RUN_CANCELLED, WORKFLOW_TERMINATES}, /* found by the sweep */
        {WORKFLOW_SOUGHT, 1, 0, 0, RUN_COMPLETED, WORKFLOW_LEFT},
        {WORKFLOW_SOUGHT, 1, 0, 1, RUN_CANCELLED, WORKFLOW_LEFT},
        {WORKFLOW_ABSENT, 1, 0, 0, RUN_CANCELLED, GONE},
        {WORKFLOW_ABSENT, 1, 0, 1, RUN_CANCELLED, WORKFLOW_LEFT}, /* the start may work */
        {WORKFLOW_REFUSED, 1, 0, 0, RUN_FAILED, WORKFLOW_LEFT},
        {WORKFLOW_LINKED, 1, 1, 0, RUN_COMPLETED, WORKFLOW_COMPLETES},
        {WORKFLOW_LINKED, 1, 1, 1, RUN_FAILED, WORKFLOW_FAILS},
        {WORKFLOW_LINKED, 1, 1, 0, RUN_CANCELLED, WORKFLOW_TERMINATES},
        {WORKFLOW_LOST, 1, 1, 0, RUN_FAILED, GONE},
        {WORKFLOW_LOST, 1, 0, 0, RUN_FAILED, GONE}, /* it was refused */
    };
    uv_loop_t loop;
    struct conductor c;
    CHECK(uv_loop_init(&loop) == 0);
    conductor_init(&c, &loop);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct conductor_run *r = conductor_run_new(&c, STR("r"));
        CHECK(r != NULL);
        r->state = cases[i].state;
        if (cases[i].named) conductor_copy(r->name, sizeof r->name, STR("plan_p"));
        if (cases[i].linked) conductor_copy(r->workflow, sizeof r->workflow, STR("w-1"));
        r->call = cases[i].call ? (struct rest_call *)&c : NULL;
        tracked_enter(&r->tracked);
        ending_begin(r, cases[i].end, STR("CODE"), STR("a message"));
        r->call = NULL;
        bool gone = tracked_is_dropped(&r->tracked);
        CHECK(gone == (cases[i].want == GONE), "case %zu", i);
        CHECK(gone || r->state == (enum workflow_state)cases[i].want, "case %zu: %d", i,
              (int)r->state);
        CHECK(gone || str_eq(str_c(r->reason), STR("CODE: a message")), "case %zu", i);
        CHECK(!provider_runs_find(&c.runs, STR("r")) == gone, "case %zu", i);
        tracked_drop(&r->tracked);
        tracked_exit(&r->tracked);
    }
    CHECK(uv_run(&loop, UV_RUN_DEFAULT) == 0);
    provider_runs_close(&c.runs);
    provider_runs_release(&c.runs);
    CHECK(uv_loop_close(&loop) == 0);
}

TEST(conductor_run_is_stepped_when_something_is_due) {
    enum { LOOK = 3000, OURS = 60000, RETRY = 40 };
    static const struct {
        const char *what;
        enum workflow_state state;
        enum cluster cluster;
        unsigned todo;
        bool call, ready;
        uint64_t retry_at, want;
    } cases[] = {
        {"it is looked for", WORKFLOW_SOUGHT, CLUSTER_UNKNOWN, 0, 0, 1, 0, 0},
        {"but not twice", WORKFLOW_SOUGHT, CLUSTER_UNKNOWN, 0, 1, 1, 0, PROVIDER_NEVER},
        {"nor while it is waited", WORKFLOW_SOUGHT, CLUSTER_UNKNOWN, 0, 0, 1, RETRY, RETRY},
        {"nor without a cluster", WORKFLOW_SOUGHT, CLUSTER_UNKNOWN, 0, 0, 0, 0, PROVIDER_NEVER},
        {"the engine tells of it, or never", WORKFLOW_UNTOLD, CLUSTER_UNKNOWN, 0, 0, 1, 0,
         UNTOLD_MS},
        {"nothing is known", WORKFLOW_LINKED, CLUSTER_UNKNOWN, 0, 0, 1, 0, 0},
        {"nothing to do", WORKFLOW_LINKED, CLUSTER_RUNS, 0, 0, 1, 0, LOOK},
        {"something to do", WORKFLOW_LINKED, CLUSTER_RUNS, TODO_PUSH_PAUSE, 0, 1, 0, 0},
        {"is it still ours", WORKFLOW_LOST, CLUSTER_RUNS, 0, 0, 1, 0, OURS},
        {"over, and nobody is asked", WORKFLOW_TERMINATES, CLUSTER_RUNS, 0, 0, 1, RETRY, RETRY},
        {"all tasks are answered", WORKFLOW_COMPLETES, CLUSTER_RUNS, 0, 0, 1, 0, LOOK},
    };
    uv_loop_t loop;
    struct conductor c;
    CHECK(uv_loop_init(&loop) == 0);
    conductor_init(&c, &loop);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct conductor_run r = {.c = &c,
                                  .state = cases[i].state,
                                  .cluster = cases[i].cluster,
                                  .todo = cases[i].todo,
                                  .look_ms = LOOK,
                                  .ours_ms = OURS,
                                  .call = cases[i].call ? (struct rest_call *)&c : NULL};
        r.tracked.retry_at = cases[i].retry_at;
        TAILQ_INIT(&r.tracked.wanted);
        map_init(&r.steps);
        c.state = cases[i].ready ? CONDUCTOR_READY : CONDUCTOR_REGISTERS;
        uint64_t at = conductor_runs_ops.next(&r.tracked);
        CHECK(at == cases[i].want, "%s: %llu", cases[i].what, (unsigned long long)at);
        r.withheld_ms = 5; /* a failure is withheld for a moment, whatever else there is to do */
        if (cases[i].ready && cases[i].want == PROVIDER_NEVER)
            CHECK(conductor_runs_ops.next(&r.tracked) == 5 + WITHHELD_MS, "%s", cases[i].what);
    }
    provider_runs_close(&c.runs);
    provider_runs_release(&c.runs);
    CHECK(uv_loop_close(&loop) == 0);
}
