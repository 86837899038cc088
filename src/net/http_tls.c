/* net/http_tls.c: TLS between the socket and the connection.
 *
 * OpenSSL reads from and writes to a BIO of our own, which looks at the bytes of the read that is
 * being handled and collects what goes out in one buffer of the server: an idle connection holds no
 * buffers for it. */
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/arena.h"
#include "net/server_impl.h"

enum {
    TLS_RECORD = 16 * 1024,    /* the longest that TLS has */
    TLS_SLICE = 64 * 1024,     /* encrypted at a time, so that large answers need no second copy */
    TLS_OUT_KEPT = 128 * 1024, /* memory kept for the next */
};

/* --- The BIO -------------------------------------------------------------------------------------
 */

static int bio_read(BIO *bio, char *out, int size) {
    struct http_connection *c = BIO_get_data(bio);
    struct http_server *s = c->server;
    BIO_clear_retry_flags(bio);
    if (s->tls_reader != c || s->tls_in.len == 0 || size <= 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t n = s->tls_in.len < (size_t)size ? s->tls_in.len : (size_t)size;
    memcpy(out, s->tls_in.ptr, n);
    s->tls_in = str_from(s->tls_in, n);
    return (int)n;
}

static int bio_write(BIO *bio, const char *bytes, int size) {
    struct http_connection *c = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (size > 0) buf_put(&c->server->tls_out, str_n(bytes, (size_t)size));
    return c->server->tls_out.full ? -1 : size;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer) {
    UNUSED(bio);
    UNUSED(number);
    UNUSED(pointer);
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

static BIO_METHOD *method_new(void) {
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cairn");
    if (!method) return NULL;
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_ctrl(method, bio_ctrl);
    return method;
}

/* --- Certificates --------------------------------------------------------------------------------
 */

static status tls_error(struct error *err, const char *what, const char *file) {
    unsigned long code = ERR_peek_last_error();
    char text[160] = "unknown reason";
    if (code) ERR_error_string_n(code, text, sizeof(text));
    ERR_clear_error();
    return error_at(err, REASON_TLS_INVALID, "", "could not %s \"%s\": %s", what, file, text);
}

/* We speak one protocol; a client that offers others as well gets this one. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                           const unsigned char *in, unsigned in_len, void *arg) {
    UNUSED(ssl);
    UNUSED(arg);
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *found = NULL;
    if (SSL_select_next_proto(&found, out_len, ours, sizeof(ours) - 1, in, in_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = found;
    return SSL_TLSEXT_ERR_OK;
}

static bool configure(SSL_CTX *context) {
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                     SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    return SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
           SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") == 1;
}

status http_tls_load(struct http_server *s, str certificate_file, str key_file, struct error *err) {
    char certificate[4096];
    char key[4096];
    if (certificate_file.len >= sizeof(certificate) || key_file.len >= sizeof(key))
        return error_at(err, REASON_TLS_INVALID, "", "the name of a file is too long");
    snprintf(certificate, sizeof(certificate), "%.*s", STR_ARG(certificate_file));
    snprintf(key, sizeof(key), "%.*s", STR_ARG(key_file));
    if (!s->plain && !(s->plain = mem_alloc(HTTP_READ_BYTES)))
        return error_set(err, ST_RETRY, "no memory for TLS");
    if (!s->tls_method && !(s->tls_method = method_new()))
        return error_set(err, ST_RETRY, "no memory for TLS");
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    status st = ST_OK;
    if (!context || !configure(context)) {
        st = tls_error(err, "set up TLS for", certificate);
    } else if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1) {
        st = tls_error(err, "read the certificate", certificate);
    } else if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1) {
        st = tls_error(err, "read the key (does it belong to the certificate?)", key);
    }
    if (st != ST_OK) {
        SSL_CTX_free(context);
        return st;
    }
    SSL_CTX_free(s->tls_context); /* connections hold what they use */
    s->tls_context = context;
    return ST_OK;
}

void http_tls_release(struct http_server *s) {
    SSL_CTX_free(s->tls_context);
    if (s->tls_method) BIO_meth_free(s->tls_method);
    mem_free(s->plain);
}

/* --- Connections ---------------------------------------------------------------------------------
 */

bool http_tls_attach(struct http_connection *c) {
    struct http_server *s = c->server;
    SSL *ssl = SSL_new(s->tls_context);
    BIO *bio = ssl ? BIO_new(s->tls_method) : NULL;
    if (!bio) {
        SSL_free(ssl);
        return false;
    }
    BIO_set_data(bio, c);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_accept_state(ssl);
    c->ssl = ssl;
    return true;
}

void http_tls_detach(struct http_connection *c) {
    SSL_free(c->ssl);
    c->ssl = NULL;
    if (c->server->tls_reader == c) c->server->tls_reader = NULL;
}

/* Sends what OpenSSL has made. */
static bool flush(struct http_connection *c) {
    struct buf *out = &c->server->tls_out;
    if (out->len == 0) return true;
    uv_buf_t buf = uv_buf_init(out->ptr, (unsigned)out->len);
    bool sent = !out->full && http_connection_write_raw(c, &buf, 1);
    if (out->full) http_connection_close(c);
    buf_clear(out);
    if (out->cap > TLS_OUT_KEPT) buf_release(out);
    return sent;
}

static void handshake_failed(struct http_connection *c) {
    c->server->stats.refused[HTTP_BAD_TLS]++;
    flush(c); /* an alert that says why, if the socket takes it */
    http_connection_close(c);
}

/* One step; false: nothing more can be done now. */
static bool step(struct http_connection *c) {
    ERR_clear_error();
    if (!SSL_is_init_finished(c->ssl)) {
        int result = SSL_do_handshake(c->ssl);
        if (result != 1 && SSL_get_error(c->ssl, result) != SSL_ERROR_WANT_READ) {
            handshake_failed(c);
            return false;
        }
        if (!flush(c) || result != 1) return false;
        http_connection_wait(c, WAIT_IDLE);
    }
    int n = SSL_read(c->ssl, c->server->plain, HTTP_READ_BYTES);
    if (n > 0) {
        if (!flush(c)) return false;
        http_connection_take(c, str_n(c->server->plain, (size_t)n));
        return !c->closing;
    }
    int why = SSL_get_error(c->ssl, n);
    if (!flush(c)) return false;
    if (why == SSL_ERROR_ZERO_RETURN) {
        http_connection_end_of_input(c);
    } else if (why != SSL_ERROR_WANT_READ) {
        http_connection_close(c);
    }
    return false;
}

void http_tls_read(struct http_connection *c, str bytes) {
    struct http_server *s = c->server;
    s->tls_reader = c;
    s->tls_in = bytes;
    while (!c->closing && step(c))
        continue;
    s->tls_reader = NULL;
    s->tls_in = STR_NONE;
}

/* Head and body of a small answer go out in one record. */
static uv_buf_t gather(const uv_buf_t *bufs, unsigned count, char *mem, size_t size) {
    size_t len = 0;
    for (unsigned i = 0; i < count; i++) {
        if (bufs[i].len > size - len) return uv_buf_init(mem, 0);
        if (bufs[i].len > 0) memcpy(mem + len, bufs[i].base, bufs[i].len);
        len += bufs[i].len;
    }
    return uv_buf_init(mem, (unsigned)len);
}

bool http_tls_write(struct http_connection *c, const uv_buf_t *bufs, unsigned count) {
    char mem[TLS_RECORD];
    uv_buf_t one = gather(bufs, count, mem, sizeof(mem));
    if (one.len > 0) {
        bufs = &one;
        count = 1;
    }
    ERR_clear_error();
    for (unsigned i = 0; i < count; i++) {
        for (size_t done = 0; done < bufs[i].len;) {
            size_t n = bufs[i].len - done;
            if (n > TLS_SLICE) n = TLS_SLICE;
            if (SSL_write(c->ssl, bufs[i].base + done, (int)n) != (int)n) {
                http_connection_close(c);
                return false;
            }
            done += n;
            if (c->server->tls_out.len > TLS_SLICE && !flush(c)) return false;
        }
    }
    return flush(c);
}

void http_tls_finish(struct http_connection *c) {
    ERR_clear_error();
    SSL_shutdown(c->ssl); /* says that this was all */
    flush(c);
}
