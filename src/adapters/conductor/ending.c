/* adapters/conductor/ending.c: a workflow ends with its run.
 *
 * COMPLETED: all steps are settled, so are all tasks, sooner or later, and the workflow ends by
 * itself. FAILED: the task that shows the failure is answered with it. What does not end that way,
 * and what was cancelled, is terminated.
 *
 * Workflows that are open though their run is over, because a process died in between, are found by
 * the server's search, which may be behind, or switched off: then nothing is found, and a task of
 * such a workflow is still answered when it is polled. */
#include "adapters/conductor/impl.h"
#include "base/log.h"

enum {
    LOOK_ENDING_MS = 200,      /* between two looks; as long as was waited so far, */
    LOOK_ENDING_MS_MAX = 2000, /* ... but no longer than that */
};

/* ---- the beginning of the end ---- */

enum workflow_state ending_first_state(enum run_status end) {
    ASSERT(run_is_final(end));
    return end == RUN_COMPLETED ? WORKFLOW_COMPLETES
           : end == RUN_FAILED  ? WORKFLOW_FAILS
                                : WORKFLOW_TERMINATES;
}

static void put_reason(struct conductor_run *r, str code, str message) {
    struct buf b;
    buf_init_fixed(&b, r->reason, sizeof r->reason - 1);
    if (code.ptr)
        buf_printf(&b, "%.*s%s%.*s", STR_ARG(code), message.len > 0 ? ": " : "", STR_ARG(message));
    else
        buf_put_c(&b, r->end == RUN_CANCELLED ? "the run was cancelled" : "the run failed");
    r->reason[b.len] = '\0';
}

void ending_begin(struct conductor_run *r, enum run_status end, str code, str message) {
    ASSERT(run_is_final(end));
    if (conductor_run_is_ending(r)) return;
    bool starts = r->state == WORKFLOW_ABSENT && r->call; /* there will be one, perhaps */
    bool none = r->state == WORKFLOW_LOST || (r->state == WORKFLOW_ABSENT && !starts) ||
                (r->state == WORKFLOW_UNTOLD && !r->workflow[0] && !r->name[0]);
    if (none) { /* nothing to be ended */
        tracked_drop(&r->tracked);
        return;
    }
    r->end = end;
    conductor_run_move(r, r->workflow[0] ? ending_first_state(end) : WORKFLOW_LEFT);
    r->ending_ms = conductor_now(r->c);
    r->look_ms = 0;
    r->tracked.retry_ms = 0;
    r->todo &= ~(unsigned)TODO_EVALUATE;
    if (r->look == LOOK_TASKS) r->look = LOOK_FULL;
    put_reason(r, code, message);
    tracked_soon(&r->tracked);
}

/* ---- FAILED ---- */

static void on_terminated(struct conductor_run *r, const struct rest_answer *answer) {
    if (answer->st != ST_RETRY) tracked_drop(&r->tracked);
}

static void terminate(struct conductor_run *r) {
    ASSERT(r->state == WORKFLOW_TERMINATES);
    conductor_run_send_workflow(r, "DELETE", "/workflow/", "?reason=", str_c(r->reason),
                                on_terminated);
}

static void on_failed(struct conductor_run *r, const struct rest_answer *answer) {
    if (answer->st == ST_RETRY) return;
    workflow_look_at_least(r, LOOK_FULL);
    r->look_ms = 0;
}

/* The task that shows the failure: that of the step which failed, else any that we hold. */
static struct conductor_step *failing_step(struct conductor_run *r) {
    struct conductor_step *best = NULL;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (!conductor_step_has_task(s)) continue;
        if (s->settled == PROVIDER_STEP_DONE || s->settled == PROVIDER_STEP_SKIPPED) continue;
        if (!best || s->withheld) best = s;
    }
    return best;
}

static void fail(struct conductor_run *r) {
    struct conductor_step *s = failing_step(r);
    if (!s) {
        conductor_run_move(r, WORKFLOW_TERMINATES);
        return;
    }
    if (s->call) return; /* its end wakes us */
    struct task_result result = {.workflow = str_c(s->workflow),
                                 .task = str_c(s->task),
                                 .status = "FAILED_WITH_TERMINAL_ERROR",
                                 .reason = str_c(r->reason)};
    struct buf body;
    buf_init(&body, (size_t)16 * 1024);
    conductor_result_json(r->c, &result, &body);
    struct rest_request request = {.method = "POST", .path = STR("/tasks"), .body = buf_str(&body)};
    conductor_run_move(r, WORKFLOW_FAILED);
    conductor_run_send(r, &request, on_failed);
    buf_release(&body);
}

/* ---- COMPLETED ---- */

static bool answer_tasks(struct conductor_run *r) {
    bool busy = false;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (!conductor_step_has_task(s)) continue;
        busy = true;
        s->withheld = false;
        if (s->settled == PROVIDER_STEP_WAITS) s->settled = PROVIDER_STEP_SKIPPED;
        conductor_step_wake(s);
    }
    return busy;
}

/* Tasks that come yet are answered as they are polled. */
static void complete(struct conductor_run *r) {
    if (answer_tasks(r)) return;
    if (conductor_now(r->c) < r->look_ms) return;
    r->paused = false; /* it cannot complete while it is */
    if (r->todo & TODO_EVALUATE)
        workflow_evaluate(r);
    else if (r->cluster == CLUSTER_PAUSED)
        workflow_push_pause(r);
    else
        workflow_look(r);
}

/* ---- what is next ---- */

void ending_saw(struct conductor_run *r, str cluster_status) {
    int64_t now = conductor_now(r->c);
    if (workflow_is_closed(cluster_status)) {
        tracked_drop(&r->tracked);
        return;
    }
    int64_t waited = now - r->ending_ms;
    if (waited > ENDING_MS_MAX) {
        LOG(LOG_WARN, "a workflow does not end with its run", LOG_S("run", r->tracked.run_id),
            LOG_S("workflow", str_c(r->workflow)));
        tracked_drop(&r->tracked);
        return;
    }
    r->cluster = str_eq(cluster_status, STR("PAUSED")) ? CLUSTER_PAUSED : CLUSTER_RUNS;
    if (r->state == WORKFLOW_FAILED) conductor_run_move(r, WORKFLOW_TERMINATES);
    int64_t delay = waited < LOOK_ENDING_MS       ? LOOK_ENDING_MS
                    : waited < LOOK_ENDING_MS_MAX ? waited
                                                  : LOOK_ENDING_MS_MAX;
    bool at_once = r->state == WORKFLOW_TERMINATES || r->cluster == CLUSTER_PAUSED;
    r->look_ms = at_once ? 0 : now + delay;
    if (waited > EVALUATE_MS) r->todo |= TODO_EVALUATE;
}

void ending_next(struct conductor_run *r) {
    ASSERT(conductor_run_is_ending(r));
    ASSERT(r->workflow[0]);
    if (r->state == WORKFLOW_COMPLETES) complete(r);
    if (r->state == WORKFLOW_FAILED) workflow_look(r);
    if (r->state == WORKFLOW_FAILS) fail(r);
    if (r->state == WORKFLOW_TERMINATES) terminate(r);
}

/* ---- workflows that nobody remembers ---- */

void ending_terminate(struct conductor *c, str workflow, str reason) {
    char text[64 + 3 * (ID_MAX + REASON_MAX)];
    struct buf path;
    buf_init_fixed(&path, text, sizeof text);
    buf_put_c(&path, "/workflow/");
    rest_escape(workflow, &path);
    buf_put_c(&path, "?reason=");
    rest_escape(reason, &path);
    struct rest_request request = {.method = "DELETE",
                                   .path = buf_str(&path),
                                   .patience_ms = conductor_is_closing(c) ? 0 : PATIENCE_MS};
    if (!path.full) (void)rest_start(c->rest, &request, conductor_ignore, c);
}

static void look_at(struct conductor *c, yyjson_val *found_there, struct arena *scratch) {
    str run_id = conductor_text(found_there, "correlationId");
    str workflow = conductor_text(found_there, "workflowId");
    struct provider_found found;
    if (!str_starts(conductor_text(found_there, "workflowType"), STR(DEF_NAME_PREFIX)) ||
        workflow.len == 0 || workflow.len > ID_MAX ||
        !provider_runs_left_over(&c->runs, run_id, scratch, &found))
        return;
    LOG(LOG_INFO, "ending the workflow of a run that is over", LOG_S("run", run_id),
        LOG_S("workflow", workflow));
    struct conductor_run *r = conductor_run_new(c, run_id);
    if (!r) return;
    conductor_copy(r->workflow, sizeof r->workflow, workflow);
    ending_begin(r, found.status, found.code, found.message);
}

static void on_page(void *context, const struct rest_answer *answer) {
    struct conductor *c = context;
    c->sweep_call = NULL;
    if (conductor_is_closing(c)) {
        conductor_wake(c);
        return;
    }
    struct arena scratch;
    arena_init(&scratch, (size_t)16 * 1024, (size_t)64 * 1024 * 1024);
    size_t i;
    size_t n = 0;
    yyjson_val *one;
    yyjson_arr_foreach(json_member(answer->json, "results"), i, n, one) {
        look_at(c, one, &scratch);
    }
    arena_release(&scratch);
    (void)sweep_next_page(&c->sweep, answer->st == ST_OK, n == SWEEP_PAGE,
                          uv_now(c->loop)); /* the clock asks for it */
}

void ending_sweep(struct conductor *c) {
    if (c->sweep_call || !sweep_is_due(&c->sweep, uv_now(c->loop))) return;
    char text[256];
    struct buf path;
    buf_init_fixed(&path, text, sizeof text);
    buf_printf(&path, "/workflow/search?start=%d&size=%d&sort=startTime:ASC&freeText=%%2A&query=",
               c->sweep.page * SWEEP_PAGE, SWEEP_PAGE);
    rest_escape(STR("status IN (RUNNING,PAUSED)"), &path);
    struct rest_request request = {.method = "GET", .path = buf_str(&path)};
    ASSERT(!path.full);
    c->sweep_call = rest_start(c->rest, &request, on_page, c);
    if (!c->sweep_call) (void)sweep_next_page(&c->sweep, false, false, uv_now(c->loop));
}
