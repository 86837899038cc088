/* cli/plan.c: cairn plan validate, graph, schema, ref, put, capabilities. */
#include "cli/plan.h"

#include "base/os.h"
#include "cli/remote.h"
#include "core/capability.h"
#include "engine/plan_source.h"

struct plan_file {
    str path, text;
    struct plan *plan;              /* NULL: it has problems */
    struct plan_problems *problems; /* perhaps none */
};

/* ---- reading ---- */

/* A file that cannot be read is an error; one that is no plan is not, yet: *st tells. */
static status load(struct cli *cli, struct plan_file *out, status *st, struct error *err) {
    *out = (struct plan_file){.path = cli->args.words[0]};
    out->problems = ARENA_NEW(&cli->arena, struct plan_problems);
    bool standard_input = str_eq(out->path, STR("-"));
    status read = file_read(standard_input ? STR("/dev/stdin") : out->path, PLAN_BYTES_MAX,
                            &cli->arena, &out->text, err);
    if (read != ST_OK) return read;
    *st = plan_parse(out->text, &cli->arena, &out->plan, out->problems, err);
    return *st == ST_RETRY ? *st : ST_OK;
}

/* The commands that need a plan say what is wrong with it on standard error. */
static status load_good(struct cli *cli, struct plan_file *out, struct error *err) {
    status st = ST_OK;
    status read = load(cli, out, &st, err);
    if (read != ST_OK || st == ST_OK) return read;
    const struct plan_problem *first = &out->problems->items[0];
    return error_wrap(err, "%.*s:%d:%d", STR_ARG(out->path), first->line, first->column);
}

/* ---- validate ---- */

static void show_problem(struct cli *cli, const struct plan_file *file,
                         const struct plan_problem *problem) {
    struct buf *out = &cli->out.buf;
    text_show(file->path, 0, out);
    buf_printf(out, ":%d:%d: %s ", problem->line, problem->column, reason_name(problem->code));
    if (problem->pointer.len > 0) {
        text_show(problem->pointer, 0, out);
        buf_put_char(out, ' ');
    }
    text_show(problem->message, 0, out);
    buf_put_char(out, '\n');
}

static void show_items(struct cli *cli, const char *kind, const struct report_item *items,
                       size_t count) {
    struct buf *out = &cli->out.buf;
    for (size_t i = 0; i < count; i++) {
        buf_printf(out, "%s: %s ", kind, reason_name(items[i].code));
        text_show(items[i].message, 0, out);
        buf_put_char(out, '\n');
    }
}

static void show_report(struct cli *cli, const struct plan_file *file,
                        const struct validation_report *report, enum adapter_kind adapter) {
    struct buf *out = &cli->out.buf;
    for (size_t i = 0; i < file->problems->count; i++)
        show_problem(cli, file, &file->problems->items[i]);
    if (file->problems->more) buf_put_c(out, "... and more\n");
    if (file->plan == NULL) return;
    show_items(cli, "error", report->errors, report->error_count);
    show_items(cli, "warning", report->warnings, report->warning_count);
    text_show(file->plan->plan_id, 0, out);
    buf_put_c(out, " v");
    text_show(file->plan->plan_version, 0, out);
    buf_printf(out, ": %u steps, %s on adapter %s\n", (unsigned)file->plan->step_count,
               report_status_name(report->status), adapter_name(adapter));
}

static void put_report(struct cli *cli, const struct plan_file *file,
                       const struct validation_report *report, enum adapter_kind adapter) {
    struct buf *out = &cli->out.buf;
    json_object_begin(out);
    put_shown(out, "file", file->path);
    json_put_bool(out, "valid", file->plan != NULL);
    json_name(out, "problems");
    plan_problems_json(file->problems, out);
    json_put_bool(out, "more", file->problems->more);
    json_put_text(out, "adapter", str_c(adapter_name(adapter)));
    json_name(out, "report");
    if (file->plan != NULL)
        validation_report_json(report, out);
    else
        buf_put_c(out, "null");
    buf_put_c(out, "}\n");
}

status cmd_plan_validate(struct cli *cli, struct error *err) {
    struct plan_file file;
    struct validation_report report = {0};
    enum adapter_kind adapter = ADAPTER_LOCAL;
    status st = ST_OK;
    status read = load(cli, &file, &st, err);
    if (read != ST_OK) return read;
    if (file.plan != NULL) {
        /* A plan that is made for one adapter is checked for that one. */
        (void)adapter_of(file.plan->target_adapter, &adapter);
        read = capability_validate(file.plan, adapter, &cli->arena, &report, err);
        if (read != ST_OK) return read;
    }
    if (cli->format == OUT_TABLE)
        show_report(cli, &file, &report, adapter);
    else
        put_report(cli, &file, &report, adapter);
    if (st != ST_OK) {
        struct error first = *err;
        return error_as(err, first.code, first.reason, first.where, "\"%.*s\" is not a valid plan",
                        STR_ARG(file.path));
    }
    if (report.status != REPORT_ERRORS) return ST_OK;
    return error_as(err, ST_INVALID, report.errors[0].code, "/metadata",
                    "adapter \"%s\" cannot run the plan \"%.*s\"", adapter_name(adapter),
                    STR_ARG(file.path));
}

/* ---- graph ---- */

/* For each step the length of the longest way to it. */
static uint32_t *levels_of(struct cli *cli, const struct plan *plan) {
    uint32_t *level = ARENA_ARRAY(&cli->arena, uint32_t, plan->step_count);
    uint32_t *left = ARENA_ARRAY(&cli->arena, uint32_t, plan->step_count);
    uint32_t *ready = ARENA_ARRAY(&cli->arena, uint32_t, plan->step_count);
    uint32_t tail = 0;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        left[i] = plan->steps[i].dep_count;
        if (left[i] == 0) ready[tail++] = i;
    }
    for (uint32_t head = 0; head < tail; head++) {
        const struct plan_step *step = &plan->steps[ready[head]];
        for (uint32_t k = 0; k < step->dependent_count; k++) {
            uint32_t next = step->dependents[k];
            if (level[next] <= level[ready[head]]) level[next] = level[ready[head]] + 1;
            if (--left[next] == 0) ready[tail++] = next;
        }
    }
    return level;
}

static void put_graph_json(struct cli *cli, const struct plan *plan) {
    struct buf *out = &cli->out.buf;
    const uint32_t *level = levels_of(cli, plan);
    json_object_begin(out);
    json_put_text(out, "planId", plan->plan_id);
    json_name(out, "nodes");
    json_array_begin(out);
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        buf_put_c(out, i > 0 ? ",{" : "{");
        json_put_text(out, "id", step->id);
        json_put_text(out, "type", str_c(plan_type_name(step->type)));
        json_put_text(out, "phase", str_c(plan_phase_name(step->phase)));
        json_put_int(out, "level", level[i]);
        json_object_end(out);
        out_more(&cli->out);
    }
    buf_put_c(out, "],\"edges\":[");
    const char *comma = "";
    for (uint32_t i = 0; i < plan->step_count; i++) {
        for (uint32_t k = 0; k < plan->steps[i].dep_count; k++) {
            buf_put_c(out, comma);
            json_object_begin(out);
            json_put_text(out, "from", plan->steps[plan->steps[i].deps[k]].id);
            json_put_text(out, "to", plan->steps[i].id);
            json_object_end(out);
            comma = ",";
            out_more(&cli->out);
        }
    }
    buf_put_c(out, "]}\n");
}

/* An id of the language of Graphviz: in quotes, with quotes and backslashes escaped. */
static void put_dot_id(struct buf *out, str id, const char *more) {
    buf_put_char(out, '"');
    for (size_t i = 0; i < id.len; i++) {
        if (id.ptr[i] == '"' || id.ptr[i] == '\\') buf_put_char(out, '\\');
        buf_put_char(out, id.ptr[i]);
    }
    buf_put_c(out, more);
    buf_put_char(out, '"');
}

static void put_dot(struct cli *cli, const struct plan *plan) {
    struct buf *out = &cli->out.buf;
    buf_put_c(out, "digraph ");
    put_dot_id(out, plan->plan_id, "");
    buf_put_c(out, " {\n    rankdir=LR;\n    node [shape=box];\n");
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        char type[32];
        (void)snprintf(type, sizeof type, "\\n%s", plan_type_name(step->type));
        buf_put_c(out, "    ");
        put_dot_id(out, step->id, "");
        buf_put_c(out, " [label=");
        put_dot_id(out, step->id, type);
        buf_put_c(out, "];\n");
        out_more(&cli->out);
    }
    for (uint32_t i = 0; i < plan->step_count; i++) {
        for (uint32_t k = 0; k < plan->steps[i].dep_count; k++) {
            buf_put_c(out, "    ");
            put_dot_id(out, plan->steps[plan->steps[i].deps[k]].id, "");
            buf_put_c(out, " -> ");
            put_dot_id(out, plan->steps[i].id, "");
            buf_put_c(out, ";\n");
            out_more(&cli->out);
        }
    }
    buf_put_c(out, "}\n");
}

status cmd_plan_graph(struct cli *cli, struct error *err) {
    struct plan_file file;
    status st = load_good(cli, &file, err);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE)
        put_dot(cli, file.plan);
    else
        put_graph_json(cli, file.plan);
    return ST_OK;
}

/* ---- schema and capabilities ---- */

status cmd_plan_schema(struct cli *cli, struct error *err) {
    UNUSED(err);
    buf_put(&cli->out.buf, plan_schema_json());
    return ST_OK;
}

static const struct column capability_columns[] = {
    {"CAPABILITY", false, 0}, {"LOCAL", false, 0},   {"TEMPORAL", false, 0},
    {"CONDUCTOR", false, 0},  {"MEANING", false, 0},
};

static enum tone tone_of(enum support support) {
    if (support == SUPPORT_NO) return TONE_BAD;
    return support == SUPPORT_YES ? TONE_GOOD : TONE_WARN;
}

status cmd_plan_capabilities(struct cli *cli, struct error *err) {
    UNUSED(err);
    if (cli->format != OUT_TABLE) {
        capability_matrix_json(&cli->out.buf);
        buf_put_char(&cli->out.buf, '\n');
        return ST_OK;
    }
    struct list list;
    list_open(&list, &cli->out, cli->format, capability_columns, COUNT_OF(capability_columns),
              cli->colour);
    for (int i = 0; i < CAPABILITY_COUNT; i++) {
        struct cell cells[COUNT_OF(capability_columns)] = {
            {str_c(capability_name((enum capability)i)), TONE_PLAIN}};
        for (int a = 0; a < ADAPTER_COUNT; a++) {
            enum support support = capability_support((enum capability)i, (enum adapter_kind)a);
            cells[1 + a] = (struct cell){str_c(support_name(support)), tone_of(support)};
        }
        cells[1 + ADAPTER_COUNT] =
            (struct cell){str_c(capability_sentence((enum capability)i)), TONE_DIM};
        list_row(&list, cells);
    }
    list_close(&list);
    return ST_OK;
}

/* ---- ref and put ---- */

static status print_ref(struct cli *cli, const struct plan *plan, str uri, struct error *err) {
    char hex[SHA256_HEX_LEN];
    struct plan_ref again;
    struct plan_ref ref = {.uri = uri,
                           .schema_version = plan->schema_version,
                           .plan_id = plan->plan_id,
                           .plan_version = plan->plan_version,
                           .size_bytes = (int64_t)plan->bytes};
    memcpy(ref.sha256, plan->sha256, sizeof ref.sha256);
    hex_encode(ref.sha256, sizeof ref.sha256, hex);
    if (uri.ptr == NULL) ref.uri = cli_text(cli, "plan:sha256:%.*s", (int)sizeof hex, hex);
    struct buf json;
    buf_init(&json, PLAN_REF_BYTES_MAX);
    plan_ref_json(&ref, &json);
    status st = json.full ? error_set(err, ST_LIMIT, "the URI is too long")
                          : plan_ref_parse(buf_str(&json), &cli->arena, &again, err);
    if (st == ST_OK) {
        buf_put(&cli->out.buf, buf_str(&json));
        buf_put_char(&cli->out.buf, '\n');
    }
    buf_release(&json);
    return st;
}

status cmd_plan_ref(struct cli *cli, struct error *err) {
    struct plan_file file;
    status st = load_good(cli, &file, err);
    return st == ST_OK ? print_ref(cli, file.plan, cli->args.values[OPT_URI], err) : st;
}

static status keep_in_folder(struct cli *cli, const struct plan *plan, str text,
                             struct plan_ref *ref, struct error *err) {
    char hex[SHA256_HEX_LEN];
    str data = store_folder(cli);
    if (data.len == 0) return cli_usage(err, "--data must not be empty");
    str folder = cli_text(cli, "%.*s/plans", STR_ARG(data));
    *ref = (struct plan_ref){.schema_version = plan->schema_version,
                             .plan_id = plan->plan_id,
                             .plan_version = plan->plan_version,
                             .size_bytes = (int64_t)plan->bytes};
    status st = plan_store_put(folder, text, ref->sha256, err);
    hex_encode(ref->sha256, sizeof(ref->sha256), hex);
    ref->uri = cli_text(cli, "plan:sha256:%.*s", (int)sizeof(hex), hex);
    return st;
}

static status keep_on_server(struct cli *cli, str text, struct plan_ref *ref, struct error *err) {
    struct remote *remote = NULL;
    struct target target;
    str answer = STR_NONE;
    struct remote_body body = {"application/jsonc", text};
    target_init(&target, "/v1/plans");
    target_query(&target, "tenantId", cli->args.values[OPT_TENANT]);
    status st = remote_open(cli, &remote, err);
    if (st == ST_OK)
        st =
            remote_fetch(remote, "POST", &target, &body, REMOTE_CALL_MS, &cli->arena, &answer, err);
    return st == ST_OK ? plan_ref_parse(answer, &cli->arena, ref, err) : st;
}

status plan_keep(struct cli *cli, const struct plan *plan, str text, struct plan_ref *ref,
                 struct error *err) {
    return remote_is_named(cli) ? keep_on_server(cli, text, ref, err)
                                : keep_in_folder(cli, plan, text, ref, err);
}

status cmd_plan_put(struct cli *cli, struct error *err) {
    struct plan_file file;
    struct plan_ref ref;
    status st = load_good(cli, &file, err);
    if (st == ST_OK) st = plan_keep(cli, file.plan, file.text, &ref, err);
    if (st != ST_OK) return st;
    plan_ref_json(&ref, &cli->out.buf);
    buf_put_char(&cli->out.buf, '\n');
    return ST_OK;
}
