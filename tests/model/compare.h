/* tests/model/compare.h: the ledger's answers, rows and views beside the model's. Each function
 * answers true, or false with the first difference in *why. */
#pragma once

#include "base/buf.h"
#include "model/model.h"

bool compare_result(const struct append_result *got, struct model_result *want, struct buf *why);
/* Everything the ledger can tell about the model's runs and tenants: the record streams, heads,
 * steps, states at earlier positions, alerts. */
bool compare_ledger(struct ledger *l, const struct model *m, struct buf *why);
/* The look-ups: by eventId, cause, trace, time, provider and tenant. */
bool compare_queries(struct ledger *l, const struct model *m, struct buf *why);
/* verify --state finds nothing. */
bool compare_verify(struct ledger *l, struct buf *why);
