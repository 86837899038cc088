/* base/text.h: text of unknown make, such as what a program or a server wrote, put into JSON. */
#pragma once

#include "base/buf.h"
#include "base/str.h"

/* Appends `text` as a JSON string: bytes that are no UTF-8, and U+0000, become U+FFFD. false when
 * it had to be cut to keep the result within bytes_max. */
bool text_put_json(struct buf *out, str text, size_t bytes_max);
/* Without the pieces of a character at its start and its end that a cut left there. */
str text_uncut(str text, bool start, bool end);
