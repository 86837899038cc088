/* base/buf.h: text under construction, with a maximum. Writing past it sets `full` and drops the
 * rest, so a caller checks once, at the end. */
#pragma once

#include "base/base.h"
#include "base/str.h"

struct buf {
    char *ptr;
    size_t len, cap, max;
    bool full;  /* something did not fit (or memory ran out) */
    bool fixed; /* the memory belongs to the caller: never grown, never freed */
};

void buf_init(struct buf *b, size_t max);                   /* grows from nothing up to `max` */
void buf_init_fixed(struct buf *b, char *mem, size_t size);
void buf_release(struct buf *b);
void buf_clear(struct buf *b);                              /* empties, keeps the memory, clears `full` */
void buf_put(struct buf *b, str s);
void buf_put_c(struct buf *b, const char *cstr);
void buf_put_char(struct buf *b, char c);
void buf_put_int(struct buf *b, int64_t n);
void buf_put_hex(struct buf *b, const void *bytes, size_t n); /* lower case */
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A JSON string with its quotes; control characters escaped, valid UTF-8 verbatim. */
void buf_put_json_str(struct buf *b, str s);
str buf_str(const struct buf *b);
