/* adapters/conductor/conductor.c: what the engine calls, and the clock of it all. See impl.h. */
#include "adapters/conductor/conductor.h"

#include <string.h>

#include "adapters/conductor/impl.h"
#include "base/log.h"

int64_t conductor_now(const struct conductor *c) { return (int64_t)uv_now(c->loop); }

void conductor_copy(char *out, size_t size, str text) {
    size_t n = text.len < size ? text.len : size - 1;
    if (n > 0) memcpy(out, text.ptr, n);
    out[n] = '\0';
}

/* ---- the clock ---- */

static void on_soon(uv_timer_t *timer);

void conductor_wake(struct conductor *c) {
    if (!c->finished && !uv_is_active((uv_handle_t *)&c->soon))
        (void)uv_timer_start(&c->soon, on_soon, 0, 0);
}

void conductor_run_wake(struct conductor_run *r) {
    if (r->dirty) return;
    r->dirty = true;
    TAILQ_INSERT_TAIL(&r->c->dirty_runs, r, dirt);
    conductor_wake(r->c);
}

void conductor_step_wake(struct conductor_step *s) {
    struct conductor *c = s->run->c;
    if (s->dirty) return;
    s->dirty = true;
    TAILQ_INSERT_TAIL(&c->dirty_steps, s, dirt);
    conductor_wake(c);
}

static void close_finish(struct conductor *c);

/* Only as many as there are now: what comes meanwhile is for the next turn of the loop. */
static void work(struct conductor *c) {
    struct conductor_step *s;
    struct conductor_run *r;
    size_t count = 0;
    for (s = TAILQ_FIRST(&c->dirty_steps); s; s = TAILQ_NEXT(s, dirt))
        count++;
    for (; count > 0 && (s = TAILQ_FIRST(&c->dirty_steps)) != NULL; count--) {
        TAILQ_REMOVE(&c->dirty_steps, s, dirt);
        s->dirty = false;
        conductor_step_next(s);
    }
    count = 0;
    for (r = TAILQ_FIRST(&c->dirty_runs); r; r = TAILQ_NEXT(r, dirt))
        count++;
    for (; count > 0 && (r = TAILQ_FIRST(&c->dirty_runs)) != NULL; count--) {
        TAILQ_REMOVE(&c->dirty_runs, r, dirt);
        r->dirty = false;
        conductor_run_next(r);
    }
    if (!TAILQ_EMPTY(&c->dirty_steps) || !TAILQ_EMPTY(&c->dirty_runs)) conductor_wake(c);
    conductor_job_go_all(c);
    conductor_poll(c);
}

static void on_soon(uv_timer_t *timer) {
    struct conductor *c = timer->data;
    work(c);
    if (c->closing && !c->finished && rest_pending(c->rest) == 0) close_finish(c);
}

static void on_registered(void *context, const struct rest_answer *answer) {
    struct conductor *c = context;
    c->register_call = NULL;
    if (answer->st == ST_OK && !c->ready) {
        c->ready = true;
        struct conductor_run *r;
        for (r = TAILQ_FIRST(&c->runs); r; r = TAILQ_NEXT(r, link))
            conductor_run_wake(r);
    } else if (answer->st != ST_OK && answer->st != ST_RETRY) {
        LOG(LOG_ERROR, "Conductor does not take our type of task",
            LOG_S("error", str_c(answer->err->msg)));
    }
    c->register_ms = conductor_now(c) + (c->ready ? SWEEP_MS : RUN_DELAY_MS_MAX);
    conductor_wake(c);
}

/* Again now and then: the server may be a new one, which knows nothing. */
static void register_next(struct conductor *c) {
    if (c->register_call || conductor_now(c) < c->register_ms) return;
    char text[1024];
    struct buf body;
    buf_init_fixed(&body, text, sizeof text);
    def_task_types_json(&body);
    ASSERT(!body.full);
    struct rest_request request = {
        .method = "POST", .path = STR("/metadata/taskdefs"), .body = buf_str(&body)};
    c->register_call = rest_start(c->rest, &request, on_registered, c);
}

static void on_tick(uv_timer_t *timer) {
    struct conductor *c = timer->data;
    if (c->closing) {
        if (!c->finished && conductor_now(c) >= c->close_ms) close_finish(c);
        return;
    }
    register_next(c);
    if (!c->ready) return;
    conductor_step_beat_all(c);
    conductor_sweep(c);
    struct conductor_run *r;
    struct conductor_run *next;
    for (r = TAILQ_FIRST(&c->runs); r; r = next) {
        next = TAILQ_NEXT(r, link);
        if (r->withheld_ms > 0 && conductor_now(c) - r->withheld_ms > WITHHELD_MS)
            conductor_run_withhold_no_more(r);
        conductor_run_next(r);
    }
}

/* ---- what the engine calls ---- */

static struct conductor *self(struct provider *provider) { return (struct conductor *)provider; }

static bool body_make(struct conductor_run *r, const struct provider_run *run) {
    struct conductor *c = r->c;
    struct error err = {0};
    struct arena scratch;
    struct buf body;
    arena_init(&scratch, (size_t)16 * 1024, (size_t)256 * 1024 * 1024);
    buf_init(&body, DEF_BYTES_MAX);
    struct def_start start = {.run_id = run->run_id,
                              .tenant_id = run->tenant_id,
                              .project_id = run->project_id,
                              .environment_id = run->environment_id,
                              .plan = run->plan,
                              .domain = str_c(c->domain)};
    status st = run->plan->step_count > CONDUCTOR_STEPS_MAX
                    ? error_set(&err, ST_LIMIT, "the plan has %u steps, a workflow may have %d",
                                run->plan->step_count, CONDUCTOR_STEPS_MAX)
                    : def_start_json(&start, &scratch, &body, &err);
    if (st == ST_OK) {
        r->start_body = mem_alloc(body.len);
        if (r->start_body) memcpy(r->start_body, body.ptr, body.len);
        r->start_len = body.len;
    } else if (st != ST_RETRY) {
        conductor_copy(r->refused, sizeof r->refused, str_c(err.msg));
    }
    buf_release(&body);
    arena_release(&scratch);
    return r->start_body || r->refused[0];
}

/* The engine tells of it for the first time. false: memory is out, and it will tell again. */
static bool run_learn(struct conductor_run *r, const struct provider_run *run) {
    struct buf name;
    buf_init_fixed(&name, r->name, sizeof r->name - 1);
    def_workflow_name(run->plan_id, &name);
    ASSERT(!name.full);
    r->paused = run->paused;
    r->push_pause = run->paused;
    if (run->workflow_id.len > 0 && run->workflow_id.len <= ID_MAX) {
        conductor_run_link(r, run->workflow_id, run->queue);
        r->full = r->reset_due = r->push_pause = true;
        r->look_ms = 0;
    } else if (!body_make(r, run)) {
        return false;
    }
    r->known = true;
    return true;
}

static void conductor_open_run(struct provider *provider, const struct provider_run *run) {
    struct conductor *c = self(provider);
    struct conductor_run *r = conductor_run_get(c, run->run_id);
    if (c->closing || (r && r->ending)) return;
    if (!r) r = conductor_run_make(c, run->run_id);
    if (!r) return;
    if (!r->known) {
        (void)run_learn(r, run);
    } else {
        r->push_pause |= r->paused != run->paused;
        r->paused = run->paused;
        r->tell_link = r->workflow[0] != '\0';
    }
    conductor_run_wake(r);
}

/* An attempt of the step that is still under way belongs to a run that was out of memory since. */
static void job_replace(struct conductor_step *s, struct conductor_job *j) {
    struct conductor_job *old = s->job;
    if (old) {
        conductor_job_orphan(old);
        if (old->state == JOB_RUNNING) conductor_job_stop(old);
    }
    s->job = j;
    s->settled = PROVIDER_STEP_WAITS; /* RETRY_STEP opens what was settled */
    j->step = s;
    if (s->hand != HAND_NONE) conductor_job_ready(j);
}

static void conductor_start(struct provider *provider, struct attempt *attempt) {
    struct conductor *c = self(provider);
    attempt->executor_data = NULL;
    if (c->closing) return;
    struct conductor_run *r = conductor_run_get(c, attempt->run_id);
    if (!r) r = conductor_run_make(c, attempt->run_id);
    struct conductor_step *s = r ? conductor_step_make(r, attempt->step->id) : NULL;
    struct conductor_job *j = s ? conductor_job_make(c, attempt) : NULL;
    if (!j) {
        attempt_fail(attempt, "PROVIDER_FAILED", STR("out of memory"));
        return;
    }
    attempt->executor_data = j;
    job_replace(s, j);
    conductor_poll_soon(c);
}

static void conductor_stop(struct provider *provider, struct attempt *attempt) {
    UNUSED(provider);
    struct conductor_job *j = attempt->executor_data;
    if (!j) return; /* it came after close() */
    ASSERT(j->asked == attempt);
    conductor_job_stop(j);
}

static void note_settled(struct conductor_run *r, const struct provider_note *note) {
    struct conductor_step *s = conductor_step_get(r, note->step_id);
    if (!s) return; /* its task is answered when it comes */
    s->withheld = note->step == PROVIDER_STEP_FAILED;
    if (s->withheld) r->withheld_ms = conductor_now(r->c) > 0 ? conductor_now(r->c) : 1;
    conductor_step_settle(s, note->step, note->output);
}

static void conductor_note(struct provider *provider, const struct provider_note *note) {
    struct conductor *c = self(provider);
    struct conductor_run *r = conductor_run_get(c, note->run_id);
    if (!r || c->closing) return;
    switch (note->event) {
    case PROVIDER_STEP_SETTLED:
        note_settled(r, note);
        break;
    case PROVIDER_RUN_PAUSED:
    case PROVIDER_RUN_RESUMED:
        r->paused = note->event == PROVIDER_RUN_PAUSED;
        r->push_pause = r->cluster != (r->paused ? CLUSTER_PAUSED : CLUSTER_RUNS);
        break;
    case PROVIDER_RUN_ENDED:
        conductor_run_end(r, note->status, note->code, note->message);
        break;
    }
    conductor_run_wake(r);
}

static void conductor_rested(struct provider *provider, str run_id) {
    struct conductor_run *r = conductor_run_get(self(provider), run_id);
    if (r && !r->ending) conductor_run_withhold_no_more(r);
}

static bool conductor_idle(const struct provider *provider) {
    const struct conductor *c = (const struct conductor *)provider;
    const struct conductor_run *r;
    TAILQ_FOREACH(r, &c->runs, link) {
        if (r->ending) return false;
    }
    return true;
}

/* ---- open and close ---- */

void conductor_free(struct conductor *c) {
    if (c->handles > 0 || c->running > 0) return;
    map_release(&c->by_id);
    mem_free(c->node);
    mem_free(c);
}

static void on_closed(uv_handle_t *handle) {
    struct conductor *c = handle->data;
    c->handles--;
    conductor_free(c);
}

static void close_finish(struct conductor *c) {
    c->finished = true;
    struct conductor_job *j;
    struct conductor_job *next_job;
    for (j = TAILQ_FIRST(&c->jobs); j; j = next_job) {
        next_job = TAILQ_NEXT(j, link);
        if (j->step) j->step->job = NULL;
        j->step = NULL;
        if (j->state != JOB_RUNNING) conductor_job_drop(j);
    }
    while (!TAILQ_EMPTY(&c->runs))
        conductor_run_free(TAILQ_FIRST(&c->runs));
    conductor_poller_free_all(c);
    rest_close(c->rest);
    uv_timer_t *timers[] = {&c->soon, &c->tick, &c->poll};
    for (size_t i = 0; i < COUNT_OF(timers); i++)
        uv_close((uv_handle_t *)timers[i], on_closed);
}

static void conductor_close(struct provider *provider) {
    struct conductor *c = self(provider);
    ASSERT(!c->closing);
    c->closing = true;
    c->close_ms = conductor_now(c) + CLOSE_MS;
    (void)uv_timer_stop(&c->poll);
    struct conductor_run *r;
    for (r = TAILQ_FIRST(&c->runs); r; r = TAILQ_NEXT(r, link))
        conductor_run_withhold_no_more(r);
    struct conductor_step *s;
    for (s = TAILQ_FIRST(&c->held); s; s = TAILQ_NEXT(s, held)) {
        s->handed += s->job && s->job->state == JOB_RUNNING;
        conductor_step_wake(s);
    }
    rest_hasten(c->rest);
    conductor_wake(c);
}

static const struct provider_ops ops = {
    .open_run = conductor_open_run,
    .start = conductor_start,
    .stop = conductor_stop,
    .leave = conductor_stop, /* it is executed here, and no longer ours to execute */
    .note = conductor_note,
    .rested = conductor_rested,
    .idle = conductor_idle,
    .close = conductor_close,
};

static status strings_make(struct conductor *c, const struct conductor_options *options,
                           struct error *err) {
    if (options->node.len == 0)
        return error_at(err, ST_INVALID, "CONDUCTOR_NODE_INVALID", "conductor",
                        "the name of the node is empty");
    c->node = mem_alloc(options->node.len + 1);
    if (!c->node) return error_set(err, ST_RETRY, "out of memory");
    memcpy(c->node, options->node.ptr, options->node.len);
    struct buf domain;
    buf_init_fixed(&domain, c->domain, sizeof c->domain - 1);
    def_domain(options->node, &domain);
    ASSERT(!domain.full);
    return ST_OK;
}

status conductor_open(uv_loop_t *loop, const struct conductor_options *options,
                      const struct provider_ports *ports, struct provider **out,
                      struct error *err) {
    struct conductor *c = mem_alloc(sizeof *c);
    if (!c) return error_set(err, ST_RETRY, "out of memory");
    c->provider.ops = &ops;
    c->loop = loop;
    c->ports = *ports;
    c->slots = options->slots > 0 ? options->slots : CONDUCTOR_SLOTS;
    if (c->slots > CONDUCTOR_SLOTS_MAX) c->slots = CONDUCTOR_SLOTS_MAX;
    c->poll_ms = options->poll_ms > 0 ? options->poll_ms : CONDUCTOR_POLL_MS;
    map_init(&c->by_id);
    TAILQ_INIT(&c->runs);
    TAILQ_INIT(&c->dirty_runs);
    TAILQ_INIT(&c->held);
    TAILQ_INIT(&c->dirty_steps);
    TAILQ_INIT(&c->jobs);
    TAILQ_INIT(&c->pollers);
    status st = strings_make(c, options, err);
    if (st == ST_OK) st = rest_open(loop, options->url, &c->rest, err);
    if (st != ST_OK) {
        mem_free(c->node);
        mem_free(c);
        return st;
    }
    uv_timer_t *timers[] = {&c->soon, &c->tick, &c->poll};
    for (size_t i = 0; i < COUNT_OF(timers); i++) {
        (void)uv_timer_init(loop, timers[i]);
        timers[i]->data = c;
        c->handles++;
    }
    (void)uv_timer_start(&c->tick, on_tick, 0, TICK_MS);
    /* Its own domain is polled even while no run is known: see arrived(). */
    (void)conductor_poller_use(c, str_c(c->domain));
    *out = &c->provider;
    return ST_OK;
}
