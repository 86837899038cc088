/* Several nodes on one PostgreSQL: whose turn it is in a tenant, and which run numbers are whose.
 */
#include "ledger/cache.h"
#include "ledger/dict.h"
#include "ledger/group.h"
#include "ledger/handle.h"

static int by_tenant_no(const void *a, const void *b) {
    const struct tenant *x = *(struct tenant *const *)a;
    const struct tenant *y = *(struct tenant *const *)b;
    return (x->tenant_no > y->tenant_no) - (x->tenant_no < y->tenant_no);
}

static status lock_stmt(struct ledger *l, struct db_stmt **q, struct error *err) {
    return db_prepare(
        l->db, "SELECT seq, head, persisted_us FROM ledger_tenant WHERE tenant_no = $1 FOR UPDATE",
        q, err);
}

static status send_lock(struct ledger *l, const struct tenant *t, struct error *err) {
    struct db_stmt *q = NULL;
    status st = lock_stmt(l, &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, t->tenant_no);
    return db_send(q, err);
}

/* *moved: another node has written since we did, and what we knew of the tenant's runs is dropped.
 */
static status take_lock(struct ledger *l, struct tenant *t, bool *moved, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = lock_stmt(l, &q, err);
    if (st != ST_OK) return st;
    st = db_step(q, &row, err);
    if (st == ST_OK && (!row || db_blob(q, 1).len != SHA256_LEN)) {
        st = error_set(err, ST_CORRUPT, "tenant \"%.*s\" is gone", STR_ARG(t->tenant_id));
    }
    if (st == ST_OK && db_int(q, 0) != t->seq) {
        t->seq = db_int(q, 0);
        t->persisted_us = db_int(q, 2);
        memcpy(t->head, db_blob(q, 1).ptr, SHA256_LEN);
        cache_drop_tenant(&l->cache, t->tenant_no);
        *moved = true;
    }
    db_reset(q);
    return st;
}

/* In the order of their numbers, so that two nodes cannot wait for each other. The last lock is
 * only sent. */
status nodes_lock_tenants(struct ledger *l, struct append_request *const *reqs, size_t n,
                          struct tenant **last, struct error *err) {
    *last = NULL;
    if (!db_is_postgres(l->db)) return ST_OK;
    struct tenant **list =
        arena_try(&l->scratch, (size_t)GROUP_EVENTS_MAX * sizeof(struct tenant *));
    if (!list) return ledger_no_memory(err);
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < reqs[i]->count; k++) {
            struct tenant *t = NULL;
            status st = dict_tenant(l, reqs[i]->items[k].event.tenant_id, false, &t, err);
            if (st == ST_NOT_FOUND) continue;
            if (st != ST_OK) return st;
            if (t->listed) continue;
            t->listed = true;
            list[count++] = t;
        }
    }
    qsort(list, count, sizeof(struct tenant *), by_tenant_no);
    for (size_t i = 0; i < count; i++)
        list[i]->listed = false;
    for (size_t i = 0; i < count; i++) {
        bool moved = false;
        status st = send_lock(l, list[i], err);
        if (st == ST_OK && i + 1 < count) st = take_lock(l, list[i], &moved, err);
        if (st != ST_OK) return st;
    }
    if (count > 0) *last = list[count - 1];
    return ST_OK;
}

status nodes_locked(struct ledger *l, struct tenant *last, bool *moved, struct error *err) {
    *moved = false;
    return last ? take_lock(l, last, moved, err) : ST_OK;
}

/* Whoever holds the row may be waiting for rows that we have stored already: so we do not wait for
 * it. */
status nodes_take_turn(struct ledger *l, const struct tenant *t, int64_t seq, bool *same,
                       struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        l->db, "SELECT seq FROM ledger_tenant WHERE tenant_no = $1 FOR UPDATE SKIP LOCKED", &q,
        err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, t->tenant_no);
    st = db_step(q, &row, err);
    *same = st == ST_OK && row && db_int(q, 0) == seq;
    db_reset(q);
    return st;
}

/* Numbers for the runs this group may open. One process owns a SQLite file, so it just counts on;
 * nodes on one PostgreSQL take blocks, in a transaction of their own, lest every group wait for one
 * counter. */
status nodes_reserve_run_numbers(struct ledger *l, int64_t wanted, struct error *err) {
    if (l->last_run_no - l->next_run_no + 1 >= wanted) return ST_OK;
    struct db_stmt *q = NULL;
    bool row = false;
    if (!db_is_postgres(l->db)) {
        status st = db_prepare(l->db, "SELECT COALESCE(MAX(run_no), 0) FROM ledger_run", &q, err);
        if (st == ST_OK) st = db_step(q, &row, err);
        if (st == ST_OK) {
            l->next_run_no = db_int(q, 0) + 1;
            l->last_run_no = INT64_MAX - 1;
        }
        if (q) db_reset(q);
        return st;
    }
    status st = db_begin(l->db, true, err);
    if (st == ST_OK) {
        st = db_prepare(
            l->db,
            "INSERT INTO ledger_meta(name, value) VALUES ('run_numbers', $1::text)"
            " ON CONFLICT(name) DO UPDATE SET value = (ledger_meta.value::bigint + $2)::text"
            " RETURNING value::bigint",
            &q, err);
    }
    if (st == ST_OK) {
        db_bind_text(q, 1, STR("4096"));
        db_bind_int(q, 2, GROUP_EVENTS_MAX);
        static_assert(GROUP_EVENTS_MAX == 4096, "the first block is written as text above");
        st = db_step(q, &row, err);
        if (st == ST_OK) {
            l->last_run_no = db_int(q, 0);
            l->next_run_no = l->last_run_no - GROUP_EVENTS_MAX + 1;
        }
        db_reset(q);
    }
    if (st == ST_OK) st = db_commit(l->db, err);
    if (st != ST_OK) db_rollback(l->db);
    return st;
}
