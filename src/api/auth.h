/* api/auth.h: who asks, and what they may do.
 *
 * A caller proves itself with `Authorization: Bearer`, an API key or a JWT. Keys are looked up in a
 * cache that is filled through the readers and believed for KEY_CACHE_MS, so a revoked key ends
 * within that time on every node (at once on the node that revoked it). Secrets are compared in
 * constant time, stored as hashes, and never logged.
 *
 * An address that failed AUTH_FAILURES_MAX times within a window is over its limit: what fails from
 * there is RATE_LIMITED until the window ends, and what is good still passes, for others may share
 * the address. So that guessing costs us little, only AUTH_TRIES_MAX credentials a second that were
 * never seen to be good are looked at from such an address; the rest is RATE_LIMITED unseen.
 * Threads: the loop's. */
#pragma once

#include <uv.h>

#include "api/jwt.h"
#include "base/buf.h"
#include "core/role.h"
#include "ledger/access/access.h"
#include "ledger/bridge.h"
#include "ledger/readers.h"

enum {
    PRINCIPAL_NAME_MAX = 100,
    KEY_CACHE_MS = 5000,
    KEY_CACHE_MAX = 10000,
    KEY_ID_LEN = 16,
    KEY_SECRET_LEN = 43,
    KEY_TEXT_LEN = 6 + KEY_ID_LEN + 1 + KEY_SECRET_LEN,
    AUTH_FAILURES_MAX = 20,
    AUTH_FAILURE_WINDOW_S = 60,
    AUTH_TRIES_MAX = 10
};

struct principal {
    char name[PRINCIPAL_NAME_MAX + 1]; /* "key:abc...", "jwt:sub" (cut), "local", "anonymous" */
    char tenant[256];                  /* "*": all */
    unsigned roles;
    int64_t expires_us;  /* 0: never */
    int64_t key_version; /* of an API key as it is believed now; of a token the mark of the key that
                            signed it (see jwks_has()); else 0 */
};
/* May this caller see things of that tenant? */
bool principal_sees(const struct principal *p, str tenant_id);
/* Has it one of these roles? Admin has every role, an operator is a viewer too. */
bool principal_may(const struct principal *p, unsigned roles);

struct auth;
struct auth_options {
    bool open; /* no authentication: everybody is "anonymous", admin of all tenants */
    struct readers *readers;
    struct bridge *bridge; /* for last use; NULL: it is not remembered */
    uv_loop_t *loop;
    struct jwks *jwks;        /* or NULL; owned by auth from now on, also if it cannot be opened */
    struct jwt_policy policy; /* borrowed */
    struct metrics *metrics;
};
MUST_CHECK status auth_open(const struct auth_options *options, struct auth **out,
                            struct error *err);
/* Writes down last uses that are not yet: before the writer closes. NULL is fine. */
void auth_flush(struct auth *auth);
/* After the readers were halted; does not write any more. The loop must run afterwards. NULL is fine.
 */
void auth_close(struct auth *auth);
/* New keys for tokens (SIGHUP); auth owns them. */
void auth_set_jwks(struct auth *auth, struct jwks *jwks);
/* Is the key that signed a token, by its mark, still one that signs tokens? */
bool auth_signs(const struct auth *auth, int64_t mark);

/* One check: embed it in the request's memory. */
struct auth_check {
    struct principal principal; /* filled on ST_OK */
    status code; /* ST_OK; ST_INVALID: UNAUTHENTICATED or a JWT_ reason; ST_LIMIT: RATE_LIMITED;
                    ST_RETRY */
    struct error err;
    int64_t retry_after_s;
    void (*done)(struct auth_check *check);
    struct arena *arena; /* the caller's, for scratch within auth_check() */
    struct reader_job job; /* auth's own, as what follows */
    struct auth *auth;
    struct key_entry *entry;
    struct auth_check *next;
    int64_t now_us;
    char key_id[KEY_ID_LEN];
    uint8_t hash[SHA256_LEN];
    char remote[64];
};
/* `authorization` is the header's value, or STR_NONE; `remote` the address. true: answered at once
 * (check->code), `done` is not called. false: `done` comes later, on the loop. */
bool auth_check(struct auth *auth, struct auth_check *check, str authorization, str remote,
                int64_t now_us);

/* Makes a new key: fills key_id, the hash of its secret (the 43 characters) and the text to show
 * once. */
void auth_key_make(char key_id[KEY_ID_LEN], uint8_t hash[SHA256_LEN], char text[KEY_TEXT_LEN + 1]);
/* The cache forgets the key: it was changed here. */
void auth_forget(struct auth *auth, str key_id);
