/* base/limits.h: bounds that several modules share, with unit and reason; others stand where they are used. A limit
 * that a user meets has its own error; the relations between limits are asserted at compile time. */
#pragma once

#include <assert.h>

#include "base/base.h"

enum {
    ID_BYTES_MAX = 255,            /* any id a producer chooses; fits every index and file name */
    EVENT_TYPE_BYTES_MAX = 100,    /* and its SCREAMING_SNAKE form must fit EVENT_TYPE_SNAKE_MAX too */
    EVENT_TYPE_SNAKE_MAX = 100,    /* the width of event_type in the CANON table */
    ACTOR_BYTES_MAX = 100,         /* the width of actor in the CANON table */
    JSON_DEPTH_MAX = 64,           /* nesting of one event, envelope included */
    BATCH_EVENTS_MAX = 4096,       /* events of one append call */
    GROUP_EVENTS_MAX = 4096,       /* events of one commit: more buys little and costs latency */
    QUEUE_REQUESTS_MAX = 1024,     /* append calls waiting for the ledger thread, then back-pressure */
    PAGE_EVENTS_MAX = 1000,        /* events of one read */
    STEPS_PER_RUN_MAX = 1000000,   /* distinct step ids of one run */
    REJECTIONS_MAX = 100000,       /* remembered rejections of invalid appends, oldest forgotten first */
};
#define ATTEMPT_MAX ((int64_t)9007199254740991) /* what every JSON reader can count to: 2^53 - 1 */
#define EVENT_BYTES_MAX ((size_t)256 * 1024)  /* one event's JSON */
#define LINE_BYTES_MAX ((size_t)1024 * 1024)  /* one NDJSON line, before it is looked at */
#define RUN_CACHE_BYTES_MAX ((size_t)32 * 1024 * 1024) /* derived state of open runs, recently written */

static_assert(BATCH_EVENTS_MAX <= GROUP_EVENTS_MAX, "a batch commits in one group");
