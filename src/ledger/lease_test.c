#include "ledger/lease.h"

#include "base/time.h"
#include "test.h"

struct bench {
    struct ledger *ledger;
    struct arena arena;
};

static struct bench open_bench(str url) {
    struct bench b = {0};
    struct error err = {0};
    CHECK(ledger_open(url, NULL, &b.ledger, &err) == ST_OK, "%s", err.msg);
    arena_init(&b.arena, 4096, (size_t)16 * 1024 * 1024);
    return b;
}

static void close_bench(struct bench *b) {
    ledger_close(b->ledger);
    arena_release(&b->arena);
}

static struct event make_event(const char *type, const char *run) {
    struct event e = {.type_name = str_c(type),
                      .run_id = str_c(run),
                      .tenant_id = STR("acme"),
                      .project_id = STR("p"),
                      .environment_id = STR("e"),
                      .plan_id = STR("plan"),
                      .plan_version = STR("1"),
                      .engine_attempt = 1,
                      .logical_attempt = 1,
                      .event_id = uuid_v4(),
                      .emitted_ns = clock_wall_us() * 1000,
                      .emitted_digits = 6};
    struct error err = {0};
    event_key_derive(&e, e.key);
    CHECK(event_validate(&e, &err) == ST_OK, "%s", err.msg);
    return e;
}

static struct append_result put_by(struct bench *b, const char *type, const char *run,
                                   const struct run_claim *claim, bool outside) {
    struct append_item item = {.event = make_event(type, run)};
    struct append_result result = {0};
    struct append_request request = {.items = &item,
                                     .count = 1,
                                     .atomic = true,
                                     .results = &result,
                                     .arena = &b->arena,
                                     .claim = claim,
                                     .outside = outside};
    struct append_request *requests[] = {&request};
    struct error err = {0};
    CHECK(ledger_append(b->ledger, requests, 1, &err) == ST_OK, "%s", err.msg);
    return result;
}

static struct append_result put(struct bench *b, const char *type, const char *run,
                                const struct run_claim *claim) {
    return put_by(b, type, run, claim, false);
}

static size_t due(struct bench *b, int64_t node, int64_t from, int64_t to) {
    struct lease_runs runs = {0};
    struct error err = {0};
    struct lease_range range = {.from_us = from, .to_us = to, .limit = 10};
    CHECK(lease_due(b->ledger, node, &range, &b->arena, &runs, &err) == ST_OK, "%s", err.msg);
    return runs.count;
}

static struct run_claim claim(const struct lease *l, enum claim_act act, int64_t wake) {
    return (struct run_claim){
        .act = act, .node_no = l->node_no, .epoch = l->epoch, .wake_us = wake};
}

TEST_DB(lease_claims_travel_with_their_events) {
    struct bench b = open_bench(url);
    struct error err = {0};
    struct lease me = {0};
    CHECK(lease_take(b.ledger, STR("me"), 60000, &me, &err) == ST_OK, "%s", err.msg);
    CHECK(me.epoch == 1 && me.node_no == 1);
    struct run_claim c = claim(&me, CLAIM_OPEN, 0);
    CHECK(put(&b, "RunStarted", "r1", &c).code == ST_OK);
    CHECK(put(&b, "RunStarted", "r1", &c).duplicate); /* changes nothing, its claim neither */
    CHECK(due(&b, me.node_no, 0, 0) == 1 && due(&b, me.node_no, 1, INT64_MAX) == 0);
    c = claim(&me, CLAIM_MOVE, 5000);
    CHECK(put(&b, "RunPaused", "r1", &c).code == ST_OK);
    CHECK(due(&b, me.node_no, 0, 0) == 0 && due(&b, me.node_no, 1, 4999) == 0);
    CHECK(due(&b, me.node_no, 1, 5000) == 1);
    /* A refused event takes its claim with it. */
    c = claim(&me, CLAIM_CLOSE, 0);
    CHECK(put(&b, "RunCompleted", "r1", &c).code == ST_CONFLICT);
    CHECK(due(&b, me.node_no, 1, 5000) == 1);
    c = claim(&me, CLAIM_MOVE, CLAIM_NEVER);
    CHECK(put(&b, "RunResumed", "r1", &c).code == ST_OK);
    CHECK(due(&b, me.node_no, 0, INT64_MAX) == 0);
    struct run_info info;
    struct lease_info where;
    CHECK(ledger_find_run(b.ledger, STR("r1"), &b.arena, &info, &err) == ST_OK);
    CHECK(lease_find(b.ledger, info.run_no, &b.arena, &where, &err) == ST_OK);
    CHECK(where.held && where.alive && str_eq(where.node, STR("me")));
    c = claim(&me, CLAIM_CLOSE, 0);
    CHECK(put(&b, "RunCompleted", "r1", &c).code == ST_OK);
    CHECK(lease_find(b.ledger, info.run_no, &b.arena, &where, &err) == ST_OK && !where.held);
    close_bench(&b);
}

static void check_owned(struct bench *b, const char *type, const char *run) {
    struct append_result r = put_by(b, type, run, NULL, true);
    CHECK(r.code == ST_CONFLICT && r.err->reason == REASON_RUN_ENGINE_OWNED, "%s: %s", type,
          r.err ? r.err->msg : "taken");
}

/* What a node carries out, nobody else can change by an event; nor once the ledger was reopened. */
TEST_DB(lease_keeps_producers_out) {
    struct bench b = open_bench(url);
    struct error err = {0};
    struct lease me = {0};
    CHECK(lease_take(b.ledger, STR("me"), 60000, &me, &err) == ST_OK, "%s", err.msg);
    struct run_claim c = claim(&me, CLAIM_OPEN, 0);
    CHECK(put(&b, "RunStarted", "r1", &c).code == ST_OK);
    check_owned(&b, "RunCancelled", "r1");
    CHECK(put_by(&b, "RunStarted", "r1", NULL, true).duplicate); /* it is there: no harm */
    CHECK(put_by(&b, "RunMeasured", "r1", NULL, true).code ==
          ST_OK); /* says nothing of its state */
    CHECK(put_by(&b, "RunStarted", "r2", NULL, true).code == ST_OK);
    CHECK(put_by(&b, "RunCancelled", "r2", NULL, true).code == ST_OK); /* nobody's */
    close_bench(&b);
    b = open_bench(url);
    check_owned(&b, "RunPaused", "r1");
    c = claim(&me, CLAIM_CLOSE, 0);
    CHECK(put(&b, "RunCompleted", "r1", &c).code == ST_OK);
    struct append_result late = put_by(&b, "RunCancelled", "r1", NULL, true);
    CHECK(late.code == ST_CONFLICT && late.err->reason == REASON_INVALID_TRANSITION);
    close_bench(&b);
}

/* A node whose epoch has moved on can change nothing. */
TEST_DB(lease_fences_the_node_that_lost_it) {
    struct bench b = open_bench(url);
    struct error err = {0};
    struct lease old = {0};
    struct lease new = {0};
    CHECK(lease_take(b.ledger, STR("me"), 0, &old, &err) == ST_OK, "%s", err.msg);
    struct run_claim c = claim(&old, CLAIM_OPEN, 0);
    CHECK(put(&b, "RunStarted", "r1", &c).code == ST_OK);
    CHECK(lease_take(b.ledger, STR("me"), 60000, &new, &err) == ST_OK, "%s", err.msg);
    CHECK(new.node_no == old.node_no &&new.epoch == old.epoch + 1);
    c = claim(&old, CLAIM_NONE, 0);
    struct append_result r = put(&b, "RunPaused", "r1", &c);
    CHECK(r.code == ST_CONFLICT && r.err->reason == REASON_LEASE_LOST);
    CHECK(lease_renew(b.ledger, &old, 1000, &err) == ST_CONFLICT);
    CHECK(err.reason == REASON_LEASE_LOST);
    CHECK(lease_renew(b.ledger, &new, 1000, &err) == ST_OK, "%s", err.msg);
    c = claim(&new, CLAIM_NONE, 0);
    CHECK(put(&b, "RunPaused", "r1", &c).code == ST_OK);
    close_bench(&b);
}

TEST_DB(lease_of_a_dead_node_is_taken_over) {
    struct bench b = open_bench(url);
    struct error err = {0};
    struct lease dead = {0};
    struct lease me = {0};
    struct lease_runs runs = {0};
    CHECK(lease_take(b.ledger, STR("dead"), -1, &dead, &err) == ST_OK, "%s", err.msg);
    CHECK(lease_take(b.ledger, STR("me"), 60000, &me, &err) == ST_OK, "%s", err.msg);
    struct run_claim c = claim(&dead, CLAIM_OPEN, 0);
    static const char *const ids[] = {"r1", "r2", "r3"};
    for (int i = 0; i < 3; i++)
        CHECK(put(&b, "RunStarted", ids[i], &c).code == ST_OK);
    CHECK(lease_take_over(b.ledger, &me, 2, &b.arena, &runs, &err) == ST_OK && runs.count == 2);
    CHECK(str_eq(runs.items[0].run_id, STR("r1")) && str_eq(runs.items[1].run_id, STR("r2")));
    c = claim(&dead, CLAIM_NONE, 0);
    CHECK(put(&b, "RunPaused", "r3", &c).code == ST_CONFLICT); /* fenced with the first of them */
    CHECK(lease_take_over(b.ledger, &me, 9, &b.arena, &runs, &err) == ST_OK && runs.count == 1);
    CHECK(lease_take_over(b.ledger, &me, 9, &b.arena, &runs, &err) == ST_OK && runs.count == 0);
    CHECK(due(&b, me.node_no, 0, 0) == 3);
    close_bench(&b);
}

TEST_DB(lease_is_woken_by_those_who_do_not_hold_it) {
    struct bench b = open_bench(url);
    struct error err = {0};
    struct lease me = {0};
    struct lease_runs runs = {0};
    CHECK(lease_take(b.ledger, STR("me"), 60000, &me, &err) == ST_OK, "%s", err.msg);
    struct run_claim c = claim(&me, CLAIM_OPEN, CLAIM_NEVER);
    CHECK(put(&b, "RunStarted", "r1", &c).code == ST_OK);
    struct run_claim wake = {.act = CLAIM_WAKE};
    CHECK(put(&b, "RunPaused", "r1", &wake).code == ST_OK);
    CHECK(due(&b, me.node_no, 0, 0) == 1);   /* a restart would find it */
    c = claim(&me, CLAIM_MOVE, CLAIM_NEVER); /* a commit of ours that knew nothing of that */
    CHECK(put(&b, "RunResumed", "r1", &c).code == ST_OK);
    CHECK(lease_woken(b.ledger, &me, 9, &b.arena, &runs, &err) == ST_OK && runs.count == 1);
    CHECK(str_eq(runs.items[0].run_id, STR("r1")));
    CHECK(lease_woken(b.ledger, &me, 9, &b.arena, &runs, &err) == ST_OK && runs.count == 0);
    close_bench(&b);
}

/* On PostgreSQL a name belongs to one process at a time; on SQLite the folder's lock sees to that.
 */
TEST(lease_names_are_exclusive_on_postgres) {
    str url = test_db_url("postgres");
    if (!url.ptr) test_skip("no PostgreSQL server");
    struct bench b = open_bench(url);
    struct error err = {0};
    struct lease one = {0};
    struct lease two = {0};
    CHECK(lease_take(b.ledger, STR("n"), 60000, &one, &err) == ST_OK, "%s", err.msg);
    CHECK(lease_take(b.ledger, STR("n"), 60000, &two, &err) == ST_CONFLICT);
    CHECK(err.reason == REASON_NODE_ALIVE);
    CHECK(lease_release(b.ledger, &one, &err) == ST_OK, "%s", err.msg);
    CHECK(lease_take(b.ledger, STR("n"), 60000, &two, &err) == ST_OK, "%s", err.msg);
    close_bench(&b);
}

TEST_DB(lease_counts_what_is_active) {
    struct bench b = open_bench(url);
    struct error err = {0};
    int64_t n = -1;
    (void)put(&b, "RunStarted", "r1", NULL);
    (void)put(&b, "RunStarted", "r2", NULL);
    (void)put(&b, "RunQueued", "r3", NULL);
    (void)put(&b, "RunCompleted", "r2", NULL);
    CHECK(lease_active(b.ledger, STR("acme"), STR_NONE, &n, &err) == ST_OK && n == 1);
    CHECK(lease_active(b.ledger, STR("acme"), STR("plan"), &n, &err) == ST_OK && n == 1);
    CHECK(lease_active(b.ledger, STR("acme"), STR("other"), &n, &err) == ST_OK && n == 0);
    CHECK(lease_active(b.ledger, STR("nobody"), STR_NONE, &n, &err) == ST_OK && n == 0);
    close_bench(&b);
}
