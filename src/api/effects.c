/* api/effects.c: effects: asked for, looked at, put back when they are dead.
 *
 * Who delivers them is no business of the API: a request and a requeue are facts of the run. They
 * are made on a reader thread (outbox/change.h), from what stands there, and go to the ledger
 * thread as members of the group that is being committed. The outbox is told of them. */
#include "api/impl.h"
#include "base/time.h"
#include "outbox/change.h"

enum { LIST_DEFAULT = 50, LIST_MAX = 1000, LIST_BATCH = 32 };
enum { REQUEUE_DEFAULT = 100, REQUEUE_MAX = 1000, REQUEUE_BATCH = 32 };
#define LIST_BYTES_MAX ((size_t)4 * 1024 * 1024)  /* a page with so much ends */
#define BATCH_ARENA_MAX ((size_t)256 * 1024 * 1024) /* the largest effects that there can be */

struct put_back { /* one of many, on its way */
    struct bridge_call call;
    struct call *owner;
    struct outbox_change change;
    struct audit_entry audit;
    struct append_rider rider;
};

struct effect_call {
    str type, payload, step, reason, tenant, run, status, cursor;
    int64_t max_retries, base_ms, limit;
    uuid id;
    bool existing;
    struct run_info run_info;
    struct effect_info info;
    struct outbox_change change;
    struct receipt receipt_again; /* of a request that finds its effect */
    struct append_rider rider_again;
    struct outbox_filter filter;
    /* Putting many back. */
    str actor;
    struct arena batch_arena;
    struct put_back *batch;
    size_t batch_count, unanswered;
    int64_t requeued;
    bool more;
    status failed; /* of the batch: the first, */
    struct error why;
};
#define AT(member) FIELD(struct effect_call, member)
#define TYPE                                                                                       \
    { "effectType", FIELD_TEXT, AT(type), false, 1, EFFECT_TYPE_MAX }
#define REASON                                                                                     \
    { "reason", FIELD_TEXT, AT(reason), false, 0, AUDIT_REASON_MAX }
#define STATUS                                                                                     \
    { "status", FIELD_LIST, AT(status), false, 1, 0 }
#define PAGE                                                                                       \
    {"limit", FIELD_INT, AT(limit), false, 1, LIST_MAX}, {                                         \
        "cursor", FIELD_TEXT, AT(cursor), false, 1, 0                                              \
    }
static const struct field request_fields[] = {
    {"effectType", FIELD_TEXT, AT(type), true, 1, 0},
    {"payload", FIELD_JSON, AT(payload), true, 0, 0},
    {"stepId", FIELD_TEXT, AT(step), false, 1, 0},
    {"maxRetries", FIELD_INT, AT(max_retries), false, 0, EFFECT_RETRIES_MAX},
    {"baseDelayMs", FIELD_INT, AT(base_ms), false, 0, EFFECT_DELAY_MAX_MS},
};
static const struct field list_fields[] = {
    STATUS,
    TYPE,
    {"runId", FIELD_TEXT, AT(run), false, 1, 0},
    {"tenantId", FIELD_TEXT, AT(tenant), false, 1, 0},
    PAGE,
};
static const struct field run_list_fields[] = {STATUS, TYPE, PAGE};
static const struct field requeue_fields[] = {REASON};
static const struct field requeue_all_fields[] = {
    TYPE,
    {"runId", FIELD_TEXT, AT(run), false, 1, 0},
    {"tenantId", FIELD_TEXT, AT(tenant), false, 1, 0},
    {"limit", FIELD_INT, AT(limit), false, 1, REQUEUE_MAX},
    REASON,
};

static struct effect_call *effect_new(struct call *c) {
    struct effect_call *e = ARENA_NEW(&c->arena, struct effect_call);
    e->max_retries = e->base_ms = -1;
    e->limit = LIST_DEFAULT;
    c->own = e;
    return e;
}

static status check_step(str step_id, struct error *err) {
    if (!str_has(step_id, '|')) return ST_OK;
    return error_at(err, REASON_DELIMITER_IN_FIELD, "/stepId", "must not contain '|'");
}

/* ---- one ---- */

/* The call is about the run of this effect. */
static void about(struct call *c, const struct effect_info *info) {
    c->run_id = info->run_id;
    c->tenant_id = info->tenant_id;
    c->project_id = info->project_id;
    c->environment_id = info->environment_id;
    c->engine_attempt = info->engine_attempt;
    c->logical_attempt = 1;
}

static str id_text(struct call *c, uuid id) {
    char text[UUID_TEXT_LEN];
    uuid_format(id, text);
    return arena_str(&c->arena, str_n(text, sizeof(text)));
}

static status find_effect(struct call *c, struct ledger *reader, uuid id, struct effect_info *out,
                          struct error *err) {
    status st = outbox_find(reader, STR_NONE, id, &c->arena, out, err);
    if (st == ST_OK && !principal_sees(c->who, out->tenant_id))
        st = error_at(err, REASON_EFFECT_NOT_FOUND, "", "there is no such effect");
    if (st == ST_OK) about(c, out);
    return st;
}

static bool read_id(struct call *c, struct effect_call *e) {
    if (uuid_parse(c->args[0], &e->id)) return true;
    call_refuse(c, REASON_EFFECT_NOT_FOUND, "", "there is no such effect");
    return false;
}

static status load_effect(struct call *c, struct ledger *reader, struct error *err) {
    struct effect_call *e = c->own;
    status st = find_effect(c, reader, e->id, &e->info, err);
    if (st == ST_OK) view_write(&view_effect, &e->info, &c->out);
    return st;
}

static void get_effect(struct call *c) {
    struct error err = {0};
    struct effect_call *e = effect_new(c);
    if (query_none(c, &err) != ST_OK)
        call_fail(c, &err);
    else if (read_id(c, e))
        call_read(c, load_effect, NULL);
}

/* Effects have changed: for those who follow the run, and for the outbox. */
static void changed(struct call *c, str tenant_id, str run_id) {
    hub_committed(c->api->hub, tenant_id, run_id);
    if (!c->api->closing) host_wake_outbox(c->api->options.host);
}

/* ---- lists ---- */

/* status=FAILED,DEAD_LETTER */
static status read_statuses(str text, unsigned *out, struct error *err) {
    while (text.ptr) {
        str one;
        if (!str_split(text, ',', &one, &text)) text = STR_NONE;
        enum outbox_status found = outbox_status_named(one);
        if (found == OUTBOX_NONE)
            return error_at(err, REASON_PARAMETER_INVALID, "?status",
                            "expected PENDING, PROCESSING, COMPLETED, FAILED or DEAD_LETTER, or "
                            "several with commas");
        *out |= 1U << found;
    }
    return ST_OK;
}

static status list_effects(struct call *c, struct ledger *reader, struct error *err) {
    struct effect_call *e = c->own;
    struct arena arena;
    int64_t left = e->limit;
    int64_t next = 0;
    status st = ST_OK;
    if (c->args[0].ptr) {
        st = call_identify_run(c, reader, c->args[0], &e->run_info, err);
        e->filter.run_id = c->args[0];
        e->filter.tenant_id = c->tenant_id;
    }
    if (st != ST_OK) return st;
    arena_init(&arena, (size_t)16 * 1024, BATCH_ARENA_MAX);
    page_begin(&c->out);
    do {
        struct effect_info *items = NULL;
        size_t count = 0;
        arena_reset(&arena);
        st = outbox_list(reader, &e->filter, left < LIST_BATCH ? (size_t)left : LIST_BATCH, &arena,
                         &items, &count, &next, err);
        for (size_t i = 0; i < count && st == ST_OK; i++) {
            view_write(&view_effect, &items[i], &c->out);
        }
        left -= (int64_t)count;
        e->filter.before = next;
    } while (st == ST_OK && next > 0 && left > 0 && c->out.len < LIST_BYTES_MAX);
    arena_release(&arena);
    page_end(&c->out, next > 0, 'f', next, 0);
    return st;
}

static void list_with(struct call *c, const struct field *fields, size_t count) {
    struct error err = {0};
    int64_t unused = 0;
    struct effect_call *e = effect_new(c);
    status st = query_read(c, fields, count, e, NULL, &err);
    if (st == ST_OK) st = cursor_read(e->cursor, 'f', &e->filter.before, &unused, &err);
    if (st == ST_OK) st = read_statuses(e->status, &e->filter.statuses, &err);
    if (st == ST_OK) st = call_tenant(c, e->tenant, &e->filter.tenant_id, &err);
    e->filter.run_id = e->run;
    e->filter.type = e->type;
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, list_effects, NULL);
}

static void get_effects(struct call *c) { list_with(c, list_fields, COUNT_OF(list_fields)); }
static void get_run_effects(struct call *c) {
    list_with(c, run_list_fields, COUNT_OF(run_list_fields));
}

/* ---- asking for one ----
 *
 * A repeated request is carried out again: its effect has the same id, so it is found. It is told
 * what the first one was told, and the effect as it is now. */

static void put_requested(struct call *c, const struct effect_info *info, bool existing) {
    json_object_begin(&c->out);
    view_members(&view_effect, info, &c->out);
    json_put_bool(&c->out, "existing", existing);
    json_object_end(&c->out);
}

/* What finds an effect changes nothing, so there is nothing to audit, and the answer is 200. */
static const struct append_rider *rider_again(struct call *c) {
    struct effect_call *e = c->own;
    e->receipt_again = c->receipt;
    e->receipt_again.http_status = 200;
    if (c->rider.receipt) e->rider_again.receipt = &e->receipt_again;
    return &e->rider_again;
}

static struct outbox_maker maker_of(struct call *c, struct arena *arena) {
    return (struct outbox_maker){.settings = host_outbox_settings(c->api->options.host),
                                 .actor = call_actor(c),
                                 .now_us = clock_wall_us(),
                                 .arena = arena};
}

static status make_request(struct call *c, struct ledger *reader, struct error *err) {
    struct effect_call *e = c->own;
    struct effect_request request = {.run_id = e->run_info.run_id,
                                     .run = &e->run_info,
                                     .tenant_id = e->run_info.tenant_id,
                                     .id = &e->id,
                                     .type = e->type,
                                     .payload = e->payload,
                                     .step_id = e->step,
                                     .max_retries = e->max_retries,
                                     .base_ms = e->base_ms};
    struct outbox_maker maker = maker_of(c, &c->arena);
    request.riders = call_riders(c, id_text(c, e->id), STR_NONE, 201, true);
    request.riders_again = rider_again(c);
    return outbox_make_request(&maker, reader, &request, &e->change, err);
}

static void answer_request(struct call *c) {
    struct effect_call *e = c->own;
    changed(c, e->run_info.tenant_id, e->run_info.run_id);
    call_header(c, "Location", call_path(c, "/v1/effects/", id_text(c, e->info.effect.id)));
    call_answer(c, e->existing ? 200 : 201);
}

static status load_existing(struct call *c, struct ledger *reader, struct error *err) {
    struct effect_call *e = c->own;
    status st = outbox_existing(reader, &e->change, &c->arena, &e->info, err);
    if (st == ST_OK) put_requested(c, &e->info, true);
    return st;
}

static void requested(struct call *c) {
    struct effect_call *e = c->own;
    struct error err = {0};
    if (outbox_outcome(&e->change, &e->existing, &err) != ST_OK) {
        call_fail(c, &err);
    } else if (e->existing) {
        call_read(c, load_existing, answer_request);
    } else {
        e->info = e->change.info;
        put_requested(c, &e->info, false);
        host_tell_outbox(c->api->options.host, &e->info);
        hub_committed(c->api->hub, e->info.tenant_id, e->info.run_id);
        call_header(c, "Location", call_path(c, "/v1/effects/", id_text(c, e->info.effect.id)));
        call_answer(c, 201);
    }
}

/* What a request before this one with the same Idempotency-Key has made is there under our id. */
static status prepare_request(struct call *c, struct ledger *reader, struct error *err) {
    struct effect_call *e = c->own;
    status st = call_identify_run(c, reader, c->args[0], &e->run_info, err);
    if (st != ST_OK) return st;
    st = c->before ? find_effect(c, reader, e->id, &e->info, err) : ST_NOT_FOUND;
    if (st == ST_OK) put_requested(c, &e->info, false);
    return st == ST_NOT_FOUND ? make_request(c, reader, err) : st;
}

static void request_prepared(struct call *c) {
    struct effect_call *e = c->own;
    if (c->out.len > 0) {
        answer_request(c);
        return;
    }
    c->change = (struct bridge_call){.write.request = e->change.request};
    call_append(c, requested);
}

static void post_effect(struct call *c) {
    struct error err = {0};
    struct effect_call *e = effect_new(c);
    status st = query_none(c, &err);
    if (st == ST_OK) st = body_read(c, request_fields, COUNT_OF(request_fields), e, NULL, &err);
    if (st == ST_OK) st = check_step(e->step, &err);
    /* In the order of their time, so that the indexes over them grow at their ends; but a repeated
     * request has the id of the first. */
    if (!c->keyed)
        e->id = uuid_v7(clock_wall_us() / 1000);
    else if (st == ST_OK && !uuid_parse(call_new_id(c), &e->id))
        st = error_set(&err, ST_CORRUPT, "a new id is no UUID");
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, prepare_request, request_prepared);
}

/* ---- putting one back ---- */

static status prepare_requeue(struct call *c, struct ledger *reader, struct error *err) {
    struct effect_call *e = c->own;
    struct outbox_maker maker = maker_of(c, &c->arena);
    status st = find_effect(c, reader, e->id, &e->info, err);
    if (st == ST_OK) st = outbox_make_requeue(&maker, &e->info, e->reason, &e->change, err);
    if (st == ST_OK)
        e->change.request.riders = call_riders(c, id_text(c, e->id), e->reason, 200, true);
    return st;
}

static void requeued(struct call *c) {
    struct effect_call *e = c->own;
    struct error err = {0};
    if (outbox_outcome(&e->change, NULL, &err) != ST_OK) {
        call_fail(c, &err);
        return;
    }
    view_write(&view_effect, &e->change.info, &c->out);
    changed(c, e->info.tenant_id, e->info.run_id);
    call_answer(c, 200);
}

static void requeue_prepared(struct call *c) {
    struct effect_call *e = c->own;
    c->change = (struct bridge_call){.write.request = e->change.request};
    call_append(c, requeued);
}

/* An optional body. */
static status read_body(struct call *c, const struct field *fields, size_t count,
                        struct effect_call *e, struct error *err) {
    status st = query_none(c, err);
    if (st != ST_OK || c->request->body.len == 0) return st;
    return body_read(c, fields, count, e, NULL, err);
}

static void post_requeue(struct call *c) {
    struct error err = {0};
    struct effect_call *e = effect_new(c);
    if (read_body(c, requeue_fields, COUNT_OF(requeue_fields), e, &err) != ST_OK)
        call_fail(c, &err);
    else if (!read_id(c, e))
        return;
    else if (c->before) /* it was put back then: it may have died again since */
        call_read(c, load_effect, NULL);
    else
        call_read(c, prepare_requeue, requeue_prepared);
}

/* ---- putting many back ----
 *
 * In batches: a batch is read, and its requeues go to the ledger thread together, as one group or
 * as parts of others. Each effect has its own audit record, in the commit that puts it back; the
 * receipt is written at the end. A request that was cut off goes on with what is left when it is
 * repeated. */

static void make_put_back(struct call *c, struct put_back *p, const struct effect_info *info) {
    struct effect_call *e = c->own;
    char *id = arena_alloc(&e->batch_arena, UUID_TEXT_LEN);
    uuid_format(info->effect.id, id);
    about(c, info);
    (void)call_riders(c, str_n(id, UUID_TEXT_LEN), e->reason, 200, true);
    p->owner = c;
    p->audit = c->audit;
    p->rider.audit = &p->audit;
    p->change.request.riders = &p->rider;
}

static status prepare_batch(struct call *c, struct ledger *reader, struct error *err) {
    struct effect_call *e = c->own;
    struct effect_info *dead = NULL;
    int64_t left = e->limit - e->requeued;
    int64_t next = 0;
    size_t count = 0;
    arena_reset(&e->batch_arena);
    struct outbox_maker maker = {.settings = host_outbox_settings(c->api->options.host),
                                 .actor = e->actor,
                                 .now_us = clock_wall_us(),
                                 .arena = &e->batch_arena};
    e->filter.statuses = 1U << OUTBOX_DEAD_LETTER;
    status st = outbox_list(reader, &e->filter, left < REQUEUE_BATCH ? (size_t)left : REQUEUE_BATCH,
                            &e->batch_arena, &dead, &count, &next, err);
    e->batch = arena_alloc(&e->batch_arena, (count + 1) * sizeof(*e->batch));
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        st = outbox_make_requeue(&maker, &dead[i], e->reason, &e->batch[i].change, err);
        if (st == ST_OK) make_put_back(c, &e->batch[i], &dead[i]);
    }
    about(c, &(struct effect_info){.tenant_id = e->filter.tenant_id}); /* no single run */
    c->engine_attempt = c->logical_attempt = 0;
    e->batch_count = count;
    e->filter.before = next;
    e->more = next > 0;
    return st;
}

static void answer_all(struct call *c) { call_answer(c, 200); }

static void batch_prepared(struct call *c);

static void batch_done(struct call *c) {
    struct effect_call *e = c->own;
    if (e->failed != ST_OK) {
        call_fail(c, &e->why);
        return;
    }
    if (c->api->closing) {
        call_refuse_closing(c);
        return;
    }
    if (e->more && e->requeued < e->limit) {
        call_read(c, prepare_batch, batch_prepared);
        return;
    }
    json_object_begin(&c->out);
    json_put_int(&c->out, "requeued", e->requeued);
    json_put_bool(&c->out, "more", e->more);
    json_object_end(&c->out);
    (void)call_receipt(c, 200, false);
    call_ride(c, answer_all);
}

/* One that somebody else has put back meanwhile does not count, and is no failure. */
static void one_done(struct bridge_call *call) {
    struct put_back *p = CONTAINER_OF(call, struct put_back, call);
    struct call *c = p->owner;
    struct effect_call *e = c->own;
    struct error err = call->write.err;
    status st = call->write.code;
    if (st == ST_OK) st = outbox_outcome(&p->change, NULL, &err);
    if (st == ST_OK) {
        e->requeued++;
        changed(c, p->change.info.tenant_id, p->change.info.run_id);
    } else if (st != ST_CONFLICT && e->failed == ST_OK) {
        e->failed = st;
        e->why = err;
    }
    ASSERT(e->unanswered > 0);
    if (--e->unanswered == 0) batch_done(c);
}

static void batch_prepared(struct call *c) {
    struct effect_call *e = c->own;
    e->unanswered = e->batch_count;
    for (size_t i = 0; i < e->batch_count; i++) {
        struct put_back *p = &e->batch[i];
        p->call = (struct bridge_call){.write.request = p->change.request, .done = one_done};
        bridge_submit(c->api->bridge, &p->call);
    }
    if (e->batch_count == 0) batch_done(c);
}

static void batches_over(struct call *c) {
    struct effect_call *e = c->own;
    arena_release(&e->batch_arena);
}

static void post_requeue_all(struct call *c) {
    struct error err = {0};
    struct effect_call *e = effect_new(c);
    e->limit = REQUEUE_DEFAULT;
    status st = read_body(c, requeue_all_fields, COUNT_OF(requeue_all_fields), e, &err);
    if (st == ST_OK) st = call_tenant(c, e->tenant, &e->filter.tenant_id, &err);
    if (st != ST_OK) {
        call_fail(c, &err);
        return;
    }
    e->filter.run_id = e->run;
    e->filter.type = e->type;
    e->actor = call_actor(c);
    arena_init(&e->batch_arena, (size_t)16 * 1024, BATCH_ARENA_MAX);
    c->ended = batches_over;
    call_read(c, prepare_batch, batch_prepared);
}

#define READERS (ROLE_VIEWER | ROLE_OPERATOR)
static const struct route routes[] = {
    {"POST", "/v1/runs/{runId}/effects", "effect.request", ROLE_OPERATOR | ROLE_PRODUCER,
     ROUTE_CHANGES, post_effect},
    {"GET", "/v1/runs/{runId}/effects", "effect.list", READERS, 0, get_run_effects},
    {"GET", "/v1/effects", "effect.list", READERS, 0, get_effects},
    {"POST", "/v1/effects/requeue", "effect.requeue", ROLE_OPERATOR, ROUTE_CHANGES,
     post_requeue_all},
    {"GET", "/v1/effects/{effectId}", "effect.get", READERS, 0, get_effect},
    {"POST", "/v1/effects/{effectId}/requeue", "effect.requeue", ROLE_OPERATOR, ROUTE_CHANGES,
     post_requeue},
};
const struct route_table effect_routes = {routes, COUNT_OF(routes)};
