/* outbox/outbox_impl.h: what the files about effects in the ledger share. Deliveries have impl.h.
 */
#pragma once

#include "outbox/change.h"
#include "outbox/outbox.h"

/* ---- facts.c: the facts of one effect that are appended together ---- */

struct facts {
    struct append_item *items;
    size_t count, room;
    struct event ids; /* of their run */
    str subject;      /* the effect's id */
    const uuid *cause;
    struct buf data; /* of the fact that is being made */
    const struct outbox_maker *maker;
};
/* Room for so many facts. Ended by facts_end() or facts_drop(). */
MUST_CHECK status facts_begin(struct facts *f, const struct outbox_maker *maker,
                              const struct event *ids, uuid effect_id, size_t room,
                              struct error *err);
/* The same for an effect that is there: its request is the cause. */
MUST_CHECK status facts_begin_of(struct facts *f, const struct outbox_maker *maker,
                                 const struct effect_info *info, size_t room, struct error *err);
/* What every fact of an effect begins with, and what those of an execution do. */
void facts_head(struct facts *f, uuid id, str run_uuid, str type);
void facts_execution(struct facts *f, const struct effect_info *info);
/* Adds a fact with `data`, which is closed here and emptied for the next one. */
MUST_CHECK status facts_add(struct facts *f, enum event_type type, int64_t occurrence,
                            struct error *err);
/* Makes them the request of *out, or with a status that is not ST_OK drops them; hands that on. */
MUST_CHECK status facts_end(struct facts *f, status st, struct outbox_change *out,
                            struct error *err);
status outbox_no_memory(struct error *err); /* ST_RETRY */

/* ---- alert.c ---- */
/* A ledger_alert_fact. */
MUST_CHECK status outbox_alert_fact(const struct ledger *l, const struct alert *a,
                                    const struct event *ids, size_t sink, struct arena *arena,
                                    struct append_item *out, struct error *err);

/* ---- read.c ---- */

/* All of it, into the arena. false: memory is out. */
MUST_CHECK bool outbox_copy(const struct effect_info *from, struct arena *arena,
                            struct effect_info *out);
/* The time of an effect: the store's clock; but should that be set back, as far as its tenant's
 * was: an effect is due at the time of its event, and a tenant's events never run back. */
static inline int64_t outbox_time(const struct effect_info *info, int64_t clock_us) {
    return info->tenant_us > clock_us ? info->tenant_us : clock_us;
}
