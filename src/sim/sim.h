/* sim/sim.h: the engine in a world of our own: one seed is one world, the same every time.
 *
 * The world has a clock, a store with the Append Authority's rules, one or two nodes with an engine
 * each, executors, outside workers, operators and clients, all driven by one random sequence. Until
 * a time it is hostile: commits fail or their answers are lost, nodes crash, freeze and lose their
 * leases, workers die or answer late or twice. Then it is calm, and every run must end. Invariants
 * are checked at each commit and at the end (docs/simulator.md lists them).
 *
 * Nothing here reads a clock, an address or a thread: the trace of a seed has the same hash
 * on every machine. A broken invariant is told in the result; a broken assertion of the engine
 * aborts. */
#pragma once

#include "base/hash.h"

enum { SIM_NAME_MAX = 48, SIM_WHAT_MAX = 400, SIM_TAIL_MAX = 16 * 1024 };

struct sim_result {
    uint64_t seed;
    bool ok;
    int64_t runs, events, commits, faults;
    int64_t world_ms;              /* how long the world lasted, by its own clock */
    char hash[SHA256_HEX_LEN + 1]; /* of the trace */
    char invariant[SIM_NAME_MAX];  /* the first that broke, */
    char what[SIM_WHAT_MAX];       /* how, */
    char tail[SIM_TAIL_MAX];       /* and the last lines of the trace */
};

/* Runs the world of one seed. `trace` gets each line of the trace, or is NULL. */
void sim_run(uint64_t seed, FILE *trace, struct sim_result *out);
