/* core/decide.c: what comes next. Each decision is an event, and is applied as it is made, so that
 * the next decision sees it. Signals are in decide_signals.c, the making of events in
 * decide_events.c. */
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"
#include "core/flow_impl.h"

enum { RESERVE = 8 };

/* ---- the end of a run ---- */

static status finish(struct flow *f, enum event_type type, str payload, str actor, int64_t now_us,
                     struct flow_batch *b, struct error *err) {
    status st = flow_emit_run(f, type, 1, payload, actor, now_us, b, err);
    return st == ST_OK ? flow_end_all_signals(f, now_us, b, err) : st;
}

static status finish_failed(struct flow *f, int64_t now_us, struct flow_batch *b,
                            struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    ASSERT(f->first_failed != FLOW_NO_STEP);
    const struct flow_step *s = &f->steps[f->first_failed];
    payload_open(&p);
    payload_text(&p, "code", STR("STEP_FAILED"));
    payload_text(&p, "stepId", f->plan->steps[f->first_failed].id);
    payload_text(&p, "stepCode", s->code);
    payload_int(&p, "failedSteps", f->failed);
    status st = payload_close(&p, b, &payload, err);
    return st == ST_OK ? finish(f, EVENT_RUN_FAILED, payload, STR_NONE, now_us, b, err) : st;
}

status flow_fail(struct flow *f, str code, str message, int64_t now_us, struct flow_batch *b,
                 struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    payload_open(&p);
    payload_text(&p, "code", code);
    payload_text(&p, "message", message);
    status st = payload_close(&p, b, &payload, err);
    return st == ST_OK ? finish(f, EVENT_RUN_FAILED, payload, STR_NONE, now_us, b, err) : st;
}

static bool is_executed(const struct flow *f, uint32_t i) {
    return plan_type_is_executed(f->plan->steps[i].type);
}

/* Ends what is open: what nobody executes at once, and with `all` the executor's attempts too,
 * whose answers we then wait for. */
static status end_open_steps(struct flow *f, bool all, const char *code, const char *message,
                             int64_t now_us, struct flow_batch *b, struct error *err) {
    status st = ST_OK;
    if (f->open == 0 || (!all && f->open == f->executing)) return ST_OK;
    for (uint32_t i = 0; i < f->plan->step_count && st == ST_OK; i++) {
        if (f->steps[i].phase != FLOW_OPEN) continue;
        if (!is_executed(f, i)) st = flow_fail_step(f, i, code, message, STR_NONE, now_us, b, err);
        else if (all) st = flow_ask_to_stop(f, i, b, err);
    }
    return st;
}

static status decide_cancel(struct flow *f, int64_t now_us, struct flow_batch *b,
                            struct error *err) {
    status st = end_open_steps(f, true, "CANCELLED", "the run was cancelled", now_us, b, err);
    if (st != ST_OK || f->open > 0) return st;
    const struct flow_signal *cancel = NULL;
    for (uint32_t i = 0; i < f->signal_count && !cancel; i++) {
        if (f->signals[i].signal.kind == SIGNAL_CANCEL) cancel = &f->signals[i];
    }
    str payload = STR_NONE;
    str actor = STR_NONE;
    if (cancel) {
        actor = cancel->actor;
        st = flow_signal_payload(cancel, b, &payload, err);
        if (st != ST_OK) return st;
    }
    return finish(f, EVENT_RUN_CANCELLED, payload, actor, now_us, b, err);
}

/* ---- before the start ---- */

static status start_run(struct flow *f, const struct flow_now *now, struct flow_batch *b,
                        struct error *err) {
    struct payload p;
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
    payload_text(&p, "runType", STR("PLAN"));
    payload_text(&p, "orchestratorVersion", now->version);
    payload_text(&p, "adapter", adapter);
    payload_json(&p, "planRef", ref);
    if (now->warnings.ptr) {
        payload_json(&p, "degraded", STR("true"));
        payload_json(&p, "warnings", now->warnings);
        payload_text(&p, "validationReportRef", now->report_ref);
    }
    st = payload_close(&p, b, &payload, err);
    arena_rewind(f->scratch, mark);
    if (st != ST_OK) return st;
    return flow_emit_run(f, EVENT_RUN_STARTED, 1, payload, STR_NONE, now->us, b, err);
}

static status decide_start(struct flow *f, const struct flow_now *now, struct flow_batch *b,
                           struct error *err) {
    enum run_status at = f->run.head.status;
    if (at == RUN_NEW && f->needs_approval)
        return flow_emit_run(f, EVENT_RUN_QUEUED, 1, STR("{\"reason\":\"approval\"}"),
                             STR("admission"), now->us, b, err);
    if (at == RUN_PENDING && f->needs_approval) return ST_OK;
    if (now->may_start) return start_run(f, now, b, err);
    if (at != RUN_NEW) return ST_OK;
    struct payload p;
    str payload = STR_NONE;
    payload_open(&p);
    payload_text(&p, "reason", now->why_not.ptr ? now->why_not : STR("admission"));
    status st = payload_close(&p, b, &payload, err);
    if (st != ST_OK) return st;
    return flow_emit_run(f, EVENT_RUN_QUEUED, 1, payload, STR("admission"), now->us, b, err);
}

/* ---- timers and failures ---- */

static status on_timer(struct flow *f, uint32_t step, int64_t now_us, struct flow_batch *b,
                       struct error *err) {
    struct flow_step *s = &f->steps[step];
    const struct plan_step *p = &f->plan->steps[step];
    if (s->phase == FLOW_BACKOFF) {
        s->due_us = FLOW_NEVER;
        flow_push_ready(f, step);
        return ST_OK;
    }
    bool out_of_time = s->limit_us <= now_us;
    switch (p->type) {
    case PLAN_SLEEP:
        if (s->due_us == s->limit_us) break;
        return flow_complete_step(f, step, STR_NONE, STR_NONE, now_us, b, err);
    case PLAN_APPROVAL:
        return flow_fail_step(f, step, "APPROVAL_EXPIRED", "nobody decided in time", STR_NONE,
                              now_us, b, err);
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
    return flow_fail_step(f, step, "TIMEOUT", "the attempt took too long", STR_NONE, now_us, b,
                          err);
}

static status decide_timers(struct flow *f, int64_t now_us, struct flow_batch *b,
                            struct error *err) {
    const struct flow_timer *t = NULL;
    status st = ST_OK;
    while (st == ST_OK && !f->stuck && b->count < FLOW_BATCH_MAX &&
           (t = flow_next_timer(f)) != NULL && t->due_us <= now_us)
        st = on_timer(f, t->step, now_us, b, err);
    return st;
}

/* In the order in which they failed. What is final was settled as its failure was applied. */
static status decide_failures(struct flow *f, int64_t now_us, struct flow_batch *b,
                              struct error *err) {
    while (f->judge_count > 0 && !f->stuck) {
        uint32_t step = f->judge[f->judge_head];
        const struct plan_retry *r = f->plan->steps[step].retry;
        int64_t attempt = f->steps[step].attempt;
        int64_t ms = plan_backoff_ms(r, attempt, flow_random(f, step, attempt));
        status st = flow_retry_at(f, step, ms, "policy", STR_NONE, now_us, b, err);
        if (st != ST_OK) return st; /* applying it took the step out of the ring */
    }
    return ST_OK;
}

/* ---- starting steps ---- */

static status skip_step(struct flow *f, uint32_t step, const char *reason, int64_t now_us,
                        struct flow_batch *b, struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    payload_open(&p);
    payload_text(&p, "stepType", str_c(plan_type_name(f->plan->steps[step].type)));
    payload_text(&p, "reason", str_c(reason));
    status st = payload_close(&p, b, &payload, err);
    if (st != ST_OK) return st;
    return flow_emit_step(f, EVENT_STEP_SKIPPED, step, f->steps[step].attempt + 1, payload,
                          STR_NONE, now_us, b, err);
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
        st = error_at(err, ST_INVALID, "TEMPLATE_FAILED", "/until",
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
static status start_step(struct flow *f, uint32_t step, int64_t now_us, struct flow_batch *b,
                         struct error *err) {
    const struct plan_step *p = &f->plan->steps[step];
    struct payload out;
    str payload = STR_NONE;
    int64_t due = FLOW_NEVER;
    int64_t limit = time_after(now_us, p->timeout_ms);
    struct error why = {0};
    status bad = ST_OK;
    if (p->type == PLAN_SLEEP) bad = sleep_end(f, p, now_us, &due, &why);
    if (bad == ST_RETRY) {
        *err = why;
        return bad;
    }
    if (p->type == PLAN_APPROVAL) due = time_after(now_us, p->expires_in_ms);
    if (p->type == PLAN_WAIT && p->expires_in_ms > 0) {
        int64_t expires = time_after(now_us, p->expires_in_ms);
        if (expires < limit) limit = expires;
    }
    payload_open(&out);
    payload_text(&out, "stepType", str_c(plan_type_name(p->type)));
    payload_time(&out, "dueAt", due);
    if (!is_executed(f, step)) payload_time(&out, "timeoutAt", limit);
    payload_text(&out, "signal", p->signal);
    payload_text(&out, "queue", p->queue);
    payload_text(&out, "effectType", p->effect_type);
    status st = payload_close(&out, b, &payload, err);
    if (st != ST_OK) return st;
    st = flow_emit_step(f, EVENT_STEP_STARTED, step, f->steps[step].attempt + 1, payload, STR_NONE,
                        now_us, b, err);
    if (st != ST_OK || bad == ST_OK || f->stuck) return st;
    return flow_fail_step(f, step, "TEMPLATE_FAILED", why.msg, STR_NONE, now_us, b, err);
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

static status begin(struct flow *f, uint32_t step, int64_t now_us, struct flow_batch *b,
                    struct error *err) {
    bool run = true;
    bool broken = false;
    f->steps[step].phase = FLOW_IDLE; /* it left the heap */
    if (f->steps[step].poisoned && f->steps[step].attempt == 0)
        return skip_step(f, step, "DEPENDENCY_FAILED", now_us, b, err);
    status st = wanted(f, step, &run, &broken, err);
    if (st != ST_OK) return st;
    if (!run && !broken) return skip_step(f, step, "CONDITION_FALSE", now_us, b, err);
    st = start_step(f, step, now_us, b, err);
    if (st != ST_OK || f->stuck) return st;
    if (broken)
        return flow_fail_step(f, step, "TEMPLATE_FAILED", "runIf could not be evaluated", STR_NONE,
                              now_us, b, err);
    if (f->plan->steps[step].type == PLAN_NOOP)
        return flow_complete_step(f, step, STR_NONE, STR_NONE, now_us, b, err);
    return ST_OK;
}

static status begin_ready(struct flow *f, const struct flow_now *now, struct flow_batch *b,
                          uint32_t *settled, struct error *err) {
    status st = ST_OK;
    while (st == ST_OK && f->ready_count > 0 && f->open < f->plan->concurrency && !f->stuck &&
           !f->failing && f->run.head.status == RUN_RUNNING) {
        if (b->count + RESERVE > FLOW_BATCH_MAX ||
            (now->settle_max > 0 && *settled >= now->settle_max)) {
            b->more = true;
            return ST_OK;
        }
        uint32_t step = flow_pop_ready(f);
        st = begin(f, step, now->us, b, err);
        if (st != ST_OK) return st;
        if (f->steps[step].phase != FLOW_OPEN) (*settled)++;
        st = decide_failures(f, now->us, b, err); /* one that failed as it began */
        if (st != ST_OK) return st;
    }
    return st;
}

/* ---- the whole ---- */

/* Ends the run if a step's failure is the run's, or if all steps are settled. */
static status decide_end(struct flow *f, int64_t now_us, struct flow_batch *b, struct error *err) {
    if (f->failing) {
        status st = end_open_steps(f, false, "ABANDONED", "another step failed", now_us, b, err);
        if (st == ST_OK) st = decide_failures(f, now_us, b, err);
        if (st != ST_OK || f->open > 0) return st;
        return finish_failed(f, now_us, b, err);
    }
    if (f->settled < f->plan->step_count) return ST_OK;
    if (f->failed > 0) return finish_failed(f, now_us, b, err);
    return finish(f, EVENT_RUN_COMPLETED, STR_NONE, STR_NONE, now_us, b, err);
}

static status decide_running(struct flow *f, const struct flow_now *now, struct flow_batch *b,
                             struct error *err) {
    uint32_t settled = 0;
    for (;;) {
        uint32_t before = b->count;
        status st = decide_timers(f, now->us, b, err);
        if (st == ST_OK) st = flow_decide_signals(f, now->us, b, err);
        if (st == ST_OK && !f->cancelling) st = decide_failures(f, now->us, b, err);
        if (st == ST_OK && !f->cancelling) st = begin_ready(f, now, b, &settled, err);
        if (st != ST_OK) return st;
        if (f->stuck || b->more || f->cancelling || run_is_final(f->run.head.status)) break;
        if (b->count == before) break; /* nothing more can be decided now */
    }
    if (f->stuck || b->more || run_is_final(f->run.head.status)) return ST_OK;
    if (f->cancelling) return decide_cancel(f, now->us, b, err);
    if (f->run.head.status != RUN_RUNNING) return ST_OK;
    return decide_end(f, now->us, b, err);
}

status flow_decide(struct flow *f, const struct flow_now *now, struct flow_batch *b,
                   struct error *err) {
    if (f->stuck || run_is_final(f->run.head.status)) return ST_OK;
    status st = flow_decide_signals(f, now->us, b, err);
    if (st != ST_OK || f->stuck) return st;
    if (run_is_final(f->run.head.status)) /* an approval was refused */
        return flow_end_all_signals(f, now->us, b, err);
    if (f->run.head.status < RUN_RUNNING) {
        if (f->cancelling) {
            if (f->run.head.status == RUN_NEW) /* cancelled before it was even queued */
                st = flow_emit_run(f, EVENT_RUN_QUEUED, 1, STR("{\"reason\":\"cancelled\"}"),
                                   STR("admission"), now->us, b, err);
            return st == ST_OK ? decide_cancel(f, now->us, b, err) : st;
        }
        st = decide_start(f, now, b, err);
        if (st != ST_OK || f->run.head.status < RUN_RUNNING) return st;
    }
    return decide_running(f, now, b, err);
}

/* ---- news from outside ---- */

static status result_payload(const struct plan_step *p, bool ok, str output, str code, str message,
                             str detail, struct flow_batch *b, str *out, struct error *err) {
    struct payload w;
    payload_open(&w);
    payload_text(&w, "stepType", str_c(plan_type_name(p->type)));
    if (ok) {
        payload_json(&w, "output", output);
    } else {
        payload_text(&w, "code", code);
        payload_text(&w, "message", message);
    }
    payload_json(&w, "detail", detail);
    return payload_close(&w, b, out, err);
}

status flow_result(struct flow *f, uint32_t step, int64_t attempt, bool ok, str output, str code,
                   str message, str detail, int64_t now_us, struct flow_batch *b, bool *taken,
                   struct error *err) {
    const struct flow_step *s = &f->steps[step];
    *taken = s->phase == FLOW_OPEN && s->attempt == attempt && !f->stuck;
    if (!*taken) return ST_OK;
    if (output.len + message.len + detail.len > FLOW_PAYLOAD_MAX) {
        ok = false;
        code = STR("OUTPUT_TOO_LARGE");
        message = STR("the step's output is larger than an event may be");
        output = detail = STR_NONE;
    }
    str payload = STR_NONE;
    status st = result_payload(&f->plan->steps[step], ok, output, code, message, detail, b,
                               &payload, err);
    if (st != ST_OK) return st;
    return flow_emit_step(f, ok ? EVENT_STEP_COMPLETED : EVENT_STEP_FAILED, step, attempt, payload,
                          STR_NONE, now_us, b, err);
}

status flow_lease(struct flow *f, uint32_t step, str worker, int64_t lease_ms, int64_t now_us,
                  struct flow_batch *b, struct error *err) {
    ASSERT(flow_task_is_free(f, step, now_us));
    struct payload p;
    str data = STR_NONE;
    int64_t number = (int64_t)f->steps[step].leases + 1;
    char call[UUID_TEXT_LEN];
    payload_open(&p);
    snprintf(call, sizeof(call), "%lld", (long long)number);
    payload_text(&p, "call_id", str_c(call));
    payload_text(&p, "tool", STR("task"));
    payload_text(&p, "queue", f->plan->steps[step].queue);
    payload_text(&p, "worker", worker);
    payload_int(&p, "attempt", f->steps[step].attempt);
    payload_time(&p, "lease_until", now_us + lease_ms * 1000);
    status st = payload_close(&p, b, &data, err);
    if (st != ST_OK) return st;
    return flow_emit_fact(f, EVENT_TOOL_CALLED, f->plan->steps[step].id, number, data, worker,
                          now_us, b, err);
}

status flow_recover(struct flow *f, int64_t engine_attempt, const struct flow_recovery *why,
                    int64_t now_us, struct flow_batch *b, struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    f->ids.engine_attempt = engine_attempt;
    payload_open(&p);
    payload_text(&p, "node", why->node);
    if (why->cause == FLOW_NEW_HISTORY) payload_text(&p, "cause", STR("continueAsNew"));
    if (why->cause == FLOW_WORKER) {
        payload_text(&p, "cause", STR("workerLost"));
        payload_text(&p, "stepId", f->plan->steps[why->step].id);
        payload_int(&p, "attempt", f->steps[why->step].attempt);
        payload_int(&p, "times", why->times);
    }
    status st = payload_close(&p, b, &payload, err);
    if (st != ST_OK) return st;
    return flow_emit_run(f, EVENT_RUN_RECOVERED, engine_attempt, payload, STR_NONE, now_us, b, err);
}

status flow_linked(struct flow *f, const struct flow_link *link, int64_t now_us,
                   struct flow_batch *b, struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    if (f->link.provider_run_id.ptr && str_eq(f->link.workflow_id, link->workflow_id) &&
        str_eq(f->link.provider_run_id, link->provider_run_id))
        return ST_OK;
    payload_open(&p);
    payload_text(&p, "provider", f->adapter);
    payload_text(&p, "workflowId", link->workflow_id);
    payload_text(&p, "providerRunId", link->provider_run_id);
    payload_text(&p, "queue", link->queue);
    status st = payload_close(&p, b, &payload, err);
    if (st != ST_OK) return st;
    return flow_emit_run(f, EVENT_RUN_PROVIDER_LINKED, (int64_t)f->links + 1, payload, STR_NONE,
                         now_us, b, err);
}
