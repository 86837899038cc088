#include "core/event_v1.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"

static str text_member(yyjson_val *root, const char *name) {
    str s = STR_NONE;
    (void)json_str(json_member(root, name), &s);
    return s;
}

static bool is_v1(yyjson_val *root) {
    return yyjson_is_obj(root) && !json_member(root, "emittedAt") &&
           (json_member(root, "occurredAt") || json_member(root, "timestamp"));
}

/* The members that v1 and v2 share; what is absent stays empty and event_validate() names it. */
static status take_shared(yyjson_val *root, struct arena *arena, struct event *e,
                          struct error *err) {
    const struct {
        const char *name;
        str *to;
    } texts[] = {{"eventType", &e->type_name},          {"runId", &e->run_id},
                 {"tenantId", &e->tenant_id},           {"projectId", &e->project_id},
                 {"environmentId", &e->environment_id}, {"planId", &e->plan_id},
                 {"planVersion", &e->plan_version},     {"stepId", &e->subject}};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        *texts[i].to = text_member(root, texts[i].name);
    if (!json_int(json_member(root, "logicalAttemptId"), &e->logical_attempt))
        e->logical_attempt = 1;
    if (!json_int(json_member(root, "engineAttemptId"), &e->engine_attempt)) e->engine_attempt = 1;
    yyjson_val *payload = json_member(root, "payload");
    if (!payload) return ST_OK;
    if (!yyjson_is_obj(payload)) {
        return error_at(err, REASON_PAYLOAD_NOT_OBJECT, "/payload",
                        "event: \"payload\" must be an object");
    }
    e->payload = json_text(payload, arena);
    return e->payload.ptr ? ST_OK
                          : error_set(err, ST_RETRY, "event: out of memory for the payload");
}

static status take_time(yyjson_val *root, const struct event_v1_window *window, struct event *e,
                        struct error *err) {
    bool occurred = json_member(root, "occurredAt") != NULL;
    const char *where = occurred ? "/occurredAt" : "/timestamp";
    if (!time_parse_utc(text_member(root, where + 1), &e->emitted_ns, &e->emitted_digits)) {
        return error_at(err, REASON_TIME_NOT_RFC3339_UTC, where,
                        "event: \"%s\" must be RFC 3339 in UTC", where + 1);
    }
    if (e->emitted_ns >= window->until_ns) {
        return error_at(err, REASON_V1_WINDOW_CLOSED, where,
                        "event: a version 1 record from after the end of the compatibility window");
    }
    return ST_OK;
}

status event_parse_any(str json, const struct event_v1_window *window, struct arena *arena,
                       struct event *out, struct error *err) {
    if (window->until_ns == 0) return event_parse(json, arena, out, err);
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    status st = json_parse(json, limits, arena, &root, err);
    if (st != ST_OK) return st;
    if (!is_v1(root)) return event_parse(json, arena, out, err);
    struct event e = {0};
    st = take_time(root, window, &e, err);
    if (st == ST_OK) st = take_shared(root, arena, &e, err);
    if (st != ST_OK) return st;
    str id = text_member(root, "eventId");
    if (!id.ptr)
        e.event_id = window->fresh_id;
    else if (!uuid_parse(id, &e.event_id)) {
        return error_at(err, REASON_EVENT_ID_NOT_UUID_V4, "/eventId",
                        "event: \"eventId\" is not a UUID in canonical text form");
    }
    e.type = event_type_of(e.type_name);
    if (e.run_id.len <= ID_BYTES_MAX && e.subject.len <= ID_BYTES_MAX &&
        e.plan_id.len <= ID_BYTES_MAX && e.plan_version.len <= ID_BYTES_MAX &&
        e.type_name.len <= ID_BYTES_MAX && !event_type_is_fact(e.type)) {
        event_key_derive(&e, e.key); /* else event_validate() says which one is too long */
    }
    st = event_validate(&e, err);
    if (st == ST_OK) *out = e;
    return st;
}
