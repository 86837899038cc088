/* base/reason.h: the stable codes that users see (FIELD_MISSING), as data.
 *
 * reason.def has one row for each; the enum, HTTP problems, exit codes and docs/errors.md are made
 * from it. The program compares the enum; the name is for whoever reads it. Codes that users define
 * (of a worker's failure, say) are data of their runs and not reasons. */
#pragma once

#include "base/base.h"
#include "base/status.h"
#include "base/str.h"

enum reason {
    REASON_NONE = 0, /* nothing better is known than the status */
#define REASON(name, status, http, exit, retryable, sentence, advice) REASON_##name,
#include "base/reason.def"
#undef REASON
    REASON_COUNT,
};

struct reason_row {
    const char *name;
    status st;       /* ST_OK: a code of runs, which never travels as an error */
    int http_status; /* this and the next are of a failure with the status `st` */
    int exit_code;
    bool retryable; /* the same call may work later */
    const char *sentence, *advice;
};

/* The row of a reason other than REASON_NONE. */
const struct reason_row *reason_row(enum reason reason);
/* Its name; "" for REASON_NONE. */
const char *reason_name(enum reason reason);
/* The reason with this name, or REASON_NONE: a newer server may know others. */
enum reason reason_find(str name);
/* Whether a code that is data of a run, perhaps somebody else's, is the name of this reason. */
bool reason_is(enum reason reason, str code);
/* The code of a failure about which nothing better is known: INVALID, NOT_FOUND, ... */
enum reason reason_general(status st);
/* HTTP status, exit code and whether to try again, of a failure with this status and reason. Where
 * the row has another status, they are those of the status. */
int reason_http_status(enum reason reason, status st);
int reason_exit_code(enum reason reason, status st);
bool reason_retryable(enum reason reason, status st);
