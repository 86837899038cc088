/* core/liquid_expr.c: names, properties, operators and filters, evaluated. Comparison follows
 * JavaScript, for that is what liquidjs shows. */
#include <math.h>

#include "core/liquid_impl.h"

/* ---- properties ---- */

static size_t utf16_length(str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if ((c & 0xC0) != 0x80) n += c >= 0xF0 ? 2 : 1; /* beyond U+FFFF it takes two */
    }
    return n;
}

/* The character of a string at a UTF-16 index; undefined behind the end. */
static struct lv char_at(struct lq *q, str s, double index) {
    if (!(index >= 0) || index != floor(index) || !lq_work(q, s.len)) return LV_NOTHING;
    double at = 0;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        size_t n = lq_decode(s, i, &cp);
        if (at == index) return lv_string(str_n(s.ptr + i, n));
        at += cp > 0xFFFF ? 2 : 1;
        i += n;
    }
    return LV_NOTHING;
}

/* A string that is an array index as JavaScript writes it. */
static bool to_index(struct lv key, double *out) {
    int64_t n;
    if (key.kind == LV_NUMBER) {
        *out = key.num;
        return true;
    }
    if (key.kind != LV_STRING || !lq_is_integer_text(key.text)) return false;
    if (!str_to_int(key.text, &n) || n < 0) return false;
    *out = (double)n;
    return true;
}

static struct lv array_property(struct lv v, struct lv key) {
    double count = (double)lv_count(v);
    double index;
    if (to_index(key, &index)) {
        if (index < 0) index += count;
        bool inside = index >= 0 && index < count && index == floor(index);
        return inside ? lv_at(v, (size_t)index) : LV_NOTHING;
    }
    if (key.kind != LV_STRING) return LV_NOTHING;
    if (str_eq(key.text, STR("size")) || str_eq(key.text, STR("length"))) return lv_number(count);
    if (count == 0) return LV_NOTHING;
    if (str_eq(key.text, STR("first"))) return lv_at(v, 0);
    if (str_eq(key.text, STR("last"))) return lv_at(v, (size_t)count - 1);
    return LV_NOTHING;
}

static struct lv object_property(struct lq *q, yyjson_val *obj, struct lv key) {
    str name = lv_to_text(q, key);
    if (!lq_work(q, yyjson_obj_size(obj))) return LV_NOTHING;
    yyjson_val *val = yyjson_obj_getn(obj, name.ptr, name.len);
    if (val == NULL && str_eq(name, STR("size"))) return lv_number((double)yyjson_obj_size(obj));
    return lv_of_json(val);
}

static struct lv loop_property(struct lq *q, const struct lv_loop *loop, str name) {
    if (str_eq(name, STR("index"))) return lv_number((double)loop->index + 1);
    if (str_eq(name, STR("index0")) || str_eq(name, STR("i")))
        return lv_number((double)loop->index);
    if (str_eq(name, STR("first"))) return lv_bool(loop->index == 0);
    if (str_eq(name, STR("last"))) return lv_bool(loop->index + 1 == loop->length);
    if (str_eq(name, STR("length"))) return lv_number((double)loop->length);
    if (str_eq(name, STR("rindex"))) return lv_number((double)(loop->length - loop->index));
    if (str_eq(name, STR("rindex0"))) return lv_number((double)(loop->length - loop->index) - 1);
    if (!str_eq(name, STR("name"))) return LV_NOTHING;
    buf_clear(&q->scratch);
    buf_put(&q->scratch, loop->variable);
    buf_put_char(&q->scratch, '-');
    buf_put(&q->scratch, loop->collection);
    return lq_take_scratch(q);
}

struct lv lq_property(struct lq *q, struct lv v, struct lv key) {
    double index;
    switch (v.kind) {
    case LV_UNDEFINED:
    case LV_NULL:
        return v;
    case LV_STRING:
        if (to_index(key, &index)) return char_at(q, v.text, index);
        if (key.kind != LV_STRING || !lq_work(q, v.text.len)) return LV_NOTHING;
        if (!str_eq(key.text, STR("size")) && !str_eq(key.text, STR("length"))) return LV_NOTHING;
        return lv_number((double)utf16_length(v.text));
    case LV_JSON_ARRAY:
        if (!lq_work(q, yyjson_arr_size(v.json))) return LV_NOTHING;
        return array_property(v, key);
    case LV_LIST:
        return array_property(v, key);
    case LV_OBJECT:
        return object_property(q, v.json, key);
    case LV_LOOP:
        return key.kind == LV_STRING ? loop_property(q, v.loop, key.text) : LV_NOTHING;
    case LV_NIL:
    case LV_EMPTY:
    case LV_BLANK:
    case LV_BOOL:
    case LV_NUMBER:
        break;
    }
    return LV_NOTHING;
}

struct lv lq_dotted(struct lq *q, struct lv v, str path) {
    str name;
    str rest = path;
    bool more;
    do {
        more = str_split(rest, '.', &name, &rest);
        v = lq_property(q, v, lv_string(name));
    } while (more && q->st == ST_OK);
    return v;
}

/* ---- names ---- */

static bool find_local(struct lq *q, str name, struct lv *out) {
    for (const struct lq_frame *f = q->frames; f != NULL; f = f->outer) {
        if (str_eq(name, f->variable)) {
            *out = f->value;
            return true;
        }
        if (str_eq(name, STR("forloop"))) {
            *out = (struct lv){.kind = LV_LOOP, .loop = f->loop};
            return true;
        }
    }
    const struct lq_variable *lists[] = {q->variables, q->counters};
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        for (const struct lq_variable *v = lists[i]; v != NULL && lq_work(q, 1); v = v->next) {
            if (!str_eq(v->name, name)) continue;
            *out = v->value;
            return true;
        }
    }
    return false;
}

/* A value inside brackets or a range is evaluated in the same way: the parser bounds how deep they
 * nest, by LIQUID_DEPTH_MAX. */
/* NOLINTBEGIN(misc-no-recursion) */
static struct lv part_key(struct lq *q, const struct lq_part *part) {
    return part->key == NULL ? lv_string(part->name) : lq_eval_value(q, part->key);
}

/* The start of a path; *rest is what goes on from the value given back. */
static struct lv find_name(struct lq *q, const struct lq_part *part, const struct lq_part **rest) {
    const struct liquid_scope *scope = q->scope;
    struct lv found = LV_NOTHING;
    str name = lv_to_text(q, part_key(q, part));
    *rest = part->next;
    if (find_local(q, name, &found) || scope == NULL) return found;
    if (!lq_work(q, yyjson_obj_size(scope->root))) return LV_NOTHING;
    yyjson_val *val = yyjson_obj_getn(scope->root, name.ptr, name.len);
    if (val != NULL || scope->lazy == NULL) return lv_of_json(val);
    str key = STR_NONE;
    if (part->next != NULL) {
        key = lv_to_text(q, part_key(q, part->next));
        *rest = part->next->next;
    }
    return q->st == ST_OK ? lv_of_json(scope->lazy(scope->context, name, key, q->arena)) : found;
}

static struct lv eval_range(struct lq *q, const struct lq_value *value) {
    double low = lv_to_number(lq_eval_value(q, value->low));
    double high = lv_to_number(lq_eval_value(q, value->high));
    size_t count = 0;
    if (high - low >= 0) {
        if (high - low >= LIQUID_STEPS_MAX) {
            lq_refuse(q, REASON_LIQUID_LIMIT, "a range has more than %d numbers", LIQUID_STEPS_MAX);
            return LV_NOTHING;
        }
        count = (size_t)(high - low) + 1;
    }
    struct lv *items;
    struct lv list = lv_list_of(q, &items, count);
    if (list.kind != LV_LIST) return list;
    for (size_t i = 0; i < count; i++)
        items[i] = lv_number(low + (double)i);
    return list;
}

struct lv lq_eval_value(struct lq *q, const struct lq_value *value) {
    const struct lq_part *part = value->parts;
    struct lv v = value->literal;
    if (q->st != ST_OK) return LV_NOTHING;
    if (value->kind == VALUE_RANGE) v = eval_range(q, value);
    if (value->kind == VALUE_PATH) v = find_name(q, value->parts, &part);
    for (; part != NULL && q->st == ST_OK; part = part->next)
        v = lq_property(q, v, part_key(q, part));
    return q->st == ST_OK ? v : LV_NOTHING;
}

/* NOLINTEND(misc-no-recursion) */

/* ---- operators ---- */

static bool is_all_space(str s) {
    uint32_t cp;
    for (size_t i = 0; i < s.len;) {
        i += lq_decode(s, i, &cp);
        if (!lq_is_space(cp)) return false;
    }
    return true;
}

static bool is_empty(struct lv v) {
    if (v.kind == LV_STRING) return v.text.len == 0;
    if (lv_is_array(v)) return lv_count(v) == 0;
    return v.kind == LV_OBJECT && yyjson_obj_size(v.json) == 0;
}

/* nil, empty and blank know by themselves what they are equal to. */
static bool literal_equals(struct lv literal, struct lv v) {
    if (literal.kind == LV_NIL) return lv_is_nil(v);
    if (literal.kind == LV_EMPTY) return is_empty(v);
    if (lv_is_nil(v) || (v.kind == LV_BOOL && !v.flag)) return true;
    return v.kind == LV_STRING ? is_all_space(v.text) : is_empty(v);
}

static bool is_special(struct lv v) {
    return v.kind == LV_NIL || v.kind == LV_EMPTY || v.kind == LV_BLANK;
}

/* Doubles are equal where longer whole numbers differ: then their texts decide. */
static bool numbers_equal(struct lv a, struct lv b) {
    static const double exact_max = 9007199254740992.0;
    if (a.num != b.num) return false;
    if (fabs(a.num) < exact_max || a.text.ptr == NULL || b.text.ptr == NULL) return true;
    if (!lq_is_integer_text(a.text) || !lq_is_integer_text(b.text)) return true;
    return str_eq(a.text, b.text);
}

static bool equals(struct lq *q, struct lv a, struct lv b, int depth);

/* NOLINTBEGIN(misc-no-recursion): LQ_VALUE_DEPTH_MAX bounds it */

static bool arrays_equal(struct lq *q, struct lv a, struct lv b, int depth) {
    if (depth >= LQ_VALUE_DEPTH_MAX || lv_count(a) != lv_count(b)) return false;
    const struct lv_list *x = lv_to_list(q, a);
    const struct lv_list *y = lv_to_list(q, b);
    if (q->st != ST_OK) return false;
    for (size_t i = 0; i < x->count; i++) {
        if (!equals(q, x->items[i], y->items[i], depth + 1)) return false;
    }
    return true;
}

static bool equals(struct lq *q, struct lv a, struct lv b, int depth) {
    if (!lq_work(q, sizeof a)) return false;
    if (is_special(a)) return literal_equals(a, b);
    if (is_special(b)) return literal_equals(b, a);
    if (lv_is_array(a)) return lv_is_array(b) && arrays_equal(q, a, b, depth);
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case LV_BOOL:
        return a.flag == b.flag;
    case LV_NUMBER:
        return numbers_equal(a, b);
    case LV_STRING:
        return lq_work(q, a.text.len) && str_eq(a.text, b.text);
    case LV_OBJECT:
        return a.json == b.json; /* the same one, not one that looks like it */
    case LV_LOOP:
        return a.loop == b.loop;
    case LV_UNDEFINED:
    case LV_NULL:
    case LV_NIL:
    case LV_EMPTY:
    case LV_BLANK:
    case LV_JSON_ARRAY:
    case LV_LIST:
        break;
    }
    return true;
}

/* NOLINTEND(misc-no-recursion) */

bool lv_equals(struct lq *q, struct lv a, struct lv b) { return equals(q, a, b, 0); }

int lv_compare(struct lq *q, struct lv a, struct lv b) {
    bool a_text = a.kind == LV_STRING || lv_is_array(a) || a.kind == LV_OBJECT;
    bool b_text = b.kind == LV_STRING || lv_is_array(b) || b.kind == LV_OBJECT;
    if (a_text && b_text) {
        str x = lv_to_js_text(q, a);
        str y = lv_to_js_text(q, b);
        if (!lq_work(q, x.len < y.len ? x.len : y.len)) return 0;
        int order = str_cmp(x, y);
        return (order > 0) - (order < 0);
    }
    double x = lv_to_number(a);
    double y = lv_to_number(b);
    if (isnan(x) || isnan(y)) return 2;
    return (x > y) - (x < y);
}

static bool ordered(struct lq *q, enum lq_op op, struct lv a, struct lv b) {
    if (is_special(a) || is_special(b)) return false;
    int order = lv_compare(q, a, b);
    if (order == 2) return false;
    if (op == OP_GT) return order > 0;
    if (op == OP_LT) return order < 0;
    return op == OP_GE ? order >= 0 : order <= 0;
}

static bool contains(struct lq *q, struct lv a, struct lv b) {
    if (lv_is_array(a)) {
        const struct lv_list *list = lv_to_list(q, a);
        for (size_t i = 0; i < list->count && q->st == ST_OK; i++) {
            if (lv_equals(q, list->items[i], b)) return true;
        }
        return false;
    }
    if (a.kind != LV_STRING) return false;
    str part = lv_to_js_text(q, b);
    if (!lq_work(q, a.text.len)) return false;
    return part.len == 0 || memmem(a.text.ptr, a.text.len, part.ptr, part.len) != NULL;
}

static bool apply_operator(struct lq *q, enum lq_op op, struct lv a, struct lv b) {
    switch (op) {
    case OP_EQ:
        return lv_equals(q, a, b);
    case OP_NE:
        return !lv_equals(q, a, b);
    case OP_GT:
    case OP_LT:
    case OP_GE:
    case OP_LE:
        return ordered(q, op, a, b);
    case OP_CONTAINS:
        return contains(q, a, b);
    case OP_AND:
        return lv_truthy(a) && lv_truthy(b);
    case OP_OR:
        return lv_truthy(a) || lv_truthy(b);
    case OP_VALUE:
    case OP_NOT:
        break;
    }
    return false;
}

static struct lv eval_items(struct lq *q, const struct lq_expr *expr) {
    struct lv stack[LQ_OPERANDS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < expr->count && q->st == ST_OK; i++) {
        const struct lq_item *item = &expr->items[i];
        if (item->op == OP_VALUE) {
            ASSERT(n < LQ_OPERANDS_MAX);
            stack[n++] = lq_eval_value(q, item->value);
        } else if (item->op == OP_NOT) {
            ASSERT(n >= 1);
            stack[n - 1] = lv_bool(!lv_truthy(stack[n - 1]));
        } else {
            ASSERT(n >= 2);
            n--;
            stack[n - 1] = lv_bool(apply_operator(q, item->op, stack[n - 1], stack[n]));
        }
    }
    if (q->st != ST_OK) return LV_NOTHING;
    ASSERT(n == 1);
    return stack[0];
}

/* `default: x, allow_false: true` is the one filter with a named argument: it is given last. */
static struct lv apply_filter(struct lq *q, const struct lq_filter_call *call, struct lv v) {
    struct lv args[LQ_ARGS_MAX + 1] = {{.kind = LV_UNDEFINED}};
    struct lv named = LV_NOTHING;
    size_t count = 0;
    for (const struct lq_arg *arg = call->args; arg != NULL; arg = arg->next) {
        ASSERT(count < LQ_ARGS_MAX);
        struct lv value = lq_eval_value(q, arg->value);
        if (arg->name.ptr != NULL) {
            named = value;
        } else {
            args[count++] = value;
        }
    }
    if (named.kind != LV_UNDEFINED) args[count++] = named;
    if (!lq_step(q)) return LV_NOTHING;
    struct lv result = call->filter->apply(q, v, args, count);
    return q->st == ST_OK ? result : LV_NOTHING;
}

struct lv lq_eval(struct lq *q, const struct lq_expr *expr) {
    struct lv v = eval_items(q, expr);
    for (const struct lq_filter_call *f = expr->filters; f != NULL && q->st == ST_OK; f = f->next)
        v = apply_filter(q, f, v);
    return v;
}
