/* outbox/dispatch.c: from an effect that is due to the record of its end.
 *
 *     look (a read) ─┐
 *                    ├─> claims ──> durable ──> deliver ──> record ──> durable ──> the next one
 *     told ──────────┘   (members)                          (member)
 *
 * A batch is at one stage, and batch_move() moves it. Whatever goes to the ledger thread is a
 * member of the group that is being committed there, one request for each effect: one that has
 * moved does not spoil the others. What the store fails is tried again at the next look, not
 * before, or two threads would do nothing but fail. */
#include "outbox/dispatch.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/map.h"
#include "base/time.h"
#include "outbox/outbox_impl.h"

enum {
    EXPIRE_MAX = 100,       /* leases ended together at the start */
    HALT_WAIT_MS = 5000,    /* for room at the ledger thread, to give back what was not begun */
    LEASE_SPARE_MS = 30000, /* beyond what the deliveries of a batch may take */
    LOOK_PAGES_MAX = 100,   /* of nothing that can be claimed, before we give up until later */
};
#define ASK_ARENA_MAX ((size_t)16 * 1024 * 1024)
#define SERVED_BYTES_MAX ((size_t)256 * 1024) /* the ids of runs; thousands */
#define BATCH_ARENA_KEPT ((size_t)128 * 1024) /* of a batch that is over */

/* ---- what is under way ---- */

struct reading { /* a query, off the loop */
    struct reader_job job;
    struct dispatcher *d;
    status (*work)(struct reading *reading, struct ledger *reader, struct error *err);
    void (*done)(struct reading *reading, status st, const struct error *err);
};

struct claim { /* an effect of a batch, and its way through the ledger thread */
    struct bridge_call call;
    struct batch *batch;
    struct outbox_change change;
};

enum batch_stage {
    BATCH_FREE,
    BATCH_LOOKING,    /* reads what is due */
    BATCH_CLAIMING,   /* its claims are at the ledger thread */
    BATCH_DELIVERING, /* items[at] is on its way out: it may have arrived */
    BATCH_RECORDING,  /* the end of items[at] is at the ledger thread, or waits for the store */
};

struct batch { /* effects that were claimed together; delivered one after the other */
    struct dispatcher *d;
    enum batch_stage stage;
    struct arena arena; /* of its effects and their claims */
    struct reading reading;
    struct outbox_look look;
    str runs;        /* of these only; or STR_NONE */
    int pages;       /* looked at in vain */
    bool told;       /* not found by a look */
    int64_t next_us; /* when the next row that was not taken is due */
    struct effect_info *due;
    struct claim *claims; /* one for each of `due`, until all are answered */
    size_t due_count, unanswered;
    struct effect_info items[DISPATCH_BATCH]; /* that are ours */
    size_t count, at;
    bool moved; /* a claim of it was written: there may be more to do */
    struct delivery delivery;
    struct bridge_call call; /* of the record, */
    struct outbox_change record;
    struct arena record_arena;
    bool late;  /* items[at] was not begun, and is given back: its lease was about to end */
    bool waits; /* the store has failed the record: it is tried at the next look */
    bool ok;    /* it was delivered */
    str code, message;
};

struct expiry { /* at the start: the leases of the process before us */
    struct reading reading;
    struct arena arena;
    struct effect_info *items;
    struct claim *claims;
    size_t count, unanswered, ended;
    bool failed; /* the store did: again at the next look */
    struct error err;
};

struct ask { /* a request of an effect, on its way */
    struct ask *next, **link;
    struct dispatcher *d;
    struct reading reading;
    struct bridge_call call;
    struct arena arena;
    struct effect_request request;
    uuid id, cause;
    struct outbox_change change;
    struct effect_info info;
    dispatcher_asked done;
    void *context;
};

struct dispatcher {
    struct dispatcher_options o;
    uv_loop_t *loop;
    struct deliverer *deliverer;
    struct arena arena;
    uv_timer_t timer;
    int64_t armed_us; /* when the timer fires */
    struct batch *batches;
    int busy; /* batches that are not free */
    struct expiry expiry;
    struct ask *asks;
    bool polling;  /* a look is under way, or its claims are */
    bool again;    /* there may be something new, and a look was not possible yet */
    bool paused;   /* the store failed: what waits is tried at the next look, not before */
    bool expiring; /* leases of the process before us are being ended */
    bool halted;
    size_t under_way;   /* calls on the bridge, and at the readers */
    struct map served;  /* ids of runs, in `arena`; the values mean nothing */
    struct buf runs;    /* the same as JSON: "a","b" */
    int64_t latest_us;  /* the newest time of any tenant; 0: not read yet */
    int64_t timeout_ms; /* of a delivery */
    struct metric *m_polls, *m_completed, *m_failed, *m_dead;
};

static void poll_now(struct dispatcher *d);
static void on_timer(uv_timer_t *timer);
static void deliver_next(struct batch *b);

static void batch_move(struct batch *b, enum batch_stage to) {
    static const bool may[5][5] = {
        [BATCH_FREE] = {[BATCH_LOOKING] = true, [BATCH_CLAIMING] = true},
        [BATCH_LOOKING] = {[BATCH_CLAIMING] = true, [BATCH_FREE] = true},
        [BATCH_CLAIMING] = {[BATCH_LOOKING] = true,
                            [BATCH_DELIVERING] = true,
                            [BATCH_RECORDING] = true,
                            [BATCH_FREE] = true},
        [BATCH_DELIVERING] = {[BATCH_RECORDING] = true, [BATCH_FREE] = true},
        [BATCH_RECORDING] =
            {[BATCH_DELIVERING] = true, [BATCH_RECORDING] = true, [BATCH_FREE] = true},
    };
    ASSERT(may[b->stage][to]);
    ASSERT(to != BATCH_DELIVERING || b->unanswered == 0); /* its claim is durable */
    b->d->busy += (to != BATCH_FREE) - (b->stage != BATCH_FREE);
    b->stage = to;
}

static struct batch *batch_begin(struct dispatcher *d, enum batch_stage stage) {
    struct batch *b = d->batches;
    if (d->busy == d->o.batches) return NULL;
    while (b->stage != BATCH_FREE)
        b++;
    struct arena arena = b->arena;
    struct arena record_arena = b->record_arena;
    *b = (struct batch){.d = d, .arena = arena, .record_arena = record_arena};
    batch_move(b, stage);
    return b;
}

static void batch_end(struct batch *b) {
    struct arena *arenas[] = {&b->arena, &b->record_arena};
    for (size_t i = 0; i < COUNT_OF(arenas); i++) {
        if (arena_footprint(arenas[i]) > BATCH_ARENA_KEPT)
            arena_release(arenas[i]);
        else
            arena_reset(arenas[i]);
    }
    batch_move(b, BATCH_FREE);
}

static struct outbox_maker maker_of(const struct dispatcher *d, struct arena *arena) {
    return (struct outbox_maker){
        .settings = d->o.settings, .actor = d->o.worker, .now_us = clock_wall_us(), .arena = arena};
}

static void submit(struct dispatcher *d, struct bridge_call *call, struct outbox_change *change,
                   void (*done)(struct bridge_call *call)) {
    *call = (struct bridge_call){.write.request = change->request, .done = done};
    d->under_way++;
    bridge_submit(d->o.bridge, call);
}

/* ---- reading ---- */

static status reading_work(struct reader_job *job, struct ledger *reader, struct error *err) {
    struct reading *r = CONTAINER_OF(job, struct reading, job);
    return r->work(r, reader, err);
}

static void reading_done(struct reader_job *job) {
    struct reading *r = CONTAINER_OF(job, struct reading, job);
    r->d->under_way--;
    r->done(r, job->code, &job->err);
}

static void reading_start(struct dispatcher *d, struct reading *r) {
    r->d = d;
    r->job = (struct reader_job){.work = reading_work, .done = reading_done};
    d->under_way++;
    readers_submit(d->o.readers, &r->job);
}

/* ---- time ---- */

static void arm(struct dispatcher *d, int64_t next_us) {
    int64_t now = clock_wall_us();
    int64_t ms = d->o.poll_ms;
    int64_t left = next_us > 0 ? (next_us - now + 999) / 1000 : ms;
    if (left < 1) left = 1;
    if (left > ms) left = ms;
    d->armed_us = now + left * 1000;
    uv_update_time(d->loop);
    (void)uv_timer_start(&d->timer, on_timer, (uint64_t)left, 0);
}

/* One that failed here is due before the next look. */
static void arm_sooner(struct dispatcher *d, int64_t due_us) {
    if (due_us > 0 && due_us < d->armed_us) arm(d, due_us);
}

/* ---- deliveries ---- */

static void log_failed(const char *what, const struct error *err) {
    LOG(LOG_WARN, what, LOG_S("error", str_c(err->msg)));
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as a batch is long, DISPATCH_BATCH at most */
static void go_on(struct batch *b) {
    b->at++;
    deliver_next(b);
}

static void log_outcome(const struct batch *b) {
    const struct effect_info *i = &b->record.info;
    char id[UUID_TEXT_LEN];
    char trace[UUID_TEXT_LEN];
    if (b->ok) return;
    uuid_format(i->effect.id, id);
    uuid_format(i->correlation, trace);
    LOG(b->record.dead ? LOG_ERROR : LOG_WARN,
        b->record.dead ? "an effect is dead: it failed for the last time" : "an effect failed",
        LOG_S("effectId", str_n(id, sizeof(id))), LOG_S("effectType", i->effect.type),
        LOG_S("runId", i->run_id), LOG_S("correlationId", str_n(trace, sizeof(trace))),
        LOG_N("execution", i->effect.executions), LOG_S("code", b->code),
        LOG_S("error", b->message));
}

/* The end of an execution is in the ledger. */
static void recorded(struct batch *b) {
    struct dispatcher *d = b->d;
    const struct outbox_change *c = &b->record;
    metric_add(b->ok ? d->m_completed : c->dead ? d->m_dead : d->m_failed, 1);
    log_outcome(b);
    if (c->dead && d->o.settings.sinks) d->again = true; /* its alerts are due */
    if (!b->ok && !c->dead) arm_sooner(d, c->info.effect.due_us);
    if (d->o.settled && (b->ok || c->dead)) d->o.settled(d->o.context, &c->info);
}

static void record_done(struct bridge_call *call) {
    struct batch *b = CONTAINER_OF(call, struct batch, call);
    struct dispatcher *d = b->d;
    struct error err = call->write.err;
    status st = call->write.code;
    d->under_way--;
    if (d->halted) {
        b->waits = st == ST_RETRY; /* for dispatcher_halt(); after it, its lease ends */
        return;
    }
    if (st == ST_OK) st = outbox_outcome(&b->record, NULL, &err);
    if (st == ST_RETRY) { /* if its lease ends before, it may be delivered again */
        log_failed("could not record how an effect ended, and tries again", &err);
        b->waits = true;
        d->paused = true;
        return;
    }
    if (st == ST_CONFLICT)
        log_failed("an effect ended after its lease: another worker has it", &err);
    else if (st != ST_OK) /* and never will */
        log_failed("could not record how an effect ended", &err);
    else if (b->late)
        d->again = true; /* it is due again */
    else
        recorded(b);
    go_on(b);
}

static void record_submit(struct batch *b) {
    b->waits = false;
    batch_move(b, BATCH_RECORDING);
    submit(b->d, &b->call, &b->record, record_done);
}

static void on_delivered(struct delivery *delivery, bool ok, str result, enum reason code,
                         str message) {
    struct batch *b = delivery->context;
    struct dispatcher *d = b->d;
    struct error err = {0};
    if (d->halted) return; /* its lease runs out: nobody knows whether it arrived */
    arena_reset(&b->record_arena);
    struct outbox_maker m = maker_of(d, &b->record_arena);
    const struct effect_info *i = &b->items[b->at];
    b->ok = ok;
    bool kept = (!result.ptr || arena_try_str(m.arena, result, &result)) &&
                arena_try_str(m.arena, str_c(reason_name(code)), &b->code) &&
                arena_try_str(m.arena, message.ptr ? message : STR(""), &b->message);
    struct effect_failure failure = {.code = b->code, .message = b->message};
    status st = kept ? ST_OK : outbox_no_memory(&err);
    if (st == ST_OK && ok) st = outbox_make_completion(&m, i, result, &b->record, &err);
    if (st == ST_OK && !ok) st = outbox_make_failure(&m, i, &failure, &b->record, &err);
    if (st == ST_OK) {
        record_submit(b);
        return;
    }
    LOG(LOG_ERROR, "how an effect ended cannot be recorded", LOG_S("error", str_c(err.msg)));
    go_on(b);
}

/* Would its lease end before it does? Then somebody else may deliver it, too. */
static bool is_late(const struct batch *b) {
    const struct dispatcher *d = b->d;
    int64_t left_us = b->items[b->at].effect.due_us - clock_wall_us();
    int64_t need_ms = d->timeout_ms < d->o.lease_ms / 2 ? d->timeout_ms : d->o.lease_ms / 2;
    return left_us < need_ms * 1000;
}

/* NOLINTNEXTLINE(misc-no-recursion): as above */
static void give_back_one(struct batch *b) {
    struct error ignored;
    arena_reset(&b->record_arena);
    struct outbox_maker m = maker_of(b->d, &b->record_arena);
    if (outbox_make_release(&m, &b->items[b->at], &b->record, &ignored) == ST_OK)
        record_submit(b);
    else
        go_on(b); /* its lease ends by itself */
}

/* NOLINTNEXTLINE(misc-no-recursion): as above */
static void deliver_next(struct batch *b) {
    struct dispatcher *d = b->d;
    if (b->at >= b->count) {
        batch_end(b);
        if (d->again) poll_now(d);
        return;
    }
    b->late = is_late(b);
    if (b->late) {
        give_back_one(b);
        return;
    }
    const struct effect_info *i = &b->items[b->at];
    b->delivery = (struct delivery){.type = i->effect.type,
                                    .spec = i->payload,
                                    .key = i->key,
                                    .tenant_id = i->tenant_id,
                                    .environment_id = i->environment_id,
                                    .run_id = i->run_id,
                                    .effect_id = i->effect.id,
                                    .correlation = i->correlation,
                                    .now_us = clock_wall_us(),
                                    .done = on_delivered,
                                    .context = b};
    batch_move(b, BATCH_DELIVERING);
    delivery_start(d->deliverer, &b->delivery);
}

/* ---- claiming ---- */

static void look_on(struct batch *b);

/* All claims of the batch are answered. */
static void claimed(struct batch *b) {
    struct dispatcher *d = b->d;
    bool more = !b->told && b->look.more;
    if (b->count == 0 && !b->moved && more && b->pages < LOOK_PAGES_MAX) {
        batch_move(b, BATCH_LOOKING); /* none of these could be had: perhaps the next */
        look_on(b);
        return;
    }
    if (!b->told) {
        d->polling = false;
        arm(d, b->next_us);
    }
    if (more && (b->count > 0 || b->moved)) d->again = true;
    deliver_next(b);
    if (d->again) poll_now(d);
}

static void claim_done(struct bridge_call *call) {
    struct claim *c = CONTAINER_OF(call, struct claim, call);
    struct batch *b = c->batch;
    struct error err = call->write.err;
    status st = call->write.code;
    b->d->under_way--;
    if (st == ST_CORRUPT)
        LOG(LOG_ERROR, "an effect is due and cannot be executed",
            LOG_S("runId", c->change.info.run_id), LOG_S("error", str_c(err.msg)));
    else if (st != ST_OK && !b->d->halted)
        log_failed("could not claim an effect", &err);
    if (st == ST_OK) {
        outbox_log_expiry(&c->change);
        st = outbox_outcome(&c->change, NULL, &err); /* else another worker has it */
    }
    if (st == ST_OK) b->moved = true;
    if (st == ST_OK && c->change.dead && b->d->o.settings.sinks) b->d->again = true;
    if (st == ST_OK && !c->change.dead) b->items[b->count++] = c->change.info;
    ASSERT(b->unanswered > 0);
    if (--b->unanswered == 0 && !b->d->halted) claimed(b);
}

/* One request for each. The batch's arena is theirs until all are answered. */
static void claim_all(struct batch *b) {
    struct dispatcher *d = b->d;
    struct outbox_maker m = maker_of(d, &b->arena);
    struct error err = {0};
    size_t made = 0;
    status st = ST_OK;
    ASSERT(b->stage == BATCH_CLAIMING);
    ASSERT(b->due_count <= DISPATCH_BATCH);
    b->claims = arena_try(&b->arena, (b->due_count + 1) * sizeof(*b->claims));
    if (!b->claims) st = outbox_no_memory(&err);
    for (; made < b->due_count && st == ST_OK; made++) {
        ASSERT(b->claims);
        struct claim *c = &b->claims[made];
        c->batch = b;
        st = outbox_make_claim(&m, &b->due[made], d->o.lease_ms, &c->change, &err);
        if (st != ST_OK) break;
    }
    if (st != ST_OK) log_failed("could not claim an effect", &err);
    b->unanswered = made;
    for (size_t i = 0; i < made; i++)
        submit(d, &b->claims[i].call, &b->claims[i].change, claim_done);
    if (made == 0) claimed(b);
}

void dispatcher_tell(struct dispatcher *d, const struct effect_info *info) {
    if (d->halted || d->o.only_asks) return;
    if (d->o.only_served && !map_get(&d->served, info->run_id)) return;
    bool others = d->again || d->expiring || d->paused; /* wait, and were there before it */
    struct batch *b = others ? NULL : batch_begin(d, BATCH_CLAIMING);
    if (!b) {
        poll_now(d);
        return;
    }
    b->told = true;
    b->due = arena_try(&b->arena, sizeof(*b->due));
    if (b->due && outbox_copy(info, &b->arena, b->due)) b->due_count = 1;
    claim_all(b);
}

/* ---- looking ---- */

static status look_work(struct reading *r, struct ledger *reader, struct error *err) {
    struct batch *b = CONTAINER_OF(r, struct batch, reading);
    status st = b->look.latest_us == 0 ? outbox_latest(reader, &b->look.latest_us, err) : ST_OK;
    if (st == ST_OK)
        st = outbox_due(reader, &b->look, DISPATCH_BATCH, &b->arena, &b->due, &b->due_count, err);
    if (st == ST_OK) st = outbox_next_due(reader, b->look.clock_us, &b->next_us, err);
    return st;
}

static void looked(struct reading *r, status st, const struct error *err) {
    struct batch *b = CONTAINER_OF(r, struct batch, reading);
    struct dispatcher *d = b->d;
    if (d->halted) return;
    d->latest_us = b->look.latest_us;
    if (st == ST_OK && b->due_count > 0) {
        batch_move(b, BATCH_CLAIMING);
        claim_all(b);
        return;
    }
    if (st != ST_OK) log_failed("could not look for effects", err);
    if (st == ST_OK && b->look.more && b->pages < LOOK_PAGES_MAX) { /* none could be read */
        look_on(b);
        return;
    }
    d->polling = false;
    batch_end(b);
    arm(d, st == ST_OK ? b->next_us : 0);
    if (d->again && st == ST_OK) poll_now(d);
}

static void look_on(struct batch *b) {
    b->pages++;
    b->due_count = 0;
    b->reading = (struct reading){.work = look_work, .done = looked};
    reading_start(b->d, &b->reading);
}

static bool take_runs(const struct dispatcher *d, struct batch *b) {
    if (!d->o.only_served) return true;
    char *text = arena_try_raw(&b->arena, d->runs.len + 2);
    if (!text) return false;
    text[0] = '[';
    if (d->runs.len > 0) memcpy(text + 1, d->runs.ptr, d->runs.len);
    text[d->runs.len + 1] = ']';
    b->look.runs = str_n(text, d->runs.len + 2);
    return true;
}

static void poll_now(struct dispatcher *d) {
    if (d->halted || d->o.only_asks) return;
    d->again = true;
    if (d->polling || d->expiring || d->paused) return;
    struct batch *b = batch_begin(d, BATCH_LOOKING);
    if (!b) return; /* the first that ends asks again */
    int64_t now = clock_wall_us();
    b->look = (struct outbox_look){.clock_us = now, .more = true};
    b->look.latest_us = d->latest_us > 0 && now > d->latest_us ? now : d->latest_us;
    if (!take_runs(d, b)) {
        batch_end(b);
        return;
    }
    d->again = false;
    d->polling = true;
    metric_add(d->m_polls, 1);
    look_on(b);
}

static void expire(struct dispatcher *d);

static void on_timer(uv_timer_t *timer) {
    struct dispatcher *d = timer->data;
    arm(d, 0);
    d->paused = false;
    for (int i = 0; i < d->o.batches; i++) {
        if (d->batches[i].waits) record_submit(&d->batches[i]);
    }
    if (d->expiry.failed) expire(d);
    poll_now(d);
}

void dispatcher_wake(struct dispatcher *d) {
    if (d && !d->halted) poll_now(d);
}

/* Too many to tell them apart: then all, so that none is left. */
void dispatcher_serve(struct dispatcher *d, str run_id) {
    str id = STR_NONE;
    if (!d->o.only_served || d->halted || map_get(&d->served, run_id)) return;
    if (d->runs.len > 0) buf_put_char(&d->runs, ',');
    buf_put_json_str(&d->runs, run_id);
    if (d->runs.full || !arena_try_str(&d->arena, run_id, &id) || !map_put(&d->served, id, d)) {
        LOG(LOG_WARN, "too many runs: effects of all others are delivered here, too",
            LOG_N("runs", (int64_t)d->served.count));
        d->o.only_served = false;
    }
    poll_now(d);
}

bool dispatcher_idle(const struct dispatcher *d) {
    return !d->polling && !d->again && !d->expiring && !d->asks && d->busy == 0 &&
           d->under_way == 0;
}

/* ---- what the process before us had under way ---- */

static status expire_work(struct reading *r, struct ledger *reader, struct error *err) {
    struct expiry *x = CONTAINER_OF(r, struct expiry, reading);
    return outbox_processing(reader, EXPIRE_MAX, &x->arena, &x->items, &x->count, err);
}

/* A full page may not have been the last; but one that does not get smaller was. */
static void expired(struct dispatcher *d) {
    struct expiry *x = &d->expiry;
    if (x->failed) {
        log_failed("could not end the leases of effects", &x->err);
        d->paused = true;
        return;
    }
    if (x->ended > 0)
        LOG(LOG_WARN, "effects were under way when the process before this one ended",
            LOG_N("effects", (int64_t)x->ended));
    bool more = x->count == EXPIRE_MAX && x->ended > 0;
    arena_release(&x->arena);
    if (more) {
        expire(d);
        return;
    }
    d->expiring = false;
    poll_now(d);
}

static void expiry_done(struct bridge_call *call) {
    struct claim *c = CONTAINER_OF(call, struct claim, call);
    struct dispatcher *d = call->context;
    struct expiry *x = &d->expiry;
    status st = call->write.code;
    d->under_way--;
    if (st == ST_OK) st = outbox_outcome(&c->change, NULL, &call->write.err);
    if (st == ST_OK) outbox_log_expiry(&c->change);
    if (st == ST_OK) x->ended++;
    if (st == ST_RETRY) {
        x->failed = true;
        x->err = call->write.err;
    }
    ASSERT(x->unanswered > 0);
    if (--x->unanswered == 0 && !d->halted) expired(d);
}

static void expire_all(struct reading *r, status st, const struct error *err) {
    struct expiry *x = CONTAINER_OF(r, struct expiry, reading);
    struct dispatcher *d = r->d;
    struct outbox_maker m = maker_of(d, &x->arena);
    if (d->halted) return;
    x->err = *err;
    x->failed = st != ST_OK;
    x->claims = arena_try(&x->arena, (x->count + 1) * sizeof(*x->claims));
    if (!x->claims && !x->failed) x->failed = outbox_no_memory(&x->err) != ST_OK;
    for (size_t i = 0; i < x->count && !x->failed; i++)
        x->failed = outbox_make_expiry(&m, &x->items[i], &x->claims[i].change, &x->err) != ST_OK;
    x->unanswered = x->failed ? 0 : x->count;
    for (size_t i = 0; i < x->unanswered; i++) {
        struct bridge_call *call = &x->claims[i].call;
        *call = (struct bridge_call){
            .write.request = x->claims[i].change.request, .done = expiry_done, .context = d};
    }
    for (size_t i = 0, n = x->unanswered; i < n; i++) {
        d->under_way++;
        bridge_submit(d->o.bridge, &x->claims[i].call);
    }
    if (x->unanswered == 0) expired(d);
}

static void expire(struct dispatcher *d) {
    struct expiry *x = &d->expiry;
    arena_release(&x->arena);
    x->count = x->ended = 0;
    x->failed = false;
    x->reading = (struct reading){.work = expire_work, .done = expire_all};
    d->expiring = true;
    reading_start(d, &x->reading);
}

/* ---- asking ---- */

static void ask_free(struct ask *a) {
    *a->link = a->next;
    if (a->next) a->next->link = a->link;
    arena_release(&a->arena);
    mem_free(a);
}

/* The one answer. A new effect is taken at once. */
static void ask_answer(struct ask *a, status st, const struct effect_info *info, bool existing,
                       const struct error *err) {
    struct dispatcher *d = a->d;
    if (!d->halted) {
        if (st == ST_OK) dispatcher_serve(d, info->run_id); /* it may be another's */
        a->done(a->context, st, info, existing, err);
        if (st == ST_OK && !existing) dispatcher_tell(d, info);
    }
    ask_free(a);
}

static status found_work(struct reading *r, struct ledger *reader, struct error *err) {
    struct ask *a = CONTAINER_OF(r, struct ask, reading);
    return outbox_existing(reader, &a->change, &a->arena, &a->info, err);
}

static void found(struct reading *r, status st, const struct error *err) {
    struct ask *a = CONTAINER_OF(r, struct ask, reading);
    ask_answer(a, st, &a->info, true, err);
}

static void requested(struct bridge_call *call) {
    struct ask *a = CONTAINER_OF(call, struct ask, call);
    struct error err = call->write.err;
    bool existing = false;
    status st = call->write.code;
    a->d->under_way--;
    if (st == ST_OK) st = outbox_outcome(&a->change, &existing, &err);
    if (st != ST_OK || !existing || a->d->halted) {
        ask_answer(a, st, &a->change.info, false, &err);
        return;
    }
    a->reading = (struct reading){.work = found_work, .done = found};
    reading_start(a->d, &a->reading);
}

static status request_work(struct reading *r, struct ledger *reader, struct error *err) {
    struct ask *a = CONTAINER_OF(r, struct ask, reading);
    struct outbox_maker m = maker_of(a->d, &a->arena);
    m.actor = a->request.actor;
    return outbox_make_request(&m, reader, &a->request, &a->change, err);
}

static void request_made(struct reading *r, status st, const struct error *err) {
    struct ask *a = CONTAINER_OF(r, struct ask, reading);
    if (st == ST_OK && !a->d->halted)
        submit(a->d, &a->call, &a->change, requested);
    else
        ask_answer(a, st, &a->info, false, err);
}

static bool copy(struct ask *a, str from, str *to) {
    return !from.ptr || arena_try_str(&a->arena, from, to);
}

status dispatcher_ask(struct dispatcher *d, const struct effect_request *request,
                      dispatcher_asked done, void *context, struct error *err) {
    struct ask *a = mem_alloc(sizeof(*a));
    if (!a) return outbox_no_memory(err);
    *a = (struct ask){.next = d->asks,
                      .link = &d->asks,
                      .d = d,
                      .request = *request,
                      .done = done,
                      .context = context,
                      .reading = {.work = request_work, .done = request_made}};
    if (a->next) a->next->link = &a->next;
    d->asks = a;
    arena_init(&a->arena, 4096, ASK_ARENA_MAX);
    struct effect_request *r = &a->request;
    if (request->id) a->id = *request->id;
    if (request->id) r->id = &a->id;
    if (request->cause) a->cause = *request->cause;
    if (request->cause) r->cause = &a->cause;
    if (!copy(a, request->run_id, &r->run_id) || !copy(a, request->tenant_id, &r->tenant_id) ||
        !copy(a, request->type, &r->type) || !copy(a, request->payload, &r->payload) ||
        !copy(a, request->step_id, &r->step_id) || !copy(a, request->actor, &r->actor)) {
        ask_free(a);
        return outbox_no_memory(err);
    }
    reading_start(d, &a->reading);
    return ST_OK;
}

/* ---- opening and closing ---- */

static void measure(struct dispatcher *d) {
    static const char executions[] = "cairn_effect_executions_total";
    static const char help[] = "Executions of effects, by how they ended.";
    struct metrics *m = d->o.metrics;
    if (!m) return;
    d->m_polls =
        metrics_counter(m, "cairn_outbox_polls_total", "Looks for effects that are due.", "");
    d->m_completed = metrics_counter(m, executions, help, "outcome=\"completed\"");
    d->m_failed = metrics_counter(m, executions, help, "outcome=\"failed\"");
    d->m_dead = metrics_counter(m, executions, help, "outcome=\"dead\"");
}

static void use_defaults(struct dispatcher *d) {
    d->timeout_ms = d->o.deliver.timeout_ms > 0 ? d->o.deliver.timeout_ms : DELIVERY_TIMEOUT_MS;
    if (d->o.batches <= 0) d->o.batches = DISPATCH_BATCHES;
    if (d->o.poll_ms <= 0) d->o.poll_ms = DISPATCH_POLL_MS;
    if (d->o.lease_ms <= 0) d->o.lease_ms = d->timeout_ms * DISPATCH_BATCH + LEASE_SPARE_MS;
}

/* At most `max` bytes of it, and no half of a character. */
static str cut(str s, size_t max) {
    size_t n = s.len < max ? s.len : max;
    while (n < s.len && n > 0 && ((unsigned char)s.ptr[n] & 0xC0) == 0x80)
        n--;
    return str_n(s.ptr, n);
}

static void on_closed(uv_handle_t *handle) {
    struct dispatcher *d = handle->data;
    map_release(&d->served);
    buf_release(&d->runs);
    arena_release(&d->arena);
    mem_free(d);
}

static void make_batches(struct dispatcher *d) {
    d->batches = arena_alloc(&d->arena, (size_t)d->o.batches * sizeof(*d->batches));
    for (int i = 0; i < d->o.batches; i++) {
        d->batches[i].d = d;
        arena_init(&d->batches[i].arena, 4096, SIZE_MAX);
        arena_init(&d->batches[i].record_arena, 4096, SIZE_MAX);
    }
}

status dispatcher_open(uv_loop_t *loop, const struct dispatcher_options *options,
                       struct dispatcher **out, struct error *err) {
    struct dispatcher *d = mem_alloc(sizeof(*d));
    if (!d) return outbox_no_memory(err);
    d->o = *options;
    d->loop = loop;
    arena_init(&d->arena, 1024, SIZE_MAX);
    arena_init(&d->expiry.arena, 4096, SIZE_MAX);
    map_init(&d->served);
    buf_init(&d->runs, SERVED_BYTES_MAX);
    use_defaults(d);
    d->o.worker = arena_str(&d->arena, cut(options->worker, ACTOR_BYTES_MAX));
    make_batches(d);
    uv_timer_init(loop, &d->timer);
    d->timer.data = d;
    measure(d);
    status st = d->o.only_asks ? ST_OK : deliverer_open(loop, &d->o.deliver, &d->deliverer, err);
    if (st != ST_OK) {
        dispatcher_halt(d);
        dispatcher_close(d);
        return st;
    }
    arm(d, 0);
    if (d->o.alone && !d->o.only_asks)
        expire(d);
    else
        poll_now(d);
    *out = d;
    return ST_OK;
}

/* ---- the end ---- */

/* Waits for it. Once more if the store fails: it may only have lost its connection. But then it is
 * not asked again: the process wants to end. */
static void append_at_end(struct dispatcher *d, const struct append_request *request,
                          const char *otherwise, bool *works) {
    struct error err = {0};
    status st = ST_RETRY;
    if (!*works) return;
    for (int tries = 0; tries < 2 && st == ST_RETRY; tries++) {
        struct writer_call call = {.request = *request};
        st = writer_append(bridge_writer(d->o.bridge), &call, HALT_WAIT_MS, &err);
    }
    if (st != ST_OK) LOG(LOG_WARN, otherwise, LOG_S("error", str_c(err.msg)));
    if (st == ST_RETRY || st == ST_LIMIT) *works = false;
}

/* Adds the claims of a batch that were not begun to *request. */
static bool give_back(struct batch *b, struct append_request *request) {
    bool begun = b->stage == BATCH_DELIVERING || b->stage == BATCH_RECORDING;
    struct outbox_maker m = maker_of(b->d, request->arena);
    for (size_t i = begun ? b->at + 1 : b->at; i < b->count; i++) {
        struct outbox_change c;
        struct error ignored;
        if (outbox_make_release(&m, &b->items[i], &c, &ignored) != ST_OK) return false;
        request->items[request->count++] = c.request.items[0];
    }
    return true;
}

/* All in one request, in which each stands for itself: a lease may have ended. */
static void give_back_all(struct dispatcher *d, bool *works) {
    struct arena arena;
    size_t count = 0;
    for (int i = 0; i < d->o.batches; i++)
        count += d->batches[i].stage == BATCH_FREE ? 0 : d->batches[i].count;
    ASSERT(count <= BATCH_EVENTS_MAX);
    arena_init(&arena, (size_t)16 * 1024, SIZE_MAX);
    struct append_request request = {
        .items = arena_try(&arena, (count + 1) * sizeof(*request.items)),
        .results = arena_try(&arena, (count + 1) * sizeof(*request.results)),
        .arena = &arena};
    bool ok = request.items && request.results;
    for (int i = 0; i < d->o.batches && ok; i++)
        ok = d->batches[i].stage == BATCH_FREE || give_back(&d->batches[i], &request);
    if (request.count > 0 && request.items && request.results)
        append_at_end(d, &request, "could not give back effects that were not begun", works);
    arena_release(&arena);
}

void dispatcher_halt(struct dispatcher *d) {
    static const struct append_request nothing = {0};
    bool works = true;
    if (!d || d->halted) return;
    (void)uv_timer_stop(&d->timer);
    d->halted = true;
    if (d->busy > 0) { /* what the ledger thread has is answered before this */
        append_at_end(d, &nothing, "could not wait for effects on their way", &works);
        bridge_deliver(d->o.bridge);
    }
    for (int i = 0; i < d->o.batches; i++) {
        struct batch *b = &d->batches[i];
        if (b->waits)
            append_at_end(d, &b->record.request, "could not record how an effect ended", &works);
    }
    give_back_all(d, &works);
}

void dispatcher_close(struct dispatcher *d) {
    if (!d) return;
    ASSERT(d->halted);
    ASSERT(d->under_way == 0); /* bridge and readers have answered all */
    ASSERT(!d->asks);
    deliverer_close(d->deliverer);
    for (int i = 0; i < d->o.batches; i++) {
        arena_release(&d->batches[i].arena);
        arena_release(&d->batches[i].record_arena);
    }
    arena_release(&d->expiry.arena);
    uv_close((uv_handle_t *)&d->timer, on_closed);
}
