#include "base/queue.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/time.h"
#include "test.h"

static struct queue *open_queue(size_t capacity) {
    struct queue *q = NULL;
    struct error err;
    CHECK(queue_open(capacity, &q, &err) == ST_OK);
    return q;
}

static int64_t ms_since(int64_t start_ns) { return (clock_mono_ns() - start_ns) / 1000000; }

TEST(queue_keeps_the_order_and_its_bound) {
    struct queue *q = open_queue(3);
    int item[8];
    void *out[8];
    for (int round = 0; round < 5; round++) { /* the ring wraps */
        CHECK(queue_try_push(q, &item[0]) && queue_try_push(q, &item[1]));
        CHECK(queue_try_push(q, &item[2]) && !queue_try_push(q, &item[3])); /* full */
        CHECK(queue_depth(q) == 3);
        CHECK(queue_take(q, out, 2, 0) == 2 && out[0] == &item[0] && out[1] == &item[1]);
        CHECK(queue_try_push(q, &item[4]));
        CHECK(queue_take(q, out, 8, 0) == 2 && out[0] == &item[2] && out[1] == &item[4]);
        CHECK(queue_depth(q) == 0 && queue_take(q, out, 8, 0) == 0);
    }
    queue_close(q);
    queue_close(NULL);
}

TEST(queue_waits_have_a_timeout) {
    struct queue *q = open_queue(1);
    void *out[1];
    int64_t start = clock_mono_ns();
    CHECK(queue_take(q, out, 1, 30) == 0);
    CHECK(ms_since(start) >= 29, "%lld ms", (long long)ms_since(start));
    CHECK(queue_push(q, out, 0)); /* room at once */
    start = clock_mono_ns();
    CHECK(!queue_push(q, out, 30));
    CHECK(ms_since(start) >= 29, "%lld ms", (long long)ms_since(start));
    CHECK(queue_take(q, out, 1, INT64_MAX) == 1); /* a very long timeout does not overflow */
    CHECK(queue_push(q, out, -1) && queue_take(q, out, 1, -1) == 1);
    queue_close(q);
}

TEST(queue_shut_refuses_and_drains) {
    struct queue *q = open_queue(4);
    int item;
    void *out[4];
    CHECK(queue_try_push(q, &item) && !queue_is_shut(q));
    queue_shut(q);
    CHECK(queue_is_shut(q) && !queue_try_push(q, &item) && !queue_push(q, &item, -1));
    CHECK(queue_take(q, out, 4, -1) == 1 && out[0] == &item); /* what was in it comes out, */
    CHECK(queue_take(q, out, 4, -1) == 0);                    /* and then nobody waits */
    queue_shut(q);
    queue_close(q);
}

TEST(queue_open_without_memory) {
    for (int64_t n = 0; n < 2; n++) {
        struct queue *q = NULL;
        struct error err;
        mem_fail_at(n);
        status st = queue_open(10, &q, &err);
        mem_fail_at(-1);
        CHECK(st == ST_RETRY && q == NULL, "allocation %d", (int)n);
    }
}

enum { PRODUCERS = 4, CONSUMERS = 3, EACH = 5000 };

struct crowd {
    struct queue *q;
    atomic_uchar seen[PRODUCERS * EACH];
    atomic_int next_producer, lost, too_many;
};

static void *produce(void *arg) {
    struct crowd *c = arg;
    size_t first = (size_t)atomic_fetch_add(&c->next_producer, 1) * EACH;
    for (size_t i = first; i < first + EACH; i++) {
        if (!queue_push(c->q, &c->seen[i], -1)) atomic_fetch_add(&c->lost, 1);
    }
    return NULL;
}

static void *consume(void *arg) {
    struct crowd *c = arg;
    void *items[7];
    for (size_t n; (n = queue_take(c->q, items, COUNT_OF(items), -1)) > 0;) {
        if (n > COUNT_OF(items)) atomic_fetch_add(&c->too_many, 1);
        for (size_t i = 0; i < n; i++)
            atomic_fetch_add((atomic_uchar *)items[i], 1);
    }
    return NULL;
}

TEST(queue_hands_every_item_to_one_taker) {
    static struct crowd c;
    c.q = open_queue(16);
    pthread_t producer[PRODUCERS];
    pthread_t consumer[CONSUMERS];
    for (size_t i = 0; i < CONSUMERS; i++)
        CHECK(pthread_create(&consumer[i], NULL, consume, &c) == 0);
    for (size_t i = 0; i < PRODUCERS; i++)
        CHECK(pthread_create(&producer[i], NULL, produce, &c) == 0);
    for (size_t i = 0; i < PRODUCERS; i++)
        CHECK(pthread_join(producer[i], NULL) == 0);
    queue_shut(c.q);
    for (size_t i = 0; i < CONSUMERS; i++)
        CHECK(pthread_join(consumer[i], NULL) == 0);
    CHECK(c.lost == 0 && c.too_many == 0);
    for (size_t i = 0; i < COUNT_OF(c.seen); i++)
        CHECK(c.seen[i] == 1, "item %zu", i);
    queue_close(c.q);
}

static void *push_waiting(void *arg) { return queue_push(arg, arg, -1) ? arg : NULL; }

TEST(queue_shut_wakes_those_who_wait) {
    struct queue *q = open_queue(1);
    CHECK(queue_try_push(q, q));
    pthread_t pusher[2];
    void *pushed[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&pusher[i], NULL, push_waiting, q) == 0);
    void *out[1];
    CHECK(queue_take(q, out, 1, -1) == 1); /* lets one of them in */
    for (int64_t start = clock_mono_ns(); queue_depth(q) == 0 && ms_since(start) < 10000;)
        continue;
    queue_shut(q);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(pusher[i], &pushed[i]) == 0);
    CHECK((pushed[0] == NULL) != (pushed[1] == NULL));
    queue_close(q);
}
