#include "core/run_policy.h"

status reduction_apply(struct reduction *r, const struct event_record *rec, struct arena *arena,
                       struct transition *bad, struct error *err) {
    if (r->stalled) return ST_OK;
    struct run_undo undo;
    status st = run_apply(&r->run, rec, arena, bad, &undo, err);
    if (st == ST_CONFLICT && r->policy == RUN_POLICY_B) {
        run_undo(&r->run, &undo); /* also the step that the event mentioned first */
        r->stalled = true;
    }
    return st;
}

const char *reduction_mark(const struct reduction *r) {
    if (r->stalled) return "STALLED_INVALID_TRANSITION";
    return r->run.head.inconsistent ? "INCONSISTENT" : NULL;
}
