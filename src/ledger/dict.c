/* The small dictionaries: tenants, contexts (project, environment, plan), event types. Rows are
 * made inside the transaction of the first event that needs them, with the next free number; should
 * two nodes pick the same number, the commit fails on the primary key, the group is rolled back,
 * every cache is forgotten and the group is tried again. */
#include "ledger/dict.h"

#include "ledger/cache.h"
#include "ledger/chain.h"
#include "ledger/event_row.h"
#include "ledger/handle.h"
#include "ledger/id_lots.h"

/* Cached contexts and unknown types; beyond that they are looked up. */
enum { DICT_ENTRIES_MAX = 10000 };

void dict_init(struct dict *d) {
    map_init(&d->tenants);
    d->last = NULL;
    d->fresh_count = 0;
    map_init(&d->contexts);
    map_init(&d->types);
    arena_init(&d->arena, 4096, SIZE_MAX);
}

void dict_clear(struct dict *d) {
    map_release(&d->tenants);
    map_release(&d->contexts);
    map_release(&d->types);
    arena_release(&d->arena);
    dict_init(d);
}

static status next_number(struct ledger *l, const char *max_sql, int64_t *out, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, max_sql, &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK) *out = db_int(q, 0) + 1;
    if (q) db_reset(q);
    return st;
}

/* ---- tenants ---- */

static status tenant_insert(struct ledger *l, struct tenant *t, struct error *err) {
    status st =
        next_number(l, "SELECT COALESCE(MAX(tenant_no), 0) FROM ledger_tenant", &t->tenant_no, err);
    if (st != ST_OK) return st;
    struct db_stmt *ins = NULL;
    st = db_prepare(
        l->db,
        "INSERT INTO ledger_tenant(tenant_no, tenant_id, tenant_uuid, seq, head, persisted_us)"
        " VALUES ($1, $2, $3, 0, $4, 0)",
        &ins, err);
    if (st != ST_OK) return st;
    char text[UUID_TEXT_LEN];
    t->tenant_uuid = event_tenant_uuid(t->tenant_id);
    uuid_format(t->tenant_uuid, text);
    chain_genesis(l->sha, t->tenant_id, t->head);
    db_bind_int(ins, 1, t->tenant_no);
    db_bind_text(ins, 2, t->tenant_id);
    db_bind_text(ins, 3, str_n(text, sizeof(text)));
    db_bind_blob(ins, 4, str_n(t->head, SHA256_LEN));
    int64_t changed = 0;
    st = db_run(ins, &changed, err);
    db_reset(ins);
    return st;
}

#define HASH_AT(tier) "SELECT hash FROM " tier " WHERE pos = $1"

/* The tenant's row and its newest event must agree: checked whenever a tenant is met for the first
 * time, so also after every reopening. */
static status check_head(struct ledger *l, const struct tenant *t, struct error *err) {
    if (t->seq == 0) return ST_OK;
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, BOTH_TIERS(HASH_AT), &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, pos_of(t->tenant_no, t->seq));
    st = db_step(q, &row, err);
    if (st == ST_OK && (!row || !str_eq(db_blob(q, 0), str_n(t->head, SHA256_LEN)))) {
        st = error_at(err, REASON_LEDGER_DAMAGED, "",
                      "tenant \"%.*s\": event %lld is not the one its head names",
                      STR_ARG(t->tenant_id), (long long)t->seq);
    }
    db_reset(q);
    return st;
}

static status tenant_read(struct ledger *l, struct tenant *t, bool *found, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(
        l->db, "SELECT tenant_no, seq, head, persisted_us FROM ledger_tenant WHERE tenant_id = $1",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, t->tenant_id);
    st = db_step(q, found, err);
    if (st == ST_OK && *found) {
        t->tenant_no = db_int(q, 0);
        t->seq = db_int(q, 1);
        t->persisted_us = db_int(q, 3);
        t->tenant_uuid = event_tenant_uuid(t->tenant_id);
        str head = db_blob(q, 2);
        if (head.len == SHA256_LEN)
            memcpy(t->head, head.ptr, SHA256_LEN);
        else
            st = error_set(err, ST_CORRUPT, "tenant \"%.*s\" has no hash", STR_ARG(t->tenant_id));
    }
    db_reset(q);
    if (st == ST_OK && *found) st = check_head(l, t, err);
    if (st == ST_OK && *found) st = id_lots_sealed(l, t->tenant_no, &t->sealed_id_lots, err);
    return st;
}

status dict_tenant(struct ledger *l, str tenant_id, bool create, struct tenant **out,
                   struct error *err) {
    struct tenant *t = l->dict.last; /* neighbours in a group mostly share their tenant */
    if (!t || !str_eq(t->tenant_id, tenant_id)) t = map_get(&l->dict.tenants, tenant_id);
    if (t) {
        *out = l->dict.last = t;
        return ST_OK;
    }
    struct tenant read = {.tenant_id = tenant_id};
    bool found = false;
    status st = tenant_read(l, &read, &found, err);
    if (st != ST_OK) return st;
    if (!found && !create)
        return error_set(err, ST_NOT_FOUND, "there is no tenant \"%.*s\"", STR_ARG(tenant_id));
    if (!found) st = tenant_insert(l, &read, err);
    if (st != ST_OK) return st;
    /* A run may be in memory because another tenant asked for it; since then other nodes may have
     * gone on with it. */
    if (found && db_is_postgres(l->db)) cache_drop_tenant(&l->cache, read.tenant_no);
    t = arena_try(&l->dict.arena, sizeof(*t));
    if (!t || !arena_try_str(&l->dict.arena, tenant_id, &read.tenant_id))
        return ledger_no_memory(err);
    *t = read;
    if (!map_put(&l->dict.tenants, t->tenant_id, t)) return ledger_no_memory(err);
    *out = t;
    return ST_OK;
}

/* ---- contexts ---- */

static status context_query(struct ledger *l, int64_t tenant_no, const struct event *e,
                            int64_t *out, bool *found, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(
        l->db,
        "SELECT context_no FROM ledger_context WHERE tenant_no = $1 AND project_id = $2 AND"
        " environment_id = $3 AND plan_id = $4 AND plan_version = $5",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, tenant_no);
    db_bind_text(q, 2, e->project_id);
    db_bind_text(q, 3, e->environment_id);
    db_bind_text(q, 4, e->plan_id);
    db_bind_text(q, 5, e->plan_version);
    st = db_step(q, found, err);
    if (st == ST_OK && *found) *out = db_int(q, 0);
    db_reset(q);
    return st;
}

static status context_insert(struct ledger *l, int64_t tenant_no, const struct event *e,
                             int64_t *out, struct error *err) {
    status st = next_number(l, "SELECT COALESCE(MAX(context_no), 0) FROM ledger_context", out, err);
    struct db_stmt *ins = NULL;
    if (st == ST_OK) {
        st = db_prepare(
            l->db,
            "INSERT INTO ledger_context(context_no, tenant_no, project_id, environment_id, plan_id,"
            " plan_version) VALUES ($1, $2, $3, $4, $5, $6)",
            &ins, err);
    }
    if (st != ST_OK) return st;
    db_bind_int(ins, 1, *out);
    db_bind_int(ins, 2, tenant_no);
    db_bind_text(ins, 3, e->project_id);
    db_bind_text(ins, 4, e->environment_id);
    db_bind_text(ins, 5, e->plan_id);
    db_bind_text(ins, 6, e->plan_version);
    int64_t changed = 0;
    st = db_run(ins, &changed, err);
    db_reset(ins);
    return st;
}

status dict_context(struct ledger *l, int64_t tenant_no, const struct event *e, int64_t *out,
                    struct error *err) {
    char mem[4 * (ID_BYTES_MAX + 1) + 24];
    struct buf key; /* ids hold no NUL, so NUL separates them */
    buf_init_fixed(&key, mem, sizeof(mem));
    const str parts[] = {e->project_id, e->environment_id, e->plan_id, e->plan_version};
    buf_put_int(&key, tenant_no);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        buf_put_char(&key, 0);
        buf_put(&key, parts[i]);
    }
    ASSERT(!key.full);
    struct dict_number *c = map_get(&l->dict.contexts, buf_str(&key));
    if (c) {
        *out = c->number;
        return ST_OK;
    }
    bool found = false;
    status st = context_query(l, tenant_no, e, out, &found, err);
    if (st == ST_OK && !found) st = context_insert(l, tenant_no, e, out, err);
    if (st != ST_OK || l->dict.contexts.count >= DICT_ENTRIES_MAX) return st;
    str kept;
    c = arena_try(&l->dict.arena, sizeof(*c));
    if (!c || !arena_try_str(&l->dict.arena, buf_str(&key), &kept)) return ledger_no_memory(err);
    c->number = *out;
    return map_put(&l->dict.contexts, kept, c) ? ST_OK : ledger_no_memory(err);
}

/* ---- types ---- */

static status type_insert(struct ledger *l, str name, int64_t *out, struct error *err) {
    status st = next_number(l, "SELECT COALESCE(MAX(type_no), 0) FROM ledger_type", out, err);
    if (st != ST_OK) return st;
    if (*out < EVENT_TYPE_FIRST_FREE) *out = EVENT_TYPE_FIRST_FREE;
    struct db_stmt *ins = NULL;
    st = db_prepare(l->db,
                    "INSERT INTO ledger_type(type_no, name, snake, family, lifecycle)"
                    " VALUES ($1, $2, $3, 'RUN', 0)",
                    &ins, err);
    if (st != ST_OK) return st;
    char mem[EVENT_TYPE_SNAKE_MAX];
    struct buf snake;
    buf_init_fixed(&snake, mem, sizeof(mem));
    event_type_to_snake(name, &snake);
    ASSERT(!snake.full);
    db_bind_int(ins, 1, *out);
    db_bind_text(ins, 2, name);
    db_bind_text(ins, 3, buf_str(&snake));
    int64_t changed = 0;
    st = db_run(ins, &changed, err);
    db_reset(ins);
    return st;
}

status dict_type(struct ledger *l, const struct event *e, int64_t *out, struct error *err) {
    *out = e->type;
    if (e->type != EVENT_UNKNOWN) return ST_OK;
    struct dict_number *c = map_get(&l->dict.types, e->type_name);
    if (c) {
        *out = c->number;
        return ST_OK;
    }
    struct db_stmt *q = NULL;
    bool found = false;
    status st = db_prepare(l->db, "SELECT type_no FROM ledger_type WHERE name = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, e->type_name);
    st = db_step(q, &found, err);
    if (st == ST_OK && found) *out = db_int(q, 0);
    db_reset(q);
    if (st == ST_OK && !found) st = type_insert(l, e->type_name, out, err);
    if (st != ST_OK || l->dict.types.count >= DICT_ENTRIES_MAX) return st;
    str kept;
    c = arena_try(&l->dict.arena, sizeof(*c));
    if (!c || !arena_try_str(&l->dict.arena, e->type_name, &kept)) return ledger_no_memory(err);
    c->number = *out;
    return map_put(&l->dict.types, kept, c) ? ST_OK : ledger_no_memory(err);
}
