/* engine/provider.c: runs whose attempts a provider dispatches: what it is told, and what it says.
 *
 * Nothing is decided here that is not decided for a local run. A run waits in the queue until its
 * provider has an execution of it (RunProviderLinked); from then on its attempts go there. */
#include "base/json.h"
#include "base/log.h"
#include "engine/impl.h"

enum adapter_kind run_adapter(const struct engine_run *r) {
    enum adapter_kind adapter = ADAPTER_LOCAL;
    if (r->flow.adapter.ptr) (void)adapter_of(r->flow.adapter, &adapter);
    return adapter;
}

status run_plan_ref(struct engine_run *r, str *out, struct error *err) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct arena_mark mark = arena_mark(&r->eng->scratch);
    yyjson_val *launch = NULL;
    status st = ST_OK;
    if (!r->plan_ref.ptr) {
        st = json_parse(r->flow.launch, limits, &r->eng->scratch, &launch, err);
        yyjson_val *ref = st == ST_OK ? json_member(launch, "plan_ref") : NULL;
        if (ref) r->plan_ref = json_text(ref, &r->arena);
        if (st == ST_OK && !r->plan_ref.ptr) st = no_memory(err);
    }
    arena_rewind(&r->eng->scratch, mark);
    *out = r->plan_ref;
    return st;
}

static void open_run(struct engine_run *r) {
    struct engine *eng = r->eng;
    struct error err = {0};
    if (!eng->ports.open_run || r->ending_code || run_is_final(r->flow.run.head.status)) return;
    struct provider_run run = {.run_id = r->run_id,
                               .tenant_id = r->ids.tenant_id,
                               .project_id = r->ids.project_id,
                               .environment_id = r->ids.environment_id,
                               .plan_id = r->ids.plan_id,
                               .plan_version = r->ids.plan_version,
                               .plan = r->plan,
                               .correlation = r->correlation,
                               .started = r->started,
                               .paused = r->flow.run.head.status == RUN_PAUSED,
                               .workflow_id = r->flow.link.workflow_id,
                               .provider_run_id = r->flow.link.provider_run_id,
                               .queue = r->flow.link.queue};
    if (run_plan_ref(r, &run.plan_ref, &err) != ST_OK) return; /* no memory: told again soon */
    ASSERT(r->stage != STAGE_RESTING); /* it may answer at once: that is news, and has to wait */
    eng->ports.open_run(eng->ports.context, run_adapter(r), &run);
}

void run_bind(struct engine_run *r) {
    if (run_adapter(r) != ADAPTER_LOCAL && r->flow.link.provider_run_id.ptr) open_run(r);
}

bool run_is_bound(struct engine_run *r) {
    if (run_adapter(r) == ADAPTER_LOCAL || r->flow.link.provider_run_id.ptr) return true;
    if (r->last_seq > 0) open_run(r);
    return false;
}

/* ---- news ---- */

static status take_linked(struct engine_run *r, const struct decision *d,
                          const struct provider_link *to, struct error *err) {
    const struct flow *f = d->flow;
    struct flow_link link = {
        .workflow_id = to->workflow_id, .provider_run_id = to->provider_run_id, .queue = to->queue};
    bool known =
        f->link.provider_run_id.ptr && str_eq(f->link.provider_run_id, to->provider_run_id);
    if (known || run_is_final(f->run.head.status)) return ST_OK;
    status st = ST_OK;
    if (to->continued && f->links > 0 && !f->rotating) { /* its announcement was lost */
        struct flow_recovery why = {.node = r->eng->options.node, .cause = FLOW_NEW_HISTORY};
        st = flow_recover(d, ++r->engine_attempt, &why, err);
    }
    return st == ST_OK ? flow_linked(d, &link, err) : st;
}

static status take_worker_lost(struct engine_run *r, const struct decision *d,
                               const struct news_worker_lost *lost, struct error *err) {
    int64_t step = r->plan ? plan_find(r->plan, lost->step_id) : -1;
    if (step < 0) return ST_OK;
    const struct flow_step *s = &r->flow.steps[step];
    if (s->phase != FLOW_OPEN || s->attempt != lost->attempt || lost->times <= (int64_t)s->crashes)
        return ST_OK;
    struct flow_recovery why = {.node = r->eng->options.node,
                                .cause = FLOW_WORKER,
                                .step = (uint32_t)step,
                                .times = (uint32_t)lost->times};
    r->engine_attempt += lost->times - (int64_t)s->crashes;
    return flow_recover(d, r->engine_attempt, &why, err);
}

status run_take_provider_news(struct engine_run *r, const struct decision *d, const struct news *n,
                              struct error *err) {
    const struct flow *f = d->flow;
    struct flow_recovery rotates = {.node = r->eng->options.node, .cause = FLOW_NEW_HISTORY};
    bool over = run_is_final(f->run.head.status);
    switch (n->kind) {
    case NEWS_LINKED:
        return take_linked(r, d, &n->linked, err);
    case NEWS_WORKER_LOST:
        return take_worker_lost(r, d, &n->worker_lost, err);
    case NEWS_ROTATING:
        if (over || f->rotating || f->links == 0) return ST_OK;
        return flow_recover(d, ++r->engine_attempt, &rotates, err);
    case NEWS_ENDED:
        return over ? ST_OK : flow_fail(d, n->ended.code, n->ended.message, err);
    case NEWS_LAUNCH:
    case NEWS_RESULT:
    case NEWS_SIGNAL:
    case NEWS_LEASE:
    case NEWS_TASK_DONE:
    case NEWS_HEARTBEAT:
    case NEWS_TASK_AGAIN:
        break;
    }
    ASSERT(false); /* take_one() gives us news of providers only */
    return ST_OK;
}

/* ---- what a provider says ---- */

/* Of a run that is not ours, or is over, nothing comes of it; for want of memory it is told again. */
static void tell(struct engine *eng, str run_id, const struct news *news) {
    struct engine_run *r = NULL;
    struct error err = {0};
    if (eng->lost) return;
    struct news *n = news_new(news);
    if (n && run_want(eng, run_id, false, &r, &err) == ST_OK)
        run_push(r, n);
    else
        mem_free(n);
}

void engine_linked(struct engine *eng, str run_id, const struct provider_link *link) {
    tell(eng, run_id, &(struct news){.kind = NEWS_LINKED, .linked = *link});
}

void engine_rotating(struct engine *eng, str run_id) {
    tell(eng, run_id, &(struct news){.kind = NEWS_ROTATING});
}

void engine_worker_lost(struct engine *eng, str run_id, str step_id, int64_t attempt,
                        int64_t times) {
    struct news_worker_lost lost = {.step_id = step_id, .attempt = attempt, .times = times};
    tell(eng, run_id, &(struct news){.kind = NEWS_WORKER_LOST, .worker_lost = lost});
}

void engine_ended(struct engine *eng, str run_id, enum reason code, str message) {
    struct news_ended ended = {.code = str_c(reason_name(code)), .message = message};
    tell(eng, run_id, &(struct news){.kind = NEWS_ENDED, .ended = ended});
}

bool engine_step(struct engine *eng, str run_id, str step_id, enum provider_step_state *out,
                 str *output) {
    const struct engine_run *r = engine_resident(eng, run_id);
    if (!r || !run_has_flow(r) || !r->plan) return false;
    int64_t step = plan_find(r->plan, step_id);
    *out = PROVIDER_STEP_WAITS;
    *output = STR_NONE;
    if (step < 0) return true;
    const struct flow_step *s = &r->flow.steps[step];
    *output = s->output;
    enum plan_type type = r->plan->steps[step].type;
    if (s->phase == FLOW_OPEN && plan_type_is_executed(type) && type != PLAN_EFFECT)
        *out = PROVIDER_STEP_OPEN;
    if (s->phase != FLOW_SETTLED) return true;
    *out = s->state == STEP_SUCCESS   ? PROVIDER_STEP_DONE
           : s->state == STEP_SKIPPED ? PROVIDER_STEP_SKIPPED
                                      : PROVIDER_STEP_FAILED;
    return true;
}

struct engine_run_ref engine_run_ref(const struct engine *eng, str adapter, str run_id,
                                     struct arena *arena) {
    struct engine_run_ref ref = run_ref_local(run_id);
    struct json_limits limits = {RUN_REF_BYTES_MAX, JSON_DEPTH_MAX};
    struct error ignored;
    yyjson_val *more = NULL;
    if (!adapter_of(adapter, &ref.provider) || !eng->options.provider[ref.provider]) return ref;
    str text = str_c(eng->options.provider[ref.provider]);
    (void)!json_parse(text, limits, arena, &more, &ignored);
    (void)json_str(json_member(more, "namespace"), &ref.namespace);
    (void)json_str(json_member(more, "taskQueue"), &ref.task_queue);
    (void)json_str(json_member(more, "conductorUrl"), &ref.conductor_url);
    return ref;
}
