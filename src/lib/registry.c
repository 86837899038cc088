#include "lib/registry.h"

#include "base/arena.h"
#include "base/limits.h"
#include "base/map.h"

struct registry_ops {
    bool durable;
    /* The first id of each pair wins: writes entry->event_id where there was none, else fills it.
     */
    status (*claim)(struct registry *r, struct registry_entry *entries, size_t n,
                    struct error *err);
    /* The given id wins. */
    status (*adopt)(struct registry *r, const struct registry_entry *entries, size_t n,
                    struct error *err);
    status (*forget)(struct registry *r, str run_id, struct error *err);
    void (*close)(struct registry *r);
};
struct registry {
    const struct registry_ops *ops;
}; /* first member of either kind */

/* ---- in a table ---- */

struct table_registry {
    struct registry base;
    struct db *db; /* NULL: to be connected before the next use */
    ledger_connect connect;
    void *context;
    char url[1024]; /* when opened by url */
};

static struct table_registry *table_of(struct registry *r) { return (struct table_registry *)r; }

static status connect_url(void *context, struct db **out, struct error *err) {
    const struct table_registry *t = context;
    return db_open(str_c(t->url), DB_WRITE, out, err);
}

/* Two producers may start at once on one PostgreSQL, where IF NOT EXISTS alone does not keep them
 * apart. */
static status make_table(struct db *db, struct error *err) {
    status st = db_begin(db, true, err);
    if (st == ST_OK && db_is_postgres(db)) {
        st = db_exec(db, "SELECT pg_advisory_xact_lock(4918273652)", err);
    }
    if (st == ST_OK) {
        st = db_exec(
            db,
            "{postgres:SET LOCAL client_min_messages = warning;}"
            "CREATE TABLE IF NOT EXISTS producer_event_ids(run_id {text} NOT NULL,"
            " key {blob} NOT NULL, event_id {blob} NOT NULL, PRIMARY KEY(run_id, key)){norowid}",
            err);
    }
    if (st == ST_OK) return db_commit(db, err);
    db_rollback(db);
    return st;
}

static void disconnect(struct table_registry *t) {
    db_close(t->db);
    t->db = NULL;
}

static status begin(struct table_registry *t, struct error *err) {
    if (!t->db) {
        status st = t->connect(t->context, &t->db, err);
        if (st == ST_OK) st = make_table(t->db, err);
        if (st != ST_OK) {
            disconnect(t);
            return st;
        }
    }
    return db_begin(t->db, true, err);
}

/* Commits if all went well. A connection that failed in any way is not used again. */
static status finish(struct table_registry *t, status st, struct error *err) {
    if (st == ST_OK) st = db_commit(t->db, err);
    if (st == ST_OK) return ST_OK;
    if (t->db) {
        db_rollback(t->db);
        disconnect(t);
    }
    return error_wrap(err, "event id registry");
}

static status select_id(struct db *db, struct registry_entry *e, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        db, "SELECT event_id FROM producer_event_ids WHERE run_id = $1 AND key = $2", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, e->run_id);
    db_bind_blob(q, 2, str_n(e->key, SHA256_LEN));
    st = db_step(q, &row, err);
    if (st != ST_OK) return st;
    str id = row ? db_blob(q, 0) : STR_NONE;
    if (id.len == sizeof(e->event_id.b)) memcpy(e->event_id.b, id.ptr, id.len);
    if (!row) {
        st = error_set(err, ST_RETRY, "the pair was deleted by somebody else just now");
    } else if (id.len != sizeof(e->event_id.b) || uuid_version(e->event_id) != 4) {
        st = error_at(err, REASON_REGISTRY_DAMAGED, "", "an id of run \"%.*s\" is not a UUID v4",
                      STR_ARG(e->run_id));
    }
    db_reset(q);
    return st;
}

/* `sql` has the parameters run_id, key, event_id. */
static status insert_id(struct db *db, const char *sql, const struct registry_entry *e,
                        bool *inserted, struct error *err) {
    struct db_stmt *ins = NULL;
    int64_t changed = 0;
    status st = db_prepare(db, sql, &ins, err);
    if (st != ST_OK) return st;
    db_bind_text(ins, 1, e->run_id);
    db_bind_blob(ins, 2, str_n(e->key, SHA256_LEN));
    db_bind_blob(ins, 3, str_n(e->event_id.b, sizeof(e->event_id.b)));
    st = db_run(ins, &changed, err);
    *inserted = changed > 0;
    return st;
}

/* The insert waits for whoever is inserting the same pair, and then finds it there. If all pairs
 * were there the commit has nothing to sync. */
static status table_claim(struct registry *r, struct registry_entry *entries, size_t n,
                          struct error *err) {
    static const char sql[] =
        "INSERT INTO producer_event_ids(run_id, key, event_id) VALUES ($1, $2, $3)"
        " ON CONFLICT(run_id, key) DO NOTHING";
    struct table_registry *t = table_of(r);
    status st = begin(t, err);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        st = insert_id(t->db, sql, &entries[i], &entries[i].fresh, err);
        if (st == ST_OK && !entries[i].fresh) st = select_id(t->db, &entries[i], err);
    }
    return finish(t, st, err);
}

static status table_adopt(struct registry *r, const struct registry_entry *entries, size_t n,
                          struct error *err) {
    static const char sql[] =
        "INSERT INTO producer_event_ids(run_id, key, event_id) VALUES ($1, $2, $3)"
        " ON CONFLICT(run_id, key) DO UPDATE SET event_id = excluded.event_id"
        " WHERE producer_event_ids.event_id <> excluded.event_id";
    struct table_registry *t = table_of(r);
    status st = begin(t, err);
    bool ignored = false;
    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = insert_id(t->db, sql, &entries[i], &ignored, err);
    return finish(t, st, err);
}

static status table_forget(struct registry *r, str run_id, struct error *err) {
    struct table_registry *t = table_of(r);
    struct db_stmt *del = NULL;
    status st = begin(t, err);
    if (st == ST_OK)
        st = db_prepare(t->db, "DELETE FROM producer_event_ids WHERE run_id = $1", &del, err);
    if (st == ST_OK) {
        int64_t changed = 0;
        db_bind_text(del, 1, run_id);
        st = db_run(del, &changed, err);
    }
    return finish(t, st, err);
}

static void table_close(struct registry *r) {
    disconnect(table_of(r));
    mem_free(r);
}

static const struct registry_ops table_ops = {true, table_claim, table_adopt, table_forget,
                                              table_close};

static status table_open(struct table_registry *t, struct registry **out, struct error *err) {
    t->base.ops = &table_ops;
    status st = finish(t, begin(t, err), err);
    if (st != ST_OK) {
        registry_close(&t->base);
        return st;
    }
    *out = &t->base;
    return ST_OK;
}

status registry_open_with(ledger_connect connect, void *context, struct registry **out,
                          struct error *err) {
    struct table_registry *t = mem_alloc(sizeof(*t));
    if (!t) return error_set(err, ST_RETRY, "event id registry: out of memory");
    t->connect = connect;
    t->context = context;
    return table_open(t, out, err);
}

status registry_open(str url, struct registry **out, struct error *err) {
    struct table_registry *t = mem_alloc(sizeof(*t));
    if (!t) return error_set(err, ST_RETRY, "event id registry: out of memory");
    if (url.len >= sizeof(t->url)) {
        mem_free(t);
        return error_set(err, ST_LIMIT, "the database address has over %zu bytes",
                         sizeof(t->url) - 1);
    }
    memcpy(t->url, url.ptr, url.len);
    t->connect = connect_url;
    t->context = t;
    return table_open(t, out, err);
}

/* ---- in memory ---- */

struct memory_run {
    struct map ids; /* key -> uuid, both in the arena */
    struct arena arena;
    str run_id;
};
struct memory_registry {
    struct registry base;
    struct map runs;
};

static struct memory_registry *memory_of(struct registry *r) { return (struct memory_registry *)r; }

static void memory_run_free(struct memory_run *run) {
    map_release(&run->ids);
    arena_release(&run->arena);
    mem_free(run);
}

static struct memory_run *memory_run(struct memory_registry *m, str run_id) {
    struct memory_run *run = map_get(&m->runs, run_id);
    if (run) return run;
    run = mem_alloc(sizeof(*run));
    if (!run) return NULL;
    map_init(&run->ids);
    arena_init(&run->arena, 1024, SIZE_MAX);
    if (arena_try_str(&run->arena, run_id, &run->run_id) && map_put(&m->runs, run->run_id, run))
        return run;
    memory_run_free(run);
    return NULL;
}

/* The place of the pair's id; *added when it was made just now. NULL when memory is out. */
static uuid *memory_slot(struct memory_registry *m, const struct registry_entry *e, bool *added) {
    struct memory_run *run = memory_run(m, e->run_id);
    if (!run) return NULL;
    uuid *id = map_get(&run->ids, str_n(e->key, SHA256_LEN));
    *added = !id;
    if (id) return id;
    str key;
    id = arena_try(&run->arena, sizeof(*id));
    if (!id || !arena_try_str(&run->arena, str_n(e->key, SHA256_LEN), &key)) return NULL;
    *id = e->event_id;
    return map_put(&run->ids, key, id) ? id : NULL;
}

static status memory_claim(struct registry *r, struct registry_entry *entries, size_t n,
                           struct error *err) {
    for (size_t i = 0; i < n; i++) {
        const uuid *id = memory_slot(memory_of(r), &entries[i], &entries[i].fresh);
        if (!id) return error_set(err, ST_RETRY, "event id registry: out of memory");
        entries[i].event_id = *id;
    }
    return ST_OK;
}

static status memory_adopt(struct registry *r, const struct registry_entry *entries, size_t n,
                           struct error *err) {
    bool added = false;
    for (size_t i = 0; i < n; i++) {
        uuid *id = memory_slot(memory_of(r), &entries[i], &added);
        if (!id) return error_set(err, ST_RETRY, "event id registry: out of memory");
        *id = entries[i].event_id;
    }
    return ST_OK;
}

static status memory_forget(struct registry *r, str run_id, struct error *err) {
    UNUSED(err);
    struct memory_run *run = map_del(&memory_of(r)->runs, run_id);
    if (run) memory_run_free(run);
    return ST_OK;
}

static void memory_close(struct registry *r) {
    struct memory_registry *m = memory_of(r);
    struct map_slot *slot = NULL;
    for (size_t i = 0; map_next(&m->runs, &i, &slot);)
        memory_run_free(slot->value);
    map_release(&m->runs);
    mem_free(m);
}

static const struct registry_ops memory_ops = {false, memory_claim, memory_adopt, memory_forget,
                                               memory_close};

status registry_open_memory(struct registry **out, struct error *err) {
    struct memory_registry *m = mem_alloc(sizeof(*m));
    if (!m) return error_set(err, ST_RETRY, "event id registry: out of memory");
    m->base.ops = &memory_ops;
    map_init(&m->runs);
    *out = &m->base;
    return ST_OK;
}

/* ---- either ---- */

void registry_close(struct registry *r) {
    if (r) r->ops->close(r);
}

bool registry_is_durable(const struct registry *r) { return r->ops->durable; }

static struct registry_entry entry_of(str run_id, const uint8_t key[SHA256_LEN], uuid event_id) {
    struct registry_entry e = {.run_id = run_id, .event_id = event_id};
    memcpy(e.key, key, SHA256_LEN);
    return e;
}

static status check_v4(uuid id, struct error *err) {
    if (uuid_version(id) == 4) return ST_OK;
    return error_at(err, REASON_EVENT_ID_NOT_UUID_V4, "/eventId",
                    "an eventId must be a UUID of version 4");
}

status registry_get(struct registry *r, str run_id, const uint8_t key[SHA256_LEN], uuid *event_id,
                    bool *fresh, struct error *err) {
    struct registry_entry e = entry_of(run_id, key, uuid_v4());
    status st = r->ops->claim(r, &e, 1, err);
    if (st != ST_OK) return st;
    *event_id = e.event_id;
    *fresh = e.fresh;
    return ST_OK;
}

status registry_get_many(struct registry *r, struct registry_entry *entries, size_t count,
                         struct error *err) {
    if (count > BATCH_EVENTS_MAX) {
        return error_at(err, REASON_BATCH_TOO_LARGE, "",
                        "a batch of %zu events, at most %d are allowed", count, BATCH_EVENTS_MAX);
    }
    for (size_t i = 0; i < count; i++)
        entries[i].event_id = uuid_v4();
    return count > 0 ? r->ops->claim(r, entries, count, err) : ST_OK;
}

status registry_put(struct registry *r, str run_id, const uint8_t key[SHA256_LEN], uuid event_id,
                    uuid *kept, struct error *err) {
    struct registry_entry e = entry_of(run_id, key, event_id);
    status st = check_v4(event_id, err);
    if (st == ST_OK) st = r->ops->claim(r, &e, 1, err);
    if (st == ST_OK) *kept = e.event_id;
    return st;
}

status registry_adopt(struct registry *r, str run_id, const uint8_t key[SHA256_LEN], uuid event_id,
                      struct error *err) {
    struct registry_entry e = entry_of(run_id, key, event_id);
    status st = check_v4(event_id, err);
    return st == ST_OK ? r->ops->adopt(r, &e, 1, err) : st;
}

status registry_fill(struct registry *r, const struct event_page *page, struct error *err) {
    if (page->count == 0) return ST_OK;
    struct registry_entry *entries = mem_alloc(page->count * sizeof(*entries));
    if (!entries) return error_set(err, ST_RETRY, "event id registry: out of memory");
    size_t n = 0;
    for (size_t i = 0; i < page->count; i++) {
        const struct event_record *rec = &page->records[i];
        if (rec->run_seq == 0)
            continue; /* a fact that the store itself wrote: no producer sends it */
        entries[n++] = entry_of(rec->event.run_id, rec->event.key, rec->event.event_id);
    }
    status st = n > 0 ? r->ops->adopt(r, entries, n, err) : ST_OK;
    mem_free(entries);
    return st;
}

status registry_forget_run(struct registry *r, str run_id, struct error *err) {
    return r->ops->forget(r, run_id, err);
}
