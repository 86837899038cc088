/* tests/load/slow.c: two thousand connections that send a byte now and then and never finish a
 * request, half of them in the head, half in the body, while eight normal clients go on.
 *
 * Every normal request must be answered, and well, on the connection that it came on; how long that
 * takes is told, not judged. Every slow connection must be ended by the server at its deadline, 10
 * s for a head, 30 s for a body, with 408: not before, and not long after.
 *
 * CAIRN names the program; CAIRN_TEST_SCALE (percent) makes it smaller. */
#include <stdarg.h>

#include "load/event.h"
#include "model/random.h"

enum {
    SLOW_MAX = 2000,
    NORMAL = 8,
    HEAD_S = 10,
    BODY_S = 30,
    LATE_S = 15, /* a busy machine may be that late */
    END_S = BODY_S + LATE_S + 10,
    OPEN_AT_ONCE = 200,
    LATENCIES_MAX = 1000000,
};

struct slow {
    struct conn conn;
    bool in_body, sending, ended;
    int64_t begun_ns, next_ns; /* when the deadline began; when the next byte is due */
    int status;                /* of the answer; 0: none */
};

struct normal {
    struct conn conn;
    int64_t asked_ns, number;
    char run[32];
    bool asked;
};

static struct {
    struct child server;
    struct slow slow[SLOW_MAX];
    struct normal normal[NORMAL];
    size_t slow_count, opened, ended, early, without_answer;
    int64_t *latencies;
    size_t latency_count;
    int64_t latest_ns[2]; /* the longest that a head, a body lasted */
    uint64_t rng;
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

/* What epoll gives back is a struct conn, the first member of either kind. */
static bool is_normal(const void *owner) {
    return (const struct normal *)owner >= test.normal &&
           (const struct normal *)owner < test.normal + NORMAL;
}

/* ---- the slow ---- */

static void put_slow(struct slow *s) {
    buf_clear(&s->conn.out);
    s->conn.sent = 0;
    buf_put_c(&s->conn.out, "POST /v1/runs/slow/events HTTP/1.1\r\nHost: 127.0.0.1\r\n");
    buf_put_c(&s->conn.out, s->in_body ? "Content-Type: application/json\r\nContent-Length: "
                                         "100000\r\n\r\n{"
                                       : "X-Slow: ");
}

static bool slow_ended(struct slow *s) {
    int64_t lasted = clock_mono_ns() - s->begun_ns;
    int64_t least = s->in_body ? BODY_S : HEAD_S;
    s->ended = true;
    test.ended++;
    test.early += lasted < (least - 1) * 1000000000;
    test.without_answer += s->status != 408;
    if (lasted > test.latest_ns[s->in_body]) test.latest_ns[s->in_body] = lasted;
    conn_close(&s->conn);
    return s->status == 408 || s->status == 0 ||
           bad("a slow request was answered with %d", s->status);
}

static bool slow_news(struct slow *s, uint32_t events) {
    struct answer a;
    if (s->conn.connecting && (events & EPOLLOUT)) {
        s->conn.connecting = false;
        put_slow(s);
        s->begun_ns = clock_mono_ns();
        s->sending = true;
        if (!conn_flush(&s->conn, test.epoll, s)) return slow_ended(s);
        if (!conn_watch(&s->conn, test.epoll, EPOLL_CTL_MOD, false, s)) return slow_ended(s);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return true;
    bool alive = conn_read(&s->conn);
    if (conn_answer(&s->conn, &a)) {
        s->status = a.status;
        alive = false; /* it says that it ends; so do we */
    }
    return alive || slow_ended(s);
}

/* One byte to each whose time has come. */
static bool drip(void) {
    int64_t now = clock_mono_ns();
    size_t at_once = 0;
    bool ok = true;
    for (size_t i = 0; i < test.slow_count; i++) {
        struct slow *s = &test.slow[i];
        if (s->ended || !s->sending || s->next_ns > now) continue;
        s->next_ns = now + 1000000 * (int64_t)(500 + random_below(&test.rng, 2500));
        (void)send(s->conn.fd, s->in_body ? " " : "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    while (ok && test.opened < test.slow_count && at_once++ < OPEN_AT_ONCE) {
        struct slow *s = &test.slow[test.opened++];
        ok = conn_open(&s->conn, test.epoll, test.server.port, s) ||
             bad("connect: %s", strerror(errno));
    }
    return ok;
}

/* ---- the normal ---- */

static void put_normal(struct normal *n) {
    char target[64];
    struct buf body;
    int64_t number = n->number++;
    if (number % 3 == 2) {
        snprintf(target, sizeof(target), "/v1/runs/%s", n->run);
        conn_request(&n->conn, "GET", target, "", STR_NONE);
        return;
    }
    buf_init(&body, (size_t)16 * 1024);
    put_event(n->run, number == 0 ? EVENT_RUN_STARTED : EVENT_UNKNOWN, number, 0, &body);
    snprintf(target, sizeof(target), "/v1/runs/%s/events", n->run);
    conn_request(&n->conn, "POST", target, "Content-Type: application/json\r\n", buf_str(&body));
    buf_release(&body);
}

static bool normal_ask(struct normal *n) {
    put_normal(n);
    n->asked_ns = clock_mono_ns();
    return conn_flush(&n->conn, test.epoll, n) || bad("a normal client lost its connection");
}

static bool normal_news(struct normal *n, uint32_t events) {
    struct answer a;
    if (n->conn.connecting) {
        n->conn.connecting = false;
        return conn_watch(&n->conn, test.epoll, EPOLL_CTL_MOD, false, n) && normal_ask(n);
    }
    if ((events & EPOLLOUT) && !conn_flush(&n->conn, test.epoll, n))
        return bad("a normal client lost its connection");
    if (!conn_read(&n->conn)) return bad("a normal client lost its connection");
    if (!conn_answer(&n->conn, &a)) return true;
    if (a.status != 200 && a.status != 201)
        return bad("a normal request was answered with %d: %.*s", a.status, STR_ARG(a.body));
    if (test.latency_count < LATENCIES_MAX)
        test.latencies[test.latency_count++] = clock_mono_ns() - n->asked_ns;
    n->asked = false; /* the next one with the next turn: eight clients need not use up a core */
    return true;
}

/* ---- all together ---- */

static bool turn(void) {
    struct epoll_event events[256];
    int count = epoll_wait(test.epoll, events, COUNT_OF(events), 5);
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        void *owner = events[i].data.ptr;
        ok = is_normal(owner) ? normal_news(owner, events[i].events)
                              : slow_news(owner, events[i].events);
    }
    for (size_t i = 0; ok && i < NORMAL; i++) {
        struct normal *n = &test.normal[i];
        if (n->asked || n->conn.connecting) continue;
        n->asked = true;
        ok = normal_ask(n);
    }
    return ok && drip();
}

static bool work(void) {
    bool ok = true;
    for (size_t i = 0; ok && i < NORMAL; i++) {
        struct normal *n = &test.normal[i];
        snprintf(n->run, sizeof(n->run), "normal-%zu", i);
        n->asked = true;
        ok = conn_open(&n->conn, test.epoll, test.server.port, n) ||
             bad("connect: %s", strerror(errno));
    }
    int64_t end = clock_mono_ns() + (int64_t)END_S * 1000000000;
    while (ok && test.ended < test.slow_count && clock_mono_ns() < end)
        ok = turn();
    if (!ok) return false;
    if (test.ended < test.slow_count)
        return bad("%zu slow connections are still there", test.slow_count - test.ended);
    if (test.early > 0) return bad("%zu slow connections were ended too early", test.early);
    for (int64_t i = 0; i < 2; i++) {
        if (test.latest_ns[i] > ((i ? BODY_S : HEAD_S) + LATE_S) * (int64_t)1000000000)
            return bad("a slow %s lasted %.1f s", i ? "body" : "head",
                       (double)test.latest_ns[i] / 1e9);
    }
    return test.latency_count >= NORMAL || bad("the normal clients were not answered");
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static double latency_ms(size_t percent) {
    if (test.latency_count == 0) return 0;
    size_t at = (test.latency_count - 1) * percent / 100;
    return (double)test.latencies[at] / 1e6;
}

static bool run(const char *cairn) {
    char folder[512];
    if (!child_folder("slow", folder, sizeof(folder))) return bad("mkdtemp: %s", strerror(errno));
    const char *const words[] = {cairn,  "serve", "--listen",   "127.0.0.1:0", "--data",
                                 folder, "--log", "text:error", NULL};
    test.epoll = epoll_create1(EPOLL_CLOEXEC);
    bool ok = (child_start(&test.server, words) && child_ready(&test.server, 60000)) ||
              bad("the server is not ready: %s", test.server.said);
    ok = ok && work();
    int how = child_end(&test.server, ok ? SIGTERM : SIGKILL);
    if (ok && (!WIFEXITED(how) || WEXITSTATUS(how) != 0))
        ok = bad("the server ended with status %#x: %s", (unsigned)how, test.server.said);
    qsort(test.latencies, test.latency_count, sizeof(int64_t), compare);
    printf("slow: %zu slow connections ended (heads within %.1f s, bodies %.1f s; %zu without an "
           "answer); %zu normal requests, %.2f ms in the middle, %.1f ms for 99 of 100, %.1f ms at "
           "most\n",
           test.ended, (double)test.latest_ns[0] / 1e9, (double)test.latest_ns[1] / 1e9,
           test.without_answer, test.latency_count, latency_ms(50), latency_ms(99),
           latency_ms(100));
    close(test.epoll);
    child_remove_folder(folder);
    return ok;
}

int main(void) {
    const char *cairn = getenv("CAIRN");
    if (!cairn || access(cairn, X_OK) != 0) {
        fprintf(stderr, "slow: CAIRN must name the program\n");
        return 1;
    }
    test.slow_count = scaled(SLOW_MAX) > 100 ? scaled(SLOW_MAX) : 100;
    if (test.slow_count > SLOW_MAX) test.slow_count = SLOW_MAX;
    size_t files = child_raise_files();
    if (files < test.slow_count + 200) {
        printf("skip slow: too few files may be open at once: %zu for %zu connections\n", files,
               test.slow_count);
        printf("slow: 0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    test.rng = (uint64_t)clock_wall_us();
    test.latencies = calloc(LATENCIES_MAX, sizeof(int64_t));
    if (!test.latencies) return 1;
    for (size_t i = 0; i < SLOW_MAX; i++) {
        conn_init(&test.slow[i].conn);
        test.slow[i].in_body = i % 2;
    }
    for (size_t i = 0; i < NORMAL; i++)
        conn_init(&test.normal[i].conn);
    bool ok = run(cairn);
    if (!ok) fprintf(stderr, "slow: %s\n", test.why);
    for (size_t i = 0; i < SLOW_MAX; i++)
        conn_release(&test.slow[i].conn);
    for (size_t i = 0; i < NORMAL; i++)
        conn_release(&test.normal[i].conn);
    free(test.latencies);
    printf("slow: %d passed, %d failed, 0 skipped\n", ok, !ok);
    return ok ? 0 : 1;
}
