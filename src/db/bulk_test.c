/* db/bulk_test.c: many rows at once, on both databases, in lots small and large enough for each way
 * of sending them. */
#include "base/time.h"
#include "test.h"

#include "db/db_test.h"

static const struct db_col item_cols[] = {
    {"no", DB_INT}, {"name", DB_TEXT}, {"n", DB_INT}, {"t", DB_TEXT}, {"b", DB_BLOB}};
static const struct db_bulk_spec insert_spec = {"item", DB_INSERT, item_cols, 5, 0};
static const struct db_bulk_spec update_spec = {"item", DB_UPDATE, item_cols, 5, 2};

static struct db *open_items(str url) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(
        db,
        "CREATE TABLE item (no {int}, name {text}, n {int} CHECK (n <> 13), t {text}, b {blob},"
        " PRIMARY KEY (no, name)) {norowid}",
        &err));
    return db;
}

static struct db_bulk *open_bulk(struct db *db, const struct db_bulk_spec *spec) {
    struct db_bulk *b = NULL;
    OK(db_bulk_open(db, spec, &b, &err));
    return b;
}

static str name_of(int64_t i) {
    static const str names[] = {STR_LIT("alpha"), STR_LIT(""), STR_LIT("\xe2\x82\xac")};
    return names[i % 3];
}

/* Row i in version v; some cells are NULL, some empty, some long. */
static void put(struct db_bulk *b, int64_t i, int64_t v) {
    static char large[100000];
    memset(large, 'x', sizeof large);
    db_bulk_int(b, i);
    db_bulk_text(b, name_of(i));
    if (i % 5 == 0)
        db_bulk_null(b);
    else
        db_bulk_int(b, i * 1000 + v);
    db_bulk_text(b, i % 7 == 0     ? STR_NONE
                    : i % 50 == 49 ? str_n(large, sizeof large)
                                   : STR("text"));
    db_bulk_blob(b, i % 3 == 0 ? STR("") : STR("a\0b"));
}

static void check_items(struct db *db, int64_t rows, int64_t v) {
    struct db_stmt *st = NULL;
    OK(db_prepare(db, "SELECT no, name, n, t, b FROM item ORDER BY no", &st, &err));
    bool row = false;
    for (int64_t i = 0; i < rows; i++) {
        OK(db_step(st, &row, &err));
        CHECK(row);
        CHECK(db_int(st, 0) == i && str_eq(db_text(st, 1), name_of(i)), "row %lld", (long long)i);
        CHECK(db_is_null(st, 2) == (i % 5 == 0) && (i % 5 == 0 || db_int(st, 2) == i * 1000 + v),
              "row %lld", (long long)i);
        CHECK(db_is_null(st, 3) == (i % 7 == 0), "row %lld", (long long)i);
        CHECK(i % 7 == 0 || db_text(st, 3).len == (i % 50 == 49 ? 100000 : 4), "row %lld",
              (long long)i);
        CHECK(db_blob(st, 4).ptr && db_blob(st, 4).len == (i % 3 == 0 ? 0 : 3), "row %lld",
              (long long)i);
    }
    OK(db_step(st, &row, &err));
    CHECK(!row);
}

TEST_DB(bulk_inserts_and_updates_lots_of_any_size) {
    static const int64_t lots[] = {1, 2, 3, 31, 127, 128, 129, 700};
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    struct db_bulk *up = open_bulk(db, &update_spec);
    int64_t rows = 0;
    for (size_t i = 0; i < COUNT_OF(lots); i++) {
        int64_t first = rows;
        int64_t v = (int64_t)i;
        OK(db_begin(db, true, &err));
        for (; rows < first + lots[i]; rows++)
            put(in, rows, v);
        CHECK(db_bulk_rows(in) == (size_t)lots[i]);
        OK(db_bulk_flush(in, &err));
        CHECK(db_bulk_rows(in) == 0);
        for (int64_t j = 0; j < rows; j++)
            put(up, j, v + 1);
        OK(db_bulk_flush(up, &err));
        OK(db_bulk_flush(up, &err)); /* no rows: fine */
        OK(db_commit(db, &err));
        check_items(db, rows, v + 1);
    }
    db_close(db);
}

TEST_DB(bulk_rows_are_undone_by_a_rollback) {
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    struct db_bulk *up = open_bulk(db, &update_spec);
    for (int lot = 1; lot <= 400; lot *= 20) {
        OK(db_begin(db, true, &err));
        for (int i = 0; i < lot; i++)
            put(in, i, 0);
        OK(db_bulk_flush(in, &err));
        put(up, 0, 1);
        OK(db_bulk_flush(up, &err));
        CHECK(one_int(db, "SELECT count(*) FROM item") == lot);
        put(up, 0, 2); /* rows that wait are nobody's yet */
        db_rollback(db);
        CHECK(db_bulk_rows(up) == 1);
        db_bulk_clear(up);
        CHECK(db_bulk_rows(up) == 0);
        CHECK(one_int(db, "SELECT count(*) FROM item") == 0);
    }
    db_close(db);
}

/* A failure is reported by the flush or, at the latest, by the commit, which then has not happened.
 */
static status flush_and_commit(struct db *db, struct db_bulk *b) {
    status st = db_bulk_flush(b, &err);
    if (st == ST_OK) return db_commit(db, &err);
    db_rollback(db);
    return st;
}

static void put_bad(struct db_bulk *b, str name, int64_t n) {
    db_bulk_int(b, 99);
    db_bulk_text(b, name);
    db_bulk_int(b, n);
    db_bulk_null(b);
    db_bulk_null(b);
}

/* A lot whose last row is wrong in some way; rows 0 to 199 exist. */
enum wrong { IS_THERE, BREAKS_CHECK, KEY_IS_NULL, HAS_NUL, IS_NOT_THERE, WRONG_COUNT };

static status try_wrong(struct db *db, struct db_bulk *in, struct db_bulk *up, int64_t lot,
                        enum wrong wrong) {
    struct db_bulk *b = wrong == IS_NOT_THERE ? up : in;
    OK(db_begin(db, true, &err));
    for (int64_t i = 0; i < lot - 1; i++)
        put(b, wrong == IS_NOT_THERE ? i : 300 + i, 9);
    if (wrong == IS_THERE) put(b, 7, 9);
    if (wrong == IS_NOT_THERE) put(b, 1000, 9);
    if (wrong == BREAKS_CHECK) put_bad(b, STR("x"), 13);
    if (wrong == KEY_IS_NULL) put_bad(b, STR_NONE, 1);
    if (wrong == HAS_NUL) put_bad(b, STR("a\0b"), 1);
    return flush_and_commit(db, b);
}

TEST_DB(bulk_failures_are_told_apart) {
    static const struct {
        status want;
        const char *says;
    } cases[WRONG_COUNT] = {
        [IS_THERE] = {ST_CONFLICT, "could not insert into \"item\""},
        [BREAKS_CHECK] = {ST_INVALID, "could not insert into \"item\""},
        [KEY_IS_NULL] = {ST_INVALID, "could not insert into \"item\""},
        [HAS_NUL] = {ST_INVALID, "text for column \"name\" holds a NUL byte"},
        [IS_NOT_THERE] = {ST_CONFLICT, "could not update \"item\""},
    };
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    struct db_bulk *up = open_bulk(db, &update_spec);
    OK(db_begin(db, true, &err));
    for (int i = 0; i < 200; i++)
        put(in, i, 0);
    OK(flush_and_commit(db, in));
    for (int64_t lot = 1; lot <= 199; lot = lot < 4 ? lot + 1 : lot * 2) {
        for (enum wrong wrong = IS_THERE; wrong < WRONG_COUNT; wrong++) {
            status st = try_wrong(db, in, up, lot, wrong);
            CHECK(st == cases[wrong].want && strstr(err.msg, cases[wrong].says),
                  "%d in a lot of %d: %s: %s", (int)wrong, (int)lot, status_name(st), err.msg);
        }
        check_items(db, 200, 0); /* nothing of all this is there, */
    }
    OK(db_begin(db, true, &err)); /* and the bulks can be used again */
    for (int i = 0; i < 200; i++)
        put(up, i, 5);
    OK(flush_and_commit(db, up));
    check_items(db, 200, 5);
    db_close(db);
}

TEST_DB(bulk_failure_shows_before_what_follows_it) {
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    struct db_bulk *up = open_bulk(db, &update_spec);
    static const char *const sql = "SELECT count(*) FROM item";
    for (int follow = 0; follow < 5; follow++) {
        OK(db_begin(db, true, &err));
        put(up, 1, 0); /* not there */
        status st = db_bulk_flush(up, &err);
        struct db_stmt *stmt = NULL;
        bool row = false;
        int64_t changed = 0;
        if (st == ST_OK && follow == 0) st = db_exec(db, "DELETE FROM item", &err);
        if (st == ST_OK && follow == 1) st = db_commit(db, &err);
        for (int i = 0; i < 140; i++)
            put(in, i, 0);
        if (st == ST_OK && follow == 2) st = db_bulk_flush(in, &err);
        db_bulk_clear(in);
        if (st == ST_OK && follow >= 3) {
            OK(db_prepare(db, sql, &stmt, &err));
            st = follow == 3 ? db_step(stmt, &row, &err) : db_run(stmt, &changed, &err);
        }
        CHECK(st == ST_CONFLICT, "follow %d: %s", follow, err.msg);
        CHECK(strstr(err.msg, "could not update \"item\""), "follow %d: %s", follow, err.msg);
        db_rollback(db);
        CHECK(one_int(db, sql) == 0); /* whatever was to be prepared then is prepared now */
    }
    db_close(db);
}

TEST_DB(bulk_flushes_may_be_many_in_one_transaction) {
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    struct db_bulk *up = open_bulk(db, &update_spec);
    OK(db_begin(db, true, &err));
    for (int i = 0; i < 200; i++) {
        put(in, i, 0);
        OK(db_bulk_flush(in, &err));
        put(up, i, 1);
        OK(db_bulk_flush(up, &err));
    }
    OK(db_commit(db, &err));
    check_items(db, 200, 1);
    db_close(db);
}

TEST_DB(bulk_has_a_bound) {
    struct db *db = open_items(url);
    struct db_bulk *in = open_bulk(db, &insert_spec);
    OK(db_begin(db, true, &err));
    for (int i = 0; i < 210000; i++)
        put(in, i, 0);
    CHECK(flush_and_commit(db, in) == ST_LIMIT, "%s", err.msg);
    CHECK(one_int(db, "SELECT count(*) FROM item") == 0);
    OK(db_begin(db, true, &err));
    put(in, 0, 0);
    OK(flush_and_commit(db, in));
    check_items(db, 1, 0);
    db_close(db);
}

TEST_DB(bulk_rows_that_a_trigger_drops_are_missed) {
    struct db *db = open_items(url);
    OK(db_exec(db,
               "{sqlite: CREATE TRIGGER item_drop BEFORE INSERT ON item WHEN NEW.no = 5"
               " BEGIN SELECT RAISE(IGNORE); END;}"
               "{postgres: CREATE FUNCTION item_drop() RETURNS trigger LANGUAGE plpgsql AS"
               " $$ BEGIN IF NEW.no = 5 THEN RETURN NULL; END IF; RETURN NEW; END $$;"
               " CREATE TRIGGER item_drop BEFORE INSERT ON item FOR EACH ROW EXECUTE FUNCTION "
               "item_drop();}",
               &err));
    struct db_bulk *in = open_bulk(db, &insert_spec);
    for (int64_t lot = 1; lot <= 512; lot *= 8) {
        OK(db_begin(db, true, &err));
        for (int64_t i = 0; i < lot; i++)
            put(in, 5 + i, 0);
        CHECK(flush_and_commit(db, in) == ST_CONFLICT, "lot of %d: %s", (int)lot, err.msg);
    }
    CHECK(one_int(db, "SELECT count(*) FROM item") == 0);
    db_close(db);
}

/* A plan made for a tiny table must serve the grown one: a hundred small lots take some
 * milliseconds by the index, and seconds by reading all of the 100,000 rows for each. */
TEST_DB(bulk_update_stays_fast_while_the_table_grows) {
    struct db *db = open_items(url);
    struct db_bulk *up = open_bulk(db, &update_spec);
    OK(db_exec(db, "INSERT INTO item (no, name) VALUES (0, 'alpha'), (3, 'alpha'), (6, 'alpha')",
               &err));
    OK(db_exec(db, "ANALYZE item", &err));
    OK(db_begin(db, true, &err));
    for (int64_t i = 0; i < 9; i += 3)
        put(up, i, 1);
    OK(flush_and_commit(db, up));
    OK(db_exec(
        db,
        "WITH RECURSIVE more(i) AS (SELECT 9 UNION ALL SELECT i + 3 FROM more WHERE i < 300000)"
        " INSERT INTO item (no, name) SELECT i, 'alpha' FROM more",
        &err));
    int64_t start = clock_mono_ns();
    OK(db_begin(db, true, &err));
    for (int64_t lot = 0; lot < 100; lot++) {
        for (int64_t i = 0; i < 9; i += 3)
            put(up, lot * 900 + i, 2);
        OK(db_bulk_flush(up, &err));
    }
    OK(db_commit(db, &err));
    CHECK((clock_mono_ns() - start) / 1000000 < 1500);
    db_close(db);
}

/* Rows go as strictly as they change: what is not there is an error, and nothing is gone then. */
TEST_DB(bulk_deletes_lots_of_any_size) {
    static const struct db_bulk_spec delete_spec = {"item", DB_DELETE, item_cols, 2, 2};
    static const int64_t sizes[] = {1, 2, 3, 200};
    struct db *db = open_items(url);
    struct db_bulk *insert = open_bulk(db, &insert_spec);
    struct db_bulk *delete = open_bulk(db, &delete_spec);
    for (size_t k = 0; k < COUNT_OF(sizes); k++) {
        OK(db_begin(db, true, &err));
        for (int64_t i = 0; i < sizes[k] + 5; i++)
            put(insert, i, 1);
        OK(db_bulk_flush(insert, &err));
        for (int64_t i = 5; i < sizes[k] + 5; i++) {
            db_bulk_int(delete, i);
            db_bulk_text(delete, name_of(i));
        }
        OK(db_bulk_flush(delete, &err));
        OK(db_commit(db, &err));
        check_items(db, 5, 1);
        OK(db_exec(db, "DELETE FROM item", &err));
    }
    OK(db_begin(db, true, &err));
    put(insert, 1, 1);
    OK(db_bulk_flush(insert, &err));
    db_bulk_int(delete, 99);
    db_bulk_text(delete, STR("nobody"));
    status st = db_bulk_flush(delete, &err);
    if (st == ST_OK) st = db_commit(db, &err);
    CHECK(st == ST_CONFLICT && strstr(err.msg, "delete from"), "%s", err.msg);
    db_rollback(db);
    db_close(db);
}
