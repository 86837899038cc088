/* bench/bench.h: a few canonical workloads. Each figure is one JSON line, beside the limit measured
 * in the same run:
 *     {"bench","case","value","unit","limit","ratio"}
 * These machines are shared and noisy, so value and limit are measured in alternating slices and
 * only the ratio says something. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "core/event.h"
#include "db/db.h"
#include "ledger/writer.h"

struct bench_options {
    double seconds;  /* for value and limit together, per case */
    str db;          /* a PostgreSQL address, or STR_NONE for SQLite in `dir` */
    int64_t events;  /* size of the big ledgers, in events or runs */
    const char *dir; /* a fresh folder */
};

struct bench {
    const char *name, *what;
    void (*run)(const struct bench_options *options);
};
extern const struct bench benches[];
extern const size_t bench_count;

void figure(const char *bench, const char *name, double value, const char *unit, double limit,
            double ratio);
void note(const char *bench, const char *name, double value, const char *unit); /* no limit: null */
/* (cppcheck understands the attribute, not _Noreturn.) */
__attribute__((noreturn)) void die(const char *what, const struct error *err);
void check(status st, const char *what, const struct error *err);
double now_seconds(void);

/* ---- the workload: ten-event runs, 1,000 active at a time, about 600 bytes of JSON an event ----
 */

enum { ACTIVE_RUNS = 1000, RUN_EVENTS = 10 };
struct workload {
    char (*ids)[UUID_TEXT_LEN];
    int *at;
    size_t runs;
    uint64_t seed;
};
/* Events of `runs` runs at a time; ACTIVE_RUNS, or a producer's share of them. */
void workload_open(struct workload *w, size_t runs, uint64_t seed);
void workload_close(struct workload *w);
/* The next event; its run id is copied into `run_id`, which must live as long as the event. */
void workload_next(struct workload *w, struct event *out, char run_id[UUID_TEXT_LEN]);
uint64_t random_next(uint64_t *seed);

/* A ledger on the options' database, emptied first; NULL writer is never returned. */
str bench_url(const struct bench_options *options, const char *name);
struct writer *bench_writer(str url);

/* ---- raw ceilings ---- */

/* Rows/s into a bare table, one transaction for each group: inserts on SQLite, COPY on PostgreSQL.
 */
double raw_group(const struct bench_options *o, double seconds, size_t group);
double raw_single(const struct bench_options *o, double seconds); /* one-row commits/s */
double raw_fdatasync(const struct bench_options *o,
                     double seconds); /* 4 KiB append + fdatasync, per second */

void bench_append_group(const struct bench_options *o);
void bench_append_concurrent(const struct bench_options *o);
void bench_append_single(const struct bench_options *o);
void bench_import(const struct bench_options *o);
void bench_read_run(const struct bench_options *o);
void bench_start(const struct bench_options *o);
void bench_run_noop(const struct bench_options *o);
void bench_run_latency(const struct bench_options *o);
void bench_run_exec(const struct bench_options *o);
void bench_run_wide(const struct bench_options *o);
void bench_run_waiting(const struct bench_options *o);
void bench_recover(const struct bench_options *o);
void bench_idle(const struct bench_options *o);
void bench_http_echo(const struct bench_options *o);
void bench_http_append(const struct bench_options *o);
void bench_http_append_batch(const struct bench_options *o);
void bench_http_run(const struct bench_options *o);
void bench_http_task(const struct bench_options *o);
void bench_http_task_one(const struct bench_options *o);
void bench_outbox_e2e(const struct bench_options *o);
void bench_http_get_run(const struct bench_options *o);
void bench_http_list(const struct bench_options *o);
void bench_sse(const struct bench_options *o);
void bench_http_idle(const struct bench_options *o);
const char *cairn_path(void); /* the program beside this one */
