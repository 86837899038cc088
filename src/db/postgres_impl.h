/* db/postgres_impl.h: what the files of the PostgreSQL driver share: postgres.c (connection and
 * statements), postgres_commit.c (transactions) and postgres_bulk.c (many rows at once). For them
 * only. */
#pragma once

#include <assert.h>

#include "db/db_impl.h"
#include "db/libpq.h"

/* The type numbers of pg_type.dat, fixed for ever; the header that names them is a server header.
 */
enum {
    PG_BOOL = 16,
    PG_BYTEA = 17,
    PG_NAME = 19,
    PG_INT8 = 20,
    PG_INT2 = 21,
    PG_INT4 = 23,
    PG_TEXT = 25,
    PG_JSON = 114,
    PG_UNKNOWN = 705,
    PG_BYTEA_ARRAY = 1001,
    PG_TEXT_ARRAY = 1009,
    PG_INT8_ARRAY = 1016,
    PG_BPCHAR = 1042,
    PG_VARCHAR = 1043,
    PG_NUMERIC = 1700,
    PG_VOID = 2278,
    PG_UUID = 2950,
    PG_JSONB = 3802,
};
enum { PG_BINARY = 1 };
enum { PG_SENT_MAX = 32 }; /* commands on their way; more are waited for first */
enum { PG_LINKS = 2 };     /* connections: a commit may be under way on one of them */

/* One statement that the server keeps under a name. */
struct pg_query {
    char name[16];
    const char *sql;             /* borrowed from its owner */
    unsigned prepared[PG_LINKS]; /* the session that knows it, with these parameter types; or 0 */
    int nparams;
    Oid types[DB_PARAMS_MAX]; /* 0: the server is to find out */
};

/* A command that was sent and whose answer has not been read. */
struct pg_sent {
    enum pg_sent_kind { PG_SENT_BEGIN, PG_SENT_PREPARE, PG_SENT_ROWS, PG_SENT_BULK } kind;
    struct pg_query *query;     /* not for BEGIN */
    PGresult **answer;          /* PG_SENT_ROWS: where it goes if it is read later; else NULL */
    const struct db_bulk *bulk; /* PG_SENT_BULK: what it was for, */
    int64_t rows;               /* and how many rows it must change */
};

/* One connection, and what is under way on it. */
struct pg_link {
    PGconn *conn;     /* NULL: not opened yet, or lost */
    unsigned session; /* counts from 1; 0: never opened */
    bool begin_due;   /* db_begin() was called; BEGIN goes with the first command */
    bool begin_write;
    struct pg_sent sent[PG_SENT_MAX];
    int nsent;
    bool synced;          /* the server was told that this is all: it answers without being asked */
    struct db_bulk *copy; /* the COPY under way is for it; then nothing else is */
    enum pg_copy_state { PG_COPY_ASKED, PG_COPY_OPEN, PG_COPY_ENDED } copy_state;
    int64_t copy_rows; /* handed over so far */
    /* db_commit_send(): what the transaction waits for. Its outcome is kept until it is asked for.
     */
    enum pg_ending { PG_NOT_ENDING, PG_ENDS_ANSWERS, PG_ENDS_COMMIT, PG_ENDED } ending;
    status outcome;
    struct error why;
};

struct pg_db {
    struct db base;
    struct pg_link links[PG_LINKS];
    struct pg_link *link; /* of the transaction that is open, or comes next */
    char *url;            /* to open the second one; it may hold a password */
    char *label; /* host:port/database, for messages: never the URL, which may hold a password */
    unsigned names, sessions; /* so far */
    char *bytes;              /* room for encoding; kept */
    size_t bytes_cap;
};

/* Big-endian numbers, as the protocol has them. */
static inline char *pg_put16(char *at, uint16_t n) {
    at[0] = (char)(n >> 8);
    at[1] = (char)n;
    return at + 2;
}
static inline char *pg_put32(char *at, uint32_t n) {
    uint32_t big = __builtin_bswap32(n);
    memcpy(at, &big, sizeof big);
    return at + sizeof big;
}
static inline char *pg_put64(char *at, uint64_t n) {
    uint64_t big = __builtin_bswap64(n);
    memcpy(at, &big, sizeof big);
    return at + sizeof big;
}
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pg_put32 and pg_put64 swap bytes");

/* The parameters of one execution. */
struct pg_values {
    const char *at[DB_PARAMS_MAX];
    int len[DB_PARAMS_MAX];
    char numbers[DB_PARAMS_MAX][8];
};
static inline void pg_set_value(struct pg_values *values, int i, const struct db_cell *cell) {
    values->at[i] = cell->kind == DB_CELL_NULL  ? NULL
                    : cell->kind == DB_CELL_INT ? values->numbers[i]
                                                : cell->as.ptr;
    values->len[i] = cell->kind == DB_CELL_INT ? 8 : (int)cell->len;
    if (cell->kind == DB_CELL_INT) pg_put64(values->numbers[i], (uint64_t)cell->as.number);
}

const char *pg_begin_sql(const struct pg_db *db);
/* Names a statement. `sql` must live as long as it. */
void pg_query_init(struct pg_db *db, struct pg_query *query, const char *sql);
/* Sends what BEGIN and preparing are due, then the statement with binary parameters. The answer is
 * read by pg_settle(). */
MUST_CHECK status pg_send(struct pg_db *db, struct pg_query *query, const char *const *values,
                          const int *lengths, struct pg_sent what, struct error *err);
/* Reads the answers to all that was sent; the first failure is the result. With `rows`, the answer
 * to the last command, which the caller clears. */
MUST_CHECK status pg_settle(struct pg_db *db, PGresult **rows, struct error *err);
/* Fills *err from a failed result (or, when NULL, from the connection). */
status pg_failed(const struct pg_db *db, const char *verb, const char *what, const PGresult *result,
                 struct error *err);
/* At least `size` bytes in db->bytes, or ST_RETRY. */
MUST_CHECK status pg_reserve(struct pg_db *db, size_t size, struct error *err);

bool pg_is_good(const PGresult *result);
/* Closes the connection in use, which is out of step: all that follows on it fails. */
status pg_give_up(struct pg_db *db, const char *verb, const char *what, struct error *err);
/* Opens the connection in use. */
MUST_CHECK status pg_open_link(struct pg_db *db, struct error *err);

status pg_exec(struct db *base, const char *sql, struct error *err);
status pg_begin(struct db *base, bool write, struct error *err);
status pg_commit(struct db *base, struct error *err);
status pg_commit_send(struct db *base, struct error *err);
status pg_commit_wait(struct db *base, struct error *err);
void pg_rollback(struct db *base);

status pg_bulk_open(struct db *base, const struct db_bulk_spec *spec, struct db_bulk **out,
                    struct error *err);
status pg_bulk_flush(struct db_bulk *base, struct error *err);
status pg_bulk_push(struct db_bulk *base, size_t coming, struct error *err);
/* Ends the COPY under way, if there is one, and reads how it went. */
MUST_CHECK status pg_copy_settle(struct pg_db *db, struct error *err);
void pg_bulk_free(struct db_bulk *base);
/* Whether the session in use knows the statement. */
static inline bool pg_knows(const struct pg_db *db, const struct pg_query *query) {
    return query->prepared[db->link - db->links] == db->link->session;
}
static inline void pg_set_known(const struct pg_db *db, struct pg_query *query, bool known) {
    query->prepared[db->link - db->links] = known ? db->link->session : 0;
}
/* Looks, without waiting, whether the commit under way can go on. */
void pg_help_ending(struct pg_db *db);
/* The same for as long as there is nothing to read here. Before every wait for an answer: somebody
 * may wait for the transaction that ends, and we for him. */
void pg_wait_helping(struct pg_db *db);
