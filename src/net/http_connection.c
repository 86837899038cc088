/* net/http_connection.c: one connection: bytes in, requests to the handler, and what it waits for.
 */
#include "base/arena.h"
#include "net/server_impl.h"

/* --- Waiting -------------------------------------------------------------------------------------
 */

void http_connection_leave(struct http_connection *c) {
    struct http_list *list = &c->server->waiting[c->wait];
    *(c->prev ? &c->prev->next : &list->first) = c->next;
    *(c->next ? &c->next->prev : &list->last) = c->prev;
    c->next = c->prev = NULL;
}

/* What the client (or our kernel for it) has taken. What waits for it says nothing: more of that
 * may have come meanwhile. */
static uint64_t taken(const struct http_connection *c) {
    return c->given - http_connection_unsent(c);
}

static void enter(struct http_connection *c, enum http_wait wait) {
    struct http_list *list = &c->server->waiting[wait];
    if (wait != c->wait) c->quiet = 0;
    c->wait = wait;
    c->deadline_ms = (int64_t)uv_now(c->server->loop) + c->server->wait_ms[wait];
    c->taken_seen = taken(c);
    c->prev = list->last;
    c->next = NULL;
    *(list->last ? &list->last->next : &list->first) = c;
    list->last = c;
}

void http_connection_wait(struct http_connection *c, enum http_wait wait) {
    http_connection_leave(c);
    enter(c, wait);
}

/* What the connection waits for follows from its state. A wait that goes on keeps its deadline. */
static enum http_wait wait_of(const struct http_connection *c) {
    const struct http_exchange *e = c->exchange;
    if (e && e->state == EXCHANGE_PARSING)
        return e->parser.state == HTTP_PARSE_BODY ? WAIT_BODY : WAIT_HEAD;
    if (http_connection_unsent(c) > 0) return WAIT_WRITE;
    if (c->finishing) return WAIT_LINGER;
    return e ? WAIT_HANDLER : WAIT_IDLE;
}

static void settle(struct http_connection *c) {
    if (c->closing || c->wait == WAIT_TLS)
        return; /* (http_tls.c ends the wait for the handshake) */
    enum http_wait wait = wait_of(c);
    if (wait != c->wait || c->fresh) http_connection_wait(c, wait);
    c->fresh = false;
    if (wait == WAIT_IDLE && c->server->draining) http_connection_close(c);
}

size_t http_connection_unsent(const struct http_connection *c) {
    return uv_stream_get_write_queue_size(&c->uv.stream);
}

/* --- Ending --------------------------------------------------------------------------------------
 */

static void tell_gone(struct http_exchange *e) {
    if (e->state == EXCHANGE_PARSING || e->told_gone) return;
    e->told_gone = true;
    if (e->gone) e->gone(e->gone_context, e);
}

static void on_closed(uv_handle_t *handle) {
    struct http_connection *c = (struct http_connection *)handle;
    struct http_exchange *e = c->exchange;
    if (e) {
        c->exchange = NULL;
        e->connection = NULL;
        if (e->state == EXCHANGE_PARSING) {
            http_exchange_give(e);
        } else {
            tell_gone(e);
        }
    }
    http_connection_closed(c);
}

void http_connection_close(struct http_connection *c) {
    if (c->closing) return;
    c->closing = true;
    http_tls_detach(c);
    uv_close(&c->uv.handle, on_closed);
}

/* The deadline of what it waits for has passed. */
void http_connection_expire(struct http_connection *c) {
    struct http_server *s = c->server;
    switch (c->wait) {
    case WAIT_TLS:
        s->stats.refused[HTTP_BAD_TLS]++;
        http_connection_close(c);
        break;
    case WAIT_IDLE:
        s->stats.idle_closed_total++;
        http_connection_close(c);
        break;
    case WAIT_HEAD:
        if (c->exchange && http_parser_begun(&c->exchange->parser)) {
            http_connection_refuse(c, HTTP_TIMEOUT_HEAD, "the head did not come in time");
        } else {
            http_connection_close(c);
        }
        break;
    case WAIT_BODY:
        http_connection_refuse(c, HTTP_TIMEOUT_BODY, "the body did not come in time");
        break;
    case WAIT_WRITE:
        c->quiet = taken(c) == c->taken_seen ? c->quiet + 1 : 0;
        if (c->quiet < HTTP_STALL_LOOKS) {
            http_connection_wait(c, WAIT_WRITE); /* slow, but perhaps not dead */
        } else {
            s->stats.stalled_total++;
            http_connection_close(c);
        }
        break;
    case WAIT_LINGER:
        http_connection_close(c);
        break;
    case WAIT_HANDLER:
    case WAIT_COUNT:
        break;
    }
}

/* --- Reading -------------------------------------------------------------------------------------
 */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
    UNUSED(suggested);
    struct http_connection *c = (struct http_connection *)handle;
    *buf = uv_buf_init(c->server->read, HTTP_READ_BYTES);
}

void http_connection_end_of_input(struct http_connection *c) {
    if (c->closing || c->eof) return;
    c->eof = true;
    uv_read_stop(&c->uv.stream);
    c->reading = false;
    if (c->exchange && c->exchange->state != EXCHANGE_PARSING) {
        tell_gone(c->exchange); /* its answer, if there will be one, is still sent */
    } else if (c->finishing || (c->backlog_len == 0 && http_connection_unsent(c) == 0)) {
        http_connection_close(c); /* half a request, or none */
    } else if (c->backlog_len == 0) {
        http_connection_finish(c);
    }
}

static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf) {
    struct http_connection *c = (struct http_connection *)stream;
    if (c->closing || nread == 0) return;
    if (nread == UV_EOF) {
        http_connection_end_of_input(c);
    } else if (nread < 0) {
        http_connection_close(c);
    } else {
        c->server->stats.bytes_in_total += (uint64_t)nread;
        str bytes = {buf->base, (size_t)nread};
        if (c->ssl) {
            http_tls_read(c, bytes);
        } else {
            http_connection_take(c, bytes);
        }
    }
}

static void read_more(struct http_connection *c) {
    if (c->reading || c->closing || c->eof) return;
    if (uv_read_start(&c->uv.stream, on_alloc, on_read) != 0) {
        http_connection_close(c);
        return;
    }
    c->reading = true;
}

void http_connection_open(struct http_connection *c) {
    enter(c, c->ssl ? WAIT_TLS : WAIT_IDLE);
    read_more(c);
}

/* --- Parsing -------------------------------------------------------------------------------------
 */

/* May the next bytes be looked at? Not before the last answer is given, and mostly taken. */
static bool may_parse(const struct http_connection *c) {
    return !c->closing && !c->finishing &&
           (!c->exchange || c->exchange->state == EXCHANGE_PARSING) &&
           http_connection_unsent(c) <= HTTP_PIPELINE_UNSENT_MAX;
}

static void put_hex(char *out, size_t digits, uint64_t number) {
    for (size_t i = digits; i > 0; i--, number >>= 4)
        out[i - 1] = "0123456789abcdef"[number & 15];
}

static void dispatch(struct http_connection *c, struct http_exchange *e) {
    struct http_server *s = c->server;
    struct http_request *r = &e->parser.request;
    memcpy(e->id, s->id_prefix, sizeof(s->id_prefix));
    put_hex(e->id + sizeof(s->id_prefix), sizeof(e->id) - sizeof(s->id_prefix),
            ++s->request_number);
    memcpy(e->remote, c->remote, sizeof(e->remote));
    r->id = str_n(e->id, sizeof(e->id));
    r->remote = str_c(e->remote);
    r->tls = c->ssl != NULL;
    e->is_head = str_eq(r->method, STR("HEAD"));
    e->state = EXCHANGE_HANDLING;
    c->requests++;
    e->close_after = !r->keep_alive || c->requests >= s->options.requests_max;
    s->stats.requests_total++;
    s->stats.exchanges++;
    s->handler(s->context, e, r);
}

static void say_continue(struct http_connection *c, struct http_exchange *e) {
    static char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    e->parser.expects_continue = false;
    uv_buf_t buf = uv_buf_init(text, sizeof(text) - 1);
    http_connection_write(c, &buf, 1);
}

/* Gives bytes to the parser and whole requests to the handler; returns how many bytes were used. */
static size_t pump(struct http_connection *c, str bytes) {
    size_t used = 0;
    c->pumping = true;
    while (used < bytes.len && may_parse(c)) {
        if (!c->exchange && !(c->exchange = http_exchange_take(c->server))) {
            http_connection_close(c);
            break;
        }
        struct http_exchange *e = c->exchange;
        e->connection = c;
        used += http_parser_feed(&e->parser, str_from(bytes, used));
        if (e->parser.state == HTTP_PARSE_DONE) {
            dispatch(c, e);
        } else if (e->parser.state == HTTP_PARSE_BAD) {
            http_connection_refuse(c, e->parser.refusal, e->parser.detail);
        } else if (e->parser.expects_continue && e->parser.state == HTTP_PARSE_BODY) {
            say_continue(c, e);
        }
    }
    c->pumping = false;
    return used;
}

static void keep(struct http_connection *c, str bytes) {
    char *grown = mem_grow(c->backlog, c->backlog_len, c->backlog_len + bytes.len);
    if (!grown) {
        http_connection_close(c);
        return;
    }
    memcpy(grown + c->backlog_len, bytes.ptr, bytes.len);
    c->backlog = grown;
    c->backlog_len += bytes.len;
    if (c->backlog_len < HTTP_BACKLOG_MAX) return;
    uv_read_stop(&c->uv.stream); /* the client's own buffers fill up now */
    c->reading = false;
}

static void drop_backlog(struct http_connection *c) {
    mem_free(c->backlog);
    c->backlog = NULL;
    c->backlog_len = 0;
}

void http_connection_take(struct http_connection *c, str bytes) {
    if (c->closing) return;
    if (c->finishing) {
        c->lingered += bytes.len;
        if (c->lingered > HTTP_LINGER_BYTES_MAX) http_connection_close(c);
        return;
    }
    size_t used = c->backlog_len == 0 ? pump(c, bytes) : 0;
    if (used < bytes.len && !c->closing && !c->finishing) keep(c, str_from(bytes, used));
    settle(c);
}

void http_connection_resume(struct http_connection *c) {
    if (c->pumping || c->closing) return;
    if (c->backlog_len > 0 && may_parse(c)) {
        str bytes = {c->backlog, c->backlog_len};
        char *old = c->backlog;
        c->backlog = NULL;
        c->backlog_len = 0;
        size_t used = pump(c, bytes);
        if (used < bytes.len && !c->closing && !c->finishing) keep(c, str_from(bytes, used));
        mem_free(old);
    }
    if (c->finishing) drop_backlog(c);
    if (c->backlog_len < HTTP_BACKLOG_MAX) read_more(c);
    bool busy = c->exchange && c->exchange->state != EXCHANGE_PARSING;
    if (c->eof && !busy && !c->finishing && c->backlog_len == 0) http_connection_finish(c);
    settle(c);
}
