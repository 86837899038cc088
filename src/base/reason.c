/* base/reason.c: the table of reason.def, and looking things up in it. */
#include "base/reason.h"

static const struct reason_row rows[REASON_COUNT] = {
    [REASON_NONE] = {.name = ""},
#define REASON(name, status, http, exit, retryable, sentence, advice)                              \
    [REASON_##name] = {#name, ST_##status, http, exit, retryable, sentence, advice},
#include "base/reason.def"
#undef REASON
};

const struct reason_row *reason_row(enum reason reason) {
    ASSERT(reason > REASON_NONE && reason < REASON_COUNT);
    return &rows[reason];
}

const char *reason_name(enum reason reason) {
    ASSERT(reason < REASON_COUNT);
    return rows[reason].name;
}

enum reason reason_find(str name) {
    for (int i = REASON_NONE + 1; i < REASON_COUNT; i++) {
        if (str_eq(name, str_c(rows[i].name))) return (enum reason)i;
    }
    return REASON_NONE;
}

bool reason_is(enum reason reason, str code) { return str_eq(code, str_c(reason_name(reason))); }

enum reason reason_general(status st) {
    switch (st) {
    case ST_OK:
        break;
    case ST_INVALID:
        return REASON_INVALID;
    case ST_NOT_FOUND:
        return REASON_NOT_FOUND;
    case ST_CONFLICT:
        return REASON_CONFLICT;
    case ST_LIMIT:
        return REASON_LIMIT;
    case ST_RETRY:
        return REASON_TRY_AGAIN;
    case ST_CORRUPT:
        return REASON_DAMAGED;
    }
    return REASON_INTERNAL; /* ST_OK is no failure: who asks has a bug */
}

/* The row that speaks for a failure: the reason's own, if it is of this status. */
static const struct reason_row *row_for(enum reason reason, status st) {
    if (reason != REASON_NONE && rows[reason].st == st) return &rows[reason];
    return &rows[reason_general(st)];
}

int reason_http_status(enum reason reason, status st) { return row_for(reason, st)->http_status; }

int reason_exit_code(enum reason reason, status st) { return row_for(reason, st)->exit_code; }

bool reason_retryable(enum reason reason, status st) { return row_for(reason, st)->retryable; }
