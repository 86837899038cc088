#include "api/pool.h"

#include <pthread.h>
#include <unistd.h>

#include "base/arena.h"
#include "test.h"

enum { JOBS = 200 };

struct bench { /* a loop, a ledger, and what the jobs did */
    uv_loop_t loop;
    struct pool *pool;
    struct metrics *metrics;
    int done;
    int order[JOBS + 8];
};

struct job {
    struct pool_job job; /* first */
    struct bench *bench;
    int number;
    status answer;         /* what `work` shall return */
    struct ledger *reader; /* what it was given */
    pthread_mutex_t *gate; /* held by the test while the job shall not go on; or NULL */
    int64_t runs;
    bool again, closes;
};

static void open_bench(struct bench *b, str url, size_t threads, size_t queue_max) {
    struct error err = {0};
    memset(b, 0, sizeof(*b));
    CHECK(uv_loop_init(&b->loop) == 0);
    CHECK(metrics_open(&b->metrics, &err) == ST_OK);
    CHECK(pool_open(&b->loop, url, threads, queue_max, b->metrics, &b->pool, &err) == ST_OK, "%s",
          err.msg);
}

static void close_bench(struct bench *b) {
    pool_close(b->pool);
    CHECK(uv_run(&b->loop, UV_RUN_DEFAULT) == 0);
    CHECK(uv_loop_close(&b->loop) == 0);
    metrics_close(b->metrics);
}

static void make_ledger(str url) {
    struct ledger *ledger = NULL;
    struct error err = {0};
    CHECK(ledger_open(url, NULL, &ledger, &err) == ST_OK, "%s", err.msg);
    ledger_close(ledger);
}

static status work(struct pool_job *base, struct ledger *reader, struct error *err) {
    struct job *j = (struct job *)base;
    struct ledger_stats stats;
    if (j->gate) {
        pthread_mutex_lock(j->gate);
        pthread_mutex_unlock(j->gate);
    }
    j->reader = reader;
    status st = ledger_stats(reader, &stats, err);
    if (st != ST_OK) return st;
    j->runs = stats.runs;
    return j->answer == ST_OK ? ST_OK : error_set(err, j->answer, "as the test wants it");
}

static void on_done(struct pool_job *base) {
    struct job *j = (struct job *)base;
    struct error err = {0};
    j->bench->order[j->bench->done++] = j->number;
    if (j->again) {
        j->again = false;
        CHECK(pool_submit(j->bench->pool, base, &err) == ST_OK, "%s", err.msg);
    }
    if (j->closes) {
        pool_close(j->bench->pool);
        CHECK(pool_submit(j->bench->pool, base, &err) == ST_RETRY);
    }
}

static struct job job_of(struct bench *b, int number) {
    return (struct job){
        .job = {.work = work, .done = on_done}, .bench = b, .number = number, .runs = -1};
}

static void submit(struct bench *b, struct job *j) {
    struct error err = {0};
    CHECK(pool_submit(b->pool, &j->job, &err) == ST_OK, "%s", err.msg);
}

/* The loop ends by itself when the last job is answered: the handle keeps it alive just so long. */
TEST_DB(pool_answers_every_job_once_and_lets_the_loop_end) {
    struct bench b;
    struct job jobs[JOBS];
    make_ledger(url);
    open_bench(&b, url, 4, JOBS);
    CHECK(uv_run(&b.loop, UV_RUN_DEFAULT) == 0);
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = job_of(&b, i);
        jobs[i].again = i == 0;
        submit(&b, &jobs[i]);
    }
    CHECK(pool_waiting(b.pool) == JOBS);
    CHECK(uv_run(&b.loop, UV_RUN_DEFAULT) == 0);
    CHECK(b.done == JOBS + 1 && pool_waiting(b.pool) == 0);
    bool seen[JOBS] = {false};
    for (int i = 0; i < b.done; i++) {
        CHECK(!seen[b.order[i]] || b.order[i] == 0);
        seen[b.order[i]] = true;
    }
    for (int i = 0; i < JOBS; i++)
        CHECK(jobs[i].job.code == ST_OK && jobs[i].runs == 0, "%s", jobs[i].job.err.msg);
    struct buf text;
    buf_init(&text, 65536);
    metrics_write(b.metrics, &text);
    CHECK(memmem(text.ptr, text.len, "cairn_reads_total 201\n", 22));
    CHECK(memmem(text.ptr, text.len, "cairn_read_queue 0\n", 19));
    CHECK(memmem(text.ptr, text.len, "cairn_read_seconds_count 201\n", 29));
    buf_release(&text);
    close_bench(&b);
}

TEST(pool_refuses_what_its_queue_cannot_hold_and_takes_it_later) {
    struct bench b;
    struct job jobs[4];
    struct error err = {0};
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    str url = test_db_url("sqlite");
    make_ledger(url);
    open_bench(&b, url, 1, 2);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < 4; i++)
        jobs[i] = job_of(&b, i);
    jobs[0].gate = &gate;
    submit(&b, &jobs[0]);
    while (pool_submit(b.pool, &jobs[1].job, &err) == ST_LIMIT)
        usleep(100);
    /* The thread is busy with the first one as soon as two others fit. */
    while (pool_submit(b.pool, &jobs[2].job, &err) == ST_LIMIT)
        usleep(100);
    CHECK(pool_submit(b.pool, &jobs[3].job, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_QUEUE_FULL);
    pthread_mutex_unlock(&gate);
    CHECK(uv_run(&b.loop, UV_RUN_DEFAULT) == 0 && b.done == 3);
    submit(&b, &jobs[3]);
    CHECK(uv_run(&b.loop, UV_RUN_DEFAULT) == 0 && b.done == 4);
    for (int i = 0; i < 4; i++)
        CHECK(b.order[i] == i);
    close_bench(&b);
}

/* A connection that failed is never used again, one that is well is kept; a ledger that is not
 * there is told, and found when it comes. */
TEST_DB(pool_makes_a_failed_connection_anew) {
    static const status bad[] = {ST_RETRY, ST_CORRUPT};
    struct bench b;
    open_bench(&b, url, 1, 8);
    struct job j = job_of(&b, 0);
    submit(&b, &j);
    CHECK(uv_run(&b.loop, UV_RUN_DEFAULT) == 0);
    CHECK(j.job.code != ST_OK && j.job.err.msg[0] != '\0' && j.reader == NULL);
    make_ledger(url);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct job first = job_of(&b, 1);
        struct job kept = job_of(&b, 2);
        struct job fails = job_of(&b, 3);
        struct job next = job_of(&b, 4);
        kept.answer = ST_NOT_FOUND;
        fails.answer = bad[i];
        submit(&b, &first);
        submit(&b, &kept);
        submit(&b, &fails);
        submit(&b, &next);
        CHECK(uv_run(&b.loop, UV_RUN_DEFAULT) == 0);
        CHECK(first.job.code == ST_OK && kept.job.code == ST_NOT_FOUND);
        CHECK(fails.job.code == bad[i] && next.job.code == ST_OK && next.runs == 0);
        CHECK(first.reader == kept.reader && kept.reader == fails.reader);
    }
    close_bench(&b);
}

TEST(pool_close_answers_what_is_queued_and_waits_for_the_rest) {
    struct bench b;
    struct job jobs[3];
    str url = test_db_url("sqlite");
    make_ledger(url);
    open_bench(&b, url, 1, 8);
    for (int i = 0; i < 3; i++) {
        jobs[i] = job_of(&b, i);
        submit(&b, &jobs[i]);
    }
    pool_close(b.pool);
    CHECK(b.done == 3);
    for (int i = 0; i < 3; i++)
        CHECK(jobs[i].job.code == (jobs[i].reader ? ST_OK : ST_RETRY));
    CHECK(uv_run(&b.loop, UV_RUN_DEFAULT) == 0);
    CHECK(uv_loop_close(&b.loop) == 0);
    metrics_close(b.metrics);
    /* And from inside an answer. */
    open_bench(&b, url, 2, 8);
    for (int i = 0; i < 3; i++) {
        jobs[i] = job_of(&b, i);
        jobs[i].closes = i == 0;
        submit(&b, &jobs[i]);
    }
    CHECK(uv_run(&b.loop, UV_RUN_DEFAULT) == 0);
    CHECK(b.done == 3);
    CHECK(uv_loop_close(&b.loop) == 0);
    metrics_close(b.metrics);
    pool_close(NULL);
}
