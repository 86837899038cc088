/* core/plan_field.c: reading the members of an object along a table. */
#include "base/json.h"
#include "base/limits.h"
#include "core/liquid.h"
#include "core/plan_impl.h"

static_assert(sizeof(enum plan_phase) == sizeof(int), "FIELD_CHOICE stores an int");

enum {
    NUMBER_BYTES_MAX = 64, /* of its text; a longer one is no number that anybody means */
    IDS_MAX = 1000,        /* of one list of capabilities, roles or codes */
};

void *plan_alloc(struct parse *p, size_t size) {
    void *mem = arena_try(p->arena, size);
    if (mem == NULL) p->no_memory = true;
    return mem;
}

const char *plan_kind_of(yyjson_val *val) {
    if (yyjson_is_raw(val) || yyjson_is_num(val)) return "a number";
    if (yyjson_is_str(val)) return "a string";
    if (yyjson_is_bool(val)) return "a boolean";
    if (yyjson_is_obj(val)) return "an object";
    return yyjson_is_arr(val) ? "an array" : "null";
}

static bool wrong_type(struct parse *p, yyjson_val *val, const char *name, const char *want) {
    plan_refuse(p, REASON_PLAN_FIELD_TYPE, val, "\"%s%s\" must be %s, found %s", p->prefix, name,
                want, plan_kind_of(val));
    return false;
}

/* ---- simple values ---- */

bool plan_take_str(struct parse *p, yyjson_val *val, const char *name, str *out) {
    return json_str(val, out) || wrong_type(p, val, name, "a string");
}

bool plan_id_ok(str id, const char **why) {
    *why = NULL;
    if (id.len == 0) *why = "must not be empty";
    if (id.len > ID_BYTES_MAX) *why = "has more than 255 bytes";
    for (size_t i = 0; i < id.len && *why == NULL; i++) {
        unsigned char c = (unsigned char)id.ptr[i];
        if (c == '|') *why = "must not contain '|'";
        if (c < 0x20 || c == 0x7F) *why = "must not contain control characters";
        if (c == 0xC2 && i + 1 < id.len && (unsigned char)id.ptr[i + 1] < 0xA0)
            *why = "must not contain control characters"; /* U+0080 to U+009F */
    }
    return *why == NULL;
}

bool plan_take_id(struct parse *p, yyjson_val *val, const char *name, str *out) {
    str id = STR_NONE;
    const char *why = NULL;
    if (!plan_take_str(p, val, name, &id)) return false;
    if (plan_id_ok(id, &why) && !liquid_is_plain(id))
        why = "is a name: Liquid is not rendered here";
    if (why != NULL) {
        plan_refuse(p, REASON_PLAN_FIELD_VALUE, val, "\"%s%s\" %s", p->prefix, name, why);
        return false;
    }
    *out = id;
    return true;
}

bool plan_take_int(struct parse *p, yyjson_val *val, const char *name, int64_t min, int64_t max,
                   int64_t *out) {
    int64_t n = 0;
    if (!yyjson_is_raw(val)) return wrong_type(p, val, name, "a whole number");
    if (!json_int(val, &n) || n < min || n > max) {
        plan_refuse(p, REASON_PLAN_FIELD_VALUE, val,
                    "\"%s%s\" must be a whole number from %lld to %lld, found %.*s", p->prefix,
                    name, (long long)min, (long long)max,
                    STR_ARG(plan_shown(str_n(yyjson_get_raw(val), yyjson_get_len(val)))));
        return false;
    }
    *out = n;
    return true;
}

/* yyjson reads the number, and not strtod(), which asks the locale what a point is. */
bool plan_number(yyjson_val *val, double *out) {
    char text[NUMBER_BYTES_MAX + 1];
    yyjson_val number = {0};
    size_t len = yyjson_get_len(val);
    if (!yyjson_is_raw(val) || len > NUMBER_BYTES_MAX) return false;
    memcpy(text, yyjson_get_raw(val), len);
    text[len] = '\0';
    const char *end = yyjson_read_number(text, &number, YYJSON_READ_NOFLAG, NULL, NULL);
    if (end == NULL) return false;
    *out = yyjson_get_num(&number);
    return true;
}

bool plan_take_number(struct parse *p, yyjson_val *val, const char *name, double min, double max,
                      double *out) {
    double n = 0;
    if (!yyjson_is_raw(val)) return wrong_type(p, val, name, "a number");
    if (!plan_number(val, &n) || !(n >= min && n <= max)) {
        plan_refuse(p, REASON_PLAN_FIELD_VALUE, val,
                    "\"%s%s\" must be a number from %g to %g, found %.*s", p->prefix, name, min,
                    max, STR_ARG(plan_shown(str_n(yyjson_get_raw(val), yyjson_get_len(val)))));
        return false;
    }
    *out = n;
    return true;
}

bool plan_take_object(struct parse *p, yyjson_val *val, const char *name) {
    return yyjson_is_obj(val) || wrong_type(p, val, name, "an object");
}

bool plan_take_ids(struct parse *p, yyjson_val *val, const char *name, const str **out,
                   uint32_t *count) {
    if (!yyjson_is_arr(val)) return wrong_type(p, val, name, "an array of strings");
    size_t n = yyjson_arr_size(val);
    if (n > IDS_MAX) {
        plan_refuse(p, REASON_PLAN_FIELD_VALUE, val,
                    "\"%s%s\" must have at most %d elements, found %zu", p->prefix, name, IDS_MAX,
                    n);
        return false;
    }
    str *ids = plan_alloc(p, n * sizeof(str));
    if (ids == NULL) return false;
    bool ok = true;
    size_t i = 0;
    yyjson_arr_iter it = yyjson_arr_iter_with(val);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v; v = yyjson_arr_iter_next(&it))
        ok &= plan_take_id(p, v, name, &ids[i++]);
    if (!ok) return false;
    *out = ids;
    *count = (uint32_t)n;
    return true;
}

static bool take_choice(struct parse *p, yyjson_val *val, const char *name,
                        const char *const *names, int *out) {
    str text = STR_NONE;
    if (!plan_take_str(p, val, name, &text)) return false;
    char mem[200];
    struct buf all;
    buf_init_fixed(&all, mem, sizeof mem);
    for (int i = 0; names[i] != NULL; i++) {
        if (str_eq(text, str_c(names[i]))) {
            *out = i;
            return true;
        }
        buf_printf(&all, "%s%s", i == 0 ? "" : names[i + 1] == NULL ? " or " : ", ", names[i]);
    }
    plan_refuse(p, REASON_PLAN_FIELD_VALUE, val, "\"%s%s\" must be %.*s, found \"%.*s\"", p->prefix,
                name, STR_ARG(buf_str(&all)), STR_ARG(plan_shown(text)));
    return false;
}

/* ---- Liquid ---- */

bool plan_check_template(struct parse *p, yyjson_val *val, const char *name) {
    str text = STR_NONE;
    struct error err = {0};
    if (!plan_take_str(p, val, name, &text)) return false;
    if (!str_has(text, '{')) return true; /* far the most common: no tag at all */
    status st = liquid_check(text, &err);
    if (st == ST_OK) return true;
    if (st == ST_RETRY) {
        p->no_memory = true;
        return false;
    }
    plan_refuse(p, REASON_PLAN_FIELD_VALUE, val, "\"%s%s\": %s (%s at %s)", p->prefix, name,
                err.msg, err.reason == REASON_NONE ? "LIQUID" : reason_name(err.reason), err.where);
    return false;
}

/* Every string inside; keys are not rendered. As deep as jsonc_parse() let it be.
 * NOLINTNEXTLINE(misc-no-recursion) */
void plan_check_templates(struct parse *p, yyjson_val *val, const char *name) {
    if (yyjson_is_str(val)) {
        (void)plan_check_template(p, val, name);
    } else if (yyjson_is_arr(val)) {
        yyjson_arr_iter it = yyjson_arr_iter_with(val);
        for (yyjson_val *v = yyjson_arr_iter_next(&it); v; v = yyjson_arr_iter_next(&it))
            plan_check_templates(p, v, name);
    } else if (yyjson_is_obj(val)) {
        yyjson_obj_iter it = yyjson_obj_iter_with(val);
        for (yyjson_val *k = yyjson_obj_iter_next(&it); k; k = yyjson_obj_iter_next(&it))
            plan_check_templates(p, yyjson_obj_iter_get_val(k), name);
    }
}

/* ---- along a table ---- */

static void read_text(struct parse *p, yyjson_val *val, const struct field *f, str *into) {
    str text = STR_NONE;
    const char *name = f->name.ptr;
    if (!plan_take_str(p, val, name, &text)) return;
    if (f->kind == FIELD_WORDS && text.len == 0) {
        plan_refuse(p, REASON_PLAN_FIELD_VALUE, val, "\"%s%s\" must not be empty", p->prefix, name);
        return;
    }
    if (f->kind != FIELD_PLAIN && !plan_check_template(p, val, name)) return;
    if (into != NULL) *into = text;
}

static void read_field(struct parse *p, yyjson_val *val, const struct field *f, void *object) {
    char *into = f->into == NOWHERE ? NULL : (char *)object + f->into;
    const char *name = f->name.ptr;
    int64_t n = 0;
    str text = STR_NONE;
    int choice = 0;
    bool yes = false;
    switch (f->kind) {
    case FIELD_ANY:
        plan_check_templates(p, val, name);
        break;
    case FIELD_OBJECT:
        if (plan_take_object(p, val, name)) plan_check_templates(p, val, name);
        break;
    case FIELD_TEXT:
    case FIELD_WORDS:
    case FIELD_PLAIN:
        read_text(p, val, f, (str *)(void *)into);
        break;
    case FIELD_ID:
        if (plan_take_id(p, val, name, &text) && into != NULL) memcpy(into, &text, sizeof text);
        break;
    case FIELD_INT:
        if (plan_take_int(p, val, name, f->min, f->max, &n) && into != NULL)
            memcpy(into, &n, sizeof n);
        break;
    case FIELD_BOOL:
        yes = yyjson_is_true(val);
        if (!yyjson_is_bool(val))
            (void)wrong_type(p, val, name, "a boolean");
        else if (into != NULL)
            memcpy(into, &yes, sizeof yes);
        break;
    case FIELD_CHOICE:
        if (take_choice(p, val, name, f->names, &choice) && into != NULL)
            memcpy(into, &choice, sizeof choice);
        break;
    case FIELD_CUSTOM:
        f->read(p, val, object);
        break;
    }
}

/* Its index in the two lists, one after the other; -1: in neither. */
static int find_field(str name, struct field_list fields, struct field_list more) {
    for (size_t i = 0; i < fields.count; i++) {
        if (str_eq(fields.items[i].name, name)) return (int)i;
    }
    for (size_t i = 0; i < more.count; i++) {
        if (str_eq(more.items[i].name, name)) return (int)(fields.count + i);
    }
    return -1;
}

/* In the order of the tables, because some members must be known before others are read. */
void plan_read_fields(struct parse *p, yyjson_val *object, struct field_list fields,
                      struct field_list more, void *into) {
    yyjson_val *vals[FIELDS_MAX] = {0};
    ASSERT(fields.count + more.count <= FIELDS_MAX);
    yyjson_obj_iter it = yyjson_obj_iter_with(object);
    for (yyjson_val *key = yyjson_obj_iter_next(&it); key; key = yyjson_obj_iter_next(&it)) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        yyjson_val *val = yyjson_obj_iter_get_val(key);
        int i = find_field(name, fields, more);
        if (i >= 0) {
            vals[i] = val;
        } else if (!p->lenient) {
            plan_refuse(p, REASON_PLAN_FIELD_UNKNOWN, val, "unknown field \"%s%.*s\"", p->prefix,
                        STR_ARG(plan_shown(name)));
        }
    }
    for (size_t i = 0; i < fields.count + more.count; i++) {
        const struct field *f = i < fields.count ? &fields.items[i] : &more.items[i - fields.count];
        if (vals[i] == NULL) {
            if (f->required) plan_refuse_missing(p, object, f->name);
        } else if (f->since > p->minor) {
            plan_refuse(p, REASON_PLAN_FIELD_UNKNOWN, vals[i],
                        "field \"%s%.*s\" exists from schemaVersion v%d.%d on", p->prefix,
                        STR_ARG(f->name), PLAN_SCHEMA_MAJOR, f->since);
        } else {
            read_field(p, vals[i], f, into);
        }
    }
}
