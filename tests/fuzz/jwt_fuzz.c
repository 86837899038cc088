/* Any bytes as a token, as a key set, and as header and payload (two lines) of a token that is
 * signed here, so that what lies behind the signature is reached. What is accepted keeps its
 * promises. */
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "api/jwt.h"
#include "base/buf.h"
#include "base/limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NOW_US INT64_C(1800000000000000)
static const char secret[] = "0123456789abcdef0123456789abcdef";
static const char keys[] = "{\"keys\":[{\"kty\":\"oct\",\"kid\":\"h\",\"k\":"
                           "\"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY\"},"
                           "{\"kty\":\"OKP\",\"kid\":\"e\",\"crv\":\"Ed25519\",\"x\":"
                           "\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}";

static struct jwks *set_of(str json) {
    struct jwks *set = NULL;
    struct error err = {0};
    status st = jwks_parse(json, &set, &err);
    ASSERT((st == ST_OK) == (set != NULL));
    ASSERT(st == ST_OK || st == ST_RETRY || (st == ST_INVALID && err.reason != REASON_NONE));
    return set;
}

static bool try_token(const struct jwks *set, str token) {
    struct arena arena;
    struct jwt_claims claims = {0};
    struct jwt_policy policy = {0};
    struct error err = {0};
    arena_init(&arena, 4096, (size_t)4 * 1024 * 1024);
    status st = jwt_verify(set, &policy, token, NOW_US, &arena, &claims, &err);
    ASSERT(st == ST_OK || st == ST_INVALID || st == ST_RETRY);
    if (st == ST_OK) {
        ASSERT(claims.role_count <= 16);
        ASSERT(claims.tenant.len > 0 && claims.tenant.len <= ID_BYTES_MAX);
        ASSERT(claims.subject.len > 0 && claims.subject.len <= ID_BYTES_MAX);
        ASSERT(claims.expires_us > NOW_US - INT64_C(1000000) * JWT_LEEWAY_S);
    }
    arena_release(&arena);
    return st == ST_OK;
}

static void put_base64url(struct buf *out, str bytes) {
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint32_t bits = 0;
    unsigned held = 0;
    for (size_t i = 0; i < bytes.len; i++) {
        bits = bits << 8 | (unsigned char)bytes.ptr[i];
        for (held += 8; held >= 6; held -= 6)
            buf_put_char(out, alphabet[bits >> (held - 6) & 63]);
    }
    if (held > 0) buf_put_char(out, alphabet[bits << (6 - held) & 63]);
}

static void try_signed(const struct jwks *set, str header, str payload) {
    struct buf token;
    uint8_t mac[32];
    unsigned len = 0;
    buf_init(&token, (size_t)4 * JWT_BYTES_MAX);
    put_base64url(&token, header);
    buf_put_char(&token, '.');
    put_base64url(&token, payload);
    HMAC(EVP_sha256(), secret, 32, (const uint8_t *)token.ptr, token.len, mac, &len);
    buf_put_char(&token, '.');
    put_base64url(&token, str_n(mac, sizeof(mac)));
    if (!token.full) (void)try_token(set, buf_str(&token));
    buf_release(&token);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    str input = str_n(data, size);
    struct jwks *set = set_of(STR(keys));
    if (set == NULL) return 0; /* no memory */
    ASSERT(!try_token(set, input) || str_has(input, '.'));
    str header;
    str payload;
    if (size > 0 && str_split(input, '\n', &header, &payload)) try_signed(set, header, payload);
    jwks_close(set);
    struct jwks *other = set_of(input);
    if (other != NULL) (void)try_token(other, STR("eyJhbGciOiJFUzI1NiJ9.e30.AAAA"));
    jwks_close(other);
    return 0;
}
