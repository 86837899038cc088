/* Facts outside the Run Events contract: SIGNAL, EFFECT and TOOL rows, which only the store's own
 * parts write. */
#include "base/json.h"
#include "base/limits.h"
#include "ledger/ledger.h"
#include "base/time.h"

/* A step id as event_validate() would have it. */
static bool is_step_id(str id) {
    size_t bad = 0;
    return id.len > 0 && id.len <= ID_BYTES_MAX && str_utf8(id, &bad) && !str_has(id, 0) &&
           !str_has(id, '|');
}

/* The views show it as JSON: what is no object must not get in. */
static status check_data(str data, struct error *err) {
    if (!data.ptr)
        return error_at(err, REASON_FIELD_MISSING, "/data", "a fact needs its data, {} at least");
    struct arena arena;
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX - 1};
    arena_init(&arena, 4096, SIZE_MAX);
    status st = json_parse(data, limits, &arena, &root, err);
    if (st == ST_OK && !yyjson_is_obj(root)) {
        st = error_at(err, REASON_PAYLOAD_NOT_OBJECT, "/data",
                      "the data of a fact must be an object, found %s", yyjson_get_type_desc(root));
    }
    arena_release(&arena);
    return st;
}

status ledger_fact(const struct event *run_ids, enum event_type type, str subject,
                   int64_t occurrence, str data, struct append_item *item, struct error *err) {
    ASSERT(event_type_is_fact(type));
    const struct event_type_info *info = event_type_info(type);
    uuid ignored;
    bool names_uuid = info->family == FAMILY_SIGNAL || info->family == FAMILY_EFFECT;
    if (names_uuid ? !uuid_parse(subject, &ignored) : !is_step_id(subject)) {
        return error_at(err, REASON_FIELD_TYPE, "/aggregateId", "%.*s needs the %s it is about",
                        STR_ARG(info->name), names_uuid ? "UUID of the signal or effect" : "step");
    }
    if (occurrence < 1)
        return error_at(err, REASON_ATTEMPT_OUT_OF_RANGE, "/occurrence",
                        "occurrences count from 1");
    status st = check_data(data, err);
    if (st != ST_OK) return st;
    struct event *e = &item->event;
    *e = *run_ids;
    e->type = type;
    e->type_name = info->name;
    e->subject = subject;
    e->logical_attempt = occurrence;
    if (e->engine_attempt < 1) e->engine_attempt = 1;
    e->event_id = uuid_v4();
    e->emitted_ns = clock_wall_us() * 1000;
    e->emitted_digits = 6;
    e->payload = data;
    event_key_derive(e, e->key);
    return ST_OK;
}
