#include "conformance/archive_helper.h"

#include "base/limits.h"
#include "view/view.h"

static struct append_item in_globex(struct append_item item) {
    item.event.tenant_id = STR("globex");
    fixture_rekey(&item);
    return item;
}

void archive_fill(struct fixture *c) {
    struct append_result res;
    struct error err = {0};
    fixture_random_workload(c, "r", 6, 90, 11);
    fixture_finished_run(c, "done-1", 3);
    fixture_finished_run(c, "done-2", 1);
    fixture_put(c, fixture_item("RunStarted", "linked", NULL, 1));
    fixture_put(
        c, fixture_item_with("RunProviderLinked", "linked", NULL, 1,
                             "{\"provider\":\"t\",\"workflowId\":\"w\",\"providerRunId\":\"p\"}"));
    fixture_put(c, fixture_item("StepStarted", "linked", "s", 1));
    fixture_put(c, fixture_item_with("StepCompleted", "linked", "s", 1,
                                     "{\"output\":{\"rows\":5},\"n\":1}"));
    CHECK(ledger_checkpoint(c->ledger, STR("linked"), &res, &c->arena, &err) == ST_OK, "%s",
          err.msg);
    fixture_put(
        c, fixture_fact(EVENT_EFFECT_REQUESTED, "linked", fixture_uuid_text(uuid_v4()), 1, "{}"));
    fixture_put(c,
                fixture_item_with("StepCorrected", "linked", "s", 1, "{\"output\":{\"rows\":6}}"));
    struct append_item noted = fixture_item("RunNoted", "linked", NULL, 1); /* an unknown type */
    fixture_put(c, noted);
    fixture_put(c, fixture_item("RunCompleted", "linked", NULL, 1));
    fixture_put(c, fixture_item("RunPaused", "linked", NULL, 1)); /* too late: an alert */
    struct append_item caused = fixture_item("RunStarted", "caused", NULL, 1);
    caused.cause = &noted.event.event_id;
    fixture_put(c, caused);
    fixture_put(c, in_globex(fixture_item("RunStarted", "g-done", NULL, 1)));
    fixture_put(c, in_globex(fixture_item("RunFailed", "g-done", NULL, 1)));
    fixture_put(c, in_globex(fixture_item("RunStarted", "g-open", NULL, 1)));
}

/* ---- the picture ---- */

struct picture {
    struct fixture *c;
    struct buf text;
    size_t page;
};

static void put_page(struct picture *p, const struct event_page *page) {
    for (size_t i = 0; i < page->count; i++) {
        event_record_json(&page->records[i], &p->text);
        buf_put_char(&p->text, '\n');
    }
}

static void put_feed(struct picture *p, const char *tenant) {
    struct error err = {0};
    struct event_page page = {.count = 1};
    int64_t seq = 0;
    for (int64_t after = 0; page.count > 0;) {
        CHECK(ledger_read_tenant(p->c->ledger, str_c(tenant), after, p->page, &p->c->arena, &page,
                                 &err) == ST_OK,
              "%s", err.msg);
        put_page(p, &page);
        for (size_t i = 0; i < page.count; i++)
            CHECK(page.records[i].seq == after + (int64_t)i + 1);
        after += (int64_t)page.count;
    }
    CHECK(ledger_seq_at(p->c->ledger, str_c(tenant), FIXTURE_NOW_US + 1000000, &seq, &err) == ST_OK,
          "%s", err.msg);
    buf_printf(&p->text, "feed of %s, a second later: %lld\n", tenant, (long long)seq);
}

/* Every event of a run by its id, and the number of its causes. */
static void put_event(struct picture *p, const struct event_record *rec) {
    struct error err = {0};
    struct event_record found;
    struct event_page causes;
    bool more = false;
    CHECK(ledger_find_event(p->c->ledger, rec->event.event_id, &p->c->arena, &found, &err) == ST_OK,
          "%s", err.msg);
    CHECK(found.seq == rec->seq && memcmp(found.hash, rec->hash, SHA256_LEN) == 0);
    CHECK(ledger_causes(p->c->ledger, rec->event.event_id, 1000, &p->c->arena, &causes, &more,
                        &err) == ST_OK,
          "%s", err.msg);
    buf_printf(&p->text, "causes of %lld: %zu, the root is %lld\n", (long long)rec->seq,
               causes.count, (long long)causes.records[causes.count - 1].seq);
}

static status put_walked(void *context, const struct event_record *rec, bool *stop,
                         struct error *err) {
    UNUSED(stop);
    struct picture *p = context;
    UNUSED(err);
    buf_printf(&p->text, "%lld ", (long long)rec->seq);
    return ST_OK;
}

static void put_events_of(struct picture *p, const struct run_info *info) {
    struct error err = {0};
    struct event_page page = {.count = 1};
    for (int64_t after = 0; page.count > 0;) {
        CHECK(ledger_read_run(p->c->ledger, info->run_id, after, p->page, &p->c->arena, &page,
                              &err) == ST_OK,
              "%s", err.msg);
        put_page(p, &page);
        for (size_t i = 0; i < page.count; i++)
            put_event(p, &page.records[i]);
        if (page.count > 0) after = page.records[page.count - 1].seq;
    }
    page.count = 1;
    for (int64_t after = 0; page.count > 0;) {
        CHECK(ledger_read_records(p->c->ledger, info->run_id, after, p->page, &p->c->arena, &page,
                                  &err) == ST_OK,
              "%s", err.msg);
        for (size_t i = 0; i < page.count; i++) {
            int64_t seq = 0;
            CHECK(page.records[i].run_seq == ++after);
            CHECK(ledger_run_position(p->c->ledger, info->run_id, after, &seq, &err) == ST_OK);
            CHECK(seq == page.records[i].seq);
        }
    }
    CHECK(ledger_read_correlation(p->c->ledger, STR_NONE, info->correlation_id, 0, PAGE_EVENTS_MAX,
                                  &p->c->arena, &page, &err) == ST_OK,
          "%s", err.msg);
    put_page(p, &page);
}

static void put_run(struct picture *p, const struct run_info *info) {
    struct error err = {0};
    buf_printf(&p->text, "run %.*s: %d, runSeq %lld, last %lld, %lld %lld %lld %lld; ",
               STR_ARG(info->run_id), (int)info->head.status, (long long)info->head.run_seq,
               (long long)info->head.last_seq, (long long)info->opened_us,
               (long long)info->started_us, (long long)info->ended_us, (long long)info->updated_us);
    for (int use_checkpoint = 0; use_checkpoint < 2; use_checkpoint++) {
        struct run run;
        CHECK(ledger_replay(p->c->ledger, info->run_id, 0, use_checkpoint, &p->c->arena, &run, NULL,
                            &err) == ST_OK,
              "%s", err.msg);
        run_state_json(&run, &p->text);
    }
    CHECK(ledger_walk_run(p->c->ledger, info, 0, put_walked, p, &err) == ST_OK, "%s", err.msg);
    buf_put_char(&p->text, '\n');
    put_events_of(p, info);
}

static void put_lists(struct picture *p) {
    struct error err = {0};
    struct run_info *runs = NULL;
    struct alert *alerts = NULL;
    size_t count = 0;
    struct run_filter by_time = {.since_us = FIXTURE_NOW_US + 1000000};
    struct run_filter any = {0};
    CHECK(ledger_list_runs(p->c->ledger, &by_time, 1000, &p->c->arena, &runs, &count, NULL, &err) ==
              ST_OK,
          "%s", err.msg);
    buf_printf(&p->text, "%zu runs since then\n", count);
    CHECK(ledger_list_runs(p->c->ledger, &any, 1000, &p->c->arena, &runs, &count, NULL, &err) ==
              ST_OK,
          "%s", err.msg);
    for (size_t i = 0; i < count; i++)
        put_run(p, &runs[i]);
    CHECK(ledger_list_alerts(p->c->ledger, &(struct alert_query){.limit = 1000}, &p->c->arena,
                             &alerts, &count, &err) == ST_OK,
          "%s", err.msg);
    CHECK(count > 0);
    for (size_t i = 0; i < count; i++) {
        view_write(&view_alert, &alerts[i], &p->text);
        buf_put_char(&p->text, '\n');
    }
    CHECK(ledger_find_provider(p->c->ledger, STR_NONE, STR("t"), STR("w"), STR("p"), &p->c->arena,
                               &runs[0], &err) == ST_OK,
          "%s", err.msg);
    put_run(p, &runs[0]);
}

str archive_picture(struct fixture *c, size_t page) {
    static const char *const views[] = {
        "run_events", "orchestration_events", "runs",    "steps",
        "alerts",     "run_checkpoints",      "tenants", "provider_refs"};
    struct picture p = {.c = c, .page = page};
    buf_init(&p.text, (size_t)64 * 1024 * 1024);
    buf_put(&p.text, fixture_dump(c, views, COUNT_OF(views)));
    buf_put(&p.text, fixture_state_dump(c));
    put_feed(&p, "acme");
    put_feed(&p, "globex");
    put_lists(&p);
    CHECK(!p.text.full && p.text.len > 10000);
    str out = arena_str(&c->arena, buf_str(&p.text));
    buf_release(&p.text);
    return out;
}

/* ---- archiving ---- */

struct archive_report archive_run(struct fixture *c, const char *run) {
    struct archive_request request = {.run_id = run ? str_c(run) : STR_NONE};
    struct archive_report report;
    struct error err = {0};
    CHECK(ledger_archive(c->ledger, &request, NULL, NULL, &report, &err) == ST_OK, "%s", err.msg);
    return report;
}

int64_t archive_rows(struct fixture *c, const char *tier, const char *run) {
    return fixture_int(c, fixture_fmt("SELECT COUNT(*) FROM %s WHERE run_no = (SELECT run_no FROM"
                                      " ledger_run WHERE run_id = '%s')",
                                      tier, run));
}
