/* Finding events by id, before and after their lot is sealed. */
#include <stdio.h>

#include "base/log.h"
#include "ledger/id_lots.h"
#include "test.h"

enum { BATCH = 4096 };
static struct append_item items[BATCH];
static struct append_result results[BATCH];
static struct arena arena;

static struct ledger *open_ledger(str url) {
    struct ledger *l = NULL;
    struct error err = {0};
    log_setup(2, false, LOG_OFF);
    CHECK(ledger_open(url, NULL, &l, &err) == ST_OK, "%s", err.msg);
    return l;
}

static void fill_item(struct append_item *item, const char *tenant, int64_t n) {
    static const str runs[] = {STR_LIT("run-a"), STR_LIT("run-b"), STR_LIT("run-c"),
                               STR_LIT("run-d")};
    struct error err = {0};
    *item = (struct append_item){.event = {.type_name = STR("RunNoted"),
                                           .run_id = runs[n % 4],
                                           .tenant_id = str_c(tenant),
                                           .project_id = STR("p"),
                                           .environment_id = STR("e"),
                                           .plan_id = STR("pl"),
                                           .plan_version = STR("1"),
                                           .engine_attempt = 1,
                                           .logical_attempt = n}};
    if (strcmp(tenant, "acme") != 0) item->event.run_id = str_c(tenant); /* run ids are one space */
    item->event.event_id = uuid_v4();
    event_key_derive(&item->event, item->event.key);
    CHECK(event_validate(&item->event, &err) == ST_OK, "%s", err.msg);
}

/* Appends until the tenant has `to` events. ids[seq] is kept for those below `keep`. */
static void append_to(struct ledger *l, const char *tenant, int64_t from, int64_t to, uuid *ids,
                      int64_t keep) {
    while (from < to) {
        size_t n = to - from < BATCH ? (size_t)(to - from) : BATCH;
        struct error err = {0};
        arena_reset(&arena);
        for (size_t i = 0; i < n; i++) {
            fill_item(&items[i], tenant, from + (int64_t)i + 1);
            if (from + (int64_t)i + 1 < keep) ids[from + (int64_t)i + 1] = items[i].event.event_id;
        }
        struct append_request req = {
            .items = items, .count = n, .results = results, .arena = &arena};
        struct append_request *reqs[] = {&req};
        CHECK(ledger_append(l, reqs, 1, &err) == ST_OK, "%s", err.msg);
        CHECK(results[n - 1].code == ST_OK && results[n - 1].seq == from + (int64_t)n);
        from += (int64_t)n;
    }
}

static int64_t sealed(struct ledger *l, int64_t tenant_no) {
    int64_t lots = -1;
    struct error err = {0};
    CHECK(id_lots_sealed(l, tenant_no, &lots, &err) == ST_OK, "%s", err.msg);
    return lots;
}

static void check_found(struct ledger *l, uuid id, int64_t seq) {
    struct event_record rec;
    struct error err = {0};
    arena_reset(&arena);
    CHECK(ledger_find_event(l, id, &arena, &rec, &err) == ST_OK, "event %lld: %s", (long long)seq,
          err.msg);
    CHECK(rec.seq == seq && uuid_eq(rec.event.event_id, id), "event %lld, found %lld",
          (long long)seq, (long long)rec.seq);
}

static void check_all_found(struct ledger *l, const uuid *ids, int64_t last) {
    const int64_t seqs[] = {1, 2, 4095, 4096, 4097, 32766, 32767, 32768, 32769, last - 1, last};
    for (size_t i = 0; i < COUNT_OF(seqs); i++) {
        if (seqs[i] <= last) check_found(l, ids[seqs[i]], seqs[i]);
    }
    struct error err = {0};
    struct event_record rec;
    CHECK(ledger_find_event(l, uuid_v4(), &arena, &rec, &err) == ST_NOT_FOUND);
}

static void exec(struct ledger *l, const char *sql) {
    struct error err = {0};
    CHECK(db_exec(ledger_db(l), sql, &err) == ST_OK, "%s: %s", sql, err.msg);
}

static bool damaged(struct ledger *l) {
    struct verify_report report;
    struct error err = {0};
    arena_reset(&arena);
    CHECK(ledger_verify(l, true, NULL, NULL, &arena, &report, &err) == ST_OK, "%s", err.msg);
    return report.damaged;
}

static void check_tampering(struct ledger *l) {
    static const char *const tampered[] = {
        "DELETE FROM state_lot WHERE bucket = 7",
        "UPDATE state_lot SET ids = substr(ids, 1, 100) WHERE bucket = 7",
        "INSERT INTO state_lot SELECT lot + 1, bucket, ids FROM state_lot"};
    struct error err = {0};
    CHECK(!damaged(l));
    for (size_t i = 0; i < COUNT_OF(tampered); i++) {
        exec(l, tampered[i]);
        CHECK(damaged(l), "%s", tampered[i]);
        CHECK(ledger_rebuild(l, NULL, NULL, NULL, &err) == ST_OK, "%s",
              err.msg); /* the index is derived, and made again */
    }
    CHECK(!damaged(l));
}

TEST_DB(id_lots_are_sealed_when_full) {
    enum { LAST = ID_LOT_EVENTS + 100 };
    static uuid ids[LAST + 1];
    uuid other[3];
    arena_init(&arena, 4096, SIZE_MAX);
    struct ledger *l = open_ledger(url);
    append_to(l, "acme", 0, ID_LOT_EVENTS - 1, ids, LAST + 1);
    CHECK(sealed(l, 1) ==
          0); /* lot 0 has the sequence numbers 1 to 32767: full, but the next event tells */
    check_all_found(l, ids, ID_LOT_EVENTS - 1);
    append_to(l, "globex", 0, 2, other, 3);
    append_to(l, "acme", ID_LOT_EVENTS - 1, LAST, ids, LAST + 1);
    CHECK(sealed(l, 1) == 1 && sealed(l, 2) == 0);
    check_all_found(l, ids, LAST);
    check_found(l, other[2], 2); /* tenants do not mix */
    check_tampering(l);
    check_all_found(l, ids, LAST);
    ledger_close(l);
    l = open_ledger(url);
    check_all_found(l, ids, LAST);
    append_to(l, "acme", LAST, LAST + 10, NULL, 0);
    CHECK(sealed(l, 1) == 1 && !damaged(l));
    ledger_close(l);
    arena_release(&arena);
}

/* Two nodes fill a lot in turn: neither remembers all of it, and what is sealed is right. */
TEST(id_lots_of_two_nodes_are_sealed_whole) {
    enum { LAST = ID_LOT_EVENTS * 2 + 10 };
    static uuid ids[LAST + 1];
    str url = test_db_url("postgres");
    if (!url.ptr) test_skip("needs PostgreSQL");
    arena_init(&arena, 4096, SIZE_MAX);
    struct ledger *a = open_ledger(url);
    struct ledger *b = open_ledger(url);
    append_to(a, "acme", 0, 5000, ids, LAST + 1);
    append_to(b, "acme", 5000, 5010, ids, LAST + 1);
    append_to(a, "acme", 5010, ID_LOT_EVENTS + 7, ids, LAST + 1); /* began the second lot, too, */
    CHECK(sealed(a, 1) == 1 && sealed(b, 1) == 1);
    append_to(a, "acme", ID_LOT_EVENTS + 7, LAST, ids, LAST + 1); /* and remembers all of that */
    CHECK(sealed(a, 1) == 2 && !damaged(a));
    check_all_found(b, ids, LAST);
    ledger_close(a);
    ledger_close(b);
    arena_release(&arena);
}

/* ---- a lot that could not be sealed ---- */

struct faulty {
    str url;
    struct db *db;
};

static status connect_faulty(void *context, struct db **out, struct error *err) {
    struct faulty *f = context;
    struct db *inner = NULL;
    status st = db_open(f->url, DB_WRITE, &inner, err);
    if (st == ST_OK) st = db_faulty_wrap(inner, out, err);
    f->db = *out;
    return st;
}

static void fill_late(struct append_item *item,
                      int64_t n) { /* of a run of its own: nothing to load */
    static char run[32];
    snprintf(run, sizeof(run), "late-%lld", (long long)n);
    fill_item(item, "acme", n);
    item->event.run_id = str_c(run);
    event_key_derive(&item->event, item->event.key);
}

static void reopen(struct faulty *f, struct ledger **l) {
    struct error err = {0};
    ledger_close(*l);
    *l = NULL;
    CHECK(ledger_open_with(connect_faulty, f, NULL, l, &err) == ST_OK, "%s", err.msg);
}

/* Appends one event while the lot is to be sealed and call `n` of the database fails. true if it
 * was acknowledged. */
static bool append_while_sealing_fails(struct faulty *f, struct ledger **l, int64_t seq, int64_t n,
                                       int64_t *calls) {
    struct append_result res = {0};
    struct error err = {0};
    exec(*l, "DELETE FROM state_lot");
    reopen(f, l);
    fill_late(&items[0], seq);
    struct append_request req = {.items = items, .count = 1, .results = &res, .arena = &arena};
    struct append_request *reqs[] = {&req};
    db_faulty_fail_at(f->db, n, false);
    status st = ledger_append(*l, reqs, 1, &err);
    *calls = db_faulty_calls(f->db);
    CHECK(st == ST_OK || st == ST_RETRY, "call %lld: %s", (long long)n, err.msg);
    if (st == ST_OK) return true;
    CHECK(ledger_append(*l, reqs, 1, &err) == ST_OK && !res.duplicate, "call %lld: %s",
          (long long)n, err.msg);
    return false;
}

/* An event is acknowledged although sealing the lot fails after it; a later append seals it. */
TEST(id_lots_are_sealed_later_if_need_be) {
    struct faulty f = {.url = test_db_url("sqlite")};
    struct ledger *l = NULL;
    int64_t calls = 0;
    int64_t seq = ID_LOT_EVENTS;
    int64_t unsealed = 0;
    arena_init(&arena, 4096, SIZE_MAX);
    log_setup(2, false, LOG_OFF);
    reopen(&f, &l);
    append_to(l, "acme", 0, seq, NULL, 0);
    CHECK(sealed(l, 1) == 1);
    CHECK(append_while_sealing_fails(&f, &l, ++seq, -1, &calls) && sealed(l, 1) == 1);
    int64_t total = calls; /* most of them read the lot, row by row */
    for (int64_t n = 0; n < total; n = n == 36 ? total - 3 : n + 1) {
        bool acknowledged = append_while_sealing_fails(&f, &l, ++seq, n, &calls);
        if (!acknowledged) continue;
        reopen(&f, &l);
        CHECK(sealed(l, 1) == 0, "call %lld", (long long)n);
        unsealed++;
        fill_late(&items[0], ++seq);
        struct append_request req = {
            .items = items, .count = 1, .results = results, .arena = &arena};
        struct append_request *reqs[] = {&req};
        struct error err = {0};
        CHECK(ledger_append(l, reqs, 1, &err) == ST_OK && results[0].seq == seq, "%s", err.msg);
        CHECK(sealed(l, 1) == 1, "call %lld", (long long)n);
    }
    CHECK(unsealed > 5, "%lld", (long long)unsealed);
    CHECK(!damaged(l));
    ledger_close(l);
    arena_release(&arena);
}
