/* core/run.c: the transition tables, and the reducer over them. */
#include "core/run.h"

#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"

/* ---- the tables: a pair that is not named is forbidden (RUN_NEW and STEP_MENTIONED are 0) ---- */

/* clang-format off */
static const uint8_t run_next[RUN_STATUS_COUNT][EVENT_TYPE_COUNT] = {
    [RUN_NEW] = {[EVENT_RUN_QUEUED] = RUN_PENDING,
                 [EVENT_RUN_STARTED] = RUN_RUNNING},
    [RUN_PENDING] = {[EVENT_RUN_APPROVED] = RUN_APPROVED, [EVENT_RUN_STARTED] = RUN_RUNNING,
                     [EVENT_RUN_FAILED] = RUN_FAILED, [EVENT_RUN_CANCELLED] = RUN_CANCELLED},
    [RUN_APPROVED] = {[EVENT_RUN_STARTED] = RUN_RUNNING, [EVENT_RUN_FAILED] = RUN_FAILED,
                      [EVENT_RUN_CANCELLED] = RUN_CANCELLED},
    [RUN_RUNNING] = {[EVENT_RUN_PAUSED] = RUN_PAUSED, [EVENT_RUN_COMPLETED] = RUN_COMPLETED,
                     [EVENT_RUN_FAILED] = RUN_FAILED, [EVENT_RUN_CANCELLED] = RUN_CANCELLED},
    [RUN_PAUSED] = {[EVENT_RUN_RESUMED] = RUN_RUNNING, [EVENT_RUN_FAILED] = RUN_FAILED,
                    [EVENT_RUN_CANCELLED] = RUN_CANCELLED},
};

static const uint8_t step_next[STEP_STATE_COUNT][EVENT_TYPE_COUNT] = {
    [STEP_PENDING] = {[EVENT_STEP_STARTED] = STEP_RUNNING, [EVENT_STEP_SKIPPED] = STEP_SKIPPED},
    [STEP_RUNNING] = {[EVENT_STEP_COMPLETED] = STEP_SUCCESS, [EVENT_STEP_FAILED] = STEP_FAILED},
};

/* The state each event leads to, legal or not: for naming what was attempted. */
static const uint8_t run_target[EVENT_TYPE_COUNT] = {
    [EVENT_RUN_QUEUED] = RUN_PENDING,     [EVENT_RUN_APPROVED] = RUN_APPROVED,
    [EVENT_RUN_STARTED] = RUN_RUNNING,    [EVENT_RUN_PAUSED] = RUN_PAUSED,
    [EVENT_RUN_RESUMED] = RUN_RUNNING,    [EVENT_RUN_COMPLETED] = RUN_COMPLETED,
    [EVENT_RUN_FAILED] = RUN_FAILED,      [EVENT_RUN_CANCELLED] = RUN_CANCELLED,
};
static const uint8_t step_target[EVENT_TYPE_COUNT] = {
    [EVENT_STEP_STARTED] = STEP_RUNNING, [EVENT_STEP_COMPLETED] = STEP_SUCCESS,
    [EVENT_STEP_FAILED] = STEP_FAILED,   [EVENT_STEP_SKIPPED] = STEP_SKIPPED,
};

static const char *const status_names[RUN_STATUS_COUNT] = {
    [RUN_NEW] = "PENDING", [RUN_PENDING] = "PENDING", [RUN_APPROVED] = "APPROVED",
    [RUN_RUNNING] = "RUNNING", [RUN_PAUSED] = "PAUSED", [RUN_COMPLETED] = "COMPLETED",
    [RUN_FAILED] = "FAILED", [RUN_CANCELLED] = "CANCELLED"};
static const char *const state_names[STEP_STATE_COUNT] = {
    [STEP_MENTIONED] = "PENDING", [STEP_PENDING] = "PENDING", [STEP_RUNNING] = "RUNNING",
    [STEP_SUCCESS] = "SUCCESS", [STEP_FAILED] = "FAILED", [STEP_SKIPPED] = "SKIPPED"};
/* clang-format on */

const char *run_status_name(enum run_status value) {
    ASSERT(value < RUN_STATUS_COUNT);
    return status_names[value];
}

const char *step_state_name(enum step_state state) {
    ASSERT(state < STEP_STATE_COUNT);
    return state_names[state];
}

bool run_is_final(enum run_status value) {
    return value == RUN_COMPLETED || value == RUN_FAILED || value == RUN_CANCELLED;
}

static bool moves_run(enum event_type type) { return run_target[type] != RUN_NEW; }
static bool moves_step(enum event_type type) { return step_target[type] != STEP_MENTIONED; }

/* ---- steps ---- */

/* Ids are bounded by STEPS_PER_RUN_MAX; a run can only slow down itself. */
enum { STEP_HASH_SEED = 0 };

static uint32_t slot_of(const struct run *run, str id) {
    uint32_t i = (uint32_t)str_hash(id, STEP_HASH_SEED) & (run->slot_cap - 1);
    while (run->slots[i] != 0 && !str_eq(run->steps[run->slots[i] - 1].id, id)) {
        i = (i + 1) & (run->slot_cap - 1);
    }
    return i;
}

struct step *run_step(const struct run *run, str step_id) {
    if (run->slot_cap == 0) return NULL;
    uint32_t at = run->slots[slot_of(run, step_id)];
    return at == 0 ? NULL : &run->steps[at - 1];
}

/* Doubles both arrays. The old ones stay in the arena until the run is dropped: at most as much
 * again. */
static status steps_grow(struct run *run, struct arena *arena, struct error *err) {
    uint32_t cap = run->step_cap == 0 ? 4 : run->step_cap * 2;
    struct step *steps = arena_try(arena, cap * sizeof(*steps));
    uint32_t *slots = arena_try(arena, (size_t)cap * 2 * sizeof(*slots));
    if (!steps || !slots) return error_set(err, ST_RETRY, "run: out of memory for %u steps", cap);
    if (run->steps) memcpy(steps, run->steps, run->step_count * sizeof(*steps));
    run->steps = steps;
    run->slots = slots;
    run->step_cap = cap;
    run->slot_cap = cap * 2;
    for (uint32_t i = 0; i < run->step_count; i++)
        run->slots[slot_of(run, steps[i].id)] = i + 1;
    return ST_OK;
}

status run_add_step(struct run *run, str id, struct arena *arena, struct error *err) {
    if (run->step_count >= STEPS_PER_RUN_MAX) {
        return error_at(err, REASON_TOO_MANY_STEPS, "/stepId", "run: more than %d steps",
                        STEPS_PER_RUN_MAX);
    }
    if (run->step_count == run->step_cap) {
        status st = steps_grow(run, arena, err);
        if (st != ST_OK) return st;
    }
    ASSERT(run->steps); /* there is room, so there is an array */
    struct step step = {0};
    if (!arena_try_str(arena, id, &step.id))
        return error_set(err, ST_RETRY, "run: out of memory for a step id");
    uint32_t slot = slot_of(run, id);
    run->steps[run->step_count++] = step;
    run->slots[slot] = run->step_count;
    return ST_OK;
}

/* ---- what is allowed ---- */

/* The state in which an event of attempt `n` finds the step; STEP_STATE_COUNT if that attempt
 * cannot be open. */
static enum step_state step_before(const struct step *step, int64_t n) {
    if (!step || step->state == STEP_MENTIONED) return n == 1 ? STEP_PENDING : STEP_STATE_COUNT;
    if (n == step->attempt) return step->state;
    if (n == step->attempt + 1 && step->state == STEP_FAILED) return STEP_PENDING;
    return STEP_STATE_COUNT;
}

/* What to call the state of attempt `n` when it cannot be open: earlier attempts have FAILED, later
 * ones are unborn. */
static const char *step_prior_name(const struct step *step, int64_t n) {
    if (!step || step->state == STEP_MENTIONED || n > step->attempt) return "PENDING";
    return n < step->attempt ? "FAILED" : step_state_name(step->state);
}

static bool step_allows(const struct run *run, const struct event *event, struct transition *bad) {
    const struct step *step = run_step(run, event->subject);
    enum step_state before = step_before(step, event->logical_attempt);
    if (before < STEP_STATE_COUNT && step_next[before][event->type] != STEP_MENTIONED) return true;
    bad->prior = step_prior_name(step, event->logical_attempt);
    bad->attempted = state_names[step_target[event->type]];
    return false;
}

bool run_allows(const struct run *run, const struct event *event, struct transition *bad) {
    ASSERT(run->head.status < RUN_STATUS_COUNT);
    ASSERT(event->type < EVENT_TYPE_COUNT);
    if (moves_step(event->type)) return step_allows(run, event, bad);
    if (!moves_run(event->type)) return true; /* opaque, or an extension that changes no state */
    if (run_next[run->head.status][event->type] != RUN_NEW) return true;
    bad->prior = run_status_name(run->head.status);
    bad->attempted = status_names[run_target[event->type]];
    return false;
}

/* ---- the reducer ---- */

static void apply_to_step(struct run *run, struct step *step, const struct event_record *rec) {
    ASSERT(step); /* touch_step() found or added it: the event is of FAMILY_STEP */
    const struct event *e = &rec->event;
    enum step_state before = step_before(step, e->logical_attempt);
    ASSERT(before < STEP_STATE_COUNT); /* the tables allowed it */
    enum step_state next = (enum step_state)step_next[before][e->type];
    struct run_head *head = &run->head;
    if (step->state == STEP_FAILED) head->bad_steps--; /* a new attempt opens */
    if (before == STEP_PENDING) step->started_seq = step->ended_seq = step->result_seq = 0;
    step->attempt = e->logical_attempt;
    step->state = next;
    if (next == STEP_RUNNING) {
        step->started_seq = rec->seq;
        head->open_steps++;
        return;
    }
    step->ended_seq = step->result_seq = rec->seq;
    if (before == STEP_RUNNING) head->open_steps--;
    if (next == STEP_SUCCESS) head->total_steps++;
    if (next == STEP_FAILED) {
        head->failed_steps++;
        head->bad_steps++;
    }
}

static void apply_to_run(struct run_head *head, const struct event_record *rec) {
    enum event_type type = rec->event.type;
    head->status = (enum run_status)run_next[head->status][type];
    if (type == EVENT_RUN_STARTED) head->started_seq = rec->seq;
    if (type == EVENT_RUN_PAUSED) head->pauses++;
    if (type == EVENT_RUN_RESUMED) head->resumes++;
    if (run_is_final(head->status)) head->ended_seq = rec->seq;
}

/* Finds or adds the step that the record names, and remembers how it was. */
static status touch_step(struct run *run, const struct event_record *rec, struct arena *arena,
                         struct run_undo *undo, struct step **out, struct error *err) {
    *out = NULL;
    enum event_family family = event_family_of(&rec->event);
    if (family != FAMILY_STEP && family != FAMILY_TOOL) return ST_OK;
    struct step *step = run_step(run, rec->event.subject);
    if (!step) {
        status st = run_add_step(run, rec->event.subject, arena, err);
        if (st != ST_OK) return st;
        ASSERT(run->steps); /* it holds the new one */
        step = &run->steps[run->step_count - 1];
        undo->step_added = true;
    }
    undo->step_index = step - run->steps;
    undo->step = *step;
    *out = step;
    return ST_OK;
}

status run_apply(struct run *run, const struct event_record *rec, struct arena *arena,
                 struct transition *bad, struct run_undo *undo, struct error *err) {
    const struct event *e = &rec->event;
    ASSERT(rec->seq >
           run->head.last_seq); /* a reader answers disorder with ST_CORRUPT before it gets here */
    struct run_undo scratch;
    if (!undo) undo = &scratch;
    *undo = (struct run_undo){.head = run->head, .step_index = -1};

    bool legal = run_allows(run, e, bad);
    struct step *step = NULL;
    status st = touch_step(run, rec, arena, undo, &step, err);
    if (st != ST_OK) return st;

    struct run_head *head = &run->head;
    if (legal && moves_step(e->type)) apply_to_step(run, step, rec);
    if (legal && moves_run(e->type)) apply_to_run(head, rec);
    if (legal && e->type == EVENT_STEP_CORRECTED) {
        ASSERT(step);
        if (step->ended_seq != 0) step->result_seq = rec->seq;
    }
    if (step) step->last_seq = rec->seq;
    if (!legal) {
        head->inconsistent = true;
        head->invalid_events++;
    }
    if (legal && event_family_of(e) == FAMILY_RUN) head->run_level_seq = rec->seq;
    if (e->engine_attempt > head->engine_attempt) head->engine_attempt = e->engine_attempt;
    if (rec->run_seq > 0) head->run_seq = rec->run_seq;
    head->last_seq = rec->seq;
    return legal ? ST_OK : ST_CONFLICT;
}

void run_undo(struct run *run, const struct run_undo *undo) {
    run->head = undo->head;
    if (undo->step_index < 0) return;
    ASSERT(undo->step_index < (int64_t)run->step_count);
    if (!undo->step_added) {
        run->steps[undo->step_index] = undo->step;
        return;
    }
    ASSERT(undo->step_index == (int64_t)run->step_count - 1);
    /* The newest step was probed last, so emptying its slot breaks no other chain. */
    run->slots[slot_of(run, run->steps[undo->step_index].id)] = 0;
    run->step_count--;
}

int64_t run_default_cause(const struct run *run, const struct event *event) {
    enum event_family family = event_family_of(event);
    if (family != FAMILY_STEP && family != FAMILY_TOOL) return run->head.last_seq;
    const struct step *step = run_step(run, event->subject);
    if (step) return step->last_seq;
    return run->head.run_level_seq > 0 ? run->head.run_level_seq : run->head.last_seq;
}

/* ---- layer 1 ---- */

/* The states from which `type` is legal, joined by '|'. */
static void expected_states(const struct event *event, struct refusal *why) {
    struct buf b;
    buf_init_fixed(&b, why->expected, sizeof(why->expected) - 1);
    bool step = moves_step(event->type);
    int count = step ? STEP_STATE_COUNT : RUN_STATUS_COUNT;
    for (int s = 0; s < count; s++) {
        bool legal = step ? step_next[s][event->type] != 0 : run_next[s][event->type] != 0;
        if (!legal) continue;
        const char *name = step ? state_names[s] : s == RUN_NEW ? "NEW" : status_names[s];
        if (b.len > 0) buf_put_char(&b, '|');
        buf_put_c(&b, name);
    }
    why->expected[b.len] = 0;
}

bool run_guard(const struct run *run, const struct event *event, struct refusal *why) {
    struct transition bad;
    *why =
        (struct refusal){.attempted_type = event->type_name, .step_level = moves_step(event->type)};
    if (!run_allows(run, event, &bad)) {
        expected_states(event, why);
        why->actual = bad.prior;
        return false;
    }
    const struct run_head *head = &run->head;
    bool opens_step = event->type == EVENT_STEP_STARTED || event->type == EVENT_STEP_SKIPPED;
    if (opens_step && head->status != RUN_RUNNING) {
        snprintf(why->expected, sizeof(why->expected), "RUNNING");
        why->actual = run_status_name(head->status);
        return false;
    }
    if (event->type == EVENT_RUN_COMPLETED && (head->open_steps > 0 || head->bad_steps > 0)) {
        snprintf(why->expected, sizeof(why->expected), "every step SUCCESS or SKIPPED");
        why->actual = head->open_steps > 0 ? "a step is RUNNING" : "a step is FAILED";
        return false;
    }
    return true;
}

void refusal_json(const struct refusal *why, struct buf *out) {
    json_object_begin(out);
    json_put_bool(out, "invalidTransitionDetected", true);
    json_put_text(out, "expectedState", str_c(why->expected));
    json_put_text(out, "actualState", str_c(why->actual));
    json_put_text(out, "attemptedEventType", why->attempted_type);
    json_object_end(out);
}
