/* ledger/dict.h: tenants, contexts and event types, which rows name by number. */
#pragma once

#include "base/arena.h"
#include "base/hash.h"
#include "base/map.h"
#include "core/event.h"
#include "ledger/ledger.h"

struct tenant {
    int64_t tenant_no, seq, persisted_us;
    str tenant_id;
    uuid tenant_uuid;
    uint8_t head[SHA256_LEN];
    int64_t sealed_id_lots; /* lots 0 .. sealed_id_lots-1 are in state_lot */
    struct id_lot *fresh;   /* ids of the lot that is being filled; NULL: read them back */
    bool listed;            /* among those that nodes_lock_tenants() is about to lock */
};
struct dict_number {
    int64_t number;
};
struct dict {
    struct map tenants, contexts,
        types; /* tenant_id; tenant_no|project|environment|plan|version; name */
    struct arena arena;
    struct tenant *last; /* the one found last, or NULL */
    int fresh_count;     /* tenants with `fresh` */
};

MUST_CHECK status dict_tenant(struct ledger *l, str tenant_id, bool create, struct tenant **out,
                              struct error *err);
MUST_CHECK status dict_context(struct ledger *l, int64_t tenant_no, const struct event *e,
                               int64_t *out, struct error *err);
MUST_CHECK status dict_type(struct ledger *l, const struct event *e, int64_t *out,
                            struct error *err);
void dict_init(struct dict *d);
void dict_clear(struct dict *d);
