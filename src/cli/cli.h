/* cli/cli.h: what the commands share: the table of commands, the state of one call, opening the
 * ledger, telling errors.
 *
 * A command returns a status like everything else; main() turns it into an exit code and one
 * message. Data goes to standard output through cli->out, talk to standard error. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/json_out.h"
#include "base/str.h"
#include "base/time.h"
#include "cli/options.h"
#include "cli/out.h"
#include "ledger/ledger.h"

struct cli {
    const struct command *command;
    struct args args;
    enum out_format format;
    bool format_given; /* by -o */
    bool colour;       /* on standard output */
    struct out out;
    struct arena arena; /* lives as long as the command */
    int exit_code;      /* of a command that worked: 0, or what it has to tell */
};

/* How a run ended, as the exit code of the command that waited for it. */
enum { EXIT_RUN_FAILED = 10, EXIT_RUN_CANCELLED = 11, EXIT_INTERRUPTED = 130 };

enum command_trait {
    USES_LEDGER = 1,  /* takes --data and --db */
    STREAMS = 2,      /* ndjson is the default unless standard output is a terminal */
    WORD_IS_PATH = 4, /* its words are any bytes; of other commands UTF-8 */
    USES_FOLDER = 8,  /* needs the data folder also when the ledger is on PostgreSQL */
    USES_SERVER = 16, /* takes --server and --key-file */
};
struct command {
    const char *noun, *verb; /* verb "" for a command of one word */
    const char *words;       /* what follows, for people: "RUN", "[FILE|-]", "" */
    int words_min, words_max;
    unsigned traits;
    uint64_t options; /* OPT_BITs, in addition to those that every command has */
    uint64_t required;
    status (*run)(struct cli *cli, struct error *err);
    const char *summary;
    const char *detail; /* for `cairn help NOUN VERB` */
};

/* ---- commands.c: the one table ---- */

extern const struct command commands[];
extern const size_t command_count;
/* By its words; NULL if there is none. *used tells how many of the words name it. A noun may be a
 * command, too (`cairn run PLAN`): its row stands after those of its verbs. */
const struct command *command_find(const str *words, size_t count, size_t *used);
/* Whether `word` begins the name of a command. */
bool command_is_noun(str word);
bool command_has_verbs(str noun);
uint64_t command_options(const struct command *c); /* all of them, the common ones included */

/* ---- cli.c ---- */

/* Runs argv as one command and returns the exit code. */
int cli_main(int argc, const char *const *argv);
int cli_exit_code(const struct error *err);
/* {"code":...,"where":...,"message":...} */
void cli_error_json(const struct error *err, struct buf *out);
MUST_CHECK status cli_usage(struct error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* One line on standard error, user data made harmless. */
void cli_say(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Small pieces of output. */
str cli_text(struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3); /* in cli->arena */
enum { INT_TEXT_MAX = 24 };
str int_text(char mem[INT_TEXT_MAX], int64_t n);
str time_text(char mem[TIME_TEXT_MAX], int64_t us, int digits); /* RFC 3339; "" for 0 */
/* A member whose text came from outside, like a path: what is not UTF-8 is escaped as in tables. */
void put_shown(struct buf *out, const char *name, str value);

/* ---- store.c ---- */

/* The address that --db, --data and the environment name; in cli->arena. */
MUST_CHECK status store_url(struct cli *cli, str *url, struct error *err);
str store_folder(const struct cli *cli); /* --data, else CAIRN_DATA, else ./cairn-data */
/* --wait, in milliseconds. */
MUST_CHECK status store_wait_ms(struct cli *cli, int64_t *ms, struct error *err);
str store_shown(struct cli *cli, str url); /* without its password */
/* For queries; for appending, which makes a missing ledger; for changing one that must be there.
 * The caller ends each with ledger_close(). */
MUST_CHECK status store_read(struct cli *cli, struct ledger **out, struct error *err);
MUST_CHECK status store_write(struct cli *cli, enum ledger_validation validation,
                              struct ledger **out, struct error *err);
MUST_CHECK status store_change(struct cli *cli, struct ledger **out, struct error *err);

/* ---- the commands ---- */

status cmd_event_key(struct cli *cli, struct error *err);
status cmd_ledger_append(struct cli *cli, struct error *err);
status cmd_ledger_events(struct cli *cli, struct error *err);
status cmd_ledger_causes(struct cli *cli, struct error *err);
status cmd_ledger_alerts(struct cli *cli, struct error *err);
status cmd_ledger_checkpoint(struct cli *cli, struct error *err);
status cmd_ledger_verify(struct cli *cli, struct error *err);
status cmd_ledger_rebuild(struct cli *cli, struct error *err);
status cmd_ledger_stats(struct cli *cli, struct error *err);
status cmd_ledger_archive(struct cli *cli, struct error *err);
status cmd_ledger_backup(struct cli *cli, struct error *err);
status cmd_ledger_types(struct cli *cli, struct error *err);
status cmd_run_list(struct cli *cli, struct error *err);
status cmd_run_show(struct cli *cli, struct error *err);
status cmd_run_resolve(struct cli *cli, struct error *err);
status cmd_run_plan(struct cli *cli, struct error *err);
status cmd_run_pause(struct cli *cli, struct error *err);
status cmd_run_resume(struct cli *cli, struct error *err);
status cmd_run_cancel(struct cli *cli, struct error *err);
status cmd_run_retry(struct cli *cli, struct error *err);
status cmd_run_approve(struct cli *cli, struct error *err);
status cmd_run_reject(struct cli *cli, struct error *err);
status cmd_run_signal(struct cli *cli, struct error *err);
status cmd_plan_validate(struct cli *cli, struct error *err);
status cmd_plan_graph(struct cli *cli, struct error *err);
status cmd_plan_schema(struct cli *cli, struct error *err);
status cmd_plan_ref(struct cli *cli, struct error *err);
status cmd_plan_put(struct cli *cli, struct error *err);
status cmd_plan_capabilities(struct cli *cli, struct error *err);
status cmd_template_render(struct cli *cli, struct error *err);
status cmd_explain(struct cli *cli, struct error *err);
status cmd_run_steps(struct cli *cli, struct error *err);
status cmd_run_logs(struct cli *cli, struct error *err);
status cmd_run_watch(struct cli *cli, struct error *err);
status cmd_key_create(struct cli *cli, struct error *err);
status cmd_key_list(struct cli *cli, struct error *err);
status cmd_key_show(struct cli *cli, struct error *err);
status cmd_key_revoke(struct cli *cli, struct error *err);
status cmd_audit(struct cli *cli, struct error *err);
status cmd_effect_list(struct cli *cli, struct error *err);
status cmd_effect_show(struct cli *cli, struct error *err);
status cmd_effect_request(struct cli *cli, struct error *err);
status cmd_effect_requeue(struct cli *cli, struct error *err);
status cmd_serve(struct cli *cli, struct error *err);
status cmd_selftest(struct cli *cli, struct error *err);
status cmd_doctor(struct cli *cli, struct error *err);
status cmd_version(struct cli *cli, struct error *err);
status cmd_help(struct cli *cli, struct error *err);
status cmd_completion(struct cli *cli, struct error *err);
/* What `cairn help WORDS` prints. */
MUST_CHECK status help_write(const str *words, size_t count, struct buf *out, struct error *err);
