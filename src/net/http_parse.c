/* net/http_parse.c: llhttp's callbacks, and our own judgement of what they saw: framing, headers,
 * sizes. */
#include "net/http_parse.h"

#include <assert.h>

#include "base/arena.h"

/* --- Options and refusals -----------------------------------------------------------------------
 */

static void fill_size(size_t *value, size_t otherwise) {
    if (*value == 0) *value = otherwise;
}

static void fill_ms(int64_t *value, int64_t otherwise) {
    if (*value <= 0) *value = otherwise;
}

void http_options_fill(struct http_options *options) {
    fill_size(&options->header_bytes_max, (size_t)32 * 1024);
    fill_size(&options->headers_max, 100);
    fill_size(&options->target_max, (size_t)8 * 1024);
    fill_size(&options->body_max, (size_t)8 * 1024 * 1024);
    fill_size(&options->body_total_max, (size_t)256 * 1024 * 1024);
    fill_size(&options->connections_max, 20000);
    fill_size(&options->unsent_max, (size_t)1024 * 1024);
    fill_ms(&options->requests_max, INT64_MAX);
    fill_ms(&options->head_ms, 10000);
    fill_ms(&options->body_ms, 30000);
    fill_ms(&options->idle_ms, 75000);
    fill_ms(&options->write_stall_ms, 30000);
    fill_ms(&options->linger_ms, 2000);
}

static const struct {
    int status;
    const char *code;
} refusals[HTTP_REFUSAL_COUNT] = {
    [HTTP_BAD_REQUEST] = {400, "HTTP_BAD_REQUEST"},
    [HTTP_TIMEOUT_HEAD] = {408, "HTTP_TIMEOUT"},
    [HTTP_TIMEOUT_BODY] = {408, "HTTP_TIMEOUT"},
    [HTTP_BODY_TOO_LARGE] = {413, "HTTP_BODY_TOO_LARGE"},
    [HTTP_TARGET_TOO_LONG] = {414, "HTTP_TARGET_TOO_LONG"},
    [HTTP_BAD_EXPECTATION] = {417, "HTTP_BAD_EXPECTATION"},
    [HTTP_HEAD_TOO_LARGE] = {431, "HTTP_HEAD_TOO_LARGE"},
    [HTTP_NO_MEMORY] = {503, "HTTP_BUSY"},
    [HTTP_BAD_VERSION] = {505, "HTTP_BAD_VERSION"},
    [HTTP_TOO_MANY_CONNECTIONS] = {503, "HTTP_TOO_MANY_CONNECTIONS"},
    [HTTP_BAD_TLS] = {0, "HTTP_BAD_TLS"},
};

int http_refusal_status(enum http_refusal refusal) { return refusals[refusal].status; }
const char *http_refusal_code(enum http_refusal refusal) { return refusals[refusal].code; }

/* Refuses the message. The first refusal counts. Returns -1, llhttp's word for "stop". */
static int refuse(struct http_parser *p, enum http_refusal refusal, const char *detail) {
    if (p->state == HTTP_PARSE_BAD) return -1;
    p->state = HTTP_PARSE_BAD;
    p->refusal = refusal;
    p->detail = detail;
    return -1;
}

static int refuse_memory(struct http_parser *p) {
    return refuse(p, HTTP_NO_MEMORY, "the server has no memory for this request now");
}

/* --- What the complete head must look like, beyond llhttp's own rules ---------------------------
 */

static bool host_plausible(str host) {
    for (size_t i = 0; i < host.len; i++) {
        char c = host.ptr[i];
        bool alphanumeric = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
        if (!alphanumeric && !str_has(STR("-._~:[]%"), c)) return false;
    }
    return true;
}

static bool length_plausible(str value) {
    if (value.len == 0 || value.len > 19) return false;
    for (size_t i = 0; i < value.len; i++)
        if (value.ptr[i] < '0' || value.ptr[i] > '9') return false;
    return true;
}

/* One header that the framing or the routing depends on. */
static int judge_header(struct http_parser *p, str name, str value, bool *length, bool *encoding) {
    struct http_request *r = &p->request;
    if (http_name_eq(name, STR("host"))) {
        if (r->host.ptr) return refuse(p, HTTP_BAD_REQUEST, "more than one Host header");
        if (!host_plausible(value))
            return refuse(p, HTTP_BAD_REQUEST, "the Host header is malformed");
        r->host = value;
    } else if (http_name_eq(name, STR("content-length"))) {
        if (*length) return refuse(p, HTTP_BAD_REQUEST, "more than one Content-Length header");
        if (!length_plausible(value))
            return refuse(p, HTTP_BAD_REQUEST, "the Content-Length header is malformed");
        *length = true;
    } else if (http_name_eq(name, STR("transfer-encoding"))) {
        if (*encoding || !http_name_eq(value, STR("chunked")))
            return refuse(p, HTTP_BAD_REQUEST, "the only Transfer-Encoding is \"chunked\", once");
        *encoding = true;
    } else if (http_name_eq(name, STR("expect")) && r->version == 11) {
        if (!http_name_eq(value, STR("100-continue")))
            return refuse(p, HTTP_BAD_EXPECTATION, "the only expectation is \"100-continue\"");
        p->expects_continue = true;
    }
    return 0;
}

static int judge_headers(struct http_parser *p) {
    struct http_request *r = &p->request;
    bool length = false;
    bool encoding = false;
    for (size_t i = 0; i < p->header_count; i++) {
        struct http_header *h = &p->headers[i];
        h->value = str_trim(h->value);
        if (judge_header(p, h->name, h->value, &length, &encoding) != 0) return -1;
    }
    if (r->version == 11 && !r->host.ptr)
        return refuse(p, HTTP_BAD_REQUEST, "the Host header is missing");
    if (length && encoding)
        return refuse(p, HTTP_BAD_REQUEST, "both Content-Length and Transfer-Encoding");
    if (encoding && r->version == 10)
        return refuse(p, HTTP_BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding");
    /* We and llhttp must see the same framing, or somebody is being fooled. */
    if (encoding != ((p->llhttp.flags & F_CHUNKED) != 0) ||
        length != ((p->llhttp.flags & F_CONTENT_LENGTH) != 0))
        return refuse(p, HTTP_BAD_REQUEST, "the length of the body is not clear");
    if (length && p->llhttp.content_length > p->options->body_max)
        return refuse(p, HTTP_BODY_TOO_LARGE, "the body is too large");
    r->has_body = length || encoding;
    if (!encoding && p->llhttp.content_length == 0) p->expects_continue = false;
    return 0;
}

static int judge_target(struct http_parser *p) {
    struct http_request *r = &p->request;
    bool asterisk = str_eq(r->target, STR("*")) && str_eq(r->method, STR("OPTIONS"));
    if (r->target.len == 0 || (r->target.ptr[0] != '/' && !asterisk))
        return refuse(p, HTTP_BAD_REQUEST, "the target must begin with \"/\"");
    for (size_t i = 0; i < r->target.len; i++) {
        unsigned char c = (unsigned char)r->target.ptr[i];
        if (c <= 0x20 || c >= 0x7f || c == '#')
            return refuse(p, HTTP_BAD_REQUEST, "the target has a byte that must be escaped");
    }
    if (!str_split(r->target, '?', &r->path, &r->query)) r->query = STR_NONE;
    return 0;
}

/* --- llhttp's callbacks -------------------------------------------------------------------------
 */

static int on_url(llhttp_t *llhttp, const char *at, size_t len) {
    struct http_parser *p = llhttp->data;
    struct http_request *r = &p->request;
    if (!r->target.ptr) r->target.ptr = at;
    r->target.len = (size_t)(at + len - r->target.ptr); /* the head is in one piece */
    return 0;
}

static int add_header(struct http_parser *p) {
    if (p->header_count == p->headers_cap) {
        size_t cap = p->headers_cap ? p->headers_cap * 2 : 16;
        size_t each = sizeof(*p->headers);
        void *grown = mem_grow(p->headers, p->headers_cap * each, cap * each);
        if (!grown) return refuse_memory(p);
        p->headers = grown;
        p->headers_cap = cap;
    }
    p->headers[p->header_count++] = (struct http_header){STR_NONE, STR_NONE};
    return 0;
}

static int on_trailer(struct http_parser *p, size_t len) {
    p->trailer_len += len;
    if (p->trailer_len <= HTTP_TRAILER_BYTES_MAX) return 0;
    return refuse(p, HTTP_HEAD_TOO_LARGE, "the trailers are too large");
}

static int on_header_field(llhttp_t *llhttp, const char *at, size_t len) {
    struct http_parser *p = llhttp->data;
    if (p->in_trailers) return on_trailer(p, len);
    /* A value that has begun, even an empty one, ends the header before this one. */
    bool fresh = p->header_count == 0 || p->headers[p->header_count - 1].value.ptr;
    if (fresh && add_header(p) != 0) return -1;
    struct http_header *h = &p->headers[p->header_count - 1];
    if (!h->name.ptr) h->name.ptr = at;
    h->name.len = (size_t)(at + len - h->name.ptr);
    return 0;
}

static int on_header_value(llhttp_t *llhttp, const char *at, size_t len) {
    struct http_parser *p = llhttp->data;
    if (p->in_trailers) return on_trailer(p, len);
    struct http_header *h = &p->headers[p->header_count - 1];
    if (!h->value.ptr) h->value.ptr = at;
    h->value.len = (size_t)(at + len - h->value.ptr);
    return 0;
}

static int on_header_value_complete(llhttp_t *llhttp) {
    struct http_parser *p = llhttp->data;
    if (p->in_trailers) return on_trailer(p, sizeof(": \r\n") - 1);
    struct http_header *h = &p->headers[p->header_count - 1];
    if (!h->value.ptr) h->value = STR(""); /* it was empty */
    return 0;
}

static int on_headers_complete(llhttp_t *llhttp) {
    struct http_parser *p = llhttp->data;
    struct http_request *r = &p->request;
    llhttp->upgrade = 0; /* we speak one protocol; an offer of another is no more than a header */
    if (llhttp->method == HTTP_CONNECT) return refuse(p, HTTP_BAD_REQUEST, "this is not a proxy");
    r->version = llhttp->http_major * 10 + llhttp->http_minor;
    r->method = str_c(llhttp_method_name((llhttp_method_t)llhttp->method));
    if (judge_target(p) != 0 || judge_headers(p) != 0) return -1;
    r->headers = p->headers;
    r->header_count = p->header_count;
    r->keep_alive = r->version == 11 && llhttp_should_keep_alive(llhttp);
    p->in_trailers = true; /* a header from here on is one */
    return 0;
}

/* Memory follows the bytes that came, not the length that was promised. */
static int body_reserve(struct http_parser *p, size_t need) {
    if (need <= p->body_cap) return 0;
    size_t cap = p->body_cap ? p->body_cap : 1024;
    while (cap < need)
        cap *= 2;
    if (cap > p->options->body_max) cap = p->options->body_max;
    ASSERT(cap >= need);
    size_t more = cap - p->body_cap;
    if (more > p->options->body_total_max || *p->body_total > p->options->body_total_max - more)
        return refuse_memory(p);
    void *grown = mem_grow(p->body, p->body_cap, cap);
    if (!grown) return refuse_memory(p);
    *p->body_total += more;
    p->body = grown;
    p->body_cap = cap;
    return 0;
}

static int on_body(llhttp_t *llhttp, const char *at, size_t len) {
    struct http_parser *p = llhttp->data;
    if (len > p->options->body_max - p->body_len)
        return refuse(p, HTTP_BODY_TOO_LARGE, "the body is too large");
    if (body_reserve(p, p->body_len + len) != 0) return -1;
    memcpy(p->body + p->body_len, at, len);
    p->body_len += len;
    return 0;
}

static int on_chunk_header(llhttp_t *llhttp) {
    struct http_parser *p = llhttp->data;
    p->chunks++;
    if (llhttp->content_length <= p->options->body_max - p->body_len) return 0;
    return refuse(p, HTTP_BODY_TOO_LARGE, "the body is too large");
}

static int on_chunk_extension(llhttp_t *llhttp, const char *at, size_t len) {
    struct http_parser *p = llhttp->data;
    UNUSED(at);
    p->extension_len += len;
    if (p->extension_len <= HTTP_CHUNK_EXTENSION_MAX) return 0;
    return refuse(p, HTTP_BAD_REQUEST, "the chunk extensions are too long");
}

static int on_message_complete(llhttp_t *llhttp) {
    struct http_parser *p = llhttp->data;
    p->state = HTTP_PARSE_DONE;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_chunk_header = on_chunk_header,
    .on_chunk_extension_name = on_chunk_extension,
    .on_chunk_extension_value = on_chunk_extension,
    .on_message_complete = on_message_complete,
};

/* --- The head, byte by byte ---------------------------------------------------------------------
 */

static bool head_append(struct http_parser *p, const char *ptr, size_t len) {
    if (p->head_len + len > p->head_cap) {
        size_t cap = p->head_cap ? p->head_cap : 1024;
        while (cap < p->head_len + len)
            cap *= 2;
        void *grown = mem_grow(p->head, p->head_cap, cap);
        if (!grown) return false;
        p->head = grown;
        p->head_cap = cap;
    }
    memcpy(p->head + p->head_len, ptr, len);
    p->head_len += len;
    return true;
}

/* A byte of the request line; its line end is not seen here. */
static int request_line_byte(struct http_parser *p, char c, size_t at) {
    if (c == '\t') return refuse(p, HTTP_BAD_REQUEST, "the request line is malformed");
    if (c == ' ') {
        p->spaces++;
    } else if (p->spaces == 1 && ++p->target_len > p->options->target_max) {
        return refuse(p, HTTP_TARGET_TOO_LONG, "the target is too long");
    }
    size_t version_len = at - p->target_len; /* and method and blanks: a bound, no more */
    if (p->spaces > 2 || (p->spaces == 0 && at >= HTTP_METHOD_MAX) ||
        version_len > HTTP_METHOD_MAX + sizeof(" HTTP/1.1 "))
        return refuse(p, HTTP_BAD_REQUEST, "the request line is malformed");
    return 0;
}

/* The request line is complete: a version that we do not speak is told apart from nonsense. */
static int request_line_end(struct http_parser *p) {
    str line = {p->head, p->head_len - 2};
    str version = line.len > 8 ? str_from(line, line.len - 8) : STR("");
    bool shaped = str_starts(version, STR("HTTP/")) && version.ptr[6] == '.' &&
                  version.ptr[5] >= '0' && version.ptr[5] <= '9' && version.ptr[7] >= '0' &&
                  version.ptr[7] <= '9' && version.ptr[-1] == ' ';
    if (p->spaces != 2 || !shaped)
        return refuse(p, HTTP_BAD_REQUEST, "the request line is malformed");
    if (!str_eq(version, STR("HTTP/1.1")) && !str_eq(version, STR("HTTP/1.0")))
        return refuse(p, HTTP_BAD_VERSION, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    return 0;
}

static int head_byte(struct http_parser *p, char byte, size_t at) {
    unsigned char c = (unsigned char)byte;
    if (p->lines > 0 && at - p->line_start == 0 && (c == ' ' || c == '\t'))
        return refuse(p, HTTP_BAD_REQUEST, "a header line begins with a blank");
    if (p->after_cr != (c == '\n'))
        return refuse(p, HTTP_BAD_REQUEST, "a line does not end in CR LF");
    if (c == '\r' || c == '\n') return 0;
    if ((c < 0x20 && c != '\t') || c == 0x7f)
        return refuse(p, HTTP_BAD_REQUEST, "a control byte in the head");
    return p->lines == 0 ? request_line_byte(p, byte, at) : 0;
}

static int line_end(struct http_parser *p, bool *complete) {
    size_t len = p->head_len - p->line_start;
    p->line_start = p->head_len;
    p->after_cr = false;
    if (p->lines++ == 0) {
        p->first_line_len = p->head_len;
        return request_line_end(p);
    }
    *complete = len == 2;
    /* The request line is the first of p->lines, and the empty line at the end is no header. */
    if (!*complete && p->lines - 1 > p->options->headers_max)
        return refuse(p, HTTP_HEAD_TOO_LARGE, "too many headers");
    return 0;
}

static void head_execute(struct http_parser *p) {
    llhttp_init(&p->llhttp, HTTP_REQUEST, &settings);
    p->llhttp.data = p;
    llhttp_errno_t code = llhttp_execute(&p->llhttp, p->head, p->head_len);
    if (p->state == HTTP_PARSE_BAD) return;
    if (code == HPE_OK && p->in_trailers) {
        p->state = HTTP_PARSE_BODY;
    } else if (code != HPE_PAUSED || p->state != HTTP_PARSE_DONE) {
        p->state = HTTP_PARSE_HEAD; /* whatever llhttp called last, it did not like the rest */
        refuse(p, HTTP_BAD_REQUEST, "the request is malformed");
    }
}

/* How many bytes from `n` on are plainly part of a header line, within `bytes` and the limit: what
 * head_byte() has nothing to say about. Most of a head is that. */
static size_t plain_bytes(const struct http_parser *p, str bytes, size_t n) {
    size_t at = p->head_len + n;
    if (p->lines == 0 || p->after_cr || at == p->line_start) return 0;
    size_t room = p->options->header_bytes_max - (at - p->first_line_len);
    size_t end = bytes.len - n < room ? bytes.len : n + room;
    size_t from = n;
    while (n < end) {
        unsigned char c = (unsigned char)bytes.ptr[n];
        if (c < 0x20 || c == 0x7f) break;
        n++;
    }
    return n - from;
}

/* Takes bytes up to the end of a line or of `bytes`. */
static size_t head_feed(struct http_parser *p, str bytes) {
    size_t n = 0;
    bool ended = false;
    while (n < bytes.len && !ended) {
        n += plain_bytes(p, bytes, n);
        if (n == bytes.len) break;
        size_t at = p->head_len + n;
        char c = bytes.ptr[n++];
        if (head_byte(p, c, at) != 0) return n;
        if (p->lines > 0 && at + 1 - p->first_line_len > p->options->header_bytes_max) {
            refuse(p, HTTP_HEAD_TOO_LARGE, "the headers are too large");
            return n;
        }
        ended = c == '\n';
        p->after_cr = c == '\r';
    }
    if (!head_append(p, bytes.ptr, n)) {
        refuse_memory(p);
        return n;
    }
    bool complete = false;
    if (ended && line_end(p, &complete) == 0 && complete) head_execute(p);
    return n;
}

/* One empty line may stand before a request: old clients put one after a body. */
static size_t blank_feed(struct http_parser *p, str bytes) {
    size_t n = 0;
    for (; n < bytes.len; n++) {
        char c = bytes.ptr[n];
        bool expected = (c == '\r' && p->blank_len == 0) || (c == '\n' && p->blank_len == 1);
        if (expected) {
            p->blank_len++;
        } else if (p->blank_len == 1 || c == '\r' || c == '\n') {
            refuse(p, HTTP_BAD_REQUEST, "the request line is missing");
            return n + 1;
        } else {
            p->state = HTTP_PARSE_HEAD;
            break;
        }
    }
    return n;
}

/* --- The body ------------------------------------------------------------------------------------
 */

/* The framing of a chunked body may be as long as its chunks need it, and no longer: otherwise a
 * size of endless zeros or a blank trailer would keep us busy for nothing. */
static bool framing_plausible(const struct http_parser *p, uint64_t chunks) {
    uint64_t framing = p->raw_len - p->body_len;
    return framing <= chunks * HTTP_CHUNK_FRAMING_MAX + HTTP_CHUNK_EXTENSION_MAX +
                          (uint64_t)2 * HTTP_TRAILER_BYTES_MAX;
}

static size_t body_feed(struct http_parser *p, str bytes) {
    p->expects_continue = false;
    llhttp_errno_t code = llhttp_execute(&p->llhttp, bytes.ptr, bytes.len);
    if (p->state == HTTP_PARSE_BAD) return bytes.len;
    size_t n = bytes.len;
    if (code == HPE_PAUSED && p->state == HTTP_PARSE_DONE) {
        n = (size_t)(llhttp_get_error_pos(&p->llhttp) - bytes.ptr);
        ASSERT(n <= bytes.len);
    } else if (code != HPE_OK) {
        p->state = HTTP_PARSE_BODY;
        refuse(p, HTTP_BAD_REQUEST, "the body is malformed");
        return n;
    }
    p->raw_len += n;
    bool chunked = (p->llhttp.flags & F_CHUNKED) != 0;
    /* (In the middle of a message the chunk that has just begun may not be counted yet.) */
    if (chunked && !framing_plausible(p, p->chunks + (p->state != HTTP_PARSE_DONE)))
        refuse(p, HTTP_BAD_REQUEST, "the body is mostly framing");
    return n;
}

/* --- Life ----------------------------------------------------------------------------------------
 */

void http_parser_start(
    struct http_parser *p, const struct http_options *options,
    size_t *body_total) { /* NOLINT(readability-non-const-parameter): written to later */
    struct http_parser fresh = {.options = options,
                                .body_total = body_total,
                                .head = p->head,
                                .head_cap = p->head_cap,
                                .headers = p->headers,
                                .headers_cap = p->headers_cap,
                                .body = p->body,
                                .body_cap = p->body_cap};
    *p = fresh;
}

static void body_drop(struct http_parser *p) {
    if (p->body) *p->body_total -= p->body_cap;
    mem_free(p->body);
    p->body = NULL;
    p->body_cap = p->body_len = 0;
}

void http_parser_release(struct http_parser *p) {
    body_drop(p);
    mem_free(p->head);
    mem_free(p->headers);
    p->head = NULL;
    p->headers = NULL;
    p->head_cap = p->headers_cap = 0;
}

void http_parser_trim(struct http_parser *p) {
    if (p->body_cap > HTTP_HEAD_KEPT) body_drop(p);
    if (p->head_cap > HTTP_HEAD_KEPT) {
        mem_free(p->head);
        p->head = NULL;
        p->head_cap = 0;
    }
    if (p->headers_cap > HTTP_HEAD_KEPT / sizeof(*p->headers)) {
        mem_free(p->headers);
        p->headers = NULL;
        p->headers_cap = 0;
    }
}

bool http_parser_begun(const struct http_parser *p) { return p->state != HTTP_PARSE_BLANK; }

size_t http_parser_feed(struct http_parser *p, str bytes) {
    size_t used = 0;
    while (used < bytes.len && p->state < HTTP_PARSE_DONE) {
        str rest = str_from(bytes, used);
        if (p->state == HTTP_PARSE_BLANK) {
            used += blank_feed(p, rest);
        } else if (p->state == HTTP_PARSE_HEAD) {
            used += head_feed(p, rest);
        } else {
            used += body_feed(p, rest);
        }
    }
    if (p->state == HTTP_PARSE_DONE)
        p->request.body = str_n(p->body_len ? p->body : "", p->body_len);
    return used;
}
