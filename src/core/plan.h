/* core/plan.h: an ExecutionPlan: what to run, in which order, and what to do when it fails. Pure.
 *
 * A plan is parsed once and never changes. Parsing is strict: an unknown field, a wrong type, a
 * cycle, a dependency that is not there are refused, several at once, each with its code, its JSON
 * pointer, line and column. The reference of the language is contracts/plan.v1.3.schema.json; text
 * may be JSONC. Strings may hold Liquid (core/liquid.h), which is checked here and rendered when
 * the step starts. */
#pragma once

#include <yyjson.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/str.h"

#define PLAN_SCHEMA_MAJOR 1
#define PLAN_SCHEMA_MINOR 3 /* this and PLAN_SCHEMA_MINORS_BACK before it are accepted */
#define PLAN_SCHEMA_MINORS_BACK 3
#define PLAN_SCHEMA_VERSION "v1.3"

enum {
    PLAN_STEPS_MAX = 200000,
    PLAN_DEPS_MAX = 2000000, /* of all steps together */
    PLAN_ERRORS_MAX = 50,    /* told at once */
    PLAN_CONCURRENCY_DEFAULT = 16,
    PLAN_CONCURRENCY_MAX = 1000,
    PLAN_ATTEMPTS_MAX = 1000,
};
#define PLAN_BYTES_MAX ((size_t)64 * 1024 * 1024)
#define PLAN_DELAY_MS_MAX ((int64_t)366 * 24 * 3600 * 1000) /* of sleeps, timeouts, backoff */

enum plan_type { /* what a step does */
    PLAN_EXEC,
    PLAN_HTTP,
    PLAN_TASK,
    PLAN_EFFECT,
    PLAN_SLEEP,
    PLAN_WAIT,
    PLAN_APPROVAL,
    PLAN_PACKAGE,
    PLAN_NOOP,
    PLAN_TYPE_COUNT
};
enum plan_on_failure { /* what a step's final failure means; the run ends FAILED in every case */
    PLAN_FAIL,            /* no new step starts */
    PLAN_CONTINUE,        /* its dependents run all the same */
    PLAN_SKIP_DEPENDENTS, /* its dependents, and theirs, are skipped; other branches go on */
};
enum plan_fallback { PLAN_REJECT, PLAN_EMULATE, PLAN_DEGRADE };
enum plan_output { PLAN_OUTPUT_TEXT, PLAN_OUTPUT_JSON, PLAN_OUTPUT_NONE };
enum plan_phase { PHASE_PLAN, PHASE_APPLY, PHASE_VERIFY, PHASE_CAPTURE, PHASE_COUNT };

struct plan_retry {
    int64_t attempts_max; /* 1: no retry */
    int64_t initial_ms, max_ms;
    double factor; /* delay before attempt n+1: initial * factor^(n-1), at most max */
    double jitter; /* 0..1: the delay is stretched or shrunk by up to this part of it */
    const str *non_retryable; /* codes of failures that are final at once */
    uint32_t non_retryable_count;
};

struct plan_step {
    str id;
    enum plan_type type;
    const uint32_t *deps;       /* indexes of the steps it depends on, as written */
    const uint32_t *dependents; /* and of those that depend on it, ascending */
    uint32_t dep_count, dependent_count;
    const struct plan_retry *retry; /* its own, or the defaults' */
    int64_t timeout_ms;             /* of one attempt; 0: none */
    enum plan_on_failure on_failure;
    str run_if; /* a Liquid condition, or STR_NONE: always */
    enum plan_phase phase;
    str driver; /* STR_NONE: the adapter's name */
    /* The step's own object, validated: what its type adds is read from here when it starts. */
    yyjson_val *body;
    enum plan_output output;     /* exec, http */
    int64_t duration_ms;         /* sleep; -1 with `until` */
    str until;                   /* sleep: RFC 3339, perhaps with Liquid; STR_NONE */
    str signal;                  /* wait: the name of the signal */
    str queue;                   /* task */
    int64_t lease_ms;            /* task: of one lease; 0: as the worker asks */
    str effect_type;             /* effect */
    bool wait;                   /* effect: for its delivery, not only for its request */
    const str *roles;            /* approval: one of them is needed; none: anybody */
    uint32_t role_count;
    int64_t expires_in_ms; /* approval, wait; 0: never */
};

struct plan {
    str schema_version, plan_id, plan_version;
    const str *capabilities; /* metadata.requiresCapabilities, as written */
    uint32_t capability_count;
    enum plan_fallback fallback;
    str target_adapter; /* "any" if not given */
    yyjson_val *parameters; /* JSON Schema of the run's parameters, or NULL */
    uint32_t concurrency;   /* steps RUNNING at once */
    struct plan_step *steps;
    uint32_t step_count;
    uint8_t sha256[32]; /* of the text */
    size_t bytes;       /* of the text */
    const uint32_t *by_id; /* for plan_find() */
    uint32_t by_id_mask;
};

struct plan_problem {
    enum reason code;
    str pointer;      /* JSON pointer */
    int line, column; /* from 1; of the value the pointer names */
    str message;
};
struct plan_problems {
    struct plan_problem items[PLAN_ERRORS_MAX];
    size_t count;
    bool more; /* there were more than fit */
};

/* [{"code":...,"pointer":...,"line":...,"column":...,"message":...}, ...] */
void plan_problems_json(const struct plan_problems *problems, struct buf *out);

/* Parses and validates. Everything lives in the arena, the text too (it is copied). ST_INVALID or
 * ST_LIMIT with problems->count > 0, the first of which is in *err as well; ST_RETRY out of memory. */
MUST_CHECK status plan_parse(str text, struct arena *arena, struct plan **out,
                             struct plan_problems *problems, struct error *err);
/* Index of the step, or -1. */
int64_t plan_find(const struct plan *plan, str step_id);
/* Checks a run's parameters against plan->parameters and fills in defaults. `json` is an object or
 * STR_NONE; *out is compact JSON in the arena. Reason PARAMETERS_INVALID with the pointer. */
MUST_CHECK status plan_parameters(const struct plan *plan, str json, struct arena *arena, str *out,
                                  struct error *err);
/* "v1.2" -> accepted? ST_INVALID with PLAN_SCHEMA_VERSION_UNSUPPORTED otherwise. *deprecated is set
 * for one with an end of support: a warning. */
MUST_CHECK status plan_schema_check(str version, bool *deprecated, struct error *err);
/* The JSON Schema of the language, as published in contracts/. */
str plan_schema_json(void);
const char *plan_type_name(enum plan_type type); /* "exec" ... */
/* Whether somebody answers for each attempt of such a step: who executes it, or delivers it, watches
 * its timeout and is asked to stop. exec, http, effect. */
bool plan_type_is_executed(enum plan_type type);
const char *plan_phase_name(enum plan_phase phase);
/* Milliseconds to wait before attempt `attempt` + 1, given a number that is the same whenever the
 * same attempt of the same step of the same run is asked for: replay gives the same delay. */
int64_t plan_backoff_ms(const struct plan_retry *retry, int64_t attempt, uint64_t random);
