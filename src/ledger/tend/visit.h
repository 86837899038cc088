/* ledger/tend/visit.h: walking through a whole ledger, tenant by tenant or run by run. For verify and
 * rebuild only.
 *
 * A run's events are reduced into one struct run, whose rows are then compared, or written, once
 * each and in order. Memory is one run's. */
#pragma once

#include "ledger/effects.h"
#include "ledger/handle.h"

struct walk {
    struct ledger *l;
    ledger_progress progress;
    void *context;
    int64_t done, total;
    struct arena *arena;          /* for what the report names */
    struct verify_report *report; /* a walk ends when it is damaged */
};
void walk_tick(struct walk *w);
/* Fills the report. `seq` may be 0, the ids STR_NONE. */
void walk_damage(struct walk *w, str tenant_id, int64_t seq, str run_id, const char *what);
MUST_CHECK status walk_count(struct walk *w, const char *sql, int64_t *out, struct error *err);

/* A tenant's end of the chain, as its row has it. */
struct tenant_end {
    int64_t tenant_no, seq, persisted_us;
    str tenant_id;
    bool uuid_fits;
    uint8_t head[SHA256_LEN];
};
/* All of them, in the walk's arena. Adds their events to the total. */
MUST_CHECK status walk_tenants(struct walk *w, struct tenant_end **out, size_t *count,
                               struct error *err);

struct run_visit {
    int64_t run_no, tenant_no;
    str run_id;
    uuid run_uuid;
    struct run run;
    struct effect_set effects;
};

struct run_job {
    struct walk *w;
    struct arena arena;      /* one run's */
    struct run_visit *visit; /* the run at hand; `run` is reduced so far */
    status (*before_run)(struct run_job *job, struct error *err); /* or NULL */
    replay_hook on_event;                                         /* its context is the job */
    status (*after_run)(struct run_job *job, struct error *err);
    int64_t runs; /* visited */
};
/* Visits every run, in the order of their numbers. */
MUST_CHECK status walk_runs(struct run_job *job, struct error *err);

/* verify_state.c: replays each run and compares it with its rows; then what belongs to no run. */
MUST_CHECK status verify_state(struct walk *w, const struct tenant_end *tenants, size_t count,
                               struct error *err);
