/* api/waits.c: who waits for the end of which run, and until when. */
#include "api/waits.h"

#include "api/impl.h"
#include "base/time.h"

enum { WAITS_MS = 100, WAITS_MAX = 10000 };

/* ---- by time ---- */

static void leave_time(struct waits *all, struct run_wait *w) {
    if (!w->timed) return;
    w->timed = false;
    *(w->sooner ? &w->sooner->later : &all->by_s[w->seconds].first) = w->later;
    *(w->later ? &w->later->sooner : &all->by_s[w->seconds].last) = w->sooner;
}

/* Whoever waits equally long and comes later has to wait until later. */
static void join_time(struct waits *all, struct run_wait *w) {
    struct run_wait *last = all->by_s[w->seconds].last;
    ASSERT(!w->timed);
    w->timed = true;
    w->until_ns = clock_mono_ns() + w->seconds * 1000000000;
    w->later = NULL;
    w->sooner = last;
    *(last ? &last->later : &all->by_s[w->seconds].first) = w;
    all->by_s[w->seconds].last = w;
}

/* ---- by run ---- */

void wait_leave(struct call *c) {
    struct waits *all = &c->api->waits;
    struct run_wait *w = c->wait;
    if (!w) return;
    ASSERT(c->ended == wait_leave);
    ASSERT(all->count > 0);
    c->wait = NULL;
    c->ended = NULL;
    all->count--;
    share_give(w->share, SHARE_WAITS);
    leave_time(all, w);
    if (w->next) w->next->prev = w->prev;
    if (w->prev) {
        w->prev->next = w->next;
    } else { /* the key lives in a call: whoever is first lends its own */
        (void)map_del(&all->by_run, w->run_id);
        if (w->next) (void)map_put(&all->by_run, w->next->run_id, w->next);
    }
    if (all->count == 0) uv_timer_stop(&all->timer);
}

/* The run has not ended, but the wait has. */
static void stop(struct call *c) {
    struct run_wait *w = c->wait;
    wait_leave(c);
    w->over(c);
}

static void on_gone(void *context, struct http_exchange *exchange) {
    (void)exchange;
    struct call *c = context;
    if (!c->cut) return;
    c->cut = NULL;
    stop(c);
}

/* (What an answer brings, the connection's next request, joins at an end.) */
static void on_timer(uv_timer_t *timer) {
    struct waits *all = &((struct api *)timer->data)->waits;
    int64_t now_ns = clock_mono_ns();
    for (size_t s = 0; s <= WAIT_MAX_S; s++) {
        struct run_wait *w;
        while ((w = all->by_s[s].first) != NULL && w->until_ns <= now_ns) {
            w->call->cut = NULL;
            stop(w->call);
        }
    }
}

bool wait_join(struct call *c, struct run_wait *w) {
    struct api *api = c->api;
    struct waits *all = &api->waits;
    struct error ignored;
    ASSERT(!c->wait && w->seconds <= WAIT_MAX_S);
    if (all->count >= WAITS_MAX || api->draining ||
        share_take(&api->shares, str_c(c->who->tenant), SHARE_WAITS, &w->share, &ignored) != ST_OK)
        return false;
    struct run_wait *first = map_get(&all->by_run, w->run_id);
    if (!first && !map_put(&all->by_run, w->run_id, w)) {
        share_give(w->share, SHARE_WAITS);
        return false;
    }
    w->call = c;
    w->prev = first;
    w->next = first ? first->next : NULL;
    if (w->next) w->next->prev = w;
    if (first) first->next = w;
    c->wait = w;
    c->ended = wait_leave; /* however it ends: a read on the way may fail */
    if (all->count++ == 0) uv_timer_start(&all->timer, on_timer, WAITS_MS, WAITS_MS);
    return true;
}

void wait_begin(struct call *c) {
    c->wait->begun = true;
    if (c->api->draining) { /* since it joined */
        stop(c);
        return;
    }
    join_time(&c->api->waits, c->wait);
    c->cut = stop;
    http_on_gone(c->exchange, on_gone, c);
}

/* Called in the middle of a commit: an answer here would bring the connection's next request into
 * the engine, and that request may end the very run that is being observed. */
void waits_observe(struct api *api, const struct engine_note *note) {
    enum run_status now = note->flow->run.head.status;
    if (api->waits.count == 0 || !run_is_final(now)) return;
    struct run_wait *w = map_get(&api->waits.by_run, note->run_id);
    while (w) {
        struct run_wait *next = w->next;
        w->ended = (int)now;
        if (w->begun) {
            wait_leave(w->call);
            w->call->cut = NULL;
            call_later(w->call, w->over);
        }
        w = next;
    }
}
