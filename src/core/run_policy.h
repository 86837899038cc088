/* core/run_policy.h: what a projector makes of a run after an event that the tables forbid.
 *
 * Run Events 5.3 has two policies and wants one of them, the same in every deployment. The product
 * follows A, which is run_apply() itself: nothing in it includes this header, and no setting leads
 * here. This is the thin shell around the same reducer with which tests hold B against A. Pure. */
#pragma once

#include "core/run.h"

enum run_policy {
    RUN_POLICY_A, /* passes the event over, marks the run, applies what follows */
    RUN_POLICY_B, /* leaves the run as of its last valid runSeq, marks it, applies no more */
};

struct reduction { /* starts as {.policy = ...} */
    enum run_policy policy;
    bool stalled; /* policy B only */
    struct run run;
};

/* As run_apply(). With policy B ST_CONFLICT comes once, for the event at which the run stalls; what
 * follows it is not looked at: ST_OK, and nothing changes. */
MUST_CHECK status reduction_apply(struct reduction *r, const struct event_record *rec,
                                  struct arena *arena, struct transition *bad, struct error *err);
/* INCONSISTENT, STALLED_INVALID_TRANSITION, or NULL: metadata of the run, never a status. */
const char *reduction_mark(const struct reduction *r);
