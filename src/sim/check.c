/* sim/check.c: a model of each run, built from its records alone, and what must hold of them. */
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"
#include "sim/impl.h"

struct looking { /* at one record */
    struct world *w;
    struct sim_run *run;
    const struct event_record *rec;
    const struct event *e;
    const struct check_batch *batch;
    yyjson_val *payload;
    int64_t step; /* or -1 */
    struct model_step *m;
    const struct plan_step *p;
    int64_t at_us; /* by the clock of the node that decided it */
};

static void broken(const struct looking *l, const char *invariant, const char *how) {
    sim_world_break(l->w, invariant, "%s: %.*s %.*s#%lld: %s", l->run->run_id,
                    STR_ARG(l->e->type_name), STR_ARG(l->e->subject),
                    (long long)l->e->logical_attempt, how);
}

static int64_t time_of(yyjson_val *payload, const char *name) {
    str text = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    if (!json_str(json_member(payload, name), &text) || !time_parse_utc(text, &ns, &digits))
        return FLOW_NEVER;
    return ns / 1000;
}

static str text_of(yyjson_val *payload, const char *name) {
    str text = STR_NONE;
    (void)json_str(json_member(payload, name), &text);
    return text;
}

/* The model's own list: the engine's may be wrong. */
static bool is_executed(enum plan_type type) {
    return type == PLAN_EXEC || type == PLAN_HTTP || type == PLAN_EFFECT;
}

/* ---- steps ---- */

static void check_opens(const struct looking *l) {
    const struct sim_run *run = l->run;
    if (run->status != RUN_RUNNING)
        broken(l, "steps-open-only-while-running", run_status_name(run->status));
    if (sim_judge_failing(run))
        broken(l, "no-start-after-a-fatal-failure", "a step failed for good");
}

static void check_started(const struct looking *l) {
    struct sim_run *run = l->run;
    struct model_step *m = l->m;
    int64_t attempt = l->e->logical_attempt;
    check_opens(l);
    if (attempt != m->attempt + 1) broken(l, "attempts-count-from-one", "not the next attempt");
    if (m->state == STEP_PENDING) {
        if (!sim_judge_ready(run, (uint32_t)l->step))
            broken(l, "start-after-dependencies", "a dependency is not settled");
        if (sim_judge_poisoned(run, (uint32_t)l->step))
            broken(l, "skip-what-the-plan-skips", "a dependency failed with skipDependents");
        if (!sim_judge_wanted(run, (uint32_t)l->step))
            broken(l, "skip-what-the-plan-skips", "its condition does not hold");
    } else if (m->state != STEP_FAILED || m->retry_attempt != attempt) {
        broken(l, "retry-is-announced", "no StepRetried before it");
    } else if (!m->hurried && l->at_us < m->retry_us) {
        broken(l, "retry-not-before-its-time", "too early");
    }
    if (attempt > l->p->retry->attempts_max && !m->signal_retry)
        broken(l, "attempts-max", "more attempts than the plan gives");
}

static void check_times(const struct looking *l) {
    const struct plan_step *p = l->p;
    const struct model_step *m = l->m;
    int64_t due = FLOW_NEVER;
    int64_t limit = p->timeout_ms > 0 ? l->at_us + p->timeout_ms * 1000 : FLOW_NEVER;
    if (p->type == PLAN_SLEEP) due = l->at_us + p->duration_ms * 1000;
    if (p->type == PLAN_APPROVAL && p->expires_in_ms > 0) due = l->at_us + p->expires_in_ms * 1000;
    if (p->type == PLAN_WAIT && p->expires_in_ms > 0 && l->at_us + p->expires_in_ms * 1000 < limit)
        limit = l->at_us + p->expires_in_ms * 1000;
    if (is_executed(p->type)) limit = FLOW_NEVER;
    if (m->due_us != due) broken(l, "due-time-is-the-plans", "dueAt is another");
    if (m->timeout_us != limit) broken(l, "due-time-is-the-plans", "timeoutAt is another");
}

static void apply_started(const struct looking *l) {
    struct sim_run *run = l->run;
    struct model_step *m = l->m;
    uint32_t open = 0;
    check_started(l);
    m->state = STEP_RUNNING;
    m->attempt = l->e->logical_attempt;
    m->retry_attempt = 0;
    m->hurried = false;
    m->started_us = l->at_us;
    m->lease_until_us = 0;
    m->due_us = time_of(l->payload, "dueAt");
    m->timeout_us = time_of(l->payload, "timeoutAt");
    check_times(l);
    for (uint32_t i = 0; i < run->plan->step_count; i++)
        open += run->steps[i].state == STEP_RUNNING;
    if (open > run->plan->concurrency) broken(l, "concurrency", "more steps than the plan allows");
}

/* The output is that of this very attempt; of a task: of the newest lease. */
static void check_output(const struct looking *l, yyjson_val *output) {
    int64_t attempt = 0;
    int64_t lease = 0;
    bool right = str_eq(text_of(output, "run"), str_c(l->run->run_id)) &&
                 str_eq(text_of(output, "step"), l->e->subject) &&
                 json_int(json_member(output, "attempt"), &attempt) &&
                 attempt == l->e->logical_attempt;
    if (!right) broken(l, "output-is-of-its-attempt", "it is another's");
    if (l->p->type != PLAN_TASK) return;
    if (!json_int(json_member(output, "lease"), &lease) || lease != l->m->leases)
        broken(l, "only-the-newest-lease-counts", "an older lease's result");
}

static void check_executor_told(const struct looking *l, bool ok) {
    int64_t n = l->e->logical_attempt;
    const struct model_step *m = l->m;
    if (n >= ATTEMPTS_TOLD) return;
    if (!(ok ? m->told_ok[n] : m->told_failed[n]))
        broken(l, "results-come-from-executors", "no executor answered so");
}

static void check_completed(const struct looking *l) {
    struct model_step *m = l->m;
    yyjson_val *output = json_member(l->payload, "output");
    switch (l->p->type) {
    case PLAN_EXEC:
    case PLAN_HTTP:
    case PLAN_EFFECT:
        check_executor_told(l, true);
        check_output(l, output);
        break;
    case PLAN_TASK:
        check_output(l, output);
        break;
    case PLAN_SLEEP:
        if (l->at_us < m->due_us) broken(l, "sleep-not-before-its-time", "too early");
        break;
    case PLAN_WAIT:
        l->run->effect = EFFECT_NAMED;
        l->run->effect_name = l->p->signal;
        break;
    case PLAN_APPROVAL:
        l->run->effect = EFFECT_APPROVE;
        break;
    case PLAN_NOOP:
    case PLAN_PACKAGE:
    case PLAN_TYPE_COUNT:
        break;
    }
    str value = text_of(output, "v");
    snprintf(m->value, sizeof(m->value), "%.*s", STR_ARG(value));
}

static void check_failed(const struct looking *l, str code) {
    const struct model_step *m = l->m;
    bool timer = str_eq(code, STR("TIMEOUT")) || str_eq(code, STR("APPROVAL_EXPIRED"));
    if (str_eq(code, STR("APPROVAL_REJECTED"))) l->run->effect = EFFECT_REJECT;
    if (str_eq(code, STR("TEMPLATE_FAILED"))) return;
    if (is_executed(l->p->type)) {
        check_executor_told(l, false);
        return;
    }
    if (timer) {
        int64_t limit = m->due_us < m->timeout_us ? m->due_us : m->timeout_us;
        if (l->p->type == PLAN_SLEEP || l->p->type == PLAN_TASK) limit = m->timeout_us;
        if (l->at_us < limit) broken(l, "timeout-not-before-its-time", "too early");
        return;
    }
    bool ends = str_eq(code, STR("CANCELLED")) || str_eq(code, STR("ABANDONED"));
    if (str_eq(code, STR("CANCELLED")) && !l->run->cancel_seen)
        broken(l, "cancelled-only-after-cancel", "nobody cancelled");
    bool told = l->p->type == PLAN_TASK && str_eq(code, STR("WORKER_FAILED"));
    bool refused = l->p->type == PLAN_APPROVAL && str_eq(code, STR("APPROVAL_REJECTED"));
    if (!ends && !told && !refused) broken(l, "failures-have-a-cause", "nothing explains it");
}

static void apply_ended(const struct looking *l) {
    struct model_step *m = l->m;
    if (m->state != STEP_RUNNING || m->attempt != l->e->logical_attempt)
        broken(l, "one-end-for-each-attempt", "the attempt is not open");
    m->code = arena_str(&l->w->arena, text_of(l->payload, "code"));
    m->ended_us = l->at_us;
    m->signal_retry = false;
    m->too_late = sim_judge_failing(l->run);
    if (l->e->type == EVENT_STEP_COMPLETED) {
        check_completed(l);
        m->state = STEP_SUCCESS;
    } else {
        check_failed(l, m->code);
        m->state = STEP_FAILED;
    }
}

static void apply_skipped(const struct looking *l) {
    struct model_step *m = l->m;
    uint32_t step = (uint32_t)l->step;
    str reason = text_of(l->payload, "reason");
    bool for_dep = str_eq(reason, STR("DEPENDENCY_FAILED"));
    check_opens(l);
    if (m->state != STEP_PENDING || l->e->logical_attempt != 1)
        broken(l, "skip-only-what-never-ran", "it has run");
    if (!sim_judge_ready(l->run, step)) broken(l, "start-after-dependencies", "skipped too early");
    if (for_dep && !sim_judge_poisoned(l->run, step))
        broken(l, "skip-what-the-plan-skips", "no dependency failed with skipDependents");
    if (!for_dep && (sim_judge_poisoned(l->run, step) || sim_judge_wanted(l->run, step)))
        broken(l, "skip-what-the-plan-skips", "its condition holds");
    m->state = STEP_SKIPPED;
    m->attempt = 1;
    m->dep_skipped = for_dep;
}

static void apply_retried(const struct looking *l) {
    struct sim_run *run = l->run;
    struct model_step *m = l->m;
    const struct plan_retry *r = l->p->retry;
    bool signal = str_eq(text_of(l->payload, "reason"), STR("signal"));
    int64_t at = time_of(l->payload, "retryAt");
    if (m->state != STEP_FAILED || l->e->logical_attempt != m->attempt + 1 || m->retry_attempt > 0)
        broken(l, "retry-follows-failure", "the step has not failed, or is to be retried already");
    for (uint32_t i = 0; i < l->p->dependent_count; i++) {
        if (run->steps[l->p->dependents[i]].state != STEP_PENDING)
            broken(l, "no-retry-after-dependents-went-on", "a dependent began");
    }
    if (signal) {
        run->effect = EFFECT_RETRY;
        m->signal_retry = true;
    } else {
        int64_t least = 0;
        int64_t most = 0;
        sim_judge_backoff(r, m->attempt, &least, &most);
        if (m->too_late) broken(l, "no-retry-when-the-run-fails", "it was failing before");
        if (m->attempt >= r->attempts_max) broken(l, "attempts-max", "the plan gives no more");
        if (!sim_judge_retryable(r, m->code))
            broken(l, "retry-only-what-is-retryable", "it is final");
        if (at < l->at_us + least * 1000 || at > l->at_us + most * 1000)
            broken(l, "backoff-is-the-plans", "another delay");
    }
    m->retry_attempt = l->e->logical_attempt;
    m->retry_us = at;
    m->hurried = false;
}

static void apply_tool(const struct looking *l) {
    struct model_step *m = l->m;
    if (m->state != STEP_RUNNING || l->p->type != PLAN_TASK)
        broken(l, "lease-only-open-tasks", "the task is not open");
    if (l->e->logical_attempt != m->leases + 1) broken(l, "leases-count-up", "another number");
    if (l->at_us < m->lease_until_us) broken(l, "one-lease-at-a-time", "the last one still runs");
    m->leases = l->e->logical_attempt;
    m->lease_until_us = time_of(l->payload, "lease_until");
}

/* ---- signals ---- */

static struct model_signal *find_signal(const struct looking *l) {
    uuid id;
    if (!uuid_parse(l->e->subject, &id)) return NULL;
    for (size_t i = 0; i < l->run->signal_count; i++) {
        if (uuid_eq(l->run->signals[i].id, id)) return &l->run->signals[i];
    }
    return NULL;
}

static void apply_received(const struct looking *l) {
    struct sim_run *run = l->run;
    if (find_signal(l)) broken(l, "signal-received-once", "twice");
    ASSERT(run->signal_count < SIGNALS_MAX);
    struct model_signal *s = &run->signals[run->signal_count++];
    *s = (struct model_signal){.name = arena_str(&l->w->arena, text_of(l->payload, "signal")),
                               .step_id = arena_str(&l->w->arena, text_of(l->payload, "step_id")),
                               .record = l->w->record_count,
                               .from_outside = l->batch->node == NULL};
    (void)uuid_parse(l->e->subject, &s->id);
    s->kind = signal_kind_of(s->name);
    if (s->kind == SIGNAL_CANCEL) run->cancel_seen = true;
}

static enum effect effect_of(enum signal_kind kind) {
    static const enum effect effects[SIGNAL_KIND_COUNT] = {
        [SIGNAL_PAUSE] = EFFECT_PAUSE,      [SIGNAL_RESUME] = EFFECT_RESUME,
        [SIGNAL_APPROVE] = EFFECT_APPROVE,  [SIGNAL_REJECT] = EFFECT_REJECT,
        [SIGNAL_RETRY_STEP] = EFFECT_RETRY, [SIGNAL_NAMED] = EFFECT_NAMED};
    return effects[kind];
}

/* A signal that was processed stands right behind the one event it brought about. */
static void check_effect(const struct looking *l, const struct model_signal *s) {
    struct sim_run *run = l->run;
    bool had = run->effect == effect_of(s->kind);
    if (s->kind == SIGNAL_LAUNCH || s->kind == SIGNAL_CANCEL) {
        if (run->effect != EFFECT_NONE) broken(l, "one-signal-one-effect", "not its effect");
        return;
    }
    if (s->kind == SIGNAL_RETRY_STEP && run->effect == EFFECT_NONE) { /* only its wait ends */
        int64_t step = plan_find(run->plan, s->step_id);
        struct model_step *m = step >= 0 ? &run->steps[step] : NULL;
        if (!m || m->retry_attempt == 0)
            broken(l, "one-signal-one-effect", "no retry waits");
        else
            m->hurried = true;
        return;
    }
    if (!had) broken(l, "one-signal-one-effect", "not its effect");
    if (s->kind == SIGNAL_NAMED && !str_eq(s->name, run->effect_name))
        broken(l, "one-signal-one-effect", "the step waits for another");
}

static void apply_signal_end(const struct looking *l) {
    struct model_signal *s = find_signal(l);
    if (!s) {
        broken(l, "signal-ends-once", "it was not received");
        return;
    }
    if (s->ended) broken(l, "signal-ends-once", "a second time");
    s->ended = true;
    if (l->e->type == EVENT_SIGNAL_PROCESSED)
        check_effect(l, s);
    else if (l->run->effect != EFFECT_NONE)
        broken(l, "one-signal-one-effect", "it had one");
    l->run->effect = EFFECT_NONE;
}

/* ---- runs ---- */

static bool plan_is_gone(const struct looking *l) {
    return str_eq(text_of(l->payload, "code"), STR("PLAN_NOT_FOUND"));
}

static void check_final(const struct looking *l) {
    const struct sim_run *run = l->run;
    bool fatal = sim_judge_failing(run);
    int64_t failed = 0;
    if (l->e->type == EVENT_RUN_FAILED && plan_is_gone(l)) return;
    for (uint32_t i = 0; i < run->plan->step_count; i++) {
        const struct model_step *m = &run->steps[i];
        bool settled = sim_judge_dep_settled(run, i);
        if (m->state == STEP_RUNNING) broken(l, "nothing-open-at-the-end", "a step is RUNNING");
        if (m->state == STEP_FAILED && m->retry_attempt == 0) failed++;
        if (l->e->type == EVENT_RUN_COMPLETED && m->state != STEP_SUCCESS &&
            m->state != STEP_SKIPPED)
            broken(l, "completed-means-all-done", "a step is not SUCCESS or SKIPPED");
        if (l->e->type == EVENT_RUN_FAILED && !fatal && !settled)
            broken(l, "failed-only-when-nothing-is-left", "a step could go on");
    }
    if (l->e->type == EVENT_RUN_FAILED && failed == 0)
        broken(l, "failed-means-a-step-failed", "none");
    if (l->e->type == EVENT_RUN_CANCELLED && !run->cancel_seen && run->status >= RUN_RUNNING)
        broken(l, "cancelled-only-after-cancel", "nobody cancelled");
}

/* Types that are not named here change nothing about the run as a whole. */
static void apply_run_event(const struct looking *l) {
    static const enum run_status becomes[EVENT_TYPE_COUNT] = {
        [EVENT_RUN_QUEUED] = RUN_PENDING,  [EVENT_RUN_APPROVED] = RUN_APPROVED,
        [EVENT_RUN_STARTED] = RUN_RUNNING, [EVENT_RUN_PAUSED] = RUN_PAUSED,
        [EVENT_RUN_RESUMED] = RUN_RUNNING, [EVENT_RUN_COMPLETED] = RUN_COMPLETED,
        [EVENT_RUN_FAILED] = RUN_FAILED,   [EVENT_RUN_CANCELLED] = RUN_CANCELLED,
    };
    struct sim_run *run = l->run;
    enum event_type type = l->e->type;
    if (becomes[type] == RUN_NEW) return;
    if (type == EVENT_RUN_QUEUED)
        run->queued_admission = str_eq(text_of(l->payload, "reason"), STR("admission"));
    if (type == EVENT_RUN_APPROVED) {
        run->approved = true;
        run->effect = EFFECT_APPROVE;
    }
    if (type == EVENT_RUN_STARTED && run->approval && !run->approved)
        broken(l, "start-only-when-approved", "nobody did");
    if (type == EVENT_RUN_PAUSED) run->effect = EFFECT_PAUSE;
    if (type == EVENT_RUN_RESUMED) run->effect = EFFECT_RESUME;
    if (run_is_final(becomes[type])) check_final(l);
    if (type == EVENT_RUN_CANCELLED && run->status < RUN_RUNNING && !run->cancel_seen)
        run->effect = EFFECT_REJECT;
    run->status = becomes[type];
}

/* The first batch of another node, or another life, begins with RunRecovered. */
static void check_driver(const struct looking *l) {
    struct sim_run *run = l->run;
    const struct sim_node *n = l->batch->node;
    int64_t attempt = l->e->engine_attempt;
    bool other = run->driver_node != 0 &&
                 (run->driver_node != n->lease.node_no || run->driver_epoch != n->lease.epoch);
    bool recovers = l->e->type == EVENT_RUN_RECOVERED;
    bool ends = l->e->type == EVENT_RUN_FAILED && plan_is_gone(l);
    bool must = other && run->status >= RUN_RUNNING;
    if (must && !recovers && !ends) broken(l, "takeover-is-recorded", "no RunRecovered");
    if (!must && recovers) broken(l, "takeover-is-recorded", "nobody took over");
    if (must && attempt != run->engine_attempt + 1)
        broken(l, "engine-attempt-rises", "not by one on a takeover");
    run->driver_node = n->lease.node_no;
    run->driver_epoch = n->lease.epoch;
}

/* ---- any record ---- */

static void apply_step_event(const struct looking *l) {
    enum event_type type = l->e->type;
    if (!l->m || !l->p)
        broken(l, "steps-are-the-plans", "the plan has no such step");
    else if (type == EVENT_STEP_STARTED)
        apply_started(l);
    else if (type == EVENT_STEP_COMPLETED || type == EVENT_STEP_FAILED)
        apply_ended(l);
    else if (type == EVENT_STEP_SKIPPED)
        apply_skipped(l);
    else if (type == EVENT_STEP_RETRIED)
        apply_retried(l);
    else if (type == EVENT_TOOL_CALLED)
        apply_tool(l);
    else
        apply_run_event(l);
}

void sim_check_record(struct world *w, struct sim_run *run, const struct event_record *rec,
                      const struct check_batch *batch) {
    struct looking l = {.w = w, .run = run, .rec = rec, .e = &rec->event, .batch = batch};
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error err = {0};
    struct arena_mark mark = arena_mark(&w->scratch);
    enum event_type type = l.e->type;
    if (l.e->payload.ptr &&
        json_parse(l.e->payload, limits, &w->scratch, &l.payload, &err) != ST_OK)
        broken(&l, "payload-is-json", err.msg);
    l.at_us = l.e->emitted_ns / 1000;
    l.step = l.e->subject.ptr ? plan_find(run->plan, l.e->subject) : -1;
    if (l.step >= 0) {
        l.m = &run->steps[l.step];
        l.p = &run->plan->steps[l.step];
    }
    bool is_signal_end = type == EVENT_SIGNAL_PROCESSED || type == EVENT_SIGNAL_PROCESSING_FAILED;
    if (run->ended) broken(&l, "nothing-after-the-end", "the run is over");
    if (run_is_final(run->status) && !is_signal_end)
        broken(&l, "nothing-after-the-end", "only signals end with the run");
    if (run->effect != EFFECT_NONE && !is_signal_end)
        broken(&l, "one-signal-one-effect", "an effect without its signal");
    if (l.e->engine_attempt < run->engine_attempt)
        broken(&l, "engine-attempt-rises", "it has fallen");
    if (batch->node && batch->index == 0) check_driver(&l);
    if (batch->node && batch->index > 0 && type == EVENT_RUN_RECOVERED)
        broken(&l, "takeover-is-recorded", "in the middle of a batch");
    if (l.e->engine_attempt > run->engine_attempt) run->engine_attempt = l.e->engine_attempt;
    bool of_step = event_family_of(l.e) == FAMILY_STEP || event_family_of(l.e) == FAMILY_TOOL;
    if (of_step)
        apply_step_event(&l);
    else if (type == EVENT_SIGNAL_RECEIVED)
        apply_received(&l);
    else if (is_signal_end)
        apply_signal_end(&l);
    else
        apply_run_event(&l);
    arena_rewind(&w->scratch, mark);
}

/* ---- after a commit ---- */

static void check_admission(struct world *w, const struct sim_run *run) {
    int64_t tenant = 0;
    int64_t plan = 0;
    if (w->node_count > 1) return; /* two nodes may count at the same time */
    for (uint32_t i = 0; i < w->run_count; i++) {
        const struct sim_run *other = w->runs[i];
        if (other->status != RUN_RUNNING && other->status != RUN_PAUSED) continue;
        if (!str_eq(other->tenant_id, run->tenant_id)) continue;
        tenant++;
        plan += str_eq(other->plan->plan_id, run->plan->plan_id);
    }
    if (w->tenant_active_max > 0 && tenant > w->tenant_active_max)
        sim_world_break(w, "admission", "%lld runs of a tenant at once", (long long)tenant);
    if (w->plan_active_max > 0 && plan > w->plan_active_max)
        sim_world_break(w, "admission", "%lld runs of a plan at once", (long long)plan);
}

static void check_signals_over(struct world *w, const struct sim_run *run, int64_t decided) {
    for (size_t i = 0; i < run->signal_count; i++) {
        const struct model_signal *s = &run->signals[i];
        if (s->ended) continue;
        /* It came when all was decided, or so shortly before that nobody has looked. */
        if (s->from_outside && (s->record > decided || !s->read)) continue;
        sim_world_break(w, "signal-ends-once", "%s is over, its signal %.*s is not", run->run_id,
                        STR_ARG(s->name));
    }
}

void sim_check_commit(struct world *w, struct sim_run *run, struct sim_node *node, int64_t decided,
                      int64_t emitted_us) {
    bool final = run_is_final(run->status);
    if (run->status != run->run.head.status)
        sim_world_break(w, "one-reducer", "%s is %s, by its events %s", run->run_id,
                        run_status_name(run->run.head.status), run_status_name(run->status));
    if (run->effect != EFFECT_NONE)
        sim_world_break(w, "one-signal-one-effect", "%s: an effect without its signal",
                        run->run_id);
    if (run->held == final)
        sim_world_break(w, "open-runs-have-a-row", "%s is %s, row %d", run->run_id,
                        run_status_name(run->status), run->held);
    if (!node) return;
    if (final) {
        check_signals_over(w, run, decided);
        run->ended = true;
        return;
    }
    if (run->node_no != node->lease.node_no || run->epoch != node->lease.epoch)
        sim_world_break(w, "the-row-names-the-driver", "%s is driven by %s, its row says %lld/%lld",
                        run->run_id, node->name, (long long)run->node_no, (long long)run->epoch);
    int64_t due = sim_judge_next_due(run, emitted_us);
    if (run->wake_us > due)
        sim_world_break(w, "wake-not-too-late", "%s wakes at %lld, due at %lld", run->run_id,
                        (long long)(run->wake_us == FLOW_NEVER ? -1 : run->wake_us - w->start_us),
                        (long long)(due == 0 ? 0 : due - w->start_us));
    check_admission(w, run);
}

/* ---- executors ---- */

static bool is_started(const struct sim_run *run, str step_id, int64_t attempt) {
    for (size_t i = run->count; i > 0; i--) {
        const struct event *e = &run->records[i - 1].rec.event;
        if (e->type == EVENT_STEP_STARTED && e->logical_attempt == attempt &&
            str_eq(e->subject, step_id))
            return true;
    }
    return false;
}

/* The text that plans.c puts a value into, of the plan or of what was rendered from it. */
static str text_field(enum plan_type type, yyjson_val *body) {
    str text = STR_NONE;
    yyjson_val *field = NULL;
    if (type == PLAN_EXEC) field = yyjson_arr_get(json_member(body, "command"), 1);
    if (type == PLAN_HTTP) field = json_member(body, "url");
    if (type == PLAN_EFFECT) field = json_member(json_member(body, "payload"), "text");
    (void)json_str(field, &text);
    return text;
}

/* An outbox is told what kind of effect it is, and whether somebody waits for it. */
static void check_effect_body(struct world *w, const struct sim_attempt *a, yyjson_val *body) {
    const struct plan_step *p = a->attempt->step;
    if (p->type != PLAN_EFFECT) return;
    bool same = str_eq(text_of(body, "effectType"), text_of(p->body, "effectType")) &&
                str_eq(text_of(p->body, "effectType"), p->effect_type) &&
                yyjson_is_true(json_member(body, "wait")) == p->wait &&
                yyjson_is_true(json_member(p->body, "wait")) == p->wait;
    if (!same)
        sim_world_break(w, "effects-are-the-plans", "%s step %u asks for another effect",
                        a->run->run_id, a->step);
}

static void check_body(struct world *w, const struct sim_attempt *a) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    const struct sim_run *run = a->run;
    const struct plan_step *p = a->attempt->step;
    yyjson_val *root = NULL;
    struct error err = {0};
    char want[96] = "v=";
    struct arena_mark mark = arena_mark(&w->scratch);
    status st = json_parse(a->attempt->body, limits, &w->scratch, &root, &err);
    str got = text_field(p->type, root);
    str template = text_field(p->type, p->body);
    for (uint32_t i = 0; i < run->plan->step_count; i++) {
        char name[64];
        snprintf(name, sizeof(name), "v={{ steps.%.*s.output.v }}",
                 STR_ARG(run->plan->steps[i].id));
        if (str_ends(template, str_c(name)))
            snprintf(want, sizeof(want), "v=%s", run->steps[i].value);
    }
    bool same = st == ST_OK && got.ptr && str_ends(got, str_c(want));
    if (!same)
        sim_world_break(w, "outputs-reach-their-step", "%s step %u got \"%.*s\", not %s",
                        run->run_id, a->step, STR_ARG(got), want);
    check_effect_body(w, a, root);
    arena_rewind(&w->scratch, mark);
}

void sim_check_begin(struct world *w, const struct sim_attempt *a) {
    struct model_step *m = &a->run->steps[a->step];
    if (!is_started(a->run, a->attempt->step->id, a->number))
        sim_world_break(w, "durable-before-executed", "%s step %u#%lld is not stored",
                        a->run->run_id, a->step, (long long)a->number);
    if (m->begun[a->node].life == a->life && m->begun[a->node].attempt == a->number)
        sim_world_break(w, "executed-once-in-a-life", "%s step %u#%lld begins again",
                        a->run->run_id, a->step, (long long)a->number);
    m->begun[a->node].life = a->life;
    m->begun[a->node].attempt = a->number;
    check_body(w, a);
}

/* ---- the end ---- */

static void check_replay(struct world *w, const struct sim_run *run) {
    struct run replayed = {0};
    struct arena arena;
    struct transition bad;
    struct error err = {0};
    arena_init(&arena, 4096, (size_t)64 * 1024 * 1024);
    for (size_t i = 0; i < run->count; i++) {
        if (run_apply(&replayed, &run->records[i].rec, &arena, &bad, NULL, &err) != ST_OK)
            sim_world_break(w, "no-illegal-transition", "%s record %zu", run->run_id, i);
        for (size_t k = 0; k < i; k++) {
            if (memcmp(run->records[k].rec.event.key, run->records[i].rec.event.key, SHA256_LEN) ==
                0)
                sim_world_break(w, "no-key-twice", "%s records %zu and %zu", run->run_id, k, i);
        }
    }
    arena_release(&arena);
}

void sim_check_end(struct world *w) {
    for (uint32_t i = 0; i < w->run_count; i++) {
        const struct sim_run *run = w->runs[i];
        if (!run->exists) continue;
        check_replay(w, run);
        if (!run_is_final(run->run.head.status))
            sim_world_break(w, "every-run-ends", "%s is %s", run->run_id,
                            run_status_name(run->run.head.status));
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct engine_stats stats = {0};
        if (!w->nodes[i].up) continue;
        engine_stats(w->nodes[i].engine, &stats);
        if (stats.resident + stats.attempts + stats.tasks > 0)
            sim_world_break(w, "nothing-stays-in-memory", "%s: %zu runs, %zu attempts, %zu tasks",
                            w->nodes[i].name, stats.resident, stats.attempts, stats.tasks);
    }
    for (uint32_t i = 0; i < w->worker_count; i++) {
        const struct sim_worker *k = &w->workers[i];
        const struct sim_node *n = &w->nodes[k->node];
        if (k->poll && n->life == k->life && w->now_us > k->deadline_us + SECOND)
            sim_world_break(w, "polls-are-answered-in-time", "worker%u waits for ever", i);
    }
}
