/* Loading runs into the cache: identity from one look-up for the whole group, state from a replay
 * of each run's events. */
#include "ledger/cache.h"
#include "ledger/effects.h"
#include "ledger/event_row.h"
#include "ledger/group.h"
#include "ledger/handle.h"
#include "ledger/project.h"
#include "ledger/replay.h"

status entry_texts(struct run_entry *e, str project_id, str environment_id, str plan_id,
                   str plan_version, struct error *err) {
    bool ok = arena_try_str(&e->arena, project_id, &e->project_id) &&
              arena_try_str(&e->arena, environment_id, &e->environment_id) &&
              arena_try_str(&e->arena, plan_id, &e->plan_id) &&
              arena_try_str(&e->arena, plan_version, &e->plan_version);
    return ok ? ST_OK : ledger_no_memory(err);
}

static status entry_fill(struct run_entry *e, struct db_stmt *q, struct error *err) {
    e->run_no = db_int(q, 1);
    e->tenant_no = db_int(q, 2);
    e->context_no = db_int(q, 3);
    e->opened_seq = db_int(q, 4);
    str run_uuid = db_text(q, 5);
    str correlation = db_text(q, 6);
    str signal = db_text(q, 7);
    if (!uuid_parse(run_uuid, &e->run_uuid) || correlation.len != UUID_TEXT_LEN) {
        return error_at(err, REASON_LEDGER_DAMAGED, "", "run \"%.*s\" has no readable identity",
                        STR_ARG(e->run_id));
    }
    memcpy(e->correlation, correlation.ptr, UUID_TEXT_LEN);
    e->has_signal = signal.len == UUID_TEXT_LEN;
    if (e->has_signal) memcpy(e->signal, signal.ptr, UUID_TEXT_LEN);
    e->stored = true;
    e->leased = !db_is_null(q, 12);
    return entry_texts(e, db_text(q, 8), db_text(q, 9), db_text(q, 10), db_text(q, 11), err);
}

static status entry_event(void *context, const struct event_row *row,
                          const struct event_record *rec, const struct transition *bad,
                          struct error *err) {
    struct run_entry *e = context;
    UNUSED(row);
    UNUSED(bad);
    if (event_family_of(&rec->event) == FAMILY_EFFECT)
        return effects_replay(&e->effects, rec, &e->arena, err);
    e->moved_seq = rec->seq;
    return ST_OK;
}

static status entry_replay(struct ledger *l, struct run_entry *e, struct error *err) {
    struct replay r = {.run_no = e->run_no,
                       .tenant_no = e->tenant_no,
                       .run = &e->run,
                       .seen = &e->seen,
                       .arena = &e->arena,
                       .on_event = entry_event,
                       .context = e};
    l->replays++;
    status st = replay_run(l, &r, err);
    e->stored_steps = e->run.step_count;
    e->stored_effects = e->effects.count;
    e->stored_state = project_state(&e->run.head);
    cache_weigh(&l->cache, e);
    return st;
}

/* Writes the runs of the group that the cache lacks as a JSON array; gives their number. One may be
 * named twice. */
static size_t missing_ids(struct ledger *l, struct append_request *const *reqs, size_t n,
                          struct buf *ids) {
    size_t wanted = 0;
    str last = STR_NONE;
    buf_put_char(ids, '[');
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < reqs[i]->count; k++) {
            str id = reqs[i]->items[k].event.run_id;
            if (str_eq(id, last) || cache_get(&l->cache, id)) continue;
            last = id;
            if (wanted++ > 0) buf_put_char(ids, ',');
            buf_put_json_str(ids, id);
        }
    }
    buf_put_char(ids, ']');
    return wanted;
}

/* Adds to the cache those of `ids` that exist: their identity, not yet their state. `found` has
 * room for all. */
static status find_runs(struct ledger *l, str ids, struct run_entry **found, size_t *count,
                        struct error *err) {
    struct db_stmt *q = NULL;
    status st = db_prepare(
        l->db,
        "SELECT r.run_id, r.run_no, r.tenant_no, r.context_no, r.opened_seq, r.run_uuid,"
        " r.correlation_id, r.signal_id, c.project_id, c.environment_id, c.plan_id, c.plan_version,"
        " x.run_no FROM ledger_run r LEFT JOIN lease_run x ON x.run_no = r.run_no"
        " JOIN ledger_context c ON c.context_no = r.context_no WHERE r.run_id"
        " {sqlite:IN (SELECT value FROM json_each($1))}"
        /* As an array PostgreSQL looks each one up; as a subquery it read the whole table. */
        "{postgres:= ANY(ARRAY(SELECT jsonb_array_elements_text($1::text::jsonb)))}",
        &q, err);
    if (st != ST_OK) return st;
    bool row = false;
    db_bind_text(q, 1, ids);
    while ((st = db_step(q, &row, err)) == ST_OK && row) {
        if (cache_get(&l->cache, db_text(q, 0))) continue; /* asked for twice */
        struct run_entry *e = cache_add(&l->cache, db_text(q, 0));
        if (!e) {
            st = ledger_no_memory(err);
            break;
        }
        st = entry_fill(e, q, err);
        if (st != ST_OK) break;
        found[(*count)++] = e;
    }
    db_reset(q);
    return st;
}

/* Loads every run of the group that the cache lacks: one look-up for all, then a replay for each
 * that exists. */
status runs_load(struct ledger *l, struct append_request *const *reqs, size_t n, size_t most,
                 struct error *err) {
    struct buf ids;
    buf_init(&ids, (size_t)GROUP_EVENTS_MAX * (ID_BYTES_MAX * 6 + 3) + 2);
    size_t wanted = missing_ids(l, reqs, n, &ids);
    struct run_entry **found = NULL;
    size_t count = 0;
    status st = ids.full ? ledger_no_memory(err) : ST_OK;
    if (st != ST_OK || wanted == 0) goto out;
    found = arena_try(&l->scratch, wanted * sizeof(struct run_entry *));
    if (!found) {
        st = ledger_no_memory(err);
        goto out;
    }
    st = find_runs(l, buf_str(&ids), found, &count, err);
    if (st == ST_OK && count > most) {
        for (size_t i = 0; i < count; i++)
            cache_drop(&l->cache, found[i]);
        st = error_set(err, ST_CONFLICT, "%zu runs are to be read first", count);
    }
    for (size_t i = 0; i < count && st == ST_OK; i++)
        st = entry_replay(l, found[i], err);
out:
    buf_release(&ids);
    return st;
}
