/* base/error.c: filling struct error. Texts that do not fit are cut between characters, never
 * inside a UTF-8 sequence, because messages end up in JSON. */
#include "base/error.h"

#include <stdarg.h>

/* `size` is the room for a text that needed `wanted` bytes; trims a sequence that was cut. */
static void cut_cleanly(char *text, size_t size, int wanted) {
    if (wanted < 0) {
        text[0] = '\0'; /* vsnprintf could not convert; an empty message is still a message */
        return;
    }
    if ((size_t)wanted < size) return;
    size_t len = size - 1;
    size_t start = len; /* of the last character */
    while (start > 0 && len - start < 4 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start > 0) start--;
    size_t bad;
    if (!str_utf8(str_n(text + start, len - start), &bad)) text[start] = '\0';
}

static void PRINTF_LIKE(5, 0) fill(struct error *err, status code, enum reason reason,
                                   const char *where, const char *fmt, va_list args) {
    ASSERT(err != NULL);
    ASSERT(code != ST_OK);
    struct error made = {.code = code, .reason = reason}; /* arguments may point into *err */
    cut_cleanly(made.msg, sizeof made.msg, vsnprintf(made.msg, sizeof made.msg, fmt, args));
    cut_cleanly(made.where, sizeof made.where,
                snprintf(made.where, sizeof made.where, "%s", where == NULL ? "" : where));
    *err = made;
}

status error_set(struct error *err, status code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fill(err, code, REASON_NONE, NULL, fmt, args);
    va_end(args);
    return code;
}

status error_at(struct error *err, enum reason reason, const char *where, const char *fmt, ...) {
    status code = reason_row(reason)->st;
    va_list args;
    va_start(args, fmt);
    fill(err, code, reason, where, fmt, args);
    va_end(args);
    return code;
}

status error_as(struct error *err, status code, enum reason reason, const char *where,
                const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fill(err, code, reason, where, fmt, args);
    va_end(args);
    return code;
}

status error_wrap(struct error *err, const char *fmt, ...) {
    ASSERT(err != NULL);
    ASSERT(err->code != ST_OK);
    char context[ERROR_MSG_MAX];
    va_list args;
    va_start(args, fmt);
    cut_cleanly(context, sizeof context, vsnprintf(context, sizeof context, fmt, args));
    va_end(args);
    char msg[ERROR_MSG_MAX];
    cut_cleanly(msg, sizeof msg, snprintf(msg, sizeof msg, "%s: %s", context, err->msg));
    memcpy(err->msg, msg, sizeof msg);
    return err->code;
}

const char *error_name(const struct error *err) {
    return reason_name(err->reason != REASON_NONE ? err->reason : reason_general(err->code));
}

void error_under(struct error *err, const char *pointer) {
    ASSERT(err != NULL);
    char where[ERROR_WHERE_MAX];
    cut_cleanly(where, sizeof where, snprintf(where, sizeof where, "%s%s", pointer, err->where));
    memcpy(err->where, where, sizeof where);
}

const char *status_name(status st) {
    switch (st) {
    case ST_OK:
        return "ok";
    case ST_INVALID:
        return "invalid";
    case ST_NOT_FOUND:
        return "not found";
    case ST_CONFLICT:
        return "conflict";
    case ST_LIMIT:
        return "limit";
    case ST_RETRY:
        return "retry";
    case ST_CORRUPT:
        return "corrupt";
    }
    panic(__FILE__, __LINE__, "a status is one of its names");
}
