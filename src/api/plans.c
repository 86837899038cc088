/* api/plans.c: plans kept in the ledger's database: put, get by hash, validate. */
#include "api/impl.h"
#include "core/capability.h"
#include "core/plan.h"
#include "core/plan_ref.h"

struct plan_call {
    str tenant, text;
    struct plan *plan;
    struct plan_problems problems;
    struct validation_report report;
    enum adapter_kind adapter;
    uint8_t sha256[SHA256_LEN];
    char hex[SHA256_HEX_LEN];
    bool existed, comments;
};
static const struct field tenant_fields[] = {
    {"tenantId", FIELD_TEXT, FIELD(struct plan_call, tenant), false, 1, 0}};

static struct plan_call *plan_new(struct call *c) {
    struct plan_call *p = ARENA_NEW(&c->arena, struct plan_call);
    c->own = p;
    return p;
}

static status read_request(struct call *c, struct plan_call *p, struct error *err) {
    status st = query_read(c, tenant_fields, COUNT_OF(tenant_fields), p, NULL, err);
    if (st == ST_OK) st = call_tenant(c, p->tenant, &p->tenant, err);
    if (st == ST_OK && !p->tenant.ptr) p->tenant = STR("default");
    return st;
}

static status read_body(struct call *c, struct plan_call *p, struct error *err) {
    p->text = c->request->body;
    if (p->text.len == 0)
        return error_at(err, REASON_BODY_MISSING, "", "a plan is expected as the body");
    if (!body_is(c, "application/json") && !body_is(c, "application/jsonc"))
        return error_at(err, REASON_UNSUPPORTED_MEDIA_TYPE, "#Content-Type",
                        "expected \"Content-Type: application/json\", or application/jsonc");
    if (p->text.len > PLAN_BYTES_MAX)
        return error_at(err, REASON_PLAN_TOO_LARGE, "", "a plan has at most %zu bytes",
                        (size_t)PLAN_BYTES_MAX);
    return ST_OK;
}

/* On a reader thread, for plans may be large: it asks the ledger nothing. */
static status check_plan(struct call *c, struct plan_call *p, struct error *err) {
    status st = plan_parse(p->text, &c->arena, &p->plan, &p->problems, err);
    if (st != ST_OK) return st;
    (void)adapter_of(p->plan->target_adapter, &p->adapter);
    return capability_validate(p->plan, p->adapter, &c->arena, &p->report, err);
}

/* ---- validate ---- */

static status validate(struct call *c, struct ledger *unused, struct error *err) {
    (void)unused;
    struct plan_call *p = c->own;
    struct buf *out = &c->out;
    status st = check_plan(c, p, err);
    if (st == ST_RETRY) return st;
    json_object_begin(out);
    json_put_bool(out, "valid", st == ST_OK && p->report.status != REPORT_ERRORS);
    json_name(out, "errors");
    plan_problems_json(&p->problems, out);
    json_put_bool(out, "more", p->problems.more);
    json_put_text(out, "adapter", str_c(adapter_name(p->adapter)));
    json_name(out, "report");
    if (p->plan && st == ST_OK)
        validation_report_json(&p->report, out);
    else
        buf_put_c(out, "null");
    json_object_end(out);
    return ST_OK;
}

static void answer_ok(struct call *c) { call_answer(c, 200); }

/* Nothing changes; the key is remembered as all are, and the same plan gets the same answer. */
static void validated(struct call *c) {
    (void)call_receipt(c, 200, true);
    call_ride(c, answer_ok);
}

static void post_validate(struct call *c) {
    struct error err = {0};
    struct plan_call *p = plan_new(c);
    status st = query_none(c, &err);
    if (st == ST_OK) st = read_body(c, p, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, validate, validated);
}

/* ---- put ---- */

static void put_ref(struct call *c, struct plan_call *p) {
    char uri[SHA256_HEX_LEN + 16];
    snprintf(uri, sizeof(uri), "plan:sha256:%.*s", SHA256_HEX_LEN, p->hex);
    struct plan_ref ref = {.uri = str_c(uri),
                           .schema_version = p->plan->schema_version,
                           .plan_id = p->plan->plan_id,
                           .plan_version = p->plan->plan_version,
                           .size_bytes = (int64_t)p->text.len};
    memcpy(ref.sha256, p->sha256, SHA256_LEN);
    plan_ref_json(&ref, &c->out);
}

static status store(struct call *c, struct ledger *ledger, struct error *err) {
    struct plan_call *p = c->own;
    str bytes = STR_NONE;
    /* Nobody else writes on this thread: what is there now decides the answer, and its receipt. */
    status st = access_plan_get(ledger, p->tenant, p->sha256, &c->arena, &bytes, err);
    if (st != ST_OK && st != ST_NOT_FOUND) return st;
    int code = st == ST_OK ? 200 : 201;
    put_ref(c, p);
    str target = str_n(p->hex, sizeof(p->hex));
    c->receipt.location = call_text(c, "/v1/plans/%.*s", SHA256_HEX_LEN, p->hex);
    c->tenant_id = p->tenant;
    return access_plan_put(ledger, p->tenant, p->sha256, p->text,
                           call_riders(c, target, STR_NONE, code, false), &p->existed, err);
}

static void stored(struct call *c) {
    struct plan_call *p = c->own;
    call_header(c, "Location", call_text(c, "/v1/plans/%.*s", SHA256_HEX_LEN, p->hex));
    call_answer(c, p->existed ? 200 : 201);
}

/* All that is wrong is told at once. */
static status tell_problems(struct call *c, const struct plan_problems *problems, const char *at,
                            struct error *err) {
    struct problem_item *items = arena_try(&c->arena, problems->count * sizeof(*items));
    for (size_t i = 0; items && i < problems->count; i++) {
        const struct plan_problem *problem = &problems->items[i];
        str where = call_text(c, "%s%.*s", at, STR_ARG(problem->pointer));
        items[i] =
            (struct problem_item){where, str_c(reason_name(problem->code)), problem->message};
    }
    c->problems = items;
    c->problem_count = items ? problems->count : 0;
    struct error first = *err;
    char where[ERROR_WHERE_MAX];
    snprintf(where, sizeof(where), "%s%.80s", at, first.where);
    return error_at(err, REASON_PLAN_INVALID, where, "the plan is not valid: %s", first.msg);
}

static status check(struct call *c, struct ledger *unused, struct error *err) {
    (void)unused;
    struct plan_call *p = c->own;
    status st = check_plan(c, p, err);
    if (st != ST_OK && st != ST_RETRY && p->problems.count > 0)
        return tell_problems(c, &p->problems, "", err);
    sha256_of(p->text, p->sha256);
    hex_encode(p->sha256, SHA256_LEN, p->hex);
    return st;
}

status plan_check_inline(struct call *c, str text, struct plan_ref *ref, struct error *err) {
    struct plan *plan = NULL;
    struct plan_problems problems = {0};
    char hex[SHA256_HEX_LEN];
    status st = plan_parse(text, &c->arena, &plan, &problems, err);
    if (st != ST_OK && st != ST_RETRY && problems.count > 0)
        return tell_problems(c, &problems, "/plan", err);
    if (st != ST_OK) return st;
    *ref = (struct plan_ref){.schema_version = plan->schema_version,
                             .plan_id = plan->plan_id,
                             .plan_version = plan->plan_version,
                             .size_bytes = (int64_t)text.len};
    sha256_of(text, ref->sha256);
    hex_encode(ref->sha256, SHA256_LEN, hex);
    ref->uri = call_text(c, "plan:sha256:%.*s", SHA256_HEX_LEN, hex);
    return ST_OK;
}

static void checked(struct call *c) { call_change(c, store, stored); }

static void post_plan(struct call *c) {
    struct error err = {0};
    struct plan_call *p = plan_new(c);
    status st = read_request(c, p, &err);
    if (st == ST_OK) st = read_body(c, p, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, check, checked);
}

/* ---- get ---- */

static status load(struct call *c, struct ledger *reader, struct error *err) {
    struct plan_call *p = c->own;
    str own = str_c(c->who->tenant);
    struct json_limits limits = {PLAN_BYTES_MAX, JSON_DEPTH_MAX};
    struct error ignored;
    yyjson_val *root = NULL;
    status st = str_eq(own, STR("*"))
                    ? access_plan_get_any(reader, p->sha256, &c->arena, &p->text, err)
                    : access_plan_get(reader, own, p->sha256, &c->arena, &p->text, err);
    if (st == ST_OK) p->comments = json_parse(p->text, limits, &c->arena, &root, &ignored) != ST_OK;
    return st;
}

static void answer_plan(struct call *c) {
    struct plan_call *p = c->own;
    str tag = call_text(c, "\"%.*s\"", STR_ARG(c->args[0]));
    call_header(c, "ETag", tag);
    call_header(c, "Cache-Control", STR("private, max-age=31536000, immutable"));
    if (str_eq(http_header(c->request, STR("If-None-Match")), tag)) {
        call_answer(c, 304);
        return;
    }
    buf_put(&c->out, p->text);
    call_answer_as(c, 200, p->comments ? "application/jsonc" : "application/json");
}

static void get_plan(struct call *c) {
    struct error err = {0};
    struct plan_call *p = plan_new(c);
    if (query_none(c, &err) != ST_OK)
        call_fail(c, &err);
    else if (!hex_decode(c->args[0], p->sha256, SHA256_LEN))
        call_refuse(c, REASON_PLAN_NOT_FOUND, "",
                    "a plan is named by its SHA-256, 64 lower-case hexadecimal digits");
    else
        call_read(c, load, answer_plan);
}

static const struct route routes[] = {
    {"POST", "/v1/plans", "plan.put", ROLE_OPERATOR, ROUTE_CHANGES, post_plan},
    {"POST", "/v1/plans/validate", "plan.validate", ROLE_VIEWER | ROLE_OPERATOR, 0, post_validate},
    {"GET", "/v1/plans/{sha256}", "plan.get", ROLE_VIEWER | ROLE_OPERATOR | ROLE_WORKER, 0,
     get_plan},
};
const struct route_table plan_routes = {routes, COUNT_OF(routes)};
