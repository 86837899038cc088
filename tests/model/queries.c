/* The ledger's look-ups beside the model's: by eventId, by cause, by trace, by time, by provider,
 * by tenant. */
#include "base/limits.h"
#include "model/compare.h"

static bool differs(struct buf *why, const char *what, int64_t got, int64_t want) {
    buf_printf(why, "%s gives %lld, expected %lld", what, (long long)got, (long long)want);
    return false;
}

static bool failed(struct buf *why, const char *what, const struct error *err) {
    buf_printf(why, "%s failed: %s", what, err->msg);
    return false;
}

/* An eventId is unique in a run only: of several records that have it, the newest of one tenant
 * cannot be told from that of another. */
static bool id_is_unique(const struct model *m, uuid id) {
    int n = 0;
    for (size_t i = 0; i < m->count; i++)
        n += uuid_eq(m->records[i].event.event_id, id);
    return n == 1;
}

static const struct model_record *cause_of(const struct model *m, const struct model_record *r) {
    for (size_t i = 0; i < m->count && r->cause_seq > 0; i++) {
        const struct model_record *c = &m->records[i];
        if (c->seq == r->cause_seq && str_eq(c->event.tenant_id, r->event.tenant_id)) return c;
    }
    return NULL;
}

/* The event and its ancestors, up to the root. */
static bool compare_causes(struct ledger *l, const struct model *m, const struct model_record *r,
                           struct arena *arena, struct buf *why) {
    struct event_page page;
    struct error err = {0};
    bool more = true;
    if (ledger_causes(l, r->event.event_id, MODEL_RECORDS_MAX, arena, &page, &more, &err) != ST_OK)
        return failed(why, "causes", &err);
    size_t n = 0;
    for (; r; r = cause_of(m, r), n++) {
        if (n >= page.count)
            return differs(why, "number of causes", (int64_t)page.count, (int64_t)n + 1);
        if (page.records[n].seq != r->seq)
            return differs(why, "an ancestor", page.records[n].seq, r->seq);
    }
    return (n == page.count && !more) ||
           differs(why, "number of causes", (int64_t)page.count, (int64_t)n);
}

static bool compare_event(struct ledger *l, const struct model *m, const struct model_record *r,
                          struct arena *arena, struct buf *why) {
    struct event_record got;
    struct error err = {0};
    if (!id_is_unique(m, r->event.event_id)) return true;
    if (ledger_find_event(l, r->event.event_id, arena, &got, &err) != ST_OK)
        return failed(why, "finding an event", &err);
    if (got.seq != r->seq || !str_eq(got.event.run_id, r->event.run_id))
        return differs(why, "the event's sequence_number", got.seq, r->seq);
    return compare_causes(l, m, r, arena, why);
}

/* The first of the tenant that is not older than this record. */
static bool compare_time(struct ledger *l, const struct model *m, const struct model_record *r,
                         struct buf *why) {
    struct error err = {0};
    int64_t got = 0;
    int64_t want = 0;
    for (size_t i = 0; i < m->count && want == 0; i++) {
        const struct model_record *x = &m->records[i];
        if (str_eq(x->event.tenant_id, r->event.tenant_id) && x->persisted_us >= r->persisted_us)
            want = x->seq;
    }
    if (ledger_seq_at(l, r->event.tenant_id, r->persisted_us, &got, &err) != ST_OK)
        return failed(why, "seq_at", &err);
    return got == want || differs(why, "seq_at", got, want);
}

static bool in_trace(const struct model *m, const struct model_record *r, uuid correlation) {
    const struct model_record *opener = model_run(m, r->event.run_id);
    return opener->correlation && uuid_eq(*opener->correlation, correlation);
}

static bool compare_trace(struct ledger *l, const struct model *m,
                          const struct model_record *opener, struct arena *arena, struct buf *why) {
    struct event_page page;
    struct error err = {0};
    str tenant = opener->event.tenant_id;
    size_t n = 0;
    if (ledger_read_correlation(l, tenant, *opener->correlation, 0, PAGE_EVENTS_MAX, arena, &page,
                                &err) != ST_OK)
        return failed(why, "a trace", &err);
    for (size_t i = 0; i < m->count; i++) {
        const struct model_record *r = &m->records[i];
        if (!str_eq(r->event.tenant_id, tenant) || !in_trace(m, r, *opener->correlation)) continue;
        if (n >= page.count)
            return differs(why, "length of the trace", (int64_t)page.count, (int64_t)n + 1);
        if (page.records[n++].seq != r->seq)
            return differs(why, "an event of the trace", page.records[n - 1].seq, r->seq);
    }
    return n == page.count || differs(why, "length of the trace", (int64_t)page.count, (int64_t)n);
}

/* Whoever linked a provider's run first owns it; the ledger refused all others. */
static bool compare_provider(struct ledger *l, const struct model_record *r, struct arena *arena,
                             struct buf *why) {
    struct run_info info;
    struct error err = {0};
    str id = str_ends(r->event.payload, STR("\"one\"}")) ? STR("one") : STR("two");
    status st = ledger_find_provider(l, r->event.tenant_id, STR("temporal"), STR("w"), id, arena,
                                     &info, &err);
    if (st != ST_OK) return failed(why, "finding a provider's run", &err);
    if (str_eq(info.run_id, r->event.run_id)) return true;
    buf_printf(why, "the provider's run is \"%.*s\", expected \"%.*s\"", STR_ARG(info.run_id),
               STR_ARG(r->event.run_id));
    return false;
}

static bool compare_run_list(struct ledger *l, const struct model *m, str tenant,
                             struct arena *arena, struct buf *why) {
    struct run_filter filter = {.tenant_id = tenant};
    struct run_info *runs = NULL;
    struct error err = {0};
    size_t count = 0;
    size_t want = 0;
    if (ledger_list_runs(l, &filter, PAGE_EVENTS_MAX, arena, &runs, &count, NULL, &err) != ST_OK)
        return failed(why, "listing runs", &err);
    for (size_t i = 0; i < m->count; i++) {
        bool opens = model_run(m, m->records[i].event.run_id) == &m->records[i];
        want += opens && str_eq(m->records[i].event.tenant_id, tenant);
    }
    return count == want || differs(why, "number of runs", (int64_t)count, (int64_t)want);
}

static bool compare_one(struct ledger *l, const struct model *m, size_t at, struct arena *arena,
                        struct buf *why) {
    const struct model_record *r = &m->records[at];
    bool opens = model_run(m, r->event.run_id) == r;
    bool linked = str_eq(r->event.type_name, STR("RunProviderLinked"));
    bool sampled = at % 7 == 3 || at + 1 == m->count;
    if (opens && r->correlation && !compare_trace(l, m, r, arena, why)) return false;
    if (opens && !compare_run_list(l, m, r->event.tenant_id, arena, why)) return false;
    if (linked && !compare_provider(l, r, arena, why)) return false;
    return !sampled || (compare_event(l, m, r, arena, why) && compare_time(l, m, r, why));
}

bool compare_queries(struct ledger *l, const struct model *m, struct buf *why) {
    struct arena arena;
    arena_init(&arena, (size_t)64 * 1024, (size_t)64 * 1024 * 1024);
    bool same = true;
    for (size_t i = 0; same && i < m->count; i++)
        same = compare_one(l, m, i, &arena, why);
    arena_release(&arena);
    return same;
}
