/* base/buf.c: text under construction. Memory doubles from BUF_FIRST up to the maximum; what does
 * not fit, or finds no memory, sets `full`, and from then on everything is dropped: a text with a
 * hole in the middle would be worse than one that ends early. */
#include "base/buf.h"

#include <stdarg.h>

#include "base/arena.h"
#include "base/hash.h"

enum { BUF_FIRST = 256 };

void buf_init(struct buf *b, size_t max) { *b = (struct buf){.max = max}; }

/* NOLINTNEXTLINE(readability-non-const-parameter): the buf writes into it later */
void buf_init_fixed(struct buf *b, char *mem, size_t size) {
    *b = (struct buf){.ptr = mem, .cap = size, .max = size, .fixed = true};
}

void buf_release(struct buf *b) {
    if (!b->fixed) mem_free(b->ptr);
    *b = (struct buf){.max = b->max};
}

void buf_clear(struct buf *b) {
    b->len = 0;
    b->full = false;
}

/* How many of `n` more bytes there is room for, growing as needed; sets `full` if not all. */
static size_t make_room(struct buf *b, size_t n) {
    ASSERT(b->len <= b->cap && b->cap <= b->max);
    if (b->full) return 0;
    size_t fit = n <= b->max - b->len ? n : b->max - b->len;
    size_t need = b->len + fit;
    if (need > b->cap) {
        size_t cap = b->cap < BUF_FIRST ? BUF_FIRST : b->cap;
        while (cap < need)
            cap = cap > SIZE_MAX / 2 ? SIZE_MAX : cap * 2;
        if (cap > b->max) cap = b->max;
        char *grown = mem_grow(b->ptr, b->cap, cap);
        if (grown == NULL) {
            fit = b->cap - b->len;
        } else {
            b->ptr = grown;
            b->cap = cap;
        }
    }
    if (fit < n) b->full = true;
    return fit;
}

void buf_put(struct buf *b, str s) {
    size_t fit = make_room(b, s.len);
    if (fit == 0) return;
    memcpy(b->ptr + b->len, s.ptr, fit);
    b->len += fit;
}

void buf_put_c(struct buf *b, const char *cstr) { buf_put(b, str_c(cstr)); }

void buf_put_char(struct buf *b, char c) { buf_put(b, str_n(&c, 1)); }

void buf_put_int(struct buf *b, int64_t n) {
    char text[20]; /* "-9223372036854775808" */
    size_t at = sizeof text;
    uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    do {
        text[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (n < 0) text[--at] = '-';
    buf_put(b, str_n(text + at, sizeof text - at));
}

void buf_put_hex(struct buf *b, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++) {
        char pair[2];
        hex_encode(p + i, 1, pair);
        buf_put(b, str_n(pair, sizeof pair));
    }
}

void buf_printf(struct buf *b, const char *fmt, ...) {
    char small[512];
    va_list args;
    va_list again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    if (n < 0) {
        b->full = true; /* more than INT_MAX characters, or a conversion that libc refuses */
    } else if ((size_t)n < sizeof small) {
        buf_put(b, str_n(small, (size_t)n));
    } else {
        char *large = mem_alloc((size_t)n + 1);
        if (large == NULL) {
            b->full = true;
        } else {
            (void)vsnprintf(large, (size_t)n + 1, fmt, again);
            buf_put(b, str_n(large, (size_t)n));
            mem_free(large);
        }
    }
    va_end(again);
}

static void put_json_control(struct buf *b, unsigned char c) {
    static const char hex[] = "0123456789ABCDEF";
    char text[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
    size_t len = 2; /* of the short forms */
    switch (c) {
    case '"':
    case '\\':
        text[1] = (char)c;
        break;
    case '\b':
        text[1] = 'b';
        break;
    case '\t':
        text[1] = 't';
        break;
    case '\n':
        text[1] = 'n';
        break;
    case '\f':
        text[1] = 'f';
        break;
    case '\r':
        text[1] = 'r';
        break;
    default:
        len = sizeof text;
        break;
    }
    buf_put(b, str_n(text, len));
}

void buf_put_json_str(struct buf *b, str s) {
    buf_put_char(b, '"');
    size_t start = 0; /* of the bytes that go out as they are */
    size_t bad = s.len;
    bool valid = str_utf8(s, &bad);
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        bool broken = !valid && i == bad;
        if (!broken && c >= 0x20 && c != '"' && c != '\\') continue;
        buf_put(b, str_n(s.ptr + start, i - start));
        start = i + 1;
        if (broken) { /* the output is always JSON: a broken byte becomes U+FFFD */
            buf_put_c(b, "\xEF\xBF\xBD");
            valid = str_utf8(str_from(s, start), &bad);
            bad += start;
        } else {
            put_json_control(b, c);
        }
    }
    if (start < s.len) buf_put(b, str_n(s.ptr + start, s.len - start));
    buf_put_char(b, '"');
}

str buf_str(const struct buf *b) { return str_n(b->ptr, b->len); }
