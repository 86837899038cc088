/* What the engine leaves in the ledger: identifiers, names, what is kept and what is not. On both
 * databases. */
#include <dirent.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/os.h"
#include "conformance/engine_tools.h"

static struct event_page tenant_rows(struct bed *bed) {
    struct event_page page;
    struct error err = {0};
    status st =
        ledger_read_tenant(host_reader(bed->host), STR("acme"), 0, 1000, &bed->arena, &page, &err);
    CHECK(st == ST_OK && page.count < 1000, "%s", err.msg);
    return page;
}

/* Runs that between them see success, failure, retry, skip, pause, resume, cancel, approval,
 * admission. */
static void live_a_little(struct bed *bed) {
    CHECK(bed_run(bed, PLAN(NOOP("a", ""), NOOP("b", ",\"runIf\":\"false\"")), "good") ==
          RUN_COMPLETED);
    CHECK(bed_run(bed, PLAN(SH("a", "exit 1", ",\"retry\":{\"maxAttempts\":2,\"initialMs\":1}")),
                  "bad") == RUN_FAILED);
    struct start_request request =
        bed_request(bed, PLAN(STEP("w", "wait", ",\"signal\":\"go\"")), "held");
    struct error err = {0};
    request.approval = true;
    CHECK(bed_start(bed, &request, &err) == ST_OK, "%s", err.msg);
    tell(bed, "held", "APPROVE", NULL);
    tell(bed, "held", "PAUSE", NULL);
    tell(bed, "held", "RESUME", NULL);
    bed_reopen(bed);
    tell(bed, "held", "CANCEL", NULL);
    CHECK(bed_wait(bed, "held") == RUN_CANCELLED);
}

static bool is_pascal(str name) {
    if (name.len == 0 || name.ptr[0] < 'A' || name.ptr[0] > 'Z') return false;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) return false;
    }
    return true;
}

/* WE-1-6: all six identifiers are in every event, and in the record of every signal.
 * WE-2.2-1: the nine lifecycle events appear. WE-2.2-2: every record has what the contract asks
 * for, and a stepId if and only if it is of a step. WE-2.2-3: every name is PascalCase and none
 * begins with "on". */
TEST_DB(engine_events_carry_what_the_contract_asks_for) {
    static const enum event_type nine[] = {
        EVENT_RUN_STARTED,   EVENT_STEP_STARTED, EVENT_STEP_COMPLETED,
        EVENT_STEP_FAILED,   EVENT_RUN_PAUSED,   EVENT_RUN_RESUMED,
        EVENT_RUN_COMPLETED, EVENT_RUN_FAILED,   EVENT_RUN_CANCELLED};
    struct bed bed;
    bool seen[EVENT_TYPE_COUNT] = {0};
    bed_init(&bed, url);
    bed_open(&bed);
    live_a_little(&bed);
    struct event_page rows = tenant_rows(&bed);
    for (size_t i = 0; i < rows.count; i++) {
        const struct event_record *rec = &rows.records[i];
        const struct event *e = &rec->event;
        CHECK(is(e->tenant_id, "acme") && is(e->project_id, "shop") &&
              is(e->environment_id, "prod"));
        CHECK(e->run_id.len > 0 && e->engine_attempt >= 1 && e->logical_attempt >= 1);
        CHECK(is_pascal(e->type_name), "%.*s", STR_ARG(e->type_name));
        seen[e->type] = true;
        if (event_type_is_fact(e->type)) continue;
        uint8_t key[SHA256_LEN];
        event_key_derive(e, key);
        CHECK(rec->run_seq >= 1 && memcmp(key, e->key, SHA256_LEN) == 0);
        CHECK((e->subject.ptr != NULL) == (event_family_of(e) == FAMILY_STEP));
    }
    for (size_t i = 0; i < COUNT_OF(nine); i++)
        CHECK(seen[nine[i]], "%.*s", STR_ARG(event_type_info(nine[i])->name));
    bed_release(&bed);
}

struct noted {
    int64_t run_seq[64];
    uuid ids[64];
    size_t count;
};

static void note_event(struct bed *bed, const struct engine_note *note, size_t i) {
    struct noted *n = bed->context;
    if (event_type_is_fact(note->events[i].type) || n->count == COUNT_OF(n->run_seq)) return;
    n->run_seq[n->count] = note->results[i].run_seq;
    n->ids[n->count++] = note->results[i].event_id;
}

/* WE-2.2-4: the runSeq in the answer to the write is the one later found in the record. */
TEST_DB(engine_receives_the_run_seq_that_the_store_assigned) {
    struct bed bed;
    struct noted noted = {0};
    bed_init(&bed, url);
    bed.on_event = note_event;
    bed.context = &noted;
    bed_open(&bed);
    CHECK(bed_run(&bed, PLAN(NOOP("a", ""), NOOP("b", AFTER("a"))), "r") == RUN_COMPLETED);
    struct event_page rows = all_rows(&bed, "r");
    size_t k = 0;
    for (size_t i = 0; i < rows.count; i++) {
        const struct event_record *rec = &rows.records[i];
        if (event_type_is_fact(rec->event.type)) continue;
        CHECK(k < noted.count && noted.run_seq[k] == rec->run_seq);
        CHECK(uuid_eq(noted.ids[k], rec->event.event_id));
        k++;
    }
    CHECK(k == noted.count && k == 6);
    bed_release(&bed);
}

/* WE-2.1.3-14: the first event has exactly the ids of the context.
 * WE-2.1.3-15, WE-2.1.3-17: a signal and a cancellation that name only the run: what they bring
 * about, and the record of the signal, have the ids that the store knows; an unknown run is not
 * found. */
TEST_DB(engine_resolves_the_ids_of_a_run_from_the_store) {
    struct bed bed;
    struct error err = {0};
    struct event_page page;
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request request =
        bed_request(&bed, PLAN(STEP("w", "wait", ",\"signal\":\"go\"")), "R");
    request.tenant_id = STR("A");
    request.project_id = STR("B");
    request.environment_id = STR("C");
    CHECK(bed_start(&bed, &request, &err) == ST_OK, "%s", err.msg);
    bed_reopen(&bed); /* nothing is remembered */
    tell(&bed, "R", "PAUSE", NULL);
    tell(&bed, "R", "CANCEL", NULL);
    CHECK(ledger_read_run(host_reader(bed.host), STR("R"), 0, 100, &bed.arena, &page, &err) ==
          ST_OK);
    bool cancelled = false;
    bool signalled = false;
    for (size_t i = 0; i < page.count; i++) {
        const struct event *e = &page.records[i].event;
        CHECK(is(e->run_id, "R") && is(e->tenant_id, "A") && is(e->project_id, "B") &&
              is(e->environment_id, "C"));
        cancelled = cancelled || e->type == EVENT_RUN_CANCELLED;
        signalled = signalled || e->type == EVENT_RUN_PAUSED;
    }
    CHECK(cancelled && signalled);
    struct run_snapshot none;
    tell_refused(&bed, "nobody", "CANCEL", NULL, "RUN_NOT_FOUND");
    tell_refused(&bed, "nobody", "PAUSE", NULL, "RUN_NOT_FOUND");
    CHECK(status_snapshot(host_reader(bed.host), STR("nobody"), &bed.arena, &none, &err) ==
          ST_NOT_FOUND);
    bed_release(&bed);
}

/* ---- what is not kept ---- */

static void check_members(struct bed *bed, str json, const char *const *names, size_t count) {
    yyjson_val *root = NULL;
    struct error err = {0};
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *value;
    CHECK(json_parse(json, limits, &bed->arena, &root, &err) == ST_OK && yyjson_is_obj(root));
    yyjson_obj_foreach(root, i, n, key, value) {
        bool known = false;
        str name = STR_NONE;
        UNUSED(value);
        CHECK(json_str(key, &name));
        for (size_t k = 0; k < count; k++)
            known = known || is(name, names[k]);
        CHECK(known, "%.*s in %.*s", STR_ARG(name), STR_ARG(json));
    }
}

/* WE-1N-4: a marker inside a step of the plan is in no row of the run.
 * WE-1N-5: what is kept of the launch are ids, the adapter, and the members of the PlanRef. */
TEST_DB(engine_keeps_the_reference_and_not_the_plan) {
    static const char *const launch[] = {"signal_id", "signal", "adapter", "plan_ref"};
    static const char *const started[] = {"runType", "orchestratorVersion", "adapter", "planRef"};
    static const char *const ref[] = {"uri",         "sha256",    "schemaVersion", "planId",
                                      "planVersion", "sizeBytes", "expiresAt"};
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(
              &bed,
              PLAN(STEP("a", "exec",
                        ",\"command\":[\"true\",\"MARKER-4711\"],\"env\":{\"X\":\"MARKER-4711\"}"),
                   STEP("s", "sleep", ",\"durationMs\":1,\"dependsOn\":[\"a\"]")),
              "r") == RUN_COMPLETED);
    struct event_page rows = all_rows(&bed, "r");
    for (size_t i = 0; i < rows.count; i++)
        CHECK(!holds(rows.records[i].event.payload, "MARKER"), "%.*s",
              STR_ARG(rows.records[i].event.payload));
    str p = bed_payload(&bed, "r", EVENT_SIGNAL_RECEIVED, 0);
    check_members(&bed, p, launch, COUNT_OF(launch));
    p = bed_payload(&bed, "r", EVENT_RUN_STARTED, 0);
    check_members(&bed, p, started, COUNT_OF(started));
    yyjson_val *root = NULL;
    struct error err = {0};
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    CHECK(json_parse(p, limits, &bed.arena, &root, &err) == ST_OK);
    check_members(&bed, json_text(json_member(root, "planRef"), &bed.arena), ref, COUNT_OF(ref));
    bed_release(&bed);
}

/* ---- CANON's view of what an engine did ---- */

/* CE-3.3-1, CE-3.3-2: the data of RUN_STARTED and STEP_COMPLETED.
 * CE-3.4-2, CE-3.4-4: the steps view shows COMPLETED, the output, and the very time of the event.
 * CE-3.4-3: one correlation_id over signal, run and steps. */
TEST_DB(engine_runs_are_seen_through_the_documents_tables) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed,
                  PLAN(STEP("a", "exec",
                            ",\"command\":[\"echo\",\"{\\\"n\\\":42}\"],\"output\":\"json\"")),
                  "r") == RUN_COMPLETED);
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error err = {0};
    yyjson_val *data = NULL;
    str text = ask(&bed,
                   "SELECT CAST(event_data AS TEXT) FROM orchestration_events WHERE run_id = $1 "
                   "AND event_type = 'RUN_STARTED'",
                   "r");
    CHECK(json_parse(text, limits, &bed.arena, &data, &err) == ST_OK, "%s", err.msg);
    static const char *const four[] = {"run_id", "signal_id", "run_type", "orchestrator_version"};
    for (size_t i = 0; i < COUNT_OF(four); i++)
        CHECK(yyjson_is_str(json_member(data, four[i])), "%s", four[i]);
    text = ask(&bed,
               "SELECT CAST(event_data AS TEXT) FROM orchestration_events WHERE run_id = $1 AND "
               "event_type = 'STEP_COMPLETED'",
               "r");
    CHECK(json_parse(text, limits, &bed.arena, &data, &err) == ST_OK, "%s", err.msg);
    int64_t number = 0;
    str type = STR_NONE;
    CHECK(yyjson_is_str(json_member(data, "step_id")) &&
          yyjson_is_str(json_member(data, "run_id")));
    CHECK(json_int(json_member(data, "step_index"), &number) && number == 0);
    CHECK(json_int(json_member(data, "duration_ms"), &number) && number >= 0);
    CHECK(json_str(json_member(data, "step_type"), &type) && is(type, "exec"));
    CHECK(json_int(json_member(json_member(data, "output_result"), "n"), &number) && number == 42);
    CHECK(is(ask(&bed, "SELECT status FROM steps WHERE run_id = $1", "r"), "COMPLETED"));
    CHECK(holds(ask(&bed, "SELECT CAST(output_result AS TEXT) FROM steps WHERE run_id = $1", "r"),
                "42"));
    str at = ask(&bed, "SELECT completed_at FROM steps WHERE run_id = $1", "r");
    str event_at = ask(&bed,
                       "SELECT occurred_at FROM orchestration_events WHERE run_id = $1 AND "
                       "event_type = 'STEP_COMPLETED'",
                       "r");
    CHECK(at.len > 0 && str_eq(at, event_at));
    CHECK(is(ask(&bed,
                 "SELECT CAST(COUNT(DISTINCT correlation_id) AS TEXT) FROM orchestration_events "
                 "WHERE run_id = $1",
                 "r"),
             "1"));
    bed_release(&bed);
}

/* ---- names ---- */

static const char *const envelope =
    "{\"eventId\":\"4f9f9b9e-6f1c-4c7a-9d4e-1f1f1f1f1f1f\",\"eventType\":\"RunStarted\",\"%s\":"
    "\"2026-02-12T00:00:00Z\",\"runId\":\"r\",\"tenantId\":\"t\",\"projectId\":\"p\","
    "\"environmentId\":\"e\",\"planId\":\"q\",\"planVersion\":\"1\",\"engineAttemptId\":1,"
    "\"logicalAttemptId\":1,\"idempotencyKey\":\"%s\"}";

static str make_envelope(struct bed *bed, const char *time_name) {
    struct event e = {.type = EVENT_RUN_STARTED,
                      .type_name = STR("RunStarted"),
                      .run_id = STR("r"),
                      .plan_id = STR("q"),
                      .plan_version = STR("1"),
                      .logical_attempt = 1};
    uint8_t key[SHA256_LEN];
    char hex[SHA256_HEX_LEN + 1] = "";
    char text[1024];
    event_key_derive(&e, key);
    hex_encode(key, SHA256_LEN, hex);
    hex[SHA256_HEX_LEN] = 0;
    struct buf b;
    buf_init_fixed(&b, text, sizeof(text));
    for (const char *c = envelope; *c; c++) { /* %s: the name of the time, then the key */
        if (c[0] != '%') {
            buf_put_char(&b, *c);
            continue;
        }
        buf_put_c(&b, time_name ? time_name : hex);
        time_name = NULL;
        c++;
    }
    return arena_str(&bed->arena, buf_str(&b));
}

/* WE-T-1: what the engine emits has emittedAt in its envelope, and no occurredAt.
 * WE-T-2: an envelope with occurredAt in its place is refused. */
TEST_DB(engine_events_say_emitted_at) {
    struct bed bed;
    struct event e;
    struct error err = {0};
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(bed_run(&bed, PLAN(NOOP("a", "")), "r") == RUN_COMPLETED);
    struct event_page rows = tenant_rows(&bed);
    for (size_t i = 0; i < rows.count; i++) {
        struct buf b;
        buf_init(&b, EVENT_BYTES_MAX);
        event_feed_json(&rows.records[i], &b);
        CHECK(holds(buf_str(&b), "\"emittedAt\":\"") && !holds(buf_str(&b), "occurredAt"));
        buf_release(&b);
    }
    status st = event_parse(make_envelope(&bed, "emittedAt"), &bed.arena, &e, &err);
    CHECK(st == ST_OK, "%s %s", err.where, err.msg);
    CHECK(event_parse(make_envelope(&bed, "occurredAt"), &bed.arena, &e, &err) == ST_INVALID);
    bed_release(&bed);
}

/* WE-T-3: run_started and RUN_STARTED are names that nobody knows: they start no run. */
TEST(engine_event_names_are_pascal_case) {
    CHECK(event_type_of(STR("RunStarted")) == EVENT_RUN_STARTED);
    static const char *const others[] = {"run_started", "RUN_STARTED", "runStarted",
                                         "onRunStarted"};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        struct run run = {0};
        struct arena arena;
        struct transition bad;
        struct error err = {0};
        struct event_record rec = {.seq = 1, .run_seq = 1};
        arena_init(&arena, 1024, 1 << 20);
        rec.event.type_name = str_c(others[i]);
        rec.event.type = event_type_of(str_c(others[i]));
        rec.event.logical_attempt = 1;
        CHECK(rec.event.type == EVENT_UNKNOWN, "%s", others[i]);
        CHECK(run_apply(&run, &rec, &arena, &bad, NULL, &err) == ST_OK);
        CHECK(run.head.status == RUN_NEW, "%s", others[i]);
        arena_release(&arena);
    }
}

static bool names_a_handler(str text) { /* \bon(Run|Step)[A-Z] */
    for (size_t i = 0; i + 6 < text.len; i++) {
        const char *p = text.ptr + i;
        if (p[0] != 'o' || p[1] != 'n') continue;
        char before = ' ';
        if (i > 0) before = p[-1];
        bool word = (before >= 'a' && before <= 'z') || (before >= 'A' && before <= 'Z') ||
                    (before >= '0' && before <= '9') || before == '_';
        str rest = str_from(text, i + 2);
        size_t skip = str_starts(rest, STR("Run")) ? 3 : str_starts(rest, STR("Step")) ? 4 : 0;
        if (!word && skip > 0 && rest.len > skip && rest.ptr[skip] >= 'A' && rest.ptr[skip] <= 'Z')
            return true;
    }
    return false;
}

/* As deep as our own folders are. NOLINTNEXTLINE(misc-no-recursion) */
static int search_folder(const char *folder, struct arena *arena) {
    DIR *dir = opendir(folder);
    int pages = 0;
    CHECK(dir != NULL, "%s", folder);
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        char path[1024];
        struct error err = {0};
        str text = STR_NONE;
        snprintf(path, sizeof(path), "%s/%s", folder, d->d_name);
        if (d->d_name[0] == '.') continue;
        if (d->d_type == DT_DIR) {
            pages += search_folder(path, arena);
            continue;
        }
        CHECK(file_read(str_c(path), (size_t)4 * 1024 * 1024, arena, &text, &err) == ST_OK, "%s",
              err.msg);
        CHECK(!names_a_handler(text), "%s", path);
        pages++;
    }
    closedir(dir);
    return pages;
}

/* WE-T-4: no page of the documentation, and none of the contracts' wordings, names a handler like
 * that. */
TEST(engine_documents_name_events_not_handlers) {
    struct arena arena;
    CHECK(path_exists(STR("docs/events.md")), "run the tests from the top of the repository");
    arena_init(&arena, 65536, (size_t)64 * 1024 * 1024);
    CHECK(names_a_handler(STR("x onRunStarted")) && names_a_handler(STR("onStepFailed!")));
    CHECK(!names_a_handler(STR("conRunStarted onRunning oneRunS")));
    CHECK(search_folder("docs", &arena) > 3 && search_folder("contracts", &arena) > 0);
    arena_release(&arena);
}
