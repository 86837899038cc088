/* db/faulty.c: a database that fails on demand. It wraps any other and is one itself, so whatever
 * is written on db.h can be walked through every error path: fail_at = 0, 1, 2, ... until the work
 * passes.
 *
 * Fallible calls are counted in the order they are made: exec, begin, commit (its sending and
 * its outcome, where it overlaps), prepare (of a new
 * statement), step, send (where it is a call of its own), run, bulk_open, bulk_flush (of at least
 * one row), bulk_push (where the inner database sends ahead) and backup. A call that fails `before`
 * does not reach the inner database; one that fails `after` has been carried out, and its success
 * is what gets lost. In both cases the inner database is then left as a real failure would leave
 * it: a failed begin or commit has no transaction open afterwards. */
#include "db/db_impl.h"

struct faulty_db {
    struct db base;
    struct db *inner; /* owned */
    int64_t calls, fail_at;
    bool after;
};
struct faulty_stmt {
    struct db_stmt base;
    struct db_stmt *inner;
};
struct faulty_bulk {
    struct db_bulk base;
    struct db_bulk *inner;
};

static struct faulty_db *faulty(struct db *db) { return (struct faulty_db *)db; }

/* Counts one call; is it the one to fail? */
static bool is_due(struct faulty_db *db) { return db->calls++ == db->fail_at; }

static status injected(struct error *err) { return error_set(err, ST_RETRY, "injected failure"); }

static status faulty_exec(struct db *base, const char *sql, struct error *err) {
    struct faulty_db *db = faulty(base);
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    status st = db_exec(db->inner, sql, err);
    return st == ST_OK && due ? injected(err) : st;
}

static status faulty_begin(struct db *base, bool write, struct error *err) {
    struct faulty_db *db = faulty(base);
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    status st = db_begin(db->inner, write, err);
    if (st != ST_OK || !due) return st;
    db_rollback(db->inner); /* the caller will not: for him nothing has begun */
    return injected(err);
}

static status faulty_commit(struct db *base, struct error *err) {
    struct faulty_db *db = faulty(base);
    bool due = is_due(db);
    if (due && !db->after) {
        db_rollback(db->inner);
        return injected(err);
    }
    status st = db_commit(db->inner, err);
    return st == ST_OK && due ? injected(err) : st;
}

static status faulty_commit_send(struct db *base, struct error *err) {
    struct faulty_db *db = faulty(base);
    bool due = is_due(db);
    if (due) { /* `after` is for the wait: only there can a success get lost */
        db_rollback(db->inner);
        return injected(err);
    }
    return db_commit_send(db->inner, err);
}

static status faulty_commit_wait(struct db *base, struct error *err) {
    struct faulty_db *db = faulty(base);
    bool due = is_due(db);
    status st = db_commit_wait(db->inner, err);
    return st == ST_OK && due ? injected(err) : st;
}

static void faulty_ask_early(struct db *base, bool on) { db_ask_early(faulty(base)->inner, on); }

static void faulty_rollback(struct db *base) { db_rollback(faulty(base)->inner); }

static status faulty_prepare(struct db *base, const char *source, const char *sql, int nparams,
                             struct db_stmt **out, struct error *err) {
    UNUSED(sql); /* the inner database expands and counts for itself, */
    UNUSED(nparams);
    struct faulty_db *db = faulty(base);
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    struct db_stmt *inner = NULL;
    status st = db_prepare(db->inner, source, &inner, err); /* and its cache keeps the statement */
    if (st != ST_OK) return st;
    if (due) return injected(err);
    struct faulty_stmt *made = mem_alloc(sizeof *made);
    if (!made) return error_set(err, ST_RETRY, "could not wrap a statement: out of memory");
    made->inner = inner;
    *out = &made->base;
    return ST_OK;
}

static void hand_over_params(struct faulty_stmt *st) {
    memcpy(st->inner->params, st->base.params, sizeof st->base.params);
}

static status faulty_step(struct db_stmt *base, bool *row, struct error *err) {
    struct faulty_stmt *st = (struct faulty_stmt *)base;
    struct faulty_db *db = faulty(base->db);
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    if (!base->reading) hand_over_params(st);
    status s = db_step(st->inner, row, err);
    if (s != ST_OK) return s;
    if (due) return injected(err);
    base->row = st->inner->row;
    base->ncols = st->inner->ncols;
    return ST_OK;
}

static status faulty_send(struct db_stmt *base, struct error *err) {
    struct faulty_stmt *st = (struct faulty_stmt *)base;
    struct faulty_db *db = faulty(base->db);
    if (!db->inner->ops->send) return ST_OK;
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    hand_over_params(st);
    status s = db_send(st->inner, err);
    return s == ST_OK && due ? injected(err) : s;
}

static status faulty_run(struct db_stmt *base, int64_t *changed, struct error *err) {
    struct faulty_stmt *st = (struct faulty_stmt *)base;
    struct faulty_db *db = faulty(base->db);
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    hand_over_params(st);
    status s = db_run(st->inner, changed, err);
    return s == ST_OK && due ? injected(err) : s;
}

static void faulty_reset(struct db_stmt *base) { db_reset(((struct faulty_stmt *)base)->inner); }

static void faulty_stmt_free(struct db_stmt *base) {
    mem_free(base);
} /* the inner database owns the inner one */

static status faulty_bulk_open(struct db *base, const struct db_bulk_spec *spec,
                               struct db_bulk **out, struct error *err) {
    struct faulty_db *db = faulty(base);
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    struct db_bulk *inner = NULL;
    status st = db_bulk_open(db->inner, spec, &inner, err);
    if (st != ST_OK) return st;
    if (due) return injected(err);
    struct faulty_bulk *made = mem_alloc(sizeof *made);
    if (!made) return error_set(err, ST_RETRY, "could not wrap a bulk: out of memory");
    made->inner = inner;
    *out = &made->base;
    return ST_OK;
}

/* The rows change hands by exchanging the arrays, so neither side needs a copy or loses its memory.
 */
static void swap_cells(struct db_bulk *a, struct db_bulk *b) {
    struct db_cell *cells = a->cells;
    size_t ncells = a->ncells;
    size_t cap = a->cap;
    a->cells = b->cells;
    a->ncells = b->ncells;
    a->cap = b->cap;
    b->cells = cells;
    b->ncells = ncells;
    b->cap = cap;
}

static status faulty_bulk_flush(struct db_bulk *base, struct error *err) {
    struct faulty_bulk *b = (struct faulty_bulk *)base;
    struct faulty_db *db = faulty(base->db);
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    swap_cells(base, b->inner);
    status st = db_bulk_flush(b->inner, err);
    return st == ST_OK && due ? injected(err) : st;
}

static status faulty_bulk_push(struct db_bulk *base, size_t coming, struct error *err) {
    struct faulty_bulk *b = (struct faulty_bulk *)base;
    struct faulty_db *db = faulty(base->db);
    if (!db->inner->ops->bulk_push) return ST_OK;
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    swap_cells(base, b->inner);
    status st = db_bulk_push(b->inner, coming, err);
    swap_cells(base, b->inner); /* with what was not sent */
    return st == ST_OK && due ? injected(err) : st;
}

static void faulty_bulk_free(struct db_bulk *base) { mem_free(base); }

static status faulty_backup(struct db *base, str path, struct error *err) {
    struct faulty_db *db = faulty(base);
    bool due = is_due(db);
    if (due && !db->after) return injected(err);
    status st = db_backup(db->inner, path, err);
    return st == ST_OK && due ? injected(err) : st;
}

static void faulty_close(struct db *base) {
    db_close(faulty(base)->inner);
    mem_free(base);
}

static const struct db_ops faulty_ops = {
    .exec = faulty_exec,
    .begin = faulty_begin,
    .commit = faulty_commit,
    .commit_send = faulty_commit_send,
    .commit_wait = faulty_commit_wait,
    .ask_early = faulty_ask_early,
    .rollback = faulty_rollback,
    .prepare = faulty_prepare,
    .step = faulty_step,
    .send = faulty_send,
    .run = faulty_run,
    .reset = faulty_reset,
    .stmt_free = faulty_stmt_free,
    .bulk_open = faulty_bulk_open,
    .bulk_flush = faulty_bulk_flush,
    .bulk_push = faulty_bulk_push,
    .bulk_free = faulty_bulk_free,
    .backup = faulty_backup,
    .close = faulty_close,
};

status db_faulty_wrap(struct db *inner, struct db **out, struct error *err) {
    ASSERT(!inner->in_transaction);
    struct faulty_db *db = mem_alloc(sizeof *db);
    if (!db) return error_set(err, ST_RETRY, "could not wrap the database: out of memory");
    db_init(&db->base, &faulty_ops, inner->name, inner->postgres, inner->mode);
    db->base.overlaps = inner->overlaps;
    db->inner = inner;
    db->fail_at = -1;
    *out = &db->base;
    return ST_OK;
}

void db_faulty_fail_at(struct db *db, int64_t n, bool after) {
    ASSERT(db->ops == &faulty_ops);
    faulty(db)->calls = 0;
    faulty(db)->fail_at = n;
    faulty(db)->after = after;
}

int64_t db_faulty_calls(const struct db *db) {
    ASSERT(db->ops == &faulty_ops);
    return ((const struct faulty_db *)db)->calls;
}
