/* Run Events 1.1 and 1.3: types that nobody has heard of, and watermarks. A consumer here is the
 * reducer, run_apply(), over records read with ledger_read_run(): what the ledger's own
 * projections, replay and any reader are made of. */
#include "conformance/fixture.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/os.h"

/* ---- a consumer ---- */

struct consumer {
    struct run run;    /* its state; head.run_seq is the watermark */
    int64_t position;  /* where to read on */
    int64_t trail[64]; /* the watermark after each record */
    size_t trail_len;
};

/* Reads and reduces at most `limit` records, a few at a time. */
static void consume(struct fixture *c, struct consumer *k, const char *run, size_t limit) {
    while (limit > 0) {
        struct event_page page;
        struct error err = {0};
        size_t want = limit < 3 ? limit : 3;
        status st =
            ledger_read_run(c->ledger, str_c(run), k->position, want, &c->arena, &page, &err);
        CHECK(st == ST_OK, "%s", err.msg);
        if (page.count == 0) return;
        for (size_t i = 0; i < page.count; i++) {
            struct transition bad;
            st = run_apply(&k->run, &page.records[i], &c->arena, &bad, NULL, &err);
            CHECK(st == ST_OK || st == ST_CONFLICT, "%s", err.msg);
            k->position = page.records[i].seq;
            CHECK(k->trail_len < COUNT_OF(k->trail));
            k->trail[k->trail_len++] = k->run.head.run_seq;
        }
        limit -= page.count;
    }
}

static str state_text(struct fixture *c, const struct run *run) {
    struct buf b;
    buf_init(&b, (size_t)1 << 20);
    run_state_json(run, &b);
    str text = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return text;
}

static const char story[] =
    "RunQueued,RunTeleported,RunStarted,StepTeleported a,StepStarted a,StepFailed a,"
    "StepStarted a 2,SignalAccepted,StepCompleted a 2,StepSkipped b,RunPaused,"
    "RunResumed,RunCompleted,RunTeleported x 2";

/* ---- unknown types ---- */

/* RE-1.1-2: SignalAccepted and SignalRejected are stored as opaque types and change no derived
 * state. */
TEST_DB(run_events_signal_decisions_are_opaque) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted,StepStarted a");
    CHECK(event_type_of(STR("SignalAccepted")) == EVENT_UNKNOWN);
    fixture_put_event(&c,
                      fixture_event_with("SignalAccepted", "r", NULL, 1, "{\"signal\":\"PAUSE\"}"));
    fixture_put_event(&c, fixture_event("SignalRejected", "r", NULL, 1));
    CHECK(text_is(fixture_run_status(&c, "r"), "RUNNING") &&
          text_is(fixture_step_state(&c, "r", "a"), "RUNNING"));
    struct event_page page = fixture_read(&c, "r");
    CHECK(page.count == 4 && text_is(page.records[2].event.type_name, "SignalAccepted"));
    CHECK(fixture_run(&c, "r").head.invalid_events == 0);
    fixture_close(&c);
}

/* RE-1.3-1: an unknown type stops nobody: the record after it is processed. */
TEST_DB(run_events_unknown_types_do_not_stop_the_projector) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "r", "RunTeleported,RunStarted,StepTeleported a,StepStarted a");
    CHECK(text_is(fixture_run_status(&c, "r"), "RUNNING") &&
          text_is(fixture_step_state(&c, "r", "a"), "RUNNING"));
    struct run replayed = fixture_replay(&c, "r");
    CHECK(replayed.head.status == RUN_RUNNING && replayed.head.run_seq == 4);
    CHECK(!fixture_run(&c, "r").head.inconsistent);
    fixture_close(&c);
}

/* RE-1.3-2: the name is shown as it is stored, the payload uninterpreted. */
TEST_DB(run_events_unknown_types_are_shown_as_they_are) {
    static const char payload[] =
        "{\"status\":\"COMPLETED\",\"eventType\":\"RunFailed\",\"to\":\"M\xC3\xA4rz\"}";
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    fixture_put_event(&c, fixture_event_with("RunTeleported", "r", NULL, 1, payload));
    str text = fixture_record_text(&c, &fixture_read(&c, "r").records[1]);
    CHECK(text_has(text, "\"eventType\":\"RunTeleported\""), "%.*s", STR_ARG(text));
    CHECK(text_has(text, payload), "%.*s", STR_ARG(text));
    CHECK(text_is(fixture_text(&c, "SELECT \"eventType\" FROM run_events WHERE \"runSeq\" = 2"),
                  "RunTeleported"));
    CHECK(text_is(fixture_run_status(&c, "r"), "RUNNING"));
    fixture_close(&c);
}

/* RE-1.3-3: the watermark ends at the runSeq of an unknown last record, each time. */
TEST_DB(run_events_watermark_passes_unknown_types) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", story);
    struct consumer one = {0};
    struct consumer two = {0};
    consume(&c, &one, "r", SIZE_MAX);
    fixture_reopen_as(&c, LEDGER_REJECT);
    consume(&c, &two, "r", SIZE_MAX);
    CHECK(one.run.head.run_seq == 14 && two.run.head.run_seq == 14);
    CHECK(str_eq(state_text(&c, &one.run), state_text(&c, &two.run)));
    CHECK(fixture_run(&c, "r").head.run_seq == 14, "the ledger's own watermark");
    fixture_close(&c);
}

/* The state of the run and of each of its steps, without the watermarks, which every event moves.
 */
static str derived(struct fixture *c, const char *run_id) {
    struct run run = {0};
    struct error err = {0};
    status st = ledger_replay(c->ledger, str_c(run_id), 0, false, &c->arena, &run, NULL, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    run.head.run_seq = run.head.last_seq = run.head.run_level_seq = 0;
    size_t kept = 0;
    for (size_t i = 0; i < run.step_count; i++) {
        if (run.steps[i].state == STEP_MENTIONED) continue; /* heard of, and in no state */
        run.steps[kept] = run.steps[i];
        run.steps[kept].result_seq = 0; /* where its output is read: StepCorrected moves that */
        run.steps[kept++].last_seq = 0;
    }
    run.step_count = (uint32_t)kept;
    return state_text(c, &run);
}

/* RE-1.3-8: an unknown type changes nothing of the state of the run or of any step, wherever it
 * comes; of the documented extension types only RunApproved does (T11), and the views say the same
 * as the reducer. */
TEST_DB(run_events_only_documented_types_change_state) {
    static const char *const quiet[] = {
        "RunTeleported",    "RunProviderMoved", "StepTeleported a",
        "StepTeleported z", "StepRetried a 2",  "StepCorrected a",
        "StepCorrected b",  "StepRetried z",    "RunTeleported 2 2"};
    static const char *const stages[] = {"RunQueued,StepStarted a,StepFailed a,StepStarted b",
                                         "RunApproved",
                                         "RunStarted,StepStarted a 2",
                                         "RunPaused",
                                         "RunResumed,StepCompleted a 2,StepCompleted b",
                                         "RunCompleted"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    str last = STR_NONE;
    for (size_t k = 0; k < COUNT_OF(stages); k++) {
        fixture_program(&c, "r", stages[k]);
        str before = derived(&c, "r");
        CHECK(!last.ptr || !str_eq(before, last), "%s changes something", stages[k]);
        str steps = fixture_lines(&c, "SELECT step_id||' '||status FROM steps ORDER BY 1");
        str status_before = fixture_run_status(&c, "r");
        for (size_t i = 0; i < COUNT_OF(quiet); i++) {
            /* each occurrence is an event of its own */
            const char *one = fixture_fmt("%s", quiet[i]);
            if (k > 0) {
                char type[64];
                char step[8] = "";
                (void)sscanf(quiet[i], "%63s %7s", type, step);
                bool of_step = step[0] >= 'a';
                one = of_step ? fixture_fmt("%s %s %zu", type, step, 10 * (k + 1) + i)
                              : fixture_fmt("%s %zu", type, 10 * (k + 1) + i);
            }
            fixture_program(&c, "r", one);
            str after = derived(&c, "r");
            CHECK(str_eq(after, before), "%s: %.*s instead of %.*s", one, STR_ARG(after),
                  STR_ARG(before));
        }
        CHECK(
            str_eq(fixture_lines(&c, "SELECT step_id||' '||status FROM steps ORDER BY 1"), steps));
        CHECK(str_eq(fixture_run_status(&c, "r"), status_before) &&
              !fixture_run(&c, "r").head.inconsistent);
        last = before;
    }
    CHECK(text_is(fixture_run_status(&c, "r"), "COMPLETED"));
    str contract = fixture_file(&c, CONTRACT_FILE);
    CHECK(text_has(contract, "| `RunApproved` | run: PENDING to APPROVED |"));
    for (int t = EVENT_RUN_APPROVED + 1; t < EVENT_SIGNAL_RECEIVED;
         t++) { /* the others are documented as quiet */
        char row[96];
        str name = event_type_info((enum event_type)t)->name;
        snprintf(row, sizeof row, "| `%.*s` | none;", STR_ARG(name));
        CHECK(name.len == 0 || text_has(contract, row), "%s", row);
    }
    fixture_close(&c);
}

/* ---- watermarks ---- */

/* RE-1.3-4: stopped at any watermark and started again there, a consumer ends like one that never
 * stopped. */
TEST_DB(run_events_consumer_resumes_at_its_watermark) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    fixture_program(&c, "other", "RunStarted");
    fixture_program(&c, "r", story);
    fixture_program(&c, "r", "StepCompleted never,RunFailed"); /* forbidden ones count too */
    struct consumer whole = {0};
    consume(&c, &whole, "r", SIZE_MAX);
    for (size_t stop = 0; stop <= 16; stop++) {
        struct consumer first = {0};
        consume(&c, &first, "r", stop);
        CHECK(first.run.head.run_seq == (int64_t)stop);
        struct consumer second = {0};
        struct error err = {0};
        str saved = state_text(&c, &first.run); /* all that outlives the restart */
        CHECK(run_state_parse(saved, &c.arena, &second.run, &err) == ST_OK, "%s", err.msg);
        second.position = second.run.head.last_seq;
        consume(&c, &second, "r", SIZE_MAX);
        CHECK(second.trail_len == 16 - stop &&
              (stop == 16 || second.trail[0] == (int64_t)stop + 1));
        CHECK(str_eq(state_text(&c, &second.run), state_text(&c, &whole.run)), "stopped at %zu",
              stop);
    }
    fixture_close(&c);
}

/* RE-1.3-5: the watermark follows runSeq within its runId, whatever emittedAt says and whatever
 * other runs do. */
TEST_DB(run_events_watermark_follows_run_seq) {
    static const int64_t minutes[] = {50, 3, 0, 59, 12, 12, 1, 40};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    for (size_t i = 0; i < COUNT_OF(minutes); i++) {
        for (int r = 0; r < 2; r++) {
            struct event e =
                fixture_event("RunTeleported", r == 0 ? "r" : "s", NULL, (int64_t)i + 1);
            e.emitted_ns -= minutes[i] * 60 * 1000000000;
            fixture_put_event(&c, e);
        }
    }
    struct consumer k = {0};
    consume(&c, &k, "r", SIZE_MAX);
    CHECK(k.trail_len == COUNT_OF(minutes));
    for (size_t i = 0; i < k.trail_len; i++)
        CHECK(k.trail[i] == (int64_t)i + 1, "record %zu: watermark %lld", i, (long long)k.trail[i]);
    fixture_close(&c);
}

/* ---- writes that are not stored yet ---- */

/* Appends the writes of an NDJSON file from `offset` on, at most `limit`; the offset after the last
 * of them. */
static int64_t import_from(struct fixture *c, const char *path, int64_t offset, int limit) {
    struct line_reader *reader = NULL;
    struct error err = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && lseek(fd, offset, SEEK_SET) == offset, "%s", path);
    CHECK(line_reader_open(fd, LINE_BYTES_MAX, &reader, &err) == ST_OK, "%s", err.msg);
    int64_t end = offset;
    for (int i = 0; i < limit; i++) {
        str line;
        bool eof = false;
        CHECK(line_reader_next(reader, &line, &eof, &err) == ST_OK, "%s", err.msg);
        if (eof) break;
        struct event e;
        CHECK(event_parse(line, &c->arena, &e, &err) == ST_OK, "%s", err.msg);
        fixture_put_event(c, e); /* new: nothing is read twice */
        end = offset + line_reader_offset(reader);
    }
    line_reader_close(reader);
    close(fd);
    return end;
}

/* RE-1.3-6: a consumer of writes keeps the ingestion offset in bytes; started again there it goes
 * on with the very next write. The strategy is named in the contract's text. */
TEST_DB(run_events_stream_of_writes_has_an_ingestion_offset) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    static const char *const types[] = {"RunQueued", "RunStarted", "RunPaused", "RunResumed",
                                        "RunCompleted"};
    char path[512];
    snprintf(path, sizeof path, "%s/writes.ndjson", test_dir());
    struct buf lines;
    buf_init(&lines, 65536);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct event e = fixture_event_with(types[i], "r", NULL, 1, "{\"s\":\"\xC3\xA9\"}");
        event_write_json(&e, &lines);
        buf_put_c(&lines, i % 2 == 0 ? "\n" : "\r\n");
    }
    struct error err = {0};
    CHECK(file_replace(str_c(path), buf_str(&lines), &err) == ST_OK, "%s", err.msg);
    int64_t offset = 0;
    for (int i = 1; i <= 5; i++) { /* restarted after every write */
        offset = import_from(&c, path, offset, 1);
        CHECK(fixture_run(&c, "r").head.run_seq == i, "after %d", i);
    }
    CHECK(offset == (int64_t)lines.len && import_from(&c, path, offset, 9) == offset);
    CHECK(text_is(fixture_run_status(&c, "r"), "COMPLETED"));
    CHECK(text_has(fixture_file(&c, CONTRACT_FILE), "Its checkpoint is the ingestion offset"));
    buf_release(&lines);
    fixture_close(&c);
}

/* RE-1.3-7: a RunCompleted that was published but not appended changes no authoritative state:
 * neither one that a listener reduces for itself, nor one whose batch was refused. */
TEST_DB(run_events_writes_that_are_not_stored_change_nothing) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    struct run listener = fixture_replay(&c, "r");
    struct event_record heard = {
        .event = fixture_event("RunCompleted", "r", NULL, 1), .seq = 2, .run_seq = 2};
    struct transition bad;
    struct error err = {0};
    CHECK(run_apply(&listener, &heard, &c.arena, &bad, NULL, &err) == ST_OK &&
          listener.head.status == RUN_COMPLETED);
    CHECK(text_is(fixture_run_status(&c, "r"), "RUNNING"));

    struct append_item items[] = {{.event = heard.event},
                                  {.event = fixture_event("RunPaused", "r", NULL, 1)}};
    struct append_result results[2] = {{.code = ST_CORRUPT}, {.code = ST_CORRUPT}};
    struct append_request request = {
        .items = items, .count = 2, .atomic = true, .results = results, .arena = &c.arena};
    struct append_request *requests[] = {&request};
    CHECK(ledger_append(c.ledger, requests, 1, &err) == ST_OK);
    CHECK(results[0].code != ST_OK && results[1].code == ST_CONFLICT);
    CHECK(text_is(fixture_run_status(&c, "r"), "RUNNING") && fixture_event_count(&c) == 1);
    fixture_program(&c, "r", "RunPaused"); /* which a completed run would not allow */
    CHECK(fixture_replay(&c, "r").head.status == RUN_PAUSED);
    fixture_close(&c);
}

/* RE-4-5, second half: a consumer accepts gaps in runSeq. */
TEST(run_events_consumer_accepts_gaps) {
    static const int64_t seqs[] = {1, 2, 5, 900};
    static const char *const types[] = {"RunStarted", "RunPaused", "RunResumed", "RunCompleted"};
    struct arena arena;
    arena_init(&arena, 1024, (size_t)1 << 20);
    struct run run = {0};
    for (size_t i = 0; i < COUNT_OF(seqs); i++) {
        struct event_record rec = {
            .event = fixture_event(types[i], "r", NULL, 1), .seq = seqs[i] * 2, .run_seq = seqs[i]};
        struct transition bad;
        struct error err = {0};
        CHECK(run_apply(&run, &rec, &arena, &bad, NULL, &err) == ST_OK, "%s", types[i]);
        CHECK(run.head.run_seq == seqs[i]);
    }
    CHECK(run.head.status == RUN_COMPLETED && !run.head.inconsistent);
    arena_release(&arena);
}
