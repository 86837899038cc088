/* engine/load.c: a run from its rows: loaded when it is looked at, built again after a commit
 * failed, and read on where another process has written. */
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/impl.h"

/* ---- from rows to a flow ---- */

/* Stands in for a plan that cannot be had any more: the run is only ended. */
static const struct plan no_plan = {.concurrency = 1};

struct loading {
    struct engine_run *run;
    bool begun;         /* its flow is there, and takes rows */
    status plan_status; /* why there is no plan */
    struct error plan_error;
};

status launch_read(str payload, struct arena *arena, struct plan_ref *out, str *adapter,
                   struct error *err) {
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    status st = json_parse(payload, limits, arena, &root, err);
    *adapter = STR("local");
    if (st == ST_OK) (void)json_str(json_member(root, "adapter"), adapter);
    return st == ST_OK ? plan_ref_read(json_member(root, "plan_ref"), out, err) : st;
}

/* The first row of a run that the engine started is its launch, which names the plan. */
static status begin_flow(struct loading *l, const struct event_record *rec, struct error *err) {
    struct engine_run *r = l->run;
    struct engine *eng = r->eng;
    struct plan_ref ref = {0};
    str adapter = STR_NONE;
    bool launch = rec->event.type == EVENT_SIGNAL_RECEIVED && rec->event.payload.ptr;
    if (!launch || launch_read(rec->event.payload, &eng->scratch, &ref, &adapter, err) != ST_OK)
        return error_as(err, ST_INVALID, REASON_RUN_NOT_MANAGED, "",
                        "run \"%.*s\" was not started by an engine: its events come from elsewhere",
                        STR_ARG(r->run_id));
    if (!r->plan) {
        l->plan_status = eng->ports.plan(eng->ports.context, r->ids.tenant_id, &ref, &r->plan,
                                         &l->plan_error);
        if (l->plan_status == ST_RETRY || l->plan_status == ST_LIMIT) {
            *err = l->plan_error;
            return l->plan_status;
        }
    }
    const struct plan *plan = l->plan_status == ST_OK ? r->plan : &no_plan;
    status st = flow_init(&r->flow, plan, &r->ids, &r->arena, &eng->scratch, err);
    l->begun = st == ST_OK;
    return st;
}

static status load_row(void *context, const struct event_record *rec, bool *stop,
                       struct error *err) {
    UNUSED(stop);
    struct loading *l = context;
    struct engine_run *r = l->run;
    status st = l->begun ? ST_OK : begin_flow(l, rec, err);
    if (st == ST_OK) st = flow_apply(&r->flow, rec, err);
    if (st == ST_OK) r->last_seq = r->read_seq = rec->seq;
    return st;
}

status run_copy_ids(struct engine_run *r, const struct run_info *info, struct error *err) {
    const str from[] = {info->tenant_id, info->project_id, info->environment_id, info->plan_id,
                        info->plan_version};
    str *to[] = {&r->ids.tenant_id, &r->ids.project_id, &r->ids.environment_id, &r->ids.plan_id,
                 &r->ids.plan_version};
    r->ids.run_id = r->run_id;
    for (size_t i = 0; i < COUNT_OF(to); i++) {
        if (!arena_try_str(&r->arena, from[i], to[i])) return no_memory(err);
    }
    return ST_OK;
}

/* A plan that is gone, or no longer what it was, ends the run with that code. */
static status end_without_plan(struct engine_run *r, const struct error *why, struct error *err) {
    const char *code = why->reason ? reason_name(why->reason) : "PLAN_UNAVAILABLE";
    LOG(LOG_ERROR, "a run cannot go on without its plan", LOG_S("severity", STR("P1")),
        LOG_S("runId", r->run_id), LOG_S("tenantId", r->ids.tenant_id), LOG_S("code", str_c(code)),
        LOG_S("error", str_c(why->msg)));
    r->ending_code = code;
    return arena_try_str(&r->arena, str_c(why->msg), &r->ending_message) ? ST_OK : no_memory(err);
}

/* A run that was launched with warnings and has not started yet tells them when it does. */
static status restore_warnings(struct engine_run *r, struct error *err) {
    struct arena *scratch = &r->eng->scratch;
    yyjson_val *launch = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    if (r->started || !r->flow.launch.ptr) return ST_OK;
    status st = json_parse(r->flow.launch, limits, scratch, &launch, err);
    yyjson_val *report = st == ST_OK ? json_member(launch, "validation_report") : NULL;
    if (!report) return st;
    str id = STR_NONE;
    (void)json_str(json_member(launch, "signal_id"), &id);
    r->warnings = json_text(json_member(report, "warnings"), &r->arena);
    return r->warnings.ptr && arena_try_str(&r->arena, id, &r->report) ? ST_OK : no_memory(err);
}

/* Fills an empty run. */
static status build(struct engine_run *r, const struct engine_loaded *loaded, struct error *err) {
    struct engine *eng = r->eng;
    struct loading l = {.run = r};
    ASSERT(r->stage == STAGE_LOADING);
    r->stale = false;
    r->last_seq = r->read_seq = 0;
    r->ending_code = NULL;
    r->correlation = loaded->info.correlation_id;
    status st = run_copy_ids(r, &loaded->info, err);
    struct arena_mark mark = arena_mark(&eng->scratch);
    if (st == ST_OK) st = eng->ports.walk(eng->ports.context, loaded, 0, load_row, &l, err);
    arena_rewind(&eng->scratch, mark);
    if (st != ST_OK) return st;
    r->claimed = loaded->held;
    r->claimed_wake = -1; /* not known: the next commit writes it */
    r->started = r->flow.run.head.status >= RUN_RUNNING;
    if (r->is_queued && r->started) run_unqueue(r); /* a start that was thought lost had landed */
    r->recovered = loaded->epoch != eng->options.lease.epoch && r->started &&
                   !run_is_final(r->flow.run.head.status);
    r->engine_attempt = r->flow.run.head.engine_attempt + (r->recovered ? 1 : 0);
    if (r->engine_attempt < 1) r->engine_attempt = 1;
    r->flow.ids.engine_attempt = r->engine_attempt;
    if (l.plan_status != ST_OK) return end_without_plan(r, &l.plan_error, err);
    mark = arena_mark(&eng->scratch);
    st = restore_warnings(r, err);
    arena_rewind(&eng->scratch, mark);
    return st;
}

static status not_found(str run_id, struct error *err) {
    return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
}

status run_find(struct engine *eng, str run_id, struct engine_loaded *loaded, struct error *err) {
    status st = eng->ports.load(eng->ports.context, run_id, &eng->scratch, loaded, err);
    return st == ST_NOT_FOUND ? not_found(run_id, err) : st;
}

/* A caller of another tenant cannot tell such a run from one that is not there. */
status run_belongs(struct engine *eng, str run_id, str tenant_id, struct error *err) {
    struct engine_loaded loaded = {0};
    const struct engine_run *r = engine_resident(eng, run_id);
    struct arena_mark mark = arena_mark(&eng->scratch);
    status st = r ? ST_OK : run_find(eng, run_id, &loaded, err);
    str owner = r ? r->ids.tenant_id : loaded.info.tenant_id;
    if (st == ST_OK && !str_eq(owner, tenant_id)) st = not_found(run_id, err);
    arena_rewind(&eng->scratch, mark);
    return st;
}

status run_load(struct engine *eng, str run_id, struct engine_run **out, struct error *err) {
    struct engine_loaded loaded = {0};
    struct arena_mark mark = arena_mark(&eng->scratch);
    *out = NULL;
    status st = run_find(eng, run_id, &loaded, err);
    if (st == ST_OK && run_is_final(loaded.info.head.status)) goto out;
    if (st == ST_OK && !loaded.ours)
        st = error_at(err, loaded.held ? REASON_RUN_ELSEWHERE : REASON_RUN_NOT_MANAGED, "",
                      loaded.held ? "run \"%.*s\" is carried out by another node"
                                  : "run \"%.*s\" is carried out by no engine",
                      STR_ARG(run_id));
    struct engine_run *r = st == ST_OK ? run_new(eng, run_id, err) : NULL;
    if (st == ST_OK && !r) st = ST_RETRY;
    if (st == ST_OK) {
        st = build(r, &loaded, err);
        if (st != ST_OK) run_drop(r, st, err);
        else *out = r;
    }
    if (*out) run_bind(r);
    if (*out && r->recovered) metric_add(eng->m_recovered, 1);
    if (*out && !r->recovered) run_ensure_attempts(r);
    if (*out) run_move(r, STAGE_RESTING);
out:
    arena_rewind(&eng->scratch, mark);
    return st;
}

/* Attempts under way go on: their steps are open in the new flow, too, or their answers are stale
 * and fall on the floor. */
void run_reload(struct engine_run *r) {
    struct engine *eng = r->eng;
    struct engine_loaded loaded = {0};
    struct error err = {0};
    struct arena_mark mark = arena_mark(&eng->scratch);
    str run_id = STR_NONE;
    run_move(r, STAGE_LOADING);
    bool copied = arena_try_str(&eng->scratch, r->run_id, &run_id);
    status st = copied ? run_find(eng, run_id, &loaded, &err) : no_memory(&err);
    if (st == ST_OK && !loaded.ours && !run_is_final(loaded.info.head.status))
        st = error_at(&err, REASON_RUN_ELSEWHERE, "", "another node has the run");
    if (st == ST_NOT_FOUND && r->inbox && r->inbox->kind == NEWS_LAUNCH) {
        /* The start itself did not land: begin again. */
        st = flow_init(&r->flow, r->plan, &r->ids, &r->arena, &eng->scratch, &err);
        r->flow.ids.engine_attempt = r->engine_attempt;
    } else if (st == ST_OK) {
        st = build(r, &loaded, &err);
        if (st == ST_OK) run_bind(r);
        if (st == ST_OK && !r->recovered) run_ensure_attempts(r);
    }
    arena_rewind(&eng->scratch, mark);
    if (st == ST_OK) {
        run_move(r, STAGE_RESTING);
        run_drive(r);
        return;
    }
    if (st == ST_RETRY || st == ST_LIMIT) {
        run_move(r, STAGE_BROKEN);
        run_timer(r, eng->ports.now_us(eng->ports.context) + RETRY_AFTER_US);
        return;
    }
    run_drop(r, st, &err);
}

void engine_look(struct engine *eng, str run_id) {
    struct engine_run *r = engine_resident(eng, run_id);
    struct error err = {0};
    if (eng->lost) return;
    if (r) { /* news from another process: read what is new, once no append is under way */
        r->claimed_wake = -1;
        r->stale = true;
        run_drive(r);
        return;
    }
    status st = run_load(eng, run_id, &r, &err);
    if (st == ST_OK && r) run_drive(r);
    if (st == ST_RETRY || st == ST_LIMIT) engine_recover_later(eng);
    if (st != ST_OK)
        LOG(LOG_WARN, "could not load a run", LOG_S("runId", run_id),
            LOG_S("error", str_c(err.msg)));
}

/* Another process can write nothing but a SignalReceived; it may stand before rows of ours, that were
 * on their way at that time. */
static status newer_row(void *context, const struct event_record *rec, bool *stop,
                        struct error *err) {
    UNUSED(stop);
    struct engine_run *r = context;
    uuid id;
    bool news = rec->event.type == EVENT_SIGNAL_RECEIVED && uuid_parse(rec->event.subject, &id) &&
                !flow_signal_seen(&r->flow, id);
    struct event_record next = *rec;
    next.seq = r->flow.run.head.last_seq + 1;
    status st = news ? flow_apply(&r->flow, &next, err) : ST_OK;
    if (st == ST_OK) r->read_seq = rec->seq;
    if (st == ST_OK && rec->seq > r->last_seq) r->last_seq = rec->seq;
    return st;
}

status run_read_newer(struct engine_run *r, struct error *err) {
    struct engine *eng = r->eng;
    struct engine_loaded loaded = {0};
    struct arena_mark mark = arena_mark(&eng->scratch);
    status st = run_find(eng, r->run_id, &loaded, err);
    if (st == ST_OK) st = eng->ports.walk(eng->ports.context, &loaded, r->read_seq, newer_row, r, err);
    arena_rewind(&eng->scratch, mark);
    r->stale = st != ST_OK;
    return st;
}
