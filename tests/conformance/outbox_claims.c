/* Who takes which row, and when; what the outbox shows of itself; and that effects and their run do
 * not get in each other's way. */
#include <pthread.h>
#include <stdlib.h>

#include "archive_helper.h"
#include "ledger/lease.h"
#include "ledger/writer.h"
#include "outbox_helper.h"

static void open_with_run(struct fixture *c, str url) {
    fixture_open(c, url);
    fixture_put(c, fixture_item("RunStarted", "r1", NULL, 1));
}

/* `count` effects of one run, in few commits. */
static void request_many(struct fixture *c, const char *run, int count) {
    enum { LOT = 100 };
    struct append_item items[LOT];
    struct append_result results[LOT];
    for (int done = 0; done < count; done += LOT) {
        size_t n = count - done < LOT ? (size_t)(count - done) : LOT;
        for (size_t i = 0; i < n; i++)
            items[i] =
                fixture_fact(EVENT_EFFECT_REQUESTED, run, fixture_uuid_text(uuid_v4()), 1, "{}");
        fixture_batch(c, items, n, true, results);
        CHECK(results[0].code == ST_OK);
    }
}

/* CE-4.4-5: 25 due rows are taken 10, 10, 5, the oldest first; that others are being executed keeps
 * nobody from taking the next. */
TEST_DB(outbox_claims_in_batches) {
    static const size_t want[] = {10, 10, 5, 0};
    struct fixture c;
    open_with_run(&c, url);
    for (int i = 0; i < 5; i++, c.now_us += 1000)
        request_many(&c, "r1", 5);
    int64_t last = 0;
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        struct outbox_batch b = outbox_take(&c, 10);
        CHECK(b.count == want[i] && b.more == (want[i] == 10), "batch %zu: %zu", i, b.count);
        for (size_t k = 0; k < b.count; k++) {
            CHECK(b.items[k].effect.requested_seq > last, "in the order of their requests");
            last = b.items[k].effect.requested_seq;
        }
        CHECK(b.next_us > c.now_us, "a lease, or nothing, comes next");
    }
    CHECK(outbox_take(&c, 0).count == 0 && outbox_take(&c, SIZE_MAX).count == 0);
    c.now_us += 60000000;
    CHECK(outbox_take(&c, SIZE_MAX).count == 25, "more than one commit takes, if there were");
    fixture_clean(&c);
    fixture_close(&c);
}

/* Of some runs only; of none; and an id is no more than an id. */
TEST_DB(outbox_claims_of_some_runs) {
    static const struct {
        const char *runs;
        size_t count;
    } looks[] = {{"[]", 0},
                 {"[\"nobody\",\"r\"]", 0},
                 {"[\"r1\",\"r3\"]", 2},
                 {"[\"r1\"]", 0},
                 {"[\"r2\"]", 1}};
    struct fixture c;
    struct error err = {0};
    fixture_open(&c, url);
    for (int i = 1; i <= 4; i++) {
        const char *run = fixture_fmt("r%d", i);
        fixture_put(&c, fixture_item("RunStarted", run, NULL, 1));
        (void)outbox_ask(&c, run, "API_CALL", fixture_fmt("{\"n\":%d}", i));
    }
    for (size_t i = 0; i < COUNT_OF(looks); i++) {
        struct outbox_batch b = {0};
        CHECK(outbox_claim(c.ledger, STR("w"), str_c(looks[i].runs), 10, 60000, &c.arena, &b,
                           &err) == ST_OK,
              "%s", err.msg);
        CHECK(b.count == looks[i].count, "%s: %zu", looks[i].runs, b.count);
        for (size_t k = 0; k < b.count; k++) {
            const char *quoted = fixture_fmt("\"%.*s\"", STR_ARG(b.items[k].run_id));
            CHECK(strstr(looks[i].runs, quoted), "%s: %s", looks[i].runs, quoted);
        }
    }
    CHECK(outbox_take(&c, 10).count == 1, "the one that nobody named");
    fixture_clean(&c);
    fixture_close(&c);
}

/* CE-4.4-3: 5 seconds ahead: not taken before, taken after; and next_us says when. */
TEST_DB(outbox_claims_what_is_due) {
    struct fixture c;
    open_with_run(&c, url);
    struct effect_info info = {0};
    struct error err = {0};
    bool existing = false;
    struct effect_request request = {.run_id = STR("r1"),
                                     .type = STR("API_CALL"),
                                     .payload = STR("{}"),
                                     .max_retries = 3,
                                     .base_ms = 2500};
    CHECK(outbox_request(c.ledger, &request, &c.arena, &info, &existing, &err) == ST_OK);
    CHECK(outbox_fail_once(&c, "X", "no"));
    int64_t due = c.now_us + 5000000;
    CHECK(outbox_read(&c, info.effect.id).effect.due_us == due);
    struct outbox_batch b = outbox_take(&c, 10);
    CHECK(b.count == 0 && b.next_us == due);
    c.now_us = due - 1;
    CHECK(outbox_take(&c, 10).count == 0);
    /* Not even by a worker that read the row when it was still another's. */
    fixture_refused(
        &c, fixture_fact(EVENT_EFFECT_EXECUTING, "r1", fixture_uuid_text(info.effect.id), 2, "{}"),
        ST_CONFLICT, "EFFECT_MOVED");
    c.now_us = due;
    CHECK(outbox_take(&c, 10).count == 1);
    fixture_close(&c);
}

/* A failure is told once; told again it is the same one; told after somebody else has gone on, it
 * is refused, and nothing is written. */
TEST_DB(outbox_late_failure) {
    struct fixture c;
    struct error err = {0};
    bool dead = false;
    open_with_run(&c, url);
    (void)outbox_ask(&c, "r1", "SOR_UPDATE", "{}");
    struct outbox_batch first = outbox_take(&c, 10);
    c.now_us += 60000000;
    struct outbox_batch second = outbox_take(&c, 10);
    CHECK(first.count == 1 && second.count == 1);
    str truth = fixture_truth_dump(&c);
    CHECK(outbox_fail(c.ledger, &first.items[0], STR("X"), STR("late"), STR_NONE, STR("w1"), &dead,
                      &err) == ST_CONFLICT &&
              err.reason == REASON_EFFECT_MOVED,
          "%s", err.msg);
    CHECK(outbox_release(c.ledger, &first.items[0], STR("w1"), &err) == ST_CONFLICT &&
              err.reason == REASON_EFFECT_MOVED,
          "%s", err.msg);
    CHECK(str_eq(fixture_truth_dump(&c), truth) && !dead);
    for (int i = 0; i < 2; i++)
        CHECK(outbox_fail(c.ledger, &second.items[0], STR("X"), STR("no"), STR_NONE, STR("w2"),
                          &dead, &err) == ST_OK &&
                  dead,
              "%s", err.msg);
    CHECK(outbox_complete(c.ledger, &second.items[0], STR("1"), STR("w2"), &err) == ST_CONFLICT);
    fixture_clean(&c);
    fixture_close(&c);
}

/* What is damaged is not executed, and keeps nobody else from being: more requests than one look
 * takes that cannot be read, and a run that cannot. */
TEST_DB(outbox_goes_on_beside_damage) {
    struct fixture c;
    struct error err = {0};
    open_with_run(&c, url);
    request_many(&c, "r1", 12);
    fixture_put(&c, fixture_item("RunStarted", "r2", NULL, 1));
    (void)outbox_ask(&c, "r2", "API_CALL", "{}");
    fixture_put(&c, fixture_item("RunStarted", "r3", NULL, 1));
    struct effect_info good = outbox_ask(&c, "r3", "API_CALL", "{}");
    fixture_drop_triggers(&c);
    fixture_must_sql(&c, "UPDATE ledger_event SET payload = 'x' WHERE run_seq IS NULL AND run_no ="
                         " (SELECT run_no FROM ledger_run WHERE run_id = 'r1')");
    fixture_must_sql(&c, "UPDATE ledger_event SET run_seq = 9 WHERE run_seq = 1 AND run_no ="
                         " (SELECT run_no FROM ledger_run WHERE run_id = 'r2')");
    fixture_reopen(&c);
    struct outbox_batch b = outbox_take(&c, 10);
    CHECK(b.count == 1 && !b.more && uuid_eq(b.items[0].effect.id, good.effect.id), "%zu", b.count);
    CHECK(b.next_us > c.now_us);
    CHECK(outbox_complete(c.ledger, &b.items[0], STR("1"), STR("w"), &err) == ST_OK, "%s", err.msg);
    b = outbox_take(&c, 10);
    CHECK(b.count == 0 && !b.more);
    fixture_close(&c);
}

/* ---- eight workers ---- */

enum { WORKERS = 8, AT_ONCE = 40, LOG_MAX = 4000 };

struct claimed {
    uuid id;
    int64_t execution;
};
struct worker {
    struct fixture *c;     /* of its own, on PostgreSQL */
    struct writer *writer; /* of all, on SQLite */
    struct arena arena;
    pthread_t thread;
    struct claimed log[LOG_MAX];
    struct effect_info held[AT_ONCE]; /* by the first worker, until the others are through */
    int count, held_count, completed, failures, number;
    struct error err;
    char name[16];
};

struct deed { /* one call of the outbox, on whichever thread has the ledger */
    struct worker *w;
    struct outbox_batch batch;
    const struct effect_info *item; /* settle this one; or NULL: claim */
};

/* Few are settled: it is the claims that are told apart. */
static bool is_settled(const struct effect_info *i) { return i->effect.id.b[15] % 16 == 0; }

static bool fails_first(const struct effect_info *i) {
    return i->effect.executions == 1 && i->effect.id.b[15] % 32 == 0;
}

static status do_deed(struct ledger *l, void *context, struct error *err) {
    struct deed *d = context;
    str name = str_c(d->w->name);
    if (!d->item)
        return outbox_claim(l, name, STR_NONE, AT_ONCE, 60000, &d->w->arena, &d->batch, err);
    if (fails_first(d->item))
        return outbox_fail(l, d->item, STR("X"), STR("no"), STR_NONE, name, NULL, err);
    return outbox_complete(l, d->item, STR("{}"), name, err);
}

static bool deed_done(struct deed *d) {
    struct worker *w = d->w;
    struct writer_call call = {.task = do_deed, .task_context = d};
    status st = w->writer ? writer_append(w->writer, &call, 60000, &w->err)
                          : do_deed(w->c->ledger, d, &w->err);
    w->failures += st != ST_OK;
    w->completed += st == ST_OK && d->item && !fails_first(d->item);
    return st == ST_OK;
}

static void *work(void *context) {
    struct worker *w = context;
    for (bool more = true; more;) {
        struct deed claim = {.w = w};
        arena_reset(&w->arena);
        if (!deed_done(&claim)) break;
        more = claim.batch.more || claim.batch.count > 0;
        for (size_t i = 0; i < claim.batch.count && w->count < LOG_MAX; i++) {
            struct effect_info *item = &claim.batch.items[i];
            w->log[w->count++] = (struct claimed){item->effect.id, item->effect.executions};
            struct deed settle = {.w = w, .item = item};
            if (w->number == 0)
                w->held[w->held_count++] = *item;
            else if (is_settled(item))
                (void)deed_done(&settle);
        }
        if (w->number == 0 && w->held_count > 0) break; /* a slow receiver; its arena stays */
    }
    return NULL;
}

static int by_claim(const void *a, const void *b) { return memcmp(a, b, sizeof(struct claimed)); }

static int check_log(struct worker *workers, int rows) {
    struct claimed *all = malloc(sizeof(*all) * LOG_MAX * WORKERS);
    int count = 0;
    CHECK(all);
    for (int i = 0; i < WORKERS; i++) {
        CHECK(workers[i].failures == 0, "worker %d: %s", i, workers[i].err.msg);
        memcpy(all + count, workers[i].log, sizeof(*all) * (size_t)workers[i].count);
        count += workers[i].count;
    }
    qsort(all, (size_t)count, sizeof(*all), by_claim);
    for (int i = 1; i < count; i++)
        CHECK(memcmp(&all[i - 1], &all[i], sizeof(*all)) != 0, "one execution, two workers");
    free(all);
    CHECK(count >= rows, "%d of %d", count, rows);
    return count;
}

/* CE-4.4-6: 8 workers on 1000 rows: no execution is claimed twice; while the first worker keeps its
 * rows for ever, the others go on with all others. */
TEST_DB(outbox_eight_workers) {
    static struct worker workers[WORKERS];
    static struct fixture nodes[WORKERS];
    struct error err = {0};
    struct writer *writer = NULL;
    enum { OF_A_RUN = 10 };
    int rows = fixture_scaled(1000, 100) / OF_A_RUN * OF_A_RUN;
    fixture_open(&nodes[0], url);
    bool postgres = db_is_postgres(ledger_db(nodes[0].ledger));
    for (int i = 0; i < rows / OF_A_RUN; i++)
        request_many(&nodes[0], fixture_fmt("r%d", i), OF_A_RUN);
    for (int i = 1; i < WORKERS && postgres; i++)
        fixture_open(&nodes[i], url);
    int64_t failing = 0;
    int64_t completed = 0;
    for (int phase = 0; phase < 2; phase++) {
        if (!postgres) {
            CHECK(writer_open(nodes[0].ledger, NULL, &writer, &err) == ST_OK, "%s", err.msg);
            nodes[0].ledger = NULL;
        }
        for (int i = 0; i < WORKERS; i++) {
            struct worker *w = &workers[i];
            *w = (struct worker){.c = &nodes[i], .writer = writer, .number = i};
            snprintf(w->name, sizeof(w->name), "w%d", i);
            arena_init(&w->arena, 4096, SIZE_MAX);
            nodes[i].now_us = FIXTURE_NOW_US + INT64_C(10000000) * phase;
            CHECK(pthread_create(&w->thread, NULL, work, w) == 0);
        }
        for (int i = 0; i < WORKERS; i++)
            pthread_join(workers[i].thread, NULL);
        if (!postgres) writer_close(writer);
        if (!postgres) fixture_reopen(&nodes[0]);
        int count = check_log(workers, phase == 0 ? rows : 0);
        if (phase == 0) {
            CHECK(count == rows);
            failing = fixture_int(&nodes[0], "SELECT COUNT(*) FROM outbox_events WHERE status ="
                                             " 'FAILED'");
        } else {
            CHECK(count == failing, "%d of %lld", count, (long long)failing);
        }
        for (int i = 0; i < workers[0].held_count; i++, completed++)
            CHECK(outbox_complete(nodes[0].ledger, &workers[0].held[i], STR("{}"), STR("w0"),
                                  &err) == ST_OK,
                  "%s", err.msg);
        for (int i = 1; i < WORKERS; i++)
            completed += workers[i].completed;
        for (int i = 0; i < WORKERS; i++)
            arena_release(&workers[i].arena);
    }
    CHECK(fixture_int(&nodes[0], "SELECT COUNT(*) FROM outbox_events WHERE status = 'COMPLETED'") ==
          completed);
    fixture_clean(&nodes[0]);
    for (int i = 0; i < WORKERS; i++) {
        if (i == 0 || postgres) fixture_close(&nodes[i]);
    }
}

/* ---- the table ---- */

static bool has(str text, const char *part) {
    return memmem(text.ptr, text.len, part, strlen(part)) != NULL;
}

static void check_index(struct fixture *c, const char *name, const char *columns,
                        const char *predicate) {
    const char *sql =
        db_is_postgres(ledger_db(c->ledger))
            ? fixture_fmt("SELECT indexdef FROM pg_indexes WHERE indexname = '%s'", name)
            : fixture_fmt("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = '%s'",
                          name);
    str made = fixture_text(c, sql);
    CHECK(made.ptr && has(made, "state_effect") && has(made, columns), "%s: %.*s", name,
          STR_ARG(made));
    CHECK(has(made, " WHERE ") == (predicate != NULL) && (!predicate || has(made, predicate)),
          "%s: %.*s", name, STR_ARG(made));
}

/* CE-4.3-10, CE-4.3-11, CE-4.3-12: the indexes, over the numbers and times behind the view's
 * columns, in CANON's order; and the query for due retries uses its own. */
TEST_DB(outbox_indexes) {
    struct fixture c;
    open_with_run(&c, url);
    request_many(&c, "r1", 50);
    bool postgres = db_is_postgres(ledger_db(c.ledger));
    check_index(&c, "idx_outbox_status", "(tenant_no, status, created_us)", NULL);
    check_index(&c, "idx_outbox_retry", "(status, due_us)",
                postgres ? "(status = 'FAILED'::text)" : "status = 'FAILED'");
    check_index(&c, "idx_outbox_idempotency", "(idempotency_key)", NULL);
    if (postgres) fixture_must_sql(&c, "ANALYZE state_effect; SET enable_seqscan = off");
    str plan = fixture_plan(&c, "SELECT effect_pos FROM state_effect WHERE status = 'FAILED'"
                                " AND due_us <= 1771228800000000 ORDER BY due_us");
    CHECK(has(plan, "idx_outbox_retry"), "%.*s", STR_ARG(plan));
    /* Of many that are due at one time, a claim reads no more than it takes. */
    plan = fixture_plan(&c, "SELECT effect_type FROM state_effect WHERE due_us <= 1771228800000000"
                            " ORDER BY due_us, effect_pos LIMIT 10");
    CHECK(has(plan, "state_effect_due") && !has(plan, "Sort"), "%.*s", STR_ARG(plan));
    fixture_close(&c);
}

/* What a writer asks of the outbox again and again, it finds by an index: a few whole reads are
 * from making the indexes. (A connection that ends tells how it read.) */
TEST(outbox_is_not_read_whole) {
    enum { EFFECTS = 100, WHOLE_READS_MAX = 20 };
    struct fixture c;
    struct error err = {0};
    open_with_run(&c, test_postgres());
    for (int i = 0; i < EFFECTS; i++) {
        (void)outbox_ask(&c, "r1", "API_CALL", fixture_fmt("{\"n\":%d}", i));
        struct outbox_batch b = outbox_take(&c, 1);
        CHECK(b.count == 1 &&
                  outbox_complete(c.ledger, &b.items[0], STR("1"), STR("w"), &err) == ST_OK,
              "%s", err.msg);
    }
    fixture_reopen(&c);
    int64_t reads = fixture_int(&c, "SELECT seq_scan FROM pg_stat_user_tables WHERE relname ="
                                    " 'state_effect'");
    CHECK(reads < WHOLE_READS_MAX, "%lld whole reads", (long long)reads);
    fixture_close(&c);
}

static void note_status(struct fixture *c, uuid id, unsigned *seen) {
    str status_name =
        fixture_text(c, fixture_fmt("SELECT status FROM outbox_events WHERE aggregate_id = '%.*s'",
                                    STR_ARG(fixture_uuid_text(id))));
    enum outbox_status s = outbox_status_named(status_name);
    CHECK(s != OUTBOX_NONE, "%.*s", STR_ARG(status_name));
    *seen |= 1U << s;
}

/* CE-4.3-6: five values, PENDING first, and the table takes no other. */
TEST_DB(outbox_status_values) {
    static const char *const others[] = {"NONE", "pending", "LOST", "", "DEAD"};
    struct fixture c;
    struct error err = {0};
    unsigned seen = 0;
    open_with_run(&c, url);
    struct effect_info good = outbox_ask(&c, "r1", "SOR_UPDATE", "{\"n\":1}");
    CHECK(good.effect.status == OUTBOX_PENDING);
    note_status(&c, good.effect.id, &seen);
    struct outbox_batch b = outbox_take(&c, 10);
    note_status(&c, good.effect.id, &seen);
    CHECK(outbox_complete(c.ledger, &b.items[0], STR("1"), STR("w"), &err) == ST_OK);
    note_status(&c, good.effect.id, &seen);
    struct effect_info bad = outbox_ask(&c, "r1", "SOR_UPDATE", "{\"n\":2}");
    for (bool on = true; on; c.now_us += 20000000) {
        note_status(&c, bad.effect.id, &seen);
        on = outbox_fail_once(&c, "X", "no");
        note_status(&c, bad.effect.id, &seen);
    }
    CHECK(seen == 62, "%u", seen);
    for (size_t i = 0; i < COUNT_OF(others); i++)
        CHECK(fixture_sql(&c, fixture_fmt("UPDATE state_effect SET status = '%s'", others[i])) !=
                  ST_OK,
              "%s", others[i]);
    CHECK(fixture_sql(&c, "UPDATE state_effect SET status = NULL") != ST_OK);
    str made = fixture_text(&c, "SELECT {sqlite:dflt_value FROM pragma_table_info('state_effect')"
                                " WHERE name = 'status'}{postgres:column_default FROM"
                                " information_schema.columns WHERE table_name = 'state_effect' AND"
                                " column_name = 'status'}");
    CHECK(has(made, "'PENDING'"), "%.*s", STR_ARG(made));
    fixture_close(&c);
}

/* ---- lists ---- */

/* Two tenants, four runs, three types, every status. */
static void fill_lists(struct fixture *c) {
    static const char *const types[] = {"SOR_UPDATE", "API_CALL", "SEND_EMAIL"};
    struct error err = {0};
    fixture_open(c, c->url);
    for (int i = 0; i < 4; i++) {
        struct append_item run = fixture_item("RunStarted", fixture_fmt("r%d", i), NULL, 1);
        if (i >= 2) run.event.tenant_id = STR("globex");
        fixture_rekey(&run);
        fixture_put(c, run);
    }
    for (int i = 0; i < 40; i++) {
        (void)outbox_ask(c, fixture_fmt("r%d", i % 4), types[i % 3], fixture_fmt("{\"n\":%d}", i));
        if (i % 5 == 0) continue; /* PENDING, until it is taken with a later one */
        struct outbox_batch b = outbox_take(c, 1);
        CHECK(b.count == 1);
        if (i % 5 == 1) continue; /* PROCESSING */
        status st = i % 5 == 2 ? outbox_complete(c->ledger, &b.items[0], STR("1"), STR("w"), &err)
                               : outbox_fail(c->ledger, &b.items[0], STR("X"), STR("no"), STR_NONE,
                                             STR("w"), NULL, &err);
        CHECK(st == ST_OK, "%s", err.msg);
        if (i == 30) c->now_us += 30000000;
    }
    struct outbox_batch last = {0};
    for (int i = 0; i < 3; i++, c->now_us += 61000000) /* SOR_UPDATE has two executions */
        last = outbox_take(c, 100);
    for (size_t i = 0; i < 3; i++)
        CHECK(outbox_fail(c->ledger, &last.items[i], STR("X"), STR("no"), STR_NONE, STR("w"), NULL,
                          &err) == ST_OK,
              "%s", err.msg);
    for (int i = 0; i < 4; i++)
        (void)outbox_ask(c, fixture_fmt("r%d", i), "FAX", fixture_fmt("{\"last\":%d}", i));
}

static void check_list(struct fixture *c, const struct outbox_filter *given, const char *where) {
    struct outbox_filter filter = *given;
    struct error err = {0};
    struct buf got;
    buf_init(&got, (size_t)1024 * 1024);
    int pages = 0;
    do {
        struct effect_info *items = NULL;
        size_t count = 0;
        int64_t next = 0;
        CHECK(outbox_list(c->ledger, &filter, 3, &c->arena, &items, &count, &next, &err) == ST_OK,
              "%s", err.msg);
        CHECK(count <= 3 && (next == 0 || count == 3));
        for (size_t i = 0; i < count; i++) {
            buf_put(&got, fixture_uuid_text(items[i].effect.id));
            buf_put_char(&got, '\n');
        }
        filter.before = next;
        CHECK(++pages < 100);
    } while (filter.before > 0);
    str want =
        fixture_lines(c, fixture_fmt("SELECT aggregate_id FROM outbox_events WHERE %s ORDER BY"
                                     " position DESC",
                                     where));
    CHECK(str_eq(buf_str(&got), want), "%s:\n%.*s\ninstead of\n%.*s", where, STR_ARG(buf_str(&got)),
          STR_ARG(want));
    buf_release(&got);
}

TEST_DB(outbox_lists_and_counts) {
    struct fixture c = {.url = url};
    struct error err = {0};
    fill_lists(&c);
    static const char *const runs[] = {NULL, "r0", "r3", "nowhere"};
    static const char *const types[] = {NULL, "API_CALL", "FAX"};
    static const char *const tenants[] = {NULL, "acme", "globex", "initech"};
    static const unsigned masks[] = {0, 1U << OUTBOX_PENDING, 1U << OUTBOX_DEAD_LETTER,
                                     1U << OUTBOX_COMPLETED | 1U << OUTBOX_FAILED,
                                     62 & ~(1U << OUTBOX_COMPLETED)};
    for (size_t i = 0; i < COUNT_OF(runs) * COUNT_OF(types) * COUNT_OF(tenants) * COUNT_OF(masks);
         i++) {
        const char *run = runs[i % COUNT_OF(runs)];
        const char *type = types[i / COUNT_OF(runs) % COUNT_OF(types)];
        const char *tenant = tenants[i / COUNT_OF(runs) / COUNT_OF(types) % COUNT_OF(tenants)];
        unsigned mask = masks[i / COUNT_OF(runs) / COUNT_OF(types) / COUNT_OF(tenants)];
        struct outbox_filter f = {
            .tenant_id = str_c(tenant), .run_id = str_c(run), .type = str_c(type), mask, 0};
        const char *of_tenant = !tenant                         ? "1=1"
                                : strcmp(tenant, "acme") == 0   ? "run_id IN ('r0','r1')"
                                : strcmp(tenant, "globex") == 0 ? "run_id IN ('r2','r3')"
                                                                : "1=0";
        const char *in = "";
        for (int s = OUTBOX_PENDING; s < OUTBOX_STATUS_COUNT; s++) {
            if (mask == 0 || mask & 1U << s)
                in = fixture_fmt("%s%s'%s'", in, *in ? "," : "",
                                 outbox_status_name((enum outbox_status)s));
        }
        check_list(&c, &f,
                   fixture_fmt("%s AND %s AND %s AND status IN (%s)", of_tenant,
                               run ? fixture_fmt("run_id = '%s'", run) : "1=1",
                               type ? fixture_fmt("event_type = '%s'", type) : "1=1", in));
    }
    struct outbox_stats stats;
    CHECK(outbox_stats(c.ledger, &stats, &err) == ST_OK, "%s", err.msg);
    for (int s = OUTBOX_PENDING; s < OUTBOX_STATUS_COUNT; s++) {
        int64_t rows =
            fixture_int(&c, fixture_fmt("SELECT COUNT(*) FROM outbox_events WHERE status = '%s'",
                                        outbox_status_name((enum outbox_status)s)));
        CHECK(rows > 0, "%s", outbox_status_name((enum outbox_status)s));
        CHECK(stats.count[s] == (s == OUTBOX_COMPLETED ? 0 : rows)); /* those are not counted */
    }
    CHECK(stats.oldest_due_us == fixture_int(&c, "SELECT MIN(due_us) FROM state_effect"));
    struct effect_info *items = NULL;
    size_t count = 0;
    int64_t next = 0;
    struct outbox_filter all = {0};
    CHECK(outbox_list(c.ledger, &all, 0, &c.arena, &items, &count, &next, &err) == ST_OK);
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- its run ---- */

/* A run that has ended, and one that was archived: its effects are executed, fail, die, come back
 * and are asked for again all the same. */
TEST_DB(outbox_of_finished_and_archived_runs) {
    struct fixture c;
    struct error err = {0};
    open_with_run(&c, url);
    struct effect_info early =
        outbox_ask(&c, "r1", "SOR_UPDATE", "{\"n\":1,\"idempotency_key\":\"k\"}");
    fixture_put(&c, fixture_item("RunCompleted", "r1", NULL, 1));
    struct effect_info late = outbox_ask(&c, "r1", "SOR_UPDATE", "{\"n\":2}");
    CHECK(archive_run(&c, "r1").runs == 1 && archive_rows(&c, "ledger_event", "r1") == 0);
    struct effect_info same = outbox_ask(&c, "r1", "SOR_UPDATE", "{\"idempotency_key\":\"k\"}");
    CHECK(uuid_eq(same.effect.id, early.effect.id) && str_eq(same.payload, early.payload));
    struct outbox_batch b = outbox_take(&c, 10);
    CHECK(b.count == 2 && str_eq(b.items[1].payload, late.payload));
    CHECK(archive_run(&c, "r1").runs == 1 && archive_rows(&c, "ledger_event", "r1") == 0);
    fixture_reopen(&c);
    CHECK(outbox_complete(c.ledger, &b.items[0], STR("\"done\""), STR("w"), &err) == ST_OK, "%s",
          err.msg);
    for (int i = 0; i < 2; i++, c.now_us += 20000000) {
        if (i > 0) b = outbox_take(&c, 10);
        CHECK(outbox_fail(c.ledger, &b.items[i == 0], STR("X"), STR("no"), STR_NONE, STR("w"), NULL,
                          &err) == ST_OK,
              "%s", err.msg);
        CHECK(archive_run(&c, NULL).events > 0);
    }
    struct effect_info dead = outbox_read(&c, late.effect.id);
    CHECK(dead.effect.status == OUTBOX_DEAD_LETTER && has(dead.error, "\"no\""));
    CHECK(outbox_requeue(c.ledger, STR("acme"), late.effect.id, STR("ada"), STR_NONE, NULL, &err) ==
              ST_OK,
          "%s", err.msg);
    b = outbox_take(&c, 10);
    CHECK(b.count == 1 && outbox_complete(c.ledger, &b.items[0], STR("2"), STR("w"), &err) == ST_OK,
          "%s", err.msg);
    (void)outbox_ask(&c, "r1", "API_CALL", "{\"n\":3}");
    str done = outbox_read(&c, early.effect.id).result;
    CHECK(text_is(done, "\"done\""));
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM effects WHERE status = 'COMPLETED' AND"
                          " execution_result IS NOT NULL") == 2);
    fixture_clean(&c);
    str state = fixture_state_dump(&c);
    CHECK(ledger_rebuild(c.ledger, NULL, NULL, NULL, &err) == ST_OK, "%s", err.msg);
    CHECK(str_eq(fixture_state_dump(&c), state));
    fixture_close(&c);
}

static const char *engine_append(struct fixture *c, const struct lease *lease, int64_t known_seq,
                                 enum claim_act act, struct append_item item) {
    struct run_claim claim = {.act = act,
                              .node_no = lease->node_no,
                              .epoch = lease->epoch,
                              .wake_us = CLAIM_NEVER,
                              .known_seq = known_seq};
    struct append_result res = {0};
    struct append_request req = {.items = &item,
                                 .count = 1,
                                 .atomic = true,
                                 .results = &res,
                                 .arena = &c->arena,
                                 .claim = &claim};
    struct append_request *reqs[] = {&req};
    struct error err = {0};
    CHECK(ledger_append(c->ledger, reqs, 1, &err) == ST_OK, "%s", err.msg);
    return res.code == ST_OK ? "" : reason_name(res.err->reason);
}

/* A node that carries the run out need not have read what became of its effects; what else happened
 * to the run it must have. With the run in memory, and read back. */
TEST_DB(outbox_does_not_move_the_run) {
    struct fixture c;
    struct lease lease;
    struct error err = {0};
    fixture_open(&c, url);
    CHECK(lease_take(c.ledger, STR("n1"), 3600000, &lease, &err) == ST_OK, "%s", err.msg);
    CHECK(*engine_append(&c, &lease, -1, CLAIM_OPEN, fixture_item("RunStarted", "r1", NULL, 1)) ==
          0);
    int64_t known = 1;
    for (int i = 0; i < 3; i++) {
        (void)outbox_ask(&c, "r1", "SOR_UPDATE", fixture_fmt("{\"n\":%d}", i));
        if (i == 2) fixture_reopen(&c);
        for (bool on = true; on; c.now_us += 20000000)
            on = outbox_fail_once(&c, "X", "no");
        if (i == 1) fixture_reopen(&c);
        const char *why =
            engine_append(&c, &lease, known, CLAIM_NONE,
                          fixture_item("StepStarted", "r1", fixture_fmt("s%d", i), 1));
        CHECK(*why == 0, "round %d: %s", i, why);
        known = fixture_int(&c, "SELECT MAX(sequence_number) FROM orchestration_events");
    }
    (void)outbox_ask(&c, "r1", "SOR_UPDATE", "{\"n\":9}");
    fixture_put(&c, fixture_item("RunNoted", "r1", NULL, 1));
    (void)outbox_take(&c, 10);
    for (int i = 0; i < 2; i++) {
        const char *why = engine_append(&c, &lease, known, CLAIM_NONE,
                                        fixture_item("StepCompleted", "r1", "s0", 1));
        CHECK(strcmp(why, "RUN_MOVED") == 0, "%s", why);
        fixture_reopen(&c);
    }
    fixture_clean(&c);
    fixture_close(&c);
}

/* CE-6.1-2, CE-11-5: the run's trace has its effects, rows and events. CE-11-6: each fact of an
 * effect has its cause before it in its tenant: the request that of the step which asks, or what
 * the caller names, and all others the request. */
TEST_DB(outbox_causes_and_traces) {
    struct fixture c;
    struct error err = {0};
    struct effect_info info = {0};
    bool existing = false;
    open_with_run(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r2", NULL, 1));
    struct append_result step = fixture_put(&c, fixture_item("StepStarted", "r1", "s1", 1));
    struct append_result named = fixture_put(&c, fixture_item("RunNoted", "r2", NULL, 1));
    fixture_put(&c, fixture_item("StepStarted", "r1", "s2", 1));
    struct effect_request request = {.run_id = STR("r1"),
                                     .type = STR("SOR_UPDATE"),
                                     .payload = STR("{\"n\":1}"),
                                     .step_id = STR("s1"),
                                     .actor = STR("ada"),
                                     .max_retries = -1,
                                     .base_ms = -1};
    CHECK(outbox_request(c.ledger, &request, &c.arena, &info, &existing, &err) == ST_OK, "%s",
          err.msg);
    CHECK(text_is(info.step_id, "s1"));
    CHECK(uuid_eq(info.correlation, fixture_run(&c, "r1").correlation_id));
    for (bool on = true; on; c.now_us += 20000000)
        on = outbox_fail_once(&c, "X", "no");
    CHECK(outbox_requeue(c.ledger, STR_NONE, info.effect.id, STR("ada"), STR_NONE, NULL, &err) ==
          ST_OK);
    (void)outbox_take(&c, 1);
    request.payload = STR("{\"n\":2}");
    request.cause = &named.event_id;
    CHECK(outbox_request(c.ledger, &request, &c.arena, &info, &existing, &err) == ST_OK, "%s",
          err.msg);
    request = (struct effect_request){.run_id = STR("r1"),
                                      .type = STR("SOR_UPDATE"),
                                      .payload = STR("{\"n\":3}"),
                                      .step_id = STR("never-started"),
                                      .max_retries = -1,
                                      .base_ms = -1};
    CHECK(outbox_request(c.ledger, &request, &c.arena, &info, &existing, &err) == ST_OK, "%s",
          err.msg);
    str causes = fixture_lines(
        &c, "SELECT causation_id FROM orchestration_events WHERE event_type = 'EFFECT_REQUESTED'"
            " ORDER BY sequence_number LIMIT 2");
    CHECK(text_is(causes, fixture_fmt("%.*s\n%.*s\n", STR_ARG(fixture_uuid_text(step.event_id)),
                                      STR_ARG(fixture_uuid_text(named.event_id)))),
          "%.*s", STR_ARG(causes));
    CHECK(fixture_int(&c,
                      "SELECT COUNT(*) FROM orchestration_events WHERE aggregate_type = 'EFFECT'"
                      " AND causation_id IS NULL") == 0);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events e JOIN orchestration_events q"
                          " ON q.id = e.causation_id WHERE q.tenant_id <> e.tenant_id"
                          " OR q.sequence_number >= e.sequence_number") == 0);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM orchestration_events e JOIN outbox_events o ON"
                          " o.aggregate_id = e.aggregate_id WHERE e.id <> o.id AND"
                          " e.causation_id <> o.id") == 0,
          "what follows a request is caused by it");
    CHECK(fixture_int(&c,
                      "SELECT COUNT(*) FROM orchestration_events WHERE aggregate_type = 'EFFECT'"
                      " AND correlation_id <> (SELECT correlation_id FROM runs WHERE run_id ="
                      " 'r1')") == 0);
    CHECK(fixture_int(&c,
                      "SELECT COUNT(*) FROM outbox_events o JOIN effects f ON f.id ="
                      " o.aggregate_id JOIN runs r ON r.run_id = o.run_id AND r.correlation_id ="
                      " o.correlation_id AND r.correlation_id = f.correlation_id") == 3);
    fixture_clean(&c);
    fixture_close(&c);
}
