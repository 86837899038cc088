#include "ledger/bridge.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "base/limits.h"
#include "base/log.h"
#include "test.h"

/* A loop that is nothing but a count of how often it was woken. */
struct loop {
    struct writer *writer;
    struct bridge *bridge;
    sem_t woken;
    pthread_t thread; /* which `done` must run on */
};

struct job {
    struct bridge_call call;
    struct loop *loop;
    int runs, answers; /* how often it was carried out, and answered */
    struct job *then;  /* submitted by the answer */
};

static void wake(void *context) {
    struct loop *loop = context;
    CHECK(sem_post(&loop->woken) == 0);
}

static void loop_open(struct loop *loop, str url) {
    struct ledger *l = NULL;
    struct error err = {0};
    log_setup(2, false, LOG_OFF);
    *loop = (struct loop){.thread = pthread_self()};
    CHECK(sem_init(&loop->woken, 0, 0) == 0);
    CHECK(ledger_open(url, NULL, &l, &err) == ST_OK, "%s", err.msg);
    CHECK(writer_open(l, NULL, &loop->writer, &err) == ST_OK, "%s", err.msg);
    CHECK(bridge_open(loop->writer, wake, loop, &loop->bridge, &err) == ST_OK, "%s", err.msg);
}

static void loop_close(struct loop *loop) {
    bridge_halt(loop->bridge);
    writer_close(loop->writer);
    bridge_close(loop->bridge);
    sem_destroy(&loop->woken);
}

/* Turns until nothing is under way. */
static void loop_run(struct loop *loop) {
    while (bridge_under_way(loop->bridge) > 0) {
        while (sem_wait(&loop->woken) != 0) {
        }
        bridge_deliver(loop->bridge);
    }
}

static status work(struct ledger *ledger, void *context, struct error *err) {
    struct job *job = context;
    UNUSED(ledger);
    UNUSED(err);
    CHECK(!pthread_equal(pthread_self(), job->loop->thread));
    job->runs++;
    return ST_OK;
}

static void on_done(struct bridge_call *call) {
    struct job *job = CONTAINER_OF(call, struct job, call);
    CHECK(pthread_equal(pthread_self(), job->loop->thread));
    job->answers++;
    if (job->then) bridge_submit(job->loop->bridge, &job->then->call);
}

static void job_init(struct job *job, struct loop *loop) {
    *job = (struct job){.call = {.write = {.task = work, .task_context = job}, .done = on_done},
                        .loop = loop};
}

/* Carried out on the ledger thread, answered on the loop's, once, and never from inside submit; an
 * answer may submit the next. */
TEST_DB(bridge_answers_on_the_loop) {
    struct loop loop;
    struct job jobs[3];
    loop_open(&loop, url);
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        job_init(&jobs[i], &loop);
    jobs[0].then = &jobs[1];
    bridge_submit(loop.bridge, &jobs[0].call);
    bridge_post(loop.bridge, &jobs[2].call);
    CHECK(jobs[0].answers == 0 && jobs[2].answers == 0);
    loop_run(&loop);
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        CHECK(jobs[i].answers == 1 && jobs[i].call.write.code == ST_OK, "job %zu", i);
    CHECK(jobs[0].runs == 1 && jobs[1].runs == 1);
    CHECK(jobs[2].runs == 0); /* posted: it never saw the ledger thread */
    loop_close(&loop);
}

static sem_t gate;
static sem_t arrived; /* at the gate */
static status stand_at_the_gate(struct ledger *ledger, void *context, struct error *err) {
    (void)sem_post(&arrived);
    while (sem_wait(&gate) != 0) {
    }
    return work(ledger, context, err);
}

static int order[2 * QUEUE_REQUESTS_MAX];
static int order_count;
static status note_order(struct ledger *ledger, void *context, struct error *err) {
    struct job *job = context;
    order[order_count++] = (int)(intptr_t)job->call.context;
    return work(ledger, context, err);
}

/* More than the writer's queue holds: the rest waits at the bridge, and all is carried out in the
 * order it came in. Who does not want to wait is told. */
TEST_DB(bridge_waits_in_order_when_the_writer_is_full) {
    static struct job jobs[2 * QUEUE_REQUESTS_MAX];
    struct loop loop;
    struct job first;
    struct job late;
    struct error err = {0};
    loop_open(&loop, url);
    CHECK(sem_init(&gate, 0, 0) == 0 && sem_init(&arrived, 0, 0) == 0);
    order_count = 0;
    job_init(&first, &loop);
    first.call.write.task = stand_at_the_gate;
    bridge_submit(loop.bridge, &first.call);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        job_init(&jobs[i], &loop);
        jobs[i].call.write.task = note_order;
        jobs[i].call.context = (void *)(intptr_t)i;
        bridge_submit(loop.bridge, &jobs[i].call);
    }
    CHECK(bridge_is_full(loop.bridge));
    job_init(&late, &loop);
    CHECK(bridge_try(loop.bridge, &late.call, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_QUEUE_FULL);
    CHECK(bridge_under_way(loop.bridge) == 1 + COUNT_OF(jobs));
    CHECK(sem_post(&gate) == 0);
    loop_run(&loop);
    CHECK(!bridge_is_full(loop.bridge) && late.answers == 0);
    CHECK(order_count == COUNT_OF(jobs), "%d were carried out", order_count);
    for (int i = 0; i < order_count; i++)
        CHECK(order[i] == i && jobs[i].answers == 1, "number %d came as number %d", order[i], i);
    CHECK(bridge_try(loop.bridge, &late.call, &err) == ST_OK, "%s", err.msg);
    loop_run(&loop);
    CHECK(late.runs == 1 && late.answers == 1);
    loop_close(&loop);
    sem_destroy(&gate);
    sem_destroy(&arrived);
}

/* After the halt: what waits never reaches the ledger, what is there is carried out, and all is
 * answered with CLOSING, once; so is what comes later. */
TEST_DB(bridge_halt_answers_everything_with_closing) {
    static struct job jobs[QUEUE_REQUESTS_MAX + 50];
    struct loop loop;
    struct job late[2];
    struct error err = {0};
    loop_open(&loop, url);
    CHECK(sem_init(&gate, 0, 0) == 0 && sem_init(&arrived, 0, 0) == 0);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        job_init(&jobs[i], &loop);
        if (i == 0) jobs[i].call.write.task = stand_at_the_gate;
        bridge_submit(loop.bridge, &jobs[i].call);
        while (i == 0 && sem_wait(&arrived) != 0) { /* it alone is under way at the halt */
        }
    }
    bridge_halt(loop.bridge);
    job_init(&late[0], &loop);
    job_init(&late[1], &loop);
    late[0].then = &late[1]; /* `done` submits when all is over */
    bridge_submit(loop.bridge, &late[0].call);
    CHECK(bridge_try(loop.bridge, &late[1].call, &err) == ST_RETRY);
    CHECK(err.reason == REASON_CLOSING);
    CHECK(jobs[COUNT_OF(jobs) - 1].answers == 0 && late[0].answers == 0);
    CHECK(sem_post(&gate) == 0);
    writer_close(loop.writer);
    bridge_close(loop.bridge);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        CHECK(jobs[i].answers == 1, "job %zu was answered %d times", i, jobs[i].answers);
        CHECK(jobs[i].call.write.code == ST_RETRY);
        CHECK(jobs[i].call.write.err.reason == REASON_CLOSING);
    }
    CHECK(jobs[0].runs == 1 && jobs[COUNT_OF(jobs) - 1].runs == 0);
    CHECK(late[0].answers == 1 && late[1].answers == 1 && late[0].runs + late[1].runs == 0);
    sem_destroy(&loop.woken);
    sem_destroy(&gate);
    sem_destroy(&arrived);
    bridge_close(NULL);
}
