/* outbox/request.c: a request of an effect: what is wrong with it, and its fact. */
#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/time.h"
#include "ledger/schema.h"
#include "outbox/outbox_impl.h"

/* ---- what is refused ---- */

static status bad_payload(struct error *err, const char *where, const char *what) {
    return error_at(err, REASON_EFFECT_PAYLOAD_INVALID, where, "%s", what);
}

static status check_type(str type, struct error *err) {
    bool ok = type.len > 0 && type.len <= EFFECT_TYPE_MAX;
    for (size_t i = 0; ok && i < type.len; i++) {
        char c = type.ptr[i];
        ok = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '.';
    }
    if (ok) return ST_OK;
    return error_at(err, REASON_EFFECT_TYPE_INVALID, "/effectType",
                    "expected 1 to %d letters, digits, '_', '-' or '.'", EFFECT_TYPE_MAX);
}

static bool names_credential(str header) {
    static const str names[] = {STR_LIT("authorization"), STR_LIT("proxy-authorization"),
                                STR_LIT("cookie"), STR_LIT("x-api-key")};
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        bool same = header.len == names[k].len;
        for (size_t i = 0; same && i < header.len; i++)
            same = (header.ptr[i] | 0x20) == (names[k].ptr[i] | 0x20);
        if (same) return true;
    }
    return false;
}

/* https://user:password@host/: whatever else is wrong with it. */
static bool has_user(str url) {
    const char *at = url.len > 0 ? memmem(url.ptr, url.len, "://", 3) : NULL;
    for (at = at ? at + 3 : NULL; at && at < url.ptr + url.len && !strchr("/?#\\", *at); at++) {
        if (*at == '@') return true;
    }
    return false;
}

static status plain_secret(struct error *err, const char *where) {
    return error_at(err, REASON_EFFECT_SECRET_PLAIN, where,
                    "a credential must not stand in the ledger: name it, {\"secret\":\"NAME\"}");
}

/* The ledger keeps no secret (T38): a credential is named, and read when the effect is executed. */
static status check_secrets(yyjson_val *payload, struct error *err) {
    str url = STR_NONE;
    if (json_str(json_member(payload, "url"), &url) && has_user(url))
        return plain_secret(err, "/payload/url");
    size_t i = 0;
    size_t n = 0;
    yyjson_val *key = NULL;
    yyjson_val *val = NULL;
    yyjson_obj_foreach(json_member(payload, "headers"), i, n, key, val) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        str named = STR_NONE;
        if (!names_credential(name) || json_str(json_member(val, "secret"), &named)) continue;
        char where[64];
        snprintf(where, sizeof(where), "/payload/headers/%.*s", STR_ARG(name));
        return plain_secret(err, where);
    }
    return ST_OK;
}

struct request { /* what is known of a request before it is a fact */
    const struct outbox_maker *maker;
    const struct effect_request *given;
    struct run_info run;
    yyjson_val *payload;
    uuid id, cause;
    bool has_cause;
    struct buf key;
};

static status check_request(struct request *r, struct error *err) {
    struct json_limits limits = {EVENT_BYTES_MAX - 4096, JSON_DEPTH_MAX - 3};
    struct arena *arena = r->maker->arena;
    status st = check_type(r->given->type, err);
    if (st != ST_OK) return st;
    if (!r->given->payload.ptr) return bad_payload(err, "/payload", "an effect needs its payload");
    st = json_parse(r->given->payload, limits, arena, &r->payload, err);
    if (st != ST_OK) return st;
    if (!yyjson_is_obj(r->payload))
        return bad_payload(err, "/payload", "the payload of an effect is an object");
    if (r->given->max_retries > EFFECT_RETRIES_MAX || r->given->base_ms > EFFECT_DELAY_MAX_MS)
        return bad_payload(err, "", "at most 1000 retries, and a day between them");
    st = check_secrets(r->payload, err);
    if (st != ST_OK) return st;
    return effect_key(r->id, r->given->type, r->payload, arena, &r->key, err);
}

/* ---- what is read ---- */

/* The step that asks has begun: that is the cause. */
static status step_cause(struct ledger *reader, struct request *r, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        ledger_db(reader),
        "SELECT " EVENT_AT(
            "y.event_id",
            "(r.tenant_no * 1099511627776 + s.started_seq)") " FROM ledger_run r JOIN state_step s "
                                                             "ON s.step_pos >= r.run_no * 1048576"
                                                             " AND s.step_pos < (r.run_no + 1) * "
                                                             "1048576 WHERE r.run_no = $1 AND "
                                                             "s.step_id = $2",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, r->run.run_no);
    db_bind_text(q, 2, r->given->step_id);
    st = db_step(q, &row, err);
    r->has_cause = st == ST_OK && row && db_blob(q, 0).len == sizeof(r->cause.b);
    if (r->has_cause) memcpy(r->cause.b, db_blob(q, 0).ptr, sizeof(r->cause.b));
    db_reset(q);
    return st;
}

static status find_run(struct ledger *reader, struct request *r, struct error *err) {
    const struct effect_request *given = r->given;
    status st = ST_OK;
    if (given->run)
        r->run = *given->run;
    else
        st = ledger_find_identity(reader, given->run_id, r->maker->arena, &r->run, err);
    bool theirs =
        st == ST_OK && given->tenant_id.ptr && !str_eq(r->run.tenant_id, given->tenant_id);
    if (st == ST_NOT_FOUND || theirs)
        return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"",
                        STR_ARG(given->run_id));
    if (st != ST_OK) return st;
    r->has_cause = given->cause != NULL;
    if (r->has_cause) r->cause = *given->cause;
    return !r->has_cause && given->step_id.ptr ? step_cause(reader, r, err) : ST_OK;
}

/* ---- the fact ---- */

/* The payload as it is stored: with its key, which receivers and readers find there whoever made
 * it. */
static status payload_text(const struct request *r, str *out, struct error *err) {
    struct buf text;
    buf_init(&text, (size_t)2 * EVENT_BYTES_MAX);
    bool ok = json_write(r->payload, &text);
    if (ok && !json_member(r->payload, "idempotency_key")) {
        text.len--; /* its brace */
        json_put_text(&text, "idempotency_key", buf_str(&r->key));
        json_object_end(&text);
    }
    ok = ok && !text.full && arena_try_str(r->maker->arena, buf_str(&text), out);
    buf_release(&text);
    return ok ? ST_OK : outbox_no_memory(err);
}

/* The effect as its request makes it. outbox_outcome() adds what only the ledger knows. */
static status fill_info(const struct request *r, struct effect_info *out, struct error *err) {
    const struct effect_request *given = r->given;
    const struct run_info *run = &r->run;
    struct effect_retry retry = effect_retry_of(given->type, r->maker->settings.retries);
    char run_uuid[UUID_TEXT_LEN];
    uuid_format(run->run_uuid, run_uuid);
    *out = (struct effect_info){
        .effect = {.status = OUTBOX_PENDING,
                   .max_retries = given->max_retries >= 0 ? given->max_retries : retry.max_retries,
                   .base_ms = given->base_ms >= 0 ? given->base_ms : retry.base_ms,
                   .id = r->id},
        .correlation = run->correlation_id,
        .run_id = run->run_id,
        .tenant_id = run->tenant_id,
        .project_id = run->project_id,
        .environment_id = run->environment_id,
        .plan_id = run->plan_id,
        .plan_version = run->plan_version,
        .run_no = run->run_no,
        .engine_attempt = run->head.engine_attempt > 0 ? run->head.engine_attempt : 1};
    struct arena *arena = r->maker->arena;
    bool ok = arena_try_str(arena, given->type, &out->effect.type) &&
              arena_try_str(arena, buf_str(&r->key), &out->key) &&
              arena_try_str(arena, str_n(run_uuid, sizeof(run_uuid)), &out->run_uuid) &&
              (!given->step_id.ptr || arena_try_str(arena, given->step_id, &out->step_id));
    if (!ok) return outbox_no_memory(err);
    out->effect.key = out->key;
    return payload_text(r, &out->payload, err);
}

static status add_request(struct facts *f, const struct effect_info *i, struct error *err) {
    facts_head(f, i->effect.id, i->run_uuid, i->effect.type);
    json_put_text_if(&f->data, "step_id", i->step_id);
    json_put_text(&f->data, "idempotency_key", i->key);
    json_put_int(&f->data, "max_retries", i->effect.max_retries);
    json_put_int(&f->data, "base_delay_ms", i->effect.base_ms);
    json_put_json(&f->data, "payload", i->payload);
    return facts_add(f, EVENT_EFFECT_REQUESTED, 1, err);
}

static status make_fact(const struct request *r, struct outbox_change *out, struct error *err) {
    struct facts f;
    struct event ids = {.run_id = r->run.run_id,
                        .tenant_id = r->run.tenant_id,
                        .project_id = r->run.project_id,
                        .environment_id = r->run.environment_id,
                        .plan_id = r->run.plan_id,
                        .plan_version = r->run.plan_version,
                        .engine_attempt = r->run.head.engine_attempt};
    status st = facts_begin(&f, r->maker, &ids, r->id, 1, err);
    if (st == ST_OK && r->has_cause) {
        uuid *cause = arena_try(r->maker->arena, sizeof(*cause));
        if (cause) *cause = r->cause;
        f.cause = cause;
        if (!cause) st = outbox_no_memory(err);
    }
    if (st == ST_OK) st = add_request(&f, &out->info, err);
    return facts_end(&f, st, out, err);
}

status outbox_make_request(const struct outbox_maker *maker, struct ledger *reader,
                           const struct effect_request *given, struct outbox_change *out,
                           struct error *err) {
    char key[EFFECT_KEY_MAX + 1];
    struct request r = {.maker = maker, .given = given};
    r.id = given->id ? *given->id : uuid_v7(maker->now_us / 1000);
    *out = (struct outbox_change){.kind = OUTBOX_REQUEST};
    buf_init_fixed(&r.key, key, sizeof(key));
    status st = check_request(&r, err);
    if (st == ST_OK) st = find_run(reader, &r, err);
    if (st == ST_OK) st = fill_info(&r, &out->info, err);
    if (st == ST_OK) st = make_fact(&r, out, err);
    if (st == ST_OK) out->request.riders = given->riders;
    if (st == ST_OK) out->request.riders_again = given->riders_again;
    return st;
}
