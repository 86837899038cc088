/* Damage below the rows: an index that lost an entry, a tenant's row that is gone. */
#include <sqlite3.h>

#include "conformance/fixture.h"

#include "ledger/ledger.h"

static const char *ledger_path(void) {
    static char path[4096];
    snprintf(path, sizeof(path), "%s/ledger.db", test_dir());
    return path;
}

static struct verify_report verify(struct fixture *c, bool state) {
    struct verify_report report;
    struct error err = {0};
    CHECK(ledger_verify(c->ledger, state, NULL, NULL, &c->arena, &report, &err) == ST_OK, "%s",
          err.msg);
    return report;
}

TEST_DB(care_verify_finds_a_tenant_whose_row_is_gone) {
    struct fixture c;
    struct error err = {0};
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "run", "RunStarted,StepStarted a,StepCompleted a");
    CHECK(!verify(&c, true).damaged);
    CHECK(db_exec(ledger_db(c.ledger),
                  "{sqlite:DROP TRIGGER ledger_tenant_no_DELETE}"
                  "{postgres:DROP TRIGGER ledger_tenant_no_DELETE ON ledger_tenant}; DELETE FROM "
                  "ledger_tenant",
                  &err) == ST_OK,
          "%s", err.msg);
    CHECK(verify(&c, false).damaged);
    fixture_close(&c);
}

/* Another connection, without the ledger's safeguards. */
static void damage_index(const char *path) {
    sqlite3 *db = NULL;
    CHECK(sqlite3_open(path, &db) == SQLITE_OK);
    int rc = sqlite3_exec(
        db,
        "DROP INDEX ledger_run_correlation;"
        "CREATE INDEX ledger_run_correlation ON ledger_run(correlation_id) WHERE run_no < 0;"
        "PRAGMA writable_schema=ON;"
        "UPDATE sqlite_master SET sql = 'CREATE INDEX ledger_run_correlation ON"
        " ledger_run(correlation_id)' WHERE name = 'ledger_run_correlation'",
        NULL, NULL, NULL);
    CHECK(rc == SQLITE_OK, "%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

/* SQLite only: an index that lost the entry of a run. Through such a one a look-up finds no run
 * where there is one, and its events would be stored again. */
TEST(care_verify_finds_an_index_that_lost_a_run) {
    struct fixture c;
    const char *path = ledger_path();
    fixture_open_as(&c, str_c(path), LEDGER_REJECT);
    fixture_program(&c, "run", "RunStarted");
    CHECK(!verify(&c, true).damaged);
    damage_index(path);
    fixture_reopen_as(&c, LEDGER_REJECT);
    CHECK(!verify(&c, false).damaged, "the chain is whole");
    CHECK(verify(&c, true).damaged);
    fixture_close(&c);
}
