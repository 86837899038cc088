/* Liquid as liquidjs renders it: every case of tests/liquid/cases.json, byte for byte. The expected
 * texts were made by liquidjs itself; tests/liquid/compare.mjs checks that they still are. */
#include "base/json.h"
#include "base/os.h"
#include "core/liquid.h"
#include "test.h"

#define CASES_FILE "tests/liquid/cases.json"
#define CASES_BYTES_MAX ((size_t)4 * 1024 * 1024)

static str text_of(yyjson_val *item, const char *name) {
    str s = STR_NONE;
    CHECK(json_str(json_member(item, name), &s), "a case has no \"%s\"", name);
    return s;
}

/* Tells what differs, so that one run shows all of it. */
static bool fits(size_t number, yyjson_val *item) {
    struct arena arena;
    struct buf out;
    struct error err = {0};
    str template = text_of(item, "template");
    str expected = text_of(item, "expected");
    struct liquid_scope scope = {.root = json_member(item, "context")};
    arena_init(&arena, 4096, (size_t)128 * 1024 * 1024);
    buf_init(&out, LIQUID_OUTPUT_MAX);
    status st = liquid_check(template, &err);
    if (st == ST_OK) st = liquid_render(template, &scope, &arena, &out, &err);
    bool ok = st == ST_OK && str_eq(buf_str(&out), expected);
    if (!ok) {
        fprintf(stderr, "case %zu: %.*s\n  expected: %.*s\n  got: %.*s %s\n", number,
                STR_ARG(template), STR_ARG(expected), STR_ARG(buf_str(&out)), err.msg);
    }
    buf_release(&out);
    arena_release(&arena);
    return ok;
}

TEST(liquid_renders_every_case_as_liquidjs_does) {
    struct arena arena;
    struct error err = {0};
    str text;
    yyjson_val *root;
    yyjson_val *item;
    size_t i;
    size_t n;
    arena_init(&arena, 4096, 16 * CASES_BYTES_MAX);
    CHECK(file_read(STR(CASES_FILE), CASES_BYTES_MAX, &arena, &text, &err) == ST_OK, "%s", err.msg);
    struct json_limits limits = {.bytes_max = CASES_BYTES_MAX, .depth_max = 32};
    CHECK(json_parse(text, limits, &arena, &root, &err) == ST_OK, "%s", err.msg);
    CHECK(yyjson_arr_size(root) >= 250);
    size_t differ = 0;
    yyjson_arr_foreach(root, i, n, item) differ += !fits(i, item);
    CHECK(differ == 0, "%zu of %zu cases differ", differ, n);
    arena_release(&arena);
}
