/* ledger/replay.h: the reducer over stored rows. */
#pragma once

#include "core/run.h"
#include "ledger/event_row.h"
#include "ledger/ledger.h"
#include "ledger/seen.h"

/* Reduces a run's events in order: calls `on_bad` for each forbidden one. With `seen`, also
 * collects the ids. */
typedef status (*replay_hook)(void *context, const struct event_row *row,
                              const struct event_record *rec, const struct transition *bad,
                              struct error *err);
struct replay {
    int64_t run_no, tenant_no;
    int64_t after_seq;  /* start after this sequence_number */
    int64_t at_run_seq; /* stop after this runSeq; 0: no bound */
    struct run *run;
    struct seen *seen; /* or NULL */
    struct arena *arena;
    replay_hook on_event; /* or NULL; `bad` is NULL for a legal event */
    void *context;
    int64_t applied; /* out */
};
MUST_CHECK status replay_run(struct ledger *l, struct replay *r, struct error *err);

/* A RunProviderLinked payload; false when it is not of the documented form. */
struct provider_ref {
    str provider, workflow_id, provider_run_id;
};
bool provider_ref_parse(str payload, struct arena *arena, struct provider_ref *out);
