#include "base/error.h"

#include "test.h"

TEST(error_set_fills_and_returns) {
    struct error err;
    memset(&err, 'x', sizeof err);
    CHECK(error_set(&err, ST_NOT_FOUND, "no run \"%s\"", "r1") == ST_NOT_FOUND);
    CHECK(err.code == ST_NOT_FOUND && strcmp(err.msg, "no run \"r1\"") == 0, "%s", err.msg);
    CHECK(err.reason == REASON_NONE && err.where[0] == '\0');
    CHECK(error_at(&err, REASON_FIELD_MISSING, "/runId", "runId is missing") == ST_INVALID);
    CHECK(err.reason == REASON_FIELD_MISSING && strcmp(err.where, "/runId") == 0);
    CHECK(error_at(&err, REASON_USAGE, NULL, "y") == ST_INVALID && err.where[0] == '\0');
}

TEST(error_wrap_keeps_code_reason_and_where) {
    struct error err;
    (void)error_at(&err, REASON_RUN_MOVED, "/version", "version is 4");
    CHECK(error_wrap(&err, "load run \"%s\"", "r1") == ST_CONFLICT);
    CHECK(strcmp(err.msg, "load run \"r1\": version is 4") == 0, "%s", err.msg);
    CHECK(err.reason == REASON_RUN_MOVED && strcmp(err.where, "/version") == 0);
}

TEST(error_arguments_may_point_into_the_error) {
    struct error err;
    (void)error_at(&err, REASON_NOT_READY, "db", "database is locked");
    (void)error_as(&err, ST_LIMIT, REASON_NOT_READY, err.where, "again: %s", err.msg);
    CHECK(strcmp(err.msg, "again: database is locked") == 0 && strcmp(err.where, "db") == 0);
}

TEST(error_cuts_between_characters) {
    char text[ERROR_MSG_MAX + 8];
    struct error err;
    for (size_t lead = 0; lead < 4;
         lead++) { /* every way for a four-byte character to meet the end */
        memset(text, 'a', sizeof text);
        for (size_t i = ERROR_MSG_MAX - 1 - 4 + lead; i + 4 < sizeof text; i += 4) {
            memcpy(text + i, "\xF0\x9F\x8C\x84", 4);
        }
        text[sizeof text - 1] = '\0';
        (void)error_set(&err, ST_LIMIT, "%s", text);
        size_t bad = 0;
        CHECK(str_utf8(str_c(err.msg), &bad), "lead %zu: bad byte at %zu", lead, bad);
        size_t want = lead == 0 ? ERROR_MSG_MAX - 1 : ERROR_MSG_MAX - 5 + lead;
        CHECK(strlen(err.msg) == want, "lead %zu: %zu bytes", lead, strlen(err.msg));
        (void)error_wrap(&err, "%s", text);
        CHECK(str_utf8(str_c(err.msg), &bad));
    }
    (void)error_at(&err, REASON_LIMIT, text, "msg");
    CHECK(strlen(err.where) == ERROR_WHERE_MAX - 1);
}

TEST(error_every_status_has_a_name) {
    static const char *const names[] = {"ok",    "invalid", "not found", "conflict",
                                        "limit", "retry",   "corrupt"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        CHECK(strcmp(status_name((status)i), names[i]) == 0, "status %zu", i);
    }
}
