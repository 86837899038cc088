/* adapters/local/http_step.c: one request, and what its answer means for the step.
 *
 * The URL is judged before anything is looked up, and the address again when a socket is about to
 * connect to it (core/url_guard.h). Redirects are not followed: they are answers, and not 2xx. */
#include "adapters/local/impl.h"
#include "adapters/trace.h"
#include "base/json.h"
#include "base/limits.h"
#include "net/client.h"

enum {
    HTTP_HEADERS_OURS = 3, /* Content-Type, Idempotency-Key, traceparent */
    HTTP_DETAIL_BYTES_MAX = 6 * LOCAL_BODY_HEAD_MAX + 256,
    OUTPUT_DEPTH_SPARE = 10, /* nesting of the event, and of the output, around an answer's body */
    CONTENT_TYPE_MAX = 1024, /* of an output */
    TIMEOUT_SPARE_MS = 5000, /* our own timer comes first */
};

struct http_step {
    struct job *owner;
    struct client_call *call; /* NULL: none under way */
    const struct guard *guard;
    bool exact; /* see guard_address() */
    yyjson_val *body;
};

/* ---- the request ---- */

static bool may_connect(void *context, const uint8_t *address, size_t len) {
    const struct http_step *h = context;
    return guard_address(h->guard, h->exact, address, len);
}

static int lower(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; }

static bool same_name(str a, str b) {
    bool same = a.len == b.len;
    for (size_t i = 0; same && i < a.len; i++)
        same = lower(a.ptr[i]) == lower(b.ptr[i]);
    return same;
}

static bool has_header(const struct client_request *r, str name) {
    for (size_t i = 0; i < r->header_count; i++) {
        if (same_name(r->headers[i].name, name)) return true;
    }
    return false;
}

/* The same for every attempt of the step, and no control character whatever the ids hold. */
static void put_key_part(struct buf *b, str id) {
    for (size_t i = 0; i < id.len; i++) {
        unsigned char c = (unsigned char)id.ptr[i];
        if (c <= ' ' || c >= 0x7f || c == '%' || c == '/')
            buf_printf(b, "%%%02X", c);
        else
            buf_put_char(b, id.ptr[i]);
    }
}

static bool key_make(struct job *job, str *out) {
    const struct attempt *a = job->attempt;
    struct buf key;
    buf_init(&key, 3 * (a->run_id.len + a->step->id.len) + 1);
    put_key_part(&key, a->run_id);
    buf_put_char(&key, '/');
    put_key_part(&key, a->step->id);
    bool ok = !key.full && arena_try_str(&job->arena, buf_str(&key), out);
    buf_release(&key);
    return ok;
}

static bool no_memory(struct job *job) {
    job_fail(job, REASON_HTTP_FAILED, "out of memory");
    return false;
}

/* Who is called learns of the trace, unless the step tells it of another one. */
static bool trace_add(struct job *job, struct client_header *headers, struct client_request *r) {
    const struct attempt *a = job->attempt;
    char text[TRACE_PARENT_LEN];
    str kept;
    if (has_header(r, STR("traceparent")) ||
        !trace_parent(a->correlation, a->run_id, a->step->id, a->number, text))
        return true;
    if (!arena_try_str(&job->arena, str_n(text, sizeof text), &kept)) return no_memory(job);
    headers[r->header_count++] = (struct client_header){STR("traceparent"), kept};
    return true;
}

static bool headers_make(struct job *job, yyjson_val *given, struct client_request *r) {
    size_t n = yyjson_obj_size(given);
    if (n + HTTP_HEADERS_OURS > CLIENT_HEADERS_MAX || (given && !yyjson_is_obj(given))) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA,
                 "headers: expected an object of at most %d members",
                 CLIENT_HEADERS_MAX - HTTP_HEADERS_OURS);
        return false;
    }
    struct client_header *headers =
        arena_try(&job->arena, (n + HTTP_HEADERS_OURS) * sizeof *headers);
    if (!headers) return no_memory(job);
    r->headers = headers;
    size_t i;
    size_t count;
    yyjson_val *key;
    yyjson_val *val;
    yyjson_obj_foreach(given, i, count, key, val) {
        struct client_header *h = &headers[r->header_count];
        if (!job_value(job, val, "headers", &h->value)) return false;
        h->name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        r->header_count++;
    }
    str key_text;
    if (!key_make(job, &key_text)) return no_memory(job);
    if (!has_header(r, STR("Idempotency-Key")))
        headers[r->header_count++] = (struct client_header){STR("Idempotency-Key"), key_text};
    if (r->body.ptr && !has_header(r, STR("Content-Type"))) {
        str type = yyjson_is_str(json_member(job->http->body, "body")) ? STR("text/plain")
                                                                       : STR("application/json");
        headers[r->header_count++] = (struct client_header){STR("Content-Type"), type};
    }
    return trace_add(job, headers, r);
}

/* A string is sent as it is, anything else as JSON. */
static bool body_make(struct job *job, yyjson_val *body, struct client_request *r) {
    r->body = STR_NONE;
    if (!body || json_str(body, &r->body)) return true;
    r->body = json_text(body, &job->arena);
    return r->body.ptr || no_memory(job);
}

static bool url_check(struct job *job, yyjson_val *url_val, struct client_request *r) {
    if (!json_str(url_val, &r->url)) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA, "url: expected a string");
        return false;
    }
    struct error err = {0};
    struct url url;
    if (!job->ex->guard) {
        job_fail(job, REASON_URL_NOT_ALLOWED, "no URL is allowed for http steps");
        return false;
    }
    if (guard_url(job->ex->guard, r->url, &job->arena, &url, &err) != ST_OK) {
        job_fail(job, err.reason ? err.reason : REASON_URL_NOT_ALLOWED, "%s", err.msg);
        return false;
    }
    job->http->guard = job->ex->guard;
    job->http->exact = url.exact;
    return true;
}

static bool request_make(struct job *job, struct client_request *r) {
    job->http = arena_try(&job->arena, sizeof *job->http);
    if (!job->http) return no_memory(job);
    yyjson_val *body;
    if (!job_body(job, &body)) return false;
    job->http->body = body;
    yyjson_val *method = json_member(body, "method");
    r->method = STR("GET");
    if (method && !json_str(method, &r->method)) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA, "method: expected a string");
        return false;
    }
    r->may_connect = may_connect;
    r->context = job->http;
    r->bytes_max = job->ex->output_max > CLIENT_BYTES_MAX ? job->ex->output_max : CLIENT_BYTES_MAX;
    int64_t timeout_ms = job->attempt->timeout_ms;
    r->timeout_ms = timeout_ms > 0 ? timeout_ms + TIMEOUT_SPARE_MS : 0;
    return url_check(job, json_member(body, "url"), r) &&
           body_make(job, json_member(body, "body"), r) &&
           headers_make(job, json_member(body, "headers"), r);
}

/* ---- the answer ---- */

static bool status_expected(const struct job *job, int code) {
    yyjson_val *expect = json_member(job->http->body, "expectStatus");
    if (!yyjson_is_arr(expect)) return code >= 200 && code <= 299;
    size_t i;
    size_t n;
    yyjson_val *one;
    yyjson_arr_foreach(expect, i, n, one) {
        int64_t want;
        if (json_int(one, &want) && want == code) return true;
    }
    return false;
}

static void answer_status(struct job *job, int code, str body) {
    bool cut = body.len > LOCAL_BODY_HEAD_MAX;
    if (cut) body = text_uncut(str_n(body.ptr, LOCAL_BODY_HEAD_MAX), false, true);
    struct buf *d = &job->detail;
    buf_init(d, HTTP_DETAIL_BYTES_MAX);
    buf_printf(d, "{\"status\":%d,\"bodyHead\":", code);
    (void)text_put_json(d, body, 6 * LOCAL_BODY_HEAD_MAX + 2);
    buf_put_char(d, '}');
    job_fail(job, REASON_HTTP_STATUS, "answered with status %d", code);
}

static bool is_json_type(str type) {
    str media = STR_NONE;
    str parameters = STR_NONE;
    (void)str_split(type, ';', &media, &parameters);
    media = str_trim(media);
    static const str json = STR_LIT("application/json");
    size_t suffix = sizeof "+json" - 1;
    return same_name(media, json) ||
           (media.len > suffix && same_name(str_from(media, media.len - suffix), STR("+json")));
}

static void too_large(struct job *job, size_t bytes) {
    job_fail(job, REASON_OUTPUT_TOO_LARGE,
             "the answer has %zu bytes; at most %zu can be a json output", bytes,
             job->ex->output_max);
}

/* The body as JSON, appended to the output. false: it is no such thing, or job_fail() was called.
 */
static bool put_json_body(struct job *job, str body, struct error *err) {
    struct json_limits limits = {job->ex->output_max,
                                 (int)JSON_DEPTH_MAX - (int)OUTPUT_DEPTH_SPARE};
    yyjson_val *root;
    if (body.len > job->ex->output_max) {
        too_large(job, body.len);
        return false;
    }
    if (json_parse(body, limits, &job->arena, &root, err) != ST_OK) return false;
    if (json_write_masked(root, &job->mask, &job->output)) return true;
    job_fail(job, REASON_OUTPUT_TOO_LARGE, "no memory for the output");
    return false;
}

static void put_text_body(struct job *job, str body) {
    size_t max = job->ex->output_max;
    bool cut = body.len > max;
    str text = cut ? text_uncut(str_n(body.ptr, max), false, true) : body;
    if (!text_put_json(&job->output, text, 2 * max + 2)) cut = true;
    if (!cut) return;
    buf_init(&job->detail, 128);
    buf_printf(&job->detail, "{\"outputTruncated\":true,\"outputBytes\":%zu}", body.len);
}

static void put_content_type(struct job *job, str type) {
    struct buf masked;
    buf_init(&masked, type.len);
    if (mask_text(&job->mask, type, &masked)) {
        buf_put_c(&job->output, "\"content-type\":");
        (void)text_put_json(&job->output, buf_str(&masked), CONTENT_TYPE_MAX);
    }
    buf_release(&masked);
}

/* {"status":200,"headers":{"content-type":"..."},"body":...} */
static void answer_output(struct job *job, const struct client_response *r, str body) {
    str asked = STR_NONE;
    bool is_asked = json_str(json_member(job->http->body, "output"), &asked);
    bool must = is_asked && job->attempt->step->output == PLAN_OUTPUT_JSON;
    bool may = must || (is_json_type(r->content_type) && !is_asked);
    struct error err = {0};
    buf_init(&job->output, 6 * job->ex->output_max + 4096);
    buf_printf(&job->output, "{\"status\":%d,\"headers\":{", r->status);
    if (r->content_type.ptr) put_content_type(job, r->content_type);
    buf_put_c(&job->output, "},\"body\":");
    bool done = may && put_json_body(job, body, &err);
    if (!done && must && !job->code)
        job_fail(job, REASON_OUTPUT_NOT_JSON, "the answer is not one JSON value: %s", err.msg);
    if (job->code) return;
    if (!done) put_text_body(job, body);
    buf_put_char(&job->output, '}');
    job->ok = !job->output.full;
    if (!job->ok) job_fail(job, REASON_OUTPUT_TOO_LARGE, "no memory for the output");
}

static void answer_response(struct job *job, const struct client_response *r) {
    struct buf body; /* servers say again what they were told */
    buf_init(&body, r->body.len);
    if (!mask_text(&job->mask, r->body, &body)) {
        (void)no_memory(job);
    } else if (!status_expected(job, r->status)) {
        answer_status(job, r->status, buf_str(&body));
    } else if (job->attempt->step->output == PLAN_OUTPUT_NONE) {
        job->ok = true;
    } else {
        answer_output(job, r, buf_str(&body));
    }
    buf_release(&body);
}

static void answer_error(struct job *job, const struct error *err) {
    static const struct {
        enum reason reason, code;
    } codes[] = {
        {REASON_HTTP_TIMEOUT, REASON_TIMEOUT},
        {REASON_HTTP_TOO_LARGE, REASON_OUTPUT_TOO_LARGE},
        {REASON_HTTP_REFUSED_ADDRESS, REASON_URL_NOT_ALLOWED},
        {REASON_HTTP_REQUEST_INVALID, REASON_INVALID_STEP_SCHEMA},
    };
    enum reason code = REASON_HTTP_FAILED;
    for (size_t i = 0; i < COUNT_OF(codes); i++) {
        if (err->reason == codes[i].reason) code = codes[i].code;
    }
    job_fail(job, code, "%s", err->msg);
}

static void on_done(void *context, status st, const struct client_response *response,
                    const struct error *err) {
    struct http_step *h = context;
    struct job *job = h->owner;
    h->call = NULL;
    if (st == ST_OK)
        answer_response(job, response);
    else
        answer_error(job, err);
    job_ended(job);
}

/* ---- the life of a request ---- */

void http_launch(struct job *job) {
    struct executor *ex = job->ex;
    struct client_request r = {0};
    struct error err = {0};
    if (!ex->client && client_open(ex->loop, &ex->client, &err) != ST_OK) {
        answer_error(job, &err);
    } else if (request_make(job, &r)) {
        job->http->owner = job;
        if (client_start(ex->client, &r, on_done, job->http, &job->http->call, &err) == ST_OK)
            return;
        job->http->call = NULL;
        answer_error(job, &err);
    }
    job_ended(job);
}

bool http_has_room(const struct executor *ex) {
    return !ex->client || client_active(ex->client) < CLIENT_REQUESTS_MAX;
}

void http_interrupt(struct job *job) {
    if (job->http->call) client_cancel(job->http->call);
    job->http->call = NULL;
    if (job->interrupted == REASON_TIMEOUT)
        job_fail(job, REASON_TIMEOUT, "timed out after %lld ms",
                 (long long)job->attempt->timeout_ms);
    else
        job_fail(job, job->interrupted, "cancelled");
    job_ended(job);
}

void http_close(struct executor *ex) {
    client_close(ex->client);
    ex->client = NULL;
}
