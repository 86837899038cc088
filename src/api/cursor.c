/* api/cursor.c: opaque cursors. */
#include "api/impl.h"
#include "base/base64.h"

void cursor_write(struct buf *out, char kind, int64_t a, int64_t b) {
    char text[64];
    int n = snprintf(text, sizeof(text), "%c1.%lld.%lld", kind, (long long)a, (long long)b);
    base64url_write(out, text, (size_t)n);
}

status cursor_read(str text, char kind, int64_t *a, int64_t *b, struct error *err) {
    struct arena arena;
    str plain = STR_NONE;
    str first;
    str second;
    *a = *b = 0;
    if (!text.ptr) return ST_OK;
    arena_init(&arena, 256, 1024);
    bool good = text.len <= 100 && base64url_read(text, &arena, &plain) && plain.len > 3 &&
                plain.ptr[0] == kind && plain.ptr[1] == '1' && plain.ptr[2] == '.' &&
                str_split(str_from(plain, 3), '.', &first, &second) && str_to_int(first, a) &&
                str_to_int(second, b) && *a >= 0 && *b >= 0;
    arena_release(&arena);
    return good ? ST_OK
                : error_at(err, REASON_CURSOR_INVALID, "?cursor",
                           "a cursor is the \"next\" of a page of this list, as it came");
}
