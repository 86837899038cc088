/* base/queue.h: the bounded queue between threads. Hands over ownership of pointers, any number of producers and
 * consumers. One mutex guards the ring; nothing else may be held while calling. */
#pragma once

#include "base/base.h"
#include "base/error.h"

struct queue;
MUST_CHECK status queue_open(size_t capacity, struct queue **out, struct error *err);
void queue_close(struct queue *q);                 /* the queue must be empty or its items abandoned */
bool queue_try_push(struct queue *q, void *item);  /* false when full or shut */
bool queue_push(struct queue *q, void *item, int64_t timeout_ms); /* waits for room (< 0: for ever); false on timeout or shut */
/* Waits for at least one item (timeout_ms < 0: for ever), then takes up to `max`. 0 on timeout, or when shut and
 * empty. */
size_t queue_take(struct queue *q, void **items, size_t max, int64_t timeout_ms);
void queue_shut(struct queue *q);                  /* refuses pushes; takers drain what is left, then get 0 */
bool queue_is_shut(const struct queue *q);
size_t queue_depth(struct queue *q);
