/* api/cursor.c: opaque cursors, and base64url. */
#include "api/impl.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void base64url_write(struct buf *out, const void *bytes, size_t n) {
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)b[i] << 16 | (i + 1 < n ? (uint32_t)b[i + 1] << 8 : 0) |
                     (i + 2 < n ? b[i + 2] : 0);
        size_t chars = n - i >= 3 ? 4 : n - i + 1;
        for (size_t k = 0; k < chars; k++)
            buf_put_char(out, alphabet[(v >> (18 - 6 * k)) & 63]);
    }
}

static int digit(char c) {
    const char *at = c ? strchr(alphabet, c) : NULL;
    return at ? (int)(at - alphabet) : -1;
}

bool base64url_read(str text, struct arena *arena, str *out) {
    size_t n = text.len / 4 * 3 + (text.len % 4 ? text.len % 4 - 1 : 0);
    uint8_t *bytes = arena_try(arena, n + 1);
    uint32_t v = 0;
    int bits = 0;
    size_t len = 0;
    if (!bytes || text.len % 4 == 1) return false;
    for (size_t i = 0; i < text.len; i++) {
        int d = digit(text.ptr[i]);
        if (d < 0) return false;
        v = v << 6 | (uint32_t)d;
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        bytes[len++] = (uint8_t)(v >> bits);
        v &= (1U << bits) - 1;
    }
    if (v != 0) return false; /* one text, one meaning */
    *out = str_n(bytes, len);
    return true;
}

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
                : error_at(err, ST_INVALID, "CURSOR_INVALID", "?cursor",
                           "a cursor is the \"next\" of a page of this list, as it came");
}
