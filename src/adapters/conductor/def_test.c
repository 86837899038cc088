#include "adapters/conductor/def.h"

#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "test.h"

/* ---- a plan, and what became of it ---- */

struct bench {
    struct arena arena;
    struct plan *plan;
    yyjson_val *start, *tasks;
};

/* `steps`: the array of a plan, with ' for ". */
static void bench_make(struct bench *b, const char *steps) {
    arena_init(&b->arena, 65536, (size_t)1 << 30);
    struct buf text;
    struct error err = {0};
    buf_init(&text, (size_t)16 << 20);
    buf_printf(&text, "{'schemaVersion':'v1.3','metadata':{'planId':'orders','planVersion':"
                      "'2.0'},'steps':[");
    buf_put_c(&text, steps);
    buf_put_c(&text, "]}");
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] == '\'') text.ptr[i] = '"';
    }
    struct plan_problems *problems = ARENA_NEW(&b->arena, struct plan_problems);
    CHECK(plan_parse(buf_str(&text), &b->arena, &b->plan, problems, &err) == ST_OK, "%s", err.msg);
    buf_clear(&text);
    struct def_start start = {.run_id = STR("run 1"),
                              .tenant_id = STR("acme"),
                              .project_id = STR("shop"),
                              .plan = b->plan,
                              .domain = STR("node-1")};
    struct arena scratch;
    arena_init(&scratch, 4096, (size_t)1 << 28);
    CHECK(def_start_json(&start, &scratch, &text, &err) == ST_OK, "%s", err.msg);
    arena_release(&scratch);
    struct json_limits limits = {(size_t)16 << 20, 64};
    CHECK(json_parse(buf_str(&text), limits, &b->arena, &b->start, &err) == ST_OK, "%s", err.msg);
    buf_release(&text);
    b->tasks = json_member(json_member(b->start, "workflowDef"), "tasks");
}

static void bench_release(struct bench *b) { arena_release(&b->arena); }

static str text_of(yyjson_val *val, const char *name) {
    str text = STR("");
    (void)json_str(json_member(val, name), &text);
    return text;
}

/* A definition in short: references in a row, a JOIN as j_x(s_a s_b), branches in brackets. */
/* NOLINTNEXTLINE(misc-no-recursion): branches have no branches */
static void shape(yyjson_val *tasks, struct buf *out) {
    size_t i;
    size_t n;
    size_t j;
    size_t m;
    yyjson_val *task;
    yyjson_val *one;
    yyjson_arr_foreach(tasks, i, n, task) {
        if (i > 0) buf_put_char(out, ' ');
        buf_put(out, text_of(task, "taskReferenceName"));
        yyjson_arr_foreach(json_member(task, "forkTasks"), j, m, one) {
            buf_put_char(out, '[');
            shape(one, out);
            buf_put_char(out, ']');
        }
        yyjson_arr_foreach(json_member(task, "joinOn"), j, m, one) {
            buf_printf(out, "%c%.*s", j == 0 ? '(' : ' ', (int)yyjson_get_len(one),
                       yyjson_get_str(one));
        }
        if (json_member(task, "joinOn")) buf_put_char(out, ')');
    }
}

#define STEP(id, deps) "{'stepId':'" id "','type':'noop','dependsOn':[" deps "]}"

TEST(conductor_def_lays_out_steps) {
    static const struct {
        const char *steps, *want;
    } cases[] = {
        {STEP("a", ""), "s_a"},
        {STEP("a", "") "," STEP("b", "'a'") "," STEP("c", "'b'"), "s_a s_b s_c"},
        /* written the other way round */
        {STEP("c", "'b'") "," STEP("b", "'a'") "," STEP("a", ""), "s_a s_b s_c"},
        /* an edge that the order of a chain implies */
        {STEP("a", "") "," STEP("b", "'a'") "," STEP("c", "'a','b'"), "s_a s_b s_c"},
        {STEP("a", "") "," STEP("b", ""), "fork[s_a][s_b] done(s_a s_b)"},
        {STEP("a", "") "," STEP("b", "'a'") "," STEP("c", "'a'") "," STEP("d", "'b','c'"),
         "fork[s_a s_b j_d(s_c) s_d][j_c(s_a) s_c] done(s_c s_d)"},
        {STEP("a", "") "," STEP("b", "") "," STEP("c", "'a','b'") "," STEP("d", "'a','b'"),
         "fork[s_a j_c(s_b) s_c][s_b j_d(s_a) s_d] done(s_c s_d)"},
        {STEP("a", "") "," STEP("b", "") "," STEP("c", "'a'") "," STEP("d", "'a','b','c'"),
         "fork[s_a s_c][s_b j_d(s_a s_c) s_d] done(s_c s_d)"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bench b;
        struct buf got;
        bench_make(&b, cases[i].steps);
        buf_init(&got, 4096);
        shape(b.tasks, &got);
        CHECK(str_eq(buf_str(&got), str_c(cases[i].want)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&got)));
        buf_release(&got);
        bench_release(&b);
    }
}

TEST(conductor_def_names_the_run) {
    struct bench b;
    bench_make(&b, "{'stepId':'a','type':'sleep','durationMs':1}");
    CHECK(str_eq(text_of(b.start, "name"), STR("plan_orders")));
    CHECK(str_eq(text_of(b.start, "correlationId"), STR("run 1")));
    CHECK(str_eq(text_of(json_member(b.start, "taskToDomain"), "cairn_step"), STR("node-1")));
    yyjson_val *input = json_member(b.start, "input");
    CHECK(str_eq(text_of(input, "runId"), STR("run 1")));
    CHECK(str_eq(text_of(input, "tenantId"), STR("acme")));
    CHECK(yyjson_is_null(json_member(input, "environmentId")));
    CHECK(str_eq(text_of(input, "planVersion"), STR("2.0")));
    yyjson_val *def = json_member(b.start, "workflowDef");
    CHECK(str_eq(text_of(def, "name"), STR("plan_orders")));
    CHECK(str_eq(text_of(def, "description"), STR("plan orders, version 2.0")));
    yyjson_val *task = yyjson_arr_get(b.tasks, 0);
    CHECK(str_eq(text_of(task, "name"), STR("cairn_step")));
    CHECK(str_eq(text_of(task, "type"), STR("SIMPLE")));
    input = json_member(task, "inputParameters");
    CHECK(str_eq(text_of(input, "runId"), STR("${workflow.input.runId}")));
    CHECK(str_eq(text_of(input, "stepId"), STR("a")));
    CHECK(str_eq(text_of(input, "type"), STR("sleep")));
    bench_release(&b);
}

/* ---- ids ---- */

static bool is_safe(str ref) {
    for (size_t i = 0; i < ref.len; i++) {
        char c = ref.ptr[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
        if (!ok) return false;
    }
    return ref.len > 2;
}

/* Every reference once, all of them safe; every input gives its step back. */
/* NOLINTNEXTLINE(misc-no-recursion): likewise */
static size_t check_refs(yyjson_val *tasks, struct map *seen, const struct plan *plan) {
    size_t steps = 0;
    size_t i;
    size_t n;
    size_t j;
    size_t m;
    yyjson_val *task;
    yyjson_val *branch;
    yyjson_arr_foreach(tasks, i, n, task) {
        str ref = text_of(task, "taskReferenceName");
        CHECK(is_safe(ref) && !map_get(seen, ref), "%.*s", STR_ARG(ref));
        CHECK(map_put(seen, ref, task));
        yyjson_arr_foreach(json_member(task, "forkTasks"), j, m, branch) {
            steps += check_refs(branch, seen, plan);
        }
        yyjson_val *input = json_member(task, "inputParameters");
        if (!input) continue;
        struct buf id;
        buf_init(&id, 1024);
        CHECK(!memmem(text_of(input, "stepId").ptr, text_of(input, "stepId").len, "${", 2));
        CHECK(def_step_take(text_of(input, "stepId"), &id) && plan_find(plan, buf_str(&id)) >= 0);
        buf_release(&id);
        steps++;
    }
    return steps;
}

static void check_all_refs(const struct bench *b) {
    struct map seen;
    map_init(&seen);
    CHECK(check_refs(b->tasks, &seen, b->plan) == b->plan->step_count);
    map_release(&seen);
}

TEST(conductor_def_makes_odd_ids_harmless) {
    struct bench b;
    bench_make(
        &b,
        STEP("a.b", "") "," STEP("a b", "") "," STEP("a_b", "") "," STEP(
            "${workflow.input.x}",
            "'a"
            ".b"
            "'") "," STEP("100%",
                          "'a b'") "," STEP("%24",
                                            "") "," STEP("\xc3\xa4",
                                                         "'a.b','a b'") "," STEP("a/b",
                                                                                 "") "," STEP("for"
                                                                                              "k",
                                                                                              "") "," STEP("done",
                                                                                                           "") "," STEP("j_a",
                                                                                                                        "'fork','"
                                                                                                                        "done'") "," STEP("$",
                                                                                                                                          ""));
    check_all_refs(&b);
    bench_release(&b);
}

TEST(conductor_def_names_long_ids) {
    char long_id[256] = {0};
    memset(long_id, 'x', 255);
    struct buf steps;
    buf_init(&steps, 1 << 16);
    for (int i = 0; i < 20; i++) { /* the same but for the last character */
        long_id[254] = (char)('a' + i);
        buf_printf(&steps, "%s{'stepId':'%s','type':'noop'}", i > 0 ? "," : "", long_id);
    }
    buf_put_char(&steps, 0);
    struct bench b;
    bench_make(&b, steps.ptr);
    check_all_refs(&b);
    bench_release(&b);
    buf_release(&steps);
    struct buf name;
    buf_init(&name, 1024);
    def_workflow_name(str_c(long_id), &name);
    CHECK(name.len < 120 && is_safe(buf_str(&name)));
    buf_release(&name);
}

TEST(conductor_def_takes_a_thousand_steps) {
    struct buf steps;
    buf_init(&steps, 1 << 20);
    for (int i = 0; i < 1000; i++) {
        buf_printf(&steps, "%s{'stepId':'step %d','type':'noop','dependsOn':[", i > 0 ? "," : "",
                   i);
        for (int d = 1; d <= 3 && i >= 7 * d; d++)
            buf_printf(&steps, "%s'step %d'", d > 1 ? "," : "", i - 7 * d);
        buf_put_c(&steps, "]}");
    }
    buf_put_char(&steps, 0);
    struct bench b;
    bench_make(&b, steps.ptr);
    check_all_refs(&b);
    CHECK(yyjson_arr_size(json_member(yyjson_arr_get(b.tasks, 0), "forkTasks")) == 7);
    bench_release(&b);
    buf_release(&steps);
}

TEST(conductor_def_has_bounds) {
    struct bench b;
    bench_make(&b, STEP("a", ""));
    struct def_start start = {.run_id = STR("r"), .plan = b.plan, .domain = STR("n")};
    for (size_t max = 0; max < 1200; max += 100) {
        struct buf out;
        struct error err = {0};
        buf_init(&out, max);
        status st = def_start_json(&start, &b.arena, &out, &err);
        CHECK(st == ST_LIMIT || (st == ST_OK && max > 400), "%zu", max);
        CHECK(st == ST_OK || err.reason == REASON_PROVIDER_PLAN_TOO_LARGE);
        buf_release(&out);
    }
    bench_release(&b);
}

TEST(conductor_def_takes_back_step_ids) {
    static const struct {
        const char *text, *want; /* NULL: refused */
    } cases[] = {{"a", "a"},       {"a%24b", "a$b"}, {"%25", "%"},  {"%2524", "%24"},
                 {"%24%25", "$%"}, {"", NULL},       {"%", NULL},   {"%2", NULL},
                 {"%41", NULL},    {"a%", NULL},     {"%2x", NULL}, {"\xc3\xa4", "\xc3\xa4"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf id;
        buf_init(&id, 255);
        bool ok = def_step_take(str_c(cases[i].text), &id);
        CHECK(ok == (cases[i].want != NULL), "case %zu", i);
        CHECK(!ok || str_eq(buf_str(&id), str_c(cases[i].want)), "case %zu", i);
        buf_release(&id);
    }
}

TEST(conductor_def_names_domains) {
    struct buf a;
    struct buf b;
    buf_init(&a, 256);
    buf_init(&b, 256);
    def_domain(STR("host-1"), &a);
    CHECK(str_eq(buf_str(&a), STR("host-1")));
    buf_clear(&a);
    def_domain(STR("host:1"), &a);
    def_domain(STR("host,1"), &b); /* a comma would be a list of domains */
    CHECK(is_safe(buf_str(&a)) && is_safe(buf_str(&b)) && !str_eq(buf_str(&a), buf_str(&b)));
    buf_release(&a);
    buf_release(&b);
}
