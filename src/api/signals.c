/* api/signals.c: what an operator tells a run: signals, the verbs that are short for one, and
 * checkpoints. */
#include "api/impl.h"
#include "base/time.h"
#include "core/signal.h"

struct signal_call {
    struct signal signal;
    yyjson_val *value;         /* of a route that takes a reference, */
    struct engine_run_ref ref; /* and what it says; else runId is in the path */
    struct run_info info;
    struct host_signal *post;              /* to another process, which carries the run out */
    struct checkpoint_request *checkpoint; /* to be appended */
};

#define AT(member) FIELD(struct signal_call, signal.member)
#define NAME                                                                                       \
    { "signal", FIELD_TEXT, AT(name), true, 1, 0 }
#define ID                                                                                         \
    { "signalId", FIELD_TEXT, AT(signal_id), false, 1, 0 }
#define STEP(required)                                                                             \
    { "stepId", FIELD_TEXT, AT(step_id), required, 1, 0 }
#define PAYLOAD                                                                                    \
    { "payload", FIELD_JSON, AT(payload), false, 0, 0 }
#define REASON                                                                                     \
    { "reason", FIELD_TEXT, AT(reason), false, 0, AUDIT_REASON_MAX }
#define REF                                                                                        \
    { "engineRunRef", FIELD_VALUE, FIELD(struct signal_call, value), true, 0, 0 }
static const struct field any_fields[] = {NAME, ID, STEP(false), PAYLOAD, REASON};
static const struct field plain_fields[] = {ID, REASON};
static const struct field approval_fields[] = {ID, STEP(false), PAYLOAD, REASON};
static const struct field retry_fields[] = {STEP(true), ID, REASON};
static const struct field ref_cancel_fields[] = {REF, ID, REASON};
static const struct field ref_signal_fields[] = {REF, NAME, ID, STEP(false), PAYLOAD, REASON};

static void answer_signal(struct call *c) { call_answer(c, 202); }

/* ---- the run's node is another process: it is told through the ledger ---- */

static status prepare_post(struct call *c, struct ledger *reader, struct error *err) {
    struct signal_call *s = c->own;
    return host_prepare_signal(reader, s->info.run_id, &s->signal, call_actor(c), &c->rider,
                               &c->arena, &s->post, err);
}

static void posted(struct call *c) {
    struct signal_call *s = c->own;
    if (s->post->result.code == ST_OK)
        call_answer(c, 202);
    else
        call_fail(c, s->post->result.err);
}

static void post_elsewhere(struct call *c) {
    struct signal_call *s = c->own;
    if (s->post->request.count == 0) {
        call_ride(c, answer_signal);
        return;
    }
    c->change = (struct bridge_call){.write.request = s->post->request};
    call_append(c, posted);
}

static void on_signalled(void *context, status code, const struct error *err) {
    struct call *c = context;
    struct signal_call *s = c->own;
    bool elsewhere =
        code == ST_CONFLICT && err->reason == REASON_RUN_ELSEWHERE && c->api->options.other_writers;
    if (elsewhere) {
        call_read(c, prepare_post, post_elsewhere);
        return;
    }
    if (code != ST_OK) {
        call_fail(c, err);
        return;
    }
    hub_committed(c->api->hub, s->info.tenant_id, s->info.run_id);
    if (c->rode)
        call_answer(c, 202);
    else /* it had no effect, so nothing was committed: that somebody sent it is written down */
        call_ride(c, answer_signal);
}

static status find_run(struct call *c, struct ledger *reader, struct error *err) {
    struct signal_call *s = c->own;
    if (s->value) return call_find_ref(c, reader, &s->ref, &s->info, err);
    return call_find_run(c, reader, c->args[0], &s->info, err);
}

static void send_signal(struct call *c) {
    struct signal_call *s = c->own;
    if (!s->signal.signal_id.ptr) s->signal.signal_id = call_new_id(c);
    json_object_begin(&c->out);
    json_put_text(&c->out, "runId", s->info.run_id);
    json_put_text(&c->out, "signal", s->signal.name);
    json_put_text(&c->out, "signalId", s->signal.signal_id);
    json_object_end(&c->out);
    const struct append_rider *riders =
        call_riders(c, s->info.run_id, s->signal.reason, 202, false);
    struct engine_caller caller = {
        .actor = call_actor(c), .riders = riders, .done = on_signalled, .context = c};
    engine_signal(c->api->engine, s->info.run_id, &s->signal, &caller);
}

static void signal_with(struct call *c, const char *name, const struct field *fields,
                        size_t count) {
    struct error err = {0};
    struct signal_call *s = ARENA_NEW(&c->arena, struct signal_call);
    status st = query_none(c, &err);
    bool empty = name && c->request->body.len == 0 && !fields[0].required;
    c->own = s;
    if (name) s->signal.name = str_c(name);
    if (st == ST_OK && !empty) st = body_read(c, fields, count, s, NULL, &err);
    if (st == ST_OK && s->value) st = body_run_ref(s->value, &s->ref, &err);
    if (st == ST_OK) st = signal_validate(&s->signal, &err);
    if (st == ST_OK && s->signal.kind == SIGNAL_LAUNCH)
        st = error_at(&err, REASON_SIGNAL_INVALID, "/signal", "only the engine launches");
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, find_run, send_signal);
}

static void post_signal(struct call *c) { signal_with(c, NULL, any_fields, COUNT_OF(any_fields)); }
static void post_cancel(struct call *c) {
    signal_with(c, "CANCEL", plain_fields, COUNT_OF(plain_fields));
}
static void post_pause(struct call *c) {
    signal_with(c, "PAUSE", plain_fields, COUNT_OF(plain_fields));
}
static void post_resume(struct call *c) {
    signal_with(c, "RESUME", plain_fields, COUNT_OF(plain_fields));
}
static void post_approve(struct call *c) {
    signal_with(c, "APPROVE", approval_fields, COUNT_OF(approval_fields));
}
static void post_reject(struct call *c) {
    signal_with(c, "REJECT", approval_fields, COUNT_OF(approval_fields));
}
static void post_retry(struct call *c) {
    signal_with(c, "RETRY_STEP", retry_fields, COUNT_OF(retry_fields));
}

static void post_ref_signal(struct call *c) {
    signal_with(c, NULL, ref_signal_fields, COUNT_OF(ref_signal_fields));
}
static void post_ref_cancel(struct call *c) {
    signal_with(c, "CANCEL", ref_cancel_fields, COUNT_OF(ref_cancel_fields));
}

/* ---- a run that nobody looks at ---- */

static void wake(struct call *c) {
    struct signal_call *s = c->own;
    engine_look(c->api->engine, s->info.run_id);
    json_object_begin(&c->out);
    json_put_text(&c->out, "runId", s->info.run_id);
    json_object_end(&c->out);
    (void)call_riders(c, s->info.run_id, STR_NONE, 202, true);
    call_ride(c, answer_signal);
}

static void post_wake(struct call *c) {
    struct error err = {0};
    c->own = ARENA_NEW(&c->arena, struct signal_call);
    if (query_none(c, &err) != ST_OK)
        call_fail(c, &err);
    else if (c->request->body.len > 0)
        call_refuse(c, REASON_BODY_UNEXPECTED, "", "this request has no body");
    else
        call_read(c, find_run, wake);
}

/* ---- checkpoints ----
 *
 * Only the ledger knows the event's number and time, but its id is chosen here: the receipt holds
 * that, in the commit of the event itself, and a repeated request finds the event by it. */

static void put_checkpoint(struct call *c, const struct append_result *r) {
    buf_clear(&c->out);
    view_write(&view_checkpoint, r, &c->out);
}

static status prepare_checkpoint(struct call *c, struct ledger *reader, struct error *err) {
    struct signal_call *s = c->own;
    char text[UUID_TEXT_LEN];
    uuid id = uuid_v4();
    uuid_format(id, text);
    buf_clear(&c->out);
    buf_put(&c->out, str_n(text, sizeof(text)));
    const struct append_rider *riders = call_riders(c, s->info.run_id, STR_NONE, 201, false);
    return ledger_prepare_checkpoint(reader, s->info.run_id, id, riders, &c->arena, &s->checkpoint,
                                     err);
}

static status find_checkpoint(struct call *c, struct ledger *reader, struct error *err) {
    struct event_record rec;
    uuid id;
    status st = find_run(c, reader, err);
    if (st == ST_OK && !uuid_parse(c->before->body, &id))
        st = error_at(err, REASON_LEDGER_DAMAGED, "", "a receipt names no checkpoint");
    if (st == ST_OK) st = ledger_find_event(reader, id, &c->arena, &rec, err);
    if (st == ST_OK) {
        struct append_result r = {
            .event_id = id, .run_seq = rec.run_seq, .persisted_us = rec.persisted_us};
        put_checkpoint(c, &r);
    }
    return st == ST_NOT_FOUND && c->run_id.ptr ? ST_OK : st;
}

static void answer_checkpoint(struct call *c) {
    struct signal_call *s = c->own;
    hub_committed(c->api->hub, s->info.tenant_id, s->info.run_id);
    call_answer(c, 201);
}

static void checkpoint_appended(struct call *c) {
    struct signal_call *s = c->own;
    const struct append_result *r = &s->checkpoint->result;
    if (r->code != ST_OK) {
        call_fail(c, r->err);
        return;
    }
    put_checkpoint(c, r);
    answer_checkpoint(c);
}

static void append_checkpoint(struct call *c) {
    struct signal_call *s = c->own;
    c->change = (struct bridge_call){.write.request = s->checkpoint->request};
    call_append(c, checkpoint_appended);
}

static status find_and_prepare(struct call *c, struct ledger *reader, struct error *err) {
    status st = find_run(c, reader, err);
    return st == ST_OK ? prepare_checkpoint(c, reader, err) : st;
}

/* Another node made the same checkpoint at the same time, and its event was first. */
static void checkpoint_found(struct call *c) {
    if (c->out.len > 0)
        answer_checkpoint(c);
    else
        call_read(c, prepare_checkpoint, append_checkpoint);
}

static void post_checkpoint(struct call *c) {
    struct error err = {0};
    c->own = ARENA_NEW(&c->arena, struct signal_call);
    if (query_none(c, &err) != ST_OK) {
        call_fail(c, &err);
    } else if (c->request->body.len > 0) {
        call_refuse(c, REASON_BODY_UNEXPECTED, "", "this request has no body");
    } else if (c->before) {
        call_read(c, find_checkpoint, checkpoint_found);
    } else {
        call_read(c, find_and_prepare, append_checkpoint);
    }
}

#define CHANGE(verb, name, run)                                                                    \
    { "POST", "/v1/runs/{runId}/" verb, name, ROLE_OPERATOR, ROUTE_CHANGES, run }
static const struct route routes[] = {
    CHANGE("signals", "run.signal", post_signal),
    CHANGE("cancel", "run.cancel", post_cancel),
    CHANGE("pause", "run.pause", post_pause),
    CHANGE("resume", "run.resume", post_resume),
    CHANGE("approve", "run.approve", post_approve),
    CHANGE("reject", "run.reject", post_reject),
    CHANGE("retry", "run.retry", post_retry),
    CHANGE("wake", "run.wake", post_wake),
    {"POST", "/v1/run-refs/signals", "run.signal", ROLE_OPERATOR, ROUTE_CHANGES, post_ref_signal},
    {"POST", "/v1/run-refs/cancel", "run.cancel", ROLE_OPERATOR, ROUTE_CHANGES, post_ref_cancel},
    {"POST", "/v1/runs/{runId}/checkpoints", "run.checkpoint", ROLE_OPERATOR,
     ROUTE_CHANGES | ROUTE_AGAIN, post_checkpoint},
};
const struct route_table signal_routes = {routes, COUNT_OF(routes)};
