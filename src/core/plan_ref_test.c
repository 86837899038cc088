#include "core/plan_ref.h"

#include "base/time.h"
#include "core/plan.h"
#include "test.h"

#define HEX64 "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
#define X50 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X256 X50 X50 X50 X50 X50 "xxxxxx"

static struct arena arena_make(void) {
    struct arena a;
    arena_init(&a, 4096, (size_t)1 << 20);
    return a;
}

/* ---- shape ---- */

struct member {
    const char *name, *raw;
};
static const struct member members[] = {
    {"uri", "\"https://plans.example.com/orders.json\""},
    {"sha256", "\"" HEX64 "\""},
    {"schemaVersion", "\"v1.3\""},
    {"planId", "\"orders\""},
    {"planVersion", "\"7\""},
};

static void put_member(struct buf *out, const char *name, const char *raw) {
    if (raw == NULL) return; /* left out */
    buf_put_char(out, out->len == 0 ? '{' : ',');
    buf_put_json_str(out, str_c(name));
    buf_put_char(out, ':');
    buf_put_c(out, raw);
}

/* A good reference with one member replaced (raw NULL: removed), or added at the end. */
static status parse_with(const char *name, const char *raw, struct plan_ref *out,
                         struct error *err) {
    static struct arena arena; /* what the last call gave back lives until the next */
    arena_release(&arena);
    arena = arena_make();
    struct buf json;
    buf_init(&json, (size_t)1 << 16);
    bool replaced = name == NULL;
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        bool hit = name != NULL && strcmp(members[i].name, name) == 0;
        put_member(&json, members[i].name, hit ? raw : members[i].raw);
        replaced = replaced || hit;
    }
    if (!replaced) put_member(&json, name, raw);
    buf_put_char(&json, '}');
    status st = plan_ref_parse(buf_str(&json), &arena, out, err);
    buf_release(&json);
    return st;
}

TEST(plan_ref_parses) {
    struct plan_ref ref;
    struct error err = {0};
    CHECK(parse_with(NULL, NULL, &ref, &err) == ST_OK, "%s", err.msg);
    CHECK(str_eq(ref.uri, STR("https://plans.example.com/orders.json")));
    CHECK(ref.sha256[0] == 0x9f && ref.sha256[31] == 0x08);
    CHECK(str_eq(ref.schema_version, STR("v1.3")));
    CHECK(str_eq(ref.plan_id, STR("orders")) && str_eq(ref.plan_version, STR("7")));
    CHECK(ref.size_bytes == -1 && ref.expires_us == 0); /* both are optional */
    CHECK(parse_with("sizeBytes", "1234", &ref, &err) == ST_OK && ref.size_bytes == 1234);
    CHECK(parse_with("sizeBytes", "0", &ref, &err) == ST_OK && ref.size_bytes == 0);
    CHECK(parse_with("expiresAt", "\"1970-01-01T00:00:01.5Z\"", &ref, &err) == ST_OK);
    CHECK(ref.expires_us == 1500000);
    CHECK(parse_with("expiresAt", "\"1970-01-01T00:00:00Z\"", &ref, &err) == ST_OK);
    CHECK(ref.expires_us != 0); /* not: never */
}

/* WE-3.1-4 WE-3.1-8: what is missing or malformed is refused, and named. */
TEST(plan_ref_says_what_is_wrong) {
    static const struct {
        const char *name, *raw, *where, *why;
    } cases[] = {
        {"uri", NULL, "/uri", "is missing"},
        {"sha256", NULL, "/sha256", "is missing"},
        {"schemaVersion", NULL, "/schemaVersion", "is missing"},
        {"planId", NULL, "/planId", "is missing"},
        {"planVersion", NULL, "/planVersion", "is missing"},
        {"uri", "7", "/uri", "must be a string"},
        {"uri", "\"\"", "/uri", "must not be empty"},
        {"uri", "null", "/uri", "must be a string"},
        {"sha256", "1", "/sha256", "must be a string"},
        {"sha256", "\"\"", "/sha256", "64 lower-case"},
        {"sha256", "\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a0\"", "/sha256",
         "64 lower-case"}, /* 63 */
        {"sha256", "\"" HEX64 "0\"", "/sha256", "64 lower-case"},
        {"sha256", "\"9F86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"",
         "/sha256", "64 lower-case"},
        {"sha256", "\"sha256:86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00\"",
         "/sha256", "64 lower-case"},
        {"schemaVersion", "1.3", "/schemaVersion", "must be a string"},
        {"schemaVersion", "\"\"", "/schemaVersion", "must not be empty"},
        {"planId", "{}", "/planId", "must be a string"},
        {"planId", "\"\"", "/planId", "must not be empty"},
        {"planId", "\"a|b\"", "/planId", "'|'"},
        {"planId", "\"" X256 "\"", "/planId", "at most 255"},
        {"planVersion", "7", "/planVersion", "must be a string"},
        {"planVersion", "\"a|b\"", "/planVersion", "'|'"},
        {"sizeBytes", "-1", "/sizeBytes", "whole number"},
        {"sizeBytes", "1.5", "/sizeBytes", "whole number"},
        {"sizeBytes", "1e3", "/sizeBytes", "whole number"},
        {"sizeBytes", "\"10\"", "/sizeBytes", "whole number"},
        {"sizeBytes", "null", "/sizeBytes", "whole number"},
        {"sizeBytes", "99999999999999999999", "/sizeBytes", "whole number"},
        {"expiresAt", "\"tomorrow\"", "/expiresAt", "RFC 3339"},
        {"expiresAt", "\"2026-02-16T08:00:00+01:00\"", "/expiresAt", "RFC 3339"},
        {"expiresAt", "1700000000", "/expiresAt", "RFC 3339"},
        {"plan", "{}", "/plan", "unknown member \"plan\""},
        {"Uri", "\"x\"", "/Uri", "unknown member"},
        {"a/b~c", "1", "/a~1b~0c", "unknown member"},
        {"steps", "[]", "/steps", "unknown member"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct plan_ref ref = {0};
        struct error err = {0};
        CHECK(parse_with(cases[i].name, cases[i].raw, &ref, &err) == ST_INVALID, "case %zu", i);
        CHECK(err.reason == REASON_PLAN_REF_INVALID, "case %zu: %s", i, reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
        CHECK(strstr(err.msg, cases[i].why) != NULL, "case %zu: %s", i, err.msg);
        CHECK(ref.uri.ptr == NULL, "case %zu", i);
    }
}

TEST(plan_ref_is_a_json_object) {
    static const struct {
        const char *in, *reason;
    } cases[] = {
        {"", "JSON_SYNTAX"},
        {"[]", "PLAN_REF_INVALID"},
        {"\"https://plans.example.com/\"", "PLAN_REF_INVALID"},
        {"null", "PLAN_REF_INVALID"},
        {"{\"uri\":\"a\",\"uri\":\"b\"}", "JSON_DUPLICATE_KEY"},
        {"{\"uri\":[[[]]]}", "JSON_DEPTH"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a = arena_make();
        struct plan_ref ref;
        struct error err = {0};
        CHECK(plan_ref_parse(str_c(cases[i].in), &a, &ref, &err) != ST_OK, "case %zu", i);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(err.reason));
        arena_release(&a);
    }
}

TEST(plan_ref_json_round_trip) {
    static const char *const texts[] = {
        "{\"uri\":\"s3://b/k\",\"sha256\":\"" HEX64 "\",\"schemaVersion\":\"v1.2\","
        "\"planId\":\"a \\\"b\\\"\",\"planVersion\":\"7\"}",
        "{\"uri\":\"plan:sha256:" HEX64 "\",\"sha256\":\"" HEX64 "\",\"schemaVersion\":\"v1.3\","
        "\"planId\":\"orders\",\"planVersion\":\"7\",\"sizeBytes\":12,"
        "\"expiresAt\":\"2026-02-16T08:00:00.123456Z\"}",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct arena a = arena_make();
        struct plan_ref ref;
        struct error err = {0};
        CHECK(plan_ref_parse(str_c(texts[i]), &a, &ref, &err) == ST_OK, "%s", err.msg);
        struct buf out;
        buf_init(&out, 4096);
        plan_ref_json(&ref, &out);
        CHECK(str_eq(buf_str(&out), str_c(texts[i])), "%.*s", STR_ARG(buf_str(&out)));
        buf_release(&out);
        arena_release(&a);
    }
}

/* ---- what is refused before a fetch ---- */

static const struct plan_endpoint endpoints[] = {
    {STR_LIT("s3"), STR_LIT("https://{bucket}.s3.eu-west-1.amazonaws.example/{key}")},
    {STR_LIT("azure"), STR_LIT("https://{account}.blob.example/{container}/{blob}?sv=1")},
};

static str location_url; /* of the last reference that passed */
static bool location_exact;

/* The URI (and the hash HEX64) against everything that the rules in the test allow. */
static status check_uri(const char *uri, bool allow_private, bool local, struct error *err) {
    static struct arena arena;
    arena_release(&arena);
    arena = arena_make();
    static const char *const allowed[] = {"https://plans.example.com", "http://127.0.0.1:9",
                                          "s3://bucket/plans",         "gs://bucket",
                                          "azure://account/container", "s3://127.0.0.1"};
    struct guard_rule rules[COUNT_OF(allowed)];
    for (size_t i = 0; i < COUNT_OF(allowed); i++)
        CHECK(guard_rule_parse(str_c(allowed[i]), &arena, &rules[i], err) == ST_OK, "%s", err->msg);
    struct guard guard = {rules, COUNT_OF(rules), allow_private};
    struct plan_policy policy = {&guard, endpoints, COUNT_OF(endpoints), local};
    struct plan_ref ref = {.uri = str_c(uri),
                           .schema_version = STR(PLAN_SCHEMA_VERSION),
                           .plan_id = STR("orders"),
                           .plan_version = STR("7"),
                           .size_bytes = -1};
    CHECK(hex_decode(STR(HEX64), ref.sha256, SHA256_LEN));
    struct plan_location location = {0};
    status st = plan_ref_check(&ref, 0, &policy, &arena, &location, err);
    location_url = location.local ? STR("(local)") : location.url;
    location_exact = location.exact;
    return st;
}

/* WE-3.1-3: an allowed URI is fetched verbatim; clouds through their endpoint. */
TEST(plan_ref_locates_what_is_allowed) {
    static const struct {
        const char *uri, *url;
        bool exact;
    } cases[] = {
        {"https://plans.example.com/a/B%20c.json?x=1", "https://plans.example.com/a/B%20c.json?x=1",
         true},
        {"HTTPS://Plans.example.com/x", "HTTPS://Plans.example.com/x", true},
        {"http://127.0.0.1:9/x", "http://127.0.0.1:9/x", true},
        {"s3://bucket/plans/a/b.json",
         "https://bucket.s3.eu-west-1.amazonaws.example/plans/a/b.json", false},
        {"azure://account/container/a/b.json",
         "https://account.blob.example/container/a/b.json?sv=1", false},
        {"plan:sha256:" HEX64, "(local)", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        CHECK(check_uri(cases[i].uri, true, true, &err) == ST_OK, "case %zu: %s", i, err.msg);
        CHECK(str_eq(location_url, str_c(cases[i].url)), "case %zu: %.*s", i,
              STR_ARG(location_url));
        CHECK(location_exact == cases[i].exact, "case %zu", i);
    }
}

/* WE-3.1.1-3 WE-3.1.1-4 WE-3.1.1-5: one code for all of them. */
TEST(plan_ref_refuses_locations) {
    static const struct {
        const char *uri, *why;
    } cases[] = {
        {"https://evil.org/plans.example.com", "host"},
        {"https://plans.example.com.evil.org/", "host"},
        {"https://user@evil.org/", "user"},
        {"http://plans.example.com/", "host"},
        {"not a uri", "not a URL"},
        {"/etc/passwd", "not a URL"},
        {"file:///etc/passwd", "never fetched"},
        {"FiLe:///etc/passwd", "never fetched"},
        {"ftp://plans.example.com/x", "never fetched"},
        {"gopher://plans.example.com/x", "never fetched"},
        {"http://169.254.169.254/", "never fetched"},
        {"http://[fe80::1]/", "never fetched"},
        {"http://[::ffff:169.254.169.254]/", "never fetched"},
        {"http://2852039166/", "never fetched"},
        {"http://0xa9fea9fe/", "never fetched"},
        {"http://0251.0376.0251.0376/", "never fetched"},
        {"http://metadata.google.internal/", "never fetched"},
        {"http://127.0.0.1:9/x", "private"}, /* it is listed, but private may not be reached */
        {"s3://bucket/other/x", "path"},
        {"s3://bucket/plans/../other/x", "path"},
        {"s3://other/plans/x", "host"},
        {"s3://127.0.0.1/", "no {key}"},
        {"gs://bucket/x", "no endpoint is configured for the scheme \"gs\""},
        {"azure://account/container", "no {blob}"},
        {"azure://account/container/", "no {blob}"},
        {"PLAN:sha256:" HEX64, "never fetched"},
        {"plan:sha256:" HEX64, "no local plan store"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        CHECK(check_uri(cases[i].uri, false, false, &err) == ST_INVALID, "%s", cases[i].uri);
        CHECK(err.reason == REASON_PLAN_URI_NOT_ALLOWED, "%s: %s", cases[i].uri,
              reason_name(err.reason));
        CHECK(strcmp(err.where, "/uri") == 0, "%s", cases[i].uri);
        CHECK(strstr(err.msg, cases[i].why) != NULL, "%s: %s", cases[i].uri, err.msg);
    }
}

TEST(plan_ref_local_uri_is_its_hash) {
    static const char *const bad[] = {
        "plan:sha256:8f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "plan:sha256:",
        "plan:",
        "plan:sha1:x",
        "plan:sha256:" HEX64 "/..",
        "plan:" HEX64,
        "plan://sha256:" HEX64,
        "plan:sha256:../../../../etc/passwd",
    };
    struct error err = {0};
    CHECK(check_uri("plan:sha256:" HEX64, false, true, &err) == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        CHECK(check_uri(bad[i], false, true, &err) == ST_INVALID, "%s", bad[i]);
        CHECK(err.reason == REASON_PLAN_URI_NOT_ALLOWED, "%s: %s", bad[i], reason_name(err.reason));
    }
}

/* A template cannot be led where no URL may go. */
TEST(plan_ref_endpoints_are_guarded) {
    static const struct {
        const char *base_url, *uri;
        bool allow_private, ok, exact;
    } cases[] = {
        {"https://{bucket}/{key}", "s3://example.com/x", true, true, false},
        {"https://{bucket}/{key}", "s3://169.254.169.254/x", true, false, false},
        {"https://{bucket}/{key}", "s3://2852039166/x", true, false, false},
        {"https://{bucket}/{key}", "s3://metadata.google.internal/x", true, false, false},
        {"https://{bucket}/{key}", "s3://127.0.0.1/x", true, false, false},
        {"https://{bucket}/{key}", "s3://localhost/x", true, false, false},
        {"http://127.0.0.1:9000/{bucket}/{key}", "s3://b/x", true, true, true},
        {"http://127.0.0.1:9000/{bucket}/{key}", "s3://b/x", false, false, false},
        {"http://127.0.0.1:9000/{bucket}/{key}", "s3://b/../other/x", true, false, false},
        {"http://127.0.0.1:9000/{bucket}/{key}", "s3://b/%2e%2e/other/x", true, false, false},
        {"http://127.0.0.1:9000/{bucket}/{key}", "s3://b/x?acl", true, false, false},
        {"http://169.254.169.254/{bucket}/{key}", "s3://b/x", true, false, false},
        {"file:///{bucket}/{key}", "s3://b/x", true, false, false},
        {"s3://{bucket}/{key}", "s3://b/x", true, false, false},
        {"https://h.example/{container}/{key}", "s3://b/x", true, false, false},
        {"", "s3://b/x", true, false, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a = arena_make();
        struct error err = {0};
        struct guard_rule rule = {.scheme = STR("s3"), .host = STR("*")};
        struct guard guard = {&rule, 1, cases[i].allow_private};
        struct plan_endpoint endpoint = {STR("s3"), str_c(cases[i].base_url)};
        struct plan_policy policy = {&guard, &endpoint, 1, false};
        struct plan_ref ref = {.uri = str_c(cases[i].uri), .schema_version = STR("v1.3")};
        struct plan_location location = {0};
        status st = plan_ref_check(&ref, 0, &policy, &a, &location, &err);
        CHECK((st == ST_OK) == cases[i].ok, "case %zu: %s", i, err.msg);
        CHECK(st == ST_OK || err.reason == REASON_PLAN_URI_NOT_ALLOWED, "case %zu", i);
        CHECK(location.exact == cases[i].exact, "case %zu", i);
        arena_release(&a);
    }
}

/* WE-3.1-7 WE-3.1-9: the order of the checks: version, then expiry, then location. */
TEST(plan_ref_check_order) {
    static const struct {
        const char *version, *uri;
        int64_t expires_us;
        const char *reason; /* NULL: passes */
    } cases[] = {
        {"v1.3", "https://h/x", 0, NULL},
        {"v1.3", "https://h/x", 1001, NULL},               /* the last good moment, */
        {"v1.3", "https://h/x", 1000, "PLAN_REF_EXPIRED"}, /* and the first bad one */
        {"v1.3", "https://evil/x", 999, "PLAN_REF_EXPIRED"},
        {"v1.3", "https://evil/x", 0, "PLAN_URI_NOT_ALLOWED"},
        {"v9.0", "https://evil/x", 999, "PLAN_SCHEMA_VERSION_UNSUPPORTED"},
        {"v9.0", "https://h/x", 0, "PLAN_SCHEMA_VERSION_UNSUPPORTED"},
        {"v1.99", "https://h/x", 0, "PLAN_SCHEMA_VERSION_UNSUPPORTED"},
        {"1.2", "https://h/x", 0, "PLAN_SCHEMA_VERSION_UNSUPPORTED"},
        {"vX", "https://h/x", 0, "PLAN_SCHEMA_VERSION_UNSUPPORTED"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a = arena_make();
        struct error err = {0};
        struct guard_rule rule = {.scheme = STR("https"), .host = STR("h")};
        struct guard guard = {&rule, 1, false};
        struct plan_policy policy = {&guard, NULL, 0, false};
        struct plan_ref ref = {.uri = str_c(cases[i].uri),
                               .schema_version = str_c(cases[i].version),
                               .expires_us = cases[i].expires_us};
        struct plan_location location;
        status st = plan_ref_check(&ref, 1000, &policy, &a, &location, &err);
        CHECK((st == ST_OK) == (cases[i].reason == NULL), "case %zu: %s", i, err.msg);
        if (cases[i].reason != NULL)
            CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "case %zu: %s", i,
                  reason_name(err.reason));
        arena_release(&a);
    }
}

TEST(plan_ref_without_a_guard_nothing_is_allowed) {
    struct arena a = arena_make();
    struct error err = {0};
    struct plan_policy policy = {0};
    struct plan_ref ref = {.uri = STR("https://h/x"), .schema_version = STR("v1.3")};
    struct plan_location location;
    CHECK(plan_ref_check(&ref, 0, &policy, &a, &location, &err) == ST_INVALID);
    CHECK(err.reason == REASON_PLAN_URI_NOT_ALLOWED);
    arena_release(&a);
}
