/* The bytes that we send, against those of Temporal's own encoder. */
#include "adapters/temporal/wire.h"

#include <string.h>

#include "base/hash.h"
#include "test.h"

static void check_bytes(const ProtobufCMessage *message, struct arena *arena, const char *want) {
    struct error err;
    str bytes;
    char hex[1024];
    CHECK(wire_pack(message, arena, &bytes, &err) == ST_OK, "%s", err.msg);
    CHECK(bytes.len * 2 < sizeof hex);
    hex_encode((const uint8_t *)bytes.ptr, bytes.len, hex);
    hex[bytes.len * 2] = 0;
    CHECK(strcmp(hex, want) == 0, "%s\n%s", hex, want);
}

TEST(temporal_requests_have_the_bytes_of_its_own_encoder) {
    struct arena arena;
    arena_init(&arena, 4096, 65536);
    Tp__PollRequest poll = TP__POLL_REQUEST__INIT;
    poll.namespace_ = wire_bytes(STR("default"));
    poll.task_queue = wire_queue(STR("tq1"), &arena);
    poll.identity = wire_bytes(STR("w1"));
    check_bytes(&poll.base, &arena, "0a0764656661756c7412070a0374713110011a027731");

    Tp__StartRequest start = TP__START_REQUEST__INIT;
    start.namespace_ = wire_bytes(STR("default"));
    start.workflow_id = wire_bytes(STR("run-1"));
    start.workflow_type = wire_type(STR("P"), &arena);
    start.task_queue = wire_queue(STR("tq1"), &arena);
    start.input = wire_json_list(STR("{}"), &arena);
    start.task_timeout = wire_ms(10000, &arena);
    start.identity = wire_bytes(STR("c1"));
    start.request_id = wire_bytes(STR("r1"));
    start.id_reuse_policy = 3;
    start.id_conflict_policy = 2;
    check_bytes(&start.base, &arena,
                "0a0764656661756c74120572756e2d311a030a015022070a0374713110012a1e0a1c0a160a08656e63"
                "6f64696e67120a6a736f6e2f706c61696e12027b7d4202080a4a026331520272315803b00102");

    Tp__ScheduleActivity schedule = TP__SCHEDULE_ACTIVITY__INIT;
    Tp__RetryPolicy retry = TP__RETRY_POLICY__INIT;
    retry.maximum_attempts = 1;
    schedule.activity_id = wire_bytes(STR("a#1"));
    schedule.activity_type = wire_type(STR("step"), &arena);
    schedule.task_queue = wire_queue(STR("tq1"), &arena);
    schedule.start_to_close_timeout = wire_ms(60000, &arena);
    schedule.retry_policy = &retry;
    Tp__Command command = TP__COMMAND__INIT;
    Tp__Command *commands[] = {&command};
    command.command_type = 1;
    command.attributes_case = TP__COMMAND__ATTRIBUTES_SCHEDULE_ACTIVITY;
    command.schedule_activity = &schedule;
    Tp__TaskCompletedRequest completed = TP__TASK_COMPLETED_REQUEST__INIT;
    completed.task_token = wire_bytes(STR("T"));
    completed.commands = commands;
    completed.n_commands = 1;
    completed.identity = wire_bytes(STR("w1"));
    completed.namespace_ = wire_bytes(STR("default"));
    check_bytes(&completed.base, &arena,
                "0a015412220801121e0a0361233112060a047374657022070a0374713110014a02083c5a0220011a02"
                "77314a0764656661756c74");
    arena_release(&arena);
}

TEST(temporal_answers_are_read_in_bounded_memory) {
    struct arena arena;
    struct error err;
    void *out = NULL;
    arena_init(&arena, 1024, 8192);
    CHECK(wire_unpack(&tp__empty__descriptor, STR(""), &arena, &out, &err) == ST_OK);
    CHECK(wire_unpack(&tp__empty__descriptor, STR_NONE, &arena, &out, &err) == ST_OK);
    /* A field that we do not know is no mistake; one that is cut is. */
    CHECK(wire_unpack(&tp__execution__descriptor, STR("\x0a\x01w\x7a\x01x"), &arena, &out, &err) ==
          ST_OK);
    CHECK(str_eq(wire_str(((const Tp__Execution *)out)->workflow_id), STR("w")));
    CHECK(wire_unpack(&tp__execution__descriptor, STR("\x0a\x09w"), &arena, &out, &err) ==
          ST_INVALID);
    /* Many empty events are few bytes and much memory: more than there may be. */
    char many[4000];
    for (size_t i = 0; i < sizeof many; i += 2) {
        many[i] = 0x0a;
        many[i + 1] = 0;
    }
    CHECK(wire_unpack(&tp__history__descriptor, str_n(many, sizeof many), &arena, &out, &err) ==
          ST_INVALID);
    arena_release(&arena);
}

TEST(temporal_values_are_json_or_nothing) {
    struct arena arena;
    arena_init(&arena, 1024, 65536);
    Tp__Payloads *list = wire_json_list(STR("[1]"), &arena);
    CHECK(str_eq(wire_json_of(list), STR("[1]")));
    list->payloads[0]->metadata[0]->value = wire_bytes(STR("binary/plain"));
    CHECK(!wire_json_of(list).ptr);
    list->n_payloads = 0;
    CHECK(!wire_json_of(list).ptr && !wire_json_of(NULL).ptr);
    Tp__Duration *d = wire_ms(1500, &arena);
    CHECK(d->seconds == 1 && d->nanos == 500000000);
    arena_release(&arena);
}
