/* core/run.h: a run's derived state and the one reducer over its events. Pure: no clock, no I/O.
 *
 * Same events, same state: in the ledger's projections, on replay, at any earlier position, in a
 * producer's guard, on every machine. run_apply() is enforcement layer 3 with policy A: an event
 * that the tables forbid changes no run or step state, marks the run INCONSISTENT, and yields one
 * alert. The mark is metadata; it is never a status.
 *
 * Step state is kept per (stepId, logicalAttemptId). Attempt n+1 opens as PENDING only when attempt
 * n is FAILED, so the newest attempt is all there is to remember. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "core/event.h"

enum run_status { /* stored; RUN_NEW is a run of which no run-level event is known, shown as PENDING
                   */
                  RUN_NEW = 0,
                  RUN_PENDING = 1,
                  RUN_APPROVED = 2,
                  RUN_RUNNING = 3,
                  RUN_PAUSED = 4,
                  RUN_COMPLETED = 5,
                  RUN_FAILED = 6,
                  RUN_CANCELLED = 7,
                  RUN_STATUS_COUNT = 8,
};
enum step_state { /* stored; STEP_MENTIONED: only opaque events named it so far, it has no state */
                  STEP_MENTIONED = 0,
                  STEP_PENDING = 1,
                  STEP_RUNNING = 2,
                  STEP_SUCCESS = 3,
                  STEP_FAILED = 4,
                  STEP_SKIPPED = 5,
                  STEP_STATE_COUNT = 6,
};

struct step {
    str id;
    int64_t attempt; /* the newest one; 0 while STEP_MENTIONED */
    enum step_state state;
    /* Sequence numbers, 0 if there is none. */
    int64_t started_seq; /* of the newest attempt's StepStarted */
    int64_t ended_seq;   /* of its StepCompleted, StepFailed or StepSkipped */
    int64_t result_seq;  /* of the event that holds its data: ended_seq, or a later StepCorrected */
    int64_t last_seq;    /* of the newest event that names the step */
};

struct run_head { /* everything but the steps: a plain value, so that undoing an event is an
                     assignment */
    enum run_status status;
    bool inconsistent;
    int64_t run_seq;       /* watermark: runSeq of the newest event applied or passed over */
    int64_t last_seq;      /* sequence_number of the newest event or fact */
    int64_t run_level_seq; /* sequence_number of the newest legal run-level event */
    int64_t started_seq;   /* of RunStarted */
    int64_t ended_seq;     /* of the final event */
    int64_t total_steps;   /* StepCompleted events applied, as CANON counts */
    int64_t failed_steps;  /* StepFailed events applied */
    int64_t open_steps;    /* steps RUNNING now */
    int64_t bad_steps;     /* steps whose newest attempt is FAILED now */
    int64_t pauses,
        resumes; /* RunPaused and RunResumed applied: the next one's logicalAttemptId is one more */
    int64_t invalid_events; /* events that the tables forbade */
    int64_t engine_attempt; /* highest seen */
};

struct run {
    struct run_head head;
    struct step *steps; /* in the order of first mention: the index is step_index */
    uint32_t step_count, step_cap;
    uint32_t *slots; /* open addressing over the step ids: index + 1, 0 is free */
    uint32_t slot_cap;
};

struct transition {                /* of a run or a step, as an event would have it */
    const char *prior, *attempted; /* state names */
};

struct run_undo { /* what run_apply() changed; lives until the next call on the run */
    struct run_head head;
    struct step step;
    int64_t step_index; /* -1: no step was touched */
    bool step_added;
};

/* Whether the tables allow `event` now. If not, *bad says what was and what was attempted. */
bool run_allows(const struct run *run, const struct event *event, struct transition *bad);
/* Reduces one record. ST_OK: applied, or opaque. ST_CONFLICT: forbidden; the run is marked and *bad
 * is filled; that is an ordinary outcome. ST_LIMIT / ST_RETRY: too many steps / out of memory;
 * nothing changed. New steps live in `arena`, which must live as long as the run. `undo` may be
 * NULL. */
MUST_CHECK status run_apply(struct run *run, const struct event_record *rec, struct arena *arena,
                            struct transition *bad, struct run_undo *undo, struct error *err);
/* Takes back the newest run_apply(). */
void run_undo(struct run *run, const struct run_undo *undo);

/* Adds a step in the state STEP_MENTIONED; it must not be there yet. Its id is copied into the
 * arena. */
MUST_CHECK status run_add_step(struct run *run, str id, struct arena *arena, struct error *err);
struct step *run_step(const struct run *run, str step_id); /* NULL if never mentioned */
bool run_is_final(enum run_status value);
const char *run_status_name(enum run_status value); /* PENDING for RUN_NEW */
const char *step_state_name(enum step_state state); /* PENDING for STEP_MENTIONED */

/* ---- layer 1: the producer's guard ---- */

struct refusal {       /* the four members that the contract asks for; a plain value */
    char expected[64]; /* states in which the event would be legal, joined by '|' */
    const char *actual;
    str attempted_type;
    bool step_level; /* which entity is affected: the step, or the run */
};
/* The tables, and two rules for whoever drives the run: a step starts or is skipped only while the
 * run is RUNNING; a run completes only when no step is open or failed. true: go ahead. */
bool run_guard(const struct run *run, const struct event *event, struct refusal *why);
/* {"invalidTransitionDetected":true,"expectedState":...,"actualState":...,"attemptedEventType":...}
 */
void refusal_json(const struct refusal *why, struct buf *out);

/* The cause of an event whose producer named none: the newest event of its step, else the newest
 * run-level event; for a run-level event the newest event of the run. 0 when the run is new: a
 * root. */
int64_t run_default_cause(const struct run *run, const struct event *event);

/* The state as one JSON object, the same bytes for the same state: for checkpoints, `run show` and
 * comparison. */
void run_state_json(const struct run *run, struct buf *out);
/* The inverse, for resuming from a checkpoint. ST_CORRUPT when it is not what run_state_json()
 * writes. */
MUST_CHECK status run_state_parse(str json, struct arena *arena, struct run *out,
                                  struct error *err);
