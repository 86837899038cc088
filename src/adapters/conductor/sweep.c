/* adapters/conductor/sweep.c: workflows that are open though their run is over: what was lost when
 * a process died between the end of a run and the end of its workflow.
 *
 * They are found by the server's search, which may be behind, or switched off: then nothing is
 * found, and a task of such a workflow is still answered when it is polled. */
#include "adapters/conductor/impl.h"
#include "base/json.h"
#include "base/log.h"

static str text_of(yyjson_val *val, const char *name) {
    str text = STR_NONE;
    return json_str(json_member(val, name), &text) ? text : STR("");
}

static void look_at(struct conductor *c, yyjson_val *found_there, struct arena *scratch) {
    str run_id = text_of(found_there, "correlationId");
    str workflow = text_of(found_there, "workflowId");
    str name = text_of(found_there, "workflowType");
    if (!str_starts(name, STR(DEF_NAME_PREFIX)) || run_id.len == 0 || workflow.len == 0 ||
        workflow.len > ID_MAX || conductor_run_get(c, run_id))
        return;
    struct provider_found found = {0};
    struct error err = {0};
    if (c->ports.find(c->ports.context, run_id, STR_NONE, scratch, &found, &err) != ST_OK ||
        !run_is_final(found.status))
        return;
    LOG(LOG_INFO, "ending the workflow of a run that is over", LOG_S("run", run_id),
        LOG_S("workflow", workflow));
    struct conductor_run *r = conductor_run_make(c, run_id);
    if (!r) return;
    conductor_copy(r->workflow, sizeof r->workflow, workflow);
    conductor_run_end(r, found.status, found.code, found.message);
}

static void on_page(void *context, const struct rest_answer *answer) {
    struct conductor *c = context;
    c->sweep_call = NULL;
    yyjson_val *results = json_member(answer->json, "results");
    if (c->closing) {
        conductor_wake(c);
        return;
    }
    struct arena scratch;
    arena_init(&scratch, (size_t)16 * 1024, (size_t)64 * 1024 * 1024);
    size_t i;
    size_t n = 0;
    yyjson_val *one;
    yyjson_arr_foreach(results, i, n, one) { look_at(c, one, &scratch); }
    arena_release(&scratch);
    bool more = answer->st == ST_OK && n == SWEEP_PAGE && ++c->sweep_page < SWEEP_PAGES_MAX;
    if (!more) {
        c->sweep_page = 0;
        c->sweep_ms = conductor_now(c) + (answer->st == ST_OK ? SWEEP_MS : SWEEP_MS / 10);
    }
}

void conductor_sweep(struct conductor *c) {
    if (c->sweep_call || conductor_now(c) < c->sweep_ms) return;
    char text[256];
    struct buf path;
    buf_init_fixed(&path, text, sizeof text);
    buf_printf(&path, "/workflow/search?start=%d&size=%d&sort=startTime:ASC&freeText=%%2A&query=",
               c->sweep_page * SWEEP_PAGE, SWEEP_PAGE);
    rest_escape(STR("status IN (RUNNING,PAUSED)"), &path);
    struct rest_request request = {.method = "GET", .path = buf_str(&path)};
    ASSERT(!path.full);
    c->sweep_call = rest_start(c->rest, &request, on_page, c);
    if (!c->sweep_call) c->sweep_ms = conductor_now(c) + SWEEP_MS;
}
