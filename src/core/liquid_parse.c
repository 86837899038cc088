/* core/liquid_parse.c: expressions and tags. Stricter than liquidjs on purpose: what it would skip
 * over in silence (a second operand, an unknown filter or tag, a wrong argument) is refused here,
 * because a plan is checked before it runs. */
#include "core/liquid_impl.h"

/* ---- values ---- */

static bool read_literal(struct lq_cursor *c, struct lv *out) {
    static const struct {
        str name;
        struct lv value;
    } literals[] = {
        {STR_LIT("true"), {.kind = LV_BOOL, .flag = true}},
        {STR_LIT("false"), {.kind = LV_BOOL}},
        {STR_LIT("nil"), {.kind = LV_NIL}},
        {STR_LIT("null"), {.kind = LV_NIL}},
        {STR_LIT("empty"), {.kind = LV_EMPTY}},
        {STR_LIT("blank"), {.kind = LV_BLANK}},
    };
    size_t before = c->at;
    str word = lq_read_word(c);
    for (size_t i = 0; i < COUNT_OF(literals); i++) {
        if (!str_eq(word, literals[i].name)) continue;
        *out = literals[i].value;
        return true;
    }
    c->at = before;
    return false;
}

/* NOLINTBEGIN(misc-no-recursion): lq_parse_value() counts how deep brackets and ranges nest */
static void read_range(struct lq_cursor *c, struct lq_value *v) {
    c->at++; /* ( */
    v->kind = VALUE_RANGE;
    v->low = lq_parse_value(c);
    lq_skip_blank(c);
    if (v->low == NULL || lq_peek(c, 0) != '.' || lq_peek(c, 1) != '.') {
        lq_fail(c, c->at, "expected a range (from..to)");
        return;
    }
    c->at += 2;
    v->high = lq_parse_value(c);
    lq_skip_blank(c);
    if (v->high == NULL || lq_peek(c, 0) != ')') {
        lq_fail(c, c->at, "expected a range (from..to)");
        return;
    }
    c->at++;
}

/* One step of a path; NULL when there is no more. */
static struct lq_part *read_part(struct lq_cursor *c, bool first) {
    if (lq_peek(c, 0) == '[') {
        struct lq_part *part = lq_new(c, sizeof *part);
        if (part == NULL) return NULL;
        c->at++;
        part->key = lq_parse_value(c);
        if (part->key == NULL) lq_fail(c, c->at, "expected a value after [");
        lq_skip_blank(c);
        if (lq_peek(c, 0) != ']') lq_fail(c, c->at, "expected ]");
        if (c->st != ST_OK) return NULL;
        c->at++;
        return part;
    }
    bool dot = lq_peek(c, 0) == '.' && lq_peek(c, 1) != '.';
    if (!first && !dot) return NULL;
    size_t at = c->at;
    if (!first) c->at++;
    str name = lq_read_word(c);
    if (name.len == 0) {
        if (!first) lq_fail(c, at, "expected a name after .");
        return NULL;
    }
    struct lq_part *part = lq_new(c, sizeof *part);
    if (part != NULL) part->name = name;
    return part;
}

static void read_parts(struct lq_cursor *c, struct lq_value *v) {
    struct lq_part **tail = &v->parts;
    for (;;) {
        struct lq_part *part = read_part(c, v->kind == VALUE_PATH && v->parts == NULL);
        if (part == NULL) return;
        *tail = part;
        tail = &part->next;
    }
}

struct lq_value *lq_parse_value(struct lq_cursor *c) {
    lq_skip_blank(c);
    if (c->at >= c->end) return NULL;
    if (c->depth >= LIQUID_DEPTH_MAX) {
        c->st = error_at(c->err, REASON_LIQUID_LIMIT, "", "brackets nest more than %d deep",
                         LIQUID_DEPTH_MAX);
        c->at = c->end;
        return NULL;
    }
    struct lq_value *v = lq_new(c, sizeof *v);
    if (v == NULL) return NULL;
    size_t begin = c->at;
    str quoted;
    c->depth++;
    v->kind = VALUE_LITERAL;
    if (lq_read_quoted(c, &quoted)) {
        v->literal = lv_string(quoted);
    } else if (lq_peek(c, 0) == '(') {
        read_range(c, v);
    } else if (!read_literal(c, &v->literal) && !lq_read_number(c, &v->literal)) {
        v->kind = VALUE_PATH;
    }
    read_parts(c, v);
    c->depth--;
    if (c->st != ST_OK || (v->kind == VALUE_PATH && v->parts == NULL)) return NULL;
    v->text = str_n(c->text.ptr + begin, c->at - begin);
    return v;
}

/* NOLINTEND(misc-no-recursion) */

/* ---- expressions ---- */

static bool read_symbol(struct lq_cursor *c, const char *symbol) {
    for (size_t i = 0; symbol[i]; i++) {
        if (lq_peek(c, i) != symbol[i]) return false;
    }
    c->at += strlen(symbol);
    return true;
}

/* OP_VALUE: there is no operator here. */
static enum lq_op read_operator(struct lq_cursor *c) {
    static const struct {
        const char *symbol;
        enum lq_op op;
    } ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {">=", OP_GE},
               {"<=", OP_LE}, {">", OP_GT},  {"<", OP_LT}};
    static const struct {
        str word;
        enum lq_op op;
    } words[] = {{STR_LIT("contains"), OP_CONTAINS},
                 {STR_LIT("and"), OP_AND},
                 {STR_LIT("or"), OP_OR},
                 {STR_LIT("not"), OP_NOT}};
    lq_skip_blank(c);
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        if (read_symbol(c, ops[i].symbol)) return ops[i].op;
    }
    size_t before = c->at;
    str word = lq_read_word(c);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (str_eq(word, words[i].word)) return words[i].op;
    }
    c->at = before;
    return OP_VALUE;
}

static int precedence(enum lq_op op) {
    if (op == OP_AND || op == OP_OR) return 0;
    return op == OP_NOT ? 1 : 2;
}

/* An expression on its way to postfix form. Equal operators bind to the right, as in Liquid. */
struct postfix {
    struct lq_item items[LQ_OPERANDS_MAX];
    size_t count;
    enum lq_op ops[LQ_OPERANDS_MAX];
    size_t op_count;
};

static void add_operator(struct postfix *p, enum lq_op op) {
    while (p->op_count > 0 && precedence(p->ops[p->op_count - 1]) > precedence(op))
        p->items[p->count++] = (struct lq_item){.op = p->ops[--p->op_count]};
    p->ops[p->op_count++] = op;
}

static bool postfix_room(struct lq_cursor *c, const struct postfix *p) {
    if (p->count + p->op_count < LQ_OPERANDS_MAX) return true;
    if (c->st == ST_OK) {
        c->st = error_at(c->err, REASON_LIQUID_LIMIT, "", "an expression has more than %d parts",
                         LQ_OPERANDS_MAX);
        c->at = c->end;
    }
    return false;
}

static bool read_operand(struct lq_cursor *c, struct postfix *p) {
    lq_skip_blank(c);
    size_t at = c->at;
    for (enum lq_op op; (op = read_operator(c)) != OP_VALUE; at = c->at) {
        if (op != OP_NOT) {
            lq_fail(c, at, "expected a value, not an operator");
            return false;
        }
        if (p->op_count > 0 && precedence(p->ops[p->op_count - 1]) > precedence(OP_NOT)) {
            lq_fail(c, at, "not stands before a comparison, not inside it");
            return false;
        }
        if (!postfix_room(c, p)) return false;
        add_operator(p, OP_NOT);
    }
    if (!postfix_room(c, p)) return false;
    struct lq_value *value = lq_parse_value(c);
    if (value == NULL) {
        lq_fail(c, c->at, "expected a value");
        return false;
    }
    p->items[p->count++] = (struct lq_item){.op = OP_VALUE, .value = value};
    return true;
}

static void read_items(struct lq_cursor *c, struct lq_expr *expr) {
    struct postfix p = {.count = 0};
    while (read_operand(c, &p)) {
        lq_skip_blank(c);
        size_t at = c->at;
        enum lq_op op = read_operator(c);
        if (op == OP_NOT) lq_fail(c, at, "not stands before a value, not behind it");
        if (op == OP_VALUE || !postfix_room(c, &p)) break;
        add_operator(&p, op);
    }
    while (p.op_count > 0)
        p.items[p.count++] = (struct lq_item){.op = p.ops[--p.op_count]};
    expr->items = lq_new(c, p.count * sizeof *expr->items);
    if (expr->items == NULL) return;
    memcpy(expr->items, p.items, p.count * sizeof *expr->items);
    expr->count = p.count;
}

/* ---- filters ---- */

static struct lq_arg *read_arg(struct lq_cursor *c) {
    struct lq_arg *arg = lq_new(c, sizeof *arg);
    if (arg == NULL) return NULL;
    size_t at = c->at;
    arg->value = lq_parse_value(c);
    lq_skip_blank(c);
    if (arg->value != NULL && lq_peek(c, 0) == ':') {
        arg->name = arg->value->text;
        c->at++;
        arg->value = lq_parse_value(c);
    }
    if (arg->value == NULL) lq_fail(c, at, "expected an argument");
    return c->st == ST_OK ? arg : NULL;
}

static void read_args(struct lq_cursor *c, struct lq_filter_call *call) {
    struct lq_arg **tail = &call->args;
    size_t count = 0;
    const char *name = call->filter->name;
    lq_skip_blank(c);
    if (lq_peek(c, 0) == ':') {
        do {
            c->at++;
            struct lq_arg *arg = read_arg(c);
            if (arg == NULL) return;
            *tail = arg;
            tail = &arg->next;
            count += arg->name.ptr == NULL;
            bool known = strcmp(name, "default") == 0 && str_eq(arg->name, STR("allow_false"));
            if (arg->name.ptr != NULL && !known) {
                lq_fail(c, call->offset, "filter \"%s\" has no argument \"%.*s\"", name,
                        (int)(arg->name.len > 40 ? 40 : arg->name.len), arg->name.ptr);
            }
            lq_skip_blank(c);
        } while (lq_peek(c, 0) == ',');
    }
    if (count < call->filter->args_min || count > call->filter->args_max) {
        lq_fail(c, call->offset, "filter \"%s\" takes %zu to %zu arguments, not %zu", name,
                call->filter->args_min, call->filter->args_max, count);
    }
}

static struct lq_filter_call *read_filter(struct lq_cursor *c) {
    struct lq_filter_call *call = lq_new(c, sizeof *call);
    if (call == NULL) return NULL;
    lq_skip_blank(c);
    call->offset = c->at;
    str name = lq_read_word(c);
    if (name.len == 0) {
        lq_fail(c, c->at, "expected the name of a filter after |");
        return NULL;
    }
    call->filter = lq_filter_find(name);
    if (call->filter == NULL) {
        char where[32];
        (void)snprintf(where, sizeof where, "offset %zu", call->offset);
        c->st = error_at(c->err, REASON_LIQUID_FILTER_UNKNOWN, where,
                         "there is no filter \"%.*s\" (offset %zu)",
                         (int)(name.len > 60 ? 60 : name.len), name.ptr, call->offset);
        c->at = c->end;
        return NULL;
    }
    read_args(c, call);
    return c->st == ST_OK ? call : NULL;
}

static bool refuses_clock(const struct lq_expr *expr) {
    if (expr->count != 1 || expr->filters == NULL) return false;
    if (strcmp(expr->filters->filter->name, "date") != 0) return false;
    const struct lq_value *v = expr->items[0].value;
    return v->kind == VALUE_LITERAL && v->literal.kind == LV_STRING &&
           (str_eq(v->literal.text, STR("now")) || str_eq(v->literal.text, STR("today")));
}

struct lq_expr *lq_parse_expr(struct lq_cursor *c) {
    struct lq_expr *expr = lq_new(c, sizeof *expr);
    if (expr == NULL) return NULL;
    lq_skip_blank(c);
    size_t begin = c->at;
    read_items(c, expr);
    struct lq_filter_call **tail = &expr->filters;
    while (c->st == ST_OK && !lq_at_end(c)) {
        if (lq_peek(c, 0) != '|') {
            lq_fail(c, c->at, "expected | or the end");
            return NULL;
        }
        c->at++;
        *tail = read_filter(c);
        if (*tail == NULL) return NULL;
        tail = &(*tail)->next;
    }
    if (c->st == ST_OK && refuses_clock(expr)) {
        lq_fail(c, begin, "there is no clock here: \"now\" and \"today\" are not known");
    }
    return c->st == ST_OK ? expr : NULL;
}

/* ---- tags ---- */

struct open_block {
    struct lq_node *node;
    struct lq_node **tail; /* where the next node of the branch goes */
    struct lq_branch **branch_tail;
    const char *end; /* the tag that closes it */
    size_t offset;
    bool has_else;
};
struct parser {
    struct lq_cursor c;
    struct lq_scanner scanner;
    struct lq_template *out;
    struct open_block open[LIQUID_DEPTH_MAX];
    size_t depth;
    struct lq_node **tail; /* outside of all blocks */
};

static struct lq_node *add_node(struct parser *p, enum lq_node_kind kind, size_t offset) {
    struct lq_node *node = lq_new(&p->c, sizeof *node);
    if (node == NULL) return NULL;
    node->kind = kind;
    node->offset = offset;
    struct lq_node ***tail = p->depth > 0 ? &p->open[p->depth - 1].tail : &p->tail;
    if (*tail == NULL) return node; /* between case and its first when: read, not kept */
    **tail = node;
    *tail = &node->next;
    return node;
}

static struct lq_branch *add_branch(struct parser *p, struct open_block *block) {
    struct lq_branch *branch = lq_new(&p->c, sizeof *branch);
    if (branch == NULL) return NULL;
    *block->branch_tail = branch;
    block->branch_tail = &branch->next;
    block->tail = &branch->body;
    return branch;
}

static struct open_block *open_block(struct parser *p, struct lq_node *node, const char *end) {
    if (node == NULL) return NULL;
    if (p->depth >= LIQUID_DEPTH_MAX) {
        p->c.st = error_at(p->c.err, REASON_LIQUID_LIMIT, "", "blocks nest more than %d deep",
                           LIQUID_DEPTH_MAX);
        return NULL;
    }
    struct open_block *block = &p->open[p->depth++];
    *block = (struct open_block){.node = node, .end = end, .offset = node->offset};
    block->branch_tail = &node->branches;
    return block;
}

static void no_arguments(struct parser *p) {
    if (!lq_at_end(&p->c)) lq_fail(&p->c, p->c.at, "expected the end of the tag");
}

static void tag_if(struct parser *p, size_t offset, bool negated) {
    struct lq_expr *test = lq_parse_expr(&p->c);
    struct open_block *block =
        open_block(p, add_node(p, NODE_IF, offset), negated ? "endunless" : "endif");
    struct lq_branch *branch = block == NULL ? NULL : add_branch(p, block);
    if (branch == NULL) return;
    branch->test = test;
    branch->negated = negated;
}

static void tag_case(struct parser *p, size_t offset) {
    struct lq_node *node = add_node(p, NODE_CASE, offset);
    if (node == NULL) return;
    node->expr = lq_parse_expr(&p->c);
    (void)open_block(p, node, "endcase");
}

static void for_argument(struct parser *p, struct lq_node *node, str name, size_t at) {
    struct lq_cursor *c = &p->c;
    if (str_eq(name, STR("reversed"))) {
        node->reversed = true;
        return;
    }
    bool is_limit = str_eq(name, STR("limit"));
    if (!is_limit && !str_eq(name, STR("offset"))) {
        lq_fail(c, at, "for takes limit, offset and reversed");
        return;
    }
    lq_skip_blank(c);
    if (lq_peek(c, 0) != ':') {
        lq_fail(c, c->at, "expected : after limit and offset");
        return;
    }
    c->at++;
    struct lq_value *value = lq_parse_value(c);
    if (value == NULL) {
        lq_fail(c, c->at, "expected a value");
    } else if (is_limit) {
        node->limit = value;
    } else {
        node->from = value;
        node->from_continue = str_eq(value->text, STR("continue"));
        p->out->uses_continue |= node->from_continue;
    }
}

static void tag_for(struct parser *p, size_t offset) {
    struct lq_cursor *c = &p->c;
    struct lq_node *node = add_node(p, NODE_FOR, offset);
    if (node == NULL) return;
    node->text = lq_read_word(c);
    str in = lq_read_word(c);
    size_t at = c->at;
    if (node->text.len > 0 && str_eq(in, STR("in"))) node->collection = lq_parse_value(c);
    if (node->collection == NULL) {
        lq_fail(c, at, "expected: for NAME in VALUE");
        return;
    }
    while (c->st == ST_OK && !lq_at_end(c)) {
        if (lq_peek(c, 0) == ',') c->at++;
        at = c->at;
        for_argument(p, node, lq_read_word(c), at);
    }
    struct open_block *block = open_block(p, node, "endfor");
    if (block != NULL) (void)add_branch(p, block);
}

static void tag_assign(struct parser *p, size_t offset) {
    struct lq_cursor *c = &p->c;
    struct lq_node *node = add_node(p, NODE_ASSIGN, offset);
    if (node == NULL) return;
    node->text = lq_read_word(c);
    lq_skip_blank(c);
    if (node->text.len == 0 || lq_peek(c, 0) != '=') {
        lq_fail(c, c->at, "expected: assign NAME = VALUE");
        return;
    }
    c->at++;
    node->expr = lq_parse_expr(c);
}

static void tag_capture(struct parser *p, size_t offset) {
    struct lq_cursor *c = &p->c;
    struct lq_node *node = add_node(p, NODE_CAPTURE, offset);
    if (node == NULL) return;
    node->text = lq_read_word(c);
    if (node->text.len == 0 && !lq_read_quoted(c, &node->text)) {
        lq_fail(c, c->at, "expected: capture NAME");
    }
    no_arguments(p);
    struct open_block *block = open_block(p, node, "endcapture");
    if (block != NULL) (void)add_branch(p, block);
}

/* Nothing in a comment means anything, but its tags must be closed. */
static void tag_comment(struct parser *p, size_t offset) {
    struct lq_token token;
    while (lq_scan(&p->scanner, &token) && token.kind != TOKEN_END) {
        if (token.kind != TOKEN_TAG) continue;
        struct lq_cursor inner = {.text = p->c.text, .at = token.begin, .end = token.end};
        str name = lq_read_word(&inner);
        if (str_eq(name, STR("endcomment"))) return;
        str skipped;
        if (str_eq(name, STR("raw")) && !lq_scan_raw(&p->scanner, token.offset, &skipped)) return;
    }
    lq_fail(&p->c, offset, "comment is not closed");
}

static void tag_raw(struct parser *p, size_t offset) {
    str text;
    no_arguments(p);
    if (p->c.st != ST_OK || !lq_scan_raw(&p->scanner, offset, &text) || text.len == 0) return;
    struct lq_node *node = add_node(p, NODE_TEXT, offset);
    if (node != NULL) node->text = text;
}

static void tag_word(struct parser *p, size_t offset, enum lq_node_kind kind) {
    struct lq_node *node = add_node(p, kind, offset);
    if (node == NULL) return;
    if (kind == NODE_INCREMENT || kind == NODE_DECREMENT) {
        node->text = lq_read_word(&p->c);
        if (node->text.len == 0) lq_fail(&p->c, p->c.at, "expected a name");
    }
    no_arguments(p);
}

/* ---- tags inside blocks ---- */

static void read_whens(struct parser *p, struct lq_branch *branch) {
    struct lq_cursor *c = &p->c;
    struct lq_when **tail = &branch->whens;
    do {
        struct lq_when *when = lq_new(c, sizeof *when);
        if (when == NULL) return;
        when->value = lq_parse_value(c);
        if (when->value == NULL) {
            lq_fail(c, c->at, "expected a value");
            return;
        }
        *tail = when;
        tail = &when->next;
        if (lq_at_end(c)) return;
        if (lq_peek(c, 0) == ',') {
            c->at++;
        } else if (read_operator(c) != OP_OR) {
            lq_fail(c, c->at, "expected , or \"or\" between the values");
        }
    } while (c->st == ST_OK);
}

/* elsif, else and when; false: the tag is none of them. */
static bool tag_branch(struct parser *p, str name, size_t offset) {
    bool is_elsif = str_eq(name, STR("elsif"));
    bool is_else = str_eq(name, STR("else"));
    bool is_when = str_eq(name, STR("when"));
    if (!is_elsif && !is_else && !is_when) return false;
    struct open_block *block = p->depth > 0 ? &p->open[p->depth - 1] : NULL;
    bool fits = block != NULL && block->node->kind != NODE_CAPTURE;
    if (fits && is_elsif) fits = block->node->kind == NODE_IF;
    if (fits && is_when) fits = block->node->kind == NODE_CASE;
    if (!fits || block->has_else) {
        lq_fail(&p->c, offset, "\"%.*s\" does not belong here", STR_ARG(name));
        return true;
    }
    struct lq_branch *branch = add_branch(p, block);
    if (branch == NULL) return true;
    if (is_elsif) branch->test = lq_parse_expr(&p->c);
    if (is_when) read_whens(p, branch);
    if (is_else) {
        block->has_else = true;
        no_arguments(p);
    }
    return true;
}

static bool tag_end(struct parser *p, str name, size_t offset) {
    if (!str_starts(name, STR("end"))) return false;
    if (p->depth == 0 || !str_eq(name, str_c(p->open[p->depth - 1].end))) {
        lq_fail(&p->c, offset, "\"%.*s\" closes nothing here", (int)(name.len > 40 ? 40 : name.len),
                name.ptr);
        return true;
    }
    no_arguments(p);
    p->depth--;
    return true;
}

static void read_tag(struct parser *p, const struct lq_token *token) {
    struct lq_cursor *c = &p->c;
    size_t offset = token->offset;
    c->at = token->begin;
    c->end = token->end;
    lq_skip_blank(c);
    if (lq_peek(c, 0) == '#') return; /* an inline comment */
    str name = lq_read_word(c);
    if (str_eq(name, STR("if"))) {
        tag_if(p, offset, false);
    } else if (str_eq(name, STR("unless"))) {
        tag_if(p, offset, true);
    } else if (str_eq(name, STR("case"))) {
        tag_case(p, offset);
    } else if (str_eq(name, STR("for"))) {
        tag_for(p, offset);
    } else if (str_eq(name, STR("assign"))) {
        tag_assign(p, offset);
    } else if (str_eq(name, STR("capture"))) {
        tag_capture(p, offset);
    } else if (str_eq(name, STR("comment"))) {
        tag_comment(p, offset);
    } else if (str_eq(name, STR("raw"))) {
        tag_raw(p, offset);
    } else if (str_eq(name, STR("break"))) {
        tag_word(p, offset, NODE_BREAK);
    } else if (str_eq(name, STR("continue"))) {
        tag_word(p, offset, NODE_CONTINUE);
    } else if (str_eq(name, STR("increment"))) {
        tag_word(p, offset, NODE_INCREMENT);
    } else if (str_eq(name, STR("decrement"))) {
        tag_word(p, offset, NODE_DECREMENT);
    } else if (str_eq(name, STR("echo"))) {
        if (lq_at_end(c)) return;
        struct lq_node *node = add_node(p, NODE_OUTPUT, offset);
        if (node != NULL) node->expr = lq_parse_expr(c);
    } else if (!tag_branch(p, name, offset) && !tag_end(p, name, offset)) {
        lq_fail(c, offset, "there is no tag \"%.*s\"", (int)(name.len > 40 ? 40 : name.len),
                name.ptr);
    }
}

static void read_token(struct parser *p, const struct lq_token *token) {
    if (token->kind == TOKEN_TAG) {
        read_tag(p, token);
        return;
    }
    if (token->begin >= token->end && token->kind == TOKEN_TEXT) return;
    struct lq_node *node =
        add_node(p, token->kind == TOKEN_TEXT ? NODE_TEXT : NODE_OUTPUT, token->offset);
    if (node == NULL) return;
    if (token->kind == TOKEN_TEXT) {
        node->text = str_n(p->c.text.ptr + token->begin, token->end - token->begin);
        return;
    }
    p->c.at = token->begin;
    p->c.end = token->end;
    node->expr = lq_parse_expr(&p->c);
}

/* ---- the whole ---- */

static status check_text(str text, struct error *err) {
    size_t bad = 0;
    char where[32];
    if (text.len > LIQUID_OUTPUT_MAX) {
        return error_at(err, REASON_LIQUID_LIMIT, "", "the template is longer than %zu bytes",
                        LIQUID_OUTPUT_MAX);
    }
    if (str_utf8(text, &bad)) return ST_OK;
    (void)snprintf(where, sizeof where, "offset %zu", bad);
    return error_at(err, REASON_LIQUID_SYNTAX, where, "the template is not UTF-8 at offset %zu",
                    bad);
}

status lq_parse(str text, struct arena *arena, struct lq_template *out, struct error *err) {
    status st = check_text(text, err);
    if (st != ST_OK) return st;
    *out = (struct lq_template){.nodes = NULL};
    struct parser p = {.c = {.text = text, .arena = arena, .err = err}, .out = out};
    p.scanner.c = &p.c;
    p.tail = &out->nodes;
    struct lq_token token;
    while (lq_scan(&p.scanner, &token) && token.kind != TOKEN_END) {
        out->is_one_output =
            token.kind == TOKEN_OUTPUT && token.offset == 0 && p.scanner.at == text.len;
        read_token(&p, &token);
    }
    if (p.depth > 0) {
        lq_fail(&p.c, p.open[p.depth - 1].offset, "a block is not closed: expected \"%s\"",
                p.open[p.depth - 1].end);
    }
    return p.c.st;
}

status lq_parse_condition(str text, struct arena *arena, struct lq_expr **out, struct error *err) {
    status st = check_text(text, err);
    if (st != ST_OK) return st;
    struct lq_cursor c = {.text = text, .end = text.len, .arena = arena, .err = err};
    *out = lq_parse_expr(&c);
    return c.st;
}
