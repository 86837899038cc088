#include "ledger/seen.h"
#include "test.h"

static struct arena arena;

static struct seen_item item_of(uint64_t n) {
    return (struct seen_item){.key8 = n * 3 + 1, .id8 = n * 5 + 2, .seq = (int64_t)n + 1};
}

static void check_has(const struct seen *s, uint64_t n, bool want) {
    struct seen_item item = item_of(n);
    const struct seen_item *by_key = seen_key(s, item.key8);
    const struct seen_item *by_id = seen_id(s, item.id8);
    CHECK((by_key != NULL) == want && (by_id != NULL) == want, "item %llu", (unsigned long long)n);
    CHECK(!want || (by_key == by_id && by_key->seq == item.seq), "item %llu",
          (unsigned long long)n);
}

TEST(seen_finds_what_was_added) {
    enum { N = 1000 };
    struct seen s = {0};
    arena_init(&arena, 4096, SIZE_MAX);
    check_has(&s, 0, false); /* an empty one has no tables yet */
    for (uint64_t i = 0; i < N; i++) {
        CHECK(seen_add(&s, item_of(i), &arena));
        check_has(&s, i, true);
        check_has(&s, i + 1, false);
    }
    for (uint64_t i = 0; i < N; i++)
        check_has(&s, i, true);
    CHECK(s.count == N);
    arena_release(&arena);
}

/* Undoing takes the newest away and breaks the chain of no other, however the slots collide. */
TEST(seen_pop_takes_the_newest_away) {
    struct seen s = {0};
    uint64_t have = 0;
    uint64_t random = 7;
    arena_init(&arena, 4096, SIZE_MAX);
    for (int i = 0; i < 20000; i++) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        if (have > 0 && (random >> 60) < 7) {
            seen_pop(&s);
            check_has(&s, --have, false);
        } else {
            CHECK(seen_add(&s, item_of(have), &arena));
            check_has(&s, have++, true);
        }
        uint64_t any = (random >> 20) % (have + 5);
        check_has(&s, any, any < have);
    }
    CHECK(s.count == have);
    arena_release(&arena);
}

TEST(seen_prefixes_use_the_right_bytes) {
    uint8_t key[SHA256_LEN] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    CHECK(key_prefix(key) == 0x0102030405060708U);
    key[8] = 0;
    CHECK(key_prefix(key) == 0x0102030405060708U);
    uuid id = uuid_v4();
    uint64_t before = id_prefix(id);
    for (int i = 0; i < 16; i++) { /* every byte counts */
        id.b[i] ^= 1;
        CHECK(id_prefix(id) != before, "byte %d", i);
        id.b[i] ^= 1;
    }
    CHECK(id_prefix(id) == before);
}

TEST(seen_add_says_when_memory_is_out) {
    struct seen s = {0};
    arena_init(&arena, 64, 64);
    CHECK(!seen_add(&s, item_of(1), &arena));
    CHECK(s.count == 0 && !seen_key(&s, item_of(1).key8));
    arena_release(&arena);
}
