#include "base/json_out.h"

#include "base/json.h"
#include "test.h"

static void check_text(struct buf *b, const char *want) {
    CHECK(!b->full && str_eq(buf_str(b), str_c(want)), "%.*s", STR_ARG(buf_str(b)));
    buf_clear(b);
}

TEST(json_out_puts_commas_between_values_only) {
    struct buf b;
    buf_init(&b, 1000);
    json_object_begin(&b);
    json_object_end(&b);
    check_text(&b, "{}");

    json_object_begin(&b);
    json_put_int(&b, "a", 1);
    json_put_text(&b, "b", STR("{[:,"));
    json_put_bool(&b, "c", true);
    json_name(&b, "d");
    json_object_begin(&b);
    json_put_bool(&b, "e", false);
    json_object_end(&b);
    json_name(&b, "f");
    json_array_begin(&b);
    json_array_end(&b);
    json_put_text(&b, "g", STR_NONE);
    json_put_int(&b, "h", -7);
    json_object_end(&b);
    check_text(&b, "{\"a\":1,\"b\":\"{[:,\",\"c\":true,\"d\":{\"e\":false},\"f\":[],\"g\":null,"
                   "\"h\":-7}");

    json_array_begin(&b);
    json_add_text(&b, STR("x"));
    json_add_int(&b, 0);
    json_add_json(&b, STR("{\"k\":[]}"));
    json_add_text(&b, STR_NONE);
    json_array_begin(&b);
    json_array_end(&b);
    json_object_begin(&b);
    json_object_end(&b);
    json_object_begin(&b);
    json_object_end(&b);
    json_array_end(&b);
    check_text(&b, "[\"x\",0,{\"k\":[]},null,[],{},{}]");
    buf_release(&b);
}

/* A line of NDJSON or of an event stream begins anew; a comma that is there already counts. */
TEST(json_out_goes_on_after_what_is_no_value) {
    static const char *const before[] = {"{}\n", "data: ", "[{},", "\"name\":", ""};
    struct buf b;
    char want[32];
    buf_init(&b, 1000);
    for (size_t i = 0; i < COUNT_OF(before); i++) {
        buf_put_c(&b, before[i]);
        json_object_begin(&b);
        json_object_end(&b);
        snprintf(want, sizeof(want), "%s{}", before[i]);
        check_text(&b, want);
    }
    buf_release(&b);
}

TEST(json_out_knows_null_and_absent) {
    static const uuid id = {{0x5c, 0x1d, 0x2c, 0x0e, 0x8a, 0x64, 0x4b, 0x1f, 0x9d, 0x37, 0x62, 0xf0,
                             0x11, 0xc4, 0x7e, 0xa9}};
    struct buf b;
    buf_init(&b, 1000);
    json_object_begin(&b);
    json_put_text(&b, "text", STR_NONE);
    json_put_text(&b, "empty", STR(""));
    json_put_time(&b, "time", 0);
    json_put_json(&b, "json", STR_NONE);
    json_put_json(&b, "nothing", STR(""));
    json_object_end(&b);
    check_text(&b, "{\"text\":null,\"empty\":\"\",\"time\":null,\"json\":null,\"nothing\":null}");

    json_object_begin(&b);
    json_put_text_if(&b, "text", STR_NONE);
    json_put_time_if(&b, "time", 0);
    json_put_json_if(&b, "json", STR_NONE);
    json_put_int_if(&b, "number", 0);
    json_object_end(&b);
    check_text(&b, "{}");

    json_object_begin(&b);
    json_put_text_if(&b, "text", STR(""));
    json_put_time_if(&b, "time", 1771228800123456);
    json_put_json_if(&b, "json", STR("{\"n\":1.50}"));
    json_put_int_if(&b, "number", -1);
    json_put_uuid(&b, "id", id);
    json_object_end(&b);
    check_text(&b, "{\"text\":\"\",\"time\":\"2026-02-16T08:00:00.123456Z\",\"json\":{\"n\":1.50},"
                   "\"number\":-1,\"id\":\"5c1d2c0e-8a64-4b1f-9d37-62f011c47ea9\"}");
    buf_release(&b);
}

/* Whatever a text ends in, the next member finds its comma. */
TEST(json_out_separates_after_every_json_text) {
    static const char *const values[] = {"1",    "1.5e9", "-0", "true",    "false",
                                         "null", "\"x\"", "[]", "{} \n\t", "\"\\\"\""};
    struct json_limits limits = {1000, 10};
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        struct buf b;
        struct arena arena;
        struct error err = {0};
        yyjson_val *root = NULL;
        int64_t after = 0;
        buf_init(&b, 1000);
        arena_init(&arena, 1024, 1 << 16);
        json_object_begin(&b);
        json_put_json(&b, "value", str_c(values[i]));
        json_put_int(&b, "after", 7);
        json_object_end(&b);
        CHECK(json_parse(buf_str(&b), limits, &arena, &root, &err) == ST_OK, "case %zu: %.*s", i,
              STR_ARG(buf_str(&b)));
        CHECK(json_int(json_member(root, "after"), &after) && after == 7, "case %zu", i);
        arena_release(&arena);
        buf_release(&b);
    }
}

TEST(json_out_leaves_a_full_buffer_full) {
    char mem[8];
    struct buf b;
    buf_init_fixed(&b, mem, sizeof(mem));
    json_object_begin(&b);
    json_put_text(&b, "name", STR("value"));
    json_object_end(&b);
    CHECK(b.full && b.len <= sizeof(mem));
}
