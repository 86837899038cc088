/* cli/progress.h: a progress bar on standard error, for terminals only. It is redrawn a few times a
 * second and leaves nothing behind. */
#pragma once

#include "base/base.h"

struct progress {
    bool on;
    bool drawn;
    const char *label; /* what is being done: "importing" */
    int64_t start_ns, shown_ns;
};
/* Off unless standard error is a terminal and `wanted`. */
void progress_start(struct progress *p, const char *label, bool wanted);
/* done of total (total 0: unknown) with a count of things to show; `context` of a ledger_progress
 * is a struct progress. */
void progress_show(struct progress *p, int64_t done, int64_t total, int64_t things);
void progress_tick(void *context, int64_t done, int64_t total);
void progress_end(struct progress *p); /* wipes the bar away */
