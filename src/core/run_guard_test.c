/* core/run_guard_test.c: what core/run.h offers to producers: the guard, its refusals, and default
 * causes. */
#include "base/json.h"
#include "core/run.h"
#include "test.h"

static struct event event_of(const char *type, const char *step, int64_t attempt) {
    struct event e = {.type_name = str_c(type),
                      .subject = str_c(step),
                      .engine_attempt = 1,
                      .logical_attempt = attempt};
    e.type = event_type_of(e.type_name);
    return e;
}

/* Reduces "Type" or "Type step" or "Type step attempt", separated by commas. */
static void reduce(struct run *run, struct arena *arena, const char *program) {
    str rest = str_c(program);
    while (rest.len > 0) {
        str line;
        if (!str_split(rest, ',', &line, &rest)) rest = STR_NONE;
        str type;
        str words;
        str step = STR_NONE;
        str number = STR("1");
        str after;
        if (str_split(line, ' ', &type, &words) && str_split(words, ' ', &step, &after))
            number = after;
        struct event_record rec = {.seq = run->head.last_seq + 1, .run_seq = run->head.run_seq + 1};
        rec.event.type_name = arena_str(arena, type);
        rec.event.type = event_type_of(rec.event.type_name);
        rec.event.subject = step;
        CHECK(str_to_int(number, &rec.event.logical_attempt), "%s", program);
        struct transition bad;
        struct error err = {0};
        CHECK(run_apply(run, &rec, arena, &bad, NULL, &err) == ST_OK, "%s", program);
    }
}

static struct run run_after(const char *program, struct arena *arena) {
    struct run run = {0};
    reduce(&run, arena, program);
    return run;
}

TEST(run_guard_lets_legal_events_pass) {
    static const struct {
        const char *program, *type, *step;
        int64_t attempt;
    } cases[] = {
        {"", "RunQueued", NULL, 1},
        {"", "RunStarted", NULL, 1},
        {"RunQueued", "RunApproved", NULL, 1},
        {"RunQueued", "RunFailed", NULL, 1},
        {"RunStarted", "StepStarted", "a", 1},
        {"RunStarted", "StepSkipped", "a", 1},
        {"RunStarted,StepStarted a,StepFailed a", "StepStarted", "a", 2},
        {"RunStarted,StepStarted a,StepFailed a", "StepSkipped", "a", 2},
        {"RunStarted,StepStarted a,RunPaused", "StepCompleted", "a", 1}, /* in flight: may end */
        {"RunStarted,StepStarted a,RunPaused", "StepFailed", "a", 1},
        {"RunStarted,StepStarted a,RunCancelled", "StepFailed", "a", 1},
        {"RunStarted", "RunCompleted", NULL, 1},
        {"RunStarted,StepStarted a,StepCompleted a,StepSkipped b", "RunCompleted", NULL, 1},
        {"RunStarted,StepStarted a", "RunFailed", NULL, 1},
        {"RunStarted,StepStarted a,StepFailed a", "RunFailed", NULL, 1},
        {"RunStarted,StepTeleported a", "RunCompleted", NULL, 1}, /* only mentioned */
        {"RunStarted,RunCompleted", "RunTeleported", NULL, 1},
        {"RunStarted,RunPaused", "StepTeleported", "a", 9},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a;
        arena_init(&a, 1024, (size_t)1 << 20);
        struct run run = run_after(cases[i].program, &a);
        struct event e = event_of(cases[i].type, cases[i].step, cases[i].attempt);
        struct refusal why;
        CHECK(run_guard(&run, &e, &why), "case %zu", i);
        arena_release(&a);
    }
}

TEST(run_guard_refuses_and_says_what_it_expected) {
    static const struct {
        const char *program, *type, *step;
        int64_t attempt;
        const char *expected, *actual;
        bool step_level;
    } cases[] = {
        {"", "RunApproved", NULL, 1, "PENDING", "PENDING", false},
        {"RunStarted", "RunQueued", NULL, 1, "NEW", "RUNNING", false},
        {"RunStarted", "RunStarted", NULL, 1, "NEW|PENDING|APPROVED", "RUNNING", false},
        {"RunStarted", "RunResumed", NULL, 1, "PAUSED", "RUNNING", false},
        {"RunStarted,RunPaused", "RunPaused", NULL, 1, "RUNNING", "PAUSED", false},
        {"RunStarted,RunPaused", "RunCompleted", NULL, 1, "RUNNING", "PAUSED", false},
        {"RunStarted,RunCompleted", "RunFailed", NULL, 1, "PENDING|APPROVED|RUNNING|PAUSED",
         "COMPLETED", false},
        {"", "RunCancelled", NULL, 1, "PENDING|APPROVED|RUNNING|PAUSED", "PENDING", false},
        {"RunStarted", "StepCompleted", "a", 1, "RUNNING", "PENDING", true},
        {"RunStarted,StepStarted a", "StepStarted", "a", 1, "PENDING", "RUNNING", true},
        {"RunStarted,StepStarted a", "StepStarted", "a", 2, "PENDING", "PENDING", true},
        {"RunStarted,StepStarted a,StepCompleted a", "StepCompleted", "a", 1, "RUNNING", "SUCCESS",
         true},
        {"RunStarted,StepSkipped a", "StepFailed", "a", 1, "RUNNING", "SKIPPED", true},
        /* rules of the guard alone */
        {"", "StepStarted", "a", 1, "RUNNING", "PENDING", true},
        {"RunQueued,RunApproved", "StepSkipped", "a", 1, "RUNNING", "APPROVED", true},
        {"RunStarted,RunPaused", "StepStarted", "a", 1, "RUNNING", "PAUSED", true},
        {"RunStarted,RunFailed", "StepSkipped", "a", 1, "RUNNING", "FAILED", true},
        {"RunStarted,StepStarted a", "RunCompleted", NULL, 1, "every step SUCCESS or SKIPPED",
         "a step is RUNNING", false},
        {"RunStarted,StepStarted a,StepFailed a", "RunCompleted", NULL, 1,
         "every step SUCCESS or SKIPPED", "a step is FAILED", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a;
        arena_init(&a, 1024, (size_t)1 << 20);
        struct run run = run_after(cases[i].program, &a);
        struct event e = event_of(cases[i].type, cases[i].step, cases[i].attempt);
        struct refusal why;
        CHECK(!run_guard(&run, &e, &why), "case %zu", i);
        CHECK(strcmp(why.expected, cases[i].expected) == 0, "case %zu: %s", i, why.expected);
        CHECK(strcmp(why.actual, cases[i].actual) == 0, "case %zu: %s", i, why.actual);
        CHECK(str_eq(why.attempted_type, str_c(cases[i].type)), "case %zu", i);
        CHECK(why.step_level == cases[i].step_level, "case %zu", i);
        arena_release(&a);
    }
}

/* The guard knows no more than the reducer: what it lets pass, the tables allow. */
TEST(run_guard_is_at_least_as_strict_as_the_tables) {
    static const char *const programs[] = {"",
                                           "RunQueued",
                                           "RunStarted",
                                           "RunStarted,RunPaused",
                                           "RunStarted,RunCompleted",
                                           "RunStarted,StepStarted a",
                                           "RunStarted,StepStarted a,StepFailed a",
                                           "RunStarted,StepSkipped a,RunPaused"};
    for (size_t p = 0; p < COUNT_OF(programs); p++) {
        struct arena a;
        arena_init(&a, 1024, (size_t)1 << 20);
        struct run run = run_after(programs[p], &a);
        for (int t = 0; t < EVENT_SIGNAL_RECEIVED * 3; t++) {
            const struct event_type_info *info = event_type_info((enum event_type)(t / 3));
            struct event e = {.type = (enum event_type)(t / 3), .type_name = info->name};
            e.logical_attempt = t % 3 + 1;
            if (info->family == FAMILY_STEP) e.subject = STR("a");
            struct refusal why;
            struct transition bad;
            CHECK(run_allows(&run, &e, &bad) || !run_guard(&run, &e, &why), "%s: %d", programs[p],
                  t);
        }
        arena_release(&a);
    }
}

TEST(run_refusal_json_has_the_four_members) {
    struct arena a;
    arena_init(&a, 1024, (size_t)1 << 20);
    struct run run = run_after("RunStarted,RunCompleted", &a);
    struct event e = event_of("RunStarted", NULL, 1);
    struct refusal why;
    CHECK(!run_guard(&run, &e, &why));
    struct refusal copy = why; /* `expected` points into the one that was filled */
    struct buf b;
    buf_init(&b, 1024);
    refusal_json(&copy, &b);
    CHECK(
        str_eq(buf_str(&b),
               STR("{\"invalidTransitionDetected\":true,\"expectedState\":\"NEW|PENDING|APPROVED\","
                   "\"actualState\":\"COMPLETED\",\"attemptedEventType\":\"RunStarted\"}")),
        "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
    arena_release(&a);
}

TEST(run_default_causes) {
    static const struct {
        const char *program, *type, *step;
        int64_t cause;
    } cases[] = {
        {"", "RunQueued", NULL, 0}, /* a root */
        {"", "StepStarted", "a", 0},
        {"RunStarted", "RunPaused", NULL, 1},
        {"RunStarted,StepStarted a,StepStarted b", "RunPaused", NULL, 3}, /* the newest of all */
        {"RunStarted,StepStarted a", "StepStarted", "b", 1}, /* the newest run-level one */
        {"RunStarted,RunPaused,RunResumed,StepStarted a", "StepStarted", "b", 3},
        {"RunStarted,StepStarted a,StepStarted b", "StepCompleted", "a", 2}, /* its own step's */
        {"RunStarted,StepStarted a,StepStarted b", "ToolCalled", "a", 2},
        {"RunStarted,StepTeleported a", "StepStarted", "a", 2},
        {"RunStarted,StepStarted a", "StepTeleported", "a", 2},
        {"RunStarted,StepStarted a", "RunTeleported", NULL, 2},
        {"StepStarted a", "StepStarted", "b", 1}, /* no run-level event: the newest of all */
        {"RunStarted,StepStarted a", "SignalReceived", "s", 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a;
        arena_init(&a, 1024, (size_t)1 << 20);
        struct run run = run_after(cases[i].program, &a);
        struct event e = event_of(cases[i].type, cases[i].step, 1);
        CHECK(run_default_cause(&run, &e) == cases[i].cause, "case %zu: %lld", i,
              (long long)run_default_cause(&run, &e));
        arena_release(&a);
    }
}
