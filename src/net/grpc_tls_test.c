#include "net/grpc_server_test.h"
#include "net/server_fixture_test.h"
#include "test.h"

#define MESSAGE(told) STR_ARG(buf_str(&(told)->message))

static bool says(const struct grpc_told *told, const char *text) {
    return told->message.len > 0 &&
           memmem(told->message.ptr, told->message.len, text, strlen(text)) != NULL;
}

static void fill(struct buf *b, size_t len) {
    buf_init(b, len);
    for (size_t i = 0; i < len; i++)
        buf_put_char(b, (char)(i * 2654435761U >> 13));
}

TEST(grpc_tls) {
    struct grpc_server *server = grpc_server_open(0, "tls");
    str ca = grpc_server_file(server, "ca.crt");
    str other = grpc_server_file(server, "other.crt");
    const struct {
        const char *host;
        str ca, name;
        int code;
        const char *message;
    } cases[] = {
        {"127.0.0.1", ca, STR_NONE, GRPC_OK, ""},
        {"localhost", ca, STR_NONE, GRPC_OK, ""},
        {"127.0.0.1", ca, STR("grpc.test"), GRPC_OK, ""},
        {"127.0.0.1", ca, STR("example.com"), GRPC_UNAVAILABLE, "hostname mismatch"},
        {"127.0.0.1", ca, STR("127.0.0.2"), GRPC_UNAVAILABLE, "IP address mismatch"},
        {"127.0.0.1", other, STR_NONE, GRPC_UNAVAILABLE, "unable to get local issuer certificate"},
        {"127.0.0.1", STR_NONE, STR_NONE, GRPC_UNAVAILABLE, "certificate"},
    };
    struct buf body;
    fill(&body, 3 << 20);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char target[100];
        (void)snprintf(target, sizeof target, "%s:%d", cases[i].host, grpc_server_port(server));
        struct grpc_options options = {.target = str_c(target),
                                       .tls = true,
                                       .ca_file = cases[i].ca,
                                       .server_name = cases[i].name,
                                       .authorization = STR("Bearer x")};
        struct grpc_stage stage;
        struct grpc_told told;
        grpc_stage_open(&stage, 0, &options);
        grpc_told_init(&told, &stage);
        CHECK(grpc_stage_run(&stage, "/test/Echo", STR("x"), &told) == cases[i].code,
              "case %zu: %.*s", i, MESSAGE(&told));
        CHECK(!cases[i].message[0] || says(&told, cases[i].message), "case %zu: %.*s", i,
              MESSAGE(&told));
        if (told.code == GRPC_OK) {
            CHECK(grpc_stage_run(&stage, "/test/Echo", buf_str(&body), &told) == GRPC_OK);
            CHECK(str_eq(buf_str(&told.body), buf_str(&body)));
            for (int n = 1; n <= 100; n++)
                (void)grpc_stage_start(&stage, "/test/Sleep", STR("10"), 0, &told);
            CHECK(grpc_told_wait(&told, 102) && told.code == GRPC_OK);
        }
        grpc_told_release(&told);
        grpc_stage_close(&stage);
    }
    buf_release(&body);
    grpc_server_close(server);
}

TEST(grpc_tls_with_a_certificate_of_ours) {
    struct grpc_server *server = grpc_server_open(0, "tls mutual");
    struct grpc_options options = {.tls = true, .ca_file = grpc_server_file(server, "ca.crt")};
    struct grpc_stage stage;
    struct grpc_told told;
    grpc_stage_open(&stage, grpc_server_port(server), &options);
    grpc_told_init(&told, &stage);
    CHECK(grpc_stage_run(&stage, "/test/Echo", STR("x"), &told) == GRPC_UNAVAILABLE, "%.*s",
          MESSAGE(&told));
    grpc_told_release(&told);
    grpc_stage_close(&stage);
    options.cert_file = grpc_server_file(server, "client.crt");
    options.key_file = grpc_server_file(server, "client.key");
    grpc_stage_open(&stage, grpc_server_port(server), &options);
    grpc_told_init(&told, &stage);
    CHECK(grpc_stage_run(&stage, "/test/Echo", STR("x"), &told) == GRPC_OK, "%.*s", MESSAGE(&told));
    grpc_told_release(&told);
    grpc_stage_close(&stage);
    grpc_server_close(server);
}

/* Keys that do not fit, and one that somebody would have to be asked for. */
TEST(grpc_tls_refuses_files) {
    struct grpc_server *server = grpc_server_open(0, "tls");
    str certificate = grpc_server_file(server, "client.crt");
    str key = grpc_server_file(server, "client.key");
    const struct {
        str certificate, key;
        status st;
    } cases[] = {
        {certificate, key, ST_OK},
        {certificate, STR_NONE, ST_INVALID},
        {STR_NONE, key, ST_INVALID},
        {certificate, grpc_server_file(server, "server.key"), ST_INVALID},
        {certificate, grpc_server_file(server, "locked.key"), ST_INVALID},
        {key, key, ST_INVALID},
    };
    uv_loop_t loop;
    CHECK(uv_loop_init(&loop) == 0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct grpc_options options = {.target = STR("127.0.0.1:1"),
                                       .tls = true,
                                       .cert_file = cases[i].certificate,
                                       .key_file = cases[i].key};
        struct grpc *grpc = NULL;
        struct error err = {0};
        CHECK(grpc_open(&loop, &options, &grpc, &err) == cases[i].st, "case %zu", i);
        CHECK(cases[i].st == ST_OK || err.reason == REASON_TLS_INVALID, "case %zu", i);
        grpc_close(grpc);
    }
    CHECK(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0);
    grpc_server_close(server);
}

/* Our own HTTP server has TLS, and HTTP/1.1. */
TEST(grpc_tls_without_http2) {
    struct grpc_server *server = grpc_server_open(0, "tls"); /* for its files */
    struct server_fixture *f = server_fixture_open(NULL);
    struct error err;
    CHECK(http_tls_load(f->server, grpc_server_file(server, "server.crt"),
                        grpc_server_file(server, "server.key"), &err) == ST_OK);
    CHECK(http_listen_tcp(f->server, STR("127.0.0.1"), 0, true, &f->port, &err) == ST_OK);
    struct grpc_options options = {.tls = true, .ca_file = grpc_server_file(server, "ca.crt")};
    struct grpc_stage stage;
    struct grpc_told told;
    grpc_stage_open(&stage, f->port, &options);
    grpc_told_init(&told, &stage);
    (void)grpc_stage_start(&stage, "/test/Echo", STR("x"), 0, &told);
    for (int i = 0; i < 10000 && told.count == 0; i++) {
        server_fixture_turn(f);
        grpc_stage_turn(&stage, 0);
    }
    CHECK(told.code == GRPC_UNAVAILABLE && says(&told, "the server does not offer HTTP/2"), "%.*s",
          MESSAGE(&told));
    CHECK(f->requests == 0);
    grpc_told_release(&told);
    grpc_stage_close(&stage);
    server_fixture_close(f);
    grpc_server_close(server);
}

TEST(grpc_tls_reconnects) {
    struct grpc_server *server = grpc_server_open(0, "tls grpc.max_connection_age_ms=200");
    struct grpc_options options = {.tls = true, .ca_file = grpc_server_file(server, "ca.crt")};
    int port = grpc_server_port(server);
    struct grpc_stage stage;
    struct grpc_told told;
    grpc_stage_open(&stage, port, &options);
    grpc_told_init(&told, &stage);
    for (int i = 0; i < 40; i++) {
        CHECK(grpc_stage_run(&stage, "/test/Sleep", STR("20"), &told) == GRPC_OK, "%d: %.*s", i,
              MESSAGE(&told));
    }
    (void)grpc_stage_start(&stage, "/test/Sleep", STR("600000"), 0, &told);
    grpc_stage_turn(&stage, 50);
    grpc_server_close(server);
    CHECK(grpc_told_wait(&told, 41) && told.code == GRPC_UNAVAILABLE);
    grpc_told_release(&told);
    grpc_stage_close(&stage);
}

/* Neither side takes the other's protocol for its own. */
TEST(grpc_tls_or_not) {
    for (int tls = 0; tls < 2; tls++) {
        struct grpc_server *server = grpc_server_open(0, tls ? "tls" : "");
        struct grpc_options options = {.tls = !tls};
        struct grpc_stage stage;
        struct grpc_told told;
        grpc_stage_open(&stage, grpc_server_port(server), &options);
        stage.grpc->connect_ms = 2000; /* some just wait for more */
        grpc_told_init(&told, &stage);
        CHECK(grpc_stage_run(&stage, "/test/Echo", STR("x"), &told) == GRPC_UNAVAILABLE);
        CHECK(says(&told, "could not connect to 127.0.0.1"), "%.*s", MESSAGE(&told));
        grpc_told_release(&told);
        grpc_stage_close(&stage);
        grpc_server_close(server);
    }
}
