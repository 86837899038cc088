#include "net/grpc.h"

#include "base/time.h"
#include "net/fake_server_test.h"
#include "net/grpc_server_test.h"
#include "test.h"

/* ---- against a real server ---- */

struct scene {
    struct grpc_server *server;
    struct grpc_stage stage;
    struct grpc_told told;
};

static void scene_open(struct scene *s, const char *words, const struct grpc_options *options) {
    s->server = grpc_server_open(0, words);
    grpc_stage_open(&s->stage, grpc_server_port(s->server), options);
    grpc_told_init(&s->told, &s->stage);
}

static void scene_close(struct scene *s) {
    grpc_told_release(&s->told);
    grpc_stage_close(&s->stage);
    if (s->server) grpc_server_close(s->server);
}

static int64_t now_ms(void) { return clock_mono_ns() / 1000000; }

static int run(struct scene *s, const char *path, str body) {
    return grpc_stage_run(&s->stage, path, body, &s->told);
}

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

/* Far more than the windows of either side. */
TEST(grpc_echo_small_and_large) {
    static const size_t sizes[] = {0, 1, 5, 16383, 16384, 65535, 70000, 3 << 20, 20 << 20};
    struct scene s;
    scene_open(&s, "", NULL);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct buf body;
        fill(&body, sizes[i]);
        CHECK(run(&s, "/test/Echo", buf_str(&body)) == GRPC_OK, "%zu: %.*s", sizes[i],
              MESSAGE(&s.told));
        CHECK(str_eq(buf_str(&s.told.body), buf_str(&body)) && s.told.message.len == 0, "%zu",
              sizes[i]);
        buf_release(&body);
    }
    CHECK(run(&s, "/test/Size", STR("50000000")) == GRPC_OK && s.told.body.len == 50000000);
    CHECK(grpc_active(s.stage.grpc) == 0 && s.stage.grpc->bytes == 0);
    scene_close(&s);
}

TEST(grpc_sends_headers_and_timeout) {
    static const struct grpc_header headers[] = {
        {STR_LIT("client-name"), STR_LIT("cairn")},
        {STR_LIT("temporal-namespace"), STR_LIT("a b")},
    };
    struct grpc_options options = {.authorization = STR("Bearer s3cret"),
                                   .user_agent = STR("cairn/9.9"),
                                   .headers = headers,
                                   .header_count = 2};
    struct scene s;
    scene_open(&s, "", &options);
    CHECK(run(&s, "/test/Headers", STR("")) == GRPC_OK, "%.*s", MESSAGE(&s.told));
    buf_put_char(&s.told.body, 0);
    const char *got = s.told.body.ptr;
    CHECK(strstr(got, "client-name: cairn\n") && strstr(got, "temporal-namespace: a b\n"), "%s",
          got);
    CHECK(strstr(got, "authorization: Bearer s3cret\n") && strstr(got, "user-agent: cairn/9.9\n"),
          "%s", got);
    CHECK(strstr(got, "remaining: 19.") || strstr(got, "remaining: 20."), "%s", got);
    scene_close(&s);
}

TEST(grpc_failures_have_code_message_and_details) {
    static const struct {
        const char *request;
        int code;
        const char *message, *details;
    } cases[] = {
        {"5 no such thing", GRPC_NOT_FOUND, "no such thing", "details of 5"},
        {"9 100% sure\n\xC3\xA4\xE2\x82\xAC", GRPC_FAILED_PRECONDITION,
         "100% sure\n\xC3\xA4\xE2\x82\xAC", "details of 9"},
        {"16 ", GRPC_UNAUTHENTICATED, "", "details of 16"},
        {"1 x", GRPC_CANCELLED, "x", "details of 1"},
    };
    struct scene s;
    scene_open(&s, "", NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(run(&s, "/test/Fail", str_c(cases[i].request)) == cases[i].code, "case %zu: %d", i,
              s.told.code);
        str details = buf_str(&s.told.details);
        CHECK(str_eq(buf_str(&s.told.message), str_c(cases[i].message)) ||
                  (s.told.message.len == 0 && !cases[i].message[0]),
              "case %zu: %.*s", i, MESSAGE(&s.told));
        CHECK(details.len > 1 && details.ptr[0] == 0 &&
                  str_eq(str_from(details, 1), str_c(cases[i].details)),
              "case %zu", i);
        CHECK(s.told.body.len == 0);
    }
    CHECK(run(&s, "/test/Nothing", STR("")) == GRPC_UNIMPLEMENTED && s.told.details.len == 0);
    CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_OK);
    scene_close(&s);
}

TEST(grpc_deadline_of_the_server) {
    struct scene s;
    scene_open(&s, "", NULL);
    CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_OK);
    int64_t from = now_ms();
    (void)grpc_stage_start(&s.stage, "/test/Sleep", STR("20000"), 300, &s.told);
    CHECK(grpc_told_wait(&s.told, 2) && s.told.code == GRPC_DEADLINE_EXCEEDED, "%d %.*s",
          s.told.code, MESSAGE(&s.told));
    CHECK(now_ms() - from >= 290 && now_ms() - from < 10000, "%d", (int)(now_ms() - from));
    CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_OK);
    scene_close(&s);
}

TEST(grpc_cancel_at_any_time) {
    struct scene s;
    scene_open(&s, "", NULL);
    struct grpc_told *told = &s.told;
    /* Before the loop saw it, and while it connects. */
    grpc_cancel(grpc_stage_start(&s.stage, "/test/Echo", STR("x"), 0, told));
    struct grpc_call *call = grpc_stage_start(&s.stage, "/test/Echo", STR("x"), 0, told);
    uv_run(&s.stage.loop, UV_RUN_NOWAIT);
    grpc_cancel(call);
    grpc_stage_turn(&s.stage, 100);
    CHECK(told->count == 0 && grpc_active(s.stage.grpc) == 0);
    CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_OK);
    /* Sent and not answered: the server hears of it. */
    struct grpc_call *calls[20];
    for (size_t i = 0; i < COUNT_OF(calls); i++)
        calls[i] = grpc_stage_start(&s.stage, "/test/Sleep", STR("600000"), 0, told);
    grpc_stage_turn(&s.stage, 300);
    for (size_t i = 0; i < COUNT_OF(calls); i++)
        grpc_cancel(calls[i]);
    CHECK(grpc_active(s.stage.grpc) == 0);
    bool heard = false;
    for (int i = 0; i < 100 && !heard; i++) {
        CHECK(run(&s, "/test/Cancelled", STR("")) == GRPC_OK);
        heard = str_eq(buf_str(&told->body), STR("20"));
        grpc_stage_turn(&s.stage, 20);
    }
    CHECK(heard, "%.*s", STR_ARG(buf_str(&told->body)));
    /* In the middle of a large request. */
    struct buf body;
    fill(&body, 8 << 20);
    int before = told->count;
    call = grpc_stage_start(&s.stage, "/test/Echo", buf_str(&body), 0, told);
    uv_run(&s.stage.loop, UV_RUN_NOWAIT);
    uv_run(&s.stage.loop, UV_RUN_NOWAIT);
    grpc_cancel(call);
    CHECK(told->count == before && run(&s, "/test/Echo", STR("y")) == GRPC_OK);
    CHECK(str_eq(buf_str(&told->body), STR("y")));
    buf_release(&body);
    scene_close(&s);
}

TEST(grpc_done_may_start_and_cancel) {
    struct scene s;
    scene_open(&s, "", NULL);
    struct grpc_told other;
    grpc_told_init(&other, &s.stage);
    struct grpc_request again = {.path = STR("/test/Echo"), .body = STR("again")};
    s.told.then = &again;
    s.told.times = 50;
    s.told.victim = grpc_stage_start(&s.stage, "/test/Sleep", STR("600000"), 0, &other);
    (void)grpc_stage_start(&s.stage, "/test/Echo", STR("first"), 0, &s.told);
    CHECK(grpc_told_wait(&s.told, 51) && s.told.code == GRPC_OK);
    CHECK(str_eq(buf_str(&s.told.body), STR("again")) && grpc_active(s.stage.grpc) == 0);
    grpc_told_release(&other);
    scene_close(&s);
}

static void check_many(const char *words, int count) {
    struct scene s;
    scene_open(&s, words, NULL);
    for (int i = 0; i < count; i++)
        (void)grpc_stage_start(&s.stage, "/test/Sleep", STR("50"), 60000, &s.told);
    CHECK(grpc_active(s.stage.grpc) == (size_t)count);
    for (int i = 1; i <= count; i++)
        CHECK(grpc_told_wait(&s.told, i) && s.told.code == GRPC_OK, "%d: %.*s", i,
              MESSAGE(&s.told));
    CHECK(s.stage.grpc->conns && !s.stage.grpc->conns->next); /* one connection for all */
    scene_close(&s);
}

TEST(grpc_many_calls_at_once) { check_many("", 200); }

TEST(grpc_waits_for_streams_that_the_server_has) {
    check_many("grpc.max_concurrent_streams=7", 100);
}

/* Those that had no stream yet do not hear of its goodbyes. */
TEST(grpc_waits_through_many_goodbyes) {
    struct scene s;
    scene_open(&s, "grpc.max_concurrent_streams=3 grpc.max_connection_age_ms=150", NULL);
    for (int i = 0; i < 60; i++)
        (void)grpc_stage_start(&s.stage, "/test/Sleep", STR("50"), 60000, &s.told);
    for (int i = 1; i <= 60; i++)
        CHECK(grpc_told_wait(&s.told, i) && s.told.code == GRPC_OK, "%d: %.*s", i,
              MESSAGE(&s.told));
    scene_close(&s);
}

TEST(grpc_cancels_what_waits_for_a_stream) {
    struct scene s;
    scene_open(&s, "grpc.max_concurrent_streams=2", NULL);
    struct grpc_told other;
    grpc_told_init(&other, &s.stage);
    CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_OK);
    struct grpc_call *calls[10];
    for (size_t i = 0; i < COUNT_OF(calls); i++)
        calls[i] = grpc_stage_start(&s.stage, "/test/Sleep", STR("600000"), 0, &other);
    grpc_stage_turn(&s.stage, 100);
    for (size_t i = COUNT_OF(calls); i > 0; i--)
        grpc_cancel(calls[i - 1]);
    CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_OK && other.count == 0);
    /* Their deadlines count, too. */
    for (int i = 0; i < 6; i++)
        (void)grpc_stage_start(&s.stage, "/test/Sleep", STR("600000"), 200, &other);
    CHECK(grpc_told_wait(&other, 6) && other.code == GRPC_DEADLINE_EXCEEDED);
    CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_OK);
    grpc_told_release(&other);
    scene_close(&s);
}

TEST(grpc_no_more_calls_than_allowed) {
    struct scene s;
    scene_open(&s, "", NULL);
    struct grpc_request request = {.path = STR("/test/Sleep"), .body = STR("600000")};
    struct error err = {0};
    for (int i = 0; i < GRPC_CALLS_MAX; i++)
        CHECK(grpc_start(s.stage.grpc, &request, grpc_told_done, &s.told, NULL, &err) == ST_OK);
    CHECK(grpc_start(s.stage.grpc, &request, grpc_told_done, &s.told, NULL, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_GRPC_BUSY);
    grpc_stage_turn(&s.stage, 200);
    CHECK(grpc_active(s.stage.grpc) == GRPC_CALLS_MAX && s.told.count == 0);
    scene_close(&s);
}

TEST(grpc_reconnects_to_a_server_that_was_restarted) {
    struct scene s;
    scene_open(&s, "", NULL);
    int port = grpc_server_port(s.server);
    CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_OK);
    (void)grpc_stage_start(&s.stage, "/test/Sleep", STR("600000"), 60000, &s.told);
    grpc_stage_turn(&s.stage, 100);
    grpc_server_close(s.server);
    s.server = NULL;
    CHECK(grpc_told_wait(&s.told, 2) && s.told.code == GRPC_UNAVAILABLE, "%d", s.told.code);
    CHECK(says(&s.told, "the connection to 127.0.0.1:"), "%.*s", MESSAGE(&s.told));
    for (int i = 0; i < 5; i++) { /* fails at once, whether it tries or not */
        int64_t from = now_ms();
        CHECK(run(&s, "/test/Echo", STR("x")) == GRPC_UNAVAILABLE);
        CHECK(says(&s.told, "could not connect to 127.0.0.1:") &&
                  says(&s.told, "connection refused") && now_ms() - from < 2000,
              "%.*s", MESSAGE(&s.told));
    }
    s.server = grpc_server_open(port, "");
    bool back = false;
    for (int i = 0; i < 100 && !back; i++) {
        back = run(&s, "/test/Echo", STR("x")) == GRPC_OK;
        if (!back) grpc_stage_turn(&s.stage, 50);
    }
    CHECK(back);
    scene_close(&s);
}

/* Whoever calls again from `done` without any pause must not stop the loop. */
TEST(grpc_unreachable) {
    struct grpc_stage stage;
    struct grpc_told told;
    grpc_stage_open(&stage, fake_free_port(), NULL);
    grpc_told_init(&told, &stage);
    struct grpc_request again = {.path = STR("/test/Echo")};
    told.then = &again;
    told.times = INT32_MAX;
    (void)grpc_stage_start(&stage, "/test/Echo", STR("x"), 0, &told);
    CHECK(grpc_told_wait(&told, 1) && told.code == GRPC_UNAVAILABLE);
    char want[120];
    (void)snprintf(want, sizeof want, "could not connect to %s: connection refused", stage.target);
    CHECK(str_eq(buf_str(&told.message), str_c(want)), "%.*s", MESSAGE(&told));
    int64_t end = now_ms() + 700;
    int turns = 0;
    for (; now_ms() < end; turns++)
        uv_run(&stage.loop, UV_RUN_NOWAIT);
    CHECK(turns + 1 >= told.count, "%d turns, told %d times", turns, told.count);
    CHECK(stage.grpc->failures >= 3 && stage.grpc->failures <= 7, "%d", stage.grpc->failures);
    told.then = NULL;
    CHECK(grpc_told_wait(&told, told.count + 1) && grpc_active(stage.grpc) == 0);
    grpc_told_release(&told);
    grpc_stage_close(&stage);
}

/* Both have ended when the first is told. */
TEST(grpc_cancels_what_has_ended) {
    struct grpc_stage stage;
    struct grpc_told first;
    struct grpc_told second;
    grpc_stage_open(&stage, fake_free_port(), NULL);
    grpc_told_init(&first, &stage);
    grpc_told_init(&second, &stage);
    (void)grpc_stage_start(&stage, "/test/Echo", STR("x"), 0, &first);
    first.victim = grpc_stage_start(&stage, "/test/Echo", STR("x"), 0, &second);
    CHECK(grpc_told_wait(&first, 1) && first.code == GRPC_UNAVAILABLE);
    grpc_stage_turn(&stage, 50);
    CHECK(second.count == 0 && grpc_active(stage.grpc) == 0);
    grpc_told_release(&first);
    grpc_told_release(&second);
    grpc_stage_close(&stage);
}

/* A server that says goodbye after a while: whoever is under way ends in peace. */
TEST(grpc_goodbye_of_the_server) {
    struct scene s;
    scene_open(&s, "grpc.max_connection_age_ms=300 grpc.max_connection_age_grace_ms=60000", NULL);
    struct grpc_told slow;
    grpc_told_init(&slow, &s.stage);
    int slow_count = 0;
    size_t conns_max = 0;
    char peers[2][64] = {"", ""};
    int64_t end = now_ms() + 3000;
    for (int i = 0; now_ms() < end; i++) {
        if (i % 10 == 0) {
            (void)grpc_stage_start(&s.stage, "/test/Sleep", STR("1000"), 20000, &slow);
            slow_count++;
        }
        CHECK(run(&s, "/test/Peer", STR("x")) == GRPC_OK, "call %d: %.*s", i, MESSAGE(&s.told));
        (void)snprintf(peers[i > 0], sizeof peers[0], "%.*s", STR_ARG(buf_str(&s.told.body)));
        grpc_stage_turn(&s.stage, 10);
        CHECK(slow.count == 0 || slow.code == GRPC_OK, "%.*s", MESSAGE(&slow));
        size_t conns = 0;
        for (struct grpc_conn *conn = s.stage.grpc->conns; conn; conn = conn->next)
            conns++;
        if (conns > conns_max) conns_max = conns;
    }
    CHECK(grpc_told_wait(&slow, slow_count) && slow.code == GRPC_OK);
    CHECK(strcmp(peers[0], peers[1]) != 0, "%s", peers[0]);
    CHECK(conns_max >= 2 && conns_max < 10, "%zu", conns_max);
    grpc_told_release(&slow);
    scene_close(&s);
}

TEST(grpc_answer_too_large) {
    struct scene s;
    scene_open(&s, "", NULL);
    struct grpc_request request = {
        .path = STR("/test/Size"), .body = STR("100001"), .bytes_max = 100000};
    struct error err = {0};
    CHECK(grpc_start(s.stage.grpc, &request, grpc_told_done, &s.told, NULL, &err) == ST_OK);
    CHECK(grpc_told_wait(&s.told, 1) && s.told.code == GRPC_RESOURCE_EXHAUSTED);
    CHECK(says(&s.told, "larger than allowed"), "%.*s", MESSAGE(&s.told));
    request.body = STR("100000");
    CHECK(grpc_start(s.stage.grpc, &request, grpc_told_done, &s.told, NULL, &err) == ST_OK);
    CHECK(grpc_told_wait(&s.told, 2) && s.told.code == GRPC_OK && s.told.body.len == 100000);
    /* Over what a channel takes if nobody says less. */
    CHECK(run(&s, "/test/Size", STR("134217729")) == GRPC_RESOURCE_EXHAUSTED);
    CHECK(s.stage.grpc->bytes == 0);
    scene_close(&s);
}

TEST(grpc_close_in_any_state) {
    struct scene s;
    scene_open(&s, "", NULL);
    for (int turns = 0; turns < 40; turns++) {
        struct grpc_stage stage;
        struct grpc_told told;
        struct grpc_options options = {.target = turns % 2 ? STR_NONE : STR("localhost:1")};
        grpc_stage_open(&stage, grpc_server_port(s.server), &options);
        grpc_told_init(&told, &stage);
        struct buf body;
        fill(&body, 1 << 20);
        for (int i = 0; i < 3 && turns > 1; i++)
            (void)grpc_stage_start(&stage, "/test/Echo", buf_str(&body), 0, &told);
        for (int i = 0; i < turns / 2; i++)
            uv_run(&stage.loop, UV_RUN_NOWAIT);
        buf_release(&body);
        int count = told.count;
        grpc_stage_close(&stage);
        CHECK(told.count == count);
        grpc_told_release(&told);
    }
    grpc_close(NULL);
    scene_close(&s);
}

TEST(grpc_finds_hosts_by_name) {
    struct scene s;
    scene_open(&s, "", NULL);
    static const struct {
        const char *host;
        int code;
        const char *message;
    } cases[] = {
        {"localhost", GRPC_OK, ""},
        {"[::ffff:127.0.0.1]", GRPC_OK, ""},
        {"nobody.invalid", GRPC_UNAVAILABLE, "could not connect to nobody.invalid:"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char target[100];
        (void)snprintf(target, sizeof target, "%s:%d", cases[i].host, grpc_server_port(s.server));
        struct grpc_options options = {.target = str_c(target)};
        struct grpc_stage stage;
        struct grpc_told told;
        grpc_stage_open(&stage, 0, &options);
        grpc_told_init(&told, &stage);
        CHECK(grpc_stage_run(&stage, "/test/Echo", STR("x"), &told) == cases[i].code, "%s: %.*s",
              target, MESSAGE(&told));
        CHECK(!cases[i].message[0] || says(&told, cases[i].message), "%.*s", MESSAGE(&told));
        grpc_told_release(&told);
        grpc_stage_close(&stage);
    }
    scene_close(&s);
}

/* Without memory at any place: an answer all the same, or none was promised. */
TEST(grpc_survives_without_memory) {
    struct scene s;
    scene_open(&s, "", NULL);
    for (int64_t n = 0; n < 25; n++) {
        struct grpc_stage stage;
        struct grpc_told told;
        struct error err = {0};
        grpc_stage_open(&stage, grpc_server_port(s.server), NULL);
        grpc_told_init(&told, &stage);
        struct buf body;
        fill(&body, 300000);
        struct grpc_request request = {
            .path = STR("/test/Echo"), .body = buf_str(&body), .timeout_ms = 1000};
        mem_fail_at(n);
        status st = grpc_start(stage.grpc, &request, grpc_told_done, &told, NULL, &err);
        CHECK(st == ST_OK || (st == ST_RETRY && n == 0), "%s", err.msg);
        CHECK(st != ST_OK || grpc_told_wait(&told, 1), "%d", (int)n);
        mem_fail_at(-1);
        CHECK(told.code != GRPC_OK || told.body.len == 0 ||
                  str_eq(buf_str(&told.body), buf_str(&body)) || told.body.full,
              "%d", (int)n);
        buf_release(&body);
        grpc_told_release(&told);
        grpc_stage_close(&stage);
    }
    scene_close(&s);
}
