/* api/input.c: strict bodies and queries: every member and parameter is known, of the right type,
 * and there once. */
#include <stdarg.h>

#include "api/impl.h"
#include "base/time.h"

#define BODY_OBJECT_MAX ((size_t)1024 * 1024)

/* ---- one value ---- */

static status wrong(struct error *err, enum reason reason, const char *where, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
static status wrong(struct error *err, enum reason reason, const char *where, const char *fmt,
                    ...) {
    char text[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return error_at(err, reason, where, "%s", text);
}

static status take_text(const struct field *f, str text, void *to, const char *where,
                        struct error *err) {
    int64_t max = f->max > 0 ? f->max : ID_BYTES_MAX;
    if (text.len == 0 && f->min > 0)
        return wrong(err, REASON_FIELD_EMPTY, where, "must not be empty");
    if ((int64_t)text.len > max)
        return wrong(err, REASON_FIELD_TOO_LONG, where, "at most %lld bytes", (long long)max);
    *(str *)to = text;
    return ST_OK;
}

static status take_int(const struct field *f, int64_t n, void *to, const char *where,
                       struct error *err) {
    if (n < f->min || n > f->max)
        return wrong(err, REASON_NUMBER_OUT_OF_RANGE, where, "expected a number from %lld to %lld",
                     (long long)f->min, (long long)f->max);
    *(int64_t *)to = n;
    return ST_OK;
}

static status take_time(str text, void *to, const char *where, struct error *err) {
    int64_t ns = 0;
    int digits = 0;
    if (!time_parse_utc(text, &ns, &digits))
        return wrong(err, REASON_TIME_NOT_RFC3339_UTC, where,
                     "expected a time such as 2026-02-16T08:00:00Z");
    *(int64_t *)to = ns / 1000 + (ns % 1000 > 0); /* up: the store has microseconds */
    return ST_OK;
}

static status take_uuid(str text, void *to, const char *where, struct error *err) {
    uuid id;
    if (!uuid_parse(text, &id)) return wrong(err, REASON_FIELD_NOT_UUID, where, "expected a UUID");
    *(uuid *)to = id;
    return ST_OK;
}

/* ---- bodies ---- */

static status take_value(const struct field *f, yyjson_val *v, struct arena *arena, void *to,
                         const char *where, struct error *err) {
    str text = STR_NONE;
    int64_t n = 0;
    switch (f->kind) {
    case FIELD_TEXT:
    case FIELD_TIME:
    case FIELD_UUID:
        if (!json_str(v, &text)) return wrong(err, REASON_FIELD_TYPE, where, "expected a text");
        if (f->kind == FIELD_TIME) return take_time(text, to, where, err);
        if (f->kind == FIELD_UUID) return take_uuid(text, to, where, err);
        return take_text(f, text, to, where, err);
    case FIELD_TIME_OR_NULL:
        if (yyjson_is_null(v)) {
            *(int64_t *)to = 0;
            return ST_OK;
        }
        if (!json_str(v, &text))
            return wrong(err, REASON_FIELD_TYPE, where, "expected a time or null");
        return take_time(text, to, where, err);
    case FIELD_INT:
        if (!json_int(v, &n))
            return wrong(err, REASON_FIELD_TYPE, where, "expected a whole number");
        return take_int(f, n, to, where, err);
    case FIELD_BOOL:
        if (!yyjson_is_bool(v))
            return wrong(err, REASON_FIELD_TYPE, where, "expected true or false");
        *(bool *)to = yyjson_get_bool(v);
        return ST_OK;
    case FIELD_JSON:
        *(str *)to = text = json_text(v, arena);
        return text.ptr ? ST_OK : error_set(err, ST_RETRY, "out of memory");
    case FIELD_VALUE:
        *(yyjson_val **)to = v;
        return ST_OK;
    case FIELD_LIST:
        break;
    }
    return ST_OK;
}

static void pointer(char out[ERROR_WHERE_MAX], const char *at, const char *name) {
    /* A stranger's name is cut, and '/' and '~' in it are not escaped: it is shown, not followed.
     */
    snprintf(out, ERROR_WHERE_MAX, "%.40s/%.50s", at, name);
}

status object_read(yyjson_val *object, const char *at, const struct field *fields, size_t count,
                   struct arena *arena, void *out, uint64_t *given, struct error *err) {
    char where[ERROR_WHERE_MAX];
    uint64_t seen = 0;
    size_t i;
    size_t max;
    yyjson_val *key;
    yyjson_val *val;
    ASSERT(count <= 64);
    if (!yyjson_is_obj(object)) return wrong(err, REASON_FIELD_TYPE, at, "expected an object");
    yyjson_obj_foreach(object, i, max, key, val) {
        size_t k = 0;
        while (k < count && !yyjson_equals_str(key, fields[k].name))
            k++;
        const char *name = yyjson_get_str(key);
        pointer(where, at, name ? name : "");
        if (k == count)
            return wrong(err, REASON_FIELD_UNKNOWN, where, "there is no such member here");
        seen |= (uint64_t)1 << k;
        status st = take_value(&fields[k], val, arena, (char *)out + fields[k].offset, where, err);
        if (st != ST_OK) return st;
    }
    for (size_t k = 0; k < count; k++) {
        if (!fields[k].required || (seen & ((uint64_t)1 << k))) continue;
        pointer(where, at, fields[k].name);
        return wrong(err, REASON_FIELD_MISSING, where, "is missing");
    }
    if (given) *given = seen;
    return ST_OK;
}

bool body_is(const struct call *c, const char *type) {
    str value = http_header(c->request, STR("Content-Type"));
    str head = value;
    str rest;
    if (!value.ptr) return false;
    (void)str_split(value, ';', &head, &rest);
    return http_name_eq(str_trim(head), str_c(type));
}

status body_object(struct call *c, size_t bytes_max, yyjson_val **out, struct error *err) {
    struct json_limits limits = {bytes_max ? bytes_max : BODY_OBJECT_MAX, JSON_DEPTH_MAX};
    if (c->request->body.len == 0)
        return wrong(err, REASON_BODY_MISSING, "", "a JSON object is expected as the body");
    if (!body_is(c, "application/json"))
        return wrong(err, REASON_UNSUPPORTED_MEDIA_TYPE, "#Content-Type",
                     "expected \"Content-Type: application/json\"");
    if (c->request->body.len > limits.bytes_max)
        return error_at(err, REASON_BODY_TOO_LARGE, "", "at most %zu bytes are taken here",
                        limits.bytes_max);
    status st = json_parse(c->request->body, limits, &c->arena, out, err);
    if (st != ST_OK) return st;
    if (!yyjson_is_obj(*out))
        return wrong(err, REASON_BODY_NOT_OBJECT, "", "the body must be a JSON object");
    return ST_OK;
}

status body_read(struct call *c, const struct field *fields, size_t count, void *out,
                 uint64_t *given, struct error *err) {
    yyjson_val *root = NULL;
    status st = body_object(c, 0, &root, err);
    return st == ST_OK ? object_read(root, "", fields, count, &c->arena, out, given, err) : st;
}

status body_run_ref(yyjson_val *value, struct engine_run_ref *out, struct error *err) {
    status st = run_ref_read(value, out, err);
    if (st == ST_INVALID) error_under(err, "/engineRunRef");
    return st;
}

/* ---- queries ---- */

static status take_param(struct call *c, const struct field *f, str text, void *to,
                         const char *where, struct error *err) {
    int64_t n = 0;
    str *list = to;
    switch (f->kind) {
    case FIELD_LIST:
        if (list->ptr) text = call_text(c, "%.*s,%.*s", STR_ARG(*list), STR_ARG(text));
        return take_text(f, text, to, where, err);
    case FIELD_TEXT:
        return take_text(f, text, to, where, err);
    case FIELD_INT:
        if (!str_to_int(text, &n))
            return wrong(err, REASON_PARAMETER_INVALID, where, "expected a whole number");
        return take_int(f, n, to, where, err);
    case FIELD_BOOL:
        if (!str_eq(text, STR("true")) && !str_eq(text, STR("false")))
            return wrong(err, REASON_PARAMETER_INVALID, where, "expected true or false");
        *(bool *)to = text.len == 4;
        return ST_OK;
    case FIELD_TIME:
        return take_time(text, to, where, err);
    case FIELD_UUID:
        return take_uuid(text, to, where, err);
    case FIELD_TIME_OR_NULL:
    case FIELD_JSON:
    case FIELD_VALUE:
        break;
    }
    return ST_OK;
}

static status decode(struct call *c, str text, bool form, str *out, struct error *err) {
    struct buf plain;
    size_t bad = 0;
    buf_init(&plain, (size_t)16 * 1024);
    bool good = http_unescape(text, form, &plain) && !plain.full &&
                str_utf8(buf_str(&plain), &bad) &&
                (plain.len == 0 || !memchr(plain.ptr, 0, plain.len));
    *out = plain.len > 0 ? arena_str(&c->arena, buf_str(&plain)) : STR("");
    buf_release(&plain);
    return good ? ST_OK
                : wrong(err, REASON_PARAMETER_INVALID, "?",
                        "the query is not percent-encoded UTF-8");
}

status query_read(struct call *c, const struct field *fields, size_t count, void *out,
                  uint64_t *given, struct error *err) {
    char where[ERROR_WHERE_MAX];
    uint64_t seen = 0;
    str query = c->request->query;
    str name;
    str value;
    ASSERT(count <= 64);
    while (http_query_next(&query, &name, &value)) {
        size_t k = 0;
        status st = decode(c, name, true, &name, err);
        if (st == ST_OK) st = decode(c, value, true, &value, err);
        if (st != ST_OK) return st;
        while (k < count && !str_eq(name, str_c(fields[k].name)))
            k++;
        snprintf(where, sizeof(where), "?%.80s", arena_str(&c->arena, name).ptr);
        if (k == count)
            return wrong(err, REASON_PARAMETER_UNKNOWN, where, "there is no such parameter here");
        if ((seen & ((uint64_t)1 << k)) && fields[k].kind != FIELD_LIST)
            return wrong(err, REASON_PARAMETER_REPEATED, where, "may be given once");
        seen |= (uint64_t)1 << k;
        st = take_param(c, &fields[k], value, (char *)out + fields[k].offset, where, err);
        if (st != ST_OK) return st;
    }
    for (size_t k = 0; k < count; k++) {
        if (!fields[k].required || (seen & ((uint64_t)1 << k))) continue;
        snprintf(where, sizeof(where), "?%.80s", fields[k].name);
        return wrong(err, REASON_PARAMETER_MISSING, where, "is missing");
    }
    if (given) *given = seen;
    return ST_OK;
}

status query_none(struct call *c, struct error *err) {
    return query_read(c, NULL, 0, NULL, NULL, err);
}

/* ---- Accept ---- */

/* In thousandths: "q=0.25" is 250. What is no number counts as 0. */
static int range_quality(str params) {
    str param;
    while (params.len > 0) {
        if (!str_split(params, ';', &param, &params)) params = STR_NONE;
        param = str_trim(param);
        if (!str_starts(param, STR("q=")) && !str_starts(param, STR("Q="))) continue;
        str q = str_from(param, 2);
        int value = 0;
        int unit = 1000;
        for (size_t i = 0; i < q.len && unit > 0; i++) {
            if (q.ptr[i] == '.' && i == 1) continue;
            if (q.ptr[i] < '0' || q.ptr[i] > '9') return 0;
            value += (q.ptr[i] - '0') * unit;
            unit /= 10;
        }
        return value > 1000 ? 1000 : value;
    }
    return 1000;
}

/* How exactly the range names the type: 3 by name, 2 "text/" and anything, 1 anything, 0 not. */
static int range_takes(str range, str type) {
    str main;
    str sub;
    if (http_name_eq(range, type)) return 3;
    if (str_eq(range, STR("*/*"))) return 1;
    if (!str_ends(range, STR("/*"))) return 0;
    (void)str_split(type, '/', &main, &sub);
    return http_name_eq(str_n(range.ptr, range.len - 2), main) ? 2 : 0;
}

struct choice {
    int quality, place; /* of the range that names it most exactly */
    int exact;
};

static struct choice choice_of(str accept, str type) {
    struct choice found = {0};
    for (int place = 0; accept.len > 0; place++) {
        str range;
        str params = STR_NONE;
        if (!str_split(accept, ',', &range, &accept)) accept = STR_NONE;
        (void)str_split(range, ';', &range, &params);
        int exact = range_takes(str_trim(range), type);
        if (exact > found.exact) found = (struct choice){range_quality(params), place, exact};
    }
    return found;
}

int accept_choose(const struct call *c, const char *const *types) {
    str accept = http_header(c->request, STR("Accept"));
    struct choice best = {0};
    int chosen = -1;
    if (!accept.ptr || accept.len == 0) return 0;
    for (int i = 0; types[i]; i++) {
        struct choice one = choice_of(accept, str_c(types[i]));
        /* Of equals, the one that the client names first. */
        if (one.quality > best.quality ||
            (chosen >= 0 && one.quality == best.quality && one.place < best.place)) {
            best = one;
            chosen = i;
        }
    }
    return chosen;
}
