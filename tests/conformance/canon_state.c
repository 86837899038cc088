/* CANON 1 and 2.1: events are the truth, state is derived from them. */
#include "conformance/fixture.h"

/* ---- nothing changes silently ---- */

/* The derived rows, as the views show them, and the events that name them. */
#define RUN_ROWS                                                                                   \
    "SELECT run_id AS key, status, mark, run_seq, total_steps, failed_steps, open_steps, "         \
    "started_at, completed_at FROM runs"
#define STEP_ROWS                                                                                  \
    "SELECT run_id||'/'||step_id AS key, status, logical_attempt_id, started_at, completed_at, "   \
    "CAST(output_result AS TEXT) AS result FROM steps"
#define ALERT_ROWS "SELECT event_id AS key, prior_state, attempted_state FROM alerts"
#define REF_ROWS "SELECT run_id AS key, provider, workflow_id, provider_run_id FROM provider_refs"

static void snapshot_open(struct fixture *c) {
    fixture_must_sql(c,
                     "CREATE TEMP TABLE snap_run AS " RUN_ROWS
                     "; CREATE TEMP TABLE snap_step AS " STEP_ROWS ";"
                     "CREATE TEMP TABLE snap_alert AS " ALERT_ROWS
                     "; CREATE TEMP TABLE snap_ref AS " REF_ROWS ";"
                     "CREATE TEMP TABLE snap_end AS SELECT last_position AS position FROM tenants");
}

static void snapshot_take(struct fixture *c) {
    fixture_must_sql(
        c,
        "DELETE FROM snap_run; DELETE FROM snap_step; DELETE FROM snap_alert; DELETE FROM snap_ref;"
        "DELETE FROM snap_end; INSERT INTO snap_run " RUN_ROWS "; INSERT INTO snap_step " STEP_ROWS
        ";"
        "INSERT INTO snap_alert " ALERT_ROWS "; INSERT INTO snap_ref " REF_ROWS ";"
        "INSERT INTO snap_end SELECT COALESCE(MAX(last_position), 0) FROM tenants");
}

/* Rows that are new or different, and that no event since the snapshot names. */
#define SILENT(rows, snap, name)                                                                   \
    "(SELECT COUNT(*) FROM (" rows " EXCEPT SELECT * FROM " snap                                   \
    ") d WHERE NOT EXISTS (SELECT 1 FROM run_events e"                                             \
    " WHERE e.position > (SELECT position FROM snap_end) AND " name " = d.key))"
#define LOST(rows, snap)                                                                           \
    "(SELECT COUNT(*) FROM " snap " WHERE key NOT IN (SELECT key FROM (" rows ") d))"

static int64_t silent_changes(struct fixture *c) {
    return fixture_int(
        c,
        "SELECT " SILENT(RUN_ROWS, "snap_run", "e.\"runId\"") " + " SILENT(
            STEP_ROWS, "snap_step",
            "e.\"runId\"||'/'||e.\"stepId\"") " + " SILENT(ALERT_ROWS, "snap_alert",
                                                           "e.\"eventId\"") " + " SILENT(REF_ROWS,
                                                                                         "snap_ref",
                                                                                         "e."
                                                                                         "\"runId"
                                                                                         "\""));
}

static int64_t lost_rows(struct fixture *c) {
    return fixture_int(
        c, "SELECT " LOST(RUN_ROWS, "snap_run") " + " LOST(STEP_ROWS, "snap_step") " + " LOST(
               ALERT_ROWS, "snap_alert") " + " LOST(REF_ROWS, "snap_ref"));
}

static void append_something(struct fixture *c, int round) {
    struct error err = {0};
    struct append_result res;
    const char *run = fixture_fmt("r%d", round % 3);
    switch (round % 6) {
    case 0:
        fixture_random_workload(c, "r", 3, 4, (uint64_t)round);
        break;
    case 1:
        fixture_random_workload(c, "r", 3, 1, (uint64_t)round);
        break;
    case 2:
        fixture_try(c, fixture_item("RunStarted", run, NULL, 1));
        break;
    case 3:
        fixture_try(
            c, fixture_item_with(
                   "RunProviderLinked", run, NULL, round,
                   fixture_fmt(
                       "{\"provider\":\"temporal\",\"workflowId\":\"w\",\"providerRunId\":\"%d\"}",
                       round)));
        break;
    case 4:
        fixture_try(c, fixture_item("StepStarted", run, fixture_fmt("s%d", round), 1));
        break;
    default:
        CHECK(ledger_checkpoint(c->ledger, STR("r0"), &res, &c->arena, &err) == ST_OK, "%s",
              err.msg);
    }
}

/* CE-1-1, CE-11-1: after any operation each derived row that changed is named by a new event, and
 * none is gone; after an operation without events nothing has changed. */
TEST_DB(canon_every_change_of_state_has_its_event) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    snapshot_open(&c);
    for (int round = 0; round < fixture_scaled(240, 30); round++) {
        snapshot_take(&c);
        append_something(&c, round);
        CHECK(silent_changes(&c) == 0, "round %d", round);
        CHECK(lost_rows(&c) == 0, "round %d", round);
    }
    snapshot_take(&c);
    str before = fixture_state_dump(&c);
    fixture_clean(&c);
    CHECK(str_eq(before, fixture_state_dump(&c)));
    /* The checker itself can fail: a change behind the ledger's back is seen. */
    fixture_must_sql(&c, "UPDATE state_run SET status = 8 - status WHERE run_no = 1");
    CHECK(silent_changes(&c) == 1);
    fixture_close(&c);
}

/* CE-11-1: a refused append is no change: neither an event nor a derived row. */
TEST_DB(canon_a_refused_append_changes_nothing) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_finished_run(&c, "r0", 2);
    str before = fixture_state_dump(&c);
    fixture_refused(&c, fixture_item("RunStarted", "r0", NULL, 2), ST_CONFLICT,
                    "INVALID_TRANSITION");
    fixture_refused(&c, fixture_item("StepCompleted", "r1", "s1", 1), ST_CONFLICT,
                    "INVALID_TRANSITION");
    CHECK(str_eq(before, fixture_state_dump(&c)));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_event") == 6);
    fixture_close(&c);
}

/* ---- state is derived ---- */

static void forget_state(struct fixture *c) {
    fixture_must_sql(c, "DELETE FROM state_run; DELETE FROM state_step; DELETE FROM state_alert;"
                        "DELETE FROM state_provider; DELETE FROM state_lot");
}

/* CE-2.1-1: without any derived row, the events alone give the same rows again. */
TEST_DB(canon_state_is_a_snapshot_derived_from_history) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_random_workload(&c, "r", 20, fixture_scaled(2000, 200), 1);
    fixture_put(&c,
                fixture_item_with(
                    "RunProviderLinked", "r0", NULL, 1,
                    "{\"provider\":\"temporal\",\"workflowId\":\"w\",\"providerRunId\":\"p\"}"));
    str before = fixture_state_dump(&c);
    forget_state(&c);
    CHECK(fixture_state_dump(&c).len < 100); /* the names of the tables */
    struct error err = {0};
    int64_t runs = 0;
    CHECK(ledger_rebuild(c.ledger, NULL, NULL, &runs, &err) == ST_OK, "%s", err.msg);
    CHECK(runs == 20);
    CHECK(str_eq(before, fixture_state_dump(&c)));
    fixture_close(&c);
}

/* CE-2.1-2: RUN_STARTED sets status RUNNING. */
TEST_DB(canon_run_started_sets_running) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    CHECK(text_is(fixture_text(&c, "SELECT event_type FROM orchestration_events"), "RUN_STARTED"));
    CHECK(text_is(fixture_text(&c, "SELECT status FROM runs"), "RUNNING"));
    fixture_close(&c);
}

/* CE-2.1-3: each STEP_COMPLETED adds 1 to total_steps. */
TEST_DB(canon_step_completed_counts) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    for (int i = 0; i < 3; i++) {
        const char *step = fixture_fmt("s%d", i);
        fixture_put(&c, fixture_item("StepStarted", "r1", step, 1));
        CHECK(fixture_int(&c, "SELECT total_steps FROM runs") == i);
        fixture_put(&c, fixture_item("StepCompleted", "r1", step, 1));
    }
    CHECK(fixture_int(&c, "SELECT total_steps FROM runs") == 3);
    CHECK(fixture_int(&c, "SELECT failed_steps FROM runs") == 0);
    fixture_close(&c);
}

/* CE-2.1-4: each STEP_FAILED adds 1 to failed_steps. */
TEST_DB(canon_step_failed_counts) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    for (int64_t attempt = 1; attempt <= 2; attempt++) {
        fixture_put(&c, fixture_item("StepStarted", "r1", "s", attempt));
        fixture_put(&c, fixture_item("StepFailed", "r1", "s", attempt));
        CHECK(fixture_int(&c, "SELECT failed_steps FROM runs") == attempt);
    }
    CHECK(fixture_int(&c, "SELECT total_steps FROM runs") == 0);
    fixture_close(&c);
}

/* CE-2.1-5: RUN_COMPLETED sets status COMPLETED. */
TEST_DB(canon_run_completed_sets_completed) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("RunCompleted", "r1", NULL, 1));
    CHECK(text_is(fixture_text(&c, "SELECT status FROM runs"), "COMPLETED"));
    fixture_close(&c);
}

/* ---- replay ---- */

/* Adds a random event to the run and to `items`, which has `seq` of them, if it is new and the
 * tables allow it. */
static size_t legal_event(struct fixture *c, const char *name, struct run *run, size_t seq,
                          uint64_t *seed, struct append_item *items) {
    static const char *const types[] = {
        "RunQueued",    "RunStarted",  "StepStarted", "StepCompleted", "StepFailed",
        "StepSkipped",  "RunPaused",   "RunResumed",  "RunCompleted",  "RunFailed",
        "RunCancelled", "RunApproved", "StepRetried", "StepCorrected"};
    uint64_t r = fixture_random(seed);
    const char *type = types[r % COUNT_OF(types)];
    if (strstr(type, "Completed") && strstr(type, "Run") && r >> 60 != 0)
        return 0; /* lives should be long */
    if (strstr(type, "Cancelled") && r >> 60 != 0) return 0;
    const char *step =
        strncmp(type, "Step", 4) == 0 ? fixture_fmt("s%d", (int)(r >> 20) % 3) : NULL;
    int64_t attempt = 1 + (int64_t)(r >> 30) % 3;
    struct append_item *item = &items[seq];
    *item = fixture_item(type, name, step, attempt);
    for (size_t i = 0; i < seq; i++) {
        if (memcmp(items[i].event.key, item->event.key, SHA256_LEN) == 0)
            return 0; /* a duplicate */
    }
    struct transition bad;
    struct error err = {0};
    if (!run_allows(run, &item->event, &bad)) return 0;
    struct event_record rec = {
        .event = item->event, .seq = (int64_t)seq + 1, .run_seq = run->head.run_seq + 1};
    CHECK(run_apply(run, &rec, &c->arena, &bad, NULL, &err) == ST_OK, "%s", err.msg);
    return 1;
}

enum { HISTORY_TRIES = 120, HISTORIES_A_COMMIT = 20 };

static size_t make_history(struct fixture *c, const char *name, uint64_t *seed,
                           struct append_item *items) {
    struct run run = {0};
    size_t n = 0;
    for (int i = 0; i < HISTORY_TRIES; i++)
        n += legal_event(c, name, &run, n, seed, items);
    return n;
}

static void append_histories(struct fixture *c, int first, int count, uint64_t *seed) {
    static struct append_item items[HISTORY_TRIES * HISTORIES_A_COMMIT];
    static struct append_result results[HISTORY_TRIES * HISTORIES_A_COMMIT];
    size_t n = 0;
    for (int i = 0; i < count; i++)
        n += make_history(c, fixture_fmt("h%d", first + i), seed, items + n);
    fixture_batch(c, items, n, false, results);
    for (size_t i = 0; i < n; i++)
        CHECK(results[i].code == ST_OK, "item %zu: %s", i, results[i].err->msg);
}

static str state_text(struct fixture *c, const struct run *run) {
    struct buf b;
    buf_init(&b, (size_t)1024 * 1024);
    run_state_json(run, &b);
    str out = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return out;
}

/* CE-2.1-7: random valid histories, replayed, give the state that was kept while they were
 * appended. */
TEST_DB(canon_replay_of_random_histories_equals_the_kept_state) {
    struct fixture c;
    uint64_t seed = 20260104;
    fixture_open(&c, url);
    int histories = fixture_scaled(1000, 60) / HISTORIES_A_COMMIT * HISTORIES_A_COMMIT;
    for (int i = 0; i < histories; i += HISTORIES_A_COMMIT)
        append_histories(&c, i, HISTORIES_A_COMMIT, &seed);
    int64_t events = 0;
    for (int i = 0; i < histories; i++) {
        const char *name = fixture_fmt("h%d", i);
        struct run run;
        struct error err = {0};
        int64_t applied = 0;
        if (ledger_replay(c.ledger, str_c(name), 0, false, &c.arena, &run, &applied, &err) ==
            ST_NOT_FOUND)
            continue;
        struct run kept = run;
        kept.head = fixture_run(&c, name).head;
        kept.head.run_level_seq = run.head.run_level_seq; /* these four are not stored */
        kept.head.bad_steps = run.head.bad_steps;
        kept.head.pauses = run.head.pauses;
        kept.head.resumes = run.head.resumes;
        CHECK(str_eq(state_text(&c, &run), state_text(&c, &kept)), "history %d, seed 20260104", i);
        events += applied;
    }
    CHECK(events / 5 > histories, "only %lld events", (long long)events);
    fixture_clean(&c); /* the steps, row by row */
    fixture_close(&c);
}

/* CE-2.1-8: a new name must be in the past tense; CANON's own literals pass whatever their form. */
TEST(canon_event_names_are_in_the_past_tense) {
    static const struct {
        const char *name;
        bool good;
    } cases[] = {{"STEP_COMPLETE", false},
                 {"STEP_COMPLETED", true},
                 {"ORDER_SHIP", false},
                 {"ORDER_SHIPPED", true},
                 {"MAIL_SENT", true},
                 {"MAIL_SENDING", false},
                 {"EFFECT_EXECUTING", true},
                 {"EFFECT_RETRYING", true},
                 {"STEP_CORRECTED", true},
                 {"RED", true},
                 {"ED", false},
                 {"", false},
                 {"step_completed", false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(event_type_name_is_past(str_c(cases[i].name)) == cases[i].good, "%s", cases[i].name);
    }
    for (int i = 1; i < EVENT_TYPE_COUNT; i++) {
        char mem[100];
        struct buf snake;
        if (event_type_info((enum event_type)i)->name.len == 0) continue;
        buf_init_fixed(&snake, mem, sizeof(mem));
        event_type_to_snake(event_type_info((enum event_type)i)->name, &snake);
        CHECK(event_type_name_is_past(buf_str(&snake)), "%.*s", STR_ARG(buf_str(&snake)));
    }
}
