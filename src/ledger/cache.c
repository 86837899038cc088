/* ledger/cache.c: runs in memory; those that were not used for the longest time are dropped first. */
#include "ledger/cache.h"


void cache_init(struct cache *c) {
    *c = (struct cache){0};
    map_init(&c->by_id);
}

static void unlink_entry(struct cache *c, struct run_entry *e) {
    if (e->newer)
        e->newer->older = e->older;
    else
        c->newest = e->older;
    if (e->older)
        e->older->newer = e->newer;
    else
        c->oldest = e->newer;
    e->newer = e->older = NULL;
}

static void link_newest(struct cache *c, struct run_entry *e) {
    e->older = c->newest;
    if (c->newest) c->newest->newer = e;
    c->newest = e;
    if (!c->oldest) c->oldest = e;
}

struct run_entry *cache_get(struct cache *c, str run_id) {
    struct run_entry *e = map_get(&c->by_id, run_id);
    if (!e || c->newest == e) return e;
    unlink_entry(c, e);
    link_newest(c, e);
    return e;
}

struct run_entry *cache_add(struct cache *c, str run_id) {
    struct run_entry *e = mem_alloc(sizeof(*e));
    if (!e) return NULL;
    arena_init(&e->arena, 1024, SIZE_MAX);
    if (!arena_try_str(&e->arena, run_id, &e->run_id) || !map_put(&c->by_id, e->run_id, e)) {
        arena_release(&e->arena);
        mem_free(e);
        return NULL;
    }
    link_newest(c, e);
    return e;
}

void cache_drop(struct cache *c, struct run_entry *e) {
    map_del(&c->by_id, e->run_id);
    c->bytes -= e->bytes;
    unlink_entry(c, e);
    arena_release(&e->arena);
    mem_free(e);
}

void cache_clear(struct cache *c) {
    while (c->newest)
        cache_drop(c, c->newest);
    map_release(&c->by_id);
    cache_init(c);
}

void cache_drop_tenant(struct cache *c, int64_t tenant_no) {
    for (struct run_entry *e = c->newest; e;) {
        struct run_entry *older = e->older;
        if (e->tenant_no == tenant_no) cache_drop(c, e);
        e = older;
    }
}

void cache_weigh(struct cache *c, struct run_entry *e) {
    c->bytes -= e->bytes;
    e->bytes = sizeof(*e) + arena_footprint(&e->arena);
    c->bytes += e->bytes;
}

void cache_trim(struct cache *c) {
    while (c->oldest != c->newest && c->bytes > RUN_CACHE_BYTES_MAX)
        cache_drop(c, c->oldest);
}
