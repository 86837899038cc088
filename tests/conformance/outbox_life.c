/* The life of an effect in the ledger: requested, executed, retried, dead, put back. */
#include "outbox_helper.h"

static const char mail[] =
    "{\"to\":[\"a@example.com\"],\"subject\":\"hi\",\"body_html\":\"<p>x</p>\"}";

static void open_with_run(struct fixture *c, str url) {
    fixture_open(c, url);
    fixture_put(c, fixture_item("RunStarted", "r1", NULL, 1));
}

/* CE-3.2-15, CE-4.4-2, CE-4.3-9, CE-10.1-2: a request is one EFFECT_REQUESTED and one outbox row
 * with the effect's values, PENDING. CE-4.3-7: no retries yet. */
TEST_DB(outbox_request_makes_event_and_row) {
    struct fixture c;
    open_with_run(&c, url);
    struct effect_info e = outbox_ask(&c, "r1", "SEND_EMAIL", mail);
    CHECK(text_is(outbox_facts(&c, e.effect.id), "EFFECT_REQUESTED\n"));
    str row = fixture_lines(
        &c,
        "SELECT o.status||' '||o.event_type||' '||o.retry_count||' '||o.max_retries||' '||"
        "o.aggregate_type||' '||COALESCE(o.next_retry_at,'-')||' '||COALESCE(o.processed_at,'-')"
        "||' '||f.status FROM outbox_events o JOIN effects f ON f.id = o.aggregate_id"
        " JOIN orchestration_events e ON e.id = o.id AND e.event_type = 'EFFECT_REQUESTED'"
        " AND e.aggregate_id = f.id AND e.correlation_id = o.correlation_id"
        " AND e.tenant_id = o.tenant_id AND e.occurred_at = o.created_at");
    CHECK(text_is(row, "PENDING SEND_EMAIL 0 3 EFFECT - - PENDING\n"), "%.*s", STR_ARG(row));
    str subject = fixture_text(&c, "SELECT {sqlite:json_extract(payload,'$.subject')}"
                                   "{postgres:payload->>'subject'} FROM outbox_events");
    CHECK(text_is(subject, "hi"));
    str key = fixture_text(&c, "SELECT idempotency_key FROM outbox_events");
    CHECK(str_ends(key, e.key) && key.len > e.key.len, "%.*s", STR_ARG(key));
    fixture_close(&c);
}

/* CE-4.2-1, CE-4.4-1, CE-4.2-4: whichever call of the database fails, before or after it did its
 * work, event and row are both there, or neither. */
TEST_DB(outbox_request_is_all_or_nothing) {
    for (int64_t n = 1; n < 40; n++) {
        struct fixture c;
        struct error err = {0};
        struct effect_info info;
        bool existing = false;
        fixture_open_faulty(&c, url, LEDGER_REJECT);
        if (n == 1) fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
        const char *payload = fixture_fmt("{\"n\":%d}", (int)n);
        struct effect_request request = {.run_id = STR("r1"),
                                         .type = STR("API_CALL"),
                                         .payload = str_c(payload),
                                         .max_retries = -1,
                                         .base_ms = -1};
        fixture_fail_at(&c, n, n % 2 == 0);
        status st = outbox_request(c.ledger, &request, &c.arena, &info, &existing, &err);
        fixture_close(&c);
        fixture_open(&c, url);
        int64_t rows = fixture_int(&c, "SELECT COUNT(*) FROM outbox_events");
        int64_t facts =
            fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events WHERE event_type ="
                            " 'EFFECT_REQUESTED'");
        CHECK(rows == facts, "call %d: %d rows, %d events", (int)n, (int)rows, (int)facts);
        if (st == ST_OK) {
            str id = fixture_uuid_text(info.effect.id);
            CHECK(fixture_int(&c,
                              fixture_fmt("SELECT COUNT(*) FROM outbox_events WHERE aggregate_id ="
                                          " '%.*s'",
                                          STR_ARG(id))) == 1,
                  "acknowledged, and not there");
        }
        fixture_close(&c);
    }
}

/* CE-3.2-16, CE-4.4-9: a claim is one EFFECT_EXECUTING, and the row is PROCESSING. CE-3.2-17,
 * CE-4.4-11, CE-4.3-5, CE-4.3-8: success is one EFFECT_COMPLETED caused by the request, and row and
 * effect are COMPLETED with the same result and time. */
TEST_DB(outbox_success) {
    struct fixture c;
    struct error err = {0};
    open_with_run(&c, url);
    struct effect_info e = outbox_ask(&c, "r1", "API_CALL", "{\"url\":\"https://x.example/\"}");
    c.now_us += 1000000;
    struct outbox_batch batch = outbox_take(&c, 10);
    CHECK(batch.count == 1 && batch.items[0].effect.executions == 1 && !batch.more);
    CHECK(text_is(fixture_text(&c, "SELECT status FROM outbox_events"), "PROCESSING"));
    CHECK(fixture_text(&c, "SELECT processed_at FROM outbox_events").ptr == NULL);
    CHECK(outbox_take(&c, 10).count == 0, "it is taken");
    c.now_us += 1000000;
    CHECK(outbox_complete(c.ledger, &batch.items[0], STR("{\"ok\":true}"), STR("w1"), &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK(text_is(outbox_facts(&c, e.effect.id),
                  "EFFECT_REQUESTED\nEFFECT_EXECUTING\nEFFECT_COMPLETED\n"));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events e JOIN orchestration_events q"
                          " ON q.id = e.causation_id WHERE q.event_type = 'EFFECT_REQUESTED'"
                          " AND e.event_type IN ('EFFECT_EXECUTING','EFFECT_COMPLETED')") == 2);
    str row = fixture_lines(
        &c, "SELECT o.status||' '||f.status||' '||{sqlite:o.result}{postgres:o.result::text}||' '||"
            "{sqlite:f.execution_result}{postgres:f.execution_result::text}||' '||o.processed_at"
            " FROM outbox_events o JOIN effects f ON f.id = o.aggregate_id AND f.executed_at ="
            " o.processed_at");
    CHECK(text_is(row, "COMPLETED COMPLETED {\"ok\":true} {\"ok\":true} "
                       "2026-02-16T08:00:02.000000Z\n"),
          "%.*s", STR_ARG(row));
    struct effect_info done = outbox_read(&c, e.effect.id);
    CHECK(text_is(done.result, "{\"ok\":true}") && done.effect.status == OUTBOX_COMPLETED);
    /* It ends once: a second answer changes nothing. */
    CHECK(outbox_fail(c.ledger, &batch.items[0], STR("X"), STR("late"), STR_NONE, STR("w1"), NULL,
                      &err) == ST_CONFLICT &&
          err.reason == REASON_EFFECT_MOVED);
    c.now_us += INT64_C(86400) * 1000000;
    CHECK(outbox_take(&c, 10).count == 0, "nothing is left to do");
    fixture_close(&c);
}

/* CE-3.2-18, CE-3.2-19, CE-3.3-3, CE-4.4-12, CE-4.4-15, CE-4.4-3, CE-4.4-4: a failure is one
 * EFFECT_FAILED with the seven members, then one EFFECT_RETRYING; the row is FAILED with the same
 * time, is not taken before it and is taken after it, by itself. */
TEST_DB(outbox_failure_is_retried) {
    struct fixture c;
    open_with_run(&c, url);
    struct effect_info e = outbox_ask(&c, "r1", "WEBHOOK_CALL", "{\"url\":\"https://x.example/\"}");
    int64_t waits[] = {2, 4, 8}; /* seconds, with base 1000 */
    for (size_t i = 0; i < COUNT_OF(waits); i++) {
        int64_t failed_at = c.now_us;
        CHECK(outbox_fail_once(&c, "SMTP_TIMEOUT", "Connection timeout after 30s"));
        struct effect_info now = outbox_read(&c, e.effect.id);
        CHECK(now.effect.status == OUTBOX_FAILED && now.effect.retry_count == (int64_t)i + 1);
        CHECK(now.effect.due_us == failed_at + waits[i] * 1000000);
        c.now_us = now.effect.due_us - 1;
        CHECK(outbox_take(&c, 10).count == 0, "a microsecond too early");
        c.now_us = now.effect.due_us;
    }
    str facts = outbox_facts(&c, e.effect.id);
    CHECK(text_is(facts, "EFFECT_REQUESTED\nEFFECT_EXECUTING\nEFFECT_FAILED\nEFFECT_RETRYING\n"
                         "EFFECT_EXECUTING\nEFFECT_FAILED\nEFFECT_RETRYING\n"
                         "EFFECT_EXECUTING\nEFFECT_FAILED\nEFFECT_RETRYING\n"),
          "%.*s", STR_ARG(facts));
    /* The newest of them, and the row: the view knows the time as the event tells it. */
#define DATA(name)                                                                                 \
    "{sqlite:json_extract(e.event_data,'$." name "')}{postgres:(e.event_data->>'" name "')}"
    str row = fixture_lines(
        &c,
        "SELECT " DATA("effect_type") "||' '||" DATA("error_code") "||' '||" DATA("error_message") "||' '||" DATA(
            "retry_count") " FROM outbox_events o"
                           " JOIN orchestration_events e ON e.event_type = 'EFFECT_FAILED' "
                           "AND " DATA("next_retry_at") " = o.next_retry_at AND " DATA(
                               "effect_id") " = o.aggregate_id JOIN runs r ON r.id = " DATA("run_"
                                                                                            "id"));
    CHECK(text_is(row, "WEBHOOK_CALL SMTP_TIMEOUT Connection timeout after 30s 3\n"), "%.*s",
          STR_ARG(row));
    str message = fixture_text(&c, "SELECT {sqlite:json_extract(error_details,'$.message')}"
                                   "{postgres:error_details->>'message'} FROM outbox_events");
    CHECK(text_is(message, "Connection timeout after 30s"));
    fixture_close(&c);
}

/* CE-7.2-1, CE-7.2-2, CE-7.2-3, CE-7.2-4, CE-7.1-1, CE-7.3-1, CE-3.2-20, CE-4.4-13: each type has
 * its executions and its delays; then it is dead, with message and stack, says so once, is retried
 * no more. */
TEST_DB(outbox_types_have_their_retries) {
    static const struct {
        const char *type;
        int executions;
        int delays[5];
    } types[] = {{"SEND_EMAIL", 4, {4, 8, 16}},
                 {"API_CALL", 6, {2, 4, 8, 16, 32}},
                 {"SOR_UPDATE", 2, {10}},
                 {"FAX", 4, {2, 4, 8}}};
    struct fixture c;
    open_with_run(&c, url);
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        const char *payload = fixture_fmt("{\"n\":\"%s\"}", types[t].type);
        struct effect_info e = outbox_ask(&c, "r1", types[t].type, payload);
        for (int i = 1; i <= types[t].executions; i++) {
            int64_t at = c.now_us;
            bool goes_on = outbox_fail_once(&c, "X", "no");
            struct effect_info now = outbox_read(&c, e.effect.id);
            CHECK(goes_on == (i < types[t].executions), "%s, execution %d", types[t].type, i);
            if (!goes_on) break;
            CHECK(now.effect.due_us - at == types[t].delays[i - 1] * INT64_C(1000000));
            c.now_us = now.effect.due_us;
        }
        str end = fixture_text(
            &c,
            fixture_fmt("SELECT o.status||' '||{sqlite:json_extract(o.error_details,'$.message')"
                        "||' '||json_extract(o.error_details,'$.stack')}{postgres:"
                        "(o.error_details->>'message')||' '||(o.error_details->>'stack')}"
                        " FROM outbox_events o WHERE o.event_type = '%s'",
                        types[t].type));
        CHECK(text_is(end, "DEAD_LETTER no at smtp.c"), "%.*s", STR_ARG(end));
        str facts = outbox_facts(&c, e.effect.id);
        CHECK(str_ends(facts, STR("EFFECT_FAILED\nEFFECT_DEAD_LETTERED\n")), "%.*s",
              STR_ARG(facts));
        c.now_us += INT64_C(86400) * 1000000;
        CHECK(outbox_take(&c, 10).count == 0, "nobody takes a dead letter");
    }
    fixture_close(&c);
}

/* CE-7.3-3, CE-7.3-4: dead letters are listed with what an operator needs, and only an operator
 * puts one back: exactly its four columns change, an event says who did it, and it is executed
 * again. */
TEST_DB(outbox_requeue) {
    struct fixture c;
    struct error err = {0};
    struct effect_info *list = NULL;
    size_t count = 0;
    int64_t next = 0;
    uuid ids[2];
    open_with_run(&c, url);
    for (int i = 0; i < 2; i++) {
        ids[i] = outbox_ask(&c, "r1", "SOR_UPDATE", fixture_fmt("{\"n\":%d}", i)).effect.id;
        for (int k = 0; k < 2; k++) {
            (void)outbox_fail_once(&c, "SOR_REFUSED", "policy");
            c.now_us += 20000000;
        }
    }
    struct outbox_filter dead = {.tenant_id = STR("acme"), .statuses = 1 << OUTBOX_DEAD_LETTER};
    CHECK(outbox_list(c.ledger, &dead, 10, &c.arena, &list, &count, &next, &err) == ST_OK &&
              count == 2 && next == 0,
          "%s", err.msg);
    CHECK(uuid_eq(list[0].effect.id, ids[1]) && text_is(list[0].effect.type, "SOR_UPDATE"));
    CHECK(text_is(list[0].error, "{\"code\":\"SOR_REFUSED\",\"message\":\"policy\",\"stack\":\"at "
                                 "smtp.c\"}"),
          "%.*s", STR_ARG(list[0].error));
    struct effect before = list[0].effect;
    CHECK(outbox_requeue(c.ledger, STR("evil"), ids[1], STR("eve"), STR_NONE, NULL, &err) ==
          ST_NOT_FOUND);
    CHECK(outbox_requeue(c.ledger, STR("acme"), ids[1], STR("ada"), STR("fixed"), NULL, &err) ==
              ST_OK,
          "%s", err.msg);
    struct effect_info after = outbox_read(&c, ids[1]);
    CHECK(after.effect.status == OUTBOX_PENDING && after.effect.retry_count == 0 &&
          after.error.ptr == NULL);
    CHECK(fixture_text(
              &c, fixture_fmt("SELECT next_retry_at FROM outbox_events WHERE aggregate_id = '%.*s'",
                              STR_ARG(fixture_uuid_text(ids[1]))))
              .ptr == NULL);
    CHECK(after.effect.executions == before.executions &&
          after.effect.max_retries == before.max_retries && str_eq(after.payload, list[0].payload));
    CHECK(outbox_read(&c, ids[0]).effect.status == OUTBOX_DEAD_LETTER, "the other one stays");
    str actor = fixture_text(&c, "SELECT actor FROM orchestration_events WHERE event_type ="
                                 " 'EFFECT_RETRYING' ORDER BY sequence_number DESC LIMIT 1");
    CHECK(text_is(actor, "ada"));
    CHECK(outbox_requeue(c.ledger, STR("acme"), ids[1], STR("ada"), STR_NONE, NULL, &err) ==
              ST_CONFLICT &&
          err.reason == REASON_EFFECT_NOT_DEAD);
    struct outbox_batch batch = outbox_take(&c, 10);
    CHECK(batch.count == 1 && uuid_eq(batch.items[0].effect.id, ids[1]) &&
          batch.items[0].effect.executions == 3);
    fixture_close(&c);
}

/* T35: a lease that nobody ended is claimable, counts as one execution, and may be the last. What
 * the first worker says afterwards is refused. */
TEST_DB(outbox_expired_lease_counts) {
    struct fixture c;
    struct error err = {0};
    open_with_run(&c, url);
    struct effect_info e = outbox_ask(&c, "r1", "SOR_UPDATE", "{}");
    struct outbox_batch first = outbox_take(&c, 10);
    c.now_us += 59999999;
    CHECK(first.count == 1 && outbox_take(&c, 10).count == 0, "its lease runs");
    c.now_us += 1;
    struct outbox_batch second = outbox_take(&c, 10);
    CHECK(second.count == 1 && second.items[0].effect.executions == 2 &&
          second.items[0].effect.retry_count == 1);
    CHECK(outbox_complete(c.ledger, &first.items[0], STR("{}"), STR("w1"), &err) == ST_CONFLICT &&
          err.reason == REASON_EFFECT_MOVED);
    c.now_us += 60000000;
    CHECK(outbox_take(&c, 10).count == 0, "SOR_UPDATE is tried twice at most");
    CHECK(outbox_read(&c, e.effect.id).effect.status == OUTBOX_DEAD_LETTER);
    str facts = outbox_facts(&c, e.effect.id);
    CHECK(text_is(facts, "EFFECT_REQUESTED\nEFFECT_EXECUTING\nEFFECT_FAILED\nEFFECT_RETRYING\n"
                         "EFFECT_EXECUTING\nEFFECT_FAILED\nEFFECT_DEAD_LETTERED\n"),
          "%.*s", STR_ARG(facts));
    fixture_close(&c);
}

/* A worker that ends gives back what it has not begun, and no retry is used up; at the start of the
 * one worker of a ledger, what was under way counts as executed. */
TEST_DB(outbox_release_and_expire) {
    struct fixture c;
    struct error err = {0};
    size_t count = 0;
    open_with_run(&c, url);
    struct effect_info e = outbox_ask(&c, "r1", "API_CALL", "{}");
    struct outbox_batch batch = outbox_take(&c, 10);
    CHECK(outbox_release(c.ledger, &batch.items[0], STR("w1"), &err) == ST_OK, "%s", err.msg);
    struct effect_info now = outbox_read(&c, e.effect.id);
    CHECK(now.effect.status == OUTBOX_PENDING && now.effect.retry_count == 0 &&
          now.effect.executions == 1);
    CHECK(outbox_release(c.ledger, &batch.items[0], STR("w1"), &err) == ST_OK, "said twice");
    batch = outbox_take(&c, 10);
    CHECK(batch.count == 1 && batch.items[0].effect.executions == 2);
    CHECK(outbox_expire(c.ledger, STR("w2"), 10, &count, &err) == ST_OK && count == 1, "%s",
          err.msg);
    now = outbox_read(&c, e.effect.id);
    CHECK(now.effect.status == OUTBOX_FAILED && now.effect.retry_count == 1);
    CHECK(outbox_release(c.ledger, &batch.items[0], STR("w1"), &err) == ST_OK ||
          err.reason == REASON_EFFECT_MOVED);
    CHECK(outbox_read(&c, e.effect.id).effect.status == OUTBOX_FAILED, "too late");
    CHECK(outbox_expire(c.ledger, STR("w2"), 10, &count, &err) == ST_OK && count == 0);
    batch = outbox_take(&c, 10);
    CHECK(batch.count == 1 && batch.items[0].effect.executions == 3, "it is due at once");
    fixture_clean(&c);
    fixture_close(&c);
}

/* CE-4.4-14, CE-7.3-2: a dead letter is told to each sink, once, in its own commit; an alert that
 * dies is told to nobody. */
TEST_DB(outbox_dead_letters_are_told) {
    struct outbox_sinks sinks = {
        .urls = {STR("https://chat.example/x"), STR("https://pager.example/y")}, .count = 2};
    struct fixture c;
    open_with_run(&c, url);
    outbox_tell(c.ledger, &sinks);
    struct effect_info e = outbox_ask(&c, "r1", "SOR_UPDATE", "{}");
    (void)outbox_fail_once(&c, "SOR_REFUSED", "policy");
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 1, "it is not dead yet");
    c.now_us += 20000000;
    CHECK(!outbox_fail_once(&c, "SOR_REFUSED", "policy"));
    str urls = fixture_lines(
        &c, "SELECT {sqlite:json_extract(payload,'$.url')}{postgres:payload->>'url'}"
            " FROM outbox_events WHERE event_type = 'WEBHOOK_CALL' ORDER BY position");
    CHECK(text_is(urls, "https://chat.example/x\nhttps://pager.example/y\n"), "%.*s",
          STR_ARG(urls));
    str body = fixture_text(
        &c, "SELECT {sqlite:json_extract(payload,'$.body')}{postgres:(payload->'body')::text}"
            " FROM outbox_events WHERE event_type = 'WEBHOOK_CALL' ORDER BY position LIMIT 1");
    yyjson_val *root = fixture_json(&c, body);
    CHECK(str_eq(fixture_member(root, "effect_id"), fixture_uuid_text(e.effect.id)));
    CHECK(text_is(fixture_member(root, "effect_type"), "SOR_UPDATE") &&
          text_is(fixture_member(root, "run_id"), "r1"));
    CHECK(str_eq(fixture_member(root, "correlation_id"), fixture_uuid_text(e.correlation)));
    CHECK(text_is(fixture_member(root, "error_code"), "SOR_REFUSED"));
    for (int i = 0; i < 4; i++) { /* the alerts die, too */
        struct outbox_batch batch = outbox_take(&c, 10);
        struct error err = {0};
        CHECK(batch.count == 2, "%zu", batch.count);
        for (size_t k = 0; k < 2; k++)
            CHECK(outbox_fail(c.ledger, &batch.items[k], STR("X"), STR("no"), STR_NONE, STR("w"),
                              NULL, &err) == ST_OK,
                  "%s", err.msg);
        c.now_us += 20000000;
    }
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 3 &&
          fixture_int(&c, "SELECT COUNT(*) FROM outbox_events WHERE status = 'DEAD_LETTER'") == 3);
    fixture_clean(&c);
    fixture_close(&c);
}

/* A clock that is set back holds up nothing but retries: new effects are due at once. */
TEST_DB(outbox_survives_a_clock_that_runs_back) {
    struct fixture c;
    struct error err = {0};
    open_with_run(&c, url);
    c.now_us += INT64_C(7200) * 1000000;
    fixture_put(&c, fixture_item("StepStarted", "r1", "a", 1));
    c.now_us -= INT64_C(3600) * 1000000;
    fixture_reopen(&c);
    struct effect_info e = outbox_ask(&c, "r1", "API_CALL", "{}");
    struct outbox_batch batch = outbox_take(&c, 10);
    CHECK(batch.count == 1, "it is due");
    CHECK(outbox_fail(c.ledger, &batch.items[0], STR("X"), STR("no"), STR_NONE, STR("w"), NULL,
                      &err) == ST_OK,
          "%s", err.msg);
    CHECK(outbox_take(&c, 10).count == 0, "not before its time");
    CHECK(outbox_read(&c, e.effect.id).effect.status == OUTBOX_FAILED);
    fixture_clean(&c);
    fixture_close(&c);
}

static void start_run_of(struct fixture *c, const char *tenant, const char *run) {
    struct append_item item = fixture_item("RunStarted", run, NULL, 1);
    item.event.tenant_id = str_c(tenant);
    fixture_rekey(&item);
    fixture_put(c, item);
}

/* Nor does it hold up other tenants: one was written to while the clock was a year ahead. The
 * leases of the others last as long as they should, and their retries come in time. */
TEST_DB(outbox_goes_by_each_tenants_time) {
    enum { HELD = 10 };
    const int64_t year_us = INT64_C(365) * 86400 * 1000000;
    struct fixture c;
    struct error err = {0};
    open_with_run(&c, url);
    for (int i = 0; i < HELD; i++)
        (void)outbox_ask(&c, "r1", "SOR_UPDATE", fixture_fmt("{\"n\":%d}", i));
    struct outbox_batch held = outbox_take(&c, HELD);
    for (size_t i = 0; i < HELD; i++)
        CHECK(outbox_fail(c.ledger, &held.items[i], STR("X"), STR("no"), STR_NONE, STR("w"), NULL,
                          &err) == ST_OK);
    c.now_us += 10000000;
    held = outbox_take(&c, HELD);
    CHECK(held.count == HELD, "for the last time");

    c.now_us += year_us;
    start_run_of(&c, "globex", "g1");
    c.now_us -= year_us - 1000000;
    fixture_reopen(&c);
    struct effect_info e = outbox_ask(&c, "r1", "API_CALL", "{}");
    struct effect_info ahead = outbox_ask(&c, "g1", "API_CALL", "{}");
    struct outbox_batch b = outbox_take(&c, HELD);
    CHECK(b.count == 2 && uuid_eq(b.items[0].effect.id, e.effect.id) &&
              uuid_eq(b.items[1].effect.id, ahead.effect.id),
          "%zu", b.count);
    CHECK(b.items[0].effect.due_us == c.now_us + 60000000);
    CHECK(outbox_fail(c.ledger, &b.items[0], STR("X"), STR("no"), STR_NONE, STR("w"), NULL, &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK(outbox_read(&c, e.effect.id).effect.due_us == c.now_us + 2000000);
    CHECK(outbox_complete(c.ledger, &b.items[1], STR("1"), STR("w"), &err) == ST_OK);
    for (size_t i = 0; i < HELD; i++)
        CHECK(outbox_complete(c.ledger, &held.items[i], STR("1"), STR("w"), &err) == ST_OK,
              "nobody else had it: %s", err.msg);
    c.now_us += 2000000;
    b = outbox_take(&c, HELD);
    CHECK(b.count == 1 && b.items[0].effect.executions == 2);
    c.now_us += 60000000;
    CHECK(outbox_take(&c, HELD).count == 1, "its lease ends");
    size_t ended = 0;
    CHECK(outbox_expire(c.ledger, STR("w"), 10, &ended, &err) == ST_OK && ended == 1);
    CHECK(outbox_take(&c, HELD).count == 1);
    fixture_clean(&c);
    fixture_close(&c);
}

/* RE-5.3.3-2: an event that the state of its run forbids is told to each sink by one outbox row,
 * which commits with the event and has its cause for a key: appended again it is no second alert.
 * It has everything that 5.4 asks for. */
TEST_DB(outbox_invalid_transitions_are_told) {
    struct outbox_sinks sinks = {
        .urls = {STR("https://chat.example/x"), STR("https://pager.example/y")}, .count = 2};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    outbox_tell(c.ledger, &sinks);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 0, "it was legal");
    struct append_item bad = fixture_item("StepCompleted", "r1", "s", 1);
    struct append_result first = fixture_try(&c, bad);
    CHECK(first.code == ST_OK && !first.duplicate);
    struct append_result again = fixture_try(&c, bad);
    CHECK(again.code == ST_OK && again.duplicate);
    str urls = fixture_lines(
        &c, "SELECT {sqlite:json_extract(payload,'$.url')}{postgres:payload->>'url'}"
            " FROM outbox_events ORDER BY position");
    CHECK(text_is(urls, "https://chat.example/x\nhttps://pager.example/y\n"), "%.*s",
          STR_ARG(urls));
    str body = fixture_text(
        &c, "SELECT {sqlite:json_extract(payload,'$.body')}{postgres:(payload->'body')::text}"
            " FROM outbox_events ORDER BY position LIMIT 1");
    yyjson_val *root = fixture_json(&c, body);
    str id = fixture_uuid_text(bad.event.event_id);
    CHECK(text_is(fixture_member(root, "code"), "INVALID_TRANSITION"));
    CHECK(text_is(fixture_member(root, "runId"), "r1") &&
          str_eq(fixture_member(root, "eventId"), id) &&
          text_is(fixture_member(root, "eventType"), "StepCompleted"));
    CHECK(str_eq(fixture_member(root, "tenantId"), bad.event.tenant_id) &&
          str_eq(fixture_member(root, "projectId"), bad.event.project_id) &&
          str_eq(fixture_member(root, "environmentId"), bad.event.environment_id));
    CHECK(text_is(fixture_member(root, "priorState"), "PENDING") &&
          text_is(fixture_member(root, "attemptedState"), "SUCCESS"));
    CHECK(fixture_member(root, "persistedAt").len > 0 && json_member(root, "runSeq"));
    str key = fixture_text(&c, "SELECT idempotency_key FROM outbox_events ORDER BY position");
    CHECK(memmem(key.ptr, key.len, id.ptr, id.len) != NULL, "%.*s", STR_ARG(key));
    /* One commit: the rows follow each other, at one time, and the event is their cause. */
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events WHERE event_type ="
                          " 'EFFECT_REQUESTED' AND causation_id = (SELECT id FROM"
                          " orchestration_events WHERE event_type = 'STEP_COMPLETED')") == 2);
    CHECK(fixture_int(&c, "SELECT COUNT(DISTINCT occurred_at) FROM orchestration_events WHERE"
                          " event_type IN ('EFFECT_REQUESTED','STEP_COMPLETED')") == 1);
    /* Another cause is another alert, also of a run that is over. */
    fixture_put(&c, fixture_item("RunCompleted", "r1", NULL, 1));
    fixture_put(&c, fixture_item("RunPaused", "r1", NULL, 1));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 4);
    fixture_clean(&c);
    fixture_close(&c);
}

/* RE-5.3.3-2: the event and what tells of it are stored together or not at all. */
TEST_DB(outbox_alerts_commit_with_their_event) {
    struct outbox_sinks sinks = {.urls = {STR("https://chat.example/x")}, .count = 1};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    outbox_tell(c.ledger, &sinks);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    struct append_item items[] = {fixture_item("StepCompleted", "r1", "s", 1),
                                  fixture_item("RunStarted", "r1", NULL, 1)};
    items[1].event.event_id = items[0].event.event_id; /* refused: the id is taken */
    items[1].event.logical_attempt = 7;
    fixture_rekey(&items[1]);
    struct append_result results[2];
    fixture_batch(&c, items, 2, true, results);
    CHECK(results[0].code != ST_OK && results[1].code != ST_OK);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 0);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events") == 1);
    fixture_batch(&c, items, 1, true, results);
    CHECK(results[0].code == ST_OK && fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 1);
    fixture_clean(&c);
    fixture_close(&c);
}
