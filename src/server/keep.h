/* server/keep.h: $CAIRN_KEEP_WORKSPACES: how long the workspace of a run stays after its end. */
#pragma once

#include "base/error.h"
#include "base/str.h"

#define KEEP_DEFAULT_US ((int64_t)7 * 86400 * 1000000)
enum { KEEP_DAYS_MAX = 36500 };

/* "7d", "12h", "30m", "45s"; "0": not at all; "forever"; STR_NONE: KEEP_DEFAULT_US. As keep_us of
 * host_options. */
MUST_CHECK status keep_parse(str text, int64_t *keep_us, struct error *err);
