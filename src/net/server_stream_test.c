/* Streams, clients that go away, drain and close. */
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/server_fixture_test.h"
#include "test.h"

/* --- Streams -------------------------------------------------------------------------------------
 */

static void on_writable(void *context, struct http_exchange *exchange) {
    UNUSED(exchange);
    (*(int *)context)++;
}

TEST(http_server_streams_in_chunks) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    struct answer a;
    f->hold = true;
    struct http_header type = {STR("Content-Type"), STR("text/event-stream")};
    peer_open(f, &c);
    for (int i = 0; i < 3; i++) {
        CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, i + 1));
        http_stream_begin(f->held[i], 200, &type, 1);
        CHECK(http_stream_write(f->held[i], STR("data: 1\n\n")));
        CHECK(http_stream_write(f->held[i], STR("")));
        CHECK(http_stream_write(f->held[i], STR("data: 22222\n\n")));
        CHECK(http_stream_unsent(f->held[i]) == 0);
        http_stream_end(f->held[i]);
        CHECK(answer_next(f, &c, false, 5000, &a) && answer_has(&a, "text/event-stream"));
        CHECK(str_eq(a.body, STR("9\r\ndata: 1\n\n\r\nd\r\ndata: 22222\n\n\r\n0\r\n\r\n")));
    }
    peer_end(&c);
    server_fixture_close(f);
}

TEST(http_server_streams_nothing_to_head_and_no_chunks_to_http_10) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    struct answer a;
    f->hold = true;
    struct http_header type = {STR("Content-Type"), STR("text/event-stream")};
    peer_open(f, &c);
    CHECK(peer_send(f, &c, STR("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")) &&
          server_fixture_until(f, &f->held_count, 1));
    http_stream_begin(f->held[0], 200, &type, 1);
    CHECK(http_stream_write(f->held[0], STR("never sent")));
    http_stream_end(f->held[0]);
    CHECK(answer_next(f, &c, true, 5000, &a) && c.read == c.in.len);
    peer_end(&c);
    /* HTTP/1.0 knows no chunks. */
    peer_open(f, &c);
    CHECK(peer_send(f, &c, STR("GET / HTTP/1.0\r\n\r\n")) &&
          server_fixture_until(f, &f->held_count, 2));
    http_stream_begin(f->held[1], 200, &type, 1);
    CHECK(http_stream_write(f->held[1], STR("one,")));
    CHECK(http_stream_write(f->held[1], STR("two")));
    http_stream_end(f->held[1]);
    CHECK(peer_ended(f, &c, 5000) && str_ends(buf_str(&c.in), STR("\r\n\r\none,two")));
    peer_end(&c);
    server_fixture_close(f);
}

TEST(http_server_ends_a_slow_reader_of_a_stream_at_its_bound) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    f->hold = true;
    peer_open(f, &c);
    CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, 1));
    http_stream_begin(f->held[0], 200, NULL, 0);
    int writable = 0;
    http_on_writable(f->held[0], on_writable, &writable);
    static char block[16384];
    bool alive = true;
    size_t most = 0;
    for (int i = 0; i < 10000 && alive; i++) {
        alive = http_stream_write(f->held[0], str_n(block, sizeof(block)));
        size_t unsent = http_stream_unsent(f->held[0]);
        if (unsent > most) most = unsent;
        server_fixture_turn(f);
    }
    CHECK(!alive && most > 900000 && most <= (size_t)1024 * 1024, "%zu", most);
    CHECK(f->gone == 1 && stats_of(f).slow_readers_total == 1 && stats_of(f).connections == 0);
    CHECK(!http_stream_write(f->held[0], STR("x")));
    http_stream_end(f->held[0]);
    peer_end(&c);
    /* One that reads again after a pause is told to the writer. */
    peer_open(f, &c);
    CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, 2));
    http_stream_begin(f->held[1], 200, NULL, 0);
    http_on_writable(f->held[1], on_writable, &writable);
    while (http_stream_unsent(f->held[1]) < 500000)
        CHECK(http_stream_write(f->held[1], str_n(block, sizeof(block))));
    CHECK(writable == 0);
    while (http_stream_unsent(f->held[1]) > 0) {
        peer_poll(&c);
        server_fixture_turn(f);
    }
    CHECK(writable == 1);
    http_stream_abort(f->held[1]);
    CHECK(peer_ended(f, &c, 5000) && !str_ends(buf_str(&c.in), STR("0\r\n\r\n")));
    peer_end(&c);
    server_fixture_close(f);
}

TEST(http_server_tells_when_the_client_is_gone) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    f->hold = true;
    /* It closes, it is reset, it only ends its side: and then it still gets its answer. */
    for (int i = 0; i < 3; i++) {
        peer_open(f, &c);
        CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, i + 1));
        struct linger reset = {1, 0};
        if (i == 1) setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        if (i < 2) peer_end(&c);
        if (i == 2) shutdown(c.fd, SHUT_WR);
        CHECK(server_fixture_until(f, &f->gone, i + 1) && f->gone == i + 1);
        http_respond(f->held[i], 200, NULL, 0, STR("for nobody?"));
    }
    struct answer a;
    CHECK(answer_next(f, &c, false, 5000, &a) && a.code == 200 && peer_ended(f, &c, 5000));
    peer_end(&c);
    server_fixture_turn(f);
    CHECK(stats_of(f).connections == 0 && stats_of(f).exchanges == 0);
    server_fixture_close(f);
}

TEST(http_server_drops_headers_that_would_break_the_framing) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c;
    struct answer a;
    f->hold = true;
    peer_open(f, &c);
    CHECK(peer_send(f, &c, GET("/")) && server_fixture_until(f, &f->held_count, 1));
    struct http_header headers[] = {{STR("X-Good"), STR("1")},
                                    {STR("X-Bad"), STR("1\r\nSet-Cookie: x")},
                                    {STR("X Bad"), STR("1")},
                                    {STR(""), STR("1")},
                                    {STR("X-Bad:"), STR("1")}};
    http_respond(f->held[0], 204, headers, COUNT_OF(headers), STR("not sent"));
    CHECK(answer_next(f, &c, false, 5000, &a) && a.code == 204);
    CHECK(answer_has(&a, "X-Good: 1\r\n") && !answer_has(&a, "Bad") && !answer_has(&a, "Cookie"));
    CHECK(!answer_has(&a, "Content-Length") && stats_of(f).headers_dropped_total == 4);
    f->hold = false;
    check_get(f, &c);
    peer_end(&c);
    server_fixture_close(f);
}

/* --- Ending --------------------------------------------------------------------------------------
 */

static void on_drained(void *context) { (*(int *)context)++; }

TEST(http_server_drains) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer idle;
    struct peer busy;
    struct peer half;
    struct answer a;
    peer_open(f, &idle);
    check_get(f, &idle);
    f->hold = true;
    peer_open(f, &busy);
    CHECK(peer_send(f, &busy, GET("/")) && server_fixture_until(f, &f->held_count, 1));
    peer_open(f, &half);
    CHECK(peer_send(f, &half, STR("GET / HTTP/1.1\r\n")));
    int drained = 0;
    http_server_drain(f->server, 10000, on_drained, &drained);
    CHECK(peer_ended(f, &idle, 1000) && drained == 0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0); /* no longer listening */
    close(fd);
    http_respond(f->held[0], 200, NULL, 0, STR("finished"));
    CHECK(answer_next(f, &busy, false, 5000, &a) && answer_has(&a, "Connection: close\r\n"));
    peer_end(&busy);
    f->hold = false;
    CHECK(peer_send(f, &half, STR("Host: a\r\n\r\n")));
    CHECK(answer_next(f, &half, false, 5000, &a) && answer_has(&a, "Connection: close\r\n"));
    CHECK(drained == 0);
    peer_end(&half);
    CHECK(server_fixture_until(f, &drained, 1));
    peer_end(&idle);
    server_fixture_close(f);

    /* What is not finished at the deadline is cut off. */
    f = server_fixture_open(NULL);
    f->hold = true;
    drained = 0;
    peer_open(f, &busy);
    CHECK(peer_send(f, &busy, GET("/")) && server_fixture_until(f, &f->held_count, 1));
    http_server_drain(f->server, 200, on_drained, &drained);
    CHECK(server_fixture_until(f, &drained, 1) && peer_ended(f, &busy, 1000) && f->gone == 1);
    http_respond(f->held[0], 200, NULL, 0, STR("for nobody"));
    peer_end(&busy);
    server_fixture_close(f);
    f = server_fixture_open(NULL);
    drained = 0;
    http_server_drain(f->server, 10000, on_drained, &drained); /* nothing there */
    CHECK(server_fixture_until(f, &drained, 1));
    server_fixture_close(f);
}

TEST(http_server_closes_under_requests) {
    struct server_fixture *f = server_fixture_open(NULL);
    struct peer c[4];
    f->hold = true;
    for (int i = 0; i < 4; i++) {
        peer_open(f, &c[i]);
        CHECK(peer_send(f, &c[i], i < 2 ? GET("/") : STR("GET / HT")));
    }
    CHECK(server_fixture_until(f, &f->held_count, 2));
    http_stream_begin(f->held[1], 200, NULL, 0);
    struct http_exchange *late[2] = {f->held[0], f->held[1]};
    server_fixture_close(f); /* the server's memory stays until both are answered */
    http_respond(late[0], 200, NULL, 0, STR("x"));
    CHECK(!http_stream_write(late[1], STR("x")));
    http_stream_end(late[1]);
    for (int i = 0; i < 4; i++)
        peer_end(&c[i]);
}
