/* sim/people.c: clients that start runs, operators that send signals, workers that do tasks.
 *
 * Whatever is acknowledged must be in the history at that moment: that is checked here. */
#include "base/json.h"
#include "sim/impl.h"

enum { SIGNAL_ID_MAX = 32 };
static const struct append_rider rider; /* how many there are is all that the store looks at */
enum operation { OP_START, OP_SIGNAL, OP_TASK };

struct sim_op { /* one request on its way through an engine */
    struct world *w;
    enum operation kind;
    struct sim_run *run;
    struct sim_task *task;
    uuid signal;
    enum signal_kind signal_kind;
    int64_t until_us; /* of a heartbeat */
    bool answered, again;
};

/* A node that answers; NULL: none does. */
static struct sim_node *some_node(struct world *w) {
    uint32_t first = (uint32_t)sim_rng_between(&w->rng, 0, w->node_count - 1);
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct sim_node *n = &w->nodes[(first + i) % w->node_count];
        if (sim_node_answers(n, w->now_us)) return n;
    }
    return NULL;
}

static struct sim_node *owner_of(struct world *w, const struct sim_run *run) {
    if (!run->held) return NULL;
    struct sim_node *n = &w->nodes[run->node_no - 1];
    return sim_node_answers(n, w->now_us) ? n : NULL;
}

static struct sim_op *op_new(struct world *w, enum operation kind, struct sim_run *run) {
    struct sim_op *op = ARENA_NEW(&w->arena, struct sim_op);
    *op = (struct sim_op){.w = w, .kind = kind, .run = run};
    w->asked++;
    return op;
}

static bool op_answered(struct sim_op *op) {
    if (op->answered)
        sim_world_break(op->w, "every-request-answered-once", "a second answer for %s",
                        op->run->run_id);
    op->answered = true;
    op->w->answered++;
    return !op->w->closing && !op->w->crashing;
}

static const char *reason_of(status code, const struct error *err) {
    if (code == ST_OK) return "ok";
    return err && err->reason ? reason_name(err->reason) : status_name(code);
}

/* ---- starting ---- */

static void start_done(void *context, status code, const struct error *err) {
    struct sim_op *op = context;
    struct world *w = op->w;
    op->run->starts_under_way--;
    if (!op_answered(op)) return;
    sim_world_trace(w, "start of %s: %s", op->run->run_id, reason_of(code, err));
    if (code != ST_OK) return;
    op->run->start_acked = true;
    if (!op->run->exists)
        sim_world_break(w, "acknowledged-start-is-stored", "%s is not there", op->run->run_id);
}

static void signal_done(void *context, status code, const struct error *err);

/* A cancel on the heels of its start, which may not be stored yet. */
static void change_mind(struct world *w, struct sim_node *n, struct sim_run *run) {
    struct signal s = {.name = STR("CANCEL"), .signal_id = STR("changed-mind")};
    if (w->calm || !sim_rng_chance(&w->rng, 8)) return;
    struct sim_op *op = op_new(w, OP_SIGNAL, run);
    op->signal = signal_uuid(str_c(run->run_id), s.signal_id);
    op->signal_kind = SIGNAL_CANCEL;
    sim_world_trace(w, "client cancels %s at once", run->run_id);
    engine_signal(
        n->engine, str_c(run->run_id), &s,
        &(struct engine_caller){
            .actor = STR("client"), .riders = &rider, .done = signal_done, .context = op});
}

void sim_client_start(struct world *w, struct sim_run *run) {
    struct sim_node *n = some_node(w);
    bool once_more = run->start_acked && !w->calm && sim_rng_chance(&w->rng, 200);
    if (!run->start_acked || once_more)
        sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 300 * MS, 4 * SECOND), HAP_START, 0, 0,
                     run);
    if (!n || (run->start_acked && !once_more)) return;
    /* The store does not see that two nodes start one run at the same time: clients ask one. */
    if (run->starts_under_way > 0 && run->start_node != n->index) return;
    run->starts_under_way++;
    run->start_node = n->index;
    const struct sim_plan *plan = NULL;
    for (uint32_t i = 0; i < w->plan_count; i++) {
        if (w->plans[i].plan == run->plan) plan = &w->plans[i];
    }
    ASSERT(plan);
    struct start_request request = {.ref = plan->ref,
                                    .tenant_id = run->tenant_id,
                                    .project_id = STR("shop"),
                                    .environment_id = STR("prod"),
                                    .run_id = str_c(run->run_id),
                                    .adapter = STR("local"),
                                    .actor = STR("client"),
                                    .approval = run->approval,
                                    .riders = &rider};
    char id[256 + 1];
    engine_start(n->engine, &request, id, start_done, op_new(w, OP_START, run));
    change_mind(w, n, run);
}

/* ---- signals ---- */

static bool is_received(const struct sim_run *run, uuid id) {
    for (size_t i = 0; i < run->signal_count; i++) {
        if (uuid_eq(run->signals[i].id, id)) return true;
    }
    return false;
}

static void signal_told(struct sim_op *op, status code, const struct error *err) {
    struct world *w = op->w;
    sim_world_trace(w, "signal to %s: %s", op->run->run_id, reason_of(code, err));
    if (code != ST_OK || is_received(op->run, op->signal)) return;
    if (op->signal_kind == SIGNAL_CANCEL && run_is_final(op->run->run.head.status)) return;
    sim_world_break(w, "acknowledged-signal-is-stored", "%s has no such signal", op->run->run_id);
}

static void signal_done(void *context, status code, const struct error *err) {
    struct sim_op *op = context;
    if (op_answered(op)) signal_told(op, code, err);
}

static void send_signal(struct world *w, struct sim_run *run, struct signal *s, bool outside) {
    struct sim_node *n = outside ? NULL : some_node(w);
    struct error err = {0};
    s->kind = signal_kind_of(s->name);
    sim_world_trace(w, "%s sends %.*s %.*s (%.*s) to %s", outside ? "outside" : "operator",
                    STR_ARG(s->name), STR_ARG(s->step_id), STR_ARG(s->signal_id), run->run_id);
    if (outside) {
        if (w->node_count == 1) return; /* on SQLite there is no outside */
        struct sim_op op = {.w = w, .run = run, .signal_kind = s->kind};
        op.signal = signal_uuid(str_c(run->run_id), s->signal_id);
        status st = sim_store_post_signal(w, run, s, STR("outside"), &err);
        signal_told(&op, st, &err);
        return;
    }
    if (!n) return;
    struct sim_op *op = op_new(w, OP_SIGNAL, run);
    op->signal = signal_uuid(str_c(run->run_id), s->signal_id);
    op->signal_kind = s->kind;
    engine_signal(
        n->engine, str_c(run->run_id), s,
        &(struct engine_caller){
            .actor = STR("operator"), .riders = &rider, .done = signal_done, .context = op});
}

static void new_signal_id(struct sim_run *run, char out[SIGNAL_ID_MAX]) {
    snprintf(out, SIGNAL_ID_MAX, "sig-%lld", (long long)++run->signals_sent);
}

static str draw_name(struct world *w) {
    static const struct {
        const char *name;
        int64_t weight;
    } kinds[] = {{"PAUSE", 16}, {"RESUME", 20}, {"CANCEL", 2}, {"RETRY_STEP", 20}, {"APPROVE", 18},
                 {"REJECT", 5}, {"go1", 8},     {"go2", 8},    {"go3", 8},         {"other", 2}};
    int64_t draw = sim_rng_between(&w->rng, 0, 106);
    size_t kind = 0;
    while (draw >= kinds[kind].weight)
        draw -= kinds[kind++].weight;
    return str_c(kinds[kind].name);
}

static void draw_signal(struct world *w, struct sim_run *run, struct signal *s) {
    s->name = draw_name(w);
    s->kind = signal_kind_of(s->name);
    uint32_t step = (uint32_t)sim_rng_between(&w->rng, 0, run->plan->step_count - 1);
    if (s->kind == SIGNAL_RETRY_STEP) { /* most often one that failed */
        for (uint32_t i = 0; i < run->plan->step_count && run->steps[step].state != STEP_FAILED;
             i++)
            step = (step + 1) % run->plan->step_count;
    }
    bool decides = s->kind == SIGNAL_APPROVE || s->kind == SIGNAL_REJECT;
    if (s->kind == SIGNAL_RETRY_STEP || (decides && sim_rng_chance(&w->rng, 500)))
        s->step_id = run->plan->steps[step].id;
    if (sim_rng_chance(&w->rng, 300)) s->payload = STR("{\"v\":\"told\"}");
}

void sim_operator_acts(struct world *w) {
    struct sim_run *run = w->runs[sim_rng_between(&w->rng, 0, w->run_count - 1)];
    char id[SIGNAL_ID_MAX];
    if (w->calm) return;
    sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 1, 2 * w->rates.operator_us), HAP_OPERATOR,
                 0, 0, NULL);
    if (run->signals_sent >= SIGNALS_MAX / 2) return;
    int64_t number = run->signals_sent + 1;
    if (number > 1 && sim_rng_chance(&w->rng, 150)) { /* the very same as once before */
        number = sim_rng_between(&w->rng, 1, number - 1);
    } else {
        run->signals_sent++;
        draw_signal(w, run, &run->sent[number]);
    }
    struct signal s = run->sent[number];
    snprintf(id, sizeof(id), "sig-%lld", (long long)number);
    s.signal_id = str_c(id);
    send_signal(w, run, &s, sim_rng_chance(&w->rng, 300));
    if (sim_rng_chance(&w->rng, 100))
        send_signal(w, run, &s, sim_rng_chance(&w->rng, 500)); /* twice */
}

/* ---- in a calm world somebody takes care ---- */

static void care_signal(struct world *w, struct sim_run *run, str name, str step_id) {
    struct sim_node *n = owner_of(w, run);
    char id[SIGNAL_ID_MAX];
    if (!n) return;
    new_signal_id(run, id);
    struct signal s = {.name = name, .signal_id = str_c(id), .step_id = step_id};
    struct sim_op *op = op_new(w, OP_SIGNAL, run);
    op->signal = signal_uuid(str_c(run->run_id), s.signal_id);
    op->signal_kind = signal_kind_of(name);
    sim_world_trace(w, "care sends %.*s %.*s to %s", STR_ARG(name), STR_ARG(step_id), run->run_id);
    engine_signal(n->engine, str_c(run->run_id), &s,
                  &(struct engine_caller){
                      .actor = STR("care"), .riders = &rider, .done = signal_done, .context = op});
}

static bool care_for(struct world *w, struct sim_run *run) {
    if (!run->exists)
        return w->plan_gone && run->plan == w->plans[0].plan; /* never to be started */
    if (run->signals_sent > SIGNALS_MAX - 20) return false;
    enum run_status at = run->run.head.status;
    if (run_is_final(at)) return run->start_acked;
    if (at == RUN_PAUSED) care_signal(w, run, STR("RESUME"), STR_NONE);
    if (at == RUN_PENDING && run->approval) care_signal(w, run, STR("APPROVE"), STR_NONE);
    for (uint32_t i = 0; i < run->plan->step_count && at == RUN_RUNNING; i++) {
        const struct plan_step *p = &run->plan->steps[i];
        if (run->steps[i].state != STEP_RUNNING) continue;
        if (p->type == PLAN_APPROVAL) care_signal(w, run, STR("APPROVE"), p->id);
        if (p->type == PLAN_WAIT) care_signal(w, run, p->signal, STR_NONE);
    }
    return false;
}

void sim_caretaker(struct world *w) {
    bool all = true;
    for (uint32_t i = 0; i < w->run_count; i++)
        all = care_for(w, w->runs[i]) && all;
    for (uint32_t i = 0; i < w->node_count; i++)
        all = all && sim_node_answers(&w->nodes[i], w->now_us) && !w->nodes[i].commits;
    if (!all)
        w->quiet_us = 0;
    else if (w->quiet_us == 0)
        w->quiet_us = w->now_us;
    if (all && w->now_us - w->quiet_us > 5 * SECOND) { /* answers of stopped attempts are in, too */
        sim_check_end(w);
        w->over = true;
        return;
    }
    sim_world_at(w, w->now_us + 2 * SECOND, HAP_CARE, 0, 0, NULL);
}

/* ---- workers ---- */

static void check_handed(struct world *w, const struct sim_run *run, const struct task *t) {
    int64_t step = plan_find(run->plan, t->ref.step_id);
    for (size_t i = run->count; i > 0; i--) {
        const struct event *e = &run->records[i - 1].rec.event;
        if (e->type == EVENT_TOOL_CALLED && str_eq(e->subject, t->ref.step_id) &&
            e->logical_attempt == t->ref.lease)
            return;
    }
    sim_world_break(w, "lease-is-stored-before-it-is-given", "%s step %lld lease %lld", run->run_id,
                    (long long)step, (long long)t->ref.lease);
}

static void expect_value(struct world *w, const struct sim_run *run, uint32_t step, str input) {
    str template = STR_NONE;
    char want[64] = "\"v=\"";
    if (!json_str(json_member(run->plan->steps[step].body, "input"), &template)) return;
    if (template.len > 2) { /* v={{ steps.sN.output.v }} */
        for (uint32_t i = 0; i < run->plan->step_count; i++) {
            char name[64];
            snprintf(name, sizeof(name), "v={{ steps.%.*s.output.v }}",
                     STR_ARG(run->plan->steps[i].id));
            if (str_eq(template, str_c(name)))
                snprintf(want, sizeof(want), "\"v=%s\"", run->steps[i].value);
        }
    }
    if (!str_eq(input, str_c(want)))
        sim_world_break(w, "outputs-reach-their-step", "%s step %u got %.*s, not %s", run->run_id,
                        step, STR_ARG(input), want);
}

static void hand_over(struct world *w, const struct sim_worker *k, const struct task *t) {
    struct sim_run *run = sim_find_run(w, t->ref.run_id);
    struct sim_task *held = ARENA_NEW(&w->arena, struct sim_task);
    bool bad = !w->calm && sim_rng_chance(&w->rng, w->rates.worker_bad);
    int64_t how = sim_rng_between(&w->rng, 0, 3);
    *held = (struct sim_task){.run = run,
                              .attempt = t->ref.attempt,
                              .lease = t->ref.lease,
                              .lease_ms = k->lease_ms,
                              .node = k->node,
                              .tells = 1,
                              .ok = sim_rng_chance(&w->rng, 1000 - w->rates.attempt_fails)};
    snprintf(held->step_id, sizeof(held->step_id), "%.*s", STR_ARG(t->ref.step_id));
    sim_world_trace(w, "worker%u has %s %s#%lld lease %lld", k->index, run->run_id, held->step_id,
                    (long long)held->attempt, (long long)held->lease);
    check_handed(w, run, t);
    expect_value(w, run, (uint32_t)plan_find(run->plan, t->ref.step_id), t->input);
    int64_t lease_us = k->lease_ms * 1000;
    held->finish_us = w->now_us + sim_rng_between(&w->rng, 0, lease_us * 8 / 10);
    if (bad && how == 0) held->dies = true;
    if (bad && how == 1)
        held->finish_us = w->now_us + lease_us + sim_rng_between(&w->rng, 0, 9 * SECOND);
    if (bad && how == 2) held->tells = 2;
    if (!bad && sim_rng_chance(&w->rng, 300)) {
        held->heartbeats = true;
        held->finish_us = w->now_us + sim_rng_between(&w->rng, 0, 3 * lease_us);
    }
    int64_t next = held->heartbeats ? w->now_us + lease_us / 3 : held->finish_us;
    if (held->dies)
        sim_world_fault(w, "worker%u dies", k->index);
    else
        sim_world_at(w, next < held->finish_us ? next : held->finish_us, HAP_TASK, 0, 0, held);
}

/* An earlier plan of the worker is void. */
static void worker_after(struct world *w, struct sim_worker *k, int64_t us) {
    sim_world_at(w, w->now_us + us, HAP_WORKER, 0, ++k->turn, k);
}

static void polled(void *context, const struct task *tasks, size_t count) {
    struct sim_worker *k = context;
    struct world *w = k->world;
    k->poll = NULL;
    if (w->closing) return;
    worker_after(w, k, sim_rng_between(&w->rng, 0, w->calm ? 200 * MS : 4 * SECOND));
    if (w->crashing) return; /* the answer never arrives */
    for (size_t i = 0; i < count; i++)
        hand_over(w, k, &tasks[i]);
}

/* In a calm world workers go where tasks are. */
static bool find_task(struct world *w, struct sim_node **node, str *tenant, str *queue) {
    uint32_t first = (uint32_t)sim_rng_between(&w->rng, 0, w->run_count - 1);
    for (uint32_t i = 0; i < w->run_count && w->calm; i++) {
        const struct sim_run *run = w->runs[(first + i) % w->run_count];
        struct sim_node *n = owner_of(w, run);
        uint32_t steps = run->plan->step_count;
        uint32_t from = (uint32_t)sim_rng_between(&w->rng, 0, steps - 1);
        for (uint32_t s = 0; s < steps && n; s++) {
            const struct plan_step *p = &run->plan->steps[(from + s) % steps];
            if (p->type != PLAN_TASK || run->steps[(from + s) % steps].state != STEP_RUNNING)
                continue;
            *node = n;
            *tenant = run->tenant_id;
            *queue = p->queue;
            return true;
        }
    }
    return false;
}

void sim_worker_acts(struct world *w, struct sim_worker *k) {
    struct sim_node *n = NULL;
    struct error err = {0};
    const struct sim_run *run = w->runs[sim_rng_between(&w->rng, 0, w->run_count - 1)];
    str tenant = run->tenant_id;
    str queue = sim_rng_chance(&w->rng, 500) ? STR("q1") : STR("q2");
    if (k->poll) {
        struct sim_node *at = &w->nodes[k->node];
        if (at->up && at->life == k->life) engine_poll_cancel(at->engine, k->poll);
        k->poll = NULL;
    }
    if (!find_task(w, &n, &tenant, &queue)) n = some_node(w);
    if (!n) {
        worker_after(w, k, SECOND);
        return;
    }
    k->node = n->index;
    k->life = n->life;
    k->lease_ms = sim_rng_between(&w->rng, 500, sim_rng_chance(&w->rng, 500) ? 3000 : 30000);
    k->deadline_us = w->now_us + sim_rng_between(&w->rng, 0, (w->calm ? 2 : 8) * SECOND);
    char name[16];
    snprintf(name, sizeof(name), "worker%u", k->index);
    status st = engine_poll(n->engine,
                            &(struct poll_request){.tenant_id = tenant,
                                                   .queue = queue,
                                                   .worker = str_c(name),
                                                   .max = (size_t)sim_rng_between(&w->rng, 1, 3),
                                                   .lease_ms = k->lease_ms,
                                                   .deadline_us = k->deadline_us + n->skew_us},
                            polled, k, &k->poll, &err);
    ASSERT(st == ST_OK);
    if (k->poll && !w->calm && sim_rng_chance(&w->rng, 100)) /* it will go away before its time */
        worker_after(w, k, sim_rng_between(&w->rng, 0, 2 * SECOND));
}

/* The history must tell of the attempt what was acknowledged. */
static void task_done(void *context, status code, const struct error *err) {
    struct sim_op *op = context;
    struct world *w = op->w;
    struct sim_task *t = op->task;
    struct sim_run *run = op->run;
    if (!op_answered(op)) {
        if (!w->closing && ++t->tries < 6) sim_world_at(w, w->now_us + SECOND, HAP_TASK, 0, 0, t);
        return;
    }
    sim_world_trace(w, "result of %s %s#%lld lease %lld: %s", run->run_id, t->step_id,
                    (long long)t->attempt, (long long)t->lease, reason_of(code, err));
    if (code == ST_RETRY && ++t->tries < 6)
        sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 100 * MS, 2 * SECOND), HAP_TASK, 0, 0,
                     t);
    if (code != ST_OK) return;
    if (--t->tells > 0)
        sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 0, 3 * SECOND), HAP_TASK, 0, 0, t);
    for (size_t i = run->count; i > 0; i--) {
        const struct event *e = &run->records[i - 1].rec.event;
        if (!str_eq(e->subject, str_c(t->step_id)) || e->logical_attempt != t->attempt) continue;
        if (e->type == (t->ok ? EVENT_STEP_COMPLETED : EVENT_STEP_FAILED)) return;
    }
    sim_world_break(w, "acknowledged-result-is-stored", "%s %s#%lld", run->run_id, t->step_id,
                    (long long)t->attempt);
}

static void heartbeat_done(void *context, status code, const struct error *err) {
    struct sim_op *op = context;
    struct world *w = op->w;
    struct sim_task *t = op->task;
    (void)op_answered(op);
    if (w->closing) return;
    if (!w->crashing)
        sim_world_trace(w, "heartbeat of %s %s#%lld lease %lld: %s", t->run->run_id, t->step_id,
                        (long long)t->attempt, (long long)t->lease, reason_of(code, err));
    if (code == ST_CONFLICT) return; /* somebody else has it: stop working */
    int64_t next = w->now_us + t->lease_ms * 1000 / 3;
    sim_world_at(w, next < t->finish_us ? next : t->finish_us, HAP_TASK, 0, 0, t);
}

void sim_worker_task(struct world *w, struct sim_task *t) {
    struct sim_node *n = &w->nodes[t->node];
    struct task_ref ref = {.run_id = str_c(t->run->run_id),
                           .step_id = str_c(t->step_id),
                           .attempt = t->attempt,
                           .lease = t->lease};
    if (t->tries > 0 || !sim_node_answers(n, w->now_us)) n = some_node(w);
    if (!n) {
        if (++t->tries < 6) sim_world_at(w, w->now_us + SECOND, HAP_TASK, 0, 0, t);
        return;
    }
    if (t->heartbeats && w->now_us < t->finish_us) {
        struct sim_op *op = op_new(w, OP_TASK, t->run);
        op->task = t;
        engine_heartbeat(n->engine, &ref, t->lease_ms, &op->until_us,
                         &(struct engine_caller){.done = heartbeat_done, .context = op});
        return;
    }
    char output[160];
    snprintf(output, sizeof(output),
             "{\"run\":\"%s\",\"step\":\"%s\",\"attempt\":%lld,\"lease\":%lld,\"v\":\"t%lld\"}",
             t->run->run_id, t->step_id, (long long)t->attempt, (long long)t->lease,
             (long long)t->lease);
    struct sim_op *op = op_new(w, OP_TASK, t->run);
    op->task = t;
    engine_task_done(
        n->engine, &ref,
        &(struct outcome){.ok = t->ok,
                          .output = t->ok ? str_c(output) : STR_NONE,
                          .code = t->ok ? STR_NONE : STR("WORKER_FAILED"),
                          .message = t->ok ? STR_NONE : STR("it did not work")},
        &(struct engine_caller){.actor = STR("worker"), .done = task_done, .context = op});
}

/* ---- beginning and calm ---- */

void sim_people_start(struct world *w) {
    w->worker_count = (uint32_t)sim_rng_between(&w->rng, 1, WORKERS_MAX);
    for (uint32_t i = 0; i < w->run_count; i++)
        sim_world_at(
            w,
            w->now_us +
                sim_rng_between(&w->rng, 0, sim_rng_chance(&w->rng, 600) ? SECOND : 20 * SECOND),
            HAP_START, 0, 0, w->runs[i]);
    for (uint32_t i = 0; i < w->worker_count; i++) {
        w->workers[i] = (struct sim_worker){.world = w, .index = i};
        worker_after(w, &w->workers[i], sim_rng_between(&w->rng, 0, 2 * SECOND));
    }
    sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 0, w->rates.operator_us), HAP_OPERATOR, 0,
                 0, NULL);
}
