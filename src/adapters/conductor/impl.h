/* adapters/conductor/impl.h: what the files of the Conductor provider share.
 *
 * A run is a record (adapters/provider_runs.h) with one state, enum workflow_state: how far we are
 * with its workflow. It has at most one request under way, and so has each of its steps. A step of
 * the run sees what is wanted and what is known, and sends the next request.
 *
 * What the engine says only changes what is wanted. Requests are sent, attempts are started and the
 * engine is told things from timers and from answers, never from within a call of the engine's: so
 * no chain of news can nest.
 *
 * A heartbeat that is under way is waited for before the task is answered: the server reads,
 * changes and writes a task, and the later of two such writes would undo the earlier. */
#pragma once

#include <sys/queue.h>
#include <uv.h>

#include "adapters/conductor/conductor.h"
#include "adapters/conductor/def.h"
#include "adapters/conductor/rest.h"
#include "adapters/provider_runs.h"
#include "base/json.h"
#include "base/map.h"

enum {
    RUNS_MAX = 1000000, /* in memory */
    ID_MAX = 127,       /* bytes of a workflow's or task's id: a UUID */
    REASON_MAX = 400,   /* of a text that goes into a query */
    TICK_MS = 250,
    BEAT_MS = 6000,     /* between two heartbeats; three fit into DEF_LEASE_S */
    IDLE_HELD_MAX = 64, /* tasks kept alive whose steps wait; more are given back for a while */
    SHELF_S = 30,       /* that while, at least */
    SHELF_S_MAX = 600,
    POLL_TASKS = 32,         /* of one poll */
    POLL_FAST_MS = 20,       /* after something that makes tasks; doubles */
    POLL_EXPECTING_MS = 250, /* at most, while a step waits for its task */
    PATIENCE_MS = 15000,     /* with an answer to a task: then its lease is over anyway */
    RUN_DELAY_MS = 250,      /* before what failed for a run is tried again; doubles */
    RUN_DELAY_MS_MAX = 5000,
    REFUSALS_MAX = 10,      /* of a start, before the run is given up */
    WITHHELD_MS = 1000,     /* a failure that no rested() follows */
    UNTOLD_MS = 30000,      /* a run whose task came, until the engine has told of it */
    TASK_LATE_MS = 30000,   /* a task that does not come is asked after */
    EVALUATE_MS = 5000,     /* ... and its workflow is evaluated */
    OURS_MS = 60000,        /* between two looks whether a run is still ours */
    ENDING_MS_MAX = 600000, /* then it is left to the sweep */
    SWEEP_MS = 300000,
    SWEEP_PAGE = 100,
    SWEEP_PAGES_MAX = 50,
    CLOSE_MS = 3000, /* for the last requests */
};
#define OUTPUT_BYTES_MAX ((size_t)256 * 1024) /* of a step, shown at the cluster */

struct conductor_run;
struct conductor_job;
/* What follows from the answer to a run's request. */
typedef void (*run_answered)(struct conductor_run *r, const struct rest_answer *answer);

/* ---- steps ---- */

/* A step's task, as far as we know. */
enum hand {
    HAND_NONE,
    HAND_HELD,     /* polled, and kept alive */
    HAND_SHELVED,  /* given back for a while; still answered by its id */
    HAND_ANSWERED, /* for good */
};
enum sent { SENT_BEAT, SENT_BACK, SENT_FINAL }; /* what a request about a task was for */

struct conductor_step { /* a step of which a task or an attempt was seen */
    struct conductor_run *run;
    str id;
    enum hand hand;
    char task[ID_MAX + 1], workflow[ID_MAX + 1];
    int64_t handed; /* times that it was given back while an attempt was executed */
    int64_t times;  /* workers that were lost with it, these included */
    int64_t told;   /* ... as far as the engine knows, or need not */
    int64_t beat_ms;
    bool shelve; /* there is no room for it */
    struct rest_call *call;
    enum sent sent;                   /* with `call` */
    enum provider_step_state settled; /* DONE, SKIPPED, FAILED; or WAITS: not yet */
    bool withheld;                    /* FAILED, and it is not clear yet whether the run goes on */
    char *output;                     /* own memory, or NULL */
    size_t output_len;
    struct conductor_job *job;
    bool dirty; /* on the list of those that have something to do */
    TAILQ_ENTRY(conductor_step) held, dirt;
};
TAILQ_HEAD(conductor_step_list, conductor_step);

/* ---- attempts ---- */

enum job_state {
    JOB_NO_TASK, /* Conductor has not offered its step yet */
    JOB_READY,   /* its task is in hand, or will never be needed */
    JOB_RUNNING, /* the executor has it */
    JOB_STOPPED, /* it is not wanted any more; the engine has to be answered */
    JOB_ENDED,
    JOB_STATE_COUNT,
};
struct conductor_job { /* an attempt that the engine wants carried out */
    struct wanted wanted;
    TAILQ_ENTRY(conductor_job) link; /* of c->jobs[state]; JOB_ENDED: none */
    struct conductor *c;
    struct conductor_step *step; /* NULL: nobody speaks of its run any more */
    struct attempt own;          /* what the executor gets */
    enum job_state state;
    int64_t since_ms;
    bool late; /* it was logged */
};
TAILQ_HEAD(conductor_job_list, conductor_job);

/* ---- runs ---- */

/* How far we are with the workflow of a run. */
enum workflow_state {
    WORKFLOW_UNTOLD,  /* a task of it came, and the engine has not told of the run yet */
    WORKFLOW_SOUGHT,  /* is there one already? */
    WORKFLOW_ABSENT,  /* there is none: it is started */
    WORKFLOW_REFUSED, /* it cannot be started, ever: the engine has to hear of it */
    WORKFLOW_LINKED,  /* it is known, and looked at now and then */
    WORKFLOW_LOST,    /* it was refused, or it is over and not by us; the engine was told */
    /* The run is over, and its workflow is to end likewise. */
    WORKFLOW_LEFT,       /* is there one to be ended? */
    WORKFLOW_COMPLETES,  /* all tasks are answered, and it ends by itself */
    WORKFLOW_FAILS,      /* one of its tasks is answered with the failure */
    WORKFLOW_FAILED,     /* one was; did it end? */
    WORKFLOW_TERMINATES, /* nothing else ends it */
    WORKFLOW_STATE_COUNT,
};
/* What the cluster says of a workflow, or what we made of it. */
enum cluster { CLUSTER_UNKNOWN, CLUSTER_RUNS, CLUSTER_PAUSED };
/* What a linked workflow needs, besides looks at it. */
enum todo {
    TODO_TELL_LINK = 1,  /* the engine is told of the link, again if it was */
    TODO_RESET = 2,      /* tasks that a predecessor shelved are to come at once */
    TODO_PUSH_PAUSE = 4, /* the cluster is told whether the run is paused */
    TODO_EVALUATE = 8,   /* the cluster is told to see what is next */
};
/* What the next look at a workflow is for. The later ones see what the earlier ones do. */
enum look {
    LOOK_SHORT, /* its status, if the server has a path for that */
    LOOK_FULL,
    LOOK_AFTER_SHORT, /* full, because the short one did not work: is it the path or the workflow?
                       */
    LOOK_TASKS,       /* full, with all of its tasks */
};
struct conductor_run {
    struct tracked_run tracked;
    struct conductor *c;
    struct map steps;
    enum workflow_state state;
    char name[DEF_NAME_MAX + 32];    /* of its workflow; "": the engine has not told of it */
    char workflow[ID_MAX + 1];       /* "": none yet */
    struct conductor_poller *poller; /* NULL until linked */
    char *start_body;                /* until linked */
    size_t start_len;
    char refused[REASON_MAX + 1]; /* of WORKFLOW_REFUSED: why */
    int refusals;
    struct rest_call *call;
    run_answered answered; /* of `call` */
    bool paused;           /* says the engine */
    bool asked_paused;     /* `paused` when the request went out */
    enum cluster cluster;  /* as it was last seen or made */
    enum look look;
    unsigned todo;       /* of enum todo */
    int64_t since_ms;    /* it is in memory */
    int64_t look_ms;     /* the next look */
    int64_t ours_ms;     /* the next question whether it is ours */
    int64_t evaluate_ms; /* not evaluated before */
    int64_t withheld_ms; /* since when a step's failure is; 0: none is */
    int64_t ending_ms;   /* since when the run is over */
    enum run_status end; /* how; RUN_NEW: it is not */
    char reason[REASON_MAX + 1];
};

/* ---- the provider ---- */

struct conductor_poller { /* asks for the tasks of one domain */
    TAILQ_ENTRY(conductor_poller) link;
    struct conductor *c;
    int users; /* runs */
    struct rest_call *call;
    int64_t next_ms, delay_ms;
    char domain[DEF_NAME_MAX + 32];
};
TAILQ_HEAD(conductor_poller_list, conductor_poller);

enum conductor_state {
    CONDUCTOR_REGISTERS, /* the cluster does not know our type of task yet */
    CONDUCTOR_READY,
    CONDUCTOR_CLOSING,  /* tasks are given back, last answers are waited for */
    CONDUCTOR_FINISHED, /* waits for the loop, and for what the executor still has */
};
struct conductor {
    struct provider provider;
    uv_loop_t *loop;
    struct provider_ports ports;
    struct rest *rest;
    char *node;
    char domain[DEF_NAME_MAX + 32];
    int slots;
    int64_t poll_ms;
    enum conductor_state state;
    struct provider_runs runs;
    struct provider_sweep sweep;
    struct conductor_step_list held, dirty_steps;
    struct conductor_job_list jobs[JOB_STATE_COUNT];
    int job_count[JOB_STATE_COUNT];
    struct conductor_poller_list pollers;
    int shelved; /* tasks */
    struct rest_call *register_call, *sweep_call;
    int64_t register_ms;
    enum { STATUS_UNKNOWN, STATUS_ABSENT, STATUS_THERE } status_path; /* GET /workflow/ID/status */
    uv_timer_t soon, tick, poll;
    int handles; /* of libuv, not closed yet; those of runs not counted */
    int64_t close_ms;
};

static inline int64_t conductor_now(const struct conductor *c) { return (int64_t)uv_now(c->loop); }
static inline bool conductor_is_closing(const struct conductor *c) {
    return c->state >= CONDUCTOR_CLOSING;
}
static inline bool conductor_run_is_ending(const struct conductor_run *r) {
    return r->state >= WORKFLOW_LEFT;
}
/* A member of an answer; "" or 0 if it is not there. */
static inline str conductor_text(yyjson_val *val, const char *name) {
    str text = STR_NONE;
    return json_str(json_member(val, name), &text) ? text : STR("");
}
static inline int64_t conductor_number(yyjson_val *val, const char *name) {
    int64_t n = 0;
    return json_int(json_member(val, name), &n) ? n : 0;
}

/* conductor.c: the clock, what the engine calls, open and close. */
void conductor_wake(struct conductor *c);              /* steps, attempts and polls soon */
void conductor_copy(char *out, size_t size, str text); /* cut if it must be; ends in NUL */
void conductor_ignore(void *context, const struct rest_answer *answer); /* context: a conductor */
void conductor_free_if_over(struct conductor *c);

/* runs.c: the records, their states, and what is next for each. */
struct conductor_run *conductor_run_find(const struct conductor *c, str run_id);
struct conductor_run *conductor_run_new(struct conductor *c, str run_id); /* NULL: no memory */
void conductor_run_move(struct conductor_run *r, enum workflow_state state);
void conductor_run_release(struct conductor_run *r); /* it is not ours any more */
void conductor_run_withhold_no_more(struct conductor_run *r);
/* Whether a step to be started has waited for its task for so long. */
bool conductor_run_waits_for_task(const struct conductor_run *r, int64_t for_ms);
/* Sends a request; `answered` is called from inside the run. With ST_RETRY the time of the next
 * try is set already. */
void conductor_run_send(struct conductor_run *r, const struct rest_request *request,
                        run_answered answered);
/* The same about its workflow: `before` and `after` its id, then `reason`, escaped. */
void conductor_run_send_workflow(struct conductor_run *r, const char *method, const char *before,
                                 const char *after, str reason, run_answered answered);
void conductor_run_wait(struct conductor_run *r, int64_t ms); /* before its next request */
extern const struct provider_runs_ops conductor_runs_ops;

/* workflow.c: a workflow is found or started, linked, looked at, paused. */
bool workflow_is_closed(str cluster_status);
void workflow_link(struct conductor_run *r, str workflow, str domain);
void workflow_seek(struct conductor_run *r);
void workflow_start(struct conductor_run *r);
void workflow_tell_refused(struct conductor_run *r);
void workflow_look(struct conductor_run *r);
void workflow_look_at_least(struct conductor_run *r, enum look look);
void workflow_evaluate(struct conductor_run *r);
void workflow_push_pause(struct conductor_run *r); /* what the engine says */
void workflow_tend(struct conductor_run *r);       /* what WORKFLOW_LINKED needs */

/* ending.c: a workflow ends with its run; so do those of runs that nobody remembers. */
void ending_begin(struct conductor_run *r, enum run_status end, str code, str message);
enum workflow_state ending_first_state(enum run_status end); /* of a workflow that is known */
void ending_next(struct conductor_run *r);
void ending_saw(struct conductor_run *r, str cluster_status); /* "": there is no workflow */
/* Ends a workflow that has no business being there. */
void ending_terminate(struct conductor *c, str workflow, str reason);
void ending_sweep(struct conductor *c); /* if it is time */

/* steps.c: a step and its task. */
struct conductor_step *conductor_step_find(const struct conductor_run *r, str step_id);
/* The one that is there, or a new one. NULL: memory is out. */
struct conductor_step *conductor_step_get(struct conductor_run *r, str step_id);
void conductor_step_free(struct conductor_step *s);
void conductor_step_wake(struct conductor_step *s); /* conductor_step_next() soon */
void conductor_step_next(struct conductor_step *s);
void conductor_step_move(struct conductor_step *s, enum hand hand);
void conductor_step_settle(struct conductor_step *s, enum provider_step_state state, str output);
void conductor_step_give_back(struct conductor_step *s);      /* its run goes */
bool conductor_step_has_task(const struct conductor_step *s); /* that is to be answered */
void conductor_steps_beat(struct conductor *c);               /* heartbeats that are due */
struct task_result {
    str workflow, task;
    const char *status; /* NULL: a heartbeat */
    str output, reason; /* `output` is JSON or STR_NONE */
    int64_t callback_s;
};
void conductor_result_json(const struct conductor *c, const struct task_result *result,
                           struct buf *out);
void conductor_outcome_json(enum provider_step_state state, str output, struct buf *out);
/* Answers a task that belongs to nothing in memory. */
void conductor_answer(struct conductor *c, const struct task_result *result);
/* As the output of a task: how often it was given back while an attempt was executed. */
str conductor_handed_json(int64_t handed, char *text, size_t size);

/* jobs.c: attempts that are executed here. */
/* An attempt for the step, which may have one already. NULL: memory is out. */
struct conductor_job *conductor_job_new(struct conductor_step *s, struct attempt *attempt);
void conductor_job_ready(struct conductor_job *j); /* its task is in hand, or never needed */
void conductor_job_stop(struct conductor_job *j);
void conductor_job_orphan(struct conductor_job *j); /* its step is gone */
void conductor_jobs_go(struct conductor *c);        /* what can be started or answered */
void conductor_jobs_close(struct conductor *c);     /* nobody is answered from now on */

/* polls.c: tasks are asked for. */
struct conductor_poller *conductor_poller_use(struct conductor *c, str domain); /* NULL: memory */
void conductor_poller_leave(struct conductor_poller *p);
void conductor_pollers_free(struct conductor *c);
void conductor_poll_soon(struct conductor *c);
void conductor_poll(struct conductor *c); /* sends what is due, sets the timer */
