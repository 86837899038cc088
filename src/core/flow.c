/* core/flow.c: applying events. Deciding is in decide.c and decide_*.c. */
#include "core/flow.h"

#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/time.h"
#include "core/flow_impl.h"

enum { TIMER_CAP_FIRST = 4, SIGNAL_CAP_FIRST = 4, LIQUID_ROOT_DEPTH = JSON_DEPTH_MAX };

static status no_memory(struct error *err) { return error_set(err, ST_RETRY, "flow: out of memory"); }

/* ---- heaps ---- */

void flow_push_ready(struct flow *f, uint32_t step) {
    ASSERT(f->ready_count < f->plan->step_count);
    uint32_t i = f->ready_count++;
    for (; i > 0 && f->ready[(i - 1) / 2] > step; i = (i - 1) / 2)
        f->ready[i] = f->ready[(i - 1) / 2];
    f->ready[i] = step;
    f->steps[step].phase = FLOW_READY;
}

uint32_t flow_pop_ready(struct flow *f) {
    ASSERT(f->ready_count > 0);
    uint32_t top = f->ready[0];
    uint32_t last = f->ready[--f->ready_count];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < f->ready_count; i = child) {
        if (child + 1 < f->ready_count && f->ready[child + 1] < f->ready[child]) child++;
        if (last <= f->ready[child]) break;
        f->ready[i] = f->ready[child];
    }
    f->ready[i] = last;
    return top;
}

static bool timer_before(struct flow_timer a, struct flow_timer b) {
    return a.due_us != b.due_us ? a.due_us < b.due_us : a.step < b.step;
}

static status timer_add(struct flow *f, uint32_t step, int64_t due_us, struct error *err) {
    f->steps[step].due_us = due_us;
    if (due_us == FLOW_NEVER) return ST_OK;
    if (f->timer_count == f->timer_cap) {
        uint32_t cap = f->timer_cap == 0 ? TIMER_CAP_FIRST : f->timer_cap * 2;
        struct flow_timer *timers = arena_try_raw(f->arena, cap * sizeof(*timers));
        if (!timers) return no_memory(err);
        if (f->timer_count > 0) memcpy(timers, f->timers, f->timer_count * sizeof(*timers));
        f->timers = timers;
        f->timer_cap = cap;
    }
    struct flow_timer t = {due_us, step};
    uint32_t i = f->timer_count++;
    for (; i > 0 && timer_before(t, f->timers[(i - 1) / 2]); i = (i - 1) / 2)
        f->timers[i] = f->timers[(i - 1) / 2];
    f->timers[i] = t;
    return ST_OK;
}

static void timer_pop(struct flow *f) {
    struct flow_timer last = f->timers[--f->timer_count];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < f->timer_count; i = child) {
        if (child + 1 < f->timer_count && timer_before(f->timers[child + 1], f->timers[child]))
            child++;
        if (!timer_before(f->timers[child], last)) break;
        f->timers[i] = f->timers[child];
    }
    f->timers[i] = last;
}

static bool timer_is_live(const struct flow *f, struct flow_timer t) {
    const struct flow_step *s = &f->steps[t.step];
    return s->due_us == t.due_us && (s->phase == FLOW_OPEN || s->phase == FLOW_BACKOFF);
}

/* Stale entries stay until they come to the top: amortised, each is pushed and popped once. */
const struct flow_timer *flow_next_timer(struct flow *f) {
    while (f->timer_count > 0 && !timer_is_live(f, f->timers[0]))
        timer_pop(f);
    return f->timer_count > 0 ? &f->timers[0] : NULL;
}

/* ---- making one ---- */

static uint64_t mix(uint64_t x) { /* splitmix64's finaliser */
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9U;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

uint64_t flow_random(const struct flow *f, uint32_t step, int64_t attempt) {
    return mix(f->seed ^ mix(((uint64_t)step << 32) ^ (uint64_t)attempt));
}

status flow_init(struct flow *f, const struct plan *plan, const struct event *ids,
                 struct arena *arena, struct arena *scratch, struct error *err) {
    uint32_t n = plan->step_count;
    uint8_t digest[SHA256_LEN];
    *f = (struct flow){.plan = plan,
                       .arena = arena,
                       .scratch = scratch,
                       .ids = *ids,
                       .first_failed = FLOW_NO_STEP};
    sha256_of(ids->run_id, digest);
    memcpy(&f->seed, digest, sizeof(f->seed));
    f->steps = arena_try(arena, n * sizeof(*f->steps));
    f->ready = arena_try_raw(arena, n * sizeof(*f->ready));
    f->judge = arena_try_raw(arena, n * sizeof(*f->judge));
    if (!f->steps || !f->ready || !f->judge) return no_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        struct flow_step *s = &f->steps[i];
        s->state = STEP_PENDING;
        s->waiting = plan->steps[i].dep_count;
        s->due_us = s->limit_us = FLOW_NEVER;
        if (s->waiting == 0) flow_push_ready(f, i);
    }
    return ST_OK;
}

/* ---- applying ---- */

static bool member_time(yyjson_val *root, const char *name, int64_t *us) {
    str text = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    if (!json_str(json_member(root, name), &text) || !time_parse_utc(text, &ns, &digits))
        return false;
    *us = ns / 1000;
    return true;
}

/* Whether the steps that depend on it are skipped. */
static bool poisons(const struct flow *f, uint32_t step) {
    const struct flow_step *s = &f->steps[step];
    if (s->state == STEP_SKIPPED) return s->poisoned;
    return s->state == STEP_FAILED && f->plan->steps[step].on_failure == PLAN_SKIP_DEPENDENTS;
}

/* A step that is settled lets those go on that wait for it. */
static void settle(struct flow *f, uint32_t step) {
    const struct plan_step *p = &f->plan->steps[step];
    struct flow_step *s = &f->steps[step];
    bool failed = s->state == STEP_FAILED;
    bool skips = poisons(f, step);
    s->phase = FLOW_SETTLED;
    f->settled++;
    if (failed) {
        f->failed++;
        if (f->first_failed == FLOW_NO_STEP) f->first_failed = step;
        if (p->on_failure == PLAN_FAIL) f->failing = true;
    }
    for (uint32_t i = 0; i < p->dependent_count; i++) {
        struct flow_step *d = &f->steps[p->dependents[i]];
        if (skips) d->poisoned = true;
        ASSERT(d->waiting > 0);
        if (--d->waiting == 0 && d->phase == FLOW_IDLE) flow_push_ready(f, p->dependents[i]);
    }
}

static bool is_retryable(const struct plan_retry *r, str code) {
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

/* Whether the plan gives a failed step another attempt. Judged when the failure is applied, from
 * what came before it and nothing else: a replay must come to the same end. */
static bool may_try_again(const struct flow *f, uint32_t step) {
    const struct plan_retry *r = f->plan->steps[step].retry;
    const struct flow_step *s = &f->steps[step];
    return s->attempt < r->attempts_max && is_retryable(r, s->code) && !f->failing;
}

/* Takes a step out of READY: its entry is somewhere in the heap only when it is not being started
 * by flow_decide(), which pops it first. Rare (replay): rebuild without it. */
static void leave_ready(struct flow *f, uint32_t step) {
    if (f->steps[step].phase != FLOW_READY) return;
    uint32_t top_is = f->ready_count > 0 ? f->ready[0] : FLOW_NO_STEP;
    if (top_is == step) {
        (void)flow_pop_ready(f);
        return;
    }
    for (uint32_t i = 0; i < f->ready_count; i++) {
        if (f->ready[i] != step) continue;
        uint32_t old = f->ready_count;
        f->ready_count = 0;
        for (uint32_t k = 0; k < old; k++) {
            if (k != i) flow_push_ready(f, f->ready[k]);
        }
        return;
    }
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static status apply_started(struct flow *f, uint32_t i, const struct event_record *rec,
                            yyjson_val *payload, struct error *err) {
    const struct plan_step *p = &f->plan->steps[i];
    struct flow_step *s = &f->steps[i];
    leave_ready(f, i);
    s->phase = FLOW_OPEN;
    s->state = STEP_RUNNING;
    s->attempt = rec->event.logical_attempt;
    s->started_us = rec->event.emitted_ns / 1000;
    s->stopping = false;
    s->lease_us = 0;
    s->crashes = 0;
    f->open++;
    if (plan_type_is_executed(p->type)) {
        f->executing++; /* its timeout is the executor's: the clock of a repeated attempt restarts */
        s->due_us = s->limit_us = FLOW_NEVER;
        return ST_OK;
    }
    if (p->type == PLAN_TASK) f->tasks++;
    if (p->type == PLAN_WAIT) f->waits++;
    s->limit_us = FLOW_NEVER;
    (void)member_time(payload, "timeoutAt", &s->limit_us);
    int64_t due = FLOW_NEVER;
    (void)member_time(payload, "dueAt", &due);
    return timer_add(f, i, min64(due, s->limit_us), err);
}

static status apply_ended(struct flow *f, uint32_t i, const struct event_record *rec,
                          yyjson_val *payload, struct error *err) {
    const struct plan_step *p = &f->plan->steps[i];
    struct flow_step *s = &f->steps[i];
    if (s->phase == FLOW_OPEN) {
        f->open--;
        if (plan_type_is_executed(p->type)) f->executing--;
        if (p->type == PLAN_TASK) f->tasks--;
        if (p->type == PLAN_WAIT) f->waits--;
    }
    leave_ready(f, i); /* a skipped step */
    s->due_us = s->limit_us = FLOW_NEVER;
    s->attempt = rec->event.logical_attempt;
    s->lease_us = 0;
    s->stopping = false;
    if (rec->event.type == EVENT_STEP_FAILED) {
        str code = STR_NONE;
        s->state = STEP_FAILED;
        s->phase = FLOW_JUDGE;
        if (json_str(json_member(payload, "code"), &code) &&
            !arena_try_str(f->arena, code, &s->code))
            return no_memory(err);
        if (may_try_again(f, i)) f->judge[(f->judge_head + f->judge_count++) % f->plan->step_count] = i;
        else settle(f, i);
        return ST_OK;
    }
    s->state = rec->event.type == EVENT_STEP_COMPLETED ? STEP_SUCCESS : STEP_SKIPPED;
    yyjson_val *output = json_member(payload, "output");
    if (output) {
        s->output = json_text(output, f->arena);
        if (!s->output.ptr) return no_memory(err);
    }
    settle(f, i);
    return ST_OK;
}

/* Takes the step out of the ring of those that are to be judged, if it is there. */
static bool leave_judge(struct flow *f, uint32_t step) {
    uint32_t n = f->plan->step_count;
    for (uint32_t k = 0; k < f->judge_count; k++) {
        if (f->judge[(f->judge_head + k) % n] != step) continue;
        for (uint32_t m = k; m > 0; m--)
            f->judge[(f->judge_head + m) % n] = f->judge[(f->judge_head + m - 1) % n];
        f->judge_head = (f->judge_head + 1) % n;
        f->judge_count--;
        return true;
    }
    return false;
}

/* A settled failure that is tried again: what it let go on waits once more. */
static void unsettle(struct flow *f, uint32_t step) {
    const struct plan_step *p = &f->plan->steps[step];
    f->settled--;
    f->failed--;
    for (uint32_t i = 0; i < p->dependent_count; i++) {
        uint32_t d = p->dependents[i];
        leave_ready(f, d);
        f->steps[d].phase = FLOW_IDLE;
        f->steps[d].poisoned = false; /* set again by whichever dependency still poisons it */
        f->steps[d].waiting++;
    }
    f->failing = false;
    f->first_failed = FLOW_NO_STEP;
    for (uint32_t i = 0; i < f->plan->step_count; i++) {
        const struct flow_step *s = &f->steps[i];
        if (i == step || s->phase != FLOW_SETTLED) continue;
        bool failed = s->state == STEP_FAILED;
        if (failed && f->first_failed == FLOW_NO_STEP) f->first_failed = i;
        if (failed && f->plan->steps[i].on_failure == PLAN_FAIL) f->failing = true;
        for (uint32_t k = 0; k < f->plan->steps[i].dependent_count && poisons(f, i); k++)
            f->steps[f->plan->steps[i].dependents[k]].poisoned = true;
    }
}

static status apply_retried(struct flow *f, uint32_t i, const struct event_record *rec,
                            yyjson_val *payload, struct error *err) {
    struct flow_step *s = &f->steps[i];
    UNUSED(rec);
    if (s->state != STEP_FAILED) return ST_OK;
    if (s->phase == FLOW_SETTLED) unsettle(f, i);
    if (s->phase == FLOW_JUDGE) (void)leave_judge(f, i);
    leave_ready(f, i);
    s->phase = FLOW_BACKOFF;
    int64_t due = 0;
    (void)member_time(payload, "retryAt", &due);
    return timer_add(f, i, due, err);
}

static status apply_tool(struct flow *f, uint32_t i, const struct event_record *rec,
                         yyjson_val *payload, struct error *err) {
    struct flow_step *s = &f->steps[i];
    enum event_type type = rec->event.type;
    if (type == EVENT_TOOL_CALLED) s->leases++;
    if (s->phase != FLOW_OPEN || f->plan->steps[i].type != PLAN_TASK) return ST_OK;
    s->lease_us = 0;
    if (type == EVENT_TOOL_CALLED) (void)member_time(payload, "lease_until", &s->lease_us);
    return timer_add(f, i, s->lease_us > 0 ? min64(s->lease_us, s->limit_us) : s->limit_us, err);
}

status flow_free_lease(struct flow *f, uint32_t step, struct error *err) {
    f->steps[step].lease_us = 0;
    f->task_freed = true;
    return timer_add(f, step, f->steps[step].limit_us, err);
}

status flow_extend_lease(struct flow *f, uint32_t step, int64_t until_us, struct error *err) {
    struct flow_step *s = &f->steps[step];
    s->lease_us = until_us;
    return timer_add(f, step, min64(until_us, s->limit_us), err);
}

/* ---- signals ---- */

static status copy_signal(struct flow *f, const struct event_record *rec, yyjson_val *data,
                          struct flow_signal *to, struct error *err) {
    struct signal *s = &to->signal;
    str texts[4] = {0};
    static const char *const members[] = {"signal", "caller_signal_id", "step_id", "reason"};
    str *out[] = {&s->name, &s->signal_id, &s->step_id, &s->reason};
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        (void)json_str(json_member(data, members[i]), &texts[i]);
        if (!arena_try_str(f->arena, texts[i], out[i])) return no_memory(err);
    }
    yyjson_val *payload = json_member(data, "payload");
    if (payload) {
        s->payload = json_text(payload, f->arena);
        if (!s->payload.ptr) return no_memory(err);
    }
    if (!arena_try_str(f->arena, rec->actor, &to->actor)) return no_memory(err);
    s->kind = s->name.ptr ? signal_kind_of(s->name) : SIGNAL_NAMED;
    if (rec->event.subject.len == UUID_TEXT_LEN)
        memcpy(to->id, rec->event.subject.ptr, UUID_TEXT_LEN);
    return ST_OK;
}

static status keep_launch(struct flow *f, str data_text, yyjson_val *data, struct error *err) {
    yyjson_val *parameters = json_member(data, "parameters");
    str adapter = STR_NONE;
    f->needs_approval = yyjson_is_true(json_member(data, "approval"));
    (void)json_str(json_member(data, "adapter"), &adapter);
    if (!arena_try_str(f->arena, data_text, &f->launch) ||
        !arena_try_str(f->arena, adapter, &f->adapter))
        return no_memory(err);
    if (!parameters) return ST_OK;
    f->parameters = json_text(parameters, f->arena);
    return f->parameters.ptr ? ST_OK : no_memory(err);
}

bool flow_signal_seen(const struct flow *f, uuid id) {
    for (uint32_t i = 0; i < f->seen_count; i++) {
        if (uuid_eq(f->seen[i], id)) return true;
    }
    return false;
}

static status remember_signal(struct flow *f, str subject, struct error *err) {
    uuid id;
    if (!uuid_parse(subject, &id)) return ST_OK;
    if (f->seen_count == f->seen_cap) {
        uint32_t cap = f->seen_cap == 0 ? SIGNAL_CAP_FIRST : f->seen_cap * 2;
        uuid *more = arena_try_raw(f->arena, cap * sizeof(*more));
        if (!more) return no_memory(err);
        if (f->seen_count > 0) memcpy(more, f->seen, f->seen_count * sizeof(*more));
        f->seen = more;
        f->seen_cap = cap;
    }
    f->seen[f->seen_count++] = id;
    return ST_OK;
}

static status apply_received(struct flow *f, uint32_t i, const struct event_record *rec,
                             yyjson_val *data, struct error *err) {
    UNUSED(i);
    status remembered = remember_signal(f, rec->event.subject, err);
    if (remembered != ST_OK) return remembered;
    if (f->signal_count == f->signal_cap) {
        uint32_t cap = f->signal_cap == 0 ? SIGNAL_CAP_FIRST : f->signal_cap * 2;
        struct flow_signal *more = arena_try(f->arena, cap * sizeof(*more));
        if (!more) return no_memory(err);
        if (f->signal_count > 0) memcpy(more, f->signals, f->signal_count * sizeof(*more));
        f->signals = more;
        f->signal_cap = cap;
    }
    struct flow_signal *s = &f->signals[f->signal_count];
    *s = (struct flow_signal){0};
    status st = copy_signal(f, rec, data, s, err);
    if (st == ST_OK && s->signal.kind == SIGNAL_LAUNCH)
        st = keep_launch(f, rec->event.payload, data, err);
    if (st == ST_OK) f->signal_count++;
    return st;
}

/* RETRY_STEP of a step that waits for its next attempt: the wait is over. */
static void hurry(struct flow *f, const struct signal *s) {
    int64_t step = s->step_id.ptr ? plan_find(f->plan, s->step_id) : -1;
    if (step < 0 || f->steps[step].phase != FLOW_BACKOFF) return;
    f->steps[step].due_us = FLOW_NEVER;
    flow_push_ready(f, (uint32_t)step);
}

static status apply_signal_begin(struct flow *f, uint32_t i, const struct event_record *rec,
                                 yyjson_val *payload, struct error *err) {
    UNUSED(i);
    UNUSED(payload);
    UNUSED(err);
    for (uint32_t k = 0; k < f->signal_count; k++) {
        struct flow_signal *s = &f->signals[k];
        if (str_eq(rec->event.subject, str_n(s->id, UUID_TEXT_LEN))) s->begun = true;
    }
    return ST_OK;
}

static status apply_signal_end(struct flow *f, uint32_t i, const struct event_record *rec,
                               yyjson_val *data, struct error *err) {
    UNUSED(i);
    UNUSED(data);
    UNUSED(err);
    for (uint32_t k = 0; k < f->signal_count; k++) {
        struct flow_signal *s = &f->signals[k];
        if (!str_eq(rec->event.subject, str_n(s->id, UUID_TEXT_LEN))) continue;
        if (rec->event.type == EVENT_SIGNAL_PROCESSED && s->signal.kind == SIGNAL_RETRY_STEP)
            hurry(f, &s->signal);
        f->signal_count--;
        memmove(s, s + 1, (f->signal_count - k) * sizeof(*s));
        return ST_OK;
    }
    return ST_OK;
}

/* ---- at a provider ---- */

static status apply_linked(struct flow *f, uint32_t i, const struct event_record *rec,
                           yyjson_val *payload, struct error *err) {
    UNUSED(i);
    UNUSED(rec);
    static const char *const members[] = {"workflowId", "providerRunId", "queue"};
    str *out[] = {&f->link.workflow_id, &f->link.provider_run_id, &f->link.queue};
    f->links++;
    f->rotating = false;
    for (size_t k = 0; k < COUNT_OF(members); k++) {
        str text = STR_NONE;
        (void)json_str(json_member(payload, members[k]), &text);
        if (!arena_try_str(f->arena, text, out[k])) return no_memory(err);
    }
    return ST_OK;
}

static status apply_recovered(struct flow *f, uint32_t i, const struct event_record *rec,
                              yyjson_val *payload, struct error *err) {
    UNUSED(i);
    UNUSED(rec);
    UNUSED(err);
    str cause = STR_NONE;
    str id = STR_NONE;
    (void)json_str(json_member(payload, "cause"), &cause);
    if (str_eq(cause, STR("continueAsNew"))) f->rotating = true;
    if (!str_eq(cause, STR("workerLost")) || !json_str(json_member(payload, "stepId"), &id))
        return ST_OK;
    int64_t step = plan_find(f->plan, id);
    int64_t attempt = 0;
    int64_t times = 0;
    if (step < 0 || !json_int(json_member(payload, "attempt"), &attempt) ||
        !json_int(json_member(payload, "times"), &times) || attempt != f->steps[step].attempt)
        return ST_OK;
    f->steps[step].crashes = (uint32_t)times;
    return ST_OK;
}

static status apply_queued(struct flow *f, uint32_t i, const struct event_record *rec,
                           yyjson_val *payload, struct error *err) {
    UNUSED(i);
    UNUSED(err);
    str reason = STR_NONE;
    f->queued_us = rec->event.emitted_ns / 1000;
    (void)json_str(json_member(payload, "reason"), &reason);
    f->queued_for_admission = !str_eq(reason, STR("approval"));
    return ST_OK;
}

/* ---- the reducer ---- */

/* What the types mean for the plan. A type without a row means nothing here: run_apply() has
 * counted it. `step` is FLOW_NO_STEP for an event that is about no step. */
typedef status (*flow_reducer)(struct flow *f, uint32_t step, const struct event_record *rec,
                               yyjson_val *payload, struct error *err);
static const struct {
    flow_reducer apply;
    bool reads_payload;
} reducers[EVENT_TYPE_COUNT] = {
    [EVENT_RUN_QUEUED] = {apply_queued, true},
    [EVENT_RUN_RECOVERED] = {apply_recovered, true},
    [EVENT_RUN_PROVIDER_LINKED] = {apply_linked, true},
    [EVENT_STEP_STARTED] = {apply_started, true},
    [EVENT_STEP_COMPLETED] = {apply_ended, true},
    [EVENT_STEP_FAILED] = {apply_ended, true},
    [EVENT_STEP_SKIPPED] = {apply_ended, false},
    [EVENT_STEP_RETRIED] = {apply_retried, true},
    [EVENT_SIGNAL_RECEIVED] = {apply_received, true},
    [EVENT_SIGNAL_PROCESSING_STARTED] = {apply_signal_begin, false},
    [EVENT_SIGNAL_PROCESSED] = {apply_signal_end, false},
    [EVENT_SIGNAL_PROCESSING_FAILED] = {apply_signal_end, false},
    [EVENT_TOOL_CALLED] = {apply_tool, true},
    [EVENT_TOOL_COMPLETED] = {apply_tool, false},
    [EVENT_TOOL_FAILED] = {apply_tool, false},
};

status flow_apply(struct flow *f, const struct event_record *rec, struct error *err) {
    struct transition bad;
    status st = run_apply(&f->run, rec, f->arena, &bad, NULL, err);
    if (st == ST_CONFLICT) return ST_OK; /* policy A: it changes nothing */
    if (st != ST_OK) return st;
    const struct event *e = &rec->event;
    if (e->type >= EVENT_TYPE_COUNT || !reducers[e->type].apply) return ST_OK;
    int64_t found = e->subject.ptr ? plan_find(f->plan, e->subject) : -1;
    uint32_t step = found >= 0 ? (uint32_t)found : FLOW_NO_STEP;
    enum event_family family = event_family_of(e);
    if ((family == FAMILY_STEP || family == FAMILY_TOOL) && step == FLOW_NO_STEP)
        return ST_OK; /* not of this plan */
    struct arena_mark mark = arena_mark(f->scratch);
    yyjson_val *payload = NULL;
    if (e->payload.ptr && reducers[e->type].reads_payload) {
        struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
        struct error ignored; /* a payload that we cannot read says nothing to the plan */
        if (json_parse(e->payload, limits, f->scratch, &payload, &ignored) == ST_RETRY)
            return no_memory(err);
    }
    st = reducers[e->type].apply(f, step, rec, payload, err);
    arena_rewind(f->scratch, mark);
    return st;
}

void flow_check(const struct flow *f) {
    ASSERT(f->executing <= f->open && f->tasks <= f->open && f->waits <= f->open);
    /* The run's reducer counts the same steps, and those that are not of this plan. */
    ASSERT((int64_t)f->open <= f->run.head.open_steps);
    ASSERT(f->ready_count <= f->plan->step_count && f->judge_count <= f->plan->step_count);
    ASSERT(f->timer_count <= f->timer_cap);
    ASSERT(f->signal_count <= f->signal_cap && f->seen_count <= f->seen_cap);
    ASSERT(!f->failing || f->first_failed != FLOW_NO_STEP);
    ASSERT(!f->failing || f->failed > 0);
}

int64_t flow_wake(const struct flow *f) {
    if (run_is_final(f->run.head.status) || f->stuck) return FLOW_NEVER;
    if (f->executing > 0 || f->tasks > 0 || f->judge_count > 0) return 0;
    enum run_status at = f->run.head.status;
    if (at == RUN_APPROVED || (at == RUN_PENDING && f->queued_for_admission)) return 0;
    if (at == RUN_RUNNING && f->ready_count > 0 && f->open < f->plan->concurrency) return 0;
    int64_t due = FLOW_NEVER;
    for (uint32_t i = 0; i < f->timer_count; i++) { /* the top may be stale: then look at all */
        struct flow_timer t = f->timers[i];
        if (timer_is_live(f, t)) {
            due = min64(due, t.due_us);
            if (i == 0) break;
        }
    }
    return due;
}

int64_t flow_due(struct flow *f) {
    const struct flow_timer *t = flow_next_timer(f);
    return t ? t->due_us : FLOW_NEVER;
}

bool flow_task_is_free(const struct flow *f, uint32_t step, int64_t now_us) {
    const struct flow_step *s = &f->steps[step];
    return s->phase == FLOW_OPEN && f->plan->steps[step].type == PLAN_TASK && s->lease_us <= now_us;
}

/* ---- what templates see ---- */

static yyjson_val *lazy_step(void *context, str name, str key, struct arena *arena) {
    const struct flow *f = context;
    if (!str_eq(name, STR("steps"))) return NULL;
    int64_t i = plan_find(f->plan, key);
    if (i < 0) return NULL;
    const struct flow_step *s = &f->steps[i];
    struct buf b;
    struct error ignored;
    yyjson_val *val = NULL;
    buf_init(&b, EVENT_BYTES_MAX);
    json_object_begin(&b);
    json_put_text(&b, "state", str_c(step_state_name((enum step_state)s->state)));
    json_put_int(&b, "attempt", s->attempt);
    json_put_text_if(&b, "code", s->code);
    json_put_json(&b, "output", s->output);
    json_object_end(&b);
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX + 1};
    if (b.full || json_parse(buf_str(&b), limits, arena, &val, &ignored) != ST_OK) val = NULL;
    buf_release(&b);
    return val;
}

status flow_scope(struct flow *f, struct liquid_scope *out, struct error *err) {
    if (!f->root) {
        struct buf b;
        buf_init(&b, EVENT_BYTES_MAX + 8192);
        json_object_begin(&b);
        json_put_json(&b, "parameters", f->parameters.ptr ? f->parameters : STR("{}"));
        json_name(&b, "run");
        json_object_begin(&b);
        json_put_text(&b, "runId", f->ids.run_id);
        json_put_text(&b, "tenantId", f->ids.tenant_id);
        json_put_text(&b, "projectId", f->ids.project_id);
        json_put_text(&b, "environmentId", f->ids.environment_id);
        json_put_text(&b, "planId", f->ids.plan_id);
        json_put_text(&b, "planVersion", f->ids.plan_version);
        json_object_end(&b);
        json_object_end(&b);
        struct json_limits limits = {EVENT_BYTES_MAX + 8192, LIQUID_ROOT_DEPTH};
        status st =
            b.full ? no_memory(err) : json_parse(buf_str(&b), limits, f->arena, &f->root, err);
        buf_release(&b);
        if (st != ST_OK) return st;
    }
    *out = (struct liquid_scope){.root = f->root, .lazy = lazy_step, .context = f};
    return ST_OK;
}

status flow_render(struct flow *f, uint32_t step, struct arena *arena, str *out,
                   struct error *err) {
    struct liquid_scope scope;
    struct buf b;
    status st = flow_scope(f, &scope, err);
    if (st != ST_OK) return st;
    buf_init(&b, LIQUID_OUTPUT_MAX);
    /* What is any JSON keeps its types; a word of a command, a header or a URL is text. */
    static const char *const typed[] = {"body", "input", "payload", NULL};
    scope.typed = typed;
    struct arena_mark mark = arena_mark(f->scratch);
    st = liquid_render_json(f->plan->steps[step].body, &scope, f->scratch, &b, err);
    if (st == ST_OK && b.full) st = error_set(err, ST_LIMIT, "the rendered step is too large");
    arena_rewind(f->scratch, mark);
    if (st == ST_OK && !arena_try_str(arena, buf_str(&b), out)) st = no_memory(err);
    if (st == ST_INVALID || st == ST_LIMIT) err->reason = REASON_TEMPLATE_FAILED;
    buf_release(&b);
    return st;
}
