/* core/liquid_number.c: numbers as JavaScript reads and prints them, in any locale: yyjson finds
 * the shortest digits and the nearest double, here they get their shape. */
#include <math.h>

#include "core/liquid_impl.h"

enum {
    NUMBER_INPUT_MAX = 1100, /* bytes of a number that is looked at; more is no number */
    DIGITS_MAX = 20,         /* of a double, at its shortest; 17 are enough */
    PLAIN_DIGITS_MAX = 21,   /* JavaScript goes over to an exponent behind these */
    PLAIN_ZEROS_MAX = 6,
};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool lq_is_integer_text(str text) {
    str digits = text.len > 0 && text.ptr[0] == '-' ? str_from(text, 1) : text;
    if (digits.len == 0) return false;
    for (size_t i = 0; i < digits.len; i++) {
        if (!is_digit(digits.ptr[i])) return false;
    }
    return digits.ptr[0] != '0' || text.len == 1;
}

/* ---- reading ---- */

/* Copies digits; the number of them. */
static size_t copy_digits(str *rest, struct buf *out) {
    size_t n = 0;
    while (n < rest->len && is_digit(rest->ptr[n]))
        n++;
    buf_put(out, str_n(rest->ptr, n));
    *rest = str_from(*rest, n);
    return n;
}

static bool take_char(str *rest, char a, char b) {
    if (rest->len == 0 || (rest->ptr[0] != a && rest->ptr[0] != b)) return false;
    *rest = str_from(*rest, 1);
    return true;
}

/* "+1.", ".5" and "007" as JSON writes them. */
static bool to_json_number(str text, struct buf *out) {
    str rest = text;
    if (take_char(&rest, '-', '-')) {
        buf_put_char(out, '-');
    } else {
        (void)take_char(&rest, '+', '+');
    }
    bool zeros = rest.len > 0 && rest.ptr[0] == '0';
    while (rest.len > 1 && rest.ptr[0] == '0' && is_digit(rest.ptr[1]))
        rest = str_from(rest, 1);
    size_t whole = copy_digits(&rest, out);
    if (whole == 0) buf_put_char(out, '0');
    size_t fraction = 0;
    if (take_char(&rest, '.', '.')) {
        buf_put_char(out, '.');
        fraction = copy_digits(&rest, out);
        if (fraction == 0) buf_put_char(out, '0');
    }
    if (whole + fraction == 0 && !zeros) return false;
    if (take_char(&rest, 'e', 'E')) {
        buf_put_char(out, 'e');
        if (take_char(&rest, '-', '-')) {
            buf_put_char(out, '-');
        } else {
            (void)take_char(&rest, '+', '+');
        }
        if (copy_digits(&rest, out) == 0) return false;
    }
    return rest.len == 0 && !out->full;
}

bool lq_number_parse(str text, double *out) {
    char mem[NUMBER_INPUT_MAX + 8];
    struct buf json;
    if (text.len > NUMBER_INPUT_MAX) return false;
    buf_init_fixed(&json, mem, sizeof mem - 1);
    if (!to_json_number(text, &json)) return false;
    mem[json.len] = '\0';
    yyjson_val val = {0};
    yyjson_read_err bad = {0};
    if (yyjson_read_number(mem, &val, YYJSON_READ_ALLOW_INF_AND_NAN, NULL, &bad) == NULL) {
        return false;
    }
    *out = yyjson_get_num(&val);
    if (*out == 0 && mem[0] == '-') *out = -0.0; /* yyjson has no -0 among its integers */
    return true;
}

/* ---- printing ---- */

struct decimal { /* 0.digits * 10^point */
    char digits[DIGITS_MAX];
    int count, point;
};

static void split_decimal(str text, struct decimal *d) {
    int64_t exponent = 0;
    str mantissa = text;
    str tail;
    if (str_split(text, 'e', &mantissa, &tail)) {
        if (tail.len > 0 && tail.ptr[0] == '+') tail = str_from(tail, 1);
        (void)str_to_int(tail, &exponent);
    }
    bool behind = false;
    for (size_t i = 0; i < mantissa.len; i++) {
        char c = mantissa.ptr[i];
        if (c == '.') behind = true;
        if (!is_digit(c)) continue;
        bool leading = d->count == 0 && c == '0';
        if (!leading && d->count < DIGITS_MAX) d->digits[d->count++] = c;
        if (!behind && !leading) d->point++;
        if (behind && leading) d->point--;
    }
    while (d->count > 0 && d->digits[d->count - 1] == '0')
        d->count--;
    d->point += (int)exponent;
}

static void put_zeros(struct buf *out, int n) {
    for (int i = 0; i < n; i++)
        buf_put_char(out, '0');
}

static void put_decimal(struct buf *out, const struct decimal *d) {
    str digits = str_n(d->digits, (size_t)d->count);
    if (d->count <= d->point && d->point <= PLAIN_DIGITS_MAX) {
        buf_put(out, digits);
        put_zeros(out, d->point - d->count);
    } else if (d->point > 0 && d->point <= PLAIN_DIGITS_MAX) {
        buf_put(out, str_n(digits.ptr, (size_t)d->point));
        buf_put_char(out, '.');
        buf_put(out, str_from(digits, (size_t)d->point));
    } else if (d->point > -PLAIN_ZEROS_MAX && d->point <= 0) {
        buf_put_c(out, "0.");
        put_zeros(out, -d->point);
        buf_put(out, digits);
    } else {
        buf_put_char(out, digits.ptr[0]);
        if (d->count > 1) buf_put_char(out, '.');
        buf_put(out, str_from(digits, 1));
        buf_put_c(out, d->point > 0 ? "e+" : "e-");
        buf_put_int(out, d->point > 0 ? d->point - 1 : 1 - d->point);
    }
}

size_t lq_number_print(double n, char mem[LQ_NUMBER_TEXT_MAX]) {
    struct buf out;
    buf_init_fixed(&out, mem, LQ_NUMBER_TEXT_MAX);
    if (isnan(n)) buf_put_c(&out, "NaN");
    if (n == 0) buf_put_char(&out, '0'); /* -0 as well */
    if (n < 0) buf_put_char(&out, '-');
    if (isinf(n)) buf_put_c(&out, "Infinity");
    if (isnan(n) || n == 0 || isinf(n)) return out.len;

    char pool[1024];
    yyjson_alc alc;
    yyjson_val val = {0};
    size_t len = 0;
    bool ok = yyjson_alc_pool_init(&alc, pool, sizeof pool) && yyjson_set_real(&val, fabs(n));
    ASSERT(ok);
    char *text = yyjson_val_write_opts(&val, YYJSON_WRITE_NOFLAG, &alc, &len, NULL);
    ASSERT(text != NULL);
    struct decimal d = {.count = 0};
    split_decimal(str_n(text, len), &d);
    put_decimal(&out, &d);
    ASSERT(!out.full);
    return out.len;
}

/* ---- rounding ---- */

/* n * 10^exponent, through its decimal digits: 1.005 becomes 100.5 and nothing else. */
static double shift_decimal(double n, double exponent) {
    char text[LQ_NUMBER_TEXT_MAX + 32];
    size_t len = lq_number_print(n, text);
    str mantissa;
    str power;
    int64_t p = 0;
    if (str_split(str_n(text, len), 'e', &mantissa, &power)) {
        if (power.ptr[0] == '+') power = str_from(power, 1);
        (void)str_to_int(power, &p);
    }
    char shifted[2 * LQ_NUMBER_TEXT_MAX];
    int made = snprintf(shifted, sizeof shifted, "%.*se%lld", STR_ARG(mantissa),
                        (long long)p + (long long)exponent);
    double result = NAN;
    (void)lq_number_parse(str_n(shifted, (size_t)made), &result);
    return result;
}

double lq_round(double n, double digits) {
    static const double safe_max = 9007199254740991.0;
    static const double digits_max = 400; /* beyond all exponents of a double */
    if (isinf(n) || isnan(n)) return n;
    if (!(fabs(digits) <= digits_max)) return digits > 0 ? n : 0;
    double shift = trunc(digits);
    double scaled = shift_decimal(fabs(n), shift);
    if (!(scaled <= safe_max)) return n;
    double down = floor(scaled);
    double rounded = shift_decimal(scaled - down >= 0.5 ? down + 1 : down, -shift);
    return n < 0 ? -rounded : rounded;
}
