#include "conformance/helper.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/os.h"
#include "base/time.h"

/* ---- the store ---- */

static int64_t clock_of(void *clock) { return *(const int64_t *)clock; }

static void open_ledger(struct conf *c, enum ledger_validation validation) {
    struct ledger_options options = {
        .validation = validation, .now_us = clock_of, .clock = &c->now_us, .lock_wait_ms = 5000};
    struct error err = {0};
    CHECK(ledger_open(c->url, &options, &c->ledger, &err) == ST_OK, "%s", err.msg);
}

void conf_open(struct conf *c, str url, enum ledger_validation validation) {
    *c = (struct conf){.url = url, .now_us = CONF_NOW_US};
    arena_init(&c->arena, 4096, (size_t)256 << 20);
    log_setup(2, false,
              LOG_ERROR); /* recorded invalid transitions are what some of these tests are about */
    open_ledger(c, validation);
}

void conf_reopen(struct conf *c, enum ledger_validation validation) {
    ledger_close(c->ledger);
    open_ledger(c, validation);
}

void conf_close(struct conf *c) {
    ledger_close(c->ledger);
    arena_release(&c->arena);
    log_setup(2, false, LOG_INFO);
}

str conf_other_url(str url) {
    return test_db_url(str_starts(url, STR("postgres")) ? "postgres" : "sqlite");
}

/* ---- events ---- */

struct event conf_event_with(const char *type, const char *run, const char *step, int64_t attempt,
                             const char *payload) {
    struct event e = {.type_name = str_c(type),
                      .run_id = str_c(run),
                      .tenant_id = STR("acme"),
                      .project_id = STR("shop"),
                      .environment_id = STR("prod"),
                      .plan_id = STR("orders"),
                      .plan_version = STR("7"),
                      .subject = str_c(step),
                      .engine_attempt = 1,
                      .logical_attempt = attempt,
                      .event_id = uuid_v4(),
                      .emitted_ns = CONF_NOW_US * 1000,
                      .payload = str_c(payload)};
    e.type = event_type_of(e.type_name);
    event_key_derive(&e, e.key);
    struct error err = {0};
    CHECK(event_validate(&e, &err) == ST_OK, "%s", err.msg);
    return e;
}

struct event conf_event(const char *type, const char *run, const char *step, int64_t attempt) {
    return conf_event_with(type, run, step, attempt, NULL);
}

static str keep(struct conf *c, struct buf *b) {
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

str conf_edit(struct conf *c, const struct event *e, const char *member, const char *raw) {
    struct buf json;
    buf_init(&json, EVENT_BYTES_MAX);
    event_write_json(e, &json);
    yyjson_val *root = conf_json(c, keep(c, &json));
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

str conf_record_text(struct conf *c, const struct event_record *rec) {
    struct buf json;
    buf_init(&json, EVENT_BYTES_MAX * 2);
    event_record_json(rec, &json);
    return keep(c, &json);
}

/* ---- appending ---- */

struct append_result conf_append(struct conf *c, struct event e) {
    struct append_item item = {.event = e};
    struct append_result result = {.code = ST_CORRUPT};
    struct append_request request = {
        .items = &item, .count = 1, .results = &result, .arena = &c->arena};
    struct append_request *requests[] = {&request};
    struct error err = {0};
    CHECK(ledger_append(c->ledger, requests, 1, &err) == ST_OK, "%s", err.msg);
    CHECK((result.code == ST_OK) == (result.err == NULL));
    return result;
}

struct append_result conf_put(struct conf *c, struct event e) {
    struct append_result result = conf_append(c, e);
    CHECK(result.code == ST_OK, "%.*s: %s", STR_ARG(e.type_name), result.err->msg);
    CHECK(!result.duplicate, "%.*s", STR_ARG(e.type_name));
    return result;
}

struct append_result conf_again(struct conf *c, struct event e) {
    struct append_result result = conf_append(c, e);
    CHECK(result.code == ST_OK, "%.*s: %s", STR_ARG(e.type_name), result.err->msg);
    CHECK(result.duplicate, "%.*s", STR_ARG(e.type_name));
    return result;
}

status conf_put_json(struct conf *c, str json, struct error *err) {
    struct event e;
    status st = event_parse(json, &c->arena, &e, err);
    if (st != ST_OK) return st;
    struct append_result result = conf_append(c, e);
    if (result.code != ST_OK) *err = *result.err;
    return result.code;
}

/* "Type", "Type step" or "Type step attempt". */
static void put_line(struct conf *c, const char *run, str line) {
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
    conf_put(c, conf_event(type, run, step, attempt));
}

void conf_program(struct conf *c, const char *run, const char *program) {
    str rest = str_c(program);
    while (rest.len > 0) {
        str line;
        if (!str_split(rest, ',', &line, &rest)) rest = STR_NONE;
        put_line(c, run, line);
    }
}

/* ---- asking ---- */

struct event_page conf_read(struct conf *c, const char *run) {
    struct event_page page = {0};
    struct error err = {0};
    status st = ledger_read_run(c->ledger, str_c(run), 0, PAGE_EVENTS_MAX, &c->arena, &page, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    CHECK(page.count < PAGE_EVENTS_MAX, "the run needs a second page");
    return page;
}

struct run_info conf_run(struct conf *c, const char *run) {
    struct run_info info;
    struct error err = {0};
    CHECK(ledger_find_run(c->ledger, str_c(run), &c->arena, &info, &err) == ST_OK, "%s", err.msg);
    return info;
}

struct run conf_replay(struct conf *c, const char *run) {
    struct run out;
    struct error err = {0};
    status st = ledger_replay(c->ledger, str_c(run), 0, false, &c->arena, &out, NULL, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    return out;
}

/* The first column of the first row, with up to two text parameters. */
static struct db_stmt *ask(struct conf *c, const char *sql, const char *first, const char *second,
                           bool *row) {
    struct db_stmt *q = NULL;
    struct error err = {0};
    CHECK(db_prepare(ledger_db(c->ledger), sql, &q, &err) == ST_OK, "%s: %s", sql, err.msg);
    if (first) db_bind_text(q, 1, str_c(first));
    if (second) db_bind_text(q, 2, str_c(second));
    CHECK(db_step(q, row, &err) == ST_OK, "%s: %s", sql, err.msg);
    return q;
}

static str ask_text(struct conf *c, const char *sql, const char *first, const char *second) {
    bool row = false;
    struct db_stmt *q = ask(c, sql, first, second, &row);
    str text = row ? arena_str(&c->arena, db_text(q, 0)) : STR("");
    db_reset(q);
    return text;
}

str conf_text(struct conf *c, const char *sql) { return ask_text(c, sql, NULL, NULL); }

str conf_status(struct conf *c, const char *run) {
    return ask_text(c, "SELECT status FROM runs WHERE run_id = $1", run, NULL);
}

str conf_step(struct conf *c, const char *run, const char *step) {
    return ask_text(c, "SELECT state FROM steps WHERE run_id = $1 AND step_id = $2", run, step);
}

int64_t conf_int(struct conf *c, const char *sql) {
    bool row = false;
    struct db_stmt *q = ask(c, sql, NULL, NULL, &row);
    CHECK(row, "%s", sql);
    int64_t value = db_int(q, 0);
    db_reset(q);
    return value;
}

int64_t conf_events(struct conf *c) { return conf_int(c, "SELECT COUNT(*) FROM ledger_event"); }

size_t conf_alerts(struct conf *c, const char *run, struct alert **alerts) {
    size_t count = 0;
    struct error err = {0};
    status st = ledger_list_alerts(c->ledger, STR_NONE, str_c(run), 0, 0, PAGE_EVENTS_MAX,
                                   &c->arena, alerts, &count, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    return count;
}

/* ---- small things ---- */

str conf_file(struct conf *c, const char *path) {
    str text;
    struct error err = {0};
    status st = file_read(str_c(path), (size_t)16 << 20, &c->arena, &text, &err);
    CHECK(st == ST_OK, "%s (the tests run from the top of the repository)", err.msg);
    return text;
}

yyjson_val *conf_json(struct conf *c, str text) {
    yyjson_val *root = NULL;
    struct error err = {0};
    struct json_limits limits = {(size_t)16 << 20, JSON_DEPTH_MAX};
    CHECK(json_parse(text, limits, &c->arena, &root, &err) == ST_OK, "%s", err.msg);
    return root;
}

bool conf_is(str s, const char *want) { return str_eq(s, str_c(want)); }

bool conf_has(str text, const char *part) {
    return memmem(text.ptr, text.len, part, strlen(part)) != NULL;
}

str conf_us(struct conf *c, int64_t us) {
    char text[TIME_TEXT_MAX];
    size_t n = time_format_us(us, text);
    return arena_str(&c->arena, str_n(text, n));
}

str conf_id(struct conf *c, uuid id) {
    char text[UUID_TEXT_LEN];
    uuid_format(id, text);
    return arena_str(&c->arena, str_n(text, sizeof text));
}

int conf_scaled(int n, int least) {
    int64_t percent = 100;
    const char *text = getenv("CAIRN_TEST_SCALE");
    if (text && !str_to_int(str_c(text), &percent)) percent = 100;
    int64_t scaled = n * percent / 100;
    return scaled < least ? least : (int)scaled;
}
