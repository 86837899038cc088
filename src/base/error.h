/* base/error.h: how failure travels: by return value, with one struct that says what and where.
 *
 * `code` is for the program (as many as callers have reactions), `reason` is the stable code that
 * users see (FIELD_MISSING; base/reason.def has them all), `where` is a JSON pointer or a short
 * place name, `msg` is a sentence: lower case, no full stop, values quoted. */
#pragma once

#include "base/base.h"
#include "base/reason.h"
#include "base/status.h"
#include "base/str.h"

enum { ERROR_WHERE_MAX = 96, ERROR_MSG_MAX = 400 };

struct error {
    status code;
    enum reason reason; /* REASON_NONE if nothing better is known than `code` */
    char where[ERROR_WHERE_MAX];
    char msg[ERROR_MSG_MAX];
};

/* Fills *err (reason and where become empty) and returns `code`: a failure is one line. */
status error_set(struct error *err, status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As error_set, with the stable code and the place; the status is that of the reason's row. */
status error_at(struct error *err, enum reason reason, const char *where, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* As error_at, where this failure has another status than most of its reason. */
status error_as(struct error *err, status code, enum reason reason, const char *where,
                const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Says of a part what was said of it alone: "/sha256" becomes "/planRef/sha256". */
void error_under(struct error *err, const char *pointer);
/* Puts context in front of the message and keeps code, reason and where. Returns err->code. */
status error_wrap(struct error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The stable code of a failure: its reason, or the general one of its status. Never "". */
const char *error_name(const struct error *err);
