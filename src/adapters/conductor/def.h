/* adapters/conductor/def.h: a plan as Conductor has it. Pure.
 *
 * Every step is one SIMPLE task, whatever its type: Conductor's page shows the graph of the plan.
 * The steps are laid out as paths along the edges of the plan. A plan that is one path is a plain
 * list of tasks. Else there is one FORK_JOIN with a branch a path, and before a step with
 * predecessors in other branches a JOIN that waits for them; a JOIN at the end waits for the last
 * step of each branch. Order within a branch stands for an edge of the plan, so the workflow allows
 * exactly what the plan does.
 *
 * Conductor replaces "${...}" in the inputs of tasks, and splits domains and references at some
 * characters: what ids hold is made harmless here. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "core/plan.h"

#define DEF_TASK_TYPE "cairn_step"
#define DEF_NAME_PREFIX "plan_"

enum {
    DEF_LEASE_S = 20,        /* a task of which nothing is heard for so long was lost */
    DEF_RETRIES_MAX = 10000, /* workers that may die on one step */
    DEF_NAME_MAX = 100,      /* bytes of a name, domain or reference made of an id */
};
#define DEF_BYTES_MAX ((size_t)16 * 1024 * 1024) /* of a request to start a workflow */

struct def_start {
    str run_id, tenant_id, project_id, environment_id;
    const struct plan *plan;
    str domain;
};

/* The body of POST /workflow. ST_LIMIT: the plan makes more than `out` may hold; ST_RETRY: memory
 * is out. `scratch` is for the time of the call. */
MUST_CHECK status def_start_json(const struct def_start *start, struct arena *scratch,
                                 struct buf *out, struct error *err);
/* The body of POST /metadata/taskdefs: the one type of task that we have. */
void def_task_types_json(struct buf *out);
/* The name of the plan's workflows. */
void def_workflow_name(str plan_id, struct buf *out);
/* The domain of a node's tasks. */
void def_domain(str node, struct buf *out);
/* A step id as it stands in the input of its task, and back. false: nothing that def_step_put()
 * writes. */
void def_step_put(str step_id, struct buf *out);
MUST_CHECK bool def_step_take(str text, struct buf *out);
