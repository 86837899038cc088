/* core/url_guard.h: which addresses Cairn may talk to on somebody else's behalf. Pure.
 *
 * Plans, http steps and webhooks name URLs that a user wrote. The guard refuses, before anything is
 * resolved or fetched, every scheme and location that is not allowed; and again, with
 * guard_address(), the address that a socket is about to connect to, so that a name which resolves
 * to the inside, and spellings of an IP address that parsers disagree on, gain nothing. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"

enum { URL_BYTES_MAX = 8192 }; /* a presigned URL has a few thousand; servers refuse more */

struct url { /* views into the text */
    str scheme; /* lower case, in the arena */
    str host;   /* lower case, in the arena; without [] for IPv6; addresses in usual spelling */
    int port;   /* the scheme's, if none was written */
    str path;   /* from the first '/', with query; "" if there is none */
    bool has_user; /* user[:password]@ was written */
    bool exact;    /* set by guard_url() alone: a rule that lets it pass names the host exactly */
};
/* Strict: ASCII, no blanks, no control characters, no backslash, one '@' at most before the path,
 * no fragment, no percent signs or empty labels (so no trailing dot) in the host. ST_INVALID with
 * URL_INVALID; ST_LIMIT over URL_BYTES_MAX. */
MUST_CHECK status url_parse(str text, struct arena *arena, struct url *out, struct error *err);

struct guard_rule { /* one allowed location */
    str scheme; /* "https", "http", "s3", "gs", "azure" */
    str host;   /* exact; "*.example.com": any name below; "*": any public host */
    int port;   /* 0: the scheme's default only */
    str prefix; /* the path must begin with it, at a '/'; STR_NONE: any. Bucket = host for s3, gs */
};
struct guard {
    const struct guard_rule *rules;
    size_t rule_count;
    bool allow_private; /* loopback and private networks may be connected to by a rule that names the
                           host exactly; link-local and metadata addresses never */
};
/* "https://plans.example.com/team", "http://127.0.0.1:8080", "s3://bucket": one rule of a
 * configuration. `file`, `ftp`, `gopher` and other schemes are refused here already. */
MUST_CHECK status guard_rule_parse(str text, struct arena *arena, struct guard_rule *out,
                                   struct error *err);
/* May `text` be fetched? Reason URL_NOT_ALLOWED (URL_INVALID if it is no URL); the message says
 * which part. No look-ups. Literal addresses in any spelling (decimal, octal, hex, short, mapped)
 * are judged by their number. */
MUST_CHECK status guard_url(const struct guard *guard, str text, struct arena *arena,
                            struct url *out, struct error *err);
/* May a socket connect to this address (4 bytes or 16, network order)? `exact` says that the rule
 * which let the URL pass names its host exactly: url.exact as guard_url() set it. */
bool guard_address(const struct guard *guard, bool exact, const uint8_t *address, size_t len);
