/* api/hub_owner.c: who reads, and whether they still may.
 *
 * A stream is let in once and may last for days. What this process changes of a key it tells the
 * hub; what another node changes of it in a shared database is found here, and so is a key that was
 * changed when its caller was let in but the stream had not begun: each key that has open streams
 * is looked at every HUB_RECHECK_MS, a few a tick, and when it is not what it was when its streams
 * began, or is revoked, they end. With API_KEYS_MAX different keys that takes 35 seconds at most. A
 * ledger that cannot be read ends nothing: then there is nothing to be sent either.
 *
 * A token is good as long as it says, and as long as the key that signed it is in the key set. When
 * that is read again, the hub is told, and this file finds streams that were let in before and
 * began to read afterwards. */
#include "api/hub_impl.h"
#include "base/arena.h"
#include "ledger/access/access.h"

enum { OWNER_NAME_MAX = 200, OWNER_KEY_MAX = OWNER_NAME_MAX + 24, KEY_ID = 16 };

static size_t owner_key(char key[OWNER_KEY_MAX], str name, int64_t version) {
    int n = snprintf(key, OWNER_KEY_MAX, "%lld %.*s", (long long)version,
                     (int)(name.len < OWNER_NAME_MAX ? name.len : OWNER_NAME_MAX), name.ptr);
    return (size_t)n;
}

str hub_owner_name(const struct hub_owner *o) {
    return str_n(o->key + o->key_len - o->name_len, o->name_len);
}

struct hub_owner *hub_owner_hold(struct hub *hub, str name, int64_t version) {
    char key[OWNER_KEY_MAX];
    size_t len = owner_key(key, name, version);
    struct hub_owner *o = map_get(&hub->owners, str_n(key, len));
    if (!o) {
        o = mem_alloc(sizeof(*o) + len);
        if (!o) return NULL;
        memcpy(o->key, key, len);
        o->key_len = len;
        o->name_len = name.len < OWNER_NAME_MAX ? name.len : OWNER_NAME_MAX;
        o->version = version;
        o->checked_ms = (int64_t)uv_now(hub->loop);
        hub_link_init(&o->of_hub);
        if (!map_put(&hub->owners, str_n(o->key, len), o)) {
            mem_free(o);
            return NULL;
        }
        hub_link_last(&hub->owner_list, &o->of_hub);
    }
    o->holders++;
    return o;
}

void hub_owner_drop(struct hub *hub, struct hub_owner *o) {
    if (!o || --o->holders > 0) return;
    hub_unlink(&o->of_hub);
    (void)map_del(&hub->owners, str_n(o->key, o->key_len));
    mem_free(o);
}

/* ---- looking again ---- */

static status look(struct reader_job *job, struct ledger *reader, struct error *err) {
    struct hub_recheck *r = (struct hub_recheck *)(void *)job;
    struct arena arena;
    status st = ST_OK;
    arena_init(&arena, 4096, (size_t)64 * 1024);
    for (size_t i = 0; i < r->count && st == ST_OK; i++) {
        struct api_key key = {0};
        arena_reset(&arena);
        st = api_key_find(reader, str_n(r->items[i].key_id, KEY_ID), &arena, &key, err);
        r->items[i].over =
            st == ST_NOT_FOUND ||
            (st == ST_OK && (key.version != r->items[i].version || key.revoked_us != 0));
        if (st == ST_NOT_FOUND) st = ST_OK;
    }
    arena_release(&arena);
    return st;
}

static void looked(struct reader_job *job) {
    struct hub_recheck *r = (struct hub_recheck *)(void *)job;
    r->busy = false;
    for (size_t i = 0; i < r->count; i++) {
        char name[4 + KEY_ID] = "key:";
        memcpy(name + 4, r->items[i].key_id, KEY_ID);
        if (r->items[i].over) hub_end_owner(r->hub, str_n(name, sizeof(name)), r->items[i].version);
    }
}

static bool is_key(const struct hub_owner *o) {
    return o->version > 0 && o->name_len == 4 + KEY_ID &&
           str_starts(hub_owner_name(o), STR("key:"));
}

/* One whose token is not good any more is over. */
static bool token_is_over(const struct hub *hub, struct hub_owner *o) {
    bool token = o->version > 0 && str_starts(hub_owner_name(o), STR("jwt:"));
    if (!hub->signs || !token || hub->signs(hub->signs_context, o->version)) return false;
    o->over = true;
    return true;
}

void hub_ask_of_tokens(struct hub *hub, hub_signs signs, void *context) {
    hub->signs = signs;
    hub->signs_context = context;
}

void hub_tokens_changed(struct hub *hub) {
    bool any = false;
    for (struct hub_link *l = hub->owner_list.next; l != &hub->owner_list; l = l->next)
        any |= token_is_over(hub, HUB_OWNER(l, struct hub_owner, of_hub));
    if (any) hub_end_over(hub);
}

void hub_owners_recheck(struct hub *hub) {
    struct hub_recheck *r = &hub->recheck;
    int64_t now = (int64_t)uv_now(hub->loop);
    struct error ignored;
    bool over = false;
    if (r->busy) return;
    r->count = 0;
    while (hub_linked(&hub->owner_list) && r->count < HUB_RECHECKS_MAX) {
        struct hub_owner *o = HUB_OWNER(hub->owner_list.next, struct hub_owner, of_hub);
        if (now - o->checked_ms < HUB_RECHECK_MS) break;
        o->checked_ms = now;
        hub_link_last(&hub->owner_list, &o->of_hub);
        over |= token_is_over(hub, o);
        if (!is_key(o)) continue;
        memcpy(r->items[r->count].key_id, hub_owner_name(o).ptr + 4, KEY_ID);
        r->items[r->count].over = false;
        r->items[r->count++].version = o->version;
    }
    if (over) hub_end_over(hub);
    if (r->count == 0) return;
    r->hub = hub;
    r->job = (struct reader_job){.work = look, .done = looked};
    r->busy = readers_try(hub->readers, &r->job, &ignored) == ST_OK; /* (else in the next round) */
}
