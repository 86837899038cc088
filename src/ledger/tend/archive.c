/* Archiving: the events of finished runs move from ledger_event to ledger_archive, so that the
 * table that is appended to, and its indexes, hold the runs that are alive. See
 * docs/decisions/0008-archive.md.
 *
 * One batch of runs is one transaction: their rows are copied, then deleted where they came from. The
 * database deletes a row only if its equal is in the archive (schema.c), so a row can be neither
 * lost nor changed on the way. A crash leaves it in one tier. A run with too many events for one
 * batch moves in several, the oldest events first: in between it is like an archived run with late
 * events.
 *
 * On PostgreSQL other nodes append meanwhile. No tenant is locked: every read asks both tiers in
 * one statement, and an event that reaches a run between the copying and the deleting is not in the
 * archive, so it stays. Of two nodes that archive, one waits. */
#include "ledger/access/riders.h"
#include "ledger/handle.h"

enum {
    ARCHIVE_RUNS_MAX = 256,
    ARCHIVE_RUNS_POSTGRES = 64, /* there all are counted before the first is taken */
    ARCHIVE_EVENTS_MAX = 4096,  /* moved in one transaction: appends wait that long */
    ARCHIVE_SCAN_MAX = 8192,    /* runs looked at in one: most may have been archived before */
    NUMBER_CHARS = 21,
};

struct archiving {
    const struct archive_request *request;
    struct archive_at *at;
    int64_t until;      /* the last run to be looked at for this batch */
    int64_t next;       /* where the next batch begins */
    struct buf numbers; /* the batch: a list that the database takes as one parameter */
    int64_t runs, events;
    int64_t last_pos; /* of a part of a run: up to this one; else INT64_MAX */
};

/* The lowest numbers first: the oldest runs. Of most runs that were archived before, the first tier
 * has nothing. $2 bounds how many are looked at, and $5 how many events of one are counted. */
/* clang-format off */
#define ENDED_US EVENT_AT("y.persisted_us", "(r.tenant_no * 1099511627776 + s.ended_seq)")
static const char choose_sql[] =
    "SELECT x.run_no, x.events FROM (SELECT s.run_no,"
    " (SELECT COUNT(*) FROM (SELECT 1 FROM ledger_event e WHERE e.run_no = s.run_no LIMIT $5) n) AS events"
    " FROM state_run s JOIN ledger_run r ON r.run_no = s.run_no"
    " WHERE s.run_no > $1 AND s.run_no <= $2 AND s.status >= 5 AND ({int:$3} = 0 OR " ENDED_US " < $3)) x"
    " WHERE x.events > 0 ORDER BY x.run_no LIMIT $4";
/* clang-format on */

/* Takes the run of one row into the batch. false: it must wait for the next one. */
static bool add_run(struct archiving *a, int64_t run_no, int64_t events) {
    if (a->runs > 0 && a->events + events > ARCHIVE_EVENTS_MAX) return false;
    if (a->runs++ > 0) buf_put_char(&a->numbers, ',');
    buf_put_int(&a->numbers, run_no);
    a->events += events;
    a->next = run_no;
    return true;
}

static status choose_batch(struct ledger *l, struct archiving *a, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    bool full = false;
    bool postgres = db_is_postgres(l->db);
    const struct archive_request *request = a->request;
    int64_t left = postgres ? ARCHIVE_RUNS_POSTGRES : ARCHIVE_RUNS_MAX;
    if (request->runs_max > 0 && request->runs_max - a->at->report.runs < left)
        left = request->runs_max - a->at->report.runs;
    status st = db_prepare(l->db, choose_sql, &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, a->at->after);
    db_bind_int(q, 2, a->until);
    db_bind_int(q, 3, request->until_us);
    db_bind_int(q, 4, left);
    db_bind_int(q, 5, ARCHIVE_EVENTS_MAX + 1); /* more is too many for one batch */
    buf_put_char(&a->numbers, postgres ? '{' : '[');
    while (!full && (st = db_step(q, &row, err)) == ST_OK && row)
        full = !add_run(a, db_int(q, 0), db_int(q, 1)) || a->runs == left ||
               a->events >= ARCHIVE_EVENTS_MAX;
    db_reset(q);
    if (!full) a->next = a->until;
    buf_put_char(&a->numbers, postgres ? '}' : ']');
    return st == ST_OK && a->numbers.full ? ledger_no_memory(err) : st;
}

/* clang-format off */
#define EVENT_COLUMNS                                                                              \
    "pos, run_no, run_seq, type_no, context_no, engine_attempt, logical_attempt, emitted_ns, emitted_digits, persisted_us," \
    " cause_seq, step_index, event_id, key, subject, actor, payload, hash"
#define IN_BATCH "run_no {sqlite:IN (SELECT value FROM json_each($1))}{postgres:= ANY($1::text::bigint[])}"
static const char copy_sql[] = "INSERT INTO ledger_archive(" EVENT_COLUMNS ") SELECT " EVENT_COLUMNS
                               " FROM ledger_event WHERE " IN_BATCH " AND pos <= $2 ORDER BY pos";
static const char delete_sql[] = "DELETE FROM ledger_event WHERE " IN_BATCH " AND pos <= $2"
                                 " AND EXISTS (SELECT 1 FROM ledger_archive a WHERE a.pos = ledger_event.pos)";
/* clang-format on */

static status run_on_batch(struct ledger *l, const struct archiving *a, const char *sql,
                         int64_t *changed, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(l->db, sql, &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, buf_str(&a->numbers));
    db_bind_int(q, 2, a->last_pos);
    st = db_run(q, changed, err);
    db_reset(q);
    return st;
}

/* Of a run that is a batch by itself and too large for one: its oldest events, and it is looked at
 * again. */
static status take_part(struct ledger *l, struct archiving *a, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    if (a->events <= ARCHIVE_EVENTS_MAX) return ST_OK;
    ASSERT(a->runs == 1);
    status st = db_prepare(l->db,
                           "SELECT pos FROM ledger_event WHERE run_no = $1 ORDER BY pos"
                           " LIMIT 1 OFFSET $2",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, a->next);
    db_bind_int(q, 2, ARCHIVE_EVENTS_MAX - 1);
    st = db_step(q, &row, err);
    if (st == ST_OK && row) {
        a->last_pos = db_int(q, 0);
        a->next--;
        a->runs = 0;
    }
    db_reset(q);
    return st;
}

static status move_batch(struct ledger *l, struct archiving *a, struct error *err) {
    int64_t copied = 0;
    int64_t deleted = 0;
    status st = take_part(l, a, err);
    if (st == ST_OK) st = schema_archive_views(l->db, err);
    if (st == ST_OK) st = run_on_batch(l, a, copy_sql, &copied, err);
    if (st == ST_CONFLICT)
        return error_at(err, REASON_LEDGER_DAMAGED, "",
                        "the archive already has events that are in the ledger");
    if (st == ST_OK) st = run_on_batch(l, a, delete_sql, &deleted, err);
    if (st == ST_OK && copied != deleted)
        st = error_at(err, REASON_LEDGER_DAMAGED, "",
                      "%lld events were copied to the archive, and %lld of them were there",
                      (long long)copied, (long long)deleted);
    a->events = copied;
    return st;
}

/* A ledger_body: one batch. */
static status archive_batch(struct ledger *l, void *context, struct error *err) {
    struct archiving *a = context;
    status st = ST_OK;
    if (db_is_postgres(l->db)) st = db_exec(l->db, "SELECT pg_advisory_xact_lock(4918273652)", err);
    if (st == ST_OK) st = choose_batch(l, a, err);
    if (st == ST_OK && a->runs > 0) st = move_batch(l, a, err);
    if (st == ST_OK && !a->at->begun) st = riders_write(l, a->request->riders, err);
    return st;
}

/* The run that the request names. */
static status find_run(struct ledger *l, str run_id, struct archive_at *at, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db,
                           "SELECT r.run_no, s.status FROM ledger_run r"
                           " JOIN state_run s ON s.run_no = r.run_no WHERE r.run_id = $1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, run_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row) {
        st = error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
    } else if (st == ST_OK && db_int(q, 1) < RUN_COMPLETED) {
        st = error_at(err, REASON_RUN_NOT_FINISHED, "",
                      "run \"%.*s\" is not finished: only finished runs are archived",
                      STR_ARG(run_id));
    }
    if (st == ST_OK) {
        at->last = db_int(q, 0);
        at->after = at->last - 1;
    }
    db_reset(q);
    return st;
}

/* Without one, all that are there now: runs go on ending meanwhile. */
static status find_last(struct ledger *l, struct archive_at *at, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, "SELECT COALESCE(MAX(run_no), 0) FROM ledger_run", &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st != ST_OK) return st;
    at->last = db_int(q, 0);
    db_reset(q);
    return ST_OK;
}

status ledger_archive_batch(struct ledger *l, const struct archive_request *request,
                          struct archive_at *at, struct error *err) {
    ASSERT(l->writer && !at->done);
    ASSERT(l->state != LEDGER_IN_MEMBER);
    struct archiving a = {.request = request, .at = at, .last_pos = INT64_MAX};
    status st = ledger_usable(l, err);
    if (st == ST_OK && !at->begun)
        st = request->run_id.ptr ? find_run(l, request->run_id, at, err) : find_last(l, at, err);
    if (st == ST_OK) {
        a.until = at->last - at->after > ARCHIVE_SCAN_MAX ? at->after + ARCHIVE_SCAN_MAX : at->last;
        buf_init(&a.numbers, (size_t)ARCHIVE_RUNS_MAX * NUMBER_CHARS + 2);
        st = ledger_transact(l, archive_batch, &a, err);
        buf_release(&a.numbers);
    }
    if (st != ST_OK) return error_wrap(err, "could not archive");
    at->begun = true;
    at->after = a.next;
    at->report.runs += a.runs;
    at->report.events += a.events;
    at->done =
        at->after >= at->last || (request->runs_max > 0 && at->report.runs >= request->runs_max);
    return ST_OK;
}

status ledger_archive(struct ledger *l, const struct archive_request *request,
                      ledger_progress progress, void *context, struct archive_report *report,
                      struct error *err) {
    struct archive_at at = {0};
    status st = ST_OK;
    while (st == ST_OK && !at.done) {
        int64_t runs = at.report.runs;
        st = ledger_archive_batch(l, request, &at, err);
        if (st == ST_OK && progress && at.report.runs > runs) progress(context, at.report.runs, 0);
    }
    *report = at.report;
    return st;
}
