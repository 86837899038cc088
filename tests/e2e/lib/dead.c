/* Makes dead letters, for tests of what operators do with them: asks for an effect of each KEY,
 * executes it in vain, and prints its id. Nobody else may have the ledger meanwhile. */
#include <stdio.h>

#include "outbox/outbox.h"

static status make(struct ledger *ledger, str run_id, str type, const char *key,
                   struct arena *arena, struct error *err) {
    char payload[300];
    char id[UUID_TEXT_LEN];
    struct effect_info info;
    struct outbox_batch batch = {0};
    bool existing = false;
    bool dead = false;
    snprintf(payload, sizeof(payload), "{\"idempotency_key\":\"%s\"}", key);
    struct effect_request request = {
        .run_id = run_id, .type = type, .payload = str_c(payload), .actor = STR("dead")};
    status st = outbox_request(ledger, &request, arena, &info, &existing, err);
    if (st == ST_OK) st = outbox_claim(ledger, STR("dead"), STR_NONE, 1, 60000, arena, &batch, err);
    if (st == ST_OK && (batch.count != 1 || !uuid_eq(batch.items[0].effect.id, info.effect.id)))
        st = error_set(err, ST_CONFLICT, "another effect is due");
    if (st == ST_OK)
        st = outbox_fail(ledger, &batch.items[0], STR("HTTP_STATUS"), STR("the answer is 503"),
                         STR("no more to say"), STR("dead"), &dead, err);
    if (st == ST_OK && !dead) st = error_set(err, ST_CONFLICT, "it lives");
    if (st != ST_OK) return st;
    uuid_format(info.effect.id, id);
    printf("%.*s\n", UUID_TEXT_LEN, id);
    return ST_OK;
}

int main(int argc, char **argv) {
    struct ledger *ledger = NULL;
    struct ledger_options options = {0};
    struct error err = {0};
    struct arena arena;
    if (argc < 5) {
        fprintf(stderr, "usage: dead LEDGER-URL RUN TYPE KEY...\n");
        return 2;
    }
    arena_init(&arena, 4096, SIZE_MAX);
    status st = ledger_open(str_c(argv[1]), &options, &ledger, &err);
    for (int i = 4; i < argc && st == ST_OK; i++)
        st = make(ledger, str_c(argv[2]), str_c(argv[3]), argv[i], &arena, &err);
    if (st != ST_OK) fprintf(stderr, "dead: %s\n", err.msg);
    ledger_close(ledger);
    arena_release(&arena);
    return st == ST_OK ? 0 : 1;
}
