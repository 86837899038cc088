/* engine/plan_source_test.c: against a real HTTP server that lies in every way it can. */
#include "engine/plan_source.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/os.h"
#include "net/fake_server_test.h"
#include "test.h"

#define WANTED(tenant, reference) ((struct plan_wanted){.tenant_id = (tenant), .ref = (reference)})
#define STORED(tenant, reference, store)                                                           \
    ((struct plan_wanted){.tenant_id = (tenant), .ref = (reference), .reader = (store)})

#define PLAN_TEXT(id, version, schema)                                                             \
    "{\"schemaVersion\":\"" schema "\",\"metadata\":{\"planId\":\"" id                             \
    "\",\"planVersion\":\"" version "\"},\"steps\":[{\"stepId\":\"a\",\"type\":\"noop\"}]}"
#define GOOD PLAN_TEXT("orders", "7", "v1.3")
#define OTHER PLAN_TEXT("orders", "8", "v1.3")

/* ---- the server ---- */

struct shelf {
    pthread_mutex_t lock; /* guards the rest */
    str body;             /* of /plan.json */
    char target[256];     /* of the last request */
};

static void drip(int fd) {
    bool ok = fake_send(fd, STR("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"));
    while (ok) {
        ok = fake_send(fd, STR(" "));
        usleep(20000);
    }
}

static void endless(int fd) {
    bool ok = fake_send(fd, STR("HTTP/1.1 200 OK\r\n\r\n"));
    while (ok)
        ok = fake_send(fd, STR("                                                              \n"));
}

static bool handle(void *context, int fd, const struct fake_request *request) {
    struct shelf *shelf = context;
    str target = request->target;
    pthread_mutex_lock(&shelf->lock);
    str body = shelf->body;
    (void)snprintf(shelf->target, sizeof shelf->target, "%.*s", STR_ARG(target));
    pthread_mutex_unlock(&shelf->lock);
    if (str_starts(target, STR("/plan.json"))) return fake_answer(fd, 200, "", body);
    if (str_eq(target, STR("/drip"))) drip(fd);
    if (str_eq(target, STR("/endless"))) endless(fd);
    if (str_eq(target, STR("/redirect")))
        return fake_answer(fd, 302, "Location: http://169.254.169.254/plan.json\r\n", STR(""));
    if (str_eq(target, STR("/inside")))
        return fake_answer(fd, 307, "Location: /plan.json\r\n", STR(""));
    if (str_eq(target, STR("/error"))) return fake_answer(fd, 503, "", STR(""));
    if (str_eq(target, STR("/forbidden"))) return fake_answer(fd, 403, "", STR(""));
    if (str_eq(target, STR("/partial"))) return fake_answer(fd, 206, "", body);
    return fake_answer(fd, 404, "", STR("nothing here"));
}

struct stage {
    struct shelf shelf;
    struct fake_server *server;
    struct arena arena; /* of plans; what a test makes lives until its end */
    struct guard_rule rules[2];
    struct guard guard;
    struct plan_endpoint endpoint;
    struct plan_source source;
};

static void stage_open(struct stage *s) {
    memset(s, 0, sizeof *s);
    CHECK(pthread_mutex_init(&s->shelf.lock, NULL) == 0);
    s->shelf.body = STR(GOOD);
    s->server = fake_server_open(handle, &s->shelf);
    arena_init(&s->arena, 4096, (size_t)256 << 20);
    s->rules[0] = (struct guard_rule){
        .scheme = STR("http"), .host = STR("127.0.0.1"), .port = fake_server_port(s->server)};
    s->rules[1] = (struct guard_rule){.scheme = STR("s3"), .host = STR("bucket")};
    s->guard = (struct guard){s->rules, COUNT_OF(s->rules), true};
    s->source = (struct plan_source){.guard = &s->guard, .timeout_ms = 20000};
}

static void stage_close(struct stage *s) {
    fake_server_close(s->server);
    arena_release(&s->arena);
    pthread_mutex_destroy(&s->shelf.lock);
}

static void serve(struct stage *s, str body) {
    pthread_mutex_lock(&s->shelf.lock);
    s->shelf.body = body;
    pthread_mutex_unlock(&s->shelf.lock);
}

/* What the last request asked for. */
static bool was_asked_for(struct stage *s, const char *target) {
    pthread_mutex_lock(&s->shelf.lock);
    bool same = strcmp(s->shelf.target, target) == 0;
    pthread_mutex_unlock(&s->shelf.lock);
    return same;
}

/* A reference to that path of the server, with the hash of `plan`. */
static struct plan_ref ref_to(struct stage *s, const char *path, const char *plan) {
    char uri[256];
    (void)snprintf(uri, sizeof uri, "http://127.0.0.1:%d%s", fake_server_port(s->server), path);
    struct plan_ref ref = {.uri = arena_str(&s->arena, str_c(uri)),
                           .schema_version = STR("v1.3"),
                           .plan_id = STR("orders"),
                           .plan_version = STR("7"),
                           .size_bytes = -1};
    sha256_of(str_c(plan), ref.sha256);
    return ref;
}

static void check_refused(struct stage *s, const struct plan_ref *ref, const char *reason) {
    struct error err = {0};
    struct plan *plan = NULL;
    log_setup(STDERR_FILENO, false, LOG_OFF);
    status st =
        plan_source_fetch(&s->source, &WANTED(STR("acme"), ref), &s->arena, NULL, &plan, &err);
    log_setup(STDERR_FILENO, false, LOG_INFO);
    CHECK(st != ST_OK, "%.*s passed, not %s", STR_ARG(ref->uri), reason);
    CHECK(strcmp(reason_name(err.reason), reason) == 0, "%.*s: %s, not %s: %s", STR_ARG(ref->uri),
          reason_name(err.reason), reason, err.msg);
    CHECK(plan == NULL && st == err.code);
}

/* ---- what works ---- */

/* WE-3.1-12 WE-3.1-13: exactly the given URI is requested, and the hash is over the raw bytes. */
TEST(plan_source_fetches_the_right_plan) {
    struct stage s;
    stage_open(&s);
    struct plan *plan = NULL;
    struct error err = {0};
    struct plan_ref ref = ref_to(&s, "/plan.json?a=b%20c&d=../x", GOOD);
    CHECK(plan_source_fetch(&s.source, &WANTED(STR("acme"), &ref), &s.arena, NULL, &plan, &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK(str_eq(plan->plan_id, STR("orders")) && plan->step_count == 1);
    CHECK(memcmp(plan->sha256, ref.sha256, SHA256_LEN) == 0);
    CHECK(was_asked_for(&s, "/plan.json?a=b%20c&d=../x"));
    CHECK(fake_server_requests(s.server) == 1);
    serve(&s, STR(GOOD "\n")); /* JSON of the same meaning, but other bytes */
    check_refused(&s, &ref, "PLAN_INTEGRITY_VALIDATION_FAILED");
    serve(&s, STR(" " GOOD));
    check_refused(&s, &ref, "PLAN_INTEGRITY_VALIDATION_FAILED");
    stage_close(&s);
}

/* WE-3.1-3: a bucket is reached through the endpoint of its scheme. */
TEST(plan_source_maps_buckets) {
    struct stage s;
    stage_open(&s);
    char base[64];
    (void)snprintf(base, sizeof base, "http://127.0.0.1:%d/{key}", fake_server_port(s.server));
    s.endpoint = (struct plan_endpoint){STR("s3"), str_c(base)};
    struct plan_ref ref = ref_to(&s, "", GOOD);
    ref.uri = STR("s3://bucket/plan.json");
    check_refused(&s, &ref, "PLAN_URI_NOT_ALLOWED"); /* no endpoint yet */
    CHECK(fake_server_connections(s.server) == 0);
    s.source.endpoints = &s.endpoint;
    s.source.endpoint_count = 1;
    struct plan *plan = NULL;
    struct error err = {0};
    CHECK(plan_source_fetch(&s.source, &WANTED(STR("acme"), &ref), &s.arena, NULL, &plan, &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK(was_asked_for(&s, "/plan.json"));
    stage_close(&s);
}

/* WE-3.1-6 WE-3.1-7: both optional members, with and without. */
TEST(plan_source_size_and_expiry) {
    struct stage s;
    stage_open(&s);
    struct plan *plan = NULL;
    struct error err = {0};
    struct plan_ref ref = ref_to(&s, "/plan.json", GOOD);
    ref.size_bytes = (int64_t)strlen(GOOD);
    ref.expires_us = 1;
    CHECK(plan_source_fetch(&s.source, &WANTED(STR("acme"), &ref), &s.arena, NULL, &plan, &err) ==
              ST_OK,
          "%s", err.msg);
    int requests = fake_server_requests(s.server);
    ref.expires_us = -1; /* past: refused before a fetch */
    check_refused(&s, &ref, "PLAN_REF_EXPIRED");
    ref.expires_us = 0;
    ref.size_bytes = (int64_t)PLAN_BYTES_MAX + 1;
    check_refused(&s, &ref, "PLAN_TOO_LARGE");
    CHECK(fake_server_requests(s.server) == requests);
    static const int64_t lies[] = {0, 1, -1, 100000};
    for (size_t i = 0; i < COUNT_OF(lies); i++) {
        ref.size_bytes = (int64_t)strlen(GOOD) + (lies[i] == 0 ? 1 : -lies[i]);
        if (ref.size_bytes < 0) ref.size_bytes = 0;
        check_refused(&s, &ref, "PLAN_SIZE_MISMATCH");
    }
    stage_close(&s);
}

/* ---- tampering ---- */

static char captured[64 * 1024];

/* What fetching `ref` writes to the log. */
static str logged(struct stage *s, const struct plan_ref *ref, const char *reason) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/log", test_dir());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    log_setup(fd, true, LOG_DEBUG);
    struct error err = {0};
    struct plan *plan = NULL;
    status st =
        plan_source_fetch(&s->source, &WANTED(STR("acme"), ref), &s->arena, NULL, &plan, &err);
    log_setup(STDERR_FILENO, false, LOG_INFO);
    ssize_t n = pread(fd, captured, sizeof captured, 0);
    close(fd);
    CHECK(n >= 0);
    CHECK((st == ST_OK) == (reason == NULL), "%s", err.msg);
    CHECK(reason == NULL || strcmp(reason_name(err.reason), reason) == 0, "%s",
          reason_name(err.reason));
    return str_n(captured, (size_t)n);
}

/* WE-3.1-14 WE-3.1-17: the code, and one line for audit with both hashes. */
TEST(plan_source_tells_of_tampering) {
    struct stage s;
    stage_open(&s);
    serve(&s, STR(OTHER));
    struct plan_ref ref = ref_to(&s, "/plan.json?signature=secret", GOOD);
    uint8_t actual[SHA256_LEN];
    char want[SHA256_HEX_LEN];
    char got[SHA256_HEX_LEN];
    sha256_of(STR(OTHER), actual);
    hex_encode(ref.sha256, SHA256_LEN, want);
    hex_encode(actual, SHA256_LEN, got);

    str line = logged(&s, &ref, "PLAN_INTEGRITY_VALIDATION_FAILED");
    CHECK(str_ends(line, STR("\n")) && !str_has(str_n(line.ptr, line.len - 1), '\n'));
    yyjson_val *root;
    struct error err = {0};
    struct json_limits limits = {sizeof captured, 2};
    CHECK(json_parse(line, limits, &s.arena, &root, &err) == ST_OK, "%s", err.msg);
    str text;
    CHECK(json_str(json_member(root, "level"), &text) && str_eq(text, STR("error")));
    CHECK(json_str(json_member(root, "expectedSha256"), &text));
    CHECK(str_eq(text, str_n(want, sizeof want)), "%.*s", STR_ARG(text));
    CHECK(json_str(json_member(root, "actualSha256"), &text));
    CHECK(str_eq(text, str_n(got, sizeof got)), "%.*s", STR_ARG(text));
    CHECK(json_str(json_member(root, "planId"), &text) && str_eq(text, STR("orders")));
    CHECK(memmem(line.ptr, line.len, "secret", 6) == NULL, "%.*s", STR_ARG(line));

    struct plan *plan = NULL;
    log_setup(STDERR_FILENO, false, LOG_OFF);
    status st =
        plan_source_fetch(&s.source, &WANTED(STR("acme"), &ref), &s.arena, NULL, &plan, &err);
    log_setup(STDERR_FILENO, false, LOG_INFO);
    CHECK(st == ST_INVALID && plan == NULL);
    CHECK(memmem(err.msg, strlen(err.msg), want, sizeof want) != NULL, "%s", err.msg);
    CHECK(memmem(err.msg, strlen(err.msg), got, sizeof got) != NULL, "%s", err.msg);
    stage_close(&s);
}

TEST(plan_source_content_may_not_change_under_a_hash) {
    struct stage s;
    stage_open(&s);
    struct plan_ref ref = ref_to(&s, "/plan.json", GOOD);
    CHECK(logged(&s, &ref, NULL).len == 0); /* a good plan is nothing to tell */
    serve(&s, STR(OTHER));
    check_refused(&s, &ref, "PLAN_INTEGRITY_VALIDATION_FAILED");
    serve(&s, STR(""));
    check_refused(&s, &ref, "PLAN_INTEGRITY_VALIDATION_FAILED");
    serve(&s, STR("not JSON")); /* nothing is parsed before the hash is right */
    check_refused(&s, &ref, "PLAN_INTEGRITY_VALIDATION_FAILED");
    serve(&s, STR(GOOD));
    CHECK(logged(&s, &ref, NULL).len == 0);
    stage_close(&s);
}

/* The reference says what it expects, and the plan must say the same. */
TEST(plan_source_plan_and_reference_agree) {
    static const struct {
        const char *plan, *reason;
    } cases[] = {
        {PLAN_TEXT("other", "7", "v1.3"), "PLAN_ID_MISMATCH"},
        {PLAN_TEXT("orders", "8", "v1.3"), "PLAN_ID_MISMATCH"},
        {PLAN_TEXT("orders", "7", "v1.2"), "PLAN_SCHEMA_VERSION_MISMATCH"},
        {PLAN_TEXT("orders", "7", "v9.0"), "PLAN_SCHEMA_VERSION_UNSUPPORTED"},
        {"not JSON", "JSON_SYNTAX"},
    };
    struct stage s;
    stage_open(&s);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        serve(&s, str_c(cases[i].plan));
        struct plan_ref ref = ref_to(&s, "/plan.json", cases[i].plan);
        check_refused(&s, &ref, cases[i].reason);
    }
    stage_close(&s);
}

/* ---- a server that does not help ---- */

TEST(plan_source_fetch_failures) {
    static const struct {
        const char *path;
        status want;
    } cases[] = {
        {"/missing", ST_NOT_FOUND}, {"/error", ST_RETRY},      {"/forbidden", ST_INVALID},
        {"/partial", ST_INVALID},   {"/redirect", ST_INVALID}, {"/inside", ST_INVALID},
    };
    struct stage s;
    stage_open(&s);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        struct plan *plan = NULL;
        struct plan_ref ref = ref_to(&s, cases[i].path, GOOD);
        CHECK(plan_source_fetch(&s.source, &WANTED(STR("acme"), &ref), &s.arena, NULL, &plan,
                                &err) == cases[i].want,
              "case %zu: %s", i, err.msg);
        CHECK(err.reason == REASON_PLAN_FETCH_FAILED, "case %zu: %s", i, reason_name(err.reason));
    }
    struct plan_ref ref = ref_to(&s, "/drip", GOOD);
    s.source.timeout_ms = 300;
    check_refused(&s, &ref, "PLAN_FETCH_FAILED");
    s.source.timeout_ms = 20000;
    ref.size_bytes = 1000;
    check_refused(&s, &ref, "PLAN_SIZE_MISMATCH"); /* it announced more */
    ref = ref_to(&s, "/endless", GOOD);
    ref.size_bytes = 1000; /* ends at the 1001st byte */
    check_refused(&s, &ref, "PLAN_SIZE_MISMATCH");
    char uri[64];
    s.rules[0].port = fake_free_port();
    (void)snprintf(uri, sizeof uri, "http://127.0.0.1:%d/", s.rules[0].port);
    ref.uri = str_c(uri);
    check_refused(&s, &ref, "PLAN_FETCH_FAILED"); /* connection refused */
    stage_close(&s);
}

TEST(plan_source_largest_plan) {
    struct stage s;
    stage_open(&s);
    struct plan_ref ref = ref_to(&s, "/endless", GOOD);
    check_refused(&s, &ref, "PLAN_TOO_LARGE");
    stage_close(&s);
}

/* ---- the allowlist comes first ---- */

static int fetches;
static status recording_fetch(const struct client_request *request, struct arena *arena,
                              struct client_response *out, struct error *err) {
    UNUSED(request);
    UNUSED(arena);
    UNUSED(out);
    fetches++;
    return error_at(err, REASON_HTTP_FAILED, "", "recorded");
}

/* WE-3.1.1-3 WE-3.1.1-6: zero fetches, and so zero look-ups: only the fetcher looks names up. */
TEST(plan_source_refuses_before_any_fetch) {
    static const char *const uris[] = {
        "http://169.254.169.254/plan.json",
        "http://evil.example/plan.json",
        "https://127.0.0.1/plan.json",
        "file:///etc/passwd",
        "FTP://127.0.0.1/plan.json",
        "gopher://127.0.0.1/",
        "http://metadata.google.internal/",
        "http://[::ffff:169.254.169.254]/",
        "s3://other/plan.json",
        "gs://bucket/plan.json",
        "http://localhost/plan.json",
        "not a uri",
        "plan:sha256:00",
        "http://user@127.0.0.1/",
    };
    struct stage s;
    stage_open(&s);
    s.source.fetch = recording_fetch;
    fetches = 0;
    struct plan_ref ref = ref_to(&s, "/plan.json", GOOD);
    str good = ref.uri;
    for (size_t i = 0; i < COUNT_OF(uris); i++) {
        ref.uri = str_c(uris[i]);
        check_refused(&s, &ref, "PLAN_URI_NOT_ALLOWED");
    }
    ref.uri = good;
    ref.schema_version = STR("v9.0");
    check_refused(&s, &ref, "PLAN_SCHEMA_VERSION_UNSUPPORTED");
    ref.schema_version = STR("v1.3");
    ref.expires_us = -1;
    check_refused(&s, &ref, "PLAN_REF_EXPIRED");
    CHECK(fetches == 0);
    ref.expires_us = 0;
    check_refused(&s, &ref, "PLAN_FETCH_FAILED"); /* the recorder does work */
    CHECK(fetches == 1 && fake_server_connections(s.server) == 0);
    stage_close(&s);
}

/* WE-3.1.1-6: a redirect to a refused URI is not followed; nor is one to an allowed URI. */
TEST(plan_source_follows_no_redirect) {
    struct stage s;
    stage_open(&s);
    struct plan_ref ref = ref_to(&s, "/redirect", GOOD);
    check_refused(&s, &ref, "PLAN_FETCH_FAILED");
    CHECK(fake_server_requests(s.server) == 1);
    ref = ref_to(&s, "/inside", GOOD);
    check_refused(&s, &ref, "PLAN_FETCH_FAILED");
    CHECK(fake_server_requests(s.server) == 2);
    stage_close(&s);
}

/* A name on the list that turns out to be an address which nobody allowed. */
TEST(plan_source_judges_the_address_of_a_name) {
    struct stage s;
    stage_open(&s);
    char uri[64];
    (void)snprintf(uri, sizeof uri, "http://localhost:%d/plan.json", fake_server_port(s.server));
    s.rules[0].host = STR("localhost");
    struct plan_ref ref = ref_to(&s, "", GOOD);
    ref.uri = str_c(uri);
    struct plan *plan = NULL;
    struct error err = {0};
    CHECK(plan_source_fetch(&s.source, &WANTED(STR("acme"), &ref), &s.arena, NULL, &plan, &err) ==
              ST_OK,
          "%s", err.msg);
    int connections = fake_server_connections(s.server);
    /* The same place through a template whose host is not fixed: only public addresses. */
    char base[64];
    (void)snprintf(base, sizeof base, "http://{bucket}:%d/{key}", fake_server_port(s.server));
    s.endpoint = (struct plan_endpoint){STR("s3"), str_c(base)};
    s.source.endpoints = &s.endpoint;
    s.source.endpoint_count = 1;
    s.rules[1].host = STR("*");
    static const char *const inside[] = {"s3://localhost/plan.json", "s3://127.0.0.1/plan.json"};
    for (size_t i = 0; i < COUNT_OF(inside); i++) {
        ref.uri = str_c(inside[i]);
        check_refused(&s, &ref, "PLAN_URI_NOT_ALLOWED");
    }
    CHECK(fake_server_connections(s.server) == connections);
    stage_close(&s);
}

/* ---- the local store ---- */

enum { URI_ROOM = 128 };
static struct plan_ref ref_by_hash(struct stage *s, char uri[URI_ROOM]) {
    struct plan_ref ref = ref_to(s, "", GOOD);
    char hex[SHA256_HEX_LEN + 1] = "";
    hex_encode(ref.sha256, SHA256_LEN, hex);
    (void)snprintf(uri, URI_ROOM, "plan:sha256:%s", hex);
    ref.uri = str_c(uri);
    return ref;
}

TEST(plan_store_keeps_plans_by_hash) {
    struct stage s;
    stage_open(&s);
    char folder[512];
    (void)snprintf(folder, sizeof folder, "%s/a/plans", test_dir());
    char uri[URI_ROOM];
    struct plan_ref ref = ref_by_hash(&s, uri);
    check_refused(&s, &ref, "PLAN_URI_NOT_ALLOWED"); /* no store is configured */
    s.source.plans_folder = str_c(folder);
    check_refused(&s, &ref, "PLAN_NOT_FOUND");

    uint8_t hash[SHA256_LEN] = {0};
    struct error err = {0};
    struct plan *plan = NULL;
    for (int i = 0; i < 2; i++) /* the second time changes nothing */
        CHECK(plan_store_put(str_c(folder), STR(GOOD), hash, &err) == ST_OK, "%s", err.msg);
    CHECK(memcmp(hash, ref.sha256, SHA256_LEN) == 0);
    CHECK(plan_source_fetch(&s.source, &WANTED(STR("acme"), &ref), &s.arena, NULL, &plan, &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK(plan->bytes == strlen(GOOD));

    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s.json", folder, uri + sizeof "plan:sha256:" - 1);
    CHECK(file_replace(str_c(path), STR(OTHER), &err) == ST_OK, "%s", err.msg);
    check_refused(&s, &ref, "PLAN_INTEGRITY_VALIDATION_FAILED");
    CHECK(plan_store_put(str_c(folder), STR(GOOD), hash, &err) == ST_OK, "%s", err.msg); /* mends */
    CHECK(plan_source_fetch(&s.source, &WANTED(STR("acme"), &ref), &s.arena, NULL, &plan, &err) ==
              ST_OK,
          "%s", err.msg);
    CHECK(fake_server_connections(s.server) == 0);
    stage_close(&s);
}

/* A store of one tenant. */
struct keeper {
    str tenant_id, bytes;
    int asked;
};
static status kept_by(struct ledger *reader, str tenant_id, const uint8_t sha256[SHA256_LEN],
                      struct arena *arena, str *bytes, struct error *err) {
    struct keeper *k = (struct keeper *)(void *)reader; /* what stands for a store here */
    uint8_t hash[SHA256_LEN];
    UNUSED(arena);
    k->asked++;
    sha256_of(k->bytes, hash);
    if (!str_eq(tenant_id, k->tenant_id) || memcmp(hash, sha256, SHA256_LEN) != 0)
        return error_set(err, ST_NOT_FOUND, "no");
    *bytes = k->bytes;
    return ST_OK;
}

/* The folder is for every tenant, and comes first; what is stored elsewhere is one tenant's. */
TEST(plan_source_asks_for_the_tenant) {
    struct stage s;
    struct error err = {0};
    struct plan *plan = NULL;
    struct keeper keeper = {.tenant_id = STR("acme"), .bytes = STR(GOOD)};
    bool open = true;
    stage_open(&s);
    char folder[512];
    (void)snprintf(folder, sizeof folder, "%s/plans", test_dir());
    char uri[URI_ROOM];
    struct plan_ref ref = ref_by_hash(&s, uri);
    s.source.plans_folder = str_c(folder);
    s.source.stored = kept_by;
    struct ledger *store = (struct ledger *)(void *)&keeper;
    CHECK(plan_source_fetch(&s.source, &STORED(STR("globex"), &ref, store), &s.arena, &open, &plan,
                            &err) == ST_NOT_FOUND &&
          err.reason == REASON_PLAN_NOT_FOUND && open);
    CHECK(plan_source_fetch(&s.source, &STORED(STR("acme"), &ref, store), &s.arena, &open, &plan, &err) ==
              ST_OK &&
          !open && keeper.asked == 2);

    CHECK(plan_store_put(str_c(folder), STR(GOOD), ref.sha256, &err) == ST_OK, "%s", err.msg);
    CHECK(plan_source_fetch(&s.source, &STORED(STR("globex"), &ref, store), &s.arena, &open, &plan,
                            &err) == ST_OK &&
          open && keeper.asked == 2);
    struct plan_local local = {0};
    CHECK(plan_source_local(&s.source, &STORED(STR("globex"), &ref, store), strlen(GOOD), &s.arena, &local,
                            &err) == ST_OK &&
          str_eq(local.bytes, STR(GOOD)) && local.open);
    CHECK(plan_source_local(&s.source, &STORED(STR("globex"), &ref, store), 10, &s.arena, &local, &err) ==
              ST_OK &&
          !local.bytes.ptr && local.open && keeper.asked == 2);
    str bytes = STR_NONE;
    CHECK(plan_source_file(&ref, local.path, &s.arena, &bytes, &err) == ST_OK &&
          str_eq(bytes, STR(GOOD)));
    stage_close(&s);
}

TEST(plan_store_says_why_it_cannot) {
    char path[512];
    struct error err = {0};
    uint8_t hash[SHA256_LEN];
    (void)snprintf(path, sizeof path, "%s/file", test_dir());
    CHECK(file_replace(str_c(path), STR("x"), &err) == ST_OK);
    CHECK(plan_store_put(str_c(path), STR(GOOD), hash, &err) != ST_OK); /* not a folder */
    CHECK(strstr(err.msg, "could not store a plan") != NULL, "%s", err.msg);
    CHECK(plan_store_put(str_c(path), str_n("", PLAN_BYTES_MAX + 1), hash, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_PLAN_TOO_LARGE);
}
