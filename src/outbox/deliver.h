/* outbox/deliver.h: the integrations: one attempt to carry out one effect outside.
 *
 * Nobody but the outbox worker (dispatch.h) calls this: an effect is requested in the ledger, and
 * only what was claimed there is delivered. Every delivery carries the effect's idempotency key to
 * its receiver, so that one which comes twice can be told.
 *
 * WEBHOOK_CALL and API_CALL send an HTTP request, SEND_EMAIL a mail by SMTP, SOR_UPDATE proposes a
 * write to the system of record. Single-threaded: all calls and all answers on the loop's thread.
 */
#pragma once

#include <uv.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"
#include "base/uuid.h"
#include "core/url_guard.h"

struct deliverer;

struct deliverer_options {     /* strings are copied */
    const struct guard *guard; /* which URLs may be called; NULL: none. Borrowed */
    /* The value of a secret for an environment, in the arena; reasons as secret.h has them. */
    status (*secret)(void *context, str environment_id, str name, struct arena *arena, str *out,
                     struct error *err);
    void *secret_context;
    str smtp_url;             /* smtp://host:port or smtps://host:port; STR_NONE: no mail is sent */
    str smtp_from;            /* the sender where a payload names none */
    str smtp_user;            /* STR_NONE: without authentication */
    str smtp_password_secret; /* the name of the secret with its password */
    bool smtp_plain;    /* allows a server without TLS; else STARTTLS is required with smtp:// */
    str ca_file;        /* certificates that servers are believed by; STR_NONE: the system's */
    str sor_url;        /* where SOR_UPDATE proposes its writes; STR_NONE: nowhere */
    str webhook_secret; /* the name of the secret that signs WEBHOOK_CALL; STR_NONE: unsigned */
    int64_t timeout_ms; /* of one delivery; 0: DELIVERY_TIMEOUT_MS */
};

enum {
    DELIVERY_TIMEOUT_MS = 30000,
    DELIVERY_RESULT_MAX = 64 * 1024, /* bytes of a result; a longer answer is cut and says so */
    DELIVERY_MESSAGE_MAX = 1024,     /* of an error */
};

/* One attempt. The caller owns it, and all it points to, until `done` returned. */
struct delivery {
    str type; /* SEND_EMAIL, API_CALL, WEBHOOK_CALL, SOR_UPDATE; any other is a failure */
    str spec; /* the payload, a JSON object */
    str key;  /* as receivers see it; empty: refused with KEY_MISSING, nothing is called */
    str tenant_id, environment_id, run_id;
    uuid effect_id, correlation;
    int64_t now_us; /* the time that the receiver is told */
    /* The one answer. ok: `result` is one JSON value. Else a stable code (EFFECT_TYPE_UNKNOWN,
     * PAYLOAD_INVALID, KEY_MISSING, URL_NOT_ALLOWED, SECRET_NOT_FOUND and the others of secret(),
     * SECRET_INVALID, HTTP_STATUS, HTTP_FAILED, TIMEOUT, SMTP_TIMEOUT, SMTP_REJECTED, SMTP_FAILED,
     * SMTP_NOT_CONFIGURED, SOR_NOT_CONFIGURED, CANCELLED) and a message without secrets. Borrowed
     * until it returns. Never called before delivery_start() returned. */
    void (*done)(struct delivery *delivery, bool ok, str result, enum reason code, str message);
    void *context;   /* the caller's */
    void *under_way; /* the deliverer's */
};

/* The caller owns *out. ST_INVALID when one of the URLs cannot be used (SMTP_URL_INVALID, and those
 * of url_guard.h). */
MUST_CHECK status deliverer_open(uv_loop_t *loop, const struct deliverer_options *options,
                                 struct deliverer **out, struct error *err);
/* Begins; `done` follows, once. */
void delivery_start(struct deliverer *deliverer, struct delivery *delivery);
/* Answers all that is under way, CANCELLED if it has not ended by itself, and gives all back;
 * `done` may call it. The last memory is freed by callbacks: run the loop until its handles are
 * closed, a second or so if a mail was under way. NULL is fine. */
void deliverer_close(struct deliverer *deliverer);
