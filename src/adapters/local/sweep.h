/* adapters/local/sweep.h: removes the workspaces of runs that are over.
 *
 * A workspace first gets a name of its own that begins with ".gone-", as no workspace's does: from
 * then on it is gone for everybody, and whoever finds such a name removes what is left of it, so a
 * kill in the middle costs nothing. Links are removed, never followed; what is mounted somewhere
 * below stays. A folder that belongs to no run that is known to be over is not touched.
 *
 * Work is done in slices. Threads: one at a time. Several processes may sweep the same folder. */
#pragma once

#include <stdatomic.h>

#include "base/error.h"
#include "base/str.h"

enum {
    SWEEP_SLICE_COST = 4000, /* of one slice; the costs of what it does are in sweep.c */
    SWEEP_DEPTH_MAX = 32,    /* descriptors in use; what lies deeper is moved up first */
};

struct sweep_options {
    str data_dir;    /* copied */
    int64_t keep_us; /* after the end of a run; 0: not at all */
    /* Whether the run is over for good, and since when. false: it is not, or nobody can tell. */
    bool (*ended)(void *context, str run_id, int64_t *ended_us);
    void *context;
    const atomic_bool *stop; /* a slice ends soon after it became true; or NULL */
};

struct sweep_count {
    int64_t removed; /* workspaces */
    int64_t failed;  /* not, or not wholly */
    char first[256]; /* the first of those, in the folder `work` */
    int first_error; /* errno */
};

struct sweep;
MUST_CHECK status sweep_open(const struct sweep_options *options, struct sweep **out,
                             struct error *err);
void sweep_close(struct sweep *s); /* NULL is fine */
/* One slice of a pass over all workspaces. true: the pass is over, *count says what it did, and the
 * next slice begins a new one. */
bool sweep_slice(struct sweep *s, int64_t now_us, struct sweep_count *count);
/* The workspace of a run that is over is gone at once, and if `remove`, so are its bytes, unless
 * they are too many for a slice. false: a pass has to remove them. Heeds no wish to stop. */
bool sweep_run(struct sweep *s, str run_id, bool remove);
/* Goes on with what a stop cut short, for one slice at most. */
void sweep_left(struct sweep *s);
