/* Many effects at once: dead letters put back in lots, effects found by their keys, counted. */
#include "ledger/access/access.h"
#include "outbox_helper.h"

static void ask(struct fixture *c, const char *run, const char *type, const char *payload) {
    struct effect_request request = {.run_id = str_c(run),
                                     .type = str_c(type),
                                     .payload = str_c(payload),
                                     .max_retries = 0,
                                     .base_ms = 0};
    struct effect_info info;
    struct error err = {0};
    bool existing = true;
    CHECK(outbox_request(c->ledger, &request, &c->arena, &info, &existing, &err) == ST_OK &&
              !existing,
          "%s", err.msg);
}

/* Executes all that are due, in vain. */
static void kill_all(struct fixture *c) {
    struct outbox_batch batch = outbox_take(c, 100);
    struct error err = {0};
    for (size_t i = 0; i < batch.count; i++) {
        bool dead = false;
        CHECK(outbox_fail(c->ledger, &batch.items[i], STR("NO"), STR("no"), STR_NONE, STR("w1"),
                          &dead, &err) == ST_OK &&
                  dead,
              "%s", err.msg);
    }
}

/* Five dead letters of type A and two of type B, and one effect that waits. */
static void fill(struct fixture *c, str url) {
    fixture_open(c, url);
    fixture_put(c, fixture_item("RunStarted", "r1", NULL, 1));
    fixture_put(c, fixture_item("RunStarted", "r2", NULL, 1));
    for (int i = 0; i < 5; i++)
        ask(c, i % 2 ? "r1" : "r2", "A", fixture_fmt("{\"idempotency_key\":\"a%d\"}", i));
    ask(c, "r1", "B", "{\"idempotency_key\":\"b0\"}");
    ask(c, "r2", "B", "{\"idempotency_key\":\"b1\"}");
    kill_all(c);
    ask(c, "r1", "A", "{\"idempotency_key\":\"waits\"}");
}

static void check_stats(struct fixture *c, int64_t waiting, int64_t dead) {
    struct ledger_stats s;
    struct error err = {0};
    CHECK(ledger_stats(c->ledger, &s, &err) == ST_OK, "%s", err.msg);
    CHECK(s.effects_waiting == waiting && s.effects_dead == dead, "%lld wait, %lld are dead",
          (long long)s.effects_waiting, (long long)s.effects_dead);
}

struct rides {
    struct fixture *c;
    bool race; /* somebody else puts it back first */
    char keys[64];
};

static const struct append_rider *ride(void *context, const struct effect_info *info,
                                       struct arena *arena) {
    struct rides *r = context;
    struct audit_entry *audit = ARENA_NEW(arena, struct audit_entry);
    struct append_rider *rider = ARENA_NEW(arena, struct append_rider);
    struct error err = {0};
    size_t len = strlen(r->keys);
    snprintf(r->keys + len, sizeof(r->keys) - len, "%.*s ", STR_ARG(info->key));
    if (r->race)
        CHECK(outbox_requeue(r->c->ledger, info->tenant_id, info->effect.id, STR("eve"), STR_NONE,
                             NULL, &err) == ST_OK,
              "%s", err.msg);
    *audit = (struct audit_entry){.tenant_id = info->tenant_id,
                                  .action = STR("effect.requeue"),
                                  .target = info->key,
                                  .outcome = STR("done")};
    rider->audit = audit;
    return rider;
}

static void check_lot(struct fixture *c, struct requeue_lot *lot, size_t done, bool more) {
    struct error err = {0};
    CHECK(outbox_requeue_lot(c->ledger, lot, &err) == ST_OK, "%s", err.msg);
    CHECK(lot->done == done && lot->more == more, "%zu, more: %d", lot->done, lot->more);
}

TEST_DB(outbox_requeue_in_lots) {
    struct fixture c;
    fill(&c, url);
    check_stats(&c, 1, 7);
    struct rides r = {.c = &c};
    struct requeue_lot lot = {.filter = {.tenant_id = STR("acme"), .type = STR("A")},
                              .actor = STR("ada"),
                              .reason = STR("fixed"),
                              .limit = 2,
                              .riders = ride,
                              .context = &r};
    check_lot(&c, &lot, 2, true);
    check_lot(&c, &lot, 2, true);
    check_lot(&c, &lot, 1, false);
    CHECK(strcmp(r.keys, "a4 a3 a2 a1 a0 ") == 0, "%s", r.keys); /* the newest first, each once */
    check_stats(&c, 6, 2);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_audit WHERE action = 'effect.requeue'") ==
          5);
    str facts = fixture_text(&c, "SELECT MIN(actor)||' '||MAX(actor)||' '||COUNT(*) FROM"
                                 " orchestration_events WHERE event_type = 'EFFECT_RETRYING'");
    CHECK(text_is(facts, "ada ada 5"), "%.*s", STR_ARG(facts));
    fixture_close(&c);
}

TEST_DB(outbox_requeue_lot_takes_what_matches) {
    struct fixture c;
    fill(&c, url);
    struct requeue_lot none = {.filter = {.tenant_id = STR("other")}, .limit = 10};
    check_lot(&c, &none, 0, false);
    struct requeue_lot b = {.filter = {.run_id = STR("r1"), .type = STR("B")}, .limit = 10};
    check_lot(&c, &b, 1, false);
    struct requeue_lot run = {.filter = {.run_id = STR("r2")}, .limit = 4};
    check_lot(&c, &run, 4, false); /* exactly as many as there are */
    check_stats(&c, 6, 2);
    fixture_close(&c);
}

/* What somebody else has put back meanwhile is not counted, and is no failure. */
TEST_DB(outbox_requeue_lot_meets_another) {
    struct fixture c;
    fill(&c, url);
    struct rides r = {.c = &c, .race = true};
    struct requeue_lot lot = {
        .filter = {.type = STR("B")}, .limit = 10, .riders = ride, .context = &r};
    check_lot(&c, &lot, 0, false);
    check_stats(&c, 3, 5);
    CHECK(fixture_int(&c, "SELECT COUNT(*) FROM ledger_audit") == 0);
    fixture_close(&c);
}

TEST_DB(outbox_finds_by_key) {
    struct fixture c;
    struct effect_info info;
    struct error err = {0};
    char longest[EFFECT_KEY_MAX + 30];
    fill(&c, url);
    CHECK(outbox_find_key(c.ledger, STR("acme"), STR("b1"), &c.arena, &info, &err) == ST_OK, "%s",
          err.msg);
    CHECK(text_is(info.key, "b1") && text_is(info.run_id, "r2"));
    memset(longest, 'k', sizeof(longest));
    const struct {
        str tenant, key;
    } missing[] = {{STR("acme"), STR("b2")},
                   {STR("acme"), STR("")},
                   {STR("other"), STR("b1")},
                   {STR("acme"), str_n(longest, sizeof(longest))}};
    for (size_t i = 0; i < COUNT_OF(missing); i++) {
        status st =
            outbox_find_key(c.ledger, missing[i].tenant, missing[i].key, &c.arena, &info, &err);
        CHECK(st == ST_NOT_FOUND && err.reason == REASON_EFFECT_NOT_FOUND, "case %zu", i);
    }
    fixture_close(&c);
}
