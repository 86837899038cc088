/* engine/plan_source.h: from a PlanRef to a plan that may be run.
 *
 * The checks come in one order, each with its own code, and nothing of a plan is looked at before
 * its bytes have the hash that the reference promised: schema version, expiry, location, fetch,
 * size, hash, plan language, ids. docs/plan-refs.md tells it to users.
 * Threads: any, and several at once. It waits for disk or network: not on the loop. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/str.h"
#include "core/plan.h"
#include "core/plan_ref.h"
#include "core/url_guard.h"
#include "net/client.h"

enum {
    PLAN_FETCH_TIMEOUT_MS = 60000,
    PLAN_FETCH_CONNECT_TIMEOUT_MS = 10000,
    PLAN_FETCH_STALL_MS = 15000, /* without a byte */
};

typedef status (*plan_fetcher)(const struct client_request *request, struct arena *arena,
                               struct client_response *out, struct error *err);

/* A plan that is kept elsewhere for a tenant, by its hash: ST_NOT_FOUND if it is not, and if only
 * others have it. On the caller's thread, with a reader of that thread. */
struct ledger;
typedef status (*plan_stored)(struct ledger *reader, str tenant_id, const uint8_t sha256[SHA256_LEN],
                              struct arena *arena, str *bytes, struct error *err);

/* Where plans come from. Borrows what it points to; never changed once it is in use. */
struct plan_source {
    str plans_folder;          /* the operator's plans, for every tenant; STR_NONE: there is none */
    const struct guard *guard; /* NULL: no URI is allowed */
    const struct plan_endpoint *endpoints;
    size_t endpoint_count;
    int64_t timeout_ms; /* of one fetch; 0: PLAN_FETCH_TIMEOUT_MS */
    str ca_file;        /* as in client_request */
    plan_fetcher fetch; /* NULL: client_fetch() */
    plan_stored stored; /* asked for plan:sha256: references that are not in the folder; or NULL */
};

struct plan_wanted { /* which plan, for whom, and when; borrowed */
    str tenant_id;
    const struct plan_ref *ref;
    int64_t now_us;
    struct ledger *reader; /* for `stored`; NULL: that is not asked */
};
/* Fetches for that tenant, verifies and parses; *out lives in the arena. *open (may be NULL): it
 * comes from the folder, so every tenant may have it. Reasons, in the order of the checks:
 * PLAN_SCHEMA_VERSION_UNSUPPORTED, PLAN_REF_EXPIRED, PLAN_URI_NOT_ALLOWED (also when the host turns
 * out to have a forbidden address), PLAN_NOT_FOUND (local store), PLAN_FETCH_FAILED,
 * PLAN_TOO_LARGE, PLAN_SIZE_MISMATCH, PLAN_INTEGRITY_VALIDATION_FAILED (logged with both hashes;
 * the caller raises the alert), those of plan_parse(), PLAN_SCHEMA_VERSION_MISMATCH,
 * PLAN_ID_MISMATCH. ST_RETRY: the same call may work later. */
MUST_CHECK status plan_source_fetch(const struct plan_source *source,
                                    const struct plan_wanted *wanted, struct arena *arena,
                                    bool *open, struct plan **out, struct error *err);

/* The same in parts, for those who must not wait: ask; fetch request.request by other means and
 * judge what came, or find the local plan; read it. */
struct plan_door { /* what the request's may_connect() needs to know */
    const struct guard *guard;
    bool exact;
};
struct plan_request {
    bool local; /* no request: see plan_source_local() */
    struct client_request request;
    struct plan_door door; /* request.context is this one: *out must stay where it is */
};
/* What can be refused without looking further (plan_ref_check() with the source's policy). */
MUST_CHECK status plan_source_check(const struct plan_source *source, const struct plan_ref *ref,
                                    int64_t now_us, struct arena *arena, struct plan_location *out,
                                    struct error *err);
/* Every check that comes before the fetch. The URL lives in the arena. */
MUST_CHECK status plan_source_ask(const struct plan_source *source, const struct plan_ref *ref,
                                  int64_t now_us, struct arena *arena, struct plan_request *out,
                                  struct error *err);
/* What came, or why nothing did (`st` and `why`). *bytes are the response's. */
MUST_CHECK status plan_source_judge(const struct plan_ref *ref, status st,
                                    const struct client_response *response, const struct error *why,
                                    str *bytes, struct error *err);
struct plan_local {
    str path, bytes; /* of bytes STR_NONE: they are in the file `path` */
    bool open;       /* from the folder: every tenant may have it */
};
/* A local plan: the folder first, which costs no query. A file of more than `here_max` bytes is not
 * read here: plan_source_file() does it. *out lives in the arena. */
MUST_CHECK status plan_source_local(const struct plan_source *source,
                                    const struct plan_wanted *wanted, size_t here_max,
                                    struct arena *arena, struct plan_local *out, struct error *err);
MUST_CHECK status plan_source_file(const struct plan_ref *ref, str path, struct arena *arena,
                                   str *bytes, struct error *err);
/* Every check that comes after the fetch. */
MUST_CHECK status plan_source_read(const struct plan_ref *ref, str bytes, struct arena *arena,
                                   struct plan **out, struct error *err);

/* Puts a plan's bytes into a local store, making the folder if need be, as <folder>/<sha256>.json.
 * Durable when it returns. The same bytes again change nothing. */
MUST_CHECK status plan_store_put(str folder, str bytes, uint8_t sha256[SHA256_LEN],
                                 struct error *err);
