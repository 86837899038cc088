/* tests/conformance/canon_helper.h: what the tests of CANON, of the identifiers and of the ledger's
 * care share.
 *
 * A struct canon is an open ledger with an arena and a clock that the test sets. Events are made
 * from a few words; what is not said is tenant "acme", project "shop", environment "dev", plan
 * "orders", version "7". Functions check what they do and fail the test, so call them on the main
 * thread only. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"
#include "ledger/ledger.h"
#include "test.h"

struct canon {
    str url;
    struct ledger *ledger;
    struct arena arena;
    struct ledger_options options;
    int64_t now_us; /* the store's clock */
    struct db
        *faulty; /* the wrapper of the connection in use, if opened with canon_open_faulty() */
    bool no_triggers; /* canon_drop_triggers() was called */
};

/* 2026-01-04T12:00:00Z */
#define CANON_EPOCH_US INT64_C(1767528000000000)

void canon_open(struct canon *c, str url);
void canon_open_as(struct canon *c, str url, enum ledger_validation validation);
void canon_reopen(struct canon *c); /* as after a crash: only what is stored is left */
void canon_open_reader(struct canon *c, str url); /* sees what is stored; the ledger must exist */
void canon_close(struct canon *c);
/* Opens on a connection whose n-th call from canon_fail_at() on fails, before or after it did its
 * work (db.h). A connection made later, after that failure, works again. */
void canon_open_faulty(struct canon *c, str url, enum ledger_validation validation);
void canon_fail_at(struct canon *c, int64_t n, bool after);

/* ---- text that stays: made with printf's words, kept until the program ends ---- */

const char *canon_fmt(const char *fmt, ...) PRINTF_LIKE(1, 2);
str canon_uuid_text(uuid u); /* kept likewise */

/* ---- events ---- */

/* A valid event of `type` in `run`; `step` NULL for a run-level one. */
struct append_item canon_event(const char *type, const char *run, const char *step,
                               int64_t attempt);
/* The same with a payload, which must be compact JSON. */
struct append_item canon_event_with(const char *type, const char *run, const char *step,
                                    int64_t attempt, const char *payload);
/* Derives the key again after an id was changed by hand. */
void canon_rekey(struct append_item *item);
/* A fact of the run: see ledger_fact(). An effect with data {} gets what it needs. */
struct append_item canon_fact(enum event_type type, const char *run, str subject,
                              int64_t occurrence, const char *data);
/* The run's ids and nothing else, as ledger_fact() wants them. */
struct event canon_run_ids(const char *run);

/* ---- appending ---- */

/* One item, on a ledger that may fail. */
status canon_append(struct canon *c, struct append_item *item, struct append_result *res,
                    struct error *err);
/* One item. The append itself must work; the result may be anything. */
struct append_result canon_try(struct canon *c, struct append_item item);
/* One item that must be accepted as new. */
struct append_result canon_put(struct canon *c, struct append_item item);
/* One item that must be refused, with this reason. */
void canon_refused(struct canon *c, struct append_item item, status code, const char *reason);
/* Several items in one commit. */
void canon_batch(struct canon *c, struct append_item *items, size_t count, bool atomic,
                 struct append_result *results);
/* RunStarted, then `steps` steps started and completed, then RunCompleted: 2 + 2 * steps events. */
void canon_finished_run(struct canon *c, const char *run, int steps);
/* `count` events of random, mostly legal lives of `runs` runs named `prefix`0, `prefix`1, ...; the
 * same seed, the same events. */
void canon_random_workload(struct canon *c, const char *prefix, int runs, int count, uint64_t seed);
uint64_t canon_random(uint64_t *state);
/* CAIRN_TEST_SCALE percent of n, but not fewer than `least`. */
int canon_scaled(int n, int least);

/* ---- asking ---- */

/* The first column of the first row. The SQL may have braces (db.h); pass a literal or canon_fmt().
 */
int64_t canon_int(struct canon *c, const char *sql);
str canon_text(struct canon *c, const char *sql); /* STR_NONE for NULL or no row */
/* Rows of one text column, joined by newlines. */
str canon_lines(struct canon *c, const char *sql);
/* Runs a statement as any user of the database could; its status is the answer. */
status canon_sql(struct canon *c, const char *sql);
void canon_must_sql(struct canon *c, const char *sql);
/* How the database would answer `sql`, as text. */
str canon_plan(struct canon *c, const char *sql);
/* The text parsed; its members by name. */
yyjson_val *canon_json(struct canon *c, str text);
str canon_member(yyjson_val *obj, const char *name); /* must be a string */
/* Every row of these tables, in order, as text. */
str canon_dump(struct canon *c, const char *const *tables, size_t count);
str canon_state_dump(struct canon *c); /* of the derived ones */
str canon_truth_dump(struct canon *c); /* of the immutable ones */
struct run_info canon_run(struct canon *c, const char *run);

struct verify_report canon_verify(struct canon *c, bool state);
void canon_clean(struct canon *c); /* verify --state finds nothing */
/* Lets raw SQL change the truth, as an intruder with the right to drop triggers would. */
void canon_drop_triggers(struct canon *c);

bool canon_str_is(str s, const char *want);
