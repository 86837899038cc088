/* cli/doctor.c: cairn doctor: is everything there that the ledger stands on? Changes nothing. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <openssl/crypto.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "adapters/conductor/conductor.h"
#include "adapters/temporal/temporal.h"
#include "base/os.h"
#include "cli/cli.h"
#include "db/db.h"
#include "ledger/schema.h"
#include "net/libcurl.h"
#include "server/provider_env.h"

enum { SQLITE_WAL_FIXED = 3051003 }; /* the WAL-reset bug is fixed from 3.51.3 on */
#define FREE_BYTES_WARN ((uint64_t)1024 * 1024 * 1024) /* a busy ledger fills this in minutes */
#define FREE_BYTES_FAIL                                                                            \
    ((uint64_t)64 * 1024 * 1024)             /* the write-ahead log alone may need as much */
#define OPEN_FILES_WARN 4096                 /* each client and each running step needs some */
#define CLOCK_EARLIEST_US 1767225600000000LL /* 2026-01-01: before this program was made */
#define CLOCK_AHEAD_US (5LL * 1000 * 1000)   /* what clocks of two nodes may differ by */

enum verdict { CHECK_OK, CHECK_WARN, CHECK_FAIL };

struct doctor {
    struct cli *cli;
    struct list list;
    int failed;
    status worst; /* of the first failed check */
};

static void report(struct doctor *d, const char *check, enum verdict verdict, status why,
                   str detail) {
    static const char *const names[] = {"ok", "warn", "fail"};
    static const enum tone tones[] = {TONE_GOOD, TONE_WARN, TONE_BAD};
    if (verdict == CHECK_FAIL && d->failed++ == 0) d->worst = why;
    if (list_is_table(&d->list)) {
        list_row(&d->list, (struct cell[]){{str_c(names[verdict]), tones[verdict]},
                                           {str_c(check), TONE_PLAIN},
                                           {detail, TONE_PLAIN}});
        return;
    }
    struct buf *out = list_json(&d->list);
    json_object_begin(out);
    json_put_text(out, "check", str_c(check));
    json_put_text(out, "result", str_c(names[verdict]));
    put_shown(out, "detail", detail);
    json_object_end(out);
    list_json_end(&d->list);
}

static void report_error(struct doctor *d, const char *check, const struct error *err) {
    report(d, check, CHECK_FAIL, err->code, cli_text(d->cli, "%s", err->msg));
}

/* ---- libraries and clock ---- */

static void check_libraries(struct doctor *d) {
    bool fixed = sqlite3_libversion_number() >= SQLITE_WAL_FIXED;
    report(d, "sqlite", CHECK_OK, ST_OK,
           cli_text(d->cli, "%s%s", sqlite3_libversion(),
                    fixed ? ""
                          : ", older than 3.51.3: safe, as cairn keeps to one connection that "
                            "writes and checkpoints; open the file "
                            "with no other writer"));
    int pq = 0;
    struct error err = {0};
    if (db_libpq_version(&pq, &err) == ST_OK)
        report(d, "libpq", CHECK_OK, ST_OK, cli_text(d->cli, "%d.%d", pq / 10000, pq % 10000));
    else
        report(d, "libpq", CHECK_WARN, ST_OK, cli_text(d->cli, "%s", err.msg));
    if (libcurl_load(&err) == ST_OK)
        report(d, "libcurl", CHECK_OK, ST_OK,
               cli_text(d->cli, "%s", curl->curl_version_info(CURLVERSION_NOW)->version));
    else
        report(d, "libcurl", CHECK_WARN, ST_OK, cli_text(d->cli, "%s", err.msg));
    report(d, "openssl", CHECK_OK, ST_OK, cli_text(d->cli, "%s", OpenSSL_version(OPENSSL_VERSION)));
}

static void check_clock(struct doctor *d) {
    char mem[TIME_TEXT_MAX];
    int64_t now = clock_wall_us();
    str text = time_text(mem, now, 0);
    if (now < CLOCK_EARLIEST_US)
        report(d, "clock", CHECK_FAIL, ST_INVALID,
               cli_text(d->cli, "%.*s is in the past: set the clock", STR_ARG(text)));
    else
        report(d, "clock", CHECK_OK, ST_OK, cli_text(d->cli, "%.*s", STR_ARG(text)));
}

/* What a server has room for: with too few descriptors it refuses clients. */
static void check_open_files(struct doctor *d) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        report(d, "open files", CHECK_WARN, ST_OK,
               cli_text(d->cli, "unknown: %s", strerror(errno)));
    } else if (limit.rlim_cur == RLIM_INFINITY) {
        report(d, "open files", CHECK_OK, ST_OK, STR("unlimited"));
    } else if (limit.rlim_cur < OPEN_FILES_WARN) {
        report(d, "open files", CHECK_WARN, ST_OK,
               cli_text(d->cli,
                        "at most %llu, few for a server: raise it with ulimit -n, or "
                        "LimitNOFILE= of the service",
                        (unsigned long long)limit.rlim_cur));
    } else {
        report(d, "open files", CHECK_OK, ST_OK,
               cli_text(d->cli, "at most %llu", (unsigned long long)limit.rlim_cur));
    }
}

/* ---- the folder ---- */

/* SQLite's locks and its shared memory need a file system of this machine. */
static void check_file_system(struct doctor *d, str folder) {
    static const struct {
        uint32_t magic;
        const char *name;
    } remote[] = {{NFS_SUPER_MAGIC, "NFS"},  {SMB_SUPER_MAGIC, "SMB"},   {CIFS_SUPER_MAGIC, "CIFS"},
                  {SMB2_SUPER_MAGIC, "SMB"}, {V9FS_MAGIC, "9P"},         {AFS_SUPER_MAGIC, "AFS"},
                  {AFS_FS_MAGIC, "AFS"},     {CEPH_SUPER_MAGIC, "Ceph"}, {CODA_SUPER_MAGIC, "Coda"},
                  {NCP_SUPER_MAGIC, "NCP"}};
    struct statfs fs;
    if (statfs(folder.ptr, &fs) != 0) {
        report(d, "file system", CHECK_WARN, ST_OK,
               cli_text(d->cli, "unknown: %s", strerror(errno)));
        return;
    }
    uint32_t magic = (uint32_t)fs.f_type; /* some are negative where the type is signed */
    for (size_t i = 0; i < COUNT_OF(remote); i++) {
        if (remote[i].magic != magic) continue;
        report(d, "file system", CHECK_WARN, ST_OK,
               cli_text(d->cli,
                        "%s: SQLite's locks do not hold over a network; use a disk of this "
                        "machine, or PostgreSQL",
                        remote[i].name));
        return;
    }
    if (magic == FUSE_SUPER_MAGIC)
        report(d, "file system", CHECK_WARN, ST_OK,
               STR("FUSE: if it leads over a network, SQLite's locks do not hold"));
    else
        report(d, "file system", CHECK_OK, ST_OK, STR("not a network's"));
}

/* Who can write in the folder can replace the ledger. */
static void check_access(struct doctor *d, str folder) {
    struct stat st;
    if (stat(folder.ptr, &st) != 0) {
        report(d, "permissions", CHECK_WARN, ST_OK,
               cli_text(d->cli, "unknown: %s", strerror(errno)));
        return;
    }
    unsigned mode = st.st_mode & 07777;
    bool open = (mode & (S_IWGRP | S_IWOTH)) != 0;
    report(
        d, "permissions", open ? CHECK_WARN : CHECK_OK, ST_OK,
        cli_text(d->cli, "%04o%s", mode,
                 open ? ": others can replace the ledger; take it from them with chmod go-w" : ""));
}

static status try_write(struct doctor *d, str folder, int64_t *sync_us, struct error *err) {
    str path = cli_text(d->cli, "%.*s/.doctor.%lld", STR_ARG(folder), (long long)getpid());
    int fd = open(path.ptr, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    char bytes[4096] = {0};
    bool good = fd >= 0 && write(fd, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes);
    int64_t start = clock_mono_ns();
    good = good && fsync(fd) == 0;
    int code = errno;
    *sync_us = (clock_mono_ns() - start) / 1000;
    if (fd >= 0) {
        close(fd);
        unlink(path.ptr);
    }
    if (good) return ST_OK;
    char text[128];
    return error_set(err, ST_RETRY, "could not write in \"%.*s\": %s", STR_ARG(folder),
                     strerror_r(code, text, sizeof(text)));
}

static void check_space(struct doctor *d, str folder) {
    struct statvfs fs;
    if (statvfs(folder.ptr, &fs) != 0) {
        report(d, "free space", CHECK_WARN, ST_OK,
               cli_text(d->cli, "unknown: %s", strerror(errno)));
        return;
    }
    uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    enum verdict verdict = bytes < FREE_BYTES_FAIL   ? CHECK_FAIL
                           : bytes < FREE_BYTES_WARN ? CHECK_WARN
                                                     : CHECK_OK;
    report(d, "free space", verdict, ST_RETRY,
           cli_text(d->cli, "%llu MiB", (unsigned long long)(bytes >> 20)));
}

/* true: there is a folder to look into. */
static bool check_folder(struct doctor *d, str folder) {
    struct error err;
    int64_t sync_us = 0;
    if (!path_exists(folder)) {
        report(d, "data folder", CHECK_WARN, ST_OK,
               cli_text(d->cli, "\"%.*s\" does not exist: the first append makes it",
                        STR_ARG(folder)));
        return false;
    }
    if (try_write(d, folder, &sync_us, &err) != ST_OK) {
        report_error(d, "data folder", &err);
        return true;
    }
    report(d, "data folder", CHECK_OK, ST_OK,
           cli_text(d->cli, "\"%.*s\" can be written", STR_ARG(folder)));
    report(d, "fsync", CHECK_OK, ST_OK, cli_text(d->cli, "works, in %lld us", (long long)sync_us));
    check_space(d, folder);
    check_file_system(d, folder);
    check_access(d, folder);
    return true;
}

/* ---- the database ---- */

/* The one value of a query; in the arena. */
static status ask(struct doctor *d, struct db *db, const char *sql, str *out, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(db, sql, &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK) *out = arena_str(&d->cli->arena, row ? db_text(q, 0) : STR_NONE);
    if (q) db_reset(q);
    return st;
}

struct setting {
    const char *check, *sql, *want;
};

static void check_settings(struct doctor *d, struct db *db, const struct setting *settings,
                           size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct error err;
        str value = STR_NONE;
        if (ask(d, db, settings[i].sql, &value, &err) != ST_OK) {
            report_error(d, settings[i].check, &err);
            continue;
        }
        bool good = !settings[i].want || str_eq(value, str_c(settings[i].want));
        if (good)
            report(d, settings[i].check, CHECK_OK, ST_OK, value);
        else
            report(d, settings[i].check, CHECK_FAIL, ST_INVALID,
                   cli_text(d->cli, "%.*s, must be %s", STR_ARG(value), settings[i].want));
    }
}

/* The newest persistedAt must not be ahead of this machine's clock. */
static void check_newest(struct doctor *d, struct db *db) {
    struct error err;
    str text = STR_NONE;
    int64_t newest = 0;
    char mem[TIME_TEXT_MAX];
    if (ask(d, db, "SELECT CAST(COALESCE(MAX(persisted_us), 0) AS TEXT) FROM ledger_tenant", &text,
            &err) != ST_OK) {
        report_error(d, "newest event", &err);
        return;
    }
    if (!str_to_int(text, &newest) || newest == 0) {
        report(d, "newest event", CHECK_OK, ST_OK, STR("none yet"));
        return;
    }
    bool ahead = newest > clock_wall_us() + CLOCK_AHEAD_US;
    str time = time_text(mem, newest, 6);
    report(d, "newest event", ahead ? CHECK_WARN : CHECK_OK, ST_OK,
           cli_text(d->cli, "%.*s%s", STR_ARG(time),
                    ahead ? ", ahead of this machine's clock: new events get this time until the "
                            "clock is there"
                          : ""));
}

/* What the outbox has given up waits for somebody to look at it. */
static void check_effects(struct doctor *d, struct db *db) {
    static const char *const sql[] = {
        "SELECT CAST(COUNT(*) AS TEXT) FROM state_effect WHERE status <> 'COMPLETED' AND status <> "
        "'DEAD_LETTER'",
        "SELECT CAST(COUNT(*) AS TEXT) FROM state_effect WHERE status <> 'COMPLETED' AND status = "
        "'DEAD_LETTER'"};
    struct error err;
    str count[] = {STR_NONE, STR_NONE};
    for (size_t i = 0; i < COUNT_OF(sql); i++) {
        if (ask(d, db, sql[i], &count[i], &err) == ST_OK) continue;
        report_error(d, "effects", &err);
        return;
    }
    bool dead = !str_eq(count[1], STR("0"));
    report(d, "effects", dead ? CHECK_WARN : CHECK_OK, ST_OK,
           cli_text(d->cli, "%.*s waiting, %.*s dead%s", STR_ARG(count[0]), STR_ARG(count[1]),
                    dead ? ": cairn effect list --status DEAD_LETTER" : ""));
}

static void check_schema(struct doctor *d, struct db *db) {
    struct error err;
    status st = schema_check(db, &err);
    if (st == ST_NOT_FOUND) {
        report(d, "ledger", CHECK_WARN, ST_OK, STR("none here yet: the first append makes it"));
    } else if (st != ST_OK) {
        report_error(d, "ledger", &err);
    } else {
        report(d, "ledger", CHECK_OK, ST_OK,
               cli_text(d->cli, "schema version %d", LEDGER_SCHEMA_VERSION));
        check_newest(d, db);
        check_effects(d, db);
    }
}

static void check_sqlite(struct doctor *d, str url) {
    static const struct setting settings[] = {{"journal mode", "PRAGMA journal_mode", "wal"}};
    struct error err;
    struct db *db = NULL;
    str path = str_from(url, 7);
    bool folder = check_folder(
        d, arena_str(&d->cli->arena, str_n(path.ptr, path.len - STR("/ledger.db").len)));
    if (!folder || !path_exists(path)) {
        report(d, "ledger", CHECK_WARN, ST_OK, STR("none here yet: the first append makes it"));
        return;
    }
    if (db_open(url, DB_READ_ONLY, &db, &err) != ST_OK) {
        report_error(d, "ledger", &err);
        return;
    }
    check_settings(d, db, settings, COUNT_OF(settings));
    check_schema(d, db);
    db_close(db);
}

static void check_postgres(struct doctor *d, str url) {
    static const struct setting settings[] = {
        {"server", "SHOW server_version", NULL},
        {"encoding", "SHOW server_encoding", "UTF8"},
        {"synchronous_commit", "SHOW synchronous_commit", "on"},
        {"fsync", "SHOW fsync", "on"},
        {"full_page_writes", "SHOW full_page_writes", "on"}};
    struct error err;
    struct db *db = NULL;
    int64_t start = clock_mono_ns();
    if (db_open(url, DB_READ_ONLY, &db, &err) != ST_OK) {
        report_error(d, "postgresql", &err);
        return;
    }
    str shown = store_shown(d->cli, url);
    report(d, "postgresql", CHECK_OK, ST_OK,
           cli_text(d->cli, "%.*s answers, in %lld ms", STR_ARG(shown),
                    (long long)((clock_mono_ns() - start) / 1000000)));
    check_settings(d, db, settings, COUNT_OF(settings));
    check_schema(d, db);
    db_close(db);
}

/* Clusters that dispatch runs, if the environment names any. */
static void check_providers(struct doctor *d) {
    struct host_options named = {0};
    struct error err = {0};
    str version = STR_NONE;
    if (provider_env(&named, &d->cli->arena, &err) != ST_OK) {
        report_error(d, "providers", &err);
        return;
    }
    if (named.temporal && temporal_probe(named.temporal, &d->cli->arena, &version, &err) == ST_OK)
        report(d, "temporal", CHECK_OK, ST_OK,
               cli_text(d->cli, "%.*s answers, version %.*s", STR_ARG(named.temporal->target),
                        STR_ARG(version)));
    else if (named.temporal)
        report_error(d, "temporal", &err);
    if (named.conductor && conductor_probe(named.conductor, &d->cli->arena, &err) == ST_OK)
        report(d, "conductor", CHECK_OK, ST_OK,
               cli_text(d->cli, "%.*s answers", STR_ARG(named.conductor->url)));
    else if (named.conductor)
        report_error(d, "conductor", &err);
}

status cmd_doctor(struct cli *cli, struct error *err) {
    static const struct column columns[] = {
        {"RESULT", false, 0}, {"CHECK", false, 0}, {"DETAIL", false, 0}};
    struct doctor d = {.cli = cli};
    str url = STR_NONE;
    status st = store_url(cli, &url, err);
    if (st != ST_OK) return st;
    list_open(&d.list, &cli->out, cli->format, columns, COUNT_OF(columns), cli->colour);
    check_libraries(&d);
    check_clock(&d);
    check_open_files(&d);
    check_providers(&d);
    if (db_url_is_postgres(url))
        check_postgres(&d, url);
    else
        check_sqlite(&d, url);
    list_close(&d.list);
    if (d.failed == 0) return ST_OK;
    return error_as(err, d.worst, REASON_DOCTOR_FAILED, "", "%d %s failed", d.failed,
                    d.failed == 1 ? "check" : "checks");
}
