/* ledger/ledger.h: the Append Authority: an append-only ledger of run events, and the state derived
 * from it.
 *
 * Invariants: the events of a tenant are numbered 1, 2, 3, ... without gaps, in commit order; so
 * are the events of a run; a committed event never changes; (runId, idempotencyKey) occurs once;
 * each event's hash covers the one before it in its tenant; the events of one commit, the runs they
 * open and the state they change become durable together or not at all.
 *
 * Layout (schema.c): ledger_* tables are the truth and are immutable, state_* tables are
 * projections that ledger_rebuild() can make again, bit for bit. The documents' tables are views
 * over both.
 *
 * Threads: a struct ledger belongs to one thread. ledger/writer.h puts one behind a queue for many
 * producers. Processes: on SQLite one writer holds the folder's lock; on PostgreSQL any number
 * append, ordered by the tenant's row. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"
#include "core/event.h"
#include "core/run.h"
#include "db/db.h"

struct ledger;

/* Layer 2: what to do with an event that the transition tables forbid. */
enum ledger_validation {
    LEDGER_REJECT, /* refuse it with INVALID_TRANSITION; the refusal is remembered and repeated
                      verbatim */
    LEDGER_RECORD, /* store it: layer 3 ignores it, marks the run and raises the alert */
};

struct ledger_options {
    enum ledger_validation validation;
    int64_t (*now_us)(void *clock); /* the store's clock; NULL: the wall clock */
    void *clock;
    int64_t lock_wait_ms; /* how long to wait for another writer of the same SQLite file */
};

/* ---- opening ---- */

/* Opens or creates the ledger at `url` (see db.h), migrating its schema. The caller ends it with
 * ledger_close(). ST_RETRY when another process writes to the same SQLite file. */
MUST_CHECK status ledger_open(str url, const struct ledger_options *options, struct ledger **out,
                              struct error *err);
/* The same over a connection of the caller's, which the ledger then owns, also on failure: for
 * tests with faults. `reopen` may be NULL; it makes a new connection after one was lost. */
typedef status (*ledger_connect)(void *context, struct db **out, struct error *err);
MUST_CHECK status ledger_open_with(ledger_connect connect, void *context,
                                   const struct ledger_options *options, struct ledger **out,
                                   struct error *err);
/* For queries only: no lock, no migration; ST_NOT_FOUND without a ledger there, ST_INVALID if its
 * schema is of another version. */
MUST_CHECK status ledger_open_reader(str url, struct ledger **out, struct error *err);
void ledger_close(struct ledger *ledger);
struct db *ledger_db(struct ledger *ledger);

/* ---- appending ---- */

struct append_item {
    struct event event; /* passed event_parse() or event_validate(), or made by ledger_fact() */
    str actor;          /* who: at most ACTOR_BYTES_MAX bytes, or STR_NONE */
    const uuid *cause;  /* eventId of the event that caused this one; NULL: run_default_cause() */
    /* Read only when the item opens its run: the trace and the signal it belongs to. NULL: a fresh
     * one. */
    const uuid *correlation, *signal;
};

struct append_result {
    status code;    /* ST_OK: durable. Else *err says why and nothing of the item was written. */
    bool duplicate; /* it was there before: the metadata is the first record's */
    uuid event_id;
    int64_t run_seq, seq, persisted_us;
    struct error *err; /* in the request's arena; NULL on ST_OK */
};

/* What a node keeps of a run that it carries out (lease.h), changed in the commit of its events. */
enum claim_act {
    CLAIM_NONE,  /* only the fence */
    CLAIM_OPEN,  /* the run is this node's from now on */
    CLAIM_MOVE,  /* its next wake changed */
    CLAIM_CLOSE, /* it is finished */
    CLAIM_POKE,  /* by anybody, no fence: its node must look at it */
};
struct run_claim {
    enum claim_act act;
    int64_t node_no, epoch; /* the fence: refused with LEASE_LOST unless the node has this epoch */
    int64_t wake_us;        /* 0: at once; CLAIM_NEVER: only when poked */
};
#define CLAIM_NEVER INT64_MAX

struct append_request {
    struct append_item *items;
    size_t count; /* at most BATCH_EVENTS_MAX */
    bool atomic;  /* one bad item refuses them all; else each item stands for itself */
    struct append_result *results; /* `count` of them, the caller's memory */
    struct arena *arena;           /* for the errors */
    const struct run_claim *claim; /* of the run of items[0], or NULL; needs `atomic` */
};

/* Commits all requests as one transaction. ST_OK: it is durable, and every result is filled.
 * Otherwise nothing is acknowledged, the outcome may be unknown, and appending the same again is
 * safe: what had landed comes back as a duplicate. */
MUST_CHECK status ledger_append(struct ledger *ledger, struct append_request *const *requests,
                                size_t count, struct error *err);
/* Prepares an item for a SIGNAL, EFFECT or TOOL fact of a run: `subject` is the signal, effect or
 * step, `data` its JSON object, `occurrence` counts from 1 and makes a retry a duplicate. Checks
 * and fills item->event, and derives its key. */
MUST_CHECK status ledger_fact(const struct event *run_ids, enum event_type type, str subject,
                              int64_t occurrence, str data, struct append_item *item,
                              struct error *err);
/* Saves the run's state as its next checkpoint, with its RunCheckpointCreated event, in one
 * transaction. */
MUST_CHECK status ledger_checkpoint(struct ledger *ledger, str run_id, struct append_result *result,
                                    struct arena *arena, struct error *err);

/* ---- reading ---- */

struct event_page {
    struct event_record *records;
    size_t count;
};

struct run_info {
    int64_t run_no;
    str run_id, tenant_id, project_id, environment_id, plan_id, plan_version;
    uuid run_uuid, correlation_id, signal_id;
    struct run_head head; /* all but pauses and resumes, which come from a replay only */
    int64_t opened_us, started_us, ended_us, updated_us; /* 0: not yet */
};

/* Events after a position, at most `limit` (and PAGE_EVENTS_MAX), oldest first. Records live in the
 * arena. */
MUST_CHECK status ledger_read_run(struct ledger *ledger, str run_id, int64_t after_seq,
                                  size_t limit, struct arena *arena, struct event_page *page,
                                  struct error *err);
MUST_CHECK status ledger_read_tenant(struct ledger *ledger, str tenant_id, int64_t after_seq,
                                     size_t limit, struct arena *arena, struct event_page *page,
                                     struct error *err);
/* Every row of a run after sequence_number `after_seq`, facts included, in order. What the record
 * points to is borrowed until the call returns; tenant, project and plan ids are not filled. */
typedef status (*ledger_walk)(void *context, const struct event_record *rec, struct error *err);
MUST_CHECK status ledger_walk_run(struct ledger *ledger, const struct run_info *run,
                                  int64_t after_seq, ledger_walk walk, void *context,
                                  struct error *err);
/* All events of one trace, by sequence_number; tenant_id STR_NONE searches every tenant. */
MUST_CHECK status ledger_read_correlation(struct ledger *ledger, str tenant_id, uuid correlation,
                                          int64_t after_seq, size_t limit, struct arena *arena,
                                          struct event_page *page, struct error *err);
/* The first sequence_number of the tenant persisted at or after `us`; one past the last if there is
 * none. */
MUST_CHECK status ledger_seq_at(struct ledger *ledger, str tenant_id, int64_t us, int64_t *seq,
                                struct error *err);
MUST_CHECK status ledger_find_event(struct ledger *ledger, uuid event_id, struct arena *arena,
                                    struct event_record *out, struct error *err);
/* The event and its ancestors: records[0] is the event, the last is the root. At most `limit`,
 * *more if cut. */
MUST_CHECK status ledger_causes(struct ledger *ledger, uuid event_id, size_t limit,
                                struct arena *arena, struct event_page *page, bool *more,
                                struct error *err);

MUST_CHECK status ledger_find_run(struct ledger *ledger, str run_id, struct arena *arena,
                                  struct run_info *out, struct error *err);
/* Resolves (provider, workflowId, providerRunId) to the run. tenant_id STR_NONE searches every
 * tenant. */
MUST_CHECK status ledger_find_provider(struct ledger *ledger, str tenant_id, str provider,
                                       str workflow_id, str provider_run_id, struct arena *arena,
                                       struct run_info *out, struct error *err);
struct run_filter {
    str tenant_id, project_id, environment_id, plan_id; /* STR_NONE: any */
    int status;                                         /* enum run_status, or -1 */
    bool only_inconsistent;
    int64_t before_run_no; /* newest first; 0: from the newest */
};
MUST_CHECK status ledger_list_runs(struct ledger *ledger, const struct run_filter *filter,
                                   size_t limit, struct arena *arena, struct run_info **runs,
                                   size_t *count, struct error *err);
/* The run reduced from its events up to sequence_number or runSeq `at_run_seq` (0: all). Starts
 * from the newest checkpoint not after it when `use_checkpoint`; *applied tells how many events
 * were reduced. */
MUST_CHECK status ledger_replay(struct ledger *ledger, str run_id, int64_t at_run_seq,
                                bool use_checkpoint, struct arena *arena, struct run *out,
                                int64_t *applied, struct error *err);

struct alert {
    str run_id, tenant_id, project_id, environment_id, event_type, step_id, prior, attempted;
    uuid event_id;
    int64_t run_seq, seq, persisted_us, run_no;
};
/* Newest first, before (run_no, seq) of the last one seen; 0, 0 from the newest. run_id STR_NONE:
 * all. */
MUST_CHECK status ledger_list_alerts(struct ledger *ledger, str run_id, int64_t before_run_no,
                                     int64_t before_seq, size_t limit, struct arena *arena,
                                     struct alert **alerts, size_t *count, struct error *err);
/* {"code":"INVALID_TRANSITION","runId":...}: every field of the contract. */
void alert_json(const struct alert *alert, struct buf *out);

/* ---- care ---- */

struct ledger_stats {
    int64_t tenants, runs, open_runs, events, alerts, rejections, checkpoints, bytes;
};
MUST_CHECK status ledger_stats(struct ledger *ledger, struct ledger_stats *out, struct error *err);

typedef void (*ledger_progress)(void *context, int64_t done, int64_t total);
struct verify_report {
    int64_t events, runs; /* checked */
    bool damaged;         /* the first bad row: */
    str tenant_id;        /* in the arena; STR_NONE if no row can be named */
    int64_t seq;          /* its sequence_number, or 0 */
    str run_id;           /* for a projection that differs from its replay */
    char what[ERROR_MSG_MAX];
};
/* Walks every tenant's events in order: hash chain, contiguity, order of time and causes, the
 * tenant's head. With `state`, also replays each run, derives every idempotency key again and
 * compares with the projections. ST_OK with report->damaged when something is wrong. */
MUST_CHECK status ledger_verify(struct ledger *ledger, bool state, ledger_progress progress,
                                void *context, struct arena *arena, struct verify_report *report,
                                struct error *err);
/* Drops and remakes every projection from the events, in one transaction. */
MUST_CHECK status ledger_rebuild(struct ledger *ledger, ledger_progress progress, void *context,
                                 int64_t *runs, struct error *err);
/* Online copy of a SQLite ledger to a new file, which is then verified before it gets its name. */
MUST_CHECK status ledger_backup(struct ledger *ledger, str path, struct error *err);
