/* Changes of effects as members of a group: what two workers want, what is told twice, and what a
 * damaged neighbour costs. */
#include <unistd.h>

#include "ledger/writer.h"
#include "outbox/change.h"
#include "outbox_helper.h"
#include "view/view.h"

static void open_with_run(struct fixture *c, str url) {
    fixture_open(c, url);
    fixture_put(c, fixture_item("RunStarted", "r1", NULL, 1));
}

static struct outbox_maker maker_of(struct fixture *c, const char *actor) {
    return (struct outbox_maker){.actor = str_c(actor), .now_us = c->now_us, .arena = &c->arena};
}

static struct outbox_change claim_of(struct fixture *c, const char *worker,
                                     const struct effect_info *due) {
    struct outbox_maker m = maker_of(c, worker);
    struct outbox_change change;
    struct error err = {0};
    CHECK(outbox_make_claim(&m, due, 60000, &change, &err) == ST_OK, "%s", err.msg);
    return change;
}

/* One group. */
static void append(struct fixture *c, struct outbox_change *changes, size_t n) {
    struct append_request *requests[16];
    struct error err = {0};
    CHECK(n <= COUNT_OF(requests));
    for (size_t i = 0; i < n; i++)
        requests[i] = &changes[i].request;
    CHECK(ledger_append(c->ledger, requests, n, &err) == ST_OK, "%s", err.msg);
}

static void check_moved(struct outbox_change *change) {
    struct error err = {0};
    CHECK(outbox_outcome(change, NULL, &err) == ST_CONFLICT && err.reason == REASON_EFFECT_MOVED,
          "%s", err.msg);
}

/* CE-4.4-6: two workers claim what they both read, in one group and in two: the second is told that
 * it has lost, nothing of it is written, and who shares the group with it is not concerned. */
TEST_DB(outbox_claim_that_lost_is_told) {
    struct fixture c;
    struct error err = {0};
    open_with_run(&c, url);
    struct effect_info a = outbox_ask(&c, "r1", "API_CALL", "{\"n\":1}");
    struct effect_info b = outbox_ask(&c, "r1", "API_CALL", "{\"n\":2}");
    struct outbox_change both[] = {claim_of(&c, "w1", &a), claim_of(&c, "w2", &a),
                                   claim_of(&c, "w2", &b)};
    append(&c, both, 3);
    CHECK(outbox_outcome(&both[0], NULL, &err) == ST_OK, "%s", err.msg);
    check_moved(&both[1]);
    CHECK(outbox_outcome(&both[2], NULL, &err) == ST_OK, "%s", err.msg);
    str truth = fixture_truth_dump(&c);
    struct outbox_change late[] = {claim_of(&c, "w3", &a)};
    append(&c, late, 1);
    check_moved(&late[0]);
    CHECK(str_eq(fixture_truth_dump(&c), truth), "something was written");
    CHECK(text_is(outbox_facts(&c, a.effect.id), "EFFECT_REQUESTED\nEFFECT_EXECUTING\n"));
    fixture_clean(&c);
    fixture_close(&c);
}

/* A change whose commit nobody knew the outcome of is submitted again: it is known for what it is,
 * and changes nothing. One that was made anew is another worker's. */
TEST_DB(outbox_change_told_twice_is_its_own) {
    struct fixture c;
    struct error err = {0};
    struct effect_failure why = {.code = STR("X"), .message = STR("no")};
    open_with_run(&c, url);
    struct effect_info e = outbox_ask(&c, "r1", "API_CALL", "{}");
    struct outbox_change claim = claim_of(&c, "w1", &e);
    struct outbox_change failure;
    struct outbox_change other;
    struct outbox_maker m = maker_of(&c, "w1");
    for (int i = 0; i < 2; i++) {
        append(&c, &claim, 1);
        CHECK(outbox_outcome(&claim, NULL, &err) == ST_OK, "%s", err.msg);
    }
    CHECK(outbox_make_failure(&m, &claim.info, &why, &failure, &err) == ST_OK, "%s", err.msg);
    CHECK(outbox_make_failure(&m, &claim.info, &why, &other, &err) == ST_OK, "%s", err.msg);
    for (int i = 0; i < 2; i++) {
        append(&c, &failure, 1);
        CHECK(outbox_outcome(&failure, NULL, &err) == ST_OK, "%s", err.msg);
    }
    append(&c, &other, 1);
    check_moved(&other);
    CHECK(text_is(outbox_facts(&c, e.effect.id),
                  "EFFECT_REQUESTED\nEFFECT_EXECUTING\nEFFECT_FAILED\nEFFECT_RETRYING\n"));
    struct effect_info now = outbox_read(&c, e.effect.id);
    CHECK(now.effect.status == failure.info.effect.status &&
              now.effect.due_us == failure.info.effect.due_us &&
              now.effect.retry_count == failure.info.effect.retry_count &&
              str_eq(now.error, failure.info.error),
          "the change says what the row says: %.*s", STR_ARG(failure.info.error));
    fixture_clean(&c);
    fixture_close(&c);
}

/* What a new request says of its effect is what the ledger says. */
TEST_DB(outbox_request_tells_what_is_stored) {
    struct fixture c;
    struct error err = {0};
    bool existing = true;
    open_with_run(&c, url);
    struct outbox_maker m = maker_of(&c, "ada");
    struct effect_request request = {.run_id = STR("r1"),
                                     .type = STR("SEND_EMAIL"),
                                     .payload = STR("{\"b\":[1, 2],\"a\":\"x\"}"),
                                     .max_retries = -1,
                                     .base_ms = 5};
    struct outbox_change change;
    CHECK(outbox_make_request(&m, c.ledger, &request, &change, &err) == ST_OK, "%s", err.msg);
    append(&c, &change, 1);
    CHECK(outbox_outcome(&change, &existing, &err) == ST_OK && !existing, "%s", err.msg);
    struct effect_info told = change.info;
    struct effect_info stored = outbox_read(&c, told.effect.id);
    char texts[2][4096];
    struct buf out[2];
    for (int i = 0; i < 2; i++) {
        buf_init_fixed(&out[i], texts[i], sizeof(texts[i]));
        view_write(&view_effect, i ? &stored : &told, &out[i]);
    }
    CHECK(str_eq(buf_str(&out[0]), buf_str(&out[1])), "%.*s\n%.*s", STR_ARG(buf_str(&out[0])),
          STR_ARG(buf_str(&out[1])));
    CHECK(uuid_eq(told.request_id, stored.request_id) && told.run_no == stored.run_no &&
          told.effect.requested_seq == stored.effect.requested_seq &&
          told.effect.due_us == stored.effect.due_us && told.tenant_us == stored.tenant_us &&
          told.engine_attempt == stored.engine_attempt && str_eq(told.run_uuid, stored.run_uuid) &&
          str_eq(told.plan_id, stored.plan_id));
    fixture_clean(&c);
    fixture_close(&c);
}

/* ---- a damaged run ---- */

struct member {
    struct writer_call call;
    struct outbox_change change;
};

static void member_done(struct writer_call *call) { UNUSED(call); }

static status sleep_task(struct ledger *ledger, void *context, struct error *err) {
    UNUSED(ledger);
    UNUSED(context);
    UNUSED(err);
    usleep(300000); /* the others wait, and make one group */
    return ST_OK;
}

/* It fails nobody who shares a group with it. */
TEST_DB(outbox_damage_fails_no_neighbour) {
    enum { N = 9, BAD = 4 };
    static struct member members[N];
    struct fixture c;
    struct writer *writer = NULL;
    struct error err = {0};
    open_with_run(&c, url);
    fixture_put(&c, fixture_item("RunStarted", "r2", NULL, 1));
    for (int i = 0; i < N; i++) {
        struct effect_info e =
            outbox_ask(&c, i == BAD ? "r2" : "r1", "API_CALL", fixture_fmt("{\"n\":%d}", i));
        members[i] = (struct member){.change = claim_of(&c, "w1", &e)};
        members[i].call =
            (struct writer_call){.request = members[i].change.request, .done = member_done};
    }
    fixture_drop_triggers(&c);
    fixture_must_sql(&c, "UPDATE ledger_event SET run_seq = 9 WHERE run_seq = 1 AND run_no ="
                         " (SELECT run_no FROM ledger_run WHERE run_id = 'r2')");
    fixture_reopen(&c);
    CHECK(writer_open(c.ledger, NULL, &writer, &err) == ST_OK, "%s", err.msg);
    c.ledger = NULL; /* the writer's */
    struct writer_call slow = {.task = sleep_task, .done = member_done};
    CHECK(writer_submit(writer, &slow, &err) == ST_OK, "%s", err.msg);
    for (int i = 0; i < N; i++)
        CHECK(writer_submit(writer, &members[i].call, &err) == ST_OK, "%s", err.msg);
    writer_close(writer);
    for (int i = 0; i < N; i++) {
        CHECK(members[i].call.code == (i == BAD ? ST_CORRUPT : ST_OK), "%d: %s", i,
              members[i].call.err.msg);
        if (i != BAD)
            CHECK(outbox_outcome(&members[i].change, NULL, &err) == ST_OK, "%d: %s", i, err.msg);
    }
    fixture_reopen(&c);
    fixture_close(&c);
}
