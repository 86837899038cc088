/* ledger/cache.h: the runs that are being written, in memory: their derived state, exactly as the
 * database has it. The least recently used go first; a failure drops them all. */
#pragma once

#include "base/limits.h"
#include "base/map.h"
#include "core/run.h"
#include "ledger/effects.h"
#include "ledger/schema.h"
#include "ledger/seen.h"

static_assert(STEPS_PER_RUN_MAX <= 1 << STEP_BITS, "a step index fits its part of the key");

/* What state_run holds of a run: status, inconsistent, started_seq, ended_seq, run_level_seq,
 * invalid_events, engine_attempt. */
struct state_row {
    int64_t cells[7];
};

struct run_entry {
    str run_id, project_id, environment_id, plan_id, plan_version; /* in the arena */
    int64_t run_no, tenant_no, context_no, opened_seq;
    uuid run_uuid;
    char correlation[UUID_TEXT_LEN], signal[UUID_TEXT_LEN];
    bool has_signal;
    bool stored; /* has its rows in ledger_run and state_run */
    bool leased; /* a node carries it out: has its row in lease_run */
    struct state_row stored_state;
    uint32_t stored_steps;   /* steps with a smaller index have their rows */
    uint32_t stored_effects; /* and so have effects */
    struct effect_set effects;
    int64_t moved_seq; /* of its newest row that is no EFFECT fact: those concern no engine */
    size_t bytes;      /* as the cache counts them */
    struct run run;
    struct seen seen;
    struct arena arena;
    struct run_entry *newer, *older; /* by last use */
};

struct cache {
    struct map by_id;
    struct run_entry *newest, *oldest;
    size_t bytes;
};
void cache_init(struct cache *c);
void cache_clear(struct cache *c);
struct run_entry *cache_get(struct cache *c, str run_id); /* and makes it the newest */
/* An empty entry, owned by the cache. NULL when memory is out. */
struct run_entry *cache_add(struct cache *c, str run_id);
void cache_drop(struct cache *c, struct run_entry *e);
void cache_drop_tenant(struct cache *c, int64_t tenant_no);
void cache_weigh(struct cache *c, struct run_entry *e); /* after the entry grew */
void cache_trim(
    struct cache *c); /* to RUN_CACHE_BYTES_MAX, or the newest alone; never inside a group */
