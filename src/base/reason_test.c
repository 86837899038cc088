#include "base/error.h"

#include "test.h"

static bool is_http_status(int code) { return code >= 400 && code <= 599; }

/* Names are what programs compare: SCREAMING_SNAKE, unique, and not too long for a log line. */
TEST(reason_every_row_has_a_name_and_a_sentence) {
    for (int i = REASON_NONE + 1; i < REASON_COUNT; i++) {
        const struct reason_row *row = reason_row((enum reason)i);
        size_t n = strspn(row->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        CHECK(n > 0 && n < 48 && row->name[n] == '\0' && row->name[0] >= 'A', "%s", row->name);
        CHECK(reason_find(str_c(row->name)) == (enum reason)i, "%s stands twice", row->name);
        size_t len = strlen(row->sentence);
        CHECK(len > 4 && row->sentence[len - 1] != '.', "%s: %s", row->name, row->sentence);
        len = strlen(row->advice);
        CHECK(len == 0 || row->advice[len - 1] != '.', "%s: %s", row->name, row->advice);
    }
}

/* A failure has an HTTP status and an exit code; a code of runs has neither. */
TEST(reason_every_row_has_numbers_that_go_together) {
    static const int exit_codes[STATUS_COUNT] = {
        [ST_INVALID] = 1, [ST_NOT_FOUND] = 3, [ST_CONFLICT] = 4,
        [ST_LIMIT] = 5,   [ST_RETRY] = 6,     [ST_CORRUPT] = 8};
    for (int i = REASON_NONE + 1; i < REASON_COUNT; i++) {
        const struct reason_row *row = reason_row((enum reason)i);
        int exit_code = row->exit_code;
        if (row->st == ST_OK) {
            CHECK(row->http_status == 0 && exit_code == 0 && !row->retryable, "%s", row->name);
            continue;
        }
        CHECK(is_http_status(row->http_status), "%s: %d", row->name, row->http_status);
        bool denied = row->http_status == 401 || i == REASON_FORBIDDEN;
        int want = i == REASON_USAGE      ? 2
                   : i == REASON_INTERNAL ? 70
                   : denied               ? 7
                                          : exit_codes[row->st];
        CHECK(exit_code == want, "%s: %d, not %d", row->name, exit_code, want);
        bool again = row->http_status == 429 || row->http_status == 503 ||
                     i == REASON_IDEMPOTENCY_KEY_IN_USE;
        CHECK(row->retryable == again, "%s", row->name);
        CHECK(row->st != ST_RETRY || row->retryable, "%s", row->name);
    }
}

TEST(reason_numbers_follow_the_status_of_the_failure) {
    static const struct {
        enum reason reason;
        status st;
        int http_status, exit_code;
        bool retryable;
    } cases[] = {
        {REASON_NONE, ST_INVALID, 400, 1, false},
        {REASON_NONE, ST_NOT_FOUND, 404, 3, false},
        {REASON_NONE, ST_CONFLICT, 409, 4, false},
        {REASON_NONE, ST_LIMIT, 422, 5, false},
        {REASON_NONE, ST_RETRY, 503, 6, true},
        {REASON_NONE, ST_CORRUPT, 500, 8, false},
        {REASON_NONE, (status)99, 500, 70, false},
        {REASON_UNAUTHENTICATED, ST_INVALID, 401, 7, false},
        {REASON_JWT_EXPIRED, ST_INVALID, 401, 7, false},
        {REASON_QUEUE_FULL, ST_LIMIT, 429, 5, true},
        {REASON_JSON_DEPTH, ST_LIMIT, 400, 5, false},
        {REASON_JSON_DEPTH, ST_INVALID, 400, 1, false}, /* as a server's answer tells it */
        {REASON_PLAN_FETCH_FAILED, ST_INVALID, 422, 1, false},
        {REASON_PLAN_FETCH_FAILED, ST_RETRY, 503, 6, true},
        {REASON_LEASE_LOST, ST_CONFLICT, 409, 4, false},
        {REASON_LEASE_LOST, ST_RETRY, 503, 6, true},
        {REASON_TEMPLATE_FAILED, ST_LIMIT, 422, 5, false},
        {REASON_IDEMPOTENCY_KEY_IN_USE, ST_CONFLICT, 409, 4, true},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int http_status = reason_http_status(cases[i].reason, cases[i].st);
        int exit_code = reason_exit_code(cases[i].reason, cases[i].st);
        CHECK(http_status == cases[i].http_status, "case %zu: %d", i, http_status);
        CHECK(exit_code == cases[i].exit_code, "case %zu: %d", i, exit_code);
        CHECK(reason_retryable(cases[i].reason, cases[i].st) == cases[i].retryable, "case %zu", i);
    }
}

TEST(reason_find_knows_whole_names_only) {
    CHECK(reason_find(STR("RUN_MOVED")) == REASON_RUN_MOVED);
    CHECK(reason_find(STR("run_moved")) == REASON_NONE);
    CHECK(reason_find(STR("RUN_MOVE")) == REASON_NONE);
    CHECK(reason_find(STR("RUN_MOVED ")) == REASON_NONE);
    CHECK(reason_find(STR("")) == REASON_NONE && reason_find(STR_NONE) == REASON_NONE);
}

TEST(error_name_is_the_reason_or_the_general_one) {
    struct error err;
    (void)error_at(&err, REASON_RUN_MOVED, "", "moved");
    CHECK(strcmp(error_name(&err), "RUN_MOVED") == 0 && err.code == ST_CONFLICT);
    (void)error_as(&err, ST_RETRY, REASON_LEASE_LOST, "", "lost");
    CHECK(strcmp(error_name(&err), "LEASE_LOST") == 0 && err.code == ST_RETRY);
    (void)error_set(&err, ST_RETRY, "later");
    CHECK(strcmp(error_name(&err), "TRY_AGAIN") == 0);
}
