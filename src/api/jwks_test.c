/* Key sets: what is taken, and what is refused where. */
#include <openssl/core_names.h>
#include <openssl/evp.h>

#include "api/jwt_impl.h"
#include "base/buf.h"
#include "base/os.h"
#include "test.h"

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

static str modulus(struct arena *arena, EVP_PKEY *key) {
    BIGNUM *n = NULL;
    CHECK(EVP_PKEY_get_bn_param(key, OSSL_PKEY_PARAM_RSA_N, &n) == 1);
    size_t len = (size_t)BN_num_bytes(n);
    uint8_t *bytes = arena_alloc(arena, len);
    BN_bn2bin(n, bytes);
    BN_free(n);
    return base64url(arena, str_n(bytes, len));
}

#define X32 "\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\""
#define OKP "{\"kty\":\"OKP\",\"crv\":\"Ed25519\","
#define K32 "\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\""
#define OCT "{\"kty\":\"oct\"," K32

TEST(jwks_bad_sets_are_refused_with_a_pointer) {
    static const struct {
        const char *keys, *where; /* where NULL: it is fine */
    } cases[] = {
        {OCT "}", NULL},
        {OCT ",\"alg\":\"HS256\",\"kid\":\"a\"}," OKP X32 ",\"kid\":\"b\"}", NULL},
        {OCT ",\"use\":\"sig\",\"key_ops\":[\"sign\",\"verify\"]}", NULL},
        {OCT "},{\"kty\":\"RSA\",\"use\":\"enc\",\"n\":\"AA\"}", NULL}, /* passed over */
        {OCT "}," OCT ",\"key_ops\":[\"encrypt\"]}", NULL},
        {"", "/keys"},
        {OCT ",\"use\":\"enc\"}", "/keys"},
        {"5", "/keys/0"},
        {"{}", "/keys/0/kty"},
        {"{\"kty\":5}", "/keys/0/kty"},
        {"{\"kty\":\"rsa\"}", "/keys/0/kty"},
        {"{\"kty\":\"oct\"}", "/keys/0/k"},
        {"{\"kty\":\"oct\",\"k\":\"\"}", "/keys/0/k"},
        {"{\"kty\":\"oct\",\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg\"}", "/keys/0/k"},
        {"{\"kty\":\"oct\",\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"}", "/keys/0/k"},
        {"{\"kty\":\"oct\",\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9\"}", "/keys/0/k"},
        {OCT ",\"alg\":\"RS256\"}", "/keys/0/alg"},
        {OCT ",\"alg\":\"none\"}", "/keys/0/alg"},
        {OCT ",\"alg\":7}", "/keys/0/alg"},
        {OCT ",\"kid\":\"\"}", "/keys/0/kid"},
        {OCT ",\"kid\":7}", "/keys/0/kid"},
        {OCT ",\"use\":7}", "/keys/0/use"},
        {OCT ",\"key_ops\":\"verify\"}", "/keys/0/key_ops"},
        {OCT ",\"kid\":\"a\"}," OKP X32 ",\"kid\":\"a\"}", "/keys/1/kid"},
        {OCT ",\"kid\":\"a\"}," OKP X32 "}", "/keys"},
        {OKP "\"x\":\"AAAA\"}", "/keys/0/x"},
        {OKP "\"d\":\"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A\"," X32 "}", "/keys/0/d"},
        {"{\"kty\":\"RSA\",\"use\":\"enc\",\"d\":\"AA\"}", "/keys/0/d"},
        {"{\"kty\":\"OKP\",\"crv\":\"X25519\"," X32 "}", "/keys/0/crv"},
        {"{\"kty\":\"OKP\"," X32 "}", "/keys/0/crv"},
        {"{\"kty\":\"EC\",\"crv\":\"P-384\"," X32 "}", "/keys/0/crv"},
        {"{\"kty\":\"EC\",\"crv\":\"P-256\"," X32 "}", "/keys/0/y"},
        {"{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"AAAA\",\"y\":\"AAAA\"}", "/keys/0/x"},
        {"{\"kty\":\"EC\",\"crv\":\"P-256\",\"y\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\","
         "\"x\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}",
         "/keys/0"},
        {"{\"kty\":\"RSA\",\"n\":\"AQAB\",\"e\":\"AQAB\"}", "/keys/0/n"},
        {"{\"kty\":\"RSA\",\"n\":\"\",\"e\":\"AQAB\"}", "/keys/0/n"},
        /* Points of small order: one signature would be good for every text. */
        {OKP "\"x\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}", "/keys/0/x"},
        {OKP "\"x\":\"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}", "/keys/0/x"},
        {OKP "\"x\":\"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIA\"}", "/keys/0/x"},
        {OKP "\"x\":\"JuiVj8KyJ7BFw_SJ8u-Y8NXfrAXTxjM5sTgCiG1T_AU\"}", "/keys/0/x"},
        {OKP "\"x\":\"xxdqcD1N2E-6PAt2DRBnDyogU_osOczGTsf9d5KsA3o\"}", "/keys/0/x"},
        {OKP "\"x\":\"7P_______________________________________38\"}", "/keys/0/x"},
        {OKP "\"x\":\"7f_______________________________________38\"}", "/keys/0/x"},
        {OKP "\"x\":\"__________________________________________8\"}", "/keys/0/x"},
    };
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct jwks *set = NULL;
        struct error err = {0};
        status st = jwks_parse(format(&arena, "{\"keys\":[%s]}", cases[i].keys), &set, &err);
        jwks_close(set);
        if (cases[i].where == NULL) {
            CHECK(st == ST_OK, "case %zu: %s", i, err.msg);
            continue;
        }
        CHECK(st == ST_INVALID && err.reason == REASON_JWKS_INVALID, "case %zu", i);
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s: %s", i, err.where, err.msg);
    }
    arena_release(&arena);
}

TEST(jwks_weak_rsa_keys_are_refused) {
    static const struct {
        size_t bits;
        const char *e; /* NULL: the key's own */
        const char *where;
    } cases[] = {
        {2048, NULL, NULL},        {2048, "Aw", NULL},          {1024, NULL, "/keys/0/n"},
        {2048, "AQ", "/keys/0/e"}, {2048, "Ag", "/keys/0/e"},   {2048, "AAEAAQ", "/keys/0/e"},
        {2048, "", "/keys/0/e"},   {2048, "AQAA", "/keys/0/e"}, {2048, "AQAAAAAB", "/keys/0/e"}};
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    EVP_PKEY *large = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)2048);
    EVP_PKEY *small = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)1024);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct jwks *set = NULL;
        struct error err = {0};
        str n = modulus(&arena, cases[i].bits == 1024 ? small : large);
        str json = format(&arena, "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"%.*s\",\"e\":\"%s\"}]}",
                          STR_ARG(n), cases[i].e ? cases[i].e : "AQAB");
        status st = jwks_parse(json, &set, &err);
        jwks_close(set);
        CHECK((st == ST_OK) == (cases[i].where == NULL), "case %zu: %s", i, err.msg);
        CHECK(!cases[i].where || strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i,
              err.where);
    }
    EVP_PKEY_free(large);
    EVP_PKEY_free(small);
    arena_release(&arena);
}

TEST(jwks_other_documents_are_refused) {
    static const char *const documents[] = {
        "",
        "[]",
        "{}",
        "{\"keys\":{}}",
        "{\"keys\":[" OCT "}]",
        "{\"keys\":[" OCT "}],\"keys\":[]}",
        "{\"keys\":[" OCT ",\"kty\":\"oct\"}]}",
        "{\"keys\":[{\"x\":[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}]}",
    };
    for (size_t i = 0; i < COUNT_OF(documents); i++) {
        struct jwks *set = NULL;
        struct error err = {0};
        CHECK(jwks_parse(str_c(documents[i]), &set, &err) == ST_INVALID, "case %zu", i);
        CHECK(err.reason == REASON_JWKS_INVALID && set == NULL, "case %zu", i);
    }
    jwks_close(NULL);
}

TEST(jwks_has_at_most_64_keys_and_comes_from_a_file) {
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    struct buf json;
    struct jwks *set = NULL;
    struct error err = {0};
    for (int count = JWKS_KEYS_MAX; count <= JWKS_KEYS_MAX + 1; count++) {
        buf_init(&json, JWKS_BYTES_MAX);
        buf_put_c(&json, "{\"keys\":[");
        for (int i = 0; i < count; i++)
            buf_printf(&json, "%s" OCT ",\"kid\":\"%d\"}", i ? "," : "", i);
        buf_put_c(&json, "]}");
        str file = format(&arena, "%s/keys-%d.json", test_dir(), count);
        CHECK(file_replace(file, buf_str(&json), &err) == ST_OK, "%s", err.msg);
        buf_release(&json);
        status st = jwks_load(file, &set, &err);
        if (count == JWKS_KEYS_MAX) {
            CHECK(st == ST_OK, "%s", err.msg);
            jwks_close(set);
        } else {
            CHECK(st == ST_INVALID && strcmp(err.where, "/keys/64") == 0, "%s", err.msg);
            CHECK(strstr(err.msg, "keys-65.json") != NULL, "%s", err.msg);
        }
    }
    CHECK(jwks_load(STR("/nonexistent/keys.json"), &set, &err) == ST_NOT_FOUND, "%s", err.msg);
    arena_release(&arena);
}

TEST(jwks_survives_an_empty_machine) {
    str json = STR("{\"keys\":[" OCT ",\"kid\":\"a\"}," OKP X32 ",\"kid\":\"b\"}]}");
    for (int64_t n = 0; n < 6; n++) {
        struct jwks *set = NULL;
        struct error err = {0};
        mem_fail_at(n);
        status st = jwks_parse(json, &set, &err);
        mem_fail_at(-1);
        CHECK(st == (n < 3 ? ST_RETRY : ST_OK), "allocation %d: %s", (int)n, err.msg);
        jwks_close(set);
    }
}

/* A key is known again by all that it is. */
TEST(jwks_marks_tell_keys_apart) {
#define SET(k, kid) "{\"keys\":[{\"kty\":\"oct\",\"k\":\"" k "\"" kid "}]}"
#define A "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
#define B "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE"
    static const char *const sets[] = {SET(A, ""), SET(B, ""), SET(A, ",\"kid\":\"a\""),
                                       SET(B, ",\"kid\":\"a\""), SET(A, ",\"kid\":\"b\"")};
    struct jwks *set[COUNT_OF(sets)] = {0};
    struct error err = {0};
    for (size_t i = 0; i < COUNT_OF(sets); i++)
        CHECK(jwks_parse(str_c(sets[i]), &set[i], &err) == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        struct jwks *again = NULL;
        CHECK(jwks_parse(str_c(sets[i]), &again, &err) == ST_OK, "%s", err.msg);
        CHECK(again->keys[0].mark > 0);
        for (size_t k = 0; k < COUNT_OF(sets); k++)
            CHECK(jwks_has(set[k], again->keys[0].mark) == (i == k), "%zu %zu", i, k);
        jwks_close(again);
    }
    for (size_t i = 0; i < COUNT_OF(sets); i++)
        jwks_close(set[i]);
}
