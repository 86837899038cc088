/* base/map.c: open addressing with linear probing. At most 7 of 10 slots are taken, so a probe is
 * short and always meets a free slot. Deleting shifts later entries of the cluster back, so there
 * are no tombstones and a map that is used as a cache for months stays as fast as a new one.
 *
 * A slot is free when its hash is 0; a key whose hash is 0 counts as 1. */
#include "base/map.h"

#include <stdatomic.h>

#include "base/arena.h"
#include "base/uuid.h"

enum { MAP_FIRST = 16 };

/* One secret for the process, so that equal keys in two maps need not collide in a way outsiders
 * can plan. */
static uint64_t map_seed(void) {
    static _Atomic uint64_t shared = 0;
    uint64_t seed = atomic_load(&shared);
    if (seed != 0) return seed;
    uint64_t fresh = 0;
    random_bytes(&fresh, sizeof fresh);
    fresh |= 1; /* 0 means "not yet" */
    return atomic_compare_exchange_strong(&shared, &seed, fresh) ? fresh : seed;
}

static uint64_t key_hash(const struct map *m, str key) {
    uint64_t hash = str_hash(key, m->seed);
    return hash == 0 ? 1 : hash;
}

/* The slot that holds `key`, or the free one where it would go. */
static size_t find(const struct map *m, str key, uint64_t hash) {
    size_t mask = m->cap - 1;
    size_t i = (size_t)hash & mask;
    while (m->slots[i].hash != 0) {
        if (m->slots[i].hash == hash && str_eq(m->slots[i].key, key)) break;
        i = (i + 1) & mask;
    }
    return i;
}

void map_init(struct map *m) { *m = (struct map){.seed = map_seed()}; }

void map_release(struct map *m) {
    mem_free(m->slots);
    *m = (struct map){.seed = m->seed};
}

void *map_get(const struct map *m, str key) {
    if (m->count == 0) return NULL;
    return m->slots[find(m, key, key_hash(m, key))].value; /* NULL in a free slot */
}

static bool grow(struct map *m) {
    size_t cap = m->cap == 0 ? MAP_FIRST : m->cap * 2;
    if (cap > SIZE_MAX / sizeof(struct map_slot)) return false;
    struct map larger = {.slots = mem_alloc(cap * sizeof(struct map_slot)),
                         .count = m->count,
                         .cap = cap,
                         .seed = m->seed};
    if (larger.slots == NULL) return false;
    for (size_t i = 0; i < m->cap; i++) {
        const struct map_slot *slot = &m->slots[i];
        if (slot->hash != 0) larger.slots[find(&larger, slot->key, slot->hash)] = *slot;
    }
    mem_free(m->slots);
    *m = larger;
    return true;
}

bool map_put(struct map *m, str key, void *value) {
    uint64_t hash = key_hash(m, key);
    if (m->count > 0) {
        struct map_slot *slot = &m->slots[find(m, key, hash)];
        if (slot->hash != 0) {
            slot->key = key; /* also replaced: the old key often lives inside the old value */
            slot->value = value;
            return true;
        }
    }
    if ((m->count + 1) * 10 > m->cap * 7 && !grow(m)) return false;
    m->slots[find(m, key, hash)] = (struct map_slot){key, value, hash};
    m->count++;
    return true;
}

void *map_del(struct map *m, str key) {
    if (m->count == 0) return NULL;
    size_t hole = find(m, key, key_hash(m, key));
    if (m->slots[hole].hash == 0) return NULL;
    void *value = m->slots[hole].value;
    size_t mask = m->cap - 1;
    for (size_t i = (hole + 1) & mask; m->slots[i].hash != 0; i = (i + 1) & mask) {
        size_t home = (size_t)m->slots[i].hash & mask;
        /* An entry may move back into the hole unless its home lies behind the hole. */
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        m->slots[hole] = m->slots[i];
        hole = i;
    }
    m->slots[hole] = (struct map_slot){0};
    m->count--;
    return value;
}

bool map_next(const struct map *m, size_t *i, struct map_slot **slot) {
    while (*i < m->cap) {
        struct map_slot *at = &m->slots[(*i)++];
        if (at->hash == 0) continue;
        *slot = at;
        return true;
    }
    return false;
}
