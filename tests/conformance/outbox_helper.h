/* tests/conformance/outbox_helper.h: an effect in few words, on a struct fixture. */
#pragma once

#include "conformance/fixture.h"
#include "outbox/outbox.h"

/* Requests an effect of run `run`, which must exist, with CANON's settings of its type. */
struct effect_info outbox_ask(struct fixture *c, const char *run, const char *type,
                              const char *payload);
/* Claims what is due, for 60 seconds. */
struct outbox_batch outbox_take(struct fixture *c, size_t limit);
/* Claims the one effect that is due, and fails it. false: that was its last execution. */
bool outbox_fail_once(struct fixture *c, const char *code, const char *message);
struct effect_info outbox_read(struct fixture *c, uuid id);
/* The effect's facts in order, by their names in CANON, joined by newlines. */
str outbox_facts(struct fixture *c, uuid id);
