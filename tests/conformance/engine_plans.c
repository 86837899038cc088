/* Plans from the database, and from a network that the loop does not wait for. On both databases.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "conformance/engine_tools.h"
#include "ledger/access.h"
#include "ledger/writer.h"
#include "net/fake_server_test.h"

#define TEXT PLAN(NOOP("a", ""))

/* ---- from the database ---- */

struct put {
    const char *text;
    uint8_t sha256[SHA256_LEN];
};
static status put_plan(struct ledger *ledger, void *context, struct error *err) {
    struct put *put = context;
    bool existed = false;
    return access_plan_put(ledger, STR("acme"), put->sha256, str_c(put->text), NULL, &existed, err);
}

/* A node whose folder lacks the plan finds it in the ledger's database, before and after a restart.
 */
TEST_DB(engine_finds_plans_that_others_put_into_the_database) {
    struct bed bed;
    struct bed elsewhere; /* only its folder */
    struct error err = {0};
    struct put put = {.text = PLAN(STEP("w", "wait", ",\"signal\":\"go\""))};
    bed_init(&bed, url);
    bed_init(&elsewhere, url);
    struct start_request q = bed_request(&elsewhere, put.text, "r");
    memcpy(put.sha256, q.ref.sha256, sizeof put.sha256);
    bed_open(&bed);
    start_refused(&bed, &q, "PLAN_NOT_FOUND");
    struct writer_call call = {.task = put_plan, .task_context = &put};
    CHECK(writer_append(host_writer(bed.host), &call, 30000, &err) == ST_OK, "%s", err.msg);
    CHECK(bed_start(&bed, &q, &err) == ST_OK, "%s", err.msg);
    bed_reopen(&bed);
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
    bed_release(&elsewhere);
}

/* ---- from the network ---- */

struct shop {
    struct bed bed;
    struct fake_server *server;
    struct guard_rule rule;
    struct guard guard;
    _Atomic bool hold; /* requests wait */
};

static bool serve(void *context, int fd, const struct fake_request *request) {
    struct shop *s = context;
    UNUSED(request);
    while (atomic_load(&s->hold))
        usleep(2000);
    if (str_starts(request->target, STR("/none"))) return fake_answer(fd, 404, "", STR("no"));
    return fake_answer(fd, 200, "", STR(TEXT));
}

static void shop_open(struct shop *s, str url) {
    *s = (struct shop){0};
    s->server = fake_server_open(serve, s);
    s->rule = (struct guard_rule){
        .scheme = STR("http"), .host = STR("127.0.0.1"), .port = fake_server_port(s->server)};
    s->guard = (struct guard){&s->rule, 1, true};
    bed_init(&s->bed, url);
    s->bed.options.guard = &s->guard;
    bed_open(&s->bed);
}

static void shop_close(struct shop *s) {
    atomic_store(&s->hold, false);
    bed_release(&s->bed);
    fake_server_close(s->server);
}

static struct plan_ref remote(struct shop *s, const char *path) {
    char uri[256];
    snprintf(uri, sizeof uri, "http://127.0.0.1:%d%s", fake_server_port(s->server), path);
    struct plan_ref ref = {.uri = arena_str(&s->bed.arena, str_c(uri)),
                           .schema_version = STR("v1.3"),
                           .plan_id = STR("p"),
                           .plan_version = STR("1"),
                           .size_bytes = -1};
    sha256_of(STR(TEXT), ref.sha256);
    return ref;
}

struct fetched {
    int answers;
    status code;
    struct error err;
};
static void on_fetched(void *context, status code, const struct error *err) {
    struct fetched *f = context;
    f->answers++;
    f->code = code;
    f->err = *err;
}

static void await(struct shop *s, const struct fetched *f) {
    for (int i = 0; i < 4000 && f->answers == 0; i++)
        bed_turn(&s->bed, 5);
    CHECK(f->answers == 1, "%d answers", f->answers);
}

/* The loop turns, and other runs go on, while a plan is on its way; the start that follows asks
 * nobody. */
TEST_DB(engine_fetches_plans_beside_its_work) {
    struct shop s;
    struct error err = {0};
    struct fetched f = {0};
    shop_open(&s, url);
    struct plan_ref ref = remote(&s, "/plan.json");
    atomic_store(&s.hold, true);
    int64_t began = clock_mono_ns();
    host_prefetch(s.bed.host, &ref, on_fetched, &f);
    CHECK(clock_mono_ns() - began < (int64_t)2 * 1000000000 && f.answers == 0);
    CHECK(bed_run(&s.bed, PLAN(SH("x", "exit 0", "")), "other") == RUN_COMPLETED);
    CHECK(f.answers == 0);
    atomic_store(&s.hold, false);
    await(&s, &f);
    CHECK(f.code == ST_OK, "%s", f.err.msg);
    CHECK(fake_server_requests(s.server) == 1);

    struct start_request q = bed_request(&s.bed, PLAN(SH("x", "exit 0", "")), "r");
    q.ref = ref;
    CHECK(bed_start(&s.bed, &q, &err) == ST_OK, "%s", err.msg);
    CHECK(bed_wait(&s.bed, "r") == RUN_COMPLETED);
    struct fetched again = {0};
    host_prefetch(s.bed.host, &ref, on_fetched, &again);
    CHECK(again.answers == 1 && again.code == ST_OK, "a plan that is kept is answered at once");
    struct plan_ref local = bed_put(&s.bed, PLAN(NOOP("b", "")));
    struct fetched here = {0};
    host_prefetch(s.bed.host, &local, on_fetched, &here);
    CHECK(here.answers == 1 && here.code == ST_OK, "%s", here.err.msg);
    CHECK(fake_server_requests(s.server) == 1, "%d", fake_server_requests(s.server));
    shop_close(&s);
}

/* Every failure has the code that a start would give. */
TEST_DB(engine_tells_why_a_plan_did_not_come) {
    struct shop s;
    struct fetched f[5] = {0};
    shop_open(&s, url);
    log_setup(2, false, LOG_OFF);
    struct plan_ref absent = remote(&s, "/none");
    struct plan_ref tampered = remote(&s, "/plan");
    struct plan_ref renamed = remote(&s, "/plan");
    struct plan_ref forbidden = remote(&s, "/plan");
    tampered.sha256[0] ^= 1;
    renamed.plan_id = STR("another");
    forbidden.uri = STR("http://127.0.0.2/plan");
    const struct {
        const struct plan_ref *ref;
        const char *reason;
    } cases[] = {{&absent, "PLAN_FETCH_FAILED"},
                 {&tampered, "PLAN_INTEGRITY_VALIDATION_FAILED"},
                 {&renamed, "PLAN_ID_MISMATCH"},
                 {&forbidden, "PLAN_URI_NOT_ALLOWED"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        host_prefetch(s.bed.host, cases[i].ref, on_fetched, &f[i]);
        await(&s, &f[i]);
        CHECK(f[i].code != ST_OK && strcmp(f[i].err.reason, cases[i].reason) == 0, "%zu: %s", i,
              f[i].err.msg);
    }
    log_setup(2, false, LOG_INFO);
    shop_close(&s);
}

/* So many at a time, and a host that closes waits for none of them. */
TEST_DB(engine_leaves_fetches_alone_when_it_closes) {
    struct shop s;
    struct fetched f[HOST_FETCHES_MAX + 1] = {0};
    shop_open(&s, url);
    atomic_store(&s.hold, true);
    for (int i = 0; i <= HOST_FETCHES_MAX; i++) {
        char path[32];
        snprintf(path, sizeof path, "/%d", i);
        struct plan_ref ref = remote(&s, path);
        host_prefetch(s.bed.host, &ref, on_fetched, &f[i]);
    }
    const struct fetched *last = &f[HOST_FETCHES_MAX];
    CHECK(last->answers == 1 && last->code == ST_LIMIT &&
          strcmp(last->err.reason, "PLAN_FETCHES_TOO_MANY") == 0);
    bed_turn(&s.bed, 100);
    int64_t began = clock_mono_ns();
    bed_close(&s.bed);
    CHECK(clock_mono_ns() - began < (int64_t)5 * 1000000000, "closing waits");
    for (int i = 0; i < HOST_FETCHES_MAX; i++)
        CHECK(f[i].answers == 1 && f[i].code == ST_RETRY && strcmp(f[i].err.reason, "CLOSING") == 0,
              "%d: %d", i, f[i].answers);
    shop_close(&s);
}

/* The same when the bytes are there and a thread reads them. */
TEST_DB(engine_closes_while_a_plan_is_read) {
    for (int ms = 0; ms < 6; ms++) {
        struct shop s;
        struct fetched f = {0};
        shop_open(&s, url);
        struct plan_ref ref = remote(&s, "/plan");
        host_prefetch(s.bed.host, &ref, on_fetched, &f);
        bed_turn(&s.bed, ms);
        bed_close(&s.bed);
        CHECK(f.answers == 1, "%d", f.answers);
        shop_close(&s);
    }
}
