#include "base/mask.h"
#include "base/uuid.h"
#include "test.h"

/* The text in pieces of `step` bytes, through a mask of up to three values. */
static void mask_pieces(const char *const *values, const char *in, size_t step, struct buf *out) {
    struct arena arena;
    arena_init(&arena, 1024, (size_t)16 * 1024 * 1024);
    struct mask mask;
    mask_init(&mask, &arena);
    for (int i = 0; i < 3 && values[i]; i++)
        CHECK(mask_add(&mask, str_c(values[i])));
    struct mask_stream stream;
    CHECK(mask_stream_init(&stream, &mask));
    for (str rest = str_c(in); rest.len > 0;) {
        size_t n = rest.len < step ? rest.len : step;
        mask_feed(&stream, str_n(rest.ptr, n), out);
        rest = str_from(rest, n);
    }
    mask_end(&stream, out);
    arena_release(&arena);
}

TEST(mask_takes_out_every_occurrence_however_it_is_cut) {
    static const struct {
        const char *values[3], *in, *want;
    } cases[] = {
        {{NULL}, "nothing to hide", "nothing to hide"},
        {{"hunter22"}, "my hunter22 is", "my *** is"},
        {{"hunter22"}, "hunter22", "***"},
        {{"hunter22"}, "hunter2 hunter", "hunter2 hunter"},
        {{"hunter22"}, "hunterhunter22hunter", "hunter***hunter"},
        {{"hunter22"}, "hunter22hunter22", "***"}, /* how many there were is nobody's business */
        {{"abab"}, "xababab.abab", "x***.***"},    /* overlapping itself */
        {{"aaaa"}, "aaaaaaa", "***"},
        {{"aaaab"}, "aaaaaaab", "aaa***"},
        {{"abcd", "cdef"}, "xabcdefx", "x***x"},                  /* overlapping each other */
        {{"abcdefgh", "cdef"}, "abcdefg abcdefgh", "ab***g ***"}, /* one inside the other */
        {{"abc"}, "abc", "abc"},                                  /* too short to be masked */
        {{""}, "abc", "abc"},
        {{"li\"ne\n2"}, "raw li\"ne\n2 json li\\\"ne\\n2.", "raw *** json ***."},
        {{"a/b&c"}, "a/b&c a\\/b&c a/b\\u0026c a\\\\/b&c", "*** *** *** a\\\\/b&c"},
        {{"hunter22", "hunter22"}, "hunter22", "***"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t step = 1; step <= 16; step++) {
            struct buf out;
            buf_init(&out, 1024);
            mask_pieces(cases[i].values, cases[i].in, step, &out);
            CHECK(str_eq(buf_str(&out), str_c(cases[i].want)), "case %zu, step %zu: %.*s", i, step,
                  STR_ARG(buf_str(&out)));
            buf_release(&out);
        }
    }
}

enum { NOISE_TEXT = 40 };

/* A slow and obvious masker: marks, then writes. */
static void mask_simply(const char *text, const char *const *values, struct buf *out) {
    bool secret[NOISE_TEXT] = {0};
    for (; *values; values++) {
        size_t len = strlen(*values);
        for (size_t at = 0; at + len <= NOISE_TEXT; at++) {
            if (memcmp(text + at, *values, len) == 0) memset(secret + at, 1, len);
        }
    }
    for (size_t i = 0; i < NOISE_TEXT; i++) {
        if (!secret[i])
            buf_put_char(out, text[i]);
        else if (i == 0 || !secret[i - 1])
            buf_put_c(out, "***");
    }
}

TEST(mask_agrees_with_a_simple_one_on_random_texts) {
    for (int round = 0; round < 2000; round++) {
        uint8_t noise[64];
        char text[NOISE_TEXT + 1] = {0};
        char values[2][8] = {{0}, {0}};
        const char *const both[] = {values[0], values[1], NULL};
        random_bytes(noise, sizeof noise);
        for (int i = 0; i < NOISE_TEXT; i++)
            text[i] = (char)('a' + noise[i] % 2);
        for (int i = 0; i < MASK_BYTES_MIN + noise[40] % 4; i++)
            values[0][i] = (char)('a' + noise[42 + i] % 2);
        for (int i = 0; i < MASK_BYTES_MIN + noise[41] % 4; i++)
            values[1][i] = (char)('a' + noise[50 + i] % 2);
        struct buf want;
        struct buf out;
        buf_init(&want, 1024);
        buf_init(&out, 1024);
        mask_simply(text, both, &want);
        mask_pieces(both, text, 1 + noise[63] % 9, &out);
        CHECK(str_eq(buf_str(&out), buf_str(&want)), "%s in %s, %s: %.*s", text, values[0],
              values[1], STR_ARG(buf_str(&out)));
        buf_release(&out);
        buf_release(&want);
    }
}

/* A value that repeats itself, in a text that nearly does: no more work than any other. */
TEST(mask_does_not_slow_down_on_repetitive_values) {
    struct arena arena;
    arena_init(&arena, 1024, (size_t)16 * 1024 * 1024);
    size_t len = (size_t)64 * 1024;
    char *value = arena_alloc(&arena, len);
    memset(value, 'a', len);
    value[len - 1] = 'b';
    struct mask mask;
    mask_init(&mask, &arena);
    CHECK(mask_add(&mask, str_n(value, len)));
    value[len - 1] = 'a';
    struct mask_stream stream;
    CHECK(mask_stream_init(&stream, &mask));
    struct buf out;
    buf_init(&out, (size_t)16 * 1024 * 1024);
    for (int i = 0; i < 64; i++)
        mask_feed(&stream, str_n(value, len), &out);
    mask_feed(&stream, STR("b"), &out);
    mask_end(&stream, &out);
    CHECK(out.len == 63 * len + 1 + 3 && str_ends(buf_str(&out), STR("a***")), "%zu", out.len);
    buf_release(&out);
    arena_release(&arena);
}

TEST(mask_survives_an_empty_machine) {
    for (int64_t fail_at = 0; fail_at < 12; fail_at++) {
        struct arena arena;
        struct mask mask;
        struct buf out;
        arena_init(&arena, 64, (size_t)1024 * 1024);
        buf_init(&out, 1024);
        mask_init(&mask, &arena);
        mem_fail_at(fail_at);
        bool ok = mask_add(&mask, STR("hunter22")) && mask_text(&mask, STR("a hunter22 b"), &out);
        mem_fail_at(-1);
        CHECK(!ok || out.full || str_eq(buf_str(&out), STR("a *** b")));
        CHECK(memmem(out.ptr ? out.ptr : "", out.len, "hunter22", 8) == NULL);
        buf_release(&out);
        arena_release(&arena);
    }
}
