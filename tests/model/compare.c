#include "model/compare.h"

#include "base/limits.h"
#include "core/run.h"

/* ---- small comparisons, each naming what differs ---- */

static bool same_int(const char *what, int64_t got, int64_t want, struct buf *why) {
    if (got == want) return true;
    buf_printf(why, "%s is %lld, expected %lld", what, (long long)got, (long long)want);
    return false;
}

static bool same_str(const char *what, str got, str want, struct buf *why) {
    if (str_eq(got, want) && !got.ptr == !want.ptr) return true;
    buf_printf(why, "%s is \"%.*s\", expected \"%.*s\"", what, STR_ARG(got), STR_ARG(want));
    return false;
}

static bool same_uuid(const char *what, uuid got, uuid want, struct buf *why) {
    char a[UUID_TEXT_LEN];
    char b[UUID_TEXT_LEN];
    uuid_format(got, a);
    uuid_format(want, b);
    return same_str(what, str_n(a, sizeof(a)), str_n(b, sizeof(b)), why);
}

static bool done(status st, const char *what, const struct error *err, struct buf *why) {
    if (st == ST_OK) return true;
    buf_printf(why, "%s failed: %s", what, err->msg);
    return false;
}

struct number {
    const char *name;
    int64_t got, want;
};
static bool same_numbers(const struct number *numbers, size_t n, struct buf *why) {
    for (size_t i = 0; i < n; i++) {
        if (!same_int(numbers[i].name, numbers[i].got, numbers[i].want, why)) return false;
    }
    return true;
}

/* ---- answers ---- */

/* The first rejection names both states; every later one is the same text. */
static bool same_rejection(const char *msg, struct model_rejection *r, struct buf *why) {
    if (r->text[0] != 0) return same_str("repeated rejection", str_c(msg), str_c(r->text), why);
    snprintf(r->text, sizeof(r->text), "%s", msg);
    if (strstr(msg, r->prior) && strstr(msg, r->attempted)) return true;
    buf_printf(why, "rejection \"%s\" does not name %s and %s", msg, r->prior, r->attempted);
    return false;
}

static bool compare_refusal(const struct append_result *got, struct model_result *want,
                            struct buf *why) {
    if (!got->err || got->err->code != got->code) {
        buf_put_c(why, "a refusal without its error");
        return false;
    }
    if (!same_str("reason", str_c(reason_name(got->err->reason)), str_c(want->reason), why))
        return false;
    return !want->rejection || same_rejection(got->err->msg, want->rejection, why);
}

bool compare_result(const struct append_result *got, struct model_result *want, struct buf *why) {
    if (got->code != want->code) {
        buf_printf(why, "answer is \"%s\" (%s), expected \"%s\" (%s)", status_name(got->code),
                   got->err ? got->err->msg : "", status_name(want->code),
                   want->reason ? want->reason : "");
        return false;
    }
    if (got->code != ST_OK) return compare_refusal(got, want, why);
    const struct model_record *r = &want->record;
    const struct number numbers[] = {{"duplicate", got->duplicate, want->duplicate},
                                     {"runSeq", got->run_seq, r->run_seq},
                                     {"sequence_number", got->seq, r->seq},
                                     {"persistedAt", got->persisted_us, r->persisted_us}};
    return same_numbers(numbers, COUNT_OF(numbers), why) &&
           same_uuid("eventId", got->event_id, r->event.event_id, why);
}

/* ---- records ---- */

static bool same_envelope(const struct event *a, const struct event *b, struct buf *why) {
    const struct {
        const char *name;
        str got, want;
    } texts[] = {{"eventType", a->type_name, b->type_name},
                 {"runId", a->run_id, b->run_id},
                 {"tenantId", a->tenant_id, b->tenant_id},
                 {"projectId", a->project_id, b->project_id},
                 {"environmentId", a->environment_id, b->environment_id},
                 {"planId", a->plan_id, b->plan_id},
                 {"planVersion", a->plan_version, b->plan_version},
                 {"stepId", a->subject, b->subject}};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!same_str(texts[i].name, texts[i].got, texts[i].want, why)) return false;
    }
    const struct number numbers[] = {{"type", a->type, b->type},
                                     {"engineAttemptId", a->engine_attempt, b->engine_attempt},
                                     {"logicalAttemptId", a->logical_attempt, b->logical_attempt}};
    return same_numbers(numbers, COUNT_OF(numbers), why) &&
           same_uuid("eventId", a->event_id, b->event_id, why);
}

static bool same_record(const struct event_record *got, const struct model_record *want,
                        struct buf *why) {
    const struct event *a = &got->event;
    const struct event *b = &want->event;
    if (!same_envelope(a, b, why)) return false;
    const struct number numbers[] = {{"runSeq", got->run_seq, want->run_seq},
                                     {"sequence_number", got->seq, want->seq},
                                     {"persistedAt", got->persisted_us, want->persisted_us},
                                     {"cause", got->cause_seq, want->cause_seq}};
    if (!same_numbers(numbers, COUNT_OF(numbers), why) ||
        !same_str("actor", got->actor, want->actor, why))
        return false;
    if (want->by_ledger) return true; /* key, payload and producer time are the ledger's own */
    return same_int("emittedAt", a->emitted_ns, b->emitted_ns, why) &&
           same_int("digits of emittedAt", a->emitted_digits, b->emitted_digits, why) &&
           same_str("payload", a->payload, b->payload, why) &&
           same_str("idempotencyKey", str_n(a->key, SHA256_LEN), str_n(b->key, SHA256_LEN), why);
}

static const struct model_record *record_at(const struct model *m, str tenant_id, int64_t seq) {
    for (size_t i = 0; i < m->count; i++) {
        if (m->records[i].seq == seq && str_eq(m->records[i].event.tenant_id, tenant_id))
            return &m->records[i];
    }
    return NULL;
}

/* Correlation and cause of a record: one for the whole run, and the eventId behind the number. */
static bool same_trace(const struct model *m, const struct event_record *got,
                       const struct model_record *want, uuid correlation, struct buf *why) {
    if (!same_uuid("correlationId", got->correlation_id, correlation, why)) return false;
    if (want->cause_seq == 0) return true;
    const struct model_record *cause = record_at(m, want->event.tenant_id, want->cause_seq);
    return same_uuid("causationId", got->cause_id, cause->event.event_id, why);
}

/* The model's records of one run or tenant, in order, beside the page. */
static bool same_page(const struct model *m, str run_id, str tenant_id,
                      const struct event_page *page, const uuid *correlation, struct buf *why) {
    size_t n = 0;
    for (size_t i = 0; i < m->count; i++) {
        const struct model_record *r = &m->records[i];
        if (!str_eq(run_id.ptr ? r->event.run_id : r->event.tenant_id,
                    run_id.ptr ? run_id : tenant_id))
            continue;
        if (n >= page->count) return same_int("number of records", (int64_t)n, -1, why);
        if (!same_record(&page->records[n], r, why)) return false;
        if (correlation && !same_trace(m, &page->records[n], r, *correlation, why)) return false;
        n++;
    }
    return same_int("number of records", (int64_t)page->count, (int64_t)n, why);
}

static bool compare_tenant(struct ledger *l, const struct model *m, str tenant_id,
                           struct arena *arena, struct buf *why) {
    struct event_page page;
    struct error err = {0};
    if (!done(ledger_read_tenant(l, tenant_id, 0, PAGE_EVENTS_MAX, arena, &page, &err),
              "reading a tenant", &err, why))
        return false;
    return same_page(m, STR_NONE, tenant_id, &page, NULL, why);
}

/* ---- runs ---- */

static bool same_status(const struct run_head *got, const struct model_state *want,
                        struct buf *why) {
    const char *name = got->status == RUN_NEW ? "NEW" : run_status_name(got->status);
    return same_str("status", str_c(name), str_c(want->status), why);
}

/* What the run's row holds. */
static bool same_head(const struct run_head *h, const struct model_state *s, struct buf *why) {
    const struct number numbers[] = {{"inconsistent", h->inconsistent, s->invalid_events > 0},
                                     {"runSeq of the run", h->run_seq, s->run_seq},
                                     {"last_seq", h->last_seq, s->last_seq},
                                     {"started_seq", h->started_seq, s->started_seq},
                                     {"ended_seq", h->ended_seq, s->ended_seq},
                                     {"total_steps", h->total_steps, s->total_steps},
                                     {"failed_steps", h->failed_steps, s->failed_steps},
                                     {"open_steps", h->open_steps, s->open_steps},
                                     {"invalid_events", h->invalid_events, s->invalid_events},
                                     {"engine_attempt", h->engine_attempt, s->engine_attempt}};
    return same_status(h, s, why) && same_numbers(numbers, COUNT_OF(numbers), why);
}

/* What only a replay knows. */
static bool same_replayed(const struct run_head *h, const struct model_state *s, struct buf *why) {
    const struct number numbers[] = {{"run_level_seq", h->run_level_seq, s->run_level_seq},
                                     {"bad_steps", h->bad_steps, s->bad_steps},
                                     {"pauses", h->pauses, s->pauses},
                                     {"resumes", h->resumes, s->resumes}};
    return same_numbers(numbers, COUNT_OF(numbers), why);
}

static bool same_step(const struct step *got, const struct model_step *want, struct buf *why) {
    const char *state = got->state == STEP_MENTIONED ? NULL : step_state_name(got->state);
    const struct number numbers[] = {
        {"attempt of the step", got->attempt, want->attempt},
        {"started_seq of the step", got->started_seq, want->started_seq},
        {"ended_seq of the step", got->ended_seq, want->ended_seq},
        {"result_seq of the step", got->result_seq, want->result_seq},
        {"last_seq of the step", got->last_seq, want->last_seq}};
    return same_str("step", got->id, want->id, why) &&
           same_str("state", str_c(state), str_c(want->state), why) &&
           same_numbers(numbers, COUNT_OF(numbers), why);
}

static bool same_run(const struct run *run, const struct model_state *s, struct buf *why) {
    if (!same_head(&run->head, s, why) || !same_replayed(&run->head, s, why)) return false;
    if (!same_int("number of steps", run->step_count, (int64_t)s->step_count, why)) return false;
    for (size_t i = 0; i < s->step_count; i++) {
        if (!same_step(&run->steps[i], &s->steps[i], why)) return false;
    }
    return true;
}

/* The state now and at earlier positions, from checkpoints and from the first event. */
static bool compare_replay(struct ledger *l, const struct model *m, str run_id, int64_t run_seq,
                           struct arena *arena, struct buf *why) {
    const struct {
        int64_t at;
        bool use_checkpoint;
    } replays[] = {{0, false}, {0, true}, {run_seq / 2, true}, {run_seq / 3, false}};
    for (size_t i = 0; i < COUNT_OF(replays); i++) {
        struct error err = {0};
        struct run run;
        struct model_state want;
        int64_t at = replays[i].at;
        if (!done(ledger_replay(l, run_id, at, replays[i].use_checkpoint, arena, &run, NULL, &err),
                  "replay", &err, why))
            return false;
        model_state(m, run_id, at, &want);
        if (same_run(&run, &want, why)) continue;
        buf_printf(why, " (at runSeq %lld, %s checkpoints)", (long long)at,
                   replays[i].use_checkpoint ? "with" : "without");
        return false;
    }
    return true;
}

static int64_t time_of(const struct model *m, str tenant_id, int64_t seq) {
    const struct model_record *r = record_at(m, tenant_id, seq);
    return r ? r->persisted_us : 0;
}

static bool compare_info(const struct model *m, const struct model_record *opener,
                         const struct run_info *info, struct buf *why) {
    const struct event *e = &opener->event;
    struct model_state s;
    model_state(m, e->run_id, 0, &s);
    const struct number times[] = {
        {"opened_us", info->opened_us, opener->persisted_us},
        {"started_us", info->started_us, time_of(m, e->tenant_id, s.started_seq)},
        {"ended_us", info->ended_us, time_of(m, e->tenant_id, s.ended_seq)},
        {"updated_us", info->updated_us, time_of(m, e->tenant_id, s.last_seq)}};
    const struct {
        const char *name;
        str got, want;
    } texts[] = {{"runId of the run", info->run_id, e->run_id},
                 {"tenantId of the run", info->tenant_id, e->tenant_id},
                 {"projectId of the run", info->project_id, e->project_id},
                 {"environmentId of the run", info->environment_id, e->environment_id},
                 {"planId of the run", info->plan_id, e->plan_id},
                 {"planVersion of the run", info->plan_version, e->plan_version}};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!same_str(texts[i].name, texts[i].got, texts[i].want, why)) return false;
    }
    uuid correlation = opener->correlation ? *opener->correlation : info->correlation_id;
    uuid signal = opener->signal ? *opener->signal : correlation;
    return same_head(&info->head, &s, why) && same_numbers(times, COUNT_OF(times), why) &&
           same_uuid("correlation of the run", info->correlation_id, correlation, why) &&
           same_uuid("signal of the run", info->signal_id, signal, why);
}

/* ---- steps and alerts, as stored ---- */

static bool compare_step_rows(struct ledger *l, const struct model_state *s, int64_t run_no,
                              struct buf *why) {
    struct error err = {0};
    struct db_stmt *q = NULL;
    bool row = false;
    if (!done(db_prepare(ledger_db(l),
                         "SELECT step_id, state, logical_attempt_id, step_index FROM steps WHERE "
                         "run_no = $1 ORDER BY step_index",
                         &q, &err),
              "reading steps", &err, why))
        return false;
    db_bind_int(q, 1, run_no);
    bool same = true;
    for (size_t i = 0; same && i < s->step_count; i++) {
        const struct model_step *want = &s->steps[i];
        if (!want->state) continue; /* the view shows steps that have a state */
        same = done(db_step(q, &row, &err), "reading steps", &err, why) &&
               same_int("a step's row is there", row, 1, why);
        same = same && same_str("step_id of the row", db_text(q, 0), want->id, why) &&
               same_str("state of the row", db_text(q, 1), str_c(want->state), why) &&
               same_int("attempt of the row", db_int(q, 2), want->attempt, why) &&
               same_int("index of the row", db_int(q, 3), (int64_t)i, why);
    }
    same = same && done(db_step(q, &row, &err), "reading steps", &err, why) &&
           same_int("a surplus step row", row, 0, why);
    db_reset(q);
    return same;
}

static bool same_alert(const struct alert *got, const struct model_record *want, struct buf *why) {
    const struct event *e = &want->event;
    const struct number numbers[] = {
        {"runSeq of the alert", got->run_seq, want->run_seq},
        {"sequence_number of the alert", got->seq, want->seq},
        {"persistedAt of the alert", got->persisted_us, want->persisted_us}};
    return same_numbers(numbers, COUNT_OF(numbers), why) &&
           same_uuid("eventId of the alert", got->event_id, e->event_id, why) &&
           same_str("eventType of the alert", got->event_type, e->type_name, why) &&
           same_str("tenantId of the alert", got->tenant_id, e->tenant_id, why) &&
           same_str("projectId of the alert", got->project_id, e->project_id, why) &&
           same_str("environmentId of the alert", got->environment_id, e->environment_id, why) &&
           same_str("prior state", got->prior, str_c(want->prior), why) &&
           same_str("attempted state", got->attempted, str_c(want->attempted), why);
}

/* One alert for each invalid event, newest first. */
static bool compare_alerts(struct ledger *l, const struct model *m, str run_id, struct arena *arena,
                           struct buf *why) {
    struct alert *alerts = NULL;
    size_t count = 0;
    size_t n = 0;
    struct error err = {0};
    if (!done(ledger_list_alerts(l,
                                 &(struct alert_query){.run_id = run_id, .limit = PAGE_EVENTS_MAX},
                                 arena, &alerts, &count, &err),
              "reading alerts", &err, why))
        return false;
    for (size_t i = m->count; i > 0; i--) {
        const struct model_record *r = &m->records[i - 1];
        if (r->legal || !str_eq(r->event.run_id, run_id)) continue;
        if (n >= count) return same_int("number of alerts", (int64_t)count, (int64_t)n + 1, why);
        if (!same_alert(&alerts[n++], r, why)) return false;
    }
    return same_int("number of alerts", (int64_t)count, (int64_t)n, why);
}

/* ---- all of it ---- */

static bool compare_run(struct ledger *l, const struct model *m, const struct model_record *opener,
                        struct arena *arena, struct buf *why) {
    str run_id = opener->event.run_id;
    struct error err = {0};
    struct run_info info;
    struct event_page page;
    struct model_state s;
    model_state(m, run_id, 0, &s);
    return done(ledger_find_run(l, run_id, arena, &info, &err), "finding a run", &err, why) &&
           compare_info(m, opener, &info, why) &&
           done(ledger_read_run(l, run_id, 0, PAGE_EVENTS_MAX, arena, &page, &err), "reading a run",
                &err, why) &&
           same_page(m, run_id, STR_NONE, &page, &info.correlation_id, why) &&
           compare_replay(l, m, run_id, s.run_seq, arena, why) &&
           compare_step_rows(l, &s, info.run_no, why) && compare_alerts(l, m, run_id, arena, why);
}

/* Whether an earlier record has the same run (or tenant): then it was compared already. */
static bool seen_before(const struct model *m, size_t at, bool tenant) {
    const struct event *e = &m->records[at].event;
    for (size_t i = 0; i < at; i++) {
        const struct event *old = &m->records[i].event;
        if (tenant ? str_eq(old->tenant_id, e->tenant_id) : str_eq(old->run_id, e->run_id))
            return true;
    }
    return false;
}

bool compare_ledger(struct ledger *l, const struct model *m, struct buf *why) {
    struct arena arena;
    arena_init(&arena, (size_t)64 * 1024, (size_t)64 * 1024 * 1024);
    bool same = true;
    for (size_t i = 0; same && i < m->count; i++) {
        if (!seen_before(m, i, false)) same = compare_run(l, m, &m->records[i], &arena, why);
        if (same && !seen_before(m, i, true))
            same = compare_tenant(l, m, m->records[i].event.tenant_id, &arena, why);
        if (!same) buf_printf(why, " (run \"%.*s\")", STR_ARG(m->records[i].event.run_id));
    }
    arena_release(&arena);
    return same;
}

bool compare_verify(struct ledger *l, struct buf *why) {
    struct arena arena;
    struct error err = {0};
    struct verify_report report = {0};
    arena_init(&arena, (size_t)16 * 1024, (size_t)64 * 1024 * 1024);
    bool same =
        done(ledger_verify(l, true, NULL, NULL, &arena, &report, &err), "verify", &err, why);
    if (same && report.damaged) {
        buf_printf(why, "verify finds damage: %s", report.what);
        same = false;
    }
    arena_release(&arena);
    return same;
}
