/* outbox/outbox.c: the outbox on a ledger of one's own: each call makes its changes (change.h) and
 * appends them as one group. For the command line and for tests; a server's changes are members of
 * the groups of its ledger thread (dispatch.c, api/effects.c). */
#include "outbox/outbox.h"

#include "base/limits.h"
#include "base/log.h"
#include "ledger/effects.h"
#include "outbox/outbox_impl.h"

enum {
    CLAIMS_MAX = 256,      /* of one call, so that they and their alerts fit into one group */
    CLAIM_PAGES_MAX = 100, /* of nothing that can be claimed, before we give up until later */
};
static_assert(CLAIMS_MAX * (3 + OUTBOX_SINKS_MAX) <= GROUP_EVENTS_MAX, "one group");

void outbox_tell(struct ledger *l, const struct outbox_sinks *sinks) {
    struct ledger_outbox *o = ledger_outbox(l);
    o->sinks = sinks;
    o->alert_count = sinks ? sinks->count : 0;
    o->alert = sinks ? outbox_alert_fact : NULL;
}

void outbox_retries(struct ledger *l, const struct effect_retry *own) {
    ledger_outbox(l)->retries = own;
}

struct outbox_settings outbox_settings(const struct ledger *l) {
    const struct ledger_outbox *o = ledger_outbox_of(l);
    return (struct outbox_settings){.sinks = o->sinks, .retries = o->retries};
}

static struct outbox_maker maker_of(struct ledger *l, str actor, struct arena *arena) {
    return (struct outbox_maker){
        .settings = outbox_settings(l), .actor = actor, .now_us = ledger_now_us(l), .arena = arena};
}

static status append_one(struct ledger *l, struct outbox_change *c, struct error *err) {
    struct append_request *all[] = {&c->request};
    status st = ledger_append(l, all, 1, err);
    return st == ST_OK ? outbox_outcome(c, NULL, err) : st;
}

/* ---- requesting ---- */

status outbox_request(struct ledger *l, const struct effect_request *given, struct arena *arena,
                      struct effect_info *out, bool *existing, struct error *err) {
    struct outbox_maker m = maker_of(l, given->actor, arena);
    struct outbox_change c;
    bool found = false;
    status st = ledger_usable(l, err);
    if (st == ST_OK) st = ledger_has_read(l, outbox_make_request(&m, l, given, &c, err));
    if (st == ST_OK) st = append_one(l, &c, err);
    if (st != ST_OK) return st;
    st = outbox_outcome(&c, &found, err);
    if (st == ST_OK && found) st = ledger_has_read(l, outbox_existing(l, &c, arena, out, err));
    if (st == ST_OK && !found) *out = c.info;
    if (st == ST_OK) *existing = found;
    return st;
}

/* ---- the end of an execution ---- */

status outbox_complete(struct ledger *l, const struct effect_info *claimed, str result, str actor,
                       struct error *err) {
    struct arena arena;
    struct outbox_change c;
    arena_init(&arena, 4096, SIZE_MAX);
    struct outbox_maker m = maker_of(l, actor, &arena);
    status st = outbox_make_completion(&m, claimed, result, &c, err);
    if (st == ST_OK) st = append_one(l, &c, err);
    arena_release(&arena);
    return st;
}

/* The end of the execution was there already: ours, told again by a caller that has made it anew,
 * or LEASE_EXPIRED, told by the worker that has gone on since. */
static status still_ours(struct ledger *l, const struct outbox_change *c, struct error *err) {
    struct effect_info now;
    int64_t execution = c->info.effect.executions;
    status st = outbox_find(l, c->info.tenant_id, c->info.effect.id, c->request.arena, &now, err);
    if (st != ST_OK || now.effect.executions == execution) return ledger_has_read(l, st);
    return error_at(err, REASON_EFFECT_MOVED, "",
                    "execution %lld had ended before, and the effect is %s in execution %lld",
                    (long long)execution, outbox_status_name(now.effect.status),
                    (long long)now.effect.executions);
}

static status append_end(struct ledger *l, struct outbox_change *c, struct error *err) {
    status st = append_one(l, c, err);
    bool told_before = st == ST_CONFLICT && c->request.results[0].code == ST_OK;
    return told_before ? still_ours(l, c, err) : st;
}

status outbox_fail(struct ledger *l, const struct effect_info *claimed, str code, str message,
                   str detail, str actor, bool *dead, struct error *err) {
    struct effect_failure failure = {code, message, detail};
    struct arena arena;
    struct outbox_change c;
    arena_init(&arena, 4096, SIZE_MAX);
    struct outbox_maker m = maker_of(l, actor, &arena);
    status st = outbox_make_failure(&m, claimed, &failure, &c, err);
    if (st == ST_OK) st = append_end(l, &c, err);
    if (st == ST_OK && dead) *dead = c.dead;
    arena_release(&arena);
    return st;
}

status outbox_release(struct ledger *l, const struct effect_info *claimed, str actor,
                      struct error *err) {
    struct arena arena;
    struct outbox_change c;
    arena_init(&arena, 4096, SIZE_MAX);
    struct outbox_maker m = maker_of(l, actor, &arena);
    status st = outbox_make_release(&m, claimed, &c, err);
    if (st == ST_OK) st = append_end(l, &c, err);
    arena_release(&arena);
    return st;
}

/* ---- several at once ---- */

struct claims {
    struct outbox_change *changes;
    struct append_request **requests;
    size_t count;
};

static status claims_init(struct claims *all, size_t room, struct arena *arena, struct error *err) {
    *all =
        (struct claims){.changes = arena_try(arena, (room + 1) * sizeof(*all->changes)),
                        .requests = arena_try(arena, (room + 1) * sizeof(struct append_request *))};
    return all->changes && all->requests ? ST_OK : outbox_no_memory(err);
}

static status not_appended(struct outbox_change *c, const struct error *why, struct error *err) {
    struct error *kept = arena_try(c->request.arena, sizeof(*kept));
    if (!kept) return outbox_no_memory(err);
    *kept = *why;
    for (size_t i = 0; i < c->request.count; i++)
        c->request.results[i] = (struct append_result){.code = why->code, .err = kept};
    return ST_OK;
}

/* All at once; if one of their runs is damaged, one by one: it must not hold up the others. */
static status append_all(struct ledger *l, struct claims *all, struct error *err) {
    for (size_t i = 0; i < all->count; i++)
        all->requests[i] = &all->changes[i].request;
    status st = ledger_append(l, all->requests, all->count, err);
    if (st != ST_CORRUPT) return st;
    struct error why = {0};
    st = ST_OK;
    for (size_t i = 0; i < all->count; i++) {
        if (st != ST_RETRY) st = ledger_append(l, &all->requests[i], 1, &why);
        if (st == ST_OK) continue;
        if (not_appended(&all->changes[i], &why, err) != ST_OK) return ST_RETRY;
        if (st == ST_CORRUPT)
            LOG(LOG_ERROR, "an effect is due and cannot be executed",
                LOG_S("runId", all->changes[i].info.run_id), LOG_S("error", str_c(why.msg)));
    }
    return ST_OK; /* what was appended must be told */
}

void outbox_log_expiry(const struct outbox_change *c) {
    const struct append_result *r = &c->request.results[0];
    char id[UUID_TEXT_LEN];
    bool expired = c->request.items[0].event.type == EVENT_EFFECT_FAILED;
    if (!expired || r->code != ST_OK || r->duplicate) return;
    uuid_format(c->info.effect.id, id);
    LOG(c->dead ? LOG_ERROR : LOG_WARN,
        c->dead ? "an effect is dead: its last worker did not come back"
                : "the worker of an effect did not come back",
        LOG_S("effectId", str_n(id, sizeof(id))), LOG_S("effectType", c->info.effect.type),
        LOG_S("runId", c->info.run_id));
}

/* ---- claiming ---- */

/* *any: some were claimed, or died. */
static status claim_page(struct ledger *l, const struct outbox_maker *m, struct outbox_look *look,
                         size_t limit, int64_t lease_ms, struct outbox_batch *out, bool *any,
                         struct error *err) {
    struct effect_info *due = NULL;
    struct claims all = {0};
    size_t count = 0;
    status st = ledger_has_read(l, outbox_due(l, look, limit, m->arena, &due, &count, err));
    if (st != ST_OK || count == 0) return st;
    st = claims_init(&all, count, m->arena, err);
    out->items = due; /* those that are claimed move up */
    for (size_t i = 0; i < count && st == ST_OK; i++)
        st = outbox_make_claim(m, &due[i], lease_ms, &all.changes[all.count++], err);
    if (st == ST_OK) st = append_all(l, &all, err);
    for (size_t i = 0; i < all.count && st == ST_OK; i++) {
        struct outbox_change *c = &all.changes[i];
        struct error ignored;
        outbox_log_expiry(c);
        if (outbox_outcome(c, NULL, &ignored) != ST_OK) continue;
        *any = true;
        if (!c->dead) out->items[out->count++] = c->info;
    }
    return st;
}

status outbox_claim(struct ledger *l, str worker, str runs, size_t limit, int64_t lease_ms,
                    struct arena *arena, struct outbox_batch *out, struct error *err) {
    struct outbox_maker m = maker_of(l, worker, arena);
    struct outbox_look look = {.clock_us = m.now_us, .runs = runs, .more = true};
    bool any = false;
    *out = (struct outbox_batch){0};
    if (limit > CLAIMS_MAX) limit = CLAIMS_MAX;
    status st = ledger_usable(l, err);
    if (st == ST_OK) st = ledger_has_read(l, outbox_latest(l, &look.latest_us, err));
    for (int i = 0; i < CLAIM_PAGES_MAX && st == ST_OK && look.more && !any; i++) {
        st = ledger_usable(l, err); /* a damaged run has cost us the connection */
        if (st == ST_OK) st = claim_page(l, &m, &look, limit, lease_ms, out, &any, err);
    }
    if (st == ST_OK) st = ledger_usable(l, err);
    if (st == ST_OK) st = ledger_has_read(l, outbox_next_due(l, look.clock_us, &out->next_us, err));
    out->more = look.more && any;
    return out->count > 0 ? ST_OK : st; /* what was claimed must be told: nobody else gets it */
}

status outbox_expire(struct ledger *l, str worker, size_t limit, size_t *count, struct error *err) {
    struct arena arena;
    struct effect_info *items = NULL;
    struct claims all = {0};
    *count = 0;
    arena_init(&arena, 4096, SIZE_MAX);
    struct outbox_maker m = maker_of(l, worker, &arena);
    if (limit > CLAIMS_MAX) limit = CLAIMS_MAX;
    status st = ledger_usable(l, err);
    if (st == ST_OK)
        st = ledger_has_read(l, outbox_processing(l, limit, &arena, &items, count, err));
    if (st == ST_OK) st = claims_init(&all, *count, &arena, err);
    for (size_t i = 0; i < *count && st == ST_OK; i++)
        st = outbox_make_expiry(&m, &items[i], &all.changes[all.count++], err);
    if (st == ST_OK && all.count > 0) st = append_all(l, &all, err);
    for (size_t i = 0; i < all.count && st == ST_OK; i++)
        outbox_log_expiry(&all.changes[i]);
    arena_release(&arena);
    return st;
}

/* ---- putting back ---- */

status outbox_requeue(struct ledger *l, str tenant_id, uuid effect_id, str actor, str reason,
                      const struct append_rider *riders, struct error *err) {
    struct arena arena;
    struct effect_info info;
    struct outbox_change c;
    arena_init(&arena, 4096, SIZE_MAX);
    struct outbox_maker m = maker_of(l, actor, &arena);
    status st = ledger_usable(l, err);
    if (st == ST_OK)
        st = ledger_has_read(l, outbox_find(l, tenant_id, effect_id, &arena, &info, err));
    if (st == ST_OK) st = outbox_make_requeue(&m, &info, reason, &c, err);
    if (st == ST_OK) {
        c.request.riders = riders;
        st = append_one(l, &c, err);
    }
    arena_release(&arena);
    return st;
}

/* Each with its riders, all in one group. */
static status requeue_all(struct ledger *l, struct requeue_lot *lot, const struct outbox_maker *m,
                          const struct effect_info *dead, size_t count, struct error *err) {
    struct claims all = {0};
    status st = claims_init(&all, count, m->arena, err);
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        struct outbox_change *c = &all.changes[all.count++];
        st = outbox_make_requeue(m, &dead[i], lot->reason, c, err);
        if (st == ST_OK && lot->riders)
            c->request.riders = lot->riders(lot->context, &dead[i], m->arena);
    }
    if (st == ST_OK && all.count > 0) st = append_all(l, &all, err);
    for (size_t i = 0; i < all.count && st == ST_OK; i++) {
        st = outbox_outcome(&all.changes[i], NULL, err);
        if (st == ST_OK) lot->done++;
        if (st == ST_CONFLICT) st = ST_OK; /* somebody else was faster */
    }
    return st;
}

status outbox_requeue_lot(struct ledger *l, struct requeue_lot *lot, struct error *err) {
    struct arena arena;
    struct effect_info *dead = NULL;
    size_t count = 0;
    int64_t next = 0;
    lot->done = 0;
    lot->filter.statuses = 1U << OUTBOX_DEAD_LETTER;
    arena_init(&arena, (size_t)16 * 1024, SIZE_MAX);
    struct outbox_maker m = maker_of(l, lot->actor, &arena);
    size_t limit = lot->limit < CLAIMS_MAX ? lot->limit : CLAIMS_MAX;
    status st = ledger_usable(l, err);
    if (st == ST_OK)
        st = ledger_has_read(
            l, outbox_list(l, &lot->filter, limit, &arena, &dead, &count, &next, err));
    if (st == ST_OK) st = requeue_all(l, lot, &m, dead, count, err);
    lot->filter.before = next;
    lot->more = next > 0;
    arena_release(&arena);
    return st;
}
