/* tests/model/program.h: random programs for the ledger: what to append, in which batches, and what
 * happens in between.
 *
 * A program is a flat list of small operations, so that any subset of it is a program too and a
 * failing one can be shrunk by leaving operations out. Operations hold small numbers;
 * program_item() turns them into the texts and ids of one execution, which are different in each
 * execution because several share a ledger. */
#pragma once

#include "base/arena.h"
#include "ledger/ledger.h"

enum { PROGRAM_OPS_MAX = 64 };

enum op_kind {
    OP_EVENT,  /* append an event, or a fact */
    OP_REOPEN, /* close the ledger and open it again, perhaps with the other validation */
    OP_REBUILD,
    OP_ARCHIVE,    /* everything that is finished */
    OP_CHECKPOINT, /* of `run` */
    OP_COMPARE,    /* everything, now: also done at the end */
};

struct op {
    enum op_kind kind;
    bool joins_group, joins_request; /* with the event before it; a request is part of a group */
    bool atomic;                     /* of the request it opens */
    uint8_t node;                    /* PostgreSQL: which of two ledgers it happens to */
    uint8_t tenant, run, type, step, attempt, engine_attempt, plan, project, environment, payload,
        actor, correlation, signal;
    uint16_t id;                       /* of the event */
    uint16_t cause;                    /* 0: none named; else an id + 1 */
    int32_t clock_us;                  /* the clock moves by this much before the group */
    enum ledger_validation validation; /* for OP_REOPEN */
};

struct program {
    uint64_t seed;
    enum ledger_validation validation; /* at first */
    size_t count;
    struct op ops[PROGRAM_OPS_MAX];
};

void program_make(uint64_t seed, struct program *out);
/* The texts live in the arena. `salt` names the execution. */
void program_item(const struct op *op, int64_t salt, struct arena *arena, struct append_item *out);
str program_run_id(unsigned run, int64_t salt, struct arena *arena);
str program_tenant_id(unsigned tenant, int64_t salt, struct arena *arena);
void program_print(const struct program *p, struct buf *out);

enum { PROGRAM_TENANTS = 3, PROGRAM_RUNS = 4 };
