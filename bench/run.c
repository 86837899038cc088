/* Runs: the whole engine over a real ledger, everything durable. */
#include "bench.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "base/os.h"
#include "base/time.h"
#include "host/host.h"

enum { IN_FLIGHT = 64, STEPS = 10, LATENCIES_MAX = 100000 };

struct rig {
    uv_loop_t loop;
    struct host *host;
    struct arena arena;
    str url, data;
    struct plan_ref ref;
    int64_t steps, runs, recovered; /* StepCompleted, final runs, RunRecovered seen */
    int64_t started;                /* runs asked for */
    int64_t goal;                   /* how many to start in all; -1: as long as time allows */
    double stop_at;
    bool keep_going;
    double *latency, run_began;
    size_t latency_count;
};

static struct start_request rig_request(const struct rig *r) {
    return (struct start_request){.ref = r->ref,
                                  .tenant_id = STR("bench"),
                                  .project_id = STR("p"),
                                  .environment_id = STR("e"),
                                  .adapter = STR("local")};
}

static void started(void *context, status code, const struct error *err) {
    (void)context;
    check(code, "start", err);
}

static void start_one(struct rig *r) {
    static char run_id[256];
    struct start_request request = rig_request(r);
    r->started++;
    r->run_began = now_seconds();
    host_start(r->host, &request, run_id, started, NULL);
}

static void on_start(uv_async_t *a) { /* not from inside the observer: the engine is busy there */
    struct rig *r = a->data;
    while (r->started < r->runs + IN_FLIGHT && r->keep_going && r->started < r->goal)
        start_one(r);
}

static uv_async_t again;

static void observe(void *context, const struct engine_note *note) {
    struct rig *r = context;
    for (size_t i = 0; i < note->count; i++) {
        enum event_type type = note->events[i].type;
        if (type == EVENT_STEP_COMPLETED) r->steps++;
        if (type == EVENT_RUN_RECOVERED) r->recovered++;
        if (type == EVENT_RUN_FAILED) die("a run failed", NULL);
        if (type != EVENT_RUN_COMPLETED) continue;
        r->runs++;
        if (r->latency && r->latency_count < LATENCIES_MAX)
            r->latency[r->latency_count++] = now_seconds() - r->run_began;
        uv_async_send(&again);
    }
}

static void rig_open(struct rig *r, const struct bench_options *o, const char *name,
                     uint32_t settle_max) {
    struct error err = {0};
    struct buf path;
    *r = (struct rig){.goal = INT64_MAX, .keep_going = true};
    arena_init(&r->arena, 4096, (size_t)512 * 1024 * 1024);
    r->url = bench_url(o, name);
    buf_init(&path, 4096);
    buf_printf(&path, "%s/%s-data", o->dir, name);
    r->data = arena_str(&r->arena, buf_str(&path));
    buf_release(&path);
    check(dir_make(r->data, &err), "folder", &err);
    uv_loop_init(&r->loop);
    uv_async_init(&r->loop, &again, on_start);
    again.data = r;
    struct host_options options = {.url = r->url,
                                   .data_dir = r->data,
                                   .settle_max = settle_max,
                                   .lock_wait_ms = 5000,
                                   .observe = observe,
                                   .context = r};
    check(host_open(&r->loop, &options, &r->host, &err), "host", &err);
}

static void rig_close(struct rig *r) {
    host_close(r->host);
    uv_close((uv_handle_t *)&again, NULL);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    uv_loop_close(&r->loop);
    arena_release(&r->arena);
}

static void rig_plan(struct rig *r, str text) {
    struct error err = {0};
    struct buf b;
    buf_init(&b, 4096);
    buf_printf(&b, "%.*s/plans", STR_ARG(r->data));
    check(plan_store_put(buf_str(&b), text, r->ref.sha256, &err), "plan", &err);
    buf_clear(&b);
    buf_put_c(&b, "plan:sha256:");
    buf_put_hex(&b, r->ref.sha256, sizeof(r->ref.sha256));
    r->ref.uri = arena_str(&r->arena, buf_str(&b));
    buf_release(&b);
    r->ref.schema_version = STR("v1.3");
    r->ref.plan_id = STR("bench");
    r->ref.plan_version = STR("1");
    r->ref.size_bytes = -1;
}

/* `first`, then `count` steps like `step`; chained one after the other, or all after the first. */
static str make_plan(struct arena *arena, const char *step, int64_t count, bool chained,
                     int concurrency) {
    struct buf b;
    buf_init(&b, (size_t)64 * 1024 * 1024);
    buf_printf(&b,
               "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"bench\",\"planVersion\":"
               "\"1\"},\"concurrency\":%d,\"steps\":[",
               concurrency);
    for (int64_t i = 0; i < count; i++) {
        buf_printf(&b, "%s{\"stepId\":\"s%lld\",%s", i == 0 ? "" : ",", (long long)i, step);
        if (i > 0) buf_printf(&b, ",\"dependsOn\":[\"s%lld\"]", chained ? (long long)i - 1 : 0LL);
        buf_put_char(&b, '}');
    }
    buf_put_c(&b, "]}");
    str text = arena_str(arena, buf_str(&b));
    buf_release(&b);
    return text;
}

/* Turns the loop until so many runs have finished, or the time is over and those begun are done. */
static void rig_turn(struct rig *r, double seconds, int64_t runs) {
    double end = now_seconds() + seconds;
    while (r->runs < runs) {
        uv_run(&r->loop, UV_RUN_ONCE);
        if (now_seconds() > end) {
            r->keep_going = false;
            if (r->runs == r->started) break;
        }
    }
}

/* ---- run-noop ---- */

static double noop_rate(struct rig *r, double seconds) {
    int64_t before = r->steps;
    double start = now_seconds();
    r->keep_going = true;
    on_start(&again);
    rig_turn(r, seconds, INT64_MAX);
    return (double)(r->steps - before) / (now_seconds() - start);
}

static void noop_case(const struct bench_options *o, const char *name, const char *what,
                      uint32_t settle_max) {
    enum { SLICES = 4 };
    struct rig r;
    double value = 0;
    double limit = 0;
    rig_open(&r, o, name, settle_max);
    rig_plan(&r, make_plan(&r.arena, "\"type\":\"noop\"", STEPS, true, 16));
    (void)noop_rate(&r, 0.5);
    for (int i = 0; i < SLICES; i++) { /* a step is two rows; 64 runs make groups of 128 */
        limit += raw_group(o, o->seconds / (2 * SLICES), 128) / 2 / SLICES;
        value += noop_rate(&r, o->seconds / (2 * SLICES)) / SLICES;
    }
    figure("run-noop", what, value, "steps/s", limit, value / limit);
    rig_close(&r);
}

void bench_run_noop(const struct bench_options *o) {
    noop_case(o, "run_noop", "one commit a step", 1);
    noop_case(o, "run_noop_all", "as many steps a commit as nothing waits for", 0);
}

/* ---- run-latency ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

void bench_run_latency(const struct bench_options *o) {
    struct rig r;
    double seconds = o->seconds / 2;
    rig_open(&r, o, "run_latency", 1);
    rig_plan(&r, make_plan(&r.arena, "\"type\":\"noop\"", STEPS, true, 16));
    r.latency = mem_alloc(LATENCIES_MAX * sizeof(*r.latency));
    double rate = raw_fdatasync(o, seconds / 2);
    double end = now_seconds() + seconds;
    while (now_seconds() < end) {
        int64_t want = r.runs + 1;
        r.goal = 0; /* one at a time: none is started by the observer */
        start_one(&r);
        while (r.runs < want)
            uv_run(&r.loop, UV_RUN_ONCE);
    }
    rate = (rate + raw_fdatasync(o, seconds / 2)) / 2;
    qsort(r.latency, r.latency_count, sizeof(*r.latency), by_value);
    double p50 = r.latency[r.latency_count / 2] * 1e3;
    double p99 = r.latency[r.latency_count * 99 / 100] * 1e3;
    double limit = 11 * 1e3 / rate;
    figure("run-latency", "ten noop steps, one run at a time, p50", p50, "ms", limit, p50 / limit);
    figure("run-latency", "p99", p99, "ms", limit, p99 / limit);
    mem_free(r.latency);
    rig_close(&r);
}

/* ---- run-exec ---- */

struct spawner {
    pthread_t thread;
    double end;
    int64_t count;
};

static void *spawn_loop(void *arg) {
    struct spawner *s = arg;
    char *argv[] = {"true", NULL};
    char *env[] = {NULL};
    while (now_seconds() < s->end) {
        pid_t pid;
        int wait = 0;
        if (posix_spawn(&pid, "/bin/true", NULL, NULL, argv, env) != 0) die("posix_spawn", NULL);
        waitpid(pid, &wait, 0);
        s->count++;
    }
    return NULL;
}

static double raw_spawn(double seconds) {
    struct spawner s[2] = {0};
    double start = now_seconds();
    for (int i = 0; i < 2; i++) {
        s[i].end = start + seconds;
        pthread_create(&s[i].thread, NULL, spawn_loop, &s[i]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(s[i].thread, NULL);
    return (double)(s[0].count + s[1].count) / (now_seconds() - start);
}

void bench_run_exec(const struct bench_options *o) {
    enum { SLICES = 4, WIDTH = 1000 };
    struct rig r;
    double value = 0;
    double limit = 0;
    rig_open(&r, o, "run_exec", 0);
    rig_plan(&r, make_plan(&r.arena, "\"type\":\"exec\",\"command\":[\"/bin/true\"],\"output\":\"none\"",
                           WIDTH, false, 32));
    for (int i = 0; i < SLICES; i++) {
        limit += raw_spawn(o->seconds / (2 * SLICES)) / SLICES;
        int64_t before = r.steps;
        double start = now_seconds();
        r.goal = 0;
        int64_t want = r.runs + 1;
        start_one(&r);
        rig_turn(&r, 600, want);
        value += (double)(r.steps - before) / (now_seconds() - start) / SLICES;
    }
    figure("run-exec", "steps of /bin/true, against posix_spawn on two threads", value, "steps/s",
           limit, value / limit);
    rig_close(&r);
}

/* ---- run-wide ---- */

static double wide_cost(const struct bench_options *o, const char *name, int64_t width, int runs) {
    struct rig r;
    double spent = 0;
    rig_open(&r, o, name, 0);
    r.goal = 0;
    for (int i = 0; i < runs; i++) { /* each has a plan of its own, which is read and parsed once */
        rig_plan(&r, make_plan(&r.arena, "\"type\":\"noop\"", width, false, 1000 - i));
        double start = now_seconds();
        start_one(&r);
        rig_turn(&r, 600, i + 1);
        spent += now_seconds() - start;
    }
    double cost = spent * 1e6 / (double)r.steps;
    rig_close(&r);
    return cost;
}

void bench_run_wide(const struct bench_options *o) {
    double small = wide_cost(o, "run_wide_small", 10000, 10);
    double large = wide_cost(o, "run_wide_large", 100000, 1);
    figure("run-wide", "a step of a fan-out of 10,000", small, "us", NAN, NAN);
    figure("run-wide", "a step of a fan-out of 100,000, against one of 10,000", large, "us", small,
           large / small);
}

/* ---- run-waiting ---- */

static double rss_mib(pid_t pid) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "r");
    long long size = 0;
    long long resident = 0;
    if (!f || fscanf(f, "%lld %lld", &size, &resident) != 2) die("statm", NULL);
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1048576;
}

static int64_t count_open(struct rig *r) {
    int64_t n = 0;
    struct error err = {0};
    check(lease_active(host_reader(r->host), STR("bench"), STR_NONE, &n, &err), "count", &err);
    return n;
}

void bench_run_waiting(const struct bench_options *o) {
    int64_t runs = o->events < 100000 ? o->events : 100000;
    struct rig r;
    rig_open(&r, o, "run_waiting", 0);
    rig_plan(&r, make_plan(&r.arena, "\"type\":\"sleep\",\"durationMs\":86400000", 1, true, 1));
    double before = rss_mib(getpid());
    double start = now_seconds();
    struct engine_stats stats = {0};
    for (int64_t i = 0; i < runs; i++) {
        start_one(&r);
        do {
            uv_run(&r.loop, UV_RUN_NOWAIT);
            engine_stats(host_engine(r.host), &stats);
        } while (stats.resident > 1000);
    }
    while (stats.resident > 0) {
        uv_run(&r.loop, UV_RUN_ONCE);
        engine_stats(host_engine(r.host), &stats);
    }
    note("run-waiting", "runs put to sleep", (double)runs / (now_seconds() - start), "runs/s");
    if (count_open(&r) != runs) die("not all runs sleep", NULL);
    double cost = rss_mib(getpid()) - before;
    figure("run-waiting", "memory of 100,000 runs asleep", cost, "MiB", 100, cost / 100);
    rig_close(&r);
}

/* ---- recover ---- */

static void leave_open_runs(const struct bench_options *o, int64_t runs) {
    struct rig r;
    rig_open(&r, o, "recover", 0);
    rig_plan(&r, make_plan(&r.arena, "\"type\":\"task\",\"queue\":\"q\"", 2, true, 1));
    struct engine_stats stats = {0};
    for (int64_t i = 0; i < runs; i++)
        start_one(&r);
    while (stats.tasks < (size_t)runs) {
        uv_run(&r.loop, UV_RUN_ONCE);
        engine_stats(host_engine(r.host), &stats);
    }
    (void)kill(getpid(), SIGKILL);
}

static void got_task(void *context, const struct task *tasks, size_t count) {
    double *when = context;
    (void)tasks;
    if (count > 0) *when = now_seconds();
}

void bench_recover(const struct bench_options *o) {
    int64_t runs = o->events < 10000 ? o->events : 10000;
    struct error err = {0};
    pid_t child = fork();
    int wait = 0;
    if (child == 0) {
        leave_open_runs(o, runs);
        _exit(1);
    }
    waitpid(child, &wait, 0);
    if (!WIFSIGNALED(wait)) die("the process that leaves open runs failed", NULL);
    struct rig r;
    double start = now_seconds();
    double first = 0;
    rig_open(&r, o, "recover", 0);
    double opened = now_seconds() - start;
    struct engine_poll *poll = NULL;
    check(engine_poll(host_engine(r.host),
                      &(struct poll_request){.tenant_id = STR("bench"),
                                             .queue = STR("q"),
                                             .worker = STR("w"),
                                             .max = 1,
                                             .lease_ms = 60000,
                                             .deadline_us = clock_wall_us() + 60000000},
                      got_task, &first, &poll, &err),
          "poll", &err);
    while (r.recovered < runs && now_seconds() - start < 300)
        uv_run(&r.loop, UV_RUN_ONCE);
    double all = now_seconds() - start;
    note("recover", "open the ledger after SIGKILL", opened * 1e3, "ms");
    figure("recover", "first step dispatched after start", first - start, "s", 1, first - start);
    figure("recover", "all of 10,000 open runs resumed", all, "s", 10, all / 10);
    rig_close(&r);
}

/* ---- idle ---- */

/* Starts `cairn serve` and reads its line that says it is ready. */
static double serve_once(const char *data, double *rss) {
    int out[2];
    pid_t pid = 0;
    char line[512];
    posix_spawn_file_actions_t actions;
    char verb[] = "serve";
    char option[] = "--data";
    char *const argv[] = {(char *)cairn_path(), verb, option, (char *)data, NULL};
    if (pipe(out) != 0) die("pipe", NULL);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 2);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    double start = now_seconds();
    if (posix_spawn(&pid, argv[0], &actions, NULL, argv, environ) != 0) die("spawn", NULL);
    close(out[1]);
    ssize_t n = read(out[0], line, sizeof(line) - 1);
    double ready = now_seconds() - start;
    if (n <= 0 || !memmem(line, (size_t)n, "ready", 5)) die("serve did not get ready", NULL);
    usleep(500000);
    *rss = rss_mib(pid);
    (void)kill(pid, SIGTERM);
    int wait = 0;
    waitpid(pid, &wait, 0);
    close(out[0]);
    posix_spawn_file_actions_destroy(&actions);
    return ready;
}

void bench_idle(const struct bench_options *o) {
    enum { STARTS = 11 };
    double times[STARTS];
    double rss = 0;
    char data[256];
    snprintf(data, sizeof(data), "%s/serve", o->dir);
    (void)serve_once(data, &rss); /* makes the ledger */
    for (int i = 0; i < STARTS; i++)
        times[i] = serve_once(data, &rss) * 1e3;
    qsort(times, STARTS, sizeof(*times), by_value);
    figure("idle", "start of cairn serve to ready, p50", times[STARTS / 2], "ms", 30,
           times[STARTS / 2] / 30);
    figure("idle", "memory of an idle cairn serve", rss, "MiB", 15, rss / 15);
}
