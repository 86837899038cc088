/* outbox/webhook.c: WEBHOOK_CALL and API_CALL: an HTTP request that the payload describes.
 *
 * {"url", "method", "headers", "body", "idempotency_key"}, and "signing_secret" of a webhook. A
 * header's value is a string or {"secret":"NAME"}, read when it is sent. The receiver always gets
 * X-Idempotency-Key. Signatures are those of Standard Webhooks: HMAC-SHA256 over id.timestamp.body.
 * The id is the effect's, which is one per key and the same for every execution. The key itself may
 * have a full stop in it, and whoever chooses it, or a body that is text, could make one message
 * pass for another with the same signature. */
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/hash.h"
#include "outbox/impl.h"

enum {
    HEADERS_OURS = 5, /* X-Idempotency-Key, Content-Type, webhook-id, -timestamp, -signature */
    TIMESTAMP_MAX = 24,
    SIGNATURE_MAX = 3 + 4 * ((SHA256_LEN + 2) / 3) + 1, /* "v1," and base64 */
};
#define SIGNING_KEY_MAX ((size_t)64 * 1024)

struct headers {
    struct client_header *list;
    size_t count;
    bool typed; /* the payload has a Content-Type */
};

static int lower(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; }

static bool same_name(str a, const char *name) {
    bool same = a.len == strlen(name);
    for (size_t i = 0; same && i < a.len; i++)
        same = lower(a.ptr[i]) == name[i];
    return same;
}

static bool is_among(str name, const char *const *names) {
    bool found = false;
    for (; *names && !found; names++)
        found = same_name(name, *names);
    return found;
}

/* ---- the parts of a request ---- */

static bool take_url(struct parcel *p, struct client_request *r) {
    const struct guard *guard = p->deliverer->options.guard;
    struct error err = {0};
    struct url url;
    if (!parcel_text(p, "url", true, &r->url)) return false;
    if (!guard) return parcel_fail(p, REASON_URL_NOT_ALLOWED, "no URL may be called");
    if (guard_url(guard, r->url, &p->arena, &url, &err) != ST_OK) {
        bool invalid = err.reason == REASON_URL_INVALID;
        return parcel_fail(p, invalid ? REASON_PAYLOAD_INVALID : REASON_URL_NOT_ALLOWED, "%s",
                           err.msg);
    }
    p->guard = guard;
    p->exact = url.exact;
    return true;
}

/* A string is sent as it is, anything else as JSON. */
static bool take_body(struct parcel *p, struct client_request *r) {
    yyjson_val *body = json_member(p->payload, "body");
    r->body = STR_NONE;
    if (!body || json_str(body, &r->body)) return true;
    r->body = json_text(body, &p->arena);
    return r->body.ptr || parcel_no_memory(p);
}

static void header_put(struct headers *h, const char *name, str value) {
    h->list[h->count++] = (struct client_header){str_c(name), value};
}

/* What the payload says, but for what we say ourselves. What describes the connection is nobody's
 * to choose: another Host would lead past the list of those that may be called. */
static bool take_header(struct parcel *p, struct headers *h, str name, yyjson_val *val, bool sign) {
    static const char *const never[] = {"host",    "content-length", "transfer-encoding",
                                        "upgrade", "connection",     "keep-alive",
                                        "te",      "trailer",        "expect",
                                        NULL};
    static const char *const signs[] = {"webhook-id", "webhook-timestamp", "webhook-signature",
                                        NULL};
    str secret;
    str value;
    if (is_among(name, never))
        return parcel_fail(p, REASON_PAYLOAD_INVALID,
                           "payload: the header \"%.*s\" cannot be chosen", STR_ARG(name));
    if (same_name(name, "x-idempotency-key") || (sign && is_among(name, signs))) return true;
    if (yyjson_is_obj(val) && yyjson_obj_size(val) == 1 &&
        json_str(json_member(val, "secret"), &secret)) {
        if (!parcel_secret(p, secret, &value)) return false;
    } else if (!json_str(val, &value)) {
        return parcel_fail(p, REASON_PAYLOAD_INVALID,
                           "payload: a header is a string or {\"secret\":\"NAME\"}");
    }
    h->typed = h->typed || same_name(name, "content-type");
    h->list[h->count++] = (struct client_header){name, value};
    return true;
}

static bool take_headers(struct parcel *p, struct headers *h, bool sign) {
    yyjson_val *given = json_member(p->payload, "headers");
    size_t count = yyjson_obj_size(given);
    if ((given && !yyjson_is_obj(given)) || count + HEADERS_OURS > CLIENT_HEADERS_MAX)
        return parcel_fail(p, REASON_PAYLOAD_INVALID,
                           "payload: \"headers\" is not an object of at most %d members",
                           CLIENT_HEADERS_MAX - HEADERS_OURS);
    h->list = arena_try(&p->arena, (count + HEADERS_OURS) * sizeof *h->list);
    if (!h->list) return parcel_no_memory(p);
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *val;
    yyjson_obj_foreach(given, i, n, key, val) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        if (!take_header(p, h, name, val, sign)) return false;
    }
    header_put(h, "X-Idempotency-Key", p->delivery->key);
    return true;
}

/* ---- signatures ---- */

/* "whsec_" and base64, as Standard Webhooks writes secrets; else the text itself. */
static bool signing_key(struct parcel *p, str name, uint8_t **key, size_t *len) {
    str secret;
    if (!parcel_secret(p, name, &secret)) return false;
    if (secret.len == 0 || secret.len > SIGNING_KEY_MAX)
        return parcel_fail(p, REASON_SECRET_INVALID,
                           "secret \"%.*s\" cannot sign: it is empty or long", STR_ARG(name));
    *key = arena_try(&p->arena, secret.len + 1);
    if (!*key) return parcel_no_memory(p);
    *len = secret.len;
    if (!str_starts(secret, STR("whsec_"))) {
        memcpy(*key, secret.ptr, secret.len);
        return true;
    }
    str text = str_from(secret, 6);
    if (!mask_add(&p->mask, text)) return parcel_no_memory(p);
    size_t padding = str_ends(text, STR("==")) ? 2 : str_ends(text, STR("=")) ? 1 : 0;
    int n = text.len % 4 ? -1 : EVP_DecodeBlock(*key, (const uint8_t *)text.ptr, (int)text.len);
    if (n <= (int)padding)
        return parcel_fail(p, REASON_SECRET_INVALID,
                           "secret \"%.*s\" cannot sign: what follows whsec_ is not base64",
                           STR_ARG(name));
    *len = (size_t)n - padding;
    return true;
}

static bool signature(struct parcel *p, const uint8_t *key, size_t key_len, str signed_text,
                      str *out) {
    uint8_t mac[EVP_MAX_MD_SIZE];
    unsigned mac_len = 0;
    char *text = arena_try(&p->arena, SIGNATURE_MAX);
    if (text) (void)snprintf(text, SIGNATURE_MAX, "v1,");
    if (!text || !HMAC(EVP_sha256(), key, (int)key_len, (const uint8_t *)signed_text.ptr,
                       signed_text.len, mac, &mac_len))
        return parcel_no_memory(p);
    ASSERT(mac_len == SHA256_LEN);
    int n = EVP_EncodeBlock((uint8_t *)text + 3, mac, (int)mac_len);
    *out = str_n(text, 3 + (size_t)n);
    return true;
}

static bool sign(struct parcel *p, str secret_name, str body, struct headers *h) {
    uint8_t *key = NULL;
    size_t key_len = 0;
    char seconds[TIMESTAMP_MAX];
    char id_text[UUID_TEXT_LEN];
    str id;
    str timestamp;
    str value;
    uuid_format(p->delivery->effect_id, id_text);
    (void)snprintf(seconds, sizeof seconds, "%lld", (long long)(p->delivery->now_us / 1000000));
    if (!signing_key(p, secret_name, &key, &key_len)) return false;
    if (!arena_try_str(&p->arena, str_c(seconds), &timestamp) ||
        !arena_try_str(&p->arena, str_n(id_text, sizeof id_text), &id))
        return parcel_no_memory(p);
    struct buf text;
    buf_init(&text, id.len + timestamp.len + body.len + 2);
    buf_put(&text, id);
    buf_put_char(&text, '.');
    buf_put(&text, timestamp);
    buf_put_char(&text, '.');
    if (body.len > 0) buf_put(&text, body);
    bool full = text.full;
    bool ok = !full && signature(p, key, key_len, buf_str(&text), &value);
    buf_release(&text);
    if (full) return parcel_no_memory(p);
    if (!ok) return false;
    header_put(h, "webhook-id", id);
    header_put(h, "webhook-timestamp", timestamp);
    header_put(h, "webhook-signature", value);
    return true;
}

/* ---- the two types ---- */

static void call_begin(struct parcel *p, const char *what, str secret_name) {
    struct client_request r = {.method = STR("POST")};
    struct headers h = {0};
    str method;
    if (!take_url(p, &r) || !parcel_text(p, "method", false, &method) || !take_body(p, &r) ||
        !take_headers(p, &h, secret_name.ptr != NULL))
        return;
    if (method.ptr) r.method = method;
    if (r.body.ptr && !h.typed)
        header_put(&h, "Content-Type",
                   yyjson_is_str(json_member(p->payload, "body")) ? STR("text/plain")
                                                                  : STR("application/json"));
    if (secret_name.ptr && !sign(p, secret_name, r.body, &h)) return;
    r.headers = h.list;
    r.header_count = h.count;
    http_send(p, &r, what);
}

void webhook_begin(struct parcel *p) {
    static const char *const members[] = {
        "url", "method", "headers", "body", "idempotency_key", "signing_secret", NULL};
    str secret_name;
    if (!parcel_members(p, members) || !parcel_text(p, "signing_secret", false, &secret_name))
        return;
    call_begin(p, "Webhook", secret_name.ptr ? secret_name : p->deliverer->options.webhook_secret);
}

void api_begin(struct parcel *p) {
    static const char *const members[] = {"url",  "method",          "headers",
                                          "body", "idempotency_key", NULL};
    if (parcel_members(p, members)) call_begin(p, "API call", STR_NONE);
}
