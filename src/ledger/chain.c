/* The hash chain. One per tenant, in sequence_number order: hash(n) covers hash(n-1) and every
 * column of row n, so a lost, changed or reordered row breaks it; the tenant's row holds the newest
 * hash, so a lost tail shows too.
 *
 * The bytes hashed, integers big-endian of 8 bytes: prev[32], the twelve integers in the order of
 * struct event_row, event_id, key, then subject, actor, payload, each as its length (-1 for NULL)
 * and its bytes; and, if the row opens its run, the members of struct run_identity in the same
 * form. */
#include "ledger/chain.h"

#include "ledger/event_row.h"

static uint8_t *put_int(uint8_t *p, int64_t v) {
    for (int i = 7; i >= 0; i--)
        *p++ = (uint8_t)((uint64_t)v >> (8 * i));
    return p;
}

static void add_str(struct sha256 *sha, str s) {
    uint8_t len[8];
    put_int(len, s.ptr ? (int64_t)s.len : -1);
    sha256_add(sha, len, sizeof(len));
    if (s.len > 0) sha256_add(sha, s.ptr, s.len);
}

static uint8_t *put_str(uint8_t *p, str s) {
    p = put_int(p, s.ptr ? (int64_t)s.len : -1);
    if (s.ptr) memcpy(p, s.ptr, s.len);
    return p + s.len;
}

enum { ROW_INTS = 12, ROW_FIXED = SHA256_LEN + ROW_INTS * 8 + 16 + SHA256_LEN };

static uint8_t *put_fixed(uint8_t *p, const uint8_t prev[SHA256_LEN], const struct event_row *row) {
    const int64_t ints[ROW_INTS] = {row->pos,
                                    row->run_no,
                                    row->run_seq,
                                    row->type_no,
                                    row->context_no,
                                    row->engine_attempt,
                                    row->logical_attempt,
                                    row->emitted_ns,
                                    row->emitted_digits,
                                    row->persisted_us,
                                    row->cause_seq,
                                    row->step_index};
    ASSERT(row->event_id.len == 16 && row->key.len == SHA256_LEN);
    memcpy(p, prev, SHA256_LEN);
    p += SHA256_LEN;
    for (size_t i = 0; i < ROW_INTS; i++)
        p = put_int(p, ints[i]);
    memcpy(p, row->event_id.ptr, 16);
    memcpy(p + 16, row->key.ptr, SHA256_LEN);
    return p + 16 + SHA256_LEN;
}

void chain_hash(struct sha256 *sha, const uint8_t prev[SHA256_LEN], const struct event_row *row,
                const struct run_identity *opens, uint8_t out[SHA256_LEN]) {
    uint8_t mem[2048];
    sha256_start(sha);
    uint8_t *p = put_fixed(mem, prev, row);
    if (ROW_FIXED + 24 + row->subject.len + row->actor.len + row->payload.len <= sizeof(mem)) {
        /* The usual case in one piece: many small updates cost more than the copy. */
        p = put_str(put_str(put_str(p, row->subject), row->actor), row->payload);
        sha256_add(sha, mem, (size_t)(p - mem));
    } else {
        sha256_add(sha, mem, (size_t)(p - mem));
        add_str(sha, row->subject);
        add_str(sha, row->actor);
        add_str(sha, row->payload);
    }
    if (opens) {
        const str members[] = {opens->tenant_id,  opens->run_id,         opens->run_uuid,
                               opens->project_id, opens->environment_id, opens->correlation_id,
                               opens->signal_id};
        for (size_t i = 0; i < COUNT_OF(members); i++)
            add_str(sha, members[i]);
    }
    sha256_done(sha, out);
}

void chain_genesis(struct sha256 *sha, str tenant_id, uint8_t out[SHA256_LEN]) {
    sha256_start(sha);
    add_str(sha, STR("cairn ledger 1"));
    add_str(sha, tenant_id);
    sha256_done(sha, out);
}

void event_row_read(struct db_stmt *st, struct event_row *row) {
    *row = (struct event_row){.pos = db_int(st, 0),
                              .run_no = db_int(st, 1),
                              .run_seq = db_int(st, 2),
                              .type_no = db_int(st, 3),
                              .context_no = db_int(st, 4),
                              .engine_attempt = db_int(st, 5),
                              .logical_attempt = db_int(st, 6),
                              .emitted_ns = db_int(st, 7),
                              .emitted_digits = db_int(st, 8),
                              .persisted_us = db_int(st, 9),
                              .cause_seq = db_int(st, 10),
                              .step_index = db_is_null(st, 11) ? -1 : db_int(st, 11),
                              .event_id = db_blob(st, 12),
                              .key = db_blob(st, 13),
                              .subject = db_text(st, 14),
                              .actor = db_text(st, 15),
                              .payload = db_text(st, 16)};
}
