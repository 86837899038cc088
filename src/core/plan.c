/* core/plan.c: from text to a plan. The parts are read by the other plan_*.c; see plan_impl.h. */
#include "core/plan.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/limits.h"
#include "core/plan_impl.h"
#include "core/plan_schema.h"

/* ---- metadata ---- */

static const char *const fallbacks[] = {"reject", "emulate", "degrade", NULL};
static const char *const adapters[] = {"any", "local", "temporal", "conductor", NULL};

static void read_capabilities(struct parse *p, yyjson_val *val, void *into) {
    struct plan *plan = into;
    (void)plan_take_ids(p, val, "requiresCapabilities", &plan->capabilities,
                        &plan->capability_count);
}

#define INTO(member) .into = (int)offsetof(struct plan, member)

static const struct field metadata_fields[] = {
    {.name = STR_LIT("planId"), .kind = FIELD_ID, .required = true, INTO(plan_id)},
    {.name = STR_LIT("planVersion"), .kind = FIELD_ID, .required = true, INTO(plan_version)},
    {.name = STR_LIT("requiresCapabilities"), .kind = FIELD_CUSTOM, .read = read_capabilities},
    {.name = STR_LIT("fallbackBehavior"), .kind = FIELD_CHOICE, .names = fallbacks, INTO(fallback)},
    {.name = STR_LIT("targetAdapter"), .kind = FIELD_CHOICE, .names = adapters, .into = NOWHERE},
};

static void read_metadata(struct parse *p, yyjson_val *val, void *into) {
    struct plan *plan = into;
    if (!plan_take_object(p, val, "metadata")) return;
    p->prefix = "metadata.";
    plan_read_fields(p, val, FIELD_LIST(metadata_fields), FIELD_LIST_NONE, plan);
    p->prefix = "";
    (void)json_str(json_member(val, "targetAdapter"), &plan->target_adapter);
}

/* ---- the other parts outside of the steps ---- */

static void read_default_retry(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    plan_read_retry(p, val, &plan_retry_none, p->retry);
}

static const struct field default_fields[] = {
    {.name = STR_LIT("retry"), .kind = FIELD_CUSTOM, .read = read_default_retry},
    {.name = STR_LIT("timeoutMs"),
     .kind = FIELD_INT,
     .max = PLAN_DELAY_MS_MAX,
     .into = (int)offsetof(struct parse, timeout_ms)},
};

static void read_defaults(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    if (!plan_take_object(p, val, "defaults")) return;
    p->prefix = "defaults.";
    plan_read_fields(p, val, FIELD_LIST(default_fields), FIELD_LIST_NONE, p);
    p->prefix = "";
}

static void read_parameters(struct parse *p, yyjson_val *val, void *into) {
    struct plan *plan = into;
    plan->parameters = val;
    plan_check_parameters(p, val);
}

static void read_concurrency(struct parse *p, yyjson_val *val, void *into) {
    struct plan *plan = into;
    int64_t n = 0;
    if (plan_take_int(p, val, "concurrency", 1, PLAN_CONCURRENCY_MAX, &n))
        plan->concurrency = (uint32_t)n;
}

static void read_steps(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    plan_read_steps(p, val);
}

/* In this order, whatever the order of the text: steps need the defaults. */
static const struct field root_fields[] = {
    {.name = STR_LIT("$schema"), .kind = FIELD_PLAIN, .into = NOWHERE}, /* for editors */
    {.name = STR_LIT("schemaVersion"), .kind = FIELD_PLAIN, .required = true, INTO(schema_version)},
    {.name = STR_LIT("metadata"), .kind = FIELD_CUSTOM, .required = true, .read = read_metadata},
    {.name = STR_LIT("parameters"), .kind = FIELD_CUSTOM, .read = read_parameters},
    {.name = STR_LIT("defaults"), .kind = FIELD_CUSTOM, .read = read_defaults},
    {.name = STR_LIT("concurrency"), .kind = FIELD_CUSTOM, .read = read_concurrency},
    {.name = STR_LIT("steps"), .kind = FIELD_CUSTOM, .required = true, .read = read_steps},
};

/* ---- the whole ---- */

/* false: the version is not one we know, and nothing else can be said about the plan. */
static bool read_version(struct parse *p) {
    yyjson_val *val = json_member(p->root, "schemaVersion");
    struct error err = {0};
    str version = STR_NONE;
    if (!json_str(val, &version)) return true; /* told with the other members */
    if (plan_schema_window(version, PLAN_SCHEMA_MAJOR, PLAN_SCHEMA_MINOR, &p->minor, &err) ==
        ST_OK) {
        return true;
    }
    plan_complain(p, err.reason, val, "%s", err.msg);
    return false;
}

static void read_root(struct parse *p) {
    if (!yyjson_is_obj(p->root)) {
        plan_complain(p, REASON_PLAN_SYNTAX, p->root, "plan: expected an object, found %s",
                      plan_kind_of(p->root));
        return;
    }
    if (!read_version(p)) return;
    plan_read_fields(p, p->root, FIELD_LIST(root_fields), FIELD_LIST_NONE, p->plan);
    if (!p->no_memory && p->plan->step_count > 0) plan_link(p);
}

static bool prepare(struct parse *p) {
    p->plan = plan_alloc(p, sizeof *p->plan);
    p->retry = plan_alloc(p, sizeof *p->retry);
    if (p->no_memory) return false;
    *p->retry = plan_retry_none;
    p->plan->target_adapter = STR("any");
    p->plan->concurrency = PLAN_CONCURRENCY_DEFAULT;
    p->plan->bytes = p->text.len;
    sha256_of(p->text, p->plan->sha256);
    return true;
}

status plan_parse(str text, struct arena *arena, struct plan **out, struct plan_problems *problems,
                  struct error *err) {
    struct parse p = {.text = text, .arena = arena, .minor = PLAN_SCHEMA_MINOR, .prefix = ""};
    struct json_limits limits = {PLAN_BYTES_MAX, JSON_DEPTH_MAX};
    size_t bad_at = 0;
    problems->count = 0;
    problems->more = false;
    status st = jsonc_parse(text, limits, arena, &p.root, &bad_at, err);
    if (st != ST_OK) return plan_report_json(text, bad_at, arena, problems, err);
    if (prepare(&p)) read_root(&p);
    st = plan_report(&p, problems, err);
    if (st == ST_OK) *out = p.plan;
    return st;
}
