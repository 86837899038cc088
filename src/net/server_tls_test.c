/* TLS, with a client made of OpenSSL and certificates made here. */
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "base/arena.h"
#include "base/time.h"
#include "net/server_fixture_test.h"
#include "net/server_impl.h"
#include "test.h"

/* A self-signed certificate for `name`, and its key, in test_dir(). */
static void make_certificate(const char *name, char *certificate, char *key, size_t size) {
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    CHECK(pair && x);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -60);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, pair);
    X509_NAME *subject = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(x, subject);
    CHECK(X509_sign(x, pair, EVP_sha256()) > 0);
    snprintf(certificate, size, "%s/%s.crt", test_dir(), name);
    snprintf(key, size, "%s/%s.key", test_dir(), name);
    FILE *file = fopen(certificate, "w");
    CHECK(file && PEM_write_X509(file, x) == 1 && fclose(file) == 0);
    file = fopen(key, "w");
    CHECK(file && PEM_write_PrivateKey(file, pair, NULL, NULL, 0, NULL, NULL) == 1 &&
          fclose(file) == 0);
    X509_free(x);
    EVP_PKEY_free(pair);
}

/* A TLS client over a socket that is turned together with the server's loop. */
struct tls_peer {
    struct peer peer;
    SSL_CTX *context;
    SSL *ssl;
    BIO *in, *out;
};

static void tls_exchange(struct server_fixture *f, struct tls_peer *t) {
    char bytes[16384];
    int n;
    while ((n = BIO_read(t->out, bytes, sizeof(bytes))) > 0)
        peer_send(f, &t->peer, str_n(bytes, (size_t)n));
    server_fixture_turn(f);
    peer_poll(&t->peer);
    if (t->peer.in.len > 0) BIO_write(t->in, t->peer.in.ptr, (int)t->peer.in.len);
    buf_clear(&t->peer.in);
}

static bool tls_handshake(struct server_fixture *f, struct tls_peer *t) {
    for (int i = 0; i < 5000 && !t->peer.eof; i++) {
        int result = SSL_do_handshake(t->ssl);
        if (result == 1) {
            tls_exchange(f, t);
            return true;
        }
        if (SSL_get_error(t->ssl, result) != SSL_ERROR_WANT_READ) return false;
        tls_exchange(f, t);
    }
    return false;
}

static void tls_open(struct server_fixture *f, struct tls_peer *t, int version_max) {
    memset(t, 0, sizeof(*t));
    peer_open(f, &t->peer);
    t->context = SSL_CTX_new(TLS_client_method());
    CHECK(t->context != NULL);
    SSL_CTX_set_min_proto_version(t->context, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(t->context, version_max);
    SSL_CTX_set_security_level(t->context, 0);
    t->ssl = SSL_new(t->context);
    t->in = BIO_new(BIO_s_mem());
    t->out = BIO_new(BIO_s_mem());
    CHECK(t->ssl && t->in && t->out);
    BIO_set_mem_eof_return(t->in, -1);
    SSL_set_bio(t->ssl, t->in, t->out);
    SSL_set_connect_state(t->ssl);
    SSL_set_alpn_protos(t->ssl, (const unsigned char *)"\x02h2\x08http/1.1", 12);
}

static void tls_end(struct tls_peer *t) {
    SSL_free(t->ssl);
    SSL_CTX_free(t->context);
    peer_end(&t->peer);
}

/* Sends a request and reads the answer into `out`, up to its last bytes, `last`. */
static void tls_ask(struct server_fixture *f, struct tls_peer *t, str request, str last,
                    struct buf *out) {
    for (size_t done = 0; done < request.len;) {
        size_t n = request.len - done < 10000 ? request.len - done : 10000;
        CHECK(SSL_write(t->ssl, request.ptr + done, (int)n) == (int)n);
        tls_exchange(f, t);
        done += n;
    }
    buf_clear(out);
    char bytes[16384];
    int64_t end = clock_mono_ns() + (int64_t)10 * 1000000000;
    while (!str_ends(buf_str(out), last) && clock_mono_ns() < end) {
        int n = SSL_read(t->ssl, bytes, sizeof(bytes));
        if (n > 0) buf_put(out, str_n(bytes, (size_t)n));
        if (n <= 0) tls_exchange(f, t);
    }
    CHECK(str_ends(buf_str(out), last), "%zu bytes", out->len);
}

static void check_name(struct tls_peer *t, const char *want) {
    char name[100] = "";
    X509 *x = SSL_get1_peer_certificate(t->ssl);
    CHECK(x != NULL);
    X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, name, sizeof(name));
    X509_free(x);
    CHECK(strcmp(name, want) == 0, "%s", name);
}

static struct server_fixture *tls_fixture(const struct http_options *options, char *certificate,
                                          char *key, size_t size) {
    struct server_fixture *f = server_fixture_open(options);
    struct error err;
    make_certificate("first", certificate, key, size);
    CHECK(http_tls_load(f->server, str_c(certificate), str_c(key), &err) == ST_OK, "%s", err.msg);
    CHECK(http_listen_tcp(f->server, STR("127.0.0.1"), 0, true, &f->port, &err) == ST_OK);
    return f;
}

TEST(http_server_tls_requests_and_reload) {
    char certificate[300];
    char key[300];
    char other_certificate[300];
    char other_key[300];
    struct server_fixture *f = tls_fixture(NULL, certificate, key, sizeof(key));
    struct buf out;
    buf_init(&out, (size_t)16 * 1024 * 1024);
    struct tls_peer old;
    struct tls_peer new;
    struct error err;
    tls_open(f, &old, TLS1_3_VERSION);
    CHECK(tls_handshake(f, &old));
    check_name(&old, "first");
    const unsigned char *protocol;
    unsigned len;
    SSL_get0_alpn_selected(old.ssl, &protocol, &len);
    CHECK(str_eq(str_n(protocol, len), STR("http/1.1")));
    str get = STR("GET /one HTTP/1.1\r\nHost: a\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        tls_ask(f, &old, get, STR("\r\n\r\n/one"), &out);
        CHECK(str_starts(buf_str(&out), STR("HTTP/1.1 200 OK\r\n")) && f->tls);
    }

    make_certificate("second", other_certificate, other_key, sizeof(other_key));
    /* A key that does not belong to it, or a file that is not there, changes nothing. */
    CHECK(http_tls_load(f->server, str_c(other_certificate), str_c(key), &err) == ST_INVALID);
    CHECK(http_tls_load(f->server, STR("/does/not/exist"), str_c(key), &err) == ST_INVALID &&
          err.reason == REASON_TLS_INVALID);
    tls_open(f, &new, TLS1_2_VERSION);
    CHECK(tls_handshake(f, &new));
    check_name(&new, "first");
    tls_end(&new);
    CHECK(http_tls_load(f->server, str_c(other_certificate), str_c(other_key), &err) == ST_OK);
    tls_open(f, &new, TLS1_2_VERSION);
    CHECK(tls_handshake(f, &new));
    check_name(&new, "second");
    tls_ask(f, &new, get, STR("\r\n\r\n/one"), &out);
    tls_ask(f, &old, get, STR("\r\n\r\n/one"), &out); /* the one from before goes on */

    /* Large both ways. */
    struct buf request;
    size_t size = (size_t)3 * 1024 * 1024;
    buf_init(&request, size + 1000);
    buf_printf(&request, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", size);
    for (size_t i = 0; i < size; i++)
        buf_put_char(&request, (char)('a' + i % 23));
    str sent = str_from(buf_str(&request), request.len - size);
    tls_ask(f, &old, buf_str(&request), sent, &out);
    buf_release(&request);
    /* "Connection: close" ends TLS properly. */
    tls_ask(f, &old, STR("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            STR("\r\n\r\n/"), &out);
    char byte;
    int n = -1;
    for (int i = 0; i < 1000 && n < 0 && SSL_get_shutdown(old.ssl) == 0; i++) {
        tls_exchange(f, &old);
        n = SSL_read(old.ssl, &byte, 1);
    }
    CHECK(SSL_get_error(old.ssl, n) == SSL_ERROR_ZERO_RETURN);
    tls_end(&new);
    tls_end(&old);
    buf_release(&out);
    server_fixture_close(f);
}

TEST(http_server_tls_refuses_what_is_too_old_or_no_tls) {
    struct http_options options = {.head_ms = 300};
    char certificate[300];
    char key[300];
    struct server_fixture *f = tls_fixture(&options, certificate, key, sizeof(key));
    struct tls_peer t;
    struct peer c;
    struct http_stats stats;
    tls_open(f, &t, TLS1_1_VERSION);
    CHECK(!tls_handshake(f, &t));
    tls_end(&t);
    peer_open(f, &c);
    peer_send(f, &c, STR("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    CHECK(peer_ended(f, &c, 5000));
    peer_end(&c);
    peer_open(f, &c); /* says nothing at all */
    CHECK(peer_ended(f, &c, 5000) && c.in.len == 0);
    peer_end(&c);
    http_server_stats(f->server, &stats);
    CHECK(f->requests == 0 && stats.refused[HTTP_BAD_TLS] == 3, "%d",
          (int)stats.refused[HTTP_BAD_TLS]);
    server_fixture_close(f);
    ERR_clear_error();
}
