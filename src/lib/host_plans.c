#include "lib/host_plans.h"

#include "base/time.h"

/* Texts and bytes of one fetch, and the URLs made for it. */
#define FETCH_BYTES_MAX (PLAN_BYTES_MAX + (size_t)1024 * 1024)

struct host_plan {
    char hex[SHA256_HEX_LEN];
    struct plan *plan;
    struct arena arena;
    int64_t refs, used; /* used: a clock of uses */
};

struct fetch { /* a plan on its way */
    struct fetch *next, **link;
    struct host_plans *owner; /* NULL: the host is closed, nobody waits */
    struct plan_ref ref;
    struct plan_request ask;
    struct client_call *call; /* NULL: the bytes are there */
    uv_work_t work;
    struct arena scratch, arena; /* the reference and the bytes; the plan */
    str bytes;
    struct plan *plan;
    status code;
    struct error err;
    host_fetched done;
    void *context;
};

struct host_plans {
    uv_loop_t *loop;
    const struct plan_source *source;
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

static struct host_plan *free_slot(struct host_plans *p) {
    size_t oldest = HOST_PLANS_MAX;
    for (size_t i = 0; i < HOST_PLANS_MAX; i++) {
        struct host_plan *s = p->slots[i];
        if (!s) {
            s = mem_alloc(sizeof(*s));
            if (s) arena_init(&s->arena, (size_t)16 * 1024, SIZE_MAX);
            p->slots[i] = s;
            return s;
        }
        if (s->refs > 0) continue;
        if (oldest == HOST_PLANS_MAX || s->used < p->slots[oldest]->used) oldest = i;
    }
    if (oldest == HOST_PLANS_MAX) return NULL;
    arena_release(&p->slots[oldest]->arena);
    p->slots[oldest]->plan = NULL;
    return p->slots[oldest];
}

static status too_many(struct error *err) {
    return error_at(err, ST_LIMIT, "PLANS_TOO_MANY", "",
                    "%d different plans are being carried out already", HOST_PLANS_MAX);
}

static status check(const struct host_plans *p, const struct plan_ref *ref, bool *local,
                    struct error *err) {
    struct plan_location location = {0};
    struct arena scratch;
    arena_init(&scratch, 1024, (size_t)1024 * 1024);
    status st = plan_source_check(p->source, ref, clock_wall_us(), &scratch, &location, err);
    arena_release(&scratch);
    *local = location.local;
    return st;
}

/* *out NULL: it is not kept, or differs from the reference, which the source tells precisely. */
static status find_kept(struct host_plans *p, const struct plan_ref *ref, struct host_plan **out,
                        struct error *err) {
    char hex[SHA256_HEX_LEN];
    size_t i = 0;
    *out = NULL;
    hex_encode(ref->sha256, SHA256_LEN, hex);
    while (i < HOST_PLANS_MAX && p->slots[i] &&
           (!p->slots[i]->plan || memcmp(p->slots[i]->hex, hex, sizeof(hex)) != 0))
        i++;
    if (i == HOST_PLANS_MAX || !p->slots[i]) return ST_OK;
    bool local = false;
    status st = check(p, ref, &local, err);
    if (st != ST_OK) return st;
    const struct plan *plan = p->slots[i]->plan;
    bool same = str_eq(plan->plan_id, ref->plan_id) &&
                str_eq(plan->plan_version, ref->plan_version) &&
                str_eq(plan->schema_version, ref->schema_version) &&
                (ref->size_bytes < 0 || (size_t)ref->size_bytes == plan->bytes);
    if (!same) return ST_OK;
    p->slots[i]->used = ++p->clock;
    *out = p->slots[i];
    return ST_OK;
}

static void keep(struct host_plans *p, struct host_plan *slot, const struct plan_ref *ref,
                 struct plan *plan) {
    hex_encode(ref->sha256, SHA256_LEN, slot->hex);
    slot->plan = plan;
    slot->refs = 0;
    slot->used = ++p->clock;
}

static status get(struct host_plans *p, const struct plan_ref *ref, struct host_plan **out,
                  struct error *err) {
    struct plan *plan = NULL;
    status st = find_kept(p, ref, out, err);
    if (st != ST_OK || *out) return st;
    struct host_plan *slot = free_slot(p);
    if (!slot) return too_many(err);
    st = plan_source_fetch(p->source, ref, clock_wall_us(), &slot->arena, &plan, err);
    if (st != ST_OK) {
        arena_release(&slot->arena);
        return st;
    }
    keep(p, slot, ref, plan);
    *out = slot;
    return ST_OK;
}

status host_plans_get(struct host_plans *p, const struct plan_ref *ref, const struct plan **out,
                      struct error *err) {
    struct host_plan *slot = NULL;
    status st = get(p, ref, &slot, err);
    if (st != ST_OK) return st;
    slot->refs++;
    *out = slot->plan;
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

static void fetch_unlink(struct fetch *f) {
    *f->link = f->next;
    if (f->next) f->next->link = f->link;
    f->owner->fetch_count--;
    f->owner = NULL;
}

static void fetch_answer(struct fetch *f, status code, const struct error *err) {
    host_fetched done = f->done;
    void *context = f->context;
    struct error copy = *err;
    fetch_unlink(f);
    fetch_free(f);
    done(context, code, &copy);
}

static void read_bytes(uv_work_t *work) { /* on a thread of the pool */
    struct fetch *f = work->data;
    f->code = plan_source_read(&f->ref, f->bytes, &f->arena, &f->plan, &f->err);
}

static void after_read(uv_work_t *work, int uv_status) {
    struct fetch *f = work->data;
    struct host_plans *p = f->owner;
    if (!p) {
        fetch_free(f);
        return;
    }
    struct host_plan *slot = NULL;
    if (uv_status != 0) f->code = error_set(&f->err, ST_RETRY, "plans: %s", uv_strerror(uv_status));
    if (f->code == ST_OK) f->code = find_kept(p, &f->ref, &slot, &f->err); /* another was first */
    if (f->code == ST_OK && !slot) {
        slot = free_slot(p);
        if (!slot) {
            f->code = too_many(&f->err);
        } else {
            struct arena unused = slot->arena;
            slot->arena = f->arena;
            f->arena = unused;
            keep(p, slot, &f->ref, f->plan);
        }
    }
    fetch_answer(f, f->code, &f->err);
}

static void on_response(void *context, status st, const struct client_response *response,
                        const struct error *why) {
    struct fetch *f = context;
    str bytes = STR_NONE;
    f->call = NULL;
    st = plan_source_judge(&f->ref, st, response, why, &bytes, &f->err);
    if (st == ST_OK && !arena_try_str(&f->scratch, bytes, &f->bytes)) st = no_memory(&f->err);
    f->work.data = f;
    if (st == ST_OK && uv_queue_work(f->owner->loop, &f->work, read_bytes, after_read) != 0)
        st = no_memory(&f->err);
    if (st != ST_OK) fetch_answer(f, st, &f->err);
}

static status copy_ref(struct fetch *f, const struct plan_ref *ref, struct error *err) {
    str *texts[] = {&f->ref.uri, &f->ref.schema_version, &f->ref.plan_id, &f->ref.plan_version};
    f->ref = *ref;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!arena_try_str(&f->scratch, *texts[i], texts[i])) return no_memory(err);
    }
    return ST_OK;
}

static status fetch_start(struct host_plans *p, const struct plan_ref *ref, host_fetched done,
                          void *context, struct error *err) {
    if (p->fetch_count >= HOST_FETCHES_MAX)
        return error_at(err, ST_LIMIT, "PLAN_FETCHES_TOO_MANY", "",
                        "%d plans are being fetched already", HOST_FETCHES_MAX);
    if (!p->client) {
        status opened = client_open(p->loop, &p->client, err);
        if (opened != ST_OK) return opened;
    }
    struct fetch *f = mem_alloc(sizeof(*f));
    if (!f) return no_memory(err);
    arena_init(&f->scratch, 4096, FETCH_BYTES_MAX);
    arena_init(&f->arena, (size_t)16 * 1024, SIZE_MAX);
    f->done = done;
    f->context = context;
    status st = copy_ref(f, ref, err);
    if (st == ST_OK)
        st = plan_source_ask(p->source, &f->ref, clock_wall_us(), &f->scratch, &f->ask, err);
    if (st == ST_OK) st = client_start(p->client, &f->ask.request, on_response, f, &f->call, err);
    if (st != ST_OK) {
        fetch_free(f);
        return st;
    }
    f->owner = p;
    f->next = p->fetches;
    f->link = &p->fetches;
    if (f->next) f->next->link = &f->next;
    p->fetches = f;
    p->fetch_count++;
    return ST_OK;
}

static status closing(struct error *err) {
    return error_at(err, ST_RETRY, "CLOSING", "", "the engine is closing");
}

/* *wait: it must be fetched. Else the answer is here. */
static status look(struct host_plans *p, const struct plan_ref *ref, bool *wait,
                   struct error *err) {
    struct host_plan *slot = NULL;
    bool local = false;
    *wait = false;
    if (p->halted) return closing(err);
    status st = find_kept(p, ref, &slot, err);
    if (st != ST_OK || slot) return st;
    st = check(p, ref, &local, err);
    *wait = st == ST_OK && !local;
    return st == ST_OK && local ? get(p, ref, &slot, err) : st;
}

void host_plans_prefetch(struct host_plans *p, const struct plan_ref *ref, host_fetched done,
                         void *context) {
    struct error err = {0};
    bool wait = false;
    status st = look(p, ref, &wait, &err);
    if (wait) {
        st = fetch_start(p, ref, done, context, &err);
        if (st == ST_OK) return;
    }
    done(context, st, &err);
}

/* ---- opening and closing ---- */

status host_plans_open(uv_loop_t *loop, const struct plan_source *source, struct host_plans **out,
                       struct error *err) {
    struct host_plans *p = mem_alloc(sizeof(*p));
    if (!p) return no_memory(err);
    p->loop = loop;
    p->source = source;
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
            fetch_answer(f, ST_RETRY, &err);
            continue;
        }
        fetch_unlink(f); /* a thread reads it: after_read() frees it */
        f->done(f->context, ST_RETRY, &err);
    }
    client_close(p->client);
    p->client = NULL;
}

void host_plans_close(struct host_plans *p) {
    if (!p) return;
    host_plans_halt(p);
    for (size_t i = 0; i < HOST_PLANS_MAX && p->slots[i]; i++) {
        arena_release(&p->slots[i]->arena);
        mem_free(p->slots[i]);
    }
    mem_free(p);
}
