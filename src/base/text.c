#include "base/text.h"

static bool is_middle(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

/* Bytes of the character that starts with `c`, going by its first byte. */
static size_t char_len(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

str text_uncut(str text, bool start, bool end) {
    for (int i = 0; start && i < 3 && text.len > 0 && is_middle(text.ptr[0]); i++)
        text = str_from(text, 1);
    for (size_t back = 1; end && back <= 3 && back <= text.len; back++) {
        char c = text.ptr[text.len - back];
        if (is_middle(c)) continue;
        if (char_len(c) > back) text.len -= back;
        break;
    }
    return text;
}

/* How many bytes at the start of a text stand in JSON as they are. */
static size_t plain_len(str text) {
    size_t n = 0;
    while (n < text.len && text.ptr[n] >= ' ' && text.ptr[n] < 0x7f && text.ptr[n] != '"' &&
           text.ptr[n] != '\\')
        n++;
    return n;
}

/* Appends what fits, with the closing quote still to come; true: all of it. */
static bool put_plain(struct buf *out, str text, size_t end_max) {
    size_t room = end_max - 1 > out->len ? end_max - 1 - out->len : 0;
    buf_put(out, str_n(text.ptr, text.len < room ? text.len : room));
    return text.len <= room;
}

/* One character, or what stands for it: whole or not at all. */
static bool put_char_json(struct buf *out, str one, size_t end_max) {
    struct buf b; /* the longest is \u001f */
    char room[16];
    buf_init_fixed(&b, room, sizeof room);
    buf_put_json_str(&b, one);
    str inner = str_n(room + 1, b.len - 2);
    return out->len + inner.len + 1 <= end_max && put_plain(out, inner, end_max);
}

bool text_put_json(struct buf *out, str text, size_t bytes_max) {
    size_t end_max = out->len + bytes_max;
    buf_put_char(out, '"');
    bool fits = true;
    while (fits && text.len > 0) {
        size_t n = plain_len(text);
        if (n > 0) {
            fits = put_plain(out, str_n(text.ptr, n), end_max);
            text = str_from(text, n);
            continue;
        }
        n = char_len(text.ptr[0]);
        str one = str_n(text.ptr, n < text.len ? n : text.len);
        if (one.ptr[0] == '\0' || !str_utf8(one, &n)) {
            one = STR("\xef\xbf\xbd");
            n = 1;
        }
        fits = put_char_json(out, one, end_max);
        text = str_from(text, n < text.len ? n : text.len);
    }
    buf_put_char(out, '"');
    return fits;
}
