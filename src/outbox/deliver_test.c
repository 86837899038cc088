/* The life of deliveries. */
#include "outbox/deliver.h"

#include "base/time.h"
#include "net/mail_server_test.h"
#include "outbox/depot_test.h"
#include "test.h"

#define WEBHOOK "{\"url\":\"http://127.0.0.1:%d/json\",\"body\":{\"a\":1}}"
#define SOR                                                                                        \
    "{\"entity_type\":\"C\",\"entity_id\":\"x\",\"change\":{\"b\":2},\"evidence_pack\":{\"c\":3}}"
#define EMAIL "{\"to\":[\"a@example.com\"],\"subject\":\"s\",\"body_text\":\"t\"}"

static const char *const types[] = {"WEBHOOK_CALL", "API_CALL", "SEND_EMAIL", "SOR_UPDATE"};
static const char *const specs[] = {WEBHOOK, WEBHOOK, EMAIL, SOR};

/* CE-4.4-10: the driver is chosen by the type, and gets the payload; another type is a failure. */
TEST(deliver_chooses_the_driver_by_the_type) {
    static const char *const has[] = {"{\"a\":1}", "{\"a\":1}", NULL, "\"change\":{\"b\":2}"};
    static const char *const unknown[] = {"", "webhook_call", "PAGE_SOMEBODY", "WEBHOOK_CALL "};
    struct depot b;
    struct mail_server *mails = mail_server_open("");
    struct deliverer_options options = depot_options(&b);
    options.smtp_url = str_c(mail_server_url(mails));
    options.smtp_plain = true;
    options.smtp_from = STR("cairn@example.com");
    depot_open(&b, &options);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        int before = fake_server_requests(b.server);
        depot_run(&b, types[i], specs[i]);
        CHECK(b.ok, "%s: %s %s", types[i], b.code, b.message);
        CHECK(fake_server_requests(b.server) == before + (has[i] != NULL), "%s", types[i]);
        CHECK(!has[i] || strstr(b.body, has[i]) != NULL, "%s: %s", types[i], b.body);
    }
    CHECK(mail_server_count(mails) == 1);
    int before = fake_server_requests(b.server);
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        depot_run(&b, unknown[i], WEBHOOK);
        CHECK(strcmp(b.code, "EFFECT_TYPE_UNKNOWN") == 0, "%s %s", b.code, b.message);
        CHECK(strstr(b.message, unknown[i]) != NULL, "%s", b.message);
    }
    CHECK(fake_server_requests(b.server) == before && mail_server_count(mails) == 1);
    depot_close(&b);
    mail_server_close(mails);
}

/* CE-10.3-1: without a key nobody is called, whatever the type. */
TEST(deliver_calls_nobody_without_a_key) {
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    options.smtp_url = depot_text(&b, "smtp://127.0.0.1:%d"); /* it counts who comes */
    options.smtp_plain = true;
    options.smtp_from = STR("cairn@example.com");
    depot_open(&b, &options);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct delivery delivery = depot_delivery(&b, types[i], depot_text(&b, specs[i]));
        delivery.key = STR("");
        b.ended = 0;
        delivery_start(b.deliverer, &delivery);
        depot_wait(&b, 1);
        CHECK(!b.ok && strcmp(b.code, "KEY_MISSING") == 0, "%s: %s", types[i], b.code);
    }
    CHECK(fake_server_connections(b.server) == 0);
    depot_close(&b);
}

/* What is under way when it is closed is cancelled, and what had ended keeps its answer. */
TEST(deliver_close_answers_all) {
    struct depot b;
    struct mail_server *mails = mail_server_open("");
    struct deliverer_options options = depot_options(&b);
    options.smtp_url = str_c(mail_server_url(mails));
    options.smtp_plain = true;
    depot_open(&b, &options);
    str silent = depot_text(&b, "{\"url\":\"http://127.0.0.1:%d/silent\"}");
    str stall = STR("{\"from\":\"a@example.com\",\"to\":[\"stall@example.com\"],\"subject\":\"s\","
                    "\"body_text\":\"t\"}");
    struct delivery all[4];
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        all[i] = depot_delivery(&b, i < 2 ? "WEBHOOK_CALL" : "SEND_EMAIL", i < 2 ? silent : stall);
        delivery_start(b.deliverer, &all[i]);
    }
    int64_t start = clock_mono_ns();
    while (clock_mono_ns() - start < (int64_t)300 * 1000000)
        uv_run(&b.loop, UV_RUN_NOWAIT);
    CHECK(b.ended == 0);
    struct delivery ended = depot_delivery(&b, "NONE", silent);
    delivery_start(b.deliverer, &ended);
    deliverer_close(b.deliverer);
    CHECK(b.ended == 5 && !b.ok && strcmp(b.code, "CANCELLED") == 0, "%d %s", b.ended, b.code);
    b.deliverer = NULL;
    depot_close(&b);
    CHECK(clock_mono_ns() - start < (int64_t)20 * 1000000000);
    CHECK(mail_server_count(mails) == 0);
    mail_server_close(mails);
}

struct chain { /* `context` of a depot's delivery is the depot; so it comes after */
    struct delivery delivery, next, third;
    struct depot *depot;
    char codes[3][64];
    int count;
};

static void note(struct chain *c, enum reason code) {
    (void)snprintf(c->codes[c->count++], sizeof c->codes[0], "%s", reason_name(code));
}

static void note_code(struct delivery *delivery, bool ok, str result, enum reason code,
                      str message) {
    UNUSED(ok);
    UNUSED(result);
    UNUSED(message);
    note(delivery->context, code);
}

static void start_and_close(struct delivery *delivery, bool ok, str result, enum reason code,
                            str message) {
    struct chain *c = delivery->context;
    UNUSED(ok);
    UNUSED(result);
    UNUSED(message);
    note(c, code);
    delivery_start(c->depot->deliverer, &c->next);
    deliverer_close(c->depot->deliverer);
    c->depot->deliverer = NULL;
}

/* An answer may start others, and close it all. */
TEST(deliver_can_be_closed_by_an_answer) {
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    depot_open(&b, &options);
    struct chain c = {.depot = &b};
    c.delivery = depot_delivery(&b, "WEBHOOK_CALL", depot_text(&b, WEBHOOK));
    c.next = depot_delivery(&b, "WEBHOOK_CALL", depot_text(&b, WEBHOOK));
    c.third = depot_delivery(&b, "WEBHOOK_CALL",
                             depot_text(&b, "{\"url\":\"http://127.0.0.1:%d/silent\"}"));
    c.delivery.context = c.next.context = c.third.context = &c;
    c.delivery.done = start_and_close;
    c.next.done = c.third.done = note_code;
    delivery_start(b.deliverer, &c.third);
    delivery_start(b.deliverer, &c.delivery);
    uv_run(&b.loop, UV_RUN_DEFAULT);
    CHECK(c.count == 3 && strcmp(c.codes[0], "") == 0, "%d %s", c.count, c.codes[0]);
    CHECK(strcmp(c.codes[1], "CANCELLED") == 0 && strcmp(c.codes[2], "CANCELLED") == 0);
    depot_close(&b);
}

/* However little memory there is, each delivery has one answer, and nothing is lost. */
TEST(deliver_survives_without_memory) {
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    options.webhook_secret = STR("SIGN");
    depot_open(&b, &options);
    str spec[] = {depot_text(&b, "{\"url\":\"http://127.0.0.1:%d/echo\",\"body\":{\"a\":1},"
                                 "\"headers\":{\"X\":{\"secret\":\"TOKEN\"}}}"),
                  STR(SOR)};
    bool all_ok = false;
    int failures = 0;
    for (int64_t n = 0; !all_ok && n < 400; n++) {
        struct delivery both[] = {depot_delivery(&b, "WEBHOOK_CALL", spec[0]),
                                  depot_delivery(&b, "SOR_UPDATE", spec[1])};
        all_ok = true;
        for (size_t i = 0; i < COUNT_OF(both); i++) {
            b.ended = 0;
            mem_fail_at(n);
            delivery_start(b.deliverer, &both[i]);
            mem_fail_at(-1);
            depot_wait(&b, 1);
            all_ok = all_ok && b.ok;
            failures += !b.ok;
            CHECK(b.ok || strcmp(b.code, "HTTP_FAILED") == 0 ||
                      strcmp(b.code, "PAYLOAD_INVALID") == 0,
                  "at %lld: %s %s", (long long)n, b.code, b.message);
        }
    }
    CHECK(all_ok && failures > 10, "%d", failures);
    depot_close(&b);
}

TEST(deliver_many_at_once) {
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    depot_open(&b, &options);
    static struct delivery all[100];
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        all[i] = depot_delivery(&b, "API_CALL", depot_text(&b, WEBHOOK));
        delivery_start(b.deliverer, &all[i]);
    }
    depot_wait(&b, COUNT_OF(all));
    CHECK(b.ok && fake_server_requests(b.server) == COUNT_OF(all), "%s", b.message);
    depot_close(&b);
}

TEST(deliver_smtp_url_is_checked_at_the_start) {
    static const char *const urls[] = {"", "mail.example.com:25", "http://127.0.0.1", "smtp://a b",
                                       "smtp://user:password@127.0.0.1"};
    uv_loop_t loop;
    CHECK(uv_loop_init(&loop) == 0);
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        struct deliverer_options options = {.smtp_url = str_c(urls[i])};
        struct deliverer *d = NULL;
        struct error err = {0};
        CHECK(deliverer_open(&loop, &options, &d, &err) == ST_INVALID, "case %zu", i);
        CHECK(err.reason == REASON_SMTP_URL_INVALID, "case %zu: %s", i, err.msg);
    }
    CHECK(uv_loop_close(&loop) == 0);
}
