/* adapters/temporal/commands.c: what is wanted, compared with what the history has. */
#include "adapters/temporal/commands.h"

#include "adapters/temporal/wire.h"
#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"

enum command_type { /* Temporal's numbers */
                    COMMAND_SCHEDULE_ACTIVITY = 1,
                    COMMAND_CANCEL_ACTIVITY = 2,
                    COMMAND_COMPLETE = 4,
                    COMMAND_FAIL = 5,
                    COMMAND_CANCEL = 7,
                    COMMAND_CONTINUE_AS_NEW = 10,
};
enum {
    INITIATOR_WORKFLOW = 1,
    RETRY_FIRST_MS = 1000, /* of an attempt whose worker died */
    RETRY_MOST_MS = 10000,
    COMMAND_OVERHEAD = 1024, /* of a command besides its input: names, queue, timeouts */
    IDS_BYTES_MAX = 8192,    /* of an input besides body and reference: five ids, escaped */
};

/* ---- inputs ---- */

str activity_id(str step_id, int64_t number, struct arena *arena) {
    size_t size = step_id.len + 24;
    char *text = arena_try(arena, size);
    if (!text) return STR_NONE;
    int n = snprintf(text, size, "%.*s#%lld", STR_ARG(step_id), (long long)number);
    return str_n(text, (size_t)n);
}

/* An input has every member, also of a run that says nothing of it. */
static void put_text(struct buf *b, const char *name, str value) {
    json_put_text(b, name, value.ptr ? value : STR(""));
}

/* Moves a text into the arena and ends the buffer. */
static str kept(struct buf *b, struct arena *arena) {
    str out = STR_NONE;
    if (b->full || !arena_try_str(arena, buf_str(b), &out)) out = STR_NONE;
    buf_release(b);
    return out;
}

str execution_input_json(const struct execution_input *input, struct arena *arena) {
    struct buf b;
    buf_init(&b, WIRE_PAYLOAD_MAX);
    json_object_begin(&b);
    json_put_int(&b, "cairn", 1);
    put_text(&b, "runId", input->run_id);
    put_text(&b, "tenantId", input->tenant_id);
    put_text(&b, "projectId", input->project_id);
    put_text(&b, "environmentId", input->environment_id);
    json_put_json(&b, "planRef", input->plan_ref);
    if (!uuid_eq(input->correlation, (uuid){0}))
        json_put_uuid(&b, "correlationId", input->correlation);
    if (input->continued > 0) json_put_int(&b, "continued", input->continued);
    json_object_end(&b);
    return kept(&b, arena);
}

status execution_input_parse(str json, struct arena *arena, struct execution_input *out,
                             struct error *err) {
    struct json_limits limits = {WIRE_PAYLOAD_MAX, JSON_DEPTH_MAX};
    yyjson_val *root = NULL;
    if (!json.ptr) return error_set(err, ST_INVALID, "the input of the execution is not JSON");
    status st = json_parse(json, limits, arena, &root, err);
    if (st != ST_OK) return error_wrap(err, "the input of the execution");
    struct execution_input in = {.continued = 0};
    if (!json_str(json_member(root, "runId"), &in.run_id) ||
        !json_str(json_member(root, "tenantId"), &in.tenant_id) ||
        !json_str(json_member(root, "projectId"), &in.project_id) ||
        !json_str(json_member(root, "environmentId"), &in.environment_id) ||
        !json_member(root, "planRef"))
        return error_set(err, ST_INVALID, "the input of the execution lacks a member");
    yyjson_val *continued = json_member(root, "continued");
    if (continued && (!json_int(continued, &in.continued) || in.continued < 0))
        return error_set(err, ST_INVALID, "the input of the execution: \"continued\" is no count");
    str correlation = STR_NONE;
    if (json_str(json_member(root, "correlationId"), &correlation) &&
        !uuid_parse(correlation, &in.correlation))
        return error_set(err, ST_INVALID, "the input of the execution: a bad \"correlationId\"");
    in.plan_ref = json_text(json_member(root, "planRef"), arena);
    if (!in.plan_ref.ptr) return error_set(err, ST_RETRY, "out of memory");
    *out = in;
    return ST_OK;
}

bool execution_is_of(const struct history *h, uuid correlation, struct arena *scratch) {
    static const uuid none = {0};
    struct execution_input input;
    struct error ignored;
    if (!h->started || uuid_eq(correlation, none) ||
        execution_input_parse(wire_json_of(h->started->input), scratch, &input, &ignored) != ST_OK)
        return true;
    return uuid_eq(input.correlation, none) || uuid_eq(input.correlation, correlation);
}

str activity_input_json(const struct attempt *a, struct arena *arena) {
    struct buf b;
    buf_init(&b, WIRE_PAYLOAD_MAX);
    json_object_begin(&b);
    put_text(&b, "runId", a->run_id);
    put_text(&b, "tenantId", a->tenant_id);
    put_text(&b, "projectId", a->project_id);
    put_text(&b, "environmentId", a->environment_id);
    json_put_uuid(&b, "correlationId", a->correlation);
    json_put_json(&b, "planRef", a->plan_ref);
    put_text(&b, "stepId", a->step->id);
    json_put_int(&b, "attempt", a->number);
    json_put_int(&b, "timeoutMs", a->timeout_ms);
    json_put_json(&b, "body", a->body);
    json_object_end(&b);
    return kept(&b, arena);
}

/* ---- commands ---- */

static Tp__Command *command_new(int32_t type, Tp__Command__AttributesCase has,
                                const ProtobufCMessageDescriptor *attributes, struct arena *arena) {
    Tp__Command *c = wire_new(&tp__command__descriptor, arena);
    void *a = wire_new(attributes, arena);
    if (!c || !a) return NULL;
    c->command_type = type;
    c->attributes_case = has;
    c->schedule_activity = a; /* the union's members are all pointers */
    return c;
}

static bool put_command(struct commands *out, Tp__Command *c) {
    if (c) out->items[out->count++] = c;
    return c != NULL;
}

static Tp__RetryPolicy *retry_policy(struct arena *arena) {
    Tp__RetryPolicy *p = wire_new(&tp__retry_policy__descriptor, arena);
    if (!p) return NULL;
    p->initial_interval = wire_ms(RETRY_FIRST_MS, arena);
    p->backoff_coefficient = 2;
    p->maximum_interval = wire_ms(RETRY_MOST_MS, arena);
    return p->initial_interval && p->maximum_interval ? p : NULL;
}

static Tp__Command *schedule(const struct commands_want *want, const struct wanted_attempt *w,
                             str input, struct arena *arena) {
    Tp__Command *c =
        command_new(COMMAND_SCHEDULE_ACTIVITY, TP__COMMAND__ATTRIBUTES_SCHEDULE_ACTIVITY,
                    &tp__schedule_activity__descriptor, arena);
    if (!c) return NULL;
    int64_t timeout_ms = w->attempt->timeout_ms;
    Tp__ScheduleActivity *a = c->schedule_activity;
    a->activity_id = wire_bytes(w->id);
    a->activity_type = wire_type(ACTIVITY_TYPE, arena);
    a->task_queue = wire_queue(want->activity_queue, arena);
    a->input = wire_json_list(input, arena);
    a->start_to_close_timeout =
        wire_ms(timeout_ms > 0 ? timeout_ms + ACTIVITY_GRACE_MS : ACTIVITY_LONGEST_MS, arena);
    a->heartbeat_timeout = wire_ms(want->heartbeat_ms, arena);
    a->retry_policy = retry_policy(arena);
    bool whole = a->activity_type && a->task_queue && a->input && a->start_to_close_timeout &&
                 a->heartbeat_timeout && a->retry_policy;
    return whole ? c : NULL;
}

static Tp__Command *cancel_activity(int64_t scheduled_id, struct arena *arena) {
    Tp__Command *c = command_new(COMMAND_CANCEL_ACTIVITY, TP__COMMAND__ATTRIBUTES_CANCEL_ACTIVITY,
                                 &tp__cancel_activity__descriptor, arena);
    if (c) c->cancel_activity->scheduled_event_id = scheduled_id;
    return c;
}

static Tp__Command *close_execution(const struct commands_want *want, struct arena *arena) {
    Tp__Command *c = NULL;
    if (want->close == RUN_COMPLETED) {
        c = command_new(COMMAND_COMPLETE, TP__COMMAND__ATTRIBUTES_COMPLETE,
                        &tp__complete_execution__descriptor, arena);
        if (!c) return NULL;
        c->complete->result = wire_json_list(STR("{\"status\":\"COMPLETED\"}"), arena);
        return c->complete->result ? c : NULL;
    }
    if (want->close == RUN_FAILED) {
        c = command_new(COMMAND_FAIL, TP__COMMAND__ATTRIBUTES_FAIL, &tp__fail_execution__descriptor,
                        arena);
        if (!c) return NULL;
        c->fail->failure = wire_failure(
            want->code.len > 0 ? want->code : STR("RUN_FAILED"),
            want->message.len > 0 ? want->message : STR("the run failed"), STR_NONE, false, arena);
        return c->fail->failure ? c : NULL;
    }
    return command_new(COMMAND_CANCEL, TP__COMMAND__ATTRIBUTES_CANCEL,
                       &tp__cancel_execution__descriptor, arena);
}

static status continue_as_new(const struct commands_want *want, struct arena *arena,
                              struct commands *out, struct error *err) {
    const struct history *h = want->history;
    struct execution_input input = {0};
    status st = execution_input_parse(wire_json_of(h->started->input), arena, &input, err);
    if (st != ST_OK) return st;
    input.continued++;
    str json = execution_input_json(&input, arena);
    Tp__Command *c = command_new(COMMAND_CONTINUE_AS_NEW, TP__COMMAND__ATTRIBUTES_CONTINUE_AS_NEW,
                                 &tp__continue_as_new__descriptor, arena);
    if (!json.ptr || !c) return error_set(err, ST_RETRY, "out of memory");
    Tp__ContinueAsNew *a = c->continue_as_new;
    a->workflow_type = wire_type(WORKFLOW_TYPE, arena);
    a->task_queue = wire_queue(want->workflow_queue, arena);
    a->input = wire_json_list(json, arena);
    a->workflow_task_timeout = wire_ms(WORKFLOW_TASK_TIMEOUT_MS, arena);
    a->initiator = INITIATOR_WORKFLOW;
    a->memo = h->started->memo;
    if (!a->workflow_type || !a->task_queue || !a->input || !a->workflow_task_timeout)
        return error_set(err, ST_RETRY, "out of memory");
    (void)put_command(out, c);
    out->continues = true;
    return ST_OK;
}

/* What becomes of one wanted attempt that the history knows. */
static bool known(const struct history_activity *a, struct wanted_attempt *w, struct arena *arena,
                  struct commands *out) {
    w->due = WANTED_WAITS;
    if (a->state != ACTIVITY_PENDING) {
        w->due = WANTED_ENDED;
        return true;
    }
    if (!w->stop || a->cancel_requested) return true;
    if (out->count == COMMANDS_MAX) {
        out->more = true;
        return true;
    }
    w->due = WANTED_CANCELLED;
    return put_command(out, cancel_activity(a->scheduled_id, arena));
}

static bool unknown(const struct commands_want *want, struct wanted_attempt *w, bool draining,
                    struct arena *arena, size_t *bytes, struct commands *out) {
    w->due = w->stop ? WANTED_NEVER : WANTED_WAITS;
    if (w->stop || draining) return true;
    if (out->count == COMMANDS_MAX || out->more) {
        out->more = true;
        return true;
    }
    if (w->attempt->body.len + w->attempt->plan_ref.len > WIRE_PAYLOAD_MAX - IDS_BYTES_MAX) {
        w->due = WANTED_TOO_LARGE;
        return true;
    }
    struct arena_mark mark = arena_mark(arena);
    str input = activity_input_json(w->attempt, arena);
    if (!input.ptr) return false;
    if (out->count > 0 && *bytes + input.len + COMMAND_OVERHEAD > WIRE_REQUEST_MAX) {
        arena_rewind(arena, mark);
        out->more = true;
        return true;
    }
    *bytes += input.len + COMMAND_OVERHEAD;
    w->due = WANTED_SCHEDULED;
    return put_command(out, schedule(want, w, input, arena));
}

static bool is_closing(enum run_status close) {
    return close == RUN_COMPLETED || close == RUN_FAILED || close == RUN_CANCELLED;
}

status commands_make(const struct commands_want *want, struct arena *arena, struct commands *out,
                     struct error *err) {
    const struct history *h = want->history;
    size_t most = want->attempt_count < COMMANDS_MAX ? want->attempt_count : COMMANDS_MAX;
    *out = (struct commands){.items = wire_list(most + 1, arena)};
    if (!out->items) return error_set(err, ST_RETRY, "out of memory");
    if (is_closing(want->close)) {
        out->closes = true;
        if (!put_command(out, close_execution(want, arena)))
            return error_set(err, ST_RETRY, "out of memory");
        return ST_OK;
    }
    bool draining = h->suggest_continue && h->started;
    bool ended = false;
    size_t bytes = 0;
    for (size_t i = 0; i < want->attempt_count; i++) {
        struct wanted_attempt *w = &want->attempts[i];
        const struct history_activity *a = history_find(h, w->id);
        bool good = a ? known(a, w, arena, out) : unknown(want, w, draining, arena, &bytes, out);
        if (!good) return error_set(err, ST_RETRY, "out of memory");
        ended = ended || w->due == WANTED_ENDED; /* not told yet, and only this history knows it */
    }
    if (draining && h->pending == 0 && want->may_continue && !ended)
        return continue_as_new(want, arena, out, err);
    return ST_OK;
}
