/* cli/help.c: help and version, made from the tables. */
#include "cairn.h"
#include "cli/cli.h"
#include "core/event_type.h"
#include "engine/status.h"
#include "ledger/schema.h"

static const char exit_codes[] =
    "Exit codes: 0 done, 1 input was refused, 2 wrong usage, 3 not found, 4 conflict, 5 a limit "
    "was reached,\n"
    "6 unavailable now (try again), 7 not allowed, 8 the ledger is damaged, 70 internal error. Of "
    "a "
    "run: 10 it\n"
    "failed, 11 it was cancelled, 130 interrupted.\n";

static void put_padded(struct buf *out, str text, size_t width) {
    buf_put(out, text);
    for (size_t i = text.len; i < width; i++)
        buf_put_char(out, ' ');
}

/* "ledger append [FILE|-]" */
static void put_name(const struct command *c, struct buf *out) {
    buf_put_c(out, c->noun);
    if (c->verb[0]) buf_printf(out, " %s", c->verb);
    if (c->words[0]) buf_printf(out, " %s", c->words);
}

static void put_command_line(const struct command *c, struct buf *out) {
    char mem[64];
    struct buf name;
    buf_init_fixed(&name, mem, sizeof(mem));
    put_name(c, &name);
    buf_put_c(out, "  ");
    put_padded(out, buf_str(&name), 26);
    buf_printf(out, " %s\n", c->summary);
}

static void help_all(struct buf *out, str noun) {
    if (!noun.ptr)
        buf_put_c(out, "cairn: runs plans durably, and keeps their history in an append-only "
                       "ledger\n\nusage: cairn COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < command_count; i++) {
        if (!noun.ptr || str_eq(str_c(commands[i].noun), noun)) put_command_line(&commands[i], out);
    }
    buf_put_c(out, "\n\"cairn help COMMAND\" explains a command and its options.\n");
    if (noun.ptr) return;
    buf_put_c(out, "A command that works on a ledger finds it by --data DIR or --db "
                   "postgresql://..., by the environment\n"
                   "variables CAIRN_DATA and CAIRN_DB, or in ./cairn-data; most talk to a server "
                   "instead with --server URL.\n\n");
    buf_put_c(out, exit_codes);
}

static void put_option(enum opt opt, bool required, struct buf *out) {
    const struct opt_info *info = opt_info(opt);
    char mem[64];
    struct buf name;
    buf_init_fixed(&name, mem, sizeof(mem));
    if (info->letter)
        buf_printf(&name, "-%c, ", info->letter);
    else
        buf_put_c(&name, "    ");
    buf_printf(&name, "--%s", info->name);
    if (info->value) buf_printf(&name, " %s", info->value);
    buf_put_c(out, "  ");
    put_padded(out, buf_str(&name), 26);
    buf_printf(out, " %s%s\n", info->help, required ? " (required)" : "");
}

static void help_command(const struct command *c, struct buf *out) {
    buf_put_c(out, "usage: cairn ");
    put_name(c, out);
    buf_printf(out, " [OPTIONS]\n\n%s\n", c->summary);
    if (c->detail[0]) buf_printf(out, "\n%s\n", c->detail);
    buf_put_c(out, "\noptions:\n");
    uint64_t own = c->options;
    uint64_t all = command_options(c);
    for (int i = 0; i < OPT_COUNT; i++) {
        if (own & OPT_BIT(i)) put_option((enum opt)i, c->required & OPT_BIT(i), out);
    }
    for (int i = 0; i < OPT_COUNT; i++) {
        if ((all & ~own) & OPT_BIT(i)) put_option((enum opt)i, false, out);
    }
    buf_put_char(out, '\n');
    buf_put_c(out, exit_codes);
}

status help_write(const str *words, size_t count, struct buf *out, struct error *err) {
    size_t used = 0;
    const struct command *c = command_find(words, count, &used);
    if (count == 0)
        help_all(out, STR_NONE);
    else if (c && used == count) {
        help_command(c, out);
        if (used == 1 && command_has_verbs(words[0])) {
            buf_put_char(out, '\n');
            help_all(out, words[0]);
        }
    } else if (count == 1 && command_is_noun(words[0]))
        help_all(out, words[0]);
    else if (count == 1)
        return cli_usage(err, "there is no command \"%.*s\"", STR_ARG(words[0]));
    else
        return cli_usage(err, "there is no command \"%.*s %.*s\"", STR_ARG(words[0]),
                         STR_ARG(words[1]));
    return ST_OK;
}

status cmd_help(struct cli *cli, struct error *err) {
    return help_write(cli->args.words, cli->args.word_count, &cli->out.buf, err);
}

/* ---- version ---- */

status cmd_version(struct cli *cli, struct error *err) {
    UNUSED(err);
    struct buf *out = &cli->out.buf;
    if (cli->format == OUT_TABLE) {
        buf_printf(out, "cairn %s\nrun events contract %s\nengine contract %s\nledger schema %d\n",
                   CAIRN_VERSION, RUN_EVENTS_CONTRACT_VERSION, ENGINE_CONTRACT_VERSION,
                   LEDGER_SCHEMA_VERSION);
        return ST_OK;
    }
    json_object_begin(out);
    json_put_text(out, "version", str_c(CAIRN_VERSION));
    json_put_text(out, "contractVersion", str_c(RUN_EVENTS_CONTRACT_VERSION));
    json_put_text(out, "engineContractVersion", str_c(ENGINE_CONTRACT_VERSION));
    json_put_int(out, "schemaVersion", LEDGER_SCHEMA_VERSION);
    buf_put_c(out, "}\n");
    return ST_OK;
}
