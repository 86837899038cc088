#include "cli/options.h"

#include "cli/cli.h"
#include "test.h"

static status parse(const char *const *words, struct args *args, struct error *err) {
    int argc = 0;
    while (words[argc])
        argc++;
    return args_parse(argc, words, args, err);
}

TEST(options_are_sorted_from_words) {
    static const char *const line[] = {"cairn",     "--data",  "d", "ledger", "-ojson", "append",
                                       "--limit=5", "--state", "-", "--",     "--run",  NULL};
    struct args args;
    struct error err = {0};
    CHECK(parse(line, &args, &err) == ST_OK, "%s", err.msg);
    static const str want[] = {STR_LIT("ledger"), STR_LIT("append"), STR_LIT("-"),
                               STR_LIT("--run")};
    CHECK(args.word_count == COUNT_OF(want));
    for (size_t i = 0; i < COUNT_OF(want); i++)
        CHECK(str_eq(args.words[i], want[i]), "word %zu", i);
    CHECK(str_eq(args.values[OPT_DATA], STR("d")) && str_eq(args.values[OPT_OUTPUT], STR("json")));
    CHECK(str_eq(args.values[OPT_LIMIT], STR("5")) && args_has(&args, OPT_STATE) &&
          !args_has(&args, OPT_RUN));
}

TEST(options_that_are_wrong_are_named) {
    static const struct {
        const char *line[5];
        const char *msg;
    } cases[] = {{{"cairn", "--nothing"}, "unknown option \"--nothing\""},
                 {{"cairn", "--nothing=1"}, "unknown option \"--nothing=1\""},
                 {{"cairn", "-z"}, "unknown option \"-z\""},
                 {{"cairn", "--limit"}, "--limit needs a value, N"},
                 {{"cairn", "--state=1"}, "--state takes no value"},
                 {{"cairn", "-q1"}, "--quiet takes no value"},
                 {{"cairn", "--run", "a", "--run=b"}, "--run is given twice"},
                 {{"cairn", "--run", "\xff"}, "the value of --run is not valid UTF-8"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct args args;
        struct error err = {0};
        CHECK(parse(cases[i].line, &args, &err) == ST_INVALID && err.reason == REASON_USAGE,
              "case %zu", i);
        CHECK(strcmp(err.msg, cases[i].msg) == 0, "case %zu: %s", i, err.msg);
        CHECK(cli_exit_code(&err) == 2);
    }
    static const char *const path[] = {"cairn", "--data", "\xff",
                                       NULL}; /* a path may be any bytes */
    struct args args;
    struct error err = {0};
    CHECK(parse(path, &args, &err) == ST_OK && args.values[OPT_DATA].len == 1);
}

TEST(options_may_repeat) {
    static const char *const line[] = {"cairn",     "run", "--input", "a=1",   "--allow",
                                       "https://x", "p",   "--input", "b=2=3", NULL};
    struct args args;
    struct error err = {0};
    str v = STR_NONE;
    size_t at = 0;
    CHECK(parse(line, &args, &err) == ST_OK, "%s", err.msg);
    CHECK(args_each(&args, OPT_INPUT, &at, &v) && str_eq(v, STR("a=1")));
    CHECK(args_each(&args, OPT_INPUT, &at, &v) && str_eq(v, STR("b=2=3")));
    CHECK(!args_each(&args, OPT_INPUT, &at, &v));
    CHECK(str_eq(args.values[OPT_INPUT], STR("a=1")) && args.word_count == 2);
    const char *many[2 * ARGS_REPEATS_MAX + 4] = {"cairn"};
    for (int i = 0; i <= ARGS_REPEATS_MAX; i++) {
        many[1 + 2 * i] = "--input";
        many[2 + 2 * i] = "x=1";
    }
    CHECK(parse(many, &args, &err) == ST_INVALID);
    CHECK(strcmp(err.msg, "--input is given more than 64 times") == 0, "%s", err.msg);
}

/* A noun may be a command itself: `cairn run PLAN` beside `cairn run list`. */
TEST(commands_are_found_by_their_words) {
    static const struct {
        str words[3];
        size_t count;
        const char *verb;
        size_t used;
    } cases[] = {{{STR_LIT("run"), STR_LIT("list")}, 2, "list", 2},
                 {{STR_LIT("run"), STR_LIT("plan.json")}, 2, "", 1},
                 {{STR_LIT("run"), STR_LIT("-")}, 2, "", 1},
                 {{STR_LIT("run")}, 1, "", 1},
                 {{STR_LIT("serve")}, 1, "", 1},
                 {{STR_LIT("ledger"), STR_LIT("fly")}, 2, NULL, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t used = 9;
        const struct command *c = command_find(cases[i].words, cases[i].count, &used);
        CHECK((c != NULL) == (cases[i].verb != NULL) && used == cases[i].used, "case %zu", i);
        CHECK(!c || strcmp(c->verb, cases[i].verb) == 0, "case %zu", i);
    }
    for (size_t i = 1; i < command_count; i++) {
        bool same = strcmp(commands[i].noun, commands[i - 1].noun) == 0;
        CHECK(!same || commands[i - 1].verb[0], "%s must come last", commands[i - 1].noun);
    }
}

TEST(options_numbers_and_times) {
    static const struct {
        const char *in;
        status want;
        int64_t n;
    } numbers[] = {{"1", ST_OK, 1},       {"10", ST_OK, 10},
                   {"0", ST_INVALID, 0},  {"11", ST_INVALID, 0},
                   {"", ST_INVALID, 0},   {"x", ST_INVALID, 0},
                   {"5 ", ST_INVALID, 0}, {"99999999999999999999", ST_INVALID, 0}};
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        struct args args = {.values = {[OPT_LIMIT] = str_c(numbers[i].in)}};
        struct error err = {0};
        int64_t n = 0;
        CHECK(args_int(&args, OPT_LIMIT, 1, 10, 7, &n, &err) == numbers[i].want &&
                  n == numbers[i].n,
              "case %zu", i);
    }
    static const struct {
        const char *in;
        status want;
        int64_t us;
    } times[] = {
        {"1970-01-01T00:00:01Z", ST_OK, 1000000},
        {"1970-01-01T00:00:00.000001Z", ST_OK, 1},
        {"1970-01-01T00:00:00.000000001Z", ST_OK, 1}, /* up: the first microsecond not before it */
        {"1970-01-01T00:00:00+00:00", ST_INVALID, 0}};
    for (size_t i = 0; i < COUNT_OF(times); i++) {
        struct args args = {.values = {[OPT_SINCE] = str_c(times[i].in)}};
        struct error err = {0};
        int64_t us = 0;
        CHECK(args_time(&args, OPT_SINCE, 9, &us, &err) == times[i].want && us == times[i].us,
              "case %zu", i);
    }
    struct args none = {0};
    struct error err = {0};
    int64_t n = 0;
    CHECK(args_int(&none, OPT_LIMIT, 1, 10, 7, &n, &err) == ST_OK && n == 7);
    CHECK(args_time(&none, OPT_SINCE, 9, &n, &err) == ST_OK && n == 9);
}

TEST(options_every_one_is_used_and_described) {
    uint64_t used = 0;
    for (size_t i = 0; i < command_count; i++) {
        used |= command_options(&commands[i]);
        CHECK((commands[i].required & ~commands[i].options) == 0, "%s %s", commands[i].noun,
              commands[i].verb);
        CHECK(commands[i].summary[0], "%s %s", commands[i].noun, commands[i].verb);
    }
    for (int i = 0; i < OPT_COUNT; i++) {
        CHECK(opt_info((enum opt)i)->name && opt_info((enum opt)i)->help, "option %d", i);
        CHECK(used & OPT_BIT(i), "--%s belongs to no command", opt_info((enum opt)i)->name);
    }
}

/* The one table of exit codes, as documented. */
TEST(cli_exit_codes) {
    static const struct {
        status code;
        int want;
        const char *name;
    } cases[] = {{ST_INVALID, 1, "INVALID"},   {ST_NOT_FOUND, 3, "NOT_FOUND"},
                 {ST_CONFLICT, 4, "CONFLICT"}, {ST_LIMIT, 5, "LIMIT"},
                 {ST_RETRY, 6, "TRY_AGAIN"},   {ST_CORRUPT, 8, "DAMAGED"},
                 {(status)99, 70, "INTERNAL"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {.code = cases[i].code};
        CHECK(cli_exit_code(&err) == cases[i].want, "case %zu", i);
        CHECK(strcmp(error_name(&err), cases[i].name) == 0, "case %zu", i);
    }
}

TEST(store_shown_hides_passwords) {
    static const struct {
        const char *url, *want;
    } cases[] = {{"postgresql://u:secret@h:1/d", "postgresql://u:***@h:1/d"},
                 {"postgres://u:se@cret@h/d", "postgresql://u:***@h/d"},
                 {"postgresql://u:p?w/x@h/d", "postgresql://u:***@h/d"},
                 {"postgresql://u@h/d", "postgresql://u@h/d"},
                 {"postgresql://h/d?password=secret", "postgresql://h/d?..."},
                 {"postgresql://u:secret@h/d?x=1", "postgresql://u:***@h/d?..."},
                 {"postgresql:///d", "postgresql:///d"},
                 {"sqlite:d/ledger.db", "d/ledger.db"}};
    struct cli cli = {0};
    arena_init(&cli.arena, 4096, 65536);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str shown = store_shown(&cli, str_c(cases[i].url));
        CHECK(str_eq(shown, str_c(cases[i].want)), "case %zu: %.*s", i, STR_ARG(shown));
    }
    arena_release(&cli.arena);
}
