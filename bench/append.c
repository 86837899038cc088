/* Appending: through the ledger thread, everything on: dedup, chain, both sequences, projections,
 * indexes. */
#include "bench.h"

#include <math.h>
#include <pthread.h>

enum { GROUP = 256, IN_FLIGHT = 16, SLICES = 5, PRODUCERS = 64, EVENTS_A_SECOND_MAX = 400000 };

/* ---- groups of 256 ---- */

/* Events made before the clock starts, as those of the limit are: making them is not the ledger's
 * work. A ring: what a slice left over is the next one's. */
struct stock {
    struct event *events;
    char (*ids)[UUID_TEXT_LEN];
    size_t size, made, used;
};

static void stock_open(struct stock *s, size_t size) {
    *s = (struct stock){.size = size};
    s->events = mem_alloc(size * sizeof(*s->events));
    s->ids = mem_alloc(size * sizeof(*s->ids));
    if (!s->events || !s->ids) die("out of memory", NULL);
}

static void stock_fill(struct stock *s, struct workload *load) {
    for (; s->made - s->used < s->size; s->made++) {
        size_t i = s->made % s->size;
        workload_next(load, &s->events[i], s->ids[i]);
    }
}

static void stock_close(struct stock *s) {
    mem_free(s->events);
    mem_free(s->ids);
}

struct batch {
    struct writer_call call;
    struct append_item items[GROUP];
    struct append_result results[GROUP];
    struct arena arena;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool busy;
};

static void batch_done(struct writer_call *call) {
    struct batch *b = call->context;
    pthread_mutex_lock(&b->lock);
    b->busy = false;
    pthread_cond_signal(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static void batch_wait(struct batch *b) {
    pthread_mutex_lock(&b->lock);
    while (b->busy)
        pthread_cond_wait(&b->cond, &b->lock);
    pthread_mutex_unlock(&b->lock);
    if (b->call.code != ST_OK) die("append", &b->call.err);
    for (size_t i = 0; i < b->call.request.count; i++) {
        if (b->results[i].code != ST_OK) die("refused", b->results[i].err);
    }
}

static void batch_send(struct writer *w, struct batch *b, struct stock *stock) {
    struct error err = {0};
    arena_reset(&b->arena);
    for (size_t i = 0; i < GROUP; i++)
        b->items[i] = (struct append_item){.event = stock->events[stock->used++ % stock->size]};
    b->call = (struct writer_call){
        .request = {.items = b->items, .count = GROUP, .results = b->results, .arena = &b->arena},
        .done = batch_done,
        .context = b};
    b->busy = true;
    check(writer_submit(w, &b->call, &err), "submit", &err);
}

static struct batch *batches_make(size_t n) {
    struct batch *b = mem_alloc(n * sizeof(*b));
    if (!b) die("out of memory", NULL);
    for (size_t i = 0; i < n; i++) {
        arena_init(&b[i].arena, 4096, (size_t)16 * 1024 * 1024);
        pthread_mutex_init(&b[i].lock, NULL);
        pthread_cond_init(&b[i].cond, NULL);
    }
    return b;
}

static void batches_free(struct batch *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        arena_release(&b[i].arena);
        pthread_cond_destroy(&b[i].cond);
        pthread_mutex_destroy(&b[i].lock);
    }
    mem_free(b);
}

/* Submits the next group while the one before it commits; counts acknowledged events. */
static double group_rate(struct writer *w, struct batch *b, size_t in_flight, struct stock *stock,
                         double seconds) {
    int64_t acked = 0;
    size_t turn = 0;
    size_t flying = 0;
    double start = now_seconds();
    while (now_seconds() - start < seconds && stock->made - stock->used >= GROUP) {
        struct batch *next = &b[turn++ % in_flight];
        if (flying == in_flight) {
            batch_wait(next);
            acked += GROUP;
            flying--;
        }
        batch_send(w, next, stock);
        flying++;
    }
    for (; flying > 0; flying--) {
        batch_wait(&b[turn++ % in_flight]);
        acked += GROUP;
    }
    return (double)acked / (now_seconds() - start);
}

/* The thread commits as one what it finds waiting. With four groups under way it finds up to three;
 * with two it finds one, and every commit has exactly 256 events, as that of the limit has; sixteen
 * show what larger commits bring. */
void bench_append_group(const struct bench_options *o) {
    static const struct {
        size_t in_flight;
        const char *sqlite, *postgres;
    } cases[] = {{4, "sqlite-256", "postgres-256"},
                 {2, "sqlite-256-a-commit", "postgres-256-a-commit"},
                 {IN_FLIGHT, "sqlite-256-sixteen", "postgres-256-sixteen"}};
    double slice = o->seconds / (2 * SLICES);
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        struct writer *w = bench_writer(bench_url(o, cases[k].sqlite));
        struct batch *b = batches_make(IN_FLIGHT);
        struct workload load;
        double value = 0;
        double limit = 0;
        struct stock stock;
        stock_open(&stock, (size_t)(slice * EVENTS_A_SECOND_MAX) + GROUP);
        workload_open(&load, ACTIVE_RUNS, 42);
        for (int i = -1; i < SLICES; i++) { /* the first warms */
            stock_fill(&stock, &load);
            double raw = i < 0 ? 0 : raw_group(o, slice, GROUP);
            double rate = group_rate(w, b, cases[k].in_flight, &stock, slice);
            if (i < 0) continue;
            limit += raw / SLICES;
            value += rate / SLICES;
        }
        writer_close(w);
        batches_free(b, IN_FLIGHT);
        stock_close(&stock);
        figure("append-group", o->db.ptr ? cases[k].postgres : cases[k].sqlite, value, "events/s",
               limit, value / limit);
        workload_close(&load);
    }
}

/* ---- one event at a time: one producer, or 64 ---- */

enum { LATENCIES_MAX = 4000000 };
struct producer {
    struct writer *w;
    struct workload load; /* its share of the active runs, which go on from slice to slice */
    struct batch *batch;
    pthread_t thread;
    double until;
    int64_t count;
    float *latencies; /* seconds */
};

static void *produce(void *arg) {
    struct producer *p = arg;
    struct batch *b = p->batch;
    char run_id[UUID_TEXT_LEN];
    while (now_seconds() < p->until) {
        struct error err = {0};
        arena_reset(&b->arena);
        b->items[0] = (struct append_item){0};
        workload_next(&p->load, &b->items[0].event, run_id);
        b->call = (struct writer_call){
            .request = {.items = b->items, .count = 1, .results = b->results, .arena = &b->arena}};
        double start = now_seconds();
        check(writer_append(p->w, &b->call, 10000, &err), "append", &err);
        if (b->results[0].code != ST_OK) die("refused", b->results[0].err);
        if (p->count < LATENCIES_MAX / PRODUCERS)
            p->latencies[p->count] = (float)(now_seconds() - start);
        p->count++;
    }
    return NULL;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

static void producers_make(struct producer *p, size_t n, struct writer *w) {
    for (size_t i = 0; i < n; i++) {
        p[i] = (struct producer){.w = w, .batch = batches_make(1)};
        workload_open(&p[i].load, (ACTIVE_RUNS + n - 1) / n, 1000 + i);
        p[i].latencies = mem_alloc(LATENCIES_MAX / PRODUCERS * sizeof(float));
        if (!p[i].latencies) die("out of memory", NULL);
    }
}

static void producers_free(struct producer *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        workload_close(&p[i].load);
        mem_free(p[i].latencies);
        batches_free(p[i].batch, 1);
    }
}

/* Rate of `n` producers over the slice; their latencies are added to `all`. */
static double single_rate(struct producer *p, size_t n, double seconds, float *all, size_t *count) {
    double start = now_seconds();
    int64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        p[i].until = start + seconds;
        p[i].count = 0;
        if (pthread_create(&p[i].thread, NULL, produce, &p[i]) != 0) die("thread", NULL);
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(p[i].thread, NULL);
        total += p[i].count;
        for (int64_t k = 0;
             k < p[i].count && k < LATENCIES_MAX / PRODUCERS && *count < LATENCIES_MAX; k++)
            all[(*count)++] = p[i].latencies[k];
    }
    return (double)total / (now_seconds() - start);
}

static void one_by_one(const struct bench_options *o, const char *bench, size_t producers,
                       double (*raw)(const struct bench_options *, double)) {
    struct producer p[PRODUCERS];
    struct writer *w = bench_writer(bench_url(o, bench));
    float *all = mem_alloc(LATENCIES_MAX * sizeof(*all));
    size_t count = 0;
    size_t ignored = 0;
    if (!all) die("out of memory", NULL);
    double slice = o->seconds / (2 * SLICES);
    double value = 0;
    double limit = 0;
    producers_make(p, producers, w);
    single_rate(p, producers, slice, all, &ignored); /* warm */
    for (int i = 0; i < SLICES; i++) {
        limit += raw(o, slice) / SLICES;
        value += single_rate(p, producers, slice, all, &count) / SLICES;
    }
    writer_close(w);
    producers_free(p, producers);
    const char *db = o->db.ptr ? "postgres" : "sqlite";
    figure(bench, db, value, "events/s", limit, value / limit);
    qsort(all, count, sizeof(*all), by_value);
    char name[64];
    snprintf(name, sizeof(name), "%s-ack-p50", db);
    note(bench, name, (double)all[count / 2], "seconds");
    snprintf(name, sizeof(name), "%s-ack-p99", db);
    note(bench, name, (double)all[count * 99 / 100], "seconds");
    mem_free(all);
}

void bench_append_concurrent(const struct bench_options *o) {
    one_by_one(o, "append-concurrent", PRODUCERS, raw_fdatasync);
}
void bench_append_single(const struct bench_options *o) {
    one_by_one(o, "append-single", 1, raw_single);
}
