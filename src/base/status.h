/* base/status.h: how a call ended, for the program: as many values as callers have reactions. */
#pragma once

typedef enum status {
    ST_OK = 0,
    ST_INVALID,   /* the caller's input is wrong; the same call can never work */
    ST_NOT_FOUND, /* the named thing does not exist */
    ST_CONFLICT,  /* expected version or state does not match */
    ST_LIMIT,     /* a bound was reached; the message names it */
    ST_RETRY,     /* busy, timeout, lost connection, no memory: the same call may work later */
    ST_CORRUPT,   /* stored bytes are not what we wrote: tell the operator */
} status;
enum { STATUS_COUNT = ST_CORRUPT + 1 };

/* The name of a status: "invalid", "not found", ... */
const char *status_name(status st);
