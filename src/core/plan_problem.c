/* core/plan_problem.c: collecting what is wrong with a plan, and saying where it is. */
#include <stdarg.h>

#include "base/json.h"
#include "base/json_out.h"
#include "core/plan_impl.h"

enum { POINTER_BYTES_MAX = 1024, SHOWN_BYTES_MAX = 64 };

str plan_shown(str s) {
    if (s.len > SHOWN_BYTES_MAX) s.len = SHOWN_BYTES_MAX;
    size_t bad = s.len;
    if (!str_utf8(s, &bad)) s.len = bad;
    return s;
}

/* ---- noting ---- */

static void PRINTF_LIKE(5, 0) note(struct parse *p, enum reason code, yyjson_val *at, str member,
                                   const char *fmt, va_list args) {
    if (p->count == PLAN_ERRORS_MAX) {
        p->more = true;
        return;
    }
    char text[ERROR_MSG_MAX];
    int n = vsnprintf(text, sizeof text, fmt, args);
    str message = str_c(n < 0 ? fmt : text);
    size_t bad = message.len;
    if (!str_utf8(message, &bad)) message.len = bad; /* the end may have cut a character */
    struct finding f = {.code = code, .at = at, .member = member};
    if (!arena_try_str(p->arena, message, &f.message)) {
        p->no_memory = true;
        return;
    }
    p->findings[p->count++] = f;
}

void plan_complain(struct parse *p, enum reason code, yyjson_val *at, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    note(p, code, at, STR_NONE, fmt, args);
    va_end(args);
}

/* "step "extract": ", "steps[3]: " when its id is not known, "plan: " outside of steps. */
static void put_subject(const struct parse *p, struct buf *out) {
    if (!p->in_step) {
        buf_put_c(out, "plan: ");
        return;
    }
    str id = p->plan->steps[p->step].id;
    if (id.ptr != NULL) {
        buf_printf(out, "step \"%.*s\": ", STR_ARG(plan_shown(id)));
    } else {
        buf_printf(out, "steps[%u]: ", (unsigned)p->step);
    }
}

/* Inside a step all of these are one: its body does not fit its type. */
static bool is_of_field(enum reason code) {
    return code == REASON_NONE || code == REASON_PLAN_FIELD_MISSING ||
           code == REASON_PLAN_FIELD_UNKNOWN || code == REASON_PLAN_FIELD_TYPE ||
           code == REASON_PLAN_FIELD_VALUE;
}

static void PRINTF_LIKE(5, 0) refuse(struct parse *p, enum reason code, yyjson_val *at, str member,
                                     const char *fmt, va_list args) {
    char mem[ERROR_MSG_MAX];
    char text[ERROR_MSG_MAX];
    struct buf subject;
    buf_init_fixed(&subject, mem, sizeof mem);
    put_subject(p, &subject);
    int n = vsnprintf(text, sizeof text, fmt, args);
    size_t count = p->count;
    if (p->in_step && is_of_field(code)) code = REASON_INVALID_STEP_SCHEMA;
    ASSERT(code != REASON_NONE);
    plan_complain(p, code, at, "%.*s%s", STR_ARG(buf_str(&subject)), n < 0 ? fmt : text);
    if (p->count > count) p->findings[count].member = member;
}

void plan_refuse(struct parse *p, enum reason code, yyjson_val *at, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    refuse(p, code, at, STR_NONE, fmt, args);
    va_end(args);
}

static void PRINTF_LIKE(4, 5)
    refuse_member(struct parse *p, yyjson_val *object, str member, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    refuse(p, REASON_PLAN_FIELD_MISSING, object, member, fmt, args);
    va_end(args);
}

void plan_refuse_missing(struct parse *p, yyjson_val *object, str member) {
    refuse_member(p, object, member, "missing field \"%s%.*s\"", p->prefix, STR_ARG(member));
}

/* ---- telling ---- */

/* Moves *line and *column, of the character at *from, on to the one at `to`. Columns count
 * characters, not bytes. */
static void advance(str text, size_t *from, size_t to, int *line, int *column) {
    for (; *from < to && *from < text.len; ++*from) {
        unsigned char c = (unsigned char)text.ptr[*from];
        if (c == '\n') {
            ++*line;
            *column = 1;
        } else if ((c & 0xC0) != 0x80) {
            ++*column;
        }
    }
}

/* By place; what is about the same value stays in the order it was found. */
static void sort_findings(struct parse *p) {
    for (size_t i = 1; i < p->count; i++) {
        struct finding f = p->findings[i];
        size_t to = i;
        for (; to > 0 && p->findings[to - 1].at > f.at; to--)
            p->findings[to] = p->findings[to - 1];
        p->findings[to] = f;
    }
}

static bool pointer_of(const struct parse *p, const struct finding *f, str *out) {
    char mem[POINTER_BYTES_MAX];
    struct buf b;
    buf_init_fixed(&b, mem, sizeof mem);
    json_pointer(p->root, f->at, &b);
    if (f->member.ptr != NULL) {
        buf_put_char(&b, '/');
        buf_put(&b, f->member); /* a name from our tables: nothing to escape */
    }
    str pointer = buf_str(&b);
    size_t bad = pointer.len;
    if (!str_utf8(pointer, &bad)) pointer.len = bad;
    return arena_try_str(p->arena, pointer.ptr == NULL ? STR("") : pointer, out);
}

static status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "could not parse the plan: out of memory");
}

static status first_as_error(const struct plan_problems *problems, struct error *err) {
    const struct plan_problem *first = &problems->items[0];
    char where[POINTER_BYTES_MAX + 1];
    (void)snprintf(where, sizeof where, "%.*s", STR_ARG(first->pointer));
    return error_at(err, first->code, where, "%.*s", STR_ARG(first->message));
}

status plan_report(struct parse *p, struct plan_problems *out, struct error *err) {
    if (p->no_memory) return no_memory(err);
    if (p->count == 0) return ST_OK;
    sort_findings(p);
    size_t offset = 0; /* of the value with this number, */
    size_t index = 0;
    size_t seen = 0; /* and of the character on this line and column */
    int line = 1;
    int column = 1;
    for (size_t i = 0; i < p->count; i++) {
        const struct finding *f = &p->findings[i];
        size_t target = (size_t)(f->at - p->root);
        offset = json_offset(p->text, offset, target - index);
        index = target;
        advance(p->text, &seen, offset, &line, &column);
        struct plan_problem *problem = &out->items[i];
        *problem = (struct plan_problem){
            .code = f->code, .line = line, .column = column, .message = f->message};
        if (!pointer_of(p, f, &problem->pointer)) return no_memory(err);
    }
    out->count = p->count;
    out->more = p->more;
    return first_as_error(out, err);
}

status plan_report_json(str text, size_t bad_at, struct arena *arena, struct plan_problems *out,
                        struct error *err) {
    if (err->code == ST_RETRY) return ST_RETRY;
    bool too_large = err->reason == REASON_JSON_TOO_LARGE;
    struct plan_problem *problem = &out->items[0];
    *problem = (struct plan_problem){
        .code = too_large ? REASON_PLAN_TOO_LARGE : err->reason, .line = 1, .column = 1};
    size_t seen = 0;
    advance(text, &seen, bad_at, &problem->line, &problem->column);
    bool is_pointer = err->where[0] == '/';
    if (!arena_try_str(arena, is_pointer ? str_c(err->where) : STR(""), &problem->pointer) ||
        !arena_try_str(arena, str_c(err->msg), &problem->message)) {
        return no_memory(err);
    }
    out->count = 1;
    return first_as_error(out, err);
}

void plan_problems_json(const struct plan_problems *problems, struct buf *out) {
    json_array_begin(out);
    for (size_t i = 0; i < problems->count; i++) {
        const struct plan_problem *p = &problems->items[i];
        json_object_begin(out);
        json_put_text(out, "code", str_c(reason_name(p->code)));
        json_put_text(out, "pointer", p->pointer);
        json_put_int(out, "line", p->line);
        json_put_int(out, "column", p->column);
        json_put_text(out, "message", p->message);
        json_object_end(out);
    }
    json_array_end(out);
}
