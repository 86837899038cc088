/* ledger/readers.c: reader threads.
 *
 * One mutex guards the queues of jobs to do and the list of jobs that are finished; nothing else is
 * held while it is. A thread hands its finished job back and wakes the loop if the list was empty:
 * the delivery takes all of it. What is about to be answered stands in `ready`, which is the
 * readers' own, so that a `done` may submit, deliver and halt. */
#include "ledger/readers.h"

#include <pthread.h>

#include "base/arena.h"
#include "base/time.h"

struct jobs { /* first in, first out */
    struct reader_job *first, *last;
};

struct reader_thread {
    struct readers *readers;
    pthread_t id;
    bool only_own; /* does nothing for others */
};

struct readers {
    struct readers_options o;
    char *url;
    struct reader_thread *threads;
    size_t thread_count; /* started */
    size_t under_way;    /* submitted, not yet answered; the loop's */
    struct jobs ready;   /* finished, about to be answered; the loop's */
    bool halted;         /* the loop's */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work;  /* there is something to do, or to stop for */
    struct jobs own, asked, finished;
    size_t asked_count;
    bool stop;

    struct metric *depth, *total, *seconds;
};

static void push(struct jobs *jobs, struct reader_job *job) {
    job->next = NULL;
    *(jobs->last ? &jobs->last->next : &jobs->first) = job;
    jobs->last = job;
}

static struct reader_job *pop(struct jobs *jobs) {
    struct reader_job *job = jobs->first;
    if (!job) return NULL;
    jobs->first = job->next;
    if (!jobs->first) jobs->last = NULL;
    job->next = NULL;
    return job;
}

static status closing(struct error *err) {
    return error_at(err, REASON_CLOSING, "", "the process is ending");
}

/* ---- the threads ---- */

static struct reader_job *take_job(struct readers *r, bool only_own) {
    struct reader_job *job = pop(&r->own);
    if (job || only_own) return job;
    job = pop(&r->asked);
    if (job) r->asked_count--;
    return job;
}

/* The next job, or NULL when the readers stop. */
static struct reader_job *next_job(struct readers *r, bool only_own) {
    struct reader_job *job = NULL;
    pthread_mutex_lock(&r->lock);
    while (!r->stop && !(job = take_job(r, only_own)))
        pthread_cond_wait(&r->work, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return job;
}

static void finish(struct readers *r, struct reader_job *job) {
    pthread_mutex_lock(&r->lock);
    bool first = !r->finished.first;
    push(&r->finished, job);
    pthread_mutex_unlock(&r->lock);
    if (first) r->o.wake(r->o.context);
}

static status carry_out(struct readers *r, struct ledger **reader, struct reader_job *job) {
    status st = ST_OK;
    if (!*reader) st = ledger_open_reader(str_c(r->url), reader, &job->err);
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
    struct reader_thread *t = arg;
    struct readers *r = t->readers;
    struct ledger *reader = NULL;
    struct reader_job *job;
    while ((job = next_job(r, t->only_own)) != NULL) {
        job->code = carry_out(r, &reader, job);
        metric_observe(r->seconds, (double)(clock_mono_ns() - job->since_ns) / 1e9);
        metric_add(r->total, 1);
        finish(r, job);
    }
    ledger_close(reader);
    return NULL;
}

/* ---- the loop ---- */

static void answer(struct readers *r, struct reader_job *job) {
    ASSERT(r->under_way > 0);
    r->under_way--;
    metric_set(r->depth, (int64_t)r->under_way);
    job->done(job); /* may free the job, and submit others */
}

void readers_deliver(struct readers *r) {
    pthread_mutex_lock(&r->lock);
    struct jobs taken = r->finished;
    r->finished = (struct jobs){0};
    pthread_mutex_unlock(&r->lock);
    struct reader_job *job;
    while ((job = pop(&taken)) != NULL)
        push(&r->ready, job);
    while ((job = pop(&r->ready)) != NULL)
        answer(r, job);
}

size_t readers_under_way(const struct readers *r) { return r->under_way; }

static void take(struct readers *r, struct reader_job *job) {
    ASSERT(job->work);
    ASSERT(job->done);
    job->code = ST_OK;
    job->err = (struct error){0};
    job->since_ns = clock_mono_ns();
    r->under_way++;
    metric_set(r->depth, (int64_t)r->under_way);
}

void readers_submit(struct readers *r, struct reader_job *job) {
    take(r, job);
    if (r->halted) {
        job->code = closing(&job->err);
        finish(r, job);
        return;
    }
    pthread_mutex_lock(&r->lock);
    push(&r->own, job);
    pthread_cond_broadcast(&r->work); /* a signal might reach only one that is not to take it */
    pthread_mutex_unlock(&r->lock);
}

status readers_try(struct readers *r, struct reader_job *job, struct error *err) {
    if (r->halted) return closing(err);
    take(r, job);
    pthread_mutex_lock(&r->lock);
    bool full = r->asked_count >= r->o.queue_max;
    if (!full) {
        push(&r->asked, job);
        r->asked_count++;
        pthread_cond_broadcast(&r->work);
    }
    pthread_mutex_unlock(&r->lock);
    if (!full) return ST_OK;
    r->under_way--;
    metric_set(r->depth, (int64_t)r->under_way);
    return error_at(err, REASON_QUEUE_FULL, "", "%zu queries are waiting already: try again later",
                    r->o.queue_max);
}

/* ---- opening and closing ---- */

static void register_metrics(struct readers *r, struct metrics *m) {
    static const double bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                    0.1,    0.25,  0.5,    1,     2.5,  5,     10};
    if (!m) return;
    r->depth = metrics_gauge(m, "cairn_read_queue", "Queries waiting or under way.", "");
    r->total = metrics_counter(m, "cairn_reads_total", "Queries carried out, well or not.", "");
    r->seconds = metrics_histogram(m, "cairn_read_seconds", "Time of a query, waiting included.",
                                   bounds, COUNT_OF(bounds));
}

static status start_threads(struct readers *r, size_t threads, struct error *err) {
    while (r->thread_count < threads) {
        ASSERT(r->threads);
        struct reader_thread *t = &r->threads[r->thread_count];
        *t = (struct reader_thread){.readers = r, .only_own = r->thread_count == 0};
        if (pthread_create(&t->id, NULL, run, t) != 0)
            return error_set(err, ST_RETRY, "could not start a reader thread");
        r->thread_count++;
    }
    return ST_OK;
}

status readers_open(const struct readers_options *options, struct readers **out,
                    struct error *err) {
    ASSERT(options->threads > 0 && options->queue_max > 0);
    ASSERT(options->wake);
    size_t threads = options->threads + 1;
    struct readers *r = mem_alloc(sizeof(*r));
    if (!r) return error_set(err, ST_RETRY, "readers: out of memory");
    r->o = *options;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    r->url = mem_alloc(options->url.len + 1);
    r->threads = mem_alloc(threads * sizeof(*r->threads));
    register_metrics(r, options->metrics);
    status st = ST_OK;
    if (!r->url || !r->threads)
        st = error_set(err, ST_RETRY, "readers: out of memory");
    else
        memcpy(r->url, options->url.ptr, options->url.len);
    if (st == ST_OK) st = start_threads(r, threads, err);
    if (st != ST_OK) {
        readers_close(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

static void refuse_all(struct readers *r, struct jobs *jobs) {
    struct reader_job *job;
    while ((job = pop(jobs)) != NULL) {
        job->code = closing(&job->err);
        push(&r->finished, job);
    }
}

void readers_halt(struct readers *r) {
    if (!r || r->halted) return;
    r->halted = true;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (size_t i = 0; i < r->thread_count; i++)
        pthread_join(r->threads[i].id, NULL);
    refuse_all(r, &r->own); /* no other thread is left */
    refuse_all(r, &r->asked);
    readers_deliver(r);
}

void readers_close(struct readers *r) {
    if (!r) return;
    readers_halt(r);
    while (r->under_way > 0) { /* an answer may submit, and is refused */
        ASSERT(r->finished.first);
        readers_deliver(r);
    }
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    mem_free(r->threads);
    mem_free(r->url);
    mem_free(r);
}
