/* base/time.h: clocks and RFC 3339 in UTC. Instants are int64 nanoseconds (producer time, verbatim digits) or
 * microseconds (store time) since 1970. Only the shells read a clock; core gets time as an argument. */
#pragma once

#include "base/base.h"
#include "base/str.h"

int64_t clock_wall_us(void);
int64_t clock_mono_ns(void);

enum { TIME_TEXT_MAX = 31 };
/* Strict RFC 3339 in UTC: "2026-02-16T08:00:00Z", with 0 to 9 fraction digits. Upper-case T and Z, no
 * offset, real calendar date, no leap second (it has no instant), years 1970 to 2261.
 * *digits tells how many fraction digits there were, so that the text can be given back verbatim. */
bool time_parse_utc(str text, int64_t *ns, int *digits);
/* The inverse; returns the length. `out` has TIME_TEXT_MAX bytes; no NUL. */
size_t time_format_ns(int64_t ns, int digits, char *out);
/* Store time: always 6 digits, "2026-02-16T08:00:00.123456Z". */
size_t time_format_us(int64_t us, char *out);
