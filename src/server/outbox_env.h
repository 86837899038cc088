/* server/outbox_env.h: how effects are delivered, as the environment says it: the variables of
 * docs/outbox.md, CAIRN_SMTP_*, CAIRN_SOR_URL, CAIRN_WEBHOOK_SECRET, CAIRN_ALERT_URLS and
 * CAIRN_EFFECT_*. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "host/host.h"

/* Fills what concerns effects; texts live in the arena. Reason USAGE. */
MUST_CHECK status outbox_env(struct host_options *options, struct arena *arena, struct error *err);
/* CAIRN_ALERT_URLS alone; NULL: it is not set. */
MUST_CHECK status alert_urls_env(struct arena *arena, const struct outbox_sinks **out,
                                 struct error *err);
/* CAIRN_EFFECT_RETRIES alone; NULL: it is not set. */
MUST_CHECK status effect_retries_env(struct arena *arena, const struct effect_retry **out,
                                     struct error *err);
/* "TYPE=RETRIESxDELAY,...": a list that ends with a type of STR_NONE. */
MUST_CHECK status effect_retries_parse(str text, struct arena *arena, struct effect_retry **out,
                                       struct error *err);
