/* adapters/executor.h: the port to whatever carries out one attempt of one step in this process.
 *
 * The engine starts an attempt after its StepStarted is durable and gets exactly one answer, on the
 * loop thread, through `done`: also after executor_stop(), also when the attempt could not begin.
 * Nothing is remembered over a restart: the ledger says what was started, and the engine starts it
 * again. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"
#include "base/uuid.h"
#include "core/capability.h"
#include "core/outcome.h"

struct executor;

/* One attempt. The engine owns it and keeps it, and all it points to, until `done` returned. */
struct attempt {
    const struct plan_step *step;
    str run_id, tenant_id, project_id, environment_id;
    uuid correlation;   /* of the run: the trace that it belongs to */
    enum adapter_kind adapter; /* who dispatches it; local: nobody, it begins here and now */
    str plan_ref; /* of its plan, as JSON, for whoever executes it in another process; or STR_NONE */
    int64_t number;     /* logicalAttemptId */
    str body;           /* the step's own fields as a JSON object, Liquid rendered */
    int64_t timeout_ms; /* what is left of it; 0: none */
    /* The answer, borrowed until `done` returns. Codes of failures: EXIT_CODE, SIGNALLED, TIMEOUT,
     * CANCELLED, SPAWN_FAILED, OUTPUT_NOT_JSON, OUTPUT_TOO_LARGE, HTTP_STATUS, HTTP_FAILED,
     * URL_NOT_ALLOWED, SECRET_NOT_FOUND ... */
    void (*done)(struct attempt *attempt, const struct outcome *outcome);
    void *context;      /* the engine's */
    void *executor_data; /* the executor's, while the attempt is under way */
};

/* Answers an attempt that failed; the code is a string constant. */
static inline void attempt_fail(struct attempt *attempt, enum reason code, str message) {
    struct outcome outcome = outcome_failed(code, message);
    attempt->done(attempt, &outcome);
}

/* Begins an attempt; `done` may be called before this returns. */
void executor_start(struct executor *ex, struct attempt *attempt);
/* Asks an attempt under way to end soon: SIGTERM, then SIGKILL. Its `done` still comes, with `code`
 * CANCELLED unless it had ended already. */
void executor_stop(struct executor *ex, struct attempt *attempt);
