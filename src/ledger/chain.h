/* ledger/chain.h: the hash that ties each event of a tenant to the one before it. */
#pragma once

#include "base/hash.h"
#include "ledger/event_row.h"

/* What the row that opens a run adds to its hash: the identity that the other rows only refer to.
 */
struct run_identity {
    str tenant_id, run_id, run_uuid, project_id, environment_id, correlation_id, signal_id;
};
/* hash = SHA-256(prev, every stored column, the identity if the row opens its run). */
void chain_hash(struct sha256 *sha, const uint8_t prev[SHA256_LEN], const struct event_row *row,
                const struct run_identity *opens, uint8_t out[SHA256_LEN]);
/* The hash before a tenant's first event. */
void chain_genesis(struct sha256 *sha, str tenant_id, uint8_t out[SHA256_LEN]);
