/* core/liquid_math.c: the filters on numbers, in doubles as in JavaScript. What is no number counts
 * as 0. */
#include <math.h>

#include "core/liquid_impl.h"

static double number(struct lv v) {
    double n = lv_to_number(v);
    return isnan(n) ? 0 : n;
}

static struct lv f_abs(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(args);
    UNUSED(count);
    return lv_number(fabs(number(v)));
}

static struct lv f_ceil(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(args);
    UNUSED(count);
    return lv_number(ceil(number(v)));
}

static struct lv f_floor(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(args);
    UNUSED(count);
    return lv_number(floor(number(v)));
}

static struct lv f_round(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    return lv_number(lq_round(number(v), count > 0 ? number(args[0]) : 0));
}

static struct lv f_at_least(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(count);
    return lv_number(fmax(number(v), number(args[0])));
}

static struct lv f_at_most(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(count);
    return lv_number(fmin(number(v), number(args[0])));
}

static struct lv f_plus(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(count);
    return lv_number(number(v) + number(args[0]));
}

static struct lv f_minus(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(count);
    return lv_number(number(v) - number(args[0]));
}

static struct lv f_times(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(count);
    return lv_number(number(v) * number(args[0]));
}

/* Division by zero is JavaScript's, too: Infinity or NaN. */
__attribute__((no_sanitize("float-divide-by-zero"))) static double divide(double a, double b) {
    return a / b;
}

static struct lv f_divided_by(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    double n = divide(number(v), number(args[0]));
    bool whole = count > 1 && number(args[1]) != 0;
    return lv_number(whole ? floor(n) : n);
}

/* The sign is that of the divisor. */
static struct lv f_modulo(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(count);
    double by = number(args[0]);
    return lv_number(fmod(fmod(number(v), by) + by, by));
}

static struct lv f_to_integer(struct lq *q, struct lv v, const struct lv *args, size_t count) {
    UNUSED(q);
    UNUSED(args);
    UNUSED(count);
    return lv_number(lv_to_number(v));
}

const struct lq_filter lq_math_filters[] = {
    {"abs", 0, 0, f_abs},     {"at_least", 1, 1, f_at_least}, {"at_most", 1, 1, f_at_most},
    {"ceil", 0, 0, f_ceil},   {"floor", 0, 0, f_floor},       {"divided_by", 1, 2, f_divided_by},
    {"minus", 1, 1, f_minus}, {"modulo", 1, 1, f_modulo},     {"plus", 1, 1, f_plus},
    {"round", 0, 1, f_round}, {"times", 1, 1, f_times},       {"to_integer", 0, 0, f_to_integer},
};
const size_t lq_math_filter_count = COUNT_OF(lq_math_filters);
