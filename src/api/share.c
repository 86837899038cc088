/* api/share.c: the quota of each tenant. */
#include "api/share.h"

#include "api/api.h"
#include "api/hub.h"
#include "base/arena.h"

enum { WAITERS_MAX = 10000 }; /* long polls of each kind, of all tenants */

static const struct {
    enum reason reason;
    const char *what;
    size_t max;
} kinds[SHARE_KINDS] = {
    [SHARE_QUERIES] = {REASON_TENANT_QUERIES_TOO_MANY, "queries under way", API_QUEUE_MAX / 2},
    [SHARE_STREAMS] = {REASON_TENANT_STREAMS_TOO_MANY, "open streams", HUB_STREAMS_MAX / 2},
    [SHARE_WAITS] = {REASON_TENANT_WAITS_TOO_MANY, "waiting starts", WAITERS_MAX / 2},
    [SHARE_POLLS] = {REASON_TENANT_POLLS_TOO_MANY, "waiting polls", WAITERS_MAX / 2},
};

struct share {
    struct shares *all;
    size_t taken[SHARE_KINDS], total;
    size_t tenant_len;
    char tenant[];
};

void shares_init(struct shares *s) { map_init(&s->tenants); }

void shares_release(struct shares *s) { map_release(&s->tenants); }

static struct share *share_new(struct shares *s, str tenant) {
    struct share *one = mem_alloc(sizeof(*one) + tenant.len);
    if (!one) return NULL;
    one->all = s;
    one->tenant_len = tenant.len;
    memcpy(one->tenant, tenant.ptr, tenant.len);
    if (map_put(&s->tenants, str_n(one->tenant, tenant.len), one)) return one;
    mem_free(one);
    return NULL;
}

status share_take(struct shares *s, str tenant, enum share_kind kind, struct share **out,
                  struct error *err) {
    *out = NULL;
    if (str_eq(tenant, STR("*"))) return ST_OK;
    struct share *one = map_get(&s->tenants, tenant);
    if (one && one->taken[kind] >= kinds[kind].max)
        return error_at(err, kinds[kind].reason, "",
                        "the tenant has %zu %s, which is its share: try again later",
                        kinds[kind].max, kinds[kind].what);
    if (!one) one = share_new(s, tenant);
    if (!one) return error_set(err, ST_RETRY, "out of memory");
    one->taken[kind]++;
    one->total++;
    *out = one;
    return ST_OK;
}

void share_give(struct share *one, enum share_kind kind) {
    if (!one) return;
    ASSERT(one->taken[kind] > 0);
    one->taken[kind]--;
    if (--one->total > 0) return;
    (void)map_del(&one->all->tenants, str_n(one->tenant, one->tenant_len));
    mem_free(one);
}
