/* How often a caller may do something. */
#include "api/impl.h"
#include "test.h"

TEST(limit_gives_a_burst_then_the_rate) {
    struct limiter *l = NULL;
    struct error err = {0};
    int64_t left = -1;
    int64_t reset = 0;
    int64_t now = INT64_C(1000000000000);
    CHECK(limiter_open(10 / 60.0, 10, &l, &err) == ST_OK);
    for (int i = 0; i < 10; i++) {
        CHECK(limiter_take(l, STR("a"), now, &left, &reset));
        CHECK(left == 9 - i && reset == 60);
    }
    for (int i = 0; i < 25; i++)
        CHECK(!limiter_take(l, STR("a"), now, &left, &reset) && left == 0);
    CHECK(limiter_take(l, STR("b"), now, &left, &reset)); /* another has its own */
    CHECK(limiter_missed(l, STR("b"), now) == 0);
    now += INT64_C(6100000000);
    CHECK(limiter_take(l, STR("a"), now, &left, &reset));
    CHECK(limiter_missed(l, STR("a"), now) == 25 && limiter_missed(l, STR("a"), now) == 0);
    CHECK(!limiter_take(l, STR("a"), now, &left, &reset));
    limiter_close(l);
}
