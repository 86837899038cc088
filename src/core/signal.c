/* core/signal.c: signals by name, as they come in and as they are stored. */
#include "core/signal.h"

#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "core/event.h"

static const char *const names[SIGNAL_KIND_COUNT] = {
    [SIGNAL_LAUNCH] = "LAUNCH",         [SIGNAL_PAUSE] = "PAUSE",     [SIGNAL_RESUME] = "RESUME",
    [SIGNAL_CANCEL] = "CANCEL",         [SIGNAL_APPROVE] = "APPROVE", [SIGNAL_REJECT] = "REJECT",
    [SIGNAL_RETRY_STEP] = "RETRY_STEP", [SIGNAL_NAMED] = ""};

enum { REASON_BYTES_MAX = 1000 };
#define SIGNAL_BYTES_MAX ((size_t)64 * 1024)

enum signal_kind signal_kind_of(str name) {
    for (int i = 0; i < SIGNAL_NAMED; i++) {
        if (str_eq(name, str_c(names[i]))) return (enum signal_kind)i;
    }
    return SIGNAL_NAMED;
}

static status bad(struct error *err, const char *where, const char *what) {
    return error_at(err, REASON_SIGNAL_INVALID, where, "%s", what);
}

static bool is_id(str s) {
    size_t at = 0;
    if (s.len == 0 || s.len > ID_BYTES_MAX || !str_utf8(s, &at)) return false;
    for (size_t i = 0; i < s.len; i++) {
        if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == '|') return false;
    }
    return true;
}

status signal_validate(struct signal *s, struct error *err) {
    size_t at = 0;
    if (!s->name.ptr) return bad(err, "/signal", "the name of the signal is missing");
    if (!is_id(s->name))
        return bad(err, "/signal", "a signal has a name of 1 to 255 bytes without '|'");
    s->kind = signal_kind_of(s->name);
    if (s->kind == SIGNAL_LAUNCH) return bad(err, "/signal", "LAUNCH is not sent: start a run");
    if (s->signal_id.ptr && !is_id(s->signal_id))
        return bad(err, "/signalId", "a signalId has 1 to 255 bytes without '|'");
    if (s->step_id.ptr && !is_id(s->step_id))
        return bad(err, "/stepId", "a stepId has 1 to 255 bytes without '|'");
    if (s->kind == SIGNAL_RETRY_STEP && !s->step_id.ptr)
        return bad(err, "/stepId", "RETRY_STEP needs the step");
    if (s->reason.len > REASON_BYTES_MAX || !str_utf8(s->reason, &at) || str_has(s->reason, 0))
        return bad(err, "/reason", "a reason is UTF-8 text of at most 1000 bytes");
    return ST_OK;
}

status signal_parse(str json, struct arena *arena, struct signal *out, struct error *err) {
    static const char *const members[] = {"signal", "signalId", "stepId", "reason"};
    yyjson_val *root = NULL;
    struct json_limits limits = {SIGNAL_BYTES_MAX, JSON_DEPTH_MAX - 2};
    status st = json_parse(json, limits, arena, &root, err);
    if (st != ST_OK) return st;
    if (!yyjson_is_obj(root)) return bad(err, "", "a SignalRequest is an object");
    *out = (struct signal){0};
    str *to[] = {&out->name, &out->signal_id, &out->step_id, &out->reason};
    size_t known = 0;
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        yyjson_val *v = json_member(root, members[i]);
        if (!v) continue;
        char where[32];
        snprintf(where, sizeof(where), "/%s", members[i]);
        if (!json_str(v, to[i])) return bad(err, where, "expected a string");
        known++;
    }
    yyjson_val *payload = json_member(root, "payload");
    if (payload) {
        known++;
        out->payload = json_text(payload, arena);
        if (!out->payload.ptr) return error_set(err, ST_RETRY, "signal: out of memory");
    }
    if (known != yyjson_obj_size(root))
        return bad(err, "",
                   "a SignalRequest has signal, signalId, stepId, payload and reason only");
    return signal_validate(out, err);
}

uuid signal_uuid(str run_id, str signal_id) {
    static const uuid space = {{0x5c, 0x1d, 0x8a, 0x52, 0x4e, 0x0b, 0x4c, 0x7b, 0x9f, 0x31, 0x6b,
                                0x2a, 0x77, 0x10, 0xe4, 0x05}}; /* ours: signals */
    return event_uuid_of(uuid_v5(space, run_id), signal_id);
}

void signal_json(const struct signal *s, uuid id, struct buf *out) {
    json_object_begin(out);
    json_put_uuid(out, "signal_id", id);
    json_put_text_if(out, "signal", s->name);
    json_put_text_if(out, "caller_signal_id", s->signal_id);
    json_put_text_if(out, "step_id", s->step_id);
    json_put_text_if(out, "reason", s->reason);
    json_put_json_if(out, "payload", s->payload);
    json_object_end(out);
}
