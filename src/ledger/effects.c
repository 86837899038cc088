/* ledger/effects.c: EFFECT facts in an append: judged, reduced into the effects of their run, and
 * taken back. outbox.c makes them, project.c writes their rows. */
#include "ledger/impl.h"

/* ---- the effects of a run ---- */

uint32_t effects_find(const struct effect_set *set, uuid id) {
    for (uint32_t i = set->count; i > 0; i--) {
        if (uuid_eq(set->items[i - 1].id, id)) return i - 1;
    }
    return EFFECT_NOT_THERE;
}

static bool grow(struct effect_set *set, struct arena *arena) {
    if (set->count < set->cap) return true;
    uint32_t cap = set->cap > 0 ? set->cap * 2 : 4;
    struct effect *items = arena_try_raw(arena, cap * sizeof(*items));
    if (!items) return false;
    if (set->count > 0) memcpy(items, set->items, set->count * sizeof(*items));
    set->items = items;
    set->cap = cap;
    return true;
}

status effects_apply(struct effect_set *set, const struct event_record *rec, struct arena *arena,
                     uint32_t *index, struct effect *old, struct error *err) {
    uuid id = {0};
    bool named = uuid_parse(rec->event.subject, &id);
    uint32_t at = named ? effects_find(set, id) : EFFECT_NOT_THERE;
    struct effect next = {0};
    if (at != EFFECT_NOT_THERE) next = set->items[at];
    *old = next;
    status st = effect_apply(&next, rec, arena, err);
    if (st != ST_OK) return st;
    if (at == EFFECT_NOT_THERE) {
        if (!grow(set, arena)) return ledger_no_memory(err);
        at = set->count++;
    }
    set->items[at] = next;
    *index = at;
    return ST_OK;
}

void effects_undo(struct effect_set *set, uint32_t index, const struct effect *old) {
    if (old->status != OUTBOX_NONE) {
        set->items[index] = *old;
        return;
    }
    ASSERT(index + 1 == set->count);
    set->count--;
}

status effects_replay(struct effect_set *set, const struct event_record *rec, struct arena *arena,
                      struct error *err) {
    uint32_t index = 0;
    struct effect old;
    status st = effects_apply(set, rec, arena, &index, &old, err);
    return st == ST_CONFLICT || st == ST_INVALID ? ST_OK : st;
}

/* ---- before an append ---- */

void effect_stored_key(int64_t tenant_no, str key, struct buf *out) {
    buf_put_int(out, tenant_no);
    buf_put_char(out, '/');
    buf_put(out, key);
}

static status id_taken(struct error *why) {
    return error_at(why, ST_CONFLICT, "EFFECT_ID_TAKEN", "/effectId",
                    "an effect of another run has this id");
}

/* Of this group, not yet stored: the tenant's effect with the key. *taken: another has the id. */
static const struct group_row *pending_effect(const struct group *g, const struct tenant *t,
                                              const struct effect *wanted, bool *taken) {
    for (size_t i = g->count; i > 0; i--) {
        const struct group_row *r = &g->rows[i - 1];
        if (!r->is_effect || r->old_effect.status != OUTBOX_NONE) continue;
        const struct effect *f = &r->entry->effects.items[r->effect];
        if (r->tenant == t && str_eq(f->key, wanted->key)) return r;
        *taken = *taken || uuid_eq(f->id, wanted->id);
    }
    return NULL;
}

/* Two look-ups: one with OR would read every row on PostgreSQL, whose writers do without bitmaps.
 */
#define STORED(by_key, where)                                                                      \
    "SELECT f.effect_pos, " EVENT_AT("y.event_id",                                                 \
                                     "f.effect_pos") ", f.created_us, " by_key                     \
                                                     " FROM state_effect f WHERE " where

static status find_stored(struct group *g, const struct tenant *t, const struct effect *wanted,
                          struct append_result *res, bool *dup, struct error *why,
                          struct error *err) {
    char mem[STORED_KEY_MAX];
    struct buf stored;
    struct db_stmt *q = NULL;
    bool row = false;
    buf_init_fixed(&stored, mem, sizeof(mem));
    effect_stored_key(t ? t->tenant_no : 0, wanted->key, &stored); /* no tenant has the number 0 */
    status st = db_prepare(g->l->db,
                           STORED("1", "f.idempotency_key = $1") " UNION ALL " STORED(
                               "0", "f.effect_id = $2") " ORDER BY 4 DESC LIMIT 1",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, buf_str(&stored));
    db_bind_blob(q, 2, str_n(wanted->id.b, sizeof(wanted->id.b)));
    st = db_step(q, &row, err);
    if (st == ST_OK && row && db_int(q, 3) == 0) {
        id_taken(why);
    } else if (st == ST_OK && row && db_blob(q, 1).len == 16) {
        *dup = true;
        *res = (struct append_result){.code = ST_OK,
                                      .duplicate = true,
                                      .seq = pos_seq(db_int(q, 0)),
                                      .persisted_us = db_int(q, 2)};
        memcpy(res->event_id.b, db_blob(q, 1).ptr, 16);
    } else if (st == ST_OK && row) {
        st = error_at(err, ST_CORRUPT, "LEDGER_DAMAGED", "", "an effect's request is missing");
    }
    db_reset(q);
    return st;
}

/* An effect whose key the tenant has already is the same effect, asked for again (T29). */
static status check_request(struct group *g, const struct tenant *t, const struct effect *wanted,
                            struct append_result *res, bool *dup, struct error *why,
                            struct error *err) {
    bool taken = false;
    const struct group_row *p = pending_effect(g, t, wanted, &taken);
    if (!p && taken) id_taken(why);
    if (!p) return taken ? ST_OK : find_stored(g, t, wanted, res, dup, why, err);
    *dup = true;
    *res = *p->result;
    res->duplicate = true;
    return ST_OK;
}

status effects_check(struct group *g, const struct run_entry *entry, const struct tenant *t,
                     const struct event *e, struct append_result *res, bool *dup, struct error *why,
                     struct error *err) {
    struct arena scratch;
    struct effect probe = {0};
    struct event_record rec = {.event = *e, .seq = 1, .persisted_us = g->now_us};
    if (t && t->persisted_us > rec.persisted_us) rec.persisted_us = t->persisted_us;
    uuid id = {0};
    arena_init(&scratch, 512, SIZE_MAX);
    bool named = uuid_parse(e->subject, &id);
    uint32_t at = named && entry ? effects_find(&entry->effects, id) : EFFECT_NOT_THERE;
    if (at != EFFECT_NOT_THERE) probe = entry->effects.items[at];
    status st = effect_apply(&probe, &rec, &scratch, why);
    if (st == ST_OK && e->type == EVENT_EFFECT_REQUESTED)
        st = check_request(g, t, &probe, res, dup, why, err);
    else if (st == ST_RETRY)
        *err = *why;
    else
        st = ST_OK; /* *why says it */
    arena_release(&scratch);
    return st;
}
