/* The stored format of the chain. A ledger outlives the program that wrote it, so the bytes that
 * are hashed are built here a second time, from the description at the top of chain.c. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/uuid.h"
#include "ledger/chain.h"
#include "ledger/event_row.h"
#include "test.h"

static void put_int(struct buf *b, int64_t v) {
    for (int i = 56; i >= 0; i -= 8)
        buf_put_char(b, (char)(uint8_t)((uint64_t)v >> i));
}

static void put_text(struct buf *b, str s) {
    put_int(b, s.ptr ? (int64_t)s.len : -1);
    buf_put(b, s);
}

static void by_the_book(const uint8_t prev[SHA256_LEN], const struct event_row *r,
                        const struct run_identity *id, uint8_t out[SHA256_LEN]) {
    struct buf b;
    buf_init(&b, (size_t)1024 * 1024);
    buf_put(&b, str_n(prev, SHA256_LEN));
    const int64_t ints[] = {r->pos,
                            r->run_no,
                            r->run_seq,
                            r->type_no,
                            r->context_no,
                            r->engine_attempt,
                            r->logical_attempt,
                            r->emitted_ns,
                            r->emitted_digits,
                            r->persisted_us,
                            r->cause_seq,
                            r->step_index};
    for (size_t i = 0; i < COUNT_OF(ints); i++)
        put_int(&b, ints[i]);
    buf_put(&b, r->event_id);
    buf_put(&b, r->key);
    put_text(&b, r->subject);
    put_text(&b, r->actor);
    put_text(&b, r->payload);
    if (id) {
        const str texts[] = {id->tenant_id,      id->run_id,         id->run_uuid, id->project_id,
                             id->environment_id, id->correlation_id, id->signal_id};
        for (size_t i = 0; i < COUNT_OF(texts); i++)
            put_text(&b, texts[i]);
    }
    sha256_of(buf_str(&b), out);
    buf_release(&b);
}

TEST(chain_hash_is_the_documented_one) {
    static char large[5000];
    uint8_t prev[SHA256_LEN];
    uint8_t key[SHA256_LEN];
    uint8_t want[SHA256_LEN];
    uint8_t got[SHA256_LEN];
    uuid event_id = uuid_v4();
    struct sha256 *sha = NULL;
    struct error err = {0};
    CHECK(sha256_open(&sha, &err) == ST_OK, "%s", err.msg);
    random_bytes(key, sizeof(key));
    chain_genesis(sha, STR("acme"), prev);
    memset(large, 'x', sizeof(large));
    /* Around the size that fits in one piece, absent and empty texts, with and without the run's
     * identity. */
    const str payloads[] = {STR_NONE,
                            STR(""),
                            STR("{}"),
                            str_n(large, 1700),
                            str_n(large, 1820),
                            str_n(large, 1860),
                            str_n(large, sizeof(large))};
    const struct run_identity id = {STR("acme"), STR("r1"), STR("u"), STR("shop"),
                                    STR("dev"),  STR("c"),  STR_NONE};
    for (size_t i = 0; i < COUNT_OF(payloads); i++) {
        for (int opens = 0; opens < 2; opens++) {
            struct event_row row = {.pos = 5,
                                    .run_no = INT64_MAX,
                                    .run_seq = 1,
                                    .type_no = 2,
                                    .context_no = 3,
                                    .engine_attempt = 4,
                                    .logical_attempt = 6,
                                    .emitted_ns = -1,
                                    .emitted_digits = 9,
                                    .persisted_us = 7,
                                    .cause_seq = 8,
                                    .step_index = -1,
                                    .event_id = str_n(event_id.b, 16),
                                    .key = str_n(key, SHA256_LEN),
                                    .subject = i % 2 ? STR("s") : STR_NONE,
                                    .actor = i % 3 ? STR("ann") : STR_NONE,
                                    .payload = payloads[i]};
            by_the_book(prev, &row, opens ? &id : NULL, want);
            chain_hash(sha, prev, &row, opens ? &id : NULL, got);
            CHECK(memcmp(want, got, SHA256_LEN) == 0, "payload %zu", i);
            memcpy(prev, got, SHA256_LEN);
        }
    }
    sha256_close(sha);
}

TEST(chain_begins_with_the_tenant) {
    uint8_t a[SHA256_LEN];
    uint8_t b[SHA256_LEN];
    uint8_t want[SHA256_LEN];
    struct sha256 *sha = NULL;
    struct error err = {0};
    struct buf book;
    CHECK(sha256_open(&sha, &err) == ST_OK, "%s", err.msg);
    chain_genesis(sha, STR("acme"), a);
    chain_genesis(sha, STR("globex"), b);
    CHECK(memcmp(a, b, SHA256_LEN) != 0);
    buf_init(&book, 1024);
    put_text(&book, STR("cairn ledger 1"));
    put_text(&book, STR("acme"));
    sha256_of(buf_str(&book), want);
    CHECK(memcmp(a, want, SHA256_LEN) == 0);
    buf_release(&book);
    sha256_close(sha);
}
