/* cli/template.c: cairn template ... */
#include "base/json.h"
#include "base/limits.h"
#include "base/os.h"
#include "cli/cli.h"
#include "core/liquid.h"

#define CONTEXT_BYTES_MAX ((size_t)16 * 1024 * 1024)
#define RENDER_BYTES_MAX ((size_t)256 * 1024 * 1024) /* the parsed template and all it makes */

static str context_path(const struct cli *cli) {
    for (int opt = 0; opt < OPT_COUNT; opt++) {
        if (strcmp(opt_info((enum opt)opt)->name, "context") == 0) return cli->args.values[opt];
    }
    return STR_NONE;
}

static status read_input(struct cli *cli, str path, size_t bytes_max, str *out, struct error *err) {
    if (str_eq(path, STR("-"))) path = STR("/dev/stdin");
    return file_read(path, bytes_max, &cli->arena, out, err);
}

static status read_context(struct cli *cli, yyjson_val **out, struct error *err) {
    str text;
    str path = context_path(cli);
    struct json_limits limits = {.bytes_max = CONTEXT_BYTES_MAX, .depth_max = JSON_DEPTH_MAX};
    *out = NULL;
    if (path.ptr == NULL) return ST_OK;
    status st = read_input(cli, path, CONTEXT_BYTES_MAX, &text, err);
    if (st != ST_OK) return st;
    st = json_parse(text, limits, &cli->arena, out, err);
    if (st != ST_OK) return error_wrap(err, "the context \"%.*s\"", STR_ARG(path));
    if (yyjson_is_obj(*out)) return ST_OK;
    return error_at(err, REASON_CONTEXT_INVALID, "", "the context \"%.*s\" is no JSON object",
                    STR_ARG(path));
}

/* People count lines and characters, both from 1. */
static void tell_line(str text, struct error *err) {
    int64_t offset;
    int64_t line = 1;
    int64_t column = 1;
    str rest = str_c(err->where);
    if (!str_starts(rest, STR("offset "))) return;
    rest = str_from(rest, strlen("offset "));
    if (!str_to_int(rest, &offset) || offset < 0) return;
    for (size_t i = 0; i < text.len && (int64_t)i < offset; i++) {
        if (text.ptr[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)text.ptr[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    (void)snprintf(err->where, sizeof err->where, "line %lld, column %lld", (long long)line,
                   (long long)column);
}

static void print(struct cli *cli, str text) {
    struct buf *out = &cli->out.buf;
    if (cli->format == OUT_TABLE) {
        buf_put(out, text);
        return;
    }
    json_object_begin(out);
    put_shown(out, "text", text);
    buf_put_c(out, "}\n");
}

status cmd_template_render(struct cli *cli, struct error *err) {
    str text;
    struct liquid_scope scope = {.root = NULL};
    status st = read_context(cli, &scope.root, err);
    if (st == ST_OK) st = read_input(cli, cli->args.words[0], LIQUID_OUTPUT_MAX, &text, err);
    if (st != ST_OK) return st;
    struct arena arena;
    struct buf rendered;
    arena_init(&arena, (size_t)64 * 1024, RENDER_BYTES_MAX);
    buf_init(&rendered, LIQUID_OUTPUT_MAX);
    st = liquid_render(text, &scope, &arena, &rendered, err);
    if (st == ST_OK) {
        print(cli, buf_str(&rendered));
    } else {
        tell_line(text, err);
    }
    buf_release(&rendered);
    arena_release(&arena);
    return st;
}
