/* cli/options.h: the words and options of a command line. One table names every option there is; a
 * command names the ones it takes. Options may stand anywhere, as "--name value" or "--name=value";
 * "--" ends them. */
#pragma once

#include "base/error.h"
#include "base/str.h"

enum opt {
    OPT_HELP,
    OPT_OUTPUT,
    OPT_DATA,
    OPT_DB, /* everywhere, or wherever there is a ledger */
    OPT_ACCEPT_V1_UNTIL,
    OPT_ACTOR,
    OPT_AFTER,
    OPT_ALL,
    OPT_ALLOW,
    OPT_APPROVAL,
    OPT_AT,
    OPT_ATTEMPT,
    OPT_AUTH,
    OPT_BEFORE,
    OPT_CONTEXT,
    OPT_CORRELATION,
    OPT_ENDPOINT,
    OPT_ENVIRONMENT,
    OPT_FOLLOW,
    OPT_GROUP,
    OPT_INCONSISTENT,
    OPT_INPUT,
    OPT_JWKS,
    OPT_JWT_AUDIENCE,
    OPT_JWT_ISSUER,
    OPT_KEY_FILE,
    OPT_LIMIT,
    OPT_LISTEN,
    OPT_LOG,
    OPT_MAX_RUNS_PER_PLAN,
    OPT_MAX_RUNS_PER_TENANT,
    OPT_NODE,
    OPT_PAYLOAD,
    OPT_PLAN,
    OPT_PLAN_ID,
    OPT_PLAN_VERSION,
    OPT_PREIMAGE,
    OPT_PROJECT,
    OPT_PROVIDER,
    OPT_PROVIDER_RUN,
    OPT_QUIET,
    OPT_RATE,
    OPT_REASON,
    OPT_ROLE,
    OPT_RUN,
    OPT_RUN_ID,
    OPT_SECRETS,
    OPT_SEED,
    OPT_SEEDS,
    OPT_SERVER,
    OPT_SIGNAL_ID,
    OPT_SINCE,
    OPT_STATE,
    OPT_STATUS,
    OPT_STEP_ID,
    OPT_TENANT,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_TYPE,
    OPT_UNTIL,
    OPT_URI,
    OPT_VALIDATION,
    OPT_WAIT,
    OPT_WORKFLOW,
    OPT_COUNT
};
#define OPT_BIT(opt) ((uint64_t)1 << (opt))

enum opt_trait {
    IS_PATH = 1, /* its value is any bytes; other values are UTF-8 */
    REPEATS = 2, /* it may be given several times: see args_each() */
};
struct opt_info {
    const char *name;  /* without its dashes */
    const char *value; /* what its value is called; NULL for a switch */
    const char *help;
    char letter; /* of the short form, or 0 */
    unsigned traits;
};
const struct opt_info *opt_info(enum opt opt);

enum { ARGS_WORDS_MAX = 8, ARGS_REPEATS_MAX = 64 };
struct args_repeat {
    enum opt opt;
    str value;
};
struct args {
    str values[OPT_COUNT]; /* borrowed from argv; STR_NONE if not given, empty for a switch that is
                              on; of one that repeats the first */
    struct args_repeat repeats[ARGS_REPEATS_MAX]; /* every value of those that repeat, in order */
    size_t repeat_count;
    str words[ARGS_WORDS_MAX];
    size_t word_count;
};

/* Sorts argv[1..] into words and options. The words found so far are there on failure, too. */
MUST_CHECK status args_parse(int argc, const char *const *argv, struct args *out,
                             struct error *err);
bool args_has(const struct args *args, enum opt opt);
/* The values of an option that repeats, in order: for (size_t at = 0; args_each(a, opt, &at, &v);)
 */
bool args_each(const struct args *args, enum opt opt, size_t *at, str *value);
/* A whole number between min and max; `otherwise` if the option was not given. */
MUST_CHECK status args_int(const struct args *args, enum opt opt, int64_t min, int64_t max,
                           int64_t otherwise, int64_t *out, struct error *err);
/* RFC 3339 in UTC, rounded up to the store's microseconds; `otherwise` if the option was not given.
 */
MUST_CHECK status args_time(const struct args *args, enum opt opt, int64_t otherwise, int64_t *us,
                            struct error *err);
/* The index of the value in `names`, which ends in NULL; `otherwise` if the option was not given.
 */
MUST_CHECK status args_choice(const struct args *args, enum opt opt, const char *const *names,
                              int otherwise, int *out, struct error *err);
