/* Every call of the database and every allocation fails once in each thing that the outbox does:
 * what was acknowledged is there, what was not can be done again, and nothing is done twice. */
#include "outbox_helper.h"

enum op { REQUEST, CLAIM, COMPLETE, FAIL, REQUEUE, READ, OPS };
static const char *const op_names[OPS] = {"request", "claim",   "complete",
                                          "fail",    "requeue", "read"};
enum fault { CALL_BEFORE, CALL_AFTER, ALLOCATION, FAULTS };
static const char *const fault_names[FAULTS] = {"call, before", "call, after", "allocation"};

struct trial {
    struct fixture *c, *reader;
    enum op op;
    enum fault fault;
    int64_t n;
    uuid id; /* of the effect that it is about */
    struct effect_info info;
    struct outbox_batch batch;
    bool existing;
};

static status do_op(struct trial *t, enum op op, struct error *err) {
    struct ledger *l = t->c->ledger;
    struct effect_info *items = NULL;
    struct outbox_stats stats;
    size_t count = 0;
    int64_t next = 0;
    struct outbox_filter all = {.tenant_id = STR("acme"), .run_id = STR("r1")};
    struct effect_request request = {
        .run_id = STR("r1"),
        .id = &t->id,
        .type = STR("FAX"),
        .payload = STR("{\"headers\":{\"Accept\":\"*/*\"},\"n\":[1,{\"b\":2,\"a\":1}]}"),
        .step_id = STR("s1"),
        .actor = STR("ada"),
        .max_retries = t->op == FAIL || t->op == REQUEUE || t->op == READ ? 0 : 1,
        .base_ms = 0};
    status st = ST_OK;
    switch (op) {
    case REQUEST:
        return outbox_request(l, &request, &t->c->arena, &t->info, &t->existing, err);
    case CLAIM:
        return outbox_claim(l, STR("w1"), STR_NONE, 10, 60000, &t->c->arena, &t->batch, err);
    case COMPLETE:
        return outbox_complete(l, &t->info, STR("{\"ok\":true}"), STR("w1"), err);
    case FAIL:
        return outbox_fail(l, &t->info, STR("X"), STR("no"), STR("at"), STR("w1"), NULL, err);
    case REQUEUE:
        return outbox_requeue(l, STR("acme"), t->id, STR("ada"), STR("fixed"), NULL, err);
    case READ:
    case OPS:
        st = outbox_find(l, STR("acme"), t->id, &t->c->arena, &t->info, err);
        if (st == ST_OK) st = outbox_list(l, &all, 1, &t->c->arena, &items, &count, &next, err);
        return st == ST_OK ? outbox_stats(l, &stats, err) : st;
    }
    return ST_INVALID;
}

static void must(struct trial *t, enum op op) {
    struct error err = {0};
    CHECK(do_op(t, op, &err) == ST_OK, "%s after %s %lld in %s: %s", op_names[op],
          fault_names[t->fault], (long long)t->n, op_names[t->op], err.msg);
    if (op != CLAIM) return;
    CHECK(t->batch.count == 1 && uuid_eq(t->batch.items[0].effect.id, t->id));
    t->info = t->batch.items[0];
}

/* "PENDING 0": its status and its executions; empty if it is not there. Asked of the other
 * connection: what is stored. */
static str stored(const struct trial *t) {
    str row = fixture_text(t->reader,
                           fixture_fmt("SELECT status || ' ' || executions FROM outbox_events WHERE"
                                       " aggregate_id = '%.*s'",
                                       STR_ARG(fixture_uuid_text(t->id))));
    return row.ptr ? row : STR("");
}

/* Brings a new effect to where the operation needs it. */
static void prepare(struct trial *t) {
    t->id = uuid_v4();
    if (t->op != REQUEST) must(t, REQUEST);
    if (t->op != REQUEST && t->op != CLAIM) must(t, CLAIM);
    if (t->op == REQUEUE || t->op == READ) must(t, FAIL);
}

static void check_acknowledged(const struct trial *t) {
    static const char *const want[OPS] = {"PENDING 0",     "PROCESSING 1", "COMPLETED 1",
                                          "DEAD_LETTER 1", "PENDING 1",    "DEAD_LETTER 1"};
    CHECK(text_is(stored(t), want[t->op]), "%s, %s %lld: %.*s", op_names[t->op],
          fault_names[t->fault], (long long)t->n, STR_ARG(stored(t)));
    if (t->op == REQUEST)
        CHECK(uuid_eq(t->info.effect.id, t->id) && t->info.payload.len > 0 &&
              text_is(t->info.step_id, "s1"));
    if (t->op == CLAIM) CHECK(t->batch.count == 1 && uuid_eq(t->batch.items[0].effect.id, t->id));
    if (t->op == READ)
        CHECK(text_is(t->info.error, "{\"code\":\"X\",\"message\":\"no\",\"stack\":\"at\"}") &&
              t->info.payload.len > 0 && t->info.key.len > 0);
}

/* It was not acknowledged: it is done, or not at all, and can be done again. */
static void recover(struct trial *t) {
    static const char *const before[OPS] = {
        "", "PENDING 0", "PROCESSING 1", "PROCESSING 1", "DEAD_LETTER 1", "DEAD_LETTER 1"};
    struct error err = {0};
    bool not_done = text_is(stored(t), before[t->op]);
    if (!not_done) CHECK(t->fault == CALL_AFTER || t->op == REQUEST, "%s", op_names[t->op]);
    if (t->op == CLAIM && !not_done) { /* taken, and the worker does not know: its lease ends */
        CHECK(text_is(stored(t), "PROCESSING 1"));
        CHECK(do_op(t, CLAIM, &err) == ST_OK && t->batch.count == 0);
        t->c->now_us += 60000000;
        must(t, CLAIM);
        CHECK(t->info.effect.executions == 2 && t->info.effect.retry_count == 1);
        return;
    }
    if (t->op == REQUEUE && !not_done) {
        CHECK(do_op(t, REQUEUE, &err) == ST_CONFLICT && err.reason == REASON_EFFECT_NOT_DEAD);
    } else {
        must(t, t->op);
    }
    CHECK(t->op != REQUEST || t->existing != not_done);
    check_acknowledged(t);
}

/* Leaves no work for the next trial. */
static void finish(struct trial *t) {
    if (t->op == REQUEST || t->op == REQUEUE) must(t, CLAIM);
    if (t->op == CLAIM) t->info = t->batch.items[0];
    if (t->op == REQUEST || t->op == REQUEUE || t->op == CLAIM) must(t, COMPLETE);
}

/* false: fewer than n + 1 calls. */
static bool try_once(struct trial *t) {
    struct error err = {0};
    arena_reset(&t->c->arena);
    prepare(t);
    if (t->fault == ALLOCATION)
        mem_fail_at(t->n);
    else
        fixture_fail_at(t->c, t->n, t->fault == CALL_AFTER);
    status st = do_op(t, t->op, &err);
    bool failed = t->fault == ALLOCATION ? mem_calls() > t->n : st != ST_OK;
    mem_fail_at(-1);
    fixture_fail_at(t->c, INT64_MAX, false);
    CHECK(st == ST_OK || st == ST_RETRY, "%s, %s %lld: status %d, %s", op_names[t->op],
          fault_names[t->fault], (long long)t->n, (int)st, err.msg);
    if (st == ST_OK)
        check_acknowledged(t);
    else
        recover(t);
    finish(t);
    return failed;
}

/* A failed call costs a new connection, which PostgreSQL takes its time for: there, every second
 * call fails, and some of the allocations. */
static int64_t stride(const struct trial *t) {
    if (!db_is_postgres(ledger_db(t->reader->ledger))) return 1;
    return t->fault == ALLOCATION ? 19 : 2;
}

TEST_DB(outbox_survives_every_failure) {
    struct fixture c;
    struct fixture reader;
    fixture_open_faulty(&c, url, LEDGER_REJECT);
    fixture_open_reader(&reader, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "s1", 1));
    for (enum op op = 0; op < OPS; op++) {
        for (enum fault fault = 0; fault < FAULTS; fault++) {
            struct trial t = {.c = &c, .reader = &reader, .op = op, .fault = fault};
            for (t.n = fault == CALL_AFTER; try_once(&t); t.n += stride(&t))
                CHECK(t.n < 2000);
            CHECK(t.n > 2, "%s, %s: only %lld", op_names[op], fault_names[fault], (long long)t.n);
        }
    }
    fixture_clean(&c);
    CHECK(fixture_int(&reader,
                      "SELECT COUNT(*) FROM outbox_events WHERE status NOT IN ('COMPLETED',"
                      "'DEAD_LETTER')") == 0);
    fixture_close(&c);
    fixture_close(&reader);
}
