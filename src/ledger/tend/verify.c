/* Verifying: each tenant's events in order, one scan, recomputing the chain. What is derived from
 * them is verify_state.c's. */
#include "ledger/tend/visit.h"

/* The identity counts only as the one that this row opened: in its tenant, with its context. */
static status read_identity(struct ledger *l, const struct event_row *event, str tenant_id,
                            struct db_stmt **q, struct run_identity *id, bool *opens,
                            struct error *err) {
    bool row = false;
    status st = db_prepare(l->db,
                           "SELECT r.opened_seq, r.run_id, r.run_uuid, c.project_id,"
                           " c.environment_id, r.correlation_id, r.signal_id, r.tenant_no,"
                           " r.context_no FROM ledger_run r"
                           " JOIN ledger_context c ON c.context_no = r.context_no"
                           " WHERE r.run_no = $1",
                           q, err);
    if (st != ST_OK) return st;
    db_bind_int(*q, 1, event->run_no);
    st = db_step(*q, &row, err);
    *opens = st == ST_OK && row && db_int(*q, 0) == pos_seq(event->pos) &&
             db_int(*q, 7) == pos_tenant(event->pos) && db_int(*q, 8) == event->context_no;
    if (*opens) {
        *id = (struct run_identity){.tenant_id = tenant_id,
                                    .run_id = db_text(*q, 1),
                                    .run_uuid = db_text(*q, 2),
                                    .project_id = db_text(*q, 3),
                                    .environment_id = db_text(*q, 4),
                                    .correlation_id = db_text(*q, 5),
                                    .signal_id = db_text(*q, 6)};
    }
    return st;
}

/* What is wrong with the row that should follow (seq, persisted_us, prev); NULL if nothing. */
static const char *row_fault(const struct event_row *row, const struct tenant_end *end, int64_t seq,
                             int64_t persisted_us) {
    if (seq > 1 && row->pos == pos_of(end->tenant_no, seq - 1))
        return "the event before this one is in the ledger and in the archive";
    if (pos_tenant(row->pos) != end->tenant_no || pos_seq(row->pos) != seq)
        return "the sequence has a gap before this event";
    if (row->event_id.len != 16 || row->key.len != SHA256_LEN)
        return "an id of this event has the wrong length";
    if (row->persisted_us < persisted_us)
        return "this event was persisted before the one it follows";
    if (row->cause_seq >= seq || row->cause_seq < 0) return "this event is caused by a later one";
    return NULL;
}

static status check_row(struct walk *w, struct db_stmt *scan, const struct tenant_end *end,
                        int64_t seq, int64_t *persisted_us, uint8_t prev[SHA256_LEN],
                        struct error *err) {
    struct event_row row;
    event_row_read(scan, &row);
    const char *fault = row_fault(&row, end, seq, *persisted_us);
    if (fault) {
        walk_damage(w, end->tenant_id, seq, STR_NONE, fault);
        return ST_OK;
    }
    struct run_identity id;
    struct db_stmt *q = NULL;
    bool opens = false;
    status st = ST_OK;
    if (row.run_seq <= 1) st = read_identity(w->l, &row, end->tenant_id, &q, &id, &opens, err);
    if (st == ST_OK) {
        uint8_t hash[SHA256_LEN];
        chain_hash(w->l->sha, prev, &row, opens ? &id : NULL, hash);
        if (!str_eq(db_blob(scan, EVENT_ROW_HASH), str_n(hash, SHA256_LEN))) {
            walk_damage(
                w, end->tenant_id, seq, STR_NONE,
                "the hash does not match: this event, its run's identity or the event before it "
                "was changed");
        }
        memcpy(prev, hash, SHA256_LEN);
        *persisted_us = row.persisted_us;
    }
    if (q) db_reset(q);
    return st;
}

#define SCAN_TIER(tier)                                                                            \
    "{postgres:SELECT * FROM (}SELECT " EVENT_ROW_COLUMNS " FROM " tier                            \
    " e WHERE e.pos > $1 AND e.pos < $2{postgres: ORDER BY e.pos LIMIT $3) " tier "_page}"

/* PostgreSQL's client holds a whole result, so the scan goes in pages there. */
static status verify_tenant(struct walk *w, const struct tenant_end *end, struct error *err) {
    struct ledger *l = w->l;
    uint8_t prev[SHA256_LEN];
    int64_t page = db_is_postgres(l->db) ? 8192 : INT64_MAX;
    int64_t seq = 0;
    int64_t persisted_us = 0;
    int64_t rows = page;
    chain_genesis(l->sha, end->tenant_id, prev);
    struct db_stmt *scan = NULL;
    status st = db_prepare(l->db, BOTH_TIERS(SCAN_TIER) " ORDER BY 1 LIMIT $3", &scan, err);
    while (st == ST_OK && rows == page && !w->report->damaged) {
        db_bind_int(scan, 1, pos_of(end->tenant_no, seq));
        db_bind_int(scan, 2, pos_of(end->tenant_no + 1, 0));
        db_bind_int(scan, 3, page);
        bool row = false;
        for (rows = 0; !w->report->damaged && (st = db_step(scan, &row, err)) == ST_OK && row;
             rows++) {
            st = check_row(w, scan, end, ++seq, &persisted_us, prev, err);
            if (st != ST_OK) break;
            walk_tick(w);
        }
        db_reset(scan);
    }
    if (st != ST_OK || w->report->damaged) return st;
    w->report->events += seq;
    if (seq != end->seq)
        walk_damage(w, end->tenant_id, seq + 1, STR_NONE,
                    "the newest events of the tenant are missing");
    else if (memcmp(prev, end->head, SHA256_LEN) != 0)
        walk_damage(w, end->tenant_id, seq, STR_NONE,
                    "the tenant's head does not match its newest event");
    else if (persisted_us != end->persisted_us)
        walk_damage(w, end->tenant_id, seq, STR_NONE,
                    "the tenant's time does not match its newest event");
    else if (!end->uuid_fits)
        walk_damage(w, end->tenant_id, 0, STR_NONE, "the tenant's UUID is not that of its id");
    return ST_OK;
}

/* The walk above goes by the tenants' rows and the table: an event whose tenant's row is gone was
 * not seen by it. */
static status check_strays(struct walk *w, struct error *err) {
    int64_t rows = 0;
    int64_t twice = 0;
    status st = walk_count(w,
                           "SELECT (SELECT COUNT(*) FROM ledger_event)"
                           " + (SELECT COUNT(*) FROM ledger_archive)",
                           &rows, err);
    if (st == ST_OK && rows != w->report->events)
        st = walk_count(
            w, "SELECT COUNT(*) FROM ledger_archive a JOIN ledger_event e ON e.pos = a.pos", &twice,
            err);
    if (st == ST_OK && twice > 0) {
        walk_damage(w, STR_NONE, 0, STR_NONE, "there are events in the ledger and in the archive");
    } else if (st == ST_OK && rows != w->report->events) {
        walk_damage(w, STR_NONE, 0, STR_NONE,
                    "there are events of a tenant whose row is missing, or an index has lost rows");
    }
    return st;
}

/* What the database itself can check: that each index holds what its table holds. A look-up through
 * a damaged one would find no run where there is one, and store its events again. */
static status check_indexes(struct walk *w, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    if (db_is_postgres(w->l->db)) return ST_OK;
    status st = db_prepare(w->l->db, "PRAGMA integrity_check(1)", &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK && (!row || !str_eq(db_text(q, 0), STR("ok")))) {
        char what[ERROR_MSG_MAX];
        snprintf(what, sizeof(what), "SQLite finds: %.*s", STR_ARG(db_text(q, 0)));
        walk_damage(w, STR_NONE, 0, STR_NONE, what);
    }
    if (q) db_reset(q);
    return st;
}

/* The triggers that refuse UPDATE and DELETE: without them the history is only a habit. */
static status check_triggers(struct walk *w, struct error *err) {
    enum { SQLITE_TRIGGERS = 18, POSTGRES_TRIGGERS = 27 }; /* as schema.c makes them */
    int64_t there = 0;
    int64_t wanted = db_is_postgres(w->l->db) ? POSTGRES_TRIGGERS : SQLITE_TRIGGERS;
    status st = walk_count(
        w,
        "{sqlite:SELECT COUNT(*) FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'ledger%'}"
        "{postgres:SELECT COUNT(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " WHERE c.relnamespace = current_schema()::regnamespace AND c.relname LIKE 'ledger%'"
        " AND NOT t.tgisinternal AND t.tgenabled <> 'D'}",
        &there, err);
    if (st == ST_OK && there < wanted) {
        char what[ERROR_MSG_MAX];
        snprintf(what, sizeof(what),
                 "%lld of the %lld triggers that refuse changes to the ledger are missing or off",
                 (long long)(wanted - there), (long long)wanted);
        walk_damage(w, STR_NONE, 0, STR_NONE, what);
    }
    return st;
}

void ledger_stop_on(struct ledger *reader, const atomic_bool *stop) {
    reader->stop = stop;
    db_stop_on(reader->db, stop);
}

status ledger_verify(struct ledger *l, bool state, ledger_progress progress, void *context,
                     struct arena *arena, struct verify_report *report, struct error *err) {
    *report = (struct verify_report){.state = state};
    struct walk w = {
        .l = l, .progress = progress, .context = context, .arena = arena, .report = report};
    struct tenant_end *tenants = NULL;
    size_t count = 0;
    status st = db_begin(l->db, false, err); /* one snapshot: writers may go on */
    if (st != ST_OK) return st;
    st = walk_tenants(&w, &tenants, &count, err);
    for (size_t i = 0; i < count && st == ST_OK && !report->damaged; i++)
        st = verify_tenant(&w, &tenants[i], err);
    if (st == ST_OK && !report->damaged) st = check_strays(&w, err);
    if (st == ST_OK && !report->damaged && state) st = check_indexes(&w, err);
    if (st == ST_OK) st = walk_count(&w, "SELECT COUNT(*) FROM ledger_run", &report->runs, err);
    if (st == ST_OK && !report->damaged && state) {
        w.done = 0;
        w.total = report->runs;
        st = verify_state(&w, tenants, count, err);
    }
    if (st == ST_OK && !report->damaged) st = check_triggers(&w, err);
    if (st == ST_CORRUPT) { /* the reader itself could not go on: that is a finding */
        walk_damage(&w, STR_NONE, 0, STR_NONE, err->msg);
        st = ST_OK;
    }
    db_rollback(l->db);
    return st;
}
