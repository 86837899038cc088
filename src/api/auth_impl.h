/* api/auth_impl.h: the parts of auth: the door (auth.c), what is known of keys and their use
 * (auth_keys.c), who failed too often (auth_failures.c). For them only. */
#pragma once


#include "api/auth.h"
#include "base/map.h"

enum {
    KEY_UNKNOWN_MAX = KEY_CACHE_MAX / 4, /* ids without a key: strangers' guesses must not push out
                                            the keys that are used */
    USES_MAX = 1024,                     /* gathered and not yet handed to the writer */
    USES_FLUSH_MS = 1000,
    USE_EVERY_S = 60, /* a key's last use is written down at most so often */
    FAILURE_SETS = 1024,
    FAILURE_WAYS = 4,
    FAILURE_ADDRESS_LEN = 17,
    TOKENS_SEEN = 4096,
};

/* ---- failures ---- */

struct failure {
    uint8_t address[FAILURE_ADDRESS_LEN]; /* all zero: free */
    int32_t count, tries;                 /* tries: within the second that began at tries_us */
    int64_t since_us, tries_us;
};
/* A fixed table: where it is full, the address with the fewest failures is forgotten. */
struct failures {
    uint64_t seed;
    struct failure sets[FAILURE_SETS][FAILURE_WAYS];
};
/* Seconds until the address is not over its limit any more; 0: it is not. */
int64_t failures_wait_s(struct failures *f, str remote, int64_t now_us);
/* Counts one. true: with that one it is over its limit. */
bool failures_add(struct failures *f, str remote, int64_t now_us);
/* May a credential that was never seen to be good be looked at now? Takes one of the address's
 * tries if it is over its limit. */
bool failures_may_try(struct failures *f, str remote, int64_t now_us);

/* ---- keys ---- */

struct key_entry {
    char key_id[KEY_ID_LEN];
    struct key_entry *newer, *older; /* of its list; not while it is being loaded */
    bool loading;
    bool forgotten;    /* while it was being loaded: not in the map any more */
    int64_t loaded_us; /* when the asking began, so that it is never believed too long */
    struct auth_check *waiting, **waiting_end;
    /* What the ledger says. Written by the reader's thread while it is being loaded, and read only
     * when it is not. */
    bool found;
    uint8_t hash[SHA256_LEN]; /* zero if it was not found */
    unsigned roles;
    int64_t expires_us, revoked_us, stored_use_us, version;
    char tenant[256];
    /* Its last use, and the last one that is written down or on its way. */
    int64_t used_us, noted_us;
};

struct key_list { /* newest first */
    struct key_entry *newest, *oldest;
    size_t count;
};

struct auth {
    uv_timer_t timer; /* first: the handle is its auth */
    struct auth_options options;
    struct map keys; /* by key_id: known, unknown, being loaded */
    struct key_list known, unknown;
    struct failures failures;
    uint8_t tokens_seen[TOKENS_SEEN][SHA256_LEN]; /* hashes of tokens that were good, at the place
                                                     that the hash says: the newest stays */
    size_t batches; /* of last uses, on their way to the ledger thread or back */
    size_t use_count;
    struct key_use uses[USES_MAX];
    size_t lookups; /* jobs at the readers */
    bool closing, timer_closed;
    struct metric *m_ok, *m_refused, *m_limited, *m_failed, *m_lookups;
};

/* auth.c: gives check->code, for a key that was found or not. */
void auth_judge(struct auth_check *check, struct key_entry *entry);
void auth_fail(struct auth_check *check, status code, const struct error *err);
/* For a credential that was never seen to be good: false, and the check is answered, if its address
 * is over its limit and has had its tries. */
bool auth_may_try(struct auth_check *check);
void auth_end(struct auth *auth); /* frees it, if nothing needs it any more */

/* auth_keys.c. True: answered at once. */
bool keys_check(struct auth_check *check);
void keys_used(struct auth *auth, struct key_entry *entry, int64_t now_us);
void keys_release(struct auth *auth);
