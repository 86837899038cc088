/* Any bytes as a plan. What is refused has a place inside the text; what is accepted is linked
 * consistently, fits its own schema of parameters or says where not, and can be checked. */
#include "base/limits.h"
#include "core/capability.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ARENA_BYTES_MAX ((size_t)256 * 1024 * 1024)

static void check_problems(const struct plan_problems *problems, size_t size) {
    ASSERT(problems->count > 0 && problems->count <= PLAN_ERRORS_MAX);
    const struct plan_problem *before = NULL;
    for (size_t i = 0; i < problems->count; i++) {
        const struct plan_problem *p = &problems->items[i];
        size_t bad = 0;
        ASSERT(p->code != REASON_NONE && p->line >= 1 && p->column >= 1);
        ASSERT((size_t)p->line + (size_t)p->column <= size + 2);
        ASSERT(p->message.len > 0 && str_utf8(p->message, &bad) && str_utf8(p->pointer, &bad));
        ASSERT(p->pointer.len == 0 || p->pointer.ptr[0] == '/');
        ASSERT(before == NULL || before->line < p->line ||
               (before->line == p->line && before->column <= p->column));
        before = p;
    }
}

static void check_steps(const struct plan *plan) {
    uint64_t deps = 0;
    uint64_t dependents = 0;
    ASSERT(plan->step_count > 0 && plan->step_count <= PLAN_STEPS_MAX);
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        ASSERT(plan_find(plan, step->id) == (int64_t)i);
        ASSERT(step->type < PLAN_TYPE_COUNT && step->phase < PHASE_COUNT);
        ASSERT(step->id.len > 0 && step->id.len <= ID_BYTES_MAX);
        ASSERT(plan_backoff_ms(step->retry, 7, i) >= 0);
        for (uint32_t k = 0; k < step->dep_count; k++)
            ASSERT(step->deps[k] < plan->step_count && step->deps[k] != i);
        for (uint32_t k = 0; k < step->dependent_count; k++)
            ASSERT(step->dependents[k] < plan->step_count);
        deps += step->dep_count;
        dependents += step->dependent_count;
    }
    ASSERT(deps == dependents);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct plan_problems problems;
    struct arena arena;
    struct plan *plan = NULL;
    struct error err = {0};
    arena_init(&arena, 4096, ARENA_BYTES_MAX);
    status st = plan_parse(str_n(data, size), &arena, &plan, &problems, &err);
    if (st == ST_OK) {
        struct validation_report report;
        str filled = STR_NONE;
        check_steps(plan);
        st = capability_validate(plan, ADAPTER_LOCAL, &arena, &report, &err);
        ASSERT(st == ST_OK);
        st = plan_parameters(plan, STR_NONE, &arena, &filled, &err);
        if (st == ST_OK) { /* what was filled in once is complete */
            str again = STR_NONE;
            st = plan_parameters(plan, filled, &arena, &again, &err);
            ASSERT(st != ST_OK || str_eq(filled, again)); /* (a const may forbid its defaults) */
        }
    } else {
        ASSERT(st == ST_INVALID || st == ST_LIMIT);
        check_problems(&problems, size);
    }
    arena_release(&arena);
    return 0;
}
