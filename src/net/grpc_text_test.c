#include "net/grpc_impl.h"
#include "test.h"

TEST(grpc_code_names) {
    CHECK(strcmp(grpc_code_name(GRPC_OK), "OK") == 0);
    CHECK(strcmp(grpc_code_name(GRPC_UNAVAILABLE), "UNAVAILABLE") == 0);
    CHECK(strcmp(grpc_code_name(GRPC_UNAUTHENTICATED), "UNAUTHENTICATED") == 0);
    CHECK(strcmp(grpc_code_name(17), "UNKNOWN") == 0 && strcmp(grpc_code_name(-1), "UNKNOWN") == 0);
}

TEST(grpc_target_is_host_and_port) {
    static const struct {
        const char *target, *host; /* NULL: refused */
        int port;
    } cases[] = {
        {"localhost:7233", "localhost", 7233},
        {"127.0.0.1:1", "127.0.0.1", 1},
        {"a-b.c_d.example:65535", "a-b.c_d.example", 65535},
        {"[::1]:7233", "::1", 7233},
        {"[fe80::1%eth0]:7233", "fe80::1%eth0", 7233},
        {"", NULL, 0},
        {":", NULL, 0},
        {":7233", NULL, 0},
        {"localhost", NULL, 0},
        {"localhost:", NULL, 0},
        {"localhost:0", NULL, 0},
        {"localhost:65536", NULL, 0},
        {"localhost:-1", NULL, 0},
        {"localhost:72x", NULL, 0},
        {"::1:7233", NULL, 0},
        {"[]:7233", NULL, 0},
        {"[::1]", NULL, 0},
        {"http://a:1", NULL, 0},
        {"a b:1", NULL, 0},
        {"a\n:1", NULL, 0},
        {"a@b:1", NULL, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str host = STR_NONE;
        int port = 0;
        bool ok = grpc_target_parse(str_c(cases[i].target), &host, &port);
        CHECK(ok == (cases[i].host != NULL), "%s", cases[i].target);
        CHECK(!ok || (str_eq(host, str_c(cases[i].host)) && port == cases[i].port), "%s",
              cases[i].target);
    }
}

TEST(grpc_timeouts_have_eight_digits) {
    static const struct {
        int64_t ms;
        const char *want;
    } cases[] = {
        {-5, "1m"},
        {0, "1m"},
        {1, "1m"},
        {500, "500m"},
        {70000, "70000m"},
        {99999999, "99999999m"},
        {100000000, "100000S"},
        {INT32_MAX, "2147483S"},
        {INT64_MAX, "99999999S"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[16];
        grpc_timeout_format(cases[i].ms, text);
        CHECK(strcmp(text, cases[i].want) == 0, "%s", text);
    }
}

TEST(grpc_base64_with_padding_or_without) {
    static const struct {
        const char *in;
        str want;
        bool ok;
    } cases[] = {
        {"", STR_LIT(""), true},
        {"YQ==", STR_LIT("a"), true},
        {"YQ", STR_LIT("a"), true},
        {"YWI=", STR_LIT("ab"), true},
        {"YWI", STR_LIT("ab"), true},
        {"YWJj", STR_LIT("abc"), true},
        {"AP8+/w==", STR_LIT("\0\xff>\xff"), true},
        {"YWJjZA", STR_LIT("abcd"), true},
        {"Y", STR_LIT(""), false},
        {"YWJjZ", STR_LIT(""), false},
        {"YQ=", STR_LIT(""), false},
        {"====", STR_LIT(""), false},
        {"Y Q=", STR_LIT(""), false},
        {"YQ==YQ==", STR_LIT(""), false},
        {"Y-_/", STR_LIT(""), false},
        {"=", STR_LIT(""), false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf b;
        buf_init(&b, 100);
        buf_put_c(&b, cases[i].in);
        CHECK(grpc_base64_decode(&b) == cases[i].ok, "%s", cases[i].in);
        CHECK(!cases[i].ok || (b.len == cases[i].want.len &&
                               (b.len == 0 || str_eq(buf_str(&b), cases[i].want))),
              "%s", cases[i].in);
        buf_release(&b);
    }
}

TEST(grpc_open_refuses) {
    static const struct grpc_header headers[] = {
        {STR_LIT(""), STR_LIT("x")},
        {STR_LIT("X"), STR_LIT("x")},
        {STR_LIT(":path"), STR_LIT("x")},
        {STR_LIT("te"), STR_LIT("x")},
        {STR_LIT("grpc-status"), STR_LIT("x")},
        {STR_LIT("authorization"), STR_LIT("x")},
        {STR_LIT("a b"), STR_LIT("x")},
        {STR_LIT("a"), STR_LIT("x\r\ny")},
        {STR_LIT("a"), STR_LIT("x\0")},
        {STR_LIT("a"), STR_LIT(" x")},
        {STR_LIT("a"), STR_LIT("\xC3\xA4")},
    };
    uv_loop_t loop;
    struct grpc *grpc = NULL;
    struct error err = {0};
    CHECK(uv_loop_init(&loop) == 0);
    struct grpc_options good = {.target = STR("127.0.0.1:1")};
    struct grpc_options o = good;
    o.target = STR("nonsense");
    CHECK(grpc_open(&loop, &o, &grpc, &err) == ST_INVALID &&
          err.reason == REASON_GRPC_TARGET_INVALID);
    for (size_t i = 0; i < COUNT_OF(headers); i++) {
        o = good;
        o.headers = &headers[i];
        o.header_count = 1;
        CHECK(grpc_open(&loop, &o, &grpc, &err) == ST_INVALID, "header %zu", i);
        CHECK(err.reason == REASON_GRPC_HEADER_INVALID);
    }
    o = good;
    o.authorization = STR("Bearer a\nb");
    CHECK(grpc_open(&loop, &o, &grpc, &err) == ST_INVALID && !strstr(err.msg, "Bearer"));
    const struct grpc_options files[] = {
        {.ca_file = STR("/does/not/exist")},
        {.cert_file = STR("/does/not/exist"), .key_file = STR("/does/not/exist")},
        {.ca_file = STR("Makefile")}, /* no certificate in it */
    };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        o = files[i];
        o.tls = true;
        o.target = good.target;
        CHECK(grpc_open(&loop, &o, &grpc, &err) == ST_INVALID, "file %zu", i);
        CHECK(err.reason == REASON_TLS_INVALID, "%s", reason_name(err.reason));
    }
    CHECK(uv_loop_close(&loop) == 0);
}

static void never(void *context, const struct grpc_answer *answer) {
    UNUSED(answer);
    ++*(int *)context;
}

TEST(grpc_start_refuses) {
    static char path[600] = "/";
    memset(path + 1, 'x', sizeof path - 1);
    const struct {
        struct grpc_request request;
        status st;
        const char *reason;
    } cases[] = {
        {{.path = STR("")}, ST_INVALID, "GRPC_REQUEST_INVALID"},
        {{.path = STR("/")}, ST_INVALID, "GRPC_REQUEST_INVALID"},
        {{.path = STR("a/b")}, ST_INVALID, "GRPC_REQUEST_INVALID"},
        {{.path = STR("/a b")}, ST_INVALID, "GRPC_REQUEST_INVALID"},
        {{.path = STR("/a\n")}, ST_INVALID, "GRPC_REQUEST_INVALID"},
        {{.path = str_n(path, sizeof path)}, ST_INVALID, "GRPC_REQUEST_INVALID"},
        {{.path = STR("/a/b"), .timeout_ms = -1}, ST_INVALID, "GRPC_REQUEST_INVALID"},
        {{.path = STR("/a/b"), .body = {path, GRPC_BYTES_MAX + 1}}, ST_LIMIT, "GRPC_TOO_LARGE"},
    };
    uv_loop_t loop;
    struct grpc *grpc = NULL;
    struct error err = {0};
    int told = 0;
    CHECK(uv_loop_init(&loop) == 0);
    struct grpc_options options = {.target = STR("127.0.0.1:1")};
    CHECK(grpc_open(&loop, &options, &grpc, &err) == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(grpc_start(grpc, &cases[i].request, never, &told, NULL, &err) == cases[i].st, "%zu",
              i);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "%zu: %s", i,
              reason_name(err.reason));
    }
    grpc_close(grpc);
    CHECK(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0 && told == 0);
}
