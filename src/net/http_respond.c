/* net/http_respond.c: answers: the head, whole bodies, streams, and refusals of the server's own.
 */
#include "net/http_parse.h"
#include "net/server_impl.h"

enum { BODY_COPIED_MAX = 4096 }; /* is sent in one piece with its head, which is cheaper than two */

/* --- The head ------------------------------------------------------------------------------------
 */

/* A token and a value without control bytes: nothing that could end the line or the head. */
static bool header_safe(const struct http_header *h) {
    if (h->name.len == 0) return false;
    for (size_t i = 0; i < h->name.len; i++) {
        unsigned char c = (unsigned char)h->name.ptr[i];
        if (c <= 0x20 || c >= 0x7f || c == ':') return false;
    }
    for (size_t i = 0; i < h->value.len; i++) {
        unsigned char c = (unsigned char)h->value.ptr[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return false;
    }
    return true;
}

static void put_headers(struct http_server *s, const struct http_header *headers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!header_safe(&headers[i])) {
            s->stats.headers_dropped_total++;
            continue;
        }
        buf_put(&s->out, headers[i].name);
        buf_put(&s->out, STR(": "));
        buf_put(&s->out, headers[i].value);
        buf_put(&s->out, STR("\r\n"));
    }
}

static void put_head(struct http_server *s, int code, const struct http_header *headers,
                     size_t count) {
    buf_clear(&s->out);
    if (code == 200) {
        buf_put(&s->out, STR("HTTP/1.1 200 OK\r\n"));
    } else {
        buf_put(&s->out, STR("HTTP/1.1 "));
        buf_put_int(&s->out, code);
        buf_put_char(&s->out, ' ');
        buf_put_c(&s->out, http_status_text(code));
        buf_put(&s->out, STR("\r\n"));
    }
    buf_put(&s->out, str_n(s->date, s->date_len));
    put_headers(s, headers, count);
}

static bool no_body_status(int code) { return code < 200 || code == 204 || code == 304; }

/* libuv's buffers are for both directions; a write only looks at the bytes. */
static uv_buf_t borrow(str bytes) {
    union {
        const char *in;
        char *out;
    } same = {.in = bytes.ptr};
    return (uv_buf_t){.base = same.out, .len = bytes.len};
}

/* Sends the head in s->out, and the body after it. */
static bool send_answer(struct http_connection *c, str body, bool last) {
    struct buf *out = &c->server->out;
    buf_put(out, last ? STR("Connection: close\r\n\r\n") : STR("\r\n"));
    if (out->full) { /* half a head is worse than none */
        http_connection_close(c);
        return false;
    }
    size_t head_len = out->len;
    if (body.len > 0 && body.len <= BODY_COPIED_MAX) buf_put(out, body);
    bool one_piece = !out->full && (body.len == 0 || out->len > head_len);
    if (!one_piece) { /* too long, or no memory for the copy */
        out->len = head_len;
        out->full = false;
    }
    uv_buf_t bufs[2] = {borrow(buf_str(out)), borrow(body)};
    return http_connection_write(c, bufs, one_piece ? 1 : 2);
}

/* --- Whole answers -------------------------------------------------------------------------------
 */

/* The exchange is over: its memory goes back, and the connection goes on or ends. */
static void give_up(struct http_exchange *e, bool last) {
    struct http_connection *c = e->connection;
    e->server->stats.exchanges--;
    if (c) {
        c->exchange = NULL;
        c->fresh = true;
    }
    http_exchange_give(e); /* after a close this may have been the last hold on the server */
    if (!c) return;
    if (last) http_connection_finish(c);
    http_connection_resume(c);
}

static bool is_last(const struct http_exchange *e) {
    return e->close_after || e->server->draining || e->connection->eof;
}

void http_respond(struct http_exchange *e, int code, const struct http_header *headers,
                  size_t header_count, str body) {
    struct http_connection *c = e->connection;
    ASSERT(e->state == EXCHANGE_HANDLING);
    ASSERT(code >= 200);
    if (!c || c->closing) {
        give_up(e, false);
        return;
    }
    struct buf *out = &c->server->out;
    bool last = is_last(e);
    put_head(c->server, code, headers, header_count);
    if (!no_body_status(code)) {
        buf_put(out, STR("Content-Length: "));
        buf_put_int(out, (int64_t)body.len);
        buf_put(out, STR("\r\n"));
    }
    bool without = e->is_head || no_body_status(code);
    send_answer(c, without ? STR("") : body, last);
    give_up(e, last);
}

/* --- Streams -------------------------------------------------------------------------------------
 */

void http_stream_begin(struct http_exchange *e, int code, const struct http_header *headers,
                       size_t header_count) {
    struct http_connection *c = e->connection;
    ASSERT(e->state == EXCHANGE_HANDLING);
    ASSERT(!no_body_status(code));
    e->state = EXCHANGE_STREAMING;
    e->chunked = e->parser.request.version == 11;
    if (!e->chunked) e->close_after = true;
    http_parser_release(&e->parser); /* streams live long; thousands of them should be small */
    if (!c || c->closing) return;
    put_head(c->server, code, headers, header_count);
    if (e->chunked) buf_put(&c->server->out, STR("Transfer-Encoding: chunked\r\n"));
    e->close_after = is_last(e);
    send_answer(c, STR(""), e->close_after);
    http_connection_resume(c);
}

bool http_stream_write(struct http_exchange *e, str bytes) {
    struct http_connection *c = e->connection;
    ASSERT(e->state == EXCHANGE_STREAMING);
    if (!c || c->closing) return false;
    if (e->is_head || bytes.len == 0) return true; /* (an empty chunk would end it) */
    char size[20];
    int n = snprintf(size, sizeof(size), "%zx\r\n", bytes.len);
    uv_buf_t bufs[3] = {borrow(str_n(size, (size_t)n)), borrow(bytes), borrow(STR("\r\n"))};
    bool sent = http_connection_write(c, e->chunked ? bufs : bufs + 1, e->chunked ? 3 : 1);
    if (sent && http_connection_unsent(c) > c->server->options.unsent_max) {
        c->server->stats.slow_readers_total++;
        http_connection_close(c);
        return false;
    }
    http_connection_resume(c); /* it waits for the client now, if bytes are left */
    return sent;
}

void http_stream_end(struct http_exchange *e) {
    struct http_connection *c = e->connection;
    ASSERT(e->state == EXCHANGE_STREAMING);
    bool there = c && !c->closing;
    if (there && e->chunked && !e->is_head) {
        uv_buf_t buf = borrow(STR("0\r\n\r\n"));
        http_connection_write(c, &buf, 1);
    }
    give_up(e, there && is_last(e));
}

void http_stream_abort(struct http_exchange *e) {
    ASSERT(e->state == EXCHANGE_STREAMING);
    if (e->connection) http_connection_close(e->connection);
    give_up(e, false);
}

size_t http_stream_unsent(const struct http_exchange *e) {
    const struct http_connection *c = e->connection;
    return c && !c->closing ? http_connection_unsent(c) : 0;
}

void http_on_gone(struct http_exchange *e, void (*gone)(void *, struct http_exchange *),
                  void *context) {
    e->gone = gone;
    e->gone_context = context;
}

void http_on_writable(struct http_exchange *e, void (*writable)(void *, struct http_exchange *),
                      void *context) {
    e->writable = writable;
    e->writable_context = context;
}

/* --- Refusals ------------------------------------------------------------------------------------
 */

void http_problem(struct http_server *s, enum http_refusal refusal, const char *detail,
                  struct buf *body) {
    int code = http_refusal_status(refusal);
    if (s->options.problem) {
        s->options.problem(s->context, code, http_refusal_code(refusal), detail, body);
        return;
    }
    buf_printf(body, "{\"type\":\"about:blank\",\"title\":\"%s\",\"status\":%d,\"code\":\"%s\",",
               http_status_text(code), code, http_refusal_code(refusal));
    buf_put(body, STR("\"detail\":"));
    buf_put_json_str(body, str_c(detail));
    buf_put_char(body, '}');
}

/* Answers what cannot be given to the handler, and ends the connection: nobody knows what the bytes
 * after it mean. */
void http_connection_refuse(struct http_connection *c, enum http_refusal refusal,
                            const char *detail) {
    struct http_server *s = c->server;
    struct http_exchange *e = c->exchange;
    ASSERT(!e || e->state == EXCHANGE_PARSING);
    s->stats.refused[refusal]++;
    c->exchange = NULL;
    char mem[HTTP_PROBLEM_MAX];
    struct buf body;
    buf_init_fixed(&body, mem, sizeof(mem));
    http_problem(s, refusal, detail, &body);
    static const struct http_header header = {STR_LIT("Content-Type"),
                                              STR_LIT("application/problem+json")};
    put_head(s, http_refusal_status(refusal), &header, 1);
    buf_put(&s->out, STR("Content-Length: "));
    buf_put_int(&s->out, (int64_t)body.len);
    buf_put(&s->out, STR("\r\n"));
    send_answer(c, buf_str(&body), true);
    if (e) http_exchange_give(e);
    http_connection_finish(c);
    http_connection_resume(c);
}
