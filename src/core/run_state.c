/* core/run_state.c: a run's state as JSON and back. One table of members serves both directions. */
#include "base/json.h"
#include "base/json_out.h"
#include "core/run.h"

struct member {
    const char *name;
    size_t offset;
};
/* clang-format off */
#define HEAD(name, field) {name, offsetof(struct run_head, field)}
#define STEP(name, field) {name, offsetof(struct step, field)}

static const struct member head_members[] = {
    HEAD("runSeq", run_seq), HEAD("lastSeq", last_seq), HEAD("runLevelSeq", run_level_seq),
    HEAD("startedSeq", started_seq), HEAD("endedSeq", ended_seq), HEAD("totalSteps", total_steps),
    HEAD("failedSteps", failed_steps), HEAD("openSteps", open_steps), HEAD("badSteps", bad_steps),
    HEAD("pauses", pauses), HEAD("resumes", resumes), HEAD("invalidEvents", invalid_events),
    HEAD("engineAttemptId", engine_attempt)};
static const struct member step_members[] = {
    STEP("logicalAttemptId", attempt), STEP("startedSeq", started_seq), STEP("endedSeq", ended_seq),
    STEP("resultSeq", result_seq), STEP("lastSeq", last_seq)};
/* clang-format on */

/* Every number counts something, from 0. One near the limit is damage, and the reducer could not
 * count on from it. */
#define NUMBER_MAX (INT64_MAX / 2)

static int64_t *at(void *base, size_t offset) { return (int64_t *)(void *)((char *)base + offset); }

static void put_members(const void *base, const struct member *members, size_t n, struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        int64_t value;
        memcpy(&value, (const char *)base + members[i].offset, sizeof(value));
        json_put_int(out, members[i].name, value);
    }
}

void run_state_json(const struct run *run, struct buf *out) {
    const struct run_head *head = &run->head;
    json_object_begin(out);
    json_put_text(out, "status",
                  str_c(head->status == RUN_NEW ? "NEW" : run_status_name(head->status)));
    json_put_text(out, "mark", head->inconsistent ? STR("INCONSISTENT") : STR_NONE);
    put_members(head, head_members, COUNT_OF(head_members), out);
    json_name(out, "steps");
    json_array_begin(out);
    for (uint32_t i = 0; i < run->step_count; i++) {
        const struct step *step = &run->steps[i];
        json_object_begin(out);
        json_put_text(out, "stepId", step->id);
        json_put_text(out, "state",
                      str_c(step->state == STEP_MENTIONED ? "NONE" : step_state_name(step->state)));
        put_members(step, step_members, COUNT_OF(step_members), out);
        json_object_end(out);
    }
    json_array_end(out);
    json_object_end(out);
}

static status damaged(struct error *err, const char *what) {
    return error_at(err, REASON_STATE_DAMAGED, what, "run state: \"%s\" is missing or malformed",
                    what);
}

static bool take_members(yyjson_val *obj, void *base, const struct member *members, size_t n,
                         const char **bad) {
    for (size_t i = 0; i < n; i++) {
        *bad = members[i].name;
        int64_t *value = at(base, members[i].offset);
        if (!json_int(json_member(obj, members[i].name), value)) return false;
        if (*value < 0 || *value > NUMBER_MAX) return false;
    }
    return true;
}

static int status_of(str name) {
    if (str_eq(name, STR("NEW"))) return RUN_NEW;
    for (int i = RUN_PENDING; i < RUN_STATUS_COUNT; i++) {
        if (str_eq(name, str_c(run_status_name((enum run_status)i)))) return i;
    }
    return -1;
}

static int state_of(str name) {
    if (str_eq(name, STR("NONE"))) return STEP_MENTIONED;
    for (int i = STEP_PENDING; i < STEP_STATE_COUNT; i++) {
        if (str_eq(name, str_c(step_state_name((enum step_state)i)))) return i;
    }
    return -1;
}

static status take_step(struct run *run, yyjson_val *obj, struct arena *arena, struct error *err) {
    str id;
    str state_name;
    if (!json_str(json_member(obj, "stepId"), &id)) return damaged(err, "stepId");
    if (!json_str(json_member(obj, "state"), &state_name)) return damaged(err, "state");
    int state = state_of(state_name);
    if (state < 0) return damaged(err, "state");
    if (run_step(run, id)) return damaged(err, "stepId");
    status st = run_add_step(run, id, arena, err);
    if (st != ST_OK) return st;
    struct step *step = &run->steps[run->step_count - 1];
    step->state = (enum step_state)state;
    const char *bad = "";
    if (!take_members(obj, step, step_members, COUNT_OF(step_members), &bad))
        return damaged(err, bad);
    return ST_OK;
}

status run_state_parse(str json, struct arena *arena, struct run *out, struct error *err) {
    yyjson_val *root = NULL;
    struct json_limits limits = {json.len, 8};
    status st = json_parse(json, limits, arena, &root, err);
    if (st == ST_RETRY) return st;
    if (st != ST_OK) return damaged(err, "state");
    struct run run = {0};
    str name;
    if (!json_str(json_member(root, "status"), &name)) return damaged(err, "status");
    int status_value = status_of(name);
    if (status_value < 0) return damaged(err, "status");
    run.head.status = (enum run_status)status_value;
    yyjson_val *mark = json_member(root, "mark");
    run.head.inconsistent = json_str(mark, &name) && str_eq(name, STR("INCONSISTENT"));
    if (!run.head.inconsistent && !yyjson_is_null(mark)) return damaged(err, "mark");
    const char *bad = "";
    if (!take_members(root, &run.head, head_members, COUNT_OF(head_members), &bad))
        return damaged(err, bad);
    yyjson_val *steps = json_member(root, "steps");
    if (!yyjson_is_arr(steps)) return damaged(err, "steps");
    yyjson_arr_iter it = yyjson_arr_iter_with(steps);
    for (yyjson_val *obj = yyjson_arr_iter_next(&it); obj; obj = yyjson_arr_iter_next(&it)) {
        st = take_step(&run, obj, arena, err);
        if (st != ST_OK) return st;
    }
    *out = run;
    return ST_OK;
}
