/* net/http_write.c: bytes out. What the socket takes at once is never copied; the rest waits in one
 * block a call. */
#include "base/arena.h"
#include "net/server_impl.h"

struct block {
    uv_write_t request;
    size_t len;
    char bytes[];
};

static void on_written(uv_write_t *request, int code) {
    struct http_connection *c = (struct http_connection *)request->handle;
    c->server->unsent_bytes -= ((struct block *)request)->len; /* its first member */
    mem_free(request);
    if (c->closing) return;
    if (code < 0) {
        http_connection_close(c);
        return;
    }
    struct http_exchange *e = c->exchange;
    if (e && e->state == EXCHANGE_STREAMING && e->writable && http_connection_unsent(c) == 0)
        e->writable(e->writable_context, e);
    http_connection_resume(c);
}

static bool write_later(struct http_connection *c, const uv_buf_t *bufs, unsigned count,
                        size_t skip, size_t total) {
    /* Many who read slowly what is large must not hold all memory. */
    if (c->server->unsent_bytes + (total - skip) > HTTP_UNSENT_TOTAL_MAX) return false;
    struct block *block = mem_alloc(sizeof(*block) + total - skip);
    if (!block) return false;
    block->len = total - skip;
    size_t len = 0;
    for (unsigned i = 0; i < count; i++) {
        size_t n = bufs[i].len;
        size_t from = skip < n ? skip : n;
        skip -= from;
        if (n > from) memcpy(block->bytes + len, bufs[i].base + from, n - from);
        len += n - from;
    }
    uv_buf_t rest = uv_buf_init(block->bytes, (unsigned)len);
    if (uv_write(&block->request, &c->uv.stream, &rest, 1, on_written) == 0) {
        c->server->unsent_bytes += block->len;
        return true;
    }
    mem_free(block);
    return false;
}

/* Sends, or keeps for later, all of it. false: the connection is gone. */
bool http_connection_write_raw(struct http_connection *c, const uv_buf_t *bufs, unsigned count) {
    if (c->closing) return false;
    size_t total = 0;
    for (unsigned i = 0; i < count; i++)
        total += bufs[i].len;
    if (total == 0) return true;
    c->server->stats.bytes_out_total += total;
    c->given += total;
    size_t sent = 0;
    if (http_connection_unsent(c) == 0) {
        int n = uv_try_write(&c->uv.stream, bufs, count);
        if (n < 0 && n != UV_EAGAIN) {
            http_connection_close(c);
            return false;
        }
        if (n > 0) sent = (size_t)n;
    }
    if (sent == total || write_later(c, bufs, count, sent, total)) return true;
    http_connection_close(c);
    return false;
}

bool http_connection_write(struct http_connection *c, const uv_buf_t *bufs, unsigned count) {
    if (c->closing) return false;
    return c->ssl ? http_tls_write(c, bufs, count) : http_connection_write_raw(c, bufs, count);
}

static void on_shutdown(uv_shutdown_t *request, int code) {
    struct http_connection *c = (struct http_connection *)request->handle;
    if (c->closing) return;
    if (code < 0 || c->eof) {
        http_connection_close(c);
    } else {
        http_connection_resume(c); /* reads again, to throw away */
    }
}

/* Ends our side when all was taken, and then waits a moment for the client to end its side: closing
 * at once would destroy an answer on its way if the client has sent more than we read. */
void http_connection_finish(struct http_connection *c) {
    if (c->closing || c->finishing) return;
    c->finishing = true;
    c->fresh = true;
    if (c->ssl) http_tls_finish(c);
    if (c->closing) return;
    if (uv_shutdown(&c->shutdown, &c->uv.stream, on_shutdown) != 0) http_connection_close(c);
}
