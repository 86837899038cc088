/* core/decide.c: what comes next. Each decision is an event, and is applied as it is made, so that
 * the next decision sees it. */
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"
#include "core/flow_impl.h"

enum { FAILED_NAMES_MAX = 10, BATCH_CAP_FIRST = 8, RESERVE = 8 };

static status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "decide: out of memory");
}

void flow_batch_init(struct flow_batch *batch, struct arena *arena) {
    *batch = (struct flow_batch){.arena = arena};
}

/* ---- emitting ---- */

static status batch_add(struct flow_batch *b, const struct flow_event *item, struct error *err) {
    if (b->count == b->cap) {
        uint32_t cap = b->cap == 0 ? BATCH_CAP_FIRST : b->cap * 2;
        struct flow_event *items = arena_try_raw(b->arena, cap * sizeof(*items));
        if (!items) return no_memory(err);
        if (b->count > 0) memcpy(items, b->items, b->count * sizeof(*items));
        b->items = items;
        b->cap = cap;
    }
    b->items[b->count++] = *item;
    return ST_OK;
}

/* Guards, applies, and adds to the batch. A refusal of the guard is a bug of ours: the flow stops
 * emitting, and the shell says so. */
static status emit(struct flow *f, const struct flow_event *item, int64_t now_us,
                   struct flow_batch *b, struct error *err) {
    struct event_record rec = {.event = f->ids, .seq = f->run.head.last_seq + 1};
    struct event *e = &rec.event;
    const struct event_type_info *info = event_type_info(item->type);
    e->type = item->type;
    e->type_name = info->name;
    e->subject = item->step != FLOW_NO_STEP ? f->plan->steps[item->step].id : item->subject;
    e->logical_attempt = item->attempt;
    e->emitted_ns = now_us * 1000;
    e->payload = item->payload;
    rec.actor = item->actor;
    if (!event_type_is_fact(e->type)) rec.run_seq = f->run.head.run_seq + 1;
    if (f->stuck) return ST_OK;
    if (!run_guard(&f->run, e, &f->why_stuck)) {
        f->stuck = true;
        return ST_OK;
    }
    status st = flow_apply(f, &rec, err);
    if (st != ST_OK) return st;
    struct flow_event copy = *item;
    copy.subject = e->subject;
    return batch_add(b, &copy, err);
}

static status emit_step(struct flow *f, enum event_type type, uint32_t step, int64_t attempt,
                        str payload, str actor, int64_t now_us, struct flow_batch *b,
                        struct error *err) {
    struct flow_event item = {
        .type = type, .step = step, .attempt = attempt, .payload = payload, .actor = actor};
    return emit(f, &item, now_us, b, err);
}

static status emit_run(struct flow *f, enum event_type type, int64_t attempt, str payload,
                       str actor, int64_t now_us, struct flow_batch *b, struct error *err) {
    struct flow_event item = {
        .type = type, .step = FLOW_NO_STEP, .attempt = attempt, .payload = payload, .actor = actor};
    return emit(f, &item, now_us, b, err);
}

static status emit_fact(struct flow *f, enum event_type type, str subject, int64_t occurrence,
                        str data, str actor, int64_t now_us, struct flow_batch *b,
                        struct error *err) {
    struct flow_event item = {.type = type,
                              .step = FLOW_NO_STEP,
                              .subject = subject,
                              .attempt = occurrence,
                              .payload = data,
                              .actor = actor};
    return emit(f, &item, now_us, b, err);
}

/* ---- payloads ---- */

struct payload { /* a JSON object under construction; its text goes to the batch's arena */
    struct buf buf;
};

static void payload_open(struct payload *p) {
    buf_init(&p->buf, EVENT_BYTES_MAX);
    buf_put_char(&p->buf, '{');
}

static void payload_name(struct payload *p, const char *name) {
    buf_printf(&p->buf, "%s\"%s\":", p->buf.len > 1 ? "," : "", name);
}

static void payload_text(struct payload *p, const char *name, str value) {
    if (!value.ptr) return;
    payload_name(p, name);
    buf_put_json_str(&p->buf, value);
}

static void payload_json(struct payload *p, const char *name, str json) {
    if (!json.ptr) return;
    payload_name(p, name);
    buf_put(&p->buf, json);
}

static void payload_int(struct payload *p, const char *name, int64_t value) {
    payload_name(p, name);
    buf_put_int(&p->buf, value);
}

static void payload_time(struct payload *p, const char *name, int64_t us) {
    char text[TIME_TEXT_MAX];
    if (us == FLOW_NEVER) return;
    payload_name(p, name);
    buf_put_json_str(&p->buf, str_n(text, time_format_us(us, text)));
}

static status payload_close(struct payload *p, struct flow_batch *b, str *out, struct error *err) {
    buf_put_char(&p->buf, '}');
    bool kept = !p->buf.full && arena_try_str(b->arena, buf_str(&p->buf), out);
    buf_release(&p->buf);
    return kept ? ST_OK : no_memory(err);
}

static int64_t time_after(int64_t now_us, int64_t ms) {
    return ms <= 0 ? FLOW_NEVER : now_us + ms * 1000;
}

/* ---- signals ---- */

static str signal_ref(const struct flow_signal *s) { return str_n(s->id, UUID_TEXT_LEN); }

/* The signal is gone from the flow afterwards: copy what is still needed. */
static status end_signal(struct flow *f, const struct flow_signal *s, const char *error,
                         const char *message, int64_t now_us, struct flow_batch *b,
                         struct error *err) {
    struct payload p;
    str data = STR_NONE;
    str id = STR_NONE;
    if (!arena_try_str(b->arena, signal_ref(s), &id)) return no_memory(err);
    payload_open(&p);
    payload_text(&p, "signal_id", id);
    payload_text(&p, "run_id", f->ids.run_id);
    if (error) payload_text(&p, "reason", str_c(error));
    if (message) payload_text(&p, "message", str_c(message));
    status st = payload_close(&p, b, &data, err);
    if (st != ST_OK) return st;
    return emit_fact(f, error ? EVENT_SIGNAL_PROCESSING_FAILED : EVENT_SIGNAL_PROCESSED, id, 1,
                     data, STR_NONE, now_us, b, err);
}

/* The payload of an event that a signal brought about. */
static status signal_payload(const struct flow_signal *s, struct flow_batch *b, str *out,
                             struct error *err) {
    struct payload p;
    payload_open(&p);
    payload_text(&p, "signalId", s->signal.signal_id.ptr ? s->signal.signal_id : signal_ref(s));
    payload_text(&p, "reason", s->signal.reason);
    return payload_close(&p, b, out, err);
}

static bool is_open(const struct flow *f, uint32_t i, enum plan_type type) {
    return f->steps[i].phase == FLOW_OPEN && f->plan->steps[i].type == type;
}

/* The open approval step that the signal is about; FLOW_NO_STEP if there is none, or several. */
static uint32_t approval_step(const struct flow *f, const struct signal *s) {
    if (s->step_id.ptr) {
        int64_t i = plan_find(f->plan, s->step_id);
        return i >= 0 && is_open(f, (uint32_t)i, PLAN_APPROVAL) ? (uint32_t)i : FLOW_NO_STEP;
    }
    uint32_t found = FLOW_NO_STEP;
    for (uint32_t i = 0; i < f->plan->step_count; i++) {
        if (!is_open(f, i, PLAN_APPROVAL)) continue;
        if (found != FLOW_NO_STEP) return FLOW_NO_STEP;
        found = i;
    }
    return found;
}

static bool awaits_approval(const struct flow *f) {
    return f->run.head.status == RUN_PENDING && f->needs_approval;
}

/* A failed step may be tried again as long as nothing was done on the strength of its failure. */
static bool may_retry(const struct flow *f, uint32_t i) {
    const struct flow_step *s = &f->steps[i];
    if (s->state != STEP_FAILED) return false;
    for (uint32_t k = 0; k < f->plan->step_count && f->failing; k++) { /* the run ends all the same */
        if (k != i && f->steps[k].phase == FLOW_SETTLED && f->steps[k].state == STEP_FAILED &&
            f->plan->steps[k].on_failure == PLAN_FAIL)
            return false;
    }
    if (s->phase != FLOW_SETTLED) return true;
    const struct plan_step *p = &f->plan->steps[i];
    for (uint32_t k = 0; k < p->dependent_count; k++) {
        if (f->steps[p->dependents[k]].state != STEP_PENDING) return false;
    }
    return true;
}

static status not_applicable(struct error *err, const char *what) {
    return error_at(err, ST_CONFLICT, "SIGNAL_NOT_APPLICABLE", "/signal", "%s", what);
}

/* Whether some step of the plan waits for it, now or later: any other name is a mistake. */
static bool is_awaited(const struct plan *plan, const struct signal *s) {
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *p = &plan->steps[i];
        if (p->type != PLAN_WAIT || !str_eq(p->signal, s->name)) continue;
        if (!s->step_id.ptr || str_eq(s->step_id, p->id)) return true;
    }
    return false;
}

status flow_signal_check(const struct flow *f, const struct signal *s, bool *nothing_to_do,
                         struct error *err) {
    enum run_status now = f->run.head.status;
    *nothing_to_do = false;
    if (run_is_final(now)) {
        *nothing_to_do = s->kind == SIGNAL_CANCEL;
        if (*nothing_to_do) return ST_OK;
        return error_at(err, ST_CONFLICT, "RUN_FINISHED", "", "the run is %s",
                        run_status_name(now));
    }
    if (s->step_id.ptr && plan_find(f->plan, s->step_id) < 0)
        return error_at(err, ST_NOT_FOUND, "STEP_NOT_FOUND", "/stepId",
                        "the plan has no step \"%.*s\"", STR_ARG(s->step_id));
    if (f->signal_count >= FLOW_SIGNALS_MAX)
        return error_at(err, ST_LIMIT, "SIGNALS_TOO_MANY", "",
                        "%d signals wait to be processed already", FLOW_SIGNALS_MAX);
    switch (s->kind) {
    case SIGNAL_PAUSE:
        if (now != RUN_RUNNING) return not_applicable(err, "only a RUNNING run can be paused");
        break;
    case SIGNAL_RESUME:
        if (now != RUN_PAUSED) return not_applicable(err, "the run is not PAUSED");
        break;
    case SIGNAL_RETRY_STEP:
        if (!may_retry(f, (uint32_t)plan_find(f->plan, s->step_id)))
            return not_applicable(err, "the step has not FAILED, or others went on because it did");
        break;
    case SIGNAL_APPROVE:
    case SIGNAL_REJECT:
        if (!awaits_approval(f) && approval_step(f, s) == FLOW_NO_STEP)
            return not_applicable(err, "nothing waits for approval, or several steps do: name one");
        break;
    case SIGNAL_NAMED:
        if (!is_awaited(f->plan, s))
            return error_at(err, ST_INVALID, "SIGNAL_UNKNOWN", "/signal",
                            "no step of the plan waits for a signal \"%.*s\"", STR_ARG(s->name));
        break;
    case SIGNAL_CANCEL:
    case SIGNAL_LAUNCH:
    case SIGNAL_KIND_COUNT:
        break;
    }
    return ST_OK;
}

status flow_signal(struct flow *f, const struct signal *signal, uuid id, str actor, int64_t now_us,
                   struct flow_batch *b, struct error *err) {
    struct buf data;
    char text[UUID_TEXT_LEN];
    str kept = STR_NONE;
    str subject = STR_NONE;
    uuid_format(id, text);
    buf_init(&data, EVENT_BYTES_MAX);
    signal_json(signal, id, &data);
    bool ok = !data.full && arena_try_str(b->arena, buf_str(&data), &kept) &&
              arena_try_str(b->arena, str_n(text, sizeof(text)), &subject);
    buf_release(&data);
    if (!ok) return no_memory(err);
    return emit_fact(f, EVENT_SIGNAL_RECEIVED, subject, 1, kept, actor, now_us, b, err);
}

static status pause_or_resume(struct flow *f, const struct flow_signal *s, int64_t now_us,
                              struct flow_batch *b, struct error *err) {
    const struct run_head *head = &f->run.head;
    bool pause = s->signal.kind == SIGNAL_PAUSE;
    if (head->status != (pause ? RUN_RUNNING : RUN_PAUSED))
        return end_signal(f, s, "NOT_APPLICABLE", run_status_name(head->status), now_us, b, err);
    str payload = STR_NONE;
    str actor = s->actor;
    status st = signal_payload(s, b, &payload, err);
    if (st != ST_OK) return st;
    /* T12: the n-th pause carries n, or its key would equal the first one's. */
    st = emit_run(f, pause ? EVENT_RUN_PAUSED : EVENT_RUN_RESUMED,
                  (pause ? head->pauses : head->resumes) + 1, payload, actor, now_us, b, err);
    return st == ST_OK ? end_signal(f, s, NULL, NULL, now_us, b, err) : st;
}

static status fail_step(struct flow *f, uint32_t step, const char *code, const char *message,
                        str actor, int64_t now_us, struct flow_batch *b, struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    payload_open(&p);
    payload_text(&p, "stepType", str_c(plan_type_name(f->plan->steps[step].type)));
    payload_text(&p, "code", str_c(code));
    payload_text(&p, "message", str_c(message));
    status st = payload_close(&p, b, &payload, err);
    if (st != ST_OK) return st;
    return emit_step(f, EVENT_STEP_FAILED, step, f->steps[step].attempt, payload, actor, now_us, b,
                     err);
}

static status complete_step(struct flow *f, uint32_t step, str output, str actor, int64_t now_us,
                            struct flow_batch *b, struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    payload_open(&p);
    payload_text(&p, "stepType", str_c(plan_type_name(f->plan->steps[step].type)));
    payload_json(&p, "output", output);
    status st = payload_close(&p, b, &payload, err);
    if (st != ST_OK) return st;
    return emit_step(f, EVENT_STEP_COMPLETED, step, f->steps[step].attempt, payload, actor, now_us,
                     b, err);
}

static status approve_or_reject(struct flow *f, const struct flow_signal *s, int64_t now_us,
                                struct flow_batch *b, struct error *err) {
    bool yes = s->signal.kind == SIGNAL_APPROVE;
    str payload = STR_NONE;
    status st = signal_payload(s, b, &payload, err);
    if (st != ST_OK) return st;
    if (awaits_approval(f) && !s->signal.step_id.ptr) {
        st = emit_run(f, yes ? EVENT_RUN_APPROVED : EVENT_RUN_CANCELLED, 1, payload, s->actor,
                      now_us, b, err);
        return st == ST_OK ? end_signal(f, s, NULL, NULL, now_us, b, err) : st;
    }
    uint32_t step = approval_step(f, &s->signal);
    if (step == FLOW_NO_STEP)
        return end_signal(f, s, "NOT_APPLICABLE", "nothing waits for it", now_us, b, err);
    if (!yes) {
        st = fail_step(f, step, "APPROVAL_REJECTED", "the approval was refused", s->actor, now_us,
                       b, err);
    } else {
        struct payload p;
        str output = STR_NONE;
        payload_open(&p);
        payload_text(&p, "decision", STR("approved"));
        payload_text(&p, "by", s->actor);
        payload_text(&p, "reason", s->signal.reason);
        payload_json(&p, "payload", s->signal.payload);
        st = payload_close(&p, b, &output, err);
        if (st == ST_OK) st = complete_step(f, step, output, s->actor, now_us, b, err);
    }
    return st == ST_OK ? end_signal(f, s, NULL, NULL, now_us, b, err) : st;
}

static status retry_at(struct flow *f, uint32_t step, int64_t delay_ms, const char *why, str actor,
                       int64_t now_us, struct flow_batch *b, struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    payload_open(&p);
    payload_text(&p, "reason", str_c(why));
    payload_text(&p, "after", f->steps[step].code);
    payload_int(&p, "delayMs", delay_ms);
    payload_time(&p, "retryAt", now_us + delay_ms * 1000);
    status st = payload_close(&p, b, &payload, err);
    if (st != ST_OK) return st;
    return emit_step(f, EVENT_STEP_RETRIED, step, f->steps[step].attempt + 1, payload, actor,
                     now_us, b, err);
}

static status retry_step(struct flow *f, const struct flow_signal *s, int64_t now_us,
                         struct flow_batch *b, struct error *err) {
    int64_t step = plan_find(f->plan, s->signal.step_id);
    if (step < 0 || !may_retry(f, (uint32_t)step))
        return end_signal(f, s, "NOT_APPLICABLE", "the step cannot be retried now", now_us, b, err);
    status st = ST_OK;
    if (f->steps[step].phase != FLOW_BACKOFF && f->steps[step].phase != FLOW_READY)
        st = retry_at(f, (uint32_t)step, 0, "signal", s->actor, now_us, b, err);
    /* Else the retry is recorded already: as the end of the signal is applied, its wait ends. */
    return st == ST_OK ? end_signal(f, s, NULL, NULL, now_us, b, err) : st;
}

/* A named signal is kept until a wait step asks for it. *taken: it was used now. */
static status give_to_wait(struct flow *f, const struct flow_signal *s, int64_t now_us,
                           struct flow_batch *b, bool *taken, struct error *err) {
    *taken = false;
    for (uint32_t i = 0; i < f->plan->step_count && f->waits > 0; i++) {
        if (!is_open(f, i, PLAN_WAIT) || !str_eq(f->plan->steps[i].signal, s->signal.name))
            continue;
        if (s->signal.step_id.ptr && !str_eq(s->signal.step_id, f->plan->steps[i].id)) continue;
        *taken = true;
        status st = complete_step(f, i, s->signal.payload, s->actor, now_us, b, err);
        return st == ST_OK ? end_signal(f, s, NULL, NULL, now_us, b, err) : st;
    }
    return ST_OK;
}

/* One signal; *done: it is no longer pending. */
static status process_signal(struct flow *f, uint32_t index, int64_t now_us, struct flow_batch *b,
                             bool *done, struct error *err) {
    struct flow_signal s = f->signals[index]; /* a copy: ending it moves the others */
    *done = true;
    switch (s.signal.kind) {
    case SIGNAL_PAUSE:
    case SIGNAL_RESUME:
        return pause_or_resume(f, &s, now_us, b, err);
    case SIGNAL_APPROVE:
    case SIGNAL_REJECT:
        return approve_or_reject(f, &s, now_us, b, err);
    case SIGNAL_RETRY_STEP:
        return retry_step(f, &s, now_us, b, err);
    case SIGNAL_NAMED:
        return give_to_wait(f, &s, now_us, b, done, err);
    case SIGNAL_CANCEL:
        f->cancelling = true; /* ends with the run */
        *done = false;
        return ST_OK;
    case SIGNAL_LAUNCH:
    case SIGNAL_KIND_COUNT:
        break;
    }
    *done = false;
    return ST_OK;
}

static status decide_signals(struct flow *f, int64_t now_us, struct flow_batch *b,
                             struct error *err) {
    uint32_t i = 0;
    while (i < f->signal_count && !f->stuck && !run_is_final(f->run.head.status)) {
        bool done = false;
        uint32_t before = f->signal_count;
        status st = process_signal(f, i, now_us, b, &done, err);
        if (st != ST_OK) return st;
        if (!done) i++;
        else if (f->signal_count == before) return ST_OK; /* stuck */
    }
    return ST_OK;
}

/* ---- the end of a run ---- */

/* Nothing stays open: the launch ends with the run, other signals find it finished. */
static status end_all_signals(struct flow *f, int64_t now_us, struct flow_batch *b,
                              struct error *err) {
    enum run_status now = f->run.head.status;
    while (f->signal_count > 0 && !f->stuck) {
        const struct flow_signal *s = &f->signals[0];
        const char *why = "RUN_FINISHED";
        if (s->signal.kind == SIGNAL_CANCEL && now == RUN_CANCELLED) why = NULL;
        if (s->signal.kind == SIGNAL_LAUNCH)
            why = now == RUN_COMPLETED ? NULL : now == RUN_FAILED ? "failed" : "cancelled";
        status st = end_signal(f, s, why, NULL, now_us, b, err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static status finish(struct flow *f, enum event_type type, str payload, str actor, int64_t now_us,
                     struct flow_batch *b, struct error *err) {
    status st = emit_run(f, type, 1, payload, actor, now_us, b, err);
    return st == ST_OK ? end_all_signals(f, now_us, b, err) : st;
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

static status ask_to_stop(struct flow *f, uint32_t step, struct flow_batch *b, struct error *err) {
    if (f->steps[step].stopping) return ST_OK;
    f->steps[step].stopping = true;
    if (b->stop_count == b->stop_cap) {
        uint32_t cap = b->stop_cap == 0 ? BATCH_CAP_FIRST : b->stop_cap * 2;
        uint32_t *stops = arena_try_raw(b->arena, cap * sizeof(*stops));
        if (!stops) return no_memory(err);
        if (b->stop_count > 0) memcpy(stops, b->stops, b->stop_count * sizeof(*stops));
        b->stops = stops;
        b->stop_cap = cap;
    }
    b->stops[b->stop_count++] = step;
    return ST_OK;
}

static bool is_executed(const struct flow *f, uint32_t i) {
    enum plan_type type = f->plan->steps[i].type;
    return type == PLAN_EXEC || type == PLAN_HTTP;
}

/* Ends what is open: what nobody executes at once, and with `all` the executor's attempts too, whose
 * answers we then wait for. */
static status end_open_steps(struct flow *f, bool all, const char *code, const char *message,
                             int64_t now_us, struct flow_batch *b, struct error *err) {
    status st = ST_OK;
    if (f->open == 0 || (!all && f->open == f->executing)) return ST_OK;
    for (uint32_t i = 0; i < f->plan->step_count && st == ST_OK; i++) {
        if (f->steps[i].phase != FLOW_OPEN) continue;
        if (!is_executed(f, i)) st = fail_step(f, i, code, message, STR_NONE, now_us, b, err);
        else if (all) st = ask_to_stop(f, i, b, err);
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
        st = signal_payload(cancel, b, &payload, err);
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
    return emit_run(f, EVENT_RUN_STARTED, 1, payload, STR_NONE, now->us, b, err);
}

static status decide_start(struct flow *f, const struct flow_now *now, struct flow_batch *b,
                           struct error *err) {
    enum run_status at = f->run.head.status;
    if (at == RUN_NEW && f->needs_approval)
        return emit_run(f, EVENT_RUN_QUEUED, 1, STR("{\"reason\":\"approval\"}"), STR("admission"),
                        now->us, b, err);
    if (at == RUN_PENDING && f->needs_approval) return ST_OK;
    if (now->may_start) return start_run(f, now, b, err);
    if (at != RUN_NEW) return ST_OK;
    return emit_run(f, EVENT_RUN_QUEUED, 1, STR("{\"reason\":\"admission\"}"), STR("admission"),
                    now->us, b, err);
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
        return complete_step(f, step, STR_NONE, STR_NONE, now_us, b, err);
    case PLAN_APPROVAL:
        return fail_step(f, step, "APPROVAL_EXPIRED", "nobody decided in time", STR_NONE, now_us, b,
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
    return fail_step(f, step, "TIMEOUT", "the attempt took too long", STR_NONE, now_us, b, err);
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
        status st = retry_at(f, step, ms, "policy", STR_NONE, now_us, b, err);
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
    return emit_step(f, EVENT_STEP_SKIPPED, step, f->steps[step].attempt + 1, payload, STR_NONE,
                     now_us, b, err);
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
    status st = payload_close(&out, b, &payload, err);
    if (st != ST_OK) return st;
    st = emit_step(f, EVENT_STEP_STARTED, step, f->steps[step].attempt + 1, payload, STR_NONE,
                   now_us, b, err);
    if (st != ST_OK || bad == ST_OK || f->stuck) return st;
    return fail_step(f, step, "TEMPLATE_FAILED", why.msg, STR_NONE, now_us, b, err);
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
        return fail_step(f, step, "TEMPLATE_FAILED", "runIf could not be evaluated", STR_NONE,
                         now_us, b, err);
    if (f->plan->steps[step].type == PLAN_NOOP)
        return complete_step(f, step, STR_NONE, STR_NONE, now_us, b, err);
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

static status decide_running(struct flow *f, const struct flow_now *now, struct flow_batch *b,
                             struct error *err) {
    uint32_t settled = 0;
    for (;;) {
        uint32_t before = b->count;
        status st = decide_timers(f, now->us, b, err);
        if (st == ST_OK) st = decide_signals(f, now->us, b, err);
        if (st == ST_OK && !f->cancelling) st = decide_failures(f, now->us, b, err);
        if (st == ST_OK && !f->cancelling) st = begin_ready(f, now, b, &settled, err);
        if (st != ST_OK) return st;
        if (f->stuck || b->more || f->cancelling || run_is_final(f->run.head.status)) break;
        if (b->count == before) break; /* nothing more can be decided now */
    }
    if (f->stuck || b->more || run_is_final(f->run.head.status)) return ST_OK;
    if (f->cancelling) return decide_cancel(f, now->us, b, err);
    if (f->run.head.status != RUN_RUNNING) return ST_OK;
    if (f->failing) {
        status st = end_open_steps(f, false, "ABANDONED", "another step failed", now->us, b, err);
        if (st == ST_OK) st = decide_failures(f, now->us, b, err);
        if (st != ST_OK || f->open > 0) return st;
        return finish_failed(f, now->us, b, err);
    }
    if (f->settled < f->plan->step_count) return ST_OK;
    if (f->failed > 0) return finish_failed(f, now->us, b, err);
    return finish(f, EVENT_RUN_COMPLETED, STR_NONE, STR_NONE, now->us, b, err);
}

status flow_decide(struct flow *f, const struct flow_now *now, struct flow_batch *b,
                   struct error *err) {
    if (f->stuck || run_is_final(f->run.head.status)) return ST_OK;
    status st = decide_signals(f, now->us, b, err);
    if (st != ST_OK || f->stuck) return st;
    if (run_is_final(f->run.head.status)) /* an approval was refused */
        return end_all_signals(f, now->us, b, err);
    if (f->run.head.status < RUN_RUNNING) {
        if (f->cancelling) {
            if (f->run.head.status == RUN_NEW) /* cancelled before it was even queued */
                st = emit_run(f, EVENT_RUN_QUEUED, 1, STR("{\"reason\":\"cancelled\"}"),
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
    return emit_step(f, ok ? EVENT_STEP_COMPLETED : EVENT_STEP_FAILED, step, attempt, payload,
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
    return emit_fact(f, EVENT_TOOL_CALLED, f->plan->steps[step].id, number, data, worker, now_us, b,
                     err);
}

status flow_launch(struct flow *f, str data, uuid id, str actor, int64_t now_us,
                   struct flow_batch *b, struct error *err) {
    char text[UUID_TEXT_LEN];
    str subject = STR_NONE;
    uuid_format(id, text);
    if (!arena_try_str(b->arena, str_n(text, sizeof(text)), &subject)) return no_memory(err);
    return emit_fact(f, EVENT_SIGNAL_RECEIVED, subject, 1, data, actor, now_us, b, err);
}

status flow_recover(struct flow *f, int64_t engine_attempt, str node, int64_t now_us,
                    struct flow_batch *b, struct error *err) {
    struct payload p;
    str payload = STR_NONE;
    f->ids.engine_attempt = engine_attempt;
    payload_open(&p);
    payload_text(&p, "node", node);
    status st = payload_close(&p, b, &payload, err);
    if (st != ST_OK) return st;
    return emit_run(f, EVENT_RUN_RECOVERED, engine_attempt, payload, STR_NONE, now_us, b, err);
}
