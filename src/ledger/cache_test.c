#include <stdio.h>

#include "ledger/cache.h"
#include "test.h"

static struct run_entry *add(struct cache *c, const char *id, int64_t tenant_no) {
    struct run_entry *e = cache_add(c, str_c(id));
    CHECK(e);
    e->tenant_no = tenant_no;
    return e;
}

/* The ids from the newest to the oldest, and back. */
static void check_order(const struct cache *c, const char *want) {
    char text[64];
    struct buf b;
    buf_init_fixed(&b, text, sizeof(text));
    const struct run_entry *last = NULL;
    for (const struct run_entry *e = c->newest; e; e = e->older) {
        CHECK(e->newer == last);
        buf_put(&b, e->run_id);
        last = e;
    }
    CHECK(c->oldest == last);
    CHECK(str_eq(buf_str(&b), str_c(want)), "%.*s, not %s", STR_ARG(buf_str(&b)), want);
}

TEST(cache_keeps_the_order_of_use) {
    struct cache c;
    cache_init(&c);
    check_order(&c, "");
    add(&c, "a", 1);
    struct run_entry *b = add(&c, "b", 2);
    add(&c, "c", 1);
    check_order(&c, "cba");
    CHECK(cache_get(&c, STR("a")) && cache_get(&c, STR("a")));
    check_order(&c, "acb");
    CHECK(!cache_get(&c, STR("d")));
    cache_drop(&c, b);
    check_order(&c, "ac");
    CHECK(!cache_get(&c, STR("b")));
    cache_clear(&c);
    check_order(&c, "");
    add(&c, "a", 1); /* it can be used again */
    check_order(&c, "a");
    cache_clear(&c);
}

TEST(cache_drops_a_tenant) {
    struct cache c;
    cache_init(&c);
    add(&c, "a", 1);
    add(&c, "b", 2);
    add(&c, "c", 2);
    add(&c, "d", 1);
    add(&c, "e", 2);
    cache_drop_tenant(&c, 2);
    check_order(&c, "da");
    cache_drop_tenant(&c, 7);
    check_order(&c, "da");
    cache_drop_tenant(&c, 1);
    check_order(&c, "");
    cache_clear(&c);
}

/* Trimming drops the oldest until the rest fits. */
TEST(cache_trims_to_its_bytes) {
    enum { N = 40 };
    struct cache c;
    size_t each = RUN_CACHE_BYTES_MAX / (N / 2);
    cache_init(&c);
    for (int i = 0; i < N; i++) {
        char id[16];
        snprintf(id, sizeof(id), "r%02d", i);
        struct run_entry *e = add(&c, id, 1);
        CHECK(arena_try_raw(&e->arena, each));
        cache_weigh(&c, e);
        CHECK(c.bytes >= each * (size_t)(i + 1));
    }
    cache_trim(&c);
    CHECK(c.bytes <= RUN_CACHE_BYTES_MAX && c.bytes > RUN_CACHE_BYTES_MAX / 2);
    CHECK(cache_get(&c, STR("r39")) && !cache_get(&c, STR("r00")));
    size_t bytes = c.bytes;
    cache_trim(&c);
    CHECK(c.bytes == bytes);
    cache_clear(&c);
    CHECK(c.bytes == 0);
}

TEST(cache_add_says_when_memory_is_out) {
    struct cache c;
    cache_init(&c);
    for (int64_t n = 0, failed = 1; failed; n++) {
        mem_fail_at(n);
        struct run_entry *e = cache_add(&c, STR("a"));
        failed = mem_calls() > n;
        mem_fail_at(-1);
        CHECK((e == NULL) == (bool)failed, "allocation %lld", (long long)n);
        CHECK(failed == !cache_get(&c, STR("a")));
    }
    cache_clear(&c);
}
