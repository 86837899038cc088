/* tests/conformance/helper.h: what the tests of the Run Events clauses share.
 *
 * A struct conf is an open ledger with an arena and a clock that the test sets. Events are made
 * from a few words; what is not said is tenant "acme", project "shop", environment "prod", plan
 * "orders", version "7". The functions check what they do and fail the test, so call them on the
 * main thread only. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"
#include "ledger/ledger.h"
#include "test.h"

struct conf {
    str url;
    struct ledger *ledger;
    struct arena arena;
    int64_t now_us; /* what the store's clock shows */
};

#define CONF_NOW_US                                                                                \
    INT64_C(1771228800000000) /* 2026-02-16T08:00:00Z, where the store's clock starts */
#define CONF_CONTRACT "contracts/run-events/RunEvents.v2.0.1.md"
#define CONF_VECTORS "contracts/run-events/RunEvents.v2.0.1.idempotency_vectors.json"

void conf_open(struct conf *c, str url, enum ledger_validation validation);
/* As after a restart: only what is stored is left. */
void conf_reopen(struct conf *c, enum ledger_validation validation);
void conf_close(struct conf *c);
/* Another fresh, empty store of the kind that `url` is. */
str conf_other_url(str url);

/* ---- events ---- */

/* A valid event with a new eventId; `step` NULL for a run-level one. */
struct event conf_event(const char *type, const char *run, const char *step, int64_t attempt);
struct event conf_event_with(const char *type, const char *run, const char *step, int64_t attempt,
                             const char *payload);
/* Its JSON with one member replaced by the JSON text `raw`, or added, or (raw NULL) left out. */
str conf_edit(struct conf *c, const struct event *e, const char *member, const char *raw);
str conf_record_text(struct conf *c, const struct event_record *rec); /* event_record_json() */

/* ---- appending ---- */

/* One event. The call must work; the result may be a refusal. */
struct append_result conf_append(struct conf *c, struct event e);
struct append_result conf_put(struct conf *c, struct event e);   /* must be stored as new */
struct append_result conf_again(struct conf *c, struct event e); /* must be a duplicate */
/* Parses and appends, as an import does. ST_OK: stored or a duplicate; else *err says why. */
status conf_put_json(struct conf *c, str json, struct error *err);
/* "RunStarted,StepStarted a,StepFailed a,StepStarted a 2": each must be stored as new. */
void conf_program(struct conf *c, const char *run, const char *program);

/* ---- asking ---- */

struct event_page conf_read(struct conf *c, const char *run); /* the whole run */
struct run_info conf_run(struct conf *c, const char *run);
struct run conf_replay(struct conf *c, const char *run);
/* "RUNNING", and the step's state, "" for a step that has none: what the views show. */
str conf_status(struct conf *c, const char *run);
str conf_step(struct conf *c, const char *run, const char *step);
size_t conf_alerts(struct conf *c, const char *run, struct alert **alerts); /* newest first */
int64_t conf_int(struct conf *c,
                 const char *sql); /* first column of the first row; pass a literal */
str conf_text(struct conf *c, const char *sql);
int64_t conf_events(struct conf *c); /* rows in the ledger */

/* ---- small things ---- */

str conf_file(struct conf *c, const char *path); /* from the top of the repository */
yyjson_val *conf_json(struct conf *c, str text);
bool conf_is(str s, const char *want);
bool conf_has(str text, const char *part);
str conf_us(struct conf *c, int64_t us); /* as persistedAt shows it */
str conf_id(struct conf *c, uuid id);
/* CAIRN_TEST_SCALE percent of n, but not fewer than `least`. */
int conf_scaled(int n, int least);
