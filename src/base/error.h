/* base/error.h: how failure travels. By return value, with one struct that says what, where and why.
 *
 * `code` is for the program (as many codes as callers have reactions), `reason` is the stable
 * machine-readable code that users see (FIELD_MISSING), `where` is a JSON pointer or a short place
 * name, `msg` is a sentence: lower case, no full stop, values quoted. */
#pragma once

#include "base/base.h"
#include "base/str.h"

typedef enum status {
    ST_OK = 0,
    ST_INVALID,   /* the caller's input is wrong; the same call can never work */
    ST_NOT_FOUND, /* the named thing does not exist */
    ST_CONFLICT,  /* expected version or state does not match */
    ST_LIMIT,     /* a bound was reached; the message names it */
    ST_RETRY,     /* busy, timeout, lost connection, no memory: the same call may work later */
    ST_CORRUPT,   /* stored bytes are not what we wrote: tell the operator */
} status;

/* The reason of every error that is about an option or a setting of the program itself. */
extern const char USAGE_ERROR[];

enum { ERROR_WHERE_MAX = 96, ERROR_MSG_MAX = 400 };

struct error {
    status code;
    const char *reason; /* static storage: a stable code such as "FIELD_MISSING"; NULL if none */
    char where[ERROR_WHERE_MAX];
    char msg[ERROR_MSG_MAX];
};

/* Fills *err (reason and where become empty) and returns `code`: a failure is one line. */
status error_set(struct error *err, status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As error_set, with the stable code and the place. `reason` must have static storage. */
status error_at(struct error *err, status code, const char *reason, const char *where,
                const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Puts context in front of the message and keeps code, reason and where. Returns err->code. */
status error_wrap(struct error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The name of a status: "invalid", "not found", ... */
const char *status_name(status st);
