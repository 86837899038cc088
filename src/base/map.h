/* base/map.h: a hash map from str to pointer. Open addressing, seeded hash, grows by doubling.
 * Keys are borrowed: they must live as long as their entry. Not for stored data. */
#pragma once

#include "base/base.h"
#include "base/str.h"

struct map_slot { str key; void *value; uint64_t hash; };
struct map {
    struct map_slot *slots;
    size_t count, cap; /* cap is 0 or a power of two */
    uint64_t seed;
};

void map_init(struct map *m);                 /* allocates nothing yet */
void map_release(struct map *m);
void *map_get(const struct map *m, str key);  /* NULL if absent */
bool map_put(struct map *m, str key, void *value); /* adds or replaces, key and value; false when memory is out */
void *map_del(struct map *m, str key);        /* the removed value or NULL */
/* Iteration: for (size_t i = 0; map_next(m, &i, &slot);) — in no particular order. */
bool map_next(const struct map *m, size_t *i, struct map_slot **slot);
