/* cli/outbox_env.h: how effects are delivered, as the environment says it:
 *
 *   CAIRN_SMTP_URL              smtp://host:port or smtps://host:port
 *   CAIRN_SMTP_FROM             the sender of mails that name none
 *   CAIRN_SMTP_USER             and
 *   CAIRN_SMTP_PASSWORD_SECRET  the name of the secret with its password
 *   CAIRN_SMTP_PLAIN            1: also without TLS
 *   CAIRN_SOR_URL               where SOR_UPDATE proposes its writes
 *   CAIRN_WEBHOOK_SECRET        the name of the secret that signs webhooks
 *   CAIRN_EFFECT_RETRIES        API_CALL=5x1000,FAX=2x500: retries x base delay in ms, of new
 * effects CAIRN_EFFECT_TIMEOUT        milliseconds of one delivery CAIRN_EFFECT_BATCHES        how
 * many batches are delivered at a time */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "lib/host.h"

/* Fills what concerns effects; texts live in the arena. Reason USAGE. */
MUST_CHECK status outbox_env(struct host_options *options, struct arena *arena, struct error *err);
/* "TYPE=RETRIESxDELAY,...": a list that ends with a type of STR_NONE. */
MUST_CHECK status effect_retries_parse(str text, struct arena *arena, struct effect_retry **out,
                                       struct error *err);
