/* net/grpc_session.c: HTTP/2 by nghttp2: calls become streams, and frames become answers.
 *
 * nghttp2 knows a stream's call by its user data. A call leaves its stream when the server has said
 * everything, when it was reset, or when we no longer want it; what nghttp2 says of a stream
 * without a call is of no interest. */
#include "net/grpc_impl.h"

enum { NV_MAX = 48 };

/* ---- ends ---- */

static void leave_stream(struct grpc_call *call) {
    ASSERT(call->conn->stream_count > 0);
    (void)nghttp2_session_set_stream_user_data(call->conn->session, call->stream, NULL);
    call->conn->stream_count--;
    call->conn = NULL;
    call->stream = 0;
}

void grpc_session_drop(struct grpc_call *call, uint32_t error_code) {
    /* Without memory for the reset the stream stays until the connection ends; nobody waits. */
    if (!call->grpc->closing)
        (void)nghttp2_submit_rst_stream(call->conn->session, NGHTTP2_FLAG_NONE, call->stream,
                                        error_code);
    leave_stream(call);
}

/* Another connection gets it, or this one, if it may have new calls: the server has not looked at
 * it. Once, because a server that refuses everything would keep us going. */
static void start_again(struct grpc_call *call) {
    call->retried = true;
    call->request_sent = 0;
    grpc_call_forget_answer(call);
    grpc_call_move(call, &call->grpc->waiting);
    grpc_soon(call->grpc);
}

static void was_reset(struct grpc_call *call, uint32_t error_code) {
    leave_stream(call);
    if (error_code == NGHTTP2_REFUSED_STREAM && !call->retried) {
        start_again(call);
        return;
    }
    grpc_call_end(call, grpc_code_of_reset(error_code), "%.*s ended the call: %s",
                  STR_ARG(call->grpc->target), nghttp2_http2_strerror(error_code));
}

/* An answer that we do not want the rest of. */
static void refuse(struct grpc_call *call, int code, const char *why) {
    grpc_session_drop(call, NGHTTP2_CANCEL);
    grpc_call_end(call, code, "an answer of %.*s: %s", STR_ARG(call->grpc->target), why);
}

static void without_status(struct grpc_call *call) {
    if (call->http_status != 200) {
        grpc_call_end(call, grpc_code_of_http(call->http_status), "%.*s answered HTTP status %d",
                      STR_ARG(call->grpc->target), call->http_status);
    } else {
        grpc_call_end(call, GRPC_UNKNOWN, "an answer of %.*s: it ended without a grpc-status",
                      STR_ARG(call->grpc->target));
    }
}

/* The server has said everything. */
static void was_answered(struct grpc_call *call) {
    /* It need not have read everything. */
    if (call->request_sent < call->request_len)
        grpc_session_drop(call, NGHTTP2_NO_ERROR);
    else
        leave_stream(call);
    bool whole = call->prefix_len == GRPC_PREFIX_BYTES && call->body.len == call->body.max;
    if (call->status < 0) {
        without_status(call);
    } else if (call->status == GRPC_OK && !whole) {
        grpc_call_end(call, GRPC_INTERNAL, "an answer of %.*s: %s", STR_ARG(call->grpc->target),
                      call->prefix_len == 0 ? "it has no message" : "its message is cut off");
    } else if (call->status > GRPC_UNAUTHENTICATED && call->message.len == 0) {
        grpc_call_end(call, GRPC_UNKNOWN, "an answer of %.*s: grpc-status %d",
                      STR_ARG(call->grpc->target), call->status);
    } else {
        grpc_message_decode(&call->message);
        if (!grpc_base64_decode(&call->details)) buf_clear(&call->details);
        grpc_call_ended(call, call->status > GRPC_UNAUTHENTICATED ? GRPC_UNKNOWN : call->status);
    }
}

/* ---- answers ---- */

static struct grpc_call *call_of(nghttp2_session *session, int32_t stream) {
    return nghttp2_session_get_stream_user_data(session, stream);
}

static void put_header(struct buf *out, str value) {
    buf_clear(out);
    buf_put(out, value);
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name_ptr,
                     size_t name_len, const uint8_t *value_ptr, size_t value_len, uint8_t flags,
                     void *context) {
    struct grpc_call *call = call_of(session, frame->hd.stream_id);
    str name = str_n(name_ptr, name_len);
    str value = str_n(value_ptr, value_len);
    UNUSED(flags);
    UNUSED(context);
    if (!call) return 0;
    int64_t n = 0;
    call->header_bytes += name_len + value_len + 32; /* as HTTP/2 counts them */
    if (call->header_bytes > GRPC_ANSWER_HEADER_BYTES_MAX) {
        refuse(call, GRPC_RESOURCE_EXHAUSTED, "its headers are larger than allowed");
    } else if (str_eq(name, STR(":status"))) {
        call->http_status = str_to_int(value, &n) && n > 0 && n < 1000 ? (int)n : 0;
    } else if (str_eq(name, STR("content-type"))) {
        call->is_grpc = str_starts(value, STR("application/grpc"));
    } else if (str_eq(name, STR("grpc-status"))) {
        call->status = str_to_int(value, &n) && n >= 0 && n < INT32_MAX ? (int)n : GRPC_UNKNOWN;
    } else if (str_eq(name, STR("grpc-message"))) {
        put_header(&call->message, value);
    } else if (str_eq(name, STR("grpc-status-details-bin"))) {
        put_header(&call->details, value);
    }
    return 0;
}

/* The prefix is complete: how long a message may come? */
static void begin_message(struct grpc_call *call) {
    struct grpc *grpc = call->grpc;
    const uint8_t *p = call->prefix;
    size_t len = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | (size_t)p[4];
    if (p[0] != 0) {
        refuse(call, GRPC_INTERNAL, "it is compressed, which nobody asked for");
    } else if (len > call->bytes_max) {
        refuse(call, GRPC_RESOURCE_EXHAUSTED, "its message is larger than allowed");
    } else if (grpc->bytes + len > GRPC_MEMORY_MAX) {
        refuse(call, GRPC_RESOURCE_EXHAUSTED, "there is no room for it beside the others");
    } else {
        call->reserved = len;
        grpc->bytes += len;
        buf_init(&call->body, len);
    }
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *ptr,
                   size_t len, void *context) {
    struct grpc_call *call = call_of(session, stream);
    UNUSED(flags);
    UNUSED(context);
    if (!call || call->http_status != 200 || !call->is_grpc) return 0; /* a page of a proxy's */
    while (len > 0 && call->prefix_len < GRPC_PREFIX_BYTES) {
        call->prefix[call->prefix_len++] = *ptr++;
        len--;
        if (call->prefix_len == GRPC_PREFIX_BYTES) begin_message(call);
    }
    if (len == 0 || !call->conn) return 0; /* refused */
    if (len > call->body.max - call->body.len) {
        refuse(call, GRPC_INTERNAL, "there is more than one message");
        return 0;
    }
    buf_put(&call->body, str_n(ptr, len));
    if (call->body.full) refuse(call, GRPC_RESOURCE_EXHAUSTED, "there is no memory for it");
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *context) {
    struct grpc_conn *conn = context;
    switch (frame->hd.type) {
    case NGHTTP2_SETTINGS:
        if (conn->state != CONN_SETTINGS || frame->hd.flags & NGHTTP2_FLAG_ACK) break;
        conn->state = CONN_READY;
        break;
    case NGHTTP2_GOAWAY:
        grpc_conn_leave(conn);
        break;
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA: {
        struct grpc_call *call = call_of(session, frame->hd.stream_id);
        if (call && frame->hd.flags & NGHTTP2_FLAG_END_STREAM) was_answered(call);
        break;
    }
    default:
        break;
    }
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream, uint32_t error_code,
                           void *context) {
    struct grpc_call *call = call_of(session, stream);
    UNUSED(context);
    if (call) was_reset(call, error_code);
    return 0;
}

static int on_error(nghttp2_session *session, int code, const char *text, size_t len,
                    void *context) {
    struct grpc_conn *conn = context;
    UNUSED(session);
    if (conn->why[0]) return 0; /* the first says most */
    if (conn->state == CONN_SETTINGS) {
        (void)snprintf(conn->why, sizeof conn->why, "the server does not speak HTTP/2");
    } else {
        (void)snprintf(conn->why, sizeof conn->why, "%s (%.*s)", nghttp2_strerror(code), (int)len,
                       text);
    }
    return 0;
}

/* ---- requests ---- */

static ssize_t read_request(nghttp2_session *session, int32_t stream, uint8_t *out, size_t size,
                            uint32_t *flags, nghttp2_data_source *source, void *context) {
    struct grpc_call *call = call_of(session, stream);
    UNUSED(source);
    UNUSED(context);
    if (!call) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* dropped */
    size_t n = call->request_len - call->request_sent;
    if (n > size) n = size;
    memcpy(out, call->request + call->request_sent, n);
    call->request_sent += n;
    if (call->request_sent == call->request_len) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)n;
}

static void put_nv(nghttp2_nv *nv, size_t *count, str name, str value, uint8_t flags) {
    ASSERT(*count < NV_MAX);
    nv[(*count)++] = (nghttp2_nv){
        .name = (uint8_t *)name.ptr,
        .value = (uint8_t *)value.ptr,
        .namelen = name.len,
        .valuelen = value.len,
        .flags = flags,
    };
}

bool grpc_session_has_room(const struct grpc_conn *conn) {
    return conn->stream_count < nghttp2_session_get_remote_settings(
                                    conn->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
}

bool grpc_session_submit(struct grpc_conn *conn, struct grpc_call *call) {
    struct grpc *grpc = conn->grpc;
    nghttp2_nv nv[NV_MAX];
    size_t n = 0;
    char timeout[16];
    uint64_t now_ms = grpc_now(grpc);
    grpc_timeout_format((int64_t)call->expires_ms - (int64_t)now_ms, timeout);
    put_nv(nv, &n, STR(":method"), STR("POST"), 0);
    put_nv(nv, &n, STR(":scheme"), grpc->tls ? STR("https") : STR("http"), 0);
    put_nv(nv, &n, STR(":path"), call->path, 0);
    put_nv(nv, &n, STR(":authority"), grpc->authority, 0);
    put_nv(nv, &n, STR("te"), STR("trailers"), 0);
    put_nv(nv, &n, STR("content-type"), STR("application/grpc"), 0);
    put_nv(nv, &n, STR("grpc-timeout"), str_c(timeout), 0);
    if (grpc->user_agent.len > 0) put_nv(nv, &n, STR("user-agent"), grpc->user_agent, 0);
    /* Not in the table of either side, where it could be guessed or read. */
    if (grpc->authorization.len > 0)
        put_nv(nv, &n, STR("authorization"), grpc->authorization, NGHTTP2_NV_FLAG_NO_INDEX);
    for (size_t i = 0; i < grpc->header_count; i++)
        put_nv(nv, &n, grpc->headers[i].name, grpc->headers[i].value, 0);
    nghttp2_data_provider provider = {.read_callback = read_request};
    int32_t stream = nghttp2_submit_request(conn->session, NULL, nv, n, &provider, call);
    if (stream < 0) return false;
    conn->served = true;
    conn->stream_count++;
    grpc->failures = 0;
    call->conn = conn;
    call->stream = stream;
    grpc_call_move(call, &conn->streams);
    grpc_wake_at(grpc, grpc_conn_wake(conn)); /* a PING may be due */
    return true;
}

bool grpc_session_ping(struct grpc_conn *conn) {
    return nghttp2_submit_ping(conn->session, NGHTTP2_FLAG_NONE, NULL) == 0;
}

/* ---- the session ---- */

bool grpc_session_open(struct grpc_conn *conn) {
    static const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 0}, /* of the server's own: none */
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, GRPC_STREAM_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, GRPC_ANSWER_HEADER_BYTES_MAX},
    };
    nghttp2_session_callbacks *callbacks;
    if (nghttp2_session_callbacks_new(&callbacks) != 0) return false;
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_error_callback2(callbacks, on_error);
    int code = nghttp2_session_client_new(&conn->session, callbacks, conn);
    nghttp2_session_callbacks_del(callbacks);
    if (code != 0) {
        conn->session = NULL;
        return false;
    }
    return nghttp2_submit_settings(conn->session, NGHTTP2_FLAG_NONE, settings,
                                   COUNT_OF(settings)) == 0 &&
           nghttp2_session_set_local_window_size(conn->session, NGHTTP2_FLAG_NONE, 0,
                                                 GRPC_WINDOW) == 0;
}

bool grpc_session_take(struct grpc_conn *conn, str bytes) {
    ssize_t n = nghttp2_session_mem_recv(conn->session, (const uint8_t *)bytes.ptr, bytes.len);
    if (n == (ssize_t)bytes.len) return true;
    if (!conn->why[0]) {
        (void)snprintf(conn->why, sizeof conn->why, "%s",
                       n < 0 ? nghttp2_strerror((int)n) : "the protocol was violated");
    }
    return false;
}
