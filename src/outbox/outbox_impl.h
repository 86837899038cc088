/* outbox/outbox_impl.h: what outbox.c asks of outbox_read.c. Nobody else includes it. */
#pragma once

#include "outbox/outbox.h"

MUST_CHECK status outbox_at(struct ledger *l, int64_t pos, struct arena *arena,
                            struct effect_info *out, struct error *err);
/* The time of an effect: the store's clock; but should that be set back, as far as its tenant's
 * was: an effect is due at the time of its event, and a tenant's events never run back. */
static inline int64_t outbox_time(const struct effect_info *info, int64_t clock_us) {
    return info->tenant_us > clock_us ? info->tenant_us : clock_us;
}
/* A look at those whose time has come, the longest due first, page by page. */
struct outbox_look {
    int64_t clock_us, latest_us; /* no tenant's newest event is after latest_us */
    str runs;                    /* see outbox_claim() */
    int64_t after_us, after_pos; /* where the page before ended; 0: none yet */
    bool more;                   /* the last page was full */
};
/* Reads the next page of up to `limit` rows. What cannot be read is logged, and left out. */
MUST_CHECK status outbox_due(struct ledger *l, struct outbox_look *look, size_t limit,
                             struct arena *arena, struct effect_info **items, size_t *count,
                             struct error *err);
/* Those under way, the oldest first. */
MUST_CHECK status outbox_processing(struct ledger *l, size_t limit, struct arena *arena,
                                    struct effect_info **items, size_t *count, struct error *err);
/* The first time after `after_us` at which one is due; 0: none. */
MUST_CHECK status outbox_next_due(struct ledger *l, int64_t after_us, int64_t *out,
                                  struct error *err);
