/* ledger/event_row.h: one event as it is stored, and how its columns are read. */
#pragma once

#include "db/db.h"

struct event_row {
    int64_t pos, run_no, run_seq, type_no, context_no, engine_attempt, logical_attempt, emitted_ns,
        emitted_digits, persisted_us, cause_seq; /* run_seq and cause_seq: 0 is NULL */
    int64_t step_index;                          /* -1 is NULL */
    str event_id, key, subject, actor, payload;
};
/* What select(tier) gives for each tier of the events, all in one statement: a run that is being
 * archived meanwhile is seen in exactly one of them. ORDER BY and LIMIT, if any, come after it. */
#define BOTH_TIERS(select) select("ledger_event") " UNION ALL " select("ledger_archive")

/* The first columns of a statement that selects EVENT_ROW_COLUMNS, borrowed until its next step;
 * then comes what it selects besides. */
#define EVENT_ROW_COLUMNS                                                                          \
    "e.pos, e.run_no, e.run_seq, e.type_no, e.context_no, e.engine_attempt, e.logical_attempt, "   \
    "e.emitted_ns, e.emitted_digits, e.persisted_us, e.cause_seq, e.step_index, e.event_id, "      \
    "e.key, e.subject, e.actor, e.payload, e.hash"
enum { EVENT_ROW_HASH = 17, EVENT_ROW_COUNT = 18 };
void event_row_read(struct db_stmt *st, struct event_row *row);
