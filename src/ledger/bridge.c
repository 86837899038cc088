/* ledger/bridge.c: the one place where calls change threads on their way to the ledger and back.
 *
 * A call is in exactly one place: `waiting` (no room at the writer yet), at the writer, `answered`
 * (committed or not; put there by the ledger thread), or `ready` (about to be told). Only
 * `answered` is shared by two threads, and `lock` guards it; nothing else is held meanwhile. The
 * loop is woken when the list was empty before: the delivery takes all of it. `ready` is the
 * bridge's and not the delivery's, so that a `done` which delivers, halts or submits is fine. */
#include "ledger/bridge.h"

#include <pthread.h>

#include "base/arena.h"
#include "base/limits.h"

struct calls { /* first in, first out */
    struct bridge_call *first, *last;
};

struct bridge {
    struct writer *writer;
    void (*wake)(void *context);
    void *context;
    struct calls waiting, ready;
    size_t under_way;
    bool halted;
    pthread_mutex_t lock; /* guards: */
    struct calls answered;
};

static void push(struct calls *calls, struct bridge_call *call) {
    call->next = NULL;
    *(calls->last ? &calls->last->next : &calls->first) = call;
    calls->last = call;
}

static void push_front(struct calls *calls, struct bridge_call *call) {
    call->next = calls->first;
    calls->first = call;
    if (!calls->last) calls->last = call;
}

static struct bridge_call *pop(struct calls *calls) {
    struct bridge_call *call = calls->first;
    if (!call) return NULL;
    calls->first = call->next;
    if (!calls->first) calls->last = NULL;
    return call;
}

static status closing(struct error *err) {
    return error_at(err, REASON_CLOSING, "", "the process is ending");
}

/* On the ledger thread, or the loop's. */
static void answered(struct bridge_call *call) {
    struct bridge *b = call->bridge;
    pthread_mutex_lock(&b->lock);
    bool first = !b->answered.first;
    push(&b->answered, call);
    pthread_mutex_unlock(&b->lock);
    if (first) b->wake(b->context);
}

static void on_written(struct writer_call *write) { answered(write->context); }

status bridge_open(struct writer *writer, void (*wake)(void *context), void *context,
                   struct bridge **out, struct error *err) {
    ASSERT(writer && wake);
    struct bridge *b = mem_alloc(sizeof(*b));
    if (!b) return error_set(err, ST_RETRY, "bridge: out of memory");
    b->writer = writer;
    b->wake = wake;
    b->context = context;
    pthread_mutex_init(&b->lock, NULL);
    *out = b;
    return ST_OK;
}

/* ---- there ---- */

static void take(struct bridge *b, struct bridge_call *call) {
    ASSERT(call->done);
    ASSERT(call->write.request.count <= BATCH_EVENTS_MAX);
    call->bridge = b;
    call->next = NULL;
    call->write.done = on_written;
    call->write.context = call;
    b->under_way++;
}

static void refuse(struct bridge_call *call, status code, const struct error *err) {
    call->write.code = code;
    call->write.err = *err;
    answered(call);
}

/* False: there is no room. */
static bool send(struct bridge *b, struct bridge_call *call) {
    struct error err = {0};
    status st = b->halted ? closing(&err) : writer_submit(b->writer, &call->write, &err);
    if (st == ST_LIMIT) return false;
    if (st != ST_OK) refuse(call, st, &err);
    return true;
}

void bridge_submit(struct bridge *b, struct bridge_call *call) {
    take(b, call);
    if (b->waiting.first || !send(b, call)) push(&b->waiting, call);
}

status bridge_try(struct bridge *b, struct bridge_call *call, struct error *err) {
    if (b->halted) return closing(err);
    if (b->waiting.first)
        return error_at(err, REASON_QUEUE_FULL, "",
                        "%d appends are waiting already: try again later", QUEUE_REQUESTS_MAX);
    take(b, call);
    status st = writer_submit(b->writer, &call->write, err);
    if (st != ST_OK) b->under_way--;
    return st;
}

void bridge_post(struct bridge *b, struct bridge_call *call) {
    take(b, call);
    call->write.code = ST_OK;
    answered(call);
}

/* ---- and back ---- */

static void tell(struct bridge *b, struct bridge_call *call) {
    ASSERT(b->under_way > 0);
    ASSERT(call->bridge == b);
    b->under_way--;
    call->bridge = NULL;
    if (b->halted) call->write.code = closing(&call->write.err);
    call->done(call);
}

void bridge_deliver(struct bridge *b) {
    struct bridge_call *call;
    pthread_mutex_lock(&b->lock);
    struct calls taken = b->answered;
    b->answered = (struct calls){0};
    pthread_mutex_unlock(&b->lock);
    while ((call = pop(&taken)) != NULL)
        push(&b->ready, call);
    while ((call = pop(&b->ready)) != NULL)
        tell(b, call);
    while ((call = pop(&b->waiting)) != NULL) { /* off the list first: it is the writer's then */
        if (send(b, call)) continue;
        push_front(&b->waiting, call);
        break;
    }
}

size_t bridge_under_way(const struct bridge *b) { return b->under_way; }
bool bridge_is_full(const struct bridge *b) { return b->waiting.first != NULL; }
struct writer *bridge_writer(struct bridge *b) {
    return b->writer;
}

/* ---- the end ---- */

void bridge_halt(struct bridge *b) {
    struct error err = {0};
    struct bridge_call *call;
    if (!b || b->halted) return;
    b->halted = true;
    status st = closing(&err);
    while ((call = pop(&b->waiting)) != NULL) /* never submitted, so never acknowledged */
        refuse(call, st, &err);
}

void bridge_close(struct bridge *b) {
    if (!b) return;
    bridge_halt(b);
    while (b->under_way > 0) {     /* a `done` may submit, and is refused */
        ASSERT(b->answered.first); /* or the writer is still open */
        bridge_deliver(b);
    }
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}
