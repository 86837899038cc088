/* Random lives of effects against a model that is nothing but an array, and what the ledger says of
 * itself afterwards: verify finds nothing, a rebuild changes no bit, every tampering is found. */
#include <stdlib.h>

#include "archive_helper.h"
#include "base/limits.h"
#include "base/time.h"
#include "outbox_helper.h"

enum { RUNS = 4, KEYS = 8, EFFECTS_MAX = 200, HANDLES_MAX = 400, LEASE_MS = 60000 };

struct model_effect {
    uuid id;
    enum outbox_status status;
    int64_t executions, retries, max_retries, base_ms, due_us;
    int tenant, key; /* key -1: made from the payload */
    bool was_dead;   /* while the events are read */
};

struct model {
    struct fixture c;
    uint64_t seed;
    struct model_effect effects[EFFECTS_MAX];
    int count;
    struct effect_info handles[HANDLES_MAX]; /* of every claim, also of those that are over */
    int handle_count;
    bool finished[RUNS];
    int64_t notes;
};

static int roll(struct model *m, int n) { return (int)(fixture_random(&m->seed) % (unsigned)n); }

static const char *run_name(int run) { return fixture_fmt("r%d", run); }
static int tenant_of(int run) { return run == RUNS - 1; }

static struct model_effect *by_key(struct model *m, int tenant, int key) {
    for (int i = 0; i < m->count; i++) {
        if (key >= 0 && m->effects[i].tenant == tenant && m->effects[i].key == key)
            return &m->effects[i];
    }
    return NULL;
}

static struct model_effect *by_id(struct model *m, uuid id) {
    for (int i = 0; i < m->count; i++) {
        if (uuid_eq(m->effects[i].id, id)) return &m->effects[i];
    }
    return NULL;
}

static struct append_item in_tenant(struct append_item item, int run) {
    if (tenant_of(run)) {
        item.event.tenant_id = STR("globex");
        event_key_derive(&item.event, item.event.key);
    }
    return item;
}

static void add(struct model *m, uuid id, int tenant, int key, int64_t max_retries,
                int64_t base_ms) {
    CHECK(m->count < EFFECTS_MAX);
    m->effects[m->count++] = (struct model_effect){.id = id,
                                                   .status = OUTBOX_PENDING,
                                                   .max_retries = max_retries,
                                                   .base_ms = base_ms,
                                                   .due_us = m->c.now_us,
                                                   .tenant = tenant,
                                                   .key = key};
}

/* ---- what happens ---- */

static void op_request(struct model *m) {
    int run = roll(m, RUNS);
    int key = roll(m, 3) > 0 ? roll(m, KEYS) : -1;
    int64_t max_retries = roll(m, 3);
    int64_t base_ms = roll(m, 4) * 1000;
    const char *text =
        key < 0 ? fixture_fmt("{\"n\":%d}", roll(m, 1000))
                : fixture_fmt("{\"n\":%d,\"idempotency_key\":\"k%d\"}", roll(m, 1000), key);
    struct effect_request request = {.run_id = str_c(run_name(run)),
                                     .type = STR("FAX"),
                                     .payload = str_c(text),
                                     .max_retries = max_retries,
                                     .base_ms = base_ms};
    struct effect_info info = {0};
    struct error err = {0};
    bool existing = false;
    struct model_effect *same = by_key(m, tenant_of(run), key);
    CHECK(outbox_request(m->c.ledger, &request, &m->c.arena, &info, &existing, &err) == ST_OK, "%s",
          err.msg);
    CHECK(existing == (same != NULL));
    CHECK(!same || uuid_eq(info.effect.id, same->id));
    if (!same) add(m, info.effect.id, tenant_of(run), key, max_retries, base_ms);
}

static bool comes_first(const struct model_effect *a, const struct model_effect *b) {
    if (a->due_us != b->due_us) return a->due_us < b->due_us;
    return a->tenant != b->tenant ? a->tenant < b->tenant : a < b;
}

static struct model_effect *next_due(struct model *m, const bool *taken) {
    struct model_effect *best = NULL;
    for (int i = 0; i < m->count; i++) {
        struct model_effect *e = &m->effects[i];
        if (taken[i] || e->due_us == 0 || e->due_us > m->c.now_us) continue;
        if (!best || comes_first(e, best)) best = e;
    }
    return best;
}

static void op_claim(struct model *m) {
    size_t limit = 1 + (size_t)roll(m, 5);
    struct outbox_batch b = {0};
    struct error err = {0};
    bool taken[EFFECTS_MAX] = {0};
    size_t got = 0;
    CHECK(outbox_claim(m->c.ledger, STR("w1"), STR_NONE, limit, LEASE_MS, &m->c.arena, &b, &err) ==
              ST_OK,
          "%s", err.msg);
    for (size_t i = 0; i < limit; i++) {
        struct model_effect *e = next_due(m, taken);
        if (!e) break;
        taken[e - m->effects] = true;
        bool dead = false;
        if (e->status == OUTBOX_PROCESSING) dead = ++e->retries > e->max_retries;
        e->status = dead ? OUTBOX_DEAD_LETTER : OUTBOX_PROCESSING;
        e->due_us = dead ? 0 : m->c.now_us + INT64_C(1000) * LEASE_MS;
        if (dead) continue;
        e->executions++;
        CHECK(got < b.count && uuid_eq(b.items[got].effect.id, e->id) &&
                  b.items[got].effect.executions == e->executions,
              "claim %zu of %zu", got, b.count);
        CHECK(m->handle_count < HANDLES_MAX);
        m->handles[m->handle_count++] = b.items[got++];
    }
    CHECK(got == b.count, "%zu, not %zu", b.count, got);
}

/* Of any claim, mostly a recent one. */
static struct effect_info *any_handle(struct model *m) {
    if (m->handle_count == 0) return NULL;
    int back = roll(m, roll(m, 3) == 0       ? m->handle_count
                       : m->handle_count < 4 ? m->handle_count
                                             : 4);
    return &m->handles[m->handle_count - 1 - back];
}

static void op_complete(struct model *m) {
    struct effect_info *h = any_handle(m);
    struct error err = {0};
    if (!h) return;
    struct model_effect *e = by_id(m, h->effect.id);
    bool newest = h->effect.executions == e->executions;
    bool ok = newest && (e->status == OUTBOX_PROCESSING || e->status == OUTBOX_COMPLETED);
    status st = outbox_complete(m->c.ledger, h, STR("{\"ok\":1}"), STR("w1"), &err);
    CHECK(st == (ok ? ST_OK : ST_CONFLICT), "status %d: %s", (int)st, err.msg);
    CHECK(ok || err.reason == REASON_EFFECT_MOVED);
    if (ok) e->status = OUTBOX_COMPLETED;
    if (ok) e->due_us = 0;
}

static void op_fail(struct model *m) {
    struct effect_info *h = any_handle(m);
    struct error err = {0};
    bool dead = false;
    if (!h) return;
    struct model_effect *e = by_id(m, h->effect.id);
    bool newest = h->effect.executions == e->executions;
    bool ok = newest && e->status != OUTBOX_COMPLETED; /* that it failed is told again, or news */
    status st = outbox_fail(m->c.ledger, h, STR("X"), STR("no"), STR_NONE, STR("w1"), &dead, &err);
    CHECK(st == (ok ? ST_OK : ST_CONFLICT), "status %d: %s", (int)st, err.msg);
    CHECK(ok || err.reason == REASON_EFFECT_MOVED);
    if (!ok || e->status != OUTBOX_PROCESSING) return;
    e->retries++;
    CHECK(dead == (e->retries > e->max_retries));
    e->status = dead ? OUTBOX_DEAD_LETTER : OUTBOX_FAILED;
    e->due_us = dead ? 0 : m->c.now_us + (e->base_ms << e->retries) * 1000;
}

static void op_requeue(struct model *m) {
    struct error err = {0};
    if (m->count == 0) return;
    struct model_effect *e = &m->effects[roll(m, m->count)];
    for (int i = 0; i < m->count && roll(m, 4) > 0; i++) /* rather one that is dead */
        if (m->effects[i].status == OUTBOX_DEAD_LETTER) e = &m->effects[i];
    bool ok = e->status == OUTBOX_DEAD_LETTER;
    status st = outbox_requeue(m->c.ledger, STR_NONE, e->id, STR("ada"), STR("try"), NULL, &err);
    CHECK(st == (ok ? ST_OK : ST_CONFLICT), "%s", err.msg);
    if (!ok) return;
    e->status = OUTBOX_PENDING;
    e->retries = 0;
    e->due_us = m->c.now_us;
}

/* Other events of the run in the group of a request, around it. With `back`, one of them is
 * forbidden and all is taken back. */
static void op_group(struct model *m, bool back) {
    int run = roll(m, RUNS);
    uuid id = uuid_v4();
    struct append_item items[4];
    struct append_result results[4];
    const char *name = run_name(run);
    items[0] = in_tenant(fixture_item("RunNoted", name, NULL, ++m->notes), run);
    items[1] =
        in_tenant(fixture_fact(EVENT_EFFECT_REQUESTED, name, fixture_uuid_text(id), 1, "{}"), run);
    items[2] = in_tenant(fixture_item("RunNoted", name, NULL, ++m->notes), run);
    /* It would be claimed in the same group, until that cannot be. */
    items[3] =
        in_tenant(fixture_fact(EVENT_EFFECT_EXECUTING, name, fixture_uuid_text(id), 1, "{}"), run);
    if (back) items[2] = in_tenant(fixture_item("RunStarted", name, NULL, 9), run);
    fixture_batch(&m->c, items, 4, true, results);
    for (int i = 0; i < 4; i++)
        CHECK(results[i].code == (back ? ST_CONFLICT : ST_OK), "%d", (int)results[i].code);
    if (back) return;
    add(m, id, tenant_of(run), -1, 5, 1000);
    struct model_effect *e = &m->effects[m->count - 1];
    e->status = OUTBOX_PROCESSING; /* until when fixture_fact() says */
    e->executions = 1;
    e->due_us = INT64_C(1794816000000000); /* 2026-11-16T08:00:00Z */
}

static void op_end_run(struct model *m) {
    int run = roll(m, RUNS);
    if (m->finished[run]) return;
    m->finished[run] = true;
    struct append_item item = in_tenant(fixture_item("RunCompleted", run_name(run), NULL, 1), run);
    fixture_put(&m->c, item);
}

static void op_checkpoint(struct model *m) {
    struct append_result res;
    struct error err = {0};
    CHECK(ledger_checkpoint(m->c.ledger, str_c(run_name(roll(m, RUNS))), &res, &m->c.arena, &err) ==
              ST_OK,
          "%s", err.msg);
}

static void op_time(struct model *m) {
    static const int64_t jumps[] = {1000, 1000000, 4000000, 61000000};
    m->c.now_us += jumps[roll(m, COUNT_OF(jumps))];
}

static void step(struct model *m) {
    enum { REQUEST, CLAIM, COMPLETE, FAIL, TIME, REQUEUE, GROUP, BACK, RARE, OPS };
    static const int weights[OPS] = {6, 8, 4, 9, 7, 2, 1, 1, 2};
    int at = roll(m, 40);
    int op = 0;
    for (; at >= weights[op]; op++)
        at -= weights[op];

    if (op == REQUEST) op_request(m);
    if (op == CLAIM) op_claim(m);
    if (op == COMPLETE) op_complete(m);
    if (op == FAIL) op_fail(m);
    if (op == TIME) op_time(m);
    if (op == REQUEUE) op_requeue(m);
    if (op == GROUP) op_group(m, false);
    if (op == BACK) op_group(m, true);
    int rare = op == RARE ? roll(m, 4) : -1;
    if (rare == 0) fixture_reopen(&m->c);
    if (rare == 1) op_end_run(m);
    if (rare == 2) op_checkpoint(m);
    if (rare == 3) (void)archive_run(&m->c, NULL);
}

/* ---- what is then there ---- */

static void compare(struct model *m) {
    struct effect_info *items = NULL;
    size_t count = 0;
    int64_t next = 0;
    struct error err = {0};
    struct outbox_filter all = {0};
    CHECK(outbox_list(m->c.ledger, &all, PAGE_EVENTS_MAX, &m->c.arena, &items, &count, &next,
                      &err) == ST_OK,
          "%s", err.msg);
    CHECK(count == (size_t)m->count && next == 0, "%zu rows, not %d", count, m->count);
    for (size_t i = 0; i < count; i++) {
        const struct effect *f = &items[i].effect;
        const struct model_effect *e = by_id(m, f->id);
        CHECK(e && f->status == e->status && f->executions == e->executions &&
                  f->retry_count == e->retries && f->due_us == e->due_us &&
                  f->max_retries == e->max_retries && f->base_ms == e->base_ms,
              "%s %lld %lld %lld, not %s %lld %lld %lld", outbox_status_name(f->status),
              (long long)f->executions, (long long)f->retry_count, (long long)f->due_us,
              e ? outbox_status_name(e->status) : "?", e ? (long long)e->executions : 0,
              e ? (long long)e->retries : 0, e ? (long long)e->due_us : 0);
        CHECK((items[i].result.ptr != NULL) == (f->status == OUTBOX_COMPLETED));
        CHECK((items[i].error.ptr != NULL) == (f->error_seq > 0));
    }
}

static void check_event(struct model *m, const struct event_record *rec) {
    uuid id = {0};
    if (event_family_of(&rec->event) != FAMILY_EFFECT) return;
    struct model_effect *e = uuid_parse(rec->event.subject, &id) ? by_id(m, id) : NULL;
    CHECK(e, "an effect that nobody asked for");
    yyjson_val *data = fixture_json(&m->c, rec->event.payload);
    if (rec->event.type == EVENT_EFFECT_EXECUTING) CHECK(!e->was_dead, "a dead letter is executed");
    if (rec->event.type == EVENT_EFFECT_DEAD_LETTERED) e->was_dead = true;
    if (json_member(data, "requeued")) e->was_dead = false;
    if (rec->event.type != EVENT_EFFECT_FAILED) return;
    str code = fixture_member(data, "error_code");
    str at = STR_NONE;
    int64_t retries = 0;
    int64_t ns = 0;
    int digits = 0;
    CHECK(json_int(json_member(data, "retry_count"), &retries));
    bool retried = json_str(json_member(data, "next_retry_at"), &at);
    CHECK(retried == (retries <= e->max_retries));
    if (!retried || !str_eq(code, STR("X"))) return; /* an expired lease has had its time */
    CHECK(time_parse_utc(at, &ns, &digits));
    CHECK(ns / 1000 - rec->persisted_us == (e->base_ms << retries) * 1000, "delay %lld",
          (long long)(ns / 1000 - rec->persisted_us));
}

static void check_events(struct model *m) {
    static const char *const tenants[] = {"acme", "globex"};
    for (size_t t = 0; t < COUNT_OF(tenants); t++) {
        struct event_page page = {.count = 1};
        struct error err = {0};
        for (int64_t after = 0; page.count > 0;) {
            CHECK(ledger_read_tenant(m->c.ledger, str_c(tenants[t]), after, 500, &m->c.arena, &page,
                                     &err) == ST_OK,
                  "%s", err.msg);
            for (size_t i = 0; i < page.count; i++)
                check_event(m, &page.records[i]);
            if (page.count > 0) after = page.records[page.count - 1].seq;
        }
    }
}

static void open_model(struct model *m, str url, uint64_t seed) {
    *m = (struct model){.seed = seed};
    fixture_open(&m->c, url);
    for (int i = 0; i < RUNS; i++) {
        struct append_item item = in_tenant(fixture_item("RunStarted", run_name(i), NULL, 1), i);
        fixture_put(&m->c, item);
    }
}

/* CE-11-8: each failure that a worker tells waits twice as long as the one before. CE-11-9: no
 * execution of a dead letter without a requeue. CE-11-1: and every row is what its events make of
 * it. */
TEST_DB(outbox_random_programs) {
    static struct model m;
    struct error err = {0};
    uint64_t seed = (uint64_t)clock_wall_us();
    int programs = fixture_scaled(5, 1);
    printf("seed %llu\n", (unsigned long long)seed);
    open_model(&m, url, seed);
    for (int p = 0; p < programs; p++) {
        for (int i = 0; i < 100 && m.count + 2 < EFFECTS_MAX && m.handle_count + 6 < HANDLES_MAX;
             i++) {
            step(&m);
            if (i % 8 == 0) compare(&m);
        }
        compare(&m);
        check_events(&m);
        for (int i = 0; i < m.count; i++)
            m.effects[i].was_dead = false;
        fixture_clean(&m.c);
        str state = fixture_state_dump(&m.c);
        str truth = fixture_truth_dump(&m.c);
        CHECK(ledger_rebuild(m.c.ledger, NULL, NULL, NULL, &err) == ST_OK, "%s", err.msg);
        CHECK(str_eq(fixture_state_dump(&m.c), state) && str_eq(fixture_truth_dump(&m.c), truth),
              "seed %llu", (unsigned long long)seed);
    }
    fixture_close(&m.c);
}

/* ---- tampering ---- */

/* One effect in each status. */
static void one_of_each(struct fixture *c) {
    struct error err = {0};
    fixture_put(c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(c, fixture_item("RunStarted", "r2", NULL, 1));
    for (int i = 0; i < 4; i++)
        (void)outbox_ask(c, "r1", "SOR_UPDATE", fixture_fmt("{\"n\":%d}", i));
    struct outbox_batch b = outbox_take(c, 4);
    CHECK(outbox_complete(c->ledger, &b.items[0], STR("1"), STR("w"), &err) == ST_OK);
    for (int i = 1; i < 3; i++)
        CHECK(outbox_fail(c->ledger, &b.items[i], STR("X"), STR("no"), STR_NONE, STR("w"), NULL,
                          &err) == ST_OK);
    c->now_us += 10000000;
    b = outbox_take(c, 1);
    CHECK(b.count == 1 && outbox_fail(c->ledger, &b.items[0], STR("X"), STR("no"), STR_NONE,
                                      STR("w"), NULL, &err) == ST_OK);
    (void)outbox_ask(c, "r1", "SOR_UPDATE", "{\"n\":9}");
    CHECK(fixture_int(c, "SELECT COUNT(DISTINCT status) FROM outbox_events") == 5);
}

static void check_found(struct fixture *c, const char *sql) {
    struct error err = {0};
    fixture_must_sql(c, sql);
    CHECK(fixture_verify(c, true).damaged, "not found: %s", sql);
    CHECK(ledger_rebuild(c->ledger, NULL, NULL, NULL, &err) == ST_OK, "%s", err.msg);
}

TEST_DB(outbox_tampering_is_found) {
    static const char *const numbers[] = {
        "effect_pos", "executions", "retry_count", "max_retries",  "base_ms",   "due_us",
        "last_seq",   "created_us", "error_seq",   "processed_us", "result_seq"};
    static const char *const optional[] = {"due_us", "processed_us", "result_seq", "error_seq"};
    static const char *const others[] = {
        "SET run_no = (SELECT run_no FROM ledger_run WHERE run_id = 'r2')",
        "SET tenant_no = tenant_no + 1",
        "SET effect_id = {sqlite:x'00112233445566778899aabbccddeeff'}{postgres:'\\x0011'::bytea}",
        "SET effect_type = 'SEND_EMAIL'",
        "SET idempotency_key = idempotency_key || 'x'",
        "SET status = 'PROCESSING'",
        "SET status = 'DEAD_LETTER'",
    };
    struct fixture c;
    fixture_open(&c, url);
    one_of_each(&c);
    fixture_clean(&c);
    str state = fixture_state_dump(&c);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        int64_t pos =
            fixture_int(&c, fixture_fmt("SELECT MAX(effect_pos) FROM state_effect WHERE %s IS"
                                        " NOT NULL",
                                        numbers[i]));
        check_found(&c, fixture_fmt("UPDATE state_effect SET %s = %s + 1 WHERE effect_pos = %lld",
                                    numbers[i], numbers[i], (long long)pos));
    }
    for (size_t i = 0; i < COUNT_OF(optional); i++) {
        check_found(&c, fixture_fmt("UPDATE state_effect SET %s = 0 WHERE %s IS NULL", optional[i],
                                    optional[i]));
        check_found(&c, fixture_fmt("UPDATE state_effect SET %s = NULL WHERE %s IS NOT NULL",
                                    optional[i], optional[i]));
    }
    for (size_t i = 0; i < COUNT_OF(others); i++)
        check_found(&c, fixture_fmt("UPDATE state_effect %s WHERE status = 'FAILED'", others[i]));
    check_found(&c, "DELETE FROM state_effect WHERE status = 'COMPLETED'");
    check_found(&c, "DELETE FROM state_effect");
    check_found(&c, "INSERT INTO state_effect(effect_pos, tenant_no, run_no, effect_id,"
                    " effect_type, idempotency_key, created_us, base_ms, last_seq) SELECT 99,"
                    " tenant_no, (SELECT run_no FROM ledger_run WHERE run_id = 'r2'),"
                    " {sqlite:x'0011'}{postgres:'\\x0011'::bytea}, 'X', 'k', 1, 1, 1"
                    " FROM state_effect WHERE status = 'FAILED'");
    CHECK(str_eq(fixture_state_dump(&c), state), "a rebuild makes all of it again");
    fixture_clean(&c);
    fixture_close(&c);
}
