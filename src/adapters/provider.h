/* adapters/provider.h: the port to a cluster of another engine, Temporal or Conductor, that
 * dispatches the attempts of a run.
 *
 * The engine decides and the ledger records, exactly as for a local run (docs/decisions/0012-providers.md):
 * the provider says when and where an attempt is executed, keeps it alive when a worker dies, and
 * shows the run to those who look there. Each run has one execution at the provider. What is wanted
 * of it is always told again after a restart, so every call here may be repeated: a provider first
 * finds out what its cluster has already.
 *
 * Signals, cancellation and the end of an execution that come from the cluster's own tools are news
 * for the engine, through the ports.
 *
 * Threads: all calls and all ports on the loop's thread. Strings are borrowed until a call returns. */
#pragma once

#include "adapters/executor.h"
#include "core/plan_ref.h"
#include "core/run.h"
#include "core/signal.h"

struct provider_run { /* an open run, as the engine tells it */
    str run_id, tenant_id, project_id, environment_id, plan_id, plan_version;
    str plan_ref;            /* as JSON */
    uuid correlation;        /* of the run: what another ledger's run of the same id has not */
    const struct plan *plan; /* until the call returns */
    bool started;            /* RunStarted is stored */
    bool paused;
    /* The newest of its executions that the ledger knows of; STR_NONE: none yet. */
    str workflow_id, provider_run_id;
    str queue; /* where its tasks are offered; STR_NONE: not said */
};

struct provider_link { /* an execution of the run at the cluster */
    str workflow_id, provider_run_id;
    str queue;      /* or STR_NONE */
    bool continued; /* it continues another one of the same run: continue-as-new */
};

/* What the engine has to say of a step, for a provider that asks for one (Conductor). */
enum provider_step_state {
    PROVIDER_STEP_WAITS,    /* it is not its turn, or it is not executed by anybody (sleep ...) */
    PROVIDER_STEP_OPEN,     /* started: an attempt was given to start(), or will be soon */
    PROVIDER_STEP_DONE,     /* SUCCESS */
    PROVIDER_STEP_SKIPPED,
    PROVIDER_STEP_FAILED,   /* for good; the run goes on without it */
};
struct provider_found { /* a run that the cluster speaks of */
    bool ours;              /* this process carries it out */
    enum run_status status; /* RUN_COMPLETED ... when it is over */
    str code, message;      /* of a run that failed; or STR_NONE */
    str tenant_id, project_id, environment_id;
    uuid correlation;                 /* as in struct provider_run */
    str provider_run_id, workflow_id; /* likewise */
    enum provider_step_state step;    /* of the step that was asked for */
    str output;                       /* of that step, JSON; or STR_NONE */
};

struct provider_ports {
    void *context;
    /* An execution of the run is there. Told again as often as it is seen; recorded once. */
    void (*linked)(void *context, str run_id, const struct provider_link *link);
    /* A signal that came through the cluster. Its signal_id is stable: told again, it has no
     * second effect. */
    void (*signalled)(void *context, str run_id, const struct signal *signal, str actor);
    /* A worker died and the cluster gave the attempt to another: engineAttemptId rises. `times`
     * counts these of the attempt so far: told again, it has no second effect. */
    void (*recovered)(void *context, str run_id, str step_id, int64_t attempt, int64_t times);
    /* The execution is between its old history and the new one (continue-as-new). */
    void (*rotating)(void *context, str run_id);
    /* The execution is over and it was not us who ended it: terminated, timed out, deleted. */
    void (*ended)(void *context, str run_id, enum reason code, str message);
    /* Finds a run; its step too, unless step_id is STR_NONE. ST_NOT_FOUND. Strings in the arena. */
    status (*find)(void *context, str run_id, str step_id, struct arena *arena,
                   struct provider_found *out, struct error *err);
    /* Brings an open run of ours into memory; the engine then tells all that is wanted of it. */
    void (*look)(void *context, str run_id);
    /* The plan of an attempt that was dispatched to this process; it lives until plan_done(). May
     * read a file, never the network: ST_RETRY when it is being fetched. */
    status (*plan)(void *context, str tenant_id, const struct plan_ref *ref,
                   const struct plan **out, struct error *err);
    void (*plan_done)(void *context, const struct plan *plan);
    struct executor *executor; /* carries out what is dispatched to this process */
};

struct provider;
enum provider_event {
    PROVIDER_STEP_SETTLED, /* step_id: SUCCESS, SKIPPED, or FAILED for good */
    PROVIDER_RUN_PAUSED,
    PROVIDER_RUN_RESUMED,
    PROVIDER_RUN_ENDED, /* COMPLETED, FAILED or CANCELLED; close the execution, and forget the run */
};
struct provider_note { /* something that is durable now */
    enum provider_event event;
    str run_id;
    str step_id;                   /* of PROVIDER_STEP_SETTLED */
    enum provider_step_state step; /* likewise: DONE, SKIPPED or FAILED */
    str output;                    /* likewise, JSON; or STR_NONE */
    enum run_status status;        /* of PROVIDER_RUN_ENDED */
    str code, message;             /* of a failure; or STR_NONE */
};
struct provider_ops {
    /* The run is in memory: makes sure that it has an execution, and answers with linked(). Called
     * before its first attempt, and again now and then while it has no link. */
    void (*open_run)(struct provider *provider, const struct provider_run *run);
    /* As executor_start() and executor_stop(). The attempt's StepStarted is durable. */
    void (*start)(struct provider *provider, struct attempt *attempt);
    void (*stop)(struct provider *provider, struct attempt *attempt);
    /* This process no longer waits for it, but another will: the cluster keeps it for whoever goes
     * on with the run. `done` comes all the same, when it ends or at the latest with close(). */
    void (*leave)(struct provider *provider, struct attempt *attempt);
    void (*note)(struct provider *provider, const struct provider_note *note);
    /* The engine has decided all that it can for now: what was wanted so far can go out in one. */
    void (*rested)(struct provider *provider, str run_id);
    /* Every run that has ended is closed at the cluster, as far as is known. */
    bool (*idle)(const struct provider *provider);
    /* Starts no more; attempts under way stay as they are at the cluster and are not answered. The
     * last memory is freed by the loop. */
    void (*close)(struct provider *provider);
};
struct provider { /* the first member of an implementation's struct */
    const struct provider_ops *ops;
};
