/* tests/load/sse.c: ten thousand readers of one run's live stream, a tenth of which never read a
 * byte, while events are appended.
 *
 * Every one that reads must get every event once and in order, the stalled ones notwithstanding;
 * the server must end the stalled ones when they have taken nothing for 30 s, with the others
 * reading on; and its memory must stay bounded all the time. Then the run ends, and so must every
 * stream, with "end".
 *
 * The server is a process of its own: either needs a descriptor for each reader. CAIRN names the
 * program; CAIRN_TEST_SCALE (percent) makes it smaller, and so does a low limit of open files. */
#include <stdarg.h>

#include "load/event.h"

enum {
    READERS_MAX = 10000,
    STALLED_OF = 10,   /* every tenth */
    OPENING_MAX = 256, /* connections opened at a time */
    SOURCES = 8,       /* addresses that we connect from: each has its own ports */
    FILES_SPARE = 200, /* descriptors that are no reader's */
    HISTORY = 8,       /* batches that are there before: more than a stalled one's buffers hold, */
    HISTORY_BYTES = 2000,  /* with so much payload an event */
    FROM_START = 10,       /* every tenth reads them all, and so would the stalled ones */
    SINGLES = 40,          /* events that are appended one by one while all read, */
    BATCHES = 4,           /* and batches of */
    BATCH = 20,            /* as many */
    LAST = 5,              /* events after the stalled ones are gone */
    EVENT_BYTES = 300,     /* of payload */
    STALLED_MSS = 536,     /* a stalled reader's segments and window are small, */
    STALLED_WINDOW = 4096, /* or its kernel would take megabytes for it */
    LINE_BYTES = 48,       /* of a line of the stream: more is not needed to know it */
    WAIT_S = 120,          /* without any progress: something hangs */
};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESIDENT_MAX_MIB 4000.0
#else
#define RESIDENT_MAX_MIB 400.0
#endif

struct reader {
    struct conn conn;
    bool stalled, asked, in_stream, closed;
    size_t chunk; /* bytes of the present chunk that are still to come */
    int blanks;   /* of the chunk: bytes of its line end that are still to come */
    char line[LINE_BYTES];
    size_t line_len;    /* of the whole line; only the beginning is kept */
    int64_t id, last;   /* of the event that is being read; of the last whole one */
    bool is_end, ended; /* the event "end" */
};

static struct {
    struct child server;
    struct reader *readers;
    size_t count, stalled, opened, opening;
    struct conn control; /* appends, and asks how things are */
    bool answered;
    struct answer answer;
    int64_t appended; /* events of the run */
    int64_t progress_ns, sampled_ns;
    size_t bytes;
    double resident_max;
    int epoll;
    char why[512];
} test;

__attribute__((format(printf, 1, 2))) static bool bad(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(test.why, sizeof(test.why), fmt, args);
    va_end(args);
    return false;
}

/* ---- what a reader is sent ---- */

static bool take_line(struct reader *r) {
    str line = str_n(r->line, r->line_len < LINE_BYTES ? r->line_len : LINE_BYTES);
    if (str_starts(line, STR("id: "))) {
        line = str_from(line, 4);
        return str_take_int(&line, &r->id) || bad("an id that is no number");
    }
    if (str_eq(line, STR("event: end"))) r->is_end = true;
    if (line.len > 0 || r->id == 0) return true;
    if (r->ended) return bad("an event after the end");
    if (r->is_end && r->id != r->last)
        return bad("the end is at %lld, not at %lld", (long long)r->id, (long long)r->last);
    if (!r->is_end && r->id != r->last + 1)
        return bad("event %lld follows %lld", (long long)r->id, (long long)r->last);
    r->ended = r->is_end;
    r->last = r->id;
    r->id = 0;
    return true;
}

static bool take_text(struct reader *r, const char *text, size_t len) {
    while (len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        for (size_t i = 0; i < n && r->line_len + i < LINE_BYTES; i++)
            r->line[r->line_len + i] = text[i];
        r->line_len += n;
        if (!end) return true;
        if (!take_line(r)) return false;
        r->line_len = 0;
        text += n + 1;
        len -= n + 1;
    }
    return true;
}

/* The size line of a chunk at `at`; 0: it is not all there. */
static size_t chunk_line(const char *at, size_t len, size_t *size) {
    const char *end = memchr(at, '\n', len);
    if (!end) return 0;
    *size = 0;
    for (const char *p = at; p < end && *p != '\r'; p++)
        *size = *size * 16 + (size_t)(*p <= '9' ? *p - '0' : (*p | 32) - 'a' + 10);
    return (size_t)(end - at) + 1;
}

/* Takes whole pieces of what was read; what is left of a size line stays. */
static bool take_chunks(struct reader *r) {
    const char *at = r->conn.in;
    size_t len = r->conn.in_len;
    bool ok = true;
    while (ok && len > 0) {
        size_t n = 0;
        if (r->chunk > 0) {
            n = len < r->chunk ? len : r->chunk;
            ok = take_text(r, at, n);
            r->chunk -= n;
            if (r->chunk == 0) r->blanks = 2;
        } else if (r->blanks > 0) {
            n = 1;
            r->blanks--;
        } else {
            n = chunk_line(at, len, &r->chunk);
            if (n == 0) break;
            if (r->chunk == 0) r->blanks = 2; /* the last one */
        }
        at += n;
        len -= n;
    }
    memmove(r->conn.in, at, len);
    r->conn.in_len = len;
    return ok;
}

static bool take_head(struct reader *r) {
    const char *blank = memmem(r->conn.in, r->conn.in_len, "\r\n\r\n", 4);
    if (!blank) return true;
    size_t head = (size_t)(blank - r->conn.in) + 4;
    if (!memmem(r->conn.in, head, "HTTP/1.1 200 ", 13) ||
        !memmem(r->conn.in, head, "text/event-stream", 17))
        return bad("a reader was answered: %.*s", (int)(head < 200 ? head : 200), r->conn.in);
    memmove(r->conn.in, r->conn.in + head, r->conn.in_len - head);
    r->conn.in_len -= head;
    r->in_stream = true;
    return true;
}

/* ---- readers ---- */

/* A stalled reader takes little before it is known to be stalled. */
static void make_small(const struct reader *r) {
    int mss = STALLED_MSS;
    int window = STALLED_WINDOW;
    (void)setsockopt(r->conn.fd, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof(mss));
    (void)setsockopt(r->conn.fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window));
}

static bool open_reader(struct reader *r, size_t number) {
    bool ok = conn_socket(&r->conn, INADDR_LOOPBACK + (uint32_t)(number % SOURCES));
    if (ok && r->stalled) make_small(r);
    if (!ok || !conn_connect(&r->conn, test.epoll, test.server.port, r))
        return bad("connect: %s", strerror(errno));
    test.opening++;
    return true;
}

static bool ask_stream(struct reader *r) {
    char headers[128];
    r->conn.connecting = false;
    r->asked = true;
    test.opening--;
    test.progress_ns = clock_mono_ns();
    snprintf(headers, sizeof(headers), "Accept: text/event-stream\r\nLast-Event-ID: %lld\r\n",
             (long long)r->last);
    conn_request(&r->conn, "GET", "/v1/runs/feed/events", headers, STR_NONE);
    if (!conn_flush(&r->conn, test.epoll, r)) return bad("a reader lost its connection");
    buf_release(&r->conn.out);
    if (r->stalled) /* it never reads, so nothing is of interest */
        return epoll_ctl(test.epoll, EPOLL_CTL_DEL, r->conn.fd, NULL) == 0;
    return conn_watch(&r->conn, test.epoll, EPOLL_CTL_MOD, false, r);
}

/* All readers share what they read into; what is left of it is a few bytes. */
static bool reader_news(struct reader *r) {
    if (r->conn.fd < 0) return true;
    if (r->conn.connecting) return ask_stream(r);
    int64_t before = r->last;
    bool alive = conn_read(&r->conn);
    test.bytes += r->conn.in_len;
    if (!r->in_stream && !take_head(r)) return false;
    if (r->in_stream && !take_chunks(r)) return false;
    if (r->conn.in_len == 0) {
        free(r->conn.in);
        r->conn.in = NULL;
        r->conn.in_cap = 0;
    }
    if (r->last != before) test.progress_ns = clock_mono_ns();
    if (alive && !r->ended) return true;
    r->closed = true;
    conn_close(&r->conn);
    return r->ended || bad("a reader was cut off after event %lld", (long long)r->last);
}

static bool reading_have(int64_t id, bool end) {
    for (size_t i = 0; i < test.count; i++) {
        const struct reader *r = &test.readers[i];
        if (!r->stalled && (r->last < id || (end && !r->closed))) return false;
    }
    return true;
}

/* ---- all together ---- */

static bool control_news(uint32_t events) {
    if (test.control.connecting && (events & EPOLLOUT)) test.control.connecting = false;
    if (test.control.connecting) return bad("could not connect");
    if (!conn_flush(&test.control, test.epoll, &test.control) || !conn_read(&test.control))
        return bad("the server ended the connection that appends");
    if (test.control.sent == test.control.out.len &&
        !conn_watch(&test.control, test.epoll, EPOLL_CTL_MOD, false, &test.control))
        return bad("epoll: %s", strerror(errno));
    if (conn_answer(&test.control, &test.answer)) test.answered = true;
    return true;
}

static void sample_memory(int64_t now) {
    if (now < test.sampled_ns + 100000000) return;
    test.sampled_ns = now;
    double mib = resident_mib(test.server.pid);
    if (mib > test.resident_max) test.resident_max = mib;
}

static bool turn(void) {
    struct epoll_event events[512];
    int n = epoll_wait(test.epoll, events, COUNT_OF(events), 20);
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        void *owner = events[i].data.ptr;
        ok = owner == &test.control ? control_news(events[i].events) : reader_news(owner);
    }
    int64_t now = clock_mono_ns();
    sample_memory(now);
    child_listen(&test.server);
    if (ok && now - test.progress_ns > (int64_t)WAIT_S * 1000000000)
        ok = bad("no progress for %d s", (int)WAIT_S);
    return ok;
}

static bool ask(const char *method, const char *target, const char *headers, str body) {
    test.answered = false;
    conn_request(&test.control, method, target, headers, body);
    bool ok = test.control.connecting || conn_flush(&test.control, test.epoll, &test.control);
    while (ok && !test.answered)
        ok = turn();
    if (ok && test.answer.status != 200 && test.answer.status != 201)
        ok = bad("%s %s was answered with %d: %.*s", method, target, test.answer.status,
                 (int)(test.answer.body.len < 200 ? test.answer.body.len : 200),
                 test.answer.body.ptr);
    return ok;
}

static bool append(enum event_type type, int count, size_t bytes) {
    struct buf body;
    buf_init(&body, (size_t)512 * 1024);
    for (int i = 0; i < count; i++) {
        put_event("feed", type, ++test.appended, bytes, &body);
        if (count > 1) buf_put_char(&body, '\n');
    }
    bool ok = ask("POST", "/v1/runs/feed/events",
                  count > 1 ? "Content-Type: application/x-ndjson\r\n"
                            : "Content-Type: application/json\r\n",
                  buf_str(&body));
    if (ok && memmem(test.answer.body.ptr, test.answer.body.len, "\"error\"", 7))
        ok = bad("an event was refused");
    buf_release(&body);
    return ok;
}

/* How many streams the server has now; -1: it did not say. */
static int64_t streams_now(void) {
    if (!ask("GET", "/metrics", "", STR_NONE)) return -1;
    str text = test.answer.body;
    const char *at = memmem(text.ptr, text.len, "\ncairn_streams ", 15);
    int64_t n = -1;
    if (!at) return -1;
    str number = str_n(at + 15, text.len - (size_t)(at + 15 - text.ptr));
    return str_take_int(&number, &n) ? n : -1;
}

static bool wait_for_streams(int64_t want) {
    for (int64_t n = streams_now(); n != want; n = streams_now()) {
        if (n < 0) return bad("the server does not say how many streams it has");
        for (int i = 0; i < 2; i++) {
            if (!turn()) return false;
        }
    }
    return true;
}

static bool wait_for_events(bool end) {
    while (!reading_have(test.appended, end)) {
        if (!turn()) return false;
    }
    return true;
}

/* ---- the story ---- */

/* Group by group: each must be a stream before the next one comes, or a server with a short queue
 * would be right to send some away. */
static bool open_group(void) {
    bool ok = true;
    for (size_t i = 0; ok && i < OPENING_MAX && test.opened < test.count; i++) {
        struct reader *r = &test.readers[test.opened];
        r->stalled = test.opened % STALLED_OF == STALLED_OF - 1;
        test.stalled += r->stalled;
        if (!r->stalled && test.opened % FROM_START != 0) r->last = test.appended;
        ok = open_reader(r, test.opened++);
    }
    while (ok && test.opening > 0)
        ok = turn();
    return ok && wait_for_streams((int64_t)test.opened);
}

static bool open_all(void) {
    while (test.opened < test.count) {
        if (!open_group()) return false;
    }
    return wait_for_events(false);
}

static bool append_all(void) {
    bool ok = true;
    for (int i = 0; ok && i < SINGLES; i++)
        ok = append(EVENT_UNKNOWN, 1, EVENT_BYTES);
    for (int i = 0; ok && i < BATCHES; i++)
        ok = append(EVENT_UNKNOWN, BATCH, EVENT_BYTES);
    return ok && wait_for_events(false);
}

static double seconds_since(int64_t *ns) {
    int64_t now = clock_mono_ns();
    double s = (double)(now - *ns) / 1e9;
    *ns = now;
    return s;
}

static bool story(void) {
    double took[4] = {0};
    int64_t ns = test.progress_ns = clock_mono_ns();
    if (!conn_open(&test.control, test.epoll, test.server.port, &test.control))
        return bad("connect: %s", strerror(errno));
    bool ok = append(EVENT_RUN_STARTED, 1, 0);
    for (int i = 0; ok && i < HISTORY; i++)
        ok = append(EVENT_UNKNOWN, BATCH, HISTORY_BYTES);
    ok = ok && open_all();
    took[0] = seconds_since(&ns);
    ok = ok && append_all();
    took[1] = seconds_since(&ns);
    ok = ok && wait_for_streams((int64_t)(test.count - test.stalled));
    took[2] = seconds_since(&ns);
    for (int i = 0; ok && i < LAST; i++)
        ok = append(EVENT_UNKNOWN, 1, EVENT_BYTES);
    ok = ok && append(EVENT_RUN_COMPLETED, 1, 0) && wait_for_events(true) && wait_for_streams(0);
    took[3] = seconds_since(&ns);
    printf(
        "sse: %zu readers, %zu of them stalled, %lld events; opened in %.1f s, read by all after "
        "%.1f s, stalled ones ended after %.1f s more, the rest in %.1f s; %.0f MiB read; the "
        "server had %.0f MiB at most\n",
        test.count, test.stalled, (long long)test.appended, took[0], took[1], took[2], took[3],
        (double)test.bytes / (1024.0 * 1024.0), test.resident_max);
    if (ok && test.resident_max > RESIDENT_MAX_MIB)
        ok = bad("the server had more than %.0f MiB", RESIDENT_MAX_MIB);
    return ok;
}

static bool run(const char *cairn) {
    char folder[512];
    if (!child_folder("sse", folder, sizeof(folder))) return bad("mkdtemp: %s", strerror(errno));
    const char *const words[] = {cairn,  "serve", "--listen",   "127.0.0.1:0", "--data",
                                 folder, "--log", "text:error", NULL};
    bool ok = (child_start(&test.server, words) && child_ready(&test.server, 60000)) ||
              bad("the server is not ready: %s", test.server.said);
    ok = ok && story();
    for (size_t i = 0; i < test.count; i++)
        conn_release(&test.readers[i].conn);
    conn_release(&test.control);
    int how = child_end(&test.server, ok ? SIGTERM : SIGKILL);
    if (ok && (!WIFEXITED(how) || WEXITSTATUS(how) != 0))
        ok = bad("the server ended with status %#x: %s", (unsigned)how, test.server.said);
    child_remove_folder(folder);
    return ok;
}

int main(void) {
    const char *cairn = getenv("CAIRN");
    if (!cairn || access(cairn, X_OK) != 0) {
        fprintf(stderr, "sse: CAIRN must name the program\n");
        return 1;
    }
    size_t files = child_raise_files();
    test.count = scaled(READERS_MAX) < READERS_MAX ? scaled(READERS_MAX) : READERS_MAX;
    if (test.count < 100) test.count = 100;
    if (files < 100 + FILES_SPARE) {
        printf("skip sse: too few files may be open at once: %zu for a hundred readers\n", files);
        printf("sse: 0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    if (files < test.count + FILES_SPARE) {
        printf("sse: %zu readers, not %zu: there may be at most %zu files\n", files - FILES_SPARE,
               test.count, files);
        test.count = files - FILES_SPARE;
    }
    test.readers = calloc(test.count, sizeof(*test.readers));
    test.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!test.readers || test.epoll < 0) return 1;
    conn_init(&test.control);
    for (size_t i = 0; i < test.count; i++)
        conn_init(&test.readers[i].conn);
    bool ok = run(cairn);
    if (!ok) fprintf(stderr, "sse: %s\n", test.why);
    close(test.epoll);
    free(test.readers);
    printf("sse: %d passed, %d failed, 0 skipped\n", ok, !ok);
    return ok ? 0 : 1;
}
