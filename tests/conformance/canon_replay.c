/* CANON 8: full replay, and partial replay from a checkpoint. */
#include "conformance/fixture.h"

static struct run replay(struct fixture *c, const char *run, bool use_checkpoint,
                         int64_t *applied) {
    struct run out;
    struct error err = {0};
    CHECK(ledger_replay(c->ledger, str_c(run), 0, use_checkpoint, &c->arena, &out, applied, &err) ==
              ST_OK,
          "%s", err.msg);
    return out;
}

static str state_of(struct fixture *c, const struct run *run) {
    struct buf b;
    buf_init(&b, (size_t)1024 * 1024);
    run_state_json(run, &b);
    str out = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return out;
}

static void checkpoint(struct fixture *c, const char *run) {
    struct append_result res;
    struct error err = {0};
    CHECK(ledger_checkpoint(c->ledger, str_c(run), &res, &c->arena, &err) == ST_OK, "%s", err.msg);
}

/* What the views show of a run must be what its replay says. */
static void check_run_row(struct fixture *c, const char *run) {
    int64_t applied = 0;
    struct run r = replay(c, run, false, &applied);
    const struct run_head *h = &r.head;
    str row = fixture_text(
        c, fixture_fmt("SELECT status||' '||COALESCE(mark,'-')||' '||run_seq||' "
                       "'||total_steps||' '||failed_steps||' '||"
                       "open_steps||' '||engine_attempt_id FROM runs WHERE run_id = '%s'",
                       run));
    const char *want = fixture_fmt("%s %s %lld %lld %lld %lld %lld", run_status_name(h->status),
                                   h->inconsistent ? "INCONSISTENT" : "-", (long long)h->run_seq,
                                   (long long)h->total_steps, (long long)h->failed_steps,
                                   (long long)h->open_steps, (long long)h->engine_attempt);
    CHECK(text_is(row, want), "%s: row %.*s, replay %s", run, STR_ARG(row), want);
}

/* CE-8.1-1: the replay of every run of a random workload equals its row; a row that was changed is
 * reported. */
TEST_DB(canon_full_replay_audits_every_run) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_random_workload(&c, "r", 25, fixture_scaled(1500, 150), 8);
    for (int i = 0; i < 25; i++)
        check_run_row(&c, fixture_fmt("r%d", i));
    fixture_clean(&c);
    fixture_must_sql(&c, "UPDATE state_run SET status = 8 - status WHERE run_no = (SELECT run_no "
                         "FROM ledger_run WHERE run_id = 'r7')");
    struct verify_report report = fixture_verify(&c, true);
    CHECK(report.damaged && text_is(report.run_id, "r7"), "%.*s: %s", STR_ARG(report.run_id),
          report.what);
    fixture_close(&c);
}

/* CE-8.1-2: RUN_STARTED gives the id, status RUNNING and started_at. */
TEST_DB(canon_replay_of_run_started) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    struct run run = replay(&c, "r1", false, NULL);
    CHECK(run.head.status == RUN_RUNNING && run.head.started_seq == 1);
    yyjson_val *data =
        fixture_json(&c, fixture_text(&c, "SELECT event_data FROM orchestration_events"));
    CHECK(str_eq(fixture_member(data, "run_id"), fixture_text(&c, "SELECT id FROM runs")));
    CHECK(text_is(fixture_text(&c, "SELECT status FROM runs"), "RUNNING"));
    CHECK(str_eq(fixture_text(&c, "SELECT started_at FROM runs"),
                 fixture_text(&c, "SELECT occurred_at FROM orchestration_events")));
    CHECK(fixture_run(&c, "r1").started_us == c.now_us);
    fixture_close(&c);
}

/* CE-8.1-3: the replay of a run sees its step events: 5 steps, total_steps 5. */
TEST_DB(canon_replay_counts_steps) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_finished_run(&c, "r1", 5);
    struct run run = replay(&c, "r1", false, NULL);
    CHECK(run.head.total_steps == 5 && run.step_count == 5);
    CHECK(fixture_int(&c, "SELECT total_steps FROM runs") == 5);
    fixture_close(&c);
}

/* CE-8.1-4: RUN_COMPLETED gives status COMPLETED and completed_at. */
TEST_DB(canon_replay_of_run_completed) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    c.now_us += 5000000;
    struct append_result end = fixture_put(&c, fixture_item("RunCompleted", "r1", NULL, 1));
    struct run run = replay(&c, "r1", false, NULL);
    CHECK(run.head.status == RUN_COMPLETED && run.head.ended_seq == end.seq);
    CHECK(fixture_run(&c, "r1").ended_us == c.now_us);
    CHECK(
        text_is(fixture_text(&c, "SELECT completed_at FROM runs"), "2026-02-16T08:00:05.000000Z"));
    fixture_close(&c);
}

/* CE-8.2-1: of checkpoints 1 to 3 the third is loaded: what is applied after it is the least. */
TEST_DB(canon_the_newest_checkpoint_is_loaded) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 5; k++)
            fixture_put(&c, fixture_item("RunNoted", "r1", NULL, i * 5 + k + 1));
        checkpoint(&c, "r1");
    }
    CHECK(fixture_int(
              &c, "SELECT MAX(checkpoint_index) FROM run_checkpoints WHERE run_id = 'r1'") == 3);
    int64_t applied = -1;
    replay(&c, "r1", true, &applied);
    CHECK(applied == 1, "%lld", (long long)applied); /* its own RunCheckpointCreated */
    replay(&c, "r1", false, &applied);
    CHECK(applied == 19, "%lld", (long long)applied);
    /* Time travel to before it starts from an older one, or from nothing. */
    struct run run;
    struct error err = {0};
    CHECK(ledger_replay(c.ledger, STR("r1"), 8, true, &c.arena, &run, &applied, &err) == ST_OK,
          "%s", err.msg);
    CHECK(run.head.run_seq == 8 && applied == 2, "%lld", (long long)applied);
    CHECK(ledger_replay(c.ledger, STR("r1"), 3, true, &c.arena, &run, &applied, &err) == ST_OK,
          "%s", err.msg);
    CHECK(run.head.run_seq == 3 && applied == 3, "%lld", (long long)applied);
    fixture_close(&c);
}

/* CE-8.2-2: a checkpoint has run_id, checkpoint_index, checkpoint_data, created_at; its data
 * restores the state. */
TEST_DB(canon_checkpoint_restores_the_state) {
    struct fixture c;
    struct run restored;
    struct error err = {0};
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "s \"quoted\"", 1));
    fixture_put(&c, fixture_item("StepFailed", "r1", "s \"quoted\"", 1));
    fixture_put(&c, fixture_item("RunPaused", "r1", NULL, 1));
    struct run before = replay(&c, "r1", false, NULL);
    checkpoint(&c, "r1");
    str row = fixture_text(&c, "SELECT run_id||' '||checkpoint_index||' '||created_at||' "
                               "'||sequence_number FROM run_checkpoints");
    CHECK(text_is(row, "r1 1 2026-02-16T08:00:00.000000Z 4"), "%.*s", STR_ARG(row));
    str data = fixture_text(&c, "SELECT checkpoint_data FROM run_checkpoints");
    CHECK(run_state_parse(data, &c.arena, &restored, &err) == ST_OK, "%s", err.msg);
    CHECK(str_eq(state_of(&c, &restored), state_of(&c, &before)));
    fixture_close(&c);
}

/* A legal life of `count` events, in commits of three, so that three events share a timestamp. */
static void append_life(struct fixture *c, const char *run, int from, int count) {
    struct append_item items[3];
    struct append_result results[3];
    for (int i = from; i < from + count; i += 3) {
        size_t n = 0;
        for (int k = i; k < i + 3 && k < from + count; k++) {
            int step = k / 2;
            items[n++] = k == 0 ? fixture_item("RunStarted", run, NULL, 1)
                                : fixture_item(k % 2 ? "StepStarted" : "StepCompleted", run,
                                               fixture_fmt("s%d", k % 2 ? step : step - 1), 1);
        }
        c->now_us += 1000;
        fixture_batch(c, items, n, true, results);
        CHECK(results[0].code == ST_OK, "%s", results[0].err->msg);
    }
}

/* CE-8.2-3: a checkpoint after event 50 of 80: 30 are applied, in sequence order, and the state
 * equals a full replay. */
TEST_DB(canon_partial_replay_applies_only_what_came_after) {
    struct fixture c;
    int64_t applied = 0;
    fixture_open(&c, url);
    append_life(&c, "r1", 0, 50);
    checkpoint(&c, "r1"); /* RunCheckpointCreated is event 51: it has the time of event 50 */
    append_life(&c, "r1", 50, 29);
    struct run full = replay(&c, "r1", false, &applied);
    CHECK(applied == 80 && full.head.run_seq == 80, "%lld", (long long)applied);
    struct run partial = replay(&c, "r1", true, &applied);
    CHECK(applied == 30, "%lld", (long long)applied);
    CHECK(str_eq(state_of(&c, &full), state_of(&c, &partial)));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events e JOIN run_checkpoints k ON "
                          "k.run_id = e.run_id"
                          " WHERE e.occurred_at = k.created_at") >
          2); /* a cut by time would have been wrong */
    fixture_close(&c);
}

/* CE-8.2-3: the same for random runs with checkpoints at random places. */
TEST_DB(canon_partial_replay_equals_full_replay) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    for (int round = 0; round < fixture_scaled(12, 4); round++) {
        fixture_random_workload(&c, "r", 6, 64, (uint64_t)round + 100);
        checkpoint(&c, fixture_fmt("r%d", round % 6));
        for (int i = 0; i < 6; i++) {
            const char *run = fixture_fmt("r%d", i);
            int64_t all = 0;
            int64_t some = 0;
            struct run full = replay(&c, run, false, &all);
            struct run partial = replay(&c, run, true, &some);
            CHECK(str_eq(state_of(&c, &full), state_of(&c, &partial)), "round %d, run %d", round,
                  i);
            CHECK(some <= all);
        }
    }
    fixture_close(&c);
}

/* CE-11-7: replaying twice gives the same rows, byte for byte. */
TEST_DB(canon_replay_is_deterministic) {
    struct fixture c;
    struct error err = {0};
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_random_workload(&c, "r", 20, fixture_scaled(1000, 100), 77);
    str kept = fixture_state_dump(&c);
    for (int i = 0; i < 2; i++) {
        CHECK(ledger_rebuild(c.ledger, NULL, NULL, NULL, &err) == ST_OK, "%s", err.msg);
        CHECK(str_eq(kept, fixture_state_dump(&c)), "rebuild %d", i);
    }
    fixture_close(&c);
}
