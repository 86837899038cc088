/* ledger/id_lots.h: which event has this id? The ids of a tenant's events are sorted in lots of
 * ID_LOT_EVENTS, once a lot is full: an index that grows by whole blocks and is never changed. */
#pragma once

#include "ledger/dict.h"
#include "ledger/ledger.h"

/* Sorts the event ids of full lots into state_lot, in a transaction of its own. */
enum { ID_LOT_BITS = 15, ID_LOT_EVENTS = 1 << ID_LOT_BITS, ID_LOT_BUCKETS = 64 };
/* Remembers the id of a stored event, in order, so that sealing need not read its lot back. */
void id_lots_note(struct ledger *l, struct tenant *t, int64_t seq, uuid id);
MUST_CHECK status id_lots_seal(struct ledger *l, struct error *err);
/* How many lots of the tenant are sealed. */
MUST_CHECK status id_lots_sealed(struct ledger *l, int64_t tenant_no, int64_t *lots,
                                 struct error *err);
/* Seals what is full, inside the caller's transaction. */
MUST_CHECK status id_lots_write_missing(struct ledger *l, struct tenant *t, struct error *err);
/* Whether the sealed lots of a tenant with `seq` events hold what its events say. */
MUST_CHECK status id_lots_verify(struct ledger *l, int64_t tenant_no, int64_t seq, bool *same,
                                 struct error *err);
/* The position of an event id, newest first over `tenant_no` (0: all tenants); ST_NOT_FOUND. */
MUST_CHECK status id_lots_find(struct ledger *l, int64_t tenant_no, uuid id, int64_t *pos,
                               struct error *err);
