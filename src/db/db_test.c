/* db/db_test.c: the contract of db.h, on both databases: values, statements, transactions, errors.
 */
#include "db/db.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

#include "db/db_test.h"

/* Prepares and runs, wherever the failure shows: PostgreSQL looks at the SQL when it is first run.
 */
static status try_run(struct db *db, const char *sql) {
    struct db_stmt *st = NULL;
    int64_t changed = 0;
    status s = db_prepare(db, sql, &st, &err);
    return s == ST_OK ? db_run(st, &changed, &err) : s;
}

TEST_DB(db_values_come_back_as_they_went_in) {
    static const struct {
        int64_t n;
        str text;
        str blob;
    } cases[] = {
        {0, STR_LIT(""), STR_LIT("")},
        {1, STR_LIT("a"), STR_LIT("\0")},
        {-1, STR_LIT("it's \"quoted\" \\ {braces} $1"), STR_LIT("a\0b\0")},
        {INT64_MAX, STR_LIT("gr\xc3\xbc\xc3\x9f dich \xe2\x82\xac \xf0\x9f\xaa\xa8"),
         STR_LIT("\xff\xfe\x00\x80")},
        {INT64_MIN, STR_LIT("line\nline\ttab"), STR_LIT("\\x41'")},
    };
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk}, n {int}, t {text}, b {blob})", &err));
    struct db_stmt *in = prepare(db, "INSERT INTO v (no, n, t, b) VALUES ($1, $2, $3, $4)");
    struct db_stmt *out = prepare(db, "SELECT n, t, b FROM v WHERE no = $1");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        db_bind_int(in, 1, (int64_t)i);
        db_bind_int(in, 2, cases[i].n);
        db_bind_text(in, 3, cases[i].text);
        db_bind_blob(in, 4, cases[i].blob);
        CHECK(run(in) == 1);
        db_bind_int(out, 1, (int64_t)i);
        CHECK(step(out));
        CHECK(db_int(out, 0) == cases[i].n, "case %zu", i);
        CHECK(str_eq(db_text(out, 1), cases[i].text) && db_text(out, 1).ptr, "case %zu", i);
        CHECK(str_eq(db_blob(out, 2), cases[i].blob) && db_blob(out, 2).ptr, "case %zu", i);
        CHECK(!db_is_null(out, 0) && !db_is_null(out, 1) && !db_is_null(out, 2));
        CHECK(!step(out));
    }
    db_close(db);
}

TEST_DB(db_null_differs_from_empty) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk}, n {int}, t {text}, b {blob})", &err));
    struct db_stmt *in = prepare(db, "INSERT INTO v (no, n, t, b) VALUES ($1, $2, $3, $4)");
    db_bind_int(in, 1,
                1); /* the rest is not bound: NULL, of a type that the server must find out */
    CHECK(run(in) == 1);
    db_bind_int(in, 1, 2);
    db_bind_null(in, 2);
    db_bind_text(in, 3, STR_NONE);
    db_bind_blob(in, 4, STR_NONE);
    CHECK(run(in) == 1);
    db_bind_int(in, 1,
                3); /* bindings do not survive: without them this would repeat the last values */
    db_bind_int(in, 2, 7);
    db_bind_text(in, 3, STR(""));
    db_bind_blob(in, 4, STR(""));
    CHECK(run(in) == 1);

    struct db_stmt *out = prepare(db, "SELECT n, t, b FROM v ORDER BY no");
    for (int i = 0; i < 2; i++) {
        CHECK(step(out));
        CHECK(db_is_null(out, 0) && db_is_null(out, 1) && db_is_null(out, 2));
        CHECK(db_int(out, 0) == 0 && !db_text(out, 1).ptr && !db_blob(out, 2).ptr);
    }
    CHECK(step(out));
    CHECK(!db_is_null(out, 1) && db_text(out, 1).ptr && db_text(out, 1).len == 0);
    CHECK(!db_is_null(out, 2) && db_blob(out, 2).ptr && db_blob(out, 2).len == 0);
    CHECK(!step(out));
    CHECK(one_int(db, "SELECT count(*) FROM v WHERE t IS NULL AND b IS NULL AND n IS NULL") == 2);
    db_close(db);
}

TEST_DB(db_parameters_may_be_out_of_order_and_repeat) {
    struct db *db = open_db(url, DB_WRITE);
    struct db_stmt *st =
        prepare(db, "SELECT {text:$2}, {int:$3}, {int:$1}, {text:$2}, {int:$1} + {int:$3}, '$9'");
    db_bind_int(st, 1, 10);
    db_bind_text(st, 2, STR("two"));
    db_bind_int(st, 3, 30);
    CHECK(step(st));
    CHECK(str_eq(db_text(st, 0), STR("two")) && str_eq(db_text(st, 3), STR("two")));
    CHECK(db_int(st, 1) == 30 && db_int(st, 2) == 10 && db_int(st, 4) == 40);
    CHECK(str_eq(db_text(st, 5), STR("$9")));
    CHECK(!step(st));
    db_close(db);
}

TEST_DB(db_parameters_may_change_their_type) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk}, n {int})", &err));
    struct db_stmt *st = prepare(db, "SELECT count(*) FROM v WHERE n = $1 OR $1 IS NULL");
    CHECK(step(st) && db_int(st, 0) == 0); /* NULL first, */
    db_reset(st);
    db_bind_int(st, 1, INT64_MAX); /* then a number */
    CHECK(step(st) && db_int(st, 0) == 0);
    db_reset(st);
    db_bind_null(st, 1);
    CHECK(step(st));
    db_reset(st);

    struct db_stmt *any = prepare(db, "SELECT CASE WHEN $1 IS NULL THEN 0 ELSE 1 END");
    db_bind_text(any, 1, STR("x"));
    CHECK(step(any) && db_int(any, 0) == 1);
    db_reset(any);
    db_bind_int(any, 1, 3);
    CHECK(step(any) && db_int(any, 0) == 1);
    db_reset(any);
    db_bind_blob(any, 1, STR("\0"));
    CHECK(step(any) && db_int(any, 0) == 1);
    db_close(db);
}

TEST_DB(db_reads_the_results_of_aggregates) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db,
               "CREATE TABLE v (no {pk}, n {int});"
               "INSERT INTO v VALUES (1, 9007199254740993), (2, 20000), (3, -9007199254740993), "
               "(4, -9223372036854770000)",
               &err));
    CHECK(one_int(db, "SELECT sum(n) FROM v") == -9223372036854750000);
    CHECK(one_int(db, "SELECT sum(n) FROM v WHERE no = 2") == 20000);
    CHECK(one_int(db, "SELECT sum(n) FROM v WHERE no < 4") == 20000);
    CHECK(one_int(db, "SELECT coalesce(sum(n), 0) FROM v WHERE no > 4") == 0);
    CHECK(one_int(db, "SELECT sum(n) FROM v WHERE no = 1") == 9007199254740993);
    CHECK(one_int(db, "SELECT count(*) FROM v") == 4);
    CHECK(one_int(db, "SELECT CASE WHEN EXISTS (SELECT 1 FROM v) THEN 1 ELSE 0 END") == 1);
    CHECK(one_int(db, "SELECT EXISTS (SELECT 1 FROM v)") == 1); /* a boolean on PostgreSQL */

    struct db_stmt *st =
        prepare(db, "SELECT 1.25 * no FROM v WHERE no = 2"); /* no number of ours */
    bool row = false;
    FAILS(ST_INVALID, db_step(st, &row, &err));
    CHECK(!row);
    CHECK(one_int(db, "SELECT count(*) FROM v") == 4);
    db_close(db);
}

TEST_DB(db_text_with_a_nul_is_refused) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (t {text})", &err));
    struct db_stmt *in = prepare(db, "INSERT INTO v (t) VALUES ($1)");
    int64_t changed = 0;
    db_bind_text(in, 1, STR("a\0b"));
    FAILS(ST_INVALID, db_run(in, &changed, &err));
    CHECK(strstr(err.msg, "NUL"), "%s", err.msg);
    db_bind_text(in, 1, STR("ab")); /* the statement goes on */
    CHECK(run(in) == 1);
    db_close(db);
}

TEST_DB(db_braces_expand_for_each_database) {
    struct db *db = open_db(url, DB_WRITE);
    bool pg = db_is_postgres(db);
    CHECK(strcmp(db_name(db), pg ? "postgres" : "sqlite") == 0);
    OK(db_exec(db,
               "CREATE TABLE a (no {pk}, n {int}, t {text} NOT NULL, b {blob});"
               "CREATE TABLE k (x {int}, y {text}, PRIMARY KEY (x, y)) {norowid};"
               "INSERT INTO k VALUES ({sqlite:1}{postgres: 2 + {postgres:0}{sqlite:7}}, 'y');",
               &err));
    CHECK(one_int(db, "SELECT x FROM k") == (pg ? 2 : 1));
    CHECK(one_int(db, "{sqlite: SELECT count(*) FROM pragma_table_info('a') WHERE type = 'INTEGER'}"
                      "{postgres: SELECT count(*) FROM information_schema.columns"
                      " WHERE table_name = 'a' AND data_type = 'bigint'}") == 2);

    struct db_stmt *st =
        prepare(db, "SELECT '{}' || {sqlite:'{}'}{postgres:'{}'}"); /* an empty object is no word */
    CHECK(step(st) && str_eq(db_text(st, 0), STR("{}{}")));

    static const char *const bad[] = {"SELECT {",
                                      "SELECT {nothing}",
                                      "SELECT {nothing:}",
                                      "SELECT {float:$1}",
                                      "SELECT {sqlite: {}",
                                      "SELECT 1}",
                                      "SELECT {sqlite:1}{postgres:1}}",
                                      "{sqlite: {bad}}{postgres: {bad}}"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        FAILS(ST_INVALID, db_exec(db, bad[i], &err));
        CHECK(strstr(err.msg, "brace"), "case %zu: %s", i, err.msg);
    }
    db_close(db);
}

TEST_DB(db_statements_are_cached_by_their_text) {
    static const char sql[] = "SELECT {int:$1}";
    struct db *db = open_db(url, DB_WRITE);
    struct db_stmt *first = prepare(db, sql);
    for (int i = 0; i < 100; i++) {
        struct db_stmt *st = prepare(db, sql);
        CHECK(st == first);
        db_bind_int(st, 1, i);
        CHECK(step(st) && db_int(st, 0) == i);
        if (i % 2 == 0) CHECK(!step(st)); /* read to the end, or dropped in the middle */
        db_reset(st);
    }
    CHECK(prepare(db, "SELECT {int:$1} + 1") != first);
    db_close(db);
}

TEST_DB(db_statements_can_be_read_side_by_side) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk}); INSERT INTO v VALUES (1), (2), (3)", &err));
    struct db_stmt *outer = prepare(db, "SELECT no FROM v ORDER BY no");
    struct db_stmt *inner = prepare(db, "SELECT count(*) FROM v WHERE no <= $1");
    int64_t seen = 0;
    while (step(outer)) {
        int64_t no = db_int(outer, 0);
        db_bind_int(inner, 1, no);
        CHECK(step(inner));
        CHECK(db_int(inner, 0) == no);
        db_reset(inner);
        seen += no;
    }
    CHECK(seen == 6);
    db_close(db);
}

TEST_DB(db_returning_and_counts) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk}, n {int} NOT NULL)", &err));
    struct db_stmt *st =
        prepare(db, "INSERT INTO v (no, n) VALUES (1, $1), (2, $1), (3, 5) RETURNING no, n");
    db_bind_int(st, 1, 4);
    int64_t sum = 0;
    int64_t rows = 0;
    for (; step(st); rows++)
        sum += db_int(st, 0) * 10 + db_int(st, 1);
    CHECK(rows == 3 && sum == 60 + 13);
    CHECK(run(prepare(db, "UPDATE v SET n = n + 1 WHERE no <= 2")) == 2);
    CHECK(run(prepare(db, "UPDATE v SET n = 0 WHERE no = 9")) == 0);
    CHECK(run(prepare(db, "INSERT INTO v VALUES (3, 9) ON CONFLICT (no) DO NOTHING")) == 0);
    CHECK(run(prepare(
              db, "INSERT INTO v VALUES (3, 9) ON CONFLICT (no) DO UPDATE SET n = excluded.n")) ==
          1);
    CHECK(run(prepare(db, "SELECT no FROM v")) == 0);
    CHECK(run(prepare(db, "DELETE FROM v")) == 3);
    db_close(db);
}

TEST_DB(db_rollback_undoes_and_commit_keeps) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk})", &err));
    db_rollback(db); /* nothing is open: fine */
    OK(db_begin(db, true, &err));
    CHECK(db_in_transaction(db));
    OK(db_exec(db, "INSERT INTO v VALUES (1)", &err));
    db_rollback(db);
    CHECK(!db_in_transaction(db));
    OK(db_begin(db, true, &err));
    CHECK(run(prepare(db, "INSERT INTO v VALUES (2)")) == 1);
    OK(db_commit(db, &err));
    OK(db_begin(db, true, &err)); /* an empty one */
    OK(db_commit(db, &err));
    OK(db_begin(db, false, &err));
    db_rollback(db);
    CHECK(one_int(db, "SELECT sum(no) FROM v") == 2);

    OK(db_begin(db, true, &err));
    OK(db_exec(db, "INSERT INTO v VALUES (3)", &err));
    db_close(db); /* rolls back */
    db = open_db(url, DB_WRITE);
    CHECK(one_int(db, "SELECT sum(no) FROM v") == 2);
    db_close(db);
    db_close(NULL);
}

TEST_DB(db_ends_reading_with_the_transaction) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk}); INSERT INTO v VALUES (1), (2)", &err));
    struct db_stmt *st = prepare(db, "SELECT no FROM v WHERE no > $1 ORDER BY no");
    for (int i = 0; i < 2; i++) {
        OK(db_begin(db, true, &err));
        db_bind_int(st, 1, 0);
        CHECK(step(st) && db_int(st, 0) == 1); /* and is forgotten */
        if (i == 0)
            OK(db_commit(db, &err));
        else
            db_rollback(db);
    }
    db_bind_int(st, 1, 1);
    CHECK(step(st) && db_int(st, 0) == 2);
    CHECK(!step(st));
    db_close(db);
}

TEST_DB(db_connections_see_what_is_committed) {
    struct db *writer = open_db(url, DB_WRITE);
    OK(db_exec(writer, "CREATE TABLE v (no {pk})", &err));
    struct db *reader = open_db(url, DB_READ_ONLY);
    static const char count[] = "SELECT count(*) FROM v";
    OK(db_begin(writer, true, &err));
    CHECK(run(prepare(writer, "INSERT INTO v VALUES (1)")) == 1);
    CHECK(one_int(writer, count) == 1);
    CHECK(one_int(reader, count) == 0);
    OK(db_begin(reader, false, &err));
    CHECK(one_int(reader, count) == 0); /* the snapshot starts here */
    OK(db_commit(writer, &err));
    CHECK(one_int(reader, count) == 0);
    OK(db_commit(reader, &err));
    CHECK(one_int(reader, count) == 1);
    db_close(reader);
    db_close(writer);
}

TEST_DB(db_read_only_refuses_writes) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk})", &err));
    struct db *reader = open_db(url, DB_READ_ONLY);
    FAILS(ST_INVALID, db_exec(reader, "INSERT INTO v VALUES (1)", &err));
    FAILS(ST_INVALID, try_run(reader, "INSERT INTO v VALUES (2)"));
    FAILS(ST_INVALID, db_exec(reader, "CREATE TABLE w (no {pk})", &err));
    FAILS(ST_INVALID, db_begin(reader, true, &err));
    OK(db_begin(reader, false, &err));
    FAILS(ST_INVALID, try_run(reader, "DELETE FROM v"));
    db_rollback(reader);
    CHECK(one_int(reader, "SELECT count(*) FROM v") == 0);
    db_close(reader);
    db_close(db);
}

/* Both databases refuse what a trigger refuses, in its words. */
static const char refuse_schema[] =
    "CREATE TABLE v (no {pk}, n {int} NOT NULL CHECK (n > 0), key {text} UNIQUE);"
    "INSERT INTO v VALUES (1, 1, 'one');"
    "{sqlite: CREATE TRIGGER v_kept BEFORE DELETE ON v BEGIN SELECT RAISE(ABORT, 'v is "
    "append-only'); END;}"
    "{postgres: CREATE FUNCTION v_kept() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'v is append-only'; END $$;"
    " CREATE TRIGGER v_kept BEFORE DELETE ON v FOR EACH ROW EXECUTE FUNCTION v_kept();}";

TEST_DB(db_errors_are_told_apart) {
    static const struct {
        const char *sql;
        status want;
        const char *says;
    } cases[] = {
        {"INSERT INTO v VALUES (1, 1, 'two')", ST_CONFLICT, "v"},
        {"INSERT INTO v VALUES (2, 1, 'one')", ST_CONFLICT, "v"},
        {"INSERT INTO v VALUES (2, 0, 'two')", ST_INVALID, ""},
        {"INSERT INTO v VALUES (2, NULL, 'two')", ST_INVALID, "n"},
        {"DELETE FROM v", ST_INVALID, "v is append-only"},
        {"SELEC 1", ST_INVALID, "SELEC"},
        {"SELECT * FROM nowhere", ST_INVALID, "nowhere"},
        {"SELECT \"no such column\" FROM v", ST_INVALID, "no such column"},
    };
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, refuse_schema, &err));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        FAILS(cases[i].want, db_exec(db, cases[i].sql, &err));
        CHECK(strstr(err.msg, cases[i].says) && strstr(err.msg, "could not "), "case %zu: %s", i,
              err.msg);
        OK(db_begin(db, true, &err));
        FAILS(cases[i].want, try_run(db, cases[i].sql));
        CHECK(strstr(err.msg, cases[i].says) && strstr(err.msg, "could not "), "case %zu: %s", i,
              err.msg);
        db_rollback(db);
        CHECK(one_int(db, "SELECT count(*) FROM v") == 1, "case %zu", i);
    }
    db_close(db);
}

TEST_DB(db_works_again_after_a_failed_transaction) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, refuse_schema, &err));
    struct db_stmt *in = prepare(db, "INSERT INTO v (no, n, key) VALUES ($1, $2, $3)");
    for (int round = 0; round < 3; round++) {
        OK(db_begin(db, true, &err));
        db_bind_int(in, 1, 10 + round);
        db_bind_int(in, 2, 1);
        CHECK(run(in) == 1);
        db_bind_int(in, 1, 20 + round);
        db_bind_int(in, 2, 1);
        db_bind_text(in, 3, STR("one")); /* taken */
        int64_t changed = -1;
        FAILS(ST_CONFLICT, db_run(in, &changed, &err));
        CHECK(changed == -1); /* outputs are written on success only */
        db_rollback(db);
        CHECK(one_int(db, "SELECT count(*) FROM v") == 1 + round);
        OK(db_begin(db, true, &err));
        db_bind_int(in, 1, 30 + round);
        db_bind_int(in, 2, 1);
        CHECK(run(in) == 1);
        OK(db_commit(db, &err));
    }
    db_close(db);
}

TEST_DB(db_statement_that_failed_can_be_tried_again) {
    static const char sql[] = "SELECT count(*) FROM later";
    struct db *db = open_db(url, DB_WRITE);
    FAILS(ST_INVALID, try_run(db, sql));
    OK(db_begin(db, true, &err));
    FAILS(ST_INVALID, try_run(db, sql));
    db_rollback(db);
    OK(db_exec(db, "CREATE TABLE later (no {pk})", &err));
    CHECK(one_int(db, sql) == 0);
    db_close(db);
}

TEST_DB(db_exec_runs_several_statements) {
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "", &err));
    OK(db_exec(db, "  ; -- nothing\n", &err));
    OK(db_begin(db, true, &err));
    OK(db_exec(db,
               "CREATE TABLE v (no {pk}); INSERT INTO v VALUES (1); INSERT INTO v VALUES (2); "
               "SELECT * FROM v",
               &err));
    FAILS(ST_INVALID,
          db_exec(db, "INSERT INTO v VALUES (3); nonsense; INSERT INTO v VALUES (4)", &err));
    db_rollback(db);
    FAILS(ST_INVALID, try_run(db, "SELECT count(*) FROM v"));
    FAILS(ST_INVALID, try_run(db, "SELECT 1; SELECT 2")); /* but a statement is one */
    db_close(db);
}

TEST_DB(db_limits_are_errors) {
    struct db *db = open_db(url, DB_WRITE);
    struct db_stmt *st = NULL;
    FAILS(ST_LIMIT, db_prepare(db, "SELECT $65", &st, &err));
    CHECK(!st);
    db_close(db);
}

TEST(db_open_says_what_is_wrong) {
    struct db *db = NULL;
    char path[256];
    const char *dir = test_dir();
    snprintf(path, sizeof path, "%s/missing.db", dir);
    FAILS(ST_NOT_FOUND, db_open(str_c(path), DB_READ_ONLY, &db, &err));
    CHECK(strstr(err.msg, path), "%s", err.msg);
    snprintf(path, sizeof path, "%s/missing/x.db", dir);
    FAILS(ST_NOT_FOUND, db_open(str_c(path), DB_WRITE, &db, &err));
    FAILS(ST_INVALID, db_open(str_c(dir), DB_WRITE, &db, &err)); /* a folder */
    FAILS(ST_INVALID, db_open(STR(""), DB_WRITE, &db, &err));
    FAILS(ST_INVALID, db_open(STR("sqlite:"), DB_WRITE, &db, &err));
    FAILS(ST_INVALID,
          db_open(STR(":memory:"), DB_WRITE, &db, &err)); /* cannot have a write-ahead log */
    FAILS(ST_INVALID, db_open(STR("a\0b"), DB_WRITE, &db, &err));
    snprintf(path, sizeof path, "sqlite:%s/x.db?vfs=none-such", dir);
    FAILS(ST_INVALID, db_open(str_c(path), DB_WRITE, &db, &err));
    CHECK(strstr(err.msg, "none-such"), "%s", err.msg);
    CHECK(!db);
}

TEST(db_open_never_shows_a_password) {
    static const char *const urls[] = {"postgresql://joe:geheim@127.0.0.1:1/x",
                                       "postgres://joe:geheim@127.0.0.1:1/x?connect_timeout=2",
                                       "postgresql://joe:geheim@[::1/x",
                                       "postgresql://joe:geheim@host:99999999/x",
                                       "postgresql://joe:geheim@127.0.0.1:1/x?nonsense=1",
                                       "postgresql://127.0.0.1:1/x?password=geheim&user=%zz"};
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        struct db *db = NULL;
        status st = db_open(str_c(urls[i]), DB_WRITE, &db, &err);
        CHECK(st == (i < 2 ? ST_RETRY : ST_INVALID) || (i == 3 && st == ST_RETRY), "case %zu: %s",
              i, err.msg);
        CHECK(!strstr(err.msg, "geheim"), "case %zu: %s", i, err.msg);
    }
}

/* ---- what only a bug of ours can do is stopped, the same for every driver ---- */

static void use_after_failure(struct db *db) {
    OK(db_begin(db, true, &err));
    (void)!db_exec(db, "nonsense", &err);
    (void)!db_exec(db, "SELECT 1", &err);
}

static void commit_after_failure(struct db *db) {
    OK(db_begin(db, true, &err));
    (void)!db_exec(db, "nonsense", &err);
    (void)!db_commit(db, &err);
}

static void commit_nothing(struct db *db) { (void)!db_commit(db, &err); }

static void begin_twice(struct db *db) {
    OK(db_begin(db, true, &err));
    (void)!db_begin(db, true, &err);
}

static void bind_too_far(struct db *db) { db_bind_int(prepare(db, "SELECT $1"), 2, 0); }

static void bind_while_reading(struct db *db) {
    struct db_stmt *st = prepare(db, "SELECT 1 WHERE $1 IS NULL");
    CHECK(step(st));
    db_bind_int(st, 1, 0);
}

static void read_no_row(struct db *db) { (void)db_int(prepare(db, "SELECT 1"), 0); }

static void read_too_far(struct db *db) {
    struct db_stmt *st = prepare(db, "SELECT 1");
    CHECK(step(st));
    (void)db_int(st, 1);
}

static const struct db_col bulk_cols[] = {{"no", DB_INT}, {"t", DB_TEXT}};

static struct db_bulk *open_bulk(struct db *db) {
    struct db_bulk *b = NULL;
    OK(db_exec(db, "CREATE TABLE v (no {pk}, t {text})", &err));
    OK(db_bulk_open(db, &(struct db_bulk_spec){"v", DB_INSERT, bulk_cols, 2, 0}, &b, &err));
    return b;
}

static void flush_outside(struct db *db) { (void)!db_bulk_flush(open_bulk(db), &err); }

static void flush_half_a_row(struct db *db) {
    struct db_bulk *b = open_bulk(db);
    OK(db_begin(db, true, &err));
    db_bulk_int(b, 1);
    (void)!db_bulk_flush(b, &err);
}

static void put_the_wrong_type(struct db *db) { db_bulk_text(open_bulk(db), STR("1")); }

TEST(db_stops_what_only_a_bug_can_do) {
    static void (*const bugs[])(struct db *) = {
        use_after_failure, commit_after_failure, commit_nothing,    begin_twice,
        bind_too_far,      bind_while_reading,   read_no_row,       read_too_far,
        flush_outside,     flush_half_a_row,     put_the_wrong_type};
    for (size_t i = 0; i < COUNT_OF(bugs); i++) {
        str url = test_db_url("sqlite");
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            signal(SIGABRT, SIG_DFL);
            dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
            bugs[i](open_db(url, DB_WRITE));
            _exit(0);
        }
        int how = 0;
        CHECK(waitpid(child, &how, 0) == child);
        CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT, "bug %zu", i);
    }
}

/* ---- stopping ---- */

static void *set_soon(void *flag) {
    usleep(100000);
    atomic_store((atomic_bool *)flag, true);
    return NULL;
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* One statement that would take minutes ends when it shall, and the connection can be used again.
 */
TEST_DB(db_stops_in_the_middle_of_a_statement) {
    atomic_bool stop = false;
    pthread_t thread;
    bool row = false;
    struct db *db = open_db(url, DB_WRITE);
    OK(db_exec(db, "CREATE TABLE v (no {pk})", &err));
    db_stop_on(db, &stop);
    struct db_stmt *endless =
        prepare(db, "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT (i + 1) % 1000 FROM n)"
                    " SELECT COUNT(*) FROM n");
    struct db_stmt *one = prepare(db, "SELECT COUNT(*) FROM v");
    CHECK(step(one) && !step(one)); /* as ever */
    OK(db_begin(db, false, &err));
    double begun = seconds_now();
    CHECK(pthread_create(&thread, NULL, set_soon, &stop) == 0);
    CHECK(db_step(endless, &row, &err) == ST_RETRY, "%s", err.msg);
    CHECK(seconds_now() - begun < 20);
    pthread_join(thread, NULL);
    db_rollback(db);
    CHECK(db_step(one, &row, &err) == ST_RETRY); /* nor does another begin */
    db_stop_on(db, NULL);
    CHECK(step(one) && !step(one));
    db_close(db);
}

TEST(db_stops_a_backup) {
    atomic_bool stop = true;
    struct db *db = open_db(test_db_url("sqlite"), DB_WRITE);
    char path[300];
    OK(db_exec(db, "CREATE TABLE v (no {pk})", &err));
    snprintf(path, sizeof(path), "%s/copy.db", test_dir());
    db_stop_on(db, &stop);
    CHECK(db_backup(db, str_c(path), &err) == ST_RETRY && access(path, F_OK) != 0);
    stop = false;
    OK(db_backup(db, str_c(path), &err));
    CHECK(access(path, F_OK) == 0);
    db_close(db);
}
