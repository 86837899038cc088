#include "cli/table.h"

enum {
    CELL_BYTES_MAX = 1536
}; /* of an escaped cell: the longest id, all escapes; the rest is cut */

struct row {
    str text[TABLE_COLUMNS_MAX];
    int width[TABLE_COLUMNS_MAX];
    enum tone tone[TABLE_COLUMNS_MAX];
};

/* ---- characters ---- */

struct range {
    uint32_t first, last;
};

static bool in_ranges(uint32_t c, const struct range *ranges, size_t n) {
    size_t low = 0;
    size_t high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c > ranges[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && c >= ranges[low].first;
}

/* Controls, and characters that reorder or hide the text around them. */
static bool is_hostile(uint32_t c) {
    static const struct range ranges[] = {
        {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x61c, 0x61c},   {0x200b, 0x200f},
        {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};
    return in_ranges(c, ranges, COUNT_OF(ranges));
}

/* 0 for combining marks, 2 for East Asian wide characters and emoji, else 1: what most terminals
 * do. */
static int width_of(uint32_t c) {
    static const struct range zero[] = {
        {0x300, 0x36f},   {0x483, 0x489},  {0x591, 0x5bd},   {0x610, 0x61a},   {0x64b, 0x65f},
        {0x6d6, 0x6dc},   {0x900, 0x902},  {0x93c, 0x93c},   {0x941, 0x948},   {0xe31, 0xe31},
        {0xe34, 0xe3a},   {0xe47, 0xe4e},  {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff}, {0x20d0, 0x20ff},
        {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};
    static const struct range wide[] = {{0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},
                                        {0x2e80, 0x303e},   {0x3041, 0x33ff},   {0x3400, 0x4dbf},
                                        {0x4e00, 0x9fff},   {0xa000, 0xa4cf},   {0xac00, 0xd7a3},
                                        {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},
                                        {0xffe0, 0xffe6},   {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff},
                                        {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
    if (c < 0x300) return 1;
    if (in_ranges(c, zero, COUNT_OF(zero))) return 0;
    return in_ranges(c, wide, COUNT_OF(wide)) ? 2 : 1;
}

/* Takes one character off *s; false for a byte that is not UTF-8, which is taken too and given in
 * *c. */
static bool take_char(str *s, uint32_t *c) {
    const unsigned char *p = (const unsigned char *)s->ptr;
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    size_t bad = 0;
    bool good = n <= s->len && str_utf8(str_n(s->ptr, n), &bad);
    *c = p[0];
    if (!good)
        n = 1;
    else if (n > 1) {
        *c = p[0] & (0xffU >> (n + 1));
        for (size_t i = 1; i < n; i++)
            *c = *c << 6 | (p[i] & 0x3f);
    }
    *s = str_from(*s, n);
    return good;
}

/* The escape of a character that must not reach the terminal. */
static void put_escape(uint32_t c, bool good, struct buf *out) {
    if (c == '\n')
        buf_put_c(out, "\\n");
    else if (c == '\t')
        buf_put_c(out, "\\t");
    else if (!good || c < 0x80)
        buf_printf(out, "\\x%02x", (unsigned)c);
    else if (c < 0x10000)
        buf_printf(out, "\\u%04x", (unsigned)c);
    else
        buf_printf(out, "\\U%06x", (unsigned)c);
}

int text_show(str text, int width_max, struct buf *out) {
    int width = 0;
    str rest = text;
    size_t fits_len = out->len; /* where to cut if one column is needed for the ellipsis */
    int fits_width = 0;
    while (rest.len > 0) {
        str before = rest;
        uint32_t c = 0;
        size_t start = out->len;
        bool good = take_char(&rest, &c);
        if (!good || is_hostile(c)) {
            put_escape(c, good, out);
            width += (int)(out->len - start);
        } else {
            buf_put(out, str_n(before.ptr, before.len - rest.len));
            width += width_of(c);
        }
        if (width_max == 0) continue;
        if (width > width_max) {
            out->len = fits_len;
            buf_put_c(out, "…");
            return fits_width + 1;
        }
        if (width < width_max) {
            fits_len = out->len;
            fits_width = width;
        }
    }
    return width;
}

/* ---- rows ---- */

#define ROW_BYTES_MAX (sizeof(struct row) + (size_t)TABLE_COLUMNS_MAX * CELL_BYTES_MAX)
#define TABLE_BYTES_MAX (TABLE_ROWS_HELD * ROW_BYTES_MAX + 65536)

void table_init(struct table *t, const struct column *columns, size_t count, bool colour) {
    ASSERT(count <= TABLE_COLUMNS_MAX);
    *t = (struct table){.columns = columns, .column_count = count, .colour = colour};
    arena_init(&t->arena, (size_t)64 * 1024, TABLE_BYTES_MAX);
    for (size_t i = 0; i < count; i++)
        t->widths[i] = (int)str_c(columns[i].name).len;
}

void table_release(struct table *t) { arena_release(&t->arena); }

bool table_row(struct table *t, const struct cell *cells) {
    if (!t->rows) t->rows = ARENA_ARRAY(&t->arena, struct row, TABLE_ROWS_HELD);
    ASSERT(t->row_count < TABLE_ROWS_HELD);
    struct row *row = &t->rows[t->row_count++];
    for (size_t i = 0; i < t->column_count; i++) {
        char mem[CELL_BYTES_MAX - 1];
        struct buf shown;
        buf_init_fixed(&shown, mem, sizeof(mem));
        row->width[i] = text_show(cells[i].text, t->columns[i].width_max, &shown);
        row->text[i] = arena_str(&t->arena, buf_str(&shown));
        row->tone[i] = cells[i].tone;
        if (row->width[i] > t->widths[i]) t->widths[i] = row->width[i];
    }
    return t->row_count == TABLE_ROWS_HELD;
}

static void put_blanks(struct buf *out, int n) {
    for (int i = 0; i < n; i++)
        buf_put_char(out, ' ');
}

static void put_cell(const struct table *t, size_t i, str text, int width, enum tone tone,
                     struct buf *out) {
    static const char *const codes[TONE_COUNT] = {"", "\033[32m", "\033[31m", "\033[33m",
                                                  "\033[2m"};
    bool last = i + 1 == t->column_count;
    int blanks = t->widths[i] - width;
    bool coloured = t->colour && tone != TONE_PLAIN && text.len > 0;
    if (t->columns[i].right) put_blanks(out, blanks);
    if (coloured) buf_put_c(out, codes[tone]);
    buf_put(out, text);
    if (coloured) buf_put_c(out, "\033[0m");
    if (!last) {
        put_blanks(out, (t->columns[i].right ? 0 : blanks) + 2);
        return;
    }
    while (out->len > 0 && out->ptr[out->len - 1] == ' ')
        out->len--; /* an empty last cell */
    buf_put_char(out, '\n');
}

void table_flush(struct table *t, struct buf *out) {
    if (t->row_count > 0 && !t->header_done) {
        for (size_t i = 0; i < t->column_count; i++) {
            str name = str_c(t->columns[i].name);
            put_cell(t, i, name, (int)name.len, TONE_DIM, out);
        }
        t->header_done = true;
    }
    for (size_t r = 0; r < t->row_count; r++) {
        const struct row *row = &t->rows[r];
        for (size_t i = 0; i < t->column_count; i++)
            put_cell(t, i, row->text[i], row->width[i], row->tone[i], out);
    }
    t->row_count = 0;
    t->rows = NULL;
    arena_reset(&t->arena);
}
