/* CANON 3.1: the four indexes. The ledger's rows are keyed by numbers, so each of CANON's indexes
 * is one of the ledger's own, over the same things in the same order; docs/sql.md has the table.
 * What is asserted: that index is there, with its columns, and the query it is for uses it and
 * never walks through all events. */
#include "conformance/fixture.h"

/* Some runs, and a planner that would rather use an index, however small the tables are. */
static void open_filled(struct fixture *c, str url) {
    fixture_open(c, url);
    for (int i = 0; i < 20; i++)
        fixture_finished_run(c, fixture_fmt("r%d", i), 3);
    for (int i = 0; i < 8; i++)
        fixture_put(c, fixture_item("RunNoted", "r0", NULL, i + 1));
    fixture_put(c, fixture_item("RunStarted", "bad", NULL, 1));
    fixture_put(c, fixture_item("RunFailed", "bad", NULL, 1));
    if (db_is_postgres(ledger_db(c->ledger))) {
        fixture_must_sql(c, "ANALYZE; SET enable_seqscan = off; SET enable_bitmapscan = off");
    }
}

static bool has(str text, const char *part) {
    return memmem(text.ptr, text.len, part, strlen(part)) != NULL;
}

/* The plan reads ledger_event as alias `e`, and only through `index`. */
static void check_served(struct fixture *c, const char *sql, const char *sqlite,
                         const char *postgres) {
    str plan = fixture_plan(c, sql);
    if (db_is_postgres(ledger_db(c->ledger))) {
        CHECK(has(plan, fixture_fmt("using %s on ledger_event e ", postgres)), "%s\n%.*s", sql,
              STR_ARG(plan));
        CHECK(!has(plan, "Seq Scan on ledger_event"), "%s\n%.*s", sql, STR_ARG(plan));
        return;
    }
    CHECK(has(plan, fixture_fmt("SEARCH e USING %s", sqlite)), "%s\n%.*s", sql, STR_ARG(plan));
    CHECK(!has(plan, "SCAN e"), "%s\n%.*s", sql, STR_ARG(plan));
}

static void check_index(struct fixture *c, const char *name, const char *columns) {
    str made =
        db_is_postgres(ledger_db(c->ledger))
            ? fixture_text(
                  c, fixture_fmt("SELECT indexdef FROM pg_indexes WHERE indexname = '%s'", name))
            : fixture_text(
                  c,
                  fixture_fmt("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = '%s'",
                              name));
    CHECK(made.ptr && has(made, columns), "%s: %.*s", name, STR_ARG(made));
}

/* CE-3.1-12: by aggregate. A step, signal or effect belongs to one run, so the run leads to it:
 * ledger_event_run_key. */
TEST_DB(canon_index_aggregate) {
    struct fixture c;
    open_filled(&c, url);
    check_index(&c, "ledger_event_run_key", "(run_no, substr(key, 1, 8))");
    str step = fixture_text(&c, "SELECT id FROM steps WHERE run_id = 'r5' AND step_id = 's1'");
    const char *sql = fixture_fmt(
        "SELECT event_type, event_data FROM orchestration_events WHERE run_id = 'r5' AND"
        " aggregate_type = 'STEP' AND aggregate_id = '%.*s' ORDER BY sequence_number",
        STR_ARG(step));
    check_served(&c, sql, "INDEX ledger_event_run_key (run_no=?)", "ledger_event_run_key");
    CHECK(text_is(fixture_lines(&c, sql), "STEP_STARTED\nSTEP_COMPLETED\n"));
    fixture_close(&c);
}

/* CE-3.1-13: by trace: ledger_run_correlation names the runs, ledger_event_run_key their events. */
TEST_DB(canon_index_correlation) {
    struct fixture c;
    open_filled(&c, url);
    check_index(&c, "ledger_run_correlation", "(correlation_id)");
    const char *sql = fixture_fmt(
        "SELECT event_type, aggregate_type, aggregate_id, event_data, occurred_at"
        " FROM orchestration_events WHERE tenant_id = '%.*s' AND correlation_id = '%.*s'"
        " ORDER BY sequence_number ASC",
        STR_ARG(fixture_uuid_text(event_tenant_uuid(STR("acme")))),
        STR_ARG(fixture_uuid_text(fixture_run(&c, "bad").correlation_id)));
    check_served(&c, sql, "INDEX ledger_event_run_key (run_no=?)", "ledger_event_run_key");
    str plan = fixture_plan(&c, sql);
    CHECK(has(plan, "ledger_run_correlation"), "%.*s", STR_ARG(plan));
    CHECK(text_is(fixture_lines(&c, sql), "RUN_STARTED\nRUN_FAILED\n"));
    fixture_close(&c);
}

/* CE-3.1-14: the latest of a type: ledger_event_type, read backwards. It holds the types worth
 * looking for (failures, cancellations, extensions, facts); the query says so, or SQLite would not
 * know that the index has them all. */
TEST_DB(canon_index_type) {
    struct fixture c;
    open_filled(&c, url);
    check_index(&c, "ledger_event_type", "(type_no, pos)");
    static const char sql[] =
        "SELECT event_type, event_data, occurred_at FROM orchestration_events"
        " WHERE type_no = 10 AND type_no >= 10 ORDER BY position DESC LIMIT 5";
    check_served(&c, sql, "INDEX ledger_event_type (type_no=?)", "ledger_event_type");
    str plan = fixture_plan(&c, sql);
    if (db_is_postgres(ledger_db(c.ledger)))
        CHECK(has(plan, "Index Scan Backward using ledger_event_type"));
    else
        CHECK(!has(plan, "TEMP B-TREE"), "%.*s",
              STR_ARG(plan)); /* the order comes from the index */
    CHECK(text_is(fixture_lines(&c, sql), "RUN_FAILED\n"));

    /* The latest of a type in one tenant, newest first: pos begins with the tenant, so that the
     * index is over (tenant, type) and its last column is read in descending order. */
    static const char *const types[] = {"RunStarted", "RunFailed"};
    for (int i = 0; i < 6; i++) {
        struct append_item item = fixture_item(types[i % 2], fixture_fmt("g%d", i / 2), NULL, 1);
        item.event.tenant_id = STR("globex");
        fixture_put(&c, item);
    }
    const char *latest =
        "SELECT run_id FROM orchestration_events WHERE type_no = 10 AND type_no >= 10 AND"
        " position > (SELECT base_position FROM tenants WHERE tenant_id = 'globex') AND"
        " position <= (SELECT last_position FROM tenants WHERE tenant_id = 'globex')"
        " ORDER BY position DESC LIMIT 2";
    check_served(&c, latest, "INDEX ledger_event_type (type_no=? AND", "ledger_event_type");
    plan = fixture_plan(&c, latest);
    if (db_is_postgres(ledger_db(c.ledger)))
        CHECK(has(plan, "Index Scan Backward using ledger_event_type"), "%.*s", STR_ARG(plan));
    else CHECK(!has(plan, "TEMP B-TREE"), "%.*s", STR_ARG(plan));
    CHECK(text_is(fixture_lines(&c, latest), "g2\ng1\n"));
    CHECK(text_is(fixture_lines(&c, "SELECT CASE WHEN MIN(occurred_at) <= MAX(occurred_at) THEN"
                                    " 'in order' END FROM orchestration_events WHERE type_no = 10"),
                  "in order\n"));
    fixture_close(&c);
}

/* CE-3.1-15: a tenant's feed: the primary key, which is (tenant, sequence_number) in one number. */
TEST_DB(canon_index_sequence) {
    struct fixture c;
    open_filled(&c, url);
    static const char sql[] =
        "SELECT event_type, sequence_number FROM orchestration_events WHERE"
        " position > (SELECT base_position + 166 FROM tenants WHERE tenant_id = 'acme') AND"
        " position <= (SELECT last_position FROM tenants WHERE tenant_id = 'acme')"
        " ORDER BY position LIMIT 10";
    check_served(&c, sql, "INTEGER PRIMARY KEY (rowid>? AND rowid<?)", "ledger_event_pkey");
    str plan = fixture_plan(&c, sql);
    if (db_is_postgres(ledger_db(c.ledger)))
        CHECK(has(plan, "Index Cond: ((pos > "), "%.*s", STR_ARG(plan));
    CHECK(text_is(fixture_lines(&c, sql), "RUN_NOTED\nRUN_NOTED\nRUN_STARTED\nRUN_FAILED\n"));
    fixture_close(&c);
}
