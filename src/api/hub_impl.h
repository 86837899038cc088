/* api/hub_impl.h: what the files of the hub share. For api/hub*.c only.
 *
 * Two numbers say where a reader stands: its position, which the client knows (runSeq in a run,
 * sequence_number in a tenant), and the sequence_number behind which the ledger is read on; in a
 * run the two differ, and facts have no position: they are read and passed over.
 *
 * A topic's head is how far it has been read. What was read last is kept in blocks, without gaps
 * from `recent_after` to the head. A reader at or behind `recent_after` is served from there; one
 * further back is read for on its own until it gets there. Everything is compared by position, so
 * nothing is skipped or given twice, whoever reads and in whatever order answers come.
 *
 * A commit is never missed: hub_committed() marks the topic, and a mark that comes while a read is
 * under way causes another one. A commit before the topic existed is seen by the topic's first
 * read, which begins later. Each new reader marks its topic, too, and is told that a run is over,
 * or that it has seen all that was there, only after a read that began after it came. */
#pragma once

#include "api/hub.h"
#include "base/map.h"
#include "core/run.h"

enum {
    HUB_READS_MAX = 8,    /* topics read at a time: the readers serve others, too */
    HUB_CATCHUPS_MAX = 4, /* readers that are read for at a time, each a page, in turn */
    HUB_PAGE_LEAST = 8,
    HUB_PAUSE_MS = 250, /* after a failed read, doubling */
    HUB_PAUSE_MAX_MS = 4000,
    HUB_KEEPALIVES_MAX = 1000, /* a tick: thousands of streams must not hold up the loop */
    HUB_RECHECKS_MAX = 128,    /* keys looked at again, a tick */
};
#define HUB_RECENT_TOTAL_MAX ((size_t)64 * 1024 * 1024) /* of all topics */
#define HUB_ARENA_MAX ((size_t)4 * 1024 * 1024)         /* records of one page */

struct hub_link { /* a ring; an element that is in none is linked to itself */
    struct hub_link *next, *prev;
};
#define HUB_OWNER(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

struct hub_owner {          /* who reads, by name and version of the key */
    struct hub_link of_hub; /* longest not looked at first */
    size_t holders;         /* streams, and who ends them */
    int64_t version, checked_ms;
    bool over; /* it may not read any more */
    size_t name_len, key_len;
    char key[]; /* of hub->owners: version, blank, name */
};

struct hub_recheck {     /* looks at keys again */
    struct reader_job job; /* first */
    struct hub *hub;
    bool busy;
    size_t count;
    struct {
        char key_id[16];
        int64_t version;
        bool over; /* it was changed or revoked */
    } items[HUB_RECHECKS_MAX];
};

struct hub_frame {
    int64_t pos, seq;
    uint32_t json;   /* where it begins in the text for HUB_SSE */
    uint32_t end[2]; /* in the text of each format */
};

struct hub_block { /* events of one page, rendered */
    struct hub_block *next, *prev;
    int64_t after; /* the head's position before it */
    size_t count;  /* at least one */
    struct hub_frame *frames;
    struct buf text[2]; /* that for HUB_NDJSON is cut from the other when it is first needed */
};

struct hub_sub { /* one stream */
    struct hub *hub;
    struct hub_topic *topic;
    struct http_exchange *exchange;
    struct hub_link of_topic, of_hub; /* in the hub by the time of the last write */
    struct hub_link turn;             /* waits to be read for, or for the end of a pause */
    struct hub_job *job;              /* it is being read for */
    int64_t pos, seq;                 /* given so far; seq is -1 while it is not known */
    int64_t until;           /* !follow: the last position that it gets; -1: not yet known */
    uint64_t joined;         /* the first read of the topic that began after it came */
    struct hub_owner *owner; /* NULL: nobody's */
    int64_t expires_us;
    int64_t written_ms, retry_ms, pause_ms;
    struct http_header *headers; /* until the answer begins */
    size_t header_count;
    void (*ended)(void *context);
    void *context;
    enum hub_format format;
    bool follow, begun;
};

struct hub_topic {
    struct hub *hub;
    struct hub_link of_hub, turn; /* as above */
    struct hub_link subs;
    struct hub_job *job;
    size_t catching; /* jobs for single readers */
    int64_t head_seq, head_pos, recent_after;
    struct hub_block *first, *last;
    size_t recent_bytes, frame_bytes; /* the latter: of an event, lately */
    uint64_t reads_begun, reads_done;
    int64_t retry_ms, pause_ms;
    enum run_status status;
    bool tenant_feed;
    bool started;      /* the head is known */
    bool dirty;        /* something may have been committed since the last read began */
    bool at_end;       /* the last read saw the newest event */
    bool status_known; /* of the run, unless a later event changes it */
    bool over;         /* the run has ended, and at_end */
    bool held;         /* must not be freed */
    str id;            /* of the run or the tenant */
    char id_bytes[];
};

struct hub_job {         /* reads one page */
    struct reader_job job; /* first */
    struct hub_topic *topic;
    struct hub_sub *sub; /* for whom, when it is not for all; NULL also if it went away */
    bool busy, catch_up;
    uint64_t number; /* of topic->reads_begun */
    /* Taken by the thread, which sees nothing else of the topic but its id: */
    bool start; /* find out where the recent events begin: `pos` and `seq` are filled */
    bool ask_status;
    int64_t pos, seq;
    size_t limit, bytes_max;
    /* Filled by it: */
    struct hub_block *block; /* NULL: no event */
    int64_t read_seq;
    bool at_end, asked, over;
    enum run_status status;
};

struct hub {
    uv_timer_t tick; /* first: the handle is its hub */
    uv_loop_t *loop;
    struct readers *readers;
    struct map runs, tenants; /* topics by id */
    struct map owners;
    struct hub_link owner_list;
    struct hub_recheck recheck;
    hub_signs signs; /* NULL: tokens are good until they end */
    void *signs_context;
    struct hub_link topics, subs;
    struct hub_link reads, reads_paused;       /* topics that wait for their turn, or for time */
    struct hub_link catchups, catchups_paused; /* the same of readers */
    struct hub_job jobs[HUB_READS_MAX + HUB_CATCHUPS_MAX];
    size_t streams, recent_bytes;
    int64_t expiry_us; /* no stream ends for its time before this; INT64_MAX: none does */
    bool other_writers, draining;
    struct metric *streams_now, *events, *catchups_total;
};

static inline void hub_link_init(struct hub_link *l) { l->next = l->prev = l; }
static inline bool hub_linked(const struct hub_link *l) { return l->next != l; }
static inline void hub_unlink(struct hub_link *l) {
    l->prev->next = l->next;
    l->next->prev = l->prev;
    hub_link_init(l);
}
static inline void hub_link_last(struct hub_link *list, struct hub_link *l) {
    hub_unlink(l);
    l->prev = list->prev;
    l->next = list;
    list->prev->next = l;
    list->prev = l;
}

/* hub_owner.c */
/* One holder more; NULL: no memory. */
struct hub_owner *hub_owner_hold(struct hub *hub, str name, int64_t version);
void hub_owner_drop(struct hub *hub, struct hub_owner *owner); /* NULL is fine */
str hub_owner_name(const struct hub_owner *owner);
void hub_owners_recheck(struct hub *hub); /* begins, if it is time */
/* hub.c: ends the streams of all owners of that name, if `version` is 0, or of that version. */
void hub_end_owner(struct hub *hub, str name, int64_t version);
void hub_end_over(struct hub *hub); /* of all owners that are over */

/* hub_page.c */
status hub_page_read(struct reader_job *base, struct ledger *reader, struct error *err);
void hub_block_free(struct hub_block *block);
size_t hub_block_bytes(const struct hub_block *block);
/* Makes the text of that format if it is not there. false: no memory. */
bool hub_block_ready(struct hub_block *block, enum hub_format format);
/* The first frame after `pos`; block->count if there is none. */
size_t hub_block_find(const struct hub_block *block, int64_t pos);
/* The bytes of frames from..to, `to` not included. */
str hub_block_slice(const struct hub_block *block, enum hub_format format, size_t from, size_t to);

/* hub_read.c */
void hub_topic_want(struct hub_topic *topic); /* look for new events */
void hub_catch_up_want(struct hub_sub *sub);  /* read for this one */
void hub_pump(struct hub *hub);               /* begins what may begin */
void hub_retry(struct hub *hub);              /* those whose pause is over */
void hub_topic_trim(struct hub_topic *topic);
void hub_topic_unused(struct hub_topic *topic); /* frees it if nobody needs it */

/* hub_send.c */
void hub_deliver(struct hub_sub *sub); /* whatever there is for it; may end it */
/* The events of a block. false: not all of it, and perhaps the reader is gone. */
bool hub_send_block(struct hub_sub *sub, struct hub_block *block);
bool hub_begin(struct hub_sub *sub); /* false: it is gone */
bool hub_write(struct hub_sub *sub, str bytes);
void hub_end(struct hub_sub *sub); /* gives the exchange up and frees the reader */
