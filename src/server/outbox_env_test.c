#include "server/outbox_env.h"

#include <stdlib.h>

#include "test.h"

static const char *const names[] = {"CAIRN_EFFECT_RETRIES", "CAIRN_EFFECT_TIMEOUT",
                                    "CAIRN_EFFECT_BATCHES", "CAIRN_SMTP_PLAIN",
                                    "CAIRN_ALERT_URLS",     "CAIRN_SMTP_URL"};

static status read_env(const char *name, const char *value, struct arena *arena,
                       struct host_options *out, struct error *err) {
    *out = (struct host_options){0};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        unsetenv(names[i]);
    if (name) setenv(name, value, 1);
    status st = outbox_env(out, arena, err);
    if (name) unsetenv(name);
    return st;
}

TEST(outbox_env_takes_what_is_documented) {
    struct arena arena;
    struct host_options o;
    struct error err = {0};
    arena_init(&arena, 4096, SIZE_MAX);
    CHECK(read_env(NULL, NULL, &arena, &o, &err) == ST_OK, "%s", err.msg);
    CHECK(!o.effect_retries && !o.effect_alerts && o.effect_batches == 0 &&
          !o.deliver.smtp_url.ptr);
    CHECK(read_env("CAIRN_EFFECT_RETRIES", "API_CALL=5x1000,FAX=0x0", &arena, &o, &err) == ST_OK);
    CHECK(str_eq(o.effect_retries[0].type, STR("API_CALL")) &&
          o.effect_retries[0].max_retries == 5 && o.effect_retries[0].base_ms == 1000);
    CHECK(str_eq(o.effect_retries[1].type, STR("FAX")) && o.effect_retries[1].max_retries == 0);
    CHECK(!o.effect_retries[2].type.ptr, "the list ends");
    CHECK(read_env("CAIRN_ALERT_URLS", " https://a.example/x  http://b.example ", &arena, &o,
                   &err) == ST_OK,
          "%s", err.msg);
    CHECK(o.effect_alerts->count == 2 && str_eq(o.effect_alerts->urls[1], STR("http://b.example")));
    CHECK(read_env("CAIRN_SMTP_PLAIN", "1", &arena, &o, &err) == ST_OK && o.deliver.smtp_plain);
    CHECK(read_env("CAIRN_EFFECT_TIMEOUT", "5000", &arena, &o, &err) == ST_OK &&
          o.deliver.timeout_ms == 5000);
    arena_release(&arena);
}

TEST(outbox_env_refuses_the_rest) {
    static const char *const bad[][2] = {{"CAIRN_EFFECT_RETRIES", "API_CALL"},
                                         {"CAIRN_EFFECT_RETRIES", "API_CALL=5"},
                                         {"CAIRN_EFFECT_RETRIES", "=5x1"},
                                         {"CAIRN_EFFECT_RETRIES", "A=5x"},
                                         {"CAIRN_EFFECT_RETRIES", "A=1001x1"},
                                         {"CAIRN_EFFECT_RETRIES", "A=1x86400001"},
                                         {"CAIRN_EFFECT_RETRIES", "A=1x1,"},
                                         {"CAIRN_EFFECT_RETRIES", "A=-1x1"},
                                         {"CAIRN_EFFECT_TIMEOUT", "0"},
                                         {"CAIRN_EFFECT_TIMEOUT", "30s"},
                                         {"CAIRN_EFFECT_BATCHES", "65"},
                                         {"CAIRN_SMTP_PLAIN", "yes"},
                                         {"CAIRN_ALERT_URLS", "ftp://a.example/"},
                                         {"CAIRN_ALERT_URLS", "https://u:p@a.example/"},
                                         {"CAIRN_ALERT_URLS", "hello"}};
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct host_options o;
        struct error err = {0};
        CHECK(read_env(bad[i][0], bad[i][1], &arena, &o, &err) == ST_INVALID, "%s=%s", bad[i][0],
              bad[i][1]);
        CHECK(err.reason == REASON_USAGE && strstr(err.msg, bad[i][0]), "%s", err.msg);
        CHECK(!strstr(err.msg, "u:p@"), "a password is shown: %s", err.msg);
    }
    arena_release(&arena);
}
