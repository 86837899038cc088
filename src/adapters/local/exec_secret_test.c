/* Secrets in exec steps: they reach the process, and nothing else. */
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

#include "adapters/local/bench_test.h"
#include "base/os.h"
#include "test.h"

static const char marker[] = "M4rker/s3cr\"et+value";
static int found, looked; /* by search_entry(), which nftw() gives no context */

static int search_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    UNUSED(st);
    UNUSED(ftw);
    if (type != FTW_F) return 0;
    looked++;
    char *text = read_file_at("", path);
    if (!text || has(text, "M4rker") || has(text, "s3cr")) found++;
    free(text);
    return 0;
}

static void put_secret(const char *dir, const char *environment, const char *value) {
    char path[1024];
    struct error err;
    snprintf(path, sizeof path, "%s/%s", dir, environment);
    CHECK(dir_make(str_c(path), &err) == ST_OK);
    snprintf(path, sizeof path, "%s/%s/TOKEN", dir, environment);
    CHECK(file_replace(str_c(path), str_c(value), &err) == ST_OK);
}

/* WE-1N-3: the marker is in no file that was written, and in no answer. */
TEST(secret_value_is_stored_nowhere) {
    static const struct {
        const char *command;
        enum plan_output output;
        const char *want;
    } cases[] = {
        {"printf %s \\\"$TOKEN\\\"", PLAN_OUTPUT_TEXT, "\"***\""},
        {"printf %s \\\"$TOKEN\\\" | cut -c1-7 | tr -d '\\\\n'; sleep 0.1; "
         "printf %s \\\"$TOKEN\\\" | cut -c8-",
         PLAN_OUTPUT_TEXT, "\"***\""}, /* in two pieces */
        {"printf '{\\\"a\\\":\\\"%s\\\"}' 'M4rker\\\\/s3cr\\\\\\\"et+value'", PLAN_OUTPUT_JSON,
         "{\"a\":\"***\"}"}, /* escaped as JSON */
        {"echo \\\"$TOKEN\\\" >&2; exit 9", PLAN_OUTPUT_TEXT, NULL},
        {"cat; echo \\\"$TOKEN\\\" >&2; kill -9 $$", PLAN_OUTPUT_TEXT, NULL},
        {"echo not json \\\"$TOKEN\\\"", PLAN_OUTPUT_JSON, NULL},
    };
    const char *secrets = test_dir();
    put_secret(secrets, "dev", marker);
    struct bench b;
    bench_open(&b, (struct local_options){.secrets_dir = str_c(secrets)});
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char body[1024];
        snprintf(body, sizeof body,
                 "{\"command\":\"%s\",\"env\":{\"TOKEN\":{\"secret\":\"TOKEN\"}},"
                 "\"stdin\":{\"secret\":\"TOKEN\"}}",
                 cases[i].command);
        struct shot s;
        shot_exec(&b, &s, body, cases[i].output);
        CHECK(s.ok == (cases[i].want != NULL), "case %zu: %s %s", i, s.code, s.message);
        CHECK(!cases[i].want || strcmp(s.output, cases[i].want) == 0, "case %zu: %s", i, s.output);
        CHECK(!has(s.output, "s3cr") && !has(s.message, "s3cr") && !has(s.detail, "s3cr"));
        CHECK(s.ok || has(s.detail, "\"stderrTail\":\"***\\n\"") ||
                  strcmp(s.code, "OUTPUT_NOT_JSON") == 0,
              "case %zu: %s", i, s.detail);
        shot_release(&s);
    }
    found = looked = 0;
    CHECK(nftw(b.dir, search_entry, 16, FTW_PHYS) == 0);
    CHECK(found == 0 && looked == 2, "%d of %d files", found, looked);
    bench_close(&b);
}

/* WE-2.1.3-4: one plan, two environments, each with its own value. */
TEST(secret_values_differ_between_environments) {
    const char *secrets = test_dir();
    put_secret(secrets, "dev", "the value of dev\n");
    put_secret(secrets, "prod", "what prod has\n");
    struct bench b;
    bench_open(&b, (struct local_options){.secrets_dir = str_c(secrets)});
    static const struct {
        const char *environment, *want;
    } cases[] = {{"dev", "\"16\""}, {"prod", "\"13\""}, {"staging", NULL}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct shot s;
        shot_init(&s, "s",
                  "{\"command\":\"echo ${#TOKEN}\",\"env\":{\"TOKEN\":{\"secret\":\"TOKEN\"}}}");
        s.attempt.environment_id = str_c(cases[i].environment);
        shot_start(&b, &s);
        shot_wait(&b, &s);
        CHECK(s.ok == (cases[i].want != NULL), "case %zu: %s", i, s.message);
        if (cases[i].want)
            CHECK(strcmp(s.output, cases[i].want) == 0, "case %zu: %s", i, s.output);
        else
            CHECK(strcmp(s.code, "SECRET_NOT_FOUND") == 0, "%s", s.code);
        shot_release(&s);
    }
    bench_close(&b);
}

/* Whichever allocation fails: one answer, no secret in it, nothing left behind. */
TEST(secret_steps_survive_an_empty_machine) {
    const char *secrets = test_dir();
    put_secret(secrets, "dev", marker);
    struct bench b;
    bench_open(&b, (struct local_options){.secrets_dir = str_c(secrets)});
    bool whole = false;
    for (int64_t fail_at = 0; !whole; fail_at++) {
        struct shot s;
        CHECK(fail_at < 200, "it never ran through");
        shot_init(&s, "s",
                  "{\"command\":\"echo \\\"$TOKEN\\\"; echo \\\"[1]\\\" >&2\","
                  "\"env\":{\"TOKEN\":{\"secret\":\"TOKEN\"}}}");
        s.attempt.step = &s.step;
        s.attempt.context = &s;
        mem_fail_at(fail_at);
        executor_start(b.ex, &s.attempt);
        if (s.answers == 0) shot_wait(&b, &s);
        whole = mem_calls() < fail_at;
        mem_fail_at(-1);
        CHECK(s.answers == 1 && (s.ok || s.code[0]), "%lld", (long long)fail_at);
        CHECK(!whole || s.ok, "%s %s", s.code, s.message);
        CHECK(!has(s.output, "s3cr") && !has(s.message, "s3cr") && !has(s.detail, "s3cr"));
        shot_release(&s);
    }
    found = looked = 0;
    CHECK(nftw(b.dir, search_entry, 16, FTW_PHYS) == 0);
    CHECK(found == 0, "%d of %d files", found, looked);
    bench_close(&b);
}
