/* outbox/change.h: changes of effects as members of a group.
 *
 * Each function here makes the facts of one change of one effect into one atomic append request,
 * and writes nothing. Whoever has it submits it like any other append, so that many share a commit.
 * It may be made on any thread, from what a reader saw: the ledger's judge decides inside the group
 * (effects_check(), ledger/effects.c). What has moved since it was read is refused, and what two
 * workers claim is claimed by the first. outbox_outcome() then tells what became of it.
 *
 * A change may be submitted again when nobody knows whether its commit succeeded: its facts keep
 * their ids, so it is known for what it is. */
#pragma once

#include "outbox/outbox.h"

struct outbox_settings {
    const struct outbox_sinks *sinks; /* who is told of dead letters; or NULL */
    const struct effect_retry
        *retries; /* of effects requested from now on; NULL: as CANON has it */
};
/* What outbox_tell() and outbox_retries() have set. */
struct outbox_settings outbox_settings(const struct ledger *ledger);

struct outbox_maker { /* who makes a change, when, and where; all of it is borrowed */
    struct outbox_settings settings;
    str actor;
    int64_t now_us;      /* the store's clock */
    struct arena *arena; /* holds the change */
};

enum outbox_change_kind {
    OUTBOX_REQUEST,
    OUTBOX_CLAIM,
    OUTBOX_COMPLETION,
    OUTBOX_FAILURE,
    OUTBOX_RELEASE,
    OUTBOX_REQUEUE,
    OUTBOX_EXPIRY,
};

struct outbox_change {
    enum outbox_change_kind kind;
    struct append_request request; /* to be appended */
    struct effect_info info;       /* the effect as it is once that is committed */
    bool dead;                     /* it was executed for the last time */
};

/* EffectRequested. The run and what causes the request are read; reasons as outbox_request() has
 * them. Until outbox_outcome() the info has no times and no numbers of the ledger. */
MUST_CHECK status outbox_make_request(const struct outbox_maker *maker, struct ledger *reader,
                                      const struct effect_request *request,
                                      struct outbox_change *out, struct error *err);
/* EffectExecuting, of an effect that is due. If the lease of another worker has ended, that counts
 * as a failed execution (LEASE_EXPIRED) first, and may be its last: then there is no claim. */
MUST_CHECK status outbox_make_claim(const struct outbox_maker *maker, const struct effect_info *due,
                                    int64_t lease_ms, struct outbox_change *out, struct error *err);
/* EffectCompleted. `result` is JSON; STR_NONE: null. */
MUST_CHECK status outbox_make_completion(const struct outbox_maker *maker,
                                         const struct effect_info *claimed, str result,
                                         struct outbox_change *out, struct error *err);
struct effect_failure { /* of long texts the beginning is kept, up to a NUL */
    str code, message;
    str detail; /* for error_details.stack; or STR_NONE */
};
/* EffectFailed and EffectRetrying, or EffectDeadLettered with the alerts. */
MUST_CHECK status outbox_make_failure(const struct outbox_maker *maker,
                                      const struct effect_info *claimed,
                                      const struct effect_failure *failure,
                                      struct outbox_change *out, struct error *err);
/* A claim that was not begun is given back: it is due again, and no retry is used up. */
MUST_CHECK status outbox_make_release(const struct outbox_maker *maker,
                                      const struct effect_info *claimed, struct outbox_change *out,
                                      struct error *err);
/* A dead letter is put back. ST_CONFLICT (EFFECT_NOT_DEAD). */
MUST_CHECK status outbox_make_requeue(const struct outbox_maker *maker,
                                      const struct effect_info *dead, str reason,
                                      struct outbox_change *out, struct error *err);
/* The lease of an effect under way is ended, whenever it would end. */
MUST_CHECK status outbox_make_expiry(const struct outbox_maker *maker,
                                     const struct effect_info *under_way, struct outbox_change *out,
                                     struct error *err);

/* Once the request was committed. ST_OK: the change is in the ledger; of a request *existing, if
 * the tenant had an effect with that key, or the run this very one: then `info` is not it, and
 * outbox_existing() reads it. Else nothing was written: the ledger's refusal;
 * ST_CONFLICT with EFFECT_MOVED: another worker has it, or had ended its lease; EFFECT_NOT_DEAD:
 * somebody else has put it back. `existing` may be NULL. */
MUST_CHECK status outbox_outcome(struct outbox_change *change, bool *existing, struct error *err);
/* The effect that a request has found, as it is now; and a line in the log if it is done. */
MUST_CHECK status outbox_existing(struct ledger *reader, const struct outbox_change *change,
                                  struct arena *arena, struct effect_info *out, struct error *err);
/* Says in the log that a lease has ended without a word, if this change was the one to tell of it:
 * nobody else says so of an effect whose worker is gone. */
void outbox_log_expiry(const struct outbox_change *change);
