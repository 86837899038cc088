/* base/metrics.c: the registry is a list in output order: metrics of one name stand together, names
 * in the order of their first registration. `mutex` guards the list; a metric's numbers are atomics
 * and need no lock. Metrics are never removed, so a pointer to one stays good until
 * metrics_close().
 *
 * A histogram's sum is kept in whole nanoseconds, because adding to an integer is one atomic
 * instruction. */
#include "base/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };
enum { BOUNDS_MAX = 24 };
#define OBSERVE_S_MAX 1e9 /* some 30 years: keeps one wild observation from overflowing the sum */

struct metric {
    struct metric *next;
    enum metric_kind kind;
    str name, help, labels; /* in the memory behind this struct */
    _Atomic int64_t value;  /* of a counter or gauge */
    size_t bound_count;
    double bound[BOUNDS_MAX];
    _Atomic int64_t in_bucket[BOUNDS_MAX + 1]; /* not cumulated; the last is +Inf */
    _Atomic int64_t sum_ns;
};

struct metrics {
    pthread_mutex_t mutex;
    struct metric *first;
};

status metrics_open(struct metrics **out, struct error *err) {
    struct metrics *m = mem_alloc(sizeof *m);
    if (m == NULL || pthread_mutex_init(&m->mutex, NULL) != 0) {
        mem_free(m);
        return error_set(err, ST_RETRY, "could not make the metrics registry: out of memory");
    }
    *out = m;
    return ST_OK;
}

void metrics_close(struct metrics *m) {
    if (m == NULL) return;
    while (m->first != NULL) {
        struct metric *next = m->first->next;
        mem_free(m->first);
        m->first = next;
    }
    pthread_mutex_destroy(&m->mutex);
    mem_free(m);
}

/* ---- names ---- */

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool name_ok(str name, enum metric_kind kind) {
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        if (!is_letter(c) && c != ':' && (i == 0 || !is_digit(c))) return false;
    }
    return name.len > 0 && str_ends(name, STR("_total")) == (kind == METRIC_COUNTER);
}

/* Takes `name="value"` off the front; inside a value only \\, \" and \n are escapes. */
static bool take_label(str *rest) {
    size_t i = 0;
    while (i < rest->len && (is_letter(rest->ptr[i]) || (i > 0 && is_digit(rest->ptr[i]))))
        i++;
    if (i == 0 || str_starts(*rest, STR("__")))
        return false; /* two underscores are Prometheus' own */
    if (!str_starts(str_from(*rest, i), STR("=\""))) return false;
    for (i += 2; i < rest->len && rest->ptr[i] != '"'; i++) {
        if (rest->ptr[i] == '\n') return false;
        if (rest->ptr[i] != '\\') continue;
        i++;
        if (i == rest->len || !str_has(STR("\\\"n"), rest->ptr[i])) return false;
    }
    if (i == rest->len) return false;
    *rest = str_from(*rest, i + 1);
    return true;
}

static bool labels_ok(str labels) {
    size_t bad;
    if (labels.len == 0) return true;
    if (!str_utf8(labels, &bad)) return false;
    while (take_label(&labels)) {
        if (labels.len == 0) return true;
        if (labels.ptr[0] != ',') return false;
        labels = str_from(labels, 1);
    }
    return false;
}

static bool bounds_ok(const double *bounds, size_t n) {
    if (n > BOUNDS_MAX) return false;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(bounds[i]) || (i > 0 && bounds[i] <= bounds[i - 1])) return false;
    }
    return true;
}

/* ---- registration ---- */

static str place(char **at, str s) {
    if (s.len > 0) memcpy(*at, s.ptr, s.len);
    str placed = str_n(*at, s.len);
    *at += s.len;
    return placed;
}

static struct metric *metric_make(const struct metric *like) {
    size_t text = like->name.len + like->help.len + like->labels.len;
    struct metric *made = mem_alloc(sizeof *made + text);
    if (made == NULL) return NULL;
    char *at = (char *)(made + 1);
    made->kind = like->kind;
    made->name = place(&at, like->name);
    made->help = place(&at, like->help);
    made->labels = place(&at, like->labels);
    made->bound_count = like->bound_count;
    memcpy(made->bound, like->bound, sizeof made->bound);
    return made;
}

static bool same_bounds(const struct metric *a, const struct metric *b) {
    if (a->bound_count != b->bound_count) return false;
    for (size_t i = 0; i < a->bound_count; i++) {
        if (a->bound[i] < b->bound[i] || a->bound[i] > b->bound[i]) return false;
    }
    return true;
}

static struct metric *find_or_add(struct metrics *m, const struct metric *like) {
    struct metric **at = &m->first;
    bool same_name = false;
    for (; *at != NULL; at = &(*at)->next) {
        bool equal = str_eq((*at)->name, like->name);
        if (same_name && !equal) break; /* behind the last of its name */
        same_name = equal;
        if (!equal) continue;
        if ((*at)->kind != like->kind || !same_bounds(*at, like)) return NULL;
        if (str_eq((*at)->labels, like->labels)) return *at;
    }
    struct metric *made = metric_make(like);
    if (made == NULL) return NULL;
    made->next = *at;
    *at = made;
    return made;
}

static struct metric *metric_register(struct metrics *m, const struct metric *like) {
    if (!name_ok(like->name, like->kind) || !labels_ok(like->labels)) return NULL;
    pthread_mutex_lock(&m->mutex);
    struct metric *metric = find_or_add(m, like);
    pthread_mutex_unlock(&m->mutex);
    return metric;
}

struct metric *metrics_counter(struct metrics *m, const char *name, const char *help,
                               const char *labels) {
    struct metric like = {
        .kind = METRIC_COUNTER, .name = str_c(name), .help = str_c(help), .labels = str_c(labels)};
    return metric_register(m, &like);
}

struct metric *metrics_gauge(struct metrics *m, const char *name, const char *help,
                             const char *labels) {
    struct metric like = {
        .kind = METRIC_GAUGE, .name = str_c(name), .help = str_c(help), .labels = str_c(labels)};
    return metric_register(m, &like);
}

struct metric *metrics_histogram(struct metrics *m, const char *name, const char *help,
                                 const double *bounds, size_t n) {
    if (!bounds_ok(bounds, n)) return NULL;
    struct metric like = {.kind = METRIC_HISTOGRAM,
                          .name = str_c(name),
                          .help = str_c(help),
                          .labels = STR_NONE,
                          .bound_count = n};
    for (size_t i = 0; i < n; i++)
        like.bound[i] = bounds[i];
    return metric_register(m, &like);
}

/* ---- updates ---- */

static void add(_Atomic int64_t *to, int64_t n) {
    atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

static int64_t get(const _Atomic int64_t *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}

void metric_add(struct metric *metric, int64_t n) {
    if (metric == NULL) return;
    ASSERT(metric->kind == METRIC_GAUGE || (metric->kind == METRIC_COUNTER && n >= 0));
    add(&metric->value, n);
}

void metric_set(struct metric *metric, int64_t n) {
    if (metric == NULL) return;
    ASSERT(metric->kind == METRIC_GAUGE);
    atomic_store_explicit(&metric->value, n, memory_order_relaxed);
}

void metric_observe(struct metric *metric, double seconds) {
    if (metric == NULL || isnan(seconds)) return;
    ASSERT(metric->kind == METRIC_HISTOGRAM);
    size_t i = 0;
    while (i < metric->bound_count && seconds > metric->bound[i])
        i++;
    add(&metric->in_bucket[i], 1);
    double bounded = fmax(-OBSERVE_S_MAX, fmin(seconds, OBSERVE_S_MAX));
    add(&metric->sum_ns, llround(bounded * 1e9));
}

int64_t metric_value(const struct metric *metric) {
    if (metric == NULL) return 0;
    if (metric->kind != METRIC_HISTOGRAM) return get(&metric->value);
    int64_t count = 0;
    for (size_t i = 0; i <= metric->bound_count; i++)
        count += get(&metric->in_bucket[i]);
    return count;
}

/* ---- the text ---- */

static void write_head(const struct metric *metric, struct buf *out) {
    static const char *const type[] = {"counter", "gauge", "histogram"};
    buf_put_c(out, "# HELP ");
    buf_put(out, metric->name);
    buf_put_char(out, ' ');
    for (size_t i = 0; i < metric->help.len; i++) {
        char c = metric->help.ptr[i];
        if (c == '\\') {
            buf_put_c(out, "\\\\");
        } else if (c == '\n') {
            buf_put_c(out, "\\n");
        } else {
            buf_put_char(out, c);
        }
    }
    buf_printf(out, "\n# TYPE %.*s %s\n", STR_ARG(metric->name), type[metric->kind]);
}

/* A double with a point, whatever the locale writes between the digits. */
static void put_double(struct buf *out, double d) {
    char text[32];
    int n = snprintf(text, sizeof text, "%.15g", d);
    for (int i = 0; i < n; i++) {
        if (text[i] == ',') text[i] = '.';
    }
    buf_put(out, str_n(text, (size_t)n));
}

static void write_histogram(const struct metric *metric, struct buf *out) {
    int64_t count = 0; /* cumulated here, so that +Inf and _count agree whatever other threads do */
    for (size_t i = 0; i <= metric->bound_count; i++) {
        count += get(&metric->in_bucket[i]);
        buf_printf(out, "%.*s_bucket{le=\"", STR_ARG(metric->name));
        if (i < metric->bound_count) {
            put_double(out, metric->bound[i]);
        } else {
            buf_put_c(out, "+Inf");
        }
        buf_put_c(out, "\"} ");
        buf_put_int(out, count);
        buf_put_char(out, '\n');
    }
    int64_t sum_ns = get(&metric->sum_ns);
    uint64_t size = sum_ns < 0 ? 0 - (uint64_t)sum_ns : (uint64_t)sum_ns;
    buf_printf(out, "%.*s_sum %s%llu.%09llu\n", STR_ARG(metric->name), sum_ns < 0 ? "-" : "",
               (unsigned long long)(size / 1000000000), (unsigned long long)(size % 1000000000));
    buf_printf(out, "%.*s_count %lld\n", STR_ARG(metric->name), (long long)count);
}

static void write_value(const struct metric *metric, struct buf *out) {
    buf_put(out, metric->name);
    if (metric->labels.len > 0) {
        buf_put_char(out, '{');
        buf_put(out, metric->labels);
        buf_put_char(out, '}');
    }
    buf_put_char(out, ' ');
    buf_put_int(out, get(&metric->value));
    buf_put_char(out, '\n');
}

void metrics_write(struct metrics *m, struct buf *out) {
    str last = STR_NONE;
    pthread_mutex_lock(&m->mutex);
    for (const struct metric *metric = m->first; metric != NULL; metric = metric->next) {
        if (!str_eq(metric->name, last)) write_head(metric, out);
        last = metric->name;
        if (metric->kind == METRIC_HISTOGRAM) {
            write_histogram(metric, out);
        } else {
            write_value(metric, out);
        }
    }
    pthread_mutex_unlock(&m->mutex);
}
