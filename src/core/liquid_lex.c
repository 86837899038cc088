/* core/liquid_lex.c: characters, words, literals, and cutting a template into text, outputs and
 * tags. The text is valid UTF-8 (lq_parse() has looked); decoding stays inside it all the same. */
#include <stdarg.h>

#include "core/liquid_impl.h"

/* ---- characters ---- */

size_t lq_decode(str s, size_t at, uint32_t *cp) {
    ASSERT(at < s.len);
    const unsigned char *p = (const unsigned char *)s.ptr + at;
    size_t left = s.len - at;
    if (p[0] >= 0xF0 && left >= 4) {
        *cp = (uint32_t)(p[0] & 7) << 18 | (uint32_t)(p[1] & 63) << 12 |
              (uint32_t)(p[2] & 63) << 6 | (p[3] & 63U);
        return 4;
    }
    if (p[0] >= 0xE0 && left >= 3) {
        *cp = (uint32_t)(p[0] & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63U);
        return 3;
    }
    if (p[0] >= 0xC0 && left >= 2) {
        *cp = (uint32_t)(p[0] & 31) << 6 | (p[1] & 63U);
        return 2;
    }
    *cp = p[0];
    return 1;
}

size_t lq_decode_back(str s, size_t end, uint32_t *cp) {
    ASSERT(end > 0 && end <= s.len);
    size_t at = end - 1;
    while (at > 0 && end - at < 4 && ((unsigned char)s.ptr[at] & 0xC0) == 0x80)
        at--;
    size_t n = lq_decode(str_n(s.ptr, end), at, cp);
    if (at + n == end) return n;
    *cp = (unsigned char)s.ptr[end - 1];
    return 1;
}

size_t lq_encode(uint32_t cp, char out[4]) {
    if (cp >= 0xD800 && cp <= 0xDFFF) cp = 0xFFFD; /* half of a pair is no character */
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 63));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 63));
        out[2] = (char)(0x80 | (cp & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 63));
    out[2] = (char)(0x80 | (cp >> 6 & 63));
    out[3] = (char)(0x80 | (cp & 63));
    return 4;
}

bool lq_is_space(uint32_t cp) { /* what JavaScript takes for white space */
    if (cp <= ' ') return cp == ' ' || (cp >= 9 && cp <= 13);
    if (cp < 0xA0) return false;
    return cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000 || cp == 0xFEFF;
}

/* ---- the cursor ---- */

void lq_fail(struct lq_cursor *c, size_t offset, const char *fmt, ...) {
    if (c->st != ST_OK) return;
    char msg[ERROR_MSG_MAX];
    char where[32];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(msg, sizeof msg, fmt, args);
    va_end(args);
    (void)snprintf(where, sizeof where, "offset %zu", offset);
    c->st = error_at(c->err, REASON_LIQUID_SYNTAX, where, "%s at offset %zu", msg, offset);
    c->at = c->end; /* nothing is read any more */
}

void *lq_new(struct lq_cursor *c, size_t size) {
    if (c->st != ST_OK) return NULL;
    void *made = arena_try(c->arena, size);
    if (made == NULL) {
        c->st = error_at(c->err, REASON_LIQUID_LIMIT, "", "the template needs too much memory");
        c->at = c->end;
    }
    return made;
}

void lq_skip_blank(struct lq_cursor *c) {
    while (c->at < c->end) {
        uint32_t cp;
        size_t n = lq_decode(str_n(c->text.ptr, c->end), c->at, &cp);
        if (!lq_is_space(cp)) return;
        c->at += n;
    }
}

bool lq_at_end(struct lq_cursor *c) {
    lq_skip_blank(c);
    return c->at >= c->end;
}

char lq_peek(const struct lq_cursor *c, size_t ahead) {
    if (ahead >= c->end - c->at) return '\0';
    return c->text.ptr[c->at + ahead];
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Letters, digits, _ - ? and everything beyond ASCII that is neither blank nor a curly quote. */
static size_t word_length(const struct lq_cursor *c, size_t at) {
    if (at >= c->end) return 0;
    char ch = c->text.ptr[at];
    if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || is_digit(ch)) return 1;
    if (ch == '_' || ch == '-' || ch == '?') return 1;
    if ((unsigned char)ch < 0x80) return 0;
    uint32_t cp;
    size_t n = lq_decode(str_n(c->text.ptr, c->end), at, &cp);
    return lq_is_space(cp) || cp == 0x201C || cp == 0x201D ? 0 : n;
}

bool lq_is_word(const struct lq_cursor *c, size_t at) { return word_length(c, at) > 0; }

str lq_read_word(struct lq_cursor *c) {
    lq_skip_blank(c);
    size_t begin = c->at;
    for (size_t n; (n = word_length(c, c->at)) > 0;)
        c->at += n;
    return str_n(c->text.ptr + begin, c->at - begin);
}

/* ---- literals ---- */

static int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Up to `max` digits of the base from *at on. */
static uint32_t take_digits(str s, size_t *at, int base, int max) {
    uint32_t value = 0;
    for (int i = 0; i < max && *at < s.len; i++, (*at)++) {
        int digit = hex_value(s.ptr[*at]);
        if (digit < 0 || digit >= base) break;
        value = value * (uint32_t)base + (uint32_t)digit;
    }
    return value;
}

/* The other half of a pair that \uD83D has begun, if it follows. */
static uint32_t take_pair(str s, size_t *at, uint32_t cp) {
    if (cp < 0xD800 || cp > 0xDBFF || s.len - *at < 2) return cp;
    if (s.ptr[*at] != '\\' || s.ptr[*at + 1] != 'u') return cp;
    size_t after = *at + 2;
    uint32_t low = take_digits(s, &after, 16, 4);
    if (low < 0xDC00 || low > 0xDFFF) return cp;
    *at = after;
    return 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
}

/* One escape, *at behind its backslash; no longer than it was. */
static size_t unescape(str s, size_t *at, char *out) {
    static const char names[] = "bfnrtv";
    static const char values[] = "\b\f\n\r\t\v";
    char ch = s.ptr[*at];
    const char *name = ch == '\0' ? NULL : strchr(names, ch);
    if (name != NULL) {
        (*at)++;
        *out = values[name - names];
        return 1;
    }
    char utf8[4];
    size_t n;
    if (ch == 'u') {
        (*at)++;
        uint32_t cp = take_digits(s, at, 16, 4);
        n = lq_encode(take_pair(s, at, cp), utf8);
    } else if (ch >= '0' && ch <= '7') {
        n = lq_encode(take_digits(s, at, 8, 3), utf8);
    } else {
        *out = ch; /* the bytes of a longer character follow by themselves */
        (*at)++;
        return 1;
    }
    memcpy(out, utf8, n);
    return n;
}

bool lq_read_quoted(struct lq_cursor *c, str *out) {
    lq_skip_blank(c);
    char quote = lq_peek(c, 0);
    if (quote != '"' && quote != '\'') return false;
    size_t begin = c->at;
    size_t i = begin + 1;
    bool escapes = false;
    while (i < c->end && c->text.ptr[i] != quote) {
        if (c->text.ptr[i] == '\\') {
            escapes = true;
            i++;
        }
        i++;
    }
    if (i >= c->end) {
        lq_fail(c, begin, "a string is not closed");
        return false;
    }
    str raw = str_n(c->text.ptr + begin + 1, i - begin - 1);
    c->at = i + 1;
    *out = raw;
    if (!escapes) return true;
    char *made = lq_new(c, raw.len + 4); /* \u alone makes U+0000: shorter, always */
    if (made == NULL) return false;
    size_t n = 0;
    for (size_t at = 0; at < raw.len;) {
        if (raw.ptr[at] != '\\') {
            made[n++] = raw.ptr[at++];
        } else {
            at++;
            n += unescape(raw, &at, made + n);
        }
    }
    *out = str_n(made, n);
    return true;
}

bool lq_read_number(struct lq_cursor *c, struct lv *out) {
    lq_skip_blank(c);
    size_t n = lq_peek(c, 0) == '-' || lq_peek(c, 0) == '+' ? 1 : 0;
    bool digits = false;
    bool point = false;
    for (;; n++) {
        if (is_digit(lq_peek(c, n))) {
            digits = true;
        } else if (lq_peek(c, n) == '.' && lq_peek(c, n + 1) != '.') {
            if (point || !digits) return false;
            point = true;
        } else {
            break;
        }
    }
    if (!digits || lq_is_word(c, c->at + n)) return false;
    str text = str_n(c->text.ptr + c->at, n);
    double value = 0;
    if (!lq_number_parse(text, &value)) {
        lq_fail(c, c->at, "a number is too long");
        return false;
    }
    c->at += n;
    *out = lv_number(value);
    if (lq_is_integer_text(text)) out->text = text;
    return true;
}

/* ---- tokens ---- */

static bool ends_here(str text, size_t at, const char *two) {
    return at + 1 < text.len && text.ptr[at] == two[0] && text.ptr[at + 1] == two[1];
}

/* Behind a quoted string, or the end of the text if it is not closed. */
static size_t skip_quoted(str text, size_t at) {
    char quote = text.ptr[at++];
    while (at < text.len && text.ptr[at] != quote)
        at += text.ptr[at] == '\\' ? 2 : 1;
    return at < text.len ? at + 1 : text.len;
}

/* Where the closing two characters stand, from `at` on. Strings may hold them in outputs only. */
static size_t find_close(str text, size_t at, const char *two, bool quoted) {
    while (at < text.len) {
        if (quoted && (text.ptr[at] == '"' || text.ptr[at] == '\'')) {
            at = skip_quoted(text, at);
        } else if (ends_here(text, at, two)) {
            return at;
        } else {
            at++;
        }
    }
    return text.len;
}

static bool scan_delimited(struct lq_scanner *s, bool tag, struct lq_token *out) {
    str text = s->c->text;
    size_t begin = s->at + 2;
    size_t close = find_close(text, begin, tag ? "%}" : "}}", !tag);
    if (close >= text.len) {
        lq_fail(s->c, s->at, tag ? "a tag is not closed" : "an output is not closed");
        return false;
    }
    *out = (struct lq_token){.kind = tag ? TOKEN_TAG : TOKEN_OUTPUT, .offset = s->at};
    out->trim_left = begin < close && text.ptr[begin] == '-';
    out->trim_right = begin < close && text.ptr[close - 1] == '-';
    out->begin = begin + out->trim_left;
    out->end = close - out->trim_right;
    if (out->end < out->begin) out->end = out->begin; /* {{-}} has one dash for both */
    s->at = close + 2;
    s->trim = out->trim_right;
    return true;
}

static size_t trim_front(str text, size_t begin, size_t end) {
    uint32_t cp;
    while (begin < end) {
        size_t n = lq_decode(str_n(text.ptr, end), begin, &cp);
        if (!lq_is_space(cp)) break;
        begin += n;
    }
    return begin;
}

static size_t trim_back(str text, size_t begin, size_t end) {
    uint32_t cp;
    while (end > begin) {
        size_t n = lq_decode_back(text, end, &cp);
        if (!lq_is_space(cp)) break;
        end -= n;
    }
    return end;
}

bool lq_scan(struct lq_scanner *s, struct lq_token *out) {
    str text = s->c->text;
    if (s->c->st != ST_OK) return false;
    if (s->at >= text.len) {
        *out = (struct lq_token){.kind = TOKEN_END, .offset = text.len};
        return true;
    }
    if (ends_here(text, s->at, "{%")) return scan_delimited(s, true, out);
    if (ends_here(text, s->at, "{{")) return scan_delimited(s, false, out);
    size_t end = s->at;
    while (end < text.len && !ends_here(text, end, "{%") && !ends_here(text, end, "{{"))
        end++;
    *out = (struct lq_token){.kind = TOKEN_TEXT, .offset = s->at, .begin = s->at, .end = end};
    if (s->trim) out->begin = trim_front(text, out->begin, out->end);
    if (end + 2 < text.len && text.ptr[end + 2] == '-') {
        out->end = trim_back(text, out->begin, out->end);
    }
    s->at = end;
    s->trim = false;
    return true;
}

bool lq_scan_raw(struct lq_scanner *s, size_t tag_offset, str *out) {
    str text = s->c->text;
    size_t begin = s->at;
    for (size_t at = begin; (at = find_close(text, at, "{%", false)) < text.len; at += 2) {
        struct lq_cursor inner = {.text = text, .at = at + 2, .end = text.len};
        if (lq_peek(&inner, 0) == '-') inner.at++;
        str word = lq_read_word(&inner);
        bool dash = str_eq(word, STR("endraw-")); /* a dash belongs to the word it follows */
        if (!dash && !str_eq(word, STR("endraw"))) continue;
        if (!lq_at_end(&inner) && !dash && lq_peek(&inner, 0) == '-') {
            dash = true;
            inner.at++;
        }
        if (!ends_here(text, inner.at, "%}")) continue;
        *out = str_n(text.ptr + begin, at - begin);
        s->at = inner.at + 2;
        s->trim = dash;
        return true;
    }
    lq_fail(s->c, tag_offset, "raw is not closed");
    return false;
}
