/* core/liquid_value.c: values, and what JavaScript makes of them: truth, numbers, text, JSON. */
#include <math.h>

#include "core/liquid_impl.h"

struct lv lv_bool(bool b) {
    return (struct lv){.kind = LV_BOOL, .flag = b};
}
struct lv lv_number(double n) {
    return (struct lv){.kind = LV_NUMBER, .num = n};
}
struct lv lv_string(str s) {
    return (struct lv){.kind = LV_STRING, .text = s};
}

static struct lv number_of_json(yyjson_val *val) {
    struct lv v = {.kind = LV_NUMBER, .num = NAN};
    if (yyjson_is_raw(val)) {
        v.text = str_n(yyjson_get_raw(val), yyjson_get_len(val));
        (void)lq_number_parse(v.text, &v.num);
    } else {
        v.num = yyjson_get_num(val);
    }
    return v;
}

struct lv lv_of_json(yyjson_val *val) {
    switch (yyjson_get_type(val)) {
    case YYJSON_TYPE_NULL:
        return (struct lv){.kind = LV_NULL};
    case YYJSON_TYPE_BOOL:
        return lv_bool(yyjson_get_bool(val));
    case YYJSON_TYPE_RAW:
    case YYJSON_TYPE_NUM:
        return number_of_json(val);
    case YYJSON_TYPE_STR:
        return lv_string(str_n(yyjson_get_str(val), yyjson_get_len(val)));
    case YYJSON_TYPE_ARR:
        return (struct lv){.kind = LV_JSON_ARRAY, .json = val};
    case YYJSON_TYPE_OBJ:
        return (struct lv){.kind = LV_OBJECT, .json = val};
    default:
        return LV_NOTHING;
    }
}

bool lv_is_nil(struct lv v) {
    return v.kind == LV_UNDEFINED || v.kind == LV_NULL || v.kind == LV_NIL;
}
bool lv_is_array(struct lv v) { return v.kind == LV_JSON_ARRAY || v.kind == LV_LIST; }
bool lv_truthy(struct lv v) { return !lv_is_nil(v) && !(v.kind == LV_BOOL && !v.flag); }

bool lv_is_given(struct lv v) {
    if (v.kind == LV_STRING) return v.text.len > 0;
    if (v.kind == LV_NUMBER) return v.num != 0 && !isnan(v.num);
    return lv_truthy(v);
}

/* ---- arrays ---- */

size_t lv_count(struct lv v) {
    ASSERT(lv_is_array(v));
    return v.kind == LV_LIST ? v.list->count : yyjson_arr_size(v.json);
}

struct lv lv_at(struct lv v, size_t i) {
    ASSERT(lv_is_array(v));
    if (v.kind == LV_JSON_ARRAY) return lv_of_json(yyjson_arr_get(v.json, i));
    return i < v.list->count ? v.list->items[i] : LV_NOTHING;
}

struct lv lv_list_of(struct lq *q, struct lv **items, size_t count) {
    struct lv_list *list = lq_memory(q, sizeof *list);
    *items = count > LQ_WORK_MAX / sizeof **items ? NULL : lq_memory(q, count * sizeof **items);
    if (list == NULL || *items == NULL) {
        lq_refuse(q, REASON_LIQUID_LIMIT, "an array has too many elements");
        return LV_NOTHING;
    }
    *list = (struct lv_list){.items = *items, .count = count};
    return (struct lv){.kind = LV_LIST, .list = list};
}

const struct lv_list *lv_to_list(struct lq *q, struct lv v) {
    static const struct lv_list none = {.count = 0};
    struct lv *items;
    if (v.kind == LV_LIST) return v.list;
    if (lv_is_nil(v)) return &none;
    size_t count = v.kind == LV_JSON_ARRAY ? yyjson_arr_size(v.json) : 1;
    struct lv made = lv_list_of(q, &items, count);
    if (made.kind != LV_LIST || items == NULL) return &none;
    if (v.kind != LV_JSON_ARRAY) {
        items[0] = v;
        if (v.kind == LV_EMPTY || v.kind == LV_BLANK) items[0] = lv_string(STR(""));
        return made.list;
    }
    size_t i;
    size_t n;
    yyjson_val *val;
    yyjson_arr_foreach(v.json, i, n, val) items[i] = lv_of_json(val);
    return made.list;
}

/* ---- numbers ---- */

static str trim(str s) {
    uint32_t cp;
    while (s.len > 0) {
        size_t n = lq_decode(s, 0, &cp);
        if (!lq_is_space(cp)) break;
        s = str_from(s, n);
    }
    while (s.len > 0) {
        size_t n = lq_decode_back(s, s.len, &cp);
        if (!lq_is_space(cp)) break;
        s.len -= n;
    }
    return s;
}

static double text_to_number(str text) {
    double n = NAN;
    str s = trim(text);
    if (s.len == 0) return 0;
    if (str_eq(s, STR("Infinity")) || str_eq(s, STR("+Infinity"))) return INFINITY;
    if (str_eq(s, STR("-Infinity"))) return -INFINITY;
    return lq_number_parse(s, &n) ? n : NAN;
}

double lv_to_number(struct lv v) {
    /* An array of one is as good as its element, in JavaScript; deeper ones as well. */
    for (int depth = 0; lv_is_array(v) && depth < LQ_VALUE_DEPTH_MAX; depth++) {
        if (lv_count(v) == 0) return 0;
        if (lv_count(v) > 1) return NAN;
        v = lv_at(v, 0);
        if (lv_is_nil(v)) return 0;
        if (v.kind == LV_BOOL) return NAN;
    }
    switch (v.kind) {
    case LV_NULL:
    case LV_NIL:
    case LV_EMPTY:
    case LV_BLANK:
        return 0;
    case LV_BOOL:
        return v.flag ? 1 : 0;
    case LV_NUMBER:
        return v.num;
    case LV_STRING:
        return text_to_number(v.text);
    case LV_UNDEFINED:
    case LV_JSON_ARRAY:
    case LV_LIST:
    case LV_OBJECT:
    case LV_LOOP:
        break;
    }
    return NAN;
}

/* ---- text ---- */

/* Whole numbers stay as they were written: an id may be longer than a double can hold. */
static bool keeps_text(struct lv v, bool exact) {
    return v.text.ptr != NULL && (exact || lq_is_integer_text(v.text));
}

static void put_number(struct lv v, bool exact, struct buf *out) {
    char mem[LQ_NUMBER_TEXT_MAX];
    if (keeps_text(v, exact)) {
        buf_put(out, v.text);
    } else {
        buf_put(out, str_n(mem, lq_number_print(v.num, mem)));
    }
}

static bool may_walk(struct lq *q, int depth) {
    if (depth < LQ_VALUE_DEPTH_MAX) return lq_work(q, sizeof(struct lv));
    lq_refuse(q, REASON_LIQUID_LIMIT, "a value nests more than %d deep", LQ_VALUE_DEPTH_MAX);
    return false;
}

/* NOLINTNEXTLINE(misc-no-recursion): may_walk() bounds it */
static void print_text(struct lq *q, struct lv v, const char *separator, int depth,
                       struct buf *out) {
    if (!may_walk(q, depth)) return;
    switch (v.kind) {
    case LV_BOOL:
        buf_put_c(out, v.flag ? "true" : "false");
        return;
    case LV_NUMBER:
        put_number(v, false, out);
        return;
    case LV_STRING:
        if (lq_work(q, v.text.len)) buf_put(out, v.text);
        return;
    case LV_JSON_ARRAY:
    case LV_LIST: {
        const struct lv_list *list = lv_to_list(q, v);
        for (size_t i = 0; i < list->count && q->st == ST_OK; i++) {
            if (i > 0) buf_put_c(out, separator);
            print_text(q, list->items[i], separator, depth + 1, out);
        }
        return;
    }
    case LV_OBJECT:
    case LV_LOOP:
        lv_print_json(q, v, 0, false, out);
        return;
    case LV_UNDEFINED:
    case LV_NULL:
    case LV_NIL:
    case LV_EMPTY:
    case LV_BLANK:
        return;
    }
}

void lv_print(struct lq *q, struct lv v, struct buf *out) { print_text(q, v, "", 0, out); }

static str to_text(struct lq *q, struct lv v, const char *separator) {
    if (v.kind == LV_STRING) return v.text;
    buf_clear(&q->scratch);
    print_text(q, v, separator, 0, &q->scratch);
    struct lv made = lq_take_scratch(q);
    return made.kind == LV_STRING ? made.text : STR("");
}

str lv_to_text(struct lq *q, struct lv v) { return to_text(q, v, ""); }

str lv_to_js_text(struct lq *q, struct lv v) {
    if (v.kind == LV_UNDEFINED) return STR("undefined");
    if (v.kind == LV_NULL || v.kind == LV_NIL) return STR("null");
    return to_text(q, v, ",");
}

/* ---- JSON ---- */

struct json_printer {
    struct lq *q;
    struct buf *out;
    int indent;
    bool exact;
};

static void put_line(const struct json_printer *p, int depth) {
    if (p->indent == 0) return;
    buf_put_char(p->out, '\n');
    for (int i = 0; i < p->indent * depth; i++)
        buf_put_char(p->out, ' ');
}

static void print_json(const struct json_printer *p, struct lv v, int depth);

/* NOLINTBEGIN(misc-no-recursion): may_walk() bounds it */
static void print_json_array(const struct json_printer *p, struct lv v, int depth) {
    const struct lv_list *list = lv_to_list(p->q, v);
    buf_put_char(p->out, '[');
    for (size_t i = 0; i < list->count && p->q->st == ST_OK && !p->out->full; i++) {
        if (i > 0) buf_put_char(p->out, ',');
        put_line(p, depth + 1);
        print_json(p, list->items[i], depth + 1);
    }
    if (list->count > 0) put_line(p, depth);
    buf_put_char(p->out, ']');
}

static void print_json_object(const struct json_printer *p, yyjson_val *obj, int depth) {
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *val;
    buf_put_char(p->out, '{');
    yyjson_obj_foreach(obj, i, n, key, val) {
        if (p->q->st != ST_OK || p->out->full) return;
        if (i > 0) buf_put_char(p->out, ',');
        put_line(p, depth + 1);
        buf_put_json_str(p->out, str_n(yyjson_get_str(key), yyjson_get_len(key)));
        buf_put_c(p->out, p->indent > 0 ? ": " : ":");
        print_json(p, lv_of_json(val), depth + 1);
    }
    if (n > 0) put_line(p, depth);
    buf_put_char(p->out, '}');
}

static void print_loop(struct buf *out, const struct lv_loop *loop) {
    buf_printf(out, "{\"i\":%zu,\"length\":%zu,\"name\":", loop->index, loop->length);
    char mem[256];
    struct buf name;
    buf_init_fixed(&name, mem, sizeof mem);
    buf_put(&name, loop->variable);
    buf_put_char(&name, '-');
    buf_put(&name, loop->collection);
    buf_put_json_str(out, buf_str(&name));
    buf_put_char(out, '}');
}

static void print_json(const struct json_printer *p, struct lv v, int depth) {
    if (!may_walk(p->q, depth)) return;
    switch (v.kind) {
    case LV_UNDEFINED:
    case LV_NULL:
    case LV_NIL:
        buf_put_c(p->out, "null");
        return;
    case LV_EMPTY:
    case LV_BLANK:
        buf_put_c(p->out, "\"\"");
        return;
    case LV_BOOL:
        buf_put_c(p->out, v.flag ? "true" : "false");
        return;
    case LV_NUMBER:
        if (!isfinite(v.num) && !keeps_text(v, p->exact)) {
            buf_put_c(p->out, "null");
        } else {
            put_number(v, p->exact, p->out);
        }
        return;
    case LV_STRING:
        if (lq_work(p->q, v.text.len)) buf_put_json_str(p->out, v.text);
        return;
    case LV_JSON_ARRAY:
    case LV_LIST:
        print_json_array(p, v, depth);
        return;
    case LV_OBJECT:
        print_json_object(p, v.json, depth);
        return;
    case LV_LOOP:
        print_loop(p->out, v.loop);
        return;
    }
}

/* NOLINTEND(misc-no-recursion) */

void lv_print_json(struct lq *q, struct lv v, int indent, bool exact, struct buf *out) {
    struct json_printer p = {.q = q, .out = out, .indent = indent, .exact = exact};
    print_json(&p, v, 0);
}
