/* Groups whose commits overlap (PostgreSQL): made during a commit that may still fail, with other
 * nodes, and with everything failing in turn. Whatever happens, what was settled is stored once and
 * in order, and the history is clean. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "conformance/fixture.h"
#include "ledger/writer.h"

enum { EVENTS = 12, RUNS = 3 };

struct batch {
    struct append_item items[EVENTS];
    struct append_result results[EVENTS];
    struct append_request request, *pointer;
};

/* Runs that are opened, go on and end over several batches, with steps of their own. */
static void batch_make(struct batch *b, struct fixture *c, const char *name, int64_t number) {
    for (int i = 0; i < EVENTS; i++) {
        const char *run = fixture_fmt("%s-%lld", name, (long long)number / 4 * RUNS + i % RUNS);
        const char *step = fixture_fmt("s%lld-%d", (long long)(number % 4), i / RUNS);
        bool first = number % 4 == 0 && i < RUNS;
        b->items[i] = first ? fixture_item("RunStarted", run, NULL, 1)
                            : fixture_item("StepStarted", run, step, 1);
    }
    b->request = (struct append_request){
        .items = b->items, .count = EVENTS, .results = b->results, .arena = &c->arena};
    b->pointer = &b->request;
}

static void check_new(const struct batch *b, int64_t first_seq) {
    for (int i = 0; i < EVENTS; i++)
        CHECK(b->results[i].code == ST_OK && !b->results[i].duplicate &&
                  b->results[i].seq == first_seq + i,
              "item %d: %lld, %s", i, (long long)b->results[i].seq,
              b->results[i].err ? b->results[i].err->msg : "");
}

static int64_t stored(struct fixture *c, const char *name) {
    return fixture_int(
        c, fixture_fmt("SELECT COUNT(*) FROM run_events WHERE \"runId\" LIKE '%s-%%'", name));
}

TEST(overlap_groups_are_stored_in_order) {
    static struct batch batches[2];
    struct fixture c;
    struct fixture reader;
    struct error err = {0};
    int rounds = fixture_scaled(60, 12);
    fixture_open(&c, test_postgres());
    fixture_open_reader(&reader, c.url);
    CHECK(ledger_overlaps(c.ledger));
    for (int i = 0; i < rounds; i++) {
        struct batch *b = &batches[i % 2];
        batch_make(b, &c, "r", i);
        CHECK(ledger_stage(c.ledger, &b->pointer, 1, &err) == ST_OK, "%d: %s", i, err.msg);
        CHECK(ledger_settle(c.ledger, &err) == ST_OK, "%s", err.msg);
        if (i > 0) check_new(&batches[(i - 1) % 2], 1 + (int64_t)(i - 1) * EVENTS);
        CHECK(stored(&reader, "r") == (int64_t)i * EVENTS); /* the staged ones are nobody's yet */
        CHECK(ledger_finish(c.ledger, &err) == ST_OK, "%s", err.msg);
    }
    CHECK(ledger_settle(c.ledger, &err) == ST_OK && ledger_settle(c.ledger, &err) == ST_OK);
    CHECK(stored(&reader, "r") == (int64_t)rounds * EVENTS);
    fixture_clean(&reader);
    fixture_close(&c);
    fixture_close(&reader);
}

enum odd { CAME_BEFORE, NEW_PLAN, OTHER_TENANT, FORBIDDEN, UNDER_WAY, ODDS };

static void make_odd(struct append_item *odd, enum odd kind, const struct batch *before) {
    if (kind == CAME_BEFORE) *odd = fixture_item("RunStarted", "old-0", NULL, 1);
    if (kind == NEW_PLAN) odd->event.plan_version = STR("99");
    if (kind == OTHER_TENANT) odd->event.tenant_id = STR("globex");
    if (kind == OTHER_TENANT) odd->event.run_id = STR("elsewhere");
    if (kind == FORBIDDEN) *odd = fixture_item("RunStarted", "old-0", NULL, 7);
    if (kind == UNDER_WAY) *odd = before->items[0]; /* its first one is not committed yet */
    fixture_rekey(odd);
}

/* After a group that had to go alone, the next ones pause. */
static status stage_soon(struct fixture *c, struct batch *b, struct error *err) {
    status st = ledger_stage(c->ledger, &b->pointer, 1, err);
    for (int tries = 0; tries < 20 && st != ST_OK; tries++)
        st = ledger_stage(c->ledger, &b->pointer, 1, err);
    return st;
}

static void check_odd(const struct batch *b, enum odd kind, int64_t first_seq) {
    const struct append_result *last = &b->results[EVENTS - 1];
    CHECK(last->code == (kind == FORBIDDEN ? ST_CONFLICT : ST_OK), "kind %d", (int)kind);
    CHECK(last->duplicate == (kind == CAME_BEFORE || kind == UNDER_WAY), "kind %d", (int)kind);
    CHECK(b->results[0].seq == first_seq && !b->results[0].duplicate);
}

/* What must be asked of the database does not go during a commit, and then goes alone: an event
 * that came before, a plan that is new, another tenant, a forbidden event. */
TEST(overlap_takes_back_what_cannot_go_beside_a_commit) {
    static struct batch before;
    static struct batch next;
    struct fixture c;
    struct error err = {0};
    fixture_open_as(&c, test_postgres(), LEDGER_REJECT);
    batch_make(&before, &c, "old", 0);
    fixture_batch(&c, before.items, EVENTS, false, before.results);
    for (enum odd kind = 0; kind < ODDS; kind++) {
        int64_t seq = fixture_int(&c, "SELECT MAX(sequence_number) FROM tenants");
        batch_make(&before, &c, fixture_fmt("before%d", (int)kind), 0);
        batch_make(&next, &c, fixture_fmt("next%d", (int)kind), 0);
        make_odd(&next.items[EVENTS - 1], kind, &before);
        CHECK(stage_soon(&c, &before, &err) == ST_OK, "%s", err.msg);
        CHECK(ledger_finish(c.ledger, &err) == ST_OK, "%s", err.msg);
        status st = kind == UNDER_WAY ? stage_soon(&c, &next, &err)
                                      : ledger_stage(c.ledger, &next.pointer, 1, &err);
        CHECK((st == ST_OK) == (kind == UNDER_WAY), "kind %d: %s", (int)kind, err.msg);
        CHECK(ledger_settle(c.ledger, &err) == ST_OK, "%s", err.msg);
        check_new(&before, seq + 1);
        if (kind == UNDER_WAY)
            CHECK(ledger_finish(c.ledger, &err) == ST_OK && ledger_settle(c.ledger, &err) == ST_OK);
        else
            CHECK(ledger_append(c.ledger, &next.pointer, 1, &err) == ST_OK, "%s", err.msg);
        check_odd(&next, kind, seq + EVENTS + 1);
    }
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- every call fails once ---- */

enum fault { CALL_BEFORE, CALL_AFTER, ALLOCATION, FAULTS };

static void fail_at(struct fixture *c, enum fault fault, int64_t n) {
    if (fault == ALLOCATION)
        mem_fail_at(n);
    else
        fixture_fail_at(c, n, fault == CALL_AFTER);
}

/* Two groups, the second during the commit of the first, with the n-th call or allocation failing.
 * What settled well is stored; the rest is done again, and then everything is there once. false:
 * none failed. */
static bool fails_at(struct fixture *c, struct fixture *reader, enum fault fault, int64_t n,
                     int *overlapping) {
    static struct batch b[2];
    struct error err = {0};
    const char *name = fixture_fmt("f%lld%c", (long long)n, "bam"[fault]);
    bool good[2] = {false, false};
    for (int i = 0; i < 2; i++)
        batch_make(&b[i], c, name, i);
    fail_at(c, fault, n);
    status staged = ledger_stage(c->ledger, &b[0].pointer, 1, &err);
    status sent = staged == ST_OK ? ledger_finish(c->ledger, &err) : staged;
    if (sent == ST_OK) {
        staged = ledger_stage(c->ledger, &b[1].pointer, 1, &err);
        *overlapping += staged == ST_OK;
        good[0] = ledger_settle(c->ledger, &err) == ST_OK;
        if (staged == ST_OK && good[0] && ledger_finish(c->ledger, &err) == ST_OK)
            good[1] = ledger_settle(c->ledger, &err) == ST_OK;
    }
    bool failed = fault == ALLOCATION ? mem_calls() > n : !good[0] || !good[1];
    fail_at(c, fault, -1);
    int64_t there = stored(reader, name);
    CHECK(there >= (int64_t)(good[0] + good[1]) * EVENTS, "call %lld: %lld events", (long long)n,
          (long long)there);
    CHECK(there % EVENTS == 0, "call %lld: a part of a group", (long long)n);
    for (int i = 0; i < 2; i++) {
        if (good[i]) continue;
        CHECK(ledger_append(c->ledger, &b[i].pointer, 1, &err) == ST_OK, "call %lld: %s",
              (long long)n, err.msg);
        for (int k = 0; k < EVENTS; k++)
            CHECK(b[i].results[k].code == ST_OK, "call %lld", (long long)n);
    }
    CHECK(stored(reader, name) == INT64_C(2) * EVENTS, "call %lld", (long long)n);
    return failed;
}

TEST(overlap_survives_every_failing_call_and_allocation) {
    struct fixture c;
    struct fixture reader;
    str url = test_postgres();
    fixture_open(&c, url);
    fixture_open_reader(&reader, url);
    fixture_put(&c,
                fixture_item("RunStarted", "known", NULL, 1)); /* its tenant and plan are theirs */
    fixture_close(&c);
    for (enum fault fault = CALL_BEFORE; fault < FAULTS; fault++) {
        int overlapping = 0;
        int64_t n = 0;
        for (bool failed = true; failed; n++) { /* a new one each time: after a failure it pauses */
            fixture_open_faulty(&c, url, LEDGER_REJECT);
            failed = fails_at(&c, &reader, fault, n, &overlapping);
            fixture_close(&c);
        }
        CHECK(n > 20 && overlapping > 5, "%lld calls, %d times during a commit", (long long)n, overlapping);
    }
    fixture_clean(&reader);
    fixture_close(&reader);
}

/* ---- the ledger thread ---- */

enum { CALLS = 3, LARGE = 160 };

struct stream {
    struct append_item items[CALLS][LARGE];
    struct append_result results[CALLS][LARGE];
    struct writer_call calls[CALLS];
    struct arena arenas[CALLS];
    struct writer_stream stream;
};

static void nothing(struct writer_call *call) { UNUSED(call); }

static void stream_make(struct stream *s, const char *name) {
    s->stream = (struct writer_stream){0};
    for (int i = 0; i < CALLS; i++) {
        arena_init(&s->arenas[i], 1024, SIZE_MAX);
        for (int k = 0; k < LARGE; k++)
            s->items[i][k] =
                fixture_item("RunNoted", fixture_fmt("%s-%d", name, k), NULL, (int64_t)i + 1);
        s->calls[i] = (struct writer_call){.request = {.items = s->items[i],
                                                       .count = LARGE,
                                                       .results = s->results[i],
                                                       .arena = &s->arenas[i]},
                                           .done = nothing,
                                           .stream = &s->stream};
    }
}

/* A producer that does not wait for answers, with the n-th call of the database failing: what was
 * acknowledged is stored, and nothing is acknowledged behind something that was not. */
static bool stream_fails_at(str url, struct fixture *reader, int64_t n) {
    static struct stream s;
    struct fixture c;
    struct writer *w = NULL;
    struct error err = {0};
    const char *name = fixture_fmt("w%lld", (long long)n);
    stream_make(&s, name);
    fixture_open_faulty(&c, url, LEDGER_REJECT);
    fixture_fail_at(&c, n, true);
    CHECK(writer_open(c.ledger, NULL, &w, &err) == ST_OK, "%s", err.msg);
    c.ledger = NULL; /* the writer's */
    for (int i = 0; i < CALLS; i++)
        CHECK(writer_submit(w, &s.calls[i], &err) == ST_OK, "%s", err.msg);
    writer_close(w);
    int acknowledged = 0;
    for (int i = 0; i < CALLS; i++) {
        bool good = s.calls[i].code == ST_OK;
        CHECK(!good || acknowledged == i, "call %d was stored without the one before it", i);
        acknowledged += good;
        arena_release(&s.arenas[i]);
    }
    int64_t there = stored(reader, name);
    CHECK(there >= (int64_t)acknowledged * LARGE && there % LARGE == 0, "%lld events, %d calls",
          (long long)there, acknowledged);
    fixture_close(&c);
    return acknowledged < CALLS;
}

TEST(overlap_stops_the_stream_of_a_failed_call) {
    struct fixture c;
    struct fixture reader;
    str url = test_postgres();
    log_setup(2, false, LOG_OFF);
    fixture_open(&c, url);
    fixture_open_reader(&reader, url);
    fixture_put(&c, fixture_item("RunStarted", "known", NULL, 1));
    fixture_close(&c);
    /* Most failures are made good by doing the group again alone; one of the outcome cannot be. */
    int64_t failed = 0;
    for (int64_t n = 0, passed = 0; passed < 60; n++) {
        bool fails = stream_fails_at(url, &reader, n);
        failed += fails;
        passed = fails ? 0 : passed + 1;
    }
    CHECK(failed > 0, "no call failed");
    fixture_clean(&reader);
    fixture_close(&reader);
}

/* ---- other nodes ---- */

struct other {
    struct fixture c;
    struct batch b;
    struct error err;
    status st;
};

static void *append_other(void *arg) {
    struct other *o = arg;
    o->st = ledger_append(o->c.ledger, &o->b.pointer, 1, &o->err);
    return NULL;
}

/* Another node comes between a commit and the group made during it: that group is taken back, and
 * the other does not wait for it longer than that. */
TEST(overlap_lets_another_node_in_between) {
    static struct batch b[2];
    static struct other other;
    struct fixture c;
    struct error err = {0};
    pthread_t thread;
    fixture_open(&c, test_postgres());
    fixture_open(&other.c, c.url);
    batch_make(&b[0], &c, "a", 0);
    batch_make(&b[1], &c, "a", 1);
    batch_make(&other.b, &other.c, "b", 0);
    CHECK(ledger_stage(c.ledger, &b[0].pointer, 1, &err) == ST_OK, "%s", err.msg);
    CHECK(ledger_finish(c.ledger, &err) == ST_OK, "%s", err.msg);
    status st = ledger_stage(c.ledger, &b[1].pointer, 1, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    CHECK(ledger_settle(c.ledger, &err) == ST_OK, "%s", err.msg);
    CHECK(pthread_create(&thread, NULL, append_other, &other) == 0);
    const char *waits = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted";
    while (fixture_int(&c, waits) == 0) /* it holds the tenant, and wants our sequence number */
        sched_yield();
    CHECK(ledger_finish(c.ledger, &err) == ST_CONFLICT && strstr(err.msg, "another node"), "%s",
          err.msg);
    pthread_join(thread, NULL);
    CHECK(other.st == ST_OK, "%s", other.err.msg);
    check_new(&other.b, 1 + EVENTS);
    CHECK(ledger_append(c.ledger, &b[1].pointer, 1, &err) == ST_OK, "%s", err.msg);
    check_new(&b[1], 1 + 2 * EVENTS);
    fixture_clean(&c);
    fixture_close(&c);
    fixture_close(&other.c);
}

enum { FLOOD = 160, ROUNDS = 24 };

struct flood {
    struct writer *writer;
    pthread_t thread;
    int number, rounds;
    atomic_int failures;
    struct arena arenas[ROUNDS];
    struct append_item items[ROUNDS][FLOOD];
    struct append_result results[ROUNDS][FLOOD];
    struct writer_call calls[ROUNDS];
    atomic_int answered;
};

static void answered(struct writer_call *call) {
    struct flood *f = call->context;
    bool good = call->code == ST_OK;
    for (size_t i = 0; good && i < call->request.count; i++)
        good = call->request.results[i].code == ST_OK;
    if (!good) atomic_fetch_add(&f->failures, 1);
    atomic_fetch_add(&f->answered, 1);
}

static void *flood(void *arg) {
    struct flood *f = arg;
    for (int i = 0; i < f->rounds; i++) {
        struct error err;
        while (i - atomic_load(&f->answered) >= 3)
            sched_yield();
        if (writer_submit(f->writer, &f->calls[i], &err) != ST_OK)
            atomic_fetch_add(&f->failures, 1);
    }
    return NULL;
}

static void flood_open(struct flood *f, int number, str url) {
    struct ledger *l = NULL;
    struct error err = {0};
    *f = (struct flood){.number = number, .rounds = fixture_scaled(ROUNDS, 8)};
    CHECK(ledger_open(url, NULL, &l, &err) == ST_OK, "%s", err.msg);
    CHECK(writer_open(l, NULL, &f->writer, &err) == ST_OK, "%s", err.msg);
    for (int i = 0; i < f->rounds; i++) {
        arena_init(&f->arenas[i], 1024, SIZE_MAX);
        for (int k = 0; k < FLOOD; k++) {
            const char *run = fixture_fmt("flood-%d-%d", number, k % 40);
            f->items[i][k] = i == 0 && k < 40
                                 ? fixture_item("RunStarted", run, NULL, 1)
                                 : fixture_item("StepStarted", run, fixture_fmt("%d-%d", i, k), 1);
        }
        f->calls[i] = (struct writer_call){.request = {.items = f->items[i],
                                                       .count = FLOOD,
                                                       .results = f->results[i],
                                                       .arena = &f->arenas[i]},
                                           .done = answered,
                                           .context = f};
    }
}

/* Two nodes with all they have, in one tenant: each makes the next group while it commits, and each comes
 * between the other's groups. */
TEST(overlap_two_nodes_flood_one_tenant) {
    static struct flood floods[2];
    struct fixture c;
    fixture_open(&c, test_postgres());
    for (int i = 0; i < 2; i++)
        flood_open(&floods[i], i, c.url);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&floods[i].thread, NULL, flood, &floods[i]) == 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(floods[i].thread, NULL);
        writer_close(floods[i].writer);
        CHECK(atomic_load(&floods[i].failures) == 0, "node %d", i);
        for (int k = 0; k < floods[i].rounds; k++)
            arena_release(&floods[i].arenas[k]);
    }
    int64_t events = INT64_C(2) * FLOOD * floods[0].rounds;
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM run_events") == events);
    CHECK(fixture_int(&c, "SELECT MAX(sequence_number) FROM tenants") == events);
    fixture_clean(&c);
    fixture_close(&c);
}
