/* adapters/temporal/events_test.h: synthetic histories for tests. */
#pragma once

#include "adapters/temporal/history.h"
#include "adapters/temporal/wire.h"

struct events { /* a page under construction */
    struct arena arena;
    Tp__History page;
    Tp__Event *list[256];
    int64_t next_id;
};
void events_init(struct events *e);
void events_release(struct events *e);
Tp__Event *events_add(struct events *e, int32_t type); /* without attributes */
void events_started(struct events *e, const char *input, const char *continued);
void events_task(struct events *e, bool suggest); /* scheduled, started, completed */
int64_t events_scheduled(struct events *e, const char *id);
void events_activity_started(struct events *e, int64_t scheduled_id, int32_t attempt);
void events_completed(struct events *e, int64_t scheduled_id, const char *result);
void events_failed(struct events *e, int64_t scheduled_id, Tp__Failure *failure);
void events_timed_out(struct events *e, int64_t scheduled_id, int32_t timeout_type);
void events_cancel_requested(struct events *e, int64_t scheduled_id);
void events_cancelled(struct events *e, int64_t scheduled_id);
void events_signal(struct events *e, const char *name, const char *json);
/* Folds what was added so far. */
void events_fold(struct events *e, struct history *out);
