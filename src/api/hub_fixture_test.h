/* api/hub_fixture_test.h: a hub with a server, readers and a ledger on a loop that is turned by
 * hand; and readers that check what they get. */
#pragma once

#include <pthread.h>

#include "api/hub_impl.h"
#include "base/arena.h"
#include "net/server_fixture_test.h"

struct hub_bed {
    struct server_fixture f; /* its own handler is not used */
    uv_async_t async; /* readers_deliver() */
    struct readers *readers;
    struct hub *hub;
    struct metrics *metrics;
    struct ledger *ledger; /* the writer */
    struct arena arena;
    int asked, ended;
    bool tell; /* appends are told to the hub */
    status refused;
    char reason[64];
};

/* The server answers GET /r/RUN and /t/TENANT, with ?after=N&once=1&nd=1&owner=NAME&version=N, with
 * streams. Without a ledger at first, or with one that this bed writes to. */
void hub_bed_open_empty(struct hub_bed *b, str url, bool other_writers,
                        const struct http_options *options);
void hub_bed_ledger(struct hub_bed *b, str url);
void hub_bed_open(struct hub_bed *b, str url);
void hub_bed_close(struct hub_bed *b);
int64_t hub_bed_metric(struct hub_bed *b, const char *name);
bool hub_bed_streams_are(struct hub_bed *b, size_t count); /* waits for it */

/* Events of tenant "acme", each call a commit; `step` and `payload` may be NULL. */
void hub_bed_put(struct hub_bed *b, const char *type, const char *run, const char *step,
                 const char *payload);
void hub_bed_put_fact(struct hub_bed *b, const char *run, int64_t occurrence);
/* The next `count` events of a run: steps that start, named from `first` on. */
void hub_bed_put_steps(struct hub_bed *b, const char *run, int first, int count, str payload);

struct hub_reader {
    struct peer peer;
    struct buf body;  /* without the chunks */
    size_t raw, seen; /* looked at: of peer.in, of body */
    int64_t last;     /* id or number of the last event */
    int events, comments;
    int code;             /* 0: no head yet */
    bool nd, whole, over; /* the last chunk came; `event: end` came */
};

/* It fails the test if an event is not the one after the last, or a frame is not as it should be.
 */
void hub_reader_open(struct hub_bed *b, struct hub_reader *r, const char *target, int64_t after);
void hub_reader_end(struct hub_reader *r);
void hub_reader_poll(struct hub_reader *r);
bool hub_reader_answered(struct hub_bed *b, struct hub_reader *r); /* waits for 200 */
bool hub_reader_has(const struct hub_reader *r, const char *text);
/* Turns the loop until every reader stands at `last`, or (last < 0) its stream is complete. */
bool hub_readers_at(struct hub_bed *b, struct hub_reader *r, size_t count, int64_t last);

/* A thread that appends steps while the loop turns, and tells the hub through it. */
struct hub_author {
    pthread_t thread;
    uv_async_t wake;
    struct hub_bed *bed;
    str run;
    int first, commits, each;
};
void hub_author_start(struct hub_author *a, struct hub_bed *b, const char *run, int first,
                      int commits, int each);
void hub_author_join(struct hub_author *a);
