#include "lib/convert.h"

#include <assert.h>

#include "base/limits.h"
#include "base/time.h"
#include "lib/producer.h"

/* ---- giving ---- */

static_assert((int)CAIRN_OK == (int)ST_OK && (int)CAIRN_INVALID == (int)ST_INVALID &&
                  (int)CAIRN_NOT_FOUND == (int)ST_NOT_FOUND &&
                  (int)CAIRN_CONFLICT == (int)ST_CONFLICT && (int)CAIRN_LIMIT == (int)ST_LIMIT &&
                  (int)CAIRN_RETRY == (int)ST_RETRY && (int)CAIRN_CORRUPT == (int)ST_CORRUPT,
              "the public codes are ours");
static_assert(sizeof(((cairn_error *)0)->where) == ERROR_WHERE_MAX &&
                  sizeof(((cairn_error *)0)->message) == ERROR_MSG_MAX,
              "an error fits");
static_assert(sizeof(((cairn_run *)0)->plan_id) > ID_BYTES_MAX, "an id fits");
static_assert(sizeof(((cairn_result *)0)->persisted_at) > TIME_TEXT_MAX, "a time fits");

/* Ends in NUL; `size` is enough for all that was validated at the door. */
static void give_str(str s, char *out, size_t size) {
    size_t n = s.len < size ? s.len : size - 1;
    if (n > 0) memcpy(out, s.ptr, n);
    out[n] = 0;
}

static void give_uuid(uuid id, char out[UUID_TEXT_LEN + 1]) {
    uuid_format(id, out);
    out[UUID_TEXT_LEN] = 0;
}

/* "" for 0. */
static void give_time(int64_t us, char out[TIME_TEXT_MAX + 1]) {
    out[us == 0 ? 0 : time_format_us(us, out)] = 0;
}

cairn_status give_error(const struct error *err, cairn_error *out) {
    if (out) {
        out->code = (cairn_status)err->code;
        out->reason = reason_name(err->reason);
        memcpy(out->where, err->where, sizeof(out->where));
        memcpy(out->message, err->msg, sizeof(out->message));
    }
    return (cairn_status)err->code;
}

cairn_status give_status(status st, const struct error *err, cairn_error *out) {
    return st == ST_OK ? CAIRN_OK : give_error(err, out);
}

void give_result(const struct append_result *res, cairn_result *out) {
    if (!out) return;
    if (res->code != ST_OK) {
        give_failure(res->err, out);
        return;
    }
    *out = (cairn_result){.code = CAIRN_OK,
                          .duplicate = res->duplicate,
                          .run_seq = res->run_seq,
                          .sequence_number = res->seq,
                          .line = out->line};
    out->error.reason = "";
    give_uuid(res->event_id, out->event_id);
    give_time(res->persisted_us, out->persisted_at);
}

void give_failure(const struct error *err, cairn_result *out) {
    if (!out) return;
    *out = (cairn_result){.code = (cairn_status)err->code, .line = out->line};
    give_error(err, &out->error);
}

void give_run(const struct run_info *run, cairn_run *out) {
    const struct run_head *h = &run->head;
    *out = (cairn_run){.status = run_status_name(h->status),
                       .is_final = run_is_final(h->status),
                       .inconsistent = h->inconsistent,
                       .run_seq = h->run_seq,
                       .completed_steps = h->total_steps,
                       .failed_steps = h->failed_steps,
                       .open_steps = h->open_steps,
                       .engine_attempt_id = h->engine_attempt};
    give_str(run->tenant_id, out->tenant_id, sizeof(out->tenant_id));
    give_str(run->project_id, out->project_id, sizeof(out->project_id));
    give_str(run->environment_id, out->environment_id, sizeof(out->environment_id));
    give_str(run->plan_id, out->plan_id, sizeof(out->plan_id));
    give_str(run->plan_version, out->plan_version, sizeof(out->plan_version));
    give_uuid(run->correlation_id, out->correlation_id);
    give_time(run->started_us, out->started_at);
    give_time(run->ended_us, out->completed_at);
    give_time(run->updated_us, out->updated_at);
}

void give_verification(const struct verify_report *report, cairn_verification *out) {
    *out = (cairn_verification){.damaged = report->damaged,
                                .events = report->events,
                                .runs = report->runs,
                                .sequence_number = report->seq};
    give_str(report->tenant_id, out->tenant_id, sizeof(out->tenant_id));
    give_str(report->run_id, out->run_id, sizeof(out->run_id));
    if (report->damaged) give_str(str_c(report->what), out->what, sizeof(out->what));
}

/* ---- taking ---- */

static status bad_field(struct error *err, enum reason reason, const char *where,
                        const char *what) {
    return error_at(err, reason, where, "event: %s", what);
}

static status take_uuid(const char *text, const char *where, struct arena *arena, const uuid **out,
                        struct error *err) {
    if (!text) return ST_OK;
    uuid *id = arena_try(arena, sizeof(*id));
    if (!id) return error_set(err, ST_RETRY, "out of memory");
    *out = id;
    if (uuid_parse(str_c(text), id)) return ST_OK;
    return bad_field(err, REASON_FIELD_NOT_UUID, where, "not a UUID in canonical text form");
}

status take_fields(const cairn_event *in, struct arena *arena, struct append_item *item,
                   struct error *err) {
    *item = (struct append_item){0};
    struct event *e = &item->event;
    const struct {
        const char *from;
        str *to;
    } texts[] = {{in->event_type, &e->type_name},
                 {in->run_id, &e->run_id},
                 {in->tenant_id, &e->tenant_id},
                 {in->project_id, &e->project_id},
                 {in->environment_id, &e->environment_id},
                 {in->plan_id, &e->plan_id},
                 {in->plan_version, &e->plan_version},
                 {in->step_id, &e->subject},
                 {in->payload, &e->payload}};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        *texts[i].to = str_c(texts[i].from);
    e->logical_attempt = in->logical_attempt_id;
    e->engine_attempt = in->engine_attempt_id;
    if (in->emitted_at &&
        !time_parse_utc(str_c(in->emitted_at), &e->emitted_ns, &e->emitted_digits)) {
        return bad_field(err, REASON_TIME_NOT_RFC3339_UTC, "/emittedAt",
                         "\"emittedAt\" must be RFC 3339 in UTC, such as 2026-02-16T08:00:00Z");
    }
    item->actor = str_c(in->actor);
    status st = take_uuid(in->causation_id, "/causationId", arena, &item->cause, err);
    if (st == ST_OK) {
        st = take_uuid(in->correlation_id, "/correlationId", arena, &item->correlation, err);
    }
    return st;
}

/* A key that the caller derived himself must be ours. */
static status check_key(const char *key, struct event *e, struct error *err) {
    if (!key) return ST_OK;
    if (!hex_decode(str_c(key), e->key, SHA256_LEN)) {
        return bad_field(err, REASON_KEY_MALFORMED, "/idempotencyKey",
                         "\"idempotencyKey\" must be 64 lower-case hexadecimal characters");
    }
    return event_validate(e, err);
}

status take_event(const cairn_event *in, struct arena *arena, struct append_item *item,
                  struct error *err) {
    status st = take_fields(in, arena, item, err);
    if (st == ST_OK && in->event_id && !uuid_parse(str_c(in->event_id), &item->event.event_id)) {
        st = bad_field(err, REASON_EVENT_ID_NOT_UUID_V4, "/eventId",
                       "\"eventId\" is not a UUID in canonical text form");
    }
    if (st == ST_OK) st = producer_prepare(&item->event, clock_wall_us(), arena, err);
    return st == ST_OK ? check_key(in->idempotency_key, &item->event, err) : st;
}

/* ---- showing records ---- */

status show_record(const struct event_record *rec, struct buf *json, struct shown_record *out,
                   struct error *err) {
    const struct event *e = &rec->event;
    *out = (struct shown_record){0};
    give_uuid(e->event_id, out->event_id);
    give_uuid(rec->correlation_id, out->correlation);
    give_uuid(rec->cause_id, out->cause);
    give_time(rec->persisted_us, out->persisted_at);
    hex_encode(e->key, SHA256_LEN, out->key);
    time_format_ns(e->emitted_ns, e->emitted_digits, out->emitted_at);
    buf_clear(json);
    event_record_json(rec, json);
    size_t length = json->len;
    buf_put_char(json, 0);
    if (json->full) return error_set(err, ST_RETRY, "out of memory for a record");
    /* Texts that were read end in NUL (arena_str). */
    out->record = (cairn_record){.event = {.event_type = e->type_name.ptr,
                                           .run_id = e->run_id.ptr,
                                           .tenant_id = e->tenant_id.ptr,
                                           .project_id = e->project_id.ptr,
                                           .environment_id = e->environment_id.ptr,
                                           .plan_id = e->plan_id.ptr,
                                           .plan_version = e->plan_version.ptr,
                                           .step_id = e->subject.ptr,
                                           .payload = e->payload.ptr,
                                           .logical_attempt_id = e->logical_attempt,
                                           .engine_attempt_id = e->engine_attempt,
                                           .event_id = out->event_id,
                                           .idempotency_key = out->key,
                                           .emitted_at = out->emitted_at,
                                           .actor = rec->actor.ptr,
                                           .causation_id = rec->cause_seq > 0 ? out->cause : NULL,
                                           .correlation_id = out->correlation},
                                 .run_seq = rec->run_seq,
                                 .sequence_number = rec->seq,
                                 .persisted_at = out->persisted_at,
                                 .json = json->ptr,
                                 .json_length = length};
    return ST_OK;
}
