/* api/jwks.c: a set of keys in the JWKS format (RFC 7517), from a file that the operator wrote.
 *
 * The file is refused as a whole when one key of it cannot be used: better at start, with a
 * pointer, than later as tokens that nobody can explain. The one exception: keys whose `use` is not
 * "sig", or whose `key_ops` lack "verify", are passed over, for issuers publish their encryption
 * keys in the same document. Private members are refused even there: what is not in the file cannot
 * be stolen from it. Members that we do not know are ignored, as the standard demands. */
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/param_build.h>
#include <openssl/x509.h>

#include "api/jwt_impl.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/os.h"

#define JWKS_ARENA_MAX ((size_t)32 * 1024 * 1024) /* the values of JWKS_BYTES_MAX of JSON */

/* ---- small parts ---- */

static int base64url_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '-') return 62;
    return c == '_' ? 63 : -1;
}

bool base64url_decode(str text, uint8_t *out, size_t *len) {
    uint32_t bits = 0;
    unsigned held = 0; /* bits not yet written */
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) {
        int value = base64url_value(text.ptr[i]);
        if (value < 0) return false;
        bits = (bits << 6 | (uint32_t)value) & 0xFFFF;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        out[n++] = (uint8_t)(bits >> held);
    }
    if (text.len % 4 == 1 || (bits & ((1U << held) - 1)) != 0) return false;
    *len = n;
    return true;
}

static const char *const algorithm_names[JWT_ALGORITHM_COUNT] = {
    [JWT_HS256] = "HS256", [JWT_RS256] = "RS256", [JWT_ES256] = "ES256", [JWT_EDDSA] = "EdDSA"};

bool jwt_algorithm_of(str name, enum jwt_algorithm *out) {
    for (size_t i = 0; i < COUNT_OF(algorithm_names); i++) {
        if (!str_eq(name, str_c(algorithm_names[i]))) continue;
        *out = (enum jwt_algorithm)i;
        return true;
    }
    return false;
}

const char *jwt_algorithm_name(enum jwt_algorithm algorithm) {
    ASSERT(algorithm < JWT_ALGORITHM_COUNT);
    return algorithm_names[algorithm];
}

/* ---- one key ---- */

struct reading { /* where we are in the document */
    size_t index;
    yyjson_val *jwk;
    struct error *err;
};

static status refuse(const struct reading *r, const char *member, const char *why) {
    char where[ERROR_WHERE_MAX];
    snprintf(where, sizeof(where), "/keys/%zu%s%s", r->index, member[0] ? "/" : "", member);
    return error_at(r->err, REASON_JWKS_INVALID, where, "key set: \"%s\": %s", where, why);
}

static status no_memory(struct error *err) {
    ERR_clear_error();
    return error_set(err, ST_RETRY, "could not read the key set: out of memory");
}

/* A text member. *out is STR_NONE when it is absent. */
static status text_member(const struct reading *r, const char *name, str *out) {
    yyjson_val *val = json_member(r->jwk, name);
    *out = STR_NONE;
    if (val == NULL) return ST_OK;
    return json_str(val, out) ? ST_OK : refuse(r, name, "it must be a string");
}

/* A member of `max` bytes at most, as base64url. */
static status bytes_member(const struct reading *r, const char *name, uint8_t *out, size_t max,
                           size_t *len) {
    str text;
    status st = text_member(r, name, &text);
    if (st != ST_OK) return st;
    if (text.ptr == NULL) return refuse(r, name, "it is missing");
    if (text.len > (max * 4 + 2) / 3) return refuse(r, name, "it is too long");
    if (!base64url_decode(text, out, len))
        return refuse(r, name, "it must be base64url without padding");
    ASSERT(*len <= max);
    return ST_OK;
}

static status read_oct(const struct reading *r, struct jwk *key) {
    uint8_t bytes[JWK_OCT_MAX];
    size_t len = 0;
    status st = bytes_member(r, "k", bytes, JWK_OCT_MAX, &len);
    if (st == ST_OK && len < JWK_OCT_MIN)
        st = refuse(r, "k", "a secret must have at least 32 bytes");
    if (st == ST_OK) {
        memcpy(key->secret, bytes, len);
        key->secret_len = len;
        key->algorithm = JWT_HS256;
    }
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return st;
}

/* Makes a public key of the parameters; NULL if libcrypto does not like them. */
static EVP_PKEY *key_from(const char *type, OSSL_PARAM_BLD *builder) {
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, type, NULL);
    OSSL_PARAM *params = OSSL_PARAM_BLD_to_param(builder);
    if (context == NULL || params == NULL || EVP_PKEY_fromdata_init(context) != 1 ||
        EVP_PKEY_fromdata(context, &key, EVP_PKEY_PUBLIC_KEY, params) != 1) {
        EVP_PKEY_free(key);
        key = NULL;
    }
    OSSL_PARAM_free(params);
    EVP_PKEY_CTX_free(context);
    return key;
}

static bool key_is_sound(EVP_PKEY *key) {
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(NULL, key, NULL);
    bool sound = context != NULL && EVP_PKEY_public_check(context) == 1;
    EVP_PKEY_CTX_free(context);
    return sound;
}

static EVP_PKEY *rsa_key(const uint8_t *n, size_t n_len, const uint8_t *e, size_t e_len) {
    EVP_PKEY *key = NULL;
    OSSL_PARAM_BLD *builder = OSSL_PARAM_BLD_new();
    BIGNUM *modulus = BN_bin2bn(n, (int)n_len, NULL);
    BIGNUM *exponent = BN_bin2bn(e, (int)e_len, NULL);
    if (builder != NULL && modulus != NULL && exponent != NULL &&
        OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_RSA_N, modulus) == 1 &&
        OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_RSA_E, exponent) == 1)
        key = key_from("RSA", builder);
    BN_free(modulus);
    BN_free(exponent);
    OSSL_PARAM_BLD_free(builder);
    return key;
}

static status read_rsa(const struct reading *r, struct jwk *key) {
    uint8_t n[JWK_RSA_BITS_MAX / 8];
    uint8_t e[4];
    size_t n_len = 0;
    size_t e_len = 0;
    status st = bytes_member(r, "n", n, JWK_RSA_BITS_MAX / 8, &n_len);
    if (st == ST_OK) st = bytes_member(r, "e", e, 4, &e_len);
    if (st != ST_OK) return st;
    if (n_len == 0 || n[0] == 0) return refuse(r, "n", "it must not begin with a zero byte");
    int top_bits = 0;
    for (unsigned top = n[0]; top != 0; top >>= 1)
        top_bits++;
    if ((int)(n_len - 1) * 8 + top_bits < JWK_RSA_BITS_MIN)
        return refuse(r, "n", "a modulus must have at least 2048 bits");
    if (n[n_len - 1] % 2 == 0) return refuse(r, "n", "a modulus is odd");
    bool small = e_len == 0 || (e_len == 1 && e[0] < 3);
    if (small || e[0] == 0 || e[e_len - 1] % 2 == 0)
        return refuse(r, "e", "an exponent is odd, at least 3, without zero bytes before it");
    key->public_key = rsa_key(n, n_len, e, e_len);
    if (key->public_key == NULL) return refuse(r, "", "libcrypto refuses this RSA key");
    key->algorithm = JWT_RS256;
    return ST_OK;
}

static EVP_PKEY *ec_key(const uint8_t point[1 + 2 * P256_LEN]) {
    EVP_PKEY *key = NULL;
    OSSL_PARAM_BLD *builder = OSSL_PARAM_BLD_new();
    if (builder != NULL &&
        OSSL_PARAM_BLD_push_utf8_string(builder, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) ==
            1 &&
        OSSL_PARAM_BLD_push_octet_string(builder, OSSL_PKEY_PARAM_PUB_KEY, point,
                                         1 + 2 * P256_LEN) == 1)
        key = key_from("EC", builder);
    OSSL_PARAM_BLD_free(builder);
    if (key == NULL || key_is_sound(key)) return key;
    EVP_PKEY_free(key);
    return NULL;
}

static status read_ec(const struct reading *r, str curve, struct jwk *key) {
    if (!str_eq(curve, STR("P-256"))) return refuse(r, "crv", "of EC keys only P-256 is known");
    uint8_t x[P256_LEN];
    uint8_t y[P256_LEN];
    size_t x_len = 0;
    size_t y_len = 0;
    status st = bytes_member(r, "x", x, P256_LEN, &x_len);
    if (st == ST_OK) st = bytes_member(r, "y", y, P256_LEN, &y_len);
    if (st != ST_OK) return st;
    if (x_len != P256_LEN) return refuse(r, "x", "it must have 32 bytes");
    if (y_len != P256_LEN) return refuse(r, "y", "it must have 32 bytes");
    uint8_t point[1 + 2 * P256_LEN] = {4}; /* uncompressed */
    memcpy(point + 1, x, P256_LEN);
    memcpy(point + 1 + P256_LEN, y, P256_LEN);
    key->public_key = ec_key(point);
    if (key->public_key == NULL) return refuse(r, "", "this is no point of the curve");
    key->algorithm = JWT_ES256;
    return ST_OK;
}

/* A public key of small order would make one signature good for every text; libcrypto takes it. The
 * y coordinates of the five such pairs of points, little endian, and the prime. */
static bool ed25519_is_weak(const uint8_t key[ED25519_KEY_LEN]) {
    static const uint8_t small[][ED25519_KEY_LEN] = {
        {0}, /* order 4 */
        {1}, /* order 1 */
        {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4,
         0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6,
         0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05}, /* order 8 */
        {0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b,
         0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39,
         0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a}, /* order 8 */
        {0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
         0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
         0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, /* order 2 */
    };
    uint8_t y[ED25519_KEY_LEN];
    memcpy(y, key, sizeof(y));
    y[ED25519_KEY_LEN - 1] &= 0x7F; /* without the sign of x */
    for (size_t i = 0; i < COUNT_OF(small); i++) {
        if (memcmp(y, small[i], sizeof(y)) == 0) return true;
    }
    bool large = y[0] >= 0xED && y[ED25519_KEY_LEN - 1] == 0x7F; /* not below the prime? */
    for (size_t i = 1; i + 1 < ED25519_KEY_LEN && large; i++)
        large = y[i] == 0xFF;
    return large;
}

static status read_okp(const struct reading *r, str curve, struct jwk *key) {
    if (!str_eq(curve, STR("Ed25519")))
        return refuse(r, "crv", "of OKP keys only Ed25519 is known");
    uint8_t x[ED25519_KEY_LEN];
    size_t x_len = 0;
    status st = bytes_member(r, "x", x, ED25519_KEY_LEN, &x_len);
    if (st != ST_OK) return st;
    if (x_len != ED25519_KEY_LEN) return refuse(r, "x", "it must have 32 bytes");
    if (ed25519_is_weak(x)) return refuse(r, "x", "it is no usable point of the curve");
    key->public_key = EVP_PKEY_new_raw_public_key_ex(NULL, "ED25519", NULL, x, x_len);
    if (key->public_key == NULL) return refuse(r, "x", "libcrypto refuses this key");
    key->algorithm = JWT_EDDSA;
    return ST_OK;
}

/* ---- what goes for every kind ---- */

static status refuse_private(const struct reading *r) {
    static const char *const members[] = {"d", "p", "q", "dp", "dq", "qi", "oth"};
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        if (json_member(r->jwk, members[i]) != NULL)
            return refuse(r, members[i], "the file must hold public keys only");
    }
    return ST_OK;
}

/* Is the key for something else than signatures? */
static status read_use(const struct reading *r, bool *other) {
    str use;
    status st = text_member(r, "use", &use);
    if (st != ST_OK) return st;
    yyjson_val *operations = json_member(r->jwk, "key_ops");
    *other = use.ptr != NULL && !str_eq(use, STR("sig"));
    if (operations == NULL || *other) return ST_OK;
    if (!yyjson_is_arr(operations)) return refuse(r, "key_ops", "it must be an array of strings");
    yyjson_arr_iter it = yyjson_arr_iter_with(operations);
    bool verify = false;
    for (yyjson_val *val; (val = yyjson_arr_iter_next(&it)) != NULL;) {
        str text;
        if (!json_str(val, &text)) return refuse(r, "key_ops", "it must be an array of strings");
        verify = verify || str_eq(text, STR("verify"));
    }
    *other = !verify;
    return ST_OK;
}

static status read_material(const struct reading *r, struct jwk *key) {
    str type;
    str curve;
    status st = text_member(r, "kty", &type);
    if (st == ST_OK) st = text_member(r, "crv", &curve);
    if (st != ST_OK) return st;
    if (type.ptr == NULL) return refuse(r, "kty", "it is missing");
    if (str_eq(type, STR("oct"))) return read_oct(r, key);
    if (str_eq(type, STR("RSA"))) return read_rsa(r, key);
    if (str_eq(type, STR("EC"))) return read_ec(r, curve, key);
    if (str_eq(type, STR("OKP"))) return read_okp(r, curve, key);
    return refuse(r, "kty", "it must be oct, RSA, EC or OKP");
}

static status read_kid(const struct reading *r, struct jwks *set, struct jwk *key) {
    str kid;
    status st = text_member(r, "kid", &kid);
    if (st != ST_OK || kid.ptr == NULL) return st;
    if (kid.len == 0 || kid.len > ID_BYTES_MAX)
        return refuse(r, "kid", "it must have 1 to 255 bytes");
    for (size_t i = 0; i < set->count; i++) {
        if (str_eq(set->keys[i].kid, kid)) return refuse(r, "kid", "another key has it too");
    }
    return arena_try_str(&set->arena, kid, &key->kid) ? ST_OK : no_memory(r->err);
}

static status read_algorithm(const struct reading *r, const struct jwk *key) {
    str name;
    status st = text_member(r, "alg", &name);
    if (st != ST_OK || name.ptr == NULL) return st;
    enum jwt_algorithm algorithm;
    if (jwt_algorithm_of(name, &algorithm) && algorithm == key->algorithm) return ST_OK;
    char why[80];
    snprintf(why, sizeof(why), "a key of this kind is used with %s",
             jwt_algorithm_name(key->algorithm));
    return refuse(r, "alg", why);
}

static status make_mark(const struct reading *r, struct jwk *key) {
    uint8_t whole[1 + SHA256_LEN + ID_BYTES_MAX];
    uint8_t hash[SHA256_LEN];
    uint8_t *der = NULL;
    int len = key->public_key ? i2d_PUBKEY(key->public_key, &der) : 0;
    if (key->public_key && len <= 0) return no_memory(r->err);
    sha256_of(der ? str_n(der, (size_t)len) : str_n(key->secret, key->secret_len), hash);
    OPENSSL_free(der);
    whole[0] = (uint8_t)key->algorithm;
    memcpy(whole + 1, hash, SHA256_LEN);
    if (key->kid.len > 0) memcpy(whole + 1 + SHA256_LEN, key->kid.ptr, key->kid.len);
    sha256_of(str_n(whole, 1 + SHA256_LEN + key->kid.len), hash);
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(bits); i++)
        bits = bits << 8 | hash[i];
    key->mark = (int64_t)(bits >> 1 | 1);
    return ST_OK;
}

static status read_key(const struct reading *r, struct jwks *set) {
    bool other = false;
    if (!yyjson_is_obj(r->jwk)) return refuse(r, "", "a key must be an object");
    status st = refuse_private(r);
    if (st == ST_OK) st = read_use(r, &other);
    if (st != ST_OK || other) return st;
    if (set->count == JWKS_KEYS_MAX) return refuse(r, "", "at most 64 keys are allowed");
    struct jwk *key = &set->keys[set->count];
    st = read_kid(r, set, key);
    if (st == ST_OK) st = read_material(r, key);
    set->count++; /* also half made: jwks_close() frees what it has */
    if (st == ST_OK) st = read_algorithm(r, key);
    return st == ST_OK ? make_mark(r, key) : st;
}

/* ---- the set ---- */

static status refuse_set(struct error *err, const char *where, const char *why) {
    return error_at(err, REASON_JWKS_INVALID, where, "key set: %s", why);
}

/* Tokens of a set with several keys are told apart by kid alone. */
static status check_kids(const struct jwks *set, struct error *err) {
    if (set->count == 0) return refuse_set(err, "/keys", "it has no key for signatures");
    for (size_t i = 0; i < set->count && set->count > 1; i++) {
        if (set->keys[i].kid.ptr == NULL)
            return refuse_set(err, "/keys", "with more than one key, each needs a kid");
    }
    return ST_OK;
}

static status read_set(yyjson_val *root, struct jwks *set, struct error *err) {
    yyjson_val *keys = json_member(root, "keys");
    if (keys == NULL || !yyjson_is_arr(keys))
        return refuse_set(err, "/keys", "it must be an object with an array \"keys\"");
    struct reading r = {.err = err};
    status st = ST_OK;
    yyjson_arr_iter it = yyjson_arr_iter_with(keys);
    while (st == ST_OK && (r.jwk = yyjson_arr_iter_next(&it)) != NULL) {
        st = read_key(&r, set);
        r.index++;
    }
    return st == ST_OK ? check_kids(set, err) : st;
}

/* What json_parse() said, in our words. */
static status not_json(struct error *err) {
    struct error bad = *err;
    if (bad.code == ST_RETRY) return bad.code;
    return error_at(err, REASON_JWKS_INVALID, bad.where, "key set: %.300s", bad.msg);
}

status jwks_parse(str json, struct jwks **out, struct error *err) {
    struct jwks *set = mem_alloc(sizeof(*set));
    if (set == NULL) return no_memory(err);
    arena_init(&set->arena, 1024, (size_t)64 * 1024);
    struct arena scratch;
    arena_init(&scratch, (size_t)16 * 1024, JWKS_ARENA_MAX);
    yyjson_val *root = NULL;
    struct json_limits limits = {JWKS_BYTES_MAX, JWT_DEPTH_MAX};
    status st = json_parse(json, limits, &scratch, &root, err);
    st = st == ST_OK ? read_set(root, set, err) : not_json(err);
    ERR_clear_error(); /* the queue is the thread's: TLS on the same loop looks at it */
    arena_release(&scratch);
    if (st != ST_OK) {
        jwks_close(set);
        return st;
    }
    ASSERT(set->count > 0);
    *out = set;
    return ST_OK;
}

status jwks_load(str file, struct jwks **out, struct error *err) {
    struct arena arena;
    arena_init(&arena, (size_t)16 * 1024, (size_t)2 * JWKS_BYTES_MAX);
    str text;
    status st = file_read(file, JWKS_BYTES_MAX, &arena, &text, err);
    if (st == ST_OK) st = jwks_parse(text, out, err);
    if (st != ST_OK) st = error_wrap(err, "could not use \"%.*s\"", STR_ARG(file));
    arena_release(&arena);
    return st;
}

bool jwks_has(const struct jwks *set, int64_t mark) {
    for (size_t i = 0; i < set->count; i++) {
        if (set->keys[i].mark == mark) return true;
    }
    return false;
}

void jwks_close(struct jwks *set) {
    if (set == NULL) return;
    for (size_t i = 0; i < set->count; i++)
        EVP_PKEY_free(set->keys[i].public_key);
    arena_release(&set->arena);
    OPENSSL_cleanse(set, sizeof(*set));
    mem_free(set);
}
