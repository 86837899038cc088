/* core/effect.c: the states of an effect, its reducer, and when it is tried again. */
#include "core/effect.h"

#include "base/hash.h"
#include "base/limits.h"
#include "base/time.h"

static const char *const status_names[OUTBOX_STATUS_COUNT] = {[OUTBOX_NONE] = "NONE",
                                                              [OUTBOX_PENDING] = "PENDING",
                                                              [OUTBOX_PROCESSING] = "PROCESSING",
                                                              [OUTBOX_COMPLETED] = "COMPLETED",
                                                              [OUTBOX_FAILED] = "FAILED",
                                                              [OUTBOX_DEAD_LETTER] = "DEAD_LETTER"};

const char *outbox_status_name(enum outbox_status s) { return status_names[s]; }

enum outbox_status outbox_status_named(str name) {
    for (int i = OUTBOX_PENDING; i < OUTBOX_STATUS_COUNT; i++) {
        if (str_eq(name, str_c(status_names[i]))) return (enum outbox_status)i;
    }
    return OUTBOX_NONE;
}

/* ---- the reducer ---- */

static status moved(const struct effect *e, const struct event_record *rec, struct error *err) {
    return error_at(err, REASON_EFFECT_MOVED, "",
                    "%.*s of execution %lld, but the effect is %s in execution %lld",
                    STR_ARG(rec->event.type_name), (long long)rec->event.logical_attempt,
                    outbox_status_name(e->status), (long long)e->executions);
}

static status lacks(const struct event_record *rec, const char *member, struct error *err) {
    return error_at(err, REASON_EFFECT_DATA_INVALID, "/payload", "%.*s needs %s in its data",
                    STR_ARG(rec->event.type_name), member);
}

static bool time_member(yyjson_val *data, const char *name, int64_t *us) {
    str text = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    if (!json_str(json_member(data, name), &text) || !time_parse_utc(text, &ns, &digits))
        return false;
    *us = ns / 1000;
    return true;
}

static bool text_member(yyjson_val *data, const char *name, size_t max, str *out) {
    return json_str(json_member(data, name), out) && out->len > 0 && out->len <= max;
}

/* A number from 0 to `max`. */
static bool count_member(yyjson_val *data, const char *name, int64_t max, int64_t *out) {
    return json_int(json_member(data, name), out) && *out >= 0 && *out <= max;
}

static status requested(struct effect *e, const struct event_record *rec, yyjson_val *data,
                        struct arena *arena, struct error *err) {
    str type = STR_NONE;
    str key = STR_NONE;
    struct effect made = {.status = OUTBOX_PENDING,
                          .due_us = rec->persisted_us,
                          .created_us = rec->persisted_us,
                          .requested_seq = rec->seq};
    if (e->status != OUTBOX_NONE || rec->event.logical_attempt != 1) return moved(e, rec, err);
    if (!uuid_parse(rec->event.subject, &made.id)) return lacks(rec, "the effect's UUID", err);
    if (!text_member(data, "effect_type", EFFECT_TYPE_MAX, &type))
        return lacks(rec, "effect_type", err);
    if (!text_member(data, "idempotency_key", EFFECT_KEY_MAX, &key))
        return lacks(rec, "idempotency_key", err);
    if (!count_member(data, "max_retries", EFFECT_RETRIES_MAX, &made.max_retries))
        return lacks(rec, "max_retries", err);
    if (!count_member(data, "base_delay_ms", EFFECT_DELAY_MAX_MS, &made.base_ms))
        return lacks(rec, "base_delay_ms", err);
    if (!arena_try_str(arena, type, &made.type) || !arena_try_str(arena, key, &made.key))
        return error_set(err, ST_RETRY, "effect: out of memory");
    *e = made;
    return ST_OK;
}

static status executing(struct effect *e, const struct event_record *rec, yyjson_val *data,
                        struct arena *arena, struct error *err) {
    UNUSED(arena);
    int64_t until = 0;
    if ((e->status != OUTBOX_PENDING && e->status != OUTBOX_FAILED) ||
        rec->event.logical_attempt != e->executions + 1 || rec->persisted_us < e->due_us)
        return moved(e, rec, err);
    if (!time_member(data, "lease_until", &until)) return lacks(rec, "lease_until", err);
    e->status = OUTBOX_PROCESSING;
    e->executions++;
    e->due_us = until;
    return ST_OK;
}

/* Whether the event is about the execution that is under way. */
static bool is_under_way(const struct effect *e, const struct event_record *rec) {
    return e->status == OUTBOX_PROCESSING && rec->event.logical_attempt == e->executions;
}

static status failed(struct effect *e, const struct event_record *rec, yyjson_val *data,
                     struct arena *arena, struct error *err) {
    UNUSED(arena);
    int64_t next = 0;
    int64_t count = 0;
    if (!is_under_way(e, rec)) return moved(e, rec, err);
    if (!count_member(data, "retry_count", EFFECT_RETRIES_MAX + 1, &count))
        return lacks(rec, "retry_count", err);
    if (!yyjson_is_null(json_member(data, "next_retry_at")) &&
        !time_member(data, "next_retry_at", &next))
        return lacks(rec, "next_retry_at", err);
    e->status = OUTBOX_FAILED;
    e->retry_count = count;
    e->due_us = next;
    e->error_seq = rec->seq;
    return ST_OK;
}

/* After a failure it only says when; of a dead letter, that an operator put it back; of a claim,
 * that the worker gives it back untouched. */
static status retrying(struct effect *e, const struct event_record *rec, yyjson_val *data,
                       struct arena *arena, struct error *err) {
    UNUSED(arena);
    bool here = rec->event.logical_attempt == e->executions;
    bool released = e->status == OUTBOX_PROCESSING && yyjson_is_true(json_member(data, "released"));
    if (here && e->status == OUTBOX_FAILED && e->due_us > 0) return ST_OK;
    if (!here || (e->status != OUTBOX_DEAD_LETTER && !released)) return moved(e, rec, err);
    if (!released) e->retry_count = e->error_seq = 0;
    e->status = OUTBOX_PENDING;
    e->due_us = rec->persisted_us;
    return ST_OK;
}

static status completed(struct effect *e, const struct event_record *rec, yyjson_val *data,
                        struct arena *arena, struct error *err) {
    UNUSED(data);
    UNUSED(arena);
    if (!is_under_way(e, rec)) return moved(e, rec, err);
    e->status = OUTBOX_COMPLETED;
    e->processed_us = rec->persisted_us;
    e->result_seq = rec->seq;
    e->due_us = 0;
    return ST_OK;
}

static status dead_lettered(struct effect *e, const struct event_record *rec, yyjson_val *data,
                            struct arena *arena, struct error *err) {
    UNUSED(data);
    UNUSED(arena);
    if (e->status != OUTBOX_FAILED || rec->event.logical_attempt != e->executions)
        return moved(e, rec, err);
    e->status = OUTBOX_DEAD_LETTER;
    e->due_us = 0;
    return ST_OK;
}

typedef status (*effect_reducer)(struct effect *e, const struct event_record *rec, yyjson_val *data,
                                 struct arena *arena, struct error *err);
static const effect_reducer reducers[EVENT_TYPE_COUNT] = {
    [EVENT_EFFECT_REQUESTED] = requested, [EVENT_EFFECT_EXECUTING] = executing,
    [EVENT_EFFECT_COMPLETED] = completed, [EVENT_EFFECT_FAILED] = failed,
    [EVENT_EFFECT_RETRYING] = retrying,   [EVENT_EFFECT_DEAD_LETTERED] = dead_lettered,
};

status effect_apply(struct effect *e, const struct event_record *rec, struct arena *arena,
                    struct error *err) {
    struct arena scratch;
    yyjson_val *data = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    ASSERT(rec->event.type < EVENT_TYPE_COUNT && reducers[rec->event.type]);
    arena_init(&scratch, 4096, SIZE_MAX);
    status st = json_parse(rec->event.payload, limits, &scratch, &data, err);
    if (st == ST_OK) st = reducers[rec->event.type](e, rec, data, arena, err);
    if (st == ST_OK) e->last_seq = rec->seq;
    arena_release(&scratch);
    return st;
}

/* ---- how often, and when again ---- */

struct effect_retry effect_retry_of(str type, const struct effect_retry *own) {
    static const struct effect_retry canon[] = {{STR_LIT("SEND_EMAIL"), 3, 2000},
                                                {STR_LIT("API_CALL"), 5, 1000},
                                                {STR_LIT("SOR_UPDATE"), 1, 5000}};
    for (; own && own->type.ptr; own++) {
        if (str_eq(own->type, type)) return *own;
    }
    for (size_t i = 0; i < COUNT_OF(canon); i++) {
        if (str_eq(canon[i].type, type)) return canon[i];
    }
    return (struct effect_retry){type, EFFECT_RETRIES, EFFECT_BASE_MS};
}

int64_t effect_backoff_ms(int64_t retry_count, int64_t base_ms) {
    int64_t delay = base_ms;
    for (int64_t i = 0; i < retry_count && delay < EFFECT_DELAY_MAX_MS; i++)
        delay *= 2;
    return delay < EFFECT_DELAY_MAX_MS ? delay : EFFECT_DELAY_MAX_MS;
}

/* ---- its key ---- */

static status own_key(yyjson_val *given, struct buf *out, struct error *err) {
    str key = STR_NONE;
    bool ok = json_str(given, &key) && key.len > 0 && key.len <= EFFECT_KEY_MAX;
    for (size_t i = 0; ok && i < key.len; i++)
        ok = (unsigned char)key.ptr[i] >= 0x20 && (unsigned char)key.ptr[i] < 0x7f;
    if (!ok || key.ptr[0] == ' ' || key.ptr[key.len - 1] == ' ')
        return error_at(err, REASON_EFFECT_KEY_INVALID, "/payload/idempotency_key",
                        "expected 1 to %d printable ASCII characters without blanks at the ends",
                        EFFECT_KEY_MAX);
    if (str_starts(key, STR(EFFECT_KEY_ALERT)))
        return error_at(err, REASON_EFFECT_KEY_INVALID, "/payload/idempotency_key",
                        "keys that begin with \"" EFFECT_KEY_ALERT "\" are those of alerts");
    buf_put(out, key);
    return ST_OK;
}

status effect_key(uuid effect_id, str type, yyjson_val *payload, struct arena *scratch,
                  struct buf *out, struct error *err) {
    yyjson_val *given = json_member(payload, "idempotency_key");
    if (given) return own_key(given, out, err);
    struct buf canonical;
    char id[UUID_TEXT_LEN];
    uint8_t hash[SHA256_LEN];
    buf_init(&canonical, (size_t)6 * EVENT_BYTES_MAX);
    bool ok = json_write_sorted(payload, "idempotency_key", scratch, &canonical);
    sha256_of(buf_str(&canonical), hash);
    buf_release(&canonical);
    if (!ok) return error_set(err, ST_RETRY, "effect: out of memory");
    uuid_format(effect_id, id);
    buf_put_c(out, "EFFECT:");
    buf_put(out, str_n(id, sizeof(id)));
    buf_put_char(out, ':');
    buf_put(out, type);
    buf_put_char(out, ':');
    buf_put_hex(out, hash, sizeof(hash));
    return ST_OK;
}
