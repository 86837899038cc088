/* ledger/effects.c: EFFECT facts in an append: judged, reduced into the effects of their run, and
 * taken back. outbox.c makes them, project.c writes their rows. */
#include "ledger/effects.h"

#include "ledger/cache.h"
#include "ledger/dict.h"
#include "ledger/group.h"
#include "ledger/handle.h"
#include "ledger/seen.h"

/* ---- the effects of a run ---- */

static uint32_t probe(const struct effect_set *set, uuid id) {
    uint32_t slots = set->cap * 2;
    uint32_t i = (uint32_t)(id_prefix(id) * 0x9e3779b97f4a7c15U >> 32) & (slots - 1);
    while (set->by_id[i] != 0 && !uuid_eq(set->items[set->by_id[i] - 1].id, id))
        i = (i + 1) & (slots - 1);
    return i;
}

uint32_t effects_find(const struct effect_set *set, uuid id) {
    uint32_t at = set->cap > 0 ? set->by_id[probe(set, id)] : 0;
    return at > 0 ? at - 1 : EFFECT_NOT_THERE;
}

static bool grow(struct effect_set *set, struct arena *arena) {
    if (set->count < set->cap) return true;
    struct effect_set bigger = *set;
    bigger.cap = set->cap > 0 ? set->cap * 2 : 4;
    bigger.items = arena_try_raw(arena, bigger.cap * sizeof(*bigger.items));
    bigger.by_id = arena_try(arena, (size_t)bigger.cap * 2 * sizeof(*bigger.by_id));
    if (!bigger.items || !bigger.by_id) return false;
    if (set->count > 0) memcpy(bigger.items, set->items, set->count * sizeof(*set->items));
    *set = bigger;
    for (uint32_t i = 0; i < set->count; i++)
        set->by_id[probe(set, set->items[i].id)] = i + 1;
    return true;
}

static uint32_t is_open(const struct effect *f) { return f->due_us > 0 ? 1 : 0; }

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
        set->by_id[probe(set, id)] = at + 1;
    }
    set->items[at] = next;
    set->open += is_open(&next) - is_open(old);
    *index = at;
    return ST_OK;
}

void effects_undo(struct effect_set *set, uint32_t index, const struct effect *old) {
    struct effect *f = &set->items[index];
    set->open += is_open(old) - is_open(f);
    if (old->status != OUTBOX_NONE) {
        *f = *old;
        return;
    }
    ASSERT(index + 1 == set->count);
    set->by_id[probe(set, f->id)] = 0; /* it was probed last: that breaks no other chain */
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
    return error_at(why, REASON_EFFECT_ID_TAKEN, "/effectId",
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
        st = error_at(err, REASON_LEDGER_DAMAGED, "", "an effect's request is missing");
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
