/* adapters/provider_runs.c: the records of runs that providers share. See provider_runs.h. */
#include "adapters/provider_runs.h"

#include <string.h>

#include "base/log.h"

/* ---- one run ---- */

static void tracked_move(struct tracked_run *run, enum tracked_state state) {
    static const uint8_t allowed[] = {
        [TRACKED_RESTS] = 1 << TRACKED_SOON | 1 << TRACKED_DROPPED,
        [TRACKED_SOON] = 1 << TRACKED_RESTS | 1 << TRACKED_DROPPED,
        [TRACKED_DROPPED] = 1 << TRACKED_FREED,
        [TRACKED_FREED] = 0,
    };
    ASSERT(allowed[run->state] & 1 << state);
    run->state = state;
}

static void on_timer(uv_timer_t *timer) {
    struct tracked_run *run = timer->data;
    tracked_enter(run);
    tracked_exit(run);
}

static void arm(struct tracked_run *run) {
    uint64_t now = provider_runs_now(run->runs);
    uint64_t at = run->state == TRACKED_SOON ? now : run->runs->ops->next(run);
    ASSERT(run->inside == 0);
    if (at == PROVIDER_NEVER)
        uv_timer_stop(&run->timer);
    else
        uv_timer_start(&run->timer, on_timer, at > now ? at - now : 0, 0);
}

/* Nothing is taken off the list while somebody may be walking along it. */
static void purge(struct tracked_run *run) {
    struct wanted *next;
    ASSERT(run->inside == 0);
    for (struct wanted *w = TAILQ_FIRST(&run->wanted); w; w = next) {
        next = TAILQ_NEXT(w, link);
        if (w->attempt) continue;
        TAILQ_REMOVE(&run->wanted, w, link);
        mem_free(w);
    }
}

static void on_freed(uv_handle_t *handle) {
    struct tracked_run *run = handle->data;
    struct provider_runs *runs = run->runs;
    ASSERT(run->state == TRACKED_FREED);
    ASSERT(runs->handles > 0);
    mem_free(run);
    runs->handles--;
    if (runs->closing && runs->handles == 0) runs->ops->closed(runs);
}

static void tracked_free(struct tracked_run *run) {
    struct provider_runs *runs = run->runs;
    ASSERT(run->inside == 0);
    tracked_move(run, TRACKED_FREED);
    runs->ops->release(run);
    ASSERT(run->wanted_count == 0); /* nobody waits for an answer that will never come */
    purge(run);
    TAILQ_REMOVE(&runs->all, run, link);
    runs->crowded = false;
    uv_close((uv_handle_t *)&run->timer, on_freed);
}

void tracked_enter(struct tracked_run *run) {
    ASSERT(run->state != TRACKED_FREED);
    run->inside++;
}

void tracked_exit(struct tracked_run *run) {
    ASSERT(run->inside > 0);
    if (run->inside == 1 && !tracked_is_dropped(run)) {
        if (run->state == TRACKED_SOON) tracked_move(run, TRACKED_RESTS);
        run->runs->ops->step(run);
    }
    run->inside--;
    if (run->inside > 0) return;
    if (tracked_is_dropped(run)) {
        tracked_free(run);
        return;
    }
    purge(run);
    run->runs->ops->check(run);
    arm(run);
}

void tracked_soon(struct tracked_run *run) {
    if (run->state == TRACKED_RESTS) tracked_move(run, TRACKED_SOON);
    if (run->state == TRACKED_SOON && run->inside == 0) arm(run);
}

/* From now on it is not found by its id: the engine, or a task, may make a new one. */
void tracked_drop(struct tracked_run *run) {
    if (tracked_is_dropped(run)) return;
    tracked_move(run, TRACKED_DROPPED);
    void *removed = map_del(&run->runs->by_id, run->run_id);
    ASSERT(removed == run);
    if (run->inside == 0) tracked_free(run);
}

int64_t tracked_pause(struct tracked_run *run) {
    const struct provider_runs *runs = run->runs;
    run->retry_ms = run->retry_ms == 0 ? runs->retry_ms_first : run->retry_ms * 2;
    if (run->retry_ms > runs->retry_ms_max) run->retry_ms = runs->retry_ms_max;
    return run->retry_ms;
}

void tracked_failed(struct tracked_run *run) {
    run->retry_at = provider_runs_now(run->runs) + (uint64_t)tracked_pause(run);
}

void tracked_worked(struct tracked_run *run) {
    run->retry_ms = 0;
    run->retry_at = 0;
}

/* ---- the registry ---- */

void provider_runs_open(struct provider_runs *runs) {
    ASSERT(runs->loop && runs->ops && runs->ports);
    ASSERT(runs->runs_max > 0);
    ASSERT(runs->retry_ms_first > 0 && runs->retry_ms_first <= runs->retry_ms_max);
    map_init(&runs->by_id);
    TAILQ_INIT(&runs->all);
}

void provider_runs_close(struct provider_runs *runs) {
    ASSERT(!runs->closing);
    runs->closing = true;
    struct tracked_run *next;
    for (struct tracked_run *run = TAILQ_FIRST(&runs->all); run; run = next) {
        next = TAILQ_NEXT(run, link);
        for (struct wanted *w = wanted_first(run); w; w = wanted_after(w))
            wanted_forget(w);
        tracked_drop(run); /* one that somebody is inside of is freed when it is left */
    }
}

void provider_runs_release(struct provider_runs *runs) {
    ASSERT(runs->handles == 0);
    ASSERT(TAILQ_EMPTY(&runs->all));
    map_release(&runs->by_id);
}

struct tracked_run *provider_runs_find(const struct provider_runs *runs, str run_id) {
    return map_get(&runs->by_id, run_id);
}

struct tracked_run *provider_runs_add(struct provider_runs *runs, str run_id, size_t size) {
    ASSERT(!runs->closing);
    ASSERT(size >= sizeof(struct tracked_run));
    ASSERT(!provider_runs_find(runs, run_id));
    if (runs->by_id.count >= runs->runs_max) {
        if (!runs->crowded)
            LOG(LOG_WARN, "a provider has too many runs at once; more have to wait",
                LOG_N("runs", (int64_t)runs->runs_max));
        runs->crowded = true;
        return NULL;
    }
    struct tracked_run *run = mem_alloc(size + run_id.len + 1);
    if (!run) return NULL;
    char *id = (char *)run + size;
    memcpy(id, run_id.ptr, run_id.len);
    run->run_id = str_n(id, run_id.len);
    run->runs = runs;
    TAILQ_INIT(&run->wanted);
    if (!map_put(&runs->by_id, run->run_id, run)) {
        mem_free(run);
        return NULL;
    }
    TAILQ_INSERT_TAIL(&runs->all, run, link);
    uv_timer_init(runs->loop, &run->timer);
    run->timer.data = run;
    runs->handles++;
    return run;
}

void provider_runs_all_soon(struct provider_runs *runs) {
    for (struct tracked_run *run = TAILQ_FIRST(&runs->all); run; run = TAILQ_NEXT(run, link))
        tracked_soon(run);
}

/* ---- attempts ---- */

struct wanted *tracked_want(struct tracked_run *run, struct attempt *attempt, size_t size) {
    ASSERT(size >= sizeof(struct wanted));
    ASSERT(!tracked_is_dropped(run));
    struct wanted *w = mem_alloc(size);
    if (!w) return NULL;
    w->run = run;
    w->attempt = attempt;
    attempt->executor_data = w;
    TAILQ_INSERT_TAIL(&run->wanted, w, link);
    run->wanted_count++;
    return w;
}

static struct wanted *open_from(struct wanted *w) {
    while (w && !w->attempt)
        w = TAILQ_NEXT(w, link);
    return w;
}

struct wanted *wanted_first(const struct tracked_run *run) {
    return open_from(TAILQ_FIRST(&run->wanted));
}

struct wanted *wanted_after(const struct wanted *w) {
    return open_from(TAILQ_NEXT(w, link));
}

void wanted_forget(struct wanted *w) {
    ASSERT(w->attempt);
    ASSERT(w->attempt->executor_data == w);
    w->attempt->executor_data = NULL;
    w->attempt = NULL;
    if (!w->run) return;
    ASSERT(w->run->wanted_count > 0);
    w->run->wanted_count--;
}

void wanted_detach(struct wanted *w) {
    ASSERT(w->run && w->attempt);
    TAILQ_REMOVE(&w->run->wanted, w, link);
    w->run->wanted_count--;
    w->run = NULL;
}

void wanted_answer(struct wanted *w, const struct outcome *outcome) {
    struct attempt *attempt = w->attempt;
    ASSERT(attempt);
    ASSERT(!w->run || w->run->inside > 0); /* the engine may call us back */
    wanted_forget(w);
    attempt->done(attempt, outcome);
}

void wanted_cancelled(struct wanted *w, str message) {
    struct outcome outcome = outcome_failed(REASON_CANCELLED, message);
    wanted_answer(w, &outcome);
}

/* ---- whose run is it? ---- */

enum run_claim provider_runs_claim(const struct provider_runs *runs, str run_id, str step_id,
                                   struct arena *arena, struct provider_found *out,
                                   struct error *err) {
    const struct provider_ports *ports = runs->ports;
    *out = (struct provider_found){0};
    *err = (struct error){0};
    status st = ports->find(ports->context, run_id, step_id, arena, out, err);
    if (st == ST_NOT_FOUND) return CLAIM_UNKNOWN;
    if (st != ST_OK) {
        err->code = st;
        return CLAIM_UNSURE;
    }
    if (run_is_final(out->status)) return CLAIM_OVER;
    return out->ours ? CLAIM_OURS : CLAIM_ELSEWHERE;
}

/* ---- executions that should be closed ---- */

bool sweep_is_due(const struct provider_sweep *sweep, uint64_t now) { return sweep->at <= now; }

bool sweep_next_page(struct provider_sweep *sweep, bool worked, bool has_more, uint64_t now) {
    ASSERT(sweep->every_ms > 0 && sweep->pages_max > 0);
    ASSERT(sweep->page < sweep->pages_max);
    if (worked && has_more && sweep->page + 1 < sweep->pages_max) {
        sweep->page++;
        sweep->at = now;
        return true;
    }
    sweep->page = 0;
    sweep->at = now + (uint64_t)(worked ? sweep->every_ms : sweep->every_ms / 10);
    return false;
}

bool provider_runs_left_over(const struct provider_runs *runs, str run_id, struct arena *arena,
                             struct provider_found *found) {
    struct error err;
    if (run_id.len == 0 || provider_runs_find(runs, run_id)) return false;
    return provider_runs_claim(runs, run_id, STR_NONE, arena, found, &err) == CLAIM_OVER;
}
