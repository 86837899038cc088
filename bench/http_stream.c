/* Many connections that mostly wait: readers of one live run, and idle ones. */
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/time.h"
#include "http.h"

/* ---- sse ---- */

enum { READERS = 1000, LINE_MAX_BYTES = 4096, EVENTS_A_SECOND = 20, EVENTS_MAX = 20000 };

struct reader {
    size_t len;
    char line[LINE_MAX_BYTES];
};
struct readers { /* in memory that both processes see */
    /* By runSeq: when the commit was acknowledged. (persistedAt is from before it: the disk's time
     * would be the readers'.) */
    _Atomic int64_t acknowledged_us[EVENTS_MAX];
    struct histogram since_persisted;
    int64_t next_seq;
    char run_id[UUID_TEXT_LEN];
    int ready[2]; /* a pipe: a byte goes through when every reader has seen the first event */
    int64_t events;
    struct reader each[READERS];
};

static bool sse_make(void *context, struct load_request *r) {
    const struct readers *s = context;
    if (r->len > 0) return false; /* one request each */
    r->len = (size_t)snprintf(r->bytes, r->room,
                              "GET /v1/runs/%.*s/events HTTP/1.1\r\nHost: localhost\r\n"
                              "Accept: text/event-stream\r\n\r\n",
                              UUID_TEXT_LEN, s->run_id);
    return true;
}

static int64_t seq_of(str line) {
    static const char mark[] = "\"runSeq\":";
    const char *at = memmem(line.ptr, line.len, mark, sizeof(mark) - 1);
    str rest = at ? str_from(line, (size_t)(at - line.ptr) + sizeof(mark) - 1) : STR_NONE;
    int64_t seq = 0;
    if (!at || !str_take_int(&rest, &seq) || seq >= EVENTS_MAX) die("runSeq is malformed", NULL);
    return seq;
}

static void sse_line(struct readers *s, str line, struct load_result *result) {
    static const char mark[] = "\"persistedAt\":\"";
    if (!str_starts(line, STR("data:"))) return;
    const char *at = memmem(line.ptr, line.len, mark, sizeof(mark) - 1);
    if (!at) return;
    str rest = str_from(line, (size_t)(at - line.ptr) + sizeof(mark) - 1);
    str when;
    int64_t ns = 0;
    int digits = 0;
    if (!str_split(rest, '"', &when, &rest) || !time_parse_utc(when, &ns, &digits))
        die("persistedAt is malformed", NULL);
    s->events++;
    if (s->events > READERS) { /* (the first one was there before the readers) */
        int64_t now = clock_wall_us();
        int64_t known = s->acknowledged_us[seq_of(line)]; /* 0: the reader was faster */
        histogram_add(&result->latency, known > 0 && now > known ? (now - known) * 1000 : 0);
        histogram_add(&s->since_persisted, now * 1000 - ns);
        result->counted++;
    } else if (s->events == READERS) {
        pipe_put(s->ready[1], "", 1);
    }
}

static void sse_piece(void *context, size_t connection, str bytes, struct load_result *result) {
    struct readers *s = context;
    struct reader *r = &s->each[connection];
    str line;
    str rest;
    while (str_split(bytes, '\n', &line, &rest)) {
        if (r->len > 0) {
            size_t n = line.len < LINE_MAX_BYTES - r->len ? line.len : LINE_MAX_BYTES - r->len;
            memcpy(r->line + r->len, line.ptr, n);
            line = str_n(r->line, r->len + n);
            r->len = 0;
        }
        sse_line(s, line, result);
        bytes = rest;
    }
    size_t n = bytes.len < LINE_MAX_BYTES - r->len ? bytes.len : LINE_MAX_BYTES - r->len;
    memcpy(r->line + r->len, bytes.ptr, n);
    r->len += n;
}

static void say(int port, struct readers *s, const char *type, const char *step) {
    struct buf json;
    struct buf answer;
    char target[128];
    struct event event = {.type_name = str_c(type),
                          .run_id = str_n(s->run_id, UUID_TEXT_LEN),
                          .tenant_id = STR("acme"),
                          .project_id = STR("analytics"),
                          .environment_id = STR("prod"),
                          .plan_id = STR("orders"),
                          .plan_version = STR("7"),
                          .engine_attempt = 1,
                          .logical_attempt = 1,
                          .event_id = uuid_v4(),
                          .emitted_ns = clock_wall_us() / 1000 * 1000000,
                          .emitted_digits = 3,
                          .subject = str_c(step),
                          .payload = STR("{\"rows\":12873}")};
    event.type = event_type_of(event.type_name);
    event_key_derive(&event, event.key);
    buf_init(&json, 4096);
    buf_init(&answer, 65536);
    event_write_json(&event, &json);
    snprintf(target, sizeof(target), "/v1/runs/%.*s/events", UUID_TEXT_LEN, s->run_id);
    int code = http_once(port, "POST", target, "Content-Type: application/json\r\n", buf_str(&json),
                         &answer);
    if (code != 201) {
        fprintf(stderr, "%.*s\n", (int)answer.len, answer.ptr);
        die("an event was refused", NULL);
    }
    if (++s->next_seq < EVENTS_MAX) s->acknowledged_us[s->next_seq] = clock_wall_us();
    buf_release(&json);
    buf_release(&answer);
}

/* The run is busy for a while, and then it ends, and with it the streams. Returns the events. */
static int64_t be_busy(int port, struct readers *s, double seconds) {
    int64_t count = (int64_t)(seconds * EVENTS_A_SECOND);
    double start = now_seconds();
    for (int64_t i = 0; i < count; i++) {
        char step[32];
        snprintf(step, sizeof(step), "step-%lld", (long long)i / 2);
        say(port, s, i % 2 == 0 ? "StepStarted" : "StepCompleted", step);
        double wait = start + (double)(i + 1) / EVENTS_A_SECOND - now_seconds();
        if (wait > 0) usleep((useconds_t)(wait * 1e6));
    }
    if (count % 2 != 0) {
        char step[32];
        snprintf(step, sizeof(step), "step-%lld", (long long)count / 2);
        say(port, s, "StepCompleted", step);
        count++;
    }
    say(port, s, "RunCompleted", NULL);
    return count + 1;
}

void bench_sse(const struct bench_options *o) {
    struct http_child cairn;
    struct load_run run;
    struct load_result r;
    struct readers *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct buf dir;
    char ready = 0;
    if (s == MAP_FAILED || pipe(s->ready) != 0) die("out of memory", NULL);
    raise_descriptors();
    buf_init(&dir, 4096);
    cairn_start(bench_data(o, "sse", &dir).ptr, &cairn);
    uuid_format(uuid_v4(), s->run_id);
    say(cairn.port, s, "RunStarted", NULL);
    struct load load = {.port = cairn.port,
                        .connections = READERS,
                        .seconds = o->seconds + 60,
                        .request_room = 512,
                        .answer_room = 512,
                        .context = s,
                        .make = sse_make,
                        .piece = sse_piece};
    double start = now_seconds();
    load_start(&load, &run);
    close(s->ready[1]);
    if (!pipe_get(s->ready[0], &ready, 1)) die("the readers failed", NULL);
    note("sse", "1,000 readers connected and served", now_seconds() - start, "s");
    double cpu = cpu_seconds_of(cairn.pid);
    int64_t events = be_busy(cairn.port, s, o->seconds);
    load_finish(&run, "sse", &r);
    cpu = cpu_seconds_of(cairn.pid) - cpu;
    child_stop(&cairn);
    double p99 = histogram_ms(&r.latency, 0.99);
    if (r.counted != events * READERS) die("events were lost on the way to the readers", NULL);
    figure("sse", "commit to reader, p99, 1,000 readers of a run with 20 events/s", p99, "ms", 50,
           p99 / 50);
    latency_figures("sse", "commit to reader", &r.latency);
    latency_figures("sse", "persistedAt to reader, the disk included", &s->since_persisted);
    note("sse", "processor time of the server, an event to a reader", cpu * 1e6 / (double)r.counted,
         "us");
    buf_release(&dir);
    munmap(s, sizeof(*s));
}

/* ---- http-idle ---- */

enum { IDLE = 10000 };

/* Each has had one request answered: kept alive, not just accepted. */
static int idle_connection(int port) {
    static const char request[] = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char answer[4096];
    int fd = load_connect(port, true);
    if (send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) < 0 ||
        recv(fd, answer, sizeof(answer), 0) < 12 || memcmp(answer + 9, "200", 3) != 0)
        die("an idle connection was not served", NULL);
    return fd;
}

void bench_http_idle(const struct bench_options *o) {
    static int fds[IDLE];
    struct http_child cairn;
    struct buf dir;
    raise_descriptors();
    buf_init(&dir, 4096);
    cairn_start(bench_data(o, "idle", &dir).ptr, &cairn);
    double before = child_rss_mib(cairn.pid);
    double start = now_seconds();
    for (int i = 0; i < IDLE; i++)
        fds[i] = idle_connection(cairn.port);
    note("http-idle", "connections opened and served", IDLE / (now_seconds() - start), "/s");
    usleep(500000);
    double rss = child_rss_mib(cairn.pid);
    figure("http-idle", "memory with 10,000 idle connections", rss, "MiB", 150, rss / 150);
    note("http-idle", "memory a connection", (rss - before) * 1024 / IDLE, "KiB");
    double cpu = cpu_seconds_of(cairn.pid);
    sleep(2);
    note("http-idle", "processor time while they are idle", (cpu_seconds_of(cairn.pid) - cpu) / 2,
         "s/s");
    for (int i = 0; i < IDLE; i++)
        close(fds[i]);
    child_stop(&cairn);
    buf_release(&dir);
}
