/* CANON 3.4: an event and the state it changes are one transaction. */
#include "conformance/fixture.h"

/* What is stored, as a reader sees it: each count is 0 or 1, and they are the same. */
static void check_both_or_neither(struct fixture *reader, const char *run, bool must_be_there) {
    int64_t events = fixture_int(
        reader, fixture_fmt("SELECT COUNT(*) FROM orchestration_events WHERE run_id = '%s' AND"
                            " event_type = 'STEP_COMPLETED'",
                            run));
    int64_t states = fixture_int(
        reader,
        fixture_fmt("SELECT COUNT(*) FROM steps WHERE run_id = '%s' AND status = 'COMPLETED'",
                    run));
    int64_t steps =
        fixture_int(reader, fixture_fmt("SELECT total_steps FROM runs WHERE run_id = '%s'", run));
    CHECK(events == states && events == steps, "%s: %lld events, %lld steps, %lld counted", run,
          (long long)events, (long long)states, (long long)steps);
    CHECK(!must_be_there || events == 1, "%s", run);
}

/* Completes a step while call `n` of the database fails; false when the append passed. */
static bool complete_with_fault(struct fixture *reader, int64_t n, bool after, bool cold) {
    struct fixture c;
    struct error err = {0};
    struct append_result res;
    const char *run =
        fixture_fmt("r%lld%s%s", (long long)n, after ? "after" : "before", cold ? "cold" : "warm");
    fixture_open_faulty(&c, reader->url, LEDGER_REJECT);
    fixture_put(&c, fixture_item("RunStarted", run, NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", run, "s", 1));
    if (cold) {
        fixture_close(&c);
        fixture_open_faulty(&c, reader->url, LEDGER_REJECT);
    }
    struct append_item item = fixture_item_with("StepCompleted", run, "s", 1, "{\"output\":{}}");
    fixture_fail_at(&c, n, after);
    status st = fixture_append(&c, &item, &res, &err);
    CHECK(st == ST_OK || st == ST_RETRY, "call %lld: %s", (long long)n, err.msg);
    bool failed = st != ST_OK;
    fixture_close(&c);
    check_both_or_neither(reader, run, !failed);
    return failed;
}

static void open_both(struct fixture *reader, str url) {
    struct fixture c;
    fixture_open(&c, url); /* makes the ledger */
    fixture_close(&c);
    fixture_open_reader(reader, url);
}

/* CE-3.4-1: whichever call of the database fails, before or after its work, the event and its state
 * are both there or both not. */
TEST_DB(canon_event_and_state_commit_together) {
    static const struct {
        bool after, cold;
    } kinds[] = {{false, false}, {true, false}, {false, true}, {true, true}};
    struct fixture reader;
    open_both(&reader, url);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        int64_t n = 0;
        while (complete_with_fault(&reader, n, kinds[i].after, kinds[i].cold))
            n++;
        CHECK(n >= 4, "only %lld calls", (long long)n); /* begin, insert, update, commit at least */
    }
    fixture_clean(&reader);
    fixture_close(&reader);
}

/* Saves a checkpoint while call `n` of the database fails; false when it passed. */
static bool checkpoint_with_fault(struct fixture *reader, int64_t n, bool after) {
    struct fixture c;
    struct append_result res;
    struct error err = {0};
    const char *run = fixture_fmt("r%lld%s", (long long)n, after ? "after" : "before");
    fixture_open_faulty(&c, reader->url, LEDGER_REJECT);
    fixture_put(&c, fixture_item("RunStarted", run, NULL, 1));
    fixture_fail_at(&c, n, after);
    bool failed = ledger_checkpoint(c.ledger, str_c(run), &res, &c.arena, &err) != ST_OK;
    fixture_close(&c);
    int64_t rows = fixture_int(
        reader, fixture_fmt("SELECT COUNT(*) FROM run_checkpoints WHERE run_id = '%s'", run));
    int64_t events = fixture_int(
        reader, fixture_fmt("SELECT COUNT(*) FROM orchestration_events WHERE run_id = '%s' AND"
                            " event_type = 'RUN_CHECKPOINT_CREATED'",
                            run));
    CHECK(rows == events, "call %lld: %lld rows, %lld events", (long long)n, (long long)rows,
          (long long)events);
    CHECK(failed || rows == 1, "call %lld", (long long)n);
    return failed;
}

/* CE-3.2-6: a checkpoint is one RUN_CHECKPOINT_CREATED in the transaction of its row. */
TEST_DB(canon_checkpoint_and_event_commit_together) {
    struct fixture reader;
    open_both(&reader, url);
    for (int after = 0; after < 2; after++) {
        int64_t n = 0;
        while (checkpoint_with_fault(&reader, n, after))
            n++;
        CHECK(n >= 6, "only %lld calls", (long long)n);
    }
    fixture_clean(&reader);
    fixture_close(&reader);
}

/* CE-3.4-2, CE-3.4-4: completing a step gives the steps row its status COMPLETED, its output and
 * the event's own time. */
TEST_DB(canon_completed_step_row) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "s", 1));
    CHECK(text_is(fixture_text(&c, "SELECT status FROM steps"), "RUNNING"));
    CHECK(fixture_int(
              &c,
              "SELECT COUNT(*) FROM steps WHERE completed_at IS NULL AND output_result IS NULL") ==
          1);
    c.now_us += 777777;
    fixture_put(&c, fixture_item_with("StepCompleted", "r1", "s", 1, "{\"output\":{\"rows\":5}}"));
    CHECK(text_is(
        fixture_text(
            &c,
            "SELECT aggregate_type FROM orchestration_events WHERE event_type = 'STEP_COMPLETED'"),
        "STEP"));
    CHECK(text_is(fixture_text(&c, "SELECT status FROM steps"), "COMPLETED"));
    CHECK(text_is(fixture_text(&c, "SELECT output_result FROM steps"), "{\"rows\":5}"));
    str when = fixture_text(&c, "SELECT completed_at FROM steps");
    CHECK(text_is(when, "2026-02-16T08:00:00.777777Z"), "%.*s", STR_ARG(when));
    CHECK(str_eq(
        when,
        fixture_text(
            &c,
            "SELECT occurred_at FROM orchestration_events WHERE event_type = 'STEP_COMPLETED'")));
    fixture_close(&c);
}

/* CE-3.4-2: the same for every time that a row shows. */
TEST_DB(canon_times_of_rows_are_times_of_events) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_random_workload(&c, "r", 12, fixture_scaled(600, 100), 5);
    static const char run_at[] =
        "SELECT COUNT(*) FROM runs r WHERE r.started_at IS NOT NULL AND r.started_at <>"
        " (SELECT e.occurred_at FROM orchestration_events e WHERE e.run_id = r.run_id"
        "  AND e.event_type = 'RUN_STARTED')";
    static const char run_end[] =
        "SELECT COUNT(*) FROM runs r WHERE r.completed_at IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM orchestration_events e WHERE e.run_id = r.run_id AND e.occurred_at ="
        "  r.completed_at AND e.event_type IN ('RUN_COMPLETED','RUN_FAILED','RUN_CANCELLED'))";
    static const char step_end[] =
        "SELECT COUNT(*) FROM steps s WHERE s.completed_at IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM orchestration_events e WHERE e.run_id = s.run_id AND e.aggregate_id = s.id"
        "  AND e.occurred_at = s.completed_at AND e.event_type = 'STEP_'||s.status)";
    CHECK(fixture_int(&c, run_at) == 0 && fixture_int(&c, run_end) == 0 &&
          fixture_int(&c, step_end) == 0);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM runs WHERE started_at IS NOT NULL") > 0);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM steps WHERE completed_at IS NOT NULL") > 0);
    fixture_close(&c);
}

/* CE-3.4-3: signal, run, steps, tools and effects of a chain have one correlation_id. */
TEST_DB(canon_correlation_is_carried_by_the_whole_chain) {
    struct fixture c;
    uuid trace = uuid_v4();
    fixture_open(&c, url);
    struct append_item received =
        fixture_fact(EVENT_SIGNAL_RECEIVED, "r1", fixture_uuid_text(uuid_v4()), 1, "{}");
    received.correlation = &trace;
    fixture_put(&c, received);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_reopen(&c); /* a later event knows it from the store */
    fixture_put(&c, fixture_item("StepStarted", "r1", "s", 1));
    fixture_put(&c, fixture_fact(EVENT_TOOL_CALLED, "r1", STR("s"), 1, "{}"));
    fixture_put(&c,
                fixture_fact(EVENT_EFFECT_REQUESTED, "r1", fixture_uuid_text(uuid_v4()), 1, "{}"));
    fixture_put(&c, fixture_item("StepCompleted", "r1", "s", 1));
    CHECK(fixture_int(&c, "SELECT COUNT(DISTINCT correlation_id) FROM orchestration_events") == 1);
    CHECK(str_eq(fixture_text(&c, "SELECT correlation_id FROM orchestration_events"),
                 fixture_uuid_text(trace)));
    CHECK(str_eq(fixture_text(&c, "SELECT correlation_id FROM runs"), fixture_uuid_text(trace)));
    CHECK(str_eq(fixture_text(&c, "SELECT correlation_id FROM steps"), fixture_uuid_text(trace)));
    fixture_close(&c);
}
