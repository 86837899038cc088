#include "ledger/tend/visit.h"

enum { PROGRESS_EVERY = 65536 };

void walk_tick(struct walk *w) {
    w->done++;
    if (w->progress && w->done % PROGRESS_EVERY == 0) w->progress(w->context, w->done, w->total);
}

void walk_damage(struct walk *w, str tenant_id, int64_t seq, str run_id, const char *what) {
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

status walk_count(struct walk *w, const char *sql, int64_t *out, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(w->l->db, sql, &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK) *out = db_int(q, 0);
    if (q) db_reset(q);
    return st;
}

status walk_tenants(struct walk *w, struct tenant_end **out, size_t *count, struct error *err) {
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

/* Reduces EFFECT facts, which run_apply() does not know, and hands every event on. */
static status visit_event(void *context, const struct event_row *row,
                          const struct event_record *rec, const struct transition *bad,
                          struct error *err) {
    struct run_job *job = context;
    status st = event_family_of(&rec->event) == FAMILY_EFFECT
                    ? effects_replay(&job->visit->effects, rec, &job->arena, err)
                    : ST_OK;
    return st == ST_OK ? job->on_event(context, row, rec, bad, err) : st;
}

static status visit_run(struct run_job *job, struct run_visit *v, struct error *err) {
    job->visit = v;
    struct replay r = {.run_no = v->run_no,
                       .tenant_no = v->tenant_no,
                       .run = &v->run,
                       .arena = &job->arena,
                       .on_event = visit_event,
                       .context = job};
    status st = job->before_run ? job->before_run(job, err) : ST_OK;
    if (st == ST_OK) st = replay_run(job->w->l, &r, err);
    if (st == ST_OK) st = job->after_run(job, err);
    job->runs++;
    return st;
}

status walk_runs(struct run_job *job, struct error *err) {
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
                walk_damage(job->w, STR_NONE, 0, v.run_id, "the run has no readable identity");
            } else {
                st = visit_run(job, &v, err);
            }
            if (st != ST_OK) break;
            walk_tick(job->w);
        }
        db_reset(q);
    }
    arena_release(&job->arena);
    return st;
}
