/* adapters/local/output.h: what a step wrote, on its way to the log file and to its output.
 *
 * A capture takes one stream: masked first of all, so that no secret gets any further, then written
 * to the log file (bounded), and kept: the beginning (stdout) or the end (stderr). */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/mask.h"
#include "base/str.h"
#include "base/text.h"

struct capture {
    struct mask_stream stream;
    struct buf kept; /* its `max` is what is kept */
    bool keeps_end;  /* the last bytes instead of the first */
    bool dropped;    /* some of them are gone */
    uint64_t bytes;  /* of the stream so far, masked */
    const char *log_path;
    uint64_t log_len, log_max;
    bool log_opened, log_over; /* over: it is cut, or cannot be written */
};

/* All borrowed. keep_max 0 keeps nothing. false: memory is out. */
MUST_CHECK bool capture_init(struct capture *c, const struct mask *mask, const char *log_path,
                             uint64_t log_max, size_t keep_max, bool keeps_end);
/* `room` is any buffer with a large maximum; it is cleared. */
void capture_feed(struct capture *c, str bytes, struct buf *room);
void capture_end(struct capture *c, struct buf *room); /* the stream is over */
void capture_release(struct capture *c);
