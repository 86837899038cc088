/* Plans from the database, and from a network that the loop does not wait for. On both databases.
 */
#include <ctype.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "conformance/engine_tools.h"
#include "host/plans.h"
#include "ledger/access/access.h"
#include "ledger/writer.h"
#include "net/fake_server_test.h"

#define TEXT PLAN(NOOP("a", ""))

/* ---- from the database ---- */

struct put {
    const char *tenant, *text;
    uint8_t sha256[SHA256_LEN];
};
static status put_plan(struct ledger *ledger, void *context, struct error *err) {
    struct put *put = context;
    bool existed = false;
    return access_plan_put(ledger, str_c(put->tenant), put->sha256, str_c(put->text), NULL,
                           &existed, err);
}

/* As POST /v1/plans of that tenant. */
static void put_for(struct bed *bed, const char *tenant, const char *text) {
    struct error err = {0};
    struct put put = {.tenant = tenant, .text = text};
    sha256_of(str_c(text), put.sha256);
    struct writer_call call = {.task = put_plan, .task_context = &put};
    CHECK(writer_append(host_writer(bed->host), &call, 30000, &err) == ST_OK, "%s", err.msg);
}

/* A request of that tenant whose plan is in none of the bed's stores. */
static struct start_request request_of(struct bed *bed, const char *tenant, const char *text,
                                       const char *run_id) {
    struct bed elsewhere; /* only its folder */
    bed_init(&elsewhere, bed->options.url);
    struct start_request q = bed_request(&elsewhere, text, NULL);
    q.ref.uri = arena_str(&bed->arena, q.ref.uri);
    q.ref.schema_version = STR("v1.3");
    q.ref.plan_id = STR("p");
    q.ref.plan_version = STR("1");
    q.tenant_id = arena_str(&bed->arena, str_c(tenant));
    q.run_id = arena_str(&bed->arena, str_c(run_id));
    bed_release(&elsewhere);
    return q;
}

/* A node whose folder lacks the plan finds it in the ledger's database, before and after a restart.
 */
TEST_DB(engine_finds_plans_that_others_put_into_the_database) {
    struct bed bed;
    struct error err = {0};
    const char *text = PLAN(STEP("w", "wait", ",\"signal\":\"go\""));
    bed_init(&bed, url);
    struct start_request q = request_of(&bed, "acme", text, "r");
    bed_open(&bed);
    start_refused(&bed, &q, "PLAN_NOT_FOUND");
    put_for(&bed, "acme", text);
    CHECK(bed_start(&bed, &q, &err) == ST_OK, "%s", err.msg);
    bed_reopen(&bed);
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* The same answer, but for the hash it names. */
static bool same_but_for_hash(const struct error *a, const struct error *b) {
    for (size_t i = 0; i < sizeof a->msg && (a->msg[i] || b->msg[i]); i++) {
        bool hex = isxdigit((unsigned char)a->msg[i]) && isxdigit((unsigned char)b->msg[i]);
        if (!hex && a->msg[i] != b->msg[i]) return false;
    }
    return a->code == b->code && a->reason == b->reason && strcmp(a->where, b->where) == 0;
}

/* Knowing the hash of another tenant's plan is not having it, also while the plan is in memory: the
 * answer is that for a hash which nobody knows. Runs that go on have their own tenant's. */
TEST_DB(engine_keeps_the_plans_of_a_tenant_from_the_others) {
    struct bed bed;
    struct error err = {0};
    struct error unknown = {0};
    const char *text = PLAN(STEP("w", "wait", ",\"signal\":\"go\""));
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request ours = request_of(&bed, "acme", text, "ours");
    struct start_request theirs = request_of(&bed, "globex", text, "theirs");
    struct start_request nobodys = request_of(&bed, "globex", PLAN(NOOP("n", "")), "nobodys");
    put_for(&bed, "acme", text);
    CHECK(bed_start(&bed, &nobodys, &unknown) == ST_NOT_FOUND);
    CHECK(bed_start(&bed, &theirs, &err) == ST_NOT_FOUND, "before it is in memory");
    CHECK(bed_start(&bed, &ours, &err) == ST_OK, "%s", err.msg);
    CHECK(bed_start(&bed, &theirs, &err) == ST_NOT_FOUND, "while it is in memory");
    CHECK(err.reason == REASON_PLAN_NOT_FOUND);
    CHECK(same_but_for_hash(&err, &unknown), "%s / %s", err.msg, unknown.msg);

    put_for(&bed, "globex", text); /* the same bytes, of their own */
    CHECK(bed_start(&bed, &theirs, &err) == ST_OK, "%s", err.msg);
    bed_reopen(&bed);
    tell(&bed, "ours", "go", NULL);
    tell(&bed, "theirs", "go", NULL);
    CHECK(bed_wait(&bed, "ours") == RUN_COMPLETED && bed_wait(&bed, "theirs") == RUN_COMPLETED);
    bed_release(&bed);
}

/* The folder is the operator's. */
TEST_DB(engine_has_the_plans_of_the_folder_for_every_tenant) {
    struct bed bed;
    struct error err = {0};
    static const char *const tenants[] = {"acme", "globex", "default"};
    bed_init(&bed, url);
    bed_open(&bed);
    for (size_t i = 0; i < COUNT_OF(tenants); i++) {
        struct start_request q = bed_request(&bed, TEXT, tenants[i]);
        q.tenant_id = str_c(tenants[i]);
        CHECK(bed_start(&bed, &q, &err) == ST_OK, "%s: %s", tenants[i], err.msg);
        CHECK(bed_wait(&bed, tenants[i]) == RUN_COMPLETED);
    }
    bed_release(&bed);
}

/* More tenants than there is room for plans, and for the names of those who may have one: tenants
 * with the same plan share it. */
TEST_DB(engine_shares_a_plan_that_many_tenants_have) {
    struct bed bed;
    struct error err = {0};
    const char *text = PLAN(STEP("w", "wait", ",\"signal\":\"go\""));
    enum { TENANTS = HOST_PLAN_TENANTS_MAX + HOST_PLANS_MAX / 8 };
    bed_init(&bed, url);
    bed_open(&bed);
    struct start_request q = request_of(&bed, "nobody", text, "r");
    for (int i = 0; i < TENANTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        put_for(&bed, name, text);
        q.tenant_id = q.run_id = str_c(name);
        CHECK(bed_start(&bed, &q, &err) == ST_OK, "%d: %s", i, err.msg);
    }
    q.tenant_id = STR("t0"); /* forgotten by now: it is asked for again */
    q.run_id = STR("again");
    CHECK(bed_start(&bed, &q, &err) == ST_OK, "%s", err.msg);
    q.tenant_id = STR("nobody");
    q.run_id = STR("never");
    start_refused(&bed, &q, "PLAN_NOT_FOUND");
    bed_release(&bed);
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
    host_prefetch(s.bed.host, STR("acme"), &ref, on_fetched, &f);
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
    host_prefetch(s.bed.host, STR("acme"), &ref, on_fetched, &again);
    CHECK(again.answers == 1 && again.code == ST_OK, "a plan that is kept is answered at once");
    struct plan_ref local = bed_put(&s.bed, PLAN(NOOP("b", "")));
    struct fetched here = {0};
    host_prefetch(s.bed.host, STR("acme"), &local, on_fetched, &here);
    CHECK(here.answers == 1 && here.code == ST_OK, "%s", here.err.msg);
    CHECK(fake_server_requests(s.server) == 1, "%d", fake_server_requests(s.server));
    shop_close(&s);
}

/* What one tenant has fetched, perhaps with a signed URL, is not there for another who knows its
 * hash. */
TEST_DB(engine_fetches_plans_for_each_tenant) {
    struct shop s;
    struct error err = {0};
    struct fetched f[4] = {0};
    shop_open(&s, url);
    struct plan_ref ref = remote(&s, "/plan.json?signature=x");
    struct plan_ref elsewhere = remote(&s, "/none");
    struct start_request local = request_of(&s.bed, "globex", TEXT, "r");
    host_prefetch(s.bed.host, STR("acme"), &ref, on_fetched, &f[0]);
    await(&s, &f[0]);
    CHECK(f[0].code == ST_OK, "%s", f[0].err.msg);
    start_refused(&s.bed, &local, "PLAN_NOT_FOUND");
    host_prefetch(s.bed.host, STR("globex"), &elsewhere, on_fetched, &f[1]);
    await(&s, &f[1]);
    CHECK(f[1].code != ST_OK && f[1].err.reason == REASON_PLAN_FETCH_FAILED);
    host_prefetch(s.bed.host, STR("acme"), &elsewhere, on_fetched, &f[2]);
    CHECK(f[2].answers == 1 && f[2].code == ST_OK, "acme has the plan, wherever it is");
    host_prefetch(s.bed.host, STR("globex"), &ref, on_fetched, &f[3]);
    CHECK(f[3].answers == 0);
    await(&s, &f[3]);
    CHECK(f[3].code == ST_OK && fake_server_requests(s.server) == 3, "%d",
          fake_server_requests(s.server));
    CHECK(bed_start(&s.bed, &local, &err) == ST_OK, "%s", err.msg); /* it had it, now */
    CHECK(bed_wait(&s.bed, "r") == RUN_COMPLETED);
    shop_close(&s);
}

/* Who asks for what is on its way waits for that: the same plan, in the same words, for the same
 * tenant. */
TEST_DB(engine_fetches_a_plan_once) {
    struct shop s;
    struct fetched f[3 * HOST_FETCHES_MAX] = {0};
    struct fetched globex = {0};
    struct fetched sized = {0};
    shop_open(&s, url);
    struct plan_ref ref = remote(&s, "/plan.json");
    struct plan_ref other = ref;
    other.size_bytes = (int64_t)strlen(TEXT);
    atomic_store(&s.hold, true);
    for (size_t i = 0; i < COUNT_OF(f); i++)
        host_prefetch(s.bed.host, STR("acme"), &ref, on_fetched, &f[i]);
    host_prefetch(s.bed.host, STR("acme"), &other, on_fetched, &sized);
    host_prefetch(s.bed.host, STR("globex"), &ref, on_fetched, &globex);
    bed_turn(&s.bed, 50);
    atomic_store(&s.hold, false);
    await(&s, &globex);
    await(&s, &sized);
    for (size_t i = 0; i < COUNT_OF(f); i++) {
        await(&s, &f[i]);
        CHECK(f[i].code == ST_OK, "%zu: %s", i, f[i].err.msg);
    }
    CHECK(globex.code == ST_OK && sized.code == ST_OK);
    CHECK(fake_server_requests(s.server) == 3, "%d", fake_server_requests(s.server));

    struct plan_ref absent = remote(&s, "/none"); /* a failure is for all of them, too */
    absent.sha256[0] ^= 1;
    struct fetched failed[2] = {0};
    for (int i = 0; i < 2; i++)
        host_prefetch(s.bed.host, STR("acme"), &absent, on_fetched, &failed[i]);
    for (int i = 0; i < 2; i++) {
        await(&s, &failed[i]);
        CHECK(failed[i].err.reason == REASON_PLAN_FETCH_FAILED);
    }
    CHECK(fake_server_requests(s.server) == 4, "%d", fake_server_requests(s.server));
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
        host_prefetch(s.bed.host, STR("acme"), cases[i].ref, on_fetched, &f[i]);
        await(&s, &f[i]);
        CHECK(f[i].code != ST_OK && strcmp(reason_name(f[i].err.reason), cases[i].reason) == 0,
              "%zu: %s", i, f[i].err.msg);
    }
    log_setup(2, false, LOG_INFO);
    shop_close(&s);
}

/* The first half of the fetches is one tenant's, which is all that it may have. */
static str fetcher(int i) { return i < HOST_TENANT_FETCHES_MAX ? STR("acme") : STR("globex"); }

/* So many at a time, half of them for one tenant, and a host that closes waits for none. */
TEST_DB(engine_leaves_fetches_alone_when_it_closes) {
    struct shop s;
    struct fetched f[HOST_FETCHES_MAX + 1] = {0};
    struct fetched more = {0};
    shop_open(&s, url);
    struct plan_ref another = remote(&s, "/another");
    atomic_store(&s.hold, true);
    for (int i = 0; i <= HOST_FETCHES_MAX; i++) {
        char path[32];
        snprintf(path, sizeof path, "/%d", i);
        struct plan_ref ref = remote(&s, path);
        if (i == HOST_TENANT_FETCHES_MAX)
            host_prefetch(s.bed.host, STR("acme"), &another, on_fetched, &more);
        host_prefetch(s.bed.host, fetcher(i), &ref, on_fetched, &f[i]);
    }
    CHECK(more.answers == 1 && more.code == ST_LIMIT &&
          more.err.reason == REASON_TENANT_FETCHES_TOO_MANY);
    const struct fetched *last = &f[HOST_FETCHES_MAX];
    CHECK(last->answers == 1 && last->code == ST_LIMIT &&
          last->err.reason == REASON_PLAN_FETCHES_TOO_MANY);
    bed_turn(&s.bed, 100);
    int64_t began = clock_mono_ns();
    bed_close(&s.bed);
    CHECK(clock_mono_ns() - began < (int64_t)5 * 1000000000, "closing waits");
    for (int i = 0; i < HOST_FETCHES_MAX; i++)
        CHECK(f[i].answers == 1 && f[i].code == ST_RETRY && f[i].err.reason == REASON_CLOSING,
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
        host_prefetch(s.bed.host, STR("acme"), &ref, on_fetched, &f);
        bed_turn(&s.bed, ms);
        bed_close(&s.bed);
        CHECK(f.answers == 1, "%d", f.answers);
        shop_close(&s);
    }
}

/* ---- large ones ---- */

/* A plan of more than HOST_PLAN_SMALL bytes. */
static const char *large_plan(struct bed *bed, const char *version) {
    struct buf b;
    buf_init(&b, (size_t)16 * HOST_PLAN_SMALL);
    buf_printf(&b, "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":");
    buf_printf(&b, "\"%s\"},\"steps\":[", version);
    for (int i = 0; b.len <= HOST_PLAN_SMALL; i++)
        buf_printf(&b, "%s{\"stepId\":\"s%d\",\"type\":\"noop\"}", i ? "," : "", i);
    buf_put_c(&b, "]}");
    str kept = arena_str(&bed->arena, buf_str(&b));
    buf_release(&b);
    return kept.ptr;
}

/* A thread reads a large plan, from the folder or the database; the start that follows finds it. */
TEST_DB(engine_reads_large_plans_beside_its_work) {
    struct shop s;
    struct error err = {0};
    struct fetched f[6] = {0};
    shop_open(&s, url);
    const char *text = large_plan(&s.bed, "1");
    struct start_request q = request_of(&s.bed, "acme", text, "r");
    struct plan_ref folder = bed_put(&s.bed, large_plan(&s.bed, "2"));
    host_prefetch(s.bed.host, STR("acme"), &q.ref, on_fetched, &f[0]);
    await(&s, &f[0]);
    CHECK(f[0].answers == 1 && f[0].err.reason == REASON_PLAN_NOT_FOUND);
    put_for(&s.bed, "acme", text);
    host_prefetch(s.bed.host, STR("acme"), &q.ref, on_fetched, &f[1]);
    host_prefetch(s.bed.host, STR("acme"), &q.ref, on_fetched, &f[2]);
    host_prefetch(s.bed.host, STR("globex"), &folder, on_fetched, &f[3]);
    host_prefetch(s.bed.host, STR("globex"), &q.ref, on_fetched, &f[4]);
    CHECK(f[1].answers == 0 && f[2].answers == 0 && f[3].answers == 0, "threads read them");
    await(&s, &f[4]);
    CHECK(f[4].answers == 1 && f[4].err.reason == REASON_PLAN_NOT_FOUND);
    for (int i = 1; i <= 3; i++) {
        await(&s, &f[i]);
        CHECK(f[i].code == ST_OK, "%d: %s", i, f[i].err.msg);
    }
    host_prefetch(s.bed.host, STR("initech"), &folder, on_fetched, &f[5]);
    CHECK(f[5].answers == 1 && f[5].code == ST_OK, "it is the folder's: every tenant's");
    CHECK(bed_start(&s.bed, &q, &err) == ST_OK, "%s", err.msg);
    CHECK(bed_wait(&s.bed, "r") == RUN_COMPLETED);
    shop_close(&s);
}

TEST_DB(engine_tells_what_is_wrong_with_a_large_plan) {
    struct shop s;
    struct fetched f = {0};
    struct error err = {0};
    struct buf path;
    shop_open(&s, url);
    struct plan_ref ref = bed_put(&s.bed, large_plan(&s.bed, "1"));
    buf_init(&path, 4096);
    buf_printf(&path, "%.*s/plans/", STR_ARG(s.bed.data_dir));
    buf_put_hex(&path, ref.sha256, SHA256_LEN);
    buf_put_c(&path, ".json");
    CHECK(file_replace(buf_str(&path), str_c(large_plan(&s.bed, "2")), &err) == ST_OK);
    buf_release(&path);
    log_setup(2, false, LOG_OFF);
    host_prefetch(s.bed.host, STR("acme"), &ref, on_fetched, &f);
    await(&s, &f);
    log_setup(2, false, LOG_INFO);
    CHECK(f.err.reason == REASON_PLAN_INTEGRITY_VALIDATION_FAILED, "%s", f.err.msg);
    shop_close(&s);
}

/* So many at a time, as remote ones; a host that closes waits for no thread, and leaves nothing. */
TEST_DB(engine_closes_while_large_plans_are_read) {
    struct shop s;
    struct fetched f[HOST_FETCHES_MAX + 1] = {0};
    shop_open(&s, url);
    for (int i = 0; i <= HOST_FETCHES_MAX; i++) {
        char version[16];
        snprintf(version, sizeof version, "%d", i);
        struct plan_ref ref = bed_put(&s.bed, large_plan(&s.bed, version));
        host_prefetch(s.bed.host, fetcher(i), &ref, on_fetched, &f[i]);
    }
    CHECK(f[HOST_FETCHES_MAX].answers == 1 &&
          f[HOST_FETCHES_MAX].err.reason == REASON_PLAN_FETCHES_TOO_MANY);
    bed_close(&s.bed);
    for (int i = 0; i < HOST_FETCHES_MAX; i++)
        CHECK(f[i].answers == 1 && f[i].err.reason == REASON_CLOSING, "%d: %d", i, f[i].answers);
    shop_close(&s);
}

static struct plan_ref numbered(struct bed *bed, int i) {
    char text[256];
    snprintf(text, sizeof text,
             "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"n%d\",\"planVersion\":\"1\"},"
             "\"steps\":[{\"stepId\":\"a\",\"type\":\"noop\"}]}",
             i);
    return bed_put(bed, text);
}

static const struct plan *take(struct host_plans *plans, const char *tenant,
                               const struct plan_ref *ref, const char *refused) {
    struct error err = {0};
    const struct plan *plan = NULL;
    status st = host_plans_get(plans, str_c(tenant), ref, &plan, &err);
    if (refused)
        CHECK(st == ST_LIMIT && strcmp(reason_name(err.reason), refused) == 0, "%d %s", st,
              err.msg);
    else
        CHECK(st == ST_OK, "%s", err.msg);
    return plan;
}

/* One tenant's runs cannot have all the plans that can be kept; who has its share waits for one of
 * its own to end; and what another one pays for is free. */
TEST(engine_plans_have_a_share_for_each_tenant) {
    enum { HALF = HOST_TENANT_PLANS_MAX, ALL = HOST_PLANS_MAX };
    struct bed bed;
    struct host_plans *plans = NULL;
    struct error err = {0};
    struct plan_ref refs[ALL + 1];
    const struct plan *held[ALL];
    bed_init(&bed, STR("unused"));
    char folder[4096];
    snprintf(folder, sizeof folder, "%.*s/plans", STR_ARG(bed.data_dir));
    struct plan_source source = {.plans_folder = str_c(folder)};
    CHECK(uv_loop_init(&bed.loop) == 0);
    CHECK(host_plans_open(&bed.loop, &source, NULL, &plans, &err) == ST_OK, "%s", err.msg);
    for (int i = 0; i <= ALL; i++)
        refs[i] = numbered(&bed, i);
    for (int i = 0; i < HALF; i++)
        held[i] = take(plans, "acme", &refs[i], NULL);
    for (int i = 0; i < 3; i++)
        (void)take(plans, "acme", &refs[HALF], "TENANT_PLANS_TOO_MANY");
    CHECK(take(plans, "acme", &refs[0], NULL) == held[0]); /* one that it has */
    host_plans_done(plans, held[0]);
    (void)take(plans, "acme", &refs[HALF], "TENANT_PLANS_TOO_MANY"); /* it still has it */
    host_plans_done(plans, held[0]);
    held[0] = take(plans, "acme", &refs[ALL], NULL);

    for (int i = HALF; i < ALL; i++)
        held[i] = take(plans, "globex", &refs[i], NULL);
    CHECK(take(plans, "acme", &refs[HALF], NULL) == held[HALF]); /* globex pays */
    host_plans_done(plans, held[HALF]);
    (void)take(plans, "globex", &refs[0], "PLANS_TOO_MANY");
    (void)take(plans, "initech", &refs[0], "PLANS_TOO_MANY");
    host_plans_done(plans, held[1]); /* acme's: there is room, but not for globex */
    (void)take(plans, "globex", &refs[0], "TENANT_PLANS_TOO_MANY");
    held[1] = take(plans, "initech", &refs[0], NULL);
    for (int i = 0; i < ALL; i++)
        host_plans_done(plans, held[i]);
    host_plans_close(plans);
    uv_run(&bed.loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&bed.loop) == 0);
    bed_release(&bed);
}
