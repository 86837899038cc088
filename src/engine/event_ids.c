/* engine/event_ids.c: the engine's EventIdRegistry: one event, one eventId, however often its
 * commit is tried.
 *
 * An id is drawn before the append and stands in the request while that is under way. When the
 * commit fails, ids move from the request to the run, by idempotencyKey, and whatever is decided
 * again travels with the id that was drawn first; they are forgotten as their events are stored.
 * They are kept in memory: writing them down first would cost each event a second fsync. So after a
 * crash the contract's last rule for registries holds: a run is built from the stored records,
 * whose ids are the ones that count, and what was not stored gets a new one. */
#include "engine/impl.h"

enum { DRAWN_MAX = 2 * FLOW_BATCH_MAX }; /* of commits that failed in different ways */

static struct drawn_id *find(const struct engine_run *r, const uint8_t *key) {
    for (size_t i = 0; i < r->drawn_count; i++) {
        if (memcmp(r->drawn[i].key, key, SHA256_LEN) == 0) return &r->drawn[i];
    }
    return NULL;
}

uuid run_event_id(struct engine_run *r, const uint8_t key[SHA256_LEN]) {
    const struct drawn_id *kept = find(r, key);
    return kept ? kept->id : engine_uuid(r->eng);
}

void run_keep_ids(struct engine_run *r) {
    const struct append_request *req = &r->commit.request;
    size_t room = r->drawn_count + req->count;
    if (req->count == 0) return;
    struct drawn_id *all = mem_alloc(room * sizeof(*all));
    if (!all) return; /* as after a crash */
    size_t count = r->drawn_count;
    if (count > 0) memcpy(all, r->drawn, count * sizeof(*all));
    for (size_t i = 0; i < req->count && count < DRAWN_MAX; i++) {
        const struct event *e = &req->items[i].event;
        if (find(r, e->key)) continue;
        memcpy(all[count].key, e->key, SHA256_LEN);
        all[count++].id = e->event_id;
    }
    mem_free(r->drawn);
    r->drawn = all;
    r->drawn_count = count;
}

void run_ids_stored(struct engine_run *r) {
    struct append_request *req = &r->commit.request;
    for (size_t i = 0; i < req->count; i++) {
        /* What was there before has the id it was stored with. */
        if (req->results[i].duplicate) req->items[i].event.event_id = req->results[i].event_id;
        struct drawn_id *kept = r->drawn_count > 0 ? find(r, req->items[i].event.key) : NULL;
        if (kept) *kept = r->drawn[--r->drawn_count];
    }
    if (r->drawn_count > 0) return;
    mem_free(r->drawn);
    r->drawn = NULL;
}
