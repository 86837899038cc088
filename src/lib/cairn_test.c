/* lib/cairn_test.c: the public interface, as a program sees it, on both databases. */
#include "cairn.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "db/db.h"
#include "test.h"

static cairn_error err;

#define OK(call) check_ok((call), __LINE__)
static void check_ok(cairn_status st, int line) {
    test_checks++;
    if (st != CAIRN_OK) {
        test_fail(__FILE__, line, "OK", "%s: %s", cairn_status_name(st), err.message);
    }
}

#define FAILS(want, reason, call)                                                                  \
    (err = (cairn_error){0}, check_fails((call), (want), (reason), __LINE__))
static void check_fails(cairn_status st, cairn_status want, const char *reason, int line) {
    test_checks++;
    if (st == want && err.code == want && err.message[0] != 0 && strcmp(err.reason, reason) == 0)
        return;
    test_fail(__FILE__, line, "FAILS", "%s, %s: %s", cairn_status_name(st), err.reason,
              err.message);
}

static cairn_store *open_store(str url) {
    cairn_store *store = NULL;
    OK(cairn_open(url.ptr, NULL, &store, &err)); /* a test's url ends in NUL */
    return store;
}

static cairn_event event_of(const char *run_id, const char *type, const char *step_id) {
    return (cairn_event){.event_type = type,
                         .run_id = run_id,
                         .tenant_id = "acme",
                         .project_id = "shop",
                         .environment_id = "prod",
                         .plan_id = "orders",
                         .plan_version = "7",
                         .step_id = step_id,
                         .logical_attempt_id = 1};
}

static cairn_result append(cairn_store *store, const char *run_id, const char *type,
                           const char *step_id) {
    cairn_event event = event_of(run_id, type, step_id);
    cairn_result result = {0};
    OK(cairn_append(store, &event, &result, &err));
    CHECK(result.code == CAIRN_OK && strlen(result.event_id) == 36 &&
          strlen(result.persisted_at) == 27);
    return result;
}

/* What a reading callback saw. */
struct seen {
    size_t count, stop_at;
    int64_t last;
    char types[512];
    cairn_store *store; /* to be used inside the callback */
};

static bool see(void *context, const cairn_record *record) {
    struct seen *seen = context;
    CHECK(record->sequence_number > seen->last && record->json[record->json_length] == 0);
    CHECK(strlen(record->json) == record->json_length &&
          strstr(record->json, record->event.event_id) != NULL);
    seen->last = record->sequence_number;
    size_t used = strlen(seen->types);
    snprintf(seen->types + used, sizeof(seen->types) - used, "%s ", record->event.event_type);
    if (seen->store) {
        cairn_run run;
        OK(cairn_find_run(seen->store, record->event.run_id, &run, &err));
    }
    return ++seen->count != seen->stop_at;
}

/* ---- versions ---- */

TEST(cairn_versions) {
    CHECK(strcmp(cairn_version(), CAIRN_VERSION) == 0 && strcmp(CAIRN_VERSION, "0.1.0") == 0);
    CHECK(strcmp(cairn_run_events_version(), "2.0.1") == 0);
    CHECK(strcmp(cairn_status_name(CAIRN_NOT_FOUND), "not found") == 0);
}

/* ---- opening ---- */

TEST_DB(cairn_open_says_what_is_wrong) {
    static char long_url[2000];
    cairn_store *store = NULL;
    memset(long_url, 'x', sizeof(long_url) - 1);
    FAILS(CAIRN_INVALID, "", cairn_open("", NULL, &store, &err));
    FAILS(CAIRN_INVALID, "", cairn_open(NULL, NULL, &store, &err));
    FAILS(CAIRN_LIMIT, "", cairn_open(long_url, NULL, &store, &err));
    FAILS(CAIRN_NOT_FOUND, "",
          cairn_open(url.ptr, &(cairn_options){.read_only = true}, &store, &err));
    CHECK(cairn_open("/no/such/folder/x.db", NULL, &store, NULL) != CAIRN_OK && store == NULL);
    cairn_close(NULL);
}

TEST_DB(cairn_store_read_only) {
    cairn_store *store = open_store(url);
    cairn_store *reader = NULL;
    append(store, "run", "RunStarted", NULL);
    OK(cairn_open(url.ptr, &(cairn_options){.read_only = true}, &reader, &err));
    cairn_event event = event_of("run", "RunPaused", NULL);
    cairn_result result;
    FAILS(CAIRN_INVALID, "STORE_READ_ONLY", cairn_append(reader, &event, &result, &err));
    CHECK(result.code == CAIRN_INVALID && strcmp(result.error.reason, "STORE_READ_ONLY") == 0);
    cairn_run run;
    OK(cairn_find_run(reader, "run", &run, &err));
    append(store, "run", "RunPaused", NULL);
    OK(cairn_find_run(reader, "run", &run, &err)); /* sees what is new */
    CHECK(strcmp(run.status, "PAUSED") == 0);
    cairn_close(reader);
    cairn_close(store);
}

TEST(cairn_store_has_one_writer) {
    str url = test_db_url("sqlite");
    cairn_store *store = open_store(url);
    cairn_store *second = NULL;
    FAILS(CAIRN_RETRY, "", cairn_open(url.ptr, NULL, &second, &err));
    CHECK(second == NULL);
    cairn_close(store);
    OK(cairn_open(url.ptr, NULL, &second, &err));
    cairn_close(second);
}

/* ---- one event ---- */

struct wanted {
    const cairn_result *result;
    const char *cause;
};

static bool check_record(void *context, const cairn_record *record) {
    const struct wanted *wanted = context;
    const cairn_result *result = wanted->result;
    const cairn_event *e = &record->event;
    static const char *const members[] = {"\"payload\":{\"n\":1.50}", "\"stepId\":\"a\"",
                                          "\"runSeq\":2", "\"engineAttemptId\":3",
                                          "\"emittedAt\":\"2026-02-16T08:00:00.5Z\""};
    const struct {
        const char *is, *want;
    } texts[] = {{e->event_type, "StepStarted"},
                 {e->run_id, "run"},
                 {e->tenant_id, "acme"},
                 {e->project_id, "shop"},
                 {e->environment_id, "prod"},
                 {e->plan_id, "orders"},
                 {e->plan_version, "7"},
                 {e->step_id, "a"},
                 {e->payload, "{\"n\":1.50}"},
                 {e->emitted_at, "2026-02-16T08:00:00.5Z"},
                 {e->actor, "worker"},
                 {e->event_id, "11111111-2222-4333-8444-555555555555"},
                 {e->correlation_id, "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"},
                 {record->persisted_at, result->persisted_at},
                 {e->causation_id, wanted->cause}};
    if (strcmp(e->event_type, "RunStarted") == 0) {
        CHECK(!e->step_id && !e->payload && !e->actor && !e->causation_id &&
              e->engine_attempt_id == 1);
        return true;
    }
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        CHECK(texts[i].is && strcmp(texts[i].is, texts[i].want) == 0, "text %zu: %s", i,
              texts[i].is);
    }
    for (size_t i = 0; i < COUNT_OF(members); i++)
        CHECK(strstr(record->json, members[i]), "%s", record->json);
    CHECK(e->logical_attempt_id == 1 && e->engine_attempt_id == 3 &&
          strlen(e->idempotency_key) == 64);
    CHECK(record->run_seq == result->run_seq && record->sequence_number == result->sequence_number);
    return true;
}

TEST_DB(cairn_append_gives_back_what_it_took) {
    cairn_store *store = open_store(url);
    cairn_event event = event_of("run", "RunStarted", NULL);
    cairn_result started = {0};
    cairn_result result = {0};
    event.correlation_id = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";
    OK(cairn_append(store, &event, &started, &err));
    char key[65];
    event = event_of("run", "StepStarted", "a");
    OK(cairn_event_key(&event, key, &err));
    event.payload = " {\"n\" : 1.50}";
    event.engine_attempt_id = 3;
    event.emitted_at = "2026-02-16T08:00:00.5Z";
    event.event_id = "11111111-2222-4333-8444-555555555555";
    event.idempotency_key = key;
    event.actor = "worker";
    event.causation_id = started.event_id;
    OK(cairn_append(store, &event, &result, &err));
    CHECK(!result.duplicate && result.run_seq == 2 && strcmp(result.event_id, event.event_id) == 0);
    struct wanted wanted = {&result, started.event_id};
    OK(cairn_read_run(store, "run", 0, 0, check_record, &wanted, &err));

    cairn_result again = {0};
    event.event_id = NULL;
    OK(cairn_append(store, &event, &again, &err));
    CHECK(again.duplicate && strcmp(again.event_id, result.event_id) == 0 && again.run_seq == 2);
    CHECK(strcmp(again.persisted_at, result.persisted_at) == 0);
    OK(cairn_append(store, &event, NULL, NULL)); /* neither is needed */
    cairn_close(store);
}

TEST_DB(cairn_append_says_what_is_wrong) {
    static const struct {
        size_t member;
        const char *value;
        cairn_status want;
        const char *reason, *where;
    } cases[] = {
#define MEMBER(name) offsetof(cairn_event, name)
        {MEMBER(event_type), NULL, CAIRN_INVALID, "FIELD_EMPTY", "/eventType"},
        {MEMBER(run_id), "a|b", CAIRN_INVALID, "DELIMITER_IN_FIELD", "/runId"},
        {MEMBER(tenant_id), "", CAIRN_INVALID, "FIELD_EMPTY", "/tenantId"},
        {MEMBER(project_id), "\xff", CAIRN_INVALID, "JSON_UTF8", "/projectId"},
        {MEMBER(step_id), "a", CAIRN_INVALID, "STEP_ID_FORBIDDEN", "/stepId"},
        {MEMBER(payload), "{\"a\":}", CAIRN_INVALID, "JSON_SYNTAX", "/payload offset 5"},
        {MEMBER(payload), "7", CAIRN_INVALID, "PAYLOAD_NOT_OBJECT", "/payload"},
        {MEMBER(event_id), "nope", CAIRN_INVALID, "EVENT_ID_NOT_UUID_V4", "/eventId"},
        {MEMBER(event_id), "11111111-2222-5333-8444-555555555555", CAIRN_INVALID,
         "EVENT_ID_NOT_UUID_V4", "/eventId"},
        {MEMBER(idempotency_key), "12", CAIRN_INVALID, "KEY_MALFORMED", "/idempotencyKey"},
        {MEMBER(idempotency_key),
         "0000000000000000000000000000000000000000000000000000000000000000", CAIRN_INVALID,
         "KEY_MISMATCH", "/idempotencyKey"},
        {MEMBER(emitted_at), "yesterday", CAIRN_INVALID, "TIME_NOT_RFC3339_UTC", "/emittedAt"},
        {MEMBER(actor), "\xc3", CAIRN_INVALID, "JSON_UTF8", "/actor"},
        {MEMBER(causation_id), "x", CAIRN_INVALID, "FIELD_NOT_UUID", "/causationId"},
        {MEMBER(causation_id), "11111111-2222-4333-8444-555555555555", CAIRN_INVALID,
         "CAUSE_NOT_FOUND", "/causationId"},
        {MEMBER(correlation_id), "x", CAIRN_INVALID, "FIELD_NOT_UUID", "/correlationId"},
        {MEMBER(event_type), "RunCompleted", CAIRN_CONFLICT, "INVALID_TRANSITION", "/eventType"}};
#undef MEMBER
    cairn_store *store = open_store(url);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        cairn_event event = event_of("run", "RunStarted", NULL);
        cairn_result result;
        memcpy((char *)&event + cases[i].member, &cases[i].value, sizeof(cases[i].value));
        FAILS(cases[i].want, cases[i].reason, cairn_append(store, &event, &result, &err));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
        CHECK(result.code == err.code && strcmp(result.error.message, err.message) == 0 &&
              result.run_seq == 0);
    }
    cairn_run run;
    FAILS(CAIRN_NOT_FOUND, "RUN_NOT_FOUND",
          cairn_find_run(store, "run", &run, &err)); /* nothing was written */
    cairn_close(store);
}

TEST_DB(cairn_store_may_record_invalid_events) {
    cairn_store *store = NULL;
    cairn_run run;
    OK(cairn_open(url.ptr, &(cairn_options){.record_invalid = true}, &store, &err));
    append(store, "run", "RunStarted", NULL);
    append(store, "run", "StepCompleted", "a");
    OK(cairn_find_run(store, "run", &run, &err));
    CHECK(run.inconsistent && run.run_seq == 2 && run.completed_steps == 0);
    cairn_close(store);
}

/* ---- JSON and NDJSON ---- */

static void put_line(struct buf *out, const char *run_id, const char *type) {
    cairn_event event = event_of(run_id, type, NULL);
    char key[65];
    OK(cairn_event_key(&event, key, &err));
    static int n = 0;
    buf_printf(out,
               "{\"eventId\":\"00000000-0000-4000-8000-%012d\",\"eventType\":\"%s\",\"emittedAt\":"
               "\"2026-02-16T08:00:00Z\","
               "\"runId\":\"%s\",\"tenantId\":\"acme\",\"projectId\":\"shop\",\"environmentId\":"
               "\"prod\",\"planId\":\"orders\","
               "\"planVersion\":\"7\",\"engineAttemptId\":1,\"logicalAttemptId\":1,"
               "\"idempotencyKey\":\"%s\"}\n",
               ++n, type, run_id, key);
}

struct lines {
    size_t count, stop_at;
    cairn_result results[16];
};

static bool take_line(void *context, const cairn_result *result) {
    struct lines *lines = context;
    if (lines->count < COUNT_OF(lines->results)) lines->results[lines->count] = *result;
    return ++lines->count != lines->stop_at;
}

TEST_DB(cairn_append_json_takes_one) {
    cairn_store *store = open_store(url);
    struct buf text;
    cairn_result result = {0};
    buf_init(&text, 4096);
    put_line(&text, "run", "RunStarted");
    OK(cairn_append_json(store, text.ptr, text.len, &result, &err));
    CHECK(result.run_seq == 1 && result.line == 0);
    FAILS(CAIRN_INVALID, "JSON_SYNTAX",
          cairn_append_json(store, text.ptr, text.len / 2, &result, &err));
    FAILS(CAIRN_INVALID, "FIELD_MISSING", cairn_append_json(store, "{}", 2, NULL, &err));
    buf_release(&text);
    cairn_close(store);
}

TEST_DB(cairn_append_ndjson_answers_each_line) {
    cairn_store *store = open_store(url);
    struct buf text;
    struct lines lines = {0};
    buf_init(&text, 65536);
    put_line(&text, "run", "RunStarted");  /* 1 */
    buf_put_c(&text, "\n  \r\n");          /* 2 and 3 are blank */
    buf_put_c(&text, "{\"eventId\":1}\n"); /* 4 */
    put_line(&text, "run", "RunResumed");  /* 5: not legal */
    put_line(&text, "run", "RunStarted");  /* 6: a duplicate */
    put_line(&text, "run", "RunPaused");   /* 7 */
    text.len--;                            /* the last line need not end */
    FAILS(CAIRN_INVALID, "FIELD_MISSING",
          cairn_append_ndjson(store, text.ptr, text.len, take_line, &lines, &err));
    CHECK(strstr(err.message, "line 4: ") == err.message, "%s", err.message);
    static const struct {
        size_t line;
        int64_t run_seq;
        cairn_status code;
        bool duplicate;
    } want[] = {{1, 1, CAIRN_OK, false},
                {4, 0, CAIRN_INVALID, false},
                {5, 0, CAIRN_CONFLICT, false},
                {6, 1, CAIRN_OK, true},
                {7, 2, CAIRN_OK, false}};
    CHECK(lines.count == COUNT_OF(want));
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const cairn_result *r = &lines.results[i];
        CHECK(r->line == want[i].line && r->code == want[i].code && r->run_seq == want[i].run_seq,
              "line %zu", r->line);
        CHECK(r->duplicate == want[i].duplicate &&
                  (r->code == CAIRN_OK) == (r->error.message[0] == 0),
              "line %zu", r->line);
    }
    OK(cairn_append_ndjson(store, text.ptr, 0, NULL, NULL, &err));
    buf_release(&text);
    cairn_close(store);
}

TEST_DB(cairn_append_ndjson_goes_on_for_long) {
    enum { N = 1300 }; /* more than two commits */
    cairn_store *store = open_store(url);
    struct buf text;
    struct lines lines = {0};
    struct seen seen = {0};
    char run_id[24];
    buf_init(&text, (size_t)4 << 20);
    for (int i = 0; i < N; i++) {
        snprintf(run_id, sizeof(run_id), "run-%d", i);
        put_line(&text, run_id, "RunStarted");
    }
    OK(cairn_append_ndjson(store, text.ptr, text.len, take_line, &lines, &err));
    CHECK(lines.count == N);
    OK(cairn_read_tenant(store, "acme", 0, 0, see, &seen, &err));
    CHECK(seen.count == N && seen.last == N);
    lines = (struct lines){.stop_at = 700}; /* in the second commit */
    OK(cairn_append_ndjson(store, text.ptr, text.len, take_line, &lines, &err));
    CHECK(lines.count == 700 && lines.results[0].duplicate);
    buf_release(&text);
    cairn_close(store);
}

/* ---- batches ---- */

TEST_DB(cairn_append_batch_is_one_commit) {
    static cairn_result many[4097];
    static cairn_event too_many[4097];
    cairn_store *store = open_store(url);
    cairn_result results[3];
    cairn_event events[3] = {event_of("run", "RunStarted", NULL),
                             event_of("run", "StepStarted", "a"),
                             event_of("run", "StepCompleted", "a")};
    OK(cairn_append_batch(store, events, 3, true, results, &err));
    for (int i = 0; i < 3; i++)
        CHECK(results[i].code == CAIRN_OK && results[i].run_seq == i + 1 && results[i].line == 0);
    CHECK(strcmp(results[0].persisted_at, results[2].persisted_at) == 0);
    OK(cairn_append_batch(store, NULL, 0, true, NULL, &err));

    cairn_event bad[3] = {event_of("b", "RunStarted", NULL), event_of("b", "StepStarted", NULL),
                          event_of("b", "RunPaused", NULL)};
    FAILS(CAIRN_INVALID, "STEP_ID_REQUIRED",
          cairn_append_batch(store, bad, 3, true, results, &err));
    for (int i = 0; i < 3; i++)
        CHECK(results[i].code == CAIRN_INVALID, "event %d", i);
    CHECK(strstr(results[0].error.message, "event 2 of the batch: ") != NULL, "%s",
          results[0].error.message);
    cairn_run run;
    FAILS(CAIRN_NOT_FOUND, "RUN_NOT_FOUND", cairn_find_run(store, "b", &run, &err));
    FAILS(CAIRN_INVALID, "STEP_ID_REQUIRED",
          cairn_append_batch(store, bad, 3, false, results, &err));
    CHECK(results[0].code == CAIRN_OK && results[1].code == CAIRN_INVALID &&
          results[2].code == CAIRN_OK);
    CHECK(results[2].run_seq == 2);

    bad[1] = event_of("c", "StepCompleted", "a"); /* well-formed, but refused by the ledger */
    bad[0].run_id = bad[2].run_id = "c";
    FAILS(CAIRN_CONFLICT, "INVALID_TRANSITION",
          cairn_append_batch(store, bad, 3, true, results, &err));
    FAILS(CAIRN_NOT_FOUND, "RUN_NOT_FOUND", cairn_find_run(store, "c", &run, &err));
    FAILS(CAIRN_LIMIT, "BATCH_TOO_LARGE",
          cairn_append_batch(store, too_many, 4097, false, many, &err));
    CHECK(many[4096].code == CAIRN_LIMIT);
    cairn_close(store);
}

/* ---- the key ---- */

TEST(cairn_event_key_is_the_contracts) {
    static const char run[] = "0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a";
    static const struct {
        const char *step_id;
        int64_t attempt;
        const char *type, *version, *want;
    } cases[] = {{"model.orders", 1, "StepStarted", "2",
                  "7f4b974658a54fb2aee9ecb9cefebd2eec27f3fd01f0f8c0d031dfc4a5b96e3c"},
                 {NULL, 1, "RunStarted", "2",
                  "204197f81e5dc1a8491d8e411c440a730c51a741cd48a74863d3e5c4c452640d"},
                 {"model.orders", 2, "StepFailed", "2",
                  "599945c1a8023ece5d2ae5132a4397b8cfbe9fa1c4c08d6fc4193a9bd9a2ebcd"},
                 {NULL, 1, "RunFailed", "3",
                  "b5a178e6f30962ca3d17b573c0d4c5f96d7623be5fe62a972644785fc05a003b"},
                 {"seed.customers", 1, "StepSkipped", "1",
                  "6bfdbe26d62eac0c00cf2683aae31115e76e4d33d515e39957627be091367b31"}};
    char key[65];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        cairn_event event = {.run_id = run,
                             .step_id = cases[i].step_id,
                             .logical_attempt_id = cases[i].attempt,
                             .event_type = cases[i].type,
                             .plan_id = "plan_abc",
                             .plan_version = cases[i].version};
        OK(cairn_event_key(&event, key, &err));
        CHECK(strcmp(key, cases[i].want) == 0, "case %zu: %s", i, key);
    }
    cairn_event bad = event_of("run", "StepStarted", NULL);
    FAILS(CAIRN_INVALID, "STEP_ID_REQUIRED", cairn_event_key(&bad, key, &err));
    bad = event_of("run", "RunStarted", NULL);
    bad.logical_attempt_id = 0;
    FAILS(CAIRN_INVALID, "ATTEMPT_OUT_OF_RANGE", cairn_event_key(&bad, key, &err));
}

/* ---- reading ---- */

TEST_DB(cairn_read_goes_on_from_a_cursor) {
    cairn_store *store = open_store(url);
    append(store, "a", "RunStarted", NULL);
    append(store, "b", "RunStarted", NULL);
    append(store, "a", "RunPaused", NULL);
    append(store, "a", "RunResumed", NULL);
    struct seen seen = {.store = store};
    OK(cairn_read_run(store, "a", 0, 2, see, &seen, &err));
    CHECK(strcmp(seen.types, "RunStarted RunPaused ") == 0, "%s", seen.types);
    OK(cairn_read_run(store, "a", seen.last, 0, see, &seen, &err));
    CHECK(seen.count == 3 && strcmp(seen.types, "RunStarted RunPaused RunResumed ") == 0, "%s",
          seen.types);
    OK(cairn_read_run(store, "a", seen.last, 0, see, &seen, &err));
    CHECK(seen.count == 3); /* that was all */
    struct seen tenant = {.stop_at = 2};
    OK(cairn_read_tenant(store, "acme", 0, 0, see, &tenant, &err));
    CHECK(tenant.count == 2 && tenant.last == 2);
    FAILS(CAIRN_NOT_FOUND, "RUN_NOT_FOUND", cairn_read_run(store, "x", 0, 0, see, &seen, &err));
    FAILS(CAIRN_NOT_FOUND, "TENANT_NOT_FOUND",
          cairn_read_tenant(store, "x", 0, 0, see, &seen, &err));
    cairn_close(store);
}

TEST_DB(cairn_run_tells_where_it_stands) {
    cairn_store *store = open_store(url);
    cairn_run run;
    char *json = NULL;
    append(store, "run", "RunStarted", NULL);
    append(store, "run", "StepStarted", "a");
    OK(cairn_find_run(store, "run", &run, &err));
    CHECK(strcmp(run.status, "RUNNING") == 0 && !run.is_final && run.open_steps == 1 &&
          run.completed_at[0] == 0);
    cairn_result done = append(store, "run", "StepCompleted", "a");
    cairn_result last = append(store, "run", "RunCompleted", NULL);
    OK(cairn_find_run(store, "run", &run, &err));
    CHECK(strcmp(run.status, "COMPLETED") == 0 && run.is_final && !run.inconsistent &&
          run.run_seq == 4);
    CHECK(run.completed_steps == 1 && run.failed_steps == 0 && run.open_steps == 0 &&
          run.engine_attempt_id == 1);
    CHECK(strcmp(run.tenant_id, "acme") == 0 && strcmp(run.project_id, "shop") == 0);
    CHECK(strcmp(run.environment_id, "prod") == 0 && strcmp(run.plan_id, "orders") == 0 &&
          strcmp(run.plan_version, "7") == 0);
    CHECK(strcmp(run.completed_at, last.persisted_at) == 0 &&
          strcmp(run.updated_at, last.persisted_at) == 0);
    CHECK(strlen(run.correlation_id) == 36 && strcmp(run.started_at, run.completed_at) <= 0);

    OK(cairn_run_state(store, "run", 0, &json, &err));
    CHECK(strstr(json, "\"status\":\"COMPLETED\"") && strstr(json, "\"state\":\"SUCCESS\""), "%s",
          json);
    cairn_free(json);
    OK(cairn_run_state(store, "run", done.run_seq - 1, &json, &err));
    CHECK(strstr(json, "\"status\":\"RUNNING\"") && strstr(json, "\"state\":\"RUNNING\""), "%s",
          json);
    cairn_free(json);
    cairn_free(NULL);
    FAILS(CAIRN_NOT_FOUND, "RUN_NOT_FOUND", cairn_run_state(store, "x", 0, &json, &err));
    cairn_close(store);
}

TEST_DB(cairn_verify_finds_damage) {
    cairn_store *store = open_store(url);
    cairn_verification found;
    append(store, "run", "RunStarted", NULL);
    append(store, "run", "RunPaused", NULL);
    OK(cairn_verify(store, true, &found, &err));
    CHECK(!found.damaged && found.events == 2 && found.runs == 1 && found.what[0] == 0);
    struct db *db = NULL;
    struct error db_err;
    CHECK(db_open(url, DB_WRITE, &db, &db_err) == ST_OK, "%s", db_err.msg);
    CHECK(db_exec(db, "UPDATE state_run SET status = 5", &db_err) == ST_OK, "%s",
          db_err.msg); /* a projection */
    db_close(db);
    OK(cairn_verify(store, false, &found, &err));
    CHECK(!found.damaged); /* the truth is untouched */
    OK(cairn_verify(store, true, &found, &err));
    CHECK(found.damaged && strcmp(found.run_id, "run") == 0 && found.what[0] != 0, "%s",
          found.what);
    cairn_close(store);
}

/* ---- threads ---- */

enum { THREADS = 8, EACH = 25 };
struct worker {
    pthread_t thread;
    cairn_store *store;
    int number;
    int failed;
};

static void *work(void *arg) {
    struct worker *me = arg;
    char run_id[24];
    char step_id[24];
    cairn_run run;
    snprintf(run_id, sizeof(run_id), "run-%d", me->number);
    for (int i = 0; i < EACH; i++) {
        snprintf(step_id, sizeof(step_id), "step-%d", i);
        cairn_event event =
            event_of(run_id, i == 0 ? "RunStarted" : "StepStarted", i == 0 ? NULL : step_id);
        cairn_result result;
        me->failed +=
            cairn_append(me->store, &event, &result, NULL) != CAIRN_OK || result.run_seq != i + 1;
        me->failed +=
            cairn_find_run(me->store, run_id, &run, NULL) != CAIRN_OK || run.run_seq != i + 1;
    }
    return NULL;
}

TEST_DB(cairn_store_serves_many_threads) {
    struct worker workers[THREADS];
    cairn_store *store = open_store(url);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.store = store, .number = i};
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++)
        CHECK(workers[i].failed == 0, "thread %d: %d", i, workers[i].failed);
    cairn_verification found;
    OK(cairn_verify(store, true, &found, &err));
    CHECK(!found.damaged && found.events == (int64_t)THREADS * EACH && found.runs == THREADS);
    cairn_close(store);
}

/* ---- a lost connection ---- */

static void end_sessions(str url) {
    struct db *db = NULL;
    struct error db_err;
    CHECK(db_open(url, DB_WRITE, &db, &db_err) == ST_OK, "%s", db_err.msg);
    CHECK(db_exec(db,
                  "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                  " WHERE datname = current_database() AND pid <> pg_backend_pid()",
                  &db_err) == ST_OK,
          "%s", db_err.msg);
    db_close(db);
}

TEST(cairn_store_connects_again) {
    str url = test_postgres();
    cairn_store *store = open_store(url);
    cairn_producer *p = NULL;
    cairn_run run;
    cairn_event paused = event_of("run", "RunPaused", NULL);
    OK(cairn_producer_open(store, url.ptr, &p, &err));
    append(store, "run", "RunStarted", NULL);
    OK(cairn_find_run(store, "run", &run, &err));
    cairn_log_setup(2, false, CAIRN_LOG_OFF);
    end_sessions(url);
    FAILS(CAIRN_RETRY, "", cairn_find_run(store, "run", &run, &err));
    OK(cairn_find_run(store, "run", &run, &err));
    FAILS(CAIRN_RETRY, "", cairn_producer_emit(p, &paused, NULL, &err)); /* the registry's, */
    FAILS(CAIRN_RETRY, "", cairn_producer_emit(p, &paused, NULL, &err)); /* and the ledger's */
    OK(cairn_producer_emit(p, &paused, NULL, &err));
    cairn_log_setup(2, false, CAIRN_LOG_INFO);
    OK(cairn_find_run(store, "run", &run, &err));
    CHECK(strcmp(run.status, "PAUSED") == 0 && run.run_seq == 2);
    cairn_producer_close(p);
    cairn_close(store);
}

/* ---- producing ---- */

static cairn_producer *open_producer(cairn_store *store, str ids_url) {
    cairn_producer *p = NULL;
    OK(cairn_producer_open(store, ids_url.ptr, &p, &err));
    return p;
}

TEST_DB(cairn_producer_keeps_ids_and_order) {
    cairn_store *store = open_store(url);
    str ids_url = str_starts(url, STR("postgres")) ? url : test_db_url("sqlite");
    cairn_producer *p = open_producer(store, ids_url);
    cairn_event started = event_of("run", "RunStarted", NULL);
    cairn_event step = event_of("run", "StepStarted", "a");
    cairn_result first = {0};
    cairn_result again = {0};
    OK(cairn_producer_emit(p, &started, &first, &err));
    OK(cairn_producer_emit(p, &step, NULL, NULL));
    cairn_producer_close(p);
    p = open_producer(store, ids_url); /* restarted */
    OK(cairn_producer_emit(p, &started, &again, &err));
    CHECK(again.duplicate && strcmp(again.event_id, first.event_id) == 0 && again.run_seq == 1);

    cairn_event skipped = event_of("run", "StepSkipped", "a");
    cairn_result result = {0};
    bool emitted = false;
    FAILS(CAIRN_NOT_FOUND, "", cairn_producer_report_invalid(p, &skipped, &emitted, &result, &err));
    FAILS(CAIRN_CONFLICT, "INVALID_TRANSITION_DETECTED",
          cairn_producer_emit(p, &skipped, &result, &err));
    CHECK(result.code == CAIRN_CONFLICT);
    OK(cairn_producer_report_invalid(p, &skipped, &emitted, &result, &err));
    CHECK(emitted && result.run_seq == 3);
    struct seen seen = {0};
    OK(cairn_read_run(store, "run", 0, 0, see, &seen, &err));
    CHECK(strcmp(seen.types, "RunStarted StepStarted StepFailed ") == 0, "%s", seen.types);

    OK(cairn_producer_forget_run(p, "run", &err));
    started.event_id = first.event_id;
    FAILS(CAIRN_INVALID, "FIELD_RESERVED", cairn_producer_emit(p, &started, &result, &err));
    started.event_id = NULL;
    started.emitted_at = "now";
    FAILS(CAIRN_INVALID, "TIME_NOT_RFC3339_UTC", cairn_producer_emit(p, &started, &result, &err));
    cairn_producer_close(p);
    cairn_producer_close(NULL);
    cairn_close(store);
}

TEST_DB(cairn_producer_in_memory_replays) {
    cairn_store *store = open_store(url);
    cairn_event started = event_of("run", "RunStarted", NULL);
    cairn_result first = {0};
    cairn_result again = {0};
    cairn_producer *p = open_producer(store, STR_NONE);
    OK(cairn_producer_emit(p, &started, &first, &err));
    cairn_producer_close(p);
    p = open_producer(store, STR_NONE);
    OK(cairn_producer_emit(p, &started, &again, &err));
    CHECK(again.duplicate && strcmp(again.event_id, first.event_id) == 0);
    cairn_producer_close(p);
    FAILS(CAIRN_NOT_FOUND, "", cairn_producer_open(store, "/no/such/folder/ids.db", &p, &err));
    cairn_close(store);
}

/* ---- without memory ---- */

/* Whatever allocation fails, on whichever thread, the answer is right: done, or to be done again.
 */
TEST(cairn_append_without_memory) {
    cairn_store *store = open_store(test_db_url("sqlite"));
    cairn_log_setup(2, false, CAIRN_LOG_OFF); /* of commits that fail */
    append(store, "run", "RunStarted", NULL);
    cairn_event events[2] = {event_of("run", "StepStarted", "a"),
                             event_of("run", "StepStarted", "b")};
    events[1].payload = "{\"a\":1}";
    int64_t n = 0;
    for (cairn_status st = CAIRN_RETRY; st != CAIRN_OK; n++) {
        cairn_result results[2];
        mem_fail_at(n);
        st = cairn_append_batch(store, events, 2, true, results, &err);
        mem_fail_at(-1);
        CHECK(st == CAIRN_OK || st == CAIRN_RETRY, "allocation %d: %s", (int)n, err.message);
        CHECK(results[0].code == st && results[1].code == st, "allocation %d", (int)n);
        CHECK(n < 1000);
    }
    CHECK(n > 3);
    for (int64_t k = 0; k < 20; k++) {
        struct seen seen = {0};
        mem_fail_at(k);
        cairn_status st = cairn_read_run(store, "run", 0, 0, see, &seen, &err);
        mem_fail_at(-1);
        CHECK(st == CAIRN_RETRY || (st == CAIRN_OK && seen.count == 3), "allocation %d: %s", (int)k,
              err.message);
    }
    cairn_log_setup(2, false, CAIRN_LOG_INFO);
    cairn_close(store);
}

static cairn_run_ref ref_of(const char *provider, const char *workflow_id, const char *run_id) {
    return (cairn_run_ref){.provider = provider, .workflow_id = workflow_id, .run_id = run_id};
}

static bool count_record(void *context, const cairn_record *record) {
    (void)record;
    ++*(int *)context;
    return true;
}

/* WE-2.1.1-3, WE-2.1.1-4, WE-2.1.1-5: the library's reads take a structured reference, refuse one
 * without what its provider needs, and one that the ledger knows differently. */
TEST_DB(library_reads_by_reference) {
    cairn_store *store = open_store(url);
    (void)append(store, "r", "RunStarted", NULL);
    cairn_event link = event_of("t", "RunStarted", NULL);
    OK(cairn_append(store, &link, NULL, &err));
    link.event_type = "RunProviderLinked";
    link.payload = "{\"provider\":\"temporal\",\"workflowId\":\"wf\",\"providerRunId\":\"p1\"}";
    OK(cairn_append(store, &link, NULL, &err));

    cairn_run run = {0};
    cairn_run_ref local = ref_of("local", "r", "r");
    cairn_run_ref temporal = ref_of("temporal", "wf", "t");
    temporal.temporal_namespace = "prod";
    OK(cairn_find_run_ref(store, &local, &run, &err));
    CHECK(strcmp(run.status, "RUNNING") == 0 && run.run_seq == 1);
    OK(cairn_find_run_ref(store, &temporal, &run, &err));
    CHECK(run.run_seq == 2);
    int seen = 0;
    OK(cairn_read_run_ref(store, &temporal, 0, 0, count_record, &seen, &err));
    CHECK(seen == 2, "%d", seen);
    char *json = NULL;
    OK(cairn_run_ref_state(store, &temporal, 0, &json, &err));
    CHECK(strstr(json, "\"RUNNING\"") != NULL, "%s", json);
    cairn_free(json);

    struct {
        cairn_run_ref ref;
        cairn_status want;
        const char *reason, *where;
    } cases[] = {
        {ref_of("temporal", "wf", "t"), CAIRN_INVALID, "RUN_REF_INVALID", "/namespace"},
        {ref_of("conductor", "wf", "t"), CAIRN_INVALID, "RUN_REF_INVALID", "/conductorUrl"},
        {ref_of("local", "r", NULL), CAIRN_INVALID, "RUN_REF_INVALID", "/runId"},
        {ref_of(NULL, "r", "r"), CAIRN_INVALID, "RUN_REF_INVALID", "/provider"},
        {ref_of("local", "other", "r"), CAIRN_CONFLICT, "RUN_REF_MISMATCH", "/workflowId"},
        {ref_of("local", "none", "none"), CAIRN_NOT_FOUND, "RUN_NOT_FOUND", ""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json = NULL;
        seen = 0;
        FAILS(cases[i].want, cases[i].reason, cairn_find_run_ref(store, &cases[i].ref, &run, &err));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
        FAILS(cases[i].want, cases[i].reason,
              cairn_run_ref_state(store, &cases[i].ref, 0, &json, &err));
        FAILS(cases[i].want, cases[i].reason,
              cairn_read_run_ref(store, &cases[i].ref, 0, 0, count_record, &seen, &err));
        CHECK(json == NULL && seen == 0);
    }
    cairn_close(store);
}
