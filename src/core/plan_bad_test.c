/* core/plan_bad_test.c: what plan_parse() refuses, each with its code, its place and nothing else.
 */
#include "core/plan.h"
#include "test.h"

#define ARENA_MAX ((size_t)1 << 30)

/* Quotes in these texts are written ' to keep them readable. */
static str quoted(const char *text, struct arena *arena) {
    str from = str_c(text);
    char *to = arena_alloc(arena, from.len + 1);
    for (size_t i = 0; i < from.len; i++)
        to[i] = (char)(from.ptr[i] == '\'' ? '"' : from.ptr[i]);
    return str_n(to, from.len);
}

#define META "'metadata':{'planId':'p','planVersion':'1'}"
#define TOP "{'schemaVersion':'v1.3'," META ",\n"
#define NOOP "{'stepId':'a','type':'noop'}"
/* The steps begin on line 2, column 10. */
#define STEPS(steps) TOP "'steps':[" steps "]}"
#define OLD(version, steps) "{'schemaVersion':'" version "'," META ",\n'steps':[" steps "]}"
/* One step: what follows its id and type begins on line 2, column 40. */
#define STEP(type, rest) STEPS("{'stepId':'a','type':'" type "'," rest "}")
#define BAD_STEP "INVALID_STEP_SCHEMA"

struct bad {
    const char *text, *code, *pointer;
    int line, column;
    const char *message; /* a part of it, or NULL */
};

static void check_bad(const struct bad *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct bad *c = &cases[i];
        static struct plan_problems problems;
        struct arena arena;
        struct error err = {0};
        struct plan *plan = NULL;
        arena_init(&arena, 4096, ARENA_MAX);
        status st = plan_parse(quoted(c->text, &arena), &arena, &plan, &problems, &err);
        CHECK(st == ST_INVALID || st == ST_LIMIT, "case %zu: %s", i, c->text);
        const struct plan_problem *got = &problems.items[0];
        CHECK(problems.count == 1, "case %zu: %zu problems, second %s %.*s", i, problems.count,
              problems.items[1].code, STR_ARG(problems.items[1].message));
        CHECK(strcmp(reason_name(got->code), c->code) == 0, "case %zu: %s: %.*s", i,
              reason_name(got->code), STR_ARG(got->message));
        CHECK(str_eq(got->pointer, str_c(c->pointer)), "case %zu: %.*s", i, STR_ARG(got->pointer));
        CHECK(got->line == c->line && got->column == c->column, "case %zu: %d:%d %.*s", i,
              got->line, got->column, STR_ARG(got->message));
        CHECK(c->message == NULL || strstr(got->message.ptr, c->message) != NULL, "case %zu: %s", i,
              got->message.ptr);
        CHECK(err.reason == got->code && strcmp(err.msg, got->message.ptr) == 0, "case %zu", i);
        CHECK(st == err.code && plan == NULL, "case %zu", i);
        arena_release(&arena);
    }
}

TEST(plan_refuses_text_that_is_not_json) {
    static const struct bad cases[] = {
        {"", "JSON_SYNTAX", "", 1, 1, NULL},
        {"{'a':1", "JSON_SYNTAX", "", 1, 7, NULL},
        {"{\n  'a' 1}", "JSON_SYNTAX", "", 2, 7, NULL},
        {"{'a':1}}", "JSON_SYNTAX", "", 1, 8, NULL},
        {"{/* no end", "JSON_SYNTAX", "", 1, 2, NULL},
        {"{'a':1,,}", "JSON_SYNTAX", "", 1, 8, NULL},
        {"{\n'\xFF':1}", "JSON_UTF8", "", 2, 2, NULL},
        {"{'\xC3\xA9':\n ['\\ud800']}", "JSON_SURROGATE", "", 2, 4, NULL},
        {"{'a':\n  ['x\\u0000']}", "JSON_NUL", "/a/0", 2, 4, NULL},
        {"{'a':1, // 'a'\n 'a':2}", "JSON_DUPLICATE_KEY", "/a", 2, 6, NULL},
        {"[]", "PLAN_SYNTAX", "", 1, 1, "found an array"},
        {" // nothing\n 17", "PLAN_SYNTAX", "", 2, 2, "found a number"},
    };
    check_bad(cases, COUNT_OF(cases));
}

TEST(plan_refuses_a_wrong_top_level) {
    static const struct bad cases[] = {
        {"{" META ",'steps':[" NOOP "]}", "PLAN_FIELD_MISSING", "/schemaVersion", 1, 1, NULL},
        {"{'schemaVersion':1.3," META ",'steps':[" NOOP "]}", "PLAN_FIELD_TYPE", "/schemaVersion",
         1, 18, "must be a string, found a number"},
        {"{'schemaVersion':'v1.3','steps':[" NOOP "]}", "PLAN_FIELD_MISSING", "/metadata", 1, 1,
         NULL},
        {TOP "'concurrency':1}", "PLAN_FIELD_MISSING", "/steps", 1, 1, NULL},
        {STEPS(NOOP "],'extra':[0"), "PLAN_FIELD_UNKNOWN", "/extra", 2, 48, "\"extra\""},
        {TOP "'steps':{}}", "PLAN_FIELD_TYPE", "/steps", 2, 9, NULL},
        {STEPS(""), "PLAN_EMPTY", "/steps", 2, 9, NULL},
        {TOP "'concurrency':0,'steps':[" NOOP "]}", "PLAN_FIELD_VALUE", "/concurrency", 2, 15,
         "from 1 to 1000"},
        {TOP "'concurrency':1001,'steps':[" NOOP "]}", "PLAN_FIELD_VALUE", "/concurrency", 2, 15,
         "found 1001"},
        {TOP "'concurrency':'2','steps':[" NOOP "]}", "PLAN_FIELD_TYPE", "/concurrency", 2, 15,
         NULL},
        {TOP "'concurrency':2.0,'steps':[" NOOP "]}", "PLAN_FIELD_VALUE", "/concurrency", 2, 15,
         NULL},
        {TOP "'defaults':[],'steps':[" NOOP "]}", "PLAN_FIELD_TYPE", "/defaults", 2, 12, NULL},
        {TOP "'defaults':{'x':1},'steps':[" NOOP "]}", "PLAN_FIELD_UNKNOWN", "/defaults/x", 2, 17,
         "\"defaults.x\""},
        {TOP "'defaults':{'timeoutMs':-1},'steps':[" NOOP "]}", "PLAN_FIELD_VALUE",
         "/defaults/timeoutMs", 2, 25, NULL},
        {TOP "'defaults':{'retry':{'factor':0.5}},'steps':[" NOOP "]}", "PLAN_FIELD_VALUE",
         "/defaults/retry/factor", 2, 31, "\"defaults.retry.factor\""},
        {TOP "'parameters':7,'steps':[" NOOP "]}", "PLAN_FIELD_TYPE", "/parameters", 2, 14, NULL},
    };
    check_bad(cases, COUNT_OF(cases));
}

#define METADATA(members) "{'schemaVersion':'v1.3','metadata':{\n" members "},'steps':[" NOOP "]}"

/* WE-3.2-2: a plan without planId is refused. WE-4-11: so is fallbackBehavior "ignore". */
TEST(plan_refuses_wrong_metadata) {
    static const struct bad cases[] = {
        {METADATA("'planVersion':'1'"), "PLAN_FIELD_MISSING", "/metadata/planId", 1, 36,
         "\"metadata.planId\""},
        {METADATA("'planId':'p'"), "PLAN_FIELD_MISSING", "/metadata/planVersion", 1, 36, NULL},
        {METADATA("'planId':'','planVersion':'1'"), "PLAN_FIELD_VALUE", "/metadata/planId", 2, 10,
         "must not be empty"},
        {METADATA("'planId':'a|b','planVersion':'1'"), "PLAN_FIELD_VALUE", "/metadata/planId", 2,
         10, "'|'"},
        {METADATA("'planId':'p','planVersion':1"), "PLAN_FIELD_TYPE", "/metadata/planVersion", 2,
         28, NULL},
        {METADATA("'planId':'p','planVersion':'\\t'"), "PLAN_FIELD_VALUE", "/metadata/planVersion",
         2, 28, "control"},
        {METADATA("'planId':'p','planVersion':'1','fallbackBehavior':'ignore'"), "PLAN_FIELD_VALUE",
         "/metadata/fallbackBehavior", 2, 51, "reject, emulate or degrade"},
        {METADATA("'planId':'p','planVersion':'1','targetAdapter':'airflow'"), "PLAN_FIELD_VALUE",
         "/metadata/targetAdapter", 2, 48, "found \"airflow\""},
        {METADATA("'planId':'p','planVersion':'1','requiresCapabilities':'signals'"),
         "PLAN_FIELD_TYPE", "/metadata/requiresCapabilities", 2, 55, NULL},
        {METADATA("'planId':'p','planVersion':'1','requiresCapabilities':['a',0]"),
         "PLAN_FIELD_TYPE", "/metadata/requiresCapabilities/1", 2, 60, NULL},
        {METADATA("'planId':'p','planVersion':'1','owner':'me'"), "PLAN_FIELD_UNKNOWN",
         "/metadata/owner", 2, 40, NULL},
        {"{'schemaVersion':'v1.3','metadata':'p','steps':[" NOOP "]}", "PLAN_FIELD_TYPE",
         "/metadata", 1, 36, NULL},
    };
    check_bad(cases, COUNT_OF(cases));
}

/* WE-3.1-9: unknown versions are refused, and nothing else is said about such a plan. */
TEST(plan_refuses_versions_it_does_not_know) {
    static const char *const versions[] = {"v9.0", "v1.99", "1.2",  "vX",     "v1",   "v1.4",
                                           "v0.9", "",      "v2.0", "v1.2.0", "v1.02"};
    for (size_t i = 0; i < COUNT_OF(versions); i++) {
        char text[200];
        (void)snprintf(text, sizeof text, "{'schemaVersion':'%s','nonsense':1}", versions[i]);
        struct bad bad = {text,          "PLAN_SCHEMA_VERSION_UNSUPPORTED", "/schemaVersion", 1, 18,
                          "v1.0 to v1.3"};
        check_bad(&bad, 1);
    }
}

/* WE-3.2-3: a step without stepId. WE-3.2-5: a known field of a wrong type is refused when the plan
 * is read. WE-3.2-6: unknown fields, naming step and field. */
TEST(plan_refuses_wrong_common_fields) {
    static const struct bad cases[] = {
        {STEPS("{'type':'noop'}"), BAD_STEP, "/steps/0/stepId", 2, 10, "\"stepId\""},
        {STEPS(NOOP ",{'stepId':'b'}"), BAD_STEP, "/steps/1/type", 2, 39, "step \"b\": missing"},
        {STEPS(NOOP ",7"), BAD_STEP, "/steps/1", 2, 39, "steps[1]: a step must be an object"},
        {STEP("noop", "'frobnicate':1"), BAD_STEP, "/steps/0/frobnicate", 2, 51,
         "step \"a\": unknown field \"frobnicate\""},
        {STEP("noop", "'a/b~':1"), BAD_STEP, "/steps/0/a~1b~0", 2, 45, NULL},
        {STEP("noop", "'url':'http://x'"), BAD_STEP, "/steps/0/url", 2, 44, NULL},
        {STEPS("{'stepId':'a','type':'dance','steps':3}"), BAD_STEP, "/steps/0/type", 2, 31,
         "\"dance\""},
        {STEPS("{'stepId':'a','type':3}"), BAD_STEP, "/steps/0/type", 2, 31, NULL},
        {STEPS("{'stepId':7,'type':'noop'}"), BAD_STEP, "/steps/0/stepId", 2, 20, NULL},
        {STEPS("{'stepId':'RUN','type':'noop'}"), BAD_STEP, "/steps/0/stepId", 2, 20, "RUN"},
        {STEPS("{'stepId':'a|b','type':'noop'}"), BAD_STEP, "/steps/0/stepId", 2, 20, NULL},
        {STEPS("{'stepId':'','type':'noop'}"), BAD_STEP, "/steps/0/stepId", 2, 20, NULL},
        {STEPS("{'stepId':'a\\u0085','type':'noop'}"), BAD_STEP, "/steps/0/stepId", 2, 20,
         "control"},
        {STEPS("{'stepId':'{{ x }}','type':'noop'}"), BAD_STEP, "/steps/0/stepId", 2, 20, "Liquid"},
        {STEP("noop", "'timeoutMs':'1s'"), BAD_STEP, "/steps/0/timeoutMs", 2, 50, NULL},
        {STEP("noop", "'timeoutMs':31622400001"), BAD_STEP, "/steps/0/timeoutMs", 2, 50, NULL},
        {STEP("noop", "'onFailure':'ignore'"), BAD_STEP, "/steps/0/onFailure", 2, 50,
         "fail, continue or skipDependents"},
        {STEP("noop", "'runIf':''"), BAD_STEP, "/steps/0/runIf", 2, 46, NULL},
        {STEP("noop", "'runIf':true"), BAD_STEP, "/steps/0/runIf", 2, 46, NULL},
        {STEP("noop", "'phase':'test'"), BAD_STEP, "/steps/0/phase", 2, 46, NULL},
        {STEP("noop", "'driver':''"), BAD_STEP, "/steps/0/driver", 2, 47, NULL},
        {STEP("noop", "'retry':3"), BAD_STEP, "/steps/0/retry", 2, 46, NULL},
        {STEP("noop", "'retry':{'maxAttempts':0}"), BAD_STEP, "/steps/0/retry/maxAttempts", 2, 61,
         "\"retry.maxAttempts\""},
        {STEP("noop", "'retry':{'maxAttempts':1001}"), BAD_STEP, "/steps/0/retry/maxAttempts", 2,
         61, NULL},
        {STEP("noop", "'retry':{'factor':101}"), BAD_STEP, "/steps/0/retry/factor", 2, 56, NULL},
        {STEP("noop", "'retry':{'jitter':1.5}"), BAD_STEP, "/steps/0/retry/jitter", 2, 56, NULL},
        {STEP("noop", "'retry':{'jitter':'1'}"), BAD_STEP, "/steps/0/retry/jitter", 2, 56, NULL},
        {STEP("noop", "'retry':{'factor':1e999}"), BAD_STEP, "/steps/0/retry/factor", 2, 56, NULL},
        {STEP("noop", "'retry':{'delay':1}"), BAD_STEP, "/steps/0/retry/delay", 2, 55,
         "\"retry.delay\""},
        {STEP("noop", "'retry':{'nonRetryable':[1]}"), BAD_STEP, "/steps/0/retry/nonRetryable/0", 2,
         63, NULL},
        {STEPS("{'stepId':'a','type':'noop','phase':'verify'},\n"
               "{'stepId':'b','type':'noop'}"),
         BAD_STEP, "/steps/1", 3, 1, "phase \"apply\""},
        {STEPS("{'stepId':'a','type':'noop'},\n"
               "{'stepId':'b','type':'noop','phase':'plan'}"),
         BAD_STEP, "/steps/1/phase", 3, 37, NULL},
    };
    check_bad(cases, COUNT_OF(cases));
}

TEST(plan_refuses_wrong_fields_of_a_type) {
    static const struct bad cases[] = {
        {STEP("exec", "'cwd':'/'"), BAD_STEP, "/steps/0/command", 2, 10, "\"command\""},
        {STEP("exec", "'command':[]"), BAD_STEP, "/steps/0/command", 2, 48, "empty"},
        {STEP("exec", "'command':''"), BAD_STEP, "/steps/0/command", 2, 48, NULL},
        {STEP("exec", "'command':['ls',1]"), BAD_STEP, "/steps/0/command/1", 2, 54, NULL},
        {STEP("exec", "'command':['']"), BAD_STEP, "/steps/0/command/0", 2, 49, "program"},
        {STEP("exec", "'command':{}"), BAD_STEP, "/steps/0/command", 2, 48, "found an object"},
        {STEP("exec", "'command':'{{ a'"), BAD_STEP, "/steps/0/command", 2, 48, "LIQUID_"},
        {STEP("exec", "'command':'x','env':['A']"), BAD_STEP, "/steps/0/env", 2, 58, NULL},
        {STEP("exec", "'command':'x','env':{'A':1}"), BAD_STEP, "/steps/0/env/A", 2, 63, NULL},
        {STEP("exec", "'command':'x','env':{'A=':''}"), BAD_STEP, "/steps/0/env/A=", 2, 64, NULL},
        {STEP("exec", "'command':'x','env':{'A':{'secret':1}}"), BAD_STEP, "/steps/0/env/A/secret",
         2, 73, NULL},
        {STEP("exec", "'command':'x','env':{'A':{'file':'b'}}"), BAD_STEP, "/steps/0/env/A", 2, 63,
         "secret"},
        {STEP("exec", "'command':'x','cwd':''"), BAD_STEP, "/steps/0/cwd", 2, 58, NULL},
        {STEP("exec", "'command':'x','stdin':{}"), BAD_STEP, "/steps/0/stdin", 2, 60, NULL},
        {STEP("exec", "'command':'x','output':'xml'"), BAD_STEP, "/steps/0/output", 2, 61,
         "text, json or none"},
        {STEP("http", "'method':'GET'"), BAD_STEP, "/steps/0/url", 2, 10, NULL},
        {STEP("http", "'url':'ftp://x'"), BAD_STEP, "/steps/0/url", 2, 44, "https"},
        {STEP("http", "'url':'http://x','method':'get'"), BAD_STEP, "/steps/0/method", 2, 64, NULL},
        {STEP("http", "'url':'http://x','headers':{'a b':''}"), BAD_STEP, "/steps/0/headers/a b", 2,
         72, NULL},
        {STEP("http", "'url':'http://x','headers':{'a':'\\r\\n'}"), BAD_STEP, "/steps/0/headers/a",
         2, 70, "line break"},
        {STEP("http", "'url':'http://x','body':{'{{':['{{ a']}"), BAD_STEP, "/steps/0/body/{{/0", 2,
         69, NULL},
        {STEP("http", "'url':'http://x','expectStatus':[]"), BAD_STEP, "/steps/0/expectStatus", 2,
         70, NULL},
        {STEP("http", "'url':'http://x','expectStatus':[200,600]"), BAD_STEP,
         "/steps/0/expectStatus/1", 2, 75, NULL},
        {STEP("task", "'input':1"), BAD_STEP, "/steps/0/queue", 2, 10, NULL},
        {STEP("task", "'queue':'{{q}}'"), BAD_STEP, "/steps/0/queue", 2, 46, NULL},
        {STEP("task", "'queue':'q','leaseMs':0"), BAD_STEP, "/steps/0/leaseMs", 2, 60, NULL},
        {STEP("effect", "'effectType':'X'"), BAD_STEP, "/steps/0/payload", 2, 10, NULL},
        {STEP("effect", "'effectType':'X','payload':[]"), BAD_STEP, "/steps/0/payload", 2, 67,
         NULL},
        {STEP("effect", "'effectType':'X','payload':{},'wait':1"), BAD_STEP, "/steps/0/wait", 2, 77,
         NULL},
        {STEPS("{'stepId':'a','type':'sleep'}"), BAD_STEP, "/steps/0", 2, 10, "durationMs"},
        {STEP("sleep", "'durationMs':1,'until':'2026-02-16T08:00:00Z'"), BAD_STEP, "/steps/0/until",
         2, 62, "not both"},
        {STEP("sleep", "'until':'tomorrow'"), BAD_STEP, "/steps/0/until", 2, 47, "RFC 3339"},
        {STEP("sleep", "'durationMs':-1"), BAD_STEP, "/steps/0/durationMs", 2, 52, NULL},
        {STEP("wait", "'expiresInMs':1"), BAD_STEP, "/steps/0/signal", 2, 10, NULL},
        {STEP("wait", "'signal':'s','expiresInMs':0"), BAD_STEP, "/steps/0/expiresInMs", 2, 65,
         NULL},
        {STEP("approval", "'roles':'operator'"), BAD_STEP, "/steps/0/roles", 2, 50, NULL},
        {STEP("approval", "'message':'{% if %}'"), BAD_STEP, "/steps/0/message", 2, 52, "LIQUID_"},
        {STEP("package", "'version':'1'"), BAD_STEP, "/steps/0/name", 2, 10, NULL},
        {STEP("package", "'name':'x','ensure':'gone'"), BAD_STEP, "/steps/0/ensure", 2, 61,
         "present or absent"},
        {STEP("package", "'name':'x','check':7"), BAD_STEP, "/steps/0/check", 2, 60, NULL},
    };
    check_bad(cases, COUNT_OF(cases));
}

TEST(plan_refuses_what_its_version_does_not_have) {
    static const struct bad cases[] = {
        {OLD("v1.0", "{'stepId':'a','type':'task','queue':'q'}"), BAD_STEP, "/steps/0/type", 2, 31,
         "exists from schemaVersion v1.1 on"},
        {OLD("v1.0", "{'stepId':'a','type':'wait','signal':'q'}"), BAD_STEP, "/steps/0/type", 2, 31,
         "v1.1"},
        {OLD("v1.1", "{'stepId':'a','type':'approval'}"), BAD_STEP, "/steps/0/type", 2, 31, "v1.2"},
        {OLD("v1.1", "{'stepId':'a','type':'effect','effectType':'X','payload':{}}"), BAD_STEP,
         "/steps/0/type", 2, 31, "v1.2"},
        {OLD("v1.1", "{'stepId':'a','type':'noop','runIf':'true'}"), BAD_STEP, "/steps/0/runIf", 2,
         46, "\"runIf\" exists from schemaVersion v1.2 on"},
        {OLD("v1.2", "{'stepId':'a','type':'package','name':'x'}"), BAD_STEP, "/steps/0/type", 2,
         31, "v1.3"},
        {OLD("v1.2", "{'stepId':'a','type':'noop','phase':'apply'}"), BAD_STEP, "/steps/0/phase", 2,
         46, "v1.3"},
        {OLD("v1.2", "{'stepId':'a','type':'noop','driver':'x'}"), BAD_STEP, "/steps/0/driver", 2,
         47, "v1.3"},
    };
    check_bad(cases, COUNT_OF(cases));
}

#define NODE(id, deps) "{'stepId':'" id "','type':'noop','dependsOn':[" deps "]}"

TEST(plan_refuses_a_wrong_graph) {
    static const struct bad cases[] = {
        {STEPS(NOOP ",\n" NOOP), "PLAN_DUPLICATE_STEP", "/steps/1/stepId", 3, 11, "steps[0]"},
        {STEPS(NODE("a", "'z'")), "PLAN_UNKNOWN_DEPENDENCY", "/steps/0/dependsOn/0", 2, 51,
         "step \"a\": depends on \"z\""},
        {STEPS(NODE("a", "'a'")), "PLAN_CYCLE", "/steps/0/dependsOn/0", 2, 51, "itself: a -> a"},
        {STEPS(NODE("a", "'b'") ",\n" NODE("b", "'a'")), "PLAN_CYCLE", "/steps/0/dependsOn/0", 2,
         51, "a -> b -> a"},
        {STEPS(NODE("x", "'b'") ",\n" NODE("a", "") ",\n" NODE("b", "'a','d'") ",\n" NODE(
             "c", "'b'") ",\n" NODE("d", "'c','a'")),
         "PLAN_CYCLE", "/steps/2/dependsOn/1", 4, 46, ": b -> d -> c -> b"},
        {STEPS(NODE("a", "") "," NODE("b", "'a','a'")), BAD_STEP, "/steps/1/dependsOn/1", 2, 99,
         "twice"},
        {STEPS(NODE("a", "1")), BAD_STEP, "/steps/0/dependsOn/0", 2, 51, NULL},
        {STEP("noop", "'dependsOn':'b'"), BAD_STEP, "/steps/0/dependsOn", 2, 50, NULL},
    };
    check_bad(cases, COUNT_OF(cases));
}

#define PARAMS(schema) TOP "'parameters':" schema ",'steps':[" NOOP "]}"
#define VALUE "PLAN_FIELD_VALUE"

TEST(plan_refuses_a_parameter_schema_it_cannot_check) {
    static const struct bad cases[] = {
        {PARAMS("{'pattern':'a+'}"), VALUE, "/parameters/pattern", 2, 25, "\"pattern\""},
        {PARAMS("{'properties':{'a':{'format':'date'}}}"), VALUE, "/parameters/properties/a/format",
         2, 43, "not supported"},
        {PARAMS("{'type':'string'}"), VALUE, "/parameters/type", 2, 22, "object"},
        {PARAMS("{'type':'dict'}"), VALUE, "/parameters/type", 2, 22, NULL},
        {PARAMS("{'type':[]}"), VALUE, "/parameters/type", 2, 22, NULL},
        {PARAMS("{'properties':[]}"), VALUE, "/parameters/properties", 2, 28, NULL},
        {PARAMS("{'properties':{'a':true}}"), "PLAN_FIELD_TYPE", "/parameters/properties/a", 2, 33,
         NULL},
        {PARAMS("{'required':'a'}"), VALUE, "/parameters/required", 2, 26, NULL},
        {PARAMS("{'additionalProperties':{}}"), VALUE, "/parameters/additionalProperties", 2, 38,
         NULL},
        {PARAMS("{'properties':{'a':{'minimum':'1'}}}"), VALUE, "/parameters/properties/a/minimum",
         2, 44, NULL},
        {PARAMS("{'properties':{'a':{'minLength':-1}}}"), VALUE,
         "/parameters/properties/a/minLength", 2, 46, NULL},
        {PARAMS("{'properties':{'a':{'enum':[]}}}"), VALUE, "/parameters/properties/a/enum", 2, 41,
         NULL},
        {PARAMS("{'properties':{'a':{'items':[]}}}"), "PLAN_FIELD_TYPE",
         "/parameters/properties/a/items", 2, 42, NULL},
        {PARAMS("{'properties':{'a':{'type':'integer','default':'x'}}}"), VALUE,
         "/parameters/properties/a/default", 2, 61, "type integer"},
        {PARAMS("{'title':1}"), VALUE, "/parameters/title", 2, 23, NULL},
        {PARAMS("{'examples':1}"), VALUE, "/parameters/examples", 2, 26, NULL},
    };
    check_bad(cases, COUNT_OF(cases));
}

/* ---- several at once, and too much ---- */

TEST(plan_tells_many_problems_in_document_order) {
    static const char text[] =
        "{'steps':[{'stepId':'b','type':'noop','dependsOn':['c','nowhere']},\n"
        "{'type':'noop','what':1},\n"
        "{'stepId':'c','type':'exec','dependsOn':['b'],'command':3}],\n"
        "'metadata':{'planId':'','owner':1},\n"
        "'colour':'red',\n"
        "'schemaVersion':'v1.3'}";
    static const struct {
        const char *code, *pointer;
        int line, column;
    } want[] = {
        {"PLAN_CYCLE", "/steps/0/dependsOn/0", 1, 52},
        {"PLAN_UNKNOWN_DEPENDENCY", "/steps/0/dependsOn/1", 1, 56},
        {"INVALID_STEP_SCHEMA", "/steps/1/stepId", 2, 1},
        {"INVALID_STEP_SCHEMA", "/steps/1/what", 2, 23},
        {"INVALID_STEP_SCHEMA", "/steps/2/command", 3, 57},
        {"PLAN_FIELD_MISSING", "/metadata/planVersion", 4, 12},
        {"PLAN_FIELD_VALUE", "/metadata/planId", 4, 22},
        {"PLAN_FIELD_UNKNOWN", "/metadata/owner", 4, 33},
        {"PLAN_FIELD_UNKNOWN", "/colour", 5, 10},
    };
    static struct plan_problems problems;
    struct arena arena;
    struct error err = {0};
    struct plan *plan = NULL;
    arena_init(&arena, 4096, ARENA_MAX);
    CHECK(plan_parse(quoted(text, &arena), &arena, &plan, &problems, &err) == ST_INVALID);
    CHECK(problems.count == COUNT_OF(want) && !problems.more, "%zu", problems.count);
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const struct plan_problem *got = &problems.items[i];
        CHECK(strcmp(reason_name(got->code), want[i].code) == 0 &&
                  str_eq(got->pointer, str_c(want[i].pointer)) && got->line == want[i].line &&
                  got->column == want[i].column,
              "problem %zu: %s %.*s %d:%d", i, reason_name(got->code), STR_ARG(got->pointer),
              got->line, got->column);
    }
    arena_release(&arena);
}

TEST(plan_tells_no_more_problems_than_fit) {
    static struct plan_problems problems;
    struct arena arena;
    struct error err = {0};
    struct plan *plan = NULL;
    struct buf text;
    arena_init(&arena, 4096, ARENA_MAX);
    for (int bad = PLAN_ERRORS_MAX; bad <= PLAN_ERRORS_MAX + 1; bad++) {
        buf_init(&text, (size_t)1 << 20);
        buf_put(&text, quoted(TOP "'steps':[" NOOP, &arena));
        for (int i = 0; i < bad; i++)
            buf_printf(&text, ",\n%d", i);
        buf_put_c(&text, "]}");
        CHECK(plan_parse(buf_str(&text), &arena, &plan, &problems, &err) == ST_INVALID);
        CHECK(problems.count == PLAN_ERRORS_MAX && problems.more == (bad > PLAN_ERRORS_MAX));
        CHECK(problems.items[PLAN_ERRORS_MAX - 1].line == PLAN_ERRORS_MAX + 2);
        buf_release(&text);
    }
    arena_release(&arena);
}

static void check_too_large(str text, const char *pointer) {
    static struct plan_problems problems;
    struct arena arena;
    struct error err = {0};
    struct plan *plan = NULL;
    arena_init(&arena, 4096, ARENA_MAX);
    CHECK(plan_parse(text, &arena, &plan, &problems, &err) == ST_LIMIT);
    CHECK(problems.count == 1 && problems.items[0].code == REASON_PLAN_TOO_LARGE);
    CHECK(str_eq(problems.items[0].pointer, str_c(pointer)), "%s", problems.items[0].pointer.ptr);
    CHECK(err.reason == REASON_PLAN_TOO_LARGE);
    arena_release(&arena);
}

TEST(plan_refuses_what_is_too_large) {
    struct buf text;
    struct arena arena;
    arena_init(&arena, 4096, ARENA_MAX);
    buf_init(&text, PLAN_BYTES_MAX + 1000);
    buf_put(&text, quoted(TOP "'steps':[{}", &arena));
    for (int i = 0; i < PLAN_STEPS_MAX; i++)
        buf_put_c(&text, ",{}");
    buf_put_c(&text, "]}");
    check_too_large(buf_str(&text), "/steps");

    buf_clear(&text);
    buf_put(&text, quoted(TOP "'steps':[{'stepId':'a','type':'noop','dependsOn':['b'", &arena));
    for (int i = 0; i < PLAN_DEPS_MAX; i++)
        buf_put_c(&text, ",\"b\"");
    buf_put_c(&text, "]}]}");
    check_too_large(buf_str(&text), "/steps/0/dependsOn");

    buf_clear(&text);
    while (text.len <= PLAN_BYTES_MAX)
        buf_put_c(&text, "                                                                ");
    check_too_large(buf_str(&text), "");
    buf_release(&text);
    arena_release(&arena);
}
