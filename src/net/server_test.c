#include "net/server.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/time.h"
#include "net/server_fixture_test.h"
#include "net/server_impl.h"
#include "test.h"

TEST(http_server_answers_and_keeps_the_connection) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    struct answer a;
    peer_open(f, &c);
    for (int i = 0; i < 50; i++)
        check_get(f, &c);
    CHECK(strcmp(f->remote, "127.0.0.1") == 0 && strcmp(f->method, "GET") == 0 && !f->tls);
    CHECK(peer_send(f, &c, GET("/")) && answer_next(f, &c, false, 5000, &a));
    CHECK(answer_has(&a, "HTTP/1.1 200 OK\r\n") && answer_has(&a, "\r\nDate: ") &&
          answer_has(&a, "\r\nContent-Type: text/plain\r\n") && !answer_has(&a, "Connection:"));
    struct http_stats stats = stats_of(f);
    CHECK(stats.connections_total == 1 && stats.connections == 1 && stats.requests_total == 51);
    CHECK(stats.bytes_in_total > 0 && stats.bytes_out_total == c.in.len);
    peer_end(&c);
    server_fixture_turn(f);
    CHECK(stats_of(f).connections == 0);
    server_fixture_close(f);
}

TEST(http_server_head_has_the_length_but_no_body) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    struct answer a;
    peer_open(f, &c);
    CHECK(peer_send(f, &c, STR("HEAD /four HTTP/1.1\r\nHost: a\r\n\r\n")));
    CHECK(answer_next(f, &c, true, 5000, &a) && answer_has(&a, "Content-Length: 5\r\n"));
    check_get(f, &c); /* in step: no body came */
    peer_end(&c);
    server_fixture_close(f);
}

/* Answers come in the order of the requests, whatever the handler does. */
TEST(http_server_pipelines_a_hundred) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct buf all;
    buf_init(&all, 100000);
    for (int i = 0; i < 100; i++)
        buf_printf(&all, "GET /%d HTTP/1.1\r\nHost: a\r\n\r\n", i);
    for (int late = 0; late < 2; late++) {
        struct peer c;
        peer_open(f, &c);
        f->hold = late;
        f->requests = f->held_count = 0;
        CHECK(peer_send(f, &c, buf_str(&all)));
        for (int i = 0; i < 100; i++) {
            char want[16];
            snprintf(want, sizeof(want), "/%d", i);
            if (late) {
                CHECK(server_fixture_until(f, &f->held_count, i + 1) && f->held_count == i + 1,
                      "one at a time: %d", f->held_count);
                CHECK(strcmp(f->target, want) == 0);
                http_respond(f->held[i], 200, NULL, 0, str_c(want));
            }
            struct answer a;
            CHECK(answer_next(f, &c, false, 5000, &a) && str_eq(a.body, str_c(want)), "%d", i);
        }
        peer_end(&c);
    }
    buf_release(&all);
    server_fixture_close(f);
}

/* A client that pipelines and does not read is not read either. */
TEST(http_server_pipelining_without_reading_is_bounded) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    peer_open(f, &c);
    f->hold = true;
    int sent = 0;
    str request = GET("/");
    for (int i = 0; i < 2000000; i++) {
        if (send(c.fd, request.ptr, request.len, MSG_NOSIGNAL) != (ssize_t)request.len) break;
        sent++;
        if (i % 64 == 0) server_fixture_turn(f);
    }
    for (int i = 0; i < 100; i++)
        server_fixture_turn(f);
    struct http_connection *held = NULL;
    for (int w = 0; w < WAIT_COUNT && !held; w++)
        held = f->server->waiting[w].first;
    CHECK(held && !held->reading && held->backlog_len < (size_t)2 * HTTP_BACKLOG_MAX && sent > 100);
    CHECK(f->held_count == 1);
    http_respond(f->held[0], 200, NULL, 0, STR(""));
    peer_end(&c);
    for (int i = 0; i < 10; i++)
        server_fixture_turn(f);
    for (int i = 1; i < f->held_count; i++)
        http_respond(f->held[i], 200, NULL, 0, STR(""));
    server_fixture_close(f);
}

TEST(http_server_says_continue_once_and_only_when_asked) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    struct answer a;
    peer_open(f, &c);
    CHECK(peer_send(f, &c,
                    STR("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                        "Content-Length: 4\r\n\r\n")));
    server_fixture_turn(f);
    peer_poll(&c);
    CHECK(str_eq(buf_str(&c.in), STR("HTTP/1.1 100 Continue\r\n\r\n")) && f->requests == 0);
    CHECK(peer_send(f, &c, STR("ab")) && peer_send(f, &c, STR("cd")));
    CHECK(answer_next(f, &c, false, 5000, &a) && a.code == 200 && str_eq(a.body, STR("abcd")));
    size_t len = c.in.len;
    /* The body came along: nobody waits for the word. */
    CHECK(peer_send(f, &c,
                    STR("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                        "Content-Length: 2\r\n\r\nab")));
    CHECK(answer_next(f, &c, false, 5000, &a) && a.code == 200);
    CHECK(!memmem(c.in.ptr + len, c.in.len - len, "100 Continue", 12));
    peer_end(&c);
    server_fixture_close(f);
}

/* --- Bodies and other bounds ---------------------------------------------------------------------
 */

static void put_post(size_t size, bool chunked, struct buf *raw) {
    buf_put_c(raw, "POST / HTTP/1.1\r\nHost: a\r\n");
    if (chunked) {
        buf_put_c(raw, "Transfer-Encoding: chunked\r\n\r\n");
    } else {
        buf_printf(raw, "Content-Length: %zu\r\n\r\n", size);
    }
    for (size_t done = 0; done < size;) {
        size_t n = size - done < 10 ? size - done : chunked ? (size - done) / 2 : size;
        if (chunked) buf_printf(raw, "%zx\r\n", n);
        for (size_t i = 0; i < n; i++)
            buf_put_char(raw, (char)('a' + (done + i) % 26));
        if (chunked) buf_put_c(raw, "\r\n");
        done += n;
    }
    if (chunked) buf_put_c(raw, "0\r\n\r\n");
    CHECK(!raw->full);
}

/* Posts so many bytes, checks that they come back, and returns the code of the answer. */
static int post(struct server_fixture *f, size_t size, bool chunked) {
    struct peer c;
    struct answer a;
    struct buf raw;
    peer_open(f, &c);
    buf_init(&raw, size + 1000);
    put_post(size, chunked, &raw);
    peer_send(f, &c, buf_str(&raw));
    CHECK(answer_next(f, &c, false, 10000, &a));
    int code = a.code;
    if (code == 200 && size > 0) {
        CHECK(a.body.len == size);
        for (size_t i = 0; i < size; i++)
            CHECK(a.body.ptr[i] == (char)('a' + i % 26));
    }
    if (code != 200) CHECK(peer_ended(f, &c, 5000));
    buf_release(&raw);
    peer_end(&c);
    server_fixture_turn(f);
    return code;
}

TEST(http_server_bodies_at_the_bound_and_past_it) {
    struct http_options options = {.body_max = 100000};
    struct server_fixture *f = server_fixture_open(&options);
    for (int chunked = 0; chunked < 2; chunked++) {
        static const size_t sizes[] = {0, 1, 1023, 1024, 1025, 65536, 99999, 100000};
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            CHECK(post(f, sizes[i], chunked) == 200, "size %zu", sizes[i]);
        CHECK(post(f, 100001, chunked) == 413);
    }
    CHECK(stats_of(f).refused[HTTP_BODY_TOO_LARGE] == 2);
    CHECK(stats_of(f).body_bytes <= (size_t)HTTP_HEAD_KEPT * HTTP_EXCHANGES_KEPT);
    server_fixture_close(f);
    f = server_fixture_open(NULL);
    CHECK(post(f, (size_t)8 * 1024 * 1024, false) == 200); /* the default */
    server_fixture_close(f);
}

TEST(http_server_bodies_together_are_bounded) {
    struct http_options options = {.body_max = 100000, .body_total_max = 150000};
    struct server_fixture *f = server_fixture_open(&options);
    struct peer c;
    struct answer a;
    f->hold = true;
    peer_open(f, &c);
    struct buf raw;
    buf_init(&raw, 200000);
    buf_put_c(&raw, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n");
    for (int i = 0; i < 90000; i++)
        buf_put_char(&raw, 'x');
    CHECK(peer_send(f, &c, buf_str(&raw)) && server_fixture_until(f, &f->held_count, 1));
    f->hold = false;
    CHECK(post(f, 100000, false) == 503 && stats_of(f).refused[HTTP_NO_MEMORY] == 1);
    http_respond(f->held[0], 200, NULL, 0, STR("done"));
    CHECK(answer_next(f, &c, false, 5000, &a) && a.code == 200);
    CHECK(post(f, 100000, false) == 200);
    buf_release(&raw);
    peer_end(&c);
    server_fixture_close(f);
}

TEST(http_server_connections_at_the_bound_and_past_it) {
    struct http_options options = {.connections_max = 3};
    struct server_fixture *f = server_fixture_open(&options);
    struct peer c[4];
    struct answer a;
    for (int i = 0; i < 4; i++) {
        peer_open(f, &c[i]);
        server_fixture_turn(f);
    }
    CHECK(answer_next(f, &c[3], false, 5000, &a) && a.code == 503 && peer_ended(f, &c[3], 5000));
    for (int i = 0; i < 3; i++)
        check_get(f, &c[i]);
    CHECK(stats_of(f).refused[HTTP_TOO_MANY_CONNECTIONS] == 1 && stats_of(f).connections == 3);
    peer_end(&c[0]);
    server_fixture_turn(f);
    peer_end(&c[3]);
    peer_open(f, &c[3]);
    check_get(f, &c[3]);
    for (int i = 1; i < 4; i++)
        peer_end(&c[i]);
    server_fixture_close(f);
}

/* Without memory one client is lost, or waits; the server goes on. */
TEST(http_server_survives_an_empty_machine) {
    struct http_options options = {.idle_ms = 400}; /* a sweep every 100 ms */
    struct server_fixture *f = server_fixture_open(&options);
    for (int64_t n = 0; n < 8; n++) {
        struct peer c;
        struct answer a;
        peer_open(f, &c);
        mem_fail_at(n);
        bool sent = send(c.fd, GET("/").ptr, GET("/").len, MSG_NOSIGNAL) > 0;
        for (int i = 0; i < 5; i++)
            server_fixture_turn(f);
        mem_fail_at(-1);
        if (sent && answer_next(f, &c, false, 1000, &a)) CHECK(a.code == 200 || a.code == 503);
        peer_end(&c);
        server_fixture_turn(f);
        peer_open(f, &c);
        check_get(f, &c);
        peer_end(&c);
    }
    server_fixture_close(f);
}

TEST(http_server_requests_of_one_connection_are_bounded) {
    struct http_options options = {.requests_max = 3};
    struct server_fixture *f = server_fixture_open(&options);
    struct peer c;
    struct answer a;
    peer_open(f, &c);
    check_get(f, &c);
    check_get(f, &c);
    CHECK(peer_send(f, &c, GET("/")) && answer_next(f, &c, false, 5000, &a));
    CHECK(answer_has(&a, "Connection: close\r\n") && peer_ended(f, &c, 5000));
    peer_end(&c);
    server_fixture_close(f);
}

/* --- Time ----------------------------------------------------------------------------------------
 */

/* Bytes that trickle in do not move a deadline. */
TEST(http_server_deadlines_are_absolute) {
    struct http_options options = {.head_ms = 200, .body_ms = 300, .idle_ms = 400};
    struct server_fixture *f = server_fixture_open(&options);
    static const struct {
        const char *start;
        int code;
        int64_t least_ms, most_ms;
    } cases[] = {
        {"GET / HTTP/1.1\r\nX: ", 408, 190, 2000},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", 408, 290, 2000},
        {"", 0, 390, 2000}, /* idle: no answer */
        {"\r\n", 0, 190, 2000},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct peer c;
        struct answer a;
        peer_open(f, &c);
        peer_send(f, &c, str_c(cases[i].start));
        int64_t begun = clock_mono_ns();
        bool trickle = cases[i].code != 0;
        while (!c.eof && clock_mono_ns() - begun < cases[i].most_ms * 1000000) {
            if (trickle && c.in.len == 0) send(c.fd, "x", 1, MSG_NOSIGNAL);
            server_fixture_wait(f, 10);
            peer_poll(&c);
        }
        int64_t ms = (clock_mono_ns() - begun) / 1000000;
        CHECK(c.eof && ms >= cases[i].least_ms - 10, "case %zu: %d ms", i, (int)ms);
        bool answered = answer_next(f, &c, false, 100, &a);
        CHECK(answered == (cases[i].code != 0) && (!answered || a.code == cases[i].code), "%zu", i);
        peer_end(&c);
    }
    struct http_stats stats = stats_of(f);
    CHECK(stats.refused[HTTP_TIMEOUT_HEAD] == 1 && stats.refused[HTTP_TIMEOUT_BODY] == 1 &&
          stats.idle_closed_total == 1);
    server_fixture_close(f);
}

TEST(http_server_waits_for_the_handler_without_a_deadline) {
    struct http_options options = {
        .head_ms = 50, .body_ms = 50, .idle_ms = 50, .write_stall_ms = 50};
    struct server_fixture *f = server_fixture_open(&options);
    struct peer c;
    struct answer a;
    f->hold = true;
    peer_open(f, &c);
    CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, 1));
    server_fixture_wait(f, 300);
    http_respond(f->held[0], 200, NULL, 0, STR("late"));
    CHECK(answer_next(f, &c, false, 5000, &a) && str_eq(a.body, STR("late")));
    peer_end(&c);
    server_fixture_close(f);
}

TEST(http_server_ends_a_reader_that_takes_nothing) {
    struct http_options options = {.write_stall_ms = 200};
    struct server_fixture *f = server_fixture_open(&options);
    struct peer c;
    f->hold = true;
    peer_open(f, &c);
    CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, 1));
    size_t size = (size_t)32 * 1024 * 1024;
    char *large = mem_alloc(size);
    http_respond(f->held[0], 200, NULL, 0, str_n(large, size));
    mem_free(large);
    server_fixture_wait(f, 1000);
    CHECK(stats_of(f).stalled_total == 1 && stats_of(f).connections == 0);
    /* One that is slow, but takes something every time, gets it all. */
    peer_end(&c);
    peer_open(f, &c);
    CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, 2));
    size = (size_t)8 * 1024 * 1024;
    large = mem_alloc(size);
    http_respond(f->held[1], 200, NULL, 0, str_n(large, size));
    mem_free(large);
    size_t got = 0;
    char bytes[300000];
    for (int i = 0; i < 400 && got < size; i++) {
        ssize_t n = recv(c.fd, bytes, sizeof(bytes), 0);
        if (n > 0) got += (size_t)n;
        server_fixture_wait(f, 20);
    }
    CHECK(got > size && stats_of(f).stalled_total == 1, "%zu", got);
    peer_end(&c);
    server_fixture_close(f);
}

/* More to take is no sign of life. */
TEST(http_server_ends_a_reader_that_takes_nothing_of_more_and_more) {
    struct http_options options = {.write_stall_ms = 200, .unsent_max = (size_t)64 * 1024 * 1024};
    struct server_fixture *f = server_fixture_open(&options);
    struct peer c;
    f->hold = true;
    peer_open(f, &c);
    CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, 1));
    size_t size = (size_t)32 * 1024 * 1024;
    char *large = mem_alloc(size);
    http_stream_begin(f->held[0], 200, NULL, 0);
    CHECK(http_stream_write(f->held[0], str_n(large, size)));
    mem_free(large);
    for (int i = 0; i < 60 && stats_of(f).connections > 0; i++) {
        (void)http_stream_write(f->held[0], STR("more"));
        server_fixture_wait(f, 25);
    }
    CHECK(stats_of(f).stalled_total == 1 && stats_of(f).connections == 0);
    http_stream_end(f->held[0]);
    peer_end(&c);
    server_fixture_close(f);
}

/* --- Sockets -------------------------------------------------------------------------------------
 */

TEST(http_server_listens_on_unix_sockets_and_descriptors) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct error err;
    char path[200];
    struct stat info;
    struct peer c;
    snprintf(path, sizeof(path), "%s/socket", test_dir());
    CHECK(http_listen_unix(f->server, str_c(path), 0660, &err) == ST_OK, "%s", err.msg);
    CHECK(stat(path, &info) == 0 && S_ISSOCK(info.st_mode) && (info.st_mode & 0777) == 0660);
    peer_open_unix(&c, path);
    check_get(f, &c);
    CHECK(strcmp(f->remote, "unix") == 0);
    CHECK(http_listen_unix(f->server, str_c(path), 0660, &err) == ST_RETRY); /* somebody listens */
    peer_end(&c);
    server_fixture_close(f);
    CHECK(stat(path, &info) != 0); /* removed */

    f = server_fixture_open(NULL);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof(address);
    CHECK(bind(fd, (struct sockaddr *)&address, len) == 0);
    CHECK(http_listen_fd(f->server, fd, false, &err) == ST_INVALID); /* it does not listen yet */
    CHECK(listen(fd, 10) == 0 && getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    CHECK(http_listen_fd(f->server, fd, false, &err) == ST_OK, "%s", err.msg);
    f->port = ntohs(address.sin_port);
    peer_open(f, &c);
    check_get(f, &c);
    peer_end(&c);
    CHECK(http_listen_fd(f->server, 0x7fff, false, &err) == ST_INVALID);
    CHECK(http_listen_tcp(f->server, STR("example.org"), 0, false, NULL, &err) == ST_INVALID);
    CHECK(http_listen_tcp(f->server, STR("127.0.0.1"), 70000, false, NULL, &err) == ST_INVALID);
    CHECK(http_listen_tcp(f->server, STR("127.0.0.1"), f->port, false, NULL, &err) == ST_RETRY);
    CHECK(http_listen_tcp(f->server, STR("127.0.0.1"), 0, true, NULL, &err) == ST_INVALID &&
          err.reason == REASON_TLS_NOT_LOADED);
    server_fixture_close(f);

    /* A file that nobody listens on any more is replaced; one that is no socket stays. */
    f = server_fixture_open(NULL);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_storage stale = {.ss_family = AF_UNIX};
    memcpy((char *)&stale + 2, path, strlen(path) + 1);
    CHECK(bind(fd, (struct sockaddr *)&stale,
               sizeof(struct sockaddr_storage) < 110 ? sizeof(struct sockaddr_storage) : 110) == 0);
    close(fd);
    CHECK(http_listen_unix(f->server, str_c(path), 0600, &err) == ST_OK, "%s", err.msg);
    snprintf(path, sizeof(path), "%s/file", test_dir());
    FILE *file = fopen(path, "w");
    CHECK(file && fclose(file) == 0);
    CHECK(http_listen_unix(f->server, str_c(path), 0600, &err) == ST_RETRY);
    CHECK(stat(path, &info) == 0);
    server_fixture_close(f);
}

/* --- Many ----------------------------------------------------------------------------------------
 */

static int files_allowed(int want) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    int most = limit.rlim_cur > 100000 ? 100000 : (int)limit.rlim_cur;
    return most / 2 - 100 < want ? most / 2 - 100 : want; /* both ends are ours */
}

/* 2,000 connections send their heads byte by byte; others are answered as if they were not there.
 */
TEST(http_server_slowloris_does_not_hold_up_others) {
    struct http_options options = {.head_ms = 1500};
    struct server_fixture *f = server_fixture_open(&options);
    int count = files_allowed(2000);
    if (count < 2000) test_skip("too few files may be open at once: 2,000 connections need 4,200");
    int *slow = mem_alloc(sizeof(int) * (size_t)count);
    static const char head[] =
        "GET / HTTP/1.1\r\nHost: a\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct peer c;
    for (int i = 0; i < count; i++) {
        peer_open(f, &c);
        slow[i] = c.fd;
        if (i % 100 == 0) server_fixture_turn(f);
    }
    peer_open(f, &c);
    int64_t worst = 0;
    int64_t begun = clock_mono_ns();
    for (size_t at = 0; at < sizeof(head) - 1; at++) {
        for (int i = 0; i < count; i++) {
            send(slow[i], head + at, 1, MSG_NOSIGNAL);
            if (i % 500 != 0) continue;
            int64_t start = clock_mono_ns();
            check_get(f, &c);
            int64_t took = clock_mono_ns() - start;
            if (took > worst) worst = took;
        }
    }
    CHECK(worst < 1000000000, "%d ms", (int)(worst / 1000000));
    while (stats_of(f).refused[HTTP_TIMEOUT_HEAD] < (uint64_t)count &&
           clock_mono_ns() - begun < (int64_t)20 * 1000000000) {
        server_fixture_wait(f, 20);
        check_get(f, &c);
    }
    CHECK(stats_of(f).refused[HTTP_TIMEOUT_HEAD] == (uint64_t)count, "%d",
          (int)stats_of(f).refused[HTTP_TIMEOUT_HEAD]);
    for (int i = 0; i < count; i++)
        close(slow[i]);
    for (int i = 0; i < 10; i++)
        server_fixture_turn(f);
    CHECK(stats_of(f).connections == 1);
    mem_free(slow);
    peer_end(&c);
    server_fixture_close(f);
}

/* An idle connection holds its own struct and nothing else. */
TEST(http_server_idle_connections_are_small) {
    CHECK(sizeof(struct http_connection) <= 640, "%zu", sizeof(struct http_connection));
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c[50];
    for (int i = 0; i < 50; i++) {
        peer_open(f, &c[i]);
        check_get(f, &c[i]);
    }
    for (struct http_connection *k = f->server->waiting[WAIT_IDLE].first; k; k = k->next)
        CHECK(!k->exchange && !k->backlog);
    CHECK(f->server->free_count == 1); /* all used the same one */
    for (int i = 0; i < 50; i++)
        peer_end(&c[i]);
    server_fixture_close(f);
}

TEST(http_text_tools) {
    str query = STR("a=1&&b=&c&d=x%3Dy=z");
    str name;
    str value;
    struct buf out;
    buf_init(&out, 200);
    while (http_query_next(&query, &name, &value)) {
        buf_printf(&out, "%.*s>", STR_ARG(name));
        CHECK(http_unescape(value, true, &out));
        buf_put_char(&out, '|');
    }
    CHECK(str_eq(buf_str(&out), STR("a>1|b>|c>|d>x=y=z|")));
    static const struct {
        const char *in;
        bool form, ok;
        const char *want;
    } cases[] = {{"a%20b+c", true, true, "a b c"},
                 {"a%20b+c", false, true, "a b+c"},
                 {"%e2%82%ac", false, true, "\xe2\x82\xac"},
                 {"%", false, false, ""},
                 {"%2", false, false, ""},
                 {"%zz", false, false, ""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        buf_clear(&out);
        CHECK(http_unescape(str_c(cases[i].in), cases[i].form, &out) == cases[i].ok, "%zu", i);
        if (cases[i].ok) CHECK(str_eq(buf_str(&out), str_c(cases[i].want)), "%zu", i);
    }
    CHECK(http_name_eq(STR("Content-Type"), STR("content-tYPE")) &&
          !http_name_eq(STR("a"), STR("b")));
    CHECK(strcmp(http_status_text(404), "Not Found") == 0 &&
          strcmp(http_status_text(799), "Unknown") == 0);
    buf_release(&out);
}
