/* The effects of a run in memory: found by their ids, taken back, and kept as long as they are
 * needed. */
#include "base/log.h"
#include "ledger/cache.h"
#include "ledger/effects.h"
#include "ledger/handle.h"
#include "outbox/outbox.h"
#include "test.h"

static struct arena arena;

/* A fact of effect `n`, with the data that its kind needs. */
static struct event_record fact_of(uint64_t n, enum event_type type) {
    static char subject[UUID_TEXT_LEN];
    uuid id = {{0}};
    memcpy(id.b, &n, sizeof(n));
    uuid_format(id, subject);
    return (struct event_record){
        .event = {.type = type,
                  .type_name = event_type_info(type)->name,
                  .subject = str_n(subject, sizeof(subject)),
                  .logical_attempt = 1,
                  .payload =
                      STR("{\"effect_type\":\"T\",\"idempotency_key\":\"k\",\"max_retries\":1,"
                          "\"base_delay_ms\":1,\"lease_until\":\"2026-01-01T00:00:00Z\"}")},
        .seq = (int64_t)n + 1,
        .persisted_us = 1};
}

static uint32_t find(const struct effect_set *set, uint64_t n) {
    uuid id = {{0}};
    memcpy(id.b, &n, sizeof(n));
    return effects_find(set, id);
}

static struct effect apply(struct effect_set *set, uint64_t n, enum event_type type) {
    struct event_record rec = fact_of(n, type);
    struct effect old = {0};
    struct error err = {0};
    uint32_t index = 0;
    CHECK(effects_apply(set, &rec, &arena, &index, &old, &err) == ST_OK, "%s", err.msg);
    CHECK(index == find(set, n) && uuid_eq(set->items[index].id, set->items[find(set, n)].id));
    return old;
}

TEST(effects_are_found_and_taken_back) {
    enum { N = 1000 };
    static struct effect old[N];
    struct effect_set set = {0};
    arena_init(&arena, 4096, SIZE_MAX);
    CHECK(find(&set, 0) == EFFECT_NOT_THERE);
    for (uint32_t i = 0; i < N; i++) {
        old[i] = apply(&set, i, EVENT_EFFECT_REQUESTED);
        CHECK(find(&set, i) == i && find(&set, i + 1) == EFFECT_NOT_THERE && set.open == i + 1);
    }
    struct effect pending = apply(&set, 7, EVENT_EFFECT_EXECUTING);
    struct effect under_way = apply(&set, 7, EVENT_EFFECT_COMPLETED);
    CHECK(set.open == N - 1 && set.count == N);
    effects_undo(&set, 7, &under_way);
    effects_undo(&set, 7, &pending);
    CHECK(set.open == N && set.items[7].status == OUTBOX_PENDING);
    for (uint32_t i = N; i > N / 2; i--) {
        effects_undo(&set, i - 1, &old[i - 1]);
        CHECK(find(&set, i - 1) == EFFECT_NOT_THERE && set.open == i - 1 && set.count == i - 1);
        for (uint32_t k = 0; k < i - 1; k += 97)
            CHECK(find(&set, k) == k, "%u of %u", k, i);
    }
    apply(&set, N / 2, EVENT_EFFECT_REQUESTED);
    CHECK(find(&set, N / 2) == N / 2 && set.open == N / 2 + 1);
    arena_release(&arena);
}

/* ---- in the cache ---- */

static void put(struct ledger *l, const char *type) {
    struct append_result result = {0};
    struct append_item item = {.event = {.type_name = str_c(type),
                                         .run_id = STR("r1"),
                                         .tenant_id = STR("acme"),
                                         .project_id = STR("p"),
                                         .environment_id = STR("e"),
                                         .plan_id = STR("pl"),
                                         .plan_version = STR("1"),
                                         .engine_attempt = 1,
                                         .logical_attempt = 1,
                                         .event_id = uuid_v4()}};
    struct append_request request = {
        .items = &item, .count = 1, .results = &result, .arena = &arena};
    struct append_request *all[] = {&request};
    struct error err = {0};
    event_key_derive(&item.event, item.event.key);
    CHECK(event_validate(&item.event, &err) == ST_OK, "%s", err.msg);
    CHECK(ledger_append(l, all, 1, &err) == ST_OK && result.code == ST_OK, "%s", err.msg);
}

/* A finished run stays while it has effects to be executed: else each step of each of them would
 * read the whole run again. */
TEST_DB(effects_keep_a_finished_run_in_memory) {
    struct ledger *l = NULL;
    struct error err = {0};
    struct effect_info info = {0};
    struct outbox_batch batch = {0};
    bool existing = false;
    log_setup(2, false, LOG_OFF);
    arena_init(&arena, 4096, SIZE_MAX);
    CHECK(ledger_open(url, NULL, &l, &err) == ST_OK, "%s", err.msg);
    put(l, "RunStarted");
    for (int i = 0; i < 2; i++) {
        struct effect_request request = {.run_id = STR("r1"),
                                         .type = STR("T"),
                                         .payload = i > 0 ? STR("{\"n\":1}") : STR("{}"),
                                         .max_retries = 0,
                                         .base_ms = 0};
        CHECK(outbox_request(l, &request, &arena, &info, &existing, &err) == ST_OK, "%s", err.msg);
    }
    put(l, "RunCompleted");
    CHECK(cache_get(&l->cache, STR("r1")));
    CHECK(outbox_claim(l, STR("w"), STR_NONE, 10, 60000, &arena, &batch, &err) == ST_OK, "%s",
          err.msg);
    CHECK(batch.count == 2 && cache_get(&l->cache, STR("r1")));
    CHECK(outbox_complete(l, &batch.items[0], STR("1"), STR("w"), &err) == ST_OK, "%s", err.msg);
    CHECK(cache_get(&l->cache, STR("r1")));
    CHECK(outbox_fail(l, &batch.items[1], STR("X"), STR("no"), STR_NONE, STR("w"), NULL, &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK(cache_get(&l->cache, STR("r1")), "one is done, the other is dead: there may be more");
    put(l, "RunNoted");
    CHECK(!cache_get(&l->cache, STR("r1")), "what is no effect says that it is over");
    ledger_close(l);
    arena_release(&arena);
}

/* Effects of a run that was over before: its history is read once, not for each of them. */
TEST_DB(effects_of_a_finished_run_read_it_once) {
    enum { N = 100 };
    struct ledger *l = NULL;
    struct error err = {0};
    log_setup(2, false, LOG_OFF);
    arena_init(&arena, 4096, SIZE_MAX);
    CHECK(ledger_open(url, NULL, &l, &err) == ST_OK, "%s", err.msg);
    put(l, "RunStarted");
    put(l, "RunCompleted");
    CHECK(!cache_get(&l->cache, STR("r1")));
    int64_t before = l->replays;
    for (int i = 0; i < N; i++) {
        struct effect_info info = {0};
        struct outbox_batch batch = {0};
        bool existing = false;
        char payload[32];
        int n = snprintf(payload, sizeof(payload), "{\"n\":%d}", i);
        struct effect_request request = {.run_id = STR("r1"),
                                         .type = STR("T"),
                                         .payload = str_n(payload, (size_t)n),
                                         .max_retries = 0,
                                         .base_ms = 0};
        CHECK(outbox_request(l, &request, &arena, &info, &existing, &err) == ST_OK, "%s", err.msg);
        CHECK(outbox_claim(l, STR("w"), STR_NONE, 10, 60000, &arena, &batch, &err) == ST_OK &&
              batch.count == 1);
        CHECK(outbox_complete(l, &batch.items[0], STR("1"), STR("w"), &err) == ST_OK);
    }
    CHECK(l->replays == before + 1, "read %lld times", (long long)(l->replays - before));
    ledger_close(l);
    arena_release(&arena);
}
