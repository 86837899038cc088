/* CANON 3.3: the data of each type, whatever a producer sent. (Who emits the types of 3.2 is shown in
 * canon_emitted.c, by runs that an engine carries out.) */
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
