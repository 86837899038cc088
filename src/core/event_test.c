/* core/event_test.c: the door: what is refused, and how that is said. */
#include "core/event.h"

#include "base/limits.h"
#include "test.h"

#define X5 "xxxxx"
#define X50 X5 X5 X5 X5 X5 X5 X5 X5 X5 X5
#define X250 X50 X50 X50 X50 X50
#define X256 X250 X5 "x"
#define A15 "aaaaaaaaaaaaaaa"

static struct arena arena_make(void) {
    struct arena a;
    arena_init(&a, 4096, (size_t)64 << 20);
    return a;
}

/* ---- two events as members, any of which a case replaces ---- */

struct member {
    const char *name, *raw;
};
enum base { RUN_LEVEL, STEP_LEVEL };
#define COMMON(type, key)                                                                          \
    {"eventId", "\"6f1c9a52-7f44-4a55-8b0c-0e6a5c1d2e3f\""}, {"eventType", type},                  \
        {"emittedAt", "\"2026-02-16T08:00:00Z\""}, {"runId", "\"run-1\""},                         \
        {"tenantId", "\"acme\""}, {"projectId", "\"shop\""}, {"environmentId", "\"prod\""},        \
        {"planId", "\"orders\""}, {"planVersion", "\"7\""}, {"engineAttemptId", "1"},              \
        {"logicalAttemptId", "1"}, {                                                               \
        "idempotencyKey", key                                                                      \
    }
/* The keys were made with sha256sum. */
static const struct member run_level[] = {COMMON(
    "\"RunStarted\"", "\"9b610b033355eefe2623aac5f20393bb7619ec03a9ed306c7b479335c29c0da6\"")};
static const struct member step_level[] = {
    COMMON("\"StepStarted\"",
           "\"8ed68b073739df649a2dd88f24e2cabc917a35933e4a7552eb9f4363a6ca0f91\""),
    {"stepId", "\"extract\""}};

static void put_member(struct buf *out, const char *name, const char *raw) {
    if (raw == NULL) return; /* left out */
    buf_put_char(out, out->len == 0 ? '{' : ',');
    buf_put_json_str(out, str_c(name));
    buf_put_char(out, ':');
    buf_put_c(out, raw);
}

/* The base with one member replaced (raw NULL: removed), or added at the end. */
static void put_event(struct buf *out, enum base base, const char *name, const char *raw) {
    const struct member *members = base == RUN_LEVEL ? run_level : step_level;
    size_t count = base == RUN_LEVEL ? COUNT_OF(run_level) : COUNT_OF(step_level);
    bool replaced = false;
    for (size_t i = 0; i < count; i++) {
        bool hit = name != NULL && strcmp(members[i].name, name) == 0;
        put_member(out, members[i].name, hit ? raw : members[i].raw);
        replaced = replaced || hit;
    }
    if (name != NULL && !replaced) put_member(out, name, raw);
    buf_put_char(out, '}');
}

static status parse_with(enum base base, const char *name, const char *raw, struct event *out,
                         struct error *err) {
    static struct arena arena; /* what the last call gave back lives until the next */
    arena_release(&arena);
    arena = arena_make();
    struct buf json;
    buf_init(&json, (size_t)1 << 20);
    put_event(&json, base, name, raw);
    str copy = arena_str(&arena, buf_str(&json));
    buf_release(&json);
    return event_parse(copy, &arena, out, err);
}

/* ---- what is refused ---- */

struct bad_case {
    enum base base;
    const char *name, *raw; /* the member that is changed */
    const char *reason;
    const char *msg; /* part of the message */
};

/* `where` is the member's pointer in all of these. */
static const struct bad_case missing_or_empty[] = {
    {RUN_LEVEL, "eventId", NULL, "FIELD_MISSING", "event: missing field \"eventId\""},
    {RUN_LEVEL, "eventType", NULL, "FIELD_MISSING", "event: missing field \"eventType\""},
    {RUN_LEVEL, "emittedAt", NULL, "FIELD_MISSING", "event: missing field \"emittedAt\""},
    {RUN_LEVEL, "runId", NULL, "FIELD_MISSING", "event: missing field \"runId\""},
    {RUN_LEVEL, "tenantId", NULL, "FIELD_MISSING", "event: missing field \"tenantId\""},
    {RUN_LEVEL, "projectId", NULL, "FIELD_MISSING", "event: missing field \"projectId\""},
    {RUN_LEVEL, "environmentId", NULL, "FIELD_MISSING", "missing field \"environmentId\""},
    {RUN_LEVEL, "planId", NULL, "FIELD_MISSING", "event: missing field \"planId\""},
    {RUN_LEVEL, "planVersion", NULL, "FIELD_MISSING", "event: missing field \"planVersion\""},
    {RUN_LEVEL, "engineAttemptId", NULL, "FIELD_MISSING", "missing field \"engineAttemptId\""},
    {RUN_LEVEL, "logicalAttemptId", NULL, "FIELD_MISSING", "missing field \"logicalAttemptId\""},
    {RUN_LEVEL, "idempotencyKey", NULL, "FIELD_MISSING", "missing field \"idempotencyKey\""},
    {STEP_LEVEL, "stepId", NULL, "STEP_ID_REQUIRED", "StepStarted is step-level and needs"},
    {RUN_LEVEL, "eventType", "\"\"", "FIELD_EMPTY", "\"eventType\" must not be empty"},
    {RUN_LEVEL, "runId", "\"\"", "FIELD_EMPTY", "\"runId\" must not be empty"},
    {RUN_LEVEL, "tenantId", "\"\"", "FIELD_EMPTY", "\"tenantId\" must not be empty"},
    {RUN_LEVEL, "projectId", "\"\"", "FIELD_EMPTY", "\"projectId\" must not be empty"},
    {RUN_LEVEL, "environmentId", "\"\"", "FIELD_EMPTY", "\"environmentId\" must not be empty"},
    {RUN_LEVEL, "planId", "\"\"", "FIELD_EMPTY", "\"planId\" must not be empty"},
    {RUN_LEVEL, "planVersion", "\"\"", "FIELD_EMPTY", "\"planVersion\" must not be empty"},
    {STEP_LEVEL, "stepId", "\"\"", "FIELD_EMPTY", "\"stepId\" must not be empty"},
};

static const struct bad_case wrong_type[] = {
    {RUN_LEVEL, "eventId", "null", "FIELD_TYPE", "\"eventId\" must be a string, found null"},
    {RUN_LEVEL, "eventType", "[]", "FIELD_TYPE", "\"eventType\" must be a string, found array"},
    {RUN_LEVEL, "emittedAt", "1771228800", "FIELD_TYPE", "\"emittedAt\" must be a string"},
    {RUN_LEVEL, "runId", "12", "FIELD_TYPE", "\"runId\" must be a string"},
    {RUN_LEVEL, "tenantId", "true", "FIELD_TYPE", "\"tenantId\" must be a string, found true"},
    {RUN_LEVEL, "projectId", "{}", "FIELD_TYPE", "\"projectId\" must be a string, found object"},
    {RUN_LEVEL, "environmentId", "false", "FIELD_TYPE", "\"environmentId\" must be a string"},
    {RUN_LEVEL, "planId", "7", "FIELD_TYPE", "\"planId\" must be a string"},
    {RUN_LEVEL, "planVersion", "2", "FIELD_TYPE", "\"planVersion\" must be a string"},
    {RUN_LEVEL, "idempotencyKey", "0", "FIELD_TYPE", "\"idempotencyKey\" must be a string"},
    {STEP_LEVEL, "stepId", "null", "FIELD_TYPE", "\"stepId\" must be a string, found null"},
    {RUN_LEVEL, "engineAttemptId", "\"1\"", "FIELD_TYPE", "\"engineAttemptId\" must be a number"},
    {RUN_LEVEL, "logicalAttemptId", "\"1\"", "FIELD_TYPE", "must be a number, found string"},
    {RUN_LEVEL, "logicalAttemptId", "null", "FIELD_TYPE", "must be a number, found null"},
    {RUN_LEVEL, "logicalAttemptId", "true", "FIELD_TYPE", "must be a number, found true"},
    {RUN_LEVEL, "logicalAttemptId", "1.0", "NUMBER_NOT_INTEGER", "must be a whole number"},
    {RUN_LEVEL, "logicalAttemptId", "1.5", "NUMBER_NOT_INTEGER", "must be a whole number"},
    {RUN_LEVEL, "logicalAttemptId", "1e0", "NUMBER_NOT_INTEGER", "must be a whole number"},
    {RUN_LEVEL, "engineAttemptId", "1E3", "NUMBER_NOT_INTEGER", "\"engineAttemptId\" must be a"},
    {RUN_LEVEL, "engineAttemptId", "9223372036854775808", "NUMBER_NOT_INTEGER", "at most 64 bits"},
    {RUN_LEVEL, "logicalAttemptId", "99999999999999999999", "NUMBER_NOT_INTEGER", "64 bits"},
    {RUN_LEVEL, "logicalAttemptId", "0", "ATTEMPT_OUT_OF_RANGE", "counts from 1 to 2^53-1, found 0"},
    {RUN_LEVEL, "logicalAttemptId", "-0", "ATTEMPT_OUT_OF_RANGE", "counts from 1 to 2^53-1, found 0"},
    {RUN_LEVEL, "logicalAttemptId", "-1", "ATTEMPT_OUT_OF_RANGE", "counts from 1 to 2^53-1, found -1"},
    {RUN_LEVEL, "logicalAttemptId", "9007199254740992", "ATTEMPT_OUT_OF_RANGE", "2^53-1, found"},
    {RUN_LEVEL, "engineAttemptId", "0", "ATTEMPT_OUT_OF_RANGE", "\"engineAttemptId\" counts from"},
    {RUN_LEVEL, "payload", "null", "PAYLOAD_NOT_OBJECT", "must be an object, found null"},
    {RUN_LEVEL, "payload", "[]", "PAYLOAD_NOT_OBJECT", "must be an object, found array"},
    {RUN_LEVEL, "payload", "\"{}\"", "PAYLOAD_NOT_OBJECT", "must be an object, found string"},
    {RUN_LEVEL, "payload", "1", "PAYLOAD_NOT_OBJECT", "\"payload\" must be an object"},
};

static const struct bad_case wrong_text[] = {
    {RUN_LEVEL, "runId", "\"" X256 "\"", "FIELD_TOO_LONG", "has 256 bytes, at most 255 are"},
    {RUN_LEVEL, "tenantId", "\"" X256 "\"", "FIELD_TOO_LONG", "\"tenantId\" has 256 bytes"},
    {RUN_LEVEL, "projectId", "\"" X256 "\"", "FIELD_TOO_LONG", "\"projectId\" has 256 bytes"},
    {RUN_LEVEL, "environmentId", "\"" X256 "\"", "FIELD_TOO_LONG", "\"environmentId\" has 256"},
    {RUN_LEVEL, "planId", "\"" X256 "\"", "FIELD_TOO_LONG", "\"planId\" has 256 bytes"},
    {RUN_LEVEL, "planVersion", "\"" X256 "\"", "FIELD_TOO_LONG", "\"planVersion\" has 256 bytes"},
    {STEP_LEVEL, "stepId", "\"" X256 "\"", "FIELD_TOO_LONG", "\"stepId\" has 256 bytes"},
    {RUN_LEVEL, "eventType", "\"" X50 X50 "x\"", "FIELD_TOO_LONG", "has 101 bytes, at most 100"},
    {RUN_LEVEL, "eventType", "\"Z" A15 "Z" A15 "Z" A15 "Z" A15 "Z" A15 "Z" A15 "\"",
     "FIELD_TOO_LONG", "has 101 characters in its SCREAMING_SNAKE form, at most 100"},
    {RUN_LEVEL, "runId", "\"a|b\"", "DELIMITER_IN_FIELD", "\"runId\" must not contain '|'"},
    {RUN_LEVEL, "eventType", "\"Run|Started\"", "DELIMITER_IN_FIELD", "\"eventType\" must not"},
    {RUN_LEVEL, "planId", "\"|\"", "DELIMITER_IN_FIELD", "\"planId\" must not contain '|'"},
    {RUN_LEVEL, "planVersion", "\"7|\"", "DELIMITER_IN_FIELD", "\"planVersion\" must not"},
    {STEP_LEVEL, "stepId", "\"\\u007c\"", "DELIMITER_IN_FIELD", "\"stepId\" must not contain"},
    {RUN_LEVEL, "stepId", "\"extract\"", "STEP_ID_FORBIDDEN", "RunStarted is run-level and must"},
    {STEP_LEVEL, "eventType", "\"SignalReceived\"", "EVENT_TYPE_RESERVED", "written by the ledger"},
    {RUN_LEVEL, "eventType", "\"RunCheckpointCreated\"", "EVENT_TYPE_RESERVED", "by the ledger"},
};

static const struct bad_case wrong_id_time_or_key[] = {
    {RUN_LEVEL, "eventId", "\"\"", "EVENT_ID_NOT_UUID_V4", "is not a UUID in canonical text form"},
    {RUN_LEVEL, "eventId", "\"6f1c9a527f444a558b0c0e6a5c1d2e3f\"", "EVENT_ID_NOT_UUID_V4",
     "canonical text form"},
    {RUN_LEVEL, "eventId", "\"{6f1c9a52-7f44-4a55-8b0c-0e6a5c1d2e3f}\"", "EVENT_ID_NOT_UUID_V4",
     "canonical text form"},
    {RUN_LEVEL, "eventId", "\"543a7d34-e13b-11f1-8365-02fc00000001\"", "EVENT_ID_NOT_UUID_V4",
     "must be a UUID of version 4"},
    {RUN_LEVEL, "eventId", "\"78be93d4-7395-5143-91f9-570d936754f0\"", "EVENT_ID_NOT_UUID_V4",
     "must be a UUID of version 4"},
    {RUN_LEVEL, "eventId", "\"0198c4a5-5a1e-7c3d-9f00-1122334455aa\"", "EVENT_ID_NOT_UUID_V4",
     "must be a UUID of version 4"},
    {RUN_LEVEL, "eventId", "\"00000000-0000-0000-0000-000000000000\"", "EVENT_ID_NOT_UUID_V4",
     "must be a UUID of version 4"},
    {RUN_LEVEL, "eventId", "\"6f1c9a52-7f44-4a55-cb0c-0e6a5c1d2e3f\"", "EVENT_ID_NOT_UUID_V4",
     "must be a UUID of version 4"}, /* a 4, but the variant is Microsoft's */
    {RUN_LEVEL, "emittedAt", "\"\"", "TIME_NOT_RFC3339_UTC", "must be RFC 3339 in UTC"},
    {RUN_LEVEL, "emittedAt", "\"yesterday\"", "TIME_NOT_RFC3339_UTC", "must be RFC 3339 in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16T10:00:00+02:00\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16T08:00:00+00:00\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16t08:00:00z\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16 08:00:00Z\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16T08:00:00\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-29T08:00:00Z\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16T23:59:60Z\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16T24:00:00Z\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16T08:00:00.Z\"", "TIME_NOT_RFC3339_UTC", "in UTC"},
    {RUN_LEVEL, "emittedAt", "\"2026-02-16T08:00:00.1234567890Z\"", "TIME_NOT_RFC3339_UTC", "UTC"},
    {RUN_LEVEL, "idempotencyKey", "\"\"", "KEY_MALFORMED", "must be 64 lower-case hexadecimal"},
    {RUN_LEVEL, "idempotencyKey",
     "\"9B610B033355EEFE2623AAC5F20393BB7619EC03A9ED306C7B479335C29C0DA6\"", "KEY_MALFORMED",
     "must be 64 lower-case hexadecimal characters"},
    {RUN_LEVEL, "idempotencyKey",
     "\"9b610b033355eefe2623aac5f20393bb7619ec03a9ed306c7b479335c29c0da\"", "KEY_MALFORMED",
     "must be 64 lower-case hexadecimal characters"},
    {RUN_LEVEL, "idempotencyKey",
     "\"9b610b033355eefe2623aac5f20393bb7619ec03a9ed306c7b479335c29c0da7\"", "KEY_MISMATCH",
     "which is 9b610b033355eefe2623aac5f20393bb7619ec03a9ed306c7b479335c29c0da6"},
};

static void check_bad_cases(const struct bad_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct bad_case *c = &cases[i];
        struct error err = {0};
        struct event event = {0};
        char where[64];
        snprintf(where, sizeof where, "/%s", c->name);
        status st = parse_with(c->base, c->name, c->raw, &event, &err);
        CHECK(st == ST_INVALID && err.code == ST_INVALID, "case %zu: %s", i, c->raw);
        CHECK(strcmp(reason_name(err.reason), c->reason) == 0, "case %zu: %s", i, err.msg);
        CHECK(strcmp(err.where, where) == 0, "case %zu: %s", i, err.where);
        CHECK(strstr(err.msg, c->msg) != NULL, "case %zu: %s", i, err.msg);
        CHECK(event.run_id.ptr == NULL, "case %zu wrote its output", i);
    }
}

TEST(event_parse_refuses_missing_and_empty_members) {
    check_bad_cases(missing_or_empty, COUNT_OF(missing_or_empty));
}

TEST(event_parse_refuses_wrong_types_and_numbers) {
    check_bad_cases(wrong_type, COUNT_OF(wrong_type));
}

TEST(event_parse_refuses_wrong_texts) { check_bad_cases(wrong_text, COUNT_OF(wrong_text)); }

TEST(event_parse_refuses_wrong_ids_times_and_keys) {
    check_bad_cases(wrong_id_time_or_key, COUNT_OF(wrong_id_time_or_key));
}

TEST(event_parse_refuses_surplus_members) {
    static const struct {
        const char *name, *reason, *where, *msg;
    } cases[] = {
        {"runSeq", "FIELD_RESERVED", "/runSeq", "\"runSeq\" is assigned by the ledger"},
        {"persistedAt", "FIELD_RESERVED", "/persistedAt", "is assigned by the ledger"},
        {"occurredAt", "FIELD_RESERVED", "/occurredAt", "may not be written"},
        {"sequenceNumber", "FIELD_RESERVED", "/sequenceNumber", "may not be written"},
        {"note", "FIELD_UNKNOWN", "/note", "unknown field \"note\""},
        {"RunId", "FIELD_UNKNOWN", "/RunId", "unknown field \"RunId\""},
        {"", "FIELD_UNKNOWN", "/", "unknown field \"\""},
        {"a~b/c", "FIELD_UNKNOWN", "/a~0b~1c", "unknown field \"a~b/c\""},
        {"~", "FIELD_UNKNOWN", "/~0", "unknown field \"~\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        struct event event;
        CHECK(parse_with(RUN_LEVEL, cases[i].name, "1", &event, &err) == ST_INVALID, "case %zu", i);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
        CHECK(strstr(err.msg, cases[i].msg) != NULL, "case %zu: %s", i, err.msg);
    }
}

/* Messages end up in JSON: a name that is cut is cut between characters. */
TEST(event_parse_cuts_long_names_between_characters) {
    for (size_t shift = 0; shift < 4; shift++) {
        char name[512];
        size_t len = 0;
        while (len < shift)
            name[len++] = 'x';
        for (int i = 0; i < 100; i++, len += 4)
            memcpy(name + len, "\xF0\x9F\xA7\xAA", 4);
        name[len] = '\0';
        struct error err = {0};
        struct event event;
        size_t bad = 0;
        CHECK(parse_with(RUN_LEVEL, name, "1", &event, &err) == ST_INVALID);
        CHECK(err.reason == REASON_FIELD_UNKNOWN);
        CHECK(strlen(err.where) > 80 && str_utf8(str_c(err.where), &bad), "shift %zu", shift);
        CHECK(strlen(err.msg) > 60 && str_utf8(str_c(err.msg), &bad), "shift %zu", shift);
    }
}

TEST(event_parse_refuses_what_is_no_event) {
    static const struct {
        str in;
        const char *reason, *where;
    } cases[] = {
        {STR_LIT(""), "JSON_SYNTAX", "offset 0"},
        {STR_LIT("null"), "EVENT_NOT_OBJECT", ""},
        {STR_LIT("[]"), "EVENT_NOT_OBJECT", ""},
        {STR_LIT("\"RunStarted\""), "EVENT_NOT_OBJECT", ""},
        {STR_LIT("17"), "EVENT_NOT_OBJECT", ""},
        {STR_LIT("{}"), "FIELD_MISSING", "/eventId"},
        {STR_LIT("{} {}"), "JSON_SYNTAX", "offset 3"},
        {STR_LIT("\xEF\xBB\xBF{}"), "JSON_SYNTAX", "offset 0"},
        {STR_LIT("{\"runId\":\"a\",\"runId\":\"b\"}"), "JSON_DUPLICATE_KEY", "/runId"},
        {STR_LIT("{\"payload\":{\"a\":1,\"\\u0061\":2}}"), "JSON_DUPLICATE_KEY", "/payload/a"},
        {STR_LIT("{\"runId\":\"\\u0000\"}"), "JSON_NUL", "/runId"},
        {STR_LIT("{\"runId\":\"a\0b\"}"), "JSON_NUL", "offset 11"},
        {STR_LIT("{\"runId\":\"\xFF\"}"), "JSON_UTF8", "offset 10"},
        {STR_LIT("{\"runId\":\"\\ud800\"}"), "JSON_SURROGATE", "offset 10"},
    };
    struct arena a = arena_make();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        struct event event;
        CHECK(event_parse(cases[i].in, &a, &event, &err) == ST_INVALID, "case %zu", i);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
        CHECK(err.msg[0] != '\0', "case %zu", i);
    }
    arena_release(&a);
}

/* {"a":{"a":...}} with `levels` levels, as a payload. */
static const char *nested(char *out, size_t levels) {
    char *at = out;
    for (size_t i = 0; i < levels; i++, at += 5)
        memcpy(at, "{\"a\":", 5);
    memset(at, '1', 1);
    memset(at + 1, '}', levels);
    at[levels + 1] = '\0';
    return out;
}

TEST(event_parse_bounds_depth_and_size) {
    char deep[1024];
    struct error err = {0};
    struct event event;
    CHECK(parse_with(RUN_LEVEL, "payload", nested(deep, JSON_DEPTH_MAX - 1), &event, &err) == ST_OK,
          "%s", err.msg);
    CHECK(parse_with(RUN_LEVEL, "payload", nested(deep, JSON_DEPTH_MAX), &event, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_JSON_DEPTH && str_starts(str_c(err.where), STR("/payload/a")));

    static char large[EVENT_BYTES_MAX + 64];
    memset(large, ' ', sizeof large);
    static const str head = STR_LIT("{\"a\":\"");
    memcpy(large, head.ptr, head.len);
    memcpy(large + EVENT_BYTES_MAX, "\"}", 3);
    CHECK(parse_with(RUN_LEVEL, "payload", large, &event, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_JSON_TOO_LARGE, "%s", reason_name(err.reason));
}

TEST(event_parse_takes_an_upper_case_event_id) {
    struct error err = {0};
    struct event event;
    CHECK(parse_with(RUN_LEVEL, "eventId", "\"6F1C9A52-7F44-4A55-8B0C-0E6A5C1D2E3F\"", &event,
                     &err) == ST_OK);
    CHECK(event.event_id.b[0] == 0x6f && event.type == EVENT_RUN_STARTED);
    CHECK(event.emitted_digits == 0 && event.payload.ptr == NULL && event.subject.ptr == NULL);
}

TEST(event_parse_survives_an_empty_machine) {
    struct buf json;
    buf_init(&json, 4096);
    put_event(&json, STEP_LEVEL, "payload", "{\"rows\":[1,2,3],\"text\":\"" X250 "\"}");
    bool parsed = false;
    int64_t failures = 0;
    for (int64_t n = 0; !parsed && n < 1000; n++) {
        struct arena a;
        arena_init(&a, 64, (size_t)1 << 20);
        struct event event;
        struct error err = {0};
        mem_fail_at(n);
        status st = event_parse(buf_str(&json), &a, &event, &err);
        mem_fail_at(-1);
        parsed = st == ST_OK;
        failures += !parsed;
        CHECK(parsed || st == ST_RETRY, "allocation %lld: %s", (long long)n, err.msg);
        arena_release(&a);
    }
    buf_release(&json);
    CHECK(parsed && failures >= 2, "%lld", (long long)failures);
}
