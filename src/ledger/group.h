/* ledger/group.h: one group of requests, which becomes one transaction.
 *
 * append.c makes it and commits it; load.c brings its runs into memory; judge.c decides about each
 * event, with reject.c for the refusals that are remembered and effects.c for EFFECT facts; nodes.c
 * keeps several nodes on one PostgreSQL apart. */
#pragma once

#include "ledger/cache.h"
#include "ledger/chain.h"
#include "ledger/dict.h"
#include "ledger/ledger.h"
#include "ledger/replay.h"

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
    uint8_t old_head[SHA256_LEN];            /* the tenant's before this row */
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
    /* Its only one, if it was made while a commit was under way; else NULL. */
    struct tenant *overlaps;
    struct ledger_member *culprit; /* the member that failed it, or NULL */
};
/* Decides about the events of a request; their rows may leave at once. */
MUST_CHECK status group_take(struct group *g, struct append_request *req, struct error *err);
/* Sends the rows of all events that did not leave yet. */
MUST_CHECK status group_send_rows(struct group *g, struct error *err);
/* Puts the runs and tenants in memory back to what they were before the group. */
void group_undo(struct group *g);
status group_moved(struct error *err); /* ST_CONFLICT: not while a commit is under way, but alone */

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
/* Judges an EFFECT fact before it is taken: *why when it is refused, *res and *dup when the tenant
 * has an effect with its key already. `entry` NULL: the fact opens its run. */
MUST_CHECK status effects_check(struct group *g, const struct run_entry *entry,
                                const struct tenant *t, const struct event *e,
                                struct append_result *res, bool *dup, struct error *why,
                                struct error *err);
/* ---- nodes.c ---- */

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
