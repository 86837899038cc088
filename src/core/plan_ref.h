/* core/plan_ref.h: a PlanRef says where a plan is and what its bytes hash to. Pure.
 *
 * Everything that can be known without fetching is checked here, in the order of docs/plan-refs.md:
 * shape, schema version, expiry, location. The rest is engine/plan_source.h. */
#pragma once

#include <yyjson.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/str.h"
#include "core/url_guard.h"

#define PLAN_REF_BYTES_MAX ((size_t)32 * 1024) /* of its JSON: a longest URI, three longest ids */

struct plan_ref {
    str uri; /* https, http, s3, gs, azure, or plan:sha256:<hex> in the local store */
    uint8_t sha256[SHA256_LEN]; /* of the plan's bytes, as they are */
    str schema_version, plan_id, plan_version;
    int64_t size_bytes; /* -1: absent */
    int64_t expires_us; /* 0: absent */
};

/* Strict: an unknown, missing or malformed member is ST_INVALID with PLAN_REF_INVALID and a JSON
 * pointer; text that is no JSON has json_parse()'s reasons. The texts live in the arena. */
MUST_CHECK status plan_ref_parse(str json, struct arena *arena, struct plan_ref *out,
                                 struct error *err);
/* The same for a reference inside a larger document, whose texts must live as long as *out. */
MUST_CHECK status plan_ref_read(yyjson_val *val, struct plan_ref *out, struct error *err);
/* Appends the reference as JSON, members in the order above. */
void plan_ref_json(const struct plan_ref *ref, struct buf *out);

/* How the locations of one cloud scheme are reached. `base_url` is an http or https URL with
 * {bucket} and {key} for s3 and gs, {account}, {container} and {blob} for azure. */
struct plan_endpoint {
    str scheme;
    str base_url; /* "https://{bucket}.s3.eu-west-1.amazonaws.com/{key}" */
};
struct plan_policy {           /* where plans may come from */
    const struct guard *guard; /* NULL: no URI is allowed */
    const struct plan_endpoint *endpoints;
    size_t endpoint_count;
    bool local_plans; /* plan:sha256:<hex> names a plan in our own store */
};
struct plan_location {
    bool local;      /* in the local store, under ref->sha256 */
    str url;         /* else what to fetch, http or https, in the arena */
    bool exact;      /* for guard_address() */
    bool deprecated; /* the schema version has an end of support: a warning */
};
/* All that can be refused before a fetch, in this order: PLAN_SCHEMA_VERSION_UNSUPPORTED,
 * PLAN_REF_EXPIRED, PLAN_URI_NOT_ALLOWED. Looks nothing up. */
MUST_CHECK status plan_ref_check(const struct plan_ref *ref, int64_t now_us,
                                 const struct plan_policy *policy, struct arena *arena,
                                 struct plan_location *out, struct error *err);
