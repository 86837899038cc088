#include "core/capability.h"

#include "base/json.h"
#include "test.h"

#define ARENA_MAX ((size_t)64 << 20)

static str quoted(const char *text, struct arena *arena) {
    str from = str_c(text);
    char *to = arena_alloc(arena, from.len + 1);
    for (size_t i = 0; i < from.len; i++)
        to[i] = (char)(from.ptr[i] == '\'' ? '"' : from.ptr[i]);
    return str_n(to, from.len);
}

static yyjson_val *parsed(const struct buf *json, struct arena *arena) {
    struct json_limits limits = {(size_t)1 << 20, 16};
    struct error err = {0};
    yyjson_val *root = NULL;
    CHECK(json_parse(buf_str(json), limits, arena, &root, &err) == ST_OK, "%s", err.msg);
    return root;
}

static bool is(yyjson_val *obj, const char *member, const char *want) {
    return yyjson_equals_str(json_member(obj, member), want);
}

/* WE-4-13: the names come from one enum, and the matrix has a cell for each adapter. */
TEST(capability_matrix_has_every_cell) {
    struct arena arena;
    struct buf json;
    arena_init(&arena, 4096, ARENA_MAX);
    buf_init(&json, (size_t)1 << 20);
    capability_matrix_json(&json);
    yyjson_val *root = parsed(&json, &arena);
    yyjson_val *rows = json_member(root, "capabilities");
    CHECK(yyjson_arr_size(json_member(root, "adapters")) == ADAPTER_COUNT);
    CHECK(yyjson_arr_size(rows) == CAPABILITY_COUNT);
    for (int i = 0; i < CAPABILITY_COUNT; i++) {
        enum capability capability = (enum capability)i;
        enum capability found = CAPABILITY_COUNT;
        yyjson_val *row = yyjson_arr_get(rows, (size_t)i);
        CHECK(is(row, "name", capability_name(capability)));
        CHECK(is(row, "description", capability_sentence(capability)));
        CHECK(strlen(capability_sentence(capability)) > 10, "row %d", i);
        CHECK(capability_of(str_c(capability_name(capability)), &found) && found == capability);
        for (int a = 0; a < ADAPTER_COUNT; a++) {
            enum adapter_kind adapter = (enum adapter_kind)a;
            enum adapter_kind named = ADAPTER_COUNT;
            CHECK(adapter_of(str_c(adapter_name(adapter)), &named) && named == adapter);
            CHECK(is(row, adapter_name(adapter),
                     support_name(capability_support(capability, adapter))));
        }
        CHECK(yyjson_obj_size(row) == 2 + ADAPTER_COUNT);
    }
    enum adapter_kind none = ADAPTER_COUNT;
    CHECK(!adapter_of(STR("any"), &none));
    buf_release(&json);
    arena_release(&arena);
}

struct want {
    const char *metadata; /* members after planId and planVersion */
    enum adapter_kind adapter;
    enum report_status status;
    const char *error, *capability, *warning; /* the only one of its kind, or NULL */
};

static const char *const noop_step = "{'stepId':'a','type':'noop'}";

static void report_of(const char *version, const char *metadata, const char *steps,
                      enum adapter_kind adapter, struct arena *arena,
                      struct validation_report *report) {
    static struct plan_problems problems;
    struct error err = {0};
    struct plan *plan = NULL;
    char text[2000];
    (void)snprintf(text, sizeof text,
                   "{'schemaVersion':'%s','metadata':{'planId':'p','planVersion':'1'%s},"
                   "'steps':[%s]}",
                   version, metadata, steps);
    CHECK(plan_parse(quoted(text, arena), arena, &plan, &problems, &err) == ST_OK, "%s", err.msg);
    CHECK(capability_validate(plan, adapter, arena, report, &err) == ST_OK);
}

static void check_reports(const struct want *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct want *w = &cases[i];
        struct arena arena;
        struct validation_report r;
        arena_init(&arena, 4096, ARENA_MAX);
        report_of("v1.3", w->metadata, noop_step, w->adapter, &arena, &r);
        CHECK(r.status == w->status, "case %zu: %s", i, report_status_name(r.status));
        CHECK(r.error_count == (w->error != NULL), "case %zu", i);
        CHECK(r.warning_count == (w->warning != NULL), "case %zu", i);
        if (w->error != NULL) {
            CHECK(strcmp(reason_name(r.errors[0].code), w->error) == 0, "case %zu: %s", i,
                  reason_name(r.errors[0].code));
            CHECK(str_eq(r.errors[0].capability, str_c(w->capability)), "case %zu", i);
        }
        if (w->warning != NULL)
            CHECK(strcmp(reason_name(r.warnings[0].code), w->warning) == 0, "case %zu", i);
        arena_release(&arena);
    }
}

#define NEEDS(capability) ",'requiresCapabilities':['" capability "']"
#define ELSE(fallback) ",'fallbackBehavior':'" fallback "'"

/* WE-4-3: each of the three values of status. WE-4-11: reject, emulate, degrade, and reject when
 * nothing is said. WE-4-13: an unknown name is an error. */
TEST(capability_gaps_are_errors_or_warnings) {
    static const struct want cases[] = {
        {"", ADAPTER_LOCAL, REPORT_VALID, NULL, NULL, NULL},
        {NEEDS("durableTimers"), ADAPTER_LOCAL, REPORT_VALID, NULL, NULL, NULL},
        {NEEDS("teleport"), ADAPTER_LOCAL, REPORT_ERRORS, "CAPABILITY_UNKNOWN", "teleport", NULL},
        {NEEDS("teleport") ELSE("degrade"), ADAPTER_LOCAL, REPORT_ERRORS, "CAPABILITY_UNKNOWN",
         "teleport", NULL},
        {NEEDS("dynamicSteps"), ADAPTER_LOCAL, REPORT_ERRORS, "CAPABILITY_UNSUPPORTED",
         "dynamicSteps", NULL},
        {NEEDS("continueAsNew") ELSE("degrade"), ADAPTER_CONDUCTOR, REPORT_ERRORS,
         "CAPABILITY_UNSUPPORTED", "continueAsNew", NULL},
        {NEEDS("taskCancellation"), ADAPTER_LOCAL, REPORT_ERRORS, "CAPABILITY_EMULATED",
         "taskCancellation", NULL},
        {NEEDS("taskCancellation") ELSE("reject"), ADAPTER_LOCAL, REPORT_ERRORS,
         "CAPABILITY_EMULATED", "taskCancellation", NULL},
        {NEEDS("taskCancellation") ELSE("emulate"), ADAPTER_LOCAL, REPORT_WARNINGS, NULL, NULL,
         "CAPABILITY_EMULATED"},
        {NEEDS("taskCancellation") ELSE("degrade"), ADAPTER_LOCAL, REPORT_WARNINGS, NULL, NULL,
         "CAPABILITY_EMULATED"},
        {NEEDS("continueAsNew"), ADAPTER_TEMPORAL, REPORT_VALID, NULL, NULL, NULL},
        {NEEDS("inFlightPause"), ADAPTER_LOCAL, REPORT_ERRORS, "CAPABILITY_DEGRADED",
         "inFlightPause", NULL},
        {NEEDS("inFlightPause") ELSE("emulate"), ADAPTER_LOCAL, REPORT_ERRORS,
         "CAPABILITY_DEGRADED", "inFlightPause", NULL},
        {NEEDS("inFlightPause") ELSE("degrade"), ADAPTER_LOCAL, REPORT_WARNINGS, NULL, NULL,
         "CAPABILITY_DEGRADED"},
        {NEEDS("taskCancellation") ELSE("emulate"), ADAPTER_TEMPORAL, REPORT_WARNINGS, NULL, NULL,
         "CAPABILITY_EMULATED"},
        {",'requiresCapabilities':['dynamicSteps','inFlightPause']" ELSE("degrade"), ADAPTER_LOCAL,
         REPORT_ERRORS, "CAPABILITY_UNSUPPORTED", "dynamicSteps", "CAPABILITY_DEGRADED"},
    };
    check_reports(cases, COUNT_OF(cases));
}

/* WE-3.2-4: of a plan only its capabilities are judged here: one that requires none is valid,
 * however unusual its steps are. */
TEST(capability_unusual_plan_without_requirements_is_valid) {
    struct arena arena;
    struct validation_report r;
    arena_init(&arena, 4096, ARENA_MAX);
    report_of("v1.3", ",'requiresCapabilities':[]",
              "{'stepId':'{','type':'sleep','durationMs':0,'driver':'by hand','phase':'plan'},"
              "{'stepId':'run','type':'task','queue':'?','input':[[[null]]],'phase':'capture',"
              "'runIf':'false','onFailure':'continue','dependsOn':['{']}",
              ADAPTER_LOCAL, &arena, &r);
    CHECK(r.status == REPORT_VALID && r.error_count == 0 && r.warning_count == 0);
    arena_release(&arena);
}

/* WE-4-12: a plan for one adapter is an error on another; "any" goes everywhere. */
TEST(capability_target_adapter_must_match) {
    static const struct want cases[] = {
        {",'targetAdapter':'conductor'", ADAPTER_TEMPORAL, REPORT_ERRORS, "TARGET_ADAPTER_MISMATCH",
         "conductor", NULL},
        {",'targetAdapter':'temporal'", ADAPTER_LOCAL, REPORT_ERRORS, "TARGET_ADAPTER_MISMATCH",
         "temporal", NULL},
        {",'targetAdapter':'temporal'", ADAPTER_TEMPORAL, REPORT_VALID, NULL, NULL, NULL},
        {",'targetAdapter':'local'", ADAPTER_LOCAL, REPORT_VALID, NULL, NULL, NULL},
        {",'targetAdapter':'any'", ADAPTER_CONDUCTOR, REPORT_VALID, NULL, NULL, NULL},
        {",'targetAdapter':'any'", ADAPTER_TEMPORAL, REPORT_VALID, NULL, NULL, NULL},
    };
    check_reports(cases, COUNT_OF(cases));
}

/* WE-3.1-11: using a deprecated version yields a warning. */
TEST(capability_deprecated_version_is_a_warning) {
    struct arena arena;
    struct validation_report r;
    arena_init(&arena, 4096, ARENA_MAX);
    report_of("v1.0", "", noop_step, ADAPTER_LOCAL, &arena, &r);
    CHECK(r.status == REPORT_WARNINGS && r.warning_count == 1 && r.error_count == 0);
    CHECK(r.warnings[0].code == REASON_SCHEMA_VERSION_DEPRECATED);
    report_of("v1.1", "", noop_step, ADAPTER_LOCAL, &arena, &r);
    CHECK(r.status == REPORT_VALID);
    arena_release(&arena);
}

TEST(capability_unsupported_types_are_told_once) {
    struct arena arena;
    struct validation_report r;
    arena_init(&arena, 4096, ARENA_MAX);
    report_of("v1.3", "",
              "{'stepId':'a','type':'noop'},"
              "{'stepId':'b','type':'package','name':'x'},"
              "{'stepId':'c','type':'effect','effectType':'X','payload':{}},"
              "{'stepId':'d','type':'package','name':'y'}",
              ADAPTER_TEMPORAL, &arena, &r);
    CHECK(r.status == REPORT_ERRORS && r.error_count == 1 && r.warning_count == 0);
    CHECK(r.errors[0].code == REASON_STEP_TYPE_UNSUPPORTED);
    CHECK(str_eq(r.errors[0].capability, STR("package")));
    CHECK(strstr(r.errors[0].message.ptr, "\"b\"") != NULL, "%s", r.errors[0].message.ptr);
    arena_release(&arena);
}

/* Every type but package. */
TEST(capability_local_runs_effects_and_no_packages) {
    struct arena arena;
    struct validation_report r;
    arena_init(&arena, 4096, ARENA_MAX);
    report_of("v1.3", "",
              "{'stepId':'a','type':'effect','effectType':'X','payload':{},'wait':true}",
              ADAPTER_LOCAL, &arena, &r);
    CHECK(r.status == REPORT_VALID && r.error_count == 0 && r.warning_count == 0);
    report_of("v1.3", "",
              "{'stepId':'a','type':'effect','effectType':'X','payload':{}},"
              "{'stepId':'b','type':'package','name':'x'}",
              ADAPTER_LOCAL, &arena, &r);
    CHECK(r.status == REPORT_ERRORS && r.error_count == 1);
    CHECK(r.errors[0].code == REASON_STEP_TYPE_UNSUPPORTED);
    CHECK(str_eq(r.errors[0].capability, STR("package")));
    for (int i = 0; i < PLAN_TYPE_COUNT; i++)
        CHECK(adapter_runs(ADAPTER_LOCAL, (enum plan_type)i) == (i != PLAN_PACKAGE), "%s",
              plan_type_name((enum plan_type)i));
    arena_release(&arena);
}

/* WE-4-2: exactly planId, status, errors, warnings. WE-4-4: an error has code, capability and
 * message, naming the capability. WE-4-5: a warning has code and message. */
TEST(capability_report_as_json) {
    struct arena arena;
    struct validation_report r;
    struct buf json;
    arena_init(&arena, 4096, ARENA_MAX);
    buf_init(&json, (size_t)1 << 20);
    report_of("v1.3", ",'requiresCapabilities':['dynamicSteps','taskCancellation']" ELSE("emulate"),
              noop_step, ADAPTER_LOCAL, &arena, &r);
    validation_report_json(&r, &json);
    yyjson_val *root = parsed(&json, &arena);
    CHECK(yyjson_obj_size(root) == 4 && is(root, "planId", "p") && is(root, "status", "ERRORS"));
    yyjson_val *errors = json_member(root, "errors");
    yyjson_val *warnings = json_member(root, "warnings");
    CHECK(yyjson_arr_size(errors) == 1 && yyjson_arr_size(warnings) == 1);
    yyjson_val *error = yyjson_arr_get_first(errors);
    CHECK(yyjson_obj_size(error) == 3 && is(error, "code", "CAPABILITY_UNSUPPORTED"));
    CHECK(is(error, "capability", "dynamicSteps"));
    CHECK(strstr(yyjson_get_str(json_member(error, "message")), "dynamicSteps") != NULL);
    yyjson_val *warning = yyjson_arr_get_first(warnings);
    CHECK(yyjson_obj_size(warning) == 2 && is(warning, "code", "CAPABILITY_EMULATED"));
    CHECK(yyjson_is_str(json_member(warning, "message")));

    buf_clear(&json);
    report_of("v1.3", "", noop_step, ADAPTER_LOCAL, &arena, &r);
    validation_report_json(&r, &json);
    CHECK(str_eq(buf_str(&json),
                 STR("{\"planId\":\"p\",\"status\":\"VALID\",\"errors\":[],\"warnings\":[]}")));
    buf_release(&json);
    arena_release(&arena);
}

TEST(capability_report_survives_an_empty_machine) {
    struct arena texts;
    struct arena arena;
    static struct plan_problems problems;
    struct validation_report r;
    struct error err = {0};
    struct plan *plan = NULL;
    arena_init(&texts, 4096, ARENA_MAX);
    str text = quoted("{'schemaVersion':'v1.0','metadata':{'planId':'p','planVersion':'1',"
                      "'requiresCapabilities':['x']},'steps':[{'stepId':'a','type':'noop'}]}",
                      &texts);
    CHECK(plan_parse(text, &texts, &plan, &problems, &err) == ST_OK);
    for (size_t cap = 0; cap < 2000; cap += 16) {
        arena_init(&arena, 64, cap);
        status st = capability_validate(plan, ADAPTER_LOCAL, &arena, &r, &err);
        CHECK(st == ST_OK || st == ST_RETRY);
        arena_release(&arena);
    }
    arena_release(&texts);
}
