/* adapters/conductor/runs.c: the runs that Conductor dispatches: their records, their states, and
 * what is next for each. What is done about a workflow is in workflow.c, until the run is over, and
 * then in ending.c. */
#include <assert.h>
#include <string.h>

#include "adapters/conductor/impl.h"

static struct conductor_run *of_tracked(const struct tracked_run *run) {
    return (struct conductor_run *)run;
}

/* ---- states ---- */

void conductor_run_move(struct conductor_run *r, enum workflow_state state) {
    enum {
        ends = 1 << WORKFLOW_COMPLETES | 1 << WORKFLOW_FAILS | 1 << WORKFLOW_TERMINATES,
    };
    static const uint16_t allowed[WORKFLOW_STATE_COUNT] = {
        [WORKFLOW_UNTOLD] = 1 << WORKFLOW_SOUGHT | 1 << WORKFLOW_REFUSED | 1 << WORKFLOW_LINKED |
                            1 << WORKFLOW_LEFT | ends,
        [WORKFLOW_SOUGHT] = 1 << WORKFLOW_ABSENT | 1 << WORKFLOW_LINKED | 1 << WORKFLOW_LEFT,
        [WORKFLOW_ABSENT] = 1 << WORKFLOW_SOUGHT | 1 << WORKFLOW_REFUSED | 1 << WORKFLOW_LINKED |
                            1 << WORKFLOW_LEFT,
        [WORKFLOW_REFUSED] = 1 << WORKFLOW_LOST | 1 << WORKFLOW_LEFT,
        [WORKFLOW_LINKED] = 1 << WORKFLOW_LOST | ends,
        [WORKFLOW_LOST] = 0,
        [WORKFLOW_LEFT] = ends,
        [WORKFLOW_COMPLETES] = 0,
        [WORKFLOW_FAILS] = 1 << WORKFLOW_FAILED | 1 << WORKFLOW_TERMINATES,
        [WORKFLOW_FAILED] = 1 << WORKFLOW_TERMINATES,
        [WORKFLOW_TERMINATES] = 0,
    };
    static_assert(WORKFLOW_STATE_COUNT <= 16, "a bit for each");
    ASSERT(allowed[r->state] & 1 << state);
    r->state = state;
}

static void check(const struct tracked_run *tracked) {
    const struct conductor_run *r = of_tracked(tracked);
    ASSERT(conductor_run_is_ending(r) == (r->end != RUN_NEW));
    ASSERT(!r->call || r->answered);
    switch (r->state) {
    case WORKFLOW_UNTOLD:
    case WORKFLOW_LOST:
        break;
    case WORKFLOW_SOUGHT:
    case WORKFLOW_ABSENT:
        ASSERT(r->start_body);
        ASSERT(!r->workflow[0]);
        break;
    case WORKFLOW_REFUSED:
        ASSERT(r->refused[0]);
        ASSERT(!r->workflow[0]);
        break;
    case WORKFLOW_LEFT:
        ASSERT(!r->workflow[0]);
        ASSERT(r->name[0]); /* it is looked for under that name */
        break;
    case WORKFLOW_LINKED:
    case WORKFLOW_COMPLETES:
    case WORKFLOW_FAILS:
    case WORKFLOW_FAILED:
    case WORKFLOW_TERMINATES:
        ASSERT(r->workflow[0]);
        break;
    case WORKFLOW_STATE_COUNT:
        ASSERT(false);
    }
}

/* ---- memory ---- */

struct conductor_run *conductor_run_find(const struct conductor *c, str run_id) {
    return of_tracked(provider_runs_find(&c->runs, run_id));
}

struct conductor_run *conductor_run_new(struct conductor *c, str run_id) {
    struct conductor_run *r = of_tracked(provider_runs_add(&c->runs, run_id, sizeof *r));
    if (!r) return NULL;
    r->c = c;
    r->since_ms = conductor_now(c);
    r->ours_ms = r->since_ms + OURS_MS;
    map_init(&r->steps);
    return r;
}

static void let_go(struct tracked_run *tracked) {
    struct conductor_run *r = of_tracked(tracked);
    struct map_slot *slot;
    size_t i = 0;
    while (map_next(&r->steps, &i, &slot)) {
        conductor_step_free(slot->value);
        i = 0; /* what is behind a removed entry moves */
    }
    map_release(&r->steps);
    if (r->call) rest_cancel(r->call);
    if (r->poller) conductor_poller_leave(r->poller);
    mem_free(r->start_body);
}

static void on_runs_closed(struct provider_runs *runs) {
    conductor_free_if_over((struct conductor *)((char *)runs - offsetof(struct conductor, runs)));
}

void conductor_run_release(struct conductor_run *r) {
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);)
        conductor_step_give_back(slot->value);
    tracked_drop(&r->tracked);
}

/* ---- requests ---- */

void conductor_run_wait(struct conductor_run *r, int64_t ms) {
    r->tracked.retry_at = (uint64_t)(conductor_now(r->c) + ms);
}

static void on_answer(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    struct conductor *c = r->c;
    tracked_enter(&r->tracked);
    r->call = NULL;
    if (answer->st == ST_RETRY)
        tracked_failed(&r->tracked);
    else
        tracked_worked(&r->tracked);
    r->answered(r, answer);
    tracked_exit(&r->tracked);
    if (conductor_is_closing(c)) conductor_wake(c);
}

void conductor_run_send(struct conductor_run *r, const struct rest_request *request,
                        run_answered answered) {
    ASSERT(!r->call);
    r->answered = answered;
    r->asked_paused = r->paused;
    r->call = rest_start(r->c->rest, request, on_answer, r);
    if (!r->call) conductor_run_wait(r, RUN_DELAY_MS_MAX);
}

void conductor_run_send_workflow(struct conductor_run *r, const char *method, const char *before,
                                 const char *after, str reason, run_answered answered) {
    char text[64 + 3 * (ID_MAX + REASON_MAX)];
    struct buf path;
    ASSERT(r->workflow[0]);
    buf_init_fixed(&path, text, sizeof text);
    buf_put_c(&path, before);
    rest_escape(str_c(r->workflow), &path);
    buf_put_c(&path, after);
    rest_escape(reason, &path);
    ASSERT(!path.full);
    struct rest_request request = {.method = method, .path = buf_str(&path)};
    conductor_run_send(r, &request, answered);
}

/* ---- what is known of its steps ---- */

bool conductor_run_waits_for_task(const struct conductor_run *r, int64_t for_ms) {
    int64_t now = conductor_now(r->c);
    for (struct wanted *w = wanted_first(&r->tracked); w; w = wanted_after(w)) {
        const struct conductor_job *j = (const struct conductor_job *)w;
        if (j->state == JOB_NO_TASK && now - j->since_ms >= for_ms) return true;
    }
    return false;
}

static bool has_task_to_answer(const struct conductor_run *r) {
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        if (conductor_step_has_task(slot->value)) return true;
    }
    return false;
}

void conductor_run_withhold_no_more(struct conductor_run *r) {
    if (r->withheld_ms == 0) return;
    r->withheld_ms = 0;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (s->withheld) conductor_step_wake(s);
        s->withheld = false;
    }
}

/* ---- what is next ---- */

/* Another node may have taken the run over, and the engine has no word for that. */
static bool is_still_ours(struct conductor_run *r) {
    struct arena scratch;
    struct provider_found found;
    struct error err;
    r->ours_ms = conductor_now(r->c) + OURS_MS;
    arena_init(&scratch, (size_t)4 * 1024, (size_t)16 * 1024 * 1024);
    enum run_claim claim =
        provider_runs_claim(&r->c->runs, r->tracked.run_id, STR_NONE, &scratch, &found, &err);
    if (claim == CLAIM_OVER) ending_begin(r, found.status, found.code, found.message);
    arena_release(&scratch);
    return claim == CLAIM_OURS || claim == CLAIM_OVER ||
           (claim == CLAIM_UNSURE && err.code == ST_RETRY);
}

static void do_next(struct conductor_run *r, int64_t now) {
    switch (r->state) {
    case WORKFLOW_UNTOLD:
        if (now - r->since_ms >= UNTOLD_MS) conductor_run_release(r);
        return;
    case WORKFLOW_SOUGHT:
    case WORKFLOW_LEFT:
        workflow_seek(r);
        return;
    case WORKFLOW_ABSENT:
        workflow_start(r);
        return;
    case WORKFLOW_REFUSED:
        workflow_tell_refused(r);
        return;
    case WORKFLOW_LINKED:
        workflow_tend(r);
        return;
    case WORKFLOW_COMPLETES:
    case WORKFLOW_FAILS:
    case WORKFLOW_FAILED:
    case WORKFLOW_TERMINATES:
        ending_next(r);
        return;
    case WORKFLOW_LOST: /* the engine was told, and will end the run */
    case WORKFLOW_STATE_COUNT:
        return;
    }
}

static void take_step(struct tracked_run *tracked) {
    struct conductor_run *r = of_tracked(tracked);
    int64_t now = conductor_now(r->c);
    if (r->withheld_ms > 0 && now - r->withheld_ms >= WITHHELD_MS)
        conductor_run_withhold_no_more(r);
    if (r->call || r->c->state != CONDUCTOR_READY || (uint64_t)now < tracked->retry_at) return;
    if (!conductor_run_is_ending(r) && now >= r->ours_ms && !is_still_ours(r))
        conductor_run_release(r);
    if (!tracked_is_dropped(tracked)) do_next(r, now);
}

/* When do_next() has something to do. */
static int64_t work_at(const struct conductor_run *r) {
    int64_t soon = conductor_now(r->c) + TICK_MS; /* the end of a task's request comes earlier */
    switch (r->state) {
    case WORKFLOW_UNTOLD:
        return r->since_ms + UNTOLD_MS;
    case WORKFLOW_SOUGHT:
    case WORKFLOW_LEFT:
    case WORKFLOW_ABSENT:
    case WORKFLOW_REFUSED:
    case WORKFLOW_FAILED:
    case WORKFLOW_TERMINATES:
        return 0;
    case WORKFLOW_LINKED:
        if (r->todo != 0 || r->cluster == CLUSTER_UNKNOWN) return 0;
        if (conductor_run_waits_for_task(r, 0) && r->evaluate_ms < r->look_ms)
            return r->evaluate_ms;
        return r->look_ms;
    case WORKFLOW_COMPLETES:
        return has_task_to_answer(r) ? soon : r->look_ms;
    case WORKFLOW_FAILS:
        return soon;
    case WORKFLOW_LOST:
    case WORKFLOW_STATE_COUNT:
        break;
    }
    return INT64_MAX;
}

static uint64_t next_at(const struct tracked_run *tracked) {
    const struct conductor_run *r = of_tracked(tracked);
    if (r->c->state != CONDUCTOR_READY) return PROVIDER_NEVER;
    uint64_t withheld =
        r->withheld_ms > 0 ? (uint64_t)(r->withheld_ms + WITHHELD_MS) : PROVIDER_NEVER;
    if (r->call) return withheld;
    uint64_t work = (uint64_t)work_at(r);
    if (!conductor_run_is_ending(r) && (uint64_t)r->ours_ms < work) work = (uint64_t)r->ours_ms;
    if (tracked->retry_at > work) work = tracked->retry_at;
    return work < withheld ? work : withheld;
}

const struct provider_runs_ops conductor_runs_ops = {
    .step = take_step,
    .next = next_at,
    .release = let_go,
    .check = check,
    .closed = on_runs_closed,
};
