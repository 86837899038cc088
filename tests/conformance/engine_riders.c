/* What travels with a start, a signal and a task's answer: receipts and audit records, the trace,
 * who it was. On both databases. */
#include "base/log.h"
#include "conformance/engine_tools.h"
#include "ledger/access/access.h"

#define WAIT_PLAN PLAN(STEP("w", "wait", ",\"signal\":\"go\""))

struct told {
    bool there;
    status code;
    struct error err;
};
static void on_told(void *context, status code, const struct error *err) {
    struct told *t = context;
    CHECK(!t->there, "answered twice");
    t->there = true;
    t->code = code;
    if (code != ST_OK && err) t->err = *err;
}

static void await(struct bed *bed, const struct told *t) {
    for (int i = 0; i < 4000 && !t->there; i++)
        bed_turn(bed, 5);
    CHECK(t->there, "no answer");
}

/* Behind the engine's back. */
static void run_sql(str url, const char *sql) {
    struct error err = {0};
    struct db *db = NULL;
    CHECK(db_open(url, DB_WRITE, &db, &err) == ST_OK, "%s", err.msg);
    CHECK(db_exec(db, sql, &err) == ST_OK, "%s", err.msg);
    db_close(db);
}

/* ---- riders ---- */

struct luggage { /* of one request */
    struct receipt receipt;
    struct audit_entry audit;
    struct append_rider second, first;
};

/* In two riders, so that a chain is one. */
static const struct append_rider *pack(struct luggage *l, const char *key, const char *action) {
    *l = (struct luggage){.receipt = {.scope = STR("ann"),
                                      .key = str_c(key),
                                      .http_status = 201,
                                      .body = STR("{\"a\":1}")},
                          .audit = {.tenant_id = STR("acme"),
                                    .actor = STR("ann"),
                                    .action = str_c(action),
                                    .target = str_c(key),
                                    .outcome = STR("done"),
                                    .reason = STR("because")}};
    l->second.audit = &l->audit;
    l->first = (struct append_rider){.next = &l->second, .receipt = &l->receipt};
    return &l->first;
}

static bool receipt_there(struct bed *bed, const char *key) {
    struct receipt found;
    struct error err = {0};
    status st =
        receipt_find(host_reader(bed->host), STR("ann"), str_c(key), &bed->arena, &found, &err);
    CHECK(st == ST_OK || st == ST_NOT_FOUND, "%s", err.msg);
    CHECK(st != ST_OK || (found.http_status == 201 && is(found.body, "{\"a\":1}")));
    return st == ST_OK;
}

/* How many audit records name it. */
static size_t audits_of(struct bed *bed, const char *target) {
    struct audit_entry *all = NULL;
    struct error err = {0};
    size_t count = 0;
    size_t same = 0;
    status st =
        audit_list(host_reader(bed->host), STR("acme"), 0, 100, &bed->arena, &all, &count, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < count; i++)
        same += is(all[i].target, target);
    return same;
}

static void check_luggage(struct bed *bed, const char *key, bool there) {
    CHECK(receipt_there(bed, key) == there, "%s", key);
    CHECK(audits_of(bed, key) == (there ? 1 : 0), "%s: %zu", key, audits_of(bed, key));
}

static status signal_with(struct bed *bed, const char *run_id, const char *name, const char *id,
                          const struct append_rider *riders) {
    struct told t = {0};
    struct signal s = {.name = str_c(name), .signal_id = str_c(id)};
    engine_signal(host_engine(bed->host), str_c(run_id), &s,
                  &(struct engine_caller){
                      .actor = STR("ann"), .riders = riders, .done = on_told, .context = &t});
    await(bed, &t);
    return t.code;
}

/* The receipt and the audit record are durable with the launch and with the signal; what has no
 * effect leaves none. */
TEST_DB(engine_riders_travel_with_what_they_tell_of) {
    struct bed bed;
    struct luggage l[6];
    struct error err = {0};
    bool existing = true;
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request q = bed_request(&bed, WAIT_PLAN, "r");
    q.existing = &existing;
    q.riders = pack(&l[0], "start", "run.start");
    CHECK(bed_start(&bed, &q, &err) == ST_OK && !existing, "%s", err.msg);
    check_luggage(&bed, "start", true);

    existing = false;
    q.riders = pack(&l[1], "again", "run.start");
    CHECK(bed_start(&bed, &q, &err) == ST_OK && existing, "%s", err.msg);
    check_luggage(&bed, "again", false);

    CHECK(signal_with(&bed, "r", "APPROVE", NULL, pack(&l[2], "refused", "x")) != ST_OK);
    check_luggage(&bed, "refused", false);
    CHECK(signal_with(&bed, "r", "PAUSE", "s1", pack(&l[3], "pause", "x")) == ST_OK);
    check_luggage(&bed, "pause", true);
    CHECK(signal_with(&bed, "r", "PAUSE", "s1", pack(&l[4], "twice", "x")) == ST_OK);
    check_luggage(&bed, "twice", false);
    CHECK(signal_with(&bed, "r", "CANCEL", "s2", pack(&l[5], "cancel", "x")) == ST_OK);
    check_luggage(&bed, "cancel", true);
    CHECK(bed_wait(&bed, "r") == RUN_CANCELLED);

    struct start_request bad = bed_request(&bed, WAIT_PLAN, "r");
    bad.tenant_id = STR("globex");
    bad.riders = pack(&l[1], "taken", "run.start");
    existing = true;
    bad.existing = &existing;
    CHECK(bed_start(&bed, &bad, &err) == ST_CONFLICT && !existing);
    check_luggage(&bed, "taken", false);
    bed_release(&bed);
}

/* Several that wait for one commit: all their riders are in it. */
TEST_DB(engine_riders_of_several_signals_share_a_commit) {
    struct bed bed;
    struct luggage l[4];
    struct told told[4] = {0};
    static const char *const keys[] = {"k0", "k1", "k2", "k3"};
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(STEP("w", "wait", ",\"signal\":\"go\""),
               STEP("n", "wait", ",\"signal\":\"note\"" AFTER("w"))),
          "r");
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        struct signal s = {.name = STR("note"), .signal_id = str_c(keys[i])};
        engine_signal(host_engine(bed.host), STR("r"), &s,
                      &(struct engine_caller){.actor = STR("ann"),
                                              .riders = pack(&l[i], keys[i], "x"),
                                              .done = on_told,
                                              .context = &told[i]});
    }
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        await(&bed, &told[i]);
        CHECK(told[i].code == ST_OK, "%s", told[i].err.msg);
        check_luggage(&bed, keys[i], true);
    }
    bed_release(&bed);
}

/* A commit that fails leaves neither events nor riders; both travel again in the next one. */
TEST_DB(engine_riders_are_taken_back_with_their_news) {
    struct bed bed;
    struct luggage l[2];
    struct told t[2] = {0};
    char id[ID_BYTES_MAX + 1];
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, WAIT_PLAN, "open");
    log_setup(2, false, LOG_OFF);
    run_sql(url, "ALTER TABLE ledger_audit RENAME TO hidden");
    struct start_request q = bed_request(&bed, WAIT_PLAN, "r");
    q.riders = pack(&l[0], "start", "x");
    host_start(bed.host, &q, id, on_told, &t[0]);
    struct signal s = {.name = STR("PAUSE")};
    engine_signal(host_engine(bed.host), STR("open"), &s,
                  &(struct engine_caller){.actor = STR("ann"),
                                          .riders = pack(&l[1], "pause", "x"),
                                          .done = on_told,
                                          .context = &t[1]});
    bed_turn(&bed, 200);
    CHECK(!t[0].there && !t[1].there, "%s %s", t[0].err.msg, t[1].err.msg);
    CHECK(!receipt_there(&bed, "start") && !receipt_there(&bed, "pause"));
    CHECK(bed_status(&bed, "r") == RUN_NEW && bed_status(&bed, "open") == RUN_RUNNING);
    run_sql(url, "ALTER TABLE hidden RENAME TO ledger_audit");
    await(&bed, &t[0]);
    await(&bed, &t[1]);
    log_setup(2, false, LOG_INFO);
    CHECK(t[0].code == ST_OK && t[1].code == ST_OK, "%s %s", t[0].err.msg, t[1].err.msg);
    check_luggage(&bed, "start", true);
    check_luggage(&bed, "pause", true);
    CHECK(bed_status(&bed, "r") == RUN_RUNNING && bed_status(&bed, "open") == RUN_PAUSED);
    bed_release(&bed);
}

/* A node that was fenced off writes nothing, no receipt either. */
TEST_DB(engine_riders_of_a_fenced_node_are_refused) {
    struct bed bed;
    struct luggage l;
    bed_init(&bed, url);
    bed_open(&bed);
    run_sql(url, "UPDATE lease_node SET epoch = epoch + 1"); /* it was taken over */
    log_setup(2, false, LOG_OFF);
    struct start_request q = bed_request(&bed, WAIT_PLAN, "r");
    q.riders = pack(&l, "start", "x");
    char id[ID_BYTES_MAX + 1];
    struct told t = {0};
    host_start(bed.host, &q, id, on_told, &t);
    for (int i = 0; i < 100 && !bed.lost; i++)
        bed_turn(&bed, 5);
    CHECK(bed.lost);
    check_luggage(&bed, "start", false);
    bed_release(&bed); /* answers what is left */
    log_setup(2, false, LOG_INFO);
    CHECK(t.there && t.code != ST_OK);
}

/* ---- the trace ---- */

static uuid correlation_of(struct bed *bed, const char *run_id) {
    struct run_info info;
    struct error err = {0};
    CHECK(ledger_find_run(host_reader(bed->host), str_c(run_id), &bed->arena, &info, &err) == ST_OK,
          "%s", err.msg);
    return info.correlation_id;
}

struct polled {
    struct bed *bed;
    bool there;
    size_t count;
    struct task task;
};
static void on_tasks(void *context, const struct task *tasks, size_t count) {
    struct polled *p = context;
    p->there = true;
    p->count = count;
    if (count == 0) return;
    p->task = tasks[0];
    p->task.ref.run_id = arena_str(&p->bed->arena, tasks[0].ref.run_id);
    p->task.ref.step_id = arena_str(&p->bed->arena, tasks[0].ref.step_id);
    p->task.ref.tenant_id = arena_str(&p->bed->arena, tasks[0].ref.tenant_id);
}

static struct task take_task_with(struct bed *bed, int64_t lease_ms,
                                  const struct receipt *receipt) {
    struct polled p = {.bed = bed};
    struct engine_poll *poll = NULL;
    struct error err = {0};
    status st = engine_poll(host_engine(bed->host),
                            &(struct poll_request){.tenant_id = STR("acme"),
                                                   .queue = STR("q"),
                                                   .worker = STR("w"),
                                                   .max = 1,
                                                   .lease_ms = lease_ms,
                                                   .deadline_us = INT64_MAX / 2,
                                                   .receipt = receipt},
                            on_tasks, &p, &poll, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    for (int i = 0; i < 4000 && !p.there; i++)
        bed_turn(bed, 5);
    CHECK(p.count == 1);
    return p.task;
}

static struct task take_task(struct bed *bed, int64_t lease_ms) {
    return take_task_with(bed, lease_ms, NULL);
}

/* A run belongs to the trace that its start names, before and after a restart; commands and workers
 * are told. */
TEST_DB(engine_runs_belong_to_the_trace_that_started_them) {
    struct bed bed;
    struct error err = {0};
    uuid trace = uuid_v4();
    uuid none = {0};
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request q = bed_request(
        &bed,
        PLAN(STEP("e", "exec", ",\"command\":\"echo $TRACEPARENT\""),
             STEP("t", "task", ",\"queue\":\"q\",\"dependsOn\":[\"e\"]"),
             STEP("f", "exec", ",\"command\":\"echo $TRACEPARENT\",\"dependsOn\":[\"t\"]")),
        "r");
    q.correlation = &trace;
    CHECK(bed_start(&bed, &q, &err) == ST_OK, "%s", err.msg);
    CHECK(uuid_eq(correlation_of(&bed, "r"), trace));
    struct task first = take_task(&bed, 100);
    CHECK(uuid_eq(first.correlation, trace) && is(first.ref.tenant_id, "acme"));
    bed_reopen(&bed);
    struct task second = take_task(&bed, 60000);
    CHECK(uuid_eq(second.correlation, trace) && second.ref.lease == 2);
    struct told t = {0};
    engine_task_done(
        host_engine(bed.host), &second.ref, &(struct outcome){.ok = true, .output = STR("1")},
        &(struct engine_caller){.actor = STR("worker:7"), .done = on_told, .context = &t});
    await(&bed, &t);
    CHECK(t.code == ST_OK, "%s", t.err.msg);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    char hex[2 * sizeof trace.b + 1] = "";
    char want[64];
    hex_encode(trace.b, sizeof trace.b, hex);
    snprintf(want, sizeof want, "\"00-%s-", hex);
    CHECK(holds(find_row(&bed, "r", EVENT_STEP_COMPLETED, "e", 0)->event.payload, want));
    CHECK(holds(find_row(&bed, "r", EVENT_STEP_COMPLETED, "f", 0)->event.payload, want));
    CHECK(is(find_row(&bed, "r", EVENT_STEP_COMPLETED, "t", 0)->actor, "worker:7"));
    CHECK(!find_row(&bed, "r", EVENT_STEP_COMPLETED, "e", 0)->actor.len);

    start(&bed, WAIT_PLAN, "a");
    start(&bed, WAIT_PLAN, "b");
    CHECK(!uuid_eq(correlation_of(&bed, "a"), none) &&
          !uuid_eq(correlation_of(&bed, "a"), correlation_of(&bed, "b")));
    bed_release(&bed);
}

/* ---- results and leases with a key ---- */

static status finish(struct bed *bed, const struct task_ref *ref, bool ok,
                     const struct append_rider *riders) {
    struct told t = {0};
    engine_task_done(host_engine(bed->host), ref,
                     &(struct outcome){.ok = ok,
                                       .output = ok ? STR("1") : STR_NONE,
                                       .code = ok ? STR_NONE : STR("BAD")},
                     &(struct engine_caller){
                         .actor = STR("w"), .riders = riders, .done = on_told, .context = &t});
    await(bed, &t);
    return t.code;
}

/* A receipt is durable with the end of its step; told twice, or too late, it is not written, and
 * that is said. */
TEST_DB(engine_riders_travel_with_results) {
    struct bed bed;
    struct luggage l[5];
    bool rode[5] = {false};
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(STEP("t", "task", ",\"queue\":\"q\""), STEP("w", "wait", ",\"signal\":\"go\"")),
          "r");
    struct task task = take_task(&bed, 60000);
    struct task_ref lost = task.ref;
    lost.lease++;
    const char *const keys[] = {"lost", "first", "twice", "other", "late"};
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        (void)pack(&l[i], keys[i], "x");
        l[i].first.rode = &rode[i];
    }
    CHECK(finish(&bed, &lost, true, &l[0].first) == ST_CONFLICT && !rode[0]);
    CHECK(finish(&bed, &task.ref, true, &l[1].first) == ST_OK && rode[1]);
    CHECK(finish(&bed, &task.ref, true, &l[2].first) == ST_OK && !rode[2]);
    CHECK(finish(&bed, &task.ref, false, &l[3].first) == ST_CONFLICT && !rode[3]);
    CHECK(signal_with(&bed, "r", "go", "s", NULL) == ST_OK);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    CHECK(finish(&bed, &task.ref, true, &l[4].first) == ST_CONFLICT && !rode[4]);
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        check_luggage(&bed, keys[i], i == 1);
    bed_release(&bed);
}

/* Whether a signal had an effect is said, so that its sender can be written down all the same. */
TEST_DB(engine_riders_say_whether_they_rode) {
    struct bed bed;
    struct luggage l;
    bool rode = false;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, WAIT_PLAN, "r");
    (void)pack(&l, "pause", "x");
    l.second.rode = &rode;
    CHECK(signal_with(&bed, "r", "PAUSE", "s1", &l.first) == ST_OK && rode);
    rode = false;
    CHECK(signal_with(&bed, "r", "PAUSE", "s1", &l.first) == ST_OK && !rode);
    CHECK(signal_with(&bed, "r", "CANCEL", "s2", &l.first) == ST_OK && rode);
    CHECK(bed_wait(&bed, "r") == RUN_CANCELLED);
    rode = false;
    CHECK(signal_with(&bed, "r", "CANCEL", "s3", &l.first) == ST_OK && !rode);
    bed_release(&bed);
}

static status again(struct bed *bed, const struct task_ref *ref, struct task *out) {
    struct error err = {0};
    status st = bed_task_again(bed, ref, out, &err);
    CHECK(st == ST_OK || (err.reason == REASON_LEASE_LOST), "%s", err.msg);
    return st;
}

/* The receipt of a poll is committed with the lease and names it: the task can be had once more,
 * also after a restart, until it is finished or the lease is over. */
TEST_DB(engine_leases_leave_receipts) {
    struct bed bed;
    struct error err = {0};
    struct receipt *found = NULL;
    size_t count = 0;
    int64_t until = 0;
    struct receipt mine = {.scope = STR("ann"), .key = STR("poll"), .http_status = 200};
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("t", "task", ",\"queue\":\"q\",\"input\":{\"n\":7}")), "r");
    struct task task = take_task_with(&bed, 60000, &mine);
    CHECK(receipt_list(host_reader(bed.host), STR("ann"), STR("poll"), 9, &bed.arena, &found,
                       &count, &err) == ST_OK &&
              count == 1,
          "%s", err.msg);
    struct task_ref ref;
    struct task same;
    CHECK(task_ref_read(found[0].body, &ref) && found[0].http_status == 200);
    CHECK(is(ref.run_id, "r") && is(ref.step_id, "t") && ref.attempt == 1 && ref.lease == 1);
    CHECK(again(&bed, &ref, &same) == ST_OK && is(same.input, "{\"n\":7}") && is(same.queue, "q"));
    CHECK(same.ref.lease == task.ref.lease && same.lease_until_us == task.lease_until_us);
    bed.options.only_asked = true; /* nothing is loaded by itself */
    bed_reopen(&bed);
    CHECK(again(&bed, &ref, &same) == ST_OK && same.lease_until_us == task.lease_until_us);
    struct task_ref other = ref;
    other.lease = 2;
    CHECK(again(&bed, &other, &same) == ST_CONFLICT);
    CHECK(bed_heartbeat(&bed, &ref, 1, &until, &err) == ST_OK, "%s", err.msg);
    bed_turn(&bed, 20);
    CHECK(again(&bed, &ref, &same) == ST_CONFLICT); /* it ran out, and nobody has it */
    struct task next = take_task(&bed, 60000);      /* without a receipt */
    CHECK(next.ref.lease == 2 && again(&bed, &next.ref, &same) == ST_OK);
    CHECK(finish(&bed, &next.ref, true, NULL) == ST_OK);
    CHECK(again(&bed, &next.ref, &same) == ST_CONFLICT);
    CHECK(receipt_list(host_reader(bed.host), STR("ann"), STR("poll"), 9, &bed.arena, &found,
                       &count, &err) == ST_OK &&
              count == 1,
          "%s", err.msg);
    bed_release(&bed);
}

/* ---- whose task ---- */

static void check_not_found(struct bed *bed, const struct task_ref *ref, const char *message) {
    struct error err = {0};
    struct told t = {0};
    int64_t until = 0;
    status st = bed_heartbeat(bed, ref, 1000, &until, &err);
    CHECK(st == ST_NOT_FOUND && err.reason == REASON_RUN_NOT_FOUND, "%s", err.msg);
    CHECK(strcmp(err.msg, message) == 0, "%s", err.msg);
    engine_task_done(host_engine(bed->host), ref, &(struct outcome){.ok = true, .output = STR("1")},
                     &(struct engine_caller){.done = on_told, .context = &t});
    await(bed, &t);
    CHECK(t.code == ST_NOT_FOUND && t.err.reason == REASON_RUN_NOT_FOUND, "%s", t.err.msg);
    CHECK(strcmp(t.err.msg, message) == 0, "%s", t.err.msg);
}

/* Somebody else's token is as good as one of a run that does not exist: also when the run is not in
 * memory, and when it is finished. */
TEST_DB(engine_tasks_of_other_tenants_are_not_found) {
    struct bed bed;
    struct error err = {0};
    struct told t = {0};
    int64_t until = 0;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("t", "task", ",\"queue\":\"q\"")), "r");
    struct task task = take_task(&bed, 60000);
    struct task_ref foreign = task.ref;
    struct task_ref unknown = task.ref;
    foreign.tenant_id = STR("globex");
    unknown.run_id = STR("nowhere");
    check_not_found(&bed, &foreign, "there is no run \"r\"");
    check_not_found(&bed, &unknown, "there is no run \"nowhere\"");
    bed.options.only_asked = true; /* nothing is loaded by itself */
    bed_reopen(&bed);
    struct engine_stats stats;
    engine_stats(host_engine(bed.host), &stats);
    CHECK(stats.resident == 0);
    check_not_found(&bed, &foreign, "there is no run \"r\"");
    engine_stats(host_engine(bed.host), &stats);
    CHECK(stats.resident == 0, "it was loaded for a stranger");
    CHECK(bed_heartbeat(&bed, &task.ref, 60000, &until, &err) == ST_OK, "%s",
          err.msg);
    check_not_found(&bed, &foreign, "there is no run \"r\"");
    char long_name[ACTOR_BYTES_MAX + 2];
    memset(long_name, 'x', sizeof long_name);
    engine_task_done(host_engine(bed.host), &task.ref,
                     &(struct outcome){.code = STR("BAD"), .message = STR("no")},
                     &(struct engine_caller){.actor = str_n(long_name, ACTOR_BYTES_MAX + 1),
                                             .done = on_told,
                                             .context = &t});
    await(&bed, &t);
    CHECK(t.code == ST_INVALID && t.err.reason == REASON_CONTEXT_INVALID, "%s", t.err.msg);
    t = (struct told){0};
    engine_task_done(host_engine(bed.host), &task.ref,
                     &(struct outcome){.code = STR("BAD"), .message = STR("no")},
                     &(struct engine_caller){.actor = str_n(long_name, ACTOR_BYTES_MAX),
                                             .done = on_told,
                                             .context = &t});
    await(&bed, &t);
    CHECK(t.code == ST_OK, "%s", t.err.msg);
    CHECK(bed_wait(&bed, "r") == RUN_FAILED);
    CHECK(find_row(&bed, "r", EVENT_STEP_FAILED, "t", 0)->actor.len == ACTOR_BYTES_MAX);
    check_not_found(&bed, &foreign, "there is no run \"r\"");
    bed_release(&bed);
}
