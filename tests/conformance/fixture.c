/* tests/conformance/fixture.c: opens the fixture's ledger, makes its events, appends them. */
#include "conformance/fixture.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "base/log.h"

/* ---- opening ---- */

static int64_t clock_of(void *clock) { return *(int64_t *)clock; }

static void prepare(struct fixture *c, str url, enum ledger_validation validation) {
    *c = (struct fixture){.url = url, .now_us = FIXTURE_NOW_US};
    c->options =
        (struct ledger_options){.validation = validation, .now_us = clock_of, .clock = &c->now_us};
    arena_init(&c->arena, 4096, SIZE_MAX);
    log_setup(2, false, LOG_OFF); /* refusals are what many of these tests are about */
}

void fixture_open_as(struct fixture *c, str url, enum ledger_validation validation) {
    prepare(c, url, validation);
    struct error err = {0};
    CHECK(ledger_open(url, &c->options, &c->ledger, &err) == ST_OK, "%s", err.msg);
}

void fixture_open(struct fixture *c, str url) { fixture_open_as(c, url, LEDGER_REJECT); }

void fixture_open_reader(struct fixture *c, str url) {
    struct error err = {0};
    prepare(c, url, LEDGER_REJECT);
    CHECK(ledger_open_reader(url, &c->ledger, &err) == ST_OK, "%s", err.msg);
}

void fixture_reopen(struct fixture *c) {
    struct error err = {0};
    ledger_close(c->ledger);
    c->ledger = NULL;
    CHECK(ledger_open(c->url, &c->options, &c->ledger, &err) == ST_OK, "%s", err.msg);
}

void fixture_reopen_as(struct fixture *c, enum ledger_validation validation) {
    c->options.validation = validation;
    fixture_reopen(c);
}

void fixture_close(struct fixture *c) {
    ledger_close(c->ledger);
    arena_release(&c->arena);
    log_setup(2, false, LOG_INFO);
}

str fixture_other_url(str url) {
    return test_db_url(str_starts(url, STR("postgres")) ? "postgres" : "sqlite");
}

static status connect_faulty(void *context, struct db **out, struct error *err) {
    struct fixture *c = context;
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

void fixture_open_faulty(struct fixture *c, str url, enum ledger_validation validation) {
    prepare(c, url, validation);
    struct error err = {0};
    CHECK(ledger_open_with(connect_faulty, c, &c->options, &c->ledger, &err) == ST_OK, "%s",
          err.msg);
}

void fixture_fail_at(struct fixture *c, int64_t n, bool after) {
    db_faulty_fail_at(c->faulty, n, after);
}

/* ---- text ---- */

/* Statements are cached by the address of their SQL, so no address may ever serve twice. */
static struct arena *kept(void) {
    static struct arena arena;
    if (arena.cap == 0) arena_init(&arena, (size_t)64 * 1024, SIZE_MAX);
    return &arena;
}

const char *fixture_fmt(const char *fmt, ...) {
    char text[8192];
    va_list args;
    va_start(args, fmt);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is set in the line before */
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    CHECK(n >= 0 && (size_t)n < sizeof(text));
    return arena_str(kept(), str_n(text, (size_t)n)).ptr;
}

str fixture_uuid_text(uuid u) {
    char text[UUID_TEXT_LEN];
    uuid_format(u, text);
    return arena_str(kept(), str_n(text, sizeof(text)));
}

/* ---- events ---- */

struct event fixture_run_ids(const char *run) {
    return (struct event){.run_id = str_c(run),
                          .tenant_id = STR("acme"),
                          .project_id = STR("shop"),
                          .environment_id = STR("prod"),
                          .plan_id = STR("orders"),
                          .plan_version = STR("7"),
                          .engine_attempt = 1};
}

struct event fixture_event_with(const char *type, const char *run, const char *step,
                                int64_t attempt, const char *payload) {
    return fixture_item_with(type, run, step, attempt, payload).event;
}

struct event fixture_event(const char *type, const char *run, const char *step, int64_t attempt) {
    return fixture_event_with(type, run, step, attempt, NULL);
}

struct append_item fixture_item_with(const char *type, const char *run, const char *step,
                                     int64_t attempt, const char *payload) {
    struct append_item item = {.event = fixture_run_ids(run)};
    struct event *e = &item.event;
    e->type_name = str_c(type);
    e->subject = str_c(step);
    e->logical_attempt = attempt;
    e->event_id = uuid_v4();
    e->emitted_ns = FIXTURE_NOW_US * 1000;
    e->emitted_digits = 3;
    e->payload = str_c(payload);
    fixture_rekey(&item);
    return item;
}

struct append_item fixture_item(const char *type, const char *run, const char *step,
                                int64_t attempt) {
    return fixture_item_with(type, run, step, attempt, NULL);
}

void fixture_rekey(struct append_item *item) {
    struct error err = {0};
    item->event.type = event_type_of(item->event.type_name);
    event_key_derive(&item->event, item->event.key);
    CHECK(event_validate(&item->event, &err) == ST_OK, "%s", err.msg);
}

static str keep(struct fixture *c, struct buf *b) {
    CHECK(!b->full);
    str kept = arena_str(&c->arena, buf_str(b));
    buf_release(b);
    return kept;
}

static void put_member(struct buf *out, str name, str raw) {
    buf_put_char(out, out->len == 0 ? '{' : ',');
    buf_put_json_str(out, name);
    buf_put_char(out, ':');
    buf_put(out, raw);
}

str fixture_edit(struct fixture *c, const struct event *e, const char *member, const char *raw) {
    struct buf json;
    buf_init(&json, EVENT_BYTES_MAX);
    event_write_json(e, &json);
    yyjson_val *root = fixture_json(c, keep(c, &json));
    buf_init(&json, EVENT_BYTES_MAX);
    bool found = false;
    yyjson_obj_iter it = yyjson_obj_iter_with(root);
    for (yyjson_val *key = yyjson_obj_iter_next(&it); key; key = yyjson_obj_iter_next(&it)) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        bool hit = str_eq(name, str_c(member));
        found = found || hit;
        str old = json_text(yyjson_obj_iter_get_val(key), &c->arena);
        if (!hit || raw) put_member(&json, name, hit ? str_c(raw) : old);
    }
    if (!found && raw) put_member(&json, str_c(member), str_c(raw));
    buf_put_char(&json, '}');
    return keep(c, &json);
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

struct append_item fixture_fact(enum event_type type, const char *run, str subject,
                                int64_t occurrence, const char *data) {
    struct append_item item = {0};
    struct event ids = fixture_run_ids(run);
    struct error err = {0};
    str text = str_c(data);
    if (event_type_info(type)->family == FAMILY_EFFECT && str_eq(text, STR("{}")))
        text = effect_data(type, subject);
    CHECK(ledger_fact(&ids, type, subject, occurrence, text, &item, &err) == ST_OK, "%s", err.msg);
    return item;
}

/* ---- appending ---- */

void fixture_batch(struct fixture *c, struct append_item *items, size_t count, bool atomic,
                   struct append_result *results) {
    struct append_request req = {
        .items = items, .count = count, .atomic = atomic, .results = results, .arena = &c->arena};
    struct append_request *reqs[] = {&req};
    struct error err = {0};
    CHECK(ledger_append(c->ledger, reqs, 1, &err) == ST_OK, "%s", err.msg);
}

status fixture_append(struct fixture *c, struct append_item *item, struct append_result *res,
                      struct error *err) {
    struct append_request req = {.items = item, .count = 1, .results = res, .arena = &c->arena};
    struct append_request *reqs[] = {&req};
    *res = (struct append_result){0};
    return ledger_append(c->ledger, reqs, 1, err);
}

struct append_result fixture_try(struct fixture *c, struct append_item item) {
    struct append_result res;
    fixture_batch(c, &item, 1, false, &res);
    return res;
}

struct append_result fixture_put(struct fixture *c, struct append_item item) {
    struct append_result res = fixture_try(c, item);
    CHECK(res.code == ST_OK, "%.*s: %s", STR_ARG(item.event.type_name), res.err->msg);
    CHECK(!res.duplicate, "%.*s", STR_ARG(item.event.type_name));
    return res;
}

void fixture_refused(struct fixture *c, struct append_item item, status code, const char *reason) {
    struct append_result res = fixture_try(c, item);
    CHECK(res.code == code, "%.*s: status %d", STR_ARG(item.event.type_name), (int)res.code);
    CHECK(res.err->reason && strcmp(reason_name(res.err->reason), reason) == 0, "%s: %s",
          reason_name(res.err->reason), res.err->msg);
}

struct append_result fixture_append_event(struct fixture *c, struct event e) {
    struct append_result result = fixture_try(c, (struct append_item){.event = e});
    CHECK((result.code == ST_OK) == (result.err == NULL));
    return result;
}

struct append_result fixture_put_event(struct fixture *c, struct event e) {
    return fixture_put(c, (struct append_item){.event = e});
}

struct append_result fixture_again(struct fixture *c, struct event e) {
    struct append_result result = fixture_append_event(c, e);
    CHECK(result.code == ST_OK, "%.*s: %s", STR_ARG(e.type_name), result.err->msg);
    CHECK(result.duplicate, "%.*s", STR_ARG(e.type_name));
    return result;
}

status fixture_put_json(struct fixture *c, str json, struct error *err) {
    struct event e;
    status st = event_parse(json, &c->arena, &e, err);
    if (st != ST_OK) return st;
    struct append_result result = fixture_append_event(c, e);
    if (result.code != ST_OK) *err = *result.err;
    return result.code;
}

/* "Type", "Type step" or "Type step attempt". */
static void put_line(struct fixture *c, const char *run, str line) {
    str words[3] = {line, STR_NONE, STR("1")};
    str rest;
    if (str_split(line, ' ', &words[0], &rest)) {
        str number;
        if (str_split(rest, ' ', &words[1], &number)) words[2] = number;
    }
    int64_t attempt = 0;
    CHECK(str_to_int(words[2], &attempt), "%.*s", STR_ARG(line));
    const char *type = arena_str(&c->arena, words[0]).ptr;
    const char *step = arena_str(&c->arena, words[1]).ptr;
    fixture_put_event(c, fixture_event(type, run, step, attempt));
}

void fixture_program(struct fixture *c, const char *run, const char *program) {
    str rest = str_c(program);
    while (rest.len > 0) {
        str line;
        if (!str_split(rest, ',', &line, &rest)) rest = STR_NONE;
        put_line(c, run, line);
    }
}

void fixture_finished_run(struct fixture *c, const char *run, int steps) {
    fixture_put(c, fixture_item("RunStarted", run, NULL, 1));
    for (int i = 0; i < steps; i++) {
        const char *step = fixture_fmt("s%d", i);
        fixture_put(c, fixture_item("StepStarted", run, step, 1));
        fixture_put(c, fixture_item("StepCompleted", run, step, 1));
    }
    fixture_put(c, fixture_item("RunCompleted", run, NULL, 1));
}

uint64_t fixture_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

int fixture_scaled(int n, int least) {
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
    uint64_t r = fixture_random(seed);
    const char *run = fixture_fmt("%s%llu", prefix, (unsigned long long)(r >> 8) % (unsigned)runs);
    if (r % 16 >= 5) {
        const char *step = fixture_fmt("s%llu", (unsigned long long)(r >> 24) % 4);
        return fixture_item_with(of_step[(r >> 32) % COUNT_OF(of_step)], run, step,
                                 1 + (int64_t)(r >> 40) % 2, "{\"output\":{\"n\":1}}");
    }
    return fixture_item(of_run[(r >> 32) % COUNT_OF(of_run)], run, NULL,
                        1 + (int64_t)(r >> 40) % 2);
}

void fixture_random_workload(struct fixture *c, const char *prefix, int runs, int count,
                             uint64_t seed) {
    enum { LOT = 16 };
    for (int done = 0; done < count; done += LOT) {
        struct append_item items[LOT];
        struct append_result results[LOT];
        size_t n = count - done < LOT ? (size_t)(count - done) : LOT;
        for (size_t i = 0; i < n; i++)
            items[i] = random_event(prefix, runs, &seed);
        c->now_us += 250000;
        fixture_batch(c, items, n, false, results);
    }
}
