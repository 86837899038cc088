#include "bench.h"

#include "base/time.h"

static const struct {
    const char *type;
    const char *step;
} script[RUN_EVENTS] = {{"RunStarted", NULL},
                        {"StepStarted", "extract.orders"},
                        {"StepCompleted", "extract.orders"},
                        {"StepStarted", "load.raw"},
                        {"StepCompleted", "load.raw"},
                        {"StepStarted", "model.orders"},
                        {"StepCompleted", "model.orders"},
                        {"StepStarted", "publish"},
                        {"StepCompleted", "publish"},
                        {"RunCompleted", NULL}};

static const char payload[] = "{\"rows\":12873,\"source\":\"warehouse.raw.orders\",\"output\":{"
                              "\"path\":\"s3://lake/orders/2026-02-16/part-0001\","
                              "\"bytes\":18273645,\"checksum\":\"d41d8cd98f00b204\"},\"note\":"
                              "\"finished within the window\",\"worker\":\"w-07\"}";

uint64_t random_next(uint64_t *seed) { /* xorshift64* */
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return *seed * 2685821657736338717U;
}

static void fresh_run(struct workload *w, size_t i) {
    uuid_format(uuid_v4(), w->ids[i]);
    w->at[i] = 0;
}

void workload_open(struct workload *w, size_t runs, uint64_t seed) {
    w->runs = runs;
    w->ids = mem_alloc(runs * sizeof(*w->ids));
    w->at = mem_alloc(runs * sizeof(*w->at));
    w->seed = seed;
    if (!w->ids || !w->at) die("out of memory", NULL);
    for (size_t i = 0; i < runs; i++)
        fresh_run(w, i);
}

void workload_close(struct workload *w) {
    mem_free(w->ids);
    mem_free(w->at);
}

void workload_next(struct workload *w, struct event *out, char run_id[UUID_TEXT_LEN]) {
    size_t i = (size_t)(random_next(&w->seed) % w->runs);
    if (w->at[i] == RUN_EVENTS) fresh_run(w, i);
    int at = w->at[i]++;
    memcpy(run_id, w->ids[i], UUID_TEXT_LEN);
    *out = (struct event){.type_name = str_c(script[at].type),
                          .run_id = str_n(run_id, UUID_TEXT_LEN),
                          .tenant_id = STR("acme"),
                          .project_id = STR("analytics"),
                          .environment_id = STR("prod"),
                          .plan_id = STR("orders"),
                          .plan_version = STR("7"),
                          .engine_attempt = 1,
                          .logical_attempt = 1,
                          .event_id = uuid_v4(),
                          .emitted_ns = clock_wall_us() / 1000 * 1000000,
                          .emitted_digits = 3,
                          .payload = STR(payload)};
    if (script[at].step) out->subject = str_c(script[at].step);
    out->type = event_type_of(out->type_name);
    event_key_derive(out, out->key);
}

str bench_url(const struct bench_options *o, const char *name) {
    static char path[512];
    struct error err = {0};
    if (!o->db.ptr) {
        snprintf(path, sizeof(path), "%s/%s.db", o->dir, name);
        return str_c(path);
    }
    struct db *db = NULL;
    check(db_open(o->db, DB_WRITE, &db, &err), "open", &err);
    check(db_exec(db, "DROP SCHEMA public CASCADE; CREATE SCHEMA public", &err),
          "empty the database", &err);
    db_close(db);
    return o->db;
}

struct writer *bench_writer(str url) {
    struct error err = {0};
    struct ledger *ledger = NULL;
    struct writer *w = NULL;
    struct ledger_options options = {.validation = LEDGER_REJECT};
    check(ledger_open(url, &options, &ledger, &err), "open the ledger", &err);
    check(writer_open(ledger, NULL, &w, &err), "start the ledger thread", &err);
    return w;
}
