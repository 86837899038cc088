/* base/json.h: JSON at the door, through yyjson, with hard limits.
 *
 * A document is refused when it is too long, too deep, not UTF-8, repeats a key inside one object, or
 * holds U+0000 in any key or string. Numbers keep the text they were written with (yyjson's raw
 * numbers), so what is stored and given back is what was sent. Values live as long as the arena. */
#pragma once

#include <yyjson.h>

#include "base/arena.h"
#include "base/base.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/str.h"

struct json_limits { size_t bytes_max; int depth_max; };

/* Parses `text`, which must be one JSON value with optional blanks around it. Reasons on failure:
 * JSON_TOO_LARGE, JSON_SYNTAX, JSON_UTF8, JSON_SURROGATE (an escape like \ud800 without its other
 * half), JSON_NUL (U+0000, escaped or as a byte), JSON_DEPTH, JSON_DUPLICATE_KEY; `where` is a JSON
 * pointer for the last three (one that is too long ends in "..."; a raw NUL byte has none), else
 * "offset N". Too large and too deep are ST_LIMIT, the others ST_INVALID; ST_RETRY when memory is out.
 * *root lives in the arena, which holds what it held before when the text is refused. */
MUST_CHECK status json_parse(str text, struct json_limits limits, struct arena *arena,
                             yyjson_val **root, struct error *err);
/* As json_parse(), for text that people write: comments and a comma after the last element or member
 * are allowed. When the text is refused *bad_at is the offset of the mistake. */
MUST_CHECK status jsonc_parse(str text, struct json_limits limits, struct arena *arena,
                              yyjson_val **root, size_t *bad_at, struct error *err);
/* Appends the JSON pointer of `target`, which is `root` or a value or key inside it. */
void json_pointer(yyjson_val *root, const yyjson_val *target, struct buf *out);
/* Where the values are in a text that was accepted: the offset of the value (or key) that comes `skip`
 * values after the one that begins at or after `from`. Value v of root: json_offset(text, 0, v - root). */
size_t json_offset(str text, size_t from, size_t skip);
/* Writes a value compactly: no blanks, member order and number text kept. false when `out` is full. */
bool json_write(yyjson_val *val, struct buf *out);
/* Writes a value so that equal ones have equal bytes: as json_write(), with the members of objects in
 * byte order of their names, at any depth. The root's member `without`, if not NULL, is left out.
 * false: `out` is full, or `scratch`. */
bool json_write_sorted(yyjson_val *val, const char *without, struct arena *scratch,
                       struct buf *out);
/* json_write() into the arena; STR_NONE when memory is out. */
str json_text(yyjson_val *val, struct arena *arena);
/* A raw number (or yyjson number) that is a whole decimal int64; false on 1.0, 1e3, strings, overflow. */
bool json_int(yyjson_val *val, int64_t *out);
bool json_str(yyjson_val *val, str *out);                 /* false unless it is a string */
yyjson_val *json_member(yyjson_val *obj, const char *key); /* NULL if absent or not an object */
