#include "server/keep.h"

#include "host/host.h"
#include "test.h"

TEST(cli_keep_is_a_time_or_none_or_for_ever) {
    static const struct {
        const char *text;
        status want;
        int64_t us;
    } cases[] = {
        {NULL, ST_OK, KEEP_DEFAULT_US},
        {"7d", ST_OK, KEEP_DEFAULT_US},
        {"12h", ST_OK, (int64_t)12 * 3600 * 1000000},
        {"30m", ST_OK, (int64_t)30 * 60 * 1000000},
        {"45s", ST_OK, (int64_t)45 * 1000000},
        {"36500d", ST_OK, (int64_t)36500 * 86400 * 1000000},
        {"0", ST_OK, HOST_KEEP_NOT},
        {"0d", ST_OK, HOST_KEEP_NOT},
        {"forever", ST_OK, 0},
        {"36501d", ST_INVALID, 0},
        {"99999999999999999999s", ST_INVALID, 0},
        {"7", ST_INVALID, 0},
        {"-1d", ST_INVALID, 0},
        {"7 d", ST_INVALID, 0},
        {"7w", ST_INVALID, 0},
        {"d", ST_INVALID, 0},
        {"", ST_INVALID, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t us = -7;
        struct error err = {0};
        str text = cases[i].text ? str_c(cases[i].text) : STR_NONE;
        CHECK(keep_parse(text, &us, &err) == cases[i].want, "case %zu: %s", i, err.msg);
        CHECK(cases[i].want != ST_OK || us == cases[i].us, "case %zu: %lld", i, (long long)us);
        CHECK(cases[i].want == ST_OK || strstr(err.msg, "7d, 12h"), "case %zu: %s", i, err.msg);
    }
}
