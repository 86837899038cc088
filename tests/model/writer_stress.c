/* Many threads, one writer: they append the same events at the same time, each under an eventId of
 * its own, and must all be told the same.
 *
 * A thread sends a burst of calls without waiting (more than the queue holds, in all), then waits;
 * what the full queue refused it appends again, waiting. CHECK works on the main thread only, so
 * threads count what is wrong and the test looks at the end. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/limits.h"
#include "base/metrics.h"
#include "ledger/writer.h"
#include "model/compare.h"
#include "model/random.h"
#include "test.h"

enum { THREADS = 16, RUNS = 8, EVENTS_PER_RUN = 100, BURST = 90, BURSTS = 4, WAIT_MS = 60000 };

struct fact { /* what the first answer about an event said */
    bool known;
    uuid event_id;
    int64_t run_seq, seq, persisted_us;
};
struct stress {
    struct writer *writer;
    pthread_mutex_t lock; /* guards facts */
    struct fact facts[RUNS][EVENTS_PER_RUN];
    atomic_int firsts; /* answers that were no duplicates */
    atomic_int wrong, refused, failed;
    int bursts;
};
struct call {
    struct writer_call call;
    struct append_item item;
    struct append_result result;
    struct arena arena;
    int run, number;
    bool sent;
};
struct client {
    struct stress *stress;
    uint64_t rng;
    pthread_t thread;
    struct call calls[BURST];
    pthread_mutex_t lock; /* guards `waiting` */
    pthread_cond_t answered;
    int waiting;
};

static const char *const run_ids[RUNS] = {"run-0", "run-1", "run-2", "run-3",
                                          "run-4", "run-5", "run-6", "run-7"};

static void make_call(struct client *c, struct call *call) {
    call->run = (int)random_below(&c->rng, RUNS);
    call->number = (int)random_below(&c->rng, EVENTS_PER_RUN);
    call->sent = false;
    call->item = (struct append_item){0};
    struct event *e = &call->item.event;
    *e = (struct event){.type_name = STR("RunTicked"),
                        .run_id = str_c(run_ids[call->run]),
                        .project_id = STR("p"),
                        .tenant_id = call->run % 2 ? STR("odd") : STR("even"),
                        .environment_id = STR("e"),
                        .plan_id = STR("plan"),
                        .plan_version = STR("1"),
                        .engine_attempt = 1,
                        .logical_attempt = call->number + 1,
                        .event_id = uuid_v4(),
                        .payload = STR("{\"n\":1}")};
    struct error err = {0};
    event_key_derive(e, e->key);
    if (event_validate(e, &err) != ST_OK) atomic_fetch_add(&c->stress->failed, 1);
    arena_reset(&call->arena);
    call->call = (struct writer_call){.context = c};
    call->call.request = (struct append_request){
        .items = &call->item, .count = 1, .results = &call->result, .arena = &call->arena};
}

static bool agrees(const struct fact *fact, const struct append_result *res) {
    return uuid_eq(fact->event_id, res->event_id) && fact->run_seq == res->run_seq &&
           fact->seq == res->seq && fact->persisted_us == res->persisted_us;
}

static void note(struct stress *s, const struct call *call) {
    const struct append_result *res = &call->result;
    if (call->call.code != ST_OK || res->code != ST_OK) {
        atomic_fetch_add(&s->failed, 1);
        return;
    }
    if (!res->duplicate) atomic_fetch_add(&s->firsts, 1);
    pthread_mutex_lock(&s->lock);
    struct fact *fact = &s->facts[call->run][call->number];
    if (!fact->known)
        *fact = (struct fact){true, res->event_id, res->run_seq, res->seq, res->persisted_us};
    else if (!agrees(fact, res))
        atomic_fetch_add(&s->wrong, 1);
    pthread_mutex_unlock(&s->lock);
}

/* On the ledger thread. */
static void on_answer(struct writer_call *call) {
    struct client *c = call->context;
    pthread_mutex_lock(&c->lock);
    c->waiting--;
    pthread_cond_signal(&c->answered);
    pthread_mutex_unlock(&c->lock);
}

static void send_burst(struct client *c) {
    for (int i = 0; i < BURST; i++) {
        struct call *call = &c->calls[i];
        struct error err = {0};
        make_call(c, call);
        call->call.done = on_answer;
        pthread_mutex_lock(&c->lock);
        c->waiting++;
        pthread_mutex_unlock(&c->lock);
        call->sent = writer_submit(c->stress->writer, &call->call, &err) == ST_OK;
        if (call->sent) continue;
        atomic_fetch_add(&c->stress->refused, 1);
        pthread_mutex_lock(&c->lock);
        c->waiting--; /* nothing was taken: no answer will come */
        pthread_mutex_unlock(&c->lock);
    }
}

static void *run_client(void *arg) {
    struct client *c = arg;
    for (int b = 0; b < c->stress->bursts; b++) {
        send_burst(c);
        pthread_mutex_lock(&c->lock);
        while (c->waiting > 0)
            pthread_cond_wait(&c->answered, &c->lock);
        pthread_mutex_unlock(&c->lock);
        for (int i = 0; i < BURST; i++) {
            struct call *call = &c->calls[i];
            struct error err = {0};
            if (!call->sent)
                call->call.code = writer_append(c->stress->writer, &call->call, WAIT_MS, &err);
            note(c->stress, call);
        }
    }
    return NULL;
}

static void start_clients(struct stress *s, struct client *clients) {
    for (int i = 0; i < THREADS; i++) {
        struct client *c = &clients[i];
        c->stress = s;
        c->rng = (uint64_t)i + 1;
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->answered, NULL);
        for (int k = 0; k < BURST; k++)
            arena_init(&c->calls[k].arena, 1024, (size_t)64 * 1024);
        CHECK(pthread_create(&c->thread, NULL, run_client, c) == 0);
    }
}

static void join_clients(struct client *clients) {
    for (int i = 0; i < THREADS; i++) {
        pthread_join(clients[i].thread, NULL);
        pthread_mutex_destroy(&clients[i].lock);
        pthread_cond_destroy(&clients[i].answered);
        for (int k = 0; k < BURST; k++)
            arena_release(&clients[i].calls[k].arena);
    }
}

static int64_t count_facts(const struct stress *s) {
    int64_t n = 0;
    for (int run = 0; run < RUNS; run++) {
        for (int i = 0; i < EVENTS_PER_RUN; i++)
            n += s->facts[run][i].known;
    }
    return n;
}

/* Each record is one of the facts; there are as many of them; numbers have no gaps. */
static void check_tenant(struct ledger *l, const struct stress *s, str tenant, int64_t *records) {
    struct arena arena;
    struct error err = {0};
    struct event_page page = {0};
    arena_init(&arena, (size_t)64 * 1024, (size_t)64 * 1024 * 1024);
    status st = ledger_read_tenant(l, tenant, 0, PAGE_EVENTS_MAX, &arena, &page, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < page.count; i++) {
        const struct event_record *r = &page.records[i];
        const struct fact *fact =
            &s->facts[r->event.run_id.ptr[4] - '0'][r->event.logical_attempt - 1];
        CHECK(r->seq == (int64_t)i + 1, "sequence_number %lld at %zu", (long long)r->seq, i);
        CHECK(fact->known && uuid_eq(fact->event_id, r->event.event_id) &&
              fact->run_seq == r->run_seq && fact->seq == r->seq);
    }
    *records += (int64_t)page.count;
    arena_release(&arena);
}

TEST_DB(writer_gives_all_threads_the_same_answers) {
    static struct client clients[THREADS];
    static struct stress s;
    struct error err = {0};
    struct ledger *ledger = NULL;
    const char *scale = getenv("CAIRN_TEST_SCALE");
    int64_t percent = 100;
    if (scale && !str_to_int(str_c(scale), &percent)) percent = 100;
    s = (struct stress){.lock = PTHREAD_MUTEX_INITIALIZER, .bursts = percent >= 100 ? BURSTS : 2};
    memset(clients, 0, sizeof(clients));
    CHECK(ledger_open(url, NULL, &ledger, &err) == ST_OK, "%s", err.msg);
    CHECK(writer_open(ledger, NULL, &s.writer, &err) == ST_OK, "%s", err.msg);
    start_clients(&s, clients);
    join_clients(clients);
    writer_close(s.writer);

    int64_t facts = count_facts(&s);
    int64_t records = 0;
    CHECK(s.failed == 0 && s.wrong == 0, "%d failed, %d told otherwise", s.failed, s.wrong);
    CHECK(facts > 0 && s.firsts == facts, "%d first answers about %lld events", s.firsts,
          (long long)facts);
    CHECK(THREADS * BURST >
          QUEUE_REQUESTS_MAX); /* so the queue can be full; whether it was is luck */
    CHECK(ledger_open_reader(url, &ledger, &err) == ST_OK, "%s", err.msg);
    check_tenant(ledger, &s, STR("even"), &records);
    check_tenant(ledger, &s, STR("odd"), &records);
    CHECK(records == facts, "%lld records of %lld events", (long long)records, (long long)facts);
    char mem[512];
    struct buf why;
    buf_init_fixed(&why, mem, sizeof(mem) - 1);
    bool clean = compare_verify(ledger, &why);
    mem[why.len] = 0;
    CHECK(clean, "%s", mem);
    ledger_close(ledger);
}
