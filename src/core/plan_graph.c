/* core/plan_graph.c: ids, dependencies and cycles. Everything is linear in steps and dependencies,
 * and nothing recurses.
 *
 * by_id is a table with open addressing that holds index + 1 of a step, 0 for a free slot. Its seed
 * comes from the digest of the text: the same on every machine, and known to nobody who still can
 * choose the ids. */
#include "base/json.h"
#include "core/plan_impl.h"

enum { CYCLE_STEPS_SHOWN = 8, INDEX_SLOTS_MIN = 16 };

/* ---- ids ---- */

static uint64_t seed_of(const struct plan *plan) {
    uint64_t seed;
    memcpy(&seed, plan->sha256, sizeof seed);
    return seed;
}

/* The slot of the id, or the free one where it would go. */
static uint32_t slot_of(const struct plan *plan, str id) {
    uint32_t i = (uint32_t)str_hash(id, seed_of(plan)) & plan->by_id_mask;
    while (plan->by_id[i] != 0 && !str_eq(plan->steps[plan->by_id[i] - 1].id, id))
        i = (i + 1) & plan->by_id_mask;
    return i;
}

int64_t plan_find(const struct plan *plan, str step_id) {
    if (plan->by_id == NULL) return -1;
    return (int64_t)plan->by_id[slot_of(plan, step_id)] - 1;
}

static void index_ids(struct parse *p) {
    struct plan *plan = p->plan;
    uint32_t slots = INDEX_SLOTS_MIN;
    while (slots < plan->step_count * 2)
        slots *= 2;
    uint32_t *table = plan_alloc(p, slots * sizeof(uint32_t));
    if (table == NULL) return;
    plan->by_id = table;
    plan->by_id_mask = slots - 1;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        if (step->id.ptr == NULL) continue; /* told already */
        uint32_t slot = slot_of(plan, step->id);
        if (table[slot] == 0) {
            table[slot] = i + 1;
            continue;
        }
        plan_complain(p, REASON_PLAN_DUPLICATE_STEP, json_member(step->body, "stepId"),
                      "step \"%.*s\": steps[%u] has this id already", STR_ARG(plan_shown(step->id)),
                      (unsigned)(table[slot] - 1));
    }
}

/* ---- dependencies ---- */

/* seen[d] is index + 1 of the last step that named d. Returns how many were written to `deps`. */
static uint32_t resolve(struct parse *p, uint32_t index, uint32_t *seen, uint32_t *deps) {
    uint32_t count = 0;
    p->step = index;
    yyjson_arr_iter it = yyjson_arr_iter_with(p->depends[index]);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v; v = yyjson_arr_iter_next(&it)) {
        str id = STR_NONE;
        bool is_str = json_str(v, &id);
        ASSERT(is_str);
        int64_t dep = plan_find(p->plan, id);
        if (dep < 0) {
            plan_refuse(p, REASON_PLAN_UNKNOWN_DEPENDENCY, v,
                        "depends on \"%.*s\", which is no step", STR_ARG(plan_shown(id)));
        } else if (seen[dep] == index + 1) {
            plan_refuse(p, REASON_NONE, v, "\"dependsOn\" names \"%.*s\" twice",
                        STR_ARG(plan_shown(id)));
        } else {
            seen[dep] = index + 1;
            deps[count++] = (uint32_t)dep;
        }
    }
    return count;
}

static void link_deps(struct parse *p, uint32_t *all, uint32_t *seen) {
    struct plan *plan = p->plan;
    p->in_step = true;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        struct plan_step *step = &plan->steps[i];
        step->deps = all;
        if (p->depends[i] != NULL) step->dep_count = resolve(p, i, seen, all);
        for (uint32_t k = 0; k < step->dep_count; k++)
            plan->steps[all[k]].dependent_count++;
        all += step->dep_count;
    }
    p->in_step = false;
}

/* The steps go through in order, so each list of dependents is ascending. */
static void link_dependents(struct plan *plan, uint32_t *all, uint32_t *filled) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        plan->steps[i].dependents = all + used;
        filled[i] = used;
        used += plan->steps[i].dependent_count;
    }
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        for (uint32_t k = 0; k < step->dep_count; k++)
            all[filled[step->deps[k]]++] = i;
    }
}

/* ---- cycles ---- */

static void put_shown(const struct plan *plan, uint32_t i, struct buf *out) {
    buf_put(out, plan_shown(plan->steps[i].id));
    buf_put_c(out, " -> ");
}

static void tell_cycle(struct parse *p, const uint32_t *next, uint32_t start) {
    const struct plan *plan = p->plan;
    uint32_t first = start; /* the one that comes first in the plan */
    uint32_t length = 0;
    uint32_t at = start;
    do {
        if (at < first) first = at;
        length++;
        at = next[at];
    } while (at != start);

    char mem[ERROR_MSG_MAX];
    struct buf path;
    buf_init_fixed(&path, mem, sizeof mem);
    at = first;
    for (uint32_t i = 0; i < length; i++, at = next[at]) {
        if (length <= CYCLE_STEPS_SHOWN || i < CYCLE_STEPS_SHOWN - 1 || i == length - 1)
            put_shown(plan, at, &path);
        else if (i == CYCLE_STEPS_SHOWN - 1)
            buf_put_c(&path, "... -> ");
    }
    buf_put(&path, plan_shown(plan->steps[first].id));
    yyjson_val *where = NULL; /* the dependency that leads on from there */
    yyjson_arr_iter it = yyjson_arr_iter_with(p->depends[first]);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v; v = yyjson_arr_iter_next(&it)) {
        str id = STR_NONE;
        if (json_str(v, &id) && str_eq(id, plan->steps[next[first]].id)) where = v;
    }
    ASSERT(where != NULL);
    plan_complain(p, REASON_PLAN_CYCLE, where, "plan: %s: %.*s",
                  length == 1 ? "a step depends on itself" : "steps depend on each other",
                  STR_ARG(buf_str(&path)));
}

/* Takes away, again and again, the steps that depend on nothing that is left. What stays has a
 * cycle behind each step: next[] follows the first dependency that stays, and every walk along it
 * ends in a cycle, which is told once. */
static void find_cycles(struct parse *p, uint32_t *left, uint32_t *next) {
    const struct plan *plan = p->plan;
    uint32_t *ready = next; /* as a queue, while it is not needed for the other thing */
    uint32_t head = 0;
    uint32_t tail = 0;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        left[i] = plan->steps[i].dep_count;
        if (left[i] == 0) ready[tail++] = i;
    }
    while (head < tail) {
        const struct plan_step *done = &plan->steps[ready[head++]];
        for (uint32_t k = 0; k < done->dependent_count; k++) {
            if (--left[done->dependents[k]] == 0) ready[tail++] = done->dependents[k];
        }
    }
    if (tail == plan->step_count) return;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        next[i] = i;
        for (uint32_t k = step->dep_count; left[i] > 0 && k > 0; k--) {
            if (left[step->deps[k - 1]] > 0) next[i] = step->deps[k - 1];
        }
    }
    uint32_t *walk = plan_alloc(p, plan->step_count * sizeof(uint32_t)); /* that came by, from 1 */
    if (walk == NULL) return;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        if (left[i] == 0) continue;
        uint32_t at = i;
        for (; walk[at] == 0; at = next[at])
            walk[at] = i + 1;
        if (walk[at] == i + 1) tell_cycle(p, next, at);
    }
}

void plan_link(struct parse *p) {
    struct plan *plan = p->plan;
    if (p->dep_count > PLAN_DEPS_MAX) return;
    index_ids(p);
    size_t ints = sizeof(uint32_t);
    uint32_t *deps = plan_alloc(p, (size_t)p->dep_count * ints);
    uint32_t *dependents = plan_alloc(p, (size_t)p->dep_count * ints);
    uint32_t *seen = plan_alloc(p, plan->step_count * ints);
    uint32_t *next = plan_alloc(p, plan->step_count * ints);
    if (p->no_memory) return;
    link_deps(p, deps, seen);
    link_dependents(plan, dependents, seen);
    find_cycles(p, seen, next);
}
