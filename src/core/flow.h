/* core/flow.h: a run being carried out: what its events mean for its plan, and what comes next.
 * Pure: no clock, no I/O; time comes in as an argument, memory from an arena.
 *
 *     flow_apply(flow, event)          the reducer: run_apply() plus what the plan adds
 *     flow_decide(decision) -> batch   the next events, each of them applied as it is decided
 *
 * A flow is rebuilt by applying the run's events in order: nothing else is needed. Decisions are
 * events; the shell appends a batch in one commit and only then acts: an attempt is executed when
 * its StepStarted is durable. If the commit fails the flow is dropped and rebuilt.
 *
 * Order: a step is ready when all its dependencies are settled (SUCCESS, SKIPPED, or FAILED for
 * good); ready steps start in the order of the plan, at most plan->concurrency at a time. The flow
 * never reorders or skips by itself: it does what the plan says.
 *
 * Steps of type noop, sleep, wait and approval are carried out here; exec and http by an executor;
 * task by an outside worker that holds a lease with a fencing number. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/limits.h"
#include "core/event.h"
#include "core/liquid.h"
#include "core/outcome.h"
#include "core/plan.h"
#include "core/run.h"
#include "core/signal.h"

enum {
    FLOW_SIGNALS_MAX = 1000, /* received and not processed yet, of one run */
    FLOW_BATCH_MAX = 3000,   /* events decided at once; then commit, and decide again. Large: a wide
                                run's keys lie all over its part of the index, whatever the batch */
};
/* What ends at once when the last decision of a full batch is to end everything fits in, too. */
static_assert(FLOW_BATCH_MAX + PLAN_CONCURRENCY_MAX + 64 <= BATCH_EVENTS_MAX, "one append");
#define FLOW_NEVER INT64_MAX /* no time: only a signal, a result or a worker can wake the run */
#define FLOW_NO_STEP UINT32_MAX
#define FLOW_PAYLOAD_MAX ((size_t)200 * 1024) /* of one event: leaves room for its envelope */

enum flow_phase {
    FLOW_IDLE,    /* waits for its dependencies */
    FLOW_READY,   /* may start */
    FLOW_OPEN,    /* RUNNING */
    FLOW_JUDGE,   /* FAILED: retry, or for good? */
    FLOW_BACKOFF, /* FAILED, and the next attempt has its time */
    FLOW_SETTLED, /* SUCCESS, SKIPPED, or FAILED for good */
};

struct flow_step {
    int64_t attempt;    /* the newest one; 0: none yet */
    int64_t started_us; /* when it was started */
    int64_t due_us;     /* OPEN: sleep ends, time is out, lease expires. BACKOFF: next attempt.
                           FLOW_NEVER: no such time */
    int64_t limit_us;   /* OPEN: when time is out whatever happens; FLOW_NEVER: never */
    int64_t lease_us;   /* task: until when a worker holds it; 0: nobody does */
    str output;         /* JSON, or STR_NONE */
    str code;           /* of the newest failure */
    uint32_t waiting;   /* dependencies that are not settled */
    uint32_t leases;    /* ToolCalled facts so far: the newest lease's fencing number */
    uint32_t crashes;   /* how often a provider gave the attempt to another worker */
    uint8_t state;      /* enum step_state of the newest attempt */
    uint8_t phase;      /* enum flow_phase */
    bool poisoned;      /* a dependency failed with skipDependents, or was skipped for that reason */
    bool stopping;      /* the executor was asked to end it */
};

struct flow_signal {
    struct signal signal;
    char id[UUID_TEXT_LEN];
    str actor;
    bool begun; /* SignalProcessingStarted is recorded */
};

struct flow_timer {
    int64_t due_us;
    uint32_t step;
};

/* An execution of the run at a provider (adapters/provider.h). */
struct flow_link {
    str workflow_id, provider_run_id;
    str queue; /* or STR_NONE */
};

struct flow {
    struct run run;
    const struct plan *plan;
    struct arena *arena;   /* lives as long as the flow */
    struct arena *scratch; /* between calls */
    struct event ids;      /* run, tenant, project, environment, plan: of every event it emits */
    uint64_t seed;         /* of jitter: from the run id, so the same on every replay */
    struct flow_step *steps; /* plan->step_count of them */
    uint32_t *ready;         /* min-heap of step indexes */
    uint32_t ready_count;
    uint32_t *judge; /* ring of failed steps, oldest first */
    uint32_t judge_head, judge_count;
    struct flow_timer *timers; /* min-heap; an entry is stale unless it equals its step's due_us */
    uint32_t timer_count, timer_cap;
    uint32_t open, executing, settled; /* steps: RUNNING; of these executed; settled */
    uint32_t failed;                   /* settled as FAILED */
    uint32_t first_failed;             /* FLOW_NO_STEP */
    uint32_t tasks, waits;             /* RUNNING steps of these types */
    bool failing;                      /* a step failed for good with onFailure fail */
    bool task_freed;   /* a lease ran out: the shell offers the task again, and clears this */
    bool stuck;        /* the guard refused one of our own events: nothing more is emitted */
    struct refusal why_stuck;
    struct flow_signal *signals; /* received, not processed; signals[0] is the launch, if known */
    uint32_t signal_count, signal_cap;
    uuid *seen; /* every signal ever received: a second one of the same id has no effect */
    uint32_t seen_count, seen_cap;
    bool cancelling;
    bool needs_approval; /* the launch asked for it */
    bool queued_for_admission;
    str launch;     /* the data of the launch signal */
    str adapter;    /* of the launch; STR_NONE: not said, so local */
    struct flow_link link; /* the newest one; provider_run_id STR_NONE: none yet */
    uint32_t links;
    bool rotating; /* continue-as-new: the old execution has ended, the new one is not seen yet */
    str parameters; /* JSON object */
    int64_t queued_us;
    yyjson_val *root; /* of the Liquid scope; made when first needed */
};

enum flow_cause {              /* why somebody goes on with a run who did not before */
                  FLOW_NODE,   /* another process, or another life of it, carries out the run */
                  FLOW_WORKER, /* the provider gave an attempt to another worker */
                  FLOW_NEW_HISTORY, /* the provider continues it as a new execution */
};
struct flow_event {
    enum event_type type;
    uint32_t step;      /* or FLOW_NO_STEP */
    int64_t attempt;    /* logicalAttemptId; occurrence of a fact */
    str subject;        /* of a fact: the signal's UUID, or the step */
    str payload;        /* or STR_NONE */
    str actor;          /* or STR_NONE: the engine */
    enum flow_cause cause; /* of RunRecovered */
};
struct flow_batch {
    struct arena *arena; /* for payloads and items; lives until the batch was appended */
    struct flow_event *items;
    uint32_t count, cap;
    uint32_t *stops; /* attempts under way that must end: tell the executor after the commit */
    uint32_t stop_count, stop_cap;
    bool more; /* FLOW_BATCH_MAX reached: decide again after the commit */
};

/* Makes an empty flow. `ids` holds the run's ids; its strings must live as long as the arena. */
MUST_CHECK status flow_init(struct flow *flow, const struct plan *plan, const struct event *ids,
                            struct arena *arena, struct arena *scratch, struct error *err);
/* Applies one stored record of the run, facts included. An event that the tables forbid, and a step
 * that the plan does not know, change nothing here. ST_RETRY: out of memory; ST_CORRUPT. */
MUST_CHECK status flow_apply(struct flow *flow, const struct event_record *rec, struct error *err);

/* Invariants that hold between calls, whatever was applied; a broken one is a bug of ours. */
void flow_check(const struct flow *flow);

void flow_batch_init(struct flow_batch *batch, struct arena *arena);
/* One round of deciding: about which run, at what time, and where its events go. What follows
 * `batch` matters to flow_decide() alone. */
struct decision {
    struct flow *flow;
    int64_t now_us; /* the clock; every event of the round carries it */
    struct flow_batch *batch;
    bool may_start; /* admission: a run that is not started may start now */
    str why_not;    /* else the reason in RunQueued; STR_NONE: "admission" */
    uint32_t settle_max; /* instant steps carried out in this batch; 0: as many as fit */
    str version;    /* of the program, for RunStarted */
    str warnings;   /* JSON array of the ValidationReport's warnings, or STR_NONE: none */
    str report_ref; /* where the whole report stands, or STR_NONE */
};
/* Decides what comes next, until nothing more can be decided without news from outside. */
MUST_CHECK status flow_decide(const struct decision *d, struct error *err);
/* The result of an attempt. *taken false: it is not the attempt that is open (a late or second
 * answer): nothing was emitted. */
MUST_CHECK status flow_result(const struct decision *d, uint32_t step, int64_t attempt,
                              const struct outcome *outcome, bool *taken, struct error *err);
bool flow_signal_seen(const struct flow *flow, uuid id);
/* A signal as it is received: emits SignalReceived. */
MUST_CHECK status flow_signal(const struct decision *d, const struct signal *signal, uuid id,
                              str actor, struct error *err);
/* Whether a signal makes sense now: ST_CONFLICT with SIGNAL_NOT_APPLICABLE or RUN_FINISHED,
 * ST_NOT_FOUND with STEP_NOT_FOUND, ST_INVALID with SIGNAL_UNKNOWN. A cancel of a finished run is ST_OK with *nothing_to_do. */
MUST_CHECK status flow_signal_check(const struct flow *flow, const struct signal *signal,
                                    bool *nothing_to_do, struct error *err);
/* Ends a run that cannot go on (its plan is gone): RunFailed with the code. */
MUST_CHECK status flow_fail(const struct decision *d, str code, str message, struct error *err);

/* Leases an open task to a worker: emits ToolCalled; its fencing number is steps[step].leases. */
MUST_CHECK status flow_lease(const struct decision *d, uint32_t step, str worker, int64_t lease_ms,
                             struct error *err);
bool flow_task_is_free(const struct flow *flow, uint32_t step, int64_t now_us);

/* When the run must be looked at again: 0 = it has work under way or due at once, FLOW_NEVER. */
int64_t flow_wake(const struct flow *flow);
/* The next time that something in the flow is due, also while other work is under way. */
int64_t flow_due(struct flow *flow);
/* The step's own fields with Liquid rendered, as JSON in `arena`. Reason TEMPLATE_FAILED. */
MUST_CHECK status flow_render(struct flow *flow, uint32_t step, struct arena *arena, str *out,
                              struct error *err);
/* A heartbeat: the lease runs longer. In memory only; after a restart the recorded time counts. */
MUST_CHECK status flow_extend_lease(struct flow *flow, uint32_t step, int64_t until_us,
                                    struct error *err);
/* The launch: emits SignalReceived with `data`, a JSON object with signal_id, signal "LAUNCH",
 * plan_ref, parameters, adapter, approval. */
MUST_CHECK status flow_launch(const struct decision *d, str data, uuid id, str actor,
                              struct error *err);
/* Something goes on with the run that did not before: emits RunRecovered, and what follows carries
 * the new engineAttemptId. */
struct flow_recovery {
    str node; /* who goes on */
    enum flow_cause cause;
    uint32_t step, times; /* FLOW_WORKER: whose attempt, and how often it was given away so far */
};
MUST_CHECK status flow_recover(const struct decision *d, int64_t engine_attempt,
                               const struct flow_recovery *why, struct error *err);
/* The provider has an execution of the run: emits RunProviderLinked, unless it is known. */
MUST_CHECK status flow_linked(const struct decision *d, const struct flow_link *link,
                              struct error *err);
