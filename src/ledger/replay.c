/* Reducing a run from its stored events: for the append cache, for the state at any position, for
 * verify and rebuild. */
#include "ledger/replay.h"

#include "base/json.h"
#include "ledger/dict.h"
#include "ledger/event_row.h"
#include "ledger/handle.h"
#include "ledger/seen.h"

/* SQLite streams rows, so one statement reads the whole run; PostgreSQL's client holds a whole
 * result. */
enum { REPLAY_PAGE_POSTGRES = 8192 };

/* Rows come by position; the inner query walks the narrow index only: "+ 0" keeps PostgreSQL, as
 * long as it has no statistics, from walking the tenant's positions as well. */
/* clang-format off */
#define REPLAY_TIER(tier)                                                                          \
    "SELECT " EVENT_ROW_COLUMNS ", ty.name FROM " tier " e JOIN ledger_type ty ON ty.type_no = e.type_no"        \
    " WHERE e.pos IN (SELECT pos FROM " tier " WHERE run_no = $1 AND pos + 0 > $2 ORDER BY pos LIMIT $3)"
#define REPLAY_SQL BOTH_TIERS(REPLAY_TIER) " ORDER BY 1 LIMIT $3"
/* clang-format on */

static status bad_row(const struct event_row *row, const char *what, struct error *err) {
    return error_at(err, REASON_LEDGER_DAMAGED, "", "event %lld of tenant number %lld: %s",
                    (long long)pos_seq(row->pos), (long long)pos_tenant(row->pos), what);
}

/* What the reducer reads of a row. Texts are borrowed from the statement: the reducer copies what
 * it keeps. */
static status record_of(const struct event_row *row, str type_name, struct event_record *rec,
                        struct error *err) {
    if (row->event_id.len != 16 || row->key.len != SHA256_LEN)
        return bad_row(row, "an id has the wrong length", err);
    *rec = (struct event_record){.seq = pos_seq(row->pos),
                                 .run_seq = row->run_seq,
                                 .persisted_us = row->persisted_us,
                                 .cause_seq = row->cause_seq,
                                 .actor = row->actor};
    struct event *e = &rec->event;
    e->type = row->type_no < EVENT_TYPE_COUNT ? (enum event_type)row->type_no : EVENT_UNKNOWN;
    e->type_name = type_name;
    e->subject = row->subject;
    e->payload = row->payload;
    e->emitted_ns = row->emitted_ns;
    e->emitted_digits = (int)row->emitted_digits;
    e->engine_attempt = row->engine_attempt;
    e->logical_attempt = row->logical_attempt;
    memcpy(e->event_id.b, row->event_id.ptr, 16);
    memcpy(e->key, row->key.ptr, SHA256_LEN);
    enum event_family family = event_family_of(e);
    if ((family == FAMILY_STEP || family == FAMILY_TOOL) && !e->subject.ptr)
        return bad_row(row, "it names no step", err);
    return ST_OK;
}

static status reduce_row(struct replay *r, const struct event_row *row, str type_name,
                         struct error *err) {
    struct event_record rec = {0};
    status st = record_of(row, type_name, &rec, err);
    if (st != ST_OK) return st;
    if (rec.seq <= r->run->head.last_seq) return bad_row(row, "it is out of order", err);
    if (rec.run_seq != 0 && rec.run_seq != r->run->head.run_seq + 1)
        return bad_row(row, "runSeq is not contiguous", err);
    struct transition bad = {0};
    st = run_apply(r->run, &rec, r->arena, &bad, NULL, err);
    if (st != ST_OK && st != ST_CONFLICT) return st;
    bool legal = st == ST_OK;
    const struct step *step = row->step_index < 0 ? NULL : run_step(r->run, row->subject);
    if (step ? step - r->run->steps != row->step_index : row->step_index >= 0)
        return bad_row(row, "it names the wrong step", err);
    r->applied++;
    if (r->seen) {
        struct seen_item item = {key_prefix(rec.event.key), id_prefix(rec.event.event_id), rec.seq};
        if (!seen_add(r->seen, item, r->arena)) return ledger_no_memory(err);
    }
    return r->on_event ? r->on_event(r->context, row, &rec, legal ? NULL : &bad, err) : ST_OK;
}

status replay_run(struct ledger *l, struct replay *r, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(l->db, REPLAY_SQL, &q, err);
    int64_t after = pos_of(r->tenant_no, r->after_seq);
    int64_t page = db_is_postgres(l->db) ? REPLAY_PAGE_POSTGRES : INT64_MAX;
    int64_t rows = page;
    bool done = false;
    r->applied = 0;
    while (st == ST_OK && rows == page && !done) {
        db_bind_int(q, 1, r->run_no);
        db_bind_int(q, 2, after);
        db_bind_int(q, 3, page);
        bool row = false;
        for (rows = 0; (st = db_step(q, &row, err)) == ST_OK && row; rows++) {
            struct event_row er;
            event_row_read(q, &er);
            if (r->at_run_seq > 0 && er.run_seq > r->at_run_seq) {
                done = true;
                break;
            }
            after = er.pos;
            st = reduce_row(r, &er, db_text(q, EVENT_ROW_COUNT), err);
            if (st != ST_OK) break;
        }
        db_reset(q);
    }
    return st;
}

status ledger_walk_run(struct ledger *l, const struct run_info *run, int64_t after_seq,
                       ledger_walk walk, void *context, struct error *err) {
    struct db_stmt *q = NULL;
    struct tenant *t = NULL;
    status st = dict_tenant(l, run->tenant_id, false, &t, err);
    if (st == ST_OK) st = db_prepare(l->db, REPLAY_SQL, &q, err);
    if (st != ST_OK) return st;
    int64_t after = pos_of(t->tenant_no, after_seq);
    int64_t page = db_is_postgres(l->db) ? REPLAY_PAGE_POSTGRES : INT64_MAX;
    bool stop = false;
    for (int64_t rows = page; st == ST_OK && rows == page && !stop;) {
        db_bind_int(q, 1, run->run_no);
        db_bind_int(q, 2, after);
        db_bind_int(q, 3, page);
        bool row = false;
        for (rows = 0; st == ST_OK && !stop && (st = db_step(q, &row, err)) == ST_OK && row;
             rows++) {
            struct event_row er;
            struct event_record rec = {0};
            event_row_read(q, &er);
            after = er.pos;
            st = record_of(&er, db_text(q, EVENT_ROW_COUNT), &rec, err);
            rec.event.run_id = run->run_id;
            if (st == ST_OK) st = walk(context, &rec, &stop, err);
        }
        db_reset(q);
    }
    return st;
}

bool provider_ref_parse(str payload, struct arena *arena, struct provider_ref *out) {
    struct error ignored;
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    if (!payload.ptr || json_parse(payload, limits, arena, &root, &ignored) != ST_OK) return false;
    const struct {
        const char *name;
        str *to;
    } members[] = {{"provider", &out->provider},
                   {"workflowId", &out->workflow_id},
                   {"providerRunId", &out->provider_run_id}};
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        if (!json_str(json_member(root, members[i].name), members[i].to)) return false;
        if (members[i].to->len == 0 || members[i].to->len > ID_BYTES_MAX) return false;
    }
    return true;
}
