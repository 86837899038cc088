/* Effects, from a request over HTTP to their arrival at a receiver in another process.
 *
 * At most 64 are on their way at a time, requested and not yet received. Each is a webhook; what
 * counts is the time from the first request to the arrival of the last effect. All runs are
 * finished: that is where an effect costs most. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "http.h"
#include "net/server.h"

enum { OUTBOX_RUNS = 1000, IN_FLIGHT = 64, DRAIN_SECONDS = 60 };

struct counts { /* shared by all processes */
    atomic_llong requested, received;
    atomic_llong last_ns; /* when the last effect came */
};

/* ---- the receiver ---- */

static void receive(void *context, struct http_exchange *e, const struct http_request *r) {
    static const struct http_header header = {STR_LIT("Content-Type"), STR_LIT("application/json")};
    struct counts *counts = context;
    UNUSED(r);
    atomic_store(&counts->last_ns, clock_mono_ns());
    atomic_fetch_add(&counts->received, 1);
    http_respond(e, 200, &header, 1, STR("{\"ok\":true}"));
}

static void receiver_start(struct counts *counts, struct http_child *out) {
    struct error err = {0};
    int ends[2];
    if (pipe(ends) != 0) die("pipe", NULL);
    fflush(stdout);
    *out = (struct http_child){.pid = fork(), .err = -1};
    if (out->pid < 0) die("fork", NULL);
    if (out->pid == 0) {
        uv_loop_t loop;
        struct http_server *server = NULL;
        int port = 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        uv_loop_init(&loop);
        check(http_server_open(&loop, NULL, receive, counts, &server, &err), "server", &err);
        check(http_listen_tcp(server, STR("127.0.0.1"), 0, false, &port, &err), "listen", &err);
        pipe_put(ends[1], &port, sizeof(port));
        uv_run(&loop, UV_RUN_DEFAULT);
        _exit(1);
    }
    if (!pipe_get(ends[0], &out->port, sizeof(out->port))) die("the receiver failed", NULL);
    close(ends[0]);
    close(ends[1]);
}

/* ---- finished runs ---- */

struct runs {
    int port, receiver;
    size_t count; /* spread over so many */
    size_t next;
    struct counts *counts;
    struct buf ref;
};

static bool run_make(void *context, struct load_request *r) {
    struct runs *w = context;
    char body[2048];
    if (w->next >= OUTBOX_RUNS) return false;
    int n =
        snprintf(body, sizeof(body),
                 "{\"planRef\":%.*s,\"context\":{\"tenantId\":\"bench\",\"runId\":\"run-%zu\"}}",
                 (int)w->ref.len, w->ref.ptr, w->next++);
    r->len = (size_t)snprintf(r->bytes, r->room,
                              "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=30\r\n"
                              "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                              n, body);
    return true;
}

static void make_runs(struct runs *w) {
    static const str plan =
        STR_LIT("{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"bench-outbox\","
                "\"planVersion\":\"1\"},\"steps\":[{\"stepId\":\"s\",\"type\":\"noop\"}]}");
    struct load_result r;
    buf_init(&w->ref, 65536);
    http_put_plan(w->port, plan, &w->ref);
    struct load load = {.port = w->port,
                        .connections = HTTP_CONNECTIONS,
                        .seconds = 60,
                        .request_room = 4096,
                        .context = w,
                        .make = run_make};
    load_once(&load, "outbox-e2e: runs", &r);
    buf_release(&w->ref);
}

/* ---- effects ---- */

static bool effect_make(void *context, struct load_request *r) {
    struct runs *w = context;
    char body[512];
    while (atomic_load(&w->counts->requested) - atomic_load(&w->counts->received) >= IN_FLIGHT)
        usleep(50);
    atomic_fetch_add(&w->counts->requested, 1);
    int n =
        snprintf(body, sizeof(body),
                 "{\"effectType\":\"WEBHOOK_CALL\",\"payload\":{\"url\":\"http://127.0.0.1:%d/\","
                 "\"body\":{\"order\":%zu,\"status\":\"CONFIRMED\"}}}",
                 w->receiver, w->next);
    r->len = (size_t)snprintf(r->bytes, r->room,
                              "POST /v1/runs/run-%zu/effects HTTP/1.1\r\nHost: localhost\r\n"
                              "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                              w->next++ % w->count, n, body);
    return true;
}

/* Effects/s, of requests for so many seconds. */
static double deliver(struct runs *w, double seconds, struct load_result *r) {
    struct counts *counts = w->counts;
    atomic_store(&counts->requested, 0);
    atomic_store(&counts->received, 0);
    struct load load = {.port = w->port,
                        .connections = HTTP_CONNECTIONS,
                        .seconds = seconds,
                        .request_room = 4096,
                        .context = w,
                        .make = effect_make};
    int64_t begin = clock_mono_ns();
    load_once(&load, "outbox-e2e", r);
    int64_t until = clock_mono_ns() + (int64_t)DRAIN_SECONDS * 1000000000;
    while (atomic_load(&counts->received) < r->answers) {
        if (clock_mono_ns() > until) die("some effects did not arrive", NULL);
        usleep(1000);
    }
    return (double)r->answers * 1e9 / (double)(atomic_load(&counts->last_ns) - begin);
}

static void measure(const struct bench_options *o, const char *name, size_t spread, struct runs *w,
                    pid_t server) {
    struct load_result r;
    char text[96];
    w->count = spread;
    (void)deliver(w, o->seconds / 10, &r); /* warm */
    double syncs = raw_fdatasync(o, o->seconds / 10);
    double cpu = cpu_seconds_of(server);
    double rate = deliver(w, o->seconds, &r);
    cpu = cpu_seconds_of(server) - cpu;
    syncs = (syncs + raw_fdatasync(o, o->seconds / 10)) / 2;
    figure("outbox-e2e", name, rate, "effects/s", syncs, rate / syncs);
    snprintf(text, sizeof(text), "%s, against 3,000 effects/s", name);
    figure("outbox-e2e", text, rate, "effects/s", 3000, rate / 3000);
    note("outbox-e2e", "processor time of the server, an effect", cpu * 1e6 / (double)r.answers,
         "us");
    latency_figures("outbox-e2e", "the request alone", &r.latency);
}

void bench_outbox_e2e(const struct bench_options *o) {
    struct http_child receiver;
    struct http_child cairn;
    struct buf dir;
    struct counts *counts =
        mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED) die("mmap", NULL);
    buf_init(&dir, 4096);
    receiver_start(counts, &receiver);
    char rule[64];
    snprintf(rule, sizeof(rule), "http://127.0.0.1:%d", receiver.port);
    cairn_start_allowing(bench_data(o, "outbox", &dir).ptr, rule, &cairn);
    struct runs w = {.port = cairn.port, .receiver = receiver.port, .counts = counts};
    make_runs(&w);
    measure(o, "spread over 1,000 finished runs", OUTBOX_RUNS, &w, cairn.pid);
    measure(o, "all on one finished run", 1, &w, cairn.pid);
    child_stop(&cairn);
    child_stop(&receiver);
    munmap(counts, sizeof(*counts));
    buf_release(&dir);
}
