/* sim/world.c: the clock, the queue of what happens next, the nodes' lives and the faults. */
#include <stdarg.h>

#include "base/buf.h"
#include "engine/impl.h"
#include "sim/impl.h"

#define START_US INT64_C(1767225600000000) /* 2026-01-01T00:00:00Z */
#define CALM_MAX_US (3600 * SECOND)        /* in a calm world every run ends before this */
enum { HAPPENINGS_MAX = 2000000 };         /* a world that turns in circles */

/* ---- chance ---- */

uint64_t sim_mix(uint64_t x) { /* splitmix64's finaliser */
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9U;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

uint64_t sim_rng_next(struct rng *r) {
    r->state += 0x9e3779b97f4a7c15U;
    return sim_mix(r->state);
}

int64_t sim_rng_between(struct rng *r, int64_t least, int64_t most) {
    ASSERT(least <= most);
    return least + (int64_t)(sim_rng_next(r) % (uint64_t)(most - least + 1));
}

bool sim_rng_chance(struct rng *r, int64_t per_mille) {
    return sim_rng_between(r, 0, 999) < per_mille;
}

/* ---- the trace ---- */

__attribute__((format(printf, 3, 0))) static void trace_line(struct world *w, const char *head,
                                                            const char *fmt, va_list args) {
    char line[TRACE_LINE_MAX];
    int64_t ms = (w->now_us - w->start_us) / 1000;
    int n = snprintf(line, sizeof(line), "%6lld.%03lld %s", (long long)(ms / 1000),
                     (long long)(ms % 1000), head);
    vsnprintf(line + n, sizeof(line) - (size_t)n, fmt, args);
    size_t len = strlen(line);
    sha256_add(w->sha, line, len);
    sha256_add(w->sha, "\n", 1);
    memcpy(w->lines[w->line_count++ % TRACE_LINES], line, len + 1);
    if (w->trace) fprintf(w->trace, "%s\n", line);
}

void sim_world_trace(struct world *w, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    trace_line(w, "", fmt, args);
    va_end(args);
}

void sim_world_fault(struct world *w, const char *fmt, ...) {
    va_list args;
    w->fault_count++;
    va_start(args, fmt);
    trace_line(w, "FAULT ", fmt, args);
    va_end(args);
}

void sim_world_break(struct world *w, const char *invariant, const char *fmt, ...) {
    va_list args;
    struct sim_result *r = w->result;
    if (r->invariant[0]) return;
    snprintf(r->invariant, sizeof(r->invariant), "%s", invariant);
    va_start(args, fmt);
    vsnprintf(r->what, sizeof(r->what), fmt, args);
    va_end(args);
    w->over = true;
}

/* ---- the queue ---- */

static bool sooner(const struct happening_at *a, const struct happening_at *b) {
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void queue_put(struct world *w, const struct happening_at *h) {
    if (w->queue_count == w->queue_cap) {
        size_t cap = w->queue_cap == 0 ? 256 : w->queue_cap * 2;
        struct happening_at *more =
            mem_grow(w->queue, w->queue_cap * sizeof(*more), cap * sizeof(*more));
        ASSERT(more);
        w->queue = more;
        w->queue_cap = cap;
    }
    size_t i = w->queue_count++;
    for (; i > 0 && sooner(h, &w->queue[(i - 1) / 2]); i = (i - 1) / 2)
        w->queue[i] = w->queue[(i - 1) / 2];
    w->queue[i] = *h;
}

static struct happening_at queue_take(struct world *w) {
    struct happening_at top = w->queue[0];
    struct happening_at last = w->queue[--w->queue_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->queue_count; i = child) {
        if (child + 1 < w->queue_count && sooner(&w->queue[child + 1], &w->queue[child])) child++;
        if (!sooner(&w->queue[child], &last)) break;
        w->queue[i] = w->queue[child];
    }
    w->queue[i] = last;
    return top;
}

void sim_world_at(struct world *w, int64_t at_us, enum happening kind, uint32_t node, uint32_t turn,
                  void *what) {
    struct happening_at h = {.at_us = at_us > w->now_us ? at_us : w->now_us,
                             .order = ++w->order,
                             .kind = kind,
                             .node = node,
                             .life = w->nodes[node].life,
                             .turn = turn,
                             .what = what};
    queue_put(w, &h);
}

/* ---- nodes ---- */

bool sim_node_answers(const struct sim_node *n, int64_t now_us) {
    return n->up && !n->lost && n->frozen_until <= now_us;
}

struct sim_run *sim_find_run(struct world *w, str run_id) {
    for (uint32_t i = 0; i < w->run_count; i++) {
        if (str_eq(str_c(w->runs[i]->run_id), run_id)) return w->runs[i];
    }
    return NULL;
}

static void node_boot(struct world *w, struct sim_node *n) {
    struct engine_ports ports;
    struct error err = {0};
    if (n->up) return;
    if (sim_store_take(w, n, &err) != ST_OK) { /* its former life's lease still runs */
        sim_world_at(w, w->now_us + SECOND, HAP_BOOT, n->index, 0, NULL);
        return;
    }
    n->life++;
    n->up = true;
    n->lost = false;
    n->armed_us = INT64_MAX;
    n->frozen_until = n->renew_blocked_until = 0;
    n->renewed_us = w->now_us;
    n->stubborn = sim_rng_chance(&w->rng, 500);
    n->skew_us =
        sim_rng_chance(&w->rng, 300) ? sim_rng_between(&w->rng, -2 * SECOND, 2 * SECOND) : 0;
    sim_node_ports(n, &ports);
    struct engine_options options = {.lease = n->lease,
                                     .node = str_c(n->name),
                                     .version = STR("sim"),
                                     .settle_max = w->settle_max,
                                     .tenant_active_max = w->tenant_active_max,
                                     .plan_active_max = w->plan_active_max,
                                     .resident_max = w->resident_max};
    status st = engine_open(&ports, &options, &n->engine, &err);
    ASSERT(st == ST_OK);
    /* The process's secret must not decide the order in which an engine walks its maps. */
    n->engine->runs.seed = n->engine->queues.seed = w->seed | 1;
    sim_world_trace(w, "%s is up, epoch %lld", n->name, (long long)n->lease.epoch);
    sim_world_at(w, w->now_us + RENEW_US, HAP_RENEW, n->index, 0, NULL);
    sim_world_at(w, w->now_us + LOOK_US, HAP_LOOK, n->index, 0, NULL);
    engine_recover(n->engine);
}

/* All memory is dropped; what was on its way to the store may still land. */
static void node_crash(struct world *w, struct sim_node *n) {
    if (!n->up) return;
    sim_world_trace(w, "%s is gone", n->name);
    w->crashing = n->index + 1;
    sim_commits_drop(w, n);
    engine_halt(n->engine);
    sim_attempts_drop(w, n);
    engine_close(n->engine);
    w->crashing = 0;
    n->engine = NULL;
    n->up = false;
    n->life++;
    if (!w->closing)
        sim_world_at(w,
                     w->now_us + sim_rng_between(&w->rng, 10 * MS, w->calm ? SECOND : 12 * SECOND),
                     HAP_BOOT, n->index, 0, NULL);
}

static void node_renew(struct world *w, struct sim_node *n) {
    struct error err = {0};
    status st = ST_RETRY;
    if (n->renew_blocked_until <= w->now_us) st = sim_store_renew(w, n, &err);
    if (st == ST_OK) n->renewed_us = w->now_us;
    bool late = w->now_us - n->renewed_us > LEASE_US;
    if (st == ST_CONFLICT || (late && !n->stubborn)) engine_lose(n->engine);
    sim_world_at(w, w->now_us + RENEW_US, HAP_RENEW, n->index, 0, NULL);
}

/* Pokes, and now and then what a dead node left. When the answer is lost nobody knows which runs
 * it named: all that have work are looked at. */
static void node_look(struct world *w, struct sim_node *n) {
    struct sim_run *runs[RUNS_MAX];
    bool take_over = ++n->looks % 4 == 0;
    bool fails = !w->calm && sim_rng_chance(&w->rng, w->rates.look_fails);
    bool landed = !fails || sim_rng_chance(&w->rng, 500);
    sim_world_at(w, w->now_us + LOOK_US, HAP_LOOK, n->index, 0, NULL);
    if (n->lost) return;
    size_t count = 0;
    if (landed) count = take_over ? sim_store_take_over(w, n, runs) : sim_store_woken(w, n, runs);
    if (fails) {
        sim_world_fault(w, "%s: the answer of a look is lost", n->name);
        engine_recover(n->engine);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        sim_world_trace(w, "%s looks at %s", n->name, runs[i]->run_id);
        engine_look(n->engine, str_c(runs[i]->run_id));
    }
}

/* ---- faults ---- */

static void make_fault(struct world *w) {
    struct sim_node *n = &w->nodes[sim_rng_between(&w->rng, 0, w->node_count - 1)];
    int64_t kind = sim_rng_between(&w->rng, 0, 99);
    if (w->calm) return;
    sim_world_at(w, w->now_us + sim_rng_between(&w->rng, 1, 2 * w->rates.fault_us), HAP_FAULT, 0, 0,
                 NULL);
    if (w->rates.plan_goes && !w->plan_gone && sim_rng_chance(&w->rng, 200)) {
        w->plan_gone = true; /* for good: its runs can only end */
        sim_world_fault(w, "a plan is gone");
    }
    if (kind < 45) {
        if (!n->up) return;
        sim_world_fault(w, "%s crashes", n->name);
        node_crash(w, n);
    } else if (kind < 65) {
        int64_t until = w->now_us + sim_rng_between(&w->rng, 100 * MS, 15 * SECOND);
        if (until > n->frozen_until) n->frozen_until = until;
        sim_world_fault(w, "%s freezes for %lld ms", n->name,
                        (long long)((n->frozen_until - w->now_us) / 1000));
    } else if (kind < 85) {
        n->renew_blocked_until = w->now_us + sim_rng_between(&w->rng, SECOND, 20 * SECOND);
        sim_world_fault(w, "%s cannot renew for %lld ms", n->name,
                        (long long)((n->renew_blocked_until - w->now_us) / 1000));
    } else {
        int64_t jump =
            sim_rng_between(&w->rng, MS, sim_rng_chance(&w->rng, 500) ? SECOND : 60 * SECOND);
        sim_world_fault(w, "the clock jumps by %lld ms", (long long)(jump / 1000));
        w->now_us += jump;
    }
}

static void calm_down(struct world *w) {
    sim_world_trace(w, "CALM");
    w->calm = true;
    w->calm_us = w->now_us;
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct sim_node *n = &w->nodes[i];
        n->renew_blocked_until = 0;
    }
    sim_attempts_calm(w);
    sim_world_at(w, w->now_us + SECOND, HAP_CARE, 0, 0, NULL);
}

/* ---- turning ---- */

static bool is_of_node(enum happening kind) { return kind <= HAP_LOOK; }

static void happen(struct world *w, const struct happening_at *h) {
    struct sim_node *n = &w->nodes[h->node];
    if (is_of_node(h->kind) && (!n->up || h->life != n->life)) return;
    if (is_of_node(h->kind) && h->kind != HAP_LAND && n->frozen_until > w->now_us) {
        struct happening_at later = *h;
        later.at_us = n->frozen_until;
        queue_put(w, &later);
        return;
    }
    switch (h->kind) {
    case HAP_WAKE:
        if (h->turn != n->arm_turn) return;
        n->armed_us = INT64_MAX;
        engine_tick(n->engine);
        return;
    case HAP_LAND:
        sim_commit_land(w, h->what);
        return;
    case HAP_REPLY:
        sim_commit_reply(w, h->what);
        return;
    case HAP_ANSWER: {
        struct sim_attempt *a = h->what;
        if (a->attempt && a->turn == h->turn) sim_attempt_answer(w, a);
        return;
    }
    case HAP_READ:
        sim_read_take(w, n, h->what);
        return;
    case HAP_READ_BACK:
        engine_read_done(n->engine, h->what);
        return;
    case HAP_RENEW:
        node_renew(w, n);
        return;
    case HAP_LOOK:
        node_look(w, n);
        return;
    case HAP_CRASH:
        if (n->up && h->life == n->life) node_crash(w, n);
        return;
    case HAP_BOOT:
        node_boot(w, n);
        return;
    case HAP_FAULT:
        make_fault(w);
        return;
    case HAP_CALM:
        calm_down(w);
        return;
    case HAP_CARE:
        sim_caretaker(w);
        return;
    case HAP_START:
        sim_client_start(w, h->what);
        return;
    case HAP_OPERATOR:
        sim_operator_acts(w);
        return;
    case HAP_WORKER:
        if (h->turn == ((struct sim_worker *)h->what)->turn) sim_worker_acts(w, h->what);
        return;
    case HAP_TASK:
        sim_worker_task(w, h->what);
        return;
    }
}

static void turn(struct world *w) {
    int64_t happened = 0;
    while (!w->over && w->queue_count > 0) {
        struct happening_at h = queue_take(w);
        if (h.at_us > w->now_us) w->now_us = h.at_us;
        happen(w, &h);
        if (w->calm && w->now_us > w->calm_us + CALM_MAX_US) {
            sim_check_end(w);
            sim_world_break(w, "the-world-ends", "nothing ends it");
        }
        if (++happened > HAPPENINGS_MAX)
            sim_world_break(w, "no-endless-loop", "it turns in circles");
    }
}

/* ---- making a world ---- */

static void choose_rates(struct world *w) {
    struct rng *r = &w->rng;
    struct world_rates *q = &w->rates;
    bool gentle = sim_rng_chance(r, 100);
    q->attempt_fails = sim_rng_between(r, 0, 500);
    q->operator_us = sim_rng_between(r, 500 * MS, 20 * SECOND);
    q->fault_us = FLOW_NEVER;
    if (gentle) return;
    if (sim_rng_chance(r, 700)) q->commit_fails = sim_rng_between(r, 0, 200);
    if (sim_rng_chance(r, 700)) q->commit_reply_lost = sim_rng_between(r, 0, 200);
    if (sim_rng_chance(r, 700)) q->commit_slow = sim_rng_between(r, 0, 300);
    if (sim_rng_chance(r, 500)) q->read_fails = sim_rng_between(r, 0, 150);
    if (sim_rng_chance(r, 500)) q->attempt_hangs = sim_rng_between(r, 0, 200);
    if (sim_rng_chance(r, 700)) q->worker_bad = sim_rng_between(r, 0, 600);
    if (sim_rng_chance(r, 500)) q->look_fails = sim_rng_between(r, 0, 200);
    if (sim_rng_chance(r, 850)) q->fault_us = sim_rng_between(r, SECOND, 20 * SECOND);
    q->plan_goes = sim_rng_chance(r, 40);
}

static void make_runs(struct world *w) {
    static const char *const tenants[] = {"acme", "zeta"};
    w->run_count = (uint32_t)sim_rng_between(&w->rng, 1, RUNS_MAX);
    for (uint32_t i = 0; i < w->run_count; i++) {
        struct sim_run *run = ARENA_NEW(&w->arena, struct sim_run);
        run->index = i;
        snprintf(run->run_id, sizeof(run->run_id), "run-%u", i + 1);
        run->plan = w->plans[sim_rng_between(&w->rng, 0, w->plan_count - 1)].plan;
        run->tenant_id = str_c(tenants[sim_rng_chance(&w->rng, 150)]);
        run->approval = sim_rng_chance(&w->rng, 120);
        run->wake_us = FLOW_NEVER;
        for (uint32_t s = 0; s < run->plan->step_count; s++)
            run->steps[s].state = STEP_PENDING;
        w->runs[i] = run;
    }
}

static void make_world(struct world *w) {
    struct rng *r = &w->rng;
    choose_rates(w);
    w->node_count = sim_rng_chance(r, 650) ? 2 : 1;
    w->settle_max = sim_rng_chance(r, 300) ? (uint32_t)sim_rng_between(r, 1, 4) : 0;
    w->resident_max = sim_rng_chance(r, 300) ? (uint32_t)sim_rng_between(r, 1, 3) : 0;
    if (sim_rng_chance(r, 150)) w->tenant_active_max = sim_rng_between(r, 1, 3);
    if (sim_rng_chance(r, 150)) w->plan_active_max = sim_rng_between(r, 1, 2);
    sim_plans_make(w);
    make_runs(w);
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct sim_node *n = &w->nodes[i];
        n->index = i;
        n->world = w;
        snprintf(n->name, sizeof(n->name), "node%u", i + 1);
        n->lease.node_no = i + 1;
        sim_world_at(w, w->now_us, HAP_BOOT, i, 0, NULL);
    }
    sim_people_start(w);
    int64_t chaos = sim_rng_between(r, 5 * SECOND, 120 * SECOND);
    if (w->rates.fault_us != FLOW_NEVER)
        sim_world_at(w, w->now_us + sim_rng_between(r, 0, w->rates.fault_us), HAP_FAULT, 0, 0,
                     NULL);
    sim_world_at(w, w->now_us + chaos, HAP_CALM, 0, 0, NULL);
}

/* ---- the end ---- */

static void put_tail(struct world *w) {
    struct buf tail;
    buf_init_fixed(&tail, w->result->tail, sizeof(w->result->tail) - 1);
    size_t first = w->line_count > TRACE_LINES ? w->line_count - TRACE_LINES : 0;
    for (size_t i = first; i < w->line_count; i++)
        buf_printf(&tail, "%s\n", w->lines[i % TRACE_LINES]);
    w->result->tail[tail.len] = 0;
}

static void close_world(struct world *w) {
    w->closing = true;
    for (uint32_t i = 0; i < w->node_count; i++)
        node_crash(w, &w->nodes[i]);
    if (w->result->invariant[0]) return;
    if (w->asked != w->answered)
        sim_world_break(w, "every-request-answered-once", "%lld asked, %lld answered",
                        (long long)w->asked, (long long)w->answered);
    for (uint32_t i = 0; i < w->plan_count; i++) {
        if (w->plans[i].refs != 0)
            sim_world_break(w, "plans-given-back", "plan %u is held %lld times", i,
                            (long long)w->plans[i].refs);
    }
}

void sim_run(uint64_t seed, FILE *trace, struct sim_result *out) {
    struct world *w = mem_alloc(sizeof(*w));
    struct error err;
    uint8_t digest[SHA256_LEN];
    ASSERT(w);
    *out = (struct sim_result){.seed = seed};
    w->seed = seed;
    w->rng.state = sim_mix(seed + 1);
    w->now_us = w->start_us = START_US;
    w->trace = trace;
    w->result = out;
    arena_init(&w->arena, (size_t)256 * 1024, (size_t)1024 * 1024 * 1024);
    arena_init(&w->scratch, (size_t)64 * 1024, (size_t)256 * 1024 * 1024);
    w->lines = arena_alloc(&w->arena, TRACE_LINES * sizeof(*w->lines));
    status st = sha256_open(&w->sha, &err);
    ASSERT(st == ST_OK);
    sha256_start(w->sha);
    make_world(w);
    turn(w);
    close_world(w);
    sha256_done(w->sha, digest);
    hex_encode(digest, sizeof(digest), out->hash);
    out->ok = !out->invariant[0];
    out->runs = w->run_count;
    out->events = w->record_count;
    out->commits = w->commit_count;
    out->faults = w->fault_count;
    out->world_ms = (w->now_us - w->start_us) / 1000;
    if (!out->ok) put_tail(w);
    sha256_close(w->sha);
    mem_free(w->queue);
    arena_release(&w->scratch);
    arena_release(&w->arena);
    mem_free(w);
}
