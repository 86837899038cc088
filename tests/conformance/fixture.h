/* tests/conformance/fixture.h: an open ledger for a test, and short ways to fill it and to ask it.
 *
 * A struct fixture is a ledger with an arena and a clock that the test sets. Events are made from a
 * few words; what is not said is tenant "acme", project "shop", environment "prod", plan "orders",
 * version "7". An item is an event as the ledger takes it, with what only the product's own writers
 * may add to it (ledger_fact()). The functions check what they do and fail the test, so call them
 * on the main thread only. The store's part is in fixture.c, the questions are in fixture_ask.c. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"
#include "ledger/ledger.h"
#include "test.h"

struct fixture {
    str url;
    struct ledger *ledger;
    struct arena arena;
    struct ledger_options options;
    int64_t now_us;    /* the store's clock */
    struct db *faulty; /* wraps the connection in use, after fixture_open_faulty() */
    bool no_triggers;  /* fixture_drop_triggers() was called */
};

/* 2026-02-16T08:00:00Z, where the store's clock starts */
#define FIXTURE_NOW_US INT64_C(1771228800000000)
#define CONTRACT_FILE "contracts/run-events/RunEvents.v2.0.1.md"
#define VECTORS_FILE "contracts/run-events/RunEvents.v2.0.1.idempotency_vectors.json"

void fixture_open(struct fixture *c, str url);
void fixture_open_as(struct fixture *c, str url, enum ledger_validation validation);
/* As after a crash: only what is stored is left. */
void fixture_reopen(struct fixture *c);
void fixture_reopen_as(struct fixture *c, enum ledger_validation validation);
void fixture_open_reader(struct fixture *c,
                         str url); /* sees what is stored; the ledger must exist */
void fixture_close(struct fixture *c);
/* Another fresh, empty store of the kind that `url` is. */
str fixture_other_url(str url);
/* Opens on a connection whose n-th call from fixture_fail_at() on fails, before or after it did its
 * work (db.h). A connection made later, after that failure, works again. */
void fixture_open_faulty(struct fixture *c, str url, enum ledger_validation validation);
void fixture_fail_at(struct fixture *c, int64_t n, bool after);

/* ---- text that stays: made with printf's words, kept until the program ends ---- */

const char *fixture_fmt(const char *fmt, ...) PRINTF_LIKE(1, 2);
str fixture_uuid_text(uuid u); /* kept likewise */

/* ---- events ---- */

/* A valid event of `type` in `run`, with a new eventId; `step` NULL for a run-level one. The
 * payload must be compact JSON. */
struct event fixture_event(const char *type, const char *run, const char *step, int64_t attempt);
struct event fixture_event_with(const char *type, const char *run, const char *step,
                                int64_t attempt, const char *payload);
/* Its JSON with one member replaced by the JSON text `raw`, or added, or (raw NULL) left out. */
str fixture_edit(struct fixture *c, const struct event *e, const char *member, const char *raw);
/* The same events as items. */
struct append_item fixture_item(const char *type, const char *run, const char *step,
                                int64_t attempt);
struct append_item fixture_item_with(const char *type, const char *run, const char *step,
                                     int64_t attempt, const char *payload);
/* Derives the key again after an id was changed by hand. */
void fixture_rekey(struct append_item *item);
/* A fact of the run: see ledger_fact(). An effect with data {} gets what it needs. */
struct append_item fixture_fact(enum event_type type, const char *run, str subject,
                                int64_t occurrence, const char *data);
/* The run's ids and nothing else, as ledger_fact() wants them. */
struct event fixture_run_ids(const char *run);

/* ---- appending ---- */

/* One event. The append itself must work; the result may be a refusal. */
struct append_result fixture_append_event(struct fixture *c, struct event e);
struct append_result fixture_put_event(struct fixture *c, struct event e); /* stored as new */
struct append_result fixture_again(struct fixture *c, struct event e);     /* a duplicate */
/* Parses and appends, as an import does. ST_OK: stored or a duplicate; else *err says why. */
status fixture_put_json(struct fixture *c, str json, struct error *err);
/* "RunStarted,StepStarted a,StepFailed a,StepStarted a 2": each must be stored as new. */
void fixture_program(struct fixture *c, const char *run, const char *program);
/* One item, on a ledger that may fail. */
status fixture_append(struct fixture *c, struct append_item *item, struct append_result *res,
                      struct error *err);
/* One item. The append itself must work; the result may be anything. */
struct append_result fixture_try(struct fixture *c, struct append_item item);
/* One item that must be accepted as new. */
struct append_result fixture_put(struct fixture *c, struct append_item item);
/* One item that must be refused, with this reason. */
void fixture_refused(struct fixture *c, struct append_item item, status code, const char *reason);
/* Several items in one commit. */
void fixture_batch(struct fixture *c, struct append_item *items, size_t count, bool atomic,
                   struct append_result *results);
/* RunStarted, then `steps` steps started and completed, then RunCompleted: 2 + 2 * steps events. */
void fixture_finished_run(struct fixture *c, const char *run, int steps);
/* `count` events of random, mostly legal lives of `runs` runs named `prefix`0, `prefix`1, ...; the
 * same seed, the same events. */
void fixture_random_workload(struct fixture *c, const char *prefix, int runs, int count,
                             uint64_t seed);
uint64_t fixture_random(uint64_t *state);
/* CAIRN_TEST_SCALE percent of n, but not fewer than `least`. */
int fixture_scaled(int n, int least);

/* ---- asking ---- */

/* The first column of the first row. The SQL may have braces (db.h); pass a literal or
 * fixture_fmt().
 */
int64_t fixture_int(struct fixture *c, const char *sql);
str fixture_text(struct fixture *c, const char *sql); /* STR_NONE for NULL or no row */
/* Rows of one text column, joined by newlines. */
str fixture_lines(struct fixture *c, const char *sql);
/* Runs a statement as any user of the database could; its status is the answer. */
status fixture_sql(struct fixture *c, const char *sql);
void fixture_must_sql(struct fixture *c, const char *sql);
/* How the database would answer `sql`, as text. */
str fixture_plan(struct fixture *c, const char *sql);
/* The text parsed; its members by name. */
yyjson_val *fixture_json(struct fixture *c, str text);
str fixture_member(yyjson_val *obj, const char *name); /* must be a string */
/* Every row of these tables, in order, as text. */
str fixture_dump(struct fixture *c, const char *const *tables, size_t count);
str fixture_state_dump(struct fixture *c); /* of the derived ones */
str fixture_truth_dump(struct fixture *c); /* of the immutable ones */
struct run_info fixture_run(struct fixture *c, const char *run);
struct run fixture_replay(struct fixture *c, const char *run);
struct event_page fixture_read(struct fixture *c, const char *run); /* the whole run */
/* "RUNNING", and the step's state, "" for a step that has none: what the views show. */
str fixture_run_status(struct fixture *c, const char *run);
str fixture_step_state(struct fixture *c, const char *run, const char *step);
size_t fixture_alerts(struct fixture *c, const char *run, struct alert **alerts); /* newest first */
int64_t fixture_event_count(struct fixture *c); /* rows in the ledger */

struct verify_report fixture_verify(struct fixture *c, bool state);
void fixture_clean(struct fixture *c); /* verify --state finds nothing */
/* Lets raw SQL change the truth, as an intruder with the right to drop triggers would. */
void fixture_drop_triggers(struct fixture *c);

/* ---- small things ---- */

bool text_is(str s, const char *want);
bool text_has(str text, const char *part);
str fixture_file(struct fixture *c, const char *path); /* from the top of the repository */
str fixture_record_text(struct fixture *c,
                        const struct event_record *rec); /* event_record_json() */
str fixture_time(struct fixture *c, int64_t us);         /* as persistedAt shows it */
