#include "base/time.h"

#include "test.h"

#define S INT64_C(1000000000)

TEST(time_parses_rfc3339_in_utc) {
    static const struct {
        const char *in;
        int64_t ns;
        int digits;
    } cases[] = {
        {"1970-01-01T00:00:00Z", 0, 0},
        {"1970-01-01T00:00:00.000000001Z", 1, 9},
        {"2026-02-16T08:00:00Z", 1771228800 * S, 0},
        {"2026-02-16T08:00:00.1Z", 1771228800 * S + 100000000, 1},
        {"2026-02-16T08:00:00.123456Z", 1771228800 * S + 123456000, 6},
        {"2026-02-16T08:00:00.100000000Z", 1771228800 * S + 100000000, 9},
        {"2000-02-29T23:59:59Z", 951868799 * S, 0}, /* 400 divides it */
        {"2024-02-29T00:00:00Z", 1709164800 * S, 0},
        {"2038-01-19T03:14:08Z", 2147483648 * S, 0}, /* one more than 32 bits hold */
        {"2261-12-31T23:59:59.999999999Z", INT64_C(9214646399999999999), 9}, /* the last good one */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t ns = -1;
        int digits = -1;
        CHECK(time_parse_utc(str_c(cases[i].in), &ns, &digits), "%s", cases[i].in);
        CHECK(ns == cases[i].ns && digits == cases[i].digits, "%s: %lld, %d", cases[i].in,
              (long long)ns, digits);
        char text[TIME_TEXT_MAX];
        size_t len = time_format_ns(ns, digits, text);
        CHECK(str_eq(str_n(text, len), str_c(cases[i].in)), "%s: %.*s", cases[i].in, (int)len,
              text);
    }
}

TEST(time_refuses_what_is_not) {
    static const char *const cases[] = {
        "",
        "Z",
        "2026-02-16",
        "2026-02-16T08:00:00",  /* no zone */
        "2026-02-16t08:00:00Z", /* lower case */
        "2026-02-16T08:00:00z",
        "2026-02-16 08:00:00Z",
        "2026-02-16T08:00:00+00:00", /* an offset, even if it is UTC's */
        "2026-02-16T08:00:00+02:00",
        "2026-02-16T08:00:00-00:00",
        "2026-02-16T08:00:00UTC",
        " 2026-02-16T08:00:00Z",
        "2026-02-16T08:00:00Z ",
        "2026-02-16T08:00:00 Z",
        "2026-02-16T08:00:00Z\n",
        "2026-02-16T08:00:00ZZ",
        "2026-02-16T08:00Z",
        "2026-02-16T08Z",
        "20260216T080000Z",
        "2026-2-16T08:00:00Z",
        "2026-02-16T8:00:00Z",
        "26-02-16T08:00:00Z",
        "12026-02-16T08:00:00Z",
        "+2026-02-16T08:00:00Z",
        "-026-02-16T08:00:00Z",
        "2026/02/16T08:00:00Z",
        "2026-02-16T08.00.00Z",
        "2026-00-16T08:00:00Z",
        "2026-13-16T08:00:00Z",
        "2026-02-00T08:00:00Z",
        "2026-02-29T08:00:00Z", /* no leap year */
        "2100-02-29T08:00:00Z", /* 100 divides it, 400 does not */
        "2024-02-30T08:00:00Z",
        "2026-04-31T08:00:00Z",
        "2026-06-31T08:00:00Z",
        "2026-09-31T08:00:00Z",
        "2026-11-31T08:00:00Z",
        "2026-01-32T08:00:00Z",
        "2026-02-16T24:00:00Z",
        "2026-02-16T08:60:00Z",
        "2016-12-31T23:59:60Z", /* a real leap second has no instant of its own */
        "2026-02-16T08:00:61Z",
        "2026-02-16T08:00:00.Z",
        "2026-02-16T08:00:00,5Z",
        "2026-02-16T08:00:00.1234567890Z", /* ten digits */
        "2026-02-16T08:00:00.12x4Z",
        "2026-02-16T08:00:00.-1Z",
        "1969-12-31T23:59:59Z",
        "2262-01-01T00:00:00Z", /* the first bad one */
        "9999-12-31T23:59:59Z",
        "2026-02-1\xC2\xB2T08:00:00Z",
        "\xD9\xA2\xD9\xA0\xD9\xA2\xD9\xA6-02-16T08:00:00Z", /* digits, but not ASCII's */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t ns = 7;
        int digits = 7;
        CHECK(!time_parse_utc(str_c(cases[i]), &ns, &digits), "\"%s\"", cases[i]);
        CHECK(ns == 7 && digits == 7, "\"%s\"", cases[i]);
    }
    int64_t ns;
    int digits;
    CHECK(!time_parse_utc(STR("2026-02-16T08:00:00Z\0"), &ns, &digits));
    CHECK(!time_parse_utc(STR("2026-02-16T08:00:00\0Z"), &ns, &digits));
    CHECK(!time_parse_utc(STR_NONE, &ns, &digits));
}

/* Every day of the range, counted one by one through the calendar. */
TEST(time_every_day_in_turn) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t count = 0;
    for (int y = 1970; y <= 2261; y++) {
        bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
        for (int m = 1; m <= 12; m++) {
            for (int d = 1; d <= days[m - 1] + (m == 2 && leap); d++, count++) {
                char want[64];
                char got[TIME_TEXT_MAX];
                int n = snprintf(want, sizeof want, "%04d-%02d-%02dT12:34:56Z", y, m, d);
                int64_t ns;
                int64_t expected = (count * 86400 + 45296) * S;
                int digits;
                CHECK(time_parse_utc(str_n(want, (size_t)n), &ns, &digits), "%s", want);
                CHECK(ns == expected, "%s", want);
                CHECK(time_format_ns(ns, 0, got) == (size_t)n && memcmp(want, got, (size_t)n) == 0,
                      "%s: %.20s", want, got);
            }
        }
    }
}

TEST(time_formats_store_time) {
    static const struct {
        int64_t us;
        const char *want;
    } cases[] = {
        {0, "1970-01-01T00:00:00.000000Z"},
        {INT64_C(1771228800123456), "2026-02-16T08:00:00.123456Z"},
        {-1, "1969-12-31T23:59:59.999999Z"},
        {INT64_C(253402300799999999), "9999-12-31T23:59:59.999999Z"},
        {INT64_C(253402300800000000),
         "9999-12-31T23:59:59.000000Z"}, /* a damaged row; not a crash */
        {INT64_C(-62167219200000000), "0000-01-01T00:00:00.000000Z"},
        {INT64_C(-62167219200000001), "0000-01-01T00:00:00.999999Z"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[TIME_TEXT_MAX];
        size_t len = time_format_us(cases[i].us, text);
        CHECK(str_eq(str_n(text, len), str_c(cases[i].want)), "case %zu: %.*s", i, (int)len, text);
    }
    char text[TIME_TEXT_MAX];
    static const int64_t extremes[] = {INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < COUNT_OF(extremes); i++) {
        CHECK(time_format_us(extremes[i], text) == 27);
        CHECK(time_format_ns(extremes[i], 9, text) == 30);
    }
}

TEST(time_clocks_run_forward) {
    int64_t wall = clock_wall_us();
    int64_t mono = clock_mono_ns();
    CHECK(wall > INT64_C(1700000000000000) && wall < INT64_C(9214646400000000));
    for (int i = 0; i < 1000; i++) {
        int64_t now = clock_mono_ns();
        CHECK(now >= mono);
        mono = now;
    }
}
