/* api/hub.h: live streams: what is committed, to everybody who follows it.
 *
 * A topic is a run (by runSeq) or a tenant (by sequence_number). Whoever follows the newest events
 * of a topic shares one read and one rendering of them; a reader that is behind is brought up page
 * by page from the ledger. A reader that takes nothing is not written to: it falls behind, holds
 * little memory, and is ended by the server when it stalls too long.
 * Threads: the loop's. */
#pragma once

#include <uv.h>

#include "base/metrics.h"
#include "ledger/readers.h"
#include "net/server.h"

enum {
    HUB_STREAMS_MAX = 20000,
    HUB_UNSENT_MAX = 64 * 1024, /* a reader with more than this waiting is not written to */
    HUB_KEEPALIVE_MS = 15000,
    HUB_POLL_MS = 250, /* looks for events of other processes, where there may be any */
    HUB_PAGE = 200,
    HUB_HEADERS_MAX = 32,   /* of hub_request.headers */
    HUB_RECHECK_MS = 15000, /* looks whether keys of open streams were changed, as often */
};
#define HUB_RECENT_BYTES_MAX                                                                       \
    ((size_t)256 * 1024) /* rendered events kept for those a little behind */

enum hub_format { HUB_SSE, HUB_NDJSON };

struct hub;
struct hub_request {
    enum hub_format format;
    bool tenant_feed; /* else a run */
    str tenant_id;
    str run_id;                        /* of a run */
    int64_t after;                     /* position: events with a greater one */
    bool follow;                       /* false: ends at what is there now */
    str owner;                         /* who reads: see hub_owner_changed(); may be STR_NONE */
    int64_t owner_version;             /* of the API key "key:ID" that is the owner; the mark of the
                                          key that signed the token of "jwt:NAME"; else 0 */
    int64_t expires_us;                /* then it ends: who reads may not any more; 0: never */
    const struct http_header *headers; /* to be sent besides content type and cache control */
    size_t header_count;
    void (*ended)(void *context); /* the exchange was given up: called once, from the loop, never
                                     inside hub_stream() */
    void *context;
};

MUST_CHECK status hub_open(uv_loop_t *loop, struct readers *readers, bool other_writers,
                           struct metrics *metrics, struct hub **out, struct error *err);
/* Answers the exchange with a stream. The caller has checked that the topic exists and may be read.
 * ST_LIMIT with STREAMS_TOO_MANY: the exchange is still the caller's. The request's strings are
 * copied. A run that has ended, with nothing after `after`: SSE is answered with 204. */
MUST_CHECK status hub_stream(struct hub *hub, struct http_exchange *exchange,
                             const struct hub_request *request, struct error *err);
/* Something of this run was committed. */
void hub_committed(struct hub *hub, str tenant_id, str run_id);
/* What this owner may do has changed: ends their streams where they stand. Who may still read comes
 * again. Where there are other writers the hub finds out by itself what they changed of API keys:
 * see hub_owner.c. */
void hub_owner_changed(struct hub *hub, str owner);
/* Who knows whether tokens that the key with this mark signed are still good. Asked about the
 * owners "jwt:NAME" of open streams, now and then: see hub_owner.c. */
typedef bool (*hub_signs)(void *context, int64_t mark);
void hub_ask_of_tokens(struct hub *hub, hub_signs signs, void *context);
/* Those keys have changed: ends the streams whose token is not good any more, where they stand. */
void hub_tokens_changed(struct hub *hub);
size_t hub_streams(const struct hub *hub);
/* Ends every stream where it stands: readers come again with Last-Event-ID. */
void hub_drain(struct hub *hub);
/* After hub_drain() and the readers' end. The loop must run afterwards. NULL is fine. */
void hub_close(struct hub *hub);
