/* tests/crash/powercut.c: pulls the plug on the ledger, at any write, and looks at what is left.
 *
 * A workload appends groups of events (and now and then checkpoints the log, reopens, rebuilds,
 * rejects) on the disk of disk.h, which writes down what it is asked to do. Each acknowledgement is
 * a mark in that list. Then the power is cut at many points of the list, and each image that such a
 * cut may leave is opened by the real ledger: every event acknowledged before the cut is there
 * once, as acknowledged; the group that was being committed is there as a whole or not at all;
 * nothing else is; sequences have no gaps; chain and projections verify; retries are duplicates,
 * and appending goes on.
 *
 * IMAGES=n says how many (2,000). POWERCUT_SEED=n repeats the one workload that a failure names.
 * That the test can fail is shown each time: on a disk whose syncs are lies it must find lost
 * events. */
#include "base/limits.h"
#include "base/log.h"
#include "base/time.h"
#include "crash/disk.h"
#include "ledger/ledger.h"

enum {
    TENANTS = 2,
    GROUPS = 36,
    GROUP_EVENTS = 8,
    KEPT_MAX = 1024,
    IMAGES_EACH = 100,
    SHOWN_MAX = 5
};

struct kept { /* an event that the ledger was asked to keep, and its answer */
    struct append_item item;
    struct append_result result;
    int tenant;
    bool by_ledger; /* a checkpoint's event: the ledger wrote it */
};
struct boundary { /* the state after a commit */
    int64_t events[TENANTS];
};
struct work {
    uint64_t seed, rng;
    struct disk disk;
    struct ledger *ledger;
    struct arena arena;
    struct kept kept[KEPT_MAX]; /* accepted events in the order of their sequence in each tenant */
    size_t kept_count;
    struct boundary boundaries[KEPT_MAX];
    size_t commits; /* boundaries[commits] is the state after the newest one */
};

static int64_t images_bad, images_lost_events; /* of the current series */

/* ---- the workload ---- */

static status connect_disk(void *context, struct db **out, struct error *err) {
    UNUSED(context);
    return db_open(STR("sqlite:ledger.db?vfs=powercut"), DB_WRITE, out, err);
}

static void must(status st, const char *what, const struct error *err) {
    if (st == ST_OK) return;
    fprintf(stderr, "powercut: the workload itself failed: %s: %s\n", what, err->msg);
    exit(1);
}

/* The WAL must turn over often, or its checkpoints and restarts would never be cut. */
static void set_checkpoints(struct ledger *l, int pages) {
    struct error err = {0};
    char sql[64];
    snprintf(sql, sizeof(sql), "PRAGMA wal_autocheckpoint=%d", pages);
    must(db_exec(ledger_db(l), sql, &err), sql, &err);
}

static void open_ledger(struct work *w) {
    struct error err = {0};
    struct ledger_options options = {.validation = LEDGER_REJECT};
    must(ledger_open_with(connect_disk, w, &options, &w->ledger, &err), "open", &err);
    static const int pages[] = {4, 16, 64, 1000};
    set_checkpoints(w->ledger, pages[w->seed % COUNT_OF(pages)]);
}

static str text_of(struct arena *arena, const char *name, int64_t a, int64_t b) {
    char mem[64];
    int n = snprintf(mem, sizeof(mem), "%s-%lld-%lld", name, (long long)a, (long long)b);
    return arena_str(arena, str_n(mem, (size_t)n));
}

static str padding(struct arena *arena, size_t n) {
    char *text = arena_alloc(arena, n + 16);
    int head = snprintf(text, 16, "{\"pad\":\"");
    memset(text + head, 'x', n);
    text[(size_t)head + n] = '"';
    text[(size_t)head + n + 1] = '}';
    return str_n(text, (size_t)head + n + 2);
}

/* Mostly fresh events of a few runs; some that were sent before; some that are not legal. */
static void make_item(struct work *w, struct append_item *item) {
    static const char *const types[] = {"RunStarted", "StepStarted",   "StepCompleted",
                                        "StepFailed", "RunTeleported", "RunPaused"};
    if (w->kept_count > 0 && random_chance(&w->rng, 10)) {
        const struct kept *old = &w->kept[random_below(&w->rng, (uint32_t)w->kept_count)];
        if (!old->by_ledger) {
            *item = old->item;
            return;
        }
    }
    uint32_t tenant = random_below(&w->rng, TENANTS);
    uint32_t type = random_below(&w->rng, COUNT_OF(types));
    bool step = type >= 1 && type <= 3;
    *item = (struct append_item){0};
    struct event *e = &item->event;
    *e = (struct event){.type_name = str_c(types[type]),
                        .run_id = text_of(&w->arena, "run", tenant, random_below(&w->rng, 6)),
                        .tenant_id = text_of(&w->arena, "tenant", tenant, 0),
                        .project_id = STR("p"),
                        .environment_id = STR("e"),
                        .plan_id = STR("plan"),
                        .plan_version = STR("1"),
                        .engine_attempt = 1,
                        .logical_attempt = type == 4 ? (int64_t)w->kept_count + 1 : 1,
                        .event_id = uuid_v4(),
                        .emitted_ns = 1771228800000000000,
                        .payload = random_chance(&w->rng, 60)
                                       ? padding(&w->arena, random_below(&w->rng, 900))
                                       : STR_NONE};
    if (step) e->subject = text_of(&w->arena, "step", random_below(&w->rng, 8), 0);
    struct error err = {0};
    event_key_derive(e, e->key);
    must(event_validate(e, &err), "event", &err);
}

static void keep(struct work *w, const struct append_item *item, const struct append_result *result,
                 bool by_ledger) {
    if (result->code != ST_OK || result->duplicate) return;
    if (w->kept_count == KEPT_MAX) abort();
    int tenant = str_eq(item->event.tenant_id, STR("tenant-0-0")) ? 0 : 1;
    w->kept[w->kept_count++] =
        (struct kept){.item = *item, .result = *result, .tenant = tenant, .by_ledger = by_ledger};
    w->boundaries[w->commits + 1].events[tenant]++;
}

/* One more commit is durable, if the disk is honest. */
static void acknowledge(struct work *w) {
    w->commits++;
    w->boundaries[w->commits + 1] = w->boundaries[w->commits];
    disk_mark(&w->disk, w->commits);
}

static void append_group(struct work *w) {
    struct append_item items[GROUP_EVENTS];
    struct append_result results[GROUP_EVENTS] = {0};
    struct append_request req = {.items = items,
                                 .results = results,
                                 .arena = &w->arena,
                                 .count = 1 + random_below(&w->rng, GROUP_EVENTS)};
    struct append_request *reqs[] = {&req};
    struct error err = {0};
    for (size_t i = 0; i < req.count; i++)
        make_item(w, &items[i]);
    must(ledger_append(w->ledger, reqs, 1, &err), "append", &err);
    for (size_t i = 0; i < req.count; i++)
        keep(w, &items[i], &results[i], false);
    acknowledge(w);
}

static void checkpoint_run(struct work *w) {
    if (w->kept_count == 0) return;
    struct append_item item = w->kept[random_below(&w->rng, (uint32_t)w->kept_count)].item;
    struct append_result result = {0};
    struct error err = {0};
    must(ledger_checkpoint(w->ledger, item.event.run_id, &result, &w->arena, &err), "checkpoint",
         &err);
    keep(w, &item, &result, true);
    acknowledge(w);
}

static void checkpoint_wal(struct work *w) {
    static const char *const modes[] = {
        "PRAGMA wal_checkpoint(PASSIVE)", "PRAGMA wal_checkpoint(FULL)",
        "PRAGMA wal_checkpoint(RESTART)", "PRAGMA wal_checkpoint(TRUNCATE)"};
    struct error err = {0};
    const char *mode = modes[random_below(&w->rng, COUNT_OF(modes))];
    must(db_exec(ledger_db(w->ledger), mode, &err), mode, &err);
}

static void run_work(struct work *w, uint64_t seed, bool lies) {
    struct error err = {0};
    *w = (struct work){
        .seed = seed, .rng = seed * 7919 + 17, .disk = {.records = true, .lies = lies}};
    arena_init(&w->arena, (size_t)64 * 1024, (size_t)64 * 1024 * 1024);
    disk_mounted = &w->disk;
    open_ledger(w);
    for (int i = 0; i < GROUPS; i++) {
        uint32_t pick = random_below(&w->rng, 100);
        append_group(w);
        if (pick < 8)
            checkpoint_wal(w);
        else if (pick < 13)
            checkpoint_run(w);
        else if (pick < 15)
            must(ledger_rebuild(w->ledger, NULL, NULL, NULL, &err), "rebuild", &err);
        else if (pick < 19) {
            ledger_close(w->ledger);
            open_ledger(w);
        }
    }
    ledger_close(w->ledger);
    w->ledger = NULL;
}

static void work_release(struct work *w) {
    disk_release(&w->disk);
    arena_release(&w->arena);
}

/* ---- looking at an image ---- */

struct look {
    const struct work *w;
    struct ledger *ledger;
    struct arena arena;
    size_t commits;          /* acknowledged before the cut */
    int64_t events[TENANTS]; /* found */
    bool lost;               /* an acknowledged event is not there */
    char why[ERROR_MSG_MAX + 64];
};

static bool bad(struct look *k, const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool bad(struct look *k, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(k->why, sizeof(k->why), fmt, args);
    va_end(args);
    return false;
}

static const struct kept *kept_at(const struct work *w, int tenant, int64_t seq) {
    for (size_t i = 0; i < w->kept_count; i++) {
        if (w->kept[i].tenant == tenant && w->kept[i].result.seq == seq) return &w->kept[i];
    }
    return NULL;
}

static bool record_is(const struct event_record *rec, const struct kept *kept) {
    const struct append_result *res = &kept->result;
    const struct event *e = &kept->item.event;
    if (!uuid_eq(rec->event.event_id, res->event_id) || rec->run_seq != res->run_seq ||
        rec->seq != res->seq || rec->persisted_us != res->persisted_us ||
        !str_eq(rec->event.run_id, e->run_id)) {
        return false;
    }
    return kept->by_ledger || (str_eq(rec->event.payload, e->payload) &&
                               memcmp(rec->event.key, e->key, SHA256_LEN) == 0);
}

/* Record number n is the n-th event that was kept, so whatever was acknowledged is there once and
 * in its place. */
static bool look_at_tenant(struct look *k, int tenant) {
    struct event_page page = {0};
    struct error err = {0};
    str tenant_id = text_of(&k->arena, "tenant", tenant, 0);
    status st =
        ledger_read_tenant(k->ledger, tenant_id, 0, PAGE_EVENTS_MAX, &k->arena, &page, &err);
    if (st != ST_OK && st != ST_NOT_FOUND) return bad(k, "reading a tenant: %s", err.msg);
    k->events[tenant] = (int64_t)page.count;
    for (size_t i = 0; i < page.count; i++) {
        const struct kept *kept = kept_at(k->w, tenant, (int64_t)i + 1);
        if (!kept || !record_is(&page.records[i], kept))
            return bad(k, "tenant %d: record %zu is not what was appended", tenant, i + 1);
    }
    int64_t acknowledged = k->w->boundaries[k->commits].events[tenant];
    k->lost = (int64_t)page.count < acknowledged;
    if (k->lost)
        return bad(k, "tenant %d: %zu events, but %lld were acknowledged", tenant, page.count,
                   (long long)acknowledged);
    return true;
}

static bool is_boundary(const struct look *k, size_t commit) {
    return memcmp(k->events, k->w->boundaries[commit].events, sizeof(k->events)) == 0;
}

static bool look_verify(struct look *k) {
    struct verify_report report = {0};
    struct error err = {0};
    if (ledger_verify(k->ledger, true, NULL, NULL, &k->arena, &report, &err) != ST_OK)
        return bad(k, "verify: %s", err.msg);
    return !report.damaged || bad(k, "verify: %s", report.what);
}

/* An acknowledged event again, then a new one. */
static bool look_append(struct look *k, uint64_t *rng) {
    const struct kept *old = &k->w->kept[0];
    struct append_item items[2] = {old->item, old->item};
    struct append_result results[2] = {0};
    struct append_request req = {
        .items = items, .count = 2, .results = results, .arena = &k->arena};
    struct append_request *reqs[] = {&req};
    struct error err = {0};
    struct event *e = &items[1].event;
    e->type_name = STR("RunTeleported");
    e->subject = STR_NONE;
    e->logical_attempt = 1000000 + random_below(rng, 1000);
    e->event_id = uuid_v4();
    event_key_derive(e, e->key);
    if (event_validate(e, &err) != ST_OK || ledger_append(k->ledger, reqs, 1, &err) != ST_OK)
        return bad(k, "append: %s", err.msg);
    bool was_there = k->events[old->tenant] >= old->result.seq;
    if (was_there &&
        (!results[0].duplicate || !uuid_eq(results[0].event_id, old->result.event_id) ||
         results[0].persisted_us != old->result.persisted_us ||
         results[0].run_seq != old->result.run_seq)) {
        return bad(k, "a retry was not answered with the first record");
    }
    int64_t next = k->events[old->tenant] + (was_there ? 1 : 2);
    if (results[1].code != ST_OK || results[1].seq != next)
        return bad(k, "the next event did not get sequence_number %lld", (long long)next);
    return true;
}

static bool look_at(struct look *k, uint64_t *rng) {
    struct error err = {0};
    if (ledger_open_with(connect_disk, NULL, NULL, &k->ledger, &err) != ST_OK)
        return bad(k, "open: %s", err.msg);
    for (int t = 0; t < TENANTS; t++) {
        if (!look_at_tenant(k, t)) return false;
    }
    if (!is_boundary(k, k->commits) && !is_boundary(k, k->commits + 1))
        return bad(k, "a commit is there in part");
    if (!look_verify(k)) return false;
    if (!look_append(k, rng)) return false;
    return !random_chance(rng, 12) || look_verify(k);
}

/* ---- series ---- */

static void show(const struct work *w, const struct look *k, size_t at, enum cut_style style) {
    if (images_bad > SHOWN_MAX) return;
    fprintf(stderr, "powercut: seed %llu, cut before operation %zu of %zu, unsynced: %s: %s\n",
            (unsigned long long)w->seed, at, w->disk.op_count, cut_style_names[style], k->why);
}

static void try_image(const struct work *w, const struct cut *c, uint64_t *rng, bool quiet) {
    struct disk image;
    struct look k = {.w = w, .commits = c->marks};
    enum cut_style style = (enum cut_style)random_below(rng, CUT_STYLE_COUNT);
    cut_image(c, style, rng, &image);
    arena_init(&k.arena, (size_t)64 * 1024, (size_t)64 * 1024 * 1024);
    disk_mounted = &image;
    if (!look_at(&k, rng)) {
        images_bad++;
        images_lost_events += k.lost;
        if (!quiet) show(w, &k, c->at, style);
    }
    ledger_close(k.ledger);
    arena_release(&k.arena);
    disk_release(&image);
}

static int by_size(const void *a, const void *b) {
    size_t x = *(const size_t *)a;
    size_t y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Half of the points anywhere, half right behind an acknowledgement, where a promise was just
 * given. */
static void choose_points(const struct work *w, size_t *points, size_t n, uint64_t *rng) {
    for (size_t i = 0; i < n; i++) {
        size_t at = 1 + random_below(rng, (uint32_t)w->disk.op_count);
        if (i % 2 == 0) {
            while (at < w->disk.op_count && w->disk.ops[at - 1].kind != DISK_MARK)
                at++;
        }
        points[i] = at;
    }
    qsort(points, n, sizeof(points[0]), by_size);
}

static void run_seed(uint64_t seed, size_t images, bool lies, bool quiet) {
    static struct work w; /* too large for the stack */
    static struct cut c;
    size_t points[IMAGES_EACH];
    run_work(&w, seed, lies);
    uint64_t rng = seed ^ 0xc07U;
    choose_points(&w, points, images, &rng);
    cut_start(&c, &w.disk);
    for (size_t i = 0; i < images; i++) {
        cut_move_to(&c, points[i]);
        try_image(&w, &c, &rng, quiet);
    }
    cut_release(&c);
    work_release(&w);
}

static int64_t run_series(uint64_t first_seed, int64_t images, bool lies) {
    images_bad = images_lost_events = 0;
    int64_t done = 0;
    for (uint64_t seed = first_seed; done < images; seed++) {
        size_t n = images - done < IMAGES_EACH ? (size_t)(images - done) : IMAGES_EACH;
        run_seed(seed, n, lies, lies);
        done += (int64_t)n;
    }
    return images_bad;
}

static int64_t number_from(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    int64_t n = 0;
    return text && str_to_int(str_c(text), &n) && n > 0 ? n : otherwise;
}

int main(void) {
    int64_t images = number_from("IMAGES", 2000) * number_from("CAIRN_TEST_SCALE", 100) / 100;
    int64_t seed = number_from("POWERCUT_SEED", 0);
    int failed = 0;
    log_setup(2, false, LOG_OFF); /* a damaged image is an answer, not a message */
    if (!disk_register()) return 1;
    if (seed > 0) images = IMAGES_EACH;

    int64_t start = clock_mono_ns();
    int64_t wrong = run_series(seed > 0 ? (uint64_t)seed : 1, images > 0 ? images : 1, false);
    double seconds = (double)(clock_mono_ns() - start) / 1e9;
    printf("%lld images after a power cut in %.1f s: %lld wrong\n", (long long)images, seconds,
           (long long)wrong);
    failed += wrong > 0;

    /* The same on a disk that answers syncs and forgets them. */
    run_series(1, IMAGES_EACH, true);
    printf("%d images of a disk that lies about syncs: %lld lost acknowledged events\n",
           IMAGES_EACH, (long long)images_lost_events);
    failed += images_lost_events == 0;
    printf("powercut: %d passed, %d failed, 0 skipped\n", 2 - failed, failed);
    return failed > 0 ? 1 : 0;
}
