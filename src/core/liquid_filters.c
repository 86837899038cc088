/* core/liquid_filters.c: the table of filters, and those on text. A filter gets its value and its
 * arguments (as many as the table allows, undefined behind them) and gives back a value. Results
 * are built in q->scratch, then kept in the arena. */
#include <math.h>

#include "core/liquid_impl.h"

struct lv lq_take_scratch(struct lq *q) {
    if (q->scratch.full)
        lq_refuse(q, REASON_LIQUID_LIMIT, "a text is longer than %zu bytes", LIQUID_OUTPUT_MAX);
    char *kept = lq_memory(q, q->scratch.len);
    if (kept == NULL) return LV_NOTHING;
    if (q->scratch.len > 0) memcpy(kept, q->scratch.ptr, q->scratch.len);
    return lv_string(str_n(kept, q->scratch.len));
}

double lq_arg_number(const struct lv *args, size_t count, size_t i, double otherwise) {
    return i < count && args[i].kind != LV_UNDEFINED ? lv_to_number(args[i]) : otherwise;
}

size_t lq_clamp(double n, size_t max) {
    if (!(n > 0)) return 0;
    return n >= (double)max ? max : (size_t)n;
}

size_t lq_slice_index(double n, size_t length) {
    if (n < 0) n = ceil(n) + (double)length;
    return lq_clamp(n, length);
}

/* Where `part` is in `s` from `at` on; s.len if nowhere. */
static size_t find(str s, size_t at, str part) {
    if (part.len > s.len - at) return s.len;
    if (part.len == 0) return at;
    const char *found = memmem(s.ptr + at, s.len - at, part.ptr, part.len);
    return found == NULL ? s.len : (size_t)(found - s.ptr);
}

/* ---- upper and lower case ---- */

/* Latin, Greek, Cyrillic, Armenian: from the upper case, every `stride`th one, `delta` to the
 * lower. Other scripts stay as they are. */
static const struct case_range {
    uint32_t first, last, delta, stride;
} case_ranges[] = {
    {'A', 'Z', 32, 1},     {0xC0, 0xD6, 32, 1},    {0xD8, 0xDE, 32, 1},    {0x100, 0x12E, 1, 2},
    {0x132, 0x136, 1, 2},  {0x139, 0x147, 1, 2},   {0x14A, 0x176, 1, 2},   {0x179, 0x17D, 1, 2},
    {0x386, 0x386, 38, 1}, {0x388, 0x38A, 37, 1},  {0x38C, 0x38C, 64, 1},  {0x38E, 0x38F, 63, 1},
    {0x391, 0x3A1, 32, 1}, {0x3A3, 0x3AB, 32, 1},  {0x400, 0x40F, 80, 1},  {0x410, 0x42F, 32, 1},
    {0x460, 0x480, 1, 2},  {0x48A, 0x4BE, 1, 2},   {0x4C1, 0x4CD, 1, 2},   {0x4D0, 0x52E, 1, 2},
    {0x531, 0x556, 48, 1}, {0x1E00, 0x1E94, 1, 2}, {0x1EA0, 0x1EFE, 1, 2}, {0xFF21, 0xFF3A, 32, 1},
};

static uint32_t to_lower(uint32_t cp) {
    if (cp == 0x178) return 0xFF;
    for (size_t i = 0; i < COUNT_OF(case_ranges); i++) {
        const struct case_range *r = &case_ranges[i];
        if (cp < r->first) return cp;
        if (cp <= r->last) return (cp - r->first) % r->stride == 0 ? cp + r->delta : cp;
    }
    return cp;
}

static uint32_t to_upper(uint32_t cp) {
    if (cp == 0xFF) return 0x178;
    if (cp == 0xB5) return 0x39C;
    if (cp == 0x3C2) return 0x3A3; /* the sigma at the end of a word */
    if (cp == 0x131) return 'I';
    if (cp == 0x17F) return 'S';
    for (size_t i = 0; i < COUNT_OF(case_ranges); i++) {
        const struct case_range *r = &case_ranges[i];
        if (cp < r->first + r->delta || cp > r->last + r->delta) continue;
        if ((cp - r->delta - r->first) % r->stride == 0) return cp - r->delta;
    }
    return cp;
}

static void put_char(struct buf *out, uint32_t cp) {
    char utf8[4];
    buf_put(out, str_n(utf8, lq_encode(cp, utf8)));
}

static void put_lower(struct lq *q, str s) {
    uint32_t cp;
    if (!lq_work(q, s.len)) return;
    for (size_t i = 0; i < s.len;) {
        i += lq_decode(s, i, &cp);
        put_char(&q->scratch, to_lower(cp));
    }
}

static void put_upper(struct lq *q, str s) {
    uint32_t cp;
    if (!lq_work(q, s.len)) return;
    for (size_t i = 0; i < s.len;) {
        i += lq_decode(s, i, &cp);
        if (cp == 0xDF) {
            buf_put_c(&q->scratch, "SS"); /* the German sharp s has no capital of its own */
        } else {
            put_char(&q->scratch, to_upper(cp));
        }
    }
}

str lq_lower(struct lq *q, str s) {
    buf_clear(&q->scratch);
    put_lower(q, s);
    struct lv made = lq_take_scratch(q);
    return made.kind == LV_STRING ? made.text : STR("");
}

static struct lv f_downcase(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return lv_string(lq_lower(q, lv_to_text(q, v)));
}

static struct lv f_upcase(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    str s = lv_to_text(q, v);
    buf_clear(&q->scratch);
    put_upper(q, s);
    return lq_take_scratch(q);
}

static struct lv f_capitalize(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    str s = lv_to_text(q, v);
    uint32_t cp;
    size_t first = s.len > 0 ? lq_decode(s, 0, &cp) : 0;
    buf_clear(&q->scratch);
    put_upper(q, str_n(s.ptr, first));
    put_lower(q, str_from(s, first));
    return lq_take_scratch(q);
}

/* ---- joining, replacing ---- */

static struct lv joined(struct lq *q, str a, str b) {
    buf_clear(&q->scratch);
    buf_put(&q->scratch, a);
    buf_put(&q->scratch, b);
    return lq_take_scratch(q);
}

static struct lv f_append(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    str s = lv_to_text(q, v);
    return joined(q, s, lv_to_text(q, args[0]));
}

static struct lv f_prepend(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    str s = lv_to_text(q, v);
    return joined(q, lv_to_text(q, args[0]), s);
}

/* Between all characters, where JavaScript's split('') cuts. */
static void put_between(struct lq *q, str s, str with) {
    uint32_t cp;
    for (size_t i = 0; i < s.len && !q->scratch.full;) {
        size_t n = lq_decode(s, i, &cp);
        if (i > 0) buf_put(&q->scratch, with);
        buf_put(&q->scratch, str_n(s.ptr + i, n));
        i += n;
    }
}

static struct lv replace(struct lq *q, str s, str part, str with) {
    buf_clear(&q->scratch);
    if (!lq_work(q, s.len)) return LV_NOTHING;
    if (part.len == 0) {
        put_between(q, s, with);
        return lq_take_scratch(q);
    }
    for (size_t at = 0; !q->scratch.full;) {
        size_t hit = find(s, at, part);
        buf_put(&q->scratch, str_n(s.ptr + at, hit - at));
        if (hit == s.len) break;
        buf_put(&q->scratch, with);
        at = hit + part.len;
    }
    return lq_take_scratch(q);
}

static struct lv f_replace(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    str s = lv_to_text(q, v);
    str part = lv_to_text(q, args[0]);
    return replace(q, s, part, lv_to_text(q, args[1]));
}

static struct lv f_remove(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    str s = lv_to_text(q, v);
    return replace(q, s, lv_to_text(q, args[0]), STR(""));
}

static struct lv replace_at(struct lq *q, str s, size_t hit, size_t length, str with) {
    buf_clear(&q->scratch);
    buf_put(&q->scratch, str_n(s.ptr, hit));
    buf_put(&q->scratch, with);
    buf_put(&q->scratch, str_from(s, hit + length));
    return lq_take_scratch(q);
}

static struct lv f_replace_first(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    str s = lv_to_text(q, v);
    str part = lv_to_text(q, args[0]);
    str with = count > 1 ? lv_to_text(q, args[1]) : STR("");
    size_t hit = find(s, 0, part);
    if (!lq_work(q, s.len) || (hit == s.len && part.len > 0)) return lv_string(s);
    return replace_at(q, s, hit, part.len, with);
}

static struct lv f_replace_last(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    str s = lv_to_text(q, v);
    str part = lv_to_text(q, args[0]);
    str with = count > 1 ? lv_to_text(q, args[1]) : STR("");
    size_t hit = s.len;
    if (part.len == 0) return joined(q, s, with);
    if (!lq_work(q, s.len)) return LV_NOTHING;
    for (size_t at = 0; (at = find(s, at, part)) < s.len; at++)
        hit = at;
    return hit == s.len ? lv_string(s) : replace_at(q, s, hit, part.len, with);
}

/* ---- stripping ---- */

static bool in_set(str set, str one) {
    return set.len > 0 && one.len <= set.len && memmem(set.ptr, set.len, one.ptr, one.len) != NULL;
}

/* `set` empty: white space. */
static bool strips(str set, str s, size_t at, size_t n, uint32_t cp) {
    return set.len > 0 ? in_set(set, str_n(s.ptr + at, n)) : lq_is_space(cp);
}

static struct lv strip(struct lq *q, struct lv v, const struct lv *args, bool left, bool right) {
    str s = lv_to_text(q, v);
    str set = lv_is_given(args[0]) ? lv_to_text(q, args[0]) : STR("");
    uint32_t cp;
    size_t begin = 0;
    size_t end = s.len;
    while (left && begin < end && lq_work(q, 1 + set.len)) {
        size_t n = lq_decode(s, begin, &cp);
        if (!strips(set, s, begin, n, cp)) break;
        begin += n;
    }
    while (right && end > begin && lq_work(q, 1 + set.len)) {
        size_t n = lq_decode_back(s, end, &cp);
        if (!strips(set, s, end - n, n, cp)) break;
        end -= n;
    }
    return lv_string(str_n(s.ptr + begin, end - begin));
}

static struct lv f_strip(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    return strip(q, v, args, true, true);
}
static struct lv f_lstrip(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    return strip(q, v, args, true, false);
}
static struct lv f_rstrip(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    return strip(q, v, args, false, true);
}

static struct lv newlines_to(struct lq *q, struct lv v, str with) {
    str s = lv_to_text(q, v);
    buf_clear(&q->scratch);
    if (!lq_work(q, s.len)) return LV_NOTHING;
    for (size_t i = 0; i < s.len; i++) {
        bool pair = s.ptr[i] == '\r' && i + 1 < s.len && s.ptr[i + 1] == '\n';
        if (pair) i++;
        if (s.ptr[i] == '\n') {
            buf_put(&q->scratch, with);
        } else {
            buf_put_char(&q->scratch, s.ptr[i]);
        }
    }
    return lq_take_scratch(q);
}

static struct lv f_strip_newlines(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return newlines_to(q, v, STR(""));
}

static struct lv f_newline_to_br(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(args);
    UNUSED(count);
    return newlines_to(q, v, STR("<br />\n"));
}

/* Runs of white space become one blank; none at the ends. */
static struct lv f_squish(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    static const struct lv white[1] = {{.kind = LV_UNDEFINED}};
    UNUSED(args);
    UNUSED(count);
    str s = strip(q, v, white, true, true).text;
    uint32_t cp;
    bool space = false;
    buf_clear(&q->scratch);
    if (q->st != ST_OK || !lq_work(q, s.len)) return LV_NOTHING;
    for (size_t i = 0; i < s.len;) {
        size_t n = lq_decode(s, i, &cp);
        if (!lq_is_space(cp)) {
            buf_put(&q->scratch, str_n(s.ptr + i, n));
        } else if (!space) {
            buf_put_char(&q->scratch, ' ');
        }
        space = lq_is_space(cp);
        i += n;
    }
    return lq_take_scratch(q);
}

/* ---- cutting ---- */

static size_t count_chars(str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.ptr[i] & 0xC0) != 0x80;
    return n;
}

/* The offset behind `chars` characters from `at` on. */
static size_t advance(str s, size_t at, double chars) {
    uint32_t cp;
    for (double i = 0; i < chars && at < s.len; i++)
        at += lq_decode(s, at, &cp);
    return at;
}

static struct lv f_truncate(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    str s = lv_to_text(q, v);
    str dots = count > 1 && args[1].kind != LV_UNDEFINED ? lv_to_text(q, args[1]) : STR("...");
    double length = lq_arg_number(args, count, 0, 50);
    if (!lq_work(q, s.len) || advance(s, 0, length) >= s.len) return v;
    return joined(q, str_n(s.ptr, advance(s, 0, length - (double)count_chars(dots))), dots);
}

/* The end of the word at `at`, and behind the blanks that follow it. */
static size_t word_end(str s, size_t at, size_t *next) {
    uint32_t cp;
    size_t n;
    while (at < s.len && (n = lq_decode(s, at, &cp), !lq_is_space(cp)))
        at += n;
    for (*next = at; *next < s.len && (n = lq_decode(s, *next, &cp), lq_is_space(cp));)
        *next += n;
    return at;
}

static struct lv f_truncatewords(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    static const struct lv white[1] = {{.kind = LV_UNDEFINED}};
    str s = strip(q, v, white, true, false).text;
    str dots = count > 1 && args[1].kind != LV_UNDEFINED ? lv_to_text(q, args[1]) : STR("...");
    double words = lq_arg_number(args, count, 0, 15);
    if (q->st != ST_OK || !lq_work(q, s.len)) return LV_NOTHING;
    if (words <= 0) words = 1;
    buf_clear(&q->scratch);
    size_t seen = 0;
    bool more = true;
    for (size_t at = 0; more; seen++) { /* as split() does, with an empty word behind blanks */
        size_t next;
        size_t end = word_end(s, at, &next);
        if ((double)seen < floor(words)) {
            if (seen > 0) buf_put_char(&q->scratch, ' ');
            buf_put(&q->scratch, str_n(s.ptr + at, end - at));
        }
        more = next > end;
        at = next;
    }
    if ((double)seen >= words) buf_put(&q->scratch, dots);
    return lq_take_scratch(q);
}

/* How many pieces there are, and if `items` is given, which. */
static size_t split_pieces(str s, str by, struct lv *items) {
    uint32_t cp;
    size_t count = 0;
    if (by.len == 0) {
        for (size_t i = 0; i < s.len; count++) {
            size_t n = lq_decode(s, i, &cp);
            if (items != NULL) items[count] = lv_string(str_n(s.ptr + i, n));
            i += n;
        }
        return count;
    }
    size_t kept = 0; /* without the empty pieces at the end */
    for (size_t at = 0; at <= s.len; count++) {
        size_t hit = find(s, at, by);
        if (items != NULL) items[count] = lv_string(str_n(s.ptr + at, hit - at));
        if (hit > at) kept = count + 1;
        if (hit == s.len) break;
        at = hit + by.len;
    }
    return kept;
}

static struct lv f_split(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(count);
    str s = lv_to_text(q, v);
    str by = lv_to_text(q, args[0]);
    struct lv *items;
    if (!lq_work(q, 2 * s.len)) return LV_NOTHING;
    size_t pieces = split_pieces(s, by, NULL);
    size_t room = 1;
    for (size_t at = 0; by.len > 0 && (at = find(s, at, by)) < s.len; at += by.len)
        room++;
    if (room < pieces) room = pieces;
    struct lv made = lv_list_of(q, &items, room);
    if (made.kind != LV_LIST) return made;
    (void)split_pieces(s, by, items);
    struct lv_list *list = lq_memory(q, sizeof *list);
    if (list == NULL) return LV_NOTHING;
    *list = (struct lv_list){.items = items, .count = pieces};
    return (struct lv){.kind = LV_LIST, .list = list};
}

static struct lv f_slice(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    struct lv *items;
    if (lv_is_nil(v)) return lv_list_of(q, &items, 0);
    bool array = lv_is_array(v);
    str s = array ? STR("") : lv_to_text(q, v);
    if (!lq_work(q, 2 * s.len)) return LV_NOTHING;
    size_t total = array ? lv_count(v) : count_chars(s);
    double begin = lq_arg_number(args, count, 0, NAN);
    double length = lq_arg_number(args, count, 1, 1);
    if (begin < 0) begin += (double)total;
    if (begin < 0 || length < 0 || (array && isnan(begin))) length = 0;
    /* JavaScript rounds an index into an array down; characters of a text are counted up to it. */
    size_t from = lq_clamp(array ? begin : ceil(begin), total);
    size_t end = array ? lq_clamp(begin + length, total) : total;
    size_t n = array ? (end > from ? end - from : 0) : lq_clamp(ceil(length), total - from);
    if (!array) {
        size_t start = advance(s, 0, (double)from);
        return lv_string(str_n(s.ptr + start, advance(s, start, (double)n) - start));
    }
    const struct lv_list *list = lv_to_list(q, v);
    struct lv made = lv_list_of(q, &items, n);
    if (made.kind == LV_LIST && n > 0) memcpy(items, list->items + from, n * sizeof *items);
    return made;
}

/* ---- the rest ---- */

static struct lv f_default(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    if (v.kind == LV_EMPTY || v.kind == LV_BLANK) return args[0];
    if (v.kind == LV_STRING) return v.text.len > 0 ? v : args[0];
    if (lv_is_array(v)) return lv_count(v) > 0 ? v : args[0];
    bool allowed = v.kind == LV_BOOL && count > 1 && lv_truthy(args[1]);
    return lv_truthy(v) || allowed ? v : args[0];
}

static struct lv f_json(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    static const size_t indent_max = 10; /* JavaScript's own */
    if (v.kind == LV_UNDEFINED) return v;
    int indent = (int)lq_clamp(lq_arg_number(args, count, 0, 0), indent_max);
    buf_clear(&q->scratch);
    lv_print_json(q, v, indent, false, &q->scratch);
    return lq_take_scratch(q);
}

static const struct lq_filter text_filters[] = {
    {"append", 1, 1, f_append},
    {"capitalize", 0, 0, f_capitalize},
    {"date", 0, 1, lq_date},
    {"default", 1, 1, f_default},
    {"downcase", 0, 0, f_downcase},
    {"json", 0, 1, f_json},
    {"jsonify", 0, 1, f_json},
    {"lstrip", 0, 1, f_lstrip},
    {"newline_to_br", 0, 0, f_newline_to_br},
    {"prepend", 1, 1, f_prepend},
    {"remove", 1, 1, f_remove},
    {"remove_first", 1, 1, f_replace_first},
    {"remove_last", 1, 1, f_replace_last},
    {"replace", 1, 2, f_replace},
    {"replace_first", 1, 2, f_replace_first},
    {"replace_last", 1, 2, f_replace_last},
    {"rstrip", 0, 1, f_rstrip},
    {"slice", 1, 2, f_slice},
    {"split", 0, 1, f_split},
    {"squish", 0, 0, f_squish},
    {"strip", 0, 1, f_strip},
    {"strip_newlines", 0, 0, f_strip_newlines},
    {"truncate", 0, 2, f_truncate},
    {"truncatewords", 0, 2, f_truncatewords},
    {"upcase", 0, 0, f_upcase},
};

const struct lq_filter *lq_filter_find(str name) {
    const struct {
        const struct lq_filter *filters;
        size_t count;
    } tables[] = {{text_filters, COUNT_OF(text_filters)},
                  {lq_array_filters, lq_array_filter_count},
                  {lq_math_filters, lq_math_filter_count},
                  {lq_coding_filters, lq_coding_filter_count}};
    for (size_t t = 0; t < COUNT_OF(tables); t++) {
        for (size_t i = 0; i < tables[t].count; i++) {
            if (str_eq(name, str_c(tables[t].filters[i].name))) return &tables[t].filters[i];
        }
    }
    return NULL;
}
