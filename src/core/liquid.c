/* core/liquid.c: rendering, and the interface. */
#include "core/liquid.h"

#include <stdarg.h>

#include "core/liquid_impl.h"

/* ---- bounds ---- */

void lq_refuse(struct lq *q, enum reason reason, const char *fmt, ...) {
    if (q->st != ST_OK) return;
    char msg[ERROR_MSG_MAX];
    char where[32];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(msg, sizeof msg, fmt, args);
    va_end(args);
    (void)snprintf(where, sizeof where, "offset %zu", q->offset);
    q->st = error_at(q->err, reason, where, "%s at offset %zu", msg, q->offset);
}

bool lq_step(struct lq *q) {
    if (q->st != ST_OK) return false;
    if (q->steps++ < LIQUID_STEPS_MAX) return true;
    lq_refuse(q, REASON_LIQUID_LIMIT, "the template takes more than %d steps", LIQUID_STEPS_MAX);
    return false;
}

bool lq_work(struct lq *q, size_t amount) {
    if (q->st != ST_OK) return false;
    if (amount <= LQ_WORK_MAX - q->work) {
        q->work += amount;
        return true;
    }
    lq_refuse(q, REASON_LIQUID_LIMIT, "the template works on more than %zu bytes", LQ_WORK_MAX);
    return false;
}

void *lq_memory(struct lq *q, size_t size) {
    if (!lq_work(q, size)) return NULL;
    void *made = arena_try(q->arena, size);
    if (made == NULL) lq_refuse(q, REASON_LIQUID_LIMIT, "the template needs too much memory");
    return made;
}

void lq_put(struct lq *q, str s) {
    if (q->st != ST_OK) return;
    if (s.len > LIQUID_OUTPUT_MAX - q->written || !lq_work(q, s.len)) {
        lq_refuse(q, REASON_LIQUID_LIMIT, "the output is longer than %zu bytes", LIQUID_OUTPUT_MAX);
        return;
    }
    q->written += s.len;
    buf_put(q->out, s);
    if (q->out->full) lq_refuse(q, REASON_LIQUID_LIMIT, "the output has no room");
}

static void lq_open(struct lq *q, const struct liquid_scope *scope, struct arena *arena,
                    struct buf *out, struct error *err) {
    *q = (struct lq){.scope = scope, .arena = arena, .err = err, .out = out};
    buf_init(&q->scratch, LIQUID_OUTPUT_MAX);
}

static status lq_close(struct lq *q) {
    buf_release(&q->scratch);
    return q->st;
}

/* ---- variables ---- */

static struct lq_variable *find_variable(struct lq *q, struct lq_variable *list, str name,
                                         str collection) {
    for (; list != NULL && lq_work(q, 1); list = list->next) {
        if (str_eq(list->name, name) && str_eq(list->collection, collection)) return list;
    }
    return NULL;
}

static struct lq_variable *set_variable(struct lq *q, struct lq_variable **list, str name,
                                        str collection, struct lv value) {
    struct lq_variable *v = find_variable(q, *list, name, collection);
    if (v == NULL) {
        v = lq_memory(q, sizeof *v);
        if (v == NULL) return NULL;
        *v = (struct lq_variable){.next = *list, .name = name, .collection = collection};
        *list = v;
    }
    v->value = value;
    return v;
}

/* ---- nodes ---- */

static void render(struct lq *q, const struct lq_node *nodes);

/* Recursion is as deep as the blocks nest, LIQUID_DEPTH_MAX at most: the parser sees to it. */
/* NOLINTBEGIN(misc-no-recursion) */

static void render_output(struct lq *q, const struct lq_expr *expr) {
    struct lv v = lq_eval(q, expr);
    if (q->st == ST_OK) lq_put(q, lv_to_text(q, v));
}

static void render_if(struct lq *q, const struct lq_node *node) {
    for (const struct lq_branch *b = node->branches; b != NULL && q->st == ST_OK; b = b->next) {
        if (b->test == NULL || lv_truthy(lq_eval(q, b->test)) != b->negated) {
            render(q, b->body);
            return;
        }
    }
}

static bool when_fits(struct lq *q, const struct lq_branch *branch, struct lv target) {
    for (const struct lq_when *w = branch->whens; w != NULL && q->st == ST_OK; w = w->next) {
        if (lv_equals(q, target, lq_eval_value(q, w->value))) return true;
    }
    return false;
}

/* Every branch that fits is rendered, not only the first; that is how liquidjs does it. */
static void render_case(struct lq *q, const struct lq_node *node) {
    struct lv target = lq_eval(q, node->expr);
    bool hit = false;
    /* What is compared is a plain value: case blank is no test for blankness. */
    if (target.kind == LV_EMPTY || target.kind == LV_BLANK) target = lv_string(STR(""));
    if (target.kind == LV_NIL) target.kind = LV_NULL;
    for (const struct lq_branch *b = node->branches; b != NULL && q->st == ST_OK; b = b->next) {
        if (b->whens == NULL ? hit : !when_fits(q, b, target)) continue;
        render(q, b->body);
        hit = true;
    }
}

static struct lv pair_of(struct lq *q, yyjson_val *key, yyjson_val *val) {
    struct lv *items;
    struct lv pair = lv_list_of(q, &items, 2);
    if (pair.kind != LV_LIST) return pair;
    items[0] = lv_of_json(key);
    items[1] = lv_of_json(val);
    return pair;
}

/* What a loop goes over: elements, or an object's [key, value] pairs, or a string itself. */
static const struct lv_list *loop_list(struct lq *q, struct lv v) {
    static const struct lv_list none = {.count = 0};
    if (lv_is_array(v) || (v.kind == LV_STRING && v.text.len > 0)) return lv_to_list(q, v);
    if (v.kind != LV_OBJECT) return &none;
    struct lv *items;
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *val;
    struct lv list = lv_list_of(q, &items, yyjson_obj_size(v.json));
    if (list.kind != LV_LIST) return &none;
    yyjson_obj_foreach(v.json, i, n, key, val) items[i] = pair_of(q, key, val);
    return list.list;
}

/* Which elements are visited: the offset first, then the limit, whatever their order in the tag. */
static void loop_bounds(struct lq *q, const struct lq_node *node, size_t *begin, size_t *end) {
    double from = 0;
    if (node->from_continue) {
        const struct lq_variable *v =
            find_variable(q, q->continues, node->text, node->collection->text);
        from = v == NULL ? 0 : v->value.num;
    } else if (node->from != NULL) {
        struct lv v = lq_eval_value(q, node->from);
        from = v.kind == LV_UNDEFINED ? 0 : lv_to_number(v);
    }
    *begin = lq_slice_index(from, *end);
    struct lv limit = node->limit == NULL ? LV_NOTHING : lq_eval_value(q, node->limit);
    if (limit.kind != LV_UNDEFINED) {
        *end = *begin + lq_slice_index(lv_to_number(limit), *end - *begin);
    }
    if (q->uses_continue) {
        double next = (from == from ? from : 0) + (double)(*end - *begin);
        (void)set_variable(q, &q->continues, node->text, node->collection->text, lv_number(next));
    }
}

static void loop_over(struct lq *q, const struct lq_node *node, const struct lv *items,
                      size_t count) {
    struct lv_loop *loop = lq_memory(q, sizeof *loop); /* forloop may be assigned, and stays */
    if (loop == NULL) return;
    *loop = (struct lv_loop){
        .variable = node->text, .collection = node->collection->text, .length = count};
    struct lq_frame frame = {.outer = q->frames, .variable = node->text, .loop = loop};
    q->frames = &frame;
    for (size_t i = 0; i < count && q->stop != STOP_BREAK && lq_step(q); i++) {
        q->stop = GO_ON;
        loop->index = i;
        frame.value = items[node->reversed ? count - 1 - i : i];
        render(q, node->branches->body);
    }
    q->stop = GO_ON;
    q->frames = frame.outer;
}

static void render_for(struct lq *q, const struct lq_node *node) {
    const struct lv_list *list = loop_list(q, lq_eval_value(q, node->collection));
    if (q->st != ST_OK) return;
    if (list->count == 0) {
        const struct lq_branch *otherwise = node->branches->next;
        if (otherwise != NULL) render(q, otherwise->body);
        return;
    }
    size_t begin = 0;
    size_t end = list->count;
    loop_bounds(q, node, &begin, &end);
    if (q->st == ST_OK) loop_over(q, node, list->items + begin, end - begin);
}

static void render_capture(struct lq *q, const struct lq_node *node) {
    struct buf text;
    struct buf *outer = q->out;
    buf_init(&text, LIQUID_OUTPUT_MAX);
    q->out = &text;
    render(q, node->branches->body);
    q->out = outer;
    char *kept = lq_memory(q, text.len);
    if (kept != NULL) {
        if (text.len > 0) memcpy(kept, text.ptr, text.len);
        (void)set_variable(q, &q->variables, node->text, STR_NONE,
                           lv_string(str_n(kept, text.len)));
    }
    buf_release(&text);
}

/* Counters are apart from assigned variables, which hide them. They start where the context does.
 */
static void render_counter(struct lq *q, const struct lq_node *node) {
    struct lq_variable *v = find_variable(q, q->counters, node->text, STR_NONE);
    double n = v == NULL ? 0 : v->value.num;
    if (v == NULL && q->scope != NULL) {
        struct lv given =
            lv_of_json(yyjson_obj_getn(q->scope->root, node->text.ptr, node->text.len));
        if (given.kind == LV_NUMBER) n = given.num;
    }
    double next = node->kind == NODE_INCREMENT ? n + 1 : n - 1;
    (void)set_variable(q, &q->counters, node->text, STR_NONE, lv_number(next));
    lq_put(q, lv_to_text(q, lv_number(node->kind == NODE_INCREMENT ? n : next)));
}

static void render_node(struct lq *q, const struct lq_node *node) {
    switch (node->kind) {
    case NODE_TEXT:
        lq_put(q, node->text);
        return;
    case NODE_OUTPUT:
        render_output(q, node->expr);
        return;
    case NODE_ASSIGN: {
        struct lv v = lq_eval(q, node->expr);
        (void)set_variable(q, &q->variables, node->text, STR_NONE, v);
        return;
    }
    case NODE_CAPTURE:
        render_capture(q, node);
        return;
    case NODE_IF:
        render_if(q, node);
        return;
    case NODE_CASE:
        render_case(q, node);
        return;
    case NODE_FOR:
        render_for(q, node);
        return;
    case NODE_BREAK:
        q->stop = STOP_BREAK;
        return;
    case NODE_CONTINUE:
        q->stop = STOP_CONTINUE;
        return;
    case NODE_INCREMENT:
    case NODE_DECREMENT:
        render_counter(q, node);
        return;
    }
}

static void render(struct lq *q, const struct lq_node *nodes) {
    for (const struct lq_node *node = nodes; node != NULL && q->stop == GO_ON; node = node->next) {
        q->offset = node->offset;
        if (!lq_step(q)) return;
        render_node(q, node);
        if (q->st != ST_OK) return;
    }
}

/* NOLINTEND(misc-no-recursion) */

/* ---- the interface ---- */

bool liquid_is_plain(str text) {
    for (size_t i = 0; i + 1 < text.len; i++) {
        if (text.ptr[i] == '{' && (text.ptr[i + 1] == '{' || text.ptr[i + 1] == '%')) return false;
    }
    return true;
}

status liquid_check(str text, struct error *err) {
    struct arena arena;
    struct lq_template template;
    arena_init(&arena, 4096, LQ_WORK_MAX);
    status st = lq_parse(text, &arena, &template, err);
    arena_release(&arena);
    return st;
}

status liquid_check_condition(str text, struct error *err) {
    struct arena arena;
    struct lq_expr *expr;
    arena_init(&arena, 4096, LQ_WORK_MAX);
    status st = lq_parse_condition(text, &arena, &expr, err);
    arena_release(&arena);
    return st;
}

status liquid_render(str text, const struct liquid_scope *scope, struct arena *arena,
                     struct buf *out, struct error *err) {
    struct lq_template template;
    status st = lq_parse(text, arena, &template, err);
    if (st != ST_OK) return st;
    struct lq q;
    lq_open(&q, scope, arena, out, err);
    q.uses_continue = template.uses_continue;
    render(&q, template.nodes);
    return lq_close(&q);
}

status liquid_condition(str text, const struct liquid_scope *scope, struct arena *arena, bool *out,
                        struct error *err) {
    struct lq_expr *expr;
    status st = lq_parse_condition(text, arena, &expr, err);
    if (st != ST_OK) return st;
    struct lq q;
    lq_open(&q, scope, arena, NULL, err);
    bool result = lv_truthy(lq_eval(&q, expr));
    st = lq_close(&q);
    if (st == ST_OK) *out = result;
    return st;
}

/* ---- JSON ---- */

/* Every string is a rendering of its own, with its own variables; the bounds are shared. */
static void render_json_string(struct lq *q, str text, struct buf *out) {
    struct lq_template template;
    if (liquid_is_plain(text)) {
        if (lq_work(q, text.len)) buf_put_json_str(out, text);
        return;
    }
    status st = lq_parse(text, q->arena, &template, q->err);
    if (st != ST_OK) {
        q->st = st;
        return;
    }
    q->variables = q->counters = q->continues = NULL;
    q->uses_continue = template.uses_continue;
    q->stop = GO_ON;
    if (template.is_one_output && !q->as_text) {
        q->offset = 0;
        struct lv v = lq_eval(q, template.nodes->expr);
        if (q->st == ST_OK) lv_print_json(q, v, 0, true, out);
        return;
    }
    struct buf rendered;
    buf_init(&rendered, LIQUID_OUTPUT_MAX);
    q->out = &rendered;
    render(q, template.nodes);
    q->out = NULL;
    buf_put_json_str(out, buf_str(&rendered));
    buf_release(&rendered);
}

static bool keeps_types(const struct liquid_scope *scope, yyjson_val *member) {
    if (!scope->typed) return true;
    for (size_t i = 0; scope->typed[i]; i++) {
        if (yyjson_equals_str(member, scope->typed[i])) return true;
    }
    return false;
}

/* LQ_VALUE_DEPTH_MAX bounds the recursion. */
/* NOLINTBEGIN(misc-no-recursion) */
static void render_json(struct lq *q, yyjson_val *val, int depth, struct buf *out);

static void render_json_array(struct lq *q, yyjson_val *val, int depth, struct buf *out) {
    size_t i;
    size_t n;
    yyjson_val *item;
    buf_put_char(out, '[');
    yyjson_arr_foreach(val, i, n, item) {
        if (i > 0) buf_put_char(out, ',');
        render_json(q, item, depth + 1, out);
        if (q->st != ST_OK) return;
    }
    buf_put_char(out, ']');
}

static void render_json_object(struct lq *q, yyjson_val *val, int depth, struct buf *out) {
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *item;
    buf_put_char(out, '{');
    yyjson_obj_foreach(val, i, n, key, item) {
        if (i > 0) buf_put_char(out, ',');
        buf_put_json_str(out, str_n(yyjson_get_str(key), yyjson_get_len(key)));
        buf_put_char(out, ':');
        if (depth == 0) q->as_text = !keeps_types(q->scope, key);
        render_json(q, item, depth + 1, out);
        if (q->st != ST_OK) {
            (void)error_wrap(q->err, "\"%.60s\"", yyjson_get_str(key));
            return;
        }
    }
    buf_put_char(out, '}');
}

static void render_json(struct lq *q, yyjson_val *val, int depth, struct buf *out) {
    if (!lq_step(q)) return;
    if (depth >= LQ_VALUE_DEPTH_MAX) {
        lq_refuse(q, REASON_LIQUID_LIMIT, "a value nests more than %d deep", LQ_VALUE_DEPTH_MAX);
    } else if (yyjson_is_str(val)) {
        render_json_string(q, str_n(yyjson_get_str(val), yyjson_get_len(val)), out);
    } else if (yyjson_is_arr(val)) {
        render_json_array(q, val, depth, out);
    } else if (yyjson_is_obj(val)) {
        render_json_object(q, val, depth, out);
    } else {
        lv_print_json(q, lv_of_json(val), 0, true, out);
    }
}
/* NOLINTEND(misc-no-recursion) */

status liquid_render_json(yyjson_val *val, const struct liquid_scope *scope, struct arena *arena,
                          struct buf *out, struct error *err) {
    struct lq q;
    lq_open(&q, scope, arena, NULL, err);
    render_json(&q, val, 0, out);
    if (out->full) lq_refuse(&q, REASON_LIQUID_LIMIT, "the output has no room");
    return lq_close(&q);
}
