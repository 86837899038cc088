/* net/mail.h: mails to an SMTP server, for a libuv loop.
 *
 * One mail, one connection, one transaction: the server takes it for all recipients or for none.
 * Only smtp and smtps; with smtp the server must offer STARTTLS, unless `plain` is set;
 * certificates are always verified. Everything is bounded: the time, the mails under way, what is
 * kept of a reply.
 *
 * Reasons of failure: SMTP_TIMEOUT and SMTP_FAILED (ST_RETRY), SMTP_REJECTED (ST_INVALID: the
 * server answered 5xx), SMTP_REQUEST_INVALID (ST_INVALID). The message holds the server's reply,
 * which may repeat what it was told, and need not be UTF-8. Threads: a struct mailer belongs to its
 * loop's thread. */
#pragma once

#include <uv.h>

#include "base/error.h"
#include "base/str.h"

enum {
    MAILS_MAX = 256,           /* under way at once on one mailer, then ST_LIMIT */
    MAIL_THREADS_MAX = 16,     /* of those; the others wait for their turn */
    MAIL_RECIPIENTS_MAX = 100, /* what every server must take (RFC 5321, 4.5.3.1.8) */
    MAIL_ADDRESS_MAX = 254,    /* bytes, likewise */
    MAIL_URL_MAX = 1024,
    MAIL_TIMEOUT_MS = 60000, /* of a mail that names none */
    MAIL_CONNECT_TIMEOUT_MS = 10000,
};

struct mail {
    str url;            /* smtp://host:port or smtps://host:port */
    bool plain;         /* a server without STARTTLS is fine */
    str user, password; /* STR_NONE: without */
    str from;           /* an address, such as a@example.com, and nothing else */
    const str *to;
    size_t to_count;
    str message;        /* headers and body; lines end in CRLF and have at most 998 bytes */
    str ca_file;        /* certificates to trust; STR_NONE: the system's */
    int64_t timeout_ms; /* of it all, the wait for its turn included; 0: MAIL_TIMEOUT_MS */
};

struct mailer;
struct mail_call; /* a mail under way */

/* The caller owns *out and ends it with mailer_close(). `loop` is borrowed. */
MUST_CHECK status mailer_open(uv_loop_t *loop, struct mailer **out, struct error *err);
/* The one answer, on the loop: ST_OK, or `err` is set, borrowed until it returns; the call is gone
 * by then. It may send and cancel others. */
typedef void (*mail_done)(void *context, status st, const struct error *err);
/* Begins to send; all of the mail is copied. `done` is never called before this returns. ST_LIMIT
 * with SMTP_FAILED when MAILS_MAX are under way. */
MUST_CHECK status mailer_send(struct mailer *mailer, const struct mail *mail, mail_done done,
                              void *context, struct mail_call **out, struct error *err);
/* Ends it: `done` will not be called. The connection is closed within a second or so; the mail may
 * have been taken. */
void mailer_cancel(struct mail_call *call);
/* Cancels what is under way. The last memory is freed by the loop, which must run until its handles
 * are closed. Not from inside `done`. NULL is fine. */
void mailer_close(struct mailer *mailer);
