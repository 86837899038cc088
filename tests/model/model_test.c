/* Random programs on the real ledger and on the model, which must agree on every answer and on all
 * that can be read afterwards.
 *
 * Several programs share a ledger, each with tenants and runs of its own, because making one costs
 * more than a program. On PostgreSQL two ledgers are open on one database and take turns, as two
 * nodes would. A program that fails is repeated on an empty ledger and shrunk: operations are left
 * out for as long as it still fails. */
#include "base/limits.h"
#include "base/log.h"
#include "model/compare.h"
#include "model/model.h"
#include "model/program.h"
#include "test.h"

enum { NODES_MAX = 2, GROUP_MAX = PROGRAM_OPS_MAX, WHY_MAX = 2048 };

struct bench { /* the ledgers under test, and what has happened so far */
    str url;
    struct ledger *nodes[NODES_MAX];
    size_t node_count;
    int64_t now_us;
    enum ledger_validation validation[NODES_MAX];
    int64_t salt;         /* of the running program */
    int64_t verify_every; /* so many programs: it walks over those before, too */
    bool overlap;         /* each group is made while the one before it commits, */
    struct group *flying; /* which is this one, or NULL */
    /* what the programs met, to prove that they meet everything */
    int64_t accepted, duplicates, rejected, refused, alerts, groups, batches_refused, reopened,
        rebuilt, checkpoints, archived, overlapping;
};

/* ---- ledgers ---- */

static int64_t bench_now(void *clock) { return ((struct bench *)clock)->now_us; }

/* Whether a commit survives a power cut is not the question here (tests/crash asks it), and waiting
 * for the disk would take minutes. */
static status connect_fast(void *context, struct db **out, struct error *err) {
    struct bench *b = context;
    status st = db_open(b->url, DB_WRITE, out, err);
    if (st != ST_OK) return st;
    st = db_exec(*out, "{sqlite:PRAGMA synchronous=OFF}{postgres:SET synchronous_commit=off}", err);
    if (st != ST_OK) db_close(*out);
    return st;
}

/* Opens a node, after closing it if it was open. */
static bool node_open(struct bench *b, size_t node, enum ledger_validation validation,
                      struct buf *why) {
    struct ledger_options options = {
        .validation = validation, .now_us = bench_now, .clock = b, .always_overlap = true};
    struct error err = {0};
    ledger_close(b->nodes[node]);
    b->nodes[node] = NULL;
    b->validation[node] = validation;
    b->reopened++;
    if (ledger_open_with(connect_fast, b, &options, &b->nodes[node], &err) == ST_OK) return true;
    buf_printf(why, "could not open the ledger: %s", err.msg);
    return false;
}

static bool nodes_ready(struct bench *b, enum ledger_validation validation, struct buf *why) {
    for (size_t i = 0; i < b->node_count; i++) {
        if (b->nodes[i] && b->validation[i] == validation) continue;
        if (!node_open(b, i, validation, why)) return false;
    }
    return true;
}

static void bench_close(struct bench *b) {
    for (size_t i = 0; i < b->node_count; i++) {
        ledger_close(b->nodes[i]);
        b->nodes[i] = NULL;
    }
}

/* An empty database in place of the old one. */
static bool bench_empty(struct bench *b, struct buf *why) {
    struct error err = {0};
    bench_close(b);
    if (b->node_count == 1) {
        char path[512];
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof(path), "%.*s%s", STR_ARG(b->url),
                     (const char *[]){"", "-wal", "-shm"}[i]);
            remove(path);
        }
        return true;
    }
    struct db *db = NULL;
    status st = db_open(b->url, DB_WRITE, &db, &err);
    if (st == ST_OK)
        st = db_exec(
            db, "SET client_min_messages = error; DROP SCHEMA public CASCADE; CREATE SCHEMA public",
            &err);
    db_close(db);
    if (st != ST_OK) buf_printf(why, "could not empty the database: %s", err.msg);
    return st == ST_OK;
}

/* ---- one group ---- */

struct group {
    struct append_item items[GROUP_MAX];
    struct append_result results[GROUP_MAX];
    struct append_request requests[GROUP_MAX], *pointers[GROUP_MAX];
    struct model_result expected[GROUP_MAX];
    size_t item_count, request_count, node;
};

static void group_add(struct group *g, const struct op *op, int64_t salt, struct arena *arena) {
    bool opens_request = g->item_count == 0 || !op->joins_request;
    if (opens_request) {
        g->requests[g->request_count] =
            (struct append_request){.items = &g->items[g->item_count],
                                    .atomic = op->atomic,
                                    .arena = arena,
                                    .results = &g->results[g->item_count]};
        g->pointers[g->request_count] = &g->requests[g->request_count];
        g->request_count++;
    }
    program_item(op, salt, arena, &g->items[g->item_count++]);
    g->requests[g->request_count - 1].count++;
}

static void count_result(struct bench *b, const struct append_result *got) {
    bool invalid = got->err && got->err->reason == REASON_INVALID_TRANSITION;
    b->accepted += got->code == ST_OK && !got->duplicate;
    b->duplicates += got->duplicate;
    b->rejected += invalid;
    b->refused += got->code != ST_OK && !invalid;
}

/* What the model says of the group; results are compared when they are there. */
static void group_expect(struct group *g, struct bench *b, struct model *m) {
    m->now_us = b->now_us;
    m->validation = b->validation[g->node];
    for (size_t i = 0; i < g->request_count; i++) {
        struct append_request *req = g->pointers[i];
        model_append(m, req->items, req->count, req->atomic, &g->expected[req->items - g->items]);
    }
}

static bool group_compare(struct group *g, struct bench *b, struct buf *why) {
    b->groups++;
    for (size_t i = 0; i < g->request_count; i++) {
        struct append_request *req = g->pointers[i];
        struct model_result *expected = &g->expected[req->items - g->items];
        b->batches_refused += req->atomic && req->count > 1 && req->results[0].code != ST_OK;
        for (size_t k = 0; k < req->count; k++) {
            count_result(b, &req->results[k]);
            if (compare_result(&req->results[k], &expected[k], why)) continue;
            buf_printf(why, " (item %zu of request %zu)", k + 1, i + 1);
            return false;
        }
    }
    return true;
}

static bool group_append(struct group *g, struct bench *b, struct buf *why) {
    struct error err = {0};
    if (ledger_append(b->nodes[g->node], g->pointers, g->request_count, &err) == ST_OK)
        return group_compare(g, b, why);
    buf_printf(why, "append failed: %s", err.msg);
    return false;
}

static bool settle(struct bench *b, struct buf *why) {
    struct error err = {0};
    struct group *g = b->flying;
    b->flying = NULL;
    if (!g) return true;
    if (ledger_settle(b->nodes[g->node], &err) == ST_OK) return group_compare(g, b, why);
    buf_printf(why, "settling failed: %s", err.msg);
    return false;
}

/* As the ledger thread does it, but with groups of any size. */
static bool group_overlap(struct group *g, struct bench *b, struct buf *why) {
    struct error err = {0};
    struct ledger *node = b->nodes[g->node];
    if (b->flying && b->flying->node != g->node && !settle(b, why)) return false;
    bool overlapping = b->flying != NULL;
    bool staged = ledger_stage(node, g->pointers, g->request_count, &err) == ST_OK;
    if (!settle(b, why)) return false;
    if (!staged || ledger_finish(node, &err) != ST_OK) return group_append(g, b, why);
    b->overlapping += overlapping;
    b->flying = g;
    return true;
}

static bool group_run(struct group *g, struct bench *b, struct model *m, struct buf *why) {
    group_expect(g, b, m);
    return b->overlap ? group_overlap(g, b, why) : group_append(g, b, why);
}

/* ---- one program ---- */

static bool run_checkpoint(struct bench *b, struct model *m, const struct op *op,
                           struct arena *arena, struct buf *why) {
    struct error err = {0};
    struct append_result got = {0};
    str run_id = program_run_id(op->run, b->salt, arena);
    m->now_us = b->now_us;
    status st = ledger_checkpoint(b->nodes[op->node % b->node_count], run_id, &got, arena, &err);
    struct model_result want = model_checkpoint(m, run_id, got.event_id);
    b->checkpoints += st == ST_OK;
    if (st != ST_OK) got = (struct append_result){.code = st, .err = &err};
    return compare_result(&got, &want, why);
}

static bool run_archive(struct bench *b, struct ledger *node, struct buf *why) {
    struct error err = {0};
    struct archive_request all = {0};
    struct archive_report report;
    if (ledger_archive(node, &all, NULL, NULL, &report, &err) != ST_OK) {
        buf_printf(why, "archiving failed: %s", err.msg);
        return false;
    }
    b->archived += report.runs;
    return true;
}

static bool run_other(struct bench *b, struct model *m, const struct op *op, struct arena *arena,
                      struct buf *why) {
    struct error err = {0};
    size_t n = op->node % b->node_count;
    struct ledger *node = b->nodes[n];
    b->now_us += op->clock_us;
    switch (op->kind) {
    case OP_REOPEN:
        return node_open(b, n, op->validation, why);
    case OP_CHECKPOINT:
        return run_checkpoint(b, m, op, arena, why);
    case OP_COMPARE:
        return compare_ledger(node, m, why);
    case OP_REBUILD:
        b->rebuilt++;
        if (ledger_rebuild(node, NULL, NULL, NULL, &err) == ST_OK) return true;
        buf_printf(why, "rebuild failed: %s", err.msg);
        return false;
    case OP_ARCHIVE:
        return run_archive(b, node, why);
    case OP_EVENT:
        break; /* taken together with its group */
    }
    return true;
}

static bool run_ops(struct bench *b, struct model *m, const struct program *p, struct group *groups,
                    struct arena *arena, struct buf *why) {
    for (size_t i = 0; i < p->count;) {
        const struct op *op = &p->ops[i];
        size_t next = i + 1;
        bool same;
        if (op->kind == OP_EVENT) {
            struct group *g = &groups[b->flying == groups]; /* not the one that is under way */
            b->now_us += op->clock_us;
            *g = (struct group){.node = op->node % b->node_count};
            group_add(g, op, b->salt, arena);
            for (; next < p->count && p->ops[next].kind == OP_EVENT && p->ops[next].joins_group;
                 next++)
                group_add(g, &p->ops[next], b->salt, arena);
            same = group_run(g, b, m, why);
        } else {
            same = settle(b, why) && run_other(b, m, op, arena, why);
        }
        if (!same) {
            buf_printf(why, " (operation %zu)", i + 1);
            return false;
        }
        i = next;
    }
    return settle(b, why);
}

/* Runs the program under a fresh salt and compares everything at the end. */
static bool program_holds(struct bench *b, const struct program *p, enum model_fault fault,
                          bool verify, struct buf *why) {
    static struct model model; /* too large for the stack; tests run one at a time */
    static struct group groups[2];
    static int64_t salt;
    struct arena arena;
    arena_init(&arena, (size_t)64 * 1024, (size_t)64 * 1024 * 1024);
    model.count = model.rejection_count = 0;
    model.fault = fault;
    b->salt = ++salt;
    b->flying = NULL;
    struct ledger **reader = &b->nodes[(size_t)salt % b->node_count];
    bool holds =
        nodes_ready(b, p->validation, why) && run_ops(b, &model, p, groups, &arena, why) &&
        compare_ledger(*reader, &model, why) &&
        (!verify || (compare_verify(*reader, why) && compare_queries(*reader, &model, why)));
    for (size_t i = 0; i < model.count; i++)
        b->alerts += !model.records[i].legal;
    arena_release(&arena);
    return holds;
}

/* ---- shrinking ---- */

static bool fails_alone(struct bench *b, const struct program *p, enum model_fault fault,
                        struct buf *why) {
    buf_clear(why);
    return !bench_empty(b, why) || !program_holds(b, p, fault, true, why);
}

static struct program without(const struct program *p, size_t first, size_t n) {
    struct program out = *p;
    memmove(&out.ops[first], &out.ops[first + n], (p->count - first - n) * sizeof(out.ops[0]));
    out.count -= n;
    return out;
}

/* Leaves out halves, quarters, ... and at last single operations, for as long as that finds
 * something to leave out. */
static void shrink(struct bench *b, struct program *p, enum model_fault fault, struct buf *why) {
    for (size_t size = p->count / 2; size > 0;) {
        bool smaller = false;
        for (size_t at = 0; at + size <= p->count;) {
            struct program candidate = without(p, at, size);
            if (fails_alone(b, &candidate, fault, why)) {
                *p = candidate;
                smaller = true;
            } else {
                at += size;
            }
        }
        if (size > 1 || !smaller) size /= 2;
    }
    fails_alone(b, p, fault, why); /* for the reason */
}

/* ---- many programs ---- */

struct outcome {
    bool failed;
    size_t ops; /* of the shrunk program */
    char text[WHY_MAX * 4];
};

static void report(struct bench *b, struct program *p, enum model_fault fault, struct buf *why,
                   struct outcome *out) {
    struct buf text;
    buf_init_fixed(&text, out->text, sizeof(out->text) - 1);
    buf_printf(&text, "%.*s\n", STR_ARG(buf_str(why)));
    if (fails_alone(b, p, fault, why)) {
        shrink(b, p, fault, why);
        buf_printf(&text, "shrunk: %.*s\n", STR_ARG(buf_str(why)));
    } else {
        buf_put_c(&text, "it holds on an empty ledger: it needs the programs that ran on the same "
                         "ledger before it\n");
    }
    program_print(p, &text);
    out->text[text.len] = 0;
    out->failed = true;
    out->ops = p->count;
}

/* Programs first_seed, first_seed + 1, ...; a new ledger after each `share`. Stops at the first
 * that fails. */
static void run_programs(struct bench *b, uint64_t first_seed, int64_t count, int64_t share,
                         enum model_fault fault, struct outcome *out) {
    char mem[WHY_MAX];
    struct buf why;
    buf_init_fixed(&why, mem, sizeof(mem));
    *out = (struct outcome){0};
    for (int64_t i = 0; i < count && !out->failed; i++) {
        struct program p;
        program_make(first_seed + (uint64_t)i, &p);
        bool verify = i % b->verify_every == b->verify_every - 1;
        bool holds =
            (i % share != 0 || bench_empty(b, &why)) && program_holds(b, &p, fault, verify, &why);
        if (!holds) report(b, &p, fault, &why, out);
    }
    bench_close(b);
}

static int64_t scaled(int64_t n) {
    const char *scale = getenv("CAIRN_TEST_SCALE");
    int64_t percent = 100;
    if (scale && !str_to_int(str_c(scale), &percent)) percent = 100;
    return n * percent / 100 > 0 ? n * percent / 100 : 1;
}

/* CAIRN_MODEL_SEED starts elsewhere: any number of new programs, or the one that failed. */
static uint64_t first_seed(void) {
    const char *text = getenv("CAIRN_MODEL_SEED");
    int64_t seed = 1;
    if (text && !str_to_int(str_c(text), &seed)) seed = 1;
    return (uint64_t)seed;
}

enum {
    PROGRAMS_SQLITE = 4100,
    PROGRAMS_POSTGRES = 1000,
    PROGRAMS_OVERLAP = 300,
    SHARE_SQLITE = 24,
    SHARE_POSTGRES = 40,
    ENOUGH = 100
};

static struct bench bench_for(str url) {
    bool postgres = str_starts(url, STR("postgres"));
    return (struct bench){.url = url,
                          .node_count = postgres ? 2 : 1,
                          .verify_every = postgres ? 10 : 4,
                          .now_us = 1771228800000000};
}

/* A generator that never leaves the easy paths would prove nothing. */
static void check_variety(const struct bench *b) {
    const struct {
        const char *name;
        int64_t n;
    } met[] = {{"accepted", b->accepted},
               {"duplicates", b->duplicates},
               {"rejected", b->rejected},
               {"refused", b->refused},
               {"alerts", b->alerts},
               {"groups", b->groups},
               {"batches_refused", b->batches_refused},
               {"reopened", b->reopened},
               {"rebuilt", b->rebuilt},
               {"checkpoints", b->checkpoints},
               {"archived", b->archived}};
    for (size_t i = 0; i < COUNT_OF(met); i++)
        CHECK(met[i].n > 0, "no program met: %s", met[i].name);
}

static void check_programs(struct bench *b, int64_t count) {
    struct outcome outcome;
    log_setup(2, false, LOG_ERROR); /* recorded invalid transitions are what we ask for */
    run_programs(b, first_seed(), count, b->node_count > 1 ? SHARE_POSTGRES : SHARE_SQLITE,
                 FAULT_NONE, &outcome);
    log_setup(2, false, LOG_INFO);
    printf("model: %lld programs, %lld groups: %lld accepted, %lld duplicates, %lld rejected, %lld "
           "refused, %lld alerts, %lld groups during a commit\n",
           (long long)count, (long long)b->groups, (long long)b->accepted, (long long)b->duplicates,
           (long long)b->rejected, (long long)b->refused, (long long)b->alerts,
           (long long)b->overlapping);
    CHECK(!outcome.failed, "%s", outcome.text);
    if (count >= ENOUGH) check_variety(b);
}

TEST_DB(model_and_ledger_agree_on_random_programs) {
    struct bench b = bench_for(url);
    check_programs(&b, scaled(b.node_count > 1 ? PROGRAMS_POSTGRES : PROGRAMS_SQLITE));
}

/* The same with commits that overlap. The two nodes take turns when nothing is under way: in one
 * thread, one would wait for the other for ever. */
TEST(model_and_overlapping_commits_agree_on_random_programs) {
    str url = test_postgres();
    struct bench b = bench_for(url);
    int64_t count = scaled(PROGRAMS_OVERLAP);
    b.overlap = true;
    check_programs(&b, count);
    CHECK(count < ENOUGH || b.overlapping > count / 2, "only %lld groups were made during a commit",
          (long long)b.overlapping);
}

/* The comparison is worth something only if a wrong model fails it, with a small program to show
 * for it. */
TEST(model_that_is_wrong_is_found_out) {
    log_setup(2, false, LOG_ERROR);
    for (int fault = FAULT_NONE + 1; fault < FAULT_COUNT; fault++) {
        struct bench b = bench_for(test_db_url("sqlite"));
        struct outcome outcome;
        run_programs(&b, 1, 2000, SHARE_SQLITE, (enum model_fault)fault, &outcome);
        CHECK(outcome.failed, "2000 programs agree with a model in which %s",
              model_fault_name((enum model_fault)fault));
        CHECK(outcome.ops <= 8, "%s: shrunk to %zu operations only\n%s",
              model_fault_name((enum model_fault)fault), outcome.ops, outcome.text);
    }
    log_setup(2, false, LOG_INFO);
}
