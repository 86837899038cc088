/* ledger/id_lots.c: finding an event by its id. See schema.c: ids are random, so they are indexed
 * in lots of ID_LOT_EVENTS.
 *
 * A lot is ID_LOT_BUCKETS rows; an id falls into a bucket by the top bits of its id_prefix(). A
 * row's `ids` are entries of ENTRY_BYTES, big-endian: the prefix, then the event's slot in the lot.
 * They are in the order of the prefix. */
#include "ledger/id_lots.h"

#include "ledger/dict.h"
#include "ledger/event_row.h"
#include "ledger/handle.h"
#include "ledger/seen.h"

enum { ENTRY_BYTES = 10, BUCKET_BITS = 6, FRESH_MAX = 16 };
static_assert(ID_LOT_BUCKETS == 1 << BUCKET_BITS, "a bucket for each value of the top bits");

struct id_entry {
    uint64_t id8;
    uint32_t slot;
};

static int by_id(const void *a, const void *b) {
    const struct id_entry *x = a;
    const struct id_entry *y = b;
    if (x->id8 != y->id8) return x->id8 < y->id8 ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static uint64_t id8_of(str event_id) {
    uuid u;
    memcpy(u.b, event_id.ptr, sizeof(u.b));
    return id_prefix(u);
}

static int64_t bucket_of(uint64_t id8) { return (int64_t)(id8 >> (64 - BUCKET_BITS)); }

static void entry_put(uint8_t *p, const struct id_entry *item) {
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(item->id8 >> (56 - 8 * i));
    p[8] = (uint8_t)(item->slot >> 8);
    p[9] = (uint8_t)item->slot;
}

static struct id_entry entry_get(const uint8_t *p) {
    struct id_entry item = {0, (uint32_t)p[8] << 8 | p[9]};
    for (int i = 0; i < 8; i++)
        item.id8 = item.id8 << 8 | p[i];
    return item;
}

/* ---- the lot that is being filled ---- */

/* Ids without a gap, from the first of a lot on. A group may end in the next lot, and one more may
 * be on its way by then (append.c): it is sealed right after. */
struct id_lot {
    int64_t first; /* the sequence number of id8[0] */
    size_t count;
    uint64_t id8[ID_LOT_EVENTS + 2 * GROUP_EVENTS_MAX];
};

static int64_t first_of(int64_t lot) { return lot == 0 ? 1 : lot << ID_LOT_BITS; }

void id_lots_note(struct ledger *l, struct tenant *t, int64_t seq, uuid id) {
    struct id_lot *f = t->fresh;
    bool opens = seq == first_of(seq >> ID_LOT_BITS);
    if (!f && opens && l->dict.fresh_count < FRESH_MAX) { /* of tenants: 5 MiB in all */
        f = t->fresh = arena_try_raw(&l->dict.arena, sizeof(*f));
        if (!f) return;
        f->count = 0;
        l->dict.fresh_count++;
    }
    if (!f) return;
    bool follows = f->count > 0 && seq == f->first + (int64_t)f->count;
    if (!follows) f->count = 0; /* other nodes' events are between */
    if (!follows && !opens) return;
    if (!follows) f->first = seq;
    if (f->count < COUNT_OF(f->id8)) f->id8[f->count++] = id_prefix(id);
}

/* The ids of the tenant's lot, if all of them are remembered; they are forgotten by that. */
static bool take_fresh(struct tenant *t, int64_t lot, struct id_entry *items, size_t *count) {
    struct id_lot *f = t->fresh;
    size_t n = (size_t)(first_of(lot + 1) - first_of(lot));
    if (!f || f->count < n || f->first != first_of(lot)) return false;
    for (size_t i = 0; i < n; i++)
        items[i] =
            (struct id_entry){f->id8[i], (uint32_t)(f->first + (int64_t)i) & (ID_LOT_EVENTS - 1)};
    f->first += (int64_t)n;
    f->count -= n;
    memmove(f->id8, f->id8 + n, f->count * sizeof(f->id8[0]));
    *count = n;
    return true;
}

/* ---- sealing ---- */

#define IDS_OF_LOT(tier) "SELECT pos, event_id FROM " tier " WHERE pos >= $1 AND pos < $2"

static status read_ids(struct ledger *l, int64_t lot, struct id_entry *items, size_t *count,
                       struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, BOTH_TIERS(IDS_OF_LOT) " ORDER BY 1", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, lot << ID_LOT_BITS);
    db_bind_int(q, 2, (lot + 1) << ID_LOT_BITS);
    size_t n = 0;
    while ((st = db_step(q, &row, err)) == ST_OK && row && n < ID_LOT_EVENTS) {
        if (db_blob(q, 1).len != 16) {
            st = error_at(err, REASON_LEDGER_DAMAGED, "", "event %lld has no id",
                          (long long)pos_seq(db_int(q, 0)));
            break;
        }
        items[n++] =
            (struct id_entry){id8_of(db_blob(q, 1)), (uint32_t)db_int(q, 0) & (ID_LOT_EVENTS - 1)};
    }
    db_reset(q);
    *count = n;
    return st;
}

/* What the lot's rows must hold: buckets[i] is `ids` of bucket i. Lives in the scratch arena. The
 * tenant lends what it remembers; NULL: the events are read. */
static status make_buckets(struct ledger *l, int64_t lot, struct tenant *t,
                           str buckets[ID_LOT_BUCKETS], struct error *err) {
    struct id_entry *items = arena_try_raw(&l->scratch, ID_LOT_EVENTS * sizeof(*items));
    uint8_t *packed = arena_try_raw(&l->scratch, (size_t)ID_LOT_EVENTS * ENTRY_BYTES);
    size_t n = 0;
    size_t from = 0;
    if (!items || !packed) return ledger_no_memory(err);
    bool known = t && take_fresh(t, lot & (SEQ_MASK >> ID_LOT_BITS), items, &n);
    status st = known ? ST_OK : read_ids(l, lot, items, &n, err);
    if (st != ST_OK) return st;
    qsort(items, n, sizeof(*items), by_id);
    for (size_t i = 0; i < n; i++)
        entry_put(packed + i * ENTRY_BYTES, &items[i]);
    for (int64_t bucket = 0; bucket < ID_LOT_BUCKETS; bucket++) {
        size_t to = from;
        while (to < n && bucket_of(items[to].id8) == bucket)
            to++;
        buckets[bucket] = str_n(packed + from * ENTRY_BYTES, (to - from) * ENTRY_BYTES);
        from = to;
    }
    return ST_OK;
}

/* Inside a transaction. */
static status write_id_lot(struct ledger *l, int64_t lot, struct tenant *t, struct error *err) {
    struct arena_mark mark = arena_mark(&l->scratch);
    struct db_bulk *bulk = l->ins_id_lot;
    str buckets[ID_LOT_BUCKETS] = {STR_NONE};
    status st = make_buckets(l, lot, t, buckets, err);
    for (int64_t i = 0; st == ST_OK && i < ID_LOT_BUCKETS; i++) {
        db_bulk_int(bulk, lot);
        db_bulk_int(bulk, i);
        db_bulk_blob(bulk, buckets[i]);
    }
    if (st == ST_OK) st = db_bulk_flush(bulk, err);
    arena_rewind(&l->scratch, mark);
    return st;
}

static status compare_id_lot(struct ledger *l, int64_t lot, bool *same, struct error *err) {
    struct arena_mark mark = arena_mark(&l->scratch);
    struct db_stmt *q = NULL;
    str buckets[ID_LOT_BUCKETS] = {STR_NONE};
    bool row = false;
    int64_t n = 0;
    status st = make_buckets(l, lot, NULL, buckets, err);
    if (st == ST_OK)
        st = db_prepare(l->db, "SELECT bucket, ids FROM state_lot WHERE lot = $1 ORDER BY bucket",
                        &q, err);
    if (st == ST_OK) db_bind_int(q, 1, lot);
    *same = true;
    for (; st == ST_OK && *same && (st = db_step(q, &row, err)) == ST_OK && row; n++) {
        *same = n < ID_LOT_BUCKETS && db_int(q, 0) == n && str_eq(db_blob(q, 1), buckets[n]);
    }
    if (q) db_reset(q);
    if (n != ID_LOT_BUCKETS) *same = false;
    arena_rewind(&l->scratch, mark);
    return st;
}

status id_lots_verify(struct ledger *l, int64_t tenant_no, int64_t seq, bool *same,
                      struct error *err) {
    int64_t lots = 0;
    int64_t first = pos_of(tenant_no, 0) >> ID_LOT_BITS;
    status st = id_lots_sealed(l, tenant_no, &lots, err);
    *same = lots <= seq >> ID_LOT_BITS;
    for (int64_t i = 0; i < lots && st == ST_OK && *same; i++)
        st = compare_id_lot(l, first + i, same, err);
    return st;
}

status id_lots_write_missing(struct ledger *l, struct tenant *t, struct error *err) {
    int64_t full =
        t->seq >>
        ID_LOT_BITS; /* lots 0 .. full-1 are complete: sequence_number 1 is slot 1 of lot 0 */
    status st = ST_OK;
    for (int64_t i = t->sealed_id_lots; i < full && st == ST_OK; i++) {
        st = write_id_lot(l, (pos_of(t->tenant_no, 0) >> ID_LOT_BITS) + i, t, err);
        if (st == ST_OK) t->sealed_id_lots = i + 1;
    }
    return st;
}

status id_lots_seal(struct ledger *l, struct error *err) {
    struct map_slot *slot;
    status st = ST_OK;
    for (size_t i = 0; map_next(&l->dict.tenants, &i, &slot);) {
        struct tenant *t = slot->value;
        if (t->seq >> ID_LOT_BITS <= t->sealed_id_lots) continue;
        st = db_begin(l->db, true, err);
        /* Another node may have been faster: then the primary key refuses, and its lot serves as
         * well. */
        if (st == ST_OK) st = id_lots_write_missing(l, t, err);
        if (st == ST_OK) st = db_commit(l->db, err);
        if (st == ST_CONFLICT) {
            db_rollback(l->db);
            t->sealed_id_lots = t->seq >> ID_LOT_BITS;
            st = ST_OK;
        }
        if (st != ST_OK) return st;
    }
    l->id_lot_is_full = false;
    return ST_OK;
}

/* ---- looking up ---- */

#define ID_AT(tier) "SELECT event_id FROM " tier " WHERE pos = $1"

/* Whether the event at `pos` has this very id. */
static status is_event(struct ledger *l, int64_t pos, uuid id, bool *yes, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, BOTH_TIERS(ID_AT), &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, pos);
    st = db_step(q, &row, err);
    *yes = st == ST_OK && row && str_eq(db_blob(q, 0), str_n(id.b, 16));
    db_reset(q);
    return st;
}

/* The entries of one bucket whose prefix is that of `id`. */
static status search_bucket(struct ledger *l, int64_t lot, str ids, uuid id, int64_t *pos,
                            struct error *err) {
    const uint8_t *entries = (const uint8_t *)ids.ptr;
    uint64_t want = id_prefix(id);
    size_t low = 0;
    size_t high = ids.len / ENTRY_BYTES;
    size_t n = high;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (entry_get(entries + mid * ENTRY_BYTES).id8 < want)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < n && *pos == 0; low++) {
        struct id_entry item = entry_get(entries + low * ENTRY_BYTES);
        bool yes = false;
        if (item.id8 != want) break;
        status st = is_event(l, (lot << ID_LOT_BITS) + item.slot, id, &yes, err);
        if (st != ST_OK) return st;
        if (yes) *pos = (lot << ID_LOT_BITS) + item.slot;
    }
    return ST_OK;
}

static status probe_id_lots(struct ledger *l, int64_t tenant_no, int64_t lots, uuid id,
                            int64_t *pos, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    int64_t first = pos_of(tenant_no, 0) >> ID_LOT_BITS;
    if (lots == 0) return ST_OK;
    status st = db_prepare(l->db,
                           "WITH RECURSIVE lots(lot) AS (SELECT {int:$1} UNION ALL SELECT lot + 1"
                           " FROM lots WHERE lot < {int:$2}) SELECT s.lot, s.ids FROM lots"
                           " CROSS JOIN state_lot s WHERE s.lot = lots.lot AND s.bucket = {int:$3}",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, first);
    db_bind_int(q, 2, first + lots - 1);
    db_bind_int(q, 3, bucket_of(id_prefix(id)));
    while (*pos == 0 && (st = db_step(q, &row, err)) == ST_OK && row) {
        st = search_bucket(l, db_int(q, 0), db_blob(q, 1), id, pos, err);
        if (st != ST_OK) break;
    }
    db_reset(q);
    return st;
}

#define POS_OF_ID(tier) "SELECT pos FROM " tier " WHERE pos >= $1 AND pos < $2 AND event_id = $3"

static status scan_tail(struct ledger *l, int64_t tenant_no, int64_t lots, uuid id, int64_t *pos,
                        struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, BOTH_TIERS(POS_OF_ID), &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, pos_of(tenant_no, lots << ID_LOT_BITS));
    db_bind_int(q, 2, pos_of(tenant_no + 1, 0));
    db_bind_blob(q, 3, str_n(id.b, 16));
    st = db_step(q, &row, err);
    if (st == ST_OK && row) *pos = db_int(q, 0);
    db_reset(q);
    return st;
}

status id_lots_sealed(struct ledger *l, int64_t tenant_no, int64_t *lots, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    int64_t first = pos_of(tenant_no, 0) >> ID_LOT_BITS;
    status st =
        db_prepare(l->db, "SELECT MAX(lot) FROM state_lot WHERE lot >= $1 AND lot < $2", &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, first);
    db_bind_int(q, 2, pos_of(tenant_no + 1, 0) >> ID_LOT_BITS);
    st = db_step(q, &row, err);
    if (st == ST_OK) *lots = row && !db_is_null(q, 0) ? db_int(q, 0) - first + 1 : 0;
    db_reset(q);
    return st;
}

static status find_in_tenant(struct ledger *l, int64_t tenant_no, uuid id, int64_t *pos,
                             struct error *err) {
    int64_t lots = 0;
    status st = id_lots_sealed(l, tenant_no, &lots, err);
    if (st == ST_OK) st = probe_id_lots(l, tenant_no, lots, id, pos, err);
    if (st == ST_OK && *pos == 0) st = scan_tail(l, tenant_no, lots, id, pos, err);
    return st;
}

status id_lots_find(struct ledger *l, int64_t tenant_no, uuid id, int64_t *pos, struct error *err) {
    int64_t first = tenant_no;
    int64_t last = tenant_no;
    status st = ST_OK;
    if (tenant_no == 0) {
        struct db_stmt *q = NULL;
        bool row = false;
        st = db_prepare(l->db, "SELECT COALESCE(MAX(tenant_no), 0) FROM ledger_tenant", &q, err);
        if (st == ST_OK) st = db_step(q, &row, err);
        if (st == ST_OK) last = db_int(q, 0);
        if (q) db_reset(q);
        first = 1;
    }
    *pos = 0;
    for (int64_t t = first; t <= last && st == ST_OK && *pos == 0; t++)
        st = find_in_tenant(l, t, id, pos, err);
    if (st != ST_OK || *pos != 0) return st;
    char text[UUID_TEXT_LEN];
    uuid_format(id, text);
    return error_at(err, REASON_EVENT_NOT_FOUND, "", "there is no event \"%.*s\"", UUID_TEXT_LEN,
                    text);
}
