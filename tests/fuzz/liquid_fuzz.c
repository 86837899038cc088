/* Any bytes as a template; behind a first NUL byte its context, as JSON. What is checked can be
 * rendered or is refused for its values or a bound, twice in the same way, into valid UTF-8; inside
 * JSON it gives JSON. */
#include "base/json.h"
#include "core/liquid.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ARENA_MAX ((size_t)256 * 1024 * 1024)

static const struct json_limits limits = {.bytes_max = (size_t)1 << 20, .depth_max = 64};

static yyjson_val *context_of(str json, struct arena *arena) {
    static const char usual[] =
        "{\"a\":[3,1,2,null,\"x\",[1,[2]]],\"b\":{\"c\":\"\\u00e9\\ud83d\\ude00\",\"d\":null,"
        "\"t\":\"2024-02-29T12:34:56.789Z\"},\"n\":12.50,\"i\":12345678901234567890,"
        "\"s\":\" A b<c> \",\"o\":[{\"k\":1,\"v\":true},{\"k\":\"2\"},{\"v\":-1e-7}]}";
    struct error err = {0};
    yyjson_val *root = NULL;
    if (json_parse(json, limits, arena, &root, &err) == ST_OK && yyjson_is_obj(root)) return root;
    status st = json_parse(STR(usual), limits, arena, &root, &err);
    ASSERT(st == ST_OK);
    return root;
}

static void check_refusal(status st, const struct error *err, bool parses) {
    static const char *const reasons[] = {"LIQUID_SYNTAX", "LIQUID_FILTER_UNKNOWN", "LIQUID_LIMIT",
                                          "LIQUID_VALUE"};
    size_t i = 0;
    ASSERT(err->reason != REASON_NONE);
    while (i < COUNT_OF(reasons) && strcmp(reason_name(err->reason), reasons[i]) != 0)
        i++;
    ASSERT(i < COUNT_OF(reasons));
    ASSERT((st == ST_LIMIT) == (i == 2));
    ASSERT(!parses || i >= 2);
}

static void check_template(str text, const struct liquid_scope *scope, struct arena *arena) {
    struct error err = {0};
    struct buf out[2];
    size_t bad;
    status st = liquid_check(text, &err);
    bool parses = st == ST_OK;
    if (!parses) check_refusal(st, &err, false);
    for (int i = 0; i < 2; i++) {
        buf_init(&out[i], LIQUID_OUTPUT_MAX);
        st = liquid_render(text, scope, arena, &out[i], &err);
        ASSERT(st != ST_OK || (parses && str_utf8(buf_str(&out[i]), &bad)));
        if (st != ST_OK) check_refusal(st, &err, parses);
    }
    ASSERT(str_eq(buf_str(&out[0]), buf_str(&out[1])));
    if (liquid_is_plain(text) && st == ST_OK) ASSERT(str_eq(buf_str(&out[0]), text));
    buf_release(&out[0]);
    buf_release(&out[1]);
}

static void check_json(str text, const struct liquid_scope *scope, struct arena *arena) {
    struct error err = {0};
    struct buf out;
    yyjson_val *val;
    buf_init(&out, 4 * LIQUID_OUTPUT_MAX);
    buf_put_char(&out, '[');
    buf_put_json_str(&out, text);
    buf_put_char(&out, ']');
    if (json_parse(buf_str(&out), limits, arena, &val, &err) == ST_OK) {
        buf_clear(&out);
        status st = liquid_render_json(val, scope, arena, &out, &err);
        size_t len = 0;
        if (st == ST_OK) {
            yyjson_doc *doc =
                yyjson_read_opts(out.ptr, out.len, YYJSON_READ_NUMBER_AS_RAW, NULL, NULL);
            ASSERT(doc != NULL);
            len = yyjson_doc_get_read_size(doc);
            yyjson_doc_free(doc);
        }
        ASSERT(st != ST_OK || len == out.len);
    }
    buf_release(&out);
}

static void check_condition(str text, const struct liquid_scope *scope, struct arena *arena) {
    struct error err = {0};
    bool yes;
    status st = liquid_check_condition(text, &err);
    bool parses = st == ST_OK;
    if (!parses) check_refusal(st, &err, false);
    st = liquid_condition(text, scope, arena, &yes, &err);
    ASSERT(parses || st != ST_OK);
    if (st != ST_OK) check_refusal(st, &err, parses);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    str input = str_n(data, size);
    str text;
    str json = STR("");
    struct arena arena;
    (void)str_split(input, '\0', &text, &json);
    arena_init(&arena, 4096, ARENA_MAX);
    struct liquid_scope scope = {.root = context_of(json, &arena)};
    check_template(text, &scope, &arena);
    check_json(text, &scope, &arena);
    check_condition(text, &scope, &arena);
    arena_release(&arena);
    return 0;
}
