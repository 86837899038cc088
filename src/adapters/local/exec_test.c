/* exec steps with real processes: what goes in, what comes out. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "adapters/local/bench_test.h"
#include "adapters/trace.h"
#include "test.h"

TEST(exec_answers_are_as_documented) {
    static const struct {
        const char *body;
        enum plan_output output;
        bool ok;
        const char *code, *output_json, *message, *detail;
    } cases[] = {
        {"{\"command\":[\"echo\",\"a b\",\"c\"]}", PLAN_OUTPUT_TEXT, true, "", "\"a b c\"", NULL,
         NULL},
        {"{\"command\":\"echo $((1+1)); echo x\"}", PLAN_OUTPUT_TEXT, true, "", "\"2\\nx\"", NULL,
         NULL},
        {"{\"command\":[\"printf\",\"a\\n\\n\"]}", PLAN_OUTPUT_TEXT, true, "", "\"a\\n\"", NULL,
         NULL},
        {"{\"command\":[\"true\"]}", PLAN_OUTPUT_TEXT, true, "", "\"\"", NULL, NULL},
        {"{\"command\":[\"echo\",\"x\"]}", PLAN_OUTPUT_NONE, true, "", NULL, NULL, NULL},
        {"{\"command\":[\"printf\",\"a\\\\377b\\\\0c\\\\001\"]}", PLAN_OUTPUT_TEXT, true, "",
         "\"a\xef\xbf\xbd"
         "b\xef\xbf\xbd"
         "c\\u0001\"",
         NULL, NULL},
        {"{\"command\":[\"echo\",\" {\\\"a\\\": [1.50, true]} \"]}", PLAN_OUTPUT_JSON, true, "",
         "{\"a\":[1.50,true]}", NULL, NULL},
        {"{\"command\":[\"echo\",\"{\\\"a\\\":\"]}", PLAN_OUTPUT_JSON, false, "OUTPUT_NOT_JSON",
         NULL, "stdout is not one JSON value", "{\"exitCode\":0,\"stderrTail\":\"\"}"},
        {"{\"command\":[\"true\"]}", PLAN_OUTPUT_JSON, false, "OUTPUT_NOT_JSON", NULL,
         "stdout is empty", "\"exitCode\":0"},
        {"{\"command\":\"echo oops >&2; exit 3\"}", PLAN_OUTPUT_JSON, false, "EXIT_CODE", NULL,
         "exited with code 3", "{\"exitCode\":3,\"stderrTail\":\"oops\\n\"}"},
        {"{\"command\":\"kill -SEGV $$\"}", PLAN_OUTPUT_TEXT, false, "SIGNALLED", NULL,
         "killed by SIGSEGV", "{\"signal\":\"SIGSEGV\",\"stderrTail\":\"\"}"},
        {"{\"command\":\"kill -35 $$\"}", PLAN_OUTPUT_TEXT, false, "SIGNALLED", NULL,
         "killed by SIG35", "\"signal\":\"SIG35\""},
        {"{\"command\":[\"cairn-has-no-such-program\"]}", PLAN_OUTPUT_TEXT, false, "SPAWN_FAILED",
         NULL, "\"cairn-has-no-such-program\": No such file or directory (looked in PATH)",
         "{\"errno\":\"ENOENT\"}"},
        {"{\"command\":[\"/dev/null\"]}", PLAN_OUTPUT_TEXT, false, "SPAWN_FAILED", NULL,
         "could not start \"/dev/null\": Permission denied", "{\"errno\":\"EACCES\"}"},
        {"{\"command\":[\"true\"],\"cwd\":\"nowhere\"}", PLAN_OUTPUT_TEXT, false, "SPAWN_FAILED",
         NULL, "nowhere\": No such file or directory", "{\"errno\":\"ENOENT\"}"},
        {"{\"command\":[\"true\"],\"cwd\":\"a/../..\"}", PLAN_OUTPUT_TEXT, false, "CWD_OUTSIDE",
         NULL, "\"a/../..\" leads out", NULL},
        {"{\"command\":[\"pwd\"],\"cwd\":\"/\"}", PLAN_OUTPUT_TEXT, true, "", "\"/\"", NULL, NULL},
        {"{\"command\":[\"cat\"],\"stdin\":\"line\\nend\"}", PLAN_OUTPUT_TEXT, true, "",
         "\"line\\nend\"", NULL, NULL},
        {"{\"command\":[\"cat\"]}", PLAN_OUTPUT_TEXT, true, "", "\"\"", NULL, NULL},
        {"{\"command\":[]}", PLAN_OUTPUT_TEXT, false, "INVALID_STEP_SCHEMA", NULL, "command", NULL},
        {"{\"command\":[\"a\",1]}", PLAN_OUTPUT_TEXT, false, "INVALID_STEP_SCHEMA", NULL, "command",
         NULL},
        {"{\"command\":[1,\"a\"]}", PLAN_OUTPUT_TEXT, false, "INVALID_STEP_SCHEMA", NULL, "command",
         NULL},
        {"{\"command\":[\"a\"],\"env\":{\"A=\":\"b\"}}", PLAN_OUTPUT_TEXT, false,
         "INVALID_STEP_SCHEMA", NULL, "env", NULL},
        {"{\"command\":[\"a\"],\"env\":{\"CAIRN_ENGINE\":\"b\"}}", PLAN_OUTPUT_TEXT, false,
         "INVALID_STEP_SCHEMA", NULL, "is set by Cairn", NULL},
        {"{\"command\":[\"a\"],\"env\":{\"A\":1}}", PLAN_OUTPUT_TEXT, false, "INVALID_STEP_SCHEMA",
         NULL, "env", NULL},
        {"{\"command\":", PLAN_OUTPUT_TEXT, false, "INVALID_STEP_SCHEMA", NULL, "fields", NULL},
        {"[]", PLAN_OUTPUT_TEXT, false, "INVALID_STEP_SCHEMA", NULL, "object", NULL},
    };
    struct bench b;
    bench_open(&b, (struct local_options){0});
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct shot s;
        shot_exec(&b, &s, cases[i].body, cases[i].output);
        CHECK(s.ok == cases[i].ok && strcmp(s.code, cases[i].code) == 0, "case %zu: %s %s", i,
              s.code, s.message);
        CHECK(cases[i].output_json ? s.output && strcmp(s.output, cases[i].output_json) == 0
                                   : s.output == NULL,
              "case %zu: %s", i, s.output);
        CHECK(cases[i].message ? has(s.message, cases[i].message) : s.message == NULL,
              "case %zu: %s", i, s.message);
        CHECK(cases[i].detail ? has(s.detail, cases[i].detail) : s.detail == NULL, "case %zu: %s",
              i, s.detail);
        shot_release(&s);
    }
    bench_close(&b);
}

TEST(exec_sees_its_own_environment_and_no_more) {
    struct bench b;
    struct shot s;
    setenv("CAIRN_TEST_NOT_FOR_STEPS", "x", 1);
    bench_open(&b, (struct local_options){0});
    shot_exec(&b, &s,
              "{\"command\":\"env; echo home=$HOME\",\"env\":{\"MINE\":\"a=b\",\"LANG\":\"xx\"}}",
              PLAN_OUTPUT_TEXT);
    CHECK(s.ok, "%s", s.message);
    static const char *const there[] = {"CAIRN_RUN_ID=run-1\\n",
                                        "CAIRN_STEP_ID=step\\n",
                                        "CAIRN_ATTEMPT=1\\n",
                                        "CAIRN_TENANT_ID=acme",
                                        "CAIRN_ENVIRONMENT_ID=dev\\n",
                                        "CAIRN_PROJECT_ID=shop\\n",
                                        "MINE=a=b\\n",
                                        "CAIRN_IDEMPOTENCY_KEY=run-1/step/1\\n",
                                        "LANG=xx\\n",
                                        "PATH=/"};
    for (size_t i = 0; i < COUNT_OF(there); i++)
        CHECK(has(s.output, there[i]), "%s is not in %s", there[i], s.output);
    CHECK(!has(s.output, "NOT_FOR_STEPS"));
    char line[4096];
    snprintf(line, sizeof line, "CAIRN_WORKSPACE=%s/work/run-1\\n", b.dir);
    CHECK(has(s.output, line), "%s", s.output);
    shot_release(&s);
    /* a PATH of its own is the one that is searched */
    shot_exec(&b, &s, "{\"command\":[\"true\"],\"env\":{\"PATH\":\"/nowhere:.:\"}}",
              PLAN_OUTPUT_TEXT);
    CHECK(!s.ok && strcmp(s.code, "SPAWN_FAILED") == 0);
    shot_release(&s);
    bench_close(&b);
    unsetenv("CAIRN_TEST_NOT_FOR_STEPS");
}

TEST(exec_passes_the_trace_on) {
    struct bench b;
    struct shot s;
    uuid trace = uuid_v4();
    char parent[TRACE_PARENT_LEN];
    char want[256];
    bench_open(&b, (struct local_options){0});
    shot_init(&s, "step", "{\"command\":\"echo $TRACEPARENT\"}");
    s.step.output = PLAN_OUTPUT_TEXT;
    s.attempt.correlation = trace;
    s.attempt.number = 2;
    shot_start(&b, &s);
    shot_wait(&b, &s);
    CHECK(trace_parent(trace, STR("run-1"), STR("step"), 2, parent));
    snprintf(want, sizeof want, "\"%.*s\"", (int)sizeof parent, parent);
    CHECK(s.ok && strcmp(s.output, want) == 0, "%s", s.output);
    shot_release(&s);
    shot_init(&s, "step", "{\"command\":\"env | grep TRACE\",\"env\":{\"TRACEPARENT\":\"mine\"}}");
    s.step.output = PLAN_OUTPUT_TEXT;
    s.attempt.correlation = trace;
    shot_start(&b, &s);
    shot_wait(&b, &s);
    CHECK(s.ok && strcmp(s.output, "\"TRACEPARENT=mine\"") == 0, "%s", s.output);
    shot_release(&s);
    bench_close(&b);
}

TEST(exec_runs_share_a_workspace_and_keep_logs) {
    struct bench b;
    struct shot s;
    bench_open(&b, (struct local_options){0});
    shot_exec(&b, &s, "{\"command\":\"mkdir sub; echo one > sub/file; echo out; echo err >&2\"}",
              PLAN_OUTPUT_TEXT);
    CHECK(s.ok, "%s", s.message);
    shot_release(&s);
    shot_exec(&b, &s, "{\"command\":[\"cat\",\"file\"],\"cwd\":\"./sub\"}", PLAN_OUTPUT_TEXT);
    CHECK(s.ok && strcmp(s.output, "\"one\"") == 0, "%s %s", s.code, s.message);
    shot_release(&s);
    char *out = read_file_at(b.dir, "work/run-1/.cairn/logs/step.1.out");
    char *err = read_file_at(b.dir, "work/run-1/.cairn/logs/step.1.err");
    CHECK(out && strcmp(out, "out\none\n") == 0, "%s", out); /* an attempt's log goes on */
    CHECK(err && strcmp(err, "err\n") == 0, "%s", err);
    free(out);
    free(err);
    /* ids that are no file names */
    shot_init(&s, "../../etc", "{\"command\":[\"echo\",\"hashed\"]}");
    s.attempt.run_id = STR("../evil");
    shot_start(&b, &s);
    shot_wait(&b, &s);
    CHECK(s.ok, "%s", s.message);
    char path[4096];
    struct buf text;
    buf_init_fixed(&text, path, sizeof path - 1);
    local_log_path(str_c(b.dir), STR("../evil"), STR("../../etc"), 1, false, &text);
    path[text.len] = '\0';
    CHECK(has(path, "/work/~") && !has(path, ".."), "%s", path);
    char *log = read_file_at(path, ".");
    free(log);
    log = read_file_at(b.dir, path + strlen(b.dir) + 1);
    CHECK(log && strcmp(log, "hashed\n") == 0);
    free(log);
    shot_release(&s);
    bench_close(&b);
}

TEST(exec_output_has_a_limit) {
    struct bench b;
    struct shot s;
    bench_open(&b, (struct local_options){.output_max = 10, .log_max = 1000});
    static const struct {
        const char *body;
        enum plan_output output;
        const char *code, *output_json, *detail;
    } cases[] = {
        {"{\"command\":[\"echo\",\"0123456789\"]}", PLAN_OUTPUT_TEXT, "", "\"0123456789\"", NULL},
        {"{\"command\":[\"echo\",\"0123456789a\"]}", PLAN_OUTPUT_TEXT, "", "\"0123456789\"",
         "{\"outputTruncated\":true,\"outputBytes\":12}"},
        {"{\"command\":[\"echo\",\"012345678\xc3\xa9\"]}", PLAN_OUTPUT_TEXT, "", "\"012345678\"",
         "\"outputTruncated\":true"}, /* never half a character */
        {"{\"command\":\"printf '\\\\001%.0s' 1 2 3 4 5\"}", PLAN_OUTPUT_TEXT, "",
         "\"\\u0001\\u0001\\u0001\"", "\"outputTruncated\":true"},
        {"{\"command\":[\"echo\",\"[123456,1]\"]}", PLAN_OUTPUT_JSON, "", "[123456,1]", NULL},
        {"{\"command\":[\"echo\",\"[123456,12]\"]}", PLAN_OUTPUT_JSON, "OUTPUT_TOO_LARGE", NULL,
         "\"outputBytes\":12,\"outputMax\":10"},
        {"{\"command\":\"seq 1 300000\"}", PLAN_OUTPUT_TEXT, "", "\"1\\n2\\n3\\n4\\n5\\n\"",
         "\"outputBytes\":1988895"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        shot_exec(&b, &s, cases[i].body, cases[i].output);
        CHECK(strcmp(s.code, cases[i].code) == 0, "case %zu: %s %s", i, s.code, s.message);
        CHECK(cases[i].output_json ? strcmp(s.output, cases[i].output_json) == 0 : !s.output,
              "case %zu: %s", i, s.output);
        CHECK(cases[i].detail ? has(s.detail, cases[i].detail) : !s.detail, "case %zu: %s", i,
              s.detail);
        shot_release(&s);
    }
    char *log = read_file_at(b.dir, "work/run-1/.cairn/logs/step.1.out");
    CHECK(log && strlen(log) < 1100 && has(log, "[cairn: the log is cut here, at 1000 bytes]"));
    free(log);
    /* the end of stderr, cut between characters and cleaned */
    shot_exec(&b, &s,
              "{\"command\":\"for i in $(seq 1 999); do printf '\xc3\xa9\xc3\xa9\xc3\xa9' >&2; "
              "done; printf 'x\\\\377end' >&2; exit 1\"}",
              PLAN_OUTPUT_TEXT);
    CHECK(has(s.detail, "\"stderrTail\":\"\xc3\xa9") && has(s.detail, "x\xef\xbf\xbd"
                                                                      "end\"}"),
          "%s", s.detail);
    CHECK(strlen(s.detail) < LOCAL_STDERR_TAIL_MAX + 100);
    size_t bad;
    CHECK(str_utf8(str_c(s.detail), &bad));
    shot_release(&s);
    bench_close(&b);
}

TEST(exec_two_hundred_at_once_all_answer) {
    static struct shot shots[200];
    static char names[200][32];
    static char wants[200][32];
    for (int round = 0; round < 3; round++) {
        struct bench b; /* all at once; few at a time; and without pidfds */
        bench_open(&b, (struct local_options){.processes_max = round == 1 ? 7 : 0,
                                              .no_pidfd = round == 2});
        for (int i = 0; i < 200; i++) {
            snprintf(names[i], sizeof names[i], "step-%d", i);
            shot_init(&shots[i], names[i],
                      "{\"command\":\"echo $CAIRN_STEP_ID; echo err >&2; exec sleep 0.01\"}");
            shot_start(&b, &shots[i]);
        }
        uv_run(&b.loop, UV_RUN_DEFAULT); /* ends by itself when all are answered */
        for (int i = 0; i < 200; i++) {
            snprintf(wants[i], sizeof wants[i], "\"step-%d\"", i);
            CHECK(shots[i].answers == 1 && shots[i].ok, "step %d: %d answers, %s", i,
                  shots[i].answers, shots[i].message);
            CHECK(strcmp(shots[i].output, wants[i]) == 0, "%s", shots[i].output);
            shot_release(&shots[i]);
        }
        bench_close(&b);
    }
}

TEST(exec_types_of_other_executors_are_refused) {
    struct bench b;
    struct shot s;
    bench_open(&b, (struct local_options){0});
    shot_init(&s, "nap", "{}");
    s.step.type = PLAN_SLEEP;
    shot_start(&b, &s);
    shot_wait(&b, &s);
    CHECK(!s.ok && strcmp(s.code, "STEP_TYPE_UNSUPPORTED") == 0 && has(s.message, "sleep"));
    shot_release(&s);
    bench_close(&b);
}
