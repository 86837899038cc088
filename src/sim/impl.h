/* sim/impl.h: what the files of sim/ share.
 *
 *     world.c   the clock, the queue of what happens next, the nodes' lives and the faults
 *     store.c   the ledger as the engine sees it: append, fence, claims, leases
 *     ports.c   an engine's ports: commits on their way, the executor, reads
 *     plans.c   random plans
 *     people.c  clients, operators, workers
 *     check.c   a model of each run, built from its records alone, and what must hold
 *     judge.c   the same: what the plan allows */
#pragma once

#include "base/arena.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "sim/sim.h"

enum {
    NODES_MAX = 2,
    RUNS_MAX = 6,
    PLANS_MAX = 3,
    STEPS_MAX = 30,
    WORKERS_MAX = 4,
    ATTEMPTS_TOLD = 16, /* answers are remembered for attempts below this number */
    SIGNALS_MAX = 400,  /* of one run */
    TRACE_LINES = 60,   /* shown when an invariant breaks */
    TRACE_LINE_MAX = 256,
};
#define MS ((int64_t)1000)
#define SECOND ((int64_t)1000 * 1000)
#define LEASE_US (6 * SECOND)
#define RENEW_US (2 * SECOND)
#define LOOK_US (500 * MS)

/* ---- chance ---- */

uint64_t sim_mix(uint64_t x);
struct rng {
    uint64_t state;
};
uint64_t sim_rng_next(struct rng *r);
int64_t sim_rng_between(struct rng *r, int64_t least, int64_t most);
bool sim_rng_chance(struct rng *r, int64_t per_mille);

/* ---- the model of a run ---- */

struct model_step {
    enum step_state state;
    int64_t attempt;              /* the newest */
    int64_t due_us, timeout_us;   /* as its StepStarted said; FLOW_NEVER */
    int64_t started_us, ended_us; /* by the clock of the node that said so */
    int64_t retry_attempt;        /* a StepRetried waits to be started; 0: none */
    int64_t retry_us;
    bool hurried;      /* RETRY_STEP: its time does not count any more */
    bool dep_skipped;  /* SKIPPED because of a dependency */
    bool too_late;     /* its newest attempt failed when the run was failing already */
    bool signal_retry; /* an operator asked for the newest attempt */
    str code;
    int64_t leases, lease_until_us;
    char value[40]; /* output.v of its StepCompleted; "" if none */
    bool told_ok[ATTEMPTS_TOLD], told_failed[ATTEMPTS_TOLD]; /* what executors answered */
    struct {
        uint32_t life;
        int64_t attempt;
    } begun[NODES_MAX]; /* the newest attempt that the node's executor began */
};

enum effect {
    EFFECT_NONE,
    EFFECT_PAUSE,
    EFFECT_RESUME,
    EFFECT_APPROVE,
    EFFECT_REJECT,
    EFFECT_RETRY,
    EFFECT_NAMED
};
struct model_signal {
    uuid id;
    enum signal_kind kind;
    str name, step_id;
    int64_t record;                 /* its place among all records of the world */
    bool ended, from_outside, read; /* read: a node has walked over it since */
};

struct sim_record {
    struct event_record rec;
    int64_t number; /* among all records of the world */
};

struct sim_drawn { /* the id under which a node sent an event that it does not know to be stored */
    uint8_t key[SHA256_LEN];
    uuid id;
    uint32_t node, life;
};

struct sim_run {
    uint32_t index;
    char run_id[16];
    const struct plan *plan;
    str tenant_id;
    bool approval;
    /* as clients see it */
    bool start_acked;
    uint32_t starts_under_way, start_node;
    /* stored */
    bool exists;
    struct run run; /* reduced */
    struct sim_record *records;
    size_t count, cap;
    int64_t run_no;
    bool held;
    int64_t node_no, epoch, wake_us;
    bool woken;
    struct sim_drawn *drawn; /* of failed commits */
    size_t drawn_count, drawn_cap;
    /* the model */
    enum run_status status; /* as of the record that is looked at */
    struct model_step steps[STEPS_MAX];
    struct model_signal signals[SIGNALS_MAX];
    size_t signal_count;
    enum effect effect; /* of the record before: its signal must end next */
    str effect_name;
    bool cancel_seen, approved, queued_admission;
    bool ended;         /* its final batch is stored */
    size_t final_batch; /* ... which began with this record */
    int64_t engine_attempt;
    int64_t driver_node, driver_epoch; /* who wrote the newest batch of an engine */
    str final_code;
    int64_t signals_sent;
    struct signal sent[SIGNALS_MAX / 2 + 1]; /* by operators, by their number */
};

struct sim_plan {
    const struct plan *plan;
    struct plan_ref ref;
    int64_t refs;
};

/* ---- nodes ---- */

struct sim_commit {
    struct sim_commit *next; /* of those under way at its node, in order */
    struct engine_commit *commit;
    uint32_t node, life;
    int fate; /* enum commit_fate */
    bool landed;
    status code;
    struct error err;
    int64_t decided; /* records in the world when it was submitted */
};

struct sim_attempt {
    struct sim_attempt *next;
    struct attempt *attempt;
    struct sim_run *run;
    uint32_t node, life, step;
    int64_t number;
    uint32_t turn; /* of its answer: an earlier one in the queue is void */
    bool ok, hangs, stopped;
    enum reason code;
};

struct sim_node {
    uint32_t index;
    struct world *world;
    char name[16];
    bool up, lost;
    uint32_t life; /* of the engine that is up */
    struct engine *engine;
    struct lease lease;
    int64_t skew_us;
    int64_t armed_us;
    uint32_t arm_turn;
    int64_t frozen_until, renew_blocked_until, renewed_us;
    bool stubborn; /* does not notice that it could not renew */
    int64_t looks;
    struct sim_commit *commits;
    struct sim_attempt *attempts;
    /* its row in the store */
    int64_t row_epoch, row_until_us;
};

struct sim_worker {
    struct world *world;
    uint32_t index, node, life, turn;
    struct engine_poll *poll;
    int64_t lease_ms, deadline_us; /* of the poll */
};

struct sim_task { /* that a worker holds */
    struct sim_run *run;
    char step_id[16];
    int64_t attempt, lease, lease_ms;
    int64_t finish_us; /* world time */
    uint32_t node, tries, tells;
    bool heartbeats, dies, ok;
};

/* ---- what happens next ---- */

enum happening {
    HAP_WAKE,
    HAP_LAND,
    HAP_REPLY,
    HAP_ANSWER,
    HAP_READ,      /* the store is read, */
    HAP_READ_BACK, /* and the node hears of it */
    HAP_RENEW,
    HAP_LOOK, /* a node's */
    HAP_CRASH,
    HAP_BOOT,
    HAP_FAULT,
    HAP_CALM,
    HAP_CARE,
    HAP_START,
    HAP_OPERATOR,
    HAP_WORKER,
    HAP_TASK,
};
struct happening_at {
    int64_t at_us;
    uint64_t order;
    enum happening kind;
    uint32_t node, life, turn;
    void *what;
};

struct world_rates { /* per mille, unless they are times */
    int64_t commit_fails, commit_reply_lost, commit_slow, read_fails, attempt_fails, attempt_hangs,
        worker_bad, operator_us, fault_us, look_fails;
    bool plan_goes;
};

struct world {
    uint64_t seed;
    struct rng rng;
    int64_t now_us, start_us, calm_us, quiet_us;
    bool calm, over, closing;
    uint32_t crashing; /* the node that is just being dropped, + 1 */
    struct world_rates rates;
    struct arena arena, scratch;
    struct happening_at *queue;
    size_t queue_count, queue_cap;
    uint64_t order;
    struct sim_node nodes[NODES_MAX];
    uint32_t node_count;
    struct sim_run *runs[RUNS_MAX];
    uint32_t run_count;
    struct sim_plan plans[PLANS_MAX];
    uint32_t plan_count;
    bool plan_gone;
    struct sim_worker workers[WORKERS_MAX];
    uint32_t worker_count;
    int64_t tenant_seq, next_run_no, record_count, commit_count, fault_count;
    int64_t tenant_active_max, plan_active_max;
    uint32_t settle_max, resident_max;
    int64_t asked, answered; /* operations and their answers */
    /* the trace */
    struct sha256 *sha;
    FILE *trace;
    char (*lines)[TRACE_LINE_MAX];
    size_t line_count;
    struct sim_result *result;
};

/* ---- world.c ---- */
void sim_world_trace(struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* An invariant is broken: the first one is kept, and the world ends. */
void sim_world_break(struct world *w, const char *invariant, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
void sim_world_at(struct world *w, int64_t at_us, enum happening kind, uint32_t node, uint32_t turn,
                  void *what);
bool sim_node_answers(const struct sim_node *n, int64_t now_us); /* up, and not frozen */
struct sim_run *sim_find_run(struct world *w, str run_id);
void sim_world_fault(struct world *w, const char *fmt, ...)
    PRINTF_LIKE(2, 3); /* traced and counted */

/* ---- plans.c ---- */
void sim_plans_make(struct world *w);

/* ---- store.c ---- */
/* As ledger_append() of one request. `node` NULL: from outside. */
status sim_store_append(struct world *w, struct sim_node *node, struct append_request *req,
                        int64_t decided);
status sim_store_post_signal(struct world *w, struct sim_run *run, struct signal *signal, str actor,
                             struct error *err);
status sim_store_take(struct world *w, struct sim_node *n, struct error *err);
status sim_store_renew(struct world *w, struct sim_node *n, struct error *err);
/* Names the runs in `out` (RUNS_MAX). */
size_t sim_store_take_over(struct world *w, struct sim_node *n, struct sim_run **out);
size_t sim_store_woken(struct world *w, struct sim_node *n, struct sim_run **out);

/* ---- ports.c ---- */
void sim_node_ports(struct sim_node *n, struct engine_ports *out);
void sim_commit_land(struct world *w, struct sim_commit *c);
void sim_commit_reply(struct world *w, struct sim_commit *c);
void sim_read_take(struct world *w, struct sim_node *n, struct engine_read *read);
void sim_attempt_answer(struct world *w, struct sim_attempt *a);
/* Whatever is under way when the node's memory is dropped. */
void sim_commits_drop(struct world *w, struct sim_node *n);
void sim_attempts_drop(struct world *w, struct sim_node *n);
void sim_attempts_calm(struct world *w); /* those that hang end */

/* ---- people.c ---- */
void sim_people_start(struct world *w);
void sim_client_start(struct world *w, struct sim_run *run);
void sim_operator_acts(struct world *w);
void sim_caretaker(struct world *w);
void sim_worker_acts(struct world *w, struct sim_worker *k);
void sim_worker_task(struct world *w, struct sim_task *t);

/* ---- check.c ---- */
struct check_batch { /* of one engine's commit; node NULL: a signal from outside */
    struct sim_node *node;
    int64_t decided;
    size_t index; /* of the record in it */
    enum event_type first;
};
/* A new record, in order: what must hold, and what it changes in the model. */
void sim_check_record(struct world *w, struct sim_run *run, const struct event_record *rec,
                      const struct check_batch *batch);
/* After the whole commit, claim included. */
void sim_check_commit(struct world *w, struct sim_run *run, struct sim_node *node, int64_t decided,
                      int64_t emitted_us);
void sim_check_begin(struct world *w, const struct sim_attempt *a);
void sim_check_end(struct world *w);

/* ---- judge.c ---- */
bool sim_judge_dep_settled(const struct sim_run *run, uint32_t dep);
bool sim_judge_poisoned(const struct sim_run *run, uint32_t step);
bool sim_judge_failing(const struct sim_run *run);
bool sim_judge_retryable(const struct plan_retry *r, str code);
bool sim_judge_wanted(const struct sim_run *run, uint32_t step);
void sim_judge_backoff(const struct plan_retry *r, int64_t attempt, int64_t *least_ms,
                       int64_t *most_ms);
bool sim_judge_ready(const struct sim_run *run, uint32_t step);
int64_t sim_judge_next_due(const struct sim_run *run, int64_t emitted_us);
