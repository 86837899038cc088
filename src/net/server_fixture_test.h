/* net/server_fixture_test.h: a server on a loop that is turned by hand, and plain clients beside
 * it. */
#pragma once

#include <uv.h>

#include "base/buf.h"
#include "net/server.h"

enum { SERVER_FIXTURE_HELD_MAX = 4096 };

struct server_fixture {
    uv_loop_t loop;
    struct http_server *server;
    int port;
    int requests; /* seen by the handler */
    bool hold;    /* the handler does not answer: see `held` */
    bool closed;
    struct http_exchange *held[SERVER_FIXTURE_HELD_MAX];
    int held_count, gone;
    struct buf body; /* of the last request */
    char remote[64], method[16], target[64];
    bool tls;
};

/* Opens a server on a free port of 127.0.0.1. The handler answers 200 with the request's body, or
 * its target when it has none. */
struct server_fixture *server_fixture_open(const struct http_options *options);
void server_fixture_close(struct server_fixture *f); /* checks that all handles went away */
void server_fixture_turn(struct server_fixture *f);  /* whatever is ready, without waiting */
void server_fixture_wait(struct server_fixture *f, int64_t ms);
/* Turns the loop, waiting if need be, until *flag is at least `count`; false after 10 s. */
bool server_fixture_until(struct server_fixture *f, const int *flag, int count);

struct peer {
    int fd;
    bool eof, reset;
    struct buf in;
    size_t read; /* of `in`, by answer_next() */
};
void peer_open(struct server_fixture *f, struct peer *c);
void peer_open_unix(struct peer *c, const char *path);
void peer_end(struct peer *c);
/* Sends all, turning the loop as long as the server does not take it. false when it no longer does.
 */
bool peer_send(struct server_fixture *f, struct peer *c, str bytes);
void peer_poll(struct peer *c); /* takes what is there */

struct answer {
    int code;
    str head, body;
};
/* Waits for the next answer that is no 1xx. false at the end of the connection, or after `ms`. */
bool answer_next(struct server_fixture *f, struct peer *c, bool is_head, int64_t ms,
                 struct answer *out);
bool answer_has(const struct answer *a, const char *text); /* in its head */
/* Waits until the server ended the connection; false after `ms`. */
bool peer_ended(struct server_fixture *f, struct peer *c, int64_t ms);

#define GET(path) STR("GET " path " HTTP/1.1\r\nHost: a\r\n\r\n")
struct http_stats stats_of(struct server_fixture *f);
void check_get(struct server_fixture *f, struct peer *c); /* GET /x is answered with its target */
