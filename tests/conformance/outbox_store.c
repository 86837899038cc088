/* The outbox worker over a store that goes away, comes back and is slow, against an HTTP server
 * that counts: what was delivered is recorded once the store is back, and nothing is delivered that
 * another worker may have. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include <uv.h>

#include "base/metrics.h"
#include "base/time.h"
#include "host/effects.h"
#include "ledger/writer.h"
#include "net/fake_server_test.h"
#include "outbox/dispatch.h"
#include "outbox_helper.h"

struct rig {
    struct fixture c, reader;
    uv_loop_t loop;
    struct writer *writer;
    struct bridge *bridge;
    struct readers *readers;
    uv_async_t wake; /* of both */
    struct dispatcher_options options;
    struct dispatcher *dispatcher;
    struct fake_server *server;
    struct guard guard;
    struct guard_rule rule;
    struct db *faulty;
    atomic_bool down;    /* no connection can be made */
    atomic_int connects; /* so many were tried */
    atomic_int calls;    /* of the server */
    atomic_int fail;     /* so many are answered with 503 */
    atomic_bool hold;    /* the server does not answer */
    atomic_int sleep_ms; /* of slow_task() */
    struct writer_call slow;
    struct metrics *metrics;
    int asked; /* answers to dispatcher_ask() */
};

static int64_t wall(void *clock) {
    UNUSED(clock);
    return clock_wall_us();
}

static status connect_rig(void *context, struct db **out, struct error *err) {
    struct rig *r = context;
    struct db *inner = NULL;
    atomic_fetch_add(&r->connects, 1);
    if (atomic_load(&r->down)) return error_set(err, ST_RETRY, "the store is down");
    status st = db_open(r->c.url, DB_WRITE, &inner, err);
    if (st != ST_OK) return st;
    st = db_faulty_wrap(inner, out, err);
    if (st != ST_OK)
        db_close(inner);
    else
        r->faulty = *out;
    return st;
}

static bool on_request(void *context, int fd, const struct fake_request *request) {
    struct rig *r = context;
    UNUSED(request);
    atomic_fetch_add(&r->calls, 1);
    for (int i = 0; i < 4000 && atomic_load(&r->hold); i++)
        usleep(5000);
    if (atomic_fetch_sub(&r->fail, 1) > 0) return fake_answer(fd, 503, "", STR("{}"));
    return fake_answer(fd, 200, "Content-Type: application/json\r\n", STR("{\"ok\":true}"));
}

static void wake_loop(void *context) { /* on another thread */
    struct rig *r = context;
    CHECK(uv_async_send(&r->wake) == 0);
}

static void on_wake(uv_async_t *wake) {
    struct rig *r = wake->data;
    bridge_deliver(r->bridge);
    readers_deliver(r->readers);
}

static void rig_open(struct rig *r, str url) {
    struct error err = {0};
    *r = (struct rig){0};
    fixture_open(&r->c, url);
    fixture_put(&r->c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&r->c, fixture_item("StepStarted", "r1", "s1", 1));
    ledger_close(r->c.ledger);
    r->c.ledger = NULL;
    r->c.options.now_us = wall;
    CHECK(ledger_open_with(connect_rig, r, &r->c.options, &r->c.ledger, &err) == ST_OK, "%s",
          err.msg);
    fixture_open_reader(&r->reader, url);
    CHECK(metrics_open(&r->metrics, &err) == ST_OK, "%s", err.msg);
    CHECK(writer_open(r->c.ledger, r->metrics, &r->writer, &err) == ST_OK, "%s", err.msg);
    r->c.ledger = NULL; /* the writer's */
    r->server = fake_server_open(on_request, r);
    r->rule = (struct guard_rule){
        .scheme = STR("http"), .host = STR("127.0.0.1"), .port = fake_server_port(r->server)};
    r->guard = (struct guard){.rules = &r->rule, .rule_count = 1, .allow_private = true};
    uv_loop_init(&r->loop);
    uv_async_init(&r->loop, &r->wake, on_wake);
    r->wake.data = r;
    CHECK(bridge_open(r->writer, wake_loop, r, &r->bridge, &err) == ST_OK, "%s", err.msg);
    struct readers_options readers = {
        .url = url, .threads = 1, .queue_max = 8, .wake = wake_loop, .context = r};
    CHECK(readers_open(&readers, &r->readers, &err) == ST_OK, "%s", err.msg);
    r->options = (struct dispatcher_options){.bridge = r->bridge,
                                             .readers = r->readers,
                                             .deliver = {.guard = &r->guard},
                                             .worker = STR("w1"),
                                             .poll_ms = 200};
}

static void rig_start(struct rig *r) {
    struct error err = {0};
    CHECK(dispatcher_open(&r->loop, &r->options, &r->dispatcher, &err) == ST_OK, "%s", err.msg);
}

/* As a host does it. */
static void rig_stop(struct rig *r) {
    if (r->dispatcher) dispatcher_halt(r->dispatcher);
    readers_halt(r->readers);
    bridge_halt(r->bridge);
    writer_close(r->writer);
    r->writer = NULL;
    bridge_deliver(r->bridge);
    if (r->dispatcher) dispatcher_close(r->dispatcher);
    r->dispatcher = NULL;
}

static void rig_close(struct rig *r) {
    atomic_store(&r->hold, false);
    atomic_store(&r->down, false);
    if (r->writer) rig_stop(r);
    readers_close(r->readers);
    bridge_close(r->bridge);
    uv_close((uv_handle_t *)&r->wake, NULL);
    CHECK(uv_run(&r->loop, UV_RUN_DEFAULT) == 0);
    CHECK(uv_loop_close(&r->loop) == 0, "a handle is left");
    fake_server_close(r->server);
    metrics_close(r->metrics);
    fixture_close(&r->c);
    fixture_close(&r->reader);
}

static void turn(struct rig *r, int64_t ms) {
    int64_t until = clock_mono_ns() + ms * 1000000;
    while (clock_mono_ns() < until) {
        (void)uv_run(&r->loop, UV_RUN_NOWAIT);
        usleep(1000);
    }
}

static void wait_calls(struct rig *r, int n) {
    for (int i = 0; i < 3000 && atomic_load(&r->calls) < n; i++)
        turn(r, 10);
    CHECK(atomic_load(&r->calls) == n, "%d calls", atomic_load(&r->calls));
}

static status do_ask(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    struct effect_info info;
    bool existing = false;
    status st = ST_OK;
    for (int i = 0; i < 3 && st == ST_OK; i++) {
        char payload[128];
        int n = snprintf(payload, sizeof(payload),
                         "{\"url\":\"http://127.0.0.1:%d/\",\"idempotency_key\":\"key-%d\"}",
                         fake_server_port(r->server), i);
        struct effect_request request = {.run_id = STR("r1"),
                                         .type = STR("API_CALL"),
                                         .payload = str_n(payload, (size_t)n),
                                         .max_retries = -1,
                                         .base_ms = -1};
        st = outbox_request(ledger, &request, &r->c.arena, &info, &existing, err);
    }
    return st;
}

static void on_ledger(struct rig *r, status (*task)(struct ledger *, void *, struct error *)) {
    struct writer_call call = {.task = task, .task_context = r};
    struct error err = {0};
    CHECK(writer_append(r->writer, &call, 30000, &err) == ST_OK, "%s", err.msg);
}

/* The next call of the database fails, and the connection with it. */
static status do_break(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    UNUSED(ledger);
    UNUSED(err);
    db_faulty_fail_at(r->faulty, 0, false);
    return ST_OK;
}

static status do_claim(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    struct outbox_batch batch = {0};
    return outbox_claim(ledger, STR("w2"), STR_NONE, 10, 60000, &r->c.arena, &batch, err);
}

static status slow_task(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    usleep((useconds_t)atomic_load(&r->sleep_ms) * 1000);
    return do_break(ledger, context, err);
}

static void slow_done(struct writer_call *call) { UNUSED(call); }

/* "COMPLETED 1 0\n": status, executions and retries of each effect, in the order of their keys. */
static str states(struct rig *r) {
    return fixture_lines(&r->reader,
                         fixture_fmt("SELECT status || ' ' || executions || ' ' || retry_count FROM"
                                     " outbox_events ORDER BY idempotency_key"));
}

static void wait_states(struct rig *r, const char *want) {
    for (int i = 0; i < 1000 && !text_is(states(r), want); i++)
        turn(r, 20);
    CHECK(text_is(states(r), want), "%.*s", STR_ARG(states(r)));
}

/* The record of a delivery waits until the store is back, and does not wear it out meanwhile. */
TEST_DB(outbox_record_waits_for_the_store) {
    struct rig r;
    rig_open(&r, url);
    on_ledger(&r, do_ask);
    atomic_store(&r.hold, true);
    rig_start(&r);
    wait_calls(&r, 1);
    on_ledger(&r, do_break);
    atomic_store(&r.down, true);
    int before = atomic_load(&r.connects);
    atomic_store(&r.hold, false);
    turn(&r, 2000);
    int tried = atomic_load(&r.connects) - before;
    CHECK(tried >= 2 && tried <= 30, "the store was called %d times in 2 seconds", tried);
    CHECK(atomic_load(&r.calls) == 1);
    atomic_store(&r.down, false);
    wait_states(&r, "COMPLETED 1 0\nCOMPLETED 1 0\nCOMPLETED 1 0\n");
    CHECK(atomic_load(&r.calls) == 3);
    rig_close(&r);
}

static void on_asked(void *context, status st, const struct effect_info *info, bool existing,
                     const struct error *err) {
    struct rig *r = context;
    UNUSED(info);
    CHECK(st == ST_OK && !existing, "%s", err->msg);
    r->asked++;
}

static void ask_for(struct rig *r, int count) {
    for (int i = 0; i < count; i++) {
        char payload[128];
        struct error err = {0};
        int n = snprintf(payload, sizeof(payload),
                         "{\"url\":\"http://127.0.0.1:%d/\",\"idempotency_key\":\"key-%d\"}",
                         fake_server_port(r->server), i);
        struct effect_request request = {.run_id = STR("r1"),
                                         .type = STR("API_CALL"),
                                         .payload = str_n(payload, (size_t)n),
                                         .max_retries = -1,
                                         .base_ms = -1};
        CHECK(dispatcher_ask(r->dispatcher, &request, on_asked, r, &err) == ST_OK, "%s", err.msg);
    }
}

static status only_sleep(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    UNUSED(ledger);
    UNUSED(err);
    usleep((useconds_t)atomic_load(&r->sleep_ms) * 1000);
    return ST_OK;
}

/* While the ledger thread is busy ten deliveries end: their results are one commit. And an effect
 * is delivered only when its claim is durable: none while the ledger thread has not come to it. */
TEST_DB(outbox_ten_results_are_one_commit) {
    enum { TEN = 10 };
    struct rig r;
    struct error err = {0};
    rig_open(&r, url);
    const struct metric *commits = metrics_counter(r.metrics, "cairn_ledger_commits_total", "", "");
    atomic_store(&r.hold, true);
    rig_start(&r);
    turn(&r, 300); /* it has looked, and found nothing */
    ask_for(&r, TEN);
    for (int i = 0; i < 1000 && r.asked < TEN; i++)
        (void)uv_run(&r.loop, UV_RUN_NOWAIT);
    for (int i = 0; i < 3000 && r.asked < TEN; i++)
        turn(&r, 10);
    wait_calls(&r, TEN);
    wait_states(&r, "PROCESSING 1 0\nPROCESSING 1 0\nPROCESSING 1 0\nPROCESSING 1 0\n"
                    "PROCESSING 1 0\nPROCESSING 1 0\nPROCESSING 1 0\nPROCESSING 1 0\n"
                    "PROCESSING 1 0\nPROCESSING 1 0\n");
    int64_t before = metric_value(commits);
    atomic_store(&r.sleep_ms, 1500);
    r.slow = (struct writer_call){.task = only_sleep, .task_context = &r, .done = slow_done};
    CHECK(writer_submit(r.writer, &r.slow, &err) == ST_OK, "%s", err.msg);
    atomic_store(&r.hold, false);
    turn(&r, 1000);
    CHECK(metric_value(commits) == before, "the ledger thread sleeps");
    wait_states(&r, "COMPLETED 1 0\nCOMPLETED 1 0\nCOMPLETED 1 0\nCOMPLETED 1 0\n"
                    "COMPLETED 1 0\nCOMPLETED 1 0\nCOMPLETED 1 0\nCOMPLETED 1 0\n"
                    "COMPLETED 1 0\nCOMPLETED 1 0\n");
    CHECK(metric_value(commits) == before + 1, "%d commits", (int)(metric_value(commits) - before));
    rig_close(&r);
}

/* A claim is on its way and not durable: nobody is called. */
TEST_DB(outbox_delivers_what_is_durably_claimed) {
    struct rig r;
    struct error err = {0};
    rig_open(&r, url);
    on_ledger(&r, do_ask);
    atomic_store(&r.sleep_ms, 1500);
    r.slow = (struct writer_call){.task = only_sleep, .task_context = &r, .done = slow_done};
    CHECK(writer_submit(r.writer, &r.slow, &err) == ST_OK, "%s", err.msg);
    rig_start(&r);
    turn(&r, 1000);
    CHECK(atomic_load(&r.calls) == 0, "%d calls", atomic_load(&r.calls));
    wait_states(&r, "COMPLETED 1 0\nCOMPLETED 1 0\nCOMPLETED 1 0\n");
    rig_close(&r);
}

/* What is behind a slow delivery in its batch is not delivered after its lease: another worker may
 * have it by then. */
TEST_DB(outbox_lease_ends_before_a_delivery_begins) {
    struct rig r;
    rig_open(&r, url);
    on_ledger(&r, do_ask);
    atomic_store(&r.hold, true);
    r.options.lease_ms = 1000;
    r.options.batches = 1;
    rig_start(&r);
    wait_calls(&r, 1);
    turn(&r, 1100);
    on_ledger(&r, do_claim); /* it has */
    atomic_store(&r.hold, false);
    turn(&r, 1000);
    CHECK(atomic_load(&r.calls) == 1, "%d calls", atomic_load(&r.calls));
    wait_states(&r, "PROCESSING 2 1\nPROCESSING 2 1\nPROCESSING 2 1\n");
    rig_close(&r);
}

/* If nobody has, it is given back and taken again: it had not begun, and no retry is used up. */
TEST_DB(outbox_lease_ends_and_nobody_has_it) {
    struct rig r;
    rig_open(&r, url);
    on_ledger(&r, do_ask);
    atomic_store(&r.hold, true);
    r.options.lease_ms = 1000;
    r.options.batches = 1;
    rig_start(&r);
    wait_calls(&r, 1);
    turn(&r, 1100);
    atomic_store(&r.hold, false);
    wait_states(&r, "COMPLETED 1 0\nCOMPLETED 2 0\nCOMPLETED 2 0\n");
    CHECK(atomic_load(&r.calls) == 3);
    rig_close(&r);
}

/* A worker ends while the record of a delivery fails at the store: that effect was begun, and is
 * not given back as if it were not. */
TEST_DB(outbox_ends_while_a_record_fails) {
    struct rig r;
    struct error err = {0};
    rig_open(&r, url);
    on_ledger(&r, do_ask);
    atomic_store(&r.hold, true);
    r.options.batches = 1;
    rig_start(&r);
    wait_calls(&r, 1);
    atomic_store(&r.sleep_ms, 1000);
    r.slow = (struct writer_call){.task = slow_task, .task_context = &r, .done = slow_done};
    CHECK(writer_submit(r.writer, &r.slow, &err) == ST_OK, "%s", err.msg);
    atomic_store(&r.hold, false);
    turn(&r, 500);
    rig_stop(&r);
    str found = states(&r);
    CHECK(text_is(found, "PROCESSING 1 0\nPENDING 1 0\nPENDING 1 0\n") ||
              text_is(found, "COMPLETED 1 0\nPENDING 1 0\nPENDING 1 0\n"),
          "%.*s", STR_ARG(found));
    rig_close(&r);
}

/* The connection is gone while the worker only looks: it gets a new one, and finds what is due. */
/* (A file does not hang up.) */
TEST(outbox_worker_finds_its_connection_dead) {
    struct rig r;
    rig_open(&r, test_postgres());
    on_ledger(&r, do_ask);
    atomic_store(&r.fail, 3);
    rig_start(&r);
    wait_states(&r, "FAILED 1 1\nFAILED 1 1\nFAILED 1 1\n");
    (void)fixture_lines(&r.reader,
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid"
                        " <> pg_backend_pid() AND datname = current_database()");
    wait_states(&r, "COMPLETED 2 1\nCOMPLETED 2 1\nCOMPLETED 2 1\n");
    rig_close(&r);
}

/* ---- the steps ---- */

struct asker { /* an attempt of an effect step */
    struct attempt attempt;
    struct plan_step step;
    char body[256];
    int ended;
    bool ok;
    char code[64];
};

static void on_end(struct attempt *attempt, const struct outcome *o) {
    struct asker *a = attempt->context;
    a->ended++;
    a->ok = o->ok;
    snprintf(a->code, sizeof(a->code), "%.*s", STR_ARG(o->code));
}

static void asker_start(struct asker *a, struct rig *r, struct host_effects *e) {
    int n = snprintf(a->body, sizeof(a->body),
                     "{\"effectType\":\"API_CALL\",\"payload\":{\"url\":"
                     "\"http://127.0.0.1:%d/\"},\"wait\":true}",
                     fake_server_port(r->server));
    a->step = (struct plan_step){.id = STR("s1"), .type = PLAN_EFFECT};
    a->attempt = (struct attempt){.step = &a->step,
                                  .run_id = STR("r1"),
                                  .tenant_id = STR("acme"),
                                  .project_id = STR("shop"),
                                  .environment_id = STR("prod"),
                                  .number = 1,
                                  .body = str_n(a->body, (size_t)n),
                                  .done = on_end,
                                  .context = a};
    host_effects_start(e, &a->attempt);
}

static struct host_effects *effects_open(struct rig *r) {
    struct host_effects *e = NULL;
    struct error err = {0};
    CHECK(host_effects_open(&r->loop, &r->options, &e, &err) == ST_OK, "%s", err.msg);
    return e;
}

static void effects_close(struct rig *r, struct host_effects *e) {
    host_effects_halt(e);
    rig_stop(r);
    host_effects_close(e);
}

/* A store that is away for a while fails no step. */
TEST_DB(outbox_step_waits_for_the_store) {
    struct rig r;
    struct asker a = {0};
    rig_open(&r, url);
    struct host_effects *e = effects_open(&r);
    turn(&r, 100);
    on_ledger(&r, do_break);
    atomic_store(&r.down, true);
    asker_start(&a, &r, e);
    turn(&r, 2000);
    CHECK(a.ended == 0, "it ended: %s", a.code);
    atomic_store(&r.down, false);
    for (int i = 0; i < 1000 && a.ended == 0; i++)
        turn(&r, 10);
    CHECK(a.ended == 1 && a.ok, "%d %s", a.ended, a.code);
    CHECK(text_is(states(&r), "COMPLETED 1 0\n") && atomic_load(&r.calls) == 1);
    effects_close(&r, e);
    CHECK(a.ended == 1);
    rig_close(&r);
}

/* A step is stopped, and the host ends with another, in every state of their asking: each has one
 * answer, and nothing is left. */
enum asking { ASKING, ASKED, STORE_DOWN, DELIVERING };

static void end_while(str url, enum asking state) {
    struct rig r;
    struct asker a = {0};
    struct asker b = {0};
    struct error err = {0};
    rig_open(&r, url);
    atomic_store(&r.hold, true);
    struct host_effects *e = effects_open(&r);
    turn(&r, 100);
    if (state == STORE_DOWN) on_ledger(&r, do_break);
    atomic_store(&r.down, state == STORE_DOWN);
    atomic_store(&r.sleep_ms, 300);
    r.slow = (struct writer_call){.task = slow_task, .task_context = &r, .done = slow_done};
    if (state <= ASKED) CHECK(writer_submit(r.writer, &r.slow, &err) == ST_OK, "%s", err.msg);
    asker_start(&a, &r, e);
    asker_start(&b, &r, e);
    if (state == DELIVERING) wait_calls(&r, 1);
    if (state == STORE_DOWN) turn(&r, 300);
    host_effects_stop(e, &a.attempt);
    CHECK(a.ended == 1 && b.ended == 0, "%d %d", a.ended, b.ended);
    if (state == ASKED) turn(&r, 500);
    effects_close(&r, e);
    CHECK(a.ended == 1 && strcmp(a.code, "CANCELLED") == 0, "%d %s", a.ended, a.code);
    CHECK(b.ended == 1 && strcmp(b.code, "CANCELLED") == 0, "%d %s", b.ended, b.code);
    rig_close(&r);
}

TEST_DB(outbox_step_ends_while_it_asks) { end_while(url, ASKING); }
TEST_DB(outbox_step_ends_and_its_ask_comes_back) { end_while(url, ASKED); }
TEST_DB(outbox_step_ends_while_the_store_is_down) { end_while(url, STORE_DOWN); }
TEST_DB(outbox_step_ends_while_it_is_delivered) { end_while(url, DELIVERING); }
