/* http steps against a small server of our own, on 127.0.0.1. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "adapters/local/bench_test.h"
#include "adapters/trace.h"
#include "test.h"

/* ---- the server: one request a connection, answered by its path ---- */

enum { REQUEST_MAX = 16384 };
struct server {
    int fd, port;
    pthread_t thread;
    pthread_mutex_t lock;
    char last[REQUEST_MAX]; /* the last request, whole; under the lock */
};

static size_t request_len(const char *text) {
    const char *end = strstr(text, "\r\n\r\n");
    if (!end) return SIZE_MAX;
    const char *length = strcasestr(text, "\r\ncontent-length:");
    int64_t n = 0;
    if (length && length < end) {
        str rest = str_trim(str_c(length + sizeof "\r\ncontent-length:" - 1));
        if (!str_take_int(&rest, &n)) n = 0;
    }
    return (size_t)(end + 4 - text) + (size_t)n;
}

static void put_all(int fd, const char *text, size_t len) {
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n <= 0) return;
        text += n;
        len -= (size_t)n;
    }
}

static void answer(int fd, int code, const char *type, const char *body, size_t body_len) {
    char head[512];
    int n =
        snprintf(head, sizeof head,
                 "HTTP/1.1 %d X\r\n%s%s%sContent-Length: %zu\r\nConnection: close\r\n\r\n", code,
                 type ? "Content-Type: " : "", type ? type : "", type ? "\r\n" : "", body_len);
    put_all(fd, head, (size_t)n);
    put_all(fd, body, body_len);
}

static void serve_one(struct server *s, int fd) {
    static char big[200 * 1024]; /* of the server's one thread */
    char got[REQUEST_MAX] = {0};
    size_t len = 0;
    while (len < sizeof got - 1 && len < request_len(got)) {
        ssize_t n = read(fd, got + len, sizeof got - 1 - len);
        if (n <= 0) return;
        len += (size_t)n;
    }
    pthread_mutex_lock(&s->lock);
    memcpy(s->last, got, sizeof got);
    pthread_mutex_unlock(&s->lock);
    const char *path = strchr(got, ' ');
    path = path ? path + 1 : "";
    memset(big, 'x', sizeof big);
    if (strncmp(path, "/json", 5) == 0)
        answer(fd, 200, "application/json; charset=utf-8", "{ \"a\": [1.0] }", 14);
    else if (strncmp(path, "/problem", 8) == 0)
        answer(fd, 200, "application/problem+json", "{\"p\":1}", 7);
    else if (strncmp(path, "/broken", 7) == 0)
        answer(fd, 200, "application/json", "{oops", 5);
    else if (strncmp(path, "/text", 5) == 0)
        answer(fd, 201, "text/plain", "hello\n", 6);
    else if (strncmp(path, "/echo", 5) == 0)
        answer(fd, 200, "text/plain", got, len);
    else if (strncmp(path, "/empty", 6) == 0)
        answer(fd, 204, NULL, "", 0);
    else if (strncmp(path, "/big-json", 9) == 0)
        answer(fd, 200, "application/json", big, sizeof big);
    else if (strncmp(path, "/big", 4) == 0)
        answer(fd, 200, "text/plain", big, sizeof big);
    else if (strncmp(path, "/move", 5) == 0)
        answer(fd, 302, "text/plain", "elsewhere", 9);
    else if (strncmp(path, "/slow", 5) == 0)
        (void)!read(fd, got, 1);            /* until the other side goes */
    else if (strncmp(path, "/cut", 4) != 0) /* /cut: no answer at all */
        answer(fd, 503, "text/plain", big, sizeof big);
}

static void *server_main(void *arg) {
    struct server *s = arg;
    for (;;) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) return NULL;
        serve_one(s, fd);
        close(fd);
    }
}

static void server_open(struct server *s) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    pthread_mutex_init(&s->lock, NULL);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(s->fd >= 0 && bind(s->fd, (struct sockaddr *)&address, len) == 0);
    CHECK(listen(s->fd, 64) == 0);
    CHECK(getsockname(s->fd, (struct sockaddr *)&address, &len) == 0);
    s->port = ntohs(address.sin_port);
    CHECK(pthread_create(&s->thread, NULL, server_main, s) == 0);
}

static void server_close(struct server *s) {
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    pthread_mutex_destroy(&s->lock);
}

/* The last request, with the blank after the colon of its headers whether it was sent or not. */
static void server_last(struct server *s, char out[2 * REQUEST_MAX]) {
    pthread_mutex_lock(&s->lock);
    size_t n = 0;
    bool head = true;
    for (const char *c = s->last; *c; c++) {
        if (strncmp(c, "\r\n\r\n", 4) == 0) head = false;
        out[n++] = *c;
        if (head && *c == ':' && c[1] != ' ') out[n++] = ' ';
    }
    out[n] = '\0';
    pthread_mutex_unlock(&s->lock);
}

/* ---- the steps ---- */

struct stage {
    struct server server;
    struct bench bench;
    struct guard guard;
    struct guard_rule rule;
    struct arena arena;
};

static void stage_open(struct stage *s, struct local_options options) {
    struct error err;
    char text[64];
    memset(s, 0, sizeof *s);
    server_open(&s->server);
    arena_init(&s->arena, 1024, (size_t)1024 * 1024);
    snprintf(text, sizeof text, "http://127.0.0.1:%d", s->server.port);
    CHECK(guard_rule_parse(arena_str(&s->arena, str_c(text)), &s->arena, &s->rule, &err) == ST_OK);
    s->guard = (struct guard){&s->rule, 1, true};
    if (!options.guard) options.guard = &s->guard;
    bench_open(&s->bench, options);
}

static void stage_close(struct stage *s) {
    bench_close(&s->bench);
    server_close(&s->server);
    arena_release(&s->arena);
}

static void http_start(struct stage *s, struct shot *shot, const char *path, const char *more,
                       enum plan_output output) {
    char body[2048];
    snprintf(body, sizeof body, "{\"url\":\"http://127.0.0.1:%d%s\"%s}", s->server.port, path,
             more);
    shot_init(shot, "call", "");
    shot->attempt.body = arena_str(&s->arena, str_c(body));
    shot->step.type = PLAN_HTTP;
    shot->step.output = output;
}

static void http_run(struct stage *s, struct shot *shot, const char *path, const char *more,
                     enum plan_output output) {
    http_start(s, shot, path, more, output);
    shot_start(&s->bench, shot);
    shot_wait(&s->bench, shot);
}

TEST(http_step_answers_are_as_documented) {
    static const struct {
        const char *path, *more;
        enum plan_output output;
        const char *code, *output_json, *detail;
    } cases[] = {
        {"/json", "", PLAN_OUTPUT_TEXT, "",
         "{\"status\":200,\"headers\":{\"content-type\":\"application/json; charset=utf-8\"},"
         "\"body\":{\"a\":[1.0]}}",
         NULL},
        {"/json", ",\"output\":\"text\"", PLAN_OUTPUT_TEXT, "",
         "{\"status\":200,\"headers\":{\"content-type\":\"application/json; charset=utf-8\"},"
         "\"body\":\"{ \\\"a\\\": [1.0] }\"}",
         NULL},
        {"/json", ",\"output\":\"none\"", PLAN_OUTPUT_NONE, "", NULL, NULL},
        {"/problem", "", PLAN_OUTPUT_TEXT, "",
         "{\"status\":200,\"headers\":{\"content-type\":\"application/problem+json\"},"
         "\"body\":{\"p\":1}}",
         NULL},
        {"/text", "", PLAN_OUTPUT_TEXT, "",
         "{\"status\":201,\"headers\":{\"content-type\":\"text/plain\"},\"body\":\"hello\\n\"}",
         NULL},
        {"/empty", "", PLAN_OUTPUT_TEXT, "", "{\"status\":204,\"headers\":{},\"body\":\"\"}", NULL},
        {"/broken", "", PLAN_OUTPUT_TEXT, "",
         "{\"status\":200,\"headers\":{\"content-type\":\"application/json\"},"
         "\"body\":\"{oops\"}",
         NULL},
        {"/broken", ",\"output\":\"json\"", PLAN_OUTPUT_JSON, "OUTPUT_NOT_JSON", NULL, NULL},
        {"/text", ",\"expectStatus\":[200,202]", PLAN_OUTPUT_TEXT, "HTTP_STATUS", NULL,
         "{\"status\":201,\"bodyHead\":\"hello\\n\"}"},
        {"/move", "", PLAN_OUTPUT_TEXT, "HTTP_STATUS", NULL,
         "{\"status\":302,\"bodyHead\":\"elsewhere\"}"},
        {"/move", ",\"expectStatus\":[302]", PLAN_OUTPUT_NONE, "", NULL, NULL},
        {"/503", "", PLAN_OUTPUT_TEXT, "HTTP_STATUS", NULL, "{\"status\":503,\"bodyHead\":\"xxx"},
        {"/big-json", "", PLAN_OUTPUT_TEXT, "OUTPUT_TOO_LARGE", NULL, NULL},
        {"/cut", "", PLAN_OUTPUT_TEXT, "HTTP_FAILED", NULL, NULL},
        {"/json", ",\"headers\":{\"A\":\"b\\r\\nC: d\"}", PLAN_OUTPUT_TEXT, "INVALID_STEP_SCHEMA",
         NULL, NULL},
        {"/json", ",\"headers\":{\"A\":{\"secret\":\"NOWHERE\"}}", PLAN_OUTPUT_TEXT,
         "SECRET_NOT_FOUND", NULL, NULL},
        {"/json", ",\"headers\":[]", PLAN_OUTPUT_TEXT, "INVALID_STEP_SCHEMA", NULL, NULL},
        {"/json", ",\"method\":1", PLAN_OUTPUT_TEXT, "INVALID_STEP_SCHEMA", NULL, NULL},
        {"0/json", "", PLAN_OUTPUT_TEXT, "URL_", NULL, NULL}, /* another port */
    };
    struct stage s;
    stage_open(&s, (struct local_options){0});
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct shot shot;
        http_run(&s, &shot, cases[i].path, cases[i].more, cases[i].output);
        CHECK(cases[i].code[0] ? has(shot.code, cases[i].code) : shot.ok, "case %zu: %s %s", i,
              shot.code, shot.message);
        CHECK(cases[i].output_json ? shot.output && strcmp(shot.output, cases[i].output_json) == 0
                                   : !shot.output,
              "case %zu: %s", i, shot.output);
        CHECK(cases[i].detail ? has(shot.detail, cases[i].detail) : !shot.detail, "case %zu: %s", i,
              shot.detail);
        shot_release(&shot);
    }
    struct shot shot; /* a text that is too long is cut, and that is told */
    http_run(&s, &shot, "/big", "", PLAN_OUTPUT_TEXT);
    CHECK(shot.ok && strlen(shot.output) < LOCAL_OUTPUT_MAX + 100, "%s", shot.code);
    CHECK(has(shot.detail, "{\"outputTruncated\":true,\"outputBytes\":204800}"), "%s", shot.detail);
    shot_release(&shot);
    stage_close(&s);
}

TEST(http_step_sends_what_the_plan_says) {
    struct stage s;
    struct shot shot;
    setenv("CAIRN_SECRET_HTTP_TOKEN", "t0ken-value", 1);
    stage_open(&s, (struct local_options){0});
    http_run(&s, &shot, "/echo?q=1",
             ",\"method\":\"POST\",\"body\":{\"rows\": [1, 2.50]},"
             "\"headers\":{\"Authorization\":{\"secret\":\"HTTP_TOKEN\"},\"X-A\":\"b\"}",
             PLAN_OUTPUT_TEXT);
    CHECK(shot.ok, "%s", shot.message);
    static char sent[2 * REQUEST_MAX];
    server_last(&s.server, sent);
    CHECK(strncmp(sent, "POST /echo?q=1 HTTP/1.1\r\n", 25) == 0, "%s", sent);
    CHECK(strcasestr(sent, "\r\nAuthorization: t0ken-value\r\n") != NULL, "%s", sent);
    CHECK(strcasestr(sent, "\r\nX-A: b\r\n") != NULL, "%s", sent);
    CHECK(strcasestr(sent, "\r\nContent-Type: application/json\r\n") != NULL, "%s", sent);
    CHECK(strcasestr(sent, "\r\nIdempotency-Key: run-1/call\r\n") != NULL, "%s", sent);
    CHECK(has(sent, "\r\n\r\n{\"rows\":[1,2.50]}"), "%s", sent);
    /* WE-1N-3: what the server says again is masked */
    CHECK(has(shot.output, "***") && !has(shot.output, "t0ken"), "%s", shot.output);
    shot_release(&shot);
    http_start(&s, &shot, "/echo",
               ",\"method\":\"PUT\",\"body\":\"a=b\","
               "\"headers\":{\"content-type\":\"application/x-www-form-urlencoded\"}",
               PLAN_OUTPUT_TEXT);
    shot.attempt.run_id = STR("run/1 \n\xc3\xa9%");
    shot_start(&s.bench, &shot);
    shot_wait(&s.bench, &shot);
    CHECK(shot.ok, "%s", shot.message);
    server_last(&s.server, sent);
    CHECK(has(sent, "\r\n\r\na=b") && !strcasestr(sent, "application/json"), "%s", sent);
    CHECK(strcasestr(sent, "\r\nIdempotency-Key: run%2F1%20%0A%C3%A9%25/call\r\n"), "%s", sent);
    shot_release(&shot);
    stage_close(&s);
    unsetenv("CAIRN_SECRET_HTTP_TOKEN");
}

TEST(http_step_passes_the_trace_on) {
    struct stage s;
    struct shot shot;
    static char sent[2 * REQUEST_MAX];
    char line[256];
    char want[TRACE_PARENT_LEN];
    uuid trace = uuid_v4();
    stage_open(&s, (struct local_options){0});
    http_start(&s, &shot, "/echo", "", PLAN_OUTPUT_TEXT);
    shot.attempt.correlation = trace;
    shot_start(&s.bench, &shot);
    shot_wait(&s.bench, &shot);
    CHECK(shot.ok, "%s", shot.message);
    server_last(&s.server, sent);
    CHECK(trace_parent(trace, STR("run-1"), STR("call"), 1, want));
    snprintf(line, sizeof line, "\r\ntraceparent: %.*s\r\n", (int)sizeof want, want);
    CHECK(has(sent, line), "%s is not in %s", line, sent);
    shot_release(&shot);
    /* the plan's own stands, whatever its letters look like, and alone */
    http_start(&s, &shot, "/echo", ",\"headers\":{\"TraceParent\":\"mine\"}", PLAN_OUTPUT_TEXT);
    shot.attempt.correlation = trace;
    shot_start(&s.bench, &shot);
    shot_wait(&s.bench, &shot);
    server_last(&s.server, sent);
    CHECK(has(sent, "\r\nTraceParent: mine\r\n") && !has(sent, "traceparent"), "%s", sent);
    shot_release(&shot);
    stage_close(&s);
}

TEST(http_step_is_guarded) {
    struct stage s;
    struct shot shot;
    struct guard nothing = {0};
    static char sent[2 * REQUEST_MAX];
    stage_open(&s, (struct local_options){.guard = &nothing});
    http_run(&s, &shot, "/json", "", PLAN_OUTPUT_TEXT);
    CHECK(!shot.ok && strcmp(shot.code, "URL_NOT_ALLOWED") == 0, "%s", shot.code);
    server_last(&s.server, sent);
    CHECK(sent[0] == '\0');
    shot_release(&shot);
    stage_close(&s);
    /* a name that leads to the inside: the URL passes, the address does not */
    stage_open(&s, (struct local_options){0});
    s.guard.allow_private = false;
    s.rule.host = STR("localhost.localdomain");
    char body[256];
    snprintf(body, sizeof body, "{\"url\":\"http://localhost.localdomain:%d/json\"}",
             s.server.port);
    shot_init(&shot, "call", body);
    shot.step.type = PLAN_HTTP;
    shot_start(&s.bench, &shot);
    shot_wait(&s.bench, &shot);
    CHECK(!shot.ok, "%s", shot.output);
    server_last(&s.server, sent);
    CHECK(sent[0] == '\0');
    shot_release(&shot);
    stage_close(&s);
}

TEST(http_step_ends_when_told_to) {
    struct stage s;
    struct shot shot;
    stage_open(&s, (struct local_options){0});
    http_start(&s, &shot, "/slow", "", PLAN_OUTPUT_TEXT);
    shot.attempt.timeout_ms = 100;
    shot_start(&s.bench, &shot);
    shot_wait(&s.bench, &shot);
    CHECK(strcmp(shot.code, "TIMEOUT") == 0 && has(shot.message, "100 ms"), "%s", shot.code);
    shot_release(&shot);
    http_start(&s, &shot, "/slow", "", PLAN_OUTPUT_TEXT);
    shot_start(&s.bench, &shot);
    uv_run(&s.bench.loop, UV_RUN_ONCE);
    executor_stop(s.bench.ex, &shot.attempt);
    shot_wait(&s.bench, &shot);
    CHECK(strcmp(shot.code, "CANCELLED") == 0, "%s", shot.code);
    shot_release(&shot);
    /* more than may be under way at once, and a close in the middle */
    static struct shot many[300];
    for (int i = 0; i < 300; i++) {
        http_start(&s, &many[i], "/slow", "", PLAN_OUTPUT_TEXT);
        shot_start(&s.bench, &many[i]);
    }
    uv_run(&s.bench.loop, UV_RUN_ONCE);
    stage_close(&s);
    for (int i = 0; i < 300; i++) {
        CHECK(many[i].answers == 1 && strcmp(many[i].code, "CANCELLED") == 0, "%d: %s %s", i,
              many[i].code, many[i].message);
        shot_release(&many[i]);
    }
}
