/* EngineRunRefs of runs that were really launched: what they say, and which are refused. And what a
 * run shows while its provider continues it as new. */
#include "conformance/provider_helper.h"
#include "ledger/reference.h"

#define CONDUCTOR "http://127.0.0.1:1"

static void open_bed(struct bed *bed, str url, struct temporal_options *temporal,
                     struct conductor_options *conductor) {
    bed_init(bed, url);
    *temporal = (struct temporal_options){
        .target = STR("127.0.0.1:1"), .ns = STR("prod"), .queue = STR("q7")};
    *conductor = (struct conductor_options){.url = STR(CONDUCTOR)};
    bed->options.temporal = temporal;
    bed->options.conductor = conductor;
    bed_open(bed);
    static const char *const adapters[] = {"local", "temporal", "conductor"};
    for (size_t i = 0; i < COUNT_OF(adapters); i++) {
        struct error err = {0};
        struct start_request q =
            bed_request(bed, PLAN(STEP("w", "wait", ",\"signal\":\"go\"")), adapters[i]);
        q.adapter = str_c(adapters[i]);
        CHECK(bed_start(bed, &q, &err) == ST_OK, "%s: %s", adapters[i], err.msg);
    }
}

static status resolve(struct bed *bed, const char *json, struct run_info *out, struct error *err) {
    struct engine_run_ref ref;
    *err = (struct error){0};
    status st = run_ref_parse(str_c(json), &bed->arena, &ref, err);
    return st == ST_OK ? run_ref_resolve(host_reader(bed->host), &ref, &bed->arena, out, err) : st;
}

/* WE-2.1.1-1, WE-2.1.1-2, WE-2.1.1-7: a run started on temporal and one started on conductor:
 * their references have the members of their provider, and no others; each finds its run again. */
TEST_DB(refs_of_runs_have_the_members_of_their_provider) {
    struct bed bed;
    struct temporal_options temporal;
    struct conductor_options conductor;
    open_bed(&bed, url, &temporal, &conductor);
    static const struct {
        const char *run, *json;
    } cases[] = {{"local", "{\"provider\":\"local\",\"workflowId\":\"local\",\"runId\":\"local\"}"},
                 {"temporal", "{\"provider\":\"temporal\",\"namespace\":\"prod\",\"workflowId\":"
                              "\"temporal\",\"runId\":\"temporal\",\"taskQueue\":\"q7\"}"},
                 {"conductor", "{\"provider\":\"conductor\",\"workflowId\":\"conductor\",\"runId\":"
                               "\"conductor\",\"conductorUrl\":\"" CONDUCTOR "\"}"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct ledger *reader = host_reader(bed.host);
        struct run_info info = {0};
        struct engine_run_ref ref;
        struct error err = {0};
        struct buf text;
        buf_init(&text, 4096);
        CHECK(ledger_find_run(reader, str_c(cases[i].run), &bed.arena, &info, &err) == ST_OK);
        CHECK(run_ref_find(reader, &info, &bed.arena, &ref, &err) == ST_OK, "%s", err.msg);
        run_ref_json(&ref, &text);
        CHECK(is(buf_str(&text), cases[i].json), "%.*s", STR_ARG(buf_str(&text)));
        buf_release(&text);
        CHECK(resolve(&bed, cases[i].json, &info, &err) == ST_OK, "%s", err.msg);
        CHECK(is(info.run_id, cases[i].run) && is(info.tenant_id, "acme"));
    }
    bed_release(&bed);
}

/* WE-2.1.1-3, WE-2.1.1-4, WE-2.1.1-5: without its namespace, conductorUrl or runId a reference is
 * refused whatever the store knows; one that knows the run differently is refused as well. */
TEST_DB(refs_that_do_not_fit_their_run_are_refused) {
    struct bed bed;
    struct temporal_options temporal;
    struct conductor_options conductor;
    open_bed(&bed, url, &temporal, &conductor);
#define TEMPORAL "{\"provider\":\"temporal\",\"workflowId\":\"temporal\""
#define OF_CONDUCTOR "{\"provider\":\"conductor\",\"workflowId\":\"conductor\""
    static const struct {
        const char *json;
        status want;
        const char *reason, *where;
    } cases[] = {
        {TEMPORAL ",\"runId\":\"temporal\"}", ST_INVALID, "RUN_REF_INVALID", "/namespace"},
        {OF_CONDUCTOR ",\"runId\":\"conductor\"}", ST_INVALID, "RUN_REF_INVALID", "/conductorUrl"},
        {TEMPORAL ",\"namespace\":\"prod\"}", ST_INVALID, "RUN_REF_INVALID", "/runId"},
        {OF_CONDUCTOR ",\"conductorUrl\":\"" CONDUCTOR "\"}", ST_INVALID, "RUN_REF_INVALID",
         "/runId"},
        {"{\"provider\":\"local\",\"workflowId\":\"local\"}", ST_INVALID, "RUN_REF_INVALID",
         "/runId"},
        {TEMPORAL ",\"runId\":\"temporal\",\"namespace\":\"dev\"}", ST_CONFLICT, "RUN_REF_MISMATCH",
         "/namespace"},
        {OF_CONDUCTOR ",\"runId\":\"conductor\",\"conductorUrl\":\"http://127.0.0.1:2\"}",
         ST_CONFLICT, "RUN_REF_MISMATCH", "/conductorUrl"},
        {"{\"provider\":\"local\",\"workflowId\":\"temporal\",\"runId\":\"temporal\"}", ST_CONFLICT,
         "RUN_REF_MISMATCH", "/provider"},
        {"{\"provider\":\"temporal\",\"namespace\":\"prod\",\"workflowId\":\"local\",\"runId\":"
         "\"local\"}",
         ST_CONFLICT, "RUN_REF_MISMATCH", "/provider"},
        {"{\"provider\":\"temporal\",\"namespace\":\"prod\",\"workflowId\":\"x\",\"runId\":"
         "\"temporal\"}",
         ST_CONFLICT, "RUN_REF_MISMATCH", "/workflowId"},
        {"{\"provider\":\"local\",\"workflowId\":\"x\",\"runId\":\"local\"}", ST_CONFLICT,
         "RUN_REF_MISMATCH", "/workflowId"},
        {"{\"provider\":\"local\",\"workflowId\":\"none\",\"runId\":\"none\"}", ST_NOT_FOUND,
         "RUN_NOT_FOUND", ""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_info info;
        struct error err;
        CHECK(resolve(&bed, cases[i].json, &info, &err) == cases[i].want, "case %zu: %s", i,
              err.msg);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
    }
    bed_release(&bed);
}

/* WE-2.1.2-3: from the moment in which Temporal ends an execution to continue it as new, until the
 * new one is up, the substatus is CONTINUE_AS_NEW; neither before nor afterwards, and again with
 * the next rotation. (Against a real cluster: provider_runs.c.) */
TEST_DB(refs_rotation_is_shown_until_the_new_execution_is_up) {
    struct bed bed;
    struct temporal_options temporal;
    struct conductor_options conductor;
    open_bed(&bed, url, &temporal, &conductor);
    struct engine *engine = host_engine(bed.host);
    CHECK(is(shown(&bed, "temporal"), "PENDING"));
    for (int i = 1; i <= 3; i++) {
        char id[16];
        snprintf(id, sizeof(id), "exec-%d", i);
        struct provider_link link = {.workflow_id = STR("temporal"),
                                     .provider_run_id = str_c(id),
                                     .queue = STR("q7"),
                                     .continued = i > 1};
        engine_linked(engine, STR("temporal"), &link);
        until_rows(&bed, "temporal", EVENT_RUN_PROVIDER_LINKED, (size_t)i);
        until_status(&bed, "temporal", RUN_RUNNING);
        CHECK(is(shown(&bed, "temporal"), "RUNNING"), "%.*s", STR_ARG(shown(&bed, "temporal")));
        engine_rotating(engine, STR("temporal"));
        until_rows(&bed, "temporal", EVENT_RUN_RECOVERED, (size_t)i);
        for (int k = 0; k < 5; k++) {
            CHECK(is(shown(&bed, "temporal"), "RUNNING/CONTINUE_AS_NEW"), "%.*s",
                  STR_ARG(shown(&bed, "temporal")));
            bed_turn(&bed, 5);
        }
    }
    bed_release(&bed);
}
