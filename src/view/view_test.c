#include "view/view.h"

#include "base/limits.h"
#include "base/os.h"
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
TEST(view_event_gives_back_every_byte) {
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
        view_read(&view_event, value_of(&sent, &arena), &arena, &rec);
        event_feed_json(&rec, &shown);
        CHECK(str_eq(buf_str(&sent), buf_str(&shown)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&shown)));
        buf_clear(&sent);
        buf_clear(&shown);
        event_record_json(&cases[i], &sent);
        view_read(&view_event, value_of(&sent, &arena), &arena, &rec);
        event_record_json(&rec, &shown);
        CHECK(str_eq(buf_str(&sent), buf_str(&shown)), "case %zu", i);
        CHECK(rec.seq == cases[i].run_seq);
        buf_release(&sent);
        buf_release(&shown);
        arena_release(&arena);
    }
}

TEST(view_explanation_gives_back_every_byte) {
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
        view_write(&view_explanation, &x, &sent);
        view_read(&view_explanation, value_of(&sent, &arena), &arena, &got);
        view_write(&view_explanation, &got, &shown);
        CHECK(str_eq(buf_str(&sent), buf_str(&shown)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&shown)));
        CHECK(got.wakes == x.wakes && got.wake_us == x.wake_us && got.alive == x.alive);
        buf_release(&sent);
        buf_release(&shown);
        arena_release(&arena);
    }
}

/* A newer server says more, a broken one less: neither is a reason to fall over. */
TEST(view_read_takes_what_it_finds) {
    struct arena arena;
    struct buf text;
    struct run_info run;
    arena_init(&arena, 4096, (size_t)1 << 20);
    buf_init(&text, 4096);
    buf_put_c(&text, "{\"runId\":7,\"status\":\"SOMETHING\",\"mark\":null,\"runSeq\":\"x\","
                     "\"openedAt\":\"yesterday\",\"correlationId\":\"no\",\"more\":[]}");
    view_read(&view_run, value_of(&text, &arena), &arena, &run);
    CHECK(!run.run_id.ptr && run.head.status == RUN_NEW && !run.head.inconsistent);
    CHECK(run.head.run_seq == 0 && run.opened_us == 0);
    buf_clear(&text);
    buf_put_c(&text, "[]");
    view_read(&view_run, value_of(&text, &arena), &arena, &run);
    CHECK(!run.run_id.ptr);
    buf_release(&text);
    arena_release(&arena);
}

/* The same for an effect, in every state: what is shown depends on it. */
TEST(view_effect_gives_back_every_byte) {
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
        view_write(&view_effect, &info, &first);
        view_read(&view_effect, value_of(&first, &arena), &arena, &back);
        view_write(&view_effect, &back, &second);
        CHECK(str_eq(buf_str(&first), buf_str(&second)), "%.*s\n%.*s", STR_ARG(buf_str(&first)),
              STR_ARG(buf_str(&second)));
        buf_release(&first);
        buf_release(&second);
        arena_release(&arena);
    }
}

/* WE-2.1.2-7: runId and status always, the others only when they are known. */
TEST(view_snapshot_has_what_is_known) {
    struct run_snapshot s = {.run_id = STR("r\"1"), .status = RUN_NEW};
    struct buf b;
    buf_init(&b, 4096);
    view_write(&view_snapshot, &s, &b);
    CHECK(str_eq(buf_str(&b), STR("{\"runId\":\"r\\\"1\",\"status\":\"PENDING\"}")));
    buf_clear(&b);
    s = (struct run_snapshot){.run_id = STR("r"),
                              .status = RUN_FAILED,
                              .substatus = STR("temporal/X"),
                              .message = STR("m"),
                              .started_us = 1000000,
                              .completed_us = 2500000};
    view_write(&view_snapshot, &s, &b);
    CHECK(str_eq(buf_str(&b),
                 STR("{\"runId\":\"r\",\"status\":\"FAILED\",\"substatus\":\"temporal/X\","
                     "\"message\":\"m\",\"startedAt\":\"1970-01-01T00:00:01.000000Z\","
                     "\"completedAt\":\"1970-01-01T00:00:02.500000Z\"}")),
          "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
}

TEST(view_explanation_goes_on_inside_the_snapshot) {
    struct wait waits[] = {{.kind = WAIT_APPROVAL, .step = STR("a"), .since_us = 1000000},
                           {.kind = WAIT_SIGNAL, .step = STR("b"), .on = STR("go")}};
    struct explanation x = {.snapshot = {.run_id = STR("r"), .status = RUN_RUNNING},
                            .waits = waits,
                            .count = 2,
                            .wakes = true,
                            .node = STR("n"),
                            .alive = true};
    struct buf b;
    buf_init(&b, 4096);
    view_write(&view_explanation, &x, &b);
    CHECK(str_eq(buf_str(&b),
                 STR("{\"runId\":\"r\",\"status\":\"RUNNING\",\"waits\":[{\"kind\":\"approval\","
                     "\"stepId\":\"a\",\"since\":\"1970-01-01T00:00:01.000000Z\"},"
                     "{\"kind\":\"signal\",\"stepId\":\"b\",\"on\":\"go\"}],\"node\":\"n\","
                     "\"nodeAlive\":true,\"nextWake\":\"now\"}")),
          "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
    for (int i = 0; i < WAIT_KIND_COUNT; i++)
        CHECK(strlen(wait_kind_name((enum wait_kind)i)) > 0);
}
