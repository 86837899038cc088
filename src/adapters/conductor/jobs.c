/* adapters/conductor/jobs.c: attempts that are executed here, while the task of their step is in
 * hand.
 *
 * Each state has its list. A job that is stopped before it runs is answered from the next turn of
 * the loop, since the engine may be in the middle of a call. A job that runs outlives its run: the
 * engine is answered when the executor is done with it. */
#include "adapters/conductor/impl.h"

/* ---- states ---- */

static void job_enter(struct conductor_job *j, enum job_state state) {
    j->state = state;
    j->c->job_count[state]++;
    TAILQ_INSERT_TAIL(&j->c->jobs[state], j, link);
}

static void job_leave(struct conductor_job *j) {
    ASSERT(j->c->job_count[j->state] > 0);
    TAILQ_REMOVE(&j->c->jobs[j->state], j, link);
    j->c->job_count[j->state]--;
}

static void job_move(struct conductor_job *j, enum job_state state) {
    static const uint8_t allowed[JOB_STATE_COUNT] = {
        [JOB_NO_TASK] = 1 << JOB_READY | 1 << JOB_STOPPED,
        [JOB_READY] = 1 << JOB_RUNNING | 1 << JOB_STOPPED,
        [JOB_RUNNING] = 0,
        [JOB_STOPPED] = 0,
        [JOB_ENDED] = 0,
    };
    ASSERT(allowed[j->state] & 1 << state);
    job_leave(j);
    job_enter(j, state);
}

static void job_end(struct conductor_job *j) {
    job_leave(j);
    j->state = JOB_ENDED;
    if (j->step) j->step->job = NULL;
    j->step = NULL;
}

/* ---- answers ---- */

/* The end of a job, which is freed: here, or by its run. */
static void job_answer(struct conductor_job *j, const struct outcome *outcome) {
    struct tracked_run *run = j->wanted.run;
    job_end(j);
    if (run) {
        tracked_enter(run);
        wanted_answer(&j->wanted, outcome);
        tracked_exit(run);
        return;
    }
    if (j->wanted.attempt) wanted_answer(&j->wanted, outcome); /* else we are closing */
    mem_free(j);
}

static void own_done(struct attempt *own, const struct outcome *outcome) {
    struct conductor_job *j = own->context;
    struct conductor *c = j->c;
    ASSERT(j->state == JOB_RUNNING);
    job_answer(j, outcome);
    if (c->state == CONDUCTOR_FINISHED)
        conductor_free_if_over(c);
    else
        conductor_wake(c);
}

/* ---- what happens to a job ---- */

/* An attempt of the step that is still under way belongs to a run that was out of memory since. */
struct conductor_job *conductor_job_new(struct conductor_step *s, struct attempt *attempt) {
    struct conductor *c = s->run->c;
    struct conductor_job *j =
        (struct conductor_job *)tracked_want(&s->run->tracked, attempt, sizeof *j);
    if (!j) return NULL;
    struct conductor_job *old = s->job;
    if (old) {
        conductor_job_orphan(old);
        if (old->state == JOB_RUNNING) conductor_job_stop(old);
    }
    j->c = c;
    j->own = *attempt;
    j->own.done = own_done;
    j->own.context = j;
    j->own.executor_data = NULL;
    j->since_ms = conductor_now(c);
    j->step = s;
    s->job = j;
    job_enter(j, JOB_NO_TASK);
    return j;
}

void conductor_job_ready(struct conductor_job *j) {
    if (j->state != JOB_NO_TASK) return;
    job_move(j, JOB_READY);
    conductor_wake(j->c);
}

void conductor_job_stop(struct conductor_job *j) {
    ASSERT(j->state != JOB_ENDED);
    if (j->state == JOB_RUNNING) {
        executor_stop(j->c->ports.executor, &j->own);
        return;
    }
    if (j->state != JOB_STOPPED) job_move(j, JOB_STOPPED);
    conductor_wake(j->c);
}

void conductor_job_orphan(struct conductor_job *j) {
    ASSERT(j->step && j->step->job == j);
    j->step->job = NULL;
    j->step = NULL;
    wanted_detach(&j->wanted);
    if (j->state != JOB_RUNNING) conductor_job_stop(j); /* else its end is answered all the same */
}

static void job_begin(struct conductor_job *j) {
    struct conductor *c = j->c;
    struct conductor_step *s = j->step;
    struct tracked_run *run = j->wanted.run;
    ASSERT(s && run);
    tracked_enter(run);
    if (s->times > s->told) {
        s->told = s->times;
        c->ports.recovered(c->ports.context, run->run_id, s->id, j->own.number, s->times);
    }
    if (j->state == JOB_READY) { /* else it was stopped from inside the port */
        job_move(j, JOB_RUNNING);
        executor_start(c->ports.executor, &j->own);
    }
    tracked_exit(run);
}

/* The engine may start and stop others from within an answer: the lists are read anew each time. */
void conductor_jobs_go(struct conductor *c) {
    static const struct outcome stopped = {.code = STR_LIT("CANCELLED"),
                                           .message = STR_LIT("the attempt was stopped")};
    while (!conductor_is_closing(c)) {
        if (!TAILQ_EMPTY(&c->jobs[JOB_STOPPED]))
            job_answer(TAILQ_FIRST(&c->jobs[JOB_STOPPED]), &stopped);
        else if (!TAILQ_EMPTY(&c->jobs[JOB_READY]) && c->job_count[JOB_RUNNING] < c->slots)
            job_begin(TAILQ_FIRST(&c->jobs[JOB_READY]));
        else
            return;
    }
}

/* The engine may free its attempts as soon as the provider was closed: nothing of them is touched
 * after this. Those that run are ended by the executor, and then own_done() frees them. */
void conductor_jobs_close(struct conductor *c) {
    for (enum job_state state = JOB_NO_TASK; state < JOB_ENDED; state++) {
        struct conductor_job *next;
        for (struct conductor_job *j = TAILQ_FIRST(&c->jobs[state]); j; j = next) {
            next = TAILQ_NEXT(j, link);
            if (j->step) j->step->job = NULL;
            j->step = NULL;
            if (j->wanted.run) wanted_detach(&j->wanted);
            wanted_forget(&j->wanted);
            if (state == JOB_RUNNING) continue;
            job_end(j);
            mem_free(j);
        }
    }
}
