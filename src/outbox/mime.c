#include "outbox/mime.h"

#include <openssl/evp.h>
#include <time.h>

enum {
    LOCAL_MAX = 64, /* bytes before the @ (RFC 5321) */
    ADDRESS_MAX = 254,
    LABEL_MAX = 63,
    PLAIN_MAX = 255, /* a longer header is written as encoded words, which can be folded */
    WORD_BYTES = 45, /* of one encoded word: 75 characters with what is around its base64 */
    LINE_MAX_QP = 76,
};

/* ---- addresses ---- */

static bool is_alnum(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_local(str local) {
    char last = '.'; /* none at the start, none at the end, no two in a row */
    for (size_t i = 0; i < local.len; i++) {
        char c = local.ptr[i];
        if (c == '.' ? last == '.' : !is_alnum(c) && !str_has(STR("!#$%&'*+-/=?^_`{|}~"), c))
            return false;
        last = c;
    }
    return local.len <= LOCAL_MAX && last != '.';
}

static bool is_domain(str domain) {
    size_t label = 0;
    for (size_t i = 0; i < domain.len; i++) {
        char c = domain.ptr[i];
        if (c == '.') {
            if (label == 0 || domain.ptr[i - 1] == '-') return false;
            label = 0;
        } else if ((!is_alnum(c) && (c != '-' || label == 0)) || ++label > LABEL_MAX) {
            return false;
        }
    }
    return label > 0 && domain.ptr[domain.len - 1] != '-';
}

/* A name in quotes, without them. */
static bool unquote(str text, struct arena *arena, str *out) {
    bool quoted = text.len >= 2 && str_starts(text, STR("\"")) && str_ends(text, STR("\""));
    *out = text;
    if (!quoted) return true;
    char *name = arena_try(arena, text.len);
    if (!name) return false;
    size_t n = 0;
    for (size_t i = 1; i < text.len - 1; i++) {
        if (text.ptr[i] == '\\' && i + 1 < text.len - 1) i++;
        name[n++] = text.ptr[i];
    }
    *out = str_n(name, n);
    return true;
}

bool mime_address(str text, struct arena *arena, struct mime_address *out) {
    struct mime_address a = {.address = text};
    if (!mime_is_header(text)) return false;
    if (str_ends(text, STR(">"))) {
        size_t open = text.len;
        while (open > 0 && text.ptr[open - 1] != '<')
            open--;
        if (open == 0) return false;
        a.address = str_n(text.ptr + open, text.len - open - 1);
        if (!unquote(str_trim(str_n(text.ptr, open - 1)), arena, &a.name)) return false;
        if (a.name.len == 0) a.name = STR_NONE;
    }
    str local;
    if (a.address.len > ADDRESS_MAX || !str_split(a.address, '@', &local, &a.domain)) return false;
    if (!is_local(local) || !is_domain(a.domain)) return false;
    *out = a;
    return true;
}

/* ---- headers ---- */

bool mime_is_header(str value) {
    size_t bad;
    for (size_t i = 0; i < value.len; i++) {
        unsigned char c = (unsigned char)value.ptr[i];
        if (c < ' ' || c == 0x7f) return false;
    }
    return value.len <= MIME_HEADER_MAX && str_utf8(value, &bad);
}

static bool is_plain(str value) {
    for (size_t i = 0; i < value.len; i++) {
        if (value.ptr[i] < ' ' || value.ptr[i] > '~') return false;
        if (value.ptr[i] == '=' && i + 1 < value.len && value.ptr[i + 1] == '?') return false;
    }
    return value.len <= PLAIN_MAX;
}

/* Bytes of the longest beginning with whole characters only that one word can hold. */
static size_t word_len(str value) {
    size_t n = value.len < WORD_BYTES ? value.len : WORD_BYTES;
    while (n < value.len && n > 0 && ((unsigned char)value.ptr[n] & 0xc0) == 0x80)
        n--;
    return n;
}

static void put_words(struct buf *out, str value) {
    uint8_t base64[4 * ((WORD_BYTES + 2) / 3) + 1];
    for (bool first = true; value.len > 0; first = false) {
        size_t n = word_len(value);
        ASSERT(n > 0);
        (void)EVP_EncodeBlock(base64, (const uint8_t *)value.ptr, (int)n);
        buf_printf(out, "%s=?UTF-8?B?%s?=", first ? "" : "\r\n ", (const char *)base64);
        value = str_from(value, n);
    }
}

void mime_put_text(struct buf *out, const char *name, str value) {
    ASSERT(mime_is_header(value));
    buf_printf(out, "%s: ", name);
    if (is_plain(value))
        buf_put(out, value);
    else
        put_words(out, value);
    buf_put_c(out, "\r\n");
}

static void put_quoted(struct buf *out, str name) {
    buf_put_char(out, '"');
    for (size_t i = 0; i < name.len; i++) {
        if (name.ptr[i] == '"' || name.ptr[i] == '\\') buf_put_char(out, '\\');
        buf_put_char(out, name.ptr[i]);
    }
    buf_put_char(out, '"');
}

void mime_put_addresses(struct buf *out, const char *name, const struct mime_address *list,
                        size_t count) {
    buf_printf(out, "%s: ", name);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_put_c(out, ",\r\n ");
        if (!list[i].name.ptr) {
            buf_put(out, list[i].address);
            continue;
        }
        if (is_plain(list[i].name))
            put_quoted(out, list[i].name);
        else
            put_words(out, list[i].name);
        buf_put_c(out, "\r\n <"); /* a long name and a long address do not fit into one line */
        buf_put(out, list[i].address);
        buf_put_char(out, '>');
    }
    buf_put_c(out, "\r\n");
}

void mime_put_date(struct buf *out, int64_t unix_s) {
    static const char days[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t seconds = (time_t)unix_s;
    struct tm t = {0};
    (void)gmtime_r(&seconds, &t);
    buf_printf(out, "Date: %s, %d %s %d %02d:%02d:%02d +0000\r\n", days[t.tm_wday], t.tm_mday,
               months[t.tm_mon], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

/* ---- bodies ---- */

static void put_qp_piece(struct buf *out, const char *piece, size_t len, size_t *column) {
    if (*column + len > LINE_MAX_QP - 1) { /* the last one is for the = of a soft line end */
        buf_put_c(out, "=\r\n");
        *column = 0;
    }
    buf_put(out, str_n(piece, len));
    *column += len;
}

static void put_qp(struct buf *out, str text) {
    static const char hex[] = "0123456789ABCDEF";
    size_t column = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '\r' || c == '\n') {
            if (c == '\r' && i + 1 < text.len && text.ptr[i + 1] == '\n') i++;
            buf_put_c(out, "\r\n");
            column = 0;
            continue;
        }
        bool ends = i + 1 == text.len || text.ptr[i + 1] == '\r' || text.ptr[i + 1] == '\n';
        bool blank = (c == ' ' || c == '\t') && !ends; /* at a line's end they get lost */
        if ((c > ' ' && c <= '~' && c != '=') || blank) {
            put_qp_piece(out, &c, 1, &column);
        } else {
            unsigned char u = (unsigned char)c;
            const char escaped[3] = {'=', hex[u >> 4], hex[u & 15]};
            put_qp_piece(out, escaped, 3, &column);
        }
    }
    if (column > 0) buf_put_c(out, "\r\n");
}

void mime_put_part(struct buf *out, const char *type, str text) {
    buf_printf(out,
               "Content-Type: %s; charset=utf-8\r\n"
               "Content-Transfer-Encoding: quoted-printable\r\n\r\n",
               type);
    put_qp(out, text);
}
