/* net/grpc_text.c: how gRPC writes things in headers. Pure functions. */
#include "net/grpc_impl.h"

enum { HOST_BYTES_MAX = 255, TIMEOUT_MAX = 99999999 /* eight digits */ };

const char *grpc_code_name(int code) {
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    };
    return code >= 0 && (size_t)code < COUNT_OF(names) ? names[code] : "UNKNOWN";
}

static bool is_alnum(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool grpc_target_parse(str target, str *host, int *port) {
    size_t colon = target.len;
    while (colon > 0 && target.ptr[colon - 1] != ':')
        colon--;
    if (colon < 2) return false;
    str name = str_n(target.ptr, colon - 1);
    bool bracketed = name.len > 2 && name.ptr[0] == '[' && name.ptr[name.len - 1] == ']';
    if (bracketed) name = str_n(name.ptr + 1, name.len - 2);
    if (name.len == 0 || name.len > HOST_BYTES_MAX) return false;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        bool ok = is_alnum(c) || str_has(bracketed ? STR(":.%") : STR("-._"), c);
        if (!ok) return false;
    }
    int64_t n = 0;
    if (!str_to_int(str_from(target, colon), &n) || n < 1 || n > UINT16_MAX) return false;
    *host = name;
    *port = (int)n;
    return true;
}

bool grpc_value_valid(str value) {
    for (size_t i = 0; i < value.len; i++) {
        if (value.ptr[i] < ' ' || value.ptr[i] > '~') return false;
    }
    return value.len == 0 || (value.ptr[0] != ' ' && value.ptr[value.len - 1] != ' ');
}

bool grpc_header_valid(const struct grpc_header *header) {
    static const str ours[] = {STR_LIT("te"),
                               STR_LIT("content-type"),
                               STR_LIT("user-agent"),
                               STR_LIT("host"),
                               STR_LIT("connection"),
                               STR_LIT("authorization"),
                               STR_LIT("content-length"),
                               STR_LIT("upgrade"),
                               STR_LIT("transfer-encoding"),
                               STR_LIT("keep-alive"),
                               STR_LIT("proxy-connection")};
    str name = header->name;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || str_has(STR("-_."), c);
        if (!ok) return false;
    }
    for (size_t i = 0; i < COUNT_OF(ours); i++) {
        if (str_eq(name, ours[i])) return false;
    }
    return name.len > 0 && !str_starts(name, STR("grpc-")) && grpc_value_valid(header->value);
}

void grpc_timeout_format(int64_t ms, char out[16]) {
    if (ms < 1) ms = 1; /* 0 would be over before it begins */
    bool whole = ms > TIMEOUT_MAX;
    int64_t n = whole ? ms / 1000 : ms;
    if (n > TIMEOUT_MAX) n = TIMEOUT_MAX;
    (void)snprintf(out, 16, "%lld%c", (long long)n, whole ? 'S' : 'm');
}

/* An answer that says nothing of gRPC comes from something in between. */
int grpc_code_of_http(int http_status) {
    switch (http_status) {
    case 400:
        return GRPC_INTERNAL;
    case 401:
        return GRPC_UNAUTHENTICATED;
    case 403:
        return GRPC_PERMISSION_DENIED;
    case 404:
        return GRPC_UNIMPLEMENTED;
    case 429:
    case 502:
    case 503:
    case 504:
        return GRPC_UNAVAILABLE;
    default:
        return GRPC_UNKNOWN;
    }
}

int grpc_code_of_reset(uint32_t error_code) {
    switch (error_code) {
    case NGHTTP2_REFUSED_STREAM:
        return GRPC_UNAVAILABLE;
    case NGHTTP2_CANCEL:
        return GRPC_CANCELLED;
    case NGHTTP2_ENHANCE_YOUR_CALM:
        return GRPC_RESOURCE_EXHAUSTED;
    case NGHTTP2_INADEQUATE_SECURITY:
        return GRPC_PERMISSION_DENIED;
    default:
        return GRPC_INTERNAL;
    }
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* What is wrongly encoded is kept as it is: a message is better than none. */
void grpc_message_decode(struct buf *text) {
    size_t len = 0;
    for (size_t i = 0; i < text->len; i++) {
        char c = text->ptr[i];
        if (c == '%' && text->len - i > 2) {
            int high = hex_digit(text->ptr[i + 1]);
            int low = hex_digit(text->ptr[i + 2]);
            if (high >= 0 && low >= 0) {
                c = (char)(high * 16 + low);
                i += 2;
            }
        }
        text->ptr[len++] = c;
    }
    text->len = len;
    for (size_t from = 0, bad = 0; from < len; from += bad + 1) {
        if (str_utf8(str_from(buf_str(text), from), &bad)) break;
        text->ptr[from + bad] = '?';
    }
}

static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

bool grpc_base64_decode(struct buf *text) {
    size_t end = text->len;
    while (end > 0 && text->len - end < 2 && text->ptr[end - 1] == '=')
        end--;
    if (end % 4 == 1 || (end < text->len && text->len % 4 != 0)) return false;
    size_t len = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < end; i++) {
        int digit = base64_digit(text->ptr[i]);
        if (digit < 0) return false;
        bits = bits << 6 | (uint32_t)digit;
        /* The digits of a group of four finish a byte each, but the first. */
        if (i % 4 > 0) text->ptr[len++] = (char)(uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    text->len = len;
    return true;
}
