/* core/decide_signals.c: what signals bring about.
 *
 * A signal is checked before it is accepted, recorded as SignalReceived, and pending from then on.
 * Picking it up is recorded, too: SignalProcessingStarted. It ends as it takes effect, or finds
 * that it no longer can; a named one waits for its step, a cancel and the launch for the end of the
 * run. */
#include "base/limits.h"
#include "core/flow_impl.h"

static status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "decide: out of memory");
}

/* ---- whether it applies ---- */

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
    for (uint32_t k = 0; k < f->plan->step_count && f->failing;
         k++) { /* the run ends all the same */
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
    return error_at(err, REASON_SIGNAL_NOT_APPLICABLE, "/signal", "%s", what);
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
        return error_at(err, REASON_RUN_FINISHED, "", "the run is %s", run_status_name(now));
    }
    if (s->step_id.ptr && plan_find(f->plan, s->step_id) < 0)
        return error_at(err, REASON_STEP_NOT_FOUND, "/stepId", "the plan has no step \"%.*s\"",
                        STR_ARG(s->step_id));
    if (f->signal_count >= FLOW_SIGNALS_MAX)
        return error_at(err, REASON_SIGNALS_TOO_MANY, "", "%d signals wait to be processed already",
                        FLOW_SIGNALS_MAX);
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
            return error_at(err, REASON_SIGNAL_UNKNOWN, "/signal",
                            "no step of the plan waits for a signal \"%.*s\"", STR_ARG(s->name));
        break;
    case SIGNAL_CANCEL:
    case SIGNAL_LAUNCH:
    case SIGNAL_KIND_COUNT:
        break;
    }
    return ST_OK;
}

/* ---- its beginning and its end ---- */

status flow_signal(const struct decision *d, const struct signal *signal, uuid id, str actor,
                   struct error *err) {
    struct buf data;
    char text[UUID_TEXT_LEN];
    str kept = STR_NONE;
    str subject = STR_NONE;
    uuid_format(id, text);
    buf_init(&data, EVENT_BYTES_MAX);
    signal_json(signal, id, &data);
    bool ok = !data.full && arena_try_str(d->batch->arena, buf_str(&data), &kept) &&
              arena_try_str(d->batch->arena, str_n(text, sizeof(text)), &subject);
    buf_release(&data);
    if (!ok) return no_memory(err);
    struct flow_event item = {.type = EVENT_SIGNAL_RECEIVED,
                              .step = FLOW_NO_STEP,
                              .subject = subject,
                              .attempt = 1,
                              .payload = kept,
                              .actor = actor};
    return flow_emit(d, &item, err);
}

status flow_launch(const struct decision *d, str data, uuid id, str actor, struct error *err) {
    char text[UUID_TEXT_LEN];
    str subject = STR_NONE;
    uuid_format(id, text);
    if (!arena_try_str(d->batch->arena, str_n(text, sizeof(text)), &subject)) return no_memory(err);
    struct flow_event item = {.type = EVENT_SIGNAL_RECEIVED,
                              .step = FLOW_NO_STEP,
                              .subject = subject,
                              .attempt = 1,
                              .payload = data,
                              .actor = actor};
    return flow_emit(d, &item, err);
}

static str signal_ref(const struct flow_signal *s) { return str_n(s->id, UUID_TEXT_LEN); }

/* The engine has picked it up: told once, before anything that it brings about. */
static status begin_signal(const struct decision *d, const struct flow_signal *s,
                           struct error *err) {
    struct buf p;
    str data = STR_NONE;
    str id = STR_NONE;
    if (!arena_try_str(d->batch->arena, signal_ref(s), &id)) return no_memory(err);
    payload_open(&p);
    json_put_text(&p, "signal_id", id);
    json_put_text(&p, "run_id", d->flow->ids.run_id);
    status st = payload_close(&p, d, &data, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = EVENT_SIGNAL_PROCESSING_STARTED,
                              .step = FLOW_NO_STEP,
                              .subject = id,
                              .attempt = 1,
                              .payload = data};
    return flow_emit(d, &item, err);
}

/* The signal is gone from the flow afterwards: copy what is still needed. */
static status end_signal(const struct decision *d, const struct flow_signal *s, const char *error,
                         const char *message, struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    str data = STR_NONE;
    str id = STR_NONE;
    if (!arena_try_str(d->batch->arena, signal_ref(s), &id)) return no_memory(err);
    payload_open(&p);
    json_put_text_if(&p, "signal_id", id);
    json_put_text_if(&p, "run_id", f->ids.run_id);
    if (error) json_put_text_if(&p, "reason", str_c(error));
    if (message) json_put_text_if(&p, "message", str_c(message));
    status st = payload_close(&p, d, &data, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type =
                                  error ? EVENT_SIGNAL_PROCESSING_FAILED : EVENT_SIGNAL_PROCESSED,
                              .step = FLOW_NO_STEP,
                              .subject = id,
                              .attempt = 1,
                              .payload = data};
    return flow_emit(d, &item, err);
}

status flow_signal_payload(const struct decision *d, const struct flow_signal *s, str *out,
                           struct error *err) {
    struct buf p;
    payload_open(&p);
    json_put_text_if(&p, "signalId", s->signal.signal_id.ptr ? s->signal.signal_id : signal_ref(s));
    json_put_text_if(&p, "reason", s->signal.reason);
    return payload_close(&p, d, out, err);
}

status flow_end_all_signals(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    enum run_status now = f->run.head.status;
    while (f->signal_count > 0 && !f->stuck) {
        const struct flow_signal *s = &f->signals[0];
        const char *why = "RUN_FINISHED";
        if (s->signal.kind == SIGNAL_CANCEL && now == RUN_CANCELLED) why = NULL;
        if (s->signal.kind == SIGNAL_LAUNCH)
            why = now == RUN_COMPLETED ? NULL : now == RUN_FAILED ? "failed" : "cancelled";
        status st = end_signal(d, s, why, NULL, err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

/* ---- its effect ---- */

static status pause_or_resume(const struct decision *d, const struct flow_signal *s,
                              struct error *err) {
    struct flow *f = d->flow;
    const struct run_head *head = &f->run.head;
    bool pause = s->signal.kind == SIGNAL_PAUSE;
    if (head->status != (pause ? RUN_RUNNING : RUN_PAUSED))
        return end_signal(d, s, "NOT_APPLICABLE", run_status_name(head->status), err);
    str payload = STR_NONE;
    str actor = s->actor;
    status st = flow_signal_payload(d, s, &payload, err);
    if (st != ST_OK) return st;
    /* T12: the n-th pause carries n, or its key would equal the first one's. */
    st = flow_emit_run(d, pause ? EVENT_RUN_PAUSED : EVENT_RUN_RESUMED,
                       (pause ? head->pauses : head->resumes) + 1, payload, actor, err);
    return st == ST_OK ? end_signal(d, s, NULL, NULL, err) : st;
}

static status approve_or_reject(const struct decision *d, const struct flow_signal *s,
                                struct error *err) {
    struct flow *f = d->flow;
    bool yes = s->signal.kind == SIGNAL_APPROVE;
    str payload = STR_NONE;
    status st = flow_signal_payload(d, s, &payload, err);
    if (st != ST_OK) return st;
    if (awaits_approval(f) && !s->signal.step_id.ptr) {
        st = flow_emit_run(d, yes ? EVENT_RUN_APPROVED : EVENT_RUN_CANCELLED, 1, payload, s->actor,
                           err);
        return st == ST_OK ? end_signal(d, s, NULL, NULL, err) : st;
    }
    uint32_t step = approval_step(f, &s->signal);
    if (step == FLOW_NO_STEP)
        return end_signal(d, s, "NOT_APPLICABLE", "nothing waits for it", err);
    if (!yes) {
        st = flow_fail_step(d, step, REASON_APPROVAL_REJECTED, "the approval was refused", s->actor,
                            err);
    } else {
        struct buf p;
        str output = STR_NONE;
        payload_open(&p);
        json_put_text(&p, "decision", STR("approved"));
        json_put_text_if(&p, "by", s->actor);
        json_put_text_if(&p, "reason", s->signal.reason);
        json_put_json_if(&p, "payload", s->signal.payload);
        st = payload_close(&p, d, &output, err);
        if (st == ST_OK) st = flow_complete_step(d, step, output, s->actor, err);
    }
    return st == ST_OK ? end_signal(d, s, NULL, NULL, err) : st;
}

static status retry_step(const struct decision *d, const struct flow_signal *s, struct error *err) {
    struct flow *f = d->flow;
    int64_t step = plan_find(f->plan, s->signal.step_id);
    if (step < 0 || !may_retry(f, (uint32_t)step))
        return end_signal(d, s, "NOT_APPLICABLE", "the step cannot be retried now", err);
    status st = ST_OK;
    if (f->steps[step].phase != FLOW_BACKOFF && f->steps[step].phase != FLOW_READY)
        st = flow_retry_at(d, (uint32_t)step, 0, "signal", s->actor, err);
    /* Else the retry is recorded already: as the end of the signal is applied, its wait ends. */
    return st == ST_OK ? end_signal(d, s, NULL, NULL, err) : st;
}

/* A named signal is kept until a wait step asks for it. *taken: it was used now. */
static status give_to_wait(const struct decision *d, const struct flow_signal *s, bool *taken,
                           struct error *err) {
    struct flow *f = d->flow;
    *taken = false;
    for (uint32_t i = 0; i < f->plan->step_count && f->waits > 0; i++) {
        if (!is_open(f, i, PLAN_WAIT) || !str_eq(f->plan->steps[i].signal, s->signal.name))
            continue;
        if (s->signal.step_id.ptr && !str_eq(s->signal.step_id, f->plan->steps[i].id)) continue;
        *taken = true;
        status st = flow_complete_step(d, i, s->signal.payload, s->actor, err);
        return st == ST_OK ? end_signal(d, s, NULL, NULL, err) : st;
    }
    return ST_OK;
}

/* One signal; *done: it is no longer pending. */
static status process_signal(const struct decision *d, uint32_t index, bool *done,
                             struct error *err) {
    struct flow *f = d->flow;
    struct flow_signal s = f->signals[index]; /* a copy: ending it moves the others */
    *done = true;
    switch (s.signal.kind) {
    case SIGNAL_PAUSE:
    case SIGNAL_RESUME:
        return pause_or_resume(d, &s, err);
    case SIGNAL_APPROVE:
    case SIGNAL_REJECT:
        return approve_or_reject(d, &s, err);
    case SIGNAL_RETRY_STEP:
        return retry_step(d, &s, err);
    case SIGNAL_NAMED:
        return give_to_wait(d, &s, done, err);
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

status flow_decide_signals(const struct decision *d, struct error *err) {
    struct flow *f = d->flow;
    uint32_t i = 0;
    while (i < f->signal_count && !f->stuck && !run_is_final(f->run.head.status)) {
        bool done = false;
        uint32_t before = f->signal_count;
        status st = f->signals[i].begun ? ST_OK : begin_signal(d, &f->signals[i], err);
        if (st == ST_OK && !f->stuck) st = process_signal(d, i, &done, err);
        if (st != ST_OK) return st;
        if (!done)
            i++;
        else if (f->signal_count == before)
            return ST_OK; /* stuck */
    }
    return ST_OK;
}
