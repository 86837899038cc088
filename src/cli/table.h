/* cli/table.h: text tables for people. Cells are user data: control characters and those that
 * reorder text are shown as escapes, so that no stored value can talk to the terminal. Columns are
 * aligned by how wide a terminal shows the text. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

enum tone { TONE_PLAIN, TONE_GOOD, TONE_BAD, TONE_WARN, TONE_DIM, TONE_COUNT };
struct cell {
    str text;
    enum tone tone;
};
struct column {
    const char *name;
    bool right;    /* numbers */
    int width_max; /* longer cells are cut and end in an ellipsis; 0: never */
};

/* Appends `text` with everything that is not plain printable text escaped (\n, \x1b, \u202e), cut
 * to width_max columns if that is not 0. Bytes that are not UTF-8 become \xNN. Returns the columns
 * it takes on a terminal. */
int text_show(str text, int width_max, struct buf *out);

enum { TABLE_COLUMNS_MAX = 12, TABLE_ROWS_HELD = 256 };
struct table {
    const struct column *columns;
    size_t column_count;
    bool colour;
    bool header_done;
    int widths[TABLE_COLUMNS_MAX]; /* never shrink, so that later rows stay aligned */
    struct row *rows;              /* held until the widths are known */
    size_t row_count;
    struct arena arena; /* of the held rows */
};

void table_init(struct table *t, const struct column *columns, size_t count, bool colour);
void table_release(struct table *t);
/* Holds one row of as many cells as there are columns; copies their text. true: time to flush. */
bool table_row(struct table *t, const struct cell *cells);
/* Writes the rows held, with the header before the first ones. Without any row ever: nothing. */
void table_flush(struct table *t, struct buf *out);
