/* Several nodes append to one PostgreSQL. (A SQLite file has one writer:
 * care_one_writer_for_a_file.) */
#include <pthread.h>
#include <stdatomic.h>

#include "conformance/fixture.h"

static struct append_item in_tenant(struct append_item item, const char *tenant) {
    item.event.tenant_id = str_c(tenant);
    fixture_rekey(&item);
    return item;
}

enum { NODES = 2, ROUNDS = 120, EVENTS = 8 };

struct node {
    struct fixture c;
    pthread_t thread;
    atomic_bool done;
    int number, failures, duplicates, rounds;
    char why[ERROR_MSG_MAX];
    struct append_item items[ROUNDS][EVENTS];
    struct append_result results[ROUNDS][EVENTS];
};

/* Of each round: five events of its own on runs that all nodes share, and three that every node
 * sends: only one may win. A run belongs to one tenant. */
static struct append_item item_of(const struct node *n, int round, int i) {
    enum { OWN = 5 };
    if (i < OWN) {
        int run = (round + i) % 4;
        int64_t number = 1 + (int64_t)n->number * 100000 + (int64_t)round * EVENTS + i;
        return in_tenant(fixture_item("RunNoted", fixture_fmt("r%d", run), NULL, number),
                         run % 2 ? "globex" : "acme");
    }
    const char *run = fixture_fmt("shared%d", round);
    const char *step = fixture_fmt("s%d", i);
    struct append_item item = i == OWN ? fixture_item("RunStarted", run, NULL, 1)
                                       : fixture_item("StepStarted", run, step, 1);
    return in_tenant(item, round % 2 ? "globex" : "acme");
}

static void make_items(struct node *n) {
    for (int round = 0; round < n->rounds; round++) {
        for (int i = 0; i < EVENTS; i++)
            n->items[round][i] = item_of(n, round, i);
    }
}

static void *append_all(void *arg) {
    struct node *n = arg;
    for (int round = 0; round < n->rounds; round++) {
        struct append_request req = {.items = n->items[round],
                                     .count = EVENTS,
                                     .atomic = true,
                                     .results = n->results[round],
                                     .arena = &n->c.arena};
        struct append_request *reqs[] = {&req};
        struct error err;
        if (ledger_append(n->c.ledger, reqs, 1, &err) != ST_OK) {
            n->failures++;
            memcpy(n->why, err.msg, sizeof(n->why));
            continue;
        }
        for (int i = 0; i < EVENTS; i++) {
            n->failures += n->results[round][i].code != ST_OK;
            n->duplicates += n->results[round][i].duplicate;
        }
    }
    atomic_store(&n->done, true);
    return NULL;
}

static void check_contiguous(struct fixture *c) {
    CHECK(fixture_int(
              c,
              "SELECT COUNT(*) FROM (SELECT tenant_id, COUNT(*) AS n, MIN(sequence_number) AS low, "
              "MAX(sequence_number) AS high"
              " FROM orchestration_events GROUP BY tenant_id) t WHERE low <> 1 OR high <> n") == 0);
    CHECK(fixture_int(c, "SELECT COUNT(*) FROM (SELECT \"runId\", COUNT(*) AS n, COUNT(DISTINCT "
                         "\"runSeq\") AS d, MAX(\"runSeq\") AS high"
                         " FROM run_events GROUP BY \"runId\") t WHERE d <> n OR high <> n") == 0);
    CHECK(fixture_int(c,
                      "SELECT COUNT(*) FROM (SELECT \"idempotencyKey\" FROM run_events GROUP BY 1 "
                      "HAVING COUNT(*) > 1) t") == 0);
}

/* Two nodes, two threads, the same two tenants and the same runs: contiguous numbers, no event
 * twice, a clean history. */
TEST(care_two_nodes_append_to_the_same_runs) {
    static struct node nodes[NODES];
    str url = test_postgres();
    for (int i = 0; i < NODES; i++) {
        nodes[i] = (struct node){.number = i, .rounds = fixture_scaled(ROUNDS, 20)};
        fixture_open(&nodes[i].c, url);
        make_items(&nodes[i]);
    }
    for (int i = 0; i < NODES; i++)
        CHECK(pthread_create(&nodes[i].thread, NULL, append_all, &nodes[i]) == 0);
    for (int i = 0; i < NODES; i++)
        pthread_join(nodes[i].thread, NULL);
    int rounds = nodes[0].rounds;
    int duplicates = 0;
    for (int i = 0; i < NODES; i++) {
        CHECK(nodes[i].failures == 0, "node %d: %d failures: %s", i, nodes[i].failures,
              nodes[i].why);
        duplicates += nodes[i].duplicates;
    }
    CHECK(duplicates == 3 * rounds, "%d duplicates",
          duplicates); /* each shared event was new for one and there for the other */
    struct fixture *c = &nodes[0].c;
    CHECK(fixture_int(c, "SELECT COUNT(*) FROM run_events") == (int64_t)rounds * 13);
    check_contiguous(c);
    fixture_clean(c);
    for (int i = 0; i < NODES; i++)
        fixture_close(&nodes[i].c);
}

/* A node rebuilds while another appends: they wait for each other, and both get on. */
TEST(care_a_node_rebuilds_while_another_appends) {
    static struct node busy;
    struct fixture c;
    struct error err = {0};
    str url = test_postgres();
    busy = (struct node){.rounds = fixture_scaled(ROUNDS, 20)};
    fixture_open(&busy.c, url);
    make_items(&busy);
    fixture_open(&c, url);
    CHECK(pthread_create(&busy.thread, NULL, append_all, &busy) == 0);
    status st = ST_OK;
    int rebuilds = 0;
    for (; st == ST_OK && !atomic_load(&busy.done); rebuilds++)
        st = ledger_rebuild(c.ledger, NULL, NULL, NULL, &err);
    pthread_join(busy.thread, NULL);
    CHECK(st == ST_OK, "%s", err.msg);
    CHECK(busy.failures == 0 && rebuilds > 0, "%d failures: %s", busy.failures, busy.why);
    check_contiguous(&c);
    fixture_clean(&c);
    fixture_close(&c);
    fixture_close(&busy.c);
}

/* What a node remembers of a run is dropped when another node wrote to its tenant. */
TEST(care_a_node_notices_what_another_wrote) {
    struct fixture a;
    struct fixture b;
    str url = test_postgres();
    fixture_open(&a, url);
    fixture_open(&b, url);
    fixture_put(&a, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&b, fixture_item("StepStarted", "r1", "s", 1));
    CHECK(fixture_put(&a, fixture_item("StepCompleted", "r1", "s", 1)).run_seq ==
          3); /* legal only after the other's event */
    CHECK(fixture_try(&b, fixture_item("StepCompleted", "r1", "s", 1)).duplicate);
    fixture_refused(&b, fixture_item("StepStarted", "r1", "s", 2), ST_CONFLICT,
                    "INVALID_TRANSITION");
    CHECK(fixture_put(&b, fixture_item("RunCompleted", "r1", NULL, 1)).run_seq == 4);
    fixture_refused(&a, fixture_item("RunPaused", "r1", NULL, 1), ST_CONFLICT,
                    "INVALID_TRANSITION");
    fixture_clean(&a);
    fixture_close(&a);
    fixture_close(&b);
}

/* The same when the run came into memory through a request of a foreign tenant, before its own
 * tenant was met. */
TEST(care_a_node_forgets_a_run_met_through_another_tenant) {
    struct fixture a;
    struct fixture b;
    str url = test_postgres();
    fixture_open(&b, url);
    fixture_put(&b, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_open(&a, url);
    fixture_refused(&a, in_tenant(fixture_item("RunNoted", "r1", NULL, 1), "globex"), ST_CONFLICT,
                    "RUN_ID_TAKEN");
    fixture_put(&b, fixture_item("StepStarted", "r1", "s", 1));
    struct append_result res = fixture_put(&a, fixture_item("StepCompleted", "r1", "s", 1));
    CHECK(res.run_seq == 3 && res.seq == 3, "runSeq %lld, %lld", (long long)res.run_seq,
          (long long)res.seq);
    check_contiguous(&a);
    fixture_clean(&a);
    fixture_close(&a);
    fixture_close(&b);
}

/* Two nodes that start on an empty database at once make one ledger. */
static void *open_only(void *arg) {
    struct fixture *c = arg;
    struct error err;
    return ledger_open(c->url, &c->options, &c->ledger, &err) == ST_OK ? c : NULL;
}

TEST(care_two_nodes_make_one_ledger) {
    struct fixture nodes[2];
    pthread_t threads[2];
    str url = test_postgres();
    for (int i = 0; i < 2; i++) {
        nodes[i] = (struct fixture){.url = url};
        arena_init(&nodes[i].arena, 4096, SIZE_MAX);
        CHECK(pthread_create(&threads[i], NULL, open_only, &nodes[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        void *ok = NULL;
        pthread_join(threads[i], &ok);
        CHECK(ok, "node %d", i);
    }
    for (int i = 0; i < 2; i++)
        fixture_put(&nodes[i], fixture_item("RunStarted", fixture_fmt("r%d", i), NULL, 1));
    check_contiguous(&nodes[0]);
    for (int i = 0; i < 2; i++)
        fixture_close(&nodes[i]);
}
