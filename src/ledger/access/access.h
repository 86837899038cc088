/* ledger/access/access.h: what is kept besides the events: API keys, receipts of repeated requests, the
 * audit trail, plans kept in the database.
 *
 * Everything that changes here is written in one transaction with its rider: the receipt that makes
 * a repeated request harmless, and the audit record that says who asked, from where and why. A
 * rider can also travel with an append (append_request.riders). Called from the body of a group's
 * member (struct ledger_member) that transaction is the group's. Threads: as in ledger.h: changes on
 * the ledger thread (writer_call.member), reads on any reader. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/str.h"
#include "ledger/ledger.h"

enum {
    RECEIPT_KEY_MAX = 255,
    RECEIPT_BODY_MAX = 64 * 1024,
    KEY_NAME_MAX = 100,
    AUDIT_REASON_MAX = 1000, /* bytes; a longer one is refused at the door */
    AUDIT_PAGE_MAX = 1000,
    KEYS_PAGE_MAX = 1000,
    API_KEYS_MAX = 10000, /* of one ledger */
};
#define RECEIPT_KEEP_US ((int64_t)24 * 3600 * 1000 * 1000)

/* ---- what travels with a change ---- */

struct receipt {                     /* of a request with an Idempotency-Key */
    str scope;                       /* who asked: "<length of the tenant> <tenant> <name>" */
    str key;                         /* as sent */
    uint8_t fingerprint[SHA256_LEN]; /* of method, target, type and body: another is refused */
    int http_status;
    str body;     /* the answer, to be repeated; STR_NONE: the request is carried out again, for its
                     effect is idempotent by itself */
    str location; /* or STR_NONE */
    int64_t created_us; /* filled by receipt_find() */
};

struct audit_entry {
    str tenant_id, actor, remote, request_id;
    str action;  /* "run.start", "run.signal", "plan.put", "key.create" ... */
    str target;  /* a run id, a key id, a hash */
    str outcome; /* "done", "refused" */
    str code;    /* why it was refused, or STR_NONE */
    str reason;  /* the caller's words, or STR_NONE */
    str project_id, environment_id, run_id;  /* of a run; or STR_NONE */
    int64_t engine_attempt, logical_attempt; /* 0: none */
    int64_t audit_no, at_us;                 /* filled when it is read */
};

/* struct append_rider (ledger.h) holds one of each, or NULL. A receipt that is there already stays
 * as it was: riders never refuse a commit. */

/* Writes riders alone, in a transaction of their own: a refusal, say. */
MUST_CHECK status access_ride(struct ledger *ledger, const struct append_rider *riders,
                              struct error *err);

/* ST_NOT_FOUND without one, or with one that is older than RECEIPT_KEEP_US. */
MUST_CHECK status receipt_find(struct ledger *reader, str scope, str key, struct arena *arena,
                               struct receipt *out, struct error *err);
/* All of them, oldest first: a request may leave one for each part of what it did. At most `limit`.
 */
MUST_CHECK status receipt_list(struct ledger *reader, str scope, str key, size_t limit,
                               struct arena *arena, struct receipt **out, size_t *count,
                               struct error *err);
/* Forgets receipts that are too old, at most `limit`; *more when there are others. */
MUST_CHECK status receipt_sweep(struct ledger *ledger, size_t limit, bool *more, struct error *err);

/* Newest first, before audit_no (0: from the newest). tenant_id STR_NONE: of every tenant. */
MUST_CHECK status audit_list(struct ledger *reader, str tenant_id, int64_t before_no, size_t limit,
                             struct arena *arena, struct audit_entry **out, size_t *count,
                             struct error *err);

/* ---- API keys ---- */

struct api_key {
    str key_id;    /* 16 characters of [a-z0-9] */
    str tenant_id; /* "*": every tenant */
    str name, created_by;
    unsigned roles;                                      /* bits; their meaning is the API's */
    uint8_t hash[SHA256_LEN];                            /* of the secret */
    int64_t created_us, expires_us, revoked_us, used_us; /* 0: never */
    int64_t version; /* 1, 2, 3 ...: rises with each change, but not with use */
};

/* API_KEYS_TOO_MANY (ST_LIMIT). */
MUST_CHECK status api_key_create(struct ledger *ledger, const struct api_key *key,
                                 const struct append_rider *riders, struct error *err);
/* Changes name, roles, expiry and revocation if the stored version is key->version, which then
 * rises: ST_CONFLICT with PRECONDITION_FAILED if not, ST_NOT_FOUND with KEY_NOT_FOUND. */
MUST_CHECK status api_key_update(struct ledger *ledger, const struct api_key *key,
                                 const struct append_rider *riders, struct error *err);
MUST_CHECK status api_key_find(struct ledger *reader, str key_id, struct arena *arena,
                               struct api_key *out, struct error *err);
/* By key_id, after `after` (STR_NONE: from the first). tenant_id STR_NONE: all. */
MUST_CHECK status api_key_list(struct ledger *reader, str tenant_id, str after, size_t limit,
                               struct arena *arena, struct api_key **out, size_t *count,
                               struct error *err);
struct key_use {
    char key_id[16];
    int64_t us;
};
/* Remembers when keys were last used: later times only. */
MUST_CHECK status api_keys_used(struct ledger *ledger, const struct key_use *uses, size_t count,
                                struct error *err);

/* ---- plans ---- */

/* Keeps a plan's bytes for a tenant under their SHA-256, which the caller computed. *existed: it
 * was there. */
MUST_CHECK status access_plan_put(struct ledger *ledger, str tenant_id,
                                  const uint8_t sha256[SHA256_LEN], str bytes,
                                  const struct append_rider *riders, bool *existed,
                                  struct error *err);
/* What that tenant put. ST_NOT_FOUND with PLAN_NOT_FOUND, also if only others did. */
MUST_CHECK status access_plan_get(struct ledger *reader, str tenant_id,
                                  const uint8_t sha256[SHA256_LEN], struct arena *arena, str *bytes,
                                  struct error *err);
/* Whoever put it: for callers who may see every tenant. */
MUST_CHECK status access_plan_get_any(struct ledger *reader, const uint8_t sha256[SHA256_LEN],
                                      struct arena *arena, str *bytes, struct error *err);
