/* engine/start.c: starting a run: what is asked for is checked, the plan fetched and validated, and
 * the launch becomes the first news of a new run. A run id that is in use is found, not started
 * again. */
#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/impl.h"

/* ---- whether it may start ---- */

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
            return error_at(err, REASON_CONTEXT_INVALID, ids[i].where,
                            "%s must have 1 to %d bytes, without '|' and control characters",
                            ids[i].where + 1, ID_BYTES_MAX);
    }
    if (q->actor.len > ACTOR_BYTES_MAX)
        return error_at(err, REASON_CONTEXT_INVALID, "/actor", "an actor has at most %d bytes",
                        ACTOR_BYTES_MAX);
    if (!q->adapter.ptr || !adapter_of(q->adapter, adapter))
        return error_at(err, REASON_CONTEXT_INVALID, "/targetAdapter",
                        "targetAdapter must be local, temporal or conductor");
    if (*adapter != ADAPTER_LOCAL && !eng->options.provider[*adapter])
        return error_at(err, REASON_ADAPTER_UNAVAILABLE, "/targetAdapter",
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
        st = error_at(err, REASON_PLAN_VALIDATION_FAILED, "", "%.*s",
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

/* ---- the launch ---- */

static status launch_news(struct engine_run *r, const struct start_request *q,
                          enum adapter_kind adapter, str parameters, struct news **out,
                          struct error *err) {
    struct engine *eng = r->eng;
    struct buf b;
    char id[UUID_TEXT_LEN];
    r->launch_id = engine_uuid(eng);
    r->correlation = q->correlation ? *q->correlation : engine_uuid(eng);
    uuid_format(r->launch_id, id);
    buf_init(&b, FLOW_PAYLOAD_MAX);
    json_object_begin(&b);
    json_put_text(&b, "signal_id", str_n(id, sizeof(id)));
    json_put_text(&b, "signal", STR("LAUNCH"));
    json_put_text(&b, "adapter", q->adapter);
    json_name(&b, "plan_ref");
    plan_ref_json(&q->ref, &b);
    if (!str_eq(parameters, STR("{}"))) json_put_json_if(&b, "parameters", parameters);
    if (q->approval) json_put_bool(&b, "approval", true);
    json_put_json_if(&b, "provider", str_c(eng->options.provider[adapter]));
    if (r->report.ptr) {
        json_put_json(&b, "validation_report", r->report);
        /* RunStarted refers to it by this signal's id. */
        if (!arena_try_str(&r->arena, str_n(id, sizeof(id)), &r->report)) b.full = true;
    }
    json_object_end(&b);
    status st = ST_OK;
    struct news news = {.kind = NEWS_LAUNCH,
                        .launch = {.id = r->launch_id, .data = buf_str(&b), .actor = q->actor},
                        .riders = q->riders};
    if (b.full)
        st = error_at(err, REASON_PARAMETERS_TOO_LARGE, "/parameters",
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
    status st = run_copy_ids(r, &info, err);
    if (st == ST_OK && q->plan_error) {
        *err = *q->plan_error;
        st = err->code;
    }
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

/* ---- started before ---- */

/* A run of that id exists: the same plan of the same tenant is no second start. */
static bool is_same_start(struct engine *eng, const struct start_request *q,
                          const struct engine_read *read) {
    const struct run_info *i = &read->loaded.info;
    struct plan_ref ref = {0};
    struct error ignored;
    str adapter = STR_NONE;
    if (!str_eq(i->tenant_id, q->tenant_id) || !str_eq(i->project_id, q->project_id) ||
        !str_eq(i->environment_id, q->environment_id) || !str_eq(i->plan_id, q->ref.plan_id) ||
        !str_eq(i->plan_version, q->ref.plan_version) || read->row_count == 0)
        return false;
    const struct event *first = &read->rows[0].event; /* the launch */
    struct arena_mark mark = arena_mark(&eng->scratch);
    bool same = first->payload.ptr && first->type == EVENT_SIGNAL_RECEIVED &&
                launch_read(first->payload, &eng->scratch, &ref, &adapter, &ignored) == ST_OK &&
                memcmp(ref.sha256, q->ref.sha256, SHA256_LEN) == 0 && str_eq(adapter, q->adapter);
    arena_rewind(&eng->scratch, mark);
    return same;
}

static void make_run_id(struct engine *eng, char *out) {
    uuid_format(engine_uuid(eng), out);
    out[UUID_TEXT_LEN] = 0;
}

static void raise_alert(const struct start_request *q, const struct error *err) {
    if (err->reason != REASON_PLAN_INTEGRITY_VALIDATION_FAILED) return;
    LOG(LOG_ERROR, "alert", LOG_S("severity", STR("P1")),
        LOG_S("code", str_c(reason_name(err->reason))), LOG_S("runId", q->run_id),
        LOG_S("tenantId", q->tenant_id), LOG_S("projectId", q->project_id),
        LOG_S("environmentId", q->environment_id), LOG_S("planId", q->ref.plan_id),
        LOG_S("planVersion", q->ref.plan_version), LOG_S("error", str_c(err->msg)));
}

/* The store does not have the run: launches it. Frees nothing of `start`. */
static void launch(struct engine_run *r, const struct pending_start *start) {
    struct engine *eng = r->eng;
    struct error err = {0};
    struct news *n = NULL;
    struct arena_mark mark = arena_mark(&eng->scratch);
    status st = prepare(r, &start->request, start->adapter, &n, &err);
    arena_rewind(&eng->scratch, mark);
    if (st == ST_OK) {
        ASSERT(n);
        n->done = start->done;
        n->context = start->context;
        run_move(r, STAGE_RESTING);
        /* Before what came while the store was asked. */
        n->next = r->inbox;
        if (!r->inbox) r->inbox_end = &n->next;
        r->inbox = n;
        run_drive(r);
        return;
    }
    raise_alert(&start->request, &err);
    run_drop(r, st, &err);
    if (start->done) start->done(start->context, st, &err);
}

static void start_answer(struct pending_start *start, status code, const struct error *err) {
    if (start->done) start->done(start->context, code, err);
    mem_free(start);
}

/* The first one launches the run; who came meanwhile asks again. */
static void launch_first(struct engine_run *r, struct pending_start *list) {
    struct error starting = {0};
    struct pending_start *others = list->next;
    error_at(&starting, REASON_RUN_STARTING, "/runId", "the run is being started");
    launch(r, list);
    mem_free(list);
    while (others) {
        struct pending_start *start = others;
        others = start->next;
        start_answer(start, ST_RETRY, &starting);
    }
}

/* Tells whether the run that is there is the one that was to be started. */
static bool answer_existing(struct engine *eng, struct pending_start *start,
                            const struct engine_read *read) {
    const struct start_request *q = &start->request;
    struct error err = read->err;
    status st = read->code;
    if (st == ST_OK && !is_same_start(eng, q, read))
        st = error_at(&err, REASON_RUN_ID_TAKEN, "/runId",
                      "the run id \"%.*s\" is in use for something else", STR_ARG(q->run_id));
    if (st == ST_OK && q->existing) *q->existing = true;
    start_answer(start, st, &err);
    return st == ST_OK;
}

bool start_was_read(struct engine_run *r, const struct engine_read *read) {
    struct engine *eng = r->eng;
    struct pending_start *list = r->starts;
    r->starts = NULL;
    if (read->code == ST_NOT_FOUND) {
        launch_first(r, list);
        return false;
    }
    bool open = read->loaded.ours && !run_is_final(read->loaded.info.head.status);
    bool same = false;
    while (list) {
        struct pending_start *start = list;
        list = start->next;
        same |= answer_existing(eng, start, read);
    }
    if (read->code == ST_OK && ((same && open) || r->inbox || r->wanted)) return true;
    bool wanted = r->wanted; /* it was being loaded for its own sake when the start came */
    run_drop(r, ST_RETRY, &read->err);
    if (wanted) engine_recover_later(eng);
    return false;
}

/* In memory, so what it was launched with is known. */
static void start_resident(struct engine_run *r, struct pending_start *start) {
    const struct start_request *q = &start->request;
    struct error err = {0};
    struct event_record launch = {
        .event = {.type = EVENT_SIGNAL_RECEIVED, .payload = r->flow.launch}};
    struct engine_read here = {.rows = &launch,
                               .row_count = 1,
                               .loaded.info = {.tenant_id = r->ids.tenant_id,
                                               .project_id = r->ids.project_id,
                                               .environment_id = r->ids.environment_id,
                                               .plan_id = r->ids.plan_id,
                                               .plan_version = r->ids.plan_version}};
    status st = ST_OK;
    if (!run_has_flow(r))
        st = error_at(&err, REASON_RUN_STARTING, "/runId", "the run is being read: ask again");
    else if (!is_same_start(r->eng, q, &here))
        st = error_at(&err, REASON_RUN_ID_TAKEN, "/runId",
                      "the run id \"%.*s\" is in use for something else", STR_ARG(q->run_id));
    if (st == ST_OK && q->existing) *q->existing = true;
    if (start->done) start->done(start->context, st, &err);
    mem_free(start);
}

static void start_add(struct engine_run *r, struct pending_start *start) {
    struct pending_start **end = &r->starts;
    while (*end)
        end = &(*end)->next;
    *end = start;
}

/* A copy of what is asked for, with an id for the run, checked. Written also when it is refused. */
static status start_new(struct engine *eng, const struct start_request *request, char *run_id_out,
                        struct pending_start **out, struct error *err) {
    struct pending_start *start = mem_alloc(sizeof(*start));
    *out = start;
    if (!start) return no_memory(err);
    start->request = *request;
    struct start_request *q = &start->request;
    if (q->existing) *q->existing = false;
    if (!q->run_id.ptr) {
        make_run_id(eng, run_id_out);
        q->run_id = str_n(run_id_out, UUID_TEXT_LEN);
        q->fresh_id = true;
    } else if (q->run_id.len <= ID_BYTES_MAX) {
        memcpy(run_id_out, q->run_id.ptr, q->run_id.len);
        run_id_out[q->run_id.len] = 0;
    }
    return check_context(eng, q, &start->adapter, err);
}

/* The run is in memory, or is being read: answered now, or with that answer. false: the start is refused. */
static bool start_joins(struct engine_run *r, struct pending_start *start) {
    bool asked = r->stage == STAGE_LOADING && r->read && !r->read->begun;
    if (asked &&
        r->purpose != LOAD_AGAIN) { /* the answer is on its way, but may be too old for this */
        start_add(r, start);
        r->purpose = LOAD_START;
        r->stale = true;
        return true;
    }
    if (r->last_seq == 0) return false;
    start_resident(r, start);
    return true;
}

/* A run that is not in memory: launched if its id is fresh, else looked for first. */
static status start_afresh(struct engine *eng, struct pending_start *start, struct error *err) {
    bool limits = eng->options.tenant_active_max > 0 || eng->options.plan_active_max > 0;
    struct engine_run *r = run_new(eng, start->request.run_id, err);
    if (!r) return ST_RETRY;
    start->request.run_id = r->run_id;
    if (start->request.fresh_id && !limits) {
        launch(r, start); /* should the id be in use all the same, the ledger refuses the commit */
        mem_free(start);
        return ST_OK;
    }
    start_add(r, start);
    r->purpose = LOAD_START;
    status st = run_ask(r, 0, err);
    if (st == ST_OK) return ST_OK;
    r->starts = NULL;
    run_drop(r, st, err);
    return st;
}

void engine_start(struct engine *eng, const struct start_request *request, char *run_id_out,
                  engine_done done, void *context) {
    struct error err = {0};
    struct pending_start *start = NULL;
    status st = start_new(eng, request, run_id_out, &start, &err);
    if (st == ST_OK) {
        ASSERT(start);
        start->done = done;
        start->context = context;
        struct engine_run *r = engine_resident(eng, start->request.run_id);
        if (r && start_joins(r, start)) return;
        st = r ? error_at(&err, REASON_RUN_STARTING, "/runId", "the run is being started")
               : start_afresh(eng, start, &err);
        if (st == ST_OK) return;
    }
    mem_free(start);
    if (done) done(context, st, &err);
}
