/* net/http_text.c: the small tools of net/server.h. */
#include "net/server.h"

static unsigned char lower(char c) {
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
}

bool http_name_eq(str a, str b) {
    if (a.len != b.len) return false;
    for (size_t i = 0; i < a.len; i++)
        if (lower(a.ptr[i]) != lower(b.ptr[i])) return false;
    return true;
}

str http_header(const struct http_request *request, str name) {
    for (size_t i = 0; i < request->header_count; i++)
        if (http_name_eq(request->headers[i].name, name)) return request->headers[i].value;
    return STR_NONE;
}

bool http_query_next(str *query, str *name, str *value) {
    str pair;
    do {
        if (query->len == 0) return false;
        str rest;
        if (str_split(*query, '&', &pair, &rest)) {
            *query = rest;
        } else {
            *query = str_from(*query, query->len);
        }
    } while (pair.len == 0);
    if (!str_split(pair, '=', name, value)) *value = STR("");
    return true;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool http_unescape(str text, bool form, struct buf *out) {
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '%') {
            if (text.len - i < 3) return false;
            int high = hex_digit(text.ptr[i + 1]);
            int low = hex_digit(text.ptr[i + 2]);
            if (high < 0 || low < 0) return false;
            c = (char)(high * 16 + low);
            i += 2;
        } else if (c == '+' && form) {
            c = ' ';
        }
        buf_put_char(out, c);
    }
    return true;
}

const char *http_status_text(int code) {
    static const struct {
        int status;
        const char *text;
    } texts[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {207, "Multi-Status"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {423, "Locked"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i].status == code) return texts[i].text;
    return "Unknown";
}
