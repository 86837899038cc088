/* Queries. One SELECT shape for whole records, ended by different conditions, over both tiers of
 * the events. PostgreSQL would compute either side of a UNION ALL to its end before it looks at the
 * LIMIT, so each side has one of its own. */
#include "ledger/event_row.h"
#include "ledger/handle.h"
#include "ledger/id_lots.h"
#include "ledger/replay.h"

/* clang-format off */
#define RECORD_SELECT(tier)                                                                        \
    "SELECT " EVENT_ROW_COLUMNS ", ty.name, r.run_id, t.tenant_id, c.project_id, c.environment_id, c.plan_id," \
    " c.plan_version, r.correlation_id, "                                                          \
    EVENT_AT("y.event_id", "(r.tenant_no * 1099511627776 + e.cause_seq)") " FROM " tier " e"         \
    " JOIN ledger_run r ON r.run_no = e.run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"  \
    " JOIN ledger_context c ON c.context_no = e.context_no JOIN ledger_type ty ON ty.type_no = e.type_no"

/* The records at the positions that `which` selects of the tier, at most $3 of them. */
#define RECORDS_IN(tier, which)                                                                    \
    RECORD_SELECT(tier) " WHERE e.pos IN (SELECT pos FROM " tier " WHERE " which " ORDER BY pos LIMIT $3)"
#define OF_RUN(tier) RECORDS_IN(tier, "run_no = $1 AND pos + 0 > $2")
#define OF_RUN_BY_RUN_SEQ(tier) RECORDS_IN(tier, "run_no = $1 AND run_seq > $2")
#define OF_TENANT(tier)                                                                            \
    "{postgres:SELECT * FROM (}" RECORD_SELECT(tier) " WHERE e.pos > $1 AND e.pos < $2"            \
    "{postgres: ORDER BY e.pos LIMIT $3) " tier "_page}"
#define OF_TRACE(tier)                                                                             \
    RECORD_SELECT(tier) " WHERE e.pos IN (SELECT x.pos FROM ledger_run q"                          \
    " JOIN " tier " x ON x.run_no = q.run_no WHERE q.correlation_id = $1"                          \
    " AND (x.pos & 1099511627775) > {int:$2} AND ({text:$4} IS NULL"                               \
    " OR q.tenant_no = (SELECT tenant_no FROM ledger_tenant WHERE tenant_id = $4))"                \
    " ORDER BY x.pos LIMIT $3)"
#define AT_POSITION(tier) RECORD_SELECT(tier) " WHERE e.pos = $1"
/* clang-format on */

static status read_record(struct db_stmt *q, struct arena *arena, struct event_record *rec,
                          struct error *err) {
    struct event_row row;
    event_row_read(q, &row);
    enum { X = EVENT_ROW_COUNT }; /* what RECORD_SELECT adds */
    str hash = db_blob(q, EVENT_ROW_HASH);
    str correlation = db_text(q, X + 7);
    str cause = db_blob(q, X + 8);
    *rec = (struct event_record){.seq = pos_seq(row.pos),
                                 .run_seq = row.run_seq,
                                 .persisted_us = row.persisted_us,
                                 .cause_seq = row.cause_seq};
    struct event *e = &rec->event;
    if (row.event_id.len != 16 || row.key.len != SHA256_LEN || hash.len != SHA256_LEN ||
        !uuid_parse(correlation, &rec->correlation_id) || row.emitted_digits < 0 ||
        row.emitted_digits > 9) {
        return error_at(err, REASON_LEDGER_DAMAGED, "",
                        "event %lld of tenant number %lld is not readable", (long long)rec->seq,
                        (long long)pos_tenant(row.pos));
    }
    e->type = row.type_no < EVENT_TYPE_COUNT ? (enum event_type)row.type_no : EVENT_UNKNOWN;
    e->engine_attempt = row.engine_attempt;
    e->logical_attempt = row.logical_attempt;
    e->emitted_ns = row.emitted_ns;
    e->emitted_digits = (int)row.emitted_digits;
    memcpy(e->event_id.b, row.event_id.ptr, 16);
    memcpy(e->key, row.key.ptr, SHA256_LEN);
    memcpy(rec->hash, hash.ptr, SHA256_LEN);
    if (cause.len == 16) memcpy(rec->cause_id.b, cause.ptr, 16);
    const struct {
        str from;
        str *to;
    } texts[] = {{db_text(q, X + 0), &e->type_name},
                 {db_text(q, X + 1), &e->run_id},
                 {db_text(q, X + 2), &e->tenant_id},
                 {db_text(q, X + 3), &e->project_id},
                 {db_text(q, X + 4), &e->environment_id},
                 {db_text(q, X + 5), &e->plan_id},
                 {db_text(q, X + 6), &e->plan_version},
                 {row.subject, &e->subject},
                 {row.payload, &e->payload},
                 {row.actor, &rec->actor}};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!arena_try_str(arena, texts[i].from, texts[i].to)) return ledger_no_memory(err);
    }
    return ST_OK;
}

/* Reads what a bound RECORD_SELECT gives, at most `limit` records. */
static status read_page(struct db_stmt *q, size_t limit, struct arena *arena,
                        struct event_page *page, struct error *err) {
    struct event_record *records = arena_try(arena, (limit > 0 ? limit : 1) * sizeof(*records));
    size_t n = 0;
    bool row = false;
    status st = records ? ST_OK : ledger_no_memory(err);
    while (st == ST_OK && n < limit && (st = db_step(q, &row, err)) == ST_OK && row) {
        st = read_record(q, arena, &records[n], err);
        if (st == ST_OK) n++;
    }
    db_reset(q);
    if (st == ST_OK) *page = (struct event_page){records, n};
    return st;
}

/* ---- events ---- */

/* The numbers of a run, without the joins. */
static status run_numbers(struct ledger *l, str run_id, int64_t *run_no, int64_t *tenant_no,
                          struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st =
        db_prepare(l->db, "SELECT run_no, tenant_no FROM ledger_run WHERE run_id = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, run_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && row) {
        *run_no = db_int(q, 0);
        *tenant_no = db_int(q, 1);
    } else if (st == ST_OK) {
        st = error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
    }
    db_reset(q);
    return st;
}

status tenant_number(struct ledger *l, str tenant_id, int64_t *tenant_no, int64_t *seq,
                     struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st =
        db_prepare(l->db, "SELECT tenant_no, seq FROM ledger_tenant WHERE tenant_id = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, tenant_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && row) {
        *tenant_no = db_int(q, 0);
        *seq = db_int(q, 1);
    } else if (st == ST_OK) {
        st = error_at(err, REASON_TENANT_NOT_FOUND, "", "there is no tenant \"%.*s\"",
                      STR_ARG(tenant_id));
    }
    db_reset(q);
    return st;
}

/* `sql` selects positions of the run $1 after $2, at most $3. */
static status read_of_run(struct ledger *l, const char *sql, int64_t run_no, int64_t after,
                          size_t limit, struct arena *arena, struct event_page *page,
                          struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(l->db, sql, &q, err);
    if (st != ST_OK) return st;
    limit = page_limit(limit);
    db_bind_int(q, 1, run_no);
    db_bind_int(q, 2, after);
    db_bind_int(q, 3, (int64_t)limit);
    return read_page(q, limit, arena, page, err);
}

status ledger_read_run(struct ledger *l, str run_id, int64_t after_seq, size_t limit,
                       struct arena *arena, struct event_page *page, struct error *err) {
    int64_t run_no = 0;
    int64_t tenant_no = 0;
    status st = run_numbers(l, run_id, &run_no, &tenant_no, err);
    if (st != ST_OK) return st;
    return read_of_run(l, BOTH_TIERS(OF_RUN) " ORDER BY 1 LIMIT $3", run_no,
                       pos_of(tenant_no, after_seq), limit, arena, page, err);
}

status ledger_read_records(struct ledger *l, str run_id, int64_t after_run_seq, size_t limit,
                           struct arena *arena, struct event_page *page, struct error *err) {
    int64_t run_no = 0;
    int64_t tenant_no = 0;
    status st = run_numbers(l, run_id, &run_no, &tenant_no, err);
    if (st != ST_OK) return st;
    return read_of_run(l, BOTH_TIERS(OF_RUN_BY_RUN_SEQ) " ORDER BY 1 LIMIT $3", run_no,
                       after_run_seq, limit, arena, page, err);
}

status ledger_run_position(struct ledger *l, str run_id, int64_t run_seq, int64_t *seq,
                           struct error *err) {
    int64_t run_no = 0;
    int64_t tenant_no = 0;
    struct db_stmt *q = NULL;
    bool row = false;
    *seq = 0;
    if (run_seq <= 0) return ST_OK;
    status st = run_numbers(l, run_id, &run_no, &tenant_no, err);
    /* (+ 0: by the run's own index, as above.) */
#define LAST_BEFORE(tier)                                                                          \
    "SELECT MAX(pos + 0) AS last FROM " tier " WHERE run_no = $1 AND run_seq <= $2"
    if (st == ST_OK)
        st = db_prepare(l->db, "SELECT MAX(x.last) FROM (" BOTH_TIERS(LAST_BEFORE) ") x", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, run_no);
    db_bind_int(q, 2, run_seq);
    st = db_step(q, &row, err);
    if (st == ST_OK && row && db_int(q, 0) > 0) *seq = pos_seq(db_int(q, 0)); /* NULL reads as 0 */
    db_reset(q);
    return st;
}

status ledger_read_tenant(struct ledger *l, str tenant_id, int64_t after_seq, size_t limit,
                          struct arena *arena, struct event_page *page, struct error *err) {
    int64_t tenant_no = 0;
    int64_t seq = 0;
    struct db_stmt *q = NULL;
    status st = tenant_number(l, tenant_id, &tenant_no, &seq, err);
    if (st == ST_OK) {
        st = db_prepare(l->db, BOTH_TIERS(OF_TENANT) " ORDER BY 1 LIMIT $3", &q, err);
    }
    if (st != ST_OK) return st;
    limit = page_limit(limit);
    db_bind_int(q, 1, pos_of(tenant_no, after_seq));
    db_bind_int(q, 2, pos_of(tenant_no + 1, 0));
    db_bind_int(q, 3, (int64_t)limit);
    return read_page(q, limit, arena, page, err);
}

status ledger_read_correlation(struct ledger *l, str tenant_id, uuid correlation, int64_t after_seq,
                               size_t limit, struct arena *arena, struct event_page *page,
                               struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(l->db, BOTH_TIERS(OF_TRACE) " ORDER BY 1 LIMIT $3", &q, err);
    if (st != ST_OK) return st;
    char text[UUID_TEXT_LEN];
    uuid_format(correlation, text);
    limit = page_limit(limit);
    db_bind_text(q, 1, str_n(text, sizeof(text)));
    db_bind_int(q, 2, after_seq);
    db_bind_int(q, 3, (int64_t)limit);
    db_bind_text(q, 4, tenant_id);
    return read_page(q, limit, arena, page, err);
}

static status read_at(struct ledger *l, int64_t pos, struct arena *arena, struct event_record *out,
                      struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, BOTH_TIERS(AT_POSITION), &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, pos);
    st = db_step(q, &row, err);
    if (st == ST_OK && row)
        st = read_record(q, arena, out, err);
    else if (st == ST_OK) {
        st = error_at(err, REASON_LEDGER_DAMAGED, "", "event %lld of tenant number %lld is missing",
                      (long long)pos_seq(pos), (long long)pos_tenant(pos));
    }
    db_reset(q);
    return st;
}

status ledger_find_event(struct ledger *l, uuid event_id, struct arena *arena,
                         struct event_record *out, struct error *err) {
    int64_t pos = 0;
    status st = id_lots_find(l, 0, event_id, &pos, err);
    return st == ST_OK ? read_at(l, pos, arena, out, err) : st;
}

/* Causes point to smaller sequence numbers of the same tenant, so the walk ends. */
status ledger_causes(struct ledger *l, uuid event_id, size_t limit, struct arena *arena,
                     struct event_page *page, bool *more, struct error *err) {
    ASSERT(limit > 0);
    struct event_record *records = arena_try(arena, limit * sizeof(*records));
    if (!records) return ledger_no_memory(err);
    int64_t pos = 0;
    status st = id_lots_find(l, 0, event_id, &pos, err);
    size_t n = 0;
    int64_t tenant_no = pos_tenant(pos);
    while (st == ST_OK && pos != 0 && n < limit) {
        st = read_at(l, pos, arena, &records[n], err);
        if (st != ST_OK) break;
        int64_t cause = records[n].cause_seq;
        if (cause >= records[n].seq) {
            st = error_at(err, REASON_LEDGER_DAMAGED, "", "event %lld is caused by a later one",
                          (long long)records[n].seq);
        }
        pos = cause > 0 ? pos_of(tenant_no, cause) : 0;
        n++;
    }
    if (st != ST_OK) return st;
    *more = pos != 0;
    *page = (struct event_page){records, n};
    return ST_OK;
}

#define TIME_AT(tier) "SELECT persisted_us FROM " tier " WHERE pos = $1"

/* persisted_us never decreases within a tenant: binary search. */
status ledger_seq_at(struct ledger *l, str tenant_id, int64_t us, int64_t *out, struct error *err) {
    int64_t tenant_no = 0;
    int64_t last = 0;
    struct db_stmt *q = NULL;
    status st = tenant_number(l, tenant_id, &tenant_no, &last, err);
    if (st == ST_OK) st = db_prepare(l->db, BOTH_TIERS(TIME_AT), &q, err);
    int64_t low = 1;
    int64_t high = last + 1;
    while (st == ST_OK && low < high) {
        int64_t mid = low + (high - low) / 2;
        bool row = false;
        db_bind_int(q, 1, pos_of(tenant_no, mid));
        st = db_step(q, &row, err);
        if (st == ST_OK && !row) {
            st =
                error_at(err, REASON_LEDGER_DAMAGED, "", "event %lld of tenant \"%.*s\" is missing",
                         (long long)mid, STR_ARG(tenant_id));
        }
        if (st == ST_OK && db_int(q, 0) >= us)
            high = mid;
        else
            low = mid + 1;
        db_reset(q);
    }
    if (st == ST_OK) *out = low;
    return st;
}

/* ---- state at a position ---- */

static status load_checkpoint(struct ledger *l, int64_t run_no, int64_t at_run_seq,
                              struct arena *arena, struct run *run, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        l->db,
        "SELECT data FROM ledger_checkpoint WHERE run_no = $1 ORDER BY checkpoint_index DESC", &q,
        err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, run_no);
    while ((st = db_step(q, &row, err)) == ST_OK && row) {
        struct run read;
        st = run_state_parse(db_text(q, 0), arena, &read, err);
        if (st != ST_OK) break;
        if (at_run_seq > 0 && read.head.run_seq > at_run_seq) continue;
        *run = read;
        break;
    }
    db_reset(q);
    return st;
}

status ledger_replay(struct ledger *l, str run_id, int64_t at_run_seq, bool use_checkpoint,
                     struct arena *arena, struct run *out, int64_t *applied, struct error *err) {
    struct run run = {0};
    struct replay r = {.at_run_seq = at_run_seq, .run = &run, .arena = arena};
    status st = run_numbers(l, run_id, &r.run_no, &r.tenant_no, err);
    if (st == ST_OK && use_checkpoint)
        st = load_checkpoint(l, r.run_no, at_run_seq, arena, &run, err);
    r.after_seq = run.head.last_seq;
    if (st == ST_OK) st = replay_run(l, &r, err);
    if (st != ST_OK) return st;
    *out = run;
    if (applied) *applied = r.applied;
    return ST_OK;
}

/* ---- alerts ---- */

/* clang-format off */
#define ALERTS_OF(tier)                                                                            \
    "{postgres:SELECT * FROM (}SELECT r.run_id, t.tenant_id, c.project_id, c.environment_id, ty.name,"                 \
    " e.subject, a.prior, a.attempted, e.event_id, e.run_seq, a.seq,"                              \
    " e.persisted_us, a.run_no FROM state_alert a"                                                 \
    " JOIN ledger_run r ON r.run_no = a.run_no"                                                    \
    " JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"                                           \
    " JOIN " tier " e ON e.pos = r.tenant_no * 1099511627776 + a.seq"                              \
    " JOIN ledger_context c ON c.context_no = e.context_no"                                        \
    " JOIN ledger_type ty ON ty.type_no = e.type_no WHERE ({text:$1} IS NULL"                      \
    " OR r.run_id = $1) AND (a.run_no < $2 OR (a.run_no = $2 AND a.seq < $3))"                     \
    " AND ({text:$5} IS NULL OR t.tenant_id = $5)"                                                 \
    "{postgres: ORDER BY a.run_no DESC, a.seq DESC LIMIT $4) " tier "_page}"
/* clang-format on */

status ledger_list_alerts(struct ledger *l, const struct alert_query *query, struct arena *arena,
                          struct alert **alerts, size_t *count, struct error *err) {
    struct db_stmt *q = NULL;
    size_t limit = page_limit(query->limit);
    struct alert *list = arena_try(arena, (limit > 0 ? limit : 1) * sizeof(*list));
    if (!list) return ledger_no_memory(err);
    status st =
        db_prepare(l->db, BOTH_TIERS(ALERTS_OF) " ORDER BY 13 DESC, 11 DESC LIMIT $4", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, query->run_id);
    db_bind_int(q, 2, query->before_run_no > 0 ? query->before_run_no : INT64_MAX);
    db_bind_int(q, 3, query->before_seq);
    db_bind_int(q, 4, (int64_t)limit);
    db_bind_text(q, 5, query->tenant_id);
    size_t n = 0;
    bool row = false;
    while (n < limit && (st = db_step(q, &row, err)) == ST_OK && row) {
        struct alert *a = &list[n++];
        str *texts[] = {&a->run_id,     &a->tenant_id, &a->project_id, &a->environment_id,
                        &a->event_type, &a->step_id,   &a->prior,      &a->attempted};
        for (size_t i = 0; i < COUNT_OF(texts) && st == ST_OK; i++) {
            if (!arena_try_str(arena, db_text(q, (int)i), texts[i])) st = ledger_no_memory(err);
        }
        if (db_blob(q, 8).len == 16) memcpy(a->event_id.b, db_blob(q, 8).ptr, 16);
        a->run_seq = db_int(q, 9);
        a->seq = db_int(q, 10);
        a->persisted_us = db_int(q, 11);
        a->run_no = db_int(q, 12);
        if (st != ST_OK) break;
    }
    db_reset(q);
    if (st != ST_OK) return st;
    *alerts = list;
    *count = n;
    return ST_OK;
}
