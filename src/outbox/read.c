/* outbox/read.c: reading the outbox: one effect, a page of them, what is due, how many wait. For
 * any ledger, a reader's or a writer's. */
#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/log.h"
#include "ledger/effects.h"
#include "ledger/schema.h"
#include "outbox/outbox.h"
#include "outbox/outbox_impl.h"

/* clang-format off */
#define EFFECT_SELECT                                                                              \
    "SELECT f.effect_pos, f.executions, f.retry_count, f.max_retries, f.base_ms, f.due_us, f.processed_us, f.created_us,"  \
    " f.result_seq, f.error_seq, f.last_seq, f.run_no, COALESCE(s.engine_attempt, 1), f.status, f.effect_id,"              \
    " f.effect_type, f.idempotency_key, r.run_id, t.tenant_id, c.project_id, c.environment_id, c.plan_id, c.plan_version," \
    " r.run_uuid, r.correlation_id, " EVENT_AT("y.event_id", "f.effect_pos") ", "                  \
    EVENT_AT("y.payload", "f.effect_pos") ", "                                                     \
    EVENT_AT("y.payload", "(f.tenant_no * 1099511627776 + f.result_seq)") ", "                     \
    EVENT_AT("y.payload", "(f.tenant_no * 1099511627776 + f.error_seq)") ", t.persisted_us"        \
    " FROM state_effect f JOIN ledger_run r ON r.run_no = f.run_no JOIN ledger_tenant t ON t.tenant_no = f.tenant_no"      \
    " JOIN ledger_context c ON c.context_no = r.context_no LEFT JOIN state_run s ON s.run_no = f.run_no"
/* clang-format on */
enum {
    COL_DUE = 5,
    COL_STATUS = 13,
    COL_ID,
    COL_TYPE,
    COL_KEY,
    COL_RUN,
    COL_UUID = 23,
    COL_CORRELATION,
    COL_REQUEST,
    COL_PAYLOAD,
    COL_RESULT,
    COL_ERROR,
    COL_TENANT_US
};

static status damaged(const struct effect_info *info, struct error *err) {
    return error_at(err, REASON_LEDGER_DAMAGED, "", "an effect of run \"%.*s\" cannot be read",
                    STR_ARG(info->run_id));
}

/* *root stays NULL when there is no text, and when it is no JSON: then the row is damaged. */
static status parse(str text, struct arena *arena, yyjson_val **root, struct error *err) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    status st = text.len > 0 ? json_parse(text, limits, arena, root, err) : ST_OK;
    return st == ST_RETRY ? st : ST_OK;
}

/* The error as the row shows it, of the fact that tells of the failure. */
static status read_failure(yyjson_val *failure, struct arena *arena, str *out, struct error *err) {
    str code = STR_NONE;
    str message = STR_NONE;
    str stack = STR_NONE;
    if (!json_str(json_member(failure, "error_code"), &code)) return ST_OK;
    (void)json_str(json_member(failure, "error_message"), &message);
    struct buf b;
    buf_init(&b, EVENT_BYTES_MAX);
    json_object_begin(&b);
    json_put_text(&b, "code", code);
    json_put_text(&b, "message", message.ptr ? message : STR(""));
    if (json_str(json_member(failure, "stack"), &stack)) json_put_text(&b, "stack", stack);
    json_object_end(&b);
    bool kept = !b.full && arena_try_str(arena, buf_str(&b), out);
    buf_release(&b);
    return kept ? ST_OK : outbox_no_memory(err);
}

/* What stands in the events: its payload, its result, its newest error. */
static status read_events(struct db_stmt *q, struct arena *arena, struct effect_info *out,
                          struct error *err) {
    yyjson_val *request = NULL;
    yyjson_val *answer = NULL;
    yyjson_val *failure = NULL;
    status st = parse(db_text(q, COL_PAYLOAD), arena, &request, err);
    if (st == ST_OK) st = parse(db_text(q, COL_RESULT), arena, &answer, err);
    if (st == ST_OK) st = parse(db_text(q, COL_ERROR), arena, &failure, err);
    if (st != ST_OK) return st;
    yyjson_val *payload = json_member(request, "payload");
    yyjson_val *result = json_member(answer, "result");
    if (!yyjson_is_obj(payload) || db_blob(q, COL_REQUEST).len != 16) return damaged(out, err);
    memcpy(out->request_id.b, db_blob(q, COL_REQUEST).ptr, 16);
    out->payload = json_text(payload, arena);
    (void)json_str(json_member(request, "step_id"), &out->step_id);
    if (result) out->result = json_text(result, arena);
    if (!out->payload.ptr || (result && !out->result.ptr)) return outbox_no_memory(err);
    return read_failure(failure, arena, &out->error, err);
}

static status effect_info_read(struct db_stmt *q, struct arena *arena, struct effect_info *out,
                               struct error *err) {
    ASSERT(out);
    *out = (struct effect_info){.run_no = db_int(q, 11),
                                .engine_attempt = db_int(q, 12),
                                .tenant_us = db_int(q, COL_TENANT_US)};
    struct effect *f = &out->effect;
    int64_t *numbers[] = {&f->executions, &f->retry_count,  &f->max_retries, &f->base_ms,
                          &f->due_us,     &f->processed_us, &f->created_us,  &f->result_seq,
                          &f->error_seq,  &f->last_seq};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        *numbers[i] = db_int(q, (int)i + 1);
    f->requested_seq = pos_seq(db_int(q, 0));
    f->status = outbox_status_named(db_text(q, COL_STATUS));
    str *texts[] = {&f->type,         &f->key,
                    &out->run_id,     &out->tenant_id,
                    &out->project_id, &out->environment_id,
                    &out->plan_id,    &out->plan_version,
                    &out->run_uuid};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!arena_try_str(arena, db_text(q, COL_TYPE + (int)i), texts[i]))
            return outbox_no_memory(err);
    }
    str tenant = STR_NONE; /* the tenant's number before the key */
    if (!str_split(f->key, '/', &tenant, &out->key) || db_blob(q, COL_ID).len != 16 ||
        f->status == OUTBOX_NONE || !uuid_parse(db_text(q, COL_CORRELATION), &out->correlation))
        return damaged(out, err);
    f->key = out->key;
    memcpy(f->id.b, db_blob(q, COL_ID).ptr, 16);
    return read_events(q, arena, out, err);
}

bool outbox_copy(const struct effect_info *from, struct arena *arena, struct effect_info *out) {
    *out = *from;
    str *texts[] = {&out->effect.type, &out->run_id,       &out->tenant_id, &out->project_id,
                    &out->plan_id,     &out->plan_version, &out->step_id,   &out->environment_id,
                    &out->run_uuid,    &out->key,          &out->payload,   &out->result,
                    &out->error};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (texts[i]->ptr && !arena_try_str(arena, *texts[i], texts[i])) return false;
    }
    out->effect.key = out->key;
    return true;
}

/* ---- one ---- */

static status not_found(struct error *err) {
    return error_at(err, REASON_EFFECT_NOT_FOUND, "", "there is no such effect");
}

static status read_one(struct db_stmt *q, struct arena *arena, struct effect_info *out,
                       struct error *err) {
    bool row = false;
    status st = db_step(q, &row, err);
    if (st == ST_OK && !row) st = not_found(err);
    if (st == ST_OK) st = effect_info_read(q, arena, out, err);
    db_reset(q);
    return st;
}

static status read_at(struct ledger *l, int64_t pos, struct arena *arena, struct effect_info *out,
                      struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(ledger_db(l), EFFECT_SELECT " WHERE f.effect_pos = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, pos);
    return read_one(q, arena, out, err);
}

/* It may be another run's, but it is the same tenant's. */
status outbox_existing(struct ledger *reader, const struct outbox_change *change,
                       struct arena *arena, struct effect_info *out, struct error *err) {
    int64_t tenant_no = 0;
    int64_t newest = 0;
    ASSERT(change->kind == OUTBOX_REQUEST);
    status st = tenant_number(reader, change->info.tenant_id, &tenant_no, &newest, err);
    int64_t seq = change->request.results[0].seq;
    if (st == ST_OK) st = read_at(reader, pos_of(tenant_no, seq), arena, out, err);
    if (st == ST_OK && out->effect.status == OUTBOX_COMPLETED)
        LOG(LOG_INFO, "an effect that was asked for is done already: skipped",
            LOG_S("idempotency_key", out->key), LOG_S("effectType", out->effect.type),
            LOG_S("runId", out->run_id));
    return st;
}

status outbox_find(struct ledger *l, str tenant_id, uuid effect_id, struct arena *arena,
                   struct effect_info *out, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(ledger_db(l), EFFECT_SELECT " WHERE f.effect_id = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_blob(q, 1, str_n(effect_id.b, sizeof(effect_id.b)));
    st = read_one(q, arena, out, err);
    return st == ST_OK && tenant_id.ptr && !str_eq(out->tenant_id, tenant_id) ? not_found(err) : st;
}

status outbox_find_key(struct ledger *l, str tenant_id, str key, struct arena *arena,
                       struct effect_info *out, struct error *err) {
    char mem[STORED_KEY_MAX];
    struct buf stored;
    struct db_stmt *q = NULL;
    int64_t tenant_no = 0;
    int64_t seq = 0;
    status st = tenant_number(l, tenant_id, &tenant_no, &seq, err);
    buf_init_fixed(&stored, mem, sizeof(mem));
    if (st == ST_OK) effect_stored_key(tenant_no, key, &stored);
    if (st == ST_NOT_FOUND || stored.full) return not_found(err); /* no key is so long */
    if (st == ST_OK)
        st = db_prepare(ledger_db(l), EFFECT_SELECT " WHERE f.idempotency_key = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, buf_str(&stored));
    return read_one(q, arena, out, err);
}

/* ---- several ---- */

/* Reads up to `limit` rows into the arena. */
static status read_all(struct db_stmt *q, size_t limit, struct arena *arena,
                       struct effect_info **items, size_t *count, struct error *err) {
    bool row = false;
    status st = ST_OK;
    *count = 0;
    *items = arena_try(arena, (limit + 1) * sizeof(**items));
    if (!*items) st = outbox_no_memory(err);
    while (st == ST_OK && *count < limit && (st = db_step(q, &row, err)) == ST_OK && row) {
        st = effect_info_read(q, arena, &(*items)[*count], err);
        if (st == ST_OK) (*count)++;
    }
    db_reset(q);
    return st;
}

/* One row of a page that is due. */
static status read_due(struct db_stmt *q, struct outbox_look *look, struct arena *arena,
                       struct effect_info *items, size_t *count, struct error *err) {
    look->after_us = db_int(q, COL_DUE);
    look->after_pos = db_int(q, 0);
    status st = effect_info_read(q, arena, &items[*count], err);
    if (st == ST_OK) (*count)++;
    if (st != ST_CORRUPT) return st;
    LOG(LOG_ERROR, "an effect is due and cannot be executed", LOG_S("error", str_c(err->msg)));
    return ST_OK;
}

/* clang-format off */
#define DUE(more)                                                                                  \
    EFFECT_SELECT " WHERE f.due_us <= $1 AND (f.due_us <= $2 OR f.due_us <= t.persisted_us)"       \
    " AND f.due_us >= $3 AND (f.due_us > $3 OR f.effect_pos > $4)" more " ORDER BY f.due_us, f.effect_pos LIMIT $5"
#define OF_RUNS                                                                                    \
    " AND r.run_id IN (SELECT {sqlite:value FROM json_each($6)}{postgres:json_array_elements_text($6::json)})"
/* clang-format on */

status outbox_due(struct ledger *l, struct outbox_look *look, size_t limit, struct arena *arena,
                  struct effect_info **items, size_t *count, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    size_t rows = 0;
    *count = 0;
    *items = arena_try(arena, (limit + 1) * sizeof(**items));
    if (!*items) return outbox_no_memory(err);
    status st = db_prepare(ledger_db(l), look->runs.ptr ? DUE(OF_RUNS) : DUE(""), &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, look->latest_us > look->clock_us ? look->latest_us : look->clock_us);
    db_bind_int(q, 2, look->clock_us);
    db_bind_int(q, 3, look->after_us);
    db_bind_int(q, 4, look->after_pos);
    db_bind_int(q, 5, (int64_t)limit);
    if (look->runs.ptr) db_bind_text(q, 6, look->runs);
    while (st == ST_OK && rows < limit && (st = db_step(q, &row, err)) == ST_OK && row) {
        st = read_due(q, look, arena, *items, count, err);
        rows++;
    }
    db_reset(q);
    look->more = rows > 0 && rows == limit;
    return st;
}

status outbox_processing(struct ledger *l, size_t limit, struct arena *arena,
                         struct effect_info **items, size_t *count, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(ledger_db(l),
                           EFFECT_SELECT " WHERE f.status <> 'COMPLETED' AND f.status ="
                                         " 'PROCESSING' ORDER BY f.effect_pos LIMIT $1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, (int64_t)limit);
    return read_all(q, limit, arena, items, count, err);
}

status outbox_next_due(struct ledger *l, int64_t after_us, int64_t *out, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st =
        db_prepare(ledger_db(l),
                   "SELECT COALESCE(MIN(due_us), 0) FROM state_effect WHERE due_us > $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, after_us);
    st = db_step(q, &row, err);
    if (st == ST_OK) *out = db_int(q, 0);
    db_reset(q);
    return st;
}

status outbox_latest(struct ledger *l, int64_t *latest_us, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(ledger_db(l), "SELECT COALESCE(MAX(persisted_us), 0) FROM ledger_tenant",
                           &q, err);
    if (st != ST_OK) return st;
    st = db_step(q, &row, err);
    if (st == ST_OK) *latest_us = db_int(q, 0);
    db_reset(q);
    return st;
}

/* The conditions of a page. Each has an index of its own for the rows that it leaves over. */
/* clang-format off */
#define PAGE(where) EFFECT_SELECT " WHERE f.effect_pos < $1 AND f.effect_pos >= $2" where                                  \
    " AND ($3 = 0 OR f.run_no = $3) AND ({text:$4} IS NULL OR f.effect_type = $4)"                 \
    " AND ($5 & CASE f.status WHEN 'PENDING' THEN 2 WHEN 'PROCESSING' THEN 4 WHEN 'COMPLETED' THEN 8"                      \
    " WHEN 'FAILED' THEN 16 ELSE 32 END) <> 0 ORDER BY f.effect_pos DESC LIMIT $6"
/* clang-format on */
static_assert(OUTBOX_PENDING == 1 && OUTBOX_DEAD_LETTER == 5, "the bits in PAGE");

static status run_number(struct ledger *l, str run_id, int64_t *run_no, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st =
        db_prepare(ledger_db(l), "SELECT run_no FROM ledger_run WHERE run_id = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, run_id);
    st = db_step(q, &row, err);
    *run_no = st == ST_OK && row ? db_int(q, 0) : -1; /* no row has that */
    db_reset(q);
    return st;
}

status outbox_list(struct ledger *l, const struct outbox_filter *filter, size_t limit,
                   struct arena *arena, struct effect_info **items, size_t *count, int64_t *next,
                   struct error *err) {
    enum { ALL = 62, NOT_COMPLETED = ALL & ~(1 << OUTBOX_COMPLETED) };
    struct db_stmt *q = NULL;
    int64_t from = 0;
    int64_t to = INT64_MAX;
    int64_t run_no = 0;
    int64_t mask = filter->statuses ? (int64_t)filter->statuses : ALL;
    *items = NULL;
    *count = 0;
    *next = 0;
    status st = ST_OK;
    if (filter->tenant_id.ptr) {
        int64_t tenant_no = 0;
        int64_t seq = 0;
        st = tenant_number(l, filter->tenant_id, &tenant_no, &seq, err);
        if (st == ST_NOT_FOUND) return ST_OK; /* it has none */
        from = pos_of(tenant_no, 0);
        to = pos_of(tenant_no + 1, 0);
    }
    if (filter->before > 0 && filter->before < to) to = filter->before;
    if (st == ST_OK && filter->run_id.ptr) st = run_number(l, filter->run_id, &run_no, err);
    const char *sql = PAGE("");
    if (run_no != 0)
        sql = PAGE(" AND f.run_no = $3");
    else if ((mask & ~NOT_COMPLETED) == 0)
        sql = PAGE(" AND f.status <> 'COMPLETED'");
    if (st == ST_OK) st = db_prepare(ledger_db(l), sql, &q, err);
    if (st != ST_OK) return st;
    if (limit == 0) limit = 1;
    if (limit > PAGE_EVENTS_MAX) limit = PAGE_EVENTS_MAX;
    int64_t numbers[] = {to, from, run_no};
    for (int i = 0; i < 3; i++)
        db_bind_int(q, i + 1, numbers[i]);
    db_bind_text(q, 4, filter->type);
    db_bind_int(q, 5, mask);
    db_bind_int(q, 6, (int64_t)limit + 1);
    st = read_all(q, limit + 1, arena, items, count, err);
    if (st != ST_OK || *count <= limit) return st;
    *count = limit;
    const struct effect_info *last = &(*items)[limit - 1];
    int64_t tenant_no = 0;
    int64_t seq = 0;
    st = tenant_number(l, last->tenant_id, &tenant_no, &seq, err);
    *next = pos_of(tenant_no, last->effect.requested_seq);
    return st;
}

status outbox_stats(struct ledger *l, struct outbox_stats *out, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    *out = (struct outbox_stats){0};
    status st = db_prepare(ledger_db(l),
                           "SELECT status, COUNT(*) FROM state_effect WHERE status <> 'COMPLETED'"
                           " GROUP BY status",
                           &q, err);
    while (st == ST_OK && (st = db_step(q, &row, err)) == ST_OK && row)
        out->count[outbox_status_named(db_text(q, 0))] = db_int(q, 1);
    if (q) db_reset(q);
    return st == ST_OK ? outbox_next_due(l, 0, &out->oldest_due_us, err) : st;
}
