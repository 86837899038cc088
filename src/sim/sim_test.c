#include "sim/sim.h"

#include "base/log.h"
#include "test.h"

enum { SEEDS = 200, SEEDS_LEAST = 20, FIRST_SEED = 1 };

static int scaled(int n, int least) {
    int64_t percent = 100;
    const char *text = getenv("CAIRN_TEST_SCALE");
    if (text && !str_to_int(str_c(text), &percent)) percent = 100;
    int64_t count = n * percent / 100;
    return count < least ? least : (int)count;
}

/* The engine says what it meets, and in these worlds it meets a lot. */
static void quietly(uint64_t seed, struct sim_result *out) {
    log_setup(2, false, LOG_OFF);
    sim_run(seed, NULL, out);
    log_setup(2, false, LOG_INFO);
}

TEST(sim_every_run_ends_and_no_invariant_breaks) {
    static struct sim_result r;
    int64_t events = 0;
    int64_t faults = 0;
    for (int i = 0; i < scaled(SEEDS, SEEDS_LEAST); i++) {
        quietly(FIRST_SEED + (uint64_t)i, &r);
        CHECK(r.ok, "seed %llu: %s: %s\n%s", (unsigned long long)r.seed, r.invariant, r.what,
              r.tail);
        events += r.events;
        faults += r.faults;
    }
    CHECK(events > 0 && faults > 0); /* the worlds are not empty, nor all kind */
}

TEST(sim_the_same_seed_is_the_same_world) {
    static struct sim_result a;
    static struct sim_result b;
    for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + 10; seed++) {
        quietly(seed, &a);
        quietly(seed, &b);
        CHECK(strcmp(a.hash, b.hash) == 0, "seed %llu", (unsigned long long)seed);
        CHECK(a.events == b.events && a.faults == b.faults && a.world_ms == b.world_ms);
    }
}

TEST(sim_other_seeds_are_other_worlds) {
    static struct sim_result results[10];
    for (size_t i = 0; i < COUNT_OF(results); i++) {
        quietly(FIRST_SEED + i, &results[i]);
        for (size_t k = 0; k < i; k++)
            CHECK(strcmp(results[i].hash, results[k].hash) != 0, "%zu and %zu", i, k);
    }
}
