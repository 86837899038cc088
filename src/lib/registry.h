/* lib/registry.h: a producer's EventIdRegistry: which eventId belongs to (runId,
 * idempotencyKey).
 *
 * A producer asks here before it appends, so that every retry of an event, in this process or in
 * one started after a crash, carries the same id. The first id written for a pair wins, whoever
 * else asks at the same time; only registry_adopt() replaces it, by what the Append Authority said.
 *
 * Two kinds. A durable one is a table in any database of the producer's (not in the ledger's own
 * SQLite file, which has one writer): producer_event_ids(run_id, key, event_id), key and event_id
 * as bytes, primary key (run_id, key) and an id is committed before it is returned. The one in
 * memory is for producers whose state is replayed: after a restart it is empty, and registry_fill()
 * rebuilds it from the recorded state.
 *
 * Threads: a registry belongs to one thread. Any number of them, in any processes, may share a
 * table. */
#pragma once

#include "base/error.h"
#include "base/hash.h"
#include "base/str.h"
#include "base/uuid.h"
#include "ledger/ledger.h"

struct registry;

struct registry_entry {
    str run_id;
    uint8_t key[SHA256_LEN];
    uuid event_id;
    bool fresh; /* the pair was not there before */
};

/* Opens the table at `url` (see db.h), making it if it is missing. The caller ends it with
 * registry_close(). After a failed call the connection is made anew. */
MUST_CHECK status registry_open(str url, struct registry **out, struct error *err);
/* The same over connections that `connect` makes, which the registry then owns. */
MUST_CHECK status registry_open_with(ledger_connect connect, void *context, struct registry **out,
                                     struct error *err);
MUST_CHECK status registry_open_memory(struct registry **out, struct error *err);
void registry_close(struct registry *r); /* NULL is fine */
bool registry_is_durable(const struct registry *r);

/* The id of the pair. The first time it is a fresh UUID v4, durable before this returns; afterwards
 * it is always that one. ST_RETRY: it may or may not have been written; nothing may be sent yet. */
MUST_CHECK status registry_get(struct registry *r, str run_id, const uint8_t key[SHA256_LEN],
                               uuid *event_id, bool *fresh, struct error *err);
/* The same for at most BATCH_EVENTS_MAX pairs in one commit: fills event_id and fresh of each,
 * which mean nothing after a failure. */
MUST_CHECK status registry_get_many(struct registry *r, struct registry_entry *entries,
                                    size_t count, struct error *err);
/* Registers an id that the caller generated; *kept is the one that holds: his, or an earlier one.
 */
MUST_CHECK status registry_put(struct registry *r, str run_id, const uint8_t key[SHA256_LEN],
                               uuid event_id, uuid *kept, struct error *err);
/* Replaces the id of the pair by the one that the Append Authority returned. */
MUST_CHECK status registry_adopt(struct registry *r, str run_id, const uint8_t key[SHA256_LEN],
                                 uuid event_id, struct error *err);
/* Adopts the id of every event among the records, as read with ledger_read_run(): replay. */
MUST_CHECK status registry_fill(struct registry *r, const struct event_page *page,
                                struct error *err);
/* Drops all pairs of a run that will not be sent again, so that the registry does not grow for
 * ever. */
MUST_CHECK status registry_forget_run(struct registry *r, str run_id, struct error *err);
