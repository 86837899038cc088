/* Archiving: the events of finished runs move from ledger_event to ledger_archive, so that the
 * table that is appended to, and its indexes, hold the runs that are alive. See
 * docs/decisions/0008-archive.md.
 *
 * One lot of whole runs is one transaction: their rows are copied, then deleted where they came
 * from. The database deletes a row only if its equal is in the archive (schema.c), so a row can be
 * neither lost nor changed on the way. A crash leaves it in one tier.
 *
 * On PostgreSQL other nodes append meanwhile. No tenant is locked: every read asks both tiers in
 * one statement, and an event that reaches a run between the copying and the deleting is not in the
 * archive, so it stays. Of two nodes that archive, one waits. */
#include "ledger/impl.h"

enum {
    LOT_RUNS_MAX = 256,
    LOT_EVENTS_WANTED = 16384, /* a lot ends with the run that reaches this many events */
    NUMBER_CHARS = 21,
};

struct archiving {
    const struct archive_request *request;
    int64_t after;      /* runs up to this one were looked at, */
    int64_t last;       /* and those after this one are not */
    int64_t left;       /* runs that may still be moved */
    struct buf numbers; /* the lot: a list that the database takes as one parameter */
    int64_t runs, events;
};

/* The lowest numbers first: the oldest runs. Of most runs that were archived before, the first tier
 * has nothing. */
/* clang-format off */
#define ENDED_US EVENT_AT("y.persisted_us", "(r.tenant_no * 1099511627776 + s.ended_seq)")
static const char choose_sql[] =
    "SELECT x.run_no, x.events FROM (SELECT s.run_no,"
    " (SELECT COUNT(*) FROM ledger_event e WHERE e.run_no = s.run_no) AS events"
    " FROM state_run s JOIN ledger_run r ON r.run_no = s.run_no"
    " WHERE s.run_no > $1 AND s.run_no <= $2 AND s.status >= 5 AND ({int:$3} = 0 OR " ENDED_US " < $3)) x"
    " WHERE x.events > 0 ORDER BY x.run_no LIMIT $4";
/* clang-format on */

static status choose_lot(struct ledger *l, struct archiving *a, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    bool postgres = db_is_postgres(l->db);
    status st = db_prepare(l->db, choose_sql, &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, a->after);
    db_bind_int(q, 2, a->last);
    db_bind_int(q, 3, a->request->until_us);
    db_bind_int(q, 4, a->left < LOT_RUNS_MAX ? a->left : LOT_RUNS_MAX);
    a->runs = a->events = 0;
    buf_clear(&a->numbers);
    buf_put_char(&a->numbers, postgres ? '{' : '[');
    while (a->events < LOT_EVENTS_WANTED && (st = db_step(q, &row, err)) == ST_OK && row) {
        if (a->runs++ > 0) buf_put_char(&a->numbers, ',');
        buf_put_int(&a->numbers, db_int(q, 0));
        a->events += db_int(q, 1);
        a->after = db_int(q, 0);
    }
    db_reset(q);
    buf_put_char(&a->numbers, postgres ? '}' : ']');
    return st == ST_OK && a->numbers.full ? ledger_no_memory(err) : st;
}

/* clang-format off */
#define EVENT_COLUMNS                                                                              \
    "pos, run_no, run_seq, type_no, context_no, engine_attempt, logical_attempt, emitted_ns, emitted_digits, persisted_us," \
    " cause_seq, step_index, event_id, key, subject, actor, payload, hash"
#define IN_LOT "run_no {sqlite:IN (SELECT value FROM json_each($1))}{postgres:= ANY($1::text::bigint[])}"
static const char copy_sql[] = "INSERT INTO ledger_archive(" EVENT_COLUMNS ") SELECT " EVENT_COLUMNS
                               " FROM ledger_event WHERE " IN_LOT " ORDER BY pos";
static const char delete_sql[] = "DELETE FROM ledger_event WHERE " IN_LOT
                                 " AND EXISTS (SELECT 1 FROM ledger_archive a WHERE a.pos = ledger_event.pos)";
/* clang-format on */

static status run_on_lot(struct ledger *l, const struct archiving *a, const char *sql,
                         int64_t *changed, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(l->db, sql, &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, buf_str(&a->numbers));
    st = db_run(q, changed, err);
    db_reset(q);
    return st;
}

/* A ledger_body: one lot. */
static status archive_lot(struct ledger *l, void *context, struct error *err) {
    struct archiving *a = context;
    int64_t copied = 0;
    int64_t deleted = 0;
    status st = ST_OK;
    if (db_is_postgres(l->db)) st = db_exec(l->db, "SELECT pg_advisory_xact_lock(4918273652)", err);
    if (st == ST_OK) st = choose_lot(l, a, err);
    if (st != ST_OK || a->runs == 0) return st;
    st = schema_archive_views(l->db, err);
    if (st == ST_OK) st = run_on_lot(l, a, copy_sql, &copied, err);
    if (st == ST_CONFLICT)
        return error_at(err, ST_CORRUPT, "LEDGER_DAMAGED", "",
                        "the archive already has events that are in the ledger");
    if (st == ST_OK) st = run_on_lot(l, a, delete_sql, &deleted, err);
    if (st == ST_OK && copied != deleted)
        st = error_at(err, ST_CORRUPT, "LEDGER_DAMAGED", "",
                      "%lld events were copied to the archive, and %lld of them were there",
                      (long long)copied, (long long)deleted);
    a->events = copied;
    return st;
}

/* The run that the request names. */
static status find_run(struct ledger *l, struct archiving *a, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    str run_id = a->request->run_id;
    status st = db_prepare(l->db,
                           "SELECT r.run_no, s.status FROM ledger_run r"
                           " JOIN state_run s ON s.run_no = r.run_no WHERE r.run_id = $1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, run_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row) {
        st = error_at(err, ST_NOT_FOUND, "RUN_NOT_FOUND", "", "there is no run \"%.*s\"",
                      STR_ARG(run_id));
    } else if (st == ST_OK && db_int(q, 1) < RUN_COMPLETED) {
        st = error_at(err, ST_CONFLICT, "RUN_NOT_FINISHED", "",
                      "run \"%.*s\" is not finished: only finished runs are archived",
                      STR_ARG(run_id));
    }
    if (st == ST_OK) {
        a->last = db_int(q, 0);
        a->after = a->last - 1;
    }
    db_reset(q);
    return st;
}

status ledger_archive(struct ledger *l, const struct archive_request *request,
                      ledger_progress progress, void *context, struct archive_report *report,
                      struct error *err) {
    ASSERT(l->writer);
    struct archiving a = {.request = request,
                          .last = INT64_MAX,
                          .left = request->runs_max > 0 ? request->runs_max : INT64_MAX};
    struct archive_report done = {0};
    buf_init(&a.numbers, (size_t)LOT_RUNS_MAX * NUMBER_CHARS + 2);
    status st = ledger_usable(l, err);
    if (st == ST_OK && request->run_id.ptr) st = find_run(l, &a, err);
    while (st == ST_OK && a.left > 0 && a.after < a.last) {
        st = ledger_transact(l, archive_lot, &a, err);
        if (st != ST_OK || a.runs == 0) break;
        a.left -= a.runs;
        done.runs += a.runs;
        done.events += a.events;
        if (progress) progress(context, done.runs, 0);
    }
    buf_release(&a.numbers);
    *report = done;
    return st == ST_OK ? ST_OK : error_wrap(err, "could not archive");
}
