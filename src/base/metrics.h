/* base/metrics.h: counters, gauges and histograms with fixed buckets, and their Prometheus text.
 * Metrics are registered once, at start; updating one is an atomic add, from any thread. No label ever holds an id. */
#pragma once

#include "base/base.h"
#include "base/buf.h"
#include "base/error.h"

struct metrics;
struct metric; /* lives as long as the registry */
MUST_CHECK status metrics_open(struct metrics **out, struct error *err);
void metrics_close(struct metrics *m);
/* Names by Prometheus' rules: counters end in _total, units are base units. `labels` is "" or `code="x"`. Registering
 * the same name and labels again returns the same metric. NULL when memory is out or the name is malformed. */
struct metric *metrics_counter(struct metrics *m, const char *name, const char *help, const char *labels);
struct metric *metrics_gauge(struct metrics *m, const char *name, const char *help, const char *labels);
/* `bounds` are upper bounds in seconds, ascending, at most 24; +Inf is added. */
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *help,
                                 const double *bounds, size_t n);
void metric_add(struct metric *metric, int64_t n);   /* NULL is fine, as below */
void metric_set(struct metric *metric, int64_t n);
void metric_observe(struct metric *metric, double seconds);
int64_t metric_value(const struct metric *metric);
/* The text exposition format: # HELP and # TYPE once a name, samples of a name together. */
void metrics_write(struct metrics *m, struct buf *out);
