/* Verify finds every kind of tampering. The intruder here may drop triggers and write to every
 * table; what he cannot do is compute all the hashes again and also change the copies that auditors
 * keep of the heads. */
#include "conformance/fixture.h"

static const char *const all_tables[] = {"ledger_event",   "ledger_run",  "ledger_tenant",
                                         "ledger_context", "ledger_type", "ledger_checkpoint",
                                         "state_run",      "state_step",  "state_alert",
                                         "state_provider", "state_lot"};

/* Two tenants, invalid events, corrections, checkpoints, provider references, two plan versions,
 * unknown types. */
static void fill(struct fixture *c) {
    struct append_result res;
    struct error err = {0};
    fixture_random_workload(c, "r", 5, 80, 4);
    fixture_put(
        c, fixture_item_with("RunProviderLinked", "r0", NULL, 1,
                             "{\"provider\":\"t\",\"workflowId\":\"w\",\"providerRunId\":\"p\"}"));
    for (int i = 0; i < 2; i++) {
        CHECK(ledger_checkpoint(c->ledger, STR("r1"), &res, &c->arena, &err) == ST_OK, "%s",
              err.msg);
    }
    struct append_item other_plan = fixture_item("RunNoted", "r1", NULL, 7);
    other_plan.event.plan_version = STR("8");
    fixture_rekey(&other_plan);
    fixture_put(c, other_plan);
    struct append_item other_tenant = fixture_item("RunStarted", "g1", NULL, 1);
    other_tenant.event.tenant_id = STR("globex");
    fixture_rekey(&other_tenant);
    fixture_put(c, other_tenant);
    fixture_put(c,
                fixture_fact(EVENT_EFFECT_REQUESTED, "r2", fixture_uuid_text(uuid_v4()), 1, "{}"));
}

static void copy_tables(struct fixture *c) {
    for (size_t i = 0; i < COUNT_OF(all_tables); i++) {
        fixture_must_sql(c, fixture_fmt("CREATE TABLE copy_%s AS SELECT * FROM %s", all_tables[i],
                                        all_tables[i]));
    }
}

static void restore_tables(struct fixture *c) {
    for (size_t i = 0; i < COUNT_OF(all_tables); i++) {
        fixture_must_sql(c, fixture_fmt("DELETE FROM %s; INSERT INTO %s SELECT * FROM copy_%s",
                                        all_tables[i], all_tables[i], all_tables[i]));
    }
}

#define AT(n) "(SELECT base_position + " #n " FROM tenants WHERE tenant_id = 'acme')"
#define LAST                                                                                       \
    "(SELECT MAX(pos) FROM ledger_event WHERE pos < (SELECT MAX(base_position) FROM tenants))"

struct tampering {
    const char *what, *sql;
    int64_t seq;
}; /* seq: where it must be found; 0: anywhere */

/* Found by the chain alone. */
static const struct tampering of_the_truth[] = {
    {"a payload was changed", "UPDATE ledger_event SET payload = '{}' WHERE pos = " AT(20), 20},
    {"a payload was removed",
     "UPDATE ledger_event SET payload = NULL WHERE pos = (SELECT MIN(pos) FROM ledger_event WHERE "
     "payload IS NOT NULL)",
     0},
    {"a type was changed", "UPDATE ledger_event SET type_no = type_no + 1 WHERE pos = " AT(20), 20},
    {"a step was renamed in its event",
     "UPDATE ledger_event SET subject = 'x' WHERE pos = (SELECT MIN(pos) FROM ledger_event WHERE "
     "subject = 's1')",
     0},
    {"an actor was added", "UPDATE ledger_event SET actor = 'x' WHERE pos = " AT(9), 9},
    {"an attempt was changed", "UPDATE ledger_event SET engine_attempt = 9 WHERE pos = " AT(9), 9},
    {"a time was changed",
     "UPDATE ledger_event SET persisted_us = persisted_us + 1 WHERE pos = " AT(9), 9},
    {"a time was set back", "UPDATE ledger_event SET persisted_us = 1 WHERE pos = " AT(30), 30},
    {"a producer's time was changed",
     "UPDATE ledger_event SET emitted_ns = emitted_ns + 1 WHERE pos = " AT(9), 9},
    {"its digits were changed", "UPDATE ledger_event SET emitted_digits = 9 WHERE pos = " AT(9), 9},
    {"a cause was changed",
     "UPDATE ledger_event SET cause_seq = NULL WHERE pos = (SELECT MAX(pos) FROM ledger_event "
     "WHERE cause_seq > 0)",
     0},
    {"a cause points forward", "UPDATE ledger_event SET cause_seq = 40 WHERE pos = " AT(30), 30},
    {"an eventId was changed",
     "UPDATE ledger_event SET event_id = (SELECT event_id FROM copy_ledger_event WHERE pos = " AT(
         2) ") WHERE pos = " AT(9),
     9},
    {"an eventId was cut",
     "UPDATE ledger_event SET event_id = substr(event_id, 1, 8) WHERE pos = " AT(9), 9},
    {"a key was changed", "UPDATE ledger_event SET key = hash WHERE pos = " AT(9), 9},
    {"a hash was changed",
     "UPDATE ledger_event SET hash = (SELECT hash FROM copy_ledger_event WHERE pos = " AT(
         2) ") WHERE pos = " AT(9),
     9},
    {"the newest hash was changed",
     "UPDATE ledger_event SET hash = (SELECT hash FROM copy_ledger_event WHERE pos = " AT(
         2) ") WHERE pos = " LAST,
     0},
    {"an event was deleted", "DELETE FROM ledger_event WHERE pos = " AT(20), 20},
    {"the first event was deleted", "DELETE FROM ledger_event WHERE pos = " AT(1), 1},
    {"the newest event was deleted", "DELETE FROM ledger_event WHERE pos = " LAST, 0},
    {"all events of a tenant were deleted",
     "DELETE FROM ledger_event WHERE pos > " AT(0) " AND pos < " AT(1000), 1},
    {"two events were exchanged",
     "UPDATE ledger_event SET pos = -1 WHERE pos = " AT(20) "; UPDATE ledger_event SET pos = pos - "
                                                            "1 WHERE pos = " AT(
                                                                21) "; UPDATE ledger_event SET pos "
                                                                    "= " AT(21) " WHERE pos = -1",
     20},
    {"an event was given to another run",
     "UPDATE ledger_event SET run_no = run_no + 1 WHERE pos = " AT(20), 20},
    {"a run got another id", "UPDATE ledger_run SET run_id = 'x' WHERE run_id = 'r2'", 0},
    {"a run got another trace", "UPDATE ledger_run SET correlation_id = 'x' WHERE run_id = 'r2'",
     0},
    {"a run got another signal", "UPDATE ledger_run SET signal_id = 'x' WHERE run_id = 'r2'", 0},
    {"a run got another UUID", "UPDATE ledger_run SET run_uuid = 'x' WHERE run_id = 'r2'", 0},
    {"a run got another tenant", "UPDATE ledger_run SET tenant_no = 1 WHERE run_id = 'g1'", 0},
    {"a run got another plan",
     "UPDATE ledger_run SET context_no = (SELECT context_no FROM ledger_context WHERE plan_version "
     "= '8') WHERE run_id = 'r2'",
     0},
    {"a run begins elsewhere",
     "UPDATE ledger_run SET opened_seq = opened_seq + 1 WHERE run_id = 'r2'", 0},
    {"a run was deleted", "DELETE FROM ledger_run WHERE run_id = 'r2'", 0},
    {"a project was renamed", "UPDATE ledger_context SET project_id = 'x' WHERE plan_version = '7'",
     0},
    {"an environment was renamed",
     "UPDATE ledger_context SET environment_id = 'x' WHERE plan_version = '7'", 0},
    {"a tenant was renamed", "UPDATE ledger_tenant SET tenant_id = 'x' WHERE tenant_id = 'acme'",
     1},
    {"a tenant got another UUID",
     "UPDATE ledger_tenant SET tenant_uuid = 'x' WHERE tenant_id = 'acme'", 0},
    {"a head was changed",
     "UPDATE ledger_tenant SET head = (SELECT hash FROM ledger_event WHERE pos = " AT(
         9) ") WHERE tenant_id = 'acme'",
     0},
    {"a tail was forgotten",
     "DELETE FROM ledger_event WHERE pos = " LAST
     "; UPDATE ledger_tenant SET seq = seq - 1 WHERE tenant_id = 'acme'",
     0},
    {"a tenant's count was changed",
     "UPDATE ledger_tenant SET seq = seq + 1 WHERE tenant_id = 'acme'", 0},
    {"a tenant's time was changed",
     "UPDATE ledger_tenant SET persisted_us = persisted_us + 1 WHERE tenant_id = 'acme'", 0},
};

/* Found by replaying: texts that rows only refer to, and what is derived. */
static const struct tampering of_the_state[] = {
    {"a plan was renamed", "UPDATE ledger_context SET plan_id = 'x' WHERE plan_version = '7'", 0},
    {"a plan version was changed",
     "UPDATE ledger_context SET plan_version = '9' WHERE plan_version = '8'", 0},
    {"a later plan got another project",
     "UPDATE ledger_context SET project_id = 'x' WHERE plan_version = '8'", 0},
    {"a later plan got another environment",
     "UPDATE ledger_context SET environment_id = 'x' WHERE plan_version = '8'", 0},
    {"a later plan got another tenant",
     "UPDATE ledger_context SET tenant_no = 2 WHERE plan_version = '8'", 0},
    {"an unknown type was renamed",
     "UPDATE ledger_type SET name = 'RunNotes' WHERE name = 'RunNoted'", 0},
    {"a known type was renamed", "UPDATE ledger_type SET name = 'X' WHERE type_no = 29", 0},
    {"a type's CANON name was changed", "UPDATE ledger_type SET snake = 'X' WHERE type_no = 2", 0},
    {"a type's family was changed", "UPDATE ledger_type SET family = 'EFFECT' WHERE type_no = 2",
     0},
    {"a run's status was changed", "UPDATE state_run SET status = 7 - status WHERE run_no = 1", 0},
    {"a run's mark was changed",
     "UPDATE state_run SET inconsistent = 1 - inconsistent WHERE run_no = 1", 0},
    {"a run's attempt was changed", "UPDATE state_run SET engine_attempt = 5 WHERE run_no = 1", 0},
    {"a run's row was deleted", "DELETE FROM state_run WHERE run_no = 2", 0},
    {"a step's state was changed", "UPDATE state_step SET state = 6 - state WHERE step_id = 's1'",
     0},
    {"a step was renamed", "UPDATE state_step SET step_id = 'x' WHERE step_id = 's1'", 0},
    {"a step's attempt was changed",
     "UPDATE state_step SET attempt = attempt + 1 WHERE step_id = 's1'", 0},
    {"a step's UUID was changed",
     "UPDATE state_step SET step_uuid = substr(step_uuid, 1, 15) WHERE step_id = 's1'", 0},
    {"a step's result was changed", "UPDATE state_step SET result_seq = 3 WHERE step_id = 's1'", 0},
    {"a step was deleted", "DELETE FROM state_step WHERE step_id = 's1'", 0},
    {"an alert was changed",
     "UPDATE state_alert SET prior = 'X' WHERE seq = (SELECT MAX(seq) FROM state_alert)", 0},
    {"an alert was deleted",
     "DELETE FROM state_alert WHERE seq = (SELECT MAX(seq) FROM state_alert)", 0},
    {"an alert was added",
     "INSERT INTO state_alert SELECT run_no, seq + 1000, prior, attempted FROM copy_state_alert "
     "WHERE seq = (SELECT MAX(seq) FROM state_alert)",
     0},
    {"a reference was changed", "UPDATE state_provider SET provider_run_id = 'x'", 0},
    {"a reference was given to another run", "UPDATE state_provider SET run_no = run_no + 1", 0},
    {"a reference was deleted", "DELETE FROM state_provider", 0},
    {"a reference was added",
     "INSERT INTO state_provider SELECT tenant_no, 'x', workflow_id, provider_run_id, run_no, seq "
     "FROM copy_state_provider",
     0},
    {"a checkpoint was changed",
     "UPDATE ledger_checkpoint SET data = replace(data, 'totalSteps\":', 'totalSteps\":1') WHERE "
     "checkpoint_index = 1",
     0},
    {"a checkpoint was moved",
     "UPDATE ledger_checkpoint SET seq = seq + 1000 WHERE checkpoint_index = 2", 0},
    {"a checkpoint was deleted", "DELETE FROM ledger_checkpoint WHERE checkpoint_index = 2", 0},
    {"a run without events was added",
     "INSERT INTO ledger_run SELECT run_no + 1000, tenant_no, 'x', run_uuid, context_no, "
     "correlation_id,"
     " signal_id, opened_seq FROM copy_ledger_run WHERE run_id = 'r2'",
     0},
    {"a state without run was added",
     "UPDATE state_run SET run_no = run_no + 1000 WHERE run_no = 2; INSERT INTO state_run SELECT * "
     "FROM copy_state_run WHERE run_no = 2",
     0},
    {"a step without run was added",
     "UPDATE state_step SET step_pos = step_pos + 1048576000 WHERE step_id = 's1'; INSERT INTO "
     "state_step SELECT * FROM"
     " copy_state_step WHERE step_id = 's1'",
     0},
};

static void check_found(struct fixture *c, const struct tampering *t, bool needs_state) {
    fixture_must_sql(c, t->sql);
    struct verify_report quick = fixture_verify(c, false);
    struct verify_report full = fixture_verify(c, true);
    CHECK(full.damaged, "not found: %s", t->what);
    CHECK(quick.damaged == !needs_state, "%s: %s", t->what, full.what);
    CHECK(full.what[0] != 0);
    CHECK(t->seq == 0 || full.seq == t->seq, "%s: found at %lld: %s", t->what, (long long)full.seq,
          full.what);
    restore_tables(c);
    fixture_clean(c); /* and nothing else is wrong */
}

static void open_filled(struct fixture *c, str url) {
    fixture_open_as(c, url, LEDGER_RECORD);
    fill(c);
    fixture_clean(c);
    fixture_drop_triggers(c);
    copy_tables(c);
}

TEST_DB(care_verify_finds_tampering_with_the_truth) {
    struct fixture c;
    open_filled(&c, url);
    for (size_t i = 0; i < COUNT_OF(of_the_truth); i++)
        check_found(&c, &of_the_truth[i], false);
    fixture_close(&c);
}

TEST_DB(care_verify_finds_tampering_with_the_state) {
    struct fixture c;
    open_filled(&c, url);
    for (size_t i = 0; i < COUNT_OF(of_the_state); i++)
        check_found(&c, &of_the_state[i], true);
    fixture_close(&c);
}

/* An event that is smuggled in behind the newest one, with a row of its own for everything, breaks
 * the head. */
TEST_DB(care_verify_finds_a_smuggled_event) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_finished_run(&c, "r1", 1);
    fixture_must_sql(
        &c, "CREATE TABLE smuggled AS SELECT * FROM ledger_event WHERE pos = (SELECT last_position "
            "FROM tenants);"
            "UPDATE smuggled SET pos = pos + 1, run_seq = run_seq + 1, key = hash;"
            "INSERT INTO ledger_event SELECT * FROM smuggled"); /* inserting is not forbidden */
    struct verify_report report = fixture_verify(&c, false);
    CHECK(report.damaged && report.seq == 5, "%s", report.what);
    struct append_item item = fixture_item("RunNoted", "r1", NULL, 1);
    struct append_result res;
    struct error err = {0};
    CHECK(fixture_append(&c, &item, &res, &err) == ST_CORRUPT, "%s",
          err.msg); /* nothing is built upon it */
    fixture_close(&c);
}

/* A damaged end is noticed before anything is appended to it, once the tenant is met after opening.
 */
TEST_DB(care_append_refuses_a_damaged_end) {
    struct fixture c;
    struct append_result res;
    struct error err = {0};
    fixture_open(&c, url);
    fixture_finished_run(&c, "r1", 1);
    fixture_drop_triggers(&c);
    fixture_must_sql(&c,
                     "DELETE FROM ledger_event WHERE pos = (SELECT last_position FROM tenants)");
    fixture_reopen(&c);
    struct append_item item = fixture_item("RunNoted", "r2", NULL, 1);
    CHECK(fixture_append(&c, &item, &res, &err) == ST_CORRUPT &&
              err.reason == REASON_LEDGER_DAMAGED,
          "%s", err.msg);
    fixture_must_sql(&c, "UPDATE ledger_tenant SET head = substr(head, 1, 4)");
    CHECK(fixture_append(&c, &item, &res, &err) == ST_CORRUPT, "%s", err.msg);
    fixture_close(&c);
}

static void note(void *context, int64_t done, int64_t total) {
    int64_t *last = context;
    last[0] = done;
    last[1] = total;
}

/* The report counts, and progress is told. */
TEST_DB(care_verify_reports_what_it_checked) {
    struct fixture c;
    struct verify_report report;
    struct error err = {0};
    int64_t progress[2] = {0};
    fixture_open(&c, url);
    report = fixture_verify(&c, true); /* an empty ledger is sound */
    CHECK(!report.damaged && report.events == 0 && report.runs == 0);
    fixture_finished_run(&c, "r1", 2);
    fixture_finished_run(&c, "r2", 0);
    CHECK(ledger_verify(c.ledger, true, note, progress, &c.arena, &report, &err) == ST_OK, "%s",
          err.msg);
    CHECK(!report.damaged && report.events == 8 && report.runs == 2);
    fixture_close(&c);
}

/* ---- reading what is damaged ---- */

enum question { ASK_EVENTS, ASK_EVENT, ASK_CAUSES, ASK_TIME, ASK_RUN, ASK_APPEND, ASK_REPLAY };

static status ask(struct fixture *c, enum question q, uuid id, struct error *err) {
    struct event_page page;
    struct event_record rec;
    struct run_info info;
    struct run run;
    struct append_result res;
    struct append_item item = fixture_item("RunNoted", "r1", NULL, 99);
    int64_t seq;
    bool more;
    switch (q) {
    case ASK_EVENTS:
        return ledger_read_run(c->ledger, STR("r1"), 0, 100, &c->arena, &page, err);
    case ASK_EVENT:
        return ledger_find_event(c->ledger, id, &c->arena, &rec, err);
    case ASK_CAUSES:
        return ledger_causes(c->ledger, id, 100, &c->arena, &page, &more, err);
    case ASK_TIME:
        return ledger_seq_at(c->ledger, STR("acme"), FIXTURE_NOW_US + 1, &seq, err);
    case ASK_RUN:
        return ledger_find_run(c->ledger, STR("r1"), &c->arena, &info, err);
    case ASK_APPEND:
        return fixture_append(c, &item, &res, err);
    case ASK_REPLAY:
        return ledger_replay(c->ledger, STR("r1"), 0, false, &c->arena, &run, NULL, err);
    }
    return ST_OK;
}

/* A reader that meets a damaged row says so; it neither crashes nor makes something up. */
TEST_DB(care_reading_a_damaged_row_says_so) {
    static const struct {
        enum question question;
        const char *sql;
    } cases[] = {
        {ASK_EVENTS, "UPDATE ledger_event SET emitted_digits = 77 WHERE pos = " AT(3)},
        {ASK_EVENTS, "UPDATE ledger_event SET hash = substr(hash, 1, 9) WHERE pos = " AT(3)},
        {ASK_EVENT, "UPDATE ledger_event SET key = substr(key, 1, 9) WHERE pos = " AT(4)},
        {ASK_CAUSES, "UPDATE ledger_event SET cause_seq = 5 WHERE pos = " AT(3)},
        {ASK_CAUSES, "DELETE FROM ledger_event WHERE pos = " AT(2)},
        {ASK_TIME, "DELETE FROM ledger_event WHERE pos = " AT(3)},
        {ASK_RUN, "UPDATE ledger_run SET run_uuid = 'x'"},
        {ASK_APPEND, "UPDATE ledger_run SET correlation_id = 'x'"},
        {ASK_APPEND, "UPDATE ledger_event SET run_seq = 7 WHERE pos = " AT(3)},
        {ASK_APPEND,
         "UPDATE ledger_event SET event_id = substr(event_id, 1, 3) WHERE pos = " AT(3)},
        {ASK_REPLAY, "UPDATE ledger_event SET subject = NULL WHERE pos = " AT(3)},
        {ASK_REPLAY, "UPDATE ledger_event SET step_index = 5 WHERE pos = " AT(3)},
        {ASK_REPLAY, "UPDATE ledger_event SET key = substr(key, 1, 9) WHERE pos = " AT(3)},
    };
    struct fixture c;
    fixture_open(&c, url);
    fixture_finished_run(&c, "r1", 1); /* RunStarted, StepStarted, StepCompleted, RunCompleted */
    uuid newest = fixture_put(&c, fixture_item("RunNoted", "r1", NULL, 1)).event_id;
    fixture_drop_triggers(&c);
    copy_tables(&c);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        uuid id = newest;
        if (cases[i].question == ASK_EVENT) {
            str text = fixture_text(
                &c, "SELECT id FROM orchestration_events WHERE event_type = 'RUN_COMPLETED'");
            CHECK(uuid_parse(text, &id));
        }
        fixture_must_sql(&c, cases[i].sql);
        fixture_reopen(&c);
        CHECK(ask(&c, cases[i].question, id, &err) == ST_CORRUPT, "%s: %s", cases[i].sql, err.msg);
        CHECK(err.reason == REASON_LEDGER_DAMAGED, "%s: %s", cases[i].sql, err.msg);
        restore_tables(&c);
    }
    fixture_reopen(&c);
    fixture_clean(&c);
    fixture_close(&c);
}
