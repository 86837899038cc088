/* api/share.h: what one tenant may have under way, so that it cannot use up what all of them share:
 * half of each limit. Callers of every tenant are the operator's own, and not counted.
 * Threads: the loop's. */
#pragma once

#include "base/error.h"
#include "base/map.h"
#include "base/str.h"

enum share_kind { SHARE_QUERIES, SHARE_STREAMS, SHARE_WAITS, SHARE_POLLS, SHARE_KINDS };

struct share; /* one tenant's; gone when it has nothing under way */
struct shares {
    struct map tenants;
};
void shares_init(struct shares *shares);
void shares_release(struct shares *shares); /* when all were given back */
/* Takes one; *out is NULL for a caller of every tenant ("*"). ST_LIMIT with
 * TENANT_QUERIES_TOO_MANY, TENANT_STREAMS_TOO_MANY, TENANT_WAITS_TOO_MANY or
 * TENANT_POLLS_TOO_MANY; it is the caller's whether it says so, or does without. */
MUST_CHECK status share_take(struct shares *shares, str tenant, enum share_kind kind,
                             struct share **out, struct error *err);
void share_give(struct share *one, enum share_kind kind); /* NULL is fine */
