/* db/db_impl.h: what db.c and the drivers share. For db/ only.
 *
 * A driver embeds struct db, struct db_stmt and struct db_bulk as the first member of its own
 * structs and fills one const table of functions. db.c keeps everything that does not differ: it
 * expands braces, caches statements, holds bound values and bulk rows as cells, tracks the
 * transaction, and asserts the contract of db.h once for all drivers. A driver sees only calls that
 * are legal.
 *
 * After a failed step or run db.c resets the statement; after a failed commit the driver must have
 * left the transaction (whatever became of it), so that the connection can be used again or closed.
 */
#pragma once

#include "base/map.h"
#include "db/db.h"

enum {
    DB_PARAMS_MAX = 64,  /* $1 ... $64 of one statement: the widest row we bind has half of that */
    DB_COLUMNS_MAX = 64, /* columns of one result or bulk */
    DB_BULK_CELLS_MAX =
        1 << 20, /* waiting cells of one bulk, 16 MiB: many groups of GROUP_EVENTS_MAX rows */
    DB_BUSY_TIMEOUT_MS = 5000, /* how long a lock is waited for, on either database */
    DB_SQL_SHOWN_MAX = 72,     /* bytes of a statement shown in an error message */
};
#define DB_SQL_BYTES_MAX                                                                           \
    ((size_t)256 * 1024) /* one text given to db_exec(): our whole schema is far smaller */

/* One value, 16 bytes so that a bulk row of a dozen columns stays within a few cache lines. */
enum db_cell_kind { DB_CELL_NULL, DB_CELL_INT, DB_CELL_TEXT, DB_CELL_BLOB };
struct db_cell {
    uint32_t kind; /* an enum db_cell_kind */
    uint32_t len;  /* of text and blob */
    union {
        int64_t number;
        const char *ptr; /* borrowed; not NULL for text and blob */
    } as;
};

struct db {
    const struct db_ops *ops;
    const char *name;
    bool postgres;
    bool overlaps; /* the driver can commit while the next transaction begins */
    enum db_mode mode;
    const atomic_bool *stop; /* db_stop_on(); or NULL */
    bool in_transaction;
    bool failed;     /* something failed inside the transaction: only db_rollback() is legal */
    bool committing; /* between db_commit_send() and db_commit_wait() */
    bool asks_early; /* db_ask_early() */
    bool too_early;  /* the transaction asked what it may not while a commit is under way */
    int64_t changed_rows;  /* by db_run() */
    struct db_stmt *stmts; /* owned, newest first */
    struct db_bulk *bulks; /* owned, newest first */
    struct map by_source;  /* &stmt->source (the pointer's bytes) to the statement */
};

struct db_stmt {
    struct db *db;
    struct db_stmt *next;
    const char *source;        /* the caller's literal: the key of the cache */
    char *sql;                 /* `source` with its braces expanded; owned */
    int nparams;               /* the highest n of $n */
    int bad_param;             /* a text parameter that holds a NUL byte, or 0 */
    bool reading;              /* a row is current */
    int ncols;                 /* set by the driver's step, like `row` */
    const struct db_cell *row; /* the current row; the driver's memory */
    struct db_cell params[DB_PARAMS_MAX];
};

struct db_bulk {
    struct db *db;
    struct db_bulk *next;
    struct db_bulk_spec
        spec;       /* names and columns are borrowed from the caller, who passes literals */
    int col;        /* of the next cell */
    status trouble; /* met while adding, reported by the flush; else ST_OK */
    int bad_col;    /* with trouble ST_INVALID: the column whose text holds a NUL byte */
    bool pushed; /* rows since the last flush */
    struct db_cell *cells;
    size_t ncells, cap;
};

struct db_ops {
    /* `sql` is expanded. */
    status (*exec)(struct db *db, const char *sql, struct error *err);
    status (*begin)(struct db *db, bool write, struct error *err);
    status (*commit)(struct db *db, struct error *err);
    /* Where commits overlap: */
    status (*commit_send)(struct db *db, struct error *err);
    status (*commit_wait)(struct db *db, struct error *err);
    void (*ask_early)(struct db *db, bool on); /* may be NULL */
    void (*rollback)(struct db *db);
    /* Allocates with mem_alloc() and prepares; db.c fills the base. `sql` is expanded and lives as
     * long as the statement, with `nparams` parameters; `source` is the text as the caller gave it.
     */
    status (*prepare)(struct db *db, const char *source, const char *sql, int nparams,
                      struct db_stmt **out, struct error *err);
    /* Binds `params` if this is the first step, and sets `row` and `ncols` when there is a row. */
    status (*step)(struct db_stmt *st, bool *row, struct error *err);
    /* May be NULL: then the first step does it all. */
    status (*send)(struct db_stmt *st, struct error *err);
    status (*run)(struct db_stmt *st, int64_t *changed, struct error *err);
    void (*reset)(struct db_stmt *st);
    void (*stmt_free)(struct db_stmt *st); /* frees the struct too */
    status (*bulk_open)(struct db *db, const struct db_bulk_spec *spec, struct db_bulk **out,
                        struct error *err);
    /* Only called with whole rows, inside a write transaction; with none only if some were pushed.
     */
    status (*bulk_flush)(struct db_bulk *b, struct error *err);
    /* May be NULL. Whole rows, also none, inside a write transaction; calls db_bulk_clear() when it
     * has sent them. */
    status (*bulk_push)(struct db_bulk *b, size_t coming, struct error *err);
    void (*bulk_free)(struct db_bulk *b); /* frees the struct too */
    status (*backup)(struct db *db, str path, struct error *err);
    /* May be NULL: then step and backup look at db->stop by themselves. */
    void (*stop_on)(struct db *db, const atomic_bool *stop);
    void (*close)(struct db *db); /* statements and bulks are gone; frees the struct too */
};

MUST_CHECK status sqlite_open(str url, enum db_mode mode, struct db **out, struct error *err);
MUST_CHECK status postgres_open(str url, enum db_mode mode, struct db **out, struct error *err);

bool db_stopped(const struct db *db);

/* Fills the members that db.c looks after. */
void db_init(struct db *db, const struct db_ops *ops, const char *name, bool postgres,
             enum db_mode mode);
/* How much of a statement to show in an error message, as the precision of "%.*s": the start of its
 * first line. */
int db_sql_shown(const char *sql);
/* The text of a bulk's statement: "INSERT INTO t (a, b) VALUES (" or "UPDATE t SET b = " and so on
 * are put together by the drivers; this writes the column names, comma-separated, from column
 * `first`. */
struct buf;
void db_put_names(struct buf *b, const struct db_bulk_spec *spec, int first);
/* For messages: "insert into", "update", "delete from". */
const char *db_bulk_verb(enum db_bulk_kind kind);
