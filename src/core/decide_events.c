/* core/decide_events.c: how a decision becomes an event.
 *
 * An event is decided by emitting it: the guard sees it, the flow applies it, the batch keeps it.
 * Here are the batch, the payloads, and the events that more than one reason can bring about; which
 * of them comes next is decided in decide.c and decide_signals.c. */
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"
#include "core/flow_impl.h"

enum { BATCH_CAP_FIRST = 8 };

static status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "decide: out of memory");
}

void flow_batch_init(struct flow_batch *batch, struct arena *arena) {
    *batch = (struct flow_batch){.arena = arena};
}

/* ---- emitting ---- */

static status batch_add(struct flow_batch *b, const struct flow_event *item, struct error *err) {
    if (b->count == b->cap) {
        uint32_t cap = b->cap == 0 ? BATCH_CAP_FIRST : b->cap * 2;
        struct flow_event *items = arena_try_raw(b->arena, cap * sizeof(*items));
        if (!items) return no_memory(err);
        if (b->count > 0) memcpy(items, b->items, b->count * sizeof(*items));
        b->items = items;
        b->cap = cap;
    }
    b->items[b->count++] = *item;
    return ST_OK;
}

/* A refusal of the guard is a bug of ours: the flow stops emitting, and the shell says so. */
status flow_emit(const struct decision *d, const struct flow_event *item, struct error *err) {
    struct flow *f = d->flow;
    struct event_record rec = {.event = f->ids, .seq = f->run.head.last_seq + 1};
    struct event *e = &rec.event;
    const struct event_type_info *info = event_type_info(item->type);
    e->type = item->type;
    e->type_name = info->name;
    e->subject = item->step != FLOW_NO_STEP ? f->plan->steps[item->step].id : item->subject;
    e->logical_attempt = item->attempt;
    e->emitted_ns = d->now_us * 1000;
    e->payload = item->payload;
    rec.actor = item->actor;
    if (!event_type_is_fact(e->type)) rec.run_seq = f->run.head.run_seq + 1;
    if (f->stuck) return ST_OK;
    if (!run_guard(&f->run, e, &f->why_stuck)) {
        f->stuck = true;
        return ST_OK;
    }
    status st = flow_apply(f, &rec, err);
    if (st != ST_OK) return st;
    struct flow_event copy = *item;
    copy.subject = e->subject;
    return batch_add(d->batch, &copy, err);
}

status flow_emit_run(const struct decision *d, enum event_type type, int64_t attempt, str payload,
                     str actor, struct error *err) {
    struct flow_event item = {
        .type = type, .step = FLOW_NO_STEP, .attempt = attempt, .payload = payload, .actor = actor};
    return flow_emit(d, &item, err);
}

/* ---- payloads ---- */

void payload_open(struct buf *payload) {
    buf_init(payload, EVENT_BYTES_MAX);
    json_object_begin(payload);
}

void payload_time(struct buf *payload, const char *name, int64_t us) {
    if (us != FLOW_NEVER) json_put_time(payload, name, us);
}

status payload_close(struct buf *payload, const struct decision *d, str *out, struct error *err) {
    json_object_end(payload);
    bool kept = !payload->full && arena_try_str(d->batch->arena, buf_str(payload), out);
    buf_release(payload);
    return kept ? ST_OK : no_memory(err);
}

/* ---- what several reasons bring about ---- */

status flow_fail_step(const struct decision *d, uint32_t step, enum reason code,
                      const char *message, str actor, struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    str payload = STR_NONE;
    payload_open(&p);
    json_put_text(&p, "stepType", str_c(plan_type_name(f->plan->steps[step].type)));
    json_put_text_if(&p, "code", str_c(reason_name(code)));
    json_put_text_if(&p, "message", str_c(message));
    status st = payload_close(&p, d, &payload, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = EVENT_STEP_FAILED,
                              .step = step,
                              .attempt = f->steps[step].attempt,
                              .payload = payload,
                              .actor = actor};
    return flow_emit(d, &item, err);
}

status flow_complete_step(const struct decision *d, uint32_t step, str output, str actor,
                          struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    str payload = STR_NONE;
    payload_open(&p);
    json_put_text(&p, "stepType", str_c(plan_type_name(f->plan->steps[step].type)));
    json_put_json_if(&p, "output", output);
    status st = payload_close(&p, d, &payload, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = EVENT_STEP_COMPLETED,
                              .step = step,
                              .attempt = f->steps[step].attempt,
                              .payload = payload,
                              .actor = actor};
    return flow_emit(d, &item, err);
}

status flow_retry_at(const struct decision *d, uint32_t step, int64_t delay_ms, const char *why,
                     str actor, struct error *err) {
    struct flow *f = d->flow;
    struct buf p;
    str payload = STR_NONE;
    payload_open(&p);
    json_put_text_if(&p, "reason", str_c(why));
    json_put_text_if(&p, "after", f->steps[step].code);
    json_put_int(&p, "delayMs", delay_ms);
    payload_time(&p, "retryAt", d->now_us + delay_ms * 1000);
    status st = payload_close(&p, d, &payload, err);
    if (st != ST_OK) return st;
    struct flow_event item = {.type = EVENT_STEP_RETRIED,
                              .step = step,
                              .attempt = f->steps[step].attempt + 1,
                              .payload = payload,
                              .actor = actor};
    return flow_emit(d, &item, err);
}

status flow_ask_to_stop(const struct decision *d, uint32_t step, struct error *err) {
    struct flow_step *s = &d->flow->steps[step];
    struct flow_batch *b = d->batch;
    if (s->stopping) return ST_OK;
    s->stopping = true;
    if (b->stop_count == b->stop_cap) {
        uint32_t cap = b->stop_cap == 0 ? BATCH_CAP_FIRST : b->stop_cap * 2;
        uint32_t *stops = arena_try_raw(b->arena, cap * sizeof(*stops));
        if (!stops) return no_memory(err);
        if (b->stop_count > 0) memcpy(stops, b->stops, b->stop_count * sizeof(*stops));
        b->stops = stops;
        b->stop_cap = cap;
    }
    b->stops[b->stop_count++] = step;
    return ST_OK;
}
