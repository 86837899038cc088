/* What stands beside the events: receipts, the audit trail, keys, plans; and that riders commit
 * with the events they travel with, or not at all. */
#include "conformance/fixture.h"
#include "ledger/access/access.h"

#define DAY_US RECEIPT_KEEP_US

static struct receipt receipt_of(const char *key, int http_status, const char *body) {
    struct receipt r = {.scope = STR("alice"),
                        .key = str_c(key),
                        .http_status = http_status,
                        .body = str_c(body),
                        .location = STR("/v1/runs/r1")};
    memset(r.fingerprint, key[0], sizeof(r.fingerprint));
    return r;
}

static struct audit_entry audit_of(const char *tenant, const char *action, const char *target) {
    return (struct audit_entry){.tenant_id = str_c(tenant),
                                .actor = STR("alice"),
                                .remote = STR("127.0.0.1"),
                                .request_id = STR("req-1"),
                                .action = str_c(action),
                                .target = str_c(target),
                                .outcome = STR("done")};
}

static void ride(struct fixture *c, const struct receipt *receipt,
                 const struct audit_entry *audit) {
    struct append_rider rider = {.receipt = receipt, .audit = audit};
    struct error err = {0};
    CHECK(access_ride(c->ledger, &rider, &err) == ST_OK, "%s", err.msg);
}

static status find(struct fixture *c, const char *scope, const char *key, struct receipt *out) {
    struct error err = {0};
    return receipt_find(c->ledger, str_c(scope), str_c(key), &c->arena, out, &err);
}

static int64_t receipts(struct fixture *c) {
    return fixture_int(c, "SELECT COUNT(*) FROM api_receipt");
}
static int64_t audits(struct fixture *c) { return fixture_int(c, "SELECT COUNT(*) FROM audit"); }

/* One request with riders. */
static void append_with(struct fixture *c, struct append_item *items, size_t count, bool atomic,
                        const struct append_rider *riders, struct append_result *results) {
    struct append_request req = {.items = items,
                                 .count = count,
                                 .atomic = atomic,
                                 .results = results,
                                 .arena = &c->arena,
                                 .riders = riders};
    struct append_request *reqs[] = {&req};
    struct error err = {0};
    CHECK(ledger_append(c->ledger, reqs, 1, &err) == ST_OK, "%s", err.msg);
}

/* ---- receipts ---- */

TEST_DB(access_receipt_is_repeated_verbatim) {
    struct fixture c;
    struct receipt out;
    fixture_open(&c, url);
    struct receipt r = receipt_of("k1", 201, "{\"runId\":\"r\xc3\xa9\"}\n");
    CHECK(find(&c, "alice", "k1", &out) == ST_NOT_FOUND);
    ride(&c, &r, NULL);
    fixture_reopen(&c);
    CHECK(find(&c, "alice", "k1", &out) == ST_OK);
    CHECK(str_eq(out.body, r.body) && str_eq(out.location, r.location) && out.http_status == 201);
    CHECK(memcmp(out.fingerprint, r.fingerprint, SHA256_LEN) == 0);
    CHECK(str_eq(out.scope, r.scope) && str_eq(out.key, r.key) && out.created_us == c.now_us);
    CHECK(find(&c, "bob", "k1", &out) == ST_NOT_FOUND); /* another caller's */
    CHECK(find(&c, "alice", "K1", &out) == ST_NOT_FOUND);
    CHECK(find(&c, "alicek", "1", &out) == ST_NOT_FOUND);
    struct receipt bare = receipt_of("k2", 202, NULL); /* carried out again: nothing to repeat */
    bare.location = STR_NONE;
    ride(&c, &bare, NULL);
    CHECK(find(&c, "alice", "k2", &out) == ST_OK);
    CHECK(!out.body.ptr && !out.location.ptr && out.http_status == 202);
    fixture_close(&c);
}

/* A request may leave several, one for each part of what it did. */
TEST_DB(access_receipts_of_one_key_are_listed) {
    struct fixture c;
    struct error err = {0};
    struct receipt *list = NULL;
    size_t count = 9;
    fixture_open(&c, url);
    const char *const bodies[] = {"one", NULL, "three"};
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        struct receipt r = receipt_of("k", 200, bodies[i]);
        ride(&c, &r, NULL);
    }
    struct receipt foreign = receipt_of("other", 200, "x");
    ride(&c, &foreign, NULL);
    CHECK(receipt_list(c.ledger, STR("alice"), STR("k"), 9, &c.arena, &list, &count, &err) == ST_OK,
          "%s", err.msg);
    CHECK(count == 3 && str_eq(list[0].body, STR("one")) && !list[1].body.ptr &&
          str_eq(list[2].body, STR("three")) && str_eq(list[2].key, STR("k")));
    CHECK(receipt_list(c.ledger, STR("alice"), STR("k"), 2, &c.arena, &list, &count, &err) ==
          ST_OK);
    CHECK(count == 2 && str_eq(list[0].body, STR("one")));
    CHECK(receipt_list(c.ledger, STR("bob"), STR("k"), 9, &c.arena, &list, &count, &err) == ST_OK);
    CHECK(count == 0);
    fixture_close(&c);
}

/* A receipt that is there stays as it was; one that is too old does not stand in the way. */
TEST_DB(access_receipt_is_kept_for_a_day) {
    struct fixture c;
    struct receipt out;
    struct error err = {0};
    bool more = true;
    fixture_open(&c, url);
    struct receipt first = receipt_of("k", 201, "first");
    struct receipt second = receipt_of("k", 201, "second");
    ride(&c, &first, NULL);
    c.now_us += DAY_US - 1;
    ride(&c, &second, NULL);
    CHECK(find(&c, "alice", "k", &out) == ST_OK && text_is(out.body, "first"));
    CHECK(receipt_sweep(c.ledger, 10, &more, &err) == ST_OK && !more && receipts(&c) == 2);
    c.now_us += 1;
    CHECK(find(&c, "alice", "k", &out) == ST_OK && text_is(out.body, "second"));
    CHECK(receipt_sweep(c.ledger, 1, &more, &err) == ST_OK && more && receipts(&c) == 1);
    CHECK(find(&c, "alice", "k", &out) == ST_OK && text_is(out.body, "second"));
    CHECK(receipt_sweep(c.ledger, 1, &more, &err) == ST_OK && !more && receipts(&c) == 1);
    c.now_us += DAY_US;
    CHECK(find(&c, "alice", "k", &out) == ST_NOT_FOUND);
    fixture_close(&c);
}

TEST_DB(access_sweep_is_bounded_and_takes_the_oldest) {
    struct fixture c;
    struct error err = {0};
    bool more = false;
    fixture_open(&c, url);
    for (int i = 0; i < 7; i++) {
        struct receipt r = receipt_of(fixture_fmt("old-%d", i), 200, "{}");
        ride(&c, &r, NULL);
    }
    c.now_us += DAY_US;
    struct receipt young = receipt_of("young", 200, "{}");
    ride(&c, &young, NULL);
    for (int left = 8; left > 2; left -= 3) {
        CHECK(receipt_sweep(c.ledger, 3, &more, &err) == ST_OK, "%s", err.msg);
        CHECK(more && receipts(&c) == left - 3);
    }
    CHECK(receipt_sweep(c.ledger, 3, &more, &err) == ST_OK && !more && receipts(&c) == 1);
    CHECK(receipt_sweep(c.ledger, 3, &more, &err) == ST_OK && !more && receipts(&c) == 1);
    struct receipt out;
    CHECK(find(&c, "alice", "young", &out) == ST_OK);
    fixture_close(&c);
}

/* ---- riders ---- */

TEST_DB(access_riders_commit_with_their_events) {
    struct fixture c;
    struct append_result results[2];
    struct receipt out;
    fixture_open(&c, url);
    struct receipt r = receipt_of("k", 201, "{}");
    struct audit_entry a = audit_of("acme", "run.start", "r1");
    struct audit_entry b = audit_of("acme", "run.signal", "r1");
    struct append_rider second = {.audit = &b};
    struct append_rider riders = {.next = &second, .receipt = &r, .audit = &a};
    struct append_item items[2] = {fixture_item("RunStarted", "r1", NULL, 1),
                                   fixture_item("RunStarted", "r1", NULL, 2)};
    /* An atomic request with a bad item is refused, and its riders with it. */
    append_with(&c, items, 2, true, &riders, results);
    CHECK(results[0].code == ST_CONFLICT && results[1].code == ST_CONFLICT);
    CHECK(receipts(&c) == 0 && audits(&c) == 0);
    /* So is a request of which nothing is left. */
    items[0] = fixture_item("RunStarted", "r1", NULL, 1);
    items[0].actor = str_n(fixture_fmt("%0200d", 0), 200);
    append_with(&c, items, 1, false, &riders, results);
    CHECK(results[0].code != ST_OK && receipts(&c) == 0 && audits(&c) == 0);
    /* One good item is enough, */
    items[0] = fixture_item("RunStarted", "r1", NULL, 1);
    append_with(&c, items, 2, false, &riders, results);
    CHECK(results[0].code == ST_OK && results[1].code == ST_CONFLICT);
    CHECK(receipts(&c) == 1 && audits(&c) == 2 && find(&c, "alice", "k", &out) == ST_OK);
    CHECK(out.created_us == c.now_us);
    CHECK(text_is(fixture_lines(&c, "SELECT action FROM audit ORDER BY audit_no"),
                  "run.start\nrun.signal\n"));
    /* and a duplicate is: what was asked for is there. */
    append_with(&c, items, 1, true, &riders, results);
    CHECK(results[0].code == ST_OK && results[0].duplicate && audits(&c) == 4);
    fixture_clean(&c);
    fixture_close(&c);
}

/* Two requests of one group with the same key: both are answered, the first one's receipt counts.
 */
TEST_DB(access_same_key_twice_in_a_group) {
    struct fixture c;
    struct receipt out;
    struct error err = {0};
    fixture_open(&c, url);
    enum { N = 150 }; /* enough for each way of sending rows */
    struct append_request reqs[N];
    struct append_request *list[N];
    static struct append_item items[N];
    static struct append_result results[N];
    static struct receipt r[N];
    static struct audit_entry a[N];
    static struct append_rider riders[N];
    for (int i = 0; i < N; i++) {
        items[i] = fixture_item("RunStarted", fixture_fmt("r%d", i), NULL, 1);
        r[i] = receipt_of("same", 201, fixture_fmt("body %d", i));
        a[i] = audit_of("acme", "run.start", fixture_fmt("r%d", i));
        riders[i] = (struct append_rider){.receipt = &r[i], .audit = &a[i]};
        reqs[i] = (struct append_request){.items = &items[i],
                                          .count = 1,
                                          .results = &results[i],
                                          .arena = &c.arena,
                                          .riders = &riders[i]};
        list[i] = &reqs[i];
    }
    CHECK(ledger_append(c.ledger, list, N, &err) == ST_OK, "%s", err.msg);
    for (int i = 0; i < N; i++)
        CHECK(results[i].code == ST_OK);
    CHECK(find(&c, "alice", "same", &out) == ST_OK && text_is(out.body, "body 0"));
    CHECK(audits(&c) == N);
    CHECK(text_is(fixture_text(&c, "SELECT target FROM audit ORDER BY audit_no DESC"), "r149"));
    fixture_close(&c);
}

/* What the database would not take as text is made fit: a rider never refuses a commit. */
TEST_DB(access_riders_take_any_bytes) {
    struct fixture c;
    struct audit_entry *list = NULL;
    struct append_result result;
    struct error err = {0};
    size_t n = 0;
    fixture_open(&c, url);
    char longest[3000];
    memset(longest, 'x', sizeof(longest));
    longest[1023] = '\xc3'; /* a character of two bytes where it would be cut */
    longest[1024] = '\xa9';
    struct receipt r = receipt_of("k", 200, NULL);
    r.body = STR("\0\xff");
    struct audit_entry a = audit_of("no\xfftenant", "run.start", "r1");
    a.reason = STR("a\0b\xff\xfe c");
    a.target = str_n(longest, sizeof(longest));
    struct append_rider rider = {.receipt = &r, .audit = &a};
    struct append_item item = fixture_item("RunStarted", "r1", NULL, 1);
    append_with(&c, &item, 1, false, &rider, &result);
    CHECK(result.code == ST_OK);
    CHECK(audit_list(c.ledger, STR_NONE, 0, 10, &c.arena, &list, &n, &err) == ST_OK && n == 1);
    CHECK(text_is(list[0].reason, "a?b?? c"), "%.*s", STR_ARG(list[0].reason));
    CHECK(text_is(list[0].tenant_id, "no?tenant") && list[0].target.len == 1023);
    struct receipt out;
    CHECK(find(&c, "alice", "k", &out) == ST_OK && str_eq(out.body, r.body));
    fixture_close(&c);
}

/* ---- the audit trail ---- */

/* t0 to t8, a millisecond apart; every third is of another tenant, and t4 was refused. */
static void put_audit(struct fixture *c) {
    for (int i = 0; i < 9; i++) {
        struct audit_entry a =
            audit_of(i % 3 == 0 ? "globex" : "acme", "run.signal", fixture_fmt("t%d", i));
        a.outcome = i == 4 ? STR("refused") : STR("done");
        a.code = i == 4 ? STR("FORBIDDEN") : STR_NONE;
        a.reason = STR("because");
        a.project_id = STR("shop");
        a.environment_id = STR("dev");
        a.run_id = STR("r1");
        a.engine_attempt = i == 4 ? 2 : 0;
        a.logical_attempt = i == 4 ? 3 : 0;
        c->now_us += 1000;
        ride(c, NULL, &a);
    }
}

TEST_DB(access_audit_is_listed_newest_first) {
    struct fixture c;
    struct audit_entry *list = NULL;
    struct error err = {0};
    size_t n = 0;
    fixture_open(&c, url);
    put_audit(&c);
    CHECK(audit_list(c.ledger, STR_NONE, 0, 4, &c.arena, &list, &n, &err) == ST_OK && n == 4);
    CHECK(text_is(list[0].target, "t8") && text_is(list[3].target, "t5"));
    CHECK(list[0].at_us == c.now_us && list[0].engine_attempt == 0 && !list[0].code.ptr);
    CHECK(audit_list(c.ledger, STR_NONE, list[3].audit_no, 10, &c.arena, &list, &n, &err) ==
              ST_OK &&
          n == 5);
    const struct audit_entry *a = &list[0];
    CHECK(text_is(a->target, "t4") && text_is(a->outcome, "refused") &&
          text_is(a->code, "FORBIDDEN") && text_is(a->reason, "because") &&
          text_is(a->tenant_id, "acme") && text_is(a->actor, "alice") &&
          text_is(a->remote, "127.0.0.1") && text_is(a->request_id, "req-1") &&
          text_is(a->action, "run.signal") && text_is(a->project_id, "shop") &&
          text_is(a->environment_id, "dev") && text_is(a->run_id, "r1") && a->engine_attempt == 2 &&
          a->logical_attempt == 3);
    CHECK(audit_list(c.ledger, STR("globex"), 0, 2, &c.arena, &list, &n, &err) == ST_OK && n == 2);
    CHECK(text_is(list[0].target, "t6") && text_is(list[1].target, "t3"));
    CHECK(audit_list(c.ledger, STR("globex"), list[1].audit_no, 9, &c.arena, &list, &n, &err) ==
              ST_OK &&
          n == 1 && text_is(list[0].target, "t0"));
    CHECK(audit_list(c.ledger, STR("nobody"), 0, 9, &c.arena, &list, &n, &err) == ST_OK && n == 0);
    fixture_close(&c);
}

TEST_DB(access_audit_and_plans_refuse_changes) {
    static const char *const bad[] = {
        "UPDATE ledger_audit SET actor = 'mallory'",
        "DELETE FROM ledger_audit",
        "UPDATE ledger_plan SET tenant_id = 'mallory'",
        "DELETE FROM ledger_plan",
        "{sqlite:DELETE FROM ledger_audit}{postgres:TRUNCATE ledger_audit}",
        "{sqlite:DELETE FROM ledger_plan}{postgres:TRUNCATE ledger_plan}"};
    struct fixture c;
    struct error err = {0};
    uint8_t hash[SHA256_LEN];
    bool existed = true;
    fixture_open(&c, url);
    struct audit_entry a = audit_of("acme", "plan.put", "x");
    struct append_rider rider = {.audit = &a};
    sha256_of(STR("{}"), hash);
    CHECK(access_plan_put(c.ledger, STR("acme"), hash, STR("{}"), &rider, &existed, &err) == ST_OK);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        CHECK(fixture_sql(&c, bad[i]) == ST_INVALID, "%s", bad[i]);
    CHECK(audits(&c) == 1 && fixture_int(&c, "SELECT COUNT(*) FROM ledger_plan") == 1);
    fixture_clean(&c);
    fixture_must_sql(&c, "DROP TRIGGER ledger_audit_no_UPDATE{postgres: ON ledger_audit}");
    CHECK(fixture_verify(&c, false).damaged);
    fixture_close(&c);
}

/* ---- keys ---- */

static struct api_key key_of(const char *id, const char *tenant) {
    struct api_key k = {.key_id = str_c(id),
                        .tenant_id = str_c(tenant),
                        .name = STR("ci"),
                        .created_by = STR("root"),
                        .roles = 5,
                        .created_us = 1000,
                        .expires_us = 9000};
    memset(k.hash, id[0], sizeof(k.hash));
    return k;
}

static void make_key(struct fixture *c, const char *id, const char *tenant) {
    struct api_key k = key_of(id, tenant);
    struct error err = {0};
    CHECK(api_key_create(c->ledger, &k, NULL, &err) == ST_OK, "%s", err.msg);
}

static struct api_key key_now(struct fixture *c, const char *id) {
    struct api_key k = {0};
    struct error err = {0};
    CHECK(api_key_find(c->ledger, str_c(id), &c->arena, &k, &err) == ST_OK, "%s", err.msg);
    return k;
}

TEST_DB(access_keys_are_made_and_changed) {
    struct fixture c;
    struct error err = {0};
    struct receipt out;
    fixture_open(&c, url);
    struct api_key k = key_of("aaaaaaaaaaaaaaaa", "acme");
    struct receipt r = receipt_of("k", 201, NULL);
    struct audit_entry a = audit_of("acme", "key.create", "aaaaaaaaaaaaaaaa");
    struct append_rider rider = {.receipt = &r, .audit = &a};
    CHECK(api_key_find(c.ledger, k.key_id, &c.arena, &k, &err) == ST_NOT_FOUND &&
          err.reason == REASON_KEY_NOT_FOUND);
    CHECK(api_key_create(c.ledger, &k, &rider, &err) == ST_OK, "%s", err.msg);
    CHECK(audits(&c) == 1 && find(&c, "alice", "k", &out) == ST_OK);
    CHECK(api_key_create(c.ledger, &k, &rider, &err) == ST_CONFLICT &&
          err.reason == REASON_KEY_ID_TAKEN);
    CHECK(audits(&c) == 1 && receipts(&c) == 1); /* refused, and its riders with it */
    struct api_key now = key_now(&c, "aaaaaaaaaaaaaaaa");
    CHECK(str_eq(now.tenant_id, k.tenant_id) && str_eq(now.name, k.name) && now.roles == 5 &&
          str_eq(now.created_by, k.created_by) && memcmp(now.hash, k.hash, SHA256_LEN) == 0 &&
          now.created_us == 1000 && now.expires_us == 9000 && now.revoked_us == 0 &&
          now.used_us == 0 && now.version == 1);
    now.name = STR("robot");
    now.roles = 2;
    now.expires_us = 0;
    CHECK(api_key_update(c.ledger, &now, NULL, &err) == ST_OK, "%s", err.msg);
    CHECK(api_key_update(c.ledger, &now, &rider, &err) == ST_CONFLICT && /* of version 1 still */
          err.reason == REASON_PRECONDITION_FAILED);
    CHECK(audits(&c) == 1);
    now = key_now(&c, "aaaaaaaaaaaaaaaa");
    CHECK(text_is(now.name, "robot") && now.roles == 2 && now.expires_us == 0 && now.version == 2);
    now.revoked_us = 5000;
    CHECK(api_key_update(c.ledger, &now, &rider, &err) == ST_OK && audits(&c) == 2);
    now = key_now(&c, "aaaaaaaaaaaaaaaa");
    CHECK(now.revoked_us == 5000 && now.version == 3 && text_is(now.name, "robot"));
    now.key_id = STR("nosuchkeynosuchk");
    CHECK(api_key_update(c.ledger, &now, NULL, &err) == ST_NOT_FOUND &&
          err.reason == REASON_KEY_NOT_FOUND);
    fixture_put(&c,
                fixture_item("RunStarted", "r1", NULL, 1)); /* refusals leave the handle usable */
    fixture_close(&c);
}

static void use_keys(struct fixture *c, const char *id, int64_t us, const char *id2, int64_t us2) {
    struct key_use uses[2] = {{.us = us}, {.us = us2}};
    struct error err = {0};
    memcpy(uses[0].key_id, id, 16);
    memcpy(uses[1].key_id, id2, 16);
    CHECK(api_keys_used(c->ledger, uses, 2, &err) == ST_OK, "%s", err.msg);
}

TEST_DB(access_last_use_only_goes_forward) {
    struct fixture c;
    fixture_open(&c, url);
    make_key(&c, "aaaaaaaaaaaaaaaa", "acme");
    make_key(&c, "bbbbbbbbbbbbbbbb", "acme");
    use_keys(&c, "bbbbbbbbbbbbbbbb", 700, "aaaaaaaaaaaaaaaa", 500);
    CHECK(key_now(&c, "aaaaaaaaaaaaaaaa").used_us == 500);
    use_keys(&c, "aaaaaaaaaaaaaaaa", 400, "cccccccccccccccc", 500); /* the last is nobody's */
    CHECK(key_now(&c, "aaaaaaaaaaaaaaaa").used_us == 500);
    use_keys(&c, "aaaaaaaaaaaaaaaa", 800, "aaaaaaaaaaaaaaaa", 600);
    CHECK(key_now(&c, "aaaaaaaaaaaaaaaa").used_us == 800);
    CHECK(key_now(&c, "bbbbbbbbbbbbbbbb").used_us == 700);
    CHECK(key_now(&c, "aaaaaaaaaaaaaaaa").version == 1);
    fixture_close(&c);
}

TEST_DB(access_keys_are_listed_by_id) {
    struct fixture c;
    struct api_key *list = NULL;
    struct error err = {0};
    size_t n = 0;
    fixture_open(&c, url);
    make_key(&c, "cccccccccccccccc", "acme");
    make_key(&c, "aaaaaaaaaaaaaaaa", "acme");
    make_key(&c, "bbbbbbbbbbbbbbbb", "globex");
    make_key(&c, "dddddddddddddddd", "*");
    CHECK(api_key_list(c.ledger, STR_NONE, STR_NONE, 3, &c.arena, &list, &n, &err) == ST_OK);
    CHECK(n == 3 && list[0].key_id.ptr[0] == 'a' && list[1].key_id.ptr[0] == 'b' &&
          list[2].key_id.ptr[0] == 'c' && list[2].hash[0] == 'c');
    CHECK(api_key_list(c.ledger, STR_NONE, list[2].key_id, 3, &c.arena, &list, &n, &err) == ST_OK);
    CHECK(n == 1 && list[0].key_id.ptr[0] == 'd');
    CHECK(api_key_list(c.ledger, STR("acme"), STR_NONE, 9, &c.arena, &list, &n, &err) == ST_OK);
    CHECK(n == 2 && list[0].key_id.ptr[0] == 'a' && list[1].key_id.ptr[0] == 'c');
    CHECK(api_key_list(c.ledger, STR("acme"), list[0].key_id, 9, &c.arena, &list, &n, &err) ==
              ST_OK &&
          n == 1 && list[0].key_id.ptr[0] == 'c');
    CHECK(api_key_list(c.ledger, STR("nobody"), STR_NONE, 9, &c.arena, &list, &n, &err) == ST_OK &&
          n == 0);
    fixture_close(&c);
}

TEST_DB(access_keys_have_a_limit) {
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, url);
    fixture_must_sql(
        &c, "INSERT INTO api_key SELECT 'k' || i, 'acme', 'n', 'c', 1,"
            " {sqlite:zeroblob(32)}{postgres:decode(repeat('00', 32), 'hex')}, 1, 0, 0, 0, 1 FROM"
            " {sqlite:(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g"
            " WHERE i < 9999) SELECT i FROM g) x}{postgres:generate_series(1, 9999) g(i)}");
    make_key(&c, "aaaaaaaaaaaaaaaa", "acme"); /* the last one, */
    struct api_key k = key_of("bbbbbbbbbbbbbbbb", "acme");
    struct audit_entry a = audit_of("acme", "key.create", "b");
    struct append_rider rider = {.audit = &a};
    CHECK(api_key_create(c.ledger, &k, &rider, &err) == ST_LIMIT && /* and the one after it */
          err.reason == REASON_API_KEYS_TOO_MANY);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM api_key") == API_KEYS_MAX && audits(&c) == 0);
    fixture_close(&c);
}

/* ---- plans ---- */

TEST_DB(access_plans_belong_to_their_tenant) {
    struct fixture c;
    struct error err = {0};
    uint8_t hash[SHA256_LEN];
    bool existed = true;
    str plan = STR("{\"a\": \"\xff\0\" }\n");
    str got = STR_NONE;
    fixture_open(&c, url);
    sha256_of(plan, hash);
    struct audit_entry a = audit_of("acme", "plan.put", "x");
    struct append_rider rider = {.audit = &a};
    CHECK(access_plan_get(c.ledger, STR("acme"), hash, &c.arena, &got, &err) == ST_NOT_FOUND &&
          err.reason == REASON_PLAN_NOT_FOUND);
    CHECK(access_plan_put(c.ledger, STR("acme"), hash, plan, &rider, &existed, &err) == ST_OK &&
          !existed);
    CHECK(access_plan_put(c.ledger, STR("acme"), hash, plan, &rider, &existed, &err) == ST_OK &&
          existed && audits(&c) == 2);
    CHECK(access_plan_get(c.ledger, STR("acme"), hash, &c.arena, &got, &err) == ST_OK &&
          str_eq(got, plan));
    CHECK(access_plan_get(c.ledger, STR("globex"), hash, &c.arena, &got, &err) == ST_NOT_FOUND);
    CHECK(access_plan_get_any(c.ledger, hash, &c.arena, &got, &err) == ST_OK && str_eq(got, plan));
    CHECK(access_plan_put(c.ledger, STR("globex"), hash, plan, NULL, &existed, &err) == ST_OK &&
          !existed);
    CHECK(access_plan_get(c.ledger, STR("globex"), hash, &c.arena, &got, &err) == ST_OK);
    hash[0] ^= 1;
    CHECK(access_plan_get_any(c.ledger, hash, &c.arena, &got, &err) == ST_NOT_FOUND);
    fixture_close(&c);
}
