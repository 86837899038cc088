/* Riders: the receipt and the audit record of a request, in the commit of what it changed.
 *
 * A rider never refuses a commit. So there is nothing unique about a receipt: two with the same
 * key, in one group or from two nodes, are both stored, and the oldest counts. And a text that the
 * database would not take (a NUL, bytes that are not UTF-8) is made fit first. */
#include "ledger/access/access.h"

#include "ledger/access/riders.h"
#include "ledger/handle.h"
#include "ledger/project.h"

/* Bytes of any text of an audit record; the door is stricter. */
#define AUDIT_TEXT_MAX ((size_t)1024)
static_assert((size_t)AUDIT_REASON_MAX <= AUDIT_TEXT_MAX, "what the door lets in is kept");
static_assert((size_t)ID_BYTES_MAX <= AUDIT_TEXT_MAX, "and so is every id");

int64_t receipt_tag(struct ledger *l, str scope, str key) {
    uint8_t digest[SHA256_LEN];
    uint64_t tag = 0;
    sha256_start(l->sha);
    sha256_add(l->sha, scope.ptr, scope.len);
    sha256_add(l->sha, "", 1); /* a NUL: ("a", "bc") is not ("ab", "c") */
    sha256_add(l->sha, key.ptr, key.len);
    sha256_done(l->sha, digest);
    for (int i = 0; i < 8; i++)
        tag = tag << 8 | digest[i];
    return (int64_t)(tag >> 1);
}

/* An absent scope is an empty one: a column that is NOT NULL takes it. */
static str present(str s) { return s.ptr ? s : STR(""); }

static void queue_receipt(struct ledger *l, const struct receipt *r, int64_t now_us) {
    struct db_bulk *b = l->ins_receipt;
    ASSERT(r->key.len <= RECEIPT_KEY_MAX);
    ASSERT(r->body.len <= RECEIPT_BODY_MAX);
    db_bulk_int(b, receipt_tag(l, r->scope, r->key));
    db_bulk_blob(b, present(r->scope));
    db_bulk_blob(b, present(r->key));
    db_bulk_blob(b, str_n(r->fingerprint, SHA256_LEN));
    db_bulk_int(b, r->http_status);
    db_bulk_blob(b, r->body);
    db_bulk_blob(b, r->location);
    db_bulk_int(b, now_us);
}

/* The longest beginning that has at most AUDIT_TEXT_MAX bytes and splits no character. */
static str cut(str s) {
    if (s.len <= AUDIT_TEXT_MAX) return s;
    size_t n = AUDIT_TEXT_MAX;
    while (n > 0 && ((unsigned char)s.ptr[n] & 0xC0) == 0x80)
        n--;
    return str_n(s.ptr, n);
}

static bool is_fit(str s, size_t *bad) {
    if (!str_utf8(s, bad)) return false;
    const char *nul = s.len > 0 ? memchr(s.ptr, 0, s.len) : NULL;
    if (nul) *bad = (size_t)(nul - s.ptr);
    return !nul;
}

/* The text as every database takes it: '?' stands for a byte that it would not. */
static status fit(struct ledger *l, str s, str *out, struct error *err) {
    size_t bad = 0;
    *out = cut(s);
    if (is_fit(*out, &bad)) return ST_OK;
    char *copy = arena_try_raw(&l->scratch, out->len);
    if (!copy) return ledger_no_memory(err);
    memcpy(copy, out->ptr, out->len);
    *out = str_n(copy, out->len);
    while (!is_fit(*out, &bad))
        copy[bad] = '?';
    return ST_OK;
}

static void put_attempt(struct db_bulk *b, int64_t attempt) {
    if (attempt > 0)
        db_bulk_int(b, attempt);
    else
        db_bulk_null(b);
}

static status queue_audit(struct ledger *l, const struct audit_entry *a, int64_t now_us,
                          struct error *err) {
    struct db_bulk *b = l->ins_audit;
    str texts[] = {a->tenant_id,       a->actor,      a->remote,           a->request_id,
                   present(a->action), a->target,     present(a->outcome), a->code,
                   a->reason,          a->project_id, a->environment_id,   a->run_id};
    for (size_t i = 0; i < COUNT_OF(texts); i++) { /* first, so that no half of a row is queued */
        status st = fit(l, texts[i], &texts[i], err);
        if (st != ST_OK) return st;
    }
    db_bulk_int(b, now_us);
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        db_bulk_text(b, texts[i]);
    put_attempt(b, a->engine_attempt);
    put_attempt(b, a->logical_attempt);
    return ST_OK;
}

status riders_queue(struct ledger *l, const struct append_rider *riders, int64_t now_us,
                    struct error *err) {
    status st = ST_OK;
    for (const struct append_rider *r = riders; r && st == ST_OK; r = r->next) {
        if (r->receipt) queue_receipt(l, r->receipt, now_us);
        if (r->audit) st = queue_audit(l, r->audit, now_us, err);
    }
    return st;
}

status riders_write(struct ledger *l, const struct append_rider *riders, struct error *err) {
    if (!riders) return ST_OK;
    status st = riders_queue(l, riders, ledger_now_us(l), err);
    if (l->state == LEDGER_IN_MEMBER) return st;
    if (st == ST_OK) st = db_bulk_flush(l->ins_receipt, err);
    if (st == ST_OK) st = db_bulk_flush(l->ins_audit, err);
    if (st != ST_OK) project_clear(l);
    return st;
}

static status ride_body(struct ledger *l, void *context, struct error *err) {
    const struct append_rider **riders = context;
    return riders_write(l, *riders, err);
}

status access_ride(struct ledger *l, const struct append_rider *riders, struct error *err) {
    if (!riders) return ST_OK;
    return ledger_transact(l, ride_body, &riders, err);
}
