/* engine/drive.c: one run, from its news to a commit, and what follows from that.
 *
 *     run_push -> run_drive: decide, submit -> append -> engine_committed: accepted or refused
 *
 * News is taken from the run's inbox and stays in `sent` until its commit is answered; after a
 * failed one it goes back and is decided again. A drive with nothing to write ends in rest(): the
 * run waits for its time, or leaves the memory. */
#include "base/log.h"
#include "engine/impl.h"

/* ---- news ---- */

enum { NEWS_TEXTS_MAX = 7 };

/* The texts that a piece of news holds. */
static size_t texts_of(struct news *n, str *out[NEWS_TEXTS_MAX]) {
    size_t count = 0;
    switch (n->kind) {
    case NEWS_LAUNCH:
        out[count++] = &n->launch.data;
        out[count++] = &n->launch.actor;
        break;
    case NEWS_RESULT:
        out[count++] = &n->result.outcome.output;
        out[count++] = &n->result.outcome.code;
        out[count++] = &n->result.outcome.message;
        out[count++] = &n->result.outcome.detail;
        out[count++] = &n->result.outcome.actor;
        break;
    case NEWS_SIGNAL:
        out[count++] = &n->signal.signal.name;
        out[count++] = &n->signal.signal.signal_id;
        out[count++] = &n->signal.signal.step_id;
        out[count++] = &n->signal.signal.reason;
        out[count++] = &n->signal.signal.payload;
        out[count++] = &n->signal.actor;
        break;
    case NEWS_TASK_DONE:
        out[count++] = &n->task.outcome.output;
        out[count++] = &n->task.outcome.code;
        out[count++] = &n->task.outcome.message;
        out[count++] = &n->task.outcome.detail;
        out[count++] = &n->task.outcome.actor;
        out[count++] = &n->task.step_id;
        out[count++] = &n->task.tenant_id;
        break;
    case NEWS_HEARTBEAT:
    case NEWS_TASK_AGAIN:
        out[count++] = &n->task.step_id;
        out[count++] = &n->task.tenant_id;
        break;
    case NEWS_LINKED:
        out[count++] = &n->linked.workflow_id;
        out[count++] = &n->linked.provider_run_id;
        out[count++] = &n->linked.queue;
        break;
    case NEWS_WORKER_LOST:
        out[count++] = &n->worker_lost.step_id;
        break;
    case NEWS_ENDED:
        out[count++] = &n->ended.code;
        out[count++] = &n->ended.message;
        break;
    case NEWS_LEASE:
    case NEWS_ROTATING:
        break;
    }
    ASSERT(count <= NEWS_TEXTS_MAX);
    return count;
}

struct news *news_new(const struct news *from) {
    struct news made = *from;
    str *texts[NEWS_TEXTS_MAX];
    size_t count = texts_of(&made, texts);
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += texts[i]->len;
    struct news *n = mem_alloc(sizeof(*n) + bytes + 1);
    if (!n) return NULL;
    char *at = (char *)(n + 1);
    for (size_t i = 0; i < count; i++) {
        size_t len = texts[i]->len;
        if (!texts[i]->ptr) continue; /* STR_NONE stays STR_NONE */
        if (len > 0) memcpy(at, texts[i]->ptr, len);
        *texts[i] = str_n(at, len);
        at += len;
    }
    *n = made;
    return n;
}

void news_answer(struct news *n, status code, const struct error *err) {
    if (n->kind == NEWS_TASK_DONE && n->task.poll) tasks_result_over(n->task.poll);
    if (n->done) n->done(n->context, code, err);
    mem_free(n);
}

void run_push(struct engine_run *r, struct news *n) {
    n->next = NULL;
    *r->inbox_end = n;
    r->inbox_end = &n->next;
    run_drive(r);
}

/* ---- deciding ---- */

/* A worker's answer counts only with the newest lease. */
static bool lease_is_newest(const struct engine_run *r, uint32_t step, struct news *n) {
    const struct news_task *t = &n->task;
    const struct flow_step *s = &r->flow.steps[step];
    if (s->attempt == t->attempt && (int64_t)s->leases == t->lease) {
        if (s->phase == FLOW_OPEN) return true;
        bool same = (s->state == STEP_SUCCESS) == t->outcome.ok; /* told twice: fine */
        if (same) return false;
    }
    n->verdict = error_at(&n->why, REASON_LEASE_LOST, "",
                          "this lease is over: another has the task, or it is finished");
    return false;
}

static status take_task(struct engine_run *r, const struct decision *d, struct news *n,
                        struct error *err) {
    bool taken = false;
    uint32_t step = 0;
    n->verdict = tasks_find(r, &n->task, &step, &n->why);
    if (n->verdict != ST_OK) return ST_OK;
    if (n->kind != NEWS_TASK_DONE) {
        n->verdict = tasks_serve(r, n, step, d->now_us, &n->why);
        return ST_OK;
    }
    if (!lease_is_newest(r, step, n)) return ST_OK;
    return flow_result(d, step, n->task.attempt, &n->task.outcome, &taken, err);
}

static status take_launch(struct engine_run *r, const struct decision *d, struct news *n,
                          struct error *err) {
    const struct news_launch *launch = &n->launch;
    if (flow_signal_seen(&r->flow, launch->id)) return ST_OK; /* a commit thought lost had landed */
    if (r->last_seq > 0) {
        n->verdict = error_at(&n->why, REASON_RUN_STARTING, "/runId",
                              "another start of the run was first: ask again");
        return ST_OK;
    }
    return flow_launch(d, launch->data, launch->id, launch->actor, err);
}

static status take_signal(struct engine_run *r, const struct decision *d, struct news *n,
                          struct error *err) {
    const struct news_signal *s = &n->signal;
    bool nothing_to_do = false;
    if (flow_signal_seen(&r->flow, s->id)) return ST_OK;
    n->verdict = flow_signal_check(&r->flow, &s->signal, &nothing_to_do, &n->why);
    if (n->verdict != ST_OK || nothing_to_do) return ST_OK;
    return flow_signal(d, &s->signal, s->id, s->actor, err);
}

static status take_lease(struct engine_run *r, const struct decision *d, struct news *n,
                         struct error *err) {
    struct news_lease *lease = &n->lease;
    const struct flow_step *s = &r->flow.steps[lease->step];
    if (!flow_task_is_free(&r->flow, lease->step, d->now_us)) {
        n->verdict = ST_CONFLICT;
        return ST_OK;
    }
    lease->attempt = s->attempt;
    lease->number = (int64_t)s->leases + 1;
    status st = lease->poll->receipt ? tasks_ride(r, n, err) : ST_OK;
    if (st != ST_OK) return st;
    return flow_lease(d, lease->step, lease->poll->worker, lease->ms, err);
}

static status take_one(struct engine_run *r, const struct decision *d, struct news *n,
                       struct error *err) {
    bool taken = false;
    switch (n->kind) {
    case NEWS_LAUNCH:
        return take_launch(r, d, n, err);
    case NEWS_RESULT:
        return flow_result(d, n->result.step, n->result.attempt, &n->result.outcome, &taken, err);
    case NEWS_SIGNAL:
        return take_signal(r, d, n, err);
    case NEWS_LEASE:
        return take_lease(r, d, n, err);
    case NEWS_TASK_DONE:
    case NEWS_HEARTBEAT:
    case NEWS_TASK_AGAIN:
        return take_task(r, d, n, err);
    case NEWS_LINKED:
    case NEWS_ROTATING:
    case NEWS_WORKER_LOST:
    case NEWS_ENDED:
        return run_take_provider_news(r, d, n, err);
    }
    return ST_OK;
}

/* Moves news into the batch; it stays in `sent` until the commit is answered. */
static status take_news(struct engine_run *r, const struct decision *d, struct error *err) {
    struct news **end = &r->sent;
    while (*end)
        end = &(*end)->next;
    for (int taken = 0; r->inbox && taken < NEWS_PER_BATCH_MAX; taken++) {
        struct news *n = r->inbox;
        uint32_t count = r->batch.count;
        status st = take_one(r, d, n, err);
        if (st != ST_OK) return st;
        n->rides = r->batch.count > count; /* what has no effect writes no receipt of one */
        r->inbox = n->next;
        if (!r->inbox) r->inbox_end = &r->inbox;
        n->next = NULL;
        *end = n;
        end = &n->next;
        if (n->kind == NEWS_ENDED && n->rides) break; /* the rest comes too late */
    }
    return ST_OK;
}

/* Tasks for which somebody waits are leased in the batch that starts their steps: one commit, not
 * two. A promise travels as news, so that it is kept or taken back with the commit. */
static status lease_started(struct engine_run *r, const struct decision *d, struct error *err) {
    struct news **end = &r->sent;
    uint32_t decided = r->batch.count; /* the leases come behind */
    if (!r->eng->polls || r->flow.stuck) return ST_OK;
    while (*end)
        end = &(*end)->next;
    for (uint32_t i = 0; i < decided && r->batch.count < BATCH_EVENTS_MAX; i++) {
        uint32_t step = r->batch.items[i].step;
        if (r->batch.items[i].type != EVENT_STEP_STARTED) continue;
        if (!flow_task_is_free(&r->flow, step, d->now_us)) continue; /* it ended at once */
        struct news *n = tasks_promise(r, step);
        if (!n) continue;
        *end = n;
        end = &n->next;
        status st = take_lease(r, d, n, err);
        if (st != ST_OK) return st;
        n->rides = true;
    }
    return ST_OK;
}

/* Adds the runs of this process that the store did not count: those that were let in, but whose RunStarted is not
 * stored yet, and those that have started since it was asked. false: one of these has left the memory meanwhile, so
 * that the store must be asked anew. */
static bool count_starting(const struct engine_run *r, int64_t *tenant, int64_t *plan) {
    struct map_slot *slot = NULL;
    int64_t since = 0;
    for (size_t i = 0; map_next(&r->eng->runs, &i, &slot);) {
        const struct engine_run *other = slot->value;
        bool later = other->start_no > r->counts_no;
        since += later;
        if (other == r || (other->started && !later)) continue;
        /* A start whose commit has an unknown outcome may have landed. */
        bool unknown = !run_has_flow(other) && (other->tries > 0 || other->purpose == LOAD_AGAIN);
        if (!unknown && (!run_has_flow(other) || other->flow.run.head.status < RUN_RUNNING)) continue;
        if (!str_eq(other->ids.tenant_id, r->ids.tenant_id)) continue;
        ++*tenant;
        if (str_eq(other->ids.plan_id, r->ids.plan_id)) ++*plan;
    }
    return since == r->eng->start_no - r->counts_no;
}

static bool has_limits(const struct engine *eng) {
    return eng->options.tenant_active_max > 0 || eng->options.plan_active_max > 0;
}

static bool is_admitted(const struct engine_run *r) {
    const struct engine_options *o = &r->eng->options;
    int64_t tenant = r->tenant_active;
    int64_t plan = r->plan_active;
    if (!has_limits(r->eng)) return true;
    if (r->counts != COUNTS_KNOWN) return false; /* asked again soon */
    if (!count_starting(r, &tenant, &plan)) return false;
    return (o->tenant_active_max == 0 || tenant < o->tenant_active_max) &&
           (o->plan_active_max == 0 || plan < o->plan_active_max);
}

/* Whether the store must be asked before anything is decided: for what others wrote, or for how many runs
 * are active, before one of these starts. */
static bool must_read(const struct engine_run *r) {
    if (r->stale) return true;
    return has_limits(r->eng) && r->counts == COUNTS_UNKNOWN &&
           r->flow.run.head.status < RUN_RUNNING;
}

/* A provider is asked only once the launch is stored, and when the run would really start. */
static bool may_start(struct engine_run *r, str *why_not) {
    enum run_status at = r->flow.run.head.status;
    if (at >= RUN_RUNNING) return true;
    if (r->flow.needs_approval && at < RUN_APPROVED) return false;
    if (!is_admitted(r)) return false;
    if (run_is_bound(r)) return true;
    *why_not = STR("provider");
    return false;
}

static status decide(struct engine_run *r, struct error *err) {
    struct engine *eng = r->eng;
    status st = ST_OK;
    arena_reset(&r->batch_arena);
    flow_batch_init(&r->batch, &r->batch_arena);
    struct decision d = {.flow = &r->flow,
                         .now_us = eng->ports.now_us(eng->ports.context),
                         .batch = &r->batch,
                         .settle_max = eng->options.settle_max,
                         .version = eng->options.version,
                         .warnings = r->warnings,
                         .report_ref = r->report};
    if (r->ending_code && !run_is_final(r->flow.run.head.status))
        return flow_fail(&d, str_c(r->ending_code), r->ending_message, err);
    struct flow_recovery here = {.node = eng->options.node, .cause = FLOW_NODE};
    if (r->recovered) st = flow_recover(&d, r->engine_attempt, &here, err);
    if (st == ST_OK) st = take_news(r, &d, err);
    if (st != ST_OK) return st;
    d.may_start = may_start(r, &d.why_not);
    r->counts = COUNTS_UNKNOWN; /* they were good for this decision */
    st = flow_decide(&d, err);
    return st == ST_OK ? lease_started(r, &d, err) : st;
}

/* ---- committing ---- */

static void fill_item(struct engine_run *r, const struct flow_event *from, int64_t now_us,
                      struct append_item *to) {
    struct event *e = &to->event;
    *to = (struct append_item){.event = r->flow.ids, .actor = from->actor};
    e->type = from->type;
    e->type_name = event_type_info(from->type)->name;
    e->subject = from->subject;
    e->logical_attempt = from->attempt;
    e->payload = from->payload;
    e->emitted_ns = now_us * 1000;
    e->emitted_digits = 6;
    event_key_derive(e, e->key);
    e->event_id = run_event_id(r, e->key);
}

static void set_claim(struct engine_run *r) {
    const struct lease *lease = &r->eng->options.lease;
    struct run_claim *c = &r->commit.claim;
    *c = (struct run_claim){.node_no = lease->node_no, .epoch = lease->epoch};
    c->wake_us = flow_wake(&r->flow);
    c->known_seq = r->last_seq > 0 ? r->last_seq : -1;
    if (run_is_final(r->flow.run.head.status)) c->act = r->claimed ? CLAIM_CLOSE : CLAIM_NONE;
    else if (!r->claimed) c->act = CLAIM_OPEN;
    else if (c->wake_us != r->claimed_wake) c->act = CLAIM_MOVE;
}

/* One chain of what all the news of the batch bring along; what it points to is the callers'. */
static status gather_riders(struct engine_run *r, const struct append_rider **out,
                            struct error *err) {
    const struct append_rider **end = out;
    *out = NULL;
    for (const struct news *n = r->sent; n; n = n->next) {
        const struct append_rider *from = n->rides ? n->riders : NULL;
        for (; from; from = from->next) {
            struct append_rider *copy = arena_try(&r->batch_arena, sizeof(*copy));
            if (!copy) return no_memory(err);
            *copy = (struct append_rider){.receipt = from->receipt, .audit = from->audit};
            *end = copy;
            end = &copy->next;
        }
    }
    return ST_OK;
}

static status submit(struct engine_run *r, struct error *err) {
    size_t n = r->batch.count;
    const struct append_rider *riders = NULL;
    r->commit.request = (struct append_request){0};
    status st = gather_riders(r, &riders, err);
    if (st != ST_OK) return st;
    struct append_item *items = arena_try_raw(&r->batch_arena, n * sizeof(*items));
    struct append_result *results = arena_try(&r->batch_arena, n * sizeof(*results));
    if (!items || !results) return no_memory(err);
    int64_t now_us = r->eng->ports.now_us(r->eng->ports.context);
    for (size_t i = 0; i < n; i++)
        fill_item(r, &r->batch.items[i], now_us, &items[i]);
    if (r->last_seq == 0) {
        items[0].signal = &r->launch_id;
        items[0].correlation = &r->correlation;
    }
    r->commit.request = (struct append_request){.items = items,
                                                .count = n,
                                                .atomic = true,
                                                .results = results,
                                                .arena = &r->batch_arena,
                                                .claim = &r->commit.claim,
                                                .riders = riders};
    r->commit.run = r;
    set_claim(r);
    return r->eng->ports.append(r->eng->ports.context, &r->commit, err);
}

static void say_stuck(const struct engine_run *r) {
    const struct refusal *why = &r->flow.why_stuck;
    LOG(LOG_ERROR, "the engine decided an event that the run's state forbids: the run is left alone",
        LOG_S("runId", r->run_id), LOG_S("eventType", why->attempted_type),
        LOG_S("expectedState", str_c(why->expected)), LOG_S("actualState", str_c(why->actual)));
}

/* The flow cannot be trusted, or not be written: it is built again in a while. */
void run_build_again_later(struct engine_run *r, const struct error *why) {
    struct engine *eng = r->eng;
    ASSERT(r->stage == STAGE_BROKEN);
    metric_add(eng->m_failures, 1);
    r->tries++;
    LOG(r->tries > RETRY_TRIES_MAX ? LOG_ERROR : LOG_WARN, "a run could not go on and is tried again",
        LOG_S("runId", r->run_id), LOG_S("error", str_c(why->msg)), LOG_N("tries", r->tries));
    if (eng->ports.trouble) eng->ports.trouble(eng->ports.context, r->run_id, why, r->tries);
    int64_t now = eng->ports.now_us(eng->ports.context);
    run_timer(r, now + RETRY_AFTER_US * (r->tries < 20 ? r->tries : 20));
}

/* What travelled in the failed commit travels again: the flow knows what had landed. */
static void take_back_news(struct engine_run *r) {
    struct news **end = &r->sent;
    while (*end)
        end = &(*end)->next;
    *end = r->inbox;
    if (!r->inbox) r->inbox_end = end;
    r->inbox = r->sent;
    if (!r->inbox) r->inbox_end = &r->inbox;
    r->sent = NULL;
    for (struct news *n = r->inbox; n; n = n->next) {
        n->verdict = ST_OK;
        n->rides = false;
    }
}

static void say_rode(const struct news *n) {
    for (const struct append_rider *rider = n->riders; rider; rider = rider->next) {
        if (rider->rode) *rider->rode = true;
    }
}

static void answer_sent(struct engine_run *r) {
    struct news *list = r->sent;
    r->sent = NULL;
    while (list) {
        struct news *n = list;
        list = n->next;
        if (n->rides) say_rode(n);
        if (n->kind == NEWS_LEASE)
            tasks_leased(r, n);
        else news_answer(n, n->verdict, &n->why);
    }
}

/* Those that the batch wants to end. */
static void stop_attempts(struct engine_run *r) {
    for (uint32_t i = 0; i < r->batch.stop_count; i++) {
        struct engine_attempt *a = run_find_attempt(r, r->batch.stops[i]);
        if (a) r->eng->ports.stop(r->eng->ports.context, &a->attempt);
    }
}

static void queue_for_admission(struct engine_run *r) {
    struct engine *eng = r->eng;
    if (r->is_queued) return;
    r->is_queued = true;
    r->queued_next = NULL;
    *eng->queued_end = r;
    eng->queued_end = &r->queued_next;
}

/* Whether the run may leave the memory: then its row in lease_run must bring it back in time. */
static bool may_leave(const struct engine_run *r, int64_t wake_us, int64_t now_us) {
    const struct engine *eng = r->eng;
    if (r->attempts || r->flow.stuck) return false;
    /* A wake-up call without consequences has left another time in the row. */
    if (!r->claimed || r->claimed_wake != wake_us) return false;
    if (wake_us == FLOW_NEVER) return true;
    if (eng->options.only_asked) return false; /* it looks for no run that is due */
    bool crowded = eng->runs.count > eng->options.resident_max;
    return wake_us > now_us + (crowded ? SCAN_AHEAD_US : EVICT_AFTER_US);
}

/* Nothing was decided: ends what another process has cancelled, answers what had no effect, and
 * waits. true: there is news already. */
static bool rest(struct engine_run *r) {
    struct engine *eng = r->eng;
    run_move(r, STAGE_ACTING);
    stop_attempts(r);
    answer_sent(r);
    if (run_adapter(r) != ADAPTER_LOCAL && eng->ports.rested && !r->inbox)
        eng->ports.rested(eng->ports.context, run_adapter(r), r->run_id);
    run_move(r, STAGE_RESTING);
    if (r->inbox) return true;

    enum run_status at = r->flow.run.head.status;
    if (run_is_final(at)) {
        struct error finished = {0};
        error_at(&finished, REASON_RUN_FINISHED, "", "the run is %s", run_status_name(at));
        run_drop(r, ST_CONFLICT, &finished);
        return false;
    }
    int64_t now = eng->ports.now_us(eng->ports.context);
    if (at == RUN_APPROVED || (at == RUN_PENDING && !r->flow.needs_approval)) {
        queue_for_admission(r);
        run_timer(r, now + SCAN_EVERY_US);
    } else if (may_leave(r, flow_wake(&r->flow), now)) {
        run_drop(r, ST_OK, NULL);
        return false;
    } else if (r->flow.stuck) {
        run_timer(r, FLOW_NEVER); /* it is left alone: what is due in it would be due for ever */
    } else {
        run_timer(r, flow_due(&r->flow));
    }
    if (r->flow.task_freed) tasks_offer_freed(r);
    return false;
}

/* From news to a commit under way, or to rest. true: once more. */
static bool drive_once(struct engine_run *r) {
    struct engine *eng = r->eng;
    struct error err = {0};
    if (r->stage != STAGE_RESTING || eng->lost) return false;
    if (must_read(r)) {
        if (r->is_queued && !r->stale && eng->admitting && eng->admitting != r)
            return false; /* its turn comes */
        if (run_ask(r, r->read_seq, &err) != ST_OK) {
            run_timer(r, eng->ports.now_us(eng->ports.context) + RETRY_AFTER_US);
            return false;
        }
        if (r->is_queued && !eng->admitting) eng->admitting = r;
        run_move(r, STAGE_READING);
        return false;
    }
    run_move(r, STAGE_DECIDING);
    status st = decide(r, &err);
    if (eng->admitting == r) engine_admit_next(eng, r->queued_next);
    if (st == ST_OK && r->batch.count == 0) {
        if (r->flow.stuck) say_stuck(r);
        return rest(r);
    }
    if (st == ST_OK) {
        st = submit(r, &err);
        if (st == ST_OK) {
            run_move(r, STAGE_COMMITTING);
            return false;
        }
        run_keep_ids(r);
    }
    take_back_news(r);
    run_move(r, STAGE_BROKEN);
    run_build_again_later(r, &err);
    return false;
}

void run_drive(struct engine_run *r) {
    bool again = true;
    while (again)
        again = drive_once(r);
}

/* ---- after the commit ---- */

void engine_admit_next(struct engine *eng, struct engine_run *next) {
    eng->admitting = NULL;
    if (next && has_limits(eng)) run_timer(next, eng->ports.now_us(eng->ports.context));
}

/* The one that waits longest is asked first; the others follow, one after the other. */
static void try_queued(struct engine *eng) {
    if (!eng->admitting) engine_admit_next(eng, eng->queued);
}

static void count_events(struct engine *eng, const struct engine_run *r) {
    int64_t steps = 0;
    for (uint32_t i = 0; i < r->batch.count; i++) {
        enum event_type type = r->batch.items[i].type;
        if (type == EVENT_STEP_COMPLETED) steps++;
        if (type == EVENT_RUN_STARTED) metric_add(eng->m_started, 1);
    }
    metric_add(eng->m_steps, steps);
    metric_add(eng->m_commits, 1);
}

static void tell_observer(struct engine_run *r) {
    const struct append_request *req = &r->commit.request;
    struct engine_note note = {.run_id = r->run_id,
                               .tenant_id = r->ids.tenant_id,
                               .flow = &r->flow,
                               .events = r->batch.items,
                               .results = req->results,
                               .count = req->count};
    if (r->eng->ports.observe) r->eng->ports.observe(r->eng->ports.context, &note);
}

static void accepted(struct engine_run *r) {
    struct engine *eng = r->eng;
    const struct append_request *req = &r->commit.request;
    bool was_recovered = r->recovered;
    r->tries = 0;
    r->recovered = false;
    run_ids_stored(r);
    r->last_seq = req->results[req->count - 1].seq;
    if (r->commit.claim.act == CLAIM_OPEN) r->claimed = true;
    if (r->commit.claim.act == CLAIM_OPEN || r->commit.claim.act == CLAIM_MOVE)
        r->claimed_wake =
            r->stale ? -1 : r->commit.claim.wake_us; /* somebody may have woken it later */
    count_events(eng, r);
    bool was_started = r->started;
    r->started = r->flow.run.head.status >= RUN_RUNNING;
    if (r->started && !was_started) r->start_no = ++eng->start_no;
    if (r->is_queued && r->started) run_unqueue(r);
    /* Whoever is told now may answer at once: that is news for the next batch. */
    run_move(r, STAGE_ACTING);
    tell_observer(r);
    if (run_is_final(r->flow.run.head.status)) {
        answer_sent(r);
        metric_add(eng->m_finished, 1);
        run_move(r, STAGE_RESTING);
        run_drive(r); /* answers what came too late, one by one, and drops the run */
        try_queued(eng);
        return;
    }
    if (was_recovered) run_ensure_attempts(r);
    for (uint32_t i = 0; i < r->batch.count; i++) {
        const struct flow_event *e = &r->batch.items[i];
        if (e->type == EVENT_STEP_STARTED) run_act_on_start(r, e->step);
    }
    stop_attempts(r);
    answer_sent(r);
    run_move(r, STAGE_RESTING);
    run_drive(r);
}

/* Somebody else wrote to the run, or took it: what we decided does not hold. */
static void refused(struct engine_run *r, const struct error *why) {
    if (why->reason == REASON_LEASE_LOST) {
        engine_lose(r->eng);
        return;
    }
    if (r->last_seq == 0 && why->reason == REASON_RUN_MOVED) {
        struct error other = {0};
        error_at(&other, REASON_RUN_STARTING, "/runId", "another node has just started the run");
        run_drop(r, ST_RETRY, &other);
        return;
    }
    if (why->reason == REASON_RUN_MOVED && r->tries++ < RETRY_TRIES_MAX) {
        run_reload(r); /* reads what others wrote, and decides again at once */
        return;
    }
    if (r->last_seq == 0) { /* the very first commit: the start itself was refused */
        run_drop(r, why->code, why);
        return;
    }
    run_build_again_later(r, why);
}

void engine_committed(struct engine *eng, struct engine_commit *commit) {
    struct engine_run *r = commit->run;
    ASSERT(r->stage == STAGE_COMMITTING);
    engine_run_check(r);
    if (eng->lost) {
        struct error gone = {0};
        run_move(r, STAGE_BROKEN);
        error_as(&gone, ST_RETRY, REASON_LEASE_LOST, "", "this node no longer carries out the run");
        run_drop(r, ST_RETRY, &gone);
        return;
    }
    const struct error *why = commit->code == ST_OK ? NULL : &commit->err;
    bool unknown = why != NULL;
    for (size_t i = 0; i < commit->request.count && !why; i++) {
        if (commit->request.results[i].code != ST_OK) why = commit->request.results[i].err;
    }
    if (!why) {
        accepted(r);
        return;
    }
    struct error copy = *why; /* it lives in the batch's arena */
    run_keep_ids(r);
    take_back_news(r);
    run_move(r, STAGE_BROKEN);
    if (unknown) {
        run_build_again_later(r, &copy);
    } else {
        refused(r, &copy);
    }
}
