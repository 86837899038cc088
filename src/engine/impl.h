/* engine/impl.h: what the files of engine/ share. */
#pragma once

#include "base/map.h"
#include "core/capability.h"
#include "engine/engine.h"

enum {
    RECOVER_PAGE = 200,              /* runs loaded in one tick */
    SCAN_PAGE = 500,                 /* runs whose time has come, loaded in one tick */
    NEWS_PER_BATCH_MAX = 500,        /* the rest travels in the next one */
    RETRY_TRIES_MAX = 8,             /* of a commit whose outcome is unknown, before we say so */
    RESIDENT_DEFAULT = 4096,         /* runs that only wait, kept for their timers' sake */
    POLL_TASKS_MAX = 1000,           /* leased by one poll */
    POLLS_MAX = 10000,               /* pollers waiting */
    QUEUES_KEPT = 4096,              /* then those that nobody uses are forgotten */
    LOADS_FOR_NEWS_MAX = 1000,       /* runs being read that only news asks for */
    LEASE_MS_MAX = 24 * 3600 * 1000, /* of a task, until the worker must say that it lives */
};
#define SCAN_EVERY_US ((int64_t)1000 * 1000)
#define SCAN_AHEAD_US ((int64_t)2000 * 1000)    /* loaded early, so that the timer is exact */
#define EVICT_AFTER_US ((int64_t)30 * 1000 * 1000) /* a wait longer than this is not kept in memory */
#define RETRY_AFTER_US ((int64_t)500 * 1000)

enum news_kind {
    NEWS_LAUNCH,
    NEWS_RESULT,
    NEWS_SIGNAL,
    NEWS_LEASE,
    /* from a worker that has a task; `task` says which: */
    NEWS_TASK_DONE,
    NEWS_HEARTBEAT,
    NEWS_TASK_AGAIN,
    /* from a provider: */
    NEWS_LINKED,
    NEWS_ROTATING,
    NEWS_WORKER_LOST,
    NEWS_ENDED,
};
struct news_launch {
    uuid id;
    str data, actor; /* see flow_launch() */
};
struct news_result {
    uint32_t step;
    int64_t attempt;
    struct outcome outcome;
};
struct news_signal {
    uuid id;
    struct signal signal;
    str actor;
};
struct news_lease { /* a worker polls, and the task is free as far as we know */
    struct engine_poll *poll;
    uint32_t step;
    int64_t ms;
    int64_t attempt, number; /* of the lease that was decided */
};
struct news_task { /* the step is found when the news is taken: the run may have to be read first */
    str step_id, tenant_id; /* tenant_id STR_NONE: any */
    int64_t attempt, lease;
    struct outcome outcome;  /* NEWS_TASK_DONE */
    struct engine_poll *poll; /* NEWS_TASK_DONE: the worker's own, held meanwhile; or NULL. Counted in
                                 its `results` */
    int64_t lease_ms;        /* NEWS_HEARTBEAT: so long from now on, */
    int64_t *until_us;       /* until when that is */
    struct arena *arena;     /* NEWS_TASK_AGAIN: for */
    struct task *task;       /* the task */
};
struct news_worker_lost {
    str step_id;
    int64_t attempt;
    int64_t times; /* how often the attempt was given to another worker so far */
};
struct news_ended {
    str code, message;
};
struct news { /* something that happened outside, on its way into a commit */
    struct news *next;
    enum news_kind kind;
    union { /* by kind; nothing for NEWS_ROTATING */
        struct news_launch launch;
        struct news_result result;
        struct news_signal signal;
        struct news_lease lease;
        struct news_task task;
        struct provider_link linked;
        struct news_worker_lost worker_lost;
        struct news_ended ended;
    };
    const struct append_rider *riders; /* the caller's, until `done`; of a lease the batch's. Or NULL */
    bool rides;                        /* its events, and so its riders, are in the batch */
    engine_done done; /* or NULL */
    void *context;
    status verdict; /* ST_OK unless it had no effect: then why */
    struct error why;
};

struct engine_attempt {
    struct attempt attempt;
    struct engine_run *run; /* NULL: nobody waits for it any more */
    struct arena arena;
    uint32_t step;
    struct engine_attempt *next, **link; /* in the run's list */
};

/* Where a run in memory stands. One function moves it, run_move(); news that comes at any stage but
 * RESTING waits in the inbox.
 *
 *     LOADING -> RESTING -> DECIDING -> COMMITTING -> ACTING -> RESTING
 *                              '---- nothing to write ---^
 *     RESTING -> READING -> RESTING
 *     LOADING, READING, DECIDING, COMMITTING -> BROKEN -> LOADING */
enum run_stage {
    STAGE_LOADING,    /* its rows are being read, and its flow is built from them */
    STAGE_RESTING,    /* waits for news, or for its time */
    STAGE_READING,    /* its flow is there, but the store is asked for more before it decides */
    STAGE_DECIDING,   /* from its news to a batch */
    STAGE_COMMITTING, /* an append is under way */
    STAGE_ACTING,     /* what follows from it: attempts start, waiters are answered */
    STAGE_BROKEN,     /* the flow cannot be trusted: built again when its timer comes */
    STAGE_COUNT,
};

struct drawn_id { /* the eventId that was drawn for an event */
    uint8_t key[SHA256_LEN];
    uuid id;
};

/* What its read is for, at the stage LOADING. */
enum load_purpose {
    LOAD_LOOK,  /* a run that is not in memory is looked at, or told something */
    LOAD_AGAIN, /* a commit failed: the flow is built again */
    LOAD_START, /* a run is to be started: is it there already? */
};
enum counts_state { COUNTS_UNKNOWN, COUNTS_FAILED, COUNTS_KNOWN };

struct pending_start { /* a start that waits for its read */
    struct pending_start *next;
    struct start_request request; /* texts are the caller's, until `done` */
    enum adapter_kind adapter;
    engine_done done;
    void *context;
};

struct engine_run {
    struct engine *eng;
    str run_id;
    struct event ids;
    struct arena arena, batch_arena;
    const struct plan *plan;
    struct flow flow;
    enum run_stage stage;
    /* What we know of the store, at any stage: */
    bool claimed;   /* has its row in lease_run */
    bool started;   /* RunStarted is stored */
    bool stale;     /* another process wrote to the run: read that before deciding */
    bool recovered; /* others carried it out before: the next batch begins with RunRecovered */
    const char *ending_code; /* the plan is gone: the run can only end, with this */
    str ending_message;
    int64_t claimed_wake;
    int64_t engine_attempt;
    int64_t last_seq; /* of the newest row that we know to be stored */
    int64_t read_seq; /* up to here every row was read: others may have written between ours */
    struct engine_read *read;    /* under way; at the stages LOADING and READING */
    enum load_purpose purpose;   /* of that */
    bool wanted;                 /* LOAD_LOOK: for its own sake, not only for the news in its inbox */
    struct pending_start *starts; /* LOAD_START: in the order of their coming */
    /* How many runs are active, for admission; good for one decision. */
    enum counts_state counts;
    int64_t tenant_active, plan_active;
    int64_t counts_no; /* engine.start_no when they were asked for */
    int64_t start_no;  /* when RunStarted was stored; 0: not by this process */
    int tries; /* failed commits in a row */
    struct news *inbox, **inbox_end;
    struct news *sent; /* in the commit under way */
    struct engine_attempt *attempts;
    struct flow_batch batch;
    struct engine_commit commit;
    struct drawn_id *drawn; /* of events whose commit failed: they go with them again; or NULL */
    size_t drawn_count;
    uuid launch_id, correlation;
    str warnings, report; /* JSON, of a start with warnings */
    str plan_ref;         /* JSON; STR_NONE until a provider wants it */
    int64_t due_us;       /* in the engine's heap; FLOW_NEVER: not there */
    uint32_t heap_at;
    struct engine_run *queued_next; /* waiting for admission */
    bool is_queued;
    uint32_t offers; /* entries in task queues */
};

struct task_entry { /* a task that may be free; looked at again when it is handed out */
    struct task_entry *next;
    struct engine_run *run;
    uint32_t step;
};
struct task_queue {
    str key; /* tenant|queue */
    struct task_entry *first, **end;
    struct engine_poll *polls, **polls_end;
    size_t users; /* polls, also those that wait for a lease */
};

struct engine_poll {
    struct engine_poll *next, **link; /* in its queue's list */
    struct task_queue *queue;
    struct engine *eng;
    str worker;
    size_t max, leased, pending; /* pending: leases on their way */
    int64_t lease_ms, deadline_us;
    engine_tasks_done done;
    void *context;
    bool gone;
    bool held;      /* see struct poll_request; then it is in no queue */
    size_t results; /* on their way, whose followers it gets first: it lives as long */
    const struct receipt *receipt; /* to be committed with each lease, or NULL */
    struct task *tasks;
    struct arena arena;
    struct engine_poll *all_next, **all_link;
};

struct engine {
    struct engine_ports ports;
    struct engine_options options;
    struct map runs;
    struct arena scratch;
    struct engine_run **heap;
    uint32_t heap_count, heap_cap;
    struct engine_read *reads; /* under way */
    size_t load_count;         /* of runs among them, */
    size_t wanted_count;       /* and of those that are loaded for their own sake */
    int64_t recover_pass;      /* which pass of recovery it is */
    bool scanning;             /* READ_DUE is under way */
    bool paging;               /* READ_UNDER_WAY is */
    bool recovering;
    bool recover_again;    /* a run could not be loaded: after this pass, another one */
    int64_t recover_after; /* run number */
    int64_t recover_us;    /* not before */
    int64_t scan_us;
    struct engine_run *queued, **queued_end; /* in the order of their coming */
    struct engine_run *admitting; /* of these, the one for which the store is asked; or NULL. One at a time keeps order */
    struct map queues;
    struct engine_poll *polls;
    size_t poll_count, attempt_count, task_count;
    int64_t start_no; /* how many runs this process has started */
    bool lost;
    struct metric *m_started, *m_finished, *m_steps, *m_commits, *m_failures, *m_recovered;
};

static inline status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "engine: out of memory");
}

/* ---- engine.c ---- */
struct engine_run *engine_resident(struct engine *eng, str run_id);
struct engine_run *run_new(struct engine *eng, str run_id, struct error *err);
void run_drop(struct engine_run *r, status code, const struct error *err); /* answers its news */
void run_move(struct engine_run *r, enum run_stage to);
/* Invariants of a run that holds still; a broken one is a bug of ours, and ends the process. */
void engine_run_check(const struct engine_run *r);
static inline bool run_has_flow(const struct engine_run *r) {
    return r->stage != STAGE_LOADING && r->stage != STAGE_BROKEN;
}
void run_unqueue(struct engine_run *r); /* it no longer waits for admission */
void engine_arm(struct engine *eng);
void engine_recover_later(struct engine *eng);
uuid engine_uuid(struct engine *eng); /* version 4, from the port's random bytes */
void run_timer(struct engine_run *r, int64_t due_us);

/* ---- drive.c ---- */
void run_drive(struct engine_run *r);
void run_push(struct engine_run *r, struct news *n);
/* A run at the stage BROKEN is built again in a while; `why` is told. */
/* The run of the queue whose turn it is, or NULL: the end of the queue. */
void engine_admit_next(struct engine *eng, struct engine_run *next);
void run_build_again_later(struct engine_run *r, const struct error *why);
/* A copy of `from` that owns its texts; NULL out of memory. */
struct news *news_new(const struct news *from);
void news_answer(struct news *n, status code, const struct error *err); /* frees it */

/* ---- event_ids.c ---- */
/* The id of the event with this key: as it was drawn first, or a new one. */
uuid run_event_id(struct engine_run *r, const uint8_t key[SHA256_LEN]);
void run_keep_ids(struct engine_run *r);  /* the commit failed, or was not taken */
void run_ids_stored(struct engine_run *r); /* it is stored: its results count */

/* ---- attempts.c ---- */
/* A StepStarted is durable: executes the step, or offers it to workers, unless that is done. */
void run_act_on_start(struct engine_run *r, uint32_t step);
void run_ensure_attempts(struct engine_run *r); /* the same for every open step */
struct engine_attempt *run_find_attempt(const struct engine_run *r, uint32_t step); /* or NULL */

/* ---- provider.c ---- */
enum adapter_kind run_adapter(const struct engine_run *r);
/* A run that was loaded: tells its provider, if it has one, of the execution that is known. */
void run_bind(struct engine_run *r);
/* Whether its provider has an execution of it; local runs need none. If not, one is asked for, once
 * the launch is stored. */
bool run_is_bound(struct engine_run *r);
/* Its plan's reference as JSON, in the run's arena. */
MUST_CHECK status run_plan_ref(struct engine_run *r, str *out, struct error *err);
/* `d` is a round of deciding about the run. */
MUST_CHECK status run_take_provider_news(struct engine_run *r, const struct decision *d,
                                         const struct news *n, struct error *err);

/* ---- read.c ---- */
/* Asks for the run and its rows after `after_seq`; run_was_read() gets the answer. */
MUST_CHECK status run_ask(struct engine_run *r, int64_t after_seq, struct error *err);
/* The same question once more, for the rows after those of this answer. */
void run_ask_more(struct engine_run *r, struct engine_read *read);
bool engine_ask_due(struct engine *eng, enum read_kind kind, const struct lease_range *range);
struct engine_read *read_new(struct engine *eng, enum read_kind kind, struct error *err);
void read_free(struct engine_read *read);
void load_over(struct engine *eng, struct engine_read *read); /* it counts no longer */
void engine_due_read(struct engine *eng, const struct engine_read *read); /* in engine.c */

/* ---- load.c ---- */
/* A run that is in memory, or is being read from now on: news for it waits meanwhile. `wanted`: for its own
 * sake; else only news asks for it, and of those loads there is a bounded number (RUN_LOADING). */
MUST_CHECK status run_want(struct engine *eng, str run_id, bool wanted, struct engine_run **out,
                           struct error *err);
/* Answers workers of other tenants, as if the run were not there. */
void run_turn_away(struct engine_run *r, str tenant_id);
/* Builds the flow again after a commit failed; attempts under way are kept. */
void run_reload(struct engine_run *r);
void run_was_read(struct engine_run *r, struct engine_read *read);
MUST_CHECK status run_copy_ids(struct engine_run *r, const struct run_info *info,
                               struct error *err);
/* The plan's reference and the adapter that a launch names; they live in the arena. */
MUST_CHECK status launch_read(str payload, struct arena *arena, struct plan_ref *out, str *adapter,
                              struct error *err);
status run_not_found(str run_id, struct error *err);

/* ---- start.c ---- */
/* The store has told whether the run of r->start is there. true: it is, and open, and ours: load it. */
bool start_was_read(struct engine_run *r, const struct engine_read *read);

/* ---- tasks.c ---- */
void tasks_offer(struct engine_run *r, uint32_t step);
void tasks_offer_freed(struct engine_run *r); /* those whose lease ran out */
void tasks_leased(struct engine_run *r, struct news *n);
/* The lease of a step that is about to start, for a poll that waits; it must be decided in the
 * batch that starts the step. NULL: nobody waits for it, or no memory: then it is offered later. */
struct news *tasks_promise(struct engine_run *r, uint32_t step);
void tasks_result_over(struct engine_poll *poll); /* a result of its holder is answered */
/* Gives the news of a lease its rider, in the batch's arena, if the poll wants one. */
MUST_CHECK status tasks_ride(struct engine_run *r, struct news *n, struct error *err);
/* The step of a task that a worker speaks of. Reasons as for engine_task_done(). */
MUST_CHECK status tasks_find(const struct engine_run *r, const struct news_task *t, uint32_t *step,
                             struct error *err);
/* A heartbeat, or the task once more: nothing is decided. */
MUST_CHECK status tasks_serve(struct engine_run *r, const struct news *n, uint32_t step,
                              int64_t now_us, struct error *err);
void tasks_forget(struct engine_run *r);
void tasks_deadlines(struct engine *eng, int64_t now_us);
int64_t tasks_next_deadline(const struct engine *eng);
void tasks_close(struct engine *eng);
