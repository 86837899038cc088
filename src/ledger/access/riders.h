/* ledger/access/riders.h: how receipts and audit records are written; access.h says what they are.
 */
#pragma once

#include "ledger/access/access.h"

/* What a receipt is found by: the first bytes of a hash of both, never negative. */
int64_t receipt_tag(struct ledger *l, str scope, str key);
/* Queues what travels with a request. */
MUST_CHECK status riders_queue(struct ledger *l, const struct append_rider *riders, int64_t now_us,
                               struct error *err);
/* The same for a ledger_body: in a group it leaves with the rest, else it is sent at once. */
MUST_CHECK status riders_write(struct ledger *l, const struct append_rider *riders,
                               struct error *err);
