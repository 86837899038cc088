#include "adapters/conductor/rig_test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "net/client.h"
#include "test.h"

enum { CLOCK_MS = 10 };

static void copy(char *out, size_t size, str text) {
    (void)snprintf(out, size, "%.*s", STR_ARG(text));
}

static bool yes(void *context, const uint8_t *address, size_t len) {
    UNUSED(context);
    UNUSED(address);
    UNUSED(len);
    return true;
}

/* ---- the way to the server ---- */

static const struct client_header json_type = {STR_LIT("Content-Type"),
                                               STR_LIT("application/json")};

static bool forward(void *context, int fd, const struct fake_request *request) {
    struct rig *e = context;
    if (e->down) return false;
    struct arena arena;
    arena_init(&arena, 65536, (size_t)256 << 20);
    char url[2048];
    (void)snprintf(url, sizeof url, "%s%.*s", e->server, STR_ARG(request->target));
    struct client_request r = {.method = request->method,
                               .url = str_c(url),
                               .headers = &json_type,
                               .header_count = 1,
                               .body = request->body.len > 0 ? request->body : STR_NONE,
                               .may_connect = yes,
                               .bytes_max = (size_t)64 << 20};
    struct client_response response = {0};
    struct error err = {0};
    bool ok = client_fetch(&r, &arena, &response, &err) == ST_OK;
    if (str_eq(request->method, STR("POST")) && str_eq(request->target, STR("/api/workflow"))) {
        e->starts++;
        if (e->lose_answers_of > 0) {
            e->lose_answers_of--;
            /* Not one byte less, or libcurl sends the request again by itself. */
            (void)fake_send(fd, STR("HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n0"));
            ok = false;
        }
    }
    if (ok) ok = fake_answer(fd, response.status, "Content-Type: text/plain\r\n", response.body);
    arena_release(&arena);
    return ok;
}

yyjson_val *rig_ask(struct rig *e, const char *method, const char *path, str body) {
    char url[2048];
    (void)snprintf(url, sizeof url, "%s/api%s", e->server, path);
    struct client_request r = {.method = str_c(method),
                               .url = arena_str(&e->arena, str_c(url)),
                               .headers = &json_type,
                               .header_count = 1,
                               .body = body,
                               .may_connect = yes,
                               .bytes_max = (size_t)64 << 20};
    struct client_response response = {0};
    struct error err = {0};
    CHECK(client_fetch(&r, &e->arena, &response, &err) == ST_OK, "%s", err.msg);
    CHECK(response.status < 300, "%s: %d %.*s", path, response.status, STR_ARG(response.body));
    yyjson_val *root = NULL;
    struct json_limits limits = {(size_t)64 << 20, 100};
    return json_parse(response.body, limits, &e->arena, &root, &err) == ST_OK ? root : NULL;
}

static yyjson_val *workflow(struct rig *e) {
    char path[256];
    (void)snprintf(path, sizeof path, "/workflow/%s?includeTasks=true", e->workflow);
    return rig_ask(e, "GET", path, STR_NONE);
}

str rig_cluster_status(struct rig *e) {
    str text = STR("");
    (void)json_str(json_member(workflow(e), "status"), &text);
    return text;
}

static yyjson_val *task_of(struct rig *e, const char *step_id, int *count) {
    yyjson_val *found = NULL;
    size_t i;
    size_t n;
    yyjson_val *task;
    str id = STR_NONE;
    *count = 0;
    yyjson_arr_foreach(json_member(workflow(e), "tasks"), i, n, task) {
        if (!json_str(json_member(json_member(task, "inputData"), "stepId"), &id) ||
            !str_eq(id, str_c(step_id)))
            continue;
        found = task;
        ++*count;
    }
    return found;
}

str rig_task(struct rig *e, const char *step_id, const char *member) {
    int count;
    yyjson_val *val = json_member(task_of(e, step_id, &count), member);
    if (!val) return STR("");
    str text = STR_NONE;
    return json_str(val, &text) ? text : json_text(val, &e->arena);
}

int rig_task_count(struct rig *e, const char *step_id) {
    int count;
    (void)task_of(e, step_id, &count);
    return count;
}

int rig_traces(struct rig *e, const char *name) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", e->dir, name);
    FILE *file = fopen(path, "r");
    int lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file) (void)fclose(file);
    return lines;
}

/* ---- what is decided ---- */

static struct rig_step *step_of(struct rig *e, str id) {
    int64_t i = plan_find(e->plan, id);
    return i < 0 ? NULL : &e->steps[i];
}

struct rig_step *rig_step(struct rig *e, const char *id) {
    struct rig_step *s = step_of(e, str_c(id));
    CHECK(s != NULL, "no step %s", id);
    return s;
}

static void on_result(struct attempt *attempt, const struct outcome *o) {
    struct rig_step *s = attempt->context;
    s->in_flight = false;
    s->answered = true;
    s->ok = o->ok;
    s->results++;
    copy(s->code, sizeof s->code, o->code);
    copy(s->output, sizeof s->output, o->output);
}

static void start(struct rig *e, uint32_t i) {
    struct rig_step *s = &e->steps[i];
    const struct plan_step *step = &e->plan->steps[i];
    if (s->in_flight || !e->provider) return;
    s->in_flight = true;
    s->answered = false;
    s->starts++;
    str body = json_text(step->body, &e->arena);
    if (s->attempt <= s->fails) body = STR("{\"command\":[\"false\"]}");
    copy(s->body, sizeof s->body, body);
    s->asked = (struct attempt){.step = step,
                                .run_id = str_c(e->run_id),
                                .tenant_id = STR("acme"),
                                .project_id = STR("demo"),
                                .environment_id = STR("dev"),
                                .number = s->attempt,
                                .body = str_c(s->body),
                                .done = on_result,
                                .context = s};
    e->provider->ops->start(e->provider, &s->asked);
}

static void note(struct rig *e, const struct provider_note *n) {
    if (e->provider) e->provider->ops->note(e->provider, n);
}

static void settle(struct rig *e, uint32_t i, enum provider_step_state state) {
    struct rig_step *s = &e->steps[i];
    s->state = state;
    note(e, &(struct provider_note){.event = PROVIDER_STEP_SETTLED,
                                    .run_id = str_c(e->run_id),
                                    .step_id = e->plan->steps[i].id,
                                    .step = state,
                                    .output = s->output[0] ? str_c(s->output) : STR_NONE});
}

void rig_end(struct rig *e, enum run_status value, const char *code, const char *message) {
    e->status = value;
    copy(e->code, sizeof e->code, str_c(code ? code : ""));
    copy(e->message, sizeof e->message, str_c(message ? message : ""));
    note(e, &(struct provider_note){.event = PROVIDER_RUN_ENDED,
                                    .run_id = str_c(e->run_id),
                                    .status = value,
                                    .code = str_c(code),
                                    .message = str_c(message)});
}

void rig_pause(struct rig *e, bool paused) {
    e->paused = paused;
    note(e, &(struct provider_note){.event = paused ? PROVIDER_RUN_PAUSED : PROVIDER_RUN_RESUMED,
                                    .run_id = str_c(e->run_id)});
}

static bool is_settled(const struct rig_step *s) {
    return s->state == PROVIDER_STEP_DONE || s->state == PROVIDER_STEP_SKIPPED ||
           s->state == PROVIDER_STEP_FAILED;
}

static bool is_ready(const struct rig *e, uint32_t i) {
    const struct plan_step *step = &e->plan->steps[i];
    bool ready = e->steps[i].state == PROVIDER_STEP_WAITS;
    for (uint32_t d = 0; d < step->dep_count; d++)
        ready &= is_settled(&e->steps[step->deps[d]]);
    return ready;
}

static void take_result(struct rig *e, uint32_t i) {
    struct rig_step *s = &e->steps[i];
    const struct plan_step *step = &e->plan->steps[i];
    s->answered = false;
    if (s->ok) {
        settle(e, i, PROVIDER_STEP_DONE);
    } else if (s->attempt < step->retry->attempts_max) {
        s->attempt++;
        start(e, i);
    } else {
        settle(e, i, PROVIDER_STEP_FAILED);
        if (step->on_failure == PLAN_FAIL) rig_end(e, RUN_FAILED, s->code, "a step failed");
    }
}

static void begin(struct rig *e, uint32_t i) {
    struct rig_step *s = &e->steps[i];
    if (s->skips) {
        settle(e, i, PROVIDER_STEP_SKIPPED);
        return;
    }
    s->state = PROVIDER_STEP_OPEN;
    s->attempt = 1;
    if (plan_type_is_executed(e->plan->steps[i].type)) start(e, i);
}

void rig_begin(struct rig *e, const char *id) { begin(e, (uint32_t)(rig_step(e, id) - e->steps)); }

static void decide(struct rig *e) {
    uint32_t settled = 0;
    if (!e->provider || !e->loaded || !e->workflow[0]) return;
    for (uint32_t i = 0; i < e->plan->step_count && !run_is_final(e->status); i++) {
        struct rig_step *s = &e->steps[i];
        bool executed = plan_type_is_executed(e->plan->steps[i].type);
        if (!e->paused && is_ready(e, i)) begin(e, i);
        if (s->state == PROVIDER_STEP_OPEN && !executed && !s->held)
            settle(e, i, PROVIDER_STEP_DONE);
        if (s->answered && s->state == PROVIDER_STEP_OPEN) take_result(e, i);
        settled += is_settled(s);
    }
    if (settled == e->plan->step_count && !run_is_final(e->status) && !e->paused)
        rig_end(e, RUN_COMPLETED, NULL, NULL);
    e->provider->ops->rested(e->provider, str_c(e->run_id));
}

static void on_clock(uv_timer_t *timer) { decide(timer->data); }

/* ---- ports ---- */

static void linked(void *context, str run_id, const struct provider_link *link) {
    struct rig *e = context;
    CHECK(str_eq(run_id, str_c(e->run_id)));
    e->links++;
    copy(e->workflow, sizeof e->workflow, link->workflow_id);
    copy(e->queue, sizeof e->queue, link->queue);
    if (e->status == RUN_PENDING) e->status = RUN_RUNNING;
}

static void signalled(void *context, str run_id, const struct signal *signal, str actor) {
    struct rig *e = context;
    CHECK(str_eq(run_id, str_c(e->run_id)) && str_eq(actor, STR("conductor")));
    e->signals++;
    copy(e->signal, sizeof e->signal, signal->name);
    copy(e->signal_id, sizeof e->signal_id, signal->signal_id);
    if (e->obeys) rig_pause(e, signal->kind == SIGNAL_PAUSE);
}

static void recovered(void *context, str run_id, str step_id, int64_t attempt, int64_t times) {
    struct rig *e = context;
    CHECK(str_eq(run_id, str_c(e->run_id)) && step_of(e, step_id));
    e->recovered++;
    e->recovered_attempt = attempt;
    e->recovered_times = times;
}

static void ended(void *context, str run_id, enum reason code, str message) {
    struct rig *e = context;
    CHECK(str_eq(run_id, str_c(e->run_id)));
    e->ended++;
    copy(e->ended_code, sizeof e->ended_code, str_c(reason_name(code)));
    copy(e->ended_message, sizeof e->ended_message, message);
    for (uint32_t i = 0; i < e->plan->step_count; i++) {
        if (e->steps[i].in_flight) e->provider->ops->stop(e->provider, &e->steps[i].asked);
    }
    rig_end(e, RUN_FAILED, e->ended_code, e->ended_message);
}

static status find(void *context, str run_id, str step_id, struct arena *arena,
                   struct provider_found *out, struct error *err) {
    struct rig *e = context;
    if (!str_eq(run_id, str_c(e->run_id))) return error_set(err, ST_NOT_FOUND, "no such run");
    const struct rig_step *s = step_id.ptr ? step_of(e, step_id) : NULL;
    if (step_id.ptr && !s) return error_set(err, ST_NOT_FOUND, "no such step");
    *out = (struct provider_found){.ours = !e->not_ours,
                                   .status = e->status,
                                   .code = e->code[0] ? arena_str(arena, str_c(e->code)) : STR_NONE,
                                   .message = arena_str(arena, str_c(e->message)),
                                   .workflow_id = arena_str(arena, str_c(e->workflow)),
                                   .provider_run_id = arena_str(arena, str_c(e->workflow)),
                                   .step = s ? s->state : PROVIDER_STEP_WAITS};
    if (s && s->state == PROVIDER_STEP_OPEN &&
        !plan_type_is_executed(e->plan->steps[s - e->steps].type))
        out->step = PROVIDER_STEP_WAITS; /* nobody executes it */
    if (s && s->output[0]) out->output = arena_str(arena, str_c(s->output));
    return ST_OK;
}

/* The engine tells all that is wanted of a run. */
static void load(struct rig *e) {
    struct provider_run run = {.run_id = str_c(e->run_id),
                               .tenant_id = STR("acme"),
                               .project_id = STR("demo"),
                               .environment_id = STR("dev"),
                               .plan_id = e->plan->plan_id,
                               .plan_version = e->plan->plan_version,
                               .plan = e->plan,
                               .started = e->workflow[0] != '\0',
                               .paused = e->paused,
                               .workflow_id = e->workflow[0] ? str_c(e->workflow) : STR_NONE,
                               .provider_run_id = e->workflow[0] ? str_c(e->workflow) : STR_NONE,
                               .queue = e->queue[0] ? str_c(e->queue) : STR_NONE};
    e->provider->ops->open_run(e->provider, &run);
    for (uint32_t i = 0; i < e->plan->step_count; i++) {
        if (e->steps[i].state == PROVIDER_STEP_OPEN &&
            plan_type_is_executed(e->plan->steps[i].type) && !e->steps[i].answered)
            start(e, i);
    }
}

static void look(void *context, str run_id) {
    struct rig *e = context;
    CHECK(str_eq(run_id, str_c(e->run_id)));
    e->looks++;
    if (e->loaded) return;
    e->loaded = true;
    load(e);
}

/* ---- open and close ---- */

void rig_open(struct rig *e, const char *steps) {
    const char *server = getenv("CAIRN_TEST_CONDUCTOR");
    const char *why = getenv("CAIRN_TEST_CONDUCTOR_WHY");
    if (!server || !server[0]) test_skip(why ? why : "CAIRN_TEST_CONDUCTOR names no server");
    *e = (struct rig){.dir = test_dir(), .status = RUN_PENDING, .loaded = true};
    copy(e->server, sizeof e->server, str_c(server));
    (void)snprintf(e->run_id, sizeof e->run_id, "run/%08x ${x}", (unsigned)clock_mono_ns());
    (void)snprintf(e->node, sizeof e->node, "node-%08x", (unsigned)clock_mono_ns());
    arena_init(&e->arena, 65536, (size_t)1 << 30);
    struct buf text;
    buf_init(&text, 1 << 20);
    buf_printf(&text,
               "{'schemaVersion':'v1.3','metadata':{'planId':'test plan','planVersion':"
               "'1'},'steps':[%s]}",
               steps);
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] == '\'') text.ptr[i] = '"';
    }
    struct plan_problems *problems = ARENA_NEW(&e->arena, struct plan_problems);
    struct error err = {0};
    CHECK(plan_parse(buf_str(&text), &e->arena, &e->plan, problems, &err) == ST_OK, "%s", err.msg);
    CHECK(e->plan->step_count <= RIG_STEPS_MAX);
    buf_release(&text);
    CHECK(uv_loop_init(&e->loop) == 0);
    CHECK(uv_timer_init(&e->loop, &e->clock) == 0);
    e->clock.data = e;
    CHECK(uv_timer_start(&e->clock, on_clock, CLOCK_MS, CLOCK_MS) == 0);
    e->proxy = fake_server_open(forward, e);
}

void rig_connect(struct rig *e) {
    struct error err = {0};
    struct local_options local = {.data_dir = str_c(e->dir), .kill_grace_ms = 100};
    CHECK(executor_open_local(&e->loop, &local, &e->ex, &err) == ST_OK, "%s", err.msg);
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d/", fake_server_port(e->proxy));
    struct conductor_options options = {
        .url = str_c(url), .node = str_c(e->node), .slots = 4, .poll_ms = 250};
    struct provider_ports ports = {.context = e,
                                   .linked = linked,
                                   .signalled = signalled,
                                   .recovered = recovered,
                                   .ended = ended,
                                   .find = find,
                                   .look = look,
                                   .executor = e->ex};
    CHECK(conductor_open(&e->loop, &options, &ports, &e->provider, &err) == ST_OK, "%s", err.msg);
    if (e->loaded) load(e);
}

void rig_disconnect(struct rig *e) {
    if (!e->provider) return;
    e->provider->ops->close(e->provider);
    e->provider = NULL;
    executor_close(e->ex);
    for (uint32_t i = 0; i < e->plan->step_count; i++)
        e->steps[i].in_flight = false;
    uv_unref((uv_handle_t *)&e->clock);
    int64_t until = clock_mono_ns() / 1000000 + 10000;
    while (uv_run(&e->loop, UV_RUN_ONCE) != 0)
        CHECK(clock_mono_ns() / 1000000 < until, "a handle is still open");
    uv_ref((uv_handle_t *)&e->clock);
}

void rig_crash(struct rig *e) {
    e->down = true;
    rig_disconnect(e);
    e->down = false;
}

void rig_close(struct rig *e) {
    rig_disconnect(e);
    uv_close((uv_handle_t *)&e->clock, NULL);
    (void)uv_run(&e->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&e->loop) == 0, "a handle is still open");
    fake_server_close(e->proxy);
    arena_release(&e->arena);
}

int64_t rig_deadline(void) { return clock_mono_ns() / 1000000 + RIG_WAIT_MS; }

bool rig_turn(struct rig *e, int64_t deadline) {
    (void)uv_run(&e->loop, UV_RUN_ONCE);
    return clock_mono_ns() / 1000000 < deadline;
}

void rig_turn_before(struct rig *e, int64_t deadline, const char *what) {
    CHECK(rig_turn(e, deadline), "it never came: %s", what);
}

void rig_run_for(struct rig *e, int64_t ms) {
    int64_t until = clock_mono_ns() / 1000000 + ms;
    while (rig_turn(e, until))
        ;
}
