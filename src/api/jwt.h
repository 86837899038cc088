/* api/jwt.h: JSON Web Tokens: signature and times. Pure but for libcrypto; time is an argument.
 *
 * The key decides the algorithm, never the token: a key of the set has one algorithm, and a token
 * with another one, or with none, is refused. A token without `kid` is tried only if the set has
 * exactly one key. Sets come from a file in the JWKS format: kty oct (HS256), RSA of at least 2048
 * bits (RS256), EC P-256 (ES256), OKP Ed25519 (EdDSA). Keys with another `use` than "sig" are
 * passed over; private members, a kid twice, secrets under 32 bytes, points of small order are
 * refused. `crit`, `jku`, `x5u`, `x5c`, `jwk`, `b64`, `zip`, `enc`, `cty` in a header: refused;
 * `typ` is absent, "JWT" or "at+jwt". Nothing is fetched.
 *
 * Reasons: JWT_MALFORMED, JWT_ALGORITHM, JWT_KEY_UNKNOWN, JWT_SIGNATURE, JWT_EXPIRED,
 * JWT_NOT_YET_VALID, JWT_ISSUER, JWT_AUDIENCE, JWT_CLAIMS; all ST_INVALID. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"

struct jwks;
enum {
    JWT_BYTES_MAX = 16 * 1024,
    JWKS_BYTES_MAX = 1024 * 1024,
    JWKS_KEYS_MAX = 64,
    JWT_LEEWAY_S = 30
};

/* JWKS_INVALID with a pointer. The caller ends it with jwks_close(). */
MUST_CHECK status jwks_parse(str json, struct jwks **out, struct error *err);
MUST_CHECK status jwks_load(str file, struct jwks **out, struct error *err);
void jwks_close(struct jwks *set); /* NULL is fine */
/* Is there a key with this mark (see jwt_claims)? It is made of all that a key is, kid and bytes,
 * so it is known again in a set that was read later, and another key of the same kid is not it. */
bool jwks_has(const struct jwks *set, int64_t mark);

struct jwt_policy {
    str issuer, audience; /* STR_NONE: not checked; else `iss` equals, `aud` is or holds it */
    str tenant_claim;     /* STR_NONE: "tenant" */
    str roles_claim; /* STR_NONE: "roles": an array of texts, or one text with blanks; required,
                        may be empty. What they mean is the caller's */
};
struct jwt_claims {
    str subject, tenant; /* both required, not empty, at most ID_BYTES_MAX */
    str *roles;
    size_t role_count;  /* at most 16 */
    int64_t expires_us; /* `exp` is required */
    int64_t key_mark;   /* of the key that signed it; greater than 0 */
};
/* Checks everything. Strings live in the arena. */
MUST_CHECK status jwt_verify(const struct jwks *set, const struct jwt_policy *policy, str token,
                             int64_t now_us, struct arena *arena, struct jwt_claims *out,
                             struct error *err);
