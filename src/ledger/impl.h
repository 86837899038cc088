/* ledger/impl.h: what the files of ledger/ share. Nobody else includes it. */
#pragma once

#include "base/arena.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/map.h"
#include "core/effect.h"
#include "core/event.h"
#include "core/run.h"
#include "db/db.h"
#include "ledger/ledger.h"
#include "ledger/schema.h"

static_assert(STEPS_PER_RUN_MAX <= 1 << STEP_BITS, "a step index fits its part of the key");

/* ---- seen: the ids of a run's events, for duplicates and causes ---- */

struct seen_item {
    uint64_t key8, id8;
    int64_t seq;
};
struct seen { /* arrays live in the run's arena; newest item last, so that undo is a pop */
    struct seen_item *items;
    uint32_t count, cap;
    uint32_t *by_key, *by_id; /* open addressing: index + 1; 2 * cap slots */
};
uint64_t key_prefix(const uint8_t key[SHA256_LEN]); /* its first 8 bytes */
uint64_t id_prefix(uuid id);                        /* all 16 bytes folded into 8 */
const struct seen_item *seen_key(const struct seen *s, uint64_t key8);
const struct seen_item *seen_id(const struct seen *s, uint64_t id8);
MUST_CHECK bool seen_add(struct seen *s, struct seen_item item, struct arena *arena);
void seen_pop(struct seen *s);

/* ---- the effects of a run, in the order of their requests ---- */

struct effect_set { /* lives in the run's arena; the newest comes last, so that undo is a pop */
    struct effect *items;
    uint32_t count, cap;
    uint32_t *by_id; /* open addressing: index + 1; 2 * cap slots */
    uint32_t open;   /* so many are still to be executed, or under way */
};
#define EFFECT_NOT_THERE UINT32_MAX
uint32_t effects_find(const struct effect_set *set, uuid id); /* EFFECT_NOT_THERE */
/* Reduces an EFFECT fact into the set: *index is its effect, *old what that was before. Refusals as
 * effect_apply() has them; EFFECT_MOVED also for an effect that was not requested. */
MUST_CHECK status effects_apply(struct effect_set *set, const struct event_record *rec,
                                struct arena *arena, uint32_t *index, struct effect *old,
                                struct error *err);
void effects_undo(struct effect_set *set, uint32_t index, const struct effect *old);
/* The same for a stored fact: one that is refused changes nothing. */
MUST_CHECK status effects_replay(struct effect_set *set, const struct event_record *rec,
                                 struct arena *arena, struct error *err);

/* ---- the cache of runs being written: derived state, exactly as the database has it ---- */

/* What state_run holds of a run: status, inconsistent, started_seq, ended_seq, run_level_seq,
 * invalid_events, engine_attempt. */
struct state_row {
    int64_t cells[7];
};

struct run_entry {
    str run_id, project_id, environment_id, plan_id, plan_version; /* in the arena */
    int64_t run_no, tenant_no, context_no, opened_seq;
    uuid run_uuid;
    char correlation[UUID_TEXT_LEN], signal[UUID_TEXT_LEN];
    bool has_signal;
    bool stored; /* has its rows in ledger_run and state_run */
    bool leased; /* a node carries it out: has its row in lease_run */
    struct state_row stored_state;
    uint32_t stored_steps; /* steps with a smaller index have their rows */
    uint32_t stored_effects; /* and so have effects */
    struct effect_set effects;
    int64_t moved_seq; /* of its newest row that is no EFFECT fact: those concern no engine */
    size_t bytes;          /* as the cache counts them */
    struct run run;
    struct seen seen;
    struct arena arena;
    struct run_entry *newer, *older; /* by last use */
};

struct cache {
    struct map by_id;
    struct run_entry *newest, *oldest;
    size_t bytes;
};
void cache_init(struct cache *c);
void cache_clear(struct cache *c);
struct run_entry *cache_get(struct cache *c, str run_id); /* and makes it the newest */
/* An empty entry, owned by the cache. NULL when memory is out. */
struct run_entry *cache_add(struct cache *c, str run_id);
void cache_drop(struct cache *c, struct run_entry *e);
void cache_drop_tenant(struct cache *c, int64_t tenant_no);
void cache_weigh(struct cache *c, struct run_entry *e); /* after the entry grew */
void cache_trim(
    struct cache *c); /* to RUN_CACHE_BYTES_MAX, or the newest alone; never inside a group */

/* ---- dictionaries ---- */

struct tenant {
    int64_t tenant_no, seq, persisted_us;
    str tenant_id;
    uuid tenant_uuid;
    uint8_t head[SHA256_LEN];
    int64_t sealed_lots;   /* lots 0 .. sealed_lots-1 are in state_lot */
    struct lot_ids *fresh; /* ids of the lot that is being filled; NULL: read them back */
    bool listed;           /* among those that nodes_lock_tenants() is about to lock */
};
struct dict_number {
    int64_t number;
};
struct dict {
    struct map tenants, contexts,
        types; /* tenant_id; tenant_no|project|environment|plan|version; name */
    struct arena arena;
    struct tenant *last; /* the one found last, or NULL */
    int fresh_count;     /* tenants with `fresh` */
};

/* ---- one event row, as stored ---- */

struct event_row {
    int64_t pos, run_no, run_seq, type_no, context_no, engine_attempt, logical_attempt, emitted_ns,
        emitted_digits, persisted_us, cause_seq; /* run_seq and cause_seq: 0 is NULL */
    int64_t step_index;                          /* -1 is NULL */
    str event_id, key, subject, actor, payload;
};
/* ---- one group of requests, which becomes one transaction ---- */

struct group_row {
    struct event_row row;
    uint8_t hash[SHA256_LEN];
    struct run_entry *entry;
    struct tenant *tenant;
    struct append_result *result;
    str type_name; /* the caller's */
    struct run_undo undo;
    struct transition bad;
    struct provider_ref *ref;
    const struct run_checkpoint *checkpoint; /* to be stored with it, or NULL */
    uint8_t old_head[SHA256_LEN]; /* the tenant's before this row */
    int64_t old_persisted_us, old_moved_seq;
    uint32_t effect; /* of an EFFECT fact: its place among the run's, and what it was before */
    struct effect old_effect;
    bool illegal, opens, is_effect;
};
struct group {
    struct ledger *l;
    struct group_row *rows;
    size_t count;
    size_t items;  /* of all its requests: so many rows at most */
    size_t queued; /* rows given to ins_event already */
    int64_t now_us;
    int64_t fence_node, fence_epoch; /* checked in this group, and good */
    struct tenant
        *beside; /* its only one, if it was made while a commit was under way; else NULL */
    struct ledger_member *culprit; /* the member that failed it, or NULL */
};
/* Decides about the events of a request; their rows may leave at once. */
MUST_CHECK status group_take(struct group *g, struct append_request *req, struct error *err);
/* Sends the rows of all events that did not leave yet. */
MUST_CHECK status group_send_rows(struct group *g, struct error *err);
/* Puts the runs and tenants in memory back to what they were before the group. */
void group_undo(struct group *g);
status group_moved(struct error *err); /* ST_CONFLICT: not beside a commit, but alone */

/* ---- the handle ---- */

/* What a ledger is in the middle of; ledger_move() knows what may follow what. A commit that
 * overlaps with the making of the next group: docs/decisions/0009-overlapping-commits.md. */
enum ledger_state {
    LEDGER_BROKEN,         /* connection and caches cannot be trusted: reopen before the next use */
    LEDGER_IDLE,           /* nothing; a reader is never anything else */
    LEDGER_MAKING,         /* a group, or another write transaction, is being made */
    LEDGER_IN_MEMBER,      /* the same, and the body of one of its members runs */
    LEDGER_STAGED,         /* a group is made and is to be committed */
    LEDGER_COMMITTING,     /* a commit is under way */
    LEDGER_OVERLAPPING,    /* the same, and the next group is being made */
    LEDGER_OVERLAP_STAGED, /* the same, and the next group is made */
    LEDGER_STATES,
};

struct ledger {
    struct db *db;
    const atomic_bool *stop; /* ledger_stop_on(); or NULL */
    bool writer;
    ledger_connect connect;
    void *connect_context;
    struct ledger_options options;
    char url[1024]; /* when opened by url */
    int lock_fd;
    struct sha256 *sha;
    struct cache cache;
    struct dict dict;
    struct arena scratch;             /* of one group or one query */
    int64_t next_run_no, last_run_no; /* numbers reserved and not used yet */
    int64_t rejections; /* rows in ledger_rejection: no accepted event looks there if it is empty */
    struct db_bulk *ins_event, *ins_run, *ins_state, *upd_state, *ins_step, *upd_step, *ins_alert;
    struct db_bulk *ins_lease, *upd_lease, *del_lease, *ins_receipt, *ins_audit, *upd_tenant, *ins_lot;
    struct db_bulk *ins_effect, *upd_effect;
    struct group staged, under_way;      /* the group being made; the one whose commit was sent */
    enum ledger_state state;
    struct arena kept; /* holds the rows of the group under way */
    status outcome;    /* of the last one that was, until ledger_settle() tells it */
    struct error outcome_why;
    int pause_groups; /* so many groups, and until then, none goes beside a commit */
    int64_t pause_until_ns;
    const struct outbox_sinks *sinks;   /* outbox_tell(); or NULL */
    const struct effect_retry *retries; /* outbox_retries(); or NULL */
    bool lot_is_full; /* some tenant has a lot to be sealed */
    int64_t replays; /* runs that were read back from their events, so far: for tests */
};

void ledger_move(struct ledger *l, enum ledger_state to);
static inline bool ledger_commits(const struct ledger *l) { /* a commit is under way */
    return l->state >= LEDGER_COMMITTING;
}
static inline bool ledger_has_staged(const struct ledger *l) {
    return l->state == LEDGER_STAGED || l->state == LEDGER_OVERLAP_STAGED;
}
/* Whatever it was doing: nothing in memory and no connection is good any more. Not while a commit is
 * under way, whose outcome is to be learned first. */
void ledger_break(struct ledger *l);

/* ---- event rows ---- */

/* What the row that opens a run adds to its hash: the identity that the other rows only refer to.
 */
struct run_identity {
    str tenant_id, run_id, run_uuid, project_id, environment_id, correlation_id, signal_id;
};
/* hash = SHA-256(prev, every stored column, the identity if the row opens its run). */
void chain_hash(struct sha256 *sha, const uint8_t prev[SHA256_LEN], const struct event_row *row,
                const struct run_identity *opens, uint8_t out[SHA256_LEN]);
/* The hash before a tenant's first event. */
void chain_genesis(struct sha256 *sha, str tenant_id, uint8_t out[SHA256_LEN]);

/* What select(tier) gives for each tier of the events, all in one statement: a run that is being
 * archived meanwhile is seen in exactly one of them. ORDER BY and LIMIT, if any, come after it. */
#define BOTH_TIERS(select) select("ledger_event") " UNION ALL " select("ledger_archive")

/* The first columns of a statement that selects EVENT_ROW_COLUMNS, borrowed until its next step;
 * then comes what it selects besides. */
#define EVENT_ROW_COLUMNS                                                                          \
    "e.pos, e.run_no, e.run_seq, e.type_no, e.context_no, e.engine_attempt, e.logical_attempt, "   \
    "e.emitted_ns, e.emitted_digits, e.persisted_us, e.cause_seq, e.step_index, e.event_id, "      \
    "e.key, e.subject, e.actor, e.payload, e.hash"
enum { EVENT_ROW_HASH = 17, EVENT_ROW_COUNT = 18 };
void event_row_read(struct db_stmt *st, struct event_row *row);

status ledger_no_memory(struct error *err); /* ST_RETRY */
/* Loads every run of the group that the cache lacks; ST_CONFLICT, and none, if more than `most` of
 * them exist. */
MUST_CHECK status runs_load(struct ledger *l, struct append_request *const *reqs, size_t n,
                            size_t most, struct error *err);
MUST_CHECK status entry_texts(struct run_entry *e, str project_id, str environment_id, str plan_id,
                              str plan_version, struct error *err);
/* Fills *why with the refusal of an event that the tables forbid: the first one, if it was refused
 * before. */
MUST_CHECK status reject_transition(struct ledger *l, const struct event *e,
                                    const struct transition *bad, struct error *why,
                                    struct error *err);
/* Forgets the refusals of events that the group accepted. */
MUST_CHECK status rejections_forget(struct group *g, struct error *err);
/* On PostgreSQL: takes the rows of the group's tenants, and drops what is cached of those that
 * moved. The answer for *last (NULL: none) is still to come: nodes_locked() reads it, and until
 * then other reading may share its round trip. What was read before it says *moved is read again.
 */
MUST_CHECK status nodes_lock_tenants(struct ledger *l, struct append_request *const *reqs, size_t n,
                                     struct tenant **last, struct error *err);
MUST_CHECK status nodes_locked(struct ledger *l, struct tenant *last, bool *moved,
                               struct error *err);
/* Locks the tenant's row, if that is free. *same: it was, and its newest event is still `seq`. */
MUST_CHECK status nodes_take_turn(struct ledger *l, const struct tenant *t, int64_t seq, bool *same,
                                  struct error *err);
/* Makes sure of numbers for the runs that the group may open. */
MUST_CHECK status nodes_reserve_run_numbers(struct ledger *l, int64_t wanted, struct error *err);

/* What a receipt is found by: the first bytes of a hash of both, never negative. */
int64_t receipt_tag(struct ledger *l, str scope, str key);
/* Judges an EFFECT fact before it is taken: *why when it is refused, *res and *dup when the tenant has
 * an effect with its key already. `entry` NULL: the fact opens its run. */
MUST_CHECK status effects_check(struct group *g, const struct run_entry *entry,
                                const struct tenant *t, const struct event *e,
                                struct append_result *res, bool *dup, struct error *why,
                                struct error *err);
/* The key under which the outbox holds an effect: the tenant's number before it, so that no two
 * tenants share one. */
enum { STORED_KEY_MAX = 255 };
void effect_stored_key(int64_t tenant_no, str key, struct buf *out);

/* Queues what travels with a request. */
MUST_CHECK status riders_queue(struct ledger *l, const struct append_rider *riders, int64_t now_us,
                               struct error *err);
/* The same for a ledger_body: in a group it leaves with the rest, else it is sent at once. */
MUST_CHECK status riders_write(struct ledger *l, const struct append_rider *riders,
                               struct error *err);

/* The fence of a request: *why is filled when its node has lost its lease. */
MUST_CHECK status claim_check(struct ledger *l, const struct run_claim *claim, struct error *why,
                              struct error *err);
/* Queues what the claim changes. */
MUST_CHECK status claim_queue(struct ledger *l, const struct run_claim *claim, int64_t run_no,
                              struct error *err);

/* ---- shared pieces ---- */

static inline size_t page_limit(size_t limit) {
    return limit < PAGE_EVENTS_MAX ? limit : PAGE_EVENTS_MAX;
}
/* A tenant's number and its newest sequence_number; ST_NOT_FOUND with TENANT_NOT_FOUND. */
MUST_CHECK status tenant_number(struct ledger *l, str tenant_id, int64_t *tenant_no, int64_t *seq,
                                struct error *err);

MUST_CHECK status dict_tenant(struct ledger *l, str tenant_id, bool create, struct tenant **out,
                              struct error *err);
MUST_CHECK status dict_context(struct ledger *l, int64_t tenant_no, const struct event *e,
                               int64_t *out, struct error *err);
MUST_CHECK status dict_type(struct ledger *l, const struct event *e, int64_t *out,
                            struct error *err);
void dict_init(struct dict *d);
void dict_clear(struct dict *d);

int64_t ledger_now_us(const struct ledger *l); /* the store's clock */
/* Runs `body` in a write transaction: that of the group which is being made, if this is called from
 * a member of it, else one of its own. What the body refuses with a reason says nothing against the
 * store; any other failure leaves the connection to be reopened, as in append. The scratch arena is
 * the body's. */
bool ledger_refused(status st, const struct error *err); /* with a reason, by us */
MUST_CHECK status ledger_transact(struct ledger *l, ledger_body body, void *context,
                                  struct error *err);

/* Opens and prepares; again after a failure. Forgets every cache. */
MUST_CHECK status ledger_connect_now(struct ledger *l, struct error *err);
MUST_CHECK status project_open(struct ledger *l, struct error *err); /* the bulk statements */
struct state_row project_state(const struct run_head *head);
void project_run(struct ledger *l,
                 struct run_entry *e); /* queues its state_run row, if it changed */
/* Queues its state_step row. */
MUST_CHECK status project_step(struct ledger *l, const struct run_entry *e, uint32_t index,
                               struct error *err);
/* Queues its state_effect row: a new one, or what changed of it. */
MUST_CHECK status project_effect(struct ledger *l, const struct run_entry *e, uint32_t index,
                                 struct error *err);
size_t project_queued(struct ledger *l); /* rows that wait for the flush */
void project_clear(struct ledger *l);    /* forgets what is queued */
MUST_CHECK status project_flush(struct ledger *l, struct error *err);

MUST_CHECK status checkpoint_insert(struct ledger *l, const struct run_checkpoint *c,
                                    int64_t created_us, struct error *err);

/* Reduces a run's events in order: calls `on_bad` for each forbidden one. With `seen`, also
 * collects the ids. */
typedef status (*replay_hook)(void *context, const struct event_row *row,
                              const struct event_record *rec, const struct transition *bad,
                              struct error *err);
struct replay {
    int64_t run_no, tenant_no;
    int64_t after_seq;  /* start after this sequence_number */
    int64_t at_run_seq; /* stop after this runSeq; 0: no bound */
    struct run *run;
    struct seen *seen; /* or NULL */
    struct arena *arena;
    replay_hook on_event; /* or NULL; `bad` is NULL for a legal event */
    void *context;
    int64_t applied; /* out */
};
MUST_CHECK status replay_run(struct ledger *l, struct replay *r, struct error *err);

/* A RunProviderLinked payload; false when it is not of the documented form. */
struct provider_ref {
    str provider, workflow_id, provider_run_id;
};
bool provider_ref_parse(str payload, struct arena *arena, struct provider_ref *out);

/* Sorts the event ids of full lots into state_lot, in a transaction of its own. */
enum { LOT_BITS = 15, LOT_EVENTS = 1 << LOT_BITS, LOT_BUCKETS = 64 };
/* Remembers the id of a stored event, in order, so that sealing need not read its lot back. */
void lots_note(struct ledger *l, struct tenant *t, int64_t seq, uuid id);
MUST_CHECK status lots_seal(struct ledger *l, struct error *err);
/* How many lots of the tenant are sealed. */
MUST_CHECK status lots_sealed(struct ledger *l, int64_t tenant_no, int64_t *lots,
                              struct error *err);
/* Seals what is full, inside the caller's transaction. */
MUST_CHECK status lots_write_missing(struct ledger *l, struct tenant *t, struct error *err);
/* Whether the sealed lots of a tenant with `seq` events hold what its events say. */
MUST_CHECK status lots_verify(struct ledger *l, int64_t tenant_no, int64_t seq, bool *same,
                              struct error *err);
/* The position of an event id, newest first over `tenant_no` (0: all tenants); ST_NOT_FOUND. */
MUST_CHECK status lots_find(struct ledger *l, int64_t tenant_no, uuid id, int64_t *pos,
                            struct error *err);
