#include "model/model.h"

static bool text_is(str s, const char *c) { return str_eq(s, str_c(c)); }

/* ---- the tables of the contract ---- */

struct move {
    const char *type, *from[5], *to;
};
static const struct move run_moves[] = {
    {"RunQueued", {"NEW"}, "PENDING"},
    {"RunApproved", {"PENDING"}, "APPROVED"},
    {"RunStarted", {"NEW", "PENDING", "APPROVED"}, "RUNNING"},
    {"RunPaused", {"RUNNING"}, "PAUSED"},
    {"RunResumed", {"PAUSED"}, "RUNNING"},
    {"RunCompleted", {"RUNNING"}, "COMPLETED"},
    {"RunFailed", {"PENDING", "APPROVED", "RUNNING", "PAUSED"}, "FAILED"},
    {"RunCancelled", {"PENDING", "APPROVED", "RUNNING", "PAUSED"}, "CANCELLED"},
};
static const struct move step_moves[] = {
    {"StepStarted", {"PENDING"}, "RUNNING"},
    {"StepSkipped", {"PENDING"}, "SKIPPED"},
    {"StepCompleted", {"RUNNING"}, "SUCCESS"},
    {"StepFailed", {"RUNNING"}, "FAILED"},
};

static const struct move *find_move(const struct move *moves, size_t n, str type) {
    for (size_t i = 0; i < n; i++) {
        if (text_is(type, moves[i].type)) return &moves[i];
    }
    return NULL;
}
static const struct move *run_move(str type) {
    return find_move(run_moves, COUNT_OF(run_moves), type);
}
static const struct move *step_move(str type) {
    return find_move(step_moves, COUNT_OF(step_moves), type);
}

static bool allowed_from(const struct move *move, const char *state) {
    for (size_t i = 0; i < COUNT_OF(move->from) && move->from[i]; i++) {
        if (strcmp(move->from[i], state) == 0) return true;
    }
    return false;
}

/* ---- kinds of events ---- */

static bool is_signal(const struct event *e) {
    return str_starts(e->type_name, STR("SignalReceived")) ||
           str_starts(e->type_name, STR("SignalProcessed"));
}
static bool is_fact(const struct event *e) {
    return is_signal(e) || str_starts(e->type_name, STR("Tool"));
}
static bool names_step(const struct event *e) { return e->subject.ptr && !is_signal(e); }
static bool is_run_level(const struct event *e) { return !e->subject.ptr; }
static bool is_unknown(const struct event *e) { return e->type == EVENT_UNKNOWN; }

/* The fields of the idempotency key, but for the runId. */
static bool same_key(const struct event *a, const struct event *b) {
    if (!str_eq(a->type_name, b->type_name) || a->logical_attempt != b->logical_attempt)
        return false;
    if (!str_eq(a->subject.ptr ? a->subject : STR("RUN"), b->subject.ptr ? b->subject : STR("RUN")))
        return false;
    return is_fact(a) ||
           (str_eq(a->plan_id, b->plan_id) && str_eq(a->plan_version, b->plan_version));
}

/* ---- reading the array ---- */

static bool in_run(const struct model_record *r, str run_id) {
    return str_eq(r->event.run_id, run_id);
}
static bool in_tenant(const struct model_record *r, str tenant_id) {
    return str_eq(r->event.tenant_id, tenant_id);
}

const struct model_record *model_run(const struct model *m, str run_id) {
    for (size_t i = 0; i < m->count; i++) {
        if (in_run(&m->records[i], run_id)) return &m->records[i];
    }
    return NULL;
}

static const struct model_record *newest_in_tenant(const struct model *m, str tenant_id) {
    for (size_t i = m->count; i > 0; i--) {
        if (m->fault == FAULT_ONE_SEQUENCE || in_tenant(&m->records[i - 1], tenant_id))
            return &m->records[i - 1];
    }
    return NULL;
}

static void state_of_step(const struct model *m, str run_id, int64_t last_seq,
                          struct model_step *out) {
    for (size_t i = 0; i < m->count; i++) {
        const struct model_record *r = &m->records[i];
        if (!in_run(r, run_id) || r->seq > last_seq || !names_step(&r->event) ||
            !str_eq(r->event.subject, out->id))
            continue;
        out->last_seq = r->seq;
        const struct move *move = r->legal ? step_move(r->event.type_name) : NULL;
        if (move) {
            bool opens = strcmp(move->from[0], "PENDING") == 0;
            bool ends = strcmp(move->to, "RUNNING") != 0;
            out->state = move->to;
            out->attempt = r->event.logical_attempt;
            if (opens) out->started_seq = ends ? 0 : r->seq;
            out->ended_seq = out->result_seq = ends ? r->seq : 0;
        }
        if (text_is(r->event.type_name, "StepCorrected") && out->ended_seq > 0)
            out->result_seq = r->seq;
    }
}

static void add_step(struct model_state *s, str id) {
    for (size_t i = 0; i < s->step_count; i++) {
        if (str_eq(s->steps[i].id, id)) return;
    }
    ASSERT(s->step_count < MODEL_STEPS_MAX);
    s->steps[s->step_count++] = (struct model_step){.id = id};
}

static void count_event(struct model_state *s, const struct model_record *r) {
    str type = r->event.type_name;
    s->last_seq = r->seq;
    if (r->run_seq > 0) s->run_seq = r->run_seq;
    if (r->event.engine_attempt > s->engine_attempt) s->engine_attempt = r->event.engine_attempt;
    if (names_step(&r->event)) add_step(s, r->event.subject);
    if (!r->legal) {
        s->invalid_events++;
        return;
    }
    const struct move *move = run_move(type);
    if (move) s->status = move->to;
    if (is_run_level(&r->event)) s->run_level_seq = r->seq;
    if (text_is(type, "RunStarted")) s->started_seq = r->seq;
    if (text_is(type, "RunCompleted") || text_is(type, "RunFailed") ||
        text_is(type, "RunCancelled"))
        s->ended_seq = r->seq;
    s->total_steps += text_is(type, "StepCompleted");
    s->failed_steps += text_is(type, "StepFailed");
    s->pauses += text_is(type, "RunPaused");
    s->resumes += text_is(type, "RunResumed");
}

void model_state(const struct model *m, str run_id, int64_t at_run_seq, struct model_state *out) {
    *out = (struct model_state){.status = "NEW"};
    for (size_t i = 0; i < m->count; i++) {
        const struct model_record *r = &m->records[i];
        if (!in_run(r, run_id)) continue;
        if (at_run_seq > 0 && r->run_seq > at_run_seq)
            break; /* the facts between the two belong to the first */
        count_event(out, r);
    }
    for (size_t i = 0; i < out->step_count; i++) {
        state_of_step(m, run_id, out->last_seq, &out->steps[i]);
        const char *state = out->steps[i].state;
        out->open_steps += state && strcmp(state, "RUNNING") == 0;
        out->bad_steps += state && strcmp(state, "FAILED") == 0;
    }
}

/* ---- what is legal ---- */

static bool judge_run(const struct model *m, const struct event *e, const char **prior,
                      const char **attempted) {
    const struct move *move = run_move(e->type_name);
    if (!move) return true;
    struct model_state s;
    model_state(m, e->run_id, 0, &s);
    *prior = strcmp(s.status, "NEW") == 0 ? "PENDING" : s.status;
    *attempted = move->to;
    if (m->fault == FAULT_FINAL_IS_NOT_FINAL && strcmp(s.status, "FAILED") == 0) return true;
    return allowed_from(move, s.status);
}

static bool judge_step(const struct model *m, const struct event *e, const char **prior,
                       const char **attempted) {
    const struct move *move = step_move(e->type_name);
    if (!move) return true;
    struct model_step s = {.id = e->subject};
    state_of_step(m, e->run_id, INT64_MAX, &s);
    int64_t n = e->logical_attempt;
    bool failed = s.state && strcmp(s.state, "FAILED") == 0;
    bool next_is_open =
        n == s.attempt + 1 && (s.attempt == 0 || failed || m->fault == FAULT_RETRY_ALWAYS_OPEN);
    *attempted = move->to;
    if (n == s.attempt)
        *prior = s.state;
    else
        *prior = n < s.attempt ? "FAILED" : "PENDING"; /* only a failed attempt has a next one */
    return (n == s.attempt || next_is_open) && allowed_from(move, *prior);
}

static bool judge(const struct model *m, const struct event *e, const char **prior,
                  const char **attempted) {
    return names_step(e) ? judge_step(m, e, prior, attempted) : judge_run(m, e, prior, attempted);
}

/* ---- causes ---- */

/* The newest event of its step, else the newest legal run-level event, else the newest event of the
 * run. */
static int64_t default_cause(const struct model *m, const struct event *e) {
    struct model_state s;
    model_state(m, e->run_id, 0, &s);
    if (!names_step(e) || m->fault == FAULT_CAUSE_IS_NEWEST) return s.last_seq;
    for (size_t i = 0; i < s.step_count; i++) {
        if (str_eq(s.steps[i].id, e->subject)) return s.steps[i].last_seq;
    }
    return s.run_level_seq > 0 ? s.run_level_seq : s.last_seq;
}

/* Its own run knows the event best; otherwise the newest of that id in the tenant. 0: nowhere. */
static int64_t named_cause(const struct model *m, const struct event *e, const uuid *id) {
    int64_t own = 0;
    int64_t any = 0;
    for (size_t i = 0; i < m->count; i++) {
        const struct model_record *r = &m->records[i];
        if (!in_tenant(r, e->tenant_id) || !uuid_eq(r->event.event_id, *id)) continue;
        any = r->seq;
        if (in_run(r, e->run_id)) own = r->seq;
    }
    return own > 0 ? own : any;
}

/* ---- appending ---- */

static struct model_result refusal(status code, const char *reason) {
    return (struct model_result){.code = code, .reason = reason};
}

static const struct model_record *find_duplicate(const struct model *m, const struct event *e) {
    for (size_t i = 0; i < m->count; i++) {
        const struct model_record *r = &m->records[i];
        bool same = m->fault == FAULT_DUPLICATE_BY_ID ? uuid_eq(r->event.event_id, e->event_id)
                                                      : same_key(&r->event, e);
        if (in_run(r, e->run_id) && same) return r;
    }
    return NULL;
}

static bool id_used_in_run(const struct model *m, const struct event *e) {
    for (size_t i = 0; i < m->count; i++) {
        if (in_run(&m->records[i], e->run_id) && uuid_eq(m->records[i].event.event_id, e->event_id))
            return true;
    }
    return false;
}

/* A provider run belongs to the run that linked it first. The payload is the reference: the
 * programs write it one way only. */
static bool provider_taken(const struct model *m, const struct event *e) {
    for (size_t i = 0; i < m->count; i++) {
        const struct model_record *r = &m->records[i];
        if (!in_tenant(r, e->tenant_id) || !text_is(r->event.type_name, "RunProviderLinked"))
            continue;
        if (str_eq(r->event.payload, e->payload)) return !in_run(r, e->run_id);
    }
    return false;
}

static struct model_result reject(struct model *m, const struct event *e, const char *prior,
                                  const char *attempted) {
    struct model_result res = refusal(ST_CONFLICT, "INVALID_TRANSITION");
    for (size_t i = 0; i < m->rejection_count && m->fault != FAULT_REJECTION_CHANGES; i++) {
        struct model_rejection *old = &m->rejections[i];
        if (!str_eq(old->event.run_id, e->run_id) || !str_eq(old->event.tenant_id, e->tenant_id))
            continue;
        if (same_key(&old->event, e)) res.rejection = old;
    }
    if (res.rejection) return res;
    ASSERT(m->rejection_count < MODEL_REJECTIONS_MAX);
    res.rejection = &m->rejections[m->rejection_count++];
    *res.rejection = (struct model_rejection){.event = *e, .prior = prior, .attempted = attempted};
    return res;
}

static int64_t count_run_events(const struct model *m, str run_id) {
    int64_t n = 0;
    for (size_t i = 0; i < m->count; i++)
        n += in_run(&m->records[i], run_id) && m->records[i].run_seq > 0;
    return n;
}

static struct model_result accept(struct model *m, const struct append_item *item,
                                  int64_t cause_seq) {
    const struct event *e = &item->event;
    const struct model_record *before = newest_in_tenant(m, e->tenant_id);
    struct model_record r = {.event = *e,
                             .actor = item->actor,
                             .cause_seq = cause_seq,
                             .correlation = item->correlation,
                             .signal = item->signal,
                             .seq = before ? before->seq + 1 : 1,
                             .persisted_us = m->now_us};
    bool counts = !is_fact(e) && !(m->fault == FAULT_UNKNOWN_IS_LOST && is_unknown(e));
    if (counts) r.run_seq = count_run_events(m, e->run_id) + 1;
    bool clock_went_back = before && before->persisted_us > m->now_us;
    if (clock_went_back && m->fault != FAULT_CLOCK_GOES_BACK) r.persisted_us = before->persisted_us;
    r.legal = judge(m, e, &r.prior, &r.attempted);
    ASSERT(m->count < MODEL_RECORDS_MAX);
    m->records[m->count++] = r;
    return (struct model_result){.code = ST_OK, .record = r};
}

/* First the tenant, then duplicates, then whatever may be wrong with a new event; its transition
 * last. */
static struct model_result append_one(struct model *m, const struct append_item *item) {
    const struct event *e = &item->event;
    const struct model_record *run = model_run(m, e->run_id);
    if (run && !str_eq(run->event.tenant_id, e->tenant_id))
        return refusal(ST_CONFLICT, "RUN_ID_TAKEN");
    const struct model_record *first = find_duplicate(m, e);
    if (first) return (struct model_result){.code = ST_OK, .duplicate = true, .record = *first};
    if (id_used_in_run(m, e)) return refusal(ST_CONFLICT, "EVENT_ID_REUSED");
    if (run && !str_eq(run->event.project_id, e->project_id))
        return refusal(ST_CONFLICT, "RUN_IDENTITY_MISMATCH");
    if (run && !str_eq(run->event.environment_id, e->environment_id))
        return refusal(ST_CONFLICT, "RUN_IDENTITY_MISMATCH");
    int64_t cause_seq = item->cause ? named_cause(m, e, item->cause) : default_cause(m, e);
    if (item->cause && cause_seq == 0) return refusal(ST_INVALID, "CAUSE_NOT_FOUND");
    if (text_is(e->type_name, "RunProviderLinked")) {
        if (!str_starts(e->payload, STR("{\"provider\":")))
            return refusal(ST_INVALID, "PROVIDER_LINK_INVALID");
        if (provider_taken(m, e)) return refusal(ST_CONFLICT, "PROVIDER_REF_TAKEN");
    }
    const char *prior = NULL;
    const char *attempted = NULL;
    if (!judge(m, e, &prior, &attempted) && m->validation == LEDGER_REJECT)
        return reject(m, e, prior, attempted);
    return accept(m, item, cause_seq);
}

void model_append(struct model *m, const struct append_item *items, size_t count, bool atomic,
                  struct model_result *results) {
    size_t before = m->count;
    for (size_t i = 0; i < count; i++) {
        results[i] = append_one(m, &items[i]);
        if (!atomic || results[i].code == ST_OK) continue;
        if (m->fault != FAULT_ATOMIC_KEEPS_PREFIX) m->count = before;
        struct model_result bad = results[i];
        for (size_t k = 0; k < count; k++)
            results[k] = refusal(bad.code, bad.reason);
        results[i].rejection = bad.rejection;
        return;
    }
}

static int64_t count_checkpoints(const struct model *m, str run_id) {
    int64_t n = 0;
    for (size_t i = 0; i < m->count; i++)
        n += in_run(&m->records[i], run_id) && m->records[i].by_ledger;
    return n;
}

struct model_result model_checkpoint(struct model *m, str run_id, uuid id) {
    const struct model_record *run = model_run(m, run_id);
    if (!run) return refusal(ST_NOT_FOUND, "RUN_NOT_FOUND");
    struct model_state s;
    model_state(m, run_id, 0, &s);
    struct append_item item = {.event = run->event};
    struct event *e = &item.event;
    e->type = EVENT_RUN_CHECKPOINT_CREATED;
    e->type_name = STR("RunCheckpointCreated");
    e->subject = e->payload = STR_NONE;
    e->engine_attempt = s.engine_attempt;
    e->logical_attempt = count_checkpoints(m, run_id) + 1;
    e->event_id = id;
    accept(m, &item, s.last_seq);
    struct model_record *r = &m->records[m->count - 1];
    r->by_ledger = true;
    return (struct model_result){.code = ST_OK, .record = *r};
}

const char *model_fault_name(enum model_fault fault) {
    static const char *const names[FAULT_COUNT] = {
        [FAULT_NONE] = "none",
        [FAULT_DUPLICATE_BY_ID] = "duplicates by eventId",
        [FAULT_RETRY_ALWAYS_OPEN] = "retries always open",
        [FAULT_CAUSE_IS_NEWEST] = "the newest event is the cause",
        [FAULT_ATOMIC_KEEPS_PREFIX] = "atomic batches keep their prefix",
        [FAULT_REJECTION_CHANGES] = "rejections change",
        [FAULT_ONE_SEQUENCE] = "one sequence for all tenants",
        [FAULT_CLOCK_GOES_BACK] = "the clock goes back",
        [FAULT_FINAL_IS_NOT_FINAL] = "a failed run can go on",
        [FAULT_UNKNOWN_IS_LOST] = "unknown types have no runSeq"};
    return names[fault];
}
