/* db/sqlite.c: the SQLite driver.
 *
 * A connection is opened with NOMUTEX: its thread owns it. Statements are prepared once and kept.
 * Bound text and blobs are not copied (SQLITE_STATIC): the caller keeps them until the reset.
 * BEGIN, COMMIT and ROLLBACK are prepared too, so that a group of one row does not pay for parsing.
 *
 * A parameter "$2" is to SQLite a named parameter, numbered by its first appearance; `index` maps
 * our number to SQLite's. Several connections may write, but the ledger keeps to one, which also
 * does all checkpoints.
 *
 * Failures. Extended result codes become a status in one table. After an I/O error, a full disk or
 * lack of memory SQLite may have rolled the transaction back by itself, so leaving a transaction
 * always asks sqlite3_get_autocommit() first. */
#include "db/db_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/os.h"
#include "base/time.h"

enum {
    CACHE_KIB = 8192,            /* page cache of a writer; more gained nothing */
    AUTOCHECKPOINT_PAGES = 4000, /* the best of those measured */
    STOP_STEPS =
        10000,       /* of SQLite's machine, between two looks at db->stop: below a millisecond */
    WAL_WAIT_MS = 2, /* between two tries to switch to it */
    BACKUP_PAGES = 256,  /* copied per step, 1 MiB; the source can be read and written in between */
    BACKUP_WAIT_MS = 20, /* pause when the source is locked, */
    BACKUP_WAITS_MAX =
        DB_BUSY_TIMEOUT_MS / BACKUP_WAIT_MS, /* and how many in a row are patience enough */
};

struct sqlite_db {
    struct db base;
    sqlite3 *conn;
    char *path; /* NUL-terminated; also names the database in messages */
    sqlite3_stmt *begin_write, *begin_read, *commit, *rollback;
};

struct sqlite_stmt {
    struct db_stmt base;
    sqlite3_stmt *stmt;
    int index[DB_PARAMS_MAX]; /* SQLite's number of our parameter i + 1; 0 if the SQL does not use
                                 it */
    struct db_cell row[DB_COLUMNS_MAX];
};

struct sqlite_bulk {
    struct db_bulk base;
    sqlite3_stmt *stmt;
};

/* ---- errors ---- */

static status status_of_open(int system_errno) {
    if (system_errno == ENOENT || system_errno == ENOTDIR) return ST_NOT_FOUND;
    if (system_errno == EACCES || system_errno == EISDIR || system_errno == EROFS)
        return ST_INVALID;
    return ST_RETRY;
}

static status status_of(int rc) {
    if (rc == SQLITE_CONSTRAINT_UNIQUE || rc == SQLITE_CONSTRAINT_PRIMARYKEY ||
        rc == SQLITE_CONSTRAINT_ROWID)
        return ST_CONFLICT;
    switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return ST_CORRUPT;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_NOMEM:
    case SQLITE_PROTOCOL:
    case SQLITE_INTERRUPT:
    case SQLITE_ABORT:
    case SQLITE_SCHEMA:
    case SQLITE_CANTOPEN:
        return ST_RETRY;
    default:
        return ST_INVALID; /* a constraint, a trigger, wrong SQL, read-only, too big: never works as
                              it is */
    }
}

/* The message is SQLite's own for this connection, or the general one when the connection has moved
 * on. */
static const char *why(const struct sqlite_db *db, int rc) {
    bool current = db->conn && sqlite3_extended_errcode(db->conn) == rc;
    return current ? sqlite3_errmsg(db->conn) : sqlite3_errstr(rc);
}

static status sql_failed(const struct sqlite_db *db, const char *verb, const char *sql, int rc,
                         struct error *err) {
    return error_set(err, status_of(rc), "could not %s \"%.*s\" on \"%s\": %s", verb,
                     db_sql_shown(sql), sql, db->path, why(db, rc));
}

/* ---- opening and closing ---- */

static void sqlite_close_db(struct db *base) {
    struct sqlite_db *db = (struct sqlite_db *)base;
    sqlite3_finalize(db->begin_write);
    sqlite3_finalize(db->begin_read);
    sqlite3_finalize(db->commit);
    sqlite3_finalize(db->rollback);
    sqlite3_close_v2(db->conn);
    mem_free(db->path);
    mem_free(db);
}

static status open_failed(const struct sqlite_db *db, int rc, struct error *err) {
    int system_errno = db->conn ? sqlite3_system_errno(db->conn) : 0;
    if ((rc & 0xff) == SQLITE_CANTOPEN && system_errno != 0)
        return error_set(err, status_of_open(system_errno), "could not open database \"%s\": %s",
                         db->path, strerror(system_errno));
    return error_set(err, status_of(rc), "could not open database \"%s\": %s", db->path,
                     why(db, rc));
}

static int prepare_kept(struct sqlite_db *db, const char *sql, sqlite3_stmt **out) {
    return sqlite3_prepare_v3(db->conn, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL);
}

/* Switches to WAL, which is refused silently where it cannot be (in memory, on some file systems).
 * Of several who open a new file at once, all but one are told that it is busy, without a wait:
 * each holds a read lock that the others' switch would wait for. */
static status set_wal(struct sqlite_db *db, struct error *err) {
    sqlite3_stmt *stmt = NULL;
    int64_t patience = clock_mono_ns() + (int64_t)DB_BUSY_TIMEOUT_MS * 1000000;
    int rc = sqlite3_prepare_v2(db->conn, "PRAGMA journal_mode=WAL", -1, &stmt, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_step(stmt);
    while ((rc & 0xff) == SQLITE_BUSY && clock_mono_ns() < patience) {
        sqlite3_reset(stmt); /* gives the read lock back */
        sqlite3_sleep(WAL_WAIT_MS);
        rc = sqlite3_step(stmt);
    }
    bool wal =
        rc == SQLITE_ROW && str_eq(str_c((const char *)sqlite3_column_text(stmt, 0)), STR("wal"));
    status st = ST_OK;
    if (rc != SQLITE_ROW)
        st = open_failed(db, rc, err);
    else if (!wal)
        st = error_set(err, ST_INVALID,
                       "could not open database \"%s\": it cannot use a write-ahead log", db->path);
    sqlite3_finalize(stmt);
    return st;
}

static status configure(struct sqlite_db *db, enum db_mode mode, struct error *err) {
    int rc = sqlite3_busy_timeout(db->conn, DB_BUSY_TIMEOUT_MS);
    /* Double-quoted strings are a trap that PostgreSQL does not have; defensive mode keeps SQL from
     * editing the schema table. */
    if (rc == SQLITE_OK) rc = sqlite3_db_config(db->conn, SQLITE_DBCONFIG_DQS_DML, 0, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_db_config(db->conn, SQLITE_DBCONFIG_DQS_DDL, 0, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_db_config(db->conn, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    if (rc != SQLITE_OK) return open_failed(db, rc, err);

    if (mode == DB_WRITE) {
        /* Of a new file; without effect on one that exists. Rows of some 350 bytes leave half a row
         * at the end of each page: with 4 KiB that is 4 percent of the file. */
        rc = sqlite3_exec(db->conn, "PRAGMA page_size=8192", NULL, NULL, NULL);
        if (rc != SQLITE_OK) return open_failed(db, rc, err);
        status st = set_wal(db, err);
        if (st != ST_OK) return st;
    }
    char sql[256];
    struct buf b;
    buf_init_fixed(&b, sql, sizeof sql);
    /* With recursive_triggers INSERT OR REPLACE asks the DELETE triggers too. */
    buf_put_c(&b,
              "PRAGMA foreign_keys=ON; PRAGMA recursive_triggers=ON; PRAGMA temp_store=MEMORY;");
    /* Before 3.41 the JSON functions, which our views need, were not marked as harmless. */
    if (sqlite3_libversion_number() >= 3041000) buf_put_c(&b, "PRAGMA trusted_schema=OFF;");
    if (mode == DB_WRITE)
        buf_printf(&b,
                   "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=%d; PRAGMA cache_size=-%d;",
                   AUTOCHECKPOINT_PAGES, CACHE_KIB);
    else
        buf_put_c(&b, "PRAGMA query_only=ON; PRAGMA schema_version;"); /* reads the file: a damaged
                                                                          one fails here */
    buf_put_char(&b, '\0');
    ASSERT(!b.full);
    rc = sqlite3_exec(db->conn, sql, NULL, NULL, NULL);
    if (rc == SQLITE_OK) rc = prepare_kept(db, "BEGIN IMMEDIATE", &db->begin_write);
    if (rc == SQLITE_OK) rc = prepare_kept(db, "BEGIN", &db->begin_read);
    if (rc == SQLITE_OK) rc = prepare_kept(db, "COMMIT", &db->commit);
    if (rc == SQLITE_OK) rc = prepare_kept(db, "ROLLBACK", &db->rollback);
    return rc == SQLITE_OK ? ST_OK : open_failed(db, rc, err);
}

/* "sqlite:PATH?vfs=NAME" or just PATH. The name is NUL-terminated because the whole copy of the URL
 * is. */
static const char *split_url(char *url, char **path) {
    static const char prefix[] = "sqlite:";
    *path = url;
    if (strncmp(url, prefix, sizeof prefix - 1) != 0) return NULL;
    *path = url + sizeof prefix - 1;
    char *option = strstr(*path, "?vfs=");
    if (!option) return NULL;
    *option = '\0';
    return option + 5;
}

static const struct db_ops sqlite_ops;

/* SQLite counts every allocation under one mutex unless told not to: some percent of each insert.
 * Where the host program uses SQLite already this is refused, and nothing changes. */
static pthread_once_t setup_once = PTHREAD_ONCE_INIT;
static void setup(void) { (void)sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0); }

status sqlite_open(str url, enum db_mode mode, struct db **out, struct error *err) {
    char *copy = mem_alloc(url.len + 1);
    struct sqlite_db *db = mem_alloc(sizeof *db);
    status st = ST_OK;
    if (!copy || !db) {
        st = error_set(err, ST_RETRY, "could not open database \"%.*s\": out of memory",
                       STR_ARG(url));
        goto out;
    }
    db_init(&db->base, &sqlite_ops, "sqlite", false, mode);
    if (url.len > 0) memcpy(copy, url.ptr, url.len);
    char *path = NULL;
    const char *vfs = split_url(copy, &path);
    size_t path_len = strlen(path);
    db->path = mem_alloc(path_len + 1);
    if (!db->path) {
        st = error_set(err, ST_RETRY, "could not open database \"%s\": out of memory", path);
        goto out;
    }
    memcpy(db->path, path, path_len);
    if (path_len == 0) { /* SQLite would take it for a temporary database */
        st = error_set(err, ST_INVALID, "could not open database \"\": it has no name");
        goto out;
    }
    if (vfs && !sqlite3_vfs_find(vfs)) {
        st = error_set(err, ST_INVALID, "could not open database \"%s\": there is no VFS \"%s\"",
                       path, vfs);
        goto out;
    }
    pthread_once(&setup_once, setup);
    if (mode == DB_WRITE && !vfs &&
        strcmp(db->path, ":memory:") !=
            0) { /* a new ledger is its owner's alone, whatever the umask says */
        int fd = open(db->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0) close(fd);
    }
    int flags =
        mode == DB_WRITE ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
    int rc = sqlite3_open_v2(db->path, &db->conn,
                             flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, vfs);
    if (rc != SQLITE_OK) {
        st = open_failed(db, rc, err);
        goto out;
    }
    st = configure(db, mode, err);
    if (st != ST_OK) goto out;
    *out = &db->base;
    db = NULL; /* the caller's now */
out:
    mem_free(copy);
    if (db) sqlite_close_db(&db->base);
    return st;
}

/* ---- transactions ---- */

static status sqlite_exec(struct db *base, const char *sql, struct error *err) {
    struct sqlite_db *db = (struct sqlite_db *)base;
    int rc = sqlite3_exec(db->conn, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? ST_OK : sql_failed(db, "run", sql, rc, err);
}

/* Runs one of the kept statements without parameters. */
static int run_kept(sqlite3_stmt *stmt) {
    int rc = sqlite3_step(stmt);
    int reset = sqlite3_reset(stmt);
    if (rc == SQLITE_DONE) return SQLITE_OK;
    return reset != SQLITE_OK ? reset : SQLITE_ERROR;
}

static void sqlite_rollback(struct db *base) {
    struct sqlite_db *db = (struct sqlite_db *)base;
    if (sqlite3_get_autocommit(db->conn)) return; /* SQLite has done it already */
    /* A rollback may report what went wrong before, or an I/O error; either way the transaction is
     * over. */
    (void)run_kept(db->rollback);
}

static status sqlite_begin(struct db *base, bool write, struct error *err) {
    struct sqlite_db *db = (struct sqlite_db *)base;
    int rc = run_kept(write ? db->begin_write : db->begin_read);
    return rc == SQLITE_OK ? ST_OK
                           : sql_failed(db, "run", write ? "BEGIN IMMEDIATE" : "BEGIN", rc, err);
}

static status sqlite_commit(struct db *base, struct error *err) {
    struct sqlite_db *db = (struct sqlite_db *)base;
    int rc = run_kept(db->commit);
    if (rc == SQLITE_OK) return ST_OK;
    status st = sql_failed(db, "run", "COMMIT", rc, err);
    sqlite_rollback(base); /* a refused commit leaves the transaction open */
    return st;
}

/* ---- statements ---- */

static void sqlite_stmt_free(struct db_stmt *base) {
    struct sqlite_stmt *st = (struct sqlite_stmt *)base;
    sqlite3_finalize(st->stmt);
    mem_free(st);
}

static status check_prepared(struct sqlite_db *db, sqlite3_stmt *stmt, const char *sql,
                             const char *tail, struct error *err) {
    if (!stmt || tail[strspn(tail, " \t\r\n;")] != '\0')
        return error_set(err, ST_INVALID,
                         "could not prepare \"%.*s\" on \"%s\": it is not one statement",
                         db_sql_shown(sql), sql, db->path);
    if (sqlite3_column_count(stmt) > DB_COLUMNS_MAX)
        return error_set(err, ST_LIMIT,
                         "could not prepare \"%.*s\" on \"%s\": more than %d columns",
                         db_sql_shown(sql), sql, db->path, DB_COLUMNS_MAX);
    return ST_OK;
}

static void map_params(struct sqlite_stmt *st, int nparams) {
    for (int i = 0; i < nparams; i++) {
        char name[16];
        struct buf b;
        buf_init_fixed(&b, name, sizeof name);
        buf_put_char(&b, '$');
        buf_put_int(&b, i + 1);
        buf_put_char(&b, '\0');
        st->index[i] = sqlite3_bind_parameter_index(st->stmt, name);
    }
}

static status sqlite_prepare(struct db *base, const char *source, const char *sql, int nparams,
                             struct db_stmt **out, struct error *err) {
    UNUSED(source);
    struct sqlite_db *db = (struct sqlite_db *)base;
    struct sqlite_stmt *st = mem_alloc(sizeof *st);
    if (!st)
        return error_set(err, ST_RETRY, "could not prepare \"%.*s\" on \"%s\": out of memory",
                         db_sql_shown(sql), sql, db->path);
    const char *tail = NULL;
    int rc = sqlite3_prepare_v3(db->conn, sql, -1, SQLITE_PREPARE_PERSISTENT, &st->stmt, &tail);
    status s = rc == SQLITE_OK ? check_prepared(db, st->stmt, sql, tail, err)
                               : sql_failed(db, "prepare", sql, rc, err);
    if (s != ST_OK) {
        sqlite_stmt_free(&st->base);
        return s;
    }
    map_params(st, nparams);
    *out = &st->base;
    return ST_OK;
}

static int bind_cell(sqlite3_stmt *stmt, int index, const struct db_cell *cell) {
    switch ((enum db_cell_kind)cell->kind) {
    case DB_CELL_NULL:
        return sqlite3_bind_null(stmt, index);
    case DB_CELL_INT:
        return sqlite3_bind_int64(stmt, index, cell->as.number);
    case DB_CELL_TEXT:
        return sqlite3_bind_text(stmt, index, cell->as.ptr, (int)cell->len, SQLITE_STATIC);
    case DB_CELL_BLOB:
        /* No bytes are an empty blob, not NULL; SQLite looks at the pointer to tell. */
        return sqlite3_bind_blob(stmt, index, cell->as.ptr, (int)cell->len, SQLITE_STATIC);
    }
    return SQLITE_MISUSE;
}

static int bind_params(struct sqlite_stmt *st) {
    for (int i = 0; i < st->base.nparams; i++) {
        if (st->index[i] == 0) continue;
        int rc = bind_cell(st->stmt, st->index[i], &st->base.params[i]);
        if (rc != SQLITE_OK) return rc;
    }
    return SQLITE_OK;
}

/* Takes the columns of the current row over into cells. SQLITE_NOMEM if SQLite could not give the
 * bytes. */
static int take_cell(sqlite3_stmt *stmt, int col, struct db_cell *cell) {
    switch (sqlite3_column_type(stmt, col)) {
    case SQLITE_INTEGER:
        cell->kind = DB_CELL_INT;
        cell->as.number = sqlite3_column_int64(stmt, col);
        return SQLITE_OK;
    case SQLITE_TEXT:
        cell->kind = DB_CELL_TEXT;
        cell->as.ptr = (const char *)sqlite3_column_text(stmt, col);
        cell->len = (uint32_t)sqlite3_column_bytes(stmt, col);
        return cell->as.ptr ? SQLITE_OK : SQLITE_NOMEM;
    case SQLITE_BLOB:
        cell->kind = DB_CELL_BLOB;
        cell->as.ptr = sqlite3_column_blob(stmt, col);
        cell->len = (uint32_t)sqlite3_column_bytes(stmt, col);
        if (!cell->as.ptr && cell->len > 0) return SQLITE_NOMEM;
        if (!cell->as.ptr) cell->as.ptr = ""; /* an empty blob has no pointer */
        return SQLITE_OK;
    case SQLITE_NULL:
        cell->kind = DB_CELL_NULL;
        return SQLITE_OK;
    default:
        return SQLITE_MISMATCH; /* a floating point number, which none of our columns holds */
    }
}

static status take_row(struct sqlite_stmt *st, struct error *err) {
    const struct sqlite_db *db = (const struct sqlite_db *)st->base.db;
    int ncols = sqlite3_data_count(st->stmt);
    for (int i = 0; i < ncols && i < DB_COLUMNS_MAX; i++) {
        int rc = take_cell(st->stmt, i, &st->row[i]);
        if (rc == SQLITE_OK) continue;
        return error_set(err, status_of(rc), "could not read column %d of \"%.*s\" on \"%s\": %s",
                         i, db_sql_shown(st->base.sql), st->base.sql, db->path, sqlite3_errstr(rc));
    }
    st->base.ncols = ncols < DB_COLUMNS_MAX ? ncols : DB_COLUMNS_MAX;
    st->base.row = st->row;
    return ST_OK;
}

static status sqlite_step(struct db_stmt *base, bool *row, struct error *err) {
    struct sqlite_stmt *st = (struct sqlite_stmt *)base;
    int rc = base->reading ? SQLITE_OK : bind_params(st);
    if (rc == SQLITE_OK) rc = sqlite3_step(st->stmt);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return sql_failed((struct sqlite_db *)base->db, "run", base->sql, rc, err);
    *row = rc == SQLITE_ROW;
    return *row ? take_row(st, err) : ST_OK;
}

static status sqlite_run(struct db_stmt *base, int64_t *changed, struct error *err) {
    struct sqlite_stmt *st = (struct sqlite_stmt *)base;
    struct sqlite_db *db = (struct sqlite_db *)base->db;
    int rc = bind_params(st);
    if (rc == SQLITE_OK) {
        do
            rc = sqlite3_step(st->stmt);
        while (rc == SQLITE_ROW);
    }
    if (rc != SQLITE_DONE) return sql_failed(db, "run", base->sql, rc, err);
    *changed = sqlite3_stmt_readonly(st->stmt) ? 0 : sqlite3_changes64(db->conn);
    return ST_OK;
}

static void sqlite_reset(struct db_stmt *base) {
    struct sqlite_stmt *st = (struct sqlite_stmt *)base;
    sqlite3_reset(st->stmt); /* repeats the error of the last step, which has been reported */
    sqlite3_clear_bindings(st->stmt);
}

/* ---- bulk ---- */

static void put_insert(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "INSERT INTO %s (", spec->table);
    db_put_names(b, spec, 0);
    for (int i = 0; i < spec->ncols; i++)
        buf_printf(b, "%s?%d", i == 0 ? ") VALUES (" : ", ", i + 1);
    buf_put_char(b, ')');
}

static void put_update(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "UPDATE %s SET ", spec->table);
    for (int i = spec->keys; i < spec->ncols; i++)
        buf_printf(b, "%s%s = ?%d", i == spec->keys ? "" : ", ", spec->cols[i].name, i + 1);
    for (int i = 0; i < spec->keys; i++)
        buf_printf(b, "%s%s = ?%d", i == 0 ? " WHERE " : " AND ", spec->cols[i].name, i + 1);
}

static void put_delete(struct buf *b, const struct db_bulk_spec *spec) {
    buf_printf(b, "DELETE FROM %s", spec->table);
    for (int i = 0; i < spec->keys; i++)
        buf_printf(b, "%s%s = ?%d", i == 0 ? " WHERE " : " AND ", spec->cols[i].name, i + 1);
}

static void sqlite_bulk_free(struct db_bulk *base) {
    struct sqlite_bulk *b = (struct sqlite_bulk *)base;
    sqlite3_finalize(b->stmt);
    mem_free(b);
}

static status sqlite_bulk_open(struct db *base, const struct db_bulk_spec *spec,
                               struct db_bulk **out, struct error *err) {
    struct sqlite_db *db = (struct sqlite_db *)base;
    struct buf sql;
    buf_init(&sql, DB_SQL_BYTES_MAX);
    struct sqlite_bulk *b = mem_alloc(sizeof *b);
    void (*const put[])(struct buf *, const struct db_bulk_spec *) = {
        [DB_INSERT] = put_insert, [DB_UPDATE] = put_update, [DB_DELETE] = put_delete};
    put[spec->kind](&sql, spec);
    buf_put_char(&sql, '\0');
    status st = ST_OK;
    if (!b || sql.full) {
        st = error_set(err, ST_RETRY,
                       "could not prepare to write to \"%s\" on \"%s\": out of memory", spec->table,
                       db->path);
        goto out;
    }
    int rc = prepare_kept(db, sql.ptr, &b->stmt);
    if (rc != SQLITE_OK) {
        st = sql_failed(db, "prepare", sql.ptr, rc, err);
        goto out;
    }
    *out = &b->base;
    b = NULL; /* the caller's now */
out:
    if (b) sqlite_bulk_free(&b->base);
    buf_release(&sql);
    return st;
}

static int bulk_row(sqlite3_stmt *stmt, const struct db_cell *cells, int ncols) {
    for (int i = 0; i < ncols; i++) {
        int rc = bind_cell(stmt, i + 1, &cells[i]);
        if (rc != SQLITE_OK) return rc;
    }
    int rc = sqlite3_step(stmt);
    int reset = sqlite3_reset(stmt);
    return rc == SQLITE_DONE ? SQLITE_OK : reset;
}

static status sqlite_bulk_flush(struct db_bulk *base, struct error *err) {
    struct sqlite_bulk *b = (struct sqlite_bulk *)base;
    struct sqlite_db *db = (struct sqlite_db *)base->db;
    const struct db_bulk_spec *spec = &base->spec;
    size_t ncols = (size_t)spec->ncols;
    size_t rows = base->ncells / ncols;
    status st = ST_OK;
    for (size_t row = 0; row < rows && st == ST_OK; row++) {
        int rc = bulk_row(b->stmt, base->cells + row * ncols, spec->ncols);
        if (rc != SQLITE_OK)
            st = error_set(err, status_of(rc), "could not %s \"%s\" on \"%s\", row %zu of %zu: %s",
                           db_bulk_verb(spec->kind), spec->table, db->path, row + 1, rows,
                           why(db, rc));
        else if (sqlite3_changes(db->conn) != 1)
            st = error_set(err, ST_CONFLICT, "could not %s \"%s\" on \"%s\", row %zu of %zu: %s",
                           db_bulk_verb(spec->kind), spec->table, db->path, row + 1, rows,
                           spec->kind == DB_INSERT ? "it was not taken" : "it is not there");
    }
    sqlite3_clear_bindings(b->stmt); /* they point into the caller's memory */
    return st;
}

/* ---- backup ---- */

static int is_stopped(void *stop) {
    return atomic_load_explicit((const atomic_bool *)stop, memory_order_relaxed);
}

/* A scan, a count or an integrity check may take minutes within one step. */
static void sqlite_stop_on(struct db *base, const atomic_bool *stop) {
    struct sqlite_db *db = (struct sqlite_db *)base;
    union {
        const atomic_bool *flag;
        void *context;
    } as = {stop}; /* it is only read */
    sqlite3_progress_handler(db->conn, stop ? STOP_STEPS : 0, stop ? is_stopped : NULL, as.context);
}

static int backup_pages(const struct db *base, sqlite3 *from, sqlite3 *to) {
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
    if (!backup) return sqlite3_extended_errcode(to);
    int rc = SQLITE_OK;
    for (int waits = 0; waits < BACKUP_WAITS_MAX;) {
        if (db_stopped(base)) {
            rc = SQLITE_INTERRUPT;
            break;
        }
        rc = sqlite3_backup_step(backup, BACKUP_PAGES);
        bool locked = (rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_LOCKED;
        if (rc != SQLITE_OK && !locked) break;
        waits = locked ? waits + 1 : 0;
        if (locked) sqlite3_sleep(BACKUP_WAIT_MS);
    }
    int finish = sqlite3_backup_finish(backup);
    if (rc != SQLITE_DONE) return rc;
    return finish;
}

static status sqlite_backup(struct db *base, str path, struct error *err) {
    struct sqlite_db *db = (struct sqlite_db *)base;
    sqlite3 *to = NULL;
    char *name = mem_alloc(path.len + 1);
    if (!name) return error_set(err, ST_RETRY, "could not back up \"%s\": out of memory", db->path);
    if (path.len > 0) memcpy(name, path.ptr, path.len);
    status st = ST_OK;
    if (path_exists(
            path)) { /* the backup API would overwrite it, and it may be the last good copy */
        st = error_set(err, ST_CONFLICT, "could not back up \"%s\": \"%s\" exists already",
                       db->path, name);
        goto out;
    }
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    int rc = sqlite3_open_v2(name, &to,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
                                 SQLITE_OPEN_EXRESCODE,
                             NULL);
    if (rc == SQLITE_OK) rc = backup_pages(base, db->conn, to);
    int close = sqlite3_close(to);
    if (rc == SQLITE_OK) rc = close;
    if (rc != SQLITE_OK) {
        (void)unlink(name); /* half a copy helps nobody */
        st = error_set(err, status_of(rc), "could not back up \"%s\" to \"%s\": %s", db->path, name,
                       sqlite3_errstr(rc));
    }
out:
    mem_free(name);
    return st;
}

static const struct db_ops sqlite_ops = {
    .exec = sqlite_exec,
    .begin = sqlite_begin,
    .commit = sqlite_commit,
    .rollback = sqlite_rollback,
    .prepare = sqlite_prepare,
    .step = sqlite_step,
    .run = sqlite_run,
    .reset = sqlite_reset,
    .stmt_free = sqlite_stmt_free,
    .bulk_open = sqlite_bulk_open,
    .bulk_flush = sqlite_bulk_flush,
    .bulk_free = sqlite_bulk_free,
    .backup = sqlite_backup,
    .stop_on = sqlite_stop_on,
    .close = sqlite_close_db,
};
