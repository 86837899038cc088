#include "base/json.h"

#include <time.h>

#include "test.h"

static const struct json_limits limits = {.bytes_max = (size_t)4 << 20, .depth_max = 8};

static struct arena arena_make(void) {
    struct arena a;
    arena_init(&a, 4096, (size_t)256 << 20);
    return a;
}

TEST(json_refuses_and_says_why) {
    static const struct {
        str in;
        status st;
        const char *reason, *where;
    } cases[] = {
        {STR_LIT(""), ST_INVALID, "JSON_SYNTAX", "offset 0"},
        {{NULL, 0}, ST_INVALID, "JSON_SYNTAX", "offset 0"},
        {STR_LIT("  "), ST_INVALID, "JSON_SYNTAX", "offset 0"},
        {STR_LIT("{\"a\":1,}"), ST_INVALID, "JSON_SYNTAX", "offset 6"},
        {STR_LIT("[1,2"), ST_INVALID, "JSON_SYNTAX", "offset 4"},
        {STR_LIT("{} {}"), ST_INVALID, "JSON_SYNTAX", "offset 3"},
        {STR_LIT("[1]]"), ST_INVALID, "JSON_SYNTAX", "offset 3"},
        {STR_LIT("]"), ST_INVALID, "JSON_SYNTAX", "offset 0"},
        {STR_LIT("{'a':1}"), ST_INVALID, "JSON_SYNTAX", "offset 1"},
        {STR_LIT("// c\n1"), ST_INVALID, "JSON_SYNTAX", "offset 0"},
        {STR_LIT("nul"), ST_INVALID, "JSON_SYNTAX", "offset 3"},
        {STR_LIT("NaN"), ST_INVALID, "JSON_SYNTAX", "offset 0"},
        {STR_LIT("[01]"), ST_INVALID, "JSON_SYNTAX", "offset 1"},
        {STR_LIT("[+1]"), ST_INVALID, "JSON_SYNTAX", "offset 1"},
        {STR_LIT("[1.,22]"), ST_INVALID, "JSON_SYNTAX",
         "offset 4"}, /* yyjson points behind it here */
        {STR_LIT("[1e,22]"), ST_INVALID, "JSON_SYNTAX", "offset 4"},
        {STR_LIT("[-]"), ST_INVALID, "JSON_SYNTAX", "offset 2"},
        {STR_LIT("\"a\nb\""), ST_INVALID, "JSON_SYNTAX", "offset 2"},
        {STR_LIT("\"a"), ST_INVALID, "JSON_SYNTAX", "offset 2"},
        {STR_LIT("\"\\x\""), ST_INVALID, "JSON_SYNTAX", "offset 2"},
        {STR_LIT("\"\\u12\""), ST_INVALID, "JSON_SYNTAX", "offset 1"},
        {STR_LIT("\xEF\xBB\xBF{}"), ST_INVALID, "JSON_SYNTAX", "offset 0"}, /* a byte order mark */
        {STR_LIT("[\"\xFF\"]"), ST_INVALID, "JSON_UTF8", "offset 2"},
        {STR_LIT("\"\xED\xA0\x80\""), ST_INVALID, "JSON_UTF8", "offset 1"},
        {STR_LIT("\"\xC0\x80\""), ST_INVALID, "JSON_UTF8", "offset 1"},
        {STR_LIT("{}\xFF"), ST_INVALID, "JSON_UTF8", "offset 2"},
        {STR_LIT("\"\\ud800\""), ST_INVALID, "JSON_SURROGATE", "offset 1"},
        {STR_LIT("\"ab\\uDBFFx\""), ST_INVALID, "JSON_SURROGATE", "offset 3"},
        {STR_LIT("\"\\udc00\""), ST_INVALID, "JSON_SURROGATE", "offset 1"},
        {STR_LIT("\"\\uDFFF\\uD800\""), ST_INVALID, "JSON_SURROGATE", "offset 1"},
        {STR_LIT("\"\\ud800\\ud800\""), ST_INVALID, "JSON_SURROGATE", "offset 1"},
        {STR_LIT("\"\\ud83d\\n\""), ST_INVALID, "JSON_SURROGATE", "offset 1"},
        {STR_LIT("\"\\\\\\ud83d\\u0041\""), ST_INVALID, "JSON_SURROGATE", "offset 3"},
        {STR_LIT("{\"\\udead\":1}"), ST_INVALID, "JSON_SURROGATE", "offset 2"},
        {STR_LIT("\"\\\\ud800\n\""), ST_INVALID, "JSON_SYNTAX", "offset 8"}, /* no escape at all */
        {STR_LIT("\"\\\\ud800"), ST_INVALID, "JSON_SYNTAX", "offset 8"},
        {STR_LIT("[1,\0]"), ST_INVALID, "JSON_NUL", "offset 3"},
        {STR_LIT("\"a\0b\""), ST_INVALID, "JSON_NUL", "offset 2"},
        {STR_LIT("{}\0"), ST_INVALID, "JSON_NUL", "offset 2"},
        {STR_LIT("\"\\u0000\""), ST_INVALID, "JSON_NUL", ""},
        {STR_LIT("{\"a\":[1,\"x\\u0000y\"]}"), ST_INVALID, "JSON_NUL", "/a/1"},
        {STR_LIT("{\"a\":{\"k\\u0000\":1}}"), ST_INVALID, "JSON_NUL", "/a/k\\u0000"},
        {STR_LIT("{\"a\":1,\"a\":2}"), ST_INVALID, "JSON_DUPLICATE_KEY", "/a"},
        {STR_LIT("{\"a\":1,\"\\u0061\":1}"), ST_INVALID, "JSON_DUPLICATE_KEY", "/a"},
        {STR_LIT("{\"\":1,\"\":1}"), ST_INVALID, "JSON_DUPLICATE_KEY", "/"},
        {STR_LIT("[0,{\"x\":[[],{\"y\":{\"b\":{},\"c\":[1],\"b\":0}}]}]"), ST_INVALID,
         "JSON_DUPLICATE_KEY", "/1/x/1/y/b"},
        {STR_LIT("{\"a/b\":{\"m~n\":{\"k\":1,\"k\":1}}}"), ST_INVALID, "JSON_DUPLICATE_KEY",
         "/a~1b/m~0n/k"},
        {STR_LIT("[[[[[[[[[]]]]]]]]]"), ST_LIMIT, "JSON_DEPTH", "/0/0/0/0/0/0/0/0"},
        {STR_LIT("{\"a\":[1,{\"b/\":[\"]\",[],[{\"c\":[[[{}]]]}]]}]}"), ST_LIMIT, "JSON_DEPTH",
         "/a/1/b~1/2/0/c/0/0"},
        {STR_LIT("[[[[[[[[{"), ST_LIMIT, "JSON_DEPTH", "/0/0/0/0/0/0/0/0"},
        {STR_LIT("[[[[[[[[\"[[[\\\"[[[\",[[["), ST_LIMIT, "JSON_DEPTH", "/0/0/0/0/0/0/0/1"},
        {STR_LIT("[x[[[[[[[[["), ST_INVALID, "JSON_SYNTAX",
         "offset 1"}, /* the first mistake counts */
        {STR_LIT("[[[[[[[[1 ["), ST_INVALID, "JSON_SYNTAX", "offset 10"},
        {STR_LIT("[}]}]}[[[[[[[[[[["), ST_INVALID, "JSON_SYNTAX", "offset 1"},
    };
    struct arena a = arena_make();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        yyjson_val *root = NULL;
        status st = json_parse(cases[i].in, limits, &a, &root, &err);
        CHECK(st == cases[i].st && err.code == st && root == NULL, "case %zu: %s", i, err.msg);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s %s", i,
              reason_name(err.reason), err.msg);
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s %s", i, err.where, err.msg);
        CHECK(a.used == 0, "case %zu", i); /* nothing is left behind */
    }
    arena_release(&a);
}

/* What is written is what was read, without the blanks. */
TEST(json_gives_back_what_it_took) {
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"1", "1"},
        {" \t\r\n{ } ", "{}"},
        {"[ ]", "[]"},
        {"[null,true , false]", "[null,true,false]"},
        {"[0,-0,1.0,1.50,1e3,1E+03,-0.0e-0]", "[0,-0,1.0,1.50,1e3,1E+03,-0.0e-0]"},
        {"123456789012345678901234567890.5", "123456789012345678901234567890.5"},
        {"1e999999", "1e999999"},
        {"{\"b\":1,\"a\":[{},[],{\"c\":\"x\"}]}", "{\"b\":1,\"a\":[{},[],{\"c\":\"x\"}]}"},
        {"\"\\u00e9\\ud83c\\udf04\\/\\u0041\"", "\"\xC3\xA9\xF0\x9F\x8C\x84/A\""},
        {"\"\\u001f\\b\\f\\n\\r\\t\\\"\\\\\\u007f\"", "\"\\u001F\\b\\f\\n\\r\\t\\\"\\\\\x7F\""},
        {"\"\\\\u0000\"", "\"\\\\u0000\""}, /* not an escape, so not a NUL */
        {"\"\\uFFFF\xEF\xBF\xBE\"",
         "\"\xEF\xBF\xBF\xEF\xBF\xBE\""}, /* noncharacters are characters */
        {"[[[[[[[[1]]]]]]],[[[[[[[\"[[[\"]]]]]]],{\"[[\":1}]",
         NULL}, /* depth 8, the last good one */
    };
    struct arena a = arena_make();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        yyjson_val *root = NULL;
        str want = str_c(cases[i].out != NULL ? cases[i].out : cases[i].in);
        CHECK(json_parse(str_c(cases[i].in), limits, &a, &root, &err) == ST_OK, "case %zu: %s", i,
              err.msg);
        struct buf b;
        buf_init(&b, 1000);
        CHECK(json_write(root, &b) && str_eq(buf_str(&b), want), "case %zu: %.*s", i,
              STR_ARG(buf_str(&b)));
        buf_release(&b);
        str text = json_text(root, &a);
        CHECK(str_eq(text, want), "case %zu: %.*s", i, STR_ARG(text));
        buf_init(&b, want.len - 1); /* one too few */
        CHECK(!json_write(root, &b), "case %zu", i);
        buf_release(&b);
    }
    arena_release(&a);
}

/* Two writers of strings, one of them ours: they must agree on every character. */
TEST(json_strings_are_written_alike) {
    struct arena a = arena_make();
    for (unsigned c = 1; c < 0x800; c++) {
        char in[16];
        char one[2] = {(char)c, 0};
        char two[3] = {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 0x3F)), 0};
        (void)snprintf(in, sizeof in, "\"\\u%04x\"", c);
        yyjson_val *root = NULL;
        struct error err;
        CHECK(json_parse(str_c(in), limits, &a, &root, &err) == ST_OK, "%s: %s", in, err.msg);
        str value;
        CHECK(json_str(root, &value) && str_eq(value, c < 0x80 ? str_c(one) : str_c(two)), "%s",
              in);
        char mem[16];
        struct buf b;
        buf_init_fixed(&b, mem, sizeof mem);
        buf_put_json_str(&b, value);
        CHECK(str_eq(buf_str(&b), json_text(root, &a)), "%s: %.*s", in, STR_ARG(buf_str(&b)));
        arena_reset(&a);
    }
    arena_release(&a);
}

TEST(json_size_limit) {
    struct arena a = arena_make();
    struct error err = {0};
    yyjson_val *root = NULL;
    struct json_limits ten = {.bytes_max = 10, .depth_max = 1};
    CHECK(json_parse(STR("[12345678]"), ten, &a, &root, &err) == ST_OK); /* the last good one, */
    CHECK(json_parse(STR("[123456789]"), ten, &a, &root, &err) ==
          ST_LIMIT); /* and the first bad one */
    CHECK(err.reason == REASON_JSON_TOO_LARGE && strcmp(err.where, "offset 10") == 0);
    CHECK(json_parse(STR("\xFF[123456789]"), ten, &a, &root, &err) ==
          ST_LIMIT); /* before all else */
    arena_release(&a);
}

TEST(json_depth_limit) {
    struct arena a = arena_make();
    for (int max = 0; max < 70; max++) {
        char text[160];
        memset(text, '[', (size_t)max);
        memset(text + max, ']', (size_t)max);
        str good = max == 0 ? STR("1") : str_n(text, (size_t)max * 2);
        struct error err = {0};
        yyjson_val *root = NULL;
        struct json_limits l = {.bytes_max = 1000, .depth_max = max};
        CHECK(json_parse(good, l, &a, &root, &err) == ST_OK, "depth %d: %s", max, err.msg);
        memset(text, '[', (size_t)max + 1);
        memset(text + max + 1, ']', (size_t)max + 1);
        str bad = str_n(text, (size_t)max * 2 + 2);
        CHECK(json_parse(bad, l, &a, &root, &err) == ST_LIMIT, "depth %d", max);
        CHECK(err.reason == REASON_JSON_DEPTH, "depth %d: %s", max, reason_name(err.reason));
    }
    arena_release(&a);
}

/* A million levels are refused at the price of the first few, in whatever shape they come. */
TEST(json_depth_bombs_are_cheap) {
    static const struct {
        const char *level;
        const char *where;
    } shapes[] = {
        {"[", "/0/0/0/0/0/0/0/0"},
        {"{\"a\":", "/a/a/a/a/a/a/a/a"},
        {"[{\"k\":", "/0/k/0/k/0/k/0/k"},
    };
    enum { SIZE = 1000000 };
    static char bomb[SIZE];
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        size_t len = strlen(shapes[i].level);
        for (size_t k = 0; k < SIZE; k++)
            bomb[k] = shapes[i].level[k % len];
        struct arena a;
        arena_init(&a, 1024, 16384); /* a bomb that were parsed would not fit */
        struct error err = {0};
        yyjson_val *root = NULL;
        CHECK(json_parse(str_n(bomb, SIZE), limits, &a, &root, &err) == ST_LIMIT, "%zu: %s", i,
              err.msg);
        CHECK(err.reason == REASON_JSON_DEPTH && strcmp(err.where, shapes[i].where) == 0,
              "shape %zu: %s %s", i, reason_name(err.reason), err.where);
        CHECK(arena_footprint(&a) == 0);
        arena_release(&a);
    }
}

/* A document deeper than any C stack, allowed by its limit: still no recursion anywhere. */
TEST(json_does_not_recurse) {
    enum { DEPTH = 500000 };
    static char text[2 * DEPTH];
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    struct json_limits deep = {.bytes_max = sizeof text, .depth_max = DEPTH};
    struct arena a = arena_make();
    struct error err = {0};
    yyjson_val *root = NULL;
    CHECK(json_parse(str_n(text, sizeof text), deep, &a, &root, &err) == ST_OK, "%s", err.msg);
    str back = json_text(root, &a);
    CHECK(str_eq(back, str_n(text, sizeof text)));
    deep.depth_max--;
    arena_reset(&a);
    CHECK(json_parse(str_n(text, sizeof text), deep, &a, &root, &err) == ST_LIMIT);
    CHECK(str_starts(str_c(err.where), STR("/0/0/")) && str_ends(str_c(err.where), STR("...")),
          "%s", err.where);
    arena_release(&a);
}

static void put_object(struct buf *b, size_t keys, size_t repeat) {
    buf_put_char(b, '{');
    for (size_t i = 0; i < keys; i++) {
        buf_printf(b, "%s\"key-%zu\":[%zu]", i == 0 ? "" : ",", i, i);
    }
    if (repeat < keys) buf_printf(b, ",\"key-%zu\":0", repeat);
    buf_put_char(b, '}');
}

TEST(json_duplicate_keys_in_objects_of_any_size) {
    static const size_t sizes[] = {1, 2, 23, 24, 25, 26, 100, 5000};
    struct arena a = arena_make();
    struct buf b;
    buf_init(&b, (size_t)4 << 20);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t n = sizes[i];
        const size_t repeats[] = {0, n / 2, n - 1, n}; /* the last: none */
        for (size_t k = 0; k < COUNT_OF(repeats); k++) {
            struct error err = {0};
            yyjson_val *root = NULL;
            buf_clear(&b);
            put_object(&b, n, repeats[k]);
            status st = json_parse(buf_str(&b), limits, &a, &root, &err);
            CHECK(st == (repeats[k] < n ? ST_INVALID : ST_OK), "%zu keys: %s", n, err.msg);
            char want[32];
            (void)snprintf(want, sizeof want, "/key-%zu", repeats[k]);
            if (st != ST_OK) CHECK(strcmp(err.where, want) == 0, "%zu keys: %s", n, err.where);
            arena_reset(&a);
        }
    }
    buf_release(&b);
    arena_release(&a);
}

TEST(json_large_objects_are_fast) {
    struct arena a = arena_make();
    struct buf b;
    buf_init(&b, (size_t)4 << 20);
    put_object(&b, 100000, 100000);
    CHECK(!b.full);
    struct error err = {0};
    yyjson_val *root = NULL;
    clock_t start = clock(); /* of the processor: others may use it, too */
    CHECK(json_parse(buf_str(&b), limits, &a, &root, &err) == ST_OK, "%s", err.msg);
    int64_t ms = (int64_t)(clock() - start) * 1000 / CLOCKS_PER_SEC;
    CHECK(ms < 2000, "%lld ms", (long long)ms); /* comparing each with each takes minutes */
    buf_release(&b);
    arena_release(&a);
}

TEST(json_pointers_that_are_too_long_are_cut) {
    struct arena a = arena_make();
    for (size_t pad = 0; pad < 8; pad++) { /* every way to cut a character of three bytes */
        char text[400];
        struct buf b;
        buf_init_fixed(&b, text, sizeof text);
        buf_put_c(&b, "{\"");
        for (size_t i = 0; i < pad; i++)
            buf_put_char(&b, 'x');
        for (size_t i = 0; i < 40; i++)
            buf_put_c(&b, "\xE2\x82\xAC");
        buf_put_c(&b, "\":{\"a\":1,\"a\":1}}");
        struct error err = {0};
        yyjson_val *root = NULL;
        size_t bad;
        CHECK(json_parse(buf_str(&b), limits, &a, &root, &err) == ST_INVALID);
        CHECK(err.reason == REASON_JSON_DUPLICATE_KEY);
        str where = str_c(err.where);
        CHECK(str_ends(where, STR("...")) && str_utf8(where, &bad), "pad %zu: %s", pad, err.where);
        CHECK(where.len >= ERROR_WHERE_MAX - 4 && where.len < ERROR_WHERE_MAX, "%zu", where.len);
    }
    arena_release(&a);
}

TEST(json_int_is_whole_and_decimal) {
    static const struct {
        const char *in;
        bool ok;
        int64_t want;
    } cases[] = {
        {"0", true, 0},
        {"-7", true, -7},
        {"9223372036854775807", true, INT64_MAX}, /* the last good one, */
        {"9223372036854775808", false, 0},        /* and the first bad one */
        {"-9223372036854775808", true, INT64_MIN},
        {"-9223372036854775809", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"\"1\"", false, 0},
        {"true", false, 0},
        {"null", false, 0},
        {"[1]", false, 0},
    };
    struct arena a = arena_make();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err;
        yyjson_val *root = NULL;
        int64_t n = 0;
        CHECK(json_parse(str_c(cases[i].in), limits, &a, &root, &err) == ST_OK, "case %zu: %s", i,
              err.msg);
        CHECK(json_int(root, &n) == cases[i].ok && n == cases[i].want, "case %zu", i);
    }
    CHECK(!json_int(NULL, &(int64_t){0}));
    arena_release(&a);
    /* Numbers that yyjson itself has parsed, as other readers of the same struct make them. */
    yyjson_doc *doc = yyjson_read("[5,-5,9223372036854775808,5.5]", 30, 0);
    yyjson_val *arr = yyjson_doc_get_root(doc);
    int64_t n = 0;
    CHECK(json_int(yyjson_arr_get(arr, 0), &n) && n == 5);
    CHECK(json_int(yyjson_arr_get(arr, 1), &n) && n == -5);
    CHECK(!json_int(yyjson_arr_get(arr, 2), &n) && !json_int(yyjson_arr_get(arr, 3), &n));
    yyjson_doc_free(doc);
}

TEST(json_members_and_strings) {
    struct arena a = arena_make();
    struct error err;
    yyjson_val *root = NULL;
    str s = STR_NONE;
    CHECK(json_parse(STR("{\"a\":\"x\",\"\":1}"), limits, &a, &root, &err) == ST_OK);
    CHECK(json_str(json_member(root, "a"), &s) && str_eq(s, STR("x")));
    CHECK(json_member(root, "b") == NULL && json_member(root, "") != NULL);
    CHECK(!json_str(json_member(root, ""), &s) && !json_str(NULL, &s) && !json_str(root, &s));
    CHECK(json_member(json_member(root, "a"), "a") == NULL && json_member(NULL, "a") == NULL);
    arena_release(&a);
}

/* Each allocation fails in turn: ST_RETRY every time, nothing kept, and then it works. */
TEST(json_survives_every_failing_allocation) {
    struct buf b;
    buf_init(&b, 100000);
    put_object(&b, 400, 400); /* dense enough that yyjson has to grow, and hashed */
    str deep = STR("[[[[[[[[[[[[[[[[[[[[[[[");
    for (int round = 0; round < 2; round++) {
        str text = round == 0 ? buf_str(&b) : deep;
        status st = ST_RETRY;
        int64_t n = 0;
        for (; st == ST_RETRY; n++) {
            CHECK(n < 1000);
            struct arena a;
            arena_init(&a, 0, (size_t)1 << 20);
            struct error err = {0};
            yyjson_val *root = NULL;
            mem_fail_at(n);
            st = json_parse(text, limits, &a, &root, &err);
            mem_fail_at(-1);
            if (st != ST_OK) CHECK(root == NULL && a.used == 0);
            arena_release(&a);
        }
        CHECK(st == (round == 0 ? ST_OK : ST_LIMIT) && n > 1, "round %d: %lld", round,
              (long long)n);
    }
    buf_release(&b);
}

TEST(json_keeps_to_the_cap_of_the_arena) {
    struct buf b;
    buf_init(&b, 100000);
    put_object(&b, 400, 400);
    status st = ST_RETRY;
    for (size_t cap = 0; st == ST_RETRY; cap += 512) {
        CHECK(cap < (size_t)1 << 20);
        struct arena a;
        arena_init(&a, 0, cap);
        struct error err = {0};
        yyjson_val *root = NULL;
        st = json_parse(buf_str(&b), limits, &a, &root, &err);
        CHECK(st == ST_RETRY || st == ST_OK, "%s", err.msg);
        if (st == ST_OK) { /* no room is left for the text, or there is */
            str text = json_text(root, &a);
            CHECK(text.ptr == NULL || str_eq(text, buf_str(&b)));
        }
        arena_release(&a);
    }
    buf_release(&b);
}

TEST(json_writing_survives_every_failing_allocation) {
    struct arena a = arena_make();
    struct error err;
    yyjson_val *root = NULL;
    struct buf in;
    buf_init(&in, 100000);
    put_object(&in, 100, 100);
    CHECK(json_parse(buf_str(&in), limits, &a, &root, &err) == ST_OK);
    bool written = false;
    int64_t n = 0;
    for (; !written; n++) {
        CHECK(n < 1000);
        struct buf out;
        buf_init(&out, 100000);
        mem_fail_at(n);
        written = json_write(root, &out);
        mem_fail_at(-1);
        CHECK(written == !out.full && (!written || str_eq(buf_str(&out), buf_str(&in))));
        buf_release(&out);
    }
    CHECK(n > 1);
    buf_release(&in);
    arena_release(&a);
}

/* ---- JSONC ---- */

TEST(jsonc_allows_comments_and_last_commas) {
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"// a\n{ /* b */ \"a\" : [1, 2 ,], // \"\n \"b\":{\"c\":\"// no /* comment */\",},}\n//",
         "{\"a\":[1,2],\"b\":{\"c\":\"// no /* comment */\"}}"},
        {"/**/1.50/***/", "1.50"},
        {"[/* [[[[[[[[[ \" */ \"\\\"//\", // ]]] \"\r\n 1]", "[\"\\\"//\",1]"},
        {"{\"a\":1}", "{\"a\":1}"},
        {"[[[[[[[[/*[*/]]]]]]]]", "[[[[[[[[]]]]]]]]"}, /* as deep as it may be */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena arena = arena_make();
        struct error err = {0};
        yyjson_val *root = NULL;
        size_t at = 0;
        CHECK(jsonc_parse(str_c(cases[i].in), limits, &arena, &root, &at, &err) == ST_OK,
              "case %zu: %s", i, err.msg);
        CHECK(str_eq(json_text(root, &arena), str_c(cases[i].out)), "case %zu", i);
        arena_release(&arena);
    }
}

TEST(jsonc_tells_where_the_mistake_is) {
    static const struct {
        str in;
        const char *reason, *where;
        size_t at;
    } cases[] = {
        {STR_LIT("{\"a\":1 // x\n b}"), "JSON_SYNTAX", "offset 13", 13},
        {STR_LIT("[1,,2]"), "JSON_SYNTAX", "offset 3", 3},
        {STR_LIT("[,]"), "JSON_SYNTAX", "offset 1", 1},
        {STR_LIT("[1 /* "), "JSON_SYNTAX", "offset 3", 3},
        {STR_LIT("[1] / 2"), "JSON_SYNTAX", "offset 4", 4},
        {STR_LIT("{\"a\":1,/*\"a\":*/\"a\": [2]}"), "JSON_DUPLICATE_KEY", "/a", 20},
        {STR_LIT("[[1, \"b\"], \"\\u0000\"]"), "JSON_NUL", "/1", 11},
        {STR_LIT("[//[\n[[[[[/*\"*/[[[]]]]]]]]]"), "JSON_DEPTH", "/0/0/0/0/0/0/0/0", 17},
        {STR_LIT("/*\xFF*/1"), "JSON_UTF8", "offset 2", 2},
        {STR_LIT("// \0"), "JSON_NUL", "offset 3", 3},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena arena = arena_make();
        struct error err = {0};
        yyjson_val *root = NULL;
        size_t at = 0;
        CHECK(jsonc_parse(cases[i].in, limits, &arena, &root, &at, &err) != ST_OK, "case %zu", i);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
        CHECK(at == cases[i].at, "case %zu: %zu", i, at);
        arena_release(&arena);
    }
}

/* Every value is found again: its text begins at the offset that is told. */
TEST(jsonc_values_are_found_in_the_text) {
    static const char text[] =
        "/* 0 */ {\"a\" : [ 1, // 2\n -3.5e7,true ] ,\"b\\\"\":{}, \"\": null,"
        "\"c\":\"x\",}";
    static const char *const begins[] = {"{",         "\"a\"", "[",    "1",    "-3.5e7", "true",
                                         "\"b\\\"\"", "{}",    "\"\"", "null", "\"c\"",  "\"x\""};
    struct arena arena = arena_make();
    struct error err = {0};
    yyjson_val *root = NULL;
    size_t at = 0;
    CHECK(jsonc_parse(STR(text), limits, &arena, &root, &at, &err) == ST_OK, "%s", err.msg);
    CHECK((size_t)(unsafe_yyjson_get_next(root) - root) == COUNT_OF(begins));
    for (size_t i = 0; i < COUNT_OF(begins); i++) {
        size_t offset = json_offset(STR(text), 0, i);
        CHECK(strncmp(text + offset, begins[i], strlen(begins[i])) == 0, "value %zu: %s", i,
              text + offset);
        CHECK(i == 0 || offset == json_offset(STR(text), json_offset(STR(text), 0, i - 1), 1));
    }
    CHECK(json_offset(STR(text), 0, COUNT_OF(begins)) == sizeof text - 1);

    char mem[32];
    struct buf pointer;
    buf_init_fixed(&pointer, mem, sizeof mem);
    json_pointer(root, root, &pointer);
    CHECK(pointer.len == 0);
    json_pointer(root, root + 4, &pointer);
    CHECK(str_eq(buf_str(&pointer), STR("/a/1")));
    arena_release(&arena);
}

TEST(json_sorted_is_the_same_for_equal_values) {
    static const struct {
        const char *in, *without, *want;
    } cases[] = {
        {" {\"b\" : 1, \"a\" : [ {\"z\":1.50,\"y\":\"\\u00e4\"} , null ] }", NULL,
         "{\"a\":[{\"y\":\"\xC3\xA4\",\"z\":1.50},null],\"b\":1}"},
        {"{\"a\":{\"k\":1},\"k\":2,\"B\":true}", "k", "{\"B\":true,\"a\":{\"k\":1}}"},
        {"{\"k\":2}", "k", "{}"},
        {"[[],{}]", "k", "[[],{}]"},
        {"\"x\"", NULL, "\"x\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a = arena_make();
        yyjson_val *root;
        struct error err = {0};
        struct buf out;
        CHECK(json_parse(str_c(cases[i].in), limits, &a, &root, &err) == ST_OK, "%s", err.msg);
        buf_init(&out, 1024);
        size_t used = a.used;
        CHECK(json_write_sorted(root, cases[i].without, &a, &out), "case %zu", i);
        CHECK(str_eq(buf_str(&out), str_c(cases[i].want)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&out)));
        CHECK(a.used == used);
        size_t len = out.len;
        buf_release(&out);
        buf_init(&out, len - 1);
        CHECK(!json_write_sorted(root, cases[i].without, &a, &out), "case %zu", i);
        buf_release(&out);
        arena_release(&a);
    }
}
