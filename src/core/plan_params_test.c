/* core/plan_params_test.c: checking the parameters of a run. */
#include "core/plan.h"
#include "test.h"

#define ARENA_MAX ((size_t)64 << 20)

static str quoted(const char *text, struct arena *arena) {
    str from = str_c(text);
    char *to = arena_alloc(arena, from.len + 1);
    for (size_t i = 0; i < from.len; i++)
        to[i] = (char)(from.ptr[i] == '\'' ? '"' : from.ptr[i]);
    return str_n(to, from.len);
}

/* A plan with this schema of parameters; NULL: with none. */
static struct plan *plan_with(const char *schema, struct arena *arena) {
    static struct plan_problems problems;
    struct error err = {0};
    struct plan *plan = NULL;
    struct buf text;
    buf_init(&text, (size_t)1 << 20);
    buf_put_c(&text, "{'schemaVersion':'v1.3','metadata':{'planId':'p','planVersion':'1'},");
    if (schema != NULL) buf_printf(&text, "'parameters':%s,", schema);
    buf_put_c(&text, "'steps':[{'stepId':'a','type':'noop'}]}");
    buf_put_char(&text, '\0');
    CHECK(plan_parse(quoted(text.ptr, arena), arena, &plan, &problems, &err) == ST_OK, "%s at %s",
          err.msg, err.where);
    buf_release(&text);
    return plan;
}

#define P(properties) "{'type':'object','properties':{" properties "}}"

TEST(plan_parameters_are_checked_and_filled) {
    static const struct {
        const char *schema, *given, *want; /* want: the JSON; or the pointer of the mistake */
    } cases[] = {
        {NULL, NULL, "{}"},
        {NULL, "{'a':[1.50,null]}", "{'a':[1.50,null]}"},
        {NULL, " {} ", "{}"},
        {NULL, "[]", "/parameters"},
        {NULL, "{", "/parameters"},
        {NULL, "{'a':1,'a':2}", "/parameters"},
        {"{}", "{'a':1}", "{'a':1}"},
        {P("'a':{'type':'string'}"), "{'a':'x'}", "{'a':'x'}"},
        {P("'a':{'type':'string'}"), "{'a':1}", "/parameters/a"},
        {P("'a':{'type':['string','null']}"), "{'a':null}", "{'a':null}"},
        {P("'a':{'type':['string','null']}"), "{'a':true}", "/parameters/a"},
        {P("'a':{'type':'integer'}"), "{'a':1.0}", "{'a':1.0}"},
        {P("'a':{'type':'integer'}"), "{'a':1.5}", "/parameters/a"},
        {P("'a':{'type':'integer'}"), "{'a':12345678901234567890}", "{'a':12345678901234567890}"},
        {P("'a':{'type':'number'}"), "{'a':1e3}", "{'a':1e3}"},
        {P("'a':{'type':'number'}"), "{'a':'1'}", "/parameters/a"},
        {P("'a':{'type':'boolean'}"), "{'a':0}", "/parameters/a"},
        {P("'a':{'type':'array'}"), "{'a':{}}", "/parameters/a"},
        {P("'a':{'type':'object'}"), "{'a':[]}", "/parameters/a"},
        {P("'a':{'type':'null'}"), "{'a':0}", "/parameters/a"},
        {P("'a':{'minimum':1,'maximum':3}"), "{'a':3}", "{'a':3}"},
        {P("'a':{'minimum':1,'maximum':3}"), "{'a':0.99}", "/parameters/a"},
        {P("'a':{'minimum':1,'maximum':3}"), "{'a':3.01}", "/parameters/a"},
        {P("'a':{'minimum':1,'maximum':3}"), "{'a':'x'}", "{'a':'x'}"}, /* only of numbers */
        {P("'a':{'minimum':9007199254740993}"), "{'a':9007199254740992}", "/parameters/a"},
        {P("'a':{'minLength':2,'maxLength':3}"), "{'a':'\xC3\xA9\xC3\xA9'}",
         "{'a':'\xC3\xA9\xC3\xA9'}"},
        {P("'a':{'minLength':2,'maxLength':3}"), "{'a':'\xC3\xA9'}", "/parameters/a"},
        {P("'a':{'minLength':2,'maxLength':3}"), "{'a':'abcd'}", "/parameters/a"},
        {P("'a':{'enum':['x',2,null,{'k':[1]}]}"), "{'a':2.0}", "{'a':2.0}"},
        {P("'a':{'enum':['x',2,null,{'k':[1]}]}"), "{'a':{'k':[1]}}", "{'a':{'k':[1]}}"},
        {P("'a':{'enum':['x',2,null,{'k':[1]}]}"), "{'a':{'k':[2]}}", "/parameters/a"},
        {P("'a':{'enum':['x',2,null,{'k':[1]}]}"), "{'a':false}", "/parameters/a"},
        {P("'a':{'const':{'b':1,'c':2}}"), "{'a':{'c':2,'b':1}}", "{'a':{'c':2,'b':1}}"},
        {P("'a':{'const':{'b':1,'c':2}}"), "{'a':{'b':1,'d':2}}", "/parameters/a"},
        {P("'a':{'const':[]}"), "{'a':[0]}", "/parameters/a"},
        {P("'a':{'items':{'type':'integer'}}"), "{'a':[1,2]}", "{'a':[1,2]}"},
        {P("'a':{'items':{'type':'integer'}}"), "{'a':[1,'2']}", "/parameters/a/1"},
        {P("'a':{'properties':{'b/~':{'type':'null'}}}"), "{'a':{'b/~':1}}", "/parameters/a/b~1~0"},
        {"{'required':['a','b']}", "{'a':1}", "/parameters/b"},
        {"{'required':['a'],'properties':{'a':{'default':5}}}", "{}", "{'a':5}"},
        {"{'required':['a'],'properties':{'a':{'default':5}}}", NULL, "{'a':5}"},
        {"{'additionalProperties':false,'properties':{'a':{}}}", "{'a':1,'b':2}", "/parameters/b"},
        {"{'additionalProperties':true,'properties':{'a':{}}}", "{'b':2}", "{'b':2}"},
        {P("'a':{'default':1},'b':{'default':'x'}"), "{'b':2}", "{'b':2,'a':1}"},
        {P("'a':{'properties':{'b':{'default':1}}}"), "{}", "{}"},
        {P("'a':{'properties':{'b':{'default':1}}}"), "{'a':{}}", "{'a':{'b':1}}"},
        {P("'a':{'default':{},'properties':{'b':{'default':1}}}"), "{}", "{'a':{'b':1}}"},
        {P("'a':{'items':{'properties':{'b':{'default':1}}}}"), "{'a':[{},{'b':2},3]}",
         "{'a':[{'b':1},{'b':2},3]}"},
        {"{'title':'t','description':'d','examples':[],'$schema':'s'}", "{}", "{}"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena arena;
        struct error err = {0};
        str out = STR_NONE;
        arena_init(&arena, 4096, ARENA_MAX);
        const struct plan *plan = plan_with(cases[i].schema, &arena);
        str given = cases[i].given == NULL ? STR_NONE : quoted(cases[i].given, &arena);
        status st = plan_parameters(plan, given, &arena, &out, &err);
        if (cases[i].want[0] == '{') {
            CHECK(st == ST_OK, "case %zu: %s", i, err.msg);
            CHECK(str_eq(out, quoted(cases[i].want, &arena)), "case %zu: %s", i, out.ptr);
        } else {
            CHECK(st == ST_INVALID, "case %zu", i);
            CHECK(err.reason == REASON_PARAMETERS_INVALID, "case %zu", i);
            CHECK(strcmp(err.where, cases[i].want) == 0, "case %zu: %s: %s", i, err.where, err.msg);
        }
        arena_release(&arena);
    }
}

TEST(plan_parameters_have_a_limit) {
    struct arena arena;
    struct error err = {0};
    str out = STR_NONE;
    struct buf json;
    arena_init(&arena, 4096, ARENA_MAX);
    buf_init(&json, (size_t)1 << 20);
    buf_put_c(&json, "{\"a\":\"");
    while (json.len < (size_t)300 * 1024)
        buf_put_c(&json, "0123456789");
    buf_put_c(&json, "\"}");
    const struct plan *plan = plan_with(NULL, &arena);
    CHECK(plan_parameters(plan, buf_str(&json), &arena, &out, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_PARAMETERS_INVALID);
    buf_release(&json);
    arena_release(&arena);
}

/* A name that is too long for the place is cut, never through a character. */
TEST(plan_parameters_name_places_that_are_too_long) {
    struct arena arena;
    struct error err = {0};
    str out = STR_NONE;
    struct buf json;
    arena_init(&arena, 4096, ARENA_MAX);
    buf_init(&json, (size_t)1 << 20);
    buf_put_c(&json, "{\"");
    for (int i = 0; i < 100; i++)
        buf_put_c(&json, "\xE2\x82\xAC");
    buf_put_c(&json, "\":1}");
    const struct plan *plan = plan_with("{'additionalProperties':false}", &arena);
    CHECK(plan_parameters(plan, buf_str(&json), &arena, &out, &err) == ST_INVALID);
    size_t bad = 0;
    CHECK(str_utf8(str_c(err.where), &bad) && str_utf8(str_c(err.msg), &bad));
    CHECK(str_starts(str_c(err.where), STR("/parameters/\xE2\x82\xAC")), "%s", err.where);
    buf_release(&json);
    arena_release(&arena);
}
