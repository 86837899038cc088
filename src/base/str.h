/* base/str.h: string views. A str borrows its bytes, need not end in NUL, and may hold any byte. */
#pragma once

#include "base/base.h"

typedef struct str {
    const char *ptr;
    size_t len;
} str;

#define STR_LIT(s) {(s), sizeof(s) - 1} /* in an initializer */
#define STR(s) ((str){(s), sizeof(s) - 1}) /* in an expression */
#define STR_NONE ((str){NULL, 0}) /* absent, which differs from empty */
#define STR_ARG(s) (int)(s).len, (s).ptr /* for "%.*s" */

str str_c(const char *cstr);               /* of a NUL-terminated string; NULL gives STR_NONE */
str str_n(const void *ptr, size_t len);
bool str_eq(str a, str b);
int str_cmp(str a, str b);                 /* byte order, shorter first; like memcmp */
bool str_starts(str s, str prefix);
bool str_ends(str s, str suffix);
bool str_has(str s, char c);
str str_from(str s, size_t offset);        /* the rest from `offset`, which may equal the length */
/* Splits at the first `sep`: *head before it, *rest after it. false and *head = s if there is none. */
bool str_split(str s, char sep, str *head, str *rest);
str str_trim(str s);                       /* without ASCII blanks at both ends */
/* Takes leading decimal digits off *s. Saturates at INT64_MAX. false if there is no digit. */
bool str_take_int(str *s, int64_t *out);
/* The whole string as a decimal int64, with optional '-'; false on anything else or overflow. */
bool str_to_int(str s, int64_t *out);
/* Valid UTF-8 (no surrogates, no overlong forms, at most U+10FFFF)? On false *bad is the offset. */
bool str_utf8(str s, size_t *bad);
uint64_t str_hash(str s, uint64_t seed);   /* fast, seeded; for maps, never stored */
