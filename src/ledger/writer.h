/* ledger/writer.h: the ledger thread. Many producers, one writer, group commit.
 *
 * The thread owns the struct ledger. It takes everything that is queued, commits it as one
 * transaction and answers each waiter; while it commits, the next group gathers. Of those who were
 * answered together it waits a moment for the last; a lone producer waits for nobody. An answer is
 * given only after the commit is durable. The queue is bounded: when it is full, submitting answers
 * ST_LIMIT (reason QUEUE_FULL) and nothing was taken. */
#pragma once

#include "base/error.h"
#include "base/metrics.h"
#include "ledger/ledger.h"

struct writer;

/* The calls of a producer that sends without waiting for answers. Once one of them fails, those
 * behind it fail too, untried: a later event must not be stored without an earlier one. Belongs to
 * the producer; the ledger thread writes it until the last call is answered. */
struct writer_stream {
    bool failed;
};

/* One of three: events to append (request), something else to be written in the same commit
 * (member), or something that makes its own transactions (task). */
struct writer_call {
    struct append_request request; /* count at most BATCH_EVENTS_MAX */
    struct {
        ledger_body body; /* see struct ledger_member; NULL: none */
        void *context;
    } member;
    /* Filled before `done` is called. ST_OK: committed, see request.results. Else nothing is
     * acknowledged. */
    status code;
    struct error err;
    /* Called on the ledger thread; NULL only inside writer_append(). */
    void (*done)(struct writer_call *call);
    /* Runs alone on the ledger thread, between two groups; its status becomes `code`. Each costs
     * all others the time that it takes: only for what cannot be part of a group, with a comment
     * that says why. */
    status (*task)(struct ledger *ledger, void *task_context, struct error *err);
    void *task_context;
    void *context;                /* the caller's */
    struct writer_stream *stream; /* or NULL: this call stands for itself */
    struct ledger_member joined;  /* the writer's */
};

/* Starts the thread. Takes ownership of the ledger, also on failure. `metrics` may be NULL. */
MUST_CHECK status writer_open(struct ledger *ledger, struct metrics *metrics, struct writer **out,
                              struct error *err);
/* Answers what is queued, stops the thread, closes the ledger. NULL is fine. */
void writer_close(struct writer *w);
/* Hands `call` over until `done`. ST_LIMIT when the queue is full, ST_RETRY when the writer is
 * closing. */
MUST_CHECK status writer_submit(struct writer *w, struct writer_call *call, struct error *err);
/* Submits and waits; waits for room too, up to timeout_ms. Returns call->code. */
MUST_CHECK status writer_append(struct writer *w, struct writer_call *call, int64_t timeout_ms,
                                struct error *err);
