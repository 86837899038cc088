/* base/hash.c: digests through EVP. Fetching an algorithm by name costs more than hashing an
 * event's key (about 350 ns of 530 for 90 bytes), so it is fetched once a process, and contexts are
 * reused.
 *
 * Each thread has one context for each algorithm, made on first use and freed when the thread ends.
 * EVP allocates only in sha256_open() and on a thread's first digest; after that nothing can fail.
 */
#include "base/hash.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"

struct sha256 {
    EVP_MD_CTX *ctx;
};

enum algorithm { ALG_SHA256, ALG_SHA1, ALG_COUNT };

/* The fetched algorithm, or NULL without memory. Kept for the life of the process. */
static const EVP_MD *algorithm_get(enum algorithm alg) {
    static _Atomic(EVP_MD *) fetched[ALG_COUNT];
    static const char *const name[ALG_COUNT] = {[ALG_SHA256] = "SHA2-256", [ALG_SHA1] = "SHA1"};
    EVP_MD *known = atomic_load_explicit(&fetched[alg], memory_order_acquire);
    if (known != NULL) return known;
    EVP_MD *fresh = EVP_MD_fetch(NULL, name[alg], NULL);
    if (fresh == NULL) return NULL;
    if (atomic_compare_exchange_strong(&fetched[alg], &known, fresh)) return fresh;
    EVP_MD_free(fresh); /* another thread was first */
    return known;
}

/* A context that has been started once, so that starting it again allocates nothing. */
static EVP_MD_CTX *context_make(enum algorithm alg) {
    const EVP_MD *md = algorithm_get(alg);
    EVP_MD_CTX *ctx = md == NULL ? NULL : EVP_MD_CTX_new();
    if (ctx != NULL && EVP_DigestInit_ex2(ctx, md, NULL) == 1) return ctx;
    EVP_MD_CTX_free(ctx);
    return NULL;
}

static void context_start(EVP_MD_CTX *ctx) {
    int ok = EVP_DigestInit_ex2(ctx, NULL, NULL);
    ASSERT(ok == 1);
}

static void context_add(EVP_MD_CTX *ctx, const void *bytes, size_t n) {
    int ok = EVP_DigestUpdate(ctx, bytes, n);
    ASSERT(ok == 1);
}

static void context_done(EVP_MD_CTX *ctx, uint8_t *out, size_t len) {
    unsigned made = 0;
    int ok = EVP_DigestFinal_ex(ctx, out, &made);
    ASSERT(ok == 1);
    ASSERT(made == len);
}

static _Thread_local EVP_MD_CTX *own[ALG_COUNT];
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static void own_free(void *unused) {
    UNUSED(unused);
    for (size_t i = 0; i < ALG_COUNT; i++) {
        EVP_MD_CTX_free(own[i]);
        own[i] = NULL;
    }
}

static void own_prepare(void) {
    int rc = pthread_key_create(&own_key, own_free);
    ASSERT(rc == 0);
}

static EVP_MD_CTX *own_get(enum algorithm alg) {
    if (own[alg] != NULL) return own[alg];
    pthread_once(&own_once, own_prepare);
    int rc = pthread_setspecific(own_key, own); /* any value but NULL has own_free() called */
    ASSERT(rc == 0);
    own[alg] = context_make(alg);
    ASSERT(own[alg] != NULL); /* a thread without memory for its first digest cannot go on */
    return own[alg];
}

status sha256_open(struct sha256 **out, struct error *err) {
    struct sha256 *h = mem_alloc(sizeof *h);
    if (h != NULL) h->ctx = context_make(ALG_SHA256);
    if (h == NULL || h->ctx == NULL) {
        mem_free(h);
        return error_set(err, ST_RETRY, "could not make a SHA-256 hasher: out of memory");
    }
    *out = h;
    return ST_OK;
}

void sha256_close(struct sha256 *h) {
    if (h == NULL) return;
    EVP_MD_CTX_free(h->ctx);
    mem_free(h);
}

void sha256_start(struct sha256 *h) { context_start(h->ctx); }

void sha256_add(struct sha256 *h, const void *bytes, size_t n) { context_add(h->ctx, bytes, n); }

void sha256_done(struct sha256 *h, uint8_t out[SHA256_LEN]) {
    context_done(h->ctx, out, SHA256_LEN);
}

void sha256_of(str bytes, uint8_t out[SHA256_LEN]) {
    EVP_MD_CTX *ctx = own_get(ALG_SHA256);
    context_start(ctx);
    context_add(ctx, bytes.ptr, bytes.len);
    context_done(ctx, out, SHA256_LEN);
}

void sha1_of(str first, str second, uint8_t out[SHA1_LEN]) {
    EVP_MD_CTX *ctx = own_get(ALG_SHA1);
    context_start(ctx);
    context_add(ctx, first.ptr, first.len);
    context_add(ctx, second.ptr, second.len);
    context_done(ctx, out, SHA1_LEN);
}

void hex_encode(const uint8_t *bytes, size_t n, char *out) {
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[bytes[i] >> 4];
        out[2 * i + 1] = digit[bytes[i] & 15];
    }
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

bool hex_decode(str text, uint8_t *out, size_t n) {
    if (n > SIZE_MAX / 2 || text.len != 2 * n) return false;
    for (size_t i = 0; i < n; i++) { /* looked at first: *out is written only on success */
        if (hex_value(text.ptr[2 * i]) < 0 || hex_value(text.ptr[2 * i + 1]) < 0) return false;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)(hex_value(text.ptr[2 * i]) << 4 | hex_value(text.ptr[2 * i + 1]));
    }
    return true;
}
