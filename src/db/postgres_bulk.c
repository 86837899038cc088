/* db/postgres_bulk.c: many rows at once for PostgreSQL.
 *
 * Three ways, each the fastest for its number of rows. One or two rows go as plain statements, in
 * the pipeline: setting up a scan over arrays costs as much as both. More go as one statement over
 * arrays, one array a column, side by side through unnest(), in the pipeline too. Many inserts go
 * by binary COPY, which the server takes fastest, though it costs two round trips of its own and
 * cannot travel in the pipeline. Updates count: as many rows must change as were sent.
 *
 * A COPY is asked for, opened by the server's answer, fed, ended, and settled when something else
 * is to be sent: between these steps the caller goes on while the server works.
 *
 * Tried and slower: VALUES lists of many rows, arrays of a composite type (little gained, and tied
 * to the table's shape), COPY into a temporary table and UPDATE from there, INSERT ... ON CONFLICT
 * DO UPDATE, a loop in PL/pgSQL. */
#include "db/postgres_impl.h"

#include "base/buf.h"

enum {
    PLAIN_ROWS_MAX = 2,  /* up to here one statement a row is the faster way, */
    COPY_ROWS_MIN = 128, /* from here on COPY is, though it interrupts the pipeline */
    COPY_ROWS_MAX =
        512, /* of one command: the server holds up to 1000, at a cost that is quadratic */
    COPY_PIECE_BYTES = 65536, /* handed to libpq at a time */
    ARRAY_HEAD_BYTES = 20,    /* dimensions, flags, element type, length, lower bound */
    ARRAYS_BYTES_MAX =
        512 * 1024 * 1024, /* of one statement; the server takes a message of 1 GiB */
};

struct pg_bulk {
    struct db_bulk base;
    struct pg_query plain, arrays; /* the statement for one row, and the one over arrays */
    char *plain_sql, *arrays_sql;  /* their texts; owned */
    char *copy_sql;                /* "COPY ..."; owned; only used for inserts */
};

/* ---- SQL ---- */

static Oid element_type(enum db_type type) {
    switch (type) {
    case DB_INT:
        return PG_INT8;
    case DB_TEXT:
        return PG_TEXT;
    case DB_BLOB:
        return PG_BYTEA;
    }
    return 0;
}

static const char *array_type(enum db_type type) {
    switch (type) {
    case DB_INT:
        return "bigint[]";
    case DB_TEXT:
        return "text[]";
    case DB_BLOB:
        return "bytea[]";
    }
    return NULL;
}

/* In the list of a SELECT, where each array hands out its values one by one; as a table function
 * (FROM unnest($1, $2)) each would be stored first, and that costs a fifth of the statement. */
static void put_unnest(struct buf *b, const struct db_bulk_spec *spec) {
    for (int i = 0; i < spec->ncols; i++)
        buf_printf(b, "%sunnest($%d::%s) AS %s", i == 0 ? "SELECT " : ", ", i + 1,
                   array_type(spec->cols[i].type), spec->cols[i].name);
}

static void put_insert_one(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "INSERT INTO %s (", spec->table);
    db_put_names(b, spec, 0);
    for (int i = 0; i < spec->ncols; i++)
        buf_printf(b, "%s$%d", i == 0 ? ") VALUES (" : ", ", i + 1);
    buf_put_char(b, ')');
}

static void put_insert_many(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "INSERT INTO %s (", spec->table);
    db_put_names(b, spec, 0);
    buf_put_c(b, ") ");
    put_unnest(b, spec);
}

static void put_update_one(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "UPDATE %s SET ", spec->table);
    for (int i = spec->keys; i < spec->ncols; i++)
        buf_printf(b, "%s%s = $%d", i == spec->keys ? "" : ", ", spec->cols[i].name, i + 1);
    for (int i = 0; i < spec->keys; i++)
        buf_printf(b, "%s%s = $%d", i == 0 ? " WHERE " : " AND ", spec->cols[i].name, i + 1);
}

/* The plan is kept while the table grows from nothing to millions of rows, and for an empty table
 * the cheapest plan is to read all of it and compare: quadratic later. So keys are matched with =
 * ANY of an array of one, which an index serves but no full scan, hash or merge join does (and a
 * writer has sequential scans off). It costs 7 %. */
static void put_update_many(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "UPDATE %s AS t SET ", spec->table);
    for (int i = spec->keys; i < spec->ncols; i++)
        buf_printf(b, "%s%s = u.%s", i == spec->keys ? "" : ", ", spec->cols[i].name,
                   spec->cols[i].name);
    buf_put_c(b, " FROM (");
    put_unnest(b, spec);
    buf_put_c(b, ") AS u");
    for (int i = 0; i < spec->keys; i++)
        buf_printf(b, "%st.%s = ANY (ARRAY[u.%s])", i == 0 ? " WHERE " : " AND ",
                   spec->cols[i].name, spec->cols[i].name);
}

static void put_delete_one(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "DELETE FROM %s", spec->table);
    for (int i = 0; i < spec->keys; i++)
        buf_printf(b, "%s%s = $%d", i == 0 ? " WHERE " : " AND ", spec->cols[i].name, i + 1);
}

static void put_delete_many(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "DELETE FROM %s AS t USING (", spec->table);
    put_unnest(b, spec);
    buf_put_c(b, ") AS u");
    for (int i = 0; i < spec->keys; i++)
        buf_printf(b, "%st.%s = ANY (ARRAY[u.%s])", i == 0 ? " WHERE " : " AND ",
                   spec->cols[i].name, spec->cols[i].name);
}

static void put_copy(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "COPY %s (", spec->table);
    db_put_names(b, spec, 0);
    buf_put_c(b, ") FROM STDIN (FORMAT binary)");
}

/* The text that `put` writes, owned by the caller; NULL when memory is out. */
static char *make_sql(void (*put)(struct buf *, const struct db_bulk_spec *),
                      const struct db_bulk_spec *spec) {
    struct buf b;
    buf_init(&b, DB_SQL_BYTES_MAX);
    put(&b, spec);
    char *sql = b.full ? NULL : mem_alloc(b.len + 1);
    if (sql) memcpy(sql, b.ptr, b.len);
    buf_release(&b);
    return sql;
}

void pg_bulk_free(struct db_bulk *base) {
    struct pg_bulk *b = (struct pg_bulk *)base;
    mem_free(b->plain_sql);
    mem_free(b->arrays_sql);
    mem_free(b->copy_sql);
    mem_free(b);
}

status pg_bulk_open(struct db *base, const struct db_bulk_spec *spec, struct db_bulk **out,
                    struct error *err) {
    struct pg_db *db = (struct pg_db *)base;
    struct pg_bulk *b = mem_alloc(sizeof *b);
    if (b) {
        static void (*const one[])(struct buf *,
                                   const struct db_bulk_spec *) = {[DB_INSERT] = put_insert_one,
                                                                   [DB_UPDATE] = put_update_one,
                                                                   [DB_DELETE] = put_delete_one};
        static void (*const many[])(struct buf *,
                                    const struct db_bulk_spec *) = {[DB_INSERT] = put_insert_many,
                                                                    [DB_UPDATE] = put_update_many,
                                                                    [DB_DELETE] = put_delete_many};
        b->plain_sql = make_sql(one[spec->kind], spec);
        b->arrays_sql = make_sql(many[spec->kind], spec);
        b->copy_sql = make_sql(put_copy, spec);
    }
    if (!b || !b->plain_sql || !b->arrays_sql || !b->copy_sql) {
        if (b) pg_bulk_free(&b->base);
        return error_set(err, ST_RETRY,
                         "could not prepare to write to \"%s\" on \"%s\": out of memory",
                         spec->table, db->label);
    }
    pg_query_init(db, &b->plain, b->plain_sql);
    pg_query_init(db, &b->arrays, b->arrays_sql);
    b->plain.nparams = b->arrays.nparams = spec->ncols;
    for (int i = 0; i < spec->ncols; i++)
        b->plain.types[i] = element_type(spec->cols[i].type);
    *out = &b->base;
    return ST_OK;
}

/* ---- encoding ---- */

/* A value as COPY and arrays both have it: its length, or -1 for NULL, and its bytes. */
static inline size_t value_size(const struct db_cell *cell) {
    return 4 + (size_t)(cell->kind == DB_CELL_NULL ? 0 : cell->kind == DB_CELL_INT ? 8 : cell->len);
}

static inline char *put_value(char *at, const struct db_cell *cell) {
    if (cell->kind == DB_CELL_NULL) return pg_put32(at, UINT32_MAX);
    if (cell->kind == DB_CELL_INT) return pg_put64(pg_put32(at, 8), (uint64_t)cell->as.number);
    at = pg_put32(at, cell->len);
    memcpy(at, cell->as.ptr, cell->len);
    return at + cell->len;
}

/* One column of all rows as an array. */
static char *put_array(char *at, const struct db_bulk *b, int col, size_t rows) {
    char *head = at;
    uint32_t nulls = 0;
    at += ARRAY_HEAD_BYTES;
    const struct db_cell *cell = b->cells + col;
    for (size_t i = 0; i < rows; i++, cell += b->spec.ncols) {
        nulls |= cell->kind == DB_CELL_NULL;
        at = put_value(at, cell);
    }
    head = pg_put32(head, 1);
    head = pg_put32(head, nulls);
    head = pg_put32(head, element_type(b->spec.cols[col].type));
    head = pg_put32(head, (uint32_t)rows);
    pg_put32(head, 1);
    return at;
}

/* ---- sending ---- */

static status flush_arrays(struct pg_bulk *b, size_t rows, struct error *err) {
    struct pg_db *db = (struct pg_db *)b->base.db;
    int ncols = b->base.spec.ncols;
    size_t size = ARRAY_HEAD_BYTES * (size_t)ncols;
    for (size_t i = 0; i < b->base.ncells; i++)
        size += value_size(&b->base.cells[i]);
    if (size > ARRAYS_BYTES_MAX)
        return error_set(err, ST_LIMIT,
                         "could not write to \"%s\" on \"%s\": %zu bytes in one statement",
                         b->base.spec.table, db->label, size);
    status st = pg_reserve(db, size, err);
    if (st != ST_OK) return st;
    const char *values[DB_COLUMNS_MAX];
    int lengths[DB_COLUMNS_MAX];
    char *at = db->bytes;
    for (int i = 0; i < ncols; i++) {
        values[i] = at;
        at = put_array(at, &b->base, i, rows);
        lengths[i] = (int)(at - values[i]);
    }
    ASSERT((size_t)(at - db->bytes) == size);
    struct pg_sent what = {.kind = PG_SENT_BULK, .bulk = &b->base, .rows = (int64_t)rows};
    return pg_send(db, &b->arrays, values, lengths, what, err);
}

static status flush_plain(struct pg_bulk *b, size_t rows, struct error *err) {
    struct pg_db *db = (struct pg_db *)b->base.db;
    struct pg_sent what = {.kind = PG_SENT_BULK, .bulk = &b->base, .rows = 1};
    const struct db_cell *cell = b->base.cells;
    for (size_t i = 0; i < rows; i++) {
        struct pg_values values;
        for (int j = 0; j < b->base.spec.ncols; j++)
            pg_set_value(&values, j, cell++);
        status st = pg_send(db, &b->plain, values.at, values.len, what, err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

/* Asks for a COPY. The answer is read when the first rows are ready: the server opens the table
 * meanwhile. */
static status ask_copy(struct pg_bulk *b, struct error *err) {
    struct pg_db *db = (struct pg_db *)b->base.db;
    char sql[4096];
    struct buf text;
    status st = pg_settle(db, NULL, err);
    if (st != ST_OK) return st;
    buf_init_fixed(&text, sql, sizeof sql);
    if (db->link->begin_due) buf_printf(&text, "%s;", pg_begin_sql(db));
    buf_put_c(&text, b->copy_sql);
    buf_put_char(&text, '\0');
    if (text.full)
        return error_set(err, ST_LIMIT,
                         "could not insert into \"%s\": its column names are too long",
                         b->base.spec.table);
    db->link->begin_due = false;
    if (!pq->PQsendQuery(db->link->conn, sql))
        return pg_failed(db, "insert into", b->base.spec.table, NULL, err);
    db->link->copy = &b->base;
    db->link->copy_state = PG_COPY_ASKED;
    db->link->copy_rows = 0;
    return ST_OK;
}

/* Reads answers until there are no more, or the server waits for rows: *waits. Only the COPY's own
 * success counts in *taken. */
static status read_copy(struct pg_db *db, bool *waits, int64_t *taken, struct error *err) {
    status st = ST_OK;
    *waits = false;
    pg_wait_helping(db);
    for (PGresult *result; !*waits && (result = pq->PQgetResult(db->link->conn));) {
        ExecStatusType kind = pq->PQresultStatus(result);
        if (kind == PGRES_COPY_IN)
            *waits = true;
        else if (kind == PGRES_COMMAND_OK)
            (void)str_to_int(str_c(pq->PQcmdTuples(result)), taken);
        else if (st == ST_OK)
            st = pg_failed(db, "insert into", db->link->copy->spec.table, result, err);
        pq->PQclear(result);
    }
    return st;
}

/* Reads the answer to what ask_copy() sent: that of BEGIN, perhaps, and that the server waits for
 * rows. */
static status open_copy(struct pg_db *db, struct error *err) {
    bool waits = false;
    int64_t ignored = 0;
    status st = read_copy(db, &waits, &ignored, err);
    if (st == ST_OK && !waits)
        st = pg_failed(db, "insert into", db->link->copy->spec.table, NULL, err);
    if (st != ST_OK) {
        db->link->copy = NULL;
        return st;
    }
    db->link->copy_state = PG_COPY_OPEN;
    static const char head[] =
        "PGCOPY\n\377\r\n\0\0\0\0\0\0\0\0"; /* signature, flags, extension length */
    static_assert(sizeof head == 19, "11 bytes of signature, two int32");
    (void)pq->PQputCopyData(db->link->conn, head, sizeof head);
    return ST_OK;
}

/* Encodes the rows and hands them to libpq in large pieces. A failure to send shows up as the
 * result of the COPY. */
static status send_rows(struct pg_db *db, const struct db_bulk *b, struct error *err) {
    size_t ncols = (size_t)b->spec.ncols;
    size_t rows = db_bulk_rows(b);
    size_t used = 0;
    status st = pg_reserve(db, COPY_PIECE_BYTES, err);
    for (size_t i = 0; i < rows && st == ST_OK; i++) {
        const struct db_cell *cell = b->cells + i * ncols;
        size_t size = 2;
        for (size_t j = 0; j < ncols; j++)
            size += value_size(&cell[j]);
        if (used + size > COPY_PIECE_BYTES) {
            if (pq->PQputCopyData(db->link->conn, db->bytes, (int)used) != 1) return ST_OK;
            used = 0;
            st = pg_reserve(db, size, err);
            if (st != ST_OK) return st;
        }
        char *at = pg_put16(db->bytes + used, (uint16_t)ncols);
        for (size_t j = 0; j < ncols; j++)
            at = put_value(at, &cell[j]);
        used += size;
    }
    if (st == ST_OK && used > 0) (void)pq->PQputCopyData(db->link->conn, db->bytes, (int)used);
    db->link->copy_rows += (int64_t)rows;
    return st;
}

static void end_copy(struct pg_db *db) {
    static const char end[2] = {'\377', '\377'};
    (void)pq->PQputCopyData(db->link->conn, end, sizeof end);
    (void)pq->PQputCopyEnd(db->link->conn, NULL); /* a failure shows up as the result */
    db->link->copy_state = PG_COPY_ENDED;
}

/* An answer that does not come is a failure. */
status pg_copy_settle(struct pg_db *db, struct error *err) {
    if (!db->link->copy) return ST_OK;
    status st = db->link->copy_state == PG_COPY_ASKED ? open_copy(db, err) : ST_OK;
    if (st != ST_OK) return st;
    if (db->link->copy_state == PG_COPY_OPEN) end_copy(db);
    bool waits = false; /* the end could not be sent; the rollback tries again */
    int64_t taken = -1;
    st = read_copy(db, &waits, &taken, err);
    if (st == ST_OK && taken != db->link->copy_rows)
        st = error_set(err, ST_CONFLICT,
                       "could not insert into \"%s\" on \"%s\": %lld of %lld rows were taken",
                       db->link->copy->spec.table, db->label, (long long)taken,
                       (long long)db->link->copy_rows);
    db->link->copy = NULL;
    return st;
}

/* Whether rows can be added to the COPY under way. */
static bool is_open(const struct pg_bulk *b) {
    const struct pg_db *db = (const struct pg_db *)b->base.db;
    return db->link->copy == &b->base && db->link->copy_state != PG_COPY_ENDED &&
           db->link->copy_rows < COPY_ROWS_MAX;
}

/* A COPY that is full, or for another table, is ended by asking for a new one. */
static status copy_rows(struct pg_bulk *b, struct error *err) {
    struct pg_db *db = (struct pg_db *)b->base.db;
    status st = is_open(b) ? ST_OK : ask_copy(b, err);
    if (st == ST_OK && db->link->copy_state == PG_COPY_ASKED) st = open_copy(db, err);
    return st == ST_OK ? send_rows(db, &b->base, err) : st;
}

/* The first push only asks: until the next the server has answered. */
status pg_bulk_push(struct db_bulk *base, size_t coming, struct error *err) {
    struct pg_bulk *b = (struct pg_bulk *)base;
    if (base->spec.kind != DB_INSERT) return ST_OK;
    pg_help_ending((struct pg_db *)base->db);
    if (!is_open(b)) return db_bulk_rows(base) + coming >= COPY_ROWS_MIN ? ask_copy(b, err) : ST_OK;
    status st = copy_rows(b, err);
    if (st == ST_OK) db_bulk_clear(base);
    return st;
}

/* All rows were pushed already. */
static status end_pushed(struct pg_bulk *b, struct error *err) {
    struct pg_db *db = (struct pg_db *)b->base.db;
    if (db->link->copy != &b->base || db->link->copy_state == PG_COPY_ENDED) return ST_OK;
    status st = db->link->copy_state == PG_COPY_ASKED ? open_copy(db, err) : ST_OK;
    if (st == ST_OK) end_copy(db);
    return st;
}

status pg_bulk_flush(struct db_bulk *base, struct error *err) {
    struct pg_bulk *b = (struct pg_bulk *)base;
    struct pg_db *db = (struct pg_db *)base->db;
    size_t rows = db_bulk_rows(base);
    if (rows == 0) return end_pushed(b, err);
    if (is_open(b) || (base->spec.kind == DB_INSERT && rows >= COPY_ROWS_MIN)) {
        status st = copy_rows(b, err);
        if (st == ST_OK) end_copy(db);
        return st;
    }
    if (rows <= PLAIN_ROWS_MAX) return flush_plain(b, rows, err);
    return flush_arrays(b, rows, err);
}
