/* outbox/impl.h: what the files of outbox/ share about deliveries. */
#pragma once

#include <yyjson.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mask.h"
#include "net/client.h"
#include "net/mail.h"
#include "outbox/deliver.h"

struct parcel { /* a delivery under way */
    struct deliverer *deliverer;
    struct delivery *delivery;
    struct parcel *next, *prev;
    struct arena arena;
    struct mask mask; /* the secrets that it carries */
    yyjson_val *payload;
    struct client_call *http; /* under way; or NULL */
    struct mail_call *mail;   /* likewise */
    const char *what;         /* "Webhook": how messages begin */
    const struct guard *guard;
    bool exact; /* see guard_address() */
    size_t accepted;
    str message_id;
    uint8_t key_hash[SHA256_LEN]; /* of a mail */
    /* The answer. */
    bool ended, ok;
    enum reason code;
    struct buf result;
    struct buf message;
};

/* The mails that were sent last, by the hash of their key: a ring. */
enum { SENT_MAILS_MAX = 4096 }; /* 128 KiB: an effect comes again within minutes */
struct sent_mails {
    uint8_t (*hashes)[SHA256_LEN]; /* SENT_MAILS_MAX of them; NULL until one was sent */
    size_t count, next;
};

struct deliverer {
    uv_loop_t *loop;
    uv_timer_t timer; /* answers what has ended */
    struct deliverer_options options;
    struct arena arena;         /* of the options */
    struct guard_rule sor_rule; /* sor_url, exactly */
    struct guard sor_guard;
    struct client *client; /* NULL until it is needed */
    struct mailer *mailer; /* likewise */
    struct sent_mails sent;
    struct parcel *under_way;
    struct parcel *ended, **ended_tail; /* in the order in which they did */
    struct delivery *starved;           /* there was no memory for a parcel; by `under_way` */
    bool closing;
};

/* ---- for the drivers: each begins, and ends the parcel now or later, once ---- */

void webhook_begin(struct parcel *p); /* WEBHOOK_CALL */
void api_begin(struct parcel *p);     /* API_CALL */
void email_begin(struct parcel *p);   /* SEND_EMAIL */
void sor_begin(struct parcel *p);     /* SOR_UPDATE */

/* Ends it as failed. The message is masked, and cut to DELIVERY_MESSAGE_MAX. Always false. */
bool parcel_fail(struct parcel *p, enum reason code, const char *fmt, ...) PRINTF_LIKE(3, 4);
bool parcel_no_memory(struct parcel *p); /* likewise */
/* Ends it as done; the result is in p->result. */
void parcel_done(struct parcel *p);
/* The value of a secret, in the arena, and masked from now on. false: it has failed. */
MUST_CHECK bool parcel_secret(struct parcel *p, str name, str *out);
/* Are all members of the payload among these (ended by NULL)? false: it has failed. */
MUST_CHECK bool parcel_members(struct parcel *p, const char *const *names);
/* A member that is a string; STR_NONE if it is absent and need not be there. false: it has failed.
 */
MUST_CHECK bool parcel_text(struct parcel *p, const char *name, bool required, str *out);
/* Appends a text with its secrets masked. `cut`: more may have followed, so that it may end in the
 * beginning of one. false: memory is out. */
MUST_CHECK bool parcel_put_masked(struct parcel *p, str text, bool cut, struct buf *out);

/* Sends the request, with what all have in common, and ends the parcel by its answer: `what`
 * failed: 503 Service Unavailable. */
void http_send(struct parcel *p, struct client_request *request, const char *what);
