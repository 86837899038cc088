#include "adapters/trace.h"

#include "base/hash.h"
#include "test.h"

TEST(trace_parent_names_the_runs_trace_and_the_attempts_span) {
    uuid id;
    char first[TRACE_PARENT_LEN];
    char again[TRACE_PARENT_LEN];
    uint8_t hash[SHA256_LEN];
    char span[16];
    CHECK(uuid_parse(STR("0af76519-16cd-43dd-8448-eb211c80319c"), &id));
    CHECK(trace_parent(id, STR("run-1"), STR("step"), 2, first));
    sha256_of(STR("run-1\nstep\n2"), hash);
    hex_encode(hash, 8, span);
    CHECK(memcmp(first, "00-0af7651916cd43dd8448eb211c80319c-", 36) == 0);
    CHECK(memcmp(first + 36, span, sizeof span) == 0);
    CHECK(memcmp(first + 52, "-01", 3) == 0);
    CHECK(trace_parent(id, STR("run-1"), STR("step"), 2, again));
    CHECK(memcmp(first, again, sizeof first) == 0, "the same attempt is another span");
    CHECK(trace_parent(id, STR("run-1"), STR("step"), 3, again));
    CHECK(memcmp(first, again, sizeof first) != 0, "another attempt is the same span");
    CHECK(!trace_parent((uuid){0}, STR("run-1"), STR("step"), 2, again), "a trace id of zeros");
}
