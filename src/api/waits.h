/* api/waits.h: calls that wait for the end of a run.
 *
 * A call joins before its run is started, so that no end is missed, and begins to wait once the run
 * is durable. Its wait is over when the run has ended, when its time is up, when the client is gone
 * or the server drains: then `over` answers it. Whatever else ends the call ends the wait, too. */
#pragma once

#include <uv.h>

#include "base/map.h"
#include "base/str.h"

enum { WAIT_MAX_S = 60 };

struct call;
struct share;

struct run_wait {                    /* of one call; in its arena */
    str run_id;                      /* borrowed */
    int64_t seconds;                 /* how long at most, up to WAIT_MAX_S */
    void (*over)(struct call *call); /* answers; `ended` tells why */
    int ended;                       /* enum run_status of the end that was seen; 0: none yet */
    /* For waits.c. */
    struct call *call;
    bool begun;
    struct run_wait *next, *prev;    /* others that wait for the same run */
    struct run_wait *later, *sooner; /* others that wait equally long, by when it is over */
    struct share *share;
    int64_t until_ns;
    bool timed; /* is in one of by_s */
};

struct waits {         /* of the API */
    struct map by_run; /* run id -> the first run_wait */
    size_t count;
    struct {
        struct run_wait *first, *last;
    } by_s[WAIT_MAX_S + 1]; /* the same, by how long: the first is the next to be over */
    uv_timer_t timer;
};

/* false: too many wait, or the server drains; the call then goes on without. Fill run_id, seconds
 * and over first. */
bool wait_join(struct call *call, struct run_wait *wait);
/* From now on `over` may be called, also at once. */
void wait_begin(struct call *call);
/* Ends the wait without calling `over`. Nothing if the call has not joined, or has left. */
void wait_leave(struct call *call);
