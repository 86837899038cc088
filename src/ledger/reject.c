/* Layer 2's memory: an invalid append gets the refusal that it got the first time, also after a
 * restart, for as long as it is invalid (T17). Refusals are no history: the table is bounded, the
 * oldest are forgotten, and so is one whose event became legal. */
#include "ledger/group.h"
#include "ledger/handle.h"

/* Looks up the first rejection of this very event. */
static status rejection_read(struct ledger *l, str tenant_id, str key_hex, struct error *why,
                             bool *found, struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(
        l->db, "SELECT message FROM ledger_rejection WHERE key = $1 AND tenant_id = $2", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, key_hex);
    db_bind_text(q, 2, tenant_id);
    st = db_step(q, found, err);
    if (st == ST_OK && *found) {
        str text = db_text(q, 0);
        error_at(why, REASON_INVALID_TRANSITION, "/eventType", "%.*s", STR_ARG(text));
    }
    db_reset(q);
    return st;
}

static status rejection_write(struct ledger *l, str tenant_id, str key_hex, const struct error *why,
                              struct error *err) {
    struct db_stmt *ins = NULL;
    status st = db_prepare(
        l->db,
        "INSERT INTO ledger_rejection(rejection_no, tenant_id, key, message) VALUES"
        " ((SELECT COALESCE(MAX(rejection_no), 0) + 1 FROM ledger_rejection), $1, $2, $3)",
        &ins, err);
    if (st != ST_OK) return st;
    db_bind_text(ins, 1, tenant_id);
    db_bind_text(ins, 2, key_hex);
    db_bind_text(ins, 3, str_c(why->msg));
    int64_t changed = 0;
    st = db_run(ins, &changed, err);
    db_reset(ins);
    if (st != ST_OK || ++l->rejections <= REJECTIONS_MAX) return st;
    struct db_stmt *del = NULL;
    st = db_prepare(l->db,
                    "DELETE FROM ledger_rejection WHERE rejection_no <="
                    " (SELECT MAX(rejection_no) FROM ledger_rejection) - {int:$1}",
                    &del, err);
    if (st != ST_OK) return st;
    db_bind_int(del, 1, REJECTIONS_MAX);
    st = db_run(del, &changed, err);
    db_reset(del);
    if (st == ST_OK) l->rejections -= changed;
    return st;
}

/* Layer 2: the same invalid append gets the same refusal, also after a restart, for as long as it
 * is invalid. */
status reject_transition(struct ledger *l, const struct event *e, const struct transition *bad,
                         struct error *why, struct error *err) {
    char hex[SHA256_HEX_LEN];
    hex_encode(e->key, SHA256_LEN, hex);
    str key = str_n(hex, sizeof(hex));
    bool found = false;
    status st = rejection_read(l, e->tenant_id, key, why, &found, err);
    if (st != ST_OK || found) return st;
    if (event_family_of(e) == FAMILY_STEP) {
        error_at(why, REASON_INVALID_TRANSITION, "/eventType",
                 "%.*s is not legal: attempt %lld of step \"%.*s\" is %s, %s was attempted",
                 STR_ARG(e->type_name), (long long)e->logical_attempt, STR_ARG(e->subject),
                 bad->prior, bad->attempted);
    } else {
        error_at(why, REASON_INVALID_TRANSITION, "/eventType",
                 "%.*s is not legal: the run is %s, %s was attempted", STR_ARG(e->type_name),
                 bad->prior, bad->attempted);
    }
    return rejection_write(l, e->tenant_id, key, why, err);
}

/* Forgets the rejections of events that are legal by now. */
status rejections_forget(struct group *g, struct error *err) {
    struct ledger *l = g->l;
    if (l->rejections == 0 || g->count == 0) return ST_OK;
    struct buf keys;
    buf_init(&keys, g->count * (SHA256_HEX_LEN + 3) + 2);
    buf_put_char(&keys, '[');
    for (size_t i = 0; i < g->count; i++) {
        buf_put_c(&keys, i > 0 ? ",\"" : "\"");
        buf_put_hex(&keys, g->rows[i].row.key.ptr, SHA256_LEN);
        buf_put_char(&keys, '"');
    }
    buf_put_char(&keys, ']');
    struct db_stmt *del = NULL;
    status st = keys.full ? ledger_no_memory(err) : ST_OK;
    if (st == ST_OK) {
        st = db_prepare(
            l->db,
            "DELETE FROM ledger_rejection WHERE key {sqlite:IN (SELECT value FROM json_each($1))}"
            "{postgres:= ANY(ARRAY(SELECT jsonb_array_elements_text($1::text::jsonb)))}",
            &del, err);
    }
    int64_t changed = 0;
    if (st == ST_OK) {
        db_bind_text(del, 1, buf_str(&keys));
        st = db_run(del, &changed, err);
        db_reset(del);
    }
    if (st == ST_OK) l->rejections -= changed;
    buf_release(&keys);
    return st;
}
