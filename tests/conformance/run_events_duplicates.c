/* Run Events 2.5 and 3.2: the same event again, and order under concurrency. */
#include "conformance/fixture.h"

#include <pthread.h>

#include "base/os.h"
#include "ledger/writer.h"

static bool same_metadata(struct append_result a, struct append_result b) {
    return uuid_eq(a.event_id, b.event_id) && a.run_seq == b.run_seq &&
           a.persisted_us == b.persisted_us;
}

/* RE-3.2-1: the second append succeeds. RE-3.2-2: with the first one's eventId, runSeq and
 * persistedAt. */
TEST_DB(run_events_duplicate_returns_the_first_record) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunQueued,RunStarted");
    struct event e = fixture_event("StepStarted", "r", "a", 1);
    struct append_result first = fixture_put_event(&c, e);
    CHECK(first.run_seq == 3 && first.persisted_us == FIXTURE_NOW_US &&
          uuid_eq(first.event_id, e.event_id));
    c.now_us += 5000000;
    CHECK(same_metadata(fixture_again(&c, e), first), "at once");
    fixture_program(&c, "r", "StepCompleted a");
    fixture_reopen_as(&c, LEDGER_REJECT);
    CHECK(same_metadata(fixture_again(&c, e), first), "after a restart");
    CHECK(fixture_event_count(&c) == 4);
    fixture_close(&c);
}

/* RE-2.5-2: the stored eventId is the truth. RE-2.5-3: and is what the caller gets back, with
 * runSeq and persistedAt. */
TEST_DB(run_events_duplicate_with_a_new_event_id) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct event e = fixture_event("RunStarted", "r", NULL, 1);
    struct append_result first = fixture_put_event(&c, e);
    struct event again = fixture_event("RunStarted", "r", NULL, 1);
    c.now_us += 1;
    CHECK(!uuid_eq(again.event_id, e.event_id) && memcmp(again.key, e.key, sizeof e.key) == 0);
    CHECK(same_metadata(fixture_again(&c, again), first));
    struct event_page page = fixture_read(&c, "r");
    CHECK(page.count == 1 && uuid_eq(page.records[0].event.event_id, e.event_id));
    struct event_record rec;
    struct error err = {0};
    CHECK(ledger_find_event(c.ledger, again.event_id, &c.arena, &rec, &err) == ST_NOT_FOUND);
    fixture_close(&c);
}

/* RE-3.2-4: never a refusal, however much the duplicate differs where the key does not look. */
TEST_DB(run_events_duplicate_is_never_a_conflict) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct append_result first =
        fixture_put_event(&c, fixture_event_with("RunStarted", "r", NULL, 1, "{\"v\":1}"));
    struct event other = fixture_event_with("RunStarted", "r", NULL, 1, "{\"v\":2,\"more\":true}");
    other.engine_attempt = 9;
    other.emitted_ns += 1;
    other.emitted_digits = 9;
    CHECK(same_metadata(fixture_again(&c, other), first));
    struct event_page page = fixture_read(&c, "r");
    CHECK(page.count == 1 && text_is(page.records[0].event.payload, "{\"v\":1}"));

    /* Inside one atomic batch too. */
    struct append_item items[3] = {
        {.event = other}, {.event = fixture_event("RunPaused", "r", NULL, 1)}, {.event = other}};
    struct append_result results[3] = {
        {.code = ST_CORRUPT}, {.code = ST_CORRUPT}, {.code = ST_CORRUPT}};
    struct append_request request = {
        .items = items, .count = 3, .atomic = true, .results = results, .arena = &c.arena};
    struct append_request *requests[] = {&request};
    struct error err = {0};
    CHECK(ledger_append(c.ledger, requests, 1, &err) == ST_OK);
    CHECK(results[0].code == ST_OK && results[1].code == ST_OK && results[2].code == ST_OK);
    CHECK(same_metadata(results[0], first) && same_metadata(results[2], first) &&
          results[1].run_seq == 2);
    fixture_close(&c);
}

/* ---- threads ---- */

enum { THREADS = 16 };
struct producer {
    struct writer *writer;
    const struct event *events;
    size_t count;
    struct append_result results[32];
    status worst;
    pthread_t thread;
};

/* Appends its events one by one, each as a call of its own. */
static void *produce(void *arg) {
    struct producer *p = arg;
    for (size_t i = 0; i < p->count && p->worst == ST_OK; i++) {
        struct arena arena;
        arena_init(&arena, 1024, (size_t)1 << 20);
        struct append_item item = {.event = p->events[i]};
        struct writer_call call = {
            .request = {.items = &item, .count = 1, .results = &p->results[i], .arena = &arena}};
        struct error err = {0};
        p->worst = writer_append(p->writer, &call, 30000, &err);
        if (p->worst == ST_OK) p->worst = p->results[i].code;
        p->results[i].err = NULL;
        arena_release(&arena);
    }
    return NULL;
}

/* The ledger goes to its thread, all producers run, and the ledger comes back. */
static void produce_all(struct fixture *c, struct producer *producers, size_t count) {
    struct writer *writer = NULL;
    struct error err = {0};
    CHECK(writer_open(c->ledger, NULL, &writer, &err) == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < count; i++) {
        producers[i].writer = writer;
        CHECK(pthread_create(&producers[i].thread, NULL, produce, &producers[i]) == 0);
    }
    for (size_t i = 0; i < count; i++)
        CHECK(pthread_join(producers[i].thread, NULL) == 0);
    writer_close(writer);
    c->ledger = NULL;
    fixture_reopen_as(c, LEDGER_REJECT);
    for (size_t i = 0; i < count; i++)
        CHECK(producers[i].worst == ST_OK, "producer %zu: %s", i, status_name(producers[i].worst));
}

/* RE-3.2-3: sixteen threads append the same event, half of them under an eventId of their own; one
 * record. */
TEST_DB(run_events_duplicate_from_sixteen_threads) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    for (int round = 1; round <= fixture_scaled(20, 3); round++) {
        struct event events[THREADS];
        struct producer producers[THREADS] = {0};
        for (size_t i = 0; i < THREADS; i++) {
            events[i] = fixture_event("RunTeleported", "r", NULL, round);
            if (i % 2 == 0) events[i].event_id = events[0].event_id;
            producers[i] = (struct producer){.events = &events[i], .count = 1};
        }
        produce_all(&c, producers, THREADS);
        int fresh = 0;
        for (size_t i = 0; i < THREADS; i++) {
            fresh += !producers[i].results[0].duplicate;
            CHECK(same_metadata(producers[i].results[0], producers[0].results[0]), "thread %zu", i);
        }
        CHECK(fresh == 1 && fixture_event_count(&c) == round, "%d were new", fresh);
    }
    fixture_close(&c);
}

/* RE-4-5: from several threads to two runs, a hundred events: within each run runSeq rises
 * strictly, in the order in which they were appended. (Gaps: run_events_consumer_accepts_gaps.) */
TEST_DB(run_events_run_seq_rises_per_run) {
    enum { PRODUCERS = 5, EACH = 20 };
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    static struct event events[PRODUCERS][EACH];
    static struct producer producers[PRODUCERS];
    for (int p = 0; p < PRODUCERS; p++) {
        for (int i = 0; i < EACH; i++)
            events[p][i] =
                fixture_event("RunTeleported", i % 2 == 0 ? "r" : "s", NULL, p * EACH + i + 1);
        producers[p] = (struct producer){.events = events[p], .count = EACH};
    }
    produce_all(&c, producers, PRODUCERS);
    for (int p = 0; p < PRODUCERS; p++) {
        for (int i = 2; i < EACH; i++)
            CHECK(producers[p].results[i].run_seq > producers[p].results[i - 2].run_seq,
                  "producer %d, %d", p, i);
    }
    static const char *const runs[] = {"r", "s"};
    for (size_t r = 0; r < COUNT_OF(runs); r++) {
        struct event_page page = fixture_read(&c, runs[r]);
        CHECK(page.count == PRODUCERS * EACH / 2, "%zu", page.count);
        for (size_t i = 1; i < page.count; i++)
            CHECK(page.records[i].run_seq > page.records[i - 1].run_seq &&
                  page.records[i].seq > page.records[i - 1].seq);
    }
    fixture_close(&c);
}

/* ---- the index ---- */

static status copy_row(struct fixture *c, const char *sql) {
    struct error err = {0};
    struct db *db = ledger_db(c->ledger);
    CHECK(db_begin(db, true, &err) == ST_OK, "%s", err.msg);
    status st = db_exec(db, sql, &err);
    if (st != ST_OK)
        db_rollback(db);
    else
        CHECK(db_commit(db, &err) == ST_OK, "%s", err.msg);
    return st;
}

#define COPY_ROW(position, run)                                                                    \
    "INSERT INTO ledger_event(pos, run_no, run_seq, type_no, context_no, engine_attempt, "         \
    "logical_attempt, emitted_ns,"                                                                 \
    " emitted_digits, persisted_us, cause_seq, event_id, key, subject, actor, payload, hash) "     \
    "SELECT " position ", " run                                                                    \
    ", 1000, e.type_no, e.context_no, e.engine_attempt, e.logical_attempt, e.emitted_ns,"          \
    " e.emitted_digits, e.persisted_us, e.cause_seq, e.event_id, e.key, e.subject, e.actor, "      \
    "e.payload, e.hash"                                                                            \
    " FROM ledger_event e JOIN ledger_run r ON r.run_no = e.run_no WHERE r.run_id = 'r'"

/* RE-3.2-5: at the level of the index: one key under two runs is fine, twice under one run is not.
 */
TEST_DB(run_events_key_is_unique_within_its_run) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    fixture_program(&c, "s", "RunStarted");
    CHECK(copy_row(&c, COPY_ROW("e.pos + 1000", "e.run_no")) == ST_CONFLICT, "the pair");
    CHECK(copy_row(&c, COPY_ROW("e.pos + 1000",
                                "(SELECT run_no FROM ledger_run WHERE run_id = 's')")) == ST_OK,
          "another run");
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_event a JOIN ledger_event b ON a.key = b.key"
                          " WHERE a.run_no < b.run_no") == 1);
    fixture_close(&c);
}
