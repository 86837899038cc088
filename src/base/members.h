/* base/members.h: a struct as a JSON object and back, by a table.
 *
 * Each row is one member: its name, what it is, and where it stands in the struct. The order of the
 * rows is the order of the members. The same table writes and reads, so that a struct that was
 * written and read back shows the same text again, and a new member is one row.
 *
 * Reading is lenient on purpose: the text comes from a server that may be newer than we are. What
 * is absent, null or of another type leaves its field as it was (the caller zeroes the struct
 * first; an absent span is -1, an absent word the unknown one), and members that no row names are
 * passed over. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"

enum member_kind {
    MEMBER_TEXT,  /* str; none: STR_NONE */
    MEMBER_CHARS, /* an array of `room` bytes that ends in NUL; none: empty */
    MEMBER_INT,   /* int64_t; none (if optional): 0 */
    MEMBER_SPAN,  /* int64_t from 0; none: below 0, and then always left out */
    MEMBER_BOOL,  /* bool; none (if optional): false */
    MEMBER_TIME,  /* int64_t microseconds; none: 0 */
    MEMBER_UUID,  /* uuid */
    MEMBER_JSON,  /* str: the text of a JSON value; none: STR_NONE */
    MEMBER_WORD,  /* an enum, by its names; none: a value without one */
    MEMBER_OWN,   /* whatever its two functions make of it */
};

struct member_words {
    int first, end;                 /* a name is looked for in first <= value < end */
    int unknown;                    /* what a name is that is not there */
    const char *(*name)(int value); /* of 0 <= value < end; NULL: it has none */
};
struct member_own {
    /* Writes "name":value, or nothing. */
    void (*write)(const void *object, const char *name, struct buf *out);
    /* Takes a value that is there. Rows are read in order. NULL: nothing is kept of it. */
    void (*read)(yyjson_val *value, struct arena *arena, void *object);
};
struct member_row {
    const char *name;
    enum member_kind kind;
    bool optional; /* left out when there is none; otherwise null (numbers and booleans: as they
                      are) */
    size_t offset; /* in the struct */
    size_t room;   /* MEMBER_CHARS */
    const struct member_words *words; /* MEMBER_WORD */
    const struct member_own *own;     /* MEMBER_OWN */
};

/* Appends the members, without braces, so that others may stand before and after them. */
void members_write(const struct member_row *rows, size_t count, const void *object,
                   struct buf *out);
/* Texts live as long as `from`, those of JSON values as long as the arena. */
void members_read(const struct member_row *rows, size_t count, yyjson_val *from,
                  struct arena *arena, void *object);

/* RFC 3339 text as microseconds; 0 if it is none. */
int64_t member_time_us(yyjson_val *value);
