/* outbox/dispatch.h: the outbox worker: claims what is due, delivers it, records how it ended.
 *
 * Once a second it looks for effects that are due and takes up to ten; of those that this process
 * requests it is told, and takes them without looking. What was taken together is a batch: its
 * effects are delivered one after the other, in the order taken. Several batches are under way at a
 * time, and their claims and records are members of whatever group is being committed. An effect is
 * claimed before its delivery begins and its end is recorded after it: a crash in between leaves a
 * lease that runs out, and the effect is delivered again with the same key. This is the only caller
 * of the integrations (deliver.h).
 *
 * Threads: all calls and all answers on the loop's thread; the ledger is written over a bridge
 * and read by readers. */
#pragma once

#include <uv.h>

#include "base/metrics.h"
#include "ledger/bridge.h"
#include "ledger/readers.h"
#include "outbox/change.h"
#include "outbox/deliver.h"

struct dispatcher;

enum {
    DISPATCH_POLL_MS = 1000,
    DISPATCH_BATCH = 10,   /* effects of one look */
    DISPATCH_BATCHES = 64, /* under way at a time */
};

struct dispatcher_options {
    /* Borrowed until dispatcher_close(), before which both have answered all. */
    struct bridge *bridge;
    struct readers *readers;
    struct deliverer_options deliver;
    struct outbox_settings settings; /* borrowed */
    str worker;                      /* its name in the ledger */
    int batches;                     /* 0: DISPATCH_BATCHES */
    int64_t poll_ms;                 /* 0: DISPATCH_POLL_MS */
    int64_t lease_ms;                /* 0: what a batch may take at most, and half a minute */
    bool alone;              /* nobody else delivers from this ledger: what was under way is over */
    bool only_asks;          /* delivers nothing: another process does */
    bool only_served;        /* delivers only for runs that it was told of: dispatcher_serve() */
    struct metrics *metrics; /* or NULL */
    /* An effect has ended here, COMPLETED or DEAD_LETTER; or NULL. */
    void (*settled)(void *context, const struct effect_info *info);
    void *context;
};

MUST_CHECK status dispatcher_open(uv_loop_t *loop, const struct dispatcher_options *options,
                                  struct dispatcher **out, struct error *err);
/* There is something new: looks now. */
void dispatcher_wake(struct dispatcher *d);
/* This effect was just requested, and is PENDING: takes it, if there is room; else a look will find
 * it. Copied. */
void dispatcher_tell(struct dispatcher *d, const struct effect_info *info);
/* The run is carried out here: with `only_served` its effects are delivered here from now on, and
 * those of other runs are left to whoever is set up for them. The runs of requested effects are
 * served without being told. */
void dispatcher_serve(struct dispatcher *d, str run_id);
/* Nothing is under way, and nothing was due when it last looked. */
bool dispatcher_idle(const struct dispatcher *d);
/* Requests an effect (outbox_request()) without waiting; all of `request` is copied. `done` is
 * called once, on the loop, with ST_OK and the effect, or with why not; not after
 * dispatcher_halt(). */
typedef void (*dispatcher_asked)(void *context, status st, const struct effect_info *info,
                                 bool existing, const struct error *err);
MUST_CHECK status dispatcher_ask(struct dispatcher *d, const struct effect_request *request,
                                 dispatcher_asked done, void *context, struct error *err);
/* Begins no more deliveries, records those that have ended, gives back to the ledger what was
 * claimed and not begun, and forgets the rest: their leases run out. Before the bridge is halted.
 */
void dispatcher_halt(struct dispatcher *d);
/* After the readers were halted, the writer was closed and the bridge has delivered. The last
 * memory is freed by callbacks of the loop. NULL is fine. */
void dispatcher_close(struct dispatcher *d);
