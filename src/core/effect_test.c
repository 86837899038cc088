#include "core/effect.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/limits.h"
#include "test.h"

#define EPOCH_US INT64_C(1767528000000000) /* 2026-01-04T12:00:00Z */
static const char id_text[] = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";

/* ---- the reducer ---- */

#define REQUESTED                                                                                  \
    "{\"effect_type\":\"API_CALL\",\"idempotency_key\":\"k\",\"max_retries\":5,"                   \
    "\"base_delay_ms\":1000,\"payload\":{}}"
static const char *const data_of[] = {
    REQUESTED,
    "{\"lease_until\":\"2026-01-04T12:01:00Z\"}",
    "{\"result\":1}",
    "{\"retry_count\":1,\"next_retry_at\":\"2026-01-04T12:00:02Z\"}",
    "{}",
    "{}",
};
static const enum event_type types[] = {EVENT_EFFECT_REQUESTED, EVENT_EFFECT_EXECUTING,
                                        EVENT_EFFECT_COMPLETED, EVENT_EFFECT_FAILED,
                                        EVENT_EFFECT_RETRYING,  EVENT_EFFECT_DEAD_LETTERED};
enum { TYPES = COUNT_OF(types) };
static_assert(COUNT_OF(data_of) == TYPES, "data for each type");

static struct event_record record(enum event_type type, int64_t occurrence, const char *data) {
    struct event_record rec = {.seq = 7, .persisted_us = EPOCH_US + 3000000};
    rec.event.type = type;
    rec.event.type_name = event_type_info(type)->name;
    rec.event.subject = str_c(id_text);
    rec.event.logical_attempt = occurrence;
    rec.event.payload = str_c(data);
    return rec;
}

/* An effect as it is in the middle of its life: executed twice, failed once. */
static struct effect effect_in(enum outbox_status s) {
    struct effect e = {.status = s};
    if (s == OUTBOX_NONE) return e;
    e = (struct effect){.status = s,
                        .executions = 2,
                        .retry_count = 1,
                        .max_retries = 5,
                        .base_ms = 1000,
                        .created_us = EPOCH_US,
                        .requested_seq = 1,
                        .error_seq = 3,
                        .last_seq = 6,
                        .type = STR("API_CALL"),
                        .key = STR("k")};
    if (s != OUTBOX_COMPLETED && s != OUTBOX_DEAD_LETTER) e.due_us = EPOCH_US + 2000000;
    if (s == OUTBOX_COMPLETED) e.processed_us = EPOCH_US + 1000000;
    if (s == OUTBOX_COMPLETED) e.result_seq = 6;
    return e;
}

static bool same(const struct effect *a, const struct effect *b) {
    return a->status == b->status && a->executions == b->executions &&
           a->retry_count == b->retry_count && a->max_retries == b->max_retries &&
           a->base_ms == b->base_ms && a->due_us == b->due_us && a->created_us == b->created_us &&
           a->processed_us == b->processed_us && a->requested_seq == b->requested_seq &&
           a->result_seq == b->result_seq && a->error_seq == b->error_seq &&
           a->last_seq == b->last_seq && str_eq(a->type, b->type) && str_eq(a->key, b->key);
}

/* Every fact in every state, as the execution it should be of and as its neighbours. */
TEST(effect_apply_every_fact_in_every_state) {
    /* What it becomes when the fact's execution is (the effect's + `of`); OUTBOX_NONE: refused. */
    static const struct {
        int of;
        enum outbox_status next[OUTBOX_STATUS_COUNT];
    } table[TYPES] = {
        {0, {[OUTBOX_NONE] = OUTBOX_PENDING}}, /* the first occurrence of an effect that is not */
        {1, {[OUTBOX_PENDING] = OUTBOX_PROCESSING, [OUTBOX_FAILED] = OUTBOX_PROCESSING}},
        {0, {[OUTBOX_PROCESSING] = OUTBOX_COMPLETED}},
        {0, {[OUTBOX_PROCESSING] = OUTBOX_FAILED}},
        {0, {[OUTBOX_FAILED] = OUTBOX_FAILED, [OUTBOX_DEAD_LETTER] = OUTBOX_PENDING}},
        {0, {[OUTBOX_FAILED] = OUTBOX_DEAD_LETTER}},
    };
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    for (size_t t = 0; t < TYPES; t++) {
        for (int s = 0; s < OUTBOX_STATUS_COUNT; s++) {
            for (int64_t n = 1; n <= 4; n++) {
                struct effect e = effect_in((enum outbox_status)s);
                struct effect before = e;
                struct error err = {0};
                struct event_record rec = record(types[t], n, data_of[t]);
                int64_t right = s == OUTBOX_NONE ? 1 : e.executions + table[t].of;
                enum outbox_status want = n == right ? table[t].next[s] : OUTBOX_NONE;
                status st = effect_apply(&e, &rec, &arena, &err);
                CHECK(st == (want == OUTBOX_NONE ? ST_CONFLICT : ST_OK),
                      "%s of %d in %s: status %d", data_of[t], (int)n,
                      outbox_status_name((enum outbox_status)s), st);
                if (want == OUTBOX_NONE)
                    CHECK(same(&e, &before) && err.reason == REASON_EFFECT_MOVED,
                          "refused, and something changed");
                else
                    CHECK(e.status == want && e.last_seq == 7, "fact %zu in %s", t,
                          outbox_status_name((enum outbox_status)s));
            }
        }
    }
    arena_release(&arena);
}

/* What each accepted fact does to the other members. */
TEST(effect_apply_changes) {
    struct arena arena;
    struct error err = {0};
    arena_init(&arena, 4096, SIZE_MAX);
    struct effect e = {0};
    struct event_record rec = record(EVENT_EFFECT_REQUESTED, 1, data_of[0]);
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_OK);
    uuid id = {0};
    CHECK(uuid_parse(str_c(id_text), &id) && uuid_eq(e.id, id));
    CHECK(e.due_us == rec.persisted_us && e.created_us == rec.persisted_us);
    CHECK(e.requested_seq == 7 && e.max_retries == 5 && e.base_ms == 1000 && e.executions == 0);
    CHECK(str_eq(e.type, STR("API_CALL")) && str_eq(e.key, STR("k")));

    rec = record(EVENT_EFFECT_EXECUTING, 1, data_of[1]);
    rec.persisted_us = e.due_us - 1;
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_CONFLICT, "before its time");
    rec.persisted_us = e.due_us;
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_OK);
    CHECK(e.executions == 1 && e.due_us == EPOCH_US + 60000000);

    rec = record(EVENT_EFFECT_FAILED, 1, data_of[3]);
    rec.seq = 8;
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_OK);
    CHECK(e.retry_count == 1 && e.due_us == EPOCH_US + 2000000 && e.error_seq == 8);

    e = effect_in(OUTBOX_PROCESSING);
    rec = record(EVENT_EFFECT_COMPLETED, 2, data_of[2]);
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_OK);
    CHECK(e.processed_us == rec.persisted_us && e.result_seq == 7 && e.due_us == 0);

    e = effect_in(OUTBOX_DEAD_LETTER);
    rec = record(EVENT_EFFECT_RETRYING, 2, data_of[4]);
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_OK);
    CHECK(e.retry_count == 0 && e.error_seq == 0 && e.due_us == rec.persisted_us &&
          e.executions == 2);

    /* The last failure names no time, and is no reason to retry. */
    e = effect_in(OUTBOX_PROCESSING);
    rec = record(EVENT_EFFECT_FAILED, 2, "{\"retry_count\":2,\"next_retry_at\":null}");
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_OK && e.due_us == 0);
    rec = record(EVENT_EFFECT_RETRYING, 2, data_of[4]);
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_CONFLICT);
    arena_release(&arena);
}

TEST(effect_apply_needs_its_data) {
    static const struct {
        enum event_type type;
        enum outbox_status in;
        const char *data;
    } bad[] = {
        {EVENT_EFFECT_REQUESTED, OUTBOX_NONE, "{}"},
        {EVENT_EFFECT_REQUESTED, OUTBOX_NONE,
         "{\"effect_type\":\"\",\"idempotency_key\":\"k\",\"max_retries\":5,\"base_delay_ms\":1}"},
        {EVENT_EFFECT_REQUESTED, OUTBOX_NONE,
         "{\"effect_type\":\"A\",\"max_retries\":5,\"base_delay_ms\":1}"},
        {EVENT_EFFECT_REQUESTED, OUTBOX_NONE,
         "{\"effect_type\":\"A\",\"idempotency_key\":1,\"max_retries\":5,\"base_delay_ms\":1}"},
        {EVENT_EFFECT_REQUESTED, OUTBOX_NONE,
         "{\"effect_type\":\"A\",\"idempotency_key\":\"k\",\"base_delay_ms\":1}"},
        {EVENT_EFFECT_REQUESTED, OUTBOX_NONE,
         "{\"effect_type\":\"A\",\"idempotency_key\":\"k\",\"max_retries\":1001,\"base_delay_ms\":"
         "1}"},
        {EVENT_EFFECT_REQUESTED, OUTBOX_NONE,
         "{\"effect_type\":\"A\",\"idempotency_key\":\"k\",\"max_retries\":-1,\"base_delay_ms\":"
         "1}"},
        {EVENT_EFFECT_REQUESTED, OUTBOX_NONE,
         "{\"effect_type\":\"A\",\"idempotency_key\":\"k\",\"max_retries\":1,\"base_delay_ms\":"
         "86400001}"},
        {EVENT_EFFECT_EXECUTING, OUTBOX_PENDING, "{}"},
        {EVENT_EFFECT_EXECUTING, OUTBOX_PENDING, "{\"lease_until\":\"soon\"}"},
        {EVENT_EFFECT_FAILED, OUTBOX_PROCESSING, "{\"next_retry_at\":null}"},
        {EVENT_EFFECT_FAILED, OUTBOX_PROCESSING, "{\"retry_count\":1}"},
        {EVENT_EFFECT_FAILED, OUTBOX_PROCESSING, "{\"retry_count\":1,\"next_retry_at\":3}"},
    };
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct effect e = effect_in(bad[i].in);
        struct effect before = e;
        struct error err = {0};
        int64_t n = bad[i].type == EVENT_EFFECT_REQUESTED   ? 1
                    : bad[i].type == EVENT_EFFECT_EXECUTING ? 3
                                                            : 2;
        struct event_record rec = record(bad[i].type, n, bad[i].data);
        CHECK(effect_apply(&e, &rec, &arena, &err) == ST_INVALID && same(&e, &before) &&
                  err.reason == REASON_EFFECT_DATA_INVALID,
              "%s", bad[i].data);
    }
    struct effect e = {0};
    struct error err = {0};
    struct event_record rec = record(EVENT_EFFECT_REQUESTED, 1, data_of[0]);
    rec.event.subject = STR("effect-123");
    CHECK(effect_apply(&e, &rec, &arena, &err) == ST_INVALID && e.status == OUTBOX_NONE);
    arena_release(&arena);
}

TEST(effect_status_names) {
    for (int s = OUTBOX_PENDING; s < OUTBOX_STATUS_COUNT; s++)
        CHECK(outbox_status_named(str_c(outbox_status_name((enum outbox_status)s))) ==
              (enum outbox_status)s);
    static const char *const none[] = {"NONE", "", "pending", "PENDING ", "DEAD"};
    for (size_t i = 0; i < COUNT_OF(none); i++)
        CHECK(outbox_status_named(str_c(none[i])) == OUTBOX_NONE, "%s", none[i]);
}

/* ---- how often, and when again ---- */

TEST(effect_retry_of_each_type) {
    static const struct {
        const char *type;
        int64_t max_retries, base_ms;
    } canon[] = {
        {"SEND_EMAIL", 3, 2000}, {"API_CALL", 5, 1000}, {"SOR_UPDATE", 1, 5000}, {"FAX", 3, 1000}};
    const struct effect_retry own[] = {
        {STR("FAX"), 9, 10}, {STR("API_CALL"), 0, 0}, {STR("FAX"), 1, 1}, {STR_NONE, 7, 7}};
    for (size_t i = 0; i < COUNT_OF(canon); i++) {
        struct effect_retry r = effect_retry_of(str_c(canon[i].type), NULL);
        CHECK(r.max_retries == canon[i].max_retries && r.base_ms == canon[i].base_ms, "%s",
              canon[i].type);
    }
    CHECK(effect_retry_of(STR("FAX"), own).max_retries == 9, "the first that names it");
    CHECK(effect_retry_of(STR("API_CALL"), own).max_retries == 0);
    CHECK(effect_retry_of(STR("SEND_EMAIL"), own).base_ms == 2000);
    CHECK(effect_retry_of(STR("OTHER"), own).max_retries == EFFECT_RETRIES);
}

/* CE-7.1-2 */
TEST(effect_backoff_doubles_and_never_overflows) {
    CHECK(effect_backoff_ms(1, EFFECT_BASE_MS) == 2000);
    CHECK(effect_backoff_ms(3, EFFECT_BASE_MS) == 8000);
    CHECK(effect_backoff_ms(2, 5000) == 20000);
    CHECK(effect_backoff_ms(0, 1000) == 1000 && effect_backoff_ms(5, 0) == 0);
    CHECK(effect_backoff_ms(64, 1000) == EFFECT_DELAY_MAX_MS);
    CHECK(effect_backoff_ms(INT64_MAX, 1) == EFFECT_DELAY_MAX_MS);
    CHECK(effect_backoff_ms(1000, EFFECT_DELAY_MAX_MS) == EFFECT_DELAY_MAX_MS);
    int64_t last = 0;
    for (int64_t n = 0; n < 100; n++) {
        int64_t next = effect_backoff_ms(n, 7);
        CHECK(next >= last && next <= EFFECT_DELAY_MAX_MS);
        last = next;
    }
}

/* ---- its key ---- */

struct keys {
    struct arena arena;
    char mem[EFFECT_KEY_MAX + 1];
    struct buf out;
};

static status derive(struct keys *k, const char *id, const char *type, const char *payload,
                     struct error *err) {
    uuid u = {0};
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    arena_reset(&k->arena);
    buf_init_fixed(&k->out, k->mem, sizeof(k->mem));
    CHECK(uuid_parse(str_c(id), &u));
    CHECK(json_parse(str_c(payload), limits, &k->arena, &root, err) == ST_OK, "%s", err->msg);
    return effect_key(u, str_c(type), root, &k->arena, &k->out, err);
}

static bool derives(const char *type, const char *payload, const char *want) {
    struct keys k;
    struct error err = {0};
    arena_init(&k.arena, 4096, SIZE_MAX);
    CHECK(derive(&k, id_text, type, payload, &err) == ST_OK, "%s: %s", payload, err.msg);
    bool is = str_eq(buf_str(&k.out), str_c(want));
    if (!is) printf("%.*s\n", STR_ARG(buf_str(&k.out)));
    arena_release(&k.arena);
    return is;
}

/* CE-5.1-2: members in another order, at any depth, give the same key; CE-5.1-4: its form. */
TEST(effect_key_is_deterministic) {
    /* printf '{}' | sha256sum, and of the members in order */
    CHECK(derives("SEND_EMAIL", "{}",
                  "EFFECT:6ba7b810-9dad-41d1-80b4-00c04fd430c8:SEND_EMAIL:"
                  "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"));
    static const char *const orders[] = {
        "{\"a\":[{\"x\":1.50,\"y\":null},\"s\"],\"b\":{\"c\":true,\"d\":{\"e\":1,\"f\":2}},\"ab\":"
        "\"\"}",
        "{ \"b\":{\"d\":{\"f\":2,\"e\":1},\"c\":true}, \"ab\":\"\", \"a\":[{\"y\":null,\"x\":1.50}"
        ",\"s\"] }",
        "{\"ab\":\"\",\"a\":[{\"x\":1.50,\"y\":null},\"\\u0073\"],\"b\":{\"d\":{\"e\":1,\"f\":2},"
        "\"c\":true}}"};
    for (size_t i = 0; i < COUNT_OF(orders); i++)
        CHECK(derives("API_CALL", orders[i],
                      "EFFECT:6ba7b810-9dad-41d1-80b4-00c04fd430c8:API_CALL:"
                      "33dcfd79d4040447a9c1dccd987a3588d8558ca39d5e5924afc419a36e2d750b"),
              "order %zu", i);
    struct keys k;
    struct error err = {0};
    arena_init(&k.arena, 4096, SIZE_MAX);
    /* The order of an array is part of what it says. */
    CHECK(derive(&k, id_text, "A", "{\"a\":[1,2]}", &err) == ST_OK);
    char first[EFFECT_KEY_MAX + 1];
    memcpy(first, k.out.ptr, k.out.len);
    size_t len = k.out.len;
    CHECK(derive(&k, id_text, "A", "{\"a\":[2,1]}", &err) == ST_OK);
    CHECK(!str_eq(buf_str(&k.out), str_n(first, len)));
    arena_release(&k.arena);
}

/* CE-5.1-1: without a key one is derived; a bad one is refused, never replaced. */
TEST(effect_key_of_the_caller) {
    static const char *const good[] = {
        "k", "EFFECT:effect-123:SEND_EMAIL:00", "a b", "~!\\\"/", "6ba7b810", "alert:1", "ALERT"};
    static const char *const bad[] = {
        "\"\"", "\" k\"",  "\"k \"", "\"a\\nb\"", "\"\\u00e9\"", "\"a\\u007fb\"", "null",
        "17",   "[\"k\"]", "{}",     "true",      "\" \"",       "\"\\t\"",       "\"ALERT:1\"",
    };
    struct keys k;
    arena_init(&k.arena, 4096, SIZE_MAX);
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        char payload[200];
        struct buf b;
        struct error err = {0};
        buf_init_fixed(&b, payload, sizeof(payload) - 1);
        buf_put_c(&b, "{\"x\":1,\"idempotency_key\":");
        buf_put_json_str(&b, str_c(good[i]));
        buf_put_char(&b, '}');
        payload[b.len] = 0;
        CHECK(derive(&k, id_text, "A", payload, &err) == ST_OK, "%s: %s", payload, err.msg);
        CHECK(str_eq(buf_str(&k.out), str_c(good[i])), "%s", payload);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char payload[200];
        struct error err = {0};
        snprintf(payload, sizeof(payload), "{\"idempotency_key\":%s}", bad[i]);
        CHECK(derive(&k, id_text, "A", payload, &err) == ST_INVALID &&
                  err.reason == REASON_EFFECT_KEY_INVALID,
              "%s", payload);
        CHECK(k.out.len == 0);
    }
    for (size_t len = EFFECT_KEY_MAX; len <= EFFECT_KEY_MAX + 1; len++) {
        char payload[300] = "{\"idempotency_key\":\"";
        size_t at = strlen(payload);
        struct error err = {0};
        memset(payload + at, 'k', len);
        memcpy(payload + at + len, "\"}", 3);
        status st = derive(&k, id_text, "A", payload, &err);
        CHECK(st == (len <= EFFECT_KEY_MAX ? ST_OK : ST_INVALID), "%zu bytes", len);
    }
    arena_release(&k.arena);
}

static int by_bytes(const void *a, const void *b) { return memcmp(a, b, SHA256_LEN); }

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

/* CE-5.1-3: 100000 different inputs (of three tenants, each with effects of its own) have 100000
 * different keys. They differ in as little as one number, one type or one id. */
TEST(effect_keys_never_meet) {
    enum { INPUTS = 100000 };
    static const char *const kinds[] = {"SEND_EMAIL", "API_CALL", "WEBHOOK_CALL", "SOR_UPDATE"};
    uint8_t *hashes = malloc((size_t)INPUTS * SHA256_LEN);
    uint64_t seed = 2026;
    struct keys k;
    CHECK(hashes);
    arena_init(&k.arena, 4096, SIZE_MAX);
    for (int i = 0; i < INPUTS; i++) {
        char id[UUID_TEXT_LEN + 1];
        char payload[200];
        struct error err = {0};
        /* 300 ids, a third for each tenant; the number makes each input another. */
        snprintf(id, sizeof(id), "%08x-0000-4000-8000-%012x", i % 3, i % 300);
        snprintf(payload, sizeof(payload), "{\"n\":%d,\"tenant\":\"t%d\",\"r\":[%llu,\"%llx\"]}",
                 i / 1200, i % 3, (unsigned long long)next_random(&seed) % 3,
                 (unsigned long long)next_random(&seed) % 16);
        CHECK(derive(&k, id, kinds[i / 300 % 4], payload, &err) == ST_OK, "%s", err.msg);
        CHECK(k.out.len <= EFFECT_KEY_MAX);
        sha256_of(buf_str(&k.out), hashes + (size_t)i * SHA256_LEN);
    }
    qsort(hashes, INPUTS, SHA256_LEN, by_bytes);
    for (int i = 1; i < INPUTS; i++)
        CHECK(memcmp(hashes + (size_t)(i - 1) * SHA256_LEN, hashes + (size_t)i * SHA256_LEN,
                     SHA256_LEN) != 0);
    free(hashes);
    arena_release(&k.arena);
}
