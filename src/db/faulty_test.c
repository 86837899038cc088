/* db/faulty_test.c: what goes wrong below us: failing calls, no memory, damaged files, lost
 * servers, locks. In every case an error comes back, nothing is half done, and no success is
 * reported that did not happen. */
#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdlib.h>

#include "base/os.h"
#include "test.h"

#include "db/db_test.h"

/* ---- a small workload that uses every kind of call ---- */

enum { FEW = 1, SOME = 5, MANY = 130 }; /* rows for each way that a bulk has */

static const char item_schema[] =
    "CREATE TABLE item (no {pk}, t {text} NOT NULL, n {int} NOT NULL)";
static const struct db_col item_cols[] = {{"no", DB_INT}, {"t", DB_TEXT}, {"n", DB_INT}};
static const struct db_bulk_spec insert_spec = {"item", DB_INSERT, item_cols, 3, 0};
static const struct db_bulk_spec update_spec = {"item", DB_UPDATE, item_cols, 3, 1};

static status put_rows(struct db_bulk *b, int64_t first, int64_t rows, int64_t n) {
    for (int64_t i = first; i < first + rows; i++) {
        db_bulk_int(b, i);
        db_bulk_text(b, STR("text"));
        db_bulk_int(b, n);
    }
    return db_bulk_flush(b, &err);
}

/* Reads the rows back inside the transaction. */
static status count_items(struct db *db, int64_t base) {
    struct db_stmt *st = NULL;
    status s = db_prepare(db, "SELECT n FROM item WHERE no >= $1 AND no < $1 + 1000 ORDER BY no",
                          &st, &err);
    if (s != ST_OK) return s;
    db_bind_int(st, 1, base);
    int64_t rows = 0;
    int64_t sum = 0;
    for (bool row = true; row; rows += row, sum += row ? db_int(st, 0) : 0) {
        s = db_step(st, &row, &err);
        if (s != ST_OK) return s;
    }
    CHECK(rows == 1 + FEW + SOME + MANY && sum == rows + MANY);
    return ST_OK;
}

static status insert_one(struct db *db, int64_t no) {
    struct db_stmt *st = NULL;
    status s = db_prepare(db, "INSERT INTO item (no, t, n) VALUES ($1, $2, 1)", &st, &err);
    if (s != ST_OK) return s;
    db_bind_int(st, 1, no);
    db_bind_text(st, 2, STR("first"));
    int64_t changed = 0;
    return db_run(st, &changed, &err);
}

static status write_items(struct db *db, int64_t base) {
    struct db_bulk *ins = NULL;
    struct db_bulk *upd = NULL;
    status st = db_begin(db, true, &err);
    if (st == ST_OK) st = insert_one(db, base);
    if (st == ST_OK) st = db_bulk_open(db, &insert_spec, &ins, &err);
    if (st == ST_OK) st = db_bulk_open(db, &update_spec, &upd, &err);
    if (st == ST_OK) st = put_rows(ins, base + 1, FEW, 1);
    if (st == ST_OK) st = put_rows(ins, base + 100, SOME, 1);
    if (st == ST_OK) st = put_rows(ins, base + 200, MANY, 1);
    if (st == ST_OK) st = put_rows(upd, base + 200, MANY, 2);
    if (st == ST_OK) st = count_items(db, base);
    if (st == ST_OK) st = put_rows(upd, base, 1, 3);
    if (st == ST_OK) st = db_exec(db, "UPDATE item SET n = n + 1 WHERE n = 3", &err);
    if (st == ST_OK) st = db_commit(db, &err);
    db_rollback(db); /* also when nothing is open */
    return st;
}

/* Rows of one run of the workload, as another connection sees them. All of them or none. */
static bool items_are_there(struct db *other, int64_t base) {
    struct db_stmt *st = prepare(
        other, "SELECT count(*), coalesce(sum(n), 0) FROM item WHERE no >= $1 AND no < $1 + 1000");
    db_bind_int(st, 1, base);
    CHECK(step(st));
    int64_t rows = db_int(st, 0);
    int64_t sum = db_int(st, 1);
    db_reset(st);
    if (rows == 0) return false;
    CHECK(rows == 1 + FEW + SOME + MANY, "%lld rows", (long long)rows);
    CHECK(sum == rows + MANY + 3, "sum %lld", (long long)sum);
    return true;
}

static void walk(str url, bool after) {
    struct db *inner = open_db(url, DB_WRITE);
    struct db *other = open_db(url, DB_READ_ONLY);
    struct db *db = NULL;
    OK(db_faulty_wrap(inner, &db, &err));
    CHECK(strcmp(db_name(db), db_name(inner)) == 0 && db_is_postgres(db) == db_is_postgres(inner));
    int64_t found = 0;
    int64_t calls = 0;
    for (int64_t n = 0;; n++) {
        CHECK(n < 1000);
        db_faulty_fail_at(db, n, after);
        status st = write_items(db, n * 1000);
        CHECK(!db_in_transaction(db) && !db_in_transaction(inner));
        bool there = items_are_there(other, n * 1000);
        if (st == ST_OK) {
            CHECK(there);
            calls = db_faulty_calls(db);
            CHECK(calls == n, "%lld calls, %lld failed", (long long)calls, (long long)n);
            break;
        }
        CHECK(st == ST_RETRY && strcmp(err.msg, "injected failure") == 0, "call %lld: %s",
              (long long)n, err.msg);
        found += there;
    }
    CHECK(calls > 50);               /* each row read is a call */
    CHECK(found == (after ? 1 : 0)); /* the commit whose answer was lost */
    db_faulty_fail_at(db, -1, false);
    CHECK(write_items(db, 900000) == ST_OK);
    db_close(db);
    db_close(other);
}

static void make_items(str url) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, item_schema, &err));
    db_close(db);
}

TEST_DB(faulty_walk_reports_no_false_success) {
    make_items(url);
    walk(url, false);
}

TEST_DB(faulty_walk_with_lost_answers) {
    make_items(url);
    walk(url, true);
}

TEST_DB(db_survives_a_lack_of_memory) {
    make_items(url);
    struct db *other = open_db(url, DB_READ_ONLY);
    for (int64_t n = 0;; n++) {
        CHECK(n < 1000);
        struct db *db = NULL;
        struct db *wrapped = NULL;
        mem_fail_at(n);
        status st = db_open(url, DB_WRITE, &db, &err);
        if (st == ST_OK) st = db_faulty_wrap(db, &wrapped, &err);
        if (wrapped) db = wrapped;
        if (st == ST_OK) st = write_items(db, n * 1000);
        db_close(db);
        mem_fail_at(-1);
        CHECK(items_are_there(other, n * 1000) == (st == ST_OK));
        if (st == ST_OK) {
            CHECK(n > 10);
            break;
        }
        CHECK(st == ST_RETRY && strstr(err.msg, "memory"), "allocation %lld: %s", (long long)n,
              err.msg);
    }
    db_close(other);
}

/* ---- SQLite's own memory ---- */

static sqlite3_mem_methods plain_memory;
static int64_t sqlite_allocations, sqlite_fail_at = -1;

static void *failing_malloc(int size) {
    return sqlite_allocations++ == sqlite_fail_at ? NULL : plain_memory.xMalloc(size);
}

static void *failing_realloc(void *ptr, int size) {
    return sqlite_allocations++ == sqlite_fail_at ? NULL : plain_memory.xRealloc(ptr, size);
}

TEST(sqlite_survives_a_lack_of_memory) {
    str url = test_db_url("sqlite");
    CHECK(sqlite3_shutdown() == SQLITE_OK &&
          sqlite3_config(SQLITE_CONFIG_GETMALLOC, &plain_memory) == SQLITE_OK);
    sqlite3_mem_methods failing = plain_memory;
    failing.xMalloc = failing_malloc;
    failing.xRealloc = failing_realloc;
    CHECK(sqlite3_config(SQLITE_CONFIG_MALLOC, &failing) == SQLITE_OK &&
          sqlite3_initialize() == SQLITE_OK);
    make_items(url);
    int64_t failures = 0;
    bool reached_the_end = false;
    for (int64_t n = 0; !reached_the_end;
         n += 1 + n / 100) { /* each of the first hundred, then some */
        struct db *db = NULL;
        sqlite_allocations = 0;
        sqlite_fail_at = n;
        status st = db_open(url, DB_WRITE, &db, &err);
        if (st == ST_OK) st = write_items(db, n * 1000);
        db_close(db);
        reached_the_end = sqlite_allocations <= n;
        sqlite_fail_at = -1;
        CHECK(st == ST_OK || st == ST_RETRY, "allocation %lld: %s", (long long)n, err.msg);
        struct db *other = open_db(url, DB_READ_ONLY);
        CHECK(items_are_there(other, n * 1000) == (st == ST_OK), "allocation %lld: %s",
              (long long)n, err.msg);
        db_close(other);
        failures += st != ST_OK;
    }
    CHECK(failures > 50);
    CHECK(sqlite3_shutdown() == SQLITE_OK &&
          sqlite3_config(SQLITE_CONFIG_MALLOC, &plain_memory) == SQLITE_OK);
    CHECK(sqlite3_initialize() == SQLITE_OK);
}

/* ---- files ---- */

TEST(sqlite_notices_damaged_files) {
    const char *dir = test_dir();
    char path[256];
    snprintf(path, sizeof path, "%s/noise.db", dir);
    char noise[8192];
    memset(noise, 'x', sizeof noise);
    OK(file_replace(str_c(path), str_n(noise, sizeof noise), &err));
    struct db *db = NULL;
    FAILS(ST_CORRUPT, db_open(str_c(path), DB_WRITE, &db, &err));
    CHECK(strstr(err.msg, path), "%s", err.msg);
    FAILS(ST_CORRUPT, db_open(str_c(path), DB_READ_ONLY, &db, &err));

    snprintf(path, sizeof path, "%s/torn.db", dir);
    db = open_db(str_c(path), DB_WRITE);
    OK(db_exec(db, item_schema, &err));
    CHECK(write_items(db, 0) == ST_OK);
    CHECK(write_items(db, 1000) == ST_OK && write_items(db, 2000) == ST_OK);
    db_close(db);
    struct arena arena;
    arena_init(&arena, 4096, 1 << 20);
    str bytes;
    OK(file_read(str_c(path), 1 << 20, &arena, &bytes, &err));
    char *damaged = arena_alloc(&arena, bytes.len);
    memcpy(damaged, bytes.ptr, bytes.len);
    enum { PAGE = 8192 };
    memset(damaged + PAGE, 0xee, bytes.len - PAGE); /* all but the schema page */
    OK(file_replace(str_c(path), str_n(damaged, bytes.len), &err));
    arena_release(&arena);
    db = open_db(str_c(path), DB_READ_ONLY);
    struct db_stmt *st = prepare(db, "SELECT sum(n) FROM item");
    bool row = false;
    FAILS(ST_CORRUPT, db_step(st, &row, &err));
    db_close(db);
}

TEST(sqlite_url_names_the_vfs) {
    char path[256];
    char url[300];
    snprintf(path, sizeof path, "%s/x.db", test_dir());
    snprintf(url, sizeof url, "sqlite:%s?vfs=unix-excl", path);
    make_items(str_c(url));
    snprintf(url, sizeof url, "sqlite:%s", path);
    struct db *db = open_db(str_c(url), DB_READ_ONLY);
    CHECK(one_int(db, "SELECT count(*) FROM item") == 0);
    db_close(db);
}

TEST_DB(db_backup_copies_a_live_database) {
    make_items(url);
    struct db *db = open_db(url, DB_WRITE);
    CHECK(write_items(db, 0) == ST_OK);
    char path[256];
    snprintf(path, sizeof path, "%s/copy.db", test_dir());
    if (db_is_postgres(db)) {
        FAILS(ST_INVALID, db_backup(db, str_c(path), &err));
        db_close(db);
        return;
    }
    OK(db_backup(db, str_c(path), &err));
    CHECK(write_items(db, 1000) == ST_OK); /* the original goes on */
    struct db *copy = open_db(str_c(path), DB_WRITE);
    CHECK(items_are_there(copy, 0) && !items_are_there(copy, 1000));
    db_close(copy);
    FAILS(ST_CONFLICT, db_backup(db, str_c(path), &err)); /* a backup is never overwritten */
    char nowhere[256];
    snprintf(nowhere, sizeof nowhere, "%s/missing/copy.db", test_dir());
    FAILS(ST_RETRY, db_backup(db, str_c(nowhere), &err));

    struct db *faulty = NULL;
    OK(db_faulty_wrap(db, &faulty, &err));
    db_faulty_fail_at(faulty, 0, false);
    snprintf(path, sizeof path, "%s/second.db", test_dir());
    FAILS(ST_RETRY, db_backup(faulty, str_c(path), &err));
    CHECK(!path_exists(str_c(path)));
    db_close(faulty);
}

/* ---- other people ---- */

TEST_DB(db_waits_for_a_lock_and_gives_up) {
    make_items(url);
    struct db *first = open_db(url, DB_WRITE);
    struct db *second = open_db(url, DB_WRITE);
    CHECK(write_items(first, 0) == ST_OK);
    OK(db_exec(second, "{sqlite: PRAGMA busy_timeout=20}{postgres: SET lock_timeout=20}", &err));
    OK(db_begin(first, true, &err));
    OK(db_exec(first, "UPDATE item SET n = 7 WHERE no = 1", &err));
    status st = db_begin(second, true, &err); /* SQLite waits here, PostgreSQL for the row */
    if (st == ST_OK) st = db_exec(second, "UPDATE item SET n = 8 WHERE no = 1", &err);
    CHECK(st == ST_RETRY, "%s", err.msg);
    db_rollback(second);
    OK(db_commit(first, &err));
    OK(db_begin(second, true, &err));
    OK(db_exec(second, "UPDATE item SET n = 8 WHERE no = 1", &err));
    OK(db_commit(second, &err));
    CHECK(one_int(first, "SELECT n FROM item WHERE no = 1") == 8);
    db_close(first);
    db_close(second);
}

TEST_DB(db_commit_may_be_refused) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db,
               "CREATE TABLE parent (no {pk});"
               "CREATE TABLE child (no {pk}, parent {int} REFERENCES parent (no) DEFERRABLE "
               "INITIALLY DEFERRED)",
               &err));
    for (int i = 0; i < 2; i++) {
        OK(db_begin(db, true, &err));
        OK(db_exec(db, "INSERT INTO child VALUES (1, 99)", &err));
        FAILS(ST_INVALID, db_commit(db, &err));
        CHECK(!db_in_transaction(db));
        CHECK(one_int(db, "SELECT count(*) FROM child") == 0);
    }
    db_close(db);
}

/* Ends the server's side of a connection, and waits until it has gone. */
static void cut(str url, struct db *db) {
    char pid[32];
    snprintf(pid, sizeof pid, "%lld", (long long)one_int(db, "SELECT pg_backend_pid()"));
    char *text = strndup(url.ptr, url.len);
    PGconn *conn = PQconnectdb(text);
    const char *const values[] = {pid};
    PGresult *result = PQexecParams(conn, "SELECT pg_terminate_backend($1::int, 5000)", 1, NULL,
                                    values, NULL, NULL, 0);
    bool gone = PQntuples(result) == 1 && strcmp(PQgetvalue(result, 0, 0), "t") == 0;
    PQclear(result);
    PQfinish(conn);
    free(text);
    CHECK(gone);
}

/* The call that meets the lost connection. */
enum moment { AT_STEP, AT_RUN, AT_EXEC, AT_COMMIT, AT_FEW, AT_SOME, AT_MANY, MOMENT_COUNT };

static status flush_then_commit(struct db *db, int64_t rows) {
    struct db_bulk *ins = NULL;
    OK(db_bulk_open(db, &insert_spec, &ins, &err));
    status st = put_rows(ins, 10, rows, 1);
    return st == ST_OK ? db_commit(db, &err) : st; /* the flush need not wait for the answer */
}

static status do_at(struct db *db, enum moment moment) {
    bool row = false;
    int64_t changed = 0;
    switch (moment) {
    case AT_STEP:
        return db_step(prepare(db, "SELECT count(*) FROM item"), &row, &err);
    case AT_RUN:
        return db_run(prepare(db, "DELETE FROM item"), &changed, &err);
    case AT_EXEC:
        return db_exec(db, "SELECT 1", &err);
    case AT_COMMIT:
        return db_commit(db, &err);
    case AT_FEW:
        return flush_then_commit(db, FEW);
    case AT_SOME:
        return flush_then_commit(db, SOME);
    case AT_MANY:
        return flush_then_commit(db, 20000); /* more than fits into any buffer on the way */
    case MOMENT_COUNT:
        break;
    }
    return ST_OK;
}

/* `when`: 0 before the transaction, 1 inside it, before its first command, 2 after. */
static void lose(str url, enum moment moment, int when) {
    struct db *db = open_db(url, DB_WRITE);
    if (when == 0) cut(url, db);
    status st = db_begin(db, true, &err);
    if (when == 1) cut(url, db);
    if (when == 2) {
        OK(db_exec(db, "INSERT INTO item VALUES (1, 'a', 1)", &err));
        cut(url, db);
    }
    if (st == ST_OK) st = do_at(db, moment);
    CHECK(st == ST_RETRY, "moment %d: %s", (int)moment, err.msg);
    CHECK(strstr(err.msg, "could not "), "moment %d: %s", (int)moment, err.msg);
    db_rollback(db);
    CHECK(db_exec(db, "SELECT 1", &err) == ST_RETRY, "moment %d", (int)moment); /* it stays lost */
    db_close(db);
}

TEST(postgres_lost_connection_means_retry) {
    str url = test_postgres();
    make_items(url);
    struct db *other = open_db(url, DB_READ_ONLY);
    for (int when = 0; when < 3; when++) {
        for (enum moment moment = AT_STEP; moment < MOMENT_COUNT; moment++) {
            if (moment == AT_COMMIT && when < 2)
                continue; /* an empty transaction asks the server nothing */
            lose(url, moment, when);
            CHECK(one_int(other, "SELECT count(*) FROM item") == 0);
        }
    }
    db_close(other);
}
