/* tests/model/model.h: what the ledger must do, said a second time, as simply as we can.
 *
 * The model is one array of records in the order of their acceptance. Nothing is kept that can be
 * counted: a run's number, its status, its steps, its causes and its alerts are found by reading
 * the array from the start, each time. It shares no code with core/run.c or ledger/: only the
 * envelope (struct event) is common, and keys are compared field by field, never as hashes.
 *
 * A model_fault makes the model wrong on purpose, so that a test can show that the comparison would
 * notice. */
#pragma once

#include "ledger/ledger.h"

enum { MODEL_RECORDS_MAX = 512, MODEL_STEPS_MAX = 16, MODEL_REJECTIONS_MAX = 512 };

enum model_fault {
    FAULT_NONE = 0,
    FAULT_DUPLICATE_BY_ID,     /* takes the eventId for the idempotency key */
    FAULT_RETRY_ALWAYS_OPEN,   /* attempt n+1 may start whatever became of attempt n */
    FAULT_CAUSE_IS_NEWEST,     /* a step's event is caused by the newest event of the run */
    FAULT_ATOMIC_KEEPS_PREFIX, /* items before the bad one of an atomic batch stay */
    FAULT_REJECTION_CHANGES,   /* a repeated rejection need not be the first one */
    FAULT_ONE_SEQUENCE,        /* one sequence for all tenants */
    FAULT_CLOCK_GOES_BACK,     /* persistedAt follows the clock when it steps back */
    FAULT_FINAL_IS_NOT_FINAL,  /* a failed run may be started again */
    FAULT_UNKNOWN_IS_LOST,     /* unknown types are passed over: no runSeq */
    FAULT_COUNT,
};

struct model_record {
    struct event event;
    str actor;
    int64_t seq, run_seq, persisted_us, cause_seq;
    bool by_ledger; /* a checkpoint's event: its eventId and times are the ledger's own */
    bool legal;     /* else `prior` and `attempted` are the alert's */
    const char *prior, *attempted;
    const uuid *correlation, *signal; /* as given; they count in the record that opens its run */
};

/* The first refusal of an event that is not legal. `text` is filled by whoever sees it first. */
struct model_rejection {
    struct event event;
    const char *prior, *attempted;
    char text[ERROR_MSG_MAX];
};

struct model {
    struct model_record records[MODEL_RECORDS_MAX];
    size_t count;
    struct model_rejection rejections[MODEL_REJECTIONS_MAX];
    size_t rejection_count;
    enum ledger_validation validation;
    int64_t now_us;
    enum model_fault fault;
};

struct model_result {
    status code;
    const char *reason; /* NULL on ST_OK */
    bool duplicate;
    struct model_record record;        /* on ST_OK */
    struct model_rejection *rejection; /* for INVALID_TRANSITION */
};

/* One request of ledger_append(). `results` has `count` places. */
void model_append(struct model *m, const struct append_item *items, size_t count, bool atomic,
                  struct model_result *results);
/* What ledger_checkpoint() appends; `id` is the eventId it chose. */
struct model_result model_checkpoint(struct model *m, str run_id, uuid id);

struct model_step {
    str id;
    const char *state; /* NULL: only mentioned */
    int64_t attempt, started_seq, ended_seq, result_seq, last_seq;
};
struct model_state {    /* of one run, after so many of its events */
    const char *status; /* "NEW" before any run-level event */
    int64_t run_seq, last_seq, run_level_seq, started_seq, ended_seq, total_steps, failed_steps,
        open_steps, bad_steps, pauses, resumes, invalid_events, engine_attempt;
    struct model_step steps[MODEL_STEPS_MAX]; /* in the order of first mention */
    size_t step_count;
};
/* `at_run_seq` 0: all of the run. */
void model_state(const struct model *m, str run_id, int64_t at_run_seq, struct model_state *out);
/* The record that opened the run; NULL if there is no such run. */
const struct model_record *model_run(const struct model *m, str run_id);
const char *model_fault_name(enum model_fault fault);
