/* bench/http.h: what the benches that speak HTTP share: servers in processes of their own, and
 * single requests. */
#pragma once

#include "bench.h"
#include "http_load.h"

enum { HTTP_CONNECTIONS = 64 };

struct http_child {
    pid_t pid;
    int port;
    int err; /* its standard error */
};
/* net/server.h with a handler that answers a small JSON object at once. */
void echo_start(struct http_child *out);
/* `cairn serve` on a data folder, open to everybody on the loopback; waits until it is ready. */
void cairn_start(const char *data_dir, struct http_child *out);
/* The same, with a rule for --allow; or NULL. */
void cairn_start_allowing(const char *data_dir, const char *rule, struct http_child *out);
void child_stop(struct http_child *child); /* SIGTERM, then waits */
/* As many descriptors as this process and those it starts may have. */
void raise_descriptors(void);
/* The folder "<options->dir>/<name>". */
str bench_data(const struct bench_options *o, const char *name, struct buf *out);
double child_rss_mib(pid_t pid);

/* One request on a connection of its own; the whole body is put into `answer`. `headers` are whole
 * lines, or "". */
int http_once(int port, const char *method, const char *target, const char *headers, str body,
              struct buf *answer);
/* Puts a plan with POST /v1/plans; *ref is the planRef object that the answer holds. */
void http_put_plan(int port, str plan, struct buf *ref);

/* Requests/s of the echo server with 64 connections and 600-byte bodies: the limit of http-append.
 */
double echo_rate(const struct http_child *echo, double seconds, struct load_result *result);
/* The rate, and p50 and p99 as lines of their own. */
void latency_figures(const char *bench, const char *name, const struct histogram *h);
