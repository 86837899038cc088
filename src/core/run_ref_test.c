#include "core/run_ref.h"

#include "test.h"

static str write_ref(const struct engine_run_ref *ref, struct arena *arena) {
    struct buf b;
    buf_init(&b, 4096);
    run_ref_json(ref, &b);
    str text = arena_str(arena, buf_str(&b));
    buf_release(&b);
    return text;
}

/* WE-2.1.1-1, WE-2.1.1-2, WE-2.1.1-7: each variant is read and written with its own members alone;
 * taskQueue may be there or not. */
TEST(run_ref_has_the_members_of_its_provider) {
    static const char *const good[] = {
        "{\"provider\":\"local\",\"workflowId\":\"w\",\"runId\":\"r\"}",
        "{\"provider\":\"temporal\",\"namespace\":\"prod\",\"workflowId\":\"w\",\"runId\":\"r\"}",
        "{\"provider\":\"temporal\",\"namespace\":\"prod\",\"workflowId\":\"w\",\"runId\":\"r\","
        "\"taskQueue\":\"q\"}",
        "{\"provider\":\"conductor\",\"workflowId\":\"w\",\"runId\":\"r\","
        "\"conductorUrl\":\"https://conductor.example/api\"}"};
    struct arena arena;
    arena_init(&arena, 1024, 1 << 20);
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        struct engine_run_ref ref;
        struct error err = {0};
        CHECK(run_ref_parse(str_c(good[i]), &arena, &ref, &err) == ST_OK, "%s", err.msg);
        str text = write_ref(&ref, &arena);
        CHECK(str_eq(text, str_c(good[i])), "%.*s", STR_ARG(text));
    }
    arena_release(&arena);
}

/* WE-2.1.1-3, WE-2.1.1-4, WE-2.1.1-5: a reference without what its provider needs is refused, for
 * every operation alike, since none accepts one that did not pass here. */
TEST(run_ref_refuses_what_is_missing_foreign_or_malformed) {
    static const struct {
        const char *json, *where;
    } cases[] = {
        {"{\"provider\":\"temporal\",\"workflowId\":\"w\",\"runId\":\"r\"}", "/namespace"},
        {"{\"provider\":\"conductor\",\"workflowId\":\"w\",\"runId\":\"r\"}", "/conductorUrl"},
        {"{\"provider\":\"local\",\"workflowId\":\"w\"}", "/runId"},
        {"{\"provider\":\"temporal\",\"namespace\":\"n\",\"workflowId\":\"w\"}", "/runId"},
        {"{\"provider\":\"conductor\",\"workflowId\":\"w\",\"conductorUrl\":\"http://c\"}",
         "/runId"},
        {"{\"provider\":\"local\",\"runId\":\"r\"}", "/workflowId"},
        {"{\"workflowId\":\"w\",\"runId\":\"r\"}", "/provider"},
        {"{\"provider\":\"nomad\",\"workflowId\":\"w\",\"runId\":\"r\"}", "/provider"},
        {"{\"provider\":1,\"workflowId\":\"w\",\"runId\":\"r\"}", "/provider"},
        {"{\"provider\":\"local\",\"workflowId\":\"w\",\"runId\":\"\"}", "/runId"},
        {"{\"provider\":\"local\",\"workflowId\":\"w\",\"runId\":7}", "/runId"},
        {"{\"provider\":\"local\",\"workflowId\":\"w\",\"runId\":\"a|b\"}", "/runId"},
        {"{\"provider\":\"local\",\"workflowId\":\"w\",\"runId\":\"r\",\"namespace\":\"n\"}",
         "/namespace"},
        {"{\"provider\":\"temporal\",\"namespace\":\"n\",\"workflowId\":\"w\",\"runId\":\"r\","
         "\"conductorUrl\":\"http://c\"}",
         "/conductorUrl"},
        {"{\"provider\":\"conductor\",\"workflowId\":\"w\",\"runId\":\"r\",\"conductorUrl\":\"c\"}",
         "/conductorUrl"},
        {"{\"provider\":\"local\",\"workflowId\":\"w\",\"runId\":\"r\",\"tenantId\":\"t\"}",
         "/tenantId"},
        {"[]", ""}};
    struct arena arena;
    arena_init(&arena, 1024, 1 << 20);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct engine_run_ref ref;
        struct error err = {0};
        CHECK(run_ref_parse(str_c(cases[i].json), &arena, &ref, &err) == ST_INVALID, "case %zu", i);
        CHECK(err.reason == REASON_RUN_REF_INVALID, "case %zu: %s", i, reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
    }
    arena_release(&arena);
}
