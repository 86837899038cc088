/* What must be right before a run starts: context, reference, plan, capabilities, admission,
 * approval. On both databases. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "conformance/engine_tools.h"
#include "core/run_ref.h"

#define WAIT_PLAN PLAN(STEP("w", "wait", ",\"signal\":\"go\""))

static int64_t run_count(struct bed *bed) {
    struct ledger_stats stats;
    struct error err = {0};
    CHECK(ledger_stats(host_reader(bed->host), &stats, &err) == ST_OK, "%s", err.msg);
    return stats.runs;
}

/* ---- the context ---- */

/* WE-2.1-5: each member of the context is needed, and the refusal names it. (A run id that is not
 * given at all is made, WE-2.1-7; an empty one is refused.) */
TEST_DB(engine_start_needs_the_whole_context) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request good = bed_request(&bed, PLAN(NOOP("a", "")), "r");
    struct start_request q[6];
    static const char *const where[] = {"/tenantId", "/projectId",     "/environmentId",
                                        "/runId",    "/targetAdapter", "/actor"};
    static const char long_name[] = "01234567890123456789012345678901234567890123456789012345678901"
                                    "234567890123456789012345678901234567890";
    for (size_t i = 0; i < COUNT_OF(q); i++)
        q[i] = good;
    q[0].tenant_id = STR_NONE;
    q[1].project_id = STR_NONE;
    q[2].environment_id = STR_NONE;
    q[3].run_id = STR("");
    q[4].adapter = STR_NONE;
    q[5].actor = str_c(long_name);
    for (size_t i = 0; i < COUNT_OF(q); i++) {
        struct error err = {0};
        CHECK(bed_start(&bed, &q[i], &err) == ST_INVALID, "%s", where[i]);
        CHECK(err.reason == REASON_CONTEXT_INVALID && strcmp(err.where, where[i]) == 0, "%s",
              err.where);
    }
    CHECK(run_count(&bed) == 0);
    bed_release(&bed);
}

/* There is no "auto", and a plan's "any" is nothing to run on. */
TEST_DB(engine_start_needs_an_adapter_that_was_chosen) {
    static const char *const bad[] = {"auto", "any", "mock", "", "Local", "local "};
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request request = bed_request(&bed, PLAN(NOOP("a", "")), "r");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        request.adapter = str_c(bad[i]);
        start_refused(&bed, &request, "CONTEXT_INVALID");
    }
    CHECK(run_count(&bed) == 0);
    bed_release(&bed);
}

/* WE-2.1-6: the same run id for a second tenant is refused and the first run goes on unharmed. */
TEST_DB(engine_run_ids_are_unique_over_all_tenants) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, WAIT_PLAN, "r");
    size_t rows = all_rows(&bed, "r").count;
    struct start_request other = bed_request(&bed, WAIT_PLAN, "r");
    other.tenant_id = STR("globex");
    start_refused(&bed, &other, "RUN_ID_TAKEN");
    struct start_request plan = bed_request(&bed, PLAN_META("", "", NOOP("a", "")), "r");
    plan.project_id = STR("another");
    start_refused(&bed, &plan, "RUN_ID_TAKEN");
    CHECK(all_rows(&bed, "r").count == rows && run_count(&bed) == 1);
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    start_refused(&bed, &other, "RUN_ID_TAKEN");
    bed_release(&bed);
}

struct started {
    bool there;
    status code;
};
static void on_started(void *context, status code, const struct error *err) {
    struct started *s = context;
    UNUSED(err);
    s->there = true;
    s->code = code;
}

/* WE-2.1-7: an id that the engine makes is a UUID v4; another unique string is accepted, one with
 * '|' is not. WE-2.1-1: what names the run afterwards has provider, workflowId and runId. */
TEST_DB(engine_makes_a_run_id_and_a_reference) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    char id[ID_BYTES_MAX + 1] = "";
    struct started s = {0};
    struct start_request request = bed_request(&bed, WAIT_PLAN, NULL);
    host_start(bed.host, &request, id, on_started, &s);
    while (!s.there)
        bed_turn(&bed, 5);
    uuid u;
    CHECK(s.code == ST_OK && uuid_parse(str_c(id), &u) && uuid_version(u) == 4, "%s", id);
    struct engine_run_ref ref = run_ref_local(str_c(id));
    struct engine_run_ref back;
    struct error err = {0};
    struct buf text;
    buf_init(&text, 4096);
    run_ref_json(&ref, &text);
    CHECK(run_ref_parse(buf_str(&text), &bed.arena, &back, &err) == ST_OK, "%s", err.msg);
    CHECK(holds(buf_str(&text), "\"provider\":\"local\",\"workflowId\":") && is(back.run_id, id));
    buf_release(&text);
    CHECK(is(shown(&bed, id), "RUNNING"));
    tell(&bed, id, "CANCEL", NULL);
    CHECK(bed_wait(&bed, id) == RUN_CANCELLED);
    CHECK(bed_run(&bed, PLAN(NOOP("a", "")), "order 42/ä") == RUN_COMPLETED);
    struct start_request bad = bed_request(&bed, WAIT_PLAN, "a|b");
    start_refused(&bed, &bad, "CONTEXT_INVALID");
    bed_release(&bed);
}

/* ---- the reference ---- */

/* WE-3.1-1: startRun takes a reference: a plan in its place is no reference.
 * WE-3.1-5: planId and planVersion are required, and every event carries both. */
TEST_DB(engine_start_takes_a_reference_and_no_plan) {
    struct bed bed;
    struct plan_ref ref;
    struct error err = {0};
    bed_init(&bed, url);
    bed_open(&bed);
    CHECK(plan_ref_parse(str_c(PLAN(NOOP("a", ""))), &bed.arena, &ref, &err) != ST_OK);
    CHECK(plan_ref_parse(STR("{\"metadata\":{},\"steps\":[]}"), &bed.arena, &ref, &err) ==
          ST_INVALID);
    CHECK(err.reason == REASON_PLAN_REF_INVALID);
    static const char *const missing[] = {
        "{\"uri\":\"https://x/"
        "y\",\"sha256\":\"0000000000000000000000000000000000000000000000000000000000000000\","
        "\"schemaVersion\":\"v1.3\",\"planVersion\":\"1\"}",
        "{\"uri\":\"https://x/"
        "y\",\"sha256\":\"0000000000000000000000000000000000000000000000000000000000000000\","
        "\"schemaVersion\":\"v1.3\",\"planId\":\"p\"}"};
    static const char *const where[] = {"/planId", "/planVersion"};
    for (size_t i = 0; i < COUNT_OF(missing); i++) {
        CHECK(plan_ref_parse(str_c(missing[i]), &bed.arena, &ref, &err) == ST_INVALID);
        CHECK(strcmp(err.where, where[i]) == 0, "%s", err.where);
    }
    CHECK(bed_run(&bed, PLAN(NOOP("a", "")), "r") == RUN_COMPLETED);
    struct event_page page;
    CHECK(ledger_read_run(host_reader(bed.host), STR("r"), 0, 100, &bed.arena, &page, &err) ==
          ST_OK);
    CHECK(page.count >= 4);
    for (size_t i = 0; i < page.count; i++) {
        CHECK(is(page.records[i].event.plan_id, "p"));
        CHECK(is(page.records[i].event.plan_version, "1"));
    }
    bed_release(&bed);
}

/* WE-3.1-6, WE-3.1-7: sizeBytes and expiresAt may be there or not; another length, or a time that
 * has passed, is refused. The other refusals of a reference leave no run behind, either. */
TEST_DB(engine_start_checks_the_reference_first) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    const char *plan = PLAN(NOOP("a", ""));
    struct start_request good = bed_request(&bed, plan, "r");
    struct start_request q = good;
    q.ref.size_bytes = (int64_t)strlen(plan) + 1;
    start_refused(&bed, &q, "PLAN_SIZE_MISMATCH");
    q = good;
    q.ref.expires_us = clock_wall_us() - 1000000;
    start_refused(&bed, &q, "PLAN_REF_EXPIRED");
    q = good;
    q.ref.schema_version = STR("v9.0");
    start_refused(&bed, &q, "PLAN_SCHEMA_VERSION_UNSUPPORTED");
    q = good;
    q.ref.uri = STR("file:///etc/passwd");
    start_refused(&bed, &q, "PLAN_URI_NOT_ALLOWED");
    q = good;
    q.ref.plan_version = STR("2");
    start_refused(&bed, &q, "PLAN_ID_MISMATCH");
    q = good;
    q.ref.sha256[0] ^= 1;
    start_refused(&bed, &q, "PLAN_URI_NOT_ALLOWED"); /* the address names another hash */
    q.ref.uri = STR("plan:sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");
    for (size_t i = 0; i < 32; i++)
        q.ref.sha256[i] = (uint8_t)((i % 16) * 0x11);
    start_refused(&bed, &q, "PLAN_NOT_FOUND");
    CHECK(run_count(&bed) == 0);
    struct error err = {0};
    q = good;
    q.ref.size_bytes = (int64_t)strlen(plan);
    q.ref.expires_us = clock_wall_us() + 60000000;
    CHECK(bed_start(&bed, &q, &err) == ST_OK, "%s", err.msg);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* WE-3.1-2: a plan of 5 MB runs by reference; what is recorded of it stays far below 2 MB. */
TEST_DB(engine_runs_a_large_plan_by_reference) {
    struct bed bed;
    struct buf plan;
    enum { STEPS = 50, STEP_BYTES = 110 * 1024 };
    bed_init(&bed, url);
    bed_open(&bed);
    buf_init(&plan, (size_t)8 * 1024 * 1024);
    buf_put_c(&plan, "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":"
                     "\"1\"},\"steps\":[");
    for (int i = 0; i < STEPS; i++) {
        buf_printf(&plan,
                   "%s{\"stepId\":\"s%d\",\"type\":\"exec\",\"runIf\":\"false\",\"command\":[\"",
                   i > 0 ? "," : "", i);
        for (int k = 0; k < STEP_BYTES; k += 8)
            buf_put_c(&plan, "abcdefgh");
        buf_put_c(&plan, "\"]}");
    }
    buf_put_c(&plan, "]}");
    CHECK(plan.len > (size_t)5 * 1024 * 1024 && !plan.full);
    str text = arena_str(&bed.arena, buf_str(&plan));
    buf_release(&plan);
    CHECK(bed_run(&bed, text.ptr, "r") == RUN_COMPLETED);
    struct event_page rows = all_rows(&bed, "r");
    size_t bytes = 0;
    for (size_t i = 0; i < rows.count; i++)
        bytes += rows.records[i].event.payload.len;
    CHECK(count_rows(&bed, "r", EVENT_STEP_SKIPPED) == STEPS);
    CHECK(bytes < 20000, "%zu", bytes);
    bed_release(&bed);
}

/* ---- integrity ---- */

static void plan_path(struct bed *bed, const struct plan_ref *ref, char out[1024]) {
    char hex[SHA256_HEX_LEN];
    hex_encode(ref->sha256, SHA256_LEN, hex);
    snprintf(out, 1024, "%.*s/plans/%.*s.json", STR_ARG(bed->data_dir), SHA256_HEX_LEN, hex);
}

static void tamper(struct bed *bed, const struct plan_ref *ref) {
    char path[1024];
    struct error err = {0};
    str text = STR_NONE;
    plan_path(bed, ref, path);
    CHECK(file_read(str_c(path), 100000, &bed->arena, &text, &err) == ST_OK, "%s", err.msg);
    str more = arena_str(&bed->arena, text);
    char *bytes = arena_alloc(&bed->arena, more.len + 2);
    memcpy(bytes, more.ptr, more.len);
    bytes[more.len] = '\n'; /* one byte more is another plan */
    CHECK(file_replace(str_c(path), str_n(bytes, more.len + 1), &err) == ST_OK, "%s", err.msg);
}

/* WE-3.1-13, WE-3.1-14: the hash is over the raw bytes; one newline more, and the start fails with
 * that code. WE-3.1-15: no RunStarted, no StepStarted: no run. And one alert of severity P1
 * among the log lines. WE-3.1-17: one line has both hashes of 64 characters. */
TEST_DB(engine_start_refuses_a_plan_that_was_changed) {
    struct bed bed;
    struct error err = {0};
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request request = bed_request(&bed, PLAN(NOOP("a", "")), "r");
    tamper(&bed, &request.ref);
    FILE *log = fopen(path_in(&bed, "log").ptr, "w+");
    CHECK(log != NULL);
    log_setup(fileno(log), true, LOG_INFO);
    status st = bed_start(&bed, &request, &err);
    log_setup(2, false, LOG_INFO);
    fclose(log);
    CHECK(st == ST_INVALID && err.reason == REASON_PLAN_INTEGRITY_VALIDATION_FAILED, "%s", err.msg);
    CHECK(bed_status(&bed, "r") == RUN_NEW && run_count(&bed) == 0);
    str text = STR_NONE;
    CHECK(file_read(path_in(&bed, "log"), 100000, &bed.arena, &text, &err) == ST_OK);
    int alerts = 0;
    int audits = 0;
    for (str rest = text, line; str_split(rest, '\n', &line, &rest);) {
        alerts += holds(line, "\"severity\":\"P1\"") && holds(line, "\"runId\":\"r\"") &&
                  holds(line, "\"tenantId\":\"acme\"") &&
                  holds(line, "\"code\":\"PLAN_INTEGRITY_VALIDATION_FAILED\"");
        audits += holds(line, "\"expectedSha256\":\"") && holds(line, "\"actualSha256\":\"");
        if (!holds(line, "\"expectedSha256\":\"")) continue;
        struct json_limits limits = {10000, 4};
        yyjson_val *root = NULL;
        str want = STR_NONE;
        str got = STR_NONE;
        CHECK(json_parse(line, limits, &bed.arena, &root, &err) == ST_OK);
        CHECK(json_str(json_member(root, "expectedSha256"), &want) && want.len == 64);
        CHECK(json_str(json_member(root, "actualSha256"), &got) && got.len == 64);
        CHECK(!str_eq(want, got));
    }
    CHECK(alerts == 1 && audits == 1, "%d %d: %.*s", alerts, audits, STR_ARG(text));
    bed_release(&bed);
}

/* A plan that is changed, or gone, while its run waits ends the run with that code. */
TEST_DB(engine_ends_a_run_whose_plan_was_changed) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request changed = bed_request(&bed, WAIT_PLAN, "changed");
    struct start_request gone =
        bed_request(&bed, PLAN(STEP("x", "wait", ",\"signal\":\"go\"")), "gone");
    struct error err = {0};
    gone.approval = true;
    CHECK(bed_start(&bed, &changed, &err) == ST_OK && bed_start(&bed, &gone, &err) == ST_OK);
    bed_close(&bed);
    tamper(&bed, &changed.ref);
    char path[1024];
    plan_path(&bed, &gone.ref, path);
    CHECK(unlink(path) == 0);
    log_setup(2, false, LOG_OFF);
    bed_open(&bed);
    (void)bed_signal(&bed, "changed", "go", NULL, NULL, &err);
    (void)bed_signal(&bed, "gone", "APPROVE", NULL, NULL, &err);
    CHECK(bed_wait(&bed, "changed") == RUN_FAILED && bed_wait(&bed, "gone") == RUN_FAILED);
    log_setup(2, false, LOG_INFO);
    CHECK(holds(bed_payload(&bed, "changed", EVENT_RUN_FAILED, 0),
                "\"code\":\"PLAN_INTEGRITY_VALIDATION_FAILED\""));
    CHECK(holds(bed_payload(&bed, "gone", EVENT_RUN_FAILED, 0), "\"code\":\"PLAN_NOT_FOUND\""));
    CHECK(count_rows(&bed, "changed", EVENT_STEP_COMPLETED) == 0);
    CHECK(count_rows(&bed, "gone", EVENT_RUN_STARTED) == 0);
    bed_release(&bed);
}

/* ---- the plan's steps ---- */

/* WE-3.2-5, WE-3.2-6: a known field of a wrong type, and a field that is not known, are refused
 * with the step and field named; nothing is executed. */
TEST_DB(engine_start_refuses_steps_it_does_not_understand) {
    static const struct {
        const char *step, *where;
    } cases[] = {{STEP("a", "noop", ",\"frobnicate\":1"), "/steps/0/frobnicate"},
                 {STEP("a", "exec", ",\"command\":{}"), "/steps/0/command"},
                 {STEP("a", "sleep", ",\"durationMs\":\"long\""), "/steps/0/durationMs"},
                 {"{\"type\":\"noop\"}", "/steps/0/stepId"}};
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char plan[1024];
        char folder[1024];
        struct error err = {0};
        struct start_request q = bed_request(&bed, PLAN(NOOP("a", "")), "r");
        snprintf(plan, sizeof(plan),
                 "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":\"1\"}"
                 ",\"steps\":[%s]}",
                 cases[i].step);
        snprintf(folder, sizeof(folder), "%.*s/plans", STR_ARG(bed.data_dir));
        CHECK(plan_store_put(str_c(folder), str_c(plan), q.ref.sha256, &err) == ST_OK);
        char uri[128];
        char hex[SHA256_HEX_LEN];
        hex_encode(q.ref.sha256, SHA256_LEN, hex);
        snprintf(uri, sizeof(uri), "plan:sha256:%.*s", SHA256_HEX_LEN, hex);
        q.ref.uri = str_c(uri);
        CHECK(bed_start(&bed, &q, &err) == ST_INVALID, "case %zu", i);
        CHECK(err.reason == REASON_INVALID_STEP_SCHEMA, "%s %s", reason_name(err.reason), err.msg);
        CHECK(strcmp(err.where, cases[i].where) == 0, "%s", err.where);
    }
    CHECK(run_count(&bed) == 0);
    bed_release(&bed);
}

/* ---- capabilities ---- */

#define NEEDS(cap, fallback)                                                                       \
    PLAN_META(",\"requiresCapabilities\":[\"" cap "\"]" fallback, "", NOOP("a", ""))

/* WE-4-1, WE-4-7: a capability that the adapter lacks: the report is there before RunStarted, the
 * error carries it, and there is no run. WE-4-6: first the plan is fetched (one that is not there
 * is that error, whatever it needs), then validated, and only then does anything run. */
TEST_DB(engine_start_validates_capabilities_first) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    static const struct {
        const char *plan, *code, *capability;
    } cases[] = {
        {NEEDS("dynamicSteps", ""), "CAPABILITY_UNSUPPORTED", "dynamicSteps"},
        {NEEDS("dynamicSteps", ",\"fallbackBehavior\":\"degrade\""), "CAPABILITY_UNSUPPORTED",
         "dynamicSteps"},
        {NEEDS("telepathy", ",\"fallbackBehavior\":\"reject\""), "CAPABILITY_UNKNOWN", "telepathy"},
        {NEEDS("inFlightPause", ",\"fallbackBehavior\":\"reject\""), "CAPABILITY_DEGRADED",
         "inFlightPause"},
        {NEEDS("inFlightPause", ",\"fallbackBehavior\":\"emulate\""), "CAPABILITY_DEGRADED",
         "inFlightPause"},
        {NEEDS("taskCancellation", ""), "CAPABILITY_EMULATED", "taskCancellation"},
        {PLAN_META(",\"targetAdapter\":\"temporal\"", "", NOOP("a", "")), "TARGET_ADAPTER_MISMATCH",
         "temporal"},
        {PLAN(STEP("a", "package", ",\"name\":\"jq\"")), "STEP_TYPE_UNSUPPORTED", "package"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        struct start_request q = bed_request(&bed, cases[i].plan, "r");
        CHECK(bed_start(&bed, &q, &err) == ST_INVALID, "case %zu: %s", i, err.msg);
        CHECK(err.reason == REASON_PLAN_VALIDATION_FAILED, "case %zu: %s", i,
              reason_name(err.reason));
        str report = str_c(err.msg);
        CHECK(holds(report, "{\"planId\":\"p\",\"status\":\"ERRORS\",\"errors\":[{") &&
                  holds(report, cases[i].code) && holds(report, cases[i].capability),
              "case %zu: %s", i, err.msg);
    }
    struct start_request absent = bed_request(&bed, cases[0].plan, "r");
    char path[1024];
    plan_path(&bed, &absent.ref, path);
    bed_reopen(&bed); /* the plan is not in memory any more */
    CHECK(unlink(path) == 0);
    start_refused(&bed, &absent, "PLAN_NOT_FOUND");
    CHECK(run_count(&bed) == 0);
    bed_release(&bed);
}

/* WE-4-8: with emulate or degrade RunStarted lists the warnings.
 * WE-4-9: the whole report is stored, and RunStarted refers to it by the id of the launch signal
 * that holds it. WE-4-10: the marker of degraded mode is true; of a plan without warnings it is
 * absent. */
TEST_DB(engine_start_with_warnings_says_so) {
    static const struct {
        const char *run_id, *plan, *code;
    } cases[] = {{"emulate", NEEDS("taskCancellation", ",\"fallbackBehavior\":\"emulate\""),
                  "CAPABILITY_EMULATED"},
                 {"degrade", NEEDS("inFlightPause", ",\"fallbackBehavior\":\"degrade\""),
                  "CAPABILITY_DEGRADED"}};
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(bed_run(&bed, cases[i].plan, cases[i].run_id) == RUN_COMPLETED);
        str p = bed_payload(&bed, cases[i].run_id, EVENT_RUN_STARTED, 0);
        CHECK(holds(p, "\"degraded\":true") && holds(p, "\"warnings\":[{\"code\":\"") &&
                  holds(p, cases[i].code),
              "%.*s", STR_ARG(p));
        struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
        struct error err = {0};
        yyjson_val *root = NULL;
        str ref = STR_NONE;
        CHECK(json_parse(p, limits, &bed.arena, &root, &err) == ST_OK);
        CHECK(json_str(json_member(root, "validationReportRef"), &ref));
        char name[64];
        snprintf(name, sizeof(name), "%.*s", STR_ARG(ref));
        str launch = find_row(&bed, cases[i].run_id, EVENT_SIGNAL_RECEIVED, name, 0)->event.payload;
        CHECK(holds(launch, "\"validation_report\":{\"planId\":\"p\",\"status\":\"WARNINGS\"") &&
                  holds(launch, cases[i].code),
              "%.*s", STR_ARG(launch));
    }
    CHECK(bed_run(&bed, PLAN(NOOP("a", "")), "plain") == RUN_COMPLETED);
    str p = bed_payload(&bed, "plain", EVENT_RUN_STARTED, 0);
    CHECK(!holds(p, "degraded") && !holds(p, "warnings"), "%.*s", STR_ARG(p));
    bed_release(&bed);
}

/* The warnings of a run that waits for approval outlive a restart. */
TEST_DB(engine_keeps_warnings_of_a_launch_that_waits) {
    struct bed bed;
    struct error err = {0};
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request request =
        bed_request(&bed, NEEDS("inFlightPause", ",\"fallbackBehavior\":\"degrade\""), "r");
    request.approval = true;
    CHECK(bed_start(&bed, &request, &err) == ST_OK, "%s", err.msg);
    bed_reopen(&bed);
    tell(&bed, "r", "APPROVE", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    str p = bed_payload(&bed, "r", EVENT_RUN_STARTED, 0);
    CHECK(holds(p, "\"degraded\":true") && holds(p, "CAPABILITY_DEGRADED") &&
              holds(p, "\"validationReportRef\":\""),
          "%.*s", STR_ARG(p));
    bed_release(&bed);
}

/* ---- approval of a launch ---- */

static void start_for_approval(struct bed *bed, const char *plan, const char *run_id) {
    struct start_request request = bed_request(bed, plan, run_id);
    struct error err = {0};
    request.approval = true;
    CHECK(bed_start(bed, &request, &err) == ST_OK, "%s", err.msg);
}

/* WE-2.1.2-4, WE-2.1.2-18: queued without approval: PENDING, and WAITING_APPROVAL. */
TEST_DB(engine_launch_waits_for_approval) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start_for_approval(&bed, PLAN(NOOP("a", "")), "yes");
    start_for_approval(&bed, PLAN(NOOP("a", "")), "no");
    CHECK(is(shown(&bed, "yes"), "PENDING/WAITING_APPROVAL"));
    CHECK(explained(&bed, "yes").waits[0].kind == WAIT_LAUNCH_APPROVAL);
    tell_refused(&bed, "yes", "PAUSE", NULL, "SIGNAL_NOT_APPLICABLE");
    bed_reopen(&bed);
    bed_turn(&bed, 100);
    check_history(&bed, "yes", "RunQueued");
    CHECK(holds(bed_payload(&bed, "yes", EVENT_RUN_QUEUED, 0), "\"reason\":\"approval\""));
    tell(&bed, "yes", "APPROVE", NULL);
    CHECK(bed_wait(&bed, "yes") == RUN_COMPLETED);
    check_history(
        &bed, "yes",
        "RunQueued RunApproved RunStarted a:StepStarted#1 a:StepCompleted#1 RunCompleted");
    CHECK(is(find_row(&bed, "yes", EVENT_RUN_APPROVED, NULL, 0)->actor, "operator"));
    tell(&bed, "no", "REJECT", NULL);
    check_history(&bed, "no", "RunQueued RunCancelled");
    bed_release(&bed);
}

/* ---- admission ---- */

/* WE-2.2-5, WE-2.2-6: RunQueued precedes RunStarted, has the full envelope, and admission as its
 * actor. */
TEST_DB(engine_admission_lets_runs_in_one_by_one) {
    struct bed bed;
    bed_init(&bed, url);
    bed.options.tenant_active_max = 1;
    bed_open(&bed);
    start(&bed, WAIT_PLAN, "r1");
    start(&bed, WAIT_PLAN, "r2");
    start(&bed, WAIT_PLAN, "r3");
    struct start_request other = bed_request(&bed, WAIT_PLAN, "other");
    struct error err = {0};
    other.tenant_id = STR("globex");
    CHECK(bed_start(&bed, &other, &err) == ST_OK && bed_status(&bed, "other") == RUN_RUNNING);
    CHECK(is(shown(&bed, "r1"), "RUNNING") && is(shown(&bed, "r2"), "PENDING"));
    struct explanation x = explained(&bed, "r2");
    CHECK(x.waits[0].kind == WAIT_ADMISSION && x.waits[0].since_us > 0);
    bed_turn(&bed, 300);
    check_history(&bed, "r2", "RunQueued");
    tell(&bed, "r1", "go", NULL);
    until_status(&bed, "r2", RUN_RUNNING); /* first come, first served */
    CHECK(bed_status(&bed, "r3") == RUN_PENDING);
    const struct event_record *q = find_row(&bed, "r2", EVENT_RUN_QUEUED, NULL, 0);
    CHECK(is(q->actor, "admission") && is(q->event.payload, "{\"reason\":\"admission\"}"));
    CHECK(q->run_seq == 1 && q->event.engine_attempt == 1 && q->event.logical_attempt == 1);
    CHECK(find_row(&bed, "r2", EVENT_RUN_STARTED, NULL, 0)->run_seq == 2);
    tell(&bed, "r2", "PAUSE", NULL); /* a paused run keeps its place */
    bed_turn(&bed, 1300);
    CHECK(bed_status(&bed, "r3") == RUN_PENDING);
    tell(&bed, "r2", "CANCEL", NULL);
    until_status(&bed, "r3", RUN_RUNNING);
    tell(&bed, "r3", "go", NULL);
    CHECK(bed_wait(&bed, "r3") == RUN_COMPLETED);
    bed_release(&bed);
}

/* WE-2.1.2-19: approved and ready to start, but not let in yet: APPROVED until RunStarted. */
TEST_DB(engine_approved_run_waits_for_its_turn) {
    struct bed bed;
    bed_init(&bed, url);
    bed.options.plan_active_max = 1;
    bed_open(&bed);
    start(&bed, WAIT_PLAN, "first");
    start_for_approval(&bed, WAIT_PLAN, "second");
    tell(&bed, "second", "APPROVE", NULL);
    bed_turn(&bed, 200);
    CHECK(is(shown(&bed, "second"), "APPROVED"));
    CHECK(explained(&bed, "second").waits[0].kind == WAIT_ADMISSION);
    bed_reopen(&bed);
    bed_turn(&bed, 200);
    CHECK(is(shown(&bed, "second"), "APPROVED"));
    tell(&bed, "first", "go", NULL);
    until_status(&bed, "second", RUN_RUNNING);
    check_history(&bed, "second", "RunQueued RunApproved RunStarted w:StepStarted#1");
    bed_release(&bed);
}

/* Many at once: never more active than may be, and all of them get their turn. */
TEST_DB(engine_admission_holds_under_a_crowd) {
    struct bed bed;
    enum { RUNS = 12 };
    bed_init(&bed, url);
    bed.options.tenant_active_max = 3;
    bed_open(&bed);
    struct start_request request =
        bed_request(&bed, PLAN(STEP("a", "sleep", ",\"durationMs\":50")), NULL);
    char ids[RUNS][ID_BYTES_MAX + 1];
    for (int i = 0; i < RUNS; i++)
        host_start(bed.host, &request, ids[i], NULL, NULL);
    bed_wait_event(&bed, EVENT_RUN_COMPLETED, RUNS);
    int active = 0;
    int most = 0;
    struct event_page page;
    struct error err = {0};
    CHECK(ledger_read_tenant(host_reader(bed.host), STR("acme"), 0, 1000, &bed.arena, &page,
                             &err) == ST_OK);
    for (size_t i = 0; i < page.count; i++) {
        if (page.records[i].event.type == EVENT_RUN_STARTED) active++;
        if (page.records[i].event.type == EVENT_RUN_COMPLETED) active--;
        if (active > most) most = active;
    }
    CHECK(most == 3, "%d", most);
    bed_release(&bed);
}
