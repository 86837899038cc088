/* CANON 3.2 and 3.3: the taxonomy and the data of each type. Who emits them is the engine's
 * business and comes with it; here each is written through the ledger, as the engine will, and
 * found in CANON's table under its name, aggregate and cause. */
#include "conformance/fixture.h"

struct story {
    struct fixture c;
    uuid signal_id;
    str signal;
};

/* A signal that opens run "r1". */
static void story_open(struct story *s, str url) {
    fixture_open(&s->c, url);
    s->signal_id = uuid_v4();
    s->signal = fixture_uuid_text(s->signal_id);
    struct append_item received =
        fixture_fact(EVENT_SIGNAL_RECEIVED, "r1", s->signal, 1, "{\"source\":\"mail\"}");
    received.signal = &s->signal_id;
    fixture_put(&s->c, received);
}

static void put(struct story *s, const char *type, const char *step, int64_t attempt,
                const char *payload) {
    fixture_put(&s->c, fixture_item_with(type, "r1", step, attempt, payload));
}

static int64_t count_of(struct story *s, const char *type) {
    return fixture_int(
        &s->c,
        fixture_fmt("SELECT COUNT(*) FROM orchestration_events WHERE event_type = '%s'", type));
}

/* Exactly one event of the type, with this aggregate; its `column`. */
static str the_one(struct story *s, const char *type, const char *aggregate, const char *column) {
    CHECK(count_of(s, type) == 1, "%s", type);
    str shown = fixture_text(
        &s->c,
        fixture_fmt("SELECT aggregate_type FROM orchestration_events WHERE event_type = '%s'",
                    type));
    CHECK(text_is(shown, aggregate), "%s: %.*s", type, STR_ARG(shown));
    return fixture_text(
        &s->c,
        fixture_fmt("SELECT %s FROM orchestration_events WHERE event_type = '%s'", column, type));
}

static void check_caused_by(struct story *s, const char *type, const char *aggregate,
                            const char *cause) {
    str causation = the_one(s, type, aggregate, "causation_id");
    str id = fixture_text(
        &s->c, fixture_fmt("SELECT id FROM orchestration_events WHERE event_type = '%s'", cause));
    CHECK(id.ptr && str_eq(causation, id), "%s is caused by %.*s, not by %s", type,
          STR_ARG(causation), cause);
}

static int64_t seq_of(struct story *s, const char *type) {
    return fixture_int(
        &s->c,
        fixture_fmt("SELECT sequence_number FROM orchestration_events WHERE event_type = '%s'",
                    type));
}

/* CE-3.2-1: a signal that comes in is one SIGNAL_RECEIVED. */
TEST_DB(canon_signal_received) {
    struct story s;
    story_open(&s, url);
    CHECK(str_eq(the_one(&s, "SIGNAL_RECEIVED", "SIGNAL", "aggregate_id"), s.signal));
    struct append_result res =
        fixture_try(&s.c, fixture_fact(EVENT_SIGNAL_RECEIVED, "r1", s.signal, 1, "{}"));
    CHECK(res.code == ST_OK && res.duplicate); /* ingested twice, it is still one */
    CHECK(count_of(&s, "SIGNAL_RECEIVED") == 1);
    fixture_close(&s.c);
}

/* CE-3.2-2: picking it up is one SIGNAL_PROCESSING_STARTED, caused by SIGNAL_RECEIVED. */
TEST_DB(canon_signal_processing_started) {
    struct story s;
    story_open(&s, url);
    fixture_put(&s.c, fixture_fact(EVENT_SIGNAL_PROCESSING_STARTED, "r1", s.signal, 1, "{}"));
    check_caused_by(&s, "SIGNAL_PROCESSING_STARTED", "SIGNAL", "SIGNAL_RECEIVED");
    fixture_close(&s.c);
}

/* CE-3.2-3, CE-3.2-7: when all steps are done the run has one RUN_COMPLETED, and its signal one
 * SIGNAL_PROCESSED after it. */
TEST_DB(canon_signal_processed_after_the_run_completed) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepStarted", "s", 1, NULL);
    put(&s, "StepCompleted", "s", 1, NULL);
    struct append_item end[] = {fixture_item("RunCompleted", "r1", NULL, 1),
                                fixture_fact(EVENT_SIGNAL_PROCESSED, "r1", s.signal, 1, "{}")};
    struct append_result results[2];
    fixture_batch(&s.c, end, 2, true, results);
    CHECK(results[0].code == ST_OK && results[1].code == ST_OK);
    check_caused_by(&s, "SIGNAL_PROCESSED", "SIGNAL", "RUN_COMPLETED");
    CHECK(seq_of(&s, "SIGNAL_PROCESSED") > seq_of(&s, "RUN_COMPLETED"));
    CHECK(str_eq(the_one(&s, "RUN_COMPLETED", "RUN", "aggregate_id"),
                 fixture_text(&s.c, "SELECT id FROM runs")));
    fixture_close(&s.c);
}

/* CE-3.2-4, CE-3.2-8: a critical failure is one RUN_FAILED, and its signal ends as
 * SIGNAL_PROCESSING_FAILED after it. */
TEST_DB(canon_signal_processing_failed_after_the_run_failed) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepStarted", "s", 1, NULL);
    put(&s, "StepFailed", "s", 1, "{\"error\":\"disk full\"}");
    put(&s, "RunFailed", NULL, 1, "{\"failedStep\":\"s\"}");
    fixture_put(&s.c, fixture_fact(EVENT_SIGNAL_PROCESSING_FAILED, "r1", s.signal, 1,
                                   "{\"reason\":\"failed\"}"));
    check_caused_by(&s, "SIGNAL_PROCESSING_FAILED", "SIGNAL", "RUN_FAILED");
    check_caused_by(&s, "RUN_FAILED", "RUN", "STEP_FAILED");
    CHECK(seq_of(&s, "SIGNAL_PROCESSING_FAILED") > seq_of(&s, "RUN_FAILED"));
    fixture_close(&s.c);
}

/* CE-3.2-5: starting a run is one RUN_STARTED of the run. */
TEST_DB(canon_run_started) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    CHECK(str_eq(the_one(&s, "RUN_STARTED", "RUN", "aggregate_id"),
                 fixture_text(&s.c, "SELECT id FROM runs")));
    fixture_refused(&s.c, fixture_item("RunStarted", "r1", NULL, 2), ST_CONFLICT,
                    "INVALID_TRANSITION");
    CHECK(count_of(&s, "RUN_STARTED") == 1);
    fixture_close(&s.c);
}

/* CE-3.2-9: cancelled by a user and by the system: one RUN_CANCELLED each, with who did it. */
TEST_DB(canon_run_cancelled_names_the_actor) {
    static const char *const actors[] = {"user:ann", "system"};
    struct fixture c;
    fixture_open(&c, url);
    for (size_t i = 0; i < COUNT_OF(actors); i++) {
        fixture_put(&c, fixture_item("RunStarted", actors[i], NULL, 1));
        struct append_item cancel = fixture_item("RunCancelled", actors[i], NULL, 1);
        cancel.actor = str_c(actors[i]);
        fixture_put(&c, cancel);
    }
    str lines = fixture_lines(
        &c, "SELECT run_id||' '||actor FROM orchestration_events"
            " WHERE event_type = 'RUN_CANCELLED' AND aggregate_type = 'RUN' ORDER BY position");
    CHECK(text_is(lines, "user:ann user:ann\nsystem system\n"), "%.*s", STR_ARG(lines));
    fixture_close(&c);
}

/* CE-3.2-10, CE-3.2-11: a step is one STEP_STARTED and, when it succeeds, one STEP_COMPLETED, both
 * of the step. */
TEST_DB(canon_step_started_and_completed) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepStarted", "s", 1, NULL);
    CHECK(count_of(&s, "STEP_COMPLETED") == 0);
    put(&s, "StepCompleted", "s", 1, NULL);
    str id = fixture_text(&s.c, "SELECT id FROM steps");
    CHECK(str_eq(the_one(&s, "STEP_STARTED", "STEP", "aggregate_id"), id));
    CHECK(str_eq(the_one(&s, "STEP_COMPLETED", "STEP", "aggregate_id"), id));
    fixture_close(&s.c);
}

/* CE-3.2-12: a step that fails is one STEP_FAILED with the error in its data. */
TEST_DB(canon_step_failed_has_the_error) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepStarted", "s", 1, NULL);
    put(&s, "StepFailed", "s", 1, "{\"error\":{\"code\":\"E_DISK\"}}");
    yyjson_val *data = fixture_json(&s.c, the_one(&s, "STEP_FAILED", "STEP", "event_data"));
    yyjson_val *error = json_member(json_member(data, "payload"), "error");
    CHECK(text_is(fixture_member(error, "code"), "E_DISK"));
    CHECK(str_eq(fixture_member(data, "step_id"), fixture_text(&s.c, "SELECT id FROM steps")));
    fixture_close(&s.c);
}

/* CE-3.2-13: a step that the plan skips is one STEP_SKIPPED with the reason. */
TEST_DB(canon_step_skipped_has_the_reason) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepSkipped", "s", 1, "{\"reason\":\"runIf was false\"}");
    yyjson_val *data = fixture_json(&s.c, the_one(&s, "STEP_SKIPPED", "STEP", "event_data"));
    CHECK(text_is(fixture_member(json_member(data, "payload"), "reason"), "runIf was false"));
    CHECK(text_is(fixture_text(&s.c, "SELECT status FROM steps"), "SKIPPED"));
    fixture_close(&s.c);
}

/* CE-3.2-14: STEP_RETRIED stands between STEP_FAILED of attempt 1 and STEP_STARTED of attempt 2. */
TEST_DB(canon_step_retried_between_the_attempts) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepStarted", "s", 1, NULL);
    put(&s, "StepFailed", "s", 1, NULL);
    put(&s, "StepRetried", "s", 1, NULL);
    CHECK(text_is(fixture_text(&s.c, "SELECT status FROM steps"),
                  "FAILED")); /* it records, and changes no state */
    put(&s, "StepStarted", "s", 2, NULL);
    str lines = fixture_lines(&s.c, "SELECT event_type FROM orchestration_events WHERE "
                                    "aggregate_type = 'STEP' ORDER BY position");
    CHECK(text_is(lines, "STEP_STARTED\nSTEP_FAILED\nSTEP_RETRIED\nSTEP_STARTED\n"), "%.*s",
          STR_ARG(lines));
    CHECK(fixture_int(&s.c, "SELECT retry_count FROM steps") == 1);
    check_caused_by(&s, "STEP_RETRIED", "STEP", "STEP_FAILED");
    fixture_close(&s.c);
}

/* CE-3.2-21, CE-3.2-22: a tool call that works: one TOOL_CALLED, and one TOOL_COMPLETED caused by
 * it, of the step. */
TEST_DB(canon_tool_completed) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepStarted", "s", 1, NULL);
    fixture_put(&s.c, fixture_fact(EVENT_TOOL_CALLED, "r1", STR("s"), 1,
                                   "{\"call_id\":\"c1\",\"tool\":\"search\"}"));
    check_caused_by(&s, "TOOL_CALLED", "STEP", "STEP_STARTED");
    fixture_put(&s.c, fixture_fact(EVENT_TOOL_COMPLETED, "r1", STR("s"), 1,
                                   "{\"call_id\":\"c1\",\"hits\":3}"));
    check_caused_by(&s, "TOOL_COMPLETED", "STEP", "TOOL_CALLED");
    yyjson_val *data = fixture_json(&s.c, the_one(&s, "TOOL_COMPLETED", "STEP", "event_data"));
    CHECK(text_is(fixture_member(data, "call_id"), "c1"));
    fixture_close(&s.c);
}

/* CE-3.2-23: a tool call that fails: one TOOL_FAILED caused by TOOL_CALLED. */
TEST_DB(canon_tool_failed) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepStarted", "s", 1, NULL);
    fixture_put(&s.c, fixture_fact(EVENT_TOOL_CALLED, "r1", STR("s"), 1, "{\"call_id\":\"c1\"}"));
    fixture_put(&s.c, fixture_fact(EVENT_TOOL_FAILED, "r1", STR("s"), 1,
                                   "{\"call_id\":\"c1\",\"error\":\"timeout\"}"));
    check_caused_by(&s, "TOOL_FAILED", "STEP", "TOOL_CALLED");
    fixture_close(&s.c);
}

/* ---- 3.3: data ---- */

static int64_t int_member(yyjson_val *data, const char *name) {
    int64_t n = INT64_MIN;
    CHECK(json_int(json_member(data, name), &n), "member \"%s\" is not an integer", name);
    return n;
}

/* CE-3.3-1: RUN_STARTED has run_id, signal_id, run_type, orchestrator_version, all strings. */
TEST_DB(canon_run_started_data) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, "{\"runType\":\"BATCH\",\"orchestratorVersion\":\"v1.2.3\"}");
    yyjson_val *data = fixture_json(&s.c, the_one(&s, "RUN_STARTED", "RUN", "event_data"));
    CHECK(yyjson_obj_size(data) == 4);
    CHECK(str_eq(fixture_member(data, "run_id"), fixture_text(&s.c, "SELECT id FROM runs")));
    CHECK(str_eq(fixture_member(data, "signal_id"), s.signal));
    CHECK(text_is(fixture_member(data, "run_type"), "BATCH"));
    CHECK(text_is(fixture_member(data, "orchestrator_version"), "v1.2.3"));
    fixture_close(&s.c);
}

/* CE-3.3-1: the four are strings also when the producer said nothing, or something else. */
TEST_DB(canon_run_started_data_is_never_missing) {
    static const char *const payloads[] = {NULL, "{}",
                                           "{\"runType\":7,\"orchestratorVersion\":null}",
                                           "{\"runType\":{\"a\":1},\"orchestratorVersion\":[1]}"};
    struct fixture c;
    uuid id;
    fixture_open(&c, url);
    for (size_t i = 0; i < COUNT_OF(payloads); i++) {
        const char *run = fixture_fmt("r%zu", i);
        fixture_put(&c, fixture_item_with("RunStarted", run, NULL, 1, payloads[i]));
        str text = fixture_text(
            &c,
            fixture_fmt("SELECT event_data FROM orchestration_events WHERE run_id = '%s'", run));
        yyjson_val *data = fixture_json(&c, text);
        CHECK(yyjson_obj_size(data) == 4, "%.*s", STR_ARG(text));
        CHECK(uuid_parse(fixture_member(data, "run_id"), &id) &&
              uuid_parse(fixture_member(data, "signal_id"), &id));
        CHECK(fixture_member(data, "run_type").len > 0 &&
              fixture_member(data, "orchestrator_version").len > 0);
    }
    fixture_close(&c);
}

/* CE-3.3-2: STEP_COMPLETED has step_id, run_id, step_index, step_type, output_result, duration_ms.
 */
TEST_DB(canon_step_completed_data) {
    struct story s;
    story_open(&s, url);
    put(&s, "RunStarted", NULL, 1, NULL);
    put(&s, "StepSkipped", "first", 1, NULL);
    put(&s, "StepStarted", "second", 1, NULL);
    s.c.now_us += INT64_C(1523000);
    put(&s, "StepCompleted", "second", 1,
        "{\"stepType\":\"SPECIALIST_CALL\",\"output\":{\"rows\":5}}");
    yyjson_val *data = fixture_json(&s.c, the_one(&s, "STEP_COMPLETED", "STEP", "event_data"));
    CHECK(yyjson_obj_size(data) == 6);
    CHECK(str_eq(fixture_member(data, "step_id"),
                 fixture_text(&s.c, "SELECT id FROM steps WHERE step_id = 'second'")));
    CHECK(str_eq(fixture_member(data, "run_id"), fixture_text(&s.c, "SELECT id FROM runs")));
    CHECK(int_member(data, "step_index") ==
          1); /* counted from 0, in the order of their first events */
    CHECK(text_is(fixture_member(data, "step_type"), "SPECIALIST_CALL"));
    CHECK(int_member(json_member(data, "output_result"), "rows") == 5);
    CHECK(int_member(data, "duration_ms") == 1523);
    fixture_close(&s.c);
}

/* CE-3.3-2: output_result is an object and the numbers are integers, whatever the payload is; time
 * never runs backwards. */
TEST_DB(canon_step_completed_data_is_never_missing) {
    static const char *const payloads[] = {NULL, "{}", "{\"output\":5}", "{\"output\":[1]}",
                                           "{\"output\":null,\"stepType\":3}"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    for (size_t i = 0; i < COUNT_OF(payloads); i++) {
        const char *step = fixture_fmt("s%zu", i);
        if (i != 1) fixture_put(&c, fixture_item("StepStarted", "r1", step, 1));
        fixture_put(&c, fixture_item_with("StepCompleted", "r1", step, 1, payloads[i]));
        c.now_us += 1000;
        if (i == 1)
            fixture_put(&c, fixture_item("StepStarted", "r1", step,
                                         1)); /* too late: recorded, not applied */
    }
    str lines = fixture_lines(&c, "SELECT event_data FROM orchestration_events WHERE event_type = "
                                  "'STEP_COMPLETED' ORDER BY position");
    for (size_t i = 0; i < COUNT_OF(payloads); i++) {
        str line;
        CHECK(str_split(lines, '\n', &line, &lines));
        yyjson_val *data = fixture_json(&c, line);
        CHECK(yyjson_obj_size(data) == 6 && yyjson_is_obj(json_member(data, "output_result")),
              "%.*s", STR_ARG(line));
        CHECK(int_member(data, "step_index") == (int64_t)i && int_member(data, "duration_ms") == 0,
              "%.*s", STR_ARG(line));
        CHECK(fixture_member(data, "step_type").len > 0);
    }
    fixture_close(&c);
}
