/* core/capability.c: the matrix of adapters and capabilities, and a plan held against it. */
#include "core/capability.h"

#include <stdarg.h>

#include "base/json_out.h"

static const char *const adapters[ADAPTER_COUNT] = {
    [ADAPTER_LOCAL] = "local",
    [ADAPTER_TEMPORAL] = "temporal",
    [ADAPTER_CONDUCTOR] = "conductor",
};
static const char *const supports[] = {
    [SUPPORT_NO] = "NO",
    [SUPPORT_DEGRADED] = "DEGRADED",
    [SUPPORT_EMULATED] = "EMULATED",
    [SUPPORT_YES] = "YES",
};

#define YES SUPPORT_YES
#define EMULATED SUPPORT_EMULATED
#define DEGRADED SUPPORT_DEGRADED
#define NO SUPPORT_NO

/* clang-format off */
static const struct {
    const char *name;
    enum support support[ADAPTER_COUNT]; /* local, temporal, conductor */
    const char *sentence;
} matrix[CAPABILITY_COUNT] = {
    [CAP_DURABLE_TIMERS] = {"durableTimers", {YES, YES, YES},
        "a sleep or a retry delay survives a restart"},
    [CAP_SIGNALS] = {"signals", {YES, YES, YES},
        "a named signal reaches its run in order and is never lost, also when no step waits yet"},
    [CAP_APPROVALS] = {"approvals", {YES, YES, YES},
        "a step can wait for the decision of a person"},
    [CAP_PAUSE_RESUME] = {"pauseResume", {YES, YES, YES},
        "a run can be paused and resumed, and stays paused over a restart"},
    [CAP_IN_FLIGHT_PAUSE] = {"inFlightPause", {DEGRADED, DEGRADED, DEGRADED},
        "a pause also holds the steps under way, which otherwise finish first"},
    [CAP_CANCELLATION] = {"cancellation", {YES, YES, YES},
        "a cancelled run starts no further step and ends CANCELLED"},
    [CAP_TASK_CANCELLATION] = {"taskCancellation", {EMULATED, EMULATED, EMULATED},
        "a worker outside that holds a task is told when its run is cancelled"},
    [CAP_STEP_RETRY] = {"stepRetry", {YES, YES, YES},
        "a failed step is tried again after the delay that the plan asks for, with jitter"},
    [CAP_STEP_TIMEOUT] = {"stepTimeout", {YES, YES, YES},
        "an attempt that takes too long is ended, in a paused run, too"},
    [CAP_PARALLEL_STEPS] = {"parallelSteps", {YES, YES, YES},
        "steps that do not depend on each other run at once, whatever the shape of the graph"},
    [CAP_OUTSIDE_WORKERS] = {"outsideWorkers", {YES, YES, YES},
        "tasks are carried out by programs of any language that ask for work"},
    [CAP_HTTP_STEPS] = {"httpSteps", {YES, YES, YES},
        "steps of type http are sent without a worker of yours"},
    [CAP_PROCESS_STEPS] = {"processSteps", {YES, YES, YES},
        "steps of type exec run a program on a machine of yours"},
    [CAP_LONG_RUNNING] = {"longRunning", {YES, YES, YES},
        "a run may last for months"},
    [CAP_CONTINUE_AS_NEW] = {"continueAsNew", {YES, YES, NO},
        "the length of a run's history does not limit the run"},
    [CAP_EXACTLY_ONCE_EFFECTS] = {"exactlyOnceEffects", {DEGRADED, DEGRADED, DEGRADED},
        "an effect happens once, whatever fails; degraded: at least once, with a key that tells "
        "repetitions"},
    [CAP_EVENT_HISTORY] = {"eventHistory", {YES, YES, YES},
        "every transition is recorded with its time and can be read in order"},
    [CAP_DYNAMIC_STEPS] = {"dynamicSteps", {NO, NO, NO},
        "a run may gain steps that are not in its plan"},
};

/* Types whose executor is not there yet are refused before the run starts. */
static const bool runs[ADAPTER_COUNT][PLAN_TYPE_COUNT] = {
    [ADAPTER_LOCAL] = {[PLAN_EXEC] = true, [PLAN_HTTP] = true, [PLAN_TASK] = true,
        [PLAN_EFFECT] = true, [PLAN_SLEEP] = true, [PLAN_WAIT] = true, [PLAN_APPROVAL] = true, [PLAN_NOOP] = true},
    [ADAPTER_TEMPORAL] = {[PLAN_EXEC] = true, [PLAN_HTTP] = true, [PLAN_TASK] = true,
        [PLAN_EFFECT] = true, [PLAN_SLEEP] = true, [PLAN_WAIT] = true, [PLAN_APPROVAL] = true, [PLAN_NOOP] = true},
    [ADAPTER_CONDUCTOR] = {[PLAN_EXEC] = true, [PLAN_HTTP] = true, [PLAN_TASK] = true,
        [PLAN_EFFECT] = true, [PLAN_SLEEP] = true, [PLAN_WAIT] = true, [PLAN_APPROVAL] = true, [PLAN_NOOP] = true},
};
/* clang-format on */

/* ---- looking things up ---- */

const char *adapter_name(enum adapter_kind adapter) {
    ASSERT(adapter < ADAPTER_COUNT);
    return adapters[adapter];
}

bool adapter_of(str name, enum adapter_kind *out) {
    for (int i = 0; i < ADAPTER_COUNT; i++) {
        if (!str_eq(name, str_c(adapters[i]))) continue;
        *out = (enum adapter_kind)i;
        return true;
    }
    return false;
}

const char *capability_name(enum capability capability) {
    ASSERT(capability < CAPABILITY_COUNT);
    return matrix[capability].name;
}

const char *capability_sentence(enum capability capability) {
    ASSERT(capability < CAPABILITY_COUNT);
    return matrix[capability].sentence;
}

bool capability_of(str name, enum capability *out) {
    for (int i = 0; i < CAPABILITY_COUNT; i++) {
        if (!str_eq(name, str_c(matrix[i].name))) continue;
        *out = (enum capability)i;
        return true;
    }
    return false;
}

enum support capability_support(enum capability capability, enum adapter_kind adapter) {
    ASSERT(capability < CAPABILITY_COUNT && adapter < ADAPTER_COUNT);
    return matrix[capability].support[adapter];
}

const char *support_name(enum support support) {
    ASSERT(support < COUNT_OF(supports));
    return supports[support];
}

bool adapter_runs(enum adapter_kind adapter, enum plan_type type) {
    ASSERT(adapter < ADAPTER_COUNT && type < PLAN_TYPE_COUNT);
    return runs[adapter][type];
}

void capability_matrix_json(struct buf *out) {
    json_object_begin(out);
    json_name(out, "adapters");
    json_array_begin(out);
    for (int a = 0; a < ADAPTER_COUNT; a++)
        json_add_text(out, str_c(adapters[a]));
    json_array_end(out);
    json_name(out, "capabilities");
    json_array_begin(out);
    for (int i = 0; i < CAPABILITY_COUNT; i++) {
        json_object_begin(out);
        json_put_text(out, "name", str_c(matrix[i].name));
        json_put_text(out, "description", str_c(matrix[i].sentence));
        for (int a = 0; a < ADAPTER_COUNT; a++)
            json_put_text(out, adapters[a], str_c(supports[matrix[i].support[a]]));
        json_object_end(out);
    }
    json_array_end(out);
    json_object_end(out);
}

/* ---- the report ---- */

struct checking {
    const struct plan *plan;
    enum adapter_kind adapter;
    struct arena *arena;
    struct validation_report *report;
    bool no_memory;
};

static void PRINTF_LIKE(5, 6)
    add(struct checking *c, bool is_error, enum reason code, str capability, const char *fmt, ...) {
    char text[ERROR_MSG_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    str message = str_c(n < 0 ? fmt : text);
    size_t bad = message.len;
    if (!str_utf8(message, &bad)) message.len = bad;
    struct report_item item = {.code = code, .capability = capability};
    if (!arena_try_str(c->arena, message, &item.message)) c->no_memory = true;
    if (is_error)
        c->report->errors[c->report->error_count++] = item;
    else
        c->report->warnings[c->report->warning_count++] = item;
}

static void check_capability(struct checking *c, str name) {
    enum capability capability = CAPABILITY_COUNT;
    const char *adapter = adapters[c->adapter];
    enum plan_fallback fallback = c->plan->fallback;
    if (!capability_of(name, &capability)) {
        add(c, true, REASON_CAPABILITY_UNKNOWN, name, "there is no capability \"%.*s\"",
            STR_ARG(name));
        return;
    }
    switch (matrix[capability].support[c->adapter]) {
    case SUPPORT_NO:
        add(c, true, REASON_CAPABILITY_UNSUPPORTED, name,
            "adapter \"%s\" does not have the capability \"%.*s\"", adapter, STR_ARG(name));
        break;
    case SUPPORT_EMULATED:
        add(c, fallback == PLAN_REJECT, REASON_CAPABILITY_EMULATED, name,
            "adapter \"%s\" has the capability \"%.*s\" only emulated", adapter, STR_ARG(name));
        break;
    case SUPPORT_DEGRADED:
        add(c, fallback != PLAN_DEGRADE, REASON_CAPABILITY_DEGRADED, name,
            "adapter \"%s\" has the capability \"%.*s\" only degraded", adapter, STR_ARG(name));
        break;
    case SUPPORT_YES:
        break;
    }
}

/* One error for each type, which names the first step. */
static void check_types(struct checking *c) {
    bool told[PLAN_TYPE_COUNT] = {0};
    for (uint32_t i = 0; i < c->plan->step_count; i++) {
        const struct plan_step *step = &c->plan->steps[i];
        if (runs[c->adapter][step->type] || told[step->type]) continue;
        told[step->type] = true;
        const char *type = plan_type_name(step->type);
        add(c, true, REASON_STEP_TYPE_UNSUPPORTED, str_c(type),
            "adapter \"%s\" cannot run steps of type \"%s\", such as \"%.*s\"",
            adapters[c->adapter], type, STR_ARG(step->id));
    }
}

static void check_plan(struct checking *c) {
    const struct plan *plan = c->plan;
    bool deprecated = false;
    struct error ignored = {0};
    if (!str_eq(plan->target_adapter, STR("any")) &&
        !str_eq(plan->target_adapter, str_c(adapters[c->adapter]))) {
        add(c, true, REASON_TARGET_ADAPTER_MISMATCH, plan->target_adapter,
            "the plan is made for adapter \"%.*s\" and not for \"%s\"",
            STR_ARG(plan->target_adapter), adapters[c->adapter]);
    }
    if (plan_schema_check(plan->schema_version, &deprecated, &ignored) == ST_OK && deprecated) {
        add(c, false, REASON_SCHEMA_VERSION_DEPRECATED, STR_NONE,
            "schemaVersion \"%.*s\" is deprecated: write the plan in " PLAN_SCHEMA_VERSION,
            STR_ARG(plan->schema_version));
    }
    for (uint32_t i = 0; i < plan->capability_count; i++)
        check_capability(c, plan->capabilities[i]);
    check_types(c);
}

status capability_validate(const struct plan *plan, enum adapter_kind adapter, struct arena *arena,
                           struct validation_report *out, struct error *err) {
    ASSERT(adapter < ADAPTER_COUNT);
    size_t most = (size_t)plan->capability_count + PLAN_TYPE_COUNT + 1; /* of either kind */
    struct validation_report report = {.plan_id = plan->plan_id};
    struct checking c = {.plan = plan, .adapter = adapter, .arena = arena, .report = &report};
    report.errors = arena_try(arena, most * sizeof(struct report_item));
    report.warnings = arena_try(arena, most * sizeof(struct report_item));
    c.no_memory = report.errors == NULL || report.warnings == NULL;
    if (!c.no_memory) check_plan(&c);
    if (c.no_memory) return error_set(err, ST_RETRY, "could not check the plan: out of memory");
    if (report.warning_count > 0) report.status = REPORT_WARNINGS;
    if (report.error_count > 0) report.status = REPORT_ERRORS;
    *out = report;
    return ST_OK;
}

const char *report_status_name(enum report_status st) {
    static const char *const names[] = {
        [REPORT_VALID] = "VALID", [REPORT_WARNINGS] = "WARNINGS", [REPORT_ERRORS] = "ERRORS"};
    ASSERT(st < COUNT_OF(names));
    return names[st];
}

static void put_items(const struct report_item *items, size_t count, bool errors, struct buf *out) {
    json_array_begin(out);
    for (size_t i = 0; i < count; i++) {
        json_object_begin(out);
        json_put_text(out, "code", str_c(reason_name(items[i].code)));
        if (errors) json_put_text(out, "capability", items[i].capability);
        json_put_text(out, "message", items[i].message);
        json_object_end(out);
    }
    json_array_end(out);
}

void validation_report_json(const struct validation_report *report, struct buf *out) {
    json_object_begin(out);
    json_put_text(out, "planId", report->plan_id);
    json_put_text(out, "status", str_c(report_status_name(report->status)));
    json_name(out, "errors");
    put_items(report->errors, report->error_count, true, out);
    json_name(out, "warnings");
    put_items(report->warnings, report->warning_count, false, out);
    json_object_end(out);
}
