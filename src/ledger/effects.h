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
