#include "base/hash.h"

#include <pthread.h>

#include "base/arena.h"
#include "test.h"

static str hex_of(const uint8_t *digest, size_t n, char *text) {
    hex_encode(digest, n, text);
    return str_n(text, 2 * n);
}

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define ABC_SHA256 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define MILLION_A_SHA256 "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"

/* RE-3.1-4: the values that FIPS 180-4 and its examples give for the empty string, "abc" and a
 * million times 'a'. */
TEST(hash_sha256_matches_the_fips_vectors) {
    static char million[1000000];
    memset(million, 'a', sizeof million);
    const struct {
        str in;
        const char *want;
    } cases[] = {
        {STR_LIT(""), EMPTY_SHA256},
        {{NULL, 0}, EMPTY_SHA256},
        {STR_LIT("abc"), ABC_SHA256},
        {STR_LIT("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {{million, sizeof million}, MILLION_A_SHA256},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t digest[SHA256_LEN];
        char text[SHA256_HEX_LEN];
        sha256_of(cases[i].in, digest);
        CHECK(str_eq(hex_of(digest, SHA256_LEN, text), str_c(cases[i].want)), "case %zu: %.64s", i,
              text);
    }
}

TEST(hash_sha256_in_pieces_and_again) {
    struct sha256 *h = NULL;
    struct error err;
    CHECK(sha256_open(&h, &err) == ST_OK);
    uint8_t digest[SHA256_LEN];
    char text[SHA256_HEX_LEN];
    for (int round = 0; round < 3; round++) {
        sha256_start(h);
        for (int i = 0; i < 1000; i++) {
            static const char piece[1001] = {0};
            char as[1001];
            memset(as, 'a', sizeof as);
            sha256_add(h, as, i % 2 == 0 ? 999 : 1001); /* never on a block's edge */
            sha256_add(h, piece, 0);
        }
        sha256_done(h, digest);
        CHECK(str_eq(hex_of(digest, SHA256_LEN, text), STR(MILLION_A_SHA256)), "round %d", round);
        sha256_start(h);
        sha256_add(h, "abandoned", 9); /* a start forgets what was not finished */
        sha256_start(h);
        sha256_add(h, "abc", 3);
        sha256_done(h, digest);
        CHECK(str_eq(hex_of(digest, SHA256_LEN, text), STR(ABC_SHA256)), "round %d", round);
    }
    sha256_close(h);
    sha256_close(NULL);
}

TEST(hash_sha256_open_without_memory) {
    struct sha256 *h = NULL;
    struct error err;
    mem_fail_at(0);
    status st = sha256_open(&h, &err);
    mem_fail_at(-1);
    CHECK(st == ST_RETRY && h == NULL);
}

static void *hash_in_thread(void *out) {
    for (int i = 0; i < 1000; i++)
        sha256_of(STR("abc"), out);
    return NULL;
}

TEST(hash_each_thread_has_its_own) {
    pthread_t thread[4];
    uint8_t digest[COUNT_OF(thread)][SHA256_LEN];
    for (size_t i = 0; i < COUNT_OF(thread); i++) {
        CHECK(pthread_create(&thread[i], NULL, hash_in_thread, digest[i]) == 0);
    }
    for (size_t i = 0; i < COUNT_OF(thread); i++) {
        char text[SHA256_HEX_LEN];
        CHECK(pthread_join(thread[i], NULL) == 0);
        CHECK(str_eq(hex_of(digest[i], SHA256_LEN, text), STR(ABC_SHA256)));
    }
}

TEST(hash_sha1_of_two_pieces) {
    uint8_t digest[SHA1_LEN];
    char text[2 * SHA1_LEN];
    sha1_of(STR("ab"), STR("c"), digest);
    CHECK(str_eq(hex_of(digest, SHA1_LEN, text), STR("a9993e364706816aba3e25717850c26c9cd0d89d")));
    sha1_of(STR_NONE, STR(""), digest);
    CHECK(str_eq(hex_of(digest, SHA1_LEN, text), STR("da39a3ee5e6b4b0d3255bfef95601890afd80709")));
}

TEST(hash_hex_is_strict) {
    static const struct {
        const char *in;
        size_t n;
        bool ok;
    } cases[] = {
        {"", 0, true},      {"00ff", 2, true},   {"09af", 2, true},  {"00FF", 2, false},
        {"00f", 2, false},  {"00ff0", 2, false}, {"00fg", 2, false}, {"0 ff", 2, false},
        {"00ff", 1, false}, {"/:", 1, false},    {"`g", 1, false},   {"0x", 1, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t out[2] = {0x5A, 0x5A};
        CHECK(hex_decode(str_c(cases[i].in), out, cases[i].n) == cases[i].ok, "case %zu", i);
        if (!cases[i].ok) CHECK(out[0] == 0x5A && out[1] == 0x5A, "case %zu", i);
    }
    uint8_t all[256];
    uint8_t back[256];
    char text[512];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (uint8_t)i;
    hex_encode(all, sizeof all, text);
    CHECK(hex_decode(str_n(text, sizeof text), back, sizeof back));
    CHECK(memcmp(all, back, sizeof all) == 0 && memcmp(text + 510, "ff", 2) == 0);
}
