/* outbox/alert.c: the sinks of dead letters are also told of an event that was recorded though the
 * state of its run forbids it: by an effect of that run, requested in the commit of the event.
 *
 * Its key is its cause, (runId, eventId): appended again, or judged again by another node, it is
 * the same alert. One that is dead itself is only logged. */
#include "base/json_out.h"
#include "base/limits.h"
#include "base/time.h"
#include "outbox/outbox_impl.h"

/* Every member that 5.4 of the Run Events contract asks for, under the names of its records. */
static void put_alert(struct buf *out, const struct alert *a) {
    struct buf text; /* what chats show */
    buf_init(&text, 2048);
    buf_put_c(&text, "an event was recorded that its run forbids: ");
    buf_put(&text, a->event_type);
    buf_put_c(&text, " of run ");
    buf_put(&text, a->run_id);
    json_object_begin(out);
    json_put_text(out, "code", STR("INVALID_TRANSITION"));
    json_put_text(out, "text", buf_str(&text));
    json_put_text(out, "runId", a->run_id);
    json_put_text(out, "tenantId", a->tenant_id);
    json_put_text(out, "projectId", a->project_id);
    json_put_text(out, "environmentId", a->environment_id);
    json_put_uuid(out, "eventId", a->event_id);
    json_put_text(out, "eventType", a->event_type);
    json_put_text_if(out, "stepId", a->step_id);
    json_put_int(out, "runSeq", a->run_seq);
    json_put_time(out, "persistedAt", a->persisted_us);
    json_put_text(out, "priorState", a->prior);
    json_put_text(out, "attemptedState", a->attempted);
    json_object_end(out);
    buf_release(&text);
}

/* ALERT:<eventId>:<hash of the run's id>:<sink>: a run id may be longer than a key. */
static size_t put_key(const struct alert *a, size_t sink, char key[EFFECT_KEY_MAX + 1]) {
    char event[UUID_TEXT_LEN];
    uint8_t hash[SHA256_LEN];
    char run[SHA256_HEX_LEN];
    uuid_format(a->event_id, event);
    sha256_of(a->run_id, hash);
    hex_encode(hash, sizeof(hash), run);
    int n = snprintf(key, EFFECT_KEY_MAX + 1, EFFECT_KEY_ALERT "%.*s:%.32s:%zu", UUID_TEXT_LEN,
                     event, run, sink + 1);
    return (size_t)n;
}

status outbox_alert_fact(const struct ledger *l, const struct alert *a, const struct event *ids,
                         size_t sink, struct arena *arena, struct append_item *out,
                         struct error *err) {
    static const str type = STR_LIT("WEBHOOK_CALL");
    struct outbox_maker maker = {
        .settings = outbox_settings(l), .actor = STR("system:outbox"), .arena = arena};
    struct effect_retry retry = effect_retry_of(type, maker.settings.retries);
    struct facts f;
    char key[EFFECT_KEY_MAX + 1];
    char run_uuid[UUID_TEXT_LEN];
    str keyed = str_n(key, put_key(a, sink, key));
    uuid id = uuid_v7(clock_wall_us() / 1000);
    uuid_format(event_uuid_of(event_tenant_uuid(a->tenant_id), a->run_id), run_uuid);
    status st = facts_begin(&f, &maker, ids, id, 1, err);
    if (st == ST_OK) {
        facts_head(&f, id, str_n(run_uuid, sizeof(run_uuid)), type);
        json_put_text(&f.data, "idempotency_key", keyed);
        json_put_int(&f.data, "max_retries", retry.max_retries);
        json_put_int(&f.data, "base_delay_ms", retry.base_ms);
        json_name(&f.data, "payload");
        json_object_begin(&f.data);
        json_put_text(&f.data, "method", STR("POST"));
        json_put_text(&f.data, "url", maker.settings.sinks->urls[sink]);
        json_name(&f.data, "body");
        put_alert(&f.data, a);
        json_put_text(&f.data, "idempotency_key", keyed);
        json_object_end(&f.data);
        st = facts_add(&f, EVENT_EFFECT_REQUESTED, 1, err);
    }
    if (st == ST_OK) *out = f.items[0];
    buf_release(&f.data);
    return st;
}
