/* view/work.c: what is to be done and who does it: effects, tasks, nodes. */
#include "adapters/trace.h"
#include "base/base64.h"
#include "view/impl.h"

/* ---- effects ---- */

static const char *outbox_word(int value) { return outbox_status_name((enum outbox_status)value); }
static const struct member_words outbox_words = {OUTBOX_PENDING, OUTBOX_STATUS_COUNT, OUTBOX_NONE,
                                                 outbox_word};

/* One time has two names: which it is depends on the status. */
static void put_due(const void *object, enum outbox_status when, const char *name,
                    struct buf *out) {
    const struct effect *e = &((const struct effect_info *)object)->effect;
    if (e->status == when) json_put_time_if(out, name, e->due_us);
}

static void write_next_retry(const void *object, const char *name, struct buf *out) {
    put_due(object, OUTBOX_FAILED, name, out);
}

static void write_lease_until(const void *object, const char *name, struct buf *out) {
    put_due(object, OUTBOX_PROCESSING, name, out);
}

static void read_due(yyjson_val *value, struct arena *arena, void *object) {
    UNUSED(arena);
    ((struct effect_info *)object)->effect.due_us = member_time_us(value);
}

#define OF struct effect_info
static const struct member_row effect_rows[] = {
    ROW("effectId", MEMBER_UUID, effect.id),
    ROW("effectType", MEMBER_TEXT, effect.type),
    ROW_WORD("status", &outbox_words, effect.status),
    ROW("tenantId", MEMBER_TEXT, tenant_id),
    ROW("runId", MEMBER_TEXT, run_id),
    ROW_IF("stepId", MEMBER_TEXT, step_id),
    ROW("idempotencyKey", MEMBER_TEXT, key),
    ROW("executions", MEMBER_INT, effect.executions),
    ROW("retryCount", MEMBER_INT, effect.retry_count),
    ROW("maxRetries", MEMBER_INT, effect.max_retries),
    ROW("baseDelayMs", MEMBER_INT, effect.base_ms),
    ROW("createdAt", MEMBER_TIME, effect.created_us),
    ROW_OWN_IF("nextRetryAt", write_next_retry, read_due),
    ROW_OWN_IF("leaseUntil", write_lease_until, read_due),
    ROW_IF("processedAt", MEMBER_TIME, effect.processed_us),
    ROW("correlationId", MEMBER_UUID, correlation),
    ROW("payload", MEMBER_JSON, payload),
    ROW_IF("result", MEMBER_JSON, result),
    ROW_IF("error", MEMBER_JSON, error),
};
const struct noun view_effect = NOUN("Effect", effect_rows, OF);
#undef OF

/* ---- tasks ---- */

static void write_token(const void *object, const char *name, struct buf *out) {
    char text[TASK_REF_MAX];
    struct buf plain;
    buf_init_fixed(&plain, text, sizeof(text));
    task_ref_write(&plain, &((const struct task *)object)->ref);
    json_name(out, name);
    buf_put_char(out, '"');
    base64url_write(out, plain.ptr, plain.len);
    buf_put_char(out, '"');
}

static void read_token(yyjson_val *value, struct arena *arena, void *object) {
    struct task_ref *ref = &((struct task *)object)->ref;
    str text = STR_NONE;
    str plain = STR_NONE;
    if (json_str(value, &text) && base64url_read(text, arena, &plain))
        (void)task_ref_read(plain, ref);
}

static void write_trace(const void *object, const char *name, struct buf *out) {
    const struct task *t = object;
    char text[TRACE_PARENT_LEN];
    if (trace_parent(t->correlation, t->ref.run_id, t->ref.step_id, t->ref.attempt, text))
        json_put_text(out, name, str_n(text, sizeof(text)));
}

/* "00-", then the run's correlation. */
static void read_trace(yyjson_val *value, struct arena *arena, void *object) {
    struct task *t = object;
    str text = STR_NONE;
    UNUSED(arena);
    if (json_str(value, &text) && text.len == TRACE_PARENT_LEN)
        (void)hex_decode(str_n(text.ptr + 3, 2 * sizeof(t->correlation.b)), t->correlation.b,
                         sizeof(t->correlation.b));
}

#define OF struct task
static const struct member_row task_rows[] = {
    ROW_OWN("task", write_token, read_token),
    ROW("runId", MEMBER_TEXT, ref.run_id),
    ROW("stepId", MEMBER_TEXT, ref.step_id),
    ROW("attempt", MEMBER_INT, ref.attempt),
    ROW("lease", MEMBER_INT, ref.lease),
    ROW("tenantId", MEMBER_TEXT, tenant_id),
    ROW("queue", MEMBER_TEXT, queue),
    ROW("input", MEMBER_JSON, input),
    ROW("leaseUntil", MEMBER_TIME, lease_until_us),
    ROW_OWN_IF("traceparent", write_trace, read_trace),
};
const struct noun view_task = NOUN("Task", task_rows, OF);
#undef OF

/* ---- nodes ---- */

#define OF struct node_shown
static const struct member_row node_rows[] = {
    ROW("version", MEMBER_TEXT, version),  ROW("node", MEMBER_TEXT, node),
    ROW("pid", MEMBER_INT, pid),           ROW("runs", MEMBER_INT, runs),
    ROW("attempts", MEMBER_INT, attempts), ROW("tasks", MEMBER_INT, tasks),
    ROW("polls", MEMBER_INT, polls),       ROW("connections", MEMBER_INT, connections),
    ROW("requests", MEMBER_INT, requests), ROW("streams", MEMBER_INT, streams),
};
const struct noun view_node = NOUN("NodeStatus", node_rows, OF);
#undef OF
