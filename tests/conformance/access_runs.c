/* Listing runs: each filter with hits and misses, page by page, with a bound on the work; and the
 * ledger of version 2, which has none of the tables of access.h. */
#include "conformance/fixture.h"
#include "ledger/access/access.h"

/* The runs of all pages, in order, as text. */
static str list_all(struct fixture *c, struct run_filter f, size_t limit, int *pages) {
    struct error err = {0};
    struct buf b;
    char *mem = arena_alloc(&c->arena, 4096);
    buf_init_fixed(&b, mem, 4096);
    *pages = 0;
    do {
        struct run_info *runs = NULL;
        size_t count = 0;
        int64_t next = -1;
        CHECK(ledger_list_runs(c->ledger, &f, limit, &c->arena, &runs, &count, &next, &err) ==
                  ST_OK,
              "%s", err.msg);
        CHECK(count <= limit && next >= 0 && next < INT64_MAX);
        CHECK(next == 0 || f.before_run_no == 0 || next < f.before_run_no);
        CHECK(f.scan_max > 0 || count == limit ||
              next == 0); /* unbounded: only the last is short */
        for (size_t i = 0; i < count; i++)
            buf_printf(&b, "%.*s ", STR_ARG(runs[i].run_id));
        f.before_run_no = next;
        CHECK(++*pages < 1000);
    } while (f.before_run_no > 0);
    return buf_str(&b);
}

/* The same runs, whatever the size of a page and however little may be looked at for one. */
static void check_list(struct fixture *c, struct run_filter f, const char *want) {
    static const struct {
        size_t limit;
        int64_t scan_max;
    } ways[] = {{100, 0}, {1, 0}, {2, 0}, {100, 1}, {2, 3}, {1, 2}, {100, 20000}};
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        int pages = 0;
        f.scan_max = ways[i].scan_max;
        f.before_run_no = 0;
        str got = list_all(c, f, ways[i].limit, &pages);
        CHECK(text_is(got, want), "way %zu: %.*s, not %s", i, STR_ARG(got), want);
    }
}

static void put_run(struct fixture *c, const char *run, const char *tenant, const char *plan,
                    const uuid *correlation) {
    struct append_item item = fixture_item("RunStarted", run, NULL, 1);
    item.event.tenant_id = str_c(tenant);
    item.event.plan_id = str_c(plan);
    item.correlation = correlation;
    fixture_rekey(&item);
    c->now_us += 1000000;
    fixture_put(c, item);
}

static void put_event(struct fixture *c, const char *type, const char *run, const char *tenant,
                      const char *payload) {
    struct append_item item =
        payload ? fixture_item_with(type, run, NULL, 1, payload) : fixture_item(type, run, NULL, 1);
    item.event.tenant_id = str_c(tenant);
    fixture_rekey(&item);
    fixture_put(c, item);
}

static const uuid trace = {{0x10, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 15}};

/* Ten runs, r0 the oldest, opened a second apart. Odd ones are globex's. */
static void fill(struct fixture *c) {
    for (int i = 0; i < 10; i++)
        put_run(c, fixture_fmt("r%d", i), i % 2 ? "globex" : "acme", i < 5 ? "orders" : "Bills_x",
                i == 2 || i == 7 ? &trace : NULL);
    put_event(c, "RunCompleted", "r0", "acme", NULL);
    put_event(c, "RunFailed", "r1", "globex", NULL);
    put_event(c, "RunPaused", "r4", "acme", NULL);
    put_event(c, "RunStarted", "r6", "acme", "{\"again\":true}"); /* forbidden: INCONSISTENT */
    put_event(c, "RunProviderLinked", "r3", "globex",
              "{\"provider\":\"temporal\",\"workflowId\":\"w1\",\"providerRunId\":\"p1\"}");
    put_event(c, "RunProviderLinked", "r4", "acme",
              "{\"provider\":\"temporal\",\"workflowId\":\"w1\",\"providerRunId\":\"p1\"}");
    put_event(c, "RunProviderLinked", "r8", "acme",
              "{\"provider\":\"temporal\",\"workflowId\":\"w2\",\"providerRunId\":\"p2\"}");
    put_event(c, "RunProviderLinked", "r9", "globex",
              "{\"provider\":\"conductor\",\"workflowId\":\"w2\",\"providerRunId\":\"p2\"}");
}

static void open_filled(struct fixture *c, str url) {
    fixture_open_as(c, url, LEDGER_RECORD);
    fill(c);
}

TEST_DB(access_runs_by_their_ids) {
    struct fixture c;
    open_filled(&c, url);
    check_list(&c, (struct run_filter){0}, "r9 r8 r7 r6 r5 r4 r3 r2 r1 r0 ");
    check_list(&c, (struct run_filter){.tenant_id = STR("acme")}, "r8 r6 r4 r2 r0 ");
    check_list(&c, (struct run_filter){.tenant_id = STR("nobody")}, "");
    check_list(&c, (struct run_filter){.project_id = STR("shop"), .tenant_id = STR("globex")},
               "r9 r7 r5 r3 r1 ");
    check_list(&c, (struct run_filter){.project_id = STR("bank")}, "");
    check_list(&c, (struct run_filter){.environment_id = STR("prod")},
               "r9 r8 r7 r6 r5 r4 r3 r2 r1 r0 ");
    check_list(&c, (struct run_filter){.environment_id = STR("dev")}, "");
    check_list(&c, (struct run_filter){.plan_id = STR("orders")}, "r4 r3 r2 r1 r0 ");
    check_list(&c, (struct run_filter){.plan_id = STR("order")}, "");
    check_list(&c, (struct run_filter){.plan_id = STR("orders"), .plan_version = STR("7")},
               "r4 r3 r2 r1 r0 ");
    check_list(&c, (struct run_filter){.plan_version = STR("8")}, "");
    fixture_close(&c);
}

TEST_DB(access_runs_by_text) {
    struct fixture c;
    open_filled(&c, url);
    check_list(&c, (struct run_filter){.text = STR("R7")}, "r7 ");
    check_list(&c, (struct run_filter){.text = STR("bILLS")}, "r9 r8 r7 r6 r5 ");
    check_list(&c, (struct run_filter){.text = STR("RDER"), .tenant_id = STR("globex")}, "r3 r1 ");
    check_list(&c, (struct run_filter){.text = STR("s_X")}, "r9 r8 r7 r6 r5 ");
    check_list(&c, (struct run_filter){.text = STR("s_")}, "r9 r8 r7 r6 r5 ");
    check_list(&c, (struct run_filter){.text = STR("s%x")}, ""); /* no sign stands for others */
    check_list(&c, (struct run_filter){.text = STR("order_")}, "");
    check_list(&c, (struct run_filter){.text = STR("!")}, "");
    check_list(&c, (struct run_filter){.text = STR("nothing")}, "");
    fixture_close(&c);
}

TEST_DB(access_runs_by_state) {
    struct fixture c;
    open_filled(&c, url);
    check_list(&c, (struct run_filter){.statuses = 1U << RUN_COMPLETED}, "r0 ");
    check_list(&c, (struct run_filter){.statuses = 1U << RUN_FAILED | 1U << RUN_PAUSED}, "r4 r1 ");
    check_list(&c, (struct run_filter){.statuses = 1U << RUN_PAUSED}, "r4 ");
    check_list(&c, (struct run_filter){.statuses = 1U << RUN_CANCELLED}, "");
    check_list(&c, (struct run_filter){.statuses = 1U << RUN_PENDING}, "");
    check_list(&c, (struct run_filter){.statuses = 1U << RUN_RUNNING, .tenant_id = STR("acme")},
               "r8 r6 r2 ");
    check_list(&c, (struct run_filter){.only_inconsistent = true}, "r6 ");
    check_list(&c, (struct run_filter){.only_inconsistent = true, .tenant_id = STR("globex")}, "");
    put_event(&c, "RunQueued", "rq", "acme", NULL); /* known by an opaque event: shown as PENDING */
    put_event(&c, "SomethingNew", "rn", "acme", NULL);
    check_list(&c, (struct run_filter){.statuses = 1U << RUN_PENDING}, "rn rq ");
    fixture_close(&c);
}

TEST_DB(access_runs_by_trace_and_provider) {
    struct fixture c;
    uuid other = trace;
    other.b[15] ^= 1;
    open_filled(&c, url);
    check_list(&c, (struct run_filter){.correlation = &trace}, "r7 r2 ");
    check_list(&c, (struct run_filter){.correlation = &trace, .tenant_id = STR("acme")}, "r2 ");
    check_list(&c, (struct run_filter){.correlation = &other}, "");
    check_list(&c, (struct run_filter){.provider = STR("temporal")}, "r8 r4 r3 ");
    check_list(&c, (struct run_filter){.provider = STR("temporal"), .tenant_id = STR("acme")},
               "r8 r4 ");
    check_list(&c, (struct run_filter){.provider = STR("argo")}, "");
    check_list(&c, (struct run_filter){.workflow_id = STR("w2")}, "r9 r8 ");
    check_list(&c, (struct run_filter){.provider = STR("temporal"), .workflow_id = STR("w1")},
               "r4 r3 ");
    check_list(&c,
               (struct run_filter){.provider = STR("temporal"),
                                   .workflow_id = STR("w1"),
                                   .tenant_id = STR("globex")},
               "r3 ");
    check_list(&c, (struct run_filter){.provider = STR("conductor"), .workflow_id = STR("w1")}, "");
    check_list(&c, (struct run_filter){.provider = STR("temporal"), .statuses = 1U << RUN_PAUSED},
               "r4 ");
    fixture_close(&c);
}

TEST_DB(access_runs_by_time) {
    struct fixture c;
    open_filled(&c, url);
    int64_t r5 = fixture_run(&c, "r5").opened_us;
    check_list(&c, (struct run_filter){.since_us = r5}, "r9 r8 r7 r6 r5 ");
    check_list(&c, (struct run_filter){.since_us = r5 + 1}, "r9 r8 r7 r6 ");
    check_list(&c, (struct run_filter){.until_us = r5}, "r4 r3 r2 r1 r0 ");
    check_list(&c, (struct run_filter){.until_us = r5 + 1}, "r5 r4 r3 r2 r1 r0 ");
    check_list(&c, (struct run_filter){.since_us = r5 - 2000000, .until_us = r5 + 1}, "r5 r4 r3 ");
    check_list(&c, (struct run_filter){.since_us = r5 + 60000000}, "");
    check_list(&c, (struct run_filter){.until_us = 1}, "");
    check_list(&c, (struct run_filter){.tenant_id = STR("globex"), .since_us = r5}, "r9 r7 r5 ");
    check_list(&c, (struct run_filter){.tenant_id = STR("globex"), .since_us = r5 + 1}, "r9 r7 ");
    check_list(&c, (struct run_filter){.tenant_id = STR("globex"), .until_us = r5}, "r3 r1 ");
    check_list(&c, (struct run_filter){.tenant_id = STR("acme"), .until_us = r5 + 1}, "r4 r2 r0 ");
    check_list(&c, (struct run_filter){.tenant_id = STR("acme"), .since_us = r5 + 60000000}, "");
    fixture_close(&c);
}

/* The bound holds: a page looks at no more runs, whatever it finds, and says where to go on. */
TEST_DB(access_runs_look_no_further_than_asked) {
    struct fixture c;
    struct error err = {0};
    struct run_info *runs = NULL;
    size_t count = 9;
    int64_t next = 0;
    open_filled(&c, url);
    struct run_filter f = {.plan_id = STR("orders"), .scan_max = 4};
    CHECK(ledger_list_runs(c.ledger, &f, 10, &c.arena, &runs, &count, &next, &err) == ST_OK);
    CHECK(count == 0 && next == fixture_run(&c, "r6").run_no); /* r9 to r6 */
    f.before_run_no = next;
    CHECK(ledger_list_runs(c.ledger, &f, 10, &c.arena, &runs, &count, &next, &err) == ST_OK);
    CHECK(count == 3 && next == fixture_run(&c, "r2").run_no && text_is(runs[0].run_id, "r4"));
    f = (struct run_filter){.statuses = 1U << RUN_PAUSED, .scan_max = 2}; /* r9, r8 are open */
    CHECK(ledger_list_runs(c.ledger, &f, 10, &c.arena, &runs, &count, &next, &err) == ST_OK);
    CHECK(count == 0 && next == fixture_run(&c, "r8").run_no);
    f = (struct run_filter){.text = STR("r9")};
    CHECK(ledger_list_runs(c.ledger, &f, 1, &c.arena, &runs, &count, &next, &err) == ST_OK);
    CHECK(count == 1 && next == 0); /* the last hit is known to be the last */
    CHECK(runs[0].head.status == RUN_RUNNING && text_is(runs[0].tenant_id, "globex"));
    fixture_close(&c);
}

TEST_DB(access_alerts_by_tenant) {
    struct fixture c;
    struct error err = {0};
    struct alert *alerts = NULL;
    size_t count = 0;
    open_filled(&c, url);
    CHECK(ledger_list_alerts(c.ledger, &(struct alert_query){.tenant_id = STR("acme"), .limit = 10},
                             &c.arena, &alerts, &count, &err) == ST_OK);
    CHECK(count == 1 && text_is(alerts[0].run_id, "r6"));
    CHECK(ledger_list_alerts(c.ledger,
                             &(struct alert_query){.tenant_id = STR("globex"), .limit = 10},
                             &c.arena, &alerts, &count, &err) == ST_OK);
    CHECK(count == 0);
    CHECK(ledger_list_alerts(
              c.ledger,
              &(struct alert_query){.tenant_id = STR("globex"), .run_id = STR("r6"), .limit = 10},
              &c.arena, &alerts, &count, &err) == ST_OK);
    CHECK(count == 0);
    fixture_close(&c);
}

/* A ledger of version 2 gets what it lacks when it is opened for writing, and keeps what it has. */
TEST_DB(access_ledger_of_version_2_is_migrated) {
    static const char *const lacking[] = {
        "DROP VIEW outbox_events",
        "DROP VIEW effects",
        "DROP TABLE state_effect",
        "DROP VIEW audit",
        "DROP TABLE ledger_audit",
        "DROP TABLE ledger_plan",
        "DROP TABLE api_receipt",
        "DROP TABLE api_key",
        "DROP INDEX state_provider_run",
        "DROP TABLE ledger_archive{postgres: CASCADE}",
        "UPDATE ledger_meta SET value = '2' WHERE name = 'schema_version'"};
    struct fixture c;
    struct error err = {0};
    struct ledger *reader = NULL;
    open_filled(&c, url);
    str before = fixture_truth_dump(&c);
    for (size_t i = 0; i < COUNT_OF(lacking); i++)
        fixture_must_sql(&c, lacking[i]);
    CHECK(ledger_open_reader(url, &reader, &err) == ST_INVALID &&
          err.reason == REASON_SCHEMA_VERSION);
    fixture_reopen(&c);
    CHECK(str_eq(before, fixture_truth_dump(&c)));
    struct audit_entry a = {
        .tenant_id = STR("acme"), .action = STR("run.start"), .outcome = STR("done")};
    struct append_rider rider = {.audit = &a};
    CHECK(access_ride(c.ledger, &rider, &err) == ST_OK, "%s", err.msg);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM audit") == 1);
    CHECK(fixture_sql(&c, "DELETE FROM ledger_audit") == ST_INVALID);
    check_list(&c, (struct run_filter){.provider = STR("temporal")}, "r8 r4 r3 ");
    fixture_clean(&c);
    fixture_close(&c);
}
