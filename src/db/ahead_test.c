/* db/ahead_test.c: what is sent before its answer is wanted: rows of a bulk, and statements.
 * Nothing may get lost, come twice, or be reported as done that was not. */
#include "test.h"

#include "db/db_test.h"

static const struct db_col item_cols[] = {{"no", DB_INT}, {"t", DB_TEXT}};
static const struct db_bulk_spec insert_spec = {"item", DB_INSERT, item_cols, 2, 0};
static const struct db_bulk_spec other_spec = {"other", DB_INSERT, item_cols, 2, 0};

static struct db *open_items(str url) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db,
               "CREATE TABLE item (no {pk}, t {text} NOT NULL);"
               "CREATE TABLE other (no {pk}, t {text} NOT NULL)",
               &err));
    return db;
}

static struct db_bulk *open_bulk(struct db *db, const struct db_bulk_spec *spec) {
    struct db_bulk *b = NULL;
    OK(db_bulk_open(db, spec, &b, &err));
    return b;
}

/* Adds the rows from..to-1, pushing after every `each`. */
static void push(struct db_bulk *b, int64_t from, int64_t to, int64_t each) {
    for (int64_t i = from; i < to; i++) {
        db_bulk_int(b, i);
        db_bulk_text(b, STR("text"));
        if ((i + 1) % each == 0) OK(db_bulk_push(b, (size_t)(to - i - 1), &err));
    }
}

/* Lots below and above what PostgreSQL sends in one COPY, in portions small and large. */
TEST_DB(ahead_rows_arrive_once) {
    static const int64_t lots[] = {1, 40, 128, 300, 1100, 3000};
    static const int64_t portions[] = {1, 32, 700};
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    int64_t rows = 0;
    for (size_t i = 0; i < COUNT_OF(lots) * COUNT_OF(portions); i++) {
        int64_t lot = lots[i / COUNT_OF(portions)];
        OK(db_begin(db, true, &err));
        push(in, rows, rows + lot, portions[i % COUNT_OF(portions)]);
        OK(db_bulk_flush(in, &err));
        CHECK(db_bulk_rows(in) == 0);
        OK(db_commit(db, &err));
        rows += lot;
        CHECK(one_int(db, "SELECT COUNT(*) FROM item") == rows, "lot %zu", i);
        CHECK(one_int(db, "SELECT CAST(SUM(no) AS {int}) FROM item") == rows * (rows - 1) / 2);
    }
    db_close(db);
}

/* A question, and rows of another table, while rows are on their way. */
TEST_DB(ahead_rows_can_be_interrupted) {
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    struct db_bulk *other = open_bulk(db, &other_spec);
    OK(db_begin(db, true, &err));
    for (int64_t i = 0; i < 10; i++) {
        push(in, i * 200, i * 200 + 190, 10);
        int64_t seen = one_int(db, "SELECT COUNT(*) FROM item");
        CHECK(seen <= i * 200 + 190);
        CHECK(seen + (int64_t)db_bulk_rows(in) == i * 200 + 190);
        push(other, i * 200, (i + 1) * 200, 50);
        push(in, i * 200 + 190, (i + 1) * 200, 10);
    }
    OK(db_bulk_flush(other, &err));
    OK(db_bulk_flush(in, &err));
    OK(db_commit(db, &err));
    CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 2000);
    CHECK(one_int(db, "SELECT COUNT(*) FROM other") == 2000);
    db_close(db);
}

static status commit_twice_the_same(struct db *db, struct db_bulk *in) {
    status st = ST_OK;
    for (int64_t i = 0; i < 400 && st == ST_OK; i++) {
        db_bulk_int(in, i == 50 ? 7 : i);
        db_bulk_text(in, STR("text"));
        if (i % 20 == 19) st = db_bulk_push(in, (size_t)(399 - i), &err);
    }
    if (st == ST_OK) st = db_bulk_flush(in, &err);
    return st == ST_OK ? db_commit(db, &err) : st;
}

/* Wherever it is noticed: the commit does not succeed, nothing stays, and the connection goes on.
 */
TEST_DB(ahead_rows_that_are_refused_fail_the_commit) {
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    for (int pass = 0; pass < 3; pass++) {
        OK(db_begin(db, true, &err));
        FAILS(ST_CONFLICT, commit_twice_the_same(db, in));
        db_rollback(db);
        db_bulk_clear(in);
        CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 0);
    }
    db_close(db);
}

TEST_DB(ahead_rows_are_undone_by_a_rollback) {
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    for (int64_t portion = 1; portion <= 300; portion *= 7) { /* asked for, open, fed */
        OK(db_begin(db, true, &err));
        push(in, 0, 300, portion);
        db_rollback(db);
        db_bulk_clear(in);
        CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 0);
    }
    OK(db_begin(db, true, &err));
    db_bulk_int(in, 1);
    db_bulk_text(in, STR("text"));
    OK(db_bulk_push(in, 500, &err)); /* asked for, and then no rows come */
    OK(db_bulk_flush(in, &err));
    OK(db_commit(db, &err));
    CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 1);
    db_close(db);
}

TEST_DB(ahead_statements_are_answered_at_their_step) {
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    struct db_stmt *ask = prepare(db, "SELECT no FROM item WHERE no >= $1 ORDER BY no");
    OK(db_begin(db, true, &err));
    push(in, 0, 10, 100);
    OK(db_bulk_flush(in, &err));
    for (int64_t from = 0; from < 10; from += 3) {
        db_bind_int(ask, 1, from);
        OK(db_send(ask, &err));
        if (from > 3) CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 10);
        for (int64_t i = from; i < 10; i++)
            CHECK(step(ask) && db_int(ask, 0) == i);
        CHECK(!step(ask));
    }
    db_bind_int(ask, 1, 5);
    OK(db_send(ask, &err));
    db_reset(ask); /* nobody wants it any more */
    CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 10);
    db_bind_int(ask, 1, 9);
    CHECK(step(ask) && db_int(ask, 0) == 9);
    OK(db_commit(db, &err));

    OK(db_begin(db, true, &err));
    db_bind_int(ask, 1, 0);
    OK(db_send(ask, &err));
    db_rollback(db);
    db_reset(ask);
    CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 10);
    db_close(db);
}

/* A statement that fails is reported by whoever reads first, and then by nobody. */
TEST_DB(ahead_statements_can_fail) {
    struct db *db = open_items(url);
    struct db_stmt *bad = prepare(db, "INSERT INTO item (no, t) VALUES ($1, $2) RETURNING no");
    bool row = false;
    OK(db_begin(db, true, &err));
    db_bind_int(bad, 1, 1);
    OK(db_send(bad, &err)); /* t is NULL */
    FAILS(ST_INVALID, db_step(bad, &row, &err));
    db_rollback(db);
    OK(db_begin(db, true, &err));
    db_bind_int(bad, 1, 1);
    db_bind_text(bad, 2, STR("text"));
    OK(db_send(bad, &err));
    CHECK(step(bad) && db_int(bad, 0) == 1);
    db_reset(bad);
    OK(db_commit(db, &err));
    CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 1);
    db_close(db);
}
