/* host/providers.h: the providers of a host: Temporal, Conductor, and what they and the engine
 * tell each other.
 * Threads: all calls on the loop's thread. */
#pragma once

#include "adapters/conductor/conductor.h"
#include "adapters/temporal/temporal.h"
#include "engine/engine.h"
#include "host/plans.h"

struct host_providers;

struct host_providers_options {
    const struct temporal_options *temporal;   /* or NULL */
    const struct conductor_options *conductor; /* or NULL */
    str node;
    struct executor *executor;
    struct host_plans *plans;
    struct host *host;
    struct metrics *metrics; /* or NULL */
};

MUST_CHECK status host_providers_open(uv_loop_t *loop, const struct host_providers_options *options,
                                      struct host_providers **out, struct error *err);
/* For struct engine_options: NULL where there is no such provider. */
const char *host_providers_ref(const struct host_providers *p, enum adapter_kind adapter);
/* The engine begins, or ends: from then on, or until then, providers may call it. */
void host_providers_attach(struct host_providers *p, struct engine *engine);

/* What the engine tells; an attempt of a provider that is not there is answered CANCELLED. */
void host_providers_start(struct host_providers *p, struct attempt *attempt);
void host_providers_stop(struct host_providers *p, struct attempt *attempt);
void host_providers_leave(struct host_providers *p, struct attempt *attempt);
void host_providers_open_run(struct host_providers *p, enum adapter_kind adapter,
                             const struct provider_run *run);
void host_providers_rested(struct host_providers *p, enum adapter_kind adapter, str run_id);
void host_providers_observe(struct host_providers *p, const struct engine_note *note);
bool host_providers_idle(const struct host_providers *p); /* every run that has ended is closed */

/* Before the executor is closed: nothing more is begun. Attempts that the engine still waits for
 * are answered when it leaves them. NULL is fine. */
void host_providers_halt(struct host_providers *p);
/* After the engine is closed. NULL is fine. */
void host_providers_close(struct host_providers *p);
