/* ledger/schema.h: the tables, views and triggers, with versioned migrations. */
#pragma once

#include "db/db.h"

enum { LEDGER_SCHEMA_VERSION = 4 };

/* Creates or migrates, in one transaction. ST_INVALID when the ledger is of a newer version than
 * this program. */
MUST_CHECK status schema_migrate(struct db *db, struct error *err);
/* ST_NOT_FOUND without a ledger, ST_INVALID when it is of another version. */
MUST_CHECK status schema_check(struct db *db, struct error *err);

/* Lets the views over events read the archive, too (schema.c); inside a write transaction. */
MUST_CHECK status schema_archive_views(struct db *db, struct error *err);

/* Something of the event y at a position, in whichever tier it is: an SQL expression. */
#define EVENT_AT(what, position)                                                                   \
    "COALESCE((SELECT " what " FROM ledger_event y WHERE y.pos = " position "), (SELECT " what     \
    " FROM ledger_archive y WHERE y.pos = " position "))"

/* A position packs the tenant's number and the tenant's sequence_number, so that one integer
 * primary key is append-only for each tenant and serves as the index over (tenant,
 * sequence_number). */
enum { SEQ_BITS = 40 };
#define SEQ_MASK (((int64_t)1 << SEQ_BITS) - 1)
static inline int64_t pos_of(int64_t tenant_no, int64_t seq) {
    return (tenant_no << SEQ_BITS) | seq;
}
static inline int64_t pos_seq(int64_t pos) { return pos & SEQ_MASK; }
static inline int64_t pos_tenant(int64_t pos) { return pos >> SEQ_BITS; }

/* A step's key packs the run's number and the step's index, the order in which the run first named
 * it. */
enum { STEP_BITS = 20 };
static inline int64_t step_pos(int64_t run_no, int64_t step_index) {
    return (run_no << STEP_BITS) | step_index;
}
