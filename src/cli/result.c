#include "cli/result.h"

#include "base/json.h"
#include "base/limits.h"
#include "cli/live.h"

enum { STEPS_SHOWN_MAX = 50 };
#define RESULT_BYTES_MAX ((size_t)1024 * 1024 * 1024)

struct result {
    struct run_info info;
    struct run run;
    str *payloads; /* of each step's newest result */
    size_t payload_cap;
    str ending; /* the payload of the final event */
    struct arena *arena;
};

static bool has_room(struct result *r) {
    if (r->run.step_count <= r->payload_cap) return true;
    size_t cap = (size_t)r->run.step_cap;
    str *more = arena_try(r->arena, cap * sizeof(*more));
    if (!more) return false;
    if (r->payload_cap > 0) memcpy(more, r->payloads, r->payload_cap * sizeof(*more));
    r->payloads = more;
    r->payload_cap = cap;
    return true;
}

/* Reduces the run as everybody does, and keeps what the reducer does not: the results. */
static status add_event(void *context, const struct event_record *rec, bool *stop,
                        struct error *err) {
    UNUSED(stop);
    struct result *r = context;
    struct transition bad;
    status st = run_apply(&r->run, rec, r->arena, &bad, NULL, err);
    if (st != ST_OK && st != ST_CONFLICT) return st;
    bool ok = has_room(r);
    if (rec->seq == r->run.head.ended_seq)
        ok = ok && arena_try_str(r->arena, rec->event.payload, &r->ending);
    const struct step *s = rec->event.subject.ptr && !event_type_is_fact(rec->event.type)
                               ? run_step(&r->run, rec->event.subject)
                               : NULL;
    if (s && s->result_seq == rec->seq)
        ok = ok && arena_try_str(r->arena, rec->event.payload, &r->payloads[s - r->run.steps]);
    return ok ? ST_OK : error_set(err, ST_RETRY, "out of memory for the results of the run");
}

static status load(struct source *source, str run_id, struct result *r, struct error *err) {
    status st = source->ops->find_run(source, run_id, r->arena, &r->info, err);
    if (st == ST_NOT_FOUND)
        return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
    return st == ST_OK ? source->ops->walk(source, &r->info, add_event, r, err) : st;
}

/* ---- for programs ---- */

/* {"code":...,"message":...,...} of a failure; the output of a success. */
static void put_outcome(struct result *r, uint32_t i, struct buf *out) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct arena_mark mark = arena_mark(r->arena);
    yyjson_val *root = NULL;
    struct error ignored;
    enum step_state state = r->run.steps[i].state;
    if (r->payloads[i].ptr &&
        json_parse(r->payloads[i], limits, r->arena, &root, &ignored) == ST_OK) {
        yyjson_val *output = json_member(root, "output");
        yyjson_val *reason = json_member(root, "reason");
        if (state == STEP_SUCCESS && output) {
            json_name(out, "output");
            (void)json_write(output, out);
            yyjson_val *detail = json_member(root, "detail"); /* that it was cut, for one */
            if (detail) {
                json_name(out, "detail");
                (void)json_write(detail, out);
            }
        } else if (state == STEP_SKIPPED && reason) {
            json_name(out, "reason");
            (void)json_write(reason, out);
        } else if (state == STEP_FAILED) {
            json_name(out, "error");
            (void)json_write(root, out);
        }
    }
    arena_rewind(r->arena, mark);
}

static void put_steps(struct cli *cli, struct result *r) {
    struct buf *out = &cli->out.buf;
    json_name(out, "steps");
    json_array_begin(out);
    for (uint32_t i = 0; i < r->run.step_count; i++) {
        const struct step *s = &r->run.steps[i];
        buf_put_c(out, i > 0 ? ",{" : "{");
        json_put_text(out, "stepId", s->id);
        json_put_text(out, "state", str_c(step_state_name(s->state)));
        json_put_int(out, "attempt", s->attempt);
        put_outcome(r, i, out);
        json_object_end(out);
        out_more(&cli->out);
    }
    json_array_end(out);
}

static void put_json(struct cli *cli, struct result *r) {
    struct buf *out = &cli->out.buf;
    const struct run_head *h = &r->run.head;
    json_object_begin(out);
    json_put_text(out, "runId", r->info.run_id);
    json_put_text(out, "status", str_c(run_status_name(h->status)));
    json_put_text(out, "planId", r->info.plan_id);
    json_put_text(out, "planVersion", r->info.plan_version);
    json_put_text(out, "tenantId", r->info.tenant_id);
    json_put_text(out, "projectId", r->info.project_id);
    json_put_text(out, "environmentId", r->info.environment_id);
    json_put_time(out, "startedAt", h->started_seq > 0 ? r->info.started_us : 0);
    json_put_time(out, "completedAt", h->ended_seq > 0 ? r->info.ended_us : 0);
    if (h->status == RUN_FAILED && r->ending.ptr) {
        json_name(out, "error");
        buf_put(out, r->ending);
    }
    put_steps(cli, r);
    json_name(out, "engineRunRef");
    json_object_begin(out);
    json_put_text(out, "provider", STR("local"));
    json_put_text(out, "workflowId", r->info.run_id);
    json_put_text(out, "runId", r->info.run_id);
    buf_put_c(out, "}}\n");
}

/* ---- for people ---- */

static const struct column columns[] = {
    {"STEP", false, 40}, {"STATE", false, 0}, {"ATTEMPT", true, 0}, {"RESULT", false, 60}};

static enum tone tone_of(enum step_state s) {
    if (s == STEP_FAILED) return TONE_BAD;
    if (s == STEP_SUCCESS) return TONE_GOOD;
    return s == STEP_SKIPPED ? TONE_DIM : TONE_PLAIN;
}

/* What a person wants to see of it, in one line. */
static str outcome_text(struct result *r, uint32_t i) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    yyjson_val *root = NULL;
    struct error ignored;
    str text = STR_NONE;
    str message = STR_NONE;
    enum step_state state = r->run.steps[i].state;
    if (!r->payloads[i].ptr ||
        json_parse(r->payloads[i], limits, r->arena, &root, &ignored) != ST_OK)
        return STR("");
    if (state == STEP_FAILED) {
        (void)json_str(json_member(root, "code"), &text);
        (void)json_str(json_member(root, "message"), &message);
        char line[512];
        int n = snprintf(line, sizeof(line), "%.*s: %.*s", STR_ARG(text), STR_ARG(message));
        return n > 0 ? arena_str(r->arena, str_c(line)) : STR("");
    }
    yyjson_val *v = json_member(root, state == STEP_SKIPPED ? "reason" : "output");
    if (!v || json_str(v, &text)) return text.ptr ? str_trim(text) : STR("");
    text = json_text(v, r->arena);
    return text.ptr ? text : STR("");
}

/* Of a large run only what did not go well is shown. */
static bool is_shown(const struct result *r, const struct step *s) {
    return r->run.step_count <= STEPS_SHOWN_MAX ||
           (s->state != STEP_SUCCESS && s->state != STEP_SKIPPED);
}

static void print_steps(struct cli *cli, struct result *r) {
    struct list list;
    uint32_t shown = 0;
    list_open(&list, &cli->out, OUT_TABLE, columns, COUNT_OF(columns), cli->colour);
    for (uint32_t i = 0; i < r->run.step_count && shown < STEPS_SHOWN_MAX; i++) {
        const struct step *s = &r->run.steps[i];
        char attempt[INT_TEXT_MAX];
        struct arena_mark mark = arena_mark(r->arena);
        if (!is_shown(r, s)) continue;
        shown++;
        list_row(&list, (struct cell[]){{s->id, TONE_PLAIN},
                                        {str_c(step_state_name(s->state)), tone_of(s->state)},
                                        {int_text(attempt, s->attempt), TONE_PLAIN},
                                        {outcome_text(r, i), TONE_PLAIN}});
        arena_rewind(r->arena, mark);
    }
    list_close(&list);
    if (shown < r->run.step_count)
        buf_printf(&cli->out.buf, "%s%u steps%s: cairn run steps %.*s\n",
                   shown > 0 ? "... and " : "", r->run.step_count - shown, shown > 0 ? " more" : "",
                   STR_ARG(r->info.run_id));
}

static void print_table(struct cli *cli, struct result *r) {
    struct buf *out = &cli->out.buf;
    const struct run_head *h = &r->run.head;
    buf_put_c(out, "run     ");
    (void)text_show(r->info.run_id, 0, out);
    buf_put_c(out, "\nplan    ");
    (void)text_show(r->info.plan_id, 0, out);
    buf_put_c(out, " v");
    (void)text_show(r->info.plan_version, 0, out);
    buf_printf(out, "\nstatus  %s", run_status_name(h->status));
    if (h->ended_seq > 0 && h->started_seq > 0) {
        buf_put_c(out, " in ");
        live_duration(r->info.ended_us - r->info.started_us, out);
    }
    buf_put_char(out, '\n');
    if (r->run.step_count == 0) return;
    buf_put_char(out, '\n');
    print_steps(cli, r);
}

status result_print(struct cli *cli, struct source *source, str run_id, struct error *err) {
    struct arena arena;
    struct result r = {.arena = &arena};
    arena_init(&arena, (size_t)64 * 1024, RESULT_BYTES_MAX);
    status st = load(source, run_id, &r, err);
    if (st == ST_OK) {
        if (cli->format == OUT_TABLE)
            print_table(cli, &r);
        else
            put_json(cli, &r);
        if (r.run.head.status == RUN_FAILED) cli->exit_code = EXIT_RUN_FAILED;
        if (r.run.head.status == RUN_CANCELLED) cli->exit_code = EXIT_RUN_CANCELLED;
    }
    arena_release(&arena);
    return st;
}
