/* net/server.c: listeners, connections as a whole, limits, drain and the end. */
#include "net/server.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/time.h"
#include "base/uuid.h"
#include "net/server_impl.h"

/* --- Exchanges -----------------------------------------------------------------------------------
 */

struct http_exchange *http_exchange_take(struct http_server *s) {
    struct http_exchange *e = s->free_exchanges;
    if (e) {
        s->free_exchanges = e->next_free;
        s->free_count--;
    } else if (!(e = mem_alloc(sizeof(*e)))) {
        return NULL;
    }
    http_parser_start(&e->parser, &s->options, &s->stats.body_bytes);
    e->server = s;
    e->connection = NULL;
    e->next_free = NULL;
    e->state = EXCHANGE_PARSING;
    e->is_head = e->chunked = e->close_after = e->told_gone = false;
    e->gone = e->writable = NULL;
    return e;
}

void http_exchange_give(struct http_exchange *e) {
    struct http_server *s = e->server;
    if (s->closed || s->free_count >= HTTP_EXCHANGES_KEPT) {
        http_parser_release(&e->parser);
        mem_free(e);
        http_server_unref(s);
        return;
    }
    http_parser_trim(&e->parser);
    e->next_free = s->free_exchanges;
    s->free_exchanges = e;
    s->free_count++;
}

/* --- The clockwork -------------------------------------------------------------------------------
 */

static void put_date(struct http_server *s) {
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = (time_t)(clock_wall_us() / 1000000);
    struct tm tm;
    if (!gmtime_r(&now, &tm)) return;
    int n = snprintf(s->date, sizeof(s->date), "Date: %.3s, %02d %.3s %d %02d:%02d:%02d GMT\r\n",
                     days + (size_t)tm.tm_wday * 3, tm.tm_mday, months + (size_t)tm.tm_mon * 3,
                     tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
    s->date_len = n > 0 ? (size_t)n : 0;
}

static void drain_check(struct http_server *s) {
    if (!s->draining || !s->drained || s->stats.connections > 0) return;
    void (*drained)(void *) = s->drained;
    s->drained = NULL;
    if (!s->closed) uv_unref((uv_handle_t *)&s->sweep);
    drained(s->drained_context);
}

static void close_all(struct http_server *s) {
    for (int wait = 0; wait < WAIT_COUNT; wait++)
        for (struct http_connection *c = s->waiting[wait].first; c; c = c->next)
            http_connection_close(c);
}

static void on_connection(uv_stream_t *stream, int code);

static void on_sweep(uv_timer_t *timer) {
    struct http_server *s = timer->data;
    int64_t now = (int64_t)uv_now(s->loop);
    put_date(s);
    for (int wait = 0; wait < WAIT_COUNT; wait++) {
        if (s->wait_ms[wait] == 0) continue;
        /* A connection that gets more time goes to the end of its list: so at most one turn. */
        struct http_connection *last = s->waiting[wait].last;
        struct http_connection *next = s->waiting[wait].first;
        for (struct http_connection *c = next; c && c->deadline_ms <= now; c = next) {
            next = c == last ? NULL : c->next;
            if (!c->closing) http_connection_expire(c);
        }
    }
    for (size_t i = 0; i < s->listener_count; i++)
        if (s->listeners[i]->pending) on_connection(&s->listeners[i]->uv.stream, 0);
    if (s->draining && now >= s->drain_deadline_ms) close_all(s);
    drain_check(s);
}

static int64_t sweep_interval(const struct http_server *s) {
    int64_t interval = HTTP_SWEEP_MS;
    for (int wait = 0; wait < WAIT_COUNT; wait++)
        if (s->wait_ms[wait] > 0 && s->wait_ms[wait] / 4 < interval)
            interval = s->wait_ms[wait] / 4;
    return interval < 5 ? 5 : interval;
}

/* --- Opening and closing -------------------------------------------------------------------------
 */

status http_server_open(uv_loop_t *loop, const struct http_options *options, http_handler handler,
                        void *context, struct http_server **out, struct error *err) {
    struct http_server *s = mem_alloc(sizeof(*s));
    if (!s) return error_set(err, ST_RETRY, "no memory for an HTTP server");
    s->loop = loop;
    if (options) s->options = *options;
    http_options_fill(&s->options);
    s->handler = handler;
    s->context = context;
    s->wait_ms[WAIT_TLS] = s->options.head_ms;
    s->wait_ms[WAIT_IDLE] = s->options.idle_ms;
    s->wait_ms[WAIT_HEAD] = s->options.head_ms;
    s->wait_ms[WAIT_BODY] = s->options.body_ms;
    s->wait_ms[WAIT_WRITE] = (s->options.write_stall_ms + HTTP_STALL_LOOKS - 1) / HTTP_STALL_LOOKS;
    s->wait_ms[WAIT_LINGER] = s->options.linger_ms;
    uint8_t seed[6];
    random_bytes(seed, sizeof(seed));
    struct buf prefix;
    buf_init_fixed(&prefix, s->id_prefix, sizeof(s->id_prefix));
    buf_put_hex(&prefix, seed, sizeof(seed));
    buf_init(&s->out, HTTP_ANSWER_HEAD_MAX);
    buf_init(&s->tls_out, SIZE_MAX / 2);
    put_date(s);
    uv_timer_init(loop, &s->sweep);
    s->sweep.data = s;
    uint64_t interval = (uint64_t)sweep_interval(s);
    uv_timer_start(&s->sweep, on_sweep, interval, interval);
    uv_unref(
        (uv_handle_t *)&s->sweep); /* without listeners and connections there is nothing to do */
    s->handles = 1;
    *out = s;
    return ST_OK;
}

void http_server_stats(const struct http_server *s, struct http_stats *out) { *out = s->stats; }

void http_server_unref(struct http_server *s) {
    if (!s->closed || s->handles > 0 || s->stats.exchanges > 0) return;
    while (s->free_exchanges) {
        struct http_exchange *e = s->free_exchanges;
        s->free_exchanges = e->next_free;
        http_parser_release(&e->parser);
        mem_free(e);
    }
    http_tls_release(s);
    buf_release(&s->out);
    buf_release(&s->tls_out);
    mem_free(s);
}

static void handle_gone(struct http_server *s) {
    s->handles--;
    if (s->closed && s->handles == 0 && s->on_closed) s->on_closed(s->closed_context);
    http_server_unref(s);
}

void http_connection_closed(struct http_connection *c) {
    struct http_server *s = c->server;
    http_connection_leave(c);
    mem_free(c->backlog);
    mem_free(c);
    s->stats.connections--;
    drain_check(s);
    handle_gone(s);
}

static void on_listener_closed(uv_handle_t *handle) {
    struct http_listener *l = (struct http_listener *)handle;
    struct http_server *s = l->server;
    mem_free(l);
    handle_gone(s);
}

static void on_sweep_closed(uv_handle_t *handle) { handle_gone(handle->data); }

static void stop_listening(struct http_server *s) {
    for (size_t i = 0; i < s->listener_count; i++)
        uv_close(&s->listeners[i]->uv.handle,
                 on_listener_closed); /* libuv removes a Unix socket's file */
    s->listener_count = 0;
}

void http_server_drain(struct http_server *s, int64_t deadline_ms, void (*done)(void *),
                       void *context) {
    if (s->closed || s->draining) return;
    s->draining = true;
    s->drained = done;
    s->drained_context = context;
    s->drain_deadline_ms = (int64_t)uv_now(s->loop) + deadline_ms;
    stop_listening(s);
    struct http_connection *next;
    for (struct http_connection *c = s->waiting[WAIT_IDLE].first; c; c = next) {
        next = c->next;
        if (!c->closing) http_connection_close(c);
    }
    uv_ref((uv_handle_t *)&s->sweep); /* `done` must be called, also if nothing else is left */
    uint64_t interval = (uint64_t)sweep_interval(s);
    uv_timer_start(&s->sweep, on_sweep, 0, interval < 100 ? interval : 100);
}

void http_server_close(struct http_server *s, void (*closed)(void *), void *context) {
    if (!s || s->closed) return;
    s->closed = true;
    s->draining = true;
    s->drained = NULL;
    s->on_closed = closed;
    s->closed_context = context;
    stop_listening(s);
    close_all(s);
    uv_close((uv_handle_t *)&s->sweep, on_sweep_closed);
}

/* --- Accepting -----------------------------------------------------------------------------------
 */

static void name_remote(struct http_connection *c, bool is_unix) {
    struct sockaddr_storage address;
    int len = sizeof(address);
    struct buf out;
    buf_init_fixed(&out, c->remote, sizeof(c->remote));
    if (is_unix) {
        buf_put(&out, STR("unix"));
    } else if (uv_tcp_getpeername(&c->uv.tcp, (struct sockaddr *)&address, &len) != 0 ||
               uv_ip_name((struct sockaddr *)&address, c->remote, sizeof(c->remote)) != 0) {
        buf_put(&out, STR("unknown"));
    }
}

/* Too many: says so if the socket takes it at once, and ends. */
static void turn_away(struct http_connection *c, bool tls) {
    struct http_server *s = c->server;
    s->stats.refused[HTTP_TOO_MANY_CONNECTIONS]++;
    char mem[HTTP_PROBLEM_MAX];
    struct buf body;
    buf_init_fixed(&body, mem, sizeof(mem));
    http_problem(s, HTTP_TOO_MANY_CONNECTIONS, "too many connections", &body);
    char head[HTTP_PROBLEM_MAX + 256];
    int n =
        snprintf(head, sizeof(head),
                 "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
                 "Retry-After: 1\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%.*s",
                 body.len, (int)body.len, mem);
    uv_buf_t buf = uv_buf_init(head, (unsigned)n);
    if (!tls) uv_try_write(&c->uv.stream, &buf, 1);
    http_connection_open(c);
    http_connection_close(c);
}

static void on_connection(uv_stream_t *stream, int code) {
    struct http_listener *l = (struct http_listener *)stream;
    struct http_server *s = l->server;
    if (code < 0) return;
    struct http_connection *c = mem_alloc(sizeof(*c));
    l->pending = !c;
    if (!c)
        return; /* libuv accepts no other before this one is taken: the next sweep tries again */
    c->server = s;
    int result =
        l->is_unix ? uv_pipe_init(s->loop, &c->uv.pipe, 0) : uv_tcp_init(s->loop, &c->uv.tcp);
    ASSERT(result == 0); /* without a family they only fill in the struct */
    s->handles++;
    s->stats.connections++;
    s->stats.connections_total++;
    if (uv_accept(stream, &c->uv.stream) != 0) {
        http_connection_open(c);
        http_connection_close(c);
        return;
    }
    if (s->stats.connections > s->options.connections_max) {
        turn_away(c, l->tls);
        return;
    }
    if (!l->is_unix) {
        uv_tcp_nodelay(&c->uv.tcp, 1);
        uv_tcp_keepalive(&c->uv.tcp, 1, 60); /* finds peers that are gone without a word */
    }
    name_remote(c, l->is_unix);
    bool ready = !l->tls || http_tls_attach(c);
    http_connection_open(c);
    if (!ready) http_connection_close(c);
}

/* --- Listening -----------------------------------------------------------------------------------
 */

static status listener_new(struct http_server *s, bool is_unix, bool tls,
                           struct http_listener **out, struct error *err) {
    if (s->listener_count == HTTP_LISTENERS_MAX)
        return error_set(err, ST_LIMIT, "at most %d addresses to listen on", HTTP_LISTENERS_MAX);
    if (s->draining) return error_set(err, ST_INVALID, "the HTTP server is stopping");
    if (tls && !s->tls_context)
        return error_at(err, REASON_TLS_NOT_LOADED, "", "no certificate was loaded");
    struct http_listener *l = mem_alloc(sizeof(*l));
    if (!l) return error_set(err, ST_RETRY, "no memory for a listener");
    l->server = s;
    l->tls = tls;
    l->is_unix = is_unix;
    int code = is_unix ? uv_pipe_init(s->loop, &l->uv.pipe, 0) : uv_tcp_init(s->loop, &l->uv.tcp);
    if (code != 0) {
        mem_free(l);
        return error_set(err, ST_RETRY, "could not make a socket: %s", uv_strerror(code));
    }
    s->handles++;
    *out = l;
    return ST_OK;
}

/* Begins to listen, or gives the listener up and says why. */
static status listener_start(struct http_listener *l, int code, const char *what, str where,
                             struct error *err) {
    struct http_server *s = l->server;
    if (code == 0) code = uv_listen(&l->uv.stream, HTTP_LISTEN_BACKLOG, on_connection);
    if (code == 0) {
        s->listeners[s->listener_count++] = l;
        return ST_OK;
    }
    uv_close(&l->uv.handle, on_listener_closed);
    return error_as(err, code == UV_EINVAL ? ST_INVALID : ST_RETRY, REASON_LISTEN_FAILED, "",
                    "could not listen on %s \"%.*s\": %s", what, STR_ARG(where), uv_strerror(code));
}

static bool parse_address(str host, int port, struct sockaddr_storage *out) {
    char text[HTTP_REMOTE_MAX];
    if (http_name_eq(host, STR("localhost"))) host = STR("127.0.0.1");
    if (host.len > 2 && host.ptr[0] == '[' && host.ptr[host.len - 1] == ']')
        host = str_n(host.ptr + 1, host.len - 2);
    if (host.len >= sizeof(text)) return false;
    memcpy(text, host.ptr, host.len);
    text[host.len] = 0;
    return uv_ip4_addr(text, port, (struct sockaddr_in *)out) == 0 ||
           uv_ip6_addr(text, port, (struct sockaddr_in6 *)out) == 0;
}

status http_listen_tcp(struct http_server *s, str host, int port, bool tls, int *bound,
                       struct error *err) {
    struct sockaddr_storage address = {0};
    if (port < 0 || port > 65535)
        return error_set(err, ST_INVALID, "port %d is not between 0 and 65535", port);
    if (!parse_address(host, port, &address))
        return error_set(err, ST_INVALID, "\"%.*s\" is not an IP address", STR_ARG(host));
    struct http_listener *l = NULL;
    status st = listener_new(s, false, tls, &l, err);
    if (!l) return st;
    int code = uv_tcp_bind(&l->uv.tcp, (struct sockaddr *)&address, 0);
    st = listener_start(l, code, "address", host, err);
    if (st != ST_OK) return st;
    int len = sizeof(address);
    if (bound && uv_tcp_getsockname(&l->uv.tcp, (struct sockaddr *)&address, &len) == 0)
        *bound = ntohs(((struct sockaddr_in *)&address)->sin_port); /* (the same place in IPv6) */
    return ST_OK;
}

/* A socket file that nobody listens on is left over from a crash. Anything else stays. */
static bool socket_stale(const struct sockaddr_un *address) {
    struct stat info;
    if (lstat(address->sun_path, &info) != 0 || !S_ISSOCK(info.st_mode)) return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    bool refused = connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 &&
                   errno == ECONNREFUSED;
    close(fd);
    return refused;
}

status http_listen_unix(struct http_server *s, str path, unsigned mode, struct error *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path.len == 0 || path.len >= sizeof(address.sun_path))
        return error_set(err, ST_INVALID, "the path of a Unix socket has 1 to %zu bytes",
                         sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, path.ptr, path.len);
    struct http_listener *l = NULL;
    status st = listener_new(s, true, false, &l, err);
    if (!l) return st;
    if (socket_stale(&address)) unlink(address.sun_path);
    int code = uv_pipe_bind(&l->uv.pipe, address.sun_path);
    /* Nobody can connect before it listens, so the mode is right from the start. */
    if (code == 0 && chmod(address.sun_path, mode) != 0) code = uv_translate_sys_error(errno);
    return listener_start(l, code, "socket", path, err);
}

status http_listen_fd(struct http_server *s, int fd, bool tls, struct error *err) {
    int value = 0;
    socklen_t len = sizeof(value);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &len) != 0 || !value)
        return error_set(err, ST_INVALID, "descriptor %d is not a listening socket", fd);
    int domain = 0;
    len = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) != 0 ||
        (domain != AF_UNIX && domain != AF_INET && domain != AF_INET6))
        return error_set(err, ST_INVALID, "descriptor %d is no TCP or Unix socket", fd);
    struct http_listener *l = NULL;
    status st = listener_new(s, domain == AF_UNIX, tls, &l, err);
    if (!l) return st;
    int code = l->is_unix ? uv_pipe_open(&l->uv.pipe, fd) : uv_tcp_open(&l->uv.tcp, fd);
    return listener_start(l, code, "descriptor", STR(""), err);
}
