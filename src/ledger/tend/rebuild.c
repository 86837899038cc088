/* Rebuilding: the projections are dropped and made again from the events, in one transaction. */
#include "ledger/id_lots.h"
#include "ledger/project.h"
#include "ledger/tend/visit.h"

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

static status rebuild_run(struct run_job *job, struct error *err) {
    struct ledger *l = job->w->l;
    const struct run_visit *v = job->visit;
    struct run_entry e = {.run_no = v->run_no,
                          .tenant_no = v->tenant_no,
                          .run_uuid = v->run_uuid,
                          .run = v->run,
                          .effects = v->effects};
    status st = ST_OK;
    project_run(l, &e);
    for (uint32_t i = 0; i < v->run.step_count && st == ST_OK; i++) {
        st = project_step(l, &e, i, err);
        /* Step ids live in the job's arena, which the next run reuses. */
        if (st == ST_OK && db_bulk_rows(l->ins_step) >= REBUILD_FLUSH_ROWS)
            st = project_flush(l, err);
    }
    for (uint32_t i = 0; i < v->effects.count && st == ST_OK; i++)
        st = project_effect(l, &e, i, err);
    if (st == ST_OK) st = db_bulk_flush(l->ins_step, err);
    if (st == ST_OK) st = db_bulk_flush(l->ins_effect, err);
    if (st == ST_OK && db_bulk_rows(l->ins_state) >= REBUILD_FLUSH_ROWS) st = project_flush(l, err);
    if (st == ST_OK) arena_reset(&l->scratch);
    return st;
}

static status rebuild_lots(struct walk *w, struct error *err) {
    struct tenant_end *tenants = NULL;
    size_t count = 0;
    status st = walk_tenants(w, &tenants, &count, err);
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        struct tenant t = {.tenant_no = tenants[i].tenant_no, .seq = tenants[i].seq};
        st = id_lots_write_missing(w->l, &t, err);
    }
    return st;
}

status ledger_rebuild(struct ledger *l, ledger_progress progress, void *context, int64_t *runs,
                      struct error *err) {
    ASSERT(l->writer);
    status st = ledger_usable(l, err);
    if (st != ST_OK) return st;
    ledger_move(l, LEDGER_MAKING);
    struct verify_report report = {0};
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    struct walk w = {
        .l = l, .progress = progress, .context = context, .arena = &arena, .report = &report};
    struct run_job job = {.w = &w, .after_run = rebuild_run, .on_event = rebuild_event};
    arena_reset(&l->scratch);
    st = db_begin(l->db, true, err);
    if (st == ST_OK) /* Nodes that append wait meanwhile. */
        st = db_exec(l->db,
                     "{postgres:LOCK TABLE ledger_tenant IN EXCLUSIVE MODE;}"
                     "DELETE FROM state_run; DELETE FROM state_step; DELETE FROM state_alert;"
                     " DELETE FROM state_provider; DELETE FROM state_lot; DELETE FROM state_effect",
                     err);
    if (st == ST_OK) st = walk_count(&w, "SELECT COUNT(*) FROM ledger_run", &w.total, err);
    if (st == ST_OK) st = walk_runs(&job, err);
    if (st == ST_OK && report.damaged)
        st = error_at(err, REASON_LEDGER_DAMAGED, "", "%s", report.what);
    if (st == ST_OK) st = project_flush(l, err);
    if (st == ST_OK) st = rebuild_lots(&w, err);
    if (st == ST_OK) st = db_commit(l->db, err);
    cache_clear(&l->cache);
    dict_clear(&l->dict);
    if (st == ST_OK) {
        ledger_move(l, LEDGER_IDLE);
    } else {
        db_rollback(l->db);
        project_clear(l);
        ledger_break(l);
    }
    arena_release(&arena);
    if (st == ST_OK && runs) *runs = job.runs;
    return st;
}
