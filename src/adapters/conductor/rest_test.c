#include "adapters/conductor/rest.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/time.h"
#include "net/fake_server_test.h"
#include "test.h"

TEST(conductor_rest_tells_answers_apart) {
    static const struct {
        int http;
        const char *body;
        status want;
        const char *msg;
    } cases[] = {
        {200, "", ST_OK, ""},
        {204, "", ST_OK, ""},
        {404, "{\"message\":\"No such workflow\"}", ST_NOT_FOUND,
         "answered with status 404: No such workflow"},
        {409, "{\"message\":\"ended\"}", ST_CONFLICT, "answered with status 409: ended"},
        {400, "{\"message\":\"bad\",\"retryable\":true}", ST_INVALID,
         "answered with status 400: bad"},
        {500, "{\"message\":\"not PAUSED\",\"retryable\":false}", ST_CONFLICT,
         "answered with status 500: not PAUSED"},
        {500, "{\"message\":\"busy\",\"retryable\":true}", ST_RETRY,
         "answered with status 500: busy"},
        {500, "<html>", ST_CONFLICT, "answered with status 500: no message"},
        {429, "", ST_RETRY, "answered with status 429: no message"},
        {502, "", ST_RETRY, "answered with status 502: no message"},
        {503, "{}", ST_RETRY, "answered with status 503: no message"},
        {504, "[]", ST_RETRY, "answered with status 504: no message"},
        {302, "", ST_INVALID, "answered with status 302: no message"},
        {413, "", ST_INVALID, "answered with status 413: no message"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        CHECK(rest_status(cases[i].http, str_c(cases[i].body), &err) == cases[i].want, "case %zu",
              i);
        CHECK(strcmp(err.msg, cases[i].msg) == 0, "case %zu: %s", i, err.msg);
    }
}

TEST(conductor_rest_escapes) {
    struct buf b;
    buf_init(&b, 256);
    rest_escape(STR("aZ9-_. /?&%\xc3\xa4\n"), &b);
    CHECK(str_eq(buf_str(&b), STR("aZ9-_.%20%2F%3F%26%25%C3%A4%0A")), "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
}

/* ---- calls ---- */

struct scene {
    uv_loop_t loop;
    struct rest *rest;
    struct fake_server *server;
    pthread_mutex_t lock; /* of the next two: each connection has a thread */
    int fails;            /* so many requests are answered with 503 */
    char last[256];
    /* the answers */
    int answers;
    status st;
    char text[256];
    bool json;
};

static bool handle(void *context, int fd, const struct fake_request *request) {
    struct scene *s = context;
    pthread_mutex_lock(&s->lock);
    (void)snprintf(s->last, sizeof s->last, "%.*s %.*s %.*s", STR_ARG(request->method),
                   STR_ARG(request->target), STR_ARG(request->body));
    bool fails = s->fails > 0;
    if (fails) s->fails--;
    pthread_mutex_unlock(&s->lock);
    if (fails) return fake_answer(fd, 503, "", STR("{\"message\":\"not now\"}"));
    if (str_eq(request->target, STR("/api/text"))) return fake_answer(fd, 200, "", STR("an-id"));
    if (str_eq(request->target, STR("/api/cut"))) return false;
    return fake_answer(fd, 200, "", STR("{\"a\":[1]}"));
}

static void on_done(void *context, const struct rest_answer *answer) {
    struct scene *s = context;
    s->answers++;
    s->st = answer->st;
    s->json = answer->json != NULL;
    (void)snprintf(s->text, sizeof s->text, "%.*s", STR_ARG(answer->text));
}

static void scene_open(struct scene *s, const char *tail) {
    struct error err = {0};
    *s = (struct scene){.lock = PTHREAD_MUTEX_INITIALIZER};
    s->server = fake_server_open(handle, s);
    CHECK(uv_loop_init(&s->loop) == 0);
    char url[128];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d%s", fake_server_port(s->server), tail);
    CHECK(rest_open(&s->loop, str_c(url), &s->rest, &err) == ST_OK, "%s", err.msg);
}

static void scene_close(struct scene *s) {
    rest_close(s->rest);
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&s->loop) == 0);
    fake_server_close(s->server);
}

static struct rest_call *ask(struct scene *s, const char *path, int64_t patience_ms) {
    struct rest_request request = {.method = "POST",
                                   .path = str_c(path),
                                   .body = STR("{}"),
                                   .patience_ms = patience_ms,
                                   .timeout_ms = 2000};
    struct rest_call *call = rest_start(s->rest, &request, on_done, s);
    CHECK(call != NULL);
    return call;
}

static void set_fails(struct scene *s, int count) {
    pthread_mutex_lock(&s->lock);
    s->fails = count;
    pthread_mutex_unlock(&s->lock);
}

static void wait_answers(struct scene *s, int count) {
    int64_t until = clock_mono_ns() / 1000000 + 20000;
    while (s->answers < count) {
        CHECK(clock_mono_ns() / 1000000 < until);
        (void)uv_run(&s->loop, UV_RUN_ONCE);
    }
}

TEST(conductor_rest_calls) {
    static const char *const tails[] = {"", "/", "/api", "/api/"};
    for (size_t i = 0; i < COUNT_OF(tails); i++) {
        struct scene s;
        scene_open(&s, tails[i]);
        (void)ask(&s, "/json?a=1", 0);
        wait_answers(&s, 1);
        CHECK(s.st == ST_OK && s.json);
        pthread_mutex_lock(&s.lock);
        CHECK(strcmp(s.last, "POST /api/json?a=1 {}") == 0, "%s", s.last);
        pthread_mutex_unlock(&s.lock);
        (void)ask(&s, "/text", 0);
        wait_answers(&s, 2);
        CHECK(s.st == ST_OK && !s.json && strcmp(s.text, "an-id") == 0);
        CHECK(rest_pending(s.rest) == 0);
        scene_close(&s);
    }
}

TEST(conductor_rest_is_patient_if_told_so) {
    struct scene s;
    scene_open(&s, "");
    set_fails(&s, 1);
    (void)ask(&s, "/json", 0);
    wait_answers(&s, 1);
    CHECK(s.st == ST_RETRY && fake_server_requests(s.server) == 1);
    set_fails(&s, 3);
    (void)ask(&s, "/json", 10000);
    wait_answers(&s, 2);
    CHECK(s.st == ST_OK && fake_server_requests(s.server) == 5);
    (void)ask(&s, "/cut", 300);
    wait_answers(&s, 3);
    CHECK(s.st == ST_RETRY);
    scene_close(&s);
}

/* More calls than may be under way; some are taken back; the rest are cancelled by the end. */
TEST(conductor_rest_queues) {
    struct scene s;
    scene_open(&s, "");
    struct rest_call *calls[100];
    for (size_t i = 0; i < COUNT_OF(calls); i++)
        calls[i] = ask(&s, "/json", 0);
    CHECK(rest_pending(s.rest) == COUNT_OF(calls) && s.answers == 0);
    for (size_t i = 0; i < COUNT_OF(calls); i += 2)
        rest_cancel(calls[i]);
    wait_answers(&s, 50);
    CHECK(s.st == ST_OK && rest_pending(s.rest) == 0);
    set_fails(&s, 1000);
    for (size_t i = 0; i < 30; i++)
        (void)ask(&s, "/json", 60000);
    for (int i = 0; i < 50; i++)
        (void)uv_run(&s.loop, UV_RUN_ONCE);
    CHECK(rest_pending(s.rest) == 30);
    rest_hasten(s.rest);
    wait_answers(&s, 80);
    CHECK(s.st == ST_RETRY);
    for (size_t i = 0; i < 30; i++)
        (void)ask(&s, "/json", 60000);
    scene_close(&s);
    CHECK(s.answers == 80);
}

TEST(conductor_rest_refuses_what_cannot_be_sent) {
    struct scene s;
    scene_open(&s, "");
    char path[9000];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    (void)ask(&s, path, 60000);
    wait_answers(&s, 1);
    CHECK(s.st == ST_INVALID);
    scene_close(&s);
}
