/* WEBHOOK_CALL and API_CALL, against a server of the tests' own. */
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/json.h"
#include "base/time.h"
#include "outbox/depot_test.h"
#include "test.h"

static void open_usual(struct depot *b) {
    struct deliverer_options options = depot_options(b);
    depot_open(b, &options);
}

/* CE-9.1-2, CE-9.1-4, CE-10.3-2: the example of the contract arrives with its method, its headers,
 * the key and its body as JSON, and the answer's JSON is the result. */
TEST(webhook_sends_the_payload_and_the_key) {
    struct depot b;
    open_usual(&b);
    depot_run(&b, "WEBHOOK_CALL",
              "{\"url\":\"http://127.0.0.1:%d/json\",\"method\":\"PUT\","
              "\"headers\":{\"Authorization\":\"Bearer token\",\"X-Other\":\"a b\"},"
              "\"body\":{\"order_id\": \"order-123\", \"status\":\"SHIPPED\",\"n\":1.50},"
              "\"idempotency_key\":\"run-456-webhook-order-123\"}");
    CHECK(b.ok, "%s %s", b.code, b.message);
    CHECK(strcmp(b.result, "{\"ok\":true}") == 0, "%s", b.result);
    CHECK(strncmp(b.head, "PUT /json HTTP/1.1\r\n", 20) == 0, "%s", b.head);
    CHECK(depot_has_header(&b, "Authorization: Bearer token"), "%s", b.head);
    CHECK(depot_has_header(&b, "X-Other: a b"), "%s", b.head);
    CHECK(depot_has_header(&b, "X-Idempotency-Key: run-456-webhook-order-123"), "%s", b.head);
    CHECK(depot_has_header(&b, "Content-Type: application/json"), "%s", b.head);
    CHECK(strcmp(b.body, "{\"order_id\":\"order-123\",\"status\":\"SHIPPED\",\"n\":1.50}") == 0,
          "%s", b.body);
    CHECK(strstr(b.head, "webhook-signature") == NULL, "%s", b.head);
    CHECK(fake_server_requests(b.server) == 1);
    depot_close(&b);
}

/* CE-10.3-2: whatever the payload says about it, the key is the effect's. */
TEST(webhook_key_is_not_the_payloads_to_choose) {
    struct depot b;
    open_usual(&b);
    depot_run(&b, "API_CALL",
              "{\"url\":\"http://127.0.0.1:%d/json\",\"headers\":{\"x-idempotency-KEY\":\"mine\"},"
              "\"body\":\"as it is\",\"idempotency_key\":\"another\"}");
    CHECK(b.ok, "%s %s", b.code, b.message);
    CHECK(strncmp(b.head, "POST ", 5) == 0, "%s", b.head);
    CHECK(depot_has_header(&b, "X-Idempotency-Key: run-456-webhook-order-123"), "%s", b.head);
    CHECK(strstr(b.head, "mine") == NULL && strstr(b.head, "another") == NULL, "%s", b.head);
    CHECK(depot_has_header(&b, "Content-Type: text/plain"), "%s", b.head);
    CHECK(strcmp(b.body, "as it is") == 0, "%s", b.body);
    depot_close(&b);
}

/* The message has the status and its text. And what else may be answered. */
TEST(webhook_answers_become_results) {
    static const struct {
        const char *type, *path, *code, *want; /* want: the result, or the message */
    } cases[] = {
        {"WEBHOOK_CALL", "503", "HTTP_STATUS", "Webhook failed: 503 Service Unavailable"},
        {"API_CALL", "503", "HTTP_STATUS", "API call failed: 503 Service Unavailable"},
        {"WEBHOOK_CALL", "404", "HTTP_STATUS", "Webhook failed: 404 Not Found"},
        {"WEBHOOK_CALL", "599", "HTTP_STATUS", "Webhook failed: 599"},
        {"WEBHOOK_CALL", "move", "HTTP_STATUS", "Webhook failed: 302 Found"},
        {"WEBHOOK_CALL", "json", "", "{\"ok\":true}"},
        {"WEBHOOK_CALL", "empty", "", "{\"status\":204}"},
        {"WEBHOOK_CALL", "text", "", "{\"status\":201,\"body\":\"fine \xEF\xBF\xBD\\n\"}"},
    };
    struct depot b;
    open_usual(&b);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char spec[256];
        (void)snprintf(spec, sizeof spec, "{\"url\":\"http://127.0.0.1:%%d/%s\",\"body\":{}}",
                       cases[i].path);
        depot_run(&b, cases[i].type, spec);
        CHECK(strcmp(b.code, cases[i].code) == 0, "case %zu: %s %s", i, b.code, b.message);
        const char *got = b.ok ? b.result : b.message;
        CHECK(strcmp(got, cases[i].want) == 0, "case %zu: %s", i, got);
    }
    CHECK(fake_server_requests(b.server) == (int)COUNT_OF(cases)); /* none was followed */
    depot_close(&b);
}

/* It was done: so it is no failure, however long the answer is. */
TEST(webhook_long_answers_are_cut) {
    static const char *const paths[] = {"big", "bigjson"};
    struct depot b;
    open_usual(&b);
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        char spec[256];
        (void)snprintf(spec, sizeof spec, "{\"url\":\"http://127.0.0.1:%%d/%s\"}", paths[i]);
        depot_run(&b, "WEBHOOK_CALL", spec);
        CHECK(b.ok, "%s", b.message);
        str result = str_c(b.result);
        CHECK(result.len > DELIVERY_RESULT_MAX - 64 && result.len <= DELIVERY_RESULT_MAX, "%zu",
              result.len);
        CHECK(str_starts(result, STR("{\"status\":200,\"body\":\"")));
        CHECK(str_ends(result, STR("x\",\"truncated\":true}")));
    }
    depot_close(&b);
}

/* Secrets are read when they are sent, and come back in nothing. */
TEST(webhook_secrets_are_sent_and_never_told) {
    static const struct {
        const char *path, *headers, *sent, *want, *code;
    } cases[] = {
        {"echo", "{\"Authorization\":{\"secret\":\"BEARER\"}}",
         "Authorization: Bearer s3cret-token", "Authorization: ***", ""},
        {"echojson", "{\"X-Token\":{\"secret\":\"TOKEN\"}}", "X-Token: s3cret-token",
         "{\"token\":\"***\",\"***\":1}", ""},
        {"echojson", "{\"Authorization\":{\"secret\":\"BEARER\"}}",
         "Authorization: Bearer s3cret-token", "{\"token\":\"***\",\"***\":1}", ""},
        {"echotwice", "{\"Authorization\":{\"secret\":\"BEARER\"}}", /* no JSON: one name, twice */
         "Authorization: Bearer s3cret-token",
         "{\"status\":200,\"body\":\"{\\\"***\\\":1,\\\"***\\\":2}\"}", ""},
        {"500", "{\"X-Token\":{\"secret\":\"TOKEN\"}}", "X-Token: s3cret-token",
         "Webhook failed: 500 Internal Server Error", "HTTP_STATUS"},
        {"200", "{\"X-Token\":{\"secret\":\"TOKEN\"}}", "X-Token: s3cret-token",
         "{\"status\":200,\"body\":\"***\"}", ""},
        {"json", "{\"X\":{\"secret\":\"NONE\"}}", NULL, "there is no secret \"NONE\"",
         "SECRET_NOT_FOUND"},
        {"json", "{\"X\":{\"secret\":\"LINES\"}}", NULL, "control character", "SECRET_INVALID"},
        {"json", "{\"X\":{\"secret\":\"TOKEN\",\"y\":1}}", NULL, "a header is a string",
         "PAYLOAD_INVALID"},
    };
    struct depot b;
    open_usual(&b);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char spec[512];
        int before = fake_server_requests(b.server);
        (void)snprintf(spec, sizeof spec, "{\"url\":\"http://127.0.0.1:%%d/%s\",\"headers\":%s}",
                       cases[i].path, cases[i].headers);
        depot_run(&b, "WEBHOOK_CALL", spec);
        CHECK(strcmp(b.code, cases[i].code) == 0, "case %zu: %s %s", i, b.code, b.message);
        const char *got = b.ok ? b.result : b.message;
        CHECK(strstr(got, cases[i].want) != NULL, "case %zu: %s", i, got);
        CHECK(strstr(got, "s3cret") == NULL && strstr(got, "two") == NULL, "case %zu: %s", i, got);
        CHECK((fake_server_requests(b.server) > before) == (cases[i].sent != NULL), "case %zu", i);
        if (cases[i].sent) CHECK(depot_has_header(&b, cases[i].sent), "case %zu: %s", i, b.head);
    }
    depot_close(&b);
}

static const char *signature_of(struct depot *b, const void *key, size_t len) {
    static char text[128];
    uint8_t mac[32];
    char all[2048];
    int n = snprintf(all, sizeof all, DEPOT_EFFECT ".%d.%s", DEPOT_NOW_S, b->body);
    CHECK(HMAC(EVP_sha256(), key, (int)len, (uint8_t *)all, (size_t)n, mac, NULL) != NULL);
    char base64[64];
    EVP_EncodeBlock((uint8_t *)base64, mac, 32);
    (void)snprintf(text, sizeof text, "webhook-signature: v1,%s", base64);
    return text;
}

TEST(webhook_is_signed) {
    static const struct {
        const char *member, *type;
        bool usual; /* the options name a secret */
        const char *key;
        size_t len;
        const char *code;
    } cases[] = {
        {"", "WEBHOOK_CALL", true,
         "\x31\xf2\x90\xf6\xbf\x06\x29\x8a\xab\x4f\x08\xd4\x3c\x3f\x08\x2c\xf6\x48\xa3\x62\xda\x2d"
         "\xa4\xb0",
         24, ""},
        {",\"signing_secret\":\"PLAIN_SIGN\"", "WEBHOOK_CALL", true, "plain-signing-key", 17, ""},
        {",\"signing_secret\":\"PLAIN_SIGN\"", "WEBHOOK_CALL", false, "plain-signing-key", 17, ""},
        {",\"signing_secret\":\"BAD_SIGN\"", "WEBHOOK_CALL", false, NULL, 0, "SECRET_INVALID"},
        {",\"signing_secret\":\"NONE\"", "WEBHOOK_CALL", true, NULL, 0, "SECRET_NOT_FOUND"},
        {",\"signing_secret\":\"SIGN\"", "API_CALL", true, NULL, 0, "PAYLOAD_INVALID"},
        {"", "API_CALL", true, NULL, 0, ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct depot b;
        struct deliverer_options options = depot_options(&b);
        if (cases[i].usual) options.webhook_secret = STR("SIGN");
        depot_open(&b, &options);
        char spec[512];
        (void)snprintf(spec, sizeof spec,
                       "{\"url\":\"http://127.0.0.1:%%d/json\",\"body\":[1, 2],"
                       "\"headers\":{\"Webhook-Id\":\"mine\"}%s}",
                       cases[i].member);
        depot_run(&b, cases[i].type, spec);
        CHECK(strcmp(b.code, cases[i].code) == 0, "case %zu: %s %s", i, b.code, b.message);
        if (cases[i].key) {
            char time[64];
            (void)snprintf(time, sizeof time, "webhook-timestamp: %d", DEPOT_NOW_S);
            CHECK(depot_has_header(&b, "webhook-id: " DEPOT_EFFECT), "%s", b.head);
            CHECK(depot_has_header(&b, time), "%s", b.head);
            const char *want = signature_of(&b, cases[i].key, cases[i].len);
            CHECK(depot_has_header(&b, want), "case %zu: %s %s", i, want, b.head);
            CHECK(strstr(b.head, "mine") == NULL, "case %zu: %s", i, b.head);
        } else if (b.ok) {
            CHECK(strstr(b.head, "webhook-signature") == NULL, "case %zu: %s", i, b.head);
        }
        depot_close(&b);
    }
}

/* Nothing that is wrong, or not allowed, reaches a server. */
TEST(webhook_refuses_what_is_wrong) {
    static const struct {
        const char *spec, *code, *has;
    } cases[] = {
        {"{}", "PAYLOAD_INVALID", "url"},
        {"[]", "PAYLOAD_INVALID", "object"},
        {"{\"url\":", "PAYLOAD_INVALID", ""},
        {"{\"url\":1}", "PAYLOAD_INVALID", "url"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"extra\":1}", "PAYLOAD_INVALID", "extra"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"method\":1}", "PAYLOAD_INVALID", "method"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"method\":\"GET /\"}", "PAYLOAD_INVALID",
         "method"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"headers\":[]}", "PAYLOAD_INVALID", "headers"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"headers\":{\"a\":1}}", "PAYLOAD_INVALID",
         "header"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"headers\":{\"a\":\"b\\r\\nc: d\"}}",
         "PAYLOAD_INVALID", "header"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"headers\":{\"HOST\":\"b\"}}", "PAYLOAD_INVALID",
         "HOST"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"headers\":{\"Transfer-Encoding\":\"chunked\"}}",
         "PAYLOAD_INVALID", "Transfer-Encoding"},
        {"{\"url\":\"http://127.0.0.1:%d/json\",\"idempotency_key\":1}", "PAYLOAD_INVALID",
         "idempotency_key"},
        {"{\"url\":\"http://127.0.0.1:%d/a b\"}", "PAYLOAD_INVALID", "URL"},
        {"{\"url\":\"http://localhost:%d/json\"}", "URL_NOT_ALLOWED", "localhost"},
        {"{\"url\":\"http://169.254.169.254/latest\"}", "URL_NOT_ALLOWED", "169.254"},
        {"{\"url\":\"file:///etc/passwd\"}", "URL_NOT_ALLOWED", "file"},
        {"{\"url\":\"http://127.0.0.1:1/json\"}", "URL_NOT_ALLOWED", "port"},
    };
    struct depot b;
    open_usual(&b);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        depot_run(&b, "WEBHOOK_CALL", cases[i].spec);
        CHECK(!b.ok && strcmp(b.code, cases[i].code) == 0, "case %zu: %s %s", i, b.code, b.message);
        CHECK(strstr(b.message, cases[i].has) != NULL, "case %zu: %s", i, b.message);
    }
    CHECK(fake_server_connections(b.server) == 0);
    depot_close(&b);
}

/* The address that a socket would connect to is judged too: a name may lead anywhere. */
TEST(webhook_judges_the_address) {
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    b.rule.host = STR("localhost");
    b.guard.allow_private = false;
    depot_open(&b, &options);
    depot_run(&b, "WEBHOOK_CALL", "{\"url\":\"http://localhost:%d/json\"}");
    CHECK(strcmp(b.code, "URL_NOT_ALLOWED") == 0, "%s %s", b.code, b.message);
    b.rule.host = STR("ip6-localhost"); /* a name that says nothing, in the hosts file of Debian */
    depot_run(&b, "WEBHOOK_CALL", "{\"url\":\"http://ip6-localhost:%d/json\"}");
    bool unknown = strstr(b.message, "resolve") != NULL;
    CHECK(unknown || strcmp(b.code, "URL_NOT_ALLOWED") == 0, "%s %s", b.code, b.message);
    CHECK(fake_server_connections(b.server) == 0);
    depot_close(&b);

    options = depot_options(&b);
    options.guard = NULL;
    depot_open(&b, &options);
    depot_run(&b, "WEBHOOK_CALL", "{\"url\":\"http://127.0.0.1:%d/json\"}");
    CHECK(strcmp(b.code, "URL_NOT_ALLOWED") == 0, "%s %s", b.code, b.message);
    depot_close(&b);
}

TEST(webhook_has_a_timeout) {
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    options.timeout_ms = 300;
    depot_open(&b, &options);
    int64_t start = clock_mono_ns();
    depot_run(&b, "API_CALL", "{\"url\":\"http://127.0.0.1:%d/silent\"}");
    CHECK(strcmp(b.code, "TIMEOUT") == 0, "%s %s", b.code, b.message);
    CHECK(clock_mono_ns() - start < (int64_t)5 * 1000000000);
    depot_close(&b);
}
