/* host/providers.c: opens the providers, gives them the engine's attempts and what it decided, and
 * tells the engine what their clusters say. */
#include "host/providers.h"

#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/status.h"
#include "ledger/lease.h"
#include "ledger/reference.h"

enum { REF_MAX = 4096 };

struct one { /* the context of one provider's ports */
    struct host_providers *all;
    enum adapter_kind adapter;
    struct provider *provider; /* NULL: none */
    char ref[REF_MAX];         /* what engineRunRef adds, JSON */
    struct metric *m_attempts, *m_lost, *m_signals, *m_ended;
};

struct host_providers {
    struct host_providers_options options;
    struct one one[ADAPTER_COUNT];
    struct engine *engine; /* NULL: not there yet, or no more */
};

/* ---- what a provider says ---- */

static void on_linked(void *context, str run_id, const struct provider_link *link) {
    struct one *o = context;
    if (o->all->engine) engine_linked(o->all->engine, run_id, link);
}

/* It came from outside, and nobody waits for an answer. */
static void signal_done(void *context, status code, const struct error *err) {
    struct one *o = context;
    if (code == ST_OK || code == ST_CONFLICT) return; /* too late, or at the wrong time */
    LOG(LOG_WARN, "a signal that came through a provider had no effect",
        LOG_S("provider", str_c(adapter_name(o->adapter))), LOG_S("error", str_c(err->msg)));
}

static void on_signalled(void *context, str run_id, const struct signal *signal, str actor) {
    struct one *o = context;
    if (!o->all->engine) return;
    metric_add(o->m_signals, 1);
    engine_signal(o->all->engine, run_id, signal,
                  &(struct engine_caller){.actor = actor, .done = signal_done, .context = o});
}

static void on_recovered(void *context, str run_id, str step_id, int64_t attempt, int64_t times) {
    struct one *o = context;
    if (o->all->engine) engine_worker_lost(o->all->engine, run_id, step_id, attempt, times);
}

static void on_rotating(void *context, str run_id) {
    struct one *o = context;
    if (o->all->engine) engine_rotating(o->all->engine, run_id);
}

/* Who terminates the execution cancels the run; any other end is a failure. */
static void on_ended(void *context, str run_id, enum reason code, str message) {
    struct one *o = context;
    metric_add(o->m_ended, 1);
    if (code == REASON_PROVIDER_TERMINATED) {
        struct signal cancel = {
            .name = STR("CANCEL"), .signal_id = STR("provider:terminated"), .reason = message};
        on_signalled(o, run_id, &cancel, str_c(adapter_name(o->adapter)));
        return;
    }
    if (o->all->engine) engine_ended(o->all->engine, run_id, code, message);
}

/* A step of a run that is not in memory. */
static enum provider_step_state step_of(const struct run_view *view, str step_id) {
    for (uint32_t i = 0; i < view->run.step_count; i++) {
        const struct step_view *s = &view->steps[i];
        if (!s->id.ptr || !str_eq(s->id, step_id)) continue;
        switch (s->state) {
        case STEP_RUNNING: /* only what is executed is given to a provider */
            return str_eq(s->type, STR("exec")) || str_eq(s->type, STR("http"))
                       ? PROVIDER_STEP_OPEN
                       : PROVIDER_STEP_WAITS;
        case STEP_SUCCESS:
            return PROVIDER_STEP_DONE;
        case STEP_SKIPPED:
            return PROVIDER_STEP_SKIPPED;
        case STEP_FAILED:
            return s->retried_us > 0 ? PROVIDER_STEP_WAITS : PROVIDER_STEP_FAILED;
        case STEP_MENTIONED:
        case STEP_PENDING:
        case STEP_STATE_COUNT:
            break;
        }
    }
    return PROVIDER_STEP_WAITS;
}

static status find_step(struct host_providers *p, str run_id, str step_id, struct arena *arena,
                        struct provider_found *out, struct error *err) {
    struct run_view view;
    str output = STR_NONE;
    if (p->engine && engine_step(p->engine, run_id, step_id, &out->step, &output))
        return arena_try_str(arena, output, &out->output)
                   ? ST_OK
                   : error_set(err, ST_RETRY, "providers: out of memory");
    status st = run_view_load(host_reader(p->options.host), run_id, arena, &view, err);
    if (st == ST_OK) out->step = step_of(&view, step_id);
    return st;
}

static status on_find(void *context, str run_id, str step_id, struct arena *arena,
                      struct provider_found *out, struct error *err) {
    struct one *o = context;
    struct host_providers *p = o->all;
    struct run_info info = {0};
    struct engine_run_ref ref = {0};
    struct lease owner = {0};
    bool held = false;
    *out = (struct provider_found){0};
    struct ledger *reader = host_reader(p->options.host);
    status st = ledger_find_run(reader, run_id, arena, &info, err);
    if (st == ST_OK) st = lease_owner(reader, info.run_no, &held, &owner, err);
    if (st == ST_OK) st = run_ref_find(reader, &info, arena, &ref, err);
    if (st == ST_OK && ref.provider != o->adapter)
        st = error_at(err, REASON_RUN_NOT_FOUND, "", "the run is none of %s",
                      adapter_name(o->adapter));
    if (st != ST_OK) return st;
    out->ours = held && owner.node_no == host_node_no(p->options.host);
    out->status = info.head.status;
    out->tenant_id = info.tenant_id;
    out->project_id = info.project_id;
    out->environment_id = info.environment_id;
    out->correlation = info.correlation_id;
    /* The reference has the run's own id there until the cluster has given another. */
    if (!str_eq(ref.workflow_id, run_id)) out->workflow_id = ref.workflow_id;
    if (info.head.status == RUN_FAILED) {
        struct run_snapshot snapshot = {0};
        st = status_snapshot(reader, run_id, arena, &snapshot, err);
        out->code = STR("RUN_FAILED");
        out->message = snapshot.message;
    }
    if (st == ST_OK && step_id.ptr) st = find_step(p, run_id, step_id, arena, out, err);
    return st;
}

static void on_look(void *context, str run_id) {
    struct one *o = context;
    if (o->all->engine) engine_look(o->all->engine, run_id);
}

static status on_plan(void *context, str tenant_id, const struct plan_ref *ref,
                      const struct plan **out, struct error *err) {
    struct one *o = context;
    return host_plans_get(o->all->options.plans, tenant_id, ref, out, err);
}

static void on_plan_done(void *context, const struct plan *plan) {
    struct one *o = context;
    host_plans_done(o->all->options.plans, plan);
}

static struct provider_ports host_ports(struct host_providers *p, struct one *o) {
    return (struct provider_ports){.context = o,
                                   .linked = on_linked,
                                   .signalled = on_signalled,
                                   .recovered = on_recovered,
                                   .rotating = on_rotating,
                                   .ended = on_ended,
                                   .find = on_find,
                                   .look = on_look,
                                   .plan = on_plan,
                                   .plan_done = on_plan_done,
                                   .executor = p->options.executor};
}

/* ---- what the engine tells ---- */

static struct provider *of(struct host_providers *p, enum adapter_kind adapter) {
    return p ? p->one[adapter].provider : NULL;
}

static void answer_nobody(struct attempt *attempt) {
    attempt_fail(attempt, REASON_CANCELLED, STR("it is left to whoever goes on"));
}

void host_providers_start(struct host_providers *p, struct attempt *attempt) {
    struct provider *provider = of(p, attempt->adapter);
    if (!provider) { /* started without the provider: the attempt waits for a process that has it */
        LOG(LOG_WARN, "a step waits for a provider that this process does not know",
            LOG_S("provider", str_c(adapter_name(attempt->adapter))),
            LOG_S("runId", attempt->run_id), LOG_S("stepId", attempt->step->id));
        return;
    }
    metric_add(p->one[attempt->adapter].m_attempts, 1);
    provider->ops->start(provider, attempt);
}

void host_providers_stop(struct host_providers *p, struct attempt *attempt) {
    struct provider *provider = of(p, attempt->adapter);
    if (provider)
        provider->ops->stop(provider, attempt);
    else
        answer_nobody(attempt);
}

void host_providers_leave(struct host_providers *p, struct attempt *attempt) {
    struct provider *provider = of(p, attempt->adapter);
    if (provider)
        provider->ops->leave(provider, attempt);
    else
        answer_nobody(attempt);
}

void host_providers_open_run(struct host_providers *p, enum adapter_kind adapter,
                             const struct provider_run *run) {
    struct provider *provider = of(p, adapter);
    if (provider) provider->ops->open_run(provider, run);
}

void host_providers_rested(struct host_providers *p, enum adapter_kind adapter, str run_id) {
    struct provider *provider = of(p, adapter);
    if (provider) provider->ops->rested(provider, run_id);
}

/* "code" and "message" of the payload, in the arena. */
static void read_failure(str payload, struct arena *arena, struct provider_note *to) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error ignored;
    yyjson_val *root = NULL;
    if (!payload.ptr || json_parse(payload, limits, arena, &root, &ignored) != ST_OK) return;
    (void)json_str(json_member(root, "code"), &to->code);
    if (!json_str(json_member(root, "message"), &to->message))
        (void)json_str(json_member(root, "stepId"), &to->message);
}

/* A provider hears of no type that is not named here. */
static bool event_to_tell(enum event_type type, enum provider_event *out) {
    static const struct {
        bool told;
        enum provider_event event;
    } told[EVENT_TYPE_COUNT] = {
        [EVENT_STEP_COMPLETED] = {true, PROVIDER_STEP_SETTLED},
        [EVENT_STEP_SKIPPED] = {true, PROVIDER_STEP_SETTLED},
        [EVENT_STEP_FAILED] = {true, PROVIDER_STEP_SETTLED},
        [EVENT_RUN_PAUSED] = {true, PROVIDER_RUN_PAUSED},
        [EVENT_RUN_RESUMED] = {true, PROVIDER_RUN_RESUMED},
        [EVENT_RUN_COMPLETED] = {true, PROVIDER_RUN_ENDED},
        [EVENT_RUN_FAILED] = {true, PROVIDER_RUN_ENDED},
        [EVENT_RUN_CANCELLED] = {true, PROVIDER_RUN_ENDED},
    };
    *out = told[type].event;
    return told[type].told;
}

static bool note_of(const struct engine_note *note, const struct flow_event *e, struct arena *arena,
                    struct provider_note *to) {
    const struct flow *f = note->flow;
    *to = (struct provider_note){.run_id = note->run_id};
    if (!event_to_tell(e->type, &to->event)) return false;
    switch (to->event) {
    case PROVIDER_STEP_SETTLED: {
        const struct flow_step *s = &f->steps[e->step];
        if (s->phase != FLOW_SETTLED || s->attempt != e->attempt) return false;
        to->step_id = f->plan->steps[e->step].id;
        to->output = s->output;
        to->step = s->state == STEP_SUCCESS   ? PROVIDER_STEP_DONE
                   : s->state == STEP_SKIPPED ? PROVIDER_STEP_SKIPPED
                                              : PROVIDER_STEP_FAILED;
        read_failure(e->payload, arena, to);
        break;
    }
    case PROVIDER_RUN_ENDED:
        to->status = f->run.head.status;
        read_failure(e->payload, arena, to);
        break;
    case PROVIDER_RUN_PAUSED:
    case PROVIDER_RUN_RESUMED:
        break;
    }
    return true;
}

void host_providers_observe(struct host_providers *p, const struct engine_note *note) {
    enum adapter_kind adapter = ADAPTER_LOCAL;
    if (note->flow->adapter.ptr) (void)adapter_of(note->flow->adapter, &adapter);
    struct provider *provider = of(p, adapter);
    if (!provider) return;
    struct arena arena;
    struct provider_note told;
    arena_init(&arena, 4096, (size_t)4 * EVENT_BYTES_MAX);
    for (size_t i = 0; i < note->count; i++) {
        const struct flow_event *e = &note->events[i];
        if (e->type == EVENT_RUN_RECOVERED && e->cause == FLOW_WORKER)
            metric_add(p->one[adapter].m_lost, 1);
        arena_reset(&arena);
        if (note_of(note, &note->events[i], &arena, &told)) provider->ops->note(provider, &told);
    }
    arena_release(&arena);
}

bool host_providers_idle(const struct host_providers *p) {
    for (int i = 0; p && i < ADAPTER_COUNT; i++) {
        const struct provider *provider = p->one[i].provider;
        if (provider && !provider->ops->idle(provider)) return false;
    }
    return true;
}

/* ---- opening and closing ---- */

static void register_metrics(struct one *o, struct metrics *m) {
    char label[64];
    if (!m) return;
    snprintf(label, sizeof(label), "provider=\"%s\"", adapter_name(o->adapter));
    o->m_attempts = metrics_counter(m, "cairn_provider_attempts_total",
                                    "Attempts of steps given to the cluster.", label);
    o->m_lost = metrics_counter(m, "cairn_provider_workers_lost_total",
                                "Times that the cluster gave an attempt to another worker.", label);
    o->m_signals = metrics_counter(m, "cairn_provider_signals_total",
                                   "Signals that came through the cluster.", label);
    o->m_ended = metrics_counter(m, "cairn_provider_runs_ended_total",
                                 "Runs that were ended at the cluster, not by Cairn.", label);
}

static status open_temporal(struct host_providers *p, uv_loop_t *loop, struct error *err) {
    struct one *o = &p->one[ADAPTER_TEMPORAL];
    struct temporal_options t = *p->options.temporal;
    struct provider_ports ports = host_ports(p, o);
    struct buf ref;
    if (!t.ns.ptr) t.ns = STR("default");
    if (!t.queue.ptr) t.queue = STR("cairn");
    if (!t.node.ptr) t.node = p->options.node;
    buf_init_fixed(&ref, o->ref, sizeof(o->ref) - 1);
    json_object_begin(&ref);
    json_put_text(&ref, "namespace", t.ns);
    json_put_text(&ref, "taskQueue", t.queue);
    json_object_end(&ref);
    if (ref.full)
        return error_at(err, REASON_TEMPORAL_OPTIONS_INVALID, "",
                        "the names of namespace and queue are too long");
    register_metrics(o, p->options.metrics);
    return temporal_open(loop, &t, &ports, &o->provider, err);
}

static status open_conductor(struct host_providers *p, uv_loop_t *loop, struct error *err) {
    struct one *o = &p->one[ADAPTER_CONDUCTOR];
    struct conductor_options c = *p->options.conductor;
    struct provider_ports ports = host_ports(p, o);
    struct buf ref;
    if (!c.node.ptr) c.node = p->options.node;
    buf_init_fixed(&ref, o->ref, sizeof(o->ref) - 1);
    json_object_begin(&ref);
    json_put_text(&ref, "conductorUrl", c.url);
    json_object_end(&ref);
    if (ref.full) return error_at(err, REASON_CONDUCTOR_URL_INVALID, "", "the URL is too long");
    register_metrics(o, p->options.metrics);
    return conductor_open(loop, &c, &ports, &o->provider, err);
}

status host_providers_open(uv_loop_t *loop, const struct host_providers_options *options,
                           struct host_providers **out, struct error *err) {
    struct host_providers *p = mem_alloc(sizeof(*p));
    if (!p) return error_set(err, ST_RETRY, "providers: out of memory");
    p->options = *options;
    for (int i = 0; i < ADAPTER_COUNT; i++)
        p->one[i] = (struct one){.all = p, .adapter = (enum adapter_kind)i};
    status st = options->temporal ? open_temporal(p, loop, err) : ST_OK;
    if (st == ST_OK && options->conductor) st = open_conductor(p, loop, err);
    if (st == ST_OK) {
        *out = p;
        return ST_OK;
    }
    host_providers_halt(p);
    host_providers_close(p);
    return st;
}

const char *host_providers_ref(const struct host_providers *p, enum adapter_kind adapter) {
    return p && p->one[adapter].provider ? p->one[adapter].ref : NULL;
}

void host_providers_attach(struct host_providers *p, struct engine *engine) {
    if (p) p->engine = engine;
}

void host_providers_halt(struct host_providers *p) {
    if (!p) return;
    p->engine = NULL;
    for (int i = 0; i < ADAPTER_COUNT; i++) {
        struct provider *provider = p->one[i].provider;
        p->one[i].provider = NULL;
        if (provider) provider->ops->close(provider);
    }
}

void host_providers_close(struct host_providers *p) { mem_free(p); }
