/* ledger/bridge.h: between a loop and the ledger thread.
 *
 * A call is submitted on the loop's thread, committed by the ledger thread (writer.h), and answered
 * on the loop's thread again: `done` runs there and nowhere else, once for every call. When the
 * writer's queue is full, calls wait here in order. The bridge knows no event loop: it is given a
 * function that wakes one, which must then call bridge_deliver().
 *
 * One bridge for each writer: engine, API and outbox share it. So while calls wait for room, others
 * of the bridge are under way, and the answer to those is what makes room.
 *
 * The end: bridge_halt() first. From then on nothing more reaches the ledger thread, and every
 * call, even one under way, is answered with ST_RETRY and CLOSING: it may have been committed,
 * but nothing may be built on it any more. Then writer_close(), bridge_close().
 *
 * Threads: everything here belongs to the loop's thread, except `wake`, which is called on the
 * ledger thread. */
#pragma once

#include "ledger/writer.h"

struct bridge;

struct bridge_call { /* embedded in the caller's struct: the bridge's from submit to `done` */
    /* What is to be committed: fill request, or member, or (seldom) task. When `done` is called,
     * write.code and write.err tell how it ended. The rest of it is the bridge's. */
    struct writer_call write;
    void (*done)(struct bridge_call *call); /* on the loop; may free the call and submit others */
    void *context;                          /* the caller's */
    /* The bridge's. */
    struct bridge *bridge;
    struct bridge_call *next;
};

/* `wake` makes the loop call bridge_deliver() soon; several calls of it may become one. Borrows the
 * writer. The caller ends it with bridge_close(). */
MUST_CHECK status bridge_open(struct writer *writer, void (*wake)(void *context), void *context,
                              struct bridge **out, struct error *err);
/* Always takes the call; it may wait here for room at the writer. For callers that bound
 * what they have under way themselves. `done` is never called from inside. */
void bridge_submit(struct bridge *bridge, struct bridge_call *call);
/* The same, but does not wait: ST_LIMIT with QUEUE_FULL, ST_RETRY with CLOSING, and then `done` is
 * not called. For requests from outside, which are told to come back later. */
MUST_CHECK status bridge_try(struct bridge *bridge, struct bridge_call *call, struct error *err);
/* Answers the call with ST_OK at the next delivery, without the ledger thread: for a caller that
 * must not answer from inside the call it is in. */
void bridge_post(struct bridge *bridge, struct bridge_call *call);
/* Calls `done` of all that were answered, then sends what waited for room. Also from inside `done`.
 */
void bridge_deliver(struct bridge *bridge);
size_t bridge_under_way(const struct bridge *bridge); /* taken, and `done` not called yet */
bool bridge_is_full(const struct bridge *bridge);     /* calls are waiting here for room */
/* For what must be waited for (writer_append), at the end of a process. */
struct writer *bridge_writer(struct bridge *bridge);

void bridge_halt(struct bridge *bridge); /* see above; again is fine. NULL is fine. */
/* After writer_close(). Answers what is left, frees it. NULL is fine. */
void bridge_close(struct bridge *bridge);
