/* net/grpc_conn.c: one connection of a gRPC channel, from the name of a host to its last byte.
 *
 * It is ready when the server's SETTINGS came, not before: whoever speaks another protocol is found
 * out while calls still wait, and the number of streams that the server takes is known. */
#include <openssl/ssl.h>

#include "net/grpc_impl.h"

static void conn_free(struct grpc_conn *conn) {
    struct grpc *grpc = conn->grpc;
    ASSERT(conn->state == CONN_CLOSED && !conn->streams.first);
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        grpc->conns = conn->next;
    if (conn->next) conn->next->prev = conn->prev;
    nghttp2_session_del(conn->session);
    SSL_free(conn->ssl);
    buf_release(&conn->out);
    mem_free(conn);
    grpc_unref(grpc);
}

/* The loop must have given back everything first. */
static void free_if_done(struct grpc_conn *conn) {
    if (conn->state == CONN_CLOSED && !conn->tcp_open && !conn->looking) conn_free(conn);
}

static void try_next(struct grpc_conn *conn);

static void on_tcp_closed(uv_handle_t *handle) {
    struct grpc_conn *conn = handle->data;
    struct grpc *grpc = conn->grpc;
    conn->tcp_open = false;
    if (conn->state == CONN_CLOSED) {
        free_if_done(conn);
        return;
    }
    try_next(conn);
    grpc_settle(grpc);
}

static void close_tcp(struct grpc_conn *conn) {
    uv_handle_t *handle = (uv_handle_t *)&conn->tcp;
    if (conn->tcp_open && !uv_is_closing(handle)) uv_close(handle, on_tcp_closed);
}

void grpc_conn_close(struct grpc_conn *conn) {
    if (conn->state == CONN_CLOSED) return;
    ASSERT(!conn->streams.first);
    if (conn->grpc->current == conn) conn->grpc->current = NULL;
    conn->state = CONN_CLOSED;
    if (conn->looking) (void)uv_cancel((uv_req_t *)&conn->lookup); /* or it comes by itself */
    close_tcp(conn);
    free_if_done(conn);
}

/* A server that sends calls away before the first one could be made is as good as none: without a
 * pause we would come back as fast as it says goodbye. */
static bool was_of_no_use(const struct grpc_conn *conn) {
    return conn->grpc->current == conn && !conn->served && conn->grpc->waiting.first;
}

void grpc_conn_leave(struct grpc_conn *conn) {
    if (conn->state == CONN_CLOSED) return;
    if (was_of_no_use(conn)) grpc_connect_failed(conn->grpc, "the server said goodbye at once");
    if (conn->grpc->current == conn) conn->grpc->current = NULL;
    conn->state = CONN_LEAVING;
    grpc_soon(conn->grpc);
}

void grpc_conn_lost(struct grpc_conn *conn, const char *why) {
    struct grpc *grpc = conn->grpc;
    if (conn->state == CONN_CLOSED) return;
    bool failed = conn->state < CONN_READY || was_of_no_use(conn);
    if (grpc->current == conn) grpc->current = NULL;
    for (struct grpc_call *call; (call = conn->streams.first);) {
        call->conn = NULL;
        conn->stream_count--;
        grpc_call_end(call, GRPC_UNAVAILABLE, "the connection to %.*s was lost: %s",
                      STR_ARG(grpc->target), why);
    }
    if (failed) grpc_connect_failed(grpc, why);
    grpc_conn_close(conn);
}

/* ---- bytes ---- */

struct block {
    uv_write_t request;
    char bytes[];
};

static void on_written(uv_write_t *request, int code) {
    struct grpc_conn *conn = request->handle->data;
    mem_free(request); /* its block, whose first member it is */
    if (conn->state == CONN_CLOSED) return;
    if (code < 0) grpc_conn_lost(conn, uv_strerror(code));
    grpc_settle(conn->grpc);
}

static bool write_later(struct grpc_conn *conn, str bytes) {
    struct block *block = mem_alloc(sizeof *block + bytes.len);
    if (!block) return false;
    memcpy(block->bytes, bytes.ptr, bytes.len);
    uv_buf_t rest = uv_buf_init(block->bytes, (unsigned)bytes.len);
    if (uv_write(&block->request, (uv_stream_t *)&conn->tcp, &rest, 1, on_written) == 0)
        return true;
    mem_free(block);
    return false;
}

static size_t unsent(const struct grpc_conn *conn) {
    return uv_stream_get_write_queue_size((const uv_stream_t *)&conn->tcp);
}

bool grpc_conn_write(struct grpc_conn *conn, str bytes) {
    if (bytes.len == 0) return true;
    if (unsent(conn) == 0) {
        uv_buf_t buf = uv_buf_init((char *)bytes.ptr, (unsigned)bytes.len);
        int n = uv_try_write((uv_stream_t *)&conn->tcp, &buf, 1);
        if (n < 0 && n != UV_EAGAIN) {
            grpc_conn_lost(conn, uv_strerror(n));
            return false;
        }
        if (n > 0) bytes = str_from(bytes, (size_t)n);
    }
    if (bytes.len == 0 || write_later(conn, bytes)) return true;
    grpc_conn_lost(conn, "out of memory");
    return false;
}

static bool send_gathered(struct grpc_conn *conn) {
    if (conn->ssl) return grpc_tls_send(conn);
    bool sent = grpc_conn_write(conn, buf_str(&conn->out));
    buf_clear(&conn->out);
    return sent;
}

static size_t gathered(const struct grpc_conn *conn) {
    return conn->ssl ? BIO_ctrl_pending(conn->tls_out) : conn->out.len;
}

static bool gather(struct grpc_conn *conn, str bytes) {
    if (conn->ssl) return grpc_tls_put(conn, bytes);
    buf_put(&conn->out, bytes);
    return !conn->out.full;
}

/* All that the session wants to say, as long as the socket takes it. */
static bool flush_session(struct grpc_conn *conn) {
    while (unsent(conn) < GRPC_UNSENT_MAX) {
        const uint8_t *bytes;
        ssize_t n = nghttp2_session_mem_send(conn->session, &bytes);
        if (n == 0) break;
        if (n < 0 || !gather(conn, str_n(bytes, (size_t)n))) {
            grpc_conn_lost(conn, n < 0 ? nghttp2_strerror((int)n) : "out of memory");
            return false;
        }
        if (gathered(conn) >= GRPC_WRITE_BYTES && !send_gathered(conn)) return false;
    }
    return true;
}

void grpc_conn_flush(struct grpc_conn *conn) {
    if (conn->state < CONN_TLS || conn->state == CONN_CLOSED) return;
    if (conn->session && !flush_session(conn)) return;
    if (!send_gathered(conn) || !conn->session) return;
    /* After an error of protocol it has said so, and nothing more will come. */
    if (!nghttp2_session_want_read(conn->session) && !nghttp2_session_want_write(conn->session))
        grpc_conn_lost(conn, conn->why[0] ? conn->why : "the protocol was violated");
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
    struct grpc_conn *conn = handle->data;
    UNUSED(suggested);
    *buf = uv_buf_init(conn->grpc->read, GRPC_READ_BYTES);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    struct grpc_conn *conn = stream->data;
    struct grpc *grpc = conn->grpc;
    if (n == 0 || conn->state == CONN_CLOSED) return;
    if (n < 0) {
        grpc_conn_lost(conn, n == UV_EOF ? "the server closed it" : uv_strerror((int)n));
    } else {
        str bytes = str_n(buf->base, (size_t)n);
        conn->heard_ms = grpc_now(grpc);
        conn->pinged_ms = 0;
        if (!(conn->ssl ? grpc_tls_take(conn, bytes) : grpc_session_take(conn, bytes))) {
            if (conn->ssl) (void)grpc_tls_send(conn); /* an alert that says why */
            grpc_conn_lost(conn, conn->why);
        }
    }
    grpc_settle(grpc);
}

/* ---- connecting ---- */

void grpc_conn_connected(struct grpc_conn *conn) {
    conn->state = CONN_SETTINGS;
    if (!grpc_session_open(conn)) grpc_conn_lost(conn, "out of memory");
}

static void on_connect(uv_connect_t *request, int code) {
    struct grpc_conn *conn = request->data;
    if (conn->state == CONN_CLOSED || uv_is_closing((uv_handle_t *)&conn->tcp)) return;
    if (code < 0) {
        conn->connect_error = code;
        close_tcp(conn); /* and then the next address */
        return;
    }
    (void)uv_tcp_nodelay(&conn->tcp, 1);
    conn->heard_ms = grpc_now(conn->grpc);
    code = uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read);
    if (code < 0) {
        grpc_conn_lost(conn, uv_strerror(code));
    } else if (!conn->grpc->tls) {
        grpc_conn_connected(conn);
    } else {
        conn->state = CONN_TLS;
        if (!grpc_tls_attach(conn)) grpc_conn_lost(conn, conn->why);
    }
    grpc_settle(conn->grpc);
}

/* Each address gets its share of the time that is left, so that one that never answers does not
 * hide the next. */
static void try_next(struct grpc_conn *conn) {
    struct grpc *grpc = conn->grpc;
    uint64_t now_ms = grpc_now(grpc);
    size_t left = conn->address_count - conn->address_next;
    conn->state = CONN_CONNECT;
    if (left == 0 || now_ms >= conn->deadline_ms) {
        int code = conn->connect_error ? conn->connect_error : UV_ETIMEDOUT;
        grpc_conn_lost(conn, uv_strerror(code));
        return;
    }
    int code = uv_tcp_init(grpc->loop, &conn->tcp);
    if (code < 0) {
        grpc_conn_lost(conn, uv_strerror(code));
        return;
    }
    conn->tcp.data = conn;
    conn->tcp_open = true;
    conn->connect.data = conn;
    conn->try_deadline_ms = now_ms + (conn->deadline_ms - now_ms) / left;
    grpc_wake_at(grpc, conn->try_deadline_ms);
    const struct sockaddr *address = (struct sockaddr *)&conn->addresses[conn->address_next++];
    code = uv_tcp_connect(&conn->connect, &conn->tcp, address, on_connect);
    if (code < 0) {
        conn->connect_error = code;
        close_tcp(conn);
    }
}

static void on_lookup(uv_getaddrinfo_t *lookup, int code, struct addrinfo *found) {
    struct grpc_conn *conn = lookup->data;
    struct grpc *grpc = conn->grpc;
    conn->looking = false;
    for (struct addrinfo *a = found; a && conn->address_count < GRPC_ADDRESSES_MAX;
         a = a->ai_next) {
        bool known = a->ai_family == AF_INET || a->ai_family == AF_INET6;
        if (known && a->ai_addrlen <= sizeof conn->addresses[0])
            memcpy(&conn->addresses[conn->address_count++], a->ai_addr, a->ai_addrlen);
    }
    uv_freeaddrinfo(found);
    if (conn->state == CONN_CLOSED) {
        free_if_done(conn);
        return;
    }
    if (code < 0 || conn->address_count == 0) {
        grpc_conn_lost(conn, uv_strerror(code < 0 ? code : UV_EAI_NONAME));
    } else {
        try_next(conn);
    }
    grpc_settle(grpc);
}

static bool parse_address(struct grpc_conn *conn, int port) {
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    const char *host = conn->grpc->host.ptr;
    if (uv_ip4_addr(host, port, &in) == 0) {
        memcpy(&conn->addresses[0], &in, sizeof in);
    } else if (uv_ip6_addr(host, port, &in6) == 0) {
        memcpy(&conn->addresses[0], &in6, sizeof in6);
    } else {
        return false;
    }
    conn->address_count = 1;
    return true;
}

bool grpc_conn_open(struct grpc *grpc) {
    struct grpc_conn *conn = mem_alloc(sizeof *conn);
    if (!conn) {
        grpc_connect_failed(grpc, "out of memory");
        return false;
    }
    conn->grpc = grpc;
    conn->next = grpc->conns;
    if (conn->next) conn->next->prev = conn;
    grpc->conns = conn;
    grpc->handles++;
    grpc->current = conn;
    buf_init(&conn->out, (size_t)2 * GRPC_WRITE_BYTES);
    conn->deadline_ms = grpc_now(grpc) + grpc->connect_ms;
    grpc_wake_at(grpc, conn->deadline_ms);
    int64_t port = 0;
    (void)str_to_int(str_c(grpc->port), &port);
    if (parse_address(conn, (int)port)) {
        try_next(conn);
        return grpc->current != NULL;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    conn->lookup.data = conn;
    int code =
        uv_getaddrinfo(grpc->loop, &conn->lookup, on_lookup, grpc->host.ptr, grpc->port, &hints);
    conn->looking = code == 0;
    if (code < 0) grpc_conn_lost(conn, uv_strerror(code));
    return code == 0;
}

/* ---- time ---- */

static bool is_used(const struct grpc_conn *conn) {
    return (conn->state == CONN_READY || conn->state == CONN_LEAVING) && conn->streams.first;
}

void grpc_conn_check(struct grpc_conn *conn, uint64_t now_ms) {
    if (conn->state < CONN_READY && now_ms >= conn->deadline_ms) {
        grpc_conn_lost(conn, uv_strerror(UV_ETIMEDOUT));
    } else if (conn->state == CONN_CONNECT && now_ms >= conn->try_deadline_ms) {
        conn->connect_error = UV_ETIMEDOUT;
        close_tcp(conn);
    } else if (is_used(conn) && now_ms >= grpc_conn_wake(conn)) {
        if (conn->pinged_ms > 0) {
            grpc_conn_lost(conn, "it did not answer a PING");
        } else if (grpc_session_ping(conn)) {
            conn->pinged_ms = now_ms;
        } else {
            grpc_conn_lost(conn, "out of memory");
        }
    }
}

uint64_t grpc_conn_wake(const struct grpc_conn *conn) {
    const struct grpc *grpc = conn->grpc;
    if (conn->state == CONN_CONNECT && !uv_is_closing((const uv_handle_t *)&conn->tcp))
        return conn->try_deadline_ms;
    if (conn->state < CONN_READY) return conn->deadline_ms;
    if (!is_used(conn)) return UINT64_MAX;
    if (conn->pinged_ms > 0) return conn->pinged_ms + grpc->ping_timeout_ms;
    return conn->heard_ms + grpc->ping_ms;
}
