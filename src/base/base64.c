/* base/base64.c: base64url without padding (RFC 4648, section 5). */
#include "base/base64.h"

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
