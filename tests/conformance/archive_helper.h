/* tests/conformance/archive_helper.h: what the tests of the archive share. */
#pragma once

#include "conformance/fixture.h"

/* Two tenants; finished, failed and open runs; alerts, facts, corrections, checkpoints, provider
 * references, unknown types, a cause in another run. The ledger records what is forbidden. */
void archive_fill(struct fixture *c);
/* Everything that can be asked: every view, every projection, and the answers of every reading
 * function, by pages of `page` records. The same history gives the same text. */
str archive_picture(struct fixture *c, size_t page);
/* ledger_archive(), which must work. `run` NULL: all that are finished. */
struct archive_report archive_run(struct fixture *c, const char *run);
/* How many of the run's rows a tier ("ledger_event", "ledger_archive") holds. */
int64_t archive_rows(struct fixture *c, const char *tier, const char *run);
