#include "adapters/temporal/commands.h"

#include <string.h>

#include "adapters/temporal/events_test.h"
#include "base/json.h"
#include "test.h"

#define INPUT                                                                                      \
    "{\"cairn\":1,\"runId\":\"r1\",\"tenantId\":\"t\",\"projectId\":\"p\",\"environmentId\":"      \
    "\"e\",\"planRef\":{\"uri\":\"u\"}}"

static const char negative[] =
    "{\"cairn\":1,\"runId\":\"r1\",\"tenantId\":\"t\",\"projectId\":\"p\",\"environmentId\":"
    "\"e\",\"planRef\":1,\"continued\":-1}";

struct desk {
    struct events e;
    struct history h;
    struct plan_step steps[4];
    struct attempt attempts[4];
    struct wanted_attempt wanted[4];
    struct commands_want want;
    struct commands out;
};

static void desk_init(struct desk *d) {
    static const char *const names[] = {"a", "b", "c", "d"};
    *d = (struct desk){0};
    events_init(&d->e);
    events_started(&d->e, INPUT, "");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        d->steps[i] = (struct plan_step){.id = str_c(names[i])};
        d->attempts[i] = (struct attempt){.step = &d->steps[i],
                                          .run_id = STR("r1"),
                                          .tenant_id = STR("t"),
                                          .project_id = STR("p"),
                                          .environment_id = STR("e"),
                                          .plan_ref = STR("{\"uri\":\"u\"}"),
                                          .body = STR("{\"command\":[\"x\"]}"),
                                          .number = 1};
        d->wanted[i] = (struct wanted_attempt){.attempt = &d->attempts[i],
                                               .id = activity_id(d->steps[i].id, 1, &d->e.arena)};
    }
    d->want = (struct commands_want){.history = &d->h,
                                     .attempts = d->wanted,
                                     .attempt_count = COUNT_OF(names),
                                     .may_continue = true,
                                     .activity_queue = STR("q"),
                                     .workflow_queue = STR("q.node"),
                                     .heartbeat_ms = 20000};
}

static void desk_make(struct desk *d) {
    struct error err = {0};
    events_fold(&d->e, &d->h);
    CHECK(commands_make(&d->want, &d->e.arena, &d->out, &err) == ST_OK, "%s", err.msg);
}

TEST(temporal_commands_schedule_what_is_not_there) {
    struct desk d;
    desk_init(&d);
    d.attempts[2].timeout_ms = 5000;
    events_task(&d.e, false);
    (void)events_scheduled(&d.e, "a#1");
    int64_t b = events_scheduled(&d.e, "b#1");
    events_activity_started(&d.e, b, 1);
    events_completed(&d.e, b, "{}");
    desk_make(&d);
    CHECK(d.out.count == 2 && !d.out.closes && !d.out.continues && !d.out.more);
    CHECK(d.wanted[0].due == WANTED_WAITS && d.wanted[1].due == WANTED_ENDED);
    CHECK(d.wanted[2].due == WANTED_SCHEDULED && d.wanted[3].due == WANTED_SCHEDULED);
    const Tp__Command *c = d.out.items[0];
    CHECK(c->command_type == 1);
    CHECK(str_eq(wire_str(c->schedule_activity->activity_id), STR("c#1")));
    CHECK(str_eq(wire_str(c->schedule_activity->task_queue->name), STR("q")));
    CHECK(c->schedule_activity->start_to_close_timeout->seconds == 65);
    CHECK(c->schedule_activity->heartbeat_timeout->seconds == 20);
    CHECK(c->schedule_activity->retry_policy->maximum_attempts == 0);
    CHECK(str_eq(wire_json_of(c->schedule_activity->input),
                 STR("{\"runId\":\"r1\",\"tenantId\":\"t\",\"projectId\":\"p\","
                     "\"environmentId\":\"e\","
                     "\"correlationId\":\"00000000-0000-0000-0000-000000000000\","
                     "\"planRef\":{\"uri\":\"u\"},\"stepId\":\"c\",\"attempt\":1,"
                     "\"timeoutMs\":5000,\"body\":{\"command\":[\"x\"]}}")));
    CHECK(d.out.items[1]->schedule_activity->start_to_close_timeout->seconds ==
          (int64_t)30 * 24 * 3600);
    events_release(&d.e);
}

TEST(temporal_commands_stop_what_is_there_and_nothing_else) {
    struct desk d;
    desk_init(&d);
    events_task(&d.e, false);
    int64_t a = events_scheduled(&d.e, "a#1");
    int64_t b = events_scheduled(&d.e, "b#1");
    events_cancel_requested(&d.e, b);
    for (size_t i = 0; i < COUNT_OF(d.wanted); i++)
        d.wanted[i].stop = true;
    d.want.attempt_count = 3;
    desk_make(&d);
    CHECK(d.out.count == 1 && d.out.items[0]->command_type == 2);
    CHECK(d.out.items[0]->cancel_activity->scheduled_event_id == a);
    CHECK(d.wanted[0].due == WANTED_CANCELLED);
    CHECK(d.wanted[1].due == WANTED_WAITS);
    CHECK(d.wanted[2].due == WANTED_NEVER);
    events_release(&d.e);
}

TEST(temporal_commands_close_an_execution) {
    static const struct {
        enum run_status close;
        int32_t type;
    } cases[] = {{RUN_COMPLETED, 4}, {RUN_FAILED, 5}, {RUN_CANCELLED, 7}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct desk d;
        desk_init(&d);
        d.want.close = cases[i].close;
        d.want.code = STR("STEP_FAILED");
        d.want.message = STR("because");
        desk_make(&d);
        CHECK(d.out.count == 1 && d.out.closes, "case %zu", i);
        const Tp__Command *c = d.out.items[0];
        CHECK(c->command_type == cases[i].type, "case %zu", i);
        if (cases[i].close == RUN_COMPLETED)
            CHECK(str_eq(wire_json_of(c->complete->result), STR("{\"status\":\"COMPLETED\"}")));
        if (cases[i].close == RUN_FAILED) {
            CHECK(str_eq(wire_str(c->fail->failure->message), STR("because")));
            CHECK(str_eq(wire_str(c->fail->failure->application->type), STR("STEP_FAILED")));
            CHECK(c->fail->failure->application->non_retryable);
        }
        events_release(&d.e);
    }
}

TEST(temporal_commands_continue_as_new_when_nothing_is_pending) {
    struct desk d;
    desk_init(&d);
    int64_t a = events_scheduled(&d.e, "a#1");
    events_task(&d.e, true);
    desk_make(&d); /* a is pending: nothing new begins */
    CHECK(d.out.count == 0 && !d.out.continues && d.wanted[1].due == WANTED_WAITS);
    events_activity_started(&d.e, a, 1);
    events_completed(&d.e, a, "{}");
    events_task(&d.e, true);
    desk_make(&d); /* its result is not told yet */
    CHECK(d.out.count == 0 && !d.out.continues && d.wanted[0].due == WANTED_ENDED);
    d.want.attempts = &d.wanted[1];
    d.want.attempt_count = 3;
    d.want.may_continue = false;
    desk_make(&d); /* it is told, and perhaps not recorded */
    CHECK(d.out.count == 0 && !d.out.continues);
    d.want.may_continue = true;
    desk_make(&d);
    CHECK(d.out.count == 1 && d.out.continues && d.out.items[0]->command_type == 10);
    const Tp__ContinueAsNew *c = d.out.items[0]->continue_as_new;
    CHECK(str_eq(wire_str(c->workflow_type->name), STR("plan.run")));
    CHECK(str_eq(wire_str(c->task_queue->name), STR("q.node")));
    struct execution_input input;
    struct error err = {0};
    CHECK(execution_input_parse(wire_json_of(c->input), &d.e.arena, &input, &err) == ST_OK, "%s",
          err.msg);
    CHECK(str_eq(input.run_id, STR("r1")) && str_eq(input.plan_ref, STR("{\"uri\":\"u\"}")));
    CHECK(input.continued == 1);
    events_release(&d.e);
}

TEST(temporal_commands_stay_within_what_the_cluster_takes) {
    struct desk d;
    desk_init(&d);
    size_t size = (size_t)1500 * 1024;
    char *big = arena_alloc(&d.e.arena, size);
    memset(big, ' ', size);
    big[0] = '{';
    big[size - 1] = '}';
    for (size_t i = 0; i < COUNT_OF(d.attempts); i++)
        d.attempts[i].body = str_n(big, size);
    desk_make(&d);
    CHECK(d.out.count == 2 && d.out.more);
    CHECK(d.wanted[1].due == WANTED_SCHEDULED && d.wanted[2].due == WANTED_WAITS);
    size = WIRE_PAYLOAD_MAX;
    big = arena_alloc(&d.e.arena, size);
    d.attempts[0].body = str_n(big, size);
    d.want.attempt_count = 1;
    desk_make(&d);
    CHECK(d.out.count == 0 && d.wanted[0].due == WANTED_TOO_LARGE);
    events_release(&d.e);
}

TEST(temporal_inputs_that_are_none_are_refused) {
    static const char *const bad[] = {"", "[]", "{}", "{\"runId\":1}", negative};
    struct arena arena;
    arena_init(&arena, 1024, 65536);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct execution_input out;
        struct error err = {0};
        CHECK(execution_input_parse(str_c(bad[i]), &arena, &out, &err) == ST_INVALID, "case %zu",
              i);
    }
    arena_release(&arena);
}
