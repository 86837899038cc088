#include "cli/out.h"

#include <errno.h>
#include <unistd.h>

enum { OUT_WRITE_BYTES = 64 * 1024 }; /* one write(2) */
/* The largest single value: the state of a run with STEPS_PER_RUN_MAX steps. */
#define OUT_BYTES_MAX ((size_t)1024 * 1024 * 1024)

void out_init(struct out *out, int fd) {
    *out = (struct out){.fd = fd};
    buf_init(&out->buf, OUT_BYTES_MAX);
}

void out_release(struct out *out) { buf_release(&out->buf); }

void out_flush(struct out *out) {
    size_t done = 0;
    if (out->buf.full && out->failed == 0) out->failed = ENOMEM;
    while (done < out->buf.len && out->failed == 0) {
        ssize_t n = write(out->fd, out->buf.ptr + done, out->buf.len - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            out->failed = errno;
    }
    buf_clear(&out->buf);
}

void out_more(struct out *out) {
    if (out->buf.len >= OUT_WRITE_BYTES || out->buf.full) out_flush(out);
}

status out_check(const struct out *out, struct error *err) {
    if (out->failed == 0) return ST_OK;
    char text[128];
    return error_at(err, REASON_OUTPUT_FAILED, "", "could not write standard output: %s",
                    strerror_r(out->failed, text, sizeof(text)));
}

void list_open(struct list *l, struct out *out, enum out_format format,
               const struct column *columns, size_t column_count, bool colour) {
    *l = (struct list){.out = out, .format = format};
    table_init(&l->table, columns, column_count, colour);
}

bool list_is_table(const struct list *l) { return l->format == OUT_TABLE; }

void list_row(struct list *l, const struct cell *cells) {
    ASSERT(l->format == OUT_TABLE);
    l->count++;
    if (table_row(&l->table, cells)) list_flush(l);
}

struct buf *list_json(struct list *l) {
    ASSERT(l->format != OUT_TABLE);
    if (l->format == OUT_JSON) buf_put_c(&l->out->buf, l->count == 0 ? "[" : ",\n");
    l->count++;
    return &l->out->buf;
}

void list_json_end(struct list *l) {
    if (l->format == OUT_NDJSON) buf_put_char(&l->out->buf, '\n');
    out_more(l->out);
}

void list_flush(struct list *l) {
    if (l->format == OUT_TABLE) table_flush(&l->table, &l->out->buf);
    out_flush(l->out);
}

void list_close(struct list *l) {
    if (l->format == OUT_TABLE) table_flush(&l->table, &l->out->buf);
    if (l->format == OUT_JSON) buf_put_c(&l->out->buf, l->count == 0 ? "[]\n" : "]\n");
    table_release(&l->table);
    out_more(l->out);
}
