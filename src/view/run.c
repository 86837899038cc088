/* view/run.c: runs, their steps, and what they wait for. */
#include "view/impl.h"

static const char *run_status_word(int value) { return run_status_name((enum run_status)value); }
static const struct member_words run_words = {RUN_PENDING, RUN_STATUS_COUNT, RUN_NEW,
                                              run_status_word};

/* ---- runs ---- */

static void write_mark(const void *object, const char *name, struct buf *out) {
    const struct run_info *run = object;
    json_put_text(out, name, run->head.inconsistent ? STR("INCONSISTENT") : STR_NONE);
}

static void read_mark(yyjson_val *value, struct arena *arena, void *object) {
    UNUSED(arena);
    ((struct run_info *)object)->head.inconsistent = yyjson_is_str(value);
}

#define OF struct run_info
static const struct member_row run_rows[] = {
    ROW("runId", MEMBER_TEXT, run_id),
    ROW("tenantId", MEMBER_TEXT, tenant_id),
    ROW("projectId", MEMBER_TEXT, project_id),
    ROW("environmentId", MEMBER_TEXT, environment_id),
    ROW("planId", MEMBER_TEXT, plan_id),
    ROW("planVersion", MEMBER_TEXT, plan_version),
    ROW("correlationId", MEMBER_UUID, correlation_id),
    ROW_WORD("status", &run_words, head.status),
    ROW_OWN("mark", write_mark, read_mark),
    ROW("runSeq", MEMBER_INT, head.run_seq),
    ROW("totalSteps", MEMBER_INT, head.total_steps),
    ROW("failedSteps", MEMBER_INT, head.failed_steps),
    ROW("openSteps", MEMBER_INT, head.open_steps),
    ROW("engineAttemptId", MEMBER_INT, head.engine_attempt),
    ROW("openedAt", MEMBER_TIME, opened_us),
    ROW("startedAt", MEMBER_TIME, started_us),
    ROW("completedAt", MEMBER_TIME, ended_us),
    ROW("updatedAt", MEMBER_TIME, updated_us),
};
const struct noun view_run = NOUN("Run", run_rows, OF);
#undef OF

/* ---- steps ---- */

void step_show(const struct step_view *step, int64_t now_us, struct step_shown *out) {
    int64_t end = step->state == STEP_RUNNING ? now_us : step->ended_us;
    *out = (struct step_shown){.step = *step, .duration_ms = -1};
    if (step->started_us > 0 && end > 0) /* (it may have begun since the request did) */
        out->duration_ms = end > step->started_us ? (end - step->started_us) / 1000 : 0;
}

static const char *step_state_word(int value) { return step_state_name((enum step_state)value); }
static const struct member_words step_words = {STEP_PENDING, STEP_STATE_COUNT, STEP_MENTIONED,
                                               step_state_word};

/* Of a step that is tried again; null if it is not known when. */
static void write_retry(const void *object, const char *name, struct buf *out) {
    const struct step_view *step = &((const struct step_shown *)object)->step;
    if (step->retried_us > 0) json_put_time(out, name, step->retry_us);
}

static void read_retry(yyjson_val *value, struct arena *arena, void *object) {
    struct step_view *step = &((struct step_shown *)object)->step;
    UNUSED(arena);
    step->retried_us = step->retry_us = member_time_us(value);
}

#define OF struct step_shown
static const struct member_row step_rows[] = {
    ROW("stepId", MEMBER_TEXT, step.id),
    ROW("type", MEMBER_TEXT, step.type),
    ROW_WORD("state", &step_words, step.state),
    ROW("logicalAttemptId", MEMBER_INT, step.attempt),
    ROW("startedAt", MEMBER_TIME, step.started_us),
    ROW("endedAt", MEMBER_TIME, step.ended_us),
    ROW_IF("durationMs", MEMBER_SPAN, duration_ms),
    ROW_OWN_IF("retryAt", write_retry, read_retry),
    ROW("code", MEMBER_TEXT, step.code),
    ROW("message", MEMBER_TEXT, step.message),
    ROW_IF("output", MEMBER_JSON, output),
};
const struct noun view_step = NOUN("Step", step_rows, OF);
#undef OF

/* ---- what a run does, and what it waits for ---- */

static const char *wait_word(int value) { return wait_kind_name((enum wait_kind)value); }
static const struct member_words wait_words = {0, WAIT_KIND_COUNT, WAIT_ENGINE, wait_word};

#define OF struct wait
static const struct member_row wait_rows[] = {
    ROW_WORD("kind", &wait_words, kind),    ROW_IF("stepId", MEMBER_TEXT, step),
    ROW_IF("on", MEMBER_TEXT, on),          ROW_IF("since", MEMBER_TIME, since_us),
    ROW_IF("until", MEMBER_TIME, until_us), ROW_IF("detail", MEMBER_TEXT, detail),
};
const struct noun view_wait = NOUN("Wait", wait_rows, OF);
#undef OF

static void write_waits(const void *object, const char *name, struct buf *out) {
    const struct explanation *x = object;
    json_name(out, name);
    json_array_begin(out);
    for (size_t i = 0; i < x->count; i++)
        view_write(&view_wait, &x->waits[i], out);
    json_array_end(out);
}

static void read_waits(yyjson_val *value, struct arena *arena, void *object) {
    struct explanation *x = object;
    x->waits = view_read_all(&view_wait, value, arena, &x->count);
}

static void write_alive(const void *object, const char *name, struct buf *out) {
    const struct explanation *x = object;
    if (x->node.ptr) json_put_bool(out, name, x->alive);
}

static void read_alive(yyjson_val *value, struct arena *arena, void *object) {
    UNUSED(arena);
    ((struct explanation *)object)->alive = yyjson_is_true(value);
}

static void write_wake(const void *object, const char *name, struct buf *out) {
    const struct explanation *x = object;
    if (x->wakes && x->wake_us == 0)
        json_put_text(out, name, STR("now"));
    else
        json_put_time_if(out, name, x->wake_us);
}

static void read_wake(yyjson_val *value, struct arena *arena, void *object) {
    struct explanation *x = object;
    UNUSED(arena);
    x->wakes = yyjson_is_str(value);
    x->wake_us = member_time_us(value); /* 0 for "now" */
}

/* The snapshot comes first, so one table serves both. */
#define OF struct explanation
static const struct member_row explanation_rows[] = {
    ROW("runId", MEMBER_TEXT, snapshot.run_id),
    ROW_WORD("status", &run_words, snapshot.status),
    ROW_IF("substatus", MEMBER_TEXT, snapshot.substatus),
    ROW_IF("message", MEMBER_TEXT, snapshot.message),
    ROW_IF("startedAt", MEMBER_TIME, snapshot.started_us),
    ROW_IF("completedAt", MEMBER_TIME, snapshot.completed_us),
    ROW_OWN("waits", write_waits, read_waits),
    ROW_IF("node", MEMBER_TEXT, node),
    ROW_OWN_IF("nodeAlive", write_alive, read_alive),
    ROW_OWN_IF("nextWake", write_wake, read_wake),
};
const struct noun view_explanation = NOUN("Explanation", explanation_rows, OF);
#undef OF
enum { SNAPSHOT_ROWS = 6 };
static_assert(offsetof(struct explanation, snapshot) == 0, "a snapshot begins an explanation");
const struct noun view_snapshot = {NULL, explanation_rows, SNAPSHOT_ROWS,
                                   sizeof(struct run_snapshot)};
