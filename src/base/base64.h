/* base/base64.h: bytes as text that stands in URLs and tokens as it is: base64url without padding.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

void base64url_write(struct buf *out, const void *bytes, size_t n);
/* Strict: one text, one meaning. false: it is none, or memory is out. *out lives in the arena. */
bool base64url_read(str text, struct arena *arena, str *out);
