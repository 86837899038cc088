/* adapters/temporal/runs_test.c: the states of a run, and what is due in each. No cluster. */
#include "adapters/aborts_test.h"
#include "adapters/temporal/impl.h"
#include "test.h"

struct move {
    enum execution_state from, to;
};

static void try_move(void *context) {
    const struct move *move = context;
    struct temporal_run r = {.state = move->from};
    temporal_run_move(&r, move->to);
}

TEST(temporal_run_moves_only_where_it_can) {
    /* A row for each state: where it may move to. */
    static const char *const allowed[EXECUTION_STATE_COUNT] = {
        /*                           U N A O D G T */
        [EXECUTION_UNKNOWN] = "x..x.x.",   [EXECUTION_NONE] = ".xxx...",
        [EXECUTION_ASKED] = "x.xx...",     [EXECUTION_OPEN] = "x..xxx.",
        [EXECUTION_DRAINING] = "x..xxx.",  [EXECUTION_GONE] = "...x.xx",
        [EXECUTION_GONE_TOLD] = "...x..x",
    };
    for (int from = 0; from < EXECUTION_STATE_COUNT; from++) {
        for (int to = 0; to < EXECUTION_STATE_COUNT; to++) {
            struct move move = {(enum execution_state)from, (enum execution_state)to};
            CHECK(test_aborts(try_move, &move) == (allowed[from][to] == '.'), "%d to %d", from, to);
        }
    }
}

TEST(temporal_run_knows_where_the_engine_stands) {
    static const struct {
        const char *words; /* t: we told it, o: opened, r: rested, l: left, e: ended */
        enum engine_side want;
        bool heard;
    } cases[] = {
        {"", ENGINE_UNAWARE, false},
        {"t", ENGINE_ASKED, true},
        {"tr", ENGINE_UNAWARE, false},
        {"to", ENGINE_DECIDES, true}, /* it tells of the run because of our news */
        {"tor", ENGINE_RESTS, false},
        {"o", ENGINE_RESTS, false},
        {"ot", ENGINE_DECIDES, true},
        {"oto", ENGINE_DECIDES, true}, /* attempts come before it rests */
        {"otr", ENGINE_RESTS, false},
        {"otl", ENGINE_UNAWARE, false},
        {"ote", ENGINE_ENDED, false},
        {"e", ENGINE_ENDED, false},
        {"etorl", ENGINE_ENDED, false}, /* nothing opens it again */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct temporal_run r = {0};
        for (const char *c = cases[i].words; *c; c++)
            temporal_run_word(&r, *c == 't'   ? WORD_TOLD
                                  : *c == 'o' ? WORD_OPENED
                                  : *c == 'r' ? WORD_RESTED
                                  : *c == 'l' ? WORD_LEFT
                                              : WORD_ENDED);
        CHECK(r.side == cases[i].want, "\"%s\": %d", cases[i].words, (int)r.side);
        CHECK(temporal_run_is_heard(&r) == cases[i].heard, "\"%s\"", cases[i].words);
    }
}

TEST(temporal_run_is_stepped_when_something_is_due) {
    enum { LOOK = 300, HOLD = 20, WAKE = 70, IDLE = 900, RETRY = 150 };
    static const struct {
        const char *what;
        enum temporal_state provider;
        enum execution_state state;
        enum engine_side side;
        int wanted; /* 0: nothing, 1: an attempt, 2: one that is scheduled, 3: ... by an answer */
        bool task, call;
        uint64_t want;
    } cases[] = {
        {"it has to be asked", TEMPORAL_READY, EXECUTION_UNKNOWN, ENGINE_RESTS, 0, 0, 0, RETRY},
        {"but not twice", TEMPORAL_READY, EXECUTION_UNKNOWN, ENGINE_RESTS, 0, 0, 1, PROVIDER_NEVER},
        {"nor before the cluster is there", TEMPORAL_BOOTS, EXECUTION_UNKNOWN, ENGINE_RESTS, 0, 0,
         0, PROVIDER_NEVER},
        {"none yet", TEMPORAL_READY, EXECUTION_NONE, ENGINE_RESTS, 1, 0, 0, RETRY},
        {"none, and none needed", TEMPORAL_READY, EXECUTION_NONE, ENGINE_ENDED, 0, 0, 0,
         PROVIDER_NEVER},
        {"nothing wanted", TEMPORAL_READY, EXECUTION_OPEN, ENGINE_RESTS, 0, 0, 0, IDLE},
        {"an attempt for the next task", TEMPORAL_READY, EXECUTION_OPEN, ENGINE_RESTS, 1, 0, 0,
         WAKE},
        {"it is scheduled", TEMPORAL_READY, EXECUTION_OPEN, ENGINE_RESTS, 2, 0, 0, LOOK},
        {"by an answer under way", TEMPORAL_READY, EXECUTION_OPEN, ENGINE_RESTS, 3, 0, 0, LOOK},
        {"nothing can be scheduled", TEMPORAL_READY, EXECUTION_DRAINING, ENGINE_RESTS, 1, 0, 0,
         LOOK},
        {"a task, and the engine decides", TEMPORAL_READY, EXECUTION_OPEN, ENGINE_DECIDES, 0, 1, 0,
         HOLD},
        {"a task, and it rests", TEMPORAL_READY, EXECUTION_OPEN, ENGINE_RESTS, 0, 1, 0, 0},
        {"the run is over", TEMPORAL_READY, EXECUTION_OPEN, ENGINE_ENDED, 0, 0, 0, WAKE},
        {"gone, and told", TEMPORAL_READY, EXECUTION_GONE_TOLD, ENGINE_RESTS, 1, 0, 0,
         PROVIDER_NEVER},
    };
    struct task_queue queue = {0};
    struct workflow_task task = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct temporal t = {.state = cases[i].provider, .own_queue = &queue};
        struct temporal_wanted w = {
            .sent = cases[i].wanted == 2 ? SENT_SCHEDULE : SENT_NOTHING,
            .in_answer = cases[i].wanted == 3,
        };
        struct attempt attempt = {0};
        struct temporal_run r = {.t = &t,
                                 .queue = &queue,
                                 .state = cases[i].state,
                                 .side = cases[i].side,
                                 .task = cases[i].task ? &task : NULL,
                                 .call = cases[i].call ? (struct rpc_call *)&task : NULL,
                                 .at = {.wake = WAKE, .hold = HOLD, .look = LOOK, .idle = IDLE}};
        r.tracked.retry_at = RETRY;
        TAILQ_INIT(&r.tracked.wanted);
        if (cases[i].wanted > 0) {
            w.wanted.attempt = &attempt;
            TAILQ_INSERT_TAIL(&r.tracked.wanted, &w.wanted, link);
            r.tracked.wanted_count = 1;
        }
        uint64_t at = temporal_runs_ops.next(&r.tracked);
        CHECK(at == cases[i].want, "%s: %llu", cases[i].what, (unsigned long long)at);
    }
}
