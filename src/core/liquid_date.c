/* core/liquid_date.c: the filter `date`: strftime in UTC, with English names. There is no clock
 * here: "now" and "today" are refused.
 *
 * A time is an RFC 3339 text (a blank may stand for the T; without an offset it is UTC; the time of
 * day may be missing), or seconds since 1970 as a number or digits. Milliseconds are kept. Anything
 * else goes through unchanged, as in liquidjs. */
#include <math.h>

#include "core/liquid_impl.h"

enum { WIDTH_MAX = 1024 }; /* of one conversion */
#define MS_PER_DAY INT64_C(86400000)
#define SECONDS_MAX 8.64e12 /* JavaScript's last instant */

struct moment {
    int64_t ms; /* since 1970 */
    int64_t year;
    int month, day, weekday, day_of_year; /* month and day from 1, the others from 0 */
    int hour, minute, second, milli;
};

/* ---- the calendar ---- */

static bool is_leap(int64_t year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

static int days_before(int64_t year, int month) {
    static const int days[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};
    return days[month - 1] + (month > 2 && is_leap(year));
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Days from 1970-01-01 to the first of January. */
static int64_t year_start(int64_t year) {
    int64_t y = year - 1;
    return 365 * (year - 1970) + (floor_div(y, 4) - 492) - (floor_div(y, 100) - 19) +
           (floor_div(y, 400) - 4);
}

static struct moment moment_of(int64_t ms) {
    struct moment m = {.ms = ms};
    int64_t days = floor_div(ms, MS_PER_DAY);
    int64_t rest = ms - days * MS_PER_DAY;
    m.weekday = (int)((days % 7 + 11) % 7); /* 1970-01-01 was a Thursday */
    m.year = 1970 + floor_div(days, 366);   /* never too late: then forward, a few years at most */
    m.year += floor_div(days - year_start(m.year), 366);
    while (year_start(m.year + 1) <= days)
        m.year++;
    m.day_of_year = (int)(days - year_start(m.year));
    m.month = 12;
    while (days_before(m.year, m.month) > m.day_of_year)
        m.month--;
    m.day = m.day_of_year - days_before(m.year, m.month) + 1;
    m.hour = (int)(rest / 3600000);
    m.minute = (int)(rest / 60000 % 60);
    m.second = (int)(rest / 1000 % 60);
    m.milli = (int)(rest % 1000);
    return m;
}

/* ---- reading ---- */

/* Exactly `digits` digits. */
static bool take(str *s, int digits, int *out) {
    *out = 0;
    if (s->len < (size_t)digits) return false;
    for (int i = 0; i < digits; i++) {
        if (s->ptr[i] < '0' || s->ptr[i] > '9') return false;
        *out = *out * 10 + (s->ptr[i] - '0');
    }
    *s = str_from(*s, (size_t)digits);
    return true;
}

static bool take_char(str *s, char c) {
    if (s->len == 0 || s->ptr[0] != c) return false;
    *s = str_from(*s, 1);
    return true;
}

/* .123456, of which milliseconds are kept. */
static bool take_fraction(str *s, int *milli) {
    int scale = 100;
    *milli = 0;
    if (!take_char(s, '.')) return true;
    size_t n = 0;
    for (; n < s->len && s->ptr[n] >= '0' && s->ptr[n] <= '9'; n++) {
        *milli += (s->ptr[n] - '0') * scale;
        scale /= 10;
    }
    *s = str_from(*s, n);
    return n > 0;
}

static bool take_zone(str *s, int64_t *offset_ms) {
    int hours;
    int minutes;
    *offset_ms = 0;
    if (s->len == 0 || take_char(s, 'Z')) return true;
    bool west = s->ptr[0] == '-';
    if (!take_char(s, '+') && !take_char(s, '-')) return false;
    if (!take(s, 2, &hours)) return false;
    (void)take_char(s, ':');
    if (!take(s, 2, &minutes) || hours > 23 || minutes > 59) return false;
    *offset_ms = (west ? -1 : 1) * (hours * INT64_C(3600000) + minutes * INT64_C(60000));
    return true;
}

static bool parse_time_of_day(str *s, int64_t *ms) {
    int hour;
    int minute;
    int second = 0;
    int milli = 0;
    int64_t offset;
    if (!take(s, 2, &hour) || !take_char(s, ':') || !take(s, 2, &minute)) return false;
    if (take_char(s, ':') && (!take(s, 2, &second) || !take_fraction(s, &milli))) return false;
    if (hour > 23 || minute > 59 || second > 59 || !take_zone(s, &offset)) return false;
    *ms =
        hour * INT64_C(3600000) + minute * INT64_C(60000) + second * INT64_C(1000) + milli - offset;
    return s->len == 0;
}

static bool parse_text(str text, int64_t *ms) {
    int year;
    int month;
    int day;
    str s = text;
    if (!take(&s, 4, &year) || !take_char(&s, '-') || !take(&s, 2, &month) || !take_char(&s, '-') ||
        !take(&s, 2, &day)) {
        return false;
    }
    if (month < 1 || month > 12 || day < 1) return false;
    int end = month == 12 ? 365 + is_leap(year) : days_before(year, month + 1);
    if (day > end - days_before(year, month)) return false;
    int64_t of_day = 0;
    if (s.len > 0) {
        if (!take_char(&s, 'T') && !take_char(&s, ' ')) return false;
        if (!parse_time_of_day(&s, &of_day)) return false;
    }
    *ms = (year_start(year) + days_before(year, month) + day - 1) * MS_PER_DAY + of_day;
    return true;
}

static bool all_digits(str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') return false;
    }
    return s.len > 0;
}

static bool parse_moment(struct lv v, struct moment *out) {
    int64_t ms = 0;
    if (v.kind == LV_STRING && !all_digits(v.text)) {
        if (!parse_text(v.text, &ms)) return false;
    } else if (v.kind == LV_STRING || v.kind == LV_NUMBER) {
        double seconds = lv_to_number(v);
        if (!(fabs(seconds) <= SECONDS_MAX)) return false;
        ms = (int64_t)trunc(seconds * 1000);
    } else {
        return false;
    }
    *out = moment_of(ms);
    return true;
}

/* ---- writing ---- */

static const char *const month_names[] = {"January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December"};
static const char *const day_names[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday"};

static const char *ordinal(int day) {
    if (day >= 11 && day <= 13) return "th";
    if (day % 10 == 1) return "st";
    if (day % 10 == 2) return "nd";
    return day % 10 == 3 ? "rd" : "th";
}

/* Days before the first Sunday (or Monday) of the year are in week 0. */
static int64_t week(const struct moment *m, int first) {
    return (m->day_of_year - (m->weekday - first + 7) % 7 + 7) / 7;
}

struct conversion {
    bool minus, underscore, zero, upper, swap, colon;
    int width; /* 0: not given */
    char c;
};

static void put_name(struct buf *out, const char *name, size_t length) {
    str s = str_c(name);
    if (s.len > length) s.len = length;
    buf_put(out, s);
}

/* The number that a conversion shows; false: it shows none. */
static bool number_of(const struct moment *m, char c, int64_t *n) {
    switch (c) {
    case 'C':
        *n = floor_div(m->year, 100);
        return true;
    case 'd':
    case 'e':
        *n = m->day;
        return true;
    case 'H':
    case 'k':
        *n = m->hour;
        return true;
    case 'I':
    case 'l':
        *n = m->hour % 12 == 0 ? 12 : m->hour % 12;
        return true;
    case 'j':
        *n = m->day_of_year + 1;
        return true;
    case 'L':
        *n = m->milli;
        return true;
    case 'm':
        *n = m->month;
        return true;
    case 'M':
        *n = m->minute;
        return true;
    case 's':
        *n = floor_div(m->ms, 1000);
        return true;
    case 'S':
        *n = m->second;
        return true;
    case 'u':
        *n = m->weekday == 0 ? 7 : m->weekday;
        return true;
    case 'U':
        *n = week(m, 0);
        return true;
    case 'w':
        *n = m->weekday;
        return true;
    case 'W':
        *n = week(m, 1);
        return true;
    case 'y':
        *n = (m->year % 100 + 100) % 100;
        return true;
    case 'Y':
        *n = m->year;
        return true;
    default:
        return false;
    }
}

/* Milliseconds as the first digits of a fraction of `width` digits. */
static void put_fraction(struct buf *out, int milli, int width) {
    char digits[3] = {(char)('0' + milli / 100), (char)('0' + milli / 10 % 10),
                      (char)('0' + milli % 10)};
    int count = width > 0 ? width : 9;
    buf_put(out, str_n(digits, count < 3 ? (size_t)count : 3));
    for (int i = 3; i < count; i++)
        buf_put_char(out, '0');
}

/* The bare text of a conversion; false: there is no such conversion. */
static bool put_bare(const struct moment *m, const struct conversion *k, struct buf *out) {
    int64_t n;
    if (number_of(m, k->c, &n)) {
        buf_put_int(out, n);
        return true;
    }
    switch (k->c) {
    case 'a':
        put_name(out, day_names[m->weekday], 3);
        return true;
    case 'A':
        buf_put_c(out, day_names[m->weekday]);
        return true;
    case 'b':
    case 'h':
        put_name(out, month_names[m->month - 1], 3);
        return true;
    case 'B':
        buf_put_c(out, month_names[m->month - 1]);
        return true;
    case 'N':
        put_fraction(out, m->milli, k->width);
        return true;
    case 'p':
        buf_put_c(out, m->hour < 12 ? "AM" : "PM");
        return true;
    case 'P':
        buf_put_c(out, m->hour < 12 ? "am" : "pm");
        return true;
    case 'q':
        buf_put_c(out, ordinal(m->day));
        return true;
    case 'z':
    case 'Z':
        buf_put_c(out, k->colon ? "+00:00" : "+0000");
        return true;
    case 't':
        buf_put_char(out, '\t');
        return true;
    case 'n':
        buf_put_char(out, '\n');
        return true;
    case '%':
        buf_put_char(out, '%');
        return true;
    default:
        return false;
    }
}

static int usual_width(char c) {
    if (strchr("CdeHIklmMSUWy", c) != NULL) return 2;
    if (c == 'j' || c == 'L') return 3;
    return c == 'Y' ? 4 : 0;
}

static void change_case(char *text, size_t len, const struct conversion *k) {
    bool has_lower = false;
    for (size_t i = 0; i < len; i++)
        has_lower |= text[i] >= 'a' && text[i] <= 'z';
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if ((k->upper || has_lower) && c >= 'a' && c <= 'z') text[i] = (char)(c - 32);
        if (!k->upper && !has_lower && c >= 'A' && c <= 'Z') text[i] = (char)(c + 32);
    }
}

static bool put_conversion(const struct moment *m, const struct conversion *k, struct buf *out) {
    char mem[WIDTH_MAX];
    struct buf bare;
    buf_init_fixed(&bare, mem, sizeof mem);
    if (!put_bare(m, k, &bare)) return false;
    if (k->upper || k->swap) change_case(mem, bare.len, k);
    char pad = strchr("aAbBceklpP", k->c) != NULL ? ' ' : '0';
    if (k->zero) pad = '0';
    if (k->underscore) pad = ' ';
    int width = k->width > 0 ? k->width : usual_width(k->c);
    if (k->minus) width = 0;
    str text = buf_str(&bare);
    if (pad == '0' && text.len > 0 && text.ptr[0] == '-') {
        buf_put_char(out, '-');
        text = str_from(text, 1);
        width--;
    }
    for (int i = (int)text.len; i < width; i++)
        buf_put_char(out, pad);
    buf_put(out, text);
    return true;
}

/* %[flags][width][E or O]c; its length with the %, or 0 if it is none. */
static size_t read_conversion(str s, struct conversion *k) {
    size_t i = 1;
    *k = (struct conversion){.c = '\0'};
    for (; i < s.len && s.ptr[i] != '\0' && strchr("-_0^#:", s.ptr[i]) != NULL; i++) {
        k->minus |= s.ptr[i] == '-';
        k->underscore |= s.ptr[i] == '_';
        k->zero |= s.ptr[i] == '0';
        k->upper |= s.ptr[i] == '^';
        k->swap |= s.ptr[i] == '#';
        k->colon |= s.ptr[i] == ':';
    }
    for (; i < s.len && s.ptr[i] >= '0' && s.ptr[i] <= '9'; i++) {
        if (k->width <= WIDTH_MAX) k->width = k->width * 10 + (s.ptr[i] - '0');
    }
    if (i < s.len && (s.ptr[i] == 'E' || s.ptr[i] == 'O')) i++;
    if (i >= s.len) return 0;
    k->c = s.ptr[i];
    return k->c == '\0' || k->c == '\n' ? 0 : i + 1;
}

struct lv lq_date(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    struct moment m;
    str format = STR("%A, %B %-e, %Y at %-l:%M %P %z");
    if (v.kind == LV_STRING && (str_eq(v.text, STR("now")) || str_eq(v.text, STR("today")))) {
        lq_refuse(q, REASON_LIQUID_VALUE, "date: there is no clock here, so no \"%.*s\"",
                  STR_ARG(v.text));
        return LV_NOTHING;
    }
    if (!parse_moment(v, &m)) return v;
    if (count > 0 && !lv_is_nil(args[0])) format = lv_to_text(q, args[0]);
    buf_clear(&q->scratch);
    if (!lq_work(q, format.len)) return LV_NOTHING;
    for (size_t i = 0; i < format.len && !q->scratch.full;) {
        struct conversion k;
        size_t n = format.ptr[i] == '%' ? read_conversion(str_from(format, i), &k) : 0;
        if (n > 0 && k.width > WIDTH_MAX) {
            lq_refuse(q, REASON_LIQUID_LIMIT, "date: a width is more than %d", WIDTH_MAX);
            return LV_NOTHING;
        }
        if (n > 0 && put_conversion(&m, &k, &q->scratch)) {
            i += n;
        } else { /* no conversion: it stays as it is */
            buf_put(&q->scratch, str_n(format.ptr + i, n > 0 ? n : 1));
            i += n > 0 ? n : 1;
        }
    }
    return lq_take_scratch(q);
}
