/* cli/live.h: a run as it happens, on standard error.
 *
 * On a terminal a bar for each phase and one line for each running step, redrawn in place at most
 * ten times a second and wiped away at the end; anywhere else one plain line for each thing that
 * happened. Fed with committed events: what is shown has happened. */
#pragma once

#include "base/base.h"
#include "base/str.h"
#include "core/event.h"
#include "core/flow.h"

struct live;

struct live_event {
    enum event_type type;
    str step_id; /* STR_NONE: of the run itself */
    int64_t attempt;
    str payload;
    int64_t us; /* when it was stored */
};

/* `on` false: it says nothing. Never NULL. */
struct live *live_open(bool on);
void live_run(struct live *live, str run_id);
void live_started(struct live *live, int64_t us); /* when the run began, if others began it */
/* The steps there are; without it they are known when they begin. Copies what it needs. */
void live_plan(struct live *live, const struct plan *plan);
/* Where the steps stand: for a run that others began. Borrows nothing. */
void live_flow(struct live *live, const struct flow *flow);
/* Events of the run, in order; those of one commit together. */
void live_events(struct live *live, const struct live_event *events, size_t count);
void live_draw(struct live *live); /* from time to time: the clock goes on */
enum { LIVE_DRAW_MS = 100 };
void live_close(struct live *live); /* wipes the bars away. NULL is fine */

/* "1.2s", "3m05s", "2h10m" */
void live_duration(int64_t us, struct buf *out);
