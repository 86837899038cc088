/* core/plan_schema.h: the versions of the plan language. Pure.
 *
 * A version that will go has a date after which it is no longer supported; plans that use it are
 * accepted with a warning until a release drops it. The table is repeated in docs/plans.md. */
#pragma once

#include "core/plan.h"

struct plan_schema_version {
    const char *name;
    int minor;
    const char *deprecated_after; /* "2026-09-30", or "none" */
};
/* The supported versions, oldest first. */
const struct plan_schema_version *plan_schema_versions(size_t *count);
/* As plan_schema_check(), in a world where v<major>.<minor> is the current version. *out_minor is
 * set if accepted. */
MUST_CHECK status plan_schema_window(str version, int major, int minor, int *out_minor,
                                     struct error *err);
