/* cli/plan.h: cairn plan ... */
#pragma once

#include "cli/cli.h"

status cmd_plan_validate(struct cli *cli, struct error *err);
status cmd_plan_graph(struct cli *cli, struct error *err);
status cmd_plan_schema(struct cli *cli, struct error *err);
status cmd_plan_ref(struct cli *cli, struct error *err);
status cmd_plan_put(struct cli *cli, struct error *err);
status cmd_plan_capabilities(struct cli *cli, struct error *err);
