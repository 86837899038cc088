/* verify --state: the keys, the projections and the checkpoints against a replay of the events. */
#include "ledger/id_lots.h"
#include "ledger/project.h"
#include "ledger/tend/visit.h"

struct state_job {
    struct run_job base;               /* first */
    int64_t alerts, refs, checkpoints; /* events seen so far that have a row of that kind */
    int64_t effects;
    /* Of the run being visited: */
    int64_t context_no; /* the context read last; 0: none yet */
    str plan_id, plan_version;
    int64_t checkpoint_seq, checkpoint_index; /* the next checkpoint to be met; 0: none */
    bool with_checkpoints;                    /* ask for them: there are some */
};

static status next_checkpoint(struct state_job *job, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(job->base.w->l->db,
                           "SELECT seq, checkpoint_index FROM ledger_checkpoint WHERE run_no = $1"
                           " AND (seq > $2 OR (seq = $2 AND checkpoint_index > $3))"
                           " ORDER BY seq, checkpoint_index LIMIT 1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, job->base.visit->run_no);
    db_bind_int(q, 2, job->checkpoint_seq);
    db_bind_int(q, 3, job->checkpoint_index);
    st = db_step(q, &row, err);
    job->checkpoint_seq = st == ST_OK && row ? db_int(q, 0) : 0;
    job->checkpoint_index = st == ST_OK && row ? db_int(q, 1) : 0;
    db_reset(q);
    return st;
}

static status compare_run(struct state_job *job, const struct run_visit *v, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(job->base.w->l->db,
                           "SELECT status, inconsistent, started_seq, ended_seq, run_level_seq,"
                           " invalid_events, engine_attempt FROM state_run WHERE run_no = $1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, v->run_no);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row)
        walk_damage(job->base.w, STR_NONE, 0, v->run_id, "the run has no state row");
    struct state_row want = project_state(&v->run.head);
    for (size_t i = 0; st == ST_OK && row && i < COUNT_OF(want.cells); i++) {
        if (db_int(q, (int)i) == want.cells[i]) continue;
        walk_damage(job->base.w, STR_NONE, 0, v->run_id,
                    "the run's state row differs from the replay of its events");
        break;
    }
    db_reset(q);
    return st;
}

static bool step_matches(struct db_stmt *q, const struct run_visit *v, const struct step *s) {
    if (!s) return false;
    const int64_t want[] = {step_pos(v->run_no, s - v->run.steps),
                            s->attempt,
                            s->state,
                            s->started_seq,
                            s->ended_seq,
                            s->result_seq == s->ended_seq ? 0 : s->result_seq};
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        if (db_int(q, (int)i + 2) != want[i]) return false;
    }
    uuid id = event_uuid_of(v->run_uuid, s->id);
    return str_eq(db_blob(q, 1), str_n(id.b, 16));
}

static status compare_steps(struct state_job *job, const struct run_visit *v, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    uint32_t rows = 0;
    status st = db_prepare(
        job->base.w->l->db,
        "SELECT step_id, step_uuid, step_pos, attempt, state, started_seq, ended_seq, result_seq"
        " FROM state_step WHERE step_pos >= $1 AND step_pos < $2",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, step_pos(v->run_no, 0));
    db_bind_int(q, 2, step_pos(v->run_no + 1, 0));
    while ((st = db_step(q, &row, err)) == ST_OK && row) {
        rows++;
        if (step_matches(q, v, run_step(&v->run, db_text(q, 0)))) continue;
        walk_damage(job->base.w, STR_NONE, 0, v->run_id,
                    "a step's row differs from the replay of its events");
        break;
    }
    db_reset(q);
    if (st == ST_OK && !job->base.w->report->damaged && rows != v->run.step_count) {
        walk_damage(job->base.w, STR_NONE, 0, v->run_id,
                    "the run has more or fewer step rows than its events name");
    }
    return st;
}

static bool effect_matches(struct db_stmt *q, const struct run_visit *v, const struct effect *f) {
    const int64_t want[] = {pos_of(v->tenant_no, f->requested_seq),
                            v->tenant_no,
                            f->created_us,
                            f->executions,
                            f->retry_count,
                            f->max_retries,
                            f->base_ms,
                            f->due_us,
                            f->processed_us,
                            f->result_seq,
                            f->error_seq,
                            f->last_seq};
    char mem[STORED_KEY_MAX];
    struct buf key;
    buf_init_fixed(&key, mem, sizeof(mem));
    effect_stored_key(v->tenant_no, f->key, &key);
    enum { FIRST_OPTIONAL = 7, LAST_OPTIONAL = 10 }; /* of them: NULL when there is none */
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        bool none = i >= FIRST_OPTIONAL && i <= LAST_OPTIONAL && want[i] == 0;
        if (db_int(q, (int)i + 4) != want[i] || db_is_null(q, (int)i + 4) != none) return false;
    }
    return str_eq(db_text(q, 1), str_c(outbox_status_name(f->status))) &&
           str_eq(db_text(q, 2), f->type) && str_eq(db_text(q, 3), buf_str(&key));
}

static status compare_effects(struct state_job *job, const struct run_visit *v, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    uint32_t rows = 0;
    job->effects += v->effects.count;
    if (v->effects.count == 0) return ST_OK; /* compare_counts() finds rows of no effect */
    status st = db_prepare(job->base.w->l->db,
                           "SELECT effect_id, status, effect_type, idempotency_key, effect_pos,"
                           " tenant_no, created_us, executions, retry_count, max_retries, base_ms,"
                           " due_us, processed_us, result_seq, error_seq, last_seq"
                           " FROM state_effect WHERE run_no = $1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, v->run_no);
    for (bool same = true; same && (st = db_step(q, &row, err)) == ST_OK && row;) {
        uuid id = {0};
        str blob = db_blob(q, 0);
        if (blob.len == sizeof(id.b)) memcpy(id.b, blob.ptr, sizeof(id.b));
        uint32_t at = effects_find(&v->effects, id);
        same = at != EFFECT_NOT_THERE && effect_matches(q, v, &v->effects.items[at]);
        rows += same;
    }
    db_reset(q);
    if (st == ST_OK && rows != v->effects.count)
        walk_damage(job->base.w, STR_NONE, 0, v->run_id,
                    "the run's rows in the outbox differ from the replay of its events");
    return st;
}

static status compare_alert(struct state_job *job, int64_t seq, const struct transition *bad,
                            struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        job->base.w->l->db,
        "SELECT prior, attempted FROM state_alert WHERE run_no = $1 AND seq = $2", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, job->base.visit->run_no);
    db_bind_int(q, 2, seq);
    st = db_step(q, &row, err);
    if (st == ST_OK && (!row || !str_eq(db_text(q, 0), str_c(bad->prior)) ||
                        !str_eq(db_text(q, 1), str_c(bad->attempted)))) {
        walk_damage(job->base.w, STR_NONE, seq, job->base.visit->run_id,
                    "an invalid event has no matching alert");
    }
    db_reset(q);
    return st;
}

/* The plan of an event. Its context must be one of its run's tenant, project and environment. */
static status read_context(struct state_job *job, int64_t context_no, struct error *err) {
    if (job->context_no == context_no) return ST_OK;
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        job->base.w->l->db,
        "SELECT c.plan_id, c.plan_version FROM ledger_context c JOIN ledger_run r ON r.run_no = $2"
        " JOIN ledger_context o ON o.context_no = r.context_no WHERE c.context_no = $1"
        " AND c.tenant_no = r.tenant_no AND c.project_id = o.project_id"
        " AND c.environment_id = o.environment_id",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, context_no);
    db_bind_int(q, 2, job->base.visit->run_no);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row) {
        walk_damage(job->base.w, STR_NONE, 0, job->base.visit->run_id,
                    "an event of the run has a context of another tenant, project or environment");
    } else if (st == ST_OK) {
        job->context_no = context_no;
        if (!arena_try_str(&job->base.arena, db_text(q, 0), &job->plan_id) ||
            !arena_try_str(&job->base.arena, db_text(q, 1), &job->plan_version)) {
            st = ledger_no_memory(err);
        }
    }
    db_reset(q);
    return st;
}

/* The key ties the row's numbers to the texts of run, step, type and plan: derive it again. */
static status compare_key(struct state_job *job, const struct event_row *row,
                          const struct event_record *rec, struct error *err) {
    status st = read_context(job, row->context_no, err);
    if (st != ST_OK || job->base.w->report->damaged) return st;
    struct event e = rec->event;
    e.run_id = job->base.visit->run_id;
    e.plan_id = job->plan_id;
    e.plan_version = job->plan_version;
    uint8_t key[SHA256_LEN];
    event_key_derive(&e, key);
    if (memcmp(key, rec->event.key, SHA256_LEN) != 0) {
        walk_damage(job->base.w, STR_NONE, rec->seq, job->base.visit->run_id,
                    "the idempotency key is not the one derived from this event");
    }
    return ST_OK;
}

/* The reference that a RunProviderLinked names belongs to its run; the first event that names it is
 * the one in the row. */
static status compare_ref(struct state_job *job, const struct event_record *rec,
                          struct error *err) {
    struct provider_ref ref;
    struct db_stmt *q = NULL;
    bool row = false;
    if (!provider_ref_parse(rec->event.payload, &job->base.arena, &ref)) return ST_OK;
    status st = db_prepare(job->base.w->l->db,
                           "SELECT run_no, seq FROM state_provider WHERE tenant_no = $1"
                           " AND provider = $2 AND workflow_id = $3 AND provider_run_id = $4",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, job->base.visit->tenant_no);
    db_bind_text(q, 2, ref.provider);
    db_bind_text(q, 3, ref.workflow_id);
    db_bind_text(q, 4, ref.provider_run_id);
    st = db_step(q, &row, err);
    if (st == ST_OK &&
        (!row || db_int(q, 0) != job->base.visit->run_no || db_int(q, 1) > rec->seq)) {
        walk_damage(job->base.w, STR_NONE, rec->seq, job->base.visit->run_id,
                    "a provider reference differs from the event that made it");
    }
    if (st == ST_OK && row && db_int(q, 1) == rec->seq) job->refs++;
    db_reset(q);
    return st;
}

/* A checkpoint holds the state of its run after the event at its sequence_number. */
static status compare_checkpoint(struct state_job *job, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    struct buf b;
    status st = db_prepare(
        job->base.w->l->db,
        "SELECT data FROM ledger_checkpoint WHERE run_no = $1 AND checkpoint_index = $2", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, job->base.visit->run_no);
    db_bind_int(q, 2, job->checkpoint_index);
    st = db_step(q, &row, err);
    buf_init(&b, SIZE_MAX / 2);
    if (st == ST_OK) run_state_json(&job->base.visit->run, &b);
    if (st == ST_OK && b.full) st = ledger_no_memory(err);
    if (st == ST_OK && (!row || !str_eq(db_text(q, 0), buf_str(&b)))) {
        walk_damage(job->base.w, STR_NONE, job->checkpoint_seq, job->base.visit->run_id,
                    "a checkpoint differs from the replay of the events before it");
    }
    buf_release(&b);
    db_reset(q);
    return st == ST_OK ? next_checkpoint(job, err) : st;
}

static status verify_event(void *context, const struct event_row *row,
                           const struct event_record *rec, const struct transition *bad,
                           struct error *err) {
    struct state_job *job = context;
    const struct verify_report *report = job->base.w->report;
    if (report->damaged) return ST_OK;
    status st = compare_key(job, row, rec, err);
    if (st == ST_OK && !report->damaged && rec->event.type == EVENT_RUN_PROVIDER_LINKED)
        st = compare_ref(job, rec, err);
    if (st == ST_OK && !report->damaged && bad) {
        job->alerts++;
        st = compare_alert(job, rec->seq, bad, err);
    }
    if (rec->event.type == EVENT_RUN_CHECKPOINT_CREATED) job->checkpoints++;
    while (st == ST_OK && !report->damaged && job->checkpoint_seq == rec->seq)
        st = compare_checkpoint(job, err);
    return st;
}

static status open_run(struct run_job *base, struct error *err) {
    struct state_job *job = (struct state_job *)base;
    job->context_no = 0;
    job->checkpoint_seq = job->checkpoint_index = 0;
    return job->with_checkpoints ? next_checkpoint(job, err) : ST_OK;
}

static status verify_run(struct run_job *base, struct error *err) {
    struct state_job *job = (struct state_job *)base;
    const struct run_visit *v = base->visit;
    const struct verify_report *report = base->w->report;
    if (report->damaged) return ST_OK;
    if (v->run.head.last_seq == 0)
        walk_damage(job->base.w, STR_NONE, 0, v->run_id, "the run has no events");
    else if (job->checkpoint_seq != 0)
        walk_damage(job->base.w, STR_NONE, job->checkpoint_seq, v->run_id,
                    "a checkpoint stands at no event of its run");
    status st = report->damaged ? ST_OK : compare_run(job, v, err);
    if (st == ST_OK && !report->damaged) st = compare_steps(job, v, err);
    if (st == ST_OK && !report->damaged) st = compare_effects(job, v, err);
    return st;
}

/* Rows that no run's replay asked for. */
static status compare_counts(struct state_job *job, struct error *err) {
    const struct {
        const char *sql;
        int64_t want;
        const char *what;
    } counts[] = {
        {"SELECT COUNT(*) FROM state_run", job->base.runs,
         "there are state rows of runs that do not exist"},
        {"SELECT COUNT(*) FROM state_step WHERE (step_pos >> 20) NOT IN (SELECT run_no"
         " FROM ledger_run)",
         0, "there are steps of runs that do not exist"},
        {"SELECT COUNT(*) FROM state_alert", job->alerts,
         "there are alerts without an invalid event"},
        {"SELECT COUNT(*) FROM state_provider", job->refs,
         "there are provider references without an event"},
        {"SELECT COUNT(*) FROM state_effect", job->effects,
         "there are rows in the outbox of effects that nobody asked for"},
        /* Within a tier a unique index sees to it. */
        {"SELECT COUNT(*) FROM ledger_event e JOIN ledger_archive a ON a.run_no = e.run_no"
         " AND substr(a.key, 1, 8) = substr(e.key, 1, 8)",
         0, "an event was stored again after it had been archived"},
        {"SELECT COUNT(*) FROM ledger_checkpoint", job->checkpoints,
         "there are more or fewer checkpoints than events that created one"},
    };
    for (size_t i = 0; i < COUNT_OF(counts) && !job->base.w->report->damaged; i++) {
        int64_t n = 0;
        status st = walk_count(job->base.w, counts[i].sql, &n, err);
        if (st != ST_OK) return st;
        if (n != counts[i].want) walk_damage(job->base.w, STR_NONE, 0, STR_NONE, counts[i].what);
    }
    return ST_OK;
}

/* The names of the known types are the program's; those of the others are as they were first met.
 */
static status compare_types(struct walk *w, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        w->l->db, "SELECT type_no, name, snake, family FROM ledger_type ORDER BY type_no", &q, err);
    while (st == ST_OK && !w->report->damaged && (st = db_step(q, &row, err)) == ST_OK && row) {
        int64_t type_no = db_int(q, 0);
        const struct event_type_info *info = type_no > 0 && type_no < EVENT_TYPE_COUNT
                                                 ? event_type_info((enum event_type)type_no)
                                                 : NULL;
        char mem[EVENT_TYPE_SNAKE_MAX];
        struct buf snake;
        buf_init_fixed(&snake, mem, sizeof(mem));
        event_type_to_snake(db_text(q, 1), &snake);
        const char *family = info ? event_family_name(info->family) : "RUN";
        if ((info && !str_eq(db_text(q, 1), info->name)) ||
            !str_eq(db_text(q, 2), buf_str(&snake)) || !str_eq(db_text(q, 3), str_c(family))) {
            walk_damage(w, STR_NONE, 0, STR_NONE, "the catalogue of event types was changed");
        }
    }
    if (q) db_reset(q);
    return st;
}

static status compare_lots(struct walk *w, const struct tenant_end *tenants, size_t count,
                           struct error *err) {
    status st = ST_OK;
    for (size_t i = 0; i < count && st == ST_OK && !w->report->damaged; i++) {
        bool same = true;
        st = id_lots_verify(w->l, tenants[i].tenant_no, tenants[i].seq, &same, err);
        if (st == ST_OK && !same)
            walk_damage(w, tenants[i].tenant_id, 0, STR_NONE,
                        "the index of event ids differs from the events");
    }
    return st;
}

status verify_state(struct walk *w, const struct tenant_end *tenants, size_t count,
                    struct error *err) {
    struct state_job job = {
        .base = {
            .w = w, .before_run = open_run, .on_event = verify_event, .after_run = verify_run}};
    const struct verify_report *report = w->report;
    int64_t checkpoints = 0;
    status st = walk_count(w, "SELECT COUNT(*) FROM ledger_checkpoint", &checkpoints, err);
    job.with_checkpoints = checkpoints > 0;
    if (st == ST_OK) st = walk_runs(&job.base, err);
    if (st == ST_OK && !report->damaged) st = compare_counts(&job, err);
    if (st == ST_OK && !report->damaged) st = compare_types(w, err);
    if (st == ST_OK && !report->damaged) st = compare_lots(w, tenants, count, err);
    return st;
}
