/* host/plans.c: the plans of the runs in memory, each kept once, and those that are on their way: over the
 * network, or by a thread that reads the store or a large file. */
#include "host/plans.h"

#include "base/limits.h"
#include "base/time.h"

/* Texts and bytes of one fetch, and the URLs made for it. */
#define FETCH_BYTES_MAX (PLAN_BYTES_MAX + (size_t)1024 * 1024)

struct host_plan {
    uint8_t sha256[SHA256_LEN];
    struct plan *plan;
    struct arena arena;
    int64_t refs, used; /* used: a clock of uses */
    /* While there are refs: who took the first. Its share pays until the last is given back, also
     * if that is another's: who gives back is not told, and tenants have a plan in common only if
     * both brought it, or the operator put it into the folder. */
    char payer[ID_BYTES_MAX];
    size_t payer_len;
    /* Who may have it: every tenant, or those for whom a source had it. The list is short: who is
     * not on it asks the source again. */
    bool open;
    str tenants[HOST_PLAN_TENANTS_MAX];
    size_t tenant_count;
    struct arena names;
};

struct waiter {
    struct waiter *next;
    host_fetched done;
    void *context;
};

struct fetch { /* a plan on its way */
    struct fetch *next, **link;
    struct host_plans *owner;              /* NULL: the host is closed, nobody waits */
    struct waiter *waiters, **waiters_end; /* each a request that stands still meanwhile */
    str tenant_id;
    struct plan_ref ref;
    struct plan_request ask;
    struct client_call *call; /* NULL: a thread reads it */
    uv_work_t work;
    const struct plan_source *source; /* for the job, which may outlive its owner's interest */
    bool in_store;                    /* it is looked for there, by a reader: counted apart */
    struct reader_job job;
    struct arena scratch, arena; /* the reference and the bytes; the plan */
    struct plan_local came;
    struct plan *plan;
    status code;
    struct error err;
};

struct host_plans {
    uv_loop_t *loop;
    const struct plan_source *source;
    struct readers *readers; /* of the store; NULL: the source has none */
    struct client *client; /* NULL until the first fetch */
    struct host_plan *slots[HOST_PLANS_MAX];
    int64_t clock;
    struct fetch *fetches;
    int fetch_count;
    bool halted;
};

static status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "plans: out of memory");
}

/* ---- what is kept ---- */

static struct host_plan *new_slot(void) {
    struct host_plan *slot = mem_alloc(sizeof(*slot));
    if (!slot) return NULL;
    arena_init(&slot->arena, (size_t)16 * 1024, SIZE_MAX);
    arena_init(&slot->names, 256, SIZE_MAX);
    return slot;
}

static void empty_slot(struct host_plan *slot) {
    arena_release(&slot->arena);
    arena_release(&slot->names);
    slot->plan = NULL;
    slot->open = false;
    slot->tenant_count = 0;
}

static struct host_plan *free_slot(struct host_plans *p) {
    size_t oldest = HOST_PLANS_MAX;
    for (size_t i = 0; i < HOST_PLANS_MAX; i++) {
        struct host_plan *s = p->slots[i];
        if (!s) return p->slots[i] = new_slot();
        if (s->refs > 0) continue;
        if (oldest == HOST_PLANS_MAX || s->used < p->slots[oldest]->used) oldest = i;
    }
    if (oldest == HOST_PLANS_MAX) return NULL;
    empty_slot(p->slots[oldest]);
    return p->slots[oldest];
}

static struct host_plan *slot_of(const struct host_plans *p, const struct plan_ref *ref) {
    for (size_t i = 0; i < HOST_PLANS_MAX && p->slots[i]; i++) {
        struct host_plan *s = p->slots[i];
        if (s->plan && memcmp(s->sha256, ref->sha256, SHA256_LEN) == 0) return s;
    }
    return NULL;
}

static bool may_have(const struct host_plan *slot, str tenant_id) {
    for (size_t i = 0; i < slot->tenant_count && !slot->open; i++) {
        if (str_eq(slot->tenants[i], tenant_id)) return true;
    }
    return slot->open;
}

static status allow(struct host_plan *slot, str tenant_id, bool open, struct error *err) {
    slot->open |= open;
    if (may_have(slot, tenant_id)) return ST_OK;
    if (slot->tenant_count == HOST_PLAN_TENANTS_MAX) {
        arena_reset(&slot->names);
        slot->tenant_count = 0;
    }
    if (!arena_try_str(&slot->names, tenant_id, &slot->tenants[slot->tenant_count]))
        return no_memory(err);
    slot->tenant_count++;
    return ST_OK;
}

static status too_many(struct error *err) {
    return error_at(err, REASON_PLANS_TOO_MANY, "",
                    "%d different plans are being carried out already", HOST_PLANS_MAX);
}

static status check(const struct host_plans *p, const struct plan_ref *ref, struct error *err) {
    struct plan_location location = {0};
    struct arena scratch;
    arena_init(&scratch, 1024, (size_t)1024 * 1024);
    status st = plan_source_check(p->source, ref, clock_wall_us(), &scratch, &location, err);
    arena_release(&scratch);
    return st;
}

/* *out NULL: it is not kept for that tenant, or differs from the reference, which the source tells
 * precisely. */
static status find_kept(struct host_plans *p, str tenant_id, const struct plan_ref *ref,
                        struct host_plan **out, struct error *err) {
    struct host_plan *slot = slot_of(p, ref);
    *out = NULL;
    if (!slot || !may_have(slot, tenant_id)) return ST_OK;
    status st = check(p, ref, err);
    if (st != ST_OK) return st;
    const struct plan *plan = slot->plan;
    bool same = str_eq(plan->plan_id, ref->plan_id) &&
                str_eq(plan->plan_version, ref->plan_version) &&
                str_eq(plan->schema_version, ref->schema_version) &&
                (ref->size_bytes < 0 || (size_t)ref->size_bytes == plan->bytes);
    if (!same) return ST_OK;
    slot->used = ++p->clock;
    *out = slot;
    return ST_OK;
}

/* Keeps a plan that a source had for the tenant, and takes its arena. If another tenant's is here,
 * it is the same: they share it. */
static status keep(struct host_plans *p, str tenant_id, const struct plan_ref *ref, bool open,
                   struct arena *arena, struct plan *plan, struct host_plan **out,
                   struct error *err) {
    struct host_plan *slot = slot_of(p, ref);
    if (!slot) {
        slot = free_slot(p);
        if (!slot) return too_many(err);
        struct arena unused = slot->arena;
        slot->arena = *arena;
        *arena = unused;
        memcpy(slot->sha256, ref->sha256, SHA256_LEN);
        slot->plan = plan;
    }
    slot->used = ++p->clock;
    *out = slot;
    return allow(slot, tenant_id, open, err);
}

static bool pays(const struct host_plan *slot, str tenant_id) {
    return slot->refs > 0 && str_eq(str_n(slot->payer, slot->payer_len), tenant_id);
}

/* Makes the tenant the one whose share pays for it. */
static status charge(const struct host_plans *p, str tenant_id, struct host_plan *slot,
                     struct error *err) {
    int theirs = 0;
    for (size_t i = 0; i < HOST_PLANS_MAX && p->slots[i]; i++)
        theirs += pays(p->slots[i], tenant_id);
    if (theirs >= HOST_TENANT_PLANS_MAX)
        return error_at(err, REASON_TENANT_PLANS_TOO_MANY, "",
                        "%d different plans of the tenant are being carried out, which is its "
                        "share: try again later",
                        HOST_TENANT_PLANS_MAX);
    ASSERT(tenant_id.len <= sizeof(slot->payer));
    memcpy(slot->payer, tenant_id.ptr, tenant_id.len);
    slot->payer_len = tenant_id.len;
    return ST_OK;
}

void host_plans_done(struct host_plans *p, const struct plan *plan) {
    for (size_t i = 0; i < HOST_PLANS_MAX && p->slots[i]; i++) {
        if (p->slots[i]->plan == plan) p->slots[i]->refs--;
    }
}

/* ---- what is on its way ---- */

static void fetch_free(struct fetch *f) {
    arena_release(&f->scratch);
    arena_release(&f->arena);
    mem_free(f);
}

static void fetch_link(struct host_plans *p, struct fetch *f) {
    f->owner = p;
    f->next = p->fetches;
    f->link = &p->fetches;
    if (f->next) f->next->link = &f->next;
    p->fetches = f;
    if (!f->in_store) p->fetch_count++;
}

static void fetch_unlink(struct fetch *f) {
    ASSERT(f->owner); /* once */
    *f->link = f->next;
    if (f->next) f->next->link = f->link;
    if (!f->in_store) f->owner->fetch_count--;
    f->owner = NULL;
}

static status add_waiter(struct fetch *f, host_fetched done, void *context, struct error *err) {
    struct waiter *w = mem_alloc(sizeof(*w));
    if (!w) return no_memory(err);
    w->done = done;
    w->context = context;
    *f->waiters_end = w;
    f->waiters_end = &w->next;
    return ST_OK;
}

/* Takes the waiters: what they do may start other fetches, or end this host. */
static void answer(struct waiter *waiters, status code, const struct error *err) {
    while (waiters) {
        struct waiter w = *waiters;
        mem_free(waiters);
        waiters = w.next;
        w.done(w.context, code, err);
    }
}

static void fetch_end(struct fetch *f, status code, const struct error *err) {
    struct waiter *waiters = f->waiters;
    struct error copy = *err;
    fetch_unlink(f);
    fetch_free(f);
    answer(waiters, code, &copy);
}

/* ---- reading what came ---- */

static void read_bytes(struct fetch *f) {
    f->code = ST_OK;
    if (!f->came.bytes.ptr)
        f->code = plan_source_file(&f->ref, f->came.path, &f->scratch, &f->came.bytes, &f->err);
    if (f->code == ST_OK)
        f->code = plan_source_read(&f->ref, f->came.bytes, &f->arena, &f->plan, &f->err);
}

static void keep_plan(struct host_plans *p, struct fetch *f) {
    struct host_plan *slot = NULL;
    if (f->code == ST_OK)
        f->code = keep(p, f->tenant_id, &f->ref, f->came.open, &f->arena, f->plan, &slot, &f->err);
}

static void on_thread(uv_work_t *work) { read_bytes(work->data); }

static void after_thread(uv_work_t *work, int uv_status) {
    struct fetch *f = work->data;
    if (!f->owner) {
        fetch_free(f);
        return;
    }
    if (uv_status != 0) f->code = error_set(&f->err, ST_RETRY, "plans: %s", uv_strerror(uv_status));
    keep_plan(f->owner, f);
    fetch_end(f, f->code, &f->err);
}

static status read_on_thread(uv_loop_t *loop, struct fetch *f, struct error *err) {
    f->work.data = f;
    return uv_queue_work(loop, &f->work, on_thread, after_thread) == 0 ? ST_OK : no_memory(err);
}

/* ---- starting ---- */

static void on_response(void *context, status st, const struct client_response *response,
                        const struct error *why) {
    struct fetch *f = context;
    str bytes = STR_NONE;
    f->call = NULL;
    st = plan_source_judge(&f->ref, st, response, why, &bytes, &f->err);
    if (st == ST_OK && !arena_try_str(&f->scratch, bytes, &f->came.bytes)) st = no_memory(&f->err);
    if (st == ST_OK) st = read_on_thread(f->owner->loop, f, &f->err);
    if (st != ST_OK) fetch_end(f, st, &f->err);
}

static status copy_texts(struct fetch *f, str tenant_id, const struct plan_ref *ref,
                         struct error *err) {
    str *texts[] = {&f->tenant_id, &f->ref.uri, &f->ref.schema_version, &f->ref.plan_id,
                    &f->ref.plan_version};
    f->tenant_id = tenant_id;
    f->ref = *ref;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!arena_try_str(&f->scratch, *texts[i], texts[i])) return no_memory(err);
    }
    return ST_OK;
}

static bool same_ref(const struct plan_ref *a, const struct plan_ref *b) {
    return memcmp(a->sha256, b->sha256, SHA256_LEN) == 0 && str_eq(a->uri, b->uri) &&
           str_eq(a->schema_version, b->schema_version) && str_eq(a->plan_id, b->plan_id) &&
           str_eq(a->plan_version, b->plan_version) && a->size_bytes == b->size_bytes &&
           a->expires_us == b->expires_us;
}

static struct fetch *under_way(const struct host_plans *p, str tenant_id,
                               const struct plan_ref *ref) {
    struct fetch *f = p->fetches;
    while (f && !(str_eq(f->tenant_id, tenant_id) && same_ref(&f->ref, ref)))
        f = f->next;
    return f;
}

/* For all of them, and for one tenant: its slow sources are not everybody's. */
static status room(const struct host_plans *p, str tenant_id, struct error *err) {
    int theirs = 0;
    for (const struct fetch *f = p->fetches; f; f = f->next)
        theirs += !f->in_store && str_eq(f->tenant_id, tenant_id);
    if (p->fetch_count >= HOST_FETCHES_MAX)
        return error_at(err, REASON_PLAN_FETCHES_TOO_MANY, "", "%d plans are being fetched already",
                        HOST_FETCHES_MAX);
    if (theirs >= HOST_TENANT_FETCHES_MAX)
        return error_at(err, REASON_TENANT_FETCHES_TOO_MANY, "",
                        "%d plans are being fetched for the tenant, which is its share: try again "
                        "later",
                        HOST_TENANT_FETCHES_MAX);
    return ST_OK;
}

/* A tenant's look-ups in the store; they are short, but each may hold a large plan. */
static status store_room(const struct host_plans *p, str tenant_id, struct error *err) {
    int theirs = 0;
    for (const struct fetch *f = p->fetches; f; f = f->next)
        theirs += f->in_store && str_eq(f->tenant_id, tenant_id);
    if (theirs < HOST_STORE_LOOKS_MAX) return ST_OK;
    return error_at(err, REASON_TENANT_FETCHES_TOO_MANY, "",
                    "%d plans of the tenant are being looked for, which is its share: try again "
                    "later",
                    HOST_STORE_LOOKS_MAX);
}

static status begin_remote(struct host_plans *p, struct fetch *f, struct error *err) {
    status st = room(p, f->tenant_id, err);
    if (st == ST_OK && !p->client) st = client_open(p->loop, &p->client, err);
    return st == ST_OK ? client_start(p->client, &f->ask.request, on_response, f, &f->call, err)
                       : st;
}

static status look_in_store(struct reader_job *job, struct ledger *reader, struct error *err) {
    struct fetch *f = CONTAINER_OF(job, struct fetch, job);
    struct plan_wanted wanted = {.tenant_id = f->tenant_id, .ref = &f->ref, .reader = reader};
    status st = plan_source_local(f->source, &wanted, PLAN_BYTES_MAX, &f->scratch, &f->came, err);
    if (st != ST_OK) return st;
    read_bytes(f);
    if (f->code != ST_OK) *err = f->err;
    return f->code;
}

static void store_told(struct reader_job *job) {
    struct fetch *f = CONTAINER_OF(job, struct fetch, job);
    if (!f->owner) { /* the host is closing: nobody waits */
        fetch_free(f);
        return;
    }
    f->code = job->code;
    f->err = job->err;
    keep_plan(f->owner, f);
    fetch_end(f, f->code, &f->err);
}

/* *wait false: it is in the folder, small, and now kept. */
static status begin_local(struct host_plans *p, struct fetch *f, bool *wait, struct error *err) {
    struct plan_wanted wanted = {.tenant_id = f->tenant_id, .ref = &f->ref};
    status st = plan_source_local(p->source, &wanted, HOST_PLAN_SMALL, &f->scratch, &f->came, err);
    if (st == ST_NOT_FOUND && p->source->stored && p->readers) {
        st = store_room(p, f->tenant_id, err);
        if (st != ST_OK) return st;
        *wait = f->in_store = true;
        f->source = p->source;
        f->job = (struct reader_job){.work = look_in_store, .done = store_told};
        readers_submit(p->readers, &f->job);
        return ST_OK;
    }
    if (st != ST_OK) return st;
    *wait = !f->came.bytes.ptr || f->came.bytes.len > HOST_PLAN_SMALL;
    if (*wait) {
        st = room(p, f->tenant_id, err);
        return st == ST_OK ? read_on_thread(p->loop, f, err) : st;
    }
    read_bytes(f);
    keep_plan(p, f);
    if (f->code != ST_OK) *err = f->err;
    return f->code;
}

static status begin(struct host_plans *p, struct fetch *f, bool *wait, struct error *err) {
    status st = plan_source_ask(p->source, &f->ref, clock_wall_us(), &f->scratch, &f->ask, err);
    if (st != ST_OK) return st;
    *wait = !f->ask.local;
    return f->ask.local ? begin_local(p, f, wait, err) : begin_remote(p, f, err);
}

static status fetch_start(struct host_plans *p, str tenant_id, const struct plan_ref *ref,
                          host_fetched done, void *context, bool *wait, struct error *err) {
    struct fetch *f = mem_alloc(sizeof(*f));
    if (!f) return no_memory(err);
    arena_init(&f->scratch, 4096, FETCH_BYTES_MAX);
    arena_init(&f->arena, (size_t)16 * 1024, SIZE_MAX);
    f->waiters_end = &f->waiters;
    status st = copy_texts(f, tenant_id, ref, err);
    if (st == ST_OK) st = add_waiter(f, done, context, err);
    if (st == ST_OK) st = begin(p, f, wait, err);
    *wait = *wait && st == ST_OK;
    if (*wait) {
        fetch_link(p, f);
    } else {
        mem_free(f->waiters); /* the caller answers it */
        fetch_free(f);
    }
    return st;
}

static status closing(struct error *err) {
    return error_at(err, REASON_CLOSING, "", "the engine is closing");
}

/* *wait: `done` will be called. Else the answer is here. */
static status look(struct host_plans *p, str tenant_id, const struct plan_ref *ref,
                   host_fetched done, void *context, bool *wait, struct error *err) {
    struct host_plan *slot = NULL;
    if (p->halted) return closing(err);
    status st = find_kept(p, tenant_id, ref, &slot, err);
    if (st != ST_OK || slot) return st;
    struct fetch *f = under_way(p, tenant_id, ref);
    if (!f) return fetch_start(p, tenant_id, ref, done, context, wait, err);
    st = add_waiter(f, done, context, err);
    *wait = st == ST_OK;
    return st;
}

void host_plans_prefetch(struct host_plans *p, str tenant_id, const struct plan_ref *ref,
                         host_fetched done, void *context) {
    struct error err = {0};
    bool wait = false;
    status st = look(p, tenant_id, ref, done, context, &wait, &err);
    if (!wait) done(context, st, &err);
}

static void nobody_waits(void *context, status code, const struct error *err) {
    UNUSED(context);
    UNUSED(code);
    UNUSED(err);
}

status host_plans_get(struct host_plans *p, str tenant_id, const struct plan_ref *ref,
                      const struct plan **out, struct error *err) {
    struct host_plan *slot = NULL;
    bool wait = false;
    status st = find_kept(p, tenant_id, ref, &slot, err);
    if (st == ST_OK && !slot) st = look(p, tenant_id, ref, nobody_waits, NULL, &wait, err);
    if (st == ST_OK && wait)
        st = error_set(err, ST_RETRY, "the plan is being fetched: it is there in a moment");
    if (st == ST_OK && !slot) st = find_kept(p, tenant_id, ref, &slot, err);
    if (st == ST_OK && !slot) st = error_set(err, ST_RETRY, "there is no room for the plan");
    if (st != ST_OK) return st;
    ASSERT(slot);
    if (slot->refs == 0) st = charge(p, tenant_id, slot, err);
    if (st != ST_OK) return st;
    slot->refs++;
    *out = slot->plan;
    return ST_OK;
}

/* ---- opening and closing ---- */

status host_plans_open(uv_loop_t *loop, const struct plan_source *source, struct readers *readers,
                       struct host_plans **out, struct error *err) {
    struct host_plans *p = mem_alloc(sizeof(*p));
    if (!p) return no_memory(err);
    p->loop = loop;
    p->source = source;
    p->readers = readers;
    *out = p;
    return ST_OK;
}

void host_plans_halt(struct host_plans *p) {
    struct error err = {0};
    if (!p || p->halted) return;
    p->halted = true;
    (void)closing(&err);
    while (p->fetches) {
        struct fetch *f = p->fetches;
        if (f->call) {
            client_cancel(f->call);
            fetch_end(f, ST_RETRY, &err);
            continue;
        }
        struct waiter *waiters = f->waiters;
        fetch_unlink(f); /* a thread reads it: after_thread() frees it */
        answer(waiters, ST_RETRY, &err);
    }
    client_close(p->client);
    p->client = NULL;
}

void host_plans_close(struct host_plans *p) {
    if (!p) return;
    host_plans_halt(p);
    for (size_t i = 0; i < HOST_PLANS_MAX && p->slots[i]; i++) {
        empty_slot(p->slots[i]);
        mem_free(p->slots[i]);
    }
    mem_free(p);
}
