/* tests/test.h: a test registers itself, runs under cmocka, and says what it saw when a check
 * fails.
 *
 *     TEST(duration_parse_says_what_is_wrong) { CHECK(x == 1, "case %zu", i); }
 *
 * A store test runs once for each database: TEST_DB(name) { ... url ... } gets a fresh, empty store
 * each time, as `url`; it is skipped, with the reason, when that server is not there. */
#pragma once

#include "base/base.h"
#include "base/str.h"

typedef void (*test_func)(void);
typedef void (*test_db_func)(str url);
void test_register(const char *name, test_func func);
void test_register_db(const char *name, test_db_func func);

#define TEST(name)                                                                                 \
    static void test_##name(void);                                                                 \
    __attribute__((constructor)) static void test_register_##name(void) {                          \
        test_register(#name, test_##name);                                                         \
    }                                                                                              \
    static void test_##name(void)

#define TEST_DB(name)                                                                              \
    static void test_##name(str url);                                                              \
    __attribute__((constructor)) static void test_register_##name(void) {                          \
        test_register_db(#name, test_##name);                                                      \
    }                                                                                              \
    static void test_##name(str url)

/* CHECK(cond) or CHECK(cond, "format", ...). Fails the test, with the message. */
#define CHECK(...) CHECK_PICK(__VA_ARGS__, "")
#define CHECK_PICK(cond, ...)                                                                      \
    ((cond) ? (void)test_checks++ : test_fail(__FILE__, __LINE__, #cond, __VA_ARGS__))
extern _Thread_local unsigned test_checks; /* that held; a test without any fails */
/* For a check that is a function of its own, which also counts: test_checks++. */
_Noreturn void test_fail(const char *file, int line, const char *cond, const char *fmt, ...);
/* For what is missing on this machine. With CI=true the reason must be in tests/allowed-skips. */
_Noreturn void test_skip(const char *why);

/* A fresh folder for this test, removed when it ends. No trailing slash. */
const char *test_dir(void);
/* A fresh, empty database of the kind named "sqlite" or "postgres", dropped when the test ends;
 * STR_NONE without a server. */
str test_db_url(const char *kind);
/* The same of PostgreSQL, for a test that is about it alone: skipped without a server. */
str test_postgres(void);
