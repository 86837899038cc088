/* core/run_undo_test.c: random programs: undo gives back the very state, counters equal a recount,
 * and a machine without memory changes nothing. */
#include "base/limits.h"
#include "core/run.h"
#include "test.h"

enum { PROGRAMS = 2000, EVENTS_MAX = 80, STEPS = 12 };

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static int pick(uint64_t *state, int n) { return (int)(next_random(state) % (uint64_t)n); }

/* CAIRN_TEST_SCALE percent of n, at least 20. */
static uint64_t scaled(int64_t n) {
    int64_t percent = 100;
    const char *text = getenv("CAIRN_TEST_SCALE");
    if (text != NULL && !str_to_int(str_c(text), &percent)) percent = 100;
    n = n * percent / 100;
    return n < 20 ? 20 : (uint64_t)n;
}

static const char *const step_ids[STEPS] = {"a", "b", "c", "d", "e", "f",
                                            "g", "h", "i", "j", "k", "\xC3\xA9"};

/* Any type at all, with attempts that are often right. */
static struct event_record random_record(uint64_t *random, const struct run *run, int64_t seq) {
    struct event_record rec = {.seq = seq};
    struct event *e = &rec.event;
    do {
        e->type = (enum event_type)pick(random, EVENT_TYPE_COUNT);
    } while (e->type != EVENT_UNKNOWN && event_type_info(e->type)->name.len == 0);
    if (pick(random, 3) == 0) e->type = (enum event_type)(EVENT_STEP_STARTED + pick(random, 4));
    e->type_name = e->type == EVENT_UNKNOWN ? STR("Teleported") : event_type_info(e->type)->name;
    bool step_level = event_type_info(e->type)->family != FAMILY_RUN;
    if (step_level || (e->type == EVENT_UNKNOWN && pick(random, 2) == 0))
        e->subject = str_c(step_ids[pick(random, STEPS)]);
    const struct step *step = e->subject.ptr != NULL ? run_step(run, e->subject) : NULL;
    e->logical_attempt = (step != NULL ? step->attempt : 0) + pick(random, 3);
    e->engine_attempt = 1 + pick(random, 3);
    rec.run_seq = event_type_is_fact(e->type) ? 0 : run->head.run_seq + 1;
    return rec;
}

struct snapshots {
    struct buf json[EVENTS_MAX];
    uint32_t step_count[EVENTS_MAX];
    struct run_undo undo[EVENTS_MAX];
};

static void check_steps_findable(const struct run *run, uint64_t seed) {
    size_t found = 0;
    for (int i = 0; i < STEPS; i++) {
        const struct step *step = run_step(run, str_c(step_ids[i]));
        if (step == NULL) continue;
        found++;
        CHECK(str_eq(step->id, str_c(step_ids[i])), "seed %llu", (unsigned long long)seed);
    }
    CHECK(found == run->step_count, "seed %llu", (unsigned long long)seed);
}

static void check_same(const struct run *run, const struct buf *want, uint32_t steps,
                       uint64_t seed) {
    struct buf now;
    buf_init(&now, (size_t)1 << 20);
    run_state_json(run, &now);
    CHECK(str_eq(buf_str(&now), buf_str(want)), "seed %llu: %.*s", (unsigned long long)seed,
          STR_ARG(buf_str(&now)));
    CHECK(run->step_count == steps, "seed %llu", (unsigned long long)seed);
    check_steps_findable(run, seed);
    buf_release(&now);
}

/* Applies a random program; each third event is taken back at once and applied again; then all are
 * taken back. */
static void undo_program(uint64_t seed) {
    static struct snapshots shots;
    uint64_t random = seed;
    struct arena a;
    arena_init(&a, 1024, (size_t)16 << 20);
    struct run run = {0};
    int count = 1 + pick(&random, EVENTS_MAX);
    for (int i = 0; i < count; i++) {
        struct transition bad;
        struct error err = {0};
        buf_init(&shots.json[i], (size_t)1 << 20);
        run_state_json(&run, &shots.json[i]);
        shots.step_count[i] = run.step_count;
        struct event_record rec = random_record(&random, &run, i + 1);
        status st = run_apply(&run, &rec, &a, &bad, &shots.undo[i], &err);
        CHECK(st == ST_OK || st == ST_CONFLICT, "seed %llu", (unsigned long long)seed);
        if (i % 3 != 0) continue;
        run_undo(&run, &shots.undo[i]);
        check_same(&run, &shots.json[i], shots.step_count[i], seed);
        CHECK(run_apply(&run, &rec, &a, &bad, &shots.undo[i], &err) == st);
    }
    for (int i = count - 1; i >= 0; i--) {
        run_undo(&run, &shots.undo[i]);
        check_same(&run, &shots.json[i], shots.step_count[i], seed);
        buf_release(&shots.json[i]);
    }
    arena_release(&a);
}

TEST(run_undo_restores_the_very_state) {
    for (uint64_t seed = 1; seed <= scaled(PROGRAMS); seed++)
        undo_program(seed);
}

/* ---- counters ---- */

struct tally {
    int64_t completed, failed, invalid, pauses, resumes;
};

static void count_legal(struct tally *t, enum event_type type) {
    t->completed += type == EVENT_STEP_COMPLETED;
    t->failed += type == EVENT_STEP_FAILED;
    t->pauses += type == EVENT_RUN_PAUSED;
    t->resumes += type == EVENT_RUN_RESUMED;
}

static void check_tally(const struct run *run, const struct tally *t, uint64_t seed) {
    int64_t open = 0;
    int64_t bad = 0;
    for (uint32_t i = 0; i < run->step_count; i++) {
        open += run->steps[i].state == STEP_RUNNING;
        bad += run->steps[i].state == STEP_FAILED;
    }
    const struct run_head *h = &run->head;
    CHECK(h->open_steps == open && h->bad_steps == bad, "seed %llu", (unsigned long long)seed);
    CHECK(h->total_steps == t->completed && h->failed_steps == t->failed, "seed %llu",
          (unsigned long long)seed);
    CHECK(h->pauses == t->pauses && h->resumes == t->resumes, "seed %llu",
          (unsigned long long)seed);
    CHECK(h->invalid_events == t->invalid && h->inconsistent == (t->invalid > 0), "seed %llu",
          (unsigned long long)seed);
}

TEST(run_counters_equal_a_recount) {
    for (uint64_t seed = 1; seed <= scaled(PROGRAMS); seed++) {
        uint64_t random = ~seed;
        struct arena a;
        arena_init(&a, 1024, (size_t)16 << 20);
        struct run run = {0};
        struct tally t = {0};
        for (int i = 0; i < EVENTS_MAX; i++) {
            struct transition bad;
            struct error err = {0};
            struct event_record rec = random_record(&random, &run, i + 1);
            bool allowed = run_allows(&run, &rec.event, &bad);
            status st = run_apply(&run, &rec, &a, &bad, NULL, &err);
            CHECK((st == ST_OK) == allowed, "seed %llu", (unsigned long long)seed);
            if (st == ST_OK) count_legal(&t, rec.event.type);
            t.invalid += st == ST_CONFLICT;
        }
        check_tally(&run, &t, seed);
        arena_release(&a);
    }
}

/* ---- bounds and memory ---- */

static struct event_record start_of(str step, int64_t seq) {
    struct event_record rec = {.seq = seq, .run_seq = seq};
    rec.event.type = EVENT_STEP_STARTED;
    rec.event.type_name = STR("StepStarted");
    rec.event.subject = step;
    rec.event.logical_attempt = 1;
    return rec;
}

TEST(run_finds_each_of_many_steps) {
    enum { MANY = 20000 };
    struct arena a;
    arena_init(&a, 65536, (size_t)64 << 20);
    struct run run = {0};
    struct error err = {0};
    char id[32];
    for (int i = 0; i < MANY; i++) {
        int n = snprintf(id, sizeof id, "step-%d", i);
        CHECK(run_add_step(&run, str_n(id, (size_t)n), &a, &err) == ST_OK, "%s", err.msg);
    }
    memset(id, 0, sizeof id); /* ids are copied */
    for (int i = 0; i < MANY; i++) {
        int n = snprintf(id, sizeof id, "step-%d", i);
        CHECK(run_step(&run, str_n(id, (size_t)n)) == &run.steps[i], "%s", id);
    }
    CHECK(run_step(&run, STR("step-20000")) == NULL && run_step(&run, STR("")) == NULL);
    arena_release(&a);
}

TEST(run_refuses_one_step_too_many) {
    struct arena a;
    arena_init(&a, 1024, (size_t)1 << 20);
    struct run run = {.step_count = STEPS_PER_RUN_MAX}; /* full, as far as it can tell */
    struct event_record rec = start_of(STR("one more"), 1);
    struct transition bad;
    struct error err = {0};
    CHECK(run_apply(&run, &rec, &a, &bad, NULL, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_TOO_MANY_STEPS && strcmp(err.where, "/stepId") == 0);
    CHECK(run.head.last_seq == 0 && run.head.run_seq == 0 && run.step_count == STEPS_PER_RUN_MAX);
    arena_release(&a);
}

/* The n-th allocation fails, for every n: ST_RETRY, the state is as before, and the same call works
 * later. */
TEST(run_apply_without_memory_changes_nothing) {
    int64_t failures = 0;
    for (int64_t n = 0; n < 40; n++) {
        struct arena a;
        arena_init(&a, 64, (size_t)1 << 20);
        struct run run = {0};
        mem_fail_at(n);
        for (int64_t seq = 1; seq <= 20; seq++) {
            char id[16];
            int len = snprintf(id, sizeof id, "s%lld", (long long)seq);
            struct event_record rec = start_of(str_n(id, (size_t)len), seq);
            struct transition bad;
            struct error err = {0};
            status st = run_apply(&run, &rec, &a, &bad, NULL, &err);
            if (st == ST_OK) continue;
            failures++;
            CHECK(st == ST_RETRY && err.msg[0] != '\0', "allocation %lld", (long long)n);
            CHECK(run.head.last_seq == seq - 1 && run.head.open_steps == seq - 1);
            CHECK(run.step_count == seq - 1 && run_step(&run, rec.event.subject) == NULL);
            st = run_apply(&run, &rec, &a, &bad, NULL, &err);
            CHECK(st == ST_OK, "allocation %lld: %s", (long long)n, err.msg);
        }
        mem_fail_at(-1);
        CHECK(run.step_count == 20 && run.head.open_steps == 20);
        arena_release(&a);
    }
    CHECK(failures >= 3, "%lld", (long long)failures);
}
