#include "core/event_v1.h"

#include "base/time.h"
#include "test.h"

#define V1(extra)                                                                                  \
    "{\"eventType\":\"StepStarted\",\"runId\":\"r\",\"tenantId\":\"t\",\"projectId\":\"p\","       \
    "\"environmentId\":\"e\",\"planId\":\"pl\","                                                   \
    "\"planVersion\":\"1\",\"engineAttemptId\":1,\"logicalAttemptId\":1,\"stepId\":\"s\"," extra   \
    "}"

static struct event_v1_window window_until(const char *text) {
    struct event_v1_window w = {.fresh_id = uuid_v4()};
    int digits = 0;
    CHECK(time_parse_utc(str_c(text), &w.until_ns, &digits));
    return w;
}

TEST(event_v1_is_normalised_inside_the_window_and_refused_outside) {
    static const struct {
        const char *json;
        status want;
        const char *reason;
    } cases[] = {{V1("\"occurredAt\":\"2026-01-31T23:59:59Z\""), ST_OK, ""},
                 {V1("\"timestamp\":\"2026-01-31T23:59:59.5Z\",\"runSeq\":7,\"persistedAt\":\"x\","
                     "\"idempotencyKey\":\"of v1\""),
                  ST_OK, ""},
                 {V1("\"occurredAt\":\"2026-02-01T00:00:00Z\""), ST_INVALID,
                  "V1_WINDOW_CLOSED"}, /* the first instant after it */
                 {V1("\"occurredAt\":\"yesterday\""), ST_INVALID, "TIME_NOT_RFC3339_UTC"},
                 {V1("\"occurredAt\":\"2026-01-01T00:00:00Z\",\"payload\":[]"), ST_INVALID,
                  "PAYLOAD_NOT_OBJECT"},
                 {V1("\"occurredAt\":\"2026-01-01T00:00:00Z\",\"eventId\":\"x\""), ST_INVALID,
                  "EVENT_ID_NOT_UUID_V4"},
                 {"{\"eventType\":\"RunStarted\",\"occurredAt\":\"2026-01-01T00:00:00Z\"}",
                  ST_INVALID, "FIELD_EMPTY"},
                 {V1("\"emittedAt\":\"2026-01-01T00:00:00Z\""), ST_INVALID,
                  "FIELD_MISSING"}, /* v2-shaped: judged as such */
                 {"[]", ST_INVALID, "EVENT_NOT_OBJECT"},
                 {"{", ST_INVALID, "JSON_SYNTAX"}};
    struct event_v1_window window = window_until("2026-02-01T00:00:00Z");
    struct arena arena;
    arena_init(&arena, 4096, 1 << 20);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        struct event e;
        CHECK(event_parse_any(str_c(cases[i].json), &window, &arena, &e, &err) == cases[i].want,
              "case %zu: %s", i, err.msg);
        CHECK(str_eq(str_c(reason_name(err.reason)), str_c(cases[i].reason)), "case %zu: %s", i,
              reason_name(err.reason));
        if (cases[i].want != ST_OK) continue;
        uint8_t key[SHA256_LEN];
        event_key_derive(&e, key);
        CHECK(memcmp(key, e.key, SHA256_LEN) == 0 && uuid_eq(e.event_id, window.fresh_id),
              "case %zu", i);
    }
    struct event_v1_window closed = {0};
    struct error err = {0};
    struct event e;
    CHECK(event_parse_any(str_c(cases[0].json), &closed, &arena, &e, &err) == ST_INVALID);
    CHECK(err.reason == REASON_FIELD_RESERVED, "%s",
          reason_name(err.reason)); /* occurredAt, as in any v2 write */
    arena_release(&arena);
}
