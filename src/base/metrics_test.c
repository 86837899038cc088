#include "base/metrics.h"

#include <math.h>
#include <pthread.h>

#include "base/arena.h"
#include "test.h"

static struct metrics *open_metrics(void) {
    struct metrics *m = NULL;
    struct error err;
    CHECK(metrics_open(&m, &err) == ST_OK);
    return m;
}

TEST(metrics_text_exposition) {
    struct metrics *m = open_metrics();
    static const double bounds[] = {0.005, 0.1, 1, 2.5};
    struct metric *ok =
        metrics_counter(m, "cairn_appends_total", "Appended events.", "code=\"ok\"");
    struct metric *depth = metrics_gauge(m, "cairn_queue_depth", "A \\ and a\nnewline.", "");
    struct metric *h = metrics_histogram(m, "cairn_append_seconds", "Time to append.", bounds, 4);
    /* Registered later, printed beside the first of its name. */
    struct metric *bad =
        metrics_counter(m, "cairn_appends_total", "Other.", "code=\"a\\\"b\",x=\"\"");
    CHECK(ok != NULL && depth != NULL && h != NULL && bad != NULL && ok != bad);
    metric_add(ok, 41);
    metric_add(ok, 1);
    metric_add(bad, 0);
    metric_set(depth, 7);
    metric_add(depth, -10);
    metric_observe(h, 0.005); /* a bound belongs to its bucket */
    metric_observe(h, 0.0051);
    metric_observe(h, 2);
    metric_observe(h, 100);
    metric_observe(h, NAN); /* is no observation */
    struct buf out;
    buf_init(&out, 10000);
    metrics_write(m, &out);
    static const char want[] = "# HELP cairn_appends_total Appended events.\n"
                               "# TYPE cairn_appends_total counter\n"
                               "cairn_appends_total{code=\"ok\"} 42\n"
                               "cairn_appends_total{code=\"a\\\"b\",x=\"\"} 0\n"
                               "# HELP cairn_queue_depth A \\\\ and a\\nnewline.\n"
                               "# TYPE cairn_queue_depth gauge\n"
                               "cairn_queue_depth -3\n"
                               "# HELP cairn_append_seconds Time to append.\n"
                               "# TYPE cairn_append_seconds histogram\n"
                               "cairn_append_seconds_bucket{le=\"0.005\"} 1\n"
                               "cairn_append_seconds_bucket{le=\"0.1\"} 2\n"
                               "cairn_append_seconds_bucket{le=\"1\"} 2\n"
                               "cairn_append_seconds_bucket{le=\"2.5\"} 3\n"
                               "cairn_append_seconds_bucket{le=\"+Inf\"} 4\n"
                               "cairn_append_seconds_sum 102.010100000\n"
                               "cairn_append_seconds_count 4\n";
    CHECK(str_eq(buf_str(&out), STR(want)), "%.*s", STR_ARG(buf_str(&out)));
    CHECK(metric_value(ok) == 42 && metric_value(depth) == -3 && metric_value(h) == 4);
    buf_release(&out);
    metrics_close(m);
    metrics_close(NULL);
}

TEST(metrics_names_are_checked) {
    static const struct {
        const char *name, *labels;
        bool counter, gauge;
    } cases[] = {
        {"a_total", "", true, false}, /* only counters end so */
        {"a", "", false, true},
        {"A:b_9", "", false, true},
        {"_a", "", false, true},
        {"9a", "", false, false},
        {"", "", false, false},
        {"a-b", "", false, false},
        {"a b", "", false, false},
        {"caf\xC3\xA9", "", false, false},
        {"a\nb 1", "", false, false},
        {"b", "code=\"x\"", false, true},
        {"c", "code=\"x\",kind=\"y z\"", false, true},
        {"d", "code=\"\\\\ \\\" \\n \xC3\xA9\"", false, true},
        {"e", "code=\"\\t\"", false, false},
        {"e", "code=\"a\nb\"", false, false},
        {"e", "code=\"x", false, false},
        {"e", "code=\"x\\\"", false, false},
        {"e", "code=\"x\\", false, false},
        {"e", "code=x", false, false},
        {"e", "code", false, false},
        {"e", "=\"x\"", false, false},
        {"e", "9=\"x\"", false, false},
        {"e", "a:b=\"x\"", false, false},
        {"e", "__name__=\"x\"", false, false},
        {"e", "a=\"x\",", false, false},
        {"e", ",a=\"x\"", false, false},
        {"e", "a=\"x\" b=\"y\"", false, false},
        {"e", "a=\"\xFF\"", false, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct metrics *m = open_metrics();
        bool counter = metrics_counter(m, cases[i].name, "h", cases[i].labels) != NULL;
        bool gauge = metrics_gauge(m, cases[i].name, "h", cases[i].labels) != NULL;
        CHECK(counter == cases[i].counter && gauge == cases[i].gauge, "case %zu", i);
        metrics_close(m);
    }
}

TEST(metrics_registering_again_gives_the_same) {
    struct metrics *m = open_metrics();
    static const double bounds[25] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13,
                                      14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25};
    struct metric *c = metrics_counter(m, "x_total", "h", "a=\"1\"");
    CHECK(c != NULL && metrics_counter(m, "x_total", "h", "a=\"1\"") == c);
    struct metric *other = metrics_counter(m, "x_total", "h", "a=\"2\"");
    CHECK(other != NULL && other != c && metrics_counter(m, "x_total", "h", "a=\"2\"") == other);
    struct metric *h = metrics_histogram(m, "h_seconds", "h", bounds, 24); /* the most bounds, */
    CHECK(h != NULL && metrics_histogram(m, "h_seconds", "h", bounds, 24) == h);
    CHECK(metrics_histogram(m, "i_seconds", "h", bounds, 25) == NULL); /* and one more */
    CHECK(metrics_histogram(m, "h_seconds", "h", bounds, 23) == NULL); /* other bounds */
    CHECK(metrics_histogram(m, "h_seconds", "h", bounds + 1, 24) == NULL);
    CHECK(metrics_gauge(m, "h_seconds", "h", "") == NULL); /* another kind */
    static const double unsorted[] = {1, 1};
    static const double infinite[] = {1, HUGE_VAL};
    CHECK(metrics_histogram(m, "j", "h", unsorted, 2) == NULL);
    CHECK(metrics_histogram(m, "j", "h", infinite, 2) == NULL);
    struct metric *bare = metrics_histogram(m, "k_seconds", "h", NULL, 0);
    metric_observe(bare, -HUGE_VAL);
    metric_observe(bare, HUGE_VAL);
    metric_observe(bare, -1.5);
    CHECK(metric_value(bare) == 3);
    struct buf out;
    buf_init(&out, 10000);
    metrics_write(m, &out);
    static const char tail[] =
        "k_seconds_bucket{le=\"+Inf\"} 3\nk_seconds_sum -1.500000000\nk_seconds_count 3\n";
    CHECK(str_ends(buf_str(&out), STR(tail)), "%.*s", STR_ARG(buf_str(&out)));
    buf_release(&out);
    metrics_close(m);
}

TEST(metrics_null_is_fine) {
    metric_add(NULL, 1);
    metric_set(NULL, 1);
    metric_observe(NULL, 1);
    CHECK(metric_value(NULL) == 0);
}

TEST(metrics_without_memory) {
    struct metrics *m = NULL;
    struct error err;
    mem_fail_at(0);
    CHECK(metrics_open(&m, &err) == ST_RETRY && m == NULL);
    CHECK(metrics_open(&m, &err) == ST_OK);
    mem_fail_at(0);
    CHECK(metrics_gauge(m, "a", "h", "") == NULL);
    CHECK(metrics_gauge(m, "a", "h", "") != NULL);
    mem_fail_at(-1);
    metrics_close(m);
}

static void *count_up(void *metric) {
    for (int i = 0; i < 10000; i++)
        metric_add(metric, 1);
    return NULL;
}

TEST(metrics_no_update_is_lost) {
    struct metrics *m = open_metrics();
    struct metric *c = metrics_counter(m, "c_total", "h", "");
    pthread_t thread[4];
    for (size_t i = 0; i < COUNT_OF(thread); i++)
        CHECK(pthread_create(&thread[i], NULL, count_up, c) == 0);
    for (size_t i = 0; i < COUNT_OF(thread); i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(metric_value(c) == 40000);
    metrics_close(m);
}
