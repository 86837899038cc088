#include "base/arena.h"

#include "test.h"

TEST(arena_gives_zeroed_aligned_memory) {
    struct arena a;
    arena_init(&a, 256, (size_t)64 << 20);
    CHECK(arena_footprint(&a) == 0);
    for (size_t size = 0; size < 3000; size += 7) {
        unsigned char *p = arena_alloc(&a, size);
        CHECK((uintptr_t)p % 16 == 0, "size %zu", size);
        for (size_t i = 0; i < size; i++)
            CHECK(p[i] == 0, "size %zu, byte %zu", size, i);
        if (size > 0) memset(p, 0xAB, size);
    }
    arena_reset(&a);
    unsigned char *again = arena_alloc(&a, 200); /* reused memory is zeroed too */
    for (size_t i = 0; i < 200; i++)
        CHECK(again[i] == 0);
    arena_release(&a);
    CHECK(a.chunk == NULL && a.used == 0 && arena_footprint(&a) == 0);
    CHECK(arena_alloc(&a, 1) != NULL); /* as after init */
    arena_release(&a);
}

TEST(arena_keeps_to_its_cap) {
    struct arena a;
    arena_init(&a, 0, 1024);
    CHECK(arena_try(&a, 1025) == NULL && a.used == 0);
    CHECK(arena_try(&a, SIZE_MAX) == NULL && arena_try(&a, SIZE_MAX - 20) == NULL);
    CHECK(arena_try(&a, 1008) != NULL); /* the last good one, */
    CHECK(arena_try(&a, 16) != NULL && a.used == 1024);
    CHECK(arena_try(&a, 1) == NULL && arena_try(&a, 0) == NULL); /* and the first bad one */
    arena_reset(&a);
    CHECK(a.used == 0 && arena_try(&a, 1024) != NULL);
    arena_release(&a);
}

TEST(arena_chunks_double_and_large_requests_stand_alone) {
    struct arena a;
    arena_init(&a, 1024, SIZE_MAX);
    size_t before = 0;
    for (size_t total = 0; total < (size_t)8 << 20; total += 512) {
        arena_alloc(&a, 512);
        size_t now = arena_footprint(&a);
        CHECK(now - before <= ((size_t)1 << 20) + 64); /* no chunk is over 1 MiB */
        before = now;
    }
    CHECK(before < (size_t)11 << 20);
    memset(arena_alloc(&a, (size_t)5 << 20), 1, (size_t)5 << 20);
    CHECK(arena_footprint(&a) - before < ((size_t)5 << 20) + 64);
    arena_reset(&a);
    CHECK(arena_footprint(&a) < ((size_t)5 << 20) + 64); /* the newest chunk is kept */
    arena_release(&a);
}

TEST(arena_rewind_goes_back_to_the_mark) {
    struct arena a;
    arena_init(&a, 256, SIZE_MAX);
    struct arena_mark empty = arena_mark(&a);
    char *kept = arena_alloc(&a, 100);
    memset(kept, 'k', 100);
    struct arena_mark mark = arena_mark(&a);
    size_t footprint = arena_footprint(&a);
    size_t used = a.used;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++)
            memset(arena_alloc(&a, 333), 'x', 333);
        CHECK(arena_footprint(&a) > footprint);
        arena_rewind(&a, mark);
        CHECK(arena_footprint(&a) == footprint && a.used == used, "round %d", round);
    }
    for (int i = 0; i < 100; i++)
        CHECK(kept[i] == 'k');
    arena_rewind(&a, empty);
    CHECK(a.chunk == NULL && a.used == 0);
    arena_release(&a);
}

TEST(arena_str_copies_and_ends_in_nul) {
    struct arena a;
    arena_init(&a, 0, 4096);
    char text[] = "hello";
    str copy = arena_str(&a, str_n(text, 4));
    text[0] = 'j';
    CHECK(str_eq(copy, STR("hell")) && copy.ptr[4] == '\0');
    CHECK(arena_str(&a, STR_NONE).ptr == NULL); /* absent stays absent, */
    str empty = arena_str(&a, STR(""));
    CHECK(empty.ptr != NULL && empty.len == 0 && empty.ptr[0] == '\0'); /* empty stays empty */
    char big[5000] = {0};
    CHECK(!arena_try_str(&a, str_n(big, sizeof big), &copy) && str_eq(copy, STR("hell")));
    arena_release(&a);
}

TEST(arena_survives_a_failing_malloc) {
    struct arena a;
    arena_init(&a, 256, SIZE_MAX);
    mem_fail_at(0);
    CHECK(arena_try(&a, 10) == NULL && a.used == 0 && a.chunk == NULL);
    CHECK(mem_calls() == 1);
    CHECK(arena_try(&a, 10) != NULL); /* only the n-th fails */
    mem_fail_at(1);
    CHECK(arena_try_raw(&a, 10) != NULL && mem_calls() == 0); /* the chunk has room */
    CHECK(arena_try_raw(&a, 400) != NULL && mem_calls() == 1);
    size_t used = a.used;
    CHECK(arena_try_raw(&a, (size_t)1 << 20) == NULL && a.used == used);
    mem_fail_at(-1);
    arena_release(&a);
}

TEST(mem_grow_keeps_the_old_on_failure) {
    mem_fail_at(-1);
    char *p = mem_alloc(8);
    CHECK(p != NULL && mem_calls() == 1);
    for (int i = 0; i < 8; i++)
        CHECK(p[i] == 0);
    memcpy(p, "01234567", 8);
    mem_fail_at(0);
    CHECK(mem_grow(p, 8, 1000) == NULL);
    mem_fail_at(-1);
    CHECK(memcmp(p, "01234567", 8) == 0);
    p = mem_grow(p, 8, 1000);
    CHECK(p != NULL && memcmp(p, "01234567", 8) == 0);
    for (int i = 8; i < 1000; i++)
        CHECK(p[i] == 0, "byte %d", i);
    mem_free(p);
    mem_free(NULL);
    void *none = mem_alloc(0);
    CHECK(none != NULL); /* NULL means "empty machine", nothing else */
    mem_free(none);
}
