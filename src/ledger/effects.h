/* ledger/effects.h: the effects of a run, in the order of their requests, as its EFFECT facts say.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "core/effect.h"
#include "core/event.h"

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

/* The key under which the outbox holds an effect: the tenant's number before it, so that no two
 * tenants share one. */
enum { STORED_KEY_MAX = 255 };
void effect_stored_key(int64_t tenant_no, str key, struct buf *out);

/* ---- what the outbox asks of a ledger (outbox.h) ---- */

struct ledger;
struct alert;
struct append_item;
struct outbox_sinks;
/* Makes the fact that tells sink number `sink` of an event; it lives in the arena. */
typedef status ledger_alert_fact(const struct ledger *l, const struct alert *what,
                                 const struct event *run_ids, size_t sink, struct arena *arena,
                                 struct append_item *out, struct error *err);
struct ledger_outbox {                  /* borrowed */
    const struct outbox_sinks *sinks;   /* outbox_tell(); or NULL */
    const struct effect_retry *retries; /* outbox_retries(); or NULL */
    size_t alert_count;                 /* so many are told of an event that its run forbids, */
    ledger_alert_fact *alert; /* each by this fact of the run, in the same commit; or NULL */
};
struct ledger_outbox *ledger_outbox(struct ledger *ledger);
const struct ledger_outbox *ledger_outbox_of(const struct ledger *ledger); /* to read it */
