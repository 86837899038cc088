/* CANON 2.1, 10.2 and 11: events are immutable; a correction is a new event. */
#include "conformance/fixture.h"

/* One of everything. */
static void fill(struct fixture *c) {
    struct append_result res;
    struct error err = {0};
    fixture_finished_run(c, "r1", 2);
    CHECK(ledger_checkpoint(c->ledger, STR("r1"), &res, &c->arena, &err) == ST_OK, "%s", err.msg);
    fixture_put(c, fixture_item("RunNoted", "r1", NULL, 1)); /* a type of its own */
}

/* CE-2.1-6, CE-10.2-1: no table of the truth lets a row be changed or deleted, whoever asks. */
TEST_DB(canon_the_truth_refuses_update_and_delete) {
    static const char *const statements[] = {
        "UPDATE ledger_event SET payload = 'x'",
        "UPDATE ledger_event SET pos = pos + 1000",
        "DELETE FROM ledger_event",
        "UPDATE ledger_run SET run_id = 'x'",
        "DELETE FROM ledger_run",
        "UPDATE ledger_context SET plan_id = 'x'",
        "DELETE FROM ledger_context",
        "UPDATE ledger_type SET name = 'x' WHERE type_no = 1000",
        "DELETE FROM ledger_type",
        "UPDATE ledger_checkpoint SET data = 'x'",
        "DELETE FROM ledger_checkpoint",
        "UPDATE ledger_tenant SET tenant_id = 'x'",
        "UPDATE ledger_tenant SET tenant_uuid = 'x'",
        "UPDATE ledger_tenant SET tenant_no = 9",
        "DELETE FROM ledger_tenant",
        "UPDATE orchestration_events SET actor = 'x'",
        "DELETE FROM orchestration_events",
        "UPDATE run_events SET payload = NULL",
        "DELETE FROM run_events"};
    static const char *const truncates[] = {"TRUNCATE ledger_event",      "TRUNCATE ledger_run",
                                            "TRUNCATE ledger_context",    "TRUNCATE ledger_type",
                                            "TRUNCATE ledger_checkpoint", "TRUNCATE ledger_tenant"};
    struct fixture c;
    fixture_open(&c, url);
    fill(&c);
    str before = fixture_truth_dump(&c);
    for (size_t i = 0; i < COUNT_OF(statements); i++)
        CHECK(fixture_sql(&c, statements[i]) != ST_OK, "%s", statements[i]);
    for (size_t i = 0; i < COUNT_OF(truncates) && db_is_postgres(ledger_db(c.ledger)); i++) {
        CHECK(fixture_sql(&c, truncates[i]) == ST_INVALID, "%s", truncates[i]);
    }
    CHECK(str_eq(before, fixture_truth_dump(&c)));
    fixture_clean(&c);
    fixture_close(&c);
}

/* CE-2.1-6: a row cannot be replaced under its key either. */
TEST_DB(canon_the_truth_refuses_replacement) {
    static const char *const statements[] = {
        "{sqlite:INSERT OR REPLACE INTO ledger_event SELECT * FROM ledger_event}"
        "{postgres:INSERT INTO ledger_event SELECT * FROM ledger_event ON CONFLICT (pos) DO UPDATE "
        "SET payload = 'x'}",
        "{sqlite:REPLACE INTO ledger_run SELECT * FROM ledger_run}"
        "{postgres:INSERT INTO ledger_run SELECT * FROM ledger_run ON CONFLICT (run_no) DO UPDATE "
        "SET run_id = 'x'}",
        "{sqlite:INSERT INTO ledger_tenant SELECT * FROM ledger_tenant WHERE 1 ON CONFLICT "
        "(tenant_no) DO UPDATE SET tenant_id = 'x'}"
        "{postgres:INSERT INTO ledger_tenant SELECT * FROM ledger_tenant ON CONFLICT (tenant_no) "
        "DO UPDATE SET tenant_id = 'x'}"};
    struct fixture c;
    fixture_open(&c, url);
    fill(&c);
    str before = fixture_truth_dump(&c);
    for (size_t i = 0; i < COUNT_OF(statements); i++) {
        CHECK(fixture_sql(&c, statements[i]) == ST_INVALID, "%s", statements[i]);
        CHECK(str_eq(before, fixture_truth_dump(&c)), "%s", statements[i]);
    }
    fixture_close(&c);
}

/* CE-2.1-6: the same through every call of the ledger: appending the event again, with other data,
 * does not change it. */
TEST_DB(canon_an_append_never_changes_an_event) {
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, url);
    struct append_item first = fixture_item_with("RunStarted", "r1", NULL, 1, "{\"a\":1}");
    fixture_put(&c, first);
    str before = fixture_text(&c, "SELECT payload FROM run_events");
    str id = fixture_text(&c, "SELECT \"eventId\" FROM run_events");
    struct append_result res =
        fixture_try(&c, fixture_item_with("RunStarted", "r1", NULL, 1, "{\"a\":2}"));
    CHECK(res.code == ST_OK && res.duplicate && uuid_eq(res.event_id, first.event.event_id));
    CHECK(ledger_rebuild(c.ledger, NULL, NULL, NULL, &err) == ST_OK, "%s", err.msg);
    fixture_reopen(&c);
    CHECK(str_eq(before, fixture_text(&c, "SELECT payload FROM run_events")));
    CHECK(str_eq(id, fixture_text(&c, "SELECT \"eventId\" FROM run_events")));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events") == 1);
    fixture_close(&c);
}

/* CE-2.1-6: a byte that was changed nevertheless is found. */
TEST_DB(canon_a_changed_byte_is_found) {
    struct fixture c;
    fixture_open(&c, url);
    fill(&c);
    fixture_clean(&c);
    fixture_drop_triggers(&c);
    fixture_must_sql(
        &c,
        "UPDATE ledger_event SET actor = 'x' WHERE pos = (SELECT MIN(pos) + 2 FROM ledger_event)");
    struct verify_report report = fixture_verify(&c, false);
    CHECK(report.damaged && report.seq == 3 && text_is(report.tenant_id, "acme"), "%s",
          report.what);
    fixture_close(&c);
}

/* CE-10.2-2: a step's output is corrected by a new event that points to the original, which stays;
 * the view shows the correction. */
TEST_DB(canon_a_correction_is_a_new_event) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "s", 1));
    struct append_item original =
        fixture_item_with("StepCompleted", "r1", "s", 1, "{\"output\":{\"rows\":5}}");
    fixture_put(&c, original);
    static const char original_row[] =
        "SELECT id||event_type||CAST(event_data AS TEXT)||occurred_at FROM orchestration_events"
        " WHERE event_type = 'STEP_COMPLETED'";
    str before = fixture_text(&c, original_row);
    str when = fixture_text(&c, "SELECT completed_at FROM steps");
    c.now_us += 60000000;
    for (int64_t n = 1; n <= 2; n++) { /* corrected twice */
        struct append_item fix = fixture_item_with(
            "StepCorrected", "r1", "s", n, fixture_fmt("{\"output\":{\"rows\":%d}}", 5 + (int)n));
        fix.cause = &original.event.event_id;
        fixture_put(&c, fix);
        CHECK(str_eq(fixture_text(&c, "SELECT output_result FROM steps"),
                     str_c(fixture_fmt("{\"rows\":%d}", 5 + (int)n))));
    }
    CHECK(str_eq(before, fixture_text(&c, original_row)));
    CHECK(
        fixture_int(
            &c,
            fixture_fmt(
                "SELECT COUNT(*) FROM orchestration_events WHERE event_type = 'STEP_CORRECTED' AND"
                " causation_id = '%.*s'",
                STR_ARG(fixture_uuid_text(original.event.event_id)))) == 2);
    CHECK(text_is(fixture_text(&c, "SELECT status FROM steps"), "COMPLETED")); /* data only */
    CHECK(str_eq(when, fixture_text(&c, "SELECT completed_at FROM steps")));
    fixture_clean(&c);
    fixture_close(&c);
}

/* CE-11-2: the hashes of old events stay what they were while more and more is appended. */
TEST_DB(canon_old_events_keep_their_hashes) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_random_workload(&c, "r", 10, fixture_scaled(200, 50), 3);
    int64_t end = fixture_int(&c, "SELECT MAX(pos) FROM ledger_event");
    const char *sql = fixture_fmt(
        "SELECT {sqlite:hex(hash)}{postgres:encode(hash,'hex')} FROM ledger_event WHERE pos <= %lld"
        " ORDER BY pos",
        (long long)end);
    str before = fixture_lines(&c, sql);
    CHECK(before.len > 650);
    for (int i = 0; i < 3; i++) {
        fixture_random_workload(&c, "r", 10, fixture_scaled(200, 50), 30 + (uint64_t)i);
        fixture_reopen(&c);
        CHECK(str_eq(before, fixture_lines(&c, sql)), "round %d", i);
        CHECK(!fixture_verify(&c, false).damaged);
    }
    fixture_close(&c);
}
