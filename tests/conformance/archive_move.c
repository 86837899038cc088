/* RE-A.2-4: retention tiers. Finished runs move to a second tier of the same ledger; nothing that
 * can be asked changes. */
#include "base/os.h"
#include "conformance/archive_helper.h"

static void open_filled(struct fixture *c, str url) {
    fixture_open_as(c, url, LEDGER_RECORD);
    archive_fill(c);
}

/* RE-A.2-4: an archived run replays to the same state, and the live tier holds none of its rows. */
TEST_DB(archive_a_finished_run_replays_the_same) {
    struct fixture c;
    open_filled(&c, url);
    str before = archive_picture(&c, 3);
    struct run_info info = fixture_run(&c, "linked");
    struct archive_report report = archive_run(&c, "linked");
    CHECK(report.runs == 1 && report.events == 10, "%lld events", (long long)report.events);
    CHECK(archive_rows(&c, "ledger_event", "linked") == 0);
    CHECK(archive_rows(&c, "ledger_archive", "linked") == 10 && info.head.run_seq == 9);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_archive") == 10); /* and no other's */
    CHECK(str_eq(before, archive_picture(&c, 3)));
    fixture_clean(&c);
    fixture_reopen(&c);
    CHECK(str_eq(before, archive_picture(&c, 3)));
    fixture_close(&c);
}

/* RE-A.2-4: the same with everything that is finished: views, feeds over both tiers by pages of any
 * size, causes, ids, lists, verify, rebuild. */
TEST_DB(archive_changes_nothing_that_can_be_asked) {
    static const size_t pages[] = {1, 7, 500};
    struct fixture c;
    struct error err = {0};
    str before[COUNT_OF(pages)];
    open_filled(&c, url);
    for (size_t i = 0; i < COUNT_OF(pages); i++)
        before[i] = archive_picture(&c, pages[i]);
    int64_t finished = fixture_int(&c, "SELECT COUNT(*) FROM runs WHERE completed_at IS NOT NULL");
    int64_t events = fixture_int(&c, "SELECT COUNT(*) FROM ledger_event");
    struct archive_report report = archive_run(&c, NULL);
    CHECK(report.runs == finished && finished >= 4);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_archive") == report.events);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_event") == events - report.events);
    CHECK(events > report.events); /* both tiers have some */
    for (size_t i = 0; i < COUNT_OF(pages); i++)
        CHECK(str_eq(before[i], archive_picture(&c, pages[i])), "pages of %zu", pages[i]);
    fixture_clean(&c);
    CHECK(ledger_rebuild(c.ledger, NULL, NULL, NULL, &err) == ST_OK, "%s", err.msg);
    CHECK(str_eq(before[0], archive_picture(&c, pages[0])));
    fixture_clean(&c);
    CHECK(archive_run(&c, NULL).runs == 0); /* there is nothing left to move */
    fixture_close(&c);
}

/* A key that was accepted once is answered with the first record, wherever that is. */
TEST_DB(archive_still_answers_duplicates) {
    struct fixture c;
    fixture_open(&c, url);
    struct append_item first = fixture_item("RunStarted", "r", NULL, 1);
    struct append_result was = fixture_put(&c, first);
    fixture_put(&c, fixture_item("RunCompleted", "r", NULL, 1));
    for (int round = 0; round < 3; round++) { /* in memory; archived in memory; read from there */
        struct append_item again = fixture_item("RunStarted", "r", NULL, 1);
        struct append_result res = fixture_try(&c, again);
        CHECK(res.code == ST_OK && res.duplicate && uuid_eq(res.event_id, first.event.event_id));
        CHECK(res.seq == was.seq && res.run_seq == 1 && res.persisted_us == was.persisted_us);
        if (round == 0) CHECK(archive_run(&c, NULL).events == 2);
        if (round == 1) fixture_reopen(&c);
    }
    /* Nor may another event take its id. */
    struct append_item thief = fixture_item("RunNoted", "r", NULL, 1);
    thief.event.event_id = first.event.event_id;
    fixture_refused(&c, thief, ST_CONFLICT, "EVENT_ID_REUSED");
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events") == 2);
    fixture_clean(&c);
    fixture_close(&c);
}

/* What comes late to an archived run is judged as ever; the run then has rows in both tiers, until
 * it is archived again. */
TEST_DB(archive_takes_late_events) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_finished_run(&c, "r", 1);
    fixture_finished_run(&c, "next", 1);
    CHECK(archive_run(&c, "r").events == 4);
    fixture_reopen(&c);
    fixture_refused(&c, fixture_item("StepStarted", "r", "s0", 2), ST_CONFLICT,
                    "INVALID_TRANSITION");
    struct append_result late = fixture_put(&c, fixture_item("RunNoted", "r", NULL, 1));
    CHECK(late.run_seq == 5 && late.seq == 9);
    fixture_put(&c,
                fixture_fact(EVENT_EFFECT_REQUESTED, "r", fixture_uuid_text(uuid_v4()), 1, "{}"));
    CHECK(archive_rows(&c, "ledger_event", "r") == 2);
    CHECK(archive_rows(&c, "ledger_archive", "r") == 4);
    struct run_info info = fixture_run(&c, "r");
    CHECK(info.head.run_seq == 5 && info.head.last_seq == 10 && info.started_us > 0);
    CHECK(fixture_int(&c, "SELECT run_seq FROM runs WHERE run_id = 'r'") == 5);
    fixture_clean(&c);
    CHECK(archive_run(&c, "r").events == 2);
    CHECK(archive_rows(&c, "ledger_archive", "r") == 6);
    CHECK(fixture_int(&c, "SELECT run_seq FROM runs WHERE run_id = 'r'") == 5);
    struct append_result noted = fixture_put(&c, fixture_item("RunNoted", "r", NULL, 2));
    CHECK(noted.run_seq == 6 && noted.seq == 11);
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- what is moved ---- */

static void count_progress(void *context, int64_t done, int64_t total) {
    int64_t *last = context;
    CHECK(done > *last && total == 0);
    *last = done;
}

static struct archive_report archive(struct fixture *c, struct archive_request request) {
    struct archive_report report;
    struct error err = {0};
    int64_t last = 0;
    CHECK(ledger_archive(c->ledger, &request, count_progress, &last, &report, &err) == ST_OK, "%s",
          err.msg);
    CHECK(last == report.runs);
    return report;
}

TEST_DB(archive_moves_what_is_asked_for) {
    struct fixture c;
    fixture_open(&c, url);
    for (int i = 0; i < 5; i++) {
        c.now_us = FIXTURE_NOW_US + (int64_t)i * 1000000;
        fixture_finished_run(&c, fixture_fmt("r%d", i), 0);
    }
    fixture_put(&c, fixture_item("RunStarted", "open", NULL, 1));
    struct archive_request early = {.until_us = FIXTURE_NOW_US + 2000000}; /* r0 and r1 */
    struct archive_request two = {.runs_max = 2};
    struct archive_report report = archive(&c, early);
    CHECK(report.runs == 2 && report.events == 4);
    CHECK(archive_rows(&c, "ledger_archive", "r1") == 2);
    CHECK(archive_rows(&c, "ledger_archive", "r2") == 0);
    CHECK(archive(&c, early).runs == 0);
    CHECK(archive(&c, two).runs == 2); /* r2 and r3 */
    CHECK(archive_rows(&c, "ledger_archive", "r3") == 2);
    CHECK(archive(&c, two).runs == 1); /* r4; one is open */
    CHECK(archive_run(&c, "r4").runs == 0);
    CHECK(archive_rows(&c, "ledger_event", "open") == 1);
    fixture_clean(&c);
    fixture_close(&c);
}

/* More than one lot of runs, each its own transaction. */
TEST_DB(archive_moves_many_runs) {
    enum { RUNS = 300, EVENTS = 2 * RUNS };
    static struct append_item items[EVENTS];
    static struct append_result results[EVENTS];
    struct fixture c;
    fixture_open(&c, url);
    for (int i = 0; i < RUNS; i++) {
        const char *run = fixture_fmt("r%d", i);
        struct append_item *at = &items[(size_t)i * 2];
        at[0] = fixture_item("RunStarted", run, NULL, 1);
        at[1] = fixture_item("RunCancelled", run, NULL, 1);
    }
    fixture_batch(&c, items, EVENTS, false, results);
    struct archive_report report = archive(&c, (struct archive_request){0});
    CHECK(report.runs == RUNS && report.events == EVENTS);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_event") == 0);
    fixture_reopen(&c); /* the newest event of the tenant is in the archive, too */
    CHECK(fixture_put(&c, fixture_item("RunStarted", "new", NULL, 1)).seq == EVENTS + 1);
    fixture_clean(&c);
    fixture_close(&c);
}

TEST_DB(archive_refuses_what_is_not_finished) {
    struct fixture c;
    struct archive_report report = {.runs = 7};
    struct error err = {0};
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "open", NULL, 1));
    struct archive_request open = {.run_id = STR("open")};
    struct archive_request none = {.run_id = STR("none")};
    CHECK(ledger_archive(c.ledger, &open, NULL, NULL, &report, &err) == ST_CONFLICT);
    CHECK(err.reason == REASON_RUN_NOT_FINISHED, "%s", err.msg);
    CHECK(ledger_archive(c.ledger, &none, NULL, NULL, &report, &err) == ST_NOT_FOUND);
    CHECK(err.reason == REASON_RUN_NOT_FOUND, "%s", err.msg);
    fixture_put(&c, fixture_item("RunNoted", "open", NULL, 1)); /* the handle works on */
    fixture_close(&c);
}

/* ---- ids in lots ---- */

/* An event of a sealed lot is found by its id, and the lot is still what its events say. */
TEST_DB(archive_keeps_ids_in_sealed_lots) {
    enum {
        LOT = 4096,
        LOTS = 9,
        STEPS = LOT - 1
    }; /* LOTS * LOT > 32,768: one lot of ids is full */
    static struct append_item items[LOT];
    static struct append_result results[LOT];
    struct fixture c;
    struct error err = {0};
    struct event_record rec;
    uuid ids[LOTS];
    fixture_open(&c, url);
    for (int lot = 0; lot < LOTS; lot++) {
        const char *run = fixture_fmt("r%d", lot);
        items[0] = fixture_item("RunStarted", run, NULL, 1);
        for (int i = 1; i < STEPS; i++)
            items[i] = fixture_item("RunNoted", run, NULL, i);
        items[STEPS] = fixture_item("RunCompleted", run, NULL, 1);
        ids[lot] = items[lot].event.event_id;
        fixture_batch(&c, items, LOT, false, results);
    }
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM state_lot") == 64);
    CHECK(archive_run(&c, "r0").events == LOT && archive_run(&c, "r5").events == LOT);
    for (int lot = 0; lot < LOTS; lot++) {
        CHECK(ledger_find_event(c.ledger, ids[lot], &c.arena, &rec, &err) == ST_OK, "%s", err.msg);
        CHECK(rec.seq == (int64_t)lot * LOT + lot + 1);
    }
    fixture_clean(&c);
    CHECK(ledger_rebuild(c.ledger, NULL, NULL, NULL, &err) == ST_OK, "%s", err.msg);
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- SQL ---- */

static bool has(str text, const char *part) {
    return memmem(text.ptr, text.len, part, strlen(part)) != NULL;
}

/* It finds its events by an index: those of both tiers, once some are archived. */
static void check_plan(struct fixture *c, const char *sql, bool archived) {
    bool postgres = db_is_postgres(ledger_db(c->ledger));
    str plan = fixture_plan(c, sql);
    CHECK(!has(plan, "SCAN e") && !has(plan, "SCAN f") && !has(plan, "MATERIALIZE o") &&
              !has(plan, "MATERIALIZE r") && !has(plan, "AUTOMATIC"),
          "%s\n%.*s", sql, STR_ARG(plan));
    CHECK(!has(plan, "Seq Scan on ledger_event") && !has(plan, "Seq Scan on ledger_archive"),
          "%s\n%.*s", sql, STR_ARG(plan));
    CHECK(!archived || has(plan, postgres ? "on ledger_archive f " : "SEARCH f USING"), "%s\n%.*s",
          sql, STR_ARG(plan));
}

/* The queries of docs/sql.md that read events give the same afterwards, and still do not read them
 * all: each finds its rows in both tiers by an index. */
TEST_DB(archive_keeps_the_queries_of_the_manual_fast) {
    struct fixture c;
    struct error err = {0};
    str page;
    int fast = 0;
    CHECK(path_exists(STR("docs/sql.md")), "run the tests from the top of the repository");
    fixture_open_as(&c, url, LEDGER_RECORD);
    bool postgres = db_is_postgres(ledger_db(c.ledger));
    for (int i = 1; i <= 40; i++)
        fixture_finished_run(&c, fixture_fmt("orders-%d", i), 3);
    CHECK(file_read(STR("docs/sql.md"), (size_t)1024 * 1024, &c.arena, &page, &err) == ST_OK);
    for (int archived = 0; archived < 2; archived++) {
        if (postgres)
            fixture_must_sql(&c, "ANALYZE; SET enable_seqscan = off; SET enable_bitmapscan = off");
        for (const char *at = page.ptr; (at = strstr(at, "```sql\n"));) {
            at += strlen("```sql\n");
            const char *sql = fixture_fmt("%.*s", (int)(strstr(at, ";\n```") - at), at);
            if (!strstr(sql, "orchestration_events") && !strstr(sql, "run_events")) continue;
            if (strstr(sql, "\"persistedAt\" >=")) continue; /* by time: all, it says so */
            fast += archived;
            check_plan(&c, sql, archived != 0);
        }
        if (archived) break;
        struct archive_request half = {.runs_max = 20};
        CHECK(archive(&c, half).runs == 20);
    }
    CHECK(fast == 6, "not %d", fast);
    fixture_close(&c);
}
