/* ledger/readers.h: threads that read the ledger, so that a loop never waits for the store.
 *
 * Each thread has its own read-only connection, opened when it is first needed and made anew after
 * it failed. As with the bridge (bridge.h), which is the way to write: a job is submitted on the
 * loop's thread, carried out on a reader thread, and answered on the loop's thread: the loop is
 * woken and calls readers_deliver().
 *
 *     static status load(struct reader_job *job, struct ledger *reader, struct error *err);
 *     static void loaded(struct reader_job *job);          on the loop; see job->code and job->err
 *
 *     x->job = (struct reader_job){.work = load, .done = loaded};
 *     readers_submit(readers, &x->job);
 *
 * `work` reads with what ledger.h, lease.h, access.h and outbox.h offer to readers, and puts what
 * it finds into memory that only the job has meanwhile (an arena of its own). What was read may be
 * old when `done` is called: whatever is decided from it is checked again by the commit.
 *
 * Two kinds of jobs: those of the process itself (readers_submit) are always taken, and go before
 * those that somebody outside asked for (readers_try), of which a bounded number waits. One thread
 * serves the process's own alone: long queries from outside never keep the engine from reading.
 *
 * Threads: all calls on the loop's thread; `work` runs on a reader thread, `done` on the loop's,
 * `wake` is called on a reader thread. */
#pragma once

#include "base/error.h"
#include "base/metrics.h"
#include "ledger/ledger.h"

struct readers;

struct reader_job { /* the caller's memory, until `done` */
    status (*work)(struct reader_job *job, struct ledger *reader, struct error *err);
    void (*done)(struct reader_job *job); /* may free the job, and submit others */
    status code;                          /* of `work`, or of the connection */
    struct error err;
    struct reader_job *next; /* the readers', as what follows */
    int64_t since_ns;
};

struct readers_options {
    str url;
    size_t threads;   /* for what is asked from outside; one more serves the process itself */
    size_t queue_max; /* of readers_try() */
    void (*wake)(void *context); /* makes the loop call readers_deliver() soon */
    void *context;
    struct metrics *metrics; /* or NULL */
};
MUST_CHECK status readers_open(const struct readers_options *options, struct readers **out,
                               struct error *err);
/* Always taken: for callers that bound what they ask for. After readers_halt() it is answered
 * with ST_RETRY and CLOSING. `done` is never called from inside. */
void readers_submit(struct readers *readers, struct reader_job *job);
/* ST_LIMIT with QUEUE_FULL, ST_RETRY with CLOSING: then `done` is not called. */
MUST_CHECK status readers_try(struct readers *readers, struct reader_job *job, struct error *err);
void readers_deliver(struct readers *readers);           /* calls `done` of all that is finished */
size_t readers_under_way(const struct readers *readers); /* taken, and `done` not called yet */
/* Waits for the work under way; what is queued is answered with ST_RETRY and CLOSING: all that from
 * inside this call. NULL is fine, and again is fine. */
void readers_halt(struct readers *readers);
/* Halts, answers what came later, and frees it. NULL is fine. */
void readers_close(struct readers *readers);
