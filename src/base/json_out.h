/* base/json_out.h: JSON, written. The other direction is base/json.h.
 *
 * Begin an object or an array, append members or elements, end it:
 *
 *     json_object_begin(out);
 *     json_put_text(out, "runId", id);
 *     json_name(out, "tags");
 *     json_array_begin(out);
 *     json_add_text(out, STR("a"));
 *     json_array_end(out);
 *     json_object_end(out);                        {"runId":"r1","tags":["a"]}
 *
 * There is no state but the text itself, so a function that writes a few members needs only the
 * buffer. Two rules hold everywhere:
 *
 * Commas. A member, an element and a new object or array is preceded by a comma when the byte
 * before it ends a value. After '{', '[', ':', the line feed of NDJSON or in an empty buffer there
 * is none. So a buffer that is flushed between two elements needs its comma written by hand.
 *
 * Absence. STR_NONE and the time 0 are null; the functions that end in _if write nothing at all for
 * them, nor for the number 0. "" is a text like any other.
 *
 * Names are written as they are: ASCII without quotes or backslashes. */
#pragma once

#include "base/base.h"
#include "base/buf.h"
#include "base/str.h"
#include "base/uuid.h"

void json_object_begin(struct buf *out);
void json_object_end(struct buf *out);
void json_array_begin(struct buf *out);
void json_array_end(struct buf *out);

/* "name": the value comes next, from json_object_begin(), json_array_begin(), json_add_...(),
 * json_write() or a function that writes an object of its own. */
void json_name(struct buf *out, const char *name);
/* The comma that the next value needs, if any: for values that are put by other means. */
void json_next(struct buf *out);

/* ---- members ---- */

void json_put_text(struct buf *out, const char *name, str value);
void json_put_text_if(struct buf *out, const char *name, str value);
void json_put_int(struct buf *out, const char *name, int64_t value);
void json_put_int_if(struct buf *out, const char *name, int64_t value);
void json_put_bool(struct buf *out, const char *name, bool value);
void json_put_time(struct buf *out, const char *name, int64_t us); /* RFC 3339, UTC, microseconds */
void json_put_time_if(struct buf *out, const char *name, int64_t us);
void json_put_uuid(struct buf *out, const char *name, uuid value);
/* `json` is a JSON text, put as it is without blanks at its end; an empty one is null. */
void json_put_json(struct buf *out, const char *name, str json);
void json_put_json_if(struct buf *out, const char *name, str json);

/* ---- elements, and values after a name ---- */

void json_add_text(struct buf *out, str value);
void json_add_int(struct buf *out, int64_t value);
void json_add_json(struct buf *out, str json);
