/* ledger/handle.h: what is behind a struct ledger, for the files of ledger/ only.
 *
 * A ledger is a connection and what is known of the database in memory: the runs being written
 * (cache), the dictionaries, the ends of the tenants' chains. Nobody else writes to a SQLite file,
 * and on PostgreSQL a tenant's row is locked before it is believed; so memory and database agree
 * while all goes well, and a warm group reads nothing. When anything fails, they may not: then
 * memory is thrown away and the connection made anew (LEDGER_BROKEN), and what is stored counts.
 *
 * A write is a group (group.h) or, for what tends the ledger, a transaction of its own
 * (ledger_transact). Where the database can, the commit of one group overlaps with the making of
 * the next: then there are two of them, `under_way` and `staged`, and two arenas for their rows. A
 * reader is the same struct with a read-only connection; it uses `db`, `sha` and `scratch`. */
#pragma once

#include "ledger/group.h"

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
    struct db_bulk *ins_lease, *upd_lease, *del_lease, *ins_receipt, *ins_audit, *upd_tenant,
        *ins_id_lot;
    struct db_bulk *ins_effect, *upd_effect;
    struct group staged, under_way; /* the group being made; the one whose commit was sent */
    enum ledger_state state;
    struct arena kept; /* holds the rows of the group under way */
    status outcome;    /* of the last one that was, until ledger_settle() tells it */
    struct error outcome_why;
    int pause_groups; /* so many groups, and until then, none overlaps with a commit */
    int64_t pause_until_ns;
    struct ledger_outbox outbox;
    bool id_lot_is_full;                /* some tenant has a lot to be sealed */
    int64_t replays; /* runs that were read back from their events, so far: for tests */
};

void ledger_move(struct ledger *l, enum ledger_state to);
static inline bool ledger_commits(const struct ledger *l) { /* a commit is under way */
    return l->state >= LEDGER_COMMITTING;
}
static inline bool ledger_has_staged(const struct ledger *l) {
    return l->state == LEDGER_STAGED || l->state == LEDGER_OVERLAP_STAGED;
}
/* Whatever it was doing: nothing in memory and no connection is good any more. Not while a commit
 * is under way, whose outcome is to be learned first. */
void ledger_break(struct ledger *l);

status ledger_no_memory(struct error *err); /* ST_RETRY */

static inline size_t page_limit(size_t limit) {
    return limit < PAGE_EVENTS_MAX ? limit : PAGE_EVENTS_MAX;
}
/* Runs `body` in a write transaction: that of the group which is being made, if this is called from
 * a member of it, else one of its own. What the body refuses with a reason says nothing against the
 * store; any other failure leaves the connection to be reopened, as in append. The scratch arena is
 * the body's. */
bool ledger_refused(status st, const struct error *err); /* with a reason, by us */
MUST_CHECK status ledger_transact(struct ledger *l, ledger_body body, void *context,
                                  struct error *err);

/* Opens and prepares; again after a failure. Forgets every cache. */
MUST_CHECK status ledger_connect_now(struct ledger *l, struct error *err);
