/* engine/status.c: the state of a run for people, from its stored events. */
#include "engine/status.h"

#include <stdarg.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"

enum { SCRATCH_FIRST = 4096, DETAIL_MAX = 600 };
#define SCRATCH_MAX ((size_t)16 * 1024 * 1024)

static status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "status: out of memory");
}

/* ---- from rows to a view ---- */

struct viewing {
    struct run_view *view;
    struct arena *arena;
    struct arena scratch; /* for one row */
    size_t cap;           /* of view->steps */
    bool begun;           /* a row was seen */
};

static bool member_time(yyjson_val *root, const char *name, int64_t *us) {
    str text = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    if (!json_str(json_member(root, name), &text) || !time_parse_utc(text, &ns, &digits))
        return false;
    *us = ns / 1000;
    return true;
}

/* A member's text, or STR_NONE. false: out of memory. */
static bool member_text(yyjson_val *root, const char *name, struct arena *arena, str *out) {
    str text = STR_NONE;
    *out = STR_NONE;
    return !json_str(json_member(root, name), &text) || arena_try_str(arena, text, out);
}

/* As many views as the reducer knows steps. */
static bool grow_steps(struct viewing *v) {
    struct run_view *view = v->view;
    size_t need = view->run.step_count;
    if (need <= v->cap) return true;
    size_t cap = v->cap * 2 > need ? v->cap * 2 : need + 8;
    struct step_view *steps = arena_try(v->arena, cap * sizeof(*steps));
    if (!steps) return false;
    if (v->cap > 0) memcpy(steps, view->steps, v->cap * sizeof(*steps));
    view->steps = steps;
    v->cap = cap;
    return true;
}

static bool see_started(struct viewing *v, struct step_view *s, const struct event_record *rec,
                        yyjson_val *payload) {
    *s = (struct step_view){.id = s->id, .started_us = rec->persisted_us, .leases = s->leases};
    (void)member_time(payload, "dueAt", &s->due_us);
    (void)member_time(payload, "timeoutAt", &s->timeout_us);
    return member_text(payload, "stepType", v->arena, &s->type) &&
           member_text(payload, "signal", v->arena, &s->signal) &&
           member_text(payload, "queue", v->arena, &s->queue) &&
           member_text(payload, "effectType", v->arena, &s->effect_type);
}

static bool see_ended(struct viewing *v, struct step_view *s, const struct event_record *rec,
                      yyjson_val *payload) {
    bool ok = true;
    s->ended_us = rec->persisted_us;
    s->retried_us = s->retry_us = 0;
    if (!s->type.ptr) ok = member_text(payload, "stepType", v->arena, &s->type);
    if (rec->event.type == EVENT_STEP_COMPLETED) return ok;
    bool failed = rec->event.type == EVENT_STEP_FAILED;
    return ok && member_text(payload, failed ? "code" : "reason", v->arena, &s->code) &&
           member_text(payload, "message", v->arena, &s->message);
}

static bool see_lease(struct viewing *v, struct step_view *s, const struct event_record *rec,
                      yyjson_val *payload) {
    s->leases++;
    s->lease_us = rec->persisted_us;
    s->lease_until_us = 0;
    (void)member_time(payload, "lease_until", &s->lease_until_us);
    return member_text(payload, "worker", v->arena, &s->worker);
}

static bool see_retried(struct viewing *v, struct step_view *s, const struct event_record *rec,
                        yyjson_val *payload) {
    UNUSED(v);
    s->retried_us = rec->persisted_us;
    (void)member_time(payload, "retryAt", &s->retry_us);
    return true;
}

/* What an event type adds to the view of its step; no row: nothing. */
typedef bool (*step_seer)(struct viewing *v, struct step_view *s, const struct event_record *rec,
                          yyjson_val *payload);
static const step_seer step_seers[EVENT_TYPE_COUNT] = {
    [EVENT_STEP_STARTED] = see_started, [EVENT_STEP_COMPLETED] = see_ended,
    [EVENT_STEP_FAILED] = see_ended,    [EVENT_STEP_SKIPPED] = see_ended,
    [EVENT_STEP_RETRIED] = see_retried, [EVENT_TOOL_CALLED] = see_lease,
};

static bool see_step(struct viewing *v, const struct event_record *rec, yyjson_val *payload) {
    struct run_view *view = v->view;
    const struct step *step = run_step(&view->run, rec->event.subject);
    if (!step) return true; /* a fact about a step that never began */
    struct step_view *s = &view->steps[step - view->run.steps];
    s->id = step->id;
    ASSERT(rec->event.type < EVENT_TYPE_COUNT);
    step_seer seer = step_seers[rec->event.type];
    bool ok = !seer || seer(v, s, rec, payload);
    s->state = step->state;
    s->attempt = step->attempt;
    return ok;
}

static bool see_queued(struct viewing *v, const struct event_record *rec, yyjson_val *payload) {
    v->view->queued_us = rec->persisted_us;
    return member_text(payload, "reason", v->arena, &v->view->queued_reason);
}

static bool see_failed(struct viewing *v, yyjson_val *payload) {
    return member_text(payload, "code", v->arena, &v->view->end_code) &&
           member_text(payload, "stepId", v->arena, &v->view->end_step);
}

/* Types that are not named here add nothing to the view of the run. */
static bool see_run(struct viewing *v, const struct event_record *rec, yyjson_val *payload) {
    struct run_view *view = v->view;
    enum event_type type = rec->event.type;
    if (type == EVENT_RUN_QUEUED) return see_queued(v, rec, payload);
    if (type == EVENT_RUN_FAILED) return see_failed(v, payload);
    if (type == EVENT_RUN_APPROVED) view->approved_us = rec->persisted_us;
    if (type == EVENT_RUN_PAUSED) view->paused_us = rec->persisted_us;
    if (type == EVENT_RUN_STARTED)
        view->degraded = yyjson_is_true(json_member(payload, "degraded"));
    if (type == EVENT_RUN_PROVIDER_LINKED) view->rotating = false;
    if (type == EVENT_RUN_RECOVERED) {
        str cause = STR_NONE;
        (void)json_str(json_member(payload, "cause"), &cause);
        view->rotating = view->rotating || str_eq(cause, STR("continueAsNew"));
    }
    return true;
}

static status see_row(void *context, const struct event_record *rec, bool *stop,
                      struct error *err) {
    UNUSED(stop);
    struct viewing *v = context;
    struct transition bad;
    status st = run_apply(&v->view->run, rec, v->arena, &bad, NULL, err);
    if (st == ST_CONFLICT) return ST_OK; /* policy A: it changes nothing */
    if (st != ST_OK) return st;
    if (!grow_steps(v)) return no_memory(err);
    yyjson_val *payload = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error ignored; /* a payload that we cannot read tells us nothing */
    arena_reset(&v->scratch);
    if (rec->event.payload.ptr)
        (void)!json_parse(rec->event.payload, limits, &v->scratch, &payload, &ignored);
    enum event_family family = event_family_of(&rec->event);
    bool ok = true;
    if (!v->begun && rec->event.type == EVENT_SIGNAL_RECEIVED)
        ok = member_text(payload, "adapter", v->arena, &v->view->adapter);
    v->begun = true;
    if (family == FAMILY_RUN) ok = see_run(v, rec, payload);
    if (family == FAMILY_STEP || family == FAMILY_TOOL) ok = see_step(v, rec, payload);
    return ok ? ST_OK : no_memory(err);
}

static status find_run(struct ledger *reader, str run_id, struct arena *arena, struct run_info *out,
                       struct error *err) {
    status st = ledger_find_run(reader, run_id, arena, out, err);
    if (st != ST_NOT_FOUND) return st;
    return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
}

/* Everything but the run's own row, which is there already. */
static status fill_view(struct ledger *reader, struct arena *arena, struct run_view *view,
                        struct error *err) {
    struct viewing v = {.view = view, .arena = arena};
    arena_init(&v.scratch, SCRATCH_FIRST, SCRATCH_MAX);
    status st = ledger_walk_run(reader, &view->info, 0, see_row, &v, err);
    if (st == ST_OK) st = lease_find(reader, view->info.run_no, arena, &view->lease, err);
    arena_release(&v.scratch);
    return st;
}

status run_view_load(struct ledger *reader, str run_id, struct arena *arena, struct run_view *out,
                     struct error *err) {
    *out = (struct run_view){0};
    status st = find_run(reader, run_id, arena, &out->info, err);
    return st == ST_OK ? fill_view(reader, arena, out, err) : st;
}

/* ---- the substatus ---- */

static const char *const canonical[] = {"DRAINING", "RETRYING", "CONTINUE_AS_NEW",
                                        "WAITING_APPROVAL", "RECOVERING"};

static bool is_canonical(str s) {
    for (size_t i = 0; i < COUNT_OF(canonical); i++) {
        if (str_eq(s, str_c(canonical[i]))) return true;
    }
    return false;
}

status substatus_check(str s, struct error *err) {
    static const char *const adapters[] = {"temporal", "conductor", "mock"};
    str adapter = STR_NONE;
    str value = STR_NONE;
    size_t at = 0;
    if (is_canonical(s)) return ST_OK;
    if (!str_split(s, '/', &adapter, &value))
        return error_at(err, REASON_SUBSTATUS_INVALID, "/substatus",
                        "\"%.*s\" is no canonical substatus: an adapter's own is "
                        "<adapter>/<VALUE>",
                        STR_ARG(s));
    bool known = false;
    for (size_t i = 0; i < COUNT_OF(adapters); i++)
        known = known || str_eq(adapter, str_c(adapters[i]));
    if (!known)
        return error_at(err, REASON_SUBSTATUS_INVALID, "/substatus",
                        "\"%.*s\" is no adapter with a substatus: temporal, conductor or mock",
                        STR_ARG(adapter));
    if (is_canonical(value))
        return error_at(err, REASON_SUBSTATUS_INVALID, "/substatus",
                        "%.*s is canonical: it stands without its adapter", STR_ARG(value));
    bool good = value.len > 0 && value.len <= ID_BYTES_MAX && str_utf8(value, &at);
    for (size_t i = 0; i < value.len; i++)
        good = good && (unsigned char)value.ptr[i] > 0x20 && value.ptr[i] != 0x7f;
    if (!good)
        return error_at(err, REASON_SUBSTATUS_INVALID, "/substatus",
                        "the value after \"%.*s/\" must be 1 to %d bytes without blanks",
                        STR_ARG(adapter), ID_BYTES_MAX);
    return ST_OK;
}

/* Work is due now, and the node that has the run is dead or has not looked at it since it began. A
 * run that only waits for a time is nobody's emergency. */
static bool is_recovering(const struct run_view *v) {
    return v->info.head.status == RUN_RUNNING && v->lease.held && !v->lease.alive &&
           v->lease.wake_us == 0;
}

static bool is_retrying(const struct step_view *s) {
    return s->state == STEP_FAILED && s->retried_us > 0;
}

static bool waits_for_approval(const struct step_view *s) {
    return s->state == STEP_RUNNING && str_eq(s->type, STR("approval"));
}

static str substatus_of(const struct run_view *v) {
    enum run_status now = v->info.head.status;
    bool open = false;
    bool retrying = false;
    bool approval =
        now == RUN_PENDING && v->queued_reason.ptr && str_eq(v->queued_reason, STR("approval"));
    for (uint32_t i = 0; i < v->run.step_count; i++) {
        open = open || v->steps[i].state == STEP_RUNNING;
        retrying = retrying || is_retrying(&v->steps[i]);
        approval = approval || (now == RUN_RUNNING && waits_for_approval(&v->steps[i]));
    }
    if (run_is_final(now)) return STR_NONE;
    if (now == RUN_PAUSED && open) return STR("DRAINING");
    if (v->rotating) return STR("CONTINUE_AS_NEW");
    if (is_recovering(v)) return STR("RECOVERING");
    if (retrying) return STR("RETRYING");
    return approval ? STR("WAITING_APPROVAL") : STR_NONE;
}

/* ---- the snapshot ---- */

static bool say(struct arena *arena, str *out, const char *fmt, ...) PRINTF_LIKE(3, 4);
static bool say(struct arena *arena, str *out, const char *fmt, ...) {
    char text[DETAIL_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1;
    size_t bad = 0;
    if (!str_utf8(str_n(text, len), &bad)) len = bad; /* cut in the middle of a character */
    return arena_try_str(arena, str_n(text, len), out);
}

static status message_of(const struct run_view *v, struct arena *arena, str *out,
                         struct error *err) {
    bool ok = true;
    *out = STR_NONE;
    if (v->info.head.status == RUN_FAILED && v->end_step.ptr)
        ok = say(arena, out, "step \"%.*s\" failed", STR_ARG(v->end_step));
    else if (v->info.head.status == RUN_FAILED && v->end_code.ptr)
        ok = say(arena, out, "%.*s", STR_ARG(v->end_code));
    else if (v->degraded && !run_is_final(v->info.head.status))
        ok = say(arena, out, "degraded: it was started with warnings");
    return ok ? ST_OK : no_memory(err);
}

static status snapshot_of(const struct run_view *v, struct arena *arena, struct run_snapshot *out,
                          struct error *err) {
    enum run_status now = v->info.head.status;
    *out = (struct run_snapshot){.run_id = v->info.run_id,
                                 .status = now,
                                 .substatus = substatus_of(v),
                                 .started_us = v->info.started_us,
                                 .completed_us = run_is_final(now) ? v->info.ended_us : 0};
    return message_of(v, arena, &out->message, err);
}

static status see_end(void *context, const struct event_record *rec, bool *stop,
                      struct error *err) {
    UNUSED(stop);
    struct viewing *v = context;
    yyjson_val *payload = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error ignored;
    if (rec->event.type != EVENT_RUN_FAILED || !rec->event.payload.ptr) return ST_OK;
    (void)!json_parse(rec->event.payload, limits, &v->scratch, &payload, &ignored);
    return see_run(v, rec, payload) ? ST_OK : no_memory(err);
}

/* A run that is over: its last event says why, and there may be very many before it. */
static status view_end(struct ledger *reader, struct arena *arena, struct run_view *view,
                       struct error *err) {
    struct viewing v = {.view = view, .arena = arena};
    if (view->info.head.status != RUN_FAILED) return ST_OK;
    arena_init(&v.scratch, SCRATCH_FIRST, SCRATCH_MAX);
    status st =
        ledger_walk_run(reader, &view->info, view->info.head.ended_seq - 1, see_end, &v, err);
    arena_release(&v.scratch);
    return st;
}

status status_snapshot(struct ledger *reader, str run_id, struct arena *arena,
                       struct run_snapshot *out, struct error *err) {
    struct run_view v = {0};
    status st = find_run(reader, run_id, arena, &v.info, err);
    if (st != ST_OK) return st;
    bool over = run_is_final(v.info.head.status);
    st = over ? view_end(reader, arena, &v, err) : fill_view(reader, arena, &v, err);
    return st == ST_OK ? snapshot_of(&v, arena, out, err) : st;
}

/* ---- the explanation ---- */

const char *wait_kind_name(enum wait_kind kind) {
    static const char *const names[WAIT_KIND_COUNT] = {
        [WAIT_FINISHED] = "finished",   [WAIT_NOBODY] = "nobody",
        [WAIT_ADMISSION] = "admission", [WAIT_LAUNCH_APPROVAL] = "launchApproval",
        [WAIT_PAUSED] = "paused",       [WAIT_WORKER] = "worker",
        [WAIT_TIMER] = "timer",         [WAIT_RETRY] = "retry",
        [WAIT_SIGNAL] = "signal",       [WAIT_APPROVAL] = "approval",
        [WAIT_EXECUTING] = "executing", [WAIT_EFFECT] = "effect",
        [WAIT_ENGINE] = "engine",       [WAIT_PROVIDER] = "provider"};
    ASSERT(kind < WAIT_KIND_COUNT);
    return names[kind];
}

struct explaining {
    struct explanation *to;
    const struct run_view *view;
    struct arena *arena;
    int64_t now_us;
    bool full; /* out of memory */
};

static struct wait *add(struct explaining *x, enum wait_kind kind, int64_t since_us) {
    struct wait *w = &x->to->waits[x->to->count++];
    *w = (struct wait){.kind = kind, .since_us = since_us};
    return w;
}

static int64_t earlier(int64_t a, int64_t b) { return a > 0 && (b == 0 || a < b) ? a : b; }

static void explain_task(struct explaining *x, const struct step_view *s, struct wait *w) {
    w->kind = WAIT_WORKER;
    w->on = s->queue;
    w->until_us = s->timeout_us;
    if (s->leases == 0 || s->lease_us < s->started_us) {
        w->detail = STR("no worker has taken it yet");
        return;
    }
    char until[TIME_TEXT_MAX];
    size_t n = time_format_us(s->lease_until_us, until);
    bool over = s->lease_until_us <= x->now_us; /* heartbeats are not recorded */
    x->full =
        x->full || !say(x->arena, &w->detail, "worker \"%.*s\" took it with a lease until %.*s%s",
                        STR_ARG(s->worker), (int)n, until,
                        over ? ", which is over unless it was renewed" : "");
}

static void explain_open(struct explaining *x, const struct step_view *s) {
    struct wait *w = add(x, WAIT_EXECUTING, s->started_us);
    w->step = s->id;
    if (str_eq(s->type, STR("task"))) {
        explain_task(x, s, w);
    } else if (str_eq(s->type, STR("sleep"))) {
        w->kind = WAIT_TIMER;
        w->until_us = earlier(s->due_us, s->timeout_us);
    } else if (str_eq(s->type, STR("wait"))) {
        w->kind = WAIT_SIGNAL;
        w->on = s->signal;
        w->until_us = s->timeout_us;
    } else if (str_eq(s->type, STR("approval"))) {
        w->kind = WAIT_APPROVAL;
        w->until_us = earlier(s->due_us, s->timeout_us);
    } else {
        bool effect = str_eq(s->type, STR("effect"));
        if (effect) w->kind = WAIT_EFFECT;
        bool here = !x->view->adapter.ptr || str_eq(x->view->adapter, STR("local"));
        w->on = effect ? s->effect_type : here ? x->view->lease.node : x->view->adapter;
        x->full =
            x->full || !say(x->arena, &w->detail, "attempt %lld of its %.*s", (long long)s->attempt,
                            STR_ARG(s->type.ptr ? s->type : STR("step")));
    }
}

static void explain_retry(struct explaining *x, const struct step_view *s) {
    struct wait *w = add(x, WAIT_RETRY, s->ended_us);
    w->step = s->id;
    w->until_us = s->retry_us;
    x->full = x->full || !say(x->arena, &w->detail, "attempt %lld failed%s%.*s",
                              (long long)s->attempt, s->code.ptr ? " with " : "", STR_ARG(s->code));
}

static void explain_before_start(struct explaining *x) {
    const struct run_view *v = x->view;
    if (v->info.head.status == RUN_PENDING && v->queued_reason.ptr &&
        str_eq(v->queued_reason, STR("approval"))) {
        add(x, WAIT_LAUNCH_APPROVAL, v->queued_us);
        return;
    }
    int64_t since = v->approved_us > 0 ? v->approved_us : v->queued_us;
    if (v->queued_reason.ptr && str_eq(v->queued_reason, STR("provider"))) {
        struct wait *p = add(x, WAIT_PROVIDER, since);
        p->on = v->adapter;
        p->detail = STR("the run begins when it has been taken there");
        return;
    }
    struct wait *w = add(x, WAIT_ADMISSION, since);
    w->detail = STR("as many runs are active as may be");
}

static void explain_node(struct explaining *x) {
    const struct run_view *v = x->view;
    if (v->lease.held && v->lease.alive) return;
    /* Without work due now, a node that restarted has no reason yet to look at the run. */
    if (v->lease.held && v->lease.wake_us > x->now_us) return;
    struct wait *w = add(x, WAIT_NOBODY, 0);
    w->on = v->lease.node;
    w->detail = v->lease.held ? STR("its node is not at work, or has not taken it up yet")
                              : STR("no engine carries it out: its events come from elsewhere");
}

static void explain_all(struct explaining *x) {
    const struct run_view *v = x->view;
    enum run_status now = v->info.head.status;
    if (run_is_final(now)) {
        struct wait *w = add(x, WAIT_FINISHED, v->info.ended_us);
        w->detail = x->to->snapshot.message;
        return;
    }
    explain_node(x);
    if (now < RUN_RUNNING) {
        explain_before_start(x);
        return;
    }
    if (now == RUN_PAUSED) add(x, WAIT_PAUSED, v->paused_us);
    for (uint32_t i = 0; i < v->run.step_count; i++) {
        const struct step_view *s = &v->steps[i];
        if (s->state == STEP_RUNNING) explain_open(x, s);
        if (is_retrying(s)) explain_retry(x, s);
    }
    if (x->to->count == 0) add(x, WAIT_ENGINE, v->info.updated_us);
}

status explain_run(struct ledger *reader, str run_id, int64_t now_us, struct arena *arena,
                   struct explanation *out, struct error *err) {
    struct run_view v;
    struct explaining x = {.to = out, .view = &v, .arena = arena, .now_us = now_us};
    *out = (struct explanation){0};
    status st = run_view_load(reader, run_id, arena, &v, err);
    if (st == ST_OK) st = snapshot_of(&v, arena, &out->snapshot, err);
    if (st != ST_OK) return st;
    size_t cap = (size_t)v.run.step_count + 3; /* a step waits once; node, pause, engine */
    out->waits = arena_try(arena, cap * sizeof(*out->waits));
    if (!out->waits) return no_memory(err);
    explain_all(&x);
    ASSERT(out->count <= cap);
    out->node = v.lease.held ? v.lease.node : STR_NONE;
    out->alive = v.lease.alive;
    out->wakes = v.lease.held && v.lease.wake_us != CLAIM_NEVER;
    out->wake_us = out->wakes ? v.lease.wake_us : 0;
    return x.full ? no_memory(err) : ST_OK;
}
