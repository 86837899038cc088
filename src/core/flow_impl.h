/* core/flow_impl.h: what flow.c and the files of deciding share. */
#pragma once

#include "base/json_out.h"
#include "core/flow.h"

/* ---- flow.c ---- */

void flow_push_ready(struct flow *flow, uint32_t step);
uint32_t flow_pop_ready(struct flow *flow);
const struct flow_timer *flow_next_timer(struct flow *flow); /* NULL: none */
/* The worker that holds the task is silent: another may have it, with a higher number. */
MUST_CHECK status flow_free_lease(struct flow *flow, uint32_t step, struct error *err);
uint64_t flow_random(const struct flow *flow, uint32_t step, int64_t attempt);
MUST_CHECK status flow_scope(struct flow *flow, struct liquid_scope *out, struct error *err);

/* ---- decide_events.c ---- */
/* Applies the event and adds it to the batch. One that the run's state forbids leaves the flow
 * stuck instead, with ST_OK. The event's subject is the step, if it has one. */
MUST_CHECK status flow_emit(const struct decision *d, const struct flow_event *item,
                            struct error *err);
MUST_CHECK status flow_emit_run(const struct decision *d, enum event_type type, int64_t attempt,
                                str payload, str actor, struct error *err);

/* The payload of an event, a JSON object: opened, filled with base/json_out.h, and closed, which moves
 * its text into the batch's arena and frees the buffer, also when it fails. */
void payload_open(struct buf *payload);
void payload_time(struct buf *payload, const char *name, int64_t us); /* FLOW_NEVER: no such member */
MUST_CHECK status payload_close(struct buf *payload, const struct decision *d, str *out,
                                struct error *err);

MUST_CHECK status flow_fail_step(const struct decision *d, uint32_t step, enum reason code,
                                 const char *message, str actor, struct error *err);
MUST_CHECK status flow_complete_step(const struct decision *d, uint32_t step, str output, str actor,
                                     struct error *err);
MUST_CHECK status flow_retry_at(const struct decision *d, uint32_t step, int64_t delay_ms,
                                const char *why, str actor, struct error *err);
/* Its executor is told once, when the batch is durable. */
MUST_CHECK status flow_ask_to_stop(const struct decision *d, uint32_t step, struct error *err);

/* ---- decide_signals.c ---- */
/* What the pending signals bring about now; a cancel is only noted, in flow->cancelling. */
MUST_CHECK status flow_decide_signals(const struct decision *d, struct error *err);
/* The payload of an event that a signal brought about. */
MUST_CHECK status flow_signal_payload(const struct decision *d, const struct flow_signal *s,
                                      str *out, struct error *err);
/* Nothing stays open: the launch ends with the run, other signals find it finished. */
MUST_CHECK status flow_end_all_signals(const struct decision *d, struct error *err);
