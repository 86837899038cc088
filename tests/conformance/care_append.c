/* What an append promises: all or nothing, once, with the same answer each time. */
#include "base/limits.h"
#include "conformance/fixture.h"

static struct append_item in_tenant(struct append_item item, const char *tenant) {
    item.event.tenant_id = str_c(tenant);
    fixture_rekey(&item);
    return item;
}

/* ---- atomic batches ---- */

/* The batch must be refused as a whole because of item `bad`, and leave nothing. */
static void check_taken_back(struct fixture *c, struct append_item *items, size_t count, size_t bad,
                             const char *reason) {
    struct append_result results[8];
    str state = fixture_state_dump(c);
    str events = fixture_lines(c, "SELECT id FROM orchestration_events ORDER BY position");
    int64_t runs = fixture_int(c, "SELECT COUNT(*) FROM ledger_run");
    struct append_request req = {
        .items = items, .count = count, .atomic = true, .results = results, .arena = &c->arena};
    struct append_request *requests[] = {&req};
    struct error err = {0};
    CHECK(ledger_append(c->ledger, requests, 1, &err) == ST_OK, "%s", err.msg);
    CHECK(req.culprit == bad, "%zu, not %zu", req.culprit, bad);
    for (size_t i = 0; i < count; i++) {
        CHECK(results[i].code == results[bad].code &&
                  strcmp(reason_name(results[i].err->reason), reason) == 0,
              "item %zu", i);
        CHECK(results[i].seq == 0 && results[i].run_seq == 0 && !results[i].duplicate, "item %zu",
              i);
        const char *blame = fixture_fmt("item %zu of the batch", bad + 1);
        CHECK(i == bad || strstr(results[i].err->msg, blame), "item %zu: %s", i,
              results[i].err->msg);
    }
    CHECK(str_eq(state, fixture_state_dump(c)) &&
          fixture_int(c, "SELECT COUNT(*) FROM ledger_run") == runs);
    CHECK(
        str_eq(events, fixture_lines(c, "SELECT id FROM orchestration_events ORDER BY position")));
    fixture_clean(c);
}

/* One bad item takes everything back: state, new runs, new tenants' events; and what follows is
 * numbered as if it had not been. */
TEST_DB(care_atomic_refusal_takes_everything_back) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "s", 1));
    struct append_item mixed[] = {
        fixture_item("StepCompleted", "r1", "s", 1), fixture_item("StepStarted", "r1", "t", 1),
        fixture_item("RunStarted", "r1", NULL, 2), fixture_item("RunCompleted", "r1", NULL, 1)};
    check_taken_back(&c, mixed, 4, 2, "INVALID_TRANSITION");
    struct append_item opens[] = {fixture_item("RunStarted", "new", NULL, 1),
                                  fixture_item("StepStarted", "new", "s", 1),
                                  in_tenant(fixture_item("RunStarted", "far", NULL, 1), "globex"),
                                  fixture_item("StepCompleted", "new", "other", 1)};
    check_taken_back(&c, opens, 4, 3, "INVALID_TRANSITION");
    struct append_item again[] = {
        fixture_item("RunStarted", "r1", NULL, 1), fixture_item("StepStarted", "r1", "u", 1),
        fixture_item("StepStarted", "r1", "u", 1), fixture_item("StepSkipped", "r1", "s", 1)};
    check_taken_back(&c, again, 4, 3,
                     "INVALID_TRANSITION"); /* a duplicate of the store, one of the batch */
    struct append_item first[] = {fixture_item("RunResumed", "r1", NULL, 1),
                                  fixture_item("RunNoted", "r1", NULL, 1)};
    check_taken_back(&c, first, 2, 0, "INVALID_TRANSITION");

    CHECK(fixture_put(&c, opens[0]).seq == 3);
    CHECK(fixture_put(&c, mixed[0]).run_seq == 3);
    fixture_clean(&c);
    fixture_close(&c);
}

/* A refused batch between others of the same commit: its neighbours stay. */
TEST_DB(care_a_refused_batch_leaves_its_neighbours) {
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, url);
    struct append_item good[] = {fixture_item("RunStarted", "r1", NULL, 1)};
    struct append_item bad[] = {fixture_item("RunPaused", "r1", NULL, 1),
                                fixture_item("RunStarted", "r2", NULL, 1),
                                fixture_item("RunStarted", "r2", NULL, 2)};
    struct append_item late[] = {fixture_item("RunStarted", "r2", NULL, 1),
                                 fixture_item("RunCompleted", "r1", NULL, 1)};
    struct append_result res[3][3];
    struct append_request reqs[] = {
        {.items = good, .count = 1, .atomic = true, .results = res[0], .arena = &c.arena},
        {.items = bad, .count = 3, .atomic = true, .results = res[1], .arena = &c.arena},
        {.items = late, .count = 2, .atomic = true, .results = res[2], .arena = &c.arena}};
    struct append_request *all[] = {&reqs[0], &reqs[1], &reqs[2]};
    CHECK(ledger_append(c.ledger, all, 3, &err) == ST_OK, "%s", err.msg);
    CHECK(res[0][0].code == ST_OK && res[0][0].seq == 1);
    CHECK(res[1][0].code == ST_CONFLICT && res[1][1].code == ST_CONFLICT &&
          res[1][2].code == ST_CONFLICT);
    CHECK(res[2][0].code == ST_OK && res[2][0].seq == 2 && res[2][1].code == ST_OK &&
          res[2][1].run_seq == 2);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events") == 3);
    fixture_clean(&c);
    fixture_close(&c);
}

/* Without `atomic` each item stands for itself. */
TEST_DB(care_items_stand_for_themselves) {
    struct fixture c;
    struct append_result results[4];
    fixture_open(&c, url);
    struct append_item items[] = {
        fixture_item("RunPaused", "r1", NULL, 1), fixture_item("RunStarted", "r1", NULL, 1),
        fixture_item("RunStarted", "r1", NULL, 2), fixture_item("RunCompleted", "r1", NULL, 1)};
    fixture_batch(&c, items, 4, false, results);
    CHECK(results[0].code == ST_CONFLICT && results[1].code == ST_OK &&
          results[2].code == ST_CONFLICT && results[3].code == ST_OK);
    CHECK(results[1].run_seq == 1 && results[3].run_seq == 2);
    struct error err = {0};
    CHECK(ledger_append(c.ledger, NULL, 0, &err) == ST_OK); /* nothing to do is fine */
    fixture_close(&c);
}

enum { LARGE_RUNS = 150, LARGE_EACH = 4, LARGE_ITEMS = LARGE_RUNS * LARGE_EACH };

/* Runs of four events; of every ninth the third is refused, of every 25th the first is stored. */
static void make_large(struct fixture *c, struct append_item items[LARGE_ITEMS]) {
    for (int i = 0; i < LARGE_RUNS; i++) {
        static char names[LARGE_RUNS][16];
        snprintf(names[i], sizeof(names[i]), "run-%d", i);
        struct append_item *at = &items[(size_t)i * LARGE_EACH];
        at[0] = fixture_item("RunStarted", names[i], NULL, 1);
        at[1] = fixture_item("StepStarted", names[i], "s", 1);
        at[2] = fixture_item(i % 9 == 0 ? "RunResumed" : "StepCompleted", names[i],
                             i % 9 == 0 ? NULL : "s", 1);
        at[3] = fixture_item("RunCompleted", names[i], NULL, 1);
        if (i % 25 == 24) fixture_put(c, at[0]);
    }
}

/* Returns how many of them are stored. */
static int64_t check_large(const struct append_result res[LARGE_ITEMS], bool again) {
    int64_t stored = 0;
    for (int i = 0; i < LARGE_ITEMS; i++) {
        bool refused = i % LARGE_EACH == 2 && i / LARGE_EACH % 9 == 0;
        bool known = again || (i % LARGE_EACH == 0 && i / LARGE_EACH % 25 == 24);
        CHECK(res[i].code == (refused ? ST_CONFLICT : ST_OK), "item %d", i);
        CHECK(refused || res[i].duplicate == known, "item %d", i);
        stored += !refused;
    }
    return stored;
}

/* A group so large that PostgreSQL gets its rows while it is being made: stored duplicates that
 * must be looked up, refusals and a batch that takes itself back in between change nothing. */
TEST_DB(care_a_large_group_is_stored_whole) {
    enum { HALF = LARGE_ITEMS / 2 };
    static struct append_item items[LARGE_ITEMS];
    static struct append_result res[LARGE_ITEMS];
    struct append_item bad[] = {fixture_item("RunStarted", "late", NULL, 1),
                                fixture_item("StepStarted", "late", "s", 1),
                                fixture_item("RunResumed", "late", NULL, 1)};
    struct append_item last[] = {fixture_item("RunStarted", "last", NULL, 1)};
    struct append_result bad_res[3] = {0};
    struct append_result last_res[1] = {0};
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, url);
    make_large(&c, items);
    int64_t before = fixture_int(&c, "SELECT COUNT(*) FROM ledger_event");
    struct append_request reqs[] = {
        {.items = items, .count = HALF, .results = res, .arena = &c.arena},
        {.items = bad, .count = 3, .atomic = true, .results = bad_res, .arena = &c.arena},
        {.items = items + HALF, .count = HALF, .results = res + HALF, .arena = &c.arena},
        {.items = last, .count = 1, .atomic = true, .results = last_res, .arena = &c.arena}};
    struct append_request *all[] = {&reqs[0], &reqs[1], &reqs[2], &reqs[3]};
    for (int pass = 0; pass < 2; pass++) { /* the second time all of it is there */
        CHECK(ledger_append(c.ledger, all, 4, &err) == ST_OK, "%s", err.msg);
        int64_t stored = check_large(res, pass == 1);
        CHECK(bad_res[0].code == ST_CONFLICT && bad_res[2].code == ST_CONFLICT);
        CHECK(last_res[0].code == ST_OK && last_res[0].duplicate == (pass == 1));
        CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_event") == stored + 1);
        CHECK(before < stored);
        fixture_clean(&c);
    }
    fixture_close(&c);
}

/* ---- once ---- */

/* The same event twice in one commit, and again later, and after a restart: one record, the same
 * answer. */
TEST_DB(care_a_duplicate_gets_the_first_answer) {
    struct fixture c;
    struct append_result results[3];
    fixture_open(&c, url);
    struct append_item first = fixture_item_with("RunStarted", "r1", NULL, 1, "{\"a\":1}");
    struct append_item again = fixture_item_with("RunStarted", "r1", NULL, 1, "{\"a\":2}");
    struct append_item items[] = {first, again, first};
    fixture_batch(&c, items, 3, false, results);
    CHECK(!results[0].duplicate && results[1].duplicate && results[2].duplicate);
    for (int pass = 0; pass < 3; pass++) {
        c.now_us += 1000000;
        struct append_result res = pass < 2 ? fixture_try(&c, again) : results[1];
        CHECK(res.code == ST_OK && res.duplicate && uuid_eq(res.event_id, first.event.event_id),
              "pass %d", pass);
        CHECK(res.run_seq == 1 && res.seq == 1 && res.persisted_us == FIXTURE_NOW_US, "pass %d",
              pass);
        fixture_reopen(&c);
    }
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events") == 1);
    fixture_close(&c);
}

/* A duplicate stays one even when the event would be illegal by now, or names a wrong project. */
TEST_DB(care_a_duplicate_is_found_before_anything_else) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_finished_run(&c, "r1", 1);
    struct append_item again = fixture_item("StepStarted", "r1", "s0", 1);
    again.event.project_id = STR("other");
    fixture_rekey(&again);
    struct append_result res = fixture_try(&c, again);
    CHECK(res.code == ST_OK && res.duplicate && res.run_seq == 2);
    fixture_close(&c);
}

/* An eventId names one event of a run. */
TEST_DB(care_an_event_id_is_used_once_in_a_run) {
    struct fixture c;
    struct append_result results[2];
    fixture_open(&c, url);
    struct append_item first = fixture_item("RunStarted", "r1", NULL, 1);
    struct append_item second = fixture_item("RunCompleted", "r1", NULL, 1);
    second.event.event_id = first.event.event_id;
    struct append_item both[] = {first, second};
    fixture_batch(&c, both, 2, false, results);
    CHECK(results[0].code == ST_OK && results[1].code == ST_CONFLICT &&
          results[1].err->reason == REASON_EVENT_ID_REUSED);
    fixture_refused(&c, second, ST_CONFLICT, "EVENT_ID_REUSED");
    fixture_reopen(&c);
    fixture_refused(&c, second, ST_CONFLICT, "EVENT_ID_REUSED");
    fixture_close(&c);
}

/* ---- causes ---- */

/* A cause is found in the run, in the same commit, in another run, and in the store after a
 * restart; or it is refused. */
TEST_DB(care_a_cause_must_be_there) {
    struct fixture c;
    struct append_result results[2];
    fixture_open(&c, url);
    struct append_item a = fixture_item("RunStarted", "a", NULL, 1);
    struct append_item b = fixture_item("RunStarted", "b", NULL, 1);
    b.cause = &a.event.event_id;
    struct append_item both[] = {a, b};
    fixture_batch(&c, both, 2, true, results);
    CHECK(results[0].code == ST_OK && results[1].code == ST_OK);
    fixture_reopen(&c);
    struct append_item late =
        fixture_item("RunStarted", "d", NULL, 1); /* of a run that is not in memory */
    late.cause = &a.event.event_id;
    fixture_put(&c, late);
    uuid nobody = uuid_v4();
    struct append_item orphan = fixture_item("RunNoted", "a", NULL, 1);
    struct append_item first = fixture_item("RunStarted", "e", NULL, 1);
    orphan.cause = &nobody;
    fixture_refused(&c, orphan, ST_INVALID, "CAUSE_NOT_FOUND");
    first = in_tenant(first, "nobody");
    first.cause = &nobody;
    fixture_refused(&c, first, ST_INVALID,
                    "CAUSE_NOT_FOUND"); /* of a tenant that has nothing yet */
    CHECK(fixture_int(&c,
                      "SELECT COUNT(*) FROM orchestration_events WHERE run_id IN ('b', 'd') AND "
                      "cause_position ="
                      " (SELECT base_position + 1 FROM tenants WHERE tenant_id = 'acme')") == 2);
    fixture_close(&c);
}

/* ---- time ---- */

/* The clock may step back; persistedAt does not, in this tenant, also after a restart. Another
 * tenant has its own time. */
TEST_DB(care_persisted_time_never_runs_backwards) {
    struct fixture c;
    fixture_open(&c, url);
    CHECK(fixture_put(&c, fixture_item("RunNoted", "r1", NULL, 1)).persisted_us == FIXTURE_NOW_US);
    c.now_us -= 3600000000;
    CHECK(fixture_put(&c, fixture_item("RunNoted", "r2", NULL, 1)).persisted_us == FIXTURE_NOW_US);
    fixture_reopen(&c);
    CHECK(fixture_put(&c, fixture_item("RunNoted", "r2", NULL, 2)).persisted_us == FIXTURE_NOW_US);
    CHECK(
        fixture_put(&c, in_tenant(fixture_item("RunNoted", "g", NULL, 1), "globex")).persisted_us ==
        c.now_us);
    struct append_item bad[] = {fixture_item("RunNoted", "r2", NULL, 3),
                                fixture_item("RunPaused", "r2", NULL, 1)};
    struct append_result results[2];
    c.now_us = FIXTURE_NOW_US + 500;
    fixture_batch(&c, bad, 2, true, results); /* taken back: its time with it */
    c.now_us = FIXTURE_NOW_US + 100;
    CHECK(fixture_put(&c, fixture_item("RunNoted", "r2", NULL, 4)).persisted_us == c.now_us);
    int64_t seq = 0;
    struct error err = {0};
    CHECK(ledger_seq_at(c.ledger, STR("acme"), FIXTURE_NOW_US, &seq, &err) == ST_OK && seq == 1);
    CHECK(ledger_seq_at(c.ledger, STR("acme"), FIXTURE_NOW_US + 1, &seq, &err) == ST_OK &&
          seq == 4);
    CHECK(ledger_seq_at(c.ledger, STR("acme"), FIXTURE_NOW_US + 101, &seq, &err) == ST_OK &&
          seq == 5);
    CHECK(ledger_seq_at(c.ledger, STR("nobody"), 0, &seq, &err) == ST_NOT_FOUND &&
          err.reason == REASON_TENANT_NOT_FOUND);
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- rejections (T17) ---- */

static str rejection(struct fixture *c, struct append_item item) {
    struct append_result res = fixture_try(c, item);
    CHECK(res.code == ST_CONFLICT && res.err->reason == REASON_INVALID_TRANSITION);
    return arena_str(&c->arena, str_c(res.err->msg));
}

/* The first refusal is repeated to the letter while the event is illegal, also after a restart, and
 * forgotten once it is legal. */
TEST_DB(care_a_rejection_is_repeated_then_forgotten) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunQueued", "r1", NULL, 1));
    struct append_item done = fixture_item("RunCompleted", "r1", NULL, 1);
    str first = rejection(&c, done);
    fixture_put(&c, fixture_item("RunApproved", "r1", NULL,
                                 1)); /* the run moved; the refusal says what it said */
    CHECK(str_eq(first, rejection(&c, done)));
    fixture_reopen(&c);
    CHECK(str_eq(first, rejection(&c, done)));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_rejection") == 1);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, done);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_rejection") == 0);
    CHECK(fixture_try(&c, done).duplicate);
    str step = rejection(&c, fixture_item("StepCompleted", "r1", "s", 1));
    CHECK(strstr(step.ptr, "attempt 1 of step \"s\" is PENDING"), "%.*s", STR_ARG(step));
    fixture_close(&c);
}

/* There is a most of them: the oldest are forgotten. */
TEST_DB(care_rejections_are_bounded) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    const char *fill = fixture_fmt(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) "
        "INSERT INTO ledger_rejection"
        " (rejection_no, tenant_id, key, message) SELECT i, 'acme', 'k'||i, 'old' FROM n",
        REJECTIONS_MAX);
    fixture_must_sql(&c, fill);
    fixture_reopen(&c);
    for (int i = 0; i < 3; i++)
        rejection(&c, fixture_item("RunResumed", "r1", NULL, i + 1));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_rejection") == REJECTIONS_MAX);
    CHECK(fixture_int(&c, "SELECT MIN(rejection_no) FROM ledger_rejection") == 4);
    struct ledger_stats stats;
    struct error err = {0};
    CHECK(ledger_stats(c.ledger, &stats, &err) == ST_OK && stats.rejections == REJECTIONS_MAX);
    fixture_close(&c);
}

/* ---- memory of runs ---- */

/* More runs than the cache holds: what was dropped is read again, and goes on where it was. */
TEST_DB(care_runs_outlive_the_cache) {
    enum { RUNS = 40, STEPS = 2000 };
    struct fixture c;
    static struct append_item items[STEPS];
    static struct append_result results[STEPS];
    fixture_open(&c, url);
    int rounds = fixture_scaled(RUNS, 4);
    for (int run = 0; run < rounds; run++) { /* about a megabyte of state each */
        for (int i = 0; i < STEPS; i++)
            items[i] =
                fixture_item("StepStarted", fixture_fmt("r%d", run), fixture_fmt("step-%d", i), 1);
        fixture_batch(&c, items, STEPS, true, results);
        CHECK(results[STEPS - 1].code == ST_OK && results[STEPS - 1].run_seq == STEPS);
    }
    for (int run = 0; run < rounds; run++) {
        struct append_result res =
            fixture_put(&c, fixture_item("StepCompleted", fixture_fmt("r%d", run), "step-7", 1));
        CHECK(res.run_seq == STEPS + 1);
        CHECK(fixture_try(&c, fixture_item("StepStarted", fixture_fmt("r%d", run), "step-9", 1))
                  .duplicate);
    }
    fixture_close(&c);
}
