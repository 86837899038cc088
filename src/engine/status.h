/* engine/status.h: what a run is doing and what it waits for, from the store alone.
 *
 * Nothing here asks an engine or fetches a plan: the run's rows and the lease on it say everything,
 * so the answer is the same in every process, also when no engine is alive. State comes from the
 * one reducer (core/run.h); what the plan added stands in the payloads of the events. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "ledger/lease.h"
#include "ledger/ledger.h"

#define ENGINE_CONTRACT_VERSION "1.1.1"

/* ---- the run and its steps ---- */

struct step_view { /* the newest attempt; times are 0 when there is none */
    str id;
    str type; /* "exec" ..., or STR_NONE */
    enum step_state state;
    int64_t attempt;
    int64_t started_us, ended_us; /* by the store's clock, as all of these */
    int64_t due_us;               /* a sleep's end, an approval's expiry */
    int64_t timeout_us;
    int64_t retried_us; /* FAILED: the next attempt was decided then, */
    int64_t retry_us;   /* and begins then */
    int64_t leases, lease_us,
        lease_until_us; /* a task: how often handed out; last when, till when */
    str worker;         /* to whom */
    str signal, queue, effect_type;
    str code, message; /* of the newest failure; of a skipped step its reason */
};
struct run_view {
    struct run_info info;
    struct run run; /* reduced */
    struct lease_info lease;
    struct step_view *steps; /* run.step_count of them, in the same order */
    str queued_reason;       /* "approval", "admission", "provider"; STR_NONE */
    str adapter;             /* of the launch; STR_NONE: no engine launched it */
    bool rotating;           /* its provider is between two executions: continue-as-new */
    int64_t queued_us, approved_us, paused_us;
    bool degraded;          /* started with warnings */
    str end_code, end_step; /* of RunFailed */
};
/* ST_NOT_FOUND with RUN_NOT_FOUND. Everything lives in the arena. */
MUST_CHECK status run_view_load(struct ledger *reader, str run_id, struct arena *arena,
                                struct run_view *out, struct error *err);

/* ---- RunStatusSnapshot ---- */

struct run_snapshot {
    str run_id;
    enum run_status status;
    str substatus;                    /* or STR_NONE */
    str message;                      /* or STR_NONE */
    int64_t started_us, completed_us; /* 0: not yet */
};
MUST_CHECK status status_snapshot(struct ledger *reader, str run_id, struct arena *arena,
                                  struct run_snapshot *out, struct error *err);

/* One of the five canonical words, or <adapter>/<VALUE> with adapter temporal, conductor or mock
 * and a value that is not itself canonical. Reason SUBSTATUS_INVALID. */
MUST_CHECK status substatus_check(str substatus, struct error *err);

/* ---- why it waits ---- */

enum wait_kind {
    WAIT_FINISHED,        /* it waits for nothing */
    WAIT_NOBODY,          /* no node carries it out now */
    WAIT_LAUNCH_APPROVAL, /* somebody must approve the launch */
    WAIT_ADMISSION,       /* too many runs are active */
    WAIT_PROVIDER,        /* Temporal or Conductor must take it */
    WAIT_PAUSED,          /* somebody must resume it */
    WAIT_WORKER,          /* a task: to be taken, or to be answered by whoever has it */
    WAIT_TIMER,           /* a sleep */
    WAIT_RETRY,           /* the time before the next attempt */
    WAIT_SIGNAL,          /* a named signal */
    WAIT_APPROVAL,        /* an approval step */
    WAIT_EXECUTING,       /* a step at work in the engine: exec, http ... */
    WAIT_EFFECT,          /* an effect: to be taken over by the outbox, or to be delivered */
    WAIT_ENGINE,          /* nothing is under way: the engine decides next */
    WAIT_KIND_COUNT
};
const char *wait_kind_name(enum wait_kind kind); /* "finished", "launchApproval" ... */

struct wait {
    enum wait_kind kind;
    str step;         /* or STR_NONE */
    int64_t since_us; /* 0: not known */
    int64_t until_us; /* 0: no such time */
    str on;           /* the queue, the signal, the effect's type, the node; or STR_NONE */
    str detail;       /* in words, or STR_NONE */
};
struct explanation {
    struct run_snapshot snapshot;
    struct wait *waits;
    size_t count;
    bool wakes;      /* the engine looks at it again by itself, */
    int64_t wake_us; /* then; 0: at once */
    str node;        /* who carries it out, or STR_NONE */
    bool alive;      /* and is it at work */
};
MUST_CHECK status explain_run(struct ledger *reader, str run_id, int64_t now_us,
                              struct arena *arena, struct explanation *out, struct error *err);
