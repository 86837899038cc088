/* host/host.h: an engine at work: on a libuv loop, over a ledger, with the local executor.
 *
 * The wiring, and nothing else: commits go to the ledger thread and come back through uv_async;
 * reads use a connection of their own; a timer wakes the engine, another renews the lease. On
 * PostgreSQL a third looks for runs that other processes woke, or left behind.
 * Threads: all calls on the loop's thread. */
#pragma once

#include <uv.h>

#include "core/url_guard.h"
#include "engine/engine.h"
#include "engine/plan_source.h"
#include "outbox/dispatch.h"

struct host;
struct temporal_options;
struct conductor_options;

struct host_options {
    str url;      /* of the ledger */
    str data_dir; /* workspaces, logs, plans */
    str node;     /* STR_NONE: "local" on SQLite, host name and process id on PostgreSQL */
    str secrets_dir;
    const struct guard *guard; /* for plans and http steps; NULL: no address is allowed. Borrowed */
    const struct plan_endpoint *endpoints;
    size_t endpoint_count;
    int64_t lock_wait_ms;  /* for the SQLite folder */
    int64_t kill_grace_ms; /* 0: the executor's default */
    int64_t keep_us; /* workspaces, after the end of their run; 0: for ever; or HOST_KEEP_NOT */
    uint32_t settle_max, resident_max;
    int64_t tenant_active_max, plan_active_max;
    bool passive; /* decides and records, but executes nothing: for a process that only signals */
    bool only_asked; /* drive only what is asked for, not every open run of the node */
    /* How effects are delivered; its guard and secrets are the host's own. */
    struct deliverer_options deliver;
    const struct effect_retry *effect_retries; /* see effect_retry_of(); or NULL. Borrowed */
    const struct outbox_sinks *effect_alerts;  /* told of dead letters; or NULL. Borrowed */
    int effect_batches;                        /* delivered at a time; 0: DISPATCH_BATCHES */
    int64_t effect_lease_ms;                   /* 0: see dispatcher_options */
    const struct temporal_options *temporal;   /* a cluster that dispatches runs; or NULL */
    const struct conductor_options *conductor; /* likewise */
    struct metrics *metrics;
    void (*observe)(void *context, const struct engine_note *note);
    void (*trouble)(void *context, str run_id, const struct error *why, int tries); /* or NULL */
    void (*lost)(void *context); /* the lease is lost, for good */
    void *context;
};

enum {
    HOST_LEASE_MS = 6000,
    HOST_RENEW_MS = 2000,
    HOST_SQLITE_LEASE_MS = 30000,
    HOST_SQLITE_RENEW_MS = 10000,
    HOST_LOOK_MS = 250,
    HOST_READERS = 2,        /* threads for queries from outside; one more is the host's own */
    HOST_QUERIES_MAX = 1024, /* of those, waiting */
    HOST_PLANS_MAX = 128,
    HOST_TENANT_PLANS_MAX = HOST_PLANS_MAX / 2, /* of one tenant's runs */
    HOST_PLAN_TENANTS_MAX = 64,
    HOST_FETCHES_MAX = 16, HOST_STORE_LOOKS_MAX = 32,
    HOST_TENANT_FETCHES_MAX = HOST_FETCHES_MAX / 2, /* of one tenant */
    HOST_KEEP_NOT = -1,          /* keep_us: a workspace goes when its run ends */
    HOST_PLAN_SMALL = 64 * 1024, /* bytes; a larger one is read on another thread */
    RECOVER_LIMIT = 200
};

MUST_CHECK status host_open(uv_loop_t *loop, const struct host_options *options, struct host **out,
                            struct error *err);
/* Gets a plan for a tenant and keeps it, so that a start that follows finds it and the loop waits
 * neither for a network nor for the reading of a large plan. A small one of the local store, one
 * that is kept already, and a reference that cannot be right are answered at once, before this
 * returns. Who asks for what is on its way to that tenant already waits for the same fetch. `done`
 * is called on the loop, once, also when the host closes (ST_RETRY). At most HOST_FETCHES_MAX at a
 * time, then ST_LIMIT with PLAN_FETCHES_TOO_MANY, and HOST_TENANT_FETCHES_MAX of one tenant, then
 * TENANT_FETCHES_TOO_MANY. Nothing of `tenant_id` and `ref` is needed afterwards. */
typedef void (*host_fetched)(void *context, status code, const struct error *err);
void host_prefetch(struct host *host, str tenant_id, const struct plan_ref *ref, host_fetched done,
                   void *context);
/* Fetches the plan, then starts the run: engine_start(), whose answers these are. `run_id_out` is written when the
 * plan is there: it lives until `done`. */
void host_start(struct host *host, const struct start_request *request, char *run_id_out,
                engine_done done, void *context);
/* Tells what was committed, after the owner's own observer. At most HOST_WATCHERS_MAX, and for as
 * long as the host lives. */
enum { HOST_WATCHERS_MAX = 4 };
typedef void (*host_watcher)(void *context, const struct engine_note *note);
void host_watch(struct host *host, host_watcher watcher, void *context);
struct engine *host_engine(struct host *host);
struct ledger *host_reader(struct host *host); /* for queries on the loop's thread */
struct writer *host_writer(struct host *host);
str host_node(const struct host *host);        /* its name */
/* To the ledger thread and back to the loop; lent until host_close(), which halts it. */
struct bridge *host_bridge(struct host *host);
/* To read the ledger without waiting on the loop; lent until host_close(), which halts them. */
struct readers *host_readers(struct host *host);
int64_t host_node_no(const struct host *host); /* of its lease */
bool host_is_postgres(const struct host *host);
/* There may be new effects, or some that were put back: the outbox looks now. */
void host_wake_outbox(struct host *host);
/* This effect was just requested (dispatcher_tell()). */
void host_tell_outbox(struct host *host, const struct effect_info *info);
struct outbox_settings host_outbox_settings(const struct host *host);
/* Nothing is being delivered, and nothing was due when it last looked. */
bool host_outbox_idle(const struct host *host);
/* Every run of a provider that has ended is closed there, too. */
bool host_providers_are_idle(const struct host *host);
/* Ends attempts, waits for appends under way, gives the lease back. NULL is fine. */
void host_close(struct host *host);

/* A signal from a process that drives nothing: recorded, and the run's node is woken. PostgreSQL
 * only (on SQLite the folder's lock says who may write). The riders, or NULL, are committed with
 * it. */
struct host_signal {
    struct append_request request; /* no items: the run is over already, and there is nothing to say */
    struct append_item item;
    struct append_result result;
    struct run_claim wake;
};
/* Reads what it needs, on any reader, and makes the request that is then to be appended. It and what
 * it needs are in the arena. */
MUST_CHECK status host_prepare_signal(struct ledger *reader, str run_id,
                                      const struct signal *signal, str actor,
                                      const struct append_rider *riders, struct arena *arena,
                                      struct host_signal **out, struct error *err);
/* Does all of it. */
MUST_CHECK status host_post_signal(struct ledger *ledger, str run_id, const struct signal *signal,
                                   str actor, const struct append_rider *riders, struct error *err);
