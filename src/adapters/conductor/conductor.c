/* adapters/conductor/conductor.c: what the engine calls, and the clock of it all. See impl.h. */
#include "adapters/conductor/conductor.h"

#include <string.h>

#include "adapters/conductor/impl.h"
#include "base/log.h"

static void conductor_move(struct conductor *c, enum conductor_state state) {
    static const uint8_t allowed[] = {
        [CONDUCTOR_REGISTERS] = 1 << CONDUCTOR_READY | 1 << CONDUCTOR_CLOSING,
        [CONDUCTOR_READY] = 1 << CONDUCTOR_CLOSING,
        [CONDUCTOR_CLOSING] = 1 << CONDUCTOR_FINISHED,
        [CONDUCTOR_FINISHED] = 0,
    };
    ASSERT(allowed[c->state] & 1 << state);
    c->state = state;
}

void conductor_copy(char *out, size_t size, str text) {
    size_t n = text.len < size ? text.len : size - 1;
    if (n > 0) memcpy(out, text.ptr, n);
    out[n] = '\0';
}

void conductor_ignore(void *context, const struct rest_answer *answer) {
    struct conductor *c = context;
    UNUSED(answer);
    if (conductor_is_closing(c)) conductor_wake(c);
}

/* ---- the clock ---- */

static void on_soon(uv_timer_t *timer);

void conductor_wake(struct conductor *c) {
    if (c->state != CONDUCTOR_FINISHED && !uv_is_active((uv_handle_t *)&c->soon))
        (void)uv_timer_start(&c->soon, on_soon, 0, 0);
}

static void close_finish(struct conductor *c);

/* Only as many as there are now: what comes meanwhile is for the next turn of the loop. */
static void steps_go(struct conductor *c) {
    struct conductor_step *s;
    size_t count = 0;
    for (s = TAILQ_FIRST(&c->dirty_steps); s; s = TAILQ_NEXT(s, dirt))
        count++;
    for (; count > 0 && (s = TAILQ_FIRST(&c->dirty_steps)) != NULL; count--) {
        TAILQ_REMOVE(&c->dirty_steps, s, dirt);
        s->dirty = false;
        conductor_step_next(s);
    }
    if (!TAILQ_EMPTY(&c->dirty_steps)) conductor_wake(c);
}

static void on_soon(uv_timer_t *timer) {
    struct conductor *c = timer->data;
    steps_go(c);
    conductor_jobs_go(c);
    conductor_poll(c);
    if (c->state == CONDUCTOR_CLOSING && rest_pending(c->rest) == 0) close_finish(c);
}

static void on_registered(void *context, const struct rest_answer *answer) {
    struct conductor *c = context;
    c->register_call = NULL;
    if (answer->st == ST_OK && c->state == CONDUCTOR_REGISTERS) {
        conductor_move(c, CONDUCTOR_READY);
        provider_runs_all_soon(&c->runs);
    } else if (answer->st != ST_OK && answer->st != ST_RETRY) {
        LOG(LOG_ERROR, "Conductor does not take our type of task",
            LOG_S("error", str_c(answer->err->msg)));
    }
    c->register_ms = conductor_now(c) + (c->state == CONDUCTOR_READY ? SWEEP_MS : RUN_DELAY_MS_MAX);
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
    switch (c->state) {
    case CONDUCTOR_REGISTERS:
        register_next(c);
        break;
    case CONDUCTOR_READY:
        register_next(c);
        conductor_steps_beat(c);
        ending_sweep(c);
        break;
    case CONDUCTOR_CLOSING:
        if (conductor_now(c) >= c->close_ms) close_finish(c);
        break;
    case CONDUCTOR_FINISHED:
        break;
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

/* The engine tells of it for the first time. If memory is out, it will tell again. */
static void run_learn(struct conductor_run *r, const struct provider_run *run) {
    struct buf name;
    ASSERT(r->state == WORKFLOW_UNTOLD);
    memset(r->name, 0, sizeof r->name);
    buf_init_fixed(&name, r->name, sizeof r->name - 1);
    def_workflow_name(run->plan_id, &name);
    ASSERT(!name.full);
    r->paused = run->paused;
    if (run->workflow_id.len > 0 && run->workflow_id.len <= ID_MAX) {
        workflow_link(r, run->workflow_id, run->queue);
        workflow_look_at_least(r, LOOK_FULL);
        r->todo |= TODO_RESET | TODO_PUSH_PAUSE;
        r->look_ms = 0;
        return;
    }
    if (run->paused) r->todo |= TODO_PUSH_PAUSE;
    if (body_make(r, run))
        conductor_run_move(r, r->refused[0] ? WORKFLOW_REFUSED : WORKFLOW_SOUGHT);
}

static void conductor_open_run(struct provider *provider, const struct provider_run *run) {
    struct conductor *c = self(provider);
    if (conductor_is_closing(c)) return;
    struct conductor_run *r = conductor_run_find(c, run->run_id);
    if (!r) r = conductor_run_new(c, run->run_id);
    if (!r || conductor_run_is_ending(r)) return;
    if (r->state == WORKFLOW_UNTOLD) {
        run_learn(r, run);
    } else {
        if (r->paused != run->paused) r->todo |= TODO_PUSH_PAUSE;
        r->paused = run->paused;
        if (r->workflow[0]) r->todo |= TODO_TELL_LINK;
    }
    tracked_soon(&r->tracked);
}

static void conductor_start(struct provider *provider, struct attempt *attempt) {
    struct conductor *c = self(provider);
    attempt->executor_data = NULL;
    if (conductor_is_closing(c)) return;
    struct conductor_run *r = conductor_run_find(c, attempt->run_id);
    if (!r) r = conductor_run_new(c, attempt->run_id);
    struct conductor_step *s = r ? conductor_step_get(r, attempt->step->id) : NULL;
    struct conductor_job *j = s ? conductor_job_new(s, attempt) : NULL;
    if (!j) {
        attempt_fail(attempt, REASON_PROVIDER_FAILED, STR("out of memory"));
        return;
    }
    conductor_step_settle(s, PROVIDER_STEP_WAITS, STR_NONE); /* RETRY_STEP opens what was settled */
    if (s->hand != HAND_NONE) conductor_job_ready(j);
    tracked_soon(&r->tracked); /* its task is waited for */
    conductor_poll_soon(c);
}

static void conductor_stop(struct provider *provider, struct attempt *attempt) {
    struct conductor_job *j = attempt->executor_data;
    UNUSED(provider);
    if (!j) return; /* it came after close() */
    ASSERT(j->wanted.attempt == attempt);
    conductor_job_stop(j);
}

static void note_settled(struct conductor_run *r, const struct provider_note *note) {
    struct conductor_step *s = conductor_step_find(r, note->step_id);
    if (!s) return; /* its task is answered when it comes */
    s->withheld = note->step == PROVIDER_STEP_FAILED;
    if (s->withheld) r->withheld_ms = conductor_now(r->c) > 0 ? conductor_now(r->c) : 1;
    conductor_step_settle(s, note->step, note->output);
}

static void note_paused(struct conductor_run *r, bool paused) {
    r->paused = paused;
    if (r->cluster != (paused ? CLUSTER_PAUSED : CLUSTER_RUNS))
        r->todo |= TODO_PUSH_PAUSE;
    else
        r->todo &= ~(unsigned)TODO_PUSH_PAUSE;
}

static void conductor_note(struct provider *provider, const struct provider_note *note) {
    struct conductor *c = self(provider);
    struct conductor_run *r = conductor_run_find(c, note->run_id);
    if (!r || conductor_is_closing(c)) return;
    switch (note->event) {
    case PROVIDER_STEP_SETTLED:
        note_settled(r, note);
        break;
    case PROVIDER_RUN_PAUSED:
    case PROVIDER_RUN_RESUMED:
        note_paused(r, note->event == PROVIDER_RUN_PAUSED);
        break;
    case PROVIDER_RUN_ENDED:
        ending_begin(r, note->status, note->code, note->message); /* may free it */
        return;
    }
    tracked_soon(&r->tracked);
}

static void conductor_rested(struct provider *provider, str run_id) {
    struct conductor_run *r = conductor_run_find(self(provider), run_id);
    if (r && !conductor_run_is_ending(r)) conductor_run_withhold_no_more(r);
}

static bool conductor_idle(const struct provider *provider) {
    const struct conductor *c = (const struct conductor *)provider;
    const struct tracked_run *run;
    for (run = TAILQ_FIRST(&c->runs.all); run; run = TAILQ_NEXT(run, link)) {
        if (conductor_run_is_ending((const struct conductor_run *)run)) return false;
    }
    return true;
}

/* ---- open and close ---- */

void conductor_free_if_over(struct conductor *c) {
    if (c->state != CONDUCTOR_FINISHED || c->handles > 0 || c->runs.handles > 0 ||
        c->job_count[JOB_RUNNING] > 0)
        return;
    provider_runs_release(&c->runs);
    mem_free(c->node);
    mem_free(c);
}

static void on_closed(uv_handle_t *handle) {
    struct conductor *c = handle->data;
    c->handles--;
    conductor_free_if_over(c);
}

static void close_finish(struct conductor *c) {
    conductor_move(c, CONDUCTOR_FINISHED);
    provider_runs_close(&c->runs);
    conductor_pollers_free(c);
    rest_close(c->rest);
    uv_timer_t *timers[] = {&c->soon, &c->tick, &c->poll};
    for (size_t i = 0; i < COUNT_OF(timers); i++)
        uv_close((uv_handle_t *)timers[i], on_closed);
}

static void conductor_close(struct provider *provider) {
    struct conductor *c = self(provider);
    conductor_move(c, CONDUCTOR_CLOSING);
    c->close_ms = conductor_now(c) + CLOSE_MS;
    (void)uv_timer_stop(&c->poll);
    struct tracked_run *run;
    for (run = TAILQ_FIRST(&c->runs.all); run; run = TAILQ_NEXT(run, link))
        conductor_run_withhold_no_more((struct conductor_run *)run);
    struct conductor_step *s;
    for (s = TAILQ_FIRST(&c->held); s; s = TAILQ_NEXT(s, held)) {
        s->handed += s->job && s->job->state == JOB_RUNNING;
        conductor_step_wake(s);
    }
    conductor_jobs_close(c);
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
        return error_at(err, REASON_CONDUCTOR_NODE_INVALID, "conductor",
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
    c->runs.loop = loop;
    c->runs.ops = &conductor_runs_ops;
    c->runs.ports = &c->ports;
    c->runs.runs_max = RUNS_MAX;
    c->runs.retry_ms_first = RUN_DELAY_MS;
    c->runs.retry_ms_max = RUN_DELAY_MS_MAX;
    provider_runs_open(&c->runs);
    c->sweep.every_ms = SWEEP_MS;
    c->sweep.pages_max = SWEEP_PAGES_MAX;
    TAILQ_INIT(&c->held);
    TAILQ_INIT(&c->dirty_steps);
    for (size_t i = 0; i < COUNT_OF(c->jobs); i++)
        TAILQ_INIT(&c->jobs[i]);
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
