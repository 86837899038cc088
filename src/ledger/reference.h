/* ledger/reference.h: an EngineRunRef and the run that it names.
 *
 * What a reference must say beyond the run's id stands in the run's rows: its launch names the
 * provider and where that is, each RunProviderLinked a workflow that carries it out. */
#pragma once

#include "core/run_ref.h"
#include "ledger/ledger.h"

/* How the run is named to whoever executes it: its launch says, and its first link with a provider.
 * One that was not launched by an engine is local. */
MUST_CHECK status run_ref_find(struct ledger *reader, const struct run_info *info,
                               struct arena *arena, struct engine_run_ref *out, struct error *err);
/* Whether the reference is one to this run, whose id it has. RUN_REF_MISMATCH (ST_CONFLICT) with
 * the member that is another one. workflowId may be that of any of its links, or the run's own id,
 * as in the answer to its start. taskQueue is for people who look for the worker, and is not
 * compared. */
MUST_CHECK status run_ref_match(struct ledger *reader, const struct run_info *info,
                                const struct engine_run_ref *ref, struct error *err);
/* The run that the reference names. RUN_REF_INVALID, RUN_NOT_FOUND, RUN_REF_MISMATCH. */
MUST_CHECK status run_ref_resolve(struct ledger *reader, const struct engine_run_ref *ref,
                                  struct arena *arena, struct run_info *out, struct error *err);
