/* api/json_out.c: small pieces of answers. */
#include "api/impl.h"

void page_begin(struct buf *out) {
    json_object_begin(out);
    json_name(out, "items");
    json_array_begin(out);
}

void page_end_text(struct buf *out, str cursor) {
    json_array_end(out);
    json_put_text(out, "next", cursor);
    json_object_end(out);
}

void page_end(struct buf *out, bool more, char kind, int64_t a, int64_t b) {
    char mem[64];
    struct buf cursor;
    buf_init_fixed(&cursor, mem, sizeof(mem));
    if (more) cursor_write(&cursor, kind, a, b);
    page_end_text(out, more ? buf_str(&cursor) : STR_NONE);
}

void put_error(struct buf *out, const struct error *err) {
    json_object_begin(out);
    json_put_text(out, "code", str_c(error_name(err)));
    json_put_text(out, "where", str_c(err->where));
    json_put_text(out, "message", str_c(err->msg));
    json_object_end(out);
}
