/* ledger/lease.h: which node carries out which run.
 *
 * A node is a process that drives runs, known by its name. Its row holds an epoch, which rises each
 * time a process takes the name or another node takes over its work, and the end of its lease. Every
 * commit of a node names its epoch (struct run_claim) and is refused when the row has another one:
 * a node that lost its lease can change nothing any more. On SQLite the folder's lock makes sure of
 * a single node; the rows are the same.
 *
 * What changes something is called on the ledger thread, from the body of a group's member
 * (writer_call.member) or, to take a name and to give it back, in a transaction of its own. */
#pragma once

#include "ledger/ledger.h"

struct lease {
    int64_t node_no, epoch;
};

/* Takes the name: the next epoch. ST_CONFLICT (NODE_ALIVE) while another process holds it. */
MUST_CHECK status lease_take(struct ledger *ledger, str name, int64_t lease_ms, struct lease *out,
                             struct error *err);
/* ST_CONFLICT (LEASE_LOST) when the epoch has moved on. */
MUST_CHECK status lease_renew(struct ledger *ledger, const struct lease *lease, int64_t lease_ms,
                              struct error *err);
/* Lets others have the name, and the work, at once. */
MUST_CHECK status lease_release(struct ledger *ledger, const struct lease *lease,
                                struct error *err);

struct lease_run {
    str run_id;
    int64_t run_no, epoch; /* the node's when it last wrote: another one means recovery */
};
struct lease_runs {
    struct lease_run *items;
    size_t count;
};
/* Moves up to `limit` runs of nodes whose lease has ended to this one, fencing those nodes. */
MUST_CHECK status lease_take_over(struct ledger *ledger, const struct lease *lease, size_t limit,
                                  struct arena *arena, struct lease_runs *out, struct error *err);
/* Which runs: those with from_us <= wake <= to_us and a greater run number than `after`, in the
 * order of their numbers, at most `limit`. */
struct lease_range {
    int64_t from_us, to_us, after;
    size_t limit;
};
/* Runs of the node. Also for readers. */
MUST_CHECK status lease_due(struct ledger *ledger, int64_t node_no, const struct lease_range *range,
                            struct arena *arena, struct lease_runs *out, struct error *err);
/* Runs of the node that somebody woke, and forgets that. */
MUST_CHECK status lease_woken(struct ledger *ledger, const struct lease *lease, size_t limit,
                              struct arena *arena, struct lease_runs *out, struct error *err);

struct lease_info { /* of one run, for status */
    bool held;      /* some node has it */
    bool alive;     /* that node's lease runs, and it has looked at the run since it took its name */
    str node;
    int64_t wake_us; /* CLAIM_NEVER: when woken */
};
MUST_CHECK status lease_find(struct ledger *ledger, int64_t run_no, struct arena *arena,
                             struct lease_info *out, struct error *err);
/* Whose the run is: *held false if nobody's. */
MUST_CHECK status lease_owner(struct ledger *ledger, int64_t run_no, bool *held, struct lease *out,
                              struct error *err);
/* How many runs are RUNNING or PAUSED, of a tenant and, unless STR_NONE, of one plan: admission. */
MUST_CHECK status lease_active(struct ledger *ledger, str tenant_id, str plan_id, int64_t *out,
                               struct error *err);
