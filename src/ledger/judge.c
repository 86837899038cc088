/* ledger/judge.c: what becomes of each event of a group. append.c makes the group a transaction.
 *
 * Order of checks for an event: its run's tenant, then duplicates, then identity and causes, then
 * transitions (T17): what was persisted once is answered as a duplicate even if it would be illegal
 * now. */
#include "base/log.h"
#include "ledger/access/riders.h"
#include "ledger/cache.h"
#include "ledger/chain.h"
#include "ledger/claim.h"
#include "ledger/dict.h"
#include "ledger/effects.h"
#include "ledger/event_row.h"
#include "ledger/group.h"
#include "ledger/handle.h"
#include "ledger/id_lots.h"
#include "ledger/replay.h"
#include "ledger/seen.h"

/* ---- refusing ---- */

static status refuse(struct append_request *req, struct append_result *res,
                     const struct error *why) {
    res->code = why->code;
    res->err = arena_try(req->arena, sizeof(*why));
    if (!res->err) return ST_RETRY;
    *res->err = *why;
    return ST_OK;
}

/* ---- duplicates, causes, provider references ---- */

static const struct group_row *row_of_group(const struct group *g, int64_t pos) {
    for (size_t i = g->count; i > 0; i--) {
        if (g->rows[i - 1].row.pos == pos) return &g->rows[i - 1];
    }
    return NULL;
}

/* Of this group, or of the one before it whose commit is under way. */
static const struct group_row *pending_row(const struct group *g, int64_t pos) {
    const struct group_row *row = row_of_group(g, pos);
    if (row || !ledger_commits(g->l) || g == &g->l->under_way) return row;
    return row_of_group(&g->l->under_way, pos);
}

struct stored_ids {
    uuid event_id;
    uint8_t key[SHA256_LEN];
    int64_t run_seq, persisted_us;
};

#define IDS_AT(tier) "SELECT event_id, key, run_seq, persisted_us FROM " tier " WHERE pos = $1"

static status stored_ids(struct group *g, int64_t pos, struct stored_ids *out, struct error *err) {
    const struct group_row *p = pending_row(g, pos);
    if (p) {
        memcpy(out->event_id.b, p->row.event_id.ptr, 16);
        memcpy(out->key, p->row.key.ptr, SHA256_LEN);
        out->run_seq = p->row.run_seq;
        out->persisted_us = p->row.persisted_us;
        return ST_OK;
    }
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(g->l->db, BOTH_TIERS(IDS_AT), &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, pos);
    st = db_step(q, &row, err);
    if (st == ST_OK && row && db_blob(q, 0).len == 16 && db_blob(q, 1).len == SHA256_LEN) {
        memcpy(out->event_id.b, db_blob(q, 0).ptr, 16);
        memcpy(out->key, db_blob(q, 1).ptr, SHA256_LEN);
        out->run_seq = db_int(q, 2);
        out->persisted_us = db_int(q, 3);
    } else if (st == ST_OK) {
        st = error_at(err, REASON_LEDGER_DAMAGED, "", "event %lld of tenant number %lld is missing",
                      (long long)pos_seq(pos), (long long)pos_tenant(pos));
    }
    db_reset(q);
    return st;
}

/* Fills *res and *dup when the run holds the event's key already; refuses through *why. */
static status check_duplicate(struct group *g, const struct run_entry *entry, const struct event *e,
                              struct append_result *res, bool *dup, struct error *why,
                              struct error *err) {
    const struct seen_item *hit = seen_key(&entry->seen, key_prefix(e->key));
    struct stored_ids ids;
    if (hit) {
        status st = stored_ids(g, pos_of(entry->tenant_no, hit->seq), &ids, err);
        if (st != ST_OK) return st;
        *dup = memcmp(ids.key, e->key, SHA256_LEN) == 0;
        if (*dup) {
            *res = (struct append_result){.code = ST_OK,
                                          .duplicate = true,
                                          .event_id = ids.event_id,
                                          .run_seq = ids.run_seq,
                                          .seq = hit->seq,
                                          .persisted_us = ids.persisted_us};
            return ST_OK;
        }
        error_at(why, REASON_KEY_PREFIX_COLLISION, "/idempotencyKey",
                 "the first 8 bytes of this key equal those of another key of the run");
        return ST_OK;
    }
    if (seen_id(&entry->seen, id_prefix(e->event_id))) {
        error_at(why, REASON_EVENT_ID_REUSED, "/eventId",
                 "another event of the run has this eventId");
    }
    return ST_OK;
}

static status resolve_cause(struct group *g, const struct run_entry *entry, const struct tenant *t,
                            const struct append_item *item, int64_t *cause_seq, struct error *why,
                            struct error *err) {
    static const struct run empty = {0};
    const struct run *run = entry ? &entry->run : &empty;
    if (!item->cause) {
        *cause_seq = run_default_cause(run, &item->event);
        return ST_OK;
    }
    const struct seen_item *hit = entry ? seen_id(&entry->seen, id_prefix(*item->cause)) : NULL;
    if (hit) {
        *cause_seq = hit->seq;
        return ST_OK;
    }
    for (size_t i = g->count; i > 0; i--) { /* another run's event in this very group */
        const struct group_row *r = &g->rows[i - 1];
        if (r->tenant == t && memcmp(r->row.event_id.ptr, item->cause->b, 16) == 0) {
            *cause_seq = pos_seq(r->row.pos);
            return ST_OK;
        }
    }
    int64_t pos = 0;
    status st = t ? id_lots_find(g->l, t->tenant_no, *item->cause, &pos, err)
                  : error_set(err, ST_NOT_FOUND, "no tenant");
    if (st == ST_NOT_FOUND) {
        error_at(why, REASON_CAUSE_NOT_FOUND, "/causationId",
                 "the causing event is not in the tenant's ledger: a cause must be appended before "
                 "its effect");
        return ST_OK;
    }
    if (st == ST_OK) *cause_seq = pos_seq(pos);
    return st;
}

static bool same_ref(const struct provider_ref *a, const struct provider_ref *b) {
    return str_eq(a->provider, b->provider) && str_eq(a->workflow_id, b->workflow_id) &&
           str_eq(a->provider_run_id, b->provider_run_id);
}

/* *ref is set when the event adds a reference that is not there yet. */
static status check_provider(struct group *g, const struct run_entry *entry, const struct tenant *t,
                             const struct event *e, struct provider_ref **ref, struct error *why,
                             struct error *err) {
    struct ledger *l = g->l;
    if (e->type != EVENT_RUN_PROVIDER_LINKED) return ST_OK;
    struct provider_ref *r = arena_try(&l->scratch, sizeof(*r));
    if (!r) return ledger_no_memory(err);
    if (!provider_ref_parse(e->payload, &l->scratch, r)) {
        error_at(why, REASON_PROVIDER_LINK_INVALID, "/payload",
                 "RunProviderLinked needs the strings provider, workflowId and providerRunId in "
                 "its payload");
        return ST_OK;
    }
    int64_t holder = 0;
    for (size_t i = 0; i < g->count; i++) {
        const struct group_row *p = &g->rows[i];
        if (p->ref && p->tenant == t && same_ref(p->ref, r)) holder = p->row.run_no;
    }
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db,
                           "SELECT run_no FROM state_provider WHERE tenant_no = $1"
                           " AND provider = $2 AND workflow_id = $3 AND provider_run_id = $4",
                           &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, t ? t->tenant_no : 0);
    db_bind_text(q, 2, r->provider);
    db_bind_text(q, 3, r->workflow_id);
    db_bind_text(q, 4, r->provider_run_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && row) holder = db_int(q, 0);
    db_reset(q);
    if (st != ST_OK) return st;
    if (holder == 0)
        *ref = r;
    else if (!entry || holder != entry->run_no) {
        error_at(why, REASON_PROVIDER_REF_TAKEN, "/payload",
                 "that provider run belongs to another run");
    }
    return ST_OK;
}

/* ---- accepting ---- */

static status open_run(struct group *g, const struct append_item *item, struct tenant *t,
                       int64_t context_no, struct run_entry **out, struct error *err) {
    struct ledger *l = g->l;
    const struct event *e = &item->event;
    struct run_entry *entry = cache_add(&l->cache, e->run_id);
    if (!entry) return ledger_no_memory(err);
    *out = entry;
    ASSERT(l->next_run_no <= l->last_run_no);
    entry->run_no = l->next_run_no++;
    entry->tenant_no = t->tenant_no;
    entry->context_no = context_no;
    entry->opened_seq = t->seq + 1;
    entry->run_uuid = event_uuid_of(t->tenant_uuid, e->run_id);
    uuid fresh = uuid_v7(g->now_us / 1000);
    uuid_format(item->correlation ? *item->correlation : fresh, entry->correlation);
    entry->has_signal = item->signal != NULL;
    if (item->signal) uuid_format(*item->signal, entry->signal);
    return entry_texts(entry, e->project_id, e->environment_id, e->plan_id, e->plan_version, err);
}

/* Most events carry the plan that opened their run. */
static status context_of(struct ledger *l, const struct run_entry *entry, const struct tenant *t,
                         const struct event *e, int64_t *context_no, struct error *err) {
    if (entry && str_eq(entry->plan_id, e->plan_id) &&
        str_eq(entry->plan_version, e->plan_version)) {
        *context_no = entry->context_no;
        return ST_OK;
    }
    return dict_context(l, t->tenant_no, e, context_no, err);
}

static void fill_row(struct group_row *r, const struct append_item *item,
                     const struct event_record *rec, int64_t run_no, int64_t type_no,
                     int64_t context_no) {
    const struct event *e = &item->event;
    r->row = (struct event_row){.pos = pos_of(r->tenant->tenant_no, rec->seq),
                                .run_no = run_no,
                                .run_seq = rec->run_seq,
                                .type_no = type_no,
                                .context_no = context_no,
                                .engine_attempt = e->engine_attempt,
                                .logical_attempt = e->logical_attempt,
                                .emitted_ns = e->emitted_ns,
                                .emitted_digits = e->emitted_digits,
                                .persisted_us = rec->persisted_us,
                                .cause_seq = rec->cause_seq,
                                .step_index = r->undo.step_index,
                                .event_id = str_n(e->event_id.b, 16),
                                .key = str_n(e->key, SHA256_LEN),
                                .subject = e->subject,
                                .actor = item->actor,
                                .payload = e->payload};
}

static void seal_row(struct ledger *l, struct group_row *r, const struct append_item *item) {
    struct run_entry *entry = r->entry;
    char run_uuid[UUID_TEXT_LEN];
    struct run_identity id;
    if (r->opens) {
        uuid_format(entry->run_uuid, run_uuid);
        id = (struct run_identity){.tenant_id = r->tenant->tenant_id,
                                   .run_id = entry->run_id,
                                   .run_uuid = str_n(run_uuid, UUID_TEXT_LEN),
                                   .project_id = item->event.project_id,
                                   .environment_id = item->event.environment_id,
                                   .correlation_id = str_n(entry->correlation, UUID_TEXT_LEN)};
        if (entry->has_signal) id.signal_id = str_n(entry->signal, UUID_TEXT_LEN);
    }
    chain_hash(l->sha, r->tenant->head, &r->row, r->opens ? &id : NULL, r->hash);
    memcpy(r->tenant->head, r->hash, SHA256_LEN);
}

static status accept(struct group *g, struct append_item *item, struct run_entry *entry,
                     int64_t cause_seq, struct provider_ref *ref, struct append_result *res,
                     struct error *err) {
    struct ledger *l = g->l;
    const struct event *e = &item->event;
    struct group_row *r = &g->rows[g->count];
    *r = (struct group_row){.result = res, .type_name = e->type_name, .ref = ref, .opens = !entry};
    int64_t context_no = 0;
    int64_t type_no = 0;
    status st = dict_tenant(l, e->tenant_id, true, &r->tenant, err);
    if (st == ST_OK) st = context_of(l, entry, r->tenant, e, &context_no, err);
    if (st == ST_OK) st = dict_type(l, e, &type_no, err);
    if (st == ST_OK && !entry) st = open_run(g, item, r->tenant, context_no, &entry, err);
    if (st != ST_OK) return st;

    struct tenant *t = r->tenant;
    ASSERT(t->seq <
           SEQ_MASK - 1); /* a million million events: thirty years at a thousand a second */
    r->entry = entry;
    memcpy(r->old_head, t->head, SHA256_LEN);
    r->old_persisted_us = t->persisted_us;
    if (g->now_us > t->persisted_us)
        t->persisted_us = g->now_us; /* time never runs backwards within a tenant */
    struct event_record rec = {.event = *e,
                               .seq = t->seq + 1,
                               .persisted_us = t->persisted_us,
                               .cause_seq = cause_seq,
                               .run_seq =
                                   event_type_is_fact(e->type) ? 0 : entry->run.head.run_seq + 1};
    if (entry->run.head.last_seq >=
        rec.seq) { /* rows that the tenant's end does not know: somebody put them there */
        if (g->overlaps) return group_moved(err); /* perhaps another node, just now */
        return error_at(err, REASON_LEDGER_DAMAGED, "",
                        "run \"%.*s\" has events behind the newest of tenant \"%.*s\"",
                        STR_ARG(entry->run_id), STR_ARG(t->tenant_id));
    }
    r->is_effect = event_family_of(e) == FAMILY_EFFECT;
    if (r->is_effect) { /* effects_check() has let it pass */
        st = effects_apply(&entry->effects, &rec, &entry->arena, &r->effect, &r->old_effect, err);
        if (st != ST_OK) return st;
    }
    st = run_apply(&entry->run, &rec, &entry->arena, &r->bad, &r->undo, err);
    if (st != ST_OK && st != ST_CONFLICT) return st;
    r->illegal = st == ST_CONFLICT;
    r->old_moved_seq = entry->moved_seq;
    if (!r->is_effect) entry->moved_seq = rec.seq;
    struct seen_item seen = {key_prefix(e->key), id_prefix(e->event_id), rec.seq};
    if (!seen_add(&entry->seen, seen, &entry->arena)) return ledger_no_memory(err);
    t->seq = rec.seq;
    fill_row(r, item, &rec, entry->run_no, type_no, context_no);
    seal_row(l, r, item);
    *res = (struct append_result){.code = ST_OK,
                                  .event_id = e->event_id,
                                  .run_seq = rec.run_seq,
                                  .seq = rec.seq,
                                  .persisted_us = rec.persisted_us};
    g->count++;
    return ST_OK;
}

/* Takes back the group's newest row, for an atomic request that cannot be kept. */
static void take_back(struct group *g) {
    ASSERT(g->count > g->queued);
    ASSERT(g->count > 0);
    struct group_row *r = &g->rows[--g->count];
    run_undo(&r->entry->run, &r->undo);
    if (r->is_effect) effects_undo(&r->entry->effects, r->effect, &r->old_effect);
    r->entry->moved_seq = r->old_moved_seq;
    seen_pop(&r->entry->seen);
    memcpy(r->tenant->head, r->old_head, SHA256_LEN);
    r->tenant->persisted_us = r->old_persisted_us;
    r->tenant->seq--;
    if (r->opens) cache_drop(&g->l->cache, r->entry);
}

void group_undo(struct group *g) {
    g->queued = 0; /* the transaction is rolled back, and these with it */
    while (g->count > 0)
        take_back(g);
}

/* ---- event rows ---- */

static void queue_row(struct ledger *l, const struct group_row *r) {
    struct db_bulk *b = l->ins_event;
    const struct event_row *row = &r->row;
    const int64_t ints[] = {row->type_no,         row->context_no, row->engine_attempt,
                            row->logical_attempt, row->emitted_ns, row->emitted_digits,
                            row->persisted_us};
    db_bulk_int(b, row->pos);
    db_bulk_int(b, row->run_no);
    if (row->run_seq > 0)
        db_bulk_int(b, row->run_seq);
    else
        db_bulk_null(b);
    for (size_t i = 0; i < COUNT_OF(ints); i++)
        db_bulk_int(b, ints[i]);
    if (row->cause_seq > 0)
        db_bulk_int(b, row->cause_seq);
    else
        db_bulk_null(b);
    if (row->step_index >= 0)
        db_bulk_int(b, row->step_index);
    else
        db_bulk_null(b);
    db_bulk_blob(b, row->event_id);
    db_bulk_blob(b, row->key);
    db_bulk_text(b, row->subject);
    db_bulk_text(b, row->actor);
    db_bulk_text(b, row->payload);
    db_bulk_blob(b, str_n(r->hash, SHA256_LEN));
}

/* Event rows leave while the group is still being made, so that PostgreSQL stores the first while
 * we make the last. Only those that stay: an atomic request may take its own back until it is
 * through.
 */
static status send_ahead(struct group *g, struct error *err) {
    enum { AHEAD_ROWS = 32 };
    size_t waiting = g->count - g->queued;
    if (waiting == 0 || (g->queued > 0 && waiting < AHEAD_ROWS)) return ST_OK;
    if (!db_is_postgres(g->l->db)) return ST_OK; /* SQLite would only keep them */
    for (; g->queued < g->count; g->queued++)
        queue_row(g->l, &g->rows[g->queued]);
    return db_bulk_push(g->l->ins_event, g->items - g->count, err);
}

status group_send_rows(struct group *g, struct error *err) {
    for (; g->queued < g->count; g->queued++)
        queue_row(g->l, &g->rows[g->queued]);
    return db_bulk_flush(g->l->ins_event, err);
}

/* ---- one item ---- */

/* One bad text would fail the whole group in the database: it is refused alone, here. */
static status check_actor(str actor, struct error *why) {
    size_t bad = 0;
    if (actor.len > ACTOR_BYTES_MAX) {
        return error_at(why, REASON_FIELD_TOO_LONG, "/actor",
                        "the actor has %zu bytes, at most %d are allowed", actor.len,
                        ACTOR_BYTES_MAX);
    }
    if (!str_utf8(actor, &bad)) {
        return error_at(why, REASON_JSON_UTF8, "/actor", "the actor is not valid UTF-8 at byte %zu",
                        bad);
    }
    if (str_has(actor, 0))
        return error_at(why, REASON_JSON_NUL, "/actor", "the actor must not contain U+0000");
    return ST_OK;
}

static status check_tenant(const struct run_entry *entry, const struct tenant *t,
                           const struct append_item *item, struct error *why) {
    status st = check_actor(item->actor, why);
    if (st != ST_OK) return st;
    if (!entry || (t && entry->tenant_no == t->tenant_no)) return ST_OK;
    return error_at(why, REASON_RUN_ID_TAKEN, "/runId", "the run id \"%.*s\" is in use",
                    STR_ARG(item->event.run_id));
}

/* After duplicates: neither id is part of the key, so a retry that got one wrong is still the event
 * that is there. */
static status check_identity(const struct run_entry *entry, const struct event *e,
                             struct error *why) {
    if (!str_eq(entry->project_id, e->project_id)) {
        return error_at(why, REASON_RUN_IDENTITY_MISMATCH, "/projectId",
                        "the run belongs to project \"%.*s\"", STR_ARG(entry->project_id));
    }
    if (!str_eq(entry->environment_id, e->environment_id)) {
        return error_at(why, REASON_RUN_IDENTITY_MISMATCH, "/environmentId",
                        "the run belongs to environment \"%.*s\"", STR_ARG(entry->environment_id));
    }
    return ST_OK;
}

/* The engine reports what it does, and nobody else: a run that was cancelled by an event from
 * outside would go on in its node. */
static status check_owner(const struct append_request *req, const struct run_entry *entry,
                          const struct event *e, struct error *why) {
    if (!req->outside || !entry->leased || e->type == EVENT_UNKNOWN) return ST_OK;
    return error_at(why, REASON_RUN_ENGINE_OWNED, "/runId",
                    "an engine carries this run out and appends its events: send it a signal");
}

/* ST_OK: the item was accepted, found as a duplicate, or refused (res->code). Anything else ends
 * the group. */
static status process(struct group *g, struct append_request *req, size_t index, struct error *err);

/* Whoever is to be told of the newest row, which its run forbids: facts of that run, so that they
 * are stored with it or not at all. */
/* NOLINTNEXTLINE(misc-no-recursion): one level: no alert is raised by the facts of an alert */
static status tell_of_it(struct group *g, struct append_request *req,
                         const struct append_item *item, struct error *err) {
    struct ledger *l = g->l;
    const struct group_row *r = &g->rows[g->count - 1];
    const struct event *e = &item->event;
    const struct alert what = {.run_id = e->run_id,
                               .tenant_id = e->tenant_id,
                               .project_id = e->project_id,
                               .environment_id = e->environment_id,
                               .event_type = e->type_name,
                               .step_id = e->subject.len > 0 ? e->subject : STR_NONE,
                               .prior = str_c(r->bad.prior),
                               .attempted = str_c(r->bad.attempted),
                               .event_id = e->event_id,
                               .run_seq = r->row.run_seq,
                               .persisted_us = r->row.persisted_us};
    const struct event ids = {.run_id = e->run_id,
                              .tenant_id = e->tenant_id,
                              .project_id = e->project_id,
                              .environment_id = e->environment_id,
                              .plan_id = e->plan_id,
                              .plan_version = e->plan_version,
                              .engine_attempt = e->engine_attempt};
    for (size_t k = 0; k < l->outbox.alert_count; k++) {
        struct append_item *fact = arena_try(req->arena, sizeof(*fact));
        struct append_result *res = arena_try(req->arena, sizeof(*res));
        if (!fact || !res) return ledger_no_memory(err);
        status st = l->outbox.alert(l, &what, &ids, k, req->arena, fact, err);
        if (st != ST_OK) return st;
        fact->cause = &item->event.event_id;
        struct append_request one = {
            .items = fact, .count = 1, .results = res, .arena = req->arena};
        st = process(g, &one, 0, err);
        if (st != ST_OK) return st;
        if (res->code != ST_OK)
            LOG(LOG_ERROR, "an alert could not be requested", LOG_S("runId", e->run_id),
                LOG_S("error", str_c(res->err->msg)));
    }
    return ST_OK;
}

/* NOLINTNEXTLINE(misc-no-recursion, readability-function-cognitive-complexity): the checks in their order */
static status process(struct group *g, struct append_request *req, size_t index,
                      struct error *err) {
    struct ledger *l = g->l;
    struct append_item *item = &req->items[index];
    struct append_result *res = &req->results[index];
    const struct event *e = &item->event;
    struct error why = {0};
    struct tenant *t = NULL;
    *res = (struct append_result){0};

    status st = dict_tenant(l, e->tenant_id, false, &t, err);
    if (st != ST_OK && st != ST_NOT_FOUND) return st;
    struct run_entry *entry = cache_get(&l->cache, e->run_id);
    if (check_tenant(entry, t, item, &why) != ST_OK) return refuse(req, res, &why);
    if (entry) {
        bool dup = false;
        st = check_duplicate(g, entry, e, res, &dup, &why, err);
        if (st != ST_OK || dup) return st;
        if (why.code != ST_OK || check_identity(entry, e, &why) != ST_OK ||
            check_owner(req, entry, e, &why) != ST_OK)
            return refuse(req, res, &why);
    }
    if (event_family_of(e) == FAMILY_EFFECT) {
        bool dup = false;
        st = effects_check(g, entry, t, e, res, &dup, &why, err);
        if (st != ST_OK || dup) return st;
        if (why.code != ST_OK) return refuse(req, res, &why);
    }
    int64_t cause_seq = 0;
    struct provider_ref *ref = NULL;
    st = resolve_cause(g, entry, t, item, &cause_seq, &why, err);
    if (st == ST_OK && why.code == ST_OK) st = check_provider(g, entry, t, e, &ref, &why, err);
    if (st != ST_OK) return st;
    if (why.code != ST_OK) return refuse(req, res, &why);
    if (l->options.validation == LEDGER_REJECT) {
        static const struct run empty = {0};
        struct transition bad;
        if (!run_allows(entry ? &entry->run : &empty, e, &bad)) {
            st = reject_transition(l, e, &bad, &why, err);
            return st == ST_OK ? refuse(req, res, &why) : st;
        }
    }
    st = accept(g, item, entry, cause_seq, ref, res, err);
    if (st == ST_LIMIT) return refuse(req, res, err);
    if (st == ST_OK && l->outbox.alert && g->rows[g->count - 1].illegal)
        st = tell_of_it(g, req, item, err);
    return st;
}

/* An atomic request with a bad item: takes back its rows and gives every other item the same
 * answer. */
static status refuse_all(struct group *g, struct append_request *req, size_t bad,
                         size_t rows_before, struct error *err) {
    while (g->count > rows_before)
        take_back(g);
    struct error why = *req->results[bad].err;
    req->culprit = bad;
    error_wrap(&why, "item %zu of the batch", bad + 1);
    for (size_t i = 0; i < req->count; i++) {
        if (i == bad) continue;
        req->results[i] = (struct append_result){0};
        if (refuse(req, &req->results[i], &why) != ST_OK) return ledger_no_memory(err);
    }
    return ST_OK;
}

/* What the node decided must be decided on all that is stored. */
static void check_position(struct group *g, const struct append_request *req, struct error *why) {
    const struct run_claim *claim = req->claim;
    const struct run_entry *e = claim->known_seq > 0 && req->count > 0
                                    ? cache_get(&g->l->cache, req->items[0].event.run_id)
                                    : NULL;
    if (e && e->moved_seq > claim->known_seq)
        error_at(why, REASON_RUN_MOVED, "",
                 "the run is at sequence number %lld, not at %lld any more",
                 (long long)e->moved_seq, (long long)claim->known_seq);
}

/* *fenced: the node has lost its lease, or has not seen all of the run, and every item was refused
 * for that. */
static status check_claim(struct group *g, struct append_request *req, bool *fenced,
                          struct error *err) {
    struct error why = {0};
    const struct run_claim *claim = req->claim;
    bool known = claim->node_no == g->fence_node && claim->epoch == g->fence_epoch;
    ASSERT(req->atomic);
    status st = known ? ST_OK : claim_check(g->l, claim, &why, err);
    if (st == ST_OK && why.code == ST_OK) {
        g->fence_node = claim->node_no;
        g->fence_epoch = claim->epoch;
        check_position(g, req, &why);
    }
    *fenced = st == ST_OK && why.code != ST_OK;
    req->culprit = 0; /* it is about all of them */
    for (size_t i = 0; i < req->count && *fenced; i++) {
        req->results[i] = (struct append_result){0};
        if (refuse(req, &req->results[i], &why) != ST_OK) return ledger_no_memory(err);
    }
    return st;
}

/* A node that opens a run finds events of it that are not its own, come again: another node was
 * faster. */
static status check_opener(struct append_request *req, size_t i) {
    struct append_result *r = &req->results[i];
    struct error why = {0};
    if (!req->claim || req->claim->known_seq >= 0 || r->code != ST_OK || !r->duplicate ||
        uuid_eq(r->event_id, req->items[i].event.event_id))
        return ST_OK;
    error_at(&why, REASON_RUN_MOVED, "", "another node has opened the run");
    *r = (struct append_result){0};
    return refuse(req, r, &why);
}

static status process_items(struct group *g, struct append_request *req, struct error *err) {
    size_t rows_before = g->count;
    bool fenced = false;
    status claimed = req->claim ? check_claim(g, req, &fenced, err) : ST_OK;
    if (claimed != ST_OK || fenced) return claimed;
    for (size_t i = 0; i < req->count; i++) {
        status st = process(g, req, i, err);
        if (st == ST_OK) st = check_opener(req, i);
        if (st != ST_OK) return st == ST_RETRY && err->code == ST_OK ? ledger_no_memory(err) : st;
        if (req->atomic && req->results[i].code != ST_OK)
            return refuse_all(g, req, i, rows_before, err);
        if (!req->atomic) st = send_ahead(g, err);
        if (st != ST_OK) return st;
    }
    if (!req->claim || g->count == rows_before) return ST_OK; /* all duplicates: it was done then */
    struct group_row *first = &g->rows[rows_before];
    if (req->claim->act == CLAIM_OPEN) first->entry->leased = true;
    if (req->claim->act == CLAIM_CLOSE) first->entry->leased = false;
    return claim_queue(g->l, req->claim, first->row.run_no, err);
}

/* What travels with a request, now that its items are judged. */
static const struct append_rider *riders_of(const struct append_request *req) {
    bool holds = false; /* something of it is in the ledger now, or was before */
    bool stored = false;
    for (size_t i = 0; i < req->count; i++) {
        holds = holds || req->results[i].code == ST_OK;
        stored = stored || (req->results[i].code == ST_OK && !req->results[i].duplicate);
    }
    if (!holds) return NULL;
    return stored || !req->riders_again ? req->riders : req->riders_again;
}

status group_take(struct group *g, struct append_request *req, struct error *err) {
    status st = process_items(g, req, err);
    if (st == ST_OK && req->riders) st = riders_queue(g->l, riders_of(req), g->now_us, err);
    ASSERT(!req->checkpoint || req->count == 1);
    if (req->checkpoint && st == ST_OK && req->results[0].code == ST_OK &&
        !req->results[0].duplicate)
        g->rows[g->count - 1].checkpoint = req->checkpoint;
    return st == ST_OK ? send_ahead(g, err) : st;
}
