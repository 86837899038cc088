/* base/queue.c: a ring of pointers under one mutex. `mutex` guards everything in the struct; it is
 * held for a few instructions and never while calling out. Waits use the monotonic clock, so that
 * setting the machine's clock neither shortens nor lengthens them. */
#include "base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/time.h"

struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t has_item; /* signalled when an item came or the queue was shut */
    pthread_cond_t has_room; /* signalled when items were taken or the queue was shut */
    void **ring;
    size_t capacity, head, count; /* items are ring[head .. head + count), wrapping */
    atomic_bool shut;             /* written under the mutex; queue_is_shut() reads it without */
};

static void lock(struct queue *q) {
    int rc = pthread_mutex_lock(&q->mutex);
    ASSERT(rc == 0);
}

static void unlock(struct queue *q) {
    int rc = pthread_mutex_unlock(&q->mutex);
    ASSERT(rc == 0);
}

static bool init_monotonic(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return false;
    bool made = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(cond, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return made;
}

static bool init_locks(struct queue *q) {
    if (pthread_mutex_init(&q->mutex, NULL) != 0) return false;
    if (init_monotonic(&q->has_item)) {
        if (init_monotonic(&q->has_room)) return true;
        pthread_cond_destroy(&q->has_item);
    }
    pthread_mutex_destroy(&q->mutex);
    return false;
}

status queue_open(size_t capacity, struct queue **out, struct error *err) {
    ASSERT(capacity > 0 && capacity <= SIZE_MAX / sizeof(void *));
    struct queue *q = mem_alloc(sizeof *q);
    void **ring = mem_alloc(capacity * sizeof *ring);
    if (q == NULL || ring == NULL || !init_locks(q)) {
        mem_free(ring);
        mem_free(q);
        return error_set(err, ST_RETRY, "could not make a queue: out of memory");
    }
    q->ring = ring;
    q->capacity = capacity;
    *out = q;
    return ST_OK;
}

void queue_close(struct queue *q) {
    if (q == NULL) return;
    pthread_cond_destroy(&q->has_room);
    pthread_cond_destroy(&q->has_item);
    pthread_mutex_destroy(&q->mutex);
    mem_free(q->ring);
    mem_free(q);
}

/* The instant `timeout_ms` from now. A century is as good as for ever. */
static struct timespec deadline_in(int64_t timeout_ms) {
    static const int64_t century_ms = INT64_C(100) * 365 * 86400 * 1000;
    if (timeout_ms > century_ms) timeout_ms = century_ms;
    int64_t ns = clock_mono_ns() + timeout_ms * 1000000;
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/* One wait; false when the deadline has passed. NULL waits for ever. Wakes up early at will. */
static bool wait_for(pthread_cond_t *cond, struct queue *q, const struct timespec *deadline) {
    int rc = deadline == NULL ? pthread_cond_wait(cond, &q->mutex)
                              : pthread_cond_timedwait(cond, &q->mutex, deadline);
    ASSERT(rc == 0 || rc == ETIMEDOUT);
    return rc == 0;
}

static bool is_shut_locked(const struct queue *q) {
    return atomic_load_explicit(&q->shut, memory_order_relaxed);
}

/* With the mutex held. */
static bool put_locked(struct queue *q, void *item) {
    if (q->count == q->capacity || is_shut_locked(q)) return false;
    q->ring[(q->head + q->count) % q->capacity] = item;
    q->count++;
    pthread_cond_signal(&q->has_item);
    return true;
}

bool queue_try_push(struct queue *q, void *item) {
    lock(q);
    bool pushed = put_locked(q, item);
    unlock(q);
    return pushed;
}

bool queue_push(struct queue *q, void *item, int64_t timeout_ms) {
    struct timespec deadline = deadline_in(timeout_ms < 0 ? 0 : timeout_ms);
    lock(q);
    while (q->count == q->capacity && !is_shut_locked(q)) {
        if (!wait_for(&q->has_room, q, timeout_ms < 0 ? NULL : &deadline)) break;
    }
    bool pushed = put_locked(q, item);
    unlock(q);
    return pushed;
}

size_t queue_take(struct queue *q, void **items, size_t max, int64_t timeout_ms) {
    ASSERT(max > 0);
    struct timespec deadline = deadline_in(timeout_ms < 0 ? 0 : timeout_ms);
    lock(q);
    while (q->count == 0 && !is_shut_locked(q)) {
        if (!wait_for(&q->has_item, q, timeout_ms < 0 ? NULL : &deadline)) break;
    }
    size_t taken = q->count < max ? q->count : max;
    for (size_t i = 0; i < taken; i++)
        items[i] = q->ring[(q->head + i) % q->capacity];
    q->head = (q->head + taken) % q->capacity;
    q->count -= taken;
    if (taken > 0) pthread_cond_broadcast(&q->has_room);
    if (q->count > 0) pthread_cond_signal(&q->has_item); /* another taker may be asleep */
    unlock(q);
    return taken;
}

void queue_shut(struct queue *q) {
    lock(q);
    atomic_store(&q->shut, true);
    pthread_cond_broadcast(&q->has_item);
    pthread_cond_broadcast(&q->has_room);
    unlock(q);
}

bool queue_is_shut(const struct queue *q) { return atomic_load(&q->shut); }

size_t queue_depth(struct queue *q) {
    lock(q);
    size_t depth = q->count;
    unlock(q);
    return depth;
}
