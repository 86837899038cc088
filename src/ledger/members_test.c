/* Everything that writes is a member of the group that is being committed: one group, one commit,
 * whatever it holds, and each member its own answer. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/time.h"
#include "db/db.h"
#include "ledger/access/access.h"
#include "ledger/lease.h"
#include "ledger/writer.h"
#include "test.h"

enum { CALLS_MAX = 64 };

struct job {
    struct writer_call call;
    struct append_item item;
    struct append_result result;
    int runs;           /* of a body */
    atomic_int answers; /* must be 1 in the end */
};

struct rig {
    struct metrics *metrics;
    struct writer *writer;
    struct lease lease;
    struct arena arena;
    struct job jobs[CALLS_MAX];
    size_t count;
    sem_t gate, standing;
    struct job stopper;
};

static void on_answer(struct writer_call *call) {
    struct job *job = call->context;
    atomic_fetch_add(&job->answers, 1);
}

static void rig_open(struct rig *r, str url) {
    struct ledger *l = NULL;
    struct error err = {0};
    *r = (struct rig){0};
    log_setup(2, false, LOG_OFF);
    arena_init(&r->arena, 4096, SIZE_MAX);
    CHECK(sem_init(&r->gate, 0, 0) == 0 && sem_init(&r->standing, 0, 0) == 0);
    CHECK(metrics_open(&r->metrics, &err) == ST_OK, "%s", err.msg);
    CHECK(ledger_open(url, NULL, &l, &err) == ST_OK, "%s", err.msg);
    CHECK(lease_take(l, STR("n1"), 60000, &r->lease, &err) == ST_OK, "%s", err.msg);
    CHECK(writer_open(l, r->metrics, &r->writer, &err) == ST_OK, "%s", err.msg);
}

static void rig_close(struct rig *r) {
    writer_close(r->writer);
    metrics_close(r->metrics);
    sem_destroy(&r->gate);
    sem_destroy(&r->standing);
    arena_release(&r->arena);
}

static int64_t commits(struct rig *r) {
    return metric_value(
        metrics_counter(r->metrics, "cairn_ledger_commits_total", "Group commits tried.", ""));
}

/* Holds the ledger thread up, so that all that follows becomes one group. */
static status stand(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    UNUSED(ledger);
    UNUSED(err);
    CHECK(sem_post(&r->standing) == 0);
    while (sem_wait(&r->gate) != 0) {
    }
    return ST_OK;
}

static void stop_thread(struct rig *r) {
    struct error err = {0};
    r->stopper.call = (struct writer_call){
        .task = stand, .task_context = r, .done = on_answer, .context = &r->stopper};
    CHECK(writer_submit(r->writer, &r->stopper.call, &err) == ST_OK, "%s", err.msg);
    while (sem_wait(&r->standing) != 0) {
    }
}

static void submit(struct rig *r, struct job *job) {
    struct error err = {0};
    job->call.done = on_answer;
    job->call.context = job;
    CHECK(writer_submit(r->writer, &job->call, &err) == ST_OK, "%s", err.msg);
}

static struct job *add_body(struct rig *r, ledger_body body, void *context) {
    CHECK(r->count < CALLS_MAX);
    struct job *job = &r->jobs[r->count++];
    *job = (struct job){.call.member = {.body = body, .context = context}};
    submit(r, job);
    return job;
}

static struct job *add_event(struct rig *r, int64_t n) {
    struct error err = {0};
    CHECK(r->count < CALLS_MAX);
    struct job *job = &r->jobs[r->count++];
    *job = (struct job){.item = {.event = {.type_name = STR("RunNoted"),
                                           .run_id = STR("r"),
                                           .tenant_id = STR("t"),
                                           .project_id = STR("p"),
                                           .environment_id = STR("e"),
                                           .plan_id = STR("pl"),
                                           .plan_version = STR("1"),
                                           .engine_attempt = 1,
                                           .event_id = uuid_v4(),
                                           .logical_attempt = n}}};
    event_key_derive(&job->item.event, job->item.event.key);
    CHECK(event_validate(&job->item.event, &err) == ST_OK, "%s", err.msg);
    job->call.request = (struct append_request){
        .items = &job->item, .count = 1, .results = &job->result, .arena = &r->arena};
    submit(r, job);
    return job;
}

/* Lets the ledger thread go on, and waits until all is answered. */
static void go(struct rig *r) {
    CHECK(sem_post(&r->gate) == 0);
    for (size_t i = 0; i < r->count; i++) {
        while (atomic_load(&r->jobs[i].answers) == 0)
            (void)usleep(1000);
    }
}

static int64_t count_rows(str url, const char *sql) {
    struct ledger *reader = NULL;
    struct db_stmt *q = NULL;
    struct error err = {0};
    bool row = false;
    CHECK(ledger_open_reader(url, &reader, &err) == ST_OK, "%s", err.msg);
    CHECK(db_prepare(ledger_db(reader), sql, &q, &err) == ST_OK, "%s", err.msg);
    CHECK(db_step(q, &row, &err) == ST_OK && row, "%s", err.msg);
    int64_t n = db_int(q, 0);
    db_reset(q);
    ledger_close(reader);
    return n;
}

/* ---- bodies ---- */

struct key_job {
    struct api_key key;
    struct audit_entry audit;
    struct append_rider rider;
};

static struct key_job *key_of(struct rig *r, const char *id) {
    struct key_job *k = ARENA_NEW(&r->arena, struct key_job);
    k->key = (struct api_key){.key_id = str_c(id),
                              .tenant_id = STR("t"),
                              .name = STR("name"),
                              .roles = 1,
                              .created_us = 1,
                              .version = 1};
    k->audit = (struct audit_entry){.tenant_id = STR("t"),
                                    .action = STR("key.create"),
                                    .target = str_c(id),
                                    .outcome = STR("done")};
    k->rider.audit = &k->audit;
    return k;
}

static status create_key(struct ledger *ledger, void *context, struct error *err) {
    struct key_job *k = context;
    return api_key_create(ledger, &k->key, &k->rider, err);
}

static status update_key(struct ledger *ledger, void *context, struct error *err) {
    struct key_job *k = context;
    return api_key_update(ledger, &k->key, &k->rider, err);
}

static status use_key(struct ledger *ledger, void *context, struct error *err) {
    struct key_job *k = context;
    struct key_use use = {.us = 99};
    memcpy(use.key_id, k->key.key_id.ptr, sizeof(use.key_id));
    return api_keys_used(ledger, &use, 1, err);
}

static status ride(struct ledger *ledger, void *context, struct error *err) {
    struct key_job *k = context;
    return access_ride(ledger, &k->rider, err);
}

static status put_plan(struct ledger *ledger, void *context, struct error *err) {
    struct key_job *k = context;
    uint8_t hash[SHA256_LEN] = {1};
    bool existed = false;
    return access_plan_put(ledger, STR("t"), hash, STR("{}"), &k->rider, &existed, err);
}

static status renew(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    return lease_renew(ledger, &r->lease, 60000, err);
}

static status renew_lost(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    struct lease old = {r->lease.node_no, r->lease.epoch - 1};
    return lease_renew(ledger, &old, 60000, err);
}

static status take_over(struct ledger *ledger, void *context, struct error *err) {
    struct rig *r = context;
    struct lease_runs runs;
    return lease_take_over(ledger, &r->lease, 10, &r->arena, &runs, err);
}

static status sweep(struct ledger *ledger, void *context, struct error *err) {
    bool more = false;
    UNUSED(context);
    return receipt_sweep(ledger, 10, &more, err);
}

/* ---- tests ---- */

/* Key changes, leases, audit records, receipts, plans and appends that come together are one
 * commit, and so one fsync; and what a member reads, an earlier one of the group has written. */
TEST_DB(members_of_a_group_cost_one_commit) {
    struct rig r;
    rig_open(&r, url);
    struct key_job *k = key_of(&r, "aaaaaaaaaaaaaaaa");
    struct key_job *again = key_of(&r, "aaaaaaaaaaaaaaaa");
    again->key.name = STR("renamed");
    stop_thread(&r);
    add_event(&r, 1);
    add_body(&r, create_key, k);
    add_body(&r, update_key, again);
    add_body(&r, use_key, k);
    add_body(&r, renew, &r);
    add_event(&r, 2);
    add_body(&r, take_over, &r);
    for (int i = 0; i < 10; i++)
        add_body(&r, ride, k);
    add_body(&r, put_plan, k);
    add_body(&r, sweep, NULL);
    add_event(&r, 3);
    int64_t before = commits(&r);
    go(&r);
    CHECK(commits(&r) - before == 1, "%lld commits", (long long)(commits(&r) - before));
    for (size_t i = 0; i < r.count; i++) {
        CHECK(r.jobs[i].call.code == ST_OK, "call %zu: %s", i, r.jobs[i].call.err.msg);
        CHECK(atomic_load(&r.jobs[i].answers) == 1);
    }
    rig_close(&r);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_event") == 3);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_audit") == 13);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_plan") == 1);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM api_key WHERE name = 'renamed' AND version = 2"
                          " AND used_us = 99") == 1);
}

/* A member that is refused says so to its own caller alone, and leaves no row behind, not even its
 * audit record. */
TEST_DB(members_that_are_refused_leave_nothing_behind) {
    struct rig r;
    rig_open(&r, url);
    struct key_job *k = key_of(&r, "aaaaaaaaaaaaaaaa");
    struct key_job *missing = key_of(&r, "bbbbbbbbbbbbbbbb");
    struct key_job *stale = key_of(&r, "aaaaaaaaaaaaaaaa");
    stale->key.version = 7;
    stop_thread(&r);
    add_event(&r, 1);
    add_body(&r, create_key, k);
    struct job *twice = add_body(&r, create_key, k);
    struct job *none = add_body(&r, update_key, missing);
    struct job *moved = add_body(&r, update_key, stale);
    struct job *lost = add_body(&r, renew_lost, &r);
    add_event(&r, 2);
    int64_t before = commits(&r);
    go(&r);
    CHECK(commits(&r) - before == 1);
    CHECK(twice->call.code == ST_CONFLICT && twice->call.err.reason == REASON_KEY_ID_TAKEN);
    CHECK(none->call.code == ST_NOT_FOUND && none->call.err.reason == REASON_KEY_NOT_FOUND);
    CHECK(moved->call.code == ST_CONFLICT && moved->call.err.reason == REASON_PRECONDITION_FAILED);
    CHECK(lost->call.code == ST_CONFLICT && lost->call.err.reason == REASON_LEASE_LOST);
    CHECK(r.jobs[0].call.code == ST_OK && r.jobs[0].result.code == ST_OK);
    CHECK(r.jobs[1].call.code == ST_OK && r.jobs[6].result.code == ST_OK);
    rig_close(&r);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_audit") == 1);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM api_key") == 1);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_event") == 2);
}

static status break_the_database(struct ledger *ledger, void *context, struct error *err) {
    struct db_stmt *q = NULL;
    int64_t changed = 0;
    UNUSED(context);
    status st =
        db_prepare(ledger_db(ledger), "INSERT INTO ledger_plan(sha256) VALUES (NULL)", &q, err);
    return st == ST_OK ? db_run(q, &changed, err) : st;
}

/* What the database will never take fails alone: the others are committed, once. */
TEST_DB(members_that_the_database_refuses_fail_alone) {
    struct rig r;
    rig_open(&r, url);
    struct key_job *k = key_of(&r, "aaaaaaaaaaaaaaaa");
    stop_thread(&r);
    add_event(&r, 1);
    struct job *bad = add_body(&r, break_the_database, NULL);
    add_body(&r, create_key, k);
    struct job *worse = add_body(&r, break_the_database, NULL);
    add_event(&r, 2);
    go(&r);
    CHECK(bad->call.code == ST_INVALID && worse->call.code == ST_INVALID, "%s", bad->call.err.msg);
    for (size_t i = 0; i < r.count; i += 2)
        CHECK(r.jobs[i].call.code == ST_OK, "call %zu: %s", i, r.jobs[i].call.err.msg);
    CHECK(!r.jobs[0].result.duplicate && !r.jobs[4].result.duplicate);
    rig_close(&r);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM api_key") == 1);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_event") == 2);
}

/* ---- failures ---- */

struct faults {
    str url;
    struct db *db;
};

static status connect_faulty(void *context, struct db **out, struct error *err) {
    struct faults *f = context;
    struct db *inner = NULL;
    status st = db_open(f->url, DB_WRITE, &inner, err);
    if (st == ST_OK) st = db_faulty_wrap(inner, &f->db, err);
    if (st == ST_OK) *out = f->db;
    return st;
}

static status count_run(struct ledger *ledger, void *context, struct error *err) {
    struct key_job *k = context;
    k->key.used_us++; /* how often it ran */
    return api_key_create(ledger, &k->key, &k->rider, err);
}

/* Wherever the database fails in a group, up to the commit itself: every member is told that
 * nothing is acknowledged, and done again it is there once. No member is answered well before the
 * commit. */
TEST_DB(members_are_acknowledged_by_the_commit_alone) {
    struct faults f = {.url = url};
    struct error err = {0};
    struct ledger *l = NULL;
    struct arena arena;
    log_setup(2, false, LOG_OFF);
    arena_init(&arena, 4096, SIZE_MAX);
    CHECK(ledger_open_with(connect_faulty, &f, NULL, &l, &err) == ST_OK, "%s", err.msg);
    bool reached_end = false;
    int64_t at = 0;
    for (; !reached_end && at < 200; at++) {
        char id[17];
        snprintf(id, sizeof(id), "key%013lld", (long long)at);
        struct rig naming = {0};
        arena_init(&naming.arena, 1024, SIZE_MAX);
        struct key_job *k = key_of(&naming, id);
        struct error why = {0};
        struct ledger_member member = {
            .body = count_run, .context = k, .code = ST_RETRY, .err = &why};
        struct append_request request = {.member = &member};
        struct append_request *all[] = {&request};
        CHECK(ledger_usable(l, &err) == ST_OK, "%s", err.msg);
        db_faulty_fail_at(f.db, at, false);
        status st = ledger_append(l, all, 1, &err);
        db_faulty_fail_at(f.db, -1, false);
        reached_end = st == ST_OK;
        CHECK(st == ST_OK || st == ST_RETRY, "%s", err.msg);
        char sql[128];
        snprintf(sql, sizeof(sql), "SELECT COUNT(*) FROM api_key WHERE key_id = '%s'", id);
        CHECK(count_rows(url, sql) == (st == ST_OK ? 1 : 0), "failed at call %lld", (long long)at);
        if (st == ST_OK) CHECK(member.code == ST_OK);
        arena_release(&naming.arena);
    }
    CHECK(reached_end && at > 4, "it failed only %lld times", (long long)at);
    ledger_close(l);
    arena_release(&arena);
}

/* ---- effects on a run that is over ---- */

static status add_row(struct ledger *l, enum event_type type, int64_t n, struct arena *arena,
                      struct error *err) {
    struct append_result result = {0};
    struct append_item item = {.event = {.type = type,
                                         .type_name = type == EVENT_UNKNOWN
                                                          ? STR("RunNoted")
                                                          : event_type_info(type)->name,
                                         .run_id = STR("r"),
                                         .tenant_id = STR("t"),
                                         .project_id = STR("p"),
                                         .environment_id = STR("e"),
                                         .plan_id = STR("pl"),
                                         .plan_version = STR("1"),
                                         .engine_attempt = 1,
                                         .event_id = uuid_v4(),
                                         .logical_attempt = n}};
    struct append_request request = {
        .items = &item, .count = 1, .results = &result, .arena = arena};
    struct append_request *all[] = {&request};
    event_key_derive(&item.event, item.event.key);
    status st = event_validate(&item.event, err);
    if (st == ST_OK) st = ledger_append(l, all, 1, err);
    return st == ST_OK ? result.code : st;
}

static status ask_effect(struct ledger *l, int n, struct arena *arena, struct error *err) {
    struct append_result result = {0};
    struct append_item item = {0};
    struct event ids = {.run_id = STR("r"),
                        .tenant_id = STR("t"),
                        .project_id = STR("p"),
                        .environment_id = STR("e"),
                        .plan_id = STR("pl"),
                        .plan_version = STR("1"),
                        .engine_attempt = 1};
    char id[UUID_TEXT_LEN];
    char data[512];
    uuid_format(uuid_v4(), id);
    int len = snprintf(data, sizeof(data),
                       "{\"effect_id\":\"%.36s\",\"run_id\":\"%.36s\",\"effect_type\":\"X\","
                       "\"idempotency_key\":\"k%d\",\"max_retries\":0,\"base_delay_ms\":1,"
                       "\"payload\":{\"idempotency_key\":\"k%d\"}}",
                       id, id, n, n);
    status st = ledger_fact(&ids, EVENT_EFFECT_REQUESTED, str_n(id, UUID_TEXT_LEN), 1,
                            str_n(data, (size_t)len), &item, err);
    struct append_request request = {
        .items = &item, .count = 1, .atomic = true, .results = &result, .arena = arena};
    struct append_request *all[] = {&request};
    if (st == ST_OK) st = ledger_append(l, all, 1, err);
    if (st == ST_OK && result.code != ST_OK) *err = *result.err;
    return st == ST_OK ? result.code : st;
}

/* A finished run is replayed for the first effect that is requested on it, and not again for each
 * one that follows: it stays in memory. */
TEST(members_effects_on_a_finished_run_replay_it_once) {
    enum { HISTORY = 300 };
    struct faults f = {.url = test_db_url("sqlite")};
    struct error err = {0};
    struct ledger *l = NULL;
    struct arena arena;
    int64_t calls[3];
    log_setup(2, false, LOG_OFF);
    arena_init(&arena, 4096, SIZE_MAX);
    CHECK(ledger_open_with(connect_faulty, &f, NULL, &l, &err) == ST_OK, "%s", err.msg);
    CHECK(add_row(l, EVENT_RUN_QUEUED, 1, &arena, &err) == ST_OK, "%s", err.msg);
    CHECK(add_row(l, EVENT_RUN_STARTED, 1, &arena, &err) == ST_OK, "%s", err.msg);
    for (int64_t n = 1; n <= HISTORY; n++)
        CHECK(add_row(l, EVENT_UNKNOWN, n, &arena, &err) == ST_OK, "%s", err.msg);
    CHECK(add_row(l, EVENT_RUN_COMPLETED, 1, &arena, &err) == ST_OK, "%s", err.msg);
    for (int n = 0; n < 3; n++) {
        db_faulty_fail_at(f.db, -1, false); /* counts anew */
        CHECK(ask_effect(l, n, &arena, &err) == ST_OK, "%s", err.msg);
        calls[n] = db_faulty_calls(f.db);
    }
    CHECK(calls[0] > HISTORY, "%lld", (long long)calls[0]); /* each row of its history is a step */
    CHECK(calls[1] < 50 && calls[2] < 50, "%lld, %lld", (long long)calls[1], (long long)calls[2]);
    ledger_close(l);
    arena_release(&arena);
}

/* ---- a commit that fails ---- */

static status do_nothing(struct ledger *ledger, void *context, struct error *err) {
    UNUSED(ledger);
    UNUSED(context);
    UNUSED(err);
    return ST_OK;
}

static status append_both(struct writer *w, struct key_job *k, struct rig *r) {
    struct error err = {0};
    r->writer = w;
    r->count = 0;
    stop_thread(r);
    add_event(r, 1);
    add_body(r, create_key, k);
    add_event(r, 2);
    go(r);
    for (size_t i = 0; i < r->count; i++)
        CHECK(r->jobs[i].call.code == r->jobs[0].call.code, "call %zu: %s", i, err.msg);
    return r->jobs[0].call.code;
}

/* The last thing that a group does is its commit. When that fails, nobody was told before that all
 * is well, and nothing is there; the same calls again are stored once. */
TEST_DB(members_fail_together_when_their_commit_does) {
    struct faults f = {.url = url};
    struct error err = {0};
    struct ledger *l = NULL;
    struct writer *w = NULL;
    static struct rig r;
    r = (struct rig){0};
    log_setup(2, false, LOG_OFF);
    arena_init(&r.arena, 4096, SIZE_MAX);
    CHECK(sem_init(&r.gate, 0, 0) == 0 && sem_init(&r.standing, 0, 0) == 0);
    CHECK(ledger_open_with(connect_faulty, &f, NULL, &l, &err) == ST_OK, "%s", err.msg);
    CHECK(writer_open(l, NULL, &w, &err) == ST_OK, "%s", err.msg);
    struct key_job *k = key_of(&r, "aaaaaaaaaaaaaaaa");
    int64_t failed = 0;
    for (int64_t at = 0; at < 200; at++) {
        struct writer_call reopen = {.task = do_nothing}; /* after the failure before */
        CHECK(writer_append(w, &reopen, 10000, &err) == ST_OK, "%s", err.msg);
        db_faulty_fail_at(f.db, at, false);
        if (append_both(w, k, &r) == ST_OK) break;
        failed++;
        CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_event") == 0, "failing call %lld",
              (long long)at);
        CHECK(count_rows(url, "SELECT COUNT(*) FROM api_key") == 0);
    }
    CHECK(failed > 4, "it failed only %lld times", (long long)failed);
    writer_close(w);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_event") == 2);
    CHECK(count_rows(url, "SELECT COUNT(*) FROM api_key") == 1);
    sem_destroy(&r.gate);
    sem_destroy(&r.standing);
    arena_release(&r.arena);
}

/* A claim is part of its request: when the node has lost its lease, neither the events are stored
 * nor is the run its own. */
TEST_DB(members_claim_nothing_without_their_events) {
    struct rig r;
    rig_open(&r, url);
    for (int lost = 1; lost >= 0; lost--) {
        struct run_claim claim = {.act = CLAIM_OPEN,
                                  .node_no = r.lease.node_no,
                                  .epoch = r.lease.epoch - lost,
                                  .wake_us = CLAIM_NEVER};
        r.count = 0;
        stop_thread(&r);
        struct job *job = add_event(&r, 1);
        job->call.request.atomic = true;
        job->call.request.claim = &claim;
        go(&r);
        CHECK(job->call.code == ST_OK);
        CHECK(job->result.code == (lost ? ST_CONFLICT : ST_OK));
        CHECK(count_rows(url, "SELECT COUNT(*) FROM lease_run") == 1 - lost);
        CHECK(count_rows(url, "SELECT COUNT(*) FROM ledger_event") == 1 - lost);
    }
    rig_close(&r);
}
