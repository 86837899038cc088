/* IWorkflowEngine 2.1.3 and T46: a run is found by its runId and by whatever the provider calls it.
 */
#include "conformance/fixture.h"

static struct append_item link_of(const char *run, int64_t n, const char *provider,
                                  const char *workflow, const char *provider_run) {
    return fixture_item_with(
        "RunProviderLinked", run, NULL, n,
        fixture_fmt("{\"provider\":\"%s\",\"workflowId\":\"%s\",\"providerRunId\":\"%s\"}",
                    provider, workflow, provider_run));
}

static bool found(struct fixture *c, const char *tenant, const char *provider, const char *workflow,
                  const char *provider_run, const char *run) {
    struct run_info info;
    struct error err = {0};
    status st = ledger_find_provider(c->ledger, str_c(tenant), str_c(provider), str_c(workflow),
                                     str_c(provider_run), &c->arena, &info, &err);
    CHECK(st == ST_OK || (st == ST_NOT_FOUND && err.reason == REASON_RUN_NOT_FOUND), "%s", err.msg);
    return st == ST_OK && text_is(info.run_id, run);
}

/* WE-2.1.3-11: runId finds a run whichever provider executes it. */
TEST_DB(identity_run_id_resolves_for_every_provider) {
    static const char *const providers[] = {"temporal", "conductor"};
    struct fixture c;
    fixture_open(&c, url);
    for (size_t i = 0; i < COUNT_OF(providers); i++) {
        fixture_put(&c, fixture_item("RunStarted", fixture_fmt("%s-run", providers[i]), NULL, 1));
        fixture_put(&c, link_of(fixture_fmt("%s-run", providers[i]), 1, providers[i], "wf", "p1"));
    }
    for (size_t i = 0; i < COUNT_OF(providers); i++) {
        struct run_info info = fixture_run(&c, fixture_fmt("%s-run", providers[i]));
        CHECK(info.head.status == RUN_RUNNING);
        CHECK(found(&c, "acme", providers[i], "wf", "p1", fixture_fmt("%s-run", providers[i])),
              "%s", providers[i]);
    }
    fixture_close(&c);
}

/* WE-2.1.3-13: the triple finds the same run as its runId, and after a continue-as-new the old and
 * the new provider run id both do. */
TEST_DB(identity_query_by_provider_triple) {
    struct fixture c;
    struct run_info by_ref;
    struct error err = {0};
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, link_of("r1", 1, "temporal", "orders/1", "p-old"));
    fixture_put(&c, link_of("r1", 2, "temporal", "orders/1", "p-new")); /* continue-as-new */
    fixture_put(&c, fixture_item("RunStarted", "r2", NULL, 1));
    fixture_put(&c, link_of("r2", 1, "temporal", "orders/2", "p-old"));
    CHECK(ledger_find_provider(c.ledger, STR("acme"), STR("temporal"), STR("orders/1"),
                               STR("p-old"), &c.arena, &by_ref, &err) == ST_OK,
          "%s", err.msg);
    struct run_info by_id = fixture_run(&c, "r1");
    CHECK(by_ref.run_no == by_id.run_no && by_ref.head.status == by_id.head.status &&
          by_ref.head.run_seq == by_id.head.run_seq);
    CHECK(str_eq(by_ref.tenant_id, by_id.tenant_id) &&
          str_eq(by_ref.project_id, by_id.project_id) &&
          str_eq(by_ref.environment_id, by_id.environment_id) &&
          uuid_eq(by_ref.correlation_id, by_id.correlation_id));
    for (int pass = 0; pass < 2; pass++) {
        CHECK(found(&c, "acme", "temporal", "orders/1", "p-old", "r1") &&
              found(&c, "acme", "temporal", "orders/1", "p-new", "r1"));
        CHECK(found(&c, "acme", "temporal", "orders/2", "p-old", "r2"));
        CHECK(found(&c, NULL, "temporal", "orders/2", "p-old", "r2")); /* whatever the tenant */
        CHECK(!found(&c, "globex", "temporal", "orders/2", "p-old",
                     "r2")); /* not across the tenant's border */
        CHECK(!found(&c, "acme", "conductor", "orders/2", "p-old", "r2") &&
              !found(&c, "acme", "temporal", "orders/2", "p-new", "r2"));
        CHECK(ledger_rebuild(c.ledger, NULL, NULL, NULL, &err) == ST_OK, "%s",
              err.msg); /* the references are derived, too */
    }
    CHECK(
        fixture_int(
            &c, "SELECT COUNT(*) FROM provider_refs WHERE run_id = 'r1' AND tenant_id = 'acme'") ==
        2);
    fixture_close(&c);
}

/* WE-2.1.3-13: a triple belongs to one run of the tenant. Linking it again is no harm, to another
 * run it is refused. */
TEST_DB(identity_a_provider_run_belongs_to_one_run) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, link_of("r1", 1, "temporal", "wf", "p"));
    fixture_put(&c, link_of("r1", 2, "temporal", "wf", "p"));
    fixture_refused(&c, link_of("r2", 1, "temporal", "wf", "p"), ST_CONFLICT, "PROVIDER_REF_TAKEN");
    struct append_item both[] = {link_of("r3", 1, "temporal", "wf", "q"),
                                 link_of("r4", 1, "temporal", "wf", "q")};
    struct append_result results[2]; /* also inside one commit */
    fixture_batch(&c, both, 2, false, results);
    CHECK(results[0].code == ST_OK && results[1].code == ST_CONFLICT);
    CHECK(results[1].err->reason == REASON_PROVIDER_REF_TAKEN);
    struct append_item elsewhere =
        link_of("r5", 1, "temporal", "wf", "p"); /* tenants do not share it */
    elsewhere.event.tenant_id = STR("globex");
    fixture_rekey(&elsewhere);
    fixture_put(&c, elsewhere);
    CHECK(found(&c, "globex", "temporal", "wf", "p", "r5") &&
          found(&c, "acme", "temporal", "wf", "p", "r1"));
    fixture_clean(&c);
    fixture_close(&c);
}

/* WE-2.1.3-13: a link that does not have its three texts is refused. */
TEST_DB(identity_a_link_needs_its_three_texts) {
    static const char *const payloads[] = {
        NULL, "{}", "{\"provider\":\"t\",\"workflowId\":\"w\"}",
        "{\"provider\":\"t\",\"workflowId\":\"w\",\"providerRunId\":7}",
        "{\"provider\":\"\",\"workflowId\":\"w\",\"providerRunId\":\"p\"}"};
    struct fixture c;
    fixture_open(&c, url);
    for (size_t i = 0; i < COUNT_OF(payloads); i++) {
        fixture_refused(&c, fixture_item_with("RunProviderLinked", "r1", NULL, 1, payloads[i]),
                        ST_INVALID, "PROVIDER_LINK_INVALID");
    }
    fixture_refused(&c, link_of("r1", 1, fixture_fmt("%0256d", 0), "w", "p"), ST_INVALID,
                    "PROVIDER_LINK_INVALID");
    fixture_put(&c, link_of("r1", 1, fixture_fmt("%0255d", 0), "w", "p"));
    fixture_close(&c);
}
