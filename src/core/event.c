/* core/event.c: reading, checking and writing an envelope, and its idempotency key. */
#include "core/event.h"

#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/time.h"

/* fields of the envelope: one table drives parsing, and the member order of the contract */

/* clang-format off */
enum field {
    F_EVENT_ID, F_EVENT_TYPE, F_EMITTED_AT, F_RUN_ID, F_TENANT_ID, F_PROJECT_ID, F_ENVIRONMENT_ID,
    F_PLAN_ID, F_PLAN_VERSION, F_ENGINE_ATTEMPT, F_LOGICAL_ATTEMPT, F_KEY, F_STEP_ID, F_PAYLOAD,
    F_COUNT
};
/* clang-format on */
static const struct {
    str name;
    const char *where;
    bool optional;
} fields[F_COUNT] = {
    [F_EVENT_ID] = {STR_LIT("eventId"), "/eventId", false},
    [F_EVENT_TYPE] = {STR_LIT("eventType"), "/eventType", false},
    [F_EMITTED_AT] = {STR_LIT("emittedAt"), "/emittedAt", false},
    [F_RUN_ID] = {STR_LIT("runId"), "/runId", false},
    [F_TENANT_ID] = {STR_LIT("tenantId"), "/tenantId", false},
    [F_PROJECT_ID] = {STR_LIT("projectId"), "/projectId", false},
    [F_ENVIRONMENT_ID] = {STR_LIT("environmentId"), "/environmentId", false},
    [F_PLAN_ID] = {STR_LIT("planId"), "/planId", false},
    [F_PLAN_VERSION] = {STR_LIT("planVersion"), "/planVersion", false},
    [F_ENGINE_ATTEMPT] = {STR_LIT("engineAttemptId"), "/engineAttemptId", false},
    [F_LOGICAL_ATTEMPT] = {STR_LIT("logicalAttemptId"), "/logicalAttemptId", false},
    [F_KEY] = {STR_LIT("idempotencyKey"), "/idempotencyKey", false},
    [F_STEP_ID] = {STR_LIT("stepId"), "/stepId", true},
    [F_PAYLOAD] = {STR_LIT("payload"), "/payload", true},
};

static int field_of(str name) {
    for (int i = 0; i < F_COUNT; i++) {
        if (str_eq(fields[i].name, name)) return i;
    }
    return -1;
}

/* Fields that only the Append Authority may set, or that the contract reserves. */
static bool field_is_reserved(str name) {
    static const str reserved[] = {STR_LIT("runSeq"), STR_LIT("persistedAt"), STR_LIT("occurredAt"),
                                   STR_LIT("sequenceNumber")};
    for (size_t i = 0; i < COUNT_OF(reserved); i++) {
        if (str_eq(reserved[i], name)) return true;
    }
    return false;
}

/* At most bytes_max of `s`, cut between characters: it ends up in JSON. */
static str cut(str s, size_t bytes_max) {
    if (s.len > bytes_max) s.len = bytes_max;
    size_t bad = s.len;
    if (!str_utf8(s, &bad)) s.len = bad;
    return s;
}

/* "/" and the member's name with ~ and / escaped, cut to fit. */
static void pointer_to(str name, char *out, size_t size) {
    struct buf b;
    buf_init_fixed(&b, out, size - 1);
    buf_put_char(&b, '/');
    for (size_t i = 0; i < name.len; i++) {
        if (name.ptr[i] == '~')
            buf_put_c(&b, "~0");
        else if (name.ptr[i] == '/')
            buf_put_c(&b, "~1");
        else
            buf_put_char(&b, name.ptr[i]);
    }
    out[cut(buf_str(&b), size).len] = 0;
}

/* ---- parsing ---- */

static status collect_fields(yyjson_val *root, yyjson_val *vals[F_COUNT], struct error *err) {
    if (!yyjson_is_obj(root)) {
        return error_at(err, REASON_EVENT_NOT_OBJECT, "", "event: expected a JSON object, found %s",
                        yyjson_get_type_desc(root));
    }
    yyjson_obj_iter it = yyjson_obj_iter_with(root);
    for (yyjson_val *key = yyjson_obj_iter_next(&it); key; key = yyjson_obj_iter_next(&it)) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        int f = field_of(name);
        if (f >= 0) {
            vals[f] = yyjson_obj_iter_get_val(key);
            continue;
        }
        char where[ERROR_WHERE_MAX];
        pointer_to(name, where, sizeof(where));
        if (field_is_reserved(name)) {
            return error_at(err, REASON_FIELD_RESERVED, where,
                            "event: \"%.*s\" is assigned by the ledger and may not be written",
                            STR_ARG(name));
        }
        str shown = cut(name, 64);
        return error_at(err, REASON_FIELD_UNKNOWN, where, "event: unknown field \"%.*s\"",
                        STR_ARG(shown));
    }
    for (int i = 0; i < F_COUNT; i++) {
        if (vals[i] || fields[i].optional) continue;
        return error_at(err, REASON_FIELD_MISSING, fields[i].where, "event: missing field \"%.*s\"",
                        STR_ARG(fields[i].name));
    }
    return ST_OK;
}

static status take_str(yyjson_val *val, enum field f, str *out, struct error *err) {
    if (!json_str(val, out)) {
        return error_at(err, REASON_FIELD_TYPE, fields[f].where,
                        "event: \"%.*s\" must be a string, found %s", STR_ARG(fields[f].name),
                        yyjson_get_type_desc(val));
    }
    return ST_OK;
}

static status take_int(yyjson_val *val, enum field f, int64_t *out, struct error *err) {
    if (!yyjson_is_raw(val) && !yyjson_is_num(val)) {
        return error_at(err, REASON_FIELD_TYPE, fields[f].where,
                        "event: \"%.*s\" must be a number, found %s", STR_ARG(fields[f].name),
                        yyjson_get_type_desc(val));
    }
    if (!json_int(val, out)) {
        return error_at(err, REASON_NUMBER_NOT_INTEGER, fields[f].where,
                        "event: \"%.*s\" must be a whole number of at most 64 bits",
                        STR_ARG(fields[f].name));
    }
    return ST_OK;
}

static status take_key(str text, uint8_t out[SHA256_LEN], struct error *err) {
    if (hex_decode(text, out, SHA256_LEN)) return ST_OK;
    return error_at(err, REASON_KEY_MALFORMED, "/idempotencyKey",
                    "event: \"idempotencyKey\" must be 64 lower-case hexadecimal characters");
}

static status take_id_and_time(yyjson_val *vals[F_COUNT], struct event *e, struct error *err) {
    str text;
    status st = take_str(vals[F_EVENT_ID], F_EVENT_ID, &text, err);
    if (st != ST_OK) return st;
    if (!uuid_parse(text, &e->event_id)) {
        return error_at(err, REASON_EVENT_ID_NOT_UUID_V4, "/eventId",
                        "event: \"eventId\" is not a UUID in canonical text form");
    }
    st = take_str(vals[F_EMITTED_AT], F_EMITTED_AT, &text, err);
    if (st != ST_OK) return st;
    if (!time_parse_utc(text, &e->emitted_ns, &e->emitted_digits)) {
        return error_at(
            err, REASON_TIME_NOT_RFC3339_UTC, "/emittedAt",
            "event: \"emittedAt\" must be RFC 3339 in UTC, such as 2026-02-16T08:00:00Z");
    }
    st = take_str(vals[F_KEY], F_KEY, &text, err);
    if (st != ST_OK) return st;
    return take_key(text, e->key, err);
}

static status take_payload(yyjson_val *val, struct arena *arena, str *out, struct error *err) {
    if (!val) return ST_OK;
    if (!yyjson_is_obj(val)) {
        return error_at(err, REASON_PAYLOAD_NOT_OBJECT, "/payload",
                        "event: \"payload\" must be an object, found %s",
                        yyjson_get_type_desc(val));
    }
    *out = json_text(val, arena);
    if (!out->ptr) return error_set(err, ST_RETRY, "event: out of memory for the payload");
    return ST_OK;
}

status event_parse(str json, struct arena *arena, struct event *out, struct error *err) {
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    status st = json_parse(json, limits, arena, &root, err);
    if (st != ST_OK) return st;
    yyjson_val *vals[F_COUNT] = {0};
    st = collect_fields(root, vals, err);
    if (st != ST_OK) return st;

    struct event e = {0};
    const struct {
        enum field f;
        str *to;
    } texts[] = {{F_EVENT_TYPE, &e.type_name},          {F_RUN_ID, &e.run_id},
                 {F_TENANT_ID, &e.tenant_id},           {F_PROJECT_ID, &e.project_id},
                 {F_ENVIRONMENT_ID, &e.environment_id}, {F_PLAN_ID, &e.plan_id},
                 {F_PLAN_VERSION, &e.plan_version},     {F_STEP_ID, &e.subject}};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!vals[texts[i].f]) continue; /* only stepId can be absent here */
        st = take_str(vals[texts[i].f], texts[i].f, texts[i].to, err);
        if (st != ST_OK) return st;
    }
    st = take_int(vals[F_ENGINE_ATTEMPT], F_ENGINE_ATTEMPT, &e.engine_attempt, err);
    if (st == ST_OK)
        st = take_int(vals[F_LOGICAL_ATTEMPT], F_LOGICAL_ATTEMPT, &e.logical_attempt, err);
    if (st == ST_OK) st = take_id_and_time(vals, &e, err);
    if (st == ST_OK) st = take_payload(vals[F_PAYLOAD], arena, &e.payload, err);
    if (st == ST_OK) st = event_validate(&e, err);
    if (st == ST_OK) *out = e;
    return st;
}

/* ---- validation ---- */

static status check_text(str value, enum field f, size_t bytes_max, bool delimiter_ok,
                         struct error *err) {
    const char *where = fields[f].where;
    str name = fields[f].name;
    if (value.len == 0) {
        return error_at(err, REASON_FIELD_EMPTY, where, "event: \"%.*s\" must not be empty",
                        STR_ARG(name));
    }
    if (value.len > bytes_max) {
        return error_at(err, REASON_FIELD_TOO_LONG, where,
                        "event: \"%.*s\" has %zu bytes, at most %zu are allowed", STR_ARG(name),
                        value.len, bytes_max);
    }
    size_t bad = 0;
    if (!str_utf8(value, &bad)) {
        return error_at(err, REASON_JSON_UTF8, where,
                        "event: \"%.*s\" is not valid UTF-8 at byte %zu", STR_ARG(name), bad);
    }
    if (str_has(value, 0)) {
        return error_at(err, REASON_JSON_NUL, where, "event: \"%.*s\" must not contain U+0000",
                        STR_ARG(name));
    }
    if (!delimiter_ok && str_has(value, '|')) {
        return error_at(
            err, REASON_DELIMITER_IN_FIELD, where,
            "event: \"%.*s\" must not contain '|', the delimiter of the idempotency key",
            STR_ARG(name));
    }
    return ST_OK;
}

static status check_texts(const struct event *e, struct error *err) {
    const struct {
        str value;
        size_t bytes_max;
        enum field f;
        bool delimiter_ok;
    } texts[] = {{e->type_name, EVENT_TYPE_BYTES_MAX, F_EVENT_TYPE, false},
                 {e->run_id, ID_BYTES_MAX, F_RUN_ID, false},
                 {e->tenant_id, ID_BYTES_MAX, F_TENANT_ID, true},
                 {e->project_id, ID_BYTES_MAX, F_PROJECT_ID, true},
                 {e->environment_id, ID_BYTES_MAX, F_ENVIRONMENT_ID, true},
                 {e->plan_id, ID_BYTES_MAX, F_PLAN_ID, false},
                 {e->plan_version, ID_BYTES_MAX, F_PLAN_VERSION, false}};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        status st =
            check_text(texts[i].value, texts[i].f, texts[i].bytes_max, texts[i].delimiter_ok, err);
        if (st != ST_OK) return st;
    }
    /* Unknown names must survive the trip through SCREAMING_SNAKE within CANON's width. */
    size_t snake_len = e->type_name.len;
    for (size_t i = 1; i < e->type_name.len; i++) {
        snake_len += e->type_name.ptr[i] >= 'A' && e->type_name.ptr[i] <= 'Z';
    }
    if (snake_len > EVENT_TYPE_SNAKE_MAX) {
        return error_at(err, REASON_FIELD_TOO_LONG, "/eventType",
                        "event: \"eventType\" has %zu characters in its SCREAMING_SNAKE form, at "
                        "most %d are allowed",
                        snake_len, EVENT_TYPE_SNAKE_MAX);
    }
    return ST_OK;
}

static status check_attempts(const struct event *e, struct error *err) {
    if (e->engine_attempt < 1 || e->engine_attempt > ATTEMPT_MAX) {
        return error_at(err, REASON_ATTEMPT_OUT_OF_RANGE, "/engineAttemptId",
                        "event: \"engineAttemptId\" counts from 1 to 2^53-1, found %lld",
                        (long long)e->engine_attempt);
    }
    if (e->logical_attempt < 1 || e->logical_attempt > ATTEMPT_MAX) {
        return error_at(err, REASON_ATTEMPT_OUT_OF_RANGE, "/logicalAttemptId",
                        "event: \"logicalAttemptId\" counts from 1 to 2^53-1, found %lld",
                        (long long)e->logical_attempt);
    }
    return ST_OK;
}

static status check_step(const struct event *e, struct error *err) {
    if (e->type != EVENT_UNKNOWN) {
        bool wants = event_type_info(e->type)->family == FAMILY_STEP;
        if (wants && !e->subject.ptr) {
            return error_at(err, REASON_STEP_ID_REQUIRED, "/stepId",
                            "event: %.*s is step-level and needs \"stepId\"",
                            STR_ARG(e->type_name));
        }
        if (!wants && e->subject.ptr) {
            return error_at(err, REASON_STEP_ID_FORBIDDEN, "/stepId",
                            "event: %.*s is run-level and must not have \"stepId\"",
                            STR_ARG(e->type_name));
        }
    }
    if (!e->subject.ptr) return ST_OK;
    status st = check_text(e->subject, F_STEP_ID, ID_BYTES_MAX, false, err);
    if (st != ST_OK) return st;
    if (e->type == EVENT_UNKNOWN && str_eq(e->subject, STR("RUN"))) {
        return error_at(err, REASON_STEP_ID_RESERVED, "/stepId",
                        "event: an unknown type must not use the step id \"RUN\": its key would be "
                        "that of a run-level event");
    }
    return ST_OK;
}

static status check_key(const struct event *e, struct error *err) {
    uint8_t want[SHA256_LEN];
    event_key_derive(e, want);
    if (memcmp(want, e->key, SHA256_LEN) == 0) return ST_OK;
    char hex[SHA256_HEX_LEN];
    hex_encode(want, SHA256_LEN, hex);
    return error_at(
        err, REASON_KEY_MISMATCH, "/idempotencyKey",
        "event: \"idempotencyKey\" is not the one derived from this event, which is %.*s",
        SHA256_HEX_LEN, hex);
}

status event_validate(struct event *e, struct error *err) {
    status st = check_texts(e, err);
    if (st != ST_OK) return st;
    e->type = event_type_of(e->type_name);
    if (event_type_info(e->type)->store_only) {
        return error_at(err, REASON_EVENT_TYPE_RESERVED, "/eventType",
                        "event: %.*s is written by the ledger itself", STR_ARG(e->type_name));
    }
    if (uuid_version(e->event_id) != 4) {
        return error_at(err, REASON_EVENT_ID_NOT_UUID_V4, "/eventId",
                        "event: \"eventId\" must be a UUID of version 4");
    }
    st = check_attempts(e, err);
    if (st == ST_OK) st = check_step(e, err);
    if (st == ST_OK) st = check_key(e, err);
    return st;
}

/* ---- the idempotency key ---- */

enum { PREIMAGE_MAX = 6 * (ID_BYTES_MAX + 1) + 32 };

enum event_family event_family_of(const struct event *e) {
    if (e->type == EVENT_UNKNOWN) return e->subject.ptr ? FAMILY_STEP : FAMILY_RUN;
    return event_type_info(e->type)->family;
}

static void fact_key_preimage(const struct event *e, struct buf *out) {
    buf_put_char(out, '|');
    buf_put_c(out, event_family_name(event_family_of(e)));
    buf_put_char(out, '|');
    buf_put(out, e->subject);
    buf_put_char(out, '|');
    buf_put(out, e->type_name);
    buf_put_char(out, '|');
    buf_put_int(out, e->logical_attempt);
}

void event_key_preimage(const struct event *e, struct buf *out) {
    if (event_type_is_fact(e->type)) {
        fact_key_preimage(e, out);
        return;
    }
    buf_put(out, e->run_id);
    buf_put_char(out, '|');
    buf_put(out, e->subject.ptr ? e->subject : STR("RUN"));
    buf_put_char(out, '|');
    buf_put_int(out, e->logical_attempt);
    buf_put_char(out, '|');
    buf_put(out, e->type_name);
    buf_put_char(out, '|');
    buf_put(out, e->plan_id);
    buf_put_char(out, '|');
    buf_put(out, e->plan_version);
}

void event_key_derive(const struct event *e, uint8_t out[SHA256_LEN]) {
    char mem[PREIMAGE_MAX];
    struct buf b;
    buf_init_fixed(&b, mem, sizeof(mem));
    event_key_preimage(e, &b);
    ASSERT(!b.full); /* ids were measured at the door */
    sha256_of(buf_str(&b), out);
}

/* ---- JSON ---- */

static bool of_a_step(const struct event *e) {
    enum event_family family = event_family_of(e);
    return e->subject.ptr && (family == FAMILY_STEP || family == FAMILY_TOOL);
}

static void write_type(const void *object, const char *name, struct buf *out) {
    json_put_text(out, name, ((const struct event *)object)->type_name);
}

static void read_type(yyjson_val *value, struct arena *arena, void *object) {
    struct event *e = object;
    UNUSED(arena);
    if (json_str(value, &e->type_name)) e->type = event_type_of(e->type_name);
}

static void write_emitted(const void *object, const char *name, struct buf *out) {
    const struct event *e = object;
    char text[TIME_TEXT_MAX];
    json_put_text(out, name, str_n(text, time_format_ns(e->emitted_ns, e->emitted_digits, text)));
}

static void read_emitted(yyjson_val *value, struct arena *arena, void *object) {
    struct event *e = object;
    str text = STR_NONE;
    UNUSED(arena);
    if (json_str(value, &text)) (void)time_parse_utc(text, &e->emitted_ns, &e->emitted_digits);
}

static void write_key(const void *object, const char *name, struct buf *out) {
    char text[SHA256_HEX_LEN];
    hex_encode(((const struct event *)object)->key, SHA256_LEN, text);
    json_put_text(out, name, str_n(text, sizeof(text)));
}

static void read_key(yyjson_val *value, struct arena *arena, void *object) {
    struct event *e = object;
    str text = STR_NONE;
    UNUSED(arena);
    if (json_str(value, &text)) (void)hex_decode(text, e->key, sizeof(e->key));
}

static void write_step(const void *object, const char *name, struct buf *out) {
    const struct event *e = object;
    if (of_a_step(e)) json_put_text(out, name, e->subject);
}

static void read_step(yyjson_val *value, struct arena *arena, void *object) {
    UNUSED(arena);
    (void)json_str(value, &((struct event *)object)->subject);
}

static void write_run_seq(const void *object, const char *name, struct buf *out) {
    const struct event_record *rec = object;
    if (rec->run_seq > 0) json_put_int(out, name, rec->run_seq);
}

/* A RunEventRecord has no other number; of a feed's record sequenceNumber comes after it. */
static void read_run_seq(yyjson_val *value, struct arena *arena, void *object) {
    struct event_record *rec = object;
    UNUSED(arena);
    if (json_int(value, &rec->run_seq)) rec->seq = rec->run_seq;
}

/* CANON has no TOOL aggregate: a tool call belongs to its step. */
static void write_aggregate_type(const void *object, const char *name, struct buf *out) {
    enum event_family family = event_family_of(&((const struct event_record *)object)->event);
    json_put_text(out, name,
                  str_c(event_family_name(family == FAMILY_TOOL ? FAMILY_STEP : family)));
}

static void write_aggregate(const void *object, const char *name, struct buf *out) {
    const struct event *e = &((const struct event_record *)object)->event;
    json_put_text(out, name, e->subject.ptr ? e->subject : e->run_id);
}

/* The signal or effect of a fact stands here; of other events it is the run or the step. */
static void read_aggregate(yyjson_val *value, struct arena *arena, void *object) {
    struct event *e = &((struct event_record *)object)->event;
    str id = STR_NONE;
    UNUSED(arena);
    if (!e->subject.ptr && event_type_is_fact(e->type) && json_str(value, &id) &&
        !str_eq(id, e->run_id))
        e->subject = id;
}

static void write_cause(const void *object, const char *name, struct buf *out) {
    const struct event_record *rec = object;
    if (rec->cause_seq > 0) json_put_uuid(out, name, rec->cause_id);
}

static void read_cause(yyjson_val *value, struct arena *arena, void *object) {
    struct event_record *rec = object;
    str text = STR_NONE;
    UNUSED(arena);
    if (json_str(value, &text) && uuid_parse(text, &rec->cause_id))
        rec->cause_seq = 1; /* that there is one */
}

#define OWN(write, read)                                                                           \
    &(const struct member_own) { write, read }
#define EVENT(name, kind, optional, field)                                                         \
    { name, kind, optional, offsetof(struct event_record, field), 0, NULL, NULL }
#define EVENT_OWN(name, optional, write, read)                                                     \
    { name, MEMBER_OWN, optional, 0, 0, NULL, OWN(write, read) }
const struct member_row event_members[] = {
    EVENT("eventId", MEMBER_UUID, false, event.event_id),
    EVENT_OWN("eventType", false, write_type, read_type),
    EVENT_OWN("emittedAt", false, write_emitted, read_emitted),
    EVENT("runId", MEMBER_TEXT, false, event.run_id),
    EVENT("tenantId", MEMBER_TEXT, false, event.tenant_id),
    EVENT("projectId", MEMBER_TEXT, false, event.project_id),
    EVENT("environmentId", MEMBER_TEXT, false, event.environment_id),
    EVENT("planId", MEMBER_TEXT, false, event.plan_id),
    EVENT("planVersion", MEMBER_TEXT, false, event.plan_version),
    EVENT("engineAttemptId", MEMBER_INT, false, event.engine_attempt),
    EVENT("logicalAttemptId", MEMBER_INT, false, event.logical_attempt),
    EVENT_OWN("idempotencyKey", false, write_key, read_key),
    EVENT_OWN("stepId", true, write_step, read_step),
    EVENT("payload", MEMBER_JSON, true, event.payload), /* the last of a RunEventWrite */
    EVENT_OWN("runSeq", true, write_run_seq, read_run_seq),
    EVENT("persistedAt", MEMBER_TIME, false, persisted_us), /* the last of a RunEventRecord */
    EVENT("sequenceNumber", MEMBER_INT, false, seq),
    EVENT_OWN("aggregateType", false, write_aggregate_type, NULL),
    EVENT_OWN("aggregateId", false, write_aggregate, read_aggregate),
    EVENT("correlationId", MEMBER_UUID, false, correlation_id),
    EVENT_OWN("causationId", true, write_cause, read_cause),
    EVENT("actor", MEMBER_TEXT, true, actor),
};
static_assert(COUNT_OF(event_members) == EVENT_FEED_MEMBERS, "the feed has every member");
static_assert(offsetof(struct event_record, event) == 0, "the rows of a write need only the event");

static void put_event(const void *event, size_t members, struct buf *out) {
    json_object_begin(out);
    members_write(event_members, members, event, out);
    json_object_end(out);
}

void event_write_json(const struct event *event, struct buf *out) {
    put_event(event, EVENT_WRITE_MEMBERS, out);
}

void event_record_json(const struct event_record *rec, struct buf *out) {
    put_event(rec, EVENT_RECORD_MEMBERS, out);
}

void event_feed_json(const struct event_record *rec, struct buf *out) {
    put_event(rec, EVENT_FEED_MEMBERS, out);
}

/* ---- UUIDs for text ids ---- */

uuid event_uuid_of(uuid space, str id) {
    uuid u;
    return uuid_parse(id, &u) ? u : uuid_v5(space, id);
}

uuid event_tenant_uuid(str tenant_id) {
    /* The namespace of Cairn's tenants; chosen once, at random. */
    static const uuid space = {{0x5c, 0x1d, 0x2c, 0x0e, 0x8a, 0x64, 0x4b, 0x1f, 0x9d, 0x37, 0x62,
                                0xf0, 0x11, 0xc4, 0x7e, 0xa9}};
    return event_uuid_of(space, tenant_id);
}
