/* API keys. The secret itself is nowhere: only its hash is stored. */
#include "ledger/access/access.h"

#include "ledger/access/riders.h"
#include "ledger/handle.h"

static status key_not_found(str key_id, struct error *err) {
    return error_at(err, REASON_KEY_NOT_FOUND, "", "there is no key \"%.*s\"", STR_ARG(key_id));
}

struct key_change {
    const struct api_key *key;
    const struct append_rider *riders;
};

/* ---- creating ---- */

static status check_count(struct ledger *l, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = ST_OK;
    if (db_is_postgres(l->db)) /* two nodes must not both add the last one */
        st = db_exec(l->db, "LOCK TABLE api_key IN SHARE ROW EXCLUSIVE MODE", err);
    if (st == ST_OK) st = db_prepare(l->db, "SELECT COUNT(*) FROM api_key", &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK && db_int(q, 0) >= API_KEYS_MAX)
        st = error_at(err, REASON_API_KEYS_TOO_MANY, "",
                      "there are %d keys already, revoked ones included", API_KEYS_MAX);
    if (q) db_reset(q);
    return st;
}

static status insert_key(struct ledger *l, const struct api_key *key, int64_t *changed,
                         struct error *err) {
    struct db_stmt *ins = NULL;
    status st = db_prepare(
        l->db,
        "INSERT INTO api_key(key_id, tenant_id, name, created_by, roles, hash, created_us,"
        " expires_us, revoked_us, used_us, version)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 1) ON CONFLICT DO NOTHING",
        &ins, err);
    if (st != ST_OK) return st;
    db_bind_text(ins, 1, key->key_id);
    db_bind_text(ins, 2, key->tenant_id);
    db_bind_text(ins, 3, key->name);
    db_bind_text(ins, 4, key->created_by.ptr ? key->created_by : STR(""));
    db_bind_int(ins, 5, key->roles);
    db_bind_blob(ins, 6, str_n(key->hash, SHA256_LEN));
    db_bind_int(ins, 7, key->created_us);
    db_bind_int(ins, 8, key->expires_us);
    db_bind_int(ins, 9, key->revoked_us);
    db_bind_int(ins, 10, key->used_us);
    st = db_run(ins, changed, err);
    db_reset(ins);
    return st;
}

static status create_body(struct ledger *l, void *context, struct error *err) {
    const struct key_change *c = context;
    int64_t changed = 0;
    status st = check_count(l, err);
    if (st == ST_OK) st = insert_key(l, c->key, &changed, err);
    if (st == ST_OK && changed == 0)
        st = error_at(err, REASON_KEY_ID_TAKEN, "", "there is a key \"%.*s\" already",
                      STR_ARG(c->key->key_id));
    return st == ST_OK ? riders_write(l, c->riders, err) : st;
}

status api_key_create(struct ledger *l, const struct api_key *key,
                      const struct append_rider *riders, struct error *err) {
    ASSERT(key->key_id.len > 0 && key->tenant_id.len > 0);
    ASSERT(key->name.ptr && key->name.len <= KEY_NAME_MAX);
    struct key_change c = {key, riders};
    return ledger_transact(l, create_body, &c, err);
}

/* ---- changing ---- */

/* Why the update found no row. */
static status explain_update(struct ledger *l, const struct api_key *key, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, "SELECT version FROM api_key WHERE key_id = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, key->key_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row)
        st = key_not_found(key->key_id, err);
    else if (st == ST_OK)
        st = error_at(err, REASON_PRECONDITION_FAILED, "",
                      "the key has version %lld, not %lld: it was changed meanwhile",
                      (long long)db_int(q, 0), (long long)key->version);
    db_reset(q);
    return st;
}

static status update_body(struct ledger *l, void *context, struct error *err) {
    const struct key_change *c = context;
    struct db_stmt *upd = NULL;
    int64_t changed = 0;
    status st = db_prepare(l->db,
                           "UPDATE api_key SET name = $3, roles = $4, expires_us = $5,"
                           " revoked_us = $6, version = version + 1"
                           " WHERE key_id = $1 AND version = $2",
                           &upd, err);
    if (st != ST_OK) return st;
    db_bind_text(upd, 1, c->key->key_id);
    db_bind_int(upd, 2, c->key->version);
    db_bind_text(upd, 3, c->key->name);
    db_bind_int(upd, 4, c->key->roles);
    db_bind_int(upd, 5, c->key->expires_us);
    db_bind_int(upd, 6, c->key->revoked_us);
    st = db_run(upd, &changed, err);
    db_reset(upd);
    if (st == ST_OK && changed == 0) st = explain_update(l, c->key, err);
    return st == ST_OK ? riders_write(l, c->riders, err) : st;
}

status api_key_update(struct ledger *l, const struct api_key *key,
                      const struct append_rider *riders, struct error *err) {
    ASSERT(key->name.ptr && key->name.len <= KEY_NAME_MAX);
    struct key_change c = {key, riders};
    return ledger_transact(l, update_body, &c, err);
}

/* ---- use ---- */

struct uses {
    const struct key_use *given;
    size_t count;
};

static int by_key_id(const void *a, const void *b) {
    const struct key_use *x = a;
    const struct key_use *y = b;
    return memcmp(x->key_id, y->key_id, sizeof(x->key_id));
}

/* In the order of their ids, so that two nodes cannot wait for each other. */
static status used_body(struct ledger *l, void *context, struct error *err) {
    const struct uses *u = context;
    struct db_stmt *upd = NULL;
    struct key_use *sorted = arena_try_raw(&l->scratch, u->count * sizeof(*sorted));
    if (!sorted) return ledger_no_memory(err);
    memcpy(sorted, u->given, u->count * sizeof(*sorted));
    qsort(sorted, u->count, sizeof(*sorted), by_key_id);
    status st = db_prepare(
        l->db, "UPDATE api_key SET used_us = $2 WHERE key_id = $1 AND used_us < $2", &upd, err);
    for (size_t i = 0; i < u->count && st == ST_OK; i++) {
        int64_t changed = 0;
        db_bind_text(upd, 1, str_n(sorted[i].key_id, sizeof(sorted[i].key_id)));
        db_bind_int(upd, 2, sorted[i].us);
        st = db_run(upd, &changed, err);
        db_reset(upd);
    }
    return st;
}

status api_keys_used(struct ledger *l, const struct key_use *uses, size_t count,
                     struct error *err) {
    if (count == 0) return ST_OK;
    struct uses u = {uses, count};
    return ledger_transact(l, used_body, &u, err);
}

/* ---- asking ---- */

/* clang-format off */
#define KEY_SELECT                                                                                 \
    "SELECT key_id, tenant_id, name, created_by, roles, hash, created_us, expires_us, revoked_us,"  \
    " used_us, version FROM api_key"
/* clang-format on */

static status read_key(struct db_stmt *q, struct arena *arena, struct api_key *out,
                       struct error *err) {
    struct api_key k = {.roles = (unsigned)db_int(q, 4),
                        .created_us = db_int(q, 6),
                        .expires_us = db_int(q, 7),
                        .revoked_us = db_int(q, 8),
                        .used_us = db_int(q, 9),
                        .version = db_int(q, 10)};
    str *texts[] = {&k.key_id, &k.tenant_id, &k.name, &k.created_by};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!arena_try_str(arena, db_text(q, (int)i), texts[i])) return ledger_no_memory(err);
    }
    str hash = db_blob(q, 5);
    if (hash.len != SHA256_LEN)
        return error_at(err, REASON_LEDGER_DAMAGED, "", "the key \"%.*s\" has no hash",
                        STR_ARG(k.key_id));
    memcpy(k.hash, hash.ptr, SHA256_LEN);
    *out = k;
    return ST_OK;
}

status api_key_find(struct ledger *l, str key_id, struct arena *arena, struct api_key *out,
                    struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, KEY_SELECT " WHERE key_id = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, key_id);
    st = db_step(q, &row, err);
    if (st == ST_OK) st = row ? read_key(q, arena, out, err) : key_not_found(key_id, err);
    db_reset(q);
    return st;
}

/* There are at most API_KEYS_MAX, so a walk along the primary key is short whoever asks. */
status api_key_list(struct ledger *l, str tenant_id, str after, size_t limit, struct arena *arena,
                    struct api_key **out, size_t *count, struct error *err) {
    struct db_stmt *q = NULL;
    if (limit > KEYS_PAGE_MAX) limit = KEYS_PAGE_MAX;
    struct api_key *list = arena_try(arena, (limit > 0 ? limit : 1) * sizeof(*list));
    if (!list) return ledger_no_memory(err);
    status st = db_prepare(l->db,
                           KEY_SELECT " WHERE key_id > $1 AND ({text:$2} IS NULL OR tenant_id = $2)"
                                      " ORDER BY key_id LIMIT $3",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, after.ptr ? after : STR(""));
    db_bind_text(q, 2, tenant_id);
    db_bind_int(q, 3, (int64_t)limit);
    size_t n = 0;
    bool row = false;
    while (n < limit && (st = db_step(q, &row, err)) == ST_OK && row) {
        st = read_key(q, arena, &list[n], err);
        if (st != ST_OK) break;
        n++;
    }
    db_reset(q);
    if (st != ST_OK) return st;
    *out = list;
    *count = n;
    return ST_OK;
}
