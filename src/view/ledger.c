/* view/ledger.c: what the ledger answers to a writer, and what it says about itself. */
#include "view/impl.h"

#define OF struct append_result
static const struct member_row result_rows[] = {
    ROW("eventId", MEMBER_UUID, event_id),
    ROW("runSeq", MEMBER_INT, run_seq),
    ROW("persistedAt", MEMBER_TIME, persisted_us),
    ROW("duplicate", MEMBER_BOOL, duplicate),
};
const struct noun view_result = NOUN("AppendResult", result_rows, OF);
const struct noun view_checkpoint = {"Checkpoint", result_rows, COUNT_OF(result_rows) - 1,
                                     sizeof(OF)}; /* never a duplicate */
#undef OF

static void write_code(const void *object, const char *name, struct buf *out) {
    UNUSED(object);
    json_put_text(out, name, STR("INVALID_TRANSITION"));
}

#define OF struct alert
static const struct member_row alert_rows[] = {
    ROW_OWN("code", write_code, NULL),
    ROW("runId", MEMBER_TEXT, run_id),
    ROW("tenantId", MEMBER_TEXT, tenant_id),
    ROW("projectId", MEMBER_TEXT, project_id),
    ROW("environmentId", MEMBER_TEXT, environment_id),
    ROW("eventId", MEMBER_UUID, event_id),
    ROW("eventType", MEMBER_TEXT, event_type),
    ROW("persistedAt", MEMBER_TIME, persisted_us),
    ROW_IF("priorState", MEMBER_TEXT, prior),
    ROW_IF("attemptedState", MEMBER_TEXT, attempted),
    ROW_IF("stepId", MEMBER_TEXT, step_id),
    ROW("runSeq", MEMBER_INT, run_seq),
};
const struct noun view_alert = NOUN("Alert", alert_rows, OF);
#undef OF

#define OF struct ledger_stats
static const struct member_row stats_rows[] = {
    ROW("tenants", MEMBER_INT, tenants),
    ROW("runs", MEMBER_INT, runs),
    ROW("openRuns", MEMBER_INT, open_runs),
    ROW("events", MEMBER_INT, events),
    ROW("alerts", MEMBER_INT, alerts),
    ROW("rejections", MEMBER_INT, rejections),
    ROW("checkpoints", MEMBER_INT, checkpoints),
    ROW("effectsWaiting", MEMBER_INT, effects_waiting),
    ROW("effectsDead", MEMBER_INT, effects_dead),
    ROW("bytes", MEMBER_INT, bytes),
};
const struct noun view_stats = NOUN("Stats", stats_rows, OF);
#undef OF

#define OF struct verify_report
static const struct member_row report_rows[] = {
    ROW("damaged", MEMBER_BOOL, damaged),
    ROW("events", MEMBER_INT, events),
    ROW("runs", MEMBER_INT, runs),
    ROW("state", MEMBER_BOOL, state),
    {"what", MEMBER_CHARS, true, offsetof(OF, what), sizeof(((OF *)NULL)->what), NULL, NULL},
    ROW_IF("tenantId", MEMBER_TEXT, tenant_id),
    ROW_IF("sequenceNumber", MEMBER_INT, seq),
    ROW_IF("runId", MEMBER_TEXT, run_id),
};
const struct noun view_report = NOUN("VerifyReport", report_rows, OF);
#undef OF
