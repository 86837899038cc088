/* adapters/provider_runs.h: what every provider keeps about the runs that a cluster dispatches.
 *
 * There is one record for each run that the engine told of, or that the cluster spoke of. It says
 * which run it is, which of its attempts the engine waits for, and when something is to be done for
 * it next. A provider puts it first in a struct of its own and adds what its cluster is like.
 *
 * What happens to a run (an answer of the cluster, a task, its own timer) happens between
 * tracked_enter() and tracked_exit(). In between the provider may call the engine through its ports
 * and the engine may call the provider back: the record and the attempts on its list stay where
 * they are. The last tracked_exit() lets the provider do what is due (ops->step), frees attempts
 * that were answered, and sets the timer; or it frees the record, if the run was dropped meanwhile.
 *
 * Calls of the engine must not call it back before they return. They note what is wanted, and ask
 * for a step in the loop's next turn: tracked_soon().
 *
 * Threads: the loop's. */
#pragma once

#include <sys/queue.h>
#include <uv.h>

#include "adapters/provider.h"
#include "base/map.h"

#define PROVIDER_NEVER UINT64_MAX

struct provider_runs;
struct tracked_run;

struct wanted { /* an attempt that the engine waits for; the first member of a provider's struct */
    TAILQ_ENTRY(wanted) link;
    struct tracked_run *run; /* NULL: its run was dropped while it was executed here */
    struct attempt *attempt; /* NULL: answered, or given up; freed when its run is left */
};
TAILQ_HEAD(wanted_list, wanted);

enum tracked_state {
    TRACKED_RESTS,   /* until its timer, or until somebody enters it */
    TRACKED_SOON,    /* a step in the loop's next turn */
    TRACKED_DROPPED, /* nothing more is done for it; freed as soon as nobody is inside */
    TRACKED_FREED,   /* only its timer is left, until the loop has closed it */
};
struct tracked_run { /* the first member of a provider's struct */
    TAILQ_ENTRY(tracked_run) link;
    struct provider_runs *runs;
    str run_id;
    enum tracked_state state;
    int inside; /* tracked_enter() without its tracked_exit() */
    struct wanted_list wanted;
    size_t wanted_count; /* of those with an attempt */
    uint64_t retry_at;   /* no question about it before that; 0: any time */
    int64_t retry_ms;    /* the pause after the next failure doubles this; 0: none failed */
    uv_timer_t timer;
};
TAILQ_HEAD(tracked_list, tracked_run);

struct provider_runs_ops {
    /* Does what is due, from inside the run. It may drop the run. */
    void (*step)(struct tracked_run *run);
    /* When step() has something to do next, as uv_now(); PROVIDER_NEVER: when it is told to. A time
     * that is over must be one at which step() does something: else the loop never sleeps. */
    uint64_t (*next)(const struct tracked_run *run);
    /* Lets go of all that the provider has of a dropped run. No attempt may be left on its list
     * whose answer is still to come: see wanted_answer() and wanted_detach(). */
    void (*release)(struct tracked_run *run);
    /* Asserts what is true of every run that nobody is inside of. */
    void (*check)(const struct tracked_run *run);
    /* After provider_runs_close(): the last record is gone from the loop. */
    void (*closed)(struct provider_runs *runs);
};
struct provider_runs {
    uv_loop_t *loop;
    const struct provider_runs_ops *ops;
    const struct provider_ports *ports;   /* the provider's */
    size_t runs_max;                      /* records at once */
    int64_t retry_ms_first, retry_ms_max; /* pauses after failures, the first and the longest */
    struct map by_id;
    struct tracked_list all;
    size_t handles; /* timers that the loop has not closed yet */
    bool crowded;   /* runs_max was reached, and logged */
    bool closing;
};

static inline uint64_t provider_runs_now(const struct provider_runs *runs) {
    return uv_now(runs->loop);
}

/* ---- the registry ---- */

/* `runs` is the caller's, with loop, ops, ports, runs_max and the pauses set and the rest zero. */
void provider_runs_open(struct provider_runs *runs);
/* Drops all runs; attempts that are wanted are not answered. ops->closed() follows, from the loop,
 * unless there was no record at all: then `handles` is 0 when this returns. */
void provider_runs_close(struct provider_runs *runs);
void provider_runs_release(struct provider_runs *runs); /* when `handles` is 0 */
/* NULL: there is none, or it was dropped. */
struct tracked_run *provider_runs_find(const struct provider_runs *runs, str run_id);
/* Makes a record of `size` bytes, all zero behind struct tracked_run. There must be none of that
 * run. NULL: memory is out, or there are too many. */
struct tracked_run *provider_runs_add(struct provider_runs *runs, str run_id, size_t size);
/* A step of all of them, in the loop's next turn. */
void provider_runs_all_soon(struct provider_runs *runs);

/* ---- one run ---- */

void tracked_enter(struct tracked_run *run);
void tracked_exit(struct tracked_run *run); /* may free it */
void tracked_soon(struct tracked_run *run); /* a step in the loop's next turn */
/* The provider is done with it. Freed now, or with the last tracked_exit(). */
void tracked_drop(struct tracked_run *run);
static inline bool tracked_is_dropped(const struct tracked_run *run) {
    return run->state >= TRACKED_DROPPED;
}
/* A question about the run failed: returns how long to wait before the next one, in ms. The pauses
 * double from one failure to the next. */
int64_t tracked_pause(struct tracked_run *run);
void tracked_failed(struct tracked_run *run); /* the same, and sets retry_at */
void tracked_worked(struct tracked_run *run);

/* ---- attempts ---- */

/* Puts an attempt on the list of its run, in a record of `size` bytes, which becomes the attempt's
 * executor_data. NULL: memory is out. */
struct wanted *tracked_want(struct tracked_run *run, struct attempt *attempt, size_t size);
/* What is wanted of a run, one after the other: good while somebody is inside, whatever the ports
 * do. */
struct wanted *wanted_first(const struct tracked_run *run);
struct wanted *wanted_after(const struct wanted *w);
/* Answers the attempt, from inside its run. */
void wanted_answer(struct wanted *w, const struct outcome *outcome);
void wanted_cancelled(struct wanted *w, str message);
/* Gives the attempt up without an answer: it goes on at the cluster. */
void wanted_forget(struct wanted *w);
/* Takes an attempt that outlives its run off the list: from now on its memory is the caller's, and
 * it can be answered at any time. Not while somebody walks along the list. */
void wanted_detach(struct wanted *w);

/* ---- whose run is it? ---- */

enum run_claim {
    CLAIM_OURS,      /* this process carries it out */
    CLAIM_ELSEWHERE, /* another node does */
    CLAIM_OVER,      /* it has ended: what the cluster has of it can be closed */
    CLAIM_UNKNOWN,   /* the ledger has no such run */
    CLAIM_UNSURE,    /* that cannot be told now; *err says why */
};
/* Asks the ledger, which has the last word. *out is filled unless CLAIM_UNKNOWN or CLAIM_UNSURE;
 * its texts live in the arena. */
enum run_claim provider_runs_claim(const struct provider_runs *runs, str run_id, str step_id,
                                   struct arena *arena, struct provider_found *out,
                                   struct error *err);

/* ---- executions that should be closed ----
 *
 * What is lost when a process dies between the end of a run and the end of its execution is found
 * by going through the open executions of the cluster, now and then, page by page. */

struct provider_sweep {
    int64_t every_ms;
    int pages_max;
    uint64_t at; /* when the next page is due */
    int page;    /* of the sweep under way, from 0 */
};
bool sweep_is_due(const struct provider_sweep *sweep, uint64_t now);
/* A page was read, or could not be. Returns whether there is another one to ask for: at once, or
 * when sweep_is_due() says so. A sweep that failed is begun again after a tenth of its time. */
bool sweep_next_page(struct provider_sweep *sweep, bool worked, bool has_more, uint64_t now);
/* Whether an open execution is left over: its run has ended, and it has no record that says so.
 * Then *found is filled. */
bool provider_runs_left_over(const struct provider_runs *runs, str run_id, struct arena *arena,
                             struct provider_found *found);
