#include "net/client.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/time.h"
#include "net/fake_server_test.h"
#include "test.h"

/* ---- a server with one page for each thing that can go wrong ---- */

static bool drip(int fd) {
    bool ok = fake_send(fd, STR("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"));
    while (ok) {
        ok = fake_send(fd, STR("x"));
        usleep(20000);
    }
    return false;
}

static bool endless(int fd, const char *head, const char *piece) {
    bool ok = fake_send(fd, str_c(head));
    while (ok)
        ok = fake_send(fd, str_c(piece));
    return false;
}

/* Gives back what it was sent. */
static bool echo(int fd, const struct fake_request *request) {
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_put_c(&b, request->head);
    bool ok = fake_answer(fd, 200, "Content-Type: text/plain\r\n", buf_str(&b));
    buf_release(&b);
    return ok;
}

static bool handle(void *context, int fd, const struct fake_request *request) {
    UNUSED(context);
    static const char *const zeros = "0000000000000000000000000000000000000000000000000000000000\n";
    str target = request->target;
    if (str_starts(target, STR("/echo"))) return echo(fd, request);
    if (str_eq(target, STR("/drip"))) return drip(fd);
    if (str_eq(target, STR("/endless")))
        return endless(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n", zeros);
    if (str_eq(target, STR("/headers")))
        return endless(fd, "HTTP/1.1 200 OK\r\n", "X-Header: 000000000000000000000000000000\r\n");
    if (str_eq(target, STR("/announced")))
        return fake_send(fd, STR("HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\nx"));
    if (str_eq(target, STR("/redirect")))
        return fake_answer(fd, 302, "Location: http://169.254.169.254/latest\r\n", STR("moved"));
    if (str_eq(target, STR("/silent"))) {
        char c;
        (void)!read(fd, &c, 1); /* until the other side gives up */
        return false;
    }
    if (str_eq(target, STR("/cut"))) {
        (void)fake_send(fd, STR("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"));
        return false;
    }
    if (str_eq(target, STR("/garbage"))) {
        (void)fake_send(fd, STR("SSH-2.0-OpenSSH\r\n"));
        return false;
    }
    if (str_eq(target, STR("/ok"))) return fake_answer(fd, 200, "", STR("fine"));
    if (str_eq(target, STR("/stream"))) {
        bool ok = fake_send(fd, STR("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"));
        for (int i = 0; i < 5 && ok; i++) {
            ok = fake_send(fd, STR("5\r\nline\n\r\n"));
            usleep(10000);
        }
        return ok && fake_send(fd, STR("0\r\n\r\n"));
    }
    return fake_answer(fd, 404, "Content-Type: text/plain\r\n", STR("nothing here"));
}

/* ---- requests ---- */

static bool yes(void *context, const uint8_t *address, size_t len) {
    UNUSED(address);
    UNUSED(len);
    if (context != NULL) ++*(int *)context;
    return true;
}

static bool no(void *context, const uint8_t *address, size_t len) {
    UNUSED(address);
    UNUSED(len);
    if (context != NULL) ++*(int *)context;
    return false;
}

static str url_of(struct fake_server *server, const char *path, struct arena *arena) {
    char text[512];
    (void)snprintf(text, sizeof text, "http://127.0.0.1:%d%s", fake_server_port(server), path);
    return arena_str(arena, str_c(text));
}

static struct arena arena_make(void) {
    struct arena a;
    arena_init(&a, 4096, (size_t)8 << 20);
    return a;
}

TEST(client_fetches) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    struct client_response got = {0};
    struct error err = {0};
    int asked = 0;
    struct client_request request = {
        .url = url_of(server, "/ok", &a), .may_connect = yes, .context = &asked};
    CHECK(client_fetch(&request, &a, &got, &err) == ST_OK, "%s", err.msg);
    CHECK(got.status == 200 && str_eq(got.body, STR("fine")) && got.content_type.ptr == NULL);
    CHECK(asked >= 1);
    request.url = url_of(server, "/missing", &a);
    CHECK(client_fetch(&request, &a, &got, &err) == ST_OK, "%s", err.msg);
    CHECK(got.status == 404 && str_eq(got.content_type, STR("text/plain")));
    arena_release(&a);
    fake_server_close(server);
}

/* The URL, the method, the headers and the body arrive as they were given, and nothing else. */
TEST(client_sends_what_it_is_told) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    static const struct client_header headers[] = {
        {STR_LIT("X-One"), STR_LIT("1")},
        {STR_LIT("X-Empty"), STR_LIT("")},
        {STR_LIT("Content-Type"), STR_LIT("application/json")},
    };
    static const struct {
        const char *method, *path, *body, *want, *body_length;
        size_t headers;
    } cases[] = {
        {NULL, "/echo", NULL, "GET /echo HTTP/1.1\r\n", NULL, 0},
        {"GET", "/echo/a%20b/../c?x=1&y=%2F", NULL, "GET /echo/a%20b/../c?x=1&y=%2F HTTP/1.1\r\n",
         NULL, 3},
        {"POST", "/echo", "{\"a\":1}", "POST /echo HTTP/1.1\r\n", "7", 3},
        {"POST", "/echo", NULL, "POST /echo HTTP/1.1\r\n", "0", 0},
        {"PUT", "/echo", "x", "PUT /echo HTTP/1.1\r\n", "1", 3},
        {"DELETE", "/echo", NULL, "DELETE /echo HTTP/1.1\r\n", NULL, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct client_response got = {0};
        struct error err = {0};
        struct client_request request = {.method = str_c(cases[i].method),
                                         .url = url_of(server, cases[i].path, &a),
                                         .headers = headers,
                                         .header_count = cases[i].headers,
                                         .body = str_c(cases[i].body),
                                         .may_connect = yes};
        CHECK(client_fetch(&request, &a, &got, &err) == ST_OK, "case %zu: %s", i, err.msg);
        const char *text = arena_str(&a, got.body).ptr;
        CHECK(str_starts(got.body, str_c(cases[i].want)), "case %zu: %s", i, text);
        if (cases[i].body != NULL) {
            CHECK(str_ends(got.body, str_c(cases[i].body)), "case %zu: %s", i, text);
        }
        if (cases[i].body_length != NULL) {
            char line[64];
            (void)snprintf(line, sizeof line, "\r\nContent-Length: %s\r\n", cases[i].body_length);
            CHECK(strstr(text, line) != NULL, "case %zu: %s", i, text);
        }
        bool sent = cases[i].headers > 0;
        CHECK((strstr(text, "\r\nX-One: 1\r\n") != NULL) == sent, "case %zu: %s", i, text);
        CHECK((strstr(text, "\r\nX-Empty:\r\n") != NULL) == sent, "case %zu: %s", i, text);
        CHECK((strstr(text, "Content-Type:") != NULL) == sent, "case %zu: %s", i, text);
        CHECK(strstr(text, "Expect") == NULL, "case %zu: %s", i, text);
    }
    arena_release(&a);
    fake_server_close(server);
}

TEST(client_head_has_no_body) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    struct client_response got = {0};
    struct error err = {0};
    struct client_request request = {
        .method = STR("HEAD"), .url = url_of(server, "/announced", &a), .may_connect = yes};
    CHECK(client_fetch(&request, &a, &got, &err) == ST_OK, "%s", err.msg);
    CHECK(got.status == 200 && got.body.len == 0);
    arena_release(&a);
    fake_server_close(server);
}

TEST(client_failures_have_reasons) {
    struct fake_server *server = fake_server_open(handle, NULL);
    static const struct {
        const char *path;
        size_t bytes_max;
        int64_t timeout_ms, stall_ms;
        status want;
        const char *reason;
    } cases[] = {
        {"/drip", 0, 300, 0, ST_RETRY, "HTTP_TIMEOUT"},
        {"/silent", 0, 300, 0, ST_RETRY, "HTTP_TIMEOUT"},
        {"/silent", 0, 60000, 1000, ST_RETRY, "HTTP_TIMEOUT"},
        {"/endless", 100000, 20000, 0, ST_LIMIT, "HTTP_TOO_LARGE"},
        {"/endless", 0, 20000, 0, ST_LIMIT, "HTTP_TOO_LARGE"},
        {"/headers", 0, 20000, 0, ST_LIMIT, "HTTP_TOO_LARGE"},
        {"/announced", 1000, 20000, 0, ST_LIMIT, "HTTP_TOO_LARGE"},
        {"/ok", 3, 20000, 0, ST_LIMIT, "HTTP_TOO_LARGE"},
        {"/cut", 0, 20000, 0, ST_RETRY, "HTTP_FAILED"},
        {"/garbage", 0, 20000, 0, ST_RETRY, "HTTP_FAILED"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a = arena_make();
        struct client_response got = {0};
        struct error err = {0};
        struct client_request request = {.url = url_of(server, cases[i].path, &a),
                                         .may_connect = yes,
                                         .bytes_max = cases[i].bytes_max,
                                         .timeout_ms = cases[i].timeout_ms,
                                         .stall_ms = cases[i].stall_ms};
        int64_t start = clock_mono_ns();
        status st = client_fetch(&request, &a, &got, &err);
        CHECK(st == cases[i].want, "case %zu: %s %s", i, status_name(st), err.msg);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(err.reason));
        CHECK(got.body.ptr == NULL, "case %zu", i);
        CHECK(clock_mono_ns() - start < 15 * INT64_C(1000000000), "case %zu took too long", i);
        arena_release(&a);
    }
    fake_server_close(server);
}

/* Whoever needs the beginning only gets it, and its status, however long the rest is. */
TEST(client_cuts_an_answer_if_it_may) {
    struct fake_server *server = fake_server_open(handle, NULL);
    static const struct {
        const char *path;
        size_t bytes_max;
        int status;
        size_t len;
        bool cut;
    } cases[] = {
        {"/endless", 100000, 200, 100000, true},
        {"/ok", 3, 200, 3, true},
        {"/ok", 4, 200, 4, false},
        {"/missing", 5, 404, 5, true},
        {"/announced", 1000, 0, 0, false}, /* one byte of many came: not cut by us */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a = arena_make();
        struct client_response got = {0};
        struct error err = {0};
        struct client_request request = {.url = url_of(server, cases[i].path, &a),
                                         .may_connect = yes,
                                         .bytes_max = cases[i].bytes_max,
                                         .cuts = true,
                                         .timeout_ms = cases[i].status ? 20000 : 300};
        status st = client_fetch(&request, &a, &got, &err);
        CHECK((st == ST_OK) == (cases[i].status != 0), "case %zu: %s", i, err.msg);
        CHECK(got.status == cases[i].status && got.cut == cases[i].cut, "case %zu", i);
        CHECK(got.body.len == cases[i].len, "case %zu: %zu", i, got.body.len);
        arena_release(&a);
    }
    fake_server_close(server);
}

TEST(client_connection_refused) {
    struct arena a = arena_make();
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d/?secret=1", fake_free_port());
    struct client_response got;
    struct error err = {0};
    struct client_request request = {.url = str_c(url), .may_connect = yes};
    CHECK(client_fetch(&request, &a, &got, &err) == ST_RETRY);
    CHECK(err.reason == REASON_HTTP_FAILED);
    CHECK(strstr(err.msg, "127.0.0.1") != NULL && strstr(err.msg, "secret") == NULL, "%s", err.msg);
    arena_release(&a);
}

/* Nobody is connected to whom the caller refuses, by number or by name. */
TEST(client_asks_before_it_connects) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    static const char *const hosts[] = {"127.0.0.1", "localhost", "2130706433", "[::1]"};
    for (size_t i = 0; i < COUNT_OF(hosts); i++) {
        char url[128];
        (void)snprintf(url, sizeof url, "http://%s:%d/ok", hosts[i], fake_server_port(server));
        struct client_response got;
        struct error err = {0};
        int asked = 0;
        struct client_request request = {.url = str_c(url), .may_connect = no, .context = &asked};
        CHECK(client_fetch(&request, &a, &got, &err) == ST_INVALID, "%s: %s", url, err.msg);
        CHECK(err.reason == REASON_HTTP_REFUSED_ADDRESS, "%s: %s", url, err.msg);
        CHECK(asked >= 1, "%s", url);
    }
    CHECK(fake_server_connections(server) == 0);
    arena_release(&a);
    fake_server_close(server);
}

TEST(client_follows_no_redirect) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    struct client_response got = {0};
    struct error err = {0};
    struct client_request request = {.url = url_of(server, "/redirect", &a), .may_connect = yes};
    CHECK(client_fetch(&request, &a, &got, &err) == ST_OK, "%s", err.msg);
    CHECK(got.status == 302 && str_eq(got.body, STR("moved")));
    CHECK(fake_server_requests(server) == 1);
    arena_release(&a);
    fake_server_close(server);
}

TEST(client_ignores_proxies_of_the_environment) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    char proxy[64];
    (void)snprintf(proxy, sizeof proxy, "http://127.0.0.1:%d", fake_free_port());
    static const char *const names[] = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        CHECK(setenv(names[i], proxy, 1) == 0);
    struct client_response got = {0};
    struct error err = {0};
    struct client_request request = {.url = url_of(server, "/ok", &a), .may_connect = yes};
    status st = client_fetch(&request, &a, &got, &err);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        unsetenv(names[i]);
    CHECK(st == ST_OK && got.status == 200, "%s", err.msg);
    arena_release(&a);
    fake_server_close(server);
}

/* A server that does not speak TLS, or another scheme, is nothing we take an answer from. */
TEST(client_takes_http_and_https_alone) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    static const char *const urls[] = {"https://127.0.0.1:%d/ok",  "ftp://127.0.0.1:%d/ok",
                                       "gopher://127.0.0.1:%d/ok", "file:///etc/passwd#%d",
                                       "dict://127.0.0.1:%d/ok",   "http://u:p@127.0.0.1:%d/ok"};
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        char url[128];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(url, sizeof url, urls[i], fake_server_port(server));
#pragma GCC diagnostic pop
        struct client_response got;
        struct error err = {0};
        struct client_request request = {.url = str_c(url), .may_connect = yes, .timeout_ms = 500};
        CHECK(client_fetch(&request, &a, &got, &err) != ST_OK, "%s", url);
        CHECK(strncmp(reason_name(err.reason), "HTTP_", 5) == 0, "%s: %s", url,
              reason_name(err.reason));
    }
    CHECK(fake_server_requests(server) == 0);
    arena_release(&a);
    fake_server_close(server);
}

static void check_malformed(const struct client_request *request, const char *what, size_t i) {
    struct arena a = arena_make();
    struct client_response got;
    struct error err = {0};
    CHECK(client_fetch(request, &a, &got, &err) == ST_INVALID, "%s %zu", what, i);
    CHECK(err.reason == REASON_HTTP_REQUEST_INVALID, "%s %zu: %s", what, i, err.msg);
    arena_release(&a);
}

TEST(client_refuses_malformed_requests) {
    static const struct client_header bad[] = {
        {STR_LIT(""), STR_LIT("x")},          {STR_LIT("a b"), STR_LIT("x")},
        {STR_LIT("a:"), STR_LIT("x")},        {STR_LIT("a\r\nb"), STR_LIT("x")},
        {STR_LIT("a"), STR_LIT("x\r\nb: c")}, {STR_LIT("a"), STR_LIT("x\0y")},
        {STR_LIT("a"), STR_LIT("x\ny")},
    };
    static const char *const methods[] = {"",       "get",     "GET /x",
                                          "G\r\nT", "CONNECT", "ABCDEFGHIJKLMNOPQRST"};
    static const str urls[] = {STR_LIT(""),
                               STR_LIT("http://127.0.0.1:1/a b"),
                               STR_LIT("http://127.0.0.1:1/\r\nX: y"),
                               STR_LIT("http://127.0.0.1:1/\0"),
                               STR_LIT("http://h\xC3\xA9/"),
                               STR_LIT("ftp://h/"),
                               STR_LIT("127.0.0.1")};
    static char huge[CLIENT_HEADER_BYTES_MAX];
    memset(huge, 'x', sizeof huge);
    struct client_request good = {.url = STR("http://127.0.0.1:1/"), .may_connect = no};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct client_request r = good;
        r.headers = &bad[i];
        r.header_count = 1;
        check_malformed(&r, "header", i);
    }
    for (size_t i = 0; i < COUNT_OF(methods); i++) {
        struct client_request r = good;
        r.method = str_c(methods[i]);
        check_malformed(&r, "method", i);
    }
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        struct client_request r = good;
        r.url = urls[i];
        check_malformed(&r, "url", i);
    }
    struct client_header large = {STR("a"), str_n(huge, sizeof huge)};
    good.headers = &large;
    good.header_count = 1;
    check_malformed(&good, "long header", 0);
    good.header_count = CLIENT_HEADERS_MAX + 1;
    check_malformed(&good, "headers", 0);
}

static void *fetch_many(void *context) {
    const str *url = context;
    struct arena a = arena_make();
    struct client_response got;
    struct error err = {0};
    struct client_request request = {.url = *url, .may_connect = yes};
    for (int i = 0; i < 20; i++) {
        if (client_fetch(&request, &a, &got, &err) != ST_OK || got.status != 200) return context;
    }
    arena_release(&a);
    return NULL;
}

TEST(client_fetches_from_any_thread) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    pthread_t threads[4];
    str url = url_of(server, "/ok", &a);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, fetch_many, &url) == 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        void *failed;
        CHECK(pthread_join(threads[i], &failed) == 0 && failed == NULL);
    }
    arena_release(&a);
    fake_server_close(server);
}

/* ---- on a loop ---- */

struct answer {
    int count; /* how often `done` was called */
    status st;
    int code;
    char reason[32];
    char body[64];
    struct client *client;
    struct client_call *victim;        /* cancelled from inside `done` */
    const struct client_request *then; /* started from inside `done` */
    struct answer *then_answer;
};

static void on_done(void *context, status st, const struct client_response *response,
                    const struct error *err) {
    struct answer *answer = context;
    answer->count++;
    answer->st = st;
    answer->code = response ? response->status : 0;
    (void)snprintf(answer->reason, sizeof answer->reason, "%s",
                   err ? reason_name(err->reason) : "");
    if (response) {
        (void)snprintf(answer->body, sizeof answer->body, "%.*s", STR_ARG(response->body));
    }
    if (answer->victim) client_cancel(answer->victim);
    if (!answer->then) return;
    struct client_call *call;
    struct error problem = {0};
    if (client_start(answer->client, answer->then, on_done, answer->then_answer, &call, &problem) !=
        ST_OK)
        answer->count = -1;
}

struct stage {
    uv_loop_t loop;
    struct client *client;
    struct fake_server *server;
    struct arena arena;
};

static void stage_open(struct stage *s) {
    struct error err = {0};
    s->server = fake_server_open(handle, NULL);
    s->arena = arena_make();
    CHECK(uv_loop_init(&s->loop) == 0);
    CHECK(client_open(&s->loop, &s->client, &err) == ST_OK, "%s", err.msg);
}

/* The loop must be empty then: no handle of ours is left open. */
static void stage_close(struct stage *s) {
    client_close(s->client);
    CHECK(uv_run(&s->loop, UV_RUN_DEFAULT) == 0);
    CHECK(uv_loop_close(&s->loop) == 0);
    fake_server_close(s->server);
    arena_release(&s->arena);
}

static struct client_call *start(struct stage *s, const char *path, struct answer *answer) {
    struct client_call *call = NULL;
    struct error err = {0};
    struct client_request request = {.url = url_of(s->server, path, &s->arena),
                                     .may_connect = yes,
                                     .timeout_ms = str_eq(str_c(path), STR("/drip")) ? 300 : 20000};
    CHECK(client_start(s->client, &request, on_done, answer, &call, &err) == ST_OK, "%s", err.msg);
    CHECK(answer->count == 0);
    return call;
}

TEST(client_loop_runs_requests_side_by_side) {
    struct stage s;
    stage_open(&s);
    struct answer answers[40] = {0};
    for (size_t i = 0; i < COUNT_OF(answers); i++)
        (void)start(&s, i % 2 ? "/ok" : "/missing", &answers[i]);
    struct answer slow = {0};
    (void)start(&s, "/drip", &slow);
    CHECK(client_active(s.client) == COUNT_OF(answers) + 1);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0); /* ends by itself when all is answered */
    CHECK(client_active(s.client) == 0);
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        CHECK(answers[i].count == 1 && answers[i].st == ST_OK, "%zu: %s", i, answers[i].reason);
        CHECK(answers[i].code == (i % 2 ? 200 : 404), "%zu: %d", i, answers[i].code);
    }
    CHECK(strcmp(answers[1].body, "fine") == 0);
    CHECK(slow.count == 1 && strcmp(slow.reason, "HTTP_TIMEOUT") == 0, "%s", slow.reason);
    stage_close(&s);
}

TEST(client_loop_failures_have_reasons) {
    struct stage s;
    stage_open(&s);
    static const struct {
        const char *path, *reason;
    } cases[] = {{"/endless", "HTTP_TOO_LARGE"}, {"/headers", "HTTP_TOO_LARGE"},
                 {"/cut", "HTTP_FAILED"},        {"/garbage", "HTTP_FAILED"},
                 {"/drip", "HTTP_TIMEOUT"},      {"/redirect", ""}};
    struct answer answers[COUNT_OF(cases)] = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        (void)start(&s, cases[i].path, &answers[i]);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(answers[i].count == 1, "case %zu", i);
        CHECK(strcmp(answers[i].reason, cases[i].reason) == 0, "case %zu: %s", i,
              answers[i].reason);
    }
    CHECK(answers[5].code == 302);
    stage_close(&s);
}

/* A connection is kept for the next request, whose own rules are asked again. */
TEST(client_loop_asks_again_for_a_kept_connection) {
    struct stage s;
    stage_open(&s);
    struct answer answers[3] = {0};
    (void)start(&s, "/ok", &answers[0]);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    (void)start(&s, "/ok", &answers[1]);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    CHECK(answers[0].code == 200 && answers[1].code == 200);
    CHECK(fake_server_connections(s.server) == 1, "%d", fake_server_connections(s.server));
    struct client_request request = {.url = url_of(s.server, "/ok", &s.arena), .may_connect = no};
    struct client_call *call;
    struct error err = {0};
    CHECK(client_start(s.client, &request, on_done, &answers[2], &call, &err) == ST_OK);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    CHECK(strcmp(answers[2].reason, "HTTP_REFUSED_ADDRESS") == 0, "%s", answers[2].reason);
    CHECK(fake_server_requests(s.server) == 2, "%d", fake_server_requests(s.server));
    stage_close(&s);
}

TEST(client_loop_cancels) {
    struct stage s;
    stage_open(&s);
    struct answer silent[3] = {0};
    struct client_call *first = start(&s, "/silent", &silent[0]);
    client_cancel(first); /* before the loop has seen it */
    struct client_call *second = start(&s, "/silent", &silent[1]);
    struct answer ok = {.client = s.client, .victim = second};
    (void)start(&s, "/ok", &ok);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    CHECK(ok.count == 1 && ok.code == 200);
    CHECK(silent[0].count == 0 && silent[1].count == 0);
    (void)start(&s, "/silent", &silent[2]); /* and client_close() cancels the rest */
    for (int i = 0; i < 5; i++)
        (void)uv_run(&s.loop, UV_RUN_NOWAIT);
    stage_close(&s);
    CHECK(silent[2].count == 0);
}

TEST(client_loop_starts_from_an_answer) {
    struct stage s;
    stage_open(&s);
    struct client_request request = {.url = url_of(s.server, "/ok", &s.arena), .may_connect = yes};
    struct answer second = {0};
    struct answer first = {.client = s.client, .then = &request, .then_answer = &second};
    (void)start(&s, "/missing", &first);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    CHECK(first.count == 1 && first.code == 404 && second.count == 1 && second.code == 200);
    stage_close(&s);
}

TEST(client_loop_is_bounded) {
    struct stage s;
    stage_open(&s);
    static struct answer answers[CLIENT_REQUESTS_MAX];
    memset(answers, 0, sizeof answers);
    for (size_t i = 0; i < CLIENT_REQUESTS_MAX; i++)
        (void)start(&s, "/ok", &answers[i]);
    struct client_request request = {.url = url_of(s.server, "/ok", &s.arena), .may_connect = yes};
    struct answer extra = {0};
    struct client_call *call;
    struct error err = {0};
    CHECK(client_start(s.client, &request, on_done, &extra, &call, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_HTTP_BUSY);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    for (size_t i = 0; i < CLIENT_REQUESTS_MAX; i++)
        CHECK(answers[i].count == 1 && answers[i].code == 200, "%zu %s", i, answers[i].reason);
    CHECK(client_start(s.client, &request, on_done, &extra, &call, &err) == ST_OK);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    CHECK(extra.count == 1 && extra.code == 200);
    stage_close(&s);
}

/* Names are looked up on a thread of libcurl's: the loop goes on. */
TEST(client_loop_looks_names_up) {
    struct stage s;
    stage_open(&s);
    char url[64];
    (void)snprintf(url, sizeof url, "http://localhost:%d/ok", fake_server_port(s.server));
    struct client_request request = {.url = str_c(url), .may_connect = yes};
    struct answer answer = {0};
    struct client_call *call;
    struct error err = {0};
    CHECK(client_start(s.client, &request, on_done, &answer, &call, &err) == ST_OK);
    CHECK(uv_run(&s.loop, UV_RUN_DEFAULT) == 0);
    CHECK(answer.count == 1 && answer.code == 200, "%s", answer.reason);
    stage_close(&s);
}

TEST(client_survives_an_empty_machine) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    struct client_request request = {.url = url_of(server, "/ok", &a), .may_connect = yes};
    for (int64_t n = 0; n < 4; n++) {
        struct arena own;
        arena_init(&own, 64, 4096);
        struct client_response got;
        struct error err = {0};
        mem_fail_at(n);
        status st = client_fetch(&request, &own, &got, &err);
        mem_fail_at(-1);
        CHECK(st == ST_OK || (st == ST_RETRY && err.reason == REASON_HTTP_FAILED) ||
                  (st == ST_INVALID && err.reason == REASON_HTTP_REQUEST_INVALID),
              "%d: %s", (int)n, err.msg);
        arena_release(&own);
    }
    arena_release(&a);
    fake_server_close(server);
}

/* ---- streams and Unix sockets ---- */

struct heard {
    struct buf bytes;
    int chunks, ticks;
    size_t enough; /* bytes, then no more */
};

static bool anybody(void *context, const uint8_t *address, size_t len) {
    UNUSED(context);
    UNUSED(address);
    UNUSED(len);
    return true;
}

static bool hear(void *context, str bytes) {
    struct heard *h = context;
    buf_put(&h->bytes, bytes);
    if (bytes.len > 0)
        h->chunks++;
    else
        h->ticks++;
    return h->bytes.len < h->enough;
}

TEST(client_gives_the_answer_as_it_comes) {
    struct fake_server *server = fake_server_open(handle, NULL);
    struct arena a = arena_make();
    struct heard heard = {.enough = SIZE_MAX};
    struct client_response got = {0};
    struct error err = {0};
    buf_init(&heard.bytes, 1 << 20);
    struct client_request request = {.url = url_of(server, "/stream", &a),
                                     .may_connect = anybody,
                                     .chunk = hear,
                                     .context = &heard,
                                     .bytes_max = 3}; /* which is for what is kept */
    CHECK(client_fetch(&request, &a, &got, &err) == ST_OK, "%s", err.msg);
    CHECK(got.status == 200 && got.body.len == 0 && heard.chunks > 1);
    CHECK(str_eq(buf_str(&heard.bytes), STR("line\nline\nline\nline\nline\n")));

    /* A refusal is not part of the stream. */
    buf_clear(&heard.bytes);
    heard.chunks = 0;
    request.url = url_of(server, "/missing", &a);
    request.bytes_max = 0;
    CHECK(client_fetch(&request, &a, &got, &err) == ST_OK, "%s", err.msg);
    CHECK(got.status == 404 && str_eq(got.body, STR("nothing here")) && heard.chunks == 0);

    /* One that never ends, until it is enough; and one that says nothing. */
    heard.enough = 1000;
    request.url = url_of(server, "/endless", &a);
    CHECK(client_fetch(&request, &a, &got, &err) == ST_RETRY);
    CHECK(err.reason == REASON_HTTP_ENDED && heard.bytes.len >= 1000);
    buf_clear(&heard.bytes);
    heard.enough = 0;
    request.url = url_of(server, "/silent", &a);
    CHECK(client_fetch(&request, &a, &got, &err) == ST_RETRY);
    CHECK(err.reason == REASON_HTTP_ENDED, "%s", err.msg);
    buf_release(&heard.bytes);
    fake_server_close(server);
    arena_release(&a);
}

static void *answer_once(void *arg) {
    int *listener = arg;
    char text[4096];
    int fd = accept4(*listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return NULL;
    (void)!read(fd, text, sizeof(text));
    (void)fake_answer(fd, 200, "", STR("from the socket"));
    close(fd);
    return NULL;
}

/* FOLDER/socket, however long that is: an address has room for what it is called from there. */
static int listen_in(const char *folder) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(here >= 0 && chdir(folder) == 0);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 1) == 0);
    CHECK(fchdir(here) == 0);
    close(here);
    return fd;
}

/* Also where the path is longer than a socket's address. */
TEST(client_talks_to_a_unix_socket) {
    char folder[] = "/tmp/cairn-client-XXXXXX";
    char deep[400];
    char path[500];
    CHECK(mkdtemp(folder) != NULL);
    for (int i = 0; i < 2; i++) {
        struct arena a = arena_make();
        struct client_response got = {0};
        struct error err = {0};
        pthread_t thread;
        snprintf(deep, sizeof(deep), "%s/%s", folder, i == 0 ? "short" : "");
        if (i == 1) memset(deep + strlen(deep), 'x', 150);
        deep[i == 1 ? strlen(folder) + 151 : strlen(deep)] = 0;
        CHECK(mkdir(deep, 0700) == 0);
        snprintf(path, sizeof(path), "%s/socket", deep);
        int fd = listen_in(deep);
        CHECK(pthread_create(&thread, NULL, answer_once, &fd) == 0);
        struct client_request request = {.url = STR("http://localhost/x"),
                                         .unix_path = str_c(path)};
        CHECK(client_fetch(&request, &a, &got, &err) == ST_OK, "%s", err.msg);
        CHECK(got.status == 200 && str_eq(got.body, STR("from the socket")));
        pthread_join(thread, NULL);
        close(fd);
        CHECK(client_fetch(&request, &a, &got, &err) == ST_RETRY);
        CHECK(err.reason == REASON_HTTP_FAILED, "%s", err.msg);
        CHECK(unlink(path) == 0 && rmdir(deep) == 0);
        arena_release(&a);
    }
    CHECK(rmdir(folder) == 0);
}
