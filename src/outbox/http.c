/* outbox/http.c: one request, and what its answer means for the effect.
 *
 * Redirects are not followed: they are answers, and not 2xx. An answer that is longer than a result
 * may be is cut: the receiver has done its work, and must not be asked again because it talks much.
 */
#include "base/limits.h"
#include "base/text.h"
#include "net/server.h"
#include "outbox/impl.h"

enum { RESULT_DEPTH_SPARE = 10 }; /* nesting of the event around a result */

static bool may_connect(void *context, const uint8_t *address, size_t len) {
    const struct parcel *p = context;
    return guard_address(p->guard, p->exact, address, len);
}

/* ---- the answer ---- */

/* Two members whose names are secrets have one name when these are masked, and that is no JSON
 * which the ledger takes: so what was written is read again. */
static bool put_json(struct parcel *p, str body) {
    struct json_limits limits = {DELIVERY_RESULT_MAX, (int)JSON_DEPTH_MAX - RESULT_DEPTH_SPARE};
    struct error err = {0};
    yyjson_val *root;
    return json_parse(body, limits, &p->arena, &root, &err) == ST_OK &&
           json_write_masked(root, &p->mask, &p->result) &&
           json_parse(buf_str(&p->result), limits, &p->arena, &root, &err) == ST_OK;
}

static bool put_text(struct parcel *p, const struct client_response *r) {
    static const str end = STR_LIT(",\"truncated\":true}");
    struct buf masked;
    bool cut = r->cut;
    buf_init(&masked, r->body.len + 3);
    if (!parcel_put_masked(p, r->body, cut, &masked)) {
        buf_release(&masked);
        return false;
    }
    str text = cut ? text_uncut(buf_str(&masked), false, true) : buf_str(&masked);
    buf_clear(&p->result);
    buf_printf(&p->result, "{\"status\":%d,\"body\":", r->status);
    if (!text_put_json(&p->result, text, DELIVERY_RESULT_MAX - p->result.len - end.len)) cut = true;
    buf_put(&p->result, cut ? end : STR("}"));
    buf_release(&masked);
    return !p->result.full;
}

static void answer(struct parcel *p, const struct client_response *r) {
    if (r->status < 200 || r->status > 299) {
        const char *text = http_status_text(r->status);
        bool known = strcmp(text, "Unknown") != 0;
        (void)parcel_fail(p, REASON_HTTP_STATUS, "%s failed: %d%s%s", p->what, r->status,
                          known ? " " : "", known ? text : "");
        return;
    }
    buf_init(&p->result, DELIVERY_RESULT_MAX);
    bool ok = true;
    if (r->body.len == 0)
        buf_printf(&p->result, "{\"status\":%d}", r->status);
    else if (r->cut || !put_json(p, r->body))
        ok = put_text(p, r);
    /* It was done, whatever we can remember of the answer. */
    if (!ok) buf_clear(&p->result);
    if (!ok) buf_printf(&p->result, "{\"status\":%d,\"truncated\":true}", r->status);
    parcel_done(p);
}

static void answer_error(struct parcel *p, const struct error *err) {
    static const struct {
        enum reason reason, code;
    } codes[] = {
        {REASON_HTTP_TIMEOUT, REASON_TIMEOUT},
        {REASON_HTTP_REFUSED_ADDRESS, REASON_URL_NOT_ALLOWED},
        {REASON_HTTP_REQUEST_INVALID, REASON_PAYLOAD_INVALID},
    };
    enum reason code = REASON_HTTP_FAILED;
    for (size_t i = 0; i < COUNT_OF(codes); i++) {
        if (err->reason == codes[i].reason) code = codes[i].code;
    }
    (void)parcel_fail(p, code, "%s failed: %s", p->what, err->msg);
}

static void on_done(void *context, status st, const struct client_response *response,
                    const struct error *err) {
    struct parcel *p = context;
    p->http = NULL;
    if (st == ST_OK)
        answer(p, response);
    else
        answer_error(p, err);
}

/* ---- the request ---- */

void http_send(struct parcel *p, struct client_request *r, const char *what) {
    struct deliverer *d = p->deliverer;
    struct error err = {0};
    p->what = what;
    r->may_connect = may_connect;
    r->context = p;
    r->bytes_max = DELIVERY_RESULT_MAX;
    r->cuts = true;
    r->timeout_ms = d->options.timeout_ms;
    r->ca_file = d->options.ca_file;
    status st = d->client ? ST_OK : client_open(d->loop, &d->client, &err);
    if (st == ST_OK) st = client_start(d->client, r, on_done, p, &p->http, &err);
    if (st == ST_OK) return;
    p->http = NULL;
    answer_error(p, &err);
}
