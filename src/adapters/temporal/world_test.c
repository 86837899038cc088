#include "adapters/temporal/world_test.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/local/local.h"
#include "base/hash.h"
#include "base/json.h"
#include "test.h"

/* ---- the engine ---- */

static struct fake_run *find(struct world *w, str id) {
    for (size_t i = 0; i < w->run_count; i++) {
        if (str_eq(str_c(w->runs[i].id), id)) return &w->runs[i];
    }
    return NULL;
}

static void copy(char *to, size_t size, str from) { snprintf(to, size, "%.*s", STR_ARG(from)); }
#define COPY(to, from) copy((to), sizeof(to), (from))

static void on_turn(uv_timer_t *timer) {
    struct world *w = timer->data;
    for (size_t i = 0; i < w->run_count; i++) {
        if (!w->runs[i].dirty) continue;
        w->runs[i].dirty = false;
        if (w->p) w->p->ops->rested(w->p, str_c(w->runs[i].id));
    }
}

static struct fake_run *news(struct world *w, str id) {
    struct fake_run *run = find(w, id);
    CHECK(run, "news of \"%.*s\"", STR_ARG(id));
    run->dirty = true;
    uv_timer_start(&w->turn, on_turn, 1, 0);
    return run;
}

static void on_linked(void *context, str run_id, const struct provider_link *link) {
    struct fake_run *run = news(context, run_id);
    CHECK(str_eq(link->workflow_id, run_id));
    run->links++;
    run->continued_links += link->continued;
    COPY(run->execution, link->provider_run_id);
    COPY(run->queue, link->queue);
}

static void on_signalled(void *context, str run_id, const struct signal *signal, str actor) {
    struct fake_run *run = news(context, run_id);
    run->signals++;
    COPY(run->signal, signal->name);
    COPY(run->signal_id, signal->signal_id);
    COPY(run->step_id, signal->step_id);
    COPY(run->payload, signal->payload);
    COPY(run->reason, signal->reason);
    COPY(run->actor, actor);
}

static void on_recovered(void *context, str run_id, str step_id, int64_t attempt, int64_t times) {
    struct fake_run *run = news(context, run_id);
    CHECK(step_id.len > 0 && attempt > 0);
    run->recovered++;
    run->recovered_times = times;
}

static void on_rotating(void *context, str run_id) { news(context, run_id)->rotated++; }

static void on_ended(void *context, str run_id, enum reason code, str message) {
    struct fake_run *run = news(context, run_id);
    run->ended++;
    COPY(run->ended_code, str_c(reason_name(code)));
    COPY(run->ended_message, message);
}

static status on_find(void *context, str run_id, str step_id, struct arena *arena,
                      struct provider_found *out, struct error *err) {
    struct fake_run *run = find(context, run_id);
    UNUSED(step_id);
    UNUSED(arena);
    *out = (struct provider_found){.status = RUN_RUNNING};
    if (!run && ((struct world *)context)->lent) return ST_OK;
    if (!run || !run->known) return error_set(err, ST_NOT_FOUND, "no such run");
    *out = (struct provider_found){.ours = run->ours, .status = run->status};
    if (run->status == RUN_FAILED) {
        out->code = STR("STEP_FAILED");
        out->message = STR("a step failed");
    }
    return ST_OK;
}

static void on_look(void *context, str run_id) {
    struct fake_run *run = news(context, run_id);
    run->looks++;
    if (run->on_look) run->on_look(run);
}

static status on_plan(void *context, str tenant_id, const struct plan_ref *ref,
                      const struct plan **out, struct error *err) {
    struct world *w = context;
    CHECK(str_eq(tenant_id, STR("acme")) && str_eq(ref->plan_id, STR("test")));
    if (w->plan_error) return error_at(err, w->plan_error, "", "the plan is no good");
    if (w->plan_waits > 0) {
        w->plan_waits--;
        return error_set(err, ST_RETRY, "the plan is being fetched");
    }
    w->plans_out++;
    *out = w->plan;
    return ST_OK;
}

static void on_plan_done(void *context, const struct plan *plan) {
    struct world *w = context;
    CHECK(plan == w->plan);
    w->plans_out--;
}

/* ---- the world ---- */

static void make_plan(struct world *w) {
    static const char text[] =
        "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"test\",\"planVersion\":\"1\"},"
        "\"steps\":["
        "{\"stepId\":\"one\",\"type\":\"exec\",\"output\":\"json\",\"command\":\"echo "
        "'{\\\"n\\\":1}'; "
        "echo x >> %s/one\"},"
        "{\"stepId\":\"two\",\"type\":\"exec\",\"command\":\"echo two\"},"
        "{\"stepId\":\"three\",\"type\":\"exec\",\"output\":\"none\",\"command\":\"echo 3\"},"
        "{\"stepId\":\"bad\",\"type\":\"exec\",\"command\":\"echo x >> %s/bad; exit 3\"},"
        "{\"stepId\":\"slow\",\"type\":\"exec\",\"command\":\"echo x >> %s/slow; sleep 300\"},"
        "{\"stepId\":\"while\",\"type\":\"exec\",\"command\":\"echo x >> %s/while; sleep 2; "
        "echo x >> %s/while-end; echo done\"},"
        "{\"stepId\":\"once\",\"type\":\"exec\",\"command\":\"if mkdir %s/was-here 2>/dev/null; "
        "then echo x >> %s/once; sleep 300; fi; echo x >> %s/once; echo again\"}"
        "]}";
    char whole[4096];
    struct plan_problems problems;
    struct error err = {0};
    const char *d = w->dir;
    snprintf(whole, sizeof whole, text, d, d, d, d, d, d, d, d);
    CHECK(plan_parse(str_c(whole), &w->arena, &w->plan, &problems, &err) == ST_OK, "%s", err.msg);
    char hex[SHA256_HEX_LEN + 1] = "";
    hex_encode(w->plan->sha256, SHA256_LEN, hex);
    snprintf(w->plan_ref, sizeof w->plan_ref,
             "{\"uri\":\"plan:sha256:%s\",\"sha256\":\"%s\",\"schemaVersion\":\"v1.3\","
             "\"planId\":\"test\",\"planVersion\":\"1\"}",
             hex, hex);
}

static void on_clock(uv_timer_t *timer) { UNUSED(timer); }

void world_open_in(struct world *w, const char *dir, const char *queue) {
    struct error err = {0};
    const char *target = getenv("CAIRN_TEST_TEMPORAL");
    (void)signal(SIGPIPE, SIG_IGN); /* as the program does: servers go away at any time */
    *w = (struct world){.dir = dir};
    arena_init(&w->arena, 65536, (size_t)64 * 1024 * 1024);
    snprintf(w->queue, sizeof w->queue, "%s", queue);
    make_plan(w);
    CHECK(uv_loop_init(&w->loop) == 0);
    struct local_options local = {.data_dir = str_c(dir), .kill_grace_ms = 500};
    CHECK(executor_open_local(&w->loop, &local, &w->ex, &err) == ST_OK, "%s", err.msg);
    w->options = (struct temporal_options){
        .target = str_c(target), .queue = str_c(w->queue), .look_ms = 30000, .heartbeat_ms = 4000};
    uv_timer_init(&w->loop, &w->turn);
    w->turn.data = w;
    uv_timer_init(&w->loop, &w->clock);
    uv_timer_start(&w->clock, on_clock, 20, 20);
    struct grpc_options options = {.target = w->options.target, .user_agent = STR("test/1")};
    CHECK(rpc_open(&w->loop, &options, &w->rpc, &err) == ST_OK, "%s", err.msg);
}

void world_open(struct world *w) {
    char queue[64];
    uint8_t random[6];
    char hex[2 * sizeof random + 1] = "";
    if (!getenv("CAIRN_TEST_TEMPORAL"))
        test_skip(getenv("CAIRN_TEST_TEMPORAL_WHY")
                      ? getenv("CAIRN_TEST_TEMPORAL_WHY")
                      : "no Temporal server: CAIRN_TEST_TEMPORAL is not set");
    random_bytes(random, sizeof random);
    hex_encode(random, sizeof random, hex);
    snprintf(queue, sizeof queue, "q-%s", hex);
    world_open_in(w, test_dir(), queue);
}

struct provider *world_provider(struct world *w, const char *node, int slots) {
    struct provider_ports ports = {.context = w,
                                   .linked = on_linked,
                                   .signalled = on_signalled,
                                   .recovered = on_recovered,
                                   .rotating = on_rotating,
                                   .ended = on_ended,
                                   .find = on_find,
                                   .look = on_look,
                                   .plan = on_plan,
                                   .plan_done = on_plan_done,
                                   .executor = w->ex};
    struct error err = {0};
    struct provider *p = NULL;
    w->options.node = str_c(node);
    w->options.slots = slots;
    CHECK(temporal_open(&w->loop, &w->options, &ports, &p, &err) == ST_OK, "%s", err.msg);
    if (!w->p) w->p = p;
    return p;
}

void world_drop(struct world *w, struct provider **provider) {
    struct provider *p = *provider;
    *provider = NULL;
    if (w->p == p) w->p = NULL;
    p->ops->close(p);
}

void world_close(struct world *w) {
    if (w->p) world_drop(w, &w->p);
    rpc_close(w->rpc, NULL, NULL);
    uv_close((uv_handle_t *)&w->turn, NULL);
    uv_close((uv_handle_t *)&w->clock, NULL);
    uint64_t until = uv_now(&w->loop) + 20000;
    while (uv_run(&w->loop, UV_RUN_ONCE) != 0) { /* the executor does not keep the loop alive */
        CHECK(uv_now(&w->loop) < until, "the provider does not end");
    }
    executor_close(w->ex);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&w->loop) == 0, "a handle is still open");
    CHECK(w->plans_out == 0, "%d plans were not given back", w->plans_out);
    arena_release(&w->arena);
}

void world_turn(struct world *w, uint64_t until, const char *what) {
    uv_run(&w->loop, UV_RUN_ONCE);
    CHECK(uv_now(&w->loop) < until, "waited in vain for: %s", what);
}

void world_sleep(struct world *w, uint64_t ms) {
    uint64_t until = uv_now(&w->loop) + ms;
    while (uv_now(&w->loop) < until)
        uv_run(&w->loop, UV_RUN_ONCE);
}

/* ---- runs ---- */

struct fake_run *run_add(struct world *w) {
    CHECK(w->run_count < COUNT_OF(w->runs));
    struct fake_run *run = &w->runs[w->run_count++];
    char id[UUID_TEXT_LEN + 1] = "";
    uuid_format(uuid_v4(), id);
    *run = (struct fake_run){.w = w, .status = RUN_RUNNING, .ours = true, .known = true};
    snprintf(run->id, sizeof run->id, "run-%s", id);
    return run;
}

static void open_as(struct fake_run *run, struct provider *p, bool linked) {
    struct provider_run r = {.run_id = str_c(run->id),
                             .tenant_id = STR("acme"),
                             .project_id = STR("shop"),
                             .environment_id = STR("dev"),
                             .plan_id = STR("test"),
                             .plan_version = STR("1"),
                             .plan_ref = str_c(run->w->plan_ref),
                             .plan = run->w->plan,
                             .started = linked};
    if (linked) {
        r.workflow_id = str_c(run->id);
        r.provider_run_id = str_c(run->execution);
        r.queue = str_c(run->queue);
    }
    p->ops->open_run(p, &r);
}

void fake_open(struct fake_run *run, struct provider *p) { open_as(run, p, false); }
void fake_open_linked(struct fake_run *run, struct provider *p) { open_as(run, p, true); }

static struct world *the_world; /* for on_done(): an attempt knows its run only by name */

static void on_done(struct attempt *attempt, const struct outcome *o) {
    struct shot *s = attempt->context;
    CHECK(!attempt->executor_data);
    s->answers++;
    s->ok = o->ok;
    COPY(s->output, o->output);
    COPY(s->code, o->code);
    COPY(s->message, o->message);
    COPY(s->detail, o->detail);
    (void)news(the_world, attempt->run_id);
}

void fake_start(struct fake_run *run, struct provider *p, struct shot *s, const char *step_id,
                int64_t number) {
    struct world *w = run->w;
    int64_t at = plan_find(w->plan, str_c(step_id));
    CHECK(at >= 0, "%s", step_id);
    the_world = w;
    *s = (struct shot){0};
    s->attempt = (struct attempt){.step = &w->plan->steps[at],
                                  .run_id = str_c(run->id),
                                  .tenant_id = STR("acme"),
                                  .project_id = STR("shop"),
                                  .environment_id = STR("dev"),
                                  .plan_ref = str_c(w->bad_ref ? "{}" : w->plan_ref),
                                  .number = number,
                                  .body = json_text(w->plan->steps[at].body, &w->arena),
                                  .done = on_done,
                                  .context = s};
    p->ops->start(p, &s->attempt);
    run->dirty = true;
    uv_timer_start(&w->turn, on_turn, 1, 0);
}

void fake_end(struct fake_run *run, struct provider *p, enum run_status end) {
    struct provider_note note = {
        .event = PROVIDER_RUN_ENDED, .run_id = str_c(run->id), .status = end};
    run->status = end;
    if (end == RUN_FAILED) {
        note.code = STR("STEP_FAILED");
        note.message = STR("a step failed");
    }
    p->ops->note(p, &note);
}

bool shot_over(const struct shot *s) {
    CHECK(s->answers <= 1);
    return s->answers == 1;
}

/* ---- the cluster's own tools ---- */

struct hand {
    bool over;
    int code;
    int status;
    bool has_task; /* a workflow task is not answered yet */
};

static void on_hand(void *context, const struct rpc_answer *answer) {
    struct hand *hand = context;
    hand->over = true;
    hand->code = answer->code;
}

static void on_hand_described(void *context, const struct rpc_answer *answer) {
    struct hand *hand = context;
    const Tp__DescribeResponse *d = answer->value;
    hand->over = true;
    hand->code = answer->code;
    if (d && d->info) hand->status = d->info->status;
    hand->has_task = d && d->pending_task;
}

static void hand_call(struct world *w, enum rpc_method method, const ProtobufCMessage *request,
                      rpc_done done, struct hand *hand) {
    struct error err = {0};
    CHECK(rpc_start(w->rpc, method, request, NULL, done, hand, NULL, &err) == ST_OK, "%s", err.msg);
    WAIT_FOR(w, hand->over);
}

void hand_signal(struct fake_run *run, const char *name, const char *json) {
    struct hand hand = {0};
    Tp__SignalRequest request = TP__SIGNAL_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT;
    execution.workflow_id = wire_bytes(str_c(run->id));
    request.namespace_ = wire_bytes(STR("default"));
    request.execution = &execution;
    request.signal_name = wire_bytes(str_c(name));
    request.identity = wire_bytes(STR("ann@desk"));
    if (json) request.input = wire_json_list(str_c(json), &run->w->arena);
    hand_call(run->w, RPC_SIGNAL, &request.base, on_hand, &hand);
    CHECK(hand.code == GRPC_OK, "%d", hand.code);
}

void hand_cancel(struct fake_run *run) {
    struct hand hand = {0};
    Tp__CancelRequest request = TP__CANCEL_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT;
    execution.workflow_id = wire_bytes(str_c(run->id));
    request.namespace_ = wire_bytes(STR("default"));
    request.execution = &execution;
    request.identity = wire_bytes(STR("ann@desk"));
    request.reason = wire_bytes(STR("not today"));
    hand_call(run->w, RPC_CANCEL, &request.base, on_hand, &hand);
    CHECK(hand.code == GRPC_OK, "%d", hand.code);
}

void hand_terminate(struct fake_run *run, const char *reason) {
    struct hand hand = {0};
    Tp__TerminateRequest request = TP__TERMINATE_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT;
    execution.workflow_id = wire_bytes(str_c(run->id));
    request.namespace_ = wire_bytes(STR("default"));
    request.execution = &execution;
    request.reason = wire_bytes(str_c(reason));
    hand_call(run->w, RPC_TERMINATE, &request.base, on_hand, &hand);
    CHECK(hand.code == GRPC_OK, "%d", hand.code);
}

static struct hand describe(struct fake_run *run, const char *execution_id) {
    struct hand hand = {0};
    Tp__DescribeRequest request = TP__DESCRIBE_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT;
    execution.workflow_id = wire_bytes(str_c(run->id));
    execution.run_id = wire_bytes(str_c(execution_id));
    request.namespace_ = wire_bytes(STR("default"));
    request.execution = &execution;
    hand_call(run->w, RPC_DESCRIBE, &request.base, on_hand_described, &hand);
    return hand;
}

int hand_status(struct fake_run *run, const char *execution_id) {
    return describe(run, execution_id).status;
}

void hand_wait_no_task(struct fake_run *run) {
    for (int i = 0; describe(run, NULL).has_task; i++) {
        CHECK(i < 300, "a workflow task is never answered");
        world_sleep(run->w, 100);
    }
}

void hand_wait_status(struct fake_run *run, int want) {
    for (int i = 0; hand_status(run, NULL) != want; i++) {
        CHECK(i < 300, "the execution is in status %d, not %d", hand_status(run, NULL), want);
        world_sleep(run->w, 100);
    }
}

int lines_in(const struct world *w, const char *file) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", w->dir, file);
    FILE *f = fopen(path, "r");
    int lines = 0;
    for (int c = f ? fgetc(f) : EOF; c != EOF; c = fgetc(f))
        lines += c == '\n';
    if (f) fclose(f);
    return lines;
}

/* ---- a way that can be cut ---- */

struct forward {
    uv_loop_t *loop;
    uv_tcp_t listener;
    struct sockaddr_in target;
    struct pair *pairs;
    bool closing;
    int handles;
};
struct pair {
    struct forward *f;
    struct pair *next;
    uv_tcp_t side[2];
    uv_connect_t connect;
    bool closing;
    int handles;
};
struct piece {
    uv_write_t write;
    char bytes[];
};

static void forward_free(struct forward *f) {
    if (f->closing && f->handles == 0 && !f->pairs) free(f);
}

static void on_side_closed(uv_handle_t *handle) {
    struct pair *pair = handle->data;
    if (--pair->handles > 0) return;
    struct pair **at = &pair->f->pairs;
    while (*at != pair)
        at = &(*at)->next;
    *at = pair->next;
    struct forward *f = pair->f;
    free(pair);
    forward_free(f);
}

static void pair_close(struct pair *pair) {
    if (pair->closing) return;
    pair->closing = true;
    uv_close((uv_handle_t *)&pair->side[0], on_side_closed);
    uv_close((uv_handle_t *)&pair->side[1], on_side_closed);
}

static void on_room(uv_handle_t *handle, size_t size, uv_buf_t *out) {
    UNUSED(handle);
    out->base = malloc(size); /* freed by on_read() */
    out->len = size;
}

static void on_written(uv_write_t *write, int code) {
    UNUSED(code);
    free(write->data);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    struct pair *pair = stream->data;
    if (n > 0 && !pair->closing) {
        struct piece *piece = malloc(sizeof *piece + (size_t)n);
        memcpy(piece->bytes, buf->base, (size_t)n);
        piece->write.data = piece;
        uv_buf_t out = uv_buf_init(piece->bytes, (unsigned)n);
        uv_tcp_t *to = stream == (uv_stream_t *)&pair->side[0] ? &pair->side[1] : &pair->side[0];
        if (uv_write(&piece->write, (uv_stream_t *)to, &out, 1, on_written) != 0) free(piece);
    }
    free(buf->base);
    if (n < 0) pair_close(pair);
}

static void on_forward_connected(uv_connect_t *connect, int code) {
    struct pair *pair = connect->data;
    if (pair->closing) return;
    if (code != 0) {
        pair_close(pair);
        return;
    }
    uv_read_start((uv_stream_t *)&pair->side[0], on_room, on_read);
    uv_read_start((uv_stream_t *)&pair->side[1], on_room, on_read);
}

static void on_incoming(uv_stream_t *listener, int code) {
    struct forward *f = listener->data;
    if (code != 0 || f->closing) return;
    struct pair *pair = calloc(1, sizeof *pair);
    CHECK(pair);
    pair->f = f;
    pair->handles = 2;
    pair->next = f->pairs;
    f->pairs = pair;
    for (int i = 0; i < 2; i++) {
        uv_tcp_init(f->loop, &pair->side[i]);
        pair->side[i].data = pair;
    }
    pair->connect.data = pair;
    CHECK(uv_accept(listener, (uv_stream_t *)&pair->side[0]) == 0);
    CHECK(uv_tcp_connect(&pair->connect, &pair->side[1], (const struct sockaddr *)&f->target,
                         on_forward_connected) == 0);
}

struct forward *forward_open(uv_loop_t *loop, int port) {
    struct forward *f = calloc(1, sizeof *f);
    CHECK(f);
    struct sockaddr_in here;
    str target = str_c(getenv("CAIRN_TEST_TEMPORAL"));
    str host;
    str number;
    int64_t n = 0;
    CHECK(str_split(target, ':', &host, &number) && str_to_int(number, &n));
    CHECK(uv_ip4_addr("127.0.0.1", (int)n, &f->target) == 0);
    CHECK(uv_ip4_addr("127.0.0.1", port, &here) == 0);
    f->loop = loop;
    f->handles = 1;
    uv_tcp_init(loop, &f->listener);
    f->listener.data = f;
    CHECK(uv_tcp_bind(&f->listener, (const struct sockaddr *)&here, 0) == 0);
    CHECK(uv_listen((uv_stream_t *)&f->listener, 16, on_incoming) == 0);
    return f;
}

static void on_listener_closed(uv_handle_t *handle) {
    struct forward *f = handle->data;
    f->handles = 0;
    forward_free(f);
}

void forward_close(struct forward *f) {
    f->closing = true;
    uv_close((uv_handle_t *)&f->listener, on_listener_closed);
    for (struct pair *pair = f->pairs; pair; pair = pair->next)
        pair_close(pair);
}

int port_free(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    CHECK(fd >= 0 && bind(fd, (const struct sockaddr *)&at, sizeof at) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    close(fd);
    return ntohs(at.sin_port);
}
