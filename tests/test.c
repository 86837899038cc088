/* tests/test.c: the runner behind tests/test.h.
 *
 * Tests register themselves before main(); a store test becomes two cmocka tests, name[sqlite] and
 * name[postgres]. Whatever a test took (folders, databases) is written down here and given back
 * after it, also when it failed, because cmocka leaves a failing test with longjmp(). So CHECK()
 * works on the main thread only.
 *
 * PostgreSQL: CREATE and DROP DATABASE cost a third of a second with fsync on, so a database is
 * made once, emptied after each test (its schemas dropped, its sessions ended) and dropped when the
 * program ends. */
#include "test.h"

#include <dlfcn.h>
#include <errno.h>
#include <ftw.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/time.h"

enum kind { KIND_PLAIN, KIND_SQLITE, KIND_POSTGRES };
struct test {
    char *name; /* as reported: with [sqlite] or [postgres] */
    enum kind kind;
    test_func func;
    test_db_func db_func;
};
struct database {
    char name[64];
    char *url;
    bool in_use; /* by the test that runs now */
};

static struct test *tests;
static size_t test_count;
static char **dirs; /* of the test that runs now */
static size_t dir_count;
static struct database *databases;
static size_t database_count;
static int skip_count;

/* A test program without memory has nothing left to say. */
static void *must(void *ptr) {
    if (ptr == NULL) {
        perror("tests");
        abort();
    }
    return ptr;
}

static void *grow(void *array, size_t count, size_t size) {
    return must(realloc(array, (count + 1) * size));
}

static char *text(const char *fmt, ...) PRINTF_LIKE(1, 2);
static char *text(const char *fmt, ...) {
    char *out = NULL;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&out, fmt, args);
    va_end(args);
    return must(n < 0 ? NULL : out);
}

/* Threads. ThreadSanitizer runs every test but those named in tests/single-threaded, so these must
 * not start one. A sanitizer has a pthread_create() of its own; without one, ours counts, for the
 * libraries that we use as well, and calls the real one. */

static _Atomic unsigned threads_started;

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
typedef int (*create_func)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*start)(void *), void *arg) {
    create_func create = NULL;
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    atomic_fetch_add(&threads_started, 1);
    return create(thread, attributes, start, arg);
}
#endif

/* Registration. */

static void add(struct test test) {
    tests = grow(tests, test_count, sizeof *tests);
    tests[test_count++] = test;
}

void test_register(const char *name, test_func func) {
    add((struct test){.name = text("%s", name), .kind = KIND_PLAIN, .func = func});
}

void test_register_db(const char *name, test_db_func func) {
    add((struct test){.name = text("%s[sqlite]", name), .kind = KIND_SQLITE, .db_func = func});
    add((struct test){.name = text("%s[postgres]", name), .kind = KIND_POSTGRES, .db_func = func});
}

/* Constructors run in link order; by name the order is the same whatever the linker did. */
static int by_name(const void *a, const void *b) {
    return strcmp(((const struct test *)a)->name, ((const struct test *)b)->name);
}

/* Results. */

_Noreturn void test_fail(const char *file, int line, const char *cond, const char *fmt, ...) {
    fprintf(stderr, "%s:%d: failed: %s", file, line, cond);
    if (fmt[0] != '\0') {
        fputs(": ", stderr);
        va_list args;
        va_start(args, fmt);
/* The format was a literal in CHECK(); the declaration leaves it unchecked because CHECK() adds an
 * argument. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        vfprintf(stderr, fmt, args);
#pragma GCC diagnostic pop
        va_end(args);
    }
    fputc('\n', stderr);
    fflush(stderr);
    _fail(file, line);
    abort(); /* _fail() does not return, but its declaration does not say so */
}

_Noreturn void test_skip(const char *why) {
    fprintf(stderr, "skipped: %s\n", why);
    fflush(stderr);
    skip_count++;
    _skip(__FILE__, __LINE__);
    abort(); /* as above */
}

/* Folders. */

const char *test_dir(void) {
    const char *parent = getenv("TMPDIR");
    char *dir = text("%s/cairn-test.XXXXXX", parent != NULL && parent[0] != '\0' ? parent : "/tmp");
    if (mkdtemp(dir) == NULL) {
        int error = errno;
        free(dir);
        test_fail(__FILE__, __LINE__, "mkdtemp", "%s", strerror(error));
    }
    dirs = grow(dirs, dir_count, sizeof *dirs);
    dirs[dir_count++] = dir;
    return dir;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    UNUSED(st);
    UNUSED(ftw);
    return type == FTW_DP ? rmdir(path) : unlink(path);
}

static void remove_tree(const char *dir) {
    if (nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
        fprintf(stderr, "could not remove \"%s\": %s\n", dir, strerror(errno));
}

/* Databases. */

static const char *postgres_server(void) {
    const char *server = getenv("CAIRN_TEST_POSTGRES");
    return server != NULL && server[0] != '\0' ? server : NULL;
}

static bool postgres_exec(const char *url, const char *sql) {
    PGconn *conn = PQconnectdb(url);
    bool ok = PQstatus(conn) == CONNECTION_OK;
    if (ok) {
        PGresult *result = PQexec(conn, sql);
        ok =
            PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK;
        PQclear(result);
    }
    if (!ok) fprintf(stderr, "postgres: %s", PQerrorMessage(conn));
    PQfinish(conn);
    return ok;
}

/* The server's URL with another database in it: scheme://user@host:port/DATABASE?options */
static char *postgres_url(const char *server, const char *database) {
    const char *authority = strstr(server, "://");
    authority = authority != NULL ? authority + 3 : server;
    size_t head = (size_t)(authority - server) + strcspn(authority, "/?");
    const char *options = strchr(authority, '?');
    return text("%.*s/%s%s", (int)head, server, database, options != NULL ? options : "");
}

static bool postgres_create(const char *server, struct database *out) {
    snprintf(out->name, sizeof out->name, "cairn_test_%d_%zu", (int)getpid(), database_count);
    char *sql = text("CREATE DATABASE %s", out->name);
    bool ok = postgres_exec(server, sql);
    free(sql);
    if (ok) out->url = postgres_url(server, out->name);
    return ok;
}

static void postgres_drop(struct database *database) {
    char *sql = text("DROP DATABASE IF EXISTS %s WITH (FORCE)", database->name);
    postgres_exec(postgres_server(), sql);
    free(sql);
    free(database->url);
}

/* As good as new: no session, no schema, no setting of the last test is left. */
static bool postgres_empty(const struct database *database) {
    char *sql = text("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                     " WHERE datname = current_database() AND pid <> pg_backend_pid();"
                     "ALTER DATABASE %s RESET ALL;"
                     "SET client_min_messages = error;"
                     "DO $$ DECLARE name text; BEGIN"
                     " FOR name IN SELECT nspname FROM pg_namespace"
                     " WHERE nspname NOT LIKE 'pg\\_%%' AND nspname <> 'information_schema' LOOP"
                     " EXECUTE format('DROP SCHEMA %%I CASCADE', name); END LOOP; END $$;"
                     "CREATE SCHEMA public",
                     database->name);
    bool ok = postgres_exec(database->url, sql);
    free(sql);
    return ok;
}

static str postgres_take(void) {
    const char *server = postgres_server();
    if (server == NULL) return STR_NONE;
    for (size_t i = 0; i < database_count; i++) {
        if (databases[i].in_use) continue;
        databases[i].in_use = true;
        return str_c(databases[i].url);
    }
    struct database made = {.in_use = true};
    CHECK(postgres_create(server, &made));
    databases = grow(databases, database_count, sizeof *databases);
    databases[database_count++] = made;
    return str_c(made.url);
}

str test_db_url(const char *kind) {
    if (strcmp(kind, "postgres") == 0) return postgres_take();
    CHECK(strcmp(kind, "sqlite") == 0, "no database of kind \"%s\"", kind);
    char *path = text("%s/store.db", test_dir());
    dirs = grow(dirs, dir_count, sizeof *dirs);
    dirs[dir_count++] = path; /* freed with the folders, after them */
    return str_c(path);
}

str test_postgres(void) {
    str url = test_db_url("postgres");
    if (url.ptr == NULL) test_skip("no PostgreSQL server: CAIRN_TEST_POSTGRES is not set");
    return url;
}

/* Which tests. */

static bool matches(const char *name, const char *filter) {
    if (filter[0] == '^') return strncmp(name, filter + 1, strlen(filter + 1)) == 0;
    return strstr(name, filter) != NULL;
}

static bool wanted(const char *name, char **filters, int n) {
    bool any = true;
    bool found = false;
    for (int i = 0; i < n; i++) {
        bool without = filters[i][0] == '!';
        bool hit = matches(name, filters[i] + without);
        if (hit && without) return false;
        if (!without) any = false;
        found = found || hit;
    }
    return any || found;
}

static struct filter_list {
    char **filters;
    int count;
} single_threaded; /* of --single-threaded or --threaded */
static bool leave_out_single_threaded;

static bool is_single_threaded(const char *name) {
    return single_threaded.count > 0 &&
           wanted(name, single_threaded.filters, single_threaded.count);
}

/* One test, under cmocka. */

static const char *told_to_fail; /* NAME of --fail, for testing those who read the results */

static bool is_told_to_fail(const char *name) {
    if (told_to_fail == NULL) return false;
    size_t len = strcspn(name, "["); /* on every database */
    return strlen(told_to_fail) == len && strncmp(name, told_to_fail, len) == 0;
}

_Thread_local unsigned test_checks;

enum { SLOW_MS = 10000 }; /* is said: a test run is as long as its longest tests */
static int64_t begun_ns;

static void run_one(void **state) {
    const struct test *test = *state;
    begun_ns = clock_mono_ns();
    CHECK(!is_told_to_fail(test->name), "as it was told to");
    str url = STR_NONE;
    if (test->kind == KIND_SQLITE) url = test_db_url("sqlite");
    if (test->kind == KIND_POSTGRES) url = test_postgres();
    threads_started = 0;
    test_checks = 0;
    if (test->kind == KIND_PLAIN)
        test->func();
    else
        test->db_func(url);
    unsigned checks = test_checks;
    CHECK(checks > 0, "the test checks nothing");
    CHECK(threads_started == 0 || !is_single_threaded(test->name),
          "it starts a thread, so tests/single-threaded must not name it");
}

static int give_back(void **state) {
    const struct test *test = *state;
    int64_t ms = (clock_mono_ns() - begun_ns) / 1000000;
    if (ms >= SLOW_MS) printf("%s took %d s\n", test->name, (int)(ms / 1000));
    for (size_t i = 0; i < dir_count; i++) {
        struct stat st;
        if (lstat(dirs[i], &st) == 0 && S_ISDIR(st.st_mode)) remove_tree(dirs[i]);
        free(dirs[i]);
    }
    dir_count = 0;
    int failed = 0;
    for (size_t i = 0; i < database_count; i++) {
        if (!databases[i].in_use) continue;
        databases[i].in_use = false;
        if (!postgres_empty(&databases[i])) failed = -1;
    }
    return failed;
}

/* The share K/N of the tests: by a hash of their names, so that long and short ones mix. */
static unsigned share = 0;
static unsigned shares = 1;
static bool take_share(const char *arg) {
    int end = 0;
    bool ok = sscanf(arg, "%u/%u%n", &share, &shares, &end) == 2 && arg[end] == '\0';
    ok = ok && share >= 1 && share <= shares;
    share--;
    return ok;
}

static bool in_share(const char *name) {
    uint32_t hash = 2166136261U;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619U;
    return (hash >> 8) % shares == share;
}

static void release(struct CMUnitTest *picked) {
    for (size_t i = 0; i < database_count; i++)
        postgres_drop(&databases[i]);
    for (size_t i = 0; i < test_count; i++)
        free(tests[i].name);
    for (int i = 0; i < single_threaded.count; i++)
        free(single_threaded.filters[i]);
    free(single_threaded.filters);
    free(databases);
    free(dirs);
    free(tests);
    free(picked);
}

/* A file of filters, one a line; # begins a comment. */
static bool read_filters(const char *path, struct filter_list *out) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    if (file == NULL) return false;
    while (getline(&line, &cap, file) >= 0) {
        line[strcspn(line, " #\n")] = '\0';
        if (line[0] == '\0') continue;
        out->filters = grow(out->filters, (size_t)out->count, sizeof *out->filters);
        out->filters[out->count++] = text("%s", line);
    }
    free(line);
    fclose(file);
    return true;
}

/* Takes --OPTION VALUE from the front of the arguments. false: the value is wrong. */
static bool take_option(const char *option, const char *value) {
    if (strcmp(option, "--share") == 0) return take_share(value);
    if (strcmp(option, "--fail") == 0) {
        told_to_fail = value;
        return true;
    }
    leave_out_single_threaded = strcmp(option, "--threaded") == 0;
    return read_filters(value, &single_threaded);
}

static bool is_option(const char *arg) {
    static const char *const options[] = {"--share", "--fail", "--single-threaded", "--threaded"};
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        if (strcmp(arg, options[i]) == 0) return true;
    }
    return false;
}

static bool picked_out(const char *name, char **filters, int n) {
    if (!wanted(name, filters, n) || !in_share(name)) return false;
    return !leave_out_single_threaded || !is_single_threaded(name);
}

static const char usage[] =
    "usage: cairn-tests [OPTION...] [--list] [FILTER...]\n"
    "FILTER: a part of the name; ^TEXT: its beginning; !TEXT, !^TEXT: none of these\n"
    "  --share K/N             the tests in the K-th of N parts\n"
    "  --single-threaded FILE  a test that FILE names fails if it starts a thread\n"
    "  --threaded FILE         all but the tests that FILE names\n"
    "  --fail NAME             this test fails, for testing those who read the results\n";

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (argc > 2 && is_option(argv[1])) {
        if (!take_option(argv[1], argv[2])) {
            fprintf(stderr, "cairn-tests: %s %s is wrong\n%s", argv[1], argv[2], usage);
            return 2;
        }
        argc -= 2;
        argv += 2;
    }
    if (test_count > 0) qsort(tests, test_count, sizeof *tests, by_name);
    bool lists = argc > 1 && strcmp(argv[1], "--list") == 0;
    if (!lists && argc > 1 && argv[1][0] == '-') {
        fputs(usage, stderr);
        return 2;
    }
    char **filters = argv + 1 + lists;
    int filter_count = argc - 1 - lists;

    struct CMUnitTest *picked = must(calloc(test_count + 1, sizeof *picked));
    size_t n = 0;
    for (size_t i = 0; i < test_count; i++) {
        if (!picked_out(tests[i].name, filters, filter_count)) continue;
        if (lists) puts(tests[i].name);
        picked[n++] = (struct CMUnitTest){tests[i].name, run_one, NULL, give_back, &tests[i]};
    }
    if (lists) {
        release(picked);
        return 0;
    }
    int failed = n > 0 ? _cmocka_run_group_tests("unit", picked, n, NULL, NULL) : 1;
    if (n == 0) fprintf(stderr, "no test matches\n");
    release(picked);
    printf("unit: %d passed, %d failed, %d skipped\n", n > 0 ? (int)n - failed - skip_count : 0,
           failed, skip_count);
    return failed > 0 ? 1 : 0;
}
