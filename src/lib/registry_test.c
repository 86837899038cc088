/* lib/registry_test.c: the EventIdRegistry, in a table on both databases and in memory. */
#include "lib/registry.h"

#include <pthread.h>

#include "base/arena.h"
#include "base/limits.h"
#include "test.h"

static struct error err;

#define OK(call) check_ok((call), __LINE__)
static void check_ok(status st, int line) {
    test_checks++;
    if (st != ST_OK) test_fail(__FILE__, line, "OK", "%s: %s", status_name(st), err.msg);
}

struct key {
    uint8_t b[SHA256_LEN];
};

static struct key key_of(int n) {
    struct key key = {{0}};
    sha256_of(str_n(&n, sizeof(n)), key.b);
    return key;
}

static struct registry *open_table(str url) {
    struct registry *r = NULL;
    OK(registry_open(url, &r, &err));
    CHECK(registry_is_durable(r));
    return r;
}

static struct registry *open_memory(void) {
    struct registry *r = NULL;
    OK(registry_open_memory(&r, &err));
    CHECK(!registry_is_durable(r));
    return r;
}

static uuid get(struct registry *r, const char *run_id, int key, bool want_fresh) {
    uuid id = {0};
    bool fresh = !want_fresh;
    OK(registry_get(r, str_c(run_id), key_of(key).b, &id, &fresh, &err));
    CHECK(fresh == want_fresh, "run %s, key %d", run_id, key);
    CHECK(uuid_version(id) == 4);
    return id;
}

/* ---- what both kinds promise ---- */

static void check_one_id_per_pair(struct registry *r) {
    uuid a1 = get(r, "run-a", 1, true);
    uuid a2 = get(r, "run-a", 2, true);
    uuid b1 = get(r, "run-b", 1, true); /* another run with the same key is another entry */
    CHECK(!uuid_eq(a1, a2) && !uuid_eq(a1, b1) && !uuid_eq(a2, b1));
    CHECK(uuid_eq(get(r, "run-a", 1, false), a1));
    CHECK(uuid_eq(get(r, "run-a", 2, false), a2));
    CHECK(uuid_eq(get(r, "run-b", 1, false), b1));
}

/* RE-2.5.1-1 */
TEST_DB(registry_table_has_one_id_per_pair) {
    struct registry *r = open_table(url);
    check_one_id_per_pair(r);
    registry_close(r);
}

/* RE-2.5.1-1 */
TEST(registry_memory_has_one_id_per_pair) {
    struct registry *r = open_memory();
    check_one_id_per_pair(r);
    registry_close(r);
}

static void check_first_id_is_kept(struct registry *r) {
    uuid first = uuid_v4();
    uuid second = uuid_v4();
    uuid kept = {0};
    OK(registry_put(r, STR("run"), key_of(7).b, first, &kept, &err));
    CHECK(uuid_eq(kept, first));
    OK(registry_put(r, STR("run"), key_of(7).b, second, &kept, &err));
    CHECK(uuid_eq(kept, first));
    OK(registry_put(r, STR("run"), key_of(7).b, first, &kept, &err));
    CHECK(uuid_eq(kept, first));
    CHECK(uuid_eq(get(r, "run", 7, false), first));
    /* An id of any other version has no place here. */
    uuid hashed = uuid_v5(first, STR("RunStarted"));
    CHECK(registry_put(r, STR("run"), key_of(8).b, hashed, &kept, &err) == ST_INVALID);
    CHECK(err.reason == REASON_EVENT_ID_NOT_UUID_V4);
    CHECK(registry_adopt(r, STR("run"), key_of(7).b, hashed, &err) == ST_INVALID);
    CHECK(uuid_eq(get(r, "run", 7, false), first));
}

/* RE-2.5.1-7: writing a pair again with another id keeps the first, for both writers. */
TEST_DB(registry_table_keeps_the_first_id) {
    struct registry *r = open_table(url);
    check_first_id_is_kept(r);
    registry_close(r);
}

TEST(registry_memory_keeps_the_first_id) {
    struct registry *r = open_memory();
    check_first_id_is_kept(r);
    registry_close(r);
}

static void check_adopt_and_forget(struct registry *r) {
    uuid mine = get(r, "run", 1, true);
    uuid other_run = get(r, "other", 1, true);
    uuid theirs = uuid_v4();
    OK(registry_adopt(r, STR("run"), key_of(1).b, theirs, &err));
    OK(registry_adopt(r, STR("run"), key_of(1).b, theirs, &err)); /* again is fine */
    OK(registry_adopt(r, STR("run"), key_of(2).b, theirs,
                      &err)); /* so is a pair that is not there */
    CHECK(!uuid_eq(mine, theirs));
    CHECK(uuid_eq(get(r, "run", 1, false), theirs));
    CHECK(uuid_eq(get(r, "run", 2, false), theirs));
    OK(registry_forget_run(r, STR("run"), &err));
    OK(registry_forget_run(r, STR("never seen"), &err));
    CHECK(!uuid_eq(get(r, "run", 1, true), theirs));
    CHECK(uuid_eq(get(r, "other", 1, false), other_run));
}

TEST_DB(registry_table_adopts_and_forgets) {
    struct registry *r = open_table(url);
    check_adopt_and_forget(r);
    registry_close(r);
}

TEST(registry_memory_adopts_and_forgets) {
    struct registry *r = open_memory();
    check_adopt_and_forget(r);
    registry_close(r);
}

static void check_batches(struct registry *r) {
    enum { N = 300 };
    static struct registry_entry entries[BATCH_EVENTS_MAX + 1];
    uuid before = get(r, "run", 5, true);
    for (int i = 0; i < N; i++) {
        entries[i] = (struct registry_entry){.run_id = STR("run")};
        memcpy(entries[i].key, key_of(i == N - 1 ? 0 : i).b,
               SHA256_LEN); /* the last repeats the first */
    }
    OK(registry_get_many(r, entries, N, &err));
    for (int i = 0; i < N; i++) {
        CHECK(entries[i].fresh == (i != 5 && i != N - 1), "entry %d", i);
        CHECK(uuid_eq(get(r, "run", i == N - 1 ? 0 : i, false), entries[i].event_id), "entry %d",
              i);
    }
    CHECK(uuid_eq(entries[5].event_id, before) &&
          uuid_eq(entries[N - 1].event_id, entries[0].event_id));
    OK(registry_get_many(r, entries, 0, &err));
    CHECK(registry_get_many(r, entries, COUNT_OF(entries), &err) == ST_LIMIT);
    CHECK(err.reason == REASON_BATCH_TOO_LARGE);
}

TEST_DB(registry_table_takes_batches) {
    struct registry *r = open_table(url);
    check_batches(r);
    registry_close(r);
}

TEST(registry_memory_takes_batches) {
    struct registry *r = open_memory();
    check_batches(r);
    registry_close(r);
}

/* ---- replay ---- */

static void fill_page(struct event_record *records, size_t n) {
    for (size_t i = 0; i < n; i++) {
        records[i] = (struct event_record){.seq = (int64_t)i + 1, .run_seq = (int64_t)i + 1};
        records[i].event.run_id = i % 2 == 0 ? STR("even") : STR("odd");
        records[i].event.event_id = uuid_v4();
        memcpy(records[i].event.key, key_of((int)i).b, SHA256_LEN);
    }
}

/* RE-2.5.1-6: nothing but the records, and every pair has the id it had. (producer_test.c does it
 * with a real run.) */
TEST(registry_is_rebuilt_from_records) {
    struct event_record records[50];
    struct event_page page = {records, COUNT_OF(records)};
    struct registry *r = open_memory();
    fill_page(records, COUNT_OF(records));
    records[9].run_seq = 0; /* the store wrote this one */
    uuid unsent = get(r, "odd", 9, true);
    get(r, "even", 0, true); /* loses against the record */
    OK(registry_fill(r, &page, &err));
    OK(registry_fill(r, &(struct event_page){0}, &err));
    for (int i = 0; i < 50; i++) {
        uuid want = i == 9 ? unsent : records[i].event.event_id;
        CHECK(uuid_eq(get(r, i % 2 == 0 ? "even" : "odd", i, false), want), "record %d", i);
    }
    registry_close(r);
}

/* ---- durability ---- */

TEST_DB(registry_table_is_there_when_opened_again) {
    struct registry *r = open_table(url);
    uuid id = get(r, "run", 1, true);
    registry_close(r);
    r = open_table(url);
    CHECK(uuid_eq(get(r, "run", 1, false), id));
    registry_close(r);
}

/* Calls whose outcome is unknown are repeated; an id that was given once is the one that others
 * read, for ever. */
struct fault {
    struct db *db;
    str url;
    int64_t fail_at;
    bool after;
};

static status connect_faulty(void *context, struct db **out, struct error *e) {
    struct fault *f = context;
    struct db *inner = NULL;
    status st = db_open(f->url, DB_WRITE, &inner, e);
    if (st == ST_OK) st = db_faulty_wrap(inner, &f->db, e);
    if (st != ST_OK) return st;
    db_faulty_fail_at(f->db, f->fail_at, f->after);
    f->fail_at = -1; /* the connection after this one works */
    *out = f->db;
    return ST_OK;
}

static bool fails_somewhere(struct fault f, struct registry *witness, int key) {
    struct registry *r = NULL;
    uuid id = {0};
    bool fresh = false;
    bool failed = false;
    status st = registry_open_with(connect_faulty, &f, &r, &err);
    if (st != ST_OK) {
        CHECK(st == ST_RETRY && r == NULL, "%s", err.msg);
        return true;
    }
    while (registry_get(r, STR("run"), key_of(key).b, &id, &fresh, &err) != ST_OK) {
        CHECK(err.code == ST_RETRY && !failed, "%s", err.msg); /* once: then it reconnects */
        failed = true;
    }
    CHECK(uuid_eq(get(witness, "run", key, false), id));
    uuid theirs = uuid_v4();
    db_faulty_fail_at(f.db, f.after ? 2 : 1, f.after); /* begin, prepare, ... */
    CHECK(registry_adopt(r, STR("run"), key_of(key).b, theirs, &err) == ST_RETRY);
    OK(registry_adopt(r, STR("run"), key_of(key).b, theirs, &err));
    CHECK(uuid_eq(get(witness, "run", key, false), theirs));
    registry_close(r);
    return failed;
}

TEST_DB(registry_table_survives_every_failure) {
    struct registry *witness = open_table(url);
    for (int after = 0; after < 2; after++) {
        int n = 0;
        while (fails_somewhere((struct fault){.url = url, .fail_at = n, .after = after > 0},
                               witness, 2 * n + after))
            n++;
        CHECK(
            n >= 6, "%d calls",
            n); /* begin, create, commit; begin, prepare, run, commit, less what one driver saves */
    }
    registry_close(witness);
}

TEST(registry_memory_without_memory) {
    struct registry *r = NULL;
    uuid id = {0};
    bool fresh = false;
    mem_fail_at(0);
    CHECK(registry_open_memory(&r, &err) == ST_RETRY && r == NULL);
    mem_fail_at(-1);
    r = open_memory();
    int64_t n = 0;
    for (status st = ST_RETRY; st != ST_OK; n++) {
        mem_fail_at(n);
        st = registry_get(r, STR("run"), key_of(1).b, &id, &fresh, &err);
        mem_fail_at(-1);
        CHECK(st == ST_OK || (st == ST_RETRY && err.msg[0] != 0));
    }
    CHECK(n > 3 && fresh);
    CHECK(uuid_eq(get(r, "run", 1, false), id));
    registry_close(r);
    registry_close(NULL);
}

TEST_DB(registry_table_finds_damage) {
    struct registry *r = open_table(url);
    struct db *db = NULL;
    uuid id = {0};
    bool fresh = false;
    get(r, "run", 1, true);
    OK(db_open(url, DB_WRITE, &db, &err));
    OK(db_exec(db, "UPDATE producer_event_ids SET event_id = key", &err)); /* 32 bytes */
    CHECK(registry_get(r, STR("run"), key_of(1).b, &id, &fresh, &err) == ST_CORRUPT);
    CHECK(err.reason == REASON_REGISTRY_DAMAGED);
    db_close(db);
    registry_close(r);
}

TEST(registry_open_says_what_is_wrong) {
    char path[1200];
    memset(path, 'x', sizeof(path));
    struct registry *r = NULL;
    CHECK(registry_open(str_n(path, sizeof(path)), &r, &err) == ST_LIMIT && r == NULL);
    CHECK(registry_open(STR("/no/such/folder/x.db"), &r, &err) == ST_NOT_FOUND && r == NULL);
    CHECK(strstr(err.msg, "/no/such/folder/x.db") != NULL, "%s", err.msg);
}

/* ---- many producers at once ---- */

enum { RACERS = 6, RACE_KEYS = 40 };
struct racer {
    pthread_t thread;
    str url;
    uuid ids[RACE_KEYS];
    bool fresh[RACE_KEYS];
    int retries;
    bool ok;
    struct error e;
};

static void *race(void *arg) {
    struct racer *me = arg;
    struct registry *r = NULL;
    me->ok = registry_open(me->url, &r, &me->e) == ST_OK;
    for (int i = 0; me->ok && i < RACE_KEYS; i++) {
        status st = registry_get(r, STR("run"), key_of(i).b, &me->ids[i], &me->fresh[i], &me->e);
        while (st == ST_RETRY && me->retries++ < 100) {
            st = registry_get(r, STR("run"), key_of(i).b, &me->ids[i], &me->fresh[i], &me->e);
        }
        me->ok = st == ST_OK;
    }
    registry_close(r);
    return NULL;
}

/* Nobody made the table before: they race for that too. */
TEST_DB(registry_table_has_one_winner) {
    static struct racer racers[RACERS];
    for (int i = 0; i < RACERS; i++) {
        racers[i] = (struct racer){.url = url};
        CHECK(pthread_create(&racers[i].thread, NULL, race, &racers[i]) == 0);
    }
    for (int i = 0; i < RACERS; i++)
        pthread_join(racers[i].thread, NULL);
    for (int k = 0; k < RACE_KEYS; k++) {
        int winners = 0;
        for (int i = 0; i < RACERS; i++) {
            CHECK(racers[i].ok, "racer %d: %s", i, racers[i].e.msg);
            CHECK(uuid_eq(racers[i].ids[k], racers[0].ids[k]), "racer %d, key %d", i, k);
            winners += racers[i].fresh[k];
        }
        CHECK(winners == 1, "key %d: %d winners", k, winners);
    }
}
