/* api/pool.h: reader threads: queries run here, never on the loop.
 *
 * Each thread has its own read-only connection, opened when it is first needed and made anew after
 * it failed. The queue is bounded: when it is full the caller is told, and nothing was taken.
 * Threads: all calls on the loop's thread; `work` runs on a reader thread, `done` on the loop. */
#pragma once

#include <uv.h>

#include "base/error.h"
#include "base/metrics.h"
#include "ledger/ledger.h"

struct pool;

struct pool_job { /* the caller's memory, until `done` */
    status (*work)(struct pool_job *job, struct ledger *reader, struct error *err);
    void (*done)(struct pool_job *job);
    status code; /* of `work`, or of the connection */
    struct error err;
    struct pool_job *next; /* the pool's, as what follows */
    int64_t since_ns;
};

MUST_CHECK status pool_open(uv_loop_t *loop, str url, size_t threads, size_t queue_max,
                            struct metrics *metrics, struct pool **out, struct error *err);
/* ST_LIMIT with QUEUE_FULL. */
MUST_CHECK status pool_submit(struct pool *pool, struct pool_job *job, struct error *err);
size_t pool_waiting(const struct pool *pool); /* jobs whose done has not been called */
/* Waits for the work under way; what is queued is answered with ST_RETRY, from inside this call.
 * The loop must run afterwards until the handle is closed. NULL is fine. */
void pool_close(struct pool *pool);
