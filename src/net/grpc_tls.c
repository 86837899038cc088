/* net/grpc_tls.c: TLS of a gRPC channel, between memory and memory: OpenSSL never sees the socket.
 * The certificate is always verified, up to its name. */
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "net/grpc_impl.h"

static status tls_error(struct error *err, const char *what, str file) {
    unsigned long code = ERR_peek_last_error();
    char text[160] = "unknown reason";
    if (code) ERR_error_string_n(code, text, sizeof text);
    ERR_clear_error();
    return error_at(err, REASON_TLS_INVALID, "", "could not %s \"%.*s\": %s", what, STR_ARG(file),
                    text);
}

/* Nobody is there to be asked. */
/* NOLINTNEXTLINE(readability-non-const-parameter): OpenSSL's type */
static int no_password(char *out, int size, int writing, void *context) {
    UNUSED(out);
    UNUSED(size);
    UNUSED(writing);
    UNUSED(context);
    return -1;
}

static bool configure(SSL_CTX *context) {
    static const unsigned char h2[] = "\x02h2";
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_default_passwd_cb(context, no_password);
    return SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
           SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") == 1 &&
           SSL_CTX_set_alpn_protos(context, h2, sizeof h2 - 1) == 0;
}

static status load_files(SSL_CTX *context, const struct grpc_options *o, struct arena *arena,
                         struct error *err) {
    str ca;
    str cert;
    str key;
    if (!arena_try_str(arena, o->ca_file, &ca) || !arena_try_str(arena, o->cert_file, &cert) ||
        !arena_try_str(arena, o->key_file, &key))
        return error_set(err, ST_RETRY, "no memory for TLS");
    if (ca.len > 0 ? SSL_CTX_load_verify_file(context, ca.ptr) != 1
                   : SSL_CTX_set_default_verify_paths(context) != 1)
        return tls_error(err, "read the certificates to trust", ca);
    if (cert.len > 0 && SSL_CTX_use_certificate_chain_file(context, cert.ptr) != 1)
        return tls_error(err, "read the certificate", cert);
    if (key.len > 0 && SSL_CTX_use_PrivateKey_file(context, key.ptr, SSL_FILETYPE_PEM) != 1)
        return tls_error(err, "read the key (does it belong to the certificate?)", key);
    if ((cert.len > 0) != (key.len > 0)) {
        return error_at(err, REASON_TLS_INVALID, "",
                        "a certificate needs its key, and a key its certificate");
    }
    return ST_OK;
}

status grpc_tls_open(struct grpc *grpc, const struct grpc_options *options, struct error *err) {
    ERR_clear_error();
    grpc->tls = SSL_CTX_new(TLS_client_method());
    if (!grpc->tls || !configure(grpc->tls)) return tls_error(err, "set up TLS for", grpc->target);
    return load_files(grpc->tls, options, &grpc->arena, err);
}

/* ---- one connection ---- */

static bool failed(struct grpc_conn *conn, const char *what) {
    unsigned long code = ERR_peek_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    long verdict = SSL_get_verify_result(conn->ssl);
    if (verdict != X509_V_OK) reason = X509_verify_cert_error_string(verdict);
    (void)snprintf(conn->why, sizeof conn->why, "%s: %s", what, reason ? reason : "out of memory");
    ERR_clear_error();
    return false;
}

static bool expect_name(SSL *ssl, const char *name) {
    unsigned char address[16];
    bool is_address =
        uv_inet_pton(AF_INET, name, address) == 0 || uv_inet_pton(AF_INET6, name, address) == 0;
    if (is_address) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

/* Takes what the handshake says; true while it may go on. */
static bool handshake(struct grpc_conn *conn) {
    int result = SSL_do_handshake(conn->ssl);
    if (result != 1) {
        return SSL_get_error(conn->ssl, result) == SSL_ERROR_WANT_READ ||
               failed(conn, "TLS handshake failed");
    }
    const unsigned char *protocol;
    unsigned len;
    SSL_get0_alpn_selected(conn->ssl, &protocol, &len);
    if (!str_eq(str_n(protocol, len), STR("h2"))) {
        (void)snprintf(conn->why, sizeof conn->why, "the server does not offer HTTP/2");
        return false;
    }
    grpc_conn_connected(conn);
    return true;
}

bool grpc_tls_attach(struct grpc_conn *conn) {
    ERR_clear_error();
    conn->ssl = SSL_new(conn->grpc->tls);
    conn->tls_in = BIO_new(BIO_s_mem());
    conn->tls_out = BIO_new(BIO_s_mem());
    if (!conn->ssl || !conn->tls_in || !conn->tls_out) {
        BIO_free(conn->tls_in);
        BIO_free(conn->tls_out);
        SSL_free(conn->ssl);
        conn->ssl = NULL;
        (void)snprintf(conn->why, sizeof conn->why, "out of memory");
        return false;
    }
    BIO_set_mem_eof_return(conn->tls_in, -1);
    SSL_set_bio(conn->ssl, conn->tls_in, conn->tls_out);
    SSL_set_connect_state(conn->ssl);
    if (!expect_name(conn->ssl, conn->grpc->server_name.ptr))
        return failed(conn, "the server's name is no good for TLS");
    return handshake(conn);
}

bool grpc_tls_take(struct grpc_conn *conn, str bytes) {
    char plain[16 * 1024];
    ERR_clear_error();
    if (BIO_write(conn->tls_in, bytes.ptr, (int)bytes.len) != (int)bytes.len)
        return failed(conn, "TLS failed");
    if (conn->state == CONN_TLS && !handshake(conn)) return false;
    if (conn->state == CONN_TLS) return true;
    while (conn->state != CONN_CLOSED) {
        int n = SSL_read(conn->ssl, plain, sizeof plain);
        if (n > 0) {
            if (!grpc_session_take(conn, str_n(plain, (size_t)n))) return false;
            continue;
        }
        int why = SSL_get_error(conn->ssl, n);
        if (why == SSL_ERROR_WANT_READ) return true;
        if (why != SSL_ERROR_ZERO_RETURN) return failed(conn, "TLS failed");
        (void)snprintf(conn->why, sizeof conn->why, "the server closed it");
        return false;
    }
    return true;
}

bool grpc_tls_put(struct grpc_conn *conn, str plain) {
    ERR_clear_error();
    return SSL_write(conn->ssl, plain.ptr, (int)plain.len) == (int)plain.len;
}

bool grpc_tls_send(struct grpc_conn *conn) {
    char *bytes = NULL;
    long len = BIO_get_mem_data(conn->tls_out, &bytes);
    bool sent = len <= 0 || grpc_conn_write(conn, str_n(bytes, (size_t)len));
    (void)BIO_reset(conn->tls_out);
    return sent;
}
