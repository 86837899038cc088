/* CANON 3.4: an event and the state it changes are one transaction. */
#include "conformance/canon_helper.h"

/* What is stored, as a reader sees it: each count is 0 or 1, and they are the same. */
static void check_both_or_neither(struct canon *reader, const char *run, bool must_be_there) {
    int64_t events = canon_int(
        reader, canon_fmt("SELECT COUNT(*) FROM orchestration_events WHERE run_id = '%s' AND"
                          " event_type = 'STEP_COMPLETED'",
                          run));
    int64_t states = canon_int(
        reader,
        canon_fmt("SELECT COUNT(*) FROM steps WHERE run_id = '%s' AND status = 'COMPLETED'", run));
    int64_t steps =
        canon_int(reader, canon_fmt("SELECT total_steps FROM runs WHERE run_id = '%s'", run));
    CHECK(events == states && events == steps, "%s: %lld events, %lld steps, %lld counted", run,
          (long long)events, (long long)states, (long long)steps);
    CHECK(!must_be_there || events == 1, "%s", run);
}

/* Completes a step while call `n` of the database fails; false when the append passed. */
static bool complete_with_fault(struct canon *reader, int64_t n, bool after, bool cold) {
    struct canon c;
    struct error err = {0};
    struct append_result res;
    const char *run =
        canon_fmt("r%lld%s%s", (long long)n, after ? "after" : "before", cold ? "cold" : "warm");
    canon_open_faulty(&c, reader->url, LEDGER_REJECT);
    canon_put(&c, canon_event("RunStarted", run, NULL, 1));
    canon_put(&c, canon_event("StepStarted", run, "s", 1));
    if (cold) {
        canon_close(&c);
        canon_open_faulty(&c, reader->url, LEDGER_REJECT);
    }
    struct append_item item = canon_event_with("StepCompleted", run, "s", 1, "{\"output\":{}}");
    canon_fail_at(&c, n, after);
    status st = canon_append(&c, &item, &res, &err);
    CHECK(st == ST_OK || st == ST_RETRY, "call %lld: %s", (long long)n, err.msg);
    bool failed = st != ST_OK;
    canon_close(&c);
    check_both_or_neither(reader, run, !failed);
    return failed;
}

static void open_both(struct canon *reader, str url) {
    struct canon c;
    canon_open(&c, url); /* makes the ledger */
    canon_close(&c);
    canon_open_reader(reader, url);
}

/* CE-3.4-1: whichever call of the database fails, before or after its work, the event and its state
 * are both there or both not. */
TEST_DB(canon_event_and_state_commit_together) {
    static const struct {
        bool after, cold;
    } kinds[] = {{false, false}, {true, false}, {false, true}, {true, true}};
    struct canon reader;
    open_both(&reader, url);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        int64_t n = 0;
        while (complete_with_fault(&reader, n, kinds[i].after, kinds[i].cold))
            n++;
        CHECK(n >= 4, "only %lld calls", (long long)n); /* begin, insert, update, commit at least */
    }
    canon_clean(&reader);
    canon_close(&reader);
}

/* Saves a checkpoint while call `n` of the database fails; false when it passed. */
static bool checkpoint_with_fault(struct canon *reader, int64_t n, bool after) {
    struct canon c;
    struct append_result res;
    struct error err = {0};
    const char *run = canon_fmt("r%lld%s", (long long)n, after ? "after" : "before");
    canon_open_faulty(&c, reader->url, LEDGER_REJECT);
    canon_put(&c, canon_event("RunStarted", run, NULL, 1));
    canon_fail_at(&c, n, after);
    bool failed = ledger_checkpoint(c.ledger, str_c(run), &res, &c.arena, &err) != ST_OK;
    canon_close(&c);
    int64_t rows = canon_int(
        reader, canon_fmt("SELECT COUNT(*) FROM run_checkpoints WHERE run_id = '%s'", run));
    int64_t events = canon_int(
        reader, canon_fmt("SELECT COUNT(*) FROM orchestration_events WHERE run_id = '%s' AND"
                          " event_type = 'RUN_CHECKPOINT_CREATED'",
                          run));
    CHECK(rows == events, "call %lld: %lld rows, %lld events", (long long)n, (long long)rows,
          (long long)events);
    CHECK(failed || rows == 1, "call %lld", (long long)n);
    return failed;
}

/* CE-3.2-6: a checkpoint is one RUN_CHECKPOINT_CREATED in the transaction of its row. */
TEST_DB(canon_checkpoint_and_event_commit_together) {
    struct canon reader;
    open_both(&reader, url);
    for (int after = 0; after < 2; after++) {
        int64_t n = 0;
        while (checkpoint_with_fault(&reader, n, after))
            n++;
        CHECK(n >= 6, "only %lld calls", (long long)n);
    }
    canon_clean(&reader);
    canon_close(&reader);
}

/* CE-3.4-2, CE-3.4-4: completing a step gives the steps row its status COMPLETED, its output and
 * the event's own time. */
TEST_DB(canon_completed_step_row) {
    struct canon c;
    canon_open(&c, url);
    canon_put(&c, canon_event("RunStarted", "r1", NULL, 1));
    canon_put(&c, canon_event("StepStarted", "r1", "s", 1));
    CHECK(canon_str_is(canon_text(&c, "SELECT status FROM steps"), "RUNNING"));
    CHECK(canon_int(
              &c,
              "SELECT COUNT(*) FROM steps WHERE completed_at IS NULL AND output_result IS NULL") ==
          1);
    c.now_us += 777777;
    canon_put(&c, canon_event_with("StepCompleted", "r1", "s", 1, "{\"output\":{\"rows\":5}}"));
    CHECK(canon_str_is(
        canon_text(
            &c,
            "SELECT aggregate_type FROM orchestration_events WHERE event_type = 'STEP_COMPLETED'"),
        "STEP"));
    CHECK(canon_str_is(canon_text(&c, "SELECT status FROM steps"), "COMPLETED"));
    CHECK(canon_str_is(canon_text(&c, "SELECT output_result FROM steps"), "{\"rows\":5}"));
    str when = canon_text(&c, "SELECT completed_at FROM steps");
    CHECK(canon_str_is(when, "2026-01-04T12:00:00.777777Z"), "%.*s", STR_ARG(when));
    CHECK(str_eq(
        when,
        canon_text(
            &c,
            "SELECT occurred_at FROM orchestration_events WHERE event_type = 'STEP_COMPLETED'")));
    canon_close(&c);
}

/* CE-3.4-2: the same for every time that a row shows. */
TEST_DB(canon_times_of_rows_are_times_of_events) {
    struct canon c;
    canon_open(&c, url);
    canon_random_workload(&c, "r", 12, canon_scaled(600, 100), 5);
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
    CHECK(canon_int(&c, run_at) == 0 && canon_int(&c, run_end) == 0 &&
          canon_int(&c, step_end) == 0);
    CHECK(canon_int(&c, "SELECT COUNT(*) FROM runs WHERE started_at IS NOT NULL") > 0);
    CHECK(canon_int(&c, "SELECT COUNT(*) FROM steps WHERE completed_at IS NOT NULL") > 0);
    canon_close(&c);
}

/* CE-3.4-3: signal, run, steps, tools and effects of a chain have one correlation_id. */
TEST_DB(canon_correlation_is_carried_by_the_whole_chain) {
    struct canon c;
    uuid trace = uuid_v4();
    canon_open(&c, url);
    struct append_item received =
        canon_fact(EVENT_SIGNAL_RECEIVED, "r1", canon_uuid_text(uuid_v4()), 1, "{}");
    received.correlation = &trace;
    canon_put(&c, received);
    canon_put(&c, canon_event("RunStarted", "r1", NULL, 1));
    canon_reopen(&c); /* a later event knows it from the store */
    canon_put(&c, canon_event("StepStarted", "r1", "s", 1));
    canon_put(&c, canon_fact(EVENT_TOOL_CALLED, "r1", STR("s"), 1, "{}"));
    canon_put(&c, canon_fact(EVENT_EFFECT_REQUESTED, "r1", canon_uuid_text(uuid_v4()), 1, "{}"));
    canon_put(&c, canon_event("StepCompleted", "r1", "s", 1));
    CHECK(canon_int(&c, "SELECT COUNT(DISTINCT correlation_id) FROM orchestration_events") == 1);
    CHECK(str_eq(canon_text(&c, "SELECT correlation_id FROM orchestration_events"),
                 canon_uuid_text(trace)));
    CHECK(str_eq(canon_text(&c, "SELECT correlation_id FROM runs"), canon_uuid_text(trace)));
    CHECK(str_eq(canon_text(&c, "SELECT correlation_id FROM steps"), canon_uuid_text(trace)));
    canon_close(&c);
}
