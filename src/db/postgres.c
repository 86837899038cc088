/* db/postgres.c: the PostgreSQL driver, on libpq: connection and statements.
 *
 * Round trips are what a small commit pays for, so commands are sent in libpq's pipeline mode and
 * their answers are read when somebody needs one: BEGIN travels with the first command of the
 * transaction, PREPARE with the first use of a statement, and a bulk flush does not wait. Whatever
 * is under way is settled, and its first failure reported, by the next step, run, exec, COPY or
 * commit. COMMIT itself is sent only when all before it has succeeded. A COPY cannot travel in the
 * pipeline: either commands are under way or one COPY, which the next command ends.
 *
 * Values travel in binary both ways. A parameter has the type of what is bound (bigint, text,
 * bytea); if a later use binds another type the statement is prepared anew. A result comes whole:
 * callers page with LIMIT.
 *
 * A writer's session is set for many short, indexed statements: generic plans, and no sequential
 * or bitmap scan where an index serves. Plans are kept while a table grows from nothing to millions
 * of rows, and a plan that scans the empty table looks cheapest just then. Scan big tables on a
 * reader's connection, which plans as usual. */
#include "db/postgres_impl.h"

#include <limits.h>
#include <poll.h>

#include "base/buf.h"

struct pg_stmt {
    struct db_stmt base;
    struct pg_query query;
    PGresult *result; /* while reading */
    bool ahead;       /* sent by db_send(); the first step reads what came of it */
    int at;           /* the current row of it */
    struct db_cell row[DB_COLUMNS_MAX];
};

/* ---- errors ---- */

enum { STOP_LOOK_MS = 50 };

static bool state_is(const char *state, const char *prefix) {
    return strncmp(state, prefix, strlen(prefix)) == 0;
}

static status status_of(const char *state, enum db_mode mode) {
    static const char *const retry[] = {"08", "40", "53", "55P03", "55006", "57", "58", "XX000"};
    if (!state) return ST_RETRY; /* libpq's own: connection lost, out of memory */
    if (state_is(state, "23505")) return ST_CONFLICT;
    if (state_is(state, "XX001") || state_is(state, "XX002")) return ST_CORRUPT;
    /* A writer that meets a read-only server has met a standby: the primary is coming back
     * somewhere. */
    if (state_is(state, "25006") && mode == DB_WRITE) return ST_RETRY;
    for (size_t i = 0; i < COUNT_OF(retry); i++)
        if (state_is(state, retry[i])) return ST_RETRY;
    return ST_INVALID;
}

status pg_failed(const struct pg_db *db, const char *verb, const char *what, const PGresult *result,
                 struct error *err) {
    const char *state = pq->PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *why = pq->PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    if (!why) why = pq->PQerrorMessage(db->link->conn);
    int len = (int)strcspn(why, "\n");
    if (len == 0) {
        why = "the server did not say why";
        len = (int)strlen(why);
    }
    return error_set(err, status_of(state, db->base.mode), "could not %s \"%.*s\" on \"%s\": %.*s",
                     verb, db_sql_shown(what), what, db->label, len, why);
}

bool pg_is_good(const PGresult *result) {
    ExecStatusType kind = pq->PQresultStatus(result);
    return kind == PGRES_COMMAND_OK || kind == PGRES_TUPLES_OK;
}

/* ---- opening and closing ---- */

static void no_notice(void *arg, const char *message) {
    UNUSED(arg);
    UNUSED(message);
}

static const char *option(const PQconninfoOption *options, const char *name,
                          const char *otherwise) {
    for (; options && options->keyword; options++)
        if (strcmp(options->keyword, name) == 0 && options->val && options->val[0])
            return options->val;
    return otherwise;
}

/* Names the database for messages. libpq's own complaint about a bad URL quotes it, password and
 * all: not shown. */
static status make_label(struct pg_db *db, struct error *err) {
    char *complaint = NULL;
    PQconninfoOption *options = pq->PQconninfoParse(db->url, &complaint);
    pq->PQfreemem(complaint);
    if (!options)
        return error_set(err, ST_INVALID,
                         "could not open database: it is not a valid postgresql:// URL");
    struct buf b;
    buf_init(&b, 1024);
    buf_printf(&b, "%s:%s/%s", option(options, "host", "localhost"),
               option(options, "port", "5432"), option(options, "dbname", ""));
    buf_put_char(&b, '\0');
    db->label = b.full ? NULL : mem_alloc(b.len);
    if (db->label) memcpy(db->label, b.ptr, b.len);
    buf_release(&b);
    pq->PQconninfoFree(options);
    return db->label ? ST_OK : error_set(err, ST_RETRY, "could not open database: out of memory");
}

static status connect_to(struct pg_db *db, struct error *err) {
    /* What stands before the URL can be overridden by it; what stands behind cannot. A dead peer is
     * noticed within half a minute, whether we wait for an answer (keepalives) or for the network
     * to take our bytes. */
    bool write = db->base.mode == DB_WRITE;
    const char *const names[] = {"connect_timeout",      "keepalives_idle",
                                 "keepalives_interval",  "keepalives_count",
                                 "tcp_user_timeout",     "application_name",
                                 "target_session_attrs", "dbname",
                                 "client_encoding",      NULL};
    const char *const values[] = {
        "10",    "10",   "5", "4", "30000", "cairn", write ? "read-write" : "any",
        db->url, "UTF8", NULL};
    db->link->conn = pq->PQconnectdbParams(names, values, 1);
    if (pq->PQstatus(db->link->conn) != CONNECTION_OK) {
        const char *why = pq->PQerrorMessage(db->link->conn);
        return error_set(err, ST_RETRY, "could not open database \"%s\": %.*s", db->label,
                         (int)strcspn(why, "\n"), why);
    }
    pq->PQsetNoticeProcessor(db->link->conn, no_notice, NULL);
    return ST_OK;
}

static status set_session(struct pg_db *db, struct error *err) {
    char sql[512];
    struct buf b;
    buf_init_fixed(&b, sql, sizeof sql);
    buf_put_c(&b, "SET synchronous_commit=on; SET jit=off; SET client_min_messages=error; ");
    buf_printf(&b, "SET standard_conforming_strings=on; SET lock_timeout=%d; ", DB_BUSY_TIMEOUT_MS);
    buf_put_c(&b, db->base.mode == DB_WRITE
                      ? "SET plan_cache_mode=force_generic_plan; SET enable_seqscan=off; "
                        "SET enable_bitmapscan=off"
                      : "SET default_transaction_read_only=on");
    buf_put_char(&b, '\0');
    ASSERT(!b.full);
    PGresult *result = pq->PQexec(db->link->conn, sql);
    status st = pg_is_good(result) ? ST_OK : pg_failed(db, "run", sql, result, err);
    pq->PQclear(result);
    return st;
}

/* Opens the connection that db->link is; a new session knows no statement. */
status pg_open_link(struct pg_db *db, struct error *err) {
    pq->PQfinish(db->link->conn);
    status st = connect_to(db, err);
    if (st == ST_OK) st = set_session(db, err);
    db->link->session = ++db->sessions;
    if (st == ST_OK) return ST_OK;
    pq->PQfinish(db->link->conn);
    db->link->conn = NULL;
    return st;
}

static void pg_close(struct db *base) {
    struct pg_db *db = (struct pg_db *)base;
    for (int i = 0; i < PG_LINKS; i++)
        pq->PQfinish(db->links[i].conn);
    mem_free(db->url);
    mem_free(db->label);
    mem_free(db->bytes);
    mem_free(db);
}

static const struct db_ops pg_ops;

status postgres_open(str url, enum db_mode mode, struct db **out, struct error *err) {
    status st = libpq_load(err);
    if (st != ST_OK) return st;
    struct pg_db *db = mem_alloc(sizeof *db);
    if (!db) return error_set(err, ST_RETRY, "could not open database: out of memory");
    db_init(&db->base, &pg_ops, "postgres", true, mode);
    db->base.overlaps = true;
    db->link = db->links;
    db->url = mem_alloc(url.len + 1);
    if (db->url) {
        memcpy(db->url, url.ptr, url.len);
        st = make_label(db, err);
    } else {
        st = error_set(err, ST_RETRY, "could not open database: out of memory");
    }
    if (st == ST_OK) st = pg_open_link(db, err);
    if (st == ST_OK)
        *out = &db->base;
    else
        pg_close(&db->base);
    return st;
}

/* ---- sending and settling ---- */

const char *pg_begin_sql(const struct pg_db *db) {
    return db->link->begin_write ? "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
                                 : "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
}

void pg_query_init(struct pg_db *db, struct pg_query *query, const char *sql) {
    struct buf b;
    buf_init_fixed(&b, query->name, sizeof query->name);
    buf_printf(&b, "c%u", db->names++);
    buf_put_char(&b, '\0');
    ASSERT(!b.full);
    query->sql = sql;
}

status pg_reserve(struct pg_db *db, size_t size, struct error *err) {
    if (size <= db->bytes_cap) return ST_OK;
    size_t cap = size + size / 2;
    char *bytes = mem_grow(db->bytes, db->bytes_cap, cap);
    if (!bytes)
        return error_set(err, ST_RETRY, "could not send %zu bytes to \"%s\": out of memory", size,
                         db->label);
    db->bytes = bytes;
    db->bytes_cap = cap;
    return ST_OK;
}

static void note_sent(struct pg_db *db, struct pg_sent what) {
    ASSERT(db->link->nsent < PG_SENT_MAX);
    db->link->sent[db->link->nsent++] = what;
}

/* Each PQsend... copies what it is given. 1 on success, like libpq. */
static int send_all(struct pg_db *db, struct pg_query *query, const char *const *values,
                    const int *lengths, struct pg_sent what) {
    if (db->link->nsent == 0 && !pq->PQenterPipelineMode(db->link->conn)) return 0;
    if (db->link->begin_due) {
        if (!pq->PQsendQueryParams(db->link->conn, pg_begin_sql(db), 0, NULL, NULL, NULL, NULL,
                                   PG_BINARY))
            return 0;
        db->link->begin_due = false;
        note_sent(db, (struct pg_sent){.kind = PG_SENT_BEGIN});
    }
    if (!pg_knows(db, query)) {
        if (!pq->PQsendPrepare(db->link->conn, query->name, query->sql, query->nparams,
                               query->types))
            return 0;
        pg_set_known(db, query, true); /* until its answer says otherwise */
        note_sent(db, (struct pg_sent){.kind = PG_SENT_PREPARE, .query = query});
    }
    static const int binary[DB_PARAMS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (!pq->PQsendQueryPrepared(db->link->conn, query->name, query->nparams, values, lengths,
                                 binary, PG_BINARY))
        return 0;
    what.query = query;
    note_sent(db, what);
    return 1;
}

/* A connection that is out of step cannot be waited on: the server may be waiting for us. libpq
 * answers for a NULL connection with failures, so everything that follows fails, too. */
status pg_give_up(struct pg_db *db, const char *verb, const char *what, struct error *err) {
    status st = pg_failed(db, verb, what, NULL, err);
    pq->PQfinish(db->link->conn);
    db->link->conn = NULL;
    db->link->nsent = 0;
    db->link->synced = false;
    db->link->copy = NULL;
    return st;
}

status pg_send(struct pg_db *db, struct pg_query *query, const char *const *values,
               const int *lengths, struct pg_sent what, struct error *err) {
    bool settle = db->link->copy || db->link->nsent > PG_SENT_MAX - 3;
    pg_help_ending(db);
    status st = settle ? pg_settle(db, NULL, err) : ST_OK;
    if (st != ST_OK) return st;
    if (send_all(db, query, values, lengths, what)) return ST_OK;
    return pg_give_up(db, "send", query->sql, err); /* a part of it may be on its way */
}

static status check_bulk(const struct pg_db *db, const struct pg_sent *sent, PGresult *result,
                         struct error *err) {
    int64_t changed = 0;
    if (str_to_int(str_c(pq->PQcmdTuples(result)), &changed) && changed == sent->rows) return ST_OK;
    const struct db_bulk_spec *spec = &sent->bulk->spec;
    return error_set(err, ST_CONFLICT, "could not %s \"%s\" on \"%s\": %lld of %lld rows %s",
                     db_bulk_verb(spec->kind), spec->table, db->label, (long long)changed,
                     (long long)sent->rows, spec->kind == DB_INSERT ? "were taken" : "are there");
}

static status check_sent(const struct pg_db *db, const struct pg_sent *sent, PGresult *result,
                         struct error *err) {
    if (pg_is_good(result))
        return sent->kind == PG_SENT_BULK ? check_bulk(db, sent, result, err) : ST_OK;
    switch (sent->kind) {
    case PG_SENT_BEGIN:
        return pg_failed(db, "run", "BEGIN", result, err);
    case PG_SENT_PREPARE:
        return pg_failed(db, "prepare", sent->query->sql, result, err);
    case PG_SENT_ROWS:
        return pg_failed(db, "run", sent->query->sql, result, err);
    case PG_SENT_BULK:
        return pg_failed(db, sent->bulk->spec.kind == DB_INSERT ? "insert into" : "update",
                         sent->bulk->spec.table, result, err);
    }
    return ST_OK;
}

static void ask_to_cancel(struct pg_db *db) {
    char ignored[256];
    PGcancel *cancel = pq->PQgetCancel(db->link->conn);
    if (cancel) (void)pq->PQcancel(cancel, ignored, sizeof(ignored));
    pq->PQfreeCancel(cancel);
}

/* Waits for an answer; a query that shall stop is answered with an error, soon. */
static void wait_for_answer(struct pg_db *db) {
    while (pq->PQisBusy(db->link->conn)) {
        struct pollfd fd = {.fd = pq->PQsocket(db->link->conn), .events = POLLIN};
        if (db_stopped(&db->base)) {
            ask_to_cancel(db);
            return;
        }
        (void)poll(&fd, 1, STOP_LOOK_MS);
        /* Whatever poll() says: of what TLS has read already it does not know. */
        if (!pq->PQconsumeInput(db->link->conn)) return;
    }
}

/* Reads the answer to one command; false when the connection has nothing more to say. */
static bool read_sent(struct pg_db *db, struct pg_sent *sent, PGresult **last, status *st,
                      struct error *err) {
    if (db->base.stop) wait_for_answer(db);
    pg_wait_helping(db);
    PGresult *result = pq->PQgetResult(db->link->conn);
    if (sent->kind == PG_SENT_PREPARE && !pg_is_good(result)) pg_set_known(db, sent->query, false);
    if (*st == ST_OK)
        *st = check_sent(db, sent, result, err); /* after a failure the rest only says "aborted" */
    pq->PQclear(*last);
    *last = result;
    if (!result) return false;
    if (sent->answer && pg_is_good(result)) {
        *sent->answer = result;
        *last = NULL;
    }
    pq->PQclear(pq->PQgetResult(db->link->conn)); /* the NULL between two answers */
    return true;
}

status pg_settle(struct pg_db *db, PGresult **rows, struct error *err) {
    if (db->link->copy) return pg_copy_settle(db, err);
    if (db->link->nsent == 0) return ST_OK;
    if (!db->link->synced && !pq->PQpipelineSync(db->link->conn))
        return pg_give_up(db, "talk to", db->label, err);
    db->link->synced = false;
    status st = ST_OK;
    PGresult *last = NULL;
    for (int i = 0; i < db->link->nsent; i++)
        if (!read_sent(db, &db->link->sent[i], &last, &st, err)) break;
    db->link->nsent = 0;
    PGresult *sync = pq->PQgetResult(db->link->conn);
    bool good =
        pq->PQresultStatus(sync) == PGRES_PIPELINE_SYNC && pq->PQexitPipelineMode(db->link->conn);
    pq->PQclear(sync);
    if (!good) {
        struct error lost = {0};
        status gave_up = pg_give_up(db, "talk to", db->label, &lost);
        if (st == ST_OK) *err = lost;
        if (st == ST_OK) st = gave_up;
    }
    if (rows && st == ST_OK)
        *rows = last;
    else
        pq->PQclear(last);
    return st;
}

/* ---- statements ---- */

/* Nothing is sent yet: the types of the parameters are known when they are bound. */
static status pg_prepare(struct db *base, const char *source, const char *sql, int nparams,
                         struct db_stmt **out, struct error *err) {
    UNUSED(source);
    struct pg_db *db = (struct pg_db *)base;
    struct pg_stmt *st = mem_alloc(sizeof *st);
    if (!st)
        return error_set(err, ST_RETRY, "could not prepare \"%.*s\" on \"%s\": out of memory",
                         db_sql_shown(sql), sql, db->label);
    pg_query_init(db, &st->query, sql);
    st->query.nparams = nparams;
    *out = &st->base;
    return ST_OK;
}

static Oid type_of(uint32_t kind) {
    switch ((enum db_cell_kind)kind) {
    case DB_CELL_NULL:
        return 0;
    case DB_CELL_INT:
        return PG_INT8;
    case DB_CELL_TEXT:
        return PG_TEXT;
    case DB_CELL_BLOB:
        return PG_BYTEA;
    }
    return 0;
}

/* NULL fits every type. Any other change needs the statement prepared anew, under a new name: the
 * old one may still be on its way. Such a change happens once or twice in a statement's life, so
 * the old one is left to the session. */
static void take_types(struct pg_stmt *st) {
    bool changed = false;
    for (int i = 0; i < st->base.nparams; i++) {
        Oid type = type_of(st->base.params[i].kind);
        if (type == 0 || type == st->query.types[i]) continue;
        st->query.types[i] = type;
        changed = true;
    }
    if (!changed) return;
    pg_query_init((struct pg_db *)st->base.db, &st->query, st->base.sql);
    for (int i = 0; i < PG_LINKS; i++)
        st->query.prepared[i] = 0;
}

static status send_stmt(struct pg_stmt *st, PGresult **answer, struct error *err) {
    struct pg_values values;
    take_types(st);
    for (int i = 0; i < st->base.nparams; i++)
        pg_set_value(&values, i, &st->base.params[i]);
    return pg_send((struct pg_db *)st->base.db, &st->query, values.at, values.len,
                   (struct pg_sent){.kind = PG_SENT_ROWS, .answer = answer}, err);
}

static status pg_send_ahead(struct db_stmt *base, struct error *err) {
    struct pg_stmt *st = (struct pg_stmt *)base;
    ASSERT(!st->result);
    ASSERT(!st->ahead);
    status s = send_stmt(st, &st->result, err);
    st->ahead = s == ST_OK;
    return s;
}

/* The answer, which may be here already if the statement was sent ahead. */
static status take_result(struct pg_stmt *st, struct error *err) {
    struct pg_db *db = (struct pg_db *)st->base.db;
    bool ahead = st->ahead;
    ASSERT(ahead || !st->result);
    st->ahead = false;
    if (ahead && st->result) return ST_OK;
    status s = ahead ? ST_OK : send_stmt(st, NULL, err);
    if (s == ST_OK) s = pg_settle(db, ahead ? NULL : &st->result, err);
    if (s == ST_OK && !st->result) s = pg_failed(db, "run", st->base.sql, NULL, err);
    return s;
}

static uint64_t get_big(const char *at, int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; i++)
        value = value << 8 | (uint8_t)at[i];
    return value;
}

/* A numeric is what sum() of bigints gives: groups of four decimal digits, the first worth
 * 10000^weight. */
static bool take_numeric(const char *at, int len, int64_t *out) {
    if (len < 8) return false;
    int ndigits = (int16_t)get_big(at, 2);
    int weight = (int16_t)get_big(at + 2, 2);
    uint64_t sign = get_big(at + 4, 2);
    bool negative = sign == 0x4000;
    if ((sign != 0 && !negative) || len < 8 + 2 * ndigits || ndigits > weight + 1) return false;
    int64_t n = 0; /* kept negative: it reaches one further */
    for (int i = 0; i <= weight; i++) {
        int64_t digit = i < ndigits ? (int64_t)get_big(at + 8 + 2 * (ptrdiff_t)i, 2) : 0;
        if (__builtin_mul_overflow(n, 10000, &n) || __builtin_sub_overflow(n, digit, &n))
            return false;
    }
    if (!negative && n == INT64_MIN) return false;
    *out = negative ? n : -n;
    return true;
}

static void set_int(struct db_cell *cell, int64_t value) {
    cell->kind = DB_CELL_INT;
    cell->as.number = value;
}

static void set_bytes(struct db_cell *cell, enum db_cell_kind kind, const char *at, int len) {
    cell->kind = kind;
    cell->as.ptr = at;
    cell->len = (uint32_t)len;
}

/* One value into a cell; false if its type or value is none that we have. */
static bool take_cell(const PGresult *result, int row, int col, struct db_cell *cell) {
    const char *at = pq->PQgetvalue(result, row, col);
    int len = pq->PQgetlength(result, row, col);
    cell->kind = DB_CELL_NULL;
    if (pq->PQgetisnull(result, row, col)) return true;
    switch (pq->PQftype(result, col)) {
    case PG_INT8:
        set_int(cell, (int64_t)get_big(at, 8));
        return len == 8;
    case PG_INT4:
        set_int(cell, (int32_t)get_big(at, 4));
        return len == 4;
    case PG_INT2:
        set_int(cell, (int16_t)get_big(at, 2));
        return len == 2;
    case PG_BOOL:
        set_int(cell, at[0] != 0);
        return len == 1;
    case PG_NUMERIC:
        cell->kind = DB_CELL_INT;
        return take_numeric(at, len, &cell->as.number);
    case PG_TEXT:
    case PG_VARCHAR:
    case PG_BPCHAR:
    case PG_NAME:
    case PG_JSON:
    case PG_UNKNOWN:
        set_bytes(cell, DB_CELL_TEXT, at, len);
        return true;
    case PG_JSONB:
        set_bytes(cell, DB_CELL_TEXT, at + 1, len - 1);
        return len >= 1; /* after its version */
    case PG_BYTEA:
    case PG_UUID:
        set_bytes(cell, DB_CELL_BLOB, at, len);
        return true;
    case PG_VOID:
        return true;
    default:
        return false;
    }
}

static status take_row(struct pg_stmt *st, struct error *err) {
    const struct pg_db *db = (const struct pg_db *)st->base.db;
    int ncols = pq->PQnfields(st->result);
    if (ncols > DB_COLUMNS_MAX)
        return error_set(err, ST_LIMIT, "could not read \"%.*s\" on \"%s\": more than %d columns",
                         db_sql_shown(st->base.sql), st->base.sql, db->label, DB_COLUMNS_MAX);
    for (int i = 0; i < ncols; i++) {
        if (take_cell(st->result, st->at, i, &st->row[i])) continue;
        return error_set(
            err, ST_INVALID, "could not read column %d of \"%.*s\" on \"%s\": a value of type %u",
            i, db_sql_shown(st->base.sql), st->base.sql, db->label, pq->PQftype(st->result, i));
    }
    st->base.ncols = ncols;
    st->base.row = st->row;
    return ST_OK;
}

static status pg_step(struct db_stmt *base, bool *row, struct error *err) {
    struct pg_stmt *st = (struct pg_stmt *)base;
    if (base->reading) {
        st->at++;
    } else {
        status s = take_result(st, err);
        if (s != ST_OK) return s;
        st->at = 0;
    }
    *row = st->at < pq->PQntuples(st->result);
    return *row ? take_row(st, err) : ST_OK;
}

static status pg_run(struct db_stmt *base, int64_t *changed, struct error *err) {
    struct pg_stmt *st = (struct pg_stmt *)base;
    status s = take_result(st, err);
    if (s != ST_OK) return s;
    str count = str_c(pq->PQcmdTuples(st->result));
    bool write = !str_starts(str_c(pq->PQcmdStatus(st->result)), STR("SELECT"));
    if (!write || !str_to_int(count, changed)) *changed = 0;
    return ST_OK;
}

static void pg_reset(struct db_stmt *base) {
    struct pg_stmt *st = (struct pg_stmt *)base;
    struct pg_db *db = (struct pg_db *)base->db;
    for (int i = 0; st->ahead && i < db->link->nsent; i++) /* what is still to come is for nobody */
        if (db->link->sent[i].answer == &st->result) db->link->sent[i].answer = NULL;
    st->ahead = false;
    pq->PQclear(st->result);
    st->result = NULL;
}

static void pg_stmt_free(struct db_stmt *base) {
    pq->PQclear(((struct pg_stmt *)base)->result); /* an answer that nobody took */
    mem_free(base);
}

static status pg_backup(struct db *base, str path, struct error *err) {
    const struct pg_db *db = (const struct pg_db *)base;
    UNUSED(path);
    return error_set(err, ST_INVALID, "could not back up \"%s\": use pg_dump for PostgreSQL",
                     db->label);
}

static const struct db_ops pg_ops = {
    .exec = pg_exec,
    .begin = pg_begin,
    .commit = pg_commit,
    .commit_send = pg_commit_send,
    .commit_wait = pg_commit_wait,
    .rollback = pg_rollback,
    .prepare = pg_prepare,
    .step = pg_step,
    .send = pg_send_ahead,
    .run = pg_run,
    .reset = pg_reset,
    .stmt_free = pg_stmt_free,
    .bulk_open = pg_bulk_open,
    .bulk_flush = pg_bulk_flush,
    .bulk_push = pg_bulk_push,
    .bulk_free = pg_bulk_free,
    .backup = pg_backup,
    .close = pg_close,
};
