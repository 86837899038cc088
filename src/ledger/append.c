/* ledger/append.c: one group of requests becomes one transaction.
 *
 * State is kept in memory (cache.c) exactly as the database has it, so a group reads nothing for
 * runs that are warm. Every failure therefore drops all caches and rolls back; the next group
 * starts from what is stored. On PostgreSQL other nodes may have written: the tenant's row is
 * locked first, and if it moved, that tenant's cached runs are dropped.
 *
 * Commits that overlap (docs/decisions/0009-overlapping-commits.md). Where the database can commit
 * one transaction while the next begins, the ledger thread takes a group in three steps:
 * ledger_stage() decides about its events in memory and sends their rows, while the commit before
 * is still under way on the other connection; ledger_settle() tells how that one ended;
 * ledger_finish() takes the tenant's turn, writes what changes rows that are there already, and
 * sends the commit. What was decided while a commit was under way stands on what that commit will
 * have made true, so it is thrown away when the commit fails, when another node has written to the
 * tenant in between, and when anything had to be asked of the database that the commit could
 * change. Then the group is done again, alone. */
#include "base/log.h"
#include "base/time.h"
#include "ledger/cache.h"
#include "ledger/dict.h"
#include "ledger/group.h"
#include "ledger/handle.h"
#include "ledger/id_lots.h"
#include "ledger/project.h"

enum {
    GROUP_TRIES_MAX = 5,   /* nodes may pick one dictionary number; each loses once per row */
    RUNS_OVERLAP_MAX = 16, /* replayed for a group that is made while a commit is under way */
    /* How long no group overlaps with a commit: */
    PAUSE_GROUPS = 8,          /* after one that could not be, */
    PAUSE_MOVED_MS = 1000,     /* after another node has written to the tenant, */
    PAUSE_UNOPENED_MS = 60000, /* and when the database gives us no second connection */
};

/* ---- writing ---- */

static status queue_run(struct ledger *l, const struct run_entry *e, struct error *err) {
    char *run_uuid = arena_try(&l->scratch, UUID_TEXT_LEN);
    if (!run_uuid) return ledger_no_memory(err);
    uuid_format(e->run_uuid, run_uuid);
    struct db_bulk *b = l->ins_run;
    db_bulk_int(b, e->run_no);
    db_bulk_int(b, e->tenant_no);
    db_bulk_text(b, e->run_id);
    db_bulk_text(b, str_n(run_uuid, UUID_TEXT_LEN));
    db_bulk_int(b, e->context_no);
    db_bulk_text(b, str_n(e->correlation, UUID_TEXT_LEN));
    db_bulk_text(b, e->has_signal ? str_n(e->signal, UUID_TEXT_LEN) : STR_NONE);
    db_bulk_int(b, e->opened_seq);
    return ST_OK;
}

static status insert_ref(struct ledger *l, const struct group_row *r, struct error *err) {
    struct db_stmt *ins = NULL;
    status st = db_prepare(
        l->db,
        "INSERT INTO state_provider(tenant_no, provider, workflow_id, provider_run_id, run_no, seq)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        &ins, err);
    if (st != ST_OK) return st;
    db_bind_int(ins, 1, r->tenant->tenant_no);
    db_bind_text(ins, 2, r->ref->provider);
    db_bind_text(ins, 3, r->ref->workflow_id);
    db_bind_text(ins, 4, r->ref->provider_run_id);
    db_bind_int(ins, 5, r->row.run_no);
    db_bind_int(ins, 6, pos_seq(r->row.pos));
    int64_t changed = 0;
    st = db_run(ins, &changed, err);
    db_reset(ins);
    return st;
}

static void queue_tenant(struct ledger *l, const struct tenant *t) {
    struct db_bulk *b = l->upd_tenant;
    db_bulk_int(b, t->tenant_no);
    db_bulk_int(b, t->seq);
    db_bulk_blob(b, str_n(t->head, SHA256_LEN));
    db_bulk_int(b, t->persisted_us);
}

/* Should the commit fail, the cache is dropped. Not after the commit: by then the next group may
 * have added steps. */
static void mark_written(struct group *g) {
    for (size_t i = 0; i < g->count; i++) {
        g->rows[i].entry->stored = true;
        g->rows[i].entry->stored_steps = g->rows[i].entry->run.step_count;
        g->rows[i].entry->stored_effects = g->rows[i].entry->effects.count;
    }
}

/* What must be true of a group before its commit, whatever it was made of: every tenant's rows go
 * on where the one before them ends, in number and in hash, and end where the tenant now does. */
static void group_check(const struct group *g) {
    ASSERT(g->count <= g->items);
    ASSERT(g->queued == g->count); /* no row is left behind */
    for (size_t i = 0; i < g->count; i++) {
        const struct group_row *r = &g->rows[i];
        const struct group_row *before = i > 0 ? &g->rows[i - 1] : NULL;
        int64_t seq = pos_seq(r->row.pos);
        ASSERT(pos_tenant(r->row.pos) == r->tenant->tenant_no);
        ASSERT(seq <= r->tenant->seq && seq <= r->entry->run.head.last_seq);
        ASSERT(r->row.persisted_us >= r->old_persisted_us);
        ASSERT(r->result->code == ST_OK && r->result->seq == seq);
        if (!before || before->tenant != r->tenant) continue;
        ASSERT(seq == pos_seq(before->row.pos) + 1);
        ASSERT(memcmp(r->old_head, before->hash, SHA256_LEN) == 0);
    }
    if (g->count == 0) return;
    const struct group_row *last = &g->rows[g->count - 1];
    ASSERT(pos_seq(last->row.pos) == last->tenant->seq);
    ASSERT(memcmp(last->hash, last->tenant->head, SHA256_LEN) == 0);
}

/* A run or step is written where its newest event stands, so each row goes out once. */
static status write_group(struct group *g, struct error *err) {
    struct ledger *l = g->l;
    group_check(g);
    status st = ST_OK;
    for (size_t i = 0; i < g->count && st == ST_OK; i++) {
        struct group_row *r = &g->rows[i];
        int64_t seq = pos_seq(r->row.pos);
        if (r->opens) st = queue_run(l, r->entry, err);
        if (r->entry->run.head.last_seq == seq) project_run(l, r->entry);
        int64_t step = r->undo.step_index;
        if (st == ST_OK && step >= 0 && r->entry->run.steps[step].last_seq == seq) {
            st = project_step(l, r->entry, (uint32_t)step, err);
        }
        if (st == ST_OK && r->is_effect && r->entry->effects.items[r->effect].last_seq == seq)
            st = project_effect(l, r->entry, r->effect, err);
        if (r->illegal) {
            db_bulk_int(l->ins_alert, r->row.run_no);
            db_bulk_int(l->ins_alert, seq);
            db_bulk_text(l->ins_alert, str_c(r->bad.prior));
            db_bulk_text(l->ins_alert, str_c(r->bad.attempted));
        }
        if (st == ST_OK && r->ref) st = insert_ref(l, r, err);
        if (st == ST_OK && r->checkpoint)
            st = checkpoint_insert(l, r->checkpoint, r->row.persisted_us, err);
        if (r->tenant->seq == seq) queue_tenant(l, r->tenant); /* the end of its chain */
    }
    if (st == ST_OK) st = project_flush(l, err);
    if (st == ST_OK) st = rejections_forget(g, err);
    mark_written(g);
    return st;
}

static void mark_stored(struct group *g) {
    for (size_t i = 0; i < g->count; i++) {
        cache_weigh(&g->l->cache, g->rows[i].entry);
        struct tenant *t = g->rows[i].tenant;
        id_lots_note(g->l, t, pos_seq(g->rows[i].row.pos), g->rows[i].result->event_id);
        if (t->seq >> ID_LOT_BITS > t->sealed_id_lots) g->l->id_lot_is_full = true;
    }
}

/* The alert as an operator's log shows it, with every field of the contract. */
static void log_alerts(const struct group *g) {
    for (size_t i = 0; i < g->count; i++) {
        const struct group_row *r = &g->rows[i];
        char id[UUID_TEXT_LEN];
        char time[TIME_TEXT_MAX];
        if (!r->illegal) continue;
        uuid_format(r->result->event_id, id);
        size_t n = time_format_us(r->row.persisted_us, time);
        LOG(LOG_WARN, "invalid transition recorded", LOG_S("code", STR("INVALID_TRANSITION")),
            LOG_S("runId", r->entry->run_id), LOG_S("tenantId", r->tenant->tenant_id),
            LOG_S("projectId", r->entry->project_id),
            LOG_S("environmentId", r->entry->environment_id),
            LOG_S("eventId", str_n(id, sizeof(id))), LOG_S("eventType", r->type_name),
            LOG_N("runSeq", r->row.run_seq), LOG_S("persistedAt", str_n(time, n)),
            LOG_S("priorState", str_c(r->bad.prior)),
            LOG_S("attemptedState", str_c(r->bad.attempted)));
    }
}

/* A run that ends and has no effect under way has no more events to come: its place in the cache is
 * for one that has. But one that effects are requested on after its end stays, as long as others do
 * not need the room: the next request would have to replay all of it. */
static void drop_finished(struct group *g) {
    for (size_t i = 0; i < g->count; i++) {
        struct group_row *r = &g->rows[i];
        const struct run_head *head = &r->entry->run.head;
        if (run_is_final(head->status) && r->entry->effects.open == 0 && !r->is_effect &&
            head->last_seq == pos_seq(r->row.pos))
            cache_drop(&g->l->cache, r->entry);
    }
}

/* ---- the group ---- */

/* Both at once: seldom has another node written, and then the runs are loaded again. */
static status lock_and_load(struct ledger *l, struct append_request *const *reqs, size_t n,
                            struct error *err) {
    struct tenant *last = NULL;
    bool moved = false;
    status st = nodes_lock_tenants(l, reqs, n, &last, err);
    if (st == ST_OK) st = runs_load(l, reqs, n, SIZE_MAX, err);
    if (st == ST_OK) st = nodes_locked(l, last, &moved, err);
    return st == ST_OK && moved ? runs_load(l, reqs, n, SIZE_MAX, err) : st;
}

status group_moved(struct error *err) {
    return error_set(err, ST_CONFLICT, "another node has written to the tenant");
}

/* Of runs that are not in memory, which the commit under way therefore did not write to. If there
 * are many to replay, those who wait for that commit would wait for them, too. */
static status load_overlapping(struct ledger *l, struct append_request *const *reqs, size_t n,
                               struct error *err) {
    db_ask_early(l->db, true);
    status st = runs_load(l, reqs, n, RUNS_OVERLAP_MAX, err);
    db_ask_early(l->db, false);
    return st;
}

static size_t count_items(struct append_request *const *reqs, size_t n) {
    size_t items = 0;
    for (size_t i = 0; i < n; i++)
        items += reqs[i]->count;
    ASSERT(items <= GROUP_EVENTS_MAX);
    return items;
}

static size_t count_members(struct append_request *const *reqs, size_t n) {
    size_t members = 0;
    for (size_t i = 0; i < n; i++) {
        ASSERT(!reqs[i]->member || (reqs[i]->count == 0 && !reqs[i]->riders));
        if (reqs[i]->member) members++;
    }
    return members;
}

/* Runs a member's body where its place among the requests is. */
static status run_member(struct group *g, struct ledger_member *m, struct error *err) {
    struct ledger *l = g->l;
    struct error why = {0};
    if (m->left_out) return ST_OK;
    int64_t changed = db_changed_rows(l->db);
    size_t queued = project_queued(l);
    ledger_move(l, LEDGER_IN_MEMBER);
    m->code = m->body(l, m->context, &why);
    ledger_move(l, LEDGER_MAKING);
    if (ledger_refused(m->code, &why)) { /* and nothing stays of it */
        ASSERT(db_changed_rows(l->db) == changed);
        ASSERT(project_queued(l) == queued);
        *m->err = why;
        return ST_OK;
    }
    if (m->code == ST_OK) return ST_OK;
    g->culprit = m;
    *err = why;
    return m->code;
}

/* Begins, decides about every event and sends their rows. `overlaps`: the tenant, if a commit is
 * under way. */
static status group_make(struct ledger *l, struct append_request *const *reqs, size_t n,
                         struct tenant *overlaps, struct group *g, struct error *err) {
    size_t items = count_items(reqs, n);
    arena_reset(&l->scratch);
    bool records = l->outbox.alert && l->options.validation == LEDGER_RECORD;
    size_t rows =
        records ? items * (1 + l->outbox.alert_count) : items; /* with what tells of them */
    *g = (struct group){.l = l, .items = rows, .now_us = ledger_now_us(l), .overlaps = overlaps};
    g->rows = arena_try_raw(&l->scratch, rows * sizeof(*g->rows));
    if (!g->rows) return ledger_no_memory(err);
    status st = nodes_reserve_run_numbers(l, (int64_t)items, err);
    if (st == ST_OK) st = db_begin(l->db, true, err);
    if (st == ST_OK)
        st = overlaps ? load_overlapping(l, reqs, n, err) : lock_and_load(l, reqs, n, err);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = reqs[i]->member ? run_member(g, reqs[i]->member, err) : group_take(g, reqs[i], err);
    return st == ST_OK ? group_send_rows(g, err) : st;
}

static void group_stored(struct group *g) {
    mark_stored(g);
    log_alerts(g);
    drop_finished(g);
}

/* Nothing in memory can be trusted after a failure: not even whether the commit happened. */
static void forget(struct ledger *l) {
    db_rollback(l->db);
    cache_clear(&l->cache);
    dict_clear(&l->dict);
    project_clear(l);
}

/* ---- all at once ---- */

/* *culprit: the member that failed it, or NULL. */
static status append_once(struct ledger *l, struct append_request *const *reqs, size_t n,
                          struct ledger_member **culprit, struct error *err) {
    struct group g;
    status st = group_make(l, reqs, n, NULL, &g, err);
    if (st == ST_OK) st = write_group(&g, err);
    if (st == ST_OK) st = db_commit(l->db, err);
    if (st == ST_OK) group_stored(&g);
    *culprit = g.culprit;
    return st;
}

/* Trying again would not help the member, but the others do not have to suffer for it. */
static bool fails_alone(struct ledger_member *culprit, status st, const struct error *err) {
    if (!culprit || (st != ST_INVALID && st != ST_NOT_FOUND && st != ST_LIMIT)) return false;
    culprit->left_out = true;
    culprit->code = st;
    *culprit->err = *err;
    return true;
}

/* The events are durable; their ids are found by scanning until the lot is sealed. */
static void seal_id_lots(struct ledger *l) {
    struct error err = {0};
    if (id_lots_seal(l, &err) == ST_OK) return;
    LOG(LOG_WARN, "could not seal a lot of event ids", LOG_S("error", str_c(err.msg)));
    forget(l);
    ledger_break(l);
}

status ledger_append(struct ledger *l, struct append_request *const *reqs, size_t n,
                     struct error *err) {
    ASSERT(l->writer);
    ASSERT(l->state == LEDGER_IDLE || l->state == LEDGER_BROKEN);
    if (count_items(reqs, n) + count_members(reqs, n) == 0) return ST_OK;
    status st = ST_OK;
    for (int tries = 0; tries < GROUP_TRIES_MAX;) {
        struct ledger_member *culprit = NULL;
        st = ledger_usable(l, err);
        if (st != ST_OK) return st;
        *err = (struct error){0};
        ledger_move(l, LEDGER_MAKING);
        st = append_once(l, reqs, n, &culprit, err);
        ledger_move(l, LEDGER_IDLE);
        if (st == ST_OK) {
            cache_trim(&l->cache);
            if (l->id_lot_is_full) seal_id_lots(l);
            return ST_OK;
        }
        forget(l);
        if (fails_alone(culprit, st, err)) continue;
        tries++;
        if (st == ST_CONFLICT && !db_is_postgres(l->db)) {
            /* Nobody else writes to this file, so no row of ours can be there already. */
            st = err->code = ST_CORRUPT;
            err->reason = REASON_LEDGER_DAMAGED;
        }
        if (st != ST_CONFLICT) break; /* a clash with another node: try again with fresh numbers */
    }
    ledger_break(l);
    if (st == ST_CONFLICT) err->code = ST_RETRY;
    return error_wrap(err, "could not append");
}

/* ---- in three steps ---- */

bool ledger_overlaps(const struct ledger *l) { return l->db && db_can_overlap(l->db); }

/* The one tenant of all events, if it is known; else NULL. Of two tenants' rows, two nodes could
 * each hold what the other waits for. */
static struct tenant *only_tenant(struct ledger *l, struct append_request *const *reqs, size_t n) {
    str id = STR_NONE;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < reqs[i]->count; k++) {
            str next = reqs[i]->items[k].event.tenant_id;
            if (id.ptr && !str_eq(id, next)) return NULL;
            id = next;
        }
    }
    return id.ptr ? map_get(&l->dict.tenants, id) : NULL;
}

/* What a group needs that cannot be had while a commit is under way. */
static struct tenant *may_overlap(struct ledger *l, struct append_request *const *reqs, size_t n) {
    if (!l->options.always_overlap && l->pause_groups > 0) {
        l->pause_groups--;
        return NULL;
    }
    if (!l->options.always_overlap && clock_mono_ns() < l->pause_until_ns) return NULL;
    if (l->cache.bytes > RUN_CACHE_BYTES_MAX) return NULL;
    if (l->last_run_no - l->next_run_no + 1 < (int64_t)count_items(reqs, n)) return NULL;
    for (size_t i = 0; i < n; i++)
        if (reqs[i]->claim) return NULL;
    return only_tenant(l, reqs, n);
}

static void pause_for(struct ledger *l, int64_t ms) {
    l->pause_until_ns = clock_mono_ns() + ms * 1000000;
}

/* Once, whoever asks first; ledger_settle() hands the outcome on. */
static void settle_now(struct ledger *l) {
    static const enum ledger_state without[LEDGER_STATES] = {
        [LEDGER_COMMITTING] = LEDGER_IDLE,
        [LEDGER_OVERLAPPING] = LEDGER_MAKING,
        [LEDGER_OVERLAP_STAGED] = LEDGER_STAGED,
    };
    if (!ledger_commits(l)) return;
    l->outcome_why = (struct error){0};
    l->outcome = db_commit_wait(l->db, &l->outcome_why);
    if (l->outcome == ST_OK) {
        group_stored(&l->under_way);
        ledger_move(l, without[l->state]);
        return;
    }
    forget(l);
    ledger_break(l); /* and with it the group that stands on it */
}

/* The staged group has failed. */
static status unstage(struct ledger *l, struct error *err) {
    settle_now(l); /* before its runs go */
    forget(l);
    ledger_break(l);
    if (l->staged.overlaps)
        LOG(LOG_WARN, "a group failed while a commit was under way, and is done again alone",
            LOG_S("error", str_c(err->msg)));
    return error_wrap(err, "could not append");
}

/* It only was not the time for the staged group: memory is put back as it was before. */
static void take_off_stage(struct ledger *l) {
    project_clear(l);
    db_rollback(l->db);
    group_undo(&l->staged);
    l->pause_groups = PAUSE_GROUPS;
    ledger_move(l, ledger_commits(l) ? LEDGER_COMMITTING : LEDGER_IDLE);
}

status ledger_stage(struct ledger *l, struct append_request *const *reqs, size_t n,
                    struct error *err) {
    ASSERT(l->writer);
    ASSERT(!ledger_has_staged(l));
    ASSERT(count_members(reqs, n) == 0);
    struct tenant *overlaps = ledger_commits(l) ? may_overlap(l, reqs, n) : NULL;
    if (count_items(reqs, n) == 0 || l->id_lot_is_full || (ledger_commits(l) && !overlaps))
        return error_set(err, ST_CONFLICT, "this group is to go alone");
    status st = ledger_commits(l) ? ST_OK : ledger_usable(l, err);
    if (st != ST_OK) return st;
    *err = (struct error){0};
    if (!overlaps) cache_trim(&l->cache);
    ledger_move(l, overlaps ? LEDGER_OVERLAPPING : LEDGER_MAKING);
    st = group_make(l, reqs, n, overlaps, &l->staged, err);
    if (st == ST_OK) {
        ledger_move(l, overlaps ? LEDGER_OVERLAP_STAGED : LEDGER_STAGED);
        return ST_OK;
    }
    bool begun = db_in_transaction(l->db);
    if (!overlaps || (begun && st != ST_CONFLICT && !db_was_too_early(l->db)))
        return unstage(l, err);
    if (!begun) {
        pause_for(l, PAUSE_UNOPENED_MS);
        LOG(LOG_WARN, "no second connection to the database: no commits overlap for a minute",
            LOG_S("error", str_c(err->msg)));
    }
    if (st == ST_CONFLICT) pause_for(l, PAUSE_MOVED_MS);
    take_off_stage(l);
    return ST_CONFLICT;
}

status ledger_settle(struct ledger *l, struct error *err) {
    settle_now(l);
    status st = l->outcome;
    l->outcome = ST_OK;
    if (st == ST_OK) return ST_OK;
    *err = l->outcome_why;
    return error_wrap(err, "could not append");
}

/* The tenant's turn, unless another node had it since the commit that the group overlapped with:
 * then its sequence number differs, or the rows have met that node's rows on their way. */
static status take_turn(struct ledger *l, const struct group *g, struct error *err) {
    bool same = true;
    status st = nodes_take_turn(l, g->overlaps, g->overlaps->seq - (int64_t)g->count, &same, err);
    return st == ST_OK && !same ? group_moved(err) : st;
}

status ledger_finish(struct ledger *l, struct error *err) {
    ASSERT(!ledger_commits(l));
    struct group *g = &l->staged;
    *err = (struct error){0};
    if (!ledger_has_staged(l)) return error_set(err, ST_CONFLICT, "no group is staged any more");
    status st = g->overlaps ? take_turn(l, g, err) : ST_OK;
    if (st == ST_CONFLICT) {
        take_off_stage(l);
        pause_for(l, PAUSE_MOVED_MS);
        return st;
    }
    if (st == ST_OK) st = write_group(g, err);
    if (st == ST_OK) st = db_commit_send(l->db, err);
    if (st != ST_OK) return unstage(l, err);
    struct arena free = l->kept;
    l->kept = l->scratch; /* its rows live there */
    l->scratch = free;
    l->under_way = *g;
    ledger_move(l, LEDGER_COMMITTING);
    return ST_OK;
}
