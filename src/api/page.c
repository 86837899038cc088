/* api/page.c: the two ends of a page of a list; its items come from view/. */
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
