#include "conformance/canon_helper.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "base/log.h"

/* ---- opening ---- */

static int64_t canon_clock(void *clock) { return *(int64_t *)clock; }

static void prepare(struct canon *c, str url, enum ledger_validation validation) {
    *c = (struct canon){.url = url, .now_us = CANON_EPOCH_US};
    c->options = (struct ledger_options){
        .validation = validation, .now_us = canon_clock, .clock = &c->now_us};
    arena_init(&c->arena, 4096, SIZE_MAX);
    log_setup(2, false, LOG_OFF); /* refusals are what these tests are about */
}

void canon_open_as(struct canon *c, str url, enum ledger_validation validation) {
    prepare(c, url, validation);
    struct error err = {0};
    CHECK(ledger_open(url, &c->options, &c->ledger, &err) == ST_OK, "%s", err.msg);
}

void canon_open(struct canon *c, str url) { canon_open_as(c, url, LEDGER_REJECT); }

void canon_open_reader(struct canon *c, str url) {
    struct error err = {0};
    prepare(c, url, LEDGER_REJECT);
    CHECK(ledger_open_reader(url, &c->ledger, &err) == ST_OK, "%s", err.msg);
}

void canon_reopen(struct canon *c) {
    struct error err = {0};
    ledger_close(c->ledger);
    c->ledger = NULL;
    CHECK(ledger_open(c->url, &c->options, &c->ledger, &err) == ST_OK, "%s", err.msg);
}

void canon_close(struct canon *c) {
    ledger_close(c->ledger);
    arena_release(&c->arena);
}

static status connect_faulty(void *context, struct db **out, struct error *err) {
    struct canon *c = context;
    struct db *inner = NULL;
    status st = db_open(c->url, DB_WRITE, &inner, err);
    if (st != ST_OK) return st;
    st = db_faulty_wrap(inner, out, err);
    if (st != ST_OK)
        db_close(inner);
    else
        c->faulty = *out;
    return st;
}

void canon_open_faulty(struct canon *c, str url, enum ledger_validation validation) {
    prepare(c, url, validation);
    struct error err = {0};
    CHECK(ledger_open_with(connect_faulty, c, &c->options, &c->ledger, &err) == ST_OK, "%s",
          err.msg);
}

void canon_fail_at(struct canon *c, int64_t n, bool after) {
    db_faulty_fail_at(c->faulty, n, after);
}

/* ---- text ---- */

/* Statements are cached by the address of their SQL, so no address may ever serve twice. */
static struct arena *kept(void) {
    static struct arena arena;
    if (arena.cap == 0) arena_init(&arena, (size_t)64 * 1024, SIZE_MAX);
    return &arena;
}

const char *canon_fmt(const char *fmt, ...) {
    char text[8192];
    va_list args;
    va_start(args, fmt);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is set in the line before */
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    CHECK(n >= 0 && (size_t)n < sizeof(text));
    return arena_str(kept(), str_n(text, (size_t)n)).ptr;
}

str canon_uuid_text(uuid u) {
    char text[UUID_TEXT_LEN];
    uuid_format(u, text);
    return arena_str(kept(), str_n(text, sizeof(text)));
}

bool canon_str_is(str s, const char *want) { return str_eq(s, str_c(want)); }

/* ---- events ---- */

struct event canon_run_ids(const char *run) {
    return (struct event){.run_id = str_c(run),
                          .tenant_id = STR("acme"),
                          .project_id = STR("shop"),
                          .environment_id = STR("dev"),
                          .plan_id = STR("orders"),
                          .plan_version = STR("7"),
                          .engine_attempt = 1};
}

struct append_item canon_event_with(const char *type, const char *run, const char *step,
                                    int64_t attempt, const char *payload) {
    struct append_item item = {.event = canon_run_ids(run)};
    struct event *e = &item.event;
    e->type_name = str_c(type);
    e->subject = str_c(step);
    e->logical_attempt = attempt;
    e->event_id = uuid_v4();
    e->emitted_ns = CANON_EPOCH_US * 1000;
    e->emitted_digits = 3;
    e->payload = str_c(payload);
    canon_rekey(&item);
    return item;
}

struct append_item canon_event(const char *type, const char *run, const char *step,
                               int64_t attempt) {
    return canon_event_with(type, run, step, attempt, NULL);
}

void canon_rekey(struct append_item *item) {
    struct error err = {0};
    item->event.type = event_type_of(item->event.type_name);
    event_key_derive(&item->event, item->event.key);
    CHECK(event_validate(&item->event, &err) == ST_OK, "%s", err.msg);
}

/* What the outbox would write: an effect whose key is its id. */
static str effect_data(enum event_type type, str subject) {
    char data[512];
    if (type == EVENT_EFFECT_REQUESTED)
        snprintf(data, sizeof(data),
                 "{\"effect_id\":\"%.*s\",\"effect_type\":\"API_CALL\","
                 "\"idempotency_key\":\"%.*s\",\"max_retries\":5,\"base_delay_ms\":1000,"
                 "\"payload\":{}}",
                 STR_ARG(subject), STR_ARG(subject));
    else
        snprintf(data, sizeof(data),
                 "{\"effect_id\":\"%.*s\",\"effect_type\":\"API_CALL\","
                 "\"lease_until\":\"2026-11-16T08:00:00Z\",\"result\":{}}",
                 STR_ARG(subject));
    return arena_str(kept(), str_c(data));
}

struct append_item canon_fact(enum event_type type, const char *run, str subject,
                              int64_t occurrence, const char *data) {
    struct append_item item = {0};
    struct event ids = canon_run_ids(run);
    struct error err = {0};
    str text = str_c(data);
    if (event_type_info(type)->family == FAMILY_EFFECT && str_eq(text, STR("{}")))
        text = effect_data(type, subject);
    CHECK(ledger_fact(&ids, type, subject, occurrence, text, &item, &err) == ST_OK, "%s", err.msg);
    return item;
}

/* ---- appending ---- */

void canon_batch(struct canon *c, struct append_item *items, size_t count, bool atomic,
                 struct append_result *results) {
    struct append_request req = {
        .items = items, .count = count, .atomic = atomic, .results = results, .arena = &c->arena};
    struct append_request *reqs[] = {&req};
    struct error err = {0};
    CHECK(ledger_append(c->ledger, reqs, 1, &err) == ST_OK, "%s", err.msg);
}

status canon_append(struct canon *c, struct append_item *item, struct append_result *res,
                    struct error *err) {
    struct append_request req = {.items = item, .count = 1, .results = res, .arena = &c->arena};
    struct append_request *reqs[] = {&req};
    *res = (struct append_result){0};
    return ledger_append(c->ledger, reqs, 1, err);
}

struct append_result canon_try(struct canon *c, struct append_item item) {
    struct append_result res;
    canon_batch(c, &item, 1, false, &res);
    return res;
}

struct append_result canon_put(struct canon *c, struct append_item item) {
    struct append_result res = canon_try(c, item);
    CHECK(res.code == ST_OK, "%.*s: %s", STR_ARG(item.event.type_name), res.err->msg);
    CHECK(!res.duplicate, "%.*s", STR_ARG(item.event.type_name));
    return res;
}

void canon_refused(struct canon *c, struct append_item item, status code, const char *reason) {
    struct append_result res = canon_try(c, item);
    CHECK(res.code == code, "%.*s: status %d", STR_ARG(item.event.type_name), (int)res.code);
    CHECK(res.err->reason && strcmp(res.err->reason, reason) == 0, "%s: %s", res.err->reason,
          res.err->msg);
}

void canon_finished_run(struct canon *c, const char *run, int steps) {
    canon_put(c, canon_event("RunStarted", run, NULL, 1));
    for (int i = 0; i < steps; i++) {
        const char *step = canon_fmt("s%d", i);
        canon_put(c, canon_event("StepStarted", run, step, 1));
        canon_put(c, canon_event("StepCompleted", run, step, 1));
    }
    canon_put(c, canon_event("RunCompleted", run, NULL, 1));
}

uint64_t canon_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

int canon_scaled(int n, int least) {
    const char *text = getenv("CAIRN_TEST_SCALE");
    int64_t percent = 100;
    if (text && !str_to_int(str_c(text), &percent)) percent = 100;
    int64_t scaled = n * percent / 100;
    return scaled < least ? least : (int)scaled;
}

/* Of every 16 events most concern a step; the others move the run, or are opaque. What the tables
 * forbid is refused or recorded, as the ledger was opened. */
static struct append_item random_event(const char *prefix, int runs, uint64_t *seed) {
    static const char *const of_step[] = {"StepStarted",   "StepStarted",   "StepCompleted",
                                          "StepCompleted", "StepFailed",    "StepSkipped",
                                          "StepRetried",   "StepCorrected", "StepWeighed"};
    static const char *const of_run[] = {"RunQueued",  "RunStarted",   "RunStarted", "RunPaused",
                                         "RunResumed", "RunCompleted", "RunFailed",  "RunObserved"};
    uint64_t r = canon_random(seed);
    const char *run = canon_fmt("%s%llu", prefix, (unsigned long long)(r >> 8) % (unsigned)runs);
    if (r % 16 >= 5) {
        const char *step = canon_fmt("s%llu", (unsigned long long)(r >> 24) % 4);
        return canon_event_with(of_step[(r >> 32) % COUNT_OF(of_step)], run, step,
                                1 + (int64_t)(r >> 40) % 2, "{\"output\":{\"n\":1}}");
    }
    return canon_event(of_run[(r >> 32) % COUNT_OF(of_run)], run, NULL, 1 + (int64_t)(r >> 40) % 2);
}

void canon_random_workload(struct canon *c, const char *prefix, int runs, int count,
                           uint64_t seed) {
    enum { LOT = 16 };
    for (int done = 0; done < count; done += LOT) {
        struct append_item items[LOT];
        struct append_result results[LOT];
        size_t n = count - done < LOT ? (size_t)(count - done) : LOT;
        for (size_t i = 0; i < n; i++)
            items[i] = random_event(prefix, runs, &seed);
        c->now_us += 250000;
        canon_batch(c, items, n, false, results);
    }
}

/* ---- asking ---- */

static struct db_stmt *ask(struct canon *c, const char *sql, bool *row) {
    struct db_stmt *q = NULL;
    struct error err = {0};
    CHECK(db_prepare(ledger_db(c->ledger), sql, &q, &err) == ST_OK, "%s: %s", sql, err.msg);
    CHECK(db_step(q, row, &err) == ST_OK, "%s: %s", sql, err.msg);
    return q;
}

int64_t canon_int(struct canon *c, const char *sql) {
    bool row = false;
    struct db_stmt *q = ask(c, sql, &row);
    CHECK(row, "no row: %s", sql);
    int64_t n = db_int(q, 0);
    db_reset(q);
    return n;
}

str canon_text(struct canon *c, const char *sql) {
    bool row = false;
    struct db_stmt *q = ask(c, sql, &row);
    str text = row ? arena_str(&c->arena, db_text(q, 0)) : STR_NONE;
    if (row) db_reset(q);
    return text;
}

str canon_lines(struct canon *c, const char *sql) {
    struct buf b;
    struct error err = {0};
    bool row = false;
    buf_init(&b, (size_t)64 * 1024 * 1024);
    struct db_stmt *q = ask(c, sql, &row);
    while (row) {
        buf_put(&b, db_text(q, 0));
        buf_put_char(&b, '\n');
        CHECK(db_step(q, &row, &err) == ST_OK, "%s: %s", sql, err.msg);
    }
    CHECK(!b.full);
    str out = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return out.ptr ? out : STR("");
}

status canon_sql(struct canon *c, const char *sql) {
    struct error err = {0};
    return db_exec(ledger_db(c->ledger), sql, &err);
}

void canon_must_sql(struct canon *c, const char *sql) {
    struct error err = {0};
    CHECK(db_exec(ledger_db(c->ledger), sql, &err) == ST_OK, "%s: %s", sql, err.msg);
}

str canon_plan(struct canon *c, const char *sql) {
    if (db_is_postgres(ledger_db(c->ledger))) return canon_lines(c, canon_fmt("EXPLAIN %s", sql));
    struct db_stmt *q = NULL;
    struct error err = {0};
    bool row = false;
    struct buf b;
    buf_init(&b, (size_t)1024 * 1024);
    CHECK(db_prepare(ledger_db(c->ledger), canon_fmt("EXPLAIN QUERY PLAN %s", sql), &q, &err) ==
              ST_OK,
          "%s", err.msg);
    while (db_step(q, &row, &err) == ST_OK && row) {
        buf_put(&b, db_text(q, 3));
        buf_put_char(&b, '\n');
    }
    str out = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return out;
}

yyjson_val *canon_json(struct canon *c, str text) {
    yyjson_val *root = NULL;
    struct error err = {0};
    struct json_limits limits = {(size_t)16 * 1024 * 1024, JSON_DEPTH_MAX};
    CHECK(text.ptr && json_parse(text, limits, &c->arena, &root, &err) == ST_OK, "%.*s: %s",
          STR_ARG(text), err.msg);
    return root;
}

str canon_member(yyjson_val *obj, const char *name) {
    str value = STR_NONE;
    CHECK(json_str(json_member(obj, name), &value), "member \"%s\" is not a string", name);
    return value;
}

/* Whatever columns the table has: a SELECT of its rows as one text each. */
static const char *dump_sql(struct canon *c, const char *table) {
    if (db_is_postgres(ledger_db(c->ledger)))
        return canon_fmt("SELECT x::text FROM %s x ORDER BY 1", table);
    str cells = canon_text(
        c, canon_fmt(
               "SELECT group_concat('quote('||name||')', '||'',''||') FROM pragma_table_info('%s')",
               table));
    return canon_fmt("SELECT %.*s FROM %s ORDER BY 1", STR_ARG(cells), table);
}

str canon_dump(struct canon *c, const char *const *tables, size_t count) {
    struct buf b;
    buf_init(&b, (size_t)256 * 1024 * 1024);
    for (size_t i = 0; i < count; i++) {
        buf_printf(&b, "%s\n", tables[i]);
        buf_put(&b, canon_lines(c, dump_sql(c, tables[i])));
    }
    CHECK(!b.full);
    str out = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return out;
}

str canon_state_dump(struct canon *c) {
    static const char *const tables[] = {"state_run", "state_step", "state_alert", "state_provider",
                                         "state_lot", "state_effect"};
    return canon_dump(c, tables, COUNT_OF(tables));
}

str canon_truth_dump(struct canon *c) {
    static const char *const tables[] = {"ledger_event",   "ledger_run",  "ledger_tenant",
                                         "ledger_context", "ledger_type", "ledger_checkpoint"};
    return canon_dump(c, tables, COUNT_OF(tables));
}

struct run_info canon_run(struct canon *c, const char *run) {
    struct run_info info;
    struct error err = {0};
    CHECK(ledger_find_run(c->ledger, str_c(run), &c->arena, &info, &err) == ST_OK, "%s", err.msg);
    return info;
}

struct verify_report canon_verify(struct canon *c, bool state) {
    struct verify_report report;
    struct error err = {0};
    CHECK(ledger_verify(c->ledger, state, NULL, NULL, &c->arena, &report, &err) == ST_OK, "%s",
          err.msg);
    if (c->no_triggers && strstr(report.what, "triggers that refuse"))
        report.damaged = false; /* the test itself removed them; care_triggers.c is about that */
    return report;
}

void canon_clean(struct canon *c) {
    struct verify_report report = canon_verify(c, true);
    CHECK(!report.damaged, "run \"%.*s\", event %lld: %s", STR_ARG(report.run_id),
          (long long)report.seq, report.what);
}

void canon_drop_triggers(struct canon *c) {
    c->no_triggers = true;
    if (db_is_postgres(ledger_db(c->ledger))) {
        canon_must_sql(c, "DROP FUNCTION cairn_refuse() CASCADE");
        return;
    }
    str names = canon_lines(c, "SELECT name FROM sqlite_master WHERE type = 'trigger'");
    while (names.len > 0) {
        str name;
        str rest;
        CHECK(str_split(names, '\n', &name, &rest));
        canon_must_sql(c, canon_fmt("DROP TRIGGER %.*s", STR_ARG(name)));
        names = rest;
    }
}
