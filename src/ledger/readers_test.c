#include "ledger/readers.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/arena.h"
#include "test.h"

enum { JOBS = 200 };

struct bench {   /* a loop and what the jobs did */
    sem_t woken; /* a loop that is nothing but a count of how often it was woken */
    struct readers *readers;
    struct metrics *metrics;
    int done;
    int order[JOBS + 8];
};

struct job {
    struct reader_job job; /* first */
    struct bench *bench;
    int number;
    status answer;         /* what `work` shall return */
    struct ledger *reader; /* what it was given */
    pthread_mutex_t *gate; /* held by the test while the job shall not go on; or NULL */
    int64_t runs;
    atomic_bool begun;
    bool again, halts;
};

static void wake(void *context) {
    struct bench *b = context;
    CHECK(sem_post(&b->woken) == 0);
}

static void open_bench(struct bench *b, str url, size_t threads, size_t queue_max) {
    struct error err = {0};
    memset(b, 0, sizeof(*b));
    CHECK(sem_init(&b->woken, 0, 0) == 0);
    CHECK(metrics_open(&b->metrics, &err) == ST_OK);
    struct readers_options options = {.url = url,
                                      .threads = threads,
                                      .queue_max = queue_max,
                                      .wake = wake,
                                      .context = b,
                                      .metrics = b->metrics};
    CHECK(readers_open(&options, &b->readers, &err) == ST_OK, "%s", err.msg);
}

/* Until every job is answered. */
static void turn(struct bench *b) {
    while (readers_under_way(b->readers) > 0) {
        while (sem_wait(&b->woken) != 0) {
        }
        readers_deliver(b->readers);
    }
}

static void close_bench(struct bench *b) {
    readers_close(b->readers);
    sem_destroy(&b->woken);
    metrics_close(b->metrics);
}

static void make_ledger(str url) {
    struct ledger *ledger = NULL;
    struct error err = {0};
    CHECK(ledger_open(url, NULL, &ledger, &err) == ST_OK, "%s", err.msg);
    ledger_close(ledger);
}

static status work(struct reader_job *base, struct ledger *reader, struct error *err) {
    struct job *j = (struct job *)base;
    struct ledger_stats stats;
    atomic_store(&j->begun, true);
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

static void on_done(struct reader_job *base) {
    struct job *j = (struct job *)base;
    struct error err = {0};
    j->bench->order[j->bench->done++] = j->number;
    if (j->again) {
        j->again = false;
        CHECK(readers_try(j->bench->readers, base, &err) == ST_OK, "%s", err.msg);
    }
    if (j->halts) {
        j->halts = false;
        readers_halt(j->bench->readers);
        CHECK(readers_try(j->bench->readers, base, &err) == ST_RETRY);
        CHECK(err.reason == REASON_CLOSING);
        readers_submit(j->bench->readers, base); /* is answered, too */
    }
}

static struct job job_of(struct bench *b, int number) {
    return (struct job){
        .job = {.work = work, .done = on_done}, .bench = b, .number = number, .runs = -1};
}

static void submit(struct bench *b, struct job *j) {
    struct error err = {0};
    CHECK(readers_try(b->readers, &j->job, &err) == ST_OK, "%s", err.msg);
}

TEST_DB(readers_answer_every_job_once) {
    struct bench b;
    struct job jobs[JOBS];
    make_ledger(url);
    open_bench(&b, url, 4, JOBS);
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = job_of(&b, i);
        jobs[i].again = i == 0;
        if (i % 2)
            readers_submit(b.readers, &jobs[i].job);
        else
            submit(&b, &jobs[i]);
    }
    CHECK(readers_under_way(b.readers) == JOBS && b.done == 0);
    turn(&b);
    CHECK(b.done == JOBS + 1 && readers_under_way(b.readers) == 0);
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

TEST(readers_refuse_what_their_queue_cannot_hold_and_take_it_later) {
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
    while (readers_try(b.readers, &jobs[1].job, &err) == ST_LIMIT)
        usleep(100);
    /* The thread is busy with the first one as soon as two others fit. */
    while (readers_try(b.readers, &jobs[2].job, &err) == ST_LIMIT)
        usleep(100);
    CHECK(readers_try(b.readers, &jobs[3].job, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_QUEUE_FULL);
    pthread_mutex_unlock(&gate);
    turn(&b);
    CHECK(b.done == 3);
    submit(&b, &jobs[3]);
    turn(&b);
    CHECK(b.done == 4);
    for (int i = 0; i < 4; i++)
        CHECK(b.order[i] == i);
    close_bench(&b);
}

/* A connection that failed is never used again, one that is well is kept; a ledger that is not
 * there is told, and found when it comes. */
TEST_DB(readers_make_a_failed_connection_anew) {
    static const status bad[] = {ST_RETRY, ST_CORRUPT};
    struct bench b;
    open_bench(&b, url, 1, 8);
    struct job j = job_of(&b, 0);
    submit(&b, &j);
    turn(&b);
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
        turn(&b);
        CHECK(first.job.code == ST_OK && kept.job.code == ST_NOT_FOUND);
        CHECK(fails.job.code == bad[i] && next.job.code == ST_OK && next.runs == 0);
        CHECK(first.reader == kept.reader && kept.reader == fails.reader);
    }
    close_bench(&b);
}

/* However much is asked from outside, the process's own reading goes on. */
TEST(readers_serve_their_own_process_first) {
    struct bench b;
    struct job outside[3];
    struct job own;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    str url = test_db_url("sqlite");
    make_ledger(url);
    open_bench(&b, url, 1, 8);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < 3; i++) {
        outside[i] = job_of(&b, i);
        outside[i].gate = &gate;
        submit(&b, &outside[i]);
    }
    while (!atomic_load(&outside[0].begun))
        usleep(1000);
    usleep(100000); /* for whoever would take the next */
    own = job_of(&b, 3);
    readers_submit(b.readers, &own.job);
    for (int tries = 0; b.done == 0 && tries < 10000;
         tries++) { /* it does not wait for the others */
        usleep(1000);
        readers_deliver(b.readers);
    }
    CHECK(b.done == 1 && b.order[0] == 3 && own.job.code == ST_OK);
    pthread_mutex_unlock(&gate);
    turn(&b);
    CHECK(b.done == 4);
    close_bench(&b);
}

TEST(readers_halt_answers_what_is_queued_and_waits_for_the_rest) {
    struct bench b;
    struct job jobs[3];
    str url = test_db_url("sqlite");
    make_ledger(url);
    open_bench(&b, url, 1, 8);
    for (int i = 0; i < 3; i++) {
        jobs[i] = job_of(&b, i);
        submit(&b, &jobs[i]);
    }
    readers_halt(b.readers);
    CHECK(b.done == 3);
    for (int i = 0; i < 3; i++)
        CHECK(jobs[i].job.code == (jobs[i].reader ? ST_OK : ST_RETRY));
    close_bench(&b);
    /* And from inside an answer. */
    open_bench(&b, url, 2, 8);
    for (int i = 0; i < 3; i++) {
        jobs[i] = job_of(&b, i);
        jobs[i].halts = i == 0;
        submit(&b, &jobs[i]);
    }
    turn(&b);
    CHECK(b.done == 4); /* the one that halted them was submitted again, and refused */
    CHECK(jobs[0].job.code == ST_RETRY);
    close_bench(&b);
    readers_close(NULL);
}
