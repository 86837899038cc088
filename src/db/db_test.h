/* db/db_test.h: the words that the tests of db/ are written in. For *_test.c, which includes test.h
 * first. */
#pragma once

#include <stdio.h>
#include <string.h>

#include "db/db.h"

static struct error err;

/* What the call should have given, and what it said. */
#define OK(call) db_test_expect(__FILE__, __LINE__, #call, ST_OK, (call))
#define FAILS(want, call) db_test_expect(__FILE__, __LINE__, #call, (want), (call))
static inline void db_test_expect(const char *file, int line, const char *call, status want,
                                  status got) {
    test_checks++;
    if (got != want)
        test_fail(file, line, call, "%s, not %s: %s", status_name(got), status_name(want), err.msg);
    if (want != ST_OK && err.code != want) test_fail(file, line, call, "the error was not filled");
}

static inline struct db *open_db(str url, enum db_mode mode) {
    struct db *db = NULL;
    OK(db_open(url, mode, &db, &err));
    return db;
}

static inline struct db_stmt *prepare(struct db *db, const char *sql) {
    struct db_stmt *st = NULL;
    OK(db_prepare(db, sql, &st, &err));
    return st;
}

static inline bool step(struct db_stmt *st) {
    bool row = false;
    OK(db_step(st, &row, &err));
    return row;
}

static inline int64_t run(struct db_stmt *st) {
    int64_t changed = -1;
    OK(db_run(st, &changed, &err));
    return changed;
}

/* The only column of the only row. */
static inline int64_t one_int(struct db *db, const char *sql) {
    struct db_stmt *st = prepare(db, sql);
    CHECK(step(st), "%s", sql);
    int64_t value = db_int(st, 0);
    db_reset(st);
    return value;
}
