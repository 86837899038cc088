/* tests/crash/kill9.c: producers append through the real program, `cairn ledger append`, which is
 * killed with SIGKILL at random moments.
 *
 * Each cycle sends what was never acknowledged, in its order, then new events with retries of
 * acknowledged ones among them, until the kill. Only what came through the pipe as a whole line
 * counts as acknowledged. At the end everything is sent once more without a kill, and then every
 * acknowledged event is in the ledger once, with the eventId, runSeq and persistedAt of its first
 * acknowledgement, and nothing else is; sequences have no gaps; `cairn ledger verify --state` finds
 * nothing wrong.
 *
 * On SQLite one producer, on PostgreSQL two at once in one tenant. CYCLES=n (10) lives end by a
 * kill on SQLite, a quarter of that on PostgreSQL. KILL9_SEED=n repeats a sequence of moments, as
 * far as a machine can. CAIRN names the program. */
#include "base/limits.h"
#include "crash/producer.h"
#include "ledger/ledger.h"

/* ---- what must be true at the end ---- */

static bool cairn_verifies(void) {
    const char *const words[] = {test.cairn,  "ledger",   "verify",  "--state",
                                 test.option, test.where, "--quiet", NULL};
    pid_t pid = 0;
    int wait_status = 0;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    bool started = null >= 0 && spawn(words, null, null, &pid);
    if (null >= 0) close(null);
    if (!started || waitpid(pid, &wait_status, 0) != pid) return bad("could not run verify");
    bool clean = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
    return clean || bad("verify ended with status %#x", (unsigned)wait_status);
}

static int by_id(const void *a, const void *b) {
    return memcmp(&((const struct sent *)a)->id, &((const struct sent *)b)->id, sizeof(uuid));
}

static bool check_record(const struct event_record *rec, int64_t seq, bool *seen) {
    struct sent key = {.id = rec->event.event_id};
    char text[TIME_TEXT_MAX];
    str persisted_at = str_n(text, time_format_us(rec->persisted_us, text));
    if (rec->seq != seq)
        return bad("sequence_number %lld follows %lld", (long long)rec->seq, (long long)seq - 1);
    const struct sent *s = bsearch(&key, test.events, test.count, sizeof(*s), by_id);
    if (!s || !s->acknowledged) return bad("event %lld was never acknowledged", (long long)seq);
    if (seen[s - test.events]) return bad("event %lld is there twice", (long long)seq);
    seen[s - test.events] = true;
    if (s->run_seq != rec->run_seq || !str_eq(persisted_at, str_c(s->persisted_at))) {
        return bad("event %lld is not as it was acknowledged", (long long)seq);
    }
    return true;
}

/* Reads the whole tenant. Sorts test.events, so it comes last. */
static bool check_events(str url) {
    struct ledger *l = NULL;
    struct error err = {0};
    struct arena arena;
    struct event_page page = {0};
    bool *seen = must(calloc(test.count + 1, sizeof(bool)));
    int64_t seq = 0;
    qsort(test.events, test.count, sizeof(test.events[0]), by_id);
    arena_init(&arena, (size_t)256 * 1024, (size_t)256 * 1024 * 1024);
    bool ok = ledger_open_reader(url, &l, &err) == ST_OK || bad("open: %s", err.msg);
    do {
        arena_reset(&arena);
        ok = ok && (ledger_read_tenant(l, STR("tenant"), seq, PAGE_EVENTS_MAX, &arena, &page,
                                       &err) == ST_OK ||
                    bad("read: %s", err.msg));
        for (size_t i = 0; ok && i < page.count; i++)
            ok = check_record(&page.records[i], ++seq, seen);
    } while (ok && page.count > 0);
    for (size_t i = 0; ok && i < test.count; i++) {
        if (test.events[i].acknowledged && !seen[i]) ok = bad("an acknowledged event is lost");
    }
    ledger_close(l);
    arena_release(&arena);
    free(seen);
    return ok;
}

/* An acknowledgement that the ledger never gave must be noticed, or the check above is worth
 * nothing. */
static bool check_notices_a_lost_event(str url) {
    struct sent *forged = &test.events[test.count++];
    *forged = (struct sent){.id = uuid_v4(), .acknowledged = true};
    uuid id = forged->id;
    bool noticed = !check_events(url) && strstr(test.why, "lost");
    for (size_t i = 0; i < test.count; i++) { /* check_events() has sorted it somewhere else */
        if (!uuid_eq(test.events[i].id, id)) continue;
        test.events[i] = test.events[--test.count];
        break;
    }
    return noticed || bad("a lost event would not be noticed");
}

/* ---- a series ---- */

static void series_init(const char *option, const char *where, int producers, uint64_t seed) {
    test.option = option;
    test.where = where;
    test.producer_count = producers;
    test.count = 0;
    test.rng = seed;
    arena_init(&test.lines, (size_t)64 * 1024, (size_t)EVENTS_MAX * LINE_MAX_BYTES);
    test.kills = test.retries = test.landed_unseen = 0;
    for (int i = 0; i < producers; i++) {
        struct producer *p = &test.producers[i];
        size_t *unanswered =
            p->unanswered ? p->unanswered : must(calloc(EVENTS_MAX, sizeof(size_t)));
        *p = (struct producer){.number = i, .unanswered = unanswered, .in = -1, .out = -1};
    }
}

/* Some die while they start, some between two commits, most in the middle of the work. */
static struct moment random_moment(int64_t first_answer_us) {
    if (random_chance(&test.rng, 40))
        return (struct moment){random_below(&test.rng, (uint32_t)(2 * first_answer_us) + 1), -1};
    return (struct moment){20 * first_answer_us + 1000000, random_below(&test.rng, 400)};
}

static bool run_cycles(int64_t cycles) {
    const struct moment never[PRODUCERS_MAX] = {{-1, -1}, {-1, -1}};
    const struct moment after_first[PRODUCERS_MAX] = {{-1, 1}, {-1, 1}};
    int64_t start_ns = clock_mono_ns();
    bool ok = cycle(after_first, 50);
    int64_t first_answer_us = (clock_mono_ns() - start_ns) / 1000;
    for (int64_t i = 1; ok && test.kills < cycles && i < cycles * LIVES_PER_KILL; i++) {
        struct moment when[PRODUCERS_MAX];
        for (int k = 0; k < PRODUCERS_MAX; k++)
            when[k] = random_moment(first_answer_us);
        ok = cycle(when, 50 + random_below(&test.rng, 600));
        if (ok && i % 50 == 0) ok = cairn_verifies();
    }
    for (int i = 0; ok && i < 3; i++)
        ok = cycle(never, i == 0 ? 20 : 0); /* what is left fits in the queue of one or two */
    return ok;
}

static bool everything_answered(void) {
    for (int i = 0; i < test.producer_count; i++) {
        if (test.producers[i].unanswered_count > 0)
            return bad("%zu events were not answered in the end",
                       test.producers[i].unanswered_count);
    }
    return true;
}

static bool run_series(const char *name, str url, int64_t cycles) {
    int64_t start_ns = clock_mono_ns();
    bool ok = run_cycles(cycles) && everything_answered() && cairn_verifies() &&
              check_notices_a_lost_event(url) && check_events(url);
    printf("kill9 %s: %lld kills, %zu events, %lld retries of acknowledged ones, %lld had landed "
           "unseen, %.1f s\n",
           name, (long long)test.kills, test.count, (long long)test.retries,
           (long long)test.landed_unseen, (double)(clock_mono_ns() - start_ns) / 1e9);
    if (ok && test.kills < cycles)
        ok = bad("only %lld kills came before the program had ended", (long long)test.kills);
    if (!ok) fprintf(stderr, "kill9 %s: %s\n", name, test.why);
    return ok;
}

static int64_t number_from(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    int64_t n = 0;
    return text && str_to_int(str_c(text), &n) && n > 0 ? n : otherwise;
}

static bool run_sqlite(int64_t cycles, uint64_t seed) {
    char dir[512];
    char url[600];
    char command[600];
    const char *parent = getenv("TMPDIR");
    snprintf(dir, sizeof(dir), "%s/cairn-kill9.XXXXXX", parent && parent[0] ? parent : "/tmp");
    if (!mkdtemp(dir)) return bad("mkdtemp: %s", strerror(errno));
    snprintf(url, sizeof(url), "%s/ledger.db", dir);
    series_init("--data", dir, 1, seed);
    bool ok = run_series("sqlite", str_c(url), cycles);
    arena_release(&test.lines);
    if (!ok) {
        fprintf(stderr, "kill9: the ledger is kept in %s\n", dir);
        return false;
    }
    for (int i = 0; i < 4; i++) {
        snprintf(command, sizeof(command), "%s%s", url,
                 (const char *[]){"", "-wal", "-shm", ".lock"}[i]);
        unlink(command);
    }
    rmdir(dir);
    return true;
}

/* The server's URL with another database in it. */
static void url_with(const char *server, const char *database, char *out, size_t size) {
    const char *authority = strstr(server, "://");
    authority = authority ? authority + 3 : server;
    size_t head = (size_t)(authority - server) + strcspn(authority, "/?");
    const char *options = strchr(authority, '?');
    snprintf(out, size, "%.*s/%s%s", (int)head, server, database, options ? options : "");
}

static bool on_server(const char *server, const char *fmt, const char *database) {
    char sql[256];
    struct db *db = NULL;
    struct error err = {0};
    snprintf(sql, sizeof(sql), "%s %s%s", fmt, database, fmt[0] == 'D' ? " WITH (FORCE)" : "");
    status st = db_open(str_c(server), DB_WRITE, &db, &err);
    if (st == ST_OK) st = db_exec(db, sql, &err);
    db_close(db);
    return st == ST_OK || bad("%s: %s", sql, err.msg);
}

static bool run_postgres(const char *server, int64_t cycles, uint64_t seed) {
    char name[64];
    char url[1024];
    snprintf(name, sizeof(name), "cairn_kill9_%d", (int)getpid());
    url_with(server, name, url, sizeof(url));
    if (!on_server(server, "CREATE DATABASE", name)) return false;
    series_init("--db", url, 2, seed);
    bool ok = run_series("postgres", str_c(url), cycles);
    arena_release(&test.lines);
    return on_server(server, "DROP DATABASE", name) && ok;
}

int main(void) {
    int64_t cycles = number_from("CYCLES", 10);
    uint64_t seed = (uint64_t)number_from("KILL9_SEED", clock_wall_us());
    const char *server = getenv("CAIRN_TEST_POSTGRES");
    int failed = 0;
    int skipped = 0;
    test.cairn = getenv("CAIRN");
    if (!test.cairn || access(test.cairn, X_OK) != 0) {
        fprintf(stderr, "kill9: CAIRN must name the program\n");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    test.events = must(calloc(EVENTS_MAX + 1, sizeof(struct sent)));
    printf("kill9: seed %llu\n", (unsigned long long)seed);
    failed += !run_sqlite(cycles, seed);
    if (server && server[0])
        failed += !run_postgres(server, cycles / 4 > 5 ? cycles / 4 : 5, seed);
    else {
        printf("skip postgres: CAIRN_TEST_POSTGRES names no server\n");
        skipped++;
    }
    for (int i = 0; i < PRODUCERS_MAX; i++)
        free(test.producers[i].unanswered);
    free(test.events);
    printf("kill9: %d passed, %d failed, %d skipped\n", 2 - failed - skipped, failed, skipped);
    return failed > 0 ? 1 : 0;
}
