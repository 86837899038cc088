/* tests/model/random.h: random numbers that are the same on every machine: splitmix64. A test that
 * fails prints its seed. */
#pragma once

#include "base/base.h"

static inline uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

static inline uint32_t random_below(uint64_t *state, uint32_t n) {
    return (uint32_t)(random_next(state) % n);
}

static inline bool random_chance(uint64_t *state, uint32_t percent) {
    return random_below(state, 100) < percent;
}
