/* CANON 3.1: the columns of orchestration_events. The table is a view of the ledger, so "insert"
 * means: through the ledger's doors (event_validate, ledger_fact, ledger_append), and as raw SQL
 * into the tables below the view. */
#include "base/limits.h"
#include "conformance/fixture.h"

/* The event, with one member spoiled by `spoil`, must not pass the door. */
static void check_door(void (*spoil)(struct event *e), const char *reason) {
    struct append_item item = fixture_item("RunStarted", "r1", NULL, 1);
    struct error err = {0};
    spoil(&item.event);
    CHECK(event_validate(&item.event, &err) == ST_INVALID);
    CHECK(strcmp(reason_name(err.reason), reason) == 0, "%s: %s", reason_name(err.reason), err.msg);
}

/* A JSON event in which `from` was replaced by `to` must not pass the door. */
static void check_json_door(const char *from, const char *to, const char *reason) {
    struct append_item item = fixture_item("RunStarted", "r1", NULL, 1);
    struct arena arena;
    struct buf b;
    struct error err = {0};
    struct event out;
    arena_init(&arena, 4096, SIZE_MAX);
    buf_init(&b, EVENT_BYTES_MAX);
    event_write_json(&item.event, &b);
    buf_put_char(&b, '\0');
    const char *at = strstr(b.ptr, from);
    CHECK(at != NULL, "%s", from);
    const char *json = fixture_fmt("%.*s%s%s", (int)(at - b.ptr), b.ptr, to, at + strlen(from));
    CHECK(event_parse(str_c(json), &arena, &out, &err) == ST_INVALID);
    CHECK(strcmp(reason_name(err.reason), reason) == 0, "%s: %s", reason_name(err.reason), err.msg);
    buf_release(&b);
    arena_release(&arena);
}

/* A copy of the newest event's row, under a new position, with NULL in `column`. */
static status insert_null(struct fixture *c, const char *column) {
    static const char *const columns[] = {
        "run_no",         "run_seq",         "type_no",    "context_no",
        "engine_attempt", "logical_attempt", "emitted_ns", "emitted_digits",
        "persisted_us",   "event_id",        "key",        "hash"};
    struct buf b;
    char mem[1024];
    buf_init_fixed(&b, mem, sizeof(mem));
    buf_put_c(&b, "INSERT INTO ledger_event(pos");
    for (size_t i = 0; i < COUNT_OF(columns); i++)
        buf_printf(&b, ", %s", columns[i]);
    buf_put_c(&b, ") SELECT pos + 1000");
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        bool null = column && strcmp(columns[i], column) == 0;
        bool key = strcmp(columns[i], "key") == 0; /* another key: the row itself must be welcome */
        buf_printf(&b, ", %s", null ? "NULL" : key ? "hash" : columns[i]);
    }
    buf_put_c(&b, " FROM ledger_event ORDER BY pos DESC LIMIT 1");
    CHECK(!b.full);
    return fixture_sql(c, fixture_fmt("%.*s", STR_ARG(buf_str(&b))));
}

/* CE-3.1-1: `id` is a UUID, made when it is not supplied, and no two events have the same. */
TEST_DB(canon_id_is_a_unique_uuid) {
    struct fixture c;
    uuid id;
    uuid zero = {{0}};
    fixture_open(&c, url);
    struct append_item fact =
        fixture_fact(EVENT_SIGNAL_RECEIVED, "r1", fixture_uuid_text(uuid_v4()), 1, "{}");
    CHECK(!uuid_eq(fact.event.event_id, zero) && uuid_version(fact.event.event_id) == 4);
    fixture_put(&c, fact);
    str shown = fixture_text(&c, "SELECT id FROM orchestration_events");
    CHECK(uuid_parse(shown, &id) && uuid_eq(id, fact.event.event_id));

    struct append_item twice = fixture_item("RunStarted", "r1", NULL, 1);
    twice.event.event_id = fact.event.event_id;
    fixture_refused(&c, twice, ST_CONFLICT, "EVENT_ID_REUSED");
    fixture_reopen(&c); /* also when the first one is only in the database */
    fixture_refused(&c, twice, ST_CONFLICT, "EVENT_ID_REUSED");
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events") == 1);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    CHECK(insert_null(&c, "event_id") == ST_INVALID);
    fixture_close(&c);
}

static void no_tenant(struct event *e) { e->tenant_id = STR_NONE; }

/* CE-3.1-2: `tenant_id` is a required UUID. */
TEST_DB(canon_tenant_id_is_required) {
    struct fixture c;
    uuid id;
    fixture_open(&c, url);
    check_door(no_tenant, "FIELD_EMPTY");
    check_json_door("\"tenantId\":\"acme\"", "\"tenantId\":null", "FIELD_TYPE");
    check_json_door("\"tenantId\":\"acme\",", "", "FIELD_MISSING");
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    str shown = fixture_text(&c, "SELECT tenant_id FROM orchestration_events");
    CHECK(uuid_parse(shown, &id) && uuid_eq(id, event_tenant_uuid(STR("acme"))));

    struct append_item named =
        fixture_item("RunStarted", "r2", NULL, 1); /* a tenant whose id is a UUID keeps it */
    named.event.tenant_id = STR("7f0c1a3e-2b5d-4c6f-8a9b-0c1d2e3f4a5b");
    fixture_rekey(&named);
    fixture_put(&c, named);
    shown = fixture_text(&c, "SELECT tenant_id FROM orchestration_events WHERE run_id = 'r2'");
    CHECK(str_eq(shown, named.event.tenant_id));
    CHECK(fixture_sql(&c, "INSERT INTO ledger_run(run_no, tenant_no, run_id, run_uuid, context_no, "
                          "correlation_id, opened_seq)"
                          " VALUES (99, NULL, 'x', 'x', 1, 'x', 1)") == ST_INVALID);
    CHECK(
        fixture_sql(
            &c,
            "INSERT INTO ledger_tenant(tenant_no, tenant_id, tenant_uuid, seq, head, persisted_us)"
            " SELECT 99, 'x', NULL, 0, head, 0 FROM ledger_tenant") == ST_INVALID);
    fixture_close(&c);
}

static void no_type(struct event *e) { e->type_name = STR_NONE; }
static const char *name_of_length(int n) { return fixture_fmt("A%0*d", n - 1, 0); }

/* CE-3.1-3: `event_type` is required text of at most 100 characters. */
TEST_DB(canon_event_type_has_at_most_100_characters) {
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, url);
    check_door(no_type, "FIELD_EMPTY");
    check_json_door("\"eventType\":\"RunStarted\"", "\"eventType\":null", "FIELD_TYPE");
    fixture_put(&c, fixture_item(name_of_length(100), "r1", NULL, 1));
    CHECK(fixture_int(&c, "SELECT LENGTH(event_type) FROM orchestration_events") == 100);

    struct append_item longer = fixture_item("RunStarted", "r1", NULL, 1);
    longer.event.type_name = str_c(name_of_length(101));
    event_key_derive(&longer.event, longer.event.key);
    CHECK(event_validate(&longer.event, &err) == ST_INVALID && err.reason == REASON_FIELD_TOO_LONG,
          "%s", err.msg);
    /* What counts is the name in CANON's spelling: 50 capitals need 49 underscores, 51 do not fit.
     */
    fixture_put(&c,
                fixture_item("ABABABABABABABABABABABABABABABABABABABABABABABABAB", "r1", NULL, 1));
    CHECK(fixture_int(&c, "SELECT MIN(LENGTH(event_type)) FROM orchestration_events") == 99);
    longer.event.type_name = STR("ABABABABABABABABABABABABABABABABABABABABABABABABABA");
    event_key_derive(&longer.event, longer.event.key);
    CHECK(event_validate(&longer.event, &err) == ST_INVALID && err.reason == REASON_FIELD_TOO_LONG,
          "%s", err.msg);
    CHECK(insert_null(&c, "type_no") == ST_INVALID);
    CHECK(fixture_sql(&c, "INSERT INTO ledger_type(type_no, name, snake, family, lifecycle)"
                          " VALUES (5000, 'X', NULL, 'RUN', 0)") == ST_INVALID);
    fixture_close(&c);
}

/* CE-3.1-4: `aggregate_type` is SIGNAL, RUN, STEP or EFFECT, by the family of the event; a tool
 * call belongs to a step. */
TEST_DB(canon_aggregate_type_is_that_of_the_family) {
    struct fixture c;
    fixture_open(&c, url);
    str signal = fixture_uuid_text(uuid_v4());
    str effect = fixture_uuid_text(uuid_v4());
    fixture_put(&c, fixture_fact(EVENT_SIGNAL_RECEIVED, "r1", signal, 1, "{}"));
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "s", 1));
    fixture_put(&c, fixture_fact(EVENT_TOOL_CALLED, "r1", STR("s"), 1, "{}"));
    fixture_put(&c, fixture_fact(EVENT_EFFECT_REQUESTED, "r1", effect, 1, "{}"));
    fixture_put(&c, fixture_item("RunNoted", "r1", NULL,
                                 1)); /* unknown types: by whether they name a step */
    fixture_put(&c, fixture_item("StepNoted", "r1", "s", 1));
    str lines = fixture_lines(
        &c, "SELECT event_type||' '||aggregate_type FROM orchestration_events ORDER BY position");
    CHECK(text_is(lines,
                  "SIGNAL_RECEIVED SIGNAL\nRUN_STARTED RUN\nSTEP_STARTED STEP\nTOOL_CALLED STEP\n"
                  "EFFECT_REQUESTED EFFECT\nRUN_NOTED RUN\nSTEP_NOTED STEP\n"),
          "%.*s", STR_ARG(lines));
    CHECK(fixture_int(
              &c, "SELECT COUNT(*) FROM orchestration_events WHERE aggregate_type IS NULL") == 0);
    CHECK(fixture_sql(&c, "INSERT INTO ledger_type(type_no, name, snake, family, lifecycle)"
                          " VALUES (5000, 'X', 'X', NULL, 0)") == ST_INVALID);
    fixture_close(&c);
}

/* CE-3.1-5: `aggregate_id` is the UUID of the signal, run, step or effect, and never missing. */
TEST_DB(canon_aggregate_id_names_the_aggregate) {
    struct fixture c;
    struct error err = {0};
    struct append_item item;
    struct event ids = fixture_run_ids("r1");
    fixture_open(&c, url);
    CHECK(ledger_fact(&ids, EVENT_SIGNAL_RECEIVED, STR_NONE, 1, STR("{}"), &item, &err) ==
          ST_INVALID);
    CHECK(ledger_fact(&ids, EVENT_EFFECT_REQUESTED, STR("mail 1"), 1, STR("{}"), &item, &err) ==
          ST_INVALID);
    CHECK(ledger_fact(&ids, EVENT_TOOL_CALLED, STR(""), 1, STR("{}"), &item, &err) == ST_INVALID);

    uuid run_id = uuid_v4();
    uuid id;
    uuid run;
    const char *run_text = fixture_fmt("%.*s", STR_ARG(fixture_uuid_text(run_id)));
    fixture_put(&c, fixture_item("RunStarted", run_text, NULL,
                                 1)); /* a run id that is a UUID is shown as it is */
    str shown = fixture_text(&c, "SELECT aggregate_id FROM orchestration_events");
    CHECK(uuid_parse(shown, &id) && uuid_eq(id, run_id));

    fixture_put(&c, fixture_item("RunStarted", "r1", NULL,
                                 1)); /* any other becomes one, of its own in each tenant */
    fixture_put(&c, fixture_item("StepStarted", "r1", "load", 1));
    shown = fixture_text(&c, "SELECT aggregate_id FROM orchestration_events WHERE event_type = "
                             "'RUN_STARTED' AND run_id = 'r1'");
    CHECK(uuid_parse(shown, &run) &&
          uuid_eq(run, event_uuid_of(event_tenant_uuid(STR("acme")), STR("r1"))));
    CHECK(str_eq(shown, fixture_text(&c, "SELECT id FROM runs WHERE run_id = 'r1'")));
    shown = fixture_text(
        &c, "SELECT aggregate_id FROM orchestration_events WHERE event_type = 'STEP_STARTED'");
    CHECK(uuid_parse(shown, &id) && uuid_eq(id, event_uuid_of(run, STR("load"))));
    CHECK(str_eq(shown, fixture_text(&c, "SELECT id FROM steps WHERE run_id = 'r1'")));
    CHECK(insert_null(&c, "run_no") == ST_INVALID);
    CHECK(fixture_sql(&c, "INSERT INTO ledger_run(run_no, tenant_no, run_id, run_uuid, context_no, "
                          "correlation_id, opened_seq)"
                          " VALUES (99, 1, 'x', NULL, 1, 'x', 1)") == ST_INVALID);
    fixture_close(&c);
}

/* CE-3.1-6: `event_data` is JSON and never missing; an empty object is enough. */
TEST_DB(canon_event_data_is_required_json) {
    static const char *const bad[] = {
        "", "null", "[]", "1", "{", "{\"a\":1}}", "{\"a\":1,\"a\":2}", "\xff"};
    struct fixture c;
    struct append_item item;
    struct error err = {0};
    struct event ids = fixture_run_ids("r1");
    str signal = fixture_uuid_text(uuid_v4());
    fixture_open(&c, url);
    CHECK(ledger_fact(&ids, EVENT_SIGNAL_RECEIVED, signal, 1, STR_NONE, &item, &err) == ST_INVALID);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        CHECK(ledger_fact(&ids, EVENT_SIGNAL_RECEIVED, signal, 1, str_c(bad[i]), &item, &err) ==
                  ST_INVALID,
              "case %zu", i);
    }
    fixture_put(&c, fixture_fact(EVENT_SIGNAL_RECEIVED, "r1", signal, 1, "{}"));
    CHECK(text_is(fixture_text(&c, "SELECT event_data FROM orchestration_events"), "{}"));
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1)); /* no payload */
    fixture_put(&c, fixture_item_with("RunNoted", "r1", NULL, 1,
                                      "{\"n\":1e200000}")); /* more than jsonb can hold */
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events WHERE event_data IS NULL") ==
          0);
    str lines = fixture_lines(&c, "SELECT event_data FROM orchestration_events ORDER BY position");
    while (lines.len > 0) {
        str line;
        str rest;
        CHECK(str_split(lines, '\n', &line, &rest));
        CHECK(yyjson_is_obj(fixture_json(&c, line)), "%.*s", STR_ARG(line));
        lines = rest;
    }
    fixture_close(&c);
}

/* CE-3.1-7: `correlation_id` is a required UUID: every run has one. */
TEST_DB(canon_correlation_id_is_required) {
    struct fixture c;
    uuid id;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    CHECK(uuid_parse(fixture_text(&c, "SELECT correlation_id FROM orchestration_events"), &id));
    CHECK(uuid_eq(id, fixture_run(&c, "r1").correlation_id));
    CHECK(fixture_sql(&c, "INSERT INTO ledger_run(run_no, tenant_no, run_id, run_uuid, context_no, "
                          "correlation_id, opened_seq)"
                          " VALUES (99, 1, 'x', 'x', 1, NULL, 1)") == ST_INVALID);
    fixture_close(&c);
}

/* CE-3.1-8: `causation_id` is null for a root, else the id of an earlier event of the tenant; text
 * that is no UUID has no way in. */
TEST_DB(canon_causation_id_is_optional) {
    struct fixture c;
    uuid id;
    uuid other = uuid_v4();
    fixture_open(&c, url);
    struct append_item root = fixture_item("RunStarted", "r1", NULL, 1);
    fixture_put(&c, root);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events WHERE causation_id IS NULL") ==
          1);
    struct append_item caused = fixture_item("RunStarted", "r2", NULL, 1); /* of another run */
    caused.cause = &root.event.event_id;
    fixture_put(&c, caused);
    CHECK(uuid_parse(
        fixture_text(&c, "SELECT causation_id FROM orchestration_events WHERE run_id = 'r2'"),
        &id));
    CHECK(uuid_eq(id, root.event.event_id));
    struct append_item orphan = fixture_item("RunStarted", "r3", NULL, 1);
    orphan.cause = &other;
    fixture_refused(&c, orphan, ST_INVALID, "CAUSE_NOT_FOUND");
    static const char *const bad[] = {"", "evt-1", "7f0c1a3e2b5d4c6f8a9b0c1d2e3f4a5b",
                                      "{7f0c1a3e-2b5d-4c6f-8a9b-0c1d2e3f4a5b}"};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        CHECK(!uuid_parse(str_c(bad[i]), &id), "%s", bad[i]);
    fixture_close(&c);
}

/* CE-3.1-9: `actor` is optional text of at most 100 characters: who did it. */
TEST_DB(canon_actor_is_who_did_it) {
    struct fixture c;
    fixture_open(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events WHERE actor IS NULL") == 1);
    struct append_item cancel = fixture_item("RunCancelled", "r1", NULL, 1);
    cancel.actor = str_c(fixture_fmt("%0101d", 0));
    fixture_refused(&c, cancel, ST_INVALID, "FIELD_TOO_LONG");
    cancel.actor = STR("a\0b");
    fixture_refused(&c, cancel, ST_INVALID, "JSON_NUL");
    cancel.actor = STR("\xff");
    fixture_refused(&c, cancel, ST_INVALID, "JSON_UTF8");
    cancel.actor = STR("user:ann");
    fixture_put(&c, cancel);
    CHECK(text_is(
        fixture_text(&c,
                     "SELECT actor FROM orchestration_events WHERE event_type = 'RUN_CANCELLED'"),
        "user:ann"));
    struct append_item long_name = fixture_item("RunNoted", "r1", NULL, 1);
    long_name.actor = str_c(fixture_fmt("%0100d", 0));
    fixture_put(&c, long_name);
    CHECK(
        fixture_int(
            &c, "SELECT LENGTH(actor) FROM orchestration_events WHERE event_type = 'RUN_NOTED'") ==
        100);
    fixture_close(&c);
}

/* CE-3.1-10: `occurred_at` is the store's clock in the transaction, in UTC. */
TEST_DB(canon_occurred_at_is_the_store_clock) {
    struct fixture c;
    fixture_open(&c, url);
    c.now_us = FIXTURE_NOW_US + 123456;
    struct append_item items[] = {fixture_item("RunStarted", "r1", NULL, 1),
                                  fixture_item("RunNoted", "r1", NULL, 1)};
    struct append_result results[2];
    fixture_batch(&c, items, 2, false, results);
    CHECK(results[0].persisted_us == c.now_us &&
          results[1].persisted_us == c.now_us); /* one transaction, one time */
    c.now_us += 1;
    fixture_put(&c, fixture_item("RunCompleted", "r1", NULL, 1));
    str lines = fixture_lines(&c, "SELECT occurred_at FROM orchestration_events ORDER BY position");
    CHECK(text_is(lines, "2026-02-16T08:00:00.123456Z\n2026-02-16T08:00:00.123456Z\n2026-02-"
                         "16T08:00:00.123457Z\n"),
          "%.*s", STR_ARG(lines));
    fixture_close(&c);
}

/* CE-3.1-11: `sequence_number` counts within the tenant. */
TEST_DB(canon_sequence_number_counts_in_the_tenant) {
    struct fixture c;
    fixture_open(&c, url);
    for (int64_t i = 1; i <= 6; i++) {
        struct append_item item = fixture_item("RunNoted", i % 2 ? "odd" : "even", NULL, i);
        item.event.tenant_id = i % 2 ? STR("acme") : STR("globex");
        fixture_rekey(&item);
        struct append_result res = fixture_put(&c, item);
        CHECK(res.seq == (i + 1) / 2, "event %lld", (long long)i);
    }
    str lines = fixture_lines(
        &c,
        "SELECT run_id||' '||sequence_number FROM orchestration_events ORDER BY run_id, position");
    CHECK(text_is(lines, "even 1\neven 2\neven 3\nodd 1\nodd 2\nodd 3\n"), "%.*s", STR_ARG(lines));
    fixture_close(&c);
}
