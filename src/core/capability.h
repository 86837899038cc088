/* core/capability.h: what an adapter can do, and whether that is enough for a plan. Pure.
 *
 * The matrix is data: each capability has one cell for each adapter. A plan names the capabilities
 * it needs in metadata.requiresCapabilities, and in fallbackBehavior what shall happen when the
 * adapter has one only in part: `reject` (the default) refuses, `emulate` accepts what is emulated,
 * `degrade` accepts what is degraded as well. What the adapter cannot do at all is always refused.
 */
#pragma once

#include "core/plan.h"

enum adapter_kind { ADAPTER_LOCAL, ADAPTER_TEMPORAL, ADAPTER_CONDUCTOR, ADAPTER_COUNT };
enum support {
    SUPPORT_NO,
    SUPPORT_DEGRADED, /* less than the sentence promises */
    SUPPORT_EMULATED, /* all of it, built by Cairn on top of the adapter */
    SUPPORT_YES,
};
enum capability {
    CAP_DURABLE_TIMERS,
    CAP_SIGNALS,
    CAP_APPROVALS,
    CAP_PAUSE_RESUME,
    CAP_IN_FLIGHT_PAUSE,
    CAP_CANCELLATION,
    CAP_TASK_CANCELLATION,
    CAP_STEP_RETRY,
    CAP_STEP_TIMEOUT,
    CAP_PARALLEL_STEPS,
    CAP_OUTSIDE_WORKERS,
    CAP_HTTP_STEPS,
    CAP_PROCESS_STEPS,
    CAP_LONG_RUNNING,
    CAP_CONTINUE_AS_NEW,
    CAP_EXACTLY_ONCE_EFFECTS,
    CAP_EVENT_HISTORY,
    CAP_DYNAMIC_STEPS,
    CAPABILITY_COUNT
};

const char *adapter_name(enum adapter_kind adapter); /* "local" ... */
bool adapter_of(str name, enum adapter_kind *out);
const char *capability_name(enum capability capability);     /* "durableTimers" ... */
const char *capability_sentence(enum capability capability); /* what it promises */
bool capability_of(str name, enum capability *out);
enum support capability_support(enum capability capability, enum adapter_kind adapter);
const char *support_name(enum support support); /* "YES", "EMULATED", "DEGRADED", "NO" */
bool adapter_runs(enum adapter_kind adapter, enum plan_type type);
/* {"adapters":[...],"capabilities":[{"name":...,"description":...,"local":"YES",...},...]} */
void capability_matrix_json(struct buf *out);

enum report_status { REPORT_VALID, REPORT_WARNINGS, REPORT_ERRORS };
struct report_item {
    enum reason code;
    str capability;   /* of errors: what is missing. For STEP_TYPE_UNSUPPORTED the type, for
                         TARGET_ADAPTER_MISMATCH the adapter. */
    str message;
};
struct validation_report {
    str plan_id;
    enum report_status status;
    struct report_item *errors, *warnings;
    size_t error_count, warning_count;
};
/* Errors: CAPABILITY_UNKNOWN, CAPABILITY_UNSUPPORTED, CAPABILITY_EMULATED, CAPABILITY_DEGRADED,
 * TARGET_ADAPTER_MISMATCH, STEP_TYPE_UNSUPPORTED. Warnings: CAPABILITY_EMULATED,
 * CAPABILITY_DEGRADED, SCHEMA_VERSION_DEPRECATED. A plan with errors is ST_OK here: the report says
 * so. ST_RETRY out of memory. */
MUST_CHECK status capability_validate(const struct plan *plan, enum adapter_kind adapter,
                                      struct arena *arena, struct validation_report *out,
                                      struct error *err);
const char *report_status_name(enum report_status st); /* "VALID", "WARNINGS", "ERRORS" */
/* {"planId":...,"status":...,"errors":[...],"warnings":[...]} */
void validation_report_json(const struct validation_report *report, struct buf *out);
