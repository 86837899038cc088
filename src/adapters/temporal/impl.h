/* adapters/temporal/impl.h: what the files of the provider share.
 *
 * A run is a record with flags; everything that happens to it (an answer of the cluster, a workflow
 * task, a call of the engine) sets some and then has execution_step() look at what to do next.
 * Calls of the engine never call it back before they return: they ask for a step in the loop's next
 * turn. While a port is being called, calls of the engine find `busy` and only set flags. */
#pragma once

#include <sys/queue.h>

#include "adapters/temporal/commands.h"
#include "adapters/temporal/rpc.h"
#include "adapters/temporal/temporal.h"
#include "base/map.h"

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
    NEXT_TASK_MS = 15000, /* the same after an answer that was refused */
    RETRY_MS = 1000,      /* then x2 */
    RETRY_MS_MAX = 30000,
};
#define TASK_ARENA_MAX ((size_t)256 * 1024 * 1024)
#define WAKE_SIGNAL STR("cairn.wake")
#define OWN_SIGNALS STR("cairn.")

struct temporal;
struct task;

struct wanted { /* an attempt that the engine waits for */
    TAILQ_ENTRY(wanted) link;
    struct attempt *attempt; /* NULL: answered; the rest goes when the run is not busy */
    bool stop;
    bool commanded;   /* its activity is there, as far as we know */
    bool cancel_sent; /* and was asked to end */
    bool answered;    /* an answer under way says something of it: `due` */
    enum wanted_due due;
    size_t id_len;
    char id[];
};
TAILQ_HEAD(wanted_list, wanted);

struct task_queue { /* of workflow tasks */
    TAILQ_ENTRY(task_queue) link;
    size_t runs; /* that need it; the own one is needed always */
    int polls;   /* under way */
    size_t name_len;
    char name[];
};
TAILQ_HEAD(queue_list, task_queue);

enum run_phase {
    PHASE_UNKNOWN, /* ask the cluster what it has of it */
    PHASE_NEW,     /* no execution yet */
    PHASE_READY,   /* there is one */
    PHASE_GONE,    /* it is over, and not by us */
};
struct run_times { /* uv_now() when something is due; 0: never */
    uint64_t retry, wake, hold, look, idle;
};
struct temporal_run {
    TAILQ_ENTRY(temporal_run) link;
    struct temporal *t;
    struct arena arena;
    str run_id, tenant_id, project_id, environment_id, plan_id, plan_version, plan_ref;
    uuid correlation; /* all zero: not known */
    enum run_phase phase;
    struct task_queue *queue;         /* of its workflow tasks; NULL: not known */
    char execution[EXECUTION_ID_MAX]; /* the newest one; empty: not known */
    char told[EXECUTION_ID_MAX];      /* the one that the engine was told of */
    int64_t told_signal;              /* event id of the newest signal told, of that execution */
    bool told_cancel, told_ended;
    bool continued;        /* that execution continues another */
    bool tell_link;        /* once more */
    struct rpc_call *call; /* start, describe or history */
    struct arena read_arena;
    struct history read;
    int read_pages;
    char read_execution[EXECUTION_ID_MAX];
    int64_t looked_length; /* of its history, when it was looked at; 0: never */
    struct rpc_call *wake_call;
    struct task *task; /* held until the engine rests */
    bool digests;      /* the engine was told something and has not rested since */
    bool opened;       /* the engine told of it */
    bool tried;        /* to make an execution */
    const char *gone_code;
    str gone_message;
    bool soon;   /* a step in the next turn */
    bool due;    /* something for the next task */
    bool drains; /* nothing can be scheduled before an activity ended */
    bool complained;
    int64_t retry_ms;
    struct run_times at;
    struct wanted_list wanted;
    size_t wanted_count;   /* of those that are not answered */
    enum run_status close; /* RUN_NEW: it goes on */
    str code, message;
    int busy;
    bool doomed; /* free it when it is not busy */
    uv_timer_t timer;
};
TAILQ_HEAD(run_list, temporal_run);

struct task { /* a workflow task, or the poll for one */
    TAILQ_ENTRY(task) link;
    struct temporal *t;
    struct task_queue *queue; /* while it is a poll */
    struct arena arena;
    const Tp__TaskResponse *poll;
    struct history history;
    struct temporal_run *run; /* while it is held or answered for one; or NULL */
    struct rpc_call *call;
    bool closes, continues, more; /* what its answer does */
    uint64_t round;               /* of tasks_recheck() that saw it last */
    uint64_t parked_until;        /* it belongs to another node, or will be ours in a moment */
    int pages;
};
TAILQ_HEAD(task_list, task);
TAILQ_HEAD(job_list, job);

struct temporal {
    struct provider provider;
    uv_loop_t *loop;
    struct provider_ports ports;
    struct rpc *rpc;
    struct arena arena;
    str ns, queue_name, own_queue_name, identity;
    int slots, pollers;
    int64_t look_ms, sweep_ms, heartbeat_ms, hold_ms, idle_ms;
    struct map run_by_id;
    struct run_list runs;
    struct queue_list queues;
    struct task_queue *own_queue;
    size_t queue_count;
    struct task_list polls; /* for workflow tasks */
    struct task_list tasks; /* in hand */
    size_t task_count;
    struct job_list jobs; /* activities, and polls for them */
    int job_count, job_polls;
    uv_timer_t timer;      /* boot, sweep, and the end */
    bool ready;            /* the cluster and the namespace are there */
    bool crowded;          /* RUNS_MAX was logged */
    struct rpc_call *call; /* of boot or sweep */
    int64_t boot_pause_ms;
    uint64_t sweep_at;
    uint64_t round; /* of tasks_recheck() */
    int sweep_pages;
    bool closing, ending;
    size_t handles; /* of libuv, not closed yet */
};

static inline uint64_t now_ms(const struct temporal *t) { return uv_now(t->loop); }
static inline str task_queue_str(const struct task_queue *q) { return str_n(q->name, q->name_len); }
static inline str wanted_id(const struct wanted *w) { return str_n(w->id, w->id_len); }

/* temporal.c */
struct task_queue *task_queue_take(struct temporal *t,
                                   str name); /* NULL: memory is out, or too many */
/* A run needs it no longer; NULL: just frees those that nobody needs. */
void task_queue_drop(struct temporal *t, struct task_queue *queue);
void temporal_tick_soon(struct temporal *t); /* a task was parked */
void temporal_check_end(struct temporal *t); /* after something that a closing provider waits for */

/* runs.c */
struct temporal_run *execution_find(const struct temporal *t, str run_id);
struct temporal_run *execution_new(struct temporal *t, str run_id);
void execution_enter(struct temporal_run *r);
void execution_exit(struct temporal_run *r); /* does its next step, and may free it */
void execution_doom(struct temporal_run *r);
void execution_soon(struct temporal_run *r);
void runs_kick(struct temporal *t); /* the cluster is there */
void runs_release(struct temporal *t);
/* The run is over: its execution is closed, and forgotten. NULL: too many, or memory is out. */
struct temporal_run *execution_close(struct temporal *t, str run_id, enum run_status end, str code,
                                     str message);
/* Looks after the execution now: it may be gone. */
void execution_suspect(struct temporal_run *r);
/* Tells the engine what is new in a history. Returns whether there was something. */
bool execution_tell(struct temporal_run *r, str execution, const struct history *h);
bool execution_tell_ended(struct temporal_run *r, const struct history *h);
/* What is wanted, one after the other. Stays good while the run is busy, whatever the ports do. */
struct wanted *wanted_first(const struct temporal_run *r);
struct wanted *wanted_after(const struct wanted *w);
/* Answers an attempt, which is forgotten. */
void wanted_answer(struct temporal_run *r, struct wanted *w, const struct outcome *outcome);
void wanted_cancelled(struct temporal_run *r, struct wanted *w);
void execution_cancel_wanted(struct temporal_run *r, bool stopped_only);
void execution_set_due(struct temporal_run *r); /* from what is wanted and what was commanded */
void runs_open(struct provider *provider, const struct provider_run *run);
void runs_start(struct provider *provider, struct attempt *attempt);
void runs_stop(struct provider *provider, struct attempt *attempt);
void runs_leave(struct provider *provider, struct attempt *attempt);
void runs_note(struct provider *provider, const struct provider_note *note);
void runs_rested(struct provider *provider, str run_id);
bool runs_idle(const struct provider *provider);

/* Also runs.c, for calls.c: what is known of the execution. */
void execution_set_queue(struct temporal_run *r, str name);
void execution_set_id(struct temporal_run *r, str id);
/* Tells the engine of the execution, unless it knows; returns whether it did not. */
bool execution_tell_id(struct temporal_run *r, bool continued);
void execution_tell_recovered(struct temporal_run *r, const struct attempt *attempt, int32_t count);
void execution_gone(struct temporal_run *r, const char *code, str message);
/* Somebody else's workflow has the id of the run. Nothing of it is touched: not its tasks, not its
 * signals, not its end. */
void execution_other(struct temporal_run *r);

/* calls.c: begin a call; what comes of it is seen by the run's next steps */
void execution_describe(struct temporal_run *r); /* and read its history, if there is news in it */
void execution_make(struct temporal_run *r);
void execution_wake(struct temporal_run *r);

/* signals.c */
bool execution_tell_signals(struct temporal_run *r, const struct history *h);

/* tasks.c */
void tasks_poll(struct temporal *t);    /* as many polls as there should be */
bool tasks_recheck(struct temporal *t); /* the parked ones; whether there are some */
/* Answers the held task, or finds that the engine has to hear something first. */
void execution_answer_task(struct temporal_run *r);
void task_drop(struct task *task); /* unanswered: the cluster offers it again */
void task_fail(struct task *task, const char *why);
void tasks_release(struct temporal *t);

/* worker.c */
void jobs_poll(struct temporal *t);
void jobs_release(struct temporal *t); /* stops polling and asks what runs to end */
