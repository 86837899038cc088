/* Verifying and rebuilding.
 *
 * verify walks each tenant's events in order, one scan, and recomputes the chain. verify --state
 * and rebuild go run by run: a run's events are reduced into one struct run, whose rows are
 * compared, or written, once each and in order. Memory is one run's. */
#include "ledger/impl.h"

enum { PROGRESS_EVERY = 65536 };

struct walk {
    struct ledger *l;
    ledger_progress progress;
    void *context;
    int64_t done, total;
    struct arena *arena;
    struct verify_report *report;
};

static void tick(struct walk *w) {
    w->done++;
    if (w->progress && w->done % PROGRESS_EVERY == 0) w->progress(w->context, w->done, w->total);
}

static void damage(struct walk *w, str tenant_id, int64_t seq, str run_id, const char *what) {
    struct verify_report *r = w->report;
    r->damaged = true;
    r->seq = seq;
    r->tenant_id = tenant_id.ptr ? arena_str(w->arena, tenant_id) : STR_NONE;
    r->run_id = run_id.ptr ? arena_str(w->arena, run_id) : STR_NONE;
    struct buf b;
    buf_init_fixed(&b, r->what, sizeof(r->what) - 1);
    buf_put_c(&b, what);
    r->what[b.len] = 0;
}

/* ---- the chain ---- */

struct tenant_end {
    int64_t tenant_no, seq, persisted_us;
    str tenant_id;
    bool uuid_fits;
    uint8_t head[SHA256_LEN];
};

/* The identity counts only as the one that this row opened: in its tenant, with its context. */
static status read_identity(struct ledger *l, const struct event_row *event, str tenant_id,
                            struct db_stmt **q, struct run_identity *id, bool *opens,
                            struct error *err) {
    bool row = false;
    status st = db_prepare(l->db,
                           "SELECT r.opened_seq, r.run_id, r.run_uuid, c.project_id,"
                           " c.environment_id, r.correlation_id, r.signal_id, r.tenant_no,"
                           " r.context_no FROM ledger_run r"
                           " JOIN ledger_context c ON c.context_no = r.context_no"
                           " WHERE r.run_no = $1",
                           q, err);
    if (st != ST_OK) return st;
    db_bind_int(*q, 1, event->run_no);
    st = db_step(*q, &row, err);
    *opens = st == ST_OK && row && db_int(*q, 0) == pos_seq(event->pos) &&
             db_int(*q, 7) == pos_tenant(event->pos) && db_int(*q, 8) == event->context_no;
    if (*opens) {
        *id = (struct run_identity){.tenant_id = tenant_id,
                                    .run_id = db_text(*q, 1),
                                    .run_uuid = db_text(*q, 2),
                                    .project_id = db_text(*q, 3),
                                    .environment_id = db_text(*q, 4),
                                    .correlation_id = db_text(*q, 5),
                                    .signal_id = db_text(*q, 6)};
    }
    return st;
}

/* What is wrong with the row that should follow (seq, persisted_us, prev); NULL if nothing. */
static const char *row_fault(const struct event_row *row, const struct tenant_end *end, int64_t seq,
                             int64_t persisted_us) {
    if (pos_tenant(row->pos) != end->tenant_no || pos_seq(row->pos) != seq)
        return "the sequence has a gap before this event";
    if (row->event_id.len != 16 || row->key.len != SHA256_LEN)
        return "an id of this event has the wrong length";
    if (row->persisted_us < persisted_us)
        return "this event was persisted before the one it follows";
    if (row->cause_seq >= seq || row->cause_seq < 0) return "this event is caused by a later one";
    return NULL;
}

static status check_row(struct walk *w, struct db_stmt *scan, const struct tenant_end *end,
                        int64_t seq, int64_t *persisted_us, uint8_t prev[SHA256_LEN],
                        struct error *err) {
    struct event_row row;
    event_row_read(scan, &row);
    const char *fault = row_fault(&row, end, seq, *persisted_us);
    if (fault) {
        damage(w, end->tenant_id, seq, STR_NONE, fault);
        return ST_OK;
    }
    struct run_identity id;
    struct db_stmt *q = NULL;
    bool opens = false;
    status st = ST_OK;
    if (row.run_seq <= 1) st = read_identity(w->l, &row, end->tenant_id, &q, &id, &opens, err);
    if (st == ST_OK) {
        uint8_t hash[SHA256_LEN];
        chain_hash(w->l->sha, prev, &row, opens ? &id : NULL, hash);
        if (!str_eq(db_blob(scan, EVENT_ROW_HASH), str_n(hash, SHA256_LEN))) {
            damage(w, end->tenant_id, seq, STR_NONE,
                   "the hash does not match: this event, its run's identity or the event before it "
                   "was changed");
        }
        memcpy(prev, hash, SHA256_LEN);
        *persisted_us = row.persisted_us;
    }
    if (q) db_reset(q);
    return st;
}

/* PostgreSQL's client holds a whole result, so the scan goes in pages there. */
static status verify_tenant(struct walk *w, const struct tenant_end *end, struct error *err) {
    struct ledger *l = w->l;
    uint8_t prev[SHA256_LEN];
    int64_t page = db_is_postgres(l->db) ? 8192 : INT64_MAX;
    int64_t seq = 0;
    int64_t persisted_us = 0;
    int64_t rows = page;
    chain_genesis(l->sha, end->tenant_id, prev);
    struct db_stmt *scan = NULL;
    status st =
        db_prepare(l->db,
                   "SELECT " EVENT_ROW_COLUMNS
                   " FROM ledger_event e WHERE e.pos > $1 AND e.pos < $2 ORDER BY e.pos LIMIT $3",
                   &scan, err);
    while (st == ST_OK && rows == page && !w->report->damaged) {
        db_bind_int(scan, 1, pos_of(end->tenant_no, seq));
        db_bind_int(scan, 2, pos_of(end->tenant_no + 1, 0));
        db_bind_int(scan, 3, page);
        bool row = false;
        for (rows = 0; !w->report->damaged && (st = db_step(scan, &row, err)) == ST_OK && row;
             rows++) {
            st = check_row(w, scan, end, ++seq, &persisted_us, prev, err);
            if (st != ST_OK) break;
            tick(w);
        }
        db_reset(scan);
    }
    if (st != ST_OK || w->report->damaged) return st;
    w->report->events += seq;
    if (seq != end->seq)
        damage(w, end->tenant_id, seq + 1, STR_NONE, "the newest events of the tenant are missing");
    else if (memcmp(prev, end->head, SHA256_LEN) != 0)
        damage(w, end->tenant_id, seq, STR_NONE,
               "the tenant's head does not match its newest event");
    else if (persisted_us != end->persisted_us)
        damage(w, end->tenant_id, seq, STR_NONE,
               "the tenant's time does not match its newest event");
    else if (!end->uuid_fits)
        damage(w, end->tenant_id, 0, STR_NONE, "the tenant's UUID is not that of its id");
    return ST_OK;
}

static status list_tenants(struct walk *w, struct tenant_end **out, size_t *count,
                           struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    size_t cap = 16;
    size_t n = 0;
    struct tenant_end *list = arena_alloc(w->arena, cap * sizeof(*list));
    status st = db_prepare(w->l->db,
                           "SELECT tenant_no, tenant_id, seq, head, persisted_us, tenant_uuid"
                           " FROM ledger_tenant ORDER BY tenant_no",
                           &q, err);
    while (st == ST_OK && (st = db_step(q, &row, err)) == ST_OK && row) {
        if (n == cap) {
            struct tenant_end *more = arena_alloc(w->arena, cap * 2 * sizeof(*list));
            memcpy(more, list, n * sizeof(*list));
            list = more;
            cap *= 2;
        }
        struct tenant_end *t = &list[n++];
        *t = (struct tenant_end){.tenant_no = db_int(q, 0),
                                 .seq = db_int(q, 2),
                                 .persisted_us = db_int(q, 4),
                                 .tenant_id = arena_str(w->arena, db_text(q, 1))};
        if (db_blob(q, 3).len == SHA256_LEN) memcpy(t->head, db_blob(q, 3).ptr, SHA256_LEN);
        uuid shown;
        t->uuid_fits =
            uuid_parse(db_text(q, 5), &shown) && uuid_eq(shown, event_tenant_uuid(t->tenant_id));
        w->total += t->seq;
    }
    if (q) db_reset(q);
    *out = list;
    *count = n;
    return st;
}

/* ---- run by run ---- */

struct run_visit {
    int64_t run_no, tenant_no;
    str run_id;
    uuid run_uuid;
    struct run run;
};

/* What differs between a run's replay and its rows, or what writing them needs: called after each
 * run was reduced. */
struct run_job {
    struct walk *w;
    struct arena arena; /* one run's */
    status (*on_run)(struct run_job *job, struct run_visit *v, struct error *err);
    replay_hook on_event;
    struct run_visit *visit;
    int64_t runs;
    int64_t alerts, refs, checkpoints; /* events seen so far that have a row of that kind */
    /* Of the run being visited: */
    int64_t context_no; /* the context read last; 0: none yet */
    str plan_id, plan_version;
    int64_t checkpoint_seq, checkpoint_index; /* the next checkpoint to be met; 0: none */
    bool with_checkpoints;                    /* ask for them: there are some */
};

static status next_checkpoint(struct run_job *job, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(job->w->l->db,
                           "SELECT seq, checkpoint_index FROM ledger_checkpoint WHERE run_no = $1"
                           " AND (seq > $2 OR (seq = $2 AND checkpoint_index > $3))"
                           " ORDER BY seq, checkpoint_index LIMIT 1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, job->visit->run_no);
    db_bind_int(q, 2, job->checkpoint_seq);
    db_bind_int(q, 3, job->checkpoint_index);
    st = db_step(q, &row, err);
    job->checkpoint_seq = st == ST_OK && row ? db_int(q, 0) : 0;
    job->checkpoint_index = st == ST_OK && row ? db_int(q, 1) : 0;
    db_reset(q);
    return st;
}

static status visit_run(struct run_job *job, struct run_visit *v, struct error *err) {
    job->visit = v;
    job->context_no = 0;
    job->checkpoint_seq = job->checkpoint_index = 0;
    struct replay r = {.run_no = v->run_no,
                       .tenant_no = v->tenant_no,
                       .run = &v->run,
                       .arena = &job->arena,
                       .on_event = job->on_event,
                       .context = job};
    status st = job->with_checkpoints ? next_checkpoint(job, err) : ST_OK;
    if (st == ST_OK) st = replay_run(job->w->l, &r, err);
    if (st == ST_OK) st = job->on_run(job, v, err);
    job->runs++;
    return st;
}

static status each_run(struct run_job *job, struct error *err) {
    struct ledger *l = job->w->l;
    struct db_stmt *q = NULL;
    status st = db_prepare(l->db,
                           "SELECT run_no, tenant_no, run_id, run_uuid FROM ledger_run"
                           " WHERE run_no > $1 ORDER BY run_no LIMIT $2",
                           &q, err);
    int64_t page = db_is_postgres(l->db) ? 8192 : INT64_MAX;
    int64_t after = 0;
    int64_t rows = page;
    arena_init(&job->arena, 4096, SIZE_MAX);
    while (st == ST_OK && rows == page && !job->w->report->damaged) {
        bool row = false;
        db_bind_int(q, 1, after);
        db_bind_int(q, 2, page);
        for (rows = 0; !job->w->report->damaged && (st = db_step(q, &row, err)) == ST_OK && row;
             rows++) {
            arena_reset(&job->arena);
            struct run_visit v = {.run_no = db_int(q, 0), .tenant_no = db_int(q, 1)};
            after = v.run_no;
            if (!arena_try_str(&job->arena, db_text(q, 2), &v.run_id)) {
                st = ledger_no_memory(err);
            } else if (!uuid_parse(db_text(q, 3), &v.run_uuid)) {
                damage(job->w, STR_NONE, 0, v.run_id, "the run has no readable identity");
            } else {
                st = visit_run(job, &v, err);
            }
            if (st != ST_OK) break;
            tick(job->w);
        }
        db_reset(q);
    }
    arena_release(&job->arena);
    return st;
}

/* ---- verify --state ---- */

static status compare_run(struct run_job *job, struct run_visit *v, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(job->w->l->db,
                           "SELECT status, inconsistent, started_seq, ended_seq, run_level_seq,"
                           " invalid_events, engine_attempt FROM state_run WHERE run_no = $1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, v->run_no);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row) damage(job->w, STR_NONE, 0, v->run_id, "the run has no state row");
    struct state_row want = project_state(&v->run.head);
    for (size_t i = 0; st == ST_OK && row && i < COUNT_OF(want.cells); i++) {
        if (db_int(q, (int)i) == want.cells[i]) continue;
        damage(job->w, STR_NONE, 0, v->run_id,
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

static status compare_steps(struct run_job *job, struct run_visit *v, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    uint32_t rows = 0;
    status st = db_prepare(
        job->w->l->db,
        "SELECT step_id, step_uuid, step_pos, attempt, state, started_seq, ended_seq, result_seq"
        " FROM state_step WHERE step_pos >= $1 AND step_pos < $2",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, step_pos(v->run_no, 0));
    db_bind_int(q, 2, step_pos(v->run_no + 1, 0));
    while ((st = db_step(q, &row, err)) == ST_OK && row) {
        rows++;
        if (step_matches(q, v, run_step(&v->run, db_text(q, 0)))) continue;
        damage(job->w, STR_NONE, 0, v->run_id,
               "a step's row differs from the replay of its events");
        break;
    }
    db_reset(q);
    if (st == ST_OK && !job->w->report->damaged && rows != v->run.step_count) {
        damage(job->w, STR_NONE, 0, v->run_id,
               "the run has more or fewer step rows than its events name");
    }
    return st;
}

static status compare_alert(struct run_job *job, int64_t seq, const struct transition *bad,
                            struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        job->w->l->db, "SELECT prior, attempted FROM state_alert WHERE run_no = $1 AND seq = $2",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, job->visit->run_no);
    db_bind_int(q, 2, seq);
    st = db_step(q, &row, err);
    if (st == ST_OK && (!row || !str_eq(db_text(q, 0), str_c(bad->prior)) ||
                        !str_eq(db_text(q, 1), str_c(bad->attempted)))) {
        damage(job->w, STR_NONE, seq, job->visit->run_id, "an invalid event has no matching alert");
    }
    db_reset(q);
    return st;
}

/* The plan of an event. Its context must be one of its run's tenant, project and environment. */
static status read_context(struct run_job *job, int64_t context_no, struct error *err) {
    if (job->context_no == context_no) return ST_OK;
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        job->w->l->db,
        "SELECT c.plan_id, c.plan_version FROM ledger_context c JOIN ledger_run r ON r.run_no = $2"
        " JOIN ledger_context o ON o.context_no = r.context_no WHERE c.context_no = $1"
        " AND c.tenant_no = r.tenant_no AND c.project_id = o.project_id"
        " AND c.environment_id = o.environment_id",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, context_no);
    db_bind_int(q, 2, job->visit->run_no);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row) {
        damage(job->w, STR_NONE, 0, job->visit->run_id,
               "an event of the run has a context of another tenant, project or environment");
    } else if (st == ST_OK) {
        job->context_no = context_no;
        if (!arena_try_str(&job->arena, db_text(q, 0), &job->plan_id) ||
            !arena_try_str(&job->arena, db_text(q, 1), &job->plan_version)) {
            st = ledger_no_memory(err);
        }
    }
    db_reset(q);
    return st;
}

/* The key ties the row's numbers to the texts of run, step, type and plan: derive it again. */
static status compare_key(struct run_job *job, const struct event_row *row,
                          const struct event_record *rec, struct error *err) {
    status st = read_context(job, row->context_no, err);
    if (st != ST_OK || job->w->report->damaged) return st;
    struct event e = rec->event;
    e.run_id = job->visit->run_id;
    e.plan_id = job->plan_id;
    e.plan_version = job->plan_version;
    uint8_t key[SHA256_LEN];
    event_key_derive(&e, key);
    if (memcmp(key, rec->event.key, SHA256_LEN) != 0) {
        damage(job->w, STR_NONE, rec->seq, job->visit->run_id,
               "the idempotency key is not the one derived from this event");
    }
    return ST_OK;
}

/* The reference that a RunProviderLinked names belongs to its run; the first event that names it is
 * the one in the row. */
static status compare_ref(struct run_job *job, const struct event_record *rec, struct error *err) {
    struct provider_ref ref;
    struct db_stmt *q = NULL;
    bool row = false;
    if (!provider_ref_parse(rec->event.payload, &job->arena, &ref)) return ST_OK;
    status st = db_prepare(job->w->l->db,
                           "SELECT run_no, seq FROM state_provider WHERE tenant_no = $1"
                           " AND provider = $2 AND workflow_id = $3 AND provider_run_id = $4",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, job->visit->tenant_no);
    db_bind_text(q, 2, ref.provider);
    db_bind_text(q, 3, ref.workflow_id);
    db_bind_text(q, 4, ref.provider_run_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && (!row || db_int(q, 0) != job->visit->run_no || db_int(q, 1) > rec->seq)) {
        damage(job->w, STR_NONE, rec->seq, job->visit->run_id,
               "a provider reference differs from the event that made it");
    }
    if (st == ST_OK && row && db_int(q, 1) == rec->seq) job->refs++;
    db_reset(q);
    return st;
}

/* A checkpoint holds the state of its run after the event at its sequence_number. */
static status compare_checkpoint(struct run_job *job, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    struct buf b;
    status st = db_prepare(
        job->w->l->db,
        "SELECT data FROM ledger_checkpoint WHERE run_no = $1 AND checkpoint_index = $2", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, job->visit->run_no);
    db_bind_int(q, 2, job->checkpoint_index);
    st = db_step(q, &row, err);
    buf_init(&b, SIZE_MAX / 2);
    if (st == ST_OK) run_state_json(&job->visit->run, &b);
    if (st == ST_OK && b.full) st = ledger_no_memory(err);
    if (st == ST_OK && (!row || !str_eq(db_text(q, 0), buf_str(&b)))) {
        damage(job->w, STR_NONE, job->checkpoint_seq, job->visit->run_id,
               "a checkpoint differs from the replay of the events before it");
    }
    buf_release(&b);
    db_reset(q);
    return st == ST_OK ? next_checkpoint(job, err) : st;
}

static status verify_event(void *context, const struct event_row *row,
                           const struct event_record *rec, const struct transition *bad,
                           struct error *err) {
    struct run_job *job = context;
    const struct verify_report *report = job->w->report;
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

static status verify_run(struct run_job *job, struct run_visit *v, struct error *err) {
    const struct verify_report *report = job->w->report;
    if (report->damaged) return ST_OK;
    if (v->run.head.last_seq == 0)
        damage(job->w, STR_NONE, 0, v->run_id, "the run has no events");
    else if (job->checkpoint_seq != 0)
        damage(job->w, STR_NONE, job->checkpoint_seq, v->run_id,
               "a checkpoint stands at no event of its run");
    status st = report->damaged ? ST_OK : compare_run(job, v, err);
    if (st == ST_OK && !report->damaged) st = compare_steps(job, v, err);
    return st;
}

static status count_of(struct ledger *l, const char *sql, int64_t *out, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, sql, &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK) *out = db_int(q, 0);
    if (q) db_reset(q);
    return st;
}

/* Rows that no run's replay asked for. */
static status compare_counts(struct run_job *job, struct error *err) {
    const struct {
        const char *sql;
        int64_t want;
        const char *what;
    } counts[] = {
        {"SELECT COUNT(*) FROM state_run", job->runs,
         "there are state rows of runs that do not exist"},
        {"SELECT COUNT(*) FROM state_step WHERE (step_pos >> 20) NOT IN (SELECT run_no"
         " FROM ledger_run)",
         0, "there are steps of runs that do not exist"},
        {"SELECT COUNT(*) FROM state_alert", job->alerts,
         "there are alerts without an invalid event"},
        {"SELECT COUNT(*) FROM state_provider", job->refs,
         "there are provider references without an event"},
        {"SELECT COUNT(*) FROM ledger_checkpoint", job->checkpoints,
         "there are more or fewer checkpoints than events that created one"},
    };
    for (size_t i = 0; i < COUNT_OF(counts) && !job->w->report->damaged; i++) {
        int64_t n = 0;
        status st = count_of(job->w->l, counts[i].sql, &n, err);
        if (st != ST_OK) return st;
        if (n != counts[i].want) damage(job->w, STR_NONE, 0, STR_NONE, counts[i].what);
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
            damage(w, STR_NONE, 0, STR_NONE, "the catalogue of event types was changed");
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
        st = lots_verify(w->l, tenants[i].tenant_no, tenants[i].seq, &same, err);
        if (st == ST_OK && !same)
            damage(w, tenants[i].tenant_id, 0, STR_NONE,
                   "the index of event ids differs from the events");
    }
    return st;
}

status ledger_verify(struct ledger *l, bool state, ledger_progress progress, void *context,
                     struct arena *arena, struct verify_report *report, struct error *err) {
    *report = (struct verify_report){0};
    struct walk w = {
        .l = l, .progress = progress, .context = context, .arena = arena, .report = report};
    struct tenant_end *tenants = NULL;
    size_t count = 0;
    status st = db_begin(l->db, false, err); /* one snapshot: writers may go on */
    if (st != ST_OK) return st;
    st = list_tenants(&w, &tenants, &count, err);
    for (size_t i = 0; i < count && st == ST_OK && !report->damaged; i++)
        st = verify_tenant(&w, &tenants[i], err);
    if (st == ST_OK) st = count_of(l, "SELECT COUNT(*) FROM ledger_run", &report->runs, err);
    if (st == ST_OK && !report->damaged && state) {
        struct run_job job = {.w = &w, .on_run = verify_run, .on_event = verify_event};
        w.done = 0;
        w.total = report->runs;
        int64_t checkpoints = 0;
        st = count_of(l, "SELECT COUNT(*) FROM ledger_checkpoint", &checkpoints, err);
        job.with_checkpoints = checkpoints > 0;
        if (st == ST_OK) st = each_run(&job, err);
        if (st == ST_OK && !report->damaged) st = compare_counts(&job, err);
        if (st == ST_OK && !report->damaged) st = compare_types(&w, err);
        if (st == ST_OK && !report->damaged) st = compare_lots(&w, tenants, count, err);
    }
    if (st == ST_CORRUPT) { /* the reader itself could not go on: that is a finding */
        damage(&w, STR_NONE, 0, STR_NONE, err->msg);
        st = ST_OK;
    }
    db_rollback(l->db);
    return st;
}

/* ---- rebuild ---- */

enum { REBUILD_FLUSH_ROWS = 4096 };

static status insert_alert(struct ledger *l, int64_t run_no, int64_t seq,
                           const struct transition *bad, struct error *err) {
    db_bulk_int(l->ins_alert, run_no);
    db_bulk_int(l->ins_alert, seq);
    db_bulk_text(l->ins_alert, str_c(bad->prior));
    db_bulk_text(l->ins_alert, str_c(bad->attempted));
    return db_bulk_rows(l->ins_alert) >= REBUILD_FLUSH_ROWS ? db_bulk_flush(l->ins_alert, err)
                                                            : ST_OK;
}

static status insert_ref(struct run_job *job, const struct event_record *rec, struct error *err) {
    struct provider_ref ref;
    struct db_stmt *ins = NULL;
    if (!provider_ref_parse(rec->event.payload, &job->arena, &ref)) return ST_OK;
    status st = db_prepare(
        job->w->l->db,
        "INSERT INTO state_provider(tenant_no, provider, workflow_id, provider_run_id, run_no, seq)"
        " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        &ins, err);
    if (st != ST_OK) return st;
    db_bind_int(ins, 1, job->visit->tenant_no);
    db_bind_text(ins, 2, ref.provider);
    db_bind_text(ins, 3, ref.workflow_id);
    db_bind_text(ins, 4, ref.provider_run_id);
    db_bind_int(ins, 5, job->visit->run_no);
    db_bind_int(ins, 6, rec->seq);
    int64_t changed = 0;
    st = db_run(ins, &changed, err);
    db_reset(ins);
    return st;
}

static status rebuild_event(void *context, const struct event_row *row,
                            const struct event_record *rec, const struct transition *bad,
                            struct error *err) {
    struct run_job *job = context;
    UNUSED(row);
    if (bad) return insert_alert(job->w->l, job->visit->run_no, rec->seq, bad, err);
    return rec->event.type == EVENT_RUN_PROVIDER_LINKED ? insert_ref(job, rec, err) : ST_OK;
}

static status rebuild_run(struct run_job *job, struct run_visit *v, struct error *err) {
    struct ledger *l = job->w->l;
    struct run_entry e = {.run_no = v->run_no, .run_uuid = v->run_uuid, .run = v->run};
    status st = ST_OK;
    project_run(l, &e);
    for (uint32_t i = 0; i < v->run.step_count && st == ST_OK; i++) {
        st = project_step(l, &e, i, err);
        /* Step ids live in the job's arena, which the next run reuses. */
        if (st == ST_OK && db_bulk_rows(l->ins_step) >= REBUILD_FLUSH_ROWS)
            st = project_flush(l, err);
    }
    if (st == ST_OK) st = db_bulk_flush(l->ins_step, err);
    if (st == ST_OK && db_bulk_rows(l->ins_state) >= REBUILD_FLUSH_ROWS) st = project_flush(l, err);
    if (st == ST_OK) arena_reset(&l->scratch);
    return st;
}

static status rebuild_lots(struct walk *w, struct error *err) {
    struct tenant_end *tenants = NULL;
    size_t count = 0;
    status st = list_tenants(w, &tenants, &count, err);
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        struct tenant t = {.tenant_no = tenants[i].tenant_no, .seq = tenants[i].seq};
        st = lots_write_missing(w->l, &t, err);
    }
    return st;
}

status ledger_rebuild(struct ledger *l, ledger_progress progress, void *context, int64_t *runs,
                      struct error *err) {
    ASSERT(l->writer);
    status st = l->broken ? ledger_connect_now(l, err) : ST_OK;
    if (st != ST_OK) return st;
    struct verify_report report = {0};
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    struct walk w = {
        .l = l, .progress = progress, .context = context, .arena = &arena, .report = &report};
    struct run_job job = {.w = &w, .on_run = rebuild_run, .on_event = rebuild_event};
    arena_reset(&l->scratch);
    st = db_begin(l->db, true, err);
    if (st == ST_OK)
        st = db_exec(l->db,
                     "DELETE FROM state_run; DELETE FROM state_step; DELETE FROM state_alert;"
                     " DELETE FROM state_provider; DELETE FROM state_lot",
                     err);
    if (st == ST_OK) st = count_of(l, "SELECT COUNT(*) FROM ledger_run", &w.total, err);
    if (st == ST_OK) st = each_run(&job, err);
    if (st == ST_OK && report.damaged)
        st = error_at(err, ST_CORRUPT, "LEDGER_DAMAGED", "", "%s", report.what);
    if (st == ST_OK) st = project_flush(l, err);
    if (st == ST_OK) st = rebuild_lots(&w, err);
    if (st == ST_OK) st = db_commit(l->db, err);
    cache_clear(&l->cache);
    dict_clear(&l->dict);
    if (st != ST_OK) {
        db_rollback(l->db);
        project_clear(l);
        l->broken = true;
    }
    arena_release(&arena);
    if (st == ST_OK && runs) *runs = job.runs;
    return st;
}
