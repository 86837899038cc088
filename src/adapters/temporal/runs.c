/* adapters/temporal/runs.c: the runs that the engine has told of: their states, what is due for
 * them, and what the engine calls.
 *
 * ask_at(), answer_at(), wake_at() and idle_at() each say when one thing is due. A step does what
 * is due by now, and the run's timer is set for the earliest of the rest. */
#include "adapters/temporal/impl.h"

enum { RUN_ARENA_FIRST = 1024 };
#define RUN_ARENA_MAX ((size_t)1024 * 1024)

static struct temporal_run *of_tracked(const struct tracked_run *run) {
    return (struct temporal_run *)run;
}

/* ---- states ---- */

void temporal_run_move(struct temporal_run *r, enum execution_state state) {
    static const uint8_t allowed[EXECUTION_STATE_COUNT] = {
        [EXECUTION_UNKNOWN] = 1 << EXECUTION_OPEN | 1 << EXECUTION_GONE,
        [EXECUTION_NONE] = 1 << EXECUTION_ASKED | 1 << EXECUTION_OPEN,
        [EXECUTION_ASKED] = 1 << EXECUTION_UNKNOWN | 1 << EXECUTION_OPEN,
        [EXECUTION_OPEN] = 1 << EXECUTION_UNKNOWN | 1 << EXECUTION_DRAINING | 1 << EXECUTION_GONE,
        [EXECUTION_DRAINING] = 1 << EXECUTION_UNKNOWN | 1 << EXECUTION_OPEN | 1 << EXECUTION_GONE,
        [EXECUTION_GONE] = 1 << EXECUTION_GONE_TOLD | 1 << EXECUTION_OPEN,
        [EXECUTION_GONE_TOLD] = 1 << EXECUTION_OPEN,
    };
    if (r->state == state) return;
    ASSERT(allowed[r->state] & 1 << state);
    r->state = state;
}

void temporal_run_word(struct temporal_run *r, enum engine_word word) {
    static const uint8_t after[ENGINE_SIDE_COUNT][ENGINE_WORD_COUNT] = {
        /* TOLD, OPENED, RESTED, LEFT, ENDED */
        [ENGINE_UNAWARE] = {ENGINE_ASKED, ENGINE_RESTS, ENGINE_UNAWARE, ENGINE_UNAWARE,
                            ENGINE_ENDED},
        [ENGINE_ASKED] = {ENGINE_ASKED, ENGINE_DECIDES, ENGINE_UNAWARE, ENGINE_UNAWARE,
                          ENGINE_ENDED},
        [ENGINE_DECIDES] = {ENGINE_DECIDES, ENGINE_DECIDES, ENGINE_RESTS, ENGINE_UNAWARE,
                            ENGINE_ENDED},
        [ENGINE_RESTS] = {ENGINE_DECIDES, ENGINE_RESTS, ENGINE_RESTS, ENGINE_UNAWARE, ENGINE_ENDED},
        [ENGINE_ENDED] = {ENGINE_ENDED, ENGINE_ENDED, ENGINE_ENDED, ENGINE_ENDED, ENGINE_ENDED},
    };
    ASSERT(word < ENGINE_WORD_COUNT);
    r->side = after[r->side][word];
}

static void check(const struct tracked_run *tracked) {
    const struct temporal_run *r = of_tracked(tracked);
    ASSERT((r->side == ENGINE_ENDED) == (r->end != RUN_NEW));
    ASSERT(r->end == RUN_NEW || run_is_final(r->end));
    ASSERT(r->state != EXECUTION_NONE || (!r->call && !r->wake_call));
    if (r->state == EXECUTION_GONE || r->state == EXECUTION_GONE_TOLD) ASSERT(r->gone_code);
    if (r->task) {
        ASSERT(r->task->run == r);
        ASSERT(r->task->state == TASK_HELD);
    }
}

/* ---- making and freeing ---- */

struct temporal_run *temporal_run_find(const struct temporal *t, str run_id) {
    return of_tracked(provider_runs_find(&t->runs, run_id));
}

struct temporal_run *temporal_run_new(struct temporal *t, str run_id) {
    struct temporal_run *r = of_tracked(provider_runs_add(&t->runs, run_id, sizeof *r));
    if (!r) return NULL;
    r->t = t;
    arena_init(&r->arena, RUN_ARENA_FIRST, RUN_ARENA_MAX);
    arena_init(&r->read.arena, RUN_ARENA_FIRST, TASK_ARENA_MAX);
    r->at.idle = now_ms(t) + (uint64_t)t->idle_ms;
    return r;
}

static void let_go(struct tracked_run *tracked) {
    struct temporal_run *r = of_tracked(tracked);
    if (r->call) rpc_cancel(r->call);
    if (r->wake_call) rpc_cancel(r->wake_call);
    workflow_tasks_leave(r);
    if (r->queue) task_queue_drop(r->t, r->queue);
    arena_release(&r->arena);
    arena_release(&r->read.arena);
}

static void on_runs_closed(struct provider_runs *runs) {
    temporal_check_end((struct temporal *)((char *)runs - offsetof(struct temporal, runs)));
}

/* ---- what is known of its execution ---- */

void temporal_run_set_queue(struct temporal_run *r, str name) {
    if (!name.ptr || name.len == 0 || (r->queue && str_eq(task_queue_str(r->queue), name))) return;
    struct task_queue *old = r->queue;
    r->queue = task_queue_take(r->t, name);
    if (old) task_queue_drop(r->t, old);
}

void temporal_run_set_execution(struct temporal_run *r, str id) {
    size_t n = id.len < sizeof r->execution ? id.len : sizeof r->execution - 1;
    memset(r->execution, 0, sizeof r->execution);
    if (n > 0) memcpy(r->execution, id.ptr, n);
}

void temporal_run_gone(struct temporal_run *r, enum reason code, str message) {
    if (r->state == EXECUTION_GONE || r->state == EXECUTION_GONE_TOLD) return;
    temporal_run_move(r, EXECUTION_GONE);
    r->gone_code = code;
    if (!arena_try_str(&r->arena, message, &r->gone_message)) r->gone_message = STR("");
}

void temporal_run_other(struct temporal_run *r) {
    if (r->side != ENGINE_ENDED) {
        temporal_run_gone(r, REASON_PROVIDER_FAILED,
                          STR("the cluster has a workflow of this id that is not the run's"));
        return;
    }
    temporal_wanted_cancel(r, false);
    tracked_drop(&r->tracked);
}

void temporal_run_suspect(struct temporal_run *r) {
    r->at.look = now_ms(r->t);
    r->looked_length = 0;
    tracked_soon(&r->tracked);
}

/* ---- what is wanted of it ---- */

struct temporal_wanted *temporal_wanted_first(const struct temporal_run *r) {
    return (struct temporal_wanted *)wanted_first(&r->tracked);
}

struct temporal_wanted *temporal_wanted_after(const struct temporal_wanted *w) {
    return (struct temporal_wanted *)wanted_after(&w->wanted);
}

void temporal_wanted_cancel(struct temporal_run *r, bool stopped_only) {
    static const struct outcome cancelled = {.code = STR_LIT("CANCELLED"),
                                             .message = STR_LIT("the attempt was cancelled")};
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w)) {
        if (w->stop || !stopped_only) temporal_tell_answer(r, w, &cancelled);
    }
}

/* Whether the next workflow task has something to carry, other than what an answer under way does.
 */
static bool needs_task(const struct temporal_run *r) {
    if (r->side == ENGINE_ENDED) return true;
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w)) {
        if (w->in_answer) continue;
        if (w->stop && w->sent != SENT_CANCEL) return true;
        if (!w->stop && w->sent == SENT_NOTHING && r->state != EXECUTION_DRAINING) return true;
    }
    return false;
}

/* ---- what is due, and when ---- */

/* The cluster is asked: to make an execution, what it has of the run, or whether it still has it.
 */
static uint64_t ask_at(const struct temporal_run *r) {
    uint64_t retry = r->tracked.retry_at;
    if (r->call) return PROVIDER_NEVER;
    switch (r->state) {
    case EXECUTION_UNKNOWN:
        return retry;
    case EXECUTION_NONE:
    case EXECUTION_ASKED:
        return r->side == ENGINE_ENDED ? PROVIDER_NEVER : retry;
    case EXECUTION_OPEN:
    case EXECUTION_DRAINING:
        if (r->tracked.wanted_count == 0 && !needs_task(r)) return PROVIDER_NEVER;
        return r->at.look > retry ? r->at.look : retry;
    case EXECUTION_GONE:
    case EXECUTION_GONE_TOLD:
    case EXECUTION_STATE_COUNT:
        break;
    }
    return PROVIDER_NEVER;
}

/* A held task is answered when the engine has rested, or has been waited for long enough. */
static uint64_t answer_at(const struct temporal_run *r) {
    if (!r->task) return PROVIDER_NEVER;
    return temporal_run_is_heard(r) ? r->at.hold : 0;
}

/* A workflow task is asked for when there is something to say and none is there to say it with. */
static uint64_t wake_at(const struct temporal_run *r) {
    if (!temporal_run_is_open(r) || r->task || r->wake_call || !needs_task(r))
        return PROVIDER_NEVER;
    return r->at.wake;
}

/* A run of which nothing is wanted is forgotten, unless nobody else polls its queue. */
static bool is_idle(const struct temporal_run *r) {
    return temporal_run_is_open(r) && r->tracked.wanted_count == 0 && !r->task && !r->call &&
           !r->wake_call && !needs_task(r) && r->queue == r->t->own_queue;
}

static uint64_t idle_at(const struct temporal_run *r) {
    return is_idle(r) ? r->at.idle : PROVIDER_NEVER;
}

static uint64_t next_at(const struct tracked_run *tracked) {
    const struct temporal_run *r = of_tracked(tracked);
    if (r->t->state != TEMPORAL_READY) return PROVIDER_NEVER;
    const uint64_t at[] = {ask_at(r), answer_at(r), wake_at(r), idle_at(r)};
    uint64_t first = PROVIDER_NEVER;
    for (size_t i = 0; i < COUNT_OF(at); i++)
        first = at[i] < first ? at[i] : first;
    return first;
}

/* ---- one step ---- */

/* Without an execution an attempt cannot have been scheduled: nobody has to be asked. */
static void step_none(struct temporal_run *r) {
    temporal_wanted_cancel(r, true);
    if (r->side != ENGINE_ENDED || r->call) return;
    if (r->state == EXECUTION_ASKED) {
        temporal_run_move(r, EXECUTION_UNKNOWN);
        return;
    }
    temporal_wanted_cancel(r, false);
    tracked_drop(&r->tracked);
}

/* No execution, and none to come: what was wanted of it is answered here. */
static void step_gone(struct temporal_run *r) {
    struct temporal *t = r->t;
    if (r->state == EXECUTION_GONE && r->side != ENGINE_ENDED) {
        temporal_run_move(r, EXECUTION_GONE_TOLD);
        t->ports.ended(t->ports.context, r->tracked.run_id, r->gone_code, r->gone_message);
    }
    temporal_wanted_cancel(r, r->side != ENGINE_ENDED);
    if (r->side == ENGINE_ENDED) tracked_drop(&r->tracked);
}

static void ask(struct temporal_run *r, uint64_t now) {
    if (rpc_active(r->t->rpc) > CALLS_BUSY)
        r->tracked.retry_at = now + CALLS_PAUSE_MS; /* after a start there is much to ask at once */
    else if (r->state == EXECUTION_NONE || r->state == EXECUTION_ASKED)
        temporal_run_make(r);
    else
        temporal_run_describe(r);
}

static void take_step(struct tracked_run *tracked) {
    struct temporal_run *r = of_tracked(tracked);
    uint64_t now = now_ms(r->t);
    if (r->state == EXECUTION_NONE || r->state == EXECUTION_ASKED) step_none(r);
    if (r->state == EXECUTION_GONE || r->state == EXECUTION_GONE_TOLD) step_gone(r);
    if (tracked_is_dropped(tracked) || r->t->state != TEMPORAL_READY) return;
    if (r->tell_link && temporal_run_is_open(r) && r->told.execution[0]) {
        r->tell_link = false;
        temporal_tell_link(r);
    }
    if (ask_at(r) <= now) ask(r, now);
    if (answer_at(r) <= now) workflow_task_answer(r);
    if (tracked_is_dropped(tracked)) return;
    if (wake_at(r) <= now) temporal_run_wake(r);
    if (idle_at(r) <= now) tracked_drop(tracked);
}

const struct provider_runs_ops temporal_runs_ops = {
    .step = take_step,
    .next = next_at,
    .release = let_go,
    .check = check,
    .closed = on_runs_closed,
};

/* ---- the port ---- */

static struct temporal *of(struct provider *provider) { return (struct temporal *)provider; }

/* The engine has said something: a step in the next turn, since it must not be called back now. */
static void soon(struct temporal_run *r) {
    if (!is_idle(r)) r->at.idle = now_ms(r->t) + (uint64_t)r->t->idle_ms;
    tracked_soon(&r->tracked);
}

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

void temporal_open_run(struct provider *provider, const struct provider_run *run) {
    struct temporal *t = of(provider);
    if (temporal_is_closing(t)) return;
    struct temporal_run *r = temporal_run_find(t, run->run_id);
    if (r) {
        r->tell_link = true;
    } else {
        r = temporal_run_new(t, run->run_id);
        if (!r) return; /* the engine asks again */
        if (!keep(r, run)) {
            tracked_drop(&r->tracked);
            return;
        }
        if (run->provider_run_id.len > 0)
            temporal_run_set_queue(r, run->queue);
        else
            r->state = EXECUTION_NONE;
    }
    r->correlation = run->correlation;
    temporal_run_word(r, WORD_OPENED);
    soon(r);
}

void temporal_start(struct provider *provider, struct attempt *attempt) {
    struct temporal *t = of(provider);
    attempt->executor_data = NULL;
    if (temporal_is_closing(t)) return; /* as if it had come after us: not answered */
    struct temporal_run *r = temporal_run_find(t, attempt->run_id);
    if (!r) r = temporal_run_new(t, attempt->run_id); /* forgotten meanwhile */
    size_t id_size = attempt->step->id.len + 24;
    struct temporal_wanted *w =
        r ? (struct temporal_wanted *)tracked_want(&r->tracked, attempt, sizeof *w + id_size)
          : NULL;
    if (!w) {
        attempt_fail(attempt, REASON_PROVIDER_FAILURE,
                     STR("out of memory, or too many runs at once"));
        return;
    }
    int n = snprintf(w->id, id_size, "%.*s#%lld", STR_ARG(attempt->step->id),
                     (long long)attempt->number);
    ASSERT(n > 0 && (size_t)n < id_size);
    w->id_len = (size_t)n;
    temporal_run_word(r, WORD_OPENED);
    if (r->tracked.wanted_count == 1) r->at.look = now_ms(t) + (uint64_t)t->look_ms;
    soon(r);
}

void temporal_stop(struct provider *provider, struct attempt *attempt) {
    struct temporal_wanted *w = attempt->executor_data;
    if (!w || temporal_is_closing(of(provider))) return; /* answered */
    w->stop = true;
    soon(of_tracked(w->wanted.run));
}

/* The activity goes on, for the node that goes on with the run; whether that is still us is asked
 * again when the cluster has something for it. */
void temporal_leave(struct provider *provider, struct attempt *attempt) {
    struct temporal_wanted *w = attempt->executor_data;
    UNUSED(provider);
    if (w) {
        struct temporal_run *r = of_tracked(w->wanted.run);
        wanted_forget(&w->wanted);
        temporal_run_word(r, WORD_LEFT);
        soon(r);
    }
    attempt_fail(attempt, REASON_CANCELLED, STR("it is left to whoever goes on"));
}

struct temporal_run *temporal_run_close(struct temporal *t, str run_id, enum run_status end,
                                        str code, str message) {
    struct temporal_run *r = temporal_run_find(t, run_id);
    ASSERT(run_is_final(end));
    if (!r) r = temporal_run_new(t, run_id);
    if (!r) return NULL; /* the sweep will find it */
    temporal_run_word(r, WORD_ENDED);
    r->end = end;
    if (!arena_try_str(&r->arena, code, &r->code)) r->code = STR_NONE;
    if (!arena_try_str(&r->arena, message, &r->message)) r->message = STR_NONE;
    r->at.look = now_ms(t) + (uint64_t)t->look_ms;
    soon(r);
    return r;
}

void temporal_note(struct provider *provider, const struct provider_note *note) {
    struct temporal *t = of(provider);
    if (note->event == PROVIDER_RUN_ENDED && !temporal_is_closing(t))
        (void)temporal_run_close(t, note->run_id, note->status, note->code, note->message);
}

void temporal_rested(struct provider *provider, str run_id) {
    struct temporal *t = of(provider);
    struct temporal_run *r = temporal_run_find(t, run_id);
    if (!r || temporal_is_closing(t)) return;
    temporal_run_word(r, WORD_RESTED);
    if (r->task || needs_task(r)) soon(r);
}

bool temporal_idle(const struct provider *provider) {
    const struct temporal *t = (const struct temporal *)provider;
    for (const struct tracked_run *run = TAILQ_FIRST(&t->runs.all); run;
         run = TAILQ_NEXT(run, link)) {
        if (of_tracked(run)->side == ENGINE_ENDED) return false;
    }
    return true;
}
