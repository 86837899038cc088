/* sim/ports.c: an engine's ports: commits on their way, the executor, reads. */
#include "base/json.h"
#include "sim/impl.h"

enum commit_fate { FATE_GOOD, FATE_FAILS, FATE_REPLY_LOST };

/* ---- time and chance ---- */

static int64_t port_now(void *context) {
    const struct sim_node *n = context;
    return n->world->now_us + n->skew_us;
}

static void port_random(void *context, void *out, size_t n) {
    struct sim_node *node = context;
    char *at = out;
    while (n > 0) {
        uint64_t word = sim_rng_next(&node->world->rng);
        size_t part = n < sizeof(word) ? n : sizeof(word);
        memcpy(at, &word, part);
        at += part;
        n -= part;
    }
}

static void port_wake_at(void *context, int64_t us) {
    struct sim_node *n = context;
    struct world *w = n->world;
    if (us == FLOW_NEVER || us >= n->armed_us) return;
    n->armed_us = us;
    int64_t at = us - n->skew_us;
    /* A timer is never early, and often a little late. */
    if (at > w->now_us) at += sim_rng_between(&w->rng, 0, 2 * MS);
    sim_world_at(w, at, HAP_WAKE, n->index, ++n->arm_turn, NULL);
}

/* ---- commits ---- */

/* 2.5 of the Run Events contract: however often a commit is tried, an event has one id. Of another
 * life of the node nothing is asked: what it had drawn died with it. */
static void check_ids(struct sim_node *n, const struct engine_commit *commit) {
    const struct append_request *req = &commit->request;
    const struct sim_run *run = sim_find_run(n->world, req->items[0].event.run_id);
    for (size_t i = 0; i < req->count; i++) {
        const struct event *e = &req->items[i].event;
        for (size_t k = 0; k < run->drawn_count; k++) {
            const struct sim_drawn *d = &run->drawn[k];
            if (d->node != n->index || d->life != n->life ||
                memcmp(d->key, e->key, SHA256_LEN) != 0 || uuid_eq(d->id, e->event_id))
                continue;
            sim_world_break(n->world, "retries-keep-event-ids", "%s: %.*s %.*s#%lld", run->run_id,
                            STR_ARG(e->type_name), STR_ARG(e->subject),
                            (long long)e->logical_attempt);
        }
    }
}

static void remember_ids(struct sim_node *n, const struct engine_commit *commit) {
    const struct append_request *req = &commit->request;
    struct sim_run *run = sim_find_run(n->world, req->items[0].event.run_id);
    for (size_t i = 0; i < req->count; i++) {
        if (run->drawn_count == run->drawn_cap) {
            size_t cap = run->drawn_cap == 0 ? 16 : run->drawn_cap * 2;
            struct sim_drawn *more = ARENA_ARRAY(&n->world->arena, struct sim_drawn, cap);
            if (run->drawn_count > 0) memcpy(more, run->drawn, run->drawn_count * sizeof(*more));
            run->drawn = more;
            run->drawn_cap = cap;
        }
        struct sim_drawn *d = &run->drawn[run->drawn_count++];
        memcpy(d->key, req->items[i].event.key, SHA256_LEN);
        d->id = req->items[i].event.event_id;
        d->node = n->index;
        d->life = n->life;
    }
}

static status port_append(void *context, struct engine_commit *commit, struct error *err) {
    struct sim_node *n = context;
    struct world *w = n->world;
    check_ids(n, commit);
    if (n->row_epoch == n->lease.epoch && !w->calm &&
        sim_rng_chance(&w->rng, w->rates.commit_fails / 4)) {
        remember_ids(n, commit);
        return error_set(err, ST_LIMIT, "the queue is full");
    }
    struct sim_commit *c = ARENA_NEW(&w->arena, struct sim_commit);
    *c = (struct sim_commit){
        .commit = commit, .node = n->index, .life = n->life, .decided = w->record_count};
    if (!w->calm && sim_rng_chance(&w->rng, w->rates.commit_fails))
        c->fate = FATE_FAILS;
    else if (!w->calm && sim_rng_chance(&w->rng, w->rates.commit_reply_lost))
        c->fate = FATE_REPLY_LOST;
    bool slow = !w->calm && sim_rng_chance(&w->rng, w->rates.commit_slow);
    struct sim_commit **end = &n->commits;
    while (*end)
        end = &(*end)->next;
    *end = c;
    w->commit_count++;
    sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 100, slow ? 3 * SECOND : 2 * MS), HAP_LAND,
                 n->index, 0, c);
    return ST_OK;
}

/* A commit of the node is stored, so it knows what became of those before. */
static void forget_ids(struct sim_node *n, const struct engine_commit *commit) {
    struct sim_run *run = sim_find_run(n->world, commit->request.items[0].event.run_id);
    size_t kept = 0;
    for (size_t i = 0; i < run->drawn_count; i++) {
        if (run->drawn[i].node != n->index) run->drawn[kept++] = run->drawn[i];
    }
    run->drawn_count = kept;
}

void sim_commit_land(struct world *w, struct sim_commit *c) {
    struct sim_node *n = &w->nodes[c->node];
    bool slow = !w->calm && sim_rng_chance(&w->rng, w->rates.commit_slow);
    c->landed = true;
    if (c->fate == FATE_FAILS) {
        sim_world_fault(w, "%s: a commit fails", n->name);
        remember_ids(n, c->commit);
        c->code = error_set(&c->err, ST_RETRY, "the store is away");
    } else {
        c->code = sim_store_append(w, n, &c->commit->request, c->decided);
        if (c->fate != FATE_REPLY_LOST && c->code == ST_OK &&
            c->commit->request.results[0].code == ST_OK)
            forget_ids(n, c->commit);
    }
    if (c->fate == FATE_REPLY_LOST) {
        sim_world_fault(w, "%s: the answer of a commit is lost", n->name);
        remember_ids(n, c->commit);
        c->code = error_set(&c->err, ST_RETRY, "the connection was lost");
    }
    sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 0, slow ? 2 * SECOND : MS), HAP_REPLY,
                 n->index, 0, c);
}

static void forget_commit(struct sim_node *n, const struct sim_commit *c) {
    for (struct sim_commit **at = &n->commits; *at; at = &(*at)->next) {
        if (*at != c) continue;
        *at = c->next;
        return;
    }
}

void sim_commit_reply(struct world *w, struct sim_commit *c) {
    struct sim_node *n = &w->nodes[c->node];
    forget_commit(n, c);
    c->commit->code = c->code;
    c->commit->err = c->err;
    engine_committed(n->engine, c->commit);
}

void sim_commits_drop(struct world *w, struct sim_node *n) {
    for (struct sim_commit *c = n->commits; c; c = c->next) {
        if (c->landed || w->closing || sim_rng_chance(&w->rng, 500)) continue;
        sim_world_trace(w, "%s: a last commit still lands", n->name);
        (void)!sim_store_append(w, n, &c->commit->request, c->decided);
    }
    n->commits = NULL;
}

/* ---- reading ---- */

static bool read_fails(struct sim_node *n, const char *what, struct error *err) {
    struct world *w = n->world;
    if (w->calm || !sim_rng_chance(&w->rng, w->rates.read_fails)) return false;
    sim_world_fault(w, "%s: %s fails", n->name, what);
    error_set(err, ST_RETRY, "the store is away");
    return true;
}

static void read_run(struct sim_node *n, struct engine_read *read) {
    struct world *w = n->world;
    struct sim_run *run = sim_find_run(w, read->run_id);
    bool stop = false;
    if (!run || !run->exists) {
        read->code = error_set(&read->err, ST_NOT_FOUND, "no such run");
        return;
    }
    const struct event *e = &run->records[0].rec.event;
    read->loaded = (struct engine_loaded){.info = {.run_no = run->run_no,
                                                   .run_id = e->run_id,
                                                   .tenant_id = e->tenant_id,
                                                   .project_id = e->project_id,
                                                   .environment_id = e->environment_id,
                                                   .plan_id = e->plan_id,
                                                   .plan_version = e->plan_version,
                                                   .head = run->run.head},
                                          .held = run->held,
                                          .ours = run->held && run->node_no == n->lease.node_no,
                                          .epoch = run->epoch};
    for (size_t i = 0; i < run->count && read->code == ST_OK && !stop; i++) {
        const struct event_record *rec = &run->records[i].rec;
        if (rec->seq <= read->after_seq) continue;
        /* A page may end anywhere. */
        if (read->row_count > 2 && sim_rng_chance(&w->rng, 50)) stop = read->more = true;
        if (!stop) read->code = engine_read_row(read, rec, &stop, &read->err);
    }
    for (size_t i = 0; i < run->signal_count && !read->more; i++)
        run->signals[i].read = true;
}

static void read_runs(struct sim_node *n, struct engine_read *read) {
    struct world *w = n->world;
    const struct lease_range *range = &read->range;
    struct lease_runs *out = &read->runs;
    *out = (struct lease_runs){.items = arena_alloc(&read->arena, RUNS_MAX * sizeof(*out->items))};
    for (int64_t no = range->after + 1; no <= w->next_run_no && out->count < range->limit; no++) {
        for (uint32_t i = 0; i < w->run_count; i++) {
            const struct sim_run *run = w->runs[i];
            if (!run->held || run->run_no != no || run->node_no != n->lease.node_no) continue;
            if (run->wake_us < range->from_us || run->wake_us > range->to_us ||
                run->wake_us == CLAIM_NEVER)
                continue;
            out->items[out->count++] =
                (struct lease_run){str_c(run->run_id), run->run_no, run->epoch};
        }
    }
}

static void count_active(struct sim_node *n, struct engine_read *read) {
    read->tenant_active = read->plan_active = 0;
    for (uint32_t i = 0; i < n->world->run_count; i++) {
        const struct sim_run *run = n->world->runs[i];
        enum run_status at = run->run.head.status;
        if (!run->exists || (at != RUN_RUNNING && at != RUN_PAUSED)) continue;
        if (!str_eq(run->tenant_id, read->tenant_id)) continue;
        read->tenant_active++;
        if (str_eq(run->plan->plan_id, read->plan_id)) read->plan_active++;
    }
}

static int64_t read_time(struct world *w) {
    bool slow = !w->calm && sim_rng_chance(&w->rng, w->rates.commit_slow);
    return sim_rng_between(&w->rng, 10, slow ? 2 * SECOND : MS);
}

/* The store is read at one time, and the answer comes at a later one. */
static void port_read(void *context, struct engine_read *read) {
    struct sim_node *n = context;
    sim_world_at(n->world, n->world->now_us + read_time(n->world), HAP_READ, n->index, 0, read);
}

void sim_read_take(struct world *w, struct sim_node *n, struct engine_read *read) {
    if (read_fails(n, "a read", &read->err))
        read->code = ST_RETRY;
    else if (read->kind == READ_RUN)
        read_run(n, read);
    else
        read_runs(n, read);
    if (read->wants_counts) count_active(n, read);
    sim_world_at(w, w->now_us + read_time(w), HAP_READ_BACK, n->index, 0, read);
}

static status port_plan(void *context, str tenant_id, const struct plan_ref *ref,
                        const struct plan **out, struct error *err) {
    (void)tenant_id; /* every tenant of the world may have its plans */
    struct sim_node *n = context;
    struct world *w = n->world;
    if (read_fails(n, "fetching a plan", err)) return ST_RETRY;
    for (uint32_t i = 0; i < w->plan_count; i++) {
        struct sim_plan *p = &w->plans[i];
        if (memcmp(p->ref.sha256, ref->sha256, SHA256_LEN) != 0) continue;
        if (i == 0 && w->plan_gone)
            return error_at(err, REASON_PLAN_NOT_FOUND, "", "the plan is gone");
        p->refs++;
        *out = p->plan;
        return ST_OK;
    }
    return error_at(err, REASON_PLAN_NOT_FOUND, "", "there is no such plan");
}

static void port_plan_done(void *context, const struct plan *plan) {
    struct sim_node *n = context;
    for (uint32_t i = 0; i < n->world->plan_count; i++) {
        if (n->world->plans[i].plan == plan) n->world->plans[i].refs--;
    }
}

/* ---- the executor ---- */

/* What the world outside does with an attempt depends on nothing but the attempt. */
static uint64_t outcome_of(const struct world *w, const struct sim_attempt *a) {
    return sim_mix(w->seed ^ sim_mix(((uint64_t)a->run->index << 48) ^ ((uint64_t)a->step << 32) ^
                                     (uint64_t)a->number));
}

void sim_attempt_answer(struct world *w, struct sim_attempt *a) {
    struct sim_node *n = &w->nodes[a->node];
    struct attempt *attempt = a->attempt;
    char output[160];
    for (struct sim_attempt **at = &n->attempts; *at; at = &(*at)->next) {
        if (*at != a) continue;
        *at = a->next;
        break;
    }
    a->attempt = NULL; /* the engine frees it */
    bool ok = a->ok && !a->stopped;
    enum reason code = a->stopped ? REASON_CANCELLED : a->code;
    struct model_step *m = &a->run->steps[a->step];
    if (a->number < ATTEMPTS_TOLD)
        *(ok ? &m->told_ok[a->number] : &m->told_failed[a->number]) = true;
    snprintf(output, sizeof(output),
             "{\"run\":\"%s\",\"step\":\"%.*s\",\"attempt\":%lld,\"v\":\"%llx\"}", a->run->run_id,
             STR_ARG(a->run->plan->steps[a->step].id), (long long)a->number,
             (unsigned long long)outcome_of(w, a));
    if (!w->crashing)
        sim_world_trace(w, "%s %s: executor answers %.*s#%lld %s", n->name, a->run->run_id,
                        STR_ARG(a->run->plan->steps[a->step].id), (long long)a->number,
                        ok ? "ok" : reason_name(code));
    struct outcome o = {.ok = true, .output = str_c(output)};
    if (!ok) o = outcome_failed(code, STR("it did not work"));
    attempt->done(attempt, &o);
}

static void answer_after(struct world *w, struct sim_attempt *a, int64_t us) {
    sim_world_at(w, w->now_us + us, HAP_ANSWER, a->node, ++a->turn, a);
}

static void port_start(void *context, struct attempt *attempt) {
    struct sim_node *n = context;
    struct world *w = n->world;
    struct sim_attempt *a = ARENA_NEW(&w->arena, struct sim_attempt);
    *a = (struct sim_attempt){.attempt = attempt,
                              .run = sim_find_run(w, attempt->run_id),
                              .node = n->index,
                              .life = n->life,
                              .number = attempt->number,
                              .code = REASON_EXIT_CODE};
    if (attempt->step->type == PLAN_EFFECT) a->code = REASON_EFFECT_DEAD_LETTERED;
    ASSERT(a->run);
    a->step = (uint32_t)(attempt->step - a->run->plan->steps);
    a->next = n->attempts;
    n->attempts = a;
    sim_world_trace(w, "%s %s: executor begins %.*s#%lld", n->name, a->run->run_id,
                    STR_ARG(attempt->step->id), (long long)a->number);
    sim_check_begin(w, a);
    uint64_t fate = outcome_of(w, a);
    a->ok = (int64_t)(fate % 1000) >= w->rates.attempt_fails;
    a->hangs = !w->calm && (int64_t)(fate / 1000 % 1000) < w->rates.attempt_hangs;
    int64_t us =
        sim_rng_between(&w->rng, 0, sim_rng_chance(&w->rng, 800) ? 2 * SECOND : 40 * SECOND);
    if (attempt->timeout_ms > 0 && (a->hangs || us > attempt->timeout_ms * 1000)) {
        us = attempt->timeout_ms * 1000; /* the executor watches the time */
        a->ok = a->hangs = false;
        a->code = REASON_TIMEOUT;
    }
    if (a->hangs) return;
    if (sim_rng_chance(&w->rng, 100) && a->code != REASON_TIMEOUT)
        sim_attempt_answer(w, a);
    else
        answer_after(w, a, us);
}

static void port_stop(void *context, struct attempt *attempt) {
    struct sim_node *n = context;
    struct world *w = n->world;
    struct sim_attempt *a = n->attempts;
    while (a && a->attempt != attempt)
        a = a->next;
    if (!a) {
        sim_world_break(w, "stop-only-what-runs", "%s stops an attempt that it does not have",
                        n->name);
        return;
    }
    if (w->crashing) return;
    sim_world_trace(w, "%s %s: executor stops %.*s#%lld", n->name, a->run->run_id,
                    STR_ARG(attempt->step->id), (long long)a->number);
    if (a->hangs || sim_rng_chance(&w->rng, 700)) a->stopped = true; /* else it had just ended */
    a->hangs = false;
    if (sim_rng_chance(&w->rng, 200))
        sim_attempt_answer(w, a);
    else
        answer_after(w, a, sim_rng_between(&w->rng, 0, 2 * SECOND));
}

void sim_attempts_drop(struct world *w, struct sim_node *n) {
    UNUSED(w);
    while (n->attempts) {
        struct sim_attempt *a = n->attempts;
        struct attempt *attempt = a->attempt;
        n->attempts = a->next;
        a->attempt = NULL;
        attempt_fail(attempt, REASON_CANCELLED, STR_NONE);
    }
}

void sim_attempts_calm(struct world *w) {
    for (uint32_t i = 0; i < w->node_count; i++) {
        for (struct sim_attempt *a = w->nodes[i].attempts; a; a = a->next) {
            if (!a->hangs) continue;
            a->hangs = false;
            answer_after(w, a, sim_rng_between(&w->rng, 0, SECOND));
        }
    }
}

/* ---- the rest ---- */

static void port_observe(void *context, const struct engine_note *note) {
    struct sim_node *n = context;
    const struct sim_run *run = sim_find_run(n->world, note->run_id);
    for (size_t i = 0; i < note->count; i++) {
        bool stored = false;
        for (size_t k = run->count; k > 0 && !stored; k--)
            stored = run->records[k - 1].rec.seq == note->results[i].seq;
        if (!stored)
            sim_world_break(n->world, "told-only-what-is-stored", "%s tells of event %zu of %s",
                            n->name, i, run->run_id);
    }
}

static void port_lost(void *context) {
    struct sim_node *n = context;
    struct world *w = n->world;
    n->lost = true;
    sim_world_trace(w, "%s has lost its lease", n->name);
    sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 0, 5 * SECOND), HAP_CRASH, n->index, 0,
                 NULL);
}

void sim_node_ports(struct sim_node *n, struct engine_ports *out) {
    *out = (struct engine_ports){.context = n,
                                 .now_us = port_now,
                                 .random = port_random,
                                 .append = port_append,
                                 .read = port_read,
                                 .plan = port_plan,
                                 .plan_done = port_plan_done,
                                 .start = port_start,
                                 .stop = port_stop,
                                 .wake_at = port_wake_at,
                                 .observe = port_observe,
                                 .lost = port_lost};
}
