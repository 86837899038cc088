/* base/str.c: string views. A str of length 0 may have a NULL pointer, which memcmp and memchr must
 * not see, so lengths are looked at first. */
#include "base/str.h"

str str_c(const char *cstr) { return cstr == NULL ? STR_NONE : (str){cstr, strlen(cstr)}; }

str str_n(const void *ptr, size_t len) { return (str){ptr, len}; }

bool str_eq(str a, str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

int str_cmp(str a, str b) {
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n == 0 ? 0 : memcmp(a.ptr, b.ptr, n);
    if (order != 0) return order;
    return (a.len > b.len) - (a.len < b.len);
}

bool str_starts(str s, str prefix) {
    return s.len >= prefix.len && str_eq(str_n(s.ptr, prefix.len), prefix);
}

bool str_ends(str s, str suffix) {
    return s.len >= suffix.len && str_eq(str_from(s, s.len - suffix.len), suffix);
}

bool str_has(str s, char c) { return s.len > 0 && memchr(s.ptr, c, s.len) != NULL; }

str str_from(str s, size_t offset) {
    ASSERT(offset <= s.len);
    return offset == 0 ? s : (str){s.ptr + offset, s.len - offset};
}

bool str_split(str s, char sep, str *head, str *rest) {
    const char *at = s.len == 0 ? NULL : memchr(s.ptr, sep, s.len);
    if (at == NULL) {
        *head = s;
        *rest = str_from(s, s.len);
        return false;
    }
    size_t len = (size_t)(at - s.ptr);
    *rest = str_from(s, len + 1);
    *head = str_n(s.ptr, len);
    return true;
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

str str_trim(str s) {
    while (s.len > 0 && is_blank(s.ptr[0]))
        s = str_from(s, 1);
    while (s.len > 0 && is_blank(s.ptr[s.len - 1]))
        s.len--;
    return s;
}

bool str_take_int(str *s, int64_t *out) {
    size_t i = 0;
    int64_t n = 0;
    for (; i < s->len && s->ptr[i] >= '0' && s->ptr[i] <= '9'; i++) {
        int64_t digit = s->ptr[i] - '0';
        n = n > (INT64_MAX - digit) / 10 ? INT64_MAX : n * 10 + digit;
    }
    if (i == 0) return false;
    *out = n;
    *s = str_from(*s, i);
    return true;
}

bool str_to_int(str s, int64_t *out) {
    bool negative = s.len > 0 && s.ptr[0] == '-';
    if (negative) s = str_from(s, 1);
    if (s.len == 0) return false;
    int64_t n = 0; /* kept negative: that side reaches one further */
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') return false;
        if (__builtin_mul_overflow(n, 10, &n)) return false;
        if (__builtin_sub_overflow(n, s.ptr[i] - '0', &n)) return false;
    }
    if (!negative && n == INT64_MIN) return false;
    *out = negative ? n : -n;
    return true;
}

/* The length of the well-formed sequence at p (Unicode, table 3-7), or 0. */
static size_t utf8_len(const unsigned char *p, size_t n) {
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC2) return 0; /* a stray continuation byte, or overlong */
    size_t len = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (p[0] > 0xF4 || len > n) return 0;
    unsigned char low = 0x80;
    unsigned char high = 0xBF;     /* of the second byte, which four lead bytes narrow */
    if (p[0] == 0xE0) low = 0xA0;  /* overlong */
    if (p[0] == 0xED) high = 0x9F; /* surrogates */
    if (p[0] == 0xF0) low = 0x90;  /* overlong */
    if (p[0] == 0xF4) high = 0x8F; /* above U+10FFFF */
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
    }
    return len;
}

bool str_utf8(str s, size_t *bad) {
    const unsigned char *p = (const unsigned char *)s.ptr;
    size_t i = 0;
    while (i < s.len) {
        uint64_t eight;
        if (s.len - i >= sizeof eight) { /* most text is ASCII: eight bytes at a time */
            memcpy(&eight, p + i, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        size_t len = utf8_len(p + i, s.len - i);
        if (len == 0) {
            *bad = i;
            return false;
        }
        i += len;
    }
    return true;
}

/* The hash folds 16 bytes a step through a 64 x 64 -> 128 bit multiplication (the idea of wyhash).
 * With a secret seed, whoever chooses the keys cannot choose the collisions. */
__extension__ typedef unsigned __int128 wide;

static uint64_t fold(uint64_t a, uint64_t b) {
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load(const char *p, size_t n) {
    uint64_t word = 0;
    memcpy(&word, p, n);
    return word;
}

uint64_t str_hash(str s, uint64_t seed) {
    static const uint64_t odd[] = {UINT64_C(0xa0761d6478bd642f), UINT64_C(0xe7037ed1a0b428db),
                                   UINT64_C(0x8ebc6af09c88c6e3)};
    uint64_t h = fold(seed ^ odd[0], odd[1]);
    const char *p = s.ptr;
    size_t n = s.len;
    for (; n > 16; n -= 16, p += 16)
        h = fold(load(p, 8) ^ odd[1], load(p + 8, 8) ^ h);
    uint64_t a = 0;
    uint64_t b = 0; /* the last 0 to 16 bytes */
    if (n > 8) {
        a = load(p, 8);
        b = load(p + 8, n - 8);
    } else if (n > 0) {
        a = load(p, n);
    }
    h = fold(a ^ odd[1], b ^ h);
    return fold(h ^ odd[2], (uint64_t)s.len ^ odd[1]);
}
