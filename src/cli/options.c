#include "cli/options.h"

#include <assert.h>
#include <strings.h>

#include "base/buf.h"
#include "base/time.h"

static_assert(OPT_COUNT <= 64, "a command's options are bits of one number");

static const struct opt_info infos[OPT_COUNT] = {
    [OPT_HELP] = {"help", NULL, "explain the command", 'h', 0},
    [OPT_OUTPUT] = {"output", "FORMAT", "table, json (one document) or ndjson (one object a line)",
                    'o', 0},
    [OPT_DATA] = {"data", "DIR", "folder of the SQLite ledger; $CAIRN_DATA, else ./cairn-data", 0,
                  IS_PATH},
    [OPT_DB] = {"db", "URL", "postgresql://... instead of a folder; $CAIRN_DB", 0, 0},
    [OPT_ACCEPT_V1_UNTIL] = {"accept-v1-until", "TIME",
                             "also take version 1 events, from before this instant", 0, 0},
    [OPT_ACTOR] = {"actor", "NAME", "who does it: stored with every event", 0, 0},
    [OPT_AFTER] = {"after", "SEQ", "only events after this sequenceNumber of the tenant", 0, 0},
    [OPT_ALL] = {"all", NULL, "all open runs; all effects that match", 0, 0},
    [OPT_ALLOW] =
        {"allow", "RULE",
         "where plans and http steps may reach: https://HOST[/PATH], s3://BUCKET; repeats", 0,
         REPEATS},
    [OPT_APPROVAL] = {"approval", NULL, "wait for \"cairn run approve\" before the first step", 0,
                      0},
    [OPT_AT] = {"at", "RUNSEQ", "the state right after this event of the run", 0, 0},
    [OPT_ATTEMPT] = {"attempt", "N", "logicalAttemptId", 0, 0},
    [OPT_AUTH] = {"auth", NULL, "ask for a key or token also on this machine's own addresses", 0,
                  0},
    [OPT_BEFORE] = {"before", "CURSOR", "go on after the run with this cursor", 0, 0},
    [OPT_CONTEXT] = {"context", "FILE", "JSON object with the variables; - is standard input", 0,
                     IS_PATH},
    [OPT_CORRELATION] = {"correlation", "UUID", "the events of one trace", 0, 0},
    [OPT_ENDPOINT] = {"endpoint", "SCHEME=URL",
                      "how s3, gs or azure is reached: s3=https://{bucket}.HOST/{key}; repeats", 0,
                      REPEATS},
    [OPT_ENVIRONMENT] = {"environment", "ID", "the environment; \"default\" for a new run", 0, 0},
    [OPT_FOLLOW] = {"follow", NULL, "wait for new events and print them, until interrupted", 'f',
                    0},
    [OPT_GROUP] = {"group", "N", "at most so many events in one commit (1 to 4096)", 0, 0},
    [OPT_INCONSISTENT] = {"inconsistent", NULL, "only runs that are marked INCONSISTENT", 0, 0},
    [OPT_INPUT] = {"input", "NAME=VALUE",
                   "a parameter of the plan; @FILE.json for an object of them; repeats", 0,
                   IS_PATH | REPEATS},
    [OPT_JWKS] = {"jwks", "FILE", "keys that sign the tokens of callers (JWKS)", 0, IS_PATH},
    [OPT_JWT_AUDIENCE] = {"jwt-audience", "TEXT", "the \"aud\" that tokens must name", 0, 0},
    [OPT_JWT_ISSUER] = {"jwt-issuer", "TEXT", "the \"iss\" that tokens must have", 0, 0},
    [OPT_KEY_FILE] = {"key-file", "FILE", "file with the API key for --server; $CAIRN_KEY_FILE", 0,
                      IS_PATH},
    [OPT_LIMIT] = {"limit", "N", "at most so many", 'n', 0},
    [OPT_LISTEN] = {"listen", "ADDRESS",
                    "HOST:PORT or unix:PATH for the HTTP API; 127.0.0.1:8420 unless given; repeats",
                    0, IS_PATH | REPEATS},
    [OPT_LOG] = {"log", "FORMAT", "text or json, and perhaps :debug, :info, :warn or :error", 0, 0},
    [OPT_MAX_RUNS_PER_PLAN] = {"max-runs-per-plan", "N", "more runs of a tenant's plan wait", 0, 0},
    [OPT_MAX_RUNS_PER_TENANT] = {"max-runs-per-tenant", "N", "more runs of a tenant wait", 0, 0},
    [OPT_NODE] = {"node", "NAME", "this process among those that share a PostgreSQL ledger", 0, 0},
    [OPT_PAYLOAD] = {"payload", "JSON", "a value that goes with the signal", 0, 0},
    [OPT_PLAN] = {"plan", "ID", "only runs of this plan", 0, 0},
    [OPT_PLAN_ID] = {"plan-id", "ID", "planId", 0, 0},
    [OPT_PLAN_VERSION] = {"plan-version", "VERSION", "planVersion", 0, 0},
    [OPT_PREIMAGE] = {"preimage", NULL, "print what is hashed instead of the key", 0, 0},
    [OPT_PROJECT] = {"project", "ID", "the project; \"default\" for a new run", 0, 0},
    [OPT_PROVIDER] = {"provider", "NAME", "who executes the run: local, temporal or conductor", 0, 0},
    [OPT_PROVIDER_RUN] = {"provider-run", "ID", "the provider's id of the run", 0, 0},
    [OPT_QUIET] = {"quiet", NULL, "no progress and no summary", 'q', 0},
    [OPT_RATE] = {"rate", "N", "at most so many requests a second of one caller", 0, 0},
    [OPT_REASON] = {"reason", "TEXT", "why: kept in the ledger", 0, 0},
    [OPT_ROLE] = {"role", "ROLE", "viewer, operator, producer, worker or admin; repeats", 0,
                  REPEATS},
    [OPT_RUN] = {"run", "RUN", "only this run", 0, 0},
    [OPT_RUN_ID] = {"run-id", "ID", "runId", 0, 0},
    [OPT_SECRETS] = {"secrets", "DIR", "folder with one file for each secret; else the environment",
                     0, IS_PATH},
    [OPT_SEED] = {"seed", "N", "the seed, or the first of several; 1 unless given", 0, 0},
    [OPT_SEEDS] = {"seeds", "N", "so many seeds, one after the other", 0, 0},
    [OPT_SERVER] = {"server", "URL", "talk to this server instead of a ledger; $CAIRN_SERVER", 0,
                    0},
    [OPT_SIGNAL_ID] = {"signal-id", "ID", "sent twice with the same id, it has one effect", 0, 0},
    [OPT_SINCE] = {"since", "TIME", "persistedAt at or after this instant (2026-02-16T08:00:00Z)",
                   0, 0},
    [OPT_STATE] = {"state", NULL, "also replay every run and compare it with the projections", 0,
                   0},
    [OPT_STATUS] = {"status", "STATUS",
                    "PENDING APPROVED RUNNING PAUSED COMPLETED FAILED or CANCELLED; of effects "
                    "also others",
                    0, 0},
    [OPT_STEP_ID] = {"step-id", "ID", "stepId, of a step-level event or of an effect", 0, 0},
    [OPT_TENANT] = {"tenant", "ID", "the tenant; \"default\" for a new run", 0, 0},
    [OPT_TLS_CERT] = {"tls-cert", "FILE", "certificate chain (PEM): listen with TLS", 0, IS_PATH},
    [OPT_TLS_KEY] = {"tls-key", "FILE", "its private key (PEM)", 0, IS_PATH},
    [OPT_TYPE] = {"type", "TYPE", "eventType, or effectType", 0, 0},
    [OPT_UNTIL] = {"until", "TIME", "before this instant; of a key: it ends then", 0, 0},
    [OPT_URI] = {"uri", "URI", "where the plan will be; else plan:sha256:... in the data folder", 0,
                 0},
    [OPT_VALIDATION] = {"validation", "HOW", "reject or record events that the run's state forbids",
                        0, 0},
    [OPT_WAIT] = {"wait", "SECONDS", "how long to wait for another writer of the folder", 0, 0},
    [OPT_WORKFLOW] = {"workflow", "ID", "the provider's id of the workflow", 0, 0},
};

const struct opt_info *opt_info(enum opt opt) {
    ASSERT(opt < OPT_COUNT);
    return &infos[opt];
}

static enum opt find_long(str name) {
    int opt = 0;
    while (opt < OPT_COUNT && !str_eq(str_c(infos[opt].name), name))
        opt++;
    return (enum opt)opt;
}

static enum opt find_letter(char letter) {
    int opt = 0;
    while (opt < OPT_COUNT && infos[opt].letter != letter)
        opt++;
    return (enum opt)opt;
}

struct cursor {
    int argc, at;
    const char *const *argv;
};

/* "--name", "--name=value", "-x", "-xvalue": which option, and the value that is part of the word,
 * if any. */
static status split_option(str word, enum opt *opt, str *value, struct error *err) {
    *value = STR_NONE;
    if (word.ptr[1] == '-') {
        str name;
        if (!str_split(str_from(word, 2), '=', &name, value)) *value = STR_NONE;
        *opt = find_long(name);
    } else {
        *opt = find_letter(word.ptr[1]);
        if (word.len > 2) *value = str_from(word, 2);
    }
    if (*opt < OPT_COUNT) return ST_OK;
    return error_at(err, REASON_USAGE, "", "unknown option \"%.*s\"", STR_ARG(word));
}

static status store_repeat(struct args *args, enum opt opt, str value, struct error *err) {
    if (args->repeat_count == ARGS_REPEATS_MAX)
        return error_at(err, REASON_USAGE, "", "--%s is given more than %d times", infos[opt].name,
                        ARGS_REPEATS_MAX);
    args->repeats[args->repeat_count++] = (struct args_repeat){opt, value};
    return ST_OK;
}

static status store_option(struct args *args, enum opt opt, str value, struct cursor *c,
                           struct error *err) {
    const struct opt_info *info = &infos[opt];
    if (args->values[opt].ptr && !(info->traits & REPEATS))
        return error_at(err, REASON_USAGE, "", "--%s is given twice", info->name);
    if (!info->value) {
        if (value.ptr) return error_at(err, REASON_USAGE, "", "--%s takes no value", info->name);
        args->values[opt] = STR("");
        return ST_OK;
    }
    if (!value.ptr) {
        if (++c->at >= c->argc)
            return error_at(err, REASON_USAGE, "", "--%s needs a value, %s", info->name,
                            info->value);
        value = str_c(c->argv[c->at]);
    }
    size_t bad = 0;
    if (!(info->traits & IS_PATH) && !str_utf8(value, &bad)) {
        return error_at(err, REASON_USAGE, "", "the value of --%s is not valid UTF-8", info->name);
    }
    if (!args->values[opt].ptr) args->values[opt] = value;
    return info->traits & REPEATS ? store_repeat(args, opt, value, err) : ST_OK;
}

static status store_word(struct args *args, str word, struct error *err) {
    if (args->word_count == ARGS_WORDS_MAX)
        return error_at(err, REASON_USAGE, "", "too many words");
    args->words[args->word_count++] = word;
    return ST_OK;
}

status args_parse(int argc, const char *const *argv, struct args *out, struct error *err) {
    *out = (struct args){0};
    struct cursor c = {argc, 1, argv};
    bool only_words = false;
    status st = ST_OK;
    for (; c.at < argc && st == ST_OK; c.at++) {
        str word = str_c(argv[c.at]);
        if (only_words || word.len < 2 ||
            word.ptr[0] != '-') { /* "-" alone is a word: standard input */
            st = store_word(out, word, err);
        } else if (str_eq(word, STR("--"))) {
            only_words = true;
        } else {
            enum opt opt = OPT_COUNT;
            str value;
            st = split_option(word, &opt, &value, err);
            if (st == ST_OK) st = store_option(out, opt, value, &c, err);
        }
    }
    return st;
}

bool args_has(const struct args *args, enum opt opt) { return args->values[opt].ptr != NULL; }

bool args_each(const struct args *args, enum opt opt, size_t *at, str *value) {
    while (*at < args->repeat_count) {
        const struct args_repeat *r = &args->repeats[(*at)++];
        if (r->opt != opt) continue;
        *value = r->value;
        return true;
    }
    return false;
}

status args_int(const struct args *args, enum opt opt, int64_t min, int64_t max, int64_t otherwise,
                int64_t *out, struct error *err) {
    int64_t n = otherwise;
    str text = args->values[opt];
    if (text.ptr && (!str_to_int(text, &n) || n < min || n > max)) {
        if (max == INT64_MAX) {
            return error_at(err, REASON_USAGE, "",
                            "--%s must be a whole number from %lld, found \"%.*s\"",
                            infos[opt].name, (long long)min, STR_ARG(text));
        }
        return error_at(err, REASON_USAGE, "",
                        "--%s must be a whole number from %lld to %lld, found \"%.*s\"",
                        infos[opt].name, (long long)min, (long long)max, STR_ARG(text));
    }
    *out = n;
    return ST_OK;
}

status args_time(const struct args *args, enum opt opt, int64_t otherwise, int64_t *us,
                 struct error *err) {
    str text = args->values[opt];
    int64_t ns = 0;
    int digits = 0;
    if (!text.ptr) {
        *us = otherwise;
        return ST_OK;
    }
    if (!time_parse_utc(text, &ns, &digits)) {
        return error_at(
            err, REASON_USAGE, "",
            "--%s must be RFC 3339 in UTC, such as 2026-02-16T08:00:00Z, found \"%.*s\"",
            infos[opt].name, STR_ARG(text));
    }
    *us = ns / 1000 + (ns % 1000 != 0);
    return ST_OK;
}

status args_choice(const struct args *args, enum opt opt, const char *const *names, int otherwise,
                   int *out, struct error *err) {
    str text = args->values[opt];
    if (!text.ptr) {
        *out = otherwise;
        return ST_OK;
    }
    char mem[128];
    struct buf all;
    buf_init_fixed(&all, mem, sizeof(mem));
    for (int i = 0; names[i]; i++) {
        if (text.len == strlen(names[i]) && strncasecmp(names[i], text.ptr, text.len) == 0) {
            *out = i;
            return ST_OK;
        }
        if (i > 0) buf_put_c(&all, names[i + 1] ? ", " : " or ");
        buf_put_c(&all, names[i]);
    }
    return error_at(err, REASON_USAGE, "", "--%s must be %.*s, found \"%.*s\"", infos[opt].name,
                    STR_ARG(buf_str(&all)), STR_ARG(text));
}
