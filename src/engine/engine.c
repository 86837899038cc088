/* engine/engine.c: the engine as a whole: which runs are in memory, and when each is looked at.
 * What happens to one run is in drive.c. */
#include "engine/engine.h"

#include "base/log.h"
#include "engine/impl.h"

#define RUN_ARENA_MAX ((size_t)1024 * 1024 * 1024)   /* a plan of 200,000 steps with their outputs */
#define BATCH_ARENA_MAX ((size_t)512 * 1024 * 1024)

/* ---- the heap of runs that wait for a time ---- */

static void heap_set(struct engine *eng, uint32_t at, struct engine_run *r) {
    eng->heap[at] = r;
    r->heap_at = at;
}

static void heap_up(struct engine *eng, uint32_t at) {
    struct engine_run *r = eng->heap[at];
    for (; at > 0 && eng->heap[(at - 1) / 2]->due_us > r->due_us; at = (at - 1) / 2)
        heap_set(eng, at, eng->heap[(at - 1) / 2]);
    heap_set(eng, at, r);
}

static void heap_down(struct engine *eng, uint32_t at) {
    struct engine_run *r = eng->heap[at];
    for (uint32_t child; (child = 2 * at + 1) < eng->heap_count; at = child) {
        if (child + 1 < eng->heap_count &&
            eng->heap[child + 1]->due_us < eng->heap[child]->due_us)
            child++;
        if (eng->heap[child]->due_us >= r->due_us) break;
        heap_set(eng, at, eng->heap[child]);
    }
    heap_set(eng, at, r);
}

static void heap_remove(struct engine_run *r) {
    struct engine *eng = r->eng;
    if (r->due_us == FLOW_NEVER) return;
    uint32_t at = r->heap_at;
    struct engine_run *last = eng->heap[--eng->heap_count];
    r->due_us = FLOW_NEVER;
    if (last == r) return;
    heap_set(eng, at, last);
    heap_up(eng, at);
    heap_down(eng, last->heap_at);
}

void run_timer(struct engine_run *r, int64_t due_us) {
    struct engine *eng = r->eng;
    if (due_us == r->due_us) return;
    heap_remove(r);
    if (due_us == FLOW_NEVER) return;
    if (eng->heap_count == eng->heap_cap) {
        uint32_t cap = eng->heap_cap == 0 ? 64 : eng->heap_cap * 2;
        const size_t each = sizeof(struct engine_run *);
        struct engine_run **heap = mem_grow(eng->heap, eng->heap_cap * each, cap * each);
        if (!heap) return; /* the row in lease_run brings it back */
        eng->heap = heap;
        eng->heap_cap = cap;
    }
    r->due_us = due_us;
    heap_set(eng, eng->heap_count++, r);
    heap_up(eng, r->heap_at);
    engine_arm(eng);
}

static bool may_page(const struct engine *eng) {
    return eng->recovering && !eng->paging && eng->wanted_count < RECOVER_PAGE;
}

void engine_arm(struct engine *eng) {
    int64_t at = eng->scanning ? FLOW_NEVER : eng->scan_us;
    if (eng->heap_count > 0 && eng->heap[0]->due_us < at) at = eng->heap[0]->due_us;
    int64_t poll = tasks_next_deadline(eng);
    if (poll < at) at = poll;
    if (may_page(eng) && eng->recover_us < at) at = eng->recover_us;
    eng->ports.wake_at(eng->ports.context, at);
}

uuid engine_uuid(struct engine *eng) {
    uuid id;
    eng->ports.random(eng->ports.context, id.b, sizeof(id.b));
    id.b[6] = (uint8_t)((id.b[6] & 0x0f) | 0x40);
    id.b[8] = (uint8_t)((id.b[8] & 0x3f) | 0x80);
    return id;
}

/* ---- runs in memory ---- */

struct engine_run *engine_resident(struct engine *eng, str run_id) {
    return map_get(&eng->runs, run_id);
}

struct engine_run *run_new(struct engine *eng, str run_id, struct error *err) {
    struct engine_run *r = mem_alloc(sizeof(*r));
    if (!r) {
        (void)no_memory(err);
        return NULL;
    }
    r->eng = eng;
    r->inbox_end = &r->inbox;
    r->due_us = FLOW_NEVER;
    arena_init(&r->arena, 4096, RUN_ARENA_MAX);
    arena_init(&r->batch_arena, 4096, BATCH_ARENA_MAX);
    if (!arena_try_str(&r->arena, run_id, &r->run_id) || !map_put(&eng->runs, r->run_id, r)) {
        (void)no_memory(err);
        arena_release(&r->arena);
        mem_free(r);
        return NULL;
    }
    return r;
}

/* Bit n of a stage's row: stage n may follow. */
static const uint8_t run_next[STAGE_COUNT] = {
    [STAGE_LOADING] = 1 << STAGE_RESTING | 1 << STAGE_BROKEN,
    [STAGE_RESTING] = 1 << STAGE_DECIDING | 1 << STAGE_READING,
    [STAGE_READING] = 1 << STAGE_RESTING | 1 << STAGE_BROKEN,
    [STAGE_DECIDING] = 1 << STAGE_COMMITTING | 1 << STAGE_ACTING | 1 << STAGE_BROKEN,
    [STAGE_COMMITTING] = 1 << STAGE_ACTING | 1 << STAGE_BROKEN,
    [STAGE_ACTING] = 1 << STAGE_RESTING,
    [STAGE_BROKEN] = 1 << STAGE_LOADING,
};

void run_move(struct engine_run *r, enum run_stage to) {
    ASSERT(r->stage < STAGE_COUNT && to < STAGE_COUNT);
    ASSERT(run_next[r->stage] & (1 << to));
    r->stage = to;
    engine_run_check(r);
}

/* NOLINTNEXTLINE(readability-function-cognitive-complexity): a list of invariants */
void engine_run_check(const struct engine_run *r) {
    const struct flow *f = &r->flow;
    ASSERT((r->inbox == NULL) == (r->inbox_end == &r->inbox));
    ASSERT(r->due_us == FLOW_NEVER || r->eng->heap[r->heap_at] == r);
    ASSERT(!r->attempts || r->attempts->link == &r->attempts);
    ASSERT(!r->is_queued || !r->started);
    ASSERT(r->read_seq <= r->last_seq);
    if (r->stage == STAGE_COMMITTING) {
        ASSERT(r->commit.run == r && r->batch.count > 0);
        ASSERT(r->commit.request.count == r->batch.count);
    }
    if (r->stage == STAGE_RESTING) {
        ASSERT(r->read == NULL && r->starts == NULL);
        ASSERT(r->sent == NULL); /* what travelled was answered, or taken back */
        ASSERT(!r->claimed || r->last_seq > 0);
        ASSERT(r->started == (f->run.head.status >= RUN_RUNNING));
        ASSERT(f->ids.engine_attempt == r->engine_attempt);
    }
    if (run_has_flow(r)) flow_check(f);
}

static void answer_list(struct news *list, status code, const struct error *err) {
    while (list) {
        struct news *n = list;
        list = n->next;
        if (n->kind == NEWS_LEASE) n->lease.poll->pending--;
        news_answer(n, code, err);
    }
}

void run_unqueue(struct engine_run *r) {
    for (struct engine_run **at = &r->eng->queued; *at; at = &(*at)->queued_next) {
        if (*at != r) continue;
        if (r->eng->admitting == r) engine_admit_next(r->eng, r->queued_next);
        *at = r->queued_next;
        if (!*at) r->eng->queued_end = at;
        r->is_queued = false;
        return;
    }
}

static void leave(struct engine *eng, struct engine_attempt *a) {
    (eng->ports.leave ? eng->ports.leave : eng->ports.stop)(eng->ports.context, &a->attempt);
}

/* Nobody may use the run afterwards. Attempts under way become nobody's; their answers are dropped.
 */
void run_drop(struct engine_run *r, status code, const struct error *err) {
    struct engine *eng = r->eng;
    ASSERT(r->stage != STAGE_COMMITTING); /* the port still has its commit */
    if (r->ids.tenant_id.ptr) run_turn_away(r, r->ids.tenant_id);
    heap_remove(r);
    if (r->is_queued) run_unqueue(r);
    tasks_forget(r);
    (void)map_del(&eng->runs, r->run_id);
    for (struct engine_attempt *a = r->attempts; a;) {
        struct engine_attempt *next = a->next;
        a->run = NULL;
        a->link = NULL;
        eng->attempt_count--;
        leave(eng, a);
        a = next;
    }
    struct news *inbox = r->inbox;
    struct news *sent = r->sent;
    struct pending_start *starts = r->starts;
    if (r->read) { /* nobody waits for its answer any more */
        r->read->run = NULL;
        load_over(eng, r->read);
    }
    if (r->plan) eng->ports.plan_done(eng->ports.context, r->plan);
    arena_release(&r->arena);
    arena_release(&r->batch_arena);
    mem_free(r->drawn);
    mem_free(r);
    answer_list(sent, code, err);
    answer_list(inbox, code, err);
    while (starts) {
        struct pending_start *start = starts;
        starts = start->next;
        if (start->done) start->done(start->context, code, err);
        mem_free(start);
    }
}

/* ---- time ---- */

static void scan_due(struct engine *eng, int64_t now) {
    struct lease_range soon = {.from_us = 1, .to_us = now + SCAN_AHEAD_US, .limit = SCAN_PAGE};
    eng->scan_us = now + SCAN_EVERY_US;
    eng->scanning = engine_ask_due(eng, READ_DUE, &soon);
}

static void due_was_read(struct engine *eng, const struct engine_read *read) {
    size_t wanted = 0;
    eng->scanning = false;
    if (read->code != ST_OK) {
        LOG(LOG_WARN, "could not look for runs that are due",
            LOG_S("error", str_c(read->err.msg)));
        return;
    }
    for (size_t i = 0; i < read->runs.count; i++) {
        struct engine_run *r = engine_resident(eng, read->runs.items[i].run_id);
        if (r) {
            r->wanted = true;
            continue;
        }
        engine_look(eng, read->runs.items[i].run_id);
        wanted++;
    }
    if (read->runs.count == SCAN_PAGE && wanted > 0)
        eng->scan_us = eng->ports.now_us(eng->ports.context);
}

/* A page is asked for when the runs of the one before it are there. */
static void recover_page(struct engine *eng, int64_t now) {
    struct lease_range under_way = {.after = eng->recover_after, .limit = RECOVER_PAGE};
    eng->paging = engine_ask_due(eng, READ_UNDER_WAY, &under_way);
    if (!eng->paging) eng->recover_us = now + RETRY_AFTER_US;
}

static void page_was_read(struct engine *eng, const struct engine_read *read) {
    eng->paging = false;
    if (read->pass != eng->recover_pass) return; /* recovery has begun anew meanwhile */
    if (read->code != ST_OK) {
        LOG(LOG_WARN, "could not look for runs to go on with",
            LOG_S("error", str_c(read->err.msg)));
        eng->recover_us = eng->ports.now_us(eng->ports.context) + RETRY_AFTER_US;
        return;
    }
    for (size_t i = 0; i < read->runs.count; i++) {
        eng->recover_after = read->runs.items[i].run_no;
        struct engine_run *r = engine_resident(eng, read->runs.items[i].run_id);
        if (r)
            r->wanted = true; /* it may be here only for somebody who is turned away */
        else
            engine_look(eng, read->runs.items[i].run_id);
    }
    if (read->runs.count < RECOVER_PAGE) {
        eng->recovering = false;
        if (eng->recover_again) engine_recover_later(eng);
        eng->recover_again = false;
    }
}

void engine_due_read(struct engine *eng, const struct engine_read *read) {
    if (read->kind == READ_DUE)
        due_was_read(eng, read);
    else
        page_was_read(eng, read);
}

void engine_recover_later(struct engine *eng) {
    eng->recover_again = eng->recovering;
    if (eng->recovering) return;
    eng->recovering = true;
    eng->recover_pass++;
    eng->recover_after = 0;
    eng->recover_us = eng->ports.now_us(eng->ports.context) + RETRY_AFTER_US;
    engine_arm(eng);
}

void engine_recover(struct engine *eng) {
    struct map_slot *slot = NULL;
    eng->recovering = true;
    eng->recover_pass++;
    eng->recover_after = 0;
    eng->recover_us = 0;
    for (size_t i = 0; map_next(&eng->runs, &i, &slot);) { /* a wake-up call may have been missed */
        struct engine_run *r = slot->value;
        r->stale |= r->last_seq > 0;
        if (run_has_flow(r) && r->stage != STAGE_COMMITTING) run_timer(r, 0);
    }
    engine_arm(eng);
}

void engine_tick(struct engine *eng) {
    int64_t now = eng->ports.now_us(eng->ports.context);
    if (eng->lost) return;
    if (may_page(eng) && now >= eng->recover_us) recover_page(eng, now);
    if (!eng->options.only_asked && !eng->scanning && now >= eng->scan_us) scan_due(eng, now);
    while (!eng->lost && eng->heap_count > 0 && eng->heap[0]->due_us <= now) {
        struct engine_run *r = eng->heap[0];
        heap_remove(r);
        if (r->stage == STAGE_BROKEN) {
            run_reload(r);
        } else {
            run_drive(r);
        }
    }
    tasks_deadlines(eng, now);
    if (!eng->lost) engine_arm(eng);
}

/* ---- losing the lease ---- */

void engine_lose(struct engine *eng) {
    if (eng->lost) return;
    eng->lost = true;
    LOG(LOG_ERROR, "the lease is lost: this node carries out nothing more",
        LOG_S("node", eng->options.node));
    struct map_slot *slot = NULL;
    for (size_t i = 0; map_next(&eng->runs, &i, &slot);) {
        struct engine_run *r = slot->value;
        for (struct engine_attempt *a = r->attempts, *next; a; a = next) {
            next = a->next; /* it may answer at once */
            leave(eng, a);
        }
    }
    if (eng->ports.lost) eng->ports.lost(eng->ports.context);
}

void engine_halt(struct engine *eng) { eng->lost = true; }

/* ---- opening ---- */

static void register_metrics(struct engine *eng) {
    struct metrics *m = eng->options.metrics;
    if (!m) return;
    eng->m_started = metrics_counter(m, "cairn_runs_started_total", "Runs started.", "");
    eng->m_finished =
        metrics_counter(m, "cairn_runs_finished_total", "Runs that reached a final state.", "");
    eng->m_steps = metrics_counter(m, "cairn_steps_completed_total", "Steps completed.", "");
    eng->m_commits =
        metrics_counter(m, "cairn_engine_commits_total", "Batches of decisions committed.", "");
    eng->m_failures = metrics_counter(m, "cairn_engine_failures_total",
                                      "Batches refused or failed; their run is built again.", "");
    eng->m_recovered = metrics_counter(m, "cairn_runs_recovered_total",
                                       "Runs of another process, or another life of this one.", "");
}

status engine_open(const struct engine_ports *ports, const struct engine_options *options,
                   struct engine **out, struct error *err) {
    struct engine *eng = mem_alloc(sizeof(*eng));
    if (!eng) return no_memory(err);
    eng->ports = *ports;
    eng->options = *options;
    if (eng->options.resident_max == 0) eng->options.resident_max = RESIDENT_DEFAULT;
    eng->queued_end = &eng->queued;
    map_init(&eng->runs);
    map_init(&eng->queues);
    arena_init(&eng->scratch, (size_t)64 * 1024, RUN_ARENA_MAX);
    if (options->only_asked) eng->scan_us = FLOW_NEVER;
    register_metrics(eng);
    *out = eng;
    return ST_OK;
}

void engine_close(struct engine *eng) {
    if (!eng) return;
    struct error closing = {0};
    error_at(&closing, REASON_CLOSING, "", "the engine is closing");
    struct map_slot *slot = NULL;
    for (size_t i = 0; map_next(&eng->runs, &i, &slot); i = 0) { /* each drop changes the map */
        struct engine_run *r = slot->value;
        if (r->stage == STAGE_COMMITTING) run_move(r, STAGE_BROKEN); /* its answer never comes */
        run_drop(r, ST_RETRY, &closing);
        if (eng->runs.count == 0) break;
    }
    while (eng->reads) /* their answers never come */
        read_free(eng->reads);
    tasks_close(eng);
    map_release(&eng->runs);
    map_release(&eng->queues);
    arena_release(&eng->scratch);
    mem_free(eng->heap);
    mem_free(eng);
}

void engine_stats(const struct engine *eng, struct engine_stats *out) {
    *out = (struct engine_stats){.resident = eng->runs.count,
                                 .attempts = eng->attempt_count,
                                 .tasks = eng->task_count,
                                 .polls = eng->poll_count};
}
