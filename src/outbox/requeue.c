/* Putting back many dead letters, a few at a time: the ledger thread has other work, too. */
#include "outbox/outbox.h"

status outbox_requeue_lot(struct ledger *l, struct requeue_lot *lot, struct error *err) {
    struct arena arena;
    struct effect_info *dead = NULL;
    size_t count = 0;
    int64_t next = 0;
    lot->done = 0;
    lot->filter.statuses = 1U << OUTBOX_DEAD_LETTER;
    arena_init(&arena, (size_t)16 * 1024, SIZE_MAX);
    status st = outbox_list(l, &lot->filter, lot->limit, &arena, &dead, &count, &next, err);
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        const struct append_rider *riders =
            lot->riders ? lot->riders(lot->context, &dead[i]) : NULL;
        st = outbox_requeue(l, dead[i].tenant_id, dead[i].effect.id, lot->actor, lot->reason,
                            riders, err);
        if (st == ST_OK) lot->done++;
        if (st == ST_CONFLICT) st = ST_OK; /* somebody else was faster */
    }
    lot->filter.before = next;
    lot->more = next > 0;
    arena_release(&arena);
    return st;
}
