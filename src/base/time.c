/* base/time.c: clocks, and RFC 3339 by arithmetic alone: no time zone data, no locale, no hidden
 * state. Days and dates convert as in Howard Hinnant's "chrono-compatible low-level date
 * algorithms": years begin in March, so that the leap day is the last of its year. */
#include "base/time.h"

enum { YEAR_MIN = 1970, YEAR_MAX = 2261 }; /* int64 nanoseconds end in April 2262 */
#define NS_PER_S INT64_C(1000000000)
#define US_PER_S INT64_C(1000000)
#define S_PER_DAY INT64_C(86400)
/* 0000-01-01T00:00:00Z and 9999-12-31T23:59:59Z: what four digits of year can say. */
#define FORMAT_S_MIN INT64_C(-62167219200)
#define FORMAT_S_MAX INT64_C(253402300799)

struct date {
    int64_t year;
    int month, day;
};

static int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    int rc = clock_gettime(clock, &now);
    ASSERT(rc == 0);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t clock_wall_us(void) { return clock_ns(CLOCK_REALTIME) / (NS_PER_S / US_PER_S); }

int64_t clock_mono_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Rounds down, also below zero. */
static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* What floor_div() leaves over: never negative. Not a - floor_div() * b, which can overflow. */
static int64_t floor_mod(int64_t a, int64_t b) { return a % b < 0 ? a % b + b : a % b; }

static int64_t days_from_date(struct date d) {
    int64_t year = d.month <= 2 ? d.year - 1 : d.year;
    int64_t era = floor_div(year, 400);
    int64_t year_of_era = year - era * 400;
    int64_t day_of_year = (153 * (d.month + (d.month > 2 ? -3 : 9)) + 2) / 5 + d.day - 1;
    int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + day_of_era - 719468; /* 0000-03-01 is 719,468 days before 1970 */
}

static struct date date_from_days(int64_t days) {
    days += 719468;
    int64_t era = floor_div(days, 146097);
    int64_t day_of_era = days - era * 146097;
    int64_t year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t shifted = (5 * day_of_year + 2) / 153; /* month, March is 0 */
    int month = (int)(shifted < 10 ? shifted + 3 : shifted - 9);
    return (struct date){year_of_era + era * 400 + (month <= 2), month,
                         (int)(day_of_year - (153 * shifted + 2) / 5 + 1)};
}

static int days_in_month(int64_t year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return month == 2 && leap ? 29 : days[month - 1];
}

/* Takes exactly `count` digits and the byte `end` (0: none) off the front; false if they are not
 * there. */
static bool take(str *s, size_t count, char end, int *out) {
    if (s->len < count + (end != 0)) return false;
    int n = 0;
    for (size_t i = 0; i < count; i++) {
        if (s->ptr[i] < '0' || s->ptr[i] > '9') return false;
        n = n * 10 + (s->ptr[i] - '0');
    }
    if (end != 0 && s->ptr[count] != end) return false;
    *out = n;
    *s = str_from(*s, count + (end != 0));
    return true;
}

/* Takes "" or ".123" off the front. */
static bool take_fraction(str *s, int64_t *ns, int *digits) {
    *ns = 0;
    *digits = 0;
    if (s->len == 0 || s->ptr[0] != '.') return true;
    *s = str_from(*s, 1);
    while (s->len > 0 && s->ptr[0] >= '0' && s->ptr[0] <= '9') {
        if (*digits == 9) return false;
        *ns = *ns * 10 + (s->ptr[0] - '0');
        ++*digits;
        *s = str_from(*s, 1);
    }
    for (int i = *digits; i < 9; i++)
        *ns *= 10;
    return *digits > 0;
}

bool time_parse_utc(str text, int64_t *ns, int *digits) {
    int year;
    int month;
    int day;
    int hour;
    int minute;
    int second;
    int count;
    int64_t fraction;
    if (!take(&text, 4, '-', &year) || !take(&text, 2, '-', &month) || !take(&text, 2, 'T', &day) ||
        !take(&text, 2, ':', &hour) || !take(&text, 2, ':', &minute) ||
        !take(&text, 2, 0, &second) || !take_fraction(&text, &fraction, &count) ||
        !str_eq(text, STR("Z"))) {
        return false;
    }
    if (year < YEAR_MIN || year > YEAR_MAX || month < 1 || month > 12) return false;
    if (day < 1 || day > days_in_month(year, month)) return false;
    if (hour > 23 || minute > 59 || second > 59) return false;
    int64_t days = days_from_date((struct date){year, month, day});
    *ns = (days * S_PER_DAY + hour * INT64_C(3600) + minute * INT64_C(60) + second) * NS_PER_S +
          fraction;
    *digits = count;
    return true;
}

static char *put_digits(char *at, int64_t n, int count) {
    for (int i = count - 1; i >= 0; i--) {
        at[i] = (char)('0' + n % 10);
        n /= 10;
    }
    return at + count;
}

/* Seconds since 1970 and the first `digits` digits of the fraction. Times come from stored rows
 * too, and a damaged one must not stop the program: what four digits of year cannot say is shown as
 * the nearest that they can. */
static size_t format(int64_t s, int64_t fraction, int digits, char *out) {
    if (s < FORMAT_S_MIN) s = FORMAT_S_MIN;
    if (s > FORMAT_S_MAX) s = FORMAT_S_MAX;
    int64_t rest = floor_mod(s, S_PER_DAY);
    struct date d = date_from_days(floor_div(s, S_PER_DAY));
    char *at = put_digits(out, d.year, 4);
    *at++ = '-';
    at = put_digits(at, d.month, 2);
    *at++ = '-';
    at = put_digits(at, d.day, 2);
    *at++ = 'T';
    at = put_digits(at, rest / 3600, 2);
    *at++ = ':';
    at = put_digits(at, rest / 60 % 60, 2);
    *at++ = ':';
    at = put_digits(at, rest % 60, 2);
    if (digits > 0) {
        *at++ = '.';
        at = put_digits(at, fraction, digits);
    }
    *at++ = 'Z';
    ASSERT(at - out <= TIME_TEXT_MAX);
    return (size_t)(at - out);
}

size_t time_format_ns(int64_t ns, int digits, char *out) {
    ASSERT(digits >= 0 && digits <= 9);
    int64_t fraction = floor_mod(ns, NS_PER_S);
    for (int i = digits; i < 9; i++)
        fraction /= 10;
    return format(floor_div(ns, NS_PER_S), fraction, digits, out);
}

size_t time_format_us(int64_t us, char *out) {
    return format(floor_div(us, US_PER_S), floor_mod(us, US_PER_S), 6, out);
}
