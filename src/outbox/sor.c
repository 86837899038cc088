/* outbox/sor.c: SOR_UPDATE: proposes a write to the system of record, which has a policy of its own
 * for those: what it refuses is a failure like any other. The write says where it comes from, with
 * the hash of the change, and that it is no inference. */
#include "base/hash.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "outbox/impl.h"

static bool hash_change(struct parcel *p, yyjson_val *change, char hex[SHA256_HEX_LEN]) {
    struct buf text;
    uint8_t hash[SHA256_LEN];
    buf_init(&text, 6 * EVENT_BYTES_MAX);
    bool ok = json_write_sorted(change, NULL, &p->arena, &text);
    if (ok) sha256_of(buf_str(&text), hash);
    if (ok) hex_encode(hash, sizeof hash, hex);
    buf_release(&text);
    return ok || parcel_no_memory(p);
}

static bool take_object(struct parcel *p, const char *name, yyjson_val **out) {
    *out = json_member(p->payload, name);
    if (!*out) return parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: \"%s\" is missing", name);
    if (yyjson_is_obj(*out)) return true;
    return parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: \"%s\" is not an object", name);
}

static bool take_name(struct parcel *p, const char *name, str *out) {
    if (!parcel_text(p, name, true, out)) return false;
    return out->len > 0 || parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: \"%s\" is empty", name);
}

static void put_source(struct buf *b, str key) {
    struct buf source;
    buf_init(&source, key.len + 16);
    buf_put_c(&source, "orchestrator:");
    buf_put(&source, key);
    json_put_text(b, "source_id", buf_str(&source));
    b->full = b->full || source.full;
    buf_release(&source);
}

static bool put_write(struct parcel *p, struct buf *b, str entity_id, yyjson_val *change) {
    char hash[SHA256_HEX_LEN];
    if (!hash_change(p, change, hash)) return false;
    json_put_text(b, "entity_id", entity_id);
    json_name(b, "change");
    (void)json_write(change, b);
    put_source(b, p->delivery->key);
    json_put_text(b, "source_hash", str_n(hash, sizeof hash));
    json_put_time(b, "timestamp", p->delivery->now_us);
    json_put_bool(b, "inference", false);
    return true;
}

static bool body_make(struct parcel *p, struct buf *b) {
    str entity_type;
    str entity_id;
    yyjson_val *change;
    yyjson_val *evidence;
    if (!take_name(p, "entity_type", &entity_type) || !take_name(p, "entity_id", &entity_id) ||
        !take_object(p, "change", &change) || !take_object(p, "evidence_pack", &evidence))
        return false;
    json_object_begin(b);
    json_put_text(b, "tenant_id", p->delivery->tenant_id);
    json_put_text(b, "entity_type", entity_type);
    json_name(b, "write");
    json_object_begin(b);
    if (!put_write(p, b, entity_id, change)) return false;
    json_object_end(b);
    json_name(b, "evidence_pack");
    (void)json_write(evidence, b);
    json_object_end(b);
    return !b->full || parcel_no_memory(p);
}

void sor_begin(struct parcel *p) {
    static const char *const members[] = {"entity_type",   "entity_id",       "change",
                                          "evidence_pack", "idempotency_key", NULL};
    struct deliverer *d = p->deliverer;
    if (!d->options.sor_url.ptr) {
        (void)parcel_fail(p, REASON_SOR_NOT_CONFIGURED, "there is no system of record");
        return;
    }
    if (!parcel_members(p, members)) return;
    const struct client_header headers[] = {
        {STR_LIT("Content-Type"), STR_LIT("application/json")},
        {STR_LIT("X-Idempotency-Key"), p->delivery->key},
    };
    struct buf body;
    buf_init(&body, 8 * EVENT_BYTES_MAX);
    if (body_make(p, &body)) {
        struct client_request r = {.method = STR("POST"),
                                   .url = d->options.sor_url,
                                   .headers = headers,
                                   .header_count = COUNT_OF(headers),
                                   .body = buf_str(&body)};
        p->guard = &d->sor_guard;
        p->exact = true;
        http_send(p, &r, "SoR update");
    }
    buf_release(&body);
}
