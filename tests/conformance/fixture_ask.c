/* tests/conformance/fixture_ask.c: what the fixture's ledger answers: SQL, rows as text, records,
 * verify. */
#include "conformance/fixture.h"

#include "base/limits.h"
#include "base/os.h"
#include "base/time.h"

/* ---- asking ---- */

/* The first column of the first row, with up to two text parameters. */
static struct db_stmt *ask(struct fixture *c, const char *sql, const char *first,
                           const char *second, bool *row) {
    struct db_stmt *q = NULL;
    struct error err = {0};
    CHECK(db_prepare(ledger_db(c->ledger), sql, &q, &err) == ST_OK, "%s: %s", sql, err.msg);
    if (first) db_bind_text(q, 1, str_c(first));
    if (second) db_bind_text(q, 2, str_c(second));
    CHECK(db_step(q, row, &err) == ST_OK, "%s: %s", sql, err.msg);
    return q;
}

int64_t fixture_int(struct fixture *c, const char *sql) {
    bool row = false;
    struct db_stmt *q = ask(c, sql, NULL, NULL, &row);
    CHECK(row, "no row: %s", sql);
    int64_t n = db_int(q, 0);
    db_reset(q);
    return n;
}

static str ask_text(struct fixture *c, const char *sql, const char *first, const char *second) {
    bool row = false;
    struct db_stmt *q = ask(c, sql, first, second, &row);
    str text = row ? arena_str(&c->arena, db_text(q, 0)) : STR_NONE;
    if (row) db_reset(q);
    return text;
}

str fixture_text(struct fixture *c, const char *sql) { return ask_text(c, sql, NULL, NULL); }

str fixture_lines(struct fixture *c, const char *sql) {
    struct buf b;
    struct error err = {0};
    bool row = false;
    buf_init(&b, (size_t)64 * 1024 * 1024);
    struct db_stmt *q = ask(c, sql, NULL, NULL, &row);
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

status fixture_sql(struct fixture *c, const char *sql) {
    struct error err = {0};
    return db_exec(ledger_db(c->ledger), sql, &err);
}

void fixture_must_sql(struct fixture *c, const char *sql) {
    struct error err = {0};
    CHECK(db_exec(ledger_db(c->ledger), sql, &err) == ST_OK, "%s: %s", sql, err.msg);
}

str fixture_plan(struct fixture *c, const char *sql) {
    if (db_is_postgres(ledger_db(c->ledger)))
        return fixture_lines(c, fixture_fmt("EXPLAIN %s", sql));
    struct db_stmt *q = NULL;
    struct error err = {0};
    bool row = false;
    struct buf b;
    buf_init(&b, (size_t)1024 * 1024);
    CHECK(db_prepare(ledger_db(c->ledger), fixture_fmt("EXPLAIN QUERY PLAN %s", sql), &q, &err) ==
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

yyjson_val *fixture_json(struct fixture *c, str text) {
    yyjson_val *root = NULL;
    struct error err = {0};
    struct json_limits limits = {(size_t)16 * 1024 * 1024, JSON_DEPTH_MAX};
    CHECK(text.ptr && json_parse(text, limits, &c->arena, &root, &err) == ST_OK, "%.*s: %s",
          STR_ARG(text), err.msg);
    return root;
}

str fixture_member(yyjson_val *obj, const char *name) {
    str value = STR_NONE;
    CHECK(json_str(json_member(obj, name), &value), "member \"%s\" is not a string", name);
    return value;
}

/* Whatever columns the table has: a SELECT of its rows as one text each. */
static const char *dump_sql(struct fixture *c, const char *table) {
    if (db_is_postgres(ledger_db(c->ledger)))
        return fixture_fmt("SELECT x::text FROM %s x ORDER BY 1", table);
    str cells = fixture_text(
        c, fixture_fmt(
               "SELECT group_concat('quote('||name||')', '||'',''||') FROM pragma_table_info('%s')",
               table));
    return fixture_fmt("SELECT %.*s FROM %s ORDER BY 1", STR_ARG(cells), table);
}

str fixture_dump(struct fixture *c, const char *const *tables, size_t count) {
    struct buf b;
    buf_init(&b, (size_t)256 * 1024 * 1024);
    for (size_t i = 0; i < count; i++) {
        buf_printf(&b, "%s\n", tables[i]);
        buf_put(&b, fixture_lines(c, dump_sql(c, tables[i])));
    }
    CHECK(!b.full);
    str out = arena_str(&c->arena, buf_str(&b));
    buf_release(&b);
    return out;
}

str fixture_state_dump(struct fixture *c) {
    static const char *const tables[] = {"state_run",      "state_step", "state_alert",
                                         "state_provider", "state_lot",  "state_effect"};
    return fixture_dump(c, tables, COUNT_OF(tables));
}

str fixture_truth_dump(struct fixture *c) {
    static const char *const tables[] = {"ledger_event",   "ledger_run",  "ledger_tenant",
                                         "ledger_context", "ledger_type", "ledger_checkpoint"};
    return fixture_dump(c, tables, COUNT_OF(tables));
}

struct run_info fixture_run(struct fixture *c, const char *run) {
    struct run_info info;
    struct error err = {0};
    CHECK(ledger_find_run(c->ledger, str_c(run), &c->arena, &info, &err) == ST_OK, "%s", err.msg);
    return info;
}

struct run fixture_replay(struct fixture *c, const char *run) {
    struct run out;
    struct error err = {0};
    status st = ledger_replay(c->ledger, str_c(run), 0, false, &c->arena, &out, NULL, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    return out;
}

struct event_page fixture_read(struct fixture *c, const char *run) {
    struct event_page page = {0};
    struct error err = {0};
    status st = ledger_read_run(c->ledger, str_c(run), 0, PAGE_EVENTS_MAX, &c->arena, &page, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    CHECK(page.count < PAGE_EVENTS_MAX, "the run needs a second page");
    return page;
}

str fixture_run_status(struct fixture *c, const char *run) {
    return ask_text(c, "SELECT status FROM runs WHERE run_id = $1", run, NULL);
}

str fixture_step_state(struct fixture *c, const char *run, const char *step) {
    return ask_text(c, "SELECT state FROM steps WHERE run_id = $1 AND step_id = $2", run, step);
}

size_t fixture_alerts(struct fixture *c, const char *run, struct alert **alerts) {
    size_t count = 0;
    struct error err = {0};
    status st = ledger_list_alerts(
        c->ledger, &(struct alert_query){.run_id = str_c(run), .limit = PAGE_EVENTS_MAX}, &c->arena,
        alerts, &count, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    return count;
}

int64_t fixture_event_count(struct fixture *c) {
    return fixture_int(c, "SELECT COUNT(*) FROM ledger_event");
}

struct verify_report fixture_verify(struct fixture *c, bool state) {
    struct verify_report report;
    struct error err = {0};
    CHECK(ledger_verify(c->ledger, state, NULL, NULL, &c->arena, &report, &err) == ST_OK, "%s",
          err.msg);
    if (c->no_triggers && strstr(report.what, "triggers that refuse"))
        report.damaged = false; /* the test itself removed them; care_triggers.c is about that */
    return report;
}

void fixture_clean(struct fixture *c) {
    struct verify_report report = fixture_verify(c, true);
    CHECK(!report.damaged, "run \"%.*s\", event %lld: %s", STR_ARG(report.run_id),
          (long long)report.seq, report.what);
}

void fixture_drop_triggers(struct fixture *c) {
    c->no_triggers = true;
    if (db_is_postgres(ledger_db(c->ledger))) {
        fixture_must_sql(c, "DROP FUNCTION cairn_refuse() CASCADE");
        return;
    }
    str names = fixture_lines(c, "SELECT name FROM sqlite_master WHERE type = 'trigger'");
    while (names.len > 0) {
        str name;
        str rest;
        CHECK(str_split(names, '\n', &name, &rest));
        fixture_must_sql(c, fixture_fmt("DROP TRIGGER %.*s", STR_ARG(name)));
        names = rest;
    }
}

/* ---- small things ---- */

bool text_is(str s, const char *want) { return str_eq(s, str_c(want)); }

bool text_has(str text, const char *part) {
    return memmem(text.ptr, text.len, part, strlen(part)) != NULL;
}

str fixture_file(struct fixture *c, const char *path) {
    str text;
    struct error err = {0};
    status st = file_read(str_c(path), (size_t)16 << 20, &c->arena, &text, &err);
    CHECK(st == ST_OK, "%s (the tests run from the top of the repository)", err.msg);
    return text;
}

str fixture_time(struct fixture *c, int64_t us) {
    char text[TIME_TEXT_MAX];
    size_t n = time_format_us(us, text);
    return arena_str(&c->arena, str_n(text, n));
}

str fixture_record_text(struct fixture *c, const struct event_record *rec) {
    struct buf json;
    buf_init(&json, EVENT_BYTES_MAX * 2);
    event_record_json(rec, &json);
    CHECK(!json.full);
    str text = arena_str(&c->arena, buf_str(&json));
    buf_release(&json);
    return text;
}
