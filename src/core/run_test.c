/* core/run_test.c: the reducer against tables written by hand, undo on random programs, the guard.
 */
#include "core/run.h"

#include "test.h"

/* ---- a run under test ---- */

struct subject {
    struct run run;
    struct arena arena;
    struct transition bad;
    struct run_undo undo;
    struct error err;
    int64_t seq;
};

static void subject_open(struct subject *s) {
    *s = (struct subject){0};
    arena_init(&s->arena, 1024, (size_t)64 << 20);
}

static void subject_close(struct subject *s) { arena_release(&s->arena); }

static struct event_record record_of(const char *type, str step, int64_t attempt, int64_t seq) {
    struct event_record rec = {.seq = seq, .run_seq = seq};
    rec.event.type_name = str_c(type);
    rec.event.type = event_type_of(rec.event.type_name);
    rec.event.subject = step;
    rec.event.engine_attempt = 1;
    rec.event.logical_attempt = attempt;
    if (event_type_is_fact(rec.event.type)) rec.run_seq = 0;
    return rec;
}

static status apply_at(struct subject *s, const char *type, str step, int64_t attempt) {
    struct event_record rec = record_of(type, step, attempt, ++s->seq);
    return run_apply(&s->run, &rec, &s->arena, &s->bad, &s->undo, &s->err);
}

static status apply(struct subject *s, const char *type, const char *step) {
    return apply_at(s, type, str_c(step), 1);
}

/* Applies a path such as "RunStarted RunPaused", which must be legal. */
static void walk(struct subject *s, const char *path) {
    str rest = str_c(path);
    while (rest.len > 0) {
        str word;
        if (!str_split(rest, ' ', &word, &rest)) rest = STR_NONE;
        char name[64];
        snprintf(name, sizeof name, "%.*s", STR_ARG(word));
        CHECK(apply(s, name, NULL) == ST_OK, "%s: %s", path, name);
    }
}

/* ---- the run table: every status, every type ---- */

static const struct {
    enum run_status status;
    const char *name, *path;
} statuses[RUN_STATUS_COUNT] = {
    {RUN_NEW, "PENDING", ""},
    {RUN_PENDING, "PENDING", "RunQueued"},
    {RUN_APPROVED, "APPROVED", "RunQueued RunApproved"},
    {RUN_RUNNING, "RUNNING", "RunStarted"},
    {RUN_PAUSED, "PAUSED", "RunStarted RunPaused"},
    {RUN_COMPLETED, "COMPLETED", "RunStarted RunCompleted"},
    {RUN_FAILED, "FAILED", "RunStarted RunFailed"},
    {RUN_CANCELLED, "CANCELLED", "RunStarted RunCancelled"},
};

/* N new, P pending, A approved, R running, Z paused, C completed, F failed, X cancelled. */
static enum run_status status_of_letter(char letter) {
    static const char letters[] = "NPARZCFX";
    const char *at = strchr(letters, letter);
    CHECK(at != NULL && letter != '\0', "%c", letter);
    return (enum run_status)(at - letters);
}

/* The status after the event, by the status before it, in the order above; '-' is forbidden. */
static const struct {
    const char *type, *after, *attempted;
} run_table[] = {
    {"RunQueued", "P-------", "PENDING"},    {"RunApproved", "-A------", "APPROVED"},
    {"RunStarted", "RRR-----", "RUNNING"},   {"RunPaused", "---Z----", "PAUSED"},
    {"RunResumed", "----R---", "RUNNING"},   {"RunCompleted", "---C----", "COMPLETED"},
    {"RunFailed", "-FFFF---", "FAILED"},     {"RunCancelled", "-XXXX---", "CANCELLED"},
    {"RunProviderLinked", "NPARZCFX", NULL}, {"RunCheckpointCreated", "NPARZCFX", NULL},
    {"RunTeleported", "NPARZCFX", NULL},     {"SignalAccepted", "NPARZCFX", NULL},
};

static void check_run_transition(size_t row, size_t before) {
    struct subject s;
    subject_open(&s);
    walk(&s, statuses[before].path);
    CHECK(s.run.head.status == statuses[before].status, "%s", statuses[before].path);
    char letter = run_table[row].after[before];
    const char *type = run_table[row].type;
    int64_t level_seq = s.run.head.run_level_seq;
    status st = apply(&s, type, NULL);
    const struct run_head *head = &s.run.head;
    CHECK(head->run_seq == s.seq && head->last_seq == s.seq, "the watermark always moves");
    CHECK(head->inconsistent == (letter == '-'), "%s in %s", type, statuses[before].name);
    CHECK(head->invalid_events == (letter == '-'), "%s in %s", type, statuses[before].name);
    if (letter == '-') {
        CHECK(st == ST_CONFLICT, "%s in %s", type, statuses[before].name);
        CHECK(head->status == statuses[before].status && head->run_level_seq == level_seq);
        CHECK(strcmp(s.bad.prior, statuses[before].name) == 0, "%s: %s", type, s.bad.prior);
        CHECK(strcmp(s.bad.attempted, run_table[row].attempted) == 0, "%s", s.bad.attempted);
    } else {
        CHECK(st == ST_OK && head->run_level_seq == s.seq, "%s in %s", type, statuses[before].name);
        CHECK(head->status == status_of_letter(letter), "%s in %s", type, statuses[before].name);
    }
    subject_close(&s);
}

TEST(run_table_is_as_written_for_every_status_and_run_level_type) {
    for (size_t row = 0; row < COUNT_OF(run_table); row++) {
        for (size_t before = 0; before < RUN_STATUS_COUNT; before++)
            check_run_transition(row, before);
    }
}

/* Each type of the catalogue is in one of the two tables, or is known to move nothing. */
TEST(run_tables_cover_the_catalogue) {
    static const char *const others[] = {"StepStarted", "StepCompleted", "StepFailed",
                                         "StepSkipped", "StepRetried",   "StepCorrected",
                                         "RunRecovered"};
    for (int t = 1; t < EVENT_TYPE_COUNT; t++) {
        str name = event_type_info((enum event_type)t)->name;
        bool found = name.len == 0 || event_type_is_fact((enum event_type)t);
        for (size_t i = 0; i < COUNT_OF(run_table); i++)
            found = found || str_eq(name, str_c(run_table[i].type));
        for (size_t i = 0; i < COUNT_OF(others); i++)
            found = found || str_eq(name, str_c(others[i]));
        CHECK(found, "%.*s", STR_ARG(name));
    }
}

/* Steps are judged by the step table alone, whatever the run's status (T15), and move no run. */
TEST(run_status_has_no_say_over_steps) {
    for (size_t before = 0; before < RUN_STATUS_COUNT; before++) {
        struct subject s;
        subject_open(&s);
        walk(&s, statuses[before].path);
        CHECK(apply(&s, "StepStarted", "a") == ST_OK, "%s", statuses[before].name);
        CHECK(apply(&s, "StepFailed", "a") == ST_OK && apply(&s, "StepSkipped", "b") == ST_OK);
        CHECK(apply(&s, "StepCompleted", "c") == ST_CONFLICT);
        CHECK(s.run.head.status == statuses[before].status);
        subject_close(&s);
    }
}

/* ---- the step table: every state, every type, every relation of the attempts ---- */

/* How to bring step "a" into a state. Where it has one, its newest attempt is 2. */
static const struct {
    const char *name;
    enum step_state state;
    const char *types; /* S start, C complete, F fail, K skip, M mention */
} step_states[] = {
    {"unseen", STEP_MENTIONED, ""},   {"mentioned", STEP_MENTIONED, "M"},
    {"running", STEP_RUNNING, "SFS"}, {"success", STEP_SUCCESS, "SFSC"},
    {"failed", STEP_FAILED, "SFSF"},  {"skipped", STEP_SKIPPED, "SFK"},
};

static const char *type_of_letter(char letter) {
    switch (letter) {
    case 'S':
        return "StepStarted";
    case 'C':
        return "StepCompleted";
    case 'F':
        return "StepFailed";
    case 'K':
        return "StepSkipped";
    default:
        return "StepTeleported";
    }
}

static void bring_step(struct subject *s, const char *types) {
    int64_t attempt = 1;
    for (const char *t = types; *t != '\0'; t++) {
        CHECK(apply_at(s, type_of_letter(*t), STR("a"), attempt) == ST_OK, "%s", types);
        if (*t == 'F') attempt = 2;
    }
}

/* By state as above and by the event's attempt: the state after StepStarted, StepCompleted,
 * StepFailed, StepSkipped as a letter (R running, S success, F failed, K skipped, '-' forbidden),
 * and what the state before is called. */
static const struct {
    size_t before;
    int64_t attempt;
    const char *after, *prior;
} step_table[] = {
    {0, 1, "R--K", "PENDING"}, {0, 2, "----", "PENDING"}, {0, 3, "----", "PENDING"},
    {1, 1, "R--K", "PENDING"}, {1, 2, "----", "PENDING"}, {1, 3, "----", "PENDING"},
    {2, 1, "----", "FAILED"},  {2, 2, "-SF-", "RUNNING"}, {2, 3, "----", "PENDING"},
    {3, 1, "----", "FAILED"},  {3, 2, "----", "SUCCESS"}, {3, 3, "----", "PENDING"},
    {4, 1, "----", "FAILED"},  {4, 2, "----", "FAILED"},  {4, 3, "R--K", "PENDING"},
    {5, 1, "----", "FAILED"},  {5, 2, "----", "SKIPPED"}, {5, 3, "----", "PENDING"},
    {2, 4, "----", "PENDING"}, {4, 4, "----", "PENDING"}, {4, 9, "----", "PENDING"},
};

static enum step_state state_of_letter(char letter) {
    switch (letter) {
    case 'R':
        return STEP_RUNNING;
    case 'S':
        return STEP_SUCCESS;
    case 'F':
        return STEP_FAILED;
    default:
        return STEP_SKIPPED;
    }
}

static void check_forbidden_step(const struct subject *s, size_t row, size_t column, status st) {
    static const char *const attempted[] = {"RUNNING", "SUCCESS", "FAILED", "SKIPPED"};
    const struct step *step = run_step(&s->run, STR("a"));
    CHECK(st == ST_CONFLICT, "row %zu, column %zu", row, column);
    CHECK(step->state == step_states[step_table[row].before].state, "row %zu", row);
    CHECK(step->attempt == (step_table[row].before < 2 ? 0 : 2), "row %zu", row);
    CHECK(strcmp(s->bad.prior, step_table[row].prior) == 0, "row %zu: %s", row, s->bad.prior);
    CHECK(strcmp(s->bad.attempted, attempted[column]) == 0, "row %zu: %s", row, s->bad.attempted);
    CHECK(s->run.head.inconsistent && s->run.head.invalid_events == 1);
}

static void check_step_transition(size_t row, size_t column) {
    struct subject s;
    subject_open(&s);
    bring_step(&s, step_states[step_table[row].before].types);
    char letter = step_table[row].after[column];
    status st = apply_at(&s, type_of_letter("SCFK"[column]), STR("a"), step_table[row].attempt);
    const struct step *step = run_step(&s.run, STR("a"));
    CHECK(step != NULL && step->last_seq == s.seq && s.run.head.run_seq == s.seq);
    if (letter == '-') {
        check_forbidden_step(&s, row, column, st);
    } else {
        CHECK(st == ST_OK && !s.run.head.inconsistent, "row %zu, column %zu", row, column);
        CHECK(step->state == state_of_letter(letter), "row %zu, column %zu", row, column);
        CHECK(step->attempt == step_table[row].attempt, "row %zu, column %zu", row, column);
    }
    CHECK(s.run.head.status == RUN_NEW, "a step moves no run");
    subject_close(&s);
}

TEST(run_step_table_is_as_written_for_every_state_type_and_attempt) {
    for (size_t row = 0; row < COUNT_OF(step_table); row++) {
        for (size_t column = 0; column < 4; column++)
            check_step_transition(row, column);
    }
}

TEST(run_extension_types_change_no_step_state) {
    static const char *const types[] = {"StepRetried", "StepCorrected", "StepTeleported",
                                        "ToolCalled", "ToolFailed"};
    for (size_t i = 0; i < COUNT_OF(step_states); i++) {
        for (size_t t = 0; t < COUNT_OF(types); t++) {
            struct subject s;
            subject_open(&s);
            bring_step(&s, step_states[i].types);
            CHECK(apply_at(&s, types[t], STR("a"), 7) == ST_OK, "%s", types[t]);
            const struct step *step = run_step(&s.run, STR("a"));
            CHECK(step->state == step_states[i].state, "%s on %s", types[t], step_states[i].name);
            CHECK(step->attempt == (i < 2 ? 0 : 2), "%s on %s", types[t], step_states[i].name);
            subject_close(&s);
        }
    }
}

/* ---- what is remembered beside the state ---- */

TEST(run_remembers_where_a_step_began_ended_and_has_its_result) {
    struct subject s;
    subject_open(&s);
    bring_step(&s, "SF"); /* 1, 2 */
    const struct step *step = run_step(&s.run, STR("a"));
    CHECK(step->started_seq == 1 && step->ended_seq == 2 && step->result_seq == 2);
    CHECK(apply_at(&s, "StepCorrected", STR("a"), 1) == ST_OK);
    CHECK(step->ended_seq == 2 && step->result_seq == 3 && step->last_seq == 3);
    CHECK(apply_at(&s, "StepStarted", STR("a"), 2) == ST_OK);
    CHECK(step->started_seq == 4 && step->ended_seq == 0 && step->result_seq == 0);
    CHECK(apply_at(&s, "StepCorrected", STR("a"), 2) == ST_OK && step->result_seq == 0);
    CHECK(apply_at(&s, "StepStarted", STR("a"), 1) == ST_CONFLICT && step->started_seq == 4);
    CHECK(apply_at(&s, "StepSkipped", STR("b"), 1) == ST_OK);
    const struct step *skipped = run_step(&s.run, STR("b"));
    CHECK(skipped->started_seq == 0 && skipped->ended_seq == 7 && skipped->result_seq == 7);
    subject_close(&s);
}

TEST(run_counts_steps_pauses_and_attempts) {
    struct subject s;
    subject_open(&s);
    walk(&s, "RunQueued RunStarted RunPaused RunResumed");
    CHECK(apply_at(&s, "RunPaused", STR_NONE, 2) == ST_OK);
    const struct run_head *head = &s.run.head;
    CHECK(head->pauses == 2 && head->resumes == 1 && head->started_seq == 2);
    CHECK(apply(&s, "RunStarted", NULL) == ST_CONFLICT && head->started_seq == 2);
    CHECK(apply(&s, "StepStarted", "a") == ST_OK && apply(&s, "StepStarted", "b") == ST_OK);
    CHECK(head->open_steps == 2 && head->bad_steps == 0);
    CHECK(apply(&s, "StepFailed", "a") == ST_OK && apply(&s, "StepCompleted", "b") == ST_OK);
    CHECK(head->open_steps == 0 && head->bad_steps == 1);
    CHECK(head->total_steps == 1 && head->failed_steps == 1);
    CHECK(apply_at(&s, "StepSkipped", STR("a"), 2) == ST_OK && head->bad_steps == 0);
    struct event_record rec = record_of("RunCancelled", STR_NONE, 1, ++s.seq);
    rec.event.engine_attempt = 5;
    CHECK(run_apply(&s.run, &rec, &s.arena, &s.bad, NULL, &s.err) == ST_OK);
    CHECK(head->ended_seq == s.seq && head->engine_attempt == 5);
    CHECK(apply(&s, "RunTeleported", NULL) == ST_OK && head->engine_attempt == 5);
    subject_close(&s);
}

/* A fact has no runSeq and is no run-level event of the contract, but it is the newest row. */
TEST(run_facts_move_the_position_but_not_the_watermark) {
    struct subject s;
    subject_open(&s);
    walk(&s, "RunStarted");
    CHECK(apply(&s, "SignalReceived", "6f1c9a52-7f44-4a55-8b0c-0e6a5c1d2e3f") == ST_OK);
    CHECK(s.run.head.last_seq == 2 && s.run.head.run_seq == 1 && s.run.head.run_level_seq == 1);
    CHECK(s.run.step_count == 0);
    CHECK(apply(&s, "ToolCalled", "a") == ST_OK && s.run.step_count == 1);
    subject_close(&s);
}

TEST(run_names_and_finality) {
    for (size_t i = 0; i < RUN_STATUS_COUNT; i++) {
        CHECK(strcmp(run_status_name(statuses[i].status), statuses[i].name) == 0);
        CHECK(run_is_final(statuses[i].status) == (i >= RUN_COMPLETED));
    }
    static const char *const names[STEP_STATE_COUNT] = {"PENDING", "PENDING", "RUNNING",
                                                        "SUCCESS", "FAILED",  "SKIPPED"};
    for (int i = 0; i < STEP_STATE_COUNT; i++)
        CHECK(strcmp(step_state_name((enum step_state)i), names[i]) == 0, "%s", names[i]);
}
