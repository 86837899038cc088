#include "conformance/provider_helper.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/os.h"
#include "base/time.h"

enum { SHOWS_MS = 60000, SAYS_MAX = 1024 * 1024, WORDS_MAX = 2000 };

static const char *need(const char *name, const char *why_name) {
    const char *value = getenv(name);
    const char *why = getenv(why_name);
    if (value && value[0]) return value;
    test_skip(why && why[0] ? why : name);
}

static void init(struct cluster *c, str url, const char *adapter) {
    uint8_t salt[8];
    random_bytes(salt, sizeof(salt));
    *c = (struct cluster){.adapter = adapter};
    bed_init(&c->bed, url);
    uint32_t a = 0;
    uint32_t b = 0;
    memcpy(&a, salt, 4);
    memcpy(&b, salt + 4, 4);
    snprintf(c->run, sizeof(c->run), "run-%08x%08x", a, b);
    snprintf(c->queue, sizeof(c->queue), "q-%08x%08x", a, b);
}

void cluster_temporal(struct cluster *c, str url) {
    const char *target = need("CAIRN_TEST_TEMPORAL", "CAIRN_TEST_TEMPORAL_WHY");
    init(c, url, "temporal");
    c->temporal = (struct temporal_options){.target = str_c(target),
                                            .queue = str_c(c->queue),
                                            .slots = 4,
                                            .look_ms = 3000,
                                            .heartbeat_ms = 3000};
    c->bed.options.temporal = &c->temporal;
}

void cluster_conductor(struct cluster *c, str url) {
    const char *target = need("CAIRN_TEST_CONDUCTOR", "CAIRN_TEST_CONDUCTOR_WHY");
    init(c, url, "conductor");
    c->conductor = (struct conductor_options){.url = str_c(target), .node = str_c(c->queue)};
    c->bed.options.conductor = &c->conductor;
}

void cluster_open(struct cluster *c) {
    (void)signal(SIGPIPE, SIG_IGN); /* as the program does: servers go away at any time */
    bed_open(&c->bed);
}
void cluster_release(struct cluster *c) { bed_release(&c->bed); }

void cluster_start(struct cluster *c, const char *plan) {
    struct error err = {0};
    struct start_request q = bed_request(&c->bed, plan, c->run);
    q.adapter = str_c(c->adapter);
    status st = bed_start(&c->bed, &q, &err);
    CHECK(st == ST_OK, "%s", err.msg);
}

enum run_status cluster_end(struct cluster *c) { return bed_wait(&c->bed, c->run); }

/* ---- the cluster's own tools ---- */

struct saying {
    uv_process_t process;
    uv_pipe_t pipe;
    struct buf out;
    char chunk[65536];
    bool ended, closed;
};

static void give_chunk(uv_handle_t *handle, size_t size, uv_buf_t *buf) {
    struct saying *s = handle->data;
    (void)size;
    *buf = uv_buf_init(s->chunk, sizeof(s->chunk));
}

static void on_closed(uv_handle_t *handle) {
    struct saying *s = handle->data;
    s->closed = true;
}

static void take_chunk(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    struct saying *s = stream->data;
    if (n > 0) buf_put(&s->out, str_n(buf->base, (size_t)n));
    if (n < 0) uv_close((uv_handle_t *)stream, on_closed);
}

static void on_exit_(uv_process_t *process, int64_t code, int sig) {
    struct saying *s = process->data;
    (void)code;
    (void)sig;
    s->ended = true;
    uv_close((uv_handle_t *)process, NULL);
}

static str says(struct cluster *c, const char *command) {
    struct bed *bed = &c->bed;
    struct saying *s = ARENA_NEW(&bed->arena, struct saying);
    char *argv[] = {(char[]){"sh"}, (char[]){"-c"}, (char *)(uintptr_t)command, NULL};
    uv_stdio_container_t io[3] = {{.flags = UV_IGNORE},
                                  {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE},
                                  {.flags = UV_INHERIT_FD, .data.fd = 2}};
    uv_process_options_t options = {
        .file = "sh", .args = argv, .stdio = io, .stdio_count = 3, .exit_cb = on_exit_};
    buf_init(&s->out, SAYS_MAX);
    uv_pipe_init(&bed->loop, &s->pipe, 0);
    io[1].data.stream = (uv_stream_t *)&s->pipe;
    s->pipe.data = s->process.data = s;
    int rc = uv_spawn(&bed->loop, &s->process, &options);
    CHECK(rc == 0, "%s", uv_strerror(rc));
    uv_read_start((uv_stream_t *)&s->pipe, give_chunk, take_chunk);
    while (!s->ended || !s->closed)
        uv_run(&bed->loop, UV_RUN_ONCE);
    uv_run(&bed->loop, UV_RUN_NOWAIT);
    str kept = arena_str(&bed->arena, buf_str(&s->out));
    buf_release(&s->out);
    return kept;
}

str temporal_says(struct cluster *c, const char *fmt, ...) {
    const char *program = need("CAIRN_TEMPORAL_CLI", "CAIRN_TEST_TEMPORAL_WHY");
    char words[WORDS_MAX];
    char command[2 * WORDS_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof(words), fmt, args);
    va_end(args);
    snprintf(command, sizeof(command), "%s %s --address %.*s 2>&1", program, words,
             STR_ARG(c->temporal.target));
    return says(c, command);
}

str conductor_says(struct cluster *c, const char *method, const char *fmt, ...) {
    char words[WORDS_MAX];
    char command[2 * WORDS_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof(words), fmt, args);
    va_end(args);
    snprintf(command, sizeof(command), "curl -s -X %s '%.*s/api/%s'", method,
             STR_ARG(c->conductor.url), words);
    return says(c, command);
}

void cluster_until_shows(struct cluster *c, const char *word) {
    int64_t end = clock_mono_ns() + (int64_t)SHOWS_MS * 1000000;
    bool temporal = strcmp(c->adapter, "temporal") == 0;
    for (;;) {
        str text = temporal ? temporal_says(c, "workflow describe -w %s", c->run)
                            : conductor_says(c, "GET", "workflow/%.*s?includeTasks=false",
                                             STR_ARG(cluster_link(c, "workflowId")));
        if (holds(text, word)) return;
        CHECK(clock_mono_ns() < end, "no %s: %.*s", word, STR_ARG(text));
        bed_turn(&c->bed, 200);
    }
}

str cluster_link(struct cluster *c, const char *member) {
    struct event_page rows = all_rows(&c->bed, c->run);
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error err = {0};
    yyjson_val *root = NULL;
    str out = STR_NONE;
    for (size_t i = 0; i < rows.count; i++) {
        if (rows.records[i].event.type != EVENT_RUN_PROVIDER_LINKED) continue;
        CHECK(json_parse(rows.records[i].event.payload, limits, &c->bed.arena, &root, &err) ==
              ST_OK);
        (void)json_str(json_member(root, member), &out);
    }
    return out;
}

void cluster_has_ids(struct cluster *c, enum event_type type) {
    struct event_page page = {0};
    struct error err = {0};
    status st = ledger_read_records(host_reader(c->bed.host), str_c(c->run), 0, 500, &c->bed.arena,
                                    &page, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < page.count; i++) {
        const struct event *e = &page.records[i].event;
        if (e->type != type) continue;
        CHECK(is(e->tenant_id, "acme") && is(e->project_id, "shop") &&
              is(e->environment_id, "prod") && is(e->run_id, c->run));
        return;
    }
    CHECK(false, "no such event");
}
