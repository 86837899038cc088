/* Opening, closing, reopening. */
#include "ledger/ledger.h"

#include "base/limits.h"
#include "base/os.h"
#include "base/time.h"
#include "ledger/cache.h"
#include "ledger/dict.h"
#include "ledger/handle.h"
#include "ledger/project.h"

/* Memory of one group: rows, look-ups, replayed pages. The items themselves are the callers'. */
#define SCRATCH_BYTES_MAX ((size_t)256 * 1024 * 1024)

status ledger_no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "ledger: out of memory");
}

static bool is_sqlite(str url) { return !db_url_is_postgres(url); }

static status connect_url(void *context, struct db **out, struct error *err) {
    struct ledger *l = context;
    return db_open(str_c(l->url), DB_WRITE, out, err);
}

static status count_rejections(struct ledger *l, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(l->db, "SELECT COUNT(*) FROM ledger_rejection", &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK) l->rejections = db_int(q, 0);
    if (q) db_reset(q);
    return st;
}

status ledger_connect_now(struct ledger *l, struct error *err) {
    db_close(l->db);
    l->db = NULL;
    cache_clear(&l->cache);
    dict_clear(&l->dict);
    l->next_run_no = 1;
    l->last_run_no = 0;
    status st = l->connect(l->connect_context, &l->db, err);
    if (st == ST_OK) st = schema_migrate(l->db, err);
    if (st == ST_OK) st = project_open(l, err);
    if (st == ST_OK) st = count_rejections(l, err);
    ASSERT(l->state == LEDGER_BROKEN);
    if (st == ST_OK) {
        ledger_move(l, LEDGER_IDLE);
    } else {
        db_close(l->db);
        l->db = NULL;
    }
    return st;
}

/* ---- states ---- */

#define TO(state) (1U << (state))
static const unsigned may_follow[LEDGER_STATES] = {
    [LEDGER_BROKEN] = TO(LEDGER_IDLE),
    [LEDGER_IDLE] = TO(LEDGER_MAKING) | TO(LEDGER_BROKEN),
    [LEDGER_MAKING] =
        TO(LEDGER_IDLE) | TO(LEDGER_IN_MEMBER) | TO(LEDGER_STAGED) | TO(LEDGER_BROKEN),
    [LEDGER_IN_MEMBER] = TO(LEDGER_MAKING),
    [LEDGER_STAGED] = TO(LEDGER_IDLE) | TO(LEDGER_COMMITTING) | TO(LEDGER_BROKEN),
    [LEDGER_COMMITTING] = TO(LEDGER_IDLE) | TO(LEDGER_OVERLAPPING) | TO(LEDGER_BROKEN),
    /* A commit that ends well leaves the group that is being made, or is made, alone. */
    [LEDGER_OVERLAPPING] =
        TO(LEDGER_COMMITTING) | TO(LEDGER_OVERLAP_STAGED) | TO(LEDGER_MAKING) | TO(LEDGER_BROKEN),
    [LEDGER_OVERLAP_STAGED] = TO(LEDGER_STAGED) | TO(LEDGER_BROKEN),
};

void ledger_move(struct ledger *l, enum ledger_state to) {
    ASSERT(l->state < LEDGER_STATES);
    ASSERT(may_follow[l->state] & TO(to));
    l->state = to;
}

void ledger_break(struct ledger *l) {
    if (l->state != LEDGER_BROKEN) ledger_move(l, LEDGER_BROKEN);
}

int64_t ledger_now_us(const struct ledger *l) {
    return l->options.now_us ? l->options.now_us(l->options.clock) : clock_wall_us();
}

status ledger_usable(struct ledger *l, struct error *err) {
    ASSERT(!ledger_commits(l));
    status st = l->state == LEDGER_BROKEN ? ledger_connect_now(l, err) : ST_OK;
    return st == ST_OK ? ST_OK : error_wrap(err, "could not reopen the ledger");
}

struct ledger_outbox *ledger_outbox(struct ledger *l) {
    return &l->outbox;
}
const struct ledger_outbox *ledger_outbox_of(const struct ledger *l) { return &l->outbox; }

status ledger_has_read(struct ledger *l, status st) {
    if (st == ST_RETRY && l->writer) ledger_break(l);
    return st;
}

bool ledger_refused(status st, const struct error *err) {
    return err->reason &&
           (st == ST_INVALID || st == ST_NOT_FOUND || st == ST_CONFLICT || st == ST_LIMIT);
}

status ledger_transact(struct ledger *l, ledger_body body, void *context, struct error *err) {
    ASSERT(l->writer);
    if (l->state == LEDGER_IN_MEMBER) return body(l, context, err);
    status st = ledger_usable(l, err);
    if (st != ST_OK) return st;
    *err = (struct error){0};
    arena_reset(&l->scratch);
    ledger_move(l, LEDGER_MAKING);
    st = db_begin(l->db, true, err);
    if (st == ST_OK) st = body(l, context, err);
    bool refused = ledger_refused(st, err);
    if (st == ST_OK) st = db_commit(l->db, err);
    if (st != ST_OK) db_rollback(l->db);
    if (st == ST_OK || refused)
        ledger_move(l, LEDGER_IDLE);
    else
        ledger_break(l);
    return st;
}

static struct ledger *ledger_new(const struct ledger_options *options, struct error *err) {
    ASSERT(event_types_check(event_type_info((enum event_type)0), EVENT_TYPE_COUNT, err) == ST_OK);
    struct ledger *l = mem_alloc(sizeof(*l));
    if (!l) {
        error_set(err, ST_RETRY, "ledger: out of memory");
        return NULL;
    }
    l->lock_fd = -1;
    if (options) l->options = *options;
    cache_init(&l->cache);
    dict_init(&l->dict);
    arena_init(&l->scratch, (size_t)64 * 1024, SCRATCH_BYTES_MAX);
    arena_init(&l->kept, (size_t)64 * 1024, SCRATCH_BYTES_MAX);
    if (sha256_open(&l->sha, err) != ST_OK) {
        ledger_close(l);
        return NULL;
    }
    return l;
}

status ledger_open_with(ledger_connect connect, void *context, const struct ledger_options *options,
                        struct ledger **out, struct error *err) {
    struct ledger *l = ledger_new(options, err);
    if (!l) return ST_RETRY;
    l->writer = true;
    l->connect = connect;
    l->connect_context = context ? context : l;
    status st = ledger_connect_now(l, err);
    if (st != ST_OK) {
        ledger_close(l);
        return st;
    }
    *out = l;
    return ST_OK;
}

/* "sqlite:dir/x.db?vfs=y" -> "dir/x.db", cut where the driver cuts it. */
static str sqlite_path(str url) {
    static const str vfs = STR_LIT("?vfs=");
    if (str_starts(url, STR("sqlite:"))) url = str_from(url, 7);
    for (size_t i = 0; i < url.len; i++) {
        if (str_starts(str_from(url, i), vfs)) return str_n(url.ptr, i);
    }
    return url;
}

static status take_lock(struct ledger *l, str url, struct error *err) {
    char mem[sizeof(l->url) + 8];
    struct buf path;
    buf_init_fixed(&path, mem, sizeof(mem));
    buf_put(&path, sqlite_path(url));
    buf_put_c(&path, ".lock");
    status st = lock_take(buf_str(&path), l->options.lock_wait_ms, &l->lock_fd, err);
    if (st == ST_RETRY) return error_wrap(err, "the ledger is being written by another process");
    return st;
}

/* To open the connection again. */
static status keep_url(struct ledger *l, str url, struct error *err) {
    if (url.len >= sizeof(l->url))
        return error_set(err, ST_LIMIT, "the database address has over %zu bytes",
                         sizeof(l->url) - 1);
    memcpy(l->url, url.ptr, url.len);
    return ST_OK;
}

status ledger_open(str url, const struct ledger_options *options, struct ledger **out,
                   struct error *err) {
    struct ledger *l = ledger_new(options, err);
    if (!l) return ST_RETRY;
    status st = keep_url(l, url, err);
    if (st == ST_OK) {
        l->writer = true;
        l->connect = connect_url;
        l->connect_context = l;
        if (is_sqlite(url)) st = take_lock(l, url, err);
    }
    if (st == ST_OK) st = ledger_connect_now(l, err);
    if (st != ST_OK) {
        ledger_close(l);
        return st;
    }
    *out = l;
    return ST_OK;
}

static status open_for_reading(str url, struct db **out, struct error *err) {
    struct db *db = NULL;
    status st = db_open(url, DB_READ_ONLY, &db, err);
    if (st == ST_OK) st = schema_check(db, err);
    if (st == ST_OK)
        *out = db;
    else
        db_close(db);
    return st;
}

status ledger_open_reader(str url, struct ledger **out, struct error *err) {
    struct ledger *l = ledger_new(NULL, err);
    if (!l) return ST_RETRY;
    status st = keep_url(l, url, err);
    if (st == ST_OK) st = open_for_reading(url, &l->db, err);
    if (st != ST_OK) {
        ledger_close(l);
        return st;
    }
    ledger_move(l, LEDGER_IDLE);
    *out = l;
    return ST_OK;
}

status ledger_reopen_reader(struct ledger *l, struct error *err) {
    struct db *db = NULL;
    ASSERT(!l->writer);
    status st = open_for_reading(str_c(l->url), &db, err);
    if (st != ST_OK) return error_wrap(err, "could not reopen the ledger");
    db_close(l->db);
    l->db = db;
    cache_clear(&l->cache);
    dict_clear(&l->dict);
    return ST_OK;
}

void ledger_close(struct ledger *l) {
    if (!l) return;
    db_close(l->db);
    cache_clear(&l->cache);
    map_release(&l->cache.by_id);
    dict_clear(&l->dict);
    arena_release(&l->dict.arena);
    arena_release(&l->scratch);
    arena_release(&l->kept);
    sha256_close(l->sha);
    if (l->lock_fd >= 0) lock_drop(l->lock_fd);
    mem_free(l);
}

struct db *ledger_db(struct ledger *l) {
    return l->db;
}
