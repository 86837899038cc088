#include "cli/parse.h"

#include "base/json.h"
#include "base/limits.h"
#include "test.h"

static yyjson_val *value_of(const struct buf *text, struct arena *arena) {
    struct json_limits limits = {LINE_BYTES_MAX, JSON_DEPTH_MAX};
    struct error err = {0};
    yyjson_val *root = NULL;
    CHECK(json_parse(buf_str(text), limits, arena, &root, &err) == ST_OK, "%s", err.msg);
    return root;
}

static struct event_record record_of(const char *type, str subject, str payload) {
    struct event_record rec = {.seq = 41,
                               .run_seq = 7,
                               .persisted_us = 1771228800123456,
                               .cause_seq = 40,
                               .correlation_id = uuid_v4(),
                               .cause_id = uuid_v4(),
                               .actor = STR("ann \"x\"")};
    rec.event = (struct event){.type = event_type_of(str_c(type)),
                               .type_name = str_c(type),
                               .run_id = STR("run/1"),
                               .tenant_id = STR("t"),
                               .project_id = STR("p"),
                               .environment_id = STR("e"),
                               .plan_id = STR("plan"),
                               .plan_version = STR("2"),
                               .subject = subject,
                               .engine_attempt = 1,
                               .logical_attempt = 3,
                               .event_id = uuid_v4(),
                               .emitted_ns = 1771228800123456700,
                               .emitted_digits = 7,
                               .payload = payload};
    event_key_derive(&rec.event, rec.event.key);
    return rec;
}

/* What a server sends is shown byte for byte as a ledger's own record: numbers as they were
 * written, digits of time, types that nobody knows. */
TEST(cli_parse_event_gives_back_every_byte) {
    str odd = STR("{\"n\":1.50e+3,\"big\":12345678901234567890,\"s\":\"\\u0007\xc3\xa4\"}");
    struct event_record cases[] = {
        record_of("RunStarted", STR_NONE, odd), record_of("StepCompleted", STR("a"), STR_NONE),
        record_of("SomethingNew", STR("a"), STR("{}")),
        record_of("SomethingNew", STR_NONE, STR("{}")),
        record_of("SignalReceived", STR("5c1d2c0e-8a64-4b1f-9d37-62f011c47ea9"), STR("{}"))};
    cases[4].run_seq = 0;
    cases[3].actor = STR_NONE;
    cases[2].cause_seq = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena arena;
        struct buf sent;
        struct buf shown;
        struct event_record rec;
        arena_init(&arena, 4096, (size_t)1 << 20);
        buf_init(&sent, LINE_BYTES_MAX);
        buf_init(&shown, LINE_BYTES_MAX);
        event_feed_json(&cases[i], &sent);
        parse_event(value_of(&sent, &arena), &arena, &rec);
        event_feed_json(&rec, &shown);
        CHECK(str_eq(buf_str(&sent), buf_str(&shown)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&shown)));
        buf_clear(&sent);
        buf_clear(&shown);
        event_record_json(&cases[i], &sent);
        parse_event(value_of(&sent, &arena), &arena, &rec);
        event_record_json(&rec, &shown);
        CHECK(str_eq(buf_str(&sent), buf_str(&shown)), "case %zu", i);
        CHECK(rec.seq == cases[i].run_seq);
        buf_release(&sent);
        buf_release(&shown);
        arena_release(&arena);
    }
}

TEST(cli_parse_explanation_gives_back_every_byte) {
    struct wait waits[] = {
        {.kind = WAIT_APPROVAL, .step = STR("gate"), .since_us = 1771228800000001},
        {.kind = WAIT_RETRY, .step = STR("a"), .until_us = 1771228800000002},
        {.kind = WAIT_WORKER, .on = STR("queue"), .detail = STR("in \"words\"")}};
    const struct {
        bool wakes;
        int64_t us;
    } wakes[] = {{false, 0}, {true, 0}, {true, 1771228801000000}};
    for (size_t i = 0; i < COUNT_OF(wakes); i++) {
        struct arena arena;
        struct buf sent;
        struct buf shown;
        struct explanation got;
        struct explanation x = {
            .snapshot = {.run_id = STR("r"), .status = RUN_RUNNING, .started_us = 1771228800000000},
            .waits = waits,
            .count = COUNT_OF(waits),
            .wakes = wakes[i].wakes,
            .wake_us = wakes[i].us,
            .node = i == 0 ? STR_NONE : STR("local"),
            .alive = i == 1};
        arena_init(&arena, 4096, (size_t)1 << 20);
        buf_init(&sent, LINE_BYTES_MAX);
        buf_init(&shown, LINE_BYTES_MAX);
        explanation_json(&x, &sent);
        parse_explanation(value_of(&sent, &arena), &arena, &got);
        explanation_json(&got, &shown);
        CHECK(str_eq(buf_str(&sent), buf_str(&shown)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&shown)));
        CHECK(got.wakes == x.wakes && got.wake_us == x.wake_us && got.alive == x.alive);
        buf_release(&sent);
        buf_release(&shown);
        arena_release(&arena);
    }
}

/* A newer server says more, a broken one less: neither is a reason to fall over. */
TEST(cli_parse_takes_what_it_finds) {
    struct arena arena;
    struct buf text;
    struct run_info run;
    arena_init(&arena, 4096, (size_t)1 << 20);
    buf_init(&text, 4096);
    buf_put_c(&text, "{\"runId\":7,\"status\":\"SOMETHING\",\"mark\":null,\"runSeq\":\"x\","
                     "\"openedAt\":\"yesterday\",\"correlationId\":\"no\",\"more\":[]}");
    parse_run(value_of(&text, &arena), &run);
    CHECK(!run.run_id.ptr && run.head.status == RUN_NEW && !run.head.inconsistent);
    CHECK(run.head.run_seq == 0 && run.opened_us == 0);
    buf_clear(&text);
    buf_put_c(&text, "[]");
    parse_run(value_of(&text, &arena), &run);
    CHECK(!run.run_id.ptr);
    buf_release(&text);
    arena_release(&arena);
}

/* The same for an effect, in every state: what is shown depends on it. */
TEST(cli_parse_effect_gives_back_every_byte) {
    for (int s = OUTBOX_PENDING; s < OUTBOX_STATUS_COUNT; s++) {
        struct effect_info info = {.correlation = uuid_v4(),
                                   .run_id = STR("run/1"),
                                   .tenant_id = STR("t"),
                                   .key = STR("k"),
                                   .payload = STR("{\"n\":1.50,\"idempotency_key\":\"k\"}")};
        struct arena arena;
        struct effect_info back;
        struct buf first;
        struct buf second;
        info.effect = (struct effect){.status = (enum outbox_status)s,
                                      .executions = 4,
                                      .retry_count = 2,
                                      .max_retries = 3,
                                      .base_ms = 1000,
                                      .due_us = 1771228800123456,
                                      .created_us = 1771228700123456,
                                      .id = uuid_v4(),
                                      .type = STR("SEND_EMAIL")};
        if (s == OUTBOX_COMPLETED) {
            info.effect.processed_us = 1771228900123456;
            info.result = STR("null");
            info.step_id = STR("tell");
        }
        if (s == OUTBOX_FAILED) info.error = STR("{\"code\":\"A\",\"message\":\"\xc3\xa4\"}");
        arena_init(&arena, 4096, (size_t)1024 * 1024);
        buf_init(&first, EVENT_BYTES_MAX);
        buf_init(&second, EVENT_BYTES_MAX);
        effect_json(&info, &first);
        parse_effect(value_of(&first, &arena), &arena, &back);
        effect_json(&back, &second);
        CHECK(str_eq(buf_str(&first), buf_str(&second)), "%.*s\n%.*s", STR_ARG(buf_str(&first)),
              STR_ARG(buf_str(&second)));
        buf_release(&first);
        buf_release(&second);
        arena_release(&arena);
    }
}
