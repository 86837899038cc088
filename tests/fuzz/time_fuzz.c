/* Any bytes as an RFC 3339 time: what is accepted is written back letter for letter. And any
 * instant: what is written is accepted. */
#include "base/time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NS_PER_SECOND INT64_C(1000000000)

static void check_text(str text) {
    int64_t ns = 0;
    int digits = 0;
    if (!time_parse_utc(text, &ns, &digits)) return;
    char out[TIME_TEXT_MAX];
    ASSERT(digits >= 0 && digits <= 9);
    size_t n = time_format_ns(ns, digits, out);
    ASSERT(str_eq(str_n(out, n), text));
}

/* Eight bytes of instant within the years that are allowed, and the digits it is shown with. */
static void check_instant(const uint8_t *data) {
    int64_t last = 0;
    int ignored = 0;
    bool ok = time_parse_utc(STR("2261-12-31T23:59:59.999999999Z"), &last, &ignored);
    ASSERT(ok);
    uint64_t bits;
    memcpy(&bits, data, sizeof(bits));
    int digits = data[8] % 10;
    int64_t ns = (int64_t)(bits % ((uint64_t)last + 1));
    int64_t unit = 1;
    for (int i = digits; i < 9; i++)
        unit *= 10;
    ns -= ns % unit; /* what the digits can show */

    char out[TIME_TEXT_MAX];
    int64_t back = 0;
    int back_digits = 0;
    size_t n = time_format_ns(ns, digits, out);
    ok = time_parse_utc(str_n(out, n), &back, &back_digits);
    ASSERT(ok && back == ns && back_digits == digits);
    n = time_format_us(ns / 1000, out);
    ok = time_parse_utc(str_n(out, n), &back, &back_digits);
    ASSERT(ok && back == ns / 1000 * 1000 && back_digits == 6);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_text(str_n(data, size));
    if (size >= 9) check_instant(data);
    return 0;
}
