/* Looking after a ledger: rebuild, backup, statistics, opening. */
#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/os.h"
#include "conformance/fixture.h"
#include "ledger/access/access.h"

static void rebuild(struct fixture *c, int64_t want_runs) {
    struct error err = {0};
    int64_t runs = 0;
    CHECK(ledger_rebuild(c->ledger, NULL, NULL, &runs, &err) == ST_OK, "%s", err.msg);
    CHECK(runs == want_runs, "%lld runs", (long long)runs);
}

/* A rebuild gives every derived row again, bit for bit, whatever had become of them; and appending
 * goes on. */
TEST_DB(care_rebuild_is_bit_identical) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_random_workload(&c, "r", 30, fixture_scaled(2000, 200), 21);
    fixture_put(
        &c, fixture_item_with("RunProviderLinked", "r3", NULL, 1,
                              "{\"provider\":\"t\",\"workflowId\":\"w\",\"providerRunId\":\"p\"}"));
    str before = fixture_state_dump(&c);
    str truth = fixture_truth_dump(&c);
    rebuild(&c, 30);
    CHECK(str_eq(before, fixture_state_dump(&c)));
    fixture_must_sql(&c, "UPDATE state_run SET status = 1; DELETE FROM state_step WHERE state > 2; "
                         "DELETE FROM state_alert;"
                         "UPDATE state_provider SET run_no = 99");
    CHECK(fixture_verify(&c, true).damaged);
    rebuild(&c, 30);
    CHECK(str_eq(before, fixture_state_dump(&c)) && str_eq(truth, fixture_truth_dump(&c)));
    fixture_clean(&c);
    fixture_random_workload(&c, "r", 30, 64, 22);
    fixture_clean(&c);
    fixture_close(&c);
}

/* Rebuilds while call `n` of the database fails; false when it passed. */
static bool rebuild_with_fault(str url, int64_t n, int64_t want_runs) {
    struct fixture c;
    struct error err = {0};
    int64_t runs = 0;
    fixture_open_faulty(&c, url, LEDGER_REJECT);
    fixture_fail_at(&c, n, n % 2);
    bool failed = ledger_rebuild(c.ledger, NULL, NULL, &runs, &err) != ST_OK;
    CHECK(failed || runs == want_runs);
    if (failed) rebuild(&c, want_runs); /* the handle reconnects and works on */
    fixture_close(&c);
    return failed;
}

/* Whatever call fails during a rebuild: the old rows or the new ones are there, which are the same,
 * never a part. */
TEST_DB(care_a_failed_rebuild_changes_nothing) {
    struct fixture c;
    struct fixture reader;
    fixture_open(&c, url);
    fixture_random_workload(&c, "r", 3, 32, 23);
    fixture_close(&c);
    fixture_open_reader(&reader, url);
    str before = fixture_state_dump(&reader);
    int64_t n = 0;
    while (rebuild_with_fault(url, n, 3)) {
        CHECK(str_eq(before, fixture_state_dump(&reader)), "call %lld", (long long)n);
        n++;
    }
    CHECK(n > 10, "only %lld calls", (long long)n);
    CHECK(str_eq(before, fixture_state_dump(&reader)));
    fixture_close(&reader);
}

/* A rebuild does not paper over a damaged history. */
TEST_DB(care_rebuild_refuses_a_damaged_history) {
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, url);
    fixture_finished_run(&c, "r1", 3);
    str before = fixture_state_dump(&c);
    fixture_drop_triggers(&c);
    fixture_must_sql(&c, "DELETE FROM ledger_event WHERE run_seq = 4");
    CHECK(ledger_rebuild(c.ledger, NULL, NULL, NULL, &err) == ST_CORRUPT &&
              err.reason == REASON_LEDGER_DAMAGED,
          "%s", err.msg);
    fixture_reopen(&c);
    CHECK(str_eq(before, fixture_state_dump(&c)));
    fixture_must_sql(&c, "UPDATE ledger_run SET run_uuid = 'x'");
    CHECK(ledger_rebuild(c.ledger, NULL, NULL, NULL, &err) == ST_CORRUPT, "%s", err.msg);
    fixture_close(&c);
}

/* ---- backup ---- */

struct writer_thread {
    struct fixture c;
    pthread_t thread;
    atomic_bool stop;
    int failures, commits;
};

static struct append_item busy_items[4096];

static void *keep_appending(void *arg) {
    struct writer_thread *w = arg;
    for (size_t i = 0; i < COUNT_OF(busy_items) && !atomic_load(&w->stop); i++) {
        struct append_result res;
        struct error err;
        if (fixture_append(&w->c, &busy_items[i], &res, &err) != ST_OK || res.code != ST_OK)
            w->failures++;
        w->commits++;
    }
    return NULL;
}

/* A copy of a live ledger is made while events are appended to it; it is sound and has a whole
 * prefix of the history. */
TEST(care_backup_of_a_live_ledger) {
    static struct writer_thread w;
    struct fixture copy;
    struct error err = {0};
    str url = test_db_url("sqlite");
    w = (struct writer_thread){0};
    fixture_open(&w.c, url);
    fixture_random_workload(&w.c, "r", 50, fixture_scaled(4000, 400), 31);
    int64_t before = fixture_int(&w.c, "SELECT sequence_number FROM tenants");
    struct ledger *reader = NULL;
    CHECK(ledger_open_reader(url, &reader, &err) == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < COUNT_OF(busy_items); i++)
        busy_items[i] = fixture_item("RunNoted", "busy", NULL, (int64_t)i + 1);
    CHECK(pthread_create(&w.thread, NULL, keep_appending, &w) == 0);
    const char *path = fixture_fmt("%s/copy.db", test_dir());
    status st = ledger_backup(reader, str_c(path), &err);
    atomic_store(&w.stop, true);
    pthread_join(w.thread, NULL);
    CHECK(st == ST_OK, "%s", err.msg);
    CHECK(w.failures == 0 && w.commits > 0, "%d of %d", w.failures, w.commits);
    CHECK(ledger_backup(reader, str_c(path), &err) == ST_CONFLICT &&
              err.reason == REASON_FILE_EXISTS,
          "%s", err.msg);
    ledger_close(reader);

    fixture_open(&copy, str_c(path));
    fixture_clean(&copy);
    int64_t events = fixture_int(&copy, "SELECT sequence_number FROM tenants");
    CHECK(events >= before && events <= before + w.commits);
    fixture_put(&copy, fixture_item("RunNoted", "copied", NULL, 1)); /* it is a ledger of its own */
    fixture_close(&copy);
    fixture_close(&w.c);
}

/* The files in the folder of `path` whose name begins with its name. */
static int beside(const char *path) {
    glob_t found;
    int n = glob(fixture_fmt("%s*", path), 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    if (n > 0) globfree(&found);
    return n;
}

/* A damaged ledger is not copied under a good name, and nothing is left beside the copy. */
TEST(care_backup_is_verified_before_it_gets_its_name) {
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, test_db_url("sqlite"));
    fixture_finished_run(&c, "r1", 1);
    const char *path = fixture_fmt("%s/copy.db", test_dir());
    CHECK(ledger_backup(c.ledger, str_c(path), &err) == ST_OK, "%s", err.msg);
    CHECK(path_exists(str_c(path)) && beside(path) == 1, "%d files", beside(path));
    CHECK(unlink(path) == 0);
    fixture_must_sql(&c, "UPDATE state_run SET status = 1");
    CHECK(ledger_backup(c.ledger, str_c(path), &err) == ST_CORRUPT &&
              err.reason == REASON_LEDGER_DAMAGED,
          "%s", err.msg);
    CHECK(beside(path) == 0, "%d files", beside(path));
    CHECK(ledger_backup(c.ledger, str_c(fixture_fmt("/%05000d", 0)), &err) == ST_LIMIT);
    fixture_close(&c);
}

TEST(care_backup_is_for_sqlite) {
    struct fixture c;
    struct error err = {0};
    str url = test_postgres();
    fixture_open(&c, url);
    CHECK(ledger_backup(c.ledger, str_c(fixture_fmt("%s/copy.db", test_dir())), &err) ==
          ST_INVALID);
    fixture_close(&c);
}

/* ---- statistics ---- */

TEST_DB(care_stats_count) {
    struct fixture c;
    struct ledger_stats s;
    struct error err = {0};
    struct append_result res;
    fixture_open(&c, url);
    CHECK(ledger_stats(c.ledger, &s, &err) == ST_OK && s.tenants == 0 && s.runs == 0 &&
              s.events == 0 && s.bytes > 0,
          "%s", err.msg);
    fixture_finished_run(&c, "r1", 1);
    fixture_put(&c, fixture_item("RunStarted", "r2", NULL, 1));
    CHECK(ledger_checkpoint(c.ledger, STR("r2"), &res, &c.arena, &err) == ST_OK, "%s", err.msg);
    fixture_refused(&c, fixture_item("RunResumed", "r2", NULL, 1), ST_CONFLICT,
                    "INVALID_TRANSITION");
    fixture_close(&c);
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_put(&c, fixture_item("RunStarted", "r2", NULL, 2));
    CHECK(ledger_stats(c.ledger, &s, &err) == ST_OK, "%s", err.msg);
    CHECK(s.tenants == 1 && s.runs == 2 && s.open_runs == 1 && s.events == 7 && s.alerts == 1 &&
              s.rejections == 1 && s.checkpoints == 1,
          "%lld %lld %lld %lld %lld %lld %lld", (long long)s.tenants, (long long)s.runs,
          (long long)s.open_runs, (long long)s.events, (long long)s.alerts, (long long)s.rejections,
          (long long)s.checkpoints);
    fixture_close(&c);
}

/* What travels with a checkpoint is in its transaction; the event has the id that was asked for. */
TEST_DB(checkpoint_takes_riders_along) {
    struct fixture c;
    struct checkpoint_request *made = NULL;
    struct error err = {0};
    struct receipt found;
    uuid id = uuid_v4();
    struct receipt receipt = {
        .scope = STR("ann"), .key = STR("k"), .http_status = 201, .body = STR("the id")};
    struct append_rider rider = {.receipt = &receipt};
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r", NULL, 1));
    CHECK(ledger_prepare_checkpoint(c.ledger, STR("no"), id, &rider, &c.arena, &made, &err) ==
          ST_NOT_FOUND);
    CHECK(receipt_find(c.ledger, STR("ann"), STR("k"), &c.arena, &found, &err) == ST_NOT_FOUND);
    CHECK(ledger_prepare_checkpoint(c.ledger, STR("r"), id, &rider, &c.arena, &made, &err) == ST_OK,
          "%s", err.msg);
    struct append_request *all[] = {&made->request};
    CHECK(ledger_append(c.ledger, all, 1, &err) == ST_OK, "%s", err.msg);
    CHECK(made->result.code == ST_OK && uuid_eq(made->result.event_id, id) &&
          made->result.run_seq == 2);
    CHECK(receipt_find(c.ledger, STR("ann"), STR("k"), &c.arena, &found, &err) == ST_OK &&
          str_eq(found.body, STR("the id")));
    fixture_close(&c);
}

/* A checkpoint of a run that is not there. */
TEST_DB(care_checkpoint_of_an_unknown_run) {
    struct fixture c;
    struct append_result res;
    struct error err = {0};
    fixture_open(&c, url);
    CHECK(ledger_checkpoint(c.ledger, STR("nobody"), &res, &c.arena, &err) == ST_NOT_FOUND &&
          err.reason == REASON_RUN_NOT_FOUND);
    fixture_close(&c);
}

/* ---- opening ---- */

/* One process writes to a SQLite file; readers need no lock, and a reader makes no ledger. */
TEST(care_one_writer_for_a_file) {
    struct fixture c;
    struct ledger *second = NULL;
    struct error err = {0};
    str url = test_db_url("sqlite");
    CHECK(ledger_open_reader(url, &second, &err) != ST_OK && !path_exists(url));
    fixture_open(&c, str_c(fixture_fmt("sqlite:%.*s", STR_ARG(url))));
    struct ledger_options options = {.lock_wait_ms = 50};
    CHECK(ledger_open(url, &options, &second, &err) == ST_RETRY &&
              strstr(err.msg, "another process"),
          "%s", err.msg);
    CHECK(ledger_open_reader(url, &second, &err) == ST_OK, "%s", err.msg);
    ledger_close(second);
    fixture_close(&c);
    fixture_open(&c, url);
    fixture_close(&c);
    ledger_close(NULL);
    CHECK(ledger_open(str_c(fixture_fmt("%02000d", 0)), NULL, &second, &err) == ST_LIMIT, "%s",
          err.msg);
}
