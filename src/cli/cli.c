/* cli/cli.c: from a command line to an exit code. */
#include "cli/cli.h"

#include <stdarg.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/remote.h"
#include "cli/source.h"

#define COMMAND_ARENA_MAX ((size_t)1024 * 1024 * 1024) /* the state of the largest run */
enum { SAY_BYTES_MAX = 4096 };

/* ---- errors ---- */

int cli_exit_code(const struct error *err) { return reason_exit_code(err->reason, err->code); }

void cli_error_json(const struct error *err, struct buf *out) {
    json_object_begin(out);
    json_put_text(out, "code", str_c(error_name(err)));
    put_shown(out, "where", str_c(err->where));
    put_shown(out, "message", str_c(err->msg));
    json_object_end(out);
}

status cli_usage(struct error *err, const char *fmt, ...) {
    char text[ERROR_MSG_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    UNUSED(n);
    return error_at(err, REASON_USAGE, "", "%s", text);
}

static void write_error(str text) {
    ssize_t ignored =
        write(STDERR_FILENO, text.ptr, text.len); /* there is nowhere left to complain */
    UNUSED(ignored);
}

void cli_say(const char *fmt, ...) {
    char text[SAY_BYTES_MAX];
    char mem[SAY_BYTES_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    struct buf line;
    buf_init_fixed(&line, mem, sizeof(mem) - 1);
    text_show(str_c(n < 0 ? fmt : text), 0, &line);
    line.max = line.cap = sizeof(mem); /* room for the end of the line, always */
    line.full = false;
    buf_put_char(&line, '\n');
    write_error(buf_str(&line));
}

static void tell_json(const struct error *err) {
    char mem[SAY_BYTES_MAX];
    struct buf line;
    buf_init_fixed(&line, mem, sizeof(mem));
    json_object_begin(&line);
    json_name(&line, "error");
    cli_error_json(err, &line);
    buf_put_c(&line, "}\n");
    write_error(buf_str(&line));
}

static void tell(const struct cli *cli, const struct error *err) {
    if (cli->format_given && cli->format != OUT_TABLE) {
        tell_json(err);
        return;
    }
    const char *code = error_name(err);
    if (err->where[0])
        cli_say("cairn: %s (%s at %s)", err->msg, code, err->where);
    else
        cli_say("cairn: %s (%s)", err->msg, code);
    if (err->reason != REASON_USAGE) return;
    const struct command *c = cli->command;
    if (c)
        cli_say("try: cairn help %s%s%s", c->noun, c->verb[0] ? " " : "", c->verb);
    else if (cli->args.word_count > 0 && command_is_noun(cli->args.words[0]))
        cli_say("try: cairn help %.*s", STR_ARG(cli->args.words[0]));
    else
        cli_say("try: cairn help");
}

/* ---- small pieces of output ---- */

str cli_text(struct cli *cli, const char *fmt, ...) {
    char text[SAY_BYTES_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return arena_str(&cli->arena, n < 0 ? STR("") : str_c(text));
}

str int_text(char mem[INT_TEXT_MAX], int64_t n) {
    struct buf b;
    buf_init_fixed(&b, mem, INT_TEXT_MAX);
    buf_put_int(&b, n);
    return buf_str(&b);
}

str time_text(char mem[TIME_TEXT_MAX], int64_t us, int digits) {
    return us > 0 ? str_n(mem, time_format_ns(us * 1000, digits, mem)) : STR("");
}

void put_shown(struct buf *out, const char *name, str value) {
    char mem[SAY_BYTES_MAX];
    struct buf shown;
    size_t bad = 0;
    buf_init_fixed(&shown, mem, sizeof(mem));
    if (!str_utf8(value, &bad)) text_show(value, 0, &shown);
    json_put_text(out, name, shown.len > 0 ? buf_str(&shown) : value);
}

/* ---- dispatch ---- */

static status check_options(const struct cli *cli, struct error *err) {
    const struct command *c = cli->command;
    for (int i = 0; i < OPT_COUNT; i++) {
        enum opt opt = (enum opt)i;
        bool given = args_has(&cli->args, opt);
        if (given && !(command_options(c) & OPT_BIT(opt))) {
            return cli_usage(err, "cairn %s%s%s has no option --%s", c->noun, c->verb[0] ? " " : "",
                             c->verb, opt_info(opt)->name);
        }
        if (!given && (c->required & OPT_BIT(opt))) {
            return cli_usage(err, "--%s %s is missing", opt_info(opt)->name, opt_info(opt)->value);
        }
    }
    return ST_OK;
}

static status check_words(const struct cli *cli, struct error *err) {
    const struct command *c = cli->command;
    int count = (int)cli->args.word_count;
    if (count < c->words_min) return cli_usage(err, "%s is missing", c->words);
    if (count > c->words_max)
        return cli_usage(err, "one word too many: \"%.*s\"",
                         STR_ARG(cli->args.words[c->words_max]));
    for (int i = 0; i < count && !(c->traits & WORD_IS_PATH); i++) {
        size_t bad = 0;
        if (!str_utf8(cli->args.words[i], &bad))
            return cli_usage(err, "%s is not valid UTF-8", c->words);
    }
    return ST_OK;
}

static status choose_format(struct cli *cli, struct error *err) {
    static const char *const names[] = {"table", "json", "ndjson", NULL};
    bool terminal = isatty(STDOUT_FILENO);
    const char *no_colour = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    int format = OUT_TABLE;
    int otherwise =
        cli->command && (cli->command->traits & STREAMS) && !terminal ? OUT_NDJSON : OUT_TABLE;
    status st = args_choice(&cli->args, OPT_OUTPUT, names, otherwise, &format, err);
    if (st != ST_OK) return st;
    cli->format = (enum out_format)format;
    cli->format_given = args_has(&cli->args, OPT_OUTPUT);
    cli->colour = terminal && !(no_colour && no_colour[0]) && term && strcmp(term, "dumb") != 0;
    return ST_OK;
}

/* Takes the command's own words off the front. */
static void drop_words(struct args *args, size_t n) {
    for (size_t i = n; i < args->word_count; i++)
        args->words[i - n] = args->words[i];
    args->word_count -= n;
}

static status unknown_command(const struct args *args, struct error *err) {
    if (args->word_count > 1 && command_is_noun(args->words[0])) {
        return cli_usage(err, "there is no command \"%.*s %.*s\"", STR_ARG(args->words[0]),
                         STR_ARG(args->words[1]));
    }
    if (command_is_noun(args->words[0]))
        return cli_usage(err, "cairn %.*s: which command?", STR_ARG(args->words[0]));
    return cli_usage(err, "there is no command \"%.*s\"", STR_ARG(args->words[0]));
}

static bool takes_run(const struct cli *cli) {
    str words = str_c(cli->command->words);
    return cli->args.word_count > 0 &&
           (str_starts(words, STR("RUN")) || str_eq(words, STR("[RUN]")));
}

static status dispatch(struct cli *cli, struct error *err) {
    size_t used = 0;
    cli->command = command_find(cli->args.words, cli->args.word_count, &used);
    status st = choose_format(cli, err);
    if (st != ST_OK) return st;
    if (args_has(&cli->args, OPT_HELP))
        return help_write(cli->args.words, used > 0 ? used : cli->args.word_count, &cli->out.buf,
                          err);
    if (cli->args.word_count == 0) return cli_usage(err, "what shall be done?");
    if (!cli->command) return unknown_command(&cli->args, err);
    drop_words(&cli->args, used);
    st = check_options(cli, err);
    if (st == ST_OK) st = check_words(cli, err);
    if (st == ST_OK && remote_is_named(cli)) st = remote_check(cli, err);
    if (st == ST_OK && takes_run(cli)) st = source_run_word(cli, &cli->args.words[0], err);
    return st == ST_OK ? cli->command->run(cli, err) : st;
}

int cli_main(int argc, const char *const *argv) {
    static const char *const version[] = {"cairn", "version", NULL};
    struct cli cli = {0};
    struct error err = {0};
    if (argc == 2 && strcmp(argv[1], "--version") == 0) argv = version;
    arena_init(&cli.arena, 4096, COMMAND_ARENA_MAX);
    out_init(&cli.out, STDOUT_FILENO);
    status st = args_parse(argc, argv, &cli.args, &err);
    if (st == ST_OK)
        st = dispatch(&cli, &err);
    else {
        size_t used = 0;
        cli.command = command_find(cli.args.words, cli.args.word_count, &used);
    }
    out_flush(&cli.out);
    if (st == ST_OK) st = out_check(&cli.out, &err);
    if (st != ST_OK) tell(&cli, &err);
    int exit_code = st == ST_OK ? cli.exit_code : cli_exit_code(&err);
    out_release(&cli.out);
    arena_release(&cli.arena); /* a server's error code lives in it */
    return exit_code;
}
