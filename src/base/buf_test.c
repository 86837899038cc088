#include "base/buf.h"

#include "base/arena.h"
#include "test.h"

TEST(buf_builds_text) {
    struct buf b;
    buf_init(&b, 1000);
    CHECK(buf_str(&b).len == 0);
    buf_put(&b, STR_NONE);
    buf_put_c(&b, "a=");
    buf_put_int(&b, INT64_MIN);
    buf_put_char(&b, ' ');
    buf_put_int(&b, INT64_MAX);
    buf_put_char(&b, ' ');
    buf_put_int(&b, 0);
    buf_put_hex(&b, "\x00\xFF\x1a", 3);
    buf_printf(&b, " %s/%d", "x", 7);
    CHECK(str_eq(buf_str(&b), STR("a=-9223372036854775808 9223372036854775807 000ff1a x/7")),
          "%.*s", STR_ARG(buf_str(&b)));
    CHECK(!b.full);
    buf_clear(&b);
    CHECK(b.len == 0 && b.cap > 0);
    buf_release(&b);
    CHECK(b.ptr == NULL && b.max == 1000);
}

TEST(buf_stops_at_its_maximum) {
    struct buf b;
    for (size_t max = 0; max < 1100; max += 9) {
        buf_init(&b, max);
        for (size_t i = 0; i < max; i++)
            buf_put_char(&b, 'x');
        CHECK(!b.full && b.len == max && b.cap <= max, "max %zu", max); /* the last good one, */
        buf_put_char(&b, 'y');
        CHECK(b.full && b.len == max, "max %zu", max); /* and the first bad one */
        buf_clear(&b);
        CHECK(!b.full);
        buf_release(&b);
    }
    buf_init(&b, 5);
    buf_put_c(&b, "abcdefg");
    CHECK(b.full && str_eq(buf_str(&b), STR("abcde")));
    b.len = 2; /* once full, all is dropped, even what would fit */
    buf_put_c(&b, "z");
    CHECK(b.len == 2);
    buf_release(&b);
}

TEST(buf_in_memory_of_the_caller) {
    char mem[8];
    struct buf b;
    buf_init_fixed(&b, mem, sizeof mem);
    buf_put_c(&b, "12345678");
    CHECK(!b.full && b.ptr == mem);
    buf_put_c(&b, "9");
    CHECK(b.full && memcmp(mem, "12345678", 8) == 0);
    buf_release(&b);
}

TEST(buf_printf_takes_any_length) {
    struct buf b;
    buf_init(&b, 100000);
    for (int len = 500; len < 530; len++) { /* around the size of its first attempt */
        buf_clear(&b);
        buf_printf(&b, "%0*d!", len, 7);
        CHECK(!b.full && b.len == (size_t)len + 1, "length %d", len);
        CHECK(b.ptr[len - 1] == '7' && b.ptr[len] == '!', "length %d", len);
    }
    buf_clear(&b);
    buf_printf(&b, "%0*d", 100001, 7);
    CHECK(b.full && b.len == 100000);
    buf_release(&b);
}

TEST(buf_json_strings) {
    static const struct {
        str in;
        const char *out;
    } cases[] = {
        {{NULL, 0}, "\"\""},
        {STR_LIT("plain"), "\"plain\""},
        {STR_LIT("q\" b\\ s/"), "\"q\\\" b\\\\ s/\""},
        {STR_LIT("\b\t\n\f\r"), "\"\\b\\t\\n\\f\\r\""},
        {STR_LIT("\0\x01\x1F\x7F"), "\"\\u0000\\u0001\\u001F\x7F\""},
        {STR_LIT("\xC3\xA9\xF0\x9F\x8C\x84"), "\"\xC3\xA9\xF0\x9F\x8C\x84\""},
        {STR_LIT("a\xFF"
                 "b\xC3\n\x80"),
         "\"a\xEF\xBF\xBD"
         "b\xEF\xBF\xBD\\n\xEF\xBF\xBD\""},
        {STR_LIT("\xE2\x82"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf b;
        buf_init(&b, 1000);
        buf_put_json_str(&b, cases[i].in);
        CHECK(str_eq(buf_str(&b), str_c(cases[i].out)), "case %zu: %.*s", i, STR_ARG(buf_str(&b)));
        buf_release(&b);
    }
}

TEST(buf_without_memory_is_full) {
    struct buf b;
    buf_init(&b, 100000);
    mem_fail_at(0);
    buf_put_c(&b, "abc");
    CHECK(b.full && b.len == 0);
    buf_clear(&b);
    buf_put_c(&b, "abc"); /* memory is back */
    CHECK(!b.full && b.len == 3);
    mem_fail_at(0);
    buf_printf(&b, "%0600d", 1); /* its scratch memory fails */
    CHECK(b.full && b.len == 3);
    buf_clear(&b);
    mem_fail_at(1);
    buf_printf(&b, "%0600d", 1); /* growing fails: what fits is kept */
    CHECK(b.full && b.len == b.cap);
    mem_fail_at(-1);
    buf_release(&b);
}
