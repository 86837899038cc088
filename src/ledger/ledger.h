/* ledger/ledger.h: the Append Authority: an append-only ledger of run events, and the state derived
 * from it.
 *
 * Invariants: the events of a tenant are numbered 1, 2, 3, ... without gaps, in commit order; so
 * are the events of a run; a committed event never changes; (runId, idempotencyKey) occurs once;
 * each event's hash covers the one before it in its tenant; the events of one commit, the runs they
 * open and the state they change become durable together or not at all.
 *
 * Layout (schema.c): ledger_* tables are the truth and are immutable (an event may move from one
 * tier to the other, ledger_archive(), and stays what it is), state_* tables are
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
    bool always_overlap;   /* for tests: overlaps also after a group could not */
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
/* The reader's connection is lost, or may be: makes a new one in its place. If that fails the old
 * one stays, and it may be tried again. ledger_stop_on() is forgotten. */
MUST_CHECK status ledger_reopen_reader(struct ledger *reader, struct error *err);
void ledger_close(struct ledger *ledger);
/* Reopens a writer's connection if it was lost; what changes the ledger does so by itself. */
MUST_CHECK status ledger_usable(struct ledger *ledger, struct error *err);
/* Hands on the status of a query over a writer's connection: one that failed with ST_RETRY costs a
 * new connection before the next use, for what only reads would find it dead for ever. */
status ledger_has_read(struct ledger *ledger, status st);
int64_t ledger_now_us(const struct ledger *ledger); /* the store's clock */
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
    CLAIM_WAKE,  /* by anybody, no fence: its node must look at it */
};
struct run_claim {
    enum claim_act act;
    int64_t node_no, epoch; /* the fence: refused with LEASE_LOST unless the node has this epoch */
    int64_t wake_us;        /* 0: at once; CLAIM_NEVER: only when woken */
    /* The newest sequence_number of the run that the node has seen: refused with RUN_MOVED if there
     * is a newer one. 0: not checked. -1: the node opens it, and is refused so if another has. */
    int64_t known_seq;
};
#define CLAIM_NEVER INT64_MAX

/* What else is written in the commit of a request (access.h). */
struct receipt;
struct audit_entry;
struct append_rider {
    const struct append_rider *next;
    const struct receipt *receipt;   /* or NULL */
    const struct audit_entry *audit; /* or NULL */
    bool *rode; /* or NULL: of riders given to the engine, set before it answers if they were
                   committed */
};

/* Something else that is written in a group, in its place among the requests: an API key, a lease, an
 * audit record. The body runs while the group is made, in its transaction, on the ledger thread. It
 * may run several times, for a group may have to be made again, and it does not see the rows of
 * events of its own group. What it refuses with a reason (ST_INVALID, ST_NOT_FOUND, ST_CONFLICT,
 * ST_LIMIT) is its own answer and must leave nothing behind: check first, write last. Any other
 * failure is the group's, and all its members are told that nothing is acknowledged; except that one
 * which the database will never take (ST_INVALID, ST_NOT_FOUND, ST_LIMIT) fails alone. */
typedef status (*ledger_body)(struct ledger *ledger, void *context, struct error *err);
struct ledger_member {
    ledger_body body;
    void *context;
    /* Filled when the group is durable. */
    status code;
    struct error *err; /* the caller's memory */
    bool left_out;     /* the ledger's: it has failed alone, and the group is made without it */
};

/* The state of a run at one of its events, stored with the RunCheckpointCreated event that a request
 * appends: see ledger_prepare_checkpoint(). */
struct run_checkpoint {
    int64_t run_no, index, seq;
    str data; /* JSON */
};

struct append_request {
    struct append_item *items;
    size_t count; /* at most BATCH_EVENTS_MAX */
    struct ledger_member *member; /* or NULL; then there are no items */
    bool atomic;  /* one bad item refuses them all; else each item stands for itself */
    bool outside; /* by a producer that is no engine: a run that a node carries out takes none of
                     its events but those of unknown types (RUN_ENGINE_OWNED) */
    struct append_result *results; /* `count` of them, the caller's memory */
    size_t culprit;                /* of an atomic request that was refused: the item at fault */
    struct arena *arena;           /* for the errors */
    const struct run_claim *claim; /* of the run of items[0], or NULL; needs `atomic` */
    /* Written if at least one item was stored or is a duplicate; or NULL. */
    const struct append_rider *riders;
    /* Written instead if all items are duplicates; NULL: the same. */
    const struct append_rider *riders_again;
    const struct run_checkpoint *checkpoint; /* stored if the only item is; or NULL */
};

/* Commits all requests, members included, as one transaction and in this order. ST_OK: it is durable, and every result is filled.
 * Otherwise nothing is acknowledged, the outcome may be unknown, and appending the same again is
 * safe: what had landed comes back as a duplicate. */
MUST_CHECK status ledger_append(struct ledger *ledger, struct append_request *const *requests,
                                size_t count, struct error *err);
/* The same in three steps, so that the commit of one group overlaps with the making of the next,
 * where the database can do that: for the ledger thread, which calls nothing else until all is
 * settled. ledger_stage() makes a group ready while the one before may still be committing.
 * ledger_settle() waits for that one (ST_OK also if there is none) and returns as ledger_append()
 * would have. If it fails, the staged group is gone, too. ledger_finish() then sends the staged
 * group on its way; its outcome is what the next ledger_settle() says. A stage or a finish that
 * fails has stored nothing; with ST_CONFLICT it only was not the time for it, and the group is to be
 * given to ledger_append() once all is settled. Requests with a member are not for staging. */
bool ledger_overlaps(const struct ledger *ledger);
MUST_CHECK status ledger_stage(struct ledger *ledger, struct append_request *const *requests,
                               size_t count, struct error *err);
MUST_CHECK status ledger_settle(struct ledger *ledger, struct error *err);
MUST_CHECK status ledger_finish(struct ledger *ledger, struct error *err);
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
/* The same in two steps: all the reading, which any reader can do, and the request that is then
 * appended in a group with others; riders, or NULL, in that transaction. If it comes back as a
 * duplicate, another one was made at the same time. *out is in the arena, and so is what it needs. */
struct checkpoint_request {
    struct append_request request;
    struct append_item item;
    struct append_result result;
    struct run_checkpoint checkpoint;
};
MUST_CHECK status ledger_prepare_checkpoint(struct ledger *reader, str run_id, uuid event_id,
                                            const struct append_rider *riders, struct arena *arena,
                                            struct checkpoint_request **out, struct error *err);

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
/* The RunEventRecords alone, without facts, after a runSeq. */
MUST_CHECK status ledger_read_records(struct ledger *ledger, str run_id, int64_t after_run_seq,
                                      size_t limit, struct arena *arena, struct event_page *page,
                                      struct error *err);
/* The sequence_number of the run's event with that runSeq, or of the last one before it; 0. */
MUST_CHECK status ledger_run_position(struct ledger *ledger, str run_id, int64_t run_seq,
                                      int64_t *seq, struct error *err);
/* Every row of a run after sequence_number `after_seq`, facts included, in order. What the record
 * points to is borrowed until the call returns; tenant, project and plan ids are not filled. The
 * walk ends after the row at which *stop is set. */
typedef status (*ledger_walk)(void *context, const struct event_record *rec, bool *stop,
                              struct error *err);
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
/* A tenant's number and its newest sequence_number; ST_NOT_FOUND with TENANT_NOT_FOUND. */
MUST_CHECK status tenant_number(struct ledger *ledger, str tenant_id, int64_t *tenant_no,
                                int64_t *seq, struct error *err);
/* Who a run is, however long it is: ids, and of its head only status and engine_attempt. */
MUST_CHECK status ledger_find_identity(struct ledger *ledger, str run_id, struct arena *arena,
                                       struct run_info *out, struct error *err);
/* Resolves (provider, workflowId, providerRunId) to the run. tenant_id STR_NONE searches every
 * tenant. */
MUST_CHECK status ledger_find_provider(struct ledger *ledger, str tenant_id, str provider,
                                       str workflow_id, str provider_run_id, struct arena *arena,
                                       struct run_info *out, struct error *err);
struct run_filter {
    str tenant_id, project_id, environment_id, plan_id, plan_version; /* STR_NONE: any */
    str text; /* part of the run id or the plan id, ASCII case ignored; or STR_NONE */
    str provider, workflow_id; /* of a provider reference; or STR_NONE */
    const uuid *correlation;   /* or NULL */
    unsigned statuses;         /* bits 1 << enum run_status; 0: any */
    bool only_inconsistent;
    int64_t since_us, until_us; /* opened at or after, and before; 0: no bound */
    int64_t before_run_no;      /* newest first; 0: from the newest */
    int64_t scan_max; /* looks at no more runs than this, whatever it finds; 0: no bound */
};
/* *next (may be NULL) is the before_run_no to go on with; 0 when there is nothing more. With
 * scan_max a page may be short, or empty, and still have a next one. */
MUST_CHECK status ledger_list_runs(struct ledger *ledger, const struct run_filter *filter,
                                   size_t limit, struct arena *arena, struct run_info **runs,
                                   size_t *count, int64_t *next, struct error *err);
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
struct alert_query {
    str tenant_id, run_id;             /* STR_NONE: all */
    int64_t before_run_no, before_seq; /* of the last one seen; 0, 0: from the newest */
    size_t limit;
};
/* Newest first. */
MUST_CHECK status ledger_list_alerts(struct ledger *ledger, const struct alert_query *query,
                                     struct arena *arena, struct alert **alerts, size_t *count,
                                     struct error *err);

/* ---- maintenance ---- */

struct ledger_stats {
    int64_t tenants, runs, open_runs, events, alerts, rejections, checkpoints, bytes;
    int64_t effects_waiting, effects_dead; /* of those that were not delivered */
};
MUST_CHECK status ledger_stats(struct ledger *ledger, struct ledger_stats *out, struct error *err);

/* What this reader does next, and what it is in the middle of, ends with ST_RETRY soon after `stop`
 * became true (see db_stop_on()): verify and backup may be long. NULL: nothing stops it. */
void ledger_stop_on(struct ledger *reader, const atomic_bool *stop);

typedef void (*ledger_progress)(void *context, int64_t done, int64_t total);
struct verify_report {
    int64_t events, runs; /* checked */
    bool state;           /* the projections, too */
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

/* What to archive: runs that are finished and have events in the first tier. */
struct archive_request {
    str run_id;       /* this one alone, which must be finished; or STR_NONE */
    int64_t until_us; /* finished before this moment; 0: whenever */
    int64_t runs_max; /* so many at most; 0: no bound */
    const struct append_rider
        *riders; /* committed with the first batch, also an empty one; or NULL */
};
struct archive_report {
    int64_t runs, events; /* moved; a run counts with its last event */
};
/* Moves all events of such runs to the archive, batch by batch, each in its own transaction: what was
 * reported through `progress` (runs done; the total is not known and is 0) stays moved when a later
 * batch fails. Nothing else changes: the archive is a second tier of the same ledger, and every
 * function here reads both. ST_NOT_FOUND with RUN_NOT_FOUND, ST_CONFLICT with RUN_NOT_FINISHED. */
MUST_CHECK status ledger_archive(struct ledger *ledger, const struct archive_request *request,
                                 ledger_progress progress, void *context,
                                 struct archive_report *report, struct error *err);
/* One batch of it, for callers with other work in between: it is bounded, however large the ledger
 * and its runs are. Begin with an empty *at, and go on until at->done. */
struct archive_at {
    struct archive_report report; /* so far */
    bool done;
    bool begun;
    int64_t after; /* runs up to this one were looked at, */
    int64_t last;  /* and those after this one are not */
};
MUST_CHECK status ledger_archive_batch(struct ledger *ledger, const struct archive_request *request,
                                     struct archive_at *at, struct error *err);
/* Online copy of a SQLite ledger to a new file, which is then verified before it gets its name. */
MUST_CHECK status ledger_backup(struct ledger *ledger, str path, struct error *err);
