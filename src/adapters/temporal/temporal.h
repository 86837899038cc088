/* adapters/temporal/temporal.h: a Temporal cluster as a provider (adapters/provider.h).
 *
 * Each run has one workflow execution of type `plan.run`, whose id is the run id. It decides
 * nothing: its history is read as a list of facts (history.h), and what the engine wants is added
 * to it as activities of type `plan.step`, one for each attempt, named "<stepId>#<attempt>". So an
 * attempt is scheduled once however often it is asked for, a dead worker's attempt goes to another
 * worker, and a node that comes back finds its attempts where it left them.
 *
 * Queues: the workflow tasks of a run are offered in "<queue>.<node>", because only the node that
 * holds the run's lease can answer them; activities in "<queue>", which all nodes share.
 *
 * temporal.c opens and closes. runs.c keeps the runs (adapters/provider_runs.h): calls.c asks the
 * cluster about them, news.c tells the engine of them. tasks.c answers workflow tasks; worker.c
 * carries out activities; rpc.c calls the cluster; history.c and commands.c are pure. */
#pragma once

#include <uv.h>

#include "adapters/provider.h"

enum {
    TEMPORAL_SLOTS = 16, /* activities at once, unless the options say otherwise */
    TEMPORAL_SLOTS_MAX = 1024,
    TEMPORAL_POLLERS = 2, /* of workflow tasks */
    TEMPORAL_POLLERS_MAX = 16,
};

struct temporal_options { /* zero and STR_NONE stand for the default; all is copied */
    str target;           /* host:port */
    bool tls;
    str ca_file;             /* certificates to trust; default: the system's */
    str cert_file, key_file; /* our own, for a cluster that wants one */
    str server_name;         /* what its certificate must say; default: the host of target */
    str api_key;             /* sent as a bearer token; never logged */
    str ns;                  /* the namespace: "default"; registered if it is not there */
    str queue;               /* "cairn" */
    str node;                /* the name of this node: "node"; it must outlive a restart */
    int slots;               /* activities at once; -1: none, this process only decides */
    int pollers;             /* of workflow tasks */
    /* For tests: how often runs are looked at without being asked (30 s), how often executions that
     * should be closed are searched for (5 min), the heartbeat that the cluster insists on (20 s),
     * how long a workflow task is held for the engine (2 s), and when a run of which nothing is
     * wanted is forgotten (10 min). */
    int64_t look_ms, sweep_ms, heartbeat_ms, hold_ms, idle_ms;
};

/* Opens the provider and begins to poll; a cluster that cannot be reached yet is tried again for
 * ever. `ports` is copied. ST_INVALID when an option is wrong, ST_RETRY when memory is out. Ended
 * by
 * (*out)->ops->close(), which ends what this process executes (SIGTERM, then SIGKILL) and tells the
 * cluster so: ports->executor must live, and the loop run, until that is done. */
MUST_CHECK status temporal_open(uv_loop_t *loop, const struct temporal_options *options,
                                const struct provider_ports *ports, struct provider **out,
                                struct error *err);
/* Asks the cluster for its version, which lives in the arena; waits some seconds at most. ST_RETRY:
 * it does not answer. */
MUST_CHECK status temporal_probe(const struct temporal_options *options, struct arena *arena,
                                 str *version, struct error *err);
