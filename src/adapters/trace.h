/* adapters/trace.h: the trace that an attempt belongs to, as those that it calls want to be told
 * (W3C Trace Context, level 1). */
#pragma once

#include "base/str.h"
#include "base/uuid.h"

enum { TRACE_PARENT_LEN = 55 };

/* 00-<trace id>-<span id>-01. The trace id is the run's correlation; the span id is derived from
 * run, step and attempt, so that an attempt that happens again after a crash is the same span.
 * false: no valid trace id (all zeros), nothing was written. No NUL. */
bool trace_parent(uuid correlation, str run_id, str step_id, int64_t attempt,
                  char out[TRACE_PARENT_LEN]);
