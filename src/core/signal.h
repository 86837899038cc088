/* core/signal.h: what an operator or an outside system tells a run. Pure.
 *
 * A signal is idempotent on (tenantId, runId, signalId). It is recorded as a SignalReceived fact
 * before it has any effect, and ends with SignalProcessed or SignalProcessingFailed. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/uuid.h"

enum signal_kind {
    SIGNAL_LAUNCH, /* starts the run: made by the engine only */
    SIGNAL_PAUSE,
    SIGNAL_RESUME,
    SIGNAL_CANCEL,
    SIGNAL_RETRY_STEP,
    SIGNAL_APPROVE,
    SIGNAL_REJECT,
    SIGNAL_NAMED, /* any other name: for a `wait` step */
    SIGNAL_KIND_COUNT
};

struct signal {
    enum signal_kind kind;
    str name;      /* PAUSE ..., or the name a wait step waits for */
    str signal_id; /* the sender's; any id. STR_NONE: the engine makes one */
    str step_id;   /* RETRY_STEP; APPROVE and REJECT where several wait; else STR_NONE */
    str payload;   /* one JSON value, or STR_NONE */
    str reason;    /* why, in the sender's words, or STR_NONE */
};

/* A SignalRequest: {"signal":"PAUSE","signalId":"...","stepId":...,"payload":...,"reason":...}.
 * Strict: reasons SIGNAL_INVALID with the pointer. LAUNCH is refused. */
MUST_CHECK status signal_parse(str json, struct arena *arena, struct signal *out,
                               struct error *err);
/* Checks one that C code filled, and sets `kind` from `name`. */
MUST_CHECK status signal_validate(struct signal *signal, struct error *err);
enum signal_kind signal_kind_of(str name);
/* The UUID under which the ledger keeps it: the id itself, or one derived from run and id. */
uuid signal_uuid(str run_id, str signal_id);
/* The data of its SignalReceived fact. */
void signal_json(const struct signal *signal, uuid id, struct buf *out);
