/* Receipts, the audit trail, plans. */
#include "ledger/access/access.h"

#include "core/plan.h"
#include "ledger/access/riders.h"
#include "ledger/handle.h"

/* ---- receipts ---- */

/* All but scope and key. */
static status read_receipt(struct db_stmt *q, struct arena *arena, struct receipt *out,
                           struct error *err) {
    struct receipt r = *out;
    r.http_status = (int)db_int(q, 1);
    r.created_us = db_int(q, 4);
    str fingerprint = db_blob(q, 0);
    if (fingerprint.len != SHA256_LEN)
        return error_at(err, REASON_LEDGER_DAMAGED, "", "a receipt's fingerprint has %zu bytes",
                        fingerprint.len);
    memcpy(r.fingerprint, fingerprint.ptr, SHA256_LEN);
    if (!arena_try_str(arena, db_blob(q, 2), &r.body) ||
        !arena_try_str(arena, db_blob(q, 3), &r.location))
        return ledger_no_memory(err);
    *out = r;
    return ST_OK;
}

status receipt_list(struct ledger *l, str scope, str key, size_t limit, struct arena *arena,
                    struct receipt **out, size_t *count, struct error *err) {
    struct db_stmt *q = NULL;
    struct receipt found = {0};
    struct receipt *list = arena_try(arena, (limit > 0 ? limit : 1) * sizeof(*list));
    size_t n = 0;
    bool row = false;
    if (!list || !arena_try_str(arena, scope, &found.scope) ||
        !arena_try_str(arena, key, &found.key))
        return ledger_no_memory(err);
    status st = db_prepare(l->db,
                           "SELECT fingerprint, http_status, body, location, created_us"
                           " FROM api_receipt WHERE tag = $1 AND scope = $2 AND key = $3"
                           " AND created_us > $4 ORDER BY receipt_no LIMIT $5",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, receipt_tag(l, scope, key));
    db_bind_blob(q, 2, scope.ptr ? scope : STR(""));
    db_bind_blob(q, 3, key.ptr ? key : STR(""));
    db_bind_int(q, 4, ledger_now_us(l) - RECEIPT_KEEP_US);
    db_bind_int(q, 5, (int64_t)limit);
    while (n < limit && (st = db_step(q, &row, err)) == ST_OK && row) {
        list[n].scope = found.scope;
        list[n].key = found.key;
        st = read_receipt(q, arena, &list[n], err);
        if (st != ST_OK) break;
        n++;
    }
    db_reset(q);
    if (st != ST_OK) return st;
    *out = list;
    *count = n;
    return ST_OK;
}

status receipt_find(struct ledger *l, str scope, str key, struct arena *arena, struct receipt *out,
                    struct error *err) {
    struct receipt *found = NULL;
    size_t count = 0;
    status st = receipt_list(l, scope, key, 1, arena, &found, &count, err);
    if (st != ST_OK) return st;
    if (count == 0) return error_set(err, ST_NOT_FOUND, "there is no receipt for this key");
    *out = found[0];
    return ST_OK;
}

struct sweep {
    int64_t limit, changed;
};

/* From the oldest on: rows are numbered as they come, so no index over the time is needed. Nodes
 * sweep past each other. */
static status sweep_body(struct ledger *l, void *context, struct error *err) {
    struct sweep *s = context;
    struct db_stmt *del = NULL;
    status st = db_prepare(l->db,
                           "DELETE FROM api_receipt WHERE created_us <= $1 AND receipt_no IN"
                           " (SELECT receipt_no FROM api_receipt ORDER BY receipt_no LIMIT $2"
                           "{postgres: FOR UPDATE SKIP LOCKED})",
                           &del, err);
    if (st != ST_OK) return st;
    db_bind_int(del, 1, ledger_now_us(l) - RECEIPT_KEEP_US);
    db_bind_int(del, 2, s->limit);
    st = db_run(del, &s->changed, err);
    db_reset(del);
    return st;
}

status receipt_sweep(struct ledger *l, size_t limit, bool *more, struct error *err) {
    ASSERT(limit > 0);
    struct sweep s = {.limit = (int64_t)limit};
    status st = ledger_transact(l, sweep_body, &s, err);
    if (st == ST_OK) *more = s.changed == s.limit;
    return st;
}

/* ---- the audit trail ---- */

/* clang-format off */
#define AUDIT_SELECT                                                                               \
    "SELECT tenant_id, actor, remote, request_id, action, target, outcome, code, reason, project_id,"  \
    " environment_id, run_id, audit_no, at_us, engine_attempt, logical_attempt FROM ledger_audit"
/* clang-format on */

static status read_audit(struct db_stmt *q, struct arena *arena, struct audit_entry *out,
                         struct error *err) {
    struct audit_entry a = {.audit_no = db_int(q, 12),
                            .at_us = db_int(q, 13),
                            .engine_attempt = db_int(q, 14),
                            .logical_attempt = db_int(q, 15)};
    str *texts[] = {&a.tenant_id, &a.actor, &a.remote, &a.request_id, &a.action,         &a.target,
                    &a.outcome,   &a.code,  &a.reason, &a.project_id, &a.environment_id, &a.run_id};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!arena_try_str(arena, db_text(q, (int)i), texts[i])) return ledger_no_memory(err);
    }
    *out = a;
    return ST_OK;
}

status audit_list(struct ledger *l, str tenant_id, int64_t before_no, size_t limit,
                  struct arena *arena, struct audit_entry **out, size_t *count, struct error *err) {
    struct db_stmt *q = NULL;
    if (limit > AUDIT_PAGE_MAX) limit = AUDIT_PAGE_MAX;
    struct audit_entry *list = arena_try(arena, (limit > 0 ? limit : 1) * sizeof(*list));
    if (!list) return ledger_no_memory(err);
    /* Two statements: a condition that may be absent would keep the planner from the index. */
    status st =
        tenant_id.ptr
            ? db_prepare(l->db,
                         AUDIT_SELECT " WHERE audit_no < $1 AND tenant_id = $3"
                                      " ORDER BY audit_no DESC LIMIT $2",
                         &q, err)
            : db_prepare(l->db, AUDIT_SELECT " WHERE audit_no < $1 ORDER BY audit_no DESC LIMIT $2",
                         &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, before_no > 0 ? before_no : INT64_MAX);
    db_bind_int(q, 2, (int64_t)limit);
    if (tenant_id.ptr) db_bind_text(q, 3, tenant_id);
    size_t n = 0;
    bool row = false;
    while (n < limit && (st = db_step(q, &row, err)) == ST_OK && row) {
        st = read_audit(q, arena, &list[n], err);
        if (st != ST_OK) break;
        n++;
    }
    db_reset(q);
    if (st != ST_OK) return st;
    *out = list;
    *count = n;
    return ST_OK;
}

/* ---- plans ---- */

struct plan_put {
    str tenant_id, hash, bytes;
    const struct append_rider *riders;
    bool existed;
};

static status put_body(struct ledger *l, void *context, struct error *err) {
    struct plan_put *p = context;
    struct db_stmt *ins = NULL;
    int64_t changed = 0;
    status st = db_prepare(l->db,
                           "INSERT INTO ledger_plan(sha256, tenant_id, bytes, created_us)"
                           " VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
                           &ins, err);
    if (st != ST_OK) return st;
    db_bind_blob(ins, 1, p->hash);
    db_bind_text(ins, 2, p->tenant_id);
    db_bind_blob(ins, 3, p->bytes);
    db_bind_int(ins, 4, ledger_now_us(l));
    st = db_run(ins, &changed, err);
    db_reset(ins);
    p->existed = changed == 0;
    return st == ST_OK ? riders_write(l, p->riders, err) : st;
}

status access_plan_put(struct ledger *l, str tenant_id, const uint8_t sha256[SHA256_LEN], str bytes,
                       const struct append_rider *riders, bool *existed, struct error *err) {
    ASSERT(bytes.len <= PLAN_BYTES_MAX);
    struct plan_put p = {.tenant_id = tenant_id,
                         .hash = str_n(sha256, SHA256_LEN),
                         .bytes = bytes,
                         .riders = riders};
    status st = ledger_transact(l, put_body, &p, err);
    if (st == ST_OK) *existed = p.existed;
    return st;
}

/* tenant_id STR_NONE: any. */
static status plan_get(struct ledger *l, str tenant_id, const uint8_t sha256[SHA256_LEN],
                       struct arena *arena, str *bytes, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db,
                           "SELECT bytes FROM ledger_plan WHERE sha256 = $1"
                           " AND ({text:$2} IS NULL OR tenant_id = $2) LIMIT 1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_blob(q, 1, str_n(sha256, SHA256_LEN));
    db_bind_text(q, 2, tenant_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row) {
        char hex[SHA256_HEX_LEN];
        hex_encode(sha256, SHA256_LEN, hex);
        st = error_at(err, REASON_PLAN_NOT_FOUND, "", "there is no plan %.*s", SHA256_HEX_LEN, hex);
    } else if (st == ST_OK && !arena_try_str(arena, db_blob(q, 0), bytes)) {
        st = ledger_no_memory(err);
    }
    db_reset(q);
    return st;
}

status access_plan_get(struct ledger *l, str tenant_id, const uint8_t sha256[SHA256_LEN],
                       struct arena *arena, str *bytes, struct error *err) {
    ASSERT(tenant_id.ptr);
    return plan_get(l, tenant_id, sha256, arena, bytes, err);
}

status access_plan_get_any(struct ledger *l, const uint8_t sha256[SHA256_LEN], struct arena *arena,
                           str *bytes, struct error *err) {
    return plan_get(l, STR_NONE, sha256, arena, bytes, err);
}
