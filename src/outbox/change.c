/* outbox/change.c: what becomes of an effect that is there, as facts: claimed, ended, given back,
 * put back. What the ledger makes of them, ledger/effects.c and core/effect.c decide. */
#include "outbox/change.h"

#include "base/json_out.h"
#include "base/limits.h"
#include "base/time.h"
#include "outbox/outbox_impl.h"

enum {
    CODE_MAX = 100, /* bytes of what is kept of a failure */
    MESSAGE_MAX = 4096,
    DETAIL_MAX = 16384,
};

static struct outbox_change change_of(enum outbox_change_kind kind, const struct effect_info *i) {
    return (struct outbox_change){.kind = kind, .info = *i};
}

/* What somebody outside said, who may say anything: a failure must not fail to be told. */
static str said(str value, size_t max) {
    const char *nul = value.len > 0 ? memchr(value.ptr, 0, value.len) : NULL;
    size_t len = nul ? (size_t)(nul - value.ptr) : value.len;
    return str_n(value.ptr, len < max ? len : max);
}

static struct effect_failure said_of(const struct effect_failure *why) {
    return (struct effect_failure){.code = said(why->code, CODE_MAX),
                                   .message = said(why->message, MESSAGE_MAX),
                                   .detail =
                                       why->detail.ptr ? said(why->detail, DETAIL_MAX) : STR_NONE};
}

/* ---- alerts ---- */

static void put_body(struct facts *f, const struct effect_info *i,
                     const struct effect_failure *why) {
    struct buf text; /* what chats show */
    buf_init(&text, 2048);
    buf_put_c(&text, "an effect is dead: ");
    buf_put(&text, i->effect.type);
    buf_put_c(&text, " of run ");
    buf_put(&text, i->run_id);
    json_object_begin(&f->data);
    json_put_text(&f->data, "code", STR("EFFECT_DEAD_LETTERED"));
    json_put_text(&f->data, "text", buf_str(&text));
    json_put_uuid(&f->data, "effect_id", i->effect.id);
    json_put_text(&f->data, "effect_type", i->effect.type);
    json_put_text(&f->data, "run_id", i->run_id);
    json_put_text(&f->data, "tenant_id", i->tenant_id);
    json_put_uuid(&f->data, "correlation_id", i->correlation);
    json_put_text(&f->data, "error_code", why->code);
    json_put_text(&f->data, "error_message", why->message);
    json_object_end(&f->data);
    buf_release(&text);
}

/* An effect like any other, whose key is its cause: said once, however often it is appended. One
 * that is dead itself is only logged. */
static status add_alert(struct facts *f, const struct effect_info *i, size_t sink,
                        const struct effect_failure *why, struct error *err) {
    static const str type = STR_LIT("WEBHOOK_CALL");
    const struct outbox_settings *settings = &f->maker->settings;
    struct effect_retry retry = effect_retry_of(type, settings->retries);
    char text[UUID_TEXT_LEN];
    char key[EFFECT_KEY_MAX + 1];
    uuid id = uuid_v7(clock_wall_us() / 1000);
    str dead = f->subject;
    int n = snprintf(key, sizeof(key), EFFECT_KEY_ALERT "%.*s:%lld:%zu", STR_ARG(dead),
                     (long long)i->effect.executions, sink + 1);
    uuid_format(id, text);
    facts_head(f, id, i->run_uuid, type);
    json_put_text(&f->data, "idempotency_key", str_n(key, (size_t)n));
    json_put_int(&f->data, "max_retries", retry.max_retries);
    json_put_int(&f->data, "base_delay_ms", retry.base_ms);
    json_name(&f->data, "payload");
    json_object_begin(&f->data);
    json_put_text(&f->data, "method", STR("POST"));
    json_put_text(&f->data, "url", settings->sinks->urls[sink]);
    json_name(&f->data, "body");
    put_body(f, i, why);
    json_put_text(&f->data, "idempotency_key", str_n(key, (size_t)n));
    json_object_end(&f->data);
    if (!arena_try_str(f->maker->arena, str_n(text, sizeof(text)), &f->subject))
        return outbox_no_memory(err);
    status st = facts_add(f, EVENT_EFFECT_REQUESTED, 1, err);
    f->subject = dead;
    return st;
}

static status add_alerts(struct facts *f, const struct effect_info *i,
                         const struct effect_failure *why, struct error *err) {
    const struct outbox_sinks *sinks = f->maker->settings.sinks;
    status st = ST_OK;
    if (!sinks || str_starts(i->key, STR(EFFECT_KEY_ALERT))) return ST_OK;
    for (size_t k = 0; k < sinks->count && st == ST_OK; k++)
        st = add_alert(f, i, k, why, err);
    return st;
}

/* ---- failures ---- */

static bool is_last(const struct effect *e) { return e->retry_count + 1 > e->max_retries; }

/* So many facts tell of a failure. */
static size_t failure_room(const struct outbox_maker *m, const struct effect *e) {
    const struct outbox_sinks *sinks = m->settings.sinks;
    return 2 + (sinks && is_last(e) ? sinks->count : 0);
}

static status add_failure(struct facts *f, const struct effect_info *i,
                          const struct effect_failure *why, int64_t next_us, struct error *err) {
    const struct effect *e = &i->effect;
    bool dead = is_last(e);
    facts_execution(f, i);
    json_put_text(&f->data, "error_code", why->code);
    json_put_text(&f->data, "error_message", why->message);
    json_put_text_if(&f->data, "stack", why->detail);
    json_put_int(&f->data, "retry_count", e->retry_count + 1);
    json_put_time(&f->data, "next_retry_at", dead ? 0 : next_us);
    status st = facts_add(f, EVENT_EFFECT_FAILED, e->executions, err);
    if (st != ST_OK) return st;
    facts_execution(f, i);
    json_put_int(&f->data, "retry_count", e->retry_count + 1);
    if (dead) {
        json_put_text(&f->data, "error_code", why->code);
        json_put_text(&f->data, "error_message", why->message);
        st = facts_add(f, EVENT_EFFECT_DEAD_LETTERED, e->executions, err);
        return st == ST_OK ? add_alerts(f, i, why, err) : st;
    }
    json_put_time(&f->data, "next_retry_at", next_us);
    return facts_add(f, EVENT_EFFECT_RETRYING, e->executions, err);
}

/* What the row says once the failure is stored. */
static status note_failure(struct outbox_change *c, const struct effect_failure *why,
                           int64_t next_us, struct arena *arena, struct error *err) {
    struct effect *e = &c->info.effect;
    struct buf b;
    c->dead = is_last(e);
    e->status = c->dead ? OUTBOX_DEAD_LETTER : OUTBOX_FAILED;
    e->due_us = c->dead ? 0 : next_us;
    e->retry_count++;
    c->info.result = STR_NONE;
    buf_init(&b, EVENT_BYTES_MAX);
    json_object_begin(&b);
    json_put_text(&b, "code", why->code);
    json_put_text(&b, "message", why->message);
    json_put_text_if(&b, "stack", why->detail);
    json_object_end(&b);
    bool kept = !b.full && arena_try_str(arena, buf_str(&b), &c->info.error);
    buf_release(&b);
    return kept ? ST_OK : outbox_no_memory(err);
}

status outbox_make_failure(const struct outbox_maker *m, const struct effect_info *claimed,
                           const struct effect_failure *failure, struct outbox_change *out,
                           struct error *err) {
    const struct effect *e = &claimed->effect;
    struct effect_failure why = said_of(failure);
    int64_t wait_ms = effect_backoff_ms(e->retry_count + 1, e->base_ms);
    int64_t next_us = outbox_time(claimed, m->now_us) + wait_ms * 1000;
    struct facts f;
    *out = change_of(OUTBOX_FAILURE, claimed);
    status st = facts_begin_of(&f, m, claimed, failure_room(m, e), err);
    if (st == ST_OK) st = add_failure(&f, claimed, &why, next_us, err);
    st = facts_end(&f, st, out, err);
    return st == ST_OK ? note_failure(out, &why, next_us, m->arena, err) : st;
}

/* Whoever had it has not come back: it is due at once, if that was not its last. */
static const struct effect_failure expired = {
    .code = STR_LIT("LEASE_EXPIRED"),
    .message = STR_LIT("the worker that executed it did not say how it ended")};

status outbox_make_expiry(const struct outbox_maker *m, const struct effect_info *under_way,
                          struct outbox_change *out, struct error *err) {
    int64_t now_us = outbox_time(under_way, m->now_us);
    struct facts f;
    *out = change_of(OUTBOX_EXPIRY, under_way);
    status st = facts_begin_of(&f, m, under_way, failure_room(m, &under_way->effect), err);
    if (st == ST_OK) st = add_failure(&f, under_way, &expired, now_us, err);
    st = facts_end(&f, st, out, err);
    return st == ST_OK ? note_failure(out, &expired, now_us, m->arena, err) : st;
}

/* ---- claiming ---- */

static status add_claim(struct facts *f, struct effect_info *i, int64_t now_us, int64_t lease_ms,
                        struct error *err) {
    struct effect *e = &i->effect;
    e->executions++;
    e->status = OUTBOX_PROCESSING;
    e->due_us = now_us + lease_ms * 1000;
    facts_execution(f, i);
    json_put_text(&f->data, "worker", f->maker->actor);
    json_put_time(&f->data, "lease_until", e->due_us);
    return facts_add(f, EVENT_EFFECT_EXECUTING, e->executions, err);
}

status outbox_make_claim(const struct outbox_maker *m, const struct effect_info *due,
                         int64_t lease_ms, struct outbox_change *out, struct error *err) {
    bool ends = due->effect.status == OUTBOX_PROCESSING; /* a lease */
    int64_t now_us = outbox_time(due, m->now_us);
    size_t room = ends ? failure_room(m, &due->effect) + 1 : 1;
    struct facts f;
    *out = change_of(OUTBOX_CLAIM, due);
    status st = facts_begin_of(&f, m, due, room, err);
    if (st == ST_OK && ends) {
        st = add_failure(&f, due, &expired, now_us, err);
        if (st == ST_OK) st = note_failure(out, &expired, now_us, m->arena, err);
    }
    if (st == ST_OK && !out->dead) st = add_claim(&f, &out->info, now_us, lease_ms, err);
    return facts_end(&f, st, out, err);
}

/* ---- the end of an execution ---- */

status outbox_make_completion(const struct outbox_maker *m, const struct effect_info *claimed,
                              str result, struct outbox_change *out, struct error *err) {
    struct facts f;
    *out = change_of(OUTBOX_COMPLETION, claimed);
    out->info.effect.status = OUTBOX_COMPLETED;
    out->info.effect.due_us = 0;
    out->info.result = result.ptr ? result : STR("null");
    status st = facts_begin_of(&f, m, claimed, 1, err);
    if (st == ST_OK) {
        facts_execution(&f, claimed);
        json_put_json(&f.data, "result", out->info.result);
        st = facts_add(&f, EVENT_EFFECT_COMPLETED, claimed->effect.executions, err);
    }
    return facts_end(&f, st, out, err);
}

/* ---- putting back ---- */

status outbox_make_release(const struct outbox_maker *m, const struct effect_info *claimed,
                           struct outbox_change *out, struct error *err) {
    struct facts f;
    *out = change_of(OUTBOX_RELEASE, claimed);
    out->info.effect.status = OUTBOX_PENDING;
    status st = facts_begin_of(&f, m, claimed, 1, err);
    if (st == ST_OK) {
        facts_execution(&f, claimed);
        json_put_int(&f.data, "retry_count", claimed->effect.retry_count);
        json_put_time(&f.data, "next_retry_at", 0);
        json_put_bool(&f.data, "released", true);
        st = facts_add(&f, EVENT_EFFECT_RETRYING, claimed->effect.executions, err);
    }
    return facts_end(&f, st, out, err);
}

static status not_dead(enum outbox_status at, struct error *err) {
    return error_at(err, REASON_EFFECT_NOT_DEAD, "",
                    "the effect is %s: only a dead letter can be put back", outbox_status_name(at));
}

status outbox_make_requeue(const struct outbox_maker *m, const struct effect_info *dead, str reason,
                           struct outbox_change *out, struct error *err) {
    static const struct append_rider none = {0};
    struct facts f;
    if (dead->effect.status != OUTBOX_DEAD_LETTER) return not_dead(dead->effect.status, err);
    *out = change_of(OUTBOX_REQUEUE, dead);
    out->info.effect.status = OUTBOX_PENDING;
    out->info.effect.retry_count = out->info.effect.error_seq = 0;
    out->info.error = STR_NONE;
    status st = facts_begin_of(&f, m, dead, 1, err);
    if (st == ST_OK) {
        facts_execution(&f, dead);
        json_put_int(&f.data, "retry_count", 0);
        json_put_time(&f.data, "next_retry_at", 0);
        json_put_bool(&f.data, "requeued", true);
        json_put_text_if(&f.data, "reason", reason);
        st = facts_add(&f, EVENT_EFFECT_RETRYING, dead->effect.executions, err);
    }
    st = facts_end(&f, st, out, err);
    out->request.riders_again = &none; /* somebody else has put it back: that is no deed of ours */
    return st;
}

/* ---- what became of it ---- */

/* Ours, told before, when nobody could say whether its commit had succeeded. */
static bool is_ours(const struct append_request *r, size_t i) {
    return !r->results[i].duplicate || uuid_eq(r->results[i].event_id, r->items[i].event.event_id);
}

static status moved(const struct outbox_change *c, struct error *err) {
    return error_at(err, REASON_EFFECT_MOVED, "",
                    "another worker has execution %lld, or had ended it before",
                    (long long)c->info.effect.executions);
}

/* What only the ledger knows of a new effect. */
static void fill_stored(struct outbox_change *c) {
    const struct append_result *r = &c->request.results[0];
    struct effect *e = &c->info.effect;
    c->info.request_id = r->event_id;
    c->info.tenant_us = e->created_us = e->due_us = r->persisted_us;
    e->requested_seq = e->last_seq = r->seq;
}

status outbox_outcome(struct outbox_change *c, bool *existing, struct error *err) {
    const struct append_request *r = &c->request;
    ASSERT(r->count > 0);
    if (existing) *existing = r->results[0].code == ST_OK && r->results[0].duplicate;
    if (r->results[0].code != ST_OK) {
        *err = *r->results[0].err;
        return r->results[0].code;
    }
    switch (c->kind) {
    case OUTBOX_REQUEST:
        if (!r->results[0].duplicate) fill_stored(c);
        return ST_OK;
    case OUTBOX_COMPLETION: /* nobody else completes this execution */
        return ST_OK;
    case OUTBOX_REQUEUE:
        return is_ours(r, 0) ? ST_OK : not_dead(OUTBOX_PENDING, err);
    case OUTBOX_CLAIM: /* our own EffectExecuting is there, not one like it */
    case OUTBOX_FAILURE:
    case OUTBOX_RELEASE:
    case OUTBOX_EXPIRY:
        break;
    }
    return is_ours(r, r->count - 1) ? ST_OK : moved(c, err);
}
