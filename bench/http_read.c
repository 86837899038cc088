/* Reading through HTTP from a ledger of many runs, which is made in this process before the server
 * starts. */
#include "base/os.h"
#include "base/time.h"
#include "http.h"

enum {
    PLANS = 100,
    GROUP = 2048,
    GET_RUNS_MAX = 200000,
    RUNNING_EVERY = 50, /* so many runs are still under way, */
    FAILED_EVERY = 20,  /* so many failed, and the others are complete */
};

/* ---- the ledger ---- */

/* The name of run number i: random to look at, and known without being kept. */
static void run_name(uint64_t i, char out[UUID_TEXT_LEN]) {
    uuid id;
    uint64_t seed = (i + 1) * 0x9e3779b97f4a7c15U;
    for (size_t k = 0; k < sizeof(id.b); k++)
        id.b[k] = (uint8_t)(random_next(&seed) >> 56);
    id.b[6] = (uint8_t)((id.b[6] & 0x0f) | 0x40);
    id.b[8] = (uint8_t)((id.b[8] & 0x3f) | 0x80);
    uuid_format(id, out);
}

struct filler {
    struct ledger *ledger;
    struct append_item items[GROUP];
    struct append_result results[GROUP];
    char ids[GROUP][UUID_TEXT_LEN];
    char plans[PLANS][16];
    struct arena arena;
    size_t count;
};

static void fill_event(struct filler *f, int64_t i, const char *type) {
    struct append_item *item = &f->items[f->count];
    char *id = f->ids[f->count++];
    run_name((uint64_t)i, id);
    *item = (struct append_item){.event = {.type_name = str_c(type),
                                           .run_id = str_n(id, UUID_TEXT_LEN),
                                           .tenant_id = STR("acme"),
                                           .project_id = STR("analytics"),
                                           .environment_id = STR("prod"),
                                           .plan_id = str_c(f->plans[i % PLANS]),
                                           .plan_version = STR("7"),
                                           .engine_attempt = 1,
                                           .logical_attempt = 1,
                                           .event_id = uuid_v4(),
                                           .emitted_ns = clock_wall_us() / 1000 * 1000000,
                                           .emitted_digits = 3}};
    item->event.type = event_type_of(item->event.type_name);
    event_key_derive(&item->event, item->event.key);
}

static void fill_flush(struct filler *f) {
    struct error err = {0};
    struct append_request request = {
        .items = f->items, .count = f->count, .results = f->results, .arena = &f->arena};
    struct append_request *const requests[] = {&request};
    arena_reset(&f->arena);
    check(ledger_append(f->ledger, requests, 1, &err), "append", &err);
    for (size_t i = 0; i < f->count; i++)
        if (f->results[i].code != ST_OK) die("refused", f->results[i].err);
    f->count = 0;
}

/* Makes a ledger of `runs` runs in the folder; *middle_us is a time when half of them were there.
 */
static void fill(str dir, int64_t runs, int64_t *middle_us) {
    struct error err = {0};
    struct ledger_options options = {.validation = LEDGER_REJECT};
    struct filler *f = mem_alloc(sizeof(*f));
    struct buf url;
    if (!f) die("out of memory", NULL);
    buf_init(&url, 4096);
    buf_printf(&url, "sqlite:%.*s/ledger.db", STR_ARG(dir));
    check(dir_make(dir, &err), "folder", &err);
    check(ledger_open(buf_str(&url), &options, &f->ledger, &err), "open the ledger", &err);
    arena_init(&f->arena, 4096, (size_t)64 * 1024 * 1024);
    for (unsigned i = 0; i < PLANS; i++)
        snprintf(f->plans[i], sizeof(f->plans[i]), "plan-%02u", i);
    double start = now_seconds();
    for (int64_t i = 0; i < runs; i++) {
        if (f->count > GROUP - 2) fill_flush(f);
        if (i == runs / 2) *middle_us = clock_wall_us();
        fill_event(f, i, "RunStarted");
        if (i % RUNNING_EVERY != 0)
            fill_event(f, i, i % FAILED_EVERY == 1 ? "RunFailed" : "RunCompleted");
    }
    fill_flush(f);
    fprintf(stderr, "made %lld runs in %.1f s\n", (long long)runs, now_seconds() - start);
    ledger_close(f->ledger);
    arena_release(&f->arena);
    buf_release(&url);
    mem_free(f);
}

/* ---- http-get-run ---- */

struct getter {
    uint64_t seed;
    int64_t runs;
};

static bool get_make(void *context, struct load_request *r) {
    struct getter *g = context;
    char id[UUID_TEXT_LEN];
    run_name(random_next(&g->seed) % (uint64_t)g->runs, id);
    int n = snprintf(r->bytes, r->room, "GET /v1/runs/%.*s HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     UUID_TEXT_LEN, id);
    r->len = (size_t)n;
    return true;
}

void bench_http_get_run(const struct bench_options *o) {
    static const struct {
        size_t connections;
        const char *name;
    } cases[] = {{1, "1 connection"}, {16, "16 connections"}};
    struct http_child cairn;
    struct load_result r;
    struct getter g = {.seed = 42, .runs = o->events < GET_RUNS_MAX ? o->events : GET_RUNS_MAX};
    struct buf dir;
    int64_t middle = 0;
    buf_init(&dir, 4096);
    fill(bench_data(o, "get", &dir), g.runs, &middle);
    cairn_start(dir.ptr, &cairn);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct load load = {.port = cairn.port,
                            .connections = cases[i].connections,
                            .seconds = o->seconds / 10,
                            .request_room = 1024,
                            .answer_room = 4096,
                            .context = &g,
                            .make = get_make};
        load_once(&load, "http-get-run", &r); /* warm */
        load.seconds = o->seconds / 2;
        load_once(&load, "http-get-run", &r);
        double p50 = histogram_ms(&r.latency, 0.5);
        figure("http-get-run", cases[i].name, p50, "ms", 1, p50);
        note("http-get-run", cases[i].name, (double)r.answers / r.seconds, "req/s");
        latency_figures("http-get-run", cases[i].name, &r.latency);
    }
    child_stop(&cairn);
    buf_release(&dir);
}

/* ---- http-list ---- */

static bool list_make(void *context, struct load_request *r) {
    const char *query = context;
    if (r->len == 0)
        r->len = (size_t)snprintf(r->bytes, r->room,
                                  "GET /v1/runs%s HTTP/1.1\r\nHost: localhost\r\n\r\n", query);
    return true;
}

static void list_case(const struct bench_options *o, const struct http_child *cairn,
                      const char *name, const char *query) {
    struct load_result r;
    char text[256];
    union { /* the callback only reads it */
        const char *in;
        char *out;
    } same = {.in = query};
    struct load load = {.port = cairn->port,
                        .connections = 4,
                        .seconds = o->seconds / 10,
                        .request_room = 1024,
                        .answer_room = 4096,
                        .context = same.out,
                        .make = list_make};
    double cpu = cpu_seconds_of(cairn->pid);
    load_once(&load, name, &r);
    cpu = cpu_seconds_of(cairn->pid) - cpu;
    double p95 = histogram_ms(&r.latency, 0.95);
    snprintf(text, sizeof(text), "%s, p95", name);
    figure("http-list", text, p95, "ms", 50, p95 / 50);
    snprintf(text, sizeof(text), "%s, p50", name);
    note("http-list", text, histogram_ms(&r.latency, 0.5), "ms");
    snprintf(text, sizeof(text), "%s, processor time of the server", name);
    note("http-list", text, cpu * 1e3 / (double)r.answers, "ms");
}

void bench_http_list(const struct bench_options *o) {
    struct http_child cairn;
    struct buf dir;
    char query[256];
    char name[UUID_TEXT_LEN];
    char when[TIME_TEXT_MAX];
    int64_t middle = 0;
    buf_init(&dir, 4096);
    fill(bench_data(o, "list", &dir), o->events, &middle);
    cairn_start(dir.ptr, &cairn);
    list_case(o, &cairn, "the newest", "?tenantId=acme");
    list_case(o, &cairn, "status RUNNING", "?status=RUNNING");
    list_case(o, &cairn, "status FAILED", "?status=FAILED");
    list_case(o, &cairn, "a plan", "?planId=plan-77");
    list_case(o, &cairn, "a plan and a status it never has", "?planId=plan-77&status=PAUSED");
    size_t n = time_format_us(middle, when);
    snprintf(query, sizeof(query), "?since=%.*s", (int)n, when);
    list_case(o, &cairn, "since the middle", query);
    snprintf(query, sizeof(query), "?until=%.*s&status=FAILED", (int)n, when);
    list_case(o, &cairn, "status FAILED until the middle", query);
    list_case(o, &cairn, "text of a plan", "?text=an-42");
    run_name((uint64_t)o->events / 2, name);
    snprintf(query, sizeof(query), "?text=%.*s", 13, name);
    list_case(o, &cairn, "text of one run's id", query);
    list_case(o, &cairn, "text that is nowhere", "?text=no-such-run");
    child_stop(&cairn);
    buf_release(&dir);
}
