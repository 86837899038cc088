/* Raw ceilings: what the machine does without us. The rows have the columns of ledger_event, and no
 * index. */
#include "bench.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/time.h"

/* clang-format off */
static const char bare_table[] =
    "CREATE TABLE IF NOT EXISTS bare(pos {int}, run_no {int}, run_seq {int}, type_no {int}, context_no {int}, engine_attempt {int},"
    " logical_attempt {int}, emitted_ns {int}, emitted_digits {int}, persisted_us {int}, cause_seq {int}, step_index {int}, event_id {blob},"
    " key {blob}, subject {text}, actor {text}, payload {text}, hash {blob})";
static const struct db_col bare_cols[] = {
    {"pos", DB_INT}, {"run_no", DB_INT}, {"run_seq", DB_INT}, {"type_no", DB_INT},
    {"context_no", DB_INT}, {"engine_attempt", DB_INT}, {"logical_attempt", DB_INT},
    {"emitted_ns", DB_INT}, {"emitted_digits", DB_INT}, {"persisted_us", DB_INT},
    {"cause_seq", DB_INT}, {"step_index", DB_INT}, {"event_id", DB_BLOB}, {"key", DB_BLOB}, {"subject", DB_TEXT},
    {"actor", DB_TEXT}, {"payload", DB_TEXT}, {"hash", DB_BLOB}};
/* clang-format on */
static const struct db_bulk_spec bare_spec = {"bare", DB_INSERT, bare_cols, COUNT_OF(bare_cols), 0};

enum { RAW_POOL = 4096 }; /* events made before the clock starts, used again and again */
struct raw_pool {
    struct event events[RAW_POOL];
    char ids[RAW_POOL][UUID_TEXT_LEN];
};

static struct raw_pool *pool_make(void) {
    struct raw_pool *p = mem_alloc(sizeof(*p));
    struct workload w;
    if (!p) die("out of memory", NULL);
    workload_open(&w, ACTIVE_RUNS, 7);
    for (size_t i = 0; i < RAW_POOL; i++)
        workload_next(&w, &p->events[i], p->ids[i]);
    workload_close(&w);
    return p;
}

static void put_row(struct db_bulk *b, const struct event *e, int64_t pos, int64_t now_us) {
    /* clang-format off */
    const int64_t ints[] = {((int64_t)1 << 40) + pos, pos / 10, pos % 10, e->type, 1, 1, 1,
                            e->emitted_ns, 3, now_us, pos - 1, pos % 4};
    /* clang-format on */
    for (size_t i = 0; i < COUNT_OF(ints); i++)
        db_bulk_int(b, ints[i]);
    db_bulk_blob(b, str_n(e->event_id.b, 16));
    db_bulk_blob(b, str_n(e->key, SHA256_LEN));
    db_bulk_text(b, e->subject);
    db_bulk_null(b);
    db_bulk_text(b, e->payload);
    db_bulk_blob(b, str_n(e->key, SHA256_LEN));
}

/* The bare rate through the same driver: one transaction for each group. */
static double raw_groups(str url, double seconds, size_t group) {
    static int64_t pos; /* goes on over the slices */
    struct error err = {0};
    struct db *db = NULL;
    struct db_bulk *bulk = NULL;
    struct raw_pool *pool = pool_make();
    check(db_open(url, DB_WRITE, &db, &err), "open", &err);
    check(db_exec(db, bare_table, &err), "create", &err);
    check(db_bulk_open(db, &bare_spec, &bulk, &err), "prepare", &err);
    int64_t rows = 0;
    double start = now_seconds();
    while (now_seconds() - start < seconds) {
        int64_t now_us = clock_wall_us();
        check(db_begin(db, true, &err), "begin", &err);
        for (size_t i = 0; i < group; i++, pos++)
            put_row(bulk, &pool->events[(size_t)pos % RAW_POOL], pos, now_us);
        check(db_bulk_flush(bulk, &err), "insert", &err);
        check(db_commit(db, &err), "commit", &err);
        rows += (int64_t)group;
    }
    double rate = (double)rows / (now_seconds() - start);
    db_close(db);
    mem_free(pool);
    return rate;
}

static str bare_url(const struct bench_options *o) {
    static char path[512];
    if (o->db.ptr) return o->db;
    snprintf(path, sizeof(path), "%s/bare.db", o->dir);
    return str_c(path);
}

double raw_group(const struct bench_options *o, double seconds, size_t group) {
    return raw_groups(bare_url(o), seconds, group);
}

double raw_single(const struct bench_options *o, double seconds) {
    return raw_groups(bare_url(o), seconds, 1);
}

double raw_fdatasync(const struct bench_options *o, double seconds) {
    char path[512];
    static const char block[4096] = {1};
    snprintf(path, sizeof(path), "%s/sync.bin", o->dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0) die("open", NULL);
    int64_t n = 0;
    double start = now_seconds();
    while (now_seconds() - start < seconds) {
        if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block) || fdatasync(fd) != 0)
            die("fdatasync", NULL);
        n++;
    }
    double rate = (double)n / (now_seconds() - start);
    close(fd);
    return rate;
}
