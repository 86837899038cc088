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

/* Where plans come from. Borrows what it points to; never changed once it is in use. */
struct plan_source {
    str plans_folder;          /* the local store; STR_NONE: there is none */
    const struct guard *guard; /* NULL: no URI is allowed */
    const struct plan_endpoint *endpoints;
    size_t endpoint_count;
    int64_t timeout_ms; /* of one fetch; 0: PLAN_FETCH_TIMEOUT_MS */
    str ca_file;        /* as in client_request */
    plan_fetcher fetch; /* NULL: client_fetch() */
};

/* Fetches, verifies and parses; *out lives in the arena. Reasons, in the order of the checks:
 * PLAN_SCHEMA_VERSION_UNSUPPORTED, PLAN_REF_EXPIRED, PLAN_URI_NOT_ALLOWED (also when the host turns
 * out to have a forbidden address), PLAN_NOT_FOUND (local store), PLAN_FETCH_FAILED,
 * PLAN_TOO_LARGE, PLAN_SIZE_MISMATCH, PLAN_INTEGRITY_VALIDATION_FAILED (logged with both hashes;
 * the caller raises the alert), those of plan_parse(), PLAN_SCHEMA_VERSION_MISMATCH,
 * PLAN_ID_MISMATCH. ST_RETRY: the same call may work later. */
MUST_CHECK status plan_source_fetch(const struct plan_source *source, const struct plan_ref *ref,
                                    int64_t now_us, struct arena *arena, struct plan **out,
                                    struct error *err);

/* Puts a plan's bytes into a local store, making the folder if need be, as <folder>/<sha256>.json.
 * Durable when it returns. The same bytes again change nothing. */
MUST_CHECK status plan_store_put(str folder, str bytes, uint8_t sha256[SHA256_LEN],
                                 struct error *err);
