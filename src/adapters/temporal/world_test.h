/* adapters/temporal/world_test.h: a real Temporal server, the provider, a real executor, and an
 * engine that remembers what it is told and rests after each piece of news. */
#pragma once

#include <uv.h>

#include "adapters/temporal/rpc.h"
#include "adapters/temporal/temporal.h"

struct world;
struct shot { /* an attempt, and its answer */
    struct attempt attempt;
    int answers;
    bool ok;
    char output[512], code[64], message[256], detail[512];
};
struct fake_run {
    struct world *w;
    char id[64];
    enum run_status status;
    bool ours, known; /* in the ledger */
    int links, continued_links;
    char execution[64], queue[80];
    int signals;
    char signal[64], signal_id[128], step_id[64], payload[256], reason[64], actor[64];
    int recovered;
    int64_t recovered_times;
    int rotated, ended, looks;
    char ended_code[64], ended_message[256];
    void (*on_look)(struct fake_run *run);
    bool dirty; /* has news */
};
struct world {
    uv_loop_t loop;
    const char *dir;
    char queue[64];
    struct arena arena;
    struct executor *ex;
    struct temporal_options options;
    bool lent; /* its ledger is that of another world: it knows every run */
    struct provider *p;
    struct rpc *rpc; /* the test's own hand */
    struct plan *plan;
    char plan_ref[512];
    enum reason plan_error; /* ports.plan() refuses with it */
    int plan_waits;         /* and says so often that it is being fetched */
    int plans_out;
    bool bad_ref; /* of attempts to come */
    struct fake_run runs[32];
    size_t run_count;
    uv_timer_t turn;  /* the engine's */
    uv_timer_t clock; /* keeps the loop turning while a test waits */
};

/* Skips the test without a server. The provider is not open yet. */
void world_open(struct world *w);
/* Another world in the same queue, for another process. */
void world_open_in(struct world *w, const char *dir, const char *queue);
void world_close(struct world *w);
struct provider *world_provider(struct world *w, const char *node, int slots);
void world_drop(struct world *w, struct provider **provider); /* closes it and lets it end */
/* Turns the loop once; fails the test when `until` has passed. */
void world_turn(struct world *w, uint64_t until, const char *what);
void world_sleep(struct world *w, uint64_t ms);
#define WAIT_MS 60000
#define WAIT_FOR(w, cond)                                                                          \
    for (uint64_t until = uv_now(&(w)->loop) + WAIT_MS; !(cond);)                                  \
    world_turn((w), until, #cond)

struct fake_run *run_add(struct world *w); /* known, ours, RUNNING */
void fake_open(struct fake_run *run, struct provider *p);
void fake_open_linked(struct fake_run *run, struct provider *p);
void fake_start(struct fake_run *run, struct provider *p, struct shot *s, const char *step_id,
                int64_t number);
void fake_end(struct fake_run *run, struct provider *p, enum run_status end);
bool shot_over(const struct shot *s);

/* The cluster's own tools. */
void hand_signal(struct fake_run *run, const char *name, const char *json);
void hand_cancel(struct fake_run *run);
void hand_terminate(struct fake_run *run, const char *reason);
int hand_status(struct fake_run *run, const char *execution); /* 1 running ...; 0: not there */
void hand_wait_status(struct fake_run *run, int want);
/* Until the cluster waits for no answer to a workflow task: else the next node gets that task. */
void hand_wait_no_task(struct fake_run *run);

int lines_in(const struct world *w, const char *file); /* of a file that steps write to */
int port_free(void);

/* A way to the server that can be cut. */
struct forward;
struct forward *forward_open(uv_loop_t *loop, int port);
void forward_close(struct forward *f);
