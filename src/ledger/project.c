/* Writing rows: events, runs and the projections of runs and steps, each at most once a commit. */
#include "ledger/project.h"

#include "ledger/cache.h"
#include "ledger/effects.h"
#include "ledger/handle.h"

/* clang-format off */
static const struct db_col event_cols[] = {
    {"pos", DB_INT}, {"run_no", DB_INT}, {"run_seq", DB_INT}, {"type_no", DB_INT},
    {"context_no", DB_INT}, {"engine_attempt", DB_INT}, {"logical_attempt", DB_INT},
    {"emitted_ns", DB_INT}, {"emitted_digits", DB_INT}, {"persisted_us", DB_INT},
    {"cause_seq", DB_INT}, {"step_index", DB_INT}, {"event_id", DB_BLOB}, {"key", DB_BLOB},
    {"subject", DB_TEXT}, {"actor", DB_TEXT}, {"payload", DB_TEXT}, {"hash", DB_BLOB}};
static const struct db_col run_cols[] = {
    {"run_no", DB_INT}, {"tenant_no", DB_INT}, {"run_id", DB_TEXT}, {"run_uuid", DB_TEXT},
    {"context_no", DB_INT}, {"correlation_id", DB_TEXT}, {"signal_id", DB_TEXT},
    {"opened_seq", DB_INT}};
static const struct db_col state_cols[] = {
    {"run_no", DB_INT}, {"status", DB_INT}, {"inconsistent", DB_INT}, {"started_seq", DB_INT},
    {"ended_seq", DB_INT}, {"run_level_seq", DB_INT}, {"invalid_events", DB_INT},
    {"engine_attempt", DB_INT}};
static const struct db_col step_cols[] = {
    {"step_pos", DB_INT}, {"attempt", DB_INT}, {"state", DB_INT}, {"started_seq", DB_INT},
    {"ended_seq", DB_INT}, {"result_seq", DB_INT}, {"step_id", DB_TEXT}, {"step_uuid", DB_BLOB}};
enum { STEP_STATE_COLS = 6 }; /* those that change */
enum { LEASE_MOVE_COLS = 4 }; /* all but `poked`: a wake-up that came meanwhile must be seen */
static const struct db_col alert_cols[] = {
    {"run_no", DB_INT}, {"seq", DB_INT}, {"prior", DB_TEXT}, {"attempted", DB_TEXT}};
static const struct db_col lease_cols[] = {
    {"run_no", DB_INT}, {"node_no", DB_INT}, {"epoch", DB_INT}, {"wake_us", DB_INT}, {"poked", DB_INT}};
static const struct db_col receipt_cols[] = { /* as riders.c fills them; the database numbers the rows */
    {"tag", DB_INT}, {"scope", DB_BLOB}, {"key", DB_BLOB}, {"fingerprint", DB_BLOB},
    {"http_status", DB_INT}, {"body", DB_BLOB}, {"location", DB_BLOB}, {"created_us", DB_INT}};
static const struct db_col audit_cols[] = {
    {"at_us", DB_INT}, {"tenant_id", DB_TEXT}, {"actor", DB_TEXT}, {"remote", DB_TEXT},
    {"request_id", DB_TEXT}, {"action", DB_TEXT}, {"target", DB_TEXT}, {"outcome", DB_TEXT},
    {"code", DB_TEXT}, {"reason", DB_TEXT}, {"project_id", DB_TEXT}, {"environment_id", DB_TEXT},
    {"run_id", DB_TEXT}, {"engine_attempt", DB_INT}, {"logical_attempt", DB_INT}};

static const struct db_col tenant_cols[] = {
    {"tenant_no", DB_INT}, {"seq", DB_INT}, {"head", DB_BLOB}, {"persisted_us", DB_INT}};

static const struct db_col lot_cols[] = {{"lot", DB_INT}, {"bucket", DB_INT}, {"ids", DB_BLOB}};

static const struct db_col effect_cols[] = { /* those that change come first */
    {"effect_pos", DB_INT}, {"status", DB_TEXT}, {"executions", DB_INT}, {"retry_count", DB_INT},
    {"due_us", DB_INT}, {"processed_us", DB_INT}, {"result_seq", DB_INT}, {"error_seq", DB_INT},
    {"last_seq", DB_INT}, {"tenant_no", DB_INT}, {"run_no", DB_INT}, {"effect_id", DB_BLOB},
    {"effect_type", DB_TEXT}, {"idempotency_key", DB_TEXT}, {"created_us", DB_INT},
    {"max_retries", DB_INT}, {"base_ms", DB_INT}};
enum { EFFECT_STATE_COLS = 9 };

#define SPEC(table, kind, cols, keys) {table, kind, cols, COUNT_OF(cols), keys}
static const struct db_bulk_spec specs[] = {
    SPEC("ledger_event", DB_INSERT, event_cols, 0), SPEC("ledger_run", DB_INSERT, run_cols, 0),
    SPEC("state_run", DB_INSERT, state_cols, 0),    SPEC("state_run", DB_UPDATE, state_cols, 1),
    SPEC("state_step", DB_INSERT, step_cols, 0),    {"state_step", DB_UPDATE, step_cols, STEP_STATE_COLS, 1},
    SPEC("state_alert", DB_INSERT, alert_cols, 0),  SPEC("lease_run", DB_INSERT, lease_cols, 0),
    {"lease_run", DB_UPDATE, lease_cols, LEASE_MOVE_COLS, 1}, {"lease_run", DB_DELETE, lease_cols, 1, 1},
    SPEC("api_receipt", DB_INSERT, receipt_cols, 0), SPEC("ledger_audit", DB_INSERT, audit_cols, 0),
    SPEC("ledger_tenant", DB_UPDATE, tenant_cols, 1), SPEC("state_lot", DB_INSERT, lot_cols, 0),
    SPEC("state_effect", DB_INSERT, effect_cols, 0), {"state_effect", DB_UPDATE, effect_cols, EFFECT_STATE_COLS, 1}};
/* clang-format on */

status project_open(struct ledger *l, struct error *err) {
    struct db_bulk **slots[] = {&l->ins_event, &l->ins_run,   &l->ins_state,   &l->upd_state,
                                &l->ins_step,  &l->upd_step,  &l->ins_alert,   &l->ins_lease,
                                &l->upd_lease, &l->del_lease, &l->ins_receipt, &l->ins_audit,
                                &l->upd_tenant, &l->ins_id_lot,  &l->ins_effect,  &l->upd_effect};
    static_assert(COUNT_OF(slots) == COUNT_OF(specs), "a slot for each spec");
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        status st = db_bulk_open(l->db, &specs[i], slots[i], err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static void put_some(struct db_bulk *b, int64_t value) {
    if (value > 0)
        db_bulk_int(b, value);
    else
        db_bulk_null(b);
}

struct state_row project_state(const struct run_head *h) {
    return (struct state_row){{h->status, h->inconsistent, h->started_seq, h->ended_seq,
                               h->run_level_seq, h->invalid_events, h->engine_attempt}};
}

void project_run(struct ledger *l, struct run_entry *e) {
    struct state_row now = project_state(&e->run.head);
    static_assert(COUNT_OF(now.cells) + 1 == COUNT_OF(state_cols),
                  "a cell for each column but the key");
    if (e->stored && memcmp(&now, &e->stored_state, sizeof(now)) == 0) return;
    struct db_bulk *b = e->stored ? l->upd_state : l->ins_state;
    db_bulk_int(b, e->run_no);
    for (size_t i = 0; i < COUNT_OF(now.cells); i++) {
        bool is_seq = i >= 2 && i <= 4; /* 0 is NULL: no such event yet */
        if (is_seq)
            put_some(b, now.cells[i]);
        else
            db_bulk_int(b, now.cells[i]);
    }
    e->stored_state = now; /* should the commit fail, the cache is dropped */
}

status project_step(struct ledger *l, const struct run_entry *e, uint32_t index,
                    struct error *err) {
    const struct step *s = &e->run.steps[index];
    bool stored = index < e->stored_steps;
    struct db_bulk *b = stored ? l->upd_step : l->ins_step;
    uuid *u = stored ? NULL : arena_try_raw(&l->scratch, sizeof(*u)); /* lives until the flush */
    if (!stored && !u) return ledger_no_memory(err);
    db_bulk_int(b, step_pos(e->run_no, index));
    db_bulk_int(b, s->attempt);
    db_bulk_int(b, s->state);
    put_some(b, s->started_seq);
    put_some(b, s->ended_seq);
    put_some(b, s->result_seq == s->ended_seq ? 0 : s->result_seq);
    if (u) {
        *u = event_uuid_of(e->run_uuid, s->id);
        db_bulk_text(b, s->id);
        db_bulk_blob(b, str_n(u->b, sizeof(u->b)));
    }
    return ST_OK;
}

status project_effect(struct ledger *l, const struct run_entry *e, uint32_t index,
                      struct error *err) {
    const struct effect *f = &e->effects.items[index];
    bool stored = index < e->stored_effects;
    struct db_bulk *b = stored ? l->upd_effect : l->ins_effect;
    char *key = stored ? NULL : arena_try_raw(&l->scratch, STORED_KEY_MAX);
    if (!stored && !key) return ledger_no_memory(err);
    db_bulk_int(b, pos_of(e->tenant_no, f->requested_seq));
    db_bulk_text(b, str_c(outbox_status_name(f->status)));
    db_bulk_int(b, f->executions);
    db_bulk_int(b, f->retry_count);
    put_some(b, f->due_us);
    put_some(b, f->processed_us);
    put_some(b, f->result_seq);
    put_some(b, f->error_seq);
    db_bulk_int(b, f->last_seq);
    if (stored) return ST_OK;
    struct buf text;
    buf_init_fixed(&text, key, STORED_KEY_MAX);
    effect_stored_key(e->tenant_no, f->key, &text);
    db_bulk_int(b, e->tenant_no);
    db_bulk_int(b, e->run_no);
    db_bulk_blob(b, str_n(f->id.b, sizeof(f->id.b)));
    db_bulk_text(b, f->type);
    db_bulk_text(b, buf_str(&text));
    db_bulk_int(b, f->created_us);
    db_bulk_int(b, f->max_retries);
    db_bulk_int(b, f->base_ms);
    return ST_OK;
}

/* Inserts first: PostgreSQL's driver sends them ahead while we prepare the rest. */
/* clang-format off */
#define ALL_BULKS(l) {(l)->ins_event, (l)->ins_run, (l)->ins_state, (l)->ins_step, (l)->ins_alert, (l)->ins_lease, (l)->ins_receipt, (l)->ins_audit, (l)->ins_effect, \
    (l)->upd_effect, (l)->upd_state, (l)->upd_step, (l)->upd_lease, (l)->del_lease, (l)->upd_tenant}
/* clang-format on */

status project_flush(struct ledger *l, struct error *err) {
    struct db_bulk *all[] = ALL_BULKS(l);
    status st = ST_OK;
    for (size_t i = 0; i < COUNT_OF(all) && st == ST_OK; i++)
        st = db_bulk_flush(all[i], err);
    return st;
}

size_t project_queued(struct ledger *l) {
    struct db_bulk *all[] = ALL_BULKS(l);
    size_t rows = 0;
    for (size_t i = 0; i < COUNT_OF(all); i++)
        rows += db_bulk_rows(all[i]);
    return rows;
}

void project_clear(struct ledger *l) {
    struct db_bulk *all[] = ALL_BULKS(l);
    for (size_t i = 0; i < COUNT_OF(all); i++)
        db_bulk_clear(all[i]);
}
