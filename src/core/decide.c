/* core/decide.c: what comes next. Each decision is an event, and is applied as it is made, so that
 * the next decision sees it. Signals are in decide_signals.c, the making of events in
 * decide_events.c. */
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"
#include "core/flow_impl.h"

enum { RESERVE = 8 };

/* ---- the end of a run ---- */

static status finish(const struct decision *d, enum event_type type, str payload, str actor,
                     struct error *err) {
    status st = flow_emit_run(d, type, 1, payload, actor, err);
    return st == ST_OK ? flow_end_all_signals(d, err) : st;
}

static status finish_failed(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    str payload = STR_NONE;
    ASSERT(f->first_failed != FLOW_NO_STEP);
    const struct flow_step *s = &f->steps[f->first_failed];
    payload_open(&p);
    json_put_text(&p, "code", str_c(reason_name(REASON_STEP_FAILED)));
    json_put_text_if(&p, "stepId", f->plan->steps[f->first_failed].id);
    json_put_text_if(&p, "stepCode", s->code);
    json_put_int(&p, "failedSteps", f->failed);
    status st = payload_close(&p, d, &payload, err);
    return st == ST_OK ? finish(d, EVENT_RUN_FAILED, payload, STR_NONE, err) : st;
}

status flow_fail(const struct decision *d, str code, str message, struct error *err) {
    struct buf p;
    str payload = STR_NONE;
    payload_open(&p);
    json_put_text_if(&p, "code", code);
    json_put_text_if(&p, "message", message);
    status st = payload_close(&p, d, &payload, err);
    return st == ST_OK ? finish(d, EVENT_RUN_FAILED, payload, STR_NONE, err) : st;
}

static bool is_executed(const struct flow *f, uint32_t i) {
    return plan_type_is_executed(f->plan->steps[i].type);
}

/* Ends what is open: what nobody executes at once, and with `all` the executor's attempts too,
 * whose answers we then wait for. */
static status end_open_steps(const struct decision *d, bool all, enum reason code,
                             const char *message, struct error *err) {
    struct flow *f = d->flow;
    status st = ST_OK;
    if (f->open == 0 || (!all && f->open == f->executing)) return ST_OK;
    for (uint32_t i = 0; i < f->plan->step_count && st == ST_OK; i++) {
        if (f->steps[i].phase != FLOW_OPEN) continue;
        if (!is_executed(f, i))
            st = flow_fail_step(d, i, code, message, STR_NONE, err);
        else if (all)
            st = flow_ask_to_stop(d, i, err);
    }
    return st;
}

static status decide_cancel(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    status st = end_open_steps(d, true, REASON_CANCELLED, "the run was cancelled", err);
    if (st != ST_OK || f->open > 0) return st;
    const struct flow_signal *cancel = NULL;
    for (uint32_t i = 0; i < f->signal_count && !cancel; i++) {
        if (f->signals[i].signal.kind == SIGNAL_CANCEL) cancel = &f->signals[i];
    }
    str payload = STR_NONE;
    str actor = STR_NONE;
    if (cancel) {
        actor = cancel->actor;
        st = flow_signal_payload(d, cancel, &payload, err);
        if (st != ST_OK) return st;
    }
    return finish(d, EVENT_RUN_CANCELLED, payload, actor, err);
}

/* ---- before the start ---- */

static status start_run(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct arena_mark mark = arena_mark(f->scratch);
    yyjson_val *launch = NULL;
    str payload = STR_NONE;
    str ref = STR_NONE;
    str adapter = STR("local");
    status st = f->launch.ptr ? json_parse(f->launch, limits, f->scratch, &launch, err) : ST_OK;
    if (st != ST_OK) return st;
    yyjson_val *plan_ref = json_member(launch, "plan_ref");
    if (plan_ref) ref = json_text(plan_ref, f->scratch);
    (void)json_str(json_member(launch, "adapter"), &adapter);
    payload_open(&p);
    json_put_text(&p, "runType", STR("PLAN"));
    json_put_text_if(&p, "orchestratorVersion", d->version);
    json_put_text_if(&p, "adapter", adapter);
    json_put_json_if(&p, "planRef", ref);
    if (d->warnings.ptr) {
        json_put_bool(&p, "degraded", true);
        json_put_json_if(&p, "warnings", d->warnings);
        json_put_text_if(&p, "validationReportRef", d->report_ref);
    }
    st = payload_close(&p, d, &payload, err);
    arena_rewind(f->scratch, mark);
    if (st != ST_OK) return st;
    return flow_emit_run(d, EVENT_RUN_STARTED, 1, payload, STR_NONE, err);
}

static status decide_start(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    enum run_status at = f->run.head.status;
    if (at == RUN_NEW && f->needs_approval)
        return flow_emit_run(d, EVENT_RUN_QUEUED, 1, STR("{\"reason\":\"approval\"}"),
                             STR("admission"), err);
    if (at == RUN_PENDING && f->needs_approval) return ST_OK;
    if (d->may_start) return start_run(d, err);
    if (at != RUN_NEW) return ST_OK;
    struct buf p;
    str payload = STR_NONE;
    payload_open(&p);
    json_put_text_if(&p, "reason", d->why_not.ptr ? d->why_not : STR("admission"));
    status st = payload_close(&p, d, &payload, err);
    if (st != ST_OK) return st;
    return flow_emit_run(d, EVENT_RUN_QUEUED, 1, payload, STR("admission"), err);
}

/* ---- timers and failures ---- */

static status on_timer(const struct decision *d, uint32_t step, struct error *err) {
    struct flow *f = d->flow;
    struct flow_step *s = &f->steps[step];
    const struct plan_step *p = &f->plan->steps[step];
    if (s->phase == FLOW_BACKOFF) {
        s->due_us = FLOW_NEVER;
        flow_push_ready(f, step);
        return ST_OK;
    }
    bool out_of_time = s->limit_us <= d->now_us;
    switch (p->type) {
    case PLAN_SLEEP:
        if (s->due_us == s->limit_us) break;
        return flow_complete_step(d, step, STR_NONE, STR_NONE, err);
    case PLAN_APPROVAL:
        return flow_fail_step(d, step, REASON_APPROVAL_EXPIRED, "nobody decided in time", STR_NONE,
                              err);
    case PLAN_TASK:
        if (out_of_time) break;
        return flow_free_lease(f, step, err);
    case PLAN_WAIT:
    case PLAN_EXEC:
    case PLAN_HTTP:
    case PLAN_EFFECT:
    case PLAN_PACKAGE:
    case PLAN_NOOP:
    case PLAN_TYPE_COUNT:
        break;
    }
    return flow_fail_step(d, step, REASON_TIMEOUT, "the attempt took too long", STR_NONE, err);
}

static status decide_timers(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    const struct flow_timer *t = NULL;
    status st = ST_OK;
    while (st == ST_OK && !f->stuck && d->batch->count < FLOW_BATCH_MAX &&
           (t = flow_next_timer(f)) != NULL && t->due_us <= d->now_us)
        st = on_timer(d, t->step, err);
    return st;
}

/* In the order in which they failed. A final failure was settled when its event was applied. */
static status decide_failures(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    while (f->judge_count > 0 && !f->stuck) {
        uint32_t step = f->judge[f->judge_head];
        const struct plan_retry *r = f->plan->steps[step].retry;
        int64_t attempt = f->steps[step].attempt;
        int64_t ms = plan_backoff_ms(r, attempt, flow_random(f, step, attempt));
        status st = flow_retry_at(d, step, ms, "policy", STR_NONE, err);
        if (st != ST_OK) return st; /* applying it took the step out of the ring */
    }
    return ST_OK;
}

/* ---- starting steps ---- */

static status skip_step(const struct decision *d, uint32_t step, const char *reason,
                        struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    str payload = STR_NONE;
    payload_open(&p);
    json_put_text(&p, "stepType", str_c(plan_type_name(f->plan->steps[step].type)));
    json_put_text_if(&p, "reason", str_c(reason));
    status st = payload_close(&p, d, &payload, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = EVENT_STEP_SKIPPED,
                              .step = step,
                              .attempt = f->steps[step].attempt + 1,
                              .payload = payload};
    return flow_emit(d, &item, err);
}

static status sleep_end(struct flow *f, const struct plan_step *p, int64_t now_us, int64_t *due_us,
                        struct error *err) {
    if (!p->until.ptr) {
        *due_us = now_us + p->duration_ms * 1000;
        return ST_OK;
    }
    struct liquid_scope scope;
    struct buf b;
    int64_t ns = 0;
    int digits = 0;
    status st = flow_scope(f, &scope, err);
    if (st != ST_OK) return st;
    struct arena_mark mark = arena_mark(f->scratch);
    buf_init(&b, 4096);
    st = liquid_render(p->until, &scope, f->scratch, &b, err);
    arena_rewind(f->scratch, mark);
    if (st == ST_OK && !time_parse_utc(str_trim(buf_str(&b)), &ns, &digits)) {
        st = error_at(err, REASON_TEMPLATE_FAILED, "/until",
                      "until is \"%.*s\", not a time like 2026-01-31T08:00:00Z",
                      (int)(b.len > 60 ? 60 : b.len), b.ptr ? b.ptr : "");
    }
    *due_us = ns / 1000;
    buf_release(&b);
    return st;
}

static int64_t time_after(int64_t now_us, int64_t ms) {
    return ms <= 0 ? FLOW_NEVER : now_us + ms * 1000;
}

/* StepStarted, with what a later reader must know: when it is due, on whom it waits. */
static status start_step(const struct decision *d, uint32_t step, struct error *err) {
    struct flow *f = d->flow;
    const struct plan_step *p = &f->plan->steps[step];
    struct buf out;
    str payload = STR_NONE;
    int64_t due = FLOW_NEVER;
    int64_t limit = time_after(d->now_us, p->timeout_ms);
    struct error why = {0};
    status bad = ST_OK;
    if (p->type == PLAN_SLEEP) bad = sleep_end(f, p, d->now_us, &due, &why);
    if (bad == ST_RETRY) {
        *err = why;
        return bad;
    }
    if (p->type == PLAN_APPROVAL) due = time_after(d->now_us, p->expires_in_ms);
    if (p->type == PLAN_WAIT && p->expires_in_ms > 0) {
        int64_t expires = time_after(d->now_us, p->expires_in_ms);
        if (expires < limit) limit = expires;
    }
    payload_open(&out);
    json_put_text(&out, "stepType", str_c(plan_type_name(p->type)));
    payload_time(&out, "dueAt", due);
    if (!is_executed(f, step)) payload_time(&out, "timeoutAt", limit);
    json_put_text_if(&out, "signal", p->signal);
    json_put_text_if(&out, "queue", p->queue);
    json_put_text_if(&out, "effectType", p->effect_type);
    status st = payload_close(&out, d, &payload, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = EVENT_STEP_STARTED,
                              .step = step,
                              .attempt = f->steps[step].attempt + 1,
                              .payload = payload};
    st = flow_emit(d, &item, err);
    if (st != ST_OK || bad == ST_OK || f->stuck) return st;
    return flow_fail_step(d, step, REASON_TEMPLATE_FAILED, why.msg, STR_NONE, err);
}

/* Whether the plan wants the step to run. A condition that cannot be evaluated fails the step. */
static status wanted(struct flow *f, uint32_t step, bool *run, bool *broken, struct error *err) {
    const struct plan_step *p = &f->plan->steps[step];
    struct liquid_scope scope;
    *run = true;
    *broken = false;
    if (!p->run_if.ptr || f->steps[step].attempt > 0) return ST_OK;
    status st = flow_scope(f, &scope, err);
    if (st != ST_OK) return st;
    struct arena_mark mark = arena_mark(f->scratch);
    struct error why = {0};
    st = liquid_condition(p->run_if, &scope, f->scratch, run, &why);
    arena_rewind(f->scratch, mark);
    if (st == ST_RETRY) {
        *err = why;
        return st;
    }
    *broken = st != ST_OK;
    return ST_OK;
}

static status begin(const struct decision *d, uint32_t step, struct error *err) {
    struct flow *f = d->flow;
    bool run = true;
    bool broken = false;
    f->steps[step].phase = FLOW_IDLE; /* it left the heap */
    if (f->steps[step].poisoned && f->steps[step].attempt == 0)
        return skip_step(d, step, "DEPENDENCY_FAILED", err);
    status st = wanted(f, step, &run, &broken, err);
    if (st != ST_OK) return st;
    if (!run && !broken) return skip_step(d, step, "CONDITION_FALSE", err);
    st = start_step(d, step, err);
    if (st != ST_OK || f->stuck) return st;
    if (broken)
        return flow_fail_step(d, step, REASON_TEMPLATE_FAILED, "runIf could not be evaluated",
                              STR_NONE, err);
    if (f->plan->steps[step].type == PLAN_NOOP)
        return flow_complete_step(d, step, STR_NONE, STR_NONE, err);
    return ST_OK;
}

static status begin_ready(const struct decision *d, uint32_t *settled, struct error *err) {
    struct flow *f = d->flow;
    status st = ST_OK;
    while (st == ST_OK && f->ready_count > 0 && f->open < f->plan->concurrency && !f->stuck &&
           !f->failing && f->run.head.status == RUN_RUNNING) {
        if (d->batch->count + RESERVE > FLOW_BATCH_MAX ||
            (d->settle_max > 0 && *settled >= d->settle_max)) {
            d->batch->more = true;
            return ST_OK;
        }
        uint32_t step = flow_pop_ready(f);
        st = begin(d, step, err);
        if (st != ST_OK) return st;
        if (f->steps[step].phase != FLOW_OPEN) (*settled)++;
        st = decide_failures(d, err); /* one that failed as it began */
        if (st != ST_OK) return st;
    }
    return st;
}

/* ---- the whole ---- */

/* Ends the run if a step's failure is the run's, or if all steps are settled. */
static status decide_end(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    if (f->failing) {
        status st = end_open_steps(d, false, REASON_ABANDONED, "another step failed", err);
        if (st == ST_OK) st = decide_failures(d, err);
        if (st != ST_OK || f->open > 0) return st;
        return finish_failed(d, err);
    }
    if (f->settled < f->plan->step_count) return ST_OK;
    if (f->failed > 0) return finish_failed(d, err);
    return finish(d, EVENT_RUN_COMPLETED, STR_NONE, STR_NONE, err);
}

static status decide_running(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    uint32_t settled = 0;
    for (;;) {
        uint32_t before = d->batch->count;
        status st = decide_timers(d, err);
        if (st == ST_OK) st = flow_decide_signals(d, err);
        if (st == ST_OK && !f->cancelling) st = decide_failures(d, err);
        if (st == ST_OK && !f->cancelling) st = begin_ready(d, &settled, err);
        if (st != ST_OK) return st;
        if (f->stuck || d->batch->more || f->cancelling || run_is_final(f->run.head.status)) break;
        if (d->batch->count == before) break; /* nothing more can be decided now */
    }
    if (f->stuck || d->batch->more || run_is_final(f->run.head.status)) return ST_OK;
    if (f->cancelling) return decide_cancel(d, err);
    if (f->run.head.status != RUN_RUNNING) return ST_OK;
    return decide_end(d, err);
}

/* Nothing that could be decided is left, or the next round is asked for. */
static void check_decided(const struct decision *d) {
    const struct flow *f = d->flow;
    flow_check(f);
    if (f->stuck || d->batch->more || f->cancelling || f->run.head.status != RUN_RUNNING) return;
    ASSERT(f->judge_count == 0);
    ASSERT(f->settled < f->plan->step_count); /* else the run would have ended */
    ASSERT(f->failing ? f->open > 0 : f->ready_count == 0 || f->open >= f->plan->concurrency);
}

static status decide_all(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    if (f->stuck || run_is_final(f->run.head.status)) return ST_OK;
    status st = flow_decide_signals(d, err);
    if (st != ST_OK || f->stuck) return st;
    if (run_is_final(f->run.head.status)) /* an approval was refused */
        return flow_end_all_signals(d, err);
    if (f->run.head.status < RUN_RUNNING) {
        if (f->cancelling) {
            if (f->run.head.status == RUN_NEW) /* cancelled before it was even queued */
                st = flow_emit_run(d, EVENT_RUN_QUEUED, 1, STR("{\"reason\":\"cancelled\"}"),
                                   STR("admission"), err);
            return st == ST_OK ? decide_cancel(d, err) : st;
        }
        st = decide_start(d, err);
        if (st != ST_OK || f->run.head.status < RUN_RUNNING) return st;
    }
    return decide_running(d, err);
}

status flow_decide(const struct decision *d, struct error *err) {
    status st = decide_all(d, err);
    if (st == ST_OK) check_decided(d);
    return st;
}

/* ---- news from outside ---- */

/* The worker's answer ends its call: ToolCompleted or ToolFailed, with the number of the ToolCalled
 * that handed the task out. */
static status end_call(const struct decision *d, uint32_t step, const struct outcome *o,
                       struct error *err) {
    const struct flow *f = d->flow;
    const struct flow_step *s = &f->steps[step];
    if (f->plan->steps[step].type != PLAN_TASK || s->leases == 0) return ST_OK;
    struct buf p;
    str data = STR_NONE;
    char call[UUID_TEXT_LEN];
    snprintf(call, sizeof(call), "%u", s->leases);
    payload_open(&p);
    json_put_text(&p, "call_id", str_c(call));
    json_put_int(&p, "attempt", s->attempt);
    if (!o->ok) {
        json_put_text_if(&p, "code", o->code);
        json_put_text_if(&p, "message", o->message);
    }
    status st = payload_close(&p, d, &data, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = o->ok ? EVENT_TOOL_COMPLETED : EVENT_TOOL_FAILED,
                              .step = FLOW_NO_STEP,
                              .subject = f->plan->steps[step].id,
                              .attempt = s->leases,
                              .payload = data,
                              .actor = o->actor};
    return flow_emit(d, &item, err);
}

status flow_result(const struct decision *d, uint32_t step, int64_t attempt,
                   const struct outcome *outcome, bool *taken, struct error *err) {
    static const struct outcome too_large = {
        .code = STR_LIT("OUTPUT_TOO_LARGE"),
        .message = STR_LIT("the step's output is larger than an event may be")};
    const struct flow *f = d->flow;
    const struct outcome *o = outcome;
    const struct flow_step *s = &f->steps[step];
    *taken = s->phase == FLOW_OPEN && s->attempt == attempt && !f->stuck;
    if (!*taken) return ST_OK;
    if (o->output.len + o->message.len + o->detail.len > FLOW_PAYLOAD_MAX) o = &too_large;
    status st = end_call(d, step, o, err);
    if (st != ST_OK) return st;
    struct buf p;
    str payload = STR_NONE;
    payload_open(&p);
    json_put_text(&p, "stepType", str_c(plan_type_name(f->plan->steps[step].type)));
    if (o->ok) {
        json_put_json_if(&p, "output", o->output);
    } else {
        json_put_text_if(&p, "code", o->code);
        json_put_text_if(&p, "message", o->message);
    }
    json_put_json_if(&p, "detail", o->detail);
    st = payload_close(&p, d, &payload, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = o->ok ? EVENT_STEP_COMPLETED : EVENT_STEP_FAILED,
                              .step = step,
                              .attempt = attempt,
                              .payload = payload,
                              .actor = outcome->actor};
    return flow_emit(d, &item, err);
}

status flow_lease(const struct decision *d, uint32_t step, str worker, int64_t lease_ms,
                  struct error *err) {
    struct flow *f = d->flow;
    ASSERT(flow_task_is_free(f, step, d->now_us));
    struct buf p;
    str data = STR_NONE;
    int64_t number = (int64_t)f->steps[step].leases + 1;
    char call[UUID_TEXT_LEN];
    payload_open(&p);
    snprintf(call, sizeof(call), "%lld", (long long)number);
    json_put_text_if(&p, "call_id", str_c(call));
    json_put_text(&p, "tool", STR("task"));
    json_put_text_if(&p, "queue", f->plan->steps[step].queue);
    json_put_text_if(&p, "worker", worker);
    json_put_int(&p, "attempt", f->steps[step].attempt);
    payload_time(&p, "lease_until", d->now_us + lease_ms * 1000);
    status st = payload_close(&p, d, &data, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = EVENT_TOOL_CALLED,
                              .step = FLOW_NO_STEP,
                              .subject = f->plan->steps[step].id,
                              .attempt = number,
                              .payload = data,
                              .actor = worker};
    return flow_emit(d, &item, err);
}

status flow_recover(const struct decision *d, int64_t engine_attempt,
                    const struct flow_recovery *why, struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    str payload = STR_NONE;
    f->ids.engine_attempt = engine_attempt;
    payload_open(&p);
    json_put_text_if(&p, "node", why->node);
    if (why->cause == FLOW_NEW_HISTORY) json_put_text(&p, "cause", STR("continueAsNew"));
    if (why->cause == FLOW_WORKER) {
        json_put_text(&p, "cause", STR("workerLost"));
        json_put_text_if(&p, "stepId", f->plan->steps[why->step].id);
        json_put_int(&p, "attempt", f->steps[why->step].attempt);
        json_put_int(&p, "times", why->times);
    }
    status st = payload_close(&p, d, &payload, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = EVENT_RUN_RECOVERED,
                              .step = FLOW_NO_STEP,
                              .attempt = engine_attempt,
                              .payload = payload,
                              .cause = why->cause};
    return flow_emit(d, &item, err);
}

status flow_linked(const struct decision *d, const struct flow_link *link, struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    str payload = STR_NONE;
    if (f->link.provider_run_id.ptr && str_eq(f->link.workflow_id, link->workflow_id) &&
        str_eq(f->link.provider_run_id, link->provider_run_id))
        return ST_OK;
    payload_open(&p);
    json_put_text_if(&p, "provider", f->adapter);
    json_put_text_if(&p, "workflowId", link->workflow_id);
    json_put_text_if(&p, "providerRunId", link->provider_run_id);
    json_put_text_if(&p, "queue", link->queue);
    status st = payload_close(&p, d, &payload, err);
    if (st != ST_OK) return st;
    return flow_emit_run(d, EVENT_RUN_PROVIDER_LINKED, (int64_t)f->links + 1, payload, STR_NONE,
                         err);
}
