/* adapters/conductor/def.c: see the header. */
#include "adapters/conductor/def.h"

#include <string.h>

#include "base/hash.h"
#include "base/json_out.h"
#include "base/map.h"

enum { HASH_BYTES = 6 };        /* of SHA-256, behind a text that could not stay as it was */
#define OWNER "cairn@localhost" /* Conductor wants an e-mail address on every definition */

/* ---- names ---- */

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

/* The id, with '_' for what is not plain; different ids give different texts, but for a chance of
 * one in 2^48. */
static void put_plain(str id, struct buf *out) {
    bool same = id.len <= DEF_NAME_MAX;
    size_t n = same ? id.len : DEF_NAME_MAX;
    for (size_t i = 0; i < n; i++) {
        same &= is_plain(id.ptr[i]);
        buf_put(out, is_plain(id.ptr[i]) ? str_n(id.ptr + i, 1) : STR("_"));
    }
    if (same) return;
    uint8_t digest[SHA256_LEN];
    sha256_of(id, digest);
    buf_put_char(out, '_');
    buf_put_hex(out, digest, HASH_BYTES);
}

void def_workflow_name(str plan_id, struct buf *out) {
    buf_put_c(out, DEF_NAME_PREFIX);
    put_plain(plan_id, out);
}

void def_domain(str node, struct buf *out) { put_plain(node, out); }

void def_step_put(str step_id, struct buf *out) {
    for (size_t i = 0; i < step_id.len; i++) {
        char c = step_id.ptr[i];
        if (c == '$' || c == '%')
            buf_printf(out, "%%%02X", (unsigned)c);
        else
            buf_put_char(out, c);
    }
}

bool def_step_take(str text, struct buf *out) {
    for (size_t i = 0; i < text.len; i++) {
        str rest = str_from(text, i);
        bool coded = text.ptr[i] == '%';
        if (coded && !str_starts(rest, STR("%24")) && !str_starts(rest, STR("%25"))) return false;
        if (!coded)
            buf_put_char(out, text.ptr[i]);
        else
            buf_put_c(out, rest.ptr[2] == '4' ? "$" : "%");
        if (coded) i += 2;
    }
    return text.len > 0 && !out->full;
}

/* ---- paths ---- */

#define NOBODY UINT32_MAX

struct layout {
    const struct plan *plan;
    uint32_t *next; /* the step behind a step in its branch, or NOBODY */
    uint32_t *head; /* the first step of its branch */
    str *name;      /* what its reference has behind "s_" */
    uint32_t branches;
};

/* Each step goes on behind the first of its predecessors behind which there is nothing yet. Paths
 * run along edges of a graph without cycles, so each ends, and none meets another. */
static void paths_make(struct layout *l, uint32_t *before) {
    const struct plan *p = l->plan;
    for (uint32_t i = 0; i < p->step_count; i++)
        l->next[i] = before[i] = NOBODY;
    for (uint32_t i = 0; i < p->step_count; i++) {
        const struct plan_step *s = &p->steps[i];
        for (uint32_t d = 0; d < s->dep_count && before[i] == NOBODY; d++) {
            if (l->next[s->deps[d]] != NOBODY) continue;
            l->next[s->deps[d]] = i;
            before[i] = s->deps[d];
        }
    }
    for (uint32_t i = 0; i < p->step_count; i++) {
        if (before[i] != NOBODY) continue;
        l->branches++;
        for (uint32_t at = i; at != NOBODY; at = l->next[at])
            l->head[at] = i;
    }
}

/* References are unique within a definition. A name that is taken gets a tail until it is not. */
static bool names_make(struct layout *l, struct arena *scratch, struct map *taken) {
    for (uint32_t i = 0; i < l->plan->step_count; i++) {
        char text[DEF_NAME_MAX + 2 * HASH_BYTES + 64];
        struct buf b;
        buf_init_fixed(&b, text, sizeof text);
        put_plain(l->plan->steps[i].id, &b);
        while (map_get(taken, buf_str(&b)) && !b.full)
            buf_printf(&b, "_%u", (unsigned)i);
        if (b.full || !arena_try_str(scratch, buf_str(&b), &l->name[i]) ||
            !map_put(taken, l->name[i], l))
            return false;
    }
    return true;
}

static status layout_make(struct layout *l, const struct plan *plan, struct arena *scratch,
                          struct error *err) {
    size_t n = plan->step_count;
    uint32_t *before = arena_try(scratch, n * sizeof *before);
    *l = (struct layout){.plan = plan,
                         .next = arena_try(scratch, n * sizeof *l->next),
                         .head = arena_try(scratch, n * sizeof *l->head),
                         .name = arena_try(scratch, n * sizeof *l->name)};
    struct map taken;
    map_init(&taken);
    bool ok = before && l->next && l->head && l->name && names_make(l, scratch, &taken);
    map_release(&taken);
    if (!ok) return error_set(err, ST_RETRY, "out of memory for the definition of a workflow");
    paths_make(l, before);
    return ST_OK;
}

/* ---- JSON ---- */

/* What a JOIN before this step waits for: predecessors that do not stand before it anyway. */
static void put_join(const struct layout *l, uint32_t step, struct buf *out) {
    const struct plan_step *s = &l->plan->steps[step];
    uint32_t count = 0;
    for (uint32_t d = 0; d < s->dep_count; d++) {
        uint32_t dep = s->deps[d];
        if (l->head[dep] == l->head[step]) continue;
        if (count++ == 0)
            buf_printf(out,
                       "{\"name\":\"join\",\"taskReferenceName\":\"j_%.*s\",\"type\":\"JOIN\","
                       "\"joinMode\":\"SYNC\",\"joinOn\":[",
                       STR_ARG(l->name[step]));
        else
            buf_put_char(out, ',');
        buf_printf(out, "\"s_%.*s\"", STR_ARG(l->name[dep]));
    }
    if (count > 0) buf_put_c(out, "]},");
}

static void put_step(const struct layout *l, uint32_t step, struct buf *out) {
    const struct plan_step *s = &l->plan->steps[step];
    char text[3 * 256];
    struct buf id;
    buf_init_fixed(&id, text, sizeof text);
    def_step_put(s->id, &id);
    put_join(l, step, out);
    buf_printf(out,
               "{\"name\":\"" DEF_TASK_TYPE "\",\"taskReferenceName\":\"s_%.*s\",\"type\":"
               "\"SIMPLE\",\"inputParameters\":{\"runId\":\"${workflow.input.runId}\","
               "\"tenantId\":\"${workflow.input.tenantId}\"",
               STR_ARG(l->name[step]));
    json_put_text(out, "stepId", buf_str(&id));
    json_put_text(out, "type", str_c(plan_type_name(s->type)));
    json_object_end(out);
    json_object_end(out);
    if (id.full) out->full = true;
}

static void put_branch(const struct layout *l, uint32_t head, struct buf *out) {
    for (uint32_t at = head; at != NOBODY; at = l->next[at]) {
        if (at != head) buf_put_char(out, ',');
        put_step(l, at, out);
    }
}

static void put_fork(const struct layout *l, struct buf *out) {
    uint32_t count = 0;
    buf_put_c(out, "{\"name\":\"fork\",\"taskReferenceName\":\"fork\",\"type\":\"FORK_JOIN\","
                   "\"forkTasks\":[");
    for (uint32_t i = 0; i < l->plan->step_count; i++) {
        if (l->head[i] != i) continue;
        buf_put_c(out, count++ > 0 ? ",[" : "[");
        put_branch(l, i, out);
        buf_put_char(out, ']');
    }
    buf_put_c(out, "]},{\"name\":\"join\",\"taskReferenceName\":\"done\",\"type\":\"JOIN\","
                   "\"joinMode\":\"SYNC\",\"joinOn\":[");
    count = 0;
    for (uint32_t i = 0; i < l->plan->step_count; i++) {
        if (l->next[i] != NOBODY) continue;
        buf_printf(out, "%s\"s_%.*s\"", count++ > 0 ? "," : "", STR_ARG(l->name[i]));
    }
    buf_put_c(out, "]}");
}

static void put_definition(const struct layout *l, str name, struct buf *out) {
    const struct plan *p = l->plan;
    json_object_begin(out);
    json_put_text(out, "name", name);
    buf_put_c(out, ",\"version\":1,\"schemaVersion\":2,\"ownerEmail\":\"" OWNER "\","
                   "\"timeoutSeconds\":0,\"timeoutPolicy\":\"ALERT_ONLY\",\"inputParameters\":["
                   "\"runId\",\"tenantId\",\"projectId\",\"environmentId\",\"planId\","
                   "\"planVersion\"],\"description\":");
    char text[2 * 256 + 64];
    struct buf b;
    buf_init_fixed(&b, text, sizeof text);
    buf_printf(&b, "plan %.*s, version %.*s", STR_ARG(p->plan_id), STR_ARG(p->plan_version));
    buf_put_json_str(out, buf_str(&b));
    buf_put_c(out, ",\"tasks\":[");
    if (l->branches > 1)
        put_fork(l, out);
    else
        put_branch(l, l->head[0], out);
    buf_put_c(out, "]}");
}

status def_start_json(const struct def_start *start, struct arena *scratch, struct buf *out,
                      struct error *err) {
    ASSERT(start->plan->step_count > 0);
    struct layout l;
    status st = layout_make(&l, start->plan, scratch, err);
    if (st != ST_OK) return st;
    char text[DEF_NAME_MAX + 2 * HASH_BYTES + 16];
    struct buf name;
    buf_init_fixed(&name, text, sizeof text);
    def_workflow_name(start->plan->plan_id, &name);
    ASSERT(!name.full);
    json_object_begin(out);
    json_put_text(out, "name", buf_str(&name));
    json_put_int(out, "version", 1);
    json_put_text(out, "correlationId", start->run_id);
    json_name(out, "taskToDomain");
    json_object_begin(out);
    json_put_text(out, DEF_TASK_TYPE, start->domain);
    json_object_end(out);
    json_name(out, "input");
    json_object_begin(out);
    json_put_text(out, "runId", start->run_id);
    json_put_text(out, "tenantId", start->tenant_id);
    json_put_text(out, "projectId", start->project_id);
    json_put_text(out, "environmentId", start->environment_id);
    json_put_text(out, "planId", start->plan->plan_id);
    json_put_text(out, "planVersion", start->plan->plan_version);
    json_object_end(out);
    json_name(out, "workflowDef");
    put_definition(&l, buf_str(&name), out);
    json_object_end(out);
    if (out->full)
        return error_at(err, REASON_PROVIDER_PLAN_TOO_LARGE, "plan",
                        "the plan is too large for a workflow of Conductor: %u steps",
                        start->plan->step_count);
    return ST_OK;
}

void def_task_types_json(struct buf *out) {
    buf_printf(out,
               "[{\"name\":\"" DEF_TASK_TYPE "\",\"ownerEmail\":\"" OWNER "\",\"description\":"
               "\"a step of a run that Cairn carries out\",\"retryCount\":%d,\"retryLogic\":"
               "\"FIXED\",\"retryDelaySeconds\":1,\"timeoutSeconds\":0,\"timeoutPolicy\":"
               "\"RETRY\",\"responseTimeoutSeconds\":%d}]",
               DEF_RETRIES_MAX, DEF_LEASE_S);
}
