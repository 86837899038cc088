/* adapters/conductor/conductor.h: runs that a Conductor cluster (OSS, REST) dispatches.
 *
 * A run is one workflow there, with an inline definition made of its plan (def.h) and our run id as
 * its correlationId. Each step is one task of the type "cairn_step", offered in the domain of the
 * node that carries the run out. That node polls for it, keeps it alive, and answers it when the
 * ledger says that the step is settled; an attempt of the step is executed here while its task is
 * in hand. Logical retries are the engine's: Conductor sees one task a step, and its own retries
 * are workers that died.
 *
 * conductor.c opens, closes and hears the engine. runs.c keeps the runs (adapters/provider_runs.h):
 * workflow.c has what is done about a workflow until its run is over, ending.c how it ends. polls.c
 * asks for tasks, steps.c keeps and answers them, jobs.c has them carried out; rest.c calls the
 * cluster; def.c is pure.
 *
 * A cluster that is away is waited for, with one line in the log when it goes and one when it comes
 * back. */
#pragma once

#include <uv.h>

#include "adapters/provider.h"

enum {
    CONDUCTOR_SLOTS = 16,          /* attempts executed at once, if the options name no number */
    CONDUCTOR_SLOTS_MAX = 256,     /* as many as the local executor has processes */
    CONDUCTOR_POLL_MS = 500,       /* between two questions for tasks when none is expected */
    CONDUCTOR_RECONCILE_MS = 5000, /* between two looks at the workflow of an open run */
    CONDUCTOR_STEPS_MAX = 10000,   /* of a plan: a workflow is one document there */
};

struct conductor_options { /* zero stands for the default */
    str url;  /* http://host:port, with or without /api. The operator's: any address is fine */
    str node; /* the name of this node: the domain of the tasks of its runs */
    int slots;
    int64_t poll_ms;
};

/* Opens a provider on `loop`. Nothing is asked of the cluster before this returns, and it need not
 * be there. The ports are copied, their context and the executor are borrowed until the last memory
 * is freed by the loop, after provider->ops->close(). ST_INVALID: CONDUCTOR_URL_INVALID. */
MUST_CHECK status conductor_open(uv_loop_t *loop, const struct conductor_options *options,
                                 const struct provider_ports *ports, struct provider **out,
                                 struct error *err);
/* Asks the cluster whether it is well; waits some seconds at most. ST_RETRY: it does not say so. */
MUST_CHECK status conductor_probe(const struct conductor_options *options, struct arena *arena,
                                  struct error *err);
