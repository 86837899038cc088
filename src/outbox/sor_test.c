/* SOR_UPDATE, against a server of the tests' own in place of the system of record. */
#include "base/hash.h"
#include "base/json.h"
#include "outbox/depot_test.h"
#include "test.h"

#define SPEC                                                                                       \
    "{\"entity_type\":\"CASE\",\"entity_id\":\"case-\\\"uuid\",\"change\":{\"status\": "           \
    "\"IN_PROGRESS\",\"a\":1},\"evidence_pack\":{\"claims\":[1]},\"idempotency_key\":\"k\"}"

static str text_at(yyjson_val *obj, const char *name) {
    str text = STR_NONE;
    CHECK(json_str(json_member(obj, name), &text), "%s", name);
    return text;
}

/* CE-9.3-1, CE-9.3-2, CE-9.3-3, CE-10.3-2: all members arrive; the write has its six, and the
 * tenant and the evidence are passed with it. */
TEST(sor_proposes_a_write) {
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    depot_open(&b, &options);
    depot_run(&b, "SOR_UPDATE", SPEC);
    CHECK(b.ok, "%s %s", b.code, b.message);
    CHECK(strcmp(b.result, "{\"ok\":true}") == 0, "%s", b.result);
    CHECK(strncmp(b.head, "POST /json ", 11) == 0, "%s", b.head);
    CHECK(depot_has_header(&b, "X-Idempotency-Key: run-456-webhook-order-123"), "%s", b.head);
    CHECK(depot_has_header(&b, "Content-Type: application/json"), "%s", b.head);
    yyjson_val *root = NULL;
    struct error err = {0};
    struct json_limits limits = {sizeof b.body, 16};
    CHECK(json_parse(str_c(b.body), limits, &b.arena, &root, &err) == ST_OK, "%s", b.body);
    CHECK(yyjson_obj_size(root) == 4);
    CHECK(str_eq(text_at(root, "tenant_id"), STR("tenant-1")));
    CHECK(str_eq(text_at(root, "entity_type"), STR("CASE")));
    CHECK(str_eq(json_text(json_member(root, "evidence_pack"), &b.arena), STR("{\"claims\":[1]}")));
    yyjson_val *write = json_member(root, "write");
    CHECK(yyjson_obj_size(write) == 6);
    CHECK(str_eq(text_at(write, "entity_id"), STR("case-\"uuid")));
    CHECK(str_eq(json_text(json_member(write, "change"), &b.arena),
                 STR("{\"status\":\"IN_PROGRESS\",\"a\":1}")));
    CHECK(str_eq(text_at(write, "source_id"), STR("orchestrator:run-456-webhook-order-123")));
    uint8_t hash[SHA256_LEN];
    char hex[SHA256_HEX_LEN];
    sha256_of(STR("{\"a\":1,\"status\":\"IN_PROGRESS\"}"), hash);
    hex_encode(hash, sizeof hash, hex);
    CHECK(str_eq(text_at(write, "source_hash"), str_n(hex, sizeof hex)));
    CHECK(str_eq(text_at(write, "timestamp"), STR("2026-02-16T08:00:00.123456Z")));
    CHECK(yyjson_is_false(json_member(write, "inference")));
    depot_close(&b);
}

/* CE-9.3-3: what the policy refuses is a failure. */
TEST(sor_refusals_are_failures) {
    static const struct {
        const char *path, *code, *message;
    } cases[] = {
        {"http://127.0.0.1:%d/403", "HTTP_STATUS", "SoR update failed: 403 Forbidden"},
        {"http://127.0.0.1:%d/409", "HTTP_STATUS", "SoR update failed: 409 Conflict"},
        {"http://127.0.0.1:%d/silent", "TIMEOUT", "SoR update failed: "},
        {NULL, "SOR_NOT_CONFIGURED", "there is no system of record"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct depot b;
        struct deliverer_options options = depot_options(&b);
        options.sor_url = cases[i].path ? depot_text(&b, cases[i].path) : STR_NONE;
        options.timeout_ms = 500;
        depot_open(&b, &options);
        depot_run(&b, "SOR_UPDATE", SPEC);
        CHECK(!b.ok && strcmp(b.code, cases[i].code) == 0, "case %zu: %s %s", i, b.code, b.message);
        CHECK(str_starts(str_c(b.message), str_c(cases[i].message)), "case %zu: %s", i, b.message);
        depot_close(&b);
    }
}

TEST(sor_refuses_what_is_wrong) {
    static const struct {
        const char *spec, *has;
    } cases[] = {
        {"{}", "entity_type"},
        {"{\"entity_type\":\"\",\"entity_id\":\"x\",\"change\":{},\"evidence_pack\":{}}",
         "entity_type"},
        {"{\"entity_type\":\"C\",\"entity_id\":1,\"change\":{},\"evidence_pack\":{}}", "entity_id"},
        {"{\"entity_type\":\"C\",\"entity_id\":\"x\",\"evidence_pack\":{}}", "change"},
        {"{\"entity_type\":\"C\",\"entity_id\":\"x\",\"change\":[],\"evidence_pack\":{}}",
         "change"},
        {"{\"entity_type\":\"C\",\"entity_id\":\"x\",\"change\":{}}", "evidence_pack"},
        {"{\"entity_type\":\"C\",\"entity_id\":\"x\",\"change\":{},\"evidence_pack\":{},"
         "\"tenant_id\":\"other\"}",
         "tenant_id"},
    };
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    depot_open(&b, &options);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        depot_run(&b, "SOR_UPDATE", cases[i].spec);
        CHECK(strcmp(b.code, "PAYLOAD_INVALID") == 0, "case %zu: %s %s", i, b.code, b.message);
        CHECK(strstr(b.message, cases[i].has) != NULL, "case %zu: %s", i, b.message);
    }
    CHECK(fake_server_connections(b.server) == 0);
    depot_close(&b);
}

TEST(sor_url_is_checked_at_the_start) {
    static const char *const urls[] = {"", "s3://bucket", "http://169.254.169.254/",
                                       "http://u:p@127.0.0.1/", "http://*/"};
    uv_loop_t loop;
    CHECK(uv_loop_init(&loop) == 0);
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        struct deliverer_options options = {.sor_url = str_c(urls[i])};
        struct deliverer *d = NULL;
        struct error err = {0};
        CHECK(deliverer_open(&loop, &options, &d, &err) == ST_INVALID, "case %zu", i);
        CHECK(strstr(err.msg, "system of record") != NULL && !d, "case %zu: %s", i, err.msg);
    }
    CHECK(uv_loop_close(&loop) == 0);
}
