/* db/db.c: the part of the SQL port that does not differ between drivers.
 *
 * Braces. One pass over the SQL copies it and replaces {words}; the text inside {sqlite: ...} and
 * {postgres: ...} is expanded in turn. Braces have no other meaning in our SQL, not even inside
 * quotes, so an unknown word is an error; only {} stays as it is.
 *
 * Cache. Statements are found by the address of their source text, which is a literal: no hashing
 * of SQL on the hot path, and two literals with the same text are simply two statements.
 *
 * Transactions. The flags here are the contract of db.h: they say what is legal, not what the
 * server thinks. A commit or rollback ends every statement that is still reading: a forgotten one
 * would pin an old snapshot for ever. */
#include "db/db.h"

#include <limits.h>

#include "base/buf.h"
#include "db/db_impl.h"

void db_init(struct db *db, const struct db_ops *ops, const char *name, bool postgres,
             enum db_mode mode) {
    db->ops = ops;
    db->name = name;
    db->postgres = postgres;
    db->mode = mode;
    map_init(&db->by_source);
}

bool db_url_is_postgres(str url) {
    return str_starts(url, STR("postgresql://")) || str_starts(url, STR("postgres://"));
}

status db_open(str url, enum db_mode mode, struct db **out, struct error *err) {
    if (str_has(url, '\0'))
        return error_set(err, ST_INVALID, "could not open database: its name holds a NUL byte");
    if (db_url_is_postgres(url))
        return postgres_open(url, mode, out, err);
    return sqlite_open(url, mode, out, err);
}

void db_close(struct db *db) {
    if (!db) return;
    db_rollback(db);
    for (struct db_stmt *st = db->stmts, *next; st; st = next) {
        next = st->next;
        char *sql = st->sql;
        if (st->reading) db_reset(st);
        db->ops->stmt_free(st);
        mem_free(sql);
    }
    for (struct db_bulk *b = db->bulks, *next; b; b = next) {
        next = b->next;
        mem_free(b->cells);
        db->ops->bulk_free(b);
    }
    map_release(&db->by_source);
    db->ops->close(db);
}

bool db_is_postgres(const struct db *db) { return db->postgres; }

const char *db_name(const struct db *db) { return db->name; }

int db_sql_shown(const char *sql) {
    size_t n = strcspn(sql, "\n");
    return (int)(n < DB_SQL_SHOWN_MAX ? n : DB_SQL_SHOWN_MAX);
}

/* ---- braces ---- */

struct brace_word {
    str word;
    str sqlite;
    str postgres;
};
static const struct brace_word brace_words[] = {
    {STR_LIT("int"), STR_LIT("INTEGER"), STR_LIT("BIGINT")},
    {STR_LIT("text"), STR_LIT("TEXT"),
     STR_LIT("TEXT COLLATE \"C\"")}, /* bytes decide the order, as in SQLite */
    {STR_LIT("blob"), STR_LIT("BLOB"), STR_LIT("BYTEA")},
    {STR_LIT("pk"), STR_LIT("INTEGER PRIMARY KEY"), STR_LIT("BIGINT PRIMARY KEY")},
    {STR_LIT("norowid"), STR_LIT("WITHOUT ROWID"), STR_LIT("")},
};
static const struct brace_word brace_casts[] = {
    {STR_LIT("int"), STR_LIT(""), STR_LIT("::bigint")},
    {STR_LIT("text"), STR_LIT(""), STR_LIT("::text")},
    {STR_LIT("blob"), STR_LIT(""), STR_LIT("::bytea")},
};

/* The length of the text up to the brace that closes it, or false if none does. */
static bool brace_find_end(str s, size_t *end) {
    int depth = 1;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '{') depth++;
        if (s.ptr[i] == '}' && --depth == 0) {
            *end = i;
            return true;
        }
    }
    return false;
}

static bool brace_put_word(bool postgres, str word, struct buf *out) {
    for (size_t i = 0; i < COUNT_OF(brace_words); i++) {
        if (!str_eq(word, brace_words[i].word)) continue;
        buf_put(out, postgres ? brace_words[i].postgres : brace_words[i].sqlite);
        return true;
    }
    return false;
}

static bool brace_put_cast(bool postgres, str word, str value, struct buf *out) {
    for (size_t i = 0; i < COUNT_OF(brace_casts); i++) {
        if (!str_eq(word, brace_casts[i].word)) continue;
        buf_put(out, value);
        buf_put(out, postgres ? brace_casts[i].postgres : brace_casts[i].sqlite);
        return true;
    }
    return false;
}

/* Takes one {inside} off *rest, which starts behind its opening brace, and writes what stands for
 * it. Of a block for this driver only the head is taken: its text is read on like any other, and
 * *depth remembers its closing brace. */
static bool brace_take(bool postgres, str *rest, size_t end, int *depth, struct buf *out) {
    str inside = str_n(rest->ptr, end);
    str word = STR_NONE;
    str text = STR_NONE;
    *rest = str_from(*rest, end + 1);
    if (inside.len == 0) { /* an empty JSON object */
        buf_put(out, STR("{}"));
        return true;
    }
    if (!str_split(inside, ':', &word, &text)) return brace_put_word(postgres, inside, out);
    bool for_sqlite = str_eq(word, STR("sqlite"));
    if (!for_sqlite && !str_eq(word, STR("postgres")))
        return brace_put_cast(postgres, word, text, out);
    if (for_sqlite == postgres) return true;
    *rest = str_n(text.ptr, text.len + 1 + rest->len);
    *depth += 1;
    return true;
}

static status braces_expand_into(bool postgres, str rest, struct buf *out, struct error *err) {
    for (int depth = 0; rest.len > 0;) {
        size_t plain = 0;
        while (plain < rest.len && rest.ptr[plain] != '{' && rest.ptr[plain] != '}')
            plain++;
        buf_put(out, str_n(rest.ptr, plain));
        if (plain == rest.len) break;
        bool closes = rest.ptr[plain] == '}';
        rest = str_from(rest, plain + 1);
        if (closes && depth-- == 0)
            return error_set(err, ST_INVALID, "SQL closes a brace that is not open before \"%.*s\"",
                             db_sql_shown(rest.ptr), rest.ptr);
        size_t end = 0;
        if (closes) continue;
        if (!brace_find_end(rest, &end))
            return error_set(err, ST_INVALID, "SQL does not close the brace before \"%.*s\"",
                             db_sql_shown(rest.ptr), rest.ptr);
        const char *inside = rest.ptr;
        if (!brace_take(postgres, &rest, end, &depth, out))
            return error_set(err, ST_INVALID, "SQL has an unknown word in braces: \"%.*s\"",
                             (int)(end < DB_SQL_SHOWN_MAX ? end : DB_SQL_SHOWN_MAX), inside);
    }
    return ST_OK;
}

/* On ST_OK the caller owns *out. No word grows eightfold, so the buffer can only be full for want
 * of memory. */
static status braces_expand(bool postgres, const char *sql, char **out, struct error *err) {
    if (strlen(sql) > DB_SQL_BYTES_MAX)
        return error_set(err, ST_LIMIT, "SQL is longer than %zu bytes: \"%.*s\"", DB_SQL_BYTES_MAX,
                         db_sql_shown(sql), sql);
    struct buf b;
    buf_init(&b, DB_SQL_BYTES_MAX * 8);
    status st = braces_expand_into(postgres, str_c(sql), &b, err);
    char *text = st == ST_OK && !b.full ? mem_alloc(b.len + 1) : NULL;
    if (text && b.len > 0) memcpy(text, b.ptr, b.len);
    buf_release(&b);
    if (st != ST_OK) return st;
    if (!text)
        return error_set(err, ST_RETRY, "could not expand \"%.*s\": out of memory",
                         db_sql_shown(sql), sql);
    *out = text;
    return ST_OK;
}

/* The highest n of $n outside quotes. */
static int count_params(const char *sql) {
    int64_t most = 0;
    for (str rest = str_c(sql); rest.len > 0;) {
        char c = rest.ptr[0];
        rest = str_from(rest, 1);
        if (c == '\'' || c == '"') { /* a doubled quote just looks like two strings */
            const char *close = memchr(rest.ptr, c, rest.len);
            rest = str_from(rest, close ? (size_t)(close - rest.ptr) + 1 : rest.len);
        }
        int64_t n = 0;
        if (c == '$' && str_take_int(&rest, &n) && n > most) most = n;
    }
    return most > INT_MAX ? INT_MAX : (int)most;
}

/* ---- transactions ---- */

/* Notes a failure, after which a transaction can only be rolled back. */
static status fail(struct db *db, status st) {
    ASSERT(st != ST_OK);
    if (db->in_transaction) db->failed = true;
    return st;
}

static void reset_all(struct db *db) {
    for (struct db_stmt *st = db->stmts; st; st = st->next)
        if (st->reading) db_reset(st);
}

/* What the transaction asks must not depend on a commit whose outcome is not known. */
static status check_early(struct db *db, struct error *err) {
    if (!db->committing || db->asks_early) return ST_OK;
    db->too_early = true;
    return error_set(err, ST_RETRY, "the commit before is still under way");
}

status db_exec(struct db *db, const char *sql, struct error *err) {
    ASSERT(!db->failed);
    char *expanded = NULL;
    status st = check_early(db, err);
    if (st == ST_OK) st = braces_expand(db->postgres, sql, &expanded, err);
    if (st == ST_OK) st = db->ops->exec(db, expanded, err);
    mem_free(expanded);
    return st == ST_OK ? ST_OK : fail(db, st);
}

status db_begin(struct db *db, bool write, struct error *err) {
    ASSERT(!db->in_transaction);
    if (write && db->mode == DB_READ_ONLY)
        return error_set(err, ST_INVALID,
                         "could not begin to write: the database was opened for reading only");
    status st = db->ops->begin(db, write, err);
    if (st != ST_OK) return st;
    db->in_transaction = true;
    db->failed = db->too_early = false;
    return ST_OK;
}

status db_commit(struct db *db, struct error *err) {
    ASSERT(db->in_transaction);
    ASSERT(!db->failed);
    ASSERT(!db->committing);
    reset_all(db);
    status st = db->ops->commit(db, err);
    db->in_transaction = false;
    return st;
}

bool db_can_overlap(const struct db *db) { return db->overlaps; }

status db_commit_send(struct db *db, struct error *err) {
    ASSERT(db->in_transaction);
    ASSERT(!db->failed);
    ASSERT(!db->committing);
    ASSERT(db->overlaps);
    reset_all(db);
    status st = db->ops->commit_send(db, err);
    db->in_transaction = false;
    db->committing = st == ST_OK;
    return st;
}

status db_commit_wait(struct db *db, struct error *err) {
    ASSERT(db->committing);
    status st = db->ops->commit_wait(db, err);
    db->committing = false;
    return st;
}

bool db_was_too_early(const struct db *db) { return db->too_early; }

void db_ask_early(struct db *db, bool on) {
    db->asks_early = on;
    if (db->ops->ask_early) db->ops->ask_early(db, on);
}

void db_rollback(struct db *db) {
    if (!db->in_transaction) return;
    reset_all(db);
    db->ops->rollback(db);
    db->in_transaction = false;
    db->failed = false;
}

bool db_in_transaction(const struct db *db) { return db->in_transaction; }

/* ---- statements ---- */

static str source_key(const char *const *source) { return str_n(source, sizeof *source); }

static status prepare_new(struct db *db, const char *source, struct db_stmt **out,
                          struct error *err) {
    struct db_stmt *made = NULL;
    char *sql = NULL;
    status st = braces_expand(db->postgres, source, &sql, err);
    if (st != ST_OK) goto out;
    ASSERT(sql);
    int nparams = count_params(sql);
    if (nparams > DB_PARAMS_MAX) {
        st = error_set(err, ST_LIMIT, "\"%.*s\" has more than %d parameters", db_sql_shown(sql),
                       sql, DB_PARAMS_MAX);
        goto out;
    }
    st = db->ops->prepare(db, source, sql, nparams, &made, err);
    if (st != ST_OK) goto out;
    made->db = db;
    made->source = source;
    made->sql = sql;
    made->nparams = nparams;
    if (!map_put(&db->by_source, source_key(&made->source), made)) {
        db->ops->stmt_free(made);
        st = error_set(err, ST_RETRY, "could not prepare \"%.*s\": out of memory",
                       db_sql_shown(sql), sql);
        goto out;
    }
    made->next = db->stmts;
    db->stmts = made;
    *out = made;
    sql = NULL; /* the statement's now */
out:
    mem_free(sql);
    return st;
}

status db_prepare(struct db *db, const char *sql, struct db_stmt **out, struct error *err) {
    ASSERT(!db->failed);
    struct db_stmt *known = map_get(&db->by_source, source_key(&sql));
    if (known) {
        *out = known;
        return ST_OK;
    }
    status st = prepare_new(db, sql, out, err);
    return st == ST_OK ? ST_OK : fail(db, st);
}

static struct db_cell *param(struct db_stmt *st, int i) {
    ASSERT(i >= 1 && i <= st->nparams);
    ASSERT(!st->reading); /* the values are in use until db_reset() */
    return &st->params[i - 1];
}

static void cell_set(struct db_cell *cell, enum db_cell_kind kind, str value) {
    ASSERT(value.len <= INT_MAX); /* the door lets in far less */
    cell->kind = value.ptr ? kind : DB_CELL_NULL;
    cell->len = (uint32_t)value.len;
    cell->as.ptr = value.ptr;
}

void db_bind_int(struct db_stmt *st, int i, int64_t value) {
    struct db_cell *cell = param(st, i);
    cell->kind = DB_CELL_INT;
    cell->as.number = value;
}

void db_bind_text(struct db_stmt *st, int i, str value) {
    cell_set(param(st, i), DB_CELL_TEXT, value);
    if (value.len > 0 && memchr(value.ptr, '\0', value.len)) st->bad_param = i;
}

void db_bind_blob(struct db_stmt *st, int i, str value) {
    cell_set(param(st, i), DB_CELL_BLOB, value);
}

void db_bind_null(struct db_stmt *st, int i) { param(st, i)->kind = DB_CELL_NULL; }

static status bad_param(struct db_stmt *st, struct error *err) {
    return error_set(err, ST_INVALID, "could not run \"%.*s\": text parameter $%d holds a NUL byte",
                     db_sql_shown(st->sql), st->sql, st->bad_param);
}

status db_send(struct db_stmt *st, struct error *err) {
    ASSERT(!st->db->failed);
    ASSERT(!st->reading);
    if (!st->db->ops->send || st->bad_param) return ST_OK; /* the step will tell */
    status s = check_early(st->db, err);
    if (s == ST_OK) s = st->db->ops->send(st, err);
    if (s == ST_OK) return ST_OK;
    db_reset(st);
    return fail(st->db, s);
}

bool db_stopped(const struct db *db) {
    return db->stop && atomic_load_explicit(db->stop, memory_order_relaxed);
}

void db_stop_on(struct db *db, const atomic_bool *stop) {
    db->stop = stop;
    if (db->ops->stop_on) db->ops->stop_on(db, stop);
}

status db_step(struct db_stmt *st, bool *row, struct error *err) {
    ASSERT(!st->db->failed);
    bool got = false;
    status s = check_early(st->db, err);
    if (s == ST_OK && db_stopped(st->db))
        s = error_set(err, ST_RETRY, "stopped in the middle of \"%.*s\"", db_sql_shown(st->sql),
                      st->sql);
    else if (s == ST_OK)
        s = st->bad_param ? bad_param(st, err) : st->db->ops->step(st, &got, err);
    if (s != ST_OK) {
        db_reset(st);
        return fail(st->db, s);
    }
    st->reading = got;
    if (!got) db_reset(st);
    *row = got;
    return ST_OK;
}

status db_run(struct db_stmt *st, int64_t *changed, struct error *err) {
    ASSERT(!st->db->failed);
    ASSERT(!st->reading);
    int64_t n = 0;
    status s = check_early(st->db, err);
    if (s == ST_OK) s = st->bad_param ? bad_param(st, err) : st->db->ops->run(st, &n, err);
    db_reset(st);
    if (s != ST_OK) return fail(st->db, s);
    st->db->changed_rows += n;
    *changed = n;
    return ST_OK;
}

int64_t db_changed_rows(const struct db *db) { return db->changed_rows; }

void db_reset(struct db_stmt *st) {
    st->db->ops->reset(st);
    st->reading = false;
    st->row = NULL;
    st->bad_param = 0;
    for (int i = 0; i < st->nparams; i++)
        st->params[i].kind = DB_CELL_NULL;
}

static const struct db_cell *column(const struct db_stmt *st, int col) {
    ASSERT(st->reading);
    ASSERT(col >= 0 && col < st->ncols);
    return &st->row[col];
}

/* A stored value of another type than its column's can only come from outside: it reads as NULL,
 * and the caller's check of the value finds it. */
int64_t db_int(struct db_stmt *st, int col) {
    const struct db_cell *cell = column(st, col);
    return cell->kind == DB_CELL_INT ? cell->as.number : 0;
}

static str cell_bytes(const struct db_cell *cell) {
    bool bytes = cell->kind == DB_CELL_TEXT || cell->kind == DB_CELL_BLOB;
    return bytes ? str_n(cell->as.ptr, cell->len) : STR_NONE;
}

str db_text(struct db_stmt *st, int col) { return cell_bytes(column(st, col)); }

str db_blob(struct db_stmt *st, int col) { return cell_bytes(column(st, col)); }

bool db_is_null(struct db_stmt *st, int col) { return column(st, col)->kind == DB_CELL_NULL; }

/* ---- bulk ---- */

void db_put_names(struct buf *b, const struct db_bulk_spec *spec, int first) {
    for (int i = first; i < spec->ncols; i++) {
        if (i > first) buf_put_c(b, ", ");
        buf_put_c(b, spec->cols[i].name);
    }
}

status db_bulk_open(struct db *db, const struct db_bulk_spec *spec, struct db_bulk **out,
                    struct error *err) {
    ASSERT(!db->failed);
    ASSERT(spec->ncols >= 1 && spec->ncols <= DB_COLUMNS_MAX);
    ASSERT(spec->kind != DB_UPDATE || (spec->keys >= 1 && spec->keys < spec->ncols));
    ASSERT(spec->kind != DB_DELETE || spec->keys == spec->ncols);
    struct db_bulk *made = NULL;
    status st = db->ops->bulk_open(db, spec, &made, err);
    if (st != ST_OK) return fail(db, st);
    made->db = db;
    made->spec = *spec;
    made->next = db->bulks;
    db->bulks = made;
    *out = made;
    return ST_OK;
}

/* Room for one more cell, or NULL with the trouble noted. */
static struct db_cell *bulk_grow(struct db_bulk *b) {
    size_t cap = b->cap ? b->cap * 2 : 64 * (size_t)b->spec.ncols;
    if (b->ncells == DB_BULK_CELLS_MAX) {
        b->trouble = ST_LIMIT;
        return NULL;
    }
    if (cap > DB_BULK_CELLS_MAX) cap = DB_BULK_CELLS_MAX;
    struct db_cell *cells = mem_grow(b->cells, b->cap * sizeof *cells, cap * sizeof *cells);
    if (!cells) {
        b->trouble = ST_RETRY;
        return NULL;
    }
    b->cells = cells;
    b->cap = cap;
    return &b->cells[b->ncells++];
}

/* The next cell, or NULL when there is trouble: then nothing more is stored until the flush reports
 * it. */
static struct db_cell *bulk_next(struct db_bulk *b, enum db_type type) {
    ASSERT(b->spec.cols[b->col].type == type);
    b->col = b->col + 1 == b->spec.ncols ? 0 : b->col + 1;
    if (b->trouble != ST_OK) return NULL;
    return b->ncells < b->cap ? &b->cells[b->ncells++] : bulk_grow(b);
}

void db_bulk_int(struct db_bulk *b, int64_t value) {
    struct db_cell *cell = bulk_next(b, DB_INT);
    if (!cell) return;
    cell->kind = DB_CELL_INT;
    cell->as.number = value;
}

void db_bulk_text(struct db_bulk *b, str value) {
    int col = b->col;
    struct db_cell *cell = bulk_next(b, DB_TEXT);
    if (!cell) return;
    cell_set(cell, DB_CELL_TEXT, value);
    if (value.len == 0 || !memchr(value.ptr, '\0', value.len)) return;
    b->trouble = ST_INVALID;
    b->bad_col = col;
}

void db_bulk_blob(struct db_bulk *b, str value) {
    struct db_cell *cell = bulk_next(b, DB_BLOB);
    if (cell) cell_set(cell, DB_CELL_BLOB, value);
}

void db_bulk_null(struct db_bulk *b) {
    struct db_cell *cell = bulk_next(b, b->spec.cols[b->col].type);
    if (cell) cell->kind = DB_CELL_NULL;
}

const char *db_bulk_verb(enum db_bulk_kind kind) {
    switch (kind) {
    case DB_INSERT:
        return "insert into";
    case DB_UPDATE:
        return "update";
    case DB_DELETE:
        return "delete from";
    }
    return NULL;
}

size_t db_bulk_rows(const struct db_bulk *b) { return b->ncells / (size_t)b->spec.ncols; }

static status bulk_trouble(const struct db_bulk *b, struct error *err) {
    const char *verb = db_bulk_verb(b->spec.kind);
    if (b->trouble == ST_INVALID)
        return error_set(err, ST_INVALID,
                         "could not %s \"%s\": text for column \"%s\" holds a NUL byte", verb,
                         b->spec.table, b->spec.cols[b->bad_col].name);
    if (b->trouble == ST_LIMIT)
        return error_set(err, ST_LIMIT, "could not %s \"%s\": more than %d values wait", verb,
                         b->spec.table, DB_BULK_CELLS_MAX);
    return error_set(err, ST_RETRY, "could not %s \"%s\": out of memory", verb, b->spec.table);
}

status db_bulk_flush(struct db_bulk *b, struct error *err) {
    ASSERT(b->db->in_transaction);
    ASSERT(!b->db->failed);
    ASSERT(b->col == 0); /* whole rows */
    status st = b->spec.kind == DB_INSERT ? ST_OK : check_early(b->db, err);
    if (st == ST_OK && b->trouble != ST_OK)
        st = bulk_trouble(b, err);
    else if (st == ST_OK && (b->ncells > 0 || b->pushed))
        st = b->db->ops->bulk_flush(b, err);
    db_bulk_clear(b);
    b->pushed = false;
    return st == ST_OK ? ST_OK : fail(b->db, st);
}

status db_bulk_push(struct db_bulk *b, size_t coming, struct error *err) {
    ASSERT(b->db->in_transaction);
    ASSERT(!b->db->failed);
    ASSERT(b->col == 0);
    if (!b->db->ops->bulk_push || b->trouble != ST_OK) return ST_OK; /* the flush will tell */
    status st = b->db->ops->bulk_push(b, coming, err);
    b->pushed = true;
    return st == ST_OK ? ST_OK : fail(b->db, st);
}

void db_bulk_clear(struct db_bulk *b) {
    b->ncells = 0;
    b->col = 0;
    b->trouble = ST_OK;
}

status db_backup(struct db *db, str path, struct error *err) {
    ASSERT(!db->in_transaction);
    return db->ops->backup(db, path, err);
}
