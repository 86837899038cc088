/* adapters/temporal/history.c: pages of history events become activities, signals and an end. */
#include "adapters/temporal/history.h"

#include "adapters/temporal/wire.h"
#include "base/json.h"
#include "base/limits.h"

enum event_type { /* Temporal's numbers */
                  EVENT_STARTED = 1,
                  EVENT_COMPLETED = 2,
                  EVENT_FAILED = 3,
                  EVENT_TIMED_OUT = 4,
                  EVENT_TASK_STARTED = 6,
                  EVENT_ACTIVITY_SCHEDULED = 10,
                  EVENT_ACTIVITY_STARTED = 11,
                  EVENT_ACTIVITY_COMPLETED = 12,
                  EVENT_ACTIVITY_FAILED = 13,
                  EVENT_ACTIVITY_TIMED_OUT = 14,
                  EVENT_ACTIVITY_CANCEL_REQUESTED = 15,
                  EVENT_ACTIVITY_CANCELED = 16,
                  EVENT_CANCEL_REQUESTED = 20,
                  EVENT_CANCELED = 21,
                  EVENT_SIGNALED = 26,
                  EVENT_TERMINATED = 27,
                  EVENT_CONTINUED = 28,
};
enum { TIMEOUT_HEARTBEAT = 4 };
enum { LIST_FIRST = 16, SLOTS_FIRST = 64, CODE_BYTES_MAX = 100 };

void history_init(struct history *h, struct arena *arena) { *h = (struct history){.arena = arena}; }

/* ---- the lists ---- */

/* Room for one more; doubling keeps what is left behind in the arena below what is used. */
static void *list_room(struct arena *arena, void *list, uint32_t count, uint32_t *cap,
                       size_t size) {
    if (count < *cap) return list;
    uint32_t more = *cap > 0 ? *cap * 2 : LIST_FIRST;
    void *wide = arena_try(arena, more * size);
    if (!wide) return NULL;
    if (count > 0) memcpy(wide, list, count * size);
    *cap = more;
    return wide;
}

static void slot_put(struct history *h, uint32_t index) {
    uint64_t at = str_hash(h->activities[index].id, 0);
    for (;; at++) {
        uint32_t *slot = &h->slots[at & (h->slot_cap - 1)];
        if (*slot != 0 && !str_eq(h->activities[*slot - 1].id, h->activities[index].id)) continue;
        *slot = index + 1; /* a second one of the same id stands for both */
        return;
    }
}

static bool slots_room(struct history *h) {
    if ((h->activity_count + 1) * 2 <= h->slot_cap) return true;
    uint32_t cap = h->slot_cap > 0 ? h->slot_cap * 2 : SLOTS_FIRST;
    uint32_t *slots = arena_try(h->arena, cap * sizeof *slots);
    if (!slots) return false;
    h->slots = slots;
    h->slot_cap = cap;
    for (uint32_t i = 0; i < h->activity_count; i++)
        slot_put(h, i);
    return true;
}

const struct history_activity *history_find(const struct history *h, str id) {
    if (h->slot_cap == 0) return NULL;
    for (uint64_t at = str_hash(id, 0);; at++) {
        uint32_t slot = h->slots[at & (h->slot_cap - 1)];
        if (slot == 0) return NULL;
        if (str_eq(h->activities[slot - 1].id, id)) return &h->activities[slot - 1];
    }
}

/* Ends name their activity by the event that scheduled it; the list is in that order. */
static struct history_activity *by_scheduled_id(struct history *h, int64_t scheduled_id) {
    uint32_t low = 0;
    uint32_t high = h->activity_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (h->activities[mid].scheduled_id < scheduled_id)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == h->activity_count || h->activities[low].scheduled_id != scheduled_id) return NULL;
    return &h->activities[low];
}

/* ---- events ---- */

static bool add_activity(struct history *h, const Tp__Event *e) {
    struct history_activity *list = list_room(h->arena, h->activities, h->activity_count,
                                              &h->activity_cap, sizeof *h->activities);
    if (!list) return false;
    h->activities = list;
    if (!slots_room(h)) return false;
    list[h->activity_count] = (struct history_activity){
        .id = wire_str(e->activity_scheduled->activity_id), .scheduled_id = e->event_id};
    slot_put(h, h->activity_count);
    h->activity_count++;
    h->pending++;
    return true;
}

static struct history_activity *end_activity(struct history *h, int64_t scheduled_id,
                                             enum history_activity_state state) {
    struct history_activity *a = by_scheduled_id(h, scheduled_id);
    if (!a || a->state != ACTIVITY_PENDING) return NULL;
    a->state = state;
    h->pending--;
    return a;
}

static bool add_signal(struct history *h, const Tp__Event *e) {
    struct history_signal *list =
        list_room(h->arena, h->signals, h->signal_count, &h->signal_cap, sizeof *h->signals);
    if (!list) return false;
    h->signals = list;
    list[h->signal_count++] = (struct history_signal){.event_id = e->event_id,
                                                      .name = wire_str(e->signaled->signal_name),
                                                      .identity = wire_str(e->signaled->identity),
                                                      .input = e->signaled->input};
    return true;
}

static bool add_activity_event(struct history *h, const Tp__Event *e) {
    struct history_activity *a = NULL;
    switch (e->event_type) {
    case EVENT_ACTIVITY_SCHEDULED:
        return add_activity(h, e);
    case EVENT_ACTIVITY_STARTED:
        a = by_scheduled_id(h, e->activity_started->scheduled_event_id);
        if (a) a->attempt = e->activity_started->attempt;
        return true;
    case EVENT_ACTIVITY_COMPLETED:
        a = end_activity(h, e->activity_completed->scheduled_event_id, ACTIVITY_COMPLETED);
        if (a) a->result = e->activity_completed->result;
        return true;
    case EVENT_ACTIVITY_FAILED:
        a = end_activity(h, e->activity_failed->scheduled_event_id, ACTIVITY_FAILED);
        if (a) a->failure = e->activity_failed->failure;
        return true;
    case EVENT_ACTIVITY_TIMED_OUT:
        a = end_activity(h, e->activity_timed_out->scheduled_event_id, ACTIVITY_TIMED_OUT);
        if (a) a->failure = e->activity_timed_out->failure;
        return true;
    case EVENT_ACTIVITY_CANCEL_REQUESTED:
        a = by_scheduled_id(h, e->activity_cancel_requested->scheduled_event_id);
        if (a) a->cancel_requested = true;
        return true;
    default: /* EVENT_ACTIVITY_CANCELED */
        (void)end_activity(h, e->activity_canceled->scheduled_event_id, ACTIVITY_CANCELLED);
        return true;
    }
}

static void add_end(struct history *h, const Tp__Event *e) {
    switch (e->event_type) {
    case EVENT_COMPLETED:
        h->end = HISTORY_COMPLETED;
        return;
    case EVENT_FAILED:
        h->end = HISTORY_FAILED;
        return;
    case EVENT_TIMED_OUT:
        h->end = HISTORY_TIMED_OUT;
        return;
    case EVENT_CANCELED:
        h->end = HISTORY_CANCELLED;
        return;
    case EVENT_TERMINATED:
        h->end = HISTORY_TERMINATED;
        if (e->attributes_case == TP__EVENT__ATTRIBUTES_TERMINATED)
            h->end_reason = wire_str(e->terminated->reason);
        return;
    case EVENT_CONTINUED:
        h->end = HISTORY_CONTINUED;
        return;
    default:
        return;
    }
}

/* The attributes that an event of this type has; one with others is not what it says it is. */
static Tp__Event__AttributesCase attributes_of(int32_t type) {
    switch (type) {
    case EVENT_STARTED:
        return TP__EVENT__ATTRIBUTES_STARTED;
    case EVENT_TASK_STARTED:
        return TP__EVENT__ATTRIBUTES_TASK_STARTED;
    case EVENT_ACTIVITY_SCHEDULED:
        return TP__EVENT__ATTRIBUTES_ACTIVITY_SCHEDULED;
    case EVENT_ACTIVITY_STARTED:
        return TP__EVENT__ATTRIBUTES_ACTIVITY_STARTED;
    case EVENT_ACTIVITY_COMPLETED:
        return TP__EVENT__ATTRIBUTES_ACTIVITY_COMPLETED;
    case EVENT_ACTIVITY_FAILED:
        return TP__EVENT__ATTRIBUTES_ACTIVITY_FAILED;
    case EVENT_ACTIVITY_TIMED_OUT:
        return TP__EVENT__ATTRIBUTES_ACTIVITY_TIMED_OUT;
    case EVENT_ACTIVITY_CANCEL_REQUESTED:
        return TP__EVENT__ATTRIBUTES_ACTIVITY_CANCEL_REQUESTED;
    case EVENT_ACTIVITY_CANCELED:
        return TP__EVENT__ATTRIBUTES_ACTIVITY_CANCELED;
    case EVENT_CANCEL_REQUESTED:
        return TP__EVENT__ATTRIBUTES_CANCEL_REQUESTED;
    case EVENT_SIGNALED:
        return TP__EVENT__ATTRIBUTES_SIGNALED;
    default:
        return TP__EVENT__ATTRIBUTES__NOT_SET;
    }
}

static bool add_event(struct history *h, const Tp__Event *e) {
    Tp__Event__AttributesCase wanted = attributes_of(e->event_type);
    if (wanted == TP__EVENT__ATTRIBUTES__NOT_SET) {
        add_end(h, e);
        return true;
    }
    if (e->attributes_case != wanted) return true;
    switch (e->event_type) {
    case EVENT_STARTED:
        h->started = e->started;
        return true;
    case EVENT_TASK_STARTED:
        h->suggest_continue = e->task_started->suggest_continue_as_new;
        return true;
    case EVENT_CANCEL_REQUESTED:
        h->cancel_requested = true;
        h->cancel_identity = wire_str(e->cancel_requested->identity);
        h->cancel_cause = wire_str(e->cancel_requested->cause);
        return true;
    case EVENT_SIGNALED:
        return add_signal(h, e);
    default:
        return add_activity_event(h, e);
    }
}

status history_add(struct history *h, const Tp__History *page, struct error *err) {
    if (!page) return ST_OK;
    if (page->n_events > (size_t)(HISTORY_EVENTS_MAX - h->length))
        return error_set(err, ST_LIMIT, "a history of more than %d events", HISTORY_EVENTS_MAX);
    for (size_t i = 0; i < page->n_events; i++) {
        const Tp__Event *e = page->events[i];
        if (e->event_id <= h->last_id)
            return error_set(err, ST_CORRUPT, "event %lld of a history comes after event %lld",
                             (long long)e->event_id, (long long)h->last_id);
        h->last_id = e->event_id;
        h->length++;
        if (!add_event(h, e)) return error_set(err, ST_RETRY, "out of memory for a history");
    }
    return ST_OK;
}

str history_continues(const struct history *h) {
    if (!h->started || h->started->continued_run_id.len == 0) return STR_NONE;
    return wire_str(h->started->continued_run_id);
}

str history_queue(const struct history *h) {
    if (!h->started || !h->started->task_queue) return STR_NONE;
    return wire_str(h->started->task_queue->name);
}

/* ---- outcomes ---- */

static void fail_with(struct outcome *out, enum reason code, str message) {
    *out = outcome_failed(code, message);
}

/* A code that we may have written: capitals, digits and '_'. Others come from somebody else. */
static str code_of(str type, struct arena *arena) {
    str copy;
    bool good = type.len > 0 && type.len <= CODE_BYTES_MAX;
    for (size_t i = 0; good && i < type.len; i++) {
        char c = type.ptr[i];
        good = (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    }
    return good && arena_try_str(arena, type, &copy) ? copy : STR("PROVIDER_FAILURE");
}

static bool json_valid(str text, struct arena *arena, yyjson_val **out) {
    struct json_limits limits = {WIRE_PAYLOAD_MAX, JSON_DEPTH_MAX};
    struct error err;
    return json_parse(text, limits, arena, out, &err) == ST_OK;
}

/* Our workers answer {"output":...}; an operator who completes an activity by hand gives just the
 * value. */
static void completed(const struct history_activity *a, struct arena *arena, struct outcome *out) {
    *out = (struct outcome){.ok = true, .output = STR_NONE};
    if (!a->result || a->result->n_payloads == 0) return;
    str text = wire_json_of(a->result);
    yyjson_val *root = NULL;
    if (!text.ptr || !json_valid(text, arena, &root)) {
        fail_with(out, REASON_OUTPUT_NOT_JSON, STR("the result of the activity is not JSON"));
        return;
    }
    yyjson_val *output = json_member(root, "output");
    bool ours =
        yyjson_is_obj(root) && yyjson_obj_size(root) <= 1 && (output || yyjson_obj_size(root) == 0);
    if (ours && !output) return;
    out->output = ours ? json_text(output, arena) : text;
    if (!out->output.ptr)
        fail_with(out, REASON_PROVIDER_FAILURE, STR("out of memory for the result"));
}

static str message_of(const Tp__Failure *failure, str otherwise) {
    size_t bad = 0;
    if (!failure || failure->message.len == 0) return otherwise;
    str text = wire_str(failure->message);
    return str_utf8(text, &bad) ? text : str_n(text.ptr, bad);
}

static void failed(const struct history_activity *a, struct arena *arena, struct outcome *out) {
    const Tp__Failure *f = a->failure;
    fail_with(out, REASON_PROVIDER_FAILURE, message_of(f, STR("the activity failed")));
    if (!f || f->info_case != TP__FAILURE__INFO_APPLICATION) return;
    out->code = code_of(wire_str(f->application->type), arena);
    str detail = wire_json_of(f->application->details);
    yyjson_val *root = NULL;
    if (detail.ptr && json_valid(detail, arena, &root) && yyjson_is_obj(root)) out->detail = detail;
}

static void timed_out(const struct history_activity *a, struct outcome *out) {
    const Tp__Failure *f = a->failure;
    bool lost = f && f->info_case == TP__FAILURE__INFO_TIMEOUT &&
                f->timeout->timeout_type == TIMEOUT_HEARTBEAT;
    if (lost)
        fail_with(out, REASON_WORKER_LOST, STR("the worker of the attempt was lost"));
    else
        fail_with(out, REASON_TIMEOUT, message_of(f, STR("the activity timed out")));
}

void history_outcome(const struct history_activity *a, bool stopped, struct arena *arena,
                     struct outcome *out) {
    switch (a->state) {
    case ACTIVITY_COMPLETED:
        completed(a, arena, out);
        return;
    case ACTIVITY_FAILED:
        failed(a, arena, out);
        if (!reason_is(REASON_WORKER_SHUTDOWN, out->code) &&
            !reason_is(REASON_WORKER_ELSEWHERE, out->code))
            return;
        break; /* it would have been tried again, had it not been asked to end */
    case ACTIVITY_TIMED_OUT:
        timed_out(a, out);
        break;
    case ACTIVITY_PENDING: /* nobody asks for it */
    case ACTIVITY_CANCELLED:
        fail_with(out, REASON_CANCELLED, STR("the attempt was cancelled"));
        break;
    }
    if (stopped)
        out->code = STR("CANCELLED"); /* it ended after it was asked to, one way or another */
}
