/* core/liquid_impl.h: what the parts of the Liquid implementation share. For core/liquid*.c only.
 *
 * A template is parsed once into a tree of nodes in the arena, then rendered. Blocks nest at most
 * LIQUID_DEPTH_MAX deep, brackets and ranges too, so recursion over them is bounded; nothing
 * recurses over the length of its input.
 *
 * Failure while rendering is sticky: the first one fills q->err and q->st, every later call does
 * nothing and gives back undefined, and the loops stop. So the filters need no error paths. */
#pragma once

#include <assert.h>

#include "base/json.h"
#include "base/limits.h"
#include "core/liquid.h"

enum {
    LQ_ARGS_MAX = 4,                         /* of one filter */
    LQ_OPERANDS_MAX = 64,                    /* of one expression, with its operators */
    LQ_VALUE_DEPTH_MAX = JSON_DEPTH_MAX + 4, /* of a value that is walked: pairs add a level */
};
/* Bytes looked at or made by one rendering (or parsing): bounds its time and its memory. */
#define LQ_WORK_MAX ((size_t)64 * 1024 * 1024)

/* ---- values ---- */

enum lv_kind {
    LV_UNDEFINED = 0,
    LV_NULL, /* of JSON; differs from undefined only for == and json */
    LV_NIL,  /* the literals, which compare in their own way */
    LV_EMPTY,
    LV_BLANK,
    LV_BOOL,
    LV_NUMBER,
    LV_STRING,
    LV_JSON_ARRAY,
    LV_LIST, /* an array of ours */
    LV_OBJECT,
    LV_LOOP, /* forloop */
};

struct lv_list;
struct lv_loop;
struct lv {
    enum lv_kind kind;
    bool flag;  /* LV_BOOL */
    double num; /* LV_NUMBER */
    union {
        str text; /* LV_STRING; LV_NUMBER: as it was written, or STR_NONE */
        yyjson_val *json;
        const struct lv_list *list;
        const struct lv_loop *loop;
    };
};
struct lv_list {
    const struct lv *items;
    size_t count;
};
struct lv_loop {
    str variable, collection; /* the name is "variable-collection" */
    size_t index, length;
};

#define LV_NOTHING ((struct lv){.kind = LV_UNDEFINED})

/* ---- the parsed template ---- */

enum lq_op { /* in an expression's postfix form */
             OP_VALUE = 0,
             OP_EQ,
             OP_NE,
             OP_GT,
             OP_LT,
             OP_GE,
             OP_LE,
             OP_CONTAINS,
             OP_NOT,
             OP_AND,
             OP_OR,
};

struct lq_part;
/* A literal, a range or a name, and the path that goes on from there. */
struct lq_value {
    enum { VALUE_LITERAL, VALUE_RANGE, VALUE_PATH } kind;
    struct lv literal;
    struct lq_value *low, *high; /* VALUE_RANGE */
    struct lq_part *parts;       /* of VALUE_PATH the first is the name */
    str text;                    /* as it was written */
};
struct lq_part {
    struct lq_part *next;
    struct lq_value *key; /* [key]; NULL: .name */
    str name;
};
struct lq_item {
    enum lq_op op;
    struct lq_value *value;
};
struct lq_arg {
    struct lq_arg *next;
    str name; /* name: value; or STR_NONE */
    struct lq_value *value;
};
struct lq_filter;
struct lq_filter_call {
    struct lq_filter_call *next;
    const struct lq_filter *filter;
    struct lq_arg *args;
    size_t offset; /* in the text, for errors */
};
struct lq_expr {
    struct lq_item *items;
    size_t count;
    struct lq_filter_call *filters;
};

enum lq_node_kind {
    NODE_TEXT,
    NODE_OUTPUT,
    NODE_ASSIGN,
    NODE_CAPTURE,
    NODE_IF, /* unless, too */
    NODE_CASE,
    NODE_FOR,
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_INCREMENT,
    NODE_DECREMENT,
};
struct lq_node;
struct lq_when {
    struct lq_when *next;
    struct lq_value *value;
};
struct lq_branch {
    struct lq_branch *next;
    struct lq_expr *test;  /* of if; NULL for else */
    bool negated;          /* of unless */
    struct lq_when *whens; /* of case; NULL for else */
    struct lq_node *body;
};
struct lq_node {
    struct lq_node *next;
    enum lq_node_kind kind;
    bool reversed;
    size_t offset;
    str text; /* NODE_TEXT; the variable of the others */
    struct lq_expr *expr;
    struct lq_value *collection, *limit, *from; /* NODE_FOR; from is its offset */
    bool from_continue;                         /* offset:continue */
    struct lq_branch *branches; /* NODE_FOR: the body, then perhaps else; NODE_CAPTURE: the body */
};
struct lq_template {
    struct lq_node *nodes;
    bool uses_continue; /* offset:continue occurs */
    bool is_one_output; /* the whole text is one {{ }} */
};

/* ---- parsing: liquid_lex.c, liquid_parse.c ---- */

/* A piece of template text that is being read. `text` is the whole text, for offsets. */
struct lq_cursor {
    str text;
    size_t at, end;
    int depth; /* of brackets and ranges */
    struct arena *arena;
    struct error *err;
    status st; /* sticky, as in rendering */
};

enum lq_token_kind { TOKEN_TEXT, TOKEN_OUTPUT, TOKEN_TAG, TOKEN_END };
struct lq_token {
    enum lq_token_kind kind;
    size_t offset;     /* of its first byte */
    size_t begin, end; /* of TOKEN_TEXT: what is left after trimming; else: what is inside */
    bool trim_left, trim_right;
};
/* The text cut into tokens, one after the other. */
struct lq_scanner {
    struct lq_cursor *c;
    size_t at;
    bool trim; /* the last token ended in -}} or -%} */
};

size_t lq_decode(str s, size_t at, uint32_t *cp); /* the length of the character at `at` */
size_t lq_decode_back(str s, size_t end, uint32_t *cp);
size_t lq_encode(uint32_t cp, char out[4]);
bool lq_is_space(uint32_t cp);
void lq_fail(struct lq_cursor *c, size_t offset, const char *fmt, ...) PRINTF_LIKE(3, 4);
void *lq_new(struct lq_cursor *c, size_t size); /* zeroed; NULL when it failed */
void lq_skip_blank(struct lq_cursor *c);
bool lq_at_end(struct lq_cursor *c); /* after blanks */
char lq_peek(const struct lq_cursor *c, size_t ahead);
bool lq_is_word(const struct lq_cursor *c, size_t at);
str lq_read_word(struct lq_cursor *c); /* perhaps empty */
bool lq_read_quoted(struct lq_cursor *c, str *out);
bool lq_read_number(struct lq_cursor *c, struct lv *out);
bool lq_scan(struct lq_scanner *s, struct lq_token *out);
/* From behind the tag `raw` to behind its `endraw`; *out is what lies between them. */
bool lq_scan_raw(struct lq_scanner *s, size_t tag_offset, str *out);

struct lq_value *lq_parse_value(struct lq_cursor *c); /* NULL: there is none, or it failed */
struct lq_expr *lq_parse_expr(struct lq_cursor *c);   /* to the end of the cursor */
MUST_CHECK status lq_parse(str text, struct arena *arena, struct lq_template *out,
                           struct error *err);
MUST_CHECK status lq_parse_condition(str text, struct arena *arena, struct lq_expr **out,
                                     struct error *err);

/* ---- rendering ---- */

struct lq_variable {
    struct lq_variable *next;
    str name, collection; /* collection: of offset:continue only */
    struct lv value;
};
/* The variable of a loop, while its body is rendered. Lives on the stack. */
struct lq_frame {
    struct lq_frame *outer;
    str variable;
    struct lv value;
    struct lv_loop *loop;
};
struct lq {
    const struct liquid_scope *scope;
    struct arena *arena;
    struct error *err;
    status st;
    int64_t steps;
    size_t work;
    size_t written; /* to any output */
    struct buf *out;
    struct buf scratch; /* for one filter at a time */
    struct lq_frame *frames;
    struct lq_variable *variables, *counters, *continues;
    bool uses_continue;
    bool as_text; /* a string stays one, also if it is exactly one output tag */
    enum { GO_ON, STOP_BREAK, STOP_CONTINUE } stop;
    size_t offset; /* of the tag that is rendered, for errors */
};

void lq_refuse(struct lq *q, enum reason reason, const char *fmt, ...) PRINTF_LIKE(3, 4);
bool lq_step(struct lq *q);                 /* false: no more */
bool lq_work(struct lq *q, size_t amount);  /* false: no more */
void *lq_memory(struct lq *q, size_t size); /* zeroed; NULL: failed */
void lq_put(struct lq *q, str s);           /* to q->out */

/* liquid_value.c */
struct lv lv_bool(bool b);
struct lv lv_number(double n);
struct lv lv_string(str s);
struct lv lv_of_json(yyjson_val *val); /* NULL is undefined */
bool lv_is_nil(struct lv v);           /* undefined, null or nil */
bool lv_is_array(struct lv v);
bool lv_truthy(struct lv v);
bool lv_is_given(struct lv v); /* an optional argument: nil, "" and 0 are none */
size_t lv_count(struct lv v);  /* of an array */
struct lv lv_at(struct lv v, size_t i);
/* An array as a list; anything else as a list of itself, nil as an empty one. */
const struct lv_list *lv_to_list(struct lq *q, struct lv v);
struct lv lv_list_of(struct lq *q, struct lv **items, size_t count); /* room for `count` */
double lv_to_number(struct lv v);             /* as JavaScript does; NaN if it is none */
str lv_to_text(struct lq *q, struct lv v);    /* as output prints it; lives as long as the arena */
str lv_to_js_text(struct lq *q, struct lv v); /* as JavaScript's String() */
void lv_print(struct lq *q, struct lv v, struct buf *out);
/* `exact` keeps the text of numbers as it came; else numbers as JavaScript prints them. */
void lv_print_json(struct lq *q, struct lv v, int indent, bool exact, struct buf *out);

/* liquid_number.c */
enum { LQ_NUMBER_TEXT_MAX = 32 };
size_t lq_number_print(double n, char mem[LQ_NUMBER_TEXT_MAX]); /* as JavaScript does */
bool lq_number_parse(str text, double *out); /* what JavaScript's Number() takes, in decimal */
bool lq_is_integer_text(str text);           /* -?[0-9]+, and not -0 */
double lq_round(double n, double digits);

/* liquid_expr.c */
struct lv lq_eval(struct lq *q, const struct lq_expr *expr);
struct lv lq_eval_value(struct lq *q, const struct lq_value *value);
struct lv lq_property(struct lq *q, struct lv v, struct lv key);
struct lv lq_dotted(struct lq *q, struct lv v, str path); /* "a.b.c" */
bool lv_equals(struct lq *q, struct lv a, struct lv b);
int lv_compare(struct lq *q, struct lv a, struct lv b); /* -1, 0, 1; 2 when neither holds */

/* liquid_filters.c */
struct lq_filter {
    const char *name;
    size_t args_min, args_max;
    struct lv (*apply)(struct lq *q, struct lv v, const struct lv *args, size_t count);
};
const struct lq_filter *lq_filter_find(str name);
extern const struct lq_filter lq_array_filters[], lq_math_filters[], lq_coding_filters[];
extern const size_t lq_array_filter_count, lq_math_filter_count, lq_coding_filter_count;
struct lv lq_take_scratch(struct lq *q); /* what the scratch buffer holds, as a string */
str lq_lower(struct lq *q, str s);
double lq_arg_number(const struct lv *args, size_t count, size_t i, double otherwise);
size_t lq_clamp(double n, size_t max); /* a JavaScript index: truncated, 0 for NaN and less */
size_t lq_slice_index(double n, size_t length); /* the same; negative counts from the end */
struct lv lq_date(struct lq *q, struct lv v, const struct lv *args, size_t count);
