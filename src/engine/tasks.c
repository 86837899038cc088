/* engine/tasks.c: tasks for outside workers: queues, leases, fencing.
 *
 * A task waits in the queue of its tenant and name as long as its step is open and nobody holds it.
 * Handing it out is a ToolCalled fact, durable before the worker sees the task; its occurrence
 * number is the fencing number that the worker's answer must carry. An entry in a queue is only a
 * hint: whether the task is free is asked of the flow when it is handed out.
 *
 * When somebody polls already as a step is decided to start, its lease is decided with it and both
 * are in one commit (drive.c): the task is never offered. */
#include "base/json.h"
#include "base/limits.h"
#include "engine/impl.h"
#include "ledger/access/access.h"

/* Anybody may poll any name. */
static void forget_queues(struct engine *eng) {
    struct map_slot *slot;
    bool again = eng->queues.count >= QUEUES_KEPT;
    while (again) { /* removing moves the slots: begin anew */
        again = false;
        for (size_t i = 0; !again && map_next(&eng->queues, &i, &slot);) {
            struct task_queue *q = slot->value;
            if (q->first || q->users > 0) continue;
            (void)map_del(&eng->queues, q->key);
            mem_free(q);
            again = eng->queues.count >= QUEUES_KEPT / 2;
        }
    }
}

enum { QUEUE_KEY_MAX = 2 * ID_BYTES_MAX + 2 };

static str queue_key(str tenant_id, str name, char mem[QUEUE_KEY_MAX]) {
    struct buf key;
    buf_init_fixed(&key, mem, QUEUE_KEY_MAX);
    buf_put(&key, tenant_id);
    buf_put_char(&key, '|');
    buf_put(&key, name);
    return buf_str(&key);
}

static struct task_queue *queue_of(struct engine *eng, str tenant_id, str name) {
    char mem[QUEUE_KEY_MAX];
    str key = queue_key(tenant_id, name, mem);
    struct task_queue *q = map_get(&eng->queues, key);
    if (q) return q;
    forget_queues(eng);
    q = mem_alloc(sizeof(*q) + key.len);
    if (!q) return NULL;
    memcpy((char *)(q + 1), mem, key.len);
    q->key = str_n((char *)(q + 1), key.len);
    q->end = &q->first;
    q->polls_end = &q->polls;
    if (map_put(&eng->queues, q->key, q)) return q;
    mem_free(q);
    return NULL;
}

/* ---- polls ---- */

static void poll_free(struct engine_poll *p) {
    if (p->link) {
        *p->link = p->next;
        if (p->next) p->next->link = p->link;
        else p->queue->polls_end = p->link;
    }
    *p->all_link = p->all_next;
    if (p->all_next) p->all_next->all_link = p->all_link;
    p->eng->poll_count--;
    p->queue->users--;
    arena_release(&p->arena);
    mem_free(p);
}

static void poll_leave_queue(struct engine_poll *p) {
    if (!p->link) return;
    *p->link = p->next;
    if (p->next) p->next->link = p->link;
    else p->queue->polls_end = p->link;
    p->link = NULL;
    p->next = NULL;
}

/* At the end of the line: a lease that was promised to it did not come about. */
static void poll_join_queue(struct engine_poll *p) {
    struct task_queue *q = p->queue;
    if (p->link || p->gone || p->held) return;
    p->link = q->polls_end;
    *q->polls_end = p;
    q->polls_end = &p->next;
}

/* Answers when every lease on its way has arrived, and there is something to tell or no time left. */
static void poll_maybe_answer(struct engine_poll *p, int64_t now_us) {
    if (p->pending > 0 || p->results > 0 || (p->held && !p->gone)) return;
    bool late = now_us >= p->deadline_us;
    if (p->leased == 0 && !late && !p->gone) return;
    if (!p->gone) p->done(p->context, p->tasks, p->leased);
    poll_free(p);
}

/* ---- handing out ---- */

/* The next task that is free now, taken out of the queue; NULL: none. */
static struct task_entry *next_free(struct task_queue *q, int64_t now_us) {
    while (q->first) {
        struct task_entry *e = q->first;
        q->first = e->next;
        if (!q->first) q->end = &q->first;
        e->run->eng->task_count--;
        e->run->offers--;
        if (flow_task_is_free(&e->run->flow, e->step, now_us)) return e;
        mem_free(e);
    }
    return NULL;
}

/* Whoever waits longest and can take one more task; NULL: nobody. */
static struct engine_poll *next_poll(struct task_queue *q) {
    while (q->polls && q->polls->leased + q->polls->pending >= q->polls->max)
        poll_leave_queue(q->polls);
    return q->polls;
}

/* Promises a task to a poll; NULL: out of memory. */
static struct news *promise(struct engine_poll *p, const struct engine_run *r, uint32_t step) {
    int64_t planned = r->plan->steps[step].lease_ms; /* the plan knows its work best */
    int64_t ms = planned > LEASE_MS_MAX ? LEASE_MS_MAX : planned > 0 ? planned : p->lease_ms;
    struct news *n =
        news_new(&(struct news){.kind = NEWS_LEASE, .lease = {.poll = p, .step = step, .ms = ms}});
    if (!n) return NULL;
    p->pending++;
    if (p->leased + p->pending >= p->max) poll_leave_queue(p);
    return n;
}

static void match(struct task_queue *q, int64_t now_us) {
    while (q->first) {
        struct engine_poll *p = next_poll(q);
        struct task_entry *e = p ? next_free(q, now_us) : NULL;
        if (!e) return;
        struct news *n = promise(p, e->run, e->step);
        if (n) run_push(e->run, n); /* else it is offered again when its turn comes */
        mem_free(e);
    }
}

/* Whoever handed in the results that the batch takes; NULL: nobody of the queue. */
static struct engine_poll *holder_of(const struct engine_run *r, const struct task_queue *q) {
    for (const struct news *n = r->sent; n; n = n->next) {
        struct engine_poll *p = n->kind == NEWS_TASK_DONE ? n->task.poll : NULL;
        if (p && p->queue == q && !p->gone && p->leased + p->pending < p->max) return p;
    }
    return NULL;
}

struct news *tasks_promise(struct engine_run *r, uint32_t step) {
    char mem[QUEUE_KEY_MAX];
    const struct plan_step *s = &r->plan->steps[step];
    if (s->type != PLAN_TASK) return NULL;
    struct task_queue *q = map_get(&r->eng->queues, queue_key(r->ids.tenant_id, s->queue, mem));
    struct engine_poll *p = q ? holder_of(r, q) : NULL;
    if (q && !p) p = next_poll(q);
    return p ? promise(p, r, step) : NULL;
}

void tasks_result_over(struct engine_poll *p) {
    ASSERT(p->results > 0);
    p->results--;
    if (p->gone) poll_maybe_answer(p, 0);
}

void tasks_offer(struct engine_run *r, uint32_t step) {
    struct engine *eng = r->eng;
    struct task_queue *q = queue_of(eng, r->ids.tenant_id, r->plan->steps[step].queue);
    struct task_entry *e = q ? mem_alloc(sizeof(*e)) : NULL;
    int64_t now = eng->ports.now_us(eng->ports.context);
    if (!e) return; /* the lease timer, or a restart, offers it again */
    if (!flow_task_is_free(&r->flow, step, now)) {
        mem_free(e);
        return;
    }
    *e = (struct task_entry){.run = r, .step = step};
    *q->end = e;
    q->end = &e->next;
    eng->task_count++;
    r->offers++;
    match(q, now);
}

void tasks_offer_freed(struct engine_run *r) {
    r->flow.task_freed = false;
    for (uint32_t i = 0; i < r->plan->step_count; i++) {
        if (r->flow.steps[i].phase == FLOW_OPEN && r->plan->steps[i].type == PLAN_TASK)
            tasks_offer(r, i);
    }
}

static status fill_task(struct engine_run *r, uint32_t index, struct arena *arena, struct task *t,
                        struct error *err) {
    const struct plan_step *step = &r->plan->steps[index];
    const struct flow_step *now = &r->flow.steps[index];
    yyjson_val *root = NULL;
    str body = STR_NONE;
    struct json_limits limits = {LIQUID_OUTPUT_MAX, JSON_DEPTH_MAX};
    status st = flow_render(&r->flow, index, arena, &body, err);
    if (st == ST_OK) st = json_parse(body, limits, arena, &root, err);
    if (st != ST_OK) return st;
    yyjson_val *input = json_member(root, "input");
    *t = (struct task){.ref = {.attempt = now->attempt, .lease = (int64_t)now->leases},
                       .input = input ? json_text(input, arena) : STR("null"),
                       .lease_until_us = now->lease_us,
                       .correlation = r->correlation};
    bool ok = t->input.ptr && arena_try_str(arena, r->run_id, &t->ref.run_id) &&
              arena_try_str(arena, step->id, &t->ref.step_id) &&
              arena_try_str(arena, r->ids.tenant_id, &t->tenant_id) &&
              arena_try_str(arena, step->queue, &t->queue);
    t->ref.tenant_id = t->tenant_id;
    return ok ? ST_OK : no_memory(err);
}

/* The task cannot even be described: its input's template fails. */
static void fail_task(struct engine_run *r, const struct news_lease *lease,
                      const struct error *why) {
    enum reason code = why->reason ? why->reason : REASON_TEMPLATE_FAILED;
    struct news bad = {.kind = NEWS_RESULT,
                       .result = {.step = lease->step,
                                  .attempt = lease->attempt,
                                  .outcome = outcome_failed(code, str_c(why->msg))}};
    struct news *n = news_new(&bad);
    if (n) run_push(r, n);
}

/* A lease is durable (or was refused): tell the poller. Frees the news. */
void tasks_leased(struct engine_run *r, struct news *n) {
    const struct news_lease *lease = &n->lease;
    struct engine_poll *p = lease->poll;
    struct engine *eng = r->eng;
    struct error err = {0};
    ASSERT(n->kind == NEWS_LEASE && p->pending > 0);
    p->pending--;
    const struct flow_step *s = &r->flow.steps[lease->step];
    bool leased = n->verdict == ST_OK && s->phase == FLOW_OPEN && s->attempt == lease->attempt &&
                  (int64_t)s->leases == lease->number;
    if (leased) {
        status st = fill_task(r, lease->step, &p->arena, &p->tasks[p->leased], &err);
        if (st == ST_OK) p->leased++;
        else fail_task(r, lease, &err);
    }
    mem_free(n);
    int64_t now = eng->ports.now_us(eng->ports.context);
    if (p->pending == 0 && p->leased == 0 && now < p->deadline_us && !p->gone) {
        poll_join_queue(p);
        match(p->queue, now);
        return;
    }
    poll_maybe_answer(p, now);
}

static status check_lease(int64_t lease_ms, struct error *err) {
    if (lease_ms >= 1 && lease_ms <= LEASE_MS_MAX) return ST_OK;
    return error_at(err, REASON_POLL_INVALID, "/leaseMs", "a lease must have 1 to %d milliseconds",
                    LEASE_MS_MAX);
}

/* The poll's own: a lease may be committed when whoever polled is gone. */
static bool keep_receipt(struct engine_poll *p, const struct receipt *receipt) {
    if (!receipt) return true;
    struct receipt *copy = arena_try(&p->arena, sizeof(*copy));
    if (!copy) return false;
    *copy = *receipt;
    copy->body = copy->location = STR_NONE;
    p->receipt = copy;
    return arena_try_str(&p->arena, receipt->scope, &copy->scope) &&
           arena_try_str(&p->arena, receipt->key, &copy->key);
}

status tasks_ride(struct engine_run *r, struct news *n, struct error *err) {
    struct task_ref ref = {.run_id = r->run_id,
                           .step_id = r->plan->steps[n->lease.step].id,
                           .attempt = n->lease.attempt,
                           .lease = n->lease.number};
    char text[TASK_REF_MAX];
    struct buf body;
    struct receipt *receipt = arena_try(&r->batch_arena, sizeof(*receipt));
    struct append_rider *rider = arena_try(&r->batch_arena, sizeof(*rider));
    buf_init_fixed(&body, text, sizeof(text));
    task_ref_write(&body, &ref);
    ASSERT(!body.full);
    if (!receipt || !rider) return no_memory(err);
    *receipt = *n->lease.poll->receipt;
    if (!arena_try_str(&r->batch_arena, buf_str(&body), &receipt->body)) return no_memory(err);
    *rider = (struct append_rider){.receipt = receipt};
    n->riders = rider;
    return ST_OK;
}

static status check_poll(const struct engine *eng, const struct poll_request *q,
                         struct error *err) {
    if (q->max < 1 || q->max > POLL_TASKS_MAX)
        return error_at(err, REASON_POLL_INVALID, "/max", "max must be 1 to %d", POLL_TASKS_MAX);
    if (q->queue.len < 1 || q->queue.len > ID_BYTES_MAX || q->tenant_id.len < 1 ||
        q->tenant_id.len > ID_BYTES_MAX)
        return error_at(err, REASON_POLL_INVALID, "/queue",
                        "tenant and queue must have 1 to %d bytes", ID_BYTES_MAX);
    if (q->worker.len < 1 || q->worker.len > ACTOR_BYTES_MAX)
        return error_at(err, REASON_POLL_INVALID, "/worker",
                        "a worker's name must have 1 to %d bytes", ACTOR_BYTES_MAX);
    status st = check_lease(q->lease_ms, err);
    if (st != ST_OK) return st;
    if (eng->poll_count >= POLLS_MAX)
        return error_at(err, REASON_POLLS_TOO_MANY, "", "%d pollers wait already", POLLS_MAX);
    return ST_OK;
}

status engine_poll(struct engine *eng, const struct poll_request *request, engine_tasks_done done,
                   void *context, struct engine_poll **out, struct error *err) {
    status st = check_poll(eng, request, err);
    if (st != ST_OK) return st;
    struct task_queue *q = queue_of(eng, request->tenant_id, request->queue);
    struct engine_poll *p = q ? mem_alloc(sizeof(*p)) : NULL;
    if (!p) return no_memory(err);
    arena_init(&p->arena, 1024, (size_t)256 * 1024 * 1024);
    *p = (struct engine_poll){.eng = eng,
                              .queue = q,
                              .max = request->max,
                              .lease_ms = request->lease_ms,
                              .deadline_us = request->held ? FLOW_NEVER : request->deadline_us,
                              .held = request->held,
                              .done = done,
                              .context = context,
                              .arena = p->arena};
    p->tasks = arena_try(&p->arena, p->max * sizeof(*p->tasks));
    if (!p->tasks || !arena_try_str(&p->arena, request->worker, &p->worker) ||
        !keep_receipt(p, request->receipt)) {
        arena_release(&p->arena);
        mem_free(p);
        return no_memory(err);
    }
    q->users++;
    p->link = q->polls_end;
    *q->polls_end = p;
    q->polls_end = &p->next;
    p->all_next = eng->polls;
    p->all_link = &eng->polls;
    if (p->all_next) p->all_next->all_link = &p->all_next;
    eng->polls = p;
    eng->poll_count++;
    *out = p;
    match(q, eng->ports.now_us(eng->ports.context));
    if (p->held) poll_leave_queue(p);
    engine_arm(eng);
    return ST_OK;
}

void engine_poll_release(struct engine *eng, struct engine_poll *p, int64_t deadline_us) {
    ASSERT(p->held);
    p->held = false;
    p->deadline_us = deadline_us;
    if (p->leased + p->pending == 0) {
        poll_join_queue(p);
        match(p->queue, eng->ports.now_us(eng->ports.context));
    }
    poll_maybe_answer(p, eng->ports.now_us(eng->ports.context));
    engine_arm(eng);
}

void engine_poll_stop(struct engine *eng, struct engine_poll *p) {
    ASSERT(!p->held);
    p->deadline_us = 0;
    poll_leave_queue(p);
    poll_maybe_answer(p, eng->ports.now_us(eng->ports.context));
}

void engine_poll_cancel(struct engine *eng, struct engine_poll *p) {
    p->gone = true;
    poll_leave_queue(p);
    poll_maybe_answer(p, eng->ports.now_us(eng->ports.context));
}

int64_t tasks_next_deadline(const struct engine *eng) {
    int64_t at = FLOW_NEVER;
    for (const struct engine_poll *p = eng->polls; p; p = p->all_next) {
        if (p->pending == 0 && p->deadline_us < at) at = p->deadline_us;
    }
    return at;
}

void tasks_deadlines(struct engine *eng, int64_t now_us) {
    for (struct engine_poll *p = eng->polls, *next; p; p = next) {
        next = p->all_next;
        if (p->deadline_us > now_us) continue;
        poll_leave_queue(p);
        poll_maybe_answer(p, now_us);
    }
}

/* ---- while a worker has it ---- */

static status lease_lost(struct error *err, const char *why) {
    return error_at(err, REASON_LEASE_LOST, "", "%s", why);
}

/* A caller of another tenant cannot tell such a run from one that is not there. */
status tasks_find(const struct engine_run *r, const struct news_task *t, uint32_t *step,
                  struct error *err) {
    if (t->tenant_id.ptr && !str_eq(t->tenant_id, r->ids.tenant_id))
        return run_not_found(r->run_id, err);
    if (!r->plan) return lease_lost(err, "the run has lost its plan"); /* it can only end */
    int64_t i = plan_find(r->plan, t->step_id);
    if (i < 0)
        return error_at(err, REASON_STEP_NOT_FOUND, "", "the run has no step \"%.*s\"",
                        STR_ARG(t->step_id));
    *step = (uint32_t)i;
    return ST_OK;
}

status tasks_serve(struct engine_run *r, const struct news *n, uint32_t step, int64_t now_us,
                   struct error *err) {
    const struct news_task *t = &n->task;
    const struct flow_step *s = &r->flow.steps[step];
    if (s->phase != FLOW_OPEN || s->attempt != t->attempt || (int64_t)s->leases != t->lease ||
        s->lease_us == 0)
        return lease_lost(err, "this lease is over: another has the task, or it is finished");
    if (n->kind == NEWS_HEARTBEAT) {
        *t->until_us = now_us + t->lease_ms * 1000;
        return flow_extend_lease(&r->flow, step, *t->until_us, err);
    }
    if (flow_task_is_free(&r->flow, step, now_us)) return lease_lost(err, "this lease has run out");
    return fill_task(r, step, t->arena, t->task, err);
}

/* News from a worker about its task: to the run, which may have to be read first. */
static void tell_task(struct engine *eng, const struct task_ref *ref, struct news *news,
                      const struct engine_caller *caller, status st, struct error *err) {
    struct engine_run *r = NULL;
    struct news *n = NULL;
    news->task.step_id = ref->step_id;
    news->task.tenant_id = ref->tenant_id;
    news->task.attempt = ref->attempt;
    news->task.lease = ref->lease;
    news->riders = caller->riders;
    news->done = caller->done;
    news->context = caller->context;
    if (st == ST_OK && caller->actor.len > ACTOR_BYTES_MAX)
        st = error_at(err, REASON_CONTEXT_INVALID, "/actor", "an actor has at most %d bytes",
                      ACTOR_BYTES_MAX);
    if (st == ST_OK && !(n = news_new(news))) st = no_memory(err);
    if (st == ST_OK) st = run_want(eng, ref->run_id, false, &r, err);
    if (st == ST_OK) {
        ASSERT(n);
        if (n->kind == NEWS_TASK_DONE && n->task.poll) n->task.poll->results++;
        run_push(r, n);
        return;
    }
    mem_free(n);
    if (caller->done) caller->done(caller->context, st, err);
}

void engine_task_again(struct engine *eng, const struct task_ref *ref, struct arena *arena,
                       struct task *out, const struct engine_caller *caller) {
    struct error err = {0};
    struct news news = {.kind = NEWS_TASK_AGAIN, .task = {.arena = arena, .task = out}};
    tell_task(eng, ref, &news, caller, ST_OK, &err);
}

void engine_heartbeat(struct engine *eng, const struct task_ref *ref, int64_t lease_ms,
                      int64_t *until_us, const struct engine_caller *caller) {
    struct error err = {0};
    struct news news = {.kind = NEWS_HEARTBEAT,
                        .task = {.lease_ms = lease_ms, .until_us = until_us}};
    status st = check_lease(lease_ms, &err);
    tell_task(eng, ref, &news, caller, st, &err);
}

void engine_task_done(struct engine *eng, const struct task_ref *ref, const struct outcome *outcome,
                      const struct engine_caller *caller) {
    struct error err = {0};
    struct news news = {.kind = NEWS_TASK_DONE,
                        .task = {.outcome = *outcome, .poll = caller->poll}};
    news.task.outcome.actor = caller->actor;
    tell_task(eng, ref, &news, caller, ST_OK, &err);
}

/* ---- the end ---- */

/* Takes the run's tasks out of every queue. */
void tasks_forget(struct engine_run *r) {
    struct map_slot *slot = NULL;
    if (r->offers == 0) return;
    for (size_t i = 0; map_next(&r->eng->queues, &i, &slot);) {
        struct task_queue *q = slot->value;
        for (struct task_entry **at = &q->first; *at;) {
            struct task_entry *e = *at;
            if (e->run != r) {
                at = &e->next;
                continue;
            }
            *at = e->next;
            if (!*at) q->end = at;
            r->eng->task_count--;
            mem_free(e);
        }
    }
}

void tasks_close(struct engine *eng) {
    struct map_slot *slot = NULL;
    for (struct engine_poll *p = eng->polls, *next; p; p = next) {
        next = p->all_next;
        p->held = false;
        p->pending = 0;
        p->deadline_us = 0;
        poll_maybe_answer(p, 1);
    }
    for (size_t i = 0; map_next(&eng->queues, &i, &slot);) {
        struct task_queue *q = slot->value;
        while (q->first) {
            struct task_entry *e = q->first;
            q->first = e->next;
            mem_free(e);
        }
        mem_free(q);
    }
}
