/* SEND_EMAIL, against a real mail server, and read by somebody else's reader of mails. */
#include "base/hash.h"
#include "base/json.h"
#include "net/mail_server_test.h"
#include "outbox/depot_test.h"
#include "outbox/impl.h"
#include "test.h"

static void open_for(struct depot *b, struct mail_server *server) {
    struct deliverer_options options = depot_options(b);
    options.smtp_url = str_c(mail_server_url(server));
    options.smtp_plain = true;
    options.smtp_from = STR("Cairn <cairn@mail.example.com>");
    depot_open(b, &options);
}

static struct mail_server *open_usual(struct depot *b) {
    struct mail_server *server = mail_server_open("");
    open_for(b, server);
    return server;
}

static void close_all(struct depot *b, struct mail_server *server) {
    depot_close(b);
    mail_server_close(server);
}

static str text_at(yyjson_val *obj, const char *name) {
    str text = STR_NONE;
    CHECK(json_str(json_member(obj, name), &text), "%s", name);
    return text;
}

static void check_header(yyjson_val *mail, const char *name, const char *want) {
    str got = text_at(json_member(mail, "headers"), name);
    CHECK(str_eq(got, str_c(want)), "%s: %.*s", name, STR_ARG(got));
}

static void check_part(yyjson_val *mail, size_t i, const char *type, const char *text) {
    yyjson_val *part = yyjson_arr_get(json_member(mail, "parts"), i);
    CHECK(str_eq(text_at(part, "type"), str_c(type)), "part %zu", i);
    str got = text_at(part, "text");
    CHECK(str_eq(got, str_c(text)), "part %zu: %.*s", i, STR_ARG(got));
}

/* The reader has nothing to complain of, and no line is too long. */
static void check_form(yyjson_val *mail) {
    int64_t longest = 0;
    CHECK(yyjson_arr_size(json_member(mail, "defects")) == 0);
    CHECK(json_int(json_member(mail, "longest"), &longest) && longest <= 300, "%d", (int)longest);
    CHECK(json_int(json_member(mail, "bare"), &longest) && longest == 0);
}

/* CE-9.2-1, CE-10.3-2: the example of the contract: all members arrive, body_html as
 * html, and the key with the mail. */
TEST(email_sends_the_payload_and_the_key) {
    struct depot b;
    struct mail_server *server = open_usual(&b);
    depot_run(&b, "SEND_EMAIL",
              "{\"to\":[\"customer@example.com\"],\"subject\":\"Order Confirmation\","
              "\"body_html\":\"<p>Your order has been confirmed.</p>\","
              "\"idempotency_key\":\"run-456-email-order-123\"}");
    CHECK(b.ok, "%s %s", b.code, b.message);
    CHECK(mail_server_count(server) == 1);
    yyjson_val *mail = mail_server_mail(server, 1, &b.arena);
    check_form(mail);
    CHECK(str_eq(text_at(mail, "from"), STR("cairn@mail.example.com")));
    CHECK(str_eq(json_text(json_member(mail, "to"), &b.arena), STR("[\"customer@example.com\"]")));
    check_header(mail, "From", "Cairn <cairn@mail.example.com>");
    check_header(mail, "To", "customer@example.com");
    check_header(mail, "Subject", "Order Confirmation");
    check_header(mail, "Date", "Mon, 16 Feb 2026 08:00:00 +0000");
    check_header(mail, "X-Idempotency-Key", "run-456-webhook-order-123");
    CHECK(str_eq(text_at(mail, "type"), STR("text/html")));
    check_part(mail, 0, "text/html", "<p>Your order has been confirmed.</p>\n");
    uint8_t hash[SHA256_LEN];
    char id[128] = "<";
    sha256_of(STR("tenant-1\nrun-456-webhook-order-123"), hash);
    hex_encode(hash, sizeof hash, id + 1);
    (void)snprintf(id + 65, sizeof id - 65, "@mail.example.com>");
    check_header(mail, "Message-ID", id);
    char want[256];
    (void)snprintf(want, sizeof want, "{\"message_id\":\"%s\",\"accepted\":1}", id);
    CHECK(strcmp(b.result, want) == 0, "%s", b.result);
    close_all(&b, server);
}

/* All languages, both bodies, all kinds of recipients; and twice the same bytes. */
TEST(email_of_every_kind_arrives_as_it_was_meant) {
    static const char *const spec =
        "{\"to\":[\"Anna \\\"Ann\\\" O'Neil <a@example.com>\",\"\\\"Doe, J\\\\\\\\.\\\" "
        "<j@example.com>\"],\"cc\":[\"J\xC3\xB6rg M\xC3\xBCller <c@example.com>\"],"
        "\"bcc\":[\"hidden@example.com\"],\"from\":\"me@example.org\","
        "\"reply_to\":\"answers@example.org\","
        "\"subject\":\"Bestellung \xE2\x9C\x93 \xE2\x80\x93 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E "
        "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E =?UTF-8?Q?x?=\","
        "\"body_html\":\"<b>\xC3\xA4 = 1</b>\","
        "\"body_text\":\".\\nFrom here\\r\\n\\r\\ntrailing \\n\xF0\x9F\x98\x80 "
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
        "89\\n--=_cairn_\\n.\"}";
    struct depot b;
    struct mail_server *server = open_usual(&b);
    depot_run(&b, "SEND_EMAIL", spec);
    CHECK(b.ok && strstr(b.result, "\"accepted\":4}") != NULL, "%s %s", b.result, b.message);
    struct depot another; /* a deliverer remembers what it sent */
    open_for(&another, server);
    depot_run(&another, "SEND_EMAIL", spec);
    depot_close(&another);
    CHECK(mail_server_count(server) == 2);
    yyjson_val *mail = mail_server_mail(server, 1, &b.arena);
    check_form(mail);
    CHECK(str_eq(text_at(mail, "from"), STR("me@example.org")));
    CHECK(str_eq(json_text(json_member(mail, "to"), &b.arena),
                 STR("[\"a@example.com\",\"j@example.com\",\"c@example.com\","
                     "\"hidden@example.com\"]")));
    check_header(mail, "To",
                 "\"Anna \\\"Ann\\\" O'Neil\" <a@example.com>, \"Doe, J\\\\.\" <j@example.com>");
    check_header(mail, "Cc", "J\xC3\xB6rg M\xC3\xBCller <c@example.com>");
    check_header(mail, "Reply-To", "answers@example.org");
    check_header(mail, "Subject",
                 "Bestellung \xE2\x9C\x93 \xE2\x80\x93 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E "
                 "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E "
                 "=?UTF-8?Q?x?=");
    str source = text_at(mail, "source");
    CHECK(strstr(arena_str(&b.arena, source).ptr, "hidden") == NULL);
    CHECK(str_eq(text_at(mail, "type"), STR("multipart/alternative")));
    CHECK(yyjson_arr_size(json_member(mail, "parts")) == 2);
    check_part(mail, 0, "text/plain",
               ".\nFrom here\n\ntrailing \n\xF0\x9F\x98\x80 "
               "01234567890123456789012345678901234567890123456789012345678901234567890123456789012"
               "3456789\n--=_cairn_\n.\n");
    check_part(mail, 1, "text/html", "<b>\xC3\xA4 = 1</b>\n");
    CHECK(str_eq(source, text_at(mail_server_mail(server, 2, &b.arena), "source")));
    close_all(&b, server);
}

static void run_with_key(struct depot *b, const char *tenant, const char *key, const char *to) {
    char spec[256];
    (void)snprintf(spec, sizeof spec, "{\"to\":[\"%s\"],\"subject\":\"s\",\"body_text\":\"t\"}",
                   to);
    struct delivery delivery = depot_delivery(b, "SEND_EMAIL", str_c(spec));
    delivery.tenant_id = str_c(tenant);
    delivery.key = str_c(key);
    b->ended = 0;
    delivery_start(b->deliverer, &delivery);
    depot_wait(b, 1);
}

/* CE-9.2-2: the second run of a row answers as the first did, and sends nothing. Another key, or
 * the key of another tenant, is another mail; what failed is sent when it comes again. */
TEST(email_is_sent_once_a_key) {
    char first[256];
    struct depot b;
    struct mail_server *server = open_usual(&b);
    run_with_key(&b, "t1", "k1", "a@example.com");
    CHECK(b.ok && mail_server_count(server) == 1, "%s %s", b.code, b.message);
    (void)snprintf(first, sizeof first, "%s", b.result);
    run_with_key(&b, "t1", "k1", "a@example.com");
    CHECK(b.ok && mail_server_count(server) == 1, "%s %s", b.code, b.message);
    CHECK(strcmp(b.result, first) == 0, "%s", b.result);
    run_with_key(&b, "t1", "k2", "a@example.com");
    run_with_key(&b, "t2", "k1", "a@example.com");
    CHECK(b.ok && mail_server_count(server) == 3);
    run_with_key(&b, "t1", "k3", "refuse@example.com");
    CHECK(!b.ok && mail_server_count(server) == 3);
    run_with_key(&b, "t1", "k3", "a@example.com");
    CHECK(b.ok && mail_server_count(server) == 4);
    run_with_key(&b, "t/1", "k", "a@example.com");
    run_with_key(&b, "t", "1/k", "a@example.com");
    CHECK(b.ok && mail_server_count(server) == 6, "one tenant's key is another's");
    close_all(&b, server);
}

/* Only so many are remembered: the newest. */
TEST(email_memory_is_bounded) {
    struct depot b;
    struct mail_server *server = open_usual(&b);
    run_with_key(&b, "t1", "k1", "a@example.com");
    CHECK(b.deliverer->sent.count == 1 && b.deliverer->sent.next == 1);
    b.deliverer->sent.next = SENT_MAILS_MAX - 1; /* as after so many others */
    b.deliverer->sent.count = SENT_MAILS_MAX;
    run_with_key(&b, "t1", "k2", "a@example.com");
    CHECK(b.deliverer->sent.count == SENT_MAILS_MAX && b.deliverer->sent.next == 0);
    run_with_key(&b, "t1", "k3", "a@example.com"); /* in the place of the first */
    run_with_key(&b, "t1", "k2", "a@example.com");
    CHECK(mail_server_count(server) == 3);
    run_with_key(&b, "t1", "k1", "a@example.com");
    CHECK(mail_server_count(server) == 4);
    close_all(&b, server);
}

/* Nobody gets a header, or a recipient, into a mail by a line end in a text. */
TEST(email_refuses_what_is_wrong) {
    static const struct {
        const char *spec, *has;
    } cases[] = {
        {"{}", "\"to\""},
        {"{\"to\":[],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":\"a@b\",\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[1],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\"a\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\"a@b c\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\"a@b, c@d\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\"a@b\\r\\nBcc: c@d\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\"x\\ny <a@b>\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\"a@b>\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\".a@b\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\"a@-b\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"to\""},
        {"{\"to\":[\"a@b\"],\"cc\":[\"c\"],\"subject\":\"s\",\"body_text\":\"t\"}", "\"cc\""},
        {"{\"to\":[\"a@b\"],\"bcc\":{},\"subject\":\"s\",\"body_text\":\"t\"}", "\"bcc\""},
        {"{\"to\":[\"a@b\"],\"from\":\"\",\"subject\":\"s\",\"body_text\":\"t\"}", "\"from\""},
        {"{\"to\":[\"a@b\"],\"reply_to\":\"a@b\\n\",\"subject\":\"s\",\"body_text\":\"t\"}",
         "\"reply_to\""},
        {"{\"to\":[\"a@b\"],\"body_text\":\"t\"}", "\"subject\""},
        {"{\"to\":[\"a@b\"],\"subject\":\"s\\r\\nBcc: c@d\",\"body_text\":\"t\"}", "\"subject\""},
        {"{\"to\":[\"a@b\"],\"subject\":\"s\\t\",\"body_text\":\"t\"}", "\"subject\""},
        {"{\"to\":[\"a@b\"],\"subject\":\"s\"}", "body_html"},
        {"{\"to\":[\"a@b\"],\"subject\":\"s\",\"body_text\":1}", "body_text"},
        {"{\"to\":[\"a@b\"],\"subject\":\"s\",\"body_text\":\"t\",\"attachments\":[]}",
         "attachments"},
    };
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    options.smtp_url = depot_text(&b, "smtp://127.0.0.1:%d"); /* it counts who comes */
    options.smtp_from = STR("cairn@mail.example.com");
    depot_open(&b, &options);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        depot_run(&b, "SEND_EMAIL", cases[i].spec);
        CHECK(strcmp(b.code, "PAYLOAD_INVALID") == 0, "case %zu: %s %s", i, b.code, b.message);
        CHECK(strstr(b.message, cases[i].has) != NULL, "case %zu: %s", i, b.message);
    }
    struct delivery delivery = depot_delivery(
        &b, "SEND_EMAIL", STR("{\"to\":[\"a@b\"],\"subject\":\"s\",\"body_text\":\"t\"}"));
    delivery.key = STR("k\r\nBcc: c@d");
    b.ended = 0;
    delivery_start(b.deliverer, &delivery);
    depot_wait(&b, 1);
    CHECK(strcmp(b.code, "PAYLOAD_INVALID") == 0, "%s", b.code);
    CHECK(fake_server_connections(b.server) == 0);
    depot_close(&b);
}

TEST(email_has_at_most_100_recipients) {
    struct depot b;
    struct mail_server *server = open_usual(&b);
    for (int n = 100; n <= 101; n++) {
        char spec[8192];
        size_t len = (size_t)snprintf(spec, sizeof spec,
                                      "{\"subject\":\"s\",\"body_text\":\"t\",\"cc\":[\"c@b\"],"
                                      "\"to\":[\"a@b\"");
        for (int i = 2; i < n; i++)
            len += (size_t)snprintf(spec + len, sizeof spec - len, ",\"a%d@b\"", i);
        (void)snprintf(spec + len, sizeof spec - len, "]}");
        depot_run(&b, "SEND_EMAIL", spec);
        CHECK(b.ok == (n == 100), "%d: %s %s", n, b.code, b.message);
    }
    CHECK(mail_server_count(server) == 1);
    close_all(&b, server);
}

TEST(email_failures_have_codes) {
    static const struct {
        const char *to;
        int64_t timeout_ms;
        const char *code, *has;
    } cases[] = {
        {"refuse@example.com", 20000, "SMTP_REJECTED", "550 5.1.1"},
        {"bad@example.com", 20000, "SMTP_REJECTED", "554"},
        {"later@example.com", 20000, "SMTP_FAILED", "451"},
        {"stall@example.com", 500, "SMTP_TIMEOUT", "127.0.0.1"},
    };
    struct mail_server *server = mail_server_open("");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct depot b;
        struct deliverer_options options = depot_options(&b);
        options.smtp_url = str_c(mail_server_url(server));
        options.smtp_plain = true;
        options.smtp_from = STR("cairn@mail.example.com");
        options.timeout_ms = cases[i].timeout_ms;
        depot_open(&b, &options);
        char spec[256];
        (void)snprintf(spec, sizeof spec,
                       "{\"to\":[\"ok@example.com\",\"%s\"],\"subject\":\"s\",\"body_text\":\"t\"}",
                       cases[i].to);
        depot_run(&b, "SEND_EMAIL", spec);
        CHECK(strcmp(b.code, cases[i].code) == 0, "case %zu: %s %s", i, b.code, b.message);
        CHECK(strstr(b.message, cases[i].has) != NULL, "case %zu: %s", i, b.message);
        depot_close(&b);
    }
    CHECK(mail_server_count(server) == 0); /* for all recipients or for none */
    mail_server_close(server);
}

/* STARTTLS is demanded, certificates are verified, and a password is told to nobody else. */
TEST(email_is_sent_over_tls_with_a_password) {
    static const struct {
        const char *secret, *to, *subject;
        bool trusted;
        const char *code, *has;
    } cases[] = {
        {"MAIL", "a@example.com", "s", true, "", ""},
        {"MAIL", "echo@example.com", "p%ss word-1", true, "SMTP_REJECTED", "550 5.7.1"},
        {"WRONG", "a@example.com", "s", true, "SMTP_REJECTED", "535"},
        {"NONE", "a@example.com", "s", true, "SECRET_NOT_FOUND", "NONE"},
        {"MAIL", "a@example.com", "s", false, "SMTP_FAILED", "certificate"},
    };
    struct mail_server *server = mail_server_open("tls auth");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct depot b;
        struct deliverer_options options = depot_options(&b);
        options.smtp_url = str_c(mail_server_url(server));
        options.smtp_from = STR("cairn@mail.example.com");
        options.smtp_user = STR("cairn");
        options.smtp_password_secret = str_c(cases[i].secret);
        if (cases[i].trusted) options.ca_file = mail_server_ca(server);
        depot_open(&b, &options);
        char spec[256];
        (void)snprintf(spec, sizeof spec,
                       "{\"to\":[\"%s\"],\"subject\":\"%s\",\"body_text\":\"t\"}", cases[i].to,
                       cases[i].subject);
        depot_run(&b, "SEND_EMAIL", spec);
        CHECK(strcmp(b.code, cases[i].code) == 0, "case %zu: %s %s", i, b.code, b.message);
        CHECK(strstr(b.message, cases[i].has) != NULL, "case %zu: %s", i, b.message);
        CHECK(strstr(b.message, "word-1") == NULL, "case %zu: %s", i, b.message);
        if (b.ok) {
            yyjson_val *mail = mail_server_mail(server, 1, &b.arena);
            CHECK(yyjson_is_true(json_member(mail, "tls")));
            CHECK(str_eq(text_at(mail, "user"), STR("cairn")));
        }
        depot_close(&b);
    }
    CHECK(mail_server_count(server) == 1);
    mail_server_close(server);
}

TEST(email_needs_a_server_and_a_sender) {
    struct depot b;
    struct deliverer_options options = depot_options(&b);
    depot_open(&b, &options);
    const char *spec = "{\"to\":[\"a@b\"],\"subject\":\"s\",\"body_text\":\"t\"}";
    depot_run(&b, "SEND_EMAIL", spec);
    CHECK(strcmp(b.code, "SMTP_NOT_CONFIGURED") == 0, "%s", b.code);
    depot_close(&b);
    options = depot_options(&b);
    options.smtp_url = depot_text(&b, "smtp://127.0.0.1:%d");
    depot_open(&b, &options);
    depot_run(&b, "SEND_EMAIL", spec);
    CHECK(strcmp(b.code, "PAYLOAD_INVALID") == 0 && strstr(b.message, "from") != NULL, "%s",
          b.message);
    depot_close(&b);
}
