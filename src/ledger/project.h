/* ledger/project.h: the rows that a group writes besides its events: queued, each at most once a
 * commit, and then sent together. */
#pragma once

#include "ledger/cache.h"
#include "ledger/ledger.h"

MUST_CHECK status project_open(struct ledger *l, struct error *err); /* the bulk statements */
struct state_row project_state(const struct run_head *head);
void project_run(struct ledger *l,
                 struct run_entry *e); /* queues its state_run row, if it changed */
/* Queues its state_step row. */
MUST_CHECK status project_step(struct ledger *l, const struct run_entry *e, uint32_t index,
                               struct error *err);
/* Queues its state_effect row: a new one, or what changed of it. */
MUST_CHECK status project_effect(struct ledger *l, const struct run_entry *e, uint32_t index,
                                 struct error *err);
size_t project_queued(struct ledger *l); /* rows that wait for the flush */
void project_clear(struct ledger *l);    /* forgets what is queued */
MUST_CHECK status project_flush(struct ledger *l, struct error *err);

MUST_CHECK status checkpoint_insert(struct ledger *l, const struct run_checkpoint *c,
                                    int64_t created_us, struct error *err);
