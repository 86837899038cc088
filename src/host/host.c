/* host/host.c: the parts of a process that carries out runs, opened and closed in order, and
 * the engine's ports: commits go over the bridge, reads to the readers, attempts to an executor. */
#include "host/host.h"

#include <unistd.h>

#include "adapters/local/local.h"
#include "adapters/local/secret.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "cairn.h"
#include "db/db.h"
#include "host/effects.h"
#include "host/plans.h"
#include "host/providers.h"
#include "host/sweep.h"
#include "ledger/access/access.h"
#include "ledger/bridge.h"
#include "ledger/readers.h"


struct host_task { /* something of the node's own at the ledger thread; one at a time of each kind
                    */
    struct bridge_call call;
    struct host *host;
    bool under_way;
    void (*after)(struct host_task *task);
    struct arena arena;
    struct lease_runs runs;
    bool take_over;
};

struct host {
    struct host_options options;
    struct {
        host_watcher tell;
        void *context;
    } watchers[HOST_WATCHERS_MAX];
    size_t watcher_count;
    uv_loop_t *loop;
    bool postgres;
    struct writer *writer;
    struct bridge *bridge; /* from this loop to the ledger thread and back */
    struct readers *readers; /* lent to the API, too */
    struct ledger *reader;
    struct executor *executor;
    struct host_effects *effects;
    struct host_providers *providers; /* NULL: none */
    struct engine *engine;
    struct lease lease;
    struct arena arena;
    str node;
    uv_async_t async;
    uv_timer_t wake, renew, look_timer;
    int open_handles;
    int64_t armed_us;
    struct host_task renewal, look;
    int64_t renewed_us;
    bool given_up; /* the lease: it is too old */
    struct plan_source source;
    struct host_plans *plans;
    struct host_sweep *sweep; /* NULL: workspaces are kept for ever, or are not ours to remove */
    bool closing;
    int64_t looks;
};

/* ---- to the ledger thread and back ---- */

static void wake_loop(void *context) { /* on the ledger thread, or a reader's */
    struct host *h = context;
    uv_async_send(&h->async);
}

static void on_async(uv_async_t *async) {
    struct host *h = async->data;
    if (h->bridge) bridge_deliver(h->bridge);
    if (h->readers) readers_deliver(h->readers);
}

static void commit_done(struct bridge_call *call) {
    struct engine_commit *commit = CONTAINER_OF(call, struct engine_commit, call);
    struct host *h = call->context;
    if (h->closing) return; /* the engine is halted: it decides nothing more */
    commit->code = call->write.code;
    commit->err = call->write.err;
    engine_committed(h->engine, commit);
}

/* Waits in order if the ledger's queue is full: bounded by the runs in memory. */
static status port_append(void *context, struct engine_commit *commit, struct error *err) {
    struct host *h = context;
    (void)err;
    commit->call =
        (struct bridge_call){.write.request = commit->request, .done = commit_done, .context = h};
    bridge_submit(h->bridge, &commit->call);
    return ST_OK;
}

static void task_done(struct bridge_call *call) {
    struct host_task *t = CONTAINER_OF(call, struct host_task, call);
    t->under_way = false;
    if (!t->host->closing) t->after(t);
}

static void task_start(struct host_task *t, ledger_body body) {
    if (t->under_way || t->host->closing) return;
    t->under_way = true;
    t->call = (struct bridge_call){.write.member = {.body = body, .context = t}, .done = task_done};
    bridge_submit(t->host->bridge, &t->call);
}

static int64_t lease_ms(const struct host *h) {
    return h->postgres ? HOST_LEASE_MS : HOST_SQLITE_LEASE_MS;
}

static status do_renew(struct ledger *ledger, void *context, struct error *err) {
    struct host_task *t = context;
    return lease_renew(ledger, &t->host->lease, lease_ms(t->host), err);
}

/* A node that could not renew for so long must think itself dead: others do. */
static void check_lease(struct host *h) {
    int64_t age_us = clock_mono_ns() / 1000 - h->renewed_us;
    if (!h->postgres || age_us <= (int64_t)HOST_LEASE_MS * 1000 || h->given_up) return;
    h->given_up = true;
    LOG(LOG_ERROR, "the lease could not be renewed in time", LOG_N("seconds", age_us / 1000000));
    engine_lose(h->engine);
}

static void after_renew(struct host_task *t) {
    struct host *h = t->host;
    if (t->call.write.code == ST_OK) h->renewed_us = clock_mono_ns() / 1000;
    if (t->call.write.code == ST_CONFLICT) engine_lose(h->engine);
    check_lease(h);
}

static void on_renew(uv_timer_t *timer) {
    struct host *h = timer->data;
    check_lease(h);
    task_start(&h->renewal, do_renew);
}

static status do_look(struct ledger *ledger, void *context, struct error *err) {
    struct host_task *t = context;
    arena_reset(&t->arena);
    t->runs = (struct lease_runs){0};
    if (t->take_over)
        return lease_take_over(ledger, &t->host->lease, RECOVER_LIMIT, &t->arena, &t->runs, err);
    return lease_woken(ledger, &t->host->lease, RECOVER_LIMIT, &t->arena, &t->runs, err);
}

static void after_look(struct host_task *t) {
    if (t->call.write.code != ST_OK) {
        LOG(LOG_WARN, "could not look for work of other nodes",
            LOG_S("error", str_c(t->call.write.err.msg)));
        engine_recover(t->host->engine); /* it may have landed: then these runs are ours to load */
        return;
    }
    for (size_t i = 0; i < t->runs.count; i++)
        engine_look(t->host->engine, t->runs.items[i].run_id);
}

/* Most often for runs that were woken, now and then for what a dead node left. */
static void on_look_timer(uv_timer_t *timer) {
    struct host *h = timer->data;
    if (h->look.under_way) return;
    h->look.take_over = !h->options.only_asked && ++h->looks % 4 == 0;
    task_start(&h->look, do_look);
}

/* ---- the other ports ---- */

static int64_t port_now(void *context) {
    (void)context;
    return clock_wall_us();
}

static void port_random(void *context, void *out, size_t n) {
    (void)context;
    random_bytes(out, n);
}

/* ---- reading ---- */

static status read_run(struct host *h, struct engine_read *read, struct ledger *reader,
                       struct error *err) {
    struct engine_loaded *loaded = &read->loaded;
    struct lease owner = {0};
    status st = ledger_find_run(reader, read->run_id, &read->arena, &loaded->info, err);
    if (st == ST_OK) st = lease_owner(reader, loaded->info.run_no, &loaded->held, &owner, err);
    loaded->ours = loaded->held && owner.node_no == h->lease.node_no;
    loaded->epoch = owner.epoch;
    if (st == ST_OK)
        st = ledger_walk_run(reader, &loaded->info, read->after_seq, engine_read_row, read, err);
    return st;
}

static status read_counts(struct engine_read *read, struct ledger *reader, struct error *err) {
    status st = lease_active(reader, read->tenant_id, STR_NONE, &read->tenant_active, err);
    return st == ST_OK
               ? lease_active(reader, read->tenant_id, read->plan_id, &read->plan_active, err)
               : st;
}

static status do_read(struct reader_job *job, struct ledger *reader, struct error *err) {
    struct engine_read *read = CONTAINER_OF(job, struct engine_read, job);
    struct host *h = read->port; /* of it only what never changes */
    if (read->kind != READ_RUN)
        return lease_due(reader, h->lease.node_no, &read->range, &read->arena, &read->runs, err);
    status st = read_run(h, read, reader, err);
    if (!read->wants_counts || (st != ST_OK && st != ST_NOT_FOUND)) return st;
    struct error failed;
    status counted = read_counts(read, reader, &failed);
    if (counted != ST_OK) *err = failed;
    return counted == ST_OK ? st : counted;
}

static void plan_came(void *context, status code, const struct error *err) {
    struct engine_read *read = context;
    struct host *h = read->port;
    read->plan_code = code;
    if (code != ST_OK) read->plan_err = *err;
    engine_read_done(h->engine, read);
}

/* The rows are here. The plan that they were launched with comes next. */
static void has_read(struct reader_job *job) {
    struct engine_read *read = CONTAINER_OF(job, struct engine_read, job);
    struct host *h = read->port;
    const struct engine_loaded *loaded = &read->loaded;
    struct plan_ref ref = {0};
    read->code = job->code;
    read->err = job->err;
    bool found = read->kind == READ_RUN && read->code == ST_OK;
    if (found && h->effects && loaded->held == loaded->ours)
        host_effects_serve(h->effects, read->run_id);
    if (found && loaded->ours && read->after_seq == 0 && read->row_count > 0 &&
        !run_is_final(loaded->info.head.status) &&
        engine_launch_ref(&read->rows[0], &read->arena, &ref))
        host_plans_prefetch(h->plans, loaded->info.tenant_id, &ref, plan_came, read);
    else
        engine_read_done(h->engine, read);
}

static void port_read(void *context, struct engine_read *read) {
    struct host *h = context;
    read->port = h;
    read->job = (struct reader_job){.work = do_read, .done = has_read};
    readers_submit(h->readers, &read->job);
}

static void port_start(void *context, struct attempt *attempt) {
    struct host *h = context;
    if (h->options.passive) return;
    if (attempt->step->type == PLAN_EFFECT)
        host_effects_start(h->effects, attempt);
    else if (attempt->adapter != ADAPTER_LOCAL)
        host_providers_start(h->providers, attempt);
    else
        executor_start(h->executor, attempt);
}

static void port_stop(void *context, struct attempt *attempt) {
    struct host *h = context;
    if (!h->options.passive && attempt->step->type == PLAN_EFFECT)
        host_effects_stop(h->effects, attempt);
    else if (!h->options.passive && attempt->adapter != ADAPTER_LOCAL)
        host_providers_stop(h->providers, attempt);
    else if (!h->options.passive)
        executor_stop(h->executor, attempt);
    else
        attempt_fail(attempt, REASON_CANCELLED, STR("it was not executed"));
}

/* The run is left, not ended: what a provider has of it goes on. */
static void port_leave(void *context, struct attempt *attempt) {
    struct host *h = context;
    if (!h->options.passive && attempt->step->type != PLAN_EFFECT &&
        attempt->adapter != ADAPTER_LOCAL)
        host_providers_leave(h->providers, attempt);
    else
        port_stop(context, attempt);
}

static void port_open_run(void *context, enum adapter_kind adapter,
                          const struct provider_run *run) {
    struct host *h = context;
    host_providers_open_run(h->providers, adapter, run);
}

static void port_rested(void *context, enum adapter_kind adapter, str run_id) {
    struct host *h = context;
    host_providers_rested(h->providers, adapter, run_id);
}

static void port_observe(void *context, const struct engine_note *note) {
    struct host *h = context;
    host_providers_observe(h->providers, note);
    if (h->options.observe) h->options.observe(h->options.context, note);
    for (size_t i = 0; i < h->watcher_count; i++)
        h->watchers[i].tell(h->watchers[i].context, note);
    if (run_is_final(note->flow->run.head.status)) host_sweep_ended(h->sweep, note->run_id);
}

static void port_trouble(void *context, str run_id, const struct error *why, int tries) {
    struct host *h = context;
    if (h->options.trouble) h->options.trouble(h->options.context, run_id, why, tries);
}

static void port_lost(void *context) {
    struct host *h = context;
    if (h->options.lost) h->options.lost(h->options.context);
}

static void on_wake(uv_timer_t *timer) {
    struct host *h = timer->data;
    h->armed_us = INT64_MAX;
    engine_tick(h->engine);
}

static void port_wake_at(void *context, int64_t us) {
    struct host *h = context;
    int64_t now = clock_wall_us();
    if (us == FLOW_NEVER || h->closing || us >= h->armed_us) return;
    h->armed_us = us;
    /* Never 0: libuv would fire it again before it looks at anything else. */
    int64_t ms = us <= now ? 1 : (us - now + 999) / 1000;
    uv_update_time(h->loop);
    uv_timer_start(&h->wake, on_wake, (uint64_t)ms, 0);
}

/* ---- plans ---- */

/* Nodes that share a database share the plans that were put into it, each for its tenant. */
static status stored_plan(struct ledger *reader, str tenant_id, const uint8_t sha256[SHA256_LEN],
                          struct arena *arena, str *bytes, struct error *err) {
    return access_plan_get(reader, tenant_id, sha256, arena, bytes, err);
}

static status port_plan(void *context, str tenant_id, const struct plan_ref *ref,
                        const struct plan **out, struct error *err) {
    struct host *h = context;
    return host_plans_get(h->plans, tenant_id, ref, out, err);
}

static void port_plan_done(void *context, const struct plan *plan) {
    struct host *h = context;
    host_plans_done(h->plans, plan);
}

void host_prefetch(struct host *h, str tenant_id, const struct plan_ref *ref, host_fetched done,
                   void *context) {
    host_plans_prefetch(h->plans, tenant_id, ref, done, context);
}

struct starting { /* waits for its plan */
    struct host *host;
    struct start_request request; /* texts are the caller's, until `done` */
    char *run_id_out;
    engine_done done;
    void *context;
    struct error plan_error;
};

static void start_answered(void *context, status code, const struct error *err) {
    struct starting *s = context;
    if (s->done) s->done(s->context, code, err);
    mem_free(s);
}

static void start_now(void *context, status code, const struct error *err) {
    struct starting *s = context;
    if (code != ST_OK) s->plan_error = *err;
    if (code != ST_OK) s->request.plan_error = &s->plan_error;
    engine_start(host_engine(s->host), &s->request, s->run_id_out, start_answered, s);
}

void host_start(struct host *h, const struct start_request *request, char *run_id_out,
                engine_done done, void *context) {
    struct error err = {0};
    struct starting *s = mem_alloc(sizeof(*s));
    if (!s) {
        error_set(&err, ST_RETRY, "host: out of memory");
        if (done) done(context, ST_RETRY, &err);
        return;
    }
    *s = (struct starting){.host = h,
                           .request = *request,
                           .run_id_out = run_id_out,
                           .done = done,
                           .context = context};
    host_prefetch(h, request->tenant_id, &request->ref, start_now, s);
}

/* ---- opening ---- */

static str joined(struct host *h, str a, const char *b) {
    struct buf out;
    str kept;
    buf_init(&out, 8192);
    buf_put(&out, a);
    buf_put_c(&out, b);
    kept = arena_str(&h->arena, buf_str(&out));
    buf_release(&out);
    return kept;
}

static void name_node(struct host *h) {
    char name[256] = "node";
    h->node = h->options.node.ptr ? arena_str(&h->arena, h->options.node) : STR("local");
    if (h->options.node.ptr || !h->postgres) return;
    (void)gethostname(name, sizeof(name) - 1);
    char pid[32];
    snprintf(pid, sizeof(pid), ":%d", (int)getpid());
    h->node = joined(h, str_c(name), pid);
}

static status open_store(struct host *h, struct error *err) {
    struct ledger *ledger = NULL;
    struct ledger_options options = {.validation = LEDGER_REJECT,
                                     .lock_wait_ms = h->options.lock_wait_ms};
    status st = ledger_open(h->options.url, &options, &ledger, err);
    if (st == ST_OK) st = lease_take(ledger, h->node, lease_ms(h), &h->lease, err);
    if (st != ST_OK) {
        ledger_close(ledger);
        return st;
    }
    h->renewed_us = clock_mono_ns() / 1000;
    outbox_tell(ledger, h->options.effect_alerts);
    outbox_retries(ledger, h->options.effect_retries);
    st = writer_open(ledger, h->options.metrics, &h->writer, err);
    if (st == ST_OK) st = bridge_open(h->writer, wake_loop, h, &h->bridge, err);
    struct readers_options readers = {.url = h->options.url,
                                      .threads = HOST_READERS,
                                      .queue_max = HOST_QUERIES_MAX,
                                      .wake = wake_loop,
                                      .context = h,
                                      .metrics = h->options.metrics};
    if (st == ST_OK) st = readers_open(&readers, &h->readers, err);
    return st == ST_OK ? ledger_open_reader(h->options.url, &h->reader, err) : st;
}

static status open_engine(struct host *h, struct error *err) {
    struct engine_ports ports = {.context = h,
                                 .now_us = port_now,
                                 .random = port_random,
                                 .append = port_append,
                                 .read = port_read,
                                 .plan = port_plan,
                                 .plan_done = port_plan_done,
                                 .start = port_start,
                                 .stop = port_stop,
                                 .leave = port_leave,
                                 .open_run = port_open_run,
                                 .rested = port_rested,
                                 .wake_at = port_wake_at,
                                 .observe = port_observe,
                                 .trouble = port_trouble,
                                 .lost = port_lost};
    struct engine_options options = {.lease = h->lease,
                                     .node = h->node,
                                     .version = STR("cairn " CAIRN_VERSION),
                                     .settle_max = h->options.settle_max,
                                     .tenant_active_max = h->options.tenant_active_max,
                                     .plan_active_max = h->options.plan_active_max,
                                     .only_asked = h->options.only_asked,
                                     .resident_max = h->options.resident_max,
                                     .metrics = h->options.metrics};
    for (int i = 0; i < ADAPTER_COUNT; i++)
        options.provider[i] = host_providers_ref(h->providers, (enum adapter_kind)i);
    status st = engine_open(&ports, &options, &h->engine, err);
    if (st == ST_OK) host_providers_attach(h->providers, h->engine);
    return st;
}

/* Unless it is told otherwise every folder's node is called "local", but a cluster may serve
 * several folders: there the name goes on with what the folder is called, so that each gets the
 * tasks of its own runs. One that was moved finds them all the same: a run knows where its tasks
 * are offered. */
static str cluster_name(struct host *h) {
    char host[256] = "";
    char text[32] = "-";
    uint8_t digest[SHA256_LEN];
    if (h->postgres || !str_eq(h->node, STR("local"))) return h->node;
    char *path = realpath(arena_str(&h->arena, h->options.data_dir).ptr, NULL);
    (void)gethostname(host, sizeof(host) - 1);
    sha256_of(joined(h, joined(h, str_c(host), ":"), path ? path : ""), digest);
    free(path);
    hex_encode(digest, 4, text + 1);
    text[9] = '\0';
    return joined(h, h->node, text);
}

static status open_providers(struct host *h, struct error *err) {
    struct host_providers_options options = {.temporal = h->options.temporal,
                                             .conductor = h->options.conductor,
                                             .executor = h->executor,
                                             .plans = h->plans,
                                             .host = h,
                                             .metrics = h->options.metrics};
    if (h->options.passive || (!options.temporal && !options.conductor)) return ST_OK;
    options.node = cluster_name(h);
    return host_providers_open(h->loop, &options, &h->providers, err);
}

static status effect_secret(void *context, str environment_id, str name, struct arena *arena,
                            str *out, struct error *err) {
    struct host *h = context;
    return secret_resolve(h->options.secrets_dir, environment_id, name, arena, out, err);
}

static status open_effects(struct host *h, struct error *err) {
    if (h->options.passive) return ST_OK;
    struct dispatcher_options options = {.bridge = h->bridge,
                                         .readers = h->readers,
                                         .settings = host_outbox_settings(h),
                                         .deliver = h->options.deliver,
                                         .worker = h->node,
                                         .batches = h->options.effect_batches,
                                         .lease_ms = h->options.effect_lease_ms,
                                         .alone = !h->postgres,
                                         .only_served = h->options.only_asked,
                                         .metrics = h->options.metrics};
    options.deliver.guard = h->options.guard;
    options.deliver.secret = effect_secret;
    options.deliver.secret_context = h;
    return host_effects_open(h->loop, &options, &h->effects, err);
}

static status open_sweep(struct host *h, struct error *err) {
    if (h->options.passive || h->options.keep_us == 0) return ST_OK;
    struct host_sweep_options options = {
        .url = h->options.url, .data_dir = h->options.data_dir, .keep_us = h->options.keep_us};
    return host_sweep_open(&options, &h->sweep, err);
}

static void open_handles(struct host *h) {
    uv_async_init(h->loop, &h->async, on_async);
    uv_timer_init(h->loop, &h->wake);
    uv_timer_init(h->loop, &h->renew);
    uv_timer_init(h->loop, &h->look_timer);
    h->async.data = h->wake.data = h->renew.data = h->look_timer.data = h;
    h->open_handles = 4;
}

static void start_timers(struct host *h) {
    uint64_t renew = h->postgres ? HOST_RENEW_MS : HOST_SQLITE_RENEW_MS;
    h->renewal = (struct host_task){.host = h, .after = after_renew};
    h->look = (struct host_task){.host = h, .after = after_look};
    arena_init(&h->look.arena, 4096, (size_t)16 * 1024 * 1024);
    uv_timer_start(&h->renew, on_renew, renew, renew);
    if (h->postgres) uv_timer_start(&h->look_timer, on_look_timer, HOST_LOOK_MS, HOST_LOOK_MS);
}

status host_open(uv_loop_t *loop, const struct host_options *options, struct host **out,
                 struct error *err) {
    struct host *h = mem_alloc(sizeof(*h));
    if (!h) return error_set(err, ST_RETRY, "host: out of memory");
    h->options = *options;
    h->loop = loop;
    h->postgres = db_url_is_postgres(options->url);
    h->armed_us = INT64_MAX;
    arena_init(&h->arena, 4096, (size_t)1024 * 1024);
    h->options.url = arena_str(&h->arena, options->url);
    h->options.data_dir = arena_str(&h->arena, options->data_dir);
    h->options.secrets_dir = arena_str(&h->arena, options->secrets_dir);
    name_node(h);
    h->source = (struct plan_source){.plans_folder = joined(h, h->options.data_dir, "/plans"),
                                     .guard = options->guard,
                                     .endpoints = options->endpoints,
                                     .endpoint_count = options->endpoint_count,
                                     .stored = stored_plan};
    open_handles(h);
    struct local_options local = {.data_dir = h->options.data_dir,
                                  .secrets_dir = h->options.secrets_dir,
                                  .guard = options->guard,
                                  .kill_grace_ms = options->kill_grace_ms};
    status st = open_store(h, err);
    if (st == ST_OK) st = host_plans_open(loop, &h->source, h->readers, &h->plans, err);
    if (st == ST_OK) {
        int orphans = local_kill_orphans(h->options.data_dir);
        if (orphans > 0)
            LOG(LOG_WARN, "killed processes that a dead engine left behind",
                LOG_N("processes", orphans));
        st = executor_open_local(loop, &local, &h->executor, err);
    }
    if (st == ST_OK) st = open_effects(h, err);
    if (st == ST_OK) st = open_sweep(h, err);
    if (st == ST_OK) st = open_providers(h, err);
    if (st == ST_OK) st = open_engine(h, err);
    if (st != ST_OK) {
        host_close(h);
        return st;
    }
    start_timers(h);
    if (!options->only_asked) engine_recover(h->engine);
    *out = h;
    return ST_OK;
}

void host_watch(struct host *h, host_watcher watcher, void *context) {
    ASSERT(h->watcher_count < HOST_WATCHERS_MAX);
    h->watchers[h->watcher_count].tell = watcher;
    h->watchers[h->watcher_count++].context = context;
}

struct engine *host_engine(struct host *h) {
    return h->engine;
}
struct ledger *host_reader(struct host *h) {
    return h->reader;
}
struct writer *host_writer(struct host *h) {
    return h->writer;
}
str host_node(const struct host *h) { return h->node; }
struct bridge *host_bridge(struct host *h) {
    return h->bridge;
}
struct readers *host_readers(struct host *h) { return h->readers; }
int64_t host_node_no(const struct host *h) { return h->lease.node_no; }
bool host_is_postgres(const struct host *h) { return h->postgres; }
void host_wake_outbox(struct host *h) {
    if (h->effects) host_effects_wake(h->effects);
}
bool host_providers_are_idle(const struct host *h) { return host_providers_idle(h->providers); }
void host_tell_outbox(struct host *h, const struct effect_info *info) {
    if (h->effects) host_effects_tell(h->effects, info);
}
struct outbox_settings host_outbox_settings(const struct host *h) {
    return (struct outbox_settings){.sinks = h->options.effect_alerts,
                                    .retries = h->options.effect_retries};
}
bool host_outbox_idle(const struct host *h) { return !h->effects || host_effects_idle(h->effects); }

/* ---- closing ---- */

/* A task of its own: a name without runs is forgotten, and an append in the same group may just
 * open one. */
static status do_release(struct ledger *ledger, void *context, struct error *err) {
    return lease_release(ledger, context, err);
}

static void on_closed(uv_handle_t *handle) {
    struct host *h = handle->data;
    if (--h->open_handles > 0) return;
    readers_close(h->readers);
    bridge_close(h->bridge); /* only now: who borrowed it may have submitted until it was closed */
    if (h->look.host) arena_release(&h->look.arena);
    arena_release(&h->arena);
    mem_free(h);
}

void host_close(struct host *h) {
    if (!h) return;
    h->closing = true;
    if (h->engine) engine_halt(h->engine);
    host_plans_halt(h->plans);
    host_effects_halt(h->effects);
    bridge_halt(h->bridge);
    readers_halt(h->readers);
    if (h->writer) {
        struct error ignored;
        struct writer_call release = {.task = do_release, .task_context = &h->lease};
        if (writer_append(h->writer, &release, HOST_LEASE_MS, &ignored) != ST_OK)
            LOG(LOG_WARN, "could not give the lease back", LOG_S("error", str_c(ignored.msg)));
        writer_close(h->writer);
        if (h->bridge) bridge_deliver(h->bridge); /* refuses all that was under way */
    }
    host_providers_halt(h->providers);
    executor_close(h->executor);
    host_effects_close(h->effects);
    engine_close(h->engine);
    host_providers_close(h->providers);
    host_sweep_close(h->sweep);
    host_plans_close(h->plans);
    ledger_close(h->reader);
    uv_handle_t *handles[] = {(uv_handle_t *)&h->async, (uv_handle_t *)&h->wake,
                              (uv_handle_t *)&h->renew, (uv_handle_t *)&h->look_timer};
    for (size_t i = 0; i < COUNT_OF(handles); i++)
        uv_close(handles[i], on_closed);
}

/* ---- from outside ---- */

static status signal_item(const struct run_info *info, const struct signal *signal, str actor,
                          struct arena *arena, struct append_item *item, struct error *err) {
    struct event ids = {.run_id = info->run_id,
                        .tenant_id = info->tenant_id,
                        .project_id = info->project_id,
                        .environment_id = info->environment_id,
                        .plan_id = info->plan_id,
                        .plan_version = info->plan_version,
                        .engine_attempt = info->head.engine_attempt};
    uuid id = signal->signal_id.ptr ? signal_uuid(info->run_id, signal->signal_id) : uuid_v4();
    char name[UUID_TEXT_LEN];
    struct buf data;
    uuid_format(id, name);
    buf_init(&data, EVENT_BYTES_MAX);
    signal_json(signal, id, &data);
    str kept = arena_str(arena, buf_str(&data));
    str subject = arena_str(arena, str_n(name, sizeof(name)));
    bool full = data.full;
    buf_release(&data);
    if (full) return error_as(err, ST_LIMIT, REASON_SIGNAL_INVALID, "/payload", "too large");
    status st = ledger_fact(&ids, EVENT_SIGNAL_RECEIVED, subject, 1, kept, item, err);
    item->actor = actor;
    return st;
}

status host_prepare_signal(struct ledger *reader, str run_id, const struct signal *given, str actor,
                           const struct append_rider *riders, struct arena *arena,
                           struct host_signal **out, struct error *err) {
    struct run_info info = {0};
    struct signal signal = *given;
    struct host_signal *s = arena_try(arena, sizeof(*s));
    if (!s) return error_set(err, ST_RETRY, "host: out of memory");
    status st = signal_validate(&signal, err);
    if (st == ST_OK) st = ledger_find_run(reader, run_id, arena, &info, err);
    if (st == ST_NOT_FOUND)
        return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
    if (st != ST_OK) return st;
    *out = s;
    s->request = (struct append_request){
        .atomic = true, .results = &s->result, .arena = arena, .claim = &s->wake, .riders = riders};
    if (run_is_final(info.head.status)) {
        if (signal.kind == SIGNAL_CANCEL) return ST_OK;
        return error_at(err, REASON_RUN_FINISHED, "", "the run is %s",
                        run_status_name(info.head.status));
    }
    s->wake.act = CLAIM_WAKE;
    s->request.items = &s->item;
    s->request.count = 1;
    return signal_item(&info, &signal, actor, arena, &s->item, err);
}

status host_post_signal(struct ledger *ledger, str run_id, const struct signal *signal, str actor,
                        const struct append_rider *riders, struct error *err) {
    struct arena arena;
    struct host_signal *s = NULL;
    arena_init(&arena, 4096, (size_t)4 * 1024 * 1024);
    status st = host_prepare_signal(ledger, run_id, signal, actor, riders, &arena, &s, err);
    ASSERT(st != ST_OK || s);
    if (st == ST_OK && s->request.count == 0) {
        st = access_ride(ledger, riders, err);
    } else if (st == ST_OK) {
        struct append_request *all[] = {&s->request};
        st = ledger_append(ledger, all, 1, err);
        if (st == ST_OK && s->result.code != ST_OK) {
            *err = *s->result.err;
            st = s->result.code;
        }
    }
    arena_release(&arena);
    return st;
}
