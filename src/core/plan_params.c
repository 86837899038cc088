/* core/plan_params.c: the parameters of a run, described by a subset of JSON Schema.
 *
 * A plan whose schema has a keyword that is not known here is refused, so nobody believes in a
 * check that does not happen.
 *
 * Functions recurse as deep as the texts are nested, which jsonc_parse() and json_parse() bound.
 * NOLINTBEGIN(misc-no-recursion) */
#include <stdarg.h>

#include "base/json.h"
#include "base/limits.h"
#include "core/plan_impl.h"

/* Looking up a property is linear, so the product of schema and parameters is bounded. */
enum { SCHEMA_VALUES_MAX = 10000 };

enum keyword {
    KEY_TYPE,
    KEY_PROPERTIES,
    KEY_REQUIRED,
    KEY_ADDITIONAL,
    KEY_ITEMS,
    KEY_ENUM,
    KEY_CONST,
    KEY_DEFAULT,
    KEY_MINIMUM,
    KEY_MAXIMUM,
    KEY_MIN_LENGTH,
    KEY_MAX_LENGTH,
    KEY_TITLE,
    KEY_DESCRIPTION,
    KEY_EXAMPLES,
    KEY_SCHEMA,
    KEYWORD_COUNT
};
static const char *const keywords[KEYWORD_COUNT] = {
    "type",    "properties",  "required",  "additionalProperties",
    "items",   "enum",        "const",     "default",
    "minimum", "maximum",     "minLength", "maxLength",
    "title",   "description", "examples",  "$schema"};

static const char *const type_names[] = {"null",   "boolean", "object", "array",
                                         "number", "integer", "string"};

static bool is_type_name(yyjson_val *val) {
    for (size_t i = 0; i < COUNT_OF(type_names); i++) {
        if (yyjson_equals_str(val, type_names[i])) return true;
    }
    return false;
}

/* ---- values ---- */

static bool is_whole(double n) {
    const double all_are_whole = 9007199254740992.0; /* 2^53: from here on */
    if (n >= all_are_whole || n <= -all_are_whole) return true;
    return (double)(int64_t)n == n;
}

static bool has_type(yyjson_val *val, yyjson_val *name) {
    double n = 0;
    if (yyjson_equals_str(name, "null")) return yyjson_is_null(val);
    if (yyjson_equals_str(name, "boolean")) return yyjson_is_bool(val);
    if (yyjson_equals_str(name, "object")) return yyjson_is_obj(val);
    if (yyjson_equals_str(name, "array")) return yyjson_is_arr(val);
    if (yyjson_equals_str(name, "number")) return yyjson_is_raw(val);
    if (yyjson_equals_str(name, "integer")) return plan_number(val, &n) && is_whole(n);
    return yyjson_is_str(val);
}

/* Whole numbers of 64 bits are compared exactly, others as doubles. -1, 0, 1; 2: no number. */
static int compare_numbers(yyjson_val *a, yyjson_val *b) {
    int64_t i = 0;
    int64_t k = 0;
    double x = 0;
    double y = 0;
    if (json_int(a, &i) && json_int(b, &k)) return (i > k) - (i < k);
    if (!plan_number(a, &x) || !plan_number(b, &y)) return 2;
    return (x > y) - (x < y);
}

static bool is_equal(yyjson_val *a, yyjson_val *b);

static bool is_equal_inside(yyjson_val *a, yyjson_val *b) {
    size_t i = 0;
    size_t max = 0;
    yyjson_val *key = NULL;
    yyjson_val *val = NULL;
    if (yyjson_is_arr(a)) {
        yyjson_arr_iter other = yyjson_arr_iter_with(b);
        yyjson_arr_foreach(a, i, max, val) {
            if (!is_equal(val, yyjson_arr_iter_next(&other))) return false;
        }
        return true;
    }
    yyjson_obj_iter other = yyjson_obj_iter_with(b);
    yyjson_obj_foreach(a, i, max, key, val) {
        yyjson_val *match = yyjson_obj_iter_getn(&other, yyjson_get_str(key), yyjson_get_len(key));
        if (match == NULL || !is_equal(val, match)) return false;
    }
    return true;
}

static bool is_equal(yyjson_val *a, yyjson_val *b) {
    if (yyjson_get_type(a) != yyjson_get_type(b)) return false;
    if (yyjson_is_raw(a)) return compare_numbers(a, b) == 0;
    if (!yyjson_is_ctn(a)) return yyjson_equals(a, b);
    return yyjson_get_len(a) == yyjson_get_len(b) && is_equal_inside(a, b);
}

static int64_t characters(str s) {
    int64_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.ptr[i] & 0xC0) != 0x80;
    return n;
}

static bool among(yyjson_val *val, yyjson_val *list) {
    size_t i = 0;
    size_t max = 0;
    yyjson_val *one = NULL;
    yyjson_arr_foreach(list, i, max, one) {
        if (is_equal(val, one)) return true;
    }
    return false;
}

/* ---- does a value fit a schema? ---- */

struct check {
    struct buf *pointer; /* of the value being looked at */
    char why[ERROR_MSG_MAX - 80];
};

static bool say(struct check *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool say(struct check *c, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(c->why, sizeof c->why, fmt, args);
    va_end(args);
    return false;
}

static void put_token(struct buf *out, str key) {
    buf_put_char(out, '/');
    for (size_t i = 0; i < key.len; i++) {
        if (key.ptr[i] == '~')
            buf_put_c(out, "~0");
        else if (key.ptr[i] == '/')
            buf_put_c(out, "~1");
        else
            buf_put_char(out, key.ptr[i]);
    }
}

static void rewind_to(struct buf *pointer, size_t len) {
    pointer->len = len;
    pointer->full = false;
}

static bool fits_type(struct check *c, yyjson_val *want, yyjson_val *val) {
    if (want == NULL) return true;
    if (yyjson_is_str(want)) {
        return has_type(val, want) ||
               say(c, "must be of type %s, found %s", yyjson_get_str(want), plan_kind_of(val));
    }
    size_t i = 0;
    size_t max = 0;
    yyjson_val *one = NULL;
    yyjson_arr_foreach(want, i, max, one) {
        if (has_type(val, one)) return true;
    }
    return say(c, "is of none of the allowed types, found %s", plan_kind_of(val));
}

static bool fits_bounds(struct check *c, yyjson_val *schema, yyjson_val *val) {
    yyjson_val *list = json_member(schema, "enum");
    yyjson_val *fixed = json_member(schema, "const");
    if (list != NULL && !among(val, list)) return say(c, "is none of the allowed values");
    if (fixed != NULL && !is_equal(val, fixed)) return say(c, "is not the one allowed value");
    yyjson_val *min = json_member(schema, "minimum");
    yyjson_val *max = json_member(schema, "maximum");
    if (yyjson_is_raw(val)) {
        if (min != NULL && compare_numbers(val, min) != 0 && compare_numbers(val, min) != 1)
            return say(c, "must be at least %s", yyjson_get_raw(min));
        if (max != NULL && compare_numbers(val, max) != 0 && compare_numbers(val, max) != -1)
            return say(c, "must be at most %s", yyjson_get_raw(max));
    }
    str text = STR_NONE;
    int64_t length = 0;
    if (!json_str(val, &text)) return true;
    if (json_int(json_member(schema, "minLength"), &length) && characters(text) < length)
        return say(c, "must have at least %lld characters", (long long)length);
    if (json_int(json_member(schema, "maxLength"), &length) && characters(text) > length)
        return say(c, "must have at most %lld characters", (long long)length);
    return true;
}

static bool fits(struct check *c, yyjson_val *schema, yyjson_val *val);

static bool fits_members(struct check *c, yyjson_val *schema, yyjson_val *val) {
    yyjson_val *properties = json_member(schema, "properties");
    bool closed = yyjson_is_false(json_member(schema, "additionalProperties"));
    size_t i = 0;
    size_t max = 0;
    yyjson_val *key = NULL;
    yyjson_val *member = NULL;
    size_t len = c->pointer->len;
    yyjson_obj_foreach(val, i, max, key, member) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        yyjson_val *inner = yyjson_obj_getn(properties, name.ptr, name.len);
        put_token(c->pointer, name);
        if (inner == NULL && closed) return say(c, "is not a parameter of this plan");
        if (inner != NULL && !fits(c, inner, member)) return false;
        rewind_to(c->pointer, len);
    }
    yyjson_arr_iter required = yyjson_arr_iter_with(json_member(schema, "required"));
    while ((member = yyjson_arr_iter_next(&required)) != NULL) {
        str name = str_n(yyjson_get_str(member), yyjson_get_len(member));
        if (yyjson_obj_getn(val, name.ptr, name.len) != NULL) continue;
        /* a default stands in for it */
        yyjson_val *inner = yyjson_obj_getn(properties, name.ptr, name.len);
        if (json_member(inner, "default") != NULL) continue;
        put_token(c->pointer, name);
        return say(c, "is required");
    }
    return true;
}

/* On false the pointer names the place. */
static bool fits(struct check *c, yyjson_val *schema, yyjson_val *val) {
    if (!fits_type(c, json_member(schema, "type"), val)) return false;
    if (!fits_bounds(c, schema, val)) return false;
    if (yyjson_is_obj(val)) return fits_members(c, schema, val);
    yyjson_val *items = json_member(schema, "items");
    if (!yyjson_is_arr(val) || items == NULL) return true;
    size_t i = 0;
    size_t max = 0;
    yyjson_val *item = NULL;
    size_t len = c->pointer->len;
    yyjson_arr_foreach(val, i, max, item) {
        buf_printf(c->pointer, "/%zu", i);
        if (!fits(c, items, item)) return false;
        rewind_to(c->pointer, len);
    }
    return true;
}

/* ---- is it a schema? ---- */

static void bad_schema(struct parse *p, yyjson_val *at, const char *keyword, const char *want) {
    plan_refuse(p, REASON_PLAN_FIELD_VALUE, at, "parameters: \"%s\" must be %s", keyword, want);
}

static bool is_name_list(yyjson_val *val, bool types) {
    size_t i = 0;
    size_t max = 0;
    yyjson_val *one = NULL;
    if (!yyjson_is_arr(val) || (types && yyjson_arr_size(val) == 0)) return false;
    yyjson_arr_foreach(val, i, max, one) {
        if (types ? !is_type_name(one) : !yyjson_is_str(one)) return false;
    }
    return true;
}

static void check_schema(struct parse *p, yyjson_val *schema);

static void check_properties(struct parse *p, yyjson_val *val) {
    if (!yyjson_is_obj(val)) bad_schema(p, val, "properties", "an object of schemas");
    yyjson_obj_iter it = yyjson_obj_iter_with(val);
    for (yyjson_val *key = yyjson_obj_iter_next(&it); key; key = yyjson_obj_iter_next(&it))
        check_schema(p, yyjson_obj_iter_get_val(key));
}

static void check_keyword(struct parse *p, enum keyword key, yyjson_val *val) {
    const char *name = keywords[key];
    int64_t length = 0;
    double number = 0;
    switch (key) {
    case KEY_TYPE:
        if (!is_type_name(val) && !is_name_list(val, true))
            bad_schema(p, val, name,
                       "null, boolean, object, array, number, integer or string, or an array of "
                       "these");
        break;
    case KEY_PROPERTIES:
        check_properties(p, val);
        break;
    case KEY_REQUIRED:
        if (!is_name_list(val, false)) bad_schema(p, val, name, "an array of strings");
        break;
    case KEY_ADDITIONAL:
        if (!yyjson_is_bool(val)) bad_schema(p, val, name, "true or false");
        break;
    case KEY_ITEMS:
        check_schema(p, val);
        break;
    case KEY_ENUM:
        if (yyjson_arr_size(val) == 0) bad_schema(p, val, name, "an array that is not empty");
        break;
    case KEY_MINIMUM:
    case KEY_MAXIMUM:
        if (!plan_number(val, &number)) bad_schema(p, val, name, "a number");
        break;
    case KEY_MIN_LENGTH:
    case KEY_MAX_LENGTH:
        if (!json_int(val, &length) || length < 0)
            bad_schema(p, val, name, "a whole number from 0 on");
        break;
    case KEY_TITLE:
    case KEY_DESCRIPTION:
    case KEY_SCHEMA:
        if (!yyjson_is_str(val)) bad_schema(p, val, name, "a string");
        break;
    case KEY_EXAMPLES:
        if (!yyjson_is_arr(val)) bad_schema(p, val, name, "an array");
        break;
    case KEY_CONST:
    case KEY_DEFAULT: /* looked at once the schema is known to be one */
    case KEYWORD_COUNT:
        break;
    }
}

static void check_default(struct parse *p, yyjson_val *schema) {
    yyjson_val *value = json_member(schema, "default");
    char mem[ERROR_WHERE_MAX];
    struct buf pointer;
    struct check c = {.pointer = &pointer};
    buf_init_fixed(&pointer, mem, sizeof mem);
    if (value != NULL && !fits(&c, schema, value)) {
        plan_refuse(p, REASON_PLAN_FIELD_VALUE, value, "parameters: the default \"%.*s\" %s",
                    STR_ARG(buf_str(&pointer)), c.why);
    }
}

static void check_schema(struct parse *p, yyjson_val *schema) {
    size_t count = p->count;
    size_t i = 0;
    size_t max = 0;
    yyjson_val *key = NULL;
    yyjson_val *val = NULL;
    if (!yyjson_is_obj(schema)) {
        plan_refuse(p, REASON_PLAN_FIELD_TYPE, schema,
                    "parameters: a schema must be an object, found %s", plan_kind_of(schema));
        return;
    }
    yyjson_obj_foreach(schema, i, max, key, val) {
        int k = 0;
        while (k < KEYWORD_COUNT && !yyjson_equals_str(key, keywords[k]))
            k++;
        if (k < KEYWORD_COUNT) {
            check_keyword(p, (enum keyword)k, val);
        } else {
            str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
            plan_refuse(p, REASON_PLAN_FIELD_VALUE, val,
                        "parameters: the keyword \"%.*s\" of JSON Schema is not supported",
                        STR_ARG(plan_shown(name)));
        }
    }
    if (p->count == count && !p->more) check_default(p, schema);
}

void plan_check_parameters(struct parse *p, yyjson_val *schema) {
    if (yyjson_is_obj(schema) && unsafe_yyjson_get_next(schema) - schema > SCHEMA_VALUES_MAX) {
        plan_complain(p, REASON_PLAN_TOO_LARGE, schema,
                      "plan: \"parameters\" has more than %d values", SCHEMA_VALUES_MAX);
        return;
    }
    check_schema(p, schema);
    yyjson_val *type = json_member(schema, "type");
    if (is_type_name(type) && !yyjson_equals_str(type, "object"))
        bad_schema(p, type, "type", "object, because parameters have names");
}

/* ---- the parameters of a run ---- */

static void put_filled(yyjson_val *schema, yyjson_val *val, struct buf *out);

static void put_members(yyjson_val *schema, yyjson_val *val, struct buf *out) {
    yyjson_val *properties = json_member(schema, "properties");
    size_t i = 0;
    size_t max = 0;
    yyjson_val *key = NULL;
    yyjson_val *member = NULL;
    const char *comma = "";
    buf_put_char(out, '{');
    yyjson_obj_foreach(val, i, max, key, member) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        buf_put_c(out, comma);
        buf_put_json_str(out, name);
        buf_put_char(out, ':');
        put_filled(yyjson_obj_getn(properties, name.ptr, name.len), member, out);
        comma = ",";
    }
    yyjson_obj_iter others = yyjson_obj_iter_with(properties);
    while ((key = yyjson_obj_iter_next(&others)) != NULL) {
        member = yyjson_obj_iter_get_val(key);
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        yyjson_val *otherwise = json_member(member, "default");
        if (otherwise == NULL || yyjson_obj_getn(val, name.ptr, name.len) != NULL) continue;
        buf_put_c(out, comma);
        buf_put_json_str(out, name);
        buf_put_char(out, ':');
        put_filled(member, otherwise, out);
        comma = ",";
    }
    buf_put_char(out, '}');
}

/* The value as compact JSON, with the defaults of members that it lacks. */
static void put_filled(yyjson_val *schema, yyjson_val *val, struct buf *out) {
    yyjson_val *items = json_member(schema, "items");
    if (yyjson_is_obj(val)) {
        put_members(schema, val, out);
    } else if (yyjson_is_arr(val) && items != NULL) {
        size_t i = 0;
        size_t max = 0;
        yyjson_val *item = NULL;
        buf_put_char(out, '[');
        yyjson_arr_foreach(val, i, max, item) {
            if (i > 0) buf_put_char(out, ',');
            put_filled(items, item, out);
        }
        buf_put_char(out, ']');
    } else {
        (void)json_write(val, out);
    }
}

static status read_given(str json, struct arena *arena, yyjson_val **out, struct error *err) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX - 2}; /* it goes into an event */
    struct error bad = {0};
    status st = json_parse(json.ptr == NULL ? STR("{}") : json, limits, arena, out, &bad);
    if (st == ST_RETRY) {
        *err = bad;
        return st;
    }
    if (st != ST_OK) {
        return error_as(err, st, REASON_PARAMETERS_INVALID, "/parameters",
                        "parameters: %s (%s at %s)", bad.msg, reason_name(bad.reason), bad.where);
    }
    if (!yyjson_is_obj(*out)) {
        return error_at(err, REASON_PARAMETERS_INVALID, "/parameters",
                        "parameters: must be an object, found %s", plan_kind_of(*out));
    }
    return ST_OK;
}

status plan_parameters(const struct plan *plan, str json, struct arena *arena, str *out,
                       struct error *err) {
    yyjson_val *given = NULL;
    status st = read_given(json, arena, &given, err);
    if (st != ST_OK) return st;
    char mem[ERROR_WHERE_MAX];
    struct buf pointer;
    struct check c = {.pointer = &pointer};
    buf_init_fixed(&pointer, mem, sizeof mem);
    buf_put_c(&pointer, "/parameters");
    if (plan->parameters != NULL && !fits(&c, plan->parameters, given)) {
        str at = buf_str(&pointer);
        size_t bad = at.len;
        if (!str_utf8(at, &bad)) at.len = bad;
        char where[ERROR_WHERE_MAX + 1];
        (void)snprintf(where, sizeof where, "%.*s", STR_ARG(at));
        return error_at(err, REASON_PARAMETERS_INVALID, where, "parameters: \"%s\" %s", where,
                        c.why);
    }
    struct buf text;
    buf_init(&text, EVENT_BYTES_MAX);
    put_filled(plan->parameters, given, &text);
    st = ST_OK;
    if (text.full) {
        st = error_as(err, ST_LIMIT, REASON_PARAMETERS_INVALID, "/parameters",
                      "parameters: with their defaults more than %zu bytes", EVENT_BYTES_MAX);
    } else if (!arena_try_str(arena, buf_str(&text), out)) {
        st = error_set(err, ST_RETRY, "parameters: out of memory");
    }
    buf_release(&text);
    return st;
}
/* NOLINTEND(misc-no-recursion) */
