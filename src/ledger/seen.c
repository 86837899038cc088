/* ledger/seen.c: a hash table of the keys and ids of each run. */
#include "ledger/seen.h"


static uint64_t eight(const uint8_t *b) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v = v << 8 | b[i];
    return v;
}

uint64_t key_prefix(const uint8_t key[SHA256_LEN]) { return eight(key); }
uint64_t id_prefix(uuid id) { return eight(id.b) ^ eight(id.b + 8) * 0x9e3779b97f4a7c15U; }

/* The ids are hashes and random UUIDs already; fold so that a chosen prefix cannot line up the low
 * bits. */
static uint32_t slot(uint64_t v, uint32_t slots) {
    v ^= v >> 32;
    v *= 0x9e3779b97f4a7c15U;
    return (uint32_t)(v >> 32) & (slots - 1);
}

static uint32_t probe(const struct seen *s, const uint32_t *table, uint64_t v, bool by_key) {
    uint32_t slots = s->cap * 2;
    uint32_t i = slot(v, slots);
    while (table[i] != 0) {
        const struct seen_item *item = &s->items[table[i] - 1];
        if ((by_key ? item->key8 : item->id8) == v) break;
        i = (i + 1) & (slots - 1);
    }
    return i;
}

const struct seen_item *seen_key(const struct seen *s, uint64_t key8) {
    if (s->cap == 0) return NULL;
    uint32_t at = s->by_key[probe(s, s->by_key, key8, true)];
    return at == 0 ? NULL : &s->items[at - 1];
}

const struct seen_item *seen_id(const struct seen *s, uint64_t id8) {
    if (s->cap == 0) return NULL;
    uint32_t at = s->by_id[probe(s, s->by_id, id8, false)];
    return at == 0 ? NULL : &s->items[at - 1];
}

static void enter(struct seen *s, uint32_t index) {
    s->by_key[probe(s, s->by_key, s->items[index].key8, true)] = index + 1;
    s->by_id[probe(s, s->by_id, s->items[index].id8, false)] = index + 1;
}

static bool grow(struct seen *s, struct arena *arena) {
    struct seen bigger = {.count = s->count, .cap = s->cap == 0 ? 8 : s->cap * 2};
    bigger.items = arena_try_raw(arena, bigger.cap * sizeof(*bigger.items));
    bigger.by_key = arena_try(arena, (size_t)bigger.cap * 2 * sizeof(uint32_t));
    bigger.by_id = arena_try(arena, (size_t)bigger.cap * 2 * sizeof(uint32_t));
    if (!bigger.items || !bigger.by_key || !bigger.by_id) return false;
    if (s->count > 0) memcpy(bigger.items, s->items, s->count * sizeof(*s->items));
    *s = bigger;
    for (uint32_t i = 0; i < s->count; i++)
        enter(s, i);
    return true;
}

bool seen_add(struct seen *s, struct seen_item item, struct arena *arena) {
    if (s->count == s->cap && !grow(s, arena)) return false;
    s->items[s->count++] = item;
    enter(s, s->count - 1);
    return true;
}

void seen_pop(struct seen *s) {
    ASSERT(s->count > 0);
    const struct seen_item *last = &s->items[s->count - 1];
    /* The newest item was probed last, so emptying its slots breaks no other chain. */
    s->by_key[probe(s, s->by_key, last->key8, true)] = 0;
    s->by_id[probe(s, s->by_id, last->id8, false)] = 0;
    s->count--;
}
