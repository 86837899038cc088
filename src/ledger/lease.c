/* ledger/lease.c: nodes, the runs they have, and what a commit checks and changes of them. */
#include "ledger/lease.h"

#include "ledger/claim.h"
#include "ledger/handle.h"

/* The time that leases are judged by: on PostgreSQL the server's, for the clocks of nodes differ. */
static status lease_clock(struct ledger *l, int64_t *us, struct error *err) {
    if (!db_is_postgres(l->db)) {
        *us = ledger_now_us(l);
        return ST_OK;
    }
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        l->db,
        "{sqlite:SELECT 0}{postgres:SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint}",
        &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK) *us = db_int(q, 0);
    if (q) db_reset(q);
    return st;
}

/* Runs a statement whose whole numbers are bound in order. */
static status run_ints(struct ledger *l, const char *sql, const int64_t *values, int count,
                       int64_t *changed, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(l->db, sql, &q, err);
    if (st != ST_OK) return st;
    for (int i = 0; i < count; i++)
        db_bind_int(q, i + 1, values[i]);
    st = db_run(q, changed, err);
    db_reset(q);
    return st;
}

/* ---- names ---- */

enum { TAKE_TRIES_MAX = 8 };
struct take {
    str name;
    int64_t lease_ms;
    struct lease out;
};

static status find_node(struct ledger *l, str name, struct lease *out, int64_t *until,
                        struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db,
                           "SELECT node_no, epoch, lease_until_us FROM lease_node WHERE name = $1"
                           "{postgres: FOR UPDATE}",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, name);
    st = db_step(q, &row, err);
    *out = (struct lease){0};
    if (st == ST_OK && row) {
        *out = (struct lease){db_int(q, 0), db_int(q, 1)};
        *until = db_int(q, 2);
    }
    db_reset(q);
    return st;
}

static status insert_node(struct ledger *l, str name, struct lease *out, struct error *err) {
    struct db_stmt *q = NULL;
    int64_t changed = 0;
    status st = db_prepare(l->db,
                           "INSERT INTO lease_node(node_no, name, epoch, lease_until_us)"
                           " SELECT COALESCE(MAX(node_no), 0) + 1, {text:$1}, 0, 0 FROM lease_node",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, name);
    st = db_run(q, &changed, err);
    db_reset(q);
    int64_t until = 0;
    return st == ST_OK ? find_node(l, name, out, &until, err) : st;
}

static status take_body(struct ledger *l, void *context, struct error *err) {
    struct take *t = context;
    int64_t now = 0;
    int64_t until = 0;
    int64_t changed = 0;
    status st = lease_clock(l, &now, err);
    if (st == ST_OK) st = find_node(l, t->name, &t->out, &until, err);
    if (st == ST_OK && t->out.node_no == 0) st = insert_node(l, t->name, &t->out, err);
    if (st != ST_OK) return st;
    if (db_is_postgres(l->db) && until > now)
        return error_at(err, REASON_NODE_ALIVE, "",
                        "a process named \"%.*s\" is at work on this ledger", STR_ARG(t->name));
    t->out.epoch++;
    int64_t values[] = {t->out.node_no, t->out.epoch, now + t->lease_ms * 1000};
    return run_ints(l, "UPDATE lease_node SET epoch = $2, lease_until_us = $3 WHERE node_no = $1",
                    values, 3, &changed, err);
}

status lease_take(struct ledger *l, str name, int64_t lease_ms, struct lease *out,
                  struct error *err) {
    ASSERT(l->state != LEDGER_IN_MEMBER); /* it may have to be tried again, and a group is not its to try */
    struct take t = {.name = name, .lease_ms = lease_ms};
    status st = ST_CONFLICT;
    err->reason = REASON_NONE;
    for (int tries = 0; tries < TAKE_TRIES_MAX && st == ST_CONFLICT && !err->reason; tries++)
        st = ledger_transact(l, take_body, &t, err);
    if (st == ST_CONFLICT && !err->reason) st = err->code = ST_RETRY;
    if (st == ST_OK) *out = t.out;
    return st;
}

struct renewal {
    const struct lease *lease;
    int64_t lease_ms; /* < 0: release */
};

static status lost(struct error *err) {
    return error_at(err, REASON_LEASE_LOST, "",
                    "another node has taken over: this one can change nothing more");
}

static status renew_body(struct ledger *l, void *context, struct error *err) {
    const struct renewal *r = context;
    int64_t now = 0;
    int64_t changed = 0;
    status st = lease_clock(l, &now, err);
    if (st != ST_OK) return st;
    int64_t until = r->lease_ms < 0 ? 0 : now + r->lease_ms * 1000;
    int64_t values[] = {r->lease->node_no, r->lease->epoch, until};
    st = run_ints(l, "UPDATE lease_node SET lease_until_us = $3 WHERE node_no = $1 AND epoch = $2",
                  values, 3, &changed, err);
    if (st == ST_OK && changed != 1) return lost(err);
    if (st != ST_OK || r->lease_ms >= 0) return st;
    /* A name with nothing left to do is forgotten, or every process that ever was would have one. */
    return run_ints(l,
                    "DELETE FROM lease_node WHERE node_no = $1 AND NOT EXISTS"
                    " (SELECT 1 FROM lease_run WHERE node_no = $1)",
                    values, 1, &changed, err);
}

status lease_renew(struct ledger *l, const struct lease *lease, int64_t lease_ms,
                   struct error *err) {
    struct renewal r = {lease, lease_ms};
    return ledger_transact(l, renew_body, &r, err);
}

status lease_release(struct ledger *l, const struct lease *lease, struct error *err) {
    struct renewal r = {lease, -1};
    return ledger_transact(l, renew_body, &r, err);
}

/* ---- runs ---- */

/* Rows of (run_id, run_no, epoch). */
static status read_runs(struct db_stmt *q, size_t limit, struct arena *arena,
                        struct lease_runs *out, struct error *err) {
    bool row = false;
    status st = ST_OK;
    *out = (struct lease_runs){.items = arena_try(arena, limit * sizeof(*out->items))};
    if (!out->items) st = ledger_no_memory(err);
    while (st == ST_OK && (st = db_step(q, &row, err)) == ST_OK && row) {
        struct lease_run *r = &out->items[out->count];
        *r = (struct lease_run){.run_no = db_int(q, 1), .epoch = db_int(q, 2)};
        if (!arena_try_str(arena, db_text(q, 0), &r->run_id)) st = ledger_no_memory(err);
        else out->count++;
    }
    db_reset(q);
    return st;
}

status lease_due(struct ledger *l, int64_t node_no, const struct lease_range *range,
                 struct arena *arena, struct lease_runs *out, struct error *err) {
    struct db_stmt *q = NULL;
    /* Ordered by run number inside one wake time: SQLite walks the index, no sort. */
    status st = db_prepare(l->db,
                           "SELECT r.run_id, x.run_no, x.epoch FROM"
                           " (SELECT run_no, epoch FROM lease_run WHERE node_no = $1"
                           " AND wake_us >= $2 AND wake_us <= $3 AND run_no > $4"
                           " ORDER BY wake_us, run_no LIMIT $5) x"
                           " JOIN ledger_run r ON r.run_no = x.run_no ORDER BY x.run_no",
                           &q, err);
    if (st != ST_OK) return st;
    int64_t values[] = {node_no, range->from_us, range->to_us, range->after, (int64_t)range->limit};
    for (int i = 0; i < 5; i++)
        db_bind_int(q, i + 1, values[i]);
    return read_runs(q, range->limit, arena, out, err);
}

struct moving {
    const struct lease *lease;
    size_t limit;
    struct arena *arena;
    struct lease_runs *out;
};

/* Names the runs that `where` finds for node $1, then changes them with `update`. */
static status take_runs(struct ledger *l, const char *select, const char *update, int64_t from,
                        const struct moving *m, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(l->db, select, &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, from);
    db_bind_int(q, 2, (int64_t)m->limit);
    st = read_runs(q, m->limit, m->arena, m->out, err);
    for (size_t i = 0; i < m->out->count && st == ST_OK; i++) {
        int64_t changed = 0;
        int64_t values[] = {m->out->items[i].run_no, m->lease->node_no};
        st = run_ints(l, update, values, 2, &changed, err);
    }
    return st;
}

/* A node whose lease has ended and that has runs; 0: none. Locks its row. */
static status find_dead(struct ledger *l, int64_t me, int64_t now, int64_t *node,
                        struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db,
                           "SELECT n.node_no FROM lease_node n WHERE n.node_no <> $1"
                           " AND n.lease_until_us < $2 AND EXISTS (SELECT 1 FROM lease_run r"
                           " WHERE r.node_no = n.node_no) ORDER BY n.node_no LIMIT 1"
                           "{postgres: FOR UPDATE SKIP LOCKED}",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, me);
    db_bind_int(q, 2, now);
    st = db_step(q, &row, err);
    *node = st == ST_OK && row ? db_int(q, 0) : 0;
    db_reset(q);
    return st;
}

static status take_over_body(struct ledger *l, void *context, struct error *err) {
    const struct moving *m = context;
    int64_t now = 0;
    int64_t dead = 0;
    int64_t changed = 0;
    status st = lease_clock(l, &now, err);
    if (st == ST_OK) st = find_dead(l, m->lease->node_no, now, &dead, err);
    if (st != ST_OK || dead == 0) return st;
    /* Whatever the dead one still sends is refused from here on. */
    st = run_ints(l, "UPDATE lease_node SET epoch = epoch + 1 WHERE node_no = $1", &dead, 1,
                  &changed, err);
    if (st != ST_OK) return st;
    return take_runs(l,
                     "SELECT r.run_id, x.run_no, 0 FROM lease_run x JOIN ledger_run r"
                     " ON r.run_no = x.run_no WHERE x.node_no = $1 ORDER BY x.run_no LIMIT $2",
                     "UPDATE lease_run SET node_no = $2, epoch = 0 WHERE run_no = $1", dead, m,
                     err);
}

status lease_take_over(struct ledger *l, const struct lease *lease, size_t limit,
                       struct arena *arena, struct lease_runs *out, struct error *err) {
    struct moving m = {lease, limit, arena, out};
    *out = (struct lease_runs){0};
    return ledger_transact(l, take_over_body, &m, err);
}

static status woken_body(struct ledger *l, void *context, struct error *err) {
    const struct moving *m = context;
    return take_runs(l,
                     "SELECT r.run_id, x.run_no, x.epoch FROM lease_run x JOIN ledger_run r"
                     " ON r.run_no = x.run_no WHERE x.node_no = $1 AND x.poked = 1 LIMIT $2",
                     "UPDATE lease_run SET poked = 0 WHERE run_no = $1 AND node_no = $2",
                     m->lease->node_no, m, err);
}

status lease_woken(struct ledger *l, const struct lease *lease, size_t limit, struct arena *arena,
                   struct lease_runs *out, struct error *err) {
    struct moving m = {lease, limit, arena, out};
    *out = (struct lease_runs){0};
    return ledger_transact(l, woken_body, &m, err);
}

/* ---- in the group of an append ---- */

status claim_check(struct ledger *l, const struct run_claim *claim, struct error *why,
                   struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    if (claim->act == CLAIM_WAKE) return ST_OK;
    status st = db_prepare(
        l->db, "SELECT epoch FROM lease_node WHERE node_no = $1{postgres: FOR SHARE}", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, claim->node_no);
    st = db_step(q, &row, err);
    if (st == ST_OK && (!row || db_int(q, 0) != claim->epoch)) (void)lost(why);
    db_reset(q);
    return st;
}

static void put_wake(struct db_bulk *b, int64_t wake_us) {
    if (wake_us == CLAIM_NEVER)
        db_bulk_null(b);
    else
        db_bulk_int(b, wake_us);
}

status claim_queue(struct ledger *l, const struct run_claim *claim, int64_t run_no,
                   struct error *err) {
    struct db_bulk *b = claim->act == CLAIM_OPEN ? l->ins_lease : l->upd_lease;
    int64_t changed = 0;
    switch (claim->act) {
    case CLAIM_NONE:
        return ST_OK;
    case CLAIM_OPEN:
    case CLAIM_MOVE:
        db_bulk_int(b, run_no);
        db_bulk_int(b, claim->node_no);
        db_bulk_int(b, claim->epoch);
        put_wake(b, claim->wake_us);
        if (claim->act == CLAIM_OPEN) db_bulk_int(b, 0);
        return ST_OK;
    case CLAIM_CLOSE:
        db_bulk_int(l->del_lease, run_no);
        return ST_OK;
    case CLAIM_WAKE:
        return run_ints(l, "UPDATE lease_run SET wake_us = 0, poked = 1 WHERE run_no = $1", &run_no,
                        1, &changed, err);
    }
    return ST_OK;
}

/* ---- for status and admission ---- */

status lease_find(struct ledger *l, int64_t run_no, struct arena *arena, struct lease_info *out,
                  struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    int64_t now = 0;
    *out = (struct lease_info){.wake_us = CLAIM_NEVER};
    status st = lease_clock(l, &now, err);
    if (st == ST_OK)
        st = db_prepare(l->db,
                        "SELECT n.name, n.lease_until_us, n.epoch, r.epoch, r.wake_us"
                        " FROM lease_run r JOIN lease_node n ON n.node_no = r.node_no"
                        " WHERE r.run_no = $1",
                        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, run_no);
    st = db_step(q, &row, err);
    if (st == ST_OK && row) {
        out->held = true;
        out->alive = db_int(q, 1) > now && db_int(q, 2) == db_int(q, 3);
        if (!db_is_null(q, 4)) out->wake_us = db_int(q, 4);
        if (!arena_try_str(arena, db_text(q, 0), &out->node)) st = ledger_no_memory(err);
    }
    db_reset(q);
    return st;
}

status lease_owner(struct ledger *l, int64_t run_no, bool *held, struct lease *out,
                   struct error *err) {
    struct db_stmt *q = NULL;
    status st =
        db_prepare(l->db, "SELECT node_no, epoch FROM lease_run WHERE run_no = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, run_no);
    st = db_step(q, held, err);
    if (st == ST_OK && *held) *out = (struct lease){db_int(q, 0), db_int(q, 1)};
    db_reset(q);
    return st;
}

status lease_active(struct ledger *l, str tenant_id, str plan_id, int64_t *out, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        l->db,
        "SELECT COUNT(*) FROM state_run s JOIN ledger_run r ON r.run_no = s.run_no"
        " JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"
        " JOIN ledger_context c ON c.context_no = r.context_no"
        " WHERE s.status < 5 AND s.status >= 3 AND t.tenant_id = $1"
        " AND ({text:$2} IS NULL OR c.plan_id = $2)",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, tenant_id);
    db_bind_text(q, 2, plan_id);
    st = db_step(q, &row, err);
    if (st == ST_OK) *out = db_int(q, 0);
    db_reset(q);
    return st;
}
