/* view/impl.h: how the tables of view/ are written down. */
#pragma once

#include "base/json_out.h"
#include "view/view.h"

/* A table defines OF as the struct it is about, undefines it at its end, and has one row a line. */
#define ROW(name, kind, field)                                                                     \
    { name, kind, false, offsetof(OF, field), 0, NULL, NULL }
#define ROW_IF(name, kind, field) /* left out when there is none */                                \
    { name, kind, true, offsetof(OF, field), 0, NULL, NULL }
#define ROW_WORD(name, words, field)                                                               \
    { name, MEMBER_WORD, false, offsetof(OF, field), 0, words, NULL }
#define ROW_OWN(name, write, read)                                                                 \
    {                                                                                              \
        name, MEMBER_OWN, false, 0, 0, NULL, &(const struct member_own) { write, read }            \
    }
#define ROW_OWN_IF(name, write, read)                                                              \
    {                                                                                              \
        name, MEMBER_OWN, true, 0, 0, NULL, &(const struct member_own) { write, read }             \
    }
#define NOUN(schema, rows, type)                                                                   \
    { schema, rows, COUNT_OF(rows), sizeof(type) }
