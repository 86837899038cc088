/* core/run_policy_test.c: policy B of Run Events 5.3 beside policy A, over the same streams. */
#include "core/run_policy.h"

#include "test.h"

enum { EVENTS_MAX = 16 };

struct subject {
    struct reduction reduction;
    struct arena arena;
    struct buf state; /* run_state_json() as of the last call of state_of() */
};

static void subject_open(struct subject *s, enum run_policy policy) {
    *s = (struct subject){.reduction.policy = policy};
    arena_init(&s->arena, 1024, (size_t)1 << 20);
    buf_init(&s->state, (size_t)1 << 16);
}

static void subject_close(struct subject *s) {
    buf_release(&s->state);
    arena_release(&s->arena);
}

static str state_of(struct subject *s) {
    buf_clear(&s->state);
    run_state_json(&s->reduction.run, &s->state);
    return buf_str(&s->state);
}

static status apply(struct subject *s, const struct event_record *rec, struct transition *bad) {
    struct error err = {0};
    return reduction_apply(&s->reduction, rec, &s->arena, bad, &err);
}

static bool marked(const struct subject *s, const char *want) {
    const char *mark = reduction_mark(&s->reduction);
    return want == NULL ? mark == NULL : mark != NULL && strcmp(mark, want) == 0;
}

/* "RunStarted,StepStarted a,StepFailed a": all of attempt 1. */
static size_t stream_of(const char *program, struct event_record out[EVENTS_MAX]) {
    size_t n = 0;
    str rest = str_c(program);
    while (rest.len > 0) {
        str one;
        str name;
        str step;
        (void)str_split(rest, ',', &one, &rest);
        if (!str_split(one, ' ', &name, &step)) step = STR_NONE;
        CHECK(n < EVENTS_MAX, "%s", program);
        int64_t seq = (int64_t)n + 1;
        out[n++] = (struct event_record){.seq = seq,
                                         .run_seq = seq,
                                         .event = {.type_name = name,
                                                   .type = event_type_of(name),
                                                   .subject = step,
                                                   .engine_attempt = seq,
                                                   .logical_attempt = 1}};
    }
    return n;
}

struct stall {
    const char *program;
    int64_t valid;                 /* events before the first invalid one */
    const char *prior, *attempted; /* of that one */
};

static void check_outcome(const struct stall *want, int64_t at, status st,
                          const struct transition *bad) {
    if (at != want->valid) {
        CHECK(st == ST_OK, "%s: event %lld", want->program, (long long)at + 1);
        return;
    }
    CHECK(st == ST_CONFLICT, "%s: event %lld", want->program, (long long)at + 1);
    CHECK(strcmp(bad->prior, want->prior) == 0, "%s: %s", want->program, bad->prior);
    CHECK(strcmp(bad->attempted, want->attempted) == 0, "%s: %s", want->program, bad->attempted);
}

static void check_stall(const struct stall *want) {
    struct event_record stream[EVENTS_MAX];
    struct subject b;
    struct subject before; /* policy A over the valid beginning, and no more */
    int64_t count = (int64_t)stream_of(want->program, stream);
    subject_open(&b, RUN_POLICY_B);
    subject_open(&before, RUN_POLICY_A);
    for (int64_t i = 0; i < count; i++) {
        struct transition bad = {0};
        bool valid = i < want->valid;
        if (valid) CHECK(apply(&before, &stream[i], &bad) == ST_OK, "%s", want->program);
        check_outcome(want, i, apply(&b, &stream[i], &bad), &bad);
        CHECK(str_eq(state_of(&b), state_of(&before)), "%s: event %lld: %.*s", want->program,
              (long long)i + 1, STR_ARG(buf_str(&b.state)));
        CHECK(marked(&b, valid ? NULL : "STALLED_INVALID_TRANSITION"), "%s", want->program);
    }
    CHECK(b.reduction.run.head.run_seq == want->valid && marked(&before, NULL));
    CHECK(b.reduction.run.step_count == before.reduction.run.step_count, "%s", want->program);
    subject_close(&b);
    subject_close(&before);
}

/* RE-5.3.3-6: at the invalid event reduction stops: the state is, member for member, that of the
 * last valid runSeq, the mark is set, and nothing that comes later is applied, valid or not. */
TEST(run_policy_b_stops_at_the_last_valid_event) {
    static const struct stall cases[] = {
        {"RunPaused,RunStarted", 0, "PENDING", "PAUSED"},
        {"RunStarted,RunResumed,RunPaused", 1, "RUNNING", "RUNNING"},
        {"RunStarted,StepCompleted new,StepStarted a,RunCompleted", 1, "PENDING", "SUCCESS"},
        {"RunStarted,StepStarted a,StepStarted a,StepCompleted a", 2, "RUNNING", "RUNNING"},
        {"RunStarted,StepStarted a,StepFailed a,StepSkipped a,RunFailed", 3, "FAILED", "SKIPPED"},
        {"RunStarted,RunCompleted,StepCompleted unseen,StepStarted late", 2, "PENDING", "SUCCESS"},
        {"RunStarted,RunCompleted,RunFailed,RunCancelled,StepStarted a", 2, "COMPLETED", "FAILED"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_stall(&cases[i]);
}

/* Where nothing is invalid the policies agree; where something is, A goes on and says so. */
TEST(run_policies_differ_only_after_an_invalid_event) {
    static const struct {
        const char *program, *mark_a;
        bool same;
    } cases[] = {
        {"RunStarted,StepStarted a,StepCompleted a,RunTeleported,RunCompleted", NULL, true},
        {"RunStarted,RunStarted,StepStarted a,StepCompleted a,RunCompleted", "INCONSISTENT", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct event_record stream[EVENTS_MAX];
        struct subject a;
        struct subject b;
        size_t count = stream_of(cases[i].program, stream);
        subject_open(&a, RUN_POLICY_A);
        subject_open(&b, RUN_POLICY_B);
        for (size_t k = 0; k < count; k++) {
            struct transition bad;
            CHECK(apply(&a, &stream[k], &bad) == apply(&b, &stream[k], &bad), "case %zu", i);
        }
        CHECK(str_eq(state_of(&a), state_of(&b)) == cases[i].same, "case %zu", i);
        CHECK(marked(&a, cases[i].mark_a), "case %zu", i);
        CHECK(a.reduction.run.head.status == RUN_COMPLETED &&
              a.reduction.run.head.run_seq == (int64_t)count);
        subject_close(&a);
        subject_close(&b);
    }
}
