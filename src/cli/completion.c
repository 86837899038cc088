/* cli/completion.c: completion scripts for bash, zsh and fish, made from the tables. */
#include "cli/cli.h"

static bool begins_noun(size_t i) {
    return i == 0 || strcmp(commands[i].noun, commands[i - 1].noun) != 0;
}

static void put_options_of(const struct command *c, struct buf *out) {
    uint64_t all = command_options(c);
    for (int i = 0; i < OPT_COUNT; i++) {
        if (all & OPT_BIT(i)) buf_printf(out, " --%s", opt_info((enum opt)i)->name);
    }
}

static void put_bash_verbs(struct buf *out) {
    for (size_t i = 0; i < command_count; i++) {
        if (!begins_noun(i)) continue;
        if (!commands[i].verb[0]) continue;
        bool takes_file = false; /* the noun alone is a command, too, and its word a path */
        buf_printf(out, "        %s) words='", commands[i].noun);
        for (size_t k = i; k < command_count && strcmp(commands[k].noun, commands[i].noun) == 0;
             k++) {
            buf_printf(out, "%s%s", k > i && commands[k].verb[0] ? " " : "", commands[k].verb);
            takes_file = takes_file || !commands[k].verb[0];
        }
        buf_printf(out, "'%s ;;\n",
                   takes_file ? "; COMPREPLY=($(compgen -f -- \"$current\"))" : "");
    }
}

static void put_nouns(struct buf *out) {
    for (size_t i = 0; i < command_count; i++) {
        if (!begins_noun(i)) continue;
        buf_printf(out, "%s%s", i > 0 ? " " : "", commands[i].noun);
    }
}

/* ---- bash ---- */

static void put_bash(struct buf *out) {
    buf_put_c(
        out,
        "# bash completion of cairn; use it with: source <(cairn completion bash)\n"
        "_cairn() {\n"
        "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=\n"
        "    COMPREPLY=()\n"
        "    case $before in\n"
        "    -o|--output) words='table json ndjson' ;;\n"
        "    --validation) words='reject record' ;;\n"
        "    --role) words='viewer operator producer worker admin' ;;\n"
        "    --status) words='PENDING APPROVED RUNNING PAUSED COMPLETED FAILED CANCELLED "
        "PROCESSING "
        "DEAD_LETTER' ;;\n"
        "    --data|--secrets) COMPREPLY=($(compgen -d -- \"$current\")); return ;;\n"
        "    esac\n"
        "    if [ -n \"$words\" ]; then :\n"
        "    elif [ \"$COMP_CWORD\" = 1 ]; then words='");
    put_nouns(out);
    buf_put_c(out, "'\n"
                   "    elif [ \"$COMP_CWORD\" = 2 ] && [[ $current != -* ]]; then\n"
                   "        case ${COMP_WORDS[1]} in\n");
    put_bash_verbs(out);
    buf_put_c(out, "        esac\n"
                   "    elif [[ $current == -* ]]; then\n"
                   "        case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n");
    for (size_t i = 0; i < command_count; i++) {
        buf_printf(out, "        \"%s %s\"*) words='", commands[i].noun, commands[i].verb);
        put_options_of(&commands[i], out);
        buf_put_c(out, "' ;;\n");
    }
    buf_put_c(out, "        esac\n"
                   "    else COMPREPLY=($(compgen -f -- \"$current\")); return\n"
                   "    fi\n"
                   "    COMPREPLY+=($(compgen -W \"$words\" -- \"$current\"))\n"
                   "}\n"
                   "complete -F _cairn cairn\n");
}

/* ---- zsh ---- */

/* The verbs of the noun at `i`, and files where the noun alone takes one. */
static void put_zsh_verbs(struct buf *out, size_t i) {
    bool takes_file = false;
    buf_printf(out, "        %s) compadd --", commands[i].noun);
    for (size_t k = i; k < command_count && strcmp(commands[k].noun, commands[i].noun) == 0; k++) {
        if (commands[k].verb[0])
            buf_printf(out, " %s", commands[k].verb);
        else
            takes_file = true;
    }
    buf_printf(out, "%s ;;\n", takes_file ? "; _files" : "");
}

static void put_zsh(struct buf *out) {
    buf_put_c(out,
              "#compdef cairn\n"
              "# zsh completion of cairn; a file _cairn in $fpath\n"
              "_cairn() {\n"
              "    case $words[CURRENT-1] in\n"
              "    -o|--output) compadd table json ndjson; return ;;\n"
              "    --validation) compadd reject record; return ;;\n"
              "    --role) compadd viewer operator producer worker admin; return ;;\n"
              "    --status) compadd PENDING APPROVED RUNNING PAUSED COMPLETED FAILED CANCELLED "
              "PROCESSING DEAD_LETTER; "
              "return ;;\n"
              "    --data|--secrets) _files -/; return ;;\n"
              "    esac\n"
              "    if (( CURRENT == 2 )); then compadd -- ");
    put_nouns(out);
    buf_put_c(out, "; return; fi\n"
                   "    if [[ $words[CURRENT] == -* ]]; then\n"
                   "        case \"$words[2] $words[3]\" in\n");
    for (size_t i = 0; i < command_count; i++) {
        buf_printf(out, "        \"%s %s\"*) compadd --", commands[i].noun, commands[i].verb);
        put_options_of(&commands[i], out);
        buf_put_c(out, " ;;\n");
    }
    buf_put_c(out, "        esac\n"
                   "        return\n"
                   "    fi\n"
                   "    if (( CURRENT == 3 )); then\n"
                   "        case $words[2] in\n");
    for (size_t i = 0; i < command_count; i++) {
        if (begins_noun(i) && commands[i].verb[0]) put_zsh_verbs(out, i);
    }
    buf_put_c(out, "        *) _files ;;\n"
                   "        esac\n"
                   "        return\n"
                   "    fi\n"
                   "    _files\n"
                   "}\n"
                   "_cairn \"$@\"\n");
}

/* ---- fish ---- */

static void put_quoted(struct buf *out, const char *text) {
    buf_put_char(out, '\'');
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') buf_put_char(out, '\\');
        buf_put_char(out, *text);
    }
    buf_put_char(out, '\'');
}

static void put_fish_word(struct buf *out, const char *before, const char *word,
                          const char *summary) {
    buf_printf(out, "complete -c cairn -n '__cairn_only%s%s' -f -a %s -d ", before[0] ? " " : "",
               before, word);
    put_quoted(out, summary);
    buf_put_char(out, '\n');
}

static void put_fish_options(struct buf *out, const struct command *c) {
    uint64_t all = command_options(c);
    for (int i = 0; i < OPT_COUNT; i++) {
        const struct opt_info *info = opt_info((enum opt)i);
        if (!(all & OPT_BIT(i))) continue;
        buf_printf(out, "complete -c cairn -n '__cairn_at %s%s%s' -l %s", c->noun,
                   c->verb[0] ? " " : "", c->verb, info->name);
        if (info->letter) buf_printf(out, " -s %c", info->letter);
        if (info->value) buf_put_c(out, info->traits & IS_PATH ? " -r -F" : " -x");
        if (i == OPT_OUTPUT) buf_put_c(out, " -a 'table json ndjson'");
        if (i == OPT_ROLE) buf_put_c(out, " -a 'viewer operator producer worker admin'");
        buf_put_c(out, " -d ");
        put_quoted(out, info->help);
        buf_put_char(out, '\n');
    }
}

static void put_fish(struct buf *out) {
    buf_put_c(out, "# fish completion of cairn; use it with: cairn completion fish | source\n"
                   "function __cairn_only # WORDS: they stand there, and nothing else\n"
                   "    set -l given (commandline -opc)\n"
                   "    test \"$argv\" = \"$given[2..-1]\"\n"
                   "end\n"
                   "function __cairn_at # WORDS: the line begins with them\n"
                   "    set -l given (commandline -opc)\n"
                   "    string match -q -- \"$argv *\" \"$given[2..-1] \"\n"
                   "end\n");
    for (size_t i = 0; i < command_count; i++) {
        const struct command *c = &commands[i];
        bool group = command_has_verbs(str_c(c->noun));
        if (begins_noun(i))
            put_fish_word(out, "", c->noun, group ? "commands of this kind" : c->summary);
        if (c->verb[0]) put_fish_word(out, c->noun, c->verb, c->summary);
        put_fish_options(out, c);
    }
}

status cmd_completion(struct cli *cli, struct error *err) {
    static const struct {
        const char *shell;
        void (*put)(struct buf *out);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    for (size_t i = 0; i < COUNT_OF(shells); i++) {
        if (!str_eq(cli->args.words[0], str_c(shells[i].shell))) continue;
        shells[i].put(&cli->out.buf);
        return ST_OK;
    }
    return cli_usage(err, "there is completion for bash, zsh and fish");
}
