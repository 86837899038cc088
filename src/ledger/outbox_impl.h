/* ledger/outbox_impl.h: what outbox.c asks of outbox_read.c. Nobody else includes it. */
#pragma once

#include "ledger/outbox.h"

MUST_CHECK status outbox_at(struct ledger *l, int64_t pos, struct arena *arena,
                            struct effect_info *out, struct error *err);
/* Those whose time has come, the longest due first. */
MUST_CHECK status outbox_due(struct ledger *l, int64_t now_us, size_t limit, struct arena *arena,
                             struct effect_info **items, size_t *count, struct error *err);
/* Those under way, the oldest first. */
MUST_CHECK status outbox_processing(struct ledger *l, size_t limit, struct arena *arena,
                                    struct effect_info **items, size_t *count, struct error *err);
/* The first time after `after_us` at which one is due; 0: none. */
MUST_CHECK status outbox_next_due(struct ledger *l, int64_t after_us, int64_t *out,
                                  struct error *err);
