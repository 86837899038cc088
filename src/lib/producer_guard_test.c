/* lib/producer_guard_test.c: layer 1: what a producer does not send, what it says about that,
 * and how it keeps up with others. */
#include "base/json.h"
#include "base/limits.h"
#include "lib/producer.h"
#include "lib/producer_stage_test.h"
#include "ledger/writer.h"
#include "test.h"

/* ---- layer 1 ---- */

/* RE-5.3.1-1 */
TEST_DB(producer_asks_the_guard_first) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    struct append_item item = stage_item("run", "StepCompleted", "a", 1);
    stage_emit(&s, "run", "RunStarted", NULL);
    stage_refuse(&s, "run", "StepCompleted", "a", 1); /* a is PENDING */
    CHECK(strstr(test_err.msg, "PENDING") != NULL &&
              strstr(test_err.msg, "expected RUNNING") != NULL,
          "%s", test_err.msg);
    stage_id_of(s.registry, &item, true); /* nor had it taken an id */
    stage_close(&s);
}

/* RE-5.3.1-2: a fault would complete a step twice: the answer is lost, the producer restarts, and
 * completes it again as the same event, as another attempt, and under another plan version (another
 * key for the same transition). */
TEST_DB(producer_never_completes_a_step_twice) {
    struct stage s;
    struct append_result result = {0};
    stage_open(&s, url, stage_ids_url(url));
    stage_emit(&s, "run", "RunStarted", NULL);
    stage_emit(&s, "run", "StepStarted", "a");
    s.authority.failures = 1;
    s.authority.after = true;
    CHECK(stage_try(&s, "run", "StepCompleted", "a", 1, &result) == ST_RETRY);
    stage_restart(&s);
    OK(stage_try(&s, "run", "StepCompleted", "a", 1, &result));
    CHECK(result.duplicate);
    stage_refuse(&s, "run", "StepCompleted", "a", 2);
    stage_restart(&s);
    struct append_item item = stage_item("run", "StepCompleted", "a", 1);
    item.event.plan_version = STR("8");
    REFUSED(producer_emit(s.producer, &item, &result, &test_err), "INVALID_TRANSITION_DETECTED");
    CHECK(stage_count(&s, "run", "StepCompleted") == 1 && stage_records(&s, "run").count == 3);
    stage_close(&s);
}

/* RE-5.3.1-3: step a stops, with an error each time; step b goes on. */
TEST_DB(producer_halts_the_step_alone) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    stage_emit(&s, "run", "RunStarted", NULL);
    stage_emit(&s, "run", "StepStarted", "a");
    stage_emit(&s, "run", "StepStarted", "b");
    size_t before = stage_records(&s, "run").count;
    stage_refuse(&s, "run", "StepSkipped", "a", 1);
    static const char *const more[] = {"StepCompleted", "StepFailed", "StepStarted", "StepSkipped",
                                       "NoteTaken"};
    for (size_t i = 0; i < COUNT_OF(more); i++)
        stage_refuse(&s, "run", more[i], "a", 1); /* legal or not, sent before or not */
    CHECK(stage_records(&s, "run").count == before);
    stage_emit(&s, "run", "StepCompleted", "b");
    stage_emit(&s, "run", "StepStarted", "c");
    stage_emit(&s, "other", "RunStarted", NULL);
    stage_emit(&s, "other", "StepStarted", "a"); /* a step of the same name elsewhere */
    stage_close(&s);
}

TEST_DB(producer_halts_the_run) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    stage_emit(&s, "run", "RunStarted", NULL);
    stage_emit(&s, "run", "StepStarted", "a");
    stage_refuse(&s, "run", "RunCompleted", NULL, 1); /* a step is open */
    CHECK(strstr(test_err.msg, "a step is RUNNING") != NULL, "%s", test_err.msg);
    stage_refuse(&s, "run", "StepCompleted", "a", 1);
    stage_refuse(&s, "run", "RunPaused", NULL, 1);
    stage_emit(&s, "other", "RunStarted", NULL);
    /* A step that is early halts itself, not its run: a start that races a pause must not end the
     * run. */
    stage_refuse(&s, "new", "StepStarted", "a", 1);
    stage_emit(&s, "new", "RunStarted", NULL);
    stage_refuse(&s, "new", "StepStarted", "a", 1);
    stage_emit(&s, "new", "StepStarted", "b");
    stage_close(&s);
}

static yyjson_val *payload_of(struct stage *s, const char *run_id, const char *type) {
    struct event_page page = stage_records(s, run_id);
    for (size_t i = 0; i < page.count; i++) {
        if (!str_eq(page.records[i].event.type_name, str_c(type))) continue;
        yyjson_val *root = NULL;
        OK(json_parse(page.records[i].event.payload, (struct json_limits){65536, 8}, &s->arena,
                      &root, &test_err));
        return root;
    }
    CHECK(false, "there is no %s in %s", type, run_id);
    return NULL;
}

static void check_payload(yyjson_val *payload, const char *expected, const char *actual,
                          const char *attempted) {
    const struct {
        const char *name, *value;
    } members[] = {
        {"expectedState", expected}, {"actualState", actual}, {"attemptedEventType", attempted}};
    CHECK(yyjson_is_true(json_member(payload, "invalidTransitionDetected")));
    CHECK(yyjson_obj_size(payload) == 4);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        str value = STR_NONE;
        CHECK(json_str(json_member(payload, members[i].name), &value), "%s", members[i].name);
        CHECK(str_eq(value, str_c(members[i].value)), "%s is %.*s", members[i].name,
              STR_ARG(value));
    }
}

/* RE-5.3.1-4, RE-5.3.1-8: RunFailed while the run is RUNNING; nothing when it is COMPLETED. */
TEST_DB(producer_reports_with_run_failed) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    stage_emit(&s, "running", "RunStarted", NULL);
    stage_refuse(&s, "running", "RunResumed", NULL, 1);
    CHECK(stage_report(&s, "running", "RunResumed", NULL, 1));
    check_payload(payload_of(&s, "running", "RunFailed"), "PAUSED", "RUNNING", "RunResumed");
    const struct run *run = NULL;
    OK(producer_state(s.producer, STR("running"), &run, &test_err));
    CHECK(run->head.status == RUN_FAILED && !run->head.inconsistent);

    stage_emit_all(&s, "completed");
    stage_refuse(&s, "completed", "RunPaused", NULL, 1);
    CHECK(!stage_report(&s, "completed", "RunPaused", NULL, 1));
    stage_refuse(&s, "new", "RunPaused", NULL, 1);
    CHECK(!stage_report(&s, "new", "RunPaused", NULL, 1)); /* nor for one that never began */
    CHECK(stage_count(&s, "completed", "RunFailed") == 0 && stage_records(&s, "new").count == 0);
    stage_close(&s);
}

/* RE-5.3.1-6, RE-5.3.1-8: StepFailed for a step that is RUNNING, once. */
TEST_DB(producer_reports_with_step_failed) {
    struct stage s;
    struct append_result result = {0};
    stage_open(&s, url, stage_ids_url(url));
    stage_emit(&s, "run", "RunStarted", NULL);
    stage_emit(&s, "run", "StepStarted", "a");
    stage_emit(&s, "run", "StepFailed", "a");
    OK(stage_try(&s, "run", "StepStarted", "a", 2, &result));
    stage_refuse(&s, "run", "StepStarted", "a", 3);
    struct append_item item = stage_item("run", "StepStarted", "a", 3);
    bool emitted = false;
    s.authority.failures = 1;
    s.authority.after = true;
    CHECK(producer_report_invalid(s.producer, &item, &result, &emitted, &test_err) == ST_RETRY &&
          !emitted);
    CHECK(stage_report(&s, "run", "StepStarted", "a",
                       3)); /* the answer was lost: the same event again, not a RunFailed */
    CHECK(stage_report(&s, "run", "StepStarted", "a", 3));
    struct event_page page = stage_records(&s, "run");
    CHECK(page.count == 5 && page.records[4].event.type == EVENT_STEP_FAILED);
    CHECK(page.records[4].event.logical_attempt == 2);
    yyjson_val *payload = NULL;
    OK(json_parse(page.records[4].event.payload, (struct json_limits){65536, 8}, &s.arena, &payload,
                  &test_err));
    check_payload(payload, "PENDING", "PENDING", "StepStarted");
    stage_close(&s);
}

/* RE-5.3.1-7: in no other state is StepFailed emitted for it. */
TEST_DB(producer_fails_only_running_steps) {
    static const struct {
        const char *name;
        const char *events[3];
        const char *bad;
        const char *actual;
    } cases[] = {{"PENDING", {NULL}, "StepCompleted", "PENDING"},
                 {"SUCCESS", {"StepStarted", "StepCompleted", NULL}, "StepSkipped", "SUCCESS"},
                 {"FAILED", {"StepStarted", "StepFailed", NULL}, "StepCompleted", "FAILED"},
                 {"SKIPPED", {"StepSkipped", NULL}, "StepCompleted", "SKIPPED"}};
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *run_id = cases[i].name;
        stage_emit(&s, run_id, "RunStarted", NULL);
        for (size_t k = 0; k < 3 && cases[i].events[k]; k++)
            stage_emit(&s, run_id, cases[i].events[k], "a");
        size_t before = stage_count(&s, run_id, "StepFailed");
        stage_refuse(&s, run_id, cases[i].bad, "a", 1);
        CHECK(stage_report(&s, run_id, cases[i].bad, "a", 1)); /* a RunFailed: the run is RUNNING */
        CHECK(stage_count(&s, run_id, "StepFailed") == before, "%s", run_id);
        str actual = STR_NONE;
        CHECK(json_str(json_member(payload_of(&s, run_id, "RunFailed"), "actualState"), &actual));
        CHECK(str_eq(actual, str_c(cases[i].actual)), "%s: %.*s", run_id, STR_ARG(actual));
    }
    stage_close(&s);
}

/* RE-5.3.1-5: the guard refuses, and the run's state cannot be read: not one more event of the run,
 * not even a report. */
TEST_DB(producer_emits_nothing_when_the_state_is_unknown) {
    static const struct {
        const char *type, *step_id;
    } more[] = {{"StepCompleted", "b"},
                {"StepStarted", "b"},
                {"StepStarted", "a"},
                {"RunFailed", NULL},
                {"RunStarted", NULL}};
    struct stage s;
    struct append_result result = {0};
    bool emitted = false;
    stage_open(&s, url, stage_ids_url(url));
    stage_emit(&s, "run", "RunStarted", NULL);
    stage_emit(&s, "run", "StepStarted", "a");
    int calls = s.authority.calls;
    s.loader.broken = true;
    struct append_item item = stage_item("run", "StepCompleted", "b", 1);
    for (size_t i = 0; i < COUNT_OF(more); i++) {
        CHECK(stage_try(&s, "run", more[i].type, more[i].step_id, 1, &result) == ST_RETRY, "%s",
              test_err.msg);
        CHECK(strstr(test_err.msg, "the state of run \"run\" is unknown") != NULL, "%s",
              test_err.msg);
        CHECK(producer_report_invalid(s.producer, &item, &result, &emitted, &test_err) ==
                  ST_RETRY &&
              !emitted);
    }
    CHECK(stage_try(&s, "never read", "RunStarted", NULL, 1, &result) == ST_RETRY);
    CHECK(s.authority.calls == calls && stage_records(&s, "run").count == 2);
    s.loader.broken = false; /* known again, and still refused */
    stage_refuse(&s, "run", "StepCompleted", "b", 1);
    stage_emit(&s, "run", "StepCompleted", "a");
    stage_close(&s);
}

TEST_DB(producer_reports_only_what_was_refused) {
    struct stage s;
    struct append_result result = {0};
    bool emitted = true;
    stage_open(&s, url, STR_NONE);
    stage_emit(&s, "run", "RunStarted", NULL);
    struct append_item item = stage_item("run", "RunResumed", NULL, 1);
    CHECK(producer_report_invalid(s.producer, &item, &result, &emitted, &test_err) ==
              ST_NOT_FOUND &&
          !emitted);
    CHECK(stage_records(&s, "run").count == 1);
    stage_close(&s);
}

/* ---- several producers of one run ---- */

/* RE-1.1-1: the engine and a worker, each with its own registry, through the same door into the
 * same ledger. */
TEST_DB(producer_engine_and_worker_share_a_ledger) {
    struct writer *writer = NULL;
    struct ledger *reader = NULL;
    struct registry *registries[2] = {0};
    struct producer *producers[2] = {0}; /* engine, worker */
    static const str actors[2] = {STR_LIT("engine"), STR_LIT("worker")};
    struct append_result result = {0};
    OK(writer_open(stage_ledger(url), NULL, &writer, &test_err));
    OK(ledger_open_reader(url, &reader, &test_err));
    for (int i = 0; i < 2; i++) {
        OK(registry_open(stage_ids_url(url), &registries[i], &test_err));
        struct producer_options options = {.registry = registries[i],
                                           .append = producer_append_writer,
                                           .append_context = writer,
                                           .load = producer_load_ledger,
                                           .load_context = reader};
        OK(producer_open(&options, &producers[i], &test_err));
    }
    static const struct {
        int who;
        const char *type, *step_id;
    } steps[] = {{0, "RunStarted", NULL},   {0, "StepStarted", "a"},
                 {1, "StepCompleted", "a"}, /* which the engine must come to know */
                 {0, "StepStarted", "b"},   {1, "StepFailed", "b"},
                 {0, "RunFailed", NULL}};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct append_item item = stage_item("run", steps[i].type, steps[i].step_id, 1);
        item.actor = actors[steps[i].who];
        OK(producer_emit(producers[steps[i].who], &item, &result, &test_err));
        CHECK(result.run_seq == (int64_t)i + 1);
    }
    struct append_item bad = stage_item("run", "StepStarted", NULL, 1);
    for (int i = 0; i < 2; i++) { /* one validator */
        CHECK(producer_emit(producers[i], &bad, &result, &test_err) == ST_INVALID);
        CHECK(test_err.reason == REASON_STEP_ID_REQUIRED && strcmp(test_err.where, "/stepId") == 0);
    }
    struct arena arena;
    struct event_page page = {0};
    arena_init(&arena, 4096, (size_t)1 << 20);
    OK(ledger_read_run(reader, STR("run"), 0, 100, &arena, &page, &test_err));
    CHECK(page.count == COUNT_OF(steps));
    for (size_t i = 0; i < page.count; i++)
        CHECK(str_eq(page.records[i].actor, actors[steps[i].who]), "record %zu", i);
    arena_release(&arena);
    for (int i = 0; i < 2; i++) {
        producer_close(producers[i]);
        registry_close(registries[i]);
    }
    ledger_close(reader);
    writer_close(writer);
}

/* Two restartable workers emit the same thing: one record, one id for both. */
TEST_DB(producers_agree_on_one_record) {
    struct stage s;
    struct registry *other_ids = NULL;
    struct append_result result = {0};
    stage_open(&s, url, stage_ids_url(url));
    OK(registry_open_memory(&other_ids, &test_err));
    struct producer *other = stage_producer(&s, other_ids);
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    const struct run *run = NULL;
    OK(producer_state(other, STR("run"), &run, &test_err)); /* new */
    uuid first = stage_emit(&s, "run", "RunStarted", NULL).event_id;
    OK(producer_emit(other, &item, &result, &test_err));
    CHECK(result.duplicate && uuid_eq(result.event_id, first));
    OK(producer_state(other, STR("run"), &run, &test_err));
    CHECK(run->head.status == RUN_RUNNING && run->head.run_seq == 1);
    producer_close(other);
    registry_close(other_ids);
    stage_close(&s);
}

/* What others have appended in between is read before the next use, whether or not the guard would
 * ask. */
TEST_DB(producers_keep_up_with_each_other) {
    struct stage s;
    struct append_result result = {0};
    const struct run *run = NULL;
    stage_open(&s, url, stage_ids_url(url));
    struct producer *other = stage_producer(&s, s.registry);
    stage_emit(&s, "run", "RunStarted", NULL);
    struct append_item items[] = {stage_item("run", "StepStarted", "x", 1),
                                  stage_item("run", "StepFailed", "x", 1)};
    for (size_t i = 0; i < COUNT_OF(items); i++)
        OK(producer_emit(other, &items[i], &result, &test_err));
    stage_emit(&s, "run", "StepStarted", "y"); /* legal either way */
    OK(producer_state(s.producer, STR("run"), &run, &test_err));
    CHECK(run->head.run_seq == 4 && run->head.bad_steps == 1 && run->head.open_steps == 1);
    producer_close(other);
    stage_close(&s);
}

/* The Append Authority knew better: its refusal is passed on, and the state read again. */
TEST_DB(producer_learns_from_a_rejection) {
    struct stage s;
    struct append_result result = {0};
    const struct run *run = NULL;
    stage_open(&s, url, stage_ids_url(url));
    ledger_close(s.ledger);
    OK(ledger_open(url, NULL, &s.ledger, &test_err)); /* LEDGER_REJECT */
    s.authority.ledger = s.loader.ledger = s.ledger;
    struct producer *other = stage_producer(&s, s.registry);
    stage_emit(&s, "run", "RunStarted", NULL);
    struct append_item paused = stage_item("run", "RunPaused", NULL, 1);
    OK(producer_emit(other, &paused, &result, &test_err));
    REFUSED(stage_try(&s, "run", "RunPaused", NULL, 2, &result), "INVALID_TRANSITION");
    OK(producer_state(s.producer, STR("run"), &run, &test_err));
    CHECK(run->head.status == RUN_PAUSED && run->head.pauses == 1);
    stage_emit(&s, "run", "RunResumed", NULL);
    CHECK(stage_records(&s, "run").count == 3);
    producer_close(other);
    stage_close(&s);
}
