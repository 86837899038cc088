/* db/db.h: one small SQL port with two drivers, SQLite and PostgreSQL. Everything above is written
 * once.
 *
 * SQL is what both understand: $1 parameters, ON CONFLICT, RETURNING, CTEs, partial indexes. Values
 * are int64, UTF-8 text, bytes, or NULL. Integer columns are BIGINT, text is TEXT, bytes are BLOB:
 * in schema text write {int}, {text}, {blob} and {pk} and let db_exec() expand them for the driver:
 *     {int} INTEGER / BIGINT      {text} TEXT / TEXT COLLATE "C"      {blob} BLOB / BYTEA
 *     {pk}  INTEGER PRIMARY KEY / BIGINT PRIMARY KEY
 *     {norowid} WITHOUT ROWID / nothing
 *     {sqlite: ...} and {postgres: ...}  the text inside, for that driver only (braces inside must
 * balance)
 *     {} stays as it is
 *
 * Threads: a struct db and its statements belong to one thread at a time.
 * Errors: ST_CONFLICT for a broken UNIQUE constraint, ST_INVALID for a refusing trigger or a broken
 * CHECK / NOT NULL, ST_RETRY for busy, serialization failure, lost connection, disk full, out of
 * memory, I/O error; ST_CORRUPT for a damaged file. After an error inside a transaction the only
 * legal call is db_rollback(). */
#pragma once

#include <stdatomic.h>

#include "base/arena.h"
#include "base/base.h"
#include "base/error.h"
#include "base/str.h"

struct db;
struct db_stmt;

/* A writer creates a missing SQLite file; a reader does not. */
enum db_mode { DB_WRITE, DB_READ_ONLY };

/* Whether the address names a PostgreSQL server; anything else is a SQLite file. */
bool db_url_is_postgres(str url);
/* `url` is postgresql://... (or postgres://...), or a path of a SQLite file, with or without
 * "sqlite:" in front. A SQLite writer sets page_size=8192 (of a new file), journal_mode=WAL,
 * synchronous=FULL, foreign_keys=ON, busy_timeout 5 s, wal_autocheckpoint 4000, trusted_schema=OFF
 * (from 3.41); a reader opens read-only with query_only and the same timeout. PostgreSQL sets
 * synchronous_commit=on, client_encoding UTF8, and application_name=cairn; a reader sets
 * default_transaction_read_only. A PostgreSQL writer plans for short, indexed statements (generic
 * plans, no sequential scan where an index serves): scan big tables on a reader. The caller ends it
 * with db_close(). */
MUST_CHECK status db_open(str url, enum db_mode mode, struct db **out, struct error *err);
void db_close(struct db *db); /* rolls back what is open; frees its statements. NULL is fine. */

/* The version of libpq (150018), or an error when it cannot be loaded: for `doctor`. */
MUST_CHECK status db_libpq_version(int *version, struct error *err);
bool db_is_postgres(const struct db *db);
const char *db_name(const struct db *db); /* "sqlite" or "postgres" */

/* Runs one or more statements without parameters or results, after expanding {braces}. Several are
 * atomic only inside a transaction. */
MUST_CHECK status db_exec(struct db *db, const char *sql, struct error *err);

/* Transactions do not nest. A write transaction takes SQLite's write lock at once (BEGIN
 * IMMEDIATE); a read transaction is one snapshot (BEGIN / REPEATABLE READ READ ONLY). */
MUST_CHECK status db_begin(struct db *db, bool write, struct error *err);
/* Also ends all reading. On failure the transaction is over: with ST_RETRY its outcome is UNKNOWN
 * to the caller; any other code says that it has NOT been committed (a bulk flush, or a deferred
 * constraint, failed). */
MUST_CHECK status db_commit(struct db *db, struct error *err);
void db_rollback(struct db *db); /* fine when nothing is open */
bool db_in_transaction(const struct db *db);

/* Commits that overlap with the next transaction, where the driver can (PostgreSQL, over a second
 * connection). db_commit_send() ends a transaction as db_commit() does, but does not wait: its
 * outcome is what db_commit_wait() returns. Meanwhile the next transaction may begin, and insert
 * rows in bulk. It does not see what the first changed, so anything else it asks is refused with
 * ST_RETRY (db_was_too_early() tells that from other failures); except between db_ask_early(true) and
 * db_ask_early(false), for questions whose answer the first cannot change. One commit is under way at
 * most. If db_commit_send()
 * fails, the transaction is over, and has not been committed. */
bool db_can_overlap(const struct db *db);
MUST_CHECK status db_commit_send(struct db *db, struct error *err);
MUST_CHECK status db_commit_wait(struct db *db, struct error *err);
void db_ask_early(struct db *db, bool on);
bool db_was_too_early(const struct db *db);

/* Prepares `sql`, or returns the statement prepared before from the same pointer: pass string
 * literals. Braces are expanded. The statement lives as long as the db. Each parameter's type is
 * taken from what is bound (int64, text, bytes): where PostgreSQL could not infer it, cast in the
 * SQL with {int:$1} {text:$1} {blob:$1}, which expands to $1::bigint and so on, or to plain $1. */
MUST_CHECK status db_prepare(struct db *db, const char *sql, struct db_stmt **out,
                             struct error *err);
void db_bind_int(struct db_stmt *st, int i, int64_t value); /* i from 1 */
void db_bind_text(struct db_stmt *st, int i,
                  str value); /* STR_NONE binds NULL; borrowed until db_reset */
void db_bind_blob(struct db_stmt *st, int i,
                  str value); /* STR_NONE binds NULL; borrowed until db_reset */
void db_bind_null(struct db_stmt *st, int i);
/* The next row, or *row = false at the end, which resets. Columns are valid until the next step or
 * reset. PostgreSQL fetches the whole result with the first step (page with LIMIT), and looks at
 * the SQL only then. After a failure the statement is reset. */
MUST_CHECK status db_step(struct db_stmt *st, bool *row, struct error *err);
/* Sends a bound statement whose first db_step() comes later: on PostgreSQL its answer travels with
 * that of what is asked meanwhile, one round trip for both. SQLite runs it at the step. */
MUST_CHECK status db_send(struct db_stmt *st, struct error *err);
int64_t db_int(struct db_stmt *st, int col); /* col from 0; NULL gives 0 */
str db_text(struct db_stmt *st, int col);    /* NULL gives STR_NONE */
str db_blob(struct db_stmt *st, int col);
bool db_is_null(struct db_stmt *st, int col);
void db_reset(struct db_stmt *st); /* ends reading, keeps the statement; bindings become NULL */
/* Binds nothing more, runs to the end, resets, gives the number of changed rows. For
 * INSERT/UPDATE/DELETE. */
MUST_CHECK status db_run(struct db_stmt *st, int64_t *changed, struct error *err);
int64_t db_changed_rows(const struct db *db); /* by every db_run() so far, bulks not counted */

/* Bulk: many rows of one shape, sent the fastest way the driver has (SQLite: one prepared statement
 * in a loop; PostgreSQL: binary COPY for inserts, binary arrays through unnest for updates). */
enum db_type { DB_INT, DB_TEXT, DB_BLOB };
struct db_col {
    const char *name;
    enum db_type type;
};
enum db_bulk_kind {
    DB_INSERT, /* plain rows; a broken UNIQUE constraint is ST_CONFLICT */
    DB_UPDATE, /* UPDATE t SET the others WHERE the first `keys` columns match; every row must match
                * one, else ST_CONFLICT. Each row at most once per flush */
    DB_DELETE, /* DELETE FROM t WHERE all columns match; as strict as DB_UPDATE */
};
struct db_bulk_spec {
    const char *table;
    enum db_bulk_kind kind;
    const struct db_col *cols;
    int ncols;
    int keys;
};
struct db_bulk; /* lives as long as the db */
MUST_CHECK status db_bulk_open(struct db *db, const struct db_bulk_spec *spec, struct db_bulk **out,
                               struct error *err);
/* Adds cells in column order, row after row. Bytes are copied by nobody: they must stay until
 * db_bulk_flush(). Out of memory is remembered and reported by the flush. */
void db_bulk_int(struct db_bulk *b, int64_t value);
void db_bulk_text(struct db_bulk *b, str value); /* STR_NONE is NULL */
void db_bulk_blob(struct db_bulk *b, str value); /* STR_NONE is NULL */
void db_bulk_null(struct db_bulk *b);
size_t db_bulk_rows(const struct db_bulk *b); /* rows waiting */
/* Sends the waiting rows and forgets them (also on failure). Must be inside a write transaction. No
 * rows: ST_OK. PostgreSQL need not wait for the answer: a failure may be reported by the next call
 * that does, at the latest by db_commit(). */
MUST_CHECK status db_bulk_flush(struct db_bulk *b, struct error *err);
/* Sends waiting rows ahead of the flush, so that the database works while the caller makes the
 * next: worth calling every few dozen rows when `coming` more are expected. Rows that a driver does
 * not send (SQLite's sends none) go on waiting. A failure may be reported later, as with the flush.
 */
MUST_CHECK status db_bulk_push(struct db_bulk *b, size_t coming, struct error *err);
void db_bulk_clear(struct db_bulk *b); /* forgets the waiting rows */

/* SQLite only (ST_INVALID elsewhere): copies the live database to `path`, which must not exist
 * (ST_CONFLICT), with the online backup API, page lots at a time. */
MUST_CHECK status db_backup(struct db *db, str path, struct error *err);

/* Until `stop` is true (NULL: for ever) all is as ever; then a step or a backup, also one that is
 * under way in the database, ends with ST_RETRY soon. Another thread sets it. For readers. */
void db_stop_on(struct db *db, const atomic_bool *stop);

/* A wrapper that owns `inner` and fails on demand, for tests: the n-th fallible call (0, 1, ...)
 * fails with ST_RETRY "injected failure"; n < 0 never. With `after`, the call is carried out first
 * and its success is then reported as a failure: a commit whose answer was lost. */
MUST_CHECK status db_faulty_wrap(struct db *inner, struct db **out, struct error *err);
void db_faulty_fail_at(struct db *db, int64_t n, bool after);
int64_t db_faulty_calls(const struct db *db);
