/* core/liquid_coding.c: the filters that write text for others: HTML, URLs, base64. */
#include "core/liquid_impl.h"

/* ---- HTML ---- */

static const struct {
    char c;
    str entity;
} entities[] = {{'&', STR_LIT("&amp;")},
                {'<', STR_LIT("&lt;")},
                {'>', STR_LIT("&gt;")},
                {'"', STR_LIT("&#34;")},
                {'\'', STR_LIT("&#39;")}};

static void put_escaped(struct buf *out, char c) {
    for (size_t i = 0; i < COUNT_OF(entities); i++) {
        if (c != entities[i].c) continue;
        buf_put(out, entities[i].entity);
        return;
    }
    buf_put_char(out, c);
}

/* The character that an entity at the start of `s` stands for; its length, or 0. */
static size_t entity_at(str s, char *c) {
    for (size_t i = 0; i < COUNT_OF(entities); i++) {
        if (!str_starts(s, entities[i].entity)) continue;
        *c = entities[i].c;
        return entities[i].entity.len;
    }
    return 0;
}

static struct lv escape(struct lq *q, struct lv v, bool once) {
    str s = lv_to_text(q, v);
    buf_clear(&q->scratch);
    if (!lq_work(q, s.len)) return LV_NOTHING;
    for (size_t i = 0; i < s.len;) {
        char c = s.ptr[i];
        size_t n = once && c == '&' ? entity_at(str_from(s, i), &c) : 0;
        put_escaped(&q->scratch, c);
        i += n > 0 ? n : 1;
    }
    return lq_take_scratch(q);
}

static struct lv f_escape(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return escape(q, v, false);
}

static struct lv f_escape_once(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return escape(q, v, true);
}

/* What begins at `lt`, as a whole: the offset behind it, or 0 if it has no end. An opener without
 * its end is not looked for again (`gone`), so the work stays linear. */
static size_t html_end(str s, size_t lt, bool gone[4]) {
    static const struct {
        str open, close;
    } blocks[4] = {{STR_LIT("<script"), STR_LIT("</script>")},
                   {STR_LIT("<style"), STR_LIT("</style>")},
                   {STR_LIT("<!--"), STR_LIT("-->")},
                   {STR_LIT("<"), STR_LIT(">")}};
    for (size_t b = 0; b < COUNT_OF(blocks); b++) {
        if (gone[b] || !str_starts(str_from(s, lt), blocks[b].open)) continue;
        str rest = str_from(s, lt + blocks[b].open.len);
        const char *end =
            rest.len == 0 ? NULL
                          : memmem(rest.ptr, rest.len, blocks[b].close.ptr, blocks[b].close.len);
        if (end != NULL) return (size_t)(end - s.ptr) + blocks[b].close.len;
        gone[b] = true;
    }
    return 0;
}

static struct lv f_strip_html(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    str s = lv_to_text(q, v);
    bool gone[4] = {false};
    buf_clear(&q->scratch);
    if (!lq_work(q, 5 * s.len)) return LV_NOTHING;
    for (size_t i = 0; i < s.len;) {
        const char *lt = memchr(s.ptr + i, '<', s.len - i);
        size_t at = lt == NULL ? s.len : (size_t)(lt - s.ptr);
        buf_put(&q->scratch, str_n(s.ptr + i, at - i));
        i = at < s.len ? html_end(s, at, gone) : s.len;
        if (i == 0) {
            buf_put(&q->scratch, str_from(s, at));
            break;
        }
    }
    return lq_take_scratch(q);
}

/* ---- URLs ---- */

static bool is_alnum(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static struct lv url_encode(struct lq *q, struct lv v, const char *also) {
    static const char hex[] = "0123456789ABCDEF";
    str s = lv_to_text(q, v);
    buf_clear(&q->scratch);
    if (!lq_work(q, s.len)) return LV_NOTHING;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (is_alnum(c) || (c != '\0' && strchr(also, c) != NULL)) {
            buf_put_char(&q->scratch, c);
        } else if (c == ' ') {
            buf_put_char(&q->scratch, '+');
        } else {
            char code[3] = {'%', hex[(unsigned char)c >> 4], hex[(unsigned char)c & 15]};
            buf_put(&q->scratch, str_n(code, sizeof code));
        }
    }
    return lq_take_scratch(q);
}

static struct lv f_url_encode(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return url_encode(q, v, "-_.!~*'()");
}

static struct lv f_cgi_escape(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return url_encode(q, v, "-_.~");
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static struct lv f_url_decode(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    str s = lv_to_text(q, v);
    size_t bad;
    buf_clear(&q->scratch);
    if (!lq_work(q, s.len)) return LV_NOTHING;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] != '%') {
            buf_put(&q->scratch, s.ptr[i] == '+' ? STR(" ") : str_n(s.ptr + i, 1));
            continue;
        }
        int high = s.len - i > 2 ? hex_value(s.ptr[i + 1]) : -1;
        int low = s.len - i > 2 ? hex_value(s.ptr[i + 2]) : -1;
        if (high < 0 || low < 0) {
            lq_refuse(q, REASON_LIQUID_VALUE, "url_decode: %% is not followed by two hex digits");
            return LV_NOTHING;
        }
        buf_put_char(&q->scratch, (char)(high << 4 | low));
        i += 2;
    }
    if (!str_utf8(buf_str(&q->scratch), &bad)) {
        lq_refuse(q, REASON_LIQUID_VALUE, "url_decode: the result is not UTF-8");
    }
    return lq_take_scratch(q);
}

/* ---- base64 ---- */

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static struct lv f_base64_encode(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    str s = lv_to_text(q, v);
    buf_clear(&q->scratch);
    if (!lq_work(q, s.len)) return LV_NOTHING;
    for (size_t i = 0; i < s.len; i += 3) {
        size_t n = s.len - i < 3 ? s.len - i : 3;
        uint32_t bits = (uint32_t)(unsigned char)s.ptr[i] << 16;
        if (n > 1) bits |= (uint32_t)(unsigned char)s.ptr[i + 1] << 8;
        if (n > 2) bits |= (unsigned char)s.ptr[i + 2];
        char code[4] = {base64_digits[bits >> 18], base64_digits[bits >> 12 & 63],
                        base64_digits[bits >> 6 & 63], base64_digits[bits & 63]};
        if (n < 2) code[2] = '=';
        if (n < 3) code[3] = '=';
        buf_put(&q->scratch, str_n(code, sizeof code));
    }
    return lq_take_scratch(q);
}

static bool is_base64_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r';
}

/* Decodes to the scratch buffer; false when it is no base64. Padding may be left out. */
static bool base64_decode(struct lq *q, str s) {
    uint32_t bits = 0;
    size_t digits = 0;
    size_t padding = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (is_base64_blank(s.ptr[i])) continue;
        if (s.ptr[i] == '=') {
            padding++;
            continue;
        }
        const char *digit = s.ptr[i] == '\0' ? NULL : strchr(base64_digits, s.ptr[i]);
        if (digit == NULL || padding > 0) return false;
        bits = bits << 6 | (uint32_t)(digit - base64_digits);
        if (digits % 4 != 0) {
            unsigned shift = 4 - 2 * (unsigned)(digits % 4 - 1); /* 4, 2, 0 bits are left over */
            buf_put_char(&q->scratch, (char)(bits >> shift & 0xFF));
        }
        digits++;
    }
    if (digits % 4 == 1 || padding > 2) return false;
    return padding == 0 || (digits + padding) % 4 == 0;
}

/* Bytes that are no UTF-8 become U+FFFD: our text is always valid. */
static struct lv valid_text(struct lq *q, str s) {
    size_t bad;
    buf_clear(&q->scratch);
    while (!str_utf8(s, &bad)) {
        buf_put(&q->scratch, str_n(s.ptr, bad));
        buf_put_c(&q->scratch, "\xEF\xBF\xBD");
        s = str_from(s, bad + 1);
        if (q->scratch.full || !lq_work(q, bad + 1)) break;
    }
    buf_put(&q->scratch, s);
    return lq_take_scratch(q);
}

static struct lv f_base64_decode(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    str s = lv_to_text(q, v);
    buf_clear(&q->scratch);
    if (!lq_work(q, s.len)) return LV_NOTHING;
    if (!base64_decode(q, s)) {
        lq_refuse(q, REASON_LIQUID_VALUE, "base64_decode: this is not base64");
        return LV_NOTHING;
    }
    struct lv bytes = lq_take_scratch(q);
    size_t bad;
    if (q->st != ST_OK || str_utf8(bytes.text, &bad)) return bytes;
    return valid_text(q, bytes.text);
}

const struct lq_filter lq_coding_filters[] = {
    {"base64_decode", 0, 0, f_base64_decode}, {"base64_encode", 0, 0, f_base64_encode},
    {"cgi_escape", 0, 0, f_cgi_escape},       {"escape", 0, 0, f_escape},
    {"escape_once", 0, 0, f_escape_once},     {"strip_html", 0, 0, f_strip_html},
    {"url_decode", 0, 0, f_url_decode},       {"url_encode", 0, 0, f_url_encode},
    {"xml_escape", 0, 0, f_escape},
};
const size_t lq_coding_filter_count = COUNT_OF(lq_coding_filters);
