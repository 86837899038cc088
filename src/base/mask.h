/* base/mask.h: secret values never get past this point.
 *
 * Every byte that is part of an occurrence of a secret value is taken out of a stream, and each
 * such stretch replaced by three stars: also when it arrives in pieces, also when two values
 * overlap. Each value has an automaton (Knuth-Morris-Pratt), so a byte costs the same whatever the
 * values are; a byte that may yet turn out to begin a secret is held back. */
#pragma once

#include <yyjson.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

enum {
    MASK_BYTES_MIN = 4, /* a shorter value would mask half of any text: it is not masked */
};

struct mask_pattern {
    str text;
    uint32_t *fall; /* fall[k]: the longest prefix that also ends the first k bytes, k in 1..len */
};
struct mask { /* the secret values of one attempt */
    struct arena *arena;
    struct mask_pattern *patterns;
    size_t count, cap, longest;
};
struct mask_stream {
    const struct mask *mask;
    struct mask_progress *progress; /* of each pattern */
    char *held;                     /* not decided yet */
    uint8_t *secret;                /* of each held byte: is it part of a secret? */
    size_t held_len;
    uint64_t taken; /* bytes fed so far: the position after the last held one */
    bool starred;   /* the last byte given out was part of a secret */
};

void mask_init(struct mask *mask, struct arena *arena);
/* Adds a value, as it is and as the usual writers of JSON escape it. false: memory is out. */
MUST_CHECK bool mask_add(struct mask *mask, str value);
/* A stream over a mask that gets no more values. Lives in the mask's arena. false: memory is out.
 */
MUST_CHECK bool mask_stream_init(struct mask_stream *stream, const struct mask *mask);
/* Appends to `out` what is certain by now; at the end of the stream, the rest. */
void mask_feed(struct mask_stream *stream, str bytes, struct buf *out);
void mask_end(struct mask_stream *stream, struct buf *out);
/* A whole text. false: memory is out, and `out` has nothing of it. */
MUST_CHECK bool mask_text(const struct mask *mask, str text, struct buf *out);
/* Writes a JSON value compactly with every string masked. */
bool json_write_masked(yyjson_val *val, const struct mask *mask, struct buf *out);
