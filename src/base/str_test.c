#include "base/str.h"

#include "test.h"

TEST(str_compares_bytes) {
    static const struct {
        str a, b;
        int order;
    } cases[] = {
        {STR_LIT(""), STR_LIT(""), 0},
        {{NULL, 0}, STR_LIT(""), 0},
        {{NULL, 0}, {NULL, 0}, 0},
        {STR_LIT("a"), STR_LIT("a"), 0},
        {STR_LIT("a"), STR_LIT("b"), -1},
        {STR_LIT("a"), STR_LIT("ab"), -1},
        {STR_LIT("b"), STR_LIT("ab"), 1},
        {STR_LIT("a\0b"), STR_LIT("a\0c"), -1},
        {STR_LIT(""), STR_LIT("\0"), -1},
        {STR_LIT("\xFF"), STR_LIT("a"), 1},
        {STR_LIT("aaaaaaaaab"), STR_LIT("aaaaaaaaaa"), 1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int order = str_cmp(cases[i].a, cases[i].b);
        CHECK((order > 0) - (order < 0) == cases[i].order, "case %zu: %d", i, order);
        int back = str_cmp(cases[i].b, cases[i].a);
        CHECK((back > 0) - (back < 0) == -cases[i].order, "case %zu: %d", i, back);
        CHECK(str_eq(cases[i].a, cases[i].b) == (cases[i].order == 0), "case %zu", i);
    }
    CHECK(str_c(NULL).ptr == NULL && str_c("").ptr != NULL); /* absent differs from empty */
}

TEST(str_starts_and_ends) {
    CHECK(str_starts(STR("abc"), STR("ab")) && str_starts(STR("abc"), STR("")));
    CHECK(str_starts(STR("abc"), STR("abc")) && !str_starts(STR("abc"), STR("abcd")));
    CHECK(!str_starts(STR("abc"), STR("b")) && str_starts(STR_NONE, STR_NONE));
    CHECK(str_ends(STR("abc"), STR("bc")) && str_ends(STR("abc"), STR("")));
    CHECK(str_ends(STR("abc"), STR("abc")) && !str_ends(STR("abc"), STR("zabc")));
    CHECK(!str_ends(STR("abc"), STR("b")) && str_ends(STR_NONE, STR_NONE));
    CHECK(str_has(STR("a\0b"), '\0') && str_has(STR("ab"), 'b') && !str_has(STR("ab"), 'c'));
    CHECK(!str_has(STR_NONE, 'a'));
    CHECK(str_eq(str_from(STR("abc"), 1), STR("bc")) && str_from(STR("abc"), 3).len == 0);
}

TEST(str_splits_at_the_first) {
    static const struct {
        const char *in;
        bool split;
        const char *head, *rest;
    } cases[] = {
        {"a|b", true, "a", "b"}, {"a|b|c", true, "a", "b|c"}, {"|", true, "", ""},
        {"a|", true, "a", ""},   {"|a", true, "", "a"},       {"abc", false, "abc", ""},
        {"", false, "", ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str head;
        str rest;
        CHECK(str_split(str_c(cases[i].in), '|', &head, &rest) == cases[i].split, "case %zu", i);
        CHECK(str_eq(head, str_c(cases[i].head)) && str_eq(rest, str_c(cases[i].rest)), "case %zu",
              i);
    }
    str s = STR("a|b|c");
    str head;
    CHECK(str_split(s, '|', &head, &s) && str_eq(head, STR("a")) && str_eq(s, STR("b|c")));
}

TEST(str_trims_ascii_blanks) {
    CHECK(str_eq(str_trim(STR(" \t\r\n\v\fa b \n")), STR("a b")));
    CHECK(str_trim(STR("  ")).len == 0 && str_trim(STR_NONE).len == 0);
    CHECK(str_eq(str_trim(STR("\xC2\xA0x")), STR("\xC2\xA0x"))); /* a no-break space is not ASCII */
}

TEST(str_to_int_is_strict) {
    static const struct {
        const char *in;
        bool ok;
        int64_t want;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"42", true, 42},
        {"-42", true, -42},
        {"007", true, 7},
        {"9223372036854775807", true, INT64_MAX}, /* the last good one, */
        {"9223372036854775808", false, 0},        /* and the first bad one */
        {"-9223372036854775808", true, INT64_MIN},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"--1", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"0x10", false, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t n = 0;
        CHECK(str_to_int(str_c(cases[i].in), &n) == cases[i].ok, "\"%s\"", cases[i].in);
        CHECK(n == cases[i].want, "\"%s\" gave %lld", cases[i].in, (long long)n);
    }
}

TEST(str_take_int_saturates) {
    static const struct {
        const char *in;
        bool ok;
        int64_t want;
        const char *rest;
    } cases[] = {
        {"250ms", true, 250, "ms"},
        {"7", true, 7, ""},
        {"9223372036854775807x", true, INT64_MAX, "x"},
        {"9223372036854775806", true, INT64_MAX - 1, ""},
        {"9223372036854775808", true, INT64_MAX, ""},
        {"123456789012345678901234567890s", true, INT64_MAX, "s"},
        {"", false, 0, ""},
        {"-1", false, 0, "-1"},
        {"x", false, 0, "x"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str rest = str_c(cases[i].in);
        int64_t n = 0;
        CHECK(str_take_int(&rest, &n) == cases[i].ok && n == cases[i].want, "case %zu", i);
        CHECK(str_eq(rest, str_c(cases[i].rest)), "case %zu", i);
    }
}

TEST(str_utf8_names_the_first_bad_byte) {
    static const struct {
        str in;
        bool ok;
        size_t bad;
    } cases[] = {
        {{NULL, 0}, true, 0},
        {STR_LIT("plain ascii, longer than eight bytes\0and a NUL"), true, 0},
        {STR_LIT("\x7F\xC2\x80\xDF\xBF"), true, 0}, /* the ends of one and two bytes */
        {STR_LIT("\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF"), true, 0}, /* of three */
        {STR_LIT("\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"), true, 0},                 /* of four */
        {STR_LIT("ab\x80"), false, 2}, /* a continuation byte alone */
        {STR_LIT("\xBF"), false, 0},
        {STR_LIT("\xC0\x80"), false, 0}, /* overlong NUL */
        {STR_LIT("\xC1\xBF"), false, 0},
        {STR_LIT("\xE0\x9F\xBF"), false, 0},     /* overlong */
        {STR_LIT("\xED\xA0\x80"), false, 0},     /* U+D800 */
        {STR_LIT("\xED\xBF\xBF"), false, 0},     /* U+DFFF */
        {STR_LIT("\xF0\x8F\xBF\xBF"), false, 0}, /* overlong */
        {STR_LIT("\xF4\x90\x80\x80"), false, 0}, /* U+110000 */
        {STR_LIT("\xF5\x80\x80\x80"), false, 0},
        {STR_LIT("\xFE"), false, 0},
        {STR_LIT("\xFF"), false, 0},
        {STR_LIT("\xC2"), false, 0},         /* cut off after one, */
        {STR_LIT("\xE2\x82"), false, 0},     /* two */
        {STR_LIT("\xF0\x9F\x8C"), false, 0}, /* and three bytes */
        {STR_LIT("\xE2\x28\xA1"), false, 0},
        {STR_LIT("\xE2\x82\x28"), false, 0},
        {STR_LIT("\xF0\x9F\x28\x84"), false, 0},
        {STR_LIT("\xF0\x9F\x8C\x28"), false, 0},
        {STR_LIT("0123456789\xE2\x82\xAC 0123456789\xE2\x82"), false, 24},
        {STR_LIT("01234567\xC2\xA9\xC2"), false, 10},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t bad = 0;
        CHECK(str_utf8(cases[i].in, &bad) == cases[i].ok, "case %zu", i);
        CHECK(bad == cases[i].bad, "case %zu: offset %zu", i, bad);
    }
}

/* Every code point, encoded by the book, is good unless it is a surrogate. */
TEST(str_utf8_knows_every_code_point) {
    for (uint32_t c = 0x80; c < 0x200000; c++) {
        char s[4];
        size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const unsigned lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
        for (size_t i = n; i-- > 1;)
            s[i] = (char)(0x80 | (c >> (6 * (n - 1 - i)) & 0x3F));
        s[0] = (char)(lead[n] | c >> (6 * (n - 1)));
        size_t bad;
        bool good = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
        CHECK(str_utf8(str_n(s, n), &bad) == good, "U+%04X", (unsigned)c);
    }
}

TEST(str_hash_depends_on_every_byte_and_the_seed) {
    char text[70] = {0};
    for (size_t len = 0; len <= sizeof text; len++) {
        uint64_t whole = str_hash(str_n(text, len), 1);
        CHECK(whole == str_hash(str_n(text, len), 1));
        CHECK(whole != str_hash(str_n(text, len), 2), "length %zu", len);
        if (len > 0) CHECK(whole != str_hash(str_n(text, len - 1), 1), "length %zu", len);
        for (size_t i = 0; i < len; i++) {
            text[i] = 1;
            CHECK(whole != str_hash(str_n(text, len), 1), "byte %zu of %zu", i, len);
            text[i] = 0;
        }
    }
    CHECK(str_hash(STR_NONE, 7) == str_hash(STR(""), 7));
}
