/* One request an event, and 256 of them, against the HTTP server alone and the ledger alone. */
#include <unistd.h>

#include "base/time.h"
#include "http.h"

enum {
    ECHO_BODY = 600,
    REQUEST_ROOM = 2048,
    SLICES = 3,
};

/* ---- http-echo ---- */

static bool echo_make(void *context, struct load_request *r) {
    UNUSED(context);
    if (r->len > 0) return true; /* always the same */
    int n = snprintf(r->bytes, r->room,
                     "POST /v1/runs/7d444840-9dc0-11d1-b245-5ffdce74fad2/events HTTP/1.1\r\n"
                     "Host: 127.0.0.1:8080\r\nContent-Type: application/json\r\n"
                     "Content-Length: %d\r\n\r\n",
                     ECHO_BODY);
    memset(r->bytes + n, 'x', ECHO_BODY);
    r->len = (size_t)n + ECHO_BODY;
    return true;
}

double echo_rate(const struct http_child *echo, double seconds, struct load_result *result) {
    struct load load = {.port = echo->port,
                        .connections = HTTP_CONNECTIONS,
                        .seconds = seconds,
                        .request_room = REQUEST_ROOM,
                        .make = echo_make};
    load_once(&load, "http-echo", result);
    return (double)result->answers / result->seconds;
}

/* The wall clock is shared with others; the time on the processor is not. */
static void cost_figures(const char *bench, double server_cpu, const struct load_result *r) {
    note(bench, "processor time of the server, a request", server_cpu * 1e6 / (double)r->answers,
         "us");
    note(bench, "processor time of the client, a request",
         r->cpu_seconds * 1e6 / (double)r->answers, "us");
}

void bench_http_echo(const struct bench_options *o) {
    struct http_child echo;
    struct load_result r;
    echo_start(&echo);
    (void)echo_rate(&echo, 0.2, &r);
    double cpu = cpu_seconds_of(echo.pid);
    double rate = echo_rate(&echo, o->seconds, &r);
    cpu = cpu_seconds_of(echo.pid) - cpu;
    child_stop(&echo);
    figure("http-echo", "64 connections, 600-byte bodies", rate, "req/s", 80000, rate / 80000);
    cost_figures("http-echo", cpu, &r);
    latency_figures("http-echo", "latency", &r.latency);
}

/* ---- events as requests: prepared once, patched in place ---- */

enum { BATCH = 256, BATCH_CONNECTIONS = 4, LINE_ROOM = 1024 };

struct template { /* one of the ten events of a run */
    struct event event;
    char run_id[UUID_TEXT_LEN];
    char json[LINE_ROOM];
    size_t len, id_at, time_at, run_at, key_at;
};
struct producer_run {
    char id[UUID_TEXT_LEN];
    int at; /* how many of its events were sent */
};
/* Every connection has runs of its own, for two requests of one run could overtake each other. */
struct producer {
    struct template templates[RUN_EVENTS];
    struct producer_run *runs;
    size_t runs_each;
    uint64_t seed;
    size_t batch; /* events a request; 0: one, at the run's own address */
};

static size_t value_at(const struct template *t, const char *name) {
    const char *found = memmem(t->json, t->len, name, strlen(name));
    if (!found) die("a field is missing in the event", NULL);
    return (size_t)(found - t->json) + strlen(name);
}

static void template_make(struct template *t, const struct event *event) {
    struct buf out;
    buf_init_fixed(&out, t->json, sizeof(t->json));
    t->event = *event;
    memcpy(t->run_id, event->run_id.ptr, UUID_TEXT_LEN);
    t->event.run_id = str_n(t->run_id, UUID_TEXT_LEN);
    event_write_json(&t->event, &out);
    if (out.full) die("the event is too long", NULL);
    t->len = out.len;
    t->id_at = value_at(t, "\"eventId\":\"");
    t->time_at = value_at(t, "\"emittedAt\":\"");
    t->run_at = value_at(t, "\"runId\":\"");
    t->key_at = value_at(t, "\"idempotencyKey\":\"");
}

/* The ten events are those of bench/workload.c: one run of it, from its first event to its last. */
static void templates_make(struct producer *p) {
    struct workload w;
    size_t made = 0;
    char first[UUID_TEXT_LEN];
    workload_open(&w, ACTIVE_RUNS, 42);
    while (made < RUN_EVENTS) {
        struct event event;
        char id[UUID_TEXT_LEN];
        workload_next(&w, &event, id);
        if (made == 0) memcpy(first, id, sizeof(first));
        if (memcmp(first, id, sizeof(first)) == 0) template_make(&p->templates[made++], &event);
    }
    workload_close(&w);
}

static void producer_open(struct producer *p, size_t connections, size_t batch) {
    *p = (struct producer){.seed = 42, .batch = batch};
    p->runs_each = (ACTIVE_RUNS + connections - 1) / connections;
    p->runs = mem_alloc(connections * p->runs_each * sizeof(*p->runs));
    if (!p->runs) die("out of memory", NULL);
    templates_make(p);
}

static void producer_begin(void *context) { /* another process: other runs than the last one's */
    struct producer *p = context;
    size_t count = p->runs_each * (p->batch ? BATCH_CONNECTIONS : HTTP_CONNECTIONS);
    for (size_t i = 0; i < count; i++) {
        uuid_format(uuid_v4(), p->runs[i].id);
        p->runs[i].at = 0;
    }
}

/* Writes the next event of one of the connection's runs; returns its length. */
static size_t next_event(struct producer *p, size_t connection, char *out,
                         struct producer_run **which) {
    size_t pick = (size_t)(random_next(&p->seed) % p->runs_each);
    struct producer_run *run = &p->runs[connection * p->runs_each + pick];
    if (run->at == RUN_EVENTS) {
        uuid_format(uuid_v4(), run->id);
        run->at = 0;
    }
    struct template *t = &p->templates[run->at++];
    memcpy(t->run_id, run->id, UUID_TEXT_LEN);
    event_key_derive(&t->event, t->event.key);
    memcpy(out, t->json, t->len);
    uuid_format(uuid_v4(), out + t->id_at);
    time_format_ns(clock_wall_us() / 1000 * 1000000, 3, out + t->time_at);
    memcpy(out + t->run_at, run->id, UUID_TEXT_LEN);
    hex_encode(t->event.key, SHA256_LEN, out + t->key_at);
    *which = run;
    return t->len;
}

static bool append_make(void *context, struct load_request *r) {
    struct producer *p = context;
    struct producer_run *run;
    char json[LINE_ROOM];
    size_t len = next_event(p, r->connection, json, &run);
    int n = snprintf(r->bytes, r->room,
                     "POST /v1/runs/%.*s/events HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                     UUID_TEXT_LEN, run->id, len);
    memcpy(r->bytes + n, json, len);
    r->len = (size_t)n + len;
    return true;
}

static bool batch_make(void *context, struct load_request *r) {
    enum { HEAD_ROOM = 256 };
    struct producer *p = context;
    struct producer_run *run;
    size_t len = 0;
    char head[HEAD_ROOM];
    for (size_t i = 0; i < p->batch; i++) {
        len += next_event(p, r->connection, r->bytes + HEAD_ROOM + len, &run);
        r->bytes[HEAD_ROOM + len++] = '\n';
    }
    int n = snprintf(head, sizeof(head),
                     "POST /v1/events HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Type: application/x-ndjson\r\nContent-Length: %zu\r\n\r\n",
                     len);
    memmove(r->bytes + n, r->bytes + HEAD_ROOM, len);
    memcpy(r->bytes, head, (size_t)n);
    r->len = (size_t)n + len;
    return true;
}

static bool batch_answered(void *context, size_t connection, int code, str body,
                           struct load_result *result) {
    const struct producer *p = context;
    UNUSED(connection);
    UNUSED(code);
    result->counted += (int64_t)p->batch;
    return !memmem(body.ptr, body.len, "\"error\"", 7);
}

/* ---- http-append ---- */

static double append_rate(struct producer *p, int port, double seconds, struct load_result *r) {
    struct load load = {.port = port,
                        .connections = HTTP_CONNECTIONS,
                        .seconds = seconds,
                        .request_room = REQUEST_ROOM,
                        .answer_room = REQUEST_ROOM,
                        .context = p,
                        .begin = producer_begin,
                        .make = append_make};
    load_once(&load, "http-append", r);
    return (double)r->answers / r->seconds;
}

void bench_http_append(const struct bench_options *o) {
    struct http_child echo;
    struct http_child cairn;
    struct load_result r;
    struct load_result all = {0};
    struct producer p;
    struct buf dir;
    double slice = o->seconds / (2 * SLICES);
    double value = 0;
    double limit = 0;
    double cpu = 0;
    buf_init(&dir, 4096);
    producer_open(&p, HTTP_CONNECTIONS, 0);
    echo_start(&echo);
    cairn_start(bench_data(o, "append", &dir).ptr, &cairn);
    (void)append_rate(&p, cairn.port, slice / 2, &r); /* warm */
    for (int i = 0; i < SLICES; i++) {
        limit += echo_rate(&echo, slice, &r) / SLICES;
        double before = cpu_seconds_of(cairn.pid);
        value += append_rate(&p, cairn.port, slice, &r) / SLICES;
        cpu += cpu_seconds_of(cairn.pid) - before;
        histogram_merge(&all.latency, &r.latency);
        all.answers += r.answers;
        all.cpu_seconds += r.cpu_seconds;
    }
    child_stop(&cairn);
    child_stop(&echo);
    figure("http-append", "64 connections, one event a request, against http-echo", value, "req/s",
           limit, value / limit);
    cost_figures("http-append", cpu, &all);
    latency_figures("http-append", "latency", &all.latency);
    buf_release(&dir);
}

/* ---- http-append-batch ---- */

/* The first figure of append-group, from this program itself. */
static double group_rate(const struct bench_options *o, int seconds) {
    char self[3072];
    char command[4096];
    char line[512];
    double value = 0;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n < 0) die("where am I", NULL);
    self[n] = 0;
    snprintf(command, sizeof(command), "cd '%s' && '%s' append-group --seconds %d", o->dir, self,
             seconds);
    FILE *f = popen(command, "r");
    if (!f || !fgets(line, sizeof(line), f)) die("append-group", NULL);
    const char *at = strstr(line, "\"value\":");
    if (!at || sscanf(at, "\"value\":%lf", &value) != 1) die("append-group", NULL);
    while (fgets(line, sizeof(line), f)) {
    }
    pclose(f);
    return value;
}

static double batch_rate(struct producer *p, int port, double seconds, struct load_result *r) {
    struct load load = {.port = port,
                        .connections = BATCH_CONNECTIONS,
                        .seconds = seconds,
                        .request_room = (BATCH + 1) * (size_t)LINE_ROOM,
                        .answer_room = (size_t)BATCH * 512,
                        .context = p,
                        .begin = producer_begin,
                        .make = batch_make,
                        .answered = batch_answered};
    load_once(&load, "http-append-batch", r);
    return (double)r->counted / r->seconds;
}

void bench_http_append_batch(const struct bench_options *o) {
    struct http_child cairn;
    struct load_result r;
    struct histogram all = {0};
    struct producer p;
    struct buf dir;
    double slice = o->seconds / (2 * SLICES);
    double value = 0;
    double limit = 0;
    buf_init(&dir, 4096);
    producer_open(&p, BATCH_CONNECTIONS, BATCH);
    cairn_start(bench_data(o, "append", &dir).ptr, &cairn);
    (void)batch_rate(&p, cairn.port, slice / 2, &r); /* warm */
    for (int i = 0; i < SLICES; i++) {
        limit += group_rate(o, slice > 1 ? (int)slice : 1) / SLICES;
        value += batch_rate(&p, cairn.port, slice, &r) / SLICES;
        histogram_merge(&all, &r.latency);
    }
    child_stop(&cairn);
    figure("http-append-batch", "256 events a request, 4 connections, against append-group", value,
           "events/s", limit, value / limit);
    latency_figures("http-append-batch", "latency", &all);
    buf_release(&dir);
}
