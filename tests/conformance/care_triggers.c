/* What keeps the history from being changed is itself looked after. */
#include "conformance/fixture.h"

/* Without the triggers anybody could change the history unnoticed until the next verify: that they
 * are gone is damage of its own. */
TEST_DB(care_verify_misses_the_triggers) {
    struct fixture c;
    struct verify_report report;
    struct error err = {0};
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted,StepStarted a");
    CHECK(ledger_verify(c.ledger, true, NULL, NULL, &c.arena, &report, &err) == ST_OK);
    CHECK(!report.damaged, "%s", report.what);
    CHECK(db_exec(ledger_db(c.ledger),
                  "DROP TRIGGER ledger_event_no_DELETE{postgres: ON ledger_event}", &err) == ST_OK,
          "%s", err.msg);
    CHECK(ledger_verify(c.ledger, true, NULL, NULL, &c.arena, &report, &err) == ST_OK);
    CHECK(report.damaged && strstr(report.what, "1 of the"), "%s", report.what);
    fixture_close(&c);
}
