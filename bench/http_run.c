/* Runs that are started, and tasks that are done, through HTTP. */
#include "http.h"

enum { STEPS = 10, WORKER_CONNECTIONS = 2, TASKS_MAX = 100, TOKEN_MAX = 512, PAGE = 512 * 1024 };

static void put_steps(struct buf *b, const char *id, const char *step) {
    buf_clear(b);
    buf_printf(b,
               "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"%s\",\"planVersion\":\"1\"},"
               "\"steps\":[",
               id);
    for (int i = 0; i < STEPS; i++) {
        buf_printf(b, "%s{\"stepId\":\"s%d\",%s", i == 0 ? "" : ",", i, step);
        if (i > 0) buf_printf(b, ",\"dependsOn\":[\"s%d\"]", i - 1);
        buf_put_char(b, '}');
    }
    buf_put_c(b, "]}");
}

/* ---- http-run ---- */

struct starter {
    char request[4096]; /* the same every time: the server makes up the run ids */
    size_t len;
};

static void starter_open(struct starter *s, int port, const char *plan_id, const char *step) {
    struct buf plan;
    struct buf ref;
    struct buf body;
    buf_init(&plan, 65536);
    buf_init(&ref, 65536);
    buf_init(&body, 65536);
    put_steps(&plan, plan_id, step);
    http_put_plan(port, buf_str(&plan), &ref);
    buf_printf(&body, "{\"planRef\":%.*s,\"context\":{\"tenantId\":\"bench\"}}", (int)ref.len,
               ref.ptr);
    int n = snprintf(s->request, sizeof(s->request),
                     "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=30\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%.*s",
                     body.len, (int)body.len, body.ptr);
    if ((size_t)n >= sizeof(s->request)) die("the plan's reference is too long", NULL);
    s->len = (size_t)n;
    buf_release(&plan);
    buf_release(&ref);
    buf_release(&body);
}

static bool starter_make(void *context, struct load_request *r) {
    const struct starter *s = context;
    if (r->len == 0) memcpy(r->bytes, s->request, s->len);
    r->len = s->len;
    return true;
}

static bool run_ended(str body) {
    return memmem(body.ptr, body.len, "\"status\":\"COMPLETED\"", 20) != NULL;
}

static bool starter_answered(void *context, size_t connection, int code, str body,
                             struct load_result *result) {
    UNUSED(context);
    UNUSED(connection);
    UNUSED(code);
    UNUSED(result);
    return run_ended(body);
}

void bench_http_run(const struct bench_options *o) {
    struct http_child cairn;
    struct starter s = {0};
    struct load_result r;
    struct buf dir;
    buf_init(&dir, 4096);
    cairn_start(bench_data(o, "run", &dir).ptr, &cairn);
    starter_open(&s, cairn.port, "bench", "\"type\":\"noop\"");
    struct load load = {.port = cairn.port,
                        .connections = HTTP_CONNECTIONS,
                        .seconds = o->seconds / 10,
                        .request_room = sizeof(s.request),
                        .answer_room = 4096,
                        .context = &s,
                        .make = starter_make,
                        .answered = starter_answered};
    load_once(&load, "http-run", &r); /* warm */
    load.seconds = o->seconds;
    double cpu = cpu_seconds_of(cairn.pid);
    load_once(&load, "http-run", &r);
    cpu = cpu_seconds_of(cairn.pid) - cpu;
    child_stop(&cairn);
    double rate = (double)r.answers / r.seconds;
    figure("http-run", "ten noop steps, 64 runs in flight", rate, "runs/s", 2000, rate / 2000);
    note("http-run", "processor time of the server, a run", cpu * 1e6 / (double)r.answers, "us");
    latency_figures("http-run", "start to end", &r.latency);
    buf_release(&dir);
}

/* ---- http-task: the first 64 connections start runs and wait, the others are one worker ---- */

struct tasks { /* that a connection holds */
    size_t count;
    char tokens[TASKS_MAX][TOKEN_MAX];
};
struct worker {
    struct starter starter;
    const char *tenant; /* "&tenantId=bench", where the poll in a result's request wants it */
    double seconds;     /* then no run is started any more */
    double began;
    size_t open_runs;
    struct tasks tasks[WORKER_CONNECTIONS];
};

static int put_poll(struct load_request *r, size_t which) {
    char body[256];
    int n = snprintf(body, sizeof(body),
                     "{\"queue\":\"q\",\"worker\":\"w%zu\",\"max\":%d,\"waitMs\":200,"
                     "\"tenantId\":\"bench\"}",
                     which, TASKS_MAX);
    return snprintf(r->bytes, r->room,
                    "POST /v1/tasks/poll HTTP/1.1\r\nHost: localhost\r\n"
                    "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                    n, body);
}

static bool worker_make(struct worker *w, struct load_request *r, size_t which) {
    enum { HEAD_ROOM = 512 };
    struct tasks *t = &w->tasks[which];
    char *body = r->bytes + HEAD_ROOM;
    size_t len = 0;
    if (t->count == 0) {
        r->len = (size_t)put_poll(r, which);
        return true;
    }
    for (size_t i = 0; i < t->count; i++)
        len += (size_t)snprintf(body + len, r->room - HEAD_ROOM - len,
                                "{\"task\":\"%s\",\"output\":{\"rows\":12873}}\n", t->tokens[i]);
    char head[HEAD_ROOM];
    int n = snprintf(head, sizeof(head),
                     "POST /v1/tasks/results?poll=q&worker=w%zu&max=%d&leaseMs=30000%s HTTP/1.1\r\n"
                     "Host: localhost\r\nContent-Type: application/x-ndjson\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     which, TASKS_MAX, w->tenant, len);
    memmove(r->bytes + n, body, len);
    memcpy(r->bytes, head, (size_t)n);
    r->len = (size_t)n + len;
    return true;
}

/* The tokens of the "items" in an answer. */
static void take_tasks(struct tasks *t, str body) {
    static const char mark[] = "{\"task\":\"";
    t->count = 0;
    while (t->count < TASKS_MAX) {
        const char *at = memmem(body.ptr, body.len, mark, sizeof(mark) - 1);
        if (!at) return;
        body = str_from(body, (size_t)(at - body.ptr) + sizeof(mark) - 1);
        const char *end = memchr(body.ptr, '"', body.len);
        size_t len = end ? (size_t)(end - body.ptr) : TOKEN_MAX;
        if (len >= TOKEN_MAX) die("a task's token is too long", NULL);
        memcpy(t->tokens[t->count], body.ptr, len);
        t->tokens[t->count++][len] = 0;
    }
}

static void task_begin(void *context) {
    struct worker *w = context;
    w->began = now_seconds();
}

/* The starters stop when the time is over, but their runs still need the worker. */
static bool task_make(void *context, struct load_request *r) {
    struct worker *w = context;
    bool over = now_seconds() >= w->began + w->seconds;
    if (r->connection >= HTTP_CONNECTIONS)
        return (!over || w->open_runs > 0) && worker_make(w, r, r->connection - HTTP_CONNECTIONS);
    if (over) return false;
    w->open_runs++;
    return starter_make(&w->starter, r);
}

static bool task_answered(void *context, size_t connection, int code, str body,
                          struct load_result *result) {
    struct worker *w = context;
    UNUSED(code);
    if (connection >= HTTP_CONNECTIONS) {
        take_tasks(&w->tasks[connection - HTTP_CONNECTIONS], body);
        return !memmem(body.ptr, body.len, "\"error\"", 7);
    }
    w->open_runs--;
    result->counted++;
    result->last = now_seconds() - w->began;
    return run_ended(body);
}

/* A caller of all tenants may have to say whose tasks it wants. */
static const char *poll_tenant(int port) {
    struct buf answer;
    buf_init(&answer, 65536);
    int code = http_once(port, "POST", "/v1/tasks/results?poll=q&worker=w&tenantId=bench",
                         "Content-Type: application/x-ndjson\r\n", STR(""), &answer);
    buf_release(&answer);
    return code == 200 ? "&tenantId=bench" : "";
}

void bench_http_task(const struct bench_options *o) {
    struct http_child cairn;
    struct load_result r;
    struct buf dir;
    struct worker *w = mem_alloc(sizeof(*w));
    if (!w) die("out of memory", NULL);
    buf_init(&dir, 4096);
    cairn_start(bench_data(o, "task", &dir).ptr, &cairn);
    starter_open(&w->starter, cairn.port, "bench-task", "\"type\":\"task\",\"queue\":\"q\"");
    w->tenant = poll_tenant(cairn.port);
    struct load load = {.port = cairn.port,
                        .connections = HTTP_CONNECTIONS + WORKER_CONNECTIONS,
                        .seconds = o->seconds + 60, /* task_make() knows when it is over */
                        .request_room = (size_t)TASKS_MAX * (TOKEN_MAX + 64),
                        .answer_room = PAGE,
                        .context = w,
                        .begin = task_begin,
                        .make = task_make,
                        .answered = task_answered};
    w->seconds = o->seconds / 10;
    load_once(&load, "http-task", &r); /* warm */
    w->seconds = o->seconds;
    double cpu = cpu_seconds_of(cairn.pid);
    load_once(&load, "http-task", &r);
    cpu = cpu_seconds_of(cairn.pid) - cpu;
    child_stop(&cairn);
    double steps = (double)r.counted * STEPS;
    figure("http-task", "ten task steps, 64 runs in flight, one worker", steps / r.last, "steps/s",
           8000, steps / r.last / 8000);
    note("http-task", "processor time of the server, a step", cpu * 1e6 / steps, "us");
    buf_release(&dir);
    mem_free(w);
}

/* ---- http-task-one: one run at a time, whose tasks one worker does ---- */

static bool one_make(void *context, struct load_request *r) {
    struct worker *w = context;
    bool over = now_seconds() >= w->began + w->seconds;
    if (r->connection > 0) return (!over || w->open_runs > 0) && worker_make(w, r, 0);
    if (over) return false;
    w->open_runs++;
    return starter_make(&w->starter, r);
}

static bool one_answered(void *context, size_t connection, int code, str body,
                         struct load_result *result) {
    struct worker *w = context;
    UNUSED(code);
    UNUSED(result);
    if (connection > 0) {
        take_tasks(&w->tasks[0], body);
        return !memmem(body.ptr, body.len, "\"error\"", 7);
    }
    w->open_runs--;
    return run_ended(body);
}

static bool ping_make(void *context, struct load_request *r) {
    UNUSED(context);
    if (r->len == 0)
        r->len =
            (size_t)snprintf(r->bytes, r->room, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return true;
}

static bool ping_answered(void *context, size_t connection, int code, str body,
                          struct load_result *result) {
    UNUSED(context);
    UNUSED(connection);
    UNUSED(body);
    UNUSED(result);
    return code == 200;
}

/* The p50 of a request that the server answers at once, on one connection, in ms. */
static double round_trip_ms(int port, double seconds) {
    struct load_result r;
    struct load load = {.port = port,
                        .connections = 1,
                        .seconds = seconds,
                        .request_room = 256,
                        .answer_room = 4096,
                        .make = ping_make,
                        .answered = ping_answered};
    load_once(&load, "http-task-one", &r);
    return histogram_ms(&r.latency, 0.5);
}

/* The first run has its launch and first start in one commit, and each task's end is one with the
 * start and the lease of the next: 11 commits. 10 requests of the worker carry the results. */
void bench_http_task_one(const struct bench_options *o) {
    struct http_child cairn;
    struct load_result r;
    struct buf dir;
    struct worker *w = mem_alloc(sizeof(*w));
    if (!w) die("out of memory", NULL);
    buf_init(&dir, 4096);
    cairn_start(bench_data(o, "task_one", &dir).ptr, &cairn);
    starter_open(&w->starter, cairn.port, "bench-task", "\"type\":\"task\",\"queue\":\"q\"");
    w->tenant = poll_tenant(cairn.port);
    struct load load = {.port = cairn.port,
                        .connections = 2,
                        .seconds = o->seconds + 60, /* one_make() knows when it is over */
                        .request_room = (size_t)TASKS_MAX * (TOKEN_MAX + 64),
                        .answer_room = PAGE,
                        .timed = 1, /* the runs */
                        .context = w,
                        .begin = task_begin,
                        .make = one_make,
                        .answered = one_answered};
    double syncs = raw_fdatasync(o, o->seconds / 8);
    double trip_ms = round_trip_ms(cairn.port, o->seconds / 8);
    w->seconds = o->seconds / 2;
    load_once(&load, "http-task-one", &r);
    syncs = (syncs + raw_fdatasync(o, o->seconds / 8)) / 2;
    trip_ms = (trip_ms + round_trip_ms(cairn.port, o->seconds / 8)) / 2;
    child_stop(&cairn);
    double limit = 11 * 1e3 / syncs + 10 * trip_ms / 1.4; /* times 1.4, and that is the target */
    double p50 = histogram_ms(&r.latency, 0.5);
    figure("http-task-one", "ten task steps, one run at a time, p50", p50, "ms", limit,
           p50 / limit);
    note("http-task-one", "target: 1.4 x 11 fdatasyncs + 10 round trips", 1.4 * limit, "ms");
    note("http-task-one", "fdatasync", 1e3 / syncs, "ms");
    note("http-task-one", "round trip", trip_ms, "ms");
    buf_release(&dir);
    mem_free(w);
}
