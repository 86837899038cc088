/* api/auth_keys.c: what is known of API keys, and when they were used.
 *
 * A key id is in one of three states: being loaded (in no list, never thrown out, checks wait at
 * it), known, or unknown; the last two in lists with the newest use first, from whose ends entries
 * are thrown out. Checks of the same key wait for one lookup. A key that is forgotten while it is
 * being loaded leaves the map at once: who waits gets what was read, who comes later asks again.
 *
 * Last uses go to the ledger thread in batches that own their memory; auth lives until the last of
 * them was answered. */
#include "api/auth_impl.h"
#include "base/log.h"

/* ---- lists ---- */

static void list_remove(struct key_list *list, struct key_entry *e) {
    *(e->newer ? &e->newer->older : &list->newest) = e->older;
    *(e->older ? &e->older->newer : &list->oldest) = e->newer;
    e->newer = e->older = NULL;
    ASSERT(list->count > 0);
    list->count--;
}

static void list_add(struct key_list *list, struct key_entry *e) {
    ASSERT(!e->newer && !e->older);
    e->older = list->newest;
    *(list->newest ? &list->newest->newer : &list->oldest) = e;
    list->newest = e;
    list->count++;
}

static struct key_list *list_of(struct auth *auth, const struct key_entry *e) {
    ASSERT(!e->loading);
    return e->found ? &auth->known : &auth->unknown;
}

static str id_of(const struct key_entry *e) { return str_n(e->key_id, KEY_ID_LEN); }

/* ---- last uses ---- */

struct use_batch {
    struct bridge_call call;
    struct auth *auth;
    size_t count;
    struct key_use uses[];
};

static status batch_write(struct ledger *ledger, void *context, struct error *err) {
    struct use_batch *batch = context;
    return api_keys_used(ledger, batch->uses, batch->count, err);
}

static void batch_done(struct bridge_call *call) {
    struct use_batch *batch = CONTAINER_OF(call, struct use_batch, call);
    struct auth *auth = batch->auth;
    if (call->write.code != ST_OK)
        LOG(LOG_WARN, "could not write down when API keys were used",
            LOG_S("error", str_c(call->write.err.msg)));
    mem_free(batch);
    ASSERT(auth->batches > 0);
    auth->batches--;
    auth_end(auth);
}

static struct use_batch *batch_new(struct auth *auth, size_t room) {
    struct use_batch *batch = mem_alloc(sizeof(*batch) + room * sizeof(struct key_use));
    if (!batch) return NULL;
    batch->auth = auth;
    batch->call.write.member.body = batch_write;
    batch->call.write.member.context = batch;
    batch->call.done = batch_done;
    memcpy(batch->uses, auth->uses, auth->use_count * sizeof(struct key_use));
    batch->count = auth->use_count;
    return batch;
}

/* Hands it over; false, and nothing has changed, if the writer has no room. */
static bool batch_send(struct auth *auth, struct use_batch *batch) {
    struct error err;
    if (bridge_try(auth->options.bridge, &batch->call, &err) == ST_OK) {
        auth->batches++;
        return true;
    }
    mem_free(batch);
    return false;
}

static void on_timer(uv_timer_t *timer) {
    struct auth *auth = (struct auth *)timer;
    if (auth->use_count == 0) return;
    struct use_batch *batch = NULL;
    if (auth->batches == 0) batch = batch_new(auth, auth->use_count);
    if (batch && batch_send(auth, batch))
        auth->use_count = 0;
    else
        uv_timer_start(timer, on_timer, USES_FLUSH_MS, 0); /* later, then */
}

static void note_use(struct auth *auth, struct key_entry *e) {
    if (auth->use_count == USES_MAX) return; /* its next use tries again */
    struct key_use *use = &auth->uses[auth->use_count++];
    memcpy(use->key_id, e->key_id, KEY_ID_LEN);
    use->us = e->used_us;
    e->noted_us = e->used_us;
    if (!auth->closing && !uv_is_active((uv_handle_t *)&auth->timer))
        uv_timer_start(&auth->timer, on_timer, USES_FLUSH_MS, 0);
}

void keys_used(struct auth *auth, struct key_entry *e, int64_t now_us) {
    if (!auth->options.bridge) return;
    if (now_us > e->used_us) e->used_us = now_us;
    if (e->used_us - e->noted_us >= (int64_t)USE_EVERY_S * 1000000) note_use(auth, e);
}

void auth_flush(struct auth *auth) {
    if (!auth || !auth->options.bridge) return;
    struct use_batch *batch = batch_new(auth, auth->use_count + auth->known.count);
    if (!batch) return;
    for (struct key_entry *e = auth->known.newest; e; e = e->older) {
        if (e->used_us <= e->noted_us) continue;
        struct key_use *use = &batch->uses[batch->count++];
        memcpy(use->key_id, e->key_id, KEY_ID_LEN);
        use->us = e->used_us;
    }
    if (batch->count == 0) {
        mem_free(batch);
        return;
    }
    if (!batch_send(auth, batch)) return; /* the timer tries again */
    auth->use_count = 0;
    for (struct key_entry *e = auth->known.newest; e; e = e->older)
        e->noted_us = e->used_us;
}

/* ---- entries ---- */

/* Of an entry in no list. */
static void entry_free(struct auth *auth, struct key_entry *e) {
    ASSERT(!e->waiting);
    if (!e->forgotten) (void)map_del(&auth->keys, id_of(e));
    if (e->used_us > e->noted_us) note_use(auth, e);
    mem_free(e);
}

static void throw_out(struct auth *auth, struct key_list *list, size_t max) {
    while (list->count > max) {
        struct key_entry *e = list->oldest;
        list_remove(list, e);
        entry_free(auth, e);
    }
}

static struct key_entry *entry_new(struct auth *auth, const char *key_id) {
    struct key_entry *e = mem_alloc(sizeof(*e));
    if (!e) return NULL;
    memcpy(e->key_id, key_id, KEY_ID_LEN);
    if (map_put(&auth->keys, id_of(e), e)) return e;
    mem_free(e);
    return NULL;
}

void auth_forget(struct auth *auth, str key_id) {
    struct key_entry *e = map_get(&auth->keys, key_id);
    if (!e) return;
    if (e->loading) {
        (void)map_del(&auth->keys, key_id);
        e->forgotten = true;
        return;
    }
    list_remove(list_of(auth, e), e);
    entry_free(auth, e);
}

void keys_release(struct auth *auth) {
    ASSERT(auth->lookups == 0);
    auth->options.bridge = NULL;
    throw_out(auth, &auth->known, 0);
    throw_out(auth, &auth->unknown, 0);
    ASSERT(auth->keys.count == 0);
    map_release(&auth->keys);
}

/* ---- looking up ---- */

static struct auth_check *check_of(struct reader_job *job) {
    return (struct auth_check *)(void *)((char *)job - offsetof(struct auth_check, job));
}

/* On a reader's thread. A key that is not there is an answer, not a failure: ST_NOT_FOUND would be
 * a ledger that is not there. */
static status look_up(struct reader_job *job, struct ledger *reader, struct error *err) {
    struct key_entry *e = check_of(job)->entry;
    struct arena arena;
    struct api_key key = {0};
    arena_init(&arena, 1024, (size_t)64 * 1024);
    status st = api_key_find(reader, id_of(e), &arena, &key, err);
    e->found = st == ST_OK;
    if (st == ST_NOT_FOUND) st = ST_OK;
    if (e->found && (key.tenant_id.len == 0 || key.tenant_id.len >= sizeof(e->tenant)))
        st = error_at(err, REASON_LEDGER_DAMAGED, "", "the key \"%.*s\" has no good tenant",
                      KEY_ID_LEN, e->key_id);
    if (st != ST_OK) e->found = false;
    memcpy(e->hash, key.hash, SHA256_LEN);
    e->roles = key.roles;
    e->expires_us = key.expires_us;
    e->revoked_us = key.revoked_us;
    e->stored_use_us = key.used_us;
    e->version = key.version;
    if (e->found) snprintf(e->tenant, sizeof(e->tenant), "%.*s", STR_ARG(key.tenant_id));
    arena_release(&arena);
    return st;
}

/* Every answer is made before the first one is given: what hears it may forget the key, or ask. */
static void answer_all(struct auth_check *first) {
    while (first) {
        struct auth_check *check = first;
        first = check->next;
        check->done(check);
    }
}

static void looked_up(struct reader_job *job) {
    struct auth_check *leader = check_of(job);
    struct auth *auth = leader->auth;
    struct key_entry *e = leader->entry;
    struct error err = job->err;
    status st = job->code;
    struct auth_check *waiting = e->waiting;
    e->waiting = NULL;
    e->loading = false;
    if (e->stored_use_us > e->noted_us) e->noted_us = e->stored_use_us;
    for (struct auth_check *check = waiting; check; check = check->next) {
        if (st == ST_OK)
            auth_judge(check, e);
        else
            auth_fail(check, st, &err);
    }
    if (st == ST_OK && !e->forgotten) {
        list_add(list_of(auth, e), e);
        throw_out(auth, &auth->known, KEY_CACHE_MAX);
        throw_out(auth, &auth->unknown, KEY_UNKNOWN_MAX);
    } else {
        entry_free(auth, e);
    }
    answer_all(waiting);
    auth->lookups--;
    auth_end(auth);
}

static bool start_lookup(struct auth_check *check, struct key_entry *e) {
    struct auth *auth = check->auth;
    struct error err = {0};
    e->loading = true;
    e->loaded_us = check->now_us;
    e->waiting = check;
    e->waiting_end = &check->next;
    check->entry = e;
    check->job = (struct reader_job){.work = look_up, .done = looked_up};
    status st = readers_try(auth->options.readers, &check->job, &err);
    if (st == ST_OK) {
        auth->lookups++;
        metric_add(auth->m_lookups, 1);
        return false;
    }
    e->waiting = NULL;
    e->loading = false;
    entry_free(auth, e);
    auth_fail(check, st, &err);
    return true;
}

static bool is_fresh(const struct key_entry *e, int64_t now_us) {
    return now_us >= e->loaded_us && now_us - e->loaded_us < (int64_t)KEY_CACHE_MS * 1000;
}

bool keys_check(struct auth_check *check) {
    struct auth *auth = check->auth;
    struct key_entry *e = map_get(&auth->keys, str_n(check->key_id, KEY_ID_LEN));
    check->next = NULL;
    if (e && e->loading) {
        *e->waiting_end = check;
        e->waiting_end = &check->next;
        return false;
    }
    if (e && is_fresh(e, check->now_us)) {
        list_remove(list_of(auth, e), e);
        list_add(list_of(auth, e), e);
        auth_judge(check, e);
        return true;
    }
    if (!(e && e->found) && !auth_may_try(check)) return true; /* it costs a lookup */
    if (e) list_remove(list_of(auth, e), e);
    if (!e) e = entry_new(auth, check->key_id);
    if (e) return start_lookup(check, e);
    struct error err;
    (void)error_set(&err, ST_RETRY, "could not check an API key: out of memory");
    auth_fail(check, ST_RETRY, &err);
    return true;
}
