#include "outbox/dispatch.h"

#include <pthread.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/map.h"
#include "base/time.h"

enum {
    EXPIRE_LOT = 100,       /* leases ended in one task at the start */
    HALT_WAIT_MS = 5000,    /* for the ledger thread to take back a batch */
    LEASE_SPARE_MS = 30000, /* beyond what the deliveries of a batch may take */
};
#define TASK_ARENA_MAX ((size_t)16 * 1024 * 1024)
#define MINDED_BYTES_MAX ((size_t)256 * 1024) /* the ids of runs; thousands */

/* ---- what is asked of the ledger thread ---- */

enum task_kind { TASK_EXPIRE, TASK_CLAIM, TASK_RECORD, TASK_ASK };

struct task {
    struct writer_call call;
    struct dispatcher *d;
    struct task *next;
    enum task_kind kind;
    struct arena arena;
    struct batch *batch; /* CLAIM and RECORD */
    size_t expired;
    str runs; /* CLAIM: of these only, or STR_NONE */
    /* RECORD: how the delivery ended */
    bool ok, dead;
    bool late; /* it did not begin: its lease had ended, or was about to */
    str result, code, message;
    /* ASK */
    struct effect_request request;
    uuid id, cause;
    struct effect_info info;
    bool existing;
    dispatcher_asked done;
    void *context;
};

struct batch { /* effects that were claimed together; delivered one after the other */
    struct dispatcher *d;
    struct arena arena;
    struct outbox_batch claimed;
    size_t at; /* the one that is being delivered */
    bool used;
    bool begun; /* that one: it may have arrived, and is not recorded */
    struct delivery delivery;
};

struct dispatcher {
    struct dispatcher_options o;
    uv_loop_t *loop;
    struct deliverer *deliverer;
    struct arena arena;
    uv_async_t async;
    uv_timer_t timer;
    int open_handles;
    pthread_mutex_t lock; /* guards done_first and done_end */
    struct task *done_first, **done_end;
    struct task *waiting, **waiting_end; /* the ledger's queue was full, or the store failed */
    struct batch *batches;
    bool polling;  /* a claim is at the ledger thread */
    bool again;    /* there may be something new, and a claim was not possible yet */
    bool paused;   /* the store failed: what waits is tried at the next look, not before */
    bool expiring; /* leases of the process before us are being ended */
    bool halted;
    struct map minded;  /* ids of runs, in `arena`; the values mean nothing */
    struct buf runs;    /* the same as JSON: "a","b" */
    size_t under_way;   /* tasks at the ledger thread */
    int64_t timeout_ms; /* of a delivery */
    struct metric *m_polls, *m_completed, *m_failed, *m_dead;
};

static void poll_now(struct dispatcher *d);
static void on_timer(uv_timer_t *timer);
static void deliver_next(struct batch *b);

static void task_free(struct task *t) {
    arena_release(&t->arena);
    mem_free(t);
}

static struct task *task_new(struct dispatcher *d, enum task_kind kind) {
    struct task *t = mem_alloc(sizeof(*t));
    if (!t) return NULL;
    t->d = d;
    t->kind = kind;
    arena_init(&t->arena, 1024, TASK_ARENA_MAX);
    return t;
}

/* ---- on the ledger thread ---- */

static void task_done(struct writer_call *call) {
    struct task *t = call->context;
    struct dispatcher *d = t->d;
    pthread_mutex_lock(&d->lock);
    t->next = NULL;
    *d->done_end = t;
    d->done_end = &t->next;
    pthread_mutex_unlock(&d->lock);
    uv_async_send(&d->async);
}

static status record(struct ledger *ledger, struct task *t, struct error *err) {
    const struct effect_info *info = &t->batch->claimed.items[t->batch->at];
    if (t->late) return outbox_release(ledger, info, t->d->o.worker, err);
    if (t->ok) return outbox_complete(ledger, info, t->result, t->d->o.worker, err);
    return outbox_fail(ledger, info, t->code, t->message, STR_NONE, t->d->o.worker, &t->dead, err);
}

static status task_run(struct ledger *ledger, void *context, struct error *err) {
    struct task *t = context;
    struct dispatcher *d = t->d;
    switch (t->kind) {
    case TASK_EXPIRE:
        return outbox_expire(ledger, d->o.worker, EXPIRE_LOT, &t->expired, err);
    case TASK_CLAIM:
        return outbox_claim(ledger, d->o.worker, t->runs, DISPATCH_BATCH, d->o.lease_ms,
                            &t->batch->arena, &t->batch->claimed, err);
    case TASK_RECORD:
        return record(ledger, t, err);
    case TASK_ASK:
        break;
    }
    return outbox_request(ledger, &t->request, &t->arena, &t->info, &t->existing, err);
}

/* ---- on the loop ---- */

static void task_wait(struct dispatcher *d, struct task *t) {
    t->next = NULL;
    *d->waiting_end = t;
    d->waiting_end = &t->next;
}

static bool task_submit(struct dispatcher *d, struct task *t) {
    struct error full;
    t->call =
        (struct writer_call){.task = task_run, .task_context = t, .done = task_done, .context = t};
    if (writer_submit(d->o.writer, &t->call, &full) != ST_OK) return false;
    d->under_way++;
    return true;
}

/* The store failed it: not before the next look, or two threads would do nothing but fail. */
static void task_retry(struct dispatcher *d, struct task *t) {
    d->paused = true;
    task_wait(d, t);
}

/* In order; what does not fit now is tried when there is room. */
static void task_start(struct dispatcher *d, struct task *t) {
    if (d->waiting || !task_submit(d, t)) task_wait(d, t);
}

static void start_waiting(struct dispatcher *d) {
    while (d->waiting && !d->paused) {
        struct task *t = d->waiting;
        struct task *next = t->next;
        if (!task_submit(d, t)) return;
        d->waiting = next;
        if (!next) d->waiting_end = &d->waiting;
    }
}

/* ---- deliveries ---- */

static void batch_end(struct batch *b) {
    arena_release(&b->arena);
    b->used = false;
}

static void go_on(struct batch *b) {
    b->begun = false;
    b->at++;
    deliver_next(b);
}

static void on_delivered(struct delivery *delivery, bool ok, str result, const char *code,
                         str message) {
    struct batch *b = delivery->context;
    struct dispatcher *d = b->d;
    if (d->halted) return; /* its lease runs out: nobody knows whether it arrived */
    struct task *t = task_new(d, TASK_RECORD);
    bool kept = t && (!result.ptr || arena_try_str(&t->arena, result, &t->result)) &&
                arena_try_str(&t->arena, code ? str_c(code) : STR(""), &t->code) &&
                arena_try_str(&t->arena, message.ptr ? message : STR(""), &t->message);
    if (!kept) {
        if (t) task_free(t);
        LOG(LOG_ERROR, "how an effect ended cannot be recorded",
            LOG_S("error", STR("out of memory")));
        go_on(b);
        return;
    }
    t->ok = ok;
    t->batch = b;
    task_start(d, t);
}

/* Would its lease end before it does? Then somebody else may deliver it, too. */
static bool is_late(const struct batch *b) {
    const struct dispatcher *d = b->d;
    int64_t left_us = b->claimed.items[b->at].effect.due_us - clock_wall_us();
    int64_t need_ms = d->timeout_ms < d->o.lease_ms / 2 ? d->timeout_ms : d->o.lease_ms / 2;
    return left_us < need_ms * 1000;
}

static void give_back_one(struct batch *b) {
    struct task *t = task_new(b->d, TASK_RECORD);
    if (!t) { /* its lease ends by itself */
        go_on(b);
        return;
    }
    t->late = true;
    t->batch = b;
    task_start(b->d, t);
}

static void deliver_next(struct batch *b) {
    struct dispatcher *d = b->d;
    if (b->at >= b->claimed.count) {
        batch_end(b);
        poll_now(d);
        return;
    }
    if (is_late(b)) {
        give_back_one(b);
        return;
    }
    const struct effect_info *i = &b->claimed.items[b->at];
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
    b->begun = true;
    delivery_start(d->deliverer, &b->delivery);
}

/* ---- the ends of tasks ---- */

static void log_failed(const char *what, const struct task *t) {
    LOG(LOG_WARN, what, LOG_S("error", str_c(t->call.err.msg)));
}

static void log_outcome(const struct task *t, const struct effect_info *i) {
    char id[UUID_TEXT_LEN];
    char trace[UUID_TEXT_LEN];
    if (t->ok) return;
    uuid_format(i->effect.id, id);
    uuid_format(i->correlation, trace);
    LOG(t->dead ? LOG_ERROR : LOG_WARN,
        t->dead ? "an effect is dead: it failed for the last time" : "an effect failed",
        LOG_S("effectId", str_n(id, sizeof(id))), LOG_S("effectType", i->effect.type),
        LOG_S("runId", i->run_id), LOG_S("correlationId", str_n(trace, sizeof(trace))),
        LOG_N("execution", i->effect.executions), LOG_S("code", t->code),
        LOG_S("error", t->message));
}

static void after_expire(struct dispatcher *d, struct task *t) {
    if (t->call.code != ST_OK) log_failed("could not end the leases of effects", t);
    if (t->call.code == ST_RETRY) {
        task_retry(d, t);
        return;
    }
    if (t->expired > 0)
        LOG(LOG_WARN, "effects were under way when the process before this one ended",
            LOG_N("effects", (int64_t)t->expired));
    if (t->call.code == ST_OK && t->expired == EXPIRE_LOT) {
        task_start(d, t);
        return;
    }
    d->expiring = false;
    task_free(t);
    poll_now(d);
}

static void arm(struct dispatcher *d, int64_t next_us) {
    int64_t ms = d->o.poll_ms;
    int64_t left = next_us > 0 ? (next_us - clock_wall_us() + 999) / 1000 : ms;
    if (left < 1) left = 1;
    uv_update_time(d->loop);
    (void)uv_timer_start(&d->timer, on_timer, (uint64_t)(left < ms ? left : ms), 0);
}

static void after_claim(struct dispatcher *d, struct task *t) {
    struct batch *b = t->batch;
    d->polling = false;
    if (t->call.code != ST_OK) log_failed("could not look for effects", t);
    bool took = t->call.code == ST_OK && b->claimed.count > 0;
    bool more = t->call.code == ST_OK && b->claimed.more;
    int64_t next_us = t->call.code == ST_OK ? b->claimed.next_us : 0;
    task_free(t);
    arm(d, next_us);
    if (took)
        deliver_next(b);
    else
        batch_end(b);
    if (more || d->again) poll_now(d);
}

/* As the ledger has it, for those who wait. */
static void note_outcome(const struct task *t, struct effect_info *i, struct arena *arena) {
    struct buf b;
    i->effect.status = t->ok ? OUTBOX_COMPLETED : t->dead ? OUTBOX_DEAD_LETTER : OUTBOX_FAILED;
    i->result = t->ok ? t->result : STR_NONE;
    if (t->ok) return;
    buf_init(&b, (size_t)64 * 1024);
    buf_put_c(&b, "{\"code\":");
    buf_put_json_str(&b, t->code);
    buf_put_c(&b, ",\"message\":");
    buf_put_json_str(&b, t->message);
    buf_put_char(&b, '}');
    if (b.full || !arena_try_str(arena, buf_str(&b), &i->error)) i->error = STR_NONE;
    buf_release(&b);
}

static void after_record(struct dispatcher *d, struct task *t) {
    struct batch *b = t->batch;
    struct effect_info *i = &b->claimed.items[b->at];
    if (t->call.code == ST_CONFLICT) {
        log_failed("an effect ended after its lease: another worker has it", t);
    } else if (t->call.code == ST_RETRY) {
        log_failed("could not record how an effect ended, and tries again", t);
        task_retry(d, t); /* if its lease ends before, it may be delivered again */
        return;
    } else if (t->call.code != ST_OK) { /* and never will */
        log_failed("could not record how an effect ended", t);
    } else if (!t->late) {
        metric_add(t->ok ? d->m_completed : t->dead ? d->m_dead : d->m_failed, 1);
        log_outcome(t, i);
        note_outcome(t, i, &b->arena);
        if (d->o.settled && (t->ok || t->dead)) d->o.settled(d->o.context, i);
    }
    task_free(t);
    go_on(b);
}

static void after_ask(struct dispatcher *d, struct task *t) {
    if (t->call.code == ST_OK) dispatcher_mind(d, t->info.run_id); /* it may be another's */
    t->done(t->context, t->call.code, &t->info, t->existing, &t->call.err);
    bool made = t->call.code == ST_OK && !t->existing;
    task_free(t);
    if (made) poll_now(d);
}

static void take_done(struct dispatcher *d) {
    pthread_mutex_lock(&d->lock);
    struct task *list = d->done_first;
    d->done_first = NULL;
    d->done_end = &d->done_first;
    pthread_mutex_unlock(&d->lock);
    while (list) {
        struct task *t = list;
        list = t->next;
        d->under_way--;
        if (d->halted) {
            task_free(t);
            continue;
        }
        switch (t->kind) {
        case TASK_EXPIRE:
            after_expire(d, t);
            break;
        case TASK_CLAIM:
            after_claim(d, t);
            break;
        case TASK_RECORD:
            after_record(d, t);
            break;
        case TASK_ASK:
            after_ask(d, t);
            break;
        }
    }
}

static void on_async(uv_async_t *async) {
    struct dispatcher *d = async->data;
    take_done(d);
    if (d->halted) return;
    start_waiting(d);
    if (d->again) poll_now(d);
}

/* ---- polling ---- */

static struct batch *free_batch(struct dispatcher *d) {
    for (int i = 0; i < d->o.batches; i++) {
        if (!d->batches[i].used) return &d->batches[i];
    }
    return NULL;
}

static bool take_runs(const struct dispatcher *d, struct task *t) {
    if (!d->o.only_minded) return true;
    char *text = arena_try_raw(&t->arena, d->runs.len + 2);
    if (!text) return false;
    text[0] = '[';
    if (d->runs.len > 0) memcpy(text + 1, d->runs.ptr, d->runs.len);
    text[d->runs.len + 1] = ']';
    t->runs = str_n(text, d->runs.len + 2);
    return true;
}

static void poll_now(struct dispatcher *d) {
    if (d->halted || d->o.only_asks) return;
    d->again = true;
    if (d->polling || d->expiring || d->waiting) return;
    struct batch *b = free_batch(d);
    if (!b) return; /* the first that ends asks again */
    struct task *t = task_new(d, TASK_CLAIM);
    if (t && !take_runs(d, t)) {
        task_free(t);
        t = NULL;
    }
    if (!t) return;
    d->again = false;
    metric_add(d->m_polls, 1);
    *b = (struct batch){.d = d, .used = true};
    arena_init(&b->arena, 4096, SIZE_MAX);
    t->batch = b;
    d->polling = true;
    task_start(d, t);
}

static void on_timer(uv_timer_t *timer) {
    struct dispatcher *d = timer->data;
    arm(d, 0);
    d->paused = false;
    start_waiting(d);
    poll_now(d);
}

void dispatcher_wake(struct dispatcher *d) {
    if (d && !d->halted) poll_now(d);
}

/* Too many to tell them apart: then all, so that none is left. */
void dispatcher_mind(struct dispatcher *d, str run_id) {
    str id = STR_NONE;
    if (!d->o.only_minded || d->halted || map_get(&d->minded, run_id)) return;
    if (d->runs.len > 0) buf_put_char(&d->runs, ',');
    buf_put_json_str(&d->runs, run_id);
    if (d->runs.full || !arena_try_str(&d->arena, run_id, &id) || !map_put(&d->minded, id, d)) {
        LOG(LOG_WARN, "too many runs: effects of all others are delivered here, too",
            LOG_N("runs", (int64_t)d->minded.count));
        d->o.only_minded = false;
    }
    poll_now(d);
}

bool dispatcher_idle(const struct dispatcher *d) {
    bool idle = !d->polling && !d->again && !d->expiring && !d->waiting && d->under_way == 0;
    for (int i = 0; i < d->o.batches && idle; i++)
        idle = !d->batches[i].used;
    return idle;
}

/* ---- asking ---- */

static bool copy(struct task *t, str from, str *to) {
    return !from.ptr || arena_try_str(&t->arena, from, to);
}

status dispatcher_ask(struct dispatcher *d, const struct effect_request *request,
                      dispatcher_asked done, void *context, struct error *err) {
    struct task *t = task_new(d, TASK_ASK);
    if (!t) return error_set(err, ST_RETRY, "outbox: out of memory");
    struct effect_request *r = &t->request;
    *r = *request;
    t->done = done;
    t->context = context;
    if (request->id) t->id = *request->id;
    if (request->id) r->id = &t->id;
    if (request->cause) t->cause = *request->cause;
    if (request->cause) r->cause = &t->cause;
    if (!copy(t, request->run_id, &r->run_id) || !copy(t, request->tenant_id, &r->tenant_id) ||
        !copy(t, request->type, &r->type) || !copy(t, request->payload, &r->payload) ||
        !copy(t, request->step_id, &r->step_id) || !copy(t, request->actor, &r->actor)) {
        task_free(t);
        return error_set(err, ST_RETRY, "outbox: out of memory");
    }
    task_start(d, t);
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
    if (--d->open_handles > 0) return;
    pthread_mutex_destroy(&d->lock);
    map_release(&d->minded);
    buf_release(&d->runs);
    arena_release(&d->arena);
    mem_free(d);
}

status dispatcher_open(uv_loop_t *loop, const struct dispatcher_options *options,
                       struct dispatcher **out, struct error *err) {
    struct dispatcher *d = mem_alloc(sizeof(*d));
    if (!d) return error_set(err, ST_RETRY, "outbox: out of memory");
    d->o = *options;
    d->loop = loop;
    d->done_end = &d->done_first;
    d->waiting_end = &d->waiting;
    pthread_mutex_init(&d->lock, NULL);
    arena_init(&d->arena, 1024, SIZE_MAX);
    map_init(&d->minded);
    buf_init(&d->runs, MINDED_BYTES_MAX);
    use_defaults(d);
    d->o.worker = arena_str(&d->arena, cut(options->worker, ACTOR_BYTES_MAX));
    d->batches = arena_alloc(&d->arena, (size_t)d->o.batches * sizeof(*d->batches));
    uv_async_init(loop, &d->async, on_async);
    uv_timer_init(loop, &d->timer);
    d->async.data = d->timer.data = d;
    d->open_handles = 2;
    measure(d);
    status st = d->o.only_asks ? ST_OK : deliverer_open(loop, &d->o.deliver, &d->deliverer, err);
    struct task *t = d->o.alone && !d->o.only_asks ? task_new(d, TASK_EXPIRE) : NULL;
    if (st != ST_OK) {
        if (t) task_free(t);
        dispatcher_halt(d);
        dispatcher_close(d);
        return st;
    }
    arm(d, 0);
    d->expiring = t != NULL;
    if (t)
        task_start(d, t);
    else
        poll_now(d);
    *out = d;
    return ST_OK;
}

/* Claims that were not begun. */
static status give_back(struct ledger *ledger, void *context, struct error *err) {
    struct batch *b = context;
    status st = ST_OK;
    for (size_t i = b->begun ? b->at + 1 : b->at; i < b->claimed.count && st == ST_OK; i++) {
        st = outbox_release(ledger, &b->claimed.items[i], b->d->o.worker, err);
        if (st == ST_CONFLICT) st = ST_OK; /* its lease has ended */
    }
    return st;
}

/* Waits for it. A store that failed once is not asked again: the process wants to end. */
static void at_the_end(struct dispatcher *d,
                       status (*task)(struct ledger *, void *, struct error *), void *context,
                       const char *otherwise, bool *works) {
    struct error err = {0};
    struct writer_call call = {.task = task, .task_context = context};
    if (!*works || !d->o.writer) return;
    status st = writer_append(d->o.writer, &call, HALT_WAIT_MS, &err);
    if (st != ST_OK) LOG(LOG_WARN, otherwise, LOG_S("error", str_c(err.msg)));
    if (st == ST_RETRY || st == ST_LIMIT) *works = false;
}

void dispatcher_halt(struct dispatcher *d) {
    bool works = true;
    if (!d || d->halted) return;
    (void)uv_timer_stop(&d->timer);
    while (d->waiting) {
        struct task *t = d->waiting;
        d->waiting = t->next;
        if (t->kind == TASK_RECORD)
            at_the_end(d, task_run, t, "could not record how an effect ended", &works);
        task_free(t);
    }
    d->waiting_end = &d->waiting;
    d->halted = true;
    for (int i = 0; d->batches && i < d->o.batches; i++) {
        struct batch *b = &d->batches[i];
        if (b->used)
            at_the_end(d, give_back, b, "could not give back effects that were not begun", &works);
    }
}

void dispatcher_close(struct dispatcher *d) {
    if (!d) return;
    deliverer_close(d->deliverer);
    take_done(d);
    for (int i = 0; d->batches && i < d->o.batches; i++) {
        if (d->batches[i].used) batch_end(&d->batches[i]);
    }
    uv_close((uv_handle_t *)&d->async, on_closed);
    uv_close((uv_handle_t *)&d->timer, on_closed);
}
