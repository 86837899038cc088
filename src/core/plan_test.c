/* core/plan_test.c: plans that are good, versions, retries, and plans of any shape and size. */
#include "core/plan.h"

#include <time.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/os.h"
#include "core/plan_schema.h"
#include "test.h"

#define ARENA_MAX ((size_t)1 << 30)
#define TEXT_MAX ((size_t)64 << 20)

static struct plan_problems problems;

static str quoted(const char *text, struct arena *arena) {
    str from = str_c(text);
    char *to = arena_alloc(arena, from.len + 1);
    for (size_t i = 0; i < from.len; i++)
        to[i] = (char)(from.ptr[i] == '\'' ? '"' : from.ptr[i]);
    return str_n(to, from.len);
}

static struct plan *good_text(str text, struct arena *arena) {
    struct error err = {0};
    struct plan *plan = NULL;
    status st = plan_parse(text, arena, &plan, &problems, &err);
    CHECK(st == ST_OK, "%s at %s", err.msg, err.where);
    CHECK(plan != NULL && problems.count == 0 && !problems.more);
    return plan;
}

static struct plan *good(const char *text, struct arena *arena) {
    return good_text(quoted(text, arena), arena);
}

static bool is(str s, const char *want) { return s.ptr != NULL && str_eq(s, str_c(want)); }

/* ---- what a plan says ---- */

/* WE-3.2-2: the optional members of metadata have defaults. WE-4-11: fallbackBehavior is reject. */
TEST(plan_has_defaults_for_what_is_left_out) {
    struct arena arena;
    arena_init(&arena, 4096, ARENA_MAX);
    const struct plan *p = good("{'schemaVersion':'v1.3','metadata':{'planId':'orders',"
                                "'planVersion':'7'},'steps':[{'stepId':'a','type':'noop'}]}",
                                &arena);
    CHECK(is(p->schema_version, "v1.3") && is(p->plan_id, "orders") && is(p->plan_version, "7"));
    CHECK(p->capability_count == 0 && p->fallback == PLAN_REJECT && is(p->target_adapter, "any"));
    CHECK(p->parameters == NULL && p->concurrency == PLAN_CONCURRENCY_DEFAULT);
    CHECK(p->step_count == 1);
    const struct plan_step *s = &p->steps[0];
    CHECK(is(s->id, "a") && s->type == PLAN_NOOP && s->dep_count == 0 && s->dependent_count == 0);
    CHECK(s->retry->attempts_max == 1 && s->retry->initial_ms == 1000 && s->retry->factor == 2);
    CHECK(s->retry->max_ms == 60000 && s->retry->jitter == 0 && s->retry->non_retryable_count == 0);
    CHECK(s->timeout_ms == 0 && s->on_failure == PLAN_FAIL && s->run_if.ptr == NULL);
    CHECK(s->phase == PHASE_APPLY && s->driver.ptr == NULL);
    arena_release(&arena);
}

static const char full_plan[] =
    "{ // everything at once\n"
    "  '$schema': 'urn:cairn:plan:v1.3',\n"
    "  'steps': [\n"
    "    {'stepId':'look','type':'exec','phase':'plan','command':'ls','output':'none'},\n"
    "    {'stepId':'extract','type':'exec','command':['./x','{{ parameters.date }}'],\n"
    "     'env':{'TOKEN':{'secret':'WAREHOUSE'},'DAY':'{{ parameters.date }}'},'cwd':'/tmp',\n"
    "     'stdin':'','output':'json','retry':{'maxAttempts':5,'nonRetryable':['EXIT_CODE']},\n"
    "     'timeoutMs':0},\n"
    "    {'stepId':'load','type':'http','dependsOn':['extract'],'method':'POST',\n"
    "     'url':'https://warehouse.example/load','headers':{'Authorization':{'secret':'T'},\n"
    "     'X-Day':'{{ parameters.date }}'},'body':{'rows':['{{ steps.extract.output.rows }}']},\n"
    "     'expectStatus':[200,204],'onFailure':'continue','runIf':'steps.extract.output.rows'},\n"
    "    {'stepId':'ping','type':'http','url':'{{ parameters.url }}','output':'text'},\n"
    "    {'stepId':'work','type':'task','queue':'big','input':[1,null,'x'],'leaseMs':30000},\n"
    "    {'stepId':'tell','type':'effect','effectType':'WEBHOOK_CALL','payload':{'a':'b'},\n"
    "     'wait':true},\n"
    "    {'stepId':'nap','type':'sleep','durationMs':1500},\n"
    "    {'stepId':'dawn','type':'sleep','until':'2026-02-16T08:00:00Z'},\n"
    "    {'stepId':'later','type':'sleep','until':'{{ parameters.when }}'},\n"
    "    {'stepId':'hear','type':'wait','signal':'ready','expiresInMs':5},\n"
    "    {'stepId':'release','type':'approval','roles':['operator','admin'],\n"
    "     'expiresInMs':86400000,'message':'ship {{ parameters.date }}?',\n"
    "     'onFailure':'skipDependents','dependsOn':['load','nap']},\n"
    "    {'stepId':'jq','type':'package','name':'jq','version':'1.7','ensure':'present',\n"
    "     'check':['jq','--version'],'driver':'apt','phase':'verify'},\n"
    "    {'stepId':'done','type':'noop','phase':'capture','dependsOn':['release']},\n"
    "  ],\n"
    "  'concurrency': 8, /* at most */\n"
    "  'defaults': {'retry':{'maxAttempts':3,'initialMs':10,'factor':1.5,'maxMs':500,\n"
    "               'jitter':0.25},'timeoutMs':60000},\n"
    "  'parameters': {'type':'object','properties':{'date':{'type':'string'}}},\n"
    "  'metadata': {'planId':'orders','planVersion':'7','fallbackBehavior':'degrade',\n"
    "    'requiresCapabilities':['signals','durableTimers'],'targetAdapter':'local'},\n"
    "  'schemaVersion': 'v1.3',\n"
    "}\n";

static void check_top_level(const struct plan *p) {
    CHECK(p->capability_count == 2 && is(p->capabilities[1], "durableTimers"));
    CHECK(p->fallback == PLAN_DEGRADE && is(p->target_adapter, "local") && p->concurrency == 8);
    CHECK(yyjson_is_obj(p->parameters) && p->step_count == 13);
    static const enum plan_type types[] = {
        PLAN_EXEC,  PLAN_EXEC,  PLAN_HTTP, PLAN_HTTP,     PLAN_TASK,    PLAN_EFFECT, PLAN_SLEEP,
        PLAN_SLEEP, PLAN_SLEEP, PLAN_WAIT, PLAN_APPROVAL, PLAN_PACKAGE, PLAN_NOOP};
    for (size_t i = 0; i < COUNT_OF(types); i++)
        CHECK(p->steps[i].type == types[i], "step %zu", i);
}

static void check_exec_and_http(const struct plan *p) {
    const struct plan_step *extract = &p->steps[1];
    CHECK(p->steps[0].output == PLAN_OUTPUT_NONE && p->steps[0].phase == PHASE_PLAN);
    CHECK(extract->output == PLAN_OUTPUT_JSON && extract->timeout_ms == 0);
    CHECK(extract->retry->attempts_max == 5 && extract->retry->initial_ms == 10);
    CHECK(extract->retry->factor == 1.5 && extract->retry->max_ms == 500);
    CHECK(extract->retry->jitter == 0.25 && extract->retry->non_retryable_count == 1);
    CHECK(is(extract->retry->non_retryable[0], "EXIT_CODE"));
    const struct plan_step *load = &p->steps[2];
    CHECK(load->output == PLAN_OUTPUT_JSON && load->on_failure == PLAN_CONTINUE);
    CHECK(load->timeout_ms == 60000 && load->retry->attempts_max == 3);
    CHECK(is(load->run_if, "steps.extract.output.rows"));
    CHECK(is(str_c(yyjson_get_str(json_member(load->body, "method"))), "POST"));
    CHECK(p->steps[3].output == PLAN_OUTPUT_TEXT);
}

static void check_other_types(const struct plan *p) {
    CHECK(is(p->steps[4].queue, "big"));
    CHECK(is(p->steps[5].effect_type, "WEBHOOK_CALL") && p->steps[5].wait);
    CHECK(p->steps[4].effect_type.ptr == NULL && !p->steps[4].wait);
    CHECK(p->steps[6].duration_ms == 1500 && p->steps[6].until.ptr == NULL);
    CHECK(p->steps[7].duration_ms == -1 && is(p->steps[7].until, "2026-02-16T08:00:00Z"));
    CHECK(is(p->steps[8].until, "{{ parameters.when }}"));
    CHECK(is(p->steps[9].signal, "ready") && p->steps[9].expires_in_ms == 5);
    const struct plan_step *release = &p->steps[10];
    CHECK(release->role_count == 2 && is(release->roles[1], "admin"));
    CHECK(release->expires_in_ms == 86400000 && release->on_failure == PLAN_SKIP_DEPENDENTS);
    CHECK(release->dep_count == 2 && release->deps[0] == 2 && release->deps[1] == 6);
    CHECK(is(p->steps[11].driver, "apt") && p->steps[11].phase == PHASE_VERIFY);
    CHECK(p->steps[12].phase == PHASE_CAPTURE && p->steps[12].deps[0] == 10);
}

TEST(plan_reads_every_field) {
    struct arena arena;
    arena_init(&arena, 4096, ARENA_MAX);
    const struct plan *p = good(full_plan, &arena);
    check_top_level(p);
    check_exec_and_http(p);
    check_other_types(p);
    arena_release(&arena);
}

TEST(plan_outlives_its_text_and_knows_its_digest) {
    struct arena arena;
    struct arena other;
    uint8_t want[SHA256_LEN];
    arena_init(&arena, 4096, ARENA_MAX);
    arena_init(&other, 4096, ARENA_MAX);
    str text = quoted(full_plan, &other);
    sha256_of(text, want);
    const struct plan *p = good_text(text, &arena);
    CHECK(memcmp(p->sha256, want, sizeof want) == 0 && p->bytes == text.len);
    arena_release(&other); /* AddressSanitizer would see a use of it below */
    CHECK(is(p->plan_id, "orders") && plan_find(p, STR("release")) == 10);
    CHECK(is(p->steps[2].run_if, "steps.extract.output.rows"));
    CHECK(plan_find(p, STR("nowhere")) == -1 && plan_find(p, STR("")) == -1);
    arena_release(&arena);
}

TEST(plan_accepts_unusual_ids) {
    struct arena arena;
    arena_init(&arena, 4096, ARENA_MAX);
    static const char *const ids[] = {"\xC3\xA9t\xC3\xA9 1", "run", "a.b[0]", "{", "'",
                                      "\xF0\x9F\x9A\x80"};
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        struct buf text;
        buf_init(&text, 4096);
        buf_put(&text, quoted("{'schemaVersion':'v1.0','metadata':{'planId':'p','planVersion':"
                              "' '},'steps':[{'type':'noop','stepId':",
                              &arena));
        buf_put_json_str(&text, str_c(ids[i]));
        buf_put_c(&text, "}]}");
        const struct plan *p = good_text(buf_str(&text), &arena);
        CHECK(is(p->steps[0].id, ids[i]) && plan_find(p, str_c(ids[i])) == 0);
        buf_release(&text);
    }
    char longest[256];
    memset(longest, 'x', 255);
    longest[255] = 0;
    struct error err = {0};
    struct plan *plan = NULL;
    for (int extra = 0; extra < 2; extra++) {
        struct buf b;
        buf_init(&b, 4096);
        buf_put(&b, quoted("{'schemaVersion':'v1.0','metadata':{'planId':'p','planVersion':'1'},"
                           "'steps':[{'type':'noop','stepId':'",
                           &arena));
        buf_printf(&b, "%s%s\"}]}", longest, extra ? "x" : "");
        status st = plan_parse(buf_str(&b), &arena, &plan, &problems, &err);
        CHECK(st == (extra ? ST_INVALID : ST_OK), "%s", err.msg);
        buf_release(&b);
    }
    arena_release(&arena);
}

/* An effect is waited for only if the plan says so. */
TEST(plan_effect_waits_if_it_says_so) {
    struct arena arena;
    arena_init(&arena, 4096, ARENA_MAX);
    const struct plan *p =
        good("{'schemaVersion':'v1.3','metadata':{'planId':'p','planVersion':'1'},'steps':["
             "{'stepId':'a','type':'effect','effectType':'A','payload':{}},"
             "{'stepId':'b','type':'effect','effectType':'B','payload':{},'wait':false},"
             "{'stepId':'c','type':'effect','effectType':'C','payload':{},'wait':true}]}",
             &arena);
    CHECK(is(p->steps[0].effect_type, "A") && !p->steps[0].wait);
    CHECK(is(p->steps[1].effect_type, "B") && !p->steps[1].wait);
    CHECK(is(p->steps[2].effect_type, "C") && p->steps[2].wait);
    arena_release(&arena);
}

TEST(plan_knows_which_types_are_executed) {
    for (int i = 0; i < PLAN_TYPE_COUNT; i++) {
        bool want = i == PLAN_EXEC || i == PLAN_HTTP || i == PLAN_EFFECT;
        CHECK(plan_type_is_executed((enum plan_type)i) == want, "%s",
              plan_type_name((enum plan_type)i));
    }
}

TEST(plan_names_its_types_and_phases) {
    CHECK(strcmp(plan_type_name(PLAN_EXEC), "exec") == 0);
    CHECK(strcmp(plan_type_name(PLAN_PACKAGE), "package") == 0);
    CHECK(strcmp(plan_phase_name(PHASE_CAPTURE), "capture") == 0);
    for (int i = 0; i < PLAN_TYPE_COUNT; i++)
        CHECK(plan_type_name((enum plan_type)i)[0] != 0);
}

/* ---- versions ---- */

/* WE-3.1-9: anything that is not a version we know is refused, always with the same code. */
TEST(plan_schema_versions_unknown_are_refused) {
    static const char *const bad[] = {"v9.0",
                                      "v1.99",
                                      "1.2",
                                      "vX",
                                      "v1.4",
                                      "v0.9",
                                      "V1.2",
                                      "v1.",
                                      "v.2",
                                      " v1.2",
                                      "v1.2 ",
                                      "v1.2.0",
                                      "v01.2",
                                      "v1.02",
                                      "v1.-1",
                                      "v+1.2",
                                      "",
                                      "v2.0",
                                      "v1.18446744073709551617",
                                      "v99999999999999999999.0"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct error err = {0};
        bool deprecated = false;
        CHECK(plan_schema_check(str_c(bad[i]), &deprecated, &err) == ST_INVALID, "%s", bad[i]);
        CHECK(err.reason == REASON_PLAN_SCHEMA_VERSION_UNSUPPORTED, "%s", bad[i]);
    }
}

/* WE-3.1-10: with v1.5 as the current version three minors back are accepted, and no more. */
TEST(plan_schema_versions_three_back_are_accepted) {
    static const struct {
        const char *version;
        bool ok;
    } cases[] = {{"v1.5", true},  {"v1.4", true},  {"v1.3", true}, {"v1.2", true},
                 {"v1.1", false}, {"v1.6", false}, {"v0.9", false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        int minor = -1;
        status st = plan_schema_window(str_c(cases[i].version), 1, 5, &minor, &err);
        CHECK((st == ST_OK) == cases[i].ok, "%s", cases[i].version);
        CHECK(!cases[i].ok || minor == cases[i].version[3] - '0', "%s", cases[i].version);
    }
}

/* WE-3.1-11: each supported version has a deprecation date or "none". (The warning of a deprecated
 * one is in capability_test.c.) docs/plans.md has the same table. */
TEST(plan_schema_versions_have_a_deprecation_policy) {
    struct arena arena;
    struct error err = {0};
    str doc = STR_NONE;
    size_t count = 0;
    const struct plan_schema_version *versions = plan_schema_versions(&count);
    arena_init(&arena, 4096, ARENA_MAX);
    CHECK(count == PLAN_SCHEMA_MINORS_BACK + 1);
    CHECK(strcmp(versions[count - 1].name, PLAN_SCHEMA_VERSION) == 0);
    CHECK(file_read(STR("docs/plans.md"), (size_t)1 << 20, &arena, &doc, &err) == ST_OK, "%s",
          err.msg);
    for (size_t i = 0; i < count; i++) {
        bool deprecated = false;
        const char *date = versions[i].deprecated_after;
        bool none = strcmp(date, "none") == 0;
        CHECK(plan_schema_check(str_c(versions[i].name), &deprecated, &err) == ST_OK);
        CHECK(deprecated == !none && (none || strlen(date) == 10));
        char row[64];
        (void)snprintf(row, sizeof row, "| `%s` | %s |", versions[i].name, date);
        CHECK(memmem(doc.ptr, doc.len, row, strlen(row)) != NULL, "docs/plans.md lacks %s", row);
    }
    arena_release(&arena);
}

TEST(plan_schema_is_the_published_one) {
    struct arena arena;
    struct error err = {0};
    str published = STR_NONE;
    yyjson_val *root = NULL;
    arena_init(&arena, 4096, ARENA_MAX);
    CHECK(file_read(STR("contracts/plan.v1.3.schema.json"), (size_t)1 << 20, &arena, &published,
                    &err) == ST_OK,
          "%s", err.msg);
    CHECK(str_eq(published, plan_schema_json()));
    struct json_limits limits = {(size_t)1 << 20, 32};
    CHECK(json_parse(plan_schema_json(), limits, &arena, &root, &err) == ST_OK, "%s", err.msg);
    yyjson_val *types = json_member(
        json_member(json_member(json_member(json_member(root, "$defs"), "step"), "properties"),
                    "type"),
        "enum");
    CHECK(yyjson_arr_size(types) == PLAN_TYPE_COUNT);
    for (size_t i = 0; i < PLAN_TYPE_COUNT; i++)
        CHECK(yyjson_equals_str(yyjson_arr_get(types, i), plan_type_name((enum plan_type)i)));
    arena_release(&arena);
}

/* ---- retry ---- */

TEST(plan_backoff_grows_to_its_maximum) {
    struct plan_retry retry = {.initial_ms = 1000, .max_ms = 60000, .factor = 2};
    static const int64_t want[] = {1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000};
    for (size_t i = 0; i < COUNT_OF(want); i++)
        CHECK(plan_backoff_ms(&retry, (int64_t)i + 1, i * 7919) == want[i], "attempt %zu", i + 1);
    CHECK(plan_backoff_ms(&retry, 0, 0) == 1000 && plan_backoff_ms(&retry, -5, 0) == 1000);
    CHECK(plan_backoff_ms(&retry, INT64_MAX, UINT64_MAX) == 60000);
    retry.jitter = 0.5; /* from half of it to one and a half of it */
    CHECK(plan_backoff_ms(&retry, 1, 0) == 500 && plan_backoff_ms(&retry, 1, UINT64_MAX) == 1500);
    CHECK(plan_backoff_ms(&retry, 1, (uint64_t)1 << 63) == 1000);
    retry.initial_ms = 0;
    CHECK(plan_backoff_ms(&retry, 9, UINT64_MAX) == 0);
}

static uint64_t random_next(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

TEST(plan_backoff_stays_within_its_bounds) {
    uint64_t seed = 1;
    for (int i = 0; i < 20000; i++) {
        struct plan_retry retry = {
            .initial_ms = (int64_t)(random_next(&seed) % (uint64_t)PLAN_DELAY_MS_MAX),
            .max_ms = (int64_t)(random_next(&seed) % (uint64_t)PLAN_DELAY_MS_MAX),
            .factor = 1 + (double)(random_next(&seed) % 1000) / 100,
            .jitter = (double)(random_next(&seed) % 101) / 100};
        if (i % 3 == 0) retry.initial_ms %= 5000;
        struct plan_retry plain = retry;
        plain.jitter = 0;
        int64_t attempt = (int64_t)(random_next(&seed) % 1200);
        uint64_t random = random_next(&seed);
        int64_t delay = plan_backoff_ms(&retry, attempt, random);
        CHECK(delay >= 0 && (double)delay <= (double)retry.max_ms * (1 + retry.jitter), "case %d",
              i);
        CHECK(delay == plan_backoff_ms(&retry, attempt, random), "case %d", i);
        int64_t before = plan_backoff_ms(&plain, attempt, random);
        CHECK(before <= plan_backoff_ms(&plain, attempt + 1, ~random), "case %d", i);
        CHECK(before <= plain.max_ms, "case %d", i);
    }
}

/* ---- size and shape ---- */

static void begin(struct buf *text) {
    buf_init(text, TEXT_MAX);
    buf_put_c(text, "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":"
                    "\"1\"},\"steps\":[");
}

enum { MANY = 100000 };

static uint64_t edge_hash(uint32_t from, uint32_t to) {
    uint64_t state = (uint64_t)from << 32 | to;
    return random_next(&state);
}

/* Links are consistent: j is a dependency of i exactly when i is a dependent of j. Both sides are
 * sets without repetition, so equal sums of hashes will do. */
static void check_links(const struct plan *p) {
    uint64_t deps = 0;
    uint64_t dependents = 0;
    for (uint32_t i = 0; i < p->step_count; i++) {
        const struct plan_step *s = &p->steps[i];
        for (uint32_t k = 0; k < s->dep_count; k++)
            deps += edge_hash(s->deps[k], i);
        for (uint32_t k = 0; k < s->dependent_count; k++) {
            dependents += edge_hash(i, s->dependents[k]);
            CHECK(k == 0 || s->dependents[k - 1] < s->dependents[k], "step %u", i);
        }
    }
    CHECK(deps == dependents);
}

static void check_many(struct buf *text, const char *what) {
    struct arena arena;
    arena_init(&arena, 4096, ARENA_MAX);
    buf_put_c(text, "]}");
    CHECK(!text->full);
    clock_t start = clock(); /* of the processor: others may use it, too */
    const struct plan *p = good_text(buf_str(text), &arena);
    int64_t ms = (int64_t)(clock() - start) * 1000 / CLOCKS_PER_SEC;
    CHECK(ms < 5000, "%s took %lld ms", what, (long long)ms); /* quadratic would take minutes */
    CHECK(p->step_count == MANY);
    check_links(p);
    char id[32];
    (void)snprintf(id, sizeof id, "s%d", MANY - 1);
    CHECK(plan_find(p, str_c(id)) >= 0);
    arena_release(&arena);
    buf_release(text);
}

TEST(plan_of_100000_steps_in_a_chain) {
    struct buf text;
    begin(&text);
    for (int i = 0; i < MANY; i++) { /* the last one first, which needs the longest walk */
        buf_printf(&text, "%s{\"stepId\":\"s%d\",\"type\":\"noop\",\"dependsOn\":[", i ? "," : "",
                   i);
        if (i + 1 < MANY) buf_printf(&text, "\"s%d\"", i + 1);
        buf_put_c(&text, "]}");
    }
    check_many(&text, "a chain");
}

TEST(plan_of_100000_steps_fanned_out_and_in) {
    struct buf text;
    begin(&text);
    buf_put_c(&text, "{\"stepId\":\"s0\",\"type\":\"noop\"}");
    for (int i = 1; i < MANY - 1; i++) {
        buf_printf(&text,
                   ",{\"stepId\":\"s%d\",\"type\":\"exec\",\"command\":[\"x\",\"{{ "
                   "parameters.a }}\"],\"dependsOn\":[\"s0\"]}",
                   i);
    }
    buf_printf(&text, ",{\"stepId\":\"s%d\",\"type\":\"noop\",\"dependsOn\":[\"s0\"", MANY - 1);
    for (int i = 1; i < MANY - 1; i++)
        buf_printf(&text, ",\"s%d\"", i);
    buf_put_c(&text, "]}");
    check_many(&text, "a fan");
}

TEST(plan_of_100000_steps_in_one_cycle) {
    struct buf text;
    struct arena arena;
    struct error err = {0};
    struct plan *plan = NULL;
    begin(&text);
    for (int i = 0; i < MANY; i++) {
        buf_printf(&text, "%s{\"stepId\":\"s%d\",\"type\":\"noop\",\"dependsOn\":[\"s%d\"]}",
                   i ? "," : "", i, (i + 1) % MANY);
    }
    buf_put_c(&text, "]}");
    arena_init(&arena, 4096, ARENA_MAX);
    CHECK(plan_parse(buf_str(&text), &arena, &plan, &problems, &err) == ST_INVALID);
    CHECK(problems.count == 1 && problems.items[0].code == REASON_PLAN_CYCLE);
    CHECK(strstr(err.msg, "s0 -> s1 -> s2 -> s3 -> s4 -> s5 -> s6 -> ... -> s99999 -> s0"), "%s",
          err.msg);
    arena_release(&arena);
    buf_release(&text);
}

/* A random DAG: edges lead from a step to one that is earlier in a random order. */
static uint32_t put_dag(struct buf *text, uint64_t *seed, uint32_t n, bool cycle) {
    uint32_t order[64];
    uint32_t edges = 0;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)(random_next(seed) % i);
        uint32_t swap = order[i - 1];
        order[i - 1] = order[k];
        order[k] = swap;
    }
    begin(text);
    for (uint32_t i = 0; i < n; i++) {
        const char *comma = "";
        buf_printf(text, "%s{\"stepId\":\"s%u\",\"type\":\"noop\",\"dependsOn\":[", i ? "," : "",
                   i);
        for (uint32_t k = 0; k < n; k++) {
            bool back = cycle && order[i] == 0 && order[k] == n - 1; /* closes the cycle below */
            bool chain = cycle && order[i] == order[k] + 1;
            if (!back && !chain && (order[k] >= order[i] || random_next(seed) % 4)) continue;
            buf_printf(text, "%s\"s%u\"", comma, k);
            comma = ",";
            edges++;
        }
        buf_put_c(text, "]}");
    }
    buf_put_c(text, "]}");
    return edges;
}

TEST(plan_links_any_graph_without_a_cycle) {
    uint64_t seed = 42;
    for (int round = 0; round < 300; round++) {
        struct buf text;
        struct arena arena;
        struct error err = {0};
        struct plan *plan = NULL;
        uint32_t n = 2 + (uint32_t)(random_next(&seed) % 40);
        bool cycle = round % 3 == 2;
        uint32_t edges = put_dag(&text, &seed, n, cycle);
        arena_init(&arena, 4096, ARENA_MAX);
        status st = plan_parse(buf_str(&text), &arena, &plan, &problems, &err);
        if (cycle) {
            CHECK(st == ST_INVALID && err.reason == REASON_PLAN_CYCLE, "round %d", round);
        } else {
            CHECK(st == ST_OK, "round %d: %s", round, err.msg);
            check_links(plan);
            uint32_t found = 0;
            for (uint32_t i = 0; i < n; i++)
                found += plan->steps[i].dep_count;
            CHECK(found == edges, "round %d", round);
        }
        arena_release(&arena);
        buf_release(&text);
    }
}

/* Every allocation may fail, and nothing but ST_RETRY comes of it. (Liquid has its own test.) */
TEST(plan_survives_an_empty_machine) {
    struct arena texts;
    arena_init(&texts, 4096, ARENA_MAX);
    str text = quoted("{'schemaVersion':'v1.3','metadata':{'planId':'p','planVersion':'1',"
                      "'requiresCapabilities':['signals']},'defaults':{'retry':{'factor':3}},"
                      "'steps':[{'stepId':'a','type':'noop','retry':{'nonRetryable':['X']}},"
                      "{'stepId':'b','type':'approval','roles':['r'],'dependsOn':['a']}]}",
                      &texts);
    status st = ST_RETRY;
    for (int64_t n = 0; st != ST_OK; n++) {
        struct arena arena;
        struct error err = {0};
        struct plan *plan = NULL;
        arena_init(&arena, 16, ARENA_MAX);
        mem_fail_at(n);
        st = plan_parse(text, &arena, &plan, &problems, &err);
        mem_fail_at(-1);
        CHECK(st == ST_OK || st == ST_RETRY, "allocation %lld: %s", (long long)n, err.msg);
        arena_release(&arena);
    }
    arena_release(&texts);
}

/* The example of docs/plans.md works as it is. */
TEST(plan_example_of_the_documentation_is_good) {
    struct arena arena;
    struct error err = {0};
    str doc = STR_NONE;
    arena_init(&arena, 4096, ARENA_MAX);
    CHECK(file_read(STR("docs/plans.md"), (size_t)1 << 20, &arena, &doc, &err) == ST_OK);
    static const char fence[] = "```jsonc\n";
    const char *start = memmem(doc.ptr, doc.len, fence, sizeof fence - 1);
    CHECK(start != NULL);
    str rest = str_from(doc, (size_t)(start - doc.ptr) + sizeof fence - 1);
    const char *end = memmem(rest.ptr, rest.len, "```", 3);
    CHECK(end != NULL);
    const struct plan *p = good_text(str_n(rest.ptr, (size_t)(end - rest.ptr)), &arena);
    CHECK(p->step_count == 6 && plan_find(p, STR("publish")) == 4);
    arena_release(&arena);
}
