/* ledger/claim.h: what a node's commit checks and changes of its lease on the run (lease.c). */
#pragma once

#include "ledger/ledger.h"

/* The fence of a request: *why is filled when its node has lost its lease. */
MUST_CHECK status claim_check(struct ledger *l, const struct run_claim *claim, struct error *why,
                              struct error *err);
/* Queues what the claim changes. */
MUST_CHECK status claim_queue(struct ledger *l, const struct run_claim *claim, int64_t run_no,
                              struct error *err);
