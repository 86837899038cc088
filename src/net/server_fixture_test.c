#include "net/server_fixture_test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/time.h"
#include "test.h"

static void on_gone(void *context, struct http_exchange *exchange) {
    struct server_fixture *f = context;
    UNUSED(exchange);
    f->gone++;
}

static void copy_text(char *out, size_t size, str text) {
    snprintf(out, size, "%.*s", STR_ARG(text));
}

static void handle(void *context, struct http_exchange *exchange, const struct http_request *r) {
    struct server_fixture *f = context;
    f->requests++;
    buf_clear(&f->body);
    buf_put(&f->body, r->body);
    copy_text(f->remote, sizeof(f->remote), r->remote);
    copy_text(f->method, sizeof(f->method), r->method);
    copy_text(f->target, sizeof(f->target), r->target);
    f->tls = r->tls;
    if (f->hold) {
        CHECK(f->held_count < SERVER_FIXTURE_HELD_MAX);
        f->held[f->held_count++] = exchange;
        http_on_gone(exchange, on_gone, f);
        return;
    }
    struct http_header type = {STR("Content-Type"), STR("text/plain")};
    http_respond(exchange, 200, &type, 1, r->body.len ? r->body : r->target);
}

struct server_fixture *server_fixture_open(const struct http_options *options) {
    struct server_fixture *f = mem_alloc(sizeof(*f));
    struct error err;
    buf_init(&f->body, (size_t)64 * 1024 * 1024);
    CHECK(uv_loop_init(&f->loop) == 0);
    CHECK(http_server_open(&f->loop, options, handle, f, &f->server, &err) == ST_OK, "%s", err.msg);
    CHECK(http_listen_tcp(f->server, STR("127.0.0.1"), 0, false, &f->port, &err) == ST_OK, "%s",
          err.msg);
    return f;
}

static void on_closed(void *context) { ((struct server_fixture *)context)->closed = true; }

void server_fixture_close(struct server_fixture *f) {
    http_server_close(f->server, on_closed, f);
    for (int i = 0; i < 1000 && !f->closed; i++)
        uv_run(&f->loop, UV_RUN_NOWAIT);
    CHECK(f->closed);
    CHECK(uv_loop_close(&f->loop) == 0);
    buf_release(&f->body);
    mem_free(f);
}

void server_fixture_turn(struct server_fixture *f) {
    uv_run(&f->loop, UV_RUN_NOWAIT);
    uv_run(&f->loop, UV_RUN_NOWAIT); /* closing takes one more */
}

void server_fixture_wait(struct server_fixture *f, int64_t ms) {
    int64_t end = clock_mono_ns() + ms * 1000000;
    while (clock_mono_ns() < end) {
        server_fixture_turn(f);
        usleep(500);
    }
}

bool server_fixture_until(struct server_fixture *f, const int *flag, int count) {
    int64_t end = clock_mono_ns() + (int64_t)10 * 1000000000;
    while (*flag < count && clock_mono_ns() < end) {
        server_fixture_turn(f);
        if (*flag < count) usleep(200);
    }
    return *flag >= count;
}

static void peer_start(struct peer *c, const struct sockaddr *address, socklen_t len) {
    memset(c, 0, sizeof(*c));
    buf_init(&c->in, (size_t)64 * 1024 * 1024);
    c->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(c->fd >= 0, "socket: %s", strerror(errno));
    CHECK(connect(c->fd, address, len) == 0, "connect: %s", strerror(errno));
    CHECK(fcntl(c->fd, F_SETFL, O_NONBLOCK) == 0);
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void peer_open(struct server_fixture *f, struct peer *c) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    peer_start(c, (struct sockaddr *)&address, sizeof(address));
}

void peer_open_unix(struct peer *c, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    peer_start(c, (struct sockaddr *)&address, sizeof(address));
}

void peer_end(struct peer *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    buf_release(&c->in);
}

bool peer_send(struct server_fixture *f, struct peer *c, str bytes) {
    int64_t end = clock_mono_ns() + (int64_t)10 * 1000000000;
    while (bytes.len > 0 && clock_mono_ns() < end) {
        ssize_t n = send(c->fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (n > 0) {
            bytes = str_from(bytes, (size_t)n);
        } else if (errno != EAGAIN) {
            return false;
        }
        server_fixture_turn(f);
        peer_poll(c); /* so that neither side waits for the other */
    }
    return bytes.len == 0;
}

void peer_poll(struct peer *c) {
    char bytes[16384];
    while (!c->eof) {
        ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);
        if (n > 0) {
            buf_put(&c->in, str_n(bytes, (size_t)n));
        } else if (n == 0) {
            c->eof = true;
        } else if (errno != EAGAIN) {
            c->eof = c->reset = true;
        } else {
            break;
        }
    }
}

static bool find(str in, const char *text, size_t *at) {
    const char *found = in.len ? memmem(in.ptr, in.len, text, strlen(text)) : NULL;
    if (found) *at = (size_t)(found - in.ptr);
    return found != NULL;
}

/* One whole answer at c->read? Knows Content-Length, and chunks that are not looked into. */
static bool answer_parse(struct peer *c, bool is_head, struct answer *out) {
    str rest = str_from(buf_str(&c->in), c->read);
    size_t head_len;
    size_t at;
    if (!find(rest, "\r\n\r\n", &head_len)) return false;
    head_len += 4;
    out->head = str_n(rest.ptr, head_len);
    str digits = str_from(rest, sizeof("HTTP/1.1 ") - 1);
    int64_t code = 0;
    CHECK(str_take_int(&digits, &code), "not an answer: %.*s", STR_ARG(out->head));
    out->code = (int)code;
    size_t body_len = 0;
    if (is_head) {
        body_len = 0;
    } else if (find(out->head, "Transfer-Encoding: chunked\r\n", &at)) {
        if (!find(str_from(rest, head_len), "0\r\n\r\n", &body_len)) return false;
        body_len += 5;
    } else if (find(out->head, "Content-Length: ", &at)) {
        str number = str_from(out->head, at + sizeof("Content-Length: ") - 1);
        int64_t n = 0;
        CHECK(str_take_int(&number, &n));
        body_len = (size_t)n;
    }
    if (rest.len < head_len + body_len) return false;
    out->body = str_n(rest.ptr + head_len, body_len);
    c->read += head_len + body_len;
    return true;
}

bool answer_next(struct server_fixture *f, struct peer *c, bool is_head, int64_t ms,
                 struct answer *out) {
    int64_t end = clock_mono_ns() + ms * 1000000;
    while (true) {
        server_fixture_turn(f);
        peer_poll(c);
        while (answer_parse(c, is_head, out))
            if (out->code >= 200) return true;
        if (c->eof || clock_mono_ns() >= end) return false;
        usleep(100);
    }
}

bool answer_has(const struct answer *a, const char *text) {
    size_t at;
    return find(a->head, text, &at);
}

bool peer_ended(struct server_fixture *f, struct peer *c, int64_t ms) {
    int64_t end = clock_mono_ns() + ms * 1000000;
    while (!c->eof && clock_mono_ns() < end) {
        server_fixture_turn(f);
        peer_poll(c);
        usleep(100);
    }
    return c->eof;
}

struct http_stats stats_of(struct server_fixture *f) {
    struct http_stats stats;
    http_server_stats(f->server, &stats);
    return stats;
}

void check_get(struct server_fixture *f, struct peer *c) {
    struct answer a;
    CHECK(peer_send(f, c, GET("/x")));
    CHECK(answer_next(f, c, false, 5000, &a) && a.code == 200 && str_eq(a.body, STR("/x")));
}
