/* A mail that a plan asks for, through the outbox worker of a real host to a real mail server. */
#include "base/json.h"
#include "conformance/engine_tools.h"
#include "net/mail_server_test.h"

/* CE-9.2-3: the mail service gets the key of the payload with the message, whatever else the
 * program knows the effect by. */
TEST_DB(outbox_mail_has_the_key_of_its_payload) {
    struct bed bed;
    struct mail_server *server = mail_server_open("");
    bed_init(&bed, url);
    bed.options.deliver.smtp_url = str_c(mail_server_url(server));
    bed.options.deliver.smtp_plain = true;
    bed.options.deliver.smtp_from = STR("Cairn <cairn@mail.example.com>");
    struct guard_rule rule = {.scheme = STR("smtp"), .host = STR("127.0.0.1")};
    struct guard guard = {.rules = &rule, .rule_count = 1, .allow_private = true};
    bed.options.guard = &guard;
    bed_open(&bed);
    static const char *const keys[] = {"run-456-email-order-123", "another-key"};
    for (int i = 0; i < 2; i++) {
        char plan[1024];
        char run[8];
        snprintf(run, sizeof(run), "r%d", i);
        snprintf(plan, sizeof(plan),
                 PLAN(STEP("mail", "effect",
                           ",\"effectType\":\"SEND_EMAIL\",\"wait\":true,\"payload\":{\"to\":["
                           "\"customer@example.com\"],\"subject\":\"Order\",\"body_html\":\"<p>x"
                           "</p>\",\"idempotency_key\":\"%s\"}")),
                 keys[i]);
        CHECK(bed_run(&bed, plan, run) == RUN_COMPLETED, "%.*s %.*s",
              STR_ARG(bed_history(&bed, run)),
              STR_ARG(bed_payload(&bed, run, EVENT_EFFECT_FAILED, 0)));
        yyjson_val *mail = mail_server_mail(server, i + 1, &bed.arena);
        str key = STR_NONE;
        CHECK(json_str(json_member(json_member(mail, "headers"), "X-Idempotency-Key"), &key));
        CHECK(is(key, keys[i]), "%.*s", STR_ARG(key));
    }
    CHECK(mail_server_count(server) == 2);
    bed_release(&bed);
    mail_server_close(server);
}
