#include "ledger/writer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/time.h"
#include "test.h"

/* The ledger asks its clock on the ledger thread: a clock that waits holds that thread up. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool shut;
    int waiting;
};
static struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0};

static int64_t gate_clock(void *context) {
    UNUSED(context);
    pthread_mutex_lock(&gate.lock);
    gate.waiting++;
    pthread_cond_broadcast(&gate.cond);
    while (gate.shut)
        pthread_cond_wait(&gate.cond, &gate.lock);
    gate.waiting--;
    pthread_mutex_unlock(&gate.lock);
    return clock_wall_us();
}

static void gate_set(bool shut) {
    pthread_mutex_lock(&gate.lock);
    gate.shut = shut;
    pthread_cond_broadcast(&gate.cond);
    pthread_mutex_unlock(&gate.lock);
}

static void gate_await(void) { /* until the ledger thread stands at it */
    pthread_mutex_lock(&gate.lock);
    while (gate.waiting == 0)
        pthread_cond_wait(&gate.cond, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static struct ledger *open_ledger(str url) {
    static const struct ledger_options options = {.now_us = gate_clock};
    struct ledger *l = NULL;
    struct error err = {0};
    log_setup(2, false, LOG_OFF);
    CHECK(ledger_open(url, &options, &l, &err) == ST_OK, "%s", err.msg);
    return l;
}

static struct writer *open_writer(str url, struct metrics *metrics) {
    struct writer *w = NULL;
    struct error err = {0};
    CHECK(writer_open(open_ledger(url), metrics, &w, &err) == ST_OK, "%s", err.msg);
    return w;
}

/* Event `n` of run "r". */
static struct append_item item_of(int64_t n) {
    struct append_item item = {.event = {.type_name = STR("RunNoted"),
                                         .run_id = STR("r"),
                                         .tenant_id = STR("t"),
                                         .project_id = STR("p"),
                                         .environment_id = STR("e"),
                                         .plan_id = STR("pl"),
                                         .plan_version = STR("1"),
                                         .engine_attempt = 1,
                                         .logical_attempt = n}};
    struct error err = {0};
    item.event.event_id = uuid_v4();
    event_key_derive(&item.event, item.event.key);
    CHECK(event_validate(&item.event, &err) == ST_OK, "%s", err.msg);
    return item;
}

struct job {
    struct writer_call call;
    struct append_item item;
    struct append_result result;
    struct arena arena;
    atomic_int answered;
};

static void answered(struct writer_call *call) {
    struct job *job = call->context;
    atomic_fetch_add(&job->answered, 1);
}

static void job_init(struct job *job, int64_t n) {
    *job = (struct job){.item = item_of(n)};
    arena_init(&job->arena, 1024, SIZE_MAX);
    job->call = (struct writer_call){
        .request = {.items = &job->item, .count = 1, .results = &job->result, .arena = &job->arena},
        .done = answered,
        .context = job};
}

TEST_DB(writer_append_waits_for_the_commit) {
    struct writer *w = open_writer(url, NULL);
    struct job job;
    struct error err = {0};
    for (int64_t n = 1; n <= 3; n++) {
        job_init(&job, n);
        CHECK(writer_append(w, &job.call, 60000, &err) == ST_OK, "%s", err.msg);
        CHECK(job.result.code == ST_OK && job.result.seq == n && !job.result.duplicate);
        arena_release(&job.arena);
    }
    writer_close(w);
    writer_close(NULL);
}

/* When the queue is full nothing more is taken, whoever asks; when there is room again all that was
 * taken is answered, once. */
TEST_DB(writer_pushes_back_when_the_queue_is_full) {
    static struct job jobs[QUEUE_REQUESTS_MAX + 3];
    struct writer *w = open_writer(url, NULL);
    struct error err = {0};
    for (int64_t n = 0; n < (int64_t)COUNT_OF(jobs); n++)
        job_init(&jobs[n], n + 1);
    gate_set(true);
    CHECK(writer_submit(w, &jobs[0].call, &err) == ST_OK, "%s", err.msg);
    gate_await(); /* the first is being committed; the others must queue */
    size_t taken = 1;
    while (taken < COUNT_OF(jobs) && writer_submit(w, &jobs[taken].call, &err) == ST_OK)
        taken++;
    CHECK(taken == QUEUE_REQUESTS_MAX + 1, "%zu", taken);
    CHECK(err.code == ST_LIMIT && err.reason == REASON_QUEUE_FULL, "%s", err.msg);
    CHECK(writer_append(w, &jobs[taken].call, 20, &err) == ST_LIMIT &&
              err.reason == REASON_QUEUE_FULL,
          "%s", err.msg);
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        CHECK(atomic_load(&jobs[i].answered) == 0, "job %zu", i);
    gate_set(false);
    writer_close(w); /* answers what is queued */
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        CHECK(atomic_load(&jobs[i].answered) == (i < taken), "job %zu", i);
        if (i < taken)
            CHECK(jobs[i].call.code == ST_OK && jobs[i].result.code == ST_OK &&
                      jobs[i].result.seq == (int64_t)i + 1,
                  "job %zu", i);
        arena_release(&jobs[i].arena);
    }
}

TEST(writer_refuses_a_batch_that_is_too_large) {
    struct writer *w = open_writer(test_db_url("sqlite"), NULL);
    struct job job;
    struct error err = {0};
    job_init(&job, 1);
    job.call.request.count = BATCH_EVENTS_MAX + 1;
    CHECK(writer_submit(w, &job.call, &err) == ST_LIMIT && err.reason == REASON_BATCH_TOO_LARGE,
          "%s", err.msg);
    CHECK(writer_append(w, &job.call, 1000, &err) == ST_LIMIT &&
              err.reason == REASON_BATCH_TOO_LARGE,
          "%s", err.msg);
    writer_close(w);
    CHECK(atomic_load(&job.answered) == 0);
    arena_release(&job.arena);
}

/* ---- groups ---- */

static struct metrics *metrics;
static int64_t metric_of(const char *name) {
    return metric_value(metrics_counter(metrics, name, "", ""));
}

/* What waits goes out in as few commits as GROUP_EVENTS_MAX allows, and none is larger. */
TEST_DB(writer_commits_in_groups) {
    enum { CALLS = 5, EVENTS = 1500 };
    static struct append_item items[CALLS][EVENTS];
    static struct append_result results[CALLS][EVENTS];
    static struct job jobs[CALLS + 1];
    struct error err = {0};
    CHECK(metrics_open(&metrics, &err) == ST_OK, "%s", err.msg);
    struct writer *w = open_writer(url, metrics);
    gate_set(true);
    job_init(&jobs[CALLS], 1);
    CHECK(writer_submit(w, &jobs[CALLS].call, &err) == ST_OK, "%s", err.msg);
    gate_await();
    for (int i = 0; i < CALLS; i++) {
        job_init(&jobs[i], 1);
        for (int k = 0; k < EVENTS; k++)
            items[i][k] = item_of(2 + i * EVENTS + k);
        jobs[i].call.request.items = items[i];
        jobs[i].call.request.count = EVENTS;
        jobs[i].call.request.results = results[i];
        CHECK(writer_submit(w, &jobs[i].call, &err) == ST_OK, "%s", err.msg);
    }
    gate_set(false);
    writer_close(w);
    for (int i = 0; i < CALLS; i++) {
        CHECK(jobs[i].call.code == ST_OK && atomic_load(&jobs[i].answered) == 1);
        CHECK(results[i][EVENTS - 1].seq == 1 + (i + 1) * EVENTS);
        arena_release(&jobs[i].arena);
    }
    arena_release(&jobs[CALLS].arena);
    CHECK(metric_of("cairn_ledger_commits_total") ==
          4); /* the one at the gate, then 2 + 2 + 1 calls */
    CHECK(metric_of("cairn_ledger_events_total") == 1 + CALLS * EVENTS &&
          metric_of("cairn_ledger_commit_failures_total") == 0);
    metrics_close(metrics);
}

/* ---- failure ---- */

struct faulty {
    str url;
    struct db *db;
};

static status connect_faulty(void *context, struct db **out, struct error *err) {
    struct faulty *f = context;
    struct db *inner = NULL;
    status st = db_open(f->url, DB_WRITE, &inner, err);
    if (st == ST_OK) st = db_faulty_wrap(inner, out, err);
    f->db = *out;
    return st;
}

/* A commit that fails acknowledges nobody, and says why; the next one works. */
TEST_DB(writer_acknowledges_no_failed_commit) {
    struct faulty faulty = {.url = url};
    struct ledger *l = NULL;
    struct writer *w = NULL;
    struct job jobs[2];
    struct error err = {0};
    log_setup(2, false, LOG_OFF);
    CHECK(metrics_open(&metrics, &err) == ST_OK, "%s", err.msg);
    CHECK(ledger_open_with(connect_faulty, &faulty, NULL, &l, &err) == ST_OK, "%s", err.msg);
    db_faulty_fail_at(faulty.db, 5,
                      false); /* before the thread starts: the connection is its own then */
    CHECK(writer_open(l, metrics, &w, &err) == ST_OK, "%s", err.msg);
    for (int i = 0; i < 2; i++) {
        job_init(&jobs[i], 1);
        status st = writer_append(w, &jobs[i].call, 60000, &err);
        CHECK(st == (i == 0 ? ST_RETRY : ST_OK), "%s", err.msg);
        CHECK(i == 1 || (jobs[i].call.code == ST_RETRY && strstr(err.msg, "injected failure")),
              "%s", err.msg);
    }
    CHECK(jobs[1].result.seq == 1 && !jobs[1].result.duplicate);
    writer_close(w);
    CHECK(metric_of("cairn_ledger_commits_total") == 2 &&
          metric_of("cairn_ledger_commit_failures_total") == 1);
    metrics_close(metrics);
    for (int i = 0; i < 2; i++)
        arena_release(&jobs[i].arena);
}

/* What a producer sent behind a failed call is not stored; other producers go on. */
TEST_DB(writer_stops_the_stream_of_a_failed_call) {
    struct faulty faulty = {.url = url};
    struct ledger *l = NULL;
    struct writer *w = NULL;
    struct job jobs[3];
    struct writer_stream stream = {0};
    struct error err = {0};
    log_setup(2, false, LOG_OFF);
    CHECK(ledger_open_with(connect_faulty, &faulty, NULL, &l, &err) == ST_OK, "%s", err.msg);
    db_faulty_fail_at(faulty.db, 5, false);
    CHECK(writer_open(l, NULL, &w, &err) == ST_OK, "%s", err.msg);
    for (int i = 0; i < 3; i++) {
        job_init(&jobs[i], i + 1);
        jobs[i].call.stream = i < 2 ? &stream : NULL;
        status st = writer_append(w, &jobs[i].call, 60000, &err);
        CHECK(st == (i < 2 ? ST_RETRY : ST_OK), "call %d: %s", i, err.msg);
    }
    CHECK(stream.failed && strstr(jobs[1].call.err.msg, "an append before this one failed"));
    CHECK(jobs[2].result.seq == 1, "the second call was stored");
    writer_close(w);
    for (int i = 0; i < 3; i++)
        arena_release(&jobs[i].arena);
}

/* A producer that does not wait: once a call of its stream failed, those behind it are not tried; a
 * call that stands for itself is. */
TEST_DB(writer_stops_a_stream_that_failed) {
    static const struct ledger_options options = {.now_us = gate_clock};
    struct faulty faulty = {.url = url};
    struct writer_stream stream = {false};
    struct ledger *l = NULL;
    struct writer *w = NULL;
    struct job jobs[4];
    struct error err = {0};
    log_setup(2, false, LOG_OFF);
    CHECK(ledger_open_with(connect_faulty, &faulty, &options, &l, &err) == ST_OK, "%s", err.msg);
    db_faulty_fail_at(faulty.db, 4, false);
    CHECK(writer_open(l, NULL, &w, &err) == ST_OK, "%s", err.msg);
    gate_set(true);
    for (int i = 0; i < 4; i++) {
        job_init(&jobs[i], i + 1);
        jobs[i].call.stream = i == 2 ? NULL : &stream;
        CHECK(writer_submit(w, &jobs[i].call, &err) == ST_OK, "%s", err.msg);
        if (i == 0) gate_await(); /* the first is on its own, and will fail */
    }
    gate_set(false);
    writer_close(w);
    for (int i = 0; i < 4; i++) {
        CHECK(atomic_load(&jobs[i].answered) == 1, "job %d", i);
        CHECK(jobs[i].call.code == (i == 2 ? ST_OK : ST_RETRY), "job %d: %s", i,
              jobs[i].call.err.msg);
        CHECK(i == 0 || i == 2 || strstr(jobs[i].call.err.msg, "an append before this one"),
              "job %d", i);
        arena_release(&jobs[i].arena);
    }
    CHECK(stream.failed && jobs[2].result.seq == 1);
}

/* ---- closing ---- */

enum { LATE_TRIES = 500 };
struct late {
    struct job first, tries[LATE_TRIES];
    struct writer *writer;
    status refused;
};

/* Runs on the ledger thread while the main thread closes the writer: sooner or later nothing more
 * is taken. */
static void submit_more(struct writer_call *call) {
    struct late *late = call->context;
    for (int i = 0; i < LATE_TRIES && late->refused == ST_OK; i++) {
        struct error err;
        late->refused = writer_submit(late->writer, &late->tries[i].call, &err);
        if (late->refused == ST_OK) usleep(10000);
    }
}

TEST(writer_takes_nothing_while_it_closes) {
    static struct late late;
    struct error err = {0};
    late = (struct late){.writer = open_writer(test_db_url("sqlite"), NULL)};
    job_init(&late.first, 1);
    late.first.call.done = submit_more;
    late.first.call.context = &late;
    for (int i = 0; i < LATE_TRIES; i++)
        job_init(&late.tries[i], i + 2);
    CHECK(writer_submit(late.writer, &late.first.call, &err) == ST_OK, "%s", err.msg);
    writer_close(late.writer);
    CHECK(late.refused == ST_RETRY);
    int taken = 0;
    for (int i = 0; i < LATE_TRIES; i++) {
        if (atomic_load(&late.tries[i].answered))
            taken++;
        else
            break;
    }
    for (int i = taken; i < LATE_TRIES; i++)
        CHECK(atomic_load(&late.tries[i].answered) == 0, "try %d", i);
    for (int i = 0; i < taken; i++)
        CHECK(late.tries[i].call.code == ST_OK, "try %d", i);
    for (int i = 0; i < LATE_TRIES; i++)
        arena_release(&late.tries[i].arena);
    arena_release(&late.first.arena);
}

/* Without memory there is no writer, and the ledger is closed all the same. */
TEST(writer_open_says_when_memory_is_out) {
    str url = test_db_url("sqlite");
    for (int64_t n = 0, failed = 1; failed; n++) {
        struct writer *w = NULL;
        struct error err = {0};
        struct ledger *l = open_ledger(url); /* would wait for the lock, were it not dropped */
        mem_fail_at(n);
        status st = writer_open(l, NULL, &w, &err);
        failed = st != ST_OK;
        mem_fail_at(-1);
        CHECK(st == ST_OK || st == ST_RETRY, "%s", err.msg);
        CHECK(n < 10);
        if (!failed) {
            CHECK(n > 0);
            writer_close(w);
        }
    }
}
