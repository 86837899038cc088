#include "cli/table.h"

#include "test.h"

TEST(table_text_is_made_harmless) {
    static const struct {
        str in;
        const char *out;
        int max;
        int width;
    } cases[] = {
        {STR_LIT("plain"), "plain", 0, 5},
        {STR_LIT("Größe"), "Größe", 0, 5},
        {STR_LIT("日本"), "日本", 0, 4},
        {STR_LIT("e\xcc\x81"), "e\xcc\x81", 0, 1}, /* a combining accent takes no room */
        {STR_LIT("a\nb\tc"), "a\\nb\\tc", 0, 7},
        {STR_LIT("\x1b[31m\x07\x7f"), "\\x1b[31m\\x07\\x7f", 0, 16},
        {STR_LIT("a\0b"), "a\\x00b", 0, 6},
        {STR_LIT("\xc2\x9b"), "\\u009b", 0, 6}, /* CSI as one character */
        /* right-to-left override. NOLINTNEXTLINE(misc-misleading-bidirectional): the point of it */
        {STR_LIT("\xe2\x80\xae"), "\\u202e", 0, 6},
        {STR_LIT("\xf3\xa0\x80\x81"), "\\U0e0001", 0, 8},
        {STR_LIT("a\xff\xc3"), "a\\xff\\xc3", 0, 9}, /* not UTF-8 */
        {STR_LIT("\xe2\x82"), "\\xe2\\x82", 0, 8},
        {STR_LIT("12345"), "12345", 5, 5},  /* just fits, */
        {STR_LIT("123456"), "1234…", 5, 5}, /* and not */
        {STR_LIT("日本語"), "日本…", 5, 5},
        {STR_LIT("日本語"), "日…", 4, 3},
        {STR_LIT("\x1b\x1b"), "\\x1b…", 5, 5}, /* an escape is not cut in two */
        {STR_LIT("a\x1b"), "a…", 4, 2},
        {STR_LIT(""), "", 5, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char mem[64];
        struct buf out;
        buf_init_fixed(&out, mem, sizeof(mem));
        int width = text_show(cases[i].in, cases[i].max, &out);
        CHECK(str_eq(buf_str(&out), str_c(cases[i].out)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&out)));
        CHECK(width == cases[i].width, "case %zu: %d", i, width);
    }
}

static const struct column columns[] = {{"NAME", false, 6}, {"N", true, 0}, {"NOTE", false, 0}};

static void fill(struct table *t, const char *name, const char *n, const char *note,
                 enum tone tone) {
    (void)table_row(
        t, (struct cell[]){{str_c(name), tone}, {str_c(n), TONE_PLAIN}, {str_c(note), TONE_PLAIN}});
}

TEST(table_columns_are_aligned) {
    struct table t;
    struct buf out;
    buf_init(&out, 4096);
    table_init(&t, columns, COUNT_OF(columns), false);
    table_flush(&t, &out);
    CHECK(out.len == 0); /* no rows, no header */
    fill(&t, "a", "1", "x", TONE_BAD);
    fill(&t, "Größe", "100", "", TONE_PLAIN);
    fill(&t, "much too long", "22", "y", TONE_PLAIN);
    table_flush(&t, &out);
    static const char want[] = "NAME      N  NOTE\n"
                               "a         1  x\n"
                               "Größe   100\n"
                               "much …   22  y\n";
    CHECK(str_eq(buf_str(&out), STR(want)), "%.*s", STR_ARG(buf_str(&out)));
    buf_clear(&out);
    fill(&t, "b", "2", "z", TONE_PLAIN); /* later rows stay aligned, without a second header */
    table_flush(&t, &out);
    CHECK(str_eq(buf_str(&out), STR("b         2  z\n")), "%.*s", STR_ARG(buf_str(&out)));
    table_release(&t);
    buf_release(&out);
}

TEST(table_colours_do_not_change_the_width) {
    struct table t;
    struct buf out;
    buf_init(&out, 4096);
    table_init(&t, columns, COUNT_OF(columns), true);
    fill(&t, "ab", "1", "x", TONE_BAD);
    fill(&t, "abcd", "1", "x", TONE_PLAIN);
    table_flush(&t, &out);
    str got = buf_str(&out);
    CHECK(str_ends(got, STR("\033[31mab\033[0m    1  x\nabcd  1  x\n")), "%.*s", STR_ARG(got));
    table_release(&t);
    buf_release(&out);
}

TEST(table_holds_a_bounded_number_of_rows) {
    struct table t;
    struct buf out;
    buf_init(&out, (size_t)1024 * 1024);
    table_init(&t, columns, COUNT_OF(columns), false);
    char wide[300];
    memset(wide, 0x1b, sizeof(wide)); /* the worst cell: an id of escapes */
    for (int i = 0; i < TABLE_ROWS_HELD; i++) {
        bool full = table_row(&t, (struct cell[]){{STR("n"), TONE_PLAIN},
                                                  {STR("1"), TONE_PLAIN},
                                                  {str_n(wide, 255), TONE_PLAIN}});
        CHECK(full == (i + 1 == TABLE_ROWS_HELD), "row %d", i);
    }
    table_flush(&t, &out);
    CHECK(!out.full && t.row_count == 0);
    table_release(&t);
    buf_release(&out);
}
