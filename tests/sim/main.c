/* tests/sim/main.c: the simulator alone, for tests/sim/bugs.sh: sim FIRST COUNT.
 *
 * Runs seeds until one breaks an invariant; says which, and exits with 1. An assertion of the
 * engine aborts: the seed was printed before. With CAIRN_SIM_TRACE the trace is printed. */
#include <unistd.h>

#include "base/log.h"
#include "sim/sim.h"

int main(int argc, char **argv) {
    static struct sim_result r;
    int64_t first = 1;
    int64_t count = 1;
    FILE *trace = getenv("CAIRN_SIM_TRACE") ? stdout : NULL;
    if (argc > 1 && !str_to_int(str_c(argv[1]), &first)) return 2;
    if (argc > 2 && !str_to_int(str_c(argv[2]), &count)) return 2;
    log_setup(STDERR_FILENO, false, LOG_OFF);
    for (int64_t i = 0; i < count; i++) {
        sim_run((uint64_t)(first + i), trace, &r);
        if (r.ok) continue;
        printf("seed %lld: %s: %s\n", (long long)r.seed, r.invariant, r.what);
        if (getenv("CAIRN_SIM_TAIL")) printf("%s", r.tail);
        if (!getenv("CAIRN_SIM_ALL")) return 1;
    }
    printf("seeds %lld to %lld: ok, the last: %lld runs, %lld events, %lld faults, %s\n",
           (long long)first, (long long)(first + count - 1), (long long)r.runs, (long long)r.events,
           (long long)r.faults, r.hash);
    return 0;
}
