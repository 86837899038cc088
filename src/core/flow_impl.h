/* core/flow_impl.h: what flow.c and decide.c share. */
#pragma once

#include "core/flow.h"

void flow_push_ready(struct flow *flow, uint32_t step);
uint32_t flow_pop_ready(struct flow *flow);
const struct flow_timer *flow_next_timer(struct flow *flow); /* NULL: none */
/* The worker that holds the task is silent: another may have it, with a higher number. */
MUST_CHECK status flow_free_lease(struct flow *flow, uint32_t step, struct error *err);
uint64_t flow_random(const struct flow *flow, uint32_t step, int64_t attempt);
MUST_CHECK status flow_scope(struct flow *flow, struct liquid_scope *out, struct error *err);
