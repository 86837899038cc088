#include "outbox_helper.h"

struct effect_info outbox_ask(struct fixture *c, const char *run, const char *type,
                              const char *payload) {
    struct effect_request request = {.run_id = str_c(run),
                                     .type = str_c(type),
                                     .payload = str_c(payload),
                                     .max_retries = -1,
                                     .base_ms = -1};
    struct effect_info info = {0};
    struct error err = {0};
    bool existing = false;
    CHECK(outbox_request(c->ledger, &request, &c->arena, &info, &existing, &err) == ST_OK, "%s",
          err.msg);
    return info;
}

struct outbox_batch outbox_take(struct fixture *c, size_t limit) {
    struct outbox_batch batch = {0};
    struct error err = {0};
    CHECK(outbox_claim(c->ledger, STR("w1"), STR_NONE, limit, 60000, &c->arena, &batch, &err) ==
              ST_OK,
          "%s", err.msg);
    return batch;
}

bool outbox_fail_once(struct fixture *c, const char *code, const char *message) {
    struct outbox_batch batch = outbox_take(c, 10);
    struct error err = {0};
    bool dead = false;
    CHECK(batch.count == 1, "%zu are due", batch.count);
    CHECK(outbox_fail(c->ledger, &batch.items[0], str_c(code), str_c(message), STR("at smtp.c"),
                      STR("w1"), &dead, &err) == ST_OK,
          "%s", err.msg);
    return !dead;
}

struct effect_info outbox_read(struct fixture *c, uuid id) {
    struct effect_info info = {0};
    struct error err = {0};
    CHECK(outbox_find(c->ledger, STR_NONE, id, &c->arena, &info, &err) == ST_OK, "%s", err.msg);
    return info;
}

str outbox_facts(struct fixture *c, uuid id) {
    str text = fixture_uuid_text(id);
    return fixture_lines(c, fixture_fmt("SELECT event_type FROM orchestration_events WHERE"
                                        " aggregate_id = '%.*s' ORDER BY sequence_number",
                                        STR_ARG(text)));
}
