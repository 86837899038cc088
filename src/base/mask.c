#include "base/mask.h"

#include "base/json.h"

enum { FEED_BYTES = 4096 }; /* one piece of mask_feed(): bounds what is held besides the longest */

struct mask_progress {
    uint32_t matched; /* the longest prefix of the pattern that ends at this byte */
    uint64_t marked;  /* position up to which this pattern has marked bytes already */
};

void mask_init(struct mask *mask, struct arena *arena) { *mask = (struct mask){.arena = arena}; }

static bool fall_make(struct mask_pattern *p, struct arena *arena) {
    p->fall = arena_try(arena, (p->text.len + 1) * sizeof *p->fall);
    if (!p->fall) return false;
    uint32_t k = 0;
    for (size_t i = 1; i < p->text.len; i++) {
        while (k > 0 && p->text.ptr[i] != p->text.ptr[k])
            k = p->fall[k];
        if (p->text.ptr[i] == p->text.ptr[k]) k++;
        p->fall[i + 1] = k;
    }
    return true;
}

static bool pattern_add(struct mask *mask, str text) {
    for (size_t i = 0; i < mask->count; i++) {
        if (str_eq(mask->patterns[i].text, text)) return true;
    }
    if (mask->count == mask->cap) {
        size_t cap = mask->cap ? mask->cap * 2 : 4;
        struct mask_pattern *grown = arena_try(mask->arena, cap * sizeof *grown);
        if (!grown) return false;
        if (mask->count) memcpy(grown, mask->patterns, mask->count * sizeof *grown);
        mask->patterns = grown;
        mask->cap = cap;
    }
    struct mask_pattern p = {0};
    if (!arena_try_str(mask->arena, text, &p.text) || !fall_make(&p, mask->arena)) return false;
    mask->patterns[mask->count++] = p;
    if (text.len > mask->longest) mask->longest = text.len;
    return true;
}

/* How programs print a text as JSON: what must be escaped, and what some escape besides. */
enum json_style { JSON_PLAIN, JSON_SLASH, JSON_HTML, JSON_STYLE_COUNT };

static void put_json(struct buf *out, str value, enum json_style style) {
    for (size_t i = 0; i < value.len; i++) {
        char c = value.ptr[i];
        bool slash = style == JSON_SLASH && c == '/';
        bool html = style == JSON_HTML && (c == '<' || c == '>' || c == '&');
        if (slash) buf_put_c(out, "\\/");
        if (html) buf_printf(out, "\\u%04x", (unsigned)c);
        if (slash || html) continue;
        char one[16];
        struct buf quoted;
        buf_init_fixed(&quoted, one, sizeof one);
        buf_put_json_str(&quoted, str_n(&c, 1));
        buf_put(out, str_n(one + 1, quoted.len - 2));
    }
}

bool mask_add(struct mask *mask, str value) {
    if (value.len < MASK_BYTES_MIN) return true;
    bool ok = pattern_add(mask, value);
    struct buf json;
    buf_init(&json, value.len * 6);
    for (int style = 0; ok && style < JSON_STYLE_COUNT; style++) {
        buf_clear(&json);
        put_json(&json, value, (enum json_style)style);
        ok = !json.full && pattern_add(mask, buf_str(&json));
    }
    buf_release(&json);
    return ok;
}

bool mask_stream_init(struct mask_stream *stream, const struct mask *mask) {
    *stream = (struct mask_stream){.mask = mask};
    if (mask->count == 0) return true;
    size_t room = mask->longest + FEED_BYTES;
    stream->progress = arena_try(mask->arena, mask->count * sizeof *stream->progress);
    stream->held = arena_try_raw(mask->arena, room);
    stream->secret = arena_try_raw(mask->arena, room);
    return stream->progress && stream->held && stream->secret;
}

/* Takes one more byte: all patterns make their step, and one that is complete marks its bytes. */
static void take(struct mask_stream *s, char c) {
    s->held[s->held_len] = c;
    s->secret[s->held_len++] = 0;
    s->taken++;
    for (size_t i = 0; i < s->mask->count; i++) {
        const struct mask_pattern *p = &s->mask->patterns[i];
        struct mask_progress *at = &s->progress[i];
        uint32_t k = at->matched;
        while (k > 0 && p->text.ptr[k] != c)
            k = p->fall[k];
        if (p->text.ptr[k] == c) k++;
        if (k == p->text.len) {
            size_t n = p->text.len; /* those that it marked before need no second mark */
            if (s->taken - at->marked < n) n = (size_t)(s->taken - at->marked);
            memset(s->secret + s->held_len - n, 1, n);
            at->marked = s->taken;
            k = p->fall[k];
        }
        at->matched = k;
    }
}

/* Gives out the first n held bytes. */
static void give(struct mask_stream *s, size_t n, struct buf *out) {
    for (size_t i = 0, end; i < n; i = end) {
        bool secret = s->secret[i];
        for (end = i + 1; end < n && (s->secret[end] != 0) == secret; end++) {
        }
        if (!secret)
            buf_put(out, str_n(s->held + i, end - i));
        else if (!s->starred)
            buf_put_c(out, "***");
        s->starred = secret;
    }
    s->held_len -= n;
    if (s->held_len == 0) return;
    ASSERT(s->held && s->secret);
    memmove(s->held, s->held + n, s->held_len);
    memmove(s->secret, s->secret + n, s->held_len);
}

void mask_feed(struct mask_stream *s, str bytes, struct buf *out) {
    if (s->mask->count == 0) {
        buf_put(out, bytes);
        return;
    }
    while (bytes.len > 0) {
        size_t n = bytes.len < FEED_BYTES ? bytes.len : FEED_BYTES;
        for (size_t i = 0; i < n; i++)
            take(s, bytes.ptr[i]);
        bytes = str_from(bytes, n);
        size_t hold = 0;
        for (size_t i = 0; i < s->mask->count; i++) {
            if (s->progress[i].matched > hold) hold = s->progress[i].matched;
        }
        ASSERT(hold <= s->held_len);
        give(s, s->held_len - hold, out);
    }
}

void mask_end(struct mask_stream *s, struct buf *out) {
    if (s->mask->count > 0) give(s, s->held_len, out);
}

bool mask_text(const struct mask *mask, str text, struct buf *out) {
    struct arena_mark mark = arena_mark(mask->arena);
    struct mask_stream stream;
    bool ok = mask_stream_init(&stream, mask);
    if (ok) {
        mask_feed(&stream, text, out);
        mask_end(&stream, out);
    }
    arena_rewind(mask->arena, mark);
    return ok;
}

/* ---- JSON ---- */

static bool put_masked(yyjson_val *val, const struct mask *mask, struct buf *out) {
    struct buf text;
    buf_init(&text, yyjson_get_len(val)); /* stars are never longer than what they stand for */
    bool ok = mask_text(mask, str_n(yyjson_get_str(val), yyjson_get_len(val)), &text);
    buf_put_json_str(out, buf_str(&text));
    ok = ok && !text.full && !out->full;
    buf_release(&text);
    return ok;
}

/* As deep as json_parse() let it be. NOLINTNEXTLINE(misc-no-recursion) */
bool json_write_masked(yyjson_val *val, const struct mask *mask, struct buf *out) {
    if (mask->count == 0) return json_write(val, out);
    if (yyjson_is_str(val)) return put_masked(val, mask, out);
    if (!yyjson_is_ctn(val)) return json_write(val, out);
    bool object = yyjson_is_obj(val);
    buf_put_char(out, object ? '{' : '[');
    bool ok = true;
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *item;
    if (object) {
        yyjson_obj_foreach(val, i, n, key, item) {
            if (i > 0) buf_put_char(out, ',');
            ok = ok && put_masked(key, mask, out);
            buf_put_char(out, ':');
            ok = ok && json_write_masked(item, mask, out);
        }
    } else {
        yyjson_arr_foreach(val, i, n, item) {
            if (i > 0) buf_put_char(out, ',');
            ok = ok && json_write_masked(item, mask, out);
        }
    }
    buf_put_char(out, object ? '}' : ']');
    return ok && !out->full;
}
