/* api/pool.c: reader threads.
 *
 * One mutex guards the queue of jobs to do and the list of jobs that are done; nothing else is held
 * while it is. A thread hands its finished job back and wakes the loop through the async handle,
 * which keeps the loop alive only while jobs are under way. */
#include "api/pool.h"

#include <pthread.h>

#include "base/arena.h"
#include "base/time.h"

struct jobs { /* first in, first out */
    struct pool_job *first, *last;
};

struct pool {
    uv_async_t wake; /* first: the handle is its pool */
    char *url;
    pthread_t *threads;
    size_t thread_count; /* started */
    size_t waiting;      /* submitted, not yet answered; the loop's */
    struct jobs ready;   /* finished, about to be answered; the loop's */
    bool closed;         /* the loop's */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work;  /* there is something to do, or to stop for */
    struct jobs queued, finished;
    size_t queue_len, queue_max;
    bool stop;

    struct metric *depth, *total, *seconds;
};

static void push(struct jobs *jobs, struct pool_job *job) {
    job->next = NULL;
    *(jobs->last ? &jobs->last->next : &jobs->first) = job;
    jobs->last = job;
}

static struct pool_job *pop(struct jobs *jobs) {
    struct pool_job *job = jobs->first;
    if (!job) return NULL;
    jobs->first = job->next;
    if (!jobs->first) jobs->last = NULL;
    job->next = NULL;
    return job;
}

/* ---- the threads ---- */

/* The next job, or NULL when the pool stops. */
static struct pool_job *next_job(struct pool *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->stop && !p->queued.first)
        pthread_cond_wait(&p->work, &p->lock);
    struct pool_job *job = p->stop ? NULL : pop(&p->queued);
    if (job) p->queue_len--;
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void finish(struct pool *p, struct pool_job *job) {
    pthread_mutex_lock(&p->lock);
    push(&p->finished, job);
    pthread_mutex_unlock(&p->lock);
    uv_async_send(&p->wake);
}

static status carry_out(struct pool *p, struct ledger **reader, struct pool_job *job) {
    status st = ST_OK;
    if (!*reader) st = ledger_open_reader(str_c(p->url), reader, &job->err);
    if (st != ST_OK) {
        *reader = NULL;
        return st;
    }
    st = job->work(job, *reader, &job->err);
    if (st == ST_RETRY || st == ST_CORRUPT) { /* the next job shall not suffer from it */
        ledger_close(*reader);
        *reader = NULL;
    }
    return st;
}

static void *run(void *arg) {
    struct pool *p = arg;
    struct ledger *reader = NULL;
    struct pool_job *job;
    while ((job = next_job(p)) != NULL) {
        job->code = carry_out(p, &reader, job);
        metric_observe(p->seconds, (double)(clock_mono_ns() - job->since_ns) / 1e9);
        metric_add(p->total, 1);
        finish(p, job);
    }
    ledger_close(reader);
    return NULL;
}

/* ---- the loop ---- */

static void answer(struct pool *p, struct pool_job *job) {
    ASSERT(p->waiting > 0);
    p->waiting--;
    metric_set(p->depth, (int64_t)p->waiting);
    if (p->waiting == 0 && !p->closed) uv_unref((uv_handle_t *)&p->wake);
    job->done(job); /* may free the job, and submit others */
}

static void take_finished(struct pool *p) {
    pthread_mutex_lock(&p->lock);
    struct jobs taken = p->finished;
    p->finished = (struct jobs){0};
    pthread_mutex_unlock(&p->lock);
    struct pool_job *job;
    while ((job = pop(&taken)) != NULL)
        push(&p->ready, job);
}

/* (`done` may close the pool, which answers the rest; its memory goes later.) */
static void on_wake(uv_async_t *wake) {
    struct pool *p = (struct pool *)wake;
    struct pool_job *job;
    take_finished(p);
    while ((job = pop(&p->ready)) != NULL)
        answer(p, job);
}

size_t pool_waiting(const struct pool *p) { return p->waiting; }

status pool_submit(struct pool *p, struct pool_job *job, struct error *err) {
    ASSERT(job->work);
    ASSERT(job->done);
    if (p->closed) return error_set(err, ST_RETRY, "the readers are closing");
    job->code = ST_OK;
    job->err = (struct error){0};
    job->since_ns = clock_mono_ns();
    pthread_mutex_lock(&p->lock);
    bool full = p->queue_len >= p->queue_max;
    if (!full) {
        push(&p->queued, job);
        p->queue_len++;
        pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    if (full) {
        return error_at(err, REASON_QUEUE_FULL, "",
                        "%zu queries are waiting already: try again later", p->queue_max);
    }
    if (p->waiting++ == 0) uv_ref((uv_handle_t *)&p->wake);
    metric_set(p->depth, (int64_t)p->waiting);
    return ST_OK;
}

/* ---- opening and closing ---- */

static void register_metrics(struct pool *p, struct metrics *m) {
    static const double bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                    0.1,    0.25,  0.5,    1,     2.5,  5,     10};
    if (!m) return;
    p->depth = metrics_gauge(m, "cairn_read_queue", "Queries waiting or under way.", "");
    p->total = metrics_counter(m, "cairn_reads_total", "Queries carried out, well or not.", "");
    p->seconds = metrics_histogram(m, "cairn_read_seconds", "Time of a query, waiting included.",
                                   bounds, COUNT_OF(bounds));
}

static void release(struct pool *p) {
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    mem_free(p->threads);
    mem_free(p->url);
    mem_free(p);
}

static void on_closed(uv_handle_t *handle) { release((struct pool *)handle); }

static status start_threads(struct pool *p, size_t threads, struct error *err) {
    while (p->thread_count < threads) {
        if (pthread_create(&p->threads[p->thread_count], NULL, run, p) != 0)
            return error_set(err, ST_RETRY, "could not start a reader thread");
        p->thread_count++;
    }
    return ST_OK;
}

status pool_open(uv_loop_t *loop, str url, size_t threads, size_t queue_max,
                 struct metrics *metrics, struct pool **out, struct error *err) {
    ASSERT(threads > 0);
    ASSERT(queue_max > 0);
    struct pool *p = mem_alloc(sizeof(*p));
    if (!p) return error_set(err, ST_RETRY, "readers: out of memory");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    p->queue_max = queue_max;
    p->url = mem_alloc(url.len + 1);
    p->threads = mem_alloc(threads * sizeof(*p->threads));
    if (!p->url || !p->threads || uv_async_init(loop, &p->wake, on_wake) != 0) {
        release(p);
        return error_set(err, ST_RETRY, "readers: out of memory or file descriptors");
    }
    memcpy(p->url, url.ptr, url.len);
    uv_unref((uv_handle_t *)&p->wake);
    register_metrics(p, metrics);
    status st = start_threads(p, threads, err);
    if (st != ST_OK) {
        pool_close(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

void pool_close(struct pool *p) {
    if (!p) return;
    ASSERT(!p->closed);
    p->closed = true;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    struct jobs untouched = p->queued;
    p->queued = (struct jobs){0};
    p->queue_len = 0;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->thread_count; i++)
        pthread_join(p->threads[i], NULL);
    struct pool_job *job;
    take_finished(p);
    while ((job = pop(&p->ready)) != NULL)
        answer(p, job);
    while ((job = pop(&untouched)) != NULL) {
        job->code = error_set(&job->err, ST_RETRY, "the readers are closing");
        answer(p, job);
    }
    uv_close((uv_handle_t *)&p->wake, on_closed);
}
