/* One key, one effect: however often, by whomever and with whatever it is asked for. And what is
 * refused at the door leaves nothing behind. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/limits.h"
#include "ledger/writer.h"
#include "outbox_helper.h"

static void open_with_runs(struct fixture *c, str url) {
    fixture_open(c, url);
    fixture_put(c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(c, fixture_item("RunStarted", "r2", NULL, 1));
    struct append_item theirs = fixture_item("RunStarted", "g1", NULL, 1);
    theirs.event.tenant_id = STR("globex");
    fixture_rekey(&theirs);
    fixture_put(c, theirs);
}

static struct effect_request request_of(const char *run, const char *payload) {
    return (struct effect_request){.run_id = str_c(run),
                                   .type = STR("API_CALL"),
                                   .payload = str_c(payload),
                                   .max_retries = -1,
                                   .base_ms = -1};
}

/* ---- many at once ---- */

enum { REQUESTS = 50 };

struct asker {
    struct writer *writer;
    struct writer_call call;
    struct effect_request request;
    struct effect_info info;
    struct append_item item;
    struct append_result result;
    struct arena arena;
    struct error err;
    pthread_t thread;
    bool existing, through_outbox;
    status st;
};

static status ask_task(struct ledger *l, void *context, struct error *err) {
    struct asker *a = context;
    return outbox_request(l, &a->request, &a->arena, &a->info, &a->existing, err);
}

static void *ask(void *context) {
    struct asker *a = context;
    if (a->through_outbox)
        a->call = (struct writer_call){.task = ask_task, .task_context = a};
    else
        a->call.request = (struct append_request){
            .items = &a->item, .count = 1, .results = &a->result, .arena = &a->arena};
    a->st = writer_append(a->writer, &a->call, 60000, &a->err);
    return NULL;
}

/* Every second one asks as the outbox does, the others append the fact itself, so that several are
 * of one group. */
static void asker_init(struct asker *a, int i, struct writer *writer) {
    *a = (struct asker){.writer = writer, .through_outbox = i % 2 == 0};
    arena_init(&a->arena, 4096, SIZE_MAX);
    a->request = request_of("r1", fixture_fmt("{\"n\":%d,\"idempotency_key\":\"same\"}", i));
    str id = fixture_uuid_text(uuid_v4());
    a->item = fixture_fact(
        EVENT_EFFECT_REQUESTED, i % 4 == 1 ? "r1" : "r2", id, 1,
        fixture_fmt("{\"effect_id\":\"%.*s\",\"effect_type\":\"API_CALL\",\"idempotency_key\":"
                    "\"same\",\"max_retries\":5,\"base_delay_ms\":1000,\"payload\":{\"n\":%d,"
                    "\"idempotency_key\":\"same\"}}",
                    STR_ARG(id), i));
}

static void check_askers(struct asker *askers) {
    int firsts = 0;
    uuid first = askers[0].through_outbox ? askers[0].info.request_id : askers[0].result.event_id;
    for (int i = 0; i < REQUESTS; i++) {
        struct asker *a = &askers[i];
        CHECK(a->st == ST_OK, "request %d: %s", i, a->err.msg);
        CHECK(a->through_outbox || a->result.code == ST_OK, "request %d", i);
        firsts += a->through_outbox ? !a->existing : !a->result.duplicate;
        CHECK(uuid_eq(a->through_outbox ? a->info.request_id : a->result.event_id, first),
              "request %d has another effect", i);
        arena_release(&a->arena);
    }
    CHECK(firsts == 1, "%d were the first", firsts);
}

/* CE-5.1-5: 50 requests in parallel, from several runs: one effect, one row, one execution. On
 * PostgreSQL by two nodes. */
TEST_DB(outbox_parallel_requests_are_one) {
    static struct asker askers[REQUESTS];
    struct fixture nodes[2];
    struct writer *writers[2];
    struct error err = {0};
    open_with_runs(&nodes[0], url);
    int count = db_is_postgres(ledger_db(nodes[0].ledger)) ? 2 : 1;
    if (count == 2) fixture_open(&nodes[1], url);
    for (int i = 0; i < count; i++) {
        CHECK(writer_open(nodes[i].ledger, NULL, &writers[i], &err) == ST_OK, "%s", err.msg);
        nodes[i].ledger = NULL; /* the writer's */
    }
    for (int i = 0; i < REQUESTS; i++) {
        asker_init(&askers[i], i, writers[i / 4 % count]);
        CHECK(pthread_create(&askers[i].thread, NULL, ask, &askers[i]) == 0);
    }
    for (int i = 0; i < REQUESTS; i++)
        pthread_join(askers[i].thread, NULL);
    for (int i = 0; i < count; i++)
        writer_close(writers[i]);
    check_askers(askers);
    struct fixture *c = &nodes[0];
    fixture_reopen(c);
    CHECK(fixture_int(c, "SELECT COUNT(*) FROM outbox_events") == 1);
    CHECK(fixture_int(c, "SELECT COUNT(*) FROM orchestration_events WHERE event_type ="
                         " 'EFFECT_REQUESTED'") == 1);
    int calls = 0; /* at the receiver */
    for (struct outbox_batch b = outbox_take(c, 10); b.count > 0; b = outbox_take(c, 10)) {
        for (size_t i = 0; i < b.count; i++, calls++)
            CHECK(outbox_complete(c->ledger, &b.items[i], STR("{}"), STR("w"), &err) == ST_OK);
        c->now_us += INT64_C(3600) * 1000000;
    }
    CHECK(calls == 1, "%d", calls);
    fixture_clean(c);
    for (int i = 0; i < count; i++)
        fixture_close(&nodes[i]);
}

/* The same in one group: the second is answered with the first, which no database has seen. */
TEST_DB(outbox_requests_of_one_group_are_one) {
    struct fixture c;
    struct asker askers[4];
    struct append_item items[4];
    struct append_result results[4];
    open_with_runs(&c, url);
    for (int i = 0; i < 4; i++) {
        asker_init(&askers[i], i * 2 + 1, NULL);
        items[i] = askers[i].item;
        arena_release(&askers[i].arena);
    }
    fixture_batch(&c, items, 4, false, results);
    for (int i = 0; i < 4; i++)
        CHECK(results[i].code == ST_OK && results[i].duplicate == (i > 0) &&
              uuid_eq(results[i].event_id, items[0].event.event_id));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 1);
    /* Taken back with its group, the key is free again. */
    struct append_item more[] = {askers[0].item, fixture_item("RunStarted", "r1", NULL, 9)};
    uuid id = uuid_v4();
    more[0] = fixture_fact(EVENT_EFFECT_REQUESTED, "r1", fixture_uuid_text(id), 1, "{}");
    fixture_batch(&c, more, 2, true, results);
    CHECK(results[0].code == ST_CONFLICT && results[1].code == ST_CONFLICT);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 1);
    fixture_put(&c, more[0]);
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- asked for again ---- */

static struct effect_info ask_again(struct fixture *c, const struct effect_request *request,
                                    bool want_existing) {
    struct effect_info info = {0};
    struct error err = {0};
    bool existing = !want_existing;
    CHECK(outbox_request(c->ledger, request, &c->arena, &info, &existing, &err) == ST_OK, "%s",
          err.msg);
    CHECK(existing == want_existing);
    return info;
}

/* CE-5.2-1: success both times, the first payload is kept, and nothing is written the second time:
 * not from the same run, not from another of the tenant, not after the effect has ended. CE-5.1-1:
 * no row is without a key. */
TEST_DB(outbox_same_key_is_the_same_effect) {
    struct fixture c;
    struct error err = {0};
    open_with_runs(&c, url);
    struct effect_request first = request_of("r1", "{\"n\":1,\"idempotency_key\":\"k\"}");
    struct effect_info e = ask_again(&c, &first, false);
    str truth = fixture_truth_dump(&c);
    for (int round = 0; round < 3; round++) {
        struct effect_request again = request_of("r1", "{\"n\":2,\"idempotency_key\":\"k\"}");
        struct effect_info same = ask_again(&c, &again, true);
        CHECK(uuid_eq(same.effect.id, e.effect.id) && str_eq(same.payload, e.payload));
        again.run_id = STR("r2");
        again.type = STR("SEND_EMAIL");
        same = ask_again(&c, &again, true);
        CHECK(uuid_eq(same.effect.id, e.effect.id) && text_is(same.run_id, "r1") &&
              text_is(same.effect.type, "API_CALL"));
        uuid id = e.effect.id; /* the same effect by its id, with another key */
        again = request_of("r1", "{\"idempotency_key\":\"other\"}");
        again.id = &id;
        same = ask_again(&c, &again, true);
        CHECK(text_is(same.key, "k"));
        CHECK(str_eq(fixture_truth_dump(&c), truth), "something was written");
        if (round == 0) { /* then with nothing in memory, then of an effect that has ended */
            fixture_reopen(&c);
        } else if (round == 1) {
            struct outbox_batch b = outbox_take(&c, 10);
            CHECK(b.count == 1 &&
                  text_is(b.items[0].payload, "{\"n\":1,\"idempotency_key\":\"k\"}"));
            CHECK(outbox_complete(c.ledger, &b.items[0], STR("{}"), STR("w"), &err) == ST_OK);
            truth = fixture_truth_dump(&c);
        }
    }
    struct effect_request none = request_of("r1", "{\"n\":1}");
    struct effect_info other = ask_again(&c, &none, false);
    CHECK(other.key.len > 0 && !uuid_eq(other.effect.id, e.effect.id));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events WHERE idempotency_key IS NULL OR"
                          " idempotency_key NOT LIKE '%/_%'") == 0);
    str key = fixture_member(fixture_json(&c, other.payload), "idempotency_key");
    CHECK(str_eq(key, other.key), "receivers find the key in the payload");
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events e LEFT JOIN outbox_events o ON"
                          " o.aggregate_id = e.aggregate_id WHERE e.aggregate_type = 'EFFECT' AND"
                          " o.id IS NULL") == 0,
          "an event of no effect");
    fixture_clean(&c);
    fixture_close(&c);
}

TEST_DB(outbox_same_key_of_two_tenants) {
    struct fixture c;
    open_with_runs(&c, url);
    struct effect_request mine = request_of("r1", "{\"n\":1,\"idempotency_key\":\"k\"}");
    struct effect_request theirs = request_of("g1", "{\"n\":2,\"idempotency_key\":\"k\"}");
    struct effect_info a = ask_again(&c, &mine, false);
    struct effect_info b = ask_again(&c, &theirs, false);
    CHECK(!uuid_eq(a.effect.id, b.effect.id) && str_eq(a.key, b.key));
    CHECK(text_is(b.tenant_id, "globex") && text_is(a.tenant_id, "acme"));
    CHECK(fixture_int(&c, "SELECT COUNT(DISTINCT idempotency_key) FROM outbox_events") == 2);
    CHECK(outbox_take(&c, 10).count == 2);
    fixture_clean(&c);
    fixture_close(&c);
}

/* A row like the first one, but for what is given. */
#define COPY_OF(pos, tenant, type, key)                                                            \
    "INSERT INTO state_effect(effect_pos, tenant_no, run_no, effect_id, effect_type,"              \
    " idempotency_key, created_us, base_ms, last_seq) SELECT effect_pos + " pos ", " tenant        \
    ", run_no, {sqlite:randomblob(16)}{postgres:uuid_send(gen_random_uuid())}, " type ", " key     \
    ", created_us, base_ms, last_seq FROM state_effect"
#define COPY(pos, key) COPY_OF(pos, "tenant_no", "effect_type", key)
#define CHARS(n) "{sqlite:printf('%." n "c','k')}{postgres:repeat('k'," n ")}"

/* CE-4.3-4: no key, a key of 256 characters, a repeated key: no new row. */
TEST_DB(outbox_key_column) {
    struct fixture c;
    open_with_runs(&c, url);
    (void)outbox_ask(&c, "r1", "API_CALL", "{}");
    CHECK(fixture_sql(&c, COPY("1", "NULL")) != ST_OK);
    CHECK(fixture_sql(&c, COPY("2", CHARS("256"))) != ST_OK);
    CHECK(fixture_sql(&c, COPY("3", "idempotency_key")) != ST_OK);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM state_effect") == 1);
    /* and the same with 255 and a key of its own is a row: it was the key */
    CHECK(fixture_sql(&c, COPY("4", CHARS("255"))) == ST_OK);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM state_effect") == 2);
    fixture_close(&c);
}

/* CE-4.3-1: a row that is asked for without an id has one, which is a UUID and no other's, and the
 * tenant's; a row of no tenant is refused. CE-4.3-2: so is one without a type, or with one of 101
 * characters. */
TEST_DB(outbox_identity_and_type_columns) {
    struct fixture c;
    uuid id;
    open_with_runs(&c, url);
    (void)outbox_ask(&c, "r1", "API_CALL", "{}");
    CHECK(fixture_sql(&c, COPY_OF("1", "NULL", "effect_type", "'a'")) != ST_OK);
    CHECK(fixture_sql(&c, COPY_OF("2", "tenant_no", "NULL", "'b'")) != ST_OK);
    CHECK(fixture_sql(&c, COPY_OF("3", "tenant_no", CHARS("101"), "'c'")) != ST_OK);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM state_effect") == 1);
    CHECK(fixture_sql(&c, COPY_OF("4", "tenant_no", CHARS("100"), "'d'")) == ST_OK);
    fixture_must_sql(&c, "DELETE FROM state_effect WHERE idempotency_key = 'd'");
    (void)outbox_ask(&c, "r1", "API_CALL", "{\"n\":2}");
    CHECK(fixture_int(&c, "SELECT COUNT(DISTINCT id) FROM outbox_events") == 2);
    CHECK(fixture_int(&c,
                      "SELECT COUNT(*) FROM outbox_events o JOIN tenants t ON t.id = o.tenant_id"
                      " WHERE t.tenant_id = 'acme'") == 2);
    CHECK(uuid_parse(fixture_text(&c, "SELECT id FROM outbox_events"), &id));
    CHECK(uuid_parse(fixture_text(&c, "SELECT tenant_id FROM outbox_events"), &id));
    fixture_clean(&c);
    fixture_close(&c);
}

/* The longest key that is taken fits the column with its tenant. */
TEST_DB(outbox_longest_key) {
    struct fixture c;
    open_with_runs(&c, url);
    const char *key = fixture_fmt("%0235d", 7);
    struct effect_request r = request_of("r1", fixture_fmt("{\"idempotency_key\":\"%s\"}", key));
    struct effect_info e = ask_again(&c, &r, false);
    CHECK(text_is(e.key, key));
    (void)ask_again(&c, &r, true);
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- refused ---- */

static void refused(struct fixture *c, const struct effect_request *request, status code,
                    const char *reason) {
    struct effect_info info = {0};
    struct error err = {0};
    bool existing = false;
    str truth = fixture_truth_dump(c);
    status st = outbox_request(c->ledger, request, &c->arena, &info, &existing, &err);
    CHECK(st == code && err.reason && strcmp(reason_name(err.reason), reason) == 0,
          "%.*s %.*s: status %d, %s: %s", STR_ARG(request->type),
          (int)(request->payload.len < 99 ? request->payload.len : 99), request->payload.ptr,
          (int)st, reason_name(err.reason), err.msg);
    CHECK(str_eq(fixture_truth_dump(c), truth) &&
              fixture_int(c, "SELECT COUNT(*) FROM state_effect") == 0,
          "something was written");
}

/* CE-4.3-3: without a payload, or with one that is no object, there is no effect. */
TEST_DB(outbox_refuses_at_the_door) {
    static const struct {
        const char *payload, *reason;
    } payloads[] = {
        {NULL, "EFFECT_PAYLOAD_INVALID"},
        {"[]", "EFFECT_PAYLOAD_INVALID"},
        {"\"x\"", "EFFECT_PAYLOAD_INVALID"},
        {"null", "EFFECT_PAYLOAD_INVALID"},
        {"{", "JSON_SYNTAX"},
        {"{} {}", "JSON_SYNTAX"},
        {"{\"a\":1,\"a\":2}", "JSON_DUPLICATE_KEY"},
        {"{\"a\":\"\\u0000\"}", "JSON_NUL"},
        {"{\"a\":\"\xff\"}", "JSON_UTF8"},
        {"{\"idempotency_key\":\"\"}", "EFFECT_KEY_INVALID"},
        {"{\"idempotency_key\":null}", "EFFECT_KEY_INVALID"},
        {"{\"idempotency_key\":\"a\\u0007\"}", "EFFECT_KEY_INVALID"},
        {"{\"idempotency_key\":\"a\\r\\nX-Evil: 1\"}", "EFFECT_KEY_INVALID"},
        {"{\"idempotency_key\":\"k\\u00e9\"}", "EFFECT_KEY_INVALID"},
        {"{\"headers\":{\"Authorization\":\"Bearer x\"}}", "EFFECT_SECRET_PLAIN"},
        {"{\"headers\":{\"aUTHORIZATION\":\"\"}}", "EFFECT_SECRET_PLAIN"},
        {"{\"headers\":{\"Accept\":\"*/*\",\"cookie\":\"a=b\"}}", "EFFECT_SECRET_PLAIN"},
        {"{\"headers\":{\"X-API-Key\":\"abc\"}}", "EFFECT_SECRET_PLAIN"},
        {"{\"headers\":{\"Proxy-Authorization\":\"Basic eA==\"}}", "EFFECT_SECRET_PLAIN"},
        {"{\"headers\":{\"Authorization\":[\"Bearer x\"]}}", "EFFECT_SECRET_PLAIN"},
        {"{\"headers\":{\"Authorization\":{\"value\":\"Bearer x\"}}}", "EFFECT_SECRET_PLAIN"},
        {"{\"headers\":{\"X-Api-Key\":12345}}", "EFFECT_SECRET_PLAIN"},
        {"{\"url\":\"https://me:word@example.com/\"}", "EFFECT_SECRET_PLAIN"},
        {"{\"url\":\"http://a@b@example.com?x\"}", "EFFECT_SECRET_PLAIN"},
    };
    static const char *const types[] = {"", "A B", "A/B", "\xc3\xa9", "A\n", "A'B"};
    struct fixture c;
    open_with_runs(&c, url);
    for (size_t i = 0; i < COUNT_OF(payloads); i++) {
        struct effect_request r = request_of("r1", payloads[i].payload);
        refused(&c, &r, ST_INVALID, payloads[i].reason);
    }
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct effect_request r = request_of("r1", "{}");
        r.type = str_c(types[i]);
        refused(&c, &r, ST_INVALID, "EFFECT_TYPE_INVALID");
    }
    struct effect_request r = request_of("r1", "{}");
    r.type = str_c(fixture_fmt("%0101d", 0));
    refused(&c, &r, ST_INVALID, "EFFECT_TYPE_INVALID");
    r = request_of("r1", "{}");
    r.max_retries = EFFECT_RETRIES_MAX + 1;
    refused(&c, &r, ST_INVALID, "EFFECT_PAYLOAD_INVALID");
    r = request_of("r1", "{}");
    r.base_ms = EFFECT_DELAY_MAX_MS + 1;
    refused(&c, &r, ST_INVALID, "EFFECT_PAYLOAD_INVALID");
    r = request_of("nowhere", "{}");
    refused(&c, &r, ST_NOT_FOUND, "RUN_NOT_FOUND");
    r = request_of("g1", "{}");
    r.tenant_id = STR("acme");
    refused(&c, &r, ST_NOT_FOUND, "RUN_NOT_FOUND");
    uuid stranger = uuid_v4();
    r = request_of("r1", "{}");
    r.cause = &stranger;
    refused(&c, &r, ST_INVALID, "CAUSE_NOT_FOUND");
    /* And what looks like it, and is none of it. */
    (void)outbox_ask(&c, "r1", "a-Z_0.9",
                     "{\"headers\":{\"Authorization\":{\"secret\":\"TOKEN\"},\"X-Api-Keys\":\"1\"},"
                     "\"authorization\":\"no header\",\"url\":\"https://example.com/@me?a@b\"}");
    fixture_clean(&c);
    fixture_close(&c);
}

static const char *filled(struct fixture *c, const char *before, size_t count, char fill,
                          const char *after) {
    size_t head = strlen(before);
    char *text = arena_alloc(&c->arena, head + count + strlen(after) + 1);
    memcpy(text, before, head);
    memset(text + head, fill, count);
    memcpy(text + head + count, after, strlen(after) + 1);
    return text;
}

static const char *nested(struct fixture *c, size_t depth) {
    const char *open = filled(c, "{\"a\":", depth, '[', "");
    return filled(c, open, depth, ']', "}");
}

TEST_DB(outbox_large_and_deep_payloads) {
    struct fixture c;
    open_with_runs(&c, url);
    struct effect_request r =
        request_of("r1", filled(&c, "{\"a\":\"", EVENT_BYTES_MAX, 'x', "\"}"));
    refused(&c, &r, ST_LIMIT, "JSON_TOO_LARGE");
    r = request_of("r1", nested(&c, JSON_DEPTH_MAX));
    refused(&c, &r, ST_LIMIT, "JSON_DEPTH");
    r = request_of("r1", nested(&c, 100000));
    refused(&c, &r, ST_LIMIT, "JSON_DEPTH");
    struct effect_info big =
        outbox_ask(&c, "r1", "API_CALL", filled(&c, "{\"a\":\"", (size_t)250 * 1024, 'x', "\"}"));
    struct effect_info deep = outbox_ask(&c, "r1", "API_CALL", nested(&c, JSON_DEPTH_MAX - 5));
    fixture_reopen(&c);
    struct outbox_batch b = outbox_take(&c, 10);
    CHECK(b.count == 2 && str_eq(b.items[0].payload, big.payload) &&
          str_eq(b.items[1].payload, deep.payload));
    CHECK(b.items[0].payload.len > (size_t)250 * 1024);
    /* What the receiver says may be too much, but not its failure. */
    struct error err = {0};
    const char *huge = filled(&c, "", EVENT_BYTES_MAX, 'x', "");
    CHECK(outbox_complete(c.ledger, &b.items[0],
                          str_c(filled(&c, "\"", EVENT_BYTES_MAX, 'x', "\"")), STR("w"),
                          &err) == ST_LIMIT);
    CHECK(outbox_fail(c.ledger, &b.items[0], str_c(huge), str_c(huge), str_c(huge), STR("w"), NULL,
                      &err) == ST_OK,
          "%s", err.msg);
    CHECK(outbox_fail(c.ledger, &b.items[1], STR("C\0D"), STR("\xff\xfe\0no"), STR("\x01"),
                      STR("w"), NULL, &err) == ST_OK,
          "%s", err.msg);
    str error = outbox_read(&c, deep.effect.id).error;
    CHECK(text_is(error, "{\"code\":\"C\",\"message\":\"\xef\xbf\xbd\xef\xbf\xbd\","
                         "\"stack\":\"\\u0001\"}"),
          "%.*s", STR_ARG(error));
    CHECK(outbox_read(&c, big.effect.id).effect.status == OUTBOX_FAILED);
    fixture_clean(&c);
    fixture_close(&c);
}

/* An id belongs to one effect; in the same run it is that effect, asked for again. */
TEST_DB(outbox_id_of_another_run) {
    struct fixture c;
    struct effect_info info = {0};
    struct error err = {0};
    bool existing = false;
    open_with_runs(&c, url);
    uuid id = outbox_ask(&c, "r1", "API_CALL", "{}").effect.id;
    static const char *const runs[] = {"r2", "g1"};
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        struct effect_request r = request_of(runs[i], "{\"other\":1}");
        r.id = &id;
        CHECK(outbox_request(c.ledger, &r, &c.arena, &info, &existing, &err) == ST_CONFLICT &&
                  err.reason == REASON_EFFECT_ID_TAKEN,
              "%s", err.msg);
    }
    str fresh = fixture_uuid_text(uuid_v4()); /* in one group, and of a tenant that is new */
    struct append_item items[] = {
        fixture_fact(EVENT_EFFECT_REQUESTED, "r1", fresh, 1, "{}"),
        fixture_fact(EVENT_EFFECT_REQUESTED, "n1", fresh, 1, "{}"),
        fixture_item("RunStarted", "r3", NULL, 1),
    };
    struct append_result results[3];
    items[1].event.tenant_id = STR("initech");
    event_key_derive(&items[1].event, items[1].event.key);
    fixture_batch(&c, items, 3, false, results);
    CHECK(results[0].code == ST_OK && results[2].code == ST_OK);
    CHECK(results[1].code == ST_CONFLICT && results[1].err->reason == REASON_EFFECT_ID_TAKEN);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 2);
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- during a commit ---- */

struct overlap {
    struct append_item items[2];
    struct append_result results[2];
    struct append_request request, *pointer;
};

static void overlap_make(struct overlap *b, struct fixture *c, struct append_item first,
                        const struct append_item *second) {
    b->items[0] = first;
    if (second) b->items[1] = *second;
    b->request = (struct append_request){
        .items = b->items, .count = second ? 2 : 1, .results = b->results, .arena = &c->arena};
    b->pointer = &b->request;
}

/* What a group made during a commit says of an effect holds when that commit has ended: it goes on
 * with it, is taken back without a trace, and waits if it asks for the key that is on its way. */
TEST(outbox_groups_beside_a_commit) {
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, test_postgres());
    c.options.always_overlap = true;
    fixture_reopen(&c);
    fixture_put(&c, fixture_item("RunStarted", "r1", NULL, 1));
    /* Its types are known: only what is about effects keeps a group waiting. */
    str old = fixture_uuid_text(uuid_v4());
    fixture_put(&c, fixture_fact(EVENT_EFFECT_REQUESTED, "r1", old, 1, "{}"));
    fixture_put(&c, fixture_fact(EVENT_EFFECT_EXECUTING, "r1", old, 1, "{}"));
    for (int kind = 0; kind < 3; kind++) {
        static struct overlap first;
        static struct overlap next;
        str id = fixture_uuid_text(uuid_v4());
        struct append_item request = fixture_fact(EVENT_EFFECT_REQUESTED, "r1", id, 1, "{}");
        struct append_item claim = fixture_fact(EVENT_EFFECT_EXECUTING, "r1", id, 1, "{}");
        struct append_item odd = fixture_item("RunNoted", "r1", NULL, kind + 1);
        odd.event.plan_version = str_c(fixture_fmt("new%d", kind)); /* not known yet */
        fixture_rekey(&odd);
        str twin = fixture_uuid_text(uuid_v4()); /* another effect, with the key of the first */
        struct append_item again =
            fixture_fact(EVENT_EFFECT_REQUESTED, "r1", twin, 1,
                         fixture_fmt("{\"effect_type\":\"API_CALL\",\"idempotency_key\":\"%.*s\","
                                     "\"max_retries\":5,\"base_delay_ms\":1,\"payload\":{}}",
                                     STR_ARG(id)));
        overlap_make(&first, &c, request, NULL);
        overlap_make(&next, &c, claim, kind == 1 ? &odd : kind == 2 ? &again : NULL);
        CHECK(ledger_stage(c.ledger, &first.pointer, 1, &err) == ST_OK, "%s", err.msg);
        CHECK(ledger_finish(c.ledger, &err) == ST_OK, "%s", err.msg);
        status st = ledger_stage(c.ledger, &next.pointer, 1, &err);
        CHECK(st == (kind == 0 ? ST_OK : ST_CONFLICT), "kind %d: status %d, %s", kind, (int)st,
              err.msg);
        CHECK(ledger_settle(c.ledger, &err) == ST_OK && first.results[0].code == ST_OK, "%s",
              err.msg);
        if (kind == 0)
            CHECK(ledger_finish(c.ledger, &err) == ST_OK && ledger_settle(c.ledger, &err) == ST_OK);
        else
            CHECK(ledger_append(c.ledger, &next.pointer, 1, &err) == ST_OK, "%s", err.msg);
        CHECK(next.results[0].code == ST_OK && !next.results[0].duplicate);
        CHECK(kind != 2 || (next.results[1].code == ST_OK && next.results[1].duplicate));
        str row =
            fixture_text(&c, fixture_fmt("SELECT status || ' ' || executions FROM outbox_events"
                                         " WHERE aggregate_id = '%.*s'",
                                         STR_ARG(id)));
        CHECK(text_is(row, "PROCESSING 1"), "kind %d: %.*s", kind, STR_ARG(row));
        fixture_clean(&c);
    }
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM outbox_events") == 4);
    fixture_close(&c);
}
