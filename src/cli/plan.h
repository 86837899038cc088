/* cli/plan.h: cairn plan ... */
#pragma once

#include "cli/cli.h"
#include "core/plan.h"
#include "core/plan_ref.h"

/* Puts a plan where whoever carries it out finds it: in the data folder, or on the server. */
MUST_CHECK status plan_keep(struct cli *cli, const struct plan *plan, str text,
                            struct plan_ref *ref, struct error *err);
