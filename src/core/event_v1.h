/* core/event_v1.h: events of the first contract version, normalised to the current one while a
 * window is open.
 *
 * A v1 record differs in four ways: it may lack eventId; its time is `occurredAt` (or `timestamp`);
 * its idempotencyKey was derived without the plan, so it is not looked at; it may carry the runSeq
 * and persistedAt of the store it came from, which are not looked at either. Everything else is as
 * now, and event_validate() still decides. Same input, same event, apart from an eventId that was
 * missing. */
#pragma once

#include "core/event.h"

/* A line is v1-shaped when it has `occurredAt` or `timestamp` and no `emittedAt`. Anything else is
 * for event_parse(). */
struct event_v1_window {
    int64_t until_ns; /* a record emitted at or after this instant is refused: V1_WINDOW_CLOSED. 0:
                         no window is open */
    uuid fresh_id;    /* used when the record has no eventId */
};
/* Parses a RunEventWrite of either version. With window->until_ns 0 a v1 record is refused as
 * event_parse() would refuse it. */
MUST_CHECK status event_parse_any(str json, const struct event_v1_window *window,
                                  struct arena *arena, struct event *out, struct error *err);
