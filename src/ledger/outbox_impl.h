/* ledger/outbox_impl.h: what outbox.c asks of outbox_read.c. Nobody else includes it. */
#pragma once

#include "ledger/outbox.h"

MUST_CHECK status outbox_at(struct ledger *l, int64_t pos, struct arena *arena,
                            struct effect_info *out, struct error *err);
/* The time of an effect: the store's clock; but should that be set back, as far as its tenant's
 * was: an effect is due at the time of its event, and a tenant's events never run back. */
static inline int64_t outbox_time(const struct effect_info *info, int64_t clock_us) {
    return info->tenant_us > clock_us ? info->tenant_us : clock_us;
}
/* Those whose time has come, the longest due first. No tenant's newest event is after
 * `latest_us`. */
MUST_CHECK status outbox_due(struct ledger *l, int64_t clock_us, int64_t latest_us, size_t limit,
                             struct arena *arena, struct effect_info **items, size_t *count,
                             struct error *err);
/* Those under way, the oldest first. */
MUST_CHECK status outbox_processing(struct ledger *l, size_t limit, struct arena *arena,
                                    struct effect_info **items, size_t *count, struct error *err);
/* The first time after `after_us` at which one is due; 0: none. */
MUST_CHECK status outbox_next_due(struct ledger *l, int64_t after_us, int64_t *out,
                                  struct error *err);
