/* The engine as a producer: ids of its events when a commit has to be repeated. The engine stands
 * over a real ledger, with a port between them that loses commits on demand. */
#include "base/os.h"
#include "base/time.h"
#include "conformance/fixture.h"
#include "engine/engine.h"

enum { TRIES_MAX = 64, SENT_MAX = 16, EVENTS_MAX = 16 };

enum fate {
    FATE_REFUSED, /* not taken at all: the queue is full */
    FATE_FAILS,   /* lost before it was stored */
    FATE_REPLY,   /* stored, and nobody hears of it */
    FATE_GOOD,
};

struct sent { /* one try */
    size_t count;
    struct event events[EVENTS_MAX];
};
struct shop {
    struct fixture c;
    struct engine *engine;
    struct plan *plan;
    struct lease lease;
    int64_t now_us;
    const enum fate *fates; /* of the tries, one after the other; then all are good */
    size_t fate_count, tries;
    struct sent sent[SENT_MAX];
    struct engine_commit *under_way;
    struct engine_read *asked[4];
    size_t asked_count;
    enum fate fate;
    bool started;
};

static int64_t now(void *context) { return ((struct shop *)context)->now_us; }

static void give_random(void *context, void *out, size_t n) {
    UNUSED(context);
    random_bytes(out, n);
}

static status append(void *context, struct engine_commit *commit, struct error *err) {
    struct shop *s = context;
    const struct append_request *req = &commit->request;
    CHECK(s->tries < SENT_MAX && req->count <= EVENTS_MAX, "%zu tries", s->tries);
    struct sent *to = &s->sent[s->tries];
    to->count = req->count;
    for (size_t i = 0; i < req->count; i++)
        to->events[i] = req->items[i].event; /* its id and key are of interest */
    s->fate = s->tries < s->fate_count ? s->fates[s->tries] : FATE_GOOD;
    s->tries++;
    if (s->fate == FATE_REFUSED) return error_set(err, ST_LIMIT, "the queue is full");
    s->under_way = commit;
    return ST_OK;
}

static void answer(struct shop *s) {
    struct engine_commit *c = s->under_way;
    s->under_way = NULL;
    c->code = ST_OK;
    struct append_request *request = &c->request;
    if (s->fate != FATE_FAILS) c->code = ledger_append(s->c.ledger, &request, 1, &c->err);
    if (s->fate == FATE_FAILS || s->fate == FATE_REPLY)
        c->code = error_set(&c->err, ST_RETRY, "the connection was lost");
    engine_committed(s->engine, c);
}

/* Questions wait until the next turn. */
static void ask(void *context, struct engine_read *read) {
    struct shop *s = context;
    CHECK(s->asked_count < COUNT_OF(s->asked));
    s->asked[s->asked_count++] = read;
}

static void read_run(struct shop *s, struct engine_read *read) {
    struct engine_loaded *loaded = &read->loaded;
    struct ledger *l = s->c.ledger;
    struct lease owner = {0};
    struct error *err = &read->err;
    status st = ledger_find_run(l, read->run_id, &read->arena, &loaded->info, err);
    if (st == ST_OK) st = lease_owner(l, loaded->info.run_no, &loaded->held, &owner, err);
    loaded->ours = loaded->held && owner.node_no == s->lease.node_no;
    loaded->epoch = owner.epoch;
    if (st == ST_OK)
        st = ledger_walk_run(l, &loaded->info, read->after_seq, engine_read_row, read, err);
    read->code = st;
}

static void answer_reads(struct shop *s) {
    while (s->asked_count > 0) {
        struct engine_read *read = s->asked[--s->asked_count];
        if (read->kind == READ_RUN) read_run(s, read); /* no run is due by itself here */
        engine_read_done(s->engine, read);
    }
}

static status plan(void *context, str tenant_id, const struct plan_ref *ref,
                   const struct plan **out, struct error *err) {
    UNUSED(tenant_id);
    UNUSED(ref);
    UNUSED(err);
    *out = ((struct shop *)context)->plan;
    return ST_OK;
}

static void plan_done(void *context, const struct plan *p) {
    UNUSED(context);
    UNUSED(p);
}

static void no_attempt(void *context, struct attempt *attempt) {
    UNUSED(context);
    UNUSED(attempt);
    CHECK(false, "a plan of noops executes nothing");
}

static void wake_at(void *context, int64_t us) {
    UNUSED(context);
    UNUSED(us);
}

static void on_started(void *context, status code, const struct error *err) {
    CHECK(code == ST_OK, "%s", err ? err->msg : "");
    ((struct shop *)context)->started = true;
}

static void open_engine(struct shop *s) {
    struct error err = {0};
    const struct engine_ports ports = {.context = s,
                                       .now_us = now,
                                       .random = give_random,
                                       .append = append,
                                       .read = ask,
                                       .plan = plan,
                                       .plan_done = plan_done,
                                       .start = no_attempt,
                                       .stop = no_attempt,
                                       .wake_at = wake_at};
    CHECK(lease_take(s->c.ledger, STR("n1"), 60000, &s->lease, &err) == ST_OK, "%s", err.msg);
    const struct engine_options options = {.lease = s->lease,
                                           .node = STR("n1"),
                                           .version = STR("test"),
                                           .settle_max = 100,
                                           .resident_max = 100};
    CHECK(engine_open(&ports, &options, &s->engine, &err) == ST_OK, "%s", err.msg);
}

static void shop_open(struct shop *s, str url, const enum fate *fates, size_t count) {
    static const char text[] =
        "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":\"1\"},"
        "\"steps\":[{\"stepId\":\"a\",\"type\":\"noop\"},{\"stepId\":\"b\",\"type\":\"wait\","
        "\"signal\":\"go\"}]}";
    struct error err = {0};
    struct plan_problems problems = {0};
    *s = (struct shop){.fates = fates, .fate_count = count, .now_us = clock_wall_us()};
    fixture_open(&s->c, url);
    CHECK(plan_parse(str_c(text), &s->c.arena, &s->plan, &problems, &err) == ST_OK, "%s", err.msg);
    open_engine(s);
}

/* Carries out what there is to do, time passing, until nothing is under way for a while. */
static void turn(struct shop *s) {
    for (int i = 0; i < TRIES_MAX; i++) {
        answer_reads(s);
        if (s->under_way) answer(s);
        s->now_us += 2000000;
        engine_tick(s->engine);
    }
    CHECK(!s->under_way);
}

static void start_run(struct shop *s) {
    char run_id[ID_BYTES_MAX + 1];
    struct start_request q = {.tenant_id = STR("acme"),
                              .project_id = STR("shop"),
                              .environment_id = STR("prod"),
                              .run_id = STR("r"),
                              .adapter = STR("local"),
                              .ref = {.uri = STR("plan:p"),
                                      .schema_version = STR("v1.3"),
                                      .plan_id = STR("p"),
                                      .plan_version = STR("1")}};
    engine_start(s->engine, &q, run_id, on_started, s);
    turn(s);
}

static void shop_close(struct shop *s) {
    engine_close(s->engine);
    fixture_close(&s->c);
}

static const struct event *same_key(const struct sent *in, const struct event *e) {
    for (size_t i = 0; i < in->count; i++) {
        if (memcmp(in->events[i].key, e->key, SHA256_LEN) == 0) return &in->events[i];
    }
    return NULL;
}

/* Every event that was sent more than once was sent with one id; `repeated` of the first try's. */
static void check_sent(const struct shop *s, size_t repeated) {
    size_t found = 0;
    for (size_t t = 1; t < s->tries; t++) {
        for (size_t i = 0; i < s->sent[0].count; i++) {
            const struct event *first = &s->sent[0].events[i];
            const struct event *again = same_key(&s->sent[t], first);
            if (!again) continue;
            found++;
            CHECK(uuid_eq(again->event_id, first->event_id), "try %zu: %.*s has another id", t,
                  STR_ARG(first->type_name));
        }
    }
    CHECK(found == repeated, "%zu events were sent again", found);
}

/* What is stored of the run has the ids of the first try. */
static void check_stored(struct shop *s) {
    struct event_page page = {0};
    struct error err = {0};
    CHECK(ledger_read_run(s->c.ledger, STR("r"), 0, 100, &s->c.arena, &page, &err) == ST_OK, "%s",
          err.msg);
    CHECK(page.count >= s->sent[0].count);
    for (size_t i = 0; i < s->sent[0].count; i++) {
        CHECK(uuid_eq(page.records[i].event.event_id, s->sent[0].events[i].event_id), "event %zu",
              i);
    }
}

/* RE-2.5-1, RE-2.5.1-3: the store refuses the commit twice, each time in another way, and takes it
 * then: all three tries carried one id for each event, drawn before the first of them, and that is
 * what is stored. */
TEST_DB(engine_ids_are_kept_over_failed_commits) {
    static const enum fate cases[][2] = {{FATE_FAILS, FATE_FAILS},
                                         {FATE_REFUSED, FATE_REFUSED},
                                         {FATE_REFUSED, FATE_FAILS},
                                         {FATE_FAILS, FATE_REFUSED}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct shop s;
        shop_open(&s, i == 0 ? url : fixture_other_url(url), cases[i], 2);
        start_run(&s);
        CHECK(s.started && s.tries == 3, "case %zu: %zu tries", i, s.tries);
        CHECK(s.sent[0].count >= 4); /* the signal, RunStarted, a's two events, ... */
        check_sent(&s, 2 * s.sent[0].count);
        check_stored(&s);
        shop_close(&s);
    }
}

/* RE-2.5.1-3, RE-2.5.2-1: the commit lands and its answer is lost: the engine builds the run from
 * the stored records, takes their ids over and sends none of the events again. */
TEST_DB(engine_ids_of_stored_records_count) {
    static const enum fate fates[] = {FATE_REPLY};
    struct shop s;
    shop_open(&s, url, fates, 1);
    start_run(&s);
    CHECK(s.started);
    check_sent(&s, 0);
    check_stored(&s);
    shop_close(&s);
}

/* RE-2.5.2-1: another process builds the run from what was recorded: replay yields the ids of the
 * first execution, because they are read and not drawn again; what follows has ids of its own. */
TEST_DB(engine_ids_survive_the_process) {
    struct shop s;
    shop_open(&s, url, NULL, 0);
    start_run(&s);
    CHECK(s.started && s.tries == 1);
    struct error err = {0};
    engine_close(s.engine);
    s.asked_count = 0; /* what it asked for went with it */
    CHECK(lease_release(s.c.ledger, &s.lease, &err) == ST_OK, "%s", err.msg);
    fixture_reopen(&s.c);
    open_engine(&s);
    struct signal go = {.name = STR("go"), .signal_id = STR("g-1")};
    s.started = false;
    engine_signal(s.engine, STR("r"), &go,
                  &(struct engine_caller){.done = on_started, .context = &s});
    turn(&s);
    CHECK(s.started && s.tries == 2, "%zu tries", s.tries);
    check_sent(&s, 0);
    check_stored(&s);
    CHECK(fixture_run(&s.c, "r").head.status == RUN_COMPLETED);
    shop_close(&s);
}
