/* bench/http_load.h: a small HTTP/1.1 load generator, in a process of its own.
 *
 * Each connection sends one request, waits for the whole answer, and sends the next. It shares two
 * cores with the server that it measures, so it does as little as it can: requests are written in
 * place by a callback into memory of the connection, answers are parsed in one shared buffer, and
 * nothing is allocated once it runs. A latency is from the send to the last byte of the answer. */
#pragma once

#include <sys/types.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/str.h"

/* Log-linear, 1.6 % wide: 64 buckets for each power of two nanoseconds. */
enum { HISTOGRAM_OCTAVES = 40, HISTOGRAM_SUB = 64 };
struct histogram {
    uint64_t counts[HISTOGRAM_OCTAVES * HISTOGRAM_SUB];
    uint64_t total;
    int64_t max_ns;
};
void histogram_add(struct histogram *h, int64_t ns);
void histogram_merge(struct histogram *h, const struct histogram *other);
double histogram_ms(const struct histogram *h, double part); /* 0.99: the p99; 1: the largest */

struct load_result {
    struct histogram latency;
    int64_t answers;    /* with a status of the class 2xx, and whatever `answered` let pass */
    int64_t bad;        /* the others; the text of the first is in `complaint` */
    int64_t counted;    /* the callbacks' own, */
    double last;        /* and this */
    double seconds;     /* from the first request to the last answer */
    double cpu_seconds; /* of this process */
    char complaint[512];
};

struct load_request {
    size_t connection; /* 0, 1, 2, ... */
    char *bytes;       /* `room` bytes that stay from one request of the connection to the next */
    size_t room, len;
};

struct load {
    int port; /* on 127.0.0.1 */
    size_t connections;
    double seconds;
    int64_t requests_max; /* 0: as many as there is time for */
    size_t timed;         /* the latencies of the first so many connections count; 0: of all */
    size_t request_room;  /* bytes for a request */
    size_t answer_room;   /* of a body that `answered` wants to see; 0: it wants none */
    void *context;
    void (*begin)(void *context); /* first thing in the new process; may be NULL */
    /* Writes the connection's next request; false: this connection has no more to say. */
    bool (*make)(void *context, struct load_request *request);
    /* A piece of a body, as it comes, for answers that have no end yet: the latencies are then
     * left to it. NULL: see answer_room. */
    void (*piece)(void *context, size_t connection, str bytes, struct load_result *result);
    /* A whole answer came. false: it was bad after all. May be NULL. */
    bool (*answered)(void *context, size_t connection, int code, str body,
                     struct load_result *result);
};

/* Starts the process. Borrows *load for the call only (the process has a copy). */
struct load_run {
    pid_t pid;
    int pipe;
};
void load_start(const struct load *load, struct load_run *out);
/* Waits for its result; ends the program if something was bad. */
void load_finish(struct load_run *run, const char *what, struct load_result *result);
/* Both. */
void load_once(const struct load *load, const char *what, struct load_result *result);

/* ---- for the benches that speak in their own way ---- */

int load_connect(int port, bool blocking); /* with TCP_NODELAY; ends the program if it cannot */
/* Sends all of `value` through a pipe, or takes it from there. */
void pipe_put(int fd, const void *value, size_t len);
bool pipe_get(int fd, void *value, size_t len);
double cpu_seconds_self(void);
double cpu_seconds_of(pid_t pid); /* user and system */
