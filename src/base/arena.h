/* base/arena.h: memory with one lifetime. Allocate many times, drop all at once.
 *
 * arena_alloc() never returns NULL: its cap follows from limits checked at the door, so passing
 * it is our bug and panics. arena_try() is for sizes that come from outside and for paths that must
 * survive an empty machine: its NULL (cap reached, or malloc failed) becomes ST_LIMIT or ST_RETRY. */
#pragma once

#include "base/base.h"
#include "base/str.h"

struct arena_chunk;
struct arena {
    struct arena_chunk *chunk; /* newest first */
    size_t used;               /* bytes handed out */
    size_t cap;                /* most bytes that may be handed out */
    size_t chunk_size;         /* size of the next chunk; grows by doubling to 1 MiB */
};
struct arena_mark { struct arena_chunk *chunk; size_t chunk_used; size_t used; };

void arena_init(struct arena *a, size_t first_chunk, size_t cap); /* allocates nothing yet */
void arena_release(struct arena *a);                              /* back to the state after init */
void arena_reset(struct arena *a);    /* drops all; keeps one chunk (the newest) for reuse */
void *arena_alloc(struct arena *a, size_t size);  /* zeroed, 16-byte aligned */
void *arena_try(struct arena *a, size_t size);    /* the same, but NULL on failure */
void *arena_try_raw(struct arena *a, size_t size); /* as arena_try, not zeroed */
#define ARENA_NEW(a, type) ((type *)arena_alloc((a), sizeof(type)))
#define ARENA_ARRAY(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))
str arena_str(struct arena *a, str s);            /* a copy, followed by a NUL byte; STR_NONE stays so */
bool arena_try_str(struct arena *a, str s, str *out);
struct arena_mark arena_mark(const struct arena *a);
void arena_rewind(struct arena *a, struct arena_mark mark); /* frees chunks made since */
size_t arena_footprint(const struct arena *a);    /* bytes held from malloc */

/* malloc and friends for *_open functions, so that tests can make the n-th one fail. */
void *mem_alloc(size_t size);                     /* zeroed; NULL when empty */
void *mem_grow(void *old, size_t old_size, size_t new_size); /* new part zeroed; NULL leaves `old` as it was */
void mem_free(void *ptr);
/* Tests only: the n-th (0, 1, ...) allocation from now fails; -1 switches it off. Counts calls. */
void mem_fail_at(int64_t n);
int64_t mem_calls(void);
