/* cairn.h: the C interface of libcairn, an append-only ledger of workflow runs.
 *
 *     cc program.c $(pkg-config --cflags --libs cairn)
 *
 * A store is a ledger in a SQLite file or a PostgreSQL database. Events are appended to it, read
 * from it, and never changed. A producer emits the events of runs with ids that survive retries and
 * restarts, and refuses transitions that are not legal. docs/library.md is the guide.
 *
 * Strings are UTF-8 and end in NUL. What a function is given is borrowed for the call; what it
 * gives is in the caller's structs, or says how long it lives. Zero a struct before filling it
 * (cairn_event event = {0}): members may be added at the end.
 *
 * Errors: functions return a cairn_status and, unless it is CAIRN_OK, fill *err, which may be NULL.
 * Outputs are written only on CAIRN_OK, unless it says otherwise.
 *
 * Threads: a cairn_store may be used from any number of threads at once; appends that wait together
 * are committed together. A cairn_producer belongs to one thread. */
#ifndef CAIRN_H
#define CAIRN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_VERSION "0.1.0"

#if defined(__GNUC__)
#define CAIRN_API __attribute__((visibility("default")))
#else
#define CAIRN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is running, which a program may compare with CAIRN_VERSION. */
CAIRN_API const char *cairn_version(void);
/* The version of the Run Events contract that it speaks: "2.0.1". */
CAIRN_API const char *cairn_run_events_version(void);

/* ---- errors ---- */

typedef enum cairn_status {
    CAIRN_OK = 0,
    CAIRN_INVALID = 1,   /* the input is wrong; the same call can never work */
    CAIRN_NOT_FOUND = 2, /* the named thing does not exist */
    CAIRN_CONFLICT = 3,  /* what is there already does not allow it */
    CAIRN_LIMIT = 4,     /* a bound was reached; the message names it */
    CAIRN_RETRY = 5,     /* busy, timeout, lost connection: the same call may work later */
    CAIRN_CORRUPT = 6    /* stored bytes are not what was written: tell the operator */
} cairn_status;

typedef struct cairn_error {
    cairn_status code;
    const char *reason; /* a stable code such as "FIELD_MISSING"; "" if there is none; static */
    char where[96];     /* a JSON pointer, "offset N", or "" */
    char message[400];  /* a sentence for people */
} cairn_error;

/* "ok", "invalid", "not found", ... */
CAIRN_API const char *cairn_status_name(cairn_status status);

/* ---- a store ---- */

typedef struct cairn_store cairn_store;

typedef struct cairn_options {
    bool read_only;       /* no lock, nothing created; appending is CAIRN_INVALID */
    bool record_invalid;  /* store events that the transition tables forbid, instead of refusing */
    int64_t lock_wait_ms; /* how long to wait for another writer of the same SQLite file */
} cairn_options;

/* Opens or creates the ledger at `url`: the path of a SQLite file, or postgresql://... . `options`
 * may be NULL. The caller ends it with cairn_close(). One process at a time writes to a SQLite
 * file: CAIRN_RETRY while another one does. */
CAIRN_API cairn_status cairn_open(const char *url, const cairn_options *options, cairn_store **out,
                                  cairn_error *err);
/* Answers what is waiting, then closes. Its producers must be closed before. NULL is fine. */
CAIRN_API void cairn_close(cairn_store *store);

/* ---- events ---- */

typedef struct cairn_event {
    const char *event_type; /* "RunStarted"; unknown types are stored and opaque */
    const char *run_id;
    const char *tenant_id;
    const char *project_id;
    const char *environment_id;
    const char *plan_id;
    const char *plan_version;
    const char *step_id;         /* of a step-level event; NULL for a run-level one */
    const char *payload;         /* a JSON object, or NULL */
    int64_t logical_attempt_id;  /* counts from 1 */
    int64_t engine_attempt_id;   /* 0: the runtime knows no attempts, which is sent as 1 */
    const char *event_id;        /* a UUID v4; NULL: a fresh one */
    const char *idempotency_key; /* NULL: the derived one; any other is refused */
    const char *emitted_at;      /* RFC 3339 in UTC; NULL: now */
    const char *actor;           /* who, or NULL */
    const char *causation_id;    /* eventId of the cause; NULL: the run's or step's newest event */
    const char *correlation_id;  /* a UUID, for the event that opens a run; NULL: a fresh one */
} cairn_event;

/* What became of one event. */
typedef struct cairn_result {
    cairn_status code; /* CAIRN_OK: it is durable, and the members below are the ledger's */
    bool duplicate;    /* it was there before: they are the first record's */
    char event_id[37];
    char persisted_at[32];
    int64_t run_seq;
    int64_t sequence_number; /* in the tenant */
    size_t line;             /* of cairn_append_ndjson(), from 1; else 0 */
    cairn_error error;       /* when code is not CAIRN_OK */
} cairn_result;

/* Appends one event; it is durable when this returns CAIRN_OK. After CAIRN_RETRY the outcome is
 * unknown, and appending it again is safe: if it had landed it comes back as a duplicate (a
 * producer, below, also keeps the eventId the same). `result` may be NULL. */
CAIRN_API cairn_status cairn_append(cairn_store *store, const cairn_event *event,
                                    cairn_result *result, cairn_error *err);
/* Appends at most 4096 events in one commit. With `atomic` one refused event refuses them all.
 * Fills all of results[count] whatever it returns: CAIRN_OK, or what became of the first that
 * failed. */
CAIRN_API cairn_status cairn_append_batch(cairn_store *store, const cairn_event *events,
                                          size_t count, bool atomic, cairn_result *results,
                                          cairn_error *err);
/* Appends one RunEventWrite object. `result` may be NULL. */
CAIRN_API cairn_status cairn_append_json(cairn_store *store, const char *json, size_t length,
                                         cairn_result *result, cairn_error *err);

/* Called for each line in order, after its commit; `result` lives during the call. false: stop. */
typedef bool (*cairn_on_result)(void *context, const cairn_result *result);
/* Appends RunEventWrite objects, one a line, in commits of some hundred lines; blank lines are
 * passed over. A refused line does not stop the others, a failed commit does: what was not told to
 * `on_result`, which may be NULL, was not sent. CAIRN_OK, or what became of the first line that
 * failed, with its number in the message. */
CAIRN_API cairn_status cairn_append_ndjson(cairn_store *store, const char *text, size_t length,
                                           cairn_on_result on_result, void *context,
                                           cairn_error *err);

/* The idempotency key, 64 hexadecimal characters and NUL, from run_id, step_id, logical_attempt_id,
 * event_type, plan_id and plan_version; nothing else of the event is read. */
CAIRN_API cairn_status cairn_event_key(const cairn_event *event, char key[65], cairn_error *err);

/* ---- reading ---- */

typedef struct cairn_record {
    cairn_event
        event;       /* every member filled, step_id, payload, actor and causation_id if present */
    int64_t run_seq; /* 0 for a fact outside the Run Events contract */
    int64_t sequence_number;
    const char *persisted_at;
    const char *json; /* the RunEventRecord */
    size_t json_length;
} cairn_record;

/* Called for each record; it lives during the call. false: stop. */
typedef bool (*cairn_on_record)(void *context, const cairn_record *record);
/* The events of a run after a sequence_number (0: from the first), oldest first, at most `limit`
 * (0: all). To go on later, remember the sequence_number of the last one. */
CAIRN_API cairn_status cairn_read_run(cairn_store *store, const char *run_id, int64_t after,
                                      size_t limit, cairn_on_record on_record, void *context,
                                      cairn_error *err);
/* The same for all runs of a tenant, in commit order. */
CAIRN_API cairn_status cairn_read_tenant(cairn_store *store, const char *tenant_id, int64_t after,
                                         size_t limit, cairn_on_record on_record, void *context,
                                         cairn_error *err);

typedef struct cairn_run {
    char tenant_id[256];
    char project_id[256];
    char environment_id[256];
    char plan_id[256];
    char plan_version[256];
    const char *status; /* PENDING APPROVED RUNNING PAUSED COMPLETED FAILED CANCELLED; static */
    bool is_final;
    bool inconsistent; /* an event that the transition tables forbid was recorded */
    int64_t run_seq;   /* of the newest event */
    int64_t completed_steps;
    int64_t failed_steps;
    int64_t open_steps;
    int64_t engine_attempt_id; /* the highest seen */
    char correlation_id[37];
    char started_at[32]; /* "": not yet, as below */
    char completed_at[32];
    char updated_at[32];
} cairn_run;

/* Where a run stands. */
CAIRN_API cairn_status cairn_find_run(cairn_store *store, const char *run_id, cairn_run *out,
                                      cairn_error *err);
/* The derived state with all steps, as a JSON object, at runSeq `at` (0: now), reduced from the
 * events. The caller ends *json with cairn_free(). */
CAIRN_API cairn_status cairn_run_state(cairn_store *store, const char *run_id, int64_t at,
                                       char **json, cairn_error *err);
CAIRN_API void cairn_free(void *memory); /* NULL is fine */

/* An EngineRunRef: how a run is named to whoever executes it. Members of another provider are NULL.
 * CAIRN_INVALID with RUN_REF_INVALID when one is missing that the provider needs, CAIRN_CONFLICT
 * with RUN_REF_MISMATCH when the ledger knows the run differently. */
typedef struct cairn_run_ref {
    const char *provider; /* "local", "temporal", "conductor" */
    const char *run_id;   /* the ledger's */
    const char *workflow_id;
    const char *temporal_namespace; /* temporal */
    const char *task_queue;         /* temporal; may be NULL */
    const char *conductor_url;      /* conductor */
} cairn_run_ref;

/* cairn_find_run(), cairn_run_state() and cairn_read_run() of the run that a reference names. */
CAIRN_API cairn_status cairn_find_run_ref(cairn_store *store, const cairn_run_ref *ref,
                                          cairn_run *out, cairn_error *err);
CAIRN_API cairn_status cairn_run_ref_state(cairn_store *store, const cairn_run_ref *ref, int64_t at,
                                           char **json, cairn_error *err);
CAIRN_API cairn_status cairn_read_run_ref(cairn_store *store, const cairn_run_ref *ref,
                                          int64_t after, size_t limit, cairn_on_record on_record,
                                          void *context, cairn_error *err);

typedef struct cairn_verification {
    bool damaged;
    int64_t events; /* checked */
    int64_t runs;
    /* the first bad row, as far as it can be named: */
    char tenant_id[256];
    int64_t sequence_number;
    char run_id[256];
    char what[400];
} cairn_verification;

/* Checks the hash chain and the numbering of every event; with `state` also replays every run and
 * compares it with what is stored. CAIRN_OK with damaged = true when something is wrong. */
CAIRN_API cairn_status cairn_verify(cairn_store *store, bool state, cairn_verification *out,
                                    cairn_error *err);

/* ---- producing ---- */

typedef struct cairn_producer cairn_producer;

/* A producer on `store`, which it borrows. `registry_url` is the path of a SQLite file of its own,
 * or postgresql://...: there each event's id is kept before it is sent. NULL keeps ids in memory
 * and replays them from the ledger. The caller ends it with cairn_producer_close(). */
CAIRN_API cairn_status cairn_producer_open(cairn_store *store, const char *registry_url,
                                           cairn_producer **out, cairn_error *err);
CAIRN_API void cairn_producer_close(cairn_producer *producer); /* NULL is fine */
/* Emits an event; its event_id and idempotency_key must be NULL. After CAIRN_RETRY or CAIRN_LIMIT
 * call again: the same id is sent. A transition that is not legal is not sent: CAIRN_CONFLICT with
 * reason INVALID_TRANSITION_DETECTED, now and for all later events of that step or run. */
CAIRN_API cairn_status cairn_producer_emit(cairn_producer *producer, const cairn_event *event,
                                           cairn_result *result, cairn_error *err);
/* After such a refusal of `event`: puts it on record with a StepFailed or RunFailed where that is
 * certainly legal; *emitted tells whether, and then *result is about that event. */
CAIRN_API cairn_status cairn_producer_report_invalid(cairn_producer *producer,
                                                     const cairn_event *event, bool *emitted,
                                                     cairn_result *result, cairn_error *err);
/* Forgets the ids and the state of a run that is over. */
CAIRN_API cairn_status cairn_producer_forget_run(cairn_producer *producer, const char *run_id,
                                                 cairn_error *err);

/* ---- the log ---- */

typedef enum cairn_log_level {
    CAIRN_LOG_DEBUG = 0,
    CAIRN_LOG_INFO = 1,
    CAIRN_LOG_WARN = 2,
    CAIRN_LOG_ERROR = 3,
    CAIRN_LOG_OFF = 4
} cairn_log_level;

/* Where the library logs, for the whole process. Without it: to standard error, as text, from
 * CAIRN_LOG_INFO upwards. */
CAIRN_API void cairn_log_setup(int fd, bool json, cairn_log_level at_least);

#ifdef __cplusplus
}
#endif

#endif
