/* view/access.c: API keys and the audit trail. */
#include "core/role.h"
#include "view/impl.h"

static void write_roles(const void *object, const char *name, struct buf *out) {
    json_name(out, name);
    roles_json(((const struct api_key *)object)->roles, out);
}

static void read_roles(yyjson_val *value, struct arena *arena, void *object) {
    struct api_key *key = object;
    yyjson_val *item;
    size_t i;
    size_t max;
    UNUSED(arena);
    yyjson_arr_foreach(value, i, max, item) {
        str role = STR_NONE;
        if (json_str(item, &role)) key->roles |= role_of(role);
    }
}

#define OF struct api_key
static const struct member_row key_rows[] = {
    ROW("keyId", MEMBER_TEXT, key_id),         ROW("name", MEMBER_TEXT, name),
    ROW("tenantId", MEMBER_TEXT, tenant_id),   ROW_OWN("roles", write_roles, read_roles),
    ROW("createdAt", MEMBER_TIME, created_us), ROW("expiresAt", MEMBER_TIME, expires_us),
    ROW("lastUsedAt", MEMBER_TIME, used_us),   ROW("revokedAt", MEMBER_TIME, revoked_us),
    ROW("createdBy", MEMBER_TEXT, created_by),
};
const struct noun view_key = NOUN("Key", key_rows, OF);
#undef OF

#define OF struct audit_entry
static const struct member_row audit_rows[] = {
    ROW("auditNo", MEMBER_INT, audit_no),
    ROW("at", MEMBER_TIME, at_us),
    ROW("tenantId", MEMBER_TEXT, tenant_id),
    ROW("actor", MEMBER_TEXT, actor),
    ROW("remote", MEMBER_TEXT, remote),
    ROW("requestId", MEMBER_TEXT, request_id),
    ROW("action", MEMBER_TEXT, action),
    ROW("target", MEMBER_TEXT, target),
    ROW("outcome", MEMBER_TEXT, outcome),
    ROW_IF("code", MEMBER_TEXT, code),
    ROW_IF("reason", MEMBER_TEXT, reason),
    ROW_IF("projectId", MEMBER_TEXT, project_id),
    ROW_IF("environmentId", MEMBER_TEXT, environment_id),
    ROW_IF("runId", MEMBER_TEXT, run_id),
    ROW_IF("engineAttemptId", MEMBER_INT, engine_attempt),
    ROW_IF("logicalAttemptId", MEMBER_INT, logical_attempt),
};
const struct noun view_audit = NOUN("AuditEntry", audit_rows, OF);
#undef OF
