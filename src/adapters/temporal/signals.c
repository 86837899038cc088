/* adapters/temporal/signals.c: signals and cancellations that come through the cluster's own tools.
 *
 * A signal's value may be a SignalRequest (core/signal.h), with signalId, stepId, payload and
 * reason; any other value is the payload of the signal. Without a signalId the event's number makes
 * one, so that reading a history again tells nothing new. */
#include "adapters/temporal/impl.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"

enum { SIGNAL_ARENA_FIRST = 2048 };
#define SIGNAL_ARENA_MAX ((size_t)16 * 1024 * 1024)
#define SIGNAL_BYTES_MAX ((size_t)64 * 1024)

static bool is_request(yyjson_val *root) {
    static const char *const members[] = {"signal", "signalId", "stepId", "payload", "reason"};
    size_t known = 0;
    for (size_t i = 0; i < COUNT_OF(members); i++)
        known += json_member(root, members[i]) != NULL;
    return yyjson_is_obj(root) && yyjson_obj_size(root) == known;
}

static status read_request(yyjson_val *root, struct arena *arena, struct signal *out,
                           struct error *err) {
    static const char *const members[] = {"signalId", "stepId", "reason"};
    str *const to[] = {&out->signal_id, &out->step_id, &out->reason};
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        yyjson_val *v = json_member(root, members[i]);
        if (v && !yyjson_is_null(v) && !json_str(v, to[i]))
            return error_set(err, ST_INVALID, "\"%s\" is not a string", members[i]);
    }
    yyjson_val *payload = json_member(root, "payload");
    if (!payload) return ST_OK;
    out->payload = json_text(payload, arena);
    return out->payload.ptr ? ST_OK : error_set(err, ST_RETRY, "out of memory");
}

static status signal_read(const struct history_signal *s, struct arena *arena, struct signal *out,
                          struct error *err) {
    *out = (struct signal){.name = s->name};
    if (s->input && s->input->n_payloads > 0) {
        str text = wire_json_of(s->input);
        struct json_limits limits = {SIGNAL_BYTES_MAX, JSON_DEPTH_MAX - 2};
        yyjson_val *root = NULL;
        if (!text.ptr) return error_set(err, ST_INVALID, "its value is not JSON");
        status st = json_parse(text, limits, arena, &root, err);
        if (st == ST_OK && is_request(root)) st = read_request(root, arena, out, err);
        if (st != ST_OK) return st;
        if (!is_request(root)) out->payload = text;
    }
    return ST_OK;
}

static str event_signal_id(const struct temporal_run *r, int64_t event_id, struct arena *arena) {
    char text[EXECUTION_ID_MAX + 64];
    int n = event_id > 0
                ? snprintf(text, sizeof text, "temporal:%s:%lld", r->execution, (long long)event_id)
                : snprintf(text, sizeof text, "temporal:%s:cancel", r->execution);
    return arena_str(arena, str_n(text, (size_t)n));
}

/* Who did it, as far as the cluster knows; it fits the ledger's column. */
static str actor_of(str identity) {
    size_t bad = 0;
    if (identity.len > ACTOR_BYTES_MAX) identity.len = ACTOR_BYTES_MAX;
    if (!str_utf8(identity, &bad)) identity.len = bad;
    for (size_t i = 0; i < identity.len; i++) {
        if ((unsigned char)identity.ptr[i] < 0x20) identity.len = i;
    }
    return identity.len > 0 ? identity : STR("temporal");
}

static void tell_signal(struct temporal_run *r, const struct history_signal *s,
                        struct arena *arena) {
    struct temporal *t = r->t;
    struct signal signal;
    struct error err = {0};
    status st = signal_read(s, arena, &signal, &err);
    if (st == ST_OK && !signal.signal_id.ptr)
        signal.signal_id = event_signal_id(r, s->event_id, arena);
    if (st == ST_OK) st = signal_validate(&signal, &err);
    if (st != ST_OK) {
        LOG(LOG_WARN, "temporal: a signal is not one of ours; it is left aside",
            LOG_S("run", r->run_id), LOG_S("signal", s->name), LOG_S("why", str_c(err.msg)));
        return;
    }
    r->digests = true;
    t->ports.signalled(t->ports.context, r->run_id, &signal, actor_of(s->identity));
}

static void tell_cancel(struct temporal_run *r, const struct history *h, struct arena *arena) {
    struct temporal *t = r->t;
    struct error err = {0};
    struct signal signal = {.name = STR("CANCEL"), .signal_id = event_signal_id(r, 0, arena)};
    if (h->cancel_cause.len > 0) signal.reason = h->cancel_cause;
    r->told_cancel = true;
    if (signal_validate(&signal, &err) != ST_OK) { /* the reason is somebody's text */
        signal.reason = STR_NONE;
        if (signal_validate(&signal, &err) != ST_OK) return;
    }
    r->digests = true;
    t->ports.signalled(t->ports.context, r->run_id, &signal, actor_of(h->cancel_identity));
}

bool execution_tell_signals(struct temporal_run *r, const struct history *h) {
    struct arena arena;
    bool told = false;
    arena_init(&arena, SIGNAL_ARENA_FIRST, SIGNAL_ARENA_MAX);
    for (uint32_t i = 0; i < h->signal_count; i++) {
        const struct history_signal *s = &h->signals[i];
        if (s->event_id <= r->told_signal) continue;
        r->told_signal = s->event_id;
        if (str_starts(s->name, OWN_SIGNALS)) continue;
        arena_reset(&arena);
        tell_signal(r, s, &arena);
        told = true;
    }
    if (h->cancel_requested && !r->told_cancel) {
        arena_reset(&arena);
        tell_cancel(r, h, &arena);
        told = true;
    }
    arena_release(&arena);
    return told;
}
