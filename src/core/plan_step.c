/* core/plan_step.c: the steps of a plan: their common fields, and what holds across fields. */
#include "base/json.h"
#include "core/liquid.h"
#include "core/plan_impl.h"

static const struct {
    const char *name;
    int since; /* the minor version that brought it */
} types[PLAN_TYPE_COUNT] = {
    [PLAN_EXEC] = {"exec", 0},         [PLAN_HTTP] = {"http", 0},   [PLAN_TASK] = {"task", 1},
    [PLAN_EFFECT] = {"effect", 2},     [PLAN_SLEEP] = {"sleep", 0}, [PLAN_WAIT] = {"wait", 1},
    [PLAN_APPROVAL] = {"approval", 2}, [PLAN_NOOP] = {"noop", 0},   [PLAN_PACKAGE] = {"package", 3},
};
static const char *const phases[PHASE_COUNT + 1] = {"plan", "apply", "verify", "capture", NULL};
static const char *const failures[] = {"fail", "continue", "skipDependents", NULL};

const char *plan_type_name(enum plan_type type) {
    ASSERT(type < PLAN_TYPE_COUNT);
    return types[type].name;
}

bool plan_type_is_executed(enum plan_type type) {
    return type == PLAN_EXEC || type == PLAN_HTTP || type == PLAN_EFFECT;
}

const char *plan_phase_name(enum plan_phase phase) {
    ASSERT(phase < PHASE_COUNT);
    return phases[phase];
}

/* ---- readers ---- */

static void read_id(struct parse *p, yyjson_val *val, void *into) {
    struct plan_step *step = into;
    str id = STR_NONE;
    step->id = STR_NONE;
    if (!plan_take_id(p, val, "stepId", &id)) return;
    if (str_eq(id, STR("RUN"))) {
        plan_refuse(p, REASON_NONE, val,
                    "\"stepId\" must not be RUN, which stands for the run itself");
        return;
    }
    step->id = id;
}

/* A type that is not there leaves PLAN_TYPE_COUNT. */
static void read_type(struct parse *p, yyjson_val *val, void *into) {
    struct plan_step *step = into;
    str name = STR_NONE;
    if (!plan_take_str(p, val, "type", &name)) return;
    for (int i = 0; i < PLAN_TYPE_COUNT; i++) {
        if (!str_eq(name, str_c(types[i].name))) continue;
        step->type = (enum plan_type)i;
        if (types[i].since > p->minor) {
            plan_refuse(p, REASON_NONE, val, "type \"%s\" exists from schemaVersion v%d.%d on",
                        types[i].name, PLAN_SCHEMA_MAJOR, types[i].since);
        }
        return;
    }
    plan_refuse(p, REASON_NONE, val, "there is no type \"%.*s\"", STR_ARG(plan_shown(name)));
}

static void read_depends(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    if (!yyjson_is_arr(val)) {
        plan_refuse(p, REASON_NONE, val, "\"dependsOn\" must be an array of strings, found %s",
                    plan_kind_of(val));
        return;
    }
    bool ok = true;
    str id = STR_NONE;
    yyjson_arr_iter it = yyjson_arr_iter_with(val);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v; v = yyjson_arr_iter_next(&it))
        ok &= plan_take_str(p, v, "dependsOn", &id);
    if (!ok) return;
    p->depends[p->step] = val;
    bool fitted = p->dep_count <= PLAN_DEPS_MAX;
    p->dep_count += (int64_t)yyjson_arr_size(val);
    if (fitted && p->dep_count > PLAN_DEPS_MAX) {
        plan_complain(p, REASON_PLAN_TOO_LARGE, val, "plan: more than %d dependencies",
                      PLAN_DEPS_MAX);
    }
}

static void read_step_retry(struct parse *p, yyjson_val *val, void *into) {
    struct plan_step *step = into;
    struct plan_retry *retry = plan_alloc(p, sizeof *retry);
    if (retry == NULL) return;
    plan_read_retry(p, val, p->retry, retry);
    step->retry = retry;
}

static void read_run_if(struct parse *p, yyjson_val *val, void *into) {
    struct plan_step *step = into;
    struct error err = {0};
    str text = STR_NONE;
    if (!plan_take_str(p, val, "runIf", &text)) return;
    status st = liquid_check_condition(text, &err);
    if (st == ST_RETRY) {
        p->no_memory = true;
    } else if (st != ST_OK) {
        plan_refuse(p, REASON_NONE, val, "\"runIf\": %s (%s at %s)", err.msg,
                    err.reason == REASON_NONE ? "LIQUID" : reason_name(err.reason), err.where);
    } else {
        step->run_if = text;
    }
}

#define INTO(member) .into = (int)offsetof(struct plan_step, member)

static const struct field common_fields[] = {
    {.name = STR_LIT("stepId"), .kind = FIELD_CUSTOM, .required = true, .read = read_id},
    {.name = STR_LIT("type"), .kind = FIELD_CUSTOM, .required = true, .read = read_type},
    {.name = STR_LIT("dependsOn"), .kind = FIELD_CUSTOM, .read = read_depends},
    {.name = STR_LIT("retry"), .kind = FIELD_CUSTOM, .read = read_step_retry},
    {.name = STR_LIT("timeoutMs"), .kind = FIELD_INT, .max = PLAN_DELAY_MS_MAX, INTO(timeout_ms)},
    {.name = STR_LIT("onFailure"), .kind = FIELD_CHOICE, .names = failures, INTO(on_failure)},
    {.name = STR_LIT("runIf"), .kind = FIELD_CUSTOM, .since = 2, .read = read_run_if},
    {.name = STR_LIT("phase"), .kind = FIELD_CHOICE, .since = 3, .names = phases, INTO(phase)},
    {.name = STR_LIT("driver"), .kind = FIELD_ID, .since = 3, INTO(driver)},
};

/* ---- one step ---- */

static void check_sleep(struct parse *p, const struct plan_step *step) {
    yyjson_val *duration = json_member(step->body, "durationMs");
    yyjson_val *until = json_member(step->body, "until");
    if (duration != NULL && until != NULL)
        plan_refuse(p, REASON_NONE, until, "a sleep has \"durationMs\" or \"until\", not both");
    if (duration == NULL && until == NULL)
        plan_refuse(p, REASON_NONE, step->body, "a sleep needs \"durationMs\" or \"until\"");
}

/* Phases run one after the other, so the order of the steps must not contradict theirs. */
static void check_phase(struct parse *p, struct plan_step *step) {
    if (p->step == 0) return;
    enum plan_phase before = step[-1].phase;
    if (step->phase >= before) return;
    yyjson_val *at = json_member(step->body, "phase");
    if (at != NULL && !yyjson_equals_str(at, phases[step->phase])) {
        step->phase = before; /* it is no phase at all, which was told already */
        return;
    }
    plan_refuse(p, REASON_NONE, at == NULL ? step->body : at,
                "phase \"%s\" must not come after phase \"%s\" of the step before",
                phases[step->phase], phases[before]);
}

/* Messages name the step, so its id is looked at before it is read properly. */
static str peek_id(yyjson_val *val) {
    str id = STR_NONE;
    const char *why = NULL;
    return json_str(json_member(val, "stepId"), &id) && plan_id_ok(id, &why) ? id : STR_NONE;
}

/* The type decides which fields there are. */
static enum plan_type peek_type(yyjson_val *val) {
    str name = STR_NONE;
    if (!json_str(json_member(val, "type"), &name)) return PLAN_TYPE_COUNT;
    for (int i = 0; i < PLAN_TYPE_COUNT; i++) {
        if (str_eq(name, str_c(types[i].name))) return (enum plan_type)i;
    }
    return PLAN_TYPE_COUNT;
}

static void read_step(struct parse *p, yyjson_val *val) {
    struct plan_step *step = &p->plan->steps[p->step];
    *step = (struct plan_step){.type = PLAN_TYPE_COUNT,
                               .retry = p->retry,
                               .timeout_ms = p->timeout_ms,
                               .phase = PHASE_APPLY,
                               .body = val,
                               .duration_ms = -1};
    if (!yyjson_is_obj(val)) {
        plan_refuse(p, REASON_NONE, val, "a step must be an object, found %s", plan_kind_of(val));
        if (p->step > 0) step->phase = step[-1].phase;
        return;
    }
    enum plan_type type = peek_type(val);
    step->id = peek_id(val);
    bool known = type < PLAN_TYPE_COUNT;
    if (type == PLAN_HTTP) step->output = PLAN_OUTPUT_JSON;
    p->lenient = !known; /* without a type nobody can say which other fields there are */
    struct field_list of_type = FIELD_LIST_NONE;
    if (known) of_type = (struct field_list){plan_type_fields[type], plan_type_field_count[type]};
    plan_read_fields(p, val, FIELD_LIST(common_fields), of_type, step);
    p->lenient = false;
    if (step->type == PLAN_SLEEP) check_sleep(p, step);
    check_phase(p, step);
}

void plan_read_steps(struct parse *p, yyjson_val *val) {
    size_t count = yyjson_arr_size(val);
    if (!yyjson_is_arr(val)) {
        plan_refuse(p, REASON_PLAN_FIELD_TYPE, val, "\"steps\" must be an array, found %s",
                    plan_kind_of(val));
        return;
    }
    if (count == 0) plan_complain(p, REASON_PLAN_EMPTY, val, "plan: there are no steps");
    if (count > PLAN_STEPS_MAX) {
        plan_complain(p, REASON_PLAN_TOO_LARGE, val, "plan: %zu steps, at most %d are allowed",
                      count, PLAN_STEPS_MAX);
        return;
    }
    p->plan->steps = plan_alloc(p, count * sizeof(struct plan_step));
    p->depends = plan_alloc(p, count * sizeof(yyjson_val *));
    if (p->no_memory) return;
    p->plan->step_count = (uint32_t)count;
    p->in_step = true;
    yyjson_arr_iter it = yyjson_arr_iter_with(val);
    for (p->step = 0; p->step < count && !p->no_memory; p->step++)
        read_step(p, yyjson_arr_iter_next(&it));
    p->in_step = false;
}
