/* net/grpc.c: the channel and its calls. See the header, and grpc_impl.h for how it works. */
#include "net/grpc.h"

#include <openssl/ssl.h>
#include <stdarg.h>

#include "net/grpc_impl.h"

enum {
    PATH_BYTES_MAX = 512,
    HEADERS_MAX = 32,              /* that a channel adds to each call */
    OPTION_BYTES_MAX = 256 * 1024, /* its options, copied */
    HEADER_BYTES_MAX = 16 * 1024,  /* its headers and the authorization together */
};

uint64_t grpc_now(const struct grpc *grpc) {
    uv_update_time(grpc->loop); /* after a long callback the loop's clock is behind */
    return uv_now(grpc->loop);
}

/* ---- lists of calls ---- */

static void list_remove(struct grpc_call *call) {
    struct grpc_list *list = call->list;
    if (!list) return;
    if (call->prev)
        call->prev->next = call->next;
    else
        list->first = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        list->last = call->prev;
    call->next = call->prev = NULL;
    call->list = NULL;
}

void grpc_call_move(struct grpc_call *call, struct grpc_list *to) {
    list_remove(call);
    call->prev = to->last;
    if (to->last)
        to->last->next = call;
    else
        to->first = call;
    to->last = call;
    call->list = to;
}

void grpc_call_forget_answer(struct grpc_call *call) {
    call->http_status = 0;
    call->status = -1;
    call->is_grpc = false;
    call->prefix_len = 0;
    call->header_bytes = 0;
    ASSERT(call->grpc->bytes >= call->reserved);
    call->grpc->bytes -= call->reserved;
    call->reserved = 0;
    buf_release(&call->body);
    buf_release(&call->message);
    buf_release(&call->details);
}

static void call_free(struct grpc_call *call) {
    struct grpc *grpc = call->grpc;
    if (call->conn) grpc_session_drop(call, NGHTTP2_CANCEL);
    list_remove(call);
    grpc_call_forget_answer(call);
    ASSERT(grpc->call_count > 0 && grpc->bytes >= call->request_len);
    grpc->call_count--;
    grpc->bytes -= call->request_len;
    mem_free(call);
}

/* ---- ends of calls ---- */

void grpc_call_ended(struct grpc_call *call, int code) {
    ASSERT(call->conn == NULL);
    call->code = code;
    grpc_call_move(call, &call->grpc->ended);
    grpc_soon(call->grpc);
}

void grpc_call_end(struct grpc_call *call, int code, const char *fmt, ...) {
    char text[GRPC_WHY_MAX + 100];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    buf_clear(&call->message);
    buf_clear(&call->details);
    buf_put_c(&call->message, text);
    grpc_call_ended(call, code);
}

static void tell(struct grpc *grpc) {
    grpc->telling = true;
    for (struct grpc_call *call; (call = grpc->ended.first);) {
        bool ok = call->code == GRPC_OK;
        struct grpc_answer answer = {
            .code = call->code,
            .message = ok || call->message.len == 0 ? STR("") : buf_str(&call->message),
            .details = !ok && call->details.len > 0 ? buf_str(&call->details) : STR_NONE,
            .body = ok && call->body.len > 0 ? buf_str(&call->body) : STR(""),
        };
        /* Gone for the caller, but its memory is borrowed. */
        list_remove(call);
        grpc->call_count--;
        call->done(call->context, &answer);
        grpc->call_count++;
        call_free(call);
    }
    grpc->telling = false;
}

static void call_expire(struct grpc_call *call) {
    bool waiting = call->list == &call->grpc->waiting;
    if (call->conn) grpc_session_drop(call, NGHTTP2_CANCEL);
    if (waiting) {
        grpc_call_end(call, GRPC_DEADLINE_EXCEEDED, "%.*s could not take the call in %lld ms",
                      STR_ARG(call->grpc->target), (long long)call->timeout_ms);
    } else {
        grpc_call_end(call, GRPC_DEADLINE_EXCEEDED, "no answer of %.*s in %lld ms",
                      STR_ARG(call->grpc->target), (long long)call->timeout_ms);
    }
}

/* ---- connecting ---- */

static void fail_waiting(struct grpc *grpc) {
    while (grpc->waiting.first)
        grpc_call_end(grpc->waiting.first, GRPC_UNAVAILABLE, "%s", grpc->reason);
}

void grpc_connect_failed(struct grpc *grpc, const char *why) {
    double ms = GRPC_BACKOFF_MS;
    for (int i = 0; i < grpc->failures && ms < GRPC_BACKOFF_MS_MAX; i++)
        ms *= 1.7;
    if (ms > GRPC_BACKOFF_MS_MAX) ms = GRPC_BACKOFF_MS_MAX;
    /* A fifth more or less, so that many who lost the same server do not come back together. */
    ms *= 0.8 + 0.4 * (double)(uv_hrtime() / 1000 % 1000) / 1000;
    if (grpc->failures < INT32_MAX) grpc->failures++;
    grpc->retry_ms = grpc_now(grpc) + (uint64_t)ms;
    (void)snprintf(grpc->reason, sizeof grpc->reason, "could not connect to %.*s: %s",
                   STR_ARG(grpc->target), why);
    fail_waiting(grpc);
}

/* Gives waiting calls to the connection, or opens one. */
static void place_waiting(struct grpc *grpc) {
    while (grpc->waiting.first) {
        struct grpc_conn *conn = grpc->current;
        if (conn) {
            if (conn->state != CONN_READY || !grpc_session_has_room(conn)) return;
            if (!grpc_session_submit(conn, grpc->waiting.first)) grpc_conn_leave(conn);
        } else if (grpc_now(grpc) < grpc->retry_ms) {
            fail_waiting(grpc);
        } else if (!grpc_conn_open(grpc)) {
            return;
        }
    }
}

/* ---- turns of the loop ---- */

static void on_soon(uv_idle_t *idle) {
    struct grpc *grpc = idle->data;
    uv_idle_stop(idle);
    grpc_settle(grpc);
}

void grpc_soon(struct grpc *grpc) {
    if (!grpc->closing) (void)uv_idle_start(&grpc->soon, on_soon); /* cannot fail */
}

void grpc_settle(struct grpc *grpc) {
    if (grpc->closing) return;
    place_waiting(grpc);
    for (struct grpc_conn *conn = grpc->conns; conn; conn = conn->next) {
        grpc_conn_flush(conn);
        if (conn->state == CONN_LEAVING && !conn->streams.first) grpc_conn_close(conn);
    }
    tell(grpc);
}

static uint64_t earliest(const struct grpc_list *list, uint64_t at_ms) {
    for (const struct grpc_call *call = list->first; call; call = call->next) {
        if (call->deadline_ms < at_ms) at_ms = call->deadline_ms;
    }
    return at_ms;
}

static void expire(struct grpc_list *list, uint64_t now_ms) {
    for (struct grpc_call *call = list->first, *next; call; call = next) {
        next = call->next;
        if (call->deadline_ms <= now_ms) call_expire(call);
    }
}

static void on_timer(uv_timer_t *timer) {
    struct grpc *grpc = timer->data;
    uint64_t now_ms = grpc_now(grpc);
    grpc->wake_ms = 0;
    expire(&grpc->waiting, now_ms);
    for (struct grpc_conn *conn = grpc->conns; conn; conn = conn->next) {
        expire(&conn->streams, now_ms);
        grpc_conn_check(conn, now_ms);
    }
    uint64_t at_ms = earliest(&grpc->waiting, UINT64_MAX);
    for (const struct grpc_conn *conn = grpc->conns; conn; conn = conn->next) {
        at_ms = earliest(&conn->streams, at_ms);
        uint64_t wake_ms = grpc_conn_wake(conn);
        if (wake_ms < at_ms) at_ms = wake_ms;
    }
    if (at_ms != UINT64_MAX) grpc_wake_at(grpc, at_ms);
    grpc_settle(grpc);
}

/* Deadlines that went away are not taken back: the timer looks once too often. */
void grpc_wake_at(struct grpc *grpc, uint64_t at_ms) {
    if (grpc->wake_ms != 0 && grpc->wake_ms <= at_ms) return;
    uint64_t now_ms = grpc_now(grpc);
    grpc->wake_ms = at_ms;
    (void)uv_timer_start(&grpc->timer, on_timer, at_ms > now_ms ? at_ms - now_ms : 1, 0);
}

/* ---- open and close ---- */

static bool valid_headers(const struct grpc_options *o) {
    size_t bytes = o->authorization.len + o->user_agent.len;
    if (o->header_count > HEADERS_MAX) return false;
    if (!grpc_value_valid(o->authorization) || !grpc_value_valid(o->user_agent)) return false;
    for (size_t i = 0; i < o->header_count; i++) {
        if (!grpc_header_valid(&o->headers[i])) return false;
        bytes += o->headers[i].name.len + o->headers[i].value.len;
    }
    return bytes <= HEADER_BYTES_MAX;
}

static bool copy_options(struct grpc *grpc, const struct grpc_options *o, str host, int port) {
    struct arena *a = &grpc->arena;
    str name = o->server_name.len > 0 ? o->server_name : host;
    arena_init(a, 1024, OPTION_BYTES_MAX);
    grpc->header_count = o->header_count;
    grpc->headers = arena_try(a, sizeof(struct grpc_header) * (o->header_count + 1));
    bool ok = grpc->headers && arena_try_str(a, o->target, &grpc->target) &&
              arena_try_str(a, host, &grpc->host) && arena_try_str(a, name, &grpc->server_name) &&
              arena_try_str(a, o->authorization, &grpc->authorization) &&
              arena_try_str(a, o->user_agent, &grpc->user_agent);
    for (size_t i = 0; i < o->header_count && ok; i++) {
        ok = arena_try_str(a, o->headers[i].name, &grpc->headers[i].name) &&
             arena_try_str(a, o->headers[i].value, &grpc->headers[i].value);
    }
    (void)snprintf(grpc->port, sizeof grpc->port, "%d", port);
    /* Behind a name of another's, the server is spoken to by its own. */
    grpc->authority = o->tls && o->server_name.len > 0 ? grpc->server_name : grpc->target;
    return ok;
}

static void channel_free(struct grpc *grpc) {
    SSL_CTX_free(grpc->tls);
    arena_release(&grpc->arena);
    mem_free(grpc);
}

status grpc_open(uv_loop_t *loop, const struct grpc_options *options, struct grpc **out,
                 struct error *err) {
    str host;
    int port;
    if (!grpc_target_parse(options->target, &host, &port) ||
        !grpc_value_valid(options->server_name) || options->server_name.len > 255) {
        return error_at(err, REASON_GRPC_TARGET_INVALID, "",
                        "\"%.*s\" is not a host, a colon and a port", STR_ARG(options->target));
    }
    if (!valid_headers(options)) {
        return error_at(err, REASON_GRPC_HEADER_INVALID, "",
                        "a header for \"%.*s\" has a name or a value that it cannot have",
                        STR_ARG(options->target));
    }
    struct grpc *grpc = mem_alloc(sizeof *grpc);
    if (!grpc) return error_set(err, ST_RETRY, "could not open a gRPC channel: out of memory");
    status st = ST_OK;
    if (!copy_options(grpc, options, host, port))
        st = error_set(err, ST_RETRY, "could not open a gRPC channel: out of memory");
    if (st == ST_OK && options->tls) st = grpc_tls_open(grpc, options, err);
    if (st != ST_OK) {
        channel_free(grpc);
        return st;
    }
    grpc->loop = loop;
    grpc->ping_ms = GRPC_PING_MS;
    grpc->ping_timeout_ms = GRPC_PING_TIMEOUT_MS;
    grpc->connect_ms = GRPC_CONNECT_MS;
    (void)uv_idle_init(loop, &grpc->soon); /* neither can fail */
    (void)uv_timer_init(loop, &grpc->timer);
    grpc->soon.data = grpc->timer.data = grpc;
    grpc->handles = 2;
    *out = grpc;
    return ST_OK;
}

void grpc_unref(struct grpc *grpc) {
    ASSERT(grpc->handles > 0);
    if (--grpc->handles == 0 && grpc->closing) channel_free(grpc);
}

static void on_closed(uv_handle_t *handle) { grpc_unref(handle->data); }

void grpc_close(struct grpc *grpc) {
    if (!grpc) return;
    ASSERT(!grpc->telling && !grpc->closing);
    grpc->closing = true;
    while (grpc->waiting.first)
        call_free(grpc->waiting.first);
    while (grpc->ended.first)
        call_free(grpc->ended.first);
    for (struct grpc_conn *conn = grpc->conns; conn; conn = conn->next) {
        while (conn->streams.first)
            call_free(conn->streams.first);
        grpc_conn_close(conn);
    }
    ASSERT(grpc->call_count == 0 && grpc->bytes == 0);
    uv_close((uv_handle_t *)&grpc->soon, on_closed);
    uv_close((uv_handle_t *)&grpc->timer, on_closed);
}

/* ---- calls ---- */

static status check_request(const struct grpc *grpc, const struct grpc_request *r,
                            struct error *err) {
    bool ok = r->path.len > 1 && r->path.len <= PATH_BYTES_MAX && r->path.ptr[0] == '/' &&
              grpc_value_valid(r->path) && !str_has(r->path, ' ') && r->timeout_ms >= 0;
    if (!ok) return error_at(err, REASON_GRPC_REQUEST_INVALID, "", "no path of a method");
    if (r->body.len > GRPC_BYTES_MAX) {
        return error_at(err, REASON_GRPC_TOO_LARGE, "",
                        "a request of %zu bytes is larger than allowed", r->body.len);
    }
    if (grpc->call_count >= GRPC_CALLS_MAX) {
        return error_at(err, REASON_GRPC_BUSY, "", "%d calls are under way already",
                        GRPC_CALLS_MAX);
    }
    if (grpc->bytes + GRPC_PREFIX_BYTES + r->body.len > GRPC_MEMORY_MAX) {
        return error_at(err, REASON_GRPC_BUSY, "", "%zu bytes of calls are under way already",
                        grpc->bytes);
    }
    return ST_OK;
}

static void set_deadline(struct grpc_call *call, int64_t timeout_ms) {
    if (timeout_ms == 0) timeout_ms = GRPC_TIMEOUT_MS;
    if (timeout_ms > GRPC_TIMEOUT_MS_MAX) timeout_ms = GRPC_TIMEOUT_MS_MAX;
    int64_t grace_ms = timeout_ms / 10;
    if (grace_ms < GRPC_GRACE_MS_MIN) grace_ms = GRPC_GRACE_MS_MIN;
    if (grace_ms > GRPC_GRACE_MS_MAX) grace_ms = GRPC_GRACE_MS_MAX;
    call->timeout_ms = timeout_ms;
    call->expires_ms = grpc_now(call->grpc) + (uint64_t)timeout_ms;
    call->deadline_ms = call->expires_ms + (uint64_t)grace_ms;
    grpc_wake_at(call->grpc, call->deadline_ms);
}

static void copy_request(struct grpc_call *call, const struct grpc_request *r) {
    uint32_t len = (uint32_t)r->body.len;
    uint8_t prefix[GRPC_PREFIX_BYTES] = {0, (uint8_t)(len >> 24), (uint8_t)(len >> 16),
                                         (uint8_t)(len >> 8), (uint8_t)len};
    call->request = (char *)(call + 1);
    call->request_len = sizeof prefix + r->body.len;
    memcpy(call->request, prefix, sizeof prefix);
    if (r->body.len > 0) memcpy(call->request + sizeof prefix, r->body.ptr, r->body.len);
    memcpy(call->request + call->request_len, r->path.ptr, r->path.len);
    call->path = str_n(call->request + call->request_len, r->path.len);
}

status grpc_start(struct grpc *grpc, const struct grpc_request *request, grpc_done done,
                  void *context, struct grpc_call **out, struct error *err) {
    ASSERT(!grpc->closing && done != NULL);
    status st = check_request(grpc, request, err);
    if (st != ST_OK) return st;
    struct grpc_call *call =
        mem_alloc(sizeof *call + GRPC_PREFIX_BYTES + request->body.len + request->path.len);
    if (!call) return error_at(err, REASON_GRPC_FAILED, "", "gRPC call: out of memory");
    call->grpc = grpc;
    call->done = done;
    call->context = context;
    call->status = -1;
    call->bytes_max = request->bytes_max > 0 && request->bytes_max < GRPC_BYTES_MAX
                          ? request->bytes_max
                          : GRPC_BYTES_MAX;
    buf_init(&call->message, GRPC_ANSWER_HEADER_BYTES_MAX);
    buf_init(&call->details, GRPC_ANSWER_HEADER_BYTES_MAX);
    copy_request(call, request);
    grpc->call_count++;
    grpc->bytes += call->request_len;
    set_deadline(call, request->timeout_ms);
    grpc_call_move(call, &grpc->waiting);
    grpc_soon(grpc);
    if (out) *out = call;
    return ST_OK;
}

void grpc_cancel(struct grpc_call *call) {
    grpc_soon(call->grpc); /* the reset is to be sent */
    call_free(call);
}

size_t grpc_active(const struct grpc *grpc) { return grpc->call_count; }
