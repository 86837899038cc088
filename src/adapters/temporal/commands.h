/* adapters/temporal/commands.h: what is answered to a workflow task. Pure.
 *
 * (history, what is wanted) -> commands. Every attempt has one activity with a stable id, so asking
 * again changes nothing: one that the history has is never scheduled a second time. */
#pragma once

#include <temporal.pb-c.h>

#include "adapters/executor.h"
#include "adapters/temporal/history.h"
#include "core/run.h"

enum {
    COMMANDS_MAX = 1000,       /* of one answer; more come with the next task */
    ACTIVITY_GRACE_MS = 60000, /* for a worker to tell of a timeout before the cluster does */
    WORKFLOW_TASK_TIMEOUT_MS = 10000,
};
#define ACTIVITY_LONGEST_MS ((int64_t)30 * 24 * 3600 * 1000) /* of an attempt without a timeout */
#define WORKFLOW_TYPE STR("plan.run")
#define ACTIVITY_TYPE STR("plan.step")

enum wanted_due {                   /* what became of a wanted attempt */
                  WANTED_WAITS,     /* its activity is pending; or it is not its turn */
                  WANTED_SCHEDULED, /* by these commands */
                  WANTED_CANCELLED, /* asked to end by these commands */
                  WANTED_ENDED,     /* history_find() has how */
                  WANTED_NEVER,     /* stopped before it was scheduled */
                  WANTED_TOO_LARGE, /* its input is more than the cluster takes */
};
struct wanted_attempt {
    const struct attempt *attempt;
    str id; /* of its activity */
    bool stop;
    enum wanted_due due; /* written by commands_make() */
};
struct commands_want {
    const struct history *history;
    struct wanted_attempt *attempts;
    size_t attempt_count;
    enum run_status close; /* RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED: close it; else go on */
    str code, message;     /* of RUN_FAILED, or STR_NONE */
    bool may_continue;     /* all that ended was recorded: it may be continued as new */
    str activity_queue;
    str workflow_queue; /* of an execution that continues this one */
    int64_t heartbeat_ms;
};
struct commands {
    Tp__Command **items;
    size_t count;
    bool closes;
    bool continues; /* as new */
    bool more;      /* did not all fit: ask for another task at once */
};

/* The commands live in the arena and borrow the texts of `want`. ST_RETRY: memory is out. */
MUST_CHECK status commands_make(const struct commands_want *want, struct arena *arena,
                                struct commands *out, struct error *err);

/* "<stepId>#<number>", in the arena; STR_NONE when memory is out. */
str activity_id(str step_id, int64_t number, struct arena *arena);
/* The input of an execution and of an activity: one JSON object. `continued`: how many executions
 * of the run came before. STR_NONE when memory is out. */
struct execution_input {
    str run_id, tenant_id, project_id, environment_id;
    str plan_ref;     /* JSON */
    uuid correlation; /* all zero: not said */
    int64_t continued;
};
str execution_input_json(const struct execution_input *input, struct arena *arena);
/* The inverse. Not strict: a newer version may have added something. Texts in the arena. */
MUST_CHECK status execution_input_parse(str json, struct arena *arena, struct execution_input *out,
                                        struct error *err);
/* Whether it is an execution of the run with this correlation id, not of one that has its runId in
 * another ledger. One of the two not known: yes. */
bool execution_is_of(const struct history *h, uuid correlation, struct arena *scratch);
str activity_input_json(const struct attempt *attempt, struct arena *arena);
