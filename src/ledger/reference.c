/* ledger/reference.c: from a run's rows to its EngineRunRef, and from an EngineRunRef to the run.
 */
#include "ledger/reference.h"

#include "base/json.h"
#include "base/limits.h"

#define SCRATCH_FIRST ((size_t)16 * 1024)
#define SCRATCH_MAX ((size_t)64 * EVENT_BYTES_MAX)

/* NULL where there is none, or it is no JSON. */
static yyjson_val *payload_of(const struct event_record *rec, struct arena *arena) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error ignored;
    yyjson_val *root = NULL;
    if (rec->event.payload.ptr)
        (void)!json_parse(rec->event.payload, limits, arena, &root, &ignored);
    return root;
}

/* What a run's first row says about its provider. false: no engine launched it. */
static bool read_launch(yyjson_val *payload, struct engine_run_ref *to) {
    str adapter = STR_NONE;
    if (!json_str(json_member(payload, "adapter"), &adapter)) return false;
    if (!adapter_of(adapter, &to->provider)) return false;
    yyjson_val *more = json_member(payload, "provider");
    (void)json_str(json_member(more, "namespace"), &to->namespace);
    (void)json_str(json_member(more, "taskQueue"), &to->task_queue);
    (void)json_str(json_member(more, "conductorUrl"), &to->conductor_url);
    return true;
}

/* ---- the reference of a run ---- */

struct finding {
    struct arena *arena;
    struct engine_run_ref *to;
    bool begun;
};

static status find_in(void *context, const struct event_record *rec, bool *stop,
                      struct error *err) {
    struct finding *f = context;
    bool first = !f->begun;
    UNUSED(err);
    f->begun = true;
    if (first) {
        (void)read_launch(payload_of(rec, f->arena), f->to);
        *stop = f->to->provider == ADAPTER_LOCAL;
    } else if (rec->event.type == EVENT_RUN_PROVIDER_LINKED) {
        (void)json_str(json_member(payload_of(rec, f->arena), "workflowId"), &f->to->workflow_id);
        *stop = true;
    }
    return ST_OK;
}

status run_ref_find(struct ledger *reader, const struct run_info *info, struct arena *arena,
                    struct engine_run_ref *out, struct error *err) {
    *out = run_ref_local(info->run_id);
    struct finding f = {.arena = arena, .to = out};
    return ledger_walk_run(reader, info, 0, find_in, &f, err);
}

/* ---- the run of a reference ---- */

struct matching {
    const struct engine_run_ref *ref;
    struct arena scratch;
    bool begun, launched;
    bool provider, namespace, url, workflow; /* agree */
};

/* What the store does not know cannot be another one. */
static bool agrees(str stored, str given) { return !stored.ptr || str_eq(stored, given); }

static void match_launch(struct matching *m, const struct event_record *rec) {
    struct engine_run_ref launch = {.provider = ADAPTER_LOCAL};
    m->launched = read_launch(payload_of(rec, &m->scratch), &launch);
    m->provider = m->ref->provider == launch.provider;
    m->namespace = agrees(launch.namespace, m->ref->namespace);
    m->url = agrees(launch.conductor_url, m->ref->conductor_url);
    m->workflow = str_eq(m->ref->workflow_id, m->ref->run_id);
}

static void match_link(struct matching *m, const struct event_record *rec) {
    yyjson_val *payload = payload_of(rec, &m->scratch);
    str provider = STR_NONE;
    str workflow = STR_NONE;
    (void)json_str(json_member(payload, "provider"), &provider);
    (void)json_str(json_member(payload, "workflowId"), &workflow);
    if (!str_eq(provider, str_c(adapter_name(m->ref->provider)))) return;
    if (!m->launched) m->provider = true; /* somebody else's run: its links are all there is */
    if (str_eq(workflow, m->ref->workflow_id)) m->workflow = true;
}

static status match_in(void *context, const struct event_record *rec, bool *stop,
                       struct error *err) {
    struct matching *m = context;
    UNUSED(err);
    arena_reset(&m->scratch);
    if (!m->begun)
        match_launch(m, rec);
    else if (rec->event.type == EVENT_RUN_PROVIDER_LINKED)
        match_link(m, rec);
    m->begun = true;
    bool hopeless = (m->launched && !m->provider) || !m->namespace || !m->url;
    *stop = hopeless || (m->provider && m->workflow);
    return ST_OK;
}

static status differs(const struct run_info *info, const char *where, struct error *err) {
    return error_at(err, REASON_RUN_REF_MISMATCH, where,
                    "the reference has the id of run \"%.*s\", but another %s",
                    STR_ARG(info->run_id), where + 1);
}

status run_ref_match(struct ledger *reader, const struct run_info *info,
                     const struct engine_run_ref *ref, struct error *err) {
    struct matching m = {.ref = ref};
    if (!str_eq(ref->run_id, info->run_id)) return differs(info, "/runId", err);
    arena_init(&m.scratch, SCRATCH_FIRST, SCRATCH_MAX);
    status st = ledger_walk_run(reader, info, 0, match_in, &m, err);
    arena_release(&m.scratch);
    if (st != ST_OK) return st;
    if (!m.provider) return differs(info, "/provider", err);
    if (!m.namespace) return differs(info, "/namespace", err);
    if (!m.url) return differs(info, "/conductorUrl", err);
    if (!m.workflow) return differs(info, "/workflowId", err);
    return ST_OK;
}

status run_ref_resolve(struct ledger *reader, const struct engine_run_ref *ref, struct arena *arena,
                       struct run_info *out, struct error *err) {
    status st = run_ref_check(ref, err);
    if (st == ST_OK) st = ledger_find_run(reader, ref->run_id, arena, out, err);
    return st == ST_OK ? run_ref_match(reader, out, ref, err) : st;
}
