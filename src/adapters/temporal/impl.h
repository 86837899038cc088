/* adapters/temporal/impl.h: what the files of the provider share.
 *
 * A run is a record (adapters/provider_runs.h) with two states: what the cluster has of it (enum
 * execution_state), and where the engine stands with it (enum engine_side). Everything that happens
 * to a run moves one of the two, or changes what is wanted; then its next step sees what to do. */
#pragma once

#include <sys/queue.h>

#include "adapters/provider_runs.h"
#include "adapters/temporal/commands.h"
#include "adapters/temporal/rpc.h"
#include "adapters/temporal/temporal.h"

enum {
    RUNS_MAX = 100000,      /* in memory */
    TASKS_MAX = 256,        /* workflow tasks in hand at once; then we stop asking for more */
    QUEUES_MAX = 64,        /* queues of dead nodes that are polled as well */
    ACTIVITY_POLLS_MAX = 4, /* at once, while slots are free */
    EXECUTION_ID_MAX = 128, /* bytes of an id that the cluster makes up */
    HOLD_MS = 2000,         /* of a workflow task, for the engine to rest */
    LOOK_MS = 30000,
    SWEEP_MS = 300000,
    HEARTBEAT_MS = 20000, /* the cluster's patience; we send four in that time */
    IDLE_MS = 600000,     /* then a run of which nothing is wanted is forgotten */
    FIRST_TASK_MS = 5000, /* for a task that the cluster owes us, then we ask for one */
    PARK_MS = 8000,   /* of a task that nobody here can answer; the cluster's patience is 10 s */
    CALLS_BUSY = 512, /* calls under way: more about runs wait */
    CALLS_PAUSE_MS = 100,
    NEXT_TASK_MS = 15000, /* the same as FIRST_TASK_MS, after an answer that was refused */
    RETRY_MS = 1000,      /* then x2 */
    RETRY_MS_MAX = 30000,
};
#define TASK_ARENA_MAX ((size_t)256 * 1024 * 1024)
#define WAKE_SIGNAL STR("cairn.wake")
#define OWN_SIGNALS STR("cairn.")

struct temporal;

/* ---- queues of workflow tasks ---- */

struct task_queue {
    TAILQ_ENTRY(task_queue) link;
    size_t runs; /* that need it; the own one is needed always */
    int polls;   /* under way */
    size_t name_len;
    char name[];
};
TAILQ_HEAD(queue_list, task_queue);

/* ---- runs ---- */

/* What the cluster has of a run. */
enum execution_state {
    EXECUTION_UNKNOWN,  /* it has to be asked */
    EXECUTION_NONE,     /* nothing, and it was not asked to make one */
    EXECUTION_ASKED,    /* it was asked to make one, and may have heard us */
    EXECUTION_OPEN,     /* an execution that goes on */
    EXECUTION_DRAINING, /* open, but nothing can be scheduled before an activity of it ended */
    EXECUTION_GONE,     /* over, and not by us: the engine has to hear of it */
    EXECUTION_GONE_TOLD,
    EXECUTION_STATE_COUNT,
};
/* Where the engine stands with a run. */
enum engine_side {
    ENGINE_UNAWARE, /* it has not told of the run, or it has left it */
    ENGINE_ASKED,   /* the same, but it was told something: it may tell of the run soon */
    ENGINE_DECIDES, /* it was told something, and has not rested since */
    ENGINE_RESTS,   /* it has said all that it wants for now */
    ENGINE_ENDED,   /* the run is over: its execution is to be closed */
    ENGINE_SIDE_COUNT,
};
/* What is said between the engine and us. */
enum engine_word {
    WORD_TOLD,   /* by us: some news */
    WORD_OPENED, /* by the engine, and so are the others */
    WORD_RESTED,
    WORD_LEFT,
    WORD_ENDED,
    ENGINE_WORD_COUNT,
};

enum wanted_sent { SENT_NOTHING, SENT_SCHEDULE, SENT_CANCEL };
struct temporal_wanted { /* an attempt that the engine waits for */
    struct wanted wanted;
    bool stop;             /* the engine wants it to end */
    enum wanted_sent sent; /* the newest that the cluster has of us, as far as we know */
    bool in_answer;        /* an answer under way says something of it: `due` */
    enum wanted_due due;
    size_t id_len;
    char id[]; /* of its activity */
};

struct run_times { /* uv_now() when something is due; 0: it is not waited for */
    uint64_t wake, hold, look, idle;
};
struct told { /* what the engine was told of the newest execution */
    char execution[EXECUTION_ID_MAX];
    bool continued; /* it continues another */
    bool cancel;    /* that somebody asked for its cancellation */
    int64_t signal; /* event id of the newest signal */
};
struct history_read { /* of a history without a task; while `call` is under way */
    struct arena arena;
    struct history history;
    int pages;
    char execution[EXECUTION_ID_MAX];
};
struct temporal_run {
    struct tracked_run tracked;
    struct temporal *t;
    struct arena arena;
    str tenant_id, project_id, environment_id, plan_id, plan_version, plan_ref;
    uuid correlation;         /* all zero: not known */
    struct task_queue *queue; /* of its workflow tasks; NULL: not known */
    enum execution_state state;
    char execution[EXECUTION_ID_MAX]; /* the newest one; empty: not known */
    struct told told;
    bool tell_link; /* the engine asked for the link: it is told once more */
    enum engine_side side;
    enum run_status end;   /* of ENGINE_ENDED, else RUN_NEW */
    str code, message;     /* likewise, of RUN_FAILED */
    enum reason gone_code; /* of EXECUTION_GONE */
    str gone_message;
    struct rpc_call *call; /* start, describe or history */
    struct rpc_call *wake_call;
    bool complained; /* a call that failed was logged */
    struct history_read read;
    int64_t looked_length;      /* of its history, when it was looked at; 0: never */
    struct workflow_task *task; /* held until the engine rests */
    struct run_times at;
};

/* ---- workflow tasks ---- */

enum task_state {
    TASK_POLLS,   /* there is none yet */
    TASK_READS,   /* its history */
    TASK_PARKED,  /* its run belongs to another node, or will be ours in a moment */
    TASK_HELD,    /* by its run, until the engine rests */
    TASK_ANSWERS, /* and ends when the cluster has the answer */
};
struct workflow_task {
    TAILQ_ENTRY(workflow_task) link; /* of t->polls, or of t->tasks */
    struct temporal *t;
    enum task_state state;
    struct task_queue *queue; /* of TASK_POLLS */
    struct arena arena;
    const Tp__TaskResponse *poll;
    struct history history;
    struct temporal_run *run; /* of TASK_HELD, and of an answer for one; or NULL */
    struct rpc_call *call;
    bool closes, continues, more; /* what its answer does */
    uint64_t round;               /* of workflow_tasks_recheck() that saw it last */
    uint64_t parked_until;
    int pages;
};
TAILQ_HEAD(task_list, workflow_task);

/* ---- the provider ---- */

enum temporal_state {
    TEMPORAL_BOOTS, /* the cluster or the namespace is not there yet */
    TEMPORAL_READY,
    TEMPORAL_CLOSING, /* waits for what it executes, and for answers under way */
    TEMPORAL_ENDING,  /* waits for the loop */
};
TAILQ_HEAD(activity_list, activity);
struct temporal {
    struct provider provider;
    uv_loop_t *loop;
    struct provider_ports ports;
    struct rpc *rpc; /* NULL: closed */
    struct arena arena;
    str ns, queue_name, own_queue_name, identity;
    int slots, pollers;
    int64_t look_ms, heartbeat_ms, hold_ms, idle_ms;
    enum temporal_state state;
    struct provider_runs runs;
    struct provider_sweep sweep;
    struct queue_list queues;
    struct task_queue *own_queue;
    size_t queue_count;
    struct task_list polls; /* for workflow tasks */
    struct task_list tasks; /* in hand */
    size_t task_count;
    uint64_t round;                  /* of workflow_tasks_recheck() */
    struct activity_list activities; /* and polls for them */
    int activity_count, activity_polls;
    uv_timer_t timer;      /* boot, sweep, and the end */
    struct rpc_call *call; /* of boot or sweep */
    int64_t boot_pause_ms;
    size_t handles; /* of libuv, not closed yet; those of runs not counted */
};

static inline uint64_t now_ms(const struct temporal *t) { return uv_now(t->loop); }
static inline bool temporal_is_closing(const struct temporal *t) {
    return t->state >= TEMPORAL_CLOSING;
}
static inline str task_queue_str(const struct task_queue *q) { return str_n(q->name, q->name_len); }
static inline str wanted_id(const struct temporal_wanted *w) { return str_n(w->id, w->id_len); }
static inline bool temporal_run_is_open(const struct temporal_run *r) {
    return r->state == EXECUTION_OPEN || r->state == EXECUTION_DRAINING;
}
/* Whether the engine was told something and has not answered with a rest. */
static inline bool temporal_run_is_heard(const struct temporal_run *r) {
    return r->side == ENGINE_ASKED || r->side == ENGINE_DECIDES;
}

/* temporal.c */
struct task_queue *task_queue_take(struct temporal *t,
                                   str name); /* NULL: memory is out, or too many */
/* A run needs it no longer; NULL: just frees those that nobody needs. */
void task_queue_drop(struct temporal *t, struct task_queue *queue);
void temporal_tick_soon(struct temporal *t); /* a task was parked */
void temporal_check_end(struct temporal *t); /* after something that a closing provider waits for */

/* runs.c: the records, their states, their steps, and what the engine calls */
struct temporal_run *temporal_run_find(const struct temporal *t, str run_id);
/* EXECUTION_UNKNOWN. NULL: too many, or memory is out. */
struct temporal_run *temporal_run_new(struct temporal *t, str run_id);
void temporal_run_move(struct temporal_run *r, enum execution_state state);
void temporal_run_word(struct temporal_run *r, enum engine_word word);
/* The run is over: its execution is closed, and forgotten. NULL: too many, or memory is out. */
struct temporal_run *temporal_run_close(struct temporal *t, str run_id, enum run_status end,
                                        str code, str message);
/* Looks after the execution now: it may be gone. */
void temporal_run_suspect(struct temporal_run *r);
/* The execution is over, and not by us. */
void temporal_run_gone(struct temporal_run *r, enum reason code, str message);
/* Somebody else's workflow has the id of the run. Nothing of it is touched: not its tasks, not its
 * signals, not its end. */
void temporal_run_other(struct temporal_run *r);
void temporal_run_set_queue(struct temporal_run *r, str name);
void temporal_run_set_execution(struct temporal_run *r, str id);
struct temporal_wanted *temporal_wanted_first(const struct temporal_run *r);
struct temporal_wanted *temporal_wanted_after(const struct temporal_wanted *w);
void temporal_wanted_cancel(struct temporal_run *r, bool stopped_only);
extern const struct provider_runs_ops temporal_runs_ops;
void temporal_open_run(struct provider *provider, const struct provider_run *run);
void temporal_start(struct provider *provider, struct attempt *attempt);
void temporal_stop(struct provider *provider, struct attempt *attempt);
void temporal_leave(struct provider *provider, struct attempt *attempt);
void temporal_note(struct provider *provider, const struct provider_note *note);
void temporal_rested(struct provider *provider, str run_id);
bool temporal_idle(const struct provider *provider);

/* news.c: what the engine is told; from inside the run. */
void temporal_tell_link(struct temporal_run *r);
/* Tells the engine of the execution, unless it knows. */
void temporal_tell_execution(struct temporal_run *r, bool continued);
/* What is new in a history: the execution, and its signals. */
void temporal_tell(struct temporal_run *r, str execution, const struct history *h);
/* The attempts whose activities have ended. */
void temporal_tell_ended(struct temporal_run *r, const struct history *h);
/* The cluster counts attempts from 1; each beyond the first was given to another worker. */
void temporal_tell_recovered(struct temporal_run *r, const struct attempt *attempt, int32_t count);
void temporal_tell_answer(struct temporal_run *r, struct temporal_wanted *w,
                          const struct outcome *outcome);

/* calls.c: begin a call; what comes of it is seen by the run's next steps */
void temporal_run_describe(struct temporal_run *r); /* and read its history, if it has news */
void temporal_run_make(struct temporal_run *r);
void temporal_run_wake(struct temporal_run *r);

/* tasks.c */
void workflow_tasks_poll(struct temporal *t);    /* as many polls as there should be */
bool workflow_tasks_recheck(struct temporal *t); /* the parked ones; whether there are some */
/* Answers the held task, or finds that the engine has to hear something first. */
void workflow_task_answer(struct temporal_run *r);
void workflow_task_check(const struct workflow_task *task);
void workflow_tasks_leave(struct temporal_run *r); /* it is about to be freed */
void workflow_tasks_release(struct temporal *t);

/* worker.c */
void activities_poll(struct temporal *t);
void activities_release(struct temporal *t); /* stops polling and asks what runs to end */
