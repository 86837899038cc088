/* api/jwt.c: JSON Web Tokens (RFC 7519) in the compact form of RFC 7515.
 *
 * In this order, so that nothing is believed before its signature was checked: the form of the
 * token, its header, the key, the signature, the payload, the claims. The header is looked at only
 * to find the key and to refuse what we do not do; the algorithm is the key's.
 *
 * `typ` may be absent, "JWT" or "at+jwt" (RFC 9068), with "application/" before it or not, in
 * either case; any other one is a token that was made for something else (RFC 8725, 3.11). Members
 * that name keys, or change what the signature covers, are refused even when they would not matter.
 */
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <strings.h>

#include "api/jwt_impl.h"
#include "base/hash.h"
#include "base/limits.h"

enum {
    ROLES_MAX = 16,
    RSA_SIGNATURE_MAX = JWK_RSA_BITS_MAX / 8,
    SIGNATURE_DER_MAX = 80,
    NUMBER_TEXT_MAX = 40, /* more digits than any time has */
};
#define TIME_MAX_S 253402300799.0 /* the end of the year 9999 */
#define US_PER_S 1000000

struct token {
    str signed_text;                /* header '.' payload, as sent */
    str header, payload, signature; /* decoded */
    struct arena *arena;
    struct error *err;
};

static status refuse(const struct token *t, enum reason reason, const char *why) {
    return error_at(t->err, reason, "", "the token %s", why);
}

static status refuse_claim(const struct token *t, str name, const char *why) {
    return error_at(t->err, REASON_JWT_CLAIMS, "", "the token's claim \"%.*s\" %s", STR_ARG(name),
                    why);
}

static status no_memory(const struct token *t) {
    return error_set(t->err, ST_RETRY, "could not check a token: out of memory");
}

/* ---- the form ---- */

static status decode(const struct token *t, str text, str *out) {
    size_t len = 0;
    uint8_t *bytes = arena_try_raw(t->arena, text.len * 3 / 4 + 1);
    if (bytes == NULL) return no_memory(t);
    if (!base64url_decode(text, bytes, &len))
        return refuse(t, REASON_JWT_MALFORMED, "is not base64url without padding");
    *out = str_n(bytes, len);
    return ST_OK;
}

static status split(struct token *t, str text) {
    str header;
    str payload;
    str signature;
    if (text.len > JWT_BYTES_MAX) return refuse(t, REASON_JWT_MALFORMED, "is longer than 16 KiB");
    if (!str_split(text, '.', &header, &payload) ||
        !str_split(payload, '.', &payload, &signature) || str_has(signature, '.'))
        return refuse(t, REASON_JWT_MALFORMED, "must have three parts");
    if (header.len == 0 || payload.len == 0)
        return refuse(t, REASON_JWT_MALFORMED, "has an empty part");
    t->signed_text = str_n(text.ptr, header.len + 1 + payload.len);
    status st = decode(t, header, &t->header);
    if (st == ST_OK) st = decode(t, payload, &t->payload);
    return st == ST_OK ? decode(t, signature, &t->signature) : st;
}

static status parse_object(const struct token *t, str json, const char *part, yyjson_val **out) {
    struct error bad = {0};
    struct json_limits limits = {JWT_BYTES_MAX, JWT_DEPTH_MAX};
    status st = json_parse(json, limits, t->arena, out, &bad);
    if (st == ST_RETRY) return no_memory(t);
    if (st != ST_OK)
        return error_at(t->err, REASON_JWT_MALFORMED, "", "the token's %s is refused: %.200s", part,
                        bad.msg);
    if (yyjson_is_obj(*out)) return ST_OK;
    return error_at(t->err, REASON_JWT_MALFORMED, "", "the token's %s must be an object", part);
}

/* ---- the header ---- */

static bool type_is_known(str type) {
    static const char application[] = "application/";
    size_t prefix = sizeof(application) - 1;
    if (type.len > prefix && strncasecmp(type.ptr, application, prefix) == 0)
        type = str_from(type, prefix);
    return (type.len == 3 && strncasecmp(type.ptr, "JWT", 3) == 0) ||
           (type.len == 6 && strncasecmp(type.ptr, "at+jwt", 6) == 0);
}

static status check_header(const struct token *t, yyjson_val *header) {
    static const char *const refused[] = {"crit", "jku", "x5u", "jwk", "x5c",
                                          "b64",  "zip", "enc", "cty"};
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        if (json_member(header, refused[i]) != NULL)
            return error_at(t->err, REASON_JWT_MALFORMED, "",
                            "the token's header must not have \"%s\"", refused[i]);
    }
    yyjson_val *type = json_member(header, "typ");
    str text;
    if (type != NULL && (!json_str(type, &text) || !type_is_known(text)))
        return refuse(t, REASON_JWT_MALFORMED, "is of another type (typ) than JWT or at+jwt");
    return ST_OK;
}

static status find_key(const struct token *t, const struct jwks *set, yyjson_val *header,
                       const struct jwk **out) {
    yyjson_val *member = json_member(header, "kid");
    str kid = STR_NONE;
    if (member != NULL && (!json_str(member, &kid) || kid.len > ID_BYTES_MAX))
        return refuse(t, REASON_JWT_MALFORMED, "has a kid that is no string of at most 255 bytes");
    if (member == NULL && set->count == 1) {
        *out = &set->keys[0];
        return ST_OK;
    }
    if (member == NULL)
        return refuse(t, REASON_JWT_KEY_UNKNOWN, "has no kid, and there are several keys");
    for (size_t i = 0; i < set->count; i++) {
        if (set->keys[i].kid.ptr == NULL || !str_eq(set->keys[i].kid, kid)) continue;
        *out = &set->keys[i];
        return ST_OK;
    }
    return refuse(t, REASON_JWT_KEY_UNKNOWN, "was made with a key that is not known here");
}

static status read_header(const struct token *t, const struct jwks *set, const struct jwk **key) {
    yyjson_val *header = NULL;
    str name;
    enum jwt_algorithm algorithm;
    status st = parse_object(t, t->header, "header", &header);
    if (st == ST_OK) st = check_header(t, header);
    if (st != ST_OK) return st;
    if (!json_str(json_member(header, "alg"), &name))
        return refuse(t, REASON_JWT_MALFORMED, "has no algorithm (alg)");
    if (!jwt_algorithm_of(name, &algorithm))
        return refuse(t, REASON_JWT_ALGORITHM, "must use HS256, RS256, ES256 or EdDSA");
    st = find_key(t, set, header, key);
    if (st != ST_OK) return st;
    ASSERT(*key != NULL);
    if ((*key)->algorithm != algorithm)
        return refuse(t, REASON_JWT_ALGORITHM, "uses another algorithm than its key is for");
    return ST_OK;
}

/* ---- the signature ---- */

static bool hmac_matches(const struct jwk *key, str text, str signature) {
    uint8_t mac[SHA256_LEN];
    unsigned len = 0;
    ASSERT(key->secret_len >= JWK_OCT_MIN);
    if (HMAC(EVP_sha256(), key->secret, (int)key->secret_len, (const uint8_t *)text.ptr, text.len,
             mac, &len) == NULL)
        return false;
    return len == SHA256_LEN && signature.len == SHA256_LEN &&
           CRYPTO_memcmp(mac, signature.ptr, SHA256_LEN) == 0;
}

/* r and s, 32 bytes each, become what libcrypto reads; 0 if that fails. */
static size_t signature_der(str raw, uint8_t out[SIGNATURE_DER_MAX]) {
    const uint8_t *bytes = (const uint8_t *)raw.ptr;
    ECDSA_SIG *pair = ECDSA_SIG_new();
    BIGNUM *r = BN_bin2bn(bytes, P256_LEN, NULL);
    BIGNUM *s = BN_bin2bn(bytes + P256_LEN, P256_LEN, NULL);
    int len = 0;
    if (pair != NULL && r != NULL && s != NULL && ECDSA_SIG_set0(pair, r, s) == 1) {
        r = s = NULL; /* the pair's */
        len = i2d_ECDSA_SIG(pair, NULL);
        if (len > 0 && len <= SIGNATURE_DER_MAX)
            len = i2d_ECDSA_SIG(pair, &out);
        else
            len = 0;
    }
    BN_free(r);
    BN_free(s);
    ECDSA_SIG_free(pair);
    return len > 0 ? (size_t)len : 0;
}

static bool public_key_matches(const struct jwk *key, str text, str signature) {
    const EVP_MD *digest = key->algorithm == JWT_EDDSA ? NULL : EVP_sha256();
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = context != NULL &&
                EVP_DigestVerifyInit(context, NULL, digest, NULL, key->public_key) == 1 &&
                EVP_DigestVerify(context, (const uint8_t *)signature.ptr, signature.len,
                                 (const uint8_t *)text.ptr, text.len) == 1;
    EVP_MD_CTX_free(context);
    return good;
}

static bool ecdsa_matches(const struct jwk *key, str text, str signature) {
    uint8_t der[SIGNATURE_DER_MAX];
    if (signature.len != (size_t)2 * P256_LEN) return false;
    size_t len = signature_der(signature, der);
    return len > 0 && public_key_matches(key, text, str_n(der, len));
}

static bool signature_matches(const struct jwk *key, str text, str signature) {
    switch (key->algorithm) {
    case JWT_HS256:
        return hmac_matches(key, text, signature);
    case JWT_RS256:
        return signature.len <= RSA_SIGNATURE_MAX &&
               signature.len == (size_t)EVP_PKEY_get_size(key->public_key) &&
               public_key_matches(key, text, signature);
    case JWT_ES256:
        return ecdsa_matches(key, text, signature);
    case JWT_EDDSA:
        return signature.len == ED25519_SIGNATURE_LEN && public_key_matches(key, text, signature);
    case JWT_ALGORITHM_COUNT:
        break;
    }
    return false;
}

static status check_signature(const struct token *t, const struct jwk *key) {
    ASSERT(key != NULL);
    bool good = signature_matches(key, t->signed_text, t->signature);
    ERR_clear_error(); /* the queue is the thread's: TLS on the same loop looks at it */
    return good ? ST_OK : refuse(t, REASON_JWT_SIGNATURE, "has a signature that is not its key's");
}

/* ---- the claims ---- */

/* Seconds since 1970, with a fraction or an exponent if one likes. */
static bool seconds_to_us(yyjson_val *val, int64_t *us) {
    char text[NUMBER_TEXT_MAX + 1];
    yyjson_val number = {0};
    if (!yyjson_is_raw(val) || yyjson_get_len(val) > NUMBER_TEXT_MAX) return false;
    memcpy(text, yyjson_get_raw(val), yyjson_get_len(val));
    text[yyjson_get_len(val)] = '\0';
    const char *end = yyjson_read_number(text, &number, YYJSON_READ_NOFLAG, NULL, NULL);
    if (end == NULL || *end != '\0') return false;
    double seconds = yyjson_get_num(&number);
    if (!(seconds >= 0 && seconds <= TIME_MAX_S)) return false;
    *us = (int64_t)(seconds * US_PER_S);
    return true;
}

/* *us stays as it is when the claim is absent. */
static status time_claim(const struct token *t, yyjson_val *claims, const char *name, int64_t *us) {
    yyjson_val *val = json_member(claims, name);
    if (val == NULL || seconds_to_us(val, us)) return ST_OK;
    return refuse_claim(t, str_c(name), "must be a time in seconds");
}

static status check_times(const struct token *t, yyjson_val *claims, int64_t now_us,
                          int64_t *expires_us) {
    const int64_t leeway = (int64_t)JWT_LEEWAY_S * US_PER_S;
    int64_t expires = -1;
    int64_t not_before = 0;
    int64_t issued = 0;
    status st = time_claim(t, claims, "exp", &expires);
    if (st == ST_OK) st = time_claim(t, claims, "nbf", &not_before);
    if (st == ST_OK) st = time_claim(t, claims, "iat", &issued);
    if (st != ST_OK) return st;
    if (expires < 0) return refuse_claim(t, STR("exp"), "is missing");
    if (now_us - leeway >= expires) return refuse(t, REASON_JWT_EXPIRED, "has expired");
    if (now_us + leeway < not_before)
        return refuse(t, REASON_JWT_NOT_YET_VALID, "is not valid yet (nbf)");
    if (now_us + leeway < issued)
        return refuse(t, REASON_JWT_NOT_YET_VALID, "was issued in the future (iat)");
    *expires_us = expires;
    return ST_OK;
}

static status check_issuer(const struct token *t, yyjson_val *claims, str issuer) {
    str text;
    if (issuer.ptr == NULL) return ST_OK;
    if (json_str(json_member(claims, "iss"), &text) && str_eq(text, issuer)) return ST_OK;
    return refuse(t, REASON_JWT_ISSUER, "is of another issuer (iss)");
}

static status check_audience(const struct token *t, yyjson_val *claims, str audience) {
    yyjson_val *val = json_member(claims, "aud");
    str text;
    bool found = false;
    bool texts_only = true;
    if (audience.ptr == NULL) return ST_OK;
    if (json_str(val, &text)) {
        found = str_eq(text, audience);
    } else if (yyjson_is_arr(val)) {
        yyjson_arr_iter it = yyjson_arr_iter_with(val);
        for (yyjson_val *one; (one = yyjson_arr_iter_next(&it)) != NULL;) {
            texts_only = texts_only && json_str(one, &text);
            found = found || (texts_only && str_eq(text, audience));
        }
    }
    return found && texts_only ? ST_OK
                               : refuse(t, REASON_JWT_AUDIENCE, "is for another audience (aud)");
}

/* An id: what it says ends in names, logs and the audit trail. */
static status id_claim(const struct token *t, yyjson_val *claims, str name, str *out) {
    str text;
    yyjson_val *val = yyjson_obj_getn(claims, name.ptr, name.len);
    if (val == NULL) return refuse_claim(t, name, "is missing");
    if (!json_str(val, &text)) return refuse_claim(t, name, "must be a string");
    if (text.len == 0 || text.len > ID_BYTES_MAX)
        return refuse_claim(t, name, "must have 1 to 255 bytes");
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c < 0x20 || c == 0x7F) return refuse_claim(t, name, "has a control character");
    }
    *out = text;
    return ST_OK;
}

static bool role_add(struct jwt_claims *out, str role) {
    if (out->role_count == ROLES_MAX) return false;
    out->roles[out->role_count++] = role;
    return true;
}

/* One text with blanks between the roles, as `scope` has it. */
static bool roles_split(struct jwt_claims *out, str text) {
    while (text.len > 0) {
        str role;
        if (!str_split(text, ' ', &role, &text)) text = STR_NONE;
        if (role.len > 0 && !role_add(out, role)) return false;
    }
    return true;
}

static status read_roles(const struct token *t, yyjson_val *claims, str name,
                         struct jwt_claims *out) {
    yyjson_val *val = yyjson_obj_getn(claims, name.ptr, name.len);
    str text;
    bool room = true;
    out->roles = arena_try(t->arena, sizeof(str) * ROLES_MAX);
    if (out->roles == NULL) return no_memory(t);
    if (val == NULL) return refuse_claim(t, name, "is missing");
    if (json_str(val, &text)) {
        room = roles_split(out, text);
    } else if (yyjson_is_arr(val)) {
        yyjson_arr_iter it = yyjson_arr_iter_with(val);
        for (yyjson_val *one; (one = yyjson_arr_iter_next(&it)) != NULL;) {
            if (!json_str(one, &text)) return refuse_claim(t, name, "must hold strings only");
            room = room && role_add(out, text);
        }
    } else {
        return refuse_claim(t, name, "must be an array of strings, or one string");
    }
    return room ? ST_OK : refuse_claim(t, name, "has more than 16 roles");
}

static status read_claims(const struct token *t, const struct jwt_policy *policy, int64_t now_us,
                          struct jwt_claims *out) {
    yyjson_val *claims = NULL;
    str tenant = policy->tenant_claim.ptr != NULL ? policy->tenant_claim : STR("tenant");
    str roles = policy->roles_claim.ptr != NULL ? policy->roles_claim : STR("roles");
    status st = parse_object(t, t->payload, "payload", &claims);
    if (st == ST_OK) st = check_times(t, claims, now_us, &out->expires_us);
    if (st == ST_OK) st = check_issuer(t, claims, policy->issuer);
    if (st == ST_OK) st = check_audience(t, claims, policy->audience);
    if (st == ST_OK) st = id_claim(t, claims, STR("sub"), &out->subject);
    if (st == ST_OK) st = id_claim(t, claims, tenant, &out->tenant);
    if (st == ST_OK) st = read_roles(t, claims, roles, out);
    return st;
}

status jwt_verify(const struct jwks *set, const struct jwt_policy *policy, str token,
                  int64_t now_us, struct arena *arena, struct jwt_claims *out, struct error *err) {
    struct token t = {.arena = arena, .err = err};
    struct jwt_claims claims = {0};
    const struct jwk *key = NULL;
    ASSERT(set->count > 0);
    status st = split(&t, token);
    if (st == ST_OK) st = read_header(&t, set, &key);
    if (st == ST_OK) st = check_signature(&t, key);
    if (st == ST_OK) st = read_claims(&t, policy, now_us, &claims);
    if (st == ST_OK) claims.key_mark = key->mark;
    if (st == ST_OK) *out = claims;
    return st;
}
