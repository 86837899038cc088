/* adapters/temporal/news.c: what the engine is told of a run: its execution, signals and
 * cancellations that came through the cluster's own tools, workers that were lost, and how its
 * attempts ended. Reading a history again tells nothing new.
 *
 * A signal's value may be a SignalRequest (core/signal.h), with signalId, stepId, payload and
 * reason; any other value is the payload of the signal. Without a signalId the event's number makes
 * one. */
#include "adapters/temporal/impl.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"

enum { SIGNAL_ARENA_FIRST = 2048, ENDED_ARENA_FIRST = 1024 };
#define SIGNAL_ARENA_MAX ((size_t)16 * 1024 * 1024)
#define SIGNAL_BYTES_MAX ((size_t)64 * 1024)

/* ---- the execution ---- */

void temporal_tell_link(struct temporal_run *r) {
    struct temporal *t = r->t;
    struct provider_link link = {.workflow_id = r->tracked.run_id,
                                 .provider_run_id = str_c(r->execution),
                                 .queue = r->queue ? task_queue_str(r->queue) : STR_NONE,
                                 .continued = r->told.continued};
    ASSERT(r->tracked.inside > 0);
    temporal_run_word(r, WORD_TOLD);
    t->ports.linked(t->ports.context, r->tracked.run_id, &link);
}

void temporal_tell_execution(struct temporal_run *r, bool continued) {
    if (strcmp(r->told.execution, r->execution) == 0) return;
    r->told = (struct told){.continued = continued};
    memcpy(r->told.execution, r->execution, sizeof r->told.execution);
    temporal_tell_link(r);
}

/* ---- signals ---- */

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
            LOG_S("run", r->tracked.run_id), LOG_S("signal", s->name),
            LOG_S("why", str_c(err.msg)));
        return;
    }
    temporal_run_word(r, WORD_TOLD);
    t->ports.signalled(t->ports.context, r->tracked.run_id, &signal, actor_of(s->identity));
}

static void tell_cancel(struct temporal_run *r, const struct history *h, struct arena *arena) {
    struct temporal *t = r->t;
    struct error err = {0};
    struct signal signal = {.name = STR("CANCEL"), .signal_id = event_signal_id(r, 0, arena)};
    if (h->cancel_cause.len > 0) signal.reason = h->cancel_cause;
    r->told.cancel = true;
    if (signal_validate(&signal, &err) != ST_OK) { /* the reason is somebody's text */
        signal.reason = STR_NONE;
        if (signal_validate(&signal, &err) != ST_OK) return;
    }
    temporal_run_word(r, WORD_TOLD);
    t->ports.signalled(t->ports.context, r->tracked.run_id, &signal, actor_of(h->cancel_identity));
}

static void tell_signals(struct temporal_run *r, const struct history *h) {
    struct arena arena;
    arena_init(&arena, SIGNAL_ARENA_FIRST, SIGNAL_ARENA_MAX);
    for (uint32_t i = 0; i < h->signal_count; i++) {
        const struct history_signal *s = &h->signals[i];
        if (s->event_id <= r->told.signal) continue;
        r->told.signal = s->event_id;
        if (str_starts(s->name, OWN_SIGNALS)) continue;
        arena_reset(&arena);
        tell_signal(r, s, &arena);
    }
    if (h->cancel_requested && !r->told.cancel) {
        arena_reset(&arena);
        tell_cancel(r, h, &arena);
    }
    arena_release(&arena);
}

void temporal_tell(struct temporal_run *r, str execution, const struct history *h) {
    temporal_run_set_execution(r, execution);
    temporal_run_set_queue(r, history_queue(h));
    if (!temporal_run_is_open(r)) temporal_run_move(r, EXECUTION_OPEN);
    temporal_tell_execution(r, history_continues(h).ptr != NULL);
    tell_signals(r, h);
}

/* ---- attempts ---- */

void temporal_tell_answer(struct temporal_run *r, struct temporal_wanted *w,
                          const struct outcome *outcome) {
    temporal_run_word(r, WORD_TOLD);
    wanted_answer(&w->wanted, outcome);
}

void temporal_tell_recovered(struct temporal_run *r, const struct attempt *attempt, int32_t count) {
    struct temporal *t = r->t;
    if (count > 1)
        t->ports.recovered(t->ports.context, r->tracked.run_id, attempt->step->id, attempt->number,
                           count - 1);
}

void temporal_tell_ended(struct temporal_run *r, const struct history *h) {
    struct arena scratch;
    arena_init(&scratch, ENDED_ARENA_FIRST, TASK_ARENA_MAX);
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w)) {
        const struct history_activity *a = history_find(h, wanted_id(w));
        if (!a || a->state == ACTIVITY_PENDING) continue;
        struct outcome outcome;
        history_outcome(a, w->stop, &scratch, &outcome);
        temporal_tell_recovered(r, w->wanted.attempt, a->attempt);
        if (!w->wanted.attempt) continue; /* the engine left it, from inside the port */
        temporal_tell_answer(r, w, &outcome);
    }
    arena_release(&scratch);
}
