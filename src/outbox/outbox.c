/* outbox/outbox.c: the facts of effects, made and appended. What becomes of them, effects.c and
 * core/effect.c decide. */
#include "outbox/outbox.h"

#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "ledger/impl.h"
#include "outbox/outbox_impl.h"

enum {
    FACTS_MAX = 2 + OUTBOX_SINKS_MAX, /* of one effect in one commit */
    CLAIMS_MAX = GROUP_EVENTS_MAX / FACTS_MAX,
    CLAIM_PAGES_MAX = 100, /* of nothing that can be claimed, before we give up until later */
    CODE_MAX = 100,        /* bytes of what is kept of a failure */
    MESSAGE_MAX = 4096,
    DETAIL_MAX = 16384,
};

/* The next who needs the connection makes a new one: what only reads would find it dead for ever.
 */
static status noticed(struct ledger *l, status st) {
    if (st == ST_RETRY) l->broken = true;
    return st;
}

/* ---- time ---- */

/* The newest time that any tenant has, as far as we know. Read once: what other nodes write with
 * clocks before ours is due when ours gets there. */
static status latest_time(struct ledger *l, int64_t *latest_us, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = ST_OK;
    if (l->outbox_latest_us == 0) {
        st = db_prepare(l->db, "SELECT COALESCE(MAX(persisted_us), 0) FROM ledger_tenant", &q, err);
        if (st == ST_OK) st = db_step(q, &row, err);
        if (st == ST_OK) l->outbox_latest_us = db_int(q, 0);
        if (q) db_reset(q);
    }
    int64_t clock = ledger_now_us(l);
    if (clock > l->outbox_latest_us) l->outbox_latest_us = clock;
    *latest_us = l->outbox_latest_us;
    return st;
}

/* ---- facts ---- */

static void put_text(struct buf *b, const char *name, str value) {
    buf_printf(b, ",\"%s\":", name);
    buf_put_json_str(b, value);
}

/* What somebody outside said, who may say anything: a failure must not fail to be told. */
static void put_said(struct buf *b, const char *name, str value, size_t max) {
    const char *nul = value.len > 0 ? memchr(value.ptr, 0, value.len) : NULL;
    size_t len = nul ? (size_t)(nul - value.ptr) : value.len;
    put_text(b, name, str_n(value.ptr, len < max ? len : max));
}

static void put_time(struct buf *b, const char *name, int64_t us) {
    char text[TIME_TEXT_MAX];
    if (us > 0)
        put_text(b, name, str_n(text, time_format_us(us, text)));
    else
        buf_printf(b, ",\"%s\":null", name);
}

/* {"effect_id":...,"run_id":...,"effect_type":...: what every fact of an effect begins with. */
static void put_head(struct buf *b, uuid id, str run_uuid, str type) {
    char text[UUID_TEXT_LEN];
    uuid_format(id, text);
    buf_put_c(b, "{\"effect_id\":");
    buf_put_json_str(b, str_n(text, sizeof(text)));
    put_text(b, "run_id", run_uuid);
    put_text(b, "effect_type", type);
}

/* The facts of one effect that are appended together. */
struct facts {
    struct append_item items[FACTS_MAX];
    struct append_result results[FACTS_MAX];
    struct append_request request;
    struct event ids;
    str subject, actor;
    const uuid *cause;
    struct arena *arena;
    const struct outbox_sinks *sinks; /* who is told of a dead letter; or NULL */
    const struct effect_retry *retries;
    size_t count;
};

static status facts_init(const struct ledger *l, struct facts *f, const struct event *ids,
                         uuid effect_id, str actor, const uuid *cause, struct arena *arena,
                         struct error *err) {
    char text[UUID_TEXT_LEN];
    uuid_format(effect_id, text);
    *f = (struct facts){.ids = *ids,
                        .actor = actor,
                        .cause = cause,
                        .arena = arena,
                        .sinks = l->sinks,
                        .retries = l->retries};
    return arena_try_str(arena, str_n(text, sizeof(text)), &f->subject) ? ST_OK
                                                                        : ledger_no_memory(err);
}

/* Adds a fact with the data in `b`, which is closed here and emptied for the next one. */
static status facts_add(struct facts *f, enum event_type type, int64_t occurrence, struct buf *b,
                        struct error *err) {
    struct append_item *item = &f->items[f->count];
    str data = STR_NONE;
    ASSERT(f->count < FACTS_MAX);
    buf_put_char(b, '}');
    if (b->full && b->cap < b->max) return ledger_no_memory(err); /* it did not grow */
    if (b->full)
        return error_at(err, ST_LIMIT, "EFFECT_PAYLOAD_INVALID", "/payload",
                        "the data of an effect's event has more than %zu bytes", EVENT_BYTES_MAX);
    if (!arena_try_str(f->arena, buf_str(b), &data)) return ledger_no_memory(err);
    buf_clear(b);
    status st = ledger_fact(&f->ids, type, f->subject, occurrence, data, item, err);
    item->actor = f->actor;
    item->cause = f->cause;
    if (st == ST_OK) f->count++;
    return st;
}

static struct append_request *facts_request(struct facts *f, const struct append_rider *riders) {
    f->request = (struct append_request){.items = f->items,
                                         .count = f->count,
                                         .atomic = true,
                                         .results = f->results,
                                         .arena = f->arena,
                                         .riders = riders};
    return &f->request;
}

static status facts_append(struct ledger *l, struct facts *f, const struct append_rider *riders,
                           struct error *err) {
    struct append_request *all[] = {facts_request(f, riders)};
    status st = ledger_append(l, all, 1, err);
    if (st != ST_OK || f->results[0].code == ST_OK) return st;
    *err = *f->results[0].err;
    return f->results[0].code;
}

static struct event ids_of(const struct effect_info *i) {
    return (struct event){.run_id = i->run_id,
                          .tenant_id = i->tenant_id,
                          .project_id = i->project_id,
                          .environment_id = i->environment_id,
                          .plan_id = i->plan_id,
                          .plan_version = i->plan_version,
                          .engine_attempt = i->engine_attempt};
}

void outbox_tell(struct ledger *l, const struct outbox_sinks *sinks) { l->sinks = sinks; }
void outbox_retries(struct ledger *l, const struct effect_retry *own) { l->retries = own; }

/* ---- a request ---- */

static status bad_payload(struct error *err, const char *where, const char *what) {
    return error_at(err, ST_INVALID, "EFFECT_PAYLOAD_INVALID", where, "%s", what);
}

static status check_type(str type, struct error *err) {
    bool ok = type.len > 0 && type.len <= EFFECT_TYPE_MAX;
    for (size_t i = 0; ok && i < type.len; i++) {
        char c = type.ptr[i];
        ok = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '.';
    }
    if (ok) return ST_OK;
    return error_at(err, ST_INVALID, "EFFECT_TYPE_INVALID", "/effectType",
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
    return error_at(err, ST_INVALID, "EFFECT_SECRET_PLAIN", where,
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
    const struct effect_request *given;
    struct run_info run;
    yyjson_val *payload;
    uuid id, cause;
    bool has_cause;
    struct buf key;
};

static status check_request(struct request *r, struct arena *arena, struct error *err) {
    struct json_limits limits = {EVENT_BYTES_MAX - 4096, JSON_DEPTH_MAX - 3};
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

/* The step that asks has begun: that is the cause. */
static status step_cause(struct ledger *l, struct request *r, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        l->db,
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

static status find_run(struct ledger *l, struct request *r, struct arena *arena,
                       struct error *err) {
    str run_id = r->given->run_id;
    status st = ledger_find_run(l, run_id, arena, &r->run, err);
    bool theirs =
        st == ST_OK && r->given->tenant_id.ptr && !str_eq(r->run.tenant_id, r->given->tenant_id);
    if (st == ST_NOT_FOUND || theirs)
        return error_at(err, ST_NOT_FOUND, "RUN_NOT_FOUND", "", "there is no run \"%.*s\"",
                        STR_ARG(run_id));
    if (st != ST_OK) return st;
    r->has_cause = r->given->cause != NULL;
    if (r->has_cause) r->cause = *r->given->cause;
    return !r->has_cause && r->given->step_id.ptr ? step_cause(l, r, err) : ST_OK;
}

static void put_payload(struct buf *b, const struct request *r) {
    struct buf text;
    buf_init(&text, EVENT_BYTES_MAX);
    buf_put_c(b, ",\"payload\":");
    if (!json_write(r->payload, &text)) {
        b->full = true;
    } else if (json_member(r->payload, "idempotency_key")) {
        buf_put(b, buf_str(&text));
    } else { /* receivers and readers find it there whoever made it */
        text.len--;
        buf_put(b, buf_str(&text));
        if (yyjson_obj_size(r->payload) > 0) buf_put_char(b, ',');
        buf_put_c(b, "\"idempotency_key\":");
        buf_put_json_str(b, buf_str(&r->key));
        buf_put_char(b, '}');
    }
    buf_release(&text);
}

static void request_data(const struct request *r, const struct effect_retry *own, struct buf *b) {
    char run_uuid[UUID_TEXT_LEN];
    struct effect_retry retry = effect_retry_of(r->given->type, own);
    if (r->given->max_retries >= 0) retry.max_retries = r->given->max_retries;
    if (r->given->base_ms >= 0) retry.base_ms = r->given->base_ms;
    uuid_format(r->run.run_uuid, run_uuid);
    put_head(b, r->id, str_n(run_uuid, sizeof(run_uuid)), r->given->type);
    if (r->given->step_id.ptr) put_text(b, "step_id", r->given->step_id);
    put_text(b, "idempotency_key", buf_str(&r->key));
    buf_printf(b, ",\"max_retries\":%lld,\"base_delay_ms\":%lld", (long long)retry.max_retries,
               (long long)retry.base_ms);
    put_payload(b, r);
}

static status request_append(struct ledger *l, const struct request *r, struct arena *arena,
                             struct append_result *result, struct error *err) {
    struct facts f;
    struct buf b;
    struct event ids = {.run_id = r->run.run_id,
                        .tenant_id = r->run.tenant_id,
                        .project_id = r->run.project_id,
                        .environment_id = r->run.environment_id,
                        .plan_id = r->run.plan_id,
                        .plan_version = r->run.plan_version,
                        .engine_attempt = r->run.head.engine_attempt};
    buf_init(&b, EVENT_BYTES_MAX);
    status st = facts_init(l, &f, &ids, r->id, r->given->actor, r->has_cause ? &r->cause : NULL,
                           arena, err);
    if (st == ST_OK) {
        request_data(r, l->retries, &b);
        st = facts_add(&f, EVENT_EFFECT_REQUESTED, 1, &b, err);
    }
    if (st == ST_OK) st = facts_append(l, &f, r->given->riders, err);
    *result = f.results[0];
    buf_release(&b);
    return st;
}

status outbox_request(struct ledger *l, const struct effect_request *given, struct arena *arena,
                      struct effect_info *out, bool *existing, struct error *err) {
    char key[EFFECT_KEY_MAX + 1];
    struct request r = {.given = given};
    struct append_result result = {0};
    r.id = given->id ? *given->id : uuid_v7(ledger_now_us(l) / 1000);
    buf_init_fixed(&r.key, key, sizeof(key));
    status st = check_request(&r, arena, err);
    if (st == ST_OK) st = ledger_usable(l, err);
    if (st == ST_OK) st = noticed(l, find_run(l, &r, arena, err));
    if (st == ST_OK) st = request_append(l, &r, arena, &result, err);
    int64_t tenant_no = 0;
    int64_t seq = 0;
    if (st == ST_OK) st = noticed(l, tenant_number(l, r.run.tenant_id, &tenant_no, &seq, err));
    if (st == ST_OK) st = noticed(l, outbox_at(l, pos_of(tenant_no, result.seq), arena, out, err));
    if (st == ST_OK) *existing = result.duplicate;
    if (st == ST_OK && result.duplicate && out->effect.status == OUTBOX_COMPLETED)
        LOG(LOG_INFO, "an effect that was asked for is done already: skipped",
            LOG_S("idempotency_key", out->key), LOG_S("effectType", out->effect.type),
            LOG_S("runId", out->run_id));
    return st;
}

/* ---- the end of an execution ---- */

static void put_execution(struct buf *b, const struct effect_info *i) {
    put_head(b, i->effect.id, i->run_uuid, i->effect.type);
    buf_printf(b, ",\"execution\":%lld", (long long)i->effect.executions);
}

/* ---- alerts ---- */

static void put_body(struct buf *b, const struct effect_info *i, str code, str message) {
    char id[UUID_TEXT_LEN];
    char trace[UUID_TEXT_LEN];
    struct buf text; /* what chats show */
    uuid_format(i->effect.id, id);
    uuid_format(i->correlation, trace);
    buf_init(&text, 2048);
    buf_put_c(&text, "an effect is dead: ");
    buf_put(&text, i->effect.type);
    buf_put_c(&text, " of run ");
    buf_put(&text, i->run_id);
    buf_put_c(b, "{\"code\":\"EFFECT_DEAD_LETTERED\"");
    put_text(b, "text", buf_str(&text));
    put_text(b, "effect_id", str_n(id, sizeof(id)));
    put_text(b, "effect_type", i->effect.type);
    put_text(b, "run_id", i->run_id);
    put_text(b, "tenant_id", i->tenant_id);
    put_text(b, "correlation_id", str_n(trace, sizeof(trace)));
    put_said(b, "error_code", code, CODE_MAX);
    put_said(b, "error_message", message, MESSAGE_MAX);
    buf_put_char(b, '}');
    buf_release(&text);
}

/* An effect like any other, whose key is its cause: said once, however often it is appended. One
 * that is dead itself is only logged. */
static status add_alert(struct facts *f, const struct effect_info *i, str url, size_t sink,
                        str code, str message, struct buf *b, struct error *err) {
    static const str type = STR_LIT("WEBHOOK_CALL");
    struct effect_retry retry = effect_retry_of(type, f->retries);
    char text[UUID_TEXT_LEN];
    char key[EFFECT_KEY_MAX + 1];
    uuid id = uuid_v7(clock_wall_us() / 1000);
    str dead = f->subject;
    int n = snprintf(key, sizeof(key), EFFECT_KEY_ALERT "%.*s:%lld:%zu", STR_ARG(dead),
                     (long long)i->effect.executions, sink);
    uuid_format(id, text);
    put_head(b, id, i->run_uuid, type);
    put_text(b, "idempotency_key", str_n(key, (size_t)n));
    buf_printf(b, ",\"max_retries\":%lld,\"base_delay_ms\":%lld,\"payload\":{\"method\":\"POST\"",
               (long long)retry.max_retries, (long long)retry.base_ms);
    put_text(b, "url", url);
    buf_put_c(b, ",\"body\":");
    put_body(b, i, code, message);
    put_text(b, "idempotency_key", str_n(key, (size_t)n));
    buf_put_char(b, '}');
    if (!arena_try_str(f->arena, str_n(text, sizeof(text)), &f->subject))
        return ledger_no_memory(err);
    status st = facts_add(f, EVENT_EFFECT_REQUESTED, 1, b, err);
    f->subject = dead;
    return st;
}

static status add_alerts(struct facts *f, const struct effect_info *i, str code, str message,
                         struct buf *b, struct error *err) {
    status st = ST_OK;
    if (!f->sinks || str_starts(i->key, STR(EFFECT_KEY_ALERT))) return ST_OK;
    for (size_t k = 0; k < f->sinks->count && st == ST_OK; k++)
        st = add_alert(f, i, f->sinks->urls[k], k + 1, code, message, b, err);
    return st;
}

/* ---- failures ---- */

static status add_failure(struct facts *f, const struct effect_info *i, str code, str message,
                          str detail, int64_t next_us, struct buf *b, struct error *err) {
    const struct effect *e = &i->effect;
    bool dead = e->retry_count + 1 > e->max_retries;
    put_execution(b, i);
    put_said(b, "error_code", code, CODE_MAX);
    put_said(b, "error_message", message, MESSAGE_MAX);
    if (detail.ptr) put_said(b, "stack", detail, DETAIL_MAX);
    buf_printf(b, ",\"retry_count\":%lld", (long long)e->retry_count + 1);
    put_time(b, "next_retry_at", dead ? 0 : next_us);
    status st = facts_add(f, EVENT_EFFECT_FAILED, e->executions, b, err);
    if (st != ST_OK) return st;
    put_execution(b, i);
    buf_printf(b, ",\"retry_count\":%lld", (long long)e->retry_count + 1);
    if (dead) {
        put_said(b, "error_code", code, CODE_MAX);
        put_said(b, "error_message", message, MESSAGE_MAX);
        st = facts_add(f, EVENT_EFFECT_DEAD_LETTERED, e->executions, b, err);
        return st == ST_OK ? add_alerts(f, i, code, message, b, err) : st;
    }
    put_time(b, "next_retry_at", next_us);
    return facts_add(f, EVENT_EFFECT_RETRYING, e->executions, b, err);
}

status outbox_complete(struct ledger *l, const struct effect_info *claimed, str result, str actor,
                       struct error *err) {
    struct arena arena;
    struct facts f;
    struct buf b;
    struct event ids = ids_of(claimed);
    arena_init(&arena, 4096, SIZE_MAX);
    buf_init(&b, EVENT_BYTES_MAX);
    status st =
        facts_init(l, &f, &ids, claimed->effect.id, actor, &claimed->request_id, &arena, err);
    if (st == ST_OK) {
        put_execution(&b, claimed);
        buf_put_c(&b, ",\"result\":");
        buf_put(&b, result.ptr ? result : STR("null"));
        st = facts_add(&f, EVENT_EFFECT_COMPLETED, claimed->effect.executions, &b, err);
    }
    if (st == ST_OK) st = facts_append(l, &f, NULL, err);
    buf_release(&b);
    arena_release(&arena);
    return st;
}

/* The end of the execution was there already: ours, told again, or LEASE_EXPIRED, told by the
 * worker that has gone on since. */
static status still_ours(struct ledger *l, const struct effect_info *claimed, struct arena *arena,
                         struct error *err) {
    struct effect_info now;
    status st = outbox_find(l, claimed->tenant_id, claimed->effect.id, arena, &now, err);
    if (st != ST_OK || now.effect.executions == claimed->effect.executions) return st;
    return error_at(err, ST_CONFLICT, "EFFECT_MOVED", "",
                    "execution %lld had ended before, and the effect is %s in execution %lld",
                    (long long)claimed->effect.executions, outbox_status_name(now.effect.status),
                    (long long)now.effect.executions);
}

status outbox_fail(struct ledger *l, const struct effect_info *claimed, str code, str message,
                   str detail, str actor, bool *dead, struct error *err) {
    struct arena arena;
    struct facts f;
    struct buf b;
    struct event ids = ids_of(claimed);
    const struct effect *e = &claimed->effect;
    int64_t wait_ms = effect_backoff_ms(e->retry_count + 1, e->base_ms);
    int64_t next_us = outbox_time(claimed, ledger_now_us(l)) + wait_ms * 1000;
    arena_init(&arena, 4096, SIZE_MAX);
    buf_init(&b, EVENT_BYTES_MAX);
    status st = facts_init(l, &f, &ids, e->id, actor, &claimed->request_id, &arena, err);
    if (st == ST_OK) st = add_failure(&f, claimed, code, message, detail, next_us, &b, err);
    if (st == ST_OK) st = facts_append(l, &f, NULL, err);
    if (st == ST_OK && f.results[0].duplicate) st = noticed(l, still_ours(l, claimed, &arena, err));
    if (st == ST_OK && dead) *dead = e->retry_count + 1 > e->max_retries;
    buf_release(&b);
    arena_release(&arena);
    return st;
}

/* ---- claiming ---- */

/* Whoever had it has not come back. */
static status add_expiry(struct facts *f, const struct effect_info *i, int64_t now_us,
                         struct buf *b, struct error *err) {
    return add_failure(f, i, STR("LEASE_EXPIRED"),
                       STR("the worker that executed it did not say how it ended"), STR_NONE,
                       now_us, b, err);
}

static status add_claim(struct facts *f, struct effect_info *i, str worker, int64_t now_us,
                        int64_t lease_ms, struct buf *b, struct error *err) {
    struct effect *e = &i->effect;
    status st = ST_OK;
    if (e->status == OUTBOX_PROCESSING) {
        bool dead = e->retry_count + 1 > e->max_retries;
        st = add_expiry(f, i, now_us, b, err);
        e->retry_count++;
        if (st != ST_OK || dead) return st;
    }
    e->executions++;
    e->status = OUTBOX_PROCESSING;
    e->due_us = now_us + lease_ms * 1000;
    put_execution(b, i);
    put_text(b, "worker", worker);
    put_time(b, "lease_until", e->due_us);
    return facts_add(f, EVENT_EFFECT_EXECUTING, e->executions, b, err);
}

/* Nobody else says so of an effect whose worker is gone. */
static void log_expiry(const struct facts *f, const struct effect_info *i) {
    char id[UUID_TEXT_LEN];
    bool expired = f->items[0].event.type == EVENT_EFFECT_FAILED && f->results[0].code == ST_OK;
    if (!expired || f->results[0].duplicate) return;
    bool dead = f->items[1].event.type == EVENT_EFFECT_DEAD_LETTERED;
    uuid_format(i->effect.id, id);
    LOG(dead ? LOG_ERROR : LOG_WARN,
        dead ? "an effect is dead: its last worker did not come back"
             : "the worker of an effect did not come back",
        LOG_S("effectId", str_n(id, sizeof(id))), LOG_S("effectType", i->effect.type),
        LOG_S("runId", i->run_id));
}

/* Claimed: our own EffectExecuting is in the ledger, not one like it. */
static bool is_claimed(const struct facts *f) {
    const struct append_result *last = &f->results[f->count - 1];
    const struct event *e = &f->items[f->count - 1].event;
    return e->type == EVENT_EFFECT_EXECUTING && last->code == ST_OK && !last->duplicate;
}

/* Of these, none was appended. */
static void not_claimed(struct facts *f, status st) {
    for (size_t i = 0; i < f->count; i++)
        f->results[i].code = st;
}

/* All at once; if one of their runs is damaged, one by one: it must not hold up the others. */
static status append_claims(struct ledger *l, struct facts *facts,
                            struct append_request *const *requests, size_t count,
                            struct error *err) {
    status st = ledger_append(l, requests, count, err);
    if (st != ST_CORRUPT) return st;
    st = ST_OK;
    for (size_t i = 0; i < count; i++) {
        if (st != ST_RETRY) st = ledger_append(l, &requests[i], 1, err);
        if (st == ST_OK) continue;
        not_claimed(&facts[i], st);
        if (st == ST_CORRUPT)
            LOG(LOG_ERROR, "an effect is due and cannot be executed",
                LOG_S("runId", facts[i].ids.run_id), LOG_S("error", str_c(err->msg)));
    }
    return ST_OK; /* what was claimed must be told */
}

static status claim_all(struct ledger *l, struct effect_info *due, size_t count, str worker,
                        int64_t clock, int64_t lease_ms, struct arena *arena,
                        struct outbox_batch *out, bool *any, struct error *err) {
    struct buf b;
    struct facts *facts = arena_try(arena, count * sizeof(*facts));
    struct append_request **requests = arena_try(arena, count * sizeof(struct append_request *));
    if (!facts || !requests) return ledger_no_memory(err);
    status st = ST_OK;
    buf_init(&b, EVENT_BYTES_MAX);
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        struct event ids = ids_of(&due[i]);
        st = facts_init(l, &facts[i], &ids, due[i].effect.id, worker, &due[i].request_id, arena,
                        err);
        int64_t now = outbox_time(&due[i], clock);
        if (st == ST_OK) st = add_claim(&facts[i], &due[i], worker, now, lease_ms, &b, err);
        requests[i] = facts_request(&facts[i], NULL);
    }
    buf_release(&b);
    if (st == ST_OK) st = append_claims(l, facts, requests, count, err);
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        if (is_claimed(&facts[i])) out->items[out->count++] = due[i];
        *any = *any || (facts[i].results[0].code == ST_OK && !facts[i].results[0].duplicate);
        log_expiry(&facts[i], &due[i]);
    }
    return st;
}

/* *any: some were claimed, or died. */
static status claim_page(struct ledger *l, struct outbox_look *look, str worker, size_t limit,
                         int64_t lease_ms, struct arena *arena, struct outbox_batch *out, bool *any,
                         struct error *err) {
    struct effect_info *due = NULL;
    size_t count = 0;
    status st = noticed(l, outbox_due(l, look, limit, arena, &due, &count, err));
    if (st != ST_OK || count == 0) return st;
    out->items = arena_try(arena, count * sizeof(*out->items));
    if (!out->items) return ledger_no_memory(err);
    return claim_all(l, due, count, worker, look->clock_us, lease_ms, arena, out, any, err);
}

status outbox_claim(struct ledger *l, str worker, str runs, size_t limit, int64_t lease_ms,
                    struct arena *arena, struct outbox_batch *out, struct error *err) {
    struct outbox_look look = {.runs = runs, .more = true};
    bool any = false;
    *out = (struct outbox_batch){0};
    if (limit > CLAIMS_MAX) limit = CLAIMS_MAX;
    status st = ledger_usable(l, err);
    if (st == ST_OK) st = noticed(l, latest_time(l, &look.latest_us, err));
    look.clock_us = ledger_now_us(l);
    for (int i = 0; i < CLAIM_PAGES_MAX && st == ST_OK && look.more && !any; i++) {
        st = ledger_usable(l, err); /* a damaged run has cost us the connection */
        if (st == ST_OK) st = claim_page(l, &look, worker, limit, lease_ms, arena, out, &any, err);
    }
    if (st == ST_OK) st = ledger_usable(l, err);
    if (st == ST_OK) st = noticed(l, outbox_next_due(l, look.clock_us, &out->next_us, err));
    out->more = look.more && any;
    return out->count > 0 ? ST_OK : st; /* what was claimed must be told: nobody else gets it */
}

status outbox_expire(struct ledger *l, str worker, size_t limit, size_t *count, struct error *err) {
    struct arena arena;
    struct buf b;
    struct effect_info *items = NULL;
    int64_t clock = ledger_now_us(l);
    *count = 0;
    arena_init(&arena, 4096, SIZE_MAX);
    buf_init(&b, EVENT_BYTES_MAX);
    status st = ledger_usable(l, err);
    if (st == ST_OK) st = noticed(l, outbox_processing(l, limit, &arena, &items, count, err));
    for (size_t i = 0; i < *count && st == ST_OK; i++) {
        struct facts f;
        struct event ids = ids_of(&items[i]);
        st = facts_init(l, &f, &ids, items[i].effect.id, worker, &items[i].request_id, &arena, err);
        if (st == ST_OK) st = add_expiry(&f, &items[i], outbox_time(&items[i], clock), &b, err);
        if (st == ST_OK) st = facts_append(l, &f, NULL, err);
        if (st == ST_OK) log_expiry(&f, &items[i]);
    }
    buf_release(&b);
    arena_release(&arena);
    return st;
}

/* ---- putting back ---- */

status outbox_release(struct ledger *l, const struct effect_info *claimed, str actor,
                      struct error *err) {
    struct arena arena;
    struct facts f;
    struct buf b;
    struct event ids = ids_of(claimed);
    arena_init(&arena, 4096, SIZE_MAX);
    buf_init(&b, EVENT_BYTES_MAX);
    status st =
        facts_init(l, &f, &ids, claimed->effect.id, actor, &claimed->request_id, &arena, err);
    if (st == ST_OK) {
        put_execution(&b, claimed);
        buf_printf(&b, ",\"retry_count\":%lld,\"next_retry_at\":null,\"released\":true",
                   (long long)claimed->effect.retry_count);
        st = facts_add(&f, EVENT_EFFECT_RETRYING, claimed->effect.executions, &b, err);
    }
    if (st == ST_OK) st = facts_append(l, &f, NULL, err);
    if (st == ST_OK && f.results[0].duplicate) st = noticed(l, still_ours(l, claimed, &arena, err));
    buf_release(&b);
    arena_release(&arena);
    return st;
}

status outbox_requeue(struct ledger *l, str tenant_id, uuid effect_id, str actor, str reason,
                      const struct append_rider *riders, struct error *err) {
    struct arena arena;
    struct effect_info info;
    struct facts f;
    struct buf b;
    arena_init(&arena, 4096, SIZE_MAX);
    buf_init(&b, EVENT_BYTES_MAX);
    status st = ledger_usable(l, err);
    if (st == ST_OK) st = noticed(l, outbox_find(l, tenant_id, effect_id, &arena, &info, err));
    if (st == ST_OK && info.effect.status != OUTBOX_DEAD_LETTER)
        st = error_at(err, ST_CONFLICT, "EFFECT_NOT_DEAD", "",
                      "the effect is %s: only a dead letter can be put back",
                      outbox_status_name(info.effect.status));
    struct event ids = st == ST_OK ? ids_of(&info) : (struct event){0};
    if (st == ST_OK) st = facts_init(l, &f, &ids, effect_id, actor, &info.request_id, &arena, err);
    if (st == ST_OK) {
        put_execution(&b, &info);
        buf_put_c(&b, ",\"retry_count\":0,\"next_retry_at\":null,\"requeued\":true");
        if (reason.ptr) put_text(&b, "reason", reason);
        st = facts_add(&f, EVENT_EFFECT_RETRYING, info.effect.executions, &b, err);
    }
    if (st == ST_OK) st = facts_append(l, &f, riders, err);
    buf_release(&b);
    arena_release(&arena);
    return st;
}
