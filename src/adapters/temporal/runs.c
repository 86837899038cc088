/* adapters/temporal/runs.c: the runs that the engine has told of, and what is wanted of them. */
#include "adapters/temporal/impl.h"

#include "base/log.h"

enum { RUN_ARENA_FIRST = 1024 };
#define RUN_ARENA_MAX ((size_t)1024 * 1024)

/* ---- making and freeing ---- */

struct temporal_run *execution_find(const struct temporal *t, str run_id) {
    return map_get(&t->run_by_id, run_id);
}

static void on_run_closed(uv_handle_t *handle) {
    struct temporal_run *r = handle->data;
    struct temporal *t = r->t;
    arena_release(&r->arena);
    arena_release(&r->read_arena);
    mem_free(r);
    t->handles--;
    temporal_check_end(t);
}

static void on_run_timer(uv_timer_t *timer) {
    struct temporal_run *r = timer->data;
    execution_enter(r);
    execution_exit(r);
}

struct temporal_run *execution_new(struct temporal *t, str run_id) {
    if (t->run_by_id.count >= RUNS_MAX) {
        if (!t->crowded)
            LOG(LOG_WARN, "temporal: too many runs at once; more have to wait",
                LOG_N("runs", RUNS_MAX));
        t->crowded = true;
        return NULL;
    }
    struct temporal_run *r = mem_alloc(sizeof *r);
    if (!r) return NULL;
    r->t = t;
    TAILQ_INIT(&r->wanted);
    arena_init(&r->arena, RUN_ARENA_FIRST, RUN_ARENA_MAX);
    arena_init(&r->read_arena, RUN_ARENA_FIRST, TASK_ARENA_MAX);
    if (!arena_try_str(&r->arena, run_id, &r->run_id) || !map_put(&t->run_by_id, r->run_id, r)) {
        arena_release(&r->arena);
        mem_free(r);
        return NULL;
    }
    r->at.idle = now_ms(t) + (uint64_t)t->idle_ms;
    TAILQ_INSERT_TAIL(&t->runs, r, link);
    uv_timer_init(t->loop, &r->timer);
    r->timer.data = r;
    t->handles++;
    return r;
}

/* Nothing is taken out of the list while somebody may be walking it. */
static void wanted_forget(struct temporal_run *r, struct wanted *w) {
    r->wanted_count--;
    w->attempt->executor_data = NULL;
    w->attempt = NULL;
}

static void wanted_purge(struct temporal_run *r) {
    struct wanted *next;
    ASSERT(r->busy == 0);
    for (struct wanted *w = TAILQ_FIRST(&r->wanted); w; w = next) {
        next = TAILQ_NEXT(w, link);
        if (w->attempt) continue;
        TAILQ_REMOVE(&r->wanted, w, link);
        mem_free(w);
    }
}

struct wanted *wanted_first(const struct temporal_run *r) {
    struct wanted *w = TAILQ_FIRST(&r->wanted);
    return w && !w->attempt ? wanted_after(w) : w;
}

struct wanted *wanted_after(const struct wanted *w) {
    struct wanted *next = TAILQ_NEXT(w, link);
    while (next && !next->attempt)
        next = TAILQ_NEXT(next, link);
    return next;
}

void execution_set_queue(struct temporal_run *r, str name) {
    if (!name.ptr || name.len == 0 || (r->queue && str_eq(task_queue_str(r->queue), name))) return;
    struct task_queue *old = r->queue;
    r->queue = task_queue_take(r->t, name);
    if (old) task_queue_drop(r->t, old);
}

static void execution_free(struct temporal_run *r) {
    struct temporal *t = r->t;
    ASSERT(r->busy == 0);
    for (struct wanted *w = wanted_first(r); w; w = wanted_after(w))
        wanted_forget(r, w);
    wanted_purge(r);
    if (r->call) rpc_cancel(r->call);
    if (r->wake_call) rpc_cancel(r->wake_call);
    if (r->task) task_drop(r->task);
    for (struct task *task = TAILQ_FIRST(&t->tasks); task; task = TAILQ_NEXT(task, link)) {
        if (task->run == r) task->run = NULL;
    }
    if (r->queue) task_queue_drop(t, r->queue);
    (void)map_del(&t->run_by_id, r->run_id);
    TAILQ_REMOVE(&t->runs, r, link);
    t->crowded = false;
    uv_close((uv_handle_t *)&r->timer, on_run_closed);
}

/* ---- news for the engine ---- */

void wanted_answer(struct temporal_run *r, struct wanted *w, const struct outcome *o) {
    struct attempt *attempt = w->attempt;
    ASSERT(r->busy > 0);
    wanted_forget(r, w);
    r->digests = true;
    attempt->done(attempt, o);
}

void wanted_cancelled(struct temporal_run *r, struct wanted *w) {
    struct outcome o = outcome_failed("CANCELLED", STR("the attempt was cancelled"));
    wanted_answer(r, w, &o);
}

void execution_cancel_wanted(struct temporal_run *r, bool stopped_only) {
    for (struct wanted *w = wanted_first(r); w; w = wanted_after(w)) {
        if (w->stop || !stopped_only) wanted_cancelled(r, w);
    }
}

void runs_release(struct temporal *t) {
    struct temporal_run *next;
    for (struct temporal_run *r = TAILQ_FIRST(&t->runs); r; r = next) {
        next = TAILQ_NEXT(r, link);
        r->doomed = true; /* one that is busy is freed when it is left */
        for (struct wanted *w = wanted_first(r); w; w = wanted_after(w))
            wanted_forget(r, w); /* unanswered: it goes on at the cluster */
        if (r->busy == 0) execution_free(r);
    }
}

static void tell_link(struct temporal_run *r) {
    struct temporal *t = r->t;
    struct provider_link link = {.workflow_id = r->run_id,
                                 .provider_run_id = str_c(r->execution),
                                 .queue = r->queue ? task_queue_str(r->queue) : STR_NONE,
                                 .continued = r->continued};
    r->digests = true;
    t->ports.linked(t->ports.context, r->run_id, &link);
}

void execution_set_id(struct temporal_run *r, str id) {
    size_t n = id.len < sizeof r->execution ? id.len : sizeof r->execution - 1;
    memset(r->execution, 0, sizeof r->execution);
    memcpy(r->execution, id.ptr, n);
}

/* Returns whether it is another one than the engine was told of. */
bool execution_tell_id(struct temporal_run *r, bool continued) {
    if (strcmp(r->told, r->execution) == 0) return false;
    memcpy(r->told, r->execution, sizeof r->told);
    r->continued = continued;
    r->told_signal = 0;
    r->told_cancel = false;
    tell_link(r);
    return true;
}

bool execution_tell(struct temporal_run *r, str execution, const struct history *h) {
    execution_set_id(r, execution);
    execution_set_queue(r, history_queue(h));
    if (r->phase == PHASE_UNKNOWN || r->phase == PHASE_NEW) r->phase = PHASE_READY;
    bool other = execution_tell_id(r, history_continues(h).ptr != NULL);
    return execution_tell_signals(r, h) || other;
}

/* The cluster counts attempts from 1; each beyond the first was given to another worker. */
void execution_tell_recovered(struct temporal_run *r, const struct attempt *attempt,
                              int32_t count) {
    struct temporal *t = r->t;
    if (count > 1)
        t->ports.recovered(t->ports.context, r->run_id, attempt->step->id, attempt->number,
                           count - 1);
}

bool execution_tell_ended(struct temporal_run *r, const struct history *h) {
    struct arena scratch;
    arena_init(&scratch, RUN_ARENA_FIRST, TASK_ARENA_MAX);
    bool told = false;
    for (struct wanted *w = wanted_first(r); w; w = wanted_after(w)) {
        const struct history_activity *a = history_find(h, wanted_id(w));
        if (!a || a->state == ACTIVITY_PENDING) continue;
        struct outcome outcome;
        history_outcome(a, w->stop, &scratch, &outcome);
        execution_tell_recovered(r, w->attempt, a->attempt);
        if (!w->attempt) continue; /* the engine left it, from inside the port */
        wanted_answer(r, w, &outcome);
        told = true;
    }
    arena_release(&scratch);
    return told;
}

void execution_gone(struct temporal_run *r, const char *code, str message) {
    if (r->phase == PHASE_GONE) return;
    r->phase = PHASE_GONE;
    r->gone_code = code;
    if (!arena_try_str(&r->arena, message, &r->gone_message)) r->gone_message = STR("");
}

void execution_other(struct temporal_run *r) {
    if (r->close == RUN_NEW) {
        execution_gone(r, "PROVIDER_FAILED",
                       STR("the cluster has a workflow of this id that is not the run's"));
        return;
    }
    execution_cancel_wanted(r, false);
    r->doomed = true;
}

/* ---- what is due ---- */

void execution_set_due(struct temporal_run *r) {
    r->due = r->close != RUN_NEW;
    for (struct wanted *w = wanted_first(r); w; w = wanted_after(w)) {
        if (r->due) return;
        r->due = w->stop ? !w->cancel_sent : !w->commanded && !r->drains;
    }
}

/* ---- one step ---- */

static bool is_due(uint64_t at, uint64_t now) { return at <= now; }

/* No execution, and none to come: what was wanted of it is answered here. */
static void step_gone(struct temporal_run *r) {
    struct temporal *t = r->t;
    if (!r->told_ended && r->close == RUN_NEW) {
        r->told_ended = true;
        t->ports.ended(t->ports.context, r->run_id, str_c(r->gone_code), r->gone_message);
    }
    execution_cancel_wanted(r, r->close == RUN_NEW);
    if (r->close != RUN_NEW) r->doomed = true;
}

/* Without an execution an attempt cannot have been scheduled: nobody has to be asked. */
static void step_new(struct temporal_run *r) {
    execution_cancel_wanted(r, true);
    if (r->close == RUN_NEW || r->call) return;
    if (!r->tried) {
        execution_cancel_wanted(r, false);
        r->doomed = true;
    } else {
        r->phase = PHASE_UNKNOWN; /* the cluster may have heard us */
    }
}

static bool is_watched(const struct temporal_run *r) { return r->wanted_count > 0 || r->due; }

static bool is_idle(const struct temporal_run *r) {
    return r->phase == PHASE_READY && r->wanted_count == 0 && r->close == RUN_NEW && !r->task &&
           !r->call && !r->wake_call && !r->due && r->queue == r->t->own_queue;
}

static void execution_step(struct temporal_run *r) {
    struct temporal *t = r->t;
    uint64_t now = now_ms(t);
    r->soon = false;
    if (r->phase == PHASE_NEW) step_new(r);
    if (r->phase == PHASE_GONE) step_gone(r);
    if (r->doomed || t->closing || !t->ready) return;
    if (r->tell_link && r->phase == PHASE_READY && r->told[0]) {
        r->tell_link = false;
        tell_link(r);
    }
    if (!r->call && is_due(r->at.retry, now) && rpc_active(t->rpc) > CALLS_BUSY)
        r->at.retry = now + CALLS_PAUSE_MS; /* after a start there is much to ask at once */
    if (!r->call && is_due(r->at.retry, now)) {
        if (r->phase == PHASE_NEW && r->close == RUN_NEW) execution_make(r);
        if (r->phase == PHASE_UNKNOWN) execution_describe(r);
        if (r->phase == PHASE_READY && is_watched(r) && is_due(r->at.look, now))
            execution_describe(r);
    }
    if (r->task && (!r->digests || is_due(r->at.hold, now))) execution_answer_task(r);
    if (r->phase == PHASE_READY && !r->task && r->due && !r->wake_call && is_due(r->at.wake, now))
        execution_wake(r);
    if (is_idle(r) && is_due(r->at.idle, now)) r->doomed = true;
}

static void sooner(uint64_t *first, bool applies, uint64_t at) {
    if (applies && at < *first) *first = at;
}

static void execution_arm(struct temporal_run *r) {
    uint64_t now = now_ms(r->t);
    uint64_t first = UINT64_MAX;
    bool ready = r->t->ready && !r->t->closing;
    sooner(&first, r->soon, now);
    sooner(&first, ready && !r->call && (r->phase == PHASE_NEW || r->phase == PHASE_UNKNOWN),
           r->at.retry);
    sooner(&first, ready && !r->call && r->phase == PHASE_READY && is_watched(r),
           r->at.look > r->at.retry ? r->at.look : r->at.retry);
    sooner(&first, ready && r->task, r->at.hold);
    sooner(&first, ready && r->phase == PHASE_READY && !r->task && r->due && !r->wake_call,
           r->at.wake);
    sooner(&first, ready && is_idle(r), r->at.idle);
    if (first == UINT64_MAX)
        uv_timer_stop(&r->timer);
    else
        uv_timer_start(&r->timer, on_run_timer, first > now ? first - now : 0, 0);
}

void execution_enter(struct temporal_run *r) { r->busy++; }

void execution_exit(struct temporal_run *r) {
    ASSERT(r->busy > 0);
    if (r->busy == 1 && !r->doomed) execution_step(r);
    r->busy--;
    if (r->busy > 0) return;
    wanted_purge(r);
    if (r->doomed)
        execution_free(r);
    else
        execution_arm(r);
}

void execution_doom(struct temporal_run *r) { r->doomed = true; }

void execution_soon(struct temporal_run *r) {
    r->soon = true;
    if (!is_idle(r)) r->at.idle = now_ms(r->t) + (uint64_t)r->t->idle_ms;
    if (r->busy == 0) execution_arm(r);
}

void execution_suspect(struct temporal_run *r) {
    r->at.look = now_ms(r->t);
    r->looked_length = 0;
    execution_soon(r);
}

void runs_kick(struct temporal *t) {
    for (struct temporal_run *r = TAILQ_FIRST(&t->runs); r; r = TAILQ_NEXT(r, link))
        execution_soon(r);
}

/* ---- the port ---- */

static struct temporal *of(struct provider *provider) { return (struct temporal *)provider; }

static bool keep(struct temporal_run *r, const struct provider_run *run) {
    const str from[] = {run->tenant_id, run->project_id,   run->environment_id,
                        run->plan_id,   run->plan_version, run->plan_ref};
    str *const to[] = {&r->tenant_id, &r->project_id,   &r->environment_id,
                       &r->plan_id,   &r->plan_version, &r->plan_ref};
    for (size_t i = 0; i < COUNT_OF(from); i++) {
        if (!arena_try_str(&r->arena, from[i], to[i])) return false;
    }
    return true;
}

void runs_open(struct provider *provider, const struct provider_run *run) {
    struct temporal *t = of(provider);
    struct temporal_run *r = execution_find(t, run->run_id);
    if (t->closing) return;
    if (r) {
        r->opened = true;
        r->tell_link = true;
        r->correlation = run->correlation;
        execution_soon(r);
        return;
    }
    r = execution_new(t, run->run_id);
    if (!r) return; /* the engine asks again */
    if (!keep(r, run)) {
        execution_free(r);
        return;
    }
    r->opened = true;
    r->correlation = run->correlation;
    bool linked = run->provider_run_id.ptr && run->provider_run_id.len > 0;
    r->phase = linked ? PHASE_UNKNOWN : PHASE_NEW;
    if (linked) execution_set_queue(r, run->queue);
    execution_soon(r);
}

void runs_start(struct provider *provider, struct attempt *attempt) {
    struct temporal *t = of(provider);
    attempt->executor_data = NULL;
    if (t->closing) return; /* as if it had come after us: not answered */
    struct temporal_run *r = execution_find(t, attempt->run_id);
    if (!r) r = execution_new(t, attempt->run_id); /* forgotten meanwhile: PHASE_UNKNOWN */
    size_t size = attempt->step->id.len + 24;
    struct wanted *w = r ? mem_alloc(sizeof *w + size) : NULL;
    if (!w) {
        attempt_fail(attempt, "PROVIDER_FAILURE", STR("out of memory, or too many runs at once"));
        return;
    }
    int n =
        snprintf(w->id, size, "%.*s#%lld", STR_ARG(attempt->step->id), (long long)attempt->number);
    w->id_len = (size_t)n;
    w->attempt = attempt;
    attempt->executor_data = w;
    TAILQ_INSERT_TAIL(&r->wanted, w, link);
    r->wanted_count++;
    r->opened = true;
    if (r->wanted_count == 1) r->at.look = now_ms(t) + (uint64_t)t->look_ms;
    execution_set_due(r);
    execution_soon(r);
}

void runs_stop(struct provider *provider, struct attempt *attempt) {
    struct temporal *t = of(provider);
    struct wanted *w = attempt->executor_data;
    struct temporal_run *r = execution_find(t, attempt->run_id);
    if (!w || !r || t->closing) return; /* answered */
    w->stop = true;
    execution_set_due(r);
    execution_soon(r);
}

/* The activity goes on, for the node that goes on with the run; whether that is still us is asked
 * again when the cluster has something for it. */
void runs_leave(struct provider *provider, struct attempt *attempt) {
    struct temporal *t = of(provider);
    struct wanted *w = attempt->executor_data;
    struct temporal_run *r = w ? execution_find(t, attempt->run_id) : NULL;
    if (r) {
        wanted_forget(r, w);
        r->opened = false;
        r->digests = false;
        execution_set_due(r);
        execution_soon(r);
    }
    attempt_fail(attempt, "CANCELLED", STR("it is left to whoever goes on"));
}

void runs_note(struct provider *provider, const struct provider_note *note) {
    struct temporal *t = of(provider);
    if (note->event == PROVIDER_RUN_ENDED && !t->closing)
        (void)execution_close(t, note->run_id, note->status, note->code, note->message);
}

struct temporal_run *execution_close(struct temporal *t, str run_id, enum run_status end, str code,
                                     str message) {
    struct temporal_run *r = execution_find(t, run_id);
    if (!r) r = execution_new(t, run_id); /* PHASE_UNKNOWN */
    if (!r) return NULL;                  /* the sweep will find it */
    r->close = end;
    if (!arena_try_str(&r->arena, code, &r->code)) r->code = STR_NONE;
    if (!arena_try_str(&r->arena, message, &r->message)) r->message = STR_NONE;
    r->digests = false; /* nothing more will be wanted */
    r->at.look = now_ms(t) + (uint64_t)t->look_ms;
    execution_set_due(r);
    execution_soon(r);
    return r;
}

void runs_rested(struct provider *provider, str run_id) {
    struct temporal *t = of(provider);
    struct temporal_run *r = execution_find(t, run_id);
    if (!r || t->closing) return;
    r->digests = false;
    if (r->task || r->due) execution_soon(r);
}

bool runs_idle(const struct provider *provider) {
    const struct temporal *t = (const struct temporal *)provider;
    for (const struct temporal_run *r = TAILQ_FIRST(&t->runs); r; r = TAILQ_NEXT(r, link)) {
        if (r->close != RUN_NEW) return false;
    }
    return true;
}
