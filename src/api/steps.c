/* api/steps.c: the steps of a run, with what they gave. */
#include "api/impl.h"
#include "base/time.h"
#include "engine/status.h"

struct steps_query {
    bool outputs;
    struct run_view view;
    str *payloads; /* of each step's newest result */
};
static const struct field steps_fields[] = {
    {"outputs", FIELD_BOOL, FIELD(struct steps_query, outputs), false, 0, 0}};

struct gathering {
    struct steps_query *q;
    struct arena *arena;
};

static status too_large(struct error *err) {
    return error_at(err, REASON_ANSWER_TOO_LARGE, "", "the outputs of the run are too large");
}

static status keep_payload(void *context, const struct event_record *rec, bool *stop,
                           struct error *err) {
    UNUSED(stop);
    struct gathering *g = context;
    struct run *run = &g->q->view.run;
    if (!rec->event.subject.ptr || event_type_is_fact(rec->event.type)) return ST_OK;
    const struct step *s = run_step(run, rec->event.subject);
    if (!s || s->result_seq != rec->seq) return ST_OK;
    if (arena_try_str(g->arena, rec->event.payload, &g->q->payloads[s - run->steps])) return ST_OK;
    return too_large(err);
}

/* The output is in the payload, along with what the engine adds. */
static status put_step(struct call *c, const struct step_view *step, str payload, int64_t now_us,
                       struct error *err) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct arena_mark mark = arena_mark(&c->arena);
    struct step_shown shown;
    yyjson_val *root = NULL;
    struct error ignored;
    step_show(step, now_us, &shown);
    if (payload.ptr && json_parse(payload, limits, &c->arena, &root, &ignored) == ST_OK) {
        yyjson_val *output = json_member(root, "output");
        if (output) shown.output = json_text(output, &c->arena);
        if (output && !shown.output.ptr) return too_large(err);
    }
    view_write(&view_step, &shown, &c->out);
    arena_rewind(&c->arena, mark);
    return ST_OK;
}

static status load_steps(struct call *c, struct ledger *reader, struct error *err) {
    struct steps_query *q = c->own;
    struct run_info info;
    struct gathering g = {q, &c->arena};
    int64_t now = clock_wall_us();
    status st = call_find_run(c, reader, c->args[0], &info, err);
    if (st == ST_OK) st = run_view_load(reader, info.run_id, &c->arena, &q->view, err);
    if (st != ST_OK) return st;
    uint32_t count = q->view.run.step_count;
    q->payloads = arena_try(&c->arena, ((size_t)count + 1) * sizeof(*q->payloads));
    if (!q->payloads)
        return error_at(err, REASON_ANSWER_TOO_LARGE, "", "the run has too many steps");
    if (q->outputs) st = ledger_walk_run(reader, &info, 0, keep_payload, &g, err);
    if (st != ST_OK) return st;
    page_begin(&c->out);
    for (uint32_t i = 0; i < count && st == ST_OK; i++) {
        if (q->view.steps[i].state != STEP_MENTIONED)
            st = put_step(c, &q->view.steps[i], q->payloads[i], now, err);
    }
    page_end_text(&c->out, STR_NONE);
    return st;
}

static void get_steps(struct call *c) {
    struct error err = {0};
    struct steps_query *q = ARENA_NEW(&c->arena, struct steps_query);
    c->own = q;
    if (query_read(c, steps_fields, COUNT_OF(steps_fields), q, NULL, &err) != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, load_steps, NULL);
}

static const struct route routes[] = {
    {"GET", "/v1/runs/{runId}/steps", "run.steps", ROLE_VIEWER | ROLE_OPERATOR, 0, get_steps},
};
const struct route_table step_routes = {routes, COUNT_OF(routes)};
