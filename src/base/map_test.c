#include "base/map.h"

#include "base/arena.h"
#include "test.h"

TEST(map_put_get_del) {
    struct map m;
    map_init(&m);
    int one = 1;
    int two = 2;
    CHECK(map_get(&m, STR("a")) == NULL && map_del(&m, STR("a")) == NULL);
    CHECK(map_put(&m, STR("a"), &one) && map_put(&m, STR(""), &two));
    CHECK(map_get(&m, STR("a")) == &one && map_get(&m, STR_NONE) == &two && m.count == 2);
    CHECK(map_put(&m, STR("a"), &two) && m.count == 2 && map_get(&m, STR("a")) == &two);
    CHECK(map_del(&m, STR("a")) == &two && map_get(&m, STR("a")) == NULL && m.count == 1);
    CHECK(map_del(&m, STR("a")) == NULL);
    map_release(&m);
    CHECK(m.count == 0 && map_get(&m, STR("")) == NULL);
    CHECK(map_put(&m, STR("b"), &one) && map_get(&m, STR("b")) == &one); /* as after init */
    map_release(&m);
}

/* The key that counts is the last one put: the first may have died with its value. */
TEST(map_put_replaces_the_key_too) {
    struct map m;
    map_init(&m);
    char first[] = "key";
    char second[] = "key";
    CHECK(map_put(&m, str_c(first), first) && map_put(&m, str_c(second), second));
    memset(first, 'x', sizeof first);
    CHECK(map_get(&m, STR("key")) == second && m.count == 1);
    map_release(&m);
}

/* Random puts and deletes against the simplest thing that can be right: an array of flags. */
enum { KEYS = 600, STEPS = 60000 };
struct model {
    char name[KEYS][8];
    bool present[KEYS];
    size_t count;
};

static void compare(const struct map *m, const struct model *model, int step) {
    for (size_t i = 0; i < KEYS; i++) {
        const void *want = model->present[i] ? model->name[i] : NULL;
        CHECK(map_get(m, str_c(model->name[i])) == want, "step %d, key %zu", step, i);
    }
    size_t seen = 0;
    struct map_slot *slot;
    for (size_t i = 0; map_next(m, &i, &slot); seen++) {
        CHECK(str_eq(slot->key, str_c(slot->value)), "step %d", step);
    }
    CHECK(seen == model->count, "step %d: %zu of %zu", step, seen, model->count);
}

static void change(struct map *m, struct model *model, size_t k, bool put) {
    str key = str_c(model->name[k]);
    if (put) {
        CHECK(map_put(m, key, model->name[k]));
    } else {
        CHECK(map_del(m, key) == (model->present[k] ? model->name[k] : NULL));
    }
    model->count = model->count + put - model->present[k];
    model->present[k] = put;
    CHECK(m->count == model->count && m->count * 10 <= m->cap * 7);
}

TEST(map_agrees_with_a_model) {
    static struct model model;
    for (size_t i = 0; i < KEYS; i++)
        (void)snprintf(model.name[i], sizeof model.name[i], "k%zu", i);
    struct map m;
    map_init(&m);
    uint64_t random = UINT64_C(88172645463325252); /* xorshift */
    for (int step = 0; step < STEPS; step++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        bool rare = (random >> 32) % 4 == 0;
        bool filling = step / 10000 % 2 == 0; /* phases that mostly add, then mostly remove */
        change(&m, &model, random % KEYS, filling != rare);
        if (step % 500 == 0) compare(&m, &model, step);
    }
    map_release(&m);
}

TEST(map_without_memory_stays_as_it_was) {
    struct map m;
    map_init(&m);
    static char names[100][8];
    size_t refused = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        int n = snprintf(names[i], sizeof names[i], "%zu", i);
        str key = str_n(names[i], (size_t)n);
        mem_fail_at(0);
        if (!map_put(&m, key, names[i])) {
            refused++;
            CHECK(m.count == i && map_get(&m, key) == NULL);
            CHECK(map_put(&m, key, names[i])); /* memory is back */
        }
    }
    mem_fail_at(-1);
    CHECK(refused == 5 && m.cap == 256, "%zu, %zu", refused, m.cap); /* 16, 32, 64, 128, 256 */
    for (size_t i = 0; i < COUNT_OF(names); i++)
        CHECK(map_get(&m, str_c(names[i])) == names[i]);
    map_release(&m);
}

TEST(map_shares_one_secret_seed) {
    struct map a;
    struct map b;
    map_init(&a);
    map_init(&b);
    CHECK(a.seed == b.seed && a.seed != 0);
}
