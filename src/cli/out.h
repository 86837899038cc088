/* cli/out.h: standard output. Bytes are gathered and written in large pieces; a failure is
 * remembered and told once, at the end. A list is the same things as a table, as one JSON array, or
 * as one JSON object a line. */
#pragma once

#include "base/buf.h"
#include "base/error.h"
#include "cli/table.h"

enum out_format { OUT_TABLE, OUT_JSON, OUT_NDJSON };

struct out {
    int fd;
    struct buf buf; /* write here, then call out_more() or out_flush() */
    int failed;     /* errno of the first failed write, or 0 */
};
void out_init(struct out *out, int fd);
void out_release(struct out *out);
void out_more(struct out *out);  /* writes if much has gathered */
void out_flush(struct out *out); /* writes what there is */
MUST_CHECK status out_check(const struct out *out,
                            struct error *err); /* ST_RETRY if a write has failed */

struct list {
    struct out *out;
    enum out_format format;
    struct table table;
    int64_t count;
};
void list_open(struct list *l, struct out *out, enum out_format format,
               const struct column *columns, size_t column_count, bool colour);
/* One thing of the list. In a table: list_row(). Otherwise: list_json(), one JSON value into its
 * buf, list_json_end(). */
bool list_is_table(const struct list *l);
void list_row(struct list *l, const struct cell *cells);
struct buf *list_json(struct list *l);
void list_json_end(struct list *l);
void list_flush(struct list *l); /* what there is so far goes out now */
void list_close(struct list *l);
