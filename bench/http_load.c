#include "http_load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/time.h"
#include "bench.h"

enum {
    READ_BYTES = 256 * 1024,
    HEAD_MAX = 4096,
    EVENTS_MAX = 256,
    GRACE_SECONDS = 60, /* for the last answers, once the time is over */
};

/* ---- the histogram ---- */

void histogram_add(struct histogram *h, int64_t ns) {
    uint64_t v = ns < 1 ? 1 : (uint64_t)ns;
    int top = 63 - __builtin_clzll(v);
    int shift = top > 6 ? top - 6 : 0; /* the six bits after the first one name the bucket */
    size_t at = (size_t)shift * HISTOGRAM_SUB + (size_t)(v >> shift);
    if (at >= COUNT_OF(h->counts)) at = COUNT_OF(h->counts) - 1;
    h->counts[at]++;
    h->total++;
    if (ns > h->max_ns) h->max_ns = ns;
}

void histogram_merge(struct histogram *h, const struct histogram *other) {
    for (size_t i = 0; i < COUNT_OF(h->counts); i++)
        h->counts[i] += other->counts[i];
    h->total += other->total;
    if (other->max_ns > h->max_ns) h->max_ns = other->max_ns;
}

double histogram_ms(const struct histogram *h, double part) {
    uint64_t want = (uint64_t)ceil(part * (double)h->total);
    uint64_t seen = 0;
    if (part >= 1) return (double)h->max_ns / 1e6;
    for (size_t i = 0; i < COUNT_OF(h->counts); i++) {
        seen += h->counts[i];
        if (seen < want || seen == 0) continue;
        size_t shift = i < (size_t)2 * HISTOGRAM_SUB ? 0 : i / HISTOGRAM_SUB - 1;
        double low = (double)(i - shift * HISTOGRAM_SUB);
        double upper = ldexp(low + 1, (int)shift) / 1e6;
        return upper < (double)h->max_ns / 1e6 ? upper : (double)h->max_ns / 1e6;
    }
    return NAN;
}

/* ---- small tools ---- */

int load_connect(int port, bool blocking) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        fprintf(stderr, "cairn-bench: connect to port %d: %s\n", port, strerror(errno));
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!blocking && fcntl(fd, F_SETFL, O_NONBLOCK) != 0) die("fcntl", NULL);
    return fd;
}

void pipe_put(int fd, const void *value, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, (const char *)value + at, len - at);
        if (n <= 0 && errno != EINTR) die("write to a pipe", NULL);
        if (n > 0) at += (size_t)n;
    }
}

bool pipe_get(int fd, void *value, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = read(fd, (char *)value + at, len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

static double timeval_seconds(struct timeval t) {
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

double cpu_seconds_self(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return timeval_seconds(usage.ru_utime) + timeval_seconds(usage.ru_stime);
}

double cpu_seconds_of(pid_t pid) {
    char path[64];
    char line[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return NAN;
    size_t n = fread(line, 1, sizeof(line) - 1, f);
    fclose(f);
    line[n] = 0;
    long long user = 0;
    long long system = 0;
    const char *rest = strrchr(line, ')'); /* the name before it may hold anything */
    if (!rest || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld", &user,
                        &system) != 2)
        return NAN;
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- one connection ---- */

enum stage { STAGE_IDLE, STAGE_HEAD, STAGE_LENGTH, STAGE_CHUNK_SIZE, STAGE_CHUNK, STAGE_TRAILER };

struct client {
    int fd;
    enum stage stage;
    int code;
    bool sending;    /* a part of the request waits for room in the socket */
    size_t sent;     /* of the request */
    uint64_t left;   /* of the body, or of the chunk and its line end */
    size_t line_len; /* bytes of a size line or trailer line in `head` */
    size_t head_len; /* bytes of a head that came in pieces */
    size_t body_len; /* in `body` */
    int64_t began_ns;
    struct load_request request;
    char *body;
    char head[HEAD_MAX];
};

struct engine_of_load {
    const struct load *load;
    struct load_result *result;
    struct client *clients;
    size_t busy;
    int epoll;
    int64_t end_ns, sent;
    char *read;
};

static void complain(struct load_result *r, int code, str body) {
    r->bad++;
    if (r->complaint[0]) return;
    snprintf(r->complaint, sizeof(r->complaint), "status %d: %.*s", code,
             (int)(body.len < 400 ? body.len : 400), body.ptr);
}

static void push(struct client *c) {
    while (c->sent < c->request.len) {
        ssize_t n = send(c->fd, c->request.bytes + c->sent, c->request.len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) die("the server ended a connection", NULL);
        c->sent += (size_t)n;
    }
    c->sending = c->sent < c->request.len;
}

static void next_request(struct engine_of_load *g, struct client *c, int64_t now) {
    const struct load *load = g->load;
    c->stage = STAGE_IDLE;
    bool more = now < g->end_ns && (load->requests_max == 0 || g->sent < load->requests_max);
    if (!more || !load->make(load->context, &c->request)) return;
    ASSERT(c->request.len <= c->request.room);
    g->sent++;
    g->busy++;
    c->stage = STAGE_HEAD;
    c->sent = c->head_len = c->body_len = c->line_len = 0;
    c->began_ns = clock_mono_ns();
    push(c);
}

static void whole_answer(struct engine_of_load *g, struct client *c) {
    struct load_result *r = g->result;
    const struct load *load = g->load;
    str body = str_n(c->body ? c->body : "", c->body_len);
    int64_t now = clock_mono_ns();
    bool timed = load->timed == 0 || c->request.connection < load->timed;
    if (!load->piece && timed) histogram_add(&r->latency, now - c->began_ns);
    g->busy--;
    bool fine = c->code >= 200 && c->code < 300;
    if (load->answered) /* (it is told of bad ones, too: it may have to forget something) */
        fine = load->answered(load->context, c->request.connection, c->code, body, r) && fine;
    if (fine) {
        r->answers++;
    } else {
        complain(r, c->code, body);
    }
    next_request(g, c, now);
}

static void take_body(struct engine_of_load *g, struct client *c, const char *bytes, size_t len) {
    if (g->load->piece && len > 0 && c->code == 200) {
        g->load->piece(g->load->context, c->request.connection, str_n(bytes, len), g->result);
        return;
    }
    size_t room = g->load->answer_room - c->body_len;
    if (len > room) len = room;
    if (len == 0) return;
    memcpy(c->body + c->body_len, bytes, len);
    c->body_len += len;
}

/* ---- answers ---- */

/* Reads the two headers that say how long the body is. */
static void read_head(struct client *c, const char *head, size_t len) {
    str rest = str_n(head, len);
    str line;
    c->code = len > 12 ? (head[9] - '0') * 100 + (head[10] - '0') * 10 + (head[11] - '0') : 0;
    c->left = 0;
    c->stage = STAGE_LENGTH;
    while (str_split(rest, '\n', &line, &rest)) {
        if (line.len < 16) continue;
        if ((line.ptr[0] | 0x20) == 'c' && strncasecmp(line.ptr, "content-length:", 15) == 0) {
            str value = str_trim(str_from(line, 15));
            int64_t n = 0;
            if (str_take_int(&value, &n)) c->left = (uint64_t)n;
        } else if ((line.ptr[0] | 0x20) == 't' &&
                   strncasecmp(line.ptr, "transfer-encoding:", 18) == 0) {
            c->stage = STAGE_CHUNK_SIZE;
        }
    }
    if (c->code == 204 || c->code == 304) c->left = 0;
}

/* Takes bytes of the head; returns how many. */
static size_t feed_head(struct client *c, const char *bytes, size_t len) {
    if (c->head_len == 0) { /* mostly it comes in one piece */
        const char *end = memmem(bytes, len, "\r\n\r\n", 4);
        if (end) {
            size_t n = (size_t)(end - bytes) + 4;
            read_head(c, bytes, n);
            return n;
        }
    }
    size_t n = 0;
    while (n < len) {
        if (c->head_len == HEAD_MAX) die("the head of an answer is too long", NULL);
        c->head[c->head_len++] = bytes[n++];
        if (c->head_len < 4 || memcmp(c->head + c->head_len - 4, "\r\n\r\n", 4) != 0) continue;
        read_head(c, c->head, c->head_len);
        c->head_len = 0;
        break;
    }
    return n;
}

/* A line of the framing of chunks; true when it is whole. */
static bool feed_line(struct client *c, const char *bytes, size_t len, size_t *used) {
    while (*used < len) {
        char byte = bytes[(*used)++];
        if (c->line_len < HEAD_MAX - 1) c->head[c->line_len++] = byte;
        if (byte != '\n') continue;
        c->head[c->line_len] = 0;
        return true;
    }
    return false;
}

static void chunk_line(struct client *c) {
    if (c->stage == STAGE_TRAILER) {
        if (c->line_len == 2) c->stage = STAGE_IDLE;
    } else {
        uint64_t size = strtoull(c->head, NULL, 16);
        c->stage = size == 0 ? STAGE_TRAILER : STAGE_CHUNK;
        c->left = size + 2; /* and its line end */
    }
    c->line_len = 0;
}

static size_t feed_chunk(struct engine_of_load *g, struct client *c, const char *bytes,
                         size_t len) {
    size_t n = len < c->left ? len : (size_t)c->left;
    size_t data = c->left > 2 ? (size_t)(c->left - 2) : 0;
    take_body(g, c, bytes, n < data ? n : data);
    c->left -= n;
    if (c->left == 0) c->stage = STAGE_CHUNK_SIZE;
    return n;
}

static void feed(struct engine_of_load *g, struct client *c, const char *bytes, size_t len) {
    size_t at = 0;
    do {
        if (c->stage == STAGE_IDLE) die("an answer that nobody asked for", NULL);
        size_t n = 0;
        bool whole = false;
        if (c->stage == STAGE_HEAD) {
            n = feed_head(c, bytes + at, len - at);
            whole = c->stage == STAGE_LENGTH && c->left == 0;
        } else if (c->stage == STAGE_LENGTH) {
            n = len - at < c->left ? len - at : (size_t)c->left;
            take_body(g, c, bytes + at, n);
            c->left -= n;
            whole = c->left == 0;
        } else if (c->stage == STAGE_CHUNK) {
            n = feed_chunk(g, c, bytes + at, len - at);
        } else if (feed_line(c, bytes + at, len - at, &n)) {
            chunk_line(c);
            whole = c->stage == STAGE_IDLE;
        }
        at += n;
        if (whole) whole_answer(g, c);
    } while (at < len);
}

/* Edge-triggered: reads until the socket has no more. A short read says so, too. */
static void pull(struct engine_of_load *g, struct client *c) {
    for (;;) {
        ssize_t n = recv(c->fd, g->read, READ_BYTES, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            if (c->stage != STAGE_IDLE) die("the server ended a connection", NULL);
            return;
        }
        feed(g, c, g->read, (size_t)n);
        if (n < READ_BYTES) return;
    }
}

/* ---- the process ---- */

static void open_all(struct engine_of_load *g) {
    const struct load *load = g->load;
    g->epoll = epoll_create1(EPOLL_CLOEXEC);
    g->read = mem_alloc(READ_BYTES);
    g->clients = mem_alloc(load->connections * sizeof(*g->clients));
    if (g->epoll < 0 || !g->read || !g->clients) die("out of memory", NULL);
    for (size_t i = 0; i < load->connections; i++) {
        struct client *c = &g->clients[i];
        c->fd = load_connect(load->port, false);
        c->request = (struct load_request){
            .connection = i, .bytes = mem_alloc(load->request_room), .room = load->request_room};
        if (load->answer_room > 0) c->body = mem_alloc(load->answer_room);
        if (!c->request.bytes || (load->answer_room > 0 && !c->body)) die("out of memory", NULL);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        if (epoll_ctl(g->epoll, EPOLL_CTL_ADD, c->fd, &event) != 0) die("epoll_ctl", NULL);
    }
}

static void run(struct engine_of_load *g) {
    struct epoll_event events[EVENTS_MAX];
    int64_t start = clock_mono_ns();
    double cpu = cpu_seconds_self();
    g->end_ns = start + (int64_t)(g->load->seconds * 1e9);
    for (size_t i = 0; i < g->load->connections; i++)
        next_request(g, &g->clients[i], start);
    while (g->busy > 0) {
        int n = epoll_wait(g->epoll, events, EVENTS_MAX, 1000);
        if (n < 0 && errno != EINTR) die("epoll_wait", NULL);
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            if (c->sending && (events[i].events & EPOLLOUT)) push(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) pull(g, c);
        }
        if (n <= 0 && clock_mono_ns() > g->end_ns + GRACE_SECONDS * INT64_C(1000000000))
            die("an answer did not come", NULL);
    }
    g->result->seconds = (double)(clock_mono_ns() - start) / 1e9;
    g->result->cpu_seconds = cpu_seconds_self() - cpu;
}

void load_start(const struct load *load, struct load_run *out) {
    int ends[2];
    fflush(stdout);
    if (pipe(ends) != 0) die("pipe", NULL);
    out->pipe = ends[0];
    out->pid = fork();
    if (out->pid < 0) die("fork", NULL);
    if (out->pid > 0) {
        close(ends[1]);
        return;
    }
    close(ends[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct load_result *result = mem_alloc(sizeof(*result));
    if (!result) die("out of memory", NULL);
    struct engine_of_load g = {.load = load, .result = result};
    if (load->begin) load->begin(load->context);
    open_all(&g);
    run(&g);
    pipe_put(ends[1], result, sizeof(*result));
    _exit(0); /* the kernel takes everything back */
}

void load_finish(struct load_run *run, const char *what, struct load_result *result) {
    bool there = pipe_get(run->pipe, result, sizeof(*result));
    int wait = 0;
    close(run->pipe);
    waitpid(run->pid, &wait, 0);
    if (!there) die(what, NULL);
    if (result->bad == 0) return;
    fprintf(stderr, "cairn-bench: %s: %lld of %lld answers were bad, the first: %s\n", what,
            (long long)result->bad, (long long)result->bad + result->answers, result->complaint);
    exit(1);
}

void load_once(const struct load *load, const char *what, struct load_result *result) {
    struct load_run run;
    load_start(load, &run);
    load_finish(&run, what, result);
}
