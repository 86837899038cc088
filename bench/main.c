/* cairn-bench: `list`, or NAME [--seconds S] [--db URL] [--events N | --runs N]. */
#include "bench.h"

#include <math.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"

const struct bench benches[] = {
    {"append-group",
     "groups of 256 through the ledger thread, against bare inserts (SQLite) or COPY (PostgreSQL)",
     bench_append_group},
    {"append-concurrent", "64 producers, one event each, against the fdatasync rate",
     bench_append_concurrent},
    {"append-single", "one producer, one event at a time, against raw one-row commits",
     bench_append_single},
    {"import",
     "cairn ledger append of NDJSON, then verify and rebuild against a plain scan with one SHA-256 "
     "a row",
     bench_import},
    {"read-run", "a run of ten events by id", bench_read_run},
    {"start", "cairn version", bench_start},
    {"run-noop", "ten noop steps, 64 runs in flight, against bare inserts", bench_run_noop},
    {"run-latency", "one such run at a time, against 11 fdatasyncs", bench_run_latency},
    {"run-exec", "steps of /bin/true, against posix_spawn", bench_run_exec},
    {"run-wide", "fan-outs of 10,000 and 100,000 steps", bench_run_wide},
    {"run-waiting", "100,000 runs asleep", bench_run_waiting},
    {"recover", "10,000 open runs after SIGKILL", bench_recover},
    {"idle", "cairn serve with nothing to do: time to ready, memory", bench_idle},
    {"http-echo", "the HTTP server alone: 600 bytes in, 100 out, 64 connections", bench_http_echo},
    {"http-append", "64 connections, one event a request, against http-echo", bench_http_append},
    {"http-append-batch", "256 events a request, against append-group", bench_http_append_batch},
    {"http-run", "ten noop steps started with Prefer: wait, 64 at a time", bench_http_run},
    {"http-task", "ten task steps, 64 runs at a time, one worker", bench_http_task},
    {"http-task-one", "one such run at a time, against 11 fdatasyncs and 10 round trips",
     bench_http_task_one},
    {"outbox-e2e", "effects from an HTTP request to their receiver, 64 in flight",
     bench_outbox_e2e},
    {"http-get-run", "one run of many by its id", bench_http_get_run},
    {"http-list", "runs by status, plan, text and time, of 1,000,000", bench_http_list},
    {"sse", "1,000 readers of one live run", bench_sse},
    {"http-idle", "10,000 idle connections: memory", bench_http_idle},
};
const size_t bench_count = COUNT_OF(benches);

static void put_number(double v) {
    if (isnan(v))
        printf("null");
    else
        printf("%.6g", v);
}

void figure(const char *bench, const char *name, double value, const char *unit, double limit,
            double ratio) {
    printf("{\"bench\":\"%s\",\"case\":\"%s\",\"value\":", bench, name);
    put_number(value);
    printf(",\"unit\":\"%s\",\"limit\":", unit);
    put_number(limit);
    printf(",\"ratio\":");
    put_number(ratio);
    printf("}\n");
    fflush(stdout);
}

void note(const char *bench, const char *name, double value, const char *unit) {
    figure(bench, name, value, unit, NAN, NAN);
}

void die(const char *what, const struct error *err) {
    fprintf(stderr, "cairn-bench: %s: %s\n", what, err ? err->msg : "");
    exit(1);
}

void check(status st, const char *what, const struct error *err) {
    if (st != ST_OK) die(what, err);
}

double now_seconds(void) { return (double)clock_mono_ns() / 1e9; }

static int usage(void) {
    fprintf(stderr,
            "usage: cairn-bench list | NAME [--seconds S] [--db postgresql://...] [--events N | "
            "--runs N]\n");
    return 2;
}

int main(int argc, char **argv) {
    struct bench_options o = {.seconds = 10, .events = 1000000};
    if (argc < 2) return usage();
    log_setup(2, false, LOG_WARN);
    for (int i = 2; i + 1 < argc; i += 2) {
        str name = str_c(argv[i]);
        int64_t n = 0;
        if (str_eq(name, STR("--db")))
            o.db = str_c(argv[i + 1]);
        else if (str_eq(name, STR("--seconds")) && str_to_int(str_c(argv[i + 1]), &n) && n > 0)
            o.seconds = (double)n;
        else if ((str_eq(name, STR("--events")) || str_eq(name, STR("--runs"))) &&
                 str_to_int(str_c(argv[i + 1]), &n) && n > 0)
            o.events = n;
        else
            return usage();
    }
    if (argc % 2 != 0) return usage();
    char dir[] =
        "cairn-bench-XXXXXX"; /* in the current folder: the disk that is meant, not a RAM disk */
    for (size_t i = 0; i < bench_count; i++) {
        if (str_eq(str_c(argv[1]), STR("list"))) {
            printf("%-18s %s\n", benches[i].name, benches[i].what);
        } else if (str_eq(str_c(argv[1]), str_c(benches[i].name))) {
            if (!mkdtemp(dir)) die("could not make a folder here", NULL);
            o.dir = dir;
            benches[i].run(&o);
            char command[64];
            snprintf(command, sizeof(command), "rm -rf %s", dir);
            return system(command) == 0 ? 0 : 1;
        }
    }
    return str_eq(str_c(argv[1]), STR("list")) ? 0 : usage();
}
