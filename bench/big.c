/* Large ledgers: import, verify, rebuild, size, reading one run; and how fast the program starts.
 */
#include "bench.h"

#include <math.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"

/* The program beside this one. */
const char *cairn_path(void) {
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 16);
    if (n < 0) die("where am I", NULL);
    path[n] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash + 1, 8, "cairn");
    return path;
}

/* Runs a command line; gives its seconds and peak memory. */
static double run_command(char *const argv[], double *peak_bytes) {
    double start = now_seconds();
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stdout)) _exit(126);
        execv(argv[0], argv);
        _exit(127);
    }
    int code = 0;
    struct rusage ru;
    if (pid < 0 || wait4(pid, &code, 0, &ru) < 0 || code != 0)
        die(argv[2] ? argv[2] : argv[1], NULL);
    if (peak_bytes) *peak_bytes = (double)ru.ru_maxrss * 1024;
    return now_seconds() - start;
}

static void write_ndjson(const char *path, int64_t events) {
    FILE *f = fopen(path, "w");
    if (!f) die("could not write the events", NULL);
    struct workload load;
    struct buf b;
    workload_open(&load, ACTIVE_RUNS, 99);
    buf_init(&b, 4096);
    for (int64_t i = 0; i < events; i++) {
        struct event e;
        char id[UUID_TEXT_LEN];
        workload_next(&load, &e, id);
        buf_clear(&b);
        event_write_json(&e, &b);
        buf_put_char(&b, '\n');
        if (fwrite(b.ptr, 1, b.len, f) != b.len) die("could not write the events", NULL);
    }
    buf_release(&b);
    workload_close(&load);
    if (fclose(f) != 0) die("could not write the events", NULL);
}

/* A plain scan of the same rows with one SHA-256 each, through the same driver: seconds. */
static double scan_seconds(str url) {
    struct error err = {0};
    struct db *db = NULL;
    struct db_stmt *q = NULL;
    struct sha256 *sha = NULL;
    check(db_open(url, DB_READ_ONLY, &db, &err), "open", &err);
    check(sha256_open(&sha, &err), "sha256", &err);
    bool postgres = db_is_postgres(db);
    double start = now_seconds();
    check(db_prepare(db,
                     "SELECT pos, run_no, run_seq, type_no, context_no, engine_attempt,"
                     " logical_attempt, emitted_ns, emitted_digits, persisted_us, cause_seq,"
                     " event_id, key, subject, actor, payload, hash FROM ledger_event"
                     " WHERE pos > $1 ORDER BY pos LIMIT $2",
                     &q, &err),
          "prepare", &err);
    int64_t after = 0;
    int64_t rows = 1;
    int64_t page = postgres ? 8192 : INT64_MAX;
    while (rows > 0) {
        bool row = false;
        rows = 0;
        db_bind_int(q, 1, after);
        db_bind_int(q, 2, page);
        while (db_step(q, &row, &err) == ST_OK && row) {
            int64_t ints[11];
            uint8_t out[SHA256_LEN];
            for (int i = 0; i < 11; i++)
                ints[i] = db_int(q, i);
            sha256_start(sha);
            sha256_add(sha, ints, sizeof(ints));
            for (int i = 11; i < 17; i++) {
                str s = db_blob(q, i);
                if (s.len > 0) sha256_add(sha, s.ptr, s.len);
            }
            sha256_done(sha, out);
            after = ints[0];
            rows++;
        }
        db_reset(q);
        if (!postgres) break;
    }
    double seconds = now_seconds() - start;
    sha256_close(sha);
    db_close(db);
    return seconds;
}

struct store {
    char dir[512], url[1024], opt[16];
};

static void store_of(const struct bench_options *o, struct store *s) {
    snprintf(s->opt, sizeof(s->opt), "%s", o->db.ptr ? "--db" : "--data");
    snprintf(s->dir, sizeof(s->dir), "%s/data", o->dir);
    if (o->db.ptr)
        snprintf(s->url, sizeof(s->url), "%.*s", STR_ARG(bench_url(o, "")));
    else
        snprintf(s->url, sizeof(s->url), "%s/ledger.db", s->dir);
}

static void verify_and_rebuild(const struct bench_options *o, const struct store *s,
                               double events) {
    const char *db = o->db.ptr ? "postgres" : "sqlite";
    struct error err = {0};
    struct ledger *l = NULL;
    struct arena arena;
    struct verify_report report;
    struct ledger_stats stats;
    char name[64];
    arena_init(&arena, 4096, (size_t)64 * 1024 * 1024);
    scan_seconds(str_c(s->url)); /* warm */
    double scan = scan_seconds(str_c(s->url));
    struct ledger_options options = {.validation = LEDGER_REJECT};
    check(ledger_open(str_c(s->url), &options, &l, &err), "open", &err);
    double start = now_seconds();
    check(ledger_verify(l, false, NULL, NULL, &arena, &report, &err), "verify", &err);
    if (report.damaged) die("damaged", NULL);
    double verify = now_seconds() - start;
    snprintf(name, sizeof(name), "%s-verify", db);
    figure("import", name, events / verify, "events/s", events / scan, scan / verify);
    start = now_seconds();
    check(ledger_verify(l, true, NULL, NULL, &arena, &report, &err), "verify --state", &err);
    if (report.damaged) die("damaged", NULL);
    snprintf(name, sizeof(name), "%s-verify-state", db);
    figure("import", name, events / (now_seconds() - start), "events/s", events / scan,
           scan / (now_seconds() - start));
    check(ledger_stats(l, &stats, &err), "stats", &err);
    snprintf(name, sizeof(name), "%s-size", db);
    figure("import", name, (double)stats.bytes / events, "bytes/event", 450,
           (double)stats.bytes / events / 450);
    scan = scan_seconds(str_c(s->url));
    start = now_seconds();
    check(ledger_rebuild(l, NULL, NULL, NULL, &err), "rebuild", &err);
    double rebuild = now_seconds() - start;
    snprintf(name, sizeof(name), "%s-rebuild", db);
    figure("import", name, events / rebuild, "events/s", events / scan, scan / rebuild);
    ledger_close(l);
    arena_release(&arena);
}

void bench_import(const struct bench_options *o) {
    char path[512];
    struct store s = {0};
    double peak = 0;
    snprintf(path, sizeof(path), "%s/events.ndjson", o->dir);
    write_ndjson(path, o->events);
    store_of(o, &s);
    char verb[] = "ledger";
    char noun[] = "append";
    char *const argv[] = {(char *)cairn_path(),      verb, noun, s.opt,
                          o->db.ptr ? s.url : s.dir, path, NULL};
    double seconds = run_command(argv, &peak);
    double limit = raw_group(o, o->seconds / 5, 256);
    figure("import", o->db.ptr ? "postgres" : "sqlite", (double)o->events / seconds, "events/s",
           limit, (double)o->events / seconds / limit);
    figure("import", o->db.ptr ? "postgres-memory" : "sqlite-memory", peak, "bytes",
           64.0 * 1024 * 1024, peak / (64.0 * 1024 * 1024));
    verify_and_rebuild(o, &s, (double)o->events);
}

/* ---- reading one run ---- */

enum { READ_RUNS_PER_GROUP = 400, READS = 20000 };

static void fill_runs(struct ledger *l, int64_t runs, uint64_t *seeds) {
    /* Ten events a run, written run after run: the ids come back from the seed. */
    static const char *const types[RUN_EVENTS] = {
        "RunStarted",  "StepStarted",   "StepCompleted", "StepStarted",   "StepCompleted",
        "StepStarted", "StepCompleted", "StepStarted",   "StepCompleted", "RunCompleted"};
    static const char *const steps[RUN_EVENTS] = {NULL, "a", "a", "b", "b",
                                                  "c",  "c", "d", "d", NULL};
    size_t n = (size_t)READ_RUNS_PER_GROUP * RUN_EVENTS;
    struct append_item *items = mem_alloc(n * sizeof(*items));
    struct append_result *results = mem_alloc(n * sizeof(*results));
    char(*ids)[UUID_TEXT_LEN] = mem_alloc(READ_RUNS_PER_GROUP * sizeof(*ids));
    struct arena arena;
    struct error err = {0};
    arena_init(&arena, 4096, (size_t)64 * 1024 * 1024);
    for (int64_t done = 0; done < runs; done += READ_RUNS_PER_GROUP) {
        for (size_t i = 0; i < n; i++) {
            size_t run = i / RUN_EVENTS;
            size_t at = i % RUN_EVENTS;
            if (at == 0) {
                uuid_format(uuid_v4(), ids[run]);
                memcpy(&seeds[(done + (int64_t)run) * 5], ids[run], UUID_TEXT_LEN);
            }
            items[i] = (struct append_item){.event = {.type_name = str_c(types[at]),
                                                      .run_id = str_n(ids[run], UUID_TEXT_LEN),
                                                      .tenant_id = STR("acme"),
                                                      .project_id = STR("analytics"),
                                                      .environment_id = STR("prod"),
                                                      .plan_id = STR("orders"),
                                                      .plan_version = STR("7"),
                                                      .engine_attempt = 1,
                                                      .logical_attempt = 1,
                                                      .event_id = uuid_v4(),
                                                      .emitted_ns = 1771228800000000000,
                                                      .payload = STR("{\"rows\":1}")}};
            struct event *e = &items[i].event;
            if (steps[at]) e->subject = str_c(steps[at]);
            e->type = event_type_of(e->type_name);
            event_key_derive(e, e->key);
        }
        struct append_request req = {
            .items = items, .count = n, .results = results, .arena = &arena};
        struct append_request *reqs[] = {&req};
        check(ledger_append(l, reqs, 1, &err), "append", &err);
        if (results[n - 1].code != ST_OK) die("refused", results[n - 1].err);
    }
    mem_free(items);
    mem_free(results);
    mem_free(ids);
    arena_release(&arena);
}

static int by_double(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

void bench_read_run(const struct bench_options *o) {
    int64_t runs =
        (o->events + READ_RUNS_PER_GROUP - 1) / READ_RUNS_PER_GROUP * READ_RUNS_PER_GROUP;
    struct error err = {0};
    struct ledger *l = NULL;
    struct arena arena;
    uint64_t *ids = mem_alloc((size_t)runs * 5 * sizeof(*ids)); /* 40 bytes a run id */
    double *times = mem_alloc(READS * sizeof(*times));
    if (!ids || !times) die("out of memory", NULL);
    str url = bench_url(o, "read");
    struct ledger_options options = {.validation = LEDGER_REJECT};
    check(ledger_open(url, &options, &l, &err), "open", &err);
    fill_runs(l, runs, ids);
    ledger_close(l);
    check(ledger_open_reader(url, &l, &err), "open", &err);
    arena_init(&arena, 65536, (size_t)64 * 1024 * 1024);
    uint64_t seed = 5;
    for (int pass = 0; pass < 2; pass++) { /* the first one warms the caches */
        for (int i = 0; i < READS; i++) {
            struct event_page page;
            str id =
                str_n((const char *)&ids[(random_next(&seed) %
                                          (uint64_t)(runs < 20000 || pass == 0 ? runs : 20000)) *
                                         5],
                      UUID_TEXT_LEN);
            arena_reset(&arena);
            double start = now_seconds();
            check(ledger_read_run(l, id, 0, 100, &arena, &page, &err), "read", &err);
            times[i] = now_seconds() - start;
            if (page.count != RUN_EVENTS) die("a run has lost events", NULL);
        }
    }
    qsort(times, READS, sizeof(*times), by_double);
    const char *db = o->db.ptr ? "postgres" : "sqlite";
    char name[64];
    snprintf(name, sizeof(name), "%s-p50", db);
    figure("read-run", name, times[READS / 2], "seconds", 0.001, times[READS / 2] / 0.001);
    snprintf(name, sizeof(name), "%s-p99", db);
    figure("read-run", name, times[READS * 99 / 100], "seconds", 0.001,
           times[READS * 99 / 100] / 0.001);
    ledger_close(l);
}

void bench_start(const struct bench_options *o) {
    UNUSED(o);
    enum { STARTS = 50 };
    double times[STARTS];
    char verb[] = "version";
    char *const argv[] = {(char *)cairn_path(), verb, NULL};
    for (int i = 0; i < STARTS; i++)
        times[i] = run_command(argv, NULL);
    qsort(times, STARTS, sizeof(*times), by_double);
    figure("start", "version-p50", times[STARTS / 2], "seconds", 0.010, times[STARTS / 2] / 0.010);
}
