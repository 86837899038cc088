/* engine/load.c: a run from its rows, and the operations that begin with one. */
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

static status launch_ref(str payload, struct arena *arena, struct plan_ref *out, str *adapter,
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
    if (!launch || launch_ref(rec->event.payload, &eng->scratch, &ref, &adapter, err) != ST_OK)
        return error_at(err, ST_INVALID, "RUN_NOT_MANAGED", "",
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

static status copy_ids(struct engine_run *r, const struct run_info *info, struct error *err) {
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
    const char *code = why->reason ? why->reason : "PLAN_UNAVAILABLE";
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
    status st = copy_ids(r, &loaded->info, err);
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
    return error_at(err, ST_NOT_FOUND, "RUN_NOT_FOUND", "", "there is no run \"%.*s\"",
                    STR_ARG(run_id));
}

static status find(struct engine *eng, str run_id, struct engine_loaded *loaded,
                   struct error *err) {
    status st = eng->ports.load(eng->ports.context, run_id, &eng->scratch, loaded, err);
    return st == ST_NOT_FOUND ? not_found(run_id, err) : st;
}

/* A caller of another tenant cannot tell such a run from one that is not there. */
status run_belongs(struct engine *eng, str run_id, str tenant_id, struct error *err) {
    struct engine_loaded loaded = {0};
    const struct engine_run *r = engine_resident(eng, run_id);
    struct arena_mark mark = arena_mark(&eng->scratch);
    status st = r ? ST_OK : find(eng, run_id, &loaded, err);
    str owner = r ? r->ids.tenant_id : loaded.info.tenant_id;
    if (st == ST_OK && !str_eq(owner, tenant_id)) st = not_found(run_id, err);
    arena_rewind(&eng->scratch, mark);
    return st;
}

status run_load(struct engine *eng, str run_id, struct engine_run **out, struct error *err) {
    struct engine_loaded loaded = {0};
    struct arena_mark mark = arena_mark(&eng->scratch);
    *out = NULL;
    status st = find(eng, run_id, &loaded, err);
    if (st == ST_OK && run_is_final(loaded.info.head.status)) goto out;
    if (st == ST_OK && !loaded.ours)
        st = error_at(err, ST_CONFLICT, loaded.held ? "RUN_ELSEWHERE" : "RUN_NOT_MANAGED", "",
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
    status st = copied ? find(eng, run_id, &loaded, &err) : no_memory(&err);
    if (st == ST_OK && !loaded.ours && !run_is_final(loaded.info.head.status))
        st = error_at(&err, ST_CONFLICT, "RUN_ELSEWHERE", "", "another node has the run");
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
    status st = find(eng, r->run_id, &loaded, err);
    if (st == ST_OK) st = eng->ports.walk(eng->ports.context, &loaded, r->read_seq, newer_row, r, err);
    arena_rewind(&eng->scratch, mark);
    r->stale = st != ST_OK;
    return st;
}

/* ---- starting ---- */

static void answer(engine_done done, void *context, status code, const struct error *err) {
    if (done) done(context, code, err);
}

static bool id_is_good(str id) {
    size_t bad = 0;
    if (id.len == 0 || id.len > ID_BYTES_MAX || !str_utf8(id, &bad)) return false;
    for (size_t i = 0; i < id.len; i++) {
        if ((unsigned char)id.ptr[i] < 0x20 || id.ptr[i] == '|') return false;
    }
    return true;
}

static status check_context(const struct engine *eng, const struct start_request *q,
                            enum adapter_kind *adapter, struct error *err) {
    const struct {
        const char *where;
        str value;
    } ids[] = {{"/tenantId", q->tenant_id},
               {"/projectId", q->project_id},
               {"/environmentId", q->environment_id},
               {"/runId", q->run_id}};
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        if (i == 3 && !ids[i].value.ptr) continue; /* one is made */
        if (!id_is_good(ids[i].value))
            return error_at(err, ST_INVALID, "CONTEXT_INVALID", ids[i].where,
                            "%s must have 1 to %d bytes, without '|' and control characters",
                            ids[i].where + 1, ID_BYTES_MAX);
    }
    if (q->actor.len > ACTOR_BYTES_MAX)
        return error_at(err, ST_INVALID, "CONTEXT_INVALID", "/actor",
                        "an actor has at most %d bytes", ACTOR_BYTES_MAX);
    if (!q->adapter.ptr || !adapter_of(q->adapter, adapter))
        return error_at(err, ST_INVALID, "CONTEXT_INVALID", "/targetAdapter",
                        "targetAdapter must be local, temporal or conductor");
    if (*adapter != ADAPTER_LOCAL && !eng->options.provider[*adapter])
        return error_at(err, ST_INVALID, "ADAPTER_UNAVAILABLE", "/targetAdapter",
                        "this engine has no adapter for %.*s", STR_ARG(q->adapter));
    return ST_OK;
}

static status check_plan(struct engine_run *r, enum adapter_kind adapter, struct error *err) {
    struct validation_report report;
    struct buf text;
    status st = capability_validate(r->plan, adapter, &r->eng->scratch, &report, err);
    if (st != ST_OK) return st;
    if (report.status == REPORT_VALID) return ST_OK;
    buf_init(&text, EVENT_BYTES_MAX);
    validation_report_json(&report, &text);
    if (report.status == REPORT_ERRORS) {
        st = error_at(err, ST_INVALID, "PLAN_VALIDATION_FAILED", "", "%.*s",
                      (int)(text.len < ERROR_MSG_MAX ? text.len : ERROR_MSG_MAX - 1), text.ptr);
    } else if (!arena_try_str(&r->arena, buf_str(&text), &r->report)) {
        st = no_memory(err);
    }
    buf_release(&text);
    return st;
}

/* The array `warnings` of the report. */
static status keep_warnings(struct engine_run *r, struct error *err) {
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    if (!r->report.ptr) return ST_OK;
    status st = json_parse(r->report, limits, &r->eng->scratch, &root, err);
    if (st != ST_OK) return st;
    r->warnings = json_text(json_member(root, "warnings"), &r->arena);
    return r->warnings.ptr ? ST_OK : no_memory(err);
}

static uuid fresh_uuid(struct engine *eng) {
    uuid id;
    eng->ports.random(eng->ports.context, id.b, sizeof(id.b));
    id.b[6] = (uint8_t)((id.b[6] & 0x0f) | 0x40);
    id.b[8] = (uint8_t)((id.b[8] & 0x3f) | 0x80);
    return id;
}

static status launch_news(struct engine_run *r, const struct start_request *q,
                          enum adapter_kind adapter, str parameters, struct news **out,
                          struct error *err) {
    struct engine *eng = r->eng;
    struct buf b;
    char id[UUID_TEXT_LEN];
    r->launch_id = fresh_uuid(eng);
    r->correlation = q->correlation ? *q->correlation : fresh_uuid(eng);
    uuid_format(r->launch_id, id);
    buf_init(&b, FLOW_PAYLOAD_MAX);
    buf_put_c(&b, "{\"signal_id\":");
    buf_put_json_str(&b, str_n(id, sizeof(id)));
    buf_put_c(&b, ",\"signal\":\"LAUNCH\",\"adapter\":");
    buf_put_json_str(&b, q->adapter);
    buf_put_c(&b, ",\"plan_ref\":");
    plan_ref_json(&q->ref, &b);
    if (parameters.ptr && !str_eq(parameters, STR("{}"))) {
        buf_put_c(&b, ",\"parameters\":");
        buf_put(&b, parameters);
    }
    if (q->approval) buf_put_c(&b, ",\"approval\":true");
    if (eng->options.provider[adapter]) {
        buf_put_c(&b, ",\"provider\":");
        buf_put_c(&b, eng->options.provider[adapter]);
    }
    if (r->report.ptr) {
        buf_put_c(&b, ",\"validation_report\":");
        buf_put(&b, r->report);
        /* RunStarted refers to it by this signal's id. */
        if (!arena_try_str(&r->arena, str_n(id, sizeof(id)), &r->report)) b.full = true;
    }
    buf_put_char(&b, '}');
    status st = ST_OK;
    struct news news = {.kind = NEWS_LAUNCH,
                        .launch = {.id = r->launch_id, .data = buf_str(&b), .actor = q->actor},
                        .riders = q->riders};
    if (b.full)
        st = error_at(err, ST_LIMIT, "PARAMETERS_TOO_LARGE", "/parameters",
                      "plan reference and parameters together exceed %zu bytes", FLOW_PAYLOAD_MAX);
    else if (!(*out = news_new(&news)))
        st = no_memory(err);
    buf_release(&b);
    return st;
}

static status prepare(struct engine_run *r, const struct start_request *q,
                      enum adapter_kind adapter, struct news **launch, struct error *err) {
    struct engine *eng = r->eng;
    struct run_info info = {.tenant_id = q->tenant_id,
                            .project_id = q->project_id,
                            .environment_id = q->environment_id,
                            .plan_id = q->ref.plan_id,
                            .plan_version = q->ref.plan_version};
    str parameters = STR_NONE;
    status st = copy_ids(r, &info, err);
    if (st == ST_OK)
        st = eng->ports.plan(eng->ports.context, r->ids.tenant_id, &q->ref, &r->plan, err);
    if (st != ST_OK) r->plan = NULL;
    if (st == ST_OK) st = check_plan(r, adapter, err);
    if (st == ST_OK) st = keep_warnings(r, err);
    if (st == ST_OK) st = plan_parameters(r->plan, q->parameters, &eng->scratch, &parameters, err);
    if (st == ST_OK) st = flow_init(&r->flow, r->plan, &r->ids, &r->arena, &eng->scratch, err);
    if (st == ST_OK) st = launch_news(r, q, adapter, parameters, launch, err);
    r->engine_attempt = 1;
    r->flow.ids.engine_attempt = 1;
    return st;
}

/* A run of that id exists: the same plan of the same tenant is no second start. */
struct launched {
    struct engine *eng;
    uint8_t sha256[SHA256_LEN]; /* of the plan that the run was launched with, */
    str adapter;                /* and who executes it; in the scratch */
    bool found;
};

static status find_launch(void *context, const struct event_record *rec, bool *stop,
                          struct error *err) {
    struct launched *l = context;
    struct plan_ref ref = {0};
    struct error ignored;
    UNUSED(err);
    if (rec->event.payload.ptr && rec->event.type == EVENT_SIGNAL_RECEIVED &&
        launch_ref(rec->event.payload, &l->eng->scratch, &ref, &l->adapter, &ignored) == ST_OK) {
        memcpy(l->sha256, ref.sha256, SHA256_LEN);
        l->found = true;
    }
    *stop = true; /* the first row is enough */
    return ST_OK;
}

static status same_plan(struct engine *eng, const struct start_request *q,
                        const struct engine_loaded *loaded, bool *same, struct error *err) {
    struct launched l = {.eng = eng};
    status st = eng->ports.walk(eng->ports.context, loaded, 0, find_launch, &l, err);
    if (st != ST_OK) return st;
    *same = l.found && memcmp(l.sha256, q->ref.sha256, SHA256_LEN) == 0 &&
            str_eq(l.adapter, q->adapter);
    return ST_OK;
}

static status start_again(struct engine *eng, const struct start_request *q,
                          const struct engine_loaded *loaded, struct error *err) {
    const struct run_info *i = &loaded->info;
    bool same = str_eq(i->tenant_id, q->tenant_id) && str_eq(i->project_id, q->project_id) &&
                str_eq(i->environment_id, q->environment_id) &&
                str_eq(i->plan_id, q->ref.plan_id) && str_eq(i->plan_version, q->ref.plan_version);
    status st = same ? same_plan(eng, q, loaded, &same, err) : ST_OK;
    if (st != ST_OK) return st;
    if (!same)
        return error_at(err, ST_CONFLICT, "RUN_ID_TAKEN", "/runId",
                        "the run id \"%.*s\" is in use for something else", STR_ARG(q->run_id));
    if (!run_is_final(i->head.status) && loaded->ours) engine_look(eng, q->run_id);
    return ST_OK;
}

static void make_run_id(struct engine *eng, char *out) {
    uuid_format(fresh_uuid(eng), out);
    out[UUID_TEXT_LEN] = 0;
}

static void raise_alert(const struct start_request *q, const struct error *err) {
    if (!err->reason || strcmp(err->reason, "PLAN_INTEGRITY_VALIDATION_FAILED") != 0) return;
    LOG(LOG_ERROR, "alert", LOG_S("severity", STR("P1")), LOG_S("code", str_c(err->reason)),
        LOG_S("runId", q->run_id), LOG_S("tenantId", q->tenant_id),
        LOG_S("projectId", q->project_id), LOG_S("environmentId", q->environment_id),
        LOG_S("planId", q->ref.plan_id), LOG_S("planVersion", q->ref.plan_version),
        LOG_S("error", str_c(err->msg)));
}

void engine_start(struct engine *eng, const struct start_request *request, char *run_id_out,
                  engine_done done, void *context) {
    struct start_request q = *request;
    struct error err = {0};
    struct news *launch = NULL;
    struct engine_loaded loaded = {0};
    enum adapter_kind adapter = ADAPTER_LOCAL;
    struct arena_mark mark = arena_mark(&eng->scratch);
    struct engine_run *r = NULL;
    if (q.existing) *q.existing = false;
    if (!q.run_id.ptr) {
        make_run_id(eng, run_id_out);
        q.run_id = str_n(run_id_out, UUID_TEXT_LEN);
    } else if (q.run_id.len <= ID_BYTES_MAX) {
        memcpy(run_id_out, q.run_id.ptr, q.run_id.len);
        run_id_out[q.run_id.len] = 0;
    }
    status st = check_context(eng, &q, &adapter, &err);
    if (st == ST_OK && (r = engine_resident(eng, q.run_id)) != NULL && r->last_seq == 0)
        st = error_at(&err, ST_RETRY, "RUN_STARTING", "/runId", "the run is being started");
    if (st == ST_OK) {
        status found =
            eng->ports.load(eng->ports.context, q.run_id, &eng->scratch, &loaded, &err);
        if (found == ST_OK) {
            st = start_again(eng, &q, &loaded, &err);
            if (q.existing) *q.existing = st == ST_OK;
            goto out;
        }
        if (found != ST_NOT_FOUND) st = found;
    }
    if (st == ST_OK && !(r = run_new(eng, q.run_id, &err))) st = ST_RETRY;
    if (st == ST_OK) {
        st = prepare(r, &q, adapter, &launch, &err);
        if (st != ST_OK) run_drop(r, st, &err);
    }
    if (launch) {
        launch->done = done;
        launch->context = context;
        arena_rewind(&eng->scratch, mark);
        run_move(r, STAGE_RESTING);
        run_push(r, launch);
        return;
    }
    raise_alert(&q, &err);
out:
    arena_rewind(&eng->scratch, mark);
    answer(done, context, st, &err);
}

/* ---- signals ---- */

struct seeking {
    char id[UUID_TEXT_LEN];
    bool found;
};

static status seek_signal(void *context, const struct event_record *rec, bool *stop,
                          struct error *err) {
    struct seeking *s = context;
    UNUSED(err);
    *stop = s->found = rec->event.type == EVENT_SIGNAL_RECEIVED &&
                       str_eq(rec->event.subject, str_n(s->id, sizeof(s->id)));
    return ST_OK;
}

/* One that the run took while it was open is answered as it was then; any other comes too late. */
static status signal_of_finished(struct engine *eng, str run_id, const struct signal *signal,
                                 struct error *err) {
    struct engine_loaded loaded = {0};
    struct seeking s = {0};
    struct arena_mark mark = arena_mark(&eng->scratch);
    status st = signal->signal_id.ptr ? find(eng, run_id, &loaded, err) : ST_OK;
    if (st == ST_OK && signal->signal_id.ptr) {
        uuid_format(signal_uuid(run_id, signal->signal_id), s.id);
        st = eng->ports.walk(eng->ports.context, &loaded, 0, seek_signal, &s, err);
    }
    arena_rewind(&eng->scratch, mark);
    if (st != ST_OK || s.found) return st;
    return error_at(err, ST_CONFLICT, "RUN_FINISHED", "", "the run is finished");
}

void engine_signal(struct engine *eng, str run_id, const struct signal *given,
                   const struct engine_caller *caller) {
    struct error err = {0};
    struct news *n = NULL;
    struct signal signal = *given;
    status st = signal_validate(&signal, &err);
    if (st == ST_OK && caller->actor.len > ACTOR_BYTES_MAX)
        st = error_at(&err, ST_INVALID, "SIGNAL_INVALID", "/actor",
                      "an actor has at most %d bytes", ACTOR_BYTES_MAX);
    struct engine_run *r = st == ST_OK ? engine_resident(eng, run_id) : NULL;
    if (st == ST_OK && !r) {
        st = run_load(eng, run_id, &r, &err);
        if (st == ST_OK && !r) { /* finished: cancelling it again changes nothing */
            if (signal.kind != SIGNAL_CANCEL) st = signal_of_finished(eng, run_id, &signal, &err);
            answer(caller->done, caller->context, st, &err);
            return;
        }
    }
    if (st == ST_OK) {
        uuid id = signal.signal_id.ptr ? signal_uuid(run_id, signal.signal_id) : fresh_uuid(eng);
        n = news_new(&(struct news){.kind = NEWS_SIGNAL,
                                    .signal = {.id = id, .signal = signal, .actor = caller->actor},
                                    .riders = caller->riders,
                                    .done = caller->done,
                                    .context = caller->context});
        if (!n) st = no_memory(&err);
    }
    if (n) run_push(r, n);
    else answer(caller->done, caller->context, st, &err);
}
