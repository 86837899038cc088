/* core/outcome.h: how one attempt of a step ended, whoever carried it out: an executor in this
 * process, a provider's cluster, or an outside worker. A plain value; its texts are borrowed. */
#pragma once

#include "base/reason.h"
#include "base/str.h"

struct outcome {
    bool ok;
    str output;  /* of a success: one JSON value, or STR_NONE */
    str code;    /* of a failure: stable, for programs (EXIT_CODE, TIMEOUT, CANCELLED ...) */
    str message; /* of a failure: for people */
    str detail;  /* a JSON object with what the step's type adds (exitCode, status ...), or STR_NONE */
    str actor;   /* who says so, if it is not the engine: a worker. Or STR_NONE */
};

/* A failure with a code of our own. */
static inline struct outcome outcome_failed(enum reason code, str message) {
    return (struct outcome){.code = str_c(reason_name(code)), .message = message};
}
