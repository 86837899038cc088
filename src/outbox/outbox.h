/* outbox/outbox.h: effects in the ledger: requested, claimed, settled, put back.
 *
 * An effect is a fact of a run before it is a deed: its EffectRequested and its row in the outbox
 * are one commit, and so are each later change and its fact. The row is a projection: a rebuild
 * makes it again. Two workers cannot both claim one execution: both would append the same fact, and
 * the second finds that it is there.
 *
 * change.h has the changes as members of a group, for whoever shares a ledger thread. Those here
 * append them at once, on a ledger of one's own: for the command line, and for tests. What reads is
 * for any ledger. */
#pragma once

#include "core/effect.h"
#include "ledger/ledger.h"

struct effect_request {
    str run_id;
    const struct run_info *run; /* if the caller has read it; NULL: it is looked up */
    str tenant_id;  /* the run must be this tenant's, else ST_NOT_FOUND; STR_NONE: whosever it is */
    const uuid *id; /* of the effect; NULL: a fresh one */
    str type;
    str payload; /* a JSON object, with the caller's idempotency_key if it has one */
    str step_id; /* the step that asks for it; or STR_NONE */
    str actor;
    const uuid *cause;                       /* or NULL: the run's newest event of its level */
    int64_t max_retries, base_ms;            /* of this one alone; < 0: as its type has it */
    const struct append_rider *riders;       /* or NULL */
    const struct append_rider *riders_again; /* instead, if it is there already; NULL: the same */
};

struct effect_info { /* a row of the outbox, with what the ledger says of it; in the arena */
    struct effect effect;
    uuid request_id; /* eventId of EffectRequested */
    uuid correlation;
    str run_id, tenant_id, project_id, environment_id, plan_id, plan_version, step_id;
    str run_uuid;
    int64_t run_no, engine_attempt;
    int64_t tenant_us; /* of its tenant's newest event when this was read */
    str key;           /* as the caller has it: without the tenant */
    str payload;       /* JSON object, with idempotency_key */
    str result;        /* JSON, or STR_NONE */
    str error;         /* JSON object, or STR_NONE */
};

/* Requests an effect, or finds the one of the tenant with the same key: *existing, and nothing is
 * written. Reasons: RUN_NOT_FOUND; EFFECT_TYPE_INVALID, EFFECT_PAYLOAD_INVALID, EFFECT_KEY_INVALID,
 * EFFECT_SECRET_PLAIN; EFFECT_ID_TAKEN: by an effect of another run. */
MUST_CHECK status outbox_request(struct ledger *ledger, const struct effect_request *request,
                                 struct arena *arena, struct effect_info *out, bool *existing,
                                 struct error *err);

/* Who is told of dead letters, and of events that were recorded though their run forbids them: each
 * URL by a WEBHOOK_CALL, requested in the commit of the cause, with a key made of that. Borrowed; NULL: nobody. For the ledger's owner, at
 * its start. */
enum { OUTBOX_SINKS_MAX = 8 };
struct outbox_sinks {
    str urls[OUTBOX_SINKS_MAX];
    size_t count;
};
void outbox_tell(struct ledger *ledger, const struct outbox_sinks *sinks);
/* How often effects that are requested from now on are retried, whoever requests them: see
 * effect_retry_of(). Borrowed; NULL: as CANON has it. For the ledger's owner, at its start. */
void outbox_retries(struct ledger *ledger, const struct effect_retry *own);

struct outbox_batch {
    struct effect_info *items;
    size_t count;
    bool more;       /* there may be others that are due now */
    int64_t next_us; /* when the next row that was not taken is due; 0: none that we know of */
};
/* Claims up to `limit` rows that are due, the oldest first, for `lease_ms`: PENDING, FAILED whose
 * time has come, and PROCESSING whose lease has ended, which counts as a failed execution
 * (LEASE_EXPIRED), and may be the last one. `runs`: only those of these runs, a JSON array of their
 * ids; or STR_NONE. */
MUST_CHECK status outbox_claim(struct ledger *ledger, str worker, str runs, size_t limit,
                               int64_t lease_ms, struct arena *arena, struct outbox_batch *out,
                               struct error *err);
/* The end of an execution that was claimed. ST_CONFLICT with EFFECT_MOVED: its lease had ended and
 * somebody else has it; nothing was written. */
MUST_CHECK status outbox_complete(struct ledger *ledger, const struct effect_info *claimed,
                                  str result, str actor, struct error *err);
/* *dead (may be NULL): that was its last. `detail`: more about it for error_details.stack, or
 * STR_NONE. Of long texts the beginning is kept, up to a NUL. */
MUST_CHECK status outbox_fail(struct ledger *ledger, const struct effect_info *claimed, str code,
                              str message, str detail, str actor, bool *dead, struct error *err);
/* Gives back a claim that was not begun: it is due again, and no retry is used up. EFFECT_MOVED as
 * above. */
MUST_CHECK status outbox_release(struct ledger *ledger, const struct effect_info *claimed,
                                 str actor, struct error *err);
/* Ends the leases of up to `limit` effects under way, whenever they would end: for the one worker
 * of a ledger, which knows at its start that nobody is at work on them. */
MUST_CHECK status outbox_expire(struct ledger *ledger, str worker, size_t limit, size_t *count,
                                struct error *err);
/* Puts a dead letter back: PENDING, no retries, no error. ST_NOT_FOUND (EFFECT_NOT_FOUND),
 * ST_CONFLICT (EFFECT_NOT_DEAD). */
MUST_CHECK status outbox_requeue(struct ledger *ledger, str tenant_id, uuid effect_id, str actor,
                                 str reason, const struct append_rider *riders, struct error *err);

struct outbox_filter {
    str tenant_id, run_id, type; /* STR_NONE: any */
    unsigned statuses;           /* bits 1 << enum outbox_status; 0: any */
    int64_t before;              /* newest first; 0: from the newest */
};
struct requeue_lot {
    struct outbox_filter filter; /* `statuses` is set here; `before` goes on to the next lot */
    str actor, reason;
    size_t limit; /* of this lot, which is one commit */
    /* What is committed with each one, in the arena; or NULL. The info is borrowed. */
    const struct append_rider *(*riders)(void *context, const struct effect_info *info,
                                         struct arena *arena);
    void *context;
    size_t done; /* how many were put back, also when it failed then */
    bool more;   /* there are others that match: call again */
};
/* Puts back the dead letters that match, newest first. Those that somebody else has put back
 * meanwhile do not count. */
MUST_CHECK status outbox_requeue_lot(struct ledger *ledger, struct requeue_lot *lot,
                                     struct error *err);

/* ---- reading ---- */

/* tenant_id STR_NONE: any. ST_NOT_FOUND with EFFECT_NOT_FOUND. */
MUST_CHECK status outbox_find(struct ledger *ledger, str tenant_id, uuid effect_id,
                              struct arena *arena, struct effect_info *out, struct error *err);
/* By the key that its caller gave it, in one tenant. ST_NOT_FOUND with EFFECT_NOT_FOUND. */
MUST_CHECK status outbox_find_key(struct ledger *ledger, str tenant_id, str key,
                                  struct arena *arena, struct effect_info *out, struct error *err);
/* At most `limit` (and PAGE_EVENTS_MAX). *next is the `before` to go on with; 0: there is no more.
 */
MUST_CHECK status outbox_list(struct ledger *ledger, const struct outbox_filter *filter,
                              size_t limit, struct arena *arena, struct effect_info **items,
                              size_t *count, int64_t *next, struct error *err);
/* A look at those whose time has come, the longest due first, page by page. */
struct outbox_look {
    int64_t clock_us, latest_us; /* no tenant's newest event is after latest_us (outbox_latest()) */
    str runs;                    /* see outbox_claim() */
    int64_t after_us, after_pos; /* where the page before ended; 0: none yet */
    bool more;                   /* the last page was full */
};
/* Reads the next page of up to `limit` rows. What cannot be read is logged, and left out. */
MUST_CHECK status outbox_due(struct ledger *ledger, struct outbox_look *look, size_t limit,
                             struct arena *arena, struct effect_info **items, size_t *count,
                             struct error *err);
/* The first time after `after_us` at which one is due; 0: none. */
MUST_CHECK status outbox_next_due(struct ledger *ledger, int64_t after_us, int64_t *out,
                                  struct error *err);
/* The newest time that any tenant has, or 0. */
MUST_CHECK status outbox_latest(struct ledger *ledger, int64_t *latest_us, struct error *err);
/* Those under way, the oldest first. */
MUST_CHECK status outbox_processing(struct ledger *ledger, size_t limit, struct arena *arena,
                                    struct effect_info **items, size_t *count, struct error *err);
struct outbox_stats {
    int64_t count[OUTBOX_STATUS_COUNT];
    int64_t oldest_due_us; /* of those that are due or will be; 0: none */
};
MUST_CHECK status outbox_stats(struct ledger *ledger, struct outbox_stats *out, struct error *err);
