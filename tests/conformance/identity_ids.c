/* IWorkflowEngine 2.1.3: the correlation identifiers, as far as they are the ledger's: in events,
 * in keys, at the tenant's border. */
#include "conformance/fixture.h"

static struct append_item event_of(const char *tenant, const char *project, const char *type,
                                   const char *run) {
    struct append_item item = fixture_item(type, run, NULL, 1);
    item.event.tenant_id = str_c(tenant);
    item.event.project_id = str_c(project);
    fixture_rekey(&item);
    return item;
}

static const char *const six[] = {"tenantId", "projectId",       "environmentId",
                                  "runId",    "engineAttemptId", "logicalAttemptId"};

/* WE-2.1.3-1 (events), WE-2.1.3-9 (events): every event of a run has all six identifiers,
 * engineAttemptId among them, in JSON and in SQL. */
TEST_DB(identity_every_event_has_the_six_ids) {
    struct fixture c;
    struct event_page page;
    struct error err = {0};
    struct append_result res;
    fixture_open(&c, url);
    fixture_finished_run(&c, "r1", 2);
    fixture_put(&c,
                fixture_fact(EVENT_SIGNAL_PROCESSED, "r1", fixture_uuid_text(uuid_v4()), 1, "{}"));
    CHECK(ledger_checkpoint(c.ledger, STR("r1"), &res, &c.arena, &err) == ST_OK, "%s", err.msg);
    CHECK(ledger_read_run(c.ledger, STR("r1"), 0, 100, &c.arena, &page, &err) == ST_OK, "%s",
          err.msg);
    CHECK(page.count == 8);
    for (size_t i = 0; i < page.count; i++) {
        struct buf b;
        buf_init(&b, (size_t)64 * 1024);
        event_record_json(&page.records[i], &b);
        yyjson_val *json = fixture_json(&c, buf_str(&b));
        for (size_t k = 0; k < COUNT_OF(six); k++)
            CHECK(json_member(json, six[k]), "event %zu lacks %s", i, six[k]);
        int64_t attempt = 0;
        CHECK(json_int(json_member(json, "engineAttemptId"), &attempt) && attempt == 1);
        buf_release(&b);
    }
    for (size_t k = 0; k < COUNT_OF(six); k++) {
        CHECK(fixture_int(&c, fixture_fmt("SELECT COUNT(*) FROM run_events WHERE \"%s\" IS NULL",
                                          six[k])) == 0,
              "%s", six[k]);
    }
    fixture_close(&c);
}

/* WE-2.1.3-1 (events): an event that lacks one of the six, or has it empty, is refused. */
TEST(identity_no_event_without_the_six_ids) {
    for (size_t k = 0; k < COUNT_OF(six); k++) {
        struct append_item item = fixture_item("RunStarted", "r1", NULL, 1);
        struct event *e = &item.event;
        struct error err = {0};
        str *texts[] = {&e->tenant_id, &e->project_id, &e->environment_id, &e->run_id};
        int64_t *numbers[] = {&e->engine_attempt, &e->logical_attempt};
        if (k < COUNT_OF(texts))
            *texts[k] = STR("");
        else
            *numbers[k - COUNT_OF(texts)] = 0;
        event_key_derive(e, e->key);
        CHECK(event_validate(e, &err) == ST_INVALID, "%s", six[k]);
        CHECK(strcmp(err.where + 1, six[k]) == 0, "%s", err.where);
    }
}

/* WE-2.1.3-2 (append side): another tenant can neither change a run nor learn anything about it. */
TEST_DB(identity_another_tenant_is_refused) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, event_of("acme", "shop", "RunStarted", "r1"));
    fixture_put(&c, event_of("globex", "shop", "RunStarted", "r2"));
    str truth = fixture_truth_dump(&c);
    str state = fixture_state_dump(&c);
    static const char *const types[] = {
        "RunCompleted", "RunCancelled", "RunNoted",
        "RunStarted"}; /* the last is a duplicate, but for its tenant */
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < COUNT_OF(types); i++) {
            struct append_result res = fixture_try(&c, event_of("globex", "shop", types[i], "r1"));
            CHECK(res.code == ST_CONFLICT && res.err->reason == REASON_RUN_ID_TAKEN, "%s",
                  types[i]);
            CHECK(!strstr(res.err->msg, "acme") && !strstr(res.err->msg, "RUNNING") && res.seq == 0,
                  "%s", res.err->msg);
        }
        fixture_reopen(&c); /* the same when the runs are not in memory */
    }
    fixture_refused(&c, event_of("initech", "shop", "RunStarted", "r1"), ST_CONFLICT,
                    "RUN_ID_TAKEN"); /* a tenant without runs */
    CHECK(str_eq(truth, fixture_truth_dump(&c)) && str_eq(state, fixture_state_dump(&c)));
    fixture_put(&c, event_of("acme", "shop", "RunCompleted", "r1"));
    fixture_close(&c);
}

/* WE-2.1.3-2 (append side): inside the tenant a run keeps its project and environment. */
TEST_DB(identity_a_run_keeps_its_project_and_environment) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, event_of("acme", "shop", "RunStarted", "r1"));
    fixture_refused(&c, event_of("acme", "bank", "RunCompleted", "r1"), ST_CONFLICT,
                    "RUN_IDENTITY_MISMATCH");
    struct append_item item = fixture_item("RunCompleted", "r1", NULL, 1);
    item.event.environment_id = STR("dev");
    fixture_rekey(&item);
    fixture_refused(&c, item, ST_CONFLICT, "RUN_IDENTITY_MISMATCH");
    fixture_reopen(&c);
    fixture_refused(&c, item, ST_CONFLICT, "RUN_IDENTITY_MISMATCH");
    CHECK(text_is(fixture_text(&c, "SELECT status FROM runs"), "RUNNING"));
    fixture_close(&c);
}

static void check_list(struct fixture *c, struct run_filter filter, const char *want) {
    struct run_info *runs = NULL;
    size_t count = 0;
    struct error err = {0};
    struct buf b;
    char mem[256];
    buf_init_fixed(&b, mem, sizeof(mem));
    CHECK(ledger_list_runs(c->ledger, &filter, 100, &c->arena, &runs, &count, NULL, &err) == ST_OK,
          "%s", err.msg);
    for (size_t i = 0; i < count; i++)
        buf_printf(&b, "%.*s ", STR_ARG(runs[i].run_id));
    CHECK(text_is(buf_str(&b), want), "%.*s, not %s", STR_ARG(buf_str(&b)), want);
}

/* WE-2.1.3-3: projectId is a scope inside the tenant: asking for both gives that project's runs
 * only. */
TEST_DB(identity_runs_by_tenant_and_project) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, event_of("acme", "shop", "RunStarted", "a1"));
    fixture_put(&c, event_of("acme", "bank", "RunStarted", "b1"));
    fixture_put(&c, event_of("acme", "shop", "RunStarted", "a2"));
    fixture_put(&c, event_of("globex", "shop", "RunStarted", "g1"));
    check_list(&c, (struct run_filter){.tenant_id = STR("acme"), .project_id = STR("shop")},
               "a2 a1 ");
    check_list(&c, (struct run_filter){.tenant_id = STR("acme")}, "a2 b1 a1 ");
    check_list(&c, (struct run_filter){.tenant_id = STR("globex"), .project_id = STR("bank")}, "");
    check_list(&c,
               (struct run_filter){.environment_id = STR("prod"),
                                   .plan_id = STR("orders"),
                                   .statuses = 1U << RUN_RUNNING},
               "g1 a2 b1 a1 ");
    check_list(&c, (struct run_filter){.environment_id = STR("dev")}, "");
    check_list(&c, (struct run_filter){.statuses = 1U << RUN_COMPLETED}, "");
    check_list(&c, (struct run_filter){.only_inconsistent = true}, "");
    CHECK(fixture_int(
              &c, "SELECT COUNT(*) FROM runs WHERE tenant_id = 'acme' AND project_id = 'shop'") ==
          2);
    fixture_close(&c);
}

/* WE-2.1.3-7: the key comes from logicalAttemptId: a logical retry of a step has another key. */
TEST_DB(identity_a_logical_retry_has_another_key) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    for (int64_t attempt = 1; attempt <= 2; attempt++) {
        fixture_put(&c, fixture_item("StepStarted", "r1", "s", attempt));
        fixture_put(&c, fixture_item("StepFailed", "r1", "s", attempt));
    }
    CHECK(fixture_int(&c, "SELECT COUNT(DISTINCT \"idempotencyKey\") FROM run_events WHERE "
                          "\"eventType\" = 'StepStarted'") == 2);
    fixture_close(&c);
}

/* WE-2.1.3-8: engineAttemptId is not part of the key: a restart in mid-step that emits again gets
 * the one record there is. */
TEST_DB(identity_an_engine_restart_has_the_same_key) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    struct append_item first = fixture_item("StepStarted", "r1", "s", 1);
    struct append_result stored = fixture_put(&c, first);
    fixture_reopen(&c); /* the worker and the store come back */
    struct append_item again = fixture_item("StepStarted", "r1", "s", 1);
    again.event.engine_attempt = 2;
    fixture_rekey(&again);
    CHECK(memcmp(first.event.key, again.event.key, SHA256_LEN) == 0);
    struct append_result res = fixture_try(&c, again);
    CHECK(res.code == ST_OK && res.duplicate && res.run_seq == stored.run_seq &&
          uuid_eq(res.event_id, stored.event_id));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events WHERE \"eventType\" = 'StepStarted'") ==
          1);
    CHECK(fixture_int(&c, "SELECT MAX(\"engineAttemptId\") FROM run_events") == 1);
    struct append_item done =
        fixture_item("StepCompleted", "r1", "s", 1); /* what the second attempt adds is its own */
    done.event.engine_attempt = 2;
    fixture_rekey(&done);
    fixture_put(&c, done);
    CHECK(fixture_int(&c, "SELECT engine_attempt_id FROM runs") == 2);
    fixture_close(&c);
}

/* WE-2.1.3-12: a run is found by its runId; one that does not exist is not found. */
TEST_DB(identity_query_by_run_id) {
    struct fixture c;
    struct run_info info;
    struct error err = {0};
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunQueued", "r1", NULL, 1));
    CHECK(ledger_find_run(c.ledger, STR("r1"), &c.arena, &info, &err) == ST_OK, "%s", err.msg);
    const struct {
        str got;
        const char *want;
    } ids[] = {{info.run_id, "r1"},           {info.tenant_id, "acme"}, {info.project_id, "shop"},
               {info.environment_id, "prod"}, {info.plan_id, "orders"}, {info.plan_version, "7"}};
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        CHECK(text_is(ids[i].got, ids[i].want), "%s", ids[i].want);
    CHECK(info.head.status == RUN_PENDING && info.opened_us == c.now_us && info.started_us == 0 &&
          info.ended_us == 0);
    CHECK(ledger_find_run(c.ledger, STR("r2"), &c.arena, &info, &err) == ST_NOT_FOUND);
    CHECK(err.reason == REASON_RUN_NOT_FOUND);
    fixture_close(&c);
}
