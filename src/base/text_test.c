#include "base/text.h"

#include "base/json.h"
#include "base/mask.h"
#include "test.h"

TEST(text_becomes_valid_json) {
    static const struct {
        const char *in;
        size_t max;
        const char *want;
        bool whole;
    } cases[] = {
        {"", 10, "\"\"", true},
        {"plain", 7, "\"plain\"", true},
        {"plain", 6, "\"plai\"", false},
        {"a\"b\\c\n", 100, "\"a\\\"b\\\\c\\n\"", true},
        {"a\n", 4, "\"a\"", false}, /* an escape is never cut */
        {"\xc3\xa9\xc3\xa9", 5, "\"\xc3\xa9\"", false},
        {"\xe2\x82\xac", 5, "\"\xe2\x82\xac\"", true},
        {"\xff\xfe", 100, "\"\xef\xbf\xbd\xef\xbf\xbd\"", true},
        {"\xe2\x82", 100, "\"\xef\xbf\xbd\xef\xbf\xbd\"", true},
        {"\xc0\x80x", 100, "\"\xef\xbf\xbd\xef\xbf\xbdx\"", true},
        {"\xed\xa0\x80", 100, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"", true},
        {"\x7f\x1b[0m", 100, "\"\x7f\\u001B[0m\"", true},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf out;
        buf_init(&out, 1024);
        bool whole = text_put_json(&out, str_c(cases[i].in), cases[i].max);
        CHECK(whole == cases[i].whole && str_eq(buf_str(&out), str_c(cases[i].want)),
              "case %zu: %.*s", i, STR_ARG(buf_str(&out)));
        buf_release(&out);
    }
    struct buf out;
    buf_init(&out, 64);
    CHECK(text_put_json(&out, str_n("a\0b", 3), 64));
    CHECK(str_eq(buf_str(&out), STR("\"a\xef\xbf\xbd"
                                    "b\"")));
    buf_release(&out);
}

TEST(text_cuts_leave_no_half_characters) {
    static const struct {
        const char *in;
        bool start, end;
        const char *want;
    } cases[] = {
        {"abc", true, true, "abc"},
        {"\x82\xac x", true, false, " x"},
        {"\x82\xac x", false, true, "\x82\xac x"},
        {"x\xe2\x82", false, true, "x"},
        {"x\xe2\x82\xac", false, true, "x\xe2\x82\xac"},
        {"x\xe2\x82", true, false, "x\xe2\x82"},
        {"\xf0\x9f\x98", false, true, ""},
        {"\x82\x82\x82\x82", true, true, "\x82"}, /* not UTF-8 anyway */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str got = text_uncut(str_c(cases[i].in), cases[i].start, cases[i].end);
        CHECK(str_eq(got, str_c(cases[i].want)), "case %zu: %zu bytes", i, got.len);
    }
}

TEST(mask_json_is_masked_after_its_escapes_are_read) {
    struct arena arena;
    arena_init(&arena, 1024, (size_t)1024 * 1024);
    struct mask mask;
    mask_init(&mask, &arena);
    CHECK(mask_add(&mask, STR("pa/ss\"word")));
    static const struct {
        const char *in, *want;
    } cases[] = {
        {"[1, \"x\", {\"a\": null}]", "[1,\"x\",{\"a\":null}]"},
        {"\"pa\\/ss\\u0022word!\"", "\"***!\""},
        {"{\"pa\\/ss\\\"word\": [\"\\u0070a/ss\\\"word\", 1.50]}", "{\"***\":[\"***\",1.50]}"},
        {"[]", "[]"},
        {"{}", "{}"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        yyjson_val *root;
        struct error err;
        struct buf out;
        struct json_limits limits = {1024, 16};
        buf_init(&out, 1024);
        CHECK(json_parse(str_c(cases[i].in), limits, &arena, &root, &err) == ST_OK);
        CHECK(json_write_masked(root, &mask, &out), "case %zu", i);
        CHECK(str_eq(buf_str(&out), str_c(cases[i].want)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&out)));
        buf_release(&out);
    }
    arena_release(&arena);
}
