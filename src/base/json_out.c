/* base/json_out.c: the one place that writes JSON: commas, names, what is null and what is absent.
 */
#include "base/json_out.h"

#include "base/time.h"

/* A value ends in a quote, a bracket, a digit, or the last letter of true, false, null. */
static bool ends_value(char c) {
    return c == '"' || c == '}' || c == ']' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
}

void json_next(struct buf *out) {
    if (out->len > 0 && ends_value(out->ptr[out->len - 1])) buf_put_char(out, ',');
}

void json_object_begin(struct buf *out) {
    json_next(out);
    buf_put_char(out, '{');
}

void json_object_end(struct buf *out) { buf_put_char(out, '}'); }

void json_array_begin(struct buf *out) {
    json_next(out);
    buf_put_char(out, '[');
}

void json_array_end(struct buf *out) { buf_put_char(out, ']'); }

void json_name(struct buf *out, const char *name) {
    json_next(out);
    buf_put_char(out, '"');
    buf_put_c(out, name);
    buf_put(out, STR("\":"));
}

/* ---- elements ---- */

void json_add_text(struct buf *out, str value) {
    json_next(out);
    if (value.ptr)
        buf_put_json_str(out, value);
    else
        buf_put(out, STR("null"));
}

void json_add_int(struct buf *out, int64_t value) {
    json_next(out);
    buf_put_int(out, value);
}

void json_add_json(struct buf *out, str json) {
    while (json.len > 0 && (unsigned char)json.ptr[json.len - 1] <= ' ')
        json.len--; /* json_next() looks at the last byte */
    json_next(out);
    buf_put(out, json.len > 0 ? json : STR("null"));
}

/* ---- members ---- */

void json_put_text(struct buf *out, const char *name, str value) {
    json_name(out, name);
    json_add_text(out, value);
}

void json_put_text_if(struct buf *out, const char *name, str value) {
    if (value.ptr) json_put_text(out, name, value);
}

void json_put_int(struct buf *out, const char *name, int64_t value) {
    json_name(out, name);
    buf_put_int(out, value);
}

void json_put_int_if(struct buf *out, const char *name, int64_t value) {
    if (value != 0) json_put_int(out, name, value);
}

void json_put_bool(struct buf *out, const char *name, bool value) {
    json_name(out, name);
    buf_put(out, value ? STR("true") : STR("false"));
}

void json_put_time(struct buf *out, const char *name, int64_t us) {
    char text[TIME_TEXT_MAX];
    json_put_text(out, name, us > 0 ? str_n(text, time_format_us(us, text)) : STR_NONE);
}

void json_put_time_if(struct buf *out, const char *name, int64_t us) {
    if (us > 0) json_put_time(out, name, us);
}

void json_put_uuid(struct buf *out, const char *name, uuid value) {
    char text[UUID_TEXT_LEN];
    uuid_format(value, text);
    json_put_text(out, name, str_n(text, sizeof(text)));
}

void json_put_json(struct buf *out, const char *name, str json) {
    json_name(out, name);
    json_add_json(out, json);
}

void json_put_json_if(struct buf *out, const char *name, str json) {
    if (json.ptr) json_put_json(out, name, json);
}
