/* engine/attempts.c: what a durable StepStarted sets in motion: an attempt of an executor, or the
 * offer of a task to outside workers.
 *
 * An attempt's answer is news for its run. It may outlive the run in memory: then the answer is
 * dropped. After a restart, what was open is executed again. */
#include "base/limits.h"
#include "engine/impl.h"

#define PANIC_NO_RESULT panic(__FILE__, __LINE__, "out of memory for the result of a step")

static void attempt_free(struct engine_attempt *a) {
    arena_release(&a->arena);
    mem_free(a);
}

static void attempt_done(struct attempt *attempt, const struct outcome *outcome) {
    struct engine_attempt *a = attempt->context;
    struct engine_run *r = a->run;
    if (r) {
        *a->link = a->next;
        if (a->next) a->next->link = a->link;
        r->eng->attempt_count--;
        struct news news = {
            .kind = NEWS_RESULT,
            .result = {.step = a->step, .attempt = attempt->number, .outcome = *outcome}};
        struct news *n = news_new(&news);
        if (!n) PANIC_NO_RESULT; /* a restart runs it again */
        attempt_free(a);
        run_push(r, n);
        return;
    }
    attempt_free(a);
}

struct engine_attempt *run_find_attempt(const struct engine_run *r, uint32_t step) {
    struct engine_attempt *a = r->attempts;
    while (a && a->step != step)
        a = a->next;
    return a;
}

/* A step that cannot even begin fails like one that did. */
static void refuse_attempt(struct engine_run *r, uint32_t step, const struct error *why) {
    enum reason code = why->reason ? why->reason : REASON_ATTEMPT_REFUSED;
    struct news news = {.kind = NEWS_RESULT,
                        .result = {.step = step,
                                   .attempt = r->flow.steps[step].attempt,
                                   .outcome = outcome_failed(code, str_c(why->msg))}};
    struct news *n = news_new(&news);
    if (!n) PANIC_NO_RESULT;
    run_push(r, n);
}

static void start_attempt(struct engine_run *r, uint32_t step) {
    struct error why = {0};
    struct engine_attempt *a = mem_alloc(sizeof(*a));
    if (!a) {
        (void)no_memory(&why);
        refuse_attempt(r, step, &why);
        return;
    }
    arena_init(&a->arena, 1024, LIQUID_OUTPUT_MAX * 4);
    a->attempt = (struct attempt){.step = &r->plan->steps[step],
                                  .run_id = r->ids.run_id,
                                  .tenant_id = r->ids.tenant_id,
                                  .project_id = r->ids.project_id,
                                  .environment_id = r->ids.environment_id,
                                  .correlation = r->correlation,
                                  .adapter = run_adapter(r),
                                  .number = r->flow.steps[step].attempt,
                                  .timeout_ms = r->plan->steps[step].timeout_ms,
                                  .done = attempt_done,
                                  .context = a};
    /* The attempt may outlive the run in memory: what it points to is its own. */
    str *ids[] = {&a->attempt.run_id, &a->attempt.tenant_id, &a->attempt.project_id,
                  &a->attempt.environment_id, &a->attempt.plan_ref};
    status st = flow_render(&r->flow, step, &a->arena, &a->attempt.body, &why);
    if (st == ST_OK && a->attempt.adapter != ADAPTER_LOCAL)
        st = run_plan_ref(r, &a->attempt.plan_ref, &why);
    for (size_t i = 0; i < COUNT_OF(ids) && st == ST_OK; i++) {
        if (!arena_try_str(&a->arena, *ids[i], ids[i])) st = no_memory(&why);
    }
    if (st != ST_OK) {
        attempt_free(a);
        refuse_attempt(r, step, &why);
        return;
    }
    a->run = r;
    a->step = step;
    a->next = r->attempts;
    a->link = &r->attempts;
    if (a->next) a->next->link = &a->next;
    r->attempts = a;
    r->eng->attempt_count++;
    r->eng->ports.start(r->eng->ports.context, &a->attempt);
}

static bool is_executed(const struct engine_run *r, uint32_t step) {
    return plan_type_is_executed(r->plan->steps[step].type);
}

/* The answer is there, but not stored yet: its commit failed. */
static bool is_answered(const struct engine_run *r, uint32_t step) {
    const struct news *n = r->inbox;
    while (n && !(n->kind == NEWS_RESULT && n->result.step == step &&
                  n->result.attempt == r->flow.steps[step].attempt))
        n = n->next;
    return n != NULL;
}

void run_act_on_start(struct engine_run *r, uint32_t step) {
    if (r->flow.steps[step].phase != FLOW_OPEN) return; /* started and ended in one batch */
    if (is_executed(r, step) && !run_find_attempt(r, step) && !is_answered(r, step))
        start_attempt(r, step);
    if (r->plan->steps[step].type == PLAN_TASK) tasks_offer(r, step);
}

void run_ensure_attempts(struct engine_run *r) {
    /* An executor may answer at once: nothing may be decided while we walk the steps. */
    ASSERT(r->stage == STAGE_LOADING || r->stage == STAGE_ACTING);
    if (r->flow.executing == 0 && r->flow.tasks == 0) return;
    for (uint32_t i = 0; i < r->plan->step_count; i++) {
        if (r->flow.steps[i].phase == FLOW_OPEN) run_act_on_start(r, i);
    }
}
