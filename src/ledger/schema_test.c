#include "ledger/schema.h"

#include "core/event_type.h"
#include "ledger/ledger.h"
#include "test.h"

static struct db *open_db(str url) {
    struct db *db = NULL;
    struct error err = {0};
    CHECK(db_open(url, DB_WRITE, &db, &err) == ST_OK, "%s", err.msg);
    return db;
}

static void exec(struct db *db, const char *sql) {
    struct error err = {0};
    CHECK(db_exec(db, sql, &err) == ST_OK, "%s: %s", sql, err.msg);
}

static int64_t count(struct db *db, const char *sql) {
    struct db_stmt *q = NULL;
    struct error err = {0};
    bool row = false;
    CHECK(db_prepare(db, sql, &q, &err) == ST_OK && db_step(q, &row, &err) == ST_OK && row,
          "%s: %s", sql, err.msg);
    int64_t n = db_int(q, 0);
    db_reset(q);
    return n;
}

TEST_DB(schema_is_made_once) {
    struct db *db = open_db(url);
    struct error err = {0};
    CHECK(schema_check(db, &err) == ST_NOT_FOUND, "%s", err.msg);
    CHECK(schema_migrate(db, &err) == ST_OK, "%s", err.msg);
    CHECK(schema_check(db, &err) == ST_OK, "%s", err.msg);
    CHECK(schema_migrate(db, &err) == ST_OK, "%s", err.msg);
    CHECK(!db_in_transaction(db));
    CHECK(count(db,
                "SELECT COUNT(*) FROM ledger_meta WHERE name = 'schema_version' AND value = '4'") ==
          1);
    static const char *const views[] = {
        "run_events", "orchestration_events", "runs",          "steps",
        "alerts",     "run_checkpoints",      "provider_refs", "tenants",
        "audit",      "outbox_events",        "effects"};
    for (size_t i = 0; i < COUNT_OF(views); i++) { /* all can be read, with every column */
        struct db_stmt *q = NULL;
        char sql[128];
        struct buf b;
        bool row = true;
        buf_init_fixed(&b, sql, sizeof(sql));
        buf_printf(&b, "SELECT * FROM %s", views[i]);
        buf_put_char(&b, 0);
        struct db *own = open_db(url); /* statements are remembered by the address of their text */
        CHECK(db_prepare(own, sql, &q, &err) == ST_OK && db_step(q, &row, &err) == ST_OK && !row,
              "%s: %s", views[i], err.msg);
        db_close(own);
    }
    db_close(db);
}

/* The catalogue in the database is the program's. */
TEST_DB(schema_knows_the_types) {
    struct db *db = open_db(url);
    struct db_stmt *q = NULL;
    struct error err = {0};
    bool row = false;
    int types = 0;
    CHECK(schema_migrate(db, &err) == ST_OK, "%s", err.msg);
    CHECK(db_prepare(db,
                     "SELECT type_no, name, family, lifecycle FROM ledger_type ORDER BY type_no",
                     &q, &err) == ST_OK,
          "%s", err.msg);
    while (db_step(q, &row, &err) == ST_OK && row) {
        const struct event_type_info *info = event_type_info((enum event_type)db_int(q, 0));
        CHECK(str_eq(db_text(q, 1), info->name) &&
              str_eq(db_text(q, 2), str_c(event_family_name(info->family))));
        CHECK(db_int(q, 3) == info->lifecycle);
        types++;
    }
    CHECK(types == 30 && count(db, "SELECT COUNT(*) FROM ledger_type WHERE lifecycle = 1") == 11);
    db_close(db);
}

/* A ledger of a newer version is neither changed nor read; one without a readable version is
 * damaged. */
TEST_DB(schema_of_another_version_is_refused) {
    struct db *db = open_db(url);
    struct ledger *l = NULL;
    struct error err = {0};
    CHECK(schema_migrate(db, &err) == ST_OK, "%s", err.msg);
    exec(db, "UPDATE ledger_meta SET value = '99' WHERE name = 'schema_version'");
    CHECK(schema_migrate(db, &err) == ST_INVALID && err.reason == REASON_SCHEMA_VERSION, "%s",
          err.msg);
    CHECK(schema_check(db, &err) == ST_INVALID && err.reason == REASON_SCHEMA_VERSION, "%s",
          err.msg);
    CHECK(ledger_open(url, NULL, &l, &err) == ST_INVALID, "%s", err.msg);
    CHECK(ledger_open_reader(url, &l, &err) == ST_INVALID, "%s", err.msg);
    CHECK(count(db, "SELECT COUNT(*) FROM ledger_meta WHERE value = '99'") == 1);
    exec(db, "UPDATE ledger_meta SET value = 'two' WHERE name = 'schema_version'");
    CHECK(schema_migrate(db, &err) == ST_CORRUPT, "%s", err.msg);
    exec(db, "DELETE FROM ledger_meta WHERE name = 'schema_version'");
    CHECK(schema_check(db, &err) == ST_CORRUPT, "%s", err.msg);
    db_close(db);
}

/* A ledger of version 1 had no leases, and nothing that came after them; opening it for writing
 * adds all. */
TEST_DB(schema_of_version_1_is_migrated) {
    struct db *db = open_db(url);
    struct error err = {0};
    CHECK(schema_migrate(db, &err) == ST_OK, "%s", err.msg);
    static const char *const lacking[] = {
        "DROP VIEW outbox_events",       "DROP VIEW effects",
        "DROP TABLE state_effect",       "DROP TABLE lease_run",
        "DROP TABLE lease_node",         "DROP VIEW audit",
        "DROP TABLE ledger_audit",       "DROP TABLE ledger_plan",
        "DROP TABLE api_receipt",        "DROP TABLE api_key",
        "DROP INDEX state_provider_run", "DROP TABLE ledger_archive{postgres: CASCADE}"};
    for (size_t i = 0; i < COUNT_OF(lacking); i++)
        exec(db, lacking[i]);
    exec(db, "UPDATE ledger_meta SET value = '1' WHERE name = 'schema_version'");
    CHECK(schema_check(db, &err) == ST_INVALID, "%s", err.msg);
    CHECK(schema_migrate(db, &err) == ST_OK, "%s", err.msg);
    CHECK(schema_check(db, &err) == ST_OK, "%s", err.msg);
    CHECK(count(db, "SELECT COUNT(*) FROM lease_run") == 0);
    CHECK(count(db, "SELECT COUNT(*) FROM audit") == 0);
    CHECK(count(db, "SELECT COUNT(*) FROM ledger_archive") == 0);
    CHECK(count(db, "SELECT COUNT(*) FROM outbox_events") == 0);
    CHECK(count(db, "SELECT COUNT(*) FROM orchestration_events") == 0);
    db_close(db);
}

/* Whatever fails while the schema is made: it is there as a whole, or not at all. */
TEST_DB(schema_is_made_whole_or_not_at_all) {
    struct error err = {0};
    int64_t n = 0;
    for (bool failed = true; failed;
         n += n < 12 ? 1 : 7) { /* the many inserts of types are all alike */
        struct db *faulty = NULL;
        CHECK(db_faulty_wrap(open_db(url), &faulty, &err) == ST_OK, "%s", err.msg);
        db_faulty_fail_at(faulty, n, false);
        failed = schema_migrate(faulty, &err) != ST_OK;
        db_close(faulty);
        struct db *db = open_db(url);
        CHECK(schema_check(db, &err) == (failed ? ST_NOT_FOUND : ST_OK), "call %lld: %s",
              (long long)n, err.msg);
        db_close(db);
    }
    CHECK(n > 40, "only %lld calls", (long long)n);
}
