/* ledger/seen.h: the ids of a run's events in memory, for duplicates and causes. */
#pragma once

#include "base/arena.h"
#include "base/hash.h"
#include "base/uuid.h"

struct seen_item {
    uint64_t key8, id8;
    int64_t seq;
};
struct seen { /* arrays live in the run's arena; newest item last, so that undo is a pop */
    struct seen_item *items;
    uint32_t count, cap;
    uint32_t *by_key, *by_id; /* open addressing: index + 1; 2 * cap slots */
};
uint64_t key_prefix(const uint8_t key[SHA256_LEN]); /* its first 8 bytes */
uint64_t id_prefix(uuid id);                        /* all 16 bytes folded into 8 */
const struct seen_item *seen_key(const struct seen *s, uint64_t key8);
const struct seen_item *seen_id(const struct seen *s, uint64_t id8);
MUST_CHECK bool seen_add(struct seen *s, struct seen_item item, struct arena *arena);
void seen_pop(struct seen *s);
