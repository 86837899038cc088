/* base/arena.c: chunks from malloc, newest first, each used from its start. Under AddressSanitizer
 * the part of a chunk that nobody was given is poisoned, so a write past an allocation or a read
 * after arena_reset() is found as if every piece came from malloc. */
#include "base/arena.h"

#include <assert.h>
#include <stdatomic.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(ptr, n) ASAN_POISON_MEMORY_REGION((ptr), (n))
#define UNPOISON(ptr, n) ASAN_UNPOISON_MEMORY_REGION((ptr), (n))
#else
#define POISON(ptr, n) ((void)(ptr), (void)(n))
#define UNPOISON(ptr, n) ((void)(ptr), (void)(n))
#endif

/* A sanitizer maps and unmaps its shadow of a large block each time that malloc and free see one, which for an arena that
 * is filled and rewound all the time is most of the work. */
#if defined(ARENA_ASAN) || defined(__SANITIZE_THREAD__)
enum { ARENA_CHUNK_MAX = 64 * 1024 };
#else
enum { ARENA_CHUNK_MAX = 1024 * 1024 };
#endif
enum { ARENA_ALIGN = 16, ARENA_CHUNK_MIN = 256 };

struct arena_chunk {
    struct arena_chunk *older;
    size_t size, used; /* of the bytes that follow this header */
    size_t pad;        /* keeps those bytes aligned */
};
static_assert(sizeof(struct arena_chunk) % ARENA_ALIGN == 0, "the first piece is aligned");

/* Fault injection: which call from now fails, and how many there were. Atomic, because any thread
 * may allocate while a test has one of them fail; -1 is never reached by the count. */
static _Atomic int64_t fail_at = -1;
static _Atomic int64_t calls = 0;

static bool mem_must_fail(void) {
    int64_t call = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return call == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

void mem_fail_at(int64_t n) {
    atomic_store(&fail_at, n);
    atomic_store(&calls, 0);
}

int64_t mem_calls(void) { return atomic_load(&calls); }

void *mem_alloc(size_t size) { return mem_must_fail() ? NULL : calloc(1, size == 0 ? 1 : size); }

void *mem_grow(void *old, size_t old_size, size_t new_size) {
    ASSERT(new_size >= old_size);
    if (mem_must_fail()) return NULL;
    char *grown = realloc(old, new_size == 0 ? 1 : new_size);
    if (grown != NULL) memset(grown + old_size, 0, new_size - old_size);
    return grown;
}

void mem_free(void *ptr) { free(ptr); }

static char *chunk_bytes(struct arena_chunk *chunk) { return (char *)(chunk + 1); }

static void chunk_free(struct arena_chunk *chunk) {
    UNPOISON(chunk_bytes(chunk), chunk->size); /* malloc's memory goes back as it came */
    free(chunk);
}

/* Frees what is newer than `keep`; NULL frees all. */
static void free_newer(struct arena *a, const struct arena_chunk *keep) {
    while (a->chunk != keep) {
        ASSERT(a->chunk != NULL); /* else `keep` belongs to another arena, or to an earlier life */
        struct arena_chunk *older = a->chunk->older;
        chunk_free(a->chunk);
        a->chunk = older;
    }
}

void arena_init(struct arena *a, size_t first_chunk, size_t cap) {
    size_t size = first_chunk < ARENA_CHUNK_MIN ? ARENA_CHUNK_MIN : first_chunk;
    if (size > ARENA_CHUNK_MAX) size = ARENA_CHUNK_MAX;
    *a = (struct arena){.cap = cap, .chunk_size = size & ~(size_t)(ARENA_ALIGN - 1)};
}

void arena_release(struct arena *a) {
    free_newer(a, NULL);
    a->used = 0;
}

void arena_reset(struct arena *a) {
    a->used = 0;
    if (a->chunk == NULL) return;
    struct arena_chunk *kept = a->chunk;
    a->chunk = kept->older;
    free_newer(a, NULL);
    kept->older = NULL;
    kept->used = 0;
    POISON(chunk_bytes(kept), kept->size);
    a->chunk = kept;
}

/* A new chunk with room for `need` bytes; a need beyond the usual size gets a chunk of its own. */
static bool chunk_add(struct arena *a, size_t need) {
    size_t size = need > a->chunk_size ? need : a->chunk_size;
    if (size > SIZE_MAX - sizeof(struct arena_chunk) || mem_must_fail()) return false;
    struct arena_chunk *chunk = malloc(sizeof *chunk + size);
    if (chunk == NULL) return false;
    *chunk = (struct arena_chunk){.older = a->chunk, .size = size};
    POISON(chunk_bytes(chunk), size);
    a->chunk = chunk;
    a->chunk_size = a->chunk_size > ARENA_CHUNK_MAX / 2 ? ARENA_CHUNK_MAX : a->chunk_size * 2;
    return true;
}

void *arena_try_raw(struct arena *a, size_t size) {
    if (size > SIZE_MAX - ARENA_ALIGN) return NULL;
    size_t need = size == 0 ? ARENA_ALIGN : (size + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    ASSERT(a->used <= a->cap);
    if (need > a->cap - a->used) return NULL;
    if ((a->chunk == NULL || need > a->chunk->size - a->chunk->used) && !chunk_add(a, need)) {
        return NULL;
    }
    char *piece = chunk_bytes(a->chunk) + a->chunk->used;
    a->chunk->used += need;
    a->used += need;
    UNPOISON(piece, size); /* the rounding stays poisoned and guards the next piece */
    return piece;
}

void *arena_try(struct arena *a, size_t size) {
    void *piece = arena_try_raw(a, size);
    return piece == NULL ? NULL : memset(piece, 0, size);
}

void *arena_alloc(struct arena *a, size_t size) {
    void *piece = arena_try(a, size);
    ASSERT(piece != NULL); /* the cap follows from limits that were checked at the door */
    return piece;
}

bool arena_try_str(struct arena *a, str s, str *out) {
    if (s.ptr == NULL) {
        *out = STR_NONE;
        return true;
    }
    if (s.len == SIZE_MAX) return false;
    char *copy = arena_try_raw(a, s.len + 1);
    if (copy == NULL) return false;
    memcpy(copy, s.ptr, s.len);
    copy[s.len] = '\0';
    *out = str_n(copy, s.len);
    return true;
}

str arena_str(struct arena *a, str s) {
    str copy = STR_NONE;
    bool made = arena_try_str(a, s, &copy);
    ASSERT(made);
    return copy;
}

struct arena_mark arena_mark(const struct arena *a) {
    return (struct arena_mark){a->chunk, a->chunk == NULL ? 0 : a->chunk->used, a->used};
}

void arena_rewind(struct arena *a, struct arena_mark mark) {
    ASSERT(mark.used <= a->used);
    free_newer(a, mark.chunk);
    a->used = mark.used;
    if (a->chunk == NULL) return;
    ASSERT(mark.chunk_used <= a->chunk->used);
    a->chunk->used = mark.chunk_used;
    POISON(chunk_bytes(a->chunk) + mark.chunk_used, a->chunk->size - mark.chunk_used);
}

size_t arena_footprint(const struct arena *a) {
    size_t bytes = 0;
    for (const struct arena_chunk *c = a->chunk; c != NULL; c = c->older) {
        bytes += sizeof *c + c->size;
    }
    return bytes;
}
