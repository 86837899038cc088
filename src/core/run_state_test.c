/* core/run_state_test.c: the state as JSON, there and back, and everything that is not such JSON.
 */
#include "base/limits.h"
#include "core/run.h"
#include "test.h"

static void apply(struct run *run, struct arena *arena, const char *type, str step,
                  int64_t attempt) {
    struct event_record rec = {.seq = run->head.last_seq + 2, .run_seq = run->head.run_seq + 1};
    rec.event.type_name = str_c(type);
    rec.event.type = event_type_of(rec.event.type_name);
    rec.event.subject = step;
    rec.event.logical_attempt = attempt;
    rec.event.engine_attempt = 3;
    struct transition bad;
    struct error err = {0};
    status st = run_apply(run, &rec, arena, &bad, NULL, &err);
    CHECK(st == ST_OK || st == ST_CONFLICT, "%s", err.msg);
}

/* Read back and written again: the same bytes, and it goes on like the original. */
static void check_round_trip(const struct run *run, struct arena *arena) {
    struct buf first;
    struct buf second;
    buf_init(&first, (size_t)1 << 20);
    buf_init(&second, (size_t)1 << 20);
    run_state_json(run, &first);
    struct run back;
    struct error err = {0};
    CHECK(run_state_parse(buf_str(&first), arena, &back, &err) == ST_OK, "%s: %.*s", err.msg,
          STR_ARG(buf_str(&first)));
    run_state_json(&back, &second);
    CHECK(str_eq(buf_str(&first), buf_str(&second)), "%.*s", STR_ARG(buf_str(&second)));
    for (uint32_t i = 0; i < run->step_count; i++)
        CHECK(run_step(&back, run->steps[i].id) == &back.steps[i], "step %u", i);
    buf_release(&first);
    buf_release(&second);
}

TEST(run_state_json_is_what_was_agreed) {
    struct arena a;
    arena_init(&a, 1024, (size_t)1 << 20);
    struct run run = {0};
    struct buf b;
    buf_init(&b, 4096);
    run_state_json(&run, &b);
    CHECK(str_eq(buf_str(&b),
                 STR("{\"status\":\"NEW\",\"mark\":null,\"runSeq\":0,\"lastSeq\":0,"
                     "\"runLevelSeq\":0,\"startedSeq\":0,\"endedSeq\":0,\"totalSteps\":0,"
                     "\"failedSteps\":0,\"openSteps\":0,\"badSteps\":0,\"pauses\":0,\"resumes\":0,"
                     "\"invalidEvents\":0,\"engineAttemptId\":0,\"steps\":[]}")),
          "%.*s", STR_ARG(buf_str(&b)));
    apply(&run, &a, "RunStarted", STR_NONE, 1);
    apply(&run, &a, "StepStarted", STR("say \"hi\""), 1);
    apply(&run, &a, "StepCompleted", STR("b"), 1);
    buf_clear(&b);
    run_state_json(&run, &b);
    CHECK(str_eq(buf_str(&b),
                 STR("{\"status\":\"RUNNING\",\"mark\":\"INCONSISTENT\",\"runSeq\":3,\"lastSeq\":6,"
                     "\"runLevelSeq\":2,\"startedSeq\":2,\"endedSeq\":0,\"totalSteps\":0,"
                     "\"failedSteps\":0,\"openSteps\":1,\"badSteps\":0,\"pauses\":0,\"resumes\":0,"
                     "\"invalidEvents\":1,\"engineAttemptId\":3,\"steps\":[{\"stepId\":\"say "
                     "\\\"hi\\\"\",\"state\":\"RUNNING\",\"logicalAttemptId\":1,\"startedSeq\":4,"
                     "\"endedSeq\":0,\"resultSeq\":0,\"lastSeq\":4},{\"stepId\":\"b\",\"state\":"
                     "\"NONE\",\"logicalAttemptId\":0,\"startedSeq\":0,\"endedSeq\":0,"
                     "\"resultSeq\":0,\"lastSeq\":6}]}")),
          "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
    arena_release(&a);
}

/* At every position of a life that passes through each status and state. */
TEST(run_state_survives_the_round_trip) {
    static const struct {
        const char *type, *step;
        int64_t attempt;
    } life[] = {
        {"RunQueued", NULL, 1},         {"RunApproved", NULL, 1},
        {"RunStarted", NULL, 1},        {"StepTeleported", "\xF0\x9F\xA7\xAA", 1},
        {"StepStarted", "a", 1},        {"StepFailed", "a", 1},
        {"StepStarted", "a", 2},        {"StepCompleted", "a", 2},
        {"StepCorrected", "a", 2},      {"StepSkipped", "tab\there", 1},
        {"StepStarted", "c\\d/e", 1},   {"RunPaused", NULL, 1},
        {"StepFailed", "c\\d/e", 1},    {"RunResumed", NULL, 1},
        {"StepCompleted", "c\\d/e", 1}, {"RunCompleted", NULL, 1},
        {"RunFailed", NULL, 1},
    };
    struct arena a;
    arena_init(&a, 1024, (size_t)4 << 20);
    struct run run = {0};
    check_round_trip(&run, &a);
    for (size_t i = 0; i < COUNT_OF(life); i++) {
        apply(&run, &a, life[i].type, str_c(life[i].step), life[i].attempt);
        check_round_trip(&run, &a);
    }
    CHECK(run.head.status == RUN_COMPLETED && run.head.invalid_events == 2);
    static const char *const ends[] = {"RunFailed", "RunCancelled"};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        struct run other = {0};
        apply(&other, &a, "RunStarted", STR_NONE, 1);
        apply(&other, &a, ends[i], STR_NONE, 1);
        check_round_trip(&other, &a);
    }
    arena_release(&a);
}

#define HEAD_NUMBERS                                                                               \
    "\"runSeq\":3,\"lastSeq\":6,\"runLevelSeq\":2,\"startedSeq\":2,\"endedSeq\":0,"                \
    "\"totalSteps\":0,\"failedSteps\":0,\"openSteps\":1,\"badSteps\":0,\"pauses\":0,"              \
    "\"resumes\":0,\"invalidEvents\":1,\"engineAttemptId\":3"
#define STEP_NUMBERS                                                                               \
    "\"logicalAttemptId\":1,\"startedSeq\":4,\"endedSeq\":0,\"resultSeq\":0,\"lastSeq\":4"
#define STATE(status, mark, steps)                                                                 \
    "{\"status\":" status ",\"mark\":" mark "," HEAD_NUMBERS ",\"steps\":" steps "}"
#define ONE_STEP(id, state) "{\"stepId\":" id ",\"state\":" state "," STEP_NUMBERS "}"
#define GOOD_STEP ONE_STEP("\"a\"", "\"RUNNING\"")

TEST(run_state_parse_refuses_what_it_did_not_write) {
    static const struct {
        const char *json, *what;
    } cases[] = {
        {"", "state"},
        {"{", "state"},
        {"{\"status\":\"NEW\",\"status\":\"NEW\"}", "state"},
        {"[]", "status"},
        {"{}", "status"},
        {STATE("3", "null", "[]"), "status"},
        {STATE("\"new\"", "null", "[]"), "status"},
        {STATE("\"INCONSISTENT\"", "null", "[]"), "status"},
        {"{\"status\":\"NEW\"," HEAD_NUMBERS ",\"steps\":[]}", "mark"},
        {STATE("\"NEW\"", "true", "[]"), "mark"},
        {STATE("\"NEW\"", "\"STALLED_INVALID_TRANSITION\"", "[]"), "mark"},
        {"{\"status\":\"NEW\",\"mark\":null," HEAD_NUMBERS "}", "steps"},
        {STATE("\"NEW\"", "null", "{}"), "steps"},
        {STATE("\"NEW\"", "null", "null"), "steps"},
        {STATE("\"NEW\"", "null", "[1]"), "stepId"},
        {STATE("\"NEW\"", "null", "[{}]"), "stepId"},
        {STATE("\"NEW\"", "null", "[" ONE_STEP("7", "\"RUNNING\"") "]"), "stepId"},
        {STATE("\"NEW\"", "null", "[{\"stepId\":\"a\"," STEP_NUMBERS "}]"), "state"},
        {STATE("\"NEW\"", "null", "[" ONE_STEP("\"a\"", "2") "]"), "state"},
        {STATE("\"NEW\"", "null", "[" ONE_STEP("\"a\"", "\"COMPLETED\"") "]"), "state"},
        {STATE("\"NEW\"", "null", "[" ONE_STEP("\"a\"", "\"running\"") "]"), "state"},
        {STATE("\"NEW\"", "null", "[" GOOD_STEP "," GOOD_STEP "]"), "stepId"},
        {STATE("\"NEW\"", "null", "[{\"stepId\":\"a\",\"state\":\"NONE\"}]"), "logicalAttemptId"},
        {STATE("\"NEW\"", "null", "[[[[[[[[[]]]]]]]]]"), "state"},
    };
    struct arena a;
    arena_init(&a, 1024, (size_t)1 << 20);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run run = {.step_count = 77};
        struct error err = {0};
        CHECK(run_state_parse(str_c(cases[i].json), &a, &run, &err) == ST_CORRUPT, "case %zu", i);
        CHECK(err.reason == REASON_STATE_DAMAGED, "case %zu: %s", i, reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].what) == 0, "case %zu: %s", i, err.where);
        CHECK(run.step_count == 77, "case %zu wrote its output", i);
    }
    arena_release(&a);
}

/* Each number of the head and of a step, removed, made a text, made a fraction. */
TEST(run_state_parse_checks_every_number) {
    static const str good = STR_LIT(STATE("\"RUNNING\"", "\"INCONSISTENT\"", "[" GOOD_STEP "]"));
    static const char *const wrong[] = {"null", "\"1\"", "1.0", "1e2", "99999999999999999999"};
    struct arena a;
    arena_init(&a, 1024, (size_t)4 << 20);
    struct run run;
    struct error err = {0};
    CHECK(run_state_parse(good, &a, &run, &err) == ST_OK, "%s", err.msg);
    size_t numbers = 0;
    for (size_t i = 1; i < good.len; i++) {
        if (good.ptr[i] < '0' || good.ptr[i] > '9' || good.ptr[i - 1] != ':') continue;
        numbers++;
        for (size_t w = 0; w < COUNT_OF(wrong); w++) {
            struct buf b;
            buf_init(&b, 4096);
            buf_put(&b, str_n(good.ptr, i));
            buf_put_c(&b, wrong[w]);
            buf_put(&b, str_from(good, i + 1));
            CHECK(run_state_parse(buf_str(&b), &a, &run, &err) == ST_CORRUPT, "%.*s",
                  STR_ARG(buf_str(&b)));
            buf_release(&b);
        }
    }
    CHECK(numbers == 13 + 5, "%zu", numbers);
    arena_release(&a);
}

TEST(run_state_parse_without_memory_says_so) {
    static const str good =
        STR_LIT(STATE("\"RUNNING\"", "null", "[" GOOD_STEP "," ONE_STEP("\"b\"", "\"NONE\"") "]"));
    bool parsed = false;
    for (int64_t n = 0; !parsed && n < 100; n++) {
        struct arena a;
        arena_init(&a, 64, (size_t)1 << 20);
        struct run run;
        struct error err = {0};
        mem_fail_at(n);
        status st = run_state_parse(good, &a, &run, &err);
        mem_fail_at(-1);
        parsed = st == ST_OK;
        CHECK(parsed || st == ST_RETRY, "allocation %lld: %s", (long long)n, err.msg);
        CHECK(n > 0 || !parsed);
        arena_release(&a);
    }
    CHECK(parsed);
}
