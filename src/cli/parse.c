#include "cli/parse.h"

#include "api/auth.h"
#include "base/json.h"
#include "base/time.h"

enum kind { TEXT, NUMBER, TIME, ID };
struct member {
    const char *name;
    enum kind kind;
    size_t offset; /* of a str, an int64_t (a time: microseconds), a uuid */
};
#define READ(obj, table, to) read_members(obj, table, COUNT_OF(table), to)

static int64_t time_us(yyjson_val *val) {
    str text = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    return json_str(val, &text) && time_parse_utc(text, &ns, &digits) ? ns / 1000 : 0;
}

static void read_members(yyjson_val *obj, const struct member *members, size_t count, void *to) {
    for (size_t i = 0; i < count; i++) {
        yyjson_val *val = json_member(obj, members[i].name);
        char *at = (char *)to + members[i].offset;
        str text = STR_NONE;
        int64_t number = 0;
        uuid id;
        (void)json_str(val, &text);
        switch (members[i].kind) {
        case TEXT:
            memcpy(at, &text, sizeof(text));
            break;
        case NUMBER:
            if (json_int(val, &number)) memcpy(at, &number, sizeof(number));
            break;
        case TIME:
            number = time_us(val);
            memcpy(at, &number, sizeof(number));
            break;
        case ID:
            if (text.ptr && uuid_parse(text, &id)) memcpy(at, &id, sizeof(id));
            break;
        }
    }
}

static bool is_true(yyjson_val *obj, const char *name) {
    return yyjson_is_true(json_member(obj, name));
}

static str text_of(yyjson_val *obj, const char *name) {
    str text = STR_NONE;
    (void)json_str(json_member(obj, name), &text);
    return text;
}

static enum run_status run_status_of(str name) {
    for (int i = RUN_PENDING; i < RUN_STATUS_COUNT; i++) {
        if (str_eq(name, str_c(run_status_name((enum run_status)i)))) return (enum run_status)i;
    }
    return RUN_NEW;
}

static enum step_state step_state_of(str name) {
    for (int i = STEP_PENDING; i < STEP_STATE_COUNT; i++) {
        if (str_eq(name, str_c(step_state_name((enum step_state)i)))) return (enum step_state)i;
    }
    return STEP_MENTIONED;
}

/* ---- runs ---- */

#define RUN(name, kind, field)                                                                     \
    { name, kind, offsetof(struct run_info, field) }
static const struct member run_members[] = {
    RUN("runId", TEXT, run_id),
    RUN("tenantId", TEXT, tenant_id),
    RUN("projectId", TEXT, project_id),
    RUN("environmentId", TEXT, environment_id),
    RUN("planId", TEXT, plan_id),
    RUN("planVersion", TEXT, plan_version),
    RUN("correlationId", ID, correlation_id),
    RUN("runSeq", NUMBER, head.run_seq),
    RUN("totalSteps", NUMBER, head.total_steps),
    RUN("failedSteps", NUMBER, head.failed_steps),
    RUN("openSteps", NUMBER, head.open_steps),
    RUN("engineAttemptId", NUMBER, head.engine_attempt),
    RUN("openedAt", TIME, opened_us),
    RUN("startedAt", TIME, started_us),
    RUN("completedAt", TIME, ended_us),
    RUN("updatedAt", TIME, updated_us),
};

void parse_run(yyjson_val *obj, struct run_info *out) {
    *out = (struct run_info){0};
    READ(obj, run_members, out);
    out->head.status = run_status_of(text_of(obj, "status"));
    out->head.inconsistent = text_of(obj, "mark").ptr != NULL;
}

#define STEP(name, kind, field)                                                                    \
    { name, kind, offsetof(struct step_view, field) }
static const struct member step_members[] = {
    STEP("stepId", TEXT, id),
    STEP("type", TEXT, type),
    STEP("logicalAttemptId", NUMBER, attempt),
    STEP("startedAt", TIME, started_us),
    STEP("endedAt", TIME, ended_us),
    STEP("retryAt", TIME, retry_us),
    STEP("code", TEXT, code),
    STEP("message", TEXT, message),
};

void parse_step(yyjson_val *obj, struct step_view *out) {
    *out = (struct step_view){0};
    READ(obj, step_members, out);
    out->state = step_state_of(text_of(obj, "state"));
    out->retried_us = out->retry_us; /* it is told only of a step that is retried */
}

#define SNAPSHOT(name, kind, field)                                                                \
    { name, kind, offsetof(struct run_snapshot, field) }
static const struct member snapshot_members[] = {
    SNAPSHOT("runId", TEXT, run_id),
    SNAPSHOT("substatus", TEXT, substatus),
    SNAPSHOT("message", TEXT, message),
    SNAPSHOT("startedAt", TIME, started_us),
    SNAPSHOT("completedAt", TIME, completed_us),
};
#define WAIT(name, kind, field)                                                                    \
    { name, kind, offsetof(struct wait, field) }
static const struct member wait_members[] = {
    WAIT("stepId", TEXT, step),    WAIT("on", TEXT, on),         WAIT("since", TIME, since_us),
    WAIT("until", TIME, until_us), WAIT("detail", TEXT, detail),
};

static void parse_wait(yyjson_val *obj, struct wait *out) {
    str kind = text_of(obj, "kind");
    *out = (struct wait){.kind = WAIT_ENGINE};
    READ(obj, wait_members, out);
    for (int i = 0; i < WAIT_KIND_COUNT; i++) {
        if (str_eq(kind, str_c(wait_kind_name((enum wait_kind)i)))) out->kind = (enum wait_kind)i;
    }
}

void parse_explanation(yyjson_val *obj, struct arena *arena, struct explanation *out) {
    yyjson_val *waits = json_member(obj, "waits");
    yyjson_val *item;
    size_t i;
    size_t max;
    str wake = text_of(obj, "nextWake");
    *out = (struct explanation){.node = text_of(obj, "node"), .alive = is_true(obj, "nodeAlive")};
    READ(obj, snapshot_members, &out->snapshot);
    out->snapshot.status = run_status_of(text_of(obj, "status"));
    out->waits = ARENA_ARRAY(arena, struct wait, yyjson_arr_size(waits) + 1);
    yyjson_arr_foreach(waits, i, max, item) { parse_wait(item, &out->waits[out->count++]); }
    out->wakes = wake.ptr != NULL;
    out->wake_us = time_us(json_member(obj, "nextWake")); /* 0 for "now" */
}

/* ---- events ---- */

#define EVENT(name, kind, field)                                                                   \
    { name, kind, offsetof(struct event_record, field) }
static const struct member event_members[] = {
    EVENT("eventId", ID, event.event_id),
    EVENT("eventType", TEXT, event.type_name),
    EVENT("runId", TEXT, event.run_id),
    EVENT("tenantId", TEXT, event.tenant_id),
    EVENT("projectId", TEXT, event.project_id),
    EVENT("environmentId", TEXT, event.environment_id),
    EVENT("planId", TEXT, event.plan_id),
    EVENT("planVersion", TEXT, event.plan_version),
    EVENT("engineAttemptId", NUMBER, event.engine_attempt),
    EVENT("logicalAttemptId", NUMBER, event.logical_attempt),
    EVENT("stepId", TEXT, event.subject),
    EVENT("runSeq", NUMBER, run_seq),
    EVENT("persistedAt", TIME, persisted_us),
    EVENT("sequenceNumber", NUMBER, seq),
    EVENT("correlationId", ID, correlation_id),
    EVENT("causationId", ID, cause_id),
    EVENT("actor", TEXT, actor),
};

/* The signal or effect of a fact stands in aggregateId; of other events it is the run or the step.
 */
static str subject_of(yyjson_val *obj, const struct event_record *rec) {
    str subject = text_of(obj, "aggregateId");
    bool fact = event_type_is_fact(rec->event.type);
    return fact && !str_eq(subject, rec->event.run_id) ? subject : STR_NONE;
}

void parse_event(yyjson_val *obj, struct arena *arena, struct event_record *out) {
    yyjson_val *payload = json_member(obj, "payload");
    struct event *e = &out->event;
    *out = (struct event_record){0};
    READ(obj, event_members, out);
    e->type = event_type_of(e->type_name);
    (void)time_parse_utc(text_of(obj, "emittedAt"), &e->emitted_ns, &e->emitted_digits);
    (void)hex_decode(text_of(obj, "idempotencyKey"), e->key, sizeof(e->key));
    if (payload) e->payload = json_text(payload, arena);
    if (!e->subject.ptr) e->subject = subject_of(obj, out);
    if (out->seq == 0) out->seq = out->run_seq;
    if (json_member(obj, "causationId")) out->cause_seq = 1; /* that there is one */
}

#define ALERT(name, kind, field)                                                                   \
    { name, kind, offsetof(struct alert, field) }
static const struct member alert_members[] = {
    ALERT("runId", TEXT, run_id),
    ALERT("tenantId", TEXT, tenant_id),
    ALERT("projectId", TEXT, project_id),
    ALERT("environmentId", TEXT, environment_id),
    ALERT("eventId", ID, event_id),
    ALERT("eventType", TEXT, event_type),
    ALERT("persistedAt", TIME, persisted_us),
    ALERT("priorState", TEXT, prior),
    ALERT("attemptedState", TEXT, attempted),
    ALERT("stepId", TEXT, step_id),
    ALERT("runSeq", NUMBER, run_seq),
};
void parse_alert(yyjson_val *obj, struct alert *out) {
    *out = (struct alert){0};
    READ(obj, alert_members, out);
}

#define RESULT(name, kind, field)                                                                  \
    { name, kind, offsetof(struct append_result, field) }
static const struct member result_members[] = {
    RESULT("eventId", ID, event_id),
    RESULT("runSeq", NUMBER, run_seq),
    RESULT("persistedAt", TIME, persisted_us),
};
void parse_result(yyjson_val *obj, struct append_result *out) {
    *out = (struct append_result){.duplicate = is_true(obj, "duplicate")};
    READ(obj, result_members, out);
}

/* ---- care ---- */

#define STATS(name, field)                                                                         \
    { name, NUMBER, offsetof(struct ledger_stats, field) }
static const struct member stats_members[] = {
    STATS("tenants", tenants),
    STATS("runs", runs),
    STATS("openRuns", open_runs),
    STATS("events", events),
    STATS("alerts", alerts),
    STATS("rejections", rejections),
    STATS("checkpoints", checkpoints),
    STATS("bytes", bytes),
    STATS("effectsWaiting", effects_waiting),
    STATS("effectsDead", effects_dead),
};
void parse_stats(yyjson_val *obj, struct ledger_stats *out) {
    *out = (struct ledger_stats){0};
    READ(obj, stats_members, out);
}

#define REPORT(name, kind, field)                                                                  \
    { name, kind, offsetof(struct verify_report, field) }
static const struct member report_members[] = {
    REPORT("events", NUMBER, events),      REPORT("runs", NUMBER, runs),
    REPORT("sequenceNumber", NUMBER, seq), REPORT("tenantId", TEXT, tenant_id),
    REPORT("runId", TEXT, run_id),
};
void parse_report(yyjson_val *obj, struct verify_report *out) {
    *out = (struct verify_report){.damaged = is_true(obj, "damaged")};
    READ(obj, report_members, out);
    snprintf(out->what, sizeof(out->what), "%.*s", STR_ARG(text_of(obj, "what")));
}

/* ---- keys and the audit trail ---- */

#define KEY(name, kind, field)                                                                     \
    { name, kind, offsetof(struct api_key, field) }
static const struct member key_members[] = {
    KEY("keyId", TEXT, key_id),         KEY("name", TEXT, name),
    KEY("tenantId", TEXT, tenant_id),   KEY("createdAt", TIME, created_us),
    KEY("expiresAt", TIME, expires_us), KEY("lastUsedAt", TIME, used_us),
    KEY("revokedAt", TIME, revoked_us), KEY("createdBy", TEXT, created_by),
};
void parse_key(yyjson_val *obj, struct api_key *out) {
    yyjson_val *item;
    size_t i;
    size_t max;
    *out = (struct api_key){0};
    READ(obj, key_members, out);
    yyjson_arr_foreach(json_member(obj, "roles"), i, max, item) {
        str role = STR_NONE;
        if (json_str(item, &role)) out->roles |= role_of(role);
    }
}

#define AUDIT(name, kind, field)                                                                   \
    { name, kind, offsetof(struct audit_entry, field) }
static const struct member audit_members[] = {
    AUDIT("auditNo", NUMBER, audit_no),
    AUDIT("at", TIME, at_us),
    AUDIT("tenantId", TEXT, tenant_id),
    AUDIT("actor", TEXT, actor),
    AUDIT("remote", TEXT, remote),
    AUDIT("requestId", TEXT, request_id),
    AUDIT("action", TEXT, action),
    AUDIT("target", TEXT, target),
    AUDIT("outcome", TEXT, outcome),
    AUDIT("code", TEXT, code),
    AUDIT("reason", TEXT, reason),
    AUDIT("projectId", TEXT, project_id),
    AUDIT("environmentId", TEXT, environment_id),
    AUDIT("runId", TEXT, run_id),
    AUDIT("engineAttemptId", NUMBER, engine_attempt),
    AUDIT("logicalAttemptId", NUMBER, logical_attempt),
};
void parse_audit(yyjson_val *obj, struct audit_entry *out) {
    *out = (struct audit_entry){0};
    READ(obj, audit_members, out);
}

/* ---- effects ---- */

#define EFFECT(name, kind, field)                                                                  \
    { name, kind, offsetof(struct effect_info, field) }
static const struct member effect_members[] = {
    EFFECT("effectId", ID, effect.id),
    EFFECT("effectType", TEXT, effect.type),
    EFFECT("tenantId", TEXT, tenant_id),
    EFFECT("runId", TEXT, run_id),
    EFFECT("stepId", TEXT, step_id),
    EFFECT("idempotencyKey", TEXT, key),
    EFFECT("executions", NUMBER, effect.executions),
    EFFECT("retryCount", NUMBER, effect.retry_count),
    EFFECT("maxRetries", NUMBER, effect.max_retries),
    EFFECT("baseDelayMs", NUMBER, effect.base_ms),
    EFFECT("createdAt", TIME, effect.created_us),
    EFFECT("processedAt", TIME, effect.processed_us),
    EFFECT("correlationId", ID, correlation),
};
void parse_effect(yyjson_val *obj, struct arena *arena, struct effect_info *out) {
    const struct {
        const char *name;
        str *to;
    } values[] = {{"payload", &out->payload}, {"result", &out->result}, {"error", &out->error}};
    *out = (struct effect_info){0};
    READ(obj, effect_members, out);
    out->effect.status = outbox_status_named(text_of(obj, "status"));
    const char *due = out->effect.status == OUTBOX_FAILED ? "nextRetryAt" : "leaseUntil";
    out->effect.due_us = time_us(json_member(obj, due));
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        yyjson_val *value = json_member(obj, values[i].name);
        if (value) *values[i].to = json_text(value, arena);
    }
}
