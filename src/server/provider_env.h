/* server/provider_env.h: the clusters that may dispatch runs, as the environment names them: the
 * variables of docs/providers.md, CAIRN_TEMPORAL* and CAIRN_CONDUCTOR*. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "host/host.h"

/* Fills options->temporal and options->conductor, or leaves them NULL; all lives in the arena.
 * Reason USAGE. */
MUST_CHECK status provider_env(struct host_options *options, struct arena *arena,
                               struct error *err);
