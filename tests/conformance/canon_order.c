/* CANON 6: correlation, causation, sequence. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/limits.h"
#include "conformance/fixture.h"
#include "ledger/writer.h"

/* ---- 6.1 ---- */

static struct append_item signal_for(const char *run) {
    return fixture_fact(EVENT_SIGNAL_RECEIVED, run, fixture_uuid_text(uuid_v4()), 1, "{}");
}

/* CE-6.1-1: a signal that comes in gets a fresh correlation_id. */
TEST_DB(canon_correlation_is_made_with_the_signal) {
    struct fixture c;
    uuid first;
    uuid second;
    fixture_open(&c, url);
    fixture_put(&c, signal_for("r1"));
    fixture_put(&c, signal_for("r2"));
    CHECK(uuid_parse(
        fixture_text(&c, "SELECT correlation_id FROM orchestration_events WHERE run_id = 'r1'"),
        &first));
    CHECK(uuid_parse(
        fixture_text(&c, "SELECT correlation_id FROM orchestration_events WHERE run_id = 'r2'"),
        &second));
    CHECK(!uuid_eq(first, second));
    fixture_close(&c);
}

/* CE-6.1-2: it is on every row of every kind: signal, run, step, tool call, effect. */
TEST_DB(canon_correlation_is_on_every_row) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, signal_for("r1"));
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "s", 1));
    fixture_put(&c, fixture_fact(EVENT_TOOL_CALLED, "r1", STR("s"), 1, "{}"));
    fixture_put(&c, fixture_fact(EVENT_TOOL_COMPLETED, "r1", STR("s"), 1, "{}"));
    fixture_put(&c,
                fixture_fact(EVENT_EFFECT_REQUESTED, "r1", fixture_uuid_text(uuid_v4()), 1, "{}"));
    fixture_finished_run(&c, "other", 1);
    str id = fixture_uuid_text(fixture_run(&c, "r1").correlation_id);
    str lines = fixture_lines(
        &c, fixture_fmt("SELECT event_type FROM orchestration_events WHERE correlation_id = '%.*s'"
                        " ORDER BY position",
                        STR_ARG(id)));
    CHECK(text_is(lines, "SIGNAL_RECEIVED\nRUN_STARTED\nSTEP_STARTED\nTOOL_CALLED\nTOOL_"
                         "COMPLETED\nEFFECT_REQUESTED\n"),
          "%.*s", STR_ARG(lines));
    CHECK(fixture_int(&c, fixture_fmt("SELECT COUNT(*) FROM runs WHERE correlation_id = '%.*s'",
                                      STR_ARG(id))) == 1);
    CHECK(fixture_int(&c, fixture_fmt("SELECT COUNT(*) FROM steps WHERE correlation_id = '%.*s'",
                                      STR_ARG(id))) == 1);
    fixture_close(&c);
}

static void put_in_trace(struct fixture *c, const char *run, const uuid *trace) {
    struct append_item item = fixture_item("RunStarted", run, NULL, 1);
    item.correlation = trace;
    fixture_put(c, item);
}

/* CE-6.1-3, CE-11-5: the trace is all events of the chain, also over several runs, in ascending
 * sequence, and nothing else. */
TEST_DB(canon_correlation_gives_the_whole_trace) {
    struct fixture c;
    uuid trace = uuid_v4();
    uuid other = uuid_v4();
    struct event_page page;
    struct error err = {0};
    fixture_open(&c, url);
    put_in_trace(&c, "parent", &trace);
    put_in_trace(&c, "stranger", &other);
    put_in_trace(&c, "child", &trace);
    fixture_put(&c, fixture_item("StepStarted", "parent", "s", 1));
    fixture_put(&c, fixture_item("RunCompleted", "stranger", NULL, 1));
    fixture_put(
        &c, fixture_fact(EVENT_EFFECT_REQUESTED, "parent", fixture_uuid_text(uuid_v4()), 1, "{}"));
    fixture_put(&c, fixture_item("RunCompleted", "child", NULL, 1));
    CHECK(ledger_read_correlation(c.ledger, STR("acme"), trace, 0, 100, &c.arena, &page, &err) ==
              ST_OK,
          "%s", err.msg);
    static const int64_t want[] = {1, 3, 4, 6, 7};
    CHECK(page.count == COUNT_OF(want));
    for (size_t i = 0; i < page.count; i++) {
        CHECK(page.records[i].seq == want[i] && uuid_eq(page.records[i].correlation_id, trace),
              "record %zu", i);
    }
    str lines = fixture_lines(
        &c, fixture_fmt("SELECT CAST(sequence_number AS TEXT) FROM orchestration_events WHERE"
                        " correlation_id = '%.*s' ORDER BY sequence_number ASC",
                        STR_ARG(fixture_uuid_text(trace))));
    CHECK(text_is(lines, "1\n3\n4\n6\n7\n"), "%.*s", STR_ARG(lines));
    CHECK(fixture_int(
              &c, "SELECT COUNT(*) FROM (SELECT run_id FROM orchestration_events GROUP BY run_id"
                  " HAVING COUNT(DISTINCT correlation_id) <> 1) x") == 0);
    /* Page by page it is the same. */
    CHECK(ledger_read_correlation(c.ledger, STR_NONE, trace, 3, 2, &c.arena, &page, &err) == ST_OK,
          "%s", err.msg);
    CHECK(page.count == 2 && page.records[0].seq == 4 && page.records[1].seq == 6);
    fixture_close(&c);
}

/* ---- 6.2 ---- */

/* The example of CANON: five events, each caused by the one before. Fills their ids. */
static void append_example(struct fixture *c, uuid ids[5]) {
    str effect = fixture_uuid_text(uuid_v4());
    fixture_put(c, fixture_item("StepStarted", "r1", "s",
                                1)); /* not part of it: a step must start before it completes */
    struct append_item items[] = {signal_for("r1"), fixture_item("RunStarted", "r1", NULL, 1),
                                  fixture_item("StepCompleted", "r1", "s", 1),
                                  fixture_fact(EVENT_EFFECT_REQUESTED, "r1", effect, 1, "{}"),
                                  fixture_fact(EVENT_EFFECT_COMPLETED, "r1", effect, 1, "{}")};
    for (size_t i = 0; i < COUNT_OF(items); i++) {
        ids[i] = items[i].event.event_id;
        if (i > 0) items[i].cause = &ids[i - 1];
        if (items[i].event.type == EVENT_EFFECT_COMPLETED) { /* nor is this: somebody executes it */
            struct append_item taken = fixture_fact(EVENT_EFFECT_EXECUTING, "r1", effect, 1, "{}");
            taken.cause = &ids[i - 1];
            fixture_put(c, taken);
        }
        fixture_put(c, items[i]);
    }
}

/* CE-6.2-1: each event of the example points to the event that triggered it. */
TEST_DB(canon_causation_is_set) {
    struct fixture c;
    uuid ids[5];
    fixture_open(&c, url);
    append_example(&c, ids);
    str lines = fixture_lines(
        &c, "SELECT e.event_type||' '||x.event_type FROM orchestration_events e"
            " JOIN orchestration_events x ON x.id = e.causation_id ORDER BY e.position");
    CHECK(text_is(lines,
                  "SIGNAL_RECEIVED STEP_STARTED\nRUN_STARTED SIGNAL_RECEIVED\nSTEP_COMPLETED "
                  "RUN_STARTED\n"
                  "EFFECT_REQUESTED STEP_COMPLETED\nEFFECT_EXECUTING EFFECT_REQUESTED\n"
                  "EFFECT_COMPLETED EFFECT_REQUESTED\n"),
          "%.*s", STR_ARG(lines));
    fixture_close(&c);
}

/* CE-6.2-1: a producer that names no cause gets one: the newest event of the step, else of the run.
 */
TEST_DB(canon_causation_has_a_default) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, signal_for("r1"));
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "a", 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "b", 1));
    fixture_put(&c, fixture_item("StepCompleted", "r1", "a", 1));
    fixture_reopen(&c);
    fixture_put(&c, fixture_item("StepCompleted", "r1", "b", 1));
    fixture_put(&c, fixture_item("RunCompleted", "r1", NULL, 1));
    str lines = fixture_lines(
        &c, "SELECT e.sequence_number||'<'||x.sequence_number FROM orchestration_events e"
            " JOIN orchestration_events x ON x.id = e.causation_id ORDER BY e.position");
    CHECK(text_is(lines, "2<1\n3<2\n4<2\n5<3\n6<4\n7<6\n"), "%.*s", STR_ARG(lines));
    fixture_close(&c);
}

/* CE-6.2-2, CE-11-6: an event cannot be caused by itself, by a later one, or by another tenant's; a
 * scan finds no link that does not point back. */
TEST_DB(canon_causation_points_back) {
    struct fixture c;
    fixture_open(&c, url);
    struct append_item later = fixture_item("RunStarted", "r2", NULL, 1);
    struct append_item early = fixture_item("RunStarted", "r1", NULL, 1);
    early.cause = &early.event.event_id;
    fixture_refused(&c, early, ST_INVALID, "CAUSE_NOT_FOUND");
    early.cause = &later.event.event_id;
    fixture_refused(&c, early, ST_INVALID, "CAUSE_NOT_FOUND");
    struct append_item both[] = {early, later}; /* also not by a later one of the same commit */
    struct append_result results[2];
    fixture_batch(&c, both, 2, false, results);
    CHECK(results[0].code == ST_INVALID && results[1].code == ST_OK);

    struct append_item foreign = fixture_item("RunStarted", "r3", NULL, 1);
    foreign.event.tenant_id = STR("globex");
    fixture_rekey(&foreign);
    foreign.cause = &later.event.event_id;
    fixture_refused(&c, foreign, ST_INVALID, "CAUSE_NOT_FOUND");
    fixture_random_workload(&c, "w", 8, fixture_scaled(400, 100), 11);
    CHECK(fixture_int(
              &c, "SELECT COUNT(*) FROM orchestration_events WHERE cause_position >= position") ==
          0);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events e JOIN orchestration_events x "
                          "ON x.position ="
                          " e.cause_position WHERE x.tenant_id <> e.tenant_id OR x.sequence_number "
                          ">= e.sequence_number") == 0);
    CHECK(fixture_int(
              &c, "SELECT COUNT(*) FROM orchestration_events WHERE cause_position IS NOT NULL") >
          10);
    fixture_close(&c);
}

/* CE-6.2-3: the root of a chain has no cause. */
TEST_DB(canon_the_root_has_no_cause) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, signal_for("r1"));
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events WHERE causation_id IS NULL") ==
          1);
    CHECK(text_is(
        fixture_text(&c, "SELECT event_type FROM orchestration_events WHERE causation_id IS NULL"),
        "SIGNAL_RECEIVED"));
    fixture_close(&c);
}

/* CE-6.2-4: the chain of the example, from the event to its root, by the library and by CANON's own
 * query. */
TEST_DB(canon_causality_query_walks_to_the_root) {
    struct fixture c;
    uuid ids[5];
    struct event_page page;
    bool more = true;
    struct error err = {0};
    fixture_open(&c, url);
    append_example(&c, ids);
    CHECK(ledger_causes(c.ledger, ids[4], 100, &c.arena, &page, &more, &err) == ST_OK, "%s",
          err.msg);
    CHECK(page.count == 6 && !more); /* the five, and the StepStarted before them */
    for (size_t depth = 0; depth < 5; depth++) {
        CHECK(uuid_eq(page.records[depth].event.event_id, ids[4 - depth]), "depth %zu", depth);
    }
    str lines = fixture_lines(
        &c,
        fixture_fmt(
            "WITH RECURSIVE causality AS (SELECT id, event_type, causation_id, 0 AS depth"
            " FROM orchestration_events WHERE id = '%.*s' UNION ALL"
            " SELECT e.id, e.event_type, e.causation_id, c.depth + 1 FROM orchestration_events e"
            " JOIN causality c ON e.id = c.causation_id)"
            " SELECT depth||' '||event_type FROM causality ORDER BY depth ASC",
            STR_ARG(fixture_uuid_text(ids[4]))));
    CHECK(text_is(lines, "0 EFFECT_COMPLETED\n1 EFFECT_REQUESTED\n2 STEP_COMPLETED\n3 "
                         "RUN_STARTED\n4 SIGNAL_RECEIVED\n"
                         "5 STEP_STARTED\n"),
          "%.*s", STR_ARG(lines));
    fixture_close(&c);
}

/* CE-6.2-4: it works on a chain of 10,000 ancestors, also in SQL. */
TEST_DB(canon_causality_chain_of_10000) {
    enum { CHAIN = 10000, LOT = 2000 };
    struct fixture c;
    struct event_page page;
    bool more = true;
    struct error err = {0};
    uuid newest = {{0}};
    fixture_open(&c, url);
    for (int done = 0; done < CHAIN; done += LOT) {
        static struct append_item items[LOT];
        static struct append_result results[LOT];
        for (int i = 0; i < LOT; i++)
            items[i] = fixture_item("RunNoted", "r1", NULL, done + i + 1);
        fixture_batch(&c, items, LOT, true, results);
        newest = results[LOT - 1].event_id;
    }
    CHECK(ledger_causes(c.ledger, newest, CHAIN + 1, &c.arena, &page, &more, &err) == ST_OK, "%s",
          err.msg);
    CHECK(page.count == CHAIN && !more);
    for (size_t i = 0; i < page.count; i++)
        CHECK(page.records[i].seq == (int64_t)(CHAIN - i), "depth %zu", i);
    CHECK(ledger_causes(c.ledger, newest, 10, &c.arena, &page, &more, &err) == ST_OK &&
          page.count == 10 && more);
    int64_t depth =
        fixture_int(&c, "WITH RECURSIVE causality AS (SELECT position, cause_position, 0 AS depth "
                        "FROM orchestration_events"
                        " WHERE position = (SELECT last_position FROM tenants) UNION ALL"
                        " SELECT e.position, e.cause_position, c.depth + 1 FROM causality c"
                        " JOIN orchestration_events e ON e.position = c.cause_position)"
                        " SELECT MAX(depth) FROM causality");
    CHECK(depth == CHAIN - 1, "%lld", (long long)depth);
    fixture_close(&c);
}

/* ---- 6.3 ---- */

enum { PRODUCERS = 4, CALLS = 125, EVENTS_A_CALL = 20, ALL_EVENTS = 10000 };
static_assert(PRODUCERS * CALLS * EVENTS_A_CALL == ALL_EVENTS, "as many as CE-6.3-3 asks for");
static const str tenants[3] = {STR_LIT("acme"), STR_LIT("globex"), STR_LIT("initech")};

struct producer {
    struct writer *writer;
    int number;
    pthread_t thread;
    atomic_bool done;
    int failures; /* read after the thread ended */
    struct append_item items[CALLS][EVENTS_A_CALL];
};

static void *produce(void *arg) {
    struct producer *p = arg;
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    for (int call = 0; call < CALLS; call++) {
        struct append_result results[EVENTS_A_CALL] = {0};
        struct error err;
        struct writer_call w = {.request = {.items = p->items[call],
                                            .count = EVENTS_A_CALL,
                                            .results = results,
                                            .arena = &arena}};
        if (writer_append(p->writer, &w, 60000, &err) != ST_OK)
            p->failures++;
        else {
            for (int i = 0; i < EVENTS_A_CALL; i++)
                p->failures += results[i].code != ST_OK || results[i].duplicate;
        }
    }
    arena_release(&arena);
    atomic_store(&p->done, true);
    return NULL;
}

static void make_items(struct producer *p) {
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < EVENTS_A_CALL; i++) {
            int tenant = (call + i) % 3;
            struct append_item *item = &p->items[call][i];
            *item = fixture_item("RunNoted", fixture_fmt("p%d-%d", p->number, tenant), NULL,
                                 call * EVENTS_A_CALL + i + 1);
            item->event.tenant_id = tenants[tenant];
            fixture_rekey(item);
        }
    }
}

/* Reads on after the last event seen of one tenant; every new one must be the next. */
static void follow(struct ledger *reader, str tenant, int64_t *last, struct arena *arena) {
    struct event_page page;
    struct error err = {0};
    arena_reset(arena);
    status st = ledger_read_tenant(reader, tenant, *last, PAGE_EVENTS_MAX, arena, &page, &err);
    if (st == ST_NOT_FOUND) return; /* not yet */
    CHECK(st == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < page.count; i++) {
        CHECK(page.records[i].seq == *last + 1, "%lld after %lld", (long long)page.records[i].seq,
              (long long)*last);
        *last = page.records[i].seq;
    }
}

/* CE-6.3-1, CE-6.3-3: while many threads append, a reader sees each tenant's numbers appear one
 * after the other, never a lower one after a higher one, never one twice. */
TEST_DB(canon_sequence_appears_in_order_and_once) {
    struct fixture c;
    struct writer *writer = NULL;
    struct ledger *reader = NULL;
    struct error err = {0};
    static struct producer producers[PRODUCERS];
    fixture_open(&c, url);
    CHECK(ledger_open_reader(url, &reader, &err) == ST_OK, "%s", err.msg);
    CHECK(writer_open(c.ledger, NULL, &writer, &err) == ST_OK, "%s", err.msg);
    for (int i = 0; i < PRODUCERS; i++) {
        struct producer *p = &producers[i];
        *p = (struct producer){.writer = writer, .number = i};
        make_items(p);
    }
    for (int i = 0; i < PRODUCERS; i++)
        CHECK(pthread_create(&producers[i].thread, NULL, produce, &producers[i]) == 0);
    int64_t last[3] = {0};
    for (bool busy = true; busy;) {
        busy = false;
        for (int i = 0; i < PRODUCERS; i++)
            busy |= !atomic_load(&producers[i].done);
        for (int t = 0; t < 3; t++)
            follow(reader, tenants[t], &last[t], &c.arena);
    }
    for (int i = 0; i < PRODUCERS; i++) {
        pthread_join(producers[i].thread, NULL);
        CHECK(producers[i].failures == 0, "producer %d: %d failures", i, producers[i].failures);
    }
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 10; i++)
            follow(reader, tenants[t], &last[t], &c.arena); /* a page has 1,000 */
    }
    CHECK(last[0] + last[1] + last[2] == ALL_EVENTS);
    ledger_close(reader);
    writer_close(writer); /* and the ledger */
    CHECK(ledger_open(url, &c.options, &c.ledger, &err) == ST_OK, "%s", err.msg);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events") == ALL_EVENTS);
    CHECK(fixture_int(
              &c,
              "SELECT COUNT(*) FROM (SELECT tenant_id, sequence_number FROM orchestration_events"
              " GROUP BY tenant_id, sequence_number HAVING COUNT(*) > 1) x") == 0);
    fixture_close(&c);
}

/* CE-6.3-2: the store numbers events; a number that a producer supplies is refused. */
TEST(canon_sequence_number_cannot_be_supplied) {
    static const char *const members[] = {"\"sequenceNumber\":7", "\"runSeq\":7",
                                          "\"persistedAt\":\"2026-02-16T08:00:00Z\""};
    struct arena arena;
    struct buf b;
    struct error err = {0};
    struct event out;
    arena_init(&arena, 4096, SIZE_MAX);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        struct append_item item = fixture_item("RunStarted", "r1", NULL, 1);
        buf_init(&b, EVENT_BYTES_MAX);
        event_write_json(&item.event, &b);
        CHECK(event_parse(buf_str(&b), &arena, &out, &err) == ST_OK, "%s", err.msg);
        b.len--; /* the closing brace */
        buf_printf(&b, ",%s}", members[i]);
        CHECK(event_parse(buf_str(&b), &arena, &out, &err) == ST_INVALID, "%s", members[i]);
        CHECK(err.reason == REASON_FIELD_RESERVED, "%s", reason_name(err.reason));
        buf_release(&b);
    }
    arena_release(&arena);
}

/* CE-6.3-4: replay follows sequence_number, also when all times are equal, or run backwards. */
TEST_DB(canon_replay_follows_the_sequence_not_the_time) {
    static const char *const life[] = {"RunQueued", "RunStarted", "RunPaused", "RunResumed",
                                       "RunCompleted"};
    struct fixture c;
    struct event_page page;
    struct run run;
    struct error err = {0};
    fixture_open(&c, url);
    for (int backwards = 0; backwards < 2; backwards++) {
        const char *name = fixture_fmt("r%d", backwards);
        for (size_t i = 0; i < COUNT_OF(life); i++) {
            struct append_item item = fixture_item(life[i], name, NULL, 1);
            item.event.emitted_ns -= (int64_t)i * 1000000000;
            if (backwards) c.now_us -= 1000000;
            fixture_put(&c, item);
        }
        CHECK(ledger_read_run(c.ledger, str_c(name), 0, 100, &c.arena, &page, &err) == ST_OK, "%s",
              err.msg);
        CHECK(page.count == COUNT_OF(life));
        for (size_t i = 0; i < page.count; i++) {
            CHECK(text_is(page.records[i].event.type_name, life[i]), "event %zu", i);
            CHECK(page.records[i].run_seq == (int64_t)i + 1 &&
                  page.records[i].persisted_us == FIXTURE_NOW_US);
        }
        CHECK(ledger_replay(c.ledger, str_c(name), 0, false, &c.arena, &run, NULL, &err) == ST_OK,
              "%s", err.msg);
        CHECK(run.head.status == RUN_COMPLETED && !run.head.inconsistent);
    }
    CHECK(fixture_int(&c, "SELECT COUNT(DISTINCT occurred_at) FROM orchestration_events") == 1);
    fixture_clean(&c);
    fixture_close(&c);
}

/* CE-6.3-5: the replay query asks for tenant and correlation: of two tenants with one
 * correlation_id, only the asked one's events. */
TEST_DB(canon_replay_query_keeps_tenants_apart) {
    struct fixture c;
    uuid trace = uuid_v4();
    struct event_page page;
    struct error err = {0};
    fixture_open(&c, url);
    for (int t = 0; t < 2; t++) {
        struct append_item item = fixture_item("RunStarted", fixture_fmt("r%d", t), NULL, 1);
        item.event.tenant_id = tenants[t];
        fixture_rekey(&item);
        item.correlation = &trace;
        fixture_put(&c, item);
    }
    CHECK(ledger_read_correlation(c.ledger, STR("globex"), trace, 0, 10, &c.arena, &page, &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK(page.count == 1 && text_is(page.records[0].event.run_id, "r1"));
    str lines = fixture_lines(
        &c, fixture_fmt(
                "SELECT event_type||' '||run_id FROM orchestration_events WHERE tenant_id = '%.*s'"
                " AND correlation_id = '%.*s' ORDER BY sequence_number ASC",
                STR_ARG(fixture_uuid_text(event_tenant_uuid(STR("acme")))),
                STR_ARG(fixture_uuid_text(trace))));
    CHECK(text_is(lines, "RUN_STARTED r0\n"), "%.*s", STR_ARG(lines));
    fixture_close(&c);
}
