/* engine/engine.h: the shell around core: load, decide, append, then act; wake, recover.
 *
 * For each run: news (results, signals, timers) -> flow_decide -> one append -> and only when that is
 * durable the attempts it started are executed, waiters answered, observers told. One append is
 * under way per run; news that arrives meanwhile waits and travels in the next one.
 *
 * A run that only waits is not in memory: its row in lease_run says when to look at it again.
 * Recovery is no special case: runs of this node with work under way are loaded page by page, and an
 * attempt that was open is executed again, with the same logicalAttemptId.
 *
 * The engine does no I/O: everything goes through its ports, so that a simulator can be the world.
 * Single-threaded: all calls on the thread that opened it. */
#pragma once

#include "adapters/provider.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "core/flow.h"
#include "core/plan_ref.h"
#include "core/run_ref.h"
#include "ledger/bridge.h"
#include "ledger/lease.h"
#include "ledger/ledger.h"
#include "ledger/readers.h"

struct engine;
struct engine_run;
struct receipt;

/* One append, on its way through the port. */
struct engine_commit {
    struct append_request request;
    struct run_claim claim;
    status code; /* the answer: ST_OK: see request.results */
    struct error err;
    struct engine_run *run;
    struct bridge_call call; /* the port's: its way to the ledger thread and back */
};

struct engine_loaded {
    struct run_info info;
    bool held;     /* a node has it, */
    bool ours;     /* this one, */
    int64_t epoch; /* in this epoch of that node */
};

/* One question to the store. The engine asks with the port `read` and goes on with other things; the port
 * fills the answer, on any thread, and brings it back with engine_read_done(). What was read may be old by
 * then: whatever is decided from it is checked again by the commit. */
enum read_kind {
    READ_RUN,       /* a run, and its rows after `after_seq` */
    READ_DUE,       /* runs of this node whose time comes: lease_due() */
    READ_UNDER_WAY, /* the same, for those with work under way */
};
enum { READ_ROWS_MAX = 4096 }; /* of one answer; `more` says that there are others */
struct engine_read {
    enum read_kind kind;
    str run_id;
    int64_t after_seq;
    bool wants_counts; /* READ_RUN: how many runs are RUNNING or PAUSED now, */
    str tenant_id;     /* of the tenant, */
    str plan_id;       /* and of its plan. They are told of a run that does not exist, too */
    struct lease_range range; /* of the other kinds */

    /* The answer. Its texts live in `arena`, which the port may use while it has the question. */
    status code; /* ST_NOT_FOUND: there is no such run */
    struct error err;
    struct engine_loaded loaded;
    struct event_record *rows; /* see engine_read_row() */
    size_t row_count;
    bool more;
    struct lease_runs runs;
    int64_t tenant_active, plan_active;
    status plan_code; /* why the plan of the run cannot be had; ST_OK: ask for it with the port `plan` */
    struct error plan_err;
    struct arena arena;

    struct reader_job job; /* the port's: its way to a reader thread and back */
    void *port;

    struct engine_run *run; /* the engine's, as what follows. NULL: nobody waits for it any more */
    struct engine_read *next, **link;
    bool begun;         /* rows of a page before this one are applied */
    bool counts_wanted; /* it counts among the engine's own loads */
    int64_t pass;       /* of recovery */
    struct arena_mark kept; /* what a page leaves in the arena */
};
/* Adds a row to the answer, a struct engine_read: a ledger_walk, for ports. */
status engine_read_row(void *context, const struct event_record *rec, bool *stop, struct error *err);
/* The reference that a run was launched with, from its first row; false: an engine did not launch it. */
bool engine_launch_ref(const struct event_record *first, struct arena *arena, struct plan_ref *out);

struct engine_note { /* what an observer sees of a commit: borrowed */
    str run_id, tenant_id;
    const struct flow *flow;
    const struct flow_event *events;
    const struct append_result *results;
    size_t count;
};

struct engine_ports {
    void *context;
    int64_t (*now_us)(void *context);
    void (*random)(void *context, void *out, size_t n);
    /* Takes the commit; engine_committed() answers it later, never inside this call. ST_LIMIT: the
     * queue is full, try again. */
    status (*append)(void *context, struct engine_commit *commit, struct error *err);
    /* Takes the question; engine_read_done() answers it later, never inside this call. With the first rows of
     * a run that is not finished, its plan must be there for `plan`, or plan_code says why it is not. */
    void (*read)(void *context, struct engine_read *read);
    /* The plan, if that tenant may have it and it is in memory, checked as T44 says; it lives until
     * plan_done(). A start needs its plan, too: whoever asks for it has it fetched before. */
    status (*plan)(void *context, str tenant_id, const struct plan_ref *ref,
                   const struct plan **out, struct error *err);
    void (*plan_done)(void *context, const struct plan *plan);
    void (*start)(void *context, struct attempt *attempt);
    void (*stop)(void *context, struct attempt *attempt);
    /* See struct provider_ops; NULL where there is no provider, and `leave` is `stop`. */
    void (*leave)(void *context, struct attempt *attempt);
    void (*open_run)(void *context, enum adapter_kind adapter, const struct provider_run *run);
    void (*rested)(void *context, enum adapter_kind adapter, str run_id);
    void (*wake_at)(void *context, int64_t us); /* call engine_tick() then, or earlier */
    void (*observe)(void *context, const struct engine_note *note); /* or NULL */
    /* A run cannot be written for the n-th time; it is tried again all the same. Or NULL */
    void (*trouble)(void *context, str run_id, const struct error *why, int tries);
    void (*lost)(void *context); /* the lease is lost: everything was dropped. Or NULL */
};

struct engine_options {
    struct lease lease;
    str node;              /* for RunRecovered */
    str version;           /* of the program */
    const char *provider[ADAPTER_COUNT]; /* what engineRunRef adds, a JSON object; NULL: no such one */
    uint32_t settle_max;                 /* see struct decision */
    int64_t tenant_active_max, plan_active_max; /* admission; 0: no limit */
    bool only_asked;       /* loads no run by itself: only what is started, signalled, looked at */
    uint32_t resident_max; /* runs kept in memory though they only wait */
    struct metrics *metrics; /* or NULL */
};

MUST_CHECK status engine_open(const struct engine_ports *ports,
                              const struct engine_options *options, struct engine **out,
                              struct error *err);
/* Drops all memory. Attempts under way must have been answered (close the executor first). */
void engine_close(struct engine *engine);

/* Answers a question to the store; not after engine_close(). */
void engine_read_done(struct engine *engine, struct engine_read *read);
/* Answers a commit. */
void engine_committed(struct engine *engine, struct engine_commit *commit);
/* Does what is due: timers, runs to be loaded. Call it at the time asked for by wake_at, and often
 * enough where another process may wake a run (PostgreSQL). */
void engine_tick(struct engine *engine);
/* Loads runs of this node that have work under way, page by page with each tick, and looks at those
 * in memory again: at the start, and when an answer of lease_woken() or lease_take_over() is lost. */
void engine_recover(struct engine *engine);
/* Looks at this run again: it was woken, or taken over. */
void engine_look(struct engine *engine, str run_id);
/* Decides nothing more: before closing, while executors still answer. */
void engine_halt(struct engine *engine);
/* The lease is lost: drops every run without another event. */
void engine_lose(struct engine *engine);

/* ---- operations; `done` is called once, with ST_OK after the commit ----
 *
 * What changes nothing commits nothing, and so not its riders either: append_rider.rode tells. */

typedef void (*engine_done)(void *context, status code, const struct error *err);

struct engine_poll;
struct engine_caller {                 /* who asks for an operation, and how the answer gets back */
    str actor;                         /* for the events, or STR_NONE. Copied */
    const struct append_rider *riders; /* committed with it, live until `done`; or NULL */
    struct engine_poll *poll; /* of a result: a held poll that gets first what follows; or NULL */
    engine_done done;                  /* or NULL */
    void *context;
};

struct start_request {
    struct plan_ref ref;
    str tenant_id, project_id, environment_id, run_id; /* run_id STR_NONE: a UUID v4 is made */
    str adapter;    /* "local", "temporal", "conductor": whoever calls has chosen */
    str parameters; /* JSON object, or STR_NONE */
    str actor;
    bool fresh_id; /* nobody can have used the run id before: the store need not be asked for it */
    bool approval; /* queue it until somebody approves */
    const uuid *correlation;           /* the trace it belongs to; NULL: a fresh one. Copied */
    const struct append_rider *riders; /* committed with the launch, live until `done`; or NULL */
    bool *existing; /* set before `done`: the run was there already; may be NULL */
    const struct error *plan_error; /* why the plan could not be fetched; or NULL: the port `plan` has it */
};
/* The texts of the request live until `done`.
 *
 * Starts a run, or finds it: the same run id again with the same plan is no second start. The
 * answer means that RunStarted (or RunQueued) is durable; `run_id_out` (ID_BYTES_MAX + 1) gets the
 * id at once. Reasons: those of plan_source, PLAN_VALIDATION_FAILED with the report in the message,
 * CONTEXT_INVALID, PARAMETERS_INVALID, RUN_ID_TAKEN. */
void engine_start(struct engine *engine, const struct start_request *request, char *run_id_out,
                  engine_done done, void *context);
/* The reference to a run that is being started with that adapter: local for one that is none. What
 * is not JSON text of the caller's lives in the arena. */
struct engine_run_ref engine_run_ref(const struct engine *engine, str adapter, str run_id,
                                     struct arena *arena);
/* A signal; idempotent on its signal_id. A run of another node answers
 * RUN_ELSEWHERE: host_post_signal() reaches it. */
void engine_signal(struct engine *engine, str run_id, const struct signal *given,
                   const struct engine_caller *caller);

/* ---- what a provider says; see struct provider_ports. Told again, it has no second effect ---- */

void engine_linked(struct engine *engine, str run_id, const struct provider_link *link);
void engine_rotating(struct engine *engine, str run_id);
void engine_worker_lost(struct engine *engine, str run_id, str step_id, int64_t attempt,
                        int64_t times);
/* The run fails with this code, which must have static storage. */
void engine_ended(struct engine *engine, str run_id, enum reason code, str message);
/* false: the run is not in memory. *output is borrowed until the engine is called again. */
bool engine_step(struct engine *engine, str run_id, str step_id, enum provider_step_state *out,
                 str *output);

/* ---- tasks for outside workers ---- */

struct task_ref { /* the token of a lease */
    str run_id, step_id;
    int64_t attempt, lease;
    str tenant_id; /* a run of another tenant is not found; STR_NONE: any */
};
struct task {
    struct task_ref ref;
    str tenant_id, queue, input; /* JSON */
    int64_t lease_until_us;
    uuid correlation;
};
typedef void (*engine_tasks_done)(void *context, const struct task *tasks, size_t count);
struct poll_request {
    str tenant_id, queue;
    str worker;                    /* who polls, for the events */
    size_t max;                    /* tasks leased at most */
    int64_t lease_ms;              /* unless the plan says otherwise */
    int64_t deadline_us;           /* answered then with what there is: nothing */
    const struct receipt *receipt; /* or NULL. Copied; see below */
    /* For a worker that hands in results: takes what is free now and what follows from the results
     * that name it (engine_caller), and is not answered before engine_poll_release(), which says
     * the deadline. */
    bool held;
};
struct engine_poll;
/* Leases up to `max` tasks of the queue; answers when there is at least one, or at the deadline
 * with none. With a receipt, one like it is committed with each lease; its body is the task's
 * task_ref_write(). */
MUST_CHECK status engine_poll(struct engine *engine, const struct poll_request *request,
                              engine_tasks_done done, void *context, struct engine_poll **out,
                              struct error *err);
/* It may be answered from now on; `done` may be called before this returns. */
void engine_poll_release(struct engine *engine, struct engine_poll *poll, int64_t deadline_us);
/* It waits no longer: `done` comes now, or when it is known which of its leases were committed. */
void engine_poll_stop(struct engine *engine, struct engine_poll *poll);
/* The poller went away: no answer comes. */
void engine_poll_cancel(struct engine *engine, struct engine_poll *poll);
/* Extends the lease. ST_CONFLICT LEASE_LOST: somebody else has the task, or it is over. *until_us is
 * written before `done`, which comes before this returns if the run is in memory and rests. */
void engine_heartbeat(struct engine *engine, const struct task_ref *ref, int64_t lease_ms,
                      int64_t *until_us, const struct engine_caller *caller);
/* The task once more, as the poll gave it, while that lease holds: LEASE_LOST as above. *out, with texts in
 * the arena, is written before `done`, as above. */
void engine_task_again(struct engine *engine, const struct task_ref *ref, struct arena *arena,
                       struct task *out, const struct engine_caller *caller);
/* The worker's result. LEASE_LOST as above; a repeated answer of the same lease is ST_OK. The
 * caller's actor stands in the step's event. */
void engine_task_done(struct engine *engine, const struct task_ref *ref,
                      const struct outcome *outcome, const struct engine_caller *caller);
/* One line of text for a task_ref, without its tenant, and back: false if it is none. What is read
 * points into the text. */
enum { TASK_REF_MAX = 2 * ID_BYTES_MAX + 80 };
void task_ref_write(struct buf *out, const struct task_ref *ref);
bool task_ref_read(str text, struct task_ref *out);

/* How many runs are in memory, attempts under way, tasks waiting. */
struct engine_stats {
    size_t resident, attempts, tasks, polls;
};
void engine_stats(const struct engine *engine, struct engine_stats *out);
