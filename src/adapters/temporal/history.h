/* adapters/temporal/history.h: the history of one execution, folded into what matters to us. Pure.
 *
 * The server never compares commands with history, so nothing has to be replayed: a history is a
 * list of facts, and this is their sum. Event types that are not named here change nothing. All
 * texts live in the arena of the history, or in the messages it was folded from. */
#pragma once

#include <temporal.pb-c.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"
#include "core/outcome.h"

enum {
    HISTORY_EVENTS_MAX = 60000, /* the cluster ends an execution at 51200 */
};

enum history_activity_state {
    ACTIVITY_PENDING, /* scheduled, perhaps started: a start is written when it ends */
    ACTIVITY_COMPLETED,
    ACTIVITY_FAILED,
    ACTIVITY_TIMED_OUT,
    ACTIVITY_CANCELLED,
};
struct history_activity {
    str id; /* "<stepId>#<attempt>" */
    int64_t scheduled_id;
    enum history_activity_state state;
    int32_t attempt; /* the cluster's, from 1; 0 while pending */
    bool cancel_requested;
    const Tp__Payloads *result; /* of one that was completed, or NULL */
    const Tp__Failure *failure; /* of one that failed or timed out, or NULL */
};
struct history_signal {
    int64_t event_id;
    str name, identity;
    const Tp__Payloads *input; /* or NULL */
};
enum history_end { /* how the execution was closed */
                   HISTORY_OPEN,
                   HISTORY_COMPLETED,
                   HISTORY_FAILED,
                   HISTORY_TIMED_OUT,
                   HISTORY_CANCELLED,
                   HISTORY_TERMINATED,
                   HISTORY_CONTINUED,
};

struct history {
    struct arena *arena;
    const Tp__ExecutionStarted *started; /* the first event; NULL before it was added */
    int64_t length;                      /* events added */
    int64_t last_id;
    struct history_activity *activities; /* in the order they were scheduled */
    uint32_t activity_count, activity_cap, pending;
    uint32_t *slots; /* by id: index + 1, open addressing; 0 is free */
    uint32_t slot_cap;
    struct history_signal *signals;
    uint32_t signal_count, signal_cap;
    bool cancel_requested;
    str cancel_identity, cancel_cause;
    bool suggest_continue; /* says the newest workflow task */
    enum history_end end;
    str end_reason; /* of a termination, in the operator's words */
};

void history_init(struct history *h, struct arena *arena);
/* Adds one page. The events live as long as the history. ST_LIMIT: too many events; ST_RETRY:
 * memory is out; ST_CORRUPT: the events are not in order. */
MUST_CHECK status history_add(struct history *h, const Tp__History *page, struct error *err);
/* The activity of that id, or NULL. Of several the newest. */
const struct history_activity *history_find(const struct history *h, str id);
/* The execution that this one continues, or STR_NONE. */
str history_continues(const struct history *h);
str history_queue(const struct history *h); /* where its workflow tasks are offered */

/* What an ended activity means for its attempt. `stopped`: it was asked to end. Texts live in the
 * arena. */
void history_outcome(const struct history_activity *activity, bool stopped, struct arena *arena,
                     struct outcome *out);
