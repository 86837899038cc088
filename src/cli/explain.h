/* cli/explain.h: looking at one run: why it waits, its steps, their output, and its events as they
 * come. All of it from the store alone; `run logs` also reads the data folder. */
#pragma once

#include "cli/cli.h"

/* Shows the run's events on standard error as they come, until it is final or somebody interrupts;
 * *final is its status then. Opens a reader of its own. */
MUST_CHECK status watch_run(struct cli *cli, str run_id, enum run_status *final, struct error *err);
