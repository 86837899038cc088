/* tests/crash/engine.c: real plans with exec, sleep, task and retrying steps, carried out by a
 * process that is killed with SIGKILL at random moments, again and again.
 *
 * Each life opens an engine over the ledger, asks for its runs (the same ids as before: no second
 * start), works on the tasks, and dies. At the end a life is let go on until every run has ended.
 * Then, from the ledger and from what the commands themselves wrote down as they ran:
 *  - every run COMPLETED; no step has two results, nor a StepCompleted without its output;
 *  - no command ran before the results it depends on were durable;
 *  - each sleep ended once, and not before its time; attempts are 1, 2 where the first fails;
 *  - every effect that was requested was delivered, at least once and at most as often as it was
 *    executed, and its row says so; and nobody was called but for an effect, always with its key;
 *  - `ledger verify --state` finds nothing wrong.
 *
 * CYCLES=n (10) gives one and a half times as many kills on SQLite, a tenth of these (4 at least)
 * on PostgreSQL, with two nodes at work at once. ENGINE_SEED=n repeats the moments, as far as a
 * machine can. */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "base/json.h"
#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "outbox/outbox.h"
#include "host/host.h"
#include "model/random.h"

enum { RUNS_PER_LIFE = 6, NODES_MAX = 2, LIFE_MS_MAX = 900, LAST_LIFE_MS = 120000 };

/* %d: the port of the receiver. */
static const char plan_form[] =
    "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"crash\",\"planVersion\":\"1\"},"
    "\"concurrency\":4,\"steps\":["
    "{\"stepId\":\"extract\",\"type\":\"exec\",\"output\":\"json\",\"command\":"
    "\"date +%%s%%6N >> extract.ran; echo '{\\\"n\\\": 7}'\"},"
    "{\"stepId\":\"nap\",\"type\":\"sleep\",\"durationMs\":120,\"dependsOn\":[\"extract\"]},"
    "{\"stepId\":\"work\",\"type\":\"task\",\"queue\":\"q\",\"input\":{\"n\":\"{{ "
    "steps.extract.output.n }}\"},\"dependsOn\":[\"extract\"]},"
    "{\"stepId\":\"flaky\",\"type\":\"exec\",\"command\":\"date +%%s%%6N >> flaky.ran; test "
    "$CAIRN_ATTEMPT -ge 2\",\"retry\":{\"maxAttempts\":3,\"initialMs\":30},\"dependsOn\":["
    "\"extract\"]},"
    "{\"stepId\":\"join\",\"type\":\"exec\",\"command\":\"date +%%s%%6N >> join.ran; echo done {{ "
    "steps.work.output.twice }}\",\"dependsOn\":[\"nap\",\"work\",\"flaky\"]},"
    "{\"stepId\":\"tell\",\"type\":\"effect\",\"effectType\":\"WEBHOOK_CALL\",\"wait\":true,"
    "\"dependsOn\":[\"extract\"],\"payload\":{\"url\":\"http://127.0.0.1:%d/\",\"body\":{}}},"
    "{\"stepId\":\"hint\",\"type\":\"effect\",\"effectType\":\"WEBHOOK_CALL\","
    "\"dependsOn\":[\"extract\"],\"payload\":{\"url\":\"http://127.0.0.1:%d/\",\"body\":{}}},"
    "{\"stepId\":\"end\",\"type\":\"noop\",\"dependsOn\":[\"join\",\"tell\",\"hint\"]}]}";

static char plan_text[sizeof(plan_form) + 32];
static int receiver_port;

static char why[512];

__attribute__((format(printf, 1, 2))) static bool bad(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof(why), fmt, args);
    va_end(args);
    return false;
}

/* ---- who is told: a process of its own, which writes down the keys as they come ---- */

static void take_call(int fd, FILE *log) {
    char text[8192] = "";
    size_t len = 0;
    ssize_t n = 0;
    while (len < sizeof(text) - 1 && (n = read(fd, text + len, sizeof(text) - 1 - len)) > 0) {
        len += (size_t)n;
        text[len] = '\0';
        if (strstr(text, "\r\n\r\n{}")) break;
    }
    const char *key = strcasestr(text, "x-idempotency-key: ");
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                 "Content-Length: 2\r\nConnection: close\r\n\r\n{}";
    if (strstr(text, "\r\n\r\n{}")) { /* not one that was killed as it spoke */
        fprintf(log, "%.*s\n", key ? (int)strcspn(key + 19, "\r\n") : 4, key ? key + 19 : "none");
        fflush(log);
        if (write(fd, answer, sizeof(answer) - 1) < 0) return; /* it was killed meanwhile */
    }
}

static pid_t receiver_open(const char *dir) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    char path[600];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    snprintf(path, sizeof(path), "%s/told", dir);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0)
        return -1;
    receiver_port = ntohs(at.sin_port);
    snprintf(plan_text, sizeof(plan_text), plan_form, receiver_port, receiver_port);
    pid_t child = fork();
    if (child != 0) {
        close(fd);
        return child;
    }
    FILE *log = fopen(path, "a");
    (void)signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int call = accept(fd, NULL, NULL);
        if (call < 0 || !log) _exit(3);
        take_call(call, log);
        close(call);
    }
}

/* How often the key came; without one, how often anybody was told anything. */
static int64_t times_told(const char *dir, str key) {
    char path[600];
    char line[512];
    int64_t n = 0;
    snprintf(path, sizeof(path), "%s/told", dir);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f))
        n += !key.ptr || str_eq(str_n(line, strcspn(line, "\n")), key);
    if (f) fclose(f);
    return n;
}

/* ---- one life ---- */

struct life {
    uv_loop_t loop;
    struct host *host;
    struct plan_ref ref;
    uint64_t rng;
    int64_t first_run, runs; /* asked for in this life */
    int64_t ended;           /* seen to end */
    bool polling;
    uv_timer_t work;
    int64_t told; /* of the starts it asked for, so many are answered */
};

static void observe(void *context, const struct engine_note *note) {
    struct life *l = context;
    for (size_t i = 0; i < note->count; i++) {
        enum event_type type = note->events[i].type;
        if (type == EVENT_RUN_COMPLETED || type == EVENT_RUN_FAILED) l->ended++;
    }
}

static void task_told(void *context, status code, const struct error *err) {
    (void)context;
    (void)code; /* a lease that ran out meanwhile is an ordinary refusal */
    (void)err;
}

/* The worker: sometimes it forgets a task, sometimes it answers twice. */
static void got_tasks(void *context, const struct task *tasks, size_t count) {
    struct life *l = context;
    l->polling = false;
    for (size_t i = 0; i < count; i++) {
        if (random_chance(&l->rng, 10)) continue;
        int times = random_chance(&l->rng, 10) ? 2 : 1;
        for (int k = 0; k < times; k++)
            engine_task_done(host_engine(l->host), &tasks[i].ref,
                             &(struct outcome){.ok = true, .output = STR("{\"twice\":14}")},
                             &(struct engine_caller){.done = task_told});
    }
}

static void poll_again(uv_timer_t *timer) {
    struct life *l = timer->data;
    struct engine_poll *poll = NULL;
    struct error err;
    if (l->polling) return;
    l->polling = engine_poll(host_engine(l->host),
                             &(struct poll_request){.tenant_id = STR("tenant"),
                                                    .queue = STR("q"),
                                                    .worker = STR("worker"),
                                                    .max = 4,
                                                    .lease_ms = 150,
                                                    .deadline_us = clock_wall_us() + 200000},
                             got_tasks, l, &poll, &err) == ST_OK;
}

static void start_told(void *context, status code, const struct error *err) {
    struct life *l = context;
    l->told++;
    if (code != ST_OK && code != ST_RETRY)
        fprintf(stderr, "engine: start refused: %s\n", err ? err->msg : "");
}

static void ask_for_runs(struct life *l) {
    for (int64_t i = 0; i < l->runs; i++) {
        char id[64];
        static char out[256];
        snprintf(id, sizeof(id), "run-%lld", (long long)l->first_run + i);
        struct start_request q = {.ref = l->ref,
                                  .tenant_id = STR("tenant"),
                                  .project_id = STR("p"),
                                  .environment_id = STR("e"),
                                  .run_id = str_c(id),
                                  .adapter = STR("local")};
        host_start(l->host, &q, out, start_told, l);
    }
}

static void make_ref(const char *dir, struct plan_ref *ref, char uri[100]) {
    struct error err = {0};
    char folder[600];
    struct buf b;
    snprintf(folder, sizeof(folder), "%s/plans", dir);
    *ref = (struct plan_ref){.schema_version = STR("v1.3"),
                             .plan_id = STR("crash"),
                             .plan_version = STR("1"),
                             .size_bytes = -1};
    if (plan_store_put(str_c(folder), str_c(plan_text), ref->sha256, &err) != ST_OK) {
        fprintf(stderr, "engine: %s\n", err.msg);
        _exit(3);
    }
    buf_init_fixed(&b, uri, 100);
    buf_put_c(&b, "plan:sha256:");
    buf_put_hex(&b, ref->sha256, sizeof(ref->sha256));
    ref->uri = buf_str(&b);
}

static int64_t count_open(struct life *l) {
    struct error err = {0};
    int64_t n = -1;
    if (lease_active(host_reader(l->host), STR("tenant"), STR_NONE, &n, &err) != ST_OK) return -1;
    return n;
}

static bool is_over(struct life *l) {
    struct outbox_stats stats;
    struct error err;
    return l->told == l->runs && count_open(l) == 0 &&
           outbox_stats(host_reader(l->host), &stats, &err) == ST_OK &&
           stats.oldest_due_us == 0;
}

/* Lives until it is killed, or (last) until no run is open and no effect waits. */
static void live(const char *url, const char *dir, const char *node, uint64_t seed,
                 int64_t first_run, int64_t runs, bool last) {
    struct life l = {.rng = seed, .first_run = first_run, .runs = runs};
    struct error err = {0};
    char uri[100];
    log_setup(2, false, LOG_ERROR);
    make_ref(dir, &l.ref, uri);
    uv_loop_init(&l.loop);
    struct guard_rule rule = {
        .scheme = STR("http"), .host = STR("127.0.0.1"), .port = receiver_port};
    struct guard guard = {.rules = &rule, .rule_count = 1, .allow_private = true};
    /* Each kill may cost an execution. */
    struct effect_retry retries[] = {{STR("WEBHOOK_CALL"), 100, 1}, {.type = STR_NONE}};
    struct host_options options = {.url = str_c(url),
                                   .guard = &guard,
                                   .effect_retries = retries,
                                   .effect_lease_ms = 2000,
                                   .data_dir = str_c(dir),
                                   .node = node ? str_c(node) : STR_NONE,
                                   .lock_wait_ms = 5000,
                                   .observe = observe,
                                   .context = &l};
    status st = ST_RETRY;
    for (int i = 0; i < 100 && st != ST_OK; i++) {
        st = host_open(&l.loop, &options, &l.host, &err);
        if (st != ST_OK) {
            uv_run(&l.loop, UV_RUN_NOWAIT);
            usleep(100000); /* on PostgreSQL the lease of the last life must run out */
        }
    }
    if (st != ST_OK) {
        fprintf(stderr, "engine: open: %s\n", err.msg);
        _exit(3);
    }
    uv_timer_init(&l.loop, &l.work);
    l.work.data = &l;
    uv_timer_start(&l.work, poll_again, 5, 10);
    ask_for_runs(&l);
    int64_t end = clock_mono_ns() + (int64_t)LAST_LIFE_MS * 1000000;
    while (clock_mono_ns() < end) {
        uv_run(&l.loop, UV_RUN_ONCE);
        if (last && is_over(&l)) break;
    }
    _exit(last && is_over(&l) ? 0 : 4);
}

/* ---- what must be true at the end ---- */

struct history { /* of one run */
    int64_t completed[9], failed[9], started[9], done_us[9], slept_us, due_us, leases, skipped;
    bool final_completed, output_missing;
};
static const char *const step_ids[] = {"extract", "nap",  "work", "flaky",
                                       "join",    "end",  "tell", "hint"};
enum { STEPS = 8, NO_STEP = STEPS };

static int step_of(str id) {
    for (int i = 0; i < STEPS; i++) {
        if (str_eq(id, str_c(step_ids[i]))) return i;
    }
    return NO_STEP;
}

static int64_t time_member(str payload, const char *name) {
    struct arena arena;
    yyjson_val *root = NULL;
    struct error err;
    str text = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    arena_init(&arena, 1024, (size_t)1024 * 1024);
    if (json_parse(payload, (struct json_limits){65536, 32}, &arena, &root, &err) == ST_OK &&
        json_str(json_member(root, name), &text))
        (void)time_parse_utc(text, &ns, &digits);
    arena_release(&arena);
    return ns / 1000;
}

static status note_event(void *context, const struct event_record *rec, bool *stop,
                         struct error *err) {
    UNUSED(stop);
    struct history *h = context;
    const struct event *e = &rec->event;
    int s = e->subject.ptr ? step_of(e->subject) : NO_STEP;
    (void)err;
    if (e->type == EVENT_STEP_STARTED) h->started[s]++;
    if (e->type == EVENT_STEP_FAILED) h->failed[s]++;
    if (e->type == EVENT_TOOL_CALLED) h->leases++;
    if (e->type == EVENT_STEP_SKIPPED) h->skipped++;
    if (e->type == EVENT_RUN_COMPLETED) h->final_completed = true;
    if (e->type == EVENT_STEP_STARTED && s == 1) h->due_us = time_member(e->payload, "dueAt");
    if (e->type != EVENT_STEP_COMPLETED) return ST_OK;
    h->completed[s]++;
    h->done_us[s] = rec->persisted_us;
    if (s == 1) h->slept_us = rec->persisted_us;
    bool wants_output = s == 0 || s == 2 || s == 4;
    struct buf needle;
    char mem[32];
    buf_init_fixed(&needle, mem, sizeof(mem));
    buf_put_c(&needle, "\"output\":");
    if (wants_output && !memmem(e->payload.ptr, e->payload.len, mem, needle.len))
        h->output_missing = true;
    return ST_OK;
}

/* The earliest time that a command of the run wrote down, in microseconds; 0: it never ran. */
static int64_t first_ran(const char *dir, const char *run_id, const char *step) {
    char path[700];
    long long us = 0;
    snprintf(path, sizeof(path), "%s/work/%s/%s.ran", dir, run_id, step);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%lld", &us) != 1) us = 0;
    fclose(f);
    return us;
}

/* Every effect that was requested was delivered: so often in all is added to *calls. */
static bool check_effects(struct ledger *l, const char *dir, const char *id, struct arena *arena,
                          int64_t *calls) {
    struct outbox_filter filter = {.run_id = str_c(id)};
    struct effect_info *items = NULL;
    struct error err = {0};
    size_t count = 0;
    int64_t next = 0;
    if (outbox_list(l, &filter, 10, arena, &items, &count, &next, &err) != ST_OK || count != 2)
        return bad("%s: %zu effects: %s", id, count, err.msg);
    for (size_t i = 0; i < count; i++) {
        int64_t told = times_told(dir, items[i].key);
        if (items[i].effect.status != OUTBOX_COMPLETED)
            return bad("%s: an effect is %s", id, outbox_status_name(items[i].effect.status));
        if (told < 1 || told > items[i].effect.executions)
            return bad("%s: %lld executions of an effect, and it came %lld times", id,
                       (long long)items[i].effect.executions, (long long)told);
        *calls += told;
    }
    return true;
}

static bool check_run(struct ledger *l, const char *dir, const char *id, struct arena *arena,
                      int64_t *calls) {
    struct run_info info;
    struct error err = {0};
    struct history h = {0};
    if (ledger_find_run(l, str_c(id), arena, &info, &err) != ST_OK)
        return bad("%s is lost: %s", id, err.msg);
    if (ledger_walk_run(l, &info, 0, note_event, &h, &err) != ST_OK)
        return bad("%s: %s", id, err.msg);
    if (!h.final_completed || h.skipped > 0) return bad("%s did not complete", id);
    for (int i = 0; i < STEPS; i++) {
        if (h.completed[i] != 1)
            return bad("%s: step %s completed %lld times", id, step_ids[i],
                       (long long)h.completed[i]);
    }
    if (h.started[3] != 2 || h.failed[3] != 1) return bad("%s: flaky was not tried twice", id);
    if (h.output_missing) return bad("%s: a StepCompleted lacks its output", id);
    if (h.leases < 1) return bad("%s: a task was done without a lease", id);
    if (h.slept_us < h.due_us || h.due_us == 0) return bad("%s: a sleep ended too early", id);
    int64_t join = first_ran(dir, id, "join");
    int64_t flaky = first_ran(dir, id, "flaky");
    for (int i = 1; i <= 3; i++) {
        if (join < h.done_us[i])
            return bad("%s: join ran at %lld, before %s was durable at %lld", id, (long long)join,
                       step_ids[i], (long long)h.done_us[i]);
    }
    if (flaky < h.done_us[0]) return bad("%s: flaky ran before extract was durable", id);
    return check_effects(l, dir, id, arena, calls);
}

static bool check_all(const char *url, const char *dir, int64_t runs) {
    struct ledger *l = NULL;
    struct error err = {0};
    struct arena arena;
    struct verify_report report = {0};
    int64_t calls = 0;
    arena_init(&arena, 65536, (size_t)256 * 1024 * 1024);
    bool ok = ledger_open_reader(str_c(url), &l, &err) == ST_OK || bad("open: %s", err.msg);
    for (int64_t i = 0; ok && i < runs; i++) {
        char id[64];
        snprintf(id, sizeof(id), "run-%lld", (long long)i);
        arena_reset(&arena);
        ok = check_run(l, dir, id, &arena, &calls);
    }
    if (ok && calls != times_told(dir, STR_NONE))
        ok = bad("%lld calls were for effects, and the receiver had %lld", (long long)calls,
                 (long long)times_told(dir, STR_NONE));
    if (ok)
        ok = ledger_verify(l, true, NULL, NULL, &arena, &report, &err) == ST_OK ||
             bad("verify: %s", err.msg);
    if (ok && report.damaged) ok = bad("verify: %s", report.what);
    ledger_close(l);
    arena_release(&arena);
    return ok;
}

/* ---- a series ---- */

static const char *const node_names[NODES_MAX] = {"north", "south"};

/* One life on each node, killed in the middle of it. */
static bool kill_lives(const char *url, const char *dir, int nodes, uint64_t *rng,
                       int64_t *next_run, int64_t *kills) {
    pid_t child[NODES_MAX] = {0};
    bool ok = true;
    for (int i = 0; i < nodes; i++) {
        uint64_t life_seed = random_next(rng);
        child[i] = fork();
        if (child[i] == 0)
            live(url, dir, nodes > 1 ? node_names[i] : NULL, life_seed, *next_run, RUNS_PER_LIFE,
                 false);
        *next_run += RUNS_PER_LIFE;
    }
    usleep(1000 * (20 + random_below(rng, LIFE_MS_MAX)));
    for (int i = 0; i < nodes; i++) {
        int wait = 0;
        if (child[i] < 0) { /* -1 would be everybody */
            ok = bad("fork: no process");
            continue;
        }
        (void)kill(child[i], SIGKILL);
        waitpid(child[i], &wait, 0);
        if (WIFSIGNALED(wait) && WTERMSIG(wait) == SIGKILL) (*kills)++;
        else ok = bad("a life ended by itself, status %#x", (unsigned)wait);
    }
    return ok;
}

static bool series(const char *name, const char *url, const char *dir, int64_t cycles, int nodes,
                   uint64_t seed) {
    int64_t start_ns = clock_mono_ns();
    int64_t kills = 0;
    int64_t next_run = 0;
    uint64_t rng = seed;
    pid_t receiver = receiver_open(dir);
    bool ok = receiver > 0 || bad("no receiver: %s", strerror(errno));
    while (ok && kills < cycles)
        ok = kill_lives(url, dir, nodes, &rng, &next_run, &kills);
    if (ok) { /* the last one: every run asked for, to its end */
        pid_t last = fork();
        int wait = 0;
        if (last == 0)
            live(url, dir, nodes > 1 ? node_names[0] : NULL, random_next(&rng), 0, next_run, true);
        if (last < 0 || waitpid(last, &wait, 0) != last || !WIFEXITED(wait) ||
            WEXITSTATUS(wait) != 0)
            ok = bad("not every run came to its end, status %#x", (unsigned)wait);
    }
    if (receiver > 0) {
        (void)kill(receiver, SIGKILL);
        (void)waitpid(receiver, NULL, 0);
    }
    ok = ok && check_all(url, dir, next_run);
    printf("engine %s: %lld kills, %lld runs, %.1f s\n", name, (long long)kills,
           (long long)next_run, (double)(clock_mono_ns() - start_ns) / 1e9);
    if (!ok) fprintf(stderr, "engine %s: seed %llu: %s (kept in %s)\n", name,
                     (unsigned long long)seed, why, dir);
    return ok;
}

static int64_t number_from(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    int64_t n = 0;
    return text && str_to_int(str_c(text), &n) && n > 0 ? n : otherwise;
}

static bool make_dir(char *dir, size_t size) {
    const char *parent = getenv("TMPDIR");
    snprintf(dir, size, "%s/cairn-engine.XXXXXX", parent && parent[0] ? parent : "/tmp");
    return mkdtemp(dir) != NULL || bad("mkdtemp: %s", strerror(errno));
}

static void remove_dir(const char *dir) {
    char command[600];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    if (system(command) != 0) fprintf(stderr, "engine: could not remove %s\n", dir);
}

static bool run_sqlite(int64_t cycles, uint64_t seed) {
    char dir[512];
    char url[600];
    if (!make_dir(dir, sizeof(dir))) return false;
    snprintf(url, sizeof(url), "sqlite:%s/ledger.db", dir);
    bool ok = series("sqlite", url, dir, cycles, 1, seed);
    if (ok) remove_dir(dir);
    return ok;
}

static bool on_server(const char *server, const char *verb, const char *database,
                      const char *more) {
    char sql[256];
    struct db *db = NULL;
    struct error err = {0};
    snprintf(sql, sizeof(sql), "%s DATABASE %s%s", verb, database, more);
    status st = db_open(str_c(server), DB_WRITE, &db, &err);
    if (st == ST_OK) st = db_exec(db, sql, &err);
    db_close(db);
    return st == ST_OK || bad("%s: %s", sql, err.msg);
}

static bool run_postgres(const char *server, int64_t cycles, uint64_t seed) {
    char dir[512];
    char name[64];
    char url[1024];
    const char *authority = strstr(server, "://");
    authority = authority ? authority + 3 : server;
    size_t head = (size_t)(authority - server) + strcspn(authority, "/?");
    const char *options = strchr(authority, '?');
    snprintf(name, sizeof(name), "cairn_engine_%d", (int)getpid());
    snprintf(url, sizeof(url), "%.*s/%s%s", (int)head, server, name, options ? options : "");
    if (!make_dir(dir, sizeof(dir)) || !on_server(server, "CREATE", name, "")) return false;
    bool ok = series("postgres", url, dir, cycles, 2, seed);
    if (ok) remove_dir(dir);
    return on_server(server, "DROP", name, " WITH (FORCE)") && ok;
}

/* CE-4.2-5: killed at 300 random moments in `make crash`, and every effect reaches its receiver.
 * CE-11-3: every call there is one of an effect. CE-11-4: with its key, so that the receiver has
 * each of them once. */
int main(void) {
    int64_t cycles = number_from("CYCLES", 10) * 3 / 2;
    uint64_t seed = (uint64_t)number_from("ENGINE_SEED", clock_wall_us());
    const char *server = getenv("CAIRN_TEST_POSTGRES");
    int failed = 0;
    int skipped = 0;
    printf("engine: seed %llu\n", (unsigned long long)seed);
    failed += !run_sqlite(cycles, seed);
    if (server && server[0])
        failed += !run_postgres(server, cycles / 10 > 4 ? cycles / 10 : 4, seed);
    else {
        printf("skip postgres: CAIRN_TEST_POSTGRES names no server\n");
        skipped++;
    }
    printf("engine: %d passed, %d failed, %d skipped\n", 2 - failed - skipped, failed, skipped);
    return failed > 0 ? 1 : 0;
}
