/* adapters/conductor/impl.h: what the files of the Conductor provider share.
 *
 * What the engine says only changes what is wanted, and wakes work(). Requests are sent, attempts
 * are started and the engine is told things from there, from the timers and from answers, never
 * from within a call of the engine's: so no chain of news can nest.
 *
 * A run has at most one request under way, and so has each of its steps. conductor_run_next() and
 * conductor_step_next() look at what is wanted and what is known, and send the next one. They may
 * be called at any time; conductor_run_next() may free the run.
 *
 * A heartbeat that is under way is waited for before the task is answered: the server reads,
 * changes and writes a task, and the later of two such writes would undo the earlier. */
#pragma once

#include <sys/queue.h>
#include <uv.h>

#include "adapters/conductor/conductor.h"
#include "adapters/conductor/def.h"
#include "adapters/conductor/rest.h"
#include "base/map.h"

enum {
    ID_MAX = 127,     /* bytes of a workflow's or task's id: a UUID */
    REASON_MAX = 400, /* of a text that goes into a query */
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
    STUB_MS = 30000,        /* a run whose task came, until the engine has told of it */
    TASK_LATE_MS = 30000,   /* a task that does not come is asked after */
    POKE_MS = 5000,         /* ... and its workflow is evaluated */
    OURS_MS = 60000,        /* between two looks whether a run is still ours */
    ENDING_MS_MAX = 600000, /* then it is left to the sweep */
    SWEEP_MS = 300000,
    SWEEP_PAGE = 100,
    SWEEP_PAGES_MAX = 50,
    CLOSE_MS = 3000, /* for the last requests */
};
#define OUTPUT_BYTES_MAX ((size_t)256 * 1024) /* of a step, shown at the cluster */

/* A step's task, as far as we know. */
enum hand {
    HAND_NONE,
    HAND_HELD,     /* polled, and kept alive */
    HAND_SHELVED,  /* given back for a while; still answered by its id */
    HAND_ANSWERED, /* for good */
};

enum sent { SENT_BEAT, SENT_BACK, SENT_FINAL }; /* what a request about a task was for */
enum job_phase { JOB_NO_TASK, JOB_READY, JOB_RUNNING, JOB_STOPPED };
/* The workflow's own state, as it was last seen or made. */
enum cluster { CLUSTER_UNKNOWN, CLUSTER_RUNS, CLUSTER_PAUSED };

struct conductor_run;
struct conductor_job;
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
    bool dirty;
    TAILQ_ENTRY(conductor_step) held, dirt;
};
TAILQ_HEAD(conductor_step_list, conductor_step);

struct conductor_job { /* an attempt that the engine wants carried out */
    TAILQ_ENTRY(conductor_job) link;
    struct conductor *c;
    struct conductor_step *step; /* NULL: nobody speaks of its run any more */
    struct attempt *asked;
    struct attempt own; /* what the executor gets */
    enum job_phase state;
    int64_t since_ms;
    bool late; /* it was logged */
};
TAILQ_HEAD(conductor_job_list, conductor_job);

struct conductor_poller { /* asks for the tasks of one domain */
    TAILQ_ENTRY(conductor_poller) link;
    struct conductor *c;
    int users; /* runs */
    struct rest_call *call;
    int64_t next_ms, delay_ms;
    char domain[DEF_NAME_MAX + 32];
};
TAILQ_HEAD(conductor_poller_list, conductor_poller);

struct conductor_run {
    TAILQ_ENTRY(conductor_run) link, dirt;
    struct conductor *c;
    struct map steps;
    str run_id;
    char name[DEF_NAME_MAX + 32];    /* of its workflow */
    char workflow[ID_MAX + 1];       /* "": none yet */
    struct conductor_poller *poller; /* NULL until linked */
    bool known;                      /* the engine has told of it */
    bool dirty;
    bool tell_link;
    char *start_body; /* until linked */
    size_t start_len;
    char refused[REASON_MAX + 1]; /* why it can never start */
    bool looked_up;               /* there is no workflow of it */
    int refusals;
    /* pauses */
    bool paused;     /* says the engine */
    bool push_pause; /* tell the cluster so */
    enum cluster cluster;
    /* looks */
    bool reset_due;    /* tasks that a predecessor shelved are to come at once */
    bool full;         /* the next look shall be at all of the workflow, */
    bool short_failed; /* ... because the short one is not there, or the workflow is not */
    bool inspect;      /* and at its tasks */
    bool poke;         /* have it evaluated */
    bool over;         /* its workflow is; the engine was told, or has to be */
    int64_t since_ms;  /* it is in memory */
    int64_t wait_ms, delay_ms, look_ms, ours_ms, poked_ms;
    struct rest_call *call;
    bool asked_paused;   /* `paused` when the request went out */
    int64_t withheld_ms; /* since when a step's failure is; 0: none is */
    /* the end */
    bool ending;
    enum run_status end;
    enum { END_BEGIN, END_FAILING, END_TERMINATE } stage;
    int64_t ending_ms;
    char reason[REASON_MAX + 1];
};
TAILQ_HEAD(conductor_run_list, conductor_run);

struct conductor {
    struct provider provider;
    uv_loop_t *loop;
    struct provider_ports ports;
    struct rest *rest;
    char *node;
    char domain[DEF_NAME_MAX + 32];
    int slots;
    int64_t poll_ms;
    struct map by_id;
    struct conductor_run_list runs, dirty_runs;
    struct conductor_step_list held, dirty_steps;
    struct conductor_job_list jobs;
    struct conductor_poller_list pollers;
    int running;  /* jobs of the executor's */
    int expected; /* jobs without a task */
    int shelved;  /* tasks */
    bool ready;   /* the cluster knows our type of task */
    struct rest_call *register_call, *sweep_call;
    int64_t register_ms, sweep_ms;
    int sweep_page;
    enum { STATUS_UNKNOWN, STATUS_ABSENT, STATUS_THERE } status_path; /* GET /workflow/ID/status */
    uv_timer_t soon, tick, poll;
    int handles;
    bool closing, finished;
    int64_t close_ms;
};

/* conductor.c */
int64_t conductor_now(const struct conductor *c);
void conductor_wake(struct conductor *c); /* work() soon */
void conductor_run_wake(struct conductor_run *r);
void conductor_step_wake(struct conductor_step *s);
void conductor_copy(char *out, size_t size, str text); /* cut if it must be; ends in NUL */

/* runs.c: a run and its workflow. */
struct conductor_run *conductor_run_get(struct conductor *c, str run_id);  /* NULL */
struct conductor_run *conductor_run_make(struct conductor *c, str run_id); /* NULL: memory is out */
void conductor_run_free(struct conductor_run *r);
void conductor_run_next(struct conductor_run *r);
void conductor_run_release(struct conductor_run *r); /* it is not ours any more */
void conductor_run_withhold_no_more(struct conductor_run *r);
void conductor_run_end(struct conductor_run *r, enum run_status value, str code, str message);
void conductor_run_link(struct conductor_run *r, str workflow, str domain);
bool conductor_run_is_closed(str cluster_status);
/* Ends a workflow that has no business being there. */
void conductor_terminate(struct conductor *c, str workflow, str reason);

/* steps.c: a step and its task. */
struct conductor_step *conductor_step_get(struct conductor_run *r, str step_id);
struct conductor_step *conductor_step_make(struct conductor_run *r,
                                           str step_id); /* NULL: memory is out */
void conductor_step_free(struct conductor_step *s);
void conductor_step_next(struct conductor_step *s);
void conductor_step_hand(struct conductor_step *s, enum hand hand);
void conductor_step_beat_all(struct conductor *c); /* heartbeats that are due */
int64_t conductor_shelf_s(const struct conductor *c);
void conductor_step_settle(struct conductor_step *s, enum provider_step_state state, str output);
/* Appends a TaskResult. `output` is JSON or STR_NONE. */
struct task_result {
    str workflow, task, worker;
    const char *status; /* NULL: a heartbeat */
    str output, reason;
    int64_t callback_s;
};
void conductor_result_json(const struct task_result *result, struct buf *out);
void conductor_outcome_json(enum provider_step_state state, str output, struct buf *out);
/* Answers a task that belongs to nothing in memory. */
void conductor_answer(struct conductor *c, const struct task_result *result);

/* polls.c: polls and attempts. */
struct conductor_poller *conductor_poller_use(struct conductor *c,
                                              str domain); /* NULL: memory is out */
void conductor_poller_leave(struct conductor_poller *p);
void conductor_poll_soon(struct conductor *c);
void conductor_poll(struct conductor *c); /* sends what is due, sets the timer */
void conductor_job_go_all(struct conductor *c);
void conductor_job_ready(
    struct conductor_job *j); /* its task is in hand, or will never be needed */
void conductor_job_orphan(struct conductor_job *j); /* its run is gone */
struct conductor_job *conductor_job_make(struct conductor *c, struct attempt *attempt);
void conductor_job_stop(struct conductor_job *j);
void conductor_job_drop(struct conductor_job *j); /* without an answer */
void conductor_poller_free_all(struct conductor *c);
void conductor_free(struct conductor *c); /* once the last handle and attempt is gone */

/* sweep.c: workflows whose run is over. */
void conductor_sweep(struct conductor *c);
