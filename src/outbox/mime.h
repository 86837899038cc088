/* outbox/mime.h: the text of a mail (RFC 5322, 2045 to 2047). Pure.
 *
 * What goes into a header has no control characters: mime_address() and mime_is_header() say so of
 * each value before it is put. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

struct mime_address {
    str name;    /* shown; STR_NONE */
    str address; /* a@example.com */
    str domain;  /* of the address */
};
/* "a@example.com" or "Name <a@example.com>". The address is ASCII, without comments or quotes.
 * false: it is none (or memory is out, for a name with quotes). The name may live in the arena. */
MUST_CHECK bool mime_address(str text, struct arena *arena, struct mime_address *out);
/* May it stand in a header? UTF-8 without control characters, at most MIME_HEADER_MAX bytes. */
bool mime_is_header(str value);
enum { MIME_HEADER_MAX = 2000 };

/* "NAME: value" with its line end. Text that is not plain is written as encoded words. */
void mime_put_text(struct buf *out, const char *name, str value);
void mime_put_addresses(struct buf *out, const char *name, const struct mime_address *list,
                        size_t count);
void mime_put_date(struct buf *out, int64_t unix_s); /* "Date: ..." */
/* A part: its Content-Type (UTF-8) and -Transfer-Encoding, an empty line, and the text as
 * quoted-printable. Any line end becomes CRLF. */
void mime_put_part(struct buf *out, const char *type, str text);
