/* host/sweep.h: a thread that removes the workspaces of runs that are over: at the start, and
 * then regularly, a slice at a time with pauses between them. It asks the ledger on a connection of
 * its own, which is open only during a pass.
 * Threads: all calls on the host's thread. */
#pragma once

#include "host/host.h"

enum {
    SWEEP_PAUSE_MS = 50,    /* between two slices */
    SWEEP_ENDED_MAX = 1024, /* runs whose end was told and not seen to; a pass finds the others */
    SWEEP_CLOSE_MAX = 16,   /* workspaces that are removed while it closes; more get out of sight */
};
#define SWEEP_PERIOD_MIN_US ((int64_t)10 * 60 * 1000000)
#define SWEEP_PERIOD_MAX_US ((int64_t)60 * 60 * 1000000)

struct host_sweep_options {
    str url, data_dir; /* borrowed until it is closed */
    int64_t keep_us;   /* as in host_options, but not 0 */
    int64_t period_us; /* between two passes; 0: a tenth of keep_us, within the bounds above */
};

struct host_sweep;
MUST_CHECK status host_sweep_open(const struct host_sweep_options *options, struct host_sweep **out,
                                  struct error *err);
/* A run is over, durably. Of use if workspaces are not kept at all. NULL is fine. */
void host_sweep_ended(struct host_sweep *sweep, str run_id);
/* Ends the thread. Workspaces that are not kept are gone then; of a very large one the bytes may go
 * at the next start. NULL is fine. */
void host_sweep_close(struct host_sweep *sweep);
