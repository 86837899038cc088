/* db/overlap_test.c: a commit that overlaps with the next transaction. Only PostgreSQL does that. */
#include "test.h"

#include "db/db_test.h"

static const struct db_col item_cols[] = {{"no", DB_INT}, {"t", DB_TEXT}};
static const struct db_bulk_spec insert_spec = {"item", DB_INSERT, item_cols, 2, 0};
static const struct db_bulk_spec update_spec = {"item", DB_UPDATE, item_cols, 2, 1};

struct overlap {
    str url;
    struct db *db, *reader;
    struct db_bulk *insert, *update;
};

static struct overlap overlap_open(str url) {
    struct overlap o = {.url = url, .db = open_db(url, DB_WRITE)};
    OK(db_exec(o.db, "CREATE TABLE item (no {pk}, t {text} NOT NULL)", &err));
    OK(db_bulk_open(o.db, &insert_spec, &o.insert, &err));
    OK(db_bulk_open(o.db, &update_spec, &o.update, &err));
    o.reader = open_db(url, DB_READ_ONLY);
    return o;
}

static void overlap_close(struct overlap *o) {
    db_close(o->db);
    db_close(o->reader);
}

static void put(struct db_bulk *b, int64_t from, int64_t to, const char *text) {
    for (int64_t i = from; i < to; i++) {
        db_bulk_int(b, i);
        db_bulk_text(b, str_c(text));
    }
}

static int64_t count(struct overlap *o) { return one_int(o->reader, "SELECT COUNT(*) FROM item"); }

TEST(overlap_is_not_for_sqlite) {
    struct db *db = open_db(test_db_url("sqlite"), DB_WRITE);
    CHECK(!db_can_overlap(db));
    db_close(db);
}

/* Groups of all sizes, each made while the one before it commits: every row is there, and what is
 * updated is what the group before inserted. */
TEST(overlap_commits_one_after_the_other) {
    static const int64_t sizes[] = {1, 2, 40, 128, 600, 3};
    struct overlap o = overlap_open(test_postgres());
    int64_t rows = 0;
    int64_t last = 0;
    CHECK(db_can_overlap(o.db));
    for (size_t i = 0; i < 4 * COUNT_OF(sizes); i++) {
        int64_t size = sizes[i % COUNT_OF(sizes)];
        OK(db_begin(o.db, true, &err));
        put(o.insert, rows, rows + size, "new");
        OK(db_bulk_push(o.insert, 0, &err));
        OK(db_bulk_flush(o.insert, &err));
        if (i > 0) OK(db_commit_wait(o.db, &err));
        CHECK(count(&o) == rows);
        put(o.update, rows - last, rows, "old");
        OK(db_bulk_flush(o.update, &err));
        OK(db_commit_send(o.db, &err));
        rows += size;
        last = size;
    }
    OK(db_commit_wait(o.db, &err));
    CHECK(count(&o) == rows);
    CHECK(one_int(o.reader, "SELECT COUNT(*) FROM item WHERE t = 'new'") == last);
    overlap_close(&o);
}

/* What the commit under way could change must not be asked; what it cannot, may be. */
TEST(overlap_refuses_questions_that_come_too_early) {
    struct overlap o = overlap_open(test_postgres());
    OK(db_begin(o.db, true, &err));
    put(o.insert, 0, 10, "a");
    OK(db_bulk_flush(o.insert, &err));
    OK(db_commit_send(o.db, &err));

    struct db_stmt *ask = prepare(o.db, "SELECT COUNT(*) FROM item");
    bool row = false;
    int64_t changed = 0;
    OK(db_begin(o.db, true, &err));
    FAILS(ST_RETRY, db_step(ask, &row, &err));
    CHECK(db_was_too_early(o.db) && strstr(err.msg, "still under way"));
    db_rollback(o.db);
    OK(db_begin(o.db, true, &err));
    CHECK(!db_was_too_early(o.db));
    FAILS(ST_RETRY, db_send(ask, &err));
    db_rollback(o.db);
    OK(db_begin(o.db, true, &err));
    FAILS(ST_RETRY, db_run(prepare(o.db, "DELETE FROM item"), &changed, &err));
    db_rollback(o.db);
    OK(db_begin(o.db, true, &err));
    FAILS(ST_RETRY, db_exec(o.db, "DELETE FROM item", &err));
    db_rollback(o.db);
    OK(db_begin(o.db, true, &err));
    put(o.update, 0, 10, "b");
    FAILS(ST_RETRY, db_bulk_flush(o.update, &err));
    db_rollback(o.db);

    OK(db_begin(o.db, true, &err));
    db_ask_early(o.db, true);
    CHECK(one_int(o.db, "SELECT 41 + 1") == 42);
    db_ask_early(o.db, false);
    put(o.insert, 10, 20, "c");
    OK(db_bulk_flush(o.insert, &err));
    OK(db_commit_wait(o.db, &err));
    CHECK(one_int(o.db, "SELECT COUNT(*) FROM item") == 20);
    OK(db_commit(o.db, &err));
    CHECK(count(&o) == 20);
    overlap_close(&o);
}

/* A failure that shows only in the answers: the transaction is not committed, the next one is. */
TEST(overlap_tells_what_failed) {
    struct overlap o = overlap_open(test_postgres());
    OK(db_begin(o.db, true, &err));
    put(o.insert, 0, 5, "a");
    OK(db_bulk_flush(o.insert, &err));
    OK(db_commit(o.db, &err));

    OK(db_begin(o.db, true, &err));
    put(o.insert, 5, 10, "b");
    OK(db_bulk_flush(o.insert, &err));
    put(o.update, 9, 14, "c"); /* of these only one is there */
    OK(db_bulk_flush(o.update, &err));
    OK(db_commit_send(o.db, &err));
    OK(db_begin(o.db, true, &err));
    put(o.insert, 100, 103, "d");
    OK(db_bulk_flush(o.insert, &err));
    FAILS(ST_CONFLICT, db_commit_wait(o.db, &err));
    CHECK(strstr(err.msg, "1 of 5 rows"), "%s", err.msg);
    OK(db_commit(o.db, &err));
    CHECK(count(&o) == 8);

    OK(db_begin(o.db, true, &err)); /* a row that is there already */
    put(o.insert, 3, 4, "e");
    OK(db_bulk_flush(o.insert, &err));
    OK(db_commit_send(o.db, &err));
    FAILS(ST_CONFLICT, db_commit_wait(o.db, &err));
    OK(db_begin(o.db, true, &err)); /* nothing at all */
    OK(db_commit_send(o.db, &err));
    OK(db_commit_wait(o.db, &err));
    CHECK(count(&o) == 8);
    overlap_close(&o);
}

/* The connection of the commit is cut: its outcome is not known, and so it is told. */
TEST(overlap_tells_when_the_outcome_is_unknown) {
    struct overlap o = overlap_open(test_postgres());
    OK(db_begin(o.db, true, &err));
    int64_t pid = one_int(o.db, "SELECT pg_backend_pid()");
    put(o.insert, 0, 5, "a");
    OK(db_bulk_flush(o.insert, &err));
    struct db *killer = open_db(o.url, DB_WRITE);
    struct db_stmt *kill = prepare(killer, "SELECT pg_terminate_backend($1::bigint::int)");
    db_bind_int(kill, 1, pid);
    CHECK(step(kill) && db_int(kill, 0) == 1);
    db_reset(kill);
    status sent = db_commit_send(o.db, &err);
    if (sent == ST_OK) {
        OK(db_begin(o.db, true, &err));
        put(o.insert, 10, 12, "b");
        OK(db_bulk_flush(o.insert, &err));
        FAILS(ST_RETRY, db_commit_wait(o.db, &err));
        OK(db_commit(o.db, &err)); /* it has a connection of its own */
        CHECK(count(&o) == 2);
    }
    db_close(killer);
    overlap_close(&o);
}

/* While we wait for an answer on one connection, the commit on the other must not wait for us:
 * whom we wait for may be waiting for that commit. */
TEST(overlap_commits_while_we_wait_for_something_else) {
    struct overlap o = overlap_open(test_postgres());
    OK(db_begin(o.db, true, &err));
    put(o.insert, 0, 5, "a");
    OK(db_bulk_flush(o.insert, &err));
    OK(db_commit(o.db, &err));
    struct db *other = open_db(o.url, DB_WRITE); /* holds a row for a moment, then is cut off */
    OK(db_exec(other, "SET idle_in_transaction_session_timeout = 300", &err));
    OK(db_begin(other, true, &err));
    OK(db_exec(other, "UPDATE item SET t = 'x' WHERE no = 3", &err));

    OK(db_begin(o.db, true, &err));
    put(o.update, 2, 5, "b");
    OK(db_bulk_flush(o.update, &err));
    OK(db_commit_send(o.db, &err));
    OK(db_begin(o.db, true, &err));
    db_ask_early(o.db, true);
    CHECK(step(prepare(o.db, "SELECT pg_sleep(2)::text")));
    db_ask_early(o.db, false);
    CHECK(one_int(o.reader, "SELECT COUNT(*) FROM item WHERE t = 'b'") == 3);
    db_rollback(o.db);
    OK(db_commit_wait(o.db, &err));
    db_close(other);
    overlap_close(&o);
}

/* "postgresql://user:password@rest" for another user. */
static const char *url_of(str url, const char *user, const char *password) {
    static char text[512];
    str before = STR_NONE;
    str rest = STR_NONE;
    CHECK(str_split(url, '@', &before, &rest));
    snprintf(text, sizeof(text), "postgresql://%s:%s@%.*s", user, password, STR_ARG(rest));
    return text;
}

/* A server that gives us no second connection: what was under way ends well, and the next
 * transaction goes on over the first. */
TEST(overlap_goes_on_without_a_second_connection) {
    str url = test_postgres();
    struct db *admin = open_db(url, DB_WRITE);
    OK(db_exec(admin,
               "DROP ROLE IF EXISTS cairn_only_one;"
               "CREATE ROLE cairn_only_one LOGIN PASSWORD 'one' CONNECTION LIMIT 1;"
               "CREATE TABLE item (no {pk}, t {text} NOT NULL); GRANT ALL ON item TO "
               "cairn_only_one; GRANT USAGE ON SCHEMA public TO cairn_only_one",
               &err));
    struct db *db = open_db(str_c(url_of(url, "cairn_only_one", "one")), DB_WRITE);
    struct db_bulk *insert = NULL;
    OK(db_bulk_open(db, &insert_spec, &insert, &err));
    for (int64_t i = 0; i < 3; i++) {
        OK(db_begin(db, true, &err));
        put(insert, i * 10, i * 10 + 5, "a");
        OK(db_bulk_flush(insert, &err));
        OK(db_commit_send(db, &err));
        FAILS(ST_RETRY, db_begin(db, true, &err));
        CHECK(strstr(err.msg, "too many connections"), "%s", err.msg);
        OK(db_commit_wait(db, &err));
        CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 5 * (i + 1));
    }
    OK(db_exec(admin, "ALTER ROLE cairn_only_one CONNECTION LIMIT 2", &err)); /* and when it does */
    OK(db_begin(db, true, &err));
    put(insert, 100, 105, "a");
    OK(db_bulk_flush(insert, &err));
    OK(db_commit_send(db, &err));
    OK(db_begin(db, true, &err));
    put(insert, 200, 205, "a");
    OK(db_bulk_flush(insert, &err));
    OK(db_commit_wait(db, &err));
    OK(db_commit(db, &err));
    CHECK(one_int(db, "SELECT COUNT(*) FROM item") == 25);
    db_close(db);
    OK(db_exec(admin, "DROP OWNED BY cairn_only_one; DROP ROLE cairn_only_one", &err));
    db_close(admin);
}

static int64_t backend(struct db *db) {
    db_ask_early(db, true);
    int64_t pid = one_int(db, "SELECT pg_backend_pid()");
    db_ask_early(db, false);
    return pid;
}

/* One of two connections is lost while nobody uses it. The first who does is told; then it is
 * opened again, and learns its statements again. */
TEST(overlap_opens_a_lost_connection_again) {
    struct overlap o = overlap_open(test_postgres());
    int64_t rows = 0;
    for (int round = 0; round < 3; round++) {
        OK(db_begin(o.db, true, &err));
        int64_t pid = backend(o.db);
        put(o.insert, rows, rows + 5, "a");
        OK(db_bulk_flush(o.insert, &err));
        OK(db_commit_send(o.db, &err));
        OK(db_begin(o.db, true, &err));
        put(o.insert, rows + 5, rows + 10, "b");
        if (round == 1) { /* this is the one that was cut off */
            struct db_stmt *ask = prepare(o.db, "SELECT pg_backend_pid()");
            bool row = false;
            db_bulk_clear(o.insert);
            db_ask_early(o.db, true);
            FAILS(ST_RETRY, db_step(ask, &row, &err));
            db_ask_early(o.db, false);
            db_rollback(o.db);
            OK(db_commit_wait(o.db, &err));
            rows += 5;
            continue;
        }
        CHECK(backend(o.db) != pid);
        OK(db_bulk_flush(o.insert, &err));
        OK(db_commit_wait(o.db, &err));
        OK(db_commit(o.db, &err));
        rows += 10;
        struct db *killer = open_db(o.url, DB_WRITE);
        struct db_stmt *kill = prepare(killer, "SELECT pg_terminate_backend($1::bigint::int)");
        db_bind_int(kill, 1, pid);
        if (round == 0) CHECK(step(kill));
        db_close(killer);
    }
    CHECK(count(&o) == rows);
    overlap_close(&o);
}
