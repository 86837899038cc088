/* host/effects.h: the outbox of a host, and the effect steps that wait for it.
 *
 * An effect step asks for its effect through the ledger, with an id that is the same for every
 * attempt: asked again, after a crash or a retry, it finds the one that is there. It ends when the
 * effect is requested, or, if the plan says so, when it was delivered or is dead. */
#pragma once

#include <uv.h>

#include "adapters/executor.h"
#include "ledger/ledger.h"
#include "outbox/dispatch.h"

struct host_effects;

/* What another node delivers is looked for with the readers of the options. */
MUST_CHECK status host_effects_open(uv_loop_t *loop, const struct dispatcher_options *options,
                                    struct host_effects **out, struct error *err);
void host_effects_start(struct host_effects *e, struct attempt *attempt);
/* Its effect goes on; the step does not wait for it any more: `done` comes at once, CANCELLED. */
void host_effects_stop(struct host_effects *e, struct attempt *attempt);
/* See dispatcher_serve(). */
void host_effects_serve(struct host_effects *e, str run_id);
void host_effects_wake(struct host_effects *e);
void host_effects_tell(struct host_effects *e, const struct effect_info *info);
bool host_effects_idle(const struct host_effects *e);
/* Before the writer is closed; and after it, which answers every attempt (CANCELLED). */
void host_effects_halt(struct host_effects *e);
void host_effects_close(struct host_effects *e);
