/* Every n-th call of the database and every n-th allocation fails: no crash, no false
 * acknowledgement, nothing twice, and the handle works on. */
#include "conformance/fixture.h"
#include "ledger/access/access.h"

enum { ITEMS = 9 };

/* A bit of everything: a new tenant, run, type and plan; a reference; facts; a refusal; a
 * duplicate. */
static void make_items(int64_t n, const char *kind, struct append_item items[ITEMS]) {
    const char *run = fixture_fmt("%s-%lld", kind, (long long)n);
    items[0] = fixture_item("RunStarted", run, NULL, 1);
    items[1] = fixture_item("StepStarted", run, "s", 1);
    items[2] = fixture_item(fixture_fmt("Seen%s%lld", kind, (long long)n), run, NULL, 1);
    items[3] = fixture_item_with("StepCompleted", run, "s", 1, "{\"output\":{}}");
    items[4] = fixture_item_with(
        "RunProviderLinked", run, NULL, 1,
        fixture_fmt("{\"provider\":\"t\",\"workflowId\":\"%s\",\"providerRunId\":\"p\"}", run));
    items[5] = fixture_fact(EVENT_TOOL_CALLED, run, STR("s"), 1, "{}");
    items[6] = fixture_item("RunStarted", run, NULL, 2); /* refused: it runs already */
    items[7] = items[0];                                 /* a duplicate */
    items[8] = fixture_item("RunCompleted", run, NULL, 1);
    for (int i = 0; i < ITEMS; i++) {
        items[i].event.tenant_id = str_c(fixture_fmt("tenant-%s", run));
        items[i].event.plan_version = str_c(fixture_fmt("%lld", (long long)n));
        event_key_derive(&items[i].event, items[i].event.key);
    }
}

static status append_items(struct fixture *c, struct append_item items[ITEMS],
                           struct append_result results[ITEMS], struct error *err) {
    struct receipt receipt = {
        .scope = STR("alice"), .key = items[0].event.run_id, .http_status = 201, .body = STR("{}")};
    struct audit_entry audit = {.tenant_id = items[0].event.tenant_id,
                                .action = STR("run.start"),
                                .outcome = STR("done"),
                                .reason = STR("bytes \xff that are no text"),
                                .run_id = items[0].event.run_id};
    struct append_rider rider = {.receipt = &receipt, .audit = &audit};
    struct append_request req = {
        .items = items, .count = ITEMS, .results = results, .arena = &c->arena, .riders = &rider};
    struct append_request *reqs[] = {&req};
    return ledger_append(c->ledger, reqs, 1, err);
}

enum { REFUSED = 6, DUPLICATE = 7 }; /* of the items */

/* The results of a batch that was committed, by this try or (then all are duplicates) by an earlier
 * one whose answer was lost. */
static void check_results(const struct append_result results[ITEMS], bool may_be_there) {
    static const int64_t seqs[ITEMS] = {1, 2, 3, 4, 5, 6, 0, 1, 7};
    bool there = results[0].duplicate;
    CHECK(may_be_there || !there);
    for (int i = 0; i < ITEMS; i++) {
        const struct append_result *r = &results[i];
        CHECK(r->code == (i == REFUSED ? ST_CONFLICT : ST_OK), "item %d: %s", i,
              r->err ? r->err->msg : "");
        CHECK(r->seq == seqs[i], "item %d: %lld", i, (long long)r->seq);
        CHECK(i == REFUSED || r->duplicate == (there || i == DUPLICATE), "item %d", i);
    }
    CHECK(results[REFUSED].err->reason == REASON_INVALID_TRANSITION);
}

static int64_t stored_events(struct fixture *reader, const struct append_item *item) {
    return fixture_int(
        reader, fixture_fmt("SELECT COUNT(*) FROM orchestration_events WHERE run_id = '%.*s'",
                            STR_ARG(item->event.run_id)));
}

/* Riders are there as often as their events were acknowledged or found again: never without them.
 */
static void check_riders(struct fixture *reader, const struct append_item *item, int64_t want) {
    str run = item->event.run_id;
    int64_t receipts =
        fixture_int(reader, fixture_fmt("SELECT COUNT(*) FROM api_receipt WHERE key ="
                                        " {sqlite:CAST('%.*s' AS BLOB)}{postgres:'%.*s'::bytea}",
                                        STR_ARG(run), STR_ARG(run)));
    int64_t audits = fixture_int(
        reader, fixture_fmt("SELECT COUNT(*) FROM audit WHERE run_id = '%.*s'", STR_ARG(run)));
    CHECK(receipts == want && audits == want, "%lld receipts, %lld audit records, not %lld",
          (long long)receipts, (long long)audits, (long long)want);
}

/* One round: a failing try, then the same again. false when nothing failed. */
static bool append_with_fault(struct fixture *c, struct fixture *reader, int64_t n, bool after) {
    struct append_item items[ITEMS];
    struct append_result results[ITEMS];
    struct error err = {0};
    make_items(n, after ? "After" : "Before", items);
    fixture_fail_at(c, n, after);
    status st = append_items(c, items, results, &err);
    bool failed = st != ST_OK;
    CHECK(!failed || st == ST_RETRY, "call %lld: %s", (long long)n, err.msg);
    int64_t stored = stored_events(reader, &items[0]);
    CHECK(failed ? stored == 0 || (after && stored == 7) : stored == 7, "call %lld: %lld events",
          (long long)n, (long long)stored);
    check_riders(reader, &items[0], stored == 7);
    if (failed) {
        CHECK(append_items(c, items, results, &err) == ST_OK, "call %lld: %s", (long long)n,
              err.msg);
        CHECK(results[0].duplicate ==
              (stored == 7)); /* what had landed comes back as a duplicate, and nothing else does */
        check_riders(reader, &items[0], stored == 7 ? 2 : 1);
    }
    check_results(results, failed);
    CHECK(stored_events(reader, &items[0]) == 7, "call %lld", (long long)n);
    return failed;
}

static void open_both(struct fixture *c, struct fixture *reader, str url) {
    fixture_open_faulty(c, url, LEDGER_REJECT);
    fixture_open_reader(reader, url);
}

TEST_DB(care_append_survives_every_failing_call) {
    struct fixture c;
    struct fixture reader;
    open_both(&c, &reader, url);
    for (int after = 0; after < 2; after++) {
        int64_t n = 0;
        while (append_with_fault(&c, &reader, n, after))
            n++;
        CHECK(n > 8, "only %lld calls", (long long)n);
    }
    fixture_clean(&reader);
    fixture_close(&c);
    fixture_close(&reader);
}

/* false when there were fewer than n + 1 allocations. */
static bool append_without_memory(struct fixture *c, struct fixture *reader, int64_t n) {
    struct append_item items[ITEMS];
    struct append_result results[ITEMS];
    struct error err = {0};
    make_items(n, "Memory", items);
    arena_reset(&c->arena);
    mem_fail_at(n);
    status st = append_items(c, items, results, &err);
    bool failed = mem_calls() > n;
    mem_fail_at(-1);
    CHECK(st == ST_OK || st == ST_RETRY, "allocation %lld: %s", (long long)n, err.msg);
    int64_t stored = stored_events(reader, &items[0]);
    CHECK(stored == (st == ST_OK ? 7 : 0), "allocation %lld: %lld events", (long long)n,
          (long long)stored);
    check_riders(reader, &items[0], st == ST_OK);
    bool again = st != ST_OK;
    if (again)
        CHECK(append_items(c, items, results, &err) == ST_OK, "allocation %lld: %s", (long long)n,
              err.msg);
    check_results(results, false);
    CHECK(stored_events(reader, &items[0]) == 7, "allocation %lld", (long long)n);
    if (n % 2) fixture_reopen(c); /* cold caches need more */
    return failed;
}

TEST_DB(care_append_survives_every_failing_allocation) {
    struct fixture c;
    struct fixture reader;
    fixture_open(&c, url);
    fixture_open_reader(&reader, url);
    int64_t n = 0;
    int64_t passed = 0;
    for (; passed < 2; n++)
        passed = append_without_memory(&c, &reader, n) ? 0 : passed + 1; /* once warm, once cold */
    CHECK(n > 10, "only %lld allocations", (long long)n);
    fixture_clean(&reader);
    fixture_close(&c);
    fixture_close(&reader);
}

/* ---- opening and asking without memory, or on a failing database ---- */

TEST_DB(care_open_survives_every_failing_allocation) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_close(&c);
    for (int64_t n = 0, failed = 1; failed; n++) {
        struct ledger *l = NULL;
        struct error err = {0};
        mem_fail_at(n);
        status st = ledger_open(url, NULL, &l, &err);
        failed = mem_calls() > n;
        mem_fail_at(-1);
        CHECK(failed ? st != ST_OK : st == ST_OK, "allocation %lld: %s", (long long)n, err.msg);
        if (st == ST_OK) ledger_close(l);
    }
    for (int64_t n = 0, failed = 1; failed; n++) {
        struct ledger *l = NULL;
        struct error err = {0};
        mem_fail_at(n);
        status st = ledger_open_reader(url, &l, &err);
        failed = mem_calls() > n;
        mem_fail_at(-1);
        CHECK(failed ? st != ST_OK : st == ST_OK, "allocation %lld: %s", (long long)n, err.msg);
        if (st == ST_OK) ledger_close(l);
    }
}

typedef status (*question)(struct fixture *c, struct error *err);

static status ask_run(struct fixture *c, struct error *err) {
    struct run_info info;
    return ledger_find_run(c->ledger, STR("r1"), &c->arena, &info, err);
}
static status ask_provider(struct fixture *c, struct error *err) {
    struct run_info info;
    return ledger_find_provider(c->ledger, STR("acme"), STR("t"), STR("w"), STR("p"), &c->arena,
                                &info, err);
}
static status ask_runs(struct fixture *c, struct error *err) {
    struct run_info *runs;
    size_t count;
    return ledger_list_runs(c->ledger, &(struct run_filter){0}, 10, &c->arena, &runs, &count, NULL,
                            err);
}
static status ask_events(struct fixture *c, struct error *err) {
    struct event_page page;
    return ledger_read_run(c->ledger, STR("r1"), 0, 10, &c->arena, &page, err);
}
static status ask_tenant(struct fixture *c, struct error *err) {
    struct event_page page;
    return ledger_read_tenant(c->ledger, STR("acme"), 0, 10, &c->arena, &page, err);
}
static status ask_trace(struct fixture *c, struct error *err) {
    struct event_page page;
    return ledger_read_correlation(c->ledger, STR("acme"), uuid_v4(), 0, 10, &c->arena, &page, err);
}
static status ask_seq(struct fixture *c, struct error *err) {
    int64_t seq;
    return ledger_seq_at(c->ledger, STR("acme"), FIXTURE_NOW_US, &seq, err);
}
static uuid known_event;
static status ask_event(struct fixture *c, struct error *err) {
    struct event_record rec;
    return ledger_find_event(c->ledger, known_event, &c->arena, &rec, err);
}
static status ask_causes(struct fixture *c, struct error *err) {
    struct event_page page;
    bool more;
    return ledger_causes(c->ledger, known_event, 10, &c->arena, &page, &more, err);
}
static status ask_replay(struct fixture *c, struct error *err) {
    struct run run;
    return ledger_replay(c->ledger, STR("r1"), 0, true, &c->arena, &run, NULL, err);
}
static status ask_alerts(struct fixture *c, struct error *err) {
    struct alert *alerts;
    size_t count;
    return ledger_list_alerts(c->ledger, &(struct alert_query){.limit = 10}, &c->arena, &alerts,
                              &count, err);
}
static status ask_receipt(struct fixture *c, struct error *err) {
    struct receipt receipt;
    status st = receipt_find(c->ledger, STR("alice"), STR("k"), &c->arena, &receipt, err);
    return st == ST_NOT_FOUND ? ST_OK : st;
}
static status ask_audit(struct fixture *c, struct error *err) {
    struct audit_entry *list;
    size_t count;
    return audit_list(c->ledger, STR("acme"), 0, 10, &c->arena, &list, &count, err);
}
static status ask_keys(struct fixture *c, struct error *err) {
    struct api_key *list;
    size_t count;
    return api_key_list(c->ledger, STR_NONE, STR_NONE, 10, &c->arena, &list, &count, err);
}
static status ask_use(struct fixture *c, struct error *err) {
    struct key_use use = {.us = 1};
    memset(use.key_id, 'a', sizeof(use.key_id));
    return api_keys_used(c->ledger, &use, 1, err);
}
static status ask_plan(struct fixture *c, struct error *err) {
    static const uint8_t hash[SHA256_LEN] = {1};
    struct audit_entry audit = {.action = STR("plan.put"), .outcome = STR("done")};
    struct append_rider rider = {.audit = &audit};
    bool existed;
    str bytes;
    status st = access_plan_put(c->ledger, STR("acme"), hash, STR("{}"), &rider, &existed, err);
    return st == ST_OK ? access_plan_get(c->ledger, STR("acme"), hash, &c->arena, &bytes, err) : st;
}
static status ask_sweep(struct fixture *c, struct error *err) {
    bool more;
    return receipt_sweep(c->ledger, 10, &more, err);
}
static status ask_stats(struct fixture *c, struct error *err) {
    struct ledger_stats stats;
    return ledger_stats(c->ledger, &stats, err);
}
static status ask_checkpoint(struct fixture *c, struct error *err) {
    struct append_result res;
    return ledger_checkpoint(c->ledger, STR("r1"), &res, &c->arena, err);
}
static status ask_verify(struct fixture *c, struct error *err) {
    struct verify_report report;
    status st = ledger_verify(c->ledger, true, NULL, NULL, &c->arena, &report, err);
    CHECK(st != ST_OK || !report.damaged, "%s", report.what); /* a failure to read is no finding */
    return st;
}
static status ask_rebuild(struct fixture *c, struct error *err) {
    return ledger_rebuild(c->ledger, NULL, NULL, NULL, err);
}

static const struct {
    const char *name;
    question ask;
    bool arena_panics;
} questions[] = {{"find_run", ask_run, false},
                 {"find_provider", ask_provider, false},
                 {"list_runs", ask_runs, false},
                 {"read_run", ask_events, false},
                 {"read_tenant", ask_tenant, false},
                 {"read_correlation", ask_trace, false},
                 {"seq_at", ask_seq, false},
                 {"find_event", ask_event, false},
                 {"causes", ask_causes, false},
                 {"replay", ask_replay, false},
                 {"alerts", ask_alerts, false},
                 {"stats", ask_stats, false},
                 {"receipt", ask_receipt, false},
                 {"audit", ask_audit, false},
                 {"keys", ask_keys, false},
                 {"use", ask_use, false},
                 {"plan", ask_plan, false},
                 {"sweep", ask_sweep, false},
                 {"checkpoint", ask_checkpoint, false},
                 {"verify", ask_verify, true},
                 {"rebuild", ask_rebuild, true}};

static void fill(struct fixture *c) {
    struct append_result res;
    struct error err = {0};
    fixture_open_as(c, c->url, LEDGER_RECORD);
    struct append_item linked =
        fixture_item_with("RunProviderLinked", "r1", NULL, 1,
                          "{\"provider\":\"t\",\"workflowId\":\"w\",\"providerRunId\":\"p\"}");
    fixture_put(c, linked);
    fixture_put(c, fixture_item("RunCompleted", "r1", NULL, 1)); /* illegal: an alert */
    fixture_put(c, fixture_item("StepStarted", "r1", "s", 1));
    CHECK(ledger_checkpoint(c->ledger, STR("r1"), &res, &c->arena, &err) == ST_OK, "%s", err.msg);
    fixture_put(c, fixture_item("StepCompleted", "r1", "s", 1));
    known_event = linked.event.event_id;
    fixture_close(c);
}

/* Every question answers a failing database with ST_RETRY, and the next one is answered. */
TEST_DB(care_questions_survive_every_failing_call) {
    struct fixture c = {.url = url};
    fill(&c);
    for (size_t i = 0; i < COUNT_OF(questions); i++) {
        fixture_open_faulty(&c, url, LEDGER_RECORD);
        for (int64_t n = 0, failed = 1; failed; n++) {
            struct error err = {0};
            fixture_fail_at(&c, n, false);
            status st = questions[i].ask(&c, &err);
            failed = st != ST_OK;
            CHECK(!failed || st == ST_RETRY, "%s, call %lld: %s", questions[i].name, (long long)n,
                  err.msg);
            CHECK(n < 200, "%s never answers", questions[i].name);
            CHECK(!failed || questions[i].ask(&c, &err) == ST_OK, "%s, after call %lld: %s",
                  questions[i].name, (long long)n, err.msg);
        }
        fixture_close(&c);
    }
    fixture_open(&c, url);
    fixture_clean(&c);
    fixture_close(&c);
}

/* The same without memory. */
TEST_DB(care_questions_survive_every_failing_allocation) {
    struct fixture c = {.url = url};
    fill(&c);
    for (size_t i = 0; i < COUNT_OF(questions); i++) {
        if (questions[i].arena_panics) continue; /* these are for operators, and may give up */
        for (int64_t n = 0, failed = 1; failed; n++) {
            struct error err = {0};
            fixture_open(&c, url); /* statements are prepared anew */
            mem_fail_at(n);
            status st = questions[i].ask(&c, &err);
            failed = mem_calls() > n;
            mem_fail_at(-1);
            CHECK(st == ST_OK || st == ST_RETRY, "%s, allocation %lld: %s", questions[i].name,
                  (long long)n, err.msg);
            CHECK(n < 200, "%s never answers", questions[i].name);
            CHECK(questions[i].ask(&c, &err) == ST_OK, "%s, after allocation %lld: %s",
                  questions[i].name, (long long)n, err.msg);
            fixture_close(&c);
        }
    }
}
