/* tests/load/conn.h: one HTTP connection without blocking, for tests that have thousands of them on
 * one epoll. What is sent is whole requests; what comes is an answer with Content-Length. Used by
 * tests/load and tests/crash/http.c; all in a header because each of these is one source file. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/str.h"

enum { CONN_IN_MAX = 1024 * 1024, CONN_OUT_MAX = 1024 * 1024 };

struct conn {
    int fd; /* -1: there is none */
    bool connecting;
    struct buf out; /* what is to be sent; `sent` of it is */
    size_t sent;
    char *in;
    size_t in_len, in_cap;
};

struct answer { /* lives until the next read */
    int status;
    str head, body;
};

static inline void conn_close(struct conn *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->connecting = false;
    c->in_len = c->sent = 0;
}

static inline void conn_init(struct conn *c) {
    *c = (struct conn){.fd = -1};
    buf_init(&c->out, CONN_OUT_MAX);
}

static inline void conn_release(struct conn *c) {
    conn_close(c);
    buf_release(&c->out);
    free(c->in);
    c->in = NULL;
    c->in_cap = 0;
}

static inline bool conn_watch(struct conn *c, int epoll, int how, bool write, void *owner) {
    struct epoll_event e = {.events = EPOLLIN | (write ? EPOLLOUT : 0U), .data = {.ptr = owner}};
    return epoll_ctl(epoll, how, c->fd, &e) == 0;
}

static inline struct sockaddr_in conn_address(uint32_t host, int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {.s_addr = htonl(host)}};
}

/* A socket that is not connected yet. `source` (0: any) is our own address: each has its own ports.
 * false: errno says why. */
static inline bool conn_socket(struct conn *c, uint32_t source) {
    struct sockaddr_in from = conn_address(source, 0);
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) return false;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    if (source == 0 || bind(c->fd, (struct sockaddr *)&from, sizeof(from)) == 0) return true;
    conn_close(c);
    return false;
}

/* Begins to connect to a port of 127.0.0.1. */
static inline bool conn_connect(struct conn *c, int epoll, int port, void *owner) {
    struct sockaddr_in to = conn_address(INADDR_LOOPBACK, port);
    c->connecting =
        (connect(c->fd, (struct sockaddr *)&to, sizeof(to)) == 0 || errno == EINPROGRESS) &&
        conn_watch(c, epoll, EPOLL_CTL_ADD, true, owner);
    if (!c->connecting) conn_close(c);
    return c->fd >= 0;
}

static inline bool conn_open(struct conn *c, int epoll, int port, void *owner) {
    return conn_socket(c, 0) && conn_connect(c, epoll, port, owner);
}

/* Sends what it can. false: the connection is lost. */
static inline bool conn_flush(struct conn *c, int epoll, void *owner) {
    while (c->sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.ptr + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) return false;
        if (n < 0) return conn_watch(c, epoll, EPOLL_CTL_MOD, true, owner);
        c->sent += (size_t)n;
    }
    return true;
}

/* gcc's analyzer loses sight of a connection that epoll gives back, and of its memory with it. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif
static inline bool conn_room(struct conn *c) {
    if (c->in_len + 4096 <= c->in_cap) return true;
    size_t cap = c->in_cap ? c->in_cap * 2 : 16384;
    if (cap > CONN_IN_MAX) return false;
    char *in = realloc(c->in, cap);
    if (!in) return false;
    c->in = in;
    c->in_cap = cap;
    return true;
}

/* Reads what is there. false: the connection is lost; what came before that is kept. */
static inline bool conn_read(struct conn *c) {
    for (;;) {
        if (!conn_room(c)) return false;
        ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        if (n == 0) return false;
        c->in_len += (size_t)n;
    }
}

/* The value of a header of an answer, found by its name with ": "; STR_NONE. */
static inline str answer_header(const struct answer *a, const char *name) {
    const char *at = memmem(a->head.ptr, a->head.len, name, strlen(name));
    if (!at) return STR_NONE;
    at += strlen(name);
    size_t left = a->head.len - (size_t)(at - a->head.ptr);
    const char *end = memchr(at, '\r', left);
    return str_n(at, end ? (size_t)(end - at) : left);
}

/* Whether what was read is a whole answer. */
static inline bool conn_answer(const struct conn *c, struct answer *out) {
    const char *blank = c->in_len > 0 ? memmem(c->in, c->in_len, "\r\n\r\n", 4) : NULL;
    int64_t length = 0;
    if (!blank || c->in_len < 12) return false;
    size_t head = (size_t)(blank - c->in) + 4;
    struct answer a = {.head = str_n(c->in, head)};
    str code = str_n(c->in + 9, 3);
    str text = answer_header(&a, "Content-Length: ");
    int64_t number = 0;
    if (!str_take_int(&code, &number)) return false;
    if (text.ptr && !str_take_int(&text, &length)) return false;
    if (c->in_len < head + (size_t)length) return false;
    a.status = (int)number;
    a.body = str_n(c->in + head, (size_t)length);
    *out = a;
    return true;
}

/* Puts a request in place of the last one. `headers` are whole lines, or "". */
static inline void conn_request(struct conn *c, const char *method, const char *target,
                                const char *headers, str body) {
    buf_clear(&c->out);
    c->sent = c->in_len = 0;
    buf_printf(&c->out, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s", method, target, headers);
    if (body.ptr) buf_printf(&c->out, "Content-Length: %zu\r\n", body.len);
    buf_put_c(&c->out, "\r\n");
    if (body.ptr) buf_put(&c->out, body);
}
