/* core/effect.h: an effect: something to be done outside, once it is in the ledger. Pure.
 *
 * EffectRequested makes it; EffectExecuting says that a worker took it, for the n-th time; then
 * EffectCompleted, or EffectFailed followed by EffectRetrying (a time for the next execution) or
 * EffectDeadLettered. An operator puts a dead letter back with EffectRetrying, and so does a worker
 * that ends with what it has not begun. The n of its facts' occurrence is that of the execution.
 * effect_apply() is the one reducer: append, rebuild and verify use it, and the outbox is nothing
 * but its result. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"
#include "core/event.h"

enum outbox_status {
    OUTBOX_NONE, /* not requested */
    OUTBOX_PENDING,
    OUTBOX_PROCESSING,
    OUTBOX_COMPLETED,
    OUTBOX_FAILED, /* and its next execution has a time */
    OUTBOX_DEAD_LETTER,
    OUTBOX_STATUS_COUNT,
};
const char *outbox_status_name(enum outbox_status s); /* "PENDING", ... */
enum outbox_status outbox_status_named(str name);     /* OUTBOX_NONE: no such status */

enum {
    EFFECT_TYPE_MAX = 100,     /* bytes */
    EFFECT_KEY_MAX = 235,      /* bytes; the outbox puts the tenant's number before it */
    EFFECT_RETRIES_MAX = 1000, /* more than anybody waits for */
    EFFECT_RETRIES = 3,        /* of a type that the configuration does not name */
    EFFECT_BASE_MS = 1000,
};
#define EFFECT_DELAY_MAX_MS ((int64_t)24 * 3600 * 1000)
#define EFFECT_KEY_ALERT "ALERT:" /* keys of alerts begin so, and no caller's does */

struct effect {
    enum outbox_status status;
    int64_t executions;  /* EffectExecuting so far */
    int64_t retry_count; /* failures since it was requested, or put back */
    int64_t max_retries, base_ms;
    int64_t due_us; /* PENDING, FAILED: when to execute it. PROCESSING: the lease ends. Else 0 */
    int64_t created_us, processed_us; /* processed: 0 until COMPLETED */
    int64_t requested_seq;            /* sequence_numbers: of EffectRequested, */
    int64_t result_seq, error_seq; /* EffectCompleted, and the newest failure that counts; or 0 */
    int64_t last_seq;
    uuid id;
    str type, key; /* the key as the caller and the receiver see it */
};

/* Reduces one EFFECT fact. ST_CONFLICT (EFFECT_MOVED) when the effect is not where the fact needs
 * it, or an execution comes before its time; ST_INVALID (EFFECT_DATA_INVALID) when the fact's data
 * lacks a member: nothing changed. Texts of a new effect live in the arena. */
MUST_CHECK status effect_apply(struct effect *effect, const struct event_record *rec,
                               struct arena *arena, struct error *err);

/* ---- how often, and when again ---- */

struct effect_retry {
    str type; /* STR_NONE ends a list */
    int64_t max_retries, base_ms;
};
/* What holds for the type: the first of `own` (ended by a type of STR_NONE; or NULL) that names it,
 * else CANON's: SEND_EMAIL 3 x 2000, API_CALL 5 x 1000, SOR_UPDATE 1 x 5000, else 3 x 1000. */
struct effect_retry effect_retry_of(str type, const struct effect_retry *own);
/* 2^retry_count x base, at most EFFECT_DELAY_MAX_MS. */
int64_t effect_backoff_ms(int64_t retry_count, int64_t base_ms);

/* ---- its key ---- */

/* The caller's own, which the payload holds as idempotency_key, else
 * EFFECT:{effect id}:{type}:{SHA-256 of the canonical payload}: members sorted at any depth,
 * without idempotency_key. ST_INVALID with EFFECT_KEY_INVALID: empty, too long, with characters
 * that no header holds, or one of an alert. `scratch` is for the sorting. */
MUST_CHECK status effect_key(uuid effect_id, str type, yyjson_val *payload, struct arena *scratch,
                             struct buf *out, struct error *err);
