/* cli/result.h: how a run ended, for people and for programs. */
#pragma once

#include "cli/source.h"

/* Prints the run as it stands, and sets the exit code by its status. */
MUST_CHECK status result_print(struct cli *cli, struct source *source, str run_id,
                               struct error *err);
