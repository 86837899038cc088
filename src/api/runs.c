/* api/runs.c: starting runs, and everything that can be asked about one. */
#include "api/impl.h"
#include "base/time.h"
#include "core/plan_ref.h"
#include "engine/status.h"
#include "ledger/reference.h"

enum { LIST_MAX = 1000, LIST_DEFAULT = 50, SCAN_MAX = 5000 };

/* ---- starting ---- */

struct start {
    yyjson_val *ref, *context;
    str plan; /* given in place of a reference: JSON */
    str parameters, reason;
    bool approval;
    struct start_request q;
    char run_id[ID_BYTES_MAX + 1];
    bool existing;
    int64_t wait_s; /* how long the caller wants to wait for the end; 0: not at all */
    struct run_wait wait;
    int found; /* enum run_status of an end that a reader saw: wait.ended may be set meanwhile */
};

static const struct field start_fields[] = {
    {"planRef", FIELD_VALUE, FIELD(struct start, ref), false, 0, 0},
    {"plan", FIELD_JSON, FIELD(struct start, plan), false, 0, 0},
    {"context", FIELD_VALUE, FIELD(struct start, context), false, 0, 0},
    {"parameters", FIELD_JSON, FIELD(struct start, parameters), false, 0, 0},
    {"approval", FIELD_BOOL, FIELD(struct start, approval), false, 0, 0},
    {"reason", FIELD_TEXT, FIELD(struct start, reason), false, 0, AUDIT_REASON_MAX},
};
static const struct field context_fields[] = {
    {"tenantId", FIELD_TEXT, FIELD(struct start_request, tenant_id), false, 1, 0},
    {"projectId", FIELD_TEXT, FIELD(struct start_request, project_id), false, 1, 0},
    {"environmentId", FIELD_TEXT, FIELD(struct start_request, environment_id), false, 1, 0},
    {"runId", FIELD_TEXT, FIELD(struct start_request, run_id), false, 1, 0},
    {"targetAdapter", FIELD_TEXT, FIELD(struct start_request, adapter), false, 1, 0},
};

/* The answer without its status: known before the commit, so that a receipt can hold it. */
static void put_started(struct call *c, bool existing) {
    struct start *s = c->own;
    struct engine_run_ref ref =
        engine_run_ref(c->api->engine, s->q.adapter, s->q.run_id, &c->arena);
    buf_clear(&c->out);
    json_object_begin(&c->out);
    json_put_text(&c->out, "runId", s->q.run_id);
    json_put_text(&c->out, "tenantId", s->q.tenant_id);
    json_put_text(&c->out, "projectId", s->q.project_id);
    json_put_text(&c->out, "environmentId", s->q.environment_id);
    json_name(&c->out, "engineRunRef");
    run_ref_json(&ref, &c->out);
    json_put_bool(&c->out, "existing", existing);
}

static void answer_start(struct call *c) {
    struct start *s = c->own;
    put_started(c, s->existing);
    if (s->wait.ended)
        json_put_text(&c->out, "status", str_c(run_status_name((enum run_status)s->wait.ended)));
    json_object_end(&c->out);
    if (s->wait_s > 0)
        call_header(c, "Preference-Applied", call_text(c, "wait=%lld", (long long)s->wait_s));
    call_header(c, "Location", call_path(c, "/v1/runs/", s->q.run_id));
    call_answer(c, s->existing ? 200 : 201);
}

/* What the engine says of a part, said of our document: "/sha256" is "/planRef/sha256". */
static void fail_start(struct call *c, const struct error *err) {
    static const char *const context[] = {"/tenantId", "/projectId", "/environmentId", "/runId",
                                          "/targetAdapter"};
    static const char *const ref[] = {"/uri",         "/sha256",    "/schemaVersion", "/planId",
                                      "/planVersion", "/sizeBytes", "/expiresAt"};
    struct error shown = *err;
    const char *part = "";
    for (size_t i = 0; i < COUNT_OF(context); i++)
        if (strcmp(err->where, context[i]) == 0) part = "/context";
    for (size_t i = 0; i < COUNT_OF(ref); i++)
        if (strcmp(err->where, ref[i]) == 0) part = "/planRef";
    snprintf(shown.where, sizeof(shown.where), "%s%.80s", part, err->where);
    call_fail(c, &shown);
}

/* The run has ended, or its end did not come in time. */
static void wait_over(struct call *c) {
    struct start *s = c->own;
    if (!s->wait.ended) s->wait_s = 0;
    answer_start(c);
}

/* ---- the steps of a start ---- */

static status read_status(struct call *c, struct ledger *reader, struct error *err) {
    struct start *s = c->own;
    struct run_info info;
    status st = call_find_run(c, reader, s->q.run_id, &info, err);
    if (st == ST_OK && run_is_final(info.head.status)) s->found = (int)info.head.status;
    return st;
}

static void after_status(struct call *c) {
    struct start *s = c->own;
    if (!s->wait.ended) s->wait.ended = s->found;
    if (s->wait.ended) {
        wait_leave(c);
        answer_start(c);
    } else {
        wait_begin(c);
    }
}

/* Nothing was committed, so its receipt was not either. */
static status keep_receipt(struct call *c, struct ledger *ledger, struct error *err) {
    put_started(c, true);
    json_object_end(&c->out);
    c->receipt.http_status = 200;
    c->receipt.body = arena_str(&c->arena, buf_str(&c->out));
    c->rider.audit = NULL;
    return access_ride(ledger, &c->rider, err);
}

static void started_again(struct call *c) {
    struct start *s = c->own;
    if (s->wait_s > 0) /* it may have ended long ago */
        call_read(c, read_status, after_status);
    else
        answer_start(c);
}

static void on_started(void *context, status code, const struct error *err) {
    struct call *c = context;
    struct start *s = c->own;
    if (code != ST_OK) {
        wait_leave(c);
        fail_start(c, err);
        return;
    }
    if (s->existing) {
        if (c->keyed)
            call_change(c, keep_receipt, started_again);
        else
            started_again(c);
        return;
    }
    hub_committed(c->api->hub, s->q.tenant_id, s->q.run_id);
    if (s->wait_s == 0 || s->wait.ended) {
        wait_leave(c);
        answer_start(c);
    } else {
        wait_begin(c);
    }
}

static void start_now(struct call *c) {
    struct start *s = c->own;
    s->wait = (struct run_wait){.run_id = s->q.run_id, .seconds = s->wait_s, .over = wait_over};
    if (s->wait_s > 0 && !wait_join(c, &s->wait)) s->wait_s = 0;
    put_started(c, false);
    json_object_end(&c->out);
    c->receipt.location = call_path(c, "/v1/runs/", s->q.run_id);
    s->q.riders = call_riders(c, s->q.run_id, s->reason, 201, false);
    engine_start(c->api->engine, &s->q, s->run_id, on_started, c);
}

static void on_fetched(void *context, status code, const struct error *err) {
    if (code == ST_OK)
        start_now(context);
    else
        fail_start(context, err);
}

/* Prefer: wait=10, among other preferences that we do not know. */
static status read_wait(struct call *c, int64_t *out, struct error *err) {
    str prefer = http_header(c->request, STR("Prefer"));
    while (prefer.ptr && prefer.len > 0) {
        str one;
        if (!str_split(prefer, ',', &one, &prefer)) prefer = STR_NONE;
        one = str_trim(one);
        if (!str_starts(one, STR("wait="))) continue;
        if (!str_to_int(str_from(one, 5), out) || *out < 0 || *out > WAIT_MAX_S)
            return error_at(err, REASON_HEADER_INVALID, "#Prefer", "wait takes 0 to %d seconds",
                            WAIT_MAX_S);
    }
    return ST_OK;
}

/* A reference, or, where no credentials are asked for and so nobody but a developer is there, the
 * plan itself. */
static status one_plan(const struct call *c, const struct start *s, struct error *err) {
    if (!s->plan.ptr && s->ref) return ST_OK;
    if (!s->plan.ptr) return error_at(err, REASON_FIELD_MISSING, "/planRef", "planRef is missing");
    if (s->ref)
        return error_at(err, REASON_FIELD_UNKNOWN, "/plan",
                        "a run has a planRef or a plan, not both");
    if (!c->api->options.open)
        return error_at(err, REASON_PLAN_INLINE_REFUSED, "/plan",
                        "only a server for development takes a plan with the start: put it first, "
                        "and refer to it");
    return ST_OK;
}

static status read_start(struct call *c, struct start *s, struct error *err) {
    str tenant = STR_NONE;
    s->q = (struct start_request){.project_id = STR("default"),
                                  .environment_id = STR("default"),
                                  .adapter = STR("local"),
                                  .existing = &s->existing};
    status st = query_none(c, err);
    if (st == ST_OK) st = body_read(c, start_fields, COUNT_OF(start_fields), s, NULL, err);
    if (st == ST_OK && s->context)
        st = object_read(s->context, "/context", context_fields, COUNT_OF(context_fields),
                         &c->arena, &s->q, NULL, err);
    if (st == ST_OK) st = read_wait(c, &s->wait_s, err);
    if (st == ST_OK) st = one_plan(c, s, err);
    if (st == ST_OK && s->ref) {
        st = plan_ref_read(s->ref, &s->q.ref, err);
        if (st != ST_OK) error_under(err, "/planRef");
    }
    if (st == ST_OK) st = call_tenant(c, s->q.tenant_id, &tenant, err);
    if (st != ST_OK) return st;
    s->q.tenant_id = tenant.ptr ? tenant : STR("default");
    s->q.parameters = s->parameters;
    s->q.approval = s->approval;
    s->q.actor = call_actor(c);
    s->q.correlation = c->has_trace ? &c->trace : NULL;
    s->q.fresh_id = !s->q.run_id.ptr && !c->keyed; /* a key makes the same id again */
    if (!s->q.run_id.ptr) s->q.run_id = call_new_id(c);
    return ST_OK;
}

static void fetch_and_start(struct call *c) {
    struct start *s = c->own;
    host_prefetch(c->api->options.host, s->q.tenant_id, &s->q.ref, on_fetched, c);
}

/* ---- a plan that came with the start ---- */

static status check_inline(struct call *c, struct ledger *unused, struct error *err) {
    struct start *s = c->own;
    (void)unused;
    return plan_check_inline(c, s->plan, &s->q.ref, err);
}

static status keep_inline(struct call *c, struct ledger *ledger, struct error *err) {
    struct start *s = c->own;
    bool existed = false;
    return access_plan_put(ledger, s->q.tenant_id, s->q.ref.sha256, s->plan, NULL, &existed, err);
}

static void inline_checked(struct call *c) { call_change(c, keep_inline, fetch_and_start); }

static void post_run(struct call *c) {
    struct error err = {0};
    struct start *s = ARENA_NEW(&c->arena, struct start);
    c->own = s;
    if (read_start(c, s, &err) != ST_OK) {
        call_fail(c, &err);
        return;
    }
    c->run_id = s->q.run_id;
    c->tenant_id = s->q.tenant_id;
    c->project_id = s->q.project_id;
    c->environment_id = s->q.environment_id;
    c->engine_attempt = c->logical_attempt = 1;
    if (s->plan.ptr)
        call_read(c, check_inline, inline_checked);
    else
        fetch_and_start(c);
}

/* ---- lists ---- */

struct list_query {
    str tenant, project, environment, plan, version, status, substatus, provider, workflow, text,
        cursor;
    uuid correlation;
    int64_t since_us, until_us, limit;
    bool inconsistent;
    struct run_filter filter;
    uint64_t given;
};
#define AT(member) FIELD(struct list_query, member)
static const struct field list_fields[] = {
    {"tenantId", FIELD_TEXT, AT(tenant), false, 1, 0},
    {"projectId", FIELD_TEXT, AT(project), false, 1, 0},
    {"environmentId", FIELD_TEXT, AT(environment), false, 1, 0},
    {"planId", FIELD_TEXT, AT(plan), false, 1, 0},
    {"planVersion", FIELD_TEXT, AT(version), false, 1, 0},
    {"status", FIELD_LIST, AT(status), false, 1, 0},
    {"substatus", FIELD_TEXT, AT(substatus), false, 1, 0},
    {"inconsistent", FIELD_BOOL, AT(inconsistent), false, 0, 0},
    {"correlationId", FIELD_UUID, AT(correlation), false, 0, 0},
    {"provider", FIELD_TEXT, AT(provider), false, 1, 0},
    {"workflowId", FIELD_TEXT, AT(workflow), false, 1, 0},
    {"since", FIELD_TIME, AT(since_us), false, 0, 0},
    {"until", FIELD_TIME, AT(until_us), false, 0, 0},
    {"text", FIELD_TEXT, AT(text), false, 1, 0},
    {"limit", FIELD_INT, AT(limit), false, 1, LIST_MAX},
    {"cursor", FIELD_TEXT, AT(cursor), false, 1, 0},
};
enum { LIST_CORRELATION = 8 };

/* status=RUNNING,PAUSED */
static status read_statuses(str text, unsigned *out, struct error *err) {
    while (text.ptr) {
        str one;
        unsigned found = 0;
        if (!str_split(text, ',', &one, &text)) text = STR_NONE;
        for (int s = RUN_PENDING; s < RUN_STATUS_COUNT; s++) {
            if (str_eq(one, str_c(run_status_name((enum run_status)s)))) found |= 1U << s;
        }
        if (!found)
            return error_at(err, REASON_PARAMETER_INVALID, "?status",
                            "expected PENDING, APPROVED, RUNNING, PAUSED, COMPLETED, FAILED or "
                            "CANCELLED, or several with commas");
        if (str_eq(one, STR("PENDING"))) found |= 1U << RUN_NEW; /* which it is shown as */
        *out |= found;
    }
    return ST_OK;
}

static status read_list(struct call *c, struct list_query *q, struct error *err) {
    int64_t before = 0;
    int64_t unused = 0;
    str tenant = STR_NONE;
    q->limit = LIST_DEFAULT;
    status st = query_read(c, list_fields, COUNT_OF(list_fields), q, &q->given, err);
    if (st == ST_OK) st = cursor_read(q->cursor, 'r', &before, &unused, err);
    if (st == ST_OK) st = read_statuses(q->status, &q->filter.statuses, err);
    if (st == ST_OK && q->substatus.ptr) st = substatus_check(q->substatus, err);
    if (st == ST_OK) st = call_tenant(c, q->tenant, &tenant, err);
    if (st != ST_OK) return st;
    unsigned statuses = q->filter.statuses;
    q->filter = (struct run_filter){.tenant_id = tenant,
                                    .project_id = q->project,
                                    .environment_id = q->environment,
                                    .plan_id = q->plan,
                                    .plan_version = q->version,
                                    .text = q->text,
                                    .provider = q->provider,
                                    .workflow_id = q->workflow,
                                    .statuses = statuses,
                                    .only_inconsistent = q->inconsistent,
                                    .since_us = q->since_us,
                                    .until_us = q->until_us,
                                    .before_run_no = before,
                                    .scan_max = SCAN_MAX};
    if (q->given & (1U << LIST_CORRELATION)) q->filter.correlation = &q->correlation;
    return ST_OK;
}

/* What a run does beyond its status is not stored: it is found for each run of the page. */
static status keep_substatus(struct call *c, struct ledger *reader, const struct run_info *run,
                             str wanted, bool *keep, struct error *err) {
    struct run_snapshot snapshot;
    struct arena_mark mark = arena_mark(&c->arena);
    status st = status_snapshot(reader, run->run_id, &c->arena, &snapshot, err);
    *keep = st == ST_OK && snapshot.substatus.ptr && str_eq(snapshot.substatus, wanted);
    arena_rewind(&c->arena, mark);
    return st;
}

static status list_runs(struct call *c, struct ledger *reader, struct error *err) {
    struct list_query *q = c->own;
    struct run_info *runs = NULL;
    size_t count = 0;
    int64_t next = 0;
    status st = ledger_list_runs(reader, &q->filter, (size_t)q->limit, &c->arena, &runs, &count,
                                 &next, err);
    if (st != ST_OK) return st;
    page_begin(&c->out);
    for (size_t i = 0; i < count; i++) {
        bool keep = true;
        if (q->substatus.ptr) st = keep_substatus(c, reader, &runs[i], q->substatus, &keep, err);
        if (st != ST_OK) return st;
        if (!keep) continue;
        view_write(&view_run, &runs[i], &c->out);
    }
    page_end(&c->out, next > 0, 'r', next, 0);
    return ST_OK;
}

static void get_runs(struct call *c) {
    struct error err = {0};
    struct list_query *q = ARENA_NEW(&c->arena, struct list_query);
    c->own = q;
    if (read_list(c, q, &err) != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, list_runs, NULL);
}

/* ---- one run ---- */

static void put_run_now(struct call *c, const struct run_info *info,
                        const struct run_snapshot *snapshot, const struct engine_run_ref *ref) {
    json_object_begin(&c->out);
    view_members(&view_run, info, &c->out);
    json_put_text_if(&c->out, "substatus", snapshot->substatus);
    json_put_text_if(&c->out, "message", snapshot->message);
    json_name(&c->out, "engineRunRef");
    run_ref_json(ref, &c->out);
    json_object_end(&c->out);
}

static status load_found(struct call *c, struct ledger *reader, const struct run_info *info,
                         struct error *err) {
    struct run_snapshot snapshot = {0};
    struct engine_run_ref ref;
    status st = status_snapshot(reader, info->run_id, &c->arena, &snapshot, err);
    if (st == ST_OK) st = run_ref_find(reader, info, &c->arena, &ref, err);
    if (st == ST_OK) put_run_now(c, info, &snapshot, &ref);
    return st;
}

/* c->own is set when the caller knows the answer already. */
static status load_run(struct call *c, struct ledger *reader, struct error *err) {
    struct run_info info;
    status st = call_find_run(c, reader, c->args[0], &info, err);
    if (st != ST_OK) return st;
    str tag = call_text(c, "\"%lld\"", (long long)info.head.last_seq); /* while there is room */
    c->own = str_eq(http_header(c->request, STR("If-None-Match")), tag) ? c : NULL;
    if (!c->own) st = load_found(c, reader, &info, err);
    if (st == ST_OK) call_header(c, "ETag", tag);
    return st;
}

static void answer_run(struct call *c) { call_answer(c, c->own ? 304 : 200); }

static void get_run(struct call *c) {
    struct error err = {0};
    if (query_none(c, &err) != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, load_run, answer_run);
}

/* ---- the same, by its reference ---- */

struct status_query {
    yyjson_val *value;
    struct engine_run_ref ref;
};
static const struct field status_fields[] = {
    {"engineRunRef", FIELD_VALUE, FIELD(struct status_query, value), true, 0, 0}};

static status load_by_ref(struct call *c, struct ledger *reader, struct error *err) {
    struct status_query *q = c->own;
    struct run_info info;
    status st = call_find_ref(c, reader, &q->ref, &info, err);
    return st == ST_OK ? load_found(c, reader, &info, err) : st;
}

static void answer_status(struct call *c) { call_answer(c, 200); }

static void status_known(struct call *c) {
    (void)call_receipt(c, 200, true);
    call_ride(c, answer_status);
}

static void post_status(struct call *c) {
    struct error err = {0};
    struct status_query *q = ARENA_NEW(&c->arena, struct status_query);
    c->own = q;
    status st = query_none(c, &err);
    if (st == ST_OK) st = body_read(c, status_fields, COUNT_OF(status_fields), q, NULL, &err);
    if (st == ST_OK) st = body_run_ref(q->value, &q->ref, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, load_by_ref, status_known);
}

struct state_query {
    int64_t at;
};
static const struct field state_fields[] = {
    {"at", FIELD_INT, FIELD(struct state_query, at), false, 1, NUMBER_MAX}};

static status load_state(struct call *c, struct ledger *reader, struct error *err) {
    struct state_query *q = c->own;
    struct run_info info;
    struct run run = {0};
    status st = call_find_run(c, reader, c->args[0], &info, err);
    if (st == ST_OK && q->at > info.head.run_seq)
        st = error_at(err, REASON_POSITION_NOT_FOUND, "?at",
                      "the run has %lld events, there is no runSeq %lld",
                      (long long)info.head.run_seq, (long long)q->at);
    if (st == ST_OK)
        st = ledger_replay(reader, info.run_id, q->at, true, &c->arena, &run, NULL, err);
    if (st == ST_OK) run_state_json(&run, &c->out);
    return st;
}

static void get_state(struct call *c) {
    struct error err = {0};
    struct state_query *q = ARENA_NEW(&c->arena, struct state_query);
    c->own = q;
    if (query_read(c, state_fields, COUNT_OF(state_fields), q, NULL, &err) != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, load_state, NULL);
}

static status load_explanation(struct call *c, struct ledger *reader, struct error *err) {
    struct run_info info;
    struct explanation x;
    status st = call_find_run(c, reader, c->args[0], &info, err);
    if (st == ST_OK) st = explain_run(reader, info.run_id, clock_wall_us(), &c->arena, &x, err);
    if (st == ST_OK) view_write(&view_explanation, &x, &c->out);
    return st;
}

static void get_explanation(struct call *c) {
    struct error err = {0};
    if (query_none(c, &err) != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, load_explanation, NULL);
}

/* ---- by a provider's ids ---- */

struct resolve {
    str provider, workflow, run, tenant;
};
static const struct field resolve_fields[] = {
    {"provider", FIELD_TEXT, FIELD(struct resolve, provider), true, 1, 0},
    {"workflowId", FIELD_TEXT, FIELD(struct resolve, workflow), true, 1, 0},
    {"providerRunId", FIELD_TEXT, FIELD(struct resolve, run), true, 1, 0},
    {"tenantId", FIELD_TEXT, FIELD(struct resolve, tenant), false, 1, 0},
};

static status load_resolved(struct call *c, struct ledger *reader, struct error *err) {
    struct resolve *q = c->own;
    struct run_info info;
    status st = ledger_find_provider(reader, q->tenant, q->provider, q->workflow, q->run, &c->arena,
                                     &info, err);
    if (st == ST_NOT_FOUND)
        return error_at(err, REASON_RUN_NOT_FOUND, "", "no run is known by these ids");
    if (st != ST_OK) return st;
    view_write(&view_run, &info, &c->out);
    return ST_OK;
}

static void get_resolve(struct call *c) {
    struct error err = {0};
    struct resolve *q = ARENA_NEW(&c->arena, struct resolve);
    c->own = q;
    status st = query_read(c, resolve_fields, COUNT_OF(resolve_fields), q, NULL, &err);
    if (st == ST_OK) st = call_tenant(c, q->tenant, &q->tenant, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, load_resolved, NULL);
}

#define READERS (ROLE_VIEWER | ROLE_OPERATOR)
static const struct route routes[] = {
    {"GET", "/v1/runs/{runId}", "run.get", READERS | ROLE_PRODUCER, 0, get_run},
    {"POST", "/v1/runs", "run.start", ROLE_OPERATOR, ROUTE_CHANGES, post_run},
    {"GET", "/v1/runs", "run.list", READERS, 0, get_runs},
    {"GET", "/v1/runs/{runId}/state", "run.state", READERS, 0, get_state},
    {"GET", "/v1/runs/{runId}/explain", "run.explain", READERS, 0, get_explanation},
    {"POST", "/v1/run-refs/status", "run.get", READERS | ROLE_PRODUCER, 0, post_status},
    {"GET", "/v1/resolve", "run.resolve", READERS | ROLE_PRODUCER, 0, get_resolve},
};
const struct route_table run_routes = {routes, COUNT_OF(routes)};
