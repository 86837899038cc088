/* core/event_json_test.c: events that pass the door: their round trip through JSON, the rules for C
 * callers, keys, and the JSON of records and of the feed. */
#include "core/event.h"

#include "base/limits.h"
#include "test.h"

#define X5 "xxxxx"
#define X50 X5 X5 X5 X5 X5 X5 X5 X5 X5 X5
#define X250 X50 X50 X50 X50 X50
#define X255 X250 X5
#define A15 "aaaaaaaaaaaaaaa"

static struct arena arena_make(void) {
    struct arena a;
    arena_init(&a, 4096, (size_t)64 << 20);
    return a;
}

/* ---- what is accepted ---- */

static struct event made(str type, str step) {
    struct event e = {.type_name = type,
                      .run_id = STR("run-1"),
                      .tenant_id = STR("acme"),
                      .project_id = STR("shop"),
                      .environment_id = STR("prod"),
                      .plan_id = STR("orders"),
                      .plan_version = STR("7"),
                      .subject = step,
                      .engine_attempt = 1,
                      .logical_attempt = 1,
                      .event_id = uuid_v4(),
                      .emitted_ns = INT64_C(1771228800) * 1000000000};
    e.type = event_type_of(type);
    event_key_derive(&e, e.key);
    return e;
}

/* Written as JSON, parsed, and written again: the same bytes. */
static void check_round_trip(const struct event *e) {
    struct arena a = arena_make();
    struct buf first;
    struct buf second;
    buf_init(&first, EVENT_BYTES_MAX);
    buf_init(&second, EVENT_BYTES_MAX);
    event_write_json(e, &first);
    struct error err = {0};
    struct event back;
    CHECK(event_parse(buf_str(&first), &a, &back, &err) == ST_OK, "%s", err.msg);
    CHECK(back.type == e->type && memcmp(back.key, e->key, SHA256_LEN) == 0);
    event_write_json(&back, &second);
    CHECK(str_eq(buf_str(&first), buf_str(&second)), "%.*s", STR_ARG(buf_str(&second)));
    buf_release(&first);
    buf_release(&second);
    arena_release(&a);
}

TEST(event_parse_accepts_the_last_good_ones) {
    struct event e = made(STR("StepStarted"), STR(X255));
    e.run_id = e.plan_id = e.plan_version = STR(X255);
    e.tenant_id = STR("a|b"); /* takes no part in the key */
    e.project_id = e.environment_id = STR(X250 "|");
    e.engine_attempt = e.logical_attempt = ATTEMPT_MAX;
    event_key_derive(&e, e.key);
    check_round_trip(&e);

    str widest[] = {STR("X" X50 X5 X5 X5 X5 X5 X5 X5 X5 X5 "xxxx"),
                    STR("Z" A15 "Z" A15 "Z" A15 "Z" A15 "Z" A15 "a" A15)};
    for (size_t i = 0; i < COUNT_OF(widest); i++) {
        e = made(widest[i], STR_NONE);
        check_round_trip(&e);
    }
}

TEST(event_parse_keeps_what_was_sent) {
    static const str payloads[] = {
        STR_LIT("{}"), STR_LIT("{\"n\":1e400,\"m\":12345678901234567890123,\"z\":-0.0}"),
        STR_LIT("{\"b\":1,\"a\":[null,true,{\"\":\"\xC3\xA9\"}]}"),
        STR_LIT("{\"runSeq\":9,\"persistedAt\":\"free inside\"}")};
    for (size_t i = 0; i < COUNT_OF(payloads); i++) {
        struct event e = made(STR("StepFailed"), STR("e\xCC\x81 \xF0\x9F\xA7\xAA"));
        e.payload = payloads[i];
        e.emitted_digits = (int)i * 3;
        e.emitted_ns += 123456789;
        check_round_trip(&e);
    }
    struct event e = made(STR("Anything at all.\t"), STR("s"));
    check_round_trip(&e);
    CHECK(e.type == EVENT_UNKNOWN && event_family_of(&e) == FAMILY_STEP);
}

/* ---- events that C callers fill ---- */

TEST(event_validate_holds_c_callers_to_the_same_rules) {
    static const struct {
        str type, step, run, plan;
        int64_t attempt;
        const char *reason, *where;
    } cases[] = {
        {STR_LIT("RunStarted"), {NULL, 0}, STR_LIT("a\0b"), STR_LIT("p"), 1, "JSON_NUL", "/runId"},
        {STR_LIT("RunStarted"), {NULL, 0}, STR_LIT("\xFF"), STR_LIT("p"), 1, "JSON_UTF8", "/runId"},
        {STR_LIT("RunStarted"), {NULL, 0}, {NULL, 0}, STR_LIT("p"), 1, "FIELD_EMPTY", "/runId"},
        {STR_LIT("RunStarted"), {NULL, 0}, STR_LIT("r"), {NULL, 0}, 1, "FIELD_EMPTY", "/planId"},
        {STR_LIT("\xC3"), {NULL, 0}, STR_LIT("r"), STR_LIT("p"), 1, "JSON_UTF8", "/eventType"},
        {STR_LIT("StepStarted"), STR_LIT("\xED\xA0\x80"), STR_LIT("r"), STR_LIT("p"), 1,
         "JSON_UTF8", "/stepId"},
        {STR_LIT("StepStarted"), STR_LIT("a\0"), STR_LIT("r"), STR_LIT("p"), 1, "JSON_NUL",
         "/stepId"},
        {STR_LIT("Teleported"), STR_LIT("RUN"), STR_LIT("r"), STR_LIT("p"), 1, "STEP_ID_RESERVED",
         "/stepId"},
        {STR_LIT("Teleported"), STR_LIT(""), STR_LIT("r"), STR_LIT("p"), 1, "FIELD_EMPTY",
         "/stepId"},
        {STR_LIT("ToolCalled"), STR_LIT("s"), STR_LIT("r"), STR_LIT("p"), 1, "EVENT_TYPE_RESERVED",
         "/eventType"},
        {STR_LIT("RunStarted"),
         {NULL, 0},
         STR_LIT("r"),
         STR_LIT("p"),
         INT64_MIN,
         "ATTEMPT_OUT_OF_RANGE",
         "/logicalAttemptId"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct event e = made(cases[i].type, cases[i].step);
        e.run_id = cases[i].run;
        e.plan_id = cases[i].plan;
        e.logical_attempt = cases[i].attempt;
        struct error err = {0};
        CHECK(event_validate(&e, &err) == ST_INVALID, "case %zu", i);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
    }
}

TEST(event_validate_sets_the_type_and_demands_the_derived_key) {
    struct error err = {0};
    struct event e =
        made(STR("StepStarted"), STR("RUN")); /* fine: no run-level type has this name */
    e.type = EVENT_UNKNOWN;
    CHECK(event_validate(&e, &err) == ST_OK && e.type == EVENT_STEP_STARTED);
    e.key[31] ^= 1;
    CHECK(event_validate(&e, &err) == ST_INVALID && err.reason == REASON_KEY_MISMATCH);
    e.key[31] ^= 1;
    e.event_id = uuid_v7(1);
    CHECK(event_validate(&e, &err) == ST_INVALID);
    CHECK(err.reason == REASON_EVENT_ID_NOT_UUID_V4);
}

/* ---- keys, JSON and UUIDs ---- */

static void check_preimage(const struct event *e, str want) {
    char mem[2048];
    struct buf b;
    buf_init_fixed(&b, mem, sizeof mem);
    event_key_preimage(e, &b);
    CHECK(str_eq(buf_str(&b), want), "%.*s", STR_ARG(buf_str(&b)));
    uint8_t derived[SHA256_LEN];
    uint8_t reference[SHA256_LEN];
    event_key_derive(e, derived);
    sha256_of(want, reference);
    CHECK(memcmp(derived, reference, SHA256_LEN) == 0);
}

TEST(event_key_preimages) {
    struct event e = made(STR("RunStarted"), STR_NONE);
    check_preimage(&e, STR("run-1|RUN|1|RunStarted|orders|7"));
    e = made(STR("StepStarted"), STR("extract"));
    e.logical_attempt = 12;
    check_preimage(&e, STR("run-1|extract|12|StepStarted|orders|7"));
    e = made(STR("SignalReceived"), STR("6f1c9a52-7f44-4a55-8b0c-0e6a5c1d2e3f"));
    check_preimage(&e, STR("|SIGNAL|6f1c9a52-7f44-4a55-8b0c-0e6a5c1d2e3f|SignalReceived|1"));
    e = made(STR("ToolCalled"), STR("extract"));
    e.logical_attempt = 3;
    check_preimage(&e, STR("|TOOL|extract|ToolCalled|3"));
}

static void check_json(void (*write)(const struct event_record *, struct buf *),
                       const struct event_record *rec, const char *want) {
    struct buf b;
    buf_init(&b, 4096);
    write(rec, &b);
    CHECK(str_eq(buf_str(&b), str_c(want)), "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
}

#define STEP_RECORD_JSON                                                                           \
    "{\"eventId\":\"6f1c9a52-7f44-4a55-8b0c-0e6a5c1d2e3f\",\"eventType\":\"StepStarted\","         \
    "\"emittedAt\":\"2026-02-16T08:00:00.250Z\",\"runId\":\"run-1\",\"tenantId\":\"acme\","        \
    "\"projectId\":\"shop\",\"environmentId\":\"prod\",\"planId\":\"orders\","                     \
    "\"planVersion\":\"7\",\"engineAttemptId\":2,\"logicalAttemptId\":1,\"idempotencyKey\":"       \
    "\"8ed68b073739df649a2dd88f24e2cabc917a35933e4a7552eb9f4363a6ca0f91\","                        \
    "\"stepId\":\"extract\",\"payload\":{\"a\":1},\"runSeq\":2,"                                   \
    "\"persistedAt\":\"2026-02-16T08:00:01.000005Z\""

static struct event_record step_record(void) {
    struct event_record rec = {.event = made(STR("StepStarted"), STR("extract")),
                               .seq = 9,
                               .run_seq = 2,
                               .persisted_us = INT64_C(1771228801000005)};
    CHECK(uuid_parse(STR("6f1c9a52-7f44-4a55-8b0c-0e6a5c1d2e3f"), &rec.event.event_id));
    CHECK(uuid_parse(STR("11111111-1111-4111-8111-111111111111"), &rec.correlation_id));
    CHECK(uuid_parse(STR("22222222-2222-4222-8222-222222222222"), &rec.cause_id));
    rec.event.engine_attempt = 2;
    rec.event.emitted_ns += 250000000;
    rec.event.emitted_digits = 3;
    rec.event.payload = STR("{\"a\":1}");
    return rec;
}

TEST(event_json_of_a_record_and_of_the_feed) {
    struct event_record rec = step_record();
    check_json(event_record_json, &rec, STEP_RECORD_JSON "}");
    check_json(event_feed_json, &rec,
               STEP_RECORD_JSON ",\"sequenceNumber\":9,\"aggregateType\":\"STEP\","
                                "\"aggregateId\":\"extract\",\"correlationId\":"
                                "\"11111111-1111-4111-8111-111111111111\"}");
    rec.cause_seq = 8;
    rec.actor = STR("ops \"1\"");
    check_json(event_feed_json, &rec,
               STEP_RECORD_JSON ",\"sequenceNumber\":9,\"aggregateType\":\"STEP\","
                                "\"aggregateId\":\"extract\",\"correlationId\":"
                                "\"11111111-1111-4111-8111-111111111111\",\"causationId\":"
                                "\"22222222-2222-4222-8222-222222222222\","
                                "\"actor\":\"ops \\\"1\\\"\"}");
}

static bool feed_has(const struct event_record *rec, const char *part) {
    char mem[4096];
    struct buf b;
    buf_init_fixed(&b, mem, sizeof mem - 1);
    event_feed_json(rec, &b);
    mem[b.len] = '\0';
    return strstr(mem, part) != NULL;
}

TEST(event_feed_names_the_aggregate_of_each_family) {
    struct event_record rec = step_record();
    rec.event = made(STR("ToolCalled"), STR("extract"));
    rec.run_seq = 0;
    CHECK(feed_has(&rec, "\"aggregateType\":\"STEP\",\"aggregateId\":\"extract\""));
    CHECK(feed_has(&rec, "\"stepId\":\"extract\"") && !feed_has(&rec, "\"runSeq\""));
    rec.event = made(STR("EffectFailed"), STR("33333333-3333-4333-8333-333333333333"));
    CHECK(feed_has(&rec, "\"aggregateType\":\"EFFECT\",\"aggregateId\":\"33333333-"));
    CHECK(!feed_has(&rec, "stepId"));
    rec.event = made(STR("Teleported"), STR_NONE);
    CHECK(feed_has(&rec, "\"aggregateType\":\"RUN\",\"aggregateId\":\"run-1\""));
}

TEST(event_uuids_of_text_ids) {
    uuid acme = event_tenant_uuid(STR("acme")); /* expectations from Python's uuid5() */
    uuid want;
    CHECK(uuid_parse(STR("5cc23480-2b0d-594e-99b3-312abde9dfbc"), &want) && uuid_eq(acme, want));
    CHECK(uuid_parse(STR("e3e52b8f-8277-5c91-b6af-f7de373e5560"), &want));
    CHECK(uuid_eq(event_uuid_of(acme, STR("run-1")), want));
    str text = STR("6f1c9a52-7f44-4a55-8b0c-0e6a5c1d2e3f");
    CHECK(uuid_parse(text, &want) && uuid_eq(event_uuid_of(acme, text), want));
}
