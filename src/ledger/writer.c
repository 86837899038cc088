/* ledger/writer.c: takes calls from a queue, gathers a group, commits it and answers. */
#include "ledger/writer.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "base/arena.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/queue.h"
#include "base/time.h"

struct writer {
    struct ledger *ledger; /* the thread's, once it runs */
    struct queue *queue;
    pthread_t thread;
    bool started;
    /* The group whose commit is under way, if any (ledger_finish()). */
    struct writer_call *calls[QUEUE_REQUESTS_MAX];
    size_t under_way;
    int64_t started_ns;
    /* The last group: how many calls it had, and how long it took. */
    size_t last_calls;
    int64_t last_ns;
    struct metric *events, *commits, *failures, *seconds;
};

/* A smaller group waits for the commit before it and takes with it what comes meanwhile. */
enum { OVERLAP_EVENTS_MIN = 128 };

enum { GATHER_SHARE = 4, GATHER_NS_MAX = 1000000 };

/* Of a group that is durable a member may have been refused: that stands in its `joined`, and why
 * in its `err`. */
static void answer(struct writer_call **calls, size_t n, status code, const struct error *err) {
    for (size_t i = 0; i < n; i++) {
        if (code != ST_OK && calls[i]->stream) calls[i]->stream->failed = true;
        calls[i]->code = code == ST_OK && calls[i]->member.body ? calls[i]->joined.code : code;
        if (code != ST_OK) calls[i]->err = *err;
        calls[i]->done(calls[i]); /* may free the call */
    }
}

static void finished(struct writer *w, struct writer_call **calls, size_t n, int64_t start,
                     status st, const struct error *err) {
    size_t items = 0;
    for (size_t i = 0; i < n; i++)
        items += calls[i]->request.count;
    w->last_calls = n;
    w->last_ns = clock_mono_ns() - start;
    metric_observe(w->seconds, (double)w->last_ns / 1e9);
    metric_add(w->commits, 1);
    if (st == ST_OK)
        metric_add(w->events, (int64_t)items);
    else {
        metric_add(w->failures, 1);
        LOG(LOG_ERROR, "append failed, nothing was acknowledged", LOG_S("error", str_c(err->msg)));
    }
    answer(calls, n, st, err);
}

static void take_requests(struct writer_call **calls, size_t n, struct append_request **out) {
    for (size_t i = 0; i < n; i++)
        out[i] = &calls[i]->request;
}

struct group_size {
    size_t calls, items, members;
};

/* How many calls from the first on fit into one group. */
static struct group_size group_size(struct writer_call **calls, size_t n) {
    struct group_size size = {0};
    for (; size.calls < n && !calls[size.calls]->task; size.calls++) {
        const struct writer_call *call = calls[size.calls];
        if (size.items + call->request.count > GROUP_EVENTS_MAX) break;
        size.items += call->request.count;
        if (call->member.body) size.members++;
    }
    return size;
}

/* Waits for the group under way and answers it; false if it failed. */
static bool settle(struct writer *w) {
    struct append_request *requests[QUEUE_REQUESTS_MAX];
    struct error err = {0};
    if (w->under_way == 0) return true;
    status st = ledger_settle(w->ledger, &err);
    if (st == ST_CONFLICT) { /* not committed, for sure: a clash with another node */
        take_requests(w->calls, w->under_way, requests);
        st = ledger_append(w->ledger, requests, w->under_way, &err);
    }
    size_t n = w->under_way;
    w->under_way = 0;
    finished(w, w->calls, n, w->started_ns, st, &err);
    return st == ST_OK;
}

/* Answers the calls whose stream has failed, and closes the gaps they leave. */
static size_t drop_failed(struct writer_call **calls, size_t n) {
    size_t kept = 0;
    struct error err = {0};
    error_set(&err, ST_RETRY, "an append before this one failed: nothing of this one was stored");
    for (size_t i = 0; i < n; i++) {
        if (calls[i]->stream && calls[i]->stream->failed)
            answer(&calls[i], 1, ST_RETRY, &err);
        else
            calls[kept++] = calls[i];
    }
    return kept;
}

/* All at once. But one damaged run must not fail whoever shares a group with it: then half of them,
 * and half of those, until only those fail that cannot be helped. */
static void append(struct writer *w, struct writer_call **calls, size_t n, int64_t start) {
    struct append_request *requests[QUEUE_REQUESTS_MAX];
    size_t size = n;
    while (n > 0) {
        struct error err = {0};
        take_requests(calls, size, requests);
        status st = ledger_append(w->ledger, requests, size, &err);
        if (st == ST_CORRUPT && size > 1) {
            size /= 2;
            continue;
        }
        finished(w, calls, size, start, st, &err);
        calls += size;
        n = drop_failed(calls, n - size);
        size = n;
    }
}

/* Commits the group, or sends its commit on its way. False: what was under way before has failed,
 * and with it perhaps what some of these calls stand on; nothing was done with them. */
static bool commit(struct writer *w, struct writer_call **calls, size_t n,
                   const struct group_size *size) {
    struct append_request *requests[QUEUE_REQUESTS_MAX];
    struct error err = {0};
    int64_t start = clock_mono_ns();
    take_requests(calls, n, requests);
    bool large =
        size->items >= OVERLAP_EVENTS_MIN && size->members == 0 && ledger_overlaps(w->ledger);
    bool overlaps = w->under_way > 0;
    status st = large ? ledger_stage(w->ledger, requests, n, &err) : ST_CONFLICT;
    if (!settle(w)) return false;
    if (st == ST_OK) st = ledger_finish(w->ledger, &err);
    if (st == ST_OK) {
        memcpy(w->calls, calls, n * sizeof(struct writer_call *));
        w->under_way = n;
        w->started_ns = start;
        return true;
    }
    if (st == ST_CONFLICT || st == ST_CORRUPT || overlaps) /* what fails alone fails */
        append(w, calls, n, start);
    else
        finished(w, calls, n, start, st, &err);
    return true;
}

static void run_task(struct writer *w, struct writer_call *call) {
    struct error err = {0};
    status st = ledger_usable(w->ledger, &err);
    if (st == ST_OK) st = call->task(w->ledger, call->task_context, &err);
    answer(&call, 1, st, &err);
}

/* Who was just answered often comes back at once: a commit that starts with the first of them
 * leaves the others waiting for its end. So wait for as many as were answered together, but only
 * for a fraction of what that commit took. */
static size_t gather(struct writer *w, void **taken, size_t n) {
    int64_t wait_ns = w->last_ns / GATHER_SHARE;
    int64_t until = clock_mono_ns() + (wait_ns < GATHER_NS_MAX ? wait_ns : GATHER_NS_MAX);
    while (n > 0 && n < w->last_calls && clock_mono_ns() < until) {
        sched_yield();
        n += queue_take(w->queue, taken + n, QUEUE_REQUESTS_MAX - n, 0);
    }
    return n;
}

/* Waits for calls; while a commit is under way, only looks. A few that wait then wait for its end,
 * and more may come. */
static size_t take(struct writer *w, void **taken) {
    if (w->under_way == 0)
        return gather(w, taken, queue_take(w->queue, taken, QUEUE_REQUESTS_MAX, -1));
    size_t n = queue_take(w->queue, taken, QUEUE_REQUESTS_MAX, 0);
    if (group_size((struct writer_call **)taken, n).items >= OVERLAP_EVENTS_MIN) return n;
    (void)settle(w); /* a failure is in its answers */
    if (n == QUEUE_REQUESTS_MAX) return n;
    return n + queue_take(w->queue, taken + n, QUEUE_REQUESTS_MAX - n, n > 0 ? 0 : -1);
}

/* Takes what waits, and commits it in as few groups as the limits allow. */
static void *run(void *arg) {
    struct writer *w = arg;
    void *taken[QUEUE_REQUESTS_MAX];
    size_t n;
    while ((n = take(w, taken)) > 0) {
        struct writer_call **calls = (struct writer_call **)taken;
        while ((n = drop_failed(calls, n)) > 0) {
            struct group_size group = group_size(calls, n);
            if (group.calls == 0) {
                ASSERT(calls[0]->task); /* one request always fits */
                if (!settle(w)) continue;
                group.calls = 1;
                run_task(w, calls[0]);
            } else if (!commit(w, calls, group.calls, &group)) {
                continue;
            }
            calls += group.calls;
            n -= group.calls;
        }
    }
    return NULL;
}

static void register_metrics(struct writer *w, struct metrics *m) {
    static const double bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                    0.1,    0.25,  0.5,    1,     2.5,  5,     10};
    if (!m) return;
    w->events = metrics_counter(
        m, "cairn_ledger_events_total",
        "Events answered by a durable commit, duplicates and refusals included.", "");
    w->commits = metrics_counter(m, "cairn_ledger_commits_total", "Group commits tried.", "");
    w->failures =
        metrics_counter(m, "cairn_ledger_commit_failures_total", "Group commits that failed.", "");
    w->seconds = metrics_histogram(m, "cairn_ledger_commit_seconds",
                                   "Time of one group, from its taking to its answer.", bounds,
                                   COUNT_OF(bounds));
}

status writer_open(struct ledger *ledger, struct metrics *metrics, struct writer **out,
                   struct error *err) {
    struct writer *w = mem_alloc(sizeof(*w));
    if (!w) {
        ledger_close(ledger);
        return error_set(err, ST_RETRY, "ledger thread: out of memory");
    }
    w->ledger = ledger;
    register_metrics(w, metrics);
    status st = queue_open(QUEUE_REQUESTS_MAX, &w->queue, err);
    if (st == ST_OK && pthread_create(&w->thread, NULL, run, w) != 0) {
        st = error_set(err, ST_RETRY, "could not start the ledger thread");
    }
    w->started = st == ST_OK;
    if (st != ST_OK) {
        writer_close(w);
        return st;
    }
    *out = w;
    return ST_OK;
}

void writer_close(struct writer *w) {
    if (!w) return;
    if (w->queue) queue_shut(w->queue);
    if (w->started) pthread_join(w->thread, NULL);
    if (w->queue) queue_close(w->queue);
    ledger_close(w->ledger);
    mem_free(w);
}

static status check_size(const struct writer_call *call, struct error *err) {
    if (call->request.count <= BATCH_EVENTS_MAX) return ST_OK;
    return error_at(err, REASON_BATCH_TOO_LARGE, "",
                    "a batch of %zu events, at most %d are allowed", call->request.count,
                    BATCH_EVENTS_MAX);
}

static void join(struct writer_call *call) {
    ASSERT(!call->member.body || (!call->task && call->request.count == 0));
    call->joined = (struct ledger_member){
        .body = call->member.body, .context = call->member.context, .err = &call->err};
    call->request.member = call->member.body ? &call->joined : NULL;
}

static status refused(struct writer *w, struct error *err) {
    if (queue_is_shut(w->queue)) return error_set(err, ST_RETRY, "the ledger is closing");
    return error_at(err, REASON_QUEUE_FULL, "", "%d appends are waiting already: try again later",
                    QUEUE_REQUESTS_MAX);
}

status writer_submit(struct writer *w, struct writer_call *call, struct error *err) {
    ASSERT(call->done);
    status st = check_size(call, err);
    join(call);
    if (st == ST_OK && !queue_try_push(w->queue, call)) st = refused(w, err);
    return st;
}

/* ---- waiting ---- */

static void wake(struct writer_call *call) {
    int rc = sem_post(call->context);
    ASSERT(rc == 0);
}

status writer_append(struct writer *w, struct writer_call *call, int64_t timeout_ms,
                     struct error *err) {
    sem_t done;
    status st = check_size(call, err);
    if (st != ST_OK) return st;
    join(call);
    int rc = sem_init(&done, 0, 0);
    ASSERT(rc == 0);
    call->done = wake;
    /* cppcheck-suppress autoVariables ; it outlives its use: we leave once the call is refused, or
     * done */
    call->context = &done;
    bool pushed = queue_push(w->queue, call, timeout_ms);
    while (pushed && sem_wait(&done) != 0)
        ASSERT(errno == EINTR);
    sem_destroy(&done);
    if (!pushed) return refused(w, err);
    if (call->code != ST_OK) *err = call->err;
    return call->code;
}
