/* sim/judge.c: what the plan allows, computed from the model of a run and from nothing else. */
#include "base/json.h"
#include "sim/impl.h"

bool sim_judge_retryable(const struct plan_retry *r, str code) {
    static const enum reason never[] = {REASON_APPROVAL_REJECTED, REASON_CANCELLED,
                                        REASON_TEMPLATE_FAILED, REASON_STEP_TYPE_UNSUPPORTED,
                                        REASON_EFFECT_DEAD_LETTERED};
    for (size_t i = 0; i < COUNT_OF(never); i++) {
        if (reason_is(never[i], code)) return false;
    }
    for (uint32_t i = 0; i < r->non_retryable_count; i++) {
        if (str_eq(code, r->non_retryable[i])) return false;
    }
    return true;
}

/* FAILED, and the plan gives it no further attempt. */
static bool failed_for_good(const struct sim_run *run, uint32_t i) {
    const struct model_step *m = &run->steps[i];
    const struct plan_retry *r = run->plan->steps[i].retry;
    if (m->state != STEP_FAILED || m->retry_attempt > 0) return false;
    return m->attempt >= r->attempts_max || !sim_judge_retryable(r, m->code) || m->too_late;
}

bool sim_judge_dep_settled(const struct sim_run *run, uint32_t dep) {
    const struct model_step *m = &run->steps[dep];
    return m->state == STEP_SUCCESS || m->state == STEP_SKIPPED || failed_for_good(run, dep);
}

bool sim_judge_poisoned(const struct sim_run *run, uint32_t step) {
    const struct plan_step *p = &run->plan->steps[step];
    for (uint32_t i = 0; i < p->dep_count; i++) {
        const struct model_step *m = &run->steps[p->deps[i]];
        if (m->state == STEP_SKIPPED && m->dep_skipped) return true;
        if (m->state == STEP_FAILED &&
            run->plan->steps[p->deps[i]].on_failure == PLAN_SKIP_DEPENDENTS)
            return true;
    }
    return false;
}

bool sim_judge_failing(const struct sim_run *run) {
    for (uint32_t i = 0; i < run->plan->step_count; i++) {
        if (run->plan->steps[i].on_failure == PLAN_FAIL && failed_for_good(run, i)) return true;
    }
    return false;
}

/* The conditions that plans.c writes: steps.sN.state == 'X', or !=. */
bool sim_judge_wanted(const struct sim_run *run, uint32_t step) {
    str text = run->plan->steps[step].run_if;
    str word = STR_NONE;
    str rest = STR_NONE;
    if (!text.ptr) return true;
    (void)str_split(str_from(text, STR("steps.").len), '.', &word, &rest);
    int64_t of = plan_find(run->plan, word);
    ASSERT(of >= 0);
    bool equal = str_starts(str_from(rest, STR("state ").len), STR("=="));
    str state = str_from(rest, STR("state == '").len);
    state.len--; /* the closing quote */
    return str_eq(state, str_c(step_state_name(run->steps[of].state))) == equal;
}

void sim_judge_backoff(const struct plan_retry *r, int64_t attempt, int64_t *least_ms,
                       int64_t *most_ms) {
    double ms = (double)r->initial_ms;
    for (int64_t i = 1; i < attempt && ms < (double)r->max_ms; i++)
        ms *= r->factor;
    if (ms > (double)r->max_ms) ms = (double)r->max_ms;
    *least_ms = (int64_t)(ms * (1 - r->jitter)) - 1;
    *most_ms = (int64_t)(ms * (1 + r->jitter)) + 1;
}

bool sim_judge_ready(const struct sim_run *run, uint32_t step) {
    const struct plan_step *p = &run->plan->steps[step];
    if (run->steps[step].state != STEP_PENDING) return false;
    for (uint32_t i = 0; i < p->dep_count; i++) {
        if (!sim_judge_dep_settled(run, p->deps[i])) return false;
    }
    return true;
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* When somebody must look at the run again; 0: at once. */
int64_t sim_judge_next_due(const struct sim_run *run, int64_t emitted_us) {
    int64_t due = FLOW_NEVER;
    uint32_t open = 0;
    if (run->status == RUN_APPROVED || (run->status == RUN_PENDING && run->queued_admission))
        return 0;
    for (uint32_t i = 0; i < run->plan->step_count; i++)
        open += run->steps[i].state == STEP_RUNNING;
    bool may_begin = run->status == RUN_RUNNING && open < run->plan->concurrency &&
                     !sim_judge_failing(run) && !run->cancel_seen;
    for (uint32_t i = 0; i < run->plan->step_count; i++) {
        const struct model_step *m = &run->steps[i];
        enum plan_type type = run->plan->steps[i].type;
        bool executed =
            type == PLAN_EXEC || type == PLAN_HTTP || type == PLAN_EFFECT || type == PLAN_TASK;
        if (m->state == STEP_RUNNING && executed) return 0;
        if (m->state == STEP_RUNNING) due = min64(due, min64(m->due_us, m->timeout_us));
        if (may_begin && sim_judge_ready(run, i)) return 0;
        if (m->retry_attempt == 0) continue;
        bool its_time = m->retry_us <= emitted_us || m->hurried;
        if (!its_time)
            due = min64(due, m->retry_us);
        else if (may_begin)
            return 0;
    }
    return due;
}
