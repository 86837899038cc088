/* api/jwt_impl.h: what the key set (jwks.c) and the tokens (jwt.c) share. For them only. */
#pragma once

#include <openssl/evp.h>

#include "api/jwt.h"
#include "base/json.h"

enum jwt_algorithm { JWT_HS256, JWT_RS256, JWT_ES256, JWT_EDDSA, JWT_ALGORITHM_COUNT };

enum {
    JWK_OCT_MIN = 32, /* as long as the hash: RFC 7518, 3.2 */
    JWK_OCT_MAX = 1024,
    JWK_RSA_BITS_MIN = 2048,
    JWK_RSA_BITS_MAX = 8192, /* a check takes a fraction of a millisecond, on the loop */
    P256_LEN = 32,
    ED25519_KEY_LEN = 32,
    ED25519_SIGNATURE_LEN = 64,
    JWT_DEPTH_MAX = 16, /* nesting of a header, a payload, a key set */
};

struct jwk {
    enum jwt_algorithm algorithm;
    str kid;              /* STR_NONE: none, then it is the only one */
    EVP_PKEY *public_key; /* all but HS256 */
    uint8_t secret[JWK_OCT_MAX];
    size_t secret_len; /* HS256 */
    int64_t mark;      /* see jwks_has() */
};

struct jwks {
    struct arena arena; /* the kids */
    size_t count;
    struct jwk keys[JWKS_KEYS_MAX];
};

/* "HS256" ...; false for any other, in any other spelling. */
bool jwt_algorithm_of(str name, enum jwt_algorithm *out);
const char *jwt_algorithm_name(enum jwt_algorithm algorithm);

/* Strict base64url: no padding, no blanks, no other alphabet, unused bits zero, so that bytes have
 * one text only. `out` has room for text.len * 3 / 4 bytes. */
bool base64url_decode(str text, uint8_t *out, size_t *len);
