/* cli/execute.c: cairn run PLAN. */
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/os.h"
#include "cli/drive.h"
#include "cli/plan.h"
#include "cli/result.h"
#include "core/plan.h"
#include "db/db.h"

#define INPUT_BYTES_MAX ((size_t)1024 * 1024) /* of a file with parameters */

struct plan_file {
    str path;
    struct plan_ref ref;
    struct plan *plan; /* NULL: a reference was given */
};

/* ---- the plan ---- */

static void say_problems(const struct cli *cli, str path, const struct plan_problems *problems) {
    if (cli->format_given && cli->format != OUT_TABLE) return; /* one error object, and no more */
    for (size_t i = 0; i < problems->count; i++) {
        const struct plan_problem *p = &problems->items[i];
        cli_say("%.*s:%d:%d: %s %.*s%s%.*s", STR_ARG(path), p->line, p->column,
                reason_name(p->code), STR_ARG(p->pointer), p->pointer.len > 0 ? " " : "",
                STR_ARG(p->message));
    }
    if (problems->more) cli_say("... and more");
}

/* A PlanRef is an object with "uri" and "sha256"; no plan has these. */
static bool is_ref(str text, struct arena *arena) {
    struct json_limits limits = {PLAN_REF_BYTES_MAX, JSON_DEPTH_MAX};
    yyjson_val *root = NULL;
    struct error ignored;
    size_t at = 0;
    return text.len <= PLAN_REF_BYTES_MAX &&
           jsonc_parse(text, limits, arena, &root, &at, &ignored) == ST_OK &&
           json_member(root, "uri") && json_member(root, "sha256");
}

static status keep_plan(struct cli *cli, str text, struct plan_file *out, struct error *err) {
    struct arena *arena = &cli->arena;
    struct plan_problems *problems = ARENA_NEW(arena, struct plan_problems);
    status st = plan_parse(text, arena, &out->plan, problems, err);
    if (st != ST_OK) {
        out->plan = NULL;
        if (problems->count == 0) return st;
        struct error first = *err;
        say_problems(cli, out->path, problems);
        return error_as(err, first.code, first.reason, first.where,
                        "\"%.*s\" is not a valid plan: line %d, column %d: %s", STR_ARG(out->path),
                        problems->items[0].line, problems->items[0].column, first.msg);
    }
    return plan_keep(cli, out->plan, text, &out->ref, err);
}

static status read_plan(struct cli *cli, struct plan_file *out, struct error *err) {
    str text = STR_NONE;
    *out = (struct plan_file){.path = cli->args.words[0]};
    bool standard_input = str_eq(out->path, STR("-"));
    if (!standard_input && !path_exists(out->path))
        return error_at(err, REASON_PLAN_NOT_FOUND, "",
                        "there is no plan file \"%.*s\", nor a command \"cairn run %.*s\"",
                        STR_ARG(out->path), STR_ARG(out->path));
    status st = file_read(standard_input ? STR("/dev/stdin") : out->path, PLAN_BYTES_MAX,
                          &cli->arena, &text, err);
    if (st != ST_OK) return st;
    if (is_ref(text, &cli->arena)) return plan_ref_parse(text, &cli->arena, &out->ref, err);
    return keep_plan(cli, text, out, err);
}

/* ---- its parameters ---- */

struct inputs {
    struct cli *cli;
    const struct plan *plan;
    yyjson_mut_doc *doc;
    yyjson_mut_val *root;
};

static status input_error(struct error *err, str given, const char *what) {
    return error_at(err, REASON_USAGE, "", "--input \"%.*s\": %s", STR_ARG(given), what);
}

static bool schema_says_string(const struct plan *plan, str name) {
    yyjson_val *properties = plan ? json_member(plan->parameters, "properties") : NULL;
    yyjson_val *property = yyjson_obj_getn(properties, name.ptr, name.len);
    return yyjson_equals_str(json_member(property, "type"), "string");
}

/* A later value of the same name wins. */
static void put_input(struct inputs *in, str name, yyjson_mut_val *value) {
    yyjson_mut_val *key = yyjson_mut_strncpy(in->doc, name.ptr, name.len);
    (void)yyjson_mut_obj_put(in->root, key, value);
}

static status read_file_of_inputs(struct inputs *in, str given, struct error *err) {
    struct json_limits limits = {INPUT_BYTES_MAX, JSON_DEPTH_MAX};
    yyjson_val *root = NULL;
    str text = STR_NONE;
    size_t bad_at = 0;
    status st = file_read(str_from(given, 1), INPUT_BYTES_MAX, &in->cli->arena, &text, err);
    if (st == ST_OK) st = jsonc_parse(text, limits, &in->cli->arena, &root, &bad_at, err);
    if (st != ST_OK) return error_wrap(err, "--input \"%.*s\"", STR_ARG(given));
    if (!yyjson_is_obj(root)) return input_error(err, given, "the file must hold a JSON object");
    size_t i;
    size_t max;
    yyjson_val *key;
    yyjson_val *val;
    yyjson_obj_foreach(root, i, max, key, val) {
        put_input(in, str_n(yyjson_get_str(key), yyjson_get_len(key)),
                  yyjson_val_mut_copy(in->doc, val));
    }
    return ST_OK;
}

static status read_input(struct inputs *in, str given, struct error *err) {
    struct json_limits limits = {INPUT_BYTES_MAX, JSON_DEPTH_MAX};
    yyjson_val *parsed = NULL;
    struct error not_json;
    str name = STR_NONE;
    str value = STR_NONE;
    size_t bad = 0;
    if (given.len > 0 && given.ptr[0] == '@') return read_file_of_inputs(in, given, err);
    if (!str_split(given, '=', &name, &value) || name.len == 0)
        return input_error(err, given, "expected NAME=VALUE or @FILE.json");
    if (!str_utf8(given, &bad)) return input_error(err, given, "is not valid UTF-8");
    if (!schema_says_string(in->plan, name) &&
        json_parse(value, limits, &in->cli->arena, &parsed, &not_json) == ST_OK)
        put_input(in, name, yyjson_val_mut_copy(in->doc, parsed));
    else
        put_input(in, name, yyjson_mut_strncpy(in->doc, value.ptr, value.len));
    return ST_OK;
}

/* All --input options as one JSON object; STR_NONE without any. */
static status read_inputs(struct cli *cli, const struct plan *plan, str *out, struct error *err) {
    struct inputs in = {.cli = cli, .plan = plan};
    status st = ST_OK;
    str given;
    *out = STR_NONE;
    if (!args_has(&cli->args, OPT_INPUT)) return ST_OK;
    in.doc = yyjson_mut_doc_new(NULL);
    in.root = in.doc ? yyjson_mut_obj(in.doc) : NULL;
    if (!in.root) return error_set(err, ST_RETRY, "out of memory for the parameters");
    yyjson_mut_doc_set_root(in.doc, in.root);
    for (size_t at = 0; st == ST_OK && args_each(&cli->args, OPT_INPUT, &at, &given);)
        st = read_input(&in, given, err);
    if (st == ST_OK) {
        size_t len = 0;
        char *text = yyjson_mut_write(in.doc, 0, &len);
        if (text) *out = arena_str(&cli->arena, str_n(text, len));
        if (!text) st = error_set(err, ST_RETRY, "out of memory for the parameters");
        free(text);
    }
    yyjson_mut_doc_free(in.doc);
    return st;
}

/* ---- the run ---- */

static str value_or(const struct cli *cli, enum opt opt, str otherwise) {
    return args_has(&cli->args, opt) ? cli->args.values[opt] : otherwise;
}

/* On PostgreSQL a run whose node is dead is taken over with the node's other work: there is no
 * lease for a single run. */
static bool node_is_dead(struct cli *cli, str run_id) {
    struct ledger *reader = NULL;
    struct run_info info;
    struct lease_info lease = {0};
    struct error ignored;
    str url = STR_NONE;
    if (!run_id.ptr || remote_is_named(cli) || store_url(cli, &url, &ignored) != ST_OK ||
        !db_url_is_postgres(url) || ledger_open_reader(url, &reader, &ignored) != ST_OK)
        return false;
    status st = ledger_find_run(reader, run_id, &cli->arena, &info, &ignored);
    if (st == ST_OK) st = lease_find(reader, info.run_no, &cli->arena, &lease, &ignored);
    ledger_close(reader);
    return st == ST_OK && !run_is_final(info.head.status) && lease.held && !lease.alive;
}

static void warn_of_peer(const struct drive *d) {
    const struct args *a = &d->cli->args;
    if (d->peer && !d->served && (args_has(a, OPT_SECRETS) || args_has(a, OPT_ALLOW)))
        cli_say("cairn: another process carries out the runs of this folder: its --secrets and "
                "--allow hold");
}

/* Who carries out the run is chosen before it starts: by the caller, else by the plan. */
static str choose_adapter(const struct cli *cli, const struct plan *plan) {
    enum adapter_kind adapter = ADAPTER_LOCAL;
    if (args_has(&cli->args, OPT_PROVIDER)) return cli->args.values[OPT_PROVIDER];
    if (plan) (void)adapter_of(plan->target_adapter, &adapter); /* "any": here */
    return str_c(adapter_name(adapter));
}

status cmd_run_plan(struct cli *cli, struct error *err) {
    struct plan_file file;
    struct drive d;
    struct source *source = NULL;
    char run_id[ID_BYTES_MAX + 1] = "";
    str parameters = STR_NONE;
    const str *v = cli->args.values;
    status st = read_plan(cli, &file, err);
    if (st == ST_OK) st = read_inputs(cli, file.plan, &parameters, err);
    if (st != ST_OK) return st;
    struct start_request request = {.ref = file.ref,
                                    .tenant_id = value_or(cli, OPT_TENANT, STR("default")),
                                    .project_id = value_or(cli, OPT_PROJECT, STR("default")),
                                    .environment_id =
                                        value_or(cli, OPT_ENVIRONMENT, STR("default")),
                                    .run_id = v[OPT_RUN_ID],
                                    .adapter = choose_adapter(cli, file.plan),
                                    .parameters = parameters,
                                    .actor = v[OPT_ACTOR],
                                    .approval = args_has(&cli->args, OPT_APPROVAL)};
    struct drive_options options = {.quiet = args_has(&cli->args, OPT_QUIET),
                                    .all = node_is_dead(cli, v[OPT_RUN_ID])};
    st = drive_open(&d, cli, &options, err);
    if (st != ST_OK) return st;
    warn_of_peer(&d);
    if (file.plan) live_plan(d.live, file.plan);
    st = drive_start(&d, &request, run_id, err);
    if (st == ST_OK) st = drive_wait(&d, str_c(run_id), err);
    bool stopped = d.stop;
    if (st == ST_OK && stopped) drive_say_interrupted(&d, str_c(run_id));
    drive_close(&d);
    if (st != ST_OK || stopped) return st;
    st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = result_print(cli, source, str_c(run_id), err);
    source_close(source);
    return st;
}
