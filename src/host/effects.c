/* host/effects.c: effect steps: each asks for its effect through the outbox, and waits for its end if
 * the plan says so. What ends here is told by the dispatcher; what another node delivers is looked
 * for. */
#include "host/effects.h"

#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/time.h"

enum {
    WATCH_MS = 200,       /* between two looks at the clock of those who wait */
    LOOK_EVERY = 5,       /* of these, one looks at the ledger, */
    LOOK_EFFECTS_MAX = 64 /* for so many effects at most */
};

struct waiter { /* an attempt of an effect step */
    struct waiter *next;
    struct host_effects *owner;
    struct attempt *attempt; /* NULL: it is answered */
    uuid effect_id;
    bool asked;       /* the ledger has answered */
    bool again;       /* the store failed: it is asked for again; nobody has it meanwhile */
    bool wait;        /* for its end */
    int64_t until_ns; /* 0: as long as it takes */
};

struct host_effects {
    uv_loop_t *loop;
    struct dispatcher *dispatcher;
    struct readers *readers;
    struct reader_job look; /* one at a time, */
    bool looking;
    struct arena look_arena; /* with what it found, by `ids`; a status of OUTBOX_NONE: nothing */
    uuid ids[LOOK_EFFECTS_MAX];
    struct effect_info *found;
    size_t id_count;
    struct waiter *waiters;
    struct waiter *gone; /* answered, but the ledger has not come back to them */
    uv_timer_t watch;
    int64_t looks;
    bool halted;
};

/* ---- the answer ---- */

static void unlink_waiter(struct waiter **list, const struct waiter *w) {
    while (*list != w)
        list = &(*list)->next;
    *list = w->next;
}

/* Gives the one answer. A waiter that the ledger still has is freed when it comes back. */
static void answer(struct waiter *w, const struct outcome *outcome) {
    struct host_effects *e = w->owner;
    struct attempt *attempt = w->attempt;
    ASSERT(attempt);
    unlink_waiter(&e->waiters, w);
    if (!e->waiters) (void)uv_timer_stop(&e->watch);
    attempt->executor_data = NULL;
    if (w->asked) {
        mem_free(w);
    } else {
        w->attempt = NULL;
        w->next = e->gone;
        e->gone = w;
    }
    attempt->done(attempt, outcome);
}

static void answer_done(struct waiter *w, str output) {
    answer(w, &(struct outcome){.ok = true, .output = output});
}

static void answer_failed(struct waiter *w, enum reason code, str message) {
    struct outcome outcome = outcome_failed(code, message);
    answer(w, &outcome);
}

static void answer_requested(struct waiter *w, const struct effect_info *info, bool existing) {
    struct buf b;
    buf_init(&b, 4096);
    json_object_begin(&b);
    json_put_uuid(&b, "effectId", info->effect.id);
    json_put_text(&b, "idempotencyKey", info->key);
    json_put_bool(&b, "existing", existing);
    json_object_end(&b);
    answer_done(w, buf_str(&b));
    buf_release(&b);
}

/* With what it failed for, as the ledger has it: {"code":...,"message":...}. */
static void answer_dead(struct waiter *w, const struct effect_info *info) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct arena arena;
    struct error ignored;
    struct buf b;
    yyjson_val *why = NULL;
    str code = STR_NONE;
    str message = STR_NONE;
    arena_init(&arena, 1024, SIZE_MAX);
    buf_init(&b, (size_t)16 * 1024);
    if (info->error.ptr && json_parse(info->error, limits, &arena, &why, &ignored) == ST_OK) {
        (void)json_str(json_member(why, "code"), &code);
        (void)json_str(json_member(why, "message"), &message);
    }
    buf_put_c(&b, "the effect failed for the last time");
    if (code.len > 0) buf_put_c(&b, ": ");
    buf_put(&b, code);
    if (message.len > 0) buf_put_c(&b, ": ");
    buf_put(&b, message);
    answer_failed(w, REASON_EFFECT_DEAD_LETTERED, buf_str(&b));
    buf_release(&b);
    arena_release(&arena);
}

/* true: it has ended, and was answered. */
static bool answer_settled(struct waiter *w, const struct effect_info *info) {
    struct buf b;
    if (info->effect.status == OUTBOX_DEAD_LETTER) {
        answer_dead(w, info);
        return true;
    }
    if (info->effect.status != OUTBOX_COMPLETED) return false;
    buf_init(&b, (size_t)2 * EVENT_BYTES_MAX);
    json_object_begin(&b);
    json_put_uuid(&b, "effectId", info->effect.id);
    json_put_text(&b, "status", STR("COMPLETED"));
    json_put_json(&b, "result", info->result);
    json_object_end(&b);
    answer_done(w, buf_str(&b));
    buf_release(&b);
    return true;
}

/* ---- asking ---- */

/* What the store could not do now is no failure of the step: it is asked again until it can. */
static void on_asked(void *context, status st, const struct effect_info *info, bool existing,
                     const struct error *err) {
    struct waiter *w = context;
    w->asked = true;
    if (!w->attempt) { /* stopped meanwhile */
        unlink_waiter(&w->owner->gone, w);
        mem_free(w);
        return;
    }
    w->again = st == ST_RETRY;
    if (w->again) return;
    if (st != ST_OK) {
        answer_failed(w, err->reason ? err->reason : REASON_EFFECT_FAILED, str_c(err->msg));
        return;
    }
    w->effect_id = info->effect.id;
    if (!w->wait)
        answer_requested(w, info, existing);
    else
        (void)answer_settled(w, info); /* else its end is awaited */
}

/* The same for every attempt of the step. */
static uuid step_effect(str run_id, str step_id) {
    static const uuid space = {{0x0e, 0x6f, 0x1b, 0x5a, 0x93, 0x3d, 0x4f, 0x0c, 0x8a, 0x52, 0x71,
                                0x2e, 0xc4, 0x60, 0x19, 0xd8}}; /* ours: effects of steps */
    return uuid_v5(uuid_v5(space, run_id), step_id);
}

static status ask(struct waiter *w, struct error *err) {
    struct attempt *a = w->attempt;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct arena arena;
    yyjson_val *body = NULL;
    struct effect_request request = {.run_id = a->run_id,
                                     .tenant_id = a->tenant_id,
                                     .step_id = a->step->id,
                                     .actor = STR("engine"),
                                     .max_retries = -1,
                                     .base_ms = -1};
    uuid id = step_effect(a->run_id, a->step->id);
    request.id = &id;
    arena_init(&arena, 4096, SIZE_MAX);
    status st = json_parse(a->body, limits, &arena, &body, err);
    if (st == ST_OK) {
        (void)json_str(json_member(body, "effectType"), &request.type);
        request.payload = json_text(json_member(body, "payload"), &arena);
        w->wait = yyjson_is_true(json_member(body, "wait"));
        st = dispatcher_ask(w->owner->dispatcher, &request, on_asked, w, err);
    }
    arena_release(&arena);
    return st;
}

/* ---- those who wait ---- */

/* (An answer may change the list: begin again.) */
static void on_settled(void *context, const struct effect_info *info) {
    struct host_effects *e = context;
    for (struct waiter *w = e->waiters; w;) {
        bool ends = w->asked && w->wait && !w->again && uuid_eq(w->effect_id, info->effect.id) &&
                    answer_settled(w, info);
        w = ends ? e->waiters : w->next;
    }
}

static void check_times(struct host_effects *e) {
    int64_t now = clock_mono_ns();
    for (struct waiter *w = e->waiters; w;) {
        bool ends = w->until_ns > 0 && w->until_ns <= now;
        if (ends) answer_failed(w, REASON_TIMEOUT, STR("the effect took too long"));
        w = ends ? e->waiters : w->next;
    }
}

static void ask_again(struct waiter *w) {
    struct error ignored;
    w->asked = false;
    w->again = false;
    if (ask(w, &ignored) != ST_OK) w->asked = w->again = true; /* no memory: later */
}

/* Another node may have delivered it, and what we heard of our own may have been lost. On a reader
 * thread. */
static status look_work(struct reader_job *job, struct ledger *reader, struct error *err) {
    struct host_effects *e = CONTAINER_OF(job, struct host_effects, look);
    status st = ST_OK;
    e->found = arena_try(&e->look_arena, e->id_count * sizeof(*e->found));
    if (!e->found) return error_set(err, ST_RETRY, "outbox: out of memory");
    for (size_t i = 0; i < e->id_count && st != ST_RETRY; i++) {
        st = outbox_find(reader, STR_NONE, e->ids[i], &e->look_arena, &e->found[i], err);
        if (st != ST_OK) e->found[i] = (struct effect_info){0};
    }
    return st == ST_RETRY ? st : ST_OK;
}

static void looked(struct reader_job *job) {
    struct host_effects *e = CONTAINER_OF(job, struct host_effects, look);
    e->looking = false;
    for (size_t i = 0; i < e->id_count && job->code == ST_OK && !e->halted; i++)
        on_settled(e, &e->found[i]);
    arena_release(&e->look_arena);
}

/* Whoever is looked at comes last the next time. */
static void look_at_some(struct host_effects *e) {
    size_t left = 0;
    if (!e->looking) e->id_count = 0;
    for (const struct waiter *w = e->waiters; w && left < LOOK_EFFECTS_MAX; w = w->next)
        left++;
    for (; left > 0 && e->waiters; left--) {
        struct waiter *w = e->waiters;
        struct waiter **last = &e->waiters;
        unlink_waiter(&e->waiters, w);
        while (*last)
            last = &(*last)->next;
        *last = w;
        w->next = NULL;
        if (w->again)
            ask_again(w);
        else if (w->asked && w->wait && !e->looking)
            e->ids[e->id_count++] = w->effect_id;
    }
    if (e->looking || e->id_count == 0) return;
    e->looking = true;
    e->look = (struct reader_job){.work = look_work, .done = looked};
    readers_submit(e->readers, &e->look);
}

static void on_watch(uv_timer_t *timer) {
    struct host_effects *e = timer->data;
    check_times(e);
    if (++e->looks % LOOK_EVERY == 0) look_at_some(e);
}

void host_effects_start(struct host_effects *e, struct attempt *attempt) {
    struct error err = {0};
    struct waiter *w = mem_alloc(sizeof(*w));
    if (!w) {
        attempt_fail(attempt, REASON_EFFECT_FAILED, STR("out of memory"));
        return;
    }
    *w = (struct waiter){.next = e->waiters, .owner = e, .attempt = attempt};
    if (attempt->timeout_ms > 0) w->until_ns = clock_mono_ns() + attempt->timeout_ms * 1000000;
    if (!e->waiters) (void)uv_timer_start(&e->watch, on_watch, WATCH_MS, WATCH_MS);
    e->waiters = w;
    attempt->executor_data = w;
    if (!e->halted && ask(w, &err) == ST_OK) return;
    w->asked = true; /* nobody else has it */
    answer_failed(w,
                  e->halted    ? REASON_CANCELLED
                  : err.reason ? err.reason
                               : REASON_EFFECT_FAILED,
                  e->halted ? STR("cancelled: the host is closing") : str_c(err.msg));
}

void host_effects_stop(struct host_effects *e, struct attempt *attempt) {
    struct waiter *w = attempt->executor_data;
    if (!w) return; /* answered */
    ASSERT(w->owner == e);
    answer_failed(w, REASON_CANCELLED, STR("cancelled: the effect goes on"));
}

void host_effects_serve(struct host_effects *e, str run_id) {
    dispatcher_serve(e->dispatcher, run_id);
}

void host_effects_wake(struct host_effects *e) { dispatcher_wake(e->dispatcher); }

void host_effects_tell(struct host_effects *e, const struct effect_info *info) {
    dispatcher_tell(e->dispatcher, info);
}

bool host_effects_idle(const struct host_effects *e) { return dispatcher_idle(e->dispatcher); }

/* ---- opening and closing ---- */

static void on_closed(uv_handle_t *handle) { mem_free(handle->data); }

status host_effects_open(uv_loop_t *loop, const struct dispatcher_options *options,
                         struct host_effects **out, struct error *err) {
    struct host_effects *e = mem_alloc(sizeof(*e));
    struct dispatcher_options own = *options;
    if (!e) return error_set(err, ST_RETRY, "outbox: out of memory");
    e->loop = loop;
    e->readers = options->readers;
    arena_init(&e->look_arena, 4096, SIZE_MAX);
    own.settled = on_settled;
    own.context = e;
    status st = dispatcher_open(loop, &own, &e->dispatcher, err);
    if (st != ST_OK) {
        mem_free(e);
        return st;
    }
    uv_timer_init(loop, &e->watch);
    e->watch.data = e;
    *out = e;
    return ST_OK;
}

void host_effects_halt(struct host_effects *e) {
    if (!e) return;
    e->halted = true; /* what was asked is not answered any more */
    dispatcher_halt(e->dispatcher);
}

void host_effects_close(struct host_effects *e) {
    if (!e) return;
    ASSERT(!e->looking); /* the readers were halted */
    dispatcher_close(e->dispatcher);
    while (e->waiters)
        answer_failed(e->waiters, REASON_CANCELLED, STR("cancelled: the host is closing"));
    while (e->gone) {
        struct waiter *w = e->gone;
        e->gone = w->next;
        mem_free(w);
    }
    uv_close((uv_handle_t *)&e->watch, on_closed);
}
