/* Tokens, good and forged. Keys are made here; the two tokens with known values are those of RFC
 * 7515, A.1 and RFC 8037, A.4. */
#include "api/jwt.h"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/x509.h>

#include "base/buf.h"
#include "base/limits.h"
#include "test.h"

#define NOW INT64_C(1800000000)
#define NOW_US (NOW * 1000000)
#define ID "\"sub\":\"alice\",\"tenant\":\"acme\",\"roles\":[\"viewer\"]"
#define TIMES "\"exp\":1800000600,\"iat\":1800000000"
#define FOR_US "\"iss\":\"https://id.example\",\"aud\":\"cairn\""
#define GOOD "{" ID "," TIMES "," FOR_US "}"
#define HS "{\"alg\":\"HS256\",\"kid\":\"hs\"}"
#define RS "{\"alg\":\"RS256\",\"kid\":\"rs\"}"
#define ES "{\"alg\":\"ES256\",\"kid\":\"es\"}"
#define ED "{\"alg\":\"EdDSA\",\"kid\":\"ed\"}"

static const char secret[] = "a secret of more than thirty-two bytes, for tests";

enum signer { /* how the third part is made */
              BY_HS,
              BY_RS,
              BY_ES,
              BY_ED,
              BY_NOBODY,   /* it stays empty */
              BY_RS_PEM,   /* an HMAC with the public key's text as its secret, */
              BY_RS_DER,   /* or its bytes */
              BY_EMPTY,    /* an HMAC with an empty secret */
              BY_SHORT,    /* an HMAC with the first byte of the secret */
              BY_ES_DER,   /* as libcrypto writes it, not r and s */
              BY_ES_R0,    /* r is 0 */
              BY_ES_S0,    /* s is 0 */
              BY_ES_SWAP,  /* s and r */
              BY_ES_NEG,   /* s + n, which is the same s where nobody looks */
              BY_ZERO_64,  /* 64 zero bytes */
              BY_IDENTITY, /* R is the neutral point, S is 0 */
              BY_ED_MORE,  /* S + L, which is the same S where nobody looks */
              BY_RS_ZERO,  /* a zero byte before it */
};

struct keys {
    EVP_PKEY *rs, *es, *ed;
    struct jwks *set;
    struct arena arena;
};

/* ---- making keys and tokens ---- */

static str base64url(struct arena *arena, str bytes) {
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    char *out = arena_alloc(arena, bytes.len * 4 / 3 + 4);
    size_t n = 0;
    uint32_t bits = 0;
    unsigned held = 0;
    for (size_t i = 0; i < bytes.len; i++) {
        bits = bits << 8 | (unsigned char)bytes.ptr[i];
        for (held += 8; held >= 6; held -= 6)
            out[n++] = alphabet[bits >> (held - 6) & 63];
    }
    if (held > 0) out[n++] = alphabet[bits << (6 - held) & 63];
    return str_n(out, n);
}

static str format(struct arena *arena, const char *fmt, ...) PRINTF_LIKE(2, 3);
static str format(struct arena *arena, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char *text = arena_alloc(arena, (size_t)64 * 1024);
    int n = vsnprintf(text, (size_t)64 * 1024, fmt, args);
    va_end(args);
    CHECK(n >= 0 && n < 64 * 1024);
    return str_n(text, (size_t)n);
}

static str key_bytes(struct keys *k, EVP_PKEY *key, const char *param) {
    BIGNUM *n = NULL;
    CHECK(EVP_PKEY_get_bn_param(key, param, &n) == 1);
    size_t len = (size_t)BN_num_bytes(n);
    uint8_t *bytes = arena_alloc(&k->arena, len);
    BN_bn2bin(n, bytes);
    BN_free(n);
    return base64url(&k->arena, str_n(bytes, len));
}

static str ec_bytes(struct keys *k, EVP_PKEY *key, const char *param) {
    BIGNUM *n = NULL;
    CHECK(EVP_PKEY_get_bn_param(key, param, &n) == 1);
    uint8_t *bytes = arena_alloc(&k->arena, 32);
    CHECK(BN_bn2binpad(n, bytes, 32) == 32);
    BN_free(n);
    return base64url(&k->arena, str_n(bytes, 32));
}

static str ed_bytes(struct keys *k) {
    size_t len = 32;
    uint8_t *bytes = arena_alloc(&k->arena, 32);
    CHECK(EVP_PKEY_get_raw_public_key(k->ed, bytes, &len) == 1);
    return base64url(&k->arena, str_n(bytes, len));
}

static str jwk_hs(struct keys *k) {
    str bytes = base64url(&k->arena, str_c(secret));
    return format(&k->arena, "{\"kty\":\"oct\",\"kid\":\"hs\",\"k\":\"%.*s\"}", STR_ARG(bytes));
}
static str jwk_rs(struct keys *k) {
    str n = key_bytes(k, k->rs, OSSL_PKEY_PARAM_RSA_N);
    str e = key_bytes(k, k->rs, OSSL_PKEY_PARAM_RSA_E);
    return format(&k->arena,
                  "{\"kty\":\"RSA\",\"kid\":\"rs\",\"alg\":\"RS256\",\"use\":\"sig\","
                  "\"n\":\"%.*s\",\"e\":\"%.*s\"}",
                  STR_ARG(n), STR_ARG(e));
}
static str jwk_es(struct keys *k) {
    str x = ec_bytes(k, k->es, OSSL_PKEY_PARAM_EC_PUB_X);
    str y = ec_bytes(k, k->es, OSSL_PKEY_PARAM_EC_PUB_Y);
    return format(&k->arena,
                  "{\"kty\":\"EC\",\"crv\":\"P-256\",\"kid\":\"es\",\"x\":\"%.*s\",\"y\":\"%.*s\"}",
                  STR_ARG(x), STR_ARG(y));
}
static str jwk_ed(struct keys *k) {
    return format(&k->arena, "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"ed\",\"x\":\"%.*s\"}",
                  STR_ARG(ed_bytes(k)));
}

static struct jwks *set_of(struct keys *k, str json) {
    struct jwks *set = NULL;
    struct error err = {0};
    UNUSED(k);
    CHECK(jwks_parse(json, &set, &err) == ST_OK, "%s: %.*s", err.msg, STR_ARG(json));
    return set;
}

static void keys_make(struct keys *k) {
    *k = (struct keys){0};
    arena_init(&k->arena, (size_t)64 * 1024, SIZE_MAX);
    k->rs = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)2048);
    k->es = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    k->ed = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    CHECK(k->rs && k->es && k->ed);
    k->set = set_of(k, format(&k->arena, "{\"keys\":[%.*s,%.*s,%.*s,%.*s]}", STR_ARG(jwk_hs(k)),
                              STR_ARG(jwk_rs(k)), STR_ARG(jwk_es(k)), STR_ARG(jwk_ed(k))));
}

static void keys_free(struct keys *k) {
    jwks_close(k->set);
    EVP_PKEY_free(k->rs);
    EVP_PKEY_free(k->es);
    EVP_PKEY_free(k->ed);
    arena_release(&k->arena);
}

static str sign_hmac(struct keys *k, str key, str text) {
    uint8_t *mac = arena_alloc(&k->arena, 32);
    unsigned len = 0;
    CHECK(HMAC(EVP_sha256(), key.ptr, (int)key.len, (const uint8_t *)text.ptr, text.len, mac,
               &len) != NULL);
    return str_n(mac, len);
}

static str sign_key(struct keys *k, EVP_PKEY *key, const EVP_MD *digest, str text) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    size_t len = 1024;
    uint8_t *out = arena_alloc(&k->arena, len);
    CHECK(EVP_DigestSignInit(context, NULL, digest, NULL, key) == 1);
    CHECK(EVP_DigestSign(context, out, &len, (const uint8_t *)text.ptr, text.len) == 1);
    EVP_MD_CTX_free(context);
    return str_n(out, len);
}

static str sign_es(struct keys *k, str text, enum signer how) {
    str der = sign_key(k, k->es, EVP_sha256(), text);
    if (how == BY_ES_DER) return der;
    const uint8_t *at = (const uint8_t *)der.ptr;
    ECDSA_SIG *pair = d2i_ECDSA_SIG(NULL, &at, (long)der.len);
    CHECK(pair != NULL);
    uint8_t *raw = arena_alloc(&k->arena, 64);
    bool swap = how == BY_ES_SWAP;
    BN_bn2binpad(ECDSA_SIG_get0_r(pair), raw + (swap ? 32 : 0), 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(pair), raw + (swap ? 0 : 32), 32);
    ECDSA_SIG_free(pair);
    if (how == BY_ES_R0) memset(raw, 0, 32);
    if (how == BY_ES_S0) memset(raw + 32, 0, 32);
    if (how == BY_ES_NEG) memset(raw + 32, 0xFF, 32); /* above the order: never reduced */
    return str_n(raw, 64);
}

/* The order of the curve, little endian. */
static const uint8_t ed_order[32] = {
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0x10};

static str sign_ed_more(struct keys *k, str text) {
    str good = sign_key(k, k->ed, NULL, text);
    uint8_t *out = arena_alloc(&k->arena, 64);
    memcpy(out, good.ptr, 64);
    unsigned carry = 0;
    for (size_t i = 0; i < 32; i++) {
        carry += (unsigned)out[32 + i] + ed_order[i];
        out[32 + i] = (uint8_t)carry;
        carry >>= 8;
    }
    CHECK(carry == 0);
    return str_n(out, 64);
}

static str rsa_public(struct keys *k, bool pem) {
    uint8_t *der = NULL;
    int n = i2d_PUBKEY(k->rs, &der);
    CHECK(n > 0);
    char *line = arena_alloc(&k->arena, 1024);
    str bytes = arena_str(&k->arena, str_n(der, (size_t)n));
    EVP_EncodeBlock((unsigned char *)line, der, n);
    OPENSSL_free(der);
    if (!pem) return bytes;
    struct buf out;
    buf_init(&out, 4096);
    buf_put_c(&out, "-----BEGIN PUBLIC KEY-----\n");
    for (str rest = str_c(line); rest.len > 0;) {
        size_t part = rest.len < 64 ? rest.len : 64;
        buf_printf(&out, "%.*s\n", (int)part, rest.ptr);
        rest = str_from(rest, part);
    }
    buf_put_c(&out, "-----END PUBLIC KEY-----\n");
    str text = arena_str(&k->arena, buf_str(&out));
    buf_release(&out);
    return text;
}

static str sign(struct keys *k, str text, enum signer how) {
    uint8_t *out = arena_alloc(&k->arena, 1024);
    str s;
    switch (how) {
    case BY_HS:
        return sign_hmac(k, str_c(secret), text);
    case BY_RS:
        return sign_key(k, k->rs, EVP_sha256(), text);
    case BY_RS_ZERO:
        s = sign_key(k, k->rs, EVP_sha256(), text);
        memcpy(out + 1, s.ptr, s.len);
        return str_n(out, s.len + 1);
    case BY_ED:
        return sign_key(k, k->ed, NULL, text);
    case BY_NOBODY:
        return STR("");
    case BY_RS_PEM:
    case BY_RS_DER:
        return sign_hmac(k, rsa_public(k, how == BY_RS_PEM), text);
    case BY_EMPTY:
        return sign_hmac(k, STR(""), text);
    case BY_SHORT:
        return sign_hmac(k, str_n(secret, 1), text);
    case BY_ES:
    case BY_ES_DER:
    case BY_ES_R0:
    case BY_ES_S0:
    case BY_ES_SWAP:
    case BY_ES_NEG:
        return sign_es(k, text, how);
    case BY_ED_MORE:
        return sign_ed_more(k, text);
    case BY_IDENTITY:
        out[0] = 1;
        return str_n(out, 64);
    case BY_ZERO_64:
        return str_n(out, 64);
    }
    return STR_NONE;
}

static str mint(struct keys *k, str header, str payload, enum signer how) {
    str text = format(&k->arena, "%.*s.%.*s", STR_ARG(base64url(&k->arena, header)),
                      STR_ARG(base64url(&k->arena, payload)));
    str third = base64url(&k->arena, sign(k, text, how));
    return format(&k->arena, "%.*s.%.*s", STR_ARG(text), STR_ARG(third));
}

static const struct jwt_policy strict = {.issuer = STR_LIT("https://id.example"),
                                         .audience = STR_LIT("cairn")};

/* The reason why it is refused, or "ok". */
static const char *verdict(struct keys *k, const struct jwks *set, const struct jwt_policy *policy,
                           str token) {
    struct error err = {0};
    struct jwt_claims claims;
    struct arena_mark mark = arena_mark(&k->arena);
    str exact = arena_str(&k->arena, token);
    status st = jwt_verify(set, policy, exact, NOW_US, &k->arena, &claims, &err);
    arena_rewind(&k->arena, mark);
    if (st == ST_OK) return "ok";
    CHECK(st == ST_INVALID && err.msg[0] != '\0', "%s", status_name(st));
    return reason_name(err.reason);
}

/* ---- forged and broken tokens: header and payload ---- */

struct forgery {
    const char *name, *header, *payload;
    enum signer by;
    const char *want;
};

#define WITH(member) "{\"alg\":\"HS256\",\"kid\":\"hs\"," member "}"
#define ALG(name) "{\"alg\":\"" name "\",\"kid\":\"hs\"}"
#define REST "," TIMES "," FOR_US "}"

static const struct forgery headers[] = {
    {"control: HS256", HS, GOOD, BY_HS, "ok"},
    {"control: RS256", RS, GOOD, BY_RS, "ok"},
    {"control: ES256", ES, GOOD, BY_ES, "ok"},
    {"control: EdDSA", ED, GOOD, BY_ED, "ok"},
    {"control: typ", WITH("\"typ\":\"JWT\""), GOOD, BY_HS, "ok"},
    {"control: typ in lower case", WITH("\"typ\":\"jwt\""), GOOD, BY_HS, "ok"},
    {"control: typ of RFC 9068", WITH("\"typ\":\"application/at+jwt\""), GOOD, BY_HS, "ok"},
    {"control: unknown members", WITH("\"x5t\":\"abc\",\"foo\":{}"), GOOD, BY_HS, "ok"},
    {"alg none", ALG("none"), GOOD, BY_NOBODY, "JWT_ALGORITHM"},
    {"alg None", ALG("None"), GOOD, BY_NOBODY, "JWT_ALGORITHM"},
    {"alg NONE", ALG("NONE"), GOOD, BY_NOBODY, "JWT_ALGORITHM"},
    {"alg nOnE, signed", ALG("nOnE"), GOOD, BY_HS, "JWT_ALGORITHM"},
    {"alg empty", ALG(""), GOOD, BY_NOBODY, "JWT_ALGORITHM"},
    {"alg none, blank before", ALG(" none"), GOOD, BY_NOBODY, "JWT_ALGORITHM"},
    {"alg none, no kid", "{\"alg\":\"none\"}", GOOD, BY_NOBODY, "JWT_ALGORITHM"},
    {"alg hs256", ALG("hs256"), GOOD, BY_HS, "JWT_ALGORITHM"},
    {"alg HS512", ALG("HS512"), GOOD, BY_HS, "JWT_ALGORITHM"},
    {"alg PS256", "{\"alg\":\"PS256\",\"kid\":\"rs\"}", GOOD, BY_RS, "JWT_ALGORITHM"},
    {"alg missing", "{\"kid\":\"hs\"}", GOOD, BY_HS, "JWT_MALFORMED"},
    {"alg null", "{\"alg\":null,\"kid\":\"hs\"}", GOOD, BY_HS, "JWT_MALFORMED"},
    {"alg an array", "{\"alg\":[\"HS256\"],\"kid\":\"hs\"}", GOOD, BY_HS, "JWT_MALFORMED"},
    {"RS256 became HS256, PEM as secret", "{\"alg\":\"HS256\",\"kid\":\"rs\"}", GOOD, BY_RS_PEM,
     "JWT_ALGORITHM"},
    {"RS256 became HS256, DER as secret", "{\"alg\":\"HS256\",\"kid\":\"rs\"}", GOOD, BY_RS_DER,
     "JWT_ALGORITHM"},
    {"the HMAC key with RS256", "{\"alg\":\"RS256\",\"kid\":\"hs\"}", GOOD, BY_HS, "JWT_ALGORITHM"},
    {"PEM as secret of the HMAC key", HS, GOOD, BY_RS_PEM, "JWT_SIGNATURE"},
    {"empty secret", HS, GOOD, BY_EMPTY, "JWT_SIGNATURE"},
    {"short secret", HS, GOOD, BY_SHORT, "JWT_SIGNATURE"},
    {"no signature", HS, GOOD, BY_NOBODY, "JWT_SIGNATURE"},
    {"no signature, RS256", RS, GOOD, BY_NOBODY, "JWT_SIGNATURE"},
    {"kid of another key", "{\"alg\":\"ES256\",\"kid\":\"ed\"}", GOOD, BY_ES, "JWT_ALGORITHM"},
    {"signed by another key", ES, GOOD, BY_ED, "JWT_SIGNATURE"},
    {"kid missing", "{\"alg\":\"HS256\"}", GOOD, BY_HS, "JWT_KEY_UNKNOWN"},
    {"kid empty", "{\"alg\":\"HS256\",\"kid\":\"\"}", GOOD, BY_HS, "JWT_KEY_UNKNOWN"},
    {"kid unknown", "{\"alg\":\"HS256\",\"kid\":\"HS\"}", GOOD, BY_HS, "JWT_KEY_UNKNOWN"},
    {"kid a number", "{\"alg\":\"HS256\",\"kid\":1}", GOOD, BY_HS, "JWT_MALFORMED"},
    {"kid null", "{\"alg\":\"HS256\",\"kid\":null}", GOOD, BY_HS, "JWT_MALFORMED"},
    {"kid a path", "{\"alg\":\"HS256\",\"kid\":\"../../dev/null\"}", GOOD, BY_EMPTY,
     "JWT_KEY_UNKNOWN"},
    {"kid with SQL", "{\"alg\":\"HS256\",\"kid\":\"x' UNION SELECT 'hs\"}", GOOD, BY_HS,
     "JWT_KEY_UNKNOWN"},
    {"kid with NUL", "{\"alg\":\"HS256\",\"kid\":\"hs\\u0000\"}", GOOD, BY_HS, "JWT_MALFORMED"},
    {"crit", WITH("\"crit\":[\"exp\"]"), GOOD, BY_HS, "JWT_MALFORMED"},
    {"crit empty", WITH("\"crit\":[]"), GOOD, BY_HS, "JWT_MALFORMED"},
    {"jku", WITH("\"jku\":\"https://evil.example/keys\""), GOOD, BY_HS, "JWT_MALFORMED"},
    {"x5u", WITH("\"x5u\":\"https://evil.example/c\""), GOOD, BY_HS, "JWT_MALFORMED"},
    {"x5c", WITH("\"x5c\":[\"MIIB\"]"), GOOD, BY_HS, "JWT_MALFORMED"},
    {"jwk", WITH("\"jwk\":{\"kty\":\"oct\",\"k\":\"AAAA\"}"), GOOD, BY_HS, "JWT_MALFORMED"},
    {"b64 false", WITH("\"b64\":false"), GOOD, BY_HS, "JWT_MALFORMED"},
    {"zip", WITH("\"zip\":\"DEF\""), GOOD, BY_HS, "JWT_MALFORMED"},
    {"cty: a token in a token", WITH("\"cty\":\"JWT\""), GOOD, BY_HS, "JWT_MALFORMED"},
    {"typ of another use", WITH("\"typ\":\"dpop+jwt\""), GOOD, BY_HS, "JWT_MALFORMED"},
    {"typ with NUL", WITH("\"typ\":\"JWT\\u0000\""), GOOD, BY_HS, "JWT_MALFORMED"},
    {"typ a number", WITH("\"typ\":5"), GOOD, BY_HS, "JWT_MALFORMED"},
    {"alg twice", "{\"alg\":\"HS256\",\"alg\":\"none\",\"kid\":\"hs\"}", GOOD, BY_HS,
     "JWT_MALFORMED"},
    {"alg twice, once escaped", "{\"alg\":\"none\",\"\\u0061lg\":\"HS256\",\"kid\":\"hs\"}", GOOD,
     BY_HS, "JWT_MALFORMED"},
    {"header an array", "[\"HS256\"]", GOOD, BY_HS, "JWT_MALFORMED"},
    {"header a string", "\"HS256\"", GOOD, BY_HS, "JWT_MALFORMED"},
    {"header not JSON", "alg=HS256", GOOD, BY_HS, "JWT_MALFORMED"},
    {"header not UTF-8", WITH("\"a\":\"\xff\""), GOOD, BY_HS, "JWT_MALFORMED"},
    {"header with more behind it", HS "{}", GOOD, BY_HS, "JWT_MALFORMED"},
    {"ES256 with r = 0", ES, GOOD, BY_ES_R0, "JWT_SIGNATURE"},
    {"ES256 with s = 0", ES, GOOD, BY_ES_S0, "JWT_SIGNATURE"},
    {"ES256 with both 0", ES, GOOD, BY_ZERO_64, "JWT_SIGNATURE"},
    {"ES256 with s above the order", ES, GOOD, BY_ES_NEG, "JWT_SIGNATURE"},
    {"ES256, swapped", ES, GOOD, BY_ES_SWAP, "JWT_SIGNATURE"},
    {"ES256, DER", ES, GOOD, BY_ES_DER, "JWT_SIGNATURE"},
    {"Ed25519, zeros", ED, GOOD, BY_ZERO_64, "JWT_SIGNATURE"},
    {"Ed25519, the neutral point", ED, GOOD, BY_IDENTITY, "JWT_SIGNATURE"},
    {"Ed25519, S + L", ED, GOOD, BY_ED_MORE, "JWT_SIGNATURE"},
    {"RS256, a zero byte before", RS, GOOD, BY_RS_ZERO, "JWT_SIGNATURE"},
};

static const struct forgery payloads[] = {
    {"control: fractions", HS,
     "{" ID ",\"exp\":1800000600.25,\"nbf\":1.8e9,\"iat\":1799999999.999999," FOR_US "}", BY_HS,
     "ok"},
    {"control: within the leeway", HS,
     "{" ID ",\"exp\":1799999971,\"nbf\":1800000030,\"iat\":1800000030," FOR_US "}", BY_HS, "ok"},
    {"control: aud an array", HS,
     "{" ID "," TIMES ",\"iss\":\"https://id.example\",\"aud\":[\"x\",\"cairn\"]}", BY_HS, "ok"},
    {"control: roles as one text", HS,
     "{\"sub\":\"a\",\"tenant\":\"t\",\"roles\":\" viewer  worker \"" REST, BY_HS, "ok"},
    {"control: unknown roles pass", HS,
     "{\"sub\":\"a\",\"tenant\":\"t\",\"roles\":[\"root\",\"viewer\"]" REST, BY_HS, "ok"},
    {"control: no roles", HS, "{\"sub\":\"a\",\"tenant\":\"t\",\"roles\":[]" REST, BY_HS, "ok"},
    {"expired", HS, "{" ID ",\"exp\":1799990000," FOR_US "}", BY_HS, "JWT_EXPIRED"},
    {"expired by the leeway", HS, "{" ID ",\"exp\":1799999970," FOR_US "}", BY_HS, "JWT_EXPIRED"},
    {"exp zero", HS, "{" ID ",\"exp\":0," FOR_US "}", BY_HS, "JWT_EXPIRED"},
    {"exp missing", HS, "{" ID "," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp null", HS, "{" ID ",\"exp\":null," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp a string", HS, "{" ID ",\"exp\":\"1800000600\"," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp negative", HS, "{" ID ",\"exp\":-1," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp 1e400", HS, "{" ID ",\"exp\":1e400," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp 1e300", HS, "{" ID ",\"exp\":1e300," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp in milliseconds", HS, "{" ID ",\"exp\":1800000600000," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp over int64", HS, "{" ID ",\"exp\":99999999999999999999," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp with many digits", HS,
     "{" ID ",\"exp\":1800000600.00000000000000000000000000000000000000001," FOR_US "}", BY_HS,
     "JWT_CLAIMS"},
    {"exp true", HS, "{" ID ",\"exp\":true," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"exp NaN", HS, "{" ID ",\"exp\":NaN," FOR_US "}", BY_HS, "JWT_MALFORMED"},
    {"exp twice", HS, "{" ID ",\"exp\":1,\"exp\":1800000600," FOR_US "}", BY_HS, "JWT_MALFORMED"},
    {"nbf in the future", HS, "{" ID "," TIMES ",\"nbf\":1800000031," FOR_US "}", BY_HS,
     "JWT_NOT_YET_VALID"},
    {"nbf a string", HS, "{" ID "," TIMES ",\"nbf\":\"0\"," FOR_US "}", BY_HS, "JWT_CLAIMS"},
    {"iat in the future", HS, "{" ID ",\"exp\":1800000600,\"iat\":1800000031," FOR_US "}", BY_HS,
     "JWT_NOT_YET_VALID"},
    {"iss wrong", HS, "{" ID "," TIMES ",\"iss\":\"https://id.example/\",\"aud\":\"cairn\"}", BY_HS,
     "JWT_ISSUER"},
    {"iss missing", HS, "{" ID "," TIMES ",\"aud\":\"cairn\"}", BY_HS, "JWT_ISSUER"},
    {"iss an array", HS, "{" ID "," TIMES ",\"iss\":[\"https://id.example\"],\"aud\":\"cairn\"}",
     BY_HS, "JWT_ISSUER"},
    {"aud missing", HS, "{" ID "," TIMES ",\"iss\":\"https://id.example\"}", BY_HS, "JWT_AUDIENCE"},
    {"aud wrong", HS, "{" ID "," TIMES ",\"iss\":\"https://id.example\",\"aud\":\"cairns\"}", BY_HS,
     "JWT_AUDIENCE"},
    {"aud an empty array", HS, "{" ID "," TIMES ",\"iss\":\"https://id.example\",\"aud\":[]}",
     BY_HS, "JWT_AUDIENCE"},
    {"aud holds a number", HS,
     "{" ID "," TIMES ",\"iss\":\"https://id.example\",\"aud\":[\"cairn\",1]}", BY_HS,
     "JWT_AUDIENCE"},
    {"aud nested", HS, "{" ID "," TIMES ",\"iss\":\"https://id.example\",\"aud\":[[\"cairn\"]]}",
     BY_HS, "JWT_AUDIENCE"},
    {"sub missing", HS, "{\"tenant\":\"t\",\"roles\":[]" REST, BY_HS, "JWT_CLAIMS"},
    {"sub empty", HS, "{\"sub\":\"\",\"tenant\":\"t\",\"roles\":[]" REST, BY_HS, "JWT_CLAIMS"},
    {"sub with a new line", HS, "{\"sub\":\"a\\nb\",\"tenant\":\"t\",\"roles\":[]" REST, BY_HS,
     "JWT_CLAIMS"},
    {"tenant missing", HS, "{\"sub\":\"a\",\"roles\":[]" REST, BY_HS, "JWT_CLAIMS"},
    {"tenant empty", HS, "{\"sub\":\"a\",\"tenant\":\"\",\"roles\":[]" REST, BY_HS, "JWT_CLAIMS"},
    {"tenant a number", HS, "{\"sub\":\"a\",\"tenant\":7,\"roles\":[]" REST, BY_HS, "JWT_CLAIMS"},
    {"tenant an array", HS, "{\"sub\":\"a\",\"tenant\":[\"t\"],\"roles\":[]" REST, BY_HS,
     "JWT_CLAIMS"},
    {"tenant twice", HS, "{\"sub\":\"a\",\"tenant\":\"t\",\"tenant\":\"u\",\"roles\":[]" REST,
     BY_HS, "JWT_MALFORMED"},
    {"tenant with NUL", HS, "{\"sub\":\"a\",\"tenant\":\"t\\u0000\",\"roles\":[]" REST, BY_HS,
     "JWT_MALFORMED"},
    {"roles missing", HS, "{\"sub\":\"a\",\"tenant\":\"t\"" REST, BY_HS, "JWT_CLAIMS"},
    {"roles a number", HS, "{\"sub\":\"a\",\"tenant\":\"t\",\"roles\":31" REST, BY_HS,
     "JWT_CLAIMS"},
    {"roles an object", HS, "{\"sub\":\"a\",\"tenant\":\"t\",\"roles\":{\"admin\":true}" REST,
     BY_HS, "JWT_CLAIMS"},
    {"roles hold a number", HS, "{\"sub\":\"a\",\"tenant\":\"t\",\"roles\":[\"viewer\",16]" REST,
     BY_HS, "JWT_CLAIMS"},
    {"17 roles", HS,
     "{\"sub\":\"a\",\"tenant\":\"t\",\"roles\":\"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\"" REST,
     BY_HS, "JWT_CLAIMS"},
    {"payload an array", HS, "[" GOOD "]", BY_HS, "JWT_MALFORMED"},
    {"payload a number", HS, "1800000600", BY_HS, "JWT_MALFORMED"},
    {"payload not JSON", HS, "hello", BY_HS, "JWT_MALFORMED"},
    {"payload with a comment", HS, "{/**/" ID REST, BY_HS, "JWT_MALFORMED"},
};

static void check_table(struct keys *k, const struct forgery *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct arena_mark mark = arena_mark(&k->arena);
        str token = mint(k, str_c(cases[i].header), str_c(cases[i].payload), cases[i].by);
        const char *got = verdict(k, k->set, &strict, token);
        CHECK(strcmp(got, cases[i].want) == 0, "%s: %s, want %s", cases[i].name, got,
              cases[i].want);
        arena_rewind(&k->arena, mark);
    }
}

TEST(jwt_forged_tokens_are_refused_for_the_right_reason) {
    struct keys k;
    keys_make(&k);
    check_table(&k, headers, COUNT_OF(headers));
    check_table(&k, payloads, COUNT_OF(payloads));
    keys_free(&k);
}

/* ---- the form of the token ---- */

static const char *shape_verdict(struct keys *k, const char *fmt, str a, str b, str c) {
    struct buf out;
    buf_init(&out, (size_t)64 * 1024);
    for (const char *p = fmt; *p; p++) {
        if (*p == 'A')
            buf_put(&out, a);
        else if (*p == 'B')
            buf_put(&out, b);
        else if (*p == 'C')
            buf_put(&out, c);
        else
            buf_put_char(&out, *p);
    }
    const char *got = verdict(k, k->set, &strict, buf_str(&out));
    buf_release(&out);
    return got;
}

TEST(jwt_other_shapes_are_refused) {
    static const char *const shapes[] = {
        "",          "A",        ".",       "..",           "...",         "A.B",     "A.B.C.",
        ".A.B.C",    "A..B.C",   "A.B.C.C", ".B.C",         "A..C",        "A.B.C=",  "A=.B.C",
        "A.B==.C",   "A.B.C\n",  " A.B.C",  "A.B.C ",       "A. B.C",      "A\t.B.C", "A.B.C/",
        "A.B.C+",    "A.B%2e.C", "A.B.C~",  "Bearer A.B.C", "A.B.C,A.B.C", "A,B,C",   "\"A.B.C\"",
        "A.B.C\x80",
    };
    struct keys k;
    keys_make(&k);
    str token = mint(&k, STR(HS), STR(GOOD), BY_HS);
    str a;
    str b;
    str c;
    CHECK(str_split(token, '.', &a, &b) && str_split(b, '.', &b, &c));
    CHECK(strcmp(shape_verdict(&k, "A.B.C", a, b, c), "ok") == 0);
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const char *got = shape_verdict(&k, shapes[i], a, b, c);
        CHECK(strcmp(got, "JWT_MALFORMED") == 0, "\"%s\": %s", shapes[i], got);
    }
    CHECK(strcmp(shape_verdict(&k, "A.B.", a, b, c), "JWT_SIGNATURE") == 0);
    CHECK(strcmp(shape_verdict(&k, "A.B.CCC", a, b, c), "JWT_MALFORMED") == 0);
    CHECK(strcmp(shape_verdict(&k, "A.C.B", a, b, c), "JWT_SIGNATURE") == 0);
    CHECK(strcmp(shape_verdict(&k, "B.A.C", a, b, c), "JWT_MALFORMED") == 0);
    str nul = format(&k.arena, "%.*s%c", STR_ARG(token), 0);
    CHECK(strcmp(verdict(&k, k.set, &strict, nul), "JWT_MALFORMED") == 0);
    keys_free(&k);
}

/* The last character of 32 bytes carries two bits that must be zero. */
TEST(jwt_bytes_have_one_text_only) {
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    struct keys k;
    keys_make(&k);
    str token = mint(&k, STR(HS), STR(GOOD), BY_HS);
    char *text = arena_alloc(&k.arena, token.len);
    memcpy(text, token.ptr, token.len);
    size_t value = (size_t)(strchr(alphabet, text[token.len - 1]) - alphabet);
    CHECK(value % 4 == 0);
    for (size_t extra = 1; extra < 4; extra++) {
        text[token.len - 1] = alphabet[value + extra];
        const char *got = verdict(&k, k.set, &strict, str_n(text, token.len));
        CHECK(strcmp(got, "JWT_MALFORMED") == 0, "%s", got);
    }
    keys_free(&k);
}

/* Each character of a good token matters, and so does its end. */
TEST(jwt_changed_or_cut_anywhere_is_refused) {
    static const struct {
        const char *header;
        enum signer by;
    } kinds[] = {{HS, BY_HS}, {RS, BY_RS}, {ES, BY_ES}, {ED, BY_ED}};
    struct keys k;
    keys_make(&k);
    for (size_t kind = 0; kind < COUNT_OF(kinds); kind++) {
        str token = mint(&k, str_c(kinds[kind].header), STR(GOOD), kinds[kind].by);
        char *text = arena_alloc(&k.arena, token.len);
        memcpy(text, token.ptr, token.len);
        for (size_t i = 0; i < token.len; i++) {
            text[i] = text[i] == 'A' ? 'Q' : 'A';
            const char *got = verdict(&k, k.set, &strict, str_n(text, token.len));
            CHECK(strcmp(got, "ok") != 0, "kind %zu, character %zu", kind, i);
            text[i] = token.ptr[i];
            got = verdict(&k, k.set, &strict, str_n(text, i));
            CHECK(strcmp(got, "ok") != 0, "kind %zu, cut at %zu", kind, i);
        }
        CHECK(strcmp(verdict(&k, k.set, &strict, str_n(text, token.len)), "ok") == 0);
    }
    keys_free(&k);
}

TEST(jwt_bombs_are_refused) {
    struct keys k;
    keys_make(&k);
    char *deep = arena_alloc(&k.arena, 8000);
    memset(deep, '[', 7999);
    str bomb = format(&k.arena, "{" ID ",\"x\":%s", deep);
    str good = format(&k.arena, "{" ID REST);
    CHECK(strcmp(verdict(&k, k.set, &strict, mint(&k, STR(HS), bomb, BY_HS)), "JWT_MALFORMED") ==
          0);
    str header = format(&k.arena, "{\"alg\":\"HS256\",\"kid\":\"hs\",\"x\":%s", deep);
    CHECK(strcmp(verdict(&k, k.set, &strict, mint(&k, header, good, BY_HS)), "JWT_MALFORMED") == 0);
    memset(deep, 'x', 7999); /* one that is long, and one that is too long */
    str tall = format(&k.arena, "{" ID ",\"x\":\"%s\"" REST, deep);
    CHECK(strcmp(verdict(&k, k.set, &strict, mint(&k, STR(HS), tall, BY_HS)), "ok") == 0);
    str more = format(&k.arena, "{" ID ",\"x\":\"%s%s\"" REST, deep, deep);
    str token = mint(&k, STR(HS), more, BY_HS);
    CHECK(token.len > (size_t)17 * 1024);
    CHECK(strcmp(verdict(&k, k.set, &strict, token), "JWT_MALFORMED") == 0);
    char wide[300];
    memset(wide, 'w', sizeof(wide));
    str tenant = format(&k.arena, "{\"sub\":\"a\",\"tenant\":\"%.256s\",\"roles\":[]" REST, wide);
    CHECK(strcmp(verdict(&k, k.set, &strict, mint(&k, STR(HS), tenant, BY_HS)), "JWT_CLAIMS") == 0);
    tenant = format(&k.arena, "{\"sub\":\"a\",\"tenant\":\"%.255s\",\"roles\":[]" REST, wide);
    CHECK(strcmp(verdict(&k, k.set, &strict, mint(&k, STR(HS), tenant, BY_HS)), "ok") == 0);
    str kid = format(&k.arena, "{\"alg\":\"HS256\",\"kid\":\"%.256s\"}", wide);
    CHECK(strcmp(verdict(&k, k.set, &strict, mint(&k, kid, good, BY_HS)), "JWT_MALFORMED") == 0);
    keys_free(&k);
}

/* ---- what is taken out of a good one ---- */

TEST(jwt_claims_are_what_the_token_says) {
    struct keys k;
    keys_make(&k);
    struct error err = {0};
    struct jwt_claims claims;
    str token = mint(&k, STR(ES),
                     STR("{\"sub\":\"b\\u00f6b\",\"org\":\"o\",\"grants\":\" viewer  root\","
                         "\"exp\":1800000600.5,\"tenant\":1}"),
                     BY_ES);
    struct jwt_policy policy = {.tenant_claim = STR("org"), .roles_claim = STR("grants")};
    CHECK(jwt_verify(k.set, &policy, token, NOW_US, &k.arena, &claims, &err) == ST_OK, "%s",
          err.msg);
    CHECK(str_eq(claims.subject, STR("b\xc3\xb6"
                                     "b")));
    CHECK(str_eq(claims.tenant, STR("o")));
    CHECK(claims.role_count == 2 && str_eq(claims.roles[0], STR("viewer")) &&
          str_eq(claims.roles[1], STR("root")));
    CHECK(claims.expires_us == INT64_C(1800000600500000));
    CHECK(claims.key_mark > 0 && jwks_has(k.set, claims.key_mark));
    CHECK(!jwks_has(k.set, claims.key_mark + 2));
    claims.tenant = STR("untouched");
    CHECK(jwt_verify(k.set, &policy, STR("x"), NOW_US, &k.arena, &claims, &err) == ST_INVALID);
    CHECK(str_eq(claims.tenant, STR("untouched")));
    keys_free(&k);
}

TEST(jwt_without_kid_is_tried_with_an_only_key) {
    struct keys k;
    keys_make(&k);
    struct jwks *one = set_of(&k, format(&k.arena, "{\"keys\":[%.*s]}", STR_ARG(jwk_rs(&k))));
    str bare = mint(&k, STR("{\"alg\":\"RS256\"}"), STR(GOOD), BY_RS);
    CHECK(strcmp(verdict(&k, one, &strict, bare), "ok") == 0);
    CHECK(strcmp(verdict(&k, k.set, &strict, bare), "JWT_KEY_UNKNOWN") == 0);
    str other = mint(&k, STR("{\"alg\":\"RS256\",\"kid\":\"x\"}"), STR(GOOD), BY_RS);
    CHECK(strcmp(verdict(&k, one, &strict, other), "JWT_KEY_UNKNOWN") == 0);
    /* Without a kid, too, the key decides the algorithm. */
    str forged = mint(&k, STR("{\"alg\":\"HS256\"}"), STR(GOOD), BY_RS_PEM);
    CHECK(strcmp(verdict(&k, one, &strict, forged), "JWT_ALGORITHM") == 0);
    forged = mint(&k, STR("{\"alg\":\"HS256\"}"), STR(GOOD), BY_RS_DER);
    CHECK(strcmp(verdict(&k, one, &strict, forged), "JWT_ALGORITHM") == 0);
    jwks_close(one);
    keys_free(&k);
}

/* ---- known answers: what fails after the signature says that the signature was good ---- */

static const char *known(const char *jwk, const char *token, int64_t now_s, struct error *err) {
    struct arena arena;
    struct jwks *set = NULL;
    struct jwt_claims claims;
    struct jwt_policy policy = {0};
    arena_init(&arena, 4096, (size_t)1024 * 1024);
    CHECK(jwks_parse(format(&arena, "{\"keys\":[%s]}", jwk), &set, err) == ST_OK, "%s", err->msg);
    CHECK(jwt_verify(set, &policy, str_c(token), now_s * 1000000, &arena, &claims, err) ==
          ST_INVALID);
    jwks_close(set);
    arena_release(&arena);
    return reason_name(err->reason);
}

TEST(jwt_known_answers) {
    struct error err = {0};
    const char *hmac_key = "{\"kty\":\"oct\",\"k\":\"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-"
                           "1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow\"}";
    const char *hmac = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9."
                       "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9"
                       "pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    CHECK(strcmp(known(hmac_key, hmac, 1300819000, &err), "JWT_CLAIMS") == 0, "%s", err.msg);
    CHECK(strstr(err.msg, "\"sub\" is missing") != NULL, "%s", err.msg);
    CHECK(strcmp(known(hmac_key, hmac, 1400000000, &err), "JWT_EXPIRED") == 0, "%s", err.msg);
    const char *ed_key = "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":"
                         "\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}";
    const char *ed =
        "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc."
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr"
        "_MuM0KAg";
    CHECK(strcmp(known(ed_key, ed, 1, &err), "JWT_MALFORMED") == 0, "%s", err.msg);
    CHECK(strstr(err.msg, "payload") != NULL, "%s", err.msg);
}

/* Whatever allocation fails, the answer is ST_RETRY or right, and nothing leaks. */
TEST(jwt_survives_an_empty_machine) {
    struct keys k;
    keys_make(&k);
    str token = mint(&k, STR(HS), STR(GOOD), BY_HS);
    for (int64_t n = 0; n < 12; n++) {
        struct error err = {0};
        struct arena arena;
        struct jwt_claims claims;
        arena_init(&arena, 256, (size_t)1024 * 1024);
        mem_fail_at(n);
        status st = jwt_verify(k.set, &strict, token, NOW_US, &arena, &claims, &err);
        mem_fail_at(-1);
        CHECK(st == ST_OK || st == ST_RETRY, "%s", err.msg);
        CHECK(n > 0 || st == ST_RETRY);
        CHECK(n < 11 || st == ST_OK);
        arena_release(&arena);
    }
    keys_free(&k);
}
