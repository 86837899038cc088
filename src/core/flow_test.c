/* What is decided, as tables: a plan, what happens to it, and the events that must come. */
#include "core/flow.h"

#include "base/json.h"
#include "base/time.h"
#include "test.h"

#define PLAN(more, steps)                                                                          \
    "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":\"1\"}" more           \
    ",\"steps\":[" steps "]}"
#define T0 INT64_C(1771228800000000)

struct world {
    struct arena arena, scratch, batch_arena;
    struct plan *plan;
    struct flow flow;
    struct flow_batch batch;
    struct buf log;
    int64_t now_us;
    uint32_t settle_max;
    bool may_start;
    /* What was decided so far: a flow built from these must be the same. */
    struct event_record records[2000];
    size_t count;
};

static void world_open(struct world *w, const char *plan_text) {
    struct error err = {0};
    struct plan_problems *problems;
    *w = (struct world){.now_us = T0, .may_start = true};
    arena_init(&w->arena, 4096, (size_t)512 * 1024 * 1024);
    arena_init(&w->scratch, 4096, (size_t)512 * 1024 * 1024);
    arena_init(&w->batch_arena, 4096, (size_t)512 * 1024 * 1024);
    problems = ARENA_NEW(&w->arena, struct plan_problems);
    CHECK(plan_parse(str_c(plan_text), &w->arena, &w->plan, problems, &err) == ST_OK, "%s: %s",
          err.where, err.msg);
    struct event ids = {.run_id = STR("r"),
                        .tenant_id = STR("t"),
                        .project_id = STR("p"),
                        .environment_id = STR("e"),
                        .plan_id = STR("p"),
                        .plan_version = STR("1"),
                        .engine_attempt = 1};
    CHECK(flow_init(&w->flow, w->plan, &ids, &w->arena, &w->scratch, &err) == ST_OK);
    buf_init(&w->log, (size_t)1024 * 1024);
    flow_batch_init(&w->batch, &w->batch_arena);
}

static void world_close(struct world *w) {
    buf_release(&w->log);
    arena_release(&w->arena);
    arena_release(&w->scratch);
    arena_release(&w->batch_arena);
}

/* Writes the batch down, as "a:StepStarted#1", keeps its records, and empties it. */
static void world_note(struct world *w) {
    for (uint32_t i = 0; i < w->batch.count; i++) {
        const struct flow_event *e = &w->batch.items[i];
        const struct event_type_info *info = event_type_info(e->type);
        struct event_record *rec = &w->records[w->count++];
        CHECK(w->count < COUNT_OF(w->records));
        *rec = (struct event_record){.event = w->flow.ids, .seq = (int64_t)w->count};
        rec->event.type = e->type;
        rec->event.type_name = info->name;
        rec->event.subject = arena_str(&w->arena, e->subject);
        rec->event.logical_attempt = e->attempt;
        rec->event.payload = arena_str(&w->arena, e->payload);
        rec->event.emitted_ns = w->now_us * 1000;
        rec->actor = e->actor;
        if (!event_type_is_fact(e->type)) rec->run_seq = (int64_t)w->count;
        if (event_type_is_fact(e->type)) continue;
        if (w->log.len > 0) buf_put_char(&w->log, ' ');
        if (e->step != FLOW_NO_STEP)
            buf_printf(&w->log, "%.*s:", STR_ARG(w->plan->steps[e->step].id));
        buf_put(&w->log, info->name);
        if (e->step != FLOW_NO_STEP || e->attempt > 1)
            buf_printf(&w->log, "#%lld", (long long)e->attempt);
    }
    flow_batch_init(&w->batch, &w->batch_arena);
}

static struct decision world_round(struct world *w) {
    return (struct decision){.flow = &w->flow,
                             .now_us = w->now_us,
                             .batch = &w->batch,
                             .may_start = w->may_start,
                             .settle_max = w->settle_max,
                             .version = STR("test")};
}

static void world_decide(struct world *w) {
    struct error err = {0};
    bool more = true;
    while (more) {
        struct decision d = world_round(w);
        CHECK(flow_decide(&d, &err) == ST_OK, "%s", err.msg);
        more = w->batch.more;
        world_note(w);
    }
}

static uint32_t step_index(const struct world *w, str id) {
    int64_t i = plan_find(w->plan, id);
    CHECK(i >= 0, "no step %.*s", STR_ARG(id));
    return (uint32_t)i;
}

static void world_result(struct world *w, str step, bool ok, str value, bool must_count) {
    struct error err = {0};
    bool taken = false;
    uint32_t i = step_index(w, step);
    struct decision d = world_round(w);
    struct outcome o = {.ok = ok,
                        .output = ok ? value : STR_NONE,
                        .code = ok ? STR_NONE : value,
                        .message = STR("why")};
    CHECK(flow_result(&d, i, w->flow.steps[i].attempt, &o, &taken, &err) == ST_OK, "%s", err.msg);
    CHECK(taken == must_count, "%.*s", STR_ARG(step));
    world_decide(w);
}

static status world_signal(struct world *w, str name, str step, struct error *err) {
    struct signal s = {.name = name, .step_id = step, .reason = STR("because")};
    bool nothing = false;
    CHECK(signal_validate(&s, err) == ST_OK, "%s", err->msg);
    status st = flow_signal_check(&w->flow, &s, &nothing, err);
    if (st != ST_OK || nothing) return st;
    uuid id = uuid_v5((uuid){{1}}, str_n((const char *)&w->count, sizeof(w->count)));
    struct decision d = world_round(w);
    CHECK(flow_signal(&d, &s, id, STR("op"), err) == ST_OK);
    world_decide(w);
    return ST_OK;
}

/* "a+" completes a, "a-CODE" fails it, "+100" lets so many ms pass, "!PAUSE" or "!APPROVE:step"
 * signals, "?RESUME" is a signal that must be refused, "a~" is a late answer that must not count. */
static void world_do(struct world *w, str op) {
    struct error err = {0};
    int64_t ms = 0;
    str name = STR_NONE;
    str step = STR_NONE;
    if (op.ptr[0] == '+' && str_to_int(str_from(op, 1), &ms)) {
        w->now_us += ms * 1000;
        world_decide(w);
        return;
    }
    if (op.ptr[0] == '!' || op.ptr[0] == '?') {
        if (!str_split(str_from(op, 1), ':', &name, &step)) step = STR_NONE;
        status st = world_signal(w, name, step, &err);
        CHECK((st == ST_OK) == (op.ptr[0] == '!'), "%.*s: %s", STR_ARG(op), err.msg);
        return;
    }
    if (str_ends(op, STR("+"))) {
        world_result(w, str_n(op.ptr, op.len - 1), true, STR("{\"n\":1}"), true);
    } else if (str_ends(op, STR("~"))) {
        world_result(w, str_n(op.ptr, op.len - 1), true, STR("{}"), false);
    } else {
        CHECK(str_split(op, '-', &step, &name), "%.*s", STR_ARG(op));
        world_result(w, step, false, name, true);
    }
}

static void world_program(struct world *w, const char *program) {
    str rest = str_c(program);
    str op = STR_NONE;
    while (rest.len > 0) {
        if (!str_split(rest, ' ', &op, &rest)) rest = STR("");
        if (op.len > 0) world_do(w, op);
    }
}

static void launch(struct world *w, const char *data) {
    struct error err = {0};
    struct decision d = world_round(w);
    CHECK(flow_launch(&d, str_c(data), (uuid){{7}}, STR("me"), &err) == ST_OK);
    world_decide(w);
}

/* The flow that the records make must stand exactly where the one that decided them stands. */
static void check_replay(struct world *w) {
    struct flow again;
    struct error err = {0};
    CHECK(flow_init(&again, w->plan, &w->flow.ids, &w->arena, &w->scratch, &err) == ST_OK);
    for (size_t i = 0; i < w->count; i++)
        CHECK(flow_apply(&again, &w->records[i], &err) == ST_OK, "%s", err.msg);
    CHECK(again.run.head.status == w->flow.run.head.status);
    CHECK(again.run.head.invalid_events == 0);
    CHECK(again.open == w->flow.open && again.executing == w->flow.executing);
    CHECK(again.signal_count == w->flow.signal_count);
    for (uint32_t i = 0; i < w->plan->step_count; i++) {
        const struct flow_step *a = &again.steps[i];
        const struct flow_step *b = &w->flow.steps[i];
        CHECK(a->state == b->state && a->attempt == b->attempt, "step %u", i);
        CHECK(str_eq(a->output, b->output), "step %u", i);
        bool due = a->phase == FLOW_BACKOFF && b->phase == FLOW_READY;
        /* A failure is judged when the next decision is made, with all that hangs on it. */
        CHECK(a->phase == b->phase || again.judge_count > 0 || due, "step %u: %d, was %d", i, a->phase,
              b->phase);
    }
}

#define EXEC(id, more) "{\"stepId\":\"" id "\",\"type\":\"exec\",\"command\":[\"x\"]" more "}"
#define EFFECT(id, more)                                                                           \
    "{\"stepId\":\"" id "\",\"type\":\"effect\",\"effectType\":\"EMAIL_SEND\",\"payload\":{}" more "}"
#define NOOP(id, more) "{\"stepId\":\"" id "\",\"type\":\"noop\"" more "}"
#define AFTER(id) ",\"dependsOn\":[\"" id "\"]"
#define RETRY(n) ",\"retry\":{\"maxAttempts\":" #n ",\"initialMs\":100,\"factor\":2}"

static const struct {
    const char *name, *plan, *program, *want;
} cases[] = {
    {"a chain", PLAN("", EXEC("a", "") "," EXEC("b", AFTER("a"))), "a+ b+",
     "RunStarted a:StepStarted#1 a:StepCompleted#1 b:StepStarted#1 b:StepCompleted#1 RunCompleted"},
    {"instant steps need nobody", PLAN("", NOOP("a", "") "," NOOP("b", AFTER("a"))), "",
     "RunStarted a:StepStarted#1 a:StepCompleted#1 b:StepStarted#1 b:StepCompleted#1 RunCompleted"},
    {"plan order, not text order of dependencies",
     PLAN("", EXEC("b", AFTER("a")) "," EXEC("c", "") "," EXEC("a", "")), "a+ c+ b+",
     "RunStarted c:StepStarted#1 a:StepStarted#1 a:StepCompleted#1 b:StepStarted#1 "
     "c:StepCompleted#1 b:StepCompleted#1 RunCompleted"},
    {"concurrency", PLAN(",\"concurrency\":1", EXEC("a", "") "," EXEC("b", "")), "a+ b+",
     "RunStarted a:StepStarted#1 a:StepCompleted#1 b:StepStarted#1 b:StepCompleted#1 RunCompleted"},
    {"a failure ends the run", PLAN("", EXEC("a", "") "," EXEC("b", AFTER("a"))), "a-EXIT_CODE",
     "RunStarted a:StepStarted#1 a:StepFailed#1 RunFailed"},
    {"what runs may finish before the run fails", PLAN("", EXEC("a", "") "," EXEC("b", "")),
     "a-EXIT_CODE b+",
     "RunStarted a:StepStarted#1 b:StepStarted#1 a:StepFailed#1 b:StepCompleted#1 RunFailed"},
    {"retries wait", PLAN("", EXEC("a", RETRY(3))), "a-E +99 +1 a-E +199 +1 a+",
     "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 a:StepFailed#2 "
     "a:StepRetried#3 a:StepStarted#3 a:StepCompleted#3 RunCompleted"},
    {"retries end", PLAN("", EXEC("a", RETRY(2))), "a-E +100 a-E",
     "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 a:StepFailed#2 "
     "RunFailed"},
    {"codes that are final",
     PLAN("", EXEC("a", ",\"retry\":{\"maxAttempts\":5,\"nonRetryable\":[\"BAD\"]}")), "a-BAD",
     "RunStarted a:StepStarted#1 a:StepFailed#1 RunFailed"},
    {"continue", PLAN("", EXEC("a", ",\"onFailure\":\"continue\"") "," EXEC("b", AFTER("a"))),
     "a-E b+",
     "RunStarted a:StepStarted#1 a:StepFailed#1 b:StepStarted#1 b:StepCompleted#1 RunFailed"},
    {"skipDependents, and theirs",
     PLAN("", EXEC("a", ",\"onFailure\":\"skipDependents\"") "," NOOP("b", AFTER("a")) "," NOOP(
                  "c", AFTER("b")) "," EXEC("d", "")),
     "a-E d+",
     "RunStarted a:StepStarted#1 d:StepStarted#1 a:StepFailed#1 b:StepSkipped#1 c:StepSkipped#1 "
     "d:StepCompleted#1 RunFailed"},
    {"runIf false skips, and dependents run",
     PLAN("", EXEC("a", "") "," EXEC("b", AFTER("a") ",\"runIf\":\"steps.a.output.n > 1\"") "," NOOP(
                  "c", AFTER("b"))),
     "a+",
     "RunStarted a:StepStarted#1 a:StepCompleted#1 b:StepSkipped#1 c:StepStarted#1 "
     "c:StepCompleted#1 RunCompleted"},
    {"runIf over states",
     PLAN("", EXEC("a", ",\"onFailure\":\"continue\"") "," EXEC(
                  "b", AFTER("a") ",\"runIf\":\"steps.a.state == 'FAILED'\"")),
     "a-E b+",
     "RunStarted a:StepStarted#1 a:StepFailed#1 b:StepStarted#1 b:StepCompleted#1 RunFailed"},
    {"sleep", PLAN("", "{\"stepId\":\"z\",\"type\":\"sleep\",\"durationMs\":500}"), "+499 +1",
     "RunStarted z:StepStarted#1 z:StepCompleted#1 RunCompleted"},
    {"sleep until",
     PLAN("", "{\"stepId\":\"z\",\"type\":\"sleep\",\"until\":\"2026-02-16T08:00:01Z\"}"),
     "+999 +1", "RunStarted z:StepStarted#1 z:StepCompleted#1 RunCompleted"},
    {"sleep until nonsense",
     PLAN("", "{\"stepId\":\"z\",\"type\":\"sleep\",\"until\":\"{{ parameters.none }}\"}"), "",
     "RunStarted z:StepStarted#1 z:StepFailed#1 RunFailed"},
    {"a wait is over in time",
     PLAN("", "{\"stepId\":\"w\",\"type\":\"wait\",\"signal\":\"go\",\"expiresInMs\":50}"), "+50",
     "RunStarted w:StepStarted#1 w:StepFailed#1 RunFailed"},
    {"a wait ends with its signal",
     PLAN("", "{\"stepId\":\"w\",\"type\":\"wait\",\"signal\":\"go\"}"), "?other !go",
     "RunStarted w:StepStarted#1 w:StepCompleted#1 RunCompleted"},
    {"a signal may come first",
     PLAN("", EXEC("a", "") ",{\"stepId\":\"w\",\"type\":\"wait\",\"signal\":\"go\"" AFTER("a") "}"),
     "!go a+",
     "RunStarted a:StepStarted#1 a:StepCompleted#1 w:StepStarted#1 w:StepCompleted#1 RunCompleted"},
    {"approve", PLAN("", "{\"stepId\":\"ok\",\"type\":\"approval\"}"), "!APPROVE ?APPROVE",
     "RunStarted ok:StepStarted#1 ok:StepCompleted#1 RunCompleted"},
    {"reject, and no retry helps",
     PLAN("", "{\"stepId\":\"ok\",\"type\":\"approval\"" RETRY(5) "}"), "!REJECT",
     "RunStarted ok:StepStarted#1 ok:StepFailed#1 RunFailed"},
    {"approval expires", PLAN("", "{\"stepId\":\"ok\",\"type\":\"approval\",\"expiresInMs\":10}"),
     "+10", "RunStarted ok:StepStarted#1 ok:StepFailed#1 RunFailed"},
    {"two approvals need names",
     PLAN("", "{\"stepId\":\"x\",\"type\":\"approval\"},{\"stepId\":\"y\",\"type\":\"approval\"}"),
     "?APPROVE !APPROVE:y !APPROVE:x",
     "RunStarted x:StepStarted#1 y:StepStarted#1 y:StepCompleted#1 x:StepCompleted#1 RunCompleted"},
    {"pause lets work finish and starts none",
     PLAN("", EXEC("a", "") "," EXEC("b", AFTER("a"))), "!PAUSE a+ ?PAUSE !RESUME b+",
     "RunStarted a:StepStarted#1 RunPaused a:StepCompleted#1 RunResumed b:StepStarted#1 "
     "b:StepCompleted#1 RunCompleted"},
    {"the second pause has its own number", PLAN("", EXEC("a", "")),
     "!PAUSE !RESUME !PAUSE !RESUME a+",
     "RunStarted a:StepStarted#1 RunPaused RunResumed RunPaused#2 RunResumed#2 a:StepCompleted#1 "
     "RunCompleted"},
    {"a retry waits for the resume", PLAN("", EXEC("a", RETRY(2))),
     "a-E !PAUSE +100 +100 !RESUME a+",
     "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 RunPaused RunResumed "
     "a:StepStarted#2 a:StepCompleted#2 RunCompleted"},
    {"a sleep may end while paused",
     PLAN("", "{\"stepId\":\"z\",\"type\":\"sleep\",\"durationMs\":10}," EXEC("b", AFTER("z"))),
     "!PAUSE +10 !RESUME b+",
     "RunStarted z:StepStarted#1 RunPaused z:StepCompleted#1 RunResumed b:StepStarted#1 "
     "b:StepCompleted#1 RunCompleted"},
    {"a failure while paused can be mended", PLAN("", EXEC("a", "")),
     "!PAUSE a-E !RETRY_STEP:a !RESUME a+",
     "RunStarted a:StepStarted#1 RunPaused a:StepFailed#1 a:StepRetried#2 RunResumed "
     "a:StepStarted#2 a:StepCompleted#2 RunCompleted"},
    {"cancel waits for what is killed", PLAN("", EXEC("a", "") "," EXEC("b", AFTER("a"))),
     "!CANCEL a-CANCELLED !CANCEL", "RunStarted a:StepStarted#1 a:StepFailed#1 RunCancelled"},
    {"cancel ends waits at once",
     PLAN("", "{\"stepId\":\"w\",\"type\":\"wait\",\"signal\":\"go\"}," EXEC("b", AFTER("w"))),
     "!CANCEL", "RunStarted w:StepStarted#1 w:StepFailed#1 RunCancelled"},
    {"cancel while paused", PLAN("", EXEC("a", "")), "!PAUSE !CANCEL a-CANCELLED",
     "RunStarted a:StepStarted#1 RunPaused a:StepFailed#1 RunCancelled"},
    {"a step that finished all the same", PLAN("", EXEC("a", "")), "!CANCEL a+",
     "RunStarted a:StepStarted#1 a:StepCompleted#1 RunCancelled"},
    {"RETRY_STEP hurries", PLAN("", EXEC("a", RETRY(2))), "a-E !RETRY_STEP:a a+",
     "RunStarted a:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 a:StepCompleted#2 "
     "RunCompleted"},
    {"RETRY_STEP mends what failed while others run",
     PLAN("", EXEC("a", "") "," EXEC("b", "") "," EXEC("c", AFTER("a"))), "a-E !RETRY_STEP:a a+ b+ c+",
     "RunStarted a:StepStarted#1 b:StepStarted#1 a:StepFailed#1 a:StepRetried#2 a:StepStarted#2 "
     "a:StepCompleted#2 c:StepStarted#1 b:StepCompleted#1 c:StepCompleted#1 RunCompleted"},
    {"not of a step that did not fail", PLAN("", EXEC("a", "")), "?RETRY_STEP:a ?RETRY_STEP:b a+",
     "RunStarted a:StepStarted#1 a:StepCompleted#1 RunCompleted"},
    {"a late answer does not count", PLAN("", EXEC("a", "") "," EXEC("b", "")), "a+ a~ b+",
     "RunStarted a:StepStarted#1 b:StepStarted#1 a:StepCompleted#1 b:StepCompleted#1 RunCompleted"},
    {"another step's failure ends waits",
     PLAN("", EXEC("a", "") ",{\"stepId\":\"w\",\"type\":\"approval\"}"), "a-E",
     "RunStarted a:StepStarted#1 w:StepStarted#1 a:StepFailed#1 w:StepFailed#1 RunFailed"},
    {"a task is over in time",
     PLAN("", "{\"stepId\":\"t\",\"type\":\"task\",\"queue\":\"q\",\"timeoutMs\":100}"), "+100",
     "RunStarted t:StepStarted#1 t:StepFailed#1 RunFailed"},
    {"an effect waits for its answer", PLAN("", EFFECT("f", "") "," EXEC("b", AFTER("f"))), "f+ b+",
     "RunStarted f:StepStarted#1 f:StepCompleted#1 b:StepStarted#1 b:StepCompleted#1 RunCompleted"},
    {"effects count for concurrency",
     PLAN(",\"concurrency\":1", EFFECT("f", ",\"wait\":true") "," EXEC("b", "")), "+86400000 f+ b+",
     "RunStarted f:StepStarted#1 f:StepCompleted#1 b:StepStarted#1 b:StepCompleted#1 RunCompleted"},
    {"the timeout of an effect is not the engine's",
     PLAN("", EFFECT("f", ",\"wait\":true,\"timeoutMs\":100")), "+100000 f-TIMEOUT",
     "RunStarted f:StepStarted#1 f:StepFailed#1 RunFailed"},
    {"effects are retried", PLAN("", EFFECT("f", RETRY(2))), "f-TIMEOUT +99 +1 f+",
     "RunStarted f:StepStarted#1 f:StepFailed#1 f:StepRetried#2 f:StepStarted#2 f:StepCompleted#2 "
     "RunCompleted"},
    {"dead effects are not", PLAN("", EFFECT("f", RETRY(2))), "f-EFFECT_DEAD_LETTERED +1000",
     "RunStarted f:StepStarted#1 f:StepFailed#1 RunFailed"},
    {"a failing run waits for its effects", PLAN("", EXEC("a", "") "," EFFECT("f", "")), "a-E +10 f+",
     "RunStarted a:StepStarted#1 f:StepStarted#1 a:StepFailed#1 f:StepCompleted#1 RunFailed"},
    {"a paused run lets its effects end", PLAN("", EFFECT("f", "") "," EXEC("b", AFTER("f"))),
     "!PAUSE f+ !RESUME b+",
     "RunStarted f:StepStarted#1 RunPaused f:StepCompleted#1 RunResumed b:StepStarted#1 "
     "b:StepCompleted#1 RunCompleted"},
    {"cancel waits until the effect is let go", PLAN("", EFFECT("f", ",\"wait\":true")),
     "!CANCEL +10 f-CANCELLED", "RunStarted f:StepStarted#1 f:StepFailed#1 RunCancelled"},
};

/* WE-1-3 (the policy alone), WE-1N-1: the flow follows the plan literally. */
TEST(flow_decides_as_the_plan_says) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (uint32_t settle = 0; settle <= 1; settle++) {
            struct world w;
            world_open(&w, cases[i].plan);
            w.settle_max = settle;
            launch(&w, "{\"signal\":\"LAUNCH\"}");
            world_program(&w, cases[i].program);
            CHECK(str_eq(buf_str(&w.log), str_c(cases[i].want)), "%s:\n got  %.*s\n want %s",
                  cases[i].name, STR_ARG(buf_str(&w.log)), cases[i].want);
            CHECK(!w.flow.stuck, "%s", cases[i].name);
            CHECK(!run_is_final(w.flow.run.head.status) || w.flow.signal_count == 0, "%s",
                  cases[i].name);
            check_replay(&w);
            world_close(&w);
        }
    }
}

TEST(flow_waits_for_admission_and_approval) {
    struct world w;
    world_open(&w, PLAN("", NOOP("a", "")));
    w.may_start = false;
    launch(&w, "{\"signal\":\"LAUNCH\"}");
    CHECK(w.flow.run.head.status == RUN_PENDING && flow_wake(&w.flow) == 0);
    w.may_start = true;
    world_decide(&w);
    CHECK(str_eq(buf_str(&w.log),
                 STR("RunQueued RunStarted a:StepStarted#1 a:StepCompleted#1 RunCompleted")));
    world_close(&w);

    world_open(&w, PLAN("", NOOP("a", "")));
    launch(&w, "{\"signal\":\"LAUNCH\",\"approval\":true}");
    CHECK(w.flow.run.head.status == RUN_PENDING && flow_wake(&w.flow) == FLOW_NEVER);
    w.may_start = false;
    world_program(&w, "?PAUSE !APPROVE");
    CHECK(w.flow.run.head.status == RUN_APPROVED);
    w.may_start = true;
    world_decide(&w);
    CHECK(str_eq(buf_str(&w.log), STR("RunQueued RunApproved RunStarted a:StepStarted#1 "
                                      "a:StepCompleted#1 RunCompleted")));
    world_close(&w);

    world_open(&w, PLAN("", NOOP("a", "")));
    launch(&w, "{\"signal\":\"LAUNCH\",\"approval\":true}");
    world_program(&w, "!REJECT");
    CHECK(w.flow.run.head.status == RUN_CANCELLED && w.flow.signal_count == 0);
    world_close(&w);
}

/* A run that only waits says until when; one with work under way says now. */
TEST(flow_says_when_to_wake_it) {
    static const struct {
        const char *plan, *program;
        int64_t wake;
    } rows[] = {
        {PLAN("", EXEC("a", "")), "", 0},
        {PLAN("", "{\"stepId\":\"z\",\"type\":\"sleep\",\"durationMs\":500}"), "+100", T0 + 500000},
        {PLAN("", "{\"stepId\":\"w\",\"type\":\"wait\",\"signal\":\"s\"}"), "", FLOW_NEVER},
        {PLAN("", EXEC("a", RETRY(2))), "a-E", T0 + 100000},
        {PLAN("", EXEC("a", RETRY(2))), "a-E !PAUSE", T0 + 100000},
        {PLAN("", EXEC("a", RETRY(2))), "a-E !PAUSE +100", FLOW_NEVER},
        {PLAN("", "{\"stepId\":\"t\",\"type\":\"task\",\"queue\":\"q\"}"), "", 0},
        {PLAN("", EFFECT("f", ",\"wait\":true,\"timeoutMs\":500")), "", 0},
        {PLAN("", EFFECT("f", RETRY(2))), "f-E", T0 + 100000},
        {PLAN("", NOOP("a", "")), "", FLOW_NEVER},
        {PLAN("", "{\"stepId\":\"z\",\"type\":\"sleep\",\"durationMs\":500}," EXEC("a", "")), "", 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct world w;
        world_open(&w, rows[i].plan);
        launch(&w, "{\"signal\":\"LAUNCH\"}");
        world_program(&w, rows[i].program);
        CHECK(flow_wake(&w.flow) == rows[i].wake, "row %zu: %lld", i,
              (long long)flow_wake(&w.flow));
        world_close(&w);
    }
}

TEST(flow_leases_tasks_with_rising_numbers) {
    struct world w;
    struct error err = {0};
    world_open(&w, PLAN("", "{\"stepId\":\"t\",\"type\":\"task\",\"queue\":\"q\"}"));
    launch(&w, "{\"signal\":\"LAUNCH\"}");
    CHECK(flow_task_is_free(&w.flow, 0, w.now_us));
    struct decision d = world_round(&w);
    CHECK(flow_lease(&d, 0, STR("w1"), 1000, &err) == ST_OK);
    world_note(&w);
    CHECK(!flow_task_is_free(&w.flow, 0, w.now_us) && w.flow.steps[0].leases == 1);
    CHECK(flow_due(&w.flow) == T0 + 1000000);
    CHECK(flow_extend_lease(&w.flow, 0, T0 + 2000000, &err) == ST_OK);
    world_program(&w, "+1500");
    CHECK(!flow_task_is_free(&w.flow, 0, w.now_us) && !w.flow.task_freed);
    world_program(&w, "+500");
    CHECK(flow_task_is_free(&w.flow, 0, w.now_us) && w.flow.task_freed);
    d = world_round(&w);
    CHECK(flow_lease(&d, 0, STR("w2"), 1000, &err) == ST_OK);
    world_note(&w);
    CHECK(w.flow.steps[0].leases == 2);
    check_replay(&w);
    world_program(&w, "t+");
    CHECK(w.flow.run.head.status == RUN_COMPLETED);
    world_close(&w);
}

/* RE-5.3.1-1: the guard stands before every event of ours; RE-5.3.1-3: once it refused, nothing more
 * is emitted for the run, and the refusal is there to be told. */
TEST(flow_stops_when_its_own_guard_refuses) {
    struct world w;
    struct error err = {0};
    bool taken = false;
    world_open(&w, PLAN("", EXEC("a", "") "," EXEC("b", "")));
    launch(&w, "{\"signal\":\"LAUNCH\"}");
    struct decision d = world_round(&w);
    const struct outcome fine = {.ok = true};
    w.flow.run.steps[0].state = STEP_SUCCESS; /* as a bug would have it */
    CHECK(flow_result(&d, 0, 1, &fine, &taken, &err) == ST_OK);
    CHECK(w.flow.stuck && w.batch.count == 0);
    CHECK(strcmp(w.flow.why_stuck.actual, "SUCCESS") == 0);
    CHECK(str_eq(w.flow.why_stuck.attempted_type, STR("StepCompleted")));
    world_decide(&w);
    CHECK(flow_result(&d, 1, 1, &fine, &taken, &err) == ST_OK);
    CHECK(!taken && w.batch.count == 0);
    world_close(&w);
}

TEST(flow_renders_what_a_step_is_given) {
    struct world w;
    struct error err = {0};
    str body = STR_NONE;
    world_open(&w, PLAN("", EXEC("a", "") ",{\"stepId\":\"b\",\"type\":\"exec\",\"command\":[\"{{ "
                                          "parameters.who }}\",\"{{ steps.a.output.n }}\",\"{{ "
                                          "run.runId }}\"]" AFTER("a") "}"));
    launch(&w, "{\"signal\":\"LAUNCH\",\"parameters\":{\"who\":\"ann\"}}");
    world_program(&w, "a+");
    CHECK(flow_render(&w.flow, 1, &w.arena, &body, &err) == ST_OK, "%s", err.msg);
    yyjson_val *root = NULL;
    CHECK(json_parse(body, (struct json_limits){10000, 20}, &w.arena, &root, &err) == ST_OK);
    str command = json_text(json_member(root, "command"), &w.arena);
    CHECK(str_eq(command, STR("[\"ann\",\"1\",\"r\"]")), "%.*s", STR_ARG(command));
    world_close(&w);
}

static yyjson_val *parsed(struct world *w, str text) {
    struct error err = {0};
    yyjson_val *root = NULL;
    CHECK(json_parse(text, (struct json_limits){10000, 20}, &w->arena, &root, &err) == ST_OK, "%s",
          err.msg);
    return root;
}

/* Whoever delivers the effect is given it whole, and a reader of the ledger learns what it is. A
 * timeout is for the one who delivers, so the event has none. */
TEST(flow_renders_effects_and_records_their_type) {
    struct world w;
    struct error err = {0};
    str body = STR_NONE;
    str type = STR_NONE;
    world_open(&w, PLAN("", EXEC("a", "") ",{\"stepId\":\"f\",\"type\":\"effect\",\"effectType\":"
                                          "\"EMAIL_SEND\",\"wait\":true,\"timeoutMs\":500,"
                                          "\"payload\":{\"to\":[\"{{ parameters.who }}\"],"
                                          "\"n\":\"{{ steps.a.output.n }}\"}" AFTER("a") "}"));
    launch(&w, "{\"signal\":\"LAUNCH\",\"parameters\":{\"who\":\"ann\"}}");
    world_program(&w, "a+");
    CHECK(flow_render(&w.flow, 1, &w.arena, &body, &err) == ST_OK, "%s", err.msg);
    yyjson_val *root = parsed(&w, body);
    str payload = json_text(json_member(root, "payload"), &w.arena);
    CHECK(str_eq(payload, STR("{\"to\":[\"ann\"],\"n\":1}")), "%.*s", STR_ARG(payload));
    CHECK(json_str(json_member(root, "effectType"), &type) && str_eq(type, STR("EMAIL_SEND")));
    CHECK(yyjson_is_true(json_member(root, "wait")));
    const struct event *last = &w.records[w.count - 1].event;
    CHECK(last->type == EVENT_STEP_STARTED && str_eq(last->subject, STR("f")));
    CHECK(str_eq(last->payload, STR("{\"stepType\":\"effect\",\"effectType\":\"EMAIL_SEND\"}")),
          "%.*s", STR_ARG(last->payload));
    CHECK(w.flow.open == 1 && w.flow.executing == 1);
    check_replay(&w);
    world_close(&w);
}

/* A cancel, and nothing else, asks for the end of an effect that is waited for. */
TEST(flow_asks_to_stop_effects_when_cancelled) {
    struct world w;
    struct error err = {0};
    struct signal cancel = {.name = STR("CANCEL")};
    world_open(&w, PLAN("", EFFECT("f", ",\"wait\":true")));
    launch(&w, "{\"signal\":\"LAUNCH\"}");
    CHECK(signal_validate(&cancel, &err) == ST_OK);
    struct decision d = world_round(&w);
    CHECK(flow_signal(&d, &cancel, (uuid){{9}}, STR("op"), &err) == ST_OK);
    CHECK(w.batch.stop_count == 0);
    CHECK(flow_decide(&d, &err) == ST_OK, "%s", err.msg);
    CHECK(w.batch.stop_count == 1 && w.batch.stops[0] == 0 && w.flow.open == 1);
    world_note(&w);
    world_program(&w, "f-CANCELLED");
    CHECK(w.flow.run.head.status == RUN_CANCELLED);
    world_close(&w);
}

TEST(flow_refuses_an_output_that_no_event_can_hold) {
    struct world w;
    struct error err = {0};
    bool taken = false;
    world_open(&w, PLAN("", EXEC("a", "")));
    launch(&w, "{\"signal\":\"LAUNCH\"}");
    char *big = arena_alloc(&w.arena, FLOW_PAYLOAD_MAX + 2);
    memset(big, '1', FLOW_PAYLOAD_MAX + 1);
    struct decision d = world_round(&w);
    struct outcome o = {.ok = true, .output = str_n(big, FLOW_PAYLOAD_MAX + 1)};
    CHECK(flow_result(&d, 0, 1, &o, &taken, &err) == ST_OK);
    world_decide(&w);
    CHECK(w.flow.run.head.status == RUN_FAILED);
    CHECK(str_eq(w.flow.steps[0].code, STR("OUTPUT_TOO_LARGE")));
    world_close(&w);
}

/* Steps that do nothing: each after the one before it, or all after the first. */
static void put_noop_plan(struct buf *text, int steps, bool chained) {
    buf_put_c(text, "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\","
                    "\"planVersion\":\"1\"},\"concurrency\":1000,\"steps\":[");
    for (int i = 0; i < steps; i++) {
        buf_printf(text, "%s{\"stepId\":\"s%d\",\"type\":\"noop\"", i ? "," : "", i);
        if (i > 0) buf_printf(text, ",\"dependsOn\":[\"s%d\"]", chained ? i - 1 : 0);
        buf_put_char(text, '}');
    }
    buf_put_c(text, "]}");
}

/* A hundred thousand steps are decided in linear time: the work for each is the same. */
TEST(flow_decides_wide_and_deep_plans) {
    enum { N = 20000 };
    for (int chained = 0; chained <= 1; chained++) {
        struct world *w = mem_alloc(sizeof(*w));
        struct buf text;
        struct error err = {0};
        CHECK(w != NULL);
        buf_init(&text, (size_t)16 * 1024 * 1024);
        put_noop_plan(&text, N, chained != 0);
        buf_put_char(&text, 0);
        world_open(w, text.ptr);
        struct decision d = world_round(w);
        CHECK(flow_launch(&d, STR("{\"signal\":\"LAUNCH\"}"), (uuid){{7}}, STR("me"), &err) ==
              ST_OK);
        int64_t events = 0;
        do {
            arena_reset(&w->batch_arena);
            flow_batch_init(&w->batch, &w->batch_arena);
            CHECK(flow_decide(&d, &err) == ST_OK);
            CHECK(w->batch.count <= FLOW_BATCH_MAX);
            events += w->batch.count;
        } while (w->batch.more);
        CHECK(w->flow.run.head.status == RUN_COMPLETED && events == 2 * N + 4, "%lld",
              (long long)events);
        buf_release(&text);
        world_close(w);
        mem_free(w);
    }
}
