/* lib/producer.h: whoever emits events of a run: engine, worker, or a program with libcairn.
 *
 * producer_emit() takes an event without id and key and, in this order,
 * - derives the key and checks the envelope with event_validate(), as is done for everybody;
 * - asks run_guard(), layer 1, with the run's derived state. That is replayed from the ledger when
 *   the run is first met, so it survives restarts, and brought up to date before anything is
 *   refused, for other producers may have moved the run;
 * - takes the eventId from the registry, which has it durable by then;
 * - appends, and believes the answer: id, runSeq and persistedAt are the Append Authority's. Its id
 *   goes back into the registry, and the record is reduced into the derived state.
 * An event that is in the ledger already is a retry, not a transition: it passes the guard and
 * comes back as a duplicate.
 *
 * A refused event halts what it was about: its step, or the run with all its steps. Nothing more is
 * emitted for that in this producer's life, and each attempt says so (ST_CONFLICT, reason
 * INVALID_TRANSITION_DETECTED). While the run's state cannot be read, nothing is emitted for it.
 *
 * Retries: after ST_RETRY or ST_LIMIT call again with the same event; the same eventId is sent.
 * Threads: a producer belongs to one thread, and so does its registry. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "core/run.h"
#include "ledger/ledger.h"
#include "lib/registry.h"

enum {
    PRODUCER_RUNS_MAX = 1024, /* runs whose state is kept; any other is replayed when it returns */
};

struct producer;

/* Appends like ledger_append() of one request: ST_OK when the results are durable. */
typedef status (*producer_append)(void *context, struct append_request *request, struct error *err);
/* Reads like ledger_read_run(): some events of the run after a position, none at the end;
 * ST_NOT_FOUND: a new run. */
typedef status (*producer_load)(void *context, str run_id, int64_t after_seq, struct arena *arena,
                                struct event_page *page, struct error *err);

struct producer_options {
    struct registry *registry; /* borrowed, as are the contexts, until producer_close() */
    producer_append append;
    void *append_context;
    producer_load load;
    void *load_context;
    int64_t (*now_us)(void *clock); /* for emittedAt; NULL: the wall clock */
    void *clock;
};

/* The caller ends it with producer_close(). */
MUST_CHECK status producer_open(const struct producer_options *options, struct producer **out,
                                struct error *err);
void producer_close(struct producer *p); /* NULL is fine */

/* Emits item->event, whose id and key are not read. 0 in engine_attempt means that the runtime
 * knows no attempts, and becomes 1; any other number is sent as it is. 0 in emitted_ns becomes the
 * time now. *result is what the Append Authority said: refer to the event by its event_id. Reasons
 * of ST_CONFLICT: INVALID_TRANSITION_DETECTED, or what the Append Authority refused it for. */
MUST_CHECK status producer_emit(struct producer *p, const struct append_item *item,
                                struct append_result *result, struct error *err);
/* After producer_emit() refused `refused`: puts that on record if it is certainly legal. StepFailed
 * for a step that is RUNNING, else RunFailed for a run that may fail now, else nothing; nothing too
 * when the run's state cannot be read. *emitted says whether. Its payload is refusal_json(). Again
 * after a failure: it sends the same event. ST_NOT_FOUND when nothing was refused. */
MUST_CHECK status producer_report_invalid(struct producer *p, const struct append_item *refused,
                                          struct append_result *result, bool *emitted,
                                          struct error *err);
/* The state that this producer believes in, current if nobody else emits for the run. Lives until
 * the next call. */
MUST_CHECK status producer_state(struct producer *p, str run_id, const struct run **out,
                                 struct error *err);
/* Forgets a run that is over: its state, its halts, its registry entries. */
MUST_CHECK status producer_forget_run(struct producer *p, str run_id, struct error *err);

/* Completes an event that a C caller filled and passes it through event_validate(): engine attempt
 * 0 becomes 1, emitted_ns 0 becomes now_us, an event id of zeros a fresh UUID v4, the payload
 * compact JSON in the arena, the key the derived one. */
MUST_CHECK status producer_prepare(struct event *event, int64_t now_us, struct arena *arena,
                                   struct error *err);

/* Ready-made: the context is a struct writer, a struct ledger, a struct ledger. */
status producer_append_writer(void *writer, struct append_request *request, struct error *err);
status producer_append_ledger(void *ledger, struct append_request *request, struct error *err);
status producer_load_ledger(void *ledger, str run_id, int64_t after_seq, struct arena *arena,
                            struct event_page *page, struct error *err);
