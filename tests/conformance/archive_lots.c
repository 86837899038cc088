/* Archiving a little at a time: what a server does while it goes on with its work. */
#include "base/limits.h"
#include "conformance/archive_helper.h"
#include "ledger/access/access.h"

enum { BATCH_MAX = 4096, NOTES = 9000 }; /* more than two batches */

static void put_notes(struct fixture *c, const char *run, int count) {
    struct append_item *items = ARENA_ARRAY(&c->arena, struct append_item, 1000);
    struct append_result *results = ARENA_ARRAY(&c->arena, struct append_result, 1000);
    struct error err = {0};
    for (int done = 0; done < count; done += 1000) {
        struct append_request req = {
            .items = items, .count = 1000, .results = results, .arena = &c->arena};
        struct append_request *reqs[] = {&req};
        for (int i = 0; i < 1000; i++)
            items[i] = fixture_item("RunNoted", run, NULL, done + i + 1);
        CHECK(ledger_append(c->ledger, reqs, 1, &err) == ST_OK, "%s", err.msg);
        CHECK(results[999].code == ST_OK && !results[999].duplicate);
    }
}

static int64_t audits(struct fixture *c) {
    return fixture_int(c, "SELECT COUNT(*) FROM audit WHERE action = 'admin.archive'");
}

/* A run of any size moves in batches that are bounded, its oldest events first; between two batches
 * others append, and every question is answered as before. The riders are there from the first batch
 * on. */
TEST_DB(archive_batches_are_bounded) {
    struct fixture c;
    struct error err = {0};
    struct archive_at at = {0};
    struct audit_entry audit = {
        .actor = STR("ann"), .action = STR("admin.archive"), .outcome = STR("done")};
    struct append_rider rider = {.audit = &audit};
    struct archive_request all = {.riders = &rider};
    fixture_open(&c, url);
    fixture_finished_run(&c, "before", 1);
    fixture_put(&c, fixture_item("RunStarted", "big", NULL, 1));
    put_notes(&c, "big", NOTES);
    fixture_put(&c, fixture_item("RunCompleted", "big", NULL, 1));
    fixture_finished_run(&c, "after", 1);
    fixture_put(&c, fixture_item("RunStarted", "open", NULL, 1));
    int batches = 0;
    int64_t notes = NOTES + 2;
    while (!at.done) {
        int64_t events = at.report.events;
        CHECK(ledger_archive_batch(c.ledger, &all, &at, &err) == ST_OK, "%s", err.msg);
        CHECK(at.report.events - events <= BATCH_MAX, "%lld", (long long)(at.report.events - events));
        CHECK(audits(&c) == 1);
        batches++;
        fixture_put(&c, fixture_item("RunNoted", "open", NULL, batches));
        if (batches == 2) { /* late, and in the middle */
            fixture_put(&c, fixture_item("RunNoted", "big", NULL, NOTES + 1));
            notes++;
        }
        CHECK(archive_rows(&c, "ledger_event", "big") + archive_rows(&c, "ledger_archive", "big") ==
              notes);
        CHECK(fixture_int(&c, "SELECT run_seq FROM runs WHERE run_id = 'big'") == notes);
    }
    CHECK(batches >= 4 && at.report.runs == 3, "%d batches, %lld runs", batches, (long long)at.report.runs);
    CHECK(archive_rows(&c, "ledger_event", "big") == 0);
    CHECK(archive_rows(&c, "ledger_archive", "open") == 0);
    CHECK(at.report.events == notes + 8, "%lld", (long long)at.report.events);
    fixture_clean(&c);
    fixture_close(&c);
}

/* A ledger whose runs were all archived before is looked through in bounded steps, too; a crash
 * between two batches leaves nothing to mend: another archiving goes on. */
TEST_DB(archive_goes_on_after_it_was_left) {
    struct fixture c;
    struct error err = {0};
    struct archive_at at = {0};
    struct archive_request one = {.runs_max = 1};
    struct archive_request all = {0};
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "big", NULL, 1));
    put_notes(&c, "big", NOTES);
    fixture_put(&c, fixture_item("RunCompleted", "big", NULL, 1));
    fixture_finished_run(&c, "small", 1);
    CHECK(ledger_archive_batch(c.ledger, &all, &at, &err) == ST_OK && !at.done, "%s", err.msg);
    CHECK(at.report.runs == 0 && at.report.events == BATCH_MAX);
    fixture_close(&c);
    fixture_open(&c, url);
    at = (struct archive_at){0};
    while (!at.done)
        CHECK(ledger_archive_batch(c.ledger, &one, &at, &err) == ST_OK, "%s", err.msg);
    CHECK(at.report.runs == 1 && at.report.events == NOTES + 2 - BATCH_MAX);
    CHECK(archive_rows(&c, "ledger_event", "big") == 0);
    CHECK(archive_run(&c, NULL).runs == 1);
    CHECK(archive_run(&c, NULL).runs == 0);
    fixture_clean(&c);
    fixture_close(&c);
}
