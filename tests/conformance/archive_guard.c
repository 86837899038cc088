/* The archive, when something goes wrong or somebody means harm: nothing is lost on the way, and
 * archiving is no back door to the history. */
#include <pthread.h>
#include <stdatomic.h>

#include "conformance/archive_helper.h"

/* ---- failures ---- */

/* One round: `run` is archived while the n-th call fails. false when nothing failed. */
static bool archive_with_fault(struct fixture *c, struct fixture *reader, int64_t n, bool after) {
    struct archive_report report = {0};
    struct error err = {0};
    const char *run = fixture_fmt("%s-%lld", after ? "after" : "before", (long long)n);
    fixture_finished_run(c, run, 1);
    struct archive_request request = {.run_id = str_c(run)};
    fixture_fail_at(c, n, after);
    status st = ledger_archive(c->ledger, &request, NULL, NULL, &report, &err);
    fixture_fail_at(c, -1, false);
    CHECK(st == ST_OK || st == ST_RETRY, "call %lld: %s", (long long)n, err.msg);
    int64_t hot = archive_rows(reader, "ledger_event", run);
    int64_t archived = archive_rows(reader, "ledger_archive", run);
    CHECK(hot + archived == 4 && (hot == 0 || archived == 0), "call %lld: %lld and %lld rows",
          (long long)n, (long long)hot, (long long)archived);
    CHECK(st != ST_OK || (archived == 4 && report.events == 4));
    CHECK(st == ST_OK || after || archived == 0);
    if (st != ST_OK) { /* the same again works, whatever had landed */
        CHECK(ledger_archive(c->ledger, &request, NULL, NULL, &report, &err) == ST_OK, "%s",
              err.msg);
        CHECK(report.events == hot);
    }
    CHECK(archive_rows(reader, "ledger_archive", run) == 4);
    return st != ST_OK;
}

/* RE-A.2-4: whatever call of the database fails, a run is in one tier, as a whole. */
TEST_DB(archive_survives_every_failing_call) {
    struct fixture c;
    struct fixture reader;
    fixture_open_faulty(&c, url, LEDGER_REJECT);
    fixture_open_reader(&reader, url);
    for (int after = 0; after < 2; after++) {
        int64_t n = 0;
        while (archive_with_fault(&c, &reader, n, after))
            n++;
        CHECK(n >= 7, "only %lld calls", (long long)n);
    }
    fixture_clean(&reader);
    fixture_close(&c);
    fixture_close(&reader);
}

/* ---- the database refuses ---- */

#define COLUMNS                                                                                    \
    "run_no, run_seq, type_no, context_no, engine_attempt, logical_attempt, emitted_ns,"           \
    " emitted_digits, persisted_us, cause_seq, step_index, event_id, key, subject, actor"
#define ONE " FROM ledger_event WHERE pos = (SELECT MIN(pos) FROM ledger_event)"

/* A row can be deleted only if the archive has it, and has it unchanged. */
TEST_DB(archive_is_no_way_to_delete) {
    static const char *const forged[] = {
        "INSERT INTO ledger_archive(pos, " COLUMNS ", payload, hash) SELECT pos, " COLUMNS
        ", payload, key" ONE, /* another hash */
        "INSERT INTO ledger_archive(pos, " COLUMNS ", payload, hash) SELECT pos, " COLUMNS
        ", '[1]', hash" ONE, /* the right hash, another payload */
        "INSERT INTO ledger_archive(pos, " COLUMNS ", payload, hash) SELECT pos + 1000, " COLUMNS
        ", payload, hash" ONE, /* another position */
    };
    static const char drop[] = "DELETE FROM ledger_event WHERE pos = (SELECT MIN(pos) FROM"
                               " ledger_event)";
    for (size_t i = 0; i < COUNT_OF(forged); i++) {
        struct fixture c;
        struct error err = {0};
        fixture_open(&c, url);
        fixture_put(&c, fixture_item("RunStarted", fixture_fmt("r%zu", i), NULL, 1));
        CHECK(fixture_sql(&c, drop) == ST_INVALID);
        CHECK(db_begin(ledger_db(c.ledger), true, &err) == ST_OK);
        fixture_must_sql(&c, forged[i]);
        CHECK(fixture_sql(&c, drop) == ST_INVALID, "%s", forged[i]);
        db_rollback(ledger_db(c.ledger));
        CHECK(fixture_sql(&c, "DELETE FROM ledger_event") == ST_INVALID);
        fixture_clean(&c);
        fixture_close(&c);
    }
}

/* A temporary table does not pass for the archive. */
TEST_DB(archive_cannot_be_shadowed) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r", NULL, 1));
    fixture_must_sql(&c, "CREATE TEMPORARY TABLE ledger_archive AS SELECT * FROM ledger_event");
    CHECK(fixture_sql(&c, "DELETE FROM ledger_event") == ST_INVALID);
    fixture_must_sql(&c, "DROP TABLE {sqlite:temp}{postgres:pg_temp}.ledger_archive");
    fixture_clean(&c);
    fixture_close(&c);
}

/* What is archived stays what it is. */
TEST_DB(archive_refuses_update_and_delete) {
    static const char *const tables[] = {"ledger_archive", "ledger_event"};
    static const char *const statements[] = {
        "UPDATE ledger_archive SET payload = 'x'",
        "UPDATE ledger_archive SET pos = pos + 1000",
        "DELETE FROM ledger_archive",
        /* NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one statement, in two dialects */
        "{sqlite:INSERT OR REPLACE INTO ledger_archive SELECT * FROM ledger_archive}"
        "{postgres:INSERT INTO ledger_archive SELECT * FROM ledger_archive ON CONFLICT (pos)"
        " DO UPDATE SET payload = 'x'}",
        "UPDATE ledger_event SET payload = 'x'",
        "DELETE FROM ledger_event",
        "{sqlite:DELETE FROM ledger_archive}{postgres:TRUNCATE ledger_archive}",
        "{sqlite:DELETE FROM ledger_event}{postgres:TRUNCATE ledger_event}",
    };
    struct fixture c;
    fixture_open(&c, url);
    fixture_finished_run(&c, "r", 1);
    fixture_put(&c, fixture_item("RunStarted", "open", NULL, 1));
    CHECK(archive_run(&c, "r").events == 4);
    str before = fixture_dump(&c, tables, COUNT_OF(tables));
    for (size_t i = 0; i < COUNT_OF(statements); i++) {
        CHECK(fixture_sql(&c, statements[i]) == ST_INVALID, "%s", statements[i]);
        CHECK(str_eq(before, fixture_dump(&c, tables, COUNT_OF(tables))), "%s", statements[i]);
    }
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- verify ---- */

/* Damage that needs no dropped trigger, or all of them dropped: found either way. */
TEST_DB(archive_damage_is_found) {
    static const struct {
        const char *name, *sql;
        bool state; /* only verify --state tells */
    } cases[] = {
        {"a row of both tiers",
         "INSERT INTO ledger_event SELECT * FROM ledger_archive WHERE run_seq = 2", false},
        {"the newest row of both tiers",
         "INSERT INTO ledger_event SELECT * FROM ledger_archive WHERE run_seq = 4", false},
        {"a row of neither", "DELETE FROM ledger_archive WHERE run_seq = 3", false},
        {"all rows of the archive", "DELETE FROM ledger_archive", false},
        {"a changed row", "UPDATE ledger_archive SET actor = 'x' WHERE run_seq = 3", false},
        {"a row of no tenant",
         "UPDATE ledger_archive SET pos = pos + 99 * 1099511627776 WHERE run_seq = 4", false},
        {"a lost trigger", "SELECT 1", true},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct fixture c;
        str fresh =
            i == 0 ? url : test_db_url(str_starts(url, STR("postgres")) ? "postgres" : "sqlite");
        fixture_open(&c, fresh);
        fixture_finished_run(&c, "r", 1);
        CHECK(archive_run(&c, "r").events == 4);
        fixture_clean(&c);
        if (cases[i].state) {
            fixture_must_sql(&c,
                             "DROP TRIGGER ledger_archive_no_UPDATE{postgres: ON ledger_archive}");
        } else {
            fixture_drop_triggers(&c);
            fixture_must_sql(&c, cases[i].sql);
        }
        struct verify_report report = fixture_verify(&c, false);
        CHECK(report.damaged, "%s", cases[i].name);
        CHECK(i > 1 || strstr(report.what, "in the ledger and in the archive"), "%s: %s",
              cases[i].name, report.what);
        fixture_close(&c);
    }
}

/* ---- several nodes ---- */

enum { RUNS = 4, ROUNDS = 150 };

struct node {
    struct fixture c;
    pthread_t thread;
    atomic_bool done;
    int failures, rounds;
    char why[ERROR_MSG_MAX];
    struct append_item items[ROUNDS][RUNS];
    struct append_result results[RUNS];
};

/* Late events for runs that are finished, each sent twice. */
static void *append_late(void *arg) {
    struct node *n = arg;
    for (int round = 0; round < n->rounds; round++) {
        for (int again = 0; again < 2; again++) {
            struct append_request req = {.items = n->items[round],
                                         .count = RUNS,
                                         .results = n->results,
                                         .arena = &n->c.arena};
            struct append_request *reqs[] = {&req};
            struct error err = {0};
            bool ok = ledger_append(n->c.ledger, reqs, 1, &err) == ST_OK;
            for (int i = 0; ok && i < RUNS; i++)
                ok = n->results[i].code == ST_OK && n->results[i].duplicate == (again == 1);
            n->failures += !ok;
            if (!ok) memcpy(n->why, err.msg, sizeof(n->why));
        }
    }
    atomic_store(&n->done, true);
    return NULL;
}

/* Whoever reads meanwhile sees all of a run. */
static void check_whole(struct fixture *reader, int64_t *seen) {
    struct event_page page;
    struct error err = {0};
    CHECK(ledger_read_records(reader->ledger, STR("r0"), 0, 1000, &reader->arena, &page, &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK((int64_t)page.count >= *seen, "%zu records after %lld", page.count, (long long)*seen);
    *seen = (int64_t)page.count;
    for (size_t i = 0; i < page.count; i++)
        CHECK(page.records[i].run_seq == (int64_t)i + 1);
    arena_reset(&reader->arena);
}

/* A node archives runs to which another appends, on PostgreSQL: every event is kept, once, and each
 * reading is whole. */
TEST(archive_while_another_node_appends) {
    static struct node busy;
    struct fixture c;
    struct fixture reader;
    str url = test_postgres();
    busy = (struct node){.rounds = fixture_scaled(ROUNDS, 30)};
    fixture_open(&c, url);
    fixture_open(&busy.c, url);
    fixture_open_reader(&reader, url);
    for (int i = 0; i < RUNS; i++)
        fixture_finished_run(&c, fixture_fmt("r%d", i), 1);
    for (int round = 0; round < busy.rounds; round++) {
        for (int i = 0; i < RUNS; i++)
            busy.items[round][i] = fixture_item("RunNoted", fixture_fmt("r%d", i), NULL, round + 1);
    }
    CHECK(pthread_create(&busy.thread, NULL, append_late, &busy) == 0);
    int64_t moved = 0;
    int64_t seen = 4;
    int times = 0;
    while (!atomic_load(&busy.done)) {
        int64_t events = archive_run(&c, NULL).events;
        moved += events;
        times += events > 0;
        check_whole(&reader, &seen);
    }
    pthread_join(busy.thread, NULL);
    CHECK(busy.failures == 0, "%d failures: %s", busy.failures, busy.why);
    moved += archive_run(&c, NULL).events;
    int64_t all = (int64_t)RUNS * (4 + busy.rounds);
    CHECK(moved == all && times > 1, "%lld events in %d times", (long long)moved, times);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_archive") == all);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_event") == 0);
    fixture_clean(&c);
    fixture_close(&busy.c);
    fixture_close(&reader);
    fixture_close(&c);
}
